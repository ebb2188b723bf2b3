//! What the crash checker has to know of the table.

use super::Bug;
use crate::engines::testing::Mutant::EarlyCommit;
use crate::engines::testing::{EquivalentMutant, StructureChange, Suite};

pub(crate) struct Testing;

impl Suite for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
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
        ];
        LIST
    }
}
