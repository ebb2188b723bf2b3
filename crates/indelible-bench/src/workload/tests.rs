use super::*;
use crate::plan::{Arrival, Distribution, Mix, Phase};
use std::collections::{BTreeMap, BTreeSet};

const LOADED: usize = 10_000;

fn keys() -> Keys {
    // Even numbers, so that there is no room for neighbours but behind the last.
    Keys::shuffle((0..40_000).map(|i| i * 2).collect(), LOADED, 2000, 7)
}

fn scripts(phase: &Phase, threads: u32) -> Vec<Script> {
    draw(
        phase,
        &keys(),
        &mut Supply::default(),
        threads,
        phase.operations,
        3,
    )
    .unwrap()
}

fn drawn(distribution: Distribution) -> Vec<u64> {
    let phase = Phase::new("get", Mix::GET, 100_000).distribution(distribution);
    scripts(&phase, 1).remove(0).keys
}

/// The share of the accesses that the most frequent tenth of the loaded keys gets.
fn share_of_hottest_tenth(drawn: &[u64]) -> f64 {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    drawn
        .iter()
        .for_each(|&key| *counts.entry(key).or_default() += 1);
    let mut counts: Vec<usize> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts.iter().take(LOADED / 10).sum::<usize>() as f64 / drawn.len() as f64
}

#[test]
fn every_distribution_draws_keys_that_are_there_with_its_skew() {
    let keys = keys();
    let loaded: BTreeSet<u64> = keys.loaded().iter().copied().collect();
    let skews = [
        (Distribution::Uniform, 0.12..0.2),
        (Distribution::Zipfian { theta: 0.99 }, 0.7..0.85),
        (Distribution::SelfSimilar { skew: 0.2 }, 0.68..0.78),
        (Distribution::Latest, 0.7..0.85),
        (Distribution::HotSpot { share: 0.1 }, 0.88..0.93),
        (Distribution::Sequential, 0.09..0.11),
    ];
    for (distribution, expected) in skews {
        let drawn = drawn(distribution);
        assert!(
            drawn.iter().all(|key| loaded.contains(key)),
            "{distribution:?}"
        );
        let share = share_of_hottest_tenth(&drawn);
        assert!(expected.contains(&share), "{distribution:?}: {share}");
    }
}

#[test]
fn a_hot_spot_is_one_stretch_of_neighbours() {
    let drawn = drawn(Distribution::HotSpot { share: 0.01 });
    let (sorted, keys) = (keys(), drawn.len());
    let sorted = sorted.sorted();
    let middle = sorted[LOADED * 494 / 1000]..sorted[LOADED * 506 / 1000];
    let inside = drawn.iter().filter(|&key| middle.contains(key)).count();
    assert!((0.88..0.93).contains(&(inside as f64 / keys as f64)));
}

#[test]
fn sequential_accesses_follow_the_order_of_the_keys() {
    let drawn = drawn(Distribution::Sequential);
    let falls = drawn.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(falls <= drawn.len() / LOADED + 1);
}

#[test]
fn the_same_seed_gives_the_same_scripts_and_another_one_others() {
    let phase = Phase::new("mix", Mix::get_insert(0.5), 5000);
    let once = |seed| draw(&phase, &keys(), &mut Supply::default(), 2, 5000, seed).unwrap();
    assert_eq!(once(1), once(1));
    assert_ne!(once(1), once(2));
}

