//! Histories for the LB+-tree: leaves that split, merge, run empty; directories; levels that come and go.

use super::Bug;
use crate::engines::testing::Mutant::{EarlyCommit, NoFence, NoFlush, Swapped};
use crate::engines::testing::Operation::{
    BulkLoad, CompareExchange, Get, GetBatch, Insert, InsertBatch, InsertNew, Range as RangeOf,
    Remove, Reopen, Shrink, Update,
};
use crate::engines::testing::{
    EquivalentMutant, History, Operation, Other, Size, StructureChange, Suite, in_catalog,
    only_loads_into_empty,
};
use crate::{Kind, LbTreeOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// What the crash checker has to know of the LB+-Tree.
pub(crate) struct Testing;

const NO_TRANSACTION: &str = "a batch is not one transaction";
const LONGER_RECOVERY: &str = "without its directory, recovery only takes longer";
const OWN_FENCE: &str = "each thread's own; of one thread, the commit's does for both";

impl Suite for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "lbtree.directory",
            "lbtree.insert",
            "lbtree.load",
            "lbtree.move",
            "lbtree.move-head",
            "lbtree.move-root",
            "lbtree.relink",
            "lbtree.remove",
            "lbtree.switch",
            "lbtree.update",
            "lbtree.update-in-batch",
        ]
    }

    fn changes(&self) -> &'static [StructureChange] {
        const LIST: &[StructureChange] = &[
            StructureChange::new("leaf split"),
            StructureChange::new("inner split"),
            StructureChange::new("root growth"),
            StructureChange::new("root shrink"),
            StructureChange::new("inner merge"),
            StructureChange::new("bulk load"),
            StructureChange::new("leaf moved"),
            StructureChange::new("root block moved"),
            StructureChange::new("signpost added"),
            StructureChange::new("signpost removed"),
            StructureChange::new("directory made"),
            StructureChange::new("empty leaf relinked"),
            StructureChange {
                // Of leaves of one block: from the header's line to each of the others, with as many records moved as can be.
                name: "entry moving",
                variants: 4 + 4 + 3,
                counts: |variant| variant < 0x100,
            },
            StructureChange::new("leaf merge"),
            StructureChange::new("unlink of an emptied leaf"),
        ];
        LIST
    }

    fn histories(&self) -> [u64; 2] {
        [320, 210]
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(NoFlush("lbtree.directory"), LONGER_RECOVERY),
            EquivalentMutant::new(NoFence("lbtree.directory"), LONGER_RECOVERY),
            EquivalentMutant::new(NoFence("lbtree.load.part"), OWN_FENCE),
            EquivalentMutant::new(EarlyCommit("lbtree.update"), "a value depends on nothing"),
            EquivalentMutant::new(
                EarlyCommit("lbtree.update-in-batch"),
                "a value depends on nothing",
            ),
            EquivalentMutant::new(EarlyCommit("lbtree.remove"), "a removal depends on nothing"),
            EquivalentMutant::new(
                EarlyCommit("lbtree.relink"),
                "the leaf that goes is empty already",
            ),
            EquivalentMutant::new(Swapped("lbtree.update*", "*"), NO_TRANSACTION),
            EquivalentMutant::new(Swapped("lbtree.insert", "lbtree.update"), NO_TRANSACTION),
            EquivalentMutant::new(
                Swapped("lbtree.insert", "lbtree.move*"),
                "what a compaction inserts are signposts, without which recovery only takes longer",
            ),
            EquivalentMutant::new(
                Swapped("lbtree.insert", "pool.free"),
                "what is freed is not the record's leaf, which is there until the write is durable",
            ),
            EquivalentMutant::new(
                NoFence("lbtree.move-root"),
                "leaves move afterwards, and the fence of the first one does for both",
            ),
            EquivalentMutant::new(
                Swapped("lbtree.move-root", "lbtree.move*"),
                "the old root block and the leaf that it leads to are there until their extents are freed",
            ),
            EquivalentMutant::new(
                Swapped("lbtree.move", "lbtree.move*"),
                "each leaf moves by itself",
            ),
            EquivalentMutant::new(Swapped("lbtree.directory", "*"), LONGER_RECOVERY),
            EquivalentMutant::new(Swapped("*", "lbtree.directory"), LONGER_RECOVERY),
        ];
        LIST
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 { THEMES } else { THEMES_TOGETHER }
    }

    fn history(&self, kind: Kind, theme: u64, seed: u64, size: Size) -> History {
        let mut random = SmallRng::seed_from_u64(seed);
        let leaf_bytes = [256, 256, 256, 512, 256, 768, 256, 1024][random.random_range(0..8)];
        let history = if size.threads < 2 {
            alone(kind, theme, seed, size.operations, &mut random)
        } else {
            together(kind, theme, seed, size, &mut random)
        };
        History {
            options: LbTreeOptions::default().leaf_bytes(leaf_bytes).into(),
            ..history
        }
    }

    fn rare_history(&self, kind: Kind, seed: u64, size: Size) -> Option<History> {
        (size.threads < 2 && seed % 64 == 63).then(|| tall(kind, seed, size.operations))
    }

    fn rare_seeds(&self) -> &'static [u64] {
        // A map that grows, and one that shrinks.
        &[63, 127]
    }

    fn hunts(&self, kind: Kind) -> Vec<(History, u64)> {
        // Both threads split, and need another extent.
        let last = THEMES_TOGETHER - 1;
        let size = Size {
            operations: 30,
            threads: 2,
        };
        let extents = (0..64).map(|seed| (self.history(kind, last, seed, size), seed));
        let runs = (0..3).map(|number| (run_across_lines(kind, number), number));
        extents.chain(runs).collect()
    }

    fn varied(&self, kind: Kind) -> History {
        let inserts = (0..120).map(|number| Insert(number * 7 % 240, number));
        History {
            before: inserts.collect(),
            ..History::new(kind)
        }
    }
}

