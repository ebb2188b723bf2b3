//! The records of a leaf in the order of their keys, for ranges.

use super::blobs::Blobs;
use super::inner::{bits_of_first, head_of};
use super::layout::{
    CommitWord, HEADER_WORDS, LENGTHS_BYTES, LONG_KEY_BYTES, Lengths, PLACES, REFERENCE_BYTES,
    Reference, SLOTS,
};
use crate::engines::{Buffered, BufferedPart, LINE_BYTES, Line, MOST_READ_AHEAD};
use crate::kernels::{Kernel, MOST_WORDS_RANKED, RankWords, Simd};
use crate::pool::Offset;
use crate::{Error, Result};
use std::ops::Range;

/// Bytes in front of the heap, which a copy of a leaf leaves out.
const HEAP: usize = 8 * HEADER_WORDS;

/// The bits of a word that is ranked which are not those of the number of its record.
const TEXT_BITS: u64 = !31;

const _: () = assert!(SLOTS <= MOST_WORDS_RANKED && MOST_WORDS_RANKED as u64 <= !TEXT_BITS);

/// Bytes of a key that the text bits have whole.
const FIRST_BYTES: usize = 7;

/// A copy of a leaf, which is a valid one: its header, and its heap with a line behind it.
#[derive(Clone, Copy)]
pub(super) struct LeafCopy<'a> {
    pub(super) offset: Offset,
    pub(super) header: &'a [u64; HEADER_WORDS],
    pub(super) heap: &'a [u8],
}

impl<'a> LeafCopy<'a> {
    fn word(&self) -> CommitWord {
        CommitWord(self.header[0])
    }

    fn damaged(&self, what: &str) -> Error {
        Error::Damaged(format!("leaf {:#x} {what}", self.offset))
    }

    pub(super) fn displaced(&self) -> Error {
        self.damaged("has a key that does not belong there")
    }

    /// The prefix of the keys, which is the begin of the low key. The caller is pinned.
    #[inline(always)]
    pub(super) fn prefix(&self, blobs: &'a Blobs) -> Result<&'a [u8]> {
        let word = self.word();
        let low = self.heap[..self.heap.len() - LINE_BYTES].get(..word.low_bytes());
        let low = match low {
            Some(reference) if word.low_is_blob() => {
                Some(blobs.bytes(Reference::from_bytes(reference)))
            }
            low => low,
        };
        let prefix = low.and_then(|low| low.get(..word.prefix()));
        prefix.ok_or_else(|| self.damaged("has a prefix that is longer than its low key"))
    }
}

/// The records of a leaf in the order of their keys.
pub(super) struct Ranked<'a> {
    leaf: LeafCopy<'a>,
    pub(super) prefix: &'a [u8],
    blobs: &'a Blobs,
    /// In the order of the slots. Of a long key, what lies in the leaf is its hash and the reference, of a long value the reference.
    records: [Buffered; SLOTS],
    /// Which of them have a long key, and which a long value.
    long_keys: u32,
    long_values: u32,
    /// In the order of keys: some bytes of a key, and the number of its record.
    order: [u64; MOST_WORDS_RANKED],
    /// The records in the order of keys.
    sorted: [Buffered; SLOTS],
    /// Which of those are wanted.
    wanted: Range<usize>,
}

/// The number of a record in a word of the order.
#[inline(always)]
fn number_in(word: u64) -> usize {
    // Numbers are below `SLOTS`; the compiler does not know that.
    ((word & !TEXT_BITS) as usize).min(SLOTS - 1)
}

#[inline(always)]
fn part(from: usize, bytes: usize) -> BufferedPart {
    // A leaf has 2048 bytes, and what is read ahead of long keys and values is far below 4 GiB.
    BufferedPart {
        from: from as u32,
        bytes: bytes as u32,
    }
}

/// Ranks the records of a leaf.
pub(super) struct Rank<'a, 'r>(pub(super) &'r mut Ranked<'a>);

