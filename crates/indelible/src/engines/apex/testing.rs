//! Histories for APEX: data nodes that grow, shrink, split sideways and downwards, merge, and overflow; inner nodes that grow and
//! are taken out.

use super::Bug;
use crate::Kind;
use crate::engines::testing::Mutant::{EarlyCommit, NoFence, Swapped};
use crate::engines::testing::Operation::{
    BulkLoad, CompareExchange, Get, GetBatch, Insert, InsertBatch, InsertNew, Range as RangeOf,
    Remove, Reopen, Shrink, Update,
};
use crate::engines::testing::{
    EquivalentMutant, History, Keys, Operation, Other, Size, StructureChange, Suite, in_catalog,
    only_loads_into_empty, with_releases,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;

/// What the crash checker has to know of APEX.
pub(crate) struct Testing;

const NO_TRANSACTION: &str = "a batch is not one transaction";
const IN_NEW_NODE: &str = "what takes the node's place has it, too";
const NOT_RETURNED: &str = "the write has not returned";
const LET_GO: &str = "everybody had let go of what was in it before the operation began";
const SAME_RECORDS: &str = "both lead to the same records";
const OWNED: &str = "an extent that is found owned is swept";
const NODE_BETWEEN: &str = "the node between leads there as well";

impl Suite for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "apex.extend",
            "apex.insert",
            "apex.load",
            "apex.merge.between",
            "apex.merge.drop-right",
            "apex.merge.whole",
            "apex.remove",
            "apex.replace",
            "apex.root",
            "apex.split.between",
            "apex.split.part",
            "apex.update",
        ]
    }

    fn changes(&self) -> &'static [StructureChange] {
        // A data node replaced by a larger, an equal and a smaller one; an inner node that grows finer, to the right and to the left;
        // slots in one cache line and in several.
        const LIST: &[StructureChange] = &[
            StructureChange::with_variants("data node replaced", 3),
            StructureChange::new("split downwards"),
            StructureChange::with_variants("split sideways", 3),
            StructureChange::with_variants("inner node grown", 3),
            StructureChange::new("inner node collapsed"),
            StructureChange::new("inner nodes laid out anew"),
            StructureChange::with_variants("merge", 2),
            // Not the root, and the root.
            StructureChange::with_variants("subtree rebuilt", 2),
            // A data node, and an inner node.
            StructureChange::with_variants("node moved", 2),
            StructureChange::new("stash extended"),
            StructureChange::new("bulk load"),
        ];
        LIST
    }

    fn histories(&self) -> [u64; 2] {
        [288, 108]
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(
                NoFence("apex.load.part"),
                "each thread's own; of one thread, the commit's does for both",
            ),
            EquivalentMutant::new(
                NoFence("apex.extend"),
                "in nodes this small nobody else overflows, and the insert's fence does for both",
            ),
            EquivalentMutant::new(EarlyCommit("apex.update"), "a value depends on nothing"),
            EquivalentMutant::new(EarlyCommit("apex.remove"), "a removal depends on nothing"),
            EquivalentMutant::new(Swapped("apex.update", "*"), NO_TRANSACTION),
            EquivalentMutant::new(Swapped("apex.insert", "apex.extend"), NO_TRANSACTION),
            EquivalentMutant::new(Swapped("apex.insert", "apex.root"), IN_NEW_NODE),
            EquivalentMutant::new(Swapped("apex.insert", "apex.split.*"), IN_NEW_NODE),
            EquivalentMutant::new(Swapped("apex.remove", "apex.replace"), IN_NEW_NODE),
            EquivalentMutant::new(Swapped("apex.remove", "apex.merge.*"), IN_NEW_NODE),
            EquivalentMutant::new(Swapped("apex.extend", "apex.insert"), NOT_RETURNED),
            EquivalentMutant::seldom(
                Swapped("apex.replace", "apex.update"),
                "another thread has to write to the new node, and return, in between",
            ),
            EquivalentMutant::new(Swapped("apex.replace", "apex.root"), IN_NEW_NODE),
            // A compaction replaces one node after the other, and what each store leads to was durable before the store.
            EquivalentMutant::new(Swapped("apex.replace", "apex.merge.between"), SAME_RECORDS),
            EquivalentMutant::new(Swapped("apex.root", "apex.replace"), SAME_RECORDS),
            EquivalentMutant::new(Swapped("pool.free", "apex.replace"), OWNED),
            EquivalentMutant::new(Swapped("pool.free", "apex.root"), OWNED),
            EquivalentMutant::new(
                Swapped("apex.insert", "pool.free"),
                "what is freed is not the record's node, which is there until the write is durable",
            ),
            EquivalentMutant::new(Swapped("apex.split.*", "apex.insert"), NODE_BETWEEN),
            EquivalentMutant::new(Swapped("apex.split.*", "apex.update"), NODE_BETWEEN),
            EquivalentMutant::new(
                Swapped("apex.merge.*", "apex.replace"),
                "what is taken out need not be whole",
            ),
            // An extent goes in the midst of an operation if another size of block needs one.
            EquivalentMutant::seldom(Swapped("apex.merge.*", "pool.free"), LET_GO),
            EquivalentMutant::seldom(
                Swapped("pool.take", "apex.merge.between"),
                "the block of the intermediate node has to be the first one of the extent, which no recording has now",
            ),
            EquivalentMutant::seldom(
                Swapped("apex.replace", "pool.take"),
                "another thread has to write to the new node, and return, in between",
            ),
        ];
        LIST
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 { THEMES } else { THEMES_TOGETHER }
    }

    fn history(&self, kind: Kind, theme: u64, seed: u64, size: Size) -> History {
        let mut random = SmallRng::seed_from_u64(seed);
        let keys = keys(theme, size.threads, &mut random);
        let mut history = if size.threads < 2 {
            alone(kind, keys, theme, size.operations, &mut random)
        } else {
            together(kind, keys, theme, size, &mut random)
        };
        if seed / self.themes(size.threads) % 3 == 2 {
            with_releases(&mut history.threads, &mut random);
        }
        History { keys, ..history }
    }

    fn hunts(&self, kind: Kind) -> Vec<(History, u64)> {
        // Both threads change nodes under the same inner node, which grows.
        let last = THEMES_TOGETHER - 1;
        let size = Size {
            operations: 16,
            threads: 2,
        };
        let growing = (0..96).map(|seed| (self.history(kind, last, seed, size), seed));
        // With one of these numbers of inner nodes a merge takes an extent, for the node between.
        let merging = (10..13).map(|inner_nodes| (merging(kind, inner_nodes), 0));
        let batches = (0..12).map(|seed| (batch_beside_reader(kind), seed));
        growing.chain(merging).chain(batches).collect()
    }

    fn varied(&self, kind: Kind) -> History {
        let keys = Keys::Octaves;
        let inserts = (0..120).map(|number| Insert(keys.key(900 + number), number));
        // A crowd that overflows, where there is much room otherwise.
        let crowd = (0..80).map(|number| Insert((3 << 62) + ((number % 40) << 50), number));
        let moved = (0..30).flat_map(|number| {
            [
                Remove((3 << 62) + (number << 50)),
                Insert((3 << 62) + number, number),
            ]
        });
        History {
            keys,
            before: inserts.chain(crowd).chain(moved).collect(),
            ..History::new(kind)
        }
    }
}

