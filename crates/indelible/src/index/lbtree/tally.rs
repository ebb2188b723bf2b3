//! The leaves' locks, and the number of records, which is kept beside them.
//!
//! A writer holds its leaf's lock, so it may count in the same cache line without an atomic addition. The length of the
//! map is the sum over all locks.

use super::Shared;
use super::layout::{MAX_RECORDS, Record};
use super::leaf::{Leaf, Offset};
use crate::locks::VersionLock;
use crate::planted::{Bug, planted};
use crate::pool::PoolCore;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Locks of the tree of records: with 16 bytes each they stay in the second-level cache, and two threads rarely meet.
const LOCKS: usize = if cfg!(feature = "small") { 64 } else { 8192 };

/// The version lock of some leaves, and how many records were added under it less those removed.
#[derive(Default)]
struct LeafLock {
    version: VersionLock,
    records: AtomicI64,
}

/// The locks of all leaves of a tree, chosen by a hash of the leaf's offset.
pub(super) struct LeafLocks {
    locks: Box<[LeafLock]>,
    shift: u32,
}

impl LeafLocks {
    /// Directories are small and rarely written, and get fewer.
    pub(super) fn new(level: usize) -> Self {
        let count = if level == 0 {
            LOCKS
        } else {
            (LOCKS / 64).max(8)
        };
        Self {
            locks: (0..count).map(|_| LeafLock::default()).collect(),
            shift: 64 - count.ilog2(),
        }
    }

    #[inline(always)]
    fn entry(&self, leaf: Offset) -> &LeafLock {
        &self.locks[((leaf >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize]
    }

    /// The lock of a leaf.
    #[inline(always)]
    pub(super) fn of(&self, leaf: Offset) -> &VersionLock {
        &self.entry(leaf).version
    }

    #[inline(always)]
    fn add(&self, leaf: Offset, change: i64) {
        let records = &self.entry(leaf).records;
        // The leaf's lock is held, so nobody else writes this number.
        records.store(records.load(Ordering::Relaxed) + change, Ordering::Relaxed);
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.locks) as u64
    }
}

/// How far the records have been counted since the map was opened.
#[derive(Default)]
pub(super) struct Tally {
    /// Keys below this one are counted; writes to them count themselves.
    counted_below: AtomicU64,
    complete: AtomicBool,
}

impl Tally {
    /// Starts from a number known since the last clean close.
    pub(super) fn begin_with(&self, locks: &LeafLocks, records: u64) {
        locks.add(0, records as i64);
        self.complete.store(true, Ordering::Release);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Counts a change to `key` in a leaf whose lock is held.
    #[inline(always)]
    pub(super) fn change(&self, locks: &LeafLocks, leaf: Offset, key: u64, change: i64) {
        if self.complete.load(Ordering::Relaxed) || key < self.counted_below.load(Ordering::Relaxed)
        {
            locks.add(leaf, change);
        }
    }

    /// Counts the records from `from` on of a leaf whose lock is held, and everything up to its end as counted.
    pub(super) fn count_leaf(
        &self,
        locks: &LeafLocks,
        leaf: Leaf<'_>,
        from: u64,
        high: Option<u64>,
    ) {
        if self.is_complete() {
            return;
        }
        // A sweep that was broken off begins again at the left, where all is counted.
        let from = from.max(self.counted_below.load(Ordering::Relaxed));
        let mut records = [(0, 0); MAX_RECORDS];
        let count = leaf.copy_to(&mut records);
        locks.add(
            leaf.offset,
            records[..count]
                .iter()
                .filter(|record| record.0 >= from)
                .count() as i64,
        );
        match high {
            Some(high) => self.counted_below.store(high.max(from), Ordering::Relaxed),
            None => self.complete.store(true, Ordering::Release),
        }
    }

    /// The number of records, once complete.
    pub(super) fn total(&self, locks: &LeafLocks) -> u64 {
        let sum: i64 = locks
            .locks
            .iter()
            .map(|lock| lock.records.load(Ordering::Relaxed))
            .sum();
        sum.max(0) as u64
    }
}

/// The number of records from the catalog, if it was written at a clean close and nothing has changed since. It is taken
/// out of the catalog: from now on only the next close may vouch for it.
pub(super) fn recorded(core: &PoolCore, slot: usize) -> Option<u64> {
    let entry = core.entry(slot);
    let written = entry.records_generation.load();
    // A read-only open has the generation of the session before.
    let in_this_session =
        written == core.generation() && (core.was_clean() || !core.is_read_only());
    let at_last_close = core.was_clean()
        && written.checked_add(1) == Some(core.generation())
        && !core.is_read_only();
    let forgetful = planted(Bug::ForgetGeneration);
    let records = (written != 0 && (in_this_session || at_last_close || forgetful))
        .then(|| entry.records.load())
        // More than fit is no number that a close has written.
        .filter(|&records| records <= core.length() / size_of::<Record>() as u64);
    if !core.is_read_only() && !forgetful {
        // Need not be durable: after a crash no number is believed.
        core.pm().store(&entry.records_generation, 0);
    }
    records
}

/// Writes the number of records to the catalog, for the next open after a clean close. A hint, valid for that one
/// generation: a crash after this makes the pool unclean and the hint void.
pub(super) fn record(shared: &Shared) {
    let (core, tree) = (&shared.tree.core, &shared.tree);
    let is_writing = !core.is_read_only() && !core.is_closed();
    let Some(tally) = tree.tally.as_ref().filter(|_| is_writing) else {
        return;
    };
    let entry = core.entry(tree.slot);
    let (records, generation) = if tally.is_complete() {
        (tally.total(&tree.locks), core.generation())
    } else {
        (0, 0)
    };
    tree.pm.store(&entry.records, records);
    tree.pm.commit(&entry.records_generation, generation);
}
