//! Leaves in DRAM: copies that are looked at, records taken out of leaves, images of new leaves.

use super::blobs::{Blobs, MOST_KEY_BYTES};
use super::distribute::Words;
use super::layout::{
    CommitWord, FINGERPRINTS, HEADER_WORDS, LENGTHS_BYTES, LONG_KEY_BYTES, Lengths, MAX_WORDS,
    PLACES, REFERENCE_BYTES, Reference, SIBLING, SLOTS, byte_of, fingerprint, set_byte,
};
use super::leaf::{Leaf, write_record};
use super::sizes::{Size, Sizes};
use crate::pmem::schedule::point;
use crate::pool::Offset;
use crate::{Error, Result};
use std::mem::MaybeUninit;
use std::ops::Range;

/// A value that goes into a leaf, or comes out of one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Inline(&'a [u8]),
    Blob(Reference),
}

impl Value<'_> {
    /// How many bytes the value has.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Inline(value) => value.len() as u64,
            Self::Blob(blob) => blob.bytes,
        }
    }
}

/// A copy of a leaf. Once the version of the leaf has been validated, it does not change any more.
pub(super) struct Snapshot {
    /// The first `count` are initialized.
    words: [MaybeUninit<u64>; MAX_WORDS],
    count: usize,
    offset: Offset,
}

/// A record in a snapshot.
#[derive(Clone, Copy)]
pub(super) struct RecordIn<'a> {
    pub(super) slot: usize,
    pub(super) fingerprint: u8,
    /// In words: where it begins, and how many there are.
    pub(super) at: usize,
    pub(super) words: usize,
    /// The key without the prefix, or the first bytes of that.
    pub(super) suffix: &'a [u8],
    /// Of a long key, its hash and the reference.
    pub(super) key_blob: Option<(u64, Reference)>,
    pub(super) value: Value<'a>,
}

impl Snapshot {
    #[inline(always)]
    pub(super) fn of(leaf: Leaf<'_>) -> Self {
        let mut words = [const { MaybeUninit::uninit() }; MAX_WORDS];
        let (lines, _) = leaf.cells.as_chunks::<HEADER_WORDS>();
        let (copies, _) = words.as_chunks_mut::<HEADER_WORDS>();
        for (copy, line) in copies.iter_mut().zip(lines) {
            point();
            for (word, cell) in copy.iter_mut().zip(line) {
                word.write(cell.load());
            }
        }
        Self {
            words,
            count: leaf.cells.len().min(MAX_WORDS),
            offset: leaf.offset(),
        }
    }