#[test]
fn threads_share_the_operations_and_never_insert_or_remove_the_same_key() {
    let mix = Mix {
        get: 0.25,
        insert: 0.25,
        remove: 0.25,
        insert_batch: 0.25,
        ..Mix::default()
    };
    let mut phase = Phase::new("mix", mix, 8000);
    phase.batch_size = 10;
    let keys = keys();
    let mut supply = Supply::default();
    let mut changed = BTreeSet::new();
    for _ in 0..2 {
        for script in draw(&phase, &keys, &mut supply, 3, 8000, 5).unwrap() {
            let Kinds::Each(kinds) = &script.kinds else {
                panic!("a mix")
            };
            let single = kinds.iter().zip(script_keys(&script));
            for (_, key) in single
                .filter(|(kind, _)| matches!(kind, OperationKind::Insert | OperationKind::Remove))
            {
                assert!(changed.insert(key), "{key} twice");
            }
            for &(key, value) in &script.records {
                assert!(changed.insert(key), "{key} twice");
                assert_eq!(value, value_of(key));
            }
            let weight = |kind| {
                if kind == OperationKind::InsertBatch {
                    10
                } else {
                    1
                }
            };
            let operations: usize = kinds.iter().map(|&kind| weight(kind)).sum();
            assert!((2666..2680).contains(&operations), "{operations}");
            assert_eq!(script.operations(), operations as u64);
        }
    }
}

/// The key of each step that has one key, in order; batches of inserts have none here.
fn script_keys(script: &Script) -> Vec<u64> {
    let Kinds::Each(kinds) = &script.kinds else {
        panic!("a mix")
    };
    let mut keys = script.keys.iter();
    let key = |&kind: &OperationKind| {
        if kind == OperationKind::InsertBatch {
            0
        } else {
            *keys.next().unwrap()
        }
    };
    kinds.iter().map(key).collect()
}

#[test]
fn shares_of_a_mix_are_shares_of_the_operations_batches_included() {
    let mix = Mix {
        get: 0.5,
        get_batch: 0.5,
        ..Mix::default()
    };
    let mut phase = Phase::new("mix", mix, 100_000);
    phase.batch_size = 100;
    let Kinds::Each(kinds) = scripts(&phase, 1).remove(0).kinds else {
        panic!("a mix")
    };
    let single = kinds
        .iter()
        .filter(|&&kind| kind == OperationKind::Get)
        .count();
    assert!((45_000..55_000).contains(&single), "{single}");
}

#[test]
fn a_script_ends_with_a_whole_batch() {
    let mut phase = Phase::new("batches", Mix::INSERT_BATCH, 1000);
    phase.batch_size = 300;
    let scripts = scripts(&phase, 3);
    assert!(scripts.iter().all(|script| script.operations() == 600));
}

#[test]
fn missing_keys_are_never_there() {
    let keys = keys();
    let mut phase = Phase::new("get", Mix::GET, 10_000);
    phase.missing = 0.3;
    let script = scripts(&phase, 1).remove(0);
    let missing: BTreeSet<u64> = keys.missing().iter().copied().collect();
    assert_eq!(missing.len(), 2000);
    assert!(
        keys.loaded()
            .iter()
            .chain(keys.fresh())
            .all(|key| !missing.contains(key))
    );
    let asked = script
        .keys
        .iter()
        .filter(|key| missing.contains(key))
        .count();
    assert!((2800..3200).contains(&asked), "{asked}");
}

#[test]
fn dense_inserts_are_neighbours_that_are_no_keys() {
    let spaced = Keys::shuffle((0..1000).map(|i| i * 1_000_000).collect(), 1000, 0, 1);
    let phase = Phase::new("insert", Mix::INSERT, 4000).arrival(Arrival::Dense);
    let mut supply = Supply::default();
    let mut seen = BTreeSet::new();
    for threads in [1, 1, 4] {
        for script in draw(&phase, &spaced, &mut supply, threads, 4000, 1).unwrap() {
            assert!(script.keys.windows(2).all(|pair| pair[1] == pair[0] + 1));
            assert!(
                script
                    .keys
                    .iter()
                    .all(|&key| seen.insert(key) && key % 1_000_000 != 0)
            );
            let behind = script.keys[0] > 999_000_000;
            assert_eq!(behind, threads == 1, "one thread appends");
        }
    }
    let none = Keys::shuffle(
        (0..=u64::MAX).step_by(1 << 55).chain([u64::MAX]).collect(),
        10,
        0,
        1,
    );
    assert!(
        Supply::default().dense(&none, 0, 1, 10).is_ok(),
        "in a gap, not behind the end"
    );
    let nearly = Keys::shuffle((0..10).chain([u64::MAX - 3]).collect(), 11, 0, 1);
    assert_eq!(
        Supply::default().dense(&nearly, 0, 1, 3).unwrap(),
        [u64::MAX - 2, u64::MAX - 1, u64::MAX]
    );
    let full = Keys::shuffle((u64::MAX - 99..=u64::MAX).collect(), 100, 0, 1);
    assert!(Supply::default().dense(&full, 0, 1, 1).is_err());
}

