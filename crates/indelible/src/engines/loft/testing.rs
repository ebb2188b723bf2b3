//! What the crash checker has to know of LOFT.

use super::Bug;
use crate::engines::testing::{EquivalentMutant, StructureChange, Suite};

pub(crate) struct Testing;

impl Suite for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn histories(&self) -> [u64; 2] {
        [240, 120]
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "loft.bucket",
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
        &[]
    }
}
