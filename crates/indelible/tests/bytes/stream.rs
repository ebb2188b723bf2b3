//! Values of maps of byte strings that are written and read in parts.

use indelible::{BytesMap, Durability, Error, Pool, PoolOptions, ValueReader, ValueWriter};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::io::{BufRead, ErrorKind, Read, Seek, SeekFrom, Write};

const EXTENT: u64 = 2 << 20;

/// Bytes that a writer takes at once, at most.
const PART: usize = 64 << 10;

/// Lengths in the leaf, around the limit between leaf and block, and around the length of a part.
const LENGTHS: [usize; 12] = [
    0, 1, 8, 256, 257, 5_000, 65_535, 65_536, 65_537, 131_072, 200_001, 5_000_000,
];

fn expect_sound(pool: &Pool, map: &BytesMap) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
}

fn value(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64)
        .map(|at| (at.wrapping_mul(seed + 3) >> 3 ^ at >> 9) as u8)
        .collect()
}

fn write(map: &BytesMap, key: &str, value: &[u8]) -> ValueWriter {
    let mut writer = map.value_writer(key, value.len() as u64).unwrap();
    writer.write_all(value).unwrap();
    writer
}

fn reader(map: &BytesMap, key: &str) -> ValueReader {
    map.value_reader(key).unwrap().unwrap()
}

#[test]
fn values_of_any_length_are_written_and_read_in_any_parts() {
    let mut random = SmallRng::seed_from_u64(1);
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    for (round, length) in LENGTHS.into_iter().cycle().take(36).enumerate() {
        let key = format!("{length}");
        let value = value(length, round as u64);
        let mut writer = map.value_writer(&key, length as u64).unwrap();
        let mut rest = &value[..];
        while !rest.is_empty() {
            let most = [1, 100, 64 << 10, 300_000][random.random_range(0..4)];
            let count = random.random_range(1..=rest.len().min(most));
            writer.write_all(&rest[..count]).unwrap();
            rest = &rest[count..];
            assert_eq!(writer.written(), (length - rest.len()) as u64);
            if random.random_ratio(1, 200) {
                writer.flush().unwrap();
            }
        }
        assert_eq!(writer.commit().unwrap(), round >= LENGTHS.len());
        assert_eq!(map.get(&key).unwrap().as_ref(), Some(&value));
        let mut reader = reader(&map, &key);
        assert_eq!(
            (reader.len(), reader.is_empty()),
            (length as u64, length == 0)
        );
        assert_eq!(reader.as_slice(), value);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        assert_eq!(read, value);
        for _ in 0..20 {
            let from = random.random_range(0..=length);
            let count = random.random_range(0..=length - from);
            let to = match random.random_range(0..3) {
                0 => SeekFrom::Start(from as u64),
                1 => SeekFrom::End(from as i64 - length as i64),
                _ => SeekFrom::Current(from as i64 - reader.stream_position().unwrap() as i64),
            };
            assert_eq!(reader.seek(to).unwrap(), from as u64);
            let mut part = vec![0; count];
            reader.read_exact(&mut part).unwrap();
            assert_eq!(part, value[from..from + count]);
            assert_eq!(reader.fill_buf().unwrap(), &value[from + count..]);
        }
        reader.seek(SeekFrom::Start(u64::MAX)).unwrap();
        assert_eq!(reader.read(&mut [0; 9]).unwrap(), 0);
        let before = reader.seek(SeekFrom::End(-1 - length as i64));
        assert_eq!(before.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert!(map.value_reader("absent").unwrap().is_none());
    expect_sound(&pool, &map);
}

#[test]
fn what_does_not_fit_the_announcement_is_refused() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    map.insert("key", "before").unwrap();
    for length in LENGTHS.into_iter().skip(1) {
        let value = value(length, 9);
        let mut writer = map.value_writer("key", length as u64).unwrap();
        writer.write_all(&value[1..]).unwrap();
        let refused = writer.commit();
        assert!(
            matches!(refused, Err(Error::WrongLength { announced, written })
                if announced == length as u64 && written + 1 == announced),
            "{refused:?}"
        );
        let mut writer = write(&map, "key", &value);
        assert_eq!(writer.write(b"").unwrap(), 0);
        let refused = writer.write(b"!").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        drop(writer);
        assert_eq!(map.get("key").unwrap().unwrap(), b"before");
    }
    assert!(matches!(
        map.value_writer("key", (1 << 30) + 1),
        Err(Error::TooLong { what: "value", .. })
    ));
    assert!(matches!(
        map.value_writer(vec![0; (64 << 10) + 1], 1),
        Err(Error::TooLong { what: "key", .. })
    ));
    expect_sound(&pool, &map);
}

#[test]
fn writers_that_are_dropped_leave_nothing() {
    let pool = Pool::options().max_bytes(12 * EXTENT).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    for round in 0..300 {
        let length = LENGTHS[round % LENGTHS.len()];
        let mut writer = map.value_writer("key", length as u64).unwrap();
        writer.write_all(&vec![1; length / 2]).unwrap();
    }
    assert!(map.is_empty().unwrap());
    expect_sound(&pool, &map);
    // Nothing but the map's first leaf is in use, so that no extent but its own is.
    pool.shrink().unwrap();
    assert_eq!(map.stat().unwrap().file_bytes, EXTENT);
}

#[test]
fn of_several_writers_of_a_key_the_last_one_to_commit_wins() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    for [first, second] in [[100_000, 70_000], [9, 70_000], [70_000, 9]] {
        let [first, second] = [value(first, 1), value(second, 2)];
        let (a, b) = (write(&map, "key", &first), write(&map, "key", &second));
        expect_sound(&pool, &map);
        assert!(!b.commit().unwrap());
        assert_eq!(map.get("key").unwrap().unwrap(), second);
        assert!(a.commit().unwrap());
        assert_eq!(map.get("key").unwrap().unwrap(), first);
        assert_eq!(map.len().unwrap(), 1);
        expect_sound(&pool, &map);
        assert!(map.remove("key").unwrap());
    }
}

