//! Whole trees against `BTreeMap`. Nodes are small under test, so a few hundred records make trees of all kinds.

use super::divide::Growth;
use super::layout::Radix;
use crate::engines::image::crash;
use crate::{Key, Kind, Map, MapOptions, Pool};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// Keys in an order in which they may come.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Random,
    Ascending,
    Descending,
    /// From the middle key outwards.
    Zigzag,
    BitReversed,
    /// Many keys at each power of two.
    Exponential,
    LogUniform,
    /// Dense runs of this length, far apart, one after the other.
    Runs(u64),
    /// This many dense runs, far apart, that grow together.
    Interleaved(u64),
    /// Ascending with gaps of all sizes.
    Leaps,
    Sawtooth,
    /// At the lowest, the highest and the middle key.
    Edges,
    /// Digits that leave gaps of all sizes.
    Cantor,
}

const PATTERNS: [Pattern; 14] = [
    Pattern::Random,
    Pattern::Ascending,
    Pattern::Descending,
    Pattern::Zigzag,
    Pattern::BitReversed,
    Pattern::Exponential,
    Pattern::LogUniform,
    Pattern::Runs(10),
    Pattern::Runs(300),
    Pattern::Interleaved(40),
    Pattern::Leaps,
    Pattern::Sawtooth,
    Pattern::Edges,
    Pattern::Cantor,
];

impl Pattern {
    /// Some keys, none of them twice in a row; some patterns are short.
    fn keys(self, count: u64, seed: u64) -> Vec<u64> {
        const MIDDLE: u64 = 1 << 63;
        let start = seed << 20 & 0xffff_ffff;
        let mut last = start;
        let leap = |i: u64| 1 + (mix(seed ^ i) & ((1 << (mix(i) % 50)) - 1));
        let key = |i: u64| match self {
            Self::Random => mix(seed << 32 ^ i),
            Self::Ascending => start + i,
            Self::Descending => start + count - i,
            Self::Zigzag if i.is_multiple_of(2) => MIDDLE + i / 2,
            Self::Zigzag => MIDDLE - 1 - i / 2,
            Self::BitReversed => (seed % 16 * 10_000 + i).reverse_bits(),
            Self::Exponential => (1_u64 << (mix(i) % 64)).wrapping_add(i % 50),
            Self::LogUniform => mix(seed ^ i) >> (mix(i) % 64),
            Self::Runs(length) => start + ((i / length) << 40) + i % length,
            Self::Interleaved(runs) => start + ((i % runs) << 40) + i / runs,
            Self::Leaps => {
                last += leap(i);
                last
            }
            Self::Sawtooth => start + i % 100 * 100_000 + i / 100 * 7,
            Self::Edges => match i % 4 {
                0 => i / 4,
                1 => u64::MAX - i / 4,
                2 => MIDDLE + i / 4,
                _ => MIDDLE - 1 - i / 4,
            },
            Self::Cantor => (0..32)
                .map(|bit| ((mix(i) >> bit & 1) * 3) << (2 * bit))
                .sum(),
        };
        (0..count).map(key).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(usize, u64, u64),
    InsertBatch(usize, u64, u64),
    /// Removes all records but one in so many, in a random order or in that of the keys.
    Remove(u64, bool),
    Close,
    Crash,
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    let pattern = || (0..PATTERNS.len(), 1..700_u64, 0..100_u64);
    prop_oneof![
        8 => pattern().prop_map(|(which, count, seed)| Step::Insert(which, count, seed)),
        2 => pattern().prop_map(|(which, count, seed)| Step::InsertBatch(which, count, seed)),
        2 => (1..40_u64, any::<bool>()).prop_map(|(keep, shuffled)| Step::Remove(keep, shuffled)),
        1 => Just(Step::Close),
        1 => Just(Step::Crash),
        1 => Just(Step::Shrink),
    ]
}

fn options() -> MapOptions {
    Kind::Apex.into()
}

/// A map in a file, with the records that it must hold.
struct Tested {
    path: PathBuf,
    open: Option<(Pool, Map<u64, u64>)>,
    model: BTreeMap<u64, u64>,
}

impl Tested {
    fn new(directory: &Path) -> Self {
        let path = directory.join("apex.pool");
        let _ = std::fs::remove_file(&path);
        let pool = Pool::options().huge_pages(false).create(&path).unwrap();
        let map = pool.map_with("m", options()).unwrap();
        Self {
            path,
            open: Some((pool, map)),
            model: BTreeMap::new(),
        }
    }

    fn map(&self) -> &Map<u64, u64> {
        &self.open.as_ref().unwrap().1
    }

