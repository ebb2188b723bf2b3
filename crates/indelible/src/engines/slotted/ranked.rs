//! The records of a leaf in the order of their keys, for ranges.
//!
//! If a range has kept the order of the leaf, the records are found in that order, and no keys are compared, see [`orders`](super::orders).
//!
//! Otherwise they are found in the order of their slots. If their keys ascend in that order, as in a leaf that a structure change has made, that is all.
//! If not, they are ranked by 59 bits behind what all of them begin with, and those that are equal there are sorted by whole keys.

use super::Bug;
use super::blobs::Blobs;
use super::inner::bits_of_first;
use super::layout::{
    CommitWord, HEADER_WORDS, LENGTHS_BYTES, LONG_KEY_BYTES, Lengths, MAX_WORDS, PLACES,
    REFERENCE_BYTES, Reference, SLOTS,
};
use super::orders::{Numbers, order_of};
use crate::engines::{Buffered, BufferedPart, LINE_BYTES, Line, MOST_READ_AHEAD};
use crate::kernels::{Kernel, RankWords, Simd};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::{Error, Result};
use std::cmp::Ordering;
use std::ops::Range;

/// Bytes in front of the heap, which a copy of a leaf leaves out.
const HEAP: usize = 8 * HEADER_WORDS;

/// The bits of a word that is ranked which are not those of the number of its record.
const TEXT_BITS: u64 = !31;

/// Words that are ranked at most: the slots of a leaf, with and without the feature `small`.
const MOST_WORDS_RANKED: usize = 24;

const _: () = assert!(SLOTS <= MOST_WORDS_RANKED && MOST_WORDS_RANKED as u64 <= !TEXT_BITS);

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
    /// Of a long key, what lies in the leaf is its hash and the reference, of a long value the reference.
    records: [Buffered; SLOTS],
    /// Which of them have a long key, and which a long value.
    long_keys: u32,
    long_values: u32,
    /// Which of the records are wanted.
    wanted: Range<usize>,
    /// The order of the keys that was kept, 0 if none was.
    order: u64,
    /// How many records there are.
    count: usize,
}

#[inline(always)]
fn part(from: usize, bytes: usize) -> BufferedPart {
    // A leaf has 2048 bytes, and what is read ahead of long keys and values is far below 4 GiB.
    BufferedPart {
        from: from as u32,
        bytes: bytes as u32,
    }
}

/// Where the record at `at`, counted from the begin of its leaf, lies in the heap.
#[inline(always)]
fn record_at(at: usize, lengths: Lengths) -> Buffered {
    let (key, value) = (lengths.key(), lengths.value());
    Buffered {
        rest: part(at + LENGTHS_BYTES - HEAP, key),
        value: part(at + 8 * lengths.words() - value - HEAP, value),
    }
}

/// The places of the slots in use, in the order of the slots.
#[inline(never)]
fn places_in_use(places: &[u8; 32], mut slots: u32) -> [u8; 32] {
    let mut in_use = [0; 32];
    for place in &mut in_use[..SLOTS] {
        *place = places[slots.trailing_zeros() as usize % 32];
        slots &= slots.wrapping_sub(1);
    }
    in_use
}

/// Puts the records of a leaf in order.
pub(super) struct Rank<'a, 'r>(pub(super) &'r mut Ranked<'a>);

impl Kernel for Rank<'_, '_> {
    type Out = Result<()>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Result<()> {
        self.0.take::<S>()
    }
}

impl<'a> Ranked<'a> {
    /// No records yet. `order` is that of the leaf, or 0, see [`orders`](super::orders).
    #[inline(always)]
    pub(super) fn of(leaf: LeafCopy<'a>, prefix: &'a [u8], blobs: &'a Blobs, order: u64) -> Self {
        Self {
            leaf,
            prefix,
            blobs,
            records: [Buffered::default(); SLOTS],
            long_keys: 0,
            long_values: 0,
            wanted: 0..0,
            order,
            count: 0,
        }
    }

