//! What the crash checker has to know of LOFT.

use super::Bug;
use crate::engines::Kind;
use crate::engines::testing::Mutant::{EarlyCommit, NoFence, NoFlush, Swapped};
use crate::engines::testing::{
    EquivalentMutant, Family, History, Keys, Operation, Other, Size, StructureChange, Suite,
    in_catalog, only_loads_into_empty,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const COMPLETED: &str = "the thread that inserts makes the slot durable too, and recovery takes a pending slot for a dead one";
const LINKED: &str = "the fence of what is then stored behind the link does for both, but for another thread's store in between";
const IN_OLD_NODE: &str = "what is copied is in the old node too";
const SETTLED: &str = "the writer flushes the line too, and only a crash between the end of a reader and that fence shows it";
const LINKED_BY_PARENT: &str = "the old nodes have what is copied, until the parent leads to the new ones: only what another thread stores there in between shows it";
const THAWED_AGAIN: &str = "the open after a crash does it again; only a power cut after the next clean close shows it, of which recoveries have none";
const NO_TRANSACTION: &str = "a batch is not one transaction";

/// The theme of several threads of which some write two records all the time and the others read them.
const MEETING: u64 = 2;
/// The theme of one thread that fills the map by bulk loads and empties it, while another map comes and goes.
const LOADS: u64 = 2;
/// Themes of one thread, and of several.
const THEMES: u64 = 3;

/// Operations of one thread, at most. The slots of a node that is replaced are frozen without a flush. So after each replaced node there are some lines more of which a crash leaves the old or the new image, and with 200 operations
/// nearly every crash point has hundreds of images.
const MOST_ALONE: usize = 80;

pub(crate) struct Testing;

impl Suite for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn histories(&self) -> [u64; 2] {
        // An insert that another thread completes is seldom.
        [24, 72]
    }

    fn theme_of(&self, bug: &crate::pmem::planted::Bug) -> Option<u64> {
        (bug.name == "loft.ReadWithoutFlush").then_some(MEETING)
    }

    fn themes(&self, _: usize) -> u64 {
        THEMES
    }

    fn history(&self, kind: Kind, theme: u64, seed: u64, mut size: Size) -> History {
        if size.threads < 2 {
            size.operations = size.operations.min(MOST_ALONE);
        }
        match (theme, size.threads) {
            (LOADS, 0..2) => loads(kind, seed, size.operations),
            (MEETING, _) => meeting(kind, seed, size),
            _ => kind.any_history(theme, seed, size),
        }
    }

    /// The usual histories have no root that lies behind free extents.
    fn rare_history(&self, kind: Kind, seed: u64, size: Size) -> Option<History> {
        (size.threads < 2 && seed % 32 == 31).then(|| root_behind_free_extents(kind, seed))
    }

    fn rare_seeds(&self) -> &'static [u64] {
        &[287]
    }

    /// Two threads of which one reads what the other is about to make durable.
    fn hunts(&self, kind: Kind) -> Vec<(History, u64)> {
        let size = Size {
            operations: 24,
            threads: 2,
        };
        let of_seed = |seed| (meeting(kind, seed, size), seed);
        (0..24).map(of_seed).collect()
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "loft.bucket",
            "loft.complete",
            "loft.copy",
            "loft.insert",
            "loft.move",
            "loft.node",
            "loft.recover",
            "loft.remove",
            "loft.replace",
            "loft.update",
        ]
    }

    fn changes(&self) -> &'static [StructureChange] {
        const LIST: &[StructureChange] = &[
            StructureChange::new("loft: node added"),
            StructureChange::new("loft: bucket added"),
            StructureChange::new("loft: node moved"),
            StructureChange::new("loft: inner node moved"),
            StructureChange::new("loft: nodes merged"),
            StructureChange::new("loft: root moved by a compaction"),
            StructureChange::new("loft: loaded"),
            StructureChange::new("loft: move finished after a crash"),
        ];
        LIST
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::seldom(NoFlush("loft.complete"), COMPLETED),
            EquivalentMutant::seldom(NoFence("loft.complete"), COMPLETED),
            EquivalentMutant::seldom(Swapped("loft.complete", "loft.insert"), COMPLETED),
            EquivalentMutant::seldom(
                Swapped("loft.insert", "loft.complete"),
                "an insert of one operation and the completion of another thread's record by the next: seldom neighbours, and seldom with a crash in between",
            ),
            EquivalentMutant::seldom(
                NoFence("loft.replace"),
                "the node that is replaced is used again only after an epoch, and its thread has made a fence until then, mostly",
            ),
            EquivalentMutant::seldom(NoFence("loft.bucket"), LINKED),
            EquivalentMutant::seldom(NoFence("loft.node"), LINKED),
            EquivalentMutant::new(EarlyCommit("loft.update"), "a value depends on nothing"),
            EquivalentMutant::new(EarlyCommit("loft.remove"), "a removal depends on nothing"),
            EquivalentMutant::seldom(
                EarlyCommit("loft.recover"),
                "between the last copy, which is a commit, and this one nothing is stored that has to be durable",
            ),
            EquivalentMutant::seldom(Swapped("loft.insert", "loft.copy"), IN_OLD_NODE),
            EquivalentMutant::seldom(Swapped("loft.update", "*"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("loft.remove", "*"), NO_TRANSACTION),
            EquivalentMutant::seldom(
                Swapped("loft.replace", "loft.*"),
                "what the same thread stores next lies in another node, mostly; where it lies in the successor, the loss is found",
            ),
            EquivalentMutant::seldom(
                Swapped("loft.insert", "pool.take*"),
                "the insert is over, and the extent is for the successor of its node: only another thread that has read the record in between shows it",
            ),
            EquivalentMutant::seldom(
                Swapped("loft.insert", "loft.replace"),
                "the insert begins the move, and the successor has the record too",
            ),
            EquivalentMutant::seldom(NoFlush("loft.move"), LINKED_BY_PARENT),
            EquivalentMutant::seldom(NoFence("loft.move"), LINKED_BY_PARENT),
            EquivalentMutant::seldom(Swapped("loft.move", "loft.*"), LINKED_BY_PARENT),
            EquivalentMutant::seldom(NoFlush("loft.thaw"), THAWED_AGAIN),
            EquivalentMutant::seldom(NoFence("loft.thaw"), THAWED_AGAIN),
            EquivalentMutant::seldom(
                Swapped("loft.insert", "pool.free"),
                "the insert returns after the move that frees the extent; and an extent that is freed later is found owned, and swept",
            ),
            EquivalentMutant::seldom(NoFlush("loft.settle"), SETTLED),
            EquivalentMutant::seldom(NoFence("loft.settle"), SETTLED),
            EquivalentMutant::seldom(
                Swapped("pool.take", "loft.*"),
                "the extent was taken ahead of the need for it",
            ),
        ];
        LIST
    }
}

