//! From a key to its leaf.

use super::Bug;
use super::Tree;
use super::inner::{Child, Inner};
use super::leaf::Leaf;
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::{Version, WriteGuard};
use crate::engines;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use std::marker::PhantomData;

/// Why a step of a search has to be taken again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    /// Another thread changed what was being read.
    Changed,
    /// The key is in an unindexed range, which has to be indexed first.
    Unindexed,
}

/// How a lookup ended. Flat, so that it comes back in registers.
#[derive(Clone, Copy)]
enum Lookup {
    Found(u64),
    Absent,
    Changed,
    Unindexed,
}

/// What a search remembers of the upper end of the node that it has reached: with `Option<u64>`, the lower end of the node to the
/// right, if there is one; with `()`, nothing, which costs nothing. Lookups and writes of one key need no ends.
pub(super) trait UpperEnd: Copy {
    /// The end of the root: there is no node to its right.
    const OF_ROOT: Self;

    /// The end of the child of `node` in `slot`, if this is the end of `node`.
    fn of_child(self, node: &Inner, slot: usize) -> Self;
}

impl UpperEnd for () {
    const OF_ROOT: Self = ();

    #[inline(always)]
    fn of_child(self, _: &Inner, _: usize) {}
}

impl UpperEnd for Option<u64> {
    const OF_ROOT: Self = None;

    #[inline(always)]
    fn of_child(self, node: &Inner, slot: usize) -> Self {
        node.next_key(slot).or(self)
    }
}

/// Where a search ended: a child of a bottom node, and the version that node had.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a, E = Option<u64>> {
    pub(super) parent: &'a Inner,
    pub(super) version: Version,
    pub(super) slot: usize,
    pub(super) child: Child,
    /// The upper end of `parent`.
    pub(super) end: E,
}

impl<E: UpperEnd> Spot<'_, E> {
    /// Whether the bottom node is still what it was when the search ended there.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.parent.lock().validate(self.version)
    }
}

impl Spot<'_> {
    /// The smallest key that the child covers.
    pub(super) fn low(&self) -> u64 {
        self.parent.key(self.slot)
    }

    /// The smallest key that the child does not cover, if there is one.
    pub(super) fn high(&self) -> Option<u64> {
        self.high_of(self.slot)
    }

    /// [`high`](Self::high) of the child in `slot` of the same bottom node.
    #[inline(always)]
    pub(super) fn high_of(&self, slot: usize) -> Option<u64> {
        self.end.of_child(self.parent, slot)
    }
}

impl Tree {
    /// The bottom node that covers `key`, its version, and its upper end.
    ///
    /// Optimistic lock coupling: every node's version is taken before its parent's is checked.
    #[inline(always)]
    fn to_bottom<S: Simd, E: UpperEnd>(&self, key: u64) -> Result<(&Inner, Version, E), Retry> {
        let mut node = self.root();
        let mut version = node.lock().read();
        let mut end = E::OF_ROOT;
        let mut level = node.level();
        while level > 0 {
            let at = node.find_position::<S>(key);
            let child = node.node_at(at);
            end = end.of_child(node, at.slot());
            if level == 1 {
                node.prefetch_likely_segment(at, key);
            }
            let child_version = child.lock().read();
            // The child's version was taken while its parent still pointed to it for this key.
            if !node.lock().validate(version) {
                return Err(Retry::Changed);
            }
            (node, version) = (child, child_version);
            level -= 1;
        }
        Ok((node, version, end))
    }

