//! Maps of byte strings: pools that are full, space that comes back, processes that die.

use indelible::{BytesMap, Error, Pool};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

const EXTENT: u64 = 2 << 20;

fn expect_sound(pool: &Pool, map: &BytesMap) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
}

fn key(number: u64) -> String {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("https://example.org/{:x}/{number}", hash >> 52)
}

#[test]
fn a_full_pool_refuses_what_is_new_and_keeps_what_is_there() {
    for value_bytes in [8, 3000] {
        let pool = Pool::options().max_bytes(8 * EXTENT).in_memory().unwrap();
        let map = pool.bytes("m").unwrap();
        let value = |number: u64| vec![number as u8; value_bytes];
        let mut count = 0;
        let refused = loop {
            match map.insert(key(count), value(count)) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
        assert!(count * (30 + value_bytes as u64) > 3 * EXTENT, "{count}");
        expect_sound(&pool, &map);
        assert_eq!(map.len().unwrap(), count);
        for number in 0..count {
            assert_eq!(map.get(key(number)).unwrap(), Some(value(number)));
        }
        // Values of one length up to 8 bytes are updated in place, which takes no space.
        if value_bytes == 8 {
            assert!(map.insert(key(0), [1; 8]).unwrap());
        }
        for number in 0..count {
            assert!(map.remove(key(number)).unwrap());
        }
        expect_sound(&pool, &map);
        assert!(map.is_empty().unwrap());
        // Other keys and other lengths, which need blocks of other sizes: of values of 100 bytes, about as many bytes as the pool has had.
        for number in 0..count / 5 {
            map.insert(key(number + 1_000_000), vec![1; 100]).unwrap();
        }
        expect_sound(&pool, &map);
    }
}

#[test]
fn a_file_stays_small_however_often_values_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("a.pool")).unwrap();
    let map = pool.bytes("m").unwrap();
    let mut random = SmallRng::seed_from_u64(7);
    let keys = 2_000;
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut written = 0;
    while written < 20 * 40_000_000_u64 / 10 {
        let number = random.random_range(0..keys);
        let bytes = 1_u64 << random.random_range(3..15);
        let bytes = random.random_range(bytes / 2..=bytes);
        map.insert(key(number), vec![number as u8; bytes as usize])
            .unwrap();
        live.insert(number, bytes);
        written += bytes;
    }
    let live: u64 = live.values().sum();
    let file = pool.stat().file_bytes;
    println!("{written} bytes written, {live} live, file {file}");
    // Each size of blocks may have an extent that is not full.
    assert!(file < 2 * live + 28 * EXTENT, "{live} {file}");
    expect_sound(&pool, &map);
    pool.shrink().unwrap();
    expect_sound(&pool, &map);
    let shrunk = pool.stat().file_bytes;
    println!("after a shrink {shrunk}");
    assert!(shrunk <= file);
}

#[test]
fn a_file_shrinks_after_most_records_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("a.pool")).unwrap();
    let map = pool.bytes("m").unwrap();
    for number in 0..100_000 {
        map.insert(
            key(number),
            vec![1; if number % 50 == 0 { 5000 } else { 20 }],
        )
        .unwrap();
    }
    let full = pool.stat().file_bytes;
    for number in 0..100_000 {
        if number % 20 != 7 {
            map.remove(key(number)).unwrap();
        }
    }
    pool.shrink().unwrap();
    expect_sound(&pool, &map);
    let left = pool.stat().file_bytes;
    println!("{full} then {left}");
    assert!(full > 8 * EXTENT && left <= 2 * EXTENT, "{full} {left}");
    assert_eq!(map.iter().count(), 5_000);
}

#[test]
fn a_small_map_is_a_small_file() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::create(directory.path().join("a.pool")).unwrap();
    let map = pool.bytes("m").unwrap();
    for number in 0..1_000 {
        map.insert(key(number), [1; 8]).unwrap();
    }
    assert!(pool.stat().file_bytes <= 4 << 20);
}

#[test]
fn what_a_dead_process_leaves_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.bytes("m").unwrap();
    let mut random = SmallRng::seed_from_u64(3);
    let mut model = BTreeMap::new();
    for round in 0..8 {
        for _ in 0..3_000 {
            let key = key(random.random_range(0..4_000)).into_bytes();
            if random.random_ratio(1, 4) {
                assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some());
            } else {
                let bytes = [8, 8, 60, 700, 9_000][random.random_range(0..5)];
                let value = vec![round; bytes];
                map.insert(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        // What the file is now is what the process would leave if it died.
        let image = directory.path().join("image.pool");
        let _ = std::fs::remove_file(&image);
        std::fs::copy(&path, &image).unwrap();
        let after = Pool::open(&image).unwrap();
        let left = after.open_bytes("m").unwrap();
        // Writes soon after the open, while the sweep is at work, and a lookup of every key.
        left.insert("new", "value").unwrap();
        for (key, value) in &model {
            assert_eq!(left.get(key).unwrap().as_ref(), Some(value));
        }
        assert!(left.remove("new").unwrap());
        assert_eq!(left.len().unwrap(), model.len() as u64);
        let records: Vec<_> = left.iter().map(Result::unwrap).collect();
        assert!(records.iter().map(|(k, v)| (k, v)).eq(model.iter()));
        expect_sound(&after, &left);
    }
}

#[test]
fn a_lost_page_is_an_error_or_does_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.bytes("m").unwrap();
    for number in 0..20_000 {
        let bytes = if number % 100 == 0 { 600 } else { 12 };
        map.insert(key(number), vec![number as u8; bytes]).unwrap();
    }
    drop(map);
    pool.close().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut random = SmallRng::seed_from_u64(5);
    for round in 0..40 {
        let image = directory.path().join("image.pool");
        let mut bytes = whole.clone();
        let pages = bytes.len() as u64 / 4096;
        let page = random.random_range(EXTENT / 4096..pages) as usize;
        let lost = &mut bytes[page * 4096..(page + 1) * 4096];
        if round % 2 == 0 {
            lost.fill(0);
        } else {
            lost.iter_mut().for_each(|byte| *byte = random.random());
        }
        std::fs::write(&image, &bytes).unwrap();
        let Ok(pool) = Pool::open(&image) else {
            continue;
        };
        // No panic and no endless loop; what is returned may be an error.
        let Ok(map) = pool.open_bytes("m") else {
            continue;
        };
        for number in 0..20_000 {
            let _ = map.get(key(number));
        }
        let _ = map.iter().take(1_000).count();
        for number in 0..2_000 {
            let _ = map.insert(key(number * 7), vec![1; 90]);
            let _ = map.remove(key(number * 3));
        }
        let _ = map.check();
        let _ = map.iter().rev().count();
        drop(map);
        drop(pool);
        std::fs::remove_file(&image).unwrap();
    }
}
