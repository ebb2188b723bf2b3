//! Structure changes: splits, merges, and the inner nodes that follow them.
//!
//! Lock order: a thread locks a leaf first and then *tries* to lock the bottom node of the leaf. From a node downwards locks
//! are only tried, except by the bulk load, which waits downwards from a locked root. A thread that fails to get a lock that
//! it tries releases all its locks and begins again. So there is no deadlock.
//!
//! Every change of structure is announced in [`Tree::structure`], for searches that read many nodes: see `changes`.

use super::Bug;
use super::Tree;
use super::inner::{Bounds, Child, Entry, FANOUT, Inner, Key, code_of, key_of};
use super::insert::ORDINALS;
use super::layout::{MAX_RECORDS, Shape};
use super::leaf::{Leaf, Record};
use super::search::{Find, LockedLeaf, Spot};
use crate::Result;
use crate::concurrency::locks::{Version, Wait, WriteGuard};
use crate::kernels::dispatch;
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use std::sync::atomic::Ordering;

/// A record of a leaf that is being split, with its smallest key, its slot and its box.
#[derive(Clone, Copy)]
struct Sorted {
    key: Key,
    slot: usize,
    rect: Rect,
}

impl<G: Geometry> Tree<G> {
    /// Splits a full leaf, to make room for `key`. May only split inner nodes above the leaf, or do nothing if another thread has
    /// changed the bottom node. The caller searches again afterwards.
    #[cold]
    pub(super) fn split(&self, locked: LockedLeaf<'_, G>, key: Key) -> Result<()> {
        let LockedLeaf {
            spot,
            leaf,
            guard,
            low,
            high,
        } = locked;
        if self.grid.get().is_none() {
            return self.choose_grid(leaf);
        }
        // Not waited for: a search that keeps changes from beginning waits for the lock of the leaf.
        let Some(_change) = self.structure.try_begin() else {
            drop(guard);
            self.structure.wait_for_searches();
            return Ok(());
        };
        let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) else {
            return Ok(());
        };
        if spot.parent.is_full() {
            drop((guard, _parent));
            self.split_inner(key);
            return Ok(());
        }
        let mut sorted = self.sorted(leaf);
        sorted.sort_unstable_by_key(|record| record.key);
        let Some((pivot, at)) = Self::cut(&sorted, key, low, high) else {
            // All keys between those of equal records are in use: another leaf of equal records takes the new one.
            self.splits_of_equals.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let new = self.leaves.at(self.space.alloc()?);
        self.leaves
            .prefetch(new.offset + super::layout::LEAF_BYTES as u64);
        self.split_leaf(leaf, new, &sorted[at..]);
        let box_of = |part: &[Sorted]| {
            let rects = part.iter().map(|record| &record.rect);
            Bounds::of(&rects.fold(Rect::NOTHING, Rect::join))
        };
        // The parent is locked, and was before the leaf was read: a writer that has enlarged these boxes for a record that is not there yet finds
        // the version of the parent changed, and begins again.
        spot.parent.set_bounds(spot.slot, &box_of(&sorted[..at]));
        let child = Child::leaf(new.offset, spot.child.is_counted());
        spot.parent
            .insert(spot.slot, &Entry::leaf(pivot, child, box_of(&sorted[at..])));
        self.splits.fetch_add(1, Ordering::Relaxed);
        if pivot & ORDINALS != 0 {
            self.splits_of_equals.fetch_add(1, Ordering::Relaxed);
        }
        self.add_signpost(pivot, new.offset);
        Ok(())
    }

    /// The records of a leaf with their keys.
    fn sorted(&self, leaf: Leaf<'_, G>) -> Vec<Sorted> {
        let mut sorted = Vec::with_capacity(MAX_RECORDS);
        sorted.extend(leaf.records().map(|(slot, record)| Sorted {
            key: self.key(&record),
            slot,
            rect: record.rect::<G>(),
        }));
        sorted
    }

    /// Moves the records of `moving` to `new`.
    fn split_leaf(&self, leaf: Leaf<'_, G>, new: Leaf<'_, G>, moving: &[Sorted]) {
        self.pm.note("leaf split", u64::from(moving.is_empty()));
        let records: Vec<Record> = moving
            .iter()
            .map(|sorted| leaf.record(sorted.slot))
            .collect();
        new.fill(self.pm, &records, leaf.next());
        let moved = moving
            .iter()
            .fold(0, |bits, sorted| bits | 1_u64 << sorted.slot);
        let header = leaf.header();
        // The commit of the split is in `replace_bitmap`. Before it recovery sees the old leaf, whole, and the new block is swept; after it,
        // it sees both leaves. The new leaf gets its fence there too.
        let stays = header.bitmap::<G>() & !moved;
        leaf.replace_bitmap(self.pm, header, stays, 0, Some(new.offset), true);
    }

