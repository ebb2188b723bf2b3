//! The superblock: what a pool is, in two copies.
//!
//! ```text
//! copy A at 0, copy B at 4096, 4096 bytes each, of which the first 104 count:
//! +0   magic        "INDELIBL"
//! +8   format       bits 0..31 version (1 or 2; 3 if the pool has a log), bits 32..63 line size (64)
//! +16  endianness   0x0102030405060708
//! +24  uuid         16 bytes
//! +40  sequence     of two valid copies the higher one counts, which was written last; of equal ones (of earlier versions), B was
//! +48  generation   one more at every open for writing
//! +56  durability   bits 0..31: 1 process, 2 power loss, 3 power-loss protocol forced on an ordinary file, 4 power loss with a log,
//!                   5 power loss with a log that is synced at intervals; bits 32..63: of 5, the interval in milliseconds
//! +64  state        1 after a clean close; while open for writing twice the generation of the earlier session whose log this session
//!                   continues, or 0 if there is none
//! +72  boot         16 bytes: the boot identity of the machine that has, or last had, the pool open for writing; in a copy that was made of an open
//!                   pool, and not opened yet, [`COPIED`]; in a pool without a log of which a sync has failed, both words XOR [`UNSYNCED`]
//! +88  extents      length of the pool in extents of 2 MiB, including extent 0
//! +96  checksum     CRC-32 of bytes 0..96; in all versions
//! ```
//!
//! A pool with a log has the session's generation in the file before its log has records. So the superblock is written into the
//! file directly at open and at close, a copy at a time; in between it changes as other words do, through the log. At open, the log gets its
//! first segment between the two copies: if both are of one session, that session has a log.
//!
//! A change is written to one copy, and then to the other one, which is not touched before the first one is durable. There is no 8-byte commit here: the
//! checksum is what makes a copy valid. A crash while the first copy is written leaves the other one, which is the state before; a crash while that is written
//! leaves the first one, which is the state after. So one damaged copy is always survived. Which copy is the first one, and how a disk is dealt with whose syncs
//! fail: see [`Superblock::write_first`] for what is mapped, and [`Writes`] for what is written to the file directly.

use super::layout::{COPY_BYTES, EXTENT_BYTES, MAX_EXTENTS};
use crate::pmem::planted::planted;
use crate::pmem::{Cell, LINE, Medium, Pm};
use crate::pool::Bug;
use crate::{Error, Result};
use std::path::Path;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"INDELIBL");
/// Newest version of the format. Versions that do not know logs must not open a pool whose log has not been applied: pools with a log are of
/// format 3, all others of format 2. Format 1 had the options of a map in the upper half of the word at +8 of its
/// catalog entry and no version of the object's format: both are told by the zero at +96. A pool of format 1 becomes one of format
/// 2 when it is opened for writing.
pub(super) const FORMAT: u32 = 3;
/// The version of pools without a log.
const FORMAT_WITHOUT_LOG: u32 = 2;
const ENDIANNESS: u64 = 0x0102_0304_0506_0708;
/// What a copy of an open pool has in place of a boot identity. The copy says that it was closed, in a session whose log goes on, beside the original.
pub(super) const COPIED: [u64; 2] = [
    u64::from_le_bytes(*b"INDELIBL"),
    u64::from_le_bytes(*b"E-BACKUP"),
];
/// See [`Superblock::is_unsynced`]. A version that does not know this takes such a pool for one whose machine went down, and refuses it.
const UNSYNCED: u64 = u64::from_le_bytes(*b"UNSYNCED");
/// Words that count, the checksum the last of them.
const WORDS: usize = 13;

/// One copy.
#[cfg_attr(not(feature = "small"), repr(C, align(4096)))]
#[cfg_attr(feature = "small", repr(C, align(1024)))]
pub(super) struct Copy {
    words: [Cell; COPY_BYTES / 8],
}

const _: () = assert!(size_of::<Copy>() == COPY_BYTES);

#[cfg(any(all(test, not(loom)), feature = "trace"))]
impl Copy {
    /// A copy outside any pool.
    pub(super) fn from_words(words: [Cell; COPY_BYTES / 8]) -> Self {
        Self { words }
    }

    pub(super) fn cells(&self) -> &[Cell; COPY_BYTES / 8] {
        &self.words
    }
}

/// Promises that a pool can be made for, as the superblock records them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    Process,
    /// On persistent memory.
    PowerLoss,
    /// Flushes and fences as for power loss, on a file whose pages are in the page cache all the same.
    ForcedPowerLoss,
    /// Power loss, by a log.
    Logged,
    /// Power loss, by a log that is synced after this many milliseconds.
    LoggedAtIntervals(u32),
}

