//! The bytes of the log: segments and records, written and read.
//!
//! ```text
//! segment: 1 MiB, at a multiple of that in the file PATH.log
//! +0     header: the first 64 bytes of a 4 KiB sector
//!        +0 "INDELLOG" +8 format (1) +16 uuid of the pool (16 bytes) +32 generation of the pool +40 ordinal +48 zero
//!        +56 checksum of the words before
//! +4096  records, one after the other
//!
//! record: 8-byte words
//! +0     bits 0..31 words of the payload, bits 32..63 kind: 1 batch, 2 padding
//! +8     checksum: of the payload (of a batch), the word before, the uuid, the generation, and the position
//! +16    payload of a batch: runs of words. Each begins with a word that says where the run belongs (bits 0..39 number of the first
//!        word in the pool, bits 40..63 words), and then has the words. The payload of padding is not looked at.
//! ```
//!
//! A *position* is the ordinal of a segment, times its length, plus the place in it. Positions only grow while a pool is open, also
//! where a segment of the file is used again; at the next open they begin anew, with another generation. The checksum depends on the
//! generation and the position, so that nothing that was written to this place earlier, or elsewhere, is mistaken for a record.

use crate::pmem::geometry::sized_in_tests;
use crate::pmem::journal::{MOST_WORDS, Word};
use crate::pmem::planted::planted;
use crate::pool::log::Bug;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in a sector: what a disk writes whole or not at all is at most this long, and a sync never shares a sector with what comes
/// after it.
pub(super) const SECTOR_WORDS: usize = 4096 / 8;
/// Words in a segment, the unit in which the log grows and is used again.
pub(super) const SEGMENT_WORDS: usize = sized_in_tests(1 << 20, 12 << 10) / 8;
/// Bytes in a segment.
pub(super) const SEGMENT_BYTES: u64 = SEGMENT_WORDS as u64 * 8;
/// Words before the first record of a segment.
pub(super) const HEADER_WORDS: usize = SECTOR_WORDS;
/// Words of a record before its payload.
pub(super) const RECORD_WORDS: usize = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"INDELLOG");
const FORMAT: u64 = 1;
const BATCH: u64 = 1;
const PADDING: u64 = 2;
/// Bits of a run's first word that say where the run belongs.
const PLACE_BITS: u32 = 40;

// The longest batch, every word a run of its own, fits into a segment.
const _: () = assert!(HEADER_WORDS + RECORD_WORDS + 2 * MOST_WORDS <= SEGMENT_WORDS);

/// What makes the checksums of one session of one pool different from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uuid: [u64; 2],
    pub(crate) generation: u64,
}

fn mix(hash: u64, word: u64) -> u64 {
    // For a given word this is a bijection of the hash, so that no difference is lost on the way.
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

fn digest(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0x5bd1_e995_1234_5678, mix)
}

impl Identity {
    fn seal(&self, digest: u64, head: u64, position: u64) -> u64 {
        let (generation, position) = if planted(Bug::ChecksumNotSeeded) {
            (0, 0)
        } else {
            (self.generation, position)
        };
        [head, self.uuid[0], self.uuid[1], generation, position]
            .into_iter()
            .fold(digest, mix)
    }

    /// The header of the segment `ordinal`.
    pub(super) fn header(&self, ordinal: u64) -> [u64; 8] {
        let [a, b] = self.uuid;
        let mut words = [MAGIC, FORMAT, a, b, self.generation, ordinal, 0, 0];
        words[7] = digest(words[..7].iter().copied());
        words
    }

    /// The ordinal of a segment of this session, from its header.
    pub(super) fn ordinal(&self, segment: &[AtomicU64]) -> Option<u64> {
        let header = Header::read(segment)?;
        (header.identity == *self).then_some(header.ordinal)
    }
}

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) identity: Identity,
    pub(super) ordinal: u64,
}

impl Header {
    /// The header of a segment, if it has a whole one.
    pub(super) fn read(segment: &[AtomicU64]) -> Option<Self> {
        let words: [u64; 8] = std::array::from_fn(|i| segment[i].load(Ordering::Relaxed));
        let is_header = words[0] == MAGIC && words[1] == FORMAT;
        let is_whole = words[7] == digest(words[..7].iter().copied());
        // Ordinals count one at a time, so that a position never overflows.
        let is_possible = words[5] < 1 << 40;
        (is_header && is_whole && is_possible).then(|| Self {
            identity: Identity {
                uuid: [words[2], words[3]],
                generation: words[4],
            },
            ordinal: words[5],
        })
    }
}

