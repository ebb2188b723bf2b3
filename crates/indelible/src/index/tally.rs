//! The locks of records, and the number of records, which is kept beside them.
//!
//! A lock protects the records of a *place*: a leaf, or a part of a larger node, known by its offset in the pool. A
//! writer holds its place's lock, so it may count in the same cache line without an atomic addition. The length of the
//! map is the sum over all locks.

use crate::locks::VersionLock;
use crate::planted::{Bug, planted};
use crate::pool::PoolCore;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Locks for all records of a map: with 16 bytes each they stay in the second-level cache, and two threads rarely meet.
pub(super) const LOCKS: usize = if cfg!(feature = "small") { 64 } else { 8192 };

/// Bytes of a record, wherever it is.
const RECORD_BYTES: u64 = 16;

/// The version lock of some places, and how many records were added under it less those removed.
#[derive(Default)]
pub(super) struct RecordLock {
    pub(super) version: VersionLock,
    records: AtomicI64,
}

impl RecordLock {
    #[inline(always)]
    fn add(&self, change: i64) {
        // The lock is held, so nobody else writes this number.
        let records = self.records.load(Ordering::Relaxed) + change;
        self.records.store(records, Ordering::Relaxed);
    }
}

/// Locks for any number of places, chosen by a hash of the place's offset.
pub(super) struct RecordLocks {
    locks: Box<[RecordLock]>,
    shift: u32,
}

impl RecordLocks {
    /// `count` locks, a power of two above one.
    pub(super) fn new(count: usize) -> Self {
        debug_assert!(count > 1 && count.is_power_of_two());
        Self {
            locks: (0..count).map(|_| RecordLock::default()).collect(),
            shift: 64 - count.ilog2(),
        }
    }

    /// The lock of the place at an offset, with its number of records.
    #[inline(always)]
    pub(super) fn entry(&self, place: u64) -> &RecordLock {
        &self.locks[((place >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize]
    }

    /// The lock of the place at an offset.
    #[inline(always)]
    pub(super) fn of(&self, place: u64) -> &VersionLock {
        &self.entry(place).version
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
    pub(super) fn begin_with(&self, locks: &RecordLocks, records: u64) {
        locks.entry(0).add(records as i64);
        self.complete.store(true, Ordering::Release);
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Counts a change to `key` in a place whose lock is held.
    #[inline(always)]
    pub(super) fn change(&self, lock: &RecordLock, key: u64, change: i64) {
        if self.complete.load(Ordering::Relaxed) || key < self.counted_below.load(Ordering::Relaxed)
        {
            lock.add(change);
        }
    }

    /// Counts the records from `from` on, of which `at_or_above` tells how many there are, and everything up to `high`,
    /// where the next place begins, as counted. Whatever covers those keys is locked; the number goes to `place`.
    pub(super) fn count_from(
        &self,
        locks: &RecordLocks,
        place: u64,
        from: u64,
        high: Option<u64>,
        at_or_above: impl FnOnce(u64) -> usize,
    ) {
        if self.is_complete() {
            return;
        }
        // A sweep that was broken off begins again at the left, where all is counted.
        let from = from.max(self.counted_below.load(Ordering::Relaxed));
        locks.entry(place).add(at_or_above(from) as i64);
        match high {
            Some(high) => self.counted_below.store(high.max(from), Ordering::Relaxed),
            None => self.complete.store(true, Ordering::Release),
        }
    }

    /// The number of records, once complete.
    pub(super) fn total(&self, locks: &RecordLocks) -> u64 {
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
        .filter(|&records| records <= core.length() / RECORD_BYTES);
    if !core.is_read_only() && !forgetful {
        // Need not be durable: after a crash no number is believed.
        core.pm().store(&entry.records_generation, 0);
    }
    records
}

/// Writes the number of records to the catalog, for the next open after a clean close. A hint, valid for that one
/// generation: a crash after this makes the pool unclean and the hint void.
pub(super) fn record(core: &PoolCore, slot: usize, tally: &Tally, locks: &RecordLocks) {
    if core.is_read_only() || core.is_closed() {
        return;
    }
    let entry = core.entry(slot);
    let (records, generation) = if tally.is_complete() {
        (tally.total(locks), core.generation())
    } else {
        (0, 0)
    };
    core.pm().store(&entry.records, records);
    core.pm().commit(&entry.records_generation, generation);
}
