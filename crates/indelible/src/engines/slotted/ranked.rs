//! The records of a leaf in the order of their keys, for ranges.

use super::blobs::Blobs;
use super::inner::{bits_of_first, head_of};
use super::layout::{
    LENGTHS_BYTES, LONG_KEY_BYTES, Lengths, PLACES, REFERENCE_BYTES, Reference, SLOTS, byte_of,
};
use super::records::Snapshot;
use crate::Result;
use crate::engines::{Buffered, BufferedPart, MOST_READ_AHEAD, StringBuffer};
use crate::kernels::{MOST_WORDS_RANKED, RankWords, SimdLevel, dispatch};

/// The bits of a head that a word which is ranked keeps; the others are the number of the record.
const HEAD_BITS: u64 = !31;

const _: () = assert!(SLOTS <= MOST_WORDS_RANKED && MOST_WORDS_RANKED as u64 <= !HEAD_BITS);

/// Where a record lies in its leaf, in bytes.
#[derive(Clone, Copy, Default)]
struct RecordPlace {
    /// The key behind the prefix; of a long key, its hash and the reference.
    rest: [u16; 2],
    /// The value, or the reference to it.
    value: [u16; 2],
}

/// The records of a snapshot in the order of their keys.
pub(super) struct Ranked<'a> {
    leaf: &'a Snapshot,
    prefix: &'a [u8],
    blobs: &'a Blobs,
    /// In the order of the slots.
    places: [RecordPlace; SLOTS],
    /// Which of them have a long key, and which a long value.
    long_keys: u32,
    long_values: u32,
    /// In the order of keys: the first bytes of a key behind the prefix, and the number of its record.
    order: [u64; MOST_WORDS_RANKED],
    count: usize,
}

/// The number of a record in a word of the order.
#[inline(always)]
fn number_in(word: u64) -> usize {
    // Numbers are below `SLOTS`; the compiler does not know that.
    ((word & !HEAD_BITS) as usize).min(SLOTS - 1)
}

impl<'a> Ranked<'a> {
    /// No records yet of a leaf whose low key is `low`. The caller is pinned, and the snapshot is a valid one.
    #[inline(always)]
    pub(super) fn of(leaf: &'a Snapshot, low: &'a [u8], blobs: &'a Blobs) -> Result<Self> {
        Ok(Self {
            leaf,
            prefix: leaf.prefix_in(low)?,
            blobs,
            places: [RecordPlace::default(); SLOTS],
            long_keys: 0,
            long_values: 0,
            order: [0; MOST_WORDS_RANKED],
            count: 0,
        })
    }

    /// Ranks the records by the first bytes behind the prefix, without a branch that depends on a key; then those that are equal there are sorted by
    /// all bytes.
    #[inline(always)]
    pub(super) fn rank(&mut self, simd: SimdLevel) -> Result<()> {
        let mut words = [0; MOST_WORDS_RANKED];
        let of_slots: [u64; 3] = std::array::from_fn(|i| self.leaf.words()[PLACES + i]);
        let mut slots = self.leaf.commit_word().slots();
        let mut count = 0;
        while slots != 0 {
            let at = byte_of(&of_slots, slots.trailing_zeros() as usize);
            slots &= slots - 1;
            self.take(count, at.into())
                .ok_or_else(|| self.leaf.misplaced())?;
            // The number of the record makes words different.
            words[count] = self.head(count)? & HEAD_BITS | count as u64;
            count += 1;
        }
        self.count = count;
        let words = &words;
        let ranks = dispatch(simd, RankWords { words, count });
        for (&word, &rank) in words.iter().zip(&ranks).take(count) {
            self.order[rank as usize % MOST_WORDS_RANKED] = word;
        }
        for at in 1..count {
            if (self.order[at - 1] ^ self.order[at]) & HEAD_BITS == 0 {
                self.insert_among_equal(at)?;
            }
        }
        Ok(())
    }

    /// Takes the record that begins at word `at` of the leaf, if one can.
    #[inline(always)]
    fn take(&mut self, number: usize, at: usize) -> Option<()> {
        let lengths = Lengths::of_word(*self.leaf.words().get(at)?);
        let end = at + lengths.words();
        if at < self.leaf.commit_word().heap_begin()
            || end > self.leaf.words().len()
            || !lengths.is_marked()
        {
            return None;
        }
        let (mut key, key_end) = (
            8 * at + LENGTHS_BYTES,
            8 * at + LENGTHS_BYTES + lengths.key(),
        );
        if lengths.key_is_blob() {
            key = key_end - LONG_KEY_BYTES.min(lengths.key());
            self.long_keys |= 1 << number;
        }
        if lengths.value_is_blob() {
            self.long_values |= 1 << number;
        }
        let is_whole = (!lengths.key_is_blob() || key_end - key == LONG_KEY_BYTES)
            && (!lengths.value_is_blob() || lengths.value() == REFERENCE_BYTES);
        // A leaf has 2048 bytes at most.
        self.places[number] = RecordPlace {
            rest: [key as u16, key_end as u16],
            value: [(8 * end - lengths.value()) as u16, 8 * end as u16],
        };
        is_whole.then_some(())
    }