#[test]
fn a_reader_reads_the_value_as_it_was_and_costs_one_block() {
    let pool = Pool::options().max_bytes(16 * EXTENT).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    for length in LENGTHS {
        let (first, second) = (value(length, 5), value(length, 6));
        map.insert("key", &first).unwrap();
        let mut readers: Vec<ValueReader> = (0..3).map(|_| reader(&map, "key")).collect();
        // 1 GiB of long values go through a pool of 32 MiB, while the readers live.
        for _ in 0..200 {
            map.insert("key", &second).unwrap();
            map.insert("other", &second).unwrap();
        }
        expect_sound(&pool, &map);
        map.remove("key").unwrap();
        expect_sound(&pool, &map);
        pool.shrink().unwrap();
        while let Some(mut reader) = readers.pop() {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            assert!(read == first && reader.as_slice() == first);
        }
        map.remove("other").unwrap();
    }
    expect_sound(&pool, &map);
    map.compact().unwrap();
    assert_eq!(map.stat().unwrap().file_bytes, EXTENT);
}

#[test]
fn compaction_and_bulk_loads_pass_readers_and_writers_by() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let (old, new) = (value(300_000, 1), value(5_000_000, 2));
    for number in 0..200 {
        map.insert(format!("{number}"), vec![7; 20_000]).unwrap();
    }
    map.insert("old", &old).unwrap();
    let reader = reader(&map, "old");
    let mut writer = map.value_writer("new", new.len() as u64).unwrap();
    writer.write_all(&new[..3_000_000]).unwrap();
    for number in 0..200 {
        map.remove(format!("{number}")).unwrap();
    }
    map.compact().unwrap();
    pool.shrink().unwrap();
    map.clear().unwrap();
    map.bulk_load([("a", vec![1; 100_000]), ("b", vec![2; 10])], 0.8)
        .unwrap();
    expect_sound(&pool, &map);
    assert_eq!(reader.as_slice(), old);
    writer.write_all(&new[3_000_000..]).unwrap();
    assert!(!writer.commit().unwrap());
    assert_eq!(map.get("new").unwrap().unwrap(), new);
    drop(reader);
    pool.shrink().unwrap();
    assert_eq!(map.get("new").unwrap().unwrap(), new);
    expect_sound(&pool, &map);
}

