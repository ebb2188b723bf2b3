//! The bytes of the log: segments and records, written and read.
//!
//! ```text
//! segment: 1 MiB, at a multiple of that in the file PATH.log
//! +0     header: the first 128 bytes of a 4 KiB sector
//!        +0   "INDELLOG"
//!        +8   format (2; in format 1 the word at +56 is the checksum, and there are no others behind it)
//!        +16  uuid of the pool, 16 bytes
//!        +32  generation of the pool: the session
//!        +40  ordinal of the segment
//!        +48  ordinal of the first segment of the session
//!        +56  words in the pool when the session began
//!        +64  generation of the earlier session that the session continues, 0 if there is none
//!        +72  position where the log of that session ends
//!        +80  position up to which the log was on the disk when this header was written
//!        +88  position up to which records were in the pool's file then, on the disk; 0 if a version wrote the header that did not say
//!        +96  zero
//!        +120 checksum of the words before
//! +4096  records, one after the other
//!
//! record: 8-byte words
//! +0     bits 0..31 words of the payload, bits 32..63 kind: 1 batch, 2 padding
//! +8     checksum: of the payload (of a batch), the word before, the uuid, the generation, and the position
//! +16    payload of a batch: runs of words. Each begins with a word that says where the run belongs (bits 0..39 number of the first
//!        word in the pool, bits 40..63 words), and then has the words. The payload of padding is not looked at; at the end of a
//!        segment it has the segment's footer, see `footer`.
//! ```
//!
//! A *position* is the ordinal of a segment, times its length, plus the place in it. Positions only grow while a pool is open, also
//! where a segment of the file is used again, and from a session to one that continues it; where nothing is continued they begin anew,
//! with another generation. The checksum depends on the generation and the position, so that nothing that was written to this place
//! earlier, or elsewhere, is mistaken for a record.

use crate::pmem::geometry::sized_in_tests;
use crate::pmem::journal::{MOST_WORDS, Word};
use crate::pmem::planted::planted;
use crate::pool::log::Bug;
use crate::pool::log::footer::EXTENT_WORDS;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in a sector: what a disk writes whole or not at all is at most this long, and a sync never shares a sector with what comes
/// after it.
pub(super) const SECTOR_WORDS: usize = 4096 / 8;
/// Words in a segment, the unit in which the log grows and is used again.
pub(super) const SEGMENT_WORDS: usize = sized_in_tests(1 << 20, 20 << 10) / 8;
/// Bytes in a segment.
pub(super) const SEGMENT_BYTES: u64 = SEGMENT_WORDS as u64 * 8;
/// Words before the first record of a segment.
pub(super) const HEADER_WORDS: usize = SECTOR_WORDS;
/// Words of a record before its payload.
pub(super) const RECORD_WORDS: usize = 2;

const MAGIC: u64 = u64::from_le_bytes(*b"INDELLOG");
const FORMAT: u64 = 2;
const FORMAT_WITHOUT_SESSIONS: u64 = 1;
/// Words of a header, of either format.
const WORDS_OF_HEADER: usize = 16;
const WORDS_OF_OLD_HEADER: usize = 8;
const BATCH: u64 = 1;
const PADDING: u64 = 2;
/// What the kind of a record is in a footer.
pub(super) const FOOTER: u64 = 3;
/// Bits of a run's first word that say where the run belongs.
pub(super) const PLACE_BITS: u32 = 40;

// The longest batch, every word a run of its own, fits into a segment.
const _: () = assert!(
    HEADER_WORDS + RECORD_WORDS + 2 * MOST_WORDS + super::footer::LEAST_ROOM <= SEGMENT_WORDS
);

/// The word of the segment `ordinal` at a position, or its end.
pub(super) fn word_in(position: u64, ordinal: u64) -> usize {
    let bytes = position.saturating_sub(ordinal * SEGMENT_BYTES);
    ((bytes / 8) as usize).min(SEGMENT_WORDS)
}

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

pub(super) fn digest(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(0x5bd1_e995_1234_5678, mix)
}

impl Identity {
    pub(super) fn seal(&self, digest: u64, head: u64, position: u64) -> u64 {
        let (generation, position) = if planted(Bug::ChecksumNotSeeded) {
            (0, 0)
        } else {
            (self.generation, position)
        };
        [head, self.uuid[0], self.uuid[1], generation, position]
            .into_iter()
            .fold(digest, mix)
    }
}

/// A session of a log, as each header of its segments tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) identity: Identity,
    /// Ordinal of the first segment.
    pub(super) first: u64,
    /// Words in the pool when the session began. What earlier sessions wrote behind them had been cut off.
    pub(super) words: u64,
    /// The session that this one continues: its generation, and where its log ends.
    pub(super) earlier: Option<(u64, u64)>,
}

impl Session {
    /// The header of the segment `ordinal`, written when the log was on the disk up to `durable`, and in the pool's file up to `applied`.
    pub(super) fn header(
        &self,
        ordinal: u64,
        durable: u64,
        applied: u64,
    ) -> [u64; WORDS_OF_HEADER] {
        let Identity { uuid, generation } = self.identity;
        let (earlier, end) = self.earlier.unwrap_or_default();
        let (first, pool) = (self.first, self.words);
        let mut words = [0; WORDS_OF_HEADER];
        words[..12].copy_from_slice(&[
            MAGIC, FORMAT, uuid[0], uuid[1], generation, ordinal, first, pool, earlier, end,
            durable, applied,
        ]);
        words[WORDS_OF_HEADER - 1] = digest(words[..WORDS_OF_HEADER - 1].iter().copied());
        words
    }
}

