//! The way down from the root to a leaf: versions on the way, boxes that are enlarged on the way, and the lock at its end.
//!
//! It does not know what a node looks like, so that [`model`](super::model) can run it on nodes of three children.

use super::boxes::{BoxNode, bounds_of_all, enlarge, fence_after_enlarging};
use super::inner::{Bounds, Child, Inner, Key};
use crate::concurrency::locks::{Version, VersionLock, WriteGuard};
use crate::kernels::{Kernel, Simd, SimdLevel, dispatch};
use crate::pmem::geometry::sized_in_tests;

/// Levels of inner nodes, at most. The tree grows when the root is full, and with it most nodes below: eight levels are more leaves than a pool
/// can hold. Nodes are smaller under test.
pub(super) const MOST_LEVELS: usize = sized_in_tests(8, 24);

/// Another thread changed what was being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed;

/// The nodes from the root to a bottom node, with the versions that they had.
#[derive(Clone, Copy)]
pub(super) struct Path<'a, N = Inner> {
    nodes: [(&'a N, Version); MOST_LEVELS],
    length: usize,
}

impl<'a, N: BoxNode> Path<'a, N> {
    /// The path of a search that has not begun.
    #[inline(always)]
    pub(super) fn from(root: &'a N) -> Self {
        Self {
            nodes: [(root, Version::default()); MOST_LEVELS],
            length: 0,
        }
    }

    #[inline(always)]
    fn push(&mut self, node: &'a N, version: Version) {
        assert!(
            self.length < MOST_LEVELS,
            "invariant: a tree has at most {MOST_LEVELS} levels"
        );
        self.nodes[self.length] = (node, version);
        self.length += 1;
    }

    /// The child of a bottom node that covers `key`, and the path there. With `bounds` the boxes on the way are enlarged to contain them, on the
    /// first axes: the caller takes the lock of the leaf and validates the path before it commits. Without `ENDS` the spot does not say where the
    /// child ends.
    ///
    /// Optimistic lock coupling: every node's version is taken before its parent's is checked.
    #[inline(always)]
    pub(super) fn descend<S: Simd, const ENDS: bool>(
        &mut self,
        root: &'a N,
        key: Key,
        bounds: Option<&Bounds>,
        axes: usize,
    ) -> Result<Spot<'a, N>, Changed> {
        let mut node = root;
        let mut version = node.lock().read();
        self.length = 0;
        let (mut end, mut grew) = (None, false);
        loop {
            self.push(node, version);
            let slot = node.find::<S>(key);
            if ENDS {
                end = node.next_key(slot).or(end);
            }
            if let Some(bounds) = bounds {
                grew |= match axes {
                    1 => enlarge::<1>(node, slot, bounds),
                    2 => enlarge::<2>(node, slot, bounds),
                    _ => enlarge::<3>(node, slot, bounds),
                };
            }
            if node.level() == 0 {
                let child = node.child(slot);
                if !node.lock().validate(version) {
                    return Err(Changed);
                }
                if bounds.is_some() {
                    fence_after_enlarging(grew);
                }
                return Ok(Spot {
                    parent: node,
                    version,
                    slot,
                    child,
                    end,
                });
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

    /// Whether no node has changed since.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        let mut nodes = self.nodes[..self.length].iter();
        nodes.all(|(node, version)| node.lock().validate(*version))
    }

    /// Takes the lock of the leaf at the end of a path on which the boxes were enlarged. `None` if a node has changed since: another leaf may
    /// cover the key, or nodes above may have got smaller boxes.
    #[inline(always)]
    pub(super) fn lock_leaf<'l>(&self, lock: &'l VersionLock) -> Option<WriteGuard<'l>> {
        let guard = lock.lock();
        // Not earlier: only the lock keeps the leaf from being split, and the box of the leaf from being computed anew.
        self.is_current().then_some(guard)
    }

    /// Whether all boxes on the way to `key` contain `bounds`.
    pub(super) fn contains(&self, bounds: &Bounds, key: Key, axes: usize) -> bool {
        let mut nodes = self.nodes[..self.length].iter();
        nodes.all(|(node, _)| {
            let slot = dispatch(SimdLevel::best(), Find { node: *node, key });
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
                parent.set_bounds(slot, &bounds_of_all(*node));
            }
        }
    }
}

/// Where a search ended: a child of a bottom node, and the way there.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a, N = Inner> {
    pub(super) parent: &'a N,
    pub(super) version: Version,
    pub(super) slot: usize,
    pub(super) child: Child,
    /// The key at which the node to the right of `parent` begins, if there is one.
    pub(super) end: Option<Key>,
}

impl<N: BoxNode> Spot<'_, N> {
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

    /// Takes the lock of the leaf. `None` if the bottom node has changed since.
    #[inline(always)]
    pub(super) fn lock_leaf<'l>(&self, lock: &'l VersionLock) -> Option<WriteGuard<'l>> {
        let guard = lock.lock();
        // The leaf is locked, so it cannot be split any more; unless it was before, it covers the key.
        self.is_current().then_some(guard)
    }
}

/// The slot of the child that covers `key`.
pub(super) struct Find<'a, N> {
    pub(super) node: &'a N,
    pub(super) key: Key,
}

impl<N: BoxNode> Kernel for Find<'_, N> {
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        self.node.find::<S>(self.key)
    }
}
