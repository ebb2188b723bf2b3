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
    CommitWord, HEADER_WORDS, LONG_KEY_BYTES, Lengths, MAX_WORDS, PLACES, REFERENCE_BYTES,
    Reference, SLOTS,
};
use super::orders::{Few, Many, Numbers, order_of};
use crate::engines::{
    LINE_BYTES, Line, LongBuffered, MOST_BUFFERED, MOST_READ_AHEAD, NODE_LINES, Part, Parts,
    misplaced, short_parts,
};
use crate::kernels::{Kernel, RankWords, Simd};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::{Error, Result};
use std::cmp::Ordering;
use std::ops::Range;

/// The bits of a word that is ranked which are not those of the number of its record.
const TEXT_BITS: u64 = !31;

/// Words that are ranked at most: the slots of a leaf, with and without the feature `small`.
const MOST_WORDS_RANKED: usize = 24;

const _: () = assert!(SLOTS <= MOST_WORDS_RANKED && MOST_WORDS_RANKED as u64 <= !TEXT_BITS);
const _: () = assert!(SLOTS <= MOST_BUFFERED);
const _: () = assert!(MAX_WORDS == NODE_LINES * HEADER_WORDS);

/// A copy of a leaf, which is a valid one, or of the first lines of it, and behind it a line.
#[derive(Clone, Copy)]
pub(super) struct LeafCopy<'a> {
    pub(super) offset: Offset,
    pub(super) bytes: &'a [u8],
}

impl<'a> LeafCopy<'a> {
    /// The leaf without the line behind it.
    #[inline(always)]
    fn own(&self) -> &'a [u8] {
        &self.bytes[..self.bytes.len() - LINE_BYTES]
    }

    /// The words of the header, as bytes.
    #[inline(always)]
    fn header(&self) -> &'a [[u8; 8]] {
        &self.bytes.as_chunks().0[..HEADER_WORDS]
    }

    #[inline(always)]
    fn word(&self) -> CommitWord {
        CommitWord(u64::from_ne_bytes(self.header()[0]))
    }

    /// The places of all slots.
    #[inline(always)]
    fn places(&self) -> [u8; 32] {
        let mut places = [0; 32];
        let of_slots = self.header()[PLACES..].as_flattened();
        places[..of_slots.len()].copy_from_slice(of_slots);
        places
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
        let low = self.own()[8 * HEADER_WORDS..].get(..word.low_bytes());
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
pub(super) struct Ranked<'a, 'r> {
    leaf: LeafCopy<'a>,
    pub(super) prefix: &'a [u8],
    blobs: &'a Blobs,
    /// Where the records begin, in words.
    places: &'r mut [u8; MOST_BUFFERED],
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
pub(super) struct Rank<'a, 'r, 's>(pub(super) &'s mut Ranked<'a, 'r>);

impl Kernel for Rank<'_, '_, '_> {
    type Out = Result<()>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Result<()> {
        self.0.take::<S>()
    }
}

impl<'a, 'r> Ranked<'a, 'r> {
    /// No records yet: where they begin comes to `places`. `order` is that of the leaf, or 0, see [`orders`](super::orders).
    #[inline(always)]
    pub(super) fn of(
        leaf: LeafCopy<'a>,
        (prefix, blobs): (&'a [u8], &'a Blobs),
        order: u64,
        places: &'r mut [u8; MOST_BUFFERED],
    ) -> Self {
        Self {
            leaf,
            prefix,
            blobs,
            places,
            long_keys: 0,
            long_values: 0,
            wanted: 0..0,
            order,
            count: 0,
        }
    }

    /// Finds the records, and puts them in the order of their keys.
    #[inline(always)]
    fn take<S: Simd>(&mut self) -> Result<()> {
        let slots = self.leaf.word().slots();
        self.count = (slots.count_ones() as usize).min(SLOTS);
        self.wanted = 0..self.count;
        let places = self.leaf.places();
        // Without removals the slots in use are the first ones.
        let places = if slots & (slots + 1) == 0 {
            places
        } else {
            places_in_use(&places, slots)
        };
        let highest = if self.count <= Few::MOST {
            self.put_in_order(Few::of_order(self.order, self.count), &places)
        } else {
            self.put_in_order(Many::of_order(self.order, self.count), &places)
        };
        // Nobody has written to the leaf since its order was kept, when all records were looked at, and no two shared bytes. So it is enough that the copy reaches to
        // the end of the last one. The lengths of each record are looked at once more when it is handed out.
        if self.order != 0 {
            let copied = self.leaf.own().len();
            let is_here = short_parts(self.leaf.bytes, copied, highest).is_some();
            return if is_here {
                Ok(())
            } else {
                Err(self.misplaced())
            };
        }
        let mut records = [Parts::default(); SLOTS];
        if self.find(&mut records)? {
            return self.take_long();
        }
        match self.column_if_unsorted::<S>(&records[..self.count]) {
            None => Ok(()),
            Some(column) => self.rank::<S>(&mut records[..self.count], column),
        }
    }