    /// The places of all slots, as bytes.
    #[inline(always)]
    fn places(&self) -> [u8; 32] {
        let mut places = [0; 32];
        let words = &self.leaf.header[PLACES..];
        for (to, word) in places.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_ne_bytes();
        }
        places
    }

    /// Finds the records, and puts them in the order of their keys.
    #[inline(always)]
    fn take<S: Simd>(&mut self) -> Result<()> {
        let slots = self.leaf.word().slots();
        self.count = (slots.count_ones() as usize).min(SLOTS);
        self.wanted = 0..self.count;
        let places = self.places();
        // Without removals the slots in use are the first ones.
        let places = if slots & (slots + 1) == 0 {
            places
        } else {
            places_in_use(&places, slots)
        };
        if self.order == 0 {
            let is_any_long = self.find(|number| places[number % places.len()])?;
            if is_any_long {
                return self.take_long();
            }
            return match self.column_if_unsorted::<S>(self.count) {
                None => Ok(()),
                Some(column) => self.rank::<S>(self.count, column),
            };
        }
        let mut numbers = Numbers::of_order(self.order, self.count);
        let is_any_long = self.find(|_| places[numbers.take()])?;
        if is_any_long {
            self.take_long()
        } else {
            Ok(())
        }
    }

    /// Finds the records, of which each has the place that `next_place` returns for its number. Says whether there are long keys or values.
    #[inline(always)]
    fn find(&mut self, mut next_place: impl FnMut(usize) -> u8) -> Result<bool> {
        let (heap, word) = (self.leaf.heap, self.leaf.word());
        let begin = 8 * word.heap_begin();
        let most = HEAP + heap.len() - LINE_BYTES;
        let mut outside = 0_usize;
        let (mut any, mut every) = (Lengths::NONE, Lengths::ALL);
        for (number, record) in self.records[..self.count].iter_mut().enumerate() {
            let at = 8 * usize::from(next_place(number));
            let words = heap.get(at.wrapping_sub(HEAP)..);
            let Some(&lengths) = words.and_then(|words| words.first_chunk()) else {
                return Err(self.misplaced());
            };
            let lengths = Lengths::of_bytes(lengths);
            (any, every) = (any.or(lengths), every.and(lengths));
            // Below zero if the record does not lie in the heap.
            outside |= at.wrapping_sub(begin) | most.wrapping_sub(at + 8 * lengths.words());
            *record = record_at(at, lengths);
        }
        if outside > isize::MAX as usize || !every.is_marked() {
            return Err(self.misplaced());
        }
        Ok(any.key_is_blob() || any.value_is_blob())
    }

    /// Whether the order of the keys was not known, and can be kept.
    #[inline(always)]
    pub(super) fn has_new_order(&self) -> bool {
        self.order == 0 && self.count > 1 && self.long_keys | self.long_values == 0
    }

    /// The order in which the records are now, in the form that [`orders`](super::orders) describes; 0 if it has none.
    #[inline(never)]
    pub(super) fn order_found(&self) -> u64 {
        // Which record lies at each place.
        let mut records_at = [0_u8; MAX_WORDS];
        for (position, record) in (0..).zip(&self.records[..self.count]) {
            let at = record.rest.from as usize + HEAP - LENGTHS_BYTES;
            records_at[at / 8 % MAX_WORDS] = position;
        }
        let places = places_in_use(&self.places(), self.leaf.word().slots());
        let positions = places.map(|place| records_at[usize::from(place)]);
        order_of(&positions[..self.count])
    }

    /// The first line of what a key that is not long has behind the prefix and `skipped` bytes, of which it has at least as many.
    #[inline(always)]
    fn line(&self, key: BufferedPart, skipped: usize) -> &'a Line {
        // A line follows the heap, so there is one behind each byte of a record.
        let bytes = self.leaf.heap.get(key.from as usize + skipped..);
        let line = bytes.and_then(|bytes| bytes.first_chunk());
        line.unwrap_or(const { &[0; LINE_BYTES] })
    }

    /// None if the keys ascend in the order of the slots, as they do in a leaf that was made by a structure change. Otherwise the number of bytes behind
    /// the prefix, of up to a line, that all keys begin with.
    #[inline(always)]
    fn column_if_unsorted<S: Simd>(&self, count: usize) -> Option<usize> {
        let (first, others) = self.records[..count].split_first()?;
        let (mut before, mut before_bytes) = (self.line(first.rest, 0), first.rest.bytes as usize);
        let (mut is_sorted, mut column) = (true, before_bytes);
        for record in others {
            let (line, bytes) = (self.line(record.rest, 0), record.rest.bytes as usize);
            let shared = S::shared_bytes(before, line);
            let shortest = before_bytes.min(bytes);
            column = column.min(shared).min(shortest);
            // If both lines are equal this says no, and whole keys are compared.
            let at = shared.min(LINE_BYTES - 1);
            let is_below = if shared < shortest {
                before[at] < line[at]
            } else {
                before_bytes < bytes
            };
            is_sorted &= is_below;
            (before, before_bytes) = (line, bytes);
        }
        let is_taken_for_sorted = is_sorted || planted(Bug::RanksBySlot);
        (!is_taken_for_sorted).then_some(column)
    }

    /// Ranks the records by some bytes behind the column, without a branch that depends on how two keys compare, and sorts those that are equal there.
    #[inline(always)]
    fn rank<S: Simd>(&mut self, count: usize, column: usize) -> Result<()> {
        let mut words = [0; MOST_WORDS_RANKED];
        for (number, (word, record)) in words.iter_mut().zip(&self.records[..count]).enumerate() {
            let head = self.line(record.rest, column).first_chunk();
            let head = u64::from_be_bytes(*head.expect("a line has 8 bytes"));
            // What lies behind a short key does not count.
            let head = head & bits_of_first(record.rest.bytes as usize - column);
            *word = head & TEXT_BITS | number as u64;
        }
        let ranks = RankWords {
            words: &words,
            count,
        }
        .run::<S>();
        let records = self.records;
        let mut order = [0; MOST_WORDS_RANKED];
        for (at, record) in records[..count].iter().enumerate() {
            // Ranks are below that; the compiler does not know it.
            let rank = (ranks[at] as usize).min(SLOTS - 1);
            order[rank] = words[at] & TEXT_BITS;
            self.records[rank] = *record;
        }
        let mut is_any_equal = false;
        for pair in order[..count].windows(2) {
            is_any_equal |= pair[0] == pair[1];
        }
        if is_any_equal {
            self.sort_equal::<S>(&order[..count], column)?;
        }
        Ok(())
    }

    /// Sorts records whose bytes in `order` are equal by whole keys, by insertion: they are few, and come in the order of their slots.
    #[inline(always)]
    fn sort_equal<S: Simd>(&mut self, order: &[u64], column: usize) -> Result<()> {
        for at in 1..order.len() {
            let record = self.records[at];
            let mut to = at;
            while to > 0 && order[to - 1] == order[at] {
                let before = self.records[to - 1];
                match self.compare::<S>(before.rest, record.rest, column) {
                    Ordering::Less => break,
                    Ordering::Equal => return Err(self.twice()),
                    Ordering::Greater => self.records[to] = before,
                }
                to -= 1;
            }
            self.records[to] = record;
        }
        Ok(())
    }

    /// Compares two keys that are not long, and that are equal up to the column.
    #[inline(always)]
    fn compare<S: Simd>(&self, a: BufferedPart, b: BufferedPart, column: usize) -> Ordering {
        let lines = [a, b].map(|key| self.line(key, column));
        let shared = S::shared_bytes(lines[0], lines[1]);
        if column + shared >= a.bytes.min(b.bytes) as usize {
            return a.bytes.cmp(&b.bytes);
        }
        match lines.map(|line| line.get(shared)) {
            [Some(a), Some(b)] => a.cmp(b),
            _ => a.of(self.leaf.heap).cmp(b.of(self.leaf.heap)),
        }
    }

    /// Finds the records again where some are long, leaves of long keys their hashes and references, and sorts by whole keys.
    #[cold]
    #[inline(never)]
    fn take_long(&mut self) -> Result<()> {
        let places = self.places();
        let heap = self.leaf.heap;
        let mut records = Vec::with_capacity(SLOTS);
        for slot in (0..SLOTS).filter(|slot| self.leaf.word().slots() >> slot & 1 != 0) {
            let at = 8 * usize::from(places[slot]);
            // They lie in the heap.
            let lengths = heap[at - HEAP..].first_chunk();
            let lengths = Lengths::of_bytes(lengths.copied().unwrap_or_default());
            let mut record = record_at(at, lengths);
            if lengths.value_is_blob() && record.value.bytes as usize != REFERENCE_BYTES {
                return Err(self.misplaced());
            }
            if lengths.key_is_blob() {
                let Some(head) = record.rest.bytes.checked_sub(LONG_KEY_BYTES as u32) else {
                    return Err(self.misplaced());
                };
                record.rest = part((record.rest.from + head) as usize, LONG_KEY_BYTES);
            }
            let rest = if lengths.key_is_blob() {
                let key = self.blobs.bytes(self.reference(record.rest));
                let Some(rest) = key.strip_prefix(self.prefix) else {
                    return Err(self.leaf.damaged("has a key without its prefix"));
                };
                rest
            } else {
                record.rest.of(heap)
            };
            records.push((rest, record, lengths));
        }
        records.sort_unstable_by_key(|&(rest, ..)| rest);
        if records.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(self.twice());
        }
        for (at, &(_, record, lengths)) in records.iter().enumerate() {
            self.records[at] = record;
            self.long_keys |= u32::from(lengths.key_is_blob()) << at;
            self.long_values |= u32::from(lengths.value_is_blob()) << at;
        }
        Ok(())
    }

    #[cold]
    fn misplaced(&self) -> Error {
        self.leaf.damaged("has a record that does not lie in it")
    }

    #[cold]
    fn twice(&self) -> Error {
        self.leaf.damaged("has a key twice")
    }

    /// The reference at the end of some bytes of the heap.
    fn reference(&self, part: BufferedPart) -> Reference {
        let bytes = part.of(self.leaf.heap);
        Reference::from_bytes(&bytes[bytes.len() - REFERENCE_BYTES..])
    }

    /// What the key of the record at `at` has behind the prefix.
    #[inline(always)]
    fn rest(&self, at: usize) -> &'a [u8] {
        let rest = self.records[at].rest;
        if self.long_keys >> at & 1 != 0 {
            let key = self.blobs.bytes(self.reference(rest));
            return key.get(self.prefix.len()..).unwrap_or_default();
        }
        rest.of(self.leaf.heap)
    }

    /// What the lowest key that is wanted and the highest one have behind the prefix.
    #[inline(always)]
    pub(super) fn ends(&self) -> Option<[&'a [u8]; 2]> {
        if self.wanted.is_empty() {
            return None;
        }
        Some([self.rest(self.wanted.start), self.rest(self.wanted.end - 1)])
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
        let key = |at: usize| [self.prefix, self.rest(at)];
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
        &self.records[self.wanted.clone()]
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
            let Buffered {
                mut rest,
                mut value,
            } = self.records[at];
            if self.long_keys >> at & 1 != 0 {
                rest = add(self.rest(at));
            }
            if with_values && self.long_values >> at & 1 != 0 {
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
