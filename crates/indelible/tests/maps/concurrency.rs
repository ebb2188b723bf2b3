//! Many threads, more than cores, with a checker of results.

use crate::kinds::{KINDS, map_of};
use crate::stop::StopAtEnd;
use indelible::{CompareExchange, Error, Kind, Map, Pool, PoolOptions};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// A thread works on keys of its own, among those of all others, and knows what every operation must return.
fn churn(
    map: &Map<u64, u64>,
    model: &mut BTreeMap<u64, u64>,
    seed: u64,
    thread: u64,
    steps: std::ops::Range<u64>,
) {
    for i in steps {
        let random = mix(mix(seed ^ thread << 56) ^ i);
        let key = |x: u64| (x % 4096) << 20 | thread << 8;
        match (i / 2048 % 4, random % 4) {
            // A whole stretch goes, so that leaves run empty and merge.
            (3, _) => {
                let key = key(mix(seed ^ (i / 2048)) + i % 2048);
                assert_eq!(map.remove(key).unwrap(), model.remove(&key));
            }
            (2, 0) => {
                let key = key(random >> 8);
                assert_eq!(map.get(key).unwrap(), model.get(&key).copied());
            }
            (1, 0) => {
                let batch: Vec<(u64, u64)> =
                    (0..20).map(|n| (key((random >> 8) + n * n), i)).collect();
                map.insert_batch(&batch).unwrap();
                model.extend(batch);
            }
            _ => {
                let key = key(random >> 8);
                assert_eq!(map.insert(key, i).unwrap(), model.insert(key, i));
            }
        }
    }
}

const THREADS: u64 = 8;

fn churn_all(
    map: &Map<u64, u64>,
    models: &mut [BTreeMap<u64, u64>],
    seed: u64,
    steps: std::ops::Range<u64>,
) {
    std::thread::scope(|scope| {
        for (thread, model) in (0..).zip(models) {
            let (map, steps) = (map.clone(), steps.clone());
            scope.spawn(move || churn(&map, model, seed, thread, steps));
        }
    });
}

fn assert_whole(map: &Map<u64, u64>, models: &[BTreeMap<u64, u64>], seed: u64) {
    assert_eq!(map.check().unwrap(), [""; 0], "seed {seed}");
    let all: BTreeMap<u64, u64> = models.iter().flatten().map(|(k, v)| (*k, *v)).collect();
    assert!(
        map.iter()
            .map(Result::unwrap)
            .eq(all.iter().map(|(k, v)| (*k, *v))),
        "seed {seed}"
    );
    assert_eq!(map.len().unwrap(), all.len() as u64);
}

/// Also a regression test: writers beside the sweep after a crash once reused blocks that were still reachable.
#[test]
fn threads_see_their_own_writes_and_leave_a_sound_index_also_beside_the_warm_up_after_a_crash() {
    let directory = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let rounds = std::env::var("INDELIBLE_ROUNDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(6);
    for (&kind, seed) in KINDS
        .iter()
        .flat_map(|kind| (0..rounds).map(move |seed| (kind, seed)))
    {
        let path = directory.path().join(format!("{seed}.pool"));
        let mut models = vec![BTreeMap::new(); THREADS as usize];
        let pool = Pool::create(&path).unwrap();
        let map = map_of(&pool, kind);
        churn_all(&map, &mut models, seed, 0..15_000);
        assert_whole(&map, &models, seed);
        let image = path.with_extension("image");
        std::fs::copy(&path, &image).unwrap();
        drop((map, pool));
        // What kill -9 would have left.
        let pool = Pool::open(&image).unwrap();
        let map = map_of(&pool, kind);
        churn_all(&map, &mut models, seed, 15_000..30_000);
        assert_whole(&map, &models, seed);
        drop((map, pool));
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn ranges_under_concurrent_writes_are_ordered_complete_and_inside_their_bounds() {
    for &kind in KINDS {
        read_ranges_beside_writers(kind);
    }
}

fn read_ranges_beside_writers(kind: Kind) {
    let pool = PoolOptions::new().in_memory().unwrap();
    let map = map_of(&pool, kind);
    // Multiples of 8 stay; everything else comes and goes.
    (0..4000).for_each(|i| assert_eq!(map.insert(i * 8, i).unwrap(), None));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for thread in 0..3 {
            let (map, stop) = (map.clone(), &stop);
            scope.spawn(move || {
                for i in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = mix(i ^ thread << 40) % 32_000;
                    if !key.is_multiple_of(8) {
                        if i / 5000 % 2 == 0 {
                            map.insert(key, i).unwrap()
                        } else {
                            map.remove(key).unwrap()
                        };
                    }
                }
            });
        }
        for i in 0..400 {
            let (low, high) = (mix(i) % 16_000, 16_000 + mix(i + 1) % 16_000);
            let up: Vec<u64> = map
                .range(low..high)
                .unwrap()
                .map(|record| record.unwrap().0)
                .collect();
            let mut down: Vec<u64> = map
                .range(low..high)
                .unwrap()
                .rev()
                .map(|record| record.unwrap().0)
                .collect();
            down.reverse();
            for keys in [up, down] {
                assert!(
                    keys.windows(2).all(|pair| pair[0] < pair[1]),
                    "in order, none twice"
                );
                assert!(
                    keys.iter().all(|key| (low..high).contains(key)),
                    "inside the bounds"
                );
                let stayed = keys.iter().filter(|key| *key % 8 == 0).count() as u64;
                assert_eq!(
                    stayed,
                    high.div_ceil(8) - low.div_ceil(8),
                    "every record that was there throughout"
                );
            }
        }
    });
    assert_eq!(map.check().unwrap(), [""; 0]);
}

