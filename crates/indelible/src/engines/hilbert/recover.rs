//! Recovery: signposts, indexing on demand, the sweep.
//!
//! As in the LB+-Tree (see the head of its `recover`): the leaves survive, the inner nodes do not. About one leaf in 32 has a *signpost* (code,
//! offset) in a durable directory. After an open the inner nodes have one child, the first leaf of the chain, and the leaves to the
//! right of it are an *unindexed range*. Whoever needs a part of such a range walks the leaves between the two nearest signposts and adds
//! them to the inner nodes, with their boxes; the sweep does so for the rest.
//!
//! An unindexed range has no box that would say what lies in it. But it is an interval of codes, and so a set of quadrants of the grid: a
//! search indexes only the parts that its window meets (see `scan`). The centre of a record tells its code, so for boxes the window is
//! enlarged by `reach` first.
//!
//! A signpost's key is a code, and its leaf begins exactly there: only leaves that begin with a new code get one.

use super::Tree;
use super::boxes::BoxNode;
use super::inner::{Bounds, Child, Entry, Key, code_of, key_of};
use super::insert::ORDINALS;
use super::layout::MAX_RECORDS;
use super::leaf::Leaf;
use super::way::Spot;
use crate::concurrency::epochs;
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerNode, InnerTree};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::{Geometry, Grid, MAX_AXES, Rect};
use crate::{Error, Result};

/// A leaf found on a walk: where it begins, and its box.
pub(super) struct Found {
    pub(super) low: Key,
    /// Whether the leaf before has records with the key of this one's first.
    pub(super) shares_first: bool,
    pub(super) offset: Offset,
    pub(super) bounds: Bounds,
}

/// The smallest and the greatest key of a leaf, and its box.
struct Ends {
    first: Key,
    last: Key,
    bounds: Bounds,
}

impl<G: Geometry> Tree<G> {
    /// Adds a signpost to the new leaf at `offset`, if that leaf is to have one. The caller holds the lock of the leaf or of its left
    /// neighbour, or that of the root, below which no thread is.
    pub(super) fn add_signpost(&self, low: Key, offset: Offset) {
        if let Some(code) = Self::signpost_code(low) {
            self.directory.add(code, offset);
        }
    }

    /// Removes the signpost to the leaf at `offset`, if there is one.
    pub(super) fn remove_signpost(&self, low: Key, offset: Offset) -> Result<()> {
        match Self::signpost_code(low) {
            Some(code) if !planted(super::Bug::SignpostKept) => self.directory.remove(code, offset),
            _ => Ok(()),
        }
    }

    /// Indexes the leaves around `key`, if they are in an unindexed range, for an operation that needs them. The sweep waits meanwhile.
    #[cold]
    pub(super) fn index_on_demand(&self, key: Key) -> Result<()> {
        let _waiting = self.waiting_operations.enter();
        self.index_around(key)
    }

    /// Indexes the leaves around `key`, if they are in an unindexed range: those between the nearest signposts on both sides.
    fn index_around(&self, key: Key) -> Result<()> {
        let _indexing = lock(&self.indexing);
        let _guard = epochs::pin();
        let _change = self.structure.begin();
        // Unindexed ranges change only under `indexing`, so what is read here stays true.
        let (low, high, child) = self.read_child(key);
        if !child.is_unindexed() {
            return Ok(());
        }
        let code = code_of(key);
        let as_key = |(code, offset): (u64, Offset)| (key_of(code, 0), offset);
        let start = self
            .directory
            .at_or_below(code)?
            .map(as_key)
            .filter(|&(start, _)| start > low)
            .unwrap_or((low, child.offset()));
        let end = self
            .directory
            .above(code)?
            .map(as_key)
            .filter(|&(end, _)| high.is_none_or(|high| end < high));
        // The leaves of both signposts are in the unindexed range, where no leaf is merged: so nobody removes the signposts meanwhile.
        for &(key, leaf) in end.iter().chain((start.0 > low).then_some(&start)) {
            self.directory.confirm(&(code_of(key), leaf))?;
        }
        let stop = match (end, high) {
            (Some((_, offset)), _) => offset,
            (None, Some(high)) => self.locate_any(high).child.offset(),
            (None, None) => Offset::NONE,
        };
        let high = end.map(|(key, _)| key).or(high);
        let mut claimed = Vec::new();
        let (first, found) = self
            .walk(start, stop, high, &mut claimed)
            .inspect_err(|_| claimed.iter().for_each(|&leaf| self.space.unclaim(leaf)))?;
        // From right to left, so that at every moment every leaf without a separator lies in an unindexed range.
        if let Some((end, offset)) = end {
            let child = Child::unindexed(offset);
            self.add_separator(&Entry::leaf(end, child, Bounds::EVERYTHING));
        }
        for leaf in found.iter().rev() {
            let child = Child::leaf(leaf.offset, false);
            self.add_separator(&Entry::leaf(leaf.low, child, leaf.bounds));
        }
        if start.0 > low {
            let child = Child::leaf(start.1, false);
            self.add_separator(&Entry::leaf(start.0, child, first));
        } else {
            self.mark_indexed(low, child.offset(), &first);
        }
        Ok(())
    }