impl Promise {
    fn from_word(word: u64) -> Option<Self> {
        let interval = (word >> 32) as u32;
        match word as u32 {
            1 => Some(Self::Process),
            2 => Some(Self::PowerLoss),
            3 => Some(Self::ForcedPowerLoss),
            4 => Some(Self::Logged),
            5 => return Some(Self::LoggedAtIntervals(interval)),
            _ => None,
        }
        .filter(|_| interval == 0)
    }

    fn word(self) -> u64 {
        match self {
            Self::Process => 1,
            Self::PowerLoss => 2,
            Self::ForcedPowerLoss => 3,
            Self::Logged => 4,
            Self::LoggedAtIntervals(interval) => 5 | u64::from(interval) << 32,
        }
    }

    /// Whether the pool has a log.
    pub(super) fn is_logged(self) -> bool {
        matches!(self, Self::Logged | Self::LoggedAtIntervals(_))
    }

    /// Whether the pool's bytes go to the disk in no particular order, so that they are worth nothing if the machine
    /// goes down while the pool is open.
    pub(super) fn is_page_cached(self) -> bool {
        matches!(self, Self::Process | Self::ForcedPowerLoss)
    }
}

/// What the superblock says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) uuid: [u64; 2],
    /// As read, that of the newer copy. Where copies are written, that of the first one; the last one has the next number.
    pub(super) sequence: u64,
    pub(super) generation: u64,
    pub(super) promise: Promise,
    pub(super) clean: bool,
    /// The generation of an earlier session whose log may have records that are not in the file yet; 0 if there is none. See `pool::log`.
    pub(super) earlier: u64,
    pub(super) boot: [u64; 2],
    pub(super) extents: u64,
}

/// What a pool has in place of this boot identity when a sync of its file has failed.
pub(super) fn unsynced(boot: [u64; 2]) -> [u64; 2] {
    boot.map(|word| word ^ UNSYNCED)
}

impl Superblock {
    /// Whether a sync of the pool's file has failed in this boot, and nothing was written again since. What the page cache has is right; what the disk has nobody knows,
    /// since the kernel takes the pages for clean.
    pub(super) fn is_unsynced(&self, boot: [u64; 2]) -> bool {
        !self.clean && self.boot == unsynced(boot)
    }

    /// Length of the pool.
    pub(super) fn bytes(&self) -> u64 {
        self.extents * EXTENT_BYTES
    }

