//! Histories for maps of byte strings: leaves that split, are rewritten, merge and run empty, blobs of all sizes, directories, levels that come and
//! go.

use super::{Bug, SlottedOptions};
use crate::engines::StringKind;
use crate::engines::testing::Mutant::{EarlyCommit, NoFence, NoFlush, Swapped};
use crate::engines::testing::Operation::{
    BulkLoad, Get, GetInParts, Insert, InsertInParts, Range as RangeOf, Remove, Reopen, Shrink,
    Update,
};
use crate::engines::testing::{
    EquivalentMutant, History, Operation, OtherMap, Size, StructureChange, Suite, Texts,
    any_string_operation, in_string_catalog, new_string_value, only_loads_into_empty,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// What the crash checker has to know of maps of byte strings.
pub(crate) struct Testing;

const NO_TRANSACTION: &str = "a batch is not one transaction";
const HINT: &str = "a signpost is a hint, without which recovery only takes longer";
const EACH_BY_ITSELF: &str = "each change stands by itself: what a link leads to was durable before, and what goes is freed only after an epoch";
const AHEAD: &str = "the extent was taken ahead of the need for it";
const FREED_LATER: &str = "an extent that is freed later is found owned, and swept";

type StringHistory = History<StringKind>;

impl Suite<StringKind> for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn theme_of(&self, bug: &crate::pmem::planted::Bug) -> Option<u64> {
        match bug.name {
            "slotted.ReadWithoutVersion"
            | "slotted.RangeWithoutVersion"
            | "slotted.BlobFreedAtOnce"
            | "slotted.ReaderKeepsNothing" => Some(5),
            "slotted.MergeLocksOneLeaf" | "slotted.NeighbourNotLocked" => Some(2),
            _ => None,
        }
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "slotted.append",
            "slotted.directory",
            "slotted.insert",
            "slotted.load",
            "slotted.merge",
            "slotted.move",
            "slotted.prefix",
            "slotted.remove",
            "slotted.replace",
            "slotted.rewrite",
            "slotted.split",
            "slotted.together",
            "slotted.unlink",
            "slotted.update",
        ]
    }

    /// References to blobs are followed unchecked once a leaf has been claimed.
    fn ends_when_damaged_in_use(&self) -> bool {
        false
    }

    fn changes(&self) -> &'static [StructureChange] {
        const LIST: &[StructureChange] = &[
            // By one leaf, or by two.
            StructureChange::with_variants("slotted leaf replaced", 2),
            StructureChange::new("slotted leaf appended"),
            // Of two leaves with records, or of which the left one is empty.
            StructureChange::with_variants("slotted leaf merge", 2),
            // Behind a leaf with records, or behind an empty one.
            StructureChange::with_variants("slotted leaf unlinked", 2),
            // Alone, or with its blobs.
            StructureChange::with_variants("slotted leaf moved", 2),
            // To a smaller size, or a larger one.
            StructureChange::with_variants("slotted leaf resized", 2),
            StructureChange::new("slotted bulk load"),
            StructureChange::new("slotted signpost added"),
            StructureChange::new("slotted signpost removed"),
            StructureChange::new("slotted directory made"),
            StructureChange::new("inner split"),
            StructureChange::new("inner merge"),
            StructureChange::new("root growth"),
            StructureChange::new("root shrink"),
        ];
        LIST
    }

    fn histories(&self) -> [u64; 2] {
        [60, 30]
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(NoFlush("slotted.directory"), HINT),
            EquivalentMutant::new(NoFence("slotted.directory"), HINT),
            EquivalentMutant::new(
                NoFence("slotted.blob"),
                "the fence in front of the commit of what refers to the blob does for both",
            ),
            EquivalentMutant::seldom(
                NoFlush("slotted.unlink"),
                "the leaf that goes is used again only after an epoch, and the line has seldom been left alone until then",
            ),
            EquivalentMutant::seldom(
                NoFence("slotted.unlink"),
                "the leaf that goes is used again only after an epoch, and the thread has had another fence then",
            ),
            EquivalentMutant::new(EarlyCommit("slotted.update"), "a value depends on nothing"),
            EquivalentMutant::new(
                EarlyCommit("slotted.remove"),
                "a removal depends on nothing",
            ),
            EquivalentMutant::seldom(Swapped("pool.free", "slotted.*"), FREED_LATER),
            EquivalentMutant::seldom(Swapped("pool.take*", "slotted.*"), AHEAD),
            EquivalentMutant::seldom(Swapped("slotted.directory", "*"), HINT),
            EquivalentMutant::seldom(Swapped("*", "slotted.directory"), HINT),
            EquivalentMutant::seldom(Swapped("slotted.update", "*"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("slotted.insert", "*"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("slotted.replace", "*"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("slotted.together", "*"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("slotted.append", "slotted.move"), EACH_BY_ITSELF),
            EquivalentMutant::seldom(
                Swapped("slotted.append", "pool.free"),
                "an append makes no block unreachable: what is freed was out of use before",
            ),
            EquivalentMutant::seldom(Swapped("slotted.split", "*"), EACH_BY_ITSELF),
            EquivalentMutant::seldom(Swapped("slotted.rewrite", "*"), EACH_BY_ITSELF),
            EquivalentMutant::seldom(Swapped("slotted.merge", "*"), EACH_BY_ITSELF),
            EquivalentMutant::seldom(Swapped("slotted.move", "*"), EACH_BY_ITSELF),
            EquivalentMutant::seldom(Swapped("slotted.unlink", "*"), EACH_BY_ITSELF),
            EquivalentMutant::seldom(Swapped("slotted.remove", "*"), EACH_BY_ITSELF),
            EquivalentMutant::seldom(Swapped("pool.take*", "pool.free"), AHEAD),
        ];
        LIST
    }

    fn rare_seeds(&self) -> &'static [u64] {
        // Ordinary histories in which two neighbouring leaves are empty at the same time.
        &[107, 135]
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 { THEMES } else { THEMES_TOGETHER }
    }

    fn history(&self, kind: StringKind, theme: u64, seed: u64, size: Size) -> StringHistory {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut history = if size.threads < 2 {
            alone(kind, theme, size.operations as u64, &mut random)
        } else {
            together(kind, theme, size, &mut random)
        };
        // Leaves of one size in every other history: two empty ones hardly ever lie side by side where the records of both neighbours may go to a larger leaf.
        if !seed.is_multiple_of(2) {
            let usual = SlottedOptions::default().sizes().usual.bytes();
            history.options = SlottedOptions::default().leaf_bytes(usual as u32).into();
        }
        history
    }
}

/// Themes of one thread.
const THEMES: u64 = 7;

fn alone(kind: StringKind, theme: u64, operations: u64, random: &mut SmallRng) -> StringHistory {
    let keys = Texts::ALL[random.random_range(0..Texts::ALL.len())];
    let most: u64 = match theme {
        // So many leaves that levels of inner nodes come and go.
        4 => 600,
        _ => [20, 60, 120][random.random_range(0..3)],
    };
    if theme == 6 {
        return shrinking(kind, keys, operations, random);
    }
    let before: Vec<Operation> = match theme {
        // Bulk loads need an empty map.
        2 => Vec::new(),
        4 => vec![BulkLoad((0..most - 60).map(|i| (i, i * 8 + 1)).collect())],
        _ => (0..most / 2).map(|i| Insert(i * 2, i * 8 + 1)).collect(),
    };
    let mut other = OtherMap::Absent;
    let mut recorded = Vec::new();
    let mut counter = most;
    for i in 0..operations {
        counter += 1;
        let value = new_string_value(counter, random);
        let key = random.random_range(0..most);
        let dice = random.random_range(0..16);
        recorded.push(match (theme, dice) {
            // Up and down, neighbours one after the other, so that leaves fill and run empty.
            (0, 0..14) if (i / most).is_multiple_of(2) => Insert(i % most, value),
            (0, 0..14) => Remove(i % most),
            // Values in leaves that grow and shrink, so that leaves are rewritten.
            (1, 0..10) => Insert(key % 12, value),
            (1, 10..13) => Update(key % 12, value),
            (2, _) if i % 40 == 0 => {
                let (count, step) = (random.random_range(0..40), random.random_range(1..3));
                BulkLoad(
                    (0..count)
                        .map(|i| (i * step, (counter + i) % 8000 * 8))
                        .collect(),
                )
            }
            (2, 0..4) => in_string_catalog(random, &mut other),
            (2, _) => Remove(key),
            // Holes that a shrink closes.
            (3, 0..7) => Remove(key),
            (3, 7..12) => Insert(key, value),
            (3, 12..15) => Shrink,
            (4, 0..13) if random.random_bool(0.5) => Insert(most - 60 + i % 60, value),
            (4, 0..13) => Remove(i * 3 % (most - 60)),
            (4, 13) => Reopen,
            (5, 0) => Reopen,
            _ => any_string_operation(most, value, true, random, &mut other),
        });
    }
    if theme == 2 {
        recorded = only_loads_into_empty(recorded);
    }
    if theme == 5 {
        recorded = in_parts(recorded);
    }
    History {
        keys,
        before,
        threads: vec![recorded],
        ..History::new(kind)
    }
}

/// A map of many leaves that loses all its records from the left, or a part of this.
fn shrinking(
    kind: StringKind,
    keys: Texts,
    operations: u64,
    random: &mut SmallRng,
) -> StringHistory {
    let loaded = 560;
    let from = [200, 260, 320, 380][random.random_range(0..4)];
    let load = BulkLoad((0..loaded).map(|i| (i, i * 8 + 1)).collect());
    let removed = (0..from).map(Remove);
    History {
        keys,
        before: std::iter::once(load).chain(removed).collect(),
        threads: vec![
            (from..loaded)
                .take(operations as usize)
                .map(Remove)
                .collect(),
        ],
        ..History::new(kind)
    }
}

/// The values that lie in blobs, by the last three bits of their numbers.
const LONG_VALUE: u64 = 6;

/// Every other long value is written in parts, and every other value that is read is read in parts.
fn in_parts(operations: Vec<Operation>) -> Vec<Operation> {
    let change = |(at, operation): (usize, Operation)| match operation {
        Insert(key, value) if at % 2 == 1 && value % 8 >= LONG_VALUE => InsertInParts(key, value),
        Get(key) if at % 2 == 1 => GetInParts(key),
        operation => operation,
    };
    operations.into_iter().enumerate().map(change).collect()
}

/// Themes of several threads.
const THEMES_TOGETHER: u64 = 6;

/// Threads on few records, so that they meet; on leaves that are about to split or to merge.
fn together(kind: StringKind, theme: u64, size: Size, random: &mut SmallRng) -> StringHistory {
    let keys = Texts::ALL[random.random_range(0..Texts::ALL.len())];
    let most: u64 = match theme {
        0 => 4,
        1 => 24,
        5 => 2,
        _ => 70,
    };
    let before = match theme {
        0 => Vec::new(),
        _ => (0..most).map(|i| Insert(i, i * 8 + 1)).collect(),
    };
    let per_thread = (size.operations / size.threads).max(1) as u64;
    let class = [1, 4, LONG_VALUE][random.random_range(0..3)];
    let mut counter = most;
    let mut thread = |number: u64| {
        let mut one = |i: u64| {
            counter += 1;
            let value = new_string_value(counter, random);
            let key = random.random_range(0..most);
            let is_even = number.is_multiple_of(2);
            match (theme, random.random_range(0..16)) {
                (0 | 1, 0..6) => Insert(key, value),
                (0 | 1, 6..9) => Get(key),
                // One thread empties leaves, while others read and fill their neighbours.
                (2, 0..12) if is_even => Remove((i * 2 + number) % most),
                (2, 0..6) => Insert(key, value),
                (2, 6..10) => RangeOf((0..most).collect(), value % 16 < 8),
                (3, 0..8) if is_even => Shrink,
                (3, 0..6) => Insert(key, value),
                (3, 6..10) => Get(key),
                (4, 0..8) => Update(key % 8, value),
                (4, 8..12) => Get(key % 8),
                // The bytes of two records, in the leaf or in blobs, are used again as soon as they may be, while others read these records.
                (5, 0..7) if is_even && class < LONG_VALUE => Remove(key),
                (5, 0..15) if is_even => Insert(key, counter % 8000 * 8 + class),
                (5, 0..14) => Get(key),
                _ => any_string_operation(most, value, false, random, &mut OtherMap::Absent),
            }
        };
        (0..per_thread).map(&mut one).collect()
    };
    let mut threads: Vec<Vec<Operation>> = (0..size.threads as u64).map(&mut thread).collect();
    if matches!(theme, 1 | 5) {
        threads = threads.into_iter().map(in_parts).collect();
    }
    History {
        keys,
        before,
        threads,
        ..History::new(kind)
    }
}