/// A batch that fills nodes, beside a thread that reads its records: what has been read must be there, whatever the batch goes on to do.
fn batch_beside_reader(kind: Kind) -> History {
    let keys = |from: u64| (0..48).map(move |i| (i << 40) + from);
    let batch = keys(1 << 39).map(|key| (key, 1)).collect();
    History {
        before: keys(0).map(|key| Insert(key, 0)).collect(),
        threads: vec![
            vec![InsertBatch(batch)],
            (0..3).flat_map(|_| keys(1 << 39)).map(Get).collect(),
        ],
        ..History::new(kind)
    }
}

/// Themes of one thread.
const THEMES: u64 = 12;

/// Themes of several threads.
const THEMES_TOGETHER: u64 = 9;

/// Keys of one cluster.
const CLUSTER: u64 = 32;

/// How the keys of a history lie.
fn keys(theme: u64, threads: usize, random: &mut SmallRng) -> Keys {
    use Keys::{Clusters, Dense, Ends, Even, Ladder, Middle, Octaves, Top, Wide};
    let all = [
        Dense, Dense, Even, Even, Wide, Wide, Clusters, Clusters, Ladder, Ends,
    ];
    let some = match (theme, threads) {
        (8, ..2) | (6, 2..) => &[Clusters][..],
        (10, ..2) => &[Wide],
        (5 | 9, ..2) => &[Dense, Even, Clusters, Top, Middle, Octaves],
        (3, 2..) => &[Dense, Even, Wide],
        (8, 2..) => &[Dense, Even, Wide, Clusters],
        (7, 2..) => &[Dense, Even, Clusters, Top, Middle],
        _ => &all,
    };
    some[random.random_range(0..some.len())]
}

