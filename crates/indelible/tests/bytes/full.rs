//! Maps of byte strings in pools and on disks that get full in the middle of inserts, splits, replacements and long values: a clear error, and
//! nothing that was acknowledged is missing or half there.

use indelible::{BytesMap, Error, Pool, PoolOptions};
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

/// Leaves of a large map of short records have 512 bytes, those of a small one 1024. So when nearly all of them go, each leaf that is written would get another
/// size, of which the pool has no block.
#[test]
fn a_map_that_shrinks_in_a_full_pool_goes_on_with_leaves_of_the_size_that_it_has() {
    const RECORDS: u32 = 160_000;
    let key = |i: u32| i.wrapping_mul(0x9e37_79b1).to_be_bytes();
    let pool = Pool::options().max_bytes(20 * EXTENT).in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    for i in 0..RECORDS {
        map.insert(key(i), i.to_be_bytes()).unwrap();
    }
    pool.shrink().unwrap();
    let leaf_bytes = || {
        map.stat()
            .unwrap()
            .fact("leaf-bytes")
            .unwrap()
            .value
            .as_f64()
    };
    assert!(leaf_bytes() < 600.0, "{}", leaf_bytes());
    let other = pool.bytes("other").unwrap();
    let fill = |from: u64| {
        for i in from.. {
            match other.insert(i.to_be_bytes(), [1; 200]) {
                Ok(_) => {}
                Err(Error::NoSpace(_)) => return i,
                Err(error) => panic!("{error}"),
            }
        }
        unreachable!("a pool that never gets full");
    };
    let count = fill(0);
    let before = map.stat().unwrap().file_bytes;
    for i in (0..RECORDS).filter(|i| i % 50 != 0) {
        assert!(map.remove(key(i)).unwrap());
    }
    // What is left of the map has room for all of these.
    for i in 0..RECORDS / 10 {
        map.insert(key(RECORDS + i), i.to_be_bytes()).unwrap();
    }
    pool.shrink().unwrap();
    let after = map.stat().unwrap().file_bytes;
    assert!(after < before / 2, "{before} bytes, and {after} after");
    assert!(fill(count) > count + 10_000);
    let kept = (0..RECORDS).filter(|i| i % 50 == 0).map(|i| (key(i), i));
    let new = (0..RECORDS / 10).map(|i| (key(RECORDS + i), i));
    let model: Model = kept
        .chain(new)
        .map(|(key, i)| (key.to_vec(), i.to_be_bytes().to_vec()))
        .collect();
    expect_whole(&pool, &map, &model);
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
        return eprintln!("NOT TESTED: a full disk, since this user may not mount a small tmpfs");
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
