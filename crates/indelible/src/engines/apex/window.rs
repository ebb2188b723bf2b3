//! The slots of the primary array that may hold the record of a key.
//!
//! A *line pair* is two neighbouring cache lines, 8 slots, which the processor fetches together. A *window* is two
//! neighbouring line pairs, 16 slots: the line pair of the predicted slot of a key, and the next one, or at the end of
//! a group the one before. Most records lie in the line pair of their predicted slot, so a search looks there first and
//! reads the other half of the window only if that line pair has displaced records.
//!
//! A comparison gives a mask with two bits for each slot, of which the even one stands for the key and the odd one,
//! always 0, for the value.

use super::data::DataNode;
use super::layout::{LINE_PAIR_SLOTS, WINDOW_SLOTS, line_pair_of, window_of};
use crate::kernels::{KeyLine, Simd, prefetch};
use std::sync::atomic::Ordering;

/// The bits of a mask that stand for keys, for the 16 words of a line pair.
const KEY_WORDS: u32 = 0x5555;

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

    /// Which slots of the line pair have this key: a mask with two bits for each slot.
    #[inline(always)]
    pub(super) fn equal<S: Simd>(self, key: u64) -> u32 {
        S::equal_in_pair(self.lines, key) & KEY_WORDS
    }

    /// The value in the slot of the lowest bit of `mask`, which is not 0.
    #[inline(always)]
    pub(super) fn value(self, mask: u32) -> u64 {
        let word = (mask.trailing_zeros() + 1) as usize % (LINE_PAIR_SLOTS * 2);
        self.lines[word / 8].0[word % 8].load(Ordering::Relaxed)
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

    /// Which slots of one half have this key: a mask with two bits for each slot of the window.
    #[inline(always)]
    pub(super) fn equal_in_half<S: Simd>(self, half: usize, key: u64) -> u32 {
        self.line_pair(half).equal::<S>(key) << (half * 16)
    }

    /// The slot of the primary array that the lowest bit of `mask` stands for.
    #[inline(always)]
    pub(super) fn slot(self, mask: u32) -> usize {
        self.first + mask.trailing_zeros() as usize / 2
    }

    /// Prefetches one half of the window.
    #[inline(always)]
    pub(super) fn prefetch_half(self, half: usize) {
        for line in &self.lines[half] {
            prefetch(std::ptr::from_ref(line));
        }
    }
}
