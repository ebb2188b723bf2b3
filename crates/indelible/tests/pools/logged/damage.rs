//! Logs that are missing, of another pool, older than the pool, or damaged: what is refused, and what is left as it was.

use super::{INTERVAL, Place, after_death, assert_holds, key, options, place};
use crate::death::log_of;
use indelible::{Durability, Error, Pool};
use std::path::Path;

#[test]
fn a_pool_without_its_log_or_with_another_one_is_refused() {
    let place = place();
    let pool = options(Durability::PowerLoss).create(&place.path).unwrap();
    pool.map::<u64, u64>("m").unwrap().insert(1, 10).unwrap();
    let copy = after_death(&place);
    let other = after_death(&place);
    drop(pool);
    std::fs::remove_file(log_of(&copy.path)).unwrap();
    assert!(
        matches!(Pool::open(&copy.path), Err(Error::NoLog(path)) if path == log_of(&copy.path))
    );
    // The log of a pool that is not this one.
    let foreign = self::place();
    let pool = options(Durability::PowerLoss)
        .create(&foreign.path)
        .unwrap();
    std::fs::copy(log_of(&foreign.path), log_of(&copy.path)).unwrap();
    assert!(matches!(Pool::open(&copy.path), Err(Error::Damaged(_))));
    drop(pool);
    // A new pool does not overwrite a log whose pool was moved away.
    std::fs::rename(&other.path, &foreign.path).unwrap();
    let refused = options(Durability::PowerLoss).create(&other.path);
    assert!(
        matches!(refused, Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists)
    );
    assert!(!other.path.exists());
    // Back together they are whole.
    std::fs::rename(&foreign.path, &other.path).unwrap();
    let map = Pool::open(&other.path)
        .unwrap()
        .open_map::<u64, u64>("m")
        .unwrap();
    assert_eq!(map.get(1).unwrap(), Some(10));
    drop(map);
    // A file that is no log at all is not overwritten either.
    std::fs::write(log_of(&other.path), vec![7; 3 << 20]).unwrap();
    assert!(matches!(Pool::open(&other.path), Err(Error::Io { .. })));
    assert_eq!(
        std::fs::read(log_of(&other.path)).unwrap(),
        vec![7; 3 << 20]
    );
    std::fs::write(log_of(&other.path), b"notes").unwrap();
    assert!(matches!(Pool::open(&other.path), Err(Error::Io { .. })));
    assert_eq!(std::fs::read(log_of(&other.path)).unwrap(), b"notes");
}