/// A run of extents whose words in the table lie in two lines, taken and freed.
fn run_across_lines(kind: Kind, number: u64) -> History {
    let before = (0..700 + 60 * number).map(|key| Insert(key, key));
    History {
        before: before.collect(),
        threads: vec![vec![
            Operation::CreateOther,
            Operation::TakeRun(3),
            Operation::FreeRun,
            Insert(5, 5),
        ]],
        ..History::new(kind)
    }
}

/// Themes of one thread.
const THEMES: u64 = 8;

fn alone(kind: Kind, theme: u64, seed: u64, operations: usize, random: &mut SmallRng) -> History {
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
            (7, 0..4) | (3, 0..6) => in_catalog(true, random, &mut other),
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
            (_, _) => in_catalog(true, random, &mut other),
        };
        recorded.push(operation);
    }
    if theme == 3 || theme == 7 {
        recorded = only_loads_into_empty(recorded);
    }
    History {
        before,
        threads: vec![recorded],
        ..History::new(kind)
    }
}

/// A map with so many leaves that its root gets another level as it grows, or loses it as it shrinks.
fn tall(kind: Kind, seed: u64, operations: usize) -> History {
    let operations = operations as u64;
    let grows = (seed / 64).is_multiple_of(2);
    let most = if grows { 1_400 } else { 1_700 };
    let load = BulkLoad((0..most).map(|key| (key, seed)).collect());
    if grows {
        return History {
            before: vec![load],
            threads: vec![
                (most..most + operations)
                    .map(|key| Insert(key, 1))
                    .collect(),
            ],
            ..History::new(kind)
        };
    }
    // About where the last but one of the upper nodes goes.
    let from = 1110;
    History {
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
        ..History::new(kind)
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
const THEMES_TOGETHER: u64 = 7;

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
    let is_removed = |key: &u64| key / 14 % 2 == 1 && !key.is_multiple_of(14) && *key < 28 * LONELY;
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
        (_, 5) => RangeOf((last..last + 20).collect(), value.is_multiple_of(2)),
        (_, _) => Insert(last, value),
    }
}

/// Threads on few keys, so that they meet; on leaves that are about to split or to merge.
fn together(kind: Kind, theme: u64, seed: u64, size: Size, random: &mut SmallRng) -> History {
    let Size {
        operations,
        threads,
    } = size;
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
    History {
        before,
        threads,
        ..History::new(kind)
    }
}
