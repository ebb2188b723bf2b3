//! Overflow buckets: which records of a group are in the stash, in DRAM.
//!
//! ```text
//! bucket   length (4) | capacity (4) | entries (4 each), to the end of the last line
//! entry    bits 0..19 stash slot · bits 20..27 fingerprint · bits 28..31 block of 16 slots that the home is in
//! ```
//!
//! The paper (section 4.1) has a chain of buckets per 16 slots. One per group takes less memory, and a long one is read in
//! one go.

use super::layout::GROUP_SLOTS;
use crate::index::simd::{Simd, TagLine};
use crate::sync::atomic::{AtomicU32, Ordering};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

const SLOT_BITS: u32 = 20;
const BLOCK_SHIFT: u32 = 28;
/// The bits of an entry that its key decides.
const TAG_MASK: u32 = !0 << SLOT_BITS;
/// Words before the entries.
const HEAD_WORDS: usize = 2;

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    #[inline(always)]
    pub(super) fn new(predicted: usize, key: u64, stash_slot: u32) -> Self {
        Self(Self::tag(predicted, key) | stash_slot)
    }

    #[inline(always)]
    fn tag(predicted: usize, key: u64) -> u32 {
        Self::block(predicted) << BLOCK_SHIFT | u32::from(fingerprint(key)) << SLOT_BITS
    }

    /// Which block of 16 slots of its group a home is in.
    #[inline(always)]
    fn block(predicted: usize) -> u32 {
        (predicted % GROUP_SLOTS / 16) as u32
    }

    pub(super) fn stash_slot(self) -> u32 {
        self.0 & ((1 << SLOT_BITS) - 1)
    }
}

/// The byte that stands for a key in an entry.
#[inline(always)]
fn fingerprint(key: u64) -> u8 {
    // The high bits of a product by an odd constant depend on all bits of the key (Fibonacci hashing).
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A bucket that lives for `'a`. It is changed under its group's lock, and read by everybody.
#[derive(Clone, Copy)]
pub(super) struct Bucket<'a> {
    words: NonNull<AtomicU32>,
    life: PhantomData<&'a ()>,
}

impl<'a> Bucket<'a> {
    /// The bucket at an address that [`address`](Self::address) returned; none at 0.
    ///
    /// # Safety
    ///
    /// It has not been freed, nor will it be for as long as `'a`.
    #[inline(always)]
    pub(super) unsafe fn at(address: u64) -> Option<Self> {
        let words = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))?;
        Some(Self {
            words,
            life: PhantomData,
        })
    }

    pub(super) fn address(self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    fn layout(capacity: usize) -> Layout {
        // Capacities are those of `grown`: whole lines, and no more than a node has slots.
        Layout::array::<[u32; 16]>((capacity + HEAD_WORDS) / 16)
            .and_then(|layout| layout.align_to(64))
            .unwrap_or(Layout::new::<[u32; 16]>())
    }

    /// A larger bucket: the entries of `old` and one more. To be freed by the caller.
    pub(super) fn grown(old: Option<Self>, entry: Entry) -> Self {
        let old = old.map_or(&[][..], Self::words);
        let capacity = (old.len() + 1 + HEAD_WORDS).next_power_of_two().max(16) - HEAD_WORDS;
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size, and zero is valid for all words.
        let Some(words) = NonNull::new(unsafe { alloc_zeroed(layout) }.cast::<AtomicU32>()) else {
            handle_alloc_error(layout)
        };
        let new = Self {
            words,
            life: PhantomData,
        };
        new.word(1).store(capacity as u32, Ordering::Relaxed);
        for old in old {
            new.push(Entry(old.load(Ordering::Relaxed)));
        }
        new.push(entry);
        new
    }

    /// # Safety
    ///
    /// Nobody uses the bucket any more.
    pub(super) unsafe fn free(self) {
        let layout = Self::layout(self.capacity());
        // SAFETY: allocated in `grown` with this layout; by the contract this is the last use.
        unsafe { dealloc(self.words.as_ptr().cast(), layout) }
    }

    #[inline(always)]
    fn word(self, index: usize) -> &'a AtomicU32 {
        debug_assert!(index < HEAD_WORDS);
        // SAFETY: every bucket has its head.
        unsafe { self.words.add(index).as_ref() }
    }

    fn capacity(self) -> usize {
        self.word(1).load(Ordering::Relaxed) as usize
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(self) -> usize {
        Self::layout(self.capacity()).size()
    }

    #[inline(always)]
    fn words(self) -> &'a [AtomicU32] {
        let length = self.word(0).load(Ordering::Acquire) as usize;
        // SAFETY: the length never exceeds the capacity, which never changes, and the bucket lives for `'a`.
        unsafe { std::slice::from_raw_parts(self.words.add(HEAD_WORDS).as_ptr(), length) }
    }

    pub(super) fn len(self) -> usize {
        self.words().len()
    }

    /// All entries.
    pub(super) fn entries(self) -> impl Iterator<Item = Entry> + 'a {
        self.words()
            .iter()
            .map(|word| Entry(word.load(Ordering::Relaxed)))
    }

    /// Its lines, and which of their words are entries.
    #[inline(always)]
    fn lines(self) -> impl Iterator<Item = (&'a TagLine, u32)> {
        let length = HEAD_WORDS + self.len();
        // SAFETY: buckets are whole lines, at least one, aligned as such, and all words of theirs are initialized.
        let lines = unsafe {
            std::slice::from_raw_parts(self.words.as_ptr().cast::<TagLine>(), length.div_ceil(16))
        };
        lines.iter().enumerate().map(move |(i, line)| {
            let in_use = (1 << (length - 16 * i).min(16)) - 1;
            let head = if i == 0 { (1 << HEAD_WORDS) - 1 } else { 0 };
            (line, in_use & !head)
        })
    }

    /// The first answer of `found` to a stash slot that may be the key's.
    #[inline(always)]
    pub(super) fn find<S: Simd, T>(
        self,
        predicted: usize,
        key: u64,
        found: impl Fn(u32) -> Option<T>,
    ) -> Option<T> {
        let tag = Entry::tag(predicted, key);
        for (line, in_use) in self.lines() {
            for entry in chosen(line, S::tagged(line, tag, TAG_MASK) & in_use) {
                if let Some(answer) = found(entry.stash_slot()) {
                    return Some(answer);
                }
            }
        }
        None
    }

    /// Tells `found` the stash slots of homes from `from` to `to`, and of others in the same blocks of 16 slots.
    #[inline(always)]
    pub(super) fn find_between<S: Simd>(self, from: usize, to: usize, mut found: impl FnMut(u32)) {
        let low = Entry::block(from) << BLOCK_SHIFT;
        let span = (Entry::block(to) << BLOCK_SHIFT | ((1 << BLOCK_SHIFT) - 1)) - low;
        for (line, in_use) in self.lines() {
            for entry in chosen(line, S::half_words_between(line, low, span) & in_use) {
                found(entry.stash_slot());
            }
        }
    }

    /// Adds an entry, if there is room. The group's lock is held.
    pub(super) fn push(self, entry: Entry) -> bool {
        let length = self.words().len();
        if length == self.capacity() {
            return false;
        }
        // SAFETY: below the capacity.
        unsafe { self.words.add(HEAD_WORDS + length).as_ref() }.store(entry.0, Ordering::Relaxed);
        self.word(0).store(length as u32 + 1, Ordering::Release);
        true
    }

    /// Takes out the entry of a stash slot. The group's lock is held.
    pub(super) fn remove(self, stash_slot: u32) {
        let words = self.words();
        let entry = words
            .iter()
            .find(|word| Entry(word.load(Ordering::Relaxed)).stash_slot() == stash_slot);
        if let (Some(entry), Some(last)) = (entry, words.last()) {
            entry.store(last.load(Ordering::Relaxed), Ordering::Relaxed);
            self.word(0)
                .store(words.len() as u32 - 1, Ordering::Release);
        }
    }
}

