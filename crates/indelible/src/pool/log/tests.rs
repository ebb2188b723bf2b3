//! The log on a simulated disk, and its bytes.

use super::apply::{Applier, PAGE_BYTES, SUPERBLOCK_WORDS};
use super::device::DataFile;
use super::footer::{EXTENT_WORDS, Index};
use super::record::{self, Encoded, Header, Identity, Record, SEGMENT_WORDS, Session, runs};
use super::simulate::{Met, trial};
use crate::Result;
use crate::concurrency::sync::lock;
use crate::pmem::journal::Word;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const IDENTITY: Identity = Identity {
    uuid: [1, 2],
    generation: 3,
};

fn segment() -> Vec<AtomicU64> {
    (0..SEGMENT_WORDS).map(|_| AtomicU64::new(0)).collect()
}

fn write(segment: &[AtomicU64], at: usize, batch: &[Word]) -> usize {
    let mut encoded = Encoded::default();
    encoded.set(batch);
    encoded.seal(&IDENTITY, at as u64 * 8);
    super::put(segment, at, encoded.words());
    encoded.words().len()
}

fn read(segment: &[AtomicU64], identity: &Identity, ordinal: u64, at: usize) -> Option<Vec<Word>> {
    let mut buffer = Vec::new();
    match record::read(identity, segment, ordinal, at, &mut buffer)?.0 {
        Record::Padding => None,
        Record::Batch => Some(
            runs(&buffer)
                .flat_map(|(at, words)| (at..).zip(words.iter().copied()))
                .collect(),
        ),
    }
}

#[test]
fn a_batch_is_read_as_it_was_written_and_words_side_by_side_share_a_head() {
    let batch = [(7, 70), (8, 80), (9, 90), (3, 30), (4, 40), (3, 31)];
    let segment = segment();
    assert_eq!(write(&segment, 512, &batch), 2 + 3 + 6);
    assert_eq!(read(&segment, &IDENTITY, 0, 512).unwrap(), batch);
}

#[test]
fn a_record_is_none_elsewhere_in_another_session_or_with_any_bit_flipped() {
    let segment = segment();
    let length = write(&segment, 512, &[(7, 70), (3, 30)]);
    let [mut other, mut later] = [IDENTITY; 2];
    other.uuid[1] += 1;
    later.generation += 1;
    for wrong in [other, later] {
        assert_eq!(read(&segment, &wrong, 0, 512), None);
    }
    assert_eq!(read(&segment, &IDENTITY, 1, 512), None);
    for at in 512..512 + length {
        for bit in 0..64 {
            let word = segment[at].load(Ordering::Relaxed);
            segment[at].store(word ^ 1 << bit, Ordering::Relaxed);
            assert_eq!(read(&segment, &IDENTITY, 0, 512), None, "{at} {bit}");
            segment[at].store(word, Ordering::Relaxed);
        }
    }
    assert!(read(&segment, &IDENTITY, 0, 512).is_some());
}

#[test]
fn headers_are_read_as_they_were_written_in_both_formats_and_damaged_ones_are_none() {
    let session = Session {
        identity: IDENTITY,
        first: 5,
        words: 1000,
        earlier: Some((2, 77)),
    };
    let segment = segment();
    super::put(&segment, 0, &session.header(6, 4096, 8192));
    let header = Header {
        session,
        ordinal: 6,
        durable: 4096,
        applied: 8192,
    };
    assert_eq!(Header::read(&segment), Some(header));
    for at in 0..16 {
        let word = segment[at].load(Ordering::Relaxed);
        segment[at].store(word ^ 1 << 17, Ordering::Relaxed);
        assert_eq!(Header::read(&segment), None, "word {at}");
        segment[at].store(word, Ordering::Relaxed);
    }
    // An earlier session that ends before its first record. A checksum alone does not keep anybody from making one.
    let impossible = Session {
        earlier: Some((2, 0)),
        ..session
    };
    super::put(&segment, 0, &impossible.header(6, 4096, 8192));
    assert_eq!(Header::read(&segment), None);
    // As the first version of the format had them. The checksum is the one that it wrote.
    let old = record::old_header(&IDENTITY, 6);
    super::put(&segment, 0, &old);
    let header = Header::read(&segment).unwrap();
    assert_eq!((header.ordinal, header.durable, header.applied), (6, 0, 0));
    assert_eq!((header.session.first, header.session.earlier), (0, None));
    assert_eq!(header.session.identity, IDENTITY);
}