    /// The first 8 bytes of a key behind the prefix.
    #[inline(always)]
    fn head(&self, number: usize) -> Result<u64> {
        if self.long_keys >> number & 1 != 0 {
            let key = self.blobs.bytes(self.reference(self.places[number].rest));
            let rest = key.strip_prefix(self.prefix);
            return (rest.map(head_of))
                .ok_or_else(|| self.leaf.damaged("has a key without its prefix"));
        }
        let [from, to] = self.places[number].rest.map(usize::from);
        let bytes = self.leaf.bytes().get(from..from + 8);
        let Some(eight) = bytes.and_then(|bytes| bytes.first_chunk()) else {
            return Ok(head_of(self.rest(number)));
        };
        // What lies behind a short key does not count.
        Ok(u64::from_be_bytes(*eight) & bits_of_first(to - from))
    }

    /// The reference at the end of these bytes.
    fn reference(&self, [_, to]: [u16; 2]) -> Reference {
        let to = usize::from(to);
        Reference::from_bytes(&self.leaf.bytes()[to - REFERENCE_BYTES..to])
    }

    /// What a key has behind the prefix.
    #[inline(always)]
    fn rest(&self, number: usize) -> &'a [u8] {
        let place = self.places[number].rest;
        if self.long_keys >> number & 1 != 0 {
            let key = self.blobs.bytes(self.reference(place));
            return key.get(self.prefix.len()..).unwrap_or_default();
        }
        let [from, to] = place.map(usize::from);
        &self.leaf.bytes()[from..to]
    }

    /// Moves the record at `at` of the order to its place among those before it which begin with the same bytes, and which are in order already.
    fn insert_among_equal(&mut self, mut at: usize) -> Result<()> {
        let moved = self.order[at];
        let rest = self.rest(number_in(moved));
        let head = second_head(rest);
        while let Some(&before) = at.checked_sub(1).map(|at| &self.order[at])
            && (before ^ moved) & HEAD_BITS == 0
        {
            let other = self.rest(number_in(before));
            // As numbers first: a call that compares a few bytes takes longer than to make one of them.
            match second_head(other).cmp(&head).then_with(|| other.cmp(rest)) {
                std::cmp::Ordering::Less => break,
                std::cmp::Ordering::Equal => return Err(self.leaf.damaged("has a key twice")),
                std::cmp::Ordering::Greater => self.order[at] = before,
            }
            at -= 1;
        }
        self.order[at] = moved;
        Ok(())
    }

    /// Drops the records at both ends of the order that are not wanted.
    pub(super) fn trim(
        &mut self,
        is_from_low: impl Fn([&[u8]; 2]) -> bool,
        is_up_to_high: impl Fn([&[u8]; 2]) -> bool,
    ) {
        let key = |word: &u64| [self.prefix, self.rest(number_in(*word))];
        let all = &self.order[..self.count];
        let from = all.partition_point(|word| !is_from_low(key(word)));
        let to = all.partition_point(|word| is_up_to_high(key(word)));
        let to = to.max(from);
        self.order.copy_within(from..to, 0);
        self.count = to - from;
    }

    /// Whether all keys are from `low` up to `high`.
    pub(super) fn is_between(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        let Some(last) = self.count.checked_sub(1) else {
            return true;
        };
        let [first, last] = [0, last].map(|at| self.rest(number_in(self.order[at])));
        low[self.prefix.len()..] <= *first
            && high.is_none_or(|high| {
                high.strip_prefix(self.prefix)
                    .is_some_and(|high| last < high)
            })
    }

    /// Adds the records to a buffer, in the order of keys or against it.
    #[inline(always)]
    pub(super) fn hand_out(&mut self, up: bool, buffer: &mut StringBuffer, with_values: bool) {
        let count = self.count;
        if count == 0 {
            return;
        }
        if !up {
            self.order[..count].reverse();
        }
        let bytes = self.leaf.bytes();
        buffer.reserve(SLOTS, bytes.len() + self.prefix.len());
        let leaf = buffer.add_bytes(bytes);
        let prefix = buffer.add_bytes(self.prefix);
        let is_long = self.long_keys | if with_values { self.long_values } else { 0 } != 0;
        if is_long {
            self.hand_out_long((leaf, prefix), buffer, with_values);
            return;
        }
        buffer.extend(self.order[..count].iter().map(|&word| {
            let place = self.places[number_in(word)];
            let value = if with_values { place.value } else { [0, 0] };
            Buffered {
                prefix,
                rest: leaf.part(place.rest),
                value: Some(leaf.part(value)),
            }
        }));
    }

    /// [`hand_out`](Self::hand_out) where some keys or values are long.
    fn hand_out_long(
        &self,
        (leaf, prefix): (BufferedPart, BufferedPart),
        buffer: &mut StringBuffer,
        with_values: bool,
    ) {
        let mut read_ahead = 0;
        for &word in &self.order[..self.count] {
            let number = number_in(word);
            let place = self.places[number];
            let is_long = |long: u32| long >> number & 1 != 0;
            let rest = if is_long(self.long_keys) {
                buffer.add_bytes(self.rest(number))
            } else {
                leaf.part(place.rest)
            };
            let value = if !with_values {
                Some(leaf.part([0, 0]))
            } else if is_long(self.long_values) {
                let blob = self.reference(place.value);
                let is_read = blob.bytes <= MOST_READ_AHEAD[0]
                    && read_ahead + blob.bytes <= MOST_READ_AHEAD[1];
                is_read.then(|| {
                    read_ahead += blob.bytes;
                    buffer.add_bytes(self.blobs.bytes(blob))
                })
            } else {
                Some(leaf.part(place.value))
            };
            buffer.extend(std::iter::once(Buffered {
                prefix,
                rest,
                value,
            }));
        }
    }
}

/// What [`HEAD_BITS`] leave out, and the bytes behind it.
#[inline(always)]
fn second_head(rest: &[u8]) -> u64 {
    rest.get(7..).map_or(0, head_of)
}