/// Numbers, and the keys that they stand for.
struct Numbers {
    keys: Keys,
    /// All keys that a history has, in order.
    all: Vec<u64>,
}

impl Numbers {
    fn new(keys: Keys, most: u64) -> Self {
        Self {
            keys,
            all: keys.some(0..most),
        }
    }

    /// Neighbouring keys, from that of a number on.
    fn around(&self, number: u64, count: usize) -> Vec<u64> {
        let key = self.keys.key(number);
        let from = self.all.partition_point(|&other| other < key);
        let to = (from + count).min(self.all.len());
        self.all[from..to].to_vec()
    }

    fn insert(&self, number: u64, value: u64) -> Operation {
        Insert(self.keys.key(number), value)
    }

    fn remove(&self, number: u64) -> Operation {
        Remove(self.keys.key(number))
    }

    fn batch(&self, random: &mut SmallRng, from: Range<u64>, value: u64) -> Operation {
        let from = random.random_range(from);
        let step = random.random_range(1..5);
        let count = random.random_range(2..20);
        let keys = self.keys.some((0..count).map(|i| from + i * step));
        InsertBatch(keys.into_iter().map(|key| (key, value)).collect())
    }

    fn many(&self, from: u64, count: u64, value: u64) -> Operation {
        let keys = self.keys.some(from..from + count);
        InsertBatch(keys.into_iter().map(|key| (key, value)).collect())
    }

    fn load(&self, random: &mut SmallRng) -> Operation {
        let count = random.random_range(0..140);
        let step = random.random_range(1..4);
        let keys = self.keys.some((0..count).map(|i| i * step));
        BulkLoad(keys.into_iter().zip(0..).collect())
    }

    /// Every so many of the keys of a range of numbers.
    fn load_of(&self, range: Range<u64>, step: usize) -> Operation {
        let keys = self.keys.some(range.step_by(step));
        BulkLoad(keys.into_iter().zip(1_000..).collect())
    }

    /// Any operation on a few keys.
    fn any(&self, number: u64, value: u64, random: &mut SmallRng) -> Operation {
        let key = self.keys.key(number);
        match random.random_range(0..14) {
            0..4 => Insert(key, value),
            4..6 => Remove(key),
            6 => InsertNew(key, value),
            7 => Update(key, value),
            8 => CompareExchange(key, None, Some(value)),
            9 => CompareExchange(key, Some(value / 2), None),
            10 => Get(key),
            11 => RangeOf(self.around(number, 30), value.is_multiple_of(2)),
            12 => GetBatch(self.around(number, 40).into_iter().step_by(2).collect()),
            _ => self.batch(random, number..number + 1, value),
        }
    }
}

