//! What the crash checker has to know of the list.

use super::Bug;
use crate::engines::testing::Mutant::{EarlyCommit, Swapped};
use crate::engines::testing::{EquivalentMutant, StructureChange, Suite};

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

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(EarlyCommit("list.update"), "a value depends on nothing"),
            EquivalentMutant::new(EarlyCommit("list.remove"), "a removal depends on nothing"),
            EquivalentMutant::new(Swapped("pool.free", "list.link"), OWNED),
            EquivalentMutant::seldom(Swapped("list.link", "list.update"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("list.update", "list.link"), NO_TRANSACTION),
        ];
        LIST
    }
}
