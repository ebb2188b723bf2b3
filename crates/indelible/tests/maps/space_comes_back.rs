//! After most records of a map have been removed, `Pool::shrink` makes the file about as small as if those left had been loaded
//! into a new one.

use crate::lost::is_deep;
use crate::stop::StopAtEnd;
use indelible::{Kind, LbTreeOptions, Map, MapOptions, Pool};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Records inserted before most of them are removed.
const RECORDS: u64 = 300_000;

/// The layouts of maps that are tested: every kind of index, and large leaves.
fn layouts() -> Vec<MapOptions> {
    let kinds = Kind::all().iter().map(|&kind| kind.into());
    let wide = MapOptions::from(LbTreeOptions::default().leaf_bytes(1024));
    kinds.chain([wide]).collect()
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// How the keys lie: the key of the record with a number, of which there are up to `2 * RECORDS`.
type Keys = fn(u64) -> u64;

/// Three hundred clusters of two thousand keys, in a mixed order.
fn clustered(number: u64) -> u64 {
    let number = number * 7_919 % (2 * RECORDS);
    mix(number / 2_000) & !0xf_ffff | (number % 2_000 * 37)
}

/// Layouts and keys: all combinations, or in the short form the two sorts of keys in turn, beginning with that of this number.
fn layouts_and_keys(first: usize) -> Vec<(MapOptions, Keys)> {
    let sorts = [mix as Keys, clustered];
    let mut all = Vec::new();
    for (number, options) in (first..).zip(layouts()) {
        for (sort, keys) in sorts.into_iter().enumerate() {
            if is_deep() || number % sorts.len() == sort {
                all.push((options.clone(), keys));
            }
        }
    }
    all
}

/// Whether the record with this number stays: 5 in 100, at random.
fn stays(number: u64) -> bool {
    mix(number ^ 0x5eed).is_multiple_of(20)
}

fn open(path: &Path, options: &MapOptions) -> (Pool, Map<u64, u64>) {
    let pool = if path.exists() {
        Pool::open(path).unwrap()
    } else {
        Pool::create(path).unwrap()
    };
    let map = pool.map_with("m", options).unwrap();
    (pool, map)
}

/// Inserts records in a random order and removes most of them in another one.
fn fill_and_thin(map: &Map<u64, u64>, records: u64, key: Keys) {
    for number in 0..records {
        assert_eq!(map.insert(key(number), number).unwrap(), None);
    }
    for number in (0..records).rev().filter(|&number| !stays(number)) {
        assert_eq!(map.remove(key(number)).unwrap(), Some(number));
    }
}

/// A copy of an open pool's file: what a process that died now would leave.
fn crash_image(path: &Path) -> std::path::PathBuf {
    let image = path.with_extension("image");
    std::fs::copy(path, &image).unwrap();
    image
}

/// The records that [`fill_and_thin`] leaves.
fn expected(records: u64, key: Keys) -> BTreeMap<u64, u64> {
    (0..records)
        .filter(|&number| stays(number))
        .map(|number| (key(number), number))
        .collect()
}

fn assert_holds(map: &Map<u64, u64>, model: &BTreeMap<u64, u64>) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(map.len().unwrap(), model.len() as u64);
    assert!(
        map.iter()
            .map(Result::unwrap)
            .eq(model.iter().map(|(&key, &value)| (key, value)))
    );
    for (&key, &value) in model.iter().step_by(17) {
        assert_eq!(map.get(key).unwrap(), Some(value));
    }
}

/// Leaves of a map, if it has leaves.
fn leaves_of(map: &Map<u64, u64>) -> u64 {
    let stat = map.stat().unwrap();
    stat.fact("leaves")
        .map_or(0, |leaves| leaves.value.as_u64())
}