    #[inline(always)]
    pub(super) fn words(&self) -> &[u64] {
        // SAFETY: `of` has written the first `count` words.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.count) }
    }

    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the words are the snapshot's own, and every byte of these is initialized.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), 8 * self.count) }
    }

    pub(super) fn damaged(&self, what: &str) -> Error {
        Error::Damaged(format!("leaf {:#x} {what}", self.offset))
    }

    pub(super) fn commit_word(&self) -> CommitWord {
        CommitWord(self.words()[0])
    }

    pub(super) fn next(&self) -> Offset {
        Offset::from_word(self.words()[SIBLING])
    }

    /// The low key, or the reference to it.
    pub(super) fn low(&self) -> Result<Value<'_>> {
        let word = self.commit_word();
        if !word.is_marked() {
            return Err(self.damaged("was never written"));
        }
        let from = 8 * HEADER_WORDS;
        let bytes = self
            .bytes()
            .get(from..from + word.low_bytes())
            .ok_or_else(|| self.damaged("has a low key that is too long"))?;
        Ok(if word.low_is_blob() {
            Value::Blob(Reference::from_bytes(bytes))
        } else {
            Value::Inline(bytes)
        })
    }

    /// The prefix of the leaf, whose low key is `low`.
    pub(super) fn prefix_in<'k>(&self, low: &'k [u8]) -> Result<&'k [u8]> {
        low.get(..self.commit_word().prefix())
            .ok_or_else(|| self.damaged("has a prefix that is longer than its low key"))
    }

    pub(super) fn misplaced(&self) -> Error {
        self.damaged("has a record that does not lie in it")
    }

    /// The records, in the order of their slots, each with its slot and its fingerprint.
    pub(super) fn records(&self) -> impl Iterator<Item = Result<RecordIn<'_>>> {
        let slots = self.commit_word().slots();
        let three = |from: usize| -> [u64; 3] { std::array::from_fn(|i| self.words()[from + i]) };
        let (fingerprints, places) = (three(FINGERPRINTS), three(PLACES));
        (0..SLOTS)
            .filter(move |slot| slots >> slot & 1 != 0)
            .map(move |slot| {
                let record = self.record_at(byte_of(&places, slot).into());
                let mut record = record.ok_or_else(|| self.misplaced())?;
                record.slot = slot;
                record.fingerprint = byte_of(&fingerprints, slot);
                Ok(record)
            })
    }

    /// The record that begins at `at`, in words, if one can. Its slot and its fingerprint are not filled in.
    #[inline(always)]
    fn record_at(&self, at: usize) -> Option<RecordIn<'_>> {
        if at < self.commit_word().heap_begin() || at >= self.count {
            return None;
        }
        let lengths = Lengths::of_word(self.words()[at]);
        let record = self.bytes().get(8 * at..8 * (at + lengths.words()))?;
        if !lengths.is_marked() {
            return None;
        }
        let key = &record[LENGTHS_BYTES..LENGTHS_BYTES + lengths.key()];
        let (suffix, key_blob) = if lengths.key_is_blob() {
            let (head, rest) = key.split_at(key.len().checked_sub(LONG_KEY_BYTES)?);
            let hash = super::layout::word_at(rest, 0);
            (head, Some((hash, Reference::from_bytes(&rest[8..]))))
        } else {
            (key, None)
        };
        let value = &record[record.len() - lengths.value()..];
        let value = if lengths.value_is_blob() {
            if value.len() != REFERENCE_BYTES {
                return None;
            }
            Value::Blob(Reference::from_bytes(value))
        } else {
            Value::Inline(value)
        };
        Some(RecordIn {
            slot: SLOTS,
            fingerprint: 0,
            at,
            words: lengths.words(),
            suffix,
            key_blob,
            value,
        })
    }

    /// What the records take, beside a low key of so many words.
    pub(super) fn live_words(&self, low: usize) -> Result<Words> {
        let mut words = Words {
            count: 0,
            records: 0,
            low,
        };
        for record in self.records() {
            words.count += 1;
            words.records += record?.words;
        }
        Ok(words)
    }

    /// Damage, if the leaf cannot be what was written: its records and its low key share bytes, or one of them is too long to lie in a leaf. Structure changes
    /// count on that.
    pub(super) fn expect_sound(&self, sizes: Sizes) -> Result<()> {
        let low = self.low()?;
        let is_too_long = |bytes: usize, most: usize| {
            let error = || self.damaged("has a record that is too long for a leaf");
            if bytes > most { Err(error()) } else { Ok(()) }
        };
        // Those of up to `most_key` bytes are never blobs, and are not looked for there.
        let expect_long = |blob: Reference| match blob.bytes as usize > sizes.most_key() {
            true => is_too_long(blob.bytes as usize, MOST_KEY_BYTES),
            false => Err(self.damaged("has a blob for a key that is too short for one")),
        };
        match low {
            Value::Inline(low) => is_too_long(low.len(), sizes.most_key())?,
            Value::Blob(low) => expect_long(low)?,
        }
        let mut words = low_words(&low);
        for record in self.records() {
            let record = record?;
            words += record.words;
            match record.key_blob {
                None => {
                    let key = self.commit_word().prefix() + record.suffix.len();
                    is_too_long(key, sizes.most_key())?;
                }
                Some((_, key)) => expect_long(key)?,
            }
            if let Value::Inline(value) = record.value {
                is_too_long(value.len(), sizes.most_value())?;
            }
        }
        if words > self.count - HEADER_WORDS {
            return Err(self.damaged("has records that share bytes"));
        }
        Ok(())
    }

    /// Every blob that the leaf refers to.
    pub(super) fn references(&self) -> Result<Vec<Reference>> {
        let mut all = Vec::new();
        if let Value::Blob(low) = self.low()? {
            all.push(low);
        }
        for record in self.records() {
            let record = record?;
            all.extend(record.key_blob.map(|(_, blob)| blob));
            if let Value::Blob(blob) = record.value {
                all.push(blob);
            }
        }
        Ok(all)
    }
}