    /// Writes the first of both copies where the pool is mapped, and returns the second one, which gets the next sequence.
    ///
    /// At every moment at most one copy may be other on the disk than the file says, or torn: the one that was written last, since nobody waits for it, and the
    /// sync of it may have failed. If the process died while it was being written, it is torn in the file too. So that copy is the first one.
    ///
    /// | step | where the process dies in it, the next open finds | where the power is cut in it, the next open finds |
    /// |---|---|---|
    /// | 1. write the copy that is torn, or else the one that was written last | the other copy: the state before | the other copy, or that of step 1 |
    /// | 2. sync | the copy of step 1: the state after | likewise |
    /// | 3. write the other copy | the copy of step 1 | the copy of step 1 |
    ///
    /// If the change before was interrupted between its steps 1 and 3, the other copy has the state before that one, which must be as good: nobody makes use of a
    /// change before all three steps are done.
    pub(super) fn write_first<'a>(&self, pm: Pm, copies: &'a [Copy; 2]) -> SecondCopy<'a> {
        let [first, copy] = Self::unsure_first(copies);
        let superblock = Self {
            sequence: self.sequence + 1,
            ..self.clone()
        };
        self.write_to(pm, first);
        SecondCopy {
            pm,
            copy,
            superblock,
        }
    }

    fn write_to(&self, pm: Pm, copy: &Copy) {
        // The checksum, which is the last of these words, makes the copy valid. The head of this file says how recovery chooses.
        for (cell, word) in copy.words.iter().zip(self.words()) {
            pm.store(cell, word);
        }
        pm.persist(&copy.words[..WORDS.next_multiple_of(LINE / 8)]);
    }

    /// Writes both copies to the image, and returns how they are written to the file, whose first bytes are these.
    pub(super) fn write_directly(&self, copies: &[Copy; 2], in_file: &[u8]) -> Writes {
        let writes = self.writes(in_file);
        // What is written to the file directly is not logged.
        let pm = Pm::new(Medium::Process);
        for (at, bytes) in &writes.copies {
            let copy = &copies[*at as usize / COPY_BYTES];
            for (cell, word) in copy.words.iter().zip(bytes.as_chunks::<8>().0) {
                pm.store(cell, u64::from_ne_bytes(*word));
            }
        }
        writes
    }

    /// How to write both copies to a file whose first bytes are these. (What the image has may be from the log, and says nothing of the
    /// file.)
    pub(super) fn writes(&self, in_file: &[u8]) -> Writes {
        let sequences = sequences_in(in_file);
        let order = worse_first(sequences);
        let newest = order[1] * COPY_BYTES;
        let are_whole = sequences.iter().all(Option::is_some);
        // The first copy that is written counts at once, also if the file has copies that came through the log and the image does not.
        let in_file_already = sequences.into_iter().flatten().max();
        let sequence = in_file_already.map_or(self.sequence, |it| self.sequence.max(it + 1));
        Writes {
            again: are_whole.then(|| (newest as u64, in_file[newest..][..WORDS * 8].to_vec())),
            sequence: sequence + 1,
            copies: std::array::from_fn(|i| {
                let copy = Self {
                    sequence: sequence + i as u64,
                    ..self.clone()
                };
                let words = copy.words();
                let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                ((order[i] * COPY_BYTES) as u64, bytes)
            }),
        }
    }

    /// The copies in the order in which they are written, see [`write_first`](Self::write_first).
    fn unsure_first(copies: &[Copy; 2]) -> [&Copy; 2] {
        let sequence = |copy: &Copy| sequence_of(&std::array::from_fn(|i| copy.words[i].load()));
        let sequences = copies.each_ref().map(sequence);
        let mut order = worse_first(sequences);
        if sequences.iter().all(Option::is_some) {
            order.reverse();
        }
        if planted(Bug::BetterCopyFirst) {
            order.reverse();
        }
        order.map(|i| &copies[i])
    }

    pub(super) fn words(&self) -> [u64; WORDS] {
        let version = if self.promise.is_logged() {
            FORMAT
        } else {
            FORMAT_WITHOUT_LOG
        };
        let mut words = [
            MAGIC,
            u64::from(version) | (LINE as u64) << 32,
            ENDIANNESS,
            self.uuid[0],
            self.uuid[1],
            self.sequence,
            self.generation,
            self.promise.word(),
            if self.clean { 1 } else { self.earlier << 1 },
            self.boot[0],
            self.boot[1],
            self.extents,
            0,
        ];
        words[WORDS - 1] = checksum(&words);
        words
    }

    /// Reads the superblock from the first bytes of a file of `length` bytes: the newer of the valid copies. The other one
    /// is repaired by the next write.
    pub(super) fn read(path: &Path, first_bytes: &[u8], length: u64) -> Result<Self> {
        let copies = copies_in(first_bytes);
        let begins_like_a_pool = copies
            .iter()
            .flatten()
            .any(|words| words[0] == MAGIC || words[0] == MAGIC.swap_bytes());
        if !begins_like_a_pool {
            return Err(Error::NotAPool(path.to_owned()));
        }
        let superblock = Self::newer_of(copies)?;
        let expected = superblock.extents * EXTENT_BYTES;
        if length < expected {
            return Err(Error::Truncated {
                expected,
                actual: length,
            });
        }
        Ok(superblock)
    }

    /// Whether both copies in the first bytes of a file are of this session, which has not ended.
    pub(super) fn is_session_of_both(&self, first_bytes: &[u8]) -> bool {
        let is_of_session = |words: Option<[u64; WORDS]>| {
            let copy = words.and_then(|words| Self::parse(&words).ok());
            copy.is_some_and(|copy| copy.generation == self.generation && !copy.clean)
        };
        copies_in(first_bytes).into_iter().all(is_of_session)
    }

    /// The superblock that follows those in the first bytes of a file and says what the newer of them says.
    pub(super) fn renewed(first_bytes: &[u8]) -> Result<Self> {
        let mut superblock = Self::newer_of(copies_in(first_bytes))?;
        superblock.sequence += 1;
        Ok(superblock)
    }

    fn newer_of(copies: [Option<[u64; WORDS]>; 2]) -> Result<Self> {
        let read = copies.map(|words| words.map_or(Err(damaged()), |words| Self::parse(&words)));
        match read {
            [Ok(a), Ok(b)] if b.sequence > a.sequence => Ok(b),
            [Ok(a), Ok(_)] => Ok(a),
            [Ok(only), Err(Error::Damaged(_))] | [Err(Error::Damaged(_)), Ok(only)] => Ok(only),
            [Err(Error::Damaged(_)), Err(error)] | [Err(error), _] | [_, Err(error)] => Err(error),
        }
    }

    fn parse(words: &[u64; WORDS]) -> Result<Self> {
        let (version, line) = (words[1] as u32, words[1] >> 32);
        if words[0] == MAGIC.swap_bytes() || words[2] == ENDIANNESS.swap_bytes() {
            return Err(Error::IncompatibleMachine("the other endianness"));
        }
        if words[0] != MAGIC || words[WORDS - 1] != checksum(words) {
            return Err(damaged());
        }
        if version > FORMAT {
            return Err(Error::NewerFormat {
                found: version,
                supported: FORMAT,
            });
        }
        if line != LINE as u64 {
            return Err(Error::IncompatibleMachine("another cache-line size"));
        }
        // Both count one at a time, so that neither gets there honestly.
        let counts = words[5].max(words[6]) < 1 << 63;
        // An earlier session has a lower generation.
        let is_state =
            words[8] == 1 || words[8] & 1 == 0 && (words[8] == 0 || words[8] >> 1 < words[6]);
        let is_possible = counts && is_state && (1..=MAX_EXTENTS).contains(&words[11]);
        let Some(promise) = Promise::from_word(words[7]).filter(|_| is_possible) else {
            return Err(damaged());
        };
        Ok(Self {
            uuid: [words[3], words[4]],
            sequence: words[5],
            generation: words[6],
            promise,
            clean: words[8] == 1,
            earlier: words[8] >> 1,
            boot: [words[9], words[10]],
            extents: words[11],
        })
    }
}