    /// Whether all records are in one leaf, and there is no directory.
    pub(super) fn has_one_leaf(&self) -> bool {
        let _guard = epochs::pin();
        let head = self.locate_any(0).child;
        self.leaf_at(head.offset())
            .is_ok_and(|leaf| leaf.next().is_none())
    }

    /// The child of a bottom node that covers `key`: where it and the next child begin, and the child.
    fn read_child(&self, key: Key) -> (Key, Option<Key>, Child) {
        loop {
            let spot = self.locate_any(key);
            let found = (spot.low(), spot.high(), spot.child);
            if spot.is_current() {
                return found;
            }
        }
    }

    /// `None` for a leaf without records. A record that is no shape is damage: boxes that contain a number that is none would hide all records below.
    fn ends(&self, leaf: Leaf<'_, G>) -> Result<Option<Ends>> {
        let mut all: Option<Ends> = None;
        for (_, record) in leaf.records() {
            let rect = record.rect::<G>();
            if !(0..G::AXES).all(|axis| rect.low[axis] <= rect.high[axis]) {
                let problem = format!("leaf {:#x} has a record that is no shape", leaf.offset);
                return Err(Error::Damaged(problem));
            }
            let (key, bounds) = (self.key(&record), Bounds::of(&rect));
            let (first, last) = (key, key);
            let one = Ends {
                first,
                last,
                bounds,
            };
            all = Some(match all {
                None => one,
                Some(all) => Ends {
                    first: all.first.min(first),
                    last: all.last.max(last),
                    bounds: all.bounds.join(bounds),
                },
            });
        }
        Ok(all)
    }

