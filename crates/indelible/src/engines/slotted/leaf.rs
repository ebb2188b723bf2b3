//! What is done to one leaf in place: lookups, inserts, replacements, removals.
//!
//! Readers are optimistic: whatever a leaf says may be torn until the version of its lock has been validated. So all lengths and places are compared with
//! the size of the leaf before they are used, and bytes are copied out word by word; there is never a slice of a leaf.

use super::blobs::Blobs;
use super::inner::Child;
use super::layout::{
    CommitWord, FINGERPRINTS, HEADER_WORDS, LENGTHS_BYTES, LONG_KEY_BYTES, Lengths, MAX_WORDS,
    PLACES, REFERENCE_BYTES, Reference, SIBLING, SLOTS, bits_in_memory, byte_of, fingerprint,
    last_bytes, set_byte, slots_with, three, word_at,
};
use super::{Bug, records::Value};
use crate::kernels::{KeyLine, prefetch};
use crate::pmem::planted::planted;
use crate::pmem::schedule::point;
use crate::pmem::{Cell, Pm};
use crate::pool::{Offset, PoolCore};
use std::mem::MaybeUninit;

/// A leaf in the pool.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    /// Where the leaf is, and its size.
    pub(super) place: Child,
    pub(super) cells: &'a [Cell],
}

/// A key that is searched for.
#[derive(Clone, Copy)]
pub(super) struct Probe<'a> {
    pub(super) key: &'a [u8],
    pub(super) hash: u64,
    /// Whether the key is so long that it is a blob.
    pub(super) is_long: bool,
}

/// Where a record is.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) slot: usize,
    /// In words from the begin of the leaf.
    at: usize,
    lengths: Lengths,
}

/// How a search in a leaf ended.
pub(super) enum Search {
    Found(Found),
    Absent,
    /// A blob would have to be read, but the leaf has changed.
    Changed,
}

/// Words in a copy of a value: a quarter of the largest leaf, and the words at both ends.
const VALUE_WORDS: usize = MAX_WORDS / 4 + 2;

/// Memory for a copy of a value that lies in a leaf.
pub(super) struct ValueCopy([MaybeUninit<u64>; VALUE_WORDS]);

impl ValueCopy {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; VALUE_WORDS])
    }
}

impl<'a> Leaf<'a> {
    /// The leaf at `place`, where the caller knows that a block of its size lies.
    #[inline(always)]
    pub(super) fn at(core: &'a PoolCore, place: Child) -> Self {
        point();
        let (offset, size) = (place.offset().get() as usize, place.size());
        crate::pmem::expect_mapped(core.base() as usize + offset, size.bytes());
        // SAFETY: a leaf's offset is that of a block of this size, which lies whole and aligned in the mapping: it was allocated, or claimed after
        // `owns` had said so of the space of this size. The mapping lives as long as `core`, and cells are atomics.
        let cells = unsafe {
            std::slice::from_raw_parts(core.base().add(offset).cast_const().cast(), size.words())
        };
        Self { place, cells }
    }

    pub(super) fn offset(self) -> Offset {
        self.place.offset()
    }

