//! Tests of the superblock.

use super::*;
use crate::pool::layout::SUPERBLOCK_BYTES;
use std::collections::HashSet;

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
        sample(11).write(pm, &copies);
    }
    // A crash between the two.
    for (from, to) in sample(13).words().iter().zip(&copies[1].words) {
        pm.store(to, *from);
    }
    assert!(std::ptr::eq(
        Superblock::worse_first(&copies)[0],
        &copies[0]
    ));
}

/// A copy as the model below knows it: its sequence, or `None` if it is torn.
type Version = Option<u64>;

/// Both copies, as the file shows them and as they are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Versions {
    shown: [Version; 2],
    on_disk: [Version; 2],
}

impl Versions {
    /// The sequences matter only in comparison, so the lowest ones that compare in the same way stand for all.
    fn normalized(self) -> Self {
        let mut all: Vec<u64> = self
            .shown
            .into_iter()
            .chain(self.on_disk)
            .flatten()
            .collect();
        all.sort_unstable();
        all.dedup();
        let rank =
            |version: Version| version.map(|it| all.partition_point(|&other| other < it) as u64);
        Self {
            shown: self.shown.map(rank),
            on_disk: self.on_disk.map(rank),
        }
    }

    fn file(&self) -> Vec<u8> {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        for (version, copy) in self.shown.iter().zip(bytes.chunks_mut(COPY_BYTES)) {
            for (word, to) in sample(version.unwrap_or(0))
                .words()
                .iter()
                .zip(copy.as_chunks_mut::<8>().0)
            {
                *to = word.to_ne_bytes();
            }
            copy[0] ^= u8::from(version.is_none());
        }
        bytes
    }

    /// What may come of a write of a copy whose sync does not succeed: the disk has the old copy, the new one, or a torn one. Either the process
    /// dies, and the file goes on showing the new one, or the power is cut.
    fn without_sync(self, copy: usize, new: u64) -> Vec<Self> {
        let mut states = Vec::new();
        for on_disk in [self.on_disk[copy], Some(new), None] {
            let mut state = self;
            state.on_disk[copy] = on_disk;
            state.shown[copy] = Some(new);
            states.push(state);
            state.shown = state.on_disk;
            states.push(state);
        }
        states
    }

    /// All states that a session may leave, which writes the superblock.
    fn sessions(self, writes_again: bool) -> Vec<Self> {
        let next = self
            .shown
            .into_iter()
            .flatten()
            .max()
            .map_or(1, |newest| newest + 1);
        let writes = sample(next).writes(&self.file());
        let mut state = self;
        let mut states = Vec::new();
        for (at, bytes) in writes
            .all()
            .skip(usize::from(!writes_again && writes.again.is_some()))
        {
            let copy = *at as usize / COPY_BYTES;
            let new = u64::from_ne_bytes(bytes[40..48].try_into().unwrap());
            states.extend(state.without_sync(copy, new));
            (state.shown[copy], state.on_disk[copy]) = (Some(new), Some(new));
        }
        states.push(state);
        states
    }
}

/// The states that can be reached in which a power cut leaves no whole copy, and how many states there are.
fn lost_states(writes_again: bool) -> (Vec<Versions>, usize) {
    // Copies that were written directly; copies of one sequence, which the applier writes one after the other; and the latter with a sync of
    // the last one that failed.
    let first = [
        ([Some(0), Some(1)], [Some(0), Some(1)]),
        ([Some(1), Some(1)], [Some(1), Some(1)]),
        ([Some(1), Some(1)], [Some(1), Some(0)]),
        ([Some(1), Some(1)], [Some(1), None]),
    ];
    let mut open =
        Vec::from(first.map(|(shown, on_disk)| Versions { shown, on_disk }.normalized()));
    let mut seen: HashSet<Versions> = open.iter().copied().collect();
    let mut lost = Vec::new();
    while let Some(state) = open.pop() {
        if state.on_disk == [None; 2] {
            lost.push(state);
            continue;
        }
        for next in state
            .sessions(writes_again)
            .into_iter()
            .map(Versions::normalized)
        {
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    (lost, seen.len())
}

/// In every order of failed syncs, deaths of the process and power cuts, of any number.
#[test]
fn no_failures_of_the_disk_and_of_the_power_lose_both_copies() {
    let (lost, states) = lost_states(true);
    assert_eq!(lost, []);
    assert!(states > 5, "{states}");
    // The copy that was written last, and may not be on the disk, has to be written first.
    assert!(!lost_states(false).0.is_empty());
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
