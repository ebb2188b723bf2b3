//! The superblock: what a pool is, in two copies.
//!
//! ```text
//! copy A at 0, copy B at 4096, 4096 bytes each, of which the first 104 count:
//! +0   magic        "INDELIBL"
//! +8   format       bits 0..31 version (1 or 2; 3 if the pool has a log), bits 32..63 line size (64)
//! +16  endianness   0x0102030405060708
//! +24  uuid         16 bytes
//! +40  sequence     of two valid copies the higher one counts
//! +48  generation   one more at every open for writing
//! +56  durability   bits 0..31: 1 process, 2 power loss, 3 power-loss protocol forced on an ordinary file, 4 power loss with a log,
//!                   5 power loss with a log that is synced at intervals; bits 32..63: of 5, the interval in milliseconds
//! +64  state        1 after a clean close; while open for writing twice the generation of the earlier session whose log this session
//!                   continues, or 0 if there is none
//! +72  boot         16 bytes: the boot identity of the machine that has, or last had, the pool open for writing
//! +88  extents      length of the pool in extents of 2 MiB, including extent 0
//! +96  checksum     CRC-32 of bytes 0..96; in all versions
//! ```
//!
//! A pool with a log has the session's generation in the file before its log has records. So the superblock is written into the
//! file directly at open and at close, a copy at a time; in between it changes as other words do, through the log.
//!
//! A change is written to copy A, persisted, then to copy B, persisted. There is no 8-byte commit here: the checksum is what
//! makes a copy valid. A crash while A is written leaves B, which is the state before; a crash while B is written leaves
//! A, which is the state after. So one damaged copy is always survived.

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
    pub(super) sequence: u64,
    pub(super) generation: u64,
    pub(super) promise: Promise,
    pub(super) clean: bool,
    /// The generation of an earlier session whose log may have records that are not in the file yet; 0 if there is none. See `pool::log`.
    pub(super) earlier: u64,
    pub(super) boot: [u64; 2],
    pub(super) extents: u64,
}

impl Superblock {
    /// Length of the pool.
    pub(super) fn bytes(&self) -> u64 {
        self.extents * EXTENT_BYTES
    }

    /// Writes both copies, one after the other: first the one that does not count, if only one does, so that at every
    /// moment one of them is whole.
    pub(super) fn write(&self, pm: Pm, copies: &[Copy; 2]) {
        let words = self.words();
        for copy in Self::worse_first(copies) {
            // The checksum, which is the last of these words, makes the copy valid. The head of this file says how recovery chooses.
            for (cell, word) in copy.words.iter().zip(words) {
                pm.store(cell, word);
            }
            pm.persist(&copy.words[..WORDS.next_multiple_of(LINE / 8)]);
        }
    }

    /// Writes both copies to the image, and each with `write` to its place in the file, for good, before the next one. `in_file` are the first bytes of
    /// the file.
    pub(super) fn write_directly(
        &self,
        copies: &[Copy; 2],
        in_file: &[u8],
        mut write: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        // What is in the file already is not logged.
        let pm = Pm::new(Medium::Process);
        let words = self.words();
        let mut order = Self::worse_first(copies);
        // The image may have from the log what the file has in one copy only.
        let torn = Self::torn_copy(in_file);
        if torn.is_some_and(|torn| !std::ptr::eq(order[0], &copies[torn])) {
            order.reverse();
        }
        for copy in order {
            for (cell, word) in copy.words.iter().zip(words) {
                pm.store(cell, word);
            }
            let is_second = std::ptr::eq(copy, &copies[1]);
            write(
                u64::from(is_second) * COPY_BYTES as u64,
                &self.bytes_of_copy(),
            )?;
        }
        Ok(())
    }