fn alone(kind: Kind, keys: Keys, theme: u64, operations: usize, random: &mut SmallRng) -> History {
    let most = [40, 80, 120, 240][random.random_range(0..4)];
    let numbers = Numbers::new(keys, most + 100);
    let size = random.random_range(1..most);
    let backwards = random.random_ratio(1, 2);
    let before = match theme {
        // Bulk loads need an empty map; the others begin with one that has seen some life.
        3 => Vec::new(),
        1 => (0..most).map(|number| numbers.insert(number, 0)).collect(),
        // Keys far apart, and few of them left, so that there is much room where the next ones do not go.
        8 => apart(&numbers, random.random_range(22..40), random),
        10 => vec![lopsided()],
        11 => extended(),
        5 | 9 => (0..size / 4)
            .map(|i| numbers.insert(1_000 + i, i))
            .collect(),
        _ => (0..size)
            .map(|i| numbers.insert(random.random_range(0..most), i))
            .collect(),
    };
    let mut recorded = Vec::with_capacity(operations);
    let (mut other, mut high, mut low) = (Other::Absent, 1_000 + size / 4, 1_000);
    let crowd = random.random_range(0..24) * CLUSTER;
    for i in 0..operations as u64 {
        let number = random.random_range(0..most);
        let dice = random.random_range(0..16);
        let operation = match (theme, dice) {
            // Many records are gone, or have just been moved to and fro: blocks move to the front.
            (1 | 2 | 6 | 8, dice) if dice == 15 && i % 4 == 0 => Shrink,
            (10, _) if i % 64 == 63 => Shrink,
            (0, 0) => numbers.remove(number),
            (0, _) => numbers.insert(number, i),
            // Neighbours, so that nodes shrink and merge; then they fill again.
            (1, 0..14) if i % most < most * 3 / 4 => numbers.remove(i % most),
            (1, _) => numbers.insert(number, i),
            (2, 0..6) => numbers.batch(random, 0..most, i),
            (2, 6..12) => numbers.remove(number),
            (2, _) => numbers.insert(number, i),
            (3, _) if i % 64 == 0 => numbers.load(random),
            // Until the map is empty, and can be loaded again.
            (3, 0..5) => in_catalog(false, random, &mut other),
            (3, _) => numbers.remove(number),
            (4, 0) => Reopen,
            (4, 1..8) => numbers.insert(number, i),
            (4, 8..12) => numbers.remove(number),
            (5, 0) => numbers.remove(high - random.random_range(0..20)),
            (5, 1) => numbers.batch(random, high..high + 1, i),
            (5, _) => {
                high += 1;
                numbers.insert(high, i)
            }
            (9, 0) => numbers.remove(low + random.random_range(0..20)),
            (9, _) => {
                low -= 1;
                numbers.insert(low, i)
            }
            (11, _) if i % 16 == 4 => Shrink,
            (11, ..8) => Insert(in_crowd(random.random_range(0..2), number), i),
            (11, ..12) => Remove(in_crowd(random.random_range(0..2), number)),
            (11, _) => Get(in_crowd(random.random_range(0..2), number)),
            (10, _) => fill_and_empty(i, backwards),
            (8, 0..2) => numbers.remove(crowd + random.random_range(0..CLUSTER)),
            (8, 2) => Reopen,
            (8, 3) => Get(keys.key(crowd + random.random_range(0..CLUSTER))),
            (8, 4) => numbers.insert(number * CLUSTER % 960, i),
            (8, _) => numbers.insert(crowd + (i / 40 * CLUSTER + i % CLUSTER) % 960, i),
            (7, 0..2) => in_catalog(false, random, &mut other),
            _ => numbers.any(number, i, random),
        };
        recorded.push(operation);
    }
    if theme == 3 {
        recorded = only_loads_into_empty(recorded);
    }
    History {
        before,
        threads: vec![recorded],
        ..History::new(kind)
    }
}

