//! What is in a full segment, in short, at its end: so that an open after a crash reads neither all of the log nor every record.
//!
//! An [`Index`] says which records of a segment have words for which extents. An open makes one of each segment that it reads record by
//! record. A *footer* is the index of a full segment, written to the segment's last sectors.
//!
//! ```text
//! the last words of a segment, in sectors of their own, in the payload of the padding that fills the segment:
//! -24-n  index: for each extent that there are words for, in order,
//!          its distance to the one before (of the first: its number), and the number of bytes that follow
//!          for each record with words for it, in order: its distance in words to the one before (of the first: to the segment's begin)
//!        All numbers are in bytes of seven bits, the low ones first; all bytes but the last one of a number have 0x80. Zeros up to a multiple of 8.
//! -24    bits 0..31 bytes of the index, bits 32..63 kind: 3 footer
//! -16    bits 0..31 batches in the segment, bits 32..63 words of their payloads
//! -8     checksum: of the index and the two words before, the uuid, the generation, and the position of the segment's end
//! ```
//!
//! # What a footer is believed for
//!
//! A footer is written when all records of its segment are on the disk, and the checksum names the session and the segment. So whoever finds a
//! whole one knows, without reading the records, that *the log was on the disk up to the segment's end*, and where its records are. If a
//! record is not whole after all, the disk has lost what it had: an open that reads the record, or whoever applies it, finds that by the record's own
//! checksum, and reports it ([`Error::Damaged`](crate::Error::Damaged)).
//!
//! A footer is never needed. One that is torn, or missing, since power failed before the next sync, or since it would not fit into its
//! place, or since an older version has written the log, only means that the segment's records are read. Older versions take a footer for what it lies in, padding.

use super::apply::SUPERBLOCK_WORDS;
use super::device::put;
use super::record::{
    self, FOOTER, HEADER_WORDS, Identity, RECORD_WORDS, Record, SECTOR_WORDS, SEGMENT_BYTES,
    SEGMENT_WORDS, runs,
};
use super::{Appender, Bug, Log};
use crate::Result;
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::pool::layout::{EXTENT_BYTES, MAX_EXTENTS};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in an extent.
pub(super) const EXTENT_WORDS: u64 = EXTENT_BYTES / 8;

/// Words behind the index.
const TAIL_WORDS: usize = 3;

/// Words at the end of a segment that records leave free for its footer, apart from those for what is in it: a sector for the head of the padding,
/// and one for the footer.
pub(super) const LEAST_ROOM: usize = 2 * SECTOR_WORDS;

/// Words for a footer in which the records of each extent are so many in all. Three bytes for each: two, since there are not more than some thousand
/// extents as a rule, so that records for one of them are near each other, and one for the extents themselves.
fn room_for(entries: usize) -> usize {
    LEAST_ROOM + entries * 3 / 8
}

/// Which records of a segment have words for which extents.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// As in a footer.
    bytes: Vec<u8>,
    /// The extents, in order, and where in `bytes` the places of their records are.
    extents: Vec<(u32, Range<u32>)>,
}

impl Index {
    /// The index of records, from pairs of an extent and a record's place, by record.
    pub(super) fn of(mut pairs: Vec<(u32, u32)>) -> Self {
        // Stable: the records of each extent stay in order.
        radsort::sort_by_key(&mut pairs, |&(extent, _)| extent);
        pairs.dedup();
        let mut this = Self::default();
        let (mut places, mut extent) = (Vec::new(), 0);
        for of_extent in pairs.chunk_by(|a, b| a.0 == b.0) {
            places.clear();
            let mut before = 0;
            for &(_, at) in of_extent {
                put_number(&mut places, at - before);
                before = at;
            }
            put_number(&mut this.bytes, of_extent[0].0 - extent);
            put_number(&mut this.bytes, places.len() as u32);
            extent = of_extent[0].0;
            let begin = this.bytes.len() as u32;
            this.bytes.extend_from_slice(&places);
            this.extents.push((extent, begin..this.bytes.len() as u32));
        }
        this
    }

    /// Reads the index of a footer; `None` if it is none.
    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let (mut extents, mut rest, mut extent) = (Vec::new(), &bytes[..], 0_u32);
        while !rest.is_empty() {
            extent = extent.checked_add(take_number(&mut rest)?)?;
            let length = take_number(&mut rest)? as usize;
            let begin = bytes.len() - rest.len();
            rest = rest.get(length..)?;
            extents.push((extent, begin as u32..(begin + length) as u32));
        }
        Some(Self { bytes, extents })
    }

    /// The extents for which there are words.
    pub(super) fn extents(&self) -> impl Iterator<Item = u64> + '_ {
        self.extents.iter().map(|(extent, _)| u64::from(*extent))
    }

    /// Where the records are that have words for an extent, in order.
    pub(super) fn records_of(&self, extent: u64) -> impl Iterator<Item = usize> + '_ {
        let found = self
            .extents
            .binary_search_by_key(&extent, |it| u64::from(it.0));
        let places = found.map_or(0..0, |at| self.extents[at].1.clone());
        let mut rest = &self.bytes[places.start as usize..places.end as usize];
        let mut at = 0_usize;
        std::iter::from_fn(move || {
            // A damaged number leads behind the segment, where there is no record.
            at = at.saturating_add(take_number(&mut rest)? as usize);
            Some(at)
        })
    }
}