#[test]
fn compare_exchange_counts_exactly_under_contention() {
    for &kind in KINDS {
        count_together(kind);
    }
}

fn count_together(kind: Kind) {
    let pool = Pool::in_memory().unwrap();
    let map = map_of(&pool, kind);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let map = map.clone();
            scope.spawn(move || {
                for i in 0..3000_u64 {
                    let key = i % 5;
                    let mut current = map.get(key).unwrap();
                    while let CompareExchange::Unchanged(actual) = map
                        .compare_exchange(key, current, Some(current.unwrap_or(0) + 1))
                        .unwrap()
                    {
                        current = actual;
                    }
                }
            });
        }
    });
    assert_eq!(
        map.iter().map(|record| record.unwrap().1).sum::<u64>(),
        THREADS * 3000
    );
}

#[test]
fn a_bulk_load_excludes_writers_without_a_deadlock() {
    for (&kind, round) in KINDS
        .iter()
        .flat_map(|kind| (0..20_u64).map(move |round| (kind, round)))
    {
        let pool = Pool::in_memory().unwrap();
        let map = map_of(&pool, kind);
        let records: Vec<(u64, u64)> = (0..20_000).map(|i| (i * 2, i)).collect();
        std::thread::scope(|scope| {
            let writer = map.clone();
            scope.spawn(move || {
                for i in 0..200 {
                    writer.insert(mix(i + round) | 1, i).unwrap();
                }
            });
            match map.bulk_load(&records, 0.7) {
                Ok(()) | Err(indelible::Error::NotEmpty) => {}
                Err(error) => panic!("{error}"),
            }
        });
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}

/// Objects of the same catalog entry, one after the other, under different names and of different types.
#[test]
fn an_object_that_is_opened_is_never_the_one_that_has_taken_its_place() {
    let pool = Pool::in_memory().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let openers = (0..2).map(|_| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match pool.open_map::<u64, u64>("a") {
                        Ok(map) => assert_eq!(map.name(), "a"),
                        Err(Error::NoSuchMap(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    pool.shrink().unwrap();
                }
            })
        });
        let openers: Vec<_> = openers.collect();
        let _stop = StopAtEnd(&stop);
        for round in 0..500 {
            drop(pool.map::<u64, u64>("a").unwrap());
            while pool.drop_map("a").is_err() {}
            if round % 2 == 0 {
                drop(pool.map::<i64, f64>("b").unwrap());
            } else {
                drop(pool.bytes("b").unwrap());
            }
            while pool.drop_map("b").is_err() {}
            if openers.iter().any(|opener| opener.is_finished()) {
                break;
            }
        }
    });
}

/// One thread makes the map, and the other one, which asks for another kind, is told so. Once it got the map that it had not asked for.
#[test]
fn threads_that_make_a_map_get_the_kind_that_they_ask_for_or_an_error() {
    let pool = Pool::in_memory().unwrap();
    let start = std::sync::Barrier::new(2);
    for round in 0..300 {
        let name = format!("m{round}");
        let make = |kind: Kind| {
            start.wait();
            match pool.map_with::<u64, u64>(&name, kind) {
                Ok(map) => assert_eq!(map.kind(), kind, "round {round}"),
                Err(Error::OtherOptions { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| make(Kind::Apex));
            make(Kind::LbTree);
        });
        pool.drop_map(&name).unwrap();
    }
}
