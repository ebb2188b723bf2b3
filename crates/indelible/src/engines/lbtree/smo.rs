//! Structure changes: splits, merges, and the inner nodes that follow them.
//!
//! Lock order: a thread locks a leaf first and then *tries* to lock the bottom node of the leaf. From a node downwards locks
//! are only tried, except by the bulk load, which waits downwards from a locked root. A thread that fails to get a lock that
//! it tries releases all its locks and begins again. So there is no deadlock. A thread may search and change a directory
//! while it holds locks of the tree below that directory, never the other way round. For this reason each tree has inner nodes
//! of its own: a search of a directory that follows an outdated pointer cannot reach a locked node of the records.

use super::Bug;
use super::Tree;
use super::inner::{Child, FANOUT, Inner};
use super::layout::MAX_RECORDS;
use super::leaf::Leaf;
use super::search::{LockedLeaf, Spot};
use crate::Result;
use crate::concurrency::locks::{Version, Wait, WriteGuard};
use crate::pmem::planted::planted;
use crate::pool::Offset;

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
        let pivot = self.split_leaf(leaf, new, key);
        spot.parent
            .insert_leaf(spot.slot, pivot, Child::leaf(new.offset));
        self.split_happened();
        self.add_signpost(pivot, new.offset);
        Ok(())
    }

    /// Moves the upper half of `leaf` to `new` and returns the key that divides them.
    fn split_leaf(&self, leaf: Leaf<'_>, new: Leaf<'_>, key: u64) -> u64 {
        let mut records = [(0, 0); MAX_RECORDS];
        let count = leaf.copy_to(&mut records);
        let records = &mut records[..count];
        records.sort_unstable_by_key(|&(key, _)| key);
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
        pivot
    }

    /// Whether a leaf with `count` records left should be merged with a neighbour. Asked on the way down, so at most
    /// three times between full and empty: a leaf that stays small does not try at every removal. A leaf that has lost
    /// fewer than three quarters of its records does not try at all, so that a map whose size stays the same is left alone.
    #[inline(always)]
    pub(super) fn is_worth_merging(&self, count: usize) -> bool {
        let capacity = self.leaves.capacity();
        count == 0 || count == capacity / 4 || count == capacity / 8
    }

    /// Merges the leaf that covers `key` with a neighbour under the same bottom node, if both fit into one with room
    /// to spare; `false` if nothing was merged.
    ///
    /// This is the logless split run backwards (not in the paper, which never merges): the left leaf takes over the
    /// right one's records and its sibling with one 8-byte store.
    #[cold]
    pub(super) fn merge(&self, key: u64) -> bool {
        let mut wait = Wait::default();
        let mut trimmed = false;
        loop {
            match self.try_merge(key) {
                Merge::Busy => wait.step(),
                Merge::Alone if !trimmed => {
                    self.trim(key);
                    trimmed = true;
                }
                Merge::Done { parent_is_small } => {
                    if parent_is_small {
                        self.trim(key);
                    }
                    return true;
                }
                Merge::Alone | Merge::No => return false,
            }
        }
    }

    fn try_merge(&self, key: u64) -> Merge {
        let spot = self.locate_any::<()>(key);
        let parent = spot.parent;
        let Some(parent_guard) = parent.lock().try_lock_at(spot.version) else {
            return Merge::Busy;
        };
        if parent.count() == 1 {
            return Merge::Alone;
        }
        let mut result = Merge::No;
        for slots in pairs_at(parent, spot.slot) {
            result = self.try_merge_pair(parent, slots);
            if !matches!(result, Merge::No) {
                break;
            }
        }
        drop(parent_guard);
        result
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
            parent_is_small: parent.count() <= FANOUT / 4,
        }
    }

    /// Whether [`merge`](Self::merge) of the leaf of `spot` may do something. Takes no lock, so it holds only if the spot is
    /// still current afterwards, and the leaves may change right away. The caller is pinned.
    pub(super) fn could_merge(&self, spot: &Spot<'_>) -> bool {
        let parent = spot.parent;
        parent.count() == 1
            || pairs_at(parent, spot.slot).any(|(left, right)| {
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
        let guard = self.locks.of(left.get()).try_lock()?;
        if guard.holds(self.locks.of(right.get())) || planted(Bug::MergeLocksOneLeaf) {
            return Some((guard, None));
        }
        Some((guard, Some(self.locks.of(right.get()).try_lock()?)))
    }

    fn fit_together(&self, left: Leaf<'_>, right: Leaf<'_>) -> bool {
        let (a, b) = (left.count(), right.count());
        // An empty leaf always goes; others only if the next few inserts will not split them again.
        let limit = if a == 0 || b == 0 {
            self.leaves.capacity()
        } else {
            self.leaves.capacity() * 3 / 4
        };
        a + b <= limit
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

    /// Splits the inner nodes on the way to `key` that are full, so that a separator can be added below them.
    pub(super) fn split_inner(&self, key: u64) {
        let mut wait = Wait::default();
        while !self.try_split_inner(key) {
            wait.step();
        }
    }

    /// Walks down and splits the first full node that it meets; `true` if the bottom node has room.
    fn try_split_inner(&self, key: u64) -> bool {
        let mut parent: Option<(&Inner, Version)> = None;
        let mut node = self.root();
        let mut version = node.lock().read();
        loop {
            if node.is_full() {
                self.split_node(parent, node, version, key);
                return false;
            }
            if node.level() == 0 {
                return node.lock().validate(version);
            }
            let slot = self.find_child(node, key);
            let child = node.node(slot);
            let child_version = child.lock().read();
            if !node.lock().validate(version) {
                return false;
            }
            parent = Some((node, version));
            (node, version) = (child, child_version);
        }
    }

    /// Splits a full inner node whose parent has room. Nothing durable is touched.
    fn split_node(
        &self,
        parent: Option<(&Inner, Version)>,
        node: &Inner,
        version: Version,
        key: u64,
    ) {
        let Some((parent, parent_version)) = parent else {
            return self.grow_root(node, version);
        };
        let Some(_parent) = parent.lock().try_lock_at(parent_version) else {
            return;
        };
        let Some(_node) = node.lock().try_lock_at(version) else {
            return;
        };
        self.pm.note("inner split", u64::from(node.level()));
        let slot = self.find_child(parent, key);
        let children = node.children();
        // At the right end of a node, as with ascending keys, nearly all children stay on the left.
        let from = if self.find_child(node, key) == node.shape().last() {
            children.len() - 1
        } else {
            children.len() / 2
        };
        let (new, _new) = self.arena.alloc(node.level());
        new.refill(&children[from..]);
        node.refill(&children[..from]);
        parent.insert_node(slot, children[from].0, new);
    }

    /// The root keeps its address: its children move to a new node, which becomes its only child. It is an upper node
    /// from the beginning, and stays one.
    fn grow_root(&self, root: &Inner, version: Version) {
        let Some(_root) = root.lock().try_lock_at(version) else {
            return;
        };
        self.pm.note("root growth", u64::from(root.level()));
        let (child, _child) = self.arena.alloc(root.level());
        child.refill(&root.children());
        root.reset(child.level() + 1);
        root.refill_nodes(&[(0, child)]);
    }

    /// Merges inner nodes that have become small, on the way to `key`, and takes levels off a root with one child.
    fn trim(&self, key: u64) {
        // At most eight attempts: if other threads interfere, a small node stays, and the next merge below it tries again.
        for _ in 0..8 {
            if self.trim_once(key) {
                return;
            }
        }
    }

    /// One structure change at most; `true` if there was none to make.
    fn trim_once(&self, key: u64) -> bool {
        let mut node = self.root();
        let mut version = node.lock().read();
        while node.level() > 0 {
            let slot = self.find_child(node, key);
            let child = node.node(slot);
            let child_version = child.lock().read();
            let count = node.count();
            if !node.lock().validate(version) {
                return false;
            }
            if count == 1 && node.level() > 1 && std::ptr::eq(node, self.root()) {
                self.shrink_root(node, version, child);
                return false;
            }
            if child.count() <= FANOUT / 4 && count > 1 && self.merge_nodes(node, version, slot) {
                return false;
            }
            (node, version) = (child, child_version);
        }
        true
    }

    fn shrink_root(&self, root: &Inner, version: Version, child: &Inner) {
        let Some(_root) = root.lock().try_lock_at(version) else {
            return;
        };
        let Some(child_guard) = child.lock().try_lock() else {
            return;
        };
        self.pm.note("root shrink", u64::from(root.level()));
        root.reset(child.level());
        root.refill(&child.children());
        drop(child_guard);
        self.arena.free(child);
    }

    /// Merges the child in `slot` of `parent` with a neighbour, if they fit together; `false` if nothing was touched
    /// because they do not.
    fn merge_nodes(&self, parent: &Inner, version: Version, slot: usize) -> bool {
        let Some((left_slot, right_slot)) = pair_at(parent, slot) else {
            return false;
        };
        let (left, right) = (parent.node(left_slot), parent.node(right_slot));
        let fit = || {
            let single = left.count() == 1 || right.count() == 1;
            left.count() + right.count() <= if single { FANOUT } else { FANOUT * 3 / 4 }
        };
        if !fit() {
            return false;
        }
        let Some(_parent) = parent.lock().try_lock_at(version) else {
            return true;
        };
        let Some(left_guard) = left.lock().try_lock() else {
            return true;
        };
        let Some(right_guard) = right.lock().try_lock() else {
            return true;
        };
        if fit() {
            self.pm.note("inner merge", u64::from(left.level()));
            let mut children = left.children();
            children.extend(right.children());
            left.refill(&children);
            parent.remove(right_slot);
            drop((left_guard, right_guard));
            self.arena.free(right);
        }
        true
    }
}

/// The slots of two neighbours, one of which is in `slot`, if there are two.
fn pair_at(node: &Inner, slot: usize) -> Option<(usize, usize)> {
    let shape = node.shape();
    match shape.after(slot) {
        Some(next) => Some((slot, next)),
        None => shape.before(slot).map(|before| (before, slot)),
    }
}

/// The slots of a child and its right neighbour, then of its left neighbour and the child, as far as there are any.
fn pairs_at(node: &Inner, slot: usize) -> impl Iterator<Item = (usize, usize)> {
    let shape = node.shape();
    let right = shape.after(slot).map(|next| (slot, next));
    right
        .into_iter()
        .chain(shape.before(slot).map(|before| (before, slot)))
}

/// How an attempt to merge ended.
enum Merge {
    /// Two leaves became one.
    Done { parent_is_small: bool },
    /// They do not fit, or are not indexed yet.
    No,
    /// The leaf is its bottom node's only child.
    Alone,
    /// Another thread held a lock.
    Busy,
}
