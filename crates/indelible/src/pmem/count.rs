//! Exact cost counters, per thread.
//!
//! With the `count` feature every flush, fence and non-temporal fill adds to counters of the calling thread, on every
//! medium: a `Process` pool counts the lines that a `Pmem` pool would have flushed. Without the feature the counting
//! functions are empty and the compiler removes them.

/// What one thread has spent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cache lines flushed (64 bytes each).
    pub lines_flushed: u64,
    /// Store fences.
    pub fences: u64,
    /// Cache lines written by non-temporal stores.
    pub lines_streamed: u64,
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            lines_flushed: self.lines_flushed - earlier.lines_flushed,
            fences: self.fences - earlier.fences,
            lines_streamed: self.lines_streamed - earlier.lines_streamed,
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.lines_flushed += other.lines_flushed;
        self.fences += other.fences;
        self.lines_streamed += other.lines_streamed;
    }
}

#[cfg(feature = "count")]
mod counters {
    use super::Counts;
    use std::cell::Cell;

    thread_local! {
        static COUNTS: Cell<Counts> = const {
            Cell::new(Counts { lines_flushed: 0, fences: 0, lines_streamed: 0 })
        };
    }

    #[inline]
    pub(in crate::pmem) fn add(change: impl FnOnce(&mut Counts)) {
        COUNTS.with(|cell| {
            let mut counts = cell.get();
            change(&mut counts);
            cell.set(counts);
        });
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
pub(super) fn flushed(lines: usize) {
    #[cfg(feature = "count")]
    counters::add(|counts| counts.lines_flushed += lines as u64);
    #[cfg(not(feature = "count"))]
    let _ = lines;
}

#[inline(always)]
pub(super) fn fenced() {
    #[cfg(feature = "count")]
    counters::add(|counts| counts.fences += 1);
}

#[inline(always)]
pub(super) fn streamed(lines: usize) {
    #[cfg(feature = "count")]
    counters::add(|counts| counts.lines_streamed += lines as u64);
    #[cfg(not(feature = "count"))]
    let _ = lines;
}