    /// Where to split sorted records for `key`: the key at which the right leaf begins, and the first record that goes there. Between 30 and
    /// 70 %, at the place where the sum of both boxes' margins is smallest: that leads to 7 to 12 % fewer leaves read than the middle.
    fn cut(sorted: &[Sorted], key: Key, low: Key, high: Option<Key>) -> Option<(Key, usize)> {
        let count = sorted.len();
        let last = sorted[count - 1].key;
        if high.is_none() && code_of(key) > code_of(last) {
            // Records that come in the order of keys: nothing moves, and the full leaf stays full.
            return Some((key_of(code_of(key), 0), count));
        }
        let begins_here = |&at: &usize| sorted[at - 1].key < sorted[at].key;
        let mut ends = [Rect::NOTHING; MAX_RECORDS + 1];
        for at in (0..count).rev() {
            ends[at] = ends[at + 1].join(&sorted[at].rect);
        }
        let mut begin = Rect::NOTHING;
        let margins: Vec<f64> = (0..count)
            .map(|at| {
                let sum = margin(&begin) + margin(&ends[at]);
                begin = begin.join(&sorted[at].rect);
                sum
            })
            .collect();
        let (from, to) = ((count * 3 / 10).max(1), count - (count * 3 / 10).max(1));
        let best = (from..=to)
            .filter(begins_here)
            .min_by(|&a, &b| {
                let to_middle = |at: usize| at.abs_diff(count / 2);
                margins[a]
                    .total_cmp(&margins[b])
                    .then(to_middle(a).cmp(&to_middle(b)))
            })
            .or_else(|| {
                (1..count)
                    .filter(begins_here)
                    .min_by_key(|at| at.abs_diff(count / 2))
            });
        if let Some(at) = best {
            let code = code_of(sorted[at].key);
            // The shorter key, if it divides as well: only a leaf that begins with a new code can have a signpost.
            let begins_code = code > code_of(sorted[at - 1].key);
            return Some((
                if begins_code {
                    key_of(code, 0)
                } else {
                    sorted[at].key
                },
                at,
            ));
        }
        // All records have one smallest key: any of them may go to either side.
        let first = low.max(sorted[0].key);
        let behind = high.unwrap_or(Key::MAX).min((sorted[0].key | ORDINALS) + 1);
        let pivot = first + (behind - first) / 2;
        (pivot > first).then_some((pivot, count / 2))
    }

    /// Whether a leaf with `count` records left should be merged with a neighbour. Asked on the way down, so at most
    /// three times between full and empty.
    #[inline(always)]
    pub(super) fn is_worth_merging(count: usize) -> bool {
        let capacity = Shape::<G>::RECORDS;
        count == 0 || count == capacity / 4 || count == capacity / 8
    }