/// Bulk loads, the removal of what they have loaded, and operations on another map.
fn loads(kind: Kind, seed: u64, operations: usize) -> History {
    let mut random = SmallRng::seed_from_u64(seed);
    let keys = Keys::ALL[random.random_range(0..Keys::ALL.len())];
    let mut other = Other::Absent;
    let mut one = |i: u64| match random.random_range(0..16) {
        _ if i.is_multiple_of(32) => {
            let count = random.random_range(0..40);
            let loaded = keys.some(0..count).into_iter();
            Operation::BulkLoad(loaded.zip(i..).collect())
        }
        0..6 => in_catalog(false, &mut random, &mut other),
        6 => Operation::Reopen,
        7..10 => Operation::Update(keys.key(random.random_range(0..40)), i),
        _ => Operation::Remove(keys.key(random.random_range(0..40))),
    };
    // Before each bulk load there are as many removals as records.
    let recorded = (0..operations as u64 / 2).map(&mut one).collect();
    History {
        keys,
        threads: vec![only_loads_into_empty(recorded)],
        ..History::new(kind)
    }
}

/// A map whose root was loaded behind the extents of another map, which are free when the pool shrinks.
fn root_behind_free_extents(kind: Kind, seed: u64) -> History {
    let mut random = SmallRng::seed_from_u64(seed);
    let keys = Keys::Ladder;
    let count = random.random_range(100..200);
    let before = keys.some(0..count);
    let loaded = keys.some(count..count + random.random_range(60..120));
    let mut operations = vec![Operation::CreateOther, Operation::TakeRun(4)];
    operations.extend(before.iter().map(|&key| Operation::Insert(key, 1)));
    operations.extend(before.iter().map(|&key| Operation::Remove(key)));
    operations.push(Operation::BulkLoad(
        loaded.iter().map(|&key| (key, 2)).collect(),
    ));
    History {
        keys,
        before: operations,
        threads: vec![vec![
            Operation::FreeRun,
            Operation::Shrink,
            Operation::Update(loaded[0], 3),
            Operation::Remove(loaded[1]),
            Operation::Insert(before[0], 4),
            Operation::Get(loaded[2]),
        ]],
        ..History::new(kind)
    }
}

/// Threads of which some write two records and remove them all the time, and the others read them, mostly.
fn meeting(kind: Kind, seed: u64, size: Size) -> History {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut value = 2;
    let mut operation = |thread: usize| {
        value += 1;
        let key = random.random_range(0..2);
        let is_writer = thread.is_multiple_of(2);
        match random.random_range(0..8) {
            0..6 if is_writer => Operation::Insert(key, value),
            0..6 => Operation::Get(key),
            // Whoever inserts next finds the key pending, if another thread does, too.
            _ if is_writer => Operation::Remove(key),
            _ => Operation::Insert(key, value),
        }
    };
    let per_thread = size.operations / size.threads.max(1);
    let threads = (0..size.threads)
        .map(|thread| (0..per_thread).map(|_| operation(thread)).collect())
        .collect();
    History {
        before: vec![Operation::Insert(0, 1), Operation::Insert(1, 2)],
        threads,
        ..History::new(kind)
    }
}
