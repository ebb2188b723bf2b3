//! Maps of byte strings in pools and on disks that get full in the middle of inserts, splits, replacements and long values: a clear error, and
//! nothing that was acknowledged is missing or half there.

use crate::skipped::skipped;
use indelible::{BytesMap, CompareExchange, Error, Kind, Pool, PoolOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

const EXTENT: u64 = 2 << 20;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys and values of all lengths: in the leaf, in blobs of several classes, in runs of extents.
fn record(random: &mut SmallRng) -> (Vec<u8>, Vec<u8>) {
    let number: u32 = random.random_range(0..200_000);
    let mut key = format!("https://example.org/{:x}/{number}", number % 13).into_bytes();
    if number.is_multiple_of(50) {
        key.resize(400, b'k');
    }
    let bytes = match random.random_range(0..400) {
        0 => 3 << 20,
        1..20 => random.random_range(257..60_000),
        20..200 => 8,
        _ => random.random_range(0..256),
    };
    (key, vec![number as u8; bytes])
}

/// Writes until the pool has refused so many writes.
fn write_until_refused(map: &BytesMap, model: &mut Model, random: &mut SmallRng, refusals: u32) {
    let mut refused = 0;
    while refused < refusals {
        let (key, value) = record(random);
        let result = if random.random_ratio(1, 4) {
            let result = map.replace(&key, &value);
            result.map(|before| assert_eq!(before.as_ref(), model.get(&key)))
        } else {
            let result = map.insert(&key, &value);
            result.map(|was_there| assert_eq!(was_there, model.contains_key(&key)))
        };
        match result {
            Ok(()) => drop(model.insert(key, value)),
            Err(Error::NoSpace(_)) => {
                assert_eq!(map.get(&key).unwrap().as_ref(), model.get(&key));
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn expect_whole(pool: &Pool, map: &BytesMap, model: &Model) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
    assert_eq!(map.len().unwrap(), model.len() as u64);
    let records: Vec<_> = map.iter().map(Result::unwrap).collect();
    assert!(records.iter().map(|(k, v)| (k, v)).eq(model.iter()));
}

/// Removes all records but every fourth, and writes again.
fn make_room(map: &BytesMap, model: &mut Model) {
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    for (at, key) in keys.iter().enumerate() {
        if at % 4 > 0 {
            assert!(map.remove(key).unwrap());
            model.remove(key);
        }
    }
    for number in 0..100 {
        let key = format!("after {number}").into_bytes();
        map.insert(&key, [1; 100]).unwrap();
        model.insert(key, vec![1; 100]);
    }
}

#[test]
fn a_pool_that_gets_full_anywhere_loses_nothing() {
    // Each limit runs out in the middle of something else.
    for extents in [3, 4, 5, 7, 12, 25, 40] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("full.pool");
        let mut random = SmallRng::seed_from_u64(extents);
        let mut options = PoolOptions::new();
        options.max_bytes(extents * EXTENT);
        let pool = options.create(&path).unwrap();
        let map = pool.bytes("m").unwrap();
        let mut model = Model::new();
        write_until_refused(&map, &mut model, &mut random, 40);
        expect_whole(&pool, &map, &model);
        drop(map);
        pool.close().unwrap();
        let pool = options.open(&path).unwrap();
        let map = pool.open_bytes("m").unwrap();
        expect_whole(&pool, &map, &model);
        write_until_refused(&map, &mut model, &mut random, 20);
        // A bulk load into another map is refused as well, or fits.
        if let Ok(other) = pool.bytes("other") {
            let many = (0..400_000_u32).map(|i| (i.to_be_bytes(), [1; 100]));
            let refused = other.bulk_load(many, 0.7);
            assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
            assert!(other.is_empty().unwrap());
        }
        make_room(&map, &mut model);
        expect_whole(&pool, &map, &model);
    }
}

/// Of values of 150 bytes a small map has leaves of 1 KiB, and a large one gets leaves of 2 KiB. When these can be had no more, there are others.
#[test]
fn a_map_in_a_full_pool_uses_free_leaves_of_any_size() {
    let key = |i: u32| i.wrapping_mul(0x9e37_79b1).to_be_bytes();
    let pool = Pool::options().max_bytes(12 * EXTENT).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let mut count = 0;
    let mut insert = || {
        let result = map.insert(key(count), [count as u8; 150]);
        count += u32::from(result.is_ok());
        result.map(|_| count)
    };
    // With as many records about half of the leaves' two extents is in use.
    let at_first = loop {
        let count = insert().unwrap();
        let fact = |name| map.stat().unwrap().fact(name).unwrap().value.as_f64();
        if count.is_multiple_of(64) && fact("leaves") >= 2_600.0 {
            assert!(fact("leaf-bytes") > 1_024.0, "some have 2 KiB");
            break count;
        }
    };
    let other = pool.bytes("other").unwrap();
    let refused = (0..).find_map(|i: u64| other.insert(i.to_be_bytes(), [1; 200]).err());
    assert!(matches!(refused, Some(Error::NoSpace(_))), "{refused:?}");
    let refused = loop {
        if let Err(error) = insert() {
            break error;
        }
    };
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert!(count > 2 * at_first, "{count} records, {at_first} at first");
    let model: Model = (0..count)
        .map(|i| (key(i).to_vec(), vec![i as u8; 150]))
        .collect();
    expect_whole(&pool, &map, &model);
    pool.shrink().unwrap();
    expect_whole(&pool, &map, &model);
}

/// A long value is written before it is known whether the key takes it. Where it turns out that the key does not, no space is needed.
#[test]
fn what_would_change_nothing_is_not_refused_in_a_full_pool() {
    let pool = Pool::options().max_bytes(12 * EXTENT).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    map.insert("key", "short").unwrap();
    let long = vec![7; 100_000];
    let refused = (0..).find_map(|i: u32| map.insert(i.to_be_bytes(), &long).err());
    assert!(matches!(refused, Some(Error::NoSpace(_))), "{refused:?}");
    let records = map.len().unwrap();

    assert!(!map.insert_new("key", &long).unwrap());
    assert_eq!(map.get_or_insert("key", &long).unwrap(), b"short");
    assert!(!map.update("absent", &long).unwrap());
    let unchanged = map.compare_exchange("key", Some(b"other"), Some(&long));
    let now = CompareExchange::Unchanged(Some(b"short".to_vec()));
    assert_eq!(unchanged.unwrap(), now);
    let same = map.compare_exchange(0_u32.to_be_bytes(), Some(&long), Some(&long));
    assert_eq!(same.unwrap(), CompareExchange::Exchanged);

    // Where it does, there is none.
    for refused in [
        map.insert("key", &long),
        map.insert_new("absent", &long),
        map.update("key", &long),
    ] {
        assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    }
    assert_eq!(map.get("key").unwrap().unwrap(), b"short");
    assert_eq!(map.len().unwrap(), records);
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
}

/// The thread reads a value meanwhile, so that no block of the process that is retired can be used again: what would have to wait for that goes on without.
#[test]
fn a_write_within_a_closure_that_reads_is_refused_when_the_pool_is_full_and_waits_for_nothing() {
    let pool = Pool::options().max_bytes(24 * EXTENT).in_memory().unwrap();
    let (map, other) = (pool.bytes("m").unwrap(), pool.bytes("other").unwrap());
    for kind in Kind::all() {
        let words = pool.map_with::<u64, u64>(kind.name(), *kind).unwrap();
        words.extend((0..1_000).map(|i| (i, i))).unwrap();
    }
    map.insert("key", vec![7; 100_000]).unwrap();
    // Leaves retired blocks.
    for round in 0..4 {
        other.insert("replaced", vec![round; 100_000]).unwrap();
    }
    map.get_with("key", |value| {
        let mut refused = (0..).map(|i: u32| other.insert(i.to_be_bytes(), [1; 10_000]));
        let refused = refused.find_map(Result::err);
        assert!(matches!(refused, Some(Error::NoSpace(_))), "{refused:?}");
        for kind in Kind::all() {
            let words = pool.open_map::<u64, u64>(kind.name()).unwrap();
            assert_eq!(words.check().unwrap(), [""; 0], "{kind}");
        }
        assert_eq!(other.check().unwrap(), [""; 0]);
        pool.shrink().unwrap();
        assert_eq!(value, [7; 100_000]);
    })
    .unwrap();
    assert_eq!(other.check().unwrap(), [""; 0]);
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
}

#[test]
fn threads_that_meet_in_a_full_pool_lose_nothing() {
    let pool = Pool::options().max_bytes(12 * EXTENT).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let models = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3_u8)
            .map(|thread| {
                let map = map.clone();
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread.into());
                    let (mut model, mut refused) = (Model::new(), 0);
                    while refused < 300 {
                        let (mut key, value) = record(&mut random);
                        key.push(thread);
                        if random.random_ratio(1, 8) {
                            assert_eq!(map.take(&key).unwrap(), model.remove(&key));
                            continue;
                        }
                        match map.insert(&key, &value) {
                            Ok(was_there) => {
                                assert_eq!(was_there, model.insert(key, value).is_some());
                            }
                            Err(Error::NoSpace(_)) => refused += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    model
                })
            })
            .collect();
        let models = threads.into_iter().map(|thread| thread.join().unwrap());
        models.reduce(|mut all, one| {
            all.extend(one);
            all
        })
    });
    expect_whole(&pool, &map, &models.unwrap());
}