    /// Merges the leaf that covers `key` with a neighbour under the same bottom node, if both fit into one with room
    /// to spare; `false` if nothing was merged. The caller holds no lock, and is pinned.
    #[cold]
    pub(super) fn merge(&self, key: Key) -> bool {
        let mut wait = Wait::default();
        let mut trimmed = false;
        loop {
            let Some(_change) = self.structure.try_begin() else {
                self.structure.wait_for_searches();
                continue;
            };
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

    fn try_merge(&self, key: Key) -> Merge {
        let spot = self.locate_any(key);
        let parent = spot.parent;
        let Some(_parent) = parent.lock().try_lock_at(spot.version) else {
            return Merge::Busy;
        };
        if parent.count() == 1 {
            return Merge::Alone;
        }
        for left in pairs_at(parent, spot.slot) {
            match self.try_merge_pair(parent, left) {
                Merge::No => {}
                other => return other,
            }
        }
        Merge::No
    }

    /// Merges the leaves in `slot` of `parent`, which is locked, and in the slot after it.
    fn try_merge_pair(&self, parent: &Inner, slot: usize) -> Merge {
        let (left, right) = (parent.child(slot), parent.child(slot + 1));
        if left.is_unindexed() || right.is_unindexed() || left.is_counted() != right.is_counted() {
            return Merge::No;
        }
        let Some(_leaves) = self.try_lock_two(left.offset(), right.offset()) else {
            return Merge::Busy;
        };
        let (left, right) = (
            self.leaves.at(left.offset()),
            self.leaves.at(right.offset()),
        );
        if !Self::fit_together(left, right) || left.next() != right.offset {
            return Merge::No;
        }
        // A signpost must never point to a leaf that is gone. It goes first: a missing one does no harm.
        if self
            .remove_signpost(parent.key(slot + 1), right.offset)
            .is_err()
        {
            return Merge::No;
        }
        if planted(Bug::FreeTooEarly) {
            self.space.free_now(right.offset);
        }
        let records: Vec<Record> = right.records().map(|(_, record)| record).collect();
        let change = if records.is_empty() || left.count() == 0 {
            "unlink of an emptied leaf"
        } else {
            "leaf merge"
        };
        self.pm.note(change, u64::from(records.is_empty()));
        // The commit of the merge is in `replace_bitmap`. Before it recovery sees both leaves; after it the left one holds all records, and the
        // right one is unreachable and is swept.
        left.merge(self.pm, &records, right.next());
        // Both leaves and the parent are locked, so that both boxes contain all records that are there or are about to be committed.
        parent.set_bounds(slot, &parent.bounds(slot).join(parent.bounds(slot + 1)));
        parent.remove(slot + 1);
        if !planted(Bug::FreeTooEarly) {
            self.space.retire(right.offset);
        }
        Merge::Done {
            parent_is_small: parent.count() <= FANOUT / 4,
        }
    }

    /// Whether [`merge`](Self::merge) of the leaf of `spot` may do something. Takes no lock, so it holds only if the spot is
    /// still current afterwards. The caller is pinned.
    pub(super) fn could_merge(&self, spot: &Spot<'_>) -> bool {
        let parent = spot.parent;
        parent.count() == 1
            || pairs_at(parent, spot.slot).any(|slot| {
                // Until the node is validated, the slots may hold other children, or none.
                let (left, right) = (parent.child(slot), parent.child(slot + 1));
                spot.is_current()
                    && Self::fit_together(
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

    fn fit_together(left: Leaf<'_, G>, right: Leaf<'_, G>) -> bool {
        let (a, b) = (left.count(), right.count());
        // An empty leaf always goes; others only if the next few inserts will not split them again.
        let limit = if a == 0 || b == 0 {
            Shape::<G>::RECORDS
        } else {
            Shape::<G>::RECORDS * 3 / 4
        };
        a + b <= limit
    }

    fn find_child(&self, node: &Inner, key: Key) -> usize {
        dispatch(self.simd, Find { node, key })
    }

    /// Splits the inner nodes on the way to `key` that are full, so that a separator can be added below them. The caller has announced
    /// the change.
    pub(super) fn split_inner(&self, key: Key) {
        let mut wait = Wait::default();
        while !self.try_split_inner(key) {
            wait.step();
        }
    }

    /// Walks down and splits the first full node that it meets; `true` if the bottom node has room.
    fn try_split_inner(&self, key: Key) -> bool {
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
            let child = node.node(self.find_child(node, key));
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
        key: Key,
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
        let entries = node.entries();
        // At the right end of a node, as with ascending keys, nearly all children stay on the left.
        let from = if self.find_child(node, key) == entries.len() - 1 {
            entries.len() - 1
        } else {
            entries.len() / 2
        };
        let (new, _new) = self.arena.alloc(node.level());
        new.refill(&entries[from..]);
        node.refill(&entries[..from]);
        // Both nodes and their parent are locked, and were before the boxes below were read.
        parent.set_bounds(slot, &node.bounds_of_all());
        parent.insert(
            slot,
            &Entry::node(entries[from].key, new, new.bounds_of_all()),
        );
    }

    /// The root keeps its address: its children move to a new node, which becomes its only child. It is an upper node
    /// from the beginning, and stays one.
    fn grow_root(&self, root: &Inner, version: Version) {
        let Some(_root) = root.lock().try_lock_at(version) else {
            return;
        };
        self.pm.note("root growth", u64::from(root.level()));
        let (child, _child) = self.arena.alloc(root.level());
        child.refill(&root.entries());
        root.reset(child.level() + 1);
        root.refill(&[Entry::node(0, child, child.bounds_of_all())]);
    }

    /// Merges inner nodes that have become small, on the way to `key`, and takes levels off a root with one child.
    fn trim(&self, key: Key) {
        // At most eight attempts: if other threads interfere, a small node stays, and the next merge below it tries again.
        for _ in 0..8 {
            if self.trim_once(key) {
                return;
            }
        }
    }

    /// One structure change at most; `true` if there was none to make.
    fn trim_once(&self, key: Key) -> bool {
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
        root.refill(&child.entries());
        drop(child_guard);
        self.arena.free(child);
    }

    /// Merges the child in `slot` of `parent` with a neighbour, if they fit together; `false` if nothing was touched
    /// because they do not.
    fn merge_nodes(&self, parent: &Inner, version: Version, slot: usize) -> bool {
        let Some(slot) = pairs_at(parent, slot).next() else {
            return false;
        };
        let (left, right) = (parent.node(slot), parent.node(slot + 1));
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
            let mut entries = left.entries();
            entries.extend(right.entries());
            left.refill(&entries);
            // All three nodes are locked, and were before the boxes below were read.
            parent.set_bounds(slot, &left.bounds_of_all());
            parent.remove(slot + 1);
            drop((left_guard, right_guard));
            self.arena.free(right);
        }
        true
    }
}

/// Half the circumference of a box in two dimensions, and its like in three. Never NaN.
fn margin(rect: &Rect) -> f64 {
    let sides = rect.low.iter().zip(&rect.high);
    // The box of nothing has negative sides, and a box at infinity has one that is NaN, which `max` and `min` replace.
    sides
        .map(|(low, high)| (high - low).max(0.0).min(f64::MAX))
        .sum()
}

/// The slots of left neighbours in pairs: a child and its right neighbour, then its left neighbour and the child, as far as there are any.
fn pairs_at(node: &Inner, slot: usize) -> impl Iterator<Item = usize> {
    let right = (slot + 1 < node.count()).then_some(slot);
    right.into_iter().chain(slot.checked_sub(1))
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
