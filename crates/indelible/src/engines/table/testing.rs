//! What the crash checker has to know of the table.

use super::Bug;
use crate::engines::testing::Mutant::{EarlyCommit, Swapped};
use crate::engines::testing::{EquivalentMutant, StructureChange, Suite};

pub(crate) struct Testing;

const OWNED: &str = "an extent without a block in use is given back by the next open";
const NO_TRANSACTION: &str = "a batch is not one transaction";
const REUSED: &str =
    "a batch is not one transaction, unless the value comes late into a block that is in use again";

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
                "a thread reads nodes only while it holds the mutex",
            ),
            ("pool.CreateCommitsEarly", "a new table has no nodes"),
            (
                "pool.DropFreesFirst",
                "the other map of a history has no nodes",
            ),
            ("host.ForgetGeneration", "opening counts all records"),
        ]
    }

    fn commits(&self) -> &'static [&'static str] {
        &["table.remove", "table.replace", "table.update"]
    }

    /// A node that is inserted into, a split, a new table, a table that becomes empty, a merge.
    fn changes(&self) -> &'static [StructureChange] {
        const LIST: &[StructureChange] = &[StructureChange::with_variants("nodes replaced", 5)];
        LIST
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(EarlyCommit("table.update"), "a value depends on nothing"),
            EquivalentMutant::new(EarlyCommit("table.remove"), "a removal depends on nothing"),
            EquivalentMutant::new(Swapped("pool.free", "table.replace"), OWNED),
            EquivalentMutant::seldom(Swapped("table.replace", "table.update"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("table.update", "table.replace"), REUSED),
        ];
        LIST
    }
}
