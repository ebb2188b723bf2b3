//! Batches of inserts into maps of byte strings, which share fences.

use indelible::{BytesMap, BytesOptions, Durability, Error, Pool, PoolOptions, StringKind};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Record = (Vec<u8>, Vec<u8>);

/// Keys that are often neighbours, and often there twice; keys and values of all lengths.
fn batch(random: &mut SmallRng, keys: u64) -> Vec<Record> {
    let (first, count) = (random.random_range(0..keys), random.random_range(0..60));
    let mut one = |_| {
        let number = first + random.random_range(0..50);
        let mut key = format!("/usr/share/{:04}", number).into_bytes();
        if number.is_multiple_of(40) {
            key.resize(300 + number as usize % 7, b'k');
        }
        let bytes = [0, 1, 8, 8, 8, 30, 100, 256, 257, 5_000][random.random_range(0..10)];
        (key, vec![random.random(); bytes])
    };
    (0..count).map(&mut one).collect()
}

fn expect_whole(pool: &Pool, map: &BytesMap, model: &Model) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
    assert_eq!(map.len().unwrap(), model.len() as u64);
    let records: Vec<_> = map.iter().map(Result::unwrap).collect();
    assert!(records.iter().map(|(k, v)| (k, v)).eq(model.iter()));
}

#[test]
fn a_batch_is_what_its_inserts_are_one_after_the_other() {
    for options in StringKind::all()
        .iter()
        .flat_map(|&kind| BytesOptions::extremes(kind))
    {
        let mut random = SmallRng::seed_from_u64(3);
        let pool = Pool::in_memory().unwrap();
        let map = pool.bytes_with("m", options).unwrap();
        let mut model = Model::new();
        for round in 0..400 {
            let records = batch(&mut random, 2_000);
            map.insert_batch(&records).unwrap();
            model.extend(records);
            let keys = model.keys().skip(random.random_range(0..40)).step_by(9);
            for key in keys.cloned().collect::<Vec<_>>() {
                assert_eq!(map.take(&key).unwrap(), model.remove(&key));
            }
            if round % 40 == 0 {
                expect_whole(&pool, &map, &model);
            }
        }
        map.insert_batch(&[] as &[Record]).unwrap();
        let too_long = [(b"a".to_vec(), b"1".to_vec()), (vec![0; 70_000], vec![])];
        let refused = map.insert_batch(&too_long);
        assert!(matches!(refused, Err(Error::TooLong { what: "key", .. })));
        expect_whole(&pool, &map, &model);
    }
}

#[test]
fn batches_of_several_threads_do_not_disturb_each_other() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3_u8 {
            let map = map.clone();
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread.into());
                let mut model = Model::new();
                for _ in 0..400 {
                    // Keys of all threads lie in the same leaves.
                    let mut records = batch(&mut random, 400);
                    records.iter_mut().for_each(|(key, _)| key.push(thread));
                    map.insert_batch(&records).unwrap();
                    for (key, value) in records {
                        model.insert(key, value);
                    }
                    for key in model.keys().step_by(5).cloned().collect::<Vec<_>>() {
                        assert_eq!(map.take(&key).unwrap(), model.remove(&key));
                    }
                    for (key, value) in model.iter().step_by(7) {
                        assert_eq!(map.get(key).unwrap().as_ref(), Some(value));
                    }
                }
            });
        }
    });
    assert_eq!(map.check().unwrap(), [""; 0]);
}

#[test]
fn a_batch_in_a_full_pool_inserts_a_part_and_nothing_by_halves() {
    for durability in [Durability::Process, Durability::PowerLoss] {
        let directory = tempfile::tempdir().unwrap();
        let mut options = PoolOptions::new();
        options
            .durability(durability)
            .log_anywhere(true)
            .max_bytes(10 << 20);
        let pool = options.create(directory.path().join("a.pool")).unwrap();
        let map = pool.bytes("m").unwrap();
        let mut random = SmallRng::seed_from_u64(5);
        let (mut model, mut refused) = (Model::new(), 0);
        while refused < 20 {
            let records = batch(&mut random, 100_000);
            let result = map.insert_batch(&records);
            if matches!(result, Err(Error::NoSpace(_))) {
                refused += 1;
                for (key, value) in Model::from_iter(records) {
                    let now = map.get(&key).unwrap();
                    if now.as_ref() == Some(&value) {
                        model.insert(key, value);
                    } else {
                        assert_eq!(now.as_ref(), model.get(&key));
                    }
                }
            } else {
                result.unwrap();
                model.extend(records);
            }
        }
        expect_whole(&pool, &map, &model);
    }
}
