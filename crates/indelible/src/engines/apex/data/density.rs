//! How many records a data node has, and the densities that call for a structure change.

use super::{BUCKET_BITS, DataNode, SlotGroup, UNCOUNTED};
use crate::engines::apex::layout::GROUP_SLOTS;
use crate::engines::apex::plan::MIN_DATA_BYTES;
use std::sync::atomic::Ordering;

/// Records per 100 slots above which a data node is rebuilt or split: the paper's upper density (section 4.4).
const NODE_FULL_PERCENT: usize = 90;

/// Records per 100 slots below which a data node is shrunk or merged: far below the density of a node that has just
/// been built, so that a few inserts and removals cannot make a node change to and fro.
const NODE_SPARSE_PERCENT: usize = 20;

/// Records per 100 slots below which a data node whose stash is full gets an extended stash block, not a rebuild: the
/// keys of one region crowd, and a few more slots for them cost less than another node.
const EXTEND_STASH_BELOW_PERCENT: usize = 50;

/// A data node whose stash is full gets an extended stash block also if it has grown by less than one record in this
/// many since it was built. A rebuilt node would be as full as this one, and the next insert would rebuild it again;
/// this bound makes many inserts share the work of one rebuild.
pub(super) const EXTEND_STASH_GROWTH_DIVISOR: usize = 8;

/// The growth, in records, below which a node is never rebuilt for its crowding: a fraction of a small node is less
/// than a record.
const MIN_GROWTH_RECORDS: usize = 8;

/// Records per 100 slots of a group from which on a node whose keys have a trend is rebuilt: the keys go on beyond the
/// line of the model, and each further one is appended to the same overflow bucket.
pub(in crate::engines::apex) const TREND_GROUP_RETRAIN_PERCENT: usize = 125;

/// Records per 100 slots of a group from which on any node is rebuilt: the keys crowd where the model did not expect
/// them. Each lookup in such a group that misses its line pair scans an overflow bucket of at least 512
/// entries.
pub(in crate::engines::apex) const GROUP_RETRAIN_PERCENT: usize = 300;

/// A node with a crowded group is rebuilt only after it has grown by one record in this many: where the keys lie along
/// no line, the rebuilt node may have such a group again.
const GROUP_RETRAIN_GROWTH_DIVISOR: usize = 4;

/// Numbers of records, and the densities that call for a structure change.
impl DataNode {
    /// Whether a node with this many records has to become larger, or several nodes.
    pub(in crate::engines::apex) fn is_over_upper_density(&self, records: usize) -> bool {
        records * 100 > self.slots() * NODE_FULL_PERCENT
    }

    /// Whether a node with this many records should become smaller, or be merged with its neighbour.
    pub(in crate::engines::apex) fn is_under_lower_density(&self, records: usize) -> bool {
        records * 100 < self.slots() * NODE_SPARSE_PERCENT
            && (records == 0 || self.bytes > MIN_DATA_BYTES)
    }

    /// Whether a node with this many records should become smaller now: also if the last attempt has found no space, once half of the records
    /// that it had then are gone.
    pub(in crate::engines::apex) fn is_to_shrink(&self, records: usize) -> bool {
        let before = self.records_at_failure.load(Ordering::Relaxed);
        self.is_under_lower_density(records) && records <= before / 2
    }

    /// Notes that there was no space to make the node smaller when it had this many records.
    pub(in crate::engines::apex) fn set_not_shrunk(&self, records: usize) {
        self.records_at_failure.store(records, Ordering::Relaxed);
    }

    /// Whether a node without a free stash slot gets an extended stash block, rather than a rebuild.
    pub(in crate::engines::apex) fn prefers_extended_stash(&self) -> bool {
        self.total().is_some_and(|records| {
            records * 100 < self.slots() * EXTEND_STASH_BELOW_PERCENT
                || !self.has_grown_by(records, EXTEND_STASH_GROWTH_DIVISOR)
        })
    }

