//! Overflow buckets: which records of a group are in the stash. They are in DRAM.
//!
//! ```text
//! bucket   length (4) | capacity (4) | entries (4 each), to the end of the last line
//! entry    bits 0..19 stash slot · bits 20..27 fingerprint · bits 28..31 which 16 slots of the group the predicted slot is in
//! ```
//!
//! A search compares the fingerprint of its key, and the 16 slots that its predicted slot is in, with all entries of
//! the bucket, 16 entries to a line, and reads only the stash slots whose entries are equal in both. A range reads the
//! stash slots of the entries whose predicted slots it covers. A bucket never changes its address or its capacity: a
//! full one is replaced by a larger one and freed with its node, since readers may be searching it.
//!
//! The paper (section 4.1) has a chain of buckets for each 16 slots. One bucket per group of 256 slots takes less
//! memory, and a long one is read as a sequence of lines, which the processor prefetches.

use super::layout::GROUP_SLOTS;
use crate::concurrency::sync::atomic::{AtomicU32, Ordering};
use crate::kernels::{Simd, TagLine};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// Bits of an entry that hold the number of a stash slot.
const SLOT_BITS: u32 = 20;
/// The lowest of the bits of an entry that say which 16 slots of the group the predicted slot is in.
const BLOCK_SHIFT: u32 = 28;
/// The bits of an entry that depend on the key: fingerprint and predicted slot.
const TAG_MASK: u32 = !0 << SLOT_BITS;
/// Words of a bucket before the entries: length and capacity.
const HEAD_WORDS: usize = 2;

/// One entry: the stash slot of a record, and what of its key an entry remembers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u32);

impl Entry {
    /// The entry for the record of `key` in a stash slot.
    #[inline(always)]
    pub(super) fn new(predicted: usize, key: u64, stash_slot: u32) -> Self {
        assert!(stash_slot < 1 << SLOT_BITS, "data I5: no such stash slot");
        Self(Self::tag(predicted, key) | stash_slot)
    }

    /// The bits of an entry that depend on the key.
    #[inline(always)]
    fn tag(predicted: usize, key: u64) -> u32 {
        Self::block(predicted) << BLOCK_SHIFT | u32::from(fingerprint(key)) << SLOT_BITS
    }

    /// Which 16 slots of its group a predicted slot is in.
    #[inline(always)]
    fn block(predicted: usize) -> u32 {
        (predicted % GROUP_SLOTS / 16) as u32
    }

    /// The stash slot of the record.
    pub(super) fn stash_slot(self) -> u32 {
        self.0 & ((1 << SLOT_BITS) - 1)
    }
}

/// The byte by which an entry tells keys apart.
#[inline(always)]
fn fingerprint(key: u64) -> u8 {
    // The high bits of a product with an odd constant depend on all bits of the key (Fibonacci hashing).
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// An overflow bucket that lives for `'a`. Writers change it under the lock of its group; readers read it without a
/// lock and validate the version afterwards.
#[derive(Clone, Copy)]
pub(super) struct Bucket<'a> {
    words: NonNull<AtomicU32>,
    life: PhantomData<&'a ()>,
}