#[test]
fn a_disk_that_gets_full_is_an_error_and_never_a_signal() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_str().unwrap();
    let run = |words: &[&str]| {
        let status = std::process::Command::new(words[0])
            .args(&words[1..])
            .status();
        status.is_ok_and(|status| status.success())
    };
    if !run(&["mount", "-t", "tmpfs", "-o", "size=13m", "tmpfs", at]) {
        return skipped("a full disk, since this user may not mount a small tmpfs");
    }
    let tested = std::panic::catch_unwind(|| {
        let path = directory.path().join("full.pool");
        let mut random = SmallRng::seed_from_u64(3);
        let pool = Pool::create(&path).unwrap();
        let map = pool.bytes("m").unwrap();
        let mut model = Model::new();
        write_until_refused(&map, &mut model, &mut random, 40);
        expect_whole(&pool, &map, &model);
        drop(map);
        pool.close().unwrap();
        let pool = Pool::open(&path).unwrap();
        let map = pool.open_bytes("m").unwrap();
        expect_whole(&pool, &map, &model);
        make_room(&map, &mut model);
        expect_whole(&pool, &map, &model);
    });
    assert!(run(&["umount", at]));
    tested.unwrap();
}

/// Once, the whole batch was written once more, over what another thread had written in place of its first record.
#[test]
fn a_batch_that_finds_no_space_in_its_middle_writes_no_record_twice() {
    let pool = PoolOptions::new().max_bytes(6 << 20).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    map.insert("first", "before").unwrap();
    map.insert("blob", vec![1; 700_000]).unwrap();
    let key = |i: u64| format!("k{:016x}", i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let refused = (0..).map(key).find(|key| map.insert(key, "value").is_err());
    let refused = refused.expect("the pool becomes full");
    let (start, has_started) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let records = [("first", "batch"), (refused.as_str(), "value")];
        let writer = map.clone();
        let batch = scope.spawn(move || {
            has_started.recv().unwrap();
            writer.insert_batch(&records)
        });
        // The batch waits for this reader before it tries again.
        let replaced = map.get_with("blob", |_| {
            map.insert("blob", "short").unwrap();
            start.send(()).unwrap();
            while map.get("first").unwrap().unwrap() != b"batch" {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            map.replace("first", "after").unwrap()
        });
        assert_eq!(replaced.unwrap().unwrap().unwrap(), b"batch");
        // There may be space by now, or not.
        let _ = batch.join().unwrap();
    });
    assert_eq!(map.get("first").unwrap().unwrap(), b"after");
    assert_eq!(map.check().unwrap(), [""; 0]);
}