    /// What a copy has in the file.
    pub(super) fn bytes_of_copy(&self) -> Vec<u8> {
        let words = self.words();
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Which copy in the first bytes of a file is not whole, if the other one is: that one must be written first.
    pub(super) fn torn_copy(first_bytes: &[u8]) -> Option<usize> {
        let is_whole = |i| {
            words_at(first_bytes, i * COPY_BYTES).is_some_and(|words| Self::parse(&words).is_ok())
        };
        match [is_whole(0), is_whole(1)] {
            [true, false] => Some(1),
            [false, true] => Some(0),
            _ => None,
        }
    }

    fn worse_first(copies: &[Copy; 2]) -> [&Copy; 2] {
        let sequence = |copy: &Copy| {
            let words = std::array::from_fn(|i| copy.words[i].load());
            Self::parse(&words)
                .ok()
                .map(|superblock| superblock.sequence)
        };
        let [a, b] = copies;
        if (sequence(a) > sequence(b)) != planted(Bug::BetterCopyFirst) {
            [b, a]
        } else {
            [a, b]
        }
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
        let copies = [0, 1].map(|i| words_at(first_bytes, i * COPY_BYTES));
        let begins_like_a_pool = copies
            .iter()
            .flatten()
            .any(|words| words[0] == MAGIC || words[0] == MAGIC.swap_bytes());
        if !begins_like_a_pool {
            return Err(Error::NotAPool(path.to_owned()));
        }
        let read = copies.map(|words| words.map_or(Err(damaged()), |words| Self::parse(&words)));
        let superblock = match read {
            [Ok(a), Ok(b)] if b.sequence > a.sequence => b,
            [Ok(a), Ok(_)] => a,
            [Ok(only), Err(Error::Damaged(_))] | [Err(Error::Damaged(_)), Ok(only)] => only,
            [Err(Error::Damaged(_)), Err(error)] | [Err(error), _] | [_, Err(error)] => {
                return Err(error);
            }
        };
        let expected = superblock.extents * EXTENT_BYTES;
        if length < expected {
            return Err(Error::Truncated {
                expected,
                actual: length,
            });
        }
        Ok(superblock)
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
mod tests {
    use super::*;

    fn sample(sequence: u64) -> Superblock {
        Superblock {
            uuid: [1, 2],
            sequence,
            generation: 3,
            promise: Promise::Process,
            clean: false,
            earlier: 2,
            boot: [4, 5],
            extents: 1,
        }
    }

    fn image(of: &Superblock) -> Vec<u8> {
        let empty = || Copy {
            words: std::array::from_fn(|_| Cell::new(0)),
        };
        let copies = [empty(), empty()];
        of.write(Pm::new(Medium::Process), &copies);
        copies
            .iter()
            .flat_map(|copy| copy.words.iter().flat_map(|cell| cell.load().to_ne_bytes()))
            .collect()
    }

    fn read(bytes: &[u8]) -> Result<Superblock> {
        Superblock::read(Path::new("test.pool"), bytes, EXTENT_BYTES)
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&image(&sample(9))).unwrap(), sample(9));
    }

    #[test]
    fn any_flipped_byte_in_one_copy_is_survived_and_in_both_is_named() {
        let good = image(&sample(9));
        for byte in 0..WORDS * 8 {
            for copy in [0, COPY_BYTES] {
                let mut bytes = good.clone();
                bytes[copy + byte] ^= 0x40;
                let read_back = read(&bytes);
                // A flipped endianness mark cannot be mistaken for the other one, nor the magic for its reverse.
                assert_eq!(
                    read_back.unwrap(),
                    sample(9),
                    "byte {byte} of the copy at {copy}"
                );
            }
            let mut bytes = good.clone();
            bytes[byte] ^= 0x40;
            bytes[COPY_BYTES + byte] ^= 0x40;
            assert!(
                matches!(read(&bytes), Err(Error::Damaged(_) | Error::NotAPool(_))),
                "byte {byte}"
            );
        }
    }

    #[test]
    fn the_copy_that_counts_is_written_last() {
        let pm = Pm::new(Medium::Process);
        let empty = || Copy {
            words: std::array::from_fn(|_| Cell::new(0)),
        };
        let copies = [empty(), empty()];
        sample(9).write(pm, &copies);
        for damaged in 0..2 {
            pm.store(&copies[damaged].words[5], 1);
            assert!(std::ptr::eq(
                Superblock::worse_first(&copies)[0],
                &copies[damaged]
            ));
            sample(10).write(pm, &copies);
        }
        // A crash between the two.
        for (from, to) in sample(11).words().iter().zip(&copies[1].words) {
            pm.store(to, *from);
        }
        assert!(std::ptr::eq(
            Superblock::worse_first(&copies)[0],
            &copies[0]
        ));
    }

    /// A power cut has torn a copy that the log completes, and another one comes while the next session writes.
    #[test]
    fn a_copy_that_is_torn_in_the_file_is_written_first() {
        for torn in 0..2 {
            let empty = || Copy {
                words: std::array::from_fn(|_| Cell::new(0)),
            };
            let copies = [empty(), empty()];
            sample(9).write(Pm::new(Medium::Process), &copies);
            let mut file = image(&sample(9));
            file[torn * COPY_BYTES + 40] ^= 1;
            assert_eq!(Superblock::torn_copy(&file), Some(torn));
            let in_file = file.clone();
            let mut written = Vec::new();
            let write = |at: u64, bytes: &[u8]| {
                written.push(at as usize / COPY_BYTES);
                // Cut off in the middle.
                let mut cut = file.clone();
                cut[at as usize..at as usize + bytes.len()].fill(7);
                assert_eq!(
                    read(&cut).unwrap().sequence,
                    if written.len() == 1 { 9 } else { 10 }
                );
                file[at as usize..][..bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            sample(10).write_directly(&copies, &in_file, write).unwrap();
            assert_eq!(written, [torn, 1 - torn]);
        }
        assert_eq!(Superblock::torn_copy(&image(&sample(9))), None);
    }

    #[test]
    fn the_newer_copy_counts() {
        let mut bytes = image(&sample(9));
        bytes[..COPY_BYTES].copy_from_slice(&image(&sample(10))[..COPY_BYTES]);
        assert_eq!(read(&bytes).unwrap(), sample(10));
    }

    #[test]
    fn foreign_truncated_newer_and_swapped_files_are_refused_by_name() {
        assert!(matches!(read(&[]), Err(Error::NotAPool(_))));
        assert!(matches!(read(&[7; 10_000]), Err(Error::NotAPool(_))));
        let good = image(&sample(9));
        let short = Superblock::read(Path::new("p"), &good, EXTENT_BYTES - 1);
        assert!(matches!(short, Err(Error::Truncated { .. })));
        let with = |change: &dyn Fn(&mut [u64; WORDS])| {
            let mut words = sample(9).words();
            change(&mut words);
            words[WORDS - 1] = checksum(&words);
            let mut copy: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            copy.resize(COPY_BYTES, 0);
            read(&copy.repeat(2))
        };
        assert!(matches!(
            with(&|w| w[1] += 2),
            Err(Error::NewerFormat {
                found: 4,
                supported: 3
            })
        ));
        assert!(matches!(
            with(&|w| w[1] += 64 << 32),
            Err(Error::IncompatibleMachine(_))
        ));
        assert!(matches!(
            with(&|w| w[2] = w[2].swap_bytes()),
            Err(Error::IncompatibleMachine(_))
        ));
    }
}
