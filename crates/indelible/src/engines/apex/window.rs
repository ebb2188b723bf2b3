//! The slots of the primary array that may hold the record of a key.
//!
//! A *line pair* is two neighbouring cache lines, 8 slots, which the processor fetches together. A *window* is two
//! neighbouring line pairs, 16 slots: the line pair of the predicted slot of a key, and the next one, or at the end of
//! a group the one before. Most records lie in the line pair of their predicted slot, so a search looks there first and
//! reads the other half of the window only if that line pair has displaced records.

use super::data::DataNode;
use super::layout::{LINE_PAIR_SLOTS, Slot, WINDOW_SLOTS, line_pair_of, window_of};
use crate::kernels::{KeyLine, Simd, prefetch};

/// A line pair, half a window.
#[derive(Clone, Copy)]
pub(super) struct LinePair<'a> {
    lines: &'a [KeyLine; 2],
}

impl<'a> LinePair<'a> {
    /// The line pair of the slot `predicted` in a node of the pool that is mapped at `base`.
    ///
    /// # Safety
    ///
    /// The conditions of [`Window::new`] hold.
    #[inline(always)]
    pub(super) unsafe fn new(base: *mut u8, data: &DataNode, predicted: usize) -> Self {
        let at = data.slot_at(line_pair_of(predicted)).get() as usize;
        // SAFETY: a line pair is half of a window, to which the conditions of `Window::new` apply.
        let lines = unsafe { &*base.add(at).cast_const().cast() };
        Self { lines }
    }

    /// Which slots of the line pair have this key; see [`Simd::with_key`].
    #[inline(always)]
    pub(super) fn equal<S: Simd>(self, key: u64) -> u32 {
        S::with_key(self.lines, key)
    }

    /// Which slots of the line pair have either key; see [`Simd::with_either_key`].
    #[inline(always)]
    pub(super) fn equal_to_either<S: Simd>(self, two: [u64; 2]) -> [u32; 2] {
        S::with_either_key(self.lines, two)
    }

    /// The value in the first slot of `slots`, a result of [`equal`](Self::equal) that is not 0.
    #[inline(always)]
    pub(super) fn value<S: Simd>(self, slots: u32) -> u64 {
        self.slot::<S>(slots).value.load()
    }

    /// The first slot of `slots`, a result of [`equal`](Self::equal) that is not 0.
    #[inline(always)]
    pub(super) fn slot<S: Simd>(self, slots: u32) -> &'a Slot {
        // SAFETY: `first_of` names one of the eight slots of the line pair. Both consist of words that are atomics.
        unsafe {
            &*std::ptr::from_ref(self.lines)
                .byte_add(S::first_of(slots))
                .cast()
        }
    }

    /// Prefetches the line pair.
    #[inline(always)]
    pub(super) fn prefetch(self) {
        for line in self.lines {
            prefetch(std::ptr::from_ref(line));
        }
    }
}

/// The 16 slots of the primary array that may hold the record of a key.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub(super) first: usize,
    lines: &'a [[KeyLine; 2]; WINDOW_SLOTS / LINE_PAIR_SLOTS],
}

impl<'a> Window<'a> {
    /// The window of the slot `predicted` in a node of the pool that is mapped at `base`.
    ///
    /// # Safety
    ///
    /// `data` mirrors a block in the mapping at `base`, which lives as long as `'a`, and the model of `data` predicted
    /// `predicted`.
    #[inline(always)]
    pub(super) unsafe fn new(base: *mut u8, data: &DataNode, predicted: usize) -> Self {
        let first = window_of(predicted);
        // SAFETY: the model predicted the slot, so its window lies in the primary array (data I7), and `window_of`
        // begins at a line pair. Lines consist of atomics, valid for every bit pattern.
        let lines = unsafe {
            &*base
                .add(data.slot_at(first).get() as usize)
                .cast_const()
                .cast()
        };
        Self { first, lines }
    }

    /// Which half of the window is the line pair of the predicted slot.
    #[inline(always)]
    pub(super) fn predicted_half(self, predicted: usize) -> usize {
        // The mask changes nothing: it tells the compiler that there are two halves.
        ((predicted - self.first) / LINE_PAIR_SLOTS) & 1
    }

    /// The line pair that is one half of the window.
    #[inline(always)]
    pub(super) fn line_pair(self, half: usize) -> LinePair<'a> {
        let lines = &self.lines[half];
        LinePair { lines }
    }

    /// Prefetches one half of the window.
    #[inline(always)]
    pub(super) fn prefetch_half(self, half: usize) {
        self.line_pair(half).prefetch();
    }
}
