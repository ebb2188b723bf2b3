//! How far a log is, in one line of memory: what a reader asks for after each lookup.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A part of the image may be wrong, since the log of an earlier session is damaged.
pub(super) const DAMAGED: u8 = 1;
/// The image has words that could not be appended, since the log has failed: readers may see what no recovery will find.
pub(super) const LOST: u8 = 2;

/// Shared by a log, the backlog that it continues, and the gate. A session that has not begun has appended nothing.
#[repr(align(64))]
#[derive(Default)]
pub(super) struct Progress {
    /// Position after the last record that has been appended.
    appended: AtomicU64,
    /// Position up to which the log is on the disk.
    durable: AtomicU64,
    /// [`DAMAGED`], [`LOST`] or both. Neither ends.
    trouble: AtomicU8,
}

impl Progress {
    /// The log begins at `position`.
    pub(super) fn begin(&self, position: u64) {
        // In this order: nobody may see something that has been appended and is not durable, as there is none yet.
        self.durable.store(position, Ordering::Release);
        self.appended.store(position, Ordering::Release);
    }

    #[inline]
    pub(super) fn appended(&self) -> u64 {
        self.appended.load(Ordering::Acquire)
    }

    /// Records have been appended up to `position`. The caller holds the lock of the appender.
    pub(super) fn append(&self, position: u64) {
        self.appended.store(position, Ordering::Release);
    }

    #[inline]
    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// The log is on the disk up to `position`. Returns up to where it was before.
    pub(super) fn advance(&self, position: u64) -> u64 {
        self.durable.fetch_max(position, Ordering::AcqRel)
    }

    /// Whether everything that has been appended is durable.
    #[inline]
    pub(super) fn is_all_durable(&self) -> bool {
        // In this order: what is durable later may not have what is appended in between.
        let appended = self.appended();
        appended <= self.durable()
    }

    pub(super) fn note(&self, trouble: u8) {
        self.trouble.fetch_or(trouble, Ordering::Release);
    }

    /// Whether one of these has happened.
    #[inline]
    pub(super) fn has(&self, trouble: u8) -> bool {
        self.trouble.load(Ordering::Acquire) & trouble != 0
    }
}
