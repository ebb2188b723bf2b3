//! Memory that stands for a file on persistent memory, for the crash checker.

use super::{Cell as Word, LINE, trace};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in memory that has a length, like a file: what lies beyond it is zero.
///
/// A pool can live in it ([`PoolOptions::open_memory`](crate::PoolOptions::open_memory)), and so can any other structure
/// made of [`Cell`](super::Cell)s. Compiled only with the `trace` feature.
#[derive(Debug)]
pub struct Memory {
    words: NonNull<Word>,
    capacity: usize,
    length: AtomicU64,
}

// SAFETY: the words are atomics, and the allocation is freed only with the value.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`.
unsafe impl Sync for Memory {}

thread_local! {
    /// Base, end and end of the capacity of the memory that this thread of the system resized last.
    static CURRENT: Cell<(usize, usize, usize)> = const { Cell::new((0, 0, 0)) };
}

/// What a panic says that stands for a signal.
pub const BEYOND_THE_END: &str = "access beyond the end of the memory";

/// Panics where a program would get a signal: the bytes belong to memory whose end they lie beyond.
pub(crate) fn expect_mapped(address: usize, bytes: usize) {
    let (base, end, most) = CURRENT.get();
    assert!(
        !(base..most).contains(&address) || address + bytes <= end,
        "{BEYOND_THE_END}, at {:#x}",
        address - base
    );
}

const ALIGNMENT: usize = 4096;

impl Memory {
    /// Memory of length 0 that can grow to `capacity` bytes, rounded up to pages.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(ALIGNMENT);
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size.
        let words = unsafe { alloc_zeroed(layout) };
        let Some(words) = NonNull::new(words.cast()) else {
            handle_alloc_error(layout)
        };
        Self {
            words,
            capacity,
            length: AtomicU64::new(0),
        }
    }

    fn layout(capacity: usize) -> Layout {
        // `new` has rounded the capacity to pages, so that it is not too large when rounded again.
        Layout::from_size_align(capacity, ALIGNMENT).expect("less than the address space")
    }

    /// All words, also those beyond the length.
    #[must_use]
    pub fn words(&self) -> &[Word] {
        // SAFETY: the allocation has this many zeroed, aligned words, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.capacity / 8) }
    }

    /// Bytes that it can grow to.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Address of the first word.
    #[must_use]
    pub fn base(&self) -> usize {
        self.words.as_ptr() as usize
    }

    /// Bytes in use, like the length of a file.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length.load(Ordering::Relaxed)
    }

    /// Makes it longer or shorter, durably: an event of the recording. What is cut off becomes zero.
    ///
    /// # Panics
    ///
    /// If it is longer than the capacity.
    #[track_caller]
    pub fn set_length(&self, to: u64) {
        let from = self.length();
        if from != to {
            self.set_length_unseen(to);
            trace::length(from, to);
        }
    }

    /// The same behind the recorder's back.
    ///
    /// # Panics
    ///
    /// If it is longer than the capacity.
    pub fn set_length_unseen(&self, to: u64) {
        assert!(to <= self.capacity as u64);
        let from = self.length.swap(to, Ordering::Relaxed);
        let base = self.base();
        CURRENT.set((base, base + to as usize, base + self.capacity));
        if to < from {
            let cut = to.next_multiple_of(LINE as u64) as usize / 8..from as usize / 8;
            self.words()[cut]
                .iter()
                .for_each(|word| word.set_relaxed(0));
        }
    }

    /// Makes all that was stored so far durable, as a sync of a file does: an event of the recording.
    #[track_caller]
    pub fn sync(&self) {
        trace::synced();
    }

    /// Writes a word behind the recorder's back.
    #[inline]
    pub fn set(&self, word: usize, value: u64) {
        self.words()[word].set_relaxed(value);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; there are no references to it any more.
        unsafe { dealloc(self.words.as_ptr().cast(), Self::layout(self.capacity)) }
    }
}
