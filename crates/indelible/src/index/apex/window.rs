//! Where the record of a key may lie in the primary array: two pairs of lines, of which the first is most often enough.

use super::data::DataNode;
use super::layout::{LINE_PAIR_SLOTS, WINDOW_SLOTS, line_pair_of, window_of};
use crate::index::simd::{KeyLine, Simd, prefetch};
use std::sync::atomic::Ordering;

/// Of the words of a pair of lines, those that are keys.
const EVEN: u32 = 0x5555;

/// A pair of lines, half a window. The one of the home is where most keys are, and all that most lookups need.
#[derive(Clone, Copy)]
pub(super) struct LinePair<'a> {
    lines: &'a [KeyLine; 2],
}

impl<'a> LinePair<'a> {
    /// The pair of `home` in a node of the pool that is mapped at `base`.
    ///
    /// # Safety
    ///
    /// As for [`Window::new`].
    #[inline(always)]
    pub(super) unsafe fn new(base: *mut u8, data: &DataNode, predicted: usize) -> Self {
        let at = data.slot_at(line_pair_of(predicted)) as usize;
        // SAFETY: the pair is a half of the window, to which `Window::new` applies.
        let lines = unsafe { &*base.add(at).cast_const().cast() };
        Self { lines }
    }

    /// Which of its slots have this key: the even bits, two for each slot.
    #[inline(always)]
    pub(super) fn equal<S: Simd>(self, key: u64) -> u32 {
        S::equal_in_pair(self.lines, key) & EVEN
    }

    /// The value in the slot of the lowest bit of such a mask.
    #[inline(always)]
    pub(super) fn value(self, mask: u32) -> u64 {
        let word = (mask.trailing_zeros() + 1) as usize % (LINE_PAIR_SLOTS * 2);
        self.lines[word / 8].0[word % 8].load(Ordering::Relaxed)
    }
}

/// The window of a key: the slots of the primary array that may hold it.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub(super) first: usize,
    lines: &'a [[KeyLine; 2]; WINDOW_SLOTS / LINE_PAIR_SLOTS],
}

impl<'a> Window<'a> {
    /// The window of `home` in a node of the pool that is mapped at `base`.
    ///
    /// # Safety
    ///
    /// `data` lies in the mapping at `base`, which lives as long as `'a`, and its model predicted `home`.
    #[inline(always)]
    pub(super) unsafe fn new(base: *mut u8, data: &DataNode, predicted: usize) -> Self {
        let first = window_of(predicted);
        // SAFETY: by the contract the window lies, whole and aligned to lines, in the primary array: `window_of` says why.
        // Lines are atomics.
        let lines = unsafe { &*base.add(data.slot_at(first) as usize).cast_const().cast() };
        Self { first, lines }
    }

    /// The half of the window that is the pair of lines of its home.
    #[inline(always)]
    pub(super) fn predicted_half(self, predicted: usize) -> usize {
        // The mask changes nothing; it tells the compiler.
        ((predicted - self.first) / LINE_PAIR_SLOTS) & 1
    }

    /// One half of the window.
    #[inline(always)]
    pub(super) fn pair(self, half: usize) -> LinePair<'a> {
        let lines = &self.lines[half];
        LinePair { lines }
    }

    /// Which slots of one half have this key: the even bits, two for each slot of the window.
    #[inline(always)]
    pub(super) fn half<S: Simd>(self, half: usize, key: u64) -> u32 {
        self.pair(half).equal::<S>(key) << (half * 16)
    }

    /// The slot of the primary array of the lowest bit of such a mask.
    #[inline(always)]
    pub(super) fn slot(self, mask: u32) -> usize {
        self.first + mask.trailing_zeros() as usize / 2
    }

    /// Asks the caches for one half of the window.
    #[inline(always)]
    pub(super) fn prefetch_half(self, half: usize) {
        for line in &self.lines[half] {
            prefetch(std::ptr::from_ref(line));
        }
    }
}