/// The copy of a superblock that is still to be written where the pool is mapped.
#[must_use]
pub(super) struct SecondCopy<'a> {
    pm: Pm,
    copy: &'a Copy,
    superblock: Superblock,
}

impl SecondCopy<'_> {
    /// Writes it, and returns its sequence.
    pub(super) fn write(self) -> u64 {
        self.superblock.write_to(self.pm, self.copy);
        self.superblock.sequence
    }
}

/// How both copies of a superblock are written to the pool's file. Each write is synced before the next one.
///
/// At every moment at most one copy may be other on the disk than the file says, or torn: the one that was written last, which has the
/// higher sequence, or is copy B if both have the same. For a sync of it may have failed, after which the kernel goes on showing what is not on
/// the disk, and the process may have died.
///
/// | step | what a power cut in it leaves |
/// |---|---|
/// | 1. write the copy with the higher sequence again, as it is | the other copy, which is the state before the last write |
/// | 2. write the other copy | the copy of step 1 |
/// | 3. write the copy of step 1 | the copy of step 2 |
///
/// Step 1 comes before anything is changed that the state before the last write needs: with the log, before a new session changes its file.
pub(super) struct Writes {
    /// Step 1: place in the file and bytes. `None` if one copy is torn, which steps 2 and 3 begin with.
    pub(super) again: Option<(u64, Vec<u8>)>,
    /// Steps 2 and 3.
    pub(super) copies: [(u64, Vec<u8>); 2],
    /// The sequence of the copy of step 3.
    pub(super) sequence: u64,
}

impl Writes {
    /// All of them, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = &(u64, Vec<u8>)> {
        self.again.iter().chain(&self.copies)
    }
}

/// In which order the copies in the first bytes of a file are written: see [`worse_first`].
pub(super) fn order_in(first_bytes: &[u8]) -> [usize; 2] {
    worse_first(sequences_in(first_bytes))
}

/// Of copies with these sequences, `None` of one that is not whole: first the one that is torn or older, then the one that was written last. Of two
/// with one sequence (an earlier version has written them, through a log or in the mapped file) that was copy B.
fn worse_first([a, b]: [Option<u64>; 2]) -> [usize; 2] {
    if a > b { [1, 0] } else { [0, 1] }
}

fn sequences_in(first_bytes: &[u8]) -> [Option<u64>; 2] {
    copies_in(first_bytes).map(|words| sequence_of(&words?))
}

/// The words of both copies in the first bytes of a file, as far as the file has them.
fn copies_in(first_bytes: &[u8]) -> [Option<[u64; WORDS]>; 2] {
    [0, 1].map(|i| words_at(first_bytes, i * COPY_BYTES))
}

fn sequence_of(words: &[u64; WORDS]) -> Option<u64> {
    let superblock = Superblock::parse(words).ok()?;
    Some(superblock.sequence)
}

fn damaged() -> Error {
    Error::Damaged("both superblocks".into())
}

fn words_at(bytes: &[u8], at: usize) -> Option<[u64; WORDS]> {
    let bytes = bytes.get(at..at + WORDS * 8)?;
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*chunk);
    }
    Some(words)
}

fn checksum(words: &[u64; WORDS]) -> u64 {
    let mut bytes = [0; 8 * (WORDS - 1)];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_ne_bytes();
    }
    u64::from(crc32fast::hash(&bytes))
}

#[cfg(all(test, not(loom)))]
mod order_tests;
#[cfg(all(test, not(loom)))]
mod tests;
