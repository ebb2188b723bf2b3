//! What is right after a crash while nothing goes on behind the scenes: no extent is provided that nobody touches, no session has begun, and
//! nothing is applied.

use super::LEAST_SEGMENTS;
use super::death::{copy_after_death, log_of};
use super::held::HOLD;
use super::record::{HEADER_WORDS, SEGMENT_BYTES};
use crate::{Durability, Error, Kind, Map, Pool, PoolOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const INTERVAL: Durability = Durability::Interval(Duration::from_millis(10));
const RECORDS: u64 = 6000;
/// Processes that die one after the other, and records that each writes: many for a log of the least length.
const LIVES: u64 = 12;
const LIFE: u64 = 300;

fn key(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// What a process leaves that dies now, in another place.
fn after_death(path: &Path, name: &str) -> PathBuf {
    let copy = path.with_file_name(name);
    copy_after_death(path, &copy);
    copy
}

/// A pool whose process has died with a log of many segments.
fn crashed(directory: &Path, kind: Kind, durability: Durability) -> PathBuf {
    let path = directory.join("first.pool");
    let mut options = PoolOptions::new();
    options.durability(durability).log_anywhere(true);
    let pool = options.create(&path).unwrap();
    let map = pool.map_with::<u64, u64>("m", kind).unwrap();
    let all: Vec<(u64, u64)> = (0..RECORDS).map(|i| (key(i), i)).collect();
    for some in all.chunks(500) {
        map.insert_batch(some).unwrap();
    }
    pool.sync().unwrap();
    // Until the last footers are there.
    std::thread::sleep(Duration::from_millis(50));
    let copy = after_death(&path, "second.pool");
    drop(map);
    pool.close().unwrap();
    copy
}

/// Opens a pool whose work behind the scenes is held up until the flag is cleared.
fn open_held(path: &Path) -> (Pool, Arc<AtomicBool>) {
    open_held_with(PoolOptions::new().log_anywhere(true), path)
}

fn open_held_with(options: &PoolOptions, path: &Path) -> (Pool, Arc<AtomicBool>) {
    let hold = Arc::new(AtomicBool::new(true));
    HOLD.set(Some(Arc::clone(&hold)));
    let pool = options.open(path);
    HOLD.set(None);
    (pool.unwrap(), hold)
}

fn assert_holds(map: &Map<u64, u64>, records: u64) {
    (0..records).for_each(|i| assert_eq!(map.get(key(i)).unwrap(), Some(i), "record {i}"));
    assert_eq!(map.get(key(records)).unwrap(), None);
    let mut expected: Vec<(u64, u64)> = (0..records).map(|i| (key(i), i)).collect();
    expected.sort_unstable();
    assert!(map.iter().map(Result::unwrap).eq(expected.iter().copied()));
    let part = expected[expected.len() / 2].0..;
    let found = map.range(part).unwrap().rev().map(Result::unwrap);
    assert!(found.eq(expected[expected.len() / 2..].iter().rev().copied()));
    assert_eq!(map.len().unwrap(), records);
}

#[test]
fn lookups_ranges_and_writes_are_right_while_nothing_goes_on_behind_the_scenes() {
    for &kind in Kind::all() {
        for durability in [Durability::PowerLoss, INTERVAL] {
            let directory = tempfile::tempdir().unwrap();
            let path = crashed(directory.path(), kind, durability);
            let (pool, hold) = open_held(&path);
            let map = pool.open_map::<u64, u64>("m").unwrap();
            assert_eq!(map.get(key(RECORDS / 2)).unwrap(), Some(RECORDS / 2));
            assert_holds(&map, RECORDS);
            let (has_begun, _) = pool.core().behind_the_scenes();
            assert!(!has_begun, "readers need no session");
            // A process that dies now has changed nothing.
            let second = after_death(&path, "third.pool");
            for i in RECORDS..RECORDS + 100 {
                assert_eq!(map.insert(key(i), i).unwrap(), None);
            }
            assert_eq!(map.insert(key(3), 4).unwrap(), Some(3));
            assert_eq!(map.insert(key(3), 3).unwrap(), Some(4));
            let (has_begun, has_backlog) = pool.core().behind_the_scenes();
            assert!(has_begun && has_backlog);
            assert_holds(&map, RECORDS + 100);
            // Two sessions now, and the older one is not applied.
            let third = after_death(&path, "fourth.pool");
            for (path, records) in [(second, RECORDS), (third, RECORDS + 100)] {
                let (pool, hold) = open_held(&path);
                let map = pool.open_map::<u64, u64>("m").unwrap();
                assert_holds(&map, records);
                hold.store(false, Ordering::Relaxed);
                map.insert(key(records), records).unwrap();
                drop(map);
                pool.close().unwrap();
                assert!(!log_of(&path).exists());
                let pool = Pool::open(&path).unwrap();
                assert_holds(&pool.open_map("m").unwrap(), records + 1);
            }
            hold.store(false, Ordering::Relaxed);
            assert_eq!(pool.check(), [""; 0]);
            drop(map);
            pool.close().unwrap();
            let pool = Pool::open(&path).unwrap();
            assert_holds(&pool.open_map("m").unwrap(), RECORDS + 100);
        }
    }
}

#[test]
fn writers_wait_for_the_session_and_readers_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = crashed(directory.path(), Kind::LbTree, Durability::PowerLoss);
    let (pool, _hold) = open_held(&path);
    let map = pool.open_map::<u64, u64>("m").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let map = &map;
            scope.spawn(move || {
                for i in (thread..RECORDS).step_by(4) {
                    assert_eq!(map.get(key(i)).unwrap(), Some(i));
                    let new = RECORDS + i;
                    if i % 20 == thread {
                        assert_eq!(map.insert(key(new), new).unwrap(), None);
                        assert_eq!(map.get(key(new)).unwrap(), Some(new));
                    }
                }
            });
        }
    });
    pool.sync().unwrap();
    let copy = after_death(&path, "third.pool");
    let again = Pool::open(&copy).unwrap();
    let again = again.open_map::<u64, u64>("m").unwrap();
    for i in 0..2 * RECORDS {
        let expected = map.get(key(i)).unwrap();
        assert_eq!(again.get(key(i)).unwrap(), expected);
        assert_eq!(
            expected.is_some(),
            i < RECORDS || i % 20 < 4 && i % 4 == i % 20
        );
    }
}

