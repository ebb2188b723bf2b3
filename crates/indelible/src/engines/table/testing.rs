//! What the crash checker has to know of the table.

use super::Bug;
use crate::engines::testing::Mutant::{EarlyCommit, NoFence, Swapped};
use crate::engines::testing::{EquivalentMutant, StructureChange, Suite};

pub(crate) struct Testing;

const NO_TRANSACTION: &str = "a batch is not one transaction";

impl Suite for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn histories(&self) -> [u64; 2] {
        [600, 240]
    }

    fn harmless_bugs(&self) -> &'static [(&'static str, &'static str)] {
        &[
            (
                "pool.ReuseWithoutEpoch",
                "a thread reads blocks only while it holds the mutex",
            ),
            ("pool.CreateCommitsEarly", "a new table has no blocks"),
            (
                "pool.DropFreesFirst",
                "the other map of a history has no blocks",
            ),
            ("host.ForgetGeneration", "opening counts all records"),
        ]
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "table.grow",
            "table.insert",
            "table.load",
            "table.move",
            "table.remove",
            "table.update",
        ]
    }

    fn changes(&self) -> &'static [StructureChange] {
        const LIST: &[StructureChange] = &[
            StructureChange::new("block added"),
            StructureChange::new("table rebuilt"),
            StructureChange::new("block moved"),
        ];
        LIST
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(EarlyCommit("table.update"), "a value depends on nothing"),
            EquivalentMutant::new(EarlyCommit("table.remove"), "a removal depends on nothing"),
            EquivalentMutant::new(
                NoFence("table.grow"),
                "the fences of the insert that needs the block do for both",
            ),
            EquivalentMutant::new(
                Swapped("table.grow", "table.insert"),
                "the insert that needs the block has not returned",
            ),
            EquivalentMutant::new(Swapped("table.insert", "table.*"), NO_TRANSACTION),
            EquivalentMutant::new(Swapped("table.update", "table.*"), NO_TRANSACTION),
        ];
        LIST
    }
}
