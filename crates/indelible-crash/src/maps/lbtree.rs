//! Histories for the LB+-tree: leaves that split, merge, run empty; directories; levels that come and go.

use super::Operation::{
    BulkLoad, CompareExchange, Get, GetBatch, Insert, InsertBatch, InsertNew, Range as RangeOf,
    Remove, Reopen, Shrink, Update,
};
use super::{Operation, Other, in_catalog, only_loads_into_empty};
use crate::Workload;
use indelible::Kind;
use rand::RngExt;
use rand::rngs::SmallRng;

/// Themes of one thread.
pub(super) const THEMES: u64 = 8;

pub(super) fn alone(
    theme: u64,
    seed: u64,
    operations: usize,
    random: &mut SmallRng,
) -> Workload<Operation> {
    // Small maps are searched fast; of larger ones the inner nodes split too.
    let keys = [30, 60, 60, 180][random.random_range(0..4)];
    let size = random.random_range(1..keys / 2);
    let before = match theme {
        // Bulk loads need an empty map; the others begin with one that has seen some life.
        3 | 7 => Vec::new(),
        _ => (0..size)
            .map(|i| Insert(random.random_range(0..keys), i))
            .collect(),
    };
    let mut recorded = Vec::with_capacity(operations);
    let (mut other, mut at) = (Other::Absent, 1_000);
    for i in 0..operations as u64 {
        let key = random.random_range(0..keys);
        let dice = random.random_range(0..16);
        let operation = match (theme, dice) {
            (0, 0) => Remove(key),
            (0, _) => Insert(key, i),
            // Neighbours, so that leaves run empty and merge; then they fill again.
            (1, 0..14) if i % keys < keys * 2 / 3 => Remove((seed * 7 + i) % keys),
            (1, _) => Insert(key, i),
            (2, 0..6) => InsertBatch(batch(random, keys, i)),
            (2, 6..12) => Remove(key),
            (2, _) => Insert(key, i),
            (3 | 7, _) if i % 64 == 0 => BulkLoad(load(random)),
            // Until the map is empty, and can be loaded again.
            (7, 0..4) | (3, 0..6) => in_catalog(Kind::LbTree, random, &mut other),
            (3 | 7, _) => Remove(key),
            (4, 0) => Reopen,
            (4, 1..6) => Insert(key, i),
            (4, 6..10) => Remove(key),
            (5, 0) => Remove(at - random.random_range(0..20)),
            (5, _) => {
                at += 1;
                Insert(at, i)
            }
            (_, 0..4) => Insert(key, i),
            (_, 4..6) => Remove(key),
            (_, 6) => InsertNew(key, i),
            (_, 7) => Update(key, i),
            (_, 8) => CompareExchange(key, None, Some(i)),
            (_, 9) => CompareExchange(key, Some(i / 2), None),
            (_, 10) => Get(key),
            (_, 11) => RangeOf((key..=key + 20).collect(), i % 2 == 0),
            (_, 12) => GetBatch((0..20).map(|j| key + 3 * j).collect()),
            (_, 13) => InsertBatch(batch(random, keys, i)),
            (_, _) => in_catalog(Kind::LbTree, random, &mut other),
        };
        recorded.push(operation);
    }
    if theme == 3 || theme == 7 {
        recorded = only_loads_into_empty(recorded);
    }
    Workload {
        before,
        threads: vec![recorded],
    }
}

/// A map with so many leaves that its root gets another level as it grows, or loses it as it shrinks.
pub(super) fn tall(seed: u64, operations: usize) -> Workload<Operation> {
    let operations = operations as u64;
    let grows = (seed / 64).is_multiple_of(2);
    let most = if grows { 1_400 } else { 1_700 };
    let load = BulkLoad((0..most).map(|key| (key, seed)).collect());
    if grows {
        return Workload {
            before: vec![load],
            threads: vec![
                (most..most + operations)
                    .map(|key| Insert(key, 1))
                    .collect(),
            ],
        };
    }
    // About where the last but one of the upper nodes goes.
    let from = 1110;
    Workload {
        before: std::iter::once(load)
            .chain((from..most).rev().map(Remove))
            .collect(),
        threads: vec![
            (0..from)
                .rev()
                .map(Remove)
                .take(operations as usize)
                .collect(),
        ],
    }
}

fn batch(random: &mut SmallRng, keys: u64, value: u64) -> Vec<(u64, u64)> {
    let from = random.random_range(0..keys);
    let step = random.random_range(1..5);
    let count = random.random_range(2..20);
    (0..count).map(|i| (from + i * step, value)).collect()
}

fn load(random: &mut SmallRng) -> Vec<(u64, u64)> {
    let count = random.random_range(0..90);
    let step = random.random_range(1..4);
    (0..count).map(|i| (i * step, i)).collect()
}

/// Themes of several threads.
pub(super) const THEMES_TOGETHER: u64 = 7;

fn puts(keys: std::ops::Range<u64>) -> Vec<Operation> {
    keys.map(|key| Insert(key, 1_000 + key)).collect()
}

/// Keys below this lie in thin leaves.
const THIN: u64 = 28 * 8;
/// Leaves, more than one bottom node holds: what happens under different ones may happen at once.
const LEAVES: u64 = 18;