    /// Claims the leaf `start` and the leaves to its right, up to but not including `stop`. Returns the box of `start`, and the leaves to the
    /// right of it. Removes empty leaves, which a crash can leave behind, from the chain.
    fn walk(
        &self,
        start: (Key, Offset),
        stop: Offset,
        high: Option<Key>,
        claimed: &mut Vec<Offset>,
    ) -> Result<(Bounds, Vec<Found>)> {
        let out_of_order = |leaf: Leaf<'_, G>| {
            let problem = format!("leaf {:#x} has records out of order", leaf.offset);
            Err(Error::Damaged(problem))
        };
        let is_below = |key: Key| high.is_none_or(|high| key & !ORDINALS < high);
        let mut here = self.claim_leaf(start.1, claimed)?;
        let ends = self.ends(here)?;
        let bounds = ends.as_ref().map_or(Bounds::NOTHING, |ends| ends.bounds);
        let (first, mut last) = ends.map_or((start.0, start.0), |ends| (ends.first, ends.last));
        if first | ORDINALS < start.0 || !is_below(last) {
            return out_of_order(here);
        }
        let mut found: Vec<Found> = Vec::new();
        let mut next = here.next();
        while next != stop {
            if next.is_none() {
                let problem = format!("the chain of leaves ends before leaf {stop:#x}");
                return Err(Error::Damaged(problem));
            }
            let leaf = self.claim_leaf(next, claimed)?;
            next = leaf.next();
            match self.ends(leaf)? {
                Some(ends) if ends.first >= last & !ORDINALS && is_below(ends.last) => {
                    let begins_code = code_of(ends.first) > code_of(last);
                    let low = if begins_code {
                        key_of(code_of(ends.first), 0)
                    } else {
                        ends.first
                    };
                    let shares_first = ends.first == last;
                    let (offset, bounds) = (leaf.offset, ends.bounds);
                    found.push(Found {
                        low,
                        shares_first,
                        offset,
                        bounds,
                    });
                    (last, here) = (ends.last, leaf);
                }
                Some(_) => return out_of_order(leaf),
                // A read-only pool is never written; the empty leaf stays in the chain and is not indexed.
                None if self.core.is_read_only() => {}
                None => {
                    // Only the thread that holds `indexing` reads or writes leaves of an unindexed range, so no lock is needed.
                    self.pm.note("empty leaf relinked", 0);
                    here.relink(self.pm, next);
                    claimed.pop();
                    self.space.retire(leaf.offset);
                }
            }
        }
        if spread_equals(start.0, high, &mut found) {
            return Ok((bounds, found));
        }
        Err(Error::Damaged(format!(
            "{} leaves after leaf {:#x} have records of one key",
            found.len(),
            start.1
        )))
    }

    /// The leaf at an offset read from the pool; claims the block of the leaf, which no thread has claimed before.
    fn claim_leaf(&self, offset: Offset, claimed: &mut Vec<Offset>) -> Result<Leaf<'_, G>> {
        self.space.claim_linked(offset)?;
        claimed.push(offset);
        self.leaf_at(offset)
    }

    /// The leaf at an offset read from the pool.
    pub(super) fn leaf_at(&self, offset: Offset) -> Result<Leaf<'_, G>> {
        if !self.space.owns(offset) {
            return Err(Error::Damaged(format!(
                "{offset:#x} is not a leaf of this index"
            )));
        }
        let leaf = self.leaves.at(offset);
        if !leaf.is_marked() {
            return Err(Error::Damaged(format!(
                "leaf {offset:#x} was never written"
            )));
        }
        Ok(leaf)
    }

    /// Adds a child, whose box may be larger than that of its parent: enlarges the boxes above first.
    fn add_separator(&self, entry: &Entry) {
        loop {
            let spot = self.locate_any(entry.key);
            if spot.parent.is_full() {
                self.split_inner(entry.key);
                continue;
            }
            if let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) {
                debug_assert!(spot.low() < entry.key);
                // The boxes above contain it: that of the unindexed range, from which it comes, contains everything.
                spot.parent.insert(spot.slot, entry);
                return;
            }
        }
    }

    /// Replaces the unindexed range that begins at `low` by the leaf at `offset` alone.
    fn mark_indexed(&self, low: Key, offset: Offset, bounds: &Bounds) {
        loop {
            let spot = self.locate_any(low);
            if let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) {
                spot.parent.set_child(spot.slot, Child::leaf(offset, false));
                spot.parent.set_bounds(spot.slot, bounds);
                return;
            }
        }
    }

    /// Makes the boxes of a bottom node, and of the nodes above it, as small as they can be: those above unindexed ranges contained
    /// everything. The sweep does so for each bottom node when it leaves it.
    fn tighten(&self, key: Key) {
        self.locate_for(key, None).1.tighten();
    }

    /// See [`Engine::sweep`](crate::engines::Engine::sweep).
    pub(super) fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        // The directory first: indexing is fast only with its signposts.
        if !self.directory.sweep(go_on)? {
            return Ok(false);
        }
        if planted(super::Bug::SweepForgetsRoot) {
            self.space.unclaim(self.root_offset());
        }
        let mut from = 0;
        while go_on() {
            self.waiting_operations.wait_for_none();
            self.directory.wait_for_operations();
            let _guard = epochs::pin();
            if self.locate_any(from).child.is_unindexed() {
                self.index_around(from)?;
            }
            let locked = self.lock_leaf(from, None)?;
            let Locked { last_of_node, high } =
                match self.count_leaf(&locked.spot, locked.leaf, locked.high) {
                    Some(counted) => counted,
                    None => continue,
                };
            drop(locked);
            if last_of_node {
                self.tighten(from);
            }
            match high {
                Some(high) => from = high,
                None => {
                    self.locks.count.complete();
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Counts the records of a leaf, which is locked, and marks it as counted. `None` if its bottom node has changed.
    fn count_leaf(&self, spot: &Spot<'_>, leaf: Leaf<'_, G>, high: Option<Key>) -> Option<Locked> {
        let last_of_node = spot.slot + 1 == spot.parent.count();
        if spot.child.is_counted() || self.locks.count.is_complete() {
            return spot.is_current().then_some(Locked { last_of_node, high });
        }
        let _parent = spot.parent.lock().try_lock_at(spot.version)?;
        self.locks.entry(leaf.offset.get()).add(leaf.count() as i64);
        spot.parent
            .set_child(spot.slot, Child::leaf(leaf.offset, true));
        Some(Locked { last_of_node, high })
    }

    /// The cells of the grid in which the centres lie of all records that meet `window` and that were there at the open; `None` if there is
    /// no grid, and so only one leaf.
    pub(super) fn cells_of(&self, window: &Rect) -> Option<([u32; MAX_AXES], [u32; MAX_AXES])> {
        let grid: &Grid = self.grids.get()?;
        Some(grid.window_cells(&self.reach.widened(window)))
    }
}

/// What the sweep knows of a leaf that it has counted.
struct Locked {
    last_of_node: bool,
    high: Option<Key>,
}

/// Gives leaves that begin with equal records different keys, evenly spread over the keys that stand for these records. `false` if
/// there are more such leaves than keys. `start` and `high` are where the leaf before them and the leaf after them begin.
pub(super) fn spread_equals(start: Key, high: Option<Key>, found: &mut [Found]) -> bool {
    let mut at = 0;
    let mut before = start;
    while at < found.len() {
        let base = found[at].low & !ORDINALS;
        let run = found[at..]
            .iter()
            .take_while(|leaf| leaf.low & !ORDINALS == base)
            .count();
        if run > 1 || found[at].shares_first {
            let first = before.max(base);
            let last = (high.unwrap_or(Key::MAX) - 1).min(base | ORDINALS);
            let Some(room) = last.checked_sub(first).filter(|&room| room >= run as Key) else {
                return false;
            };
            for (i, leaf) in found[at..at + run].iter_mut().enumerate() {
                leaf.low = first + room * (i as Key + 1) / (run as Key + 1).max(1);
            }
            // With little room, even steps may be none.
            for i in at..at + run {
                let least = if i == 0 {
                    before + 1
                } else {
                    found[i - 1].low + 1
                };
                found[i].low = found[i].low.max(least);
            }
            if found[at + run - 1].low > last {
                return false;
            }
        }
        before = found[at + run - 1].low;
        at += run;
    }
    true
}

/// Records in a leaf, at most, fit into its bitmap.
const _: () = assert!(MAX_RECORDS <= 64);