/// Two crowds in one node, so that they belong to different groups of slots and share the stash, which is nearly full. Where they
/// begin is written to `crowds`.
fn two_crowds(numbers: &Numbers, crowds: &mut [u64; 2], random: &mut SmallRng) -> Vec<Operation> {
    let count = random.random_range(24..31);
    let clusters = [random.random_range(1..8), count - random.random_range(1..5)];
    *crowds = clusters.map(|cluster| cluster * CLUSTER);
    let mut before = apart(numbers, count, random);
    for first in *crowds {
        let size = random.random_range(15..20);
        before.extend((first..first + size).map(|number| numbers.insert(number, 0)));
    }
    before
}

/// The keys of the upper half of the domain, few of which are there at first: a node covers as many slots as lie in several cache
/// lines.
fn upper(number: u64) -> u64 {
    (1 << 63) + ((number % 64) << 57) + 5
}

/// Many keys in the lower half of the domain, few in the upper one.
fn lopsided() -> Operation {
    let lower = (0..LOWER).map(|number| number << (63 - LOWER.ilog2()));
    let upper = (0..64).step_by(6).map(upper);
    BulkLoad(lower.chain(upper).zip(0..).collect())
}

/// A key of one of two crowds, each of which has one predicted slot in a node of keys that lie far apart.
fn in_crowd(crowd: u64, number: u64) -> u64 {
    ((7 + crowd * 13) << 40) + 1 + number % 28
}

/// Two crowds, whose extended stash blocks are allocated while many inner nodes have all small blocks before. Then most of these inner
/// nodes are removed.
fn extended() -> Vec<Operation> {
    let apart = (0..30).map(|key| key << 40);
    let upper: Vec<u64> = (0..40)
        .flat_map(|inner| (0..64).map(move |key| (3 << 62) + (inner << 52) + key))
        .collect();
    // So many that the whole map is not rebuilt.
    let others = (0..700).map(|key| (1 << 62) + (key << 45));
    let keys = apart.chain(others).chain(upper.iter().copied());
    let load = BulkLoad(keys.zip(0..).collect());
    let crowds = (0..56).map(|number| Insert(in_crowd(number % 2, number / 2), number));
    let gone = upper.iter().map(|&key| Remove(key));
    std::iter::once(load).chain(crowds).chain(gone).collect()
}

/// Keys of the lower half: enough for an inner node of many slots.
const LOWER: u64 = 512;

/// The upper half is filled, then it is emptied.
fn fill_and_empty(i: u64, backwards: bool) -> Operation {
    match i % 128 {
        number @ ..64 => Insert(upper(number * 37), i),
        number if backwards => Remove(upper(127 - number)),
        number => Remove(upper(number)),
    }
}

/// Merges, one after the other, in a pool with so many small blocks in use that one of the merges finds none left.
fn merging(kind: Kind, crowds: u64) -> History {
    const NUMBERS: u64 = 300;
    // Each has an inner node of its own.
    let crowd = |crowd: u64| (0..64).map(move |key| (3 << 62) + (crowd << 52) + key);
    let keys = Keys::Even.some(0..NUMBERS).into_iter();
    let load = keys.chain((0..crowds).flat_map(crowd)).zip(0..);
    let few = (0..NUMBERS).filter(|number| number % 12 > 0);
    History {
        before: vec![BulkLoad(load.collect())],
        threads: vec![few.map(|number| Remove(Keys::Even.key(number))).collect()],
        ..History::new(kind)
    }
}

/// One key of each cluster, of which few stay.
fn apart(numbers: &Numbers, count: u64, random: &mut SmallRng) -> Vec<Operation> {
    let load = numbers.load_of(0..count * CLUSTER, CLUSTER as usize);
    let removes = (0..count).filter(|_| random.random_ratio(3, 4));
    let removes: Vec<_> = removes.map(|i| numbers.remove(i * CLUSTER)).collect();
    std::iter::once(load).chain(removes).collect()
}

/// The lowest number of a load that threads add to at both ends.
const MIDST: u64 = 1_000;

