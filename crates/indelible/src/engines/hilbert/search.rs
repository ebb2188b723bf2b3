//! From a key to its leaf.

use super::Bug;
use super::Tree;
use super::inner::{Bounds, Child, Inner, Key, fence_after_enlarging};
use super::leaf::Leaf;
use crate::Result;
use crate::concurrency::locks::{Version, WriteGuard};
use crate::kernels::{Kernel, Simd, SimdLevel, dispatch};
use crate::pmem::geometry::sized_in_tests;
use crate::pmem::planted::planted;
use crate::spatial::Geometry;

/// Levels of inner nodes, at most. The tree grows when the root is full, and with it most nodes below: eight levels are more leaves than a pool
/// can hold. Nodes are smaller under test.
pub(super) const MOST_LEVELS: usize = sized_in_tests(8, 24);

/// Another thread changed what was being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed;

/// The nodes from the root to a bottom node, with the versions that they had.
#[derive(Clone, Copy)]
pub(super) struct Path<'a> {
    nodes: [(&'a Inner, Version); MOST_LEVELS],
    length: usize,
}

impl<'a> Path<'a> {
    /// The path of a search that has not begun.
    #[inline(always)]
    fn of<G: Geometry>(tree: &'a Tree<G>) -> Self {
        let root = tree.root();
        Self {
            nodes: [(root, Version::default()); MOST_LEVELS],
            length: 0,
        }
    }

    #[inline(always)]
    fn push(&mut self, node: &'a Inner, version: Version) {
        assert!(
            self.length < MOST_LEVELS,
            "invariant: a tree has at most {MOST_LEVELS} levels"
        );
        self.nodes[self.length] = (node, version);
        self.length += 1;
    }

    /// Whether no node has changed since.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        let mut nodes = self.nodes[..self.length].iter();
        nodes.all(|(node, version)| node.lock().validate(*version))
    }

    /// Whether all boxes on the way to `key` contain `bounds`.
    pub(super) fn contains(&self, bounds: &Bounds, key: Key, axes: usize) -> bool {
        let mut nodes = self.nodes[..self.length].iter();
        nodes.all(|(node, _)| {
            let slot = dispatch(SimdLevel::best(), Find { node, key });
            node.bounds(slot).contains(bounds, axes)
        })
    }

    /// Makes the boxes of the nodes on the path as small as what lies below them allows, from the bottom upwards. Gives up where another thread
    /// is in the way: a larger box only costs time.
    pub(super) fn tighten(&self) {
        for pair in self.nodes[..self.length].windows(2).rev() {
            let [(parent, version), (node, _)] = pair else {
                return;
            };
            let Some(_parent) = parent.lock().try_lock_at(*version) else {
                return;
            };
            let Some(_node) = node.lock().try_lock() else {
                return;
            };
            let slot = (0..parent.count()).find(|&slot| std::ptr::eq(parent.node(slot), *node));
            if let Some(slot) = slot {
                // Both nodes are locked, and were before the boxes below were read.
                parent.set_bounds(slot, &node.bounds_of_all());
            }
        }
    }
}

/// Where a search ended: a child of a bottom node, and the way there.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) parent: &'a Inner,
    pub(super) version: Version,
    pub(super) slot: usize,
    pub(super) child: Child,
    /// The key at which the node to the right of `parent` begins, if there is one.
    pub(super) end: Option<Key>,
}

impl<'a> Spot<'a> {
    /// Whether the bottom node is still what it was when the search ended there.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.parent.lock().validate(self.version)
    }

    /// The smallest key that the child covers.
    pub(super) fn low(&self) -> Key {
        self.parent.key(self.slot)
    }

    /// The smallest key that the child does not cover, if there is one.
    pub(super) fn high(&self) -> Option<Key> {
        self.parent.next_key(self.slot).or(self.end)
    }
}

impl<G: Geometry> Tree<G> {
    /// The bottom node's child that covers `key`, and the path there. With `bounds` the boxes on the way are enlarged to contain them: the caller
    /// validates the path before it commits. Without `ENDS` the spot does not say where the child ends. The caller is pinned.
    ///
    /// Optimistic lock coupling: every node's version is taken before its parent's is checked.
    #[inline(always)]
    fn try_descend<'a, S: Simd, const ENDS: bool>(
        &'a self,
        key: Key,
        bounds: Option<&Bounds>,
        path: &mut Path<'a>,
    ) -> Result<Spot<'a>, Changed> {
        let mut node = self.root();
        let mut version = node.lock().read();
        path.length = 0;
        let (mut end, mut grew) = (None, false);
        loop {
            path.push(node, version);
            let slot = node.find::<S>(key);
            if ENDS {
                end = node.next_key(slot).or(end);
            }
            if let Some(bounds) = bounds {
                grew |= if G::AXES == 2 {
                    node.enlarge::<2>(slot, bounds)
                } else {
                    node.enlarge::<3>(slot, bounds)
                };
            }
            if node.level() == 0 {
                let child = node.child(slot);
                if !node.lock().validate(version) {
                    return Err(Changed);
                }
                if grew {
                    fence_after_enlarging();
                }
                let spot = Spot {
                    parent: node,
                    version,
                    slot,
                    child,
                    end,
                };
                return Ok(spot);
            }
            let child = node.node(slot);
            child.prefetch_keys();
            let child_version = child.lock().read();
            // The child's version was taken while its parent still pointed to it for this key.
            if !node.lock().validate(version) {
                return Err(Changed);
            }
            (node, version) = (child, child_version);
        }
    }

    /// The spot of `key`, which may be an unindexed range. The caller is pinned.
    #[inline(always)]
    pub(super) fn locate_any(&self, key: Key) -> Spot<'_> {
        self.locate_for(key, None).0
    }

    /// The spot of `key` and the path there, as [`try_descend`](Self::try_descend).
    #[inline(always)]
    pub(super) fn locate_for(&self, key: Key, bounds: Option<&Bounds>) -> (Spot<'_>, Path<'_>) {
        let mut path = Path::of(self);
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
        let mut path = Path::of(self);
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
            let guard = self.locks.of(spot.child.offset().get()).lock();
            // The leaf is locked, so it cannot be split any more; unless it was before, it covers the key. Nodes above may have got smaller boxes
            // meanwhile.
            let is_current = match bounds {
                Some(_) if planted(Bug::BoxesNotValidated) => {
                    self.locate_any(key).child == spot.child
                }
                Some(_) => path.is_current(),
                None => spot.is_current(),
            };
            if is_current {
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
        self.tree
            .try_descend::<S, ENDS>(self.key, self.bounds, self.path)
    }
}

/// The slot of the child that covers `key`.
pub(super) struct Find<'a> {
    pub(super) node: &'a Inner,
    pub(super) key: Key,
}

impl Kernel for Find<'_> {
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        self.node.find::<S>(self.key)
    }
}
