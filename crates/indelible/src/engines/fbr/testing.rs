//! Histories for the FBR-tree.

use super::Bug;
use crate::engines::SpatialKind;
use crate::engines::testing::{StructureChange, Suite};

/// What the crash checker has to know of the FBR-tree.
pub(crate) struct Testing;

impl Suite<SpatialKind> for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "fbr.apply",
            "fbr.leaf",
            "fbr.load",
            "fbr.log",
            "fbr.logged",
            "fbr.move-root",
            "fbr.redo",
            "fbr.redone",
            "fbr.root",
            "fbr.settled",
            "fbr.single",
        ]
    }

    fn changes(&self) -> &'static [StructureChange] {
        const LIST: &[StructureChange] = &[StructureChange::new("leaf split")];
        LIST
    }
}