    /// Takes the places of the records of these numbers. Returns the highest place.
    #[inline(always)]
    fn put_in_order(&mut self, mut numbers: impl Numbers, places: &[u8; 32]) -> u8 {
        let mut highest = 0;
        for to in &mut self.places[..self.count] {
            let place = places[numbers.take() % places.len()];
            highest = highest.max(place);
            *to = place;
        }
        highest
    }

    /// Finds the records. Says whether there are long keys or values.
    #[inline(always)]
    fn find(&self, records: &mut [Parts; SLOTS]) -> Result<bool> {
        let bytes = self.leaf.bytes;
        let begin = 8 * self.leaf.word().heap_begin();
        let most = self.leaf.own().len();
        let mut outside = 0_usize;
        let (mut is_every_marked, mut is_every_short) = (true, true);
        for (record, place) in records.iter_mut().zip(&self.places[..self.count]) {
            let Some((lengths, parts, end)) = Parts::at(bytes, *place) else {
                return Err(self.misplaced());
            };
            is_every_marked &= lengths.is_marked();
            is_every_short &= lengths.is_short();
            let at = 8 * usize::from(*place);
            // Below zero if the record does not lie in the heap.
            outside |= at.wrapping_sub(begin) | most.wrapping_sub(end);
            *record = parts;
        }
        if outside > isize::MAX as usize || !is_every_marked {
            return Err(self.misplaced());
        }
        Ok(!is_every_short)
    }

    /// Whether the order of the keys was not known, and can be kept.
    #[inline(always)]
    pub(super) fn has_new_order(&self) -> bool {
        self.order == 0 && self.count > 1 && !self.is_long()
    }

    /// The order in which the records are now, in the form that [`orders`](super::orders) describes; 0 if it has none, and of a damaged leaf in which two records share
    /// bytes: where an order is known, only the last record is compared with what was copied.
    #[inline(never)]
    pub(super) fn order_found(&self) -> u64 {
        // Which record lies at each place.
        let mut records_at = [0_u8; MAX_WORDS];
        for (position, place) in (0..).zip(&self.places[..self.count]) {
            records_at[usize::from(*place)] = position;
        }
        let mut by_place = *self.places;
        by_place[..self.count].sort_unstable();
        let mut free_from = 0;
        for &place in &by_place[..self.count] {
            if 8 * usize::from(place) < free_from {
                return 0;
            }
            let Some((_, _, end)) = Parts::at(self.leaf.bytes, place) else {
                return 0;
            };
            free_from = end;
        }
        let places = places_in_use(&self.leaf.places(), self.leaf.word().slots());
        let positions = places.map(|place| records_at[usize::from(place)]);
        order_of(&positions[..self.count])
    }

