//! Boxes that grow while nodes change.
//!
//! A writer makes the boxes on its way down contain its record *before* the record is committed, without locks: each bound only moves
//! outwards, by compare-and-exchange, so that any subset of its stores is safe. Whoever splits or merges nodes moves boxes between slots, or
//! computes them anew from what lies below, and may make them smaller. The two must not miss each other:
//!
//! - the writer takes the version of each node before it enlarges a box in the node, and validates the versions of *all* nodes on its way
//!   once it holds the lock of the leaf, and before it commits ([`way`](super::way));
//! - who moves a box, or computes it anew, holds the lock of the node in which the box is stored, and reads the boxes from which it comes after
//!   taking that lock; a box in a bottom node is computed anew only with the leaf locked.
//!
//! If the change locked the node before the writer validated it, the writer begins again. If it came later, the boxes that the change
//! reads contain the record already.
//!
//! # The fences
//!
//! Each of the two writes one word and then reads the other's: the writer a box and then a version, the change a version and then a box. So each
//! needs a full fence in between, or both might read the old word ([`fence_after_enlarging`], [`fence_after_locking`]). On x86-64 the exchange
//! that does the write is that fence.
//!
//! A writer that finds all boxes large enough has written nothing. If another writer has just enlarged them, the first one may rely on a
//! store that the change does not see yet, unless a store becomes visible to all other processors at once. On x86-64 and AArch64 it does;
//! elsewhere the writer has its fence in any case.
//!
//! [`model`](super::model) runs this code, that of the way down and that of the structure changes with loom, which assumes nothing of the kind.

use super::inner::{Bounds, Child, Entry, Key};
use crate::concurrency::sync::atomic::{AtomicU32, Ordering, fence};
use crate::engines::arena::Node;
use crate::engines::inner_nodes::InnerNode;
use crate::kernels::Simd;
use crate::spatial::MAX_AXES;

/// Whether an exchange is a full fence.
const EXCHANGES_ARE_FENCES: bool = cfg!(all(target_arch = "x86_64", not(loom)));

/// Whether a store that one other processor sees is seen by all of them.
const STORES_ARE_SEEN_AT_ONCE: bool = cfg!(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    not(loom)
));

/// Orders the enlargement of boxes before the validation that follows.
#[inline(always)]
pub(super) fn fence_after_enlarging(grew: bool) {
    if grew || !STORES_ARE_SEEN_AT_ONCE {
        fence_after_exchange();
    }
}

/// Orders the lock of a node before the reads of boxes that follow.
#[inline(always)]
fn fence_after_locking() {
    fence_after_exchange();
}

#[inline(always)]
fn fence_after_exchange() {
    if EXCHANGES_ARE_FENCES {
        // The compiler must keep the order, too.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The slots of an inner node. `set` and its like are for the holder of the node's lock.
pub(super) trait BoxNode: Node + Sized {
    /// See [`InnerNode::FANOUT`].
    const FANOUT: usize;

    /// See [`InnerNode::LOADED`].
    const LOADED: usize;

    /// See [`InnerNode::count`].
    fn count(&self) -> usize;

    /// See [`InnerNode::node`].
    fn node(&self, slot: usize) -> &Self;

    /// The slot of the child that covers `key`.
    fn find<S: Simd>(&self, key: Key) -> usize;

    /// The key at which the child in `slot` begins.
    fn key(&self, slot: usize) -> Key;

    /// The child in `slot` of a bottom node.
    fn child(&self, slot: usize) -> Child;

    /// Asks the caches for the lines that [`find`](Self::find) reads.
    fn prefetch_keys(&self);

    /// One bound of the box of the child in `slot`: see [`Bounds`].
    fn bound_cell(&self, bound: usize, slot: usize) -> &AtomicU32;

    /// The box of the child in `slot`.
    fn bounds(&self, slot: usize) -> Bounds;

    /// Replaces the box of a child, which may become smaller.
    fn set_bounds(&self, slot: usize, bounds: &Bounds);

    /// Copies a child out.
    fn entry(&self, slot: usize) -> Entry;

    fn set(&self, slot: usize, entry: &Entry);

    /// Makes a slot one that is not in use. The child word stays: in an upper node it is a pointer to some node.
    fn clear(&self, slot: usize);

    fn set_count(&self, count: usize);

    /// The key at which the child after `slot` begins, if there is one.
    #[inline(always)]
    fn next_key(&self, slot: usize) -> Option<Key> {
        (slot + 1 < self.count()).then(|| self.key(slot + 1))
    }
}

/// Makes the box of the child in `slot` contain `bounds`. The caller holds no lock; the head of this file says what it does afterwards.
/// Returns whether anything had to be changed.
#[inline(always)]
pub(super) fn enlarge<const AXES: usize>(
    node: &impl BoxNode,
    slot: usize,
    bounds: &Bounds,
) -> bool {
    let mut grew = false;
    for axis in 0..AXES {
        for bound in [axis, MAX_AXES + axis] {
            let cell = node.bound_cell(bound, slot);
            let wanted = bounds.0[bound];
            if f32::from_bits(cell.load(Ordering::Relaxed)) > wanted {
                grew = true;
                let _ = cell.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
                    (f32::from_bits(word) > wanted).then_some(wanted.to_bits())
                });
            }
        }
    }
    grew
}

