//! What the crash checker has to know of the PM-RTree: the histories of all spatial indexes, and one more.

use super::Bug;
use crate::engines::SpatialKind;

use crate::engines::testing::SpatialOperation::{BulkLoad, Insert, Remove, Shrink};
use crate::engines::testing::{
    EquivalentMutant, History, Lay, Places, SPATIAL_THEMES, SPATIAL_THEMES_TOGETHER, Size,
    StructureChange, Suite, places_alone, places_together,
};
use crate::spatial::GeometryType;
use rand::SeedableRng;
use rand::rngs::SmallRng;

pub(crate) struct Testing;

impl Suite<SpatialKind> for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "pmr.apply",
            "pmr.decide",
            "pmr.enlarge",
            "pmr.insert",
            "pmr.mark",
            "pmr.move-descriptors",
            "pmr.recover",
            "pmr.relocate",
            "pmr.remove",
        ]
    }

    fn changes(&self) -> &'static [StructureChange] {
        const LIST: &[StructureChange] = &[
            // Halves of several sizes.
            StructureChange::with_variants("pmr: leaf split", 3),
            StructureChange::with_variants("pmr: inner split", 2),
            // A leaf, and an inner node.
            StructureChange::with_variants("pmr: node copied", 2),
            StructureChange::with_variants("pmr: node moved", 2),
            StructureChange::with_variants("pmr: nodes merged", 2),
            StructureChange::with_variants("pmr: empty node unlinked", 2),
            // Over leaves, and over inner nodes.
            StructureChange::with_variants("pmr: root growth", 2),
            StructureChange::new("pmr: root shrink"),
            StructureChange::new("pmr: leaf planted"),
            // Of a child that is a leaf, and of one that is not.
            StructureChange::with_variants("pmr: box enlarged", 2),
            StructureChange::new("pmr: relocation within a leaf"),
            StructureChange::new("pmr: relocation between leaves"),
            StructureChange::new("pmr: change helped"),
            StructureChange::new("pmr: search announced"),
            // Taken back, and done.
            StructureChange::with_variants("pmr: change finished by recovery", 2),
            StructureChange::new("pmr: bulk load"),
            StructureChange::new("pmr: descriptors moved"),
        ];
        LIST
    }

    fn histories(&self) -> [u64; 2] {
        [54, 24]
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[];
        LIST
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 {
            SPATIAL_THEMES
        } else {
            SPATIAL_THEMES_TOGETHER
        }
    }

    fn rare_history(
        &self,
        kind: SpatialKind,
        seed: u64,
        size: Size,
    ) -> Option<History<SpatialKind>> {
        (size.threads < 2 && seed % 64 == 63).then(|| thin(kind))
    }

    fn rare_seeds(&self) -> &'static [u64] {
        &[63]
    }

    fn hunts(&self, kind: SpatialKind) -> Vec<(History<SpatialKind>, u64)> {
        vec![(thin(kind), 0)]
    }

    fn history(
        &self,
        kind: SpatialKind,
        theme: u64,
        seed: u64,
        size: Size,
    ) -> History<SpatialKind> {
        let mut random = SmallRng::seed_from_u64(seed);
        // The theme with the catalog comes first: bugs of the catalog are soonest found there.
        let theme = match (size.threads, theme) {
            (1, 0) => 3,
            (1, 3) => 0,
            (_, theme) => theme,
        };
        match (size.threads < 2, theme) {
            // Batches, whose records are inserted one by one.
            (true, 2) => places_alone(kind, theme, size.operations / 4, &mut random),
            (true, _) => places_alone(kind, theme, size.operations, &mut random),
            (false, _) => places_together(kind, theme, size, &mut random),
        }
    }
}

/// A tree that has become thin, and is compacted: its nodes are merged, and moved to the front.
fn thin(kind: SpatialKind) -> History<SpatialKind> {
    const RECORDS: u64 = 150;
    let keys = Places {
        of: GeometryType::Point2,
        lay: Lay::Line,
        payloads: RECORDS,
    };
    let load = BulkLoad((0..RECORDS).map(|payload| (payload, 0)).collect());
    let gone = (0..RECORDS).filter(|payload| payload % 3 > 0);
    History {
        keys,
        before: std::iter::once(load)
            .chain(gone.map(|payload| Remove(payload, 0)))
            .collect(),
        threads: vec![vec![Shrink, Insert(1, 0), Remove(0, 0)]],
        ..History::new(kind)
    }
}