    fn insert(&mut self, key: u64, value: u64) {
        let old = self.model.insert(key, value);
        assert_eq!(self.map().insert(key, value).unwrap(), old, "{key:#x}");
    }

    fn remove(&mut self, key: u64) {
        let old = self.model.remove(&key);
        assert_eq!(self.map().remove(key).unwrap(), old, "{key:#x}");
    }

    fn reopen(&mut self, is_clean: bool) {
        let (pool, map) = self.open.take().unwrap();
        if is_clean {
            drop(map);
            pool.close().unwrap();
        } else {
            crash(&self.path, || drop((pool, map)));
        }
        let pool = Pool::options().huge_pages(false).open(&self.path).unwrap();
        let map = pool.open_map("m").unwrap();
        self.open = Some((pool, map));
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert(which, count, seed) => {
                for (value, key) in (seed..).zip(PATTERNS[which].keys(count, seed)) {
                    self.insert(key, value);
                }
            }
            Step::InsertBatch(which, count, seed) => {
                let keys = PATTERNS[which].keys(count, seed).into_iter();
                let records: Vec<(u64, u64)> = keys.zip(seed..).collect();
                self.map().insert_batch(&records).unwrap();
                self.model.extend(records);
            }
            Step::Remove(keep, shuffled) => {
                let mut keys: Vec<u64> = self.model.keys().copied().collect();
                keys.retain(|&key| keep == 1 || !mix(key).is_multiple_of(keep));
                if shuffled {
                    keys.sort_by_key(|&key| mix(key));
                }
                keys.into_iter().for_each(|key| self.remove(key));
            }
            Step::Close => self.reopen(true),
            Step::Crash => self.reopen(false),
            Step::Shrink => {
                self.open.as_ref().unwrap().0.shrink().unwrap();
            }
        }
    }