/// The entries of a line whose bits are set.
#[inline(always)]
fn chosen(line: &TagLine, mut bits: u32) -> impl Iterator<Item = Entry> {
    std::iter::from_fn(move || {
        let word = line.0.get(bits.trailing_zeros() as usize)?;
        bits &= bits - 1;
        Some(Entry(word.load(Ordering::Relaxed)))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::index::simd::Plain;

    #[test]
    fn buckets_grow_and_remember_all_that_is_not_taken_out() {
        let mut bucket = None;
        let key = |slot: u32| u64::from(slot) * 977;
        for slot in 0..200 {
            let entry = Entry::new(slot as usize, key(slot), slot);
            if bucket.is_none_or(|bucket: Bucket<'_>| !bucket.push(entry)) {
                let grown = Bucket::grown(bucket, entry);
                if let Some(old) = bucket.replace(grown) {
                    // SAFETY: replaced, and nobody else has it.
                    unsafe { old.free() }
                }
            }
        }
        let bucket = bucket.unwrap();
        for slot in (0..200).step_by(3) {
            bucket.remove(slot);
        }
        for slot in 0..200 {
            let same = |found| (found == slot).then_some(());
            let found = bucket.find::<Plain, _>(slot as usize, key(slot), same);
            assert_eq!(found.is_some(), slot % 3 != 0);
        }
        // Numbers of slots are also their homes here, of which those of a block and a group are the same.
        for (from, to) in [(0, 0), (3, 20), (16, GROUP_SLOTS - 1), (0, GROUP_SLOTS - 1)] {
            let mut found = Vec::new();
            bucket.find_between::<Plain>(from, to, |slot| found.push(slot));
            found.sort_unstable();
            let is_between = |slot: &u32| {
                let block = *slot as usize % GROUP_SLOTS / 16;
                !slot.is_multiple_of(3) && (from / 16..=to / 16).contains(&block)
            };
            assert!(found.into_iter().eq((0..200).filter(is_between)));
        }
        assert_eq!(bucket.len(), bucket.entries().count());
        // SAFETY: nobody else has it.
        unsafe { bucket.free() }
    }
}