    /// The lines, of which the first one is the header.
    #[inline(always)]
    pub(super) fn lines(self) -> &'a [KeyLine] {
        // SAFETY: a `KeyLine` is a line of atomic words, and so is as much of the leaf, which begins at a line and consists of whole lines: `at` was
        // given a block.
        unsafe {
            std::slice::from_raw_parts(
                self.cells.as_ptr().cast::<KeyLine>(),
                self.cells.len() / HEADER_WORDS,
            )
        }
    }

    /// Where the last one of the records begins that slots in use have, in words; 0 if there are none. Others may be writing to the leaf, so it may be any place.
    #[inline(always)]
    fn last_place(self) -> usize {
        const FIRST_BITS: u64 = 0x0101_0101_0101_0101;
        const LAST_BITS: u64 = FIRST_BITS << 7;
        let slots = self.commit_word().slots();
        let mut last = [0; 8];
        for (word, places) in (0..).zip(three(self.cells, PLACES)) {
            // Bit i of the eight to byte i, there to bit i; then to the last bit of the byte; then to all of its bits.
            let of_word = u64::from(slots >> (8 * word) & 0xff);
            let in_use = of_word.wrapping_mul(FIRST_BITS) & 0x8040_2010_0804_0201;
            let in_use = ((in_use + (LAST_BITS - FIRST_BITS)) | in_use) & LAST_BITS;
            let places = places & ((in_use >> 7) * 0xff);
            for (last, place) in last.iter_mut().zip(places.to_ne_bytes()) {
                *last = place.max(*last);
            }
        }
        usize::from(last.into_iter().fold(0, u8::max))
    }

    /// How many lines the header, the low key and the records lie in, if no two records share bytes: one line at least, and no more than the leaf has.
    #[inline(always)]
    pub(super) fn lines_used(self) -> usize {
        let last = self.last_place();
        let record = self
            .cells
            .get(last)
            .map(|word| Lengths::of_word(word.load()));
        let end = last + record.map_or(0, Lengths::words);
        let words = end.max(self.commit_word().heap_begin());
        words.min(self.cells.len()).div_ceil(HEADER_WORDS)
    }

    #[inline(always)]
    pub(super) fn commit_word(self) -> CommitWord {
        CommitWord(self.cells[0].load_acquire())
    }

    pub(super) fn next(self) -> Offset {
        Offset::from_word(self.cells[SIBLING].load_acquire())
    }

    pub(super) fn count(self) -> usize {
        self.commit_word().slots().count_ones() as usize
    }

    /// The record of a slot, if its lengths can be.
    #[inline(always)]
    fn record(self, places: &[u64; 3], slot: usize) -> Option<(usize, Lengths)> {
        let at = usize::from(byte_of(places, slot));
        let lengths = Lengths::of_word(self.cells.get(at)?.load());
        (at >= HEADER_WORDS && lengths.is_marked() && at + lengths.words() <= self.cells.len())
            .then_some((at, lengths))
    }

    /// Asks the caches for the header and the begin of the low key.
    #[inline(always)]
    pub(super) fn prefetch_begin(self) {
        let first = self.cells.as_ptr().cast::<KeyLine>();
        prefetch(first);
        prefetch(first.wrapping_add(1));
    }

    /// Asks the caches for the lines in which records lie, apart from those of the header and the first one of the heap. What the header says may be torn.
    #[inline(always)]
    pub(super) fn prefetch_used(self) {
        // The record in the last slot is mostly the last one: to search for that one, as `lines_used` does, would be done twice for each leaf. It reaches into the line
        // behind the one in which it begins, mostly.
        let last = self.commit_word().slots().checked_ilog2();
        let last = last.map_or(0, |slot| {
            usize::from(byte_of(&three(self.cells, PLACES), slot as usize))
        });
        let end = (last / HEADER_WORDS + 2).min(self.cells.len() / HEADER_WORDS);
        let first = self.cells.as_ptr().cast::<KeyLine>();
        for line in 2..end {
            prefetch(first.wrapping_add(line));
        }
    }

    /// Asks the caches for the record that most likely has a key. What the header says may be torn.
    #[inline(always)]
    pub(super) fn prefetch_record(self, probe: Probe<'_>) {
        let fingerprints = three(self.cells, FINGERPRINTS);
        let equal = slots_with(&fingerprints, fingerprint(probe.hash));
        let slots = self.commit_word().slots() & equal;
        if slots != 0 {
            let places = three(self.cells, PLACES);
            let slot = slots.trailing_zeros() as usize;
            let record = self.cells.as_ptr();
            let record = record.wrapping_add(usize::from(byte_of(&places, slot)));
            prefetch(record);
            prefetch(record.wrapping_add(HEADER_WORDS - 1));
        }
    }

    /// Looks a key up. `is_valid` says whether what has been read of the leaf is whole: asked before a blob is read.
    #[inline(always)]
    pub(super) fn find(
        self,
        probe: Probe<'_>,
        blobs: &Blobs,
        is_valid: impl Fn() -> bool,
    ) -> Search {
        let word = self.commit_word();
        let Some(suffix) = probe.key.get(word.prefix()..) else {
            return Search::Absent;
        };
        let fingerprints = three(self.cells, FINGERPRINTS);
        let places = three(self.cells, PLACES);
        let mut slots = word.slots() & slots_with(&fingerprints, fingerprint(probe.hash));
        while slots != 0 {
            let slot = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            point();
            let Some((at, lengths)) = self.record(&places, slot) else {
                continue;
            };
            let found = Search::Found(Found { slot, at, lengths });
            if lengths.key_is_blob() != probe.is_long {
                continue;
            }
            if !probe.is_long {
                if lengths.key() == suffix.len() && self.key_is(at, suffix) {
                    return found;
                }
                continue;
            }
            let Some((hash, blob)) = self.long_key(at, lengths) else {
                continue;
            };
            if hash == probe.hash && blob.bytes == probe.key.len() as u64 {
                if !is_valid() {
                    return Search::Changed;
                }
                if blobs.bytes(blob) == probe.key {
                    return found;
                }
            }
        }
        Search::Absent
    }

    /// Whether the key part of the record at `at` begins with these bytes.
    #[inline(always)]
    fn key_is(self, at: usize, suffix: &[u8]) -> bool {
        let first = self.cells[at].load().to_ne_bytes();
        let [_, _, _, _, beside @ ..] = first;
        let Some((begin, rest)) = suffix.split_first_chunk::<{ 8 - LENGTHS_BYTES }>() else {
            return beside.starts_with(suffix);
        };
        if beside != *begin {
            return false;
        }
        // Word by word, without a call.
        let (chunks, last) = rest.as_chunks::<8>();
        for (cell, chunk) in self.cells[at + 1..].iter().zip(chunks) {
            if cell.load().to_ne_bytes() != *chunk {
                return false;
            }
        }
        let count = last.len();
        let differs =
            |cell: &Cell| (cell.load() ^ last_bytes(suffix, count)) & bits_in_memory(count);
        count == 0 || differs(&self.cells[at + 1 + chunks.len()]) == 0
    }

    /// Whether a key begins with the prefix of the leaf, which [`find`](Self::find) takes for granted. A leaf whose low key is a blob does not say it: then
    /// the answer is no.
    #[inline(always)]
    pub(super) fn has_prefix_of(self, key: &[u8]) -> bool {
        let word = self.commit_word();
        let Some(own) = key.get(..word.prefix()) else {
            return false;
        };
        let (chunks, last) = own.as_chunks::<8>();
        let count = last.len();
        if word.low_is_blob() || HEADER_WORDS + chunks.len() >= self.cells.len() {
            return false;
        }
        let (cells, behind) = self.cells[HEADER_WORDS..].split_at(chunks.len());
        let is_same = |(cell, chunk): (&Cell, &[u8; 8])| cell.load().to_ne_bytes() == *chunk;
        let differs = (behind[0].load() ^ last_bytes(own, count)) & bits_in_memory(count);
        cells.iter().zip(chunks).all(is_same) && differs == 0
    }

    /// Bytes of a record, which are in the leaf, as far as they fit.
    fn copy(self, at: usize, from: usize, to: &mut [u8]) {
        for (i, byte) in to.iter_mut().enumerate() {
            let place = at * 8 + from + i;
            *byte = self.cells[place / 8].load().to_ne_bytes()[place % 8];
        }
    }

    /// Hash and reference of a long key.
    fn long_key(self, at: usize, lengths: Lengths) -> Option<(u64, Reference)> {
        let from = lengths.key().checked_sub(LONG_KEY_BYTES)?;
        let mut bytes = [0; LONG_KEY_BYTES];
        self.copy(at, LENGTHS_BYTES + from, &mut bytes);
        Some((word_at(&bytes, 0), Reference::from_bytes(&bytes[8..])))
    }

    /// The value of a record: a copy of the bytes, or where they lie. What is returned may be torn until the version of the leaf is validated.
    #[inline(always)]
    pub(super) fn value<'c>(self, found: &Found, copy: &'c mut ValueCopy) -> Value<'c> {
        point();
        if let Some(blob) = self.value_blob(found) {
            return Value::Blob(blob);
        }
        let (bytes, end) = (found.lengths.value(), found.lengths.words());
        let words = bytes.div_ceil(8);
        if words > VALUE_WORDS || words > end {
            // Torn: no value is so long.
            return Value::Inline(&[]);
        }
        let cells = &self.cells[found.at + end - words..found.at + end];
        for (to, cell) in copy.0.iter_mut().zip(cells) {
            to.write(cell.load());
        }
        // SAFETY: the first `words` words have been written, one for each cell.
        let copied = unsafe { std::slice::from_raw_parts(copy.0.as_ptr().cast::<u8>(), 8 * words) };
        Value::Inline(&copied[8 * words - bytes..])
    }

    /// The blob of the value of a record, if the value is one.
    #[inline(always)]
    pub(super) fn value_blob(self, found: &Found) -> Option<Reference> {
        if !found.lengths.value_is_blob() {
            return None;
        }
        let mut reference = [0; REFERENCE_BYTES];
        // Torn if the record is too short for a reference.
        if let Some(from) = (8 * found.lengths.words()).checked_sub(REFERENCE_BYTES) {
            self.copy(found.at, from, &mut reference);
        }
        Some(Reference::from_bytes(&reference))
    }

    /// Bytes of the value of a record.
    pub(super) fn value_bytes(self, found: &Found) -> u64 {
        self.value_blob(found)
            .map_or(found.lengths.value() as u64, |blob| blob.bytes)
    }

    /// The blob of the key of a record, if the key is one.
    pub(super) fn key_blob(self, found: &Found) -> Option<Reference> {
        if !found.lengths.key_is_blob() {
            return None;
        }
        self.long_key(found.at, found.lengths).map(|(_, blob)| blob)
    }

    /// Replaces a value in place, which is possible if both have the same length of 1 to 8 bytes; `false` if it is not. One line, one fence.
    pub(super) fn update(self, pm: Pm, found: &Found, value: &[u8]) -> bool {
        let Some((cell, word)) = self.updated(found, value) else {
            return false;
        };
        if planted(Bug::UpdateTwice) {
            pm.publish(cell, word ^ 1, "slotted.update");
        }
        // COMMIT slotted.update: the last word of the record, which has the whole value. Recovery sees the old value before this store and the new one
        // after it.
        pm.commit(cell, word, "slotted.update");
        true
    }

    /// [`update`](Self::update) without a fence, which the caller adds before it unlocks the leaf.
    pub(super) fn publish_update(self, pm: Pm, found: &Found, value: &[u8]) -> bool {
        let Some((cell, word)) = self.updated(found, value) else {
            return false;
        };
        // COMMIT slotted.update: as in `update`.
        pm.publish(cell, word, "slotted.update");
        true
    }

    /// The last word of a record with another value of the same length, and where it lies, if one word is enough.
    fn updated(self, found: &Found, value: &[u8]) -> Option<(&'a Cell, u64)> {
        let lengths = found.lengths;
        if lengths.value_is_blob()
            || !(1..=8).contains(&value.len())
            || lengths.value() != value.len()
        {
            return None;
        }
        let cell = &self.cells[found.at + lengths.words() - 1];
        let mut bytes = cell.load().to_ne_bytes();
        bytes[8 - value.len()..].copy_from_slice(value);
        Some((cell, u64::from_ne_bytes(bytes)))
    }

    /// Removes a record. One line, one fence.
    pub(super) fn remove(self, pm: Pm, found: &Found) {
        let removed = self.commit_word().without(found.slot);
        // COMMIT slotted.remove: the slots in use, without that of the record. Recovery sees the record before this store and not after it. What the
        // record refers to is swept.
        pm.commit(&self.cells[0], removed.0, "slotted.remove");
    }

    /// A free slot and a free part of the heap of so many words, in words from the begin of the leaf.
    pub(super) fn room(self, words: usize) -> Option<(usize, usize)> {
        let word = self.commit_word();
        let slot = (!word.slots()).trailing_zeros() as usize;
        if slot >= SLOTS {
            return None;
        }
        let places = three(self.cells, PLACES);
        let end = self.heap_end(&places);
        if end + words <= self.cells.len() {
            return Some((slot, end));
        }
        self.gap(&places, words).map(|at| (slot, at))
    }

    /// Where the last record of the heap ends, in words from the begin of the leaf, which is locked.
    pub(super) fn heap_end(self, places: &[u64; 3]) -> usize {
        let last = self
            .slots()
            .map(|slot| usize::from(byte_of(places, slot)))
            .max();
        match last {
            // The records lie within the leaf: the leaf is locked, and what was there at the open was looked at when it was indexed.
            Some(at) => at + Lengths::of_word(self.cells[at].load()).words(),
            None => self.commit_word().heap_begin(),
        }
    }

    /// The slots in use.
    pub(super) fn slots(self) -> impl Iterator<Item = usize> {
        let slots = self.commit_word().slots();
        (0..SLOTS).filter(move |slot| slots >> slot & 1 != 0)
    }

    /// A gap between records of so many words, the first that there is.
    fn gap(self, places: &[u64; 3], words: usize) -> Option<usize> {
        let mut records: Vec<(usize, usize)> = self
            .slots()
            .filter_map(|slot| self.record(places, slot))
            .map(|(at, lengths)| (at, at + lengths.words()))
            .collect();
        records.sort_unstable();
        let mut free_from = self.commit_word().heap_begin();
        for (from, to) in records {
            if free_from + words <= from {
                return Some(free_from);
            }
            free_from = free_from.max(to);
        }
        None
    }

    /// Words of the heap that records take.
    pub(super) fn live_words(self) -> usize {
        let places = three(self.cells, PLACES);
        self.slots()
            .filter_map(|slot| self.record(&places, slot))
            .map(|(_, lengths)| lengths.words())
            .sum()
    }

    /// Writes a record to a slot and a part of the heap that are free, and commits it; `old` is the record of the same key that goes. Two fences: the
    /// header and the record lie in different lines.
    pub(super) fn insert(
        self,
        pm: Pm,
        (slot, at): (usize, usize),
        record: &[u64],
        hash: u64,
        old: Option<&Found>,
    ) {
        let words = &self.cells[at..at + record.len()];
        for (cell, &word) in words.iter().zip(record) {
            pm.store(cell, word);
        }
        pm.flush(words);
        pm.fence();
        let mut fingerprints = three(self.cells, FINGERPRINTS);
        let mut places = three(self.cells, PLACES);
        set_byte(&mut fingerprints, slot, fingerprint(hash));
        set_byte(&mut places, slot, at as u8);
        let of_slot = slot / 8;
        pm.store(&self.cells[FINGERPRINTS + of_slot], fingerprints[of_slot]);
        pm.store(&self.cells[PLACES + of_slot], places[of_slot]);
        let mut word = self.commit_word().with(slot);
        let name = match old {
            Some(old) => {
                word = word.without(old.slot);
                if planted(Bug::ReplaceInTwoSteps) {
                    let between = self.commit_word().without(old.slot);
                    pm.commit(&self.cells[0], between.0, "slotted.replace");
                }
                "slotted.replace"
            }
            None => "slotted.insert",
        };
        // COMMIT slotted.insert: the slots in use, with that of the new record. Before this store recovery sees the leaf without the record: what
        // was written lies in a slot and in a part of the heap that are not in use. After it, it sees the record. Fingerprint and place of
        // the slot lie in the same line and were stored before.
        // COMMIT slotted.replace: the same, and the slot of the old record is not in use any more. Recovery sees one record or the other.
        pm.commit(&self.cells[0], word.0, name);
    }

    /// Takes the leaf on the right, which has no records, out of the chain: `next`, the leaf behind it, becomes the sibling. `prefix` is that of the keys
    /// which this leaf covers then. A longer one is cut first, which only a leaf without records can do in place. No block is needed, so this works in a
    /// pool that is full.
    pub(super) fn unlink_next(self, pm: Pm, next: Offset, prefix: usize) {
        let word = self.commit_word();
        if word.prefix() > prefix {
            // COMMIT slotted.prefix: the commit word of a leaf without records, with a shorter prefix. Recovery may find it before or after this
            // store, with the same right neighbour: a prefix may be shorter than it could be.
            pm.commit(&self.cells[0], word.with_prefix(prefix).0, "slotted.prefix");
        }
        // COMMIT slotted.unlink: the sibling. Before this store recovery sees the leaf without records; after it that leaf is swept, and this one covers
        // its keys.
        pm.commit(&self.cells[SIBLING], next.get(), "slotted.unlink");
    }

    /// Links the leaf to another one on its right.
    pub(super) fn relink(self, pm: Pm, next: Offset, name: &'static str) {
        // COMMIT slotted.split: see `smo`.
        // COMMIT slotted.merge: see `smo`.
        // COMMIT slotted.move: see `smo`.
        pm.commit(&self.cells[SIBLING], next.get(), name);
    }
}

