//! Recovery: signposts, indexing on demand, the sweep.
//!
//! # What survives
//!
//! The leaves survive a crash, in a chain. The inner nodes lie in DRAM and do not. Rebuilding all inner nodes would take a
//! time in proportion to the size of the tree, so some of their entries are durable: about one leaf in 32 has a *signpost*,
//! a record (lowest key, offset of the leaf) in a directory. A directory is a tree of the same kind, with a smaller
//! directory of its own. Structure changes add a signpost after a split and remove one before a merge. A missing signpost
//! costs time and nothing else; a signpost to a leaf that has left the chain cannot exist.
//!
//! # Indexing on demand
//!
//! After an open the inner nodes have one child, the first leaf of the chain. The leaves to the right of it are an
//! *unindexed range*: no inner node leads to them yet. An operation on a key in an unindexed range asks the directory for the
//! signposts on both sides of the key, walks the leaves between them (about 32), adds the lowest key of each as a separator,
//! and goes on. So the first answer takes as long as reading a few dozen leaves, whatever the size of the tree. Meanwhile
//! the sweep, in a thread of its own, indexes the rest.
//!
//! # The sweep
//!
//! A thread that indexes a leaf claims the block of the leaf. When the sweep has visited all leaves, the blocks without a claim
//! are free. A block can be claimed once, and only if it was in use before the open. So even in a damaged pool no two leaves are
//! the same block, and no leaf is a block that was allocated since the open.

use super::inner::Child;
use super::leaf::Leaf;
use super::{Bug, Tree};
use crate::concurrency::epochs;
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerNode, InnerTree};
use crate::pmem::geometry::sized_in_tests;
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::{Error, Result};

/// One leaf in this many is a signpost, on average.
const SIGNPOST_INTERVAL: u64 = sized_in_tests(32, 4) as u64;

/// Whether the leaf at `offset` gets a signpost. The rule depends on the offset alone, so that a split and a merge come to the same
/// answer. It uses a hash, because a regular pattern would meet the leaves of the directory, which are allocated between the
/// leaves of the records.
pub(super) fn is_signpost(offset: Offset) -> bool {
    // The finalizer of MurmurHash3.
    let mut hash = offset.get();
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53_u64] {
        hash = (hash ^ hash >> 33).wrapping_mul(factor);
    }
    (hash >> 33).is_multiple_of(SIGNPOST_INTERVAL)
}

impl Tree {
    /// Removes the signpost to the leaf at `offset`, if there is one.
    pub(super) fn remove_signpost(&self, low: u64, offset: Offset) -> Result<()> {
        if planted(Bug::SignpostKept) {
            return Ok(());
        }
        self.directory.remove(low, offset)
    }

    /// The signposts to those of the freshly loaded `leaves`, given by lowest key and offset, that are to have one.
    pub(super) fn signposts_among(leaves: &[(u64, Offset)]) -> Vec<(u64, u64)> {
        leaves
            .iter()
            .filter(|&&(_, offset)| is_signpost(offset))
            .map(|&(low, offset)| (low, offset.get()))
            .collect()
    }

    /// Indexes the leaves around `key`, if they are in an unindexed range, for an operation that needs them. The sweep waits meanwhile.
    #[cold]
    pub(super) fn index_on_demand(&self, key: u64) -> Result<()> {
        let _waiting = self.waiting_operations.enter();
        self.index_around(key)
    }

    /// Indexes the leaves around `key`, if they are in an unindexed range: those between the nearest signposts on both sides.
    fn index_around(&self, key: u64) -> Result<()> {
        let _indexing = lock(&self.indexing);
        let _guard = epochs::pin();
        // Unindexed ranges change only under `indexing`, so what is read here stays true.
        let (low, high, child) = self.read_child(key);
        if !child.is_unindexed() {
            return Ok(());
        }
        let start = self
            .directory
            .at_or_below(key)?
            .filter(|&(start, _)| start > low)
            .unwrap_or((low, child.offset()));
        let end = self
            .directory
            .above(key)?
            .filter(|&(end, _)| high.is_none_or(|high| end < high));
        // The leaves of both signposts are in the unindexed range, where no leaf is merged: so nobody removes the signposts meanwhile.
        for signpost in end.iter().chain((start.0 > low).then_some(&start)) {
            self.directory.confirm(signpost)?;
        }
        let stop = match (end, high) {
            (Some((_, offset)), _) => offset,
            (None, Some(high)) => self.leaf_offset_of(high),
            (None, None) => Offset::NONE,
        };
        let mut claimed = Vec::new();
        let high = end.map(|(key, _)| key).or(high);
        let found = self
            .walk(start, stop, high, &mut claimed)
            .inspect_err(|_| claimed.iter().for_each(|&leaf| self.space.unclaim(leaf)))?;
        // From right to left, so that at every moment every leaf without a separator lies in an unindexed range.
        if let Some((end, offset)) = end {
            self.add_separator(end, Child::unindexed(offset));
        }
        for &(separator, offset) in found.iter().rev() {
            self.add_separator(separator, Child::leaf(offset));
        }
        if start.0 > low {
            self.add_separator(start.0, Child::leaf(start.1));
        } else {
            self.mark_indexed(low, child.offset());
        }
        Ok(())
    }

