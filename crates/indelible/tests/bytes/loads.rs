//! Bulk loads beside other threads.

use indelible::{BytesMap, PoolOptions, StringKind};
use std::collections::BTreeMap;

const RECORDS: u64 = 200_000;
const ROUNDS: u64 = 6;
/// Changes of the other thread while the map is loaded.
const CHANGES: u64 = 3_000;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u64) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

/// Takes records out at the front as soon as there are some, so that leaves are merged.
fn pop(map: &BytesMap, model: &mut Model) {
    let mut taken = 0;
    while taken < CHANGES {
        if let Some((key, value)) = map.pop_first().unwrap() {
            assert_eq!(model.remove(&key), Some(value));
            taken += 1;
        }
    }
}

/// Adds records all over the map as soon as it has some, so that full leaves are split.
fn insert(map: &BytesMap, model: &mut Model) {
    while map.get(key(0)).unwrap().is_none() {
        std::hint::spin_loop();
    }
    for change in 0..CHANGES {
        let mut key = key(change * 7919 % RECORDS);
        key.push(b'+');
        assert!(!map.insert(&key, b"added").unwrap());
        model.insert(key, b"added".to_vec());
    }
}

/// A writer that changes a leaf removes the signpost to it. It must not be recorded after that.
#[test]
fn a_map_that_is_changed_while_it_is_loaded_is_whole_when_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let records = || (0..RECORDS).map(|number| (key(number), number.to_ne_bytes().to_vec()));
    let rounds = (0..ROUNDS).map(|round| [pop, insert][round as usize % 2]);
    for (round, change) in rounds.enumerate() {
        for &kind in StringKind::all() {
            let path = directory.path().join(format!("{round}{kind}"));
            let pool = PoolOptions::new().create(&path).unwrap();
            let map = pool.bytes_with("m", kind).unwrap();
            let mut model: Model = records().collect();
            std::thread::scope(|scope| {
                scope.spawn(|| change(&map, &mut model));
                map.bulk_load(records(), 1.0).unwrap();
            });
            assert_eq!(map.check().unwrap(), [""; 0]);
            drop(map);
            pool.close().unwrap();
            let pool = PoolOptions::new().open(&path).unwrap();
            let map = pool.bytes_with("m", kind).unwrap();
            // From the end, so that signposts are followed.
            let mut found = Model::new();
            for key in model.keys().rev() {
                found.extend(map.get(key).unwrap().map(|value| (key.clone(), value)));
            }
            assert!(found == model, "round {round}");
            assert_eq!(map.check().unwrap(), [""; 0]);
        }
    }
}
