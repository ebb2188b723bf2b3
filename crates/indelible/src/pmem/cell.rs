//! The durable word.

use std::sync::atomic::{AtomicU64, Ordering};

/// One aligned 8-byte word of durable memory.
///
/// Reading is free for all; writing goes through [`Pm`](super::Pm), so that the crash checker and the counters see it.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    /// A cell outside any pool, for building an image in DRAM.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// The word, ordered with nothing: optimistic readers validate a version afterwards.
    #[inline(always)]
    #[must_use]
    pub fn load(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The word, with everything its writer stored before publishing it.
    #[inline(always)]
    #[must_use]
    pub fn load_acquire(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn set_relaxed(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn set_release(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn compare_exchange(&self, old: u64, new: u64) -> bool {
        let exchanged = self
            .0
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
        exchanged.is_ok()
    }

    #[inline(always)]
    pub(super) fn as_ptr(&self) -> *mut u64 {
        self.0.as_ptr()
    }
}

const _: () = assert!(size_of::<Cell>() == 8 && align_of::<Cell>() == 8);