    /// Whether all records are in one leaf, and there is no directory.
    pub(super) fn has_one_leaf(&self) -> bool {
        let head = self.locate_any::<()>(0).child;
        self.directory().is_none()
            && self
                .leaf_at(head.offset())
                .is_ok_and(|leaf| leaf.next().is_none())
    }

    /// The child of a bottom node that covers `key`: its lowest key, the lowest key of the next child, and the child.
    fn read_child(&self, key: u64) -> (u64, Option<u64>, Child) {
        loop {
            let spot = self.locate_any(key);
            let found = (spot.low(), spot.high(), spot.child);
            if spot.is_current() {
                return found;
            }
        }
    }

    /// Claims the leaf `start` and the leaves to its right, up to but not including `stop`. Returns the leaves to the right of
    /// `start`, each with its lowest key. Removes empty leaves, which a crash can leave behind, from the chain.
    fn walk(
        &self,
        start: (u64, Offset),
        stop: Offset,
        high: Option<u64>,
        claimed: &mut Vec<Offset>,
    ) -> Result<Vec<(u64, Offset)>> {
        let out_of_order = |leaf: Leaf<'_>| {
            let problem = format!("leaf {:#x} has keys out of order", leaf.offset);
            Err(Error::Damaged(problem))
        };
        let mut found = Vec::new();
        let mut here = self.claim_leaf(start.1, claimed)?;
        let is_below = |key| high.is_none_or(|high| key < high);
        let (first, mut last_key) = here.ends().unwrap_or((start.0, start.0));
        let mut next = here.next();
        if first < start.0 || !is_below(last_key) {
            return out_of_order(here);
        }
        while next != stop {
            if next.is_none() {
                return Err(Error::Damaged(format!(
                    "the chain of leaves ends before leaf {stop:#x}"
                )));
            }
            let leaf = self.claim_leaf(next, claimed)?;
            next = leaf.next();
            match leaf.ends() {
                Some((low, top)) if low > last_key && is_below(top) => {
                    found.push((low, leaf.offset));
                    (last_key, here) = (top, leaf);
                }
                Some(_) => return out_of_order(leaf),
                // A read-only pool is never written; the empty leaf stays in the chain and is not indexed.
                None if self.core.is_read_only() => {}
                None => {
                    // Only the thread that holds `indexing` reads or writes leaves of an unindexed range, so no lock is needed.
                    here.relink(self.pm, next);
                    claimed.pop();
                    self.space.retire(leaf.offset);
                }
            }
        }
        Ok(found)
    }

    /// The leaf at an offset read from the pool; claims the block of the leaf, which no thread has claimed before.
    fn claim_leaf(&self, offset: Offset, claimed: &mut Vec<Offset>) -> Result<Leaf<'_>> {
        self.space.claim_linked(offset)?;
        claimed.push(offset);
        self.leaf_at(offset)
    }

    /// The leaf at an offset read from the pool.
    pub(super) fn leaf_at(&self, offset: Offset) -> Result<Leaf<'_>> {
        if !self.space.owns(offset) {
            return Err(Error::Damaged(format!(
                "{offset:#x} is not a leaf of this map"
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

    fn add_separator(&self, key: u64, child: Child) {
        loop {
            let spot = self.locate_any(key);
            if spot.parent.is_full() {
                self.split_inner(key);
                continue;
            }
            if let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) {
                debug_assert!(spot.low() < key);
                spot.parent.insert_leaf(spot.slot, key, child);
                return;
            }
        }
    }

    /// Replaces the unindexed range that begins at key `low` by the leaf at `offset` alone.
    fn mark_indexed(&self, low: u64, offset: Offset) {
        loop {
            let spot = self.locate_any::<()>(low);
            if let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) {
                spot.parent.set_child(spot.slot, Child::leaf(offset));
                return;
            }
        }
    }

    /// Sweeps the tree of records, which this is, and its directories. Stops early, with `false`, when `go_on` says so.
    pub(super) fn sweep_all(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut trees = vec![self];
        while let Some(directory) = trees[trees.len() - 1].directory() {
            trees.push(directory);
        }
        // Directories first: indexing a tree is fast only with the signposts of its directory.
        for tree in trees.into_iter().rev() {
            if !tree.sweep(go_on)? {
                return Ok(false);
            }
        }
        if planted(Bug::SweepForgetsRoot) {
            self.space.unclaim(Offset::from_word(
                self.core.entry(self.slot).roots[0].load(),
            ));
        }
        Ok(true)
    }

    /// Visits every leaf from left to right, indexes unindexed ranges and, in the tree of records, counts the records. Stops early,
    /// with `false`, when `go_on` says so.
    fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut from = 0;
        while go_on() {
            self.waiting_operations.wait_for_none();
            self.directory.wait_for_operations();
            let _guard = epochs::pin();
            if self.locate_any::<()>(from).child.is_unindexed() {
                self.index_around(from)?;
            }
            let locked = self.lock_leaf::<Option<u64>>(from)?;
            let high = locked.spot.high();
            if !locked.spot.is_current() {
                continue;
            }
            if self.level == 0 {
                let leaf = locked.leaf;
                self.locks
                    .count_from(leaf.offset.get(), from, high, |from| leaf.count_from(from));
            }
            match high {
                Some(high) => from = high,
                None => return Ok(true),
            }
        }
        Ok(false)
    }
}
