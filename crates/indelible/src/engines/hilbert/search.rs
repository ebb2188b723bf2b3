//! From a key to its leaf.

use super::Bug;
use super::Tree;
use super::inner::{Bounds, Key};
use super::leaf::Leaf;
use super::way::{Changed, Path, Spot};
use crate::Result;
use crate::concurrency::locks::WriteGuard;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::planted::planted;
use crate::spatial::Geometry;

impl<G: Geometry> Tree<G> {
    /// The spot of `key`, which may be an unindexed range. The caller is pinned.
    #[inline(always)]
    pub(super) fn locate_any(&self, key: Key) -> Spot<'_> {
        self.locate_for(key, None).0
    }

    /// The spot of `key` and the path there, as [`Path::descend`].
    #[inline(always)]
    pub(super) fn locate_for(&self, key: Key, bounds: Option<&Bounds>) -> (Spot<'_>, Path<'_>) {
        let mut path = Path::from(self.root());
        let spot = self.descend::<true>(key, bounds, &mut path);
        (spot, path)
    }

    #[inline(always)]
    fn descend<'a, const ENDS: bool>(
        &'a self,
        key: Key,
        bounds: Option<&Bounds>,
        path: &mut Path<'a>,
    ) -> Spot<'a> {
        loop {
            let descend: Descend<'_, '_, '_, G, ENDS> = Descend {
                tree: self,
                key,
                bounds,
                path,
            };
            if let Ok(spot) = dispatch(self.simd, descend) {
                return spot;
            }
        }
    }

    /// The spot of `key`, indexed on demand. The caller is pinned.
    #[inline(always)]
    pub(super) fn locate(&self, key: Key) -> Result<Spot<'_>> {
        loop {
            let spot = self.locate_any(key);
            if !spot.child.is_unindexed() {
                return Ok(spot);
            }
            self.index_on_demand(key)?;
        }
    }

    /// The leaf that covers `key`, locked, and where it begins and ends. With `bounds`, all boxes above the leaf contain them, until the leaf is unlocked.
    /// The caller is pinned.
    #[inline(always)]
    pub(super) fn lock_leaf(&self, key: Key, bounds: Option<&Bounds>) -> Result<LockedLeaf<'_, G>> {
        let (locked, [low, high]) = self.lock_child::<true>(key, bounds)?;
        let low = low.expect("invariant: a leaf begins somewhere");
        Ok(LockedLeaf { locked, low, high })
    }

    /// [`lock_leaf`](Self::lock_leaf) without where the leaf begins and ends, which an insert seldom needs and which lies in lines of its own.
    #[inline(always)]
    pub(super) fn lock_leaf_only(&self, key: Key, bounds: &Bounds) -> Result<Locked<'_, G>> {
        Ok(self.lock_child::<false>(key, Some(bounds))?.0)
    }

    #[inline(always)]
    fn lock_child<const ENDS: bool>(
        &self,
        key: Key,
        bounds: Option<&Bounds>,
    ) -> Result<(Locked<'_, G>, [Option<Key>; 2])> {
        let mut path = Path::from(self.root());
        loop {
            let spot = self.descend::<ENDS>(key, bounds, &mut path);
            if spot.child.is_unindexed() {
                self.index_on_demand(key)?;
                continue;
            }
            self.leaves.prefetch_front(spot.child.offset());
            // Before the path is validated: another leaf of the same node may split at any time.
            let ends = if ENDS {
                [Some(spot.low()), spot.high()]
            } else {
                [None; 2]
            };
            let lock = self.locks.of(spot.child.offset().get());
            let guard = match bounds {
                Some(_) if planted(Bug::BoxesNotValidated) => {
                    let guard = lock.lock();
                    (self.locate_any(key).child == spot.child).then_some(guard)
                }
                Some(_) => path.lock_leaf(lock),
                None => spot.lock_leaf(lock),
            };
            if let Some(guard) = guard {
                let leaf = self.leaves.at(spot.child.offset());
                return Ok((Locked { spot, leaf, guard }, ends));
            }
        }
    }
}

/// A leaf and the right to write it.
pub(super) struct Locked<'a, G> {
    pub(super) spot: Spot<'a>,
    pub(super) leaf: Leaf<'a, G>,
    pub(super) guard: WriteGuard<'a>,
}

/// A leaf, the right to write it, and which keys it covers.
pub(super) struct LockedLeaf<'a, G> {
    locked: Locked<'a, G>,
    /// The smallest key that the leaf covers.
    pub(super) low: Key,
    /// The smallest key that the leaf does not cover, if there is one.
    pub(super) high: Option<Key>,
}

impl<'a, G> LockedLeaf<'a, G> {
    /// The leaf without its keys.
    pub(super) fn into_locked(self) -> Locked<'a, G> {
        self.locked
    }
}

impl<'a, G> std::ops::Deref for LockedLeaf<'a, G> {
    type Target = Locked<'a, G>;

    #[inline(always)]
    fn deref(&self) -> &Locked<'a, G> {
        &self.locked
    }
}

struct Descend<'a, 'b, 'p, G, const ENDS: bool> {
    tree: &'a Tree<G>,
    key: Key,
    bounds: Option<&'b Bounds>,
    path: &'p mut Path<'a>,
}

impl<'a, G: Geometry, const ENDS: bool> Kernel for Descend<'a, '_, '_, G, ENDS> {
    type Out = Result<Spot<'a>, Changed>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        let root = self.tree.root();
        self.path
            .descend::<S, ENDS>(root, self.key, self.bounds, G::AXES)
    }
}