/// Where the log may not become longer, the records are applied before the session begins, and their segments are used again at once. What is not in the image yet
/// has to come from the file.
#[test]
fn records_in_segments_that_are_used_again_come_from_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut path = directory.path().join("first.pool");
    let mut options = PoolOptions::new();
    options.durability(INTERVAL).log_anywhere(true).log_bytes(1);
    let all = |from: u64| (from..from + LIFE).map(|i| (key(i), i)).collect::<Vec<_>>();
    drop(options.create(&path).unwrap());
    for life in 0..LIVES {
        let (pool, hold) = open_held_with(&options, &path);
        // The extents of the second map are not looked at before.
        for name in ["first", "second"] {
            let map = pool.map::<u64, u64>(name).unwrap();
            map.insert_batch(&all(life * LIFE)).unwrap();
            assert_holds(&map, (life + 1) * LIFE);
            assert_eq!(map.check().unwrap(), [""; 0]);
        }
        pool.sync().unwrap();
        path = after_death(&path, &format!("{life}.pool"));
        let log = std::fs::metadata(log_of(&path)).unwrap().len();
        assert!(log <= LEAST_SEGMENTS as u64 * SEGMENT_BYTES, "{log}");
        // To close the pool may take a part of that work.
        hold.store(false, Ordering::Relaxed);
    }
}

