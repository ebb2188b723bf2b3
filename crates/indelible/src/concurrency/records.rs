//! The locks of records, and the number of records, which is kept beside them.
//!
//! A lock protects the records of a *place*: a leaf, or a part of a larger node, known by its offset in the pool. A
//! writer holds its place's lock, so it may count in the same cache line without an atomic addition. The length of the
//! map is the sum over all locks.

use crate::concurrency::locks::{VersionLock, WriteGuard};
use crate::pmem::geometry::sized;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Locks for all records of a map: with 16 bytes each they stay in the second-level cache, and two threads rarely meet.
pub(crate) const LOCKS: usize = sized(8192, 64);

/// Bytes of a record, wherever it is.
pub(crate) const RECORD_BYTES: u64 = 16;

/// The version lock of some places, and how many records were added under it less those removed.
#[derive(Default)]
pub(crate) struct RecordLock {
    pub(crate) version: VersionLock,
    records: AtomicI64,
}

impl RecordLock {
    /// Counts records added, or with a negative number removed, under this lock, which the caller holds.
    #[inline(always)]
    pub(crate) fn add(&self, change: i64) {
        // The lock is held, so no other thread writes this number.
        let records = self.records.load(Ordering::Relaxed) + change;
        self.records.store(records, Ordering::Relaxed);
    }
}

/// Counting without a lock, for engines that have none.
impl RecordLock {
    /// Counts records added or removed, beside other threads that do.
    #[inline(always)]
    pub(crate) fn add_shared(&self, change: i64) {
        self.records.fetch_add(change, Ordering::Relaxed);
    }
}

/// Locks for any number of places, chosen by a hash of the place's offset, and the number of records.
pub(crate) struct RecordLocks {
    /// How far the records have been counted since the open.
    pub(crate) count: RecordCount,
    locks: Box<[RecordLock]>,
    /// One less than the number of locks.
    mask: usize,
    shift: u32,
}

impl RecordLocks {
    /// `count` locks, a power of two above one.
    pub(crate) fn new(count: usize) -> Self {
        assert!(count > 1 && count.is_power_of_two());
        Self {
            count: RecordCount::default(),
            mask: count - 1,
            locks: (0..count).map(|_| RecordLock::default()).collect(),
            shift: 64 - count.ilog2(),
        }
    }

    /// The number of the lock of the place at an offset.
    #[inline(always)]
    pub(crate) fn number_of(&self, place: u64) -> usize {
        ((place >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// A lock by its number; numbers above that of the last lock begin again with the first. For places of which there are many in a row:
    /// to remember the number of the first one's lock and to count on from there takes less than to hash each.
    #[inline(always)]
    pub(crate) fn numbered(&self, number: usize) -> &RecordLock {
        // SAFETY: the number of locks is a power of two, and `mask` is one less.
        unsafe { self.locks.get_unchecked(number & self.mask) }
    }

    /// The lock of the place at an offset, with its number of records.
    #[inline(always)]
    pub(crate) fn entry(&self, place: u64) -> &RecordLock {
        self.numbered(self.number_of(place))
    }

    /// The lock of the place at an offset.
    #[inline(always)]
    pub(crate) fn of(&self, place: u64) -> &VersionLock {
        &self.entry(place).version
    }

    /// Tries to lock two places. One lock may belong to both.
    pub(crate) fn try_lock_two(
        &self,
        first: u64,
        second: u64,
    ) -> Option<(WriteGuard<'_>, Option<WriteGuard<'_>>)> {
        let guard = self.of(first).try_lock()?;
        if guard.holds(self.of(second)) {
            return Some((guard, None));
        }
        Some((guard, Some(self.of(second).try_lock()?)))
    }

    /// Starts from a number of records that is known.
    pub(crate) fn begin_with(&self, records: u64) {
        self.entry(0).add(records as i64);
        self.count.complete();
    }

    /// Counts the records from `from` on, of which `at_or_above` tells how many there are, and everything up to `high`,
    /// where the next place begins, as counted. Whatever covers those keys is locked; the number goes to `place`.
    pub(crate) fn count_from(
        &self,
        place: u64,
        from: u64,
        high: Option<u64>,
        at_or_above: impl FnOnce(u64) -> usize,
    ) {
        self.count
            .count_under(self.entry(place), from, high, at_or_above);
    }

    /// The number of records, once they are counted.
    pub(crate) fn total(&self) -> u64 {
        let counts = self.locks.iter();
        let sum: i64 = counts
            .map(|lock| lock.records.load(Ordering::Relaxed))
            .sum();
        sum.max(0) as u64
    }

    /// Bytes of DRAM.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&*self.locks) as u64
    }
}

/// How far the records have been counted since the map was opened.
#[derive(Default)]
pub(crate) struct RecordCount {
    /// Keys below this one are counted; writes to them count themselves.
    counted_below: AtomicU64,
    complete: AtomicBool,
}

impl RecordCount {
    /// Everything has been counted.
    pub(crate) fn complete(&self) {
        self.complete.store(true, Ordering::Release);
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Counts a change to `key` in a place whose lock is held.
    #[inline(always)]
    pub(crate) fn change(&self, lock: &RecordLock, key: u64, change: i64) {
        if self.complete.load(Ordering::Relaxed) || key < self.counted_below.load(Ordering::Relaxed)
        {
            lock.add(change);
        }
    }

    /// [`RecordLocks::count_from`], where the number goes to `lock`, which is held.
    pub(crate) fn count_under(
        &self,
        lock: &RecordLock,
        from: u64,
        high: Option<u64>,
        at_or_above: impl FnOnce(u64) -> usize,
    ) {
        if self.is_complete() {
            return;
        }
        // A sweep that was stopped begins again with the lowest key; records below `counted_below` are counted already.
        let from = from.max(self.counted_below.load(Ordering::Relaxed));
        lock.add(at_or_above(from) as i64);
        match high {
            Some(high) => self.counted_below.store(high.max(from), Ordering::Relaxed),
            None => self.complete.store(true, Ordering::Release),
        }
    }
}