    /// Whether the node, which has `records` now, has grown enough since it was built or last examined to pay for a
    /// rebuild: by one record in `divisor`, and by [`MIN_GROWTH_RECORDS`].
    fn has_grown_by(&self, records: usize, divisor: usize) -> bool {
        let before = self.records_at_review.load(Ordering::Relaxed);
        records >= before + before / divisor + MIN_GROWTH_RECORDS
    }

    /// Remembers that the node was examined when it had this many records.
    pub(in crate::engines::apex) fn set_reviewed(&self, records: usize) {
        self.records_at_review.store(records, Ordering::Relaxed);
    }

    /// Whether a group of this many records is above the density at which its node may be too full.
    #[inline(always)]
    pub(in crate::engines::apex) fn is_group_over_density(&self, records: usize) -> bool {
        records * 100 > GROUP_SLOTS * NODE_FULL_PERCENT
    }

    /// Whether a group that has just got a record is crowded, so that its node may have to be rebuilt. As every answer
    /// of the whole node takes a pass over its groups, only every 64th record of a group asks for it.
    #[inline(always)]
    pub(in crate::engines::apex) fn is_group_crowded(&self, records: usize) -> bool {
        records * 100 >= TREND_GROUP_RETRAIN_PERCENT * GROUP_SLOTS
            && records.is_multiple_of(64)
            && self.has_crowded_group(TREND_GROUP_RETRAIN_PERCENT)
    }

    /// Whether `key` lies below or above all keys that the node was built with.
    pub(in crate::engines::apex) fn is_outside_built_range(&self, key: u64) -> bool {
        self.built
            .is_some_and(|(_, first, last)| key < first || key > last)
    }

    /// Whether a group has at least `percent` records per 100 slots, and the node has grown enough since it was built
    /// to be rebuilt for that.
    pub(in crate::engines::apex) fn has_crowded_group(&self, percent: usize) -> bool {
        let mut counts = (0..self.group_count()).filter_map(|group| self.count(group));
        counts.any(|records| records * 100 >= percent * GROUP_SLOTS)
            && (self.total())
                .is_some_and(|records| self.has_grown_by(records, GROUP_RETRAIN_GROWTH_DIVISOR))
    }

    /// Whether a group of this many records is below the density at which its node may be too sparse.
    #[inline(always)]
    pub(in crate::engines::apex) fn is_group_under_density(&self, records: usize) -> bool {
        records * 100 < self.slots_of(0).len() * NODE_SPARSE_PERCENT
    }

    /// Records of a group; `None` if they have not been counted since the node was mirrored.
    pub(in crate::engines::apex) fn count(&self, group: usize) -> Option<usize> {
        let count = self.groups[group].word.load(Ordering::Relaxed) >> 48;
        (count != UNCOUNTED).then_some(count as usize)
    }

    /// Sets the number of records of a group and its displaced word. The group's lock is held, or nobody else has the
    /// node.
    pub(in crate::engines::apex) fn set_counted(
        &self,
        group: usize,
        records: usize,
        displaced: u64,
    ) {
        let SlotGroup {
            word,
            displaced: known,
        } = &self.groups[group];
        let count = records as u64;
        // A group has no more records than its own slots and the stash together, far below this bound.
        assert!(count < UNCOUNTED, "data I5: a group of {records} records");
        word.store(
            word.load(Ordering::Relaxed) & BUCKET_BITS | count << 48,
            Ordering::Release,
        );
        known.store(displaced, Ordering::Relaxed);
    }

    /// Adds `change` to the number of records of the group of a predicted slot, and returns the sum; `None` if the
    /// records have not been counted. The group's lock is held.
    #[inline(always)]
    pub(in crate::engines::apex) fn change_count(
        &self,
        predicted: usize,
        change: i64,
    ) -> Option<usize> {
        let group = &self.group(predicted).word;
        let word = group.load(Ordering::Relaxed);
        if word >> 48 == UNCOUNTED {
            return None;
        }
        let word = word.wrapping_add((change as u64) << 48);
        group.store(word, Ordering::Release);
        Some((word >> 48) as usize)
    }

    /// Records of the whole node; `None` if the records of a group have not been counted.
    pub(in crate::engines::apex) fn total(&self) -> Option<usize> {
        (0..self.group_count()).map(|group| self.count(group)).sum()
    }
}
