//! Keys that lead a search of inner nodes to a wrong leaf: they differ from their neighbours in bytes that only separators have.
//!
//! Nearly all keys of a host have the same long path, so that inner nodes compare the bytes behind the path. A few have another one in the middle.

use indelible::{BytesMap, Pool};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

const HOSTS: u32 = 40;
const PAGES: u32 = 400;

const PATHS: [&str; 5] = [
    "/articles/of/the/day/",
    "/articles/archived/",
    "/articles/of/the/weather/",
    "/articles/of",
    "/articles\0",
];

fn key(host: u32, path: usize, page: u32) -> Vec<u8> {
    format!("www.{host:03}.org{}{page:04}", PATHS[path]).into_bytes()
}

/// A key of one class. One key in sixteen has an unusual path.
fn any_key(random: &mut SmallRng, class: u32, classes: u32) -> Vec<u8> {
    let path = random.random_range(0..64);
    let page = random.random_range(0..PAGES) * classes + class;
    let path = if path < PATHS.len() { path } else { 0 };
    key(random.random_range(0..HOSTS), path, page)
}

/// Changes keys of one class at random, and compares each answer with that of a model. Returns the model.
fn change(map: &BytesMap, class: u32, classes: u32, steps: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut random = SmallRng::seed_from_u64(u64::from(class));
    let mut model = BTreeMap::new();
    for step in 0..steps {
        let key = any_key(&mut random, class, classes);
        let value = step.to_ne_bytes().to_vec();
        match random.random_range(0..8) {
            0 => assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some()),
            1..4 => {
                let was_there = model.insert(key.clone(), value.clone()).is_some();
                assert_eq!(map.insert(&key, &value).unwrap(), was_there);
            }
            4 => {
                let keys = [key, any_key(&mut random, class, classes)];
                let found = map.get_batch(&keys).unwrap();
                for (key, found) in keys.iter().zip(found) {
                    assert_eq!(found.as_ref(), model.get(key));
                }
            }
            5 => {
                let records = [0; 20].map(|_| (any_key(&mut random, class, classes), &value));
                map.insert_batch(&records).unwrap();
                model.extend(records.map(|(key, value)| (key, value.clone())));
            }
            _ => assert_eq!(map.get(&key).unwrap().as_ref(), model.get(&key)),
        }
    }
    model
}

fn assert_has(map: &BytesMap, model: &BTreeMap<Vec<u8>, Vec<u8>>) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    let records: Vec<_> = map.iter().map(Result::unwrap).collect();
    assert!(records.iter().map(|(k, v)| (k, v)).eq(model.iter()));
    // Of each key that could be there. Those of other hosts end as they do.
    for host in 0..HOSTS {
        for path in 0..PATHS.len() {
            let keys: Vec<_> = (0..PAGES).map(|page| key(host, path, page)).collect();
            let found = map.get_batch(&keys).unwrap();
            for (key, found) in keys.iter().zip(found) {
                assert_eq!(found.as_ref(), model.get(key));
                assert_eq!(map.get(key).unwrap().as_ref(), model.get(key));
            }
        }
    }
}

#[test]
fn keys_that_differ_where_heads_do_not_reach_are_found() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let model = change(&map, 0, 1, 100_000);
    assert_has(&map, &model);
    for key in model.keys() {
        assert!(map.remove(key).unwrap());
    }
    assert_has(&map, &BTreeMap::new());
}

#[test]
fn they_are_found_while_other_threads_change_what_is_beside_them() {
    const THREADS: u32 = 4;
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let models = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|class| {
                let map = &map;
                scope.spawn(move || change(map, class, THREADS, 30_000))
            })
            .collect();
        let models = threads.into_iter().map(|thread| thread.join().unwrap());
        models.fold(BTreeMap::new(), |mut all, model| {
            all.extend(model);
            all
        })
    });
    assert_has(&map, &models);
}