/// Bytes in the buffer of [`Records`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    from: usize,
    to: usize,
}

/// A value of a record that was taken out of its leaf.
#[derive(Clone, Copy, Debug)]
pub(super) enum TakenValue {
    Inline(Part),
    Blob(Reference),
}

/// A record that was taken out of its leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    key: Part,
    pub(super) key_blob: Option<Reference>,
    pub(super) value: TakenValue,
    /// The number of its slot in the leaf that it comes from.
    pub(super) slot: usize,
    /// That of its key, if the leaf that it comes from has it.
    fingerprint: Option<u8>,
}

/// Records taken out of leaves, whole, with one buffer for all of their bytes.
#[derive(Default)]
pub(super) struct Records {
    bytes: Vec<u8>,
    pub(super) list: Vec<Taken>,
}

impl Records {
    fn part(&mut self, bytes: &[u8]) -> Part {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Part {
            from,
            to: self.bytes.len(),
        }
    }

    fn bytes_of(&self, part: Part) -> &[u8] {
        &self.bytes[part.from..part.to]
    }

    pub(super) fn key(&self, at: usize) -> &[u8] {
        self.bytes_of(self.list[at].key)
    }

    pub(super) fn value(&self, at: usize) -> Value<'_> {
        match self.list[at].value {
            TakenValue::Inline(part) => Value::Inline(self.bytes_of(part)),
            TakenValue::Blob(blob) => Value::Blob(blob),
        }
    }

    /// Adds all records of a leaf, whose low key is `low`, in no order. The caller is pinned, and the snapshot is a valid one.
    pub(super) fn take(&mut self, leaf: &Snapshot, low: &[u8], blobs: &Blobs) -> Result<()> {
        let prefix = leaf.prefix_in(low)?;
        // For these records and one more, as far as they are short.
        let slots = leaf.commit_word().slots().count_ones() as usize + 1;
        self.list.reserve(slots);
        self.bytes
            .reserve(leaf.bytes().len() + slots * prefix.len());
        for record in leaf.records() {
            let record = record?;
            let key = match record.key_blob {
                Some((_, blob)) => {
                    let key = blobs.bytes(blob);
                    if !key.starts_with(prefix) {
                        return Err(leaf.damaged("has a key without its prefix"));
                    }
                    self.part(key)
                }
                None => {
                    let from = self.bytes.len();
                    self.bytes.extend_from_slice(prefix);
                    self.bytes.extend_from_slice(record.suffix);
                    Part {
                        from,
                        to: self.bytes.len(),
                    }
                }
            };
            let value = match record.value {
                Value::Inline(value) => TakenValue::Inline(self.part(value)),
                Value::Blob(blob) => TakenValue::Blob(blob),
            };
            self.list.push(Taken {
                key,
                key_blob: record.key_blob.map(|(_, blob)| blob),
                value,
                slot: record.slot,
                fingerprint: Some(record.fingerprint),
            });
        }
        Ok(())
    }

    /// Adds a record.
    pub(super) fn push(&mut self, key: &[u8], key_blob: Option<Reference>, value: &Value<'_>) {
        let key = self.part(key);
        let value = match value {
            Value::Inline(value) => TakenValue::Inline(self.part(value)),
            Value::Blob(blob) => TakenValue::Blob(*blob),
        };
        self.list.push(Taken {
            key,
            key_blob,
            value,
            slot: SLOTS,
            fingerprint: None,
        });
    }

    /// Brings the records into the order of their keys.
    pub(super) fn sort(&mut self) {
        let bytes = &self.bytes;
        self.list
            .sort_unstable_by(|a, b| bytes[a.key.from..a.key.to].cmp(&bytes[b.key.from..b.key.to]));
    }

    /// An error if records, which are sorted, have keys that do not belong in a leaf of these ends. They come from the leaf at `from`, or from there on.
    pub(super) fn expect_between(
        &self,
        records: &Range<usize>,
        (low, high): (&[u8], Option<&[u8]>),
        from: Offset,
    ) -> Result<()> {
        let belongs = |at| {
            let key = self.key(at);
            low <= key && high.is_none_or(|high| key < high)
        };
        if records.is_empty() || belongs(records.start) && belongs(records.end - 1) {
            return Ok(());
        }
        Err(Error::Damaged(format!(
            "leaf {from:#x} has a key that does not belong there"
        )))
    }

    /// Drops the first `count` records.
    pub(super) fn drop_first(&mut self, count: usize) {
        let mut rest = Self::default();
        for at in count..self.list.len() {
            let key_blob = self.list[at].key_blob;
            rest.push(self.key(at), key_blob, &self.value(at));
        }
        *self = rest;
    }

    /// Words of the record at `at` in a leaf with a prefix of so many bytes.
    pub(super) fn words_of(&self, at: usize, prefix: usize) -> usize {
        let record = &self.list[at];
        let suffix = (record.key.to - record.key.from).saturating_sub(prefix);
        let key = match record.key_blob {
            Some(_) => suffix.min(super::layout::HEAD_BYTES) + LONG_KEY_BYTES,
            None => suffix,
        };
        let value = match record.value {
            TakenValue::Inline(part) => part.to - part.from,
            TakenValue::Blob(_) => REFERENCE_BYTES,
        };
        super::layout::record_words(key, value)
    }
}