/// As in a `chroot` without `/proc`.
#[test]
fn where_there_is_no_proc_a_file_is_opened_once_more_by_its_name() {
    use crate::pool::log::device::PlainFile;
    use crate::pool::system::faults;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let file = std::fs::File::create(&path).unwrap();
    let reopened = || {
        let reopen = || PlainFile::reopened(&file, &path).map(|it| it.file);
        faults::at(1, rustix::io::Errno::NOENT, reopen).0
    };
    reopened().unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another one").unwrap();
    assert!(matches!(reopened(), Err(crate::Error::Io { .. })));
}

#[test]
fn whatever_a_power_cut_leaves_of_the_disk_nothing_acknowledged_is_missing() {
    let trials: u64 = match std::env::var("INDELIBLE_TRIALS") {
        Ok(trials) => trials.parse().unwrap(),
        Err(_) => 600,
    };
    let first: u64 = std::env::var("INDELIBLE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut all = Met::default();
    for seed in first..first + trials {
        let met = trial(seed).unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
        all.batches += met.batches;
        all.cuts += met.cuts;
        all.deaths += met.deaths;
        all.recoveries_cut += met.recoveries_cut;
        all.lost += met.lost;
        all.reused += met.reused;
        all.continued += met.continued;
        all.footers += met.footers;
        all.late += met.late;
        all.damaged += met.damaged;
        all.went_on += met.went_on;
    }
    println!("{all:?}");
    // The trials meet what they are for.
    for count in [
        all.batches,
        all.cuts,
        all.deaths,
        all.recoveries_cut,
        all.lost,
        all.reused,
        all.continued,
        all.footers,
        all.late,
        all.went_on,
    ] {
        assert!(count > trials / 4, "{all:?}");
    }
    assert!(all.damaged > trials / 20, "{all:?}");
}

#[test]
fn an_index_finds_the_records_of_each_extent_in_their_order() {
    let batch = |place: u64, words: usize| {
        let mut payload = vec![place | (words as u64) << 40];
        payload.resize(1 + words, 0);
        payload
    };
    let mut pairs = Vec::new();
    // Two runs in one extent and one in another; a run that goes on in the next extent; one far away.
    let two = [batch(5, 2), batch(9, 1), batch(3 * EXTENT_WORDS, 1)].concat();
    super::footer::note(600, &two, &mut pairs);
    super::footer::note(700, &batch(EXTENT_WORDS - 1, 2), &mut pairs);
    super::footer::note(131_000, &batch(5, 1), &mut pairs);
    super::footer::note(131_010, &batch(100_000 * EXTENT_WORDS, 1), &mut pairs);
    let index = Index::of(pairs);
    assert!(index.extents().eq([0, 1, 3, 100_000]));
    let records = |extent| index.records_of(extent).collect::<Vec<_>>();
    assert_eq!(records(0), [600, 700, 131_000]);
    assert_eq!(records(1), [700]);
    assert_eq!(records(2), [0; 0]);
    assert_eq!(records(3), [600]);
    assert_eq!(records(100_000), [131_010]);
}

/// A pool's file in memory.
struct Memory(Mutex<Vec<u8>>);

impl DataFile for Memory {
    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        bytes.copy_from_slice(&lock(&self.0)[at as usize..][..bytes.len()]);
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        lock(&self.0)[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        Ok(lock(&self.0).len() as u64)
    }
}

/// Numbers of words on one page that the applier writes in different ways, in many places of the page, in a few, and in places that come again.
#[test]
fn of_each_word_the_last_value_gets_into_the_file_however_many_there_are() {
    let page_words = PAGE_BYTES / 8;
    let first = SUPERBLOCK_WORDS.next_multiple_of(page_words);
    // A whole page, and a part of another one.
    let words = first + page_words + 100;
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (seed >> 33) % below
    };
    for count in [1, 2, 15, 16, 17, 100, 511, 512, 513, 700] {
        for places in [1, 3, 40, page_words, page_words + 100] {
            for stride in [1, 5] {
                let data = Memory(Mutex::new(vec![0xab; words as usize * 8]));
                let mut expected = lock(&data.0).clone();
                let mut applier = Applier::new(&data).unwrap();
                for value in 0..count {
                    let at = first + random(places) * stride % (page_words + 100);
                    applier.add_run(at, &[value]);
                    expected[at as usize * 8..][..8].copy_from_slice(&value.to_ne_bytes());
                }
                // What was cut off: whole pages.
                applier.add_run(words.next_multiple_of(page_words), &[1]);
                applier.write(&data, words * 8).unwrap();
                assert_eq!(*lock(&data.0), expected, "{count} {places} {stride}");
            }
        }
    }
}