impl Kernel for Rank<'_, '_> {
    type Out = Result<()>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Result<()> {
        let ranked = self.0;
        ranked.take()?;
        ranked.rank::<S>()
    }
}

impl<'a> Ranked<'a> {
    /// No records yet.
    #[inline(always)]
    pub(super) fn of(leaf: LeafCopy<'a>, prefix: &'a [u8], blobs: &'a Blobs) -> Self {
        Self {
            leaf,
            prefix,
            blobs,
            records: [Buffered::default(); SLOTS],
            long_keys: 0,
            long_values: 0,
            order: [0; MOST_WORDS_RANKED],
            sorted: [Buffered::default(); SLOTS],
            wanted: 0..0,
        }
    }

    /// Finds the records, and puts the first bytes of each behind the prefix into the order.
    #[inline(always)]
    fn take(&mut self) -> Result<()> {
        let (heap, word) = (self.leaf.heap, self.leaf.word());
        let mut places = [0; 32];
        for (to, word) in places
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(&self.leaf.header[PLACES..])
        {
            *to = word.to_ne_bytes();
        }
        let begin = 8 * word.heap_begin();
        let most = HEAP + heap.len() - LINE_BYTES;
        let mut slots = word.slots();
        let (mut count, mut outside) = (0, 0);
        let (mut any, mut every) = (Lengths::NONE, Lengths::ALL);
        while slots != 0 {
            let at = 8 * usize::from(places[slots.trailing_zeros() as usize % 32]);
            slots &= slots - 1;
            let words = heap.get(at.wrapping_sub(HEAP)..);
            let Some(words) = words.and_then(|rest| rest.first_chunk::<16>()) else {
                return Err(self.misplaced());
            };
            let (lengths, text) = words.split_first_chunk().expect("16 bytes have 4");
            let lengths = Lengths::of_bytes(*lengths);
            (any, every) = (any.or(lengths), every.and(lengths));
            let (key, value) = (lengths.key(), lengths.value());
            let end = at + 8 * lengths.words();
            // Below zero if the record does not lie in the heap.
            outside |= at.wrapping_sub(begin) | most.wrapping_sub(end);
            let record = Buffered {
                rest: part(at + LENGTHS_BYTES - HEAP, key),
                value: part(end - value - HEAP, value),
            };
            let head =
                u64::from_be_bytes(*text.first_chunk().expect("8 bytes")) & bits_of_first(key);
            self.records[count] = record;
            self.order[count] = head & TEXT_BITS | count as u64;
            count += 1;
        }
        self.wanted = 0..count;
        if outside > isize::MAX as usize || !every.is_marked() {
            return Err(self.misplaced());
        }
        if any.key_is_blob() || any.value_is_blob() {
            self.take_long()?;
        }
        Ok(())
    }

    /// Leaves of long keys their hashes and references, and takes their first bytes from where they lie.
    #[cold]
    #[inline(never)]
    fn take_long(&mut self) -> Result<()> {
        for number in self.wanted.clone() {
            let Buffered { rest, value } = self.records[number];
            let lengths = self.leaf.heap[..rest.from as usize].last_chunk();
            let lengths = Lengths::of_bytes(lengths.copied().unwrap_or_default());
            if lengths.value_is_blob() {
                self.long_values |= 1 << number;
                if value.bytes as usize != REFERENCE_BYTES {
                    return Err(self.misplaced());
                }
            }
            if !lengths.key_is_blob() {
                continue;
            }
            self.long_keys |= 1 << number;
            let Some(head) = rest.bytes.checked_sub(LONG_KEY_BYTES as u32) else {
                return Err(self.misplaced());
            };
            let rest = &mut self.records[number].rest;
            (rest.from, rest.bytes) = (rest.from + head, LONG_KEY_BYTES as u32);
            let key = self.blobs.bytes(self.reference(self.records[number].rest));
            let Some(rest) = key.strip_prefix(self.prefix) else {
                return Err(self.leaf.damaged("has a key without its prefix"));
            };
            self.order[number] = head_of(rest) & TEXT_BITS | number as u64;
        }
        Ok(())
    }

