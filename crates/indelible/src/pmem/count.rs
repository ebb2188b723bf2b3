//! Exact cost counters, per thread.
//!
//! With the `count` feature every flush, fence and non-temporal fill adds to counters of the calling thread, on every
//! medium: a `Process` pool counts the lines that a `Pmem` pool would have flushed. Without the feature the counting
//! functions are empty and the compiler removes them.

use std::ops::Range;

/// What one thread has spent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Cache lines flushed (64 bytes each).
    pub lines_flushed: u64,
    /// Store fences.
    pub fences: u64,
    /// Cache lines written by non-temporal stores.
    pub lines_streamed: u64,
    /// Blocks of 256 bytes that the lines lie in, the unit in which Optane media write: between two fences, flushes
    /// of the same block one after the other count once.
    pub blocks_written: u64,
    /// Bytes of blocks taken from the pool.
    pub bytes_allocated: u64,
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            lines_flushed: self.lines_flushed - earlier.lines_flushed,
            fences: self.fences - earlier.fences,
            lines_streamed: self.lines_streamed - earlier.lines_streamed,
            blocks_written: self.blocks_written - earlier.blocks_written,
            bytes_allocated: self.bytes_allocated - earlier.bytes_allocated,
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.lines_flushed += other.lines_flushed;
        self.fences += other.fences;
        self.lines_streamed += other.lines_streamed;
        self.blocks_written += other.blocks_written;
        self.bytes_allocated += other.bytes_allocated;
    }
}

#[cfg(feature = "count")]
mod counters {
    use super::Counts;
    use crate::pmem::LINE;
    use std::cell::Cell;
    use std::ops::Range;

    const BLOCK: usize = 256;

    thread_local! {
        static COUNTS: Cell<Counts> = const {
            Cell::new(Counts { lines_flushed: 0, fences: 0, lines_streamed: 0, blocks_written: 0, bytes_allocated: 0 })
        };
        /// The number of the block written last, if no fence came since.
        static LAST_BLOCK: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    #[inline]
    pub(super) fn add(change: impl FnOnce(&mut Counts)) {
        COUNTS.with(|cell| {
            let mut counts = cell.get();
            change(&mut counts);
            cell.set(counts);
        });
    }

    /// The number of `lines`, whose blocks are counted.
    #[inline]
    pub(super) fn write(lines: &Range<usize>) -> u64 {
        if !lines.is_empty() {
            let (first, last) = (lines.start / BLOCK, (lines.end - 1) / BLOCK);
            let merged = LAST_BLOCK.replace(last) == first;
            add(|counts| counts.blocks_written += (last - first + 1 - usize::from(merged)) as u64);
        }
        (lines.len() / LINE) as u64
    }

    #[inline]
    pub(super) fn fence() {
        LAST_BLOCK.set(usize::MAX);
        add(|counts| counts.fences += 1);
    }

    pub(super) fn get() -> Counts {
        COUNTS.with(Cell::get)
    }
}

/// The counters of the calling thread; all zero without the `count` feature.
///
/// # Examples
///
/// ```
/// let before = indelible::pmem::count::here();
/// // ... work ...
/// let cost = indelible::pmem::count::here() - before;
/// println!("{} lines flushed", cost.lines_flushed);
/// ```
#[must_use]
pub fn here() -> Counts {
    #[cfg(feature = "count")]
    {
        counters::get()
    }
    #[cfg(not(feature = "count"))]
    {
        Counts::default()
    }
}

/// Whether this build counts.
#[must_use]
pub const fn enabled() -> bool {
    cfg!(feature = "count")
}

#[inline(always)]
pub(super) fn flushed(lines: &Range<usize>) {
    #[cfg(feature = "count")]
    {
        let written = counters::write(lines);
        counters::add(|counts| counts.lines_flushed += written);
    }
    #[cfg(not(feature = "count"))]
    let _ = lines;
}

#[inline(always)]
pub(super) fn fenced() {
    #[cfg(feature = "count")]
    counters::fence();
}

#[inline(always)]
pub(super) fn streamed(lines: &Range<usize>) {
    #[cfg(feature = "count")]
    {
        let written = counters::write(lines);
        counters::add(|counts| counts.lines_streamed += written);
    }
    #[cfg(not(feature = "count"))]
    let _ = lines;
}

#[inline(always)]
pub(crate) fn allocated(bytes: u64) {
    #[cfg(feature = "count")]
    counters::add(|counts| counts.bytes_allocated += bytes);
    #[cfg(not(feature = "count"))]
    let _ = bytes;
}
