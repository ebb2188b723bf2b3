//! Ranges keep the order of the keys of each leaf in DRAM, and must not use it once the leaf has changed. So every change here comes between two ranges
//! over the same leaves, and the second one must see it in its place.

use indelible::{BytesMap, BytesOptions, Pool, PoolOptions, StringKind};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u32) -> Vec<u8> {
    format!("/usr/share/{number:05}").into_bytes()
}

/// Reads all records twice, in either direction: if the first range keeps orders, the second one uses them.
fn expect_in_order(map: &BytesMap, model: &Model) {
    for _ in 0..2 {
        let records = map.iter().map(Result::unwrap);
        assert!(records.eq(model.iter().map(|(k, v)| (k.clone(), v.clone()))));
        let keys = map.iter().rev().map(|record| record.unwrap().0);
        assert!(keys.eq(model.keys().rev().cloned()));
    }
}

/// One change, of those that are made in a leaf and those that replace leaves.
fn change(map: &BytesMap, model: &mut Model, random: &mut SmallRng, keys: u32) {
    let one = key(random.random_range(0..keys));
    let value = vec![random.random(); [8, 8, 8, 3, 40, 400][random.random_range(0..6)]];
    match random.random_range(0..8) {
        0..3 => {
            assert_eq!(map.remove(&one).unwrap(), model.remove(&one).is_some());
        }
        3 => {
            let first = random.random_range(0..keys);
            let records: Vec<_> = (first..first + random.random_range(2..12))
                .rev()
                .map(|number| (key(number), value.clone()))
                .collect();
            map.insert_batch(&records).unwrap();
            model.extend(records);
        }
        4 => {
            // A slot that was in use is used again, and so is its part of the heap: all that a leaf says of its slots may be as it was before.
            let gone = model
                .keys()
                .nth(random.random_range(0..=model.len()))
                .cloned();
            if let Some(gone) = gone {
                let value = model.remove(&gone).unwrap();
                assert!(map.remove(&gone).unwrap());
                map.insert(&one, &value).unwrap();
                model.insert(one, value);
            }
        }
        _ => {
            map.insert(&one, &value).unwrap();
            model.insert(one, value);
        }
    }
}

#[test]
fn a_range_sees_every_change_of_a_leaf_that_was_read_before() {
    for options in StringKind::all()
        .iter()
        .flat_map(|&kind| BytesOptions::extremes(kind))
    {
        let mut random = SmallRng::seed_from_u64(7);
        let pool = Pool::in_memory().unwrap();
        let map = pool.bytes_with("m", options).unwrap();
        let mut model = Model::new();
        for round in 0..2_000 {
            // It grows, shrinks and grows: leaves are split, merged, and split again.
            let is_shrinking = round % 1_000 > 700;
            if is_shrinking && let Some(gone) = model.keys().nth(model.len() / 2).cloned() {
                assert!(map.remove(&gone).unwrap());
                model.remove(&gone);
            }
            change(&map, &mut model, &mut random, 400);
            if round % 250 == 249 {
                map.compact().unwrap();
            }
            expect_in_order(&map, &model);
        }
        map.clear().unwrap();
        model.clear();
        expect_in_order(&map, &model);
        let records: Vec<_> = (0..300)
            .map(|number| (key(2 * number), vec![1; 8]))
            .collect();
        map.bulk_load(records.clone(), 0.7).unwrap();
        model.extend(records);
        for _ in 0..200 {
            expect_in_order(&map, &model);
            change(&map, &mut model, &mut random, 700);
        }
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}

#[test]
fn a_range_sees_every_change_after_the_pool_was_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("orders.pool");
    let mut random = SmallRng::seed_from_u64(8);
    let mut model = Model::new();
    for _ in 0..6 {
        let pool = PoolOptions::new().open_or_create(&path).unwrap();
        let map = pool.bytes("m").unwrap();
        for _ in 0..200 {
            expect_in_order(&map, &model);
            change(&map, &mut model, &mut random, 500);
        }
        drop(map);
        pool.close().unwrap();
    }
}

#[test]
fn ranges_beside_writers_are_in_order() {
    const KEYS: u32 = 2_000;
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    // Keys of even numbers stay.
    for number in (0..KEYS).step_by(2) {
        map.insert(key(number), number.to_ne_bytes()).unwrap();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let keys: Vec<_> = map.keys().map(Result::unwrap).collect();
                    assert!(keys.is_sorted_by(|a, b| a < b));
                    let staying = keys.iter().filter(|key| key[key.len() - 1] % 2 == 0);
                    assert!(staying.eq(&(0..KEYS).step_by(2).map(key).collect::<Vec<_>>()));
                }
            });
        }
        let mut random = SmallRng::seed_from_u64(9);
        for _ in 0..60_000 {
            let number = random.random_range(0..KEYS / 2) * 2 + 1;
            if random.random_range(0..2) == 0 {
                map.insert(key(number), number.to_ne_bytes()).unwrap();
            } else {
                map.remove(key(number)).unwrap();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(map.check().unwrap(), [""; 0]);
}