    /// The bottom node's child that covers `key`. The caller is pinned.
    #[inline(always)]
    pub(super) fn try_descend<S: Simd, E: UpperEnd>(&self, key: u64) -> Result<Spot<'_, E>, Retry> {
        let (node, version, end) = self.to_bottom::<S, E>(key)?;
        let segment = node.find_segment::<S>(key);
        node.prefetch_segment(segment);
        let slot = node.find_in_segment::<S>(segment, key).slot();
        let child = node.child(slot);
        self.leaves.prefetch(child.offset());
        let spot = Spot {
            parent: node,
            version,
            slot,
            child,
            end,
        };
        if spot.is_current() {
            Ok(spot)
        } else {
            Err(Retry::Changed)
        }
    }

    /// Few instructions wait for each of the lines read here, so that the processor can begin with the next lookup while
    /// it waits; that is worth more than any one of these lines.
    #[inline(always)]
    fn try_get<S: Simd>(&self, key: u64) -> Lookup {
        let Ok((node, version, ())) = self.to_bottom::<S, ()>(key) else {
            return Lookup::Changed;
        };
        let child = node.leaf_for::<S>(key);
        self.leaves.prefetch(child.offset());
        let lock = self.locks.of(child.offset().get());
        let leaf_version = lock.read();
        // While its bottom node is unchanged the leaf covers the key; a split would have to lock that node.
        if !node.lock().validate(version) {
            return Lookup::Changed;
        }
        if child.is_unindexed() {
            return Lookup::Unindexed;
        }
        let found = self.leaves.at(child.offset()).find(key);
        if !lock.validate(leaf_version) && !planted(Bug::ReadWithoutVersion) {
            return Lookup::Changed;
        }
        match found {
            Some((_, value)) => Lookup::Found(value),
            None => Lookup::Absent,
        }
    }

    /// One attempt to find `key`.
    #[inline(always)]
    pub(super) fn look_up(&self, key: u64) -> engines::Lookup {
        let _guard = epochs::pin();
        match dispatch(self.simd, Get { tree: self, key }) {
            Lookup::Found(value) => engines::Lookup::Found(value),
            Lookup::Absent => engines::Lookup::Absent,
            Lookup::Changed | Lookup::Unindexed => engines::Lookup::Retry,
        }
    }

    /// The value of `key`.
    pub(super) fn get(&self, key: u64) -> Result<Option<u64>> {
        loop {
            let found = {
                let _guard = epochs::pin();
                dispatch(self.simd, Get { tree: self, key })
            };
            match found {
                Lookup::Found(value) => return Ok(Some(value)),
                Lookup::Absent => return Ok(None),
                Lookup::Changed => {}
                Lookup::Unindexed => self.index_on_demand(key)?,
            }
        }
    }

    /// The spot of `key`, indexed on demand: its child is a leaf that covers the key, as long as the spot is current. The caller is
    /// pinned.
    #[inline(always)]
    pub(super) fn locate<E: UpperEnd>(&self, key: u64) -> Result<Spot<'_, E>> {
        loop {
            let spot = self.locate_any(key);
            if !spot.child.is_unindexed() {
                return Ok(spot);
            }
            self.index_on_demand(key)?;
        }
    }

    /// The spot of `key`, which may be an unindexed range. The caller is pinned.
    ///
    /// Inlined, as are its callers, so that the spot is not copied: what is read in other pieces than it was written in
    /// can be read only when the stores have left the processor, behind the fence of the write before.
    #[inline(always)]
    pub(super) fn locate_any<E: UpperEnd>(&self, key: u64) -> Spot<'_, E> {
        loop {
            let descend = Descend {
                tree: self,
                key,
                end: PhantomData,
            };
            if let Ok(spot) = dispatch(self.simd, descend) {
                return spot;
            }
        }
    }

    /// The leaf that covers `key`, locked. The caller is pinned.
    #[inline(always)]
    pub(super) fn lock_leaf<E: UpperEnd>(&self, key: u64) -> Result<LockedLeaf<'_, E>> {
        loop {
            let spot = self.locate(key)?;
            let guard = self.locks.of(spot.child.offset().get()).lock();
            // The leaf is locked, so it cannot be split any more; unless it was before, it covers the key.
            if spot.is_current() || planted(Bug::WriteWithoutVersion) {
                return Ok(LockedLeaf {
                    spot,
                    leaf: self.leaves.at(spot.child.offset()),
                    guard,
                });
            }
        }
    }

    /// The offset of the leaf that covers `key`; in an unindexed range, of the first leaf of the range.
    pub(super) fn leaf_offset_of(&self, key: u64) -> Offset {
        let _guard = epochs::pin();
        self.locate_any::<()>(key).child.offset()
    }
}

/// A leaf and the right to write it.
pub(super) struct LockedLeaf<'a, E = ()> {
    pub(super) spot: Spot<'a, E>,
    pub(super) leaf: Leaf<'a>,
    pub(super) guard: WriteGuard<'a>,
}

struct Get<'a> {
    tree: &'a Tree,
    key: u64,
}

impl Kernel for Get<'_> {
    type Out = Lookup;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree.try_get::<S>(self.key)
    }
}

struct Descend<'a, E> {
    tree: &'a Tree,
    key: u64,
    end: PhantomData<E>,
}

impl<'a, E: UpperEnd> Kernel for Descend<'a, E> {
    type Out = Result<Spot<'a, E>, Retry>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree.try_descend::<S, E>(self.key)
    }
}