/// Words in the longest record: a key and a value of a quarter of the largest leaf each.
pub(super) const MOST_RECORD_WORDS: usize =
    super::layout::record_words(MAX_WORDS * 2, MAX_WORDS * 2);

/// Writes the words of a record to the begin of `to`, and returns how many they are.
pub(super) fn write_record(
    to: &mut [u64],
    suffix: &[u8],
    key_blob: Option<(u64, Reference)>,
    value: &Value<'_>,
) -> usize {
    let mut long_key = [0; LONG_KEY_BYTES];
    let (head, tail) = match key_blob {
        None => (suffix, &long_key[..0]),
        Some((hash, blob)) => {
            long_key[..8].copy_from_slice(&hash.to_ne_bytes());
            long_key[8..].copy_from_slice(&blob.to_bytes());
            (
                &suffix[..suffix.len().min(super::layout::HEAD_BYTES)],
                &long_key[..],
            )
        }
    };
    let reference;
    let part = match value {
        Value::Inline(value) => *value,
        Value::Blob(blob) => {
            reference = blob.to_bytes();
            &reference[..]
        }
    };
    let key = head.len() + tail.len();
    let words = super::layout::record_words(key, part.len());
    let is_blob = matches!(value, Value::Blob(_));
    let lengths = Lengths::new(key, key_blob.is_some(), part.len(), is_blob);
    let to = &mut to[..words];
    // Bytes between the key and the value are zeros.
    to[(LENGTHS_BYTES + key) / 8..].fill(0);
    // SAFETY: the words are borrowed mutably, any bytes are a word, and there are 8 bytes in each.
    let bytes = unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast::<u8>(), 8 * words) };
    bytes[..LENGTHS_BYTES].copy_from_slice(&lengths.to_bytes());
    let tail_at = LENGTHS_BYTES + head.len();
    bytes[LENGTHS_BYTES..tail_at].copy_from_slice(head);
    bytes[tail_at..tail_at + tail.len()].copy_from_slice(tail);
    bytes[8 * words - part.len()..].copy_from_slice(part);
    words
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::sizes::Size;
    use super::*;

    #[test]
    fn a_value_that_is_torn_is_no_reason_to_panic() {
        let cells: Vec<Cell> = (0..64).map(|_| Cell::new(u64::MAX)).collect();
        let leaf = Leaf {
            place: Child::leaf(Offset::from_word(4096), Size::of_bytes(512).unwrap()),
            cells: &cells,
        };
        // A reader may take bytes that somebody has just stored for the lengths of a record, of any number of words that fit.
        for (key, value) in [(0, 0), (0, 4), (4, 0), (0, 12), (60, 448), (0, 508)] {
            for is_blob in [false, true] {
                let lengths = Lengths::new(key, false, value, is_blob);
                let found = Found {
                    slot: 0,
                    at: cells.len() - lengths.words(),
                    lengths,
                };
                let _ = leaf.value(&found, &mut ValueCopy::new()).bytes();
                let _ = leaf.value_bytes(&found);
                let _ = leaf.key_blob(&found);
            }
        }
    }
}
