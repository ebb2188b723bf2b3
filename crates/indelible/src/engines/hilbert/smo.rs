//! Structure changes: splits, merges, and the inner nodes that follow them.
//!
//! Lock order: a thread locks a leaf first and then *tries* to lock the bottom node of the leaf. From a node downwards locks
//! are only tried, except by the bulk load, which waits downwards from a locked root. A thread that fails to get a lock that
//! it tries releases all its locks and begins again. So there is no deadlock.
//!
//! Every change of structure is announced in [`Tree::structure`], for searches that read many nodes: see `rect::changes`.

use super::Bug;
use super::Tree;
use super::boxes::BoxNode;
use super::inner::{Bounds, Child, Entry, Inner, Key, code_of, key_of};
use super::insert::ORDINALS;
use super::layout::{MAX_RECORDS, Shape};
use super::leaf::Leaf;
use super::search::{Locked, LockedLeaf};
use super::way::{Find, Spot};
use crate::Result;
use crate::concurrency::locks::WriteGuard;
use crate::engines::arena::Arena;
use crate::engines::inner_nodes::{InnerNode, InnerTree, Merge, leaves_fit, try_merge_beside};
use crate::engines::rect::Record;
use crate::engines::slots;
use crate::kernels::dispatch;
use crate::pmem::Pm;
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use std::sync::atomic::Ordering;

/// A record of a leaf that is being split: its smallest key and its slot.
#[derive(Clone, Copy)]
struct Sorted {
    key: Key,
    slot: usize,
}

/// Makes a box contain another one, on the axes of a geometry.
#[inline(always)]
fn extend<G: Geometry>(all: &mut Rect, rect: &Rect) {
    for axis in 0..G::AXES {
        // No number of a record is NaN.
        if rect.low[axis] < all.low[axis] {
            all.low[axis] = rect.low[axis];
        }
        if rect.high[axis] > all.high[axis] {
            all.high[axis] = rect.high[axis];
        }
    }
}

/// The box of some records of a leaf.
fn box_of<G: Geometry>(leaf: Leaf<'_, G>, part: &[Sorted]) -> Bounds {
    let Some((first, others)) = part.split_first() else {
        return Bounds::NOTHING;
    };
    let rect = |record: &Sorted| Rect::of(&leaf.shape(record.slot));
    let mut all = rect(first);
    for record in others {
        extend::<G>(&mut all, &rect(record));
    }
    Bounds::of(&all)
}

/// The bits of a word in which the records of a leaf are numbered.
const NUMBERS: u64 = 63;
const _: () = assert!(MAX_RECORDS as u64 <= NUMBERS + 1);