    #[cold]
    fn misplaced(&self) -> Error {
        self.leaf.damaged("has a record that does not lie in it")
    }

    /// Ranks the records by their first bytes, without a branch that depends on how two keys compare, and sorts those that are equal there.
    #[inline(always)]
    fn rank<S: Simd>(&mut self) -> Result<()> {
        let (words, count) = (self.order, self.wanted.end.min(SLOTS));
        let words = &words;
        let ranks = RankWords { words, count }.run::<S>();
        for at in 0..count {
            // Ranks are below that; the compiler does not know it.
            let rank = (ranks[at] as usize).min(SLOTS - 1);
            self.order[rank] = words[at];
            self.sorted[rank] = self.records[at];
        }
        let is_equal = |order: &[u64], at: usize| (order[at - 1] ^ order[at]) & TEXT_BITS == 0;
        let mut is_any_equal = false;
        for at in 1..count {
            is_any_equal |= is_equal(&self.order, at);
        }
        if !is_any_equal {
            return Ok(());
        }
        let mut from = 0;
        for at in 1..=count {
            if at == count || !is_equal(&self.order, at) {
                if at - from > 1 {
                    self.sort_equal(from..at)?;
                }
                from = at;
            }
        }
        Ok(())
    }

    /// Sorts records of which the first bytes are equal by the 15 bytes behind them.
    fn sort_equal(&mut self, equal: Range<usize>) -> Result<()> {
        let mut words = [0; SLOTS];
        let words = &mut words[..equal.len()];
        for (word, &first) in words.iter_mut().zip(&self.order[equal.clone()]) {
            let number = number_in(first);
            let high = self.head(number, FIRST_BYTES);
            let low = self.head(number, FIRST_BYTES + 8);
            *word = u128::from(high) << 64 | u128::from(low & !0xff) | number as u128;
        }
        // They come in the order of their slots, and often that is the order of the keys: a leaf is sorted when it is made.
        words.sort_unstable();
        let mut is_any_equal = false;
        for pair in words.windows(2) {
            is_any_equal |= pair[0] ^ pair[1] <= 0xff;
        }
        for (to, &word) in self.order[equal.clone()].iter_mut().zip(&*words) {
            *to = word as u64 & 0xff;
        }
        if is_any_equal {
            self.sort(equal.clone())?;
        }
        for at in equal {
            self.sorted[at] = self.records[number_in(self.order[at])];
        }
        Ok(())
    }

    /// Sorts some records by all bytes of their keys.
    #[cold]
    fn sort(&mut self, equal: Range<usize>) -> Result<()> {
        let mut order = self.order;
        let order = &mut order[equal.clone()];
        order.sort_unstable_by_key(|&word| self.rest(number_in(word)));
        let rest = |word: u64| self.rest(number_in(word));
        if order.windows(2).any(|pair| rest(pair[0]) == rest(pair[1])) {
            return Err(self.leaf.damaged("has a key twice"));
        }
        self.order[equal].copy_from_slice(order);
        Ok(())
    }

    /// The first 8 bytes of a key behind the prefix and `skipped` bytes.
    #[inline(always)]
    fn head(&self, number: usize, skipped: usize) -> u64 {
        if self.long_keys >> number & 1 != 0 {
            return head_of(self.rest(number).get(skipped..).unwrap_or_default());
        }
        let BufferedPart { from, bytes } = self.records[number].rest;
        let left = (bytes as usize).saturating_sub(skipped);
        let words = &self.leaf.heap[from as usize..];
        let word = words
            .get(skipped..skipped + 8)
            .and_then(|word| word.first_chunk());
        // What lies behind a short key does not count.
        u64::from_be_bytes(word.copied().unwrap_or_default()) & bits_of_first(left)
    }

    /// The reference at the end of some bytes of the heap.
    fn reference(&self, part: BufferedPart) -> Reference {
        let bytes = part.of(self.leaf.heap);
        Reference::from_bytes(&bytes[bytes.len() - REFERENCE_BYTES..])
    }