/// A header of format 1.
#[cfg(all(test, not(loom)))]
pub(super) fn old_header(identity: &Identity, ordinal: u64) -> [u64; WORDS_OF_OLD_HEADER] {
    let [a, b] = identity.uuid;
    let mut words = [MAGIC, 1, a, b, identity.generation, ordinal, 0, 0];
    words[7] = digest(words[..7].iter().copied());
    words
}

/// What a segment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) session: Session,
    pub(super) ordinal: u64,
    /// Up to here the log was on the disk for certain when the header was written.
    pub(super) durable: u64,
    /// And up to here its records were in the pool's file; 0 if that is not known.
    pub(super) applied: u64,
}

impl Header {
    /// The header of a segment, if it has a whole one.
    pub(super) fn read(segment: &[AtomicU64]) -> Option<Self> {
        let mut words: [u64; WORDS_OF_HEADER] =
            std::array::from_fn(|i| segment[i].load(Ordering::Relaxed));
        let length = match words[1] {
            FORMAT => WORDS_OF_HEADER,
            FORMAT_WITHOUT_SESSIONS => WORDS_OF_OLD_HEADER,
            _ => return None,
        };
        let is_whole = words[length - 1] == digest(words[..length - 1].iter().copied());
        // Ordinals count one at a time, so that a position never overflows.
        let is_possible = words[5] < 1 << 40 && words[6] <= words[5];
        if words[0] != MAGIC || !is_whole || !is_possible {
            return None;
        }
        if length == WORDS_OF_OLD_HEADER {
            // Every session began with ordinal 0, and nothing was cut off behind it.
            words[6..].copy_from_slice(&[0, u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        if words[8] != 0 && words[9] == 0 {
            // The log of an earlier session ends behind the header of a segment.
            return None;
        }
        Some(Self {
            session: Session {
                identity: Identity {
                    uuid: [words[2], words[3]],
                    generation: words[4],
                },
                first: words[6],
                words: words[7],
                earlier: (words[8] != 0).then_some((words[8], words[9])),
            },
            ordinal: words[5],
            durable: words[10],
            applied: words[11],
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
    extents: usize,
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
        let (mut extents, mut extent) = (0, u64::MAX);
        for &(at, value) in batch {
            if at != next {
                run = length;
                words[run] = at;
                length += 1;
                extents += usize::from(at / EXTENT_WORDS != extent);
                extent = at / EXTENT_WORDS;
            }
            words[run] += 1 << PLACE_BITS;
            words[length] = value;
            length += 1;
            next = at + 1;
        }
        self.digest = digest(words[RECORD_WORDS..length].iter().copied());
        self.length = length;
        self.extents = extents;
    }

    /// About how many extents there are words for, in an index.
    pub(super) fn extents(&self) -> usize {
        self.extents
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

/// Where a run belongs, and how many words it has, from its first word.
pub(super) fn place_of(first: u64) -> (u64, u64) {
    (first & ((1 << PLACE_BITS) - 1), first >> PLACE_BITS)
}

/// The first word of a run of this many words.
pub(super) fn first_of_run(place: u64, length: u64) -> u64 {
    place | length << PLACE_BITS
}

/// The runs of a batch: where each belongs, and its words.
pub(super) fn runs(payload: &[u64]) -> impl Iterator<Item = (u64, &[u64])> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        let (&first, words) = rest.split_first()?;
        let (place, length) = place_of(first);
        let (run, after) = words.split_at(length as usize);
        rest = after;
        Some((place, run))
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

/// The record at word `at` of a segment, whatever its checksum, and how many words it has. `None` if there can be none. The payload of a batch is
/// in the buffer.
pub(super) fn glance(
    segment: &[AtomicU64],
    at: usize,
    buffer: &mut Vec<u64>,
) -> Option<(Record, usize)> {
    let head = segment.get(at)?.load(Ordering::Relaxed);
    let (length, kind) = ((head as u32) as usize, head >> 32);
    let words = RECORD_WORDS + length;
    if words > segment.len() - at {
        return None;
    }
    match kind {
        PADDING => return Some((Record::Padding, words)),
        BATCH => {}
        _ => return None,
    }
    buffer.clear();
    let payload = &segment[at + RECORD_WORDS..at + words];
    buffer.extend(payload.iter().map(|word| word.load(Ordering::Relaxed)));
    is_whole(buffer).then_some((Record::Batch, words))
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
    let (record, words) = glance(segment, at, buffer)?;
    let head = segment[at].load(Ordering::Relaxed);
    let checksum = segment.get(at + 1)?.load(Ordering::Relaxed);
    let position = ordinal * SEGMENT_BYTES + at as u64 * 8;
    let is_batch = matches!(record, Record::Batch);
    let digest = if is_batch {
        digest(buffer.iter().copied())
    } else {
        0
    };
    let is_sound = checksum == identity.seal(digest, head, position);
    // (The planted bug concerns batches.)
    (is_sound || is_batch && planted(Bug::ChecksumIgnored)).then_some((record, words))
}