    /// The first line of what a key that is not long has behind the prefix and `skipped` bytes, of which it has at least as many.
    #[inline(always)]
    fn line(&self, key: Part, skipped: usize) -> &'a Line {
        // A line follows the leaf, so there is one behind each byte of a record.
        let bytes = self.leaf.bytes.get(key.from + skipped..);
        let line = bytes.and_then(|bytes| bytes.first_chunk());
        line.unwrap_or(const { &[0; LINE_BYTES] })
    }

    /// None if the keys ascend in the order of the slots, as they do in a leaf that was made by a structure change. Otherwise the number of bytes behind
    /// the prefix, of up to a line, that all keys begin with.
    #[inline(always)]
    fn column_if_unsorted<S: Simd>(&self, records: &[Parts]) -> Option<usize> {
        let (first, others) = records.split_first()?;
        let (mut before, mut before_bytes) = (self.line(first.key, 0), first.key.bytes);
        let (mut is_sorted, mut column) = (true, before_bytes);
        for record in others {
            let (line, bytes) = (self.line(record.key, 0), record.key.bytes);
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
    fn rank<S: Simd>(&mut self, records: &mut [Parts], column: usize) -> Result<()> {
        let count = records.len();
        let mut words = [0; MOST_WORDS_RANKED];
        for (number, (word, record)) in words.iter_mut().zip(&*records).enumerate() {
            let head = self.line(record.key, column).first_chunk();
            let head = u64::from_be_bytes(*head.expect("a line has 8 bytes"));
            // What lies behind a short key does not count.
            let head = head & bits_of_first(record.key.bytes - column);
            *word = head & TEXT_BITS | number as u64;
        }
        let ranks = RankWords {
            words: &words,
            count,
        }
        .run::<S>();
        let (places, mut unsorted) = (*self.places, [Parts::default(); SLOTS]);
        unsorted[..count].copy_from_slice(records);
        let mut order = [0; MOST_WORDS_RANKED];
        for (at, record) in unsorted[..count].iter().enumerate() {
            // Ranks are below that; the compiler does not know it.
            let rank = (ranks[at] as usize).min(count - 1);
            order[rank] = words[at] & TEXT_BITS;
            self.places[rank] = places[at];
            records[rank] = *record;
        }
        let mut is_any_equal = false;
        for pair in order[..count].windows(2) {
            is_any_equal |= pair[0] == pair[1];
        }
        if is_any_equal {
            self.sort_equal::<S>(records, &order[..count], column)?;
        }
        Ok(())
    }

    /// Sorts records whose bytes in `order` are equal by whole keys, by insertion: they are few, and come in the order of their slots.
    #[inline(always)]
    fn sort_equal<S: Simd>(
        &mut self,
        records: &mut [Parts],
        order: &[u64],
        column: usize,
    ) -> Result<()> {
        for at in 1..order.len() {
            let mut to = at;
            while to > 0 && order[to - 1] == order[at] {
                match self.compare::<S>(records[to - 1].key, records[to].key, column) {
                    Ordering::Less => break,
                    Ordering::Equal => return Err(self.twice()),
                    Ordering::Greater => {
                        records.swap(to - 1, to);
                        self.places.swap(to - 1, to);
                    }
                }
                to -= 1;
            }
        }
        Ok(())
    }

    /// Compares two keys that are not long, and that are equal up to the column.
    #[inline(always)]
    fn compare<S: Simd>(&self, a: Part, b: Part, column: usize) -> Ordering {
        let lines = [a, b].map(|key| self.line(key, column));
        let shared = S::shared_bytes(lines[0], lines[1]);
        if column + shared >= a.bytes.min(b.bytes) {
            return a.bytes.cmp(&b.bytes);
        }
        match lines.map(|line| line.get(shared)) {
            [Some(a), Some(b)] => a.cmp(b),
            _ => a.of(self.leaf.bytes).cmp(b.of(self.leaf.bytes)),
        }
    }

    /// Finds the records again where some are long, leaves of long keys their hashes and references, and sorts by whole keys.
    #[cold]
    #[inline(never)]
    fn take_long(&mut self) -> Result<()> {
        let bytes = self.leaf.bytes;
        let mut records = Vec::with_capacity(SLOTS);
        for at in 0..self.count {
            let (place, (lengths, parts)) = (self.places[at], self.parts(at)?);
            if lengths.value_is_blob() && parts.value.bytes != REFERENCE_BYTES {
                return Err(self.misplaced());
            }
            let rest = if lengths.key_is_blob() {
                if parts.key.bytes < LONG_KEY_BYTES {
                    return Err(self.misplaced());
                }
                let key = self.blobs.bytes(self.reference(parts.key));
                let Some(rest) = key.strip_prefix(self.prefix) else {
                    return Err(self.leaf.damaged("has a key without its prefix"));
                };
                rest
            } else {
                parts.key.of(bytes)
            };
            records.push((rest, place, lengths));
        }
        records.sort_unstable_by_key(|&(rest, ..)| rest);
        if records.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(self.twice());
        }
        for (at, &(_, place, lengths)) in records.iter().enumerate() {
            self.places[at] = place;
            self.long_keys |= u32::from(lengths.key_is_blob()) << at;
            self.long_values |= u32::from(lengths.value_is_blob()) << at;
        }
        Ok(())
    }

    #[cold]
    fn misplaced(&self) -> Error {
        misplaced(self.leaf.offset)
    }

    #[cold]
    fn twice(&self) -> Error {
        self.leaf.damaged("has a key twice")
    }

    /// The reference at the end of some bytes of the leaf.
    fn reference(&self, part: Part) -> Reference {
        let bytes = part.of(self.leaf.bytes);
        Reference::from_bytes(&bytes[bytes.len() - REFERENCE_BYTES..])
    }

    /// The lengths and the parts of a record. They may lie outside of what was copied, if the leaf was damaged since its order was kept.
    #[inline(always)]
    fn parts(&self, at: usize) -> Result<(Lengths, Parts)> {
        let record = Parts::at(self.leaf.bytes, self.places[at % MOST_BUFFERED]);
        let (lengths, parts, _) = record.ok_or_else(|| self.misplaced())?;
        Ok((lengths, parts))
    }

    /// What the key of the record at `at` has behind the prefix.
    #[inline(always)]
    fn rest(&self, at: usize) -> Result<&'a [u8]> {
        let (_, Parts { key: part, .. }) = self.parts(at)?;
        if self.long_keys >> at & 1 != 0 {
            let key = self.blobs.bytes(self.reference(part));
            let rest = key.get(self.prefix.len()..);
            return rest.ok_or_else(|| self.misplaced());
        }
        let rest = self.leaf.own().get(part.from..part.from + part.bytes);
        rest.ok_or_else(|| self.misplaced())
    }

    /// What the lowest key that is wanted and the highest one have behind the prefix.
    #[inline(always)]
    pub(super) fn ends(&self) -> Result<Option<[&'a [u8]; 2]>> {
        if self.wanted.is_empty() {
            return Ok(None);
        }
        let (first, last) = (self.wanted.start, self.wanted.end - 1);
        Ok(Some([self.rest(first)?, self.rest(last)?]))
    }

    /// Whether the lowest key and the highest one, of which this is what they have behind the prefix, lie between `low` and `high`.
    pub(super) fn is_between(
        &self,
        [first, last]: [&'a [u8]; 2],
        low: &'a [u8],
        high: Option<&'a [u8]>,
    ) -> bool {
        let rest = |end: &'a [u8]| end.strip_prefix(self.prefix);
        rest(low).is_some_and(|low| low <= first)
            && high.is_none_or(|high| rest(high).is_some_and(|high| last < high))
    }

    /// Drops the records at both ends of the order that are not wanted.
    pub(super) fn trim(
        &mut self,
        is_from_low: impl Fn([&[u8]; 2]) -> bool,
        is_up_to_high: impl Fn([&[u8]; 2]) -> bool,
    ) -> Result<()> {
        let Range { mut start, mut end } = self.wanted.clone();
        while start < end && !is_from_low([self.prefix, self.rest(start)?]) {
            start += 1;
        }
        while start < end && !is_up_to_high([self.prefix, self.rest(end - 1)?]) {
            end -= 1;
        }
        self.wanted = start..end;
        Ok(())
    }

    /// Whether there are long keys or values.
    pub(super) fn is_long(&self) -> bool {
        self.long_keys | self.long_values != 0
    }

    /// Which of the records that were found are wanted.
    #[inline(always)]
    pub(super) fn wanted(&self) -> Range<usize> {
        self.wanted.clone()
    }

    /// The records that are wanted, where some keys or values are long, and the bytes of all of them, with a line behind.
    pub(super) fn long_records(&self, with_values: bool) -> Result<(Vec<LongBuffered>, Vec<u8>)> {
        let mut all = Vec::new();
        let mut read_ahead = 0;
        let mut add = |bytes: &[u8]| {
            let from = all.len();
            all.extend_from_slice(bytes);
            Part {
                from,
                bytes: bytes.len(),
            }
        };
        let mut records = Vec::with_capacity(SLOTS);
        for at in self.wanted.clone() {
            let rest = add(self.rest(at)?);
            let (_, Parts { value: part, .. }) = self.parts(at)?;
            let value = if !with_values {
                Some(Part::default())
            } else if self.long_values >> at & 1 == 0 {
                Some(add(part.of(self.leaf.bytes)))
            } else {
                let blob = self.reference(part);
                let is_read = blob.bytes <= MOST_READ_AHEAD[0]
                    && read_ahead + blob.bytes <= MOST_READ_AHEAD[1];
                is_read.then(|| {
                    read_ahead += blob.bytes;
                    add(self.blobs.bytes(blob))
                })
            };
            records.push(LongBuffered { rest, value });
        }
        all.extend([0; LINE_BYTES]);
        Ok((records, all))
    }
}