/// Threads on few keys, so that they meet; on nodes that are about to grow, to split, to shrink or to merge.
fn together(kind: Kind, keys: Keys, theme: u64, size: Size, random: &mut SmallRng) -> History {
    let Size {
        operations,
        threads,
    } = size;
    let most = match theme {
        0 => 10,
        6 => 24 * CLUSTER,
        7 => random.random_range(20..80),
        3 => random.random_range(40..120),
        _ => random.random_range(60..220),
    };
    let numbers = Numbers::new(
        keys,
        if matches!(theme, 6 | 7) {
            1_500
        } else {
            most + 100
        },
    );
    // Of thin nodes, one key in so many is left.
    let rest = random.random_range(8..25);
    let mut crowds = [0; 2];
    let before: Vec<Operation> = match theme {
        0 => (0..random.random_range(0..10))
            .map(|i| numbers.insert(i, 1_000 + i))
            .collect(),
        // Nodes that are nearly full.
        1 | 5 => vec![numbers.load_of(0..most, 2)],
        2 | 4 => {
            let load = numbers.load_of(0..most, 1);
            let removes = (0..most).filter(|i| i % rest != 0);
            let removes = removes.map(|i| numbers.remove(i));
            std::iter::once(load).chain(removes).collect()
        }
        6 => two_crowds(&numbers, &mut crowds, random),
        7 => vec![numbers.load_of(MIDST..MIDST + most, 1)],
        _ => vec![numbers.load_of(0..most, 4)],
    };
    let target = random.random_range(0..most);
    let per_thread = (operations / threads).max(1);
    let (mut value, mut low, mut high) = (0, MIDST, MIDST + most);
    let mut thread = |thread: u64| {
        let mut one = |i: u64| {
            value += 1;
            let number = random.random_range(0..most);
            let is_even = thread.is_multiple_of(2);
            match (theme, random.random_range(0..16)) {
                (1, ..11) => numbers.insert(number | 1, value),
                (2, ..10) => numbers.remove(number / rest * rest),
                // A thread reads where another one makes nodes come and go, many in one operation.
                (3, ..14) if is_even => match i % 8 {
                    0 => RangeOf(numbers.around(number, 12), value % 2 == 0),
                    1 => GetBatch(numbers.around(number, 12)),
                    _ => Get(keys.key(number / 4 * 4)),
                },
                (3, _) if i % 8 == 6 => Shrink,
                // Nodes are moved while others are full, or merge, under them.
                (2 | 4 | 6 | 8, 15) if i.is_multiple_of(2) => Shrink,
                // They all change several nodes, most of them under the same inner node.
                (3, _) => numbers.many(number, random.random_range(10..40), value),
                (8, ..13) if is_even => numbers.many(number, random.random_range(10..40), value),
                (8, ..13) => numbers.insert(number, value),
                // One thread merges nodes, and the others fill the same one.
                (4, ..13) if is_even => numbers.remove(number / rest * rest),
                (4, ..13) => numbers.insert((target + value) % most, value),
                (5, ..10) if is_even => numbers.insert(value * 2 % most + 1, value),
                (5, ..10) => numbers.insert((most - 1 - value * 2 % most) | 1, value),
                // The same few slots are taken and given back under readers, those of the stash by both crowds.
                (6, dice @ ..15) => {
                    // Those that came last are in the stash.
                    let member = random.random_range(11..22);
                    match dice {
                        ..5 => numbers.insert(crowds[thread as usize % 2] + member, value),
                        5..10 => numbers.remove(crowds[thread as usize % 2] + member),
                        _ => Get(keys.key(crowds[dice % 2] + member)),
                    }
                }
                (7, ..13) if is_even => {
                    high += 1;
                    numbers.insert(high, value)
                }
                (7, ..13) => {
                    low -= 1;
                    numbers.insert(low, value)
                }
                (_, 14) => GetBatch(numbers.around(number, 8)),
                (_, 13) => RangeOf(numbers.around(number, 12), value % 2 == 0),
                _ => numbers.any(number, value, random),
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