/// The box of all children. Read after the lock of the node in which it will be stored was taken.
pub(super) fn bounds_of_all(node: &impl BoxNode) -> Bounds {
    fence_after_locking();
    (0..node.count()).fold(Bounds::NOTHING, |all, slot| all.join(node.bounds(slot)))
}

impl<N: BoxNode> InnerNode for N {
    const FANOUT: usize = <N as BoxNode>::FANOUT;
    const LOADED: usize = <N as BoxNode>::LOADED;

    type Key = Key;
    const LOWEST_KEY: Key = 0;
    type Entry = Entry;

    fn count(&self) -> usize {
        BoxNode::count(self)
    }

    fn node(&self, slot: usize) -> &Self {
        BoxNode::node(self, slot)
    }

    fn last(&self) -> usize {
        BoxNode::count(self) - 1
    }

    fn after(&self, slot: usize) -> Option<usize> {
        (slot + 1 < BoxNode::count(self)).then_some(slot + 1)
    }

    fn before(&self, slot: usize) -> Option<usize> {
        slot.checked_sub(1)
    }

    /// The node is locked if the copy will be another node's.
    fn entries(&self) -> Vec<Entry> {
        fence_after_locking();
        (0..BoxNode::count(self))
            .map(|slot| self.entry(slot))
            .collect()
    }

    fn refill(&self, entries: &[Entry]) {
        let most = <N as BoxNode>::FANOUT;
        assert!(
            !entries.is_empty() && entries.len() <= most,
            "invariant: an inner node has 1 to {most} children, not {}",
            entries.len()
        );
        for slot in 0..most {
            match entries.get(slot) {
                Some(entry) => self.set(slot, entry),
                None => self.clear(slot),
            }
        }
        self.set_count(entries.len());
    }

    fn insert(&self, slot: usize, entry: &Entry) {
        let count = BoxNode::count(self);
        assert!(
            count < <N as BoxNode>::FANOUT,
            "invariant: a full inner node is split before a child is added"
        );
        fence_after_locking();
        for from in (slot + 1..count).rev() {
            self.set(from + 1, &self.entry(from));
        }
        self.set(slot + 1, entry);
        self.set_count(count + 1);
    }

    /// The child before it covers the keys of the removed child from then on.
    fn remove(&self, slot: usize) {
        let count = BoxNode::count(self);
        assert!(
            slot > 0 && slot < count,
            "invariant: the first child of an inner node is never removed alone"
        );
        fence_after_locking();
        for to in slot..count - 1 {
            self.set(to, &self.entry(to + 1));
        }
        self.clear(count - 1);
        self.set_count(count - 1);
    }

    fn key_of(entry: &Entry) -> Key {
        entry.key
    }

    fn entry_for(key: Key, child: &Self) -> Entry {
        Entry::node(key, child, bounds_of_all(child))
    }

    /// Computes the box of the child anew. Both nodes were locked before the boxes below are read here.
    fn child_changed(&self, slot: usize, child: &Self) {
        self.set_bounds(slot, &bounds_of_all(child));
    }
}