/// Appends a number, seven bits a byte.
fn put_number(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..u32::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Notes the extents that a batch at word `at` of its segment has words for.
pub(super) fn note(at: usize, payload: &[u64], pairs: &mut Vec<(u32, u32)>) {
    for (place, words) in runs(payload) {
        // A run may go on in the next extent.
        let last = (place + words.len() as u64 - 1) / EXTENT_WORDS;
        for extent in place / EXTENT_WORDS..=last.min(MAX_EXTENTS) {
            let pair = (extent as u32, at as u32);
            // Most records have words for one extent.
            if pairs.last() != Some(&pair) {
                pairs.push(pair);
            }
        }
    }
}

/// What a segment's footer says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) index: Index,
    /// Batches in the segment.
    pub(super) records: u32,
    /// Words of their payloads.
    pub(super) payload: u32,
}

impl Footer {
    /// The words of the footer: the last ones of the segment.
    fn words(&self, identity: &Identity, ordinal: u64) -> Vec<u64> {
        let index = self.index.bytes.chunks(8).map(|bytes| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        let mut words: Vec<u64> = index.collect();
        words.push(self.index.bytes.len() as u64 | FOOTER << 32);
        words.push(u64::from(self.records) | u64::from(self.payload) << 32);
        words.push(checksum(identity, ordinal, &words));
        words
    }

    /// The footer of a segment, if it has a whole one.
    pub(super) fn read(identity: &Identity, segment: &[AtomicU64], ordinal: u64) -> Option<Self> {
        let load = |at: usize| segment[at].load(Ordering::Relaxed);
        let head = load(SEGMENT_WORDS - TAIL_WORDS);
        let length = head as u32 as usize;
        let most = (SEGMENT_WORDS - TAIL_WORDS - HEADER_WORDS) * 8;
        if head >> 32 != FOOTER || length > most {
            return None;
        }
        let begin = SEGMENT_WORDS - TAIL_WORDS - length.div_ceil(8);
        let words: Vec<u64> = (begin..SEGMENT_WORDS - 1).map(load).collect();
        let is_whole = load(SEGMENT_WORDS - 1) == checksum(identity, ordinal, &words);
        if !is_whole && !planted(Bug::FooterChecksumIgnored) {
            return None;
        }
        let counts = words[words.len() - 1];
        let mut bytes = Vec::with_capacity(words.len() * 8);
        for word in &words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.truncate(length);
        Some(Self {
            index: Index::parse(bytes)?,
            records: counts as u32,
            payload: (counts >> 32) as u32,
        })
    }

    /// The footer of a segment whose records are all whole, and where it may begin: in no sector that has a part of a record, or of the padding's head (I5).
    /// `None` if the segment is not full.
    fn of(segment: &[AtomicU64]) -> Option<(Self, usize)> {
        let (mut pairs, mut buffer) = (Vec::new(), Vec::new());
        let (mut records, mut payload) = (0, 0);
        let mut at = HEADER_WORDS;
        let padding = loop {
            let (record, words) = record::glance(segment, at, &mut buffer)?;
            if let Record::Batch = record {
                note(at, &buffer, &mut pairs);
                records += 1;
                payload += buffer.len() as u32;
            } else if at + words == SEGMENT_WORDS {
                break at;
            }
            at += words;
        };
        if planted(Bug::FooterForgetsRecord) {
            pairs.pop();
        }
        let this = Self {
            index: Index::of(pairs),
            records,
            payload,
        };
        Some((
            this,
            (padding + RECORD_WORDS).next_multiple_of(SECTOR_WORDS),
        ))
    }
}

fn checksum(identity: &Identity, ordinal: u64, words: &[u64]) -> u64 {
    let seed = if planted(Bug::FooterNotSeeded) {
        (
            Identity {
                generation: 0,
                ..*identity
            },
            0,
        )
    } else {
        (*identity, (ordinal + 1) * SEGMENT_BYTES)
    };
    let head = words[words.len() + 1 - TAIL_WORDS];
    seed.0
        .seal(record::digest(words.iter().copied()), head, seed.1)
}

/// The words of superblocks in a batch, in order.
pub(super) fn words_of_superblocks(payload: &[u64]) -> impl Iterator<Item = (u64, u64)> + '_ {
    runs(payload).flat_map(|(at, words)| (at..SUPERBLOCK_WORDS).zip(words.iter().copied()))
}

impl Appender {
    /// Words of the current segment that records may use: the rest is for its footer.
    pub(super) fn limit(&self) -> usize {
        SEGMENT_WORDS - room_for(self.entries)
    }
}

impl Log {
    /// Writes the footer of the oldest segment that is full, whose records are on the disk, and that has none yet; whether there was one.
    pub(super) fn write_footer(&self) -> Result<bool> {
        // Nobody uses the segment again meanwhile.
        let _preparing = lock(&self.preparing);
        let used = self.used_segments();
        let ordinal = self.next_footer.load(Ordering::Relaxed).max(used[0].0);
        let is_full = ordinal < used[used.len() - 1].0;
        let is_durable =
            self.durable() >= (ordinal + 1) * SEGMENT_BYTES || planted(Bug::FooterAheadOfSync);
        if !is_full || !is_durable {
            return Ok(false);
        }
        self.next_footer.store(ordinal + 1, Ordering::Relaxed);
        let Some(&(_, slot)) = used.get((ordinal - used[0].0) as usize) else {
            return Ok(false);
        };
        let segment = self.device.segment(slot);
        if let Some((footer, first)) = Footer::of(segment) {
            let words = footer.words(&self.session.identity, ordinal);
            if first + words.len() <= SEGMENT_WORDS {
                let begin = SEGMENT_WORDS - words.len();
                put(segment, begin, &words);
                // It gets to the disk with the next sync, whoever waits for that. Without it, recovery reads the segment's records.
                let place = (slot, begin..SEGMENT_WORDS);
                let written = self.device.write_out(&place);
                self.fail(written)?;
                self.device.begin_write(&place);
            }
        }
        Ok(true)
    }
}
