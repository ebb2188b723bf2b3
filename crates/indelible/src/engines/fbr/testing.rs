//! Histories for the FBR-tree: those of all spatial indexes, half of them with leaves flushed alone.

use super::Bug;
use crate::FbrOptions;
use crate::engines::SpatialKind;
use crate::engines::testing::{
    EquivalentMutant, History, SPATIAL_THEMES, SPATIAL_THEMES_TOGETHER, Size, StructureChange,
    Suite, places_alone, places_together,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

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
        const LIST: &[StructureChange] = &[
            // Halves of several sizes.
            StructureChange::with_variants("leaf split", 3),
            StructureChange::with_variants("inner split", 2),
            // Of a leaf, and of an inner node.
            StructureChange::with_variants("root growth", 2),
            StructureChange::new("root shrink"),
            // Of a child that is a leaf, and of one that is not.
            StructureChange::with_variants("box enlarged", 2),
            // With inner nodes that led to the leaf alone, and without.
            StructureChange::with_variants("empty leaf unlinked", 2),
            StructureChange::new("relocation within a leaf"),
            StructureChange::new("relocation between leaves"),
            StructureChange::new("change finished by recovery"),
            StructureChange::new("bulk load"),
            StructureChange::new("thin tree rebuilt"),
            // A leaf, and an inner node.
            StructureChange::with_variants("node moved", 2),
            StructureChange::new("root block moved"),
            // From one leaf, and from several.
            StructureChange::with_variants("inner nodes rebuilt", 2),
            StructureChange::new("inner nodes settled"),
        ];
        LIST
    }

    fn histories(&self) -> [u64; 2] {
        [48, 24]
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        &[]
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 {
            SPATIAL_THEMES
        } else {
            SPATIAL_THEMES_TOGETHER
        }
    }

    fn history(
        &self,
        kind: SpatialKind,
        theme: u64,
        seed: u64,
        size: Size,
    ) -> History<SpatialKind> {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut history = if size.threads < 2 {
            places_alone(kind, theme, size.operations, &mut random)
        } else {
            places_together(kind, theme, size, &mut random)
        };
        if random.random_ratio(1, 2) {
            history.options = FbrOptions::default().flush_leaves_only().into();
        }
        history
    }
}