#[test]
fn ascending_inserts_ascend_within_each_thread() {
    let phase = Phase::new("insert", Mix::INSERT, 1000).arrival(Arrival::Ascending);
    let all = scripts(&phase, 2);
    assert!(all.iter().all(|script| script.keys.is_sorted()));
}

#[test]
fn a_supply_that_ends_is_an_error() {
    let phase = Phase::new("insert", Mix::INSERT, 28_001);
    assert!(draw(&phase, &keys(), &mut Supply::default(), 1, 28_001, 1).is_err());
    let phase = Phase::new("remove", Mix::REMOVE, 10_001);
    assert!(draw(&phase, &keys(), &mut Supply::default(), 1, 10_001, 1).is_err());
}

#[test]
fn the_latest_are_the_own_inserts_of_the_thread() {
    let mix = Mix {
        get: 0.5,
        insert: 0.5,
        ..Mix::default()
    };
    let phase = Phase::new("latest", mix, 10_000).distribution(Distribution::Latest);
    let keys = keys();
    let fresh: BTreeSet<u64> = keys.fresh().iter().copied().collect();
    let script = scripts(&phase, 1).remove(0);
    let Kinds::Each(kinds) = &script.kinds else {
        panic!("a mix")
    };
    let mut there: BTreeSet<u64> = keys.loaded().iter().copied().collect();
    let (mut young, mut reads) = (0, 0);
    for (kind, &key) in kinds.iter().zip(&script.keys) {
        if *kind == OperationKind::Insert {
            there.insert(key);
        } else {
            assert!(there.contains(&key), "read before its insert");
            reads += 1;
            young += usize::from(fresh.contains(&key));
        }
    }
    assert!(young > reads / 2, "{young} of {reads}");
}

#[test]
fn lengths_of_scans_cover_one_to_the_most() {
    let lengths: BTreeSet<usize> = (0..10_000_u64)
        .map(|i| scan_length(value_of(i), 100))
        .collect();
    assert_eq!(lengths, (1..=100).collect());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(128))]

    #[test]
    fn a_phase_takes_no_more_keys_than_it_says(
        weights in [0_u32..4, 0_u32..4, 0_u32..4, 0_u32..4],
        (threads, batch, operations) in (1_u32..6, 1_u32..300, 1_u64..20_000),
        timed: bool,
        seed: u64,
    ) {
        let sum = f64::from(weights.iter().sum::<u32>().max(1));
        let [insert, insert_batch, remove, get] = weights.map(|weight| f64::from(weight) / sum);
        let mix = Mix { get, insert, insert_batch, remove, ..Mix::default() };
        let mut phase = Phase::new("any", mix, operations).with_latency();
        phase.batch_size = batch;
        phase.seconds = timed.then_some(1.0);
        let keys = Keys::shuffle((0..400_000).collect(), 50_000, 0, seed);
        let mut all = Supply::default();
        let mut mine = all.set_aside(&phase, threads);
        for operations in [operations, crate::plan::latency_operations(operations)] {
            draw(&phase, &keys, &mut mine, threads, operations, seed).unwrap();
        }
        let next = all.set_aside(&phase, threads);
        proptest::prop_assert!(mine.inserted() <= next.inserted());
        proptest::prop_assert!(
            mine.present(&keys).count() >= next.present(&keys).count(),
            "more was removed than was set aside"
        );
    }
}