/// Words that a low key takes.
pub(super) fn low_words(low: &Value<'_>) -> usize {
    match low {
        Value::Inline(low) => low.len().div_ceil(8),
        Value::Blob(_) => REFERENCE_BYTES / 8,
    }
}

/// The words of a new leaf of this size, in a tree with leaves of these sizes, with the records `range` of `records`, which fit.
pub(super) fn image(
    (sizes, size): (Sizes, Size),
    seed: u64,
    (low, prefix): (&Value<'_>, usize),
    next: Offset,
    records: &Records,
    range: Range<usize>,
) -> Vec<u64> {
    let mut image = vec![0; size.words()];
    let reference;
    let (bytes, is_blob) = match low {
        Value::Inline(low) => (*low, false),
        Value::Blob(blob) => {
            reference = blob.to_bytes();
            (&reference[..], true)
        }
    };
    let low_bytes = if is_blob { 0 } else { bytes.len() };
    let mut word = CommitWord::new(sizes.code_of(size), prefix, low_bytes, is_blob);
    for (at, word) in image[HEADER_WORDS..]
        .iter_mut()
        .enumerate()
        .take(bytes.len().div_ceil(8))
    {
        *word = super::layout::word_at(bytes, 8 * at);
    }
    let (mut fingerprints, mut places) = ([0; 3], [0; 3]);
    let mut end = word.heap_begin();
    for (slot, at) in range.enumerate() {
        let (key, record) = (records.key(at), &records.list[at]);
        // The same key has the same fingerprint in the leaf that it comes from. The hash is needed for long keys only.
        let (hash, its_fingerprint) = match (record.fingerprint, record.key_blob) {
            (Some(known), None) => (0, known),
            _ => {
                let hash = super::layout::hash(seed, key);
                (hash, fingerprint(hash))
            }
        };
        let key_blob = record.key_blob.map(|blob| (hash, blob));
        let count = write_record(
            &mut image[end..],
            &key[prefix..],
            key_blob,
            &records.value(at),
        );
        set_byte(&mut fingerprints, slot, its_fingerprint);
        set_byte(&mut places, slot, end as u8);
        word = word.with(slot);
        end += count;
    }
    image[0] = word.0;
    image[SIBLING] = next.get();
    image[FINGERPRINTS..PLACES].copy_from_slice(&fingerprints);
    image[PLACES..HEADER_WORDS].copy_from_slice(&places);
    image
}