impl<G: Geometry> Tree<G> {
    /// Splits a full leaf, to make room for `key`. May only split inner nodes above the leaf, or do nothing if another thread has
    /// changed the bottom node. The caller searches again afterwards.
    #[cold]
    pub(super) fn split(&self, locked: LockedLeaf<'_, G>, key: Key) -> Result<()> {
        let (low, high) = (locked.low, locked.high);
        let Locked { spot, leaf, guard } = locked.into_locked();
        if self.grids.get().is_none() {
            return self.choose_grid(leaf);
        }
        if self.is_time_to_learn(spot.parent) {
            let leaves = spot.parent.count();
            drop(guard);
            return self.learn(leaves);
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
        let sorted = self.sorted(leaf);
        let Some((pivot, at)) = Self::cut(leaf, &sorted, key, low, high) else {
            // All keys between those of equal records are in use: another leaf of equal records takes the new one.
            self.splits_of_equals.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let new = self.leaves.at(self.space.alloc()?);
        self.leaves
            .prefetch(new.offset + super::layout::LEAF_BYTES as u64);
        self.split_leaf(leaf, new, &sorted[at..]);
        // The parent is locked, and was before the leaf was read: a writer that has enlarged these boxes for a record that is not there yet finds
        // the version of the parent changed, and begins again.
        spot.parent
            .set_bounds(spot.slot, &box_of(leaf, &sorted[..at]));
        let child = Child::leaf(new.offset, spot.child.is_counted());
        spot.parent.insert(
            spot.slot,
            &Entry::leaf(pivot, child, box_of(leaf, &sorted[at..])),
        );
        self.splits.fetch_add(1, Ordering::Relaxed);
        if pivot & ORDINALS != 0 {
            self.splits_of_equals.fetch_add(1, Ordering::Relaxed);
        }
        self.add_signpost(pivot, new.offset);
        Ok(())
    }

    /// The records of a leaf, which is locked, in the order of their keys.
    fn sorted(&self, leaf: Leaf<'_, G>) -> Vec<Sorted> {
        let (mut numbers, mut codes) = ([0; MAX_RECORDS], [0; MAX_RECORDS]);
        let mut count = 0;
        for slot in slots(leaf.bitmap()) {
            numbers[count] = slot;
            count += 1;
        }
        let (numbers, codes) = (&numbers[..count], &mut codes[..count]);
        if let Some(grid) = self.grids.get() {
            grid.codes_of(|i| leaf.shape(numbers[i]), codes);
        }
        // By codes first, whose last bits give way to numbers, which takes less time than to sort records: what comes out is in order, but for records
        // whose codes are nearly equal.
        let mut order = [0; MAX_RECORDS];
        let order = &mut order[..count];
        for (i, code) in order.iter_mut().enumerate() {
            *code = codes[i] & !NUMBERS | i as u64;
        }
        order.sort_unstable();
        let mut sorted = Vec::with_capacity(MAX_RECORDS);
        sorted.extend(order.iter().map(|&word| {
            let i = (word & NUMBERS) as usize;
            let tie = leaf.record(numbers[i]).tie::<G>() & !(ORDINALS as u64);
            Sorted {
                key: key_of(codes[i], tie),
                slot: numbers[i],
            }
        }));
        sorted.sort_unstable_by_key(|record| record.key);
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
        leaf.replace_bitmap(self.pm, header, stays, 0, Some(new.offset));
    }

    /// Where to split sorted records for `key`: the key at which the right leaf begins, and the first record that goes there. Between 30 and
    /// 70 %, at the place where the sum of both boxes' margins is smallest: that leads to 7 to 12 % fewer leaves read than the middle.
    fn cut(
        leaf: Leaf<'_, G>,
        sorted: &[Sorted],
        key: Key,
        low: Key,
        high: Option<Key>,
    ) -> Option<(Key, usize)> {
        let count = sorted.len();
        let last = sorted[count - 1].key;
        if high.is_none() && code_of(key) > code_of(last) {
            // Records that come in the order of keys: nothing moves, and the full leaf stays full.
            return Some((key_of(code_of(key), 0), count));
        }
        let begins_here = |&at: &usize| sorted[at - 1].key < sorted[at].key;
        let rect = |at: usize| Rect::of(&leaf.shape(sorted[at].slot));
        // By the first record of the right part.
        let mut margins = [0.0; MAX_RECORDS + 1];
        let (mut begin, mut end) = (Rect::NOTHING, Rect::NOTHING);
        for at in (0..count).rev() {
            extend::<G>(&mut end, &rect(at));
            margins[at] = margin::<G>(&end);
        }
        for (left, sum) in margins[1..count].iter_mut().enumerate() {
            extend::<G>(&mut begin, &rect(left));
            *sum += margin::<G>(&begin);
        }
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
        let behind = high
            .unwrap_or(Key::MAX)
            .min((sorted[0].key | ORDINALS).saturating_add(1));
        let pivot = first + (behind - first) / 2;
        (pivot > first).then_some((pivot, count / 2))
    }

    /// Merges the leaves in two neighbouring slots of `parent`, which is locked.
    fn try_merge_pair(&self, parent: &Inner, (left_slot, right_slot): (usize, usize)) -> Merge {
        let (left, right) = (parent.child(left_slot), parent.child(right_slot));
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
            .remove_signpost(parent.key(right_slot), right.offset)
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
        self.merges.note(parent.key(right_slot));
        // The commit of the merge is in `replace_bitmap`. Before it recovery sees both leaves; after it the left one holds all records, and the
        // right one is unreachable and is swept.
        left.merge(self.pm, &records, right.next());
        // Both leaves and the parent are locked, so that both boxes contain all records that are there or are about to be committed.
        let both = parent.bounds(left_slot).join(parent.bounds(right_slot));
        parent.set_bounds(left_slot, &both);
        parent.remove(right_slot);
        if !planted(Bug::FreeTooEarly) {
            self.space.retire(right.offset);
        }
        Merge::Done {
            parent_is_small: parent.is_small(),
        }
    }

    /// Whether [`merge`](InnerTree::merge) of the leaf of `spot` may do something. Takes no lock, so it holds only if the spot is
    /// still current afterwards. The caller is pinned.
    pub(super) fn could_merge(&self, spot: &Spot<'_>) -> bool {
        let parent = spot.parent;
        parent.count() == 1
            || parent.pairs_at(spot.slot).any(|(left, right)| {
                // Until the node is validated, the slots may hold other children, or none.
                let (left, right) = (parent.child(left), parent.child(right));
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
        if planted(Bug::MergeLocksOneLeaf) {
            return Some((self.locks.of(left.get()).try_lock()?, None));
        }
        self.locks.try_lock_two(left.get(), right.get())
    }

    fn fit_together(left: Leaf<'_, G>, right: Leaf<'_, G>) -> bool {
        leaves_fit(left.count(), right.count(), Shape::<G>::RECORDS)
    }
}

impl<G: Geometry> InnerTree for Tree<G> {
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

    fn find_child(&self, node: &Inner, key: Key) -> usize {
        dispatch(self.simd, Find { node, key })
    }

    fn announce(&self) -> impl Sized + '_ {
        loop {
            if let Some(change) = self.structure.try_begin() {
                return change;
            }
            self.structure.wait_for_searches();
        }
    }

    fn try_merge(&self, key: Key) -> Merge {
        let spot = self.locate_any(key);
        try_merge_beside(spot.parent, spot.version, spot.slot, |slots| {
            self.try_merge_pair(spot.parent, slots)
        })
    }
}

/// Half the circumference of a box in two dimensions, and its like in three. Never NaN.
#[inline(always)]
#[allow(clippy::manual_clamp, reason = "`clamp` keeps what is not a number")]
fn margin<G: Geometry>(rect: &Rect) -> f64 {
    let sides = rect.low.iter().zip(&rect.high).take(G::AXES);
    // The box of nothing has negative sides, and a box at infinity has one that is NaN, which `max` and `min` replace.
    sides
        .map(|(low, high)| (high - low).max(0.0).min(f64::MAX))
        .sum()
}