/// The first key of one of them.
fn thin_leaf(seed: u64, i: u64) -> u64 {
    THIN - 28 - (seed + i / 2) * 28 % THIN
}

/// Leaves with four records each, which merge at the first removal, and others that split at the first insert.
fn thin_and_full_leaves() -> Vec<Operation> {
    let keys = (0..14 * LEAVES).map(|key| 2 * key);
    let removed = keys.clone().filter(|&key| key < THIN && key % 28 >= 8);
    let inserts = keys.map(|key| Insert(key, 1_000 + key));
    inserts.chain(removed.map(Remove)).collect()
}

/// Leaves of a map of more than one extent. Every second one of the first [`LONELY`] pairs has one record left.
const MOVING: u64 = 21;
const LONELY: u64 = 8;

/// A map whose last leaves fit into the first extent once the leaves with one record are gone.
fn leaves_that_will_move() -> Vec<Operation> {
    let keys = 0..14 * MOVING;
    let is_removed = |key: &u64| key / 14 % 2 == 1 && key % 14 > 0 && *key < 28 * LONELY;
    let removed = keys.clone().filter(is_removed).map(Remove);
    puts(keys.clone()).into_iter().chain(removed).collect()
}

/// One thread removes those records and shrinks the pool, again and again; others read and write the last leaves, which move.
fn meet_moving_leaves(number: u64, i: u64, value: u64, random: &mut SmallRng) -> Operation {
    let last = 14 * random.random_range(MOVING - 6..MOVING) + random.random_range(0..14);
    match (number, random.random_range(0..8)) {
        (1, _) if i < LONELY => Remove(28 * i + 14),
        (1, 0..2) => Shrink,
        (1, 2..4) => Remove(last),
        (_, 0..4) => Get(last),
        (_, 4) => Remove(last),
        (_, 5) => RangeOf((last..last + 20).collect(), value % 2 == 0),
        (_, _) => Insert(last, value),
    }
}

/// Threads on few keys, so that they meet; on leaves that are about to split or to merge.
pub(super) fn together(
    theme: u64,
    seed: u64,
    operations: usize,
    threads: usize,
    random: &mut SmallRng,
) -> Workload<Operation> {
    let keys = match theme {
        0 => 10,
        1 | 2 => 60,
        // Full leaves, and one with two records, which has an extent of its own.
        3 => 14 * random.random_range(12..15) + 2,
        6 => random.random_range(12..17) * 28,
        _ => LEAVES * 28,
    };
    // Every other time leaves move while others use them.
    let is_moving = theme == 3 && seed / THEMES_TOGETHER % 2 == 1;
    let before = match theme {
        _ if is_moving => leaves_that_will_move(),
        0 => puts(0..random.random_range(0..10)),
        1 => puts(0..14),
        2 | 3 => puts(0..keys),
        // Full leaves; their extent is nearly full too.
        6 => (0..keys / 2).map(|key| Insert(2 * key, 0)).collect(),
        _ => thin_and_full_leaves(),
    };
    let per_thread = (operations / threads).max(1);
    let mut value = 0;
    let mut thread = |number: u64| {
        let mut one = |i: u64| {
            value += 1;
            let key = random.random_range(0..keys);
            let is_even = number.is_multiple_of(2);
            if is_moving {
                return meet_moving_leaves(number, i, value, random);
            }
            match (theme, random.random_range(0..16)) {
                (1, 0..9) => Insert(key, value),
                (2, 0..9) => Remove(key),
                (3, 0..14) if is_even => Get(keys - 1 - i % 2),
                // That leaf goes, and with it the end of the file; and comes again.
                (3, _) if !is_even => match i % 5 {
                    0 | 1 => Remove(keys - 1 - i % 5),
                    2 => Shrink,
                    back => Insert(keys + 2 - back, value),
                },
                // One thread merges leaves, from right to left, so that what it frees is what is taken next, while another
                // one splits some, or fills the same.
                (4 | 5, 0..=8) if is_even => Remove(thin_leaf(seed, i) + i % 4 * 2),
                (6, 0..14) => Insert(key | 1, value),
                (4, 0..12) => Insert(random.random_range(THIN..keys) | 1, value),
                (5, 0..=8) => Insert(thin_leaf(seed, i) + 1 + i % 12, value),
                (_, 0..3) => Insert(key, value),
                (_, 3..5) => Remove(key),
                (_, 5) => InsertNew(key, value),
                (_, 6) => Update(key, value),
                (_, 7) => CompareExchange(key, None, Some(value)),
                (_, 8) => CompareExchange(key, Some(1_000 + key), None),
                (_, 9..12) => Get(key),
                (_, 12) => RangeOf((key.saturating_sub(6)..=key + 6).collect(), value % 2 == 0),
                (_, 13) => GetBatch((0..6_u64).map(|j| (key + j) % keys).collect()),
                (_, 14) => InsertBatch((0..4).map(|j| ((key + j) % keys, value)).collect()),
                (_, _) => Update(key, value),
            }
        };
        (0..per_thread as u64).map(&mut one).collect()
    };
    let threads = (0..threads as u64).map(&mut thread).collect();
    Workload { before, threads }
}
