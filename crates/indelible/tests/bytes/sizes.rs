//! Leaves whose size follows from their records.

use indelible::{BytesMap, Error, Pool, SlottedOptions};
use std::collections::BTreeMap;

const EXTENT: u64 = 2 << 20;
const KEYS: u64 = 40_000;

/// Twelve bytes, in no order.
fn key(number: u64) -> String {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:04x}{number:08}", hash >> 48)
}

/// About so many bytes.
fn value(number: u64, bytes: u64) -> Vec<u8> {
    let hash = number.wrapping_mul(0xd1b5_4a32_d192_ed03) >> 40;
    vec![number as u8; (bytes / 2 + hash % (bytes + 1)) as usize]
}

fn leaf_bytes(map: &BytesMap) -> f64 {
    let stat = map.stat().unwrap();
    stat.fact("leaf-bytes").unwrap().value.as_f64()
}

fn expect_all(pool: &Pool, map: &BytesMap, bytes: impl Fn(u64) -> u64, numbers: &[u64]) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
    let records = numbers
        .iter()
        .map(|&number| (key(number).into_bytes(), value(number, bytes(number))));
    let expected: BTreeMap<Vec<u8>, Vec<u8>> = records.collect();
    for (key, value) in &expected {
        assert_eq!(map.get(key).unwrap().as_ref(), Some(value));
    }
    // Twice: the second range finds the records in the order that the first one has kept.
    for _ in 0..2 {
        let found = map.iter().map(Result::unwrap);
        assert!(found.eq(expected.clone()));
    }
}

#[test]
fn leaves_have_the_size_that_suits_their_records() {
    let directory = tempfile::tempdir().unwrap();
    // A leaf of short records is small once it has been split in a map that is not small any more.
    let cases = [
        (4, 4 * KEYS, 512.0..640.0),
        (30, KEYS, 1000.0..1100.0),
        // The first leaves of a bulk load are those of a small map.
        (200, KEYS, 1800.0..2049.0),
    ];
    for (bytes, keys, sizes) in cases {
        let all: Vec<u64> = (0..keys).collect();
        let mut sorted: Vec<(String, u64)> =
            all.iter().map(|&number| (key(number), number)).collect();
        sorted.sort_unstable();
        for is_loaded in [false, true] {
            let path = directory.path().join(format!("{bytes}-{is_loaded}"));
            let pool = Pool::create(&path).unwrap();
            let map = pool.bytes("m").unwrap();
            if is_loaded {
                let records = sorted
                    .iter()
                    .map(|(key, number)| (key, value(*number, bytes)));
                map.bulk_load(records, 0.7).unwrap();
            } else {
                for &number in &all {
                    map.insert(key(number), value(number, bytes)).unwrap();
                }
            }
            let average = leaf_bytes(&map);
            println!("{bytes} {is_loaded}: {average}");
            assert!(sizes.contains(&average), "{bytes} {is_loaded}: {average}");
            expect_all(&pool, &map, |_| bytes, &all);
            drop((map, pool));
            let pool = Pool::open(&path).unwrap();
            let map = pool.bytes("m").unwrap();
            expect_all(&pool, &map, |_| bytes, &all);
            assert_eq!(leaf_bytes(&map), average);
        }
    }
}

#[test]
fn leaves_change_their_size_with_their_records() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let all: Vec<u64> = (0..KEYS).collect();
    // Short and long records side by side, and then the other way round.
    for turn in 0..2 {
        let bytes = |number: u64| {
            if (number / 100 + turn).is_multiple_of(2) {
                4
            } else {
                260
            }
        };
        for number in 0..KEYS {
            map.insert(key(number), value(number, bytes(number)))
                .unwrap();
        }
        expect_all(&pool, &map, bytes, &all);
    }
    for number in 0..KEYS {
        map.insert(key(number), value(number, 4)).unwrap();
    }
    expect_all(&pool, &map, |_| 4, &all);
    pool.shrink().unwrap();
    assert!(leaf_bytes(&map) < 640.0, "{}", leaf_bytes(&map));
    expect_all(&pool, &map, |_| 4, &all);
    // A small map has leaves of one size, and with them one extent.
    let left: Vec<u64> = all
        .iter()
        .copied()
        .filter(|number| number % 50 == 0)
        .collect();
    for number in all.iter().filter(|&number| number % 50 != 0) {
        assert!(map.remove(key(*number)).unwrap());
    }
    pool.shrink().unwrap();
    expect_all(&pool, &map, |_| 4, &left);
    assert_eq!(leaf_bytes(&map), 1024.0);
    assert!(pool.stat().file_bytes <= 2 * EXTENT);
}

#[test]
fn leaves_change_their_size_under_readers_and_writers() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    std::thread::scope(|threads| {
        for thread in 0..3 {
            let map = &map;
            threads.spawn(move || {
                for turn in 0..4 {
                    for number in (thread..KEYS / 4).step_by(3) {
                        let bytes = if u64::is_multiple_of(turn, 2) { 260 } else { 4 };
                        map.insert(key(number), value(number, bytes)).unwrap();
                        let other = (number * 7) % (KEYS / 4);
                        if let Some(found) = map.get(key(other)).unwrap() {
                            assert!([4, 260].map(|bytes| value(other, bytes)).contains(&found));
                        }
                    }
                }
            });
        }
        for _ in 0..4 {
            pool.shrink().unwrap();
            let keys: Vec<_> = map.keys().map(Result::unwrap).collect();
            assert!(keys.is_sorted());
        }
    });
    let all: Vec<u64> = (0..KEYS / 4).collect();
    expect_all(&pool, &map, |_| 4, &all);
}

#[test]
fn a_map_of_one_size_keeps_it() {
    let pool = Pool::in_memory().unwrap();
    for bytes in [512, 1024, 2048] {
        let options = SlottedOptions::default().leaf_bytes(bytes);
        let map = pool.bytes_with(&format!("m{bytes}"), options).unwrap();
        for number in 0..KEYS / 4 {
            map.insert(key(number), value(number, 60)).unwrap();
        }
        assert_eq!(leaf_bytes(&map), f64::from(bytes));
        let any = pool.bytes_with(&format!("m{bytes}"), SlottedOptions::default());
        assert!(matches!(any, Err(Error::OtherOptions { .. })), "{any:?}");
    }
    assert_eq!(pool.check(), [""; 0]);
}

/// What all keys of a leaf share is stored once, so it counts for nothing in the size.
#[test]
fn a_long_prefix_makes_no_leaf_larger() {
    let key = |number: u64| format!("{}{number:08}", "a long prefix/".repeat(10));
    for is_loaded in [false, true] {
        let pool = Pool::in_memory().unwrap();
        let map = pool.bytes("m").unwrap();
        let value = |number: u64| value(number, 20);
        if is_loaded {
            let records = (0..KEYS).map(|number| (key(number), value(number)));
            map.bulk_load(records, 0.7).unwrap();
        } else {
            // In no order: 7 and the number of keys have no divisor in common.
            for number in (0..KEYS).map(|number| number * 7 % KEYS) {
                map.insert(key(number), value(number)).unwrap();
            }
        }
        let average = leaf_bytes(&map);
        assert!((700.0..1100.0).contains(&average), "{is_loaded}: {average}");
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}