/// Overwrites bytes of a file.
fn overwrite(path: &Path, bytes: &[u8], at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// Segments of a log that have headers. In a log that has never been full they are the first ones.
fn headers_in(log: &Path) -> u64 {
    segments_in(log).len() as u64
}

#[test]
fn a_log_with_garbage_where_a_header_was_being_written_is_not_taken_for_a_foreign_file() {
    let place = place();
    Pool::create(&place.path).unwrap().close().unwrap();
    let closed = std::fs::read(&place.path).unwrap();
    let pool = options(Durability::PowerLoss).open(&place.path).unwrap();
    pool.map::<u64, u64>("m").unwrap().insert(1, 10).unwrap();
    let copy = after_death(&place);
    drop(pool);
    // The last header was being written.
    let last = headers_in(&log_of(&copy.path)).max(2) - 1;
    overwrite(&log_of(&copy.path), &[0x5a; 512], last << 20);
    let left = after_death(&copy);
    let map = Pool::open(&left.path)
        .unwrap()
        .open_map::<u64, u64>("m")
        .unwrap();
    assert_eq!(map.get(1).unwrap(), Some(10));
    drop(map);
    // The first header of a new log, whose other segments are zeros yet. The second copy of the superblock was not written either.
    let pool = std::fs::read(&copy.path).unwrap();
    let sequence = |copy: usize| u64::from_le_bytes(pool[copy + 40..][..8].try_into().unwrap());
    let second = if sequence(4096) > sequence(0) {
        4096
    } else {
        0
    };
    overwrite(&copy.path, &closed[second..second + 4096], second as u64);
    let mut log = vec![0; 4 << 20];
    log[..512].fill(0x5a);
    std::fs::write(log_of(&copy.path), &log).unwrap();
    Pool::open(&copy.path).unwrap().close().unwrap();
    // Behind a header are no records before it is whole.
    std::fs::write(log_of(&copy.path), vec![0x5a; 4 << 20]).unwrap();
    let refused = Pool::open(&copy.path).unwrap_err();
    assert!(matches!(refused, Error::Io { .. }));
    let says = "it is not a log of this pool";
    assert!(refused.to_string().contains(says), "{refused}");
}

/// A pool whose process has died, with records in several segments of its log.
fn dead_with_segments(durability: Durability) -> Place {
    let place = place();
    let pool = options(durability).create(&place.path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    map.extend((0..70_000).map(|i| (key(i), i))).unwrap();
    pool.sync().unwrap();
    let copy = after_death(&place);
    assert!(headers_in(&log_of(&copy.path)) > 4);
    drop((map, pool));
    copy
}

#[test]
fn a_log_that_lacks_segments_is_damaged() {
    for durability in [Durability::PowerLoss, INTERVAL] {
        let dead = dead_with_segments(durability);
        let expect_damaged = |what: &str, damage: &dyn Fn(&Path)| {
            let copy = after_death(&dead);
            damage(&log_of(&copy.path));
            let before = std::fs::read(&copy.path).unwrap();
            let refused = options(durability).open(&copy.path);
            assert!(
                matches!(refused, Err(Error::Damaged(_))),
                "{what}: {refused:?}"
            );
            assert!(std::fs::read(&copy.path).unwrap() == before, "{what}");
        };
        let cut = |length: u64| {
            move |log: &Path| {
                let file = std::fs::OpenOptions::new().write(true).open(log).unwrap();
                file.set_len(length).unwrap();
            }
        };
        expect_damaged("emptied", &cut(0));
        expect_damaged("cut to a segment", &cut(1 << 20));
        expect_damaged("cut inside the records", &cut(2 << 20));
        expect_damaged("zeros", &|log| {
            let length = std::fs::metadata(log).unwrap().len();
            cut(0)(log);
            cut(length)(log);
        });
        expect_damaged("without the header of the second segment", &|log| {
            overwrite(log, &[0; 4096], 1 << 20);
        });
        let copy = after_death(&dead);
        let map = options(durability).open(&copy.path).unwrap();
        assert_holds(&map.open_map("m").unwrap(), 70_000);
    }
}

/// Ordinals and slots of the segments of a log.
fn segments_in(log: &Path) -> std::collections::BTreeMap<u64, u64> {
    let bytes = std::fs::read(log).unwrap();
    let begins = (0..).zip(bytes.chunks(1 << 20));
    let segments = begins.filter(|(_, it)| it.starts_with(b"INDELLOG"));
    segments
        .map(|(slot, it)| (u64::from_le_bytes(it[40..48].try_into().unwrap()), slot))
        .collect()
}

#[test]
fn a_log_that_lacks_its_oldest_segments_is_damaged_and_one_that_lacks_a_header_is_whole() {
    for durability in [Durability::PowerLoss, INTERVAL] {
        let place = place();
        let pool = options(durability)
            .log_bytes(8 << 20)
            .create(&place.path)
            .unwrap();
        let map = pool.map::<u64, u64>("m").unwrap();
        let records = 400_000;
        map.extend((0..records).map(|i| (key(i), i))).unwrap();
        pool.sync().unwrap();
        let dead = after_death(&place);
        drop((map, pool));
        let segments = segments_in(&log_of(&dead.path));
        let (&first, &slot) = segments.first_key_value().unwrap();
        assert!(first > 0, "no segment was used again: {segments:?}");
        // As when power fails while the header is written that says that the segment is used again.
        let copy = after_death(&dead);
        overwrite(&log_of(&copy.path), &[0x5a; 512], slot << 20);
        let pool = options(durability).open(&copy.path).unwrap();
        assert_holds(&pool.open_map("m").unwrap(), records);
        // All before the last one that has a header. When that was written, the log ended before it: no header says that what lies before it is in the pool's
        // file.
        let copy = after_death(&dead);
        for slot in segments.values().rev().skip(1) {
            overwrite(&log_of(&copy.path), &[0; 1 << 20], slot << 20);
        }
        let refused = options(durability).open(&copy.path);
        assert!(matches!(refused, Err(Error::Damaged(_))), "{refused:?}");
    }
}

#[test]
fn an_older_log_of_the_pool_is_no_log_of_its_last_session() {
    let place = place();
    let pool = options(INTERVAL).create(&place.path).unwrap();
    let older = after_death(&place);
    pool.close().unwrap();
    let pool = options(INTERVAL).open(&place.path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    map.insert(1, 10).unwrap();
    let dead = after_death(&place);
    std::fs::copy(log_of(&older.path), log_of(&dead.path)).unwrap();
    let refused = options(INTERVAL).open(&dead.path);
    assert!(matches!(refused, Err(Error::Damaged(_))), "{refused:?}");
}

#[test]
fn a_log_that_has_lost_what_was_on_the_disk_is_refused_or_its_records_are() {
    let place = place();
    let pool = options(INTERVAL).create(&place.path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    for i in 0..100_000 {
        map.insert(key(i), i).unwrap();
    }
    pool.sync().unwrap();
    // Some more, so that a segment is begun after the sync.
    for i in 100_000..200_000 {
        map.insert(key(i), i).unwrap();
    }
    let copy = after_death(&place);
    let flip = || {
        let mut log = std::fs::read(log_of(&copy.path)).unwrap();
        log[(1 << 20) + 100_000] ^= 4;
        std::fs::write(log_of(&copy.path), log).unwrap();
    };
    flip();
    let verified = options(INTERVAL).verify_log(&copy.path);
    assert!(matches!(verified, Err(Error::Damaged(_))), "{verified:?}");
    match options(INTERVAL).open(&copy.path) {
        Err(Error::Damaged(_)) => {}
        Err(error) => panic!("{error}"),
        // The segment has a footer, so that its records were not read.
        Ok(pool) => {
            let map = pool.open_map::<u64, u64>("m").unwrap();
            let mut refused = 0;
            for i in 0..200_000 {
                match map.get(key(i)) {
                    Ok(found) => assert_eq!(found, Some(i)),
                    Err(Error::Damaged(_)) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(refused > 0);
            drop(map);
            pool.close().unwrap_err();
        }
    }
    // Nothing was lost.
    flip();
    let pool = options(INTERVAL).open(&copy.path).unwrap();
    assert_holds(&pool.open_map("m").unwrap(), 200_000);
}

/// A clean copy of a pool is put beside the log of a later session: what was written to it would be mixed up with what that log has, or be out of reach,
/// after the next crash.
#[test]
fn a_log_of_a_later_state_beside_a_restored_pool_is_refused_and_left_alone() {
    for durability in [Durability::PowerLoss, INTERVAL] {
        for (sessions, records) in [(1, 100), (2, 100), (1, 70_000), (2, 70_000)] {
            let place = place();
            let pool = options(durability).create(&place.path).unwrap();
            pool.map::<u64, u64>("m").unwrap();
            pool.close().unwrap();
            let golden = std::fs::read(&place.path).unwrap();
            for _ in 1..sessions {
                options(durability)
                    .open(&place.path)
                    .unwrap()
                    .close()
                    .unwrap();
            }
            let pool = options(durability).open(&place.path).unwrap();
            let map = pool.map::<u64, u64>("m").unwrap();
            map.extend((0..records).map(|i| (key(i), i))).unwrap();
            pool.sync().unwrap();
            let dead = after_death(&place);
            drop((map, pool));
            let later = std::fs::read(&dead.path).unwrap();
            let log = std::fs::read(log_of(&dead.path)).unwrap();
            std::fs::write(&dead.path, &golden).unwrap();
            for _ in 0..2 {
                let refused = options(durability).open(&dead.path).unwrap_err();
                assert!(matches!(refused, Error::Io { .. }), "{refused}");
                let says = "it is the log of a later state of this pool";
                assert!(refused.to_string().contains(says), "{refused}");
                assert!(std::fs::read(&dead.path).unwrap() == golden);
                assert!(std::fs::read(log_of(&dead.path)).unwrap() == log);
            }
            // Either is whole: the copy without the log, and the log with its own file.
            let alone = self::place();
            std::fs::write(&alone.path, &golden).unwrap();
            let pool = options(durability).open(&alone.path).unwrap();
            assert_holds(&pool.open_map("m").unwrap(), 0);
            std::fs::write(&dead.path, &later).unwrap();
            let pool = options(durability).open(&dead.path).unwrap();
            assert_holds(&pool.open_map("m").unwrap(), records);
        }
    }
}

/// A backup has the generation of the session in which it was made, and what the log has of that session may be later.
#[test]
fn a_log_that_has_gone_on_beside_a_backup_is_refused_and_left_alone() {
    for durability in [Durability::PowerLoss, INTERVAL] {
        let place = place();
        let copy = place.path.with_file_name("backup.pool");
        let pool = options(durability).create(&place.path).unwrap();
        let map = pool.map::<u64, u64>("m").unwrap();
        pool.backup(&copy).unwrap();
        map.insert(1, 10).unwrap();
        pool.sync().unwrap();
        let dead = after_death(&place);
        drop((map, pool));
        let later = std::fs::read(&dead.path).unwrap();
        let log = std::fs::read(log_of(&dead.path)).unwrap();
        std::fs::copy(&copy, &dead.path).unwrap();
        let refused = options(durability).open(&dead.path).unwrap_err();
        let says = "it is the log of a later state of this pool";
        assert!(refused.to_string().contains(says), "{refused}");
        assert!(std::fs::read(log_of(&dead.path)).unwrap() == log);
        std::fs::write(&dead.path, &later).unwrap();
        let pool = options(durability).open(&dead.path).unwrap();
        assert_eq!(
            pool.open_map::<u64, u64>("m").unwrap().get(1).unwrap(),
            Some(10)
        );
        // The copy alone goes on as any pool.
        for _ in 0..2 {
            let pool = options(durability).open(&copy).unwrap();
            assert!(pool.open_map::<u64, u64>("m").unwrap().is_empty().unwrap());
            pool.close().unwrap();
        }
    }
}

#[test]
fn a_backup_is_not_put_beside_a_log_that_lies_there() {
    let place = place();
    let pool = options(INTERVAL).create(&place.path).unwrap();
    let copy = place.path.with_extension("copy");
    std::fs::write(log_of(&copy), "of an earlier copy").unwrap();
    let refused = pool.backup(&copy).unwrap_err();
    assert!(refused.to_string().contains("move it away"), "{refused}");
    assert!(!copy.exists());
    std::fs::remove_file(log_of(&copy)).unwrap();
    pool.backup(&copy).unwrap();
    // Once, this pool's own log was to be moved away.
    for taken in [&copy, &place.path] {
        let refused = pool.backup(taken).unwrap_err();
        let is_there = matches!(&refused, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists);
        assert!(is_there, "{refused}");
    }
}
