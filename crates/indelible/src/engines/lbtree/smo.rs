//! Structure changes: splits, merges, and the inner nodes that follow them.
//!
//! Lock order: a thread locks a leaf first and then *tries* to lock the bottom node of the leaf. From a node downwards locks
//! are only tried, except by the bulk load, which waits downwards from a locked root. A thread that fails to get a lock that
//! it tries releases all its locks and begins again. So there is no deadlock. A thread may search and change a directory
//! while it holds locks of the tree below that directory, never the other way round. For this reason each tree has inner nodes
//! of its own: a search of a directory that follows an outdated pointer cannot reach a locked node of the records.

use super::Bug;
use super::Tree;
use super::inner::{Child, Inner};
use super::layout::MAX_RECORDS;
use super::leaf::Leaf;
use super::search::{LockedLeaf, Spot};
use crate::concurrency::locks::WriteGuard;
use crate::engines::arena::Arena;
use crate::engines::inner_nodes::{InnerNode, InnerTree, Merge, leaves_fit, try_merge_beside};
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::Pm;
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::{Error, Result};

impl Tree {
    /// Splits a full leaf, to make room for `key`. May only split inner nodes above the leaf, or do nothing if another thread has
    /// changed the bottom node. The caller searches again afterwards.
    ///
    /// Section 3.3, algorithm 3, with one difference. The paper writes the new record into a slot that the split
    /// frees, before the split commits: a crash in between would find the slot's old record, still valid, overwritten.
    /// Here the split commits first and the record is inserted afterwards.
    #[cold]
    pub(super) fn split(&self, locked: LockedLeaf<'_>, key: u64) -> Result<()> {
        let LockedLeaf { spot, leaf, guard } = locked;
        let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) else {
            return Ok(());
        };
        if spot.parent.is_full() {
            drop((guard, _parent));
            self.split_inner(key);
            return Ok(());
        }
        let new = self.leaves.at(self.space.alloc()?);
        // The next split will most likely get the block after this one, so prefetch its lines.
        self.leaves.prefetch(new.offset + self.leaf_bytes());
        let pivot = self
            .split_leaf(leaf, new, key)
            .inspect_err(|_| self.space.free_now(new.offset))?;
        spot.parent
            .insert_leaf(spot.slot, pivot, Child::leaf(new.offset));
        self.split_happened();
        self.directory.add(pivot, new.offset);
        Ok(())
    }

    /// Moves the upper half of `leaf` to `new` and returns the key that divides them. An error if the leaf is damaged: then nothing has been written.
    fn split_leaf(&self, leaf: Leaf<'_>, new: Leaf<'_>, key: u64) -> Result<u64> {
        let mut records = [(0, 0); MAX_RECORDS];
        let count = leaf.copy_to(&mut records);
        let records = &mut records[..count];
        records.sort_unstable_by_key(|&(key, _)| key);
        // A key of the leaf that divides no records would become a separator that is not above the one before it.
        if records.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::Damaged(format!(
                "leaf {:#x} has a key twice",
                leaf.offset
            )));
        }
        // Ascending keys are the commonest real workload: at the right end nothing moves, and the full leaf stays full.
        let at_the_end = leaf.next().is_none() && key > records[count - 1].0;
        let (pivot, moving) = if at_the_end {
            (key, &[][..])
        } else {
            (records[count / 2].0, &records[count / 2..])
        };
        self.pm.note("leaf split", u64::from(at_the_end));
        new.fill(self.pm, moving, leaf.next());
        let headers = leaf.headers_below(pivot);
        if planted(Bug::SplitOverwrites)
            && let Some((place, _)) = leaf.find(pivot)
        {
            leaf.write_record(self.pm, place, key, 0);
        }
        // The commit of the split is in `switch`. Before it recovery sees the old leaf, whole, and the new block is
        // swept; after it, it sees both leaves.
        leaf.switch(self.pm, &headers, new.offset);
        Ok(pivot)
    }

    /// Merges the leaves in two neighbouring slots of `parent`, which is locked.
    fn try_merge_pair(&self, parent: &Inner, (left_slot, right_slot): (usize, usize)) -> Merge {
        let (left, right) = (parent.child(left_slot), parent.child(right_slot));
        if left.is_unindexed() || right.is_unindexed() {
            return Merge::No;
        }
        let Some(leaf_guards) = self.try_lock_two(left.offset(), right.offset()) else {
            return Merge::Busy;
        };
        let (left, right) = (
            self.leaves.at(left.offset()),
            self.leaves.at(right.offset()),
        );
        if !self.fit_together(left, right) || left.next() != right.offset {
            return Merge::No;
        }
        // A signpost must never point to a leaf that is gone. It goes first: a missing one does no harm.
        if self
            .remove_signpost(parent.key(right_slot), right.offset)
            .is_err()
        {
            return Merge::No;
        }
        if planted(Bug::FreeTooEarly) {
            self.space.free_now(right.offset);
        }
        self.merge_leaves(left, right);
        parent.remove(right_slot);
        if !planted(Bug::FreeTooEarly) {
            self.space.retire(right.offset);
        }
        drop(leaf_guards);
        Merge::Done {
            parent_is_small: parent.is_small(),
        }
    }

    /// Whether [`merge`](InnerTree::merge) of the leaf of `spot` may do something. Takes no lock, so it holds only if the spot is
    /// still current afterwards, and the leaves may change right away. The caller is pinned.
    pub(super) fn could_merge(&self, spot: &Spot<'_>) -> bool {
        let parent = spot.parent;
        parent.count() == 1
            || parent.pairs_at(spot.slot).any(|(left, right)| {
                // Until the node is validated, the slots may hold other children, or none.
                let (left, right) = (parent.child(left), parent.child(right));
                spot.is_current()
                    && self.fit_together(
                        self.leaves.at(left.offset()),
                        self.leaves.at(right.offset()),
                    )
            })
    }

    /// Tries to lock two leaves. One lock may belong to both.
    pub(super) fn try_lock_two(
        &self,
        left: Offset,
        right: Offset,
    ) -> Option<(WriteGuard<'_>, Option<WriteGuard<'_>>)> {
        if planted(Bug::MergeLocksOneLeaf) {
            return Some((self.locks.of(left.get()).try_lock()?, None));
        }
        self.locks.try_lock_two(left.get(), right.get())
    }

    fn fit_together(&self, left: Leaf<'_>, right: Leaf<'_>) -> bool {
        leaves_fit(left.count(), right.count(), self.leaves.capacity())
    }

    fn merge_leaves(&self, left: Leaf<'_>, right: Leaf<'_>) {
        let mut records = [(0, 0); MAX_RECORDS];
        let count = right.copy_to(&mut records);
        let is_empty = count == 0 || left.count() == 0;
        let kind = if is_empty {
            "unlink of an emptied leaf"
        } else {
            "leaf merge"
        };
        self.pm.note(kind, u64::from(count == 0));
        let headers = left.prepare_merge(self.pm, &records[..count]);
        // The commit of the merge is in `switch`. Before it recovery sees both leaves; after it the left one holds all
        // records and the right one is unreachable and is swept.
        left.switch(self.pm, &headers, right.next());
    }
}

impl InnerTree for Tree {
    type Node = Inner;

    fn root(&self) -> &Inner {
        self.root()
    }

    fn arena(&self) -> &Arena<Inner> {
        &self.arena
    }

    fn pm(&self) -> Pm {
        self.pm
    }

    fn find_child(&self, node: &Inner, key: u64) -> usize {
        dispatch(self.simd, FindChild { node, key })
    }

    /// This is the logless split run backwards (not in the paper, which never merges): the left leaf takes over the
    /// right one's records and its sibling with one 8-byte store.
    fn try_merge(&self, key: u64) -> Merge {
        let spot = self.locate_any::<()>(key);
        try_merge_beside(spot.parent, spot.version, spot.slot, |slots| {
            self.try_merge_pair(spot.parent, slots)
        })
    }
}

struct FindChild<'a> {
    node: &'a Inner,
    key: u64,
}

impl Kernel for FindChild<'_> {
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        self.node.find::<S>(self.key)
    }
}