    /// What a key has behind the prefix.
    #[inline(always)]
    fn rest(&self, number: usize) -> &'a [u8] {
        let rest = self.records[number].rest;
        if self.long_keys >> number & 1 != 0 {
            let key = self.blobs.bytes(self.reference(rest));
            return key.get(self.prefix.len()..).unwrap_or_default();
        }
        rest.of(self.leaf.heap)
    }

    /// What the key of the record at `at` in the order has behind the prefix.
    #[inline(always)]
    fn rest_at(&self, at: usize) -> &'a [u8] {
        if self.long_keys != 0 {
            return self.rest(number_in(self.order[at]));
        }
        self.sorted[at].rest.of(self.leaf.heap)
    }

    /// What the lowest key that is wanted and the highest one have behind the prefix.
    #[inline(always)]
    pub(super) fn ends(&self) -> Option<[&'a [u8]; 2]> {
        if self.wanted.is_empty() {
            return None;
        }
        Some([
            self.rest_at(self.wanted.start),
            self.rest_at(self.wanted.end - 1),
        ])
    }

    /// Whether all keys are from `low` up to `high`.
    pub(super) fn is_between(&self, low: &'a [u8], high: Option<&'a [u8]>) -> bool {
        self.ends().is_none_or(|[first, last]| {
            let rest = |end: &'a [u8]| end.strip_prefix(self.prefix);
            rest(low).is_some_and(|low| low <= first)
                && high.is_none_or(|high| rest(high).is_some_and(|high| last < high))
        })
    }

    /// Drops the records at both ends of the order that are not wanted.
    pub(super) fn trim(
        &mut self,
        is_from_low: impl Fn([&[u8]; 2]) -> bool,
        is_up_to_high: impl Fn([&[u8]; 2]) -> bool,
    ) {
        let key = |at: usize| [self.prefix, self.rest_at(at)];
        let Range { mut start, mut end } = self.wanted.clone();
        while start < end && !is_from_low(key(start)) {
            start += 1;
        }
        while start < end && !is_up_to_high(key(end - 1)) {
            end -= 1;
        }
        self.wanted = start..end;
    }

    /// Whether long keys, or values that are asked for, have to be fetched from where they lie.
    pub(super) fn is_long(&self, with_values: bool) -> bool {
        self.long_keys | if with_values { self.long_values } else { 0 } != 0
    }

    /// The records that are wanted, in the order of keys.
    #[inline(always)]
    pub(super) fn records(&self) -> &[Buffered] {
        &self.sorted[self.wanted.clone()]
    }

    /// [`records`](Self::records) where some keys or values are long, and the lines behind the heap in which those lie then.
    pub(super) fn long_records(&self, with_values: bool) -> (Vec<Buffered>, Vec<Line>) {
        let mut lines = Vec::new();
        let mut read_ahead = 0;
        let mut add = |bytes: &[u8]| {
            let from = self.leaf.heap.len() + LINE_BYTES * lines.len();
            lines.extend(bytes.chunks(LINE_BYTES).map(|part| {
                let mut line = [0; LINE_BYTES];
                line[..part.len()].copy_from_slice(part);
                line
            }));
            part(from, bytes.len())
        };
        let mut records = Vec::with_capacity(SLOTS);
        for at in self.wanted.clone() {
            let number = number_in(self.order[at]);
            let Buffered {
                mut rest,
                mut value,
            } = self.records[number];
            if self.long_keys >> number & 1 != 0 {
                rest = add(self.rest(number));
            }
            if with_values && self.long_values >> number & 1 != 0 {
                let blob = self.reference(value);
                let is_read = blob.bytes <= MOST_READ_AHEAD[0]
                    && read_ahead + blob.bytes <= MOST_READ_AHEAD[1];
                value = BufferedPart::LATER;
                if is_read {
                    read_ahead += blob.bytes;
                    value = add(self.blobs.bytes(blob));
                }
            }
            records.push(Buffered { rest, value });
        }
        lines.push([0; LINE_BYTES]);
        (records, lines)
    }
}
