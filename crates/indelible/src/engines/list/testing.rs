//! What the crash checker has to know of the list.

use super::Bug;
use crate::Kind;
use crate::engines::testing::Mutant::{EarlyCommit, Swapped};
use crate::engines::testing::Operation::BulkLoad;
use crate::engines::testing::{
    EquivalentMutant, History, Size, StructureChange, Suite, any_history,
};

pub(crate) struct Testing;

const OWNED: &str = "an extent without a block in use is given back by the next open";
const NO_TRANSACTION: &str = "a batch is not one transaction";

impl Suite for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn harmless_bugs(&self) -> &'static [(&'static str, &'static str)] {
        &[
            (
                "pool.ReuseWithoutEpoch",
                "a thread reads blocks only while it holds the mutex",
            ),
            ("pool.CreateCommitsEarly", "a new list has no blocks"),
            (
                "pool.DropFreesFirst",
                "the other map of a history has no blocks",
            ),
            ("host.ForgetGeneration", "opening counts all records"),
        ]
    }

    fn commits(&self) -> &'static [&'static str] {
        &["list.link", "list.load", "list.remove", "list.update"]
    }

    fn changes(&self) -> &'static [StructureChange] {
        &[]
    }

    /// The usual histories have no bulk load.
    fn rare_history(&self, kind: Kind, seed: u64, size: Size) -> Option<History> {
        if size.threads > 1 || seed % 16 != 15 {
            return None;
        }
        let mut history = any_history(kind, 1, seed, size);
        let keys = history.keys.some(0..history.before.len() as u64);
        history.before.clear();
        history.threads[0].insert(0, BulkLoad(keys.into_iter().zip(0..).collect()));
        Some(history)
    }

    fn rare_seeds(&self) -> &'static [u64] {
        &[15]
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(EarlyCommit("list.update"), "a value depends on nothing"),
            EquivalentMutant::new(Swapped("pool.free", "list.link"), OWNED),
            EquivalentMutant::seldom(Swapped("list.link", "list.update"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("list.update", "list.link"), NO_TRANSACTION),
        ];
        LIST
    }
}
