//! Maps of byte strings in pools with a log, on files of a real disk: what is there after the death of the process. (What a power cut leaves
//! is searched by the crash checker.)

use crate::death::{copy_after_death, log_of};
use indelible::{BytesMap, Durability, Pool, PoolOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::time::Duration;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn change(map: &BytesMap, model: &mut Model, random: &mut SmallRng) {
    let number: u32 = random.random_range(0..600);
    let mut key = format!("/usr/share/doc/{:x}/{number}", number % 7).into_bytes();
    if number.is_multiple_of(20) {
        key.resize(500, b'k');
    }
    if random.random_ratio(1, 4) {
        assert_eq!(map.take(&key).unwrap(), model.remove(&key));
        return;
    }
    let bytes = [8, 8, 8, 60, 300, 9_000, 200_000][random.random_range(0..7)];
    let value: Vec<u8> = (0..bytes).map(|at| (at as u32 ^ number) as u8).collect();
    let before = map.replace(&key, &value).unwrap();
    assert_eq!(before, model.insert(key, value));
}

fn expect_whole(pool: &Pool, map: &BytesMap, model: &Model) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
    assert_eq!(map.len().unwrap(), model.len() as u64);
    let records: Vec<_> = map.iter().map(Result::unwrap).collect();
    assert!(records.iter().map(|(k, v)| (k, v)).eq(model.iter()));
    for (key, value) in model {
        assert_eq!(map.get_with(key, |now| now == value).unwrap(), Some(true));
        assert_eq!(map.value_len(key).unwrap(), Some(value.len() as u64));
    }
}

#[test]
fn the_death_of_the_process_loses_no_byte_string() {
    let interval = Durability::Interval(Duration::from_millis(10));
    for (durability, changes) in [(Durability::PowerLoss, 120), (interval, 1_500)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("logged.pool");
        let pool = PoolOptions::new()
            .durability(durability)
            .log_anywhere(true)
            // Shorter than what is written: it is used over and over.
            .log_bytes(4 << 20)
            .create(&path)
            .unwrap();
        assert_eq!(pool.stat().medium, indelible::pmem::Medium::Disk);
        let map = pool.bytes("m").unwrap();
        let (mut model, mut random) = (Model::new(), SmallRng::seed_from_u64(changes));
        for round in 0..3 {
            for _ in 0..changes {
                change(&map, &mut model, &mut random);
            }
            let copy = directory.path().join(format!("copy {round}.pool"));
            copy_after_death(&path, &copy);
            for _ in 0..2 {
                let pool = Pool::open(&copy).unwrap();
                let map = pool.open_bytes("m").unwrap();
                expect_whole(&pool, &map, &model);
                drop(map);
                pool.close().unwrap();
                assert!(!log_of(&copy).exists(), "a closed pool is one file");
            }
        }
        drop(map);
        pool.close().unwrap();
        // The same file as another promise, and written on.
        let pool = PoolOptions::new()
            .durability(Durability::Process)
            .open(&path)
            .unwrap();
        let map = pool.open_bytes("m").unwrap();
        for _ in 0..200 {
            change(&map, &mut model, &mut random);
        }
        expect_whole(&pool, &map, &model);
    }
}

/// Each wait for the disk fills a sector of the log.
#[test]
fn the_records_of_an_iterator_wait_for_the_disk_together() {
    const RECORDS: u64 = 200;
    let directory = tempfile::tempdir().unwrap();
    let extend: [fn(&Pool); 2] = [
        |pool| {
            let map = pool.bytes("m").unwrap();
            let records = (0..RECORDS).map(|i| (i.to_be_bytes(), [7; 8]));
            map.extend(records).unwrap();
            assert_eq!(map.len().unwrap(), RECORDS);
        },
        |pool| {
            let map = pool.typed::<u64, u64>("m").unwrap();
            map.extend((0..RECORDS).map(|i| (i, i))).unwrap();
            assert_eq!(map.len().unwrap(), RECORDS);
        },
    ];
    for (number, extend) in extend.into_iter().enumerate() {
        let path = directory.path().join(format!("{number}.pool"));
        let pool = PoolOptions::new()
            .durability(Durability::PowerLoss)
            .log_anywhere(true)
            .create(&path)
            .unwrap();
        extend(&pool);
        let copy = path.with_extension("copy");
        copy_after_death(&path, &copy);
        let log = PoolOptions::new().verify_log(&copy).unwrap().unwrap();
        assert!(log.records > 10, "{log:?}");
        assert!(log.bytes < RECORDS * 512, "{log:?}");
    }
}