impl<'a> Bucket<'a> {
    /// The bucket at an address that [`address`](Self::address) returned; `None` at 0.
    ///
    /// # Safety
    ///
    /// The bucket has not been freed, and is not freed during `'a`.
    #[inline(always)]
    pub(super) unsafe fn at(address: u64) -> Option<Self> {
        let words = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize))?;
        Some(Self {
            words,
            life: PhantomData,
        })
    }

    /// The address of the bucket, for a group word.
    pub(super) fn address(self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    fn layout(capacity: usize) -> Layout {
        // Capacities are those of `grown`: whole lines.
        Layout::array::<[u32; 16]>((capacity + HEAD_WORDS) / 16)
            .and_then(|layout| layout.align_to(64))
            .expect("data I5: a bucket has no more entries than a node has stash slots")
    }

    /// A larger bucket with the entries of `old` and one more. The caller frees `old`.
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
            let is_pushed = new.push(Entry(old.load(Ordering::Relaxed)));
            assert!(is_pushed, "data I5: a larger bucket has room");
        }
        let is_pushed = new.push(entry);
        assert!(is_pushed, "data I5: a larger bucket has room");
        new
    }

    /// Frees the bucket.
    ///
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
        assert!(index < HEAD_WORDS);
        // SAFETY: every bucket has its head, and `index` is one of its words.
        unsafe { self.words.add(index).as_ref() }
    }

    fn capacity(self) -> usize {
        self.word(1).load(Ordering::Relaxed) as usize
    }

    /// Bytes of DRAM that the bucket takes.
    pub(super) fn bytes(self) -> usize {
        Self::layout(self.capacity()).size()
    }

    /// The entries, as words.
    #[inline(always)]
    fn words(self) -> &'a [AtomicU32] {
        let length = self.word(0).load(Ordering::Acquire) as usize;
        // SAFETY: the length never exceeds the capacity, the capacity never changes, and the bucket lives for `'a`.
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

    /// The lines of the bucket, each with a mask of the words that are entries.
    #[inline(always)]
    fn lines(self) -> impl Iterator<Item = (&'a TagLine, u32)> {
        let length = HEAD_WORDS + self.len();
        // SAFETY: a bucket consists of whole lines, at least one, and is aligned to lines; `alloc_zeroed` initialized
        // all words.
        let lines = unsafe {
            std::slice::from_raw_parts(self.words.as_ptr().cast::<TagLine>(), length.div_ceil(16))
        };
        lines.iter().enumerate().map(move |(i, line)| {
            let in_use = (1 << (length - 16 * i).min(16)) - 1;
            let head = if i == 0 { (1 << HEAD_WORDS) - 1 } else { 0 };
            (line, in_use & !head)
        })
    }

    /// Asks `found` for each stash slot that may hold the record of `key`, and returns its first answer.
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

    /// Passes to `found` the stash slots of records with a predicted slot from `from` to `to`, and of a few more
    /// records whose predicted slots are in the same 16 slots as `from` or `to`.
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

    /// Appends an entry; `false` if the bucket is full. The group's lock is held.
    pub(super) fn push(self, entry: Entry) -> bool {
        let length = self.words().len();
        if length == self.capacity() {
            return false;
        }
        // SAFETY: `length` is below the capacity, so the word belongs to the bucket.
        unsafe { self.words.add(HEAD_WORDS + length).as_ref() }.store(entry.0, Ordering::Relaxed);
        self.word(0).store(length as u32 + 1, Ordering::Release);
        true
    }

    /// Removes the entry of a stash slot, and puts the last entry in its place; `false` if there is no such entry. The
    /// group's lock is held.
    #[must_use]
    pub(super) fn remove(self, stash_slot: u32) -> bool {
        let words = self.words();
        let entry = words
            .iter()
            .find(|word| Entry(word.load(Ordering::Relaxed)).stash_slot() == stash_slot);
        let (Some(entry), Some(last)) = (entry, words.last()) else {
            return false;
        };
        entry.store(last.load(Ordering::Relaxed), Ordering::Relaxed);
        self.word(0)
            .store(words.len() as u32 - 1, Ordering::Release);
        true
    }
}

/// The entries of a line whose bits are set in `bits`.
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
    use crate::kernels::Plain;

    #[test]
    fn buckets_grow_and_remember_all_that_is_not_taken_out() {
        let mut bucket = None;
        let key = |slot: u32| u64::from(slot) * 977;
        for slot in 0..200 {
            let entry = Entry::new(slot as usize, key(slot), slot);
            if bucket.is_none_or(|bucket: Bucket<'_>| !bucket.push(entry)) {
                let grown = Bucket::grown(bucket, entry);
                if let Some(old) = bucket.replace(grown) {
                    // SAFETY: the larger bucket has replaced this one, and nobody else has it.
                    unsafe { old.free() }
                }
            }
        }
        let bucket = bucket.unwrap();
        for slot in (0..200).step_by(3) {
            assert!(bucket.remove(slot));
        }
        for slot in 0..200 {
            let same = |found| (found == slot).then_some(());
            let found = bucket.find::<Plain, _>(slot as usize, key(slot), same);
            assert_eq!(found.is_some(), slot % 3 != 0);
        }
        // In this test the number of a stash slot is also the predicted slot of its record.
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
        // SAFETY: nobody else has the bucket.
        unsafe { bucket.free() }
    }
}