/// Once, the session began in a new log if the old one had gone or was empty, and nobody could read what was left of the sessions before.
#[test]
fn a_session_that_cannot_begin_takes_no_writes_and_loses_nothing() {
    let segment = SEGMENT_BYTES as usize;
    for in_its_place in [Some(vec![7; segment]), Some(Vec::new()), None] {
        let directory = tempfile::tempdir().unwrap();
        let path = crashed(directory.path(), Kind::LbTree, INTERVAL);
        let (pool, _hold) = open_held(&path);
        let map = pool.open_map::<u64, u64>("m").unwrap();
        let kept = directory.path().join("kept");
        std::fs::rename(log_of(&path), &kept).unwrap();
        if let Some(bytes) = &in_its_place {
            std::fs::write(log_of(&path), bytes).unwrap();
        }
        for _ in 0..2 {
            let refused = map.insert(key(RECORDS), 1);
            assert!(matches!(refused, Err(Error::LogFailed(_))), "{refused:?}");
            assert!(matches!(pool.sync(), Err(Error::LogFailed(_))));
            assert_holds(&map, RECORDS);
        }
        drop(map);
        assert!(matches!(pool.close(), Err(Error::LogFailed(_))));
        std::fs::rename(&kept, log_of(&path)).unwrap();
        let pool = Pool::open(&path).unwrap();
        assert_holds(&pool.open_map("m").unwrap(), RECORDS);
    }
}

/// A reader of parts looks at the pages of a value later, without errors of its own. Once, it returned what the log had before the damaged record.
#[test]
fn a_long_value_with_a_damaged_record_is_an_error_also_in_parts() {
    const WORDS: u64 = 50_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("first.pool");
    let mut options = PoolOptions::new();
    options.durability(Durability::PowerLoss).log_anywhere(true);
    let pool = options.create(&path).unwrap();
    let value = |number: u64| -> Vec<u8> {
        let words = (0..WORDS).map(|word| (number + 1) << 32 | word);
        words.flat_map(u64::to_ne_bytes).collect()
    };
    let map = pool.bytes("m").unwrap();
    for number in 0..8 {
        map.insert(number.to_string(), value(number)).unwrap();
    }
    let copy = after_death(&path, "second.pool");
    let mut bytes = std::fs::read(log_of(&copy)).unwrap();
    let word = ((5_u64 + 1) << 32) + WORDS / 2;
    let words = bytes.as_chunks::<8>().0;
    let at = words
        .iter()
        .position(|&there| u64::from_ne_bytes(there) == word);
    bytes[at.expect("the log has the value") * 8] ^= 1;
    std::fs::write(log_of(&copy), &bytes).unwrap();
    let (pool, hold) = open_held(&copy);
    let map = pool.open_bytes("m").unwrap();
    let read = map.value_reader("5");
    assert!(matches!(read, Err(Error::Damaged(_))), "{read:?}");
    assert!(matches!(map.get("5"), Err(Error::Damaged(_))));
    hold.store(false, Ordering::Relaxed);
}

#[test]
fn a_damaged_record_in_a_segment_with_a_footer_is_an_error_and_never_a_wrong_value() {
    let directory = tempfile::tempdir().unwrap();
    let path = crashed(directory.path(), Kind::LbTree, INTERVAL);
    assert!(PoolOptions::new().verify_log(&path).is_ok());
    // The first record of the sixth segment.
    let at = 5 * SEGMENT_BYTES as usize + HEADER_WORDS * 8 + 3 * 8;
    let mut bytes = std::fs::read(log_of(&path)).unwrap();
    bytes[at] ^= 1;
    std::fs::write(log_of(&path), &bytes).unwrap();
    let verified = PoolOptions::new().verify_log(&path);
    assert!(matches!(verified, Err(Error::Damaged(_))), "{verified:?}");
    for _ in 0..2 {
        let pool = PoolOptions::new().log_anywhere(true).open(&path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        let mut errors = 0;
        for i in 0..RECORDS {
            match map.get(key(i)) {
                Ok(found) => assert_eq!(found, Some(i)),
                Err(Error::Damaged(_)) => errors += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(errors > 0);
        assert!(
            map.iter()
                .any(|record| matches!(record, Err(Error::Damaged(_))))
        );
        map.insert(key(RECORDS), 1).unwrap_err();
        drop(map);
        pool.close().unwrap_err();
    }
}