/// Bytes of the file, and leaves, of a new pool into which these records have been loaded.
fn loaded(options: &MapOptions, model: &BTreeMap<u64, u64>) -> (u64, u64) {
    let directory = tempfile::tempdir().unwrap();
    let (pool, map) = open(&directory.path().join("fresh.pool"), options);
    let records: Vec<(u64, u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
    map.bulk_load(&records, 0.7).unwrap();
    pool.shrink().unwrap();
    (pool.stat().file_bytes, leaves_of(&map))
}

/// The file, and the map in it, are at most twice as large as if `model` had been loaded.
fn assert_is_small(
    path: &Path,
    (pool, map): (&Pool, &Map<u64, u64>),
    options: &MapOptions,
    model: &BTreeMap<u64, u64>,
) {
    let (bytes, leaves) = loaded(options, model);
    let now = std::fs::metadata(path).unwrap().len();
    assert_eq!(now, pool.stat().file_bytes);
    let now_leaves = leaves_of(map);
    println!("{options}: {now} bytes, loaded {bytes}; {now_leaves} leaves, loaded {leaves}");
    assert!(now <= 2 * bytes, "{options}: {now} bytes, loaded {bytes}");
    assert!(
        now_leaves <= 2 * leaves,
        "{options}: {now_leaves} leaves, loaded {leaves}"
    );
}

#[test]
fn a_thinned_map_shrinks_to_about_what_is_left() {
    for (options, key) in &layouts_and_keys(0) {
        let key = *key;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.pool");
        let (pool, map) = open(&path, options);
        let records = 2 * RECORDS;
        fill_and_thin(&map, records, key);
        assert!(pool.shrink().unwrap() > 0);
        let model = expected(records, key);
        assert_holds(&map, &model);
        assert_is_small(&path, (&pool, &map), options, &model);
        assert_eq!(pool.shrink().unwrap(), 0, "all was done the first time");
        let (image, revived) = open(&crash_image(&path), options);
        assert_holds(&revived, &model);
        drop((image, revived));
        // The map is as good as before.
        for number in 0..RECORDS {
            map.insert(key(number), number + 1).unwrap();
        }
        assert_eq!(map.check().unwrap(), [""; 0]);
        drop((map, pool));
        let (_pool, map) = open(&path, options);
        let mut model = model;
        model.extend((0..RECORDS).map(|number| (key(number), number + 1)));
        assert_holds(&map, &model);
    }
}

#[test]
fn a_map_is_written_while_it_shrinks() {
    for (options, key) in &layouts_and_keys(1) {
        let key = *key;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.pool");
        let (pool, map) = open(&path, options);
        fill_and_thin(&map, RECORDS, key);
        let stop = AtomicBool::new(false);
        let kept = expected(RECORDS, key);
        // Writers have keys of their own, each next to one that was inserted before.
        let writer = |thread: u64| {
            let mut model = BTreeMap::new();
            let mut seed = thread;
            while !stop.load(Ordering::Relaxed) {
                seed = mix(seed + 2);
                let key = key(seed % 2_000 * 97) & !3 | (1 + thread);
                if kept.contains_key(&key) {
                    continue;
                }
                if seed & 1 << 40 == 0 {
                    assert_eq!(map.insert(key, seed).unwrap(), model.insert(key, seed));
                } else {
                    assert_eq!(map.remove(key).unwrap(), model.remove(&key));
                }
            }
            model
        };
        // One reads what stays, in order and by key.
        let reader = || {
            while !stop.load(Ordering::Relaxed) {
                let all = map.iter().map(Result::unwrap);
                let mut seen = all.filter(|(key, _)| kept.contains_key(key));
                assert!(seen.by_ref().eq(kept.iter().map(|(&k, &v)| (k, v))));
                let keys: Vec<u64> = kept.keys().step_by(31).copied().collect();
                let values = map.get_batch(&keys).unwrap();
                assert!(
                    keys.iter()
                        .zip(values)
                        .all(|(k, v)| v == kept.get(k).copied())
                );
            }
        };
        let mut model = kept.clone();
        std::thread::scope(|scope| {
            let stopping = StopAtEnd(&stop);
            let writers = [0, 1].map(|thread| scope.spawn(move || writer(thread)));
            scope.spawn(reader);
            for round in 1..=if is_deep() { 8 } else { 3 } {
                // More than one extent of leaves, so that there is something to move every time.
                let more = round * RECORDS..round * RECORDS + RECORDS / 3;
                for number in more.clone().skip(4_000) {
                    assert_eq!(map.insert(mix(number), number).unwrap(), None);
                }
                for number in more.skip(4_000) {
                    assert_eq!(map.remove(mix(number)).unwrap(), Some(number));
                }
                pool.shrink().unwrap();
                assert!(map.bulk_load([(1, 1)], 0.7).is_err());
            }
            drop(stopping);
            for writer in writers {
                model.extend(writer.join().unwrap());
            }
        });
        pool.shrink().unwrap();
        assert_holds(&map, &model);
        assert_is_small(&path, (&pool, &map), options, &model);
    }
}

#[test]
fn blocks_move_to_the_holes_that_dropped_maps_leave() {
    const RECORDS: u64 = 100_000;
    for (options, key) in &layouts_and_keys(0) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.pool");
        // The maps grow together, so each has blocks all over the file. The last one stays.
        let (pool, last) = open(&path, options);
        let others = ["0", "1", "2"].map(|name| {
            let map = pool.map_with::<u64, u64>(name, options).unwrap();
            (name, map)
        });
        for number in 0..RECORDS {
            for (_, map) in &others {
                assert_eq!(map.insert(key(number), number).unwrap(), None);
            }
            assert_eq!(last.insert(key(number), number).unwrap(), None);
        }
        for (name, map) in others {
            drop(map);
            pool.drop_map(name).unwrap();
        }
        pool.shrink().unwrap();
        let model: BTreeMap<u64, u64> = (0..RECORDS).map(|number| (key(number), number)).collect();
        assert_holds(&last, &model);
        assert_is_small(&path, (&pool, &last), options, &model);
        let (_image, revived) = open(&crash_image(&path), options);
        assert_holds(&revived, &model);
    }
}