    /// Lookups, ranges in both directions from random places, and every invariant.
    fn check(&self) {
        let (map, model) = (self.map(), &self.model);
        let all: Vec<(u64, u64)> = model.iter().map(|(k, v)| (*k, *v)).collect();
        assert!(map.iter().map(Result::unwrap).eq(all.iter().copied()));
        assert!(
            map.iter()
                .rev()
                .map(Result::unwrap)
                .eq(all.iter().rev().copied())
        );
        for i in 0..20 {
            let near = all.get(mix(i) as usize % all.len().max(1));
            let low = near.map_or(i, |record| record.0).saturating_sub(i % 3);
            let high = low.saturating_add(mix(i) >> (mix(i + 9) % 64));
            let expected = || model.range(low..=high).map(|(k, v)| (*k, *v)).take(100);
            let range = || map.range(low..=high).unwrap().map(Result::unwrap);
            assert!(range().take(100).eq(expected()), "{low:#x}");
            let down = model.range(low..=high).rev().map(|(k, v)| (*k, *v));
            assert!(range().rev().take(100).eq(down.take(100)), "{high:#x}");
        }
        let edges = [0, 1, (1 << 63) - 1, 1 << 63, u64::MAX - 1, u64::MAX];
        for key in model.keys().copied().chain(edges) {
            assert_eq!(map.get(key).unwrap(), model.get(&key).copied(), "{key:#x}");
        }
        assert_eq!(map.len().unwrap(), model.len() as u64);
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_tree_of_any_history_is_sound_and_complete(
        steps in proptest::collection::vec(step(), 1..10),
    ) {
        let directory = directory();
        let mut tested = Tested::new(directory.path());
        for step in steps {
            tested.apply(step);
            tested.check();
        }
        tested.reopen(false);
        tested.check();
    }

    #[test]
    fn a_grown_inner_node_takes_every_key_where_the_old_one_did(
        base: u64, shift in 1..50_u32, log_slots in 1..12_u32, key: u64, which in 0..3_usize,
    ) {
        let growth = [Growth::Finer, Growth::Right, Growth::Left][which];
        let old = Radix { base: base >> 1 | 1 << 63, shift, log_slots };
        let new = growth.radix(old);
        let end = old.start_of(old.slots());
        for key in [key, old.base, old.base - 1, (end - 1).min(u128::from(u64::MAX)) as u64, base] {
            let (first, log) = growth.new_slots_of(old, old.slot_of(key));
            let slot = new.slot_of(key);
            let is_outside_built_range = u128::from(key) >= end && growth == Growth::Right
                || key < old.base && growth == Growth::Left;
            let old_half = growth.new_slots_of(old, 0).0..growth.new_slots_of(old, old.slots() - 1).0 + 1;
            if is_outside_built_range {
                prop_assert!(!old_half.contains(&slot));
            } else {
                prop_assert!((first..first + (1 << log)).contains(&slot));
            }
        }
    }
}

#[test]
fn every_pattern_grows_shrinks_and_grows_again() {
    let directory = directory();
    for (pattern, keys) in PATTERNS.iter().enumerate() {
        let mut tested = Tested::new(directory.path());
        tested.apply(Step::Insert(pattern, 3000, 1));
        tested.check();
        tested.apply(Step::Crash);
        tested.apply(Step::Remove(20, pattern % 2 == 0));
        tested.check();
        tested.apply(Step::Shrink);
        tested.check();
        tested.apply(Step::Insert((pattern + 5) % PATTERNS.len(), 2000, 2));
        tested.apply(Step::Remove(1, pattern % 2 == 1));
        tested.check();
        let stat = tested.map().stat().unwrap();
        let nodes = stat.fact("data-nodes").unwrap().value.as_u64();
        assert!(nodes < 400, "{keys:?}: {stat:?}");
        tested.apply(Step::Close);
        tested.apply(Step::InsertBatch(pattern, 1000, 3));
        tested.check();
    }
}

#[test]
fn a_bulk_load_of_any_pattern_is_what_inserts_would_make() {
    let directory = directory();
    for pattern in PATTERNS {
        for (count, fill) in [
            (0, 0.7),
            (1, 0.1),
            (2, 1.0),
            (3, 0.5),
            (3000, 0.7),
            (3000, 1.0),
        ] {
            let mut tested = Tested::new(directory.path());
            let model: BTreeMap<u64, u64> = pattern.keys(count, 7).into_iter().zip(1..).collect();
            let records: Vec<(u64, u64)> = model.iter().map(|(k, v)| (*k, *v)).collect();
            tested.map().bulk_load(&records, fill).unwrap();
            tested.model = model;
            tested.check();
            tested.reopen(fill > 0.6);
            for (value, key) in (0..).zip(pattern.keys(count / 2 + 20, 8)) {
                tested.insert(key, value);
            }
            tested.check();
        }
    }
}

#[test]
fn inner_nodes_are_not_stacked_up_by_keys_that_leap() {
    let directory = directory();
    for pattern in [Pattern::Leaps, Pattern::Runs(300), Pattern::Descending] {
        let mut tested = Tested::new(directory.path());
        for (value, key) in (0..).zip(pattern.keys(6_000, 3)) {
            tested.insert(key, value);
        }
        let stat = tested.map().stat().unwrap();
        let depth = stat.fact("max-depth").unwrap().value.as_u64();
        assert!(depth < 40, "{pattern:?}: {stat:?}");
        tested.check();
    }
}

#[test]
fn slots_of_the_stash_are_updated_given_back_and_used_again() {
    let directory = directory();
    let mut tested = Tested::new(directory.path());
    // All of these keys are predicted in one slot, so most of their records are in the stash.
    let far = 1 << 60;
    tested.insert(far, 0);
    for round in 0..5 {
        for key in 0..40 {
            tested.insert(key, key + round);
        }
        let stat = tested.map().stat().unwrap();
        assert!(stat.fact("overflow-share").unwrap().value.as_f64() > 0.0);
        for key in 0..40 {
            tested.insert(key, key);
        }
        for key in (0..40).filter(|key| (key + round) % 3 != 0) {
            tested.remove(key);
        }
        tested.check();
        tested.reopen(round % 2 == 0);
    }
}

fn sorts<K: Key + Copy + PartialEq + std::fmt::Debug>(keys: impl Iterator<Item = K>) {
    let pool = Pool::in_memory().unwrap();
    let map = pool.map_with::<K, u64>("typed", options()).unwrap();
    let keys: Vec<K> = keys.collect();
    for i in 0..keys.len() {
        let at = i * 7919 % keys.len();
        map.insert(keys[at], at as u64).unwrap();
    }
    let back: Vec<(K, u64)> = map.iter().map(Result::unwrap).collect();
    assert_eq!(back, keys.into_iter().zip(0..).collect::<Vec<_>>());
    assert_eq!(map.check().unwrap(), [""; 0]);
}

#[test]
fn keys_of_all_types_sort() {
    sorts((0..2000).map(|i| i * 977 - 1_000_000_i64));
    sorts([i64::MIN, -1, 0, 1, i64::MAX].into_iter());
    sorts((0..2000).map(|i| f64::from(i - 1000) * 1.5e300));
    sorts((0..2000).map(|i| f64::from(i) * 0.001));
    sorts(
        [
            f64::NEG_INFINITY,
            -1.0,
            0.0,
            f64::MIN_POSITIVE,
            f64::INFINITY,
        ]
        .into_iter(),
    );
}

const THREADS: u64 = 8;

/// A thread works on keys of its own, among those of all others, so it knows what every operation and range must return.
fn churn(map: &Map<u64, u64>, model: &mut BTreeMap<u64, u64>, thread: u64, seed: u64) {
    let mine = |key: u64| key & !(THREADS - 1) | thread;
    for phase in 0..6 {
        let random = mix(seed << 16 | thread << 8 | phase);
        let pattern = PATTERNS[random as usize % PATTERNS.len()];
        let count = 200 + random % 400;
        let keys: Vec<u64> = pattern
            .keys(count, random >> 8 & 15)
            .into_iter()
            .map(mine)
            .collect();
        match random >> 16 & 3 {
            0 => {
                let records: Vec<(u64, u64)> = keys.into_iter().zip(phase..).collect();
                records
                    .chunks(50)
                    .for_each(|records| map.insert_batch(records).unwrap());
                model.extend(records);
            }
            1 => {
                let keys: Vec<u64> = model
                    .keys()
                    .copied()
                    .filter(|key| mix(key ^ seed) & 7 != 0)
                    .collect();
                for key in keys {
                    assert_eq!(map.remove(key).unwrap(), model.remove(&key), "{key:#x}");
                }
            }
            _ => {
                for (value, key) in (phase..).zip(keys) {
                    assert_eq!(
                        map.insert(key, value).unwrap(),
                        model.insert(key, value),
                        "{key:#x}"
                    );
                    assert_eq!(map.get(key).unwrap(), Some(value));
                }
            }
        }
        let keys: Vec<u64> = model.keys().copied().collect();
        let values: Vec<Option<u64>> = model.values().copied().map(Some).collect();
        assert_eq!(map.get_batch(&keys).unwrap(), values);
        for i in 0..4 {
            let low = keys
                .get(mix(random ^ i) as usize % keys.len().max(1))
                .copied()
                .unwrap_or(0);
            let high = low.saturating_add(mix(random + i) >> (random % 60));
            let expected: Vec<(u64, u64)> =
                model.range(low..=high).map(|(k, v)| (*k, *v)).collect();
            let range = map.range(low..=high).unwrap().map(Result::unwrap);
            let is_mine = |record: &(u64, u64)| record.0 & (THREADS - 1) == thread;
            let mut found: Vec<(u64, u64)> = if i % 2 == 0 {
                range.filter(is_mine).collect()
            } else {
                range.rev().filter(is_mine).collect()
            };
            if i % 2 == 1 {
                found.reverse();
            }
            assert_eq!(found, expected);
        }
    }
}

/// Threads that all write work beside the sweep after a crash, too. `INDELIBLE_ROUNDS` makes it longer.
#[test]
fn threads_beside_structure_changes_see_their_own_writes() {
    let rounds = std::env::var("INDELIBLE_ROUNDS").ok();
    let rounds = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(6);
    let directory = directory();
    for seed in 0..rounds {
        let mut tested = Tested::new(directory.path());
        let mut models = vec![BTreeMap::new(); THREADS as usize];
        for is_reopened in [false, true] {
            std::thread::scope(|scope| {
                for (thread, model) in (0..).zip(&mut models) {
                    let map = tested.map();
                    scope.spawn(move || {
                        churn(map, model, thread, seed * 2 + u64::from(is_reopened))
                    });
                }
            });
            tested.model = models.iter().flatten().map(|(k, v)| (*k, *v)).collect();
            tested.check();
            tested.reopen(seed % 2 == 0);
        }
    }
}

/// Writes when its thread ends.
struct Last(Arc<Map<u64, u64>>);

impl Drop for Last {
    fn drop(&mut self) {
        (0..2_000).for_each(|key| assert_eq!(self.0.insert(key * 3, key).unwrap(), None));
        assert_eq!(self.0.range(..).unwrap().count(), 4_000);
    }
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// The buffers that a thread keeps for its structure changes are dropped before this write: they were made later.
#[test]
fn a_thread_that_ends_changes_the_structure() {
    let pool = Pool::in_memory().unwrap();
    let map = Arc::new(pool.map_with::<u64, u64>("m", options()).unwrap());
    let theirs = Arc::clone(&map);
    std::thread::spawn(move || {
        LAST.set(Some(Last(Arc::clone(&theirs))));
        (0..2_000).for_each(|key| assert_eq!(theirs.insert(key * 3 + 1, key).unwrap(), None));
        assert_eq!(theirs.range(..).unwrap().count(), 2_000);
    })
    .join()
    .unwrap();
    assert_eq!(map.len().unwrap(), 4_000);
    assert_eq!(map.check().unwrap(), [""; 0]);
}