/// A batch, encoded, except for what depends on its position.
#[derive(Default)]
pub(super) struct Encoded {
    /// Two words for the head, then the payload, then words that do not count. Kept for its memory.
    buffer: Vec<u64>,
    length: usize,
    digest: u64,
}

impl Encoded {
    /// Encodes a batch.
    pub(super) fn set(&mut self, batch: &[Word]) {
        // Every word may be a run of its own.
        let most = RECORD_WORDS + 2 * batch.len();
        if self.buffer.len() < most {
            self.buffer.resize(most, 0);
        }
        let words = &mut self.buffer[..most];
        let (mut run, mut length, mut next) = (0, RECORD_WORDS, u64::MAX);
        for &(at, value) in batch {
            if at != next {
                run = length;
                words[run] = at;
                length += 1;
            }
            words[run] += 1 << PLACE_BITS;
            words[length] = value;
            length += 1;
            next = at + 1;
        }
        self.digest = digest(words[RECORD_WORDS..length].iter().copied());
        self.length = length;
    }

    /// The words of the record.
    pub(super) fn words(&self) -> &[u64] {
        &self.buffer[..self.length]
    }

    /// Completes the head, for this position.
    pub(super) fn seal(&mut self, identity: &Identity, position: u64) {
        let head = (self.length - RECORD_WORDS) as u64 | BATCH << 32;
        self.buffer[0] = head;
        self.buffer[1] = identity.seal(self.digest, head, position);
    }
}

/// Padding of this many words, two of which these are.
pub(super) fn padding(identity: &Identity, words: usize, position: u64) -> [u64; RECORD_WORDS] {
    let head = (words - RECORD_WORDS) as u64 | PADDING << 32;
    [head, identity.seal(0, head, position)]
}

/// The runs of a batch: where each belongs, and its words.
pub(super) fn runs(payload: &[u64]) -> impl Iterator<Item = (u64, &[u64])> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        let (&first, words) = rest.split_first()?;
        let (run, after) = words.split_at((first >> PLACE_BITS) as usize);
        rest = after;
        Some((first & ((1 << PLACE_BITS) - 1), run))
    })
}

/// Whether a payload consists of whole runs.
fn is_whole(payload: &[u64]) -> bool {
    let mut rest = payload;
    while let Some((&first, words)) = rest.split_first() {
        let length = (first >> PLACE_BITS) as usize;
        if length == 0 || length > words.len() {
            return false;
        }
        rest = &words[length..];
    }
    true
}

/// A record that was read.
#[derive(Debug)]
pub(super) enum Record {
    /// A batch, whose payload is in the buffer; see [`runs`].
    Batch,
    Padding,
}

/// Reads the record at word `at` of a segment whose ordinal is `ordinal`, and returns how many words it has. `None` if there is none: the
/// log ends here, or goes on in the next segment.
pub(super) fn read(
    identity: &Identity,
    segment: &[AtomicU64],
    ordinal: u64,
    at: usize,
    buffer: &mut Vec<u64>,
) -> Option<(Record, usize)> {
    let head = segment.get(at)?.load(Ordering::Relaxed);
    let checksum = segment.get(at + 1)?.load(Ordering::Relaxed);
    let (length, kind) = ((head as u32) as usize, head >> 32);
    let words = RECORD_WORDS + length;
    if words > segment.len() - at || !(kind == BATCH || kind == PADDING) {
        return None;
    }
    let position = ordinal * SEGMENT_BYTES + at as u64 * 8;
    if kind == PADDING {
        return (checksum == identity.seal(0, head, position)).then_some((Record::Padding, words));
    }
    buffer.clear();
    let payload = &segment[at + RECORD_WORDS..at + words];
    buffer.extend(payload.iter().map(|word| word.load(Ordering::Relaxed)));
    let expected = identity.seal(digest(buffer.iter().copied()), head, position);
    if (checksum != expected && !planted(Bug::ChecksumIgnored)) || !is_whole(buffer) {
        return None;
    }
    Some((Record::Batch, words))
}