#[test]
fn a_pool_that_gets_full_refuses_a_writer_at_the_begin_or_keeps_what_was_there() {
    let pool = Pool::options().max_bytes(8 * EXTENT).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    map.insert("key", "before").unwrap();
    let mut writers = Vec::new();
    let refused = loop {
        match map.value_writer("key", EXTENT) {
            Ok(mut writer) => {
                writer.write_all(&vec![7; EXTENT as usize]).unwrap();
                writers.push(writer);
            }
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert!(writers.len() > 3);
    // Leaves get full as well, so that a commit may find no room for a split.
    let mut number = 0;
    while map.insert(format!("{number:05}"), [1; 200]).is_ok() {
        number += 1;
    }
    expect_sound(&pool, &map);
    for writer in writers {
        let before = map.get("key").unwrap();
        match writer.commit() {
            Ok(was_there) => assert!(was_there),
            Err(Error::NoSpace(_)) => assert_eq!(map.get("key").unwrap(), before),
            Err(error) => panic!("{error}"),
        }
        expect_sound(&pool, &map);
    }
    assert_eq!(map.len().unwrap(), number + 1);
}

#[test]
fn readers_and_writers_are_handles() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.bytes("m").unwrap();
    map.insert("key", vec![1; 100_000]).unwrap();
    let (reader, writer) = (reader(&map, "key"), write(&map, "key", &vec![2; 100_000]));
    drop(map);
    assert!(matches!(pool.drop_object("m"), Err(Error::InUse(_))));
    drop(reader);
    assert!(matches!(pool.drop_object("m"), Err(Error::InUse(_))));
    let refused = Pool::close(pool.clone());
    assert!(matches!(refused, Err(Error::InUse(_))), "{refused:?}");
    // The pool itself lives on in the writer.
    drop(pool);
    assert!(writer.commit().unwrap());
    let pool = PoolOptions::new().open_read_only(&path).unwrap();
    let map = pool.open_bytes("m").unwrap();
    assert!(matches!(map.value_writer("key", 9), Err(Error::ReadOnly)));
    let long = map.value_writer("key", 100_000);
    assert!(matches!(long, Err(Error::ReadOnly)));
    assert_eq!(self::reader(&map, "key").as_slice(), vec![2; 100_000]);
}

#[test]
fn readers_and_writers_may_move_to_other_threads() {
    fn expect_send<T: Send + Sync>() {}
    expect_send::<ValueReader>();
    expect_send::<ValueWriter>();
    let pool = Pool::options().max_bytes(40 * EXTENT).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let map = map.clone();
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                for _ in 0..400 {
                    let key = format!("{}", random.random_range(0..3));
                    let byte: u8 = random.random();
                    // Each value is of one byte, which says how many there are.
                    let of = |byte: u8| vec![byte; 300 + usize::from(byte) * 700];
                    if random.random() {
                        let writer = write(&map, &key, &of(byte));
                        if byte < 200 {
                            std::thread::spawn(|| writer.commit().unwrap())
                                .join()
                                .unwrap();
                        }
                    } else if let Some(mut reader) = map.value_reader(&key).unwrap() {
                        let mut read = Vec::new();
                        let mut part = [0; 1_000];
                        while let count @ 1.. = reader.read(&mut part).unwrap() {
                            read.extend_from_slice(&part[..count]);
                        }
                        assert!(read == of(read[0]), "a value that was changed");
                    }
                }
            });
        }
    });
    expect_sound(&pool, &map);
}

/// Copies the files of a pool as they are: what a process leaves that dies now.
fn after_death(path: &std::path::Path) -> Pool {
    let copy = path.with_extension("copy");
    crate::death::copy_after_death(path, &copy);
    Pool::open(&copy).unwrap()
}

#[test]
fn the_death_of_the_process_leaves_a_value_whole_or_not_at_all() {
    let interval = Durability::Interval(std::time::Duration::from_millis(10));
    for durability in [Durability::Process, Durability::PowerLoss, interval] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pool");
        let pool = PoolOptions::new()
            .durability(durability)
            .log_anywhere(true)
            .log_bytes(4 << 20)
            .create(&path)
            .unwrap();
        let map = pool.bytes("m").unwrap();
        let (first, second) = (value(3_000_000, 1), value(5_000_000, 2));
        assert!(!write(&map, "key", &first).commit().unwrap());
        let writer = write(&map, "key", &second);
        let reader = reader(&map, "key");
        let expect = |expected: &[u8]| {
            let pool = after_death(&path);
            let map = pool.open_bytes("m").unwrap();
            assert_eq!(map.get("key").unwrap().unwrap(), expected);
            expect_sound(&pool, &map);
            // What nothing leads to is free: the value of the writer that did not commit, and the one that only a reader still had.
            assert!(map.stat().unwrap().file_bytes <= 5 * EXTENT);
            pool.shrink().unwrap();
            expect_sound(&pool, &map);
        };
        expect(&first);
        assert!(writer.commit().unwrap());
        expect(&second);
        assert_eq!(reader.as_slice(), first);
    }
}

#[test]
fn a_writer_takes_one_part_at_once_and_nothing_of_more_than_was_announced() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let value = value(200_000, 5);
    let mut writer = map.value_writer("key", 200_000).unwrap();
    assert_eq!(writer.write(&value).unwrap(), PART);
    let refused = writer.write(&value).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert_eq!(writer.written(), PART as u64);
    writer.write_all(&value[PART..]).unwrap();
    writer.commit().unwrap();
    assert_eq!(map.get("key").unwrap(), Some(value));
}
