//! What a map needs no more goes back: after most records were removed the file is about as long as that of a new map.

use indelible::{Kind, Map, MapOptions, Pool};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const RECORDS: u64 = 300_000;

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

fn uniform(i: u64) -> u64 {
    mix(i)
}

/// Three hundred clusters of a thousand keys, in a random order.
fn clustered(i: u64) -> u64 {
    let i = i * 7_919 % RECORDS;
    mix(i / 1_000) & !0xf_ffff | (i % 1_000 * 37)
}

fn options() -> MapOptions {
    MapOptions {
        kind: Kind::Apex,
        ..MapOptions::default()
    }
}

/// Bytes of a pool whose map is loaded with these records.
fn fresh(records: &BTreeMap<u64, u64>) -> u64 {
    let pool = Pool::in_memory().unwrap();
    let map = pool.map_with::<u64, u64>("m", options()).unwrap();
    let records: Vec<(u64, u64)> = records.iter().map(|(k, v)| (*k, *v)).collect();
    map.bulk_load(&records, 0.7).unwrap();
    pool.stat().file_bytes
}

/// Whether a record is one of the few that stay.
fn stays(i: u64) -> bool {
    mix(i ^ 0x5151).is_multiple_of(20)
}

fn assert_holds(map: &Map<u64, u64>, records: &BTreeMap<u64, u64>) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(map.len().unwrap(), records.len() as u64);
    assert!(map.iter().eq(records.iter().map(|(k, v)| (*k, *v))));
    for (key, value) in records {
        assert_eq!(map.get(*key).unwrap(), Some(*value));
    }
}

/// A map from which most of its records were removed in a random order, and those that are left.
fn with_few_left(pool: &Pool, key: impl Fn(u64) -> u64) -> (Map<u64, u64>, BTreeMap<u64, u64>) {
    let map = pool.map_with::<u64, u64>("m", options()).unwrap();
    let mut left = BTreeMap::new();
    for i in 0..RECORDS {
        assert_eq!(map.insert(key(i), i).unwrap(), None);
        left.insert(key(i), i);
    }
    for i in (0..RECORDS).filter(|&i| !stays(i)) {
        assert_eq!(map.remove(key(i)).unwrap(), left.remove(&key(i)));
    }
    (map, left)
}

fn remove_most(key: impl Fn(u64) -> u64) {
    let pool = Pool::in_memory().unwrap();
    let (map, left) = with_few_left(&pool, key);
    pool.shrink().unwrap();
    let (bytes, fresh) = (pool.stat().file_bytes, fresh(&left));
    assert_holds(&map, &left);
    assert!(
        bytes <= 2 * fresh,
        "{bytes} bytes, and a new one has {fresh}"
    );
    // Nothing more to do.
    pool.shrink().unwrap();
    assert_eq!(pool.stat().file_bytes, bytes);
    assert_holds(&map, &left);
    // And it grows again.
    for i in 0..RECORDS / 10 {
        map.insert(mix(!i), i).unwrap();
    }
    assert_eq!(map.check().unwrap(), [""; 0]);
}

#[test]
fn an_apex_without_most_of_its_uniform_records_is_as_small_as_a_new_one() {
    remove_most(uniform);
}

#[test]
fn an_apex_without_most_of_its_clustered_records_is_as_small_as_a_new_one() {
    remove_most(clustered);
}

/// Two threads insert, change and remove records of their own while the pool shrinks, and a third one reads the others.
fn shrink_beside_others(key: impl Fn(u64) -> u64 + Copy + Sync) {
    let pool = Pool::in_memory().unwrap();
    let (map, mut left) = with_few_left(&pool, key);
    let stop = AtomicBool::new(false);
    let write = |thread: u64| {
        let (mut mine, mut i) = (BTreeMap::new(), 0);
        // At least one round beside the shrinking, and few enough that it stays small.
        while !stop.load(Ordering::Relaxed) || i < 3_000 {
            // Next to a record that stays, so that nodes change beneath the shrinking.
            let near = key((i * 2 + thread) * 37 % RECORDS) & !3 | (1 + thread);
            if !left.contains_key(&near) {
                let old = mine.insert(near, i);
                assert_eq!(map.insert(near, i).unwrap(), old);
                if i % 4 != 0 {
                    assert_eq!(map.remove(near).unwrap(), mine.remove(&near));
                }
            }
            i += 1;
        }
        mine
    };
    let read = || {
        while !stop.load(Ordering::Relaxed) {
            let found: Vec<(u64, u64)> = map.iter().filter(|(k, _)| left.contains_key(k)).collect();
            assert!(found.iter().copied().eq(left.iter().map(|(k, v)| (*k, *v))));
            for (key, value) in left.iter().step_by(31) {
                assert_eq!(map.get(*key).unwrap(), Some(*value));
            }
        }
    };
    let theirs = std::thread::scope(|scope| {
        let writers = [0, 1].map(|thread| scope.spawn(move || write(thread)));
        let reader = scope.spawn(read);
        for _ in 0..5 {
            pool.shrink().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        writers.map(|writer| writer.join().unwrap())
    });
    left.extend(theirs.into_iter().flatten());
    assert_holds(&map, &left);
    pool.shrink().unwrap();
    let (bytes, fresh) = (pool.stat().file_bytes, fresh(&left));
    assert_holds(&map, &left);
    assert!(
        bytes <= 2 * fresh,
        "{bytes} bytes, and a new one has {fresh}"
    );
}

#[test]
fn an_apex_shrinks_beside_threads_that_write_and_read_uniform_keys() {
    shrink_beside_others(uniform);
}

#[test]
fn an_apex_shrinks_beside_threads_that_write_and_read_clustered_keys() {
    shrink_beside_others(clustered);
}

/// What lies at the end of the file moves to its front also if other maps have grown meanwhile, and after a crash.
#[test]
fn nodes_move_over_the_holes_that_other_maps_leave() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("holes.pool");
    let pool = Pool::create(&path).unwrap();
    let mut maps: Vec<_> = (0..4)
        .map(|i| {
            pool.map_with::<u64, u64>(&format!("{i}"), options())
                .unwrap()
        })
        .collect();
    for i in 0..100_000 {
        for map in &maps {
            assert_eq!(map.insert(clustered(i), i).unwrap(), None);
        }
    }
    let last = maps.pop().unwrap();
    let records: BTreeMap<u64, u64> = (0..100_000).map(|i| (clustered(i), i)).collect();
    drop(maps);
    for i in 0..3 {
        pool.drop_map(&format!("{i}")).unwrap();
    }
    pool.shrink().unwrap();
    assert_holds(&last, &records);
    let bytes = pool.stat().file_bytes;
    assert!(bytes <= 2 * fresh(&records), "{bytes}");
    let crashed = path.with_extension("crashed");
    std::fs::copy(&path, &crashed).unwrap();
    let map = Pool::open(&crashed)
        .unwrap()
        .open_map::<u64, u64>("3")
        .unwrap();
    assert_holds(&map, &records);
}
