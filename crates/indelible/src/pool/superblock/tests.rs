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

/// Both copies of a mapped pool whose first bytes are these.
fn mapped(bytes: &[u8]) -> [Copy; 2] {
    [0, 1].map(|copy| {
        let words = bytes[copy * COPY_BYTES..][..COPY_BYTES].as_chunks::<8>().0;
        Copy::from_words(std::array::from_fn(|i| {
            Cell::new(u64::from_ne_bytes(words[i]))
        }))
    })
}

fn bytes_of(copies: &[Copy; 2]) -> Vec<u8> {
    copies
        .iter()
        .flat_map(|copy| copy.words.iter().flat_map(|cell| cell.load().to_ne_bytes()))
        .collect()
}

/// The first bytes of a pool whose copies both are this one.
fn image(of: &Superblock) -> Vec<u8> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    for copy in bytes.chunks_mut(COPY_BYTES) {
        for (word, to) in of.words().iter().zip(copy.as_chunks_mut::<8>().0) {
            *to = word.to_ne_bytes();
        }
    }
    bytes
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

/// The copies that change when the superblock is written, in order, and their sequences.
fn written(copies: &[Copy; 2], sequence: u64) -> [(usize, u64); 2] {
    let before = bytes_of(copies);
    let second = sample(sequence).write_first(Pm::new(Medium::Process), copies);
    let between = bytes_of(copies);
    let last = second.write();
    let changed = |before: &[u8], after: &[u8]| {
        let is_other = |copy: &usize| {
            let bytes = copy * COPY_BYTES..(copy + 1) * COPY_BYTES;
            before[bytes.clone()] != after[bytes]
        };
        let copies: Vec<usize> = (0..2).filter(is_other).collect();
        assert_eq!(copies.len(), 1, "one copy at a time");
        copies[0]
    };
    let first = changed(&before, &between);
    [
        (first, sequence),
        (changed(&between, &bytes_of(copies)), last),
    ]
}

#[test]
fn the_copy_that_is_torn_or_was_written_last_is_written_first() {
    let pm = Pm::new(Medium::Process);
    // Of equal ones, which earlier versions have written, that was B.
    let copies = mapped(&image(&sample(9)));
    assert_eq!(written(&copies, 10), [(1, 10), (0, 11)]);
    assert_eq!(written(&copies, 12), [(0, 12), (1, 13)]);
    for damaged in 0..2 {
        pm.store(&copies[damaged].words[5], 1);
        let other = 1 - damaged;
        assert_eq!(written(&copies, 20), [(damaged, 20), (other, 21)]);
        assert_eq!(read(&bytes_of(&copies)).unwrap(), sample(21));
    }
    // The process has died between the two.
    let first = written(&copies, 30)[0].0;
    let _ = sample(40).write_first(pm, &copies);
    let last = written(&copies, 50)[0].0;
    assert_eq!(last, 1 - first);
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

    /// All states that may be left where the superblock is written in a mapped pool, which waits for the first copy and not for the second one.
    fn mapped_writes(self) -> Vec<Self> {
        let newest = self.shown.into_iter().flatten().max();
        let copies = mapped(&self.file());
        let [(first, new), (second, last)] = written(&copies, newest.map_or(1, |it| it + 1));
        let mut states = self.without_sync(first, new);
        let mut state = self;
        (state.shown[first], state.on_disk[first]) = (Some(new), Some(new));
        states.push(state);
        // Also where the process goes on. The process may die within a store, too.
        states.extend(state.without_sync(second, last));
        for (mut torn, copy) in [(self, first), (state, second)] {
            torn.shown[copy] = None;
            for on_disk in [torn.on_disk[copy], None] {
                torn.on_disk[copy] = on_disk;
                states.push(torn);
            }
        }
        states
    }
}

/// In every order of failed syncs, deaths of the process and power cuts, of any number: also where nobody waits for the second copy.
#[test]
fn no_failures_lose_both_copies_of_a_pool_without_a_log() {
    let first = [
        ([Some(0), Some(1)], [Some(0), Some(1)]),
        ([Some(1), Some(1)], [Some(1), Some(1)]),
    ];
    let mut open =
        Vec::from(first.map(|(shown, on_disk)| Versions { shown, on_disk }.normalized()));
    let mut seen: HashSet<Versions> = open.iter().copied().collect();
    while let Some(state) = open.pop() {
        assert_ne!(state.on_disk, [None; 2], "before a power cut");
        assert_ne!(state.shown, [None; 2]);
        let next = state.mapped_writes().into_iter().map(Versions::normalized);
        open.extend(next.filter(|&next| seen.insert(next)));
    }
    assert!(seen.len() > 5, "{}", seen.len());
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
