//! What the crash checker has to know of LOFT.

use super::Bug;
use crate::engines::Kind;
use crate::engines::testing::Mutant::{EarlyCommit, NoFence, NoFlush, Swapped};
use crate::engines::testing::{
    EquivalentMutant, Family, History, Operation, Size, StructureChange, Suite,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const COMPLETED: &str = "the thread that inserts makes the slot durable too, and recovery takes a pending slot for a dead one";
const LINKED: &str = "the fence of what is then stored behind the link does for both, but for another thread's store in between";
const IN_OLD_NODE: &str = "what is copied is in the old node too";
const NO_TRANSACTION: &str = "a batch is not one transaction";

/// The theme of several threads of which some write two records all the time and the others read them.
const MEETING: u64 = 2;

pub(crate) struct Testing;

impl Suite for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn histories(&self) -> [u64; 2] {
        [60, 60]
    }

    fn theme_of(&self, bug: &crate::pmem::planted::Bug) -> Option<u64> {
        (bug.name == "loft.ReadWithoutFlush").then_some(MEETING)
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 { MEETING } else { MEETING + 1 }
    }

    fn history(&self, kind: Kind, theme: u64, seed: u64, size: Size) -> History {
        if theme != MEETING {
            return kind.any_history(theme, seed, size);
        }
        let mut random = SmallRng::seed_from_u64(seed);
        let mut value = 2;
        let mut operation = |thread: usize| {
            value += 1;
            let key = random.random_range(0..2);
            if thread.is_multiple_of(2) {
                Operation::Insert(key, value)
            } else {
                Operation::Get(key)
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
            StructureChange::new("loft: loaded"),
            StructureChange::new("loft: move finished after a crash"),
        ];
        LIST
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::seldom(NoFlush("loft.complete"), COMPLETED),
            EquivalentMutant::seldom(NoFence("loft.complete"), COMPLETED),
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
                Swapped("loft.replace", "loft.bucket"),
                "until the parent leads to the new node, the old one leads to it",
            ),
            EquivalentMutant::seldom(
                Swapped("pool.take", "loft.*"),
                "the extent was taken ahead of the need for it",
            ),
        ];
        LIST
    }
}
