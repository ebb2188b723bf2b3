//! Histories for the Hilbert index: leaves that split, merge and run empty, records that are relocated, directories, levels that come
//! and go.

use super::Bug;
use crate::engines::SpatialKind;
use crate::engines::testing::Mutant;
use crate::engines::testing::SpatialOperation::{BulkLoad, Insert, Remove};
use crate::engines::testing::{
    EquivalentMutant, History, Lay, Places, SPATIAL_THEMES, SPATIAL_THEMES_TOGETHER, Size,
    StructureChange, Suite, places_alone, places_together,
};
use crate::spatial::GeometryType;
use crate::{Box2, HilbertOptions, Point2};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// What the crash checker has to know of the Hilbert index.
pub(crate) struct Testing;

type SpatialHistory = History<SpatialKind>;
const NO_TRANSACTION: &str = "a batch is not one transaction";
const HINT: &str = "a signpost is a hint, without which recovery only takes longer";
const FREED_LATER: &str = "an extent that is freed later is found owned, and swept";

impl Suite<SpatialKind> for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn theme_of(&self, bug: &crate::pmem::planted::Bug) -> Option<u64> {
        match bug.name {
            "hilbert.MergesIgnored" => Some(8),
            "hilbert.UnlockBeforeFence" => Some(9),
            _ => None,
        }
    }

    fn commits(&self) -> &'static [&'static str] {
        &[
            "hilbert.arrival",
            "hilbert.change",
            "hilbert.grid",
            "hilbert.learn",
            "hilbert.load",
            "hilbert.move-head",
            "hilbert.move-root",
            "hilbert.reach",
            "hilbert.recover",
            "hilbert.recovered",
            "hilbert.relink",
            "hilbert.relocate",
            "hilbert.relocate.leaf",
            "hilbert.relocated",
        ]
    }

    fn changes(&self) -> &'static [StructureChange] {
        const LIST: &[StructureChange] = &[
            StructureChange::with_variants("leaf split", 2),
            // As many records moved along as there is room for, or fewer.
            StructureChange::with_variants("entry moving", 4),
            StructureChange::new("records added together"),
            StructureChange::new("leaf merge"),
            StructureChange::with_variants("unlink of an emptied leaf", 2),
            StructureChange::new("inner split"),
            StructureChange::new("inner merge"),
            StructureChange::new("root growth"),
            StructureChange::new("root shrink"),
            StructureChange::new("grid chosen"),
            StructureChange::new("grid learned again"),
            StructureChange::new("reach raised"),
            StructureChange::new("signpost added"),
            StructureChange::new("signpost removed"),
            StructureChange::new("directory made"),
            StructureChange::new("relocation within a leaf"),
            StructureChange::new("relocation between leaves"),
            StructureChange::new("relocation finished by recovery"),
            StructureChange::new("empty leaf relinked"),
            StructureChange::new("bulk load"),
            StructureChange::new("leaf moved"),
            StructureChange::new("root block moved"),
        ];
        LIST
    }

    fn histories(&self) -> [u64; 2] {
        [48, 24]
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(
                Mutant::NoFence("hilbert.load.part"),
                "each thread's own; of one thread, the fence before the commit does for both",
            ),
            EquivalentMutant::new(
                Mutant::NoFence("hilbert.grid"),
                "only the split needs the grid, and has a fence before its commit",
            ),
            EquivalentMutant::new(
                Mutant::NoFence("hilbert.learn"),
                "the insert that caused it has a fence before its own commit, and returns only afterwards",
            ),
            EquivalentMutant::seldom(
                Mutant::Swapped("hilbert.learn", "hilbert.*"),
                "what is committed next ends the insert that caused the new grid, which has not returned before",
            ),
            EquivalentMutant::seldom(
                Mutant::Swapped("hilbert.*", "hilbert.learn"),
                "the new chain and the new root block have what was changed in the old ones",
            ),
            EquivalentMutant::new(
                Mutant::Swapped("hilbert.move-head", "hilbert.relink"),
                "an empty leaf that stays in the chain does no harm",
            ),
            EquivalentMutant::seldom(
                Mutant::Swapped("pool.free", "lbtree.move-head"),
                FREED_LATER,
            ),
            EquivalentMutant::new(
                Mutant::NoFence("hilbert.move-root"),
                "leaves move afterwards, and the fence of the first one does for both",
            ),
            EquivalentMutant::new(
                Mutant::NoFence("hilbert.recovered"),
                "the next fence of the thread that opens does for both; a change that a second recovery undoes has not returned before it",
            ),
            EquivalentMutant::new(
                Mutant::Swapped("hilbert.arrival", "hilbert.grid"),
                NO_TRANSACTION,
            ),
            EquivalentMutant::new(
                Mutant::Swapped("hilbert.arrival", "hilbert.reach"),
                NO_TRANSACTION,
            ),
            EquivalentMutant::new(
                Mutant::Swapped("hilbert.change", "hilbert.reach"),
                NO_TRANSACTION,
            ),
            EquivalentMutant::new(Mutant::Swapped("hilbert.arrival", "lbtree.remove"), HINT),
            EquivalentMutant::new(Mutant::Swapped("hilbert.change", "lbtree.remove"), HINT),
            EquivalentMutant::new(Mutant::Swapped("hilbert.change", "lbtree.switch"), HINT),
            EquivalentMutant::new(Mutant::Swapped("hilbert.relocated", "lbtree.remove"), HINT),
            EquivalentMutant::new(Mutant::Swapped("hilbert.relink", "lbtree.remove"), HINT),
            EquivalentMutant::new(Mutant::Swapped("hilbert.relink", "lbtree.move*"), HINT),
            EquivalentMutant::seldom(Mutant::Swapped("lbtree.insert", "hilbert.*"), HINT),
            EquivalentMutant::new(
                Mutant::Swapped("hilbert.move-root", "hilbert.move-head"),
                "the old root block and the leaf that it leads to are there until their extents are freed",
            ),
            EquivalentMutant::new(
                Mutant::Swapped("hilbert.relocated", "hilbert.change"),
                "recovery undoes a merge, whose right leaf is freed only afterwards",
            ),
            EquivalentMutant::new(Mutant::Swapped("pool.free", "hilbert.change"), FREED_LATER),
            EquivalentMutant::seldom(
                Mutant::Swapped("hilbert.change", "pool.free"),
                "the leaves of an extent were unlinked before the change, unless the change is a merge that empties the extent",
            ),
            EquivalentMutant::new(Mutant::Swapped("pool.free", "hilbert.relink"), FREED_LATER),
            EquivalentMutant::new(Mutant::Swapped("pool.free", "lbtree.remove"), FREED_LATER),
        ];
        LIST
    }

    /// Not yet: a search may begin again for ever.
    fn ends_when_damaged_in_use(&self) -> bool {
        false
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 {
            SPATIAL_THEMES
        } else {
            SPATIAL_THEMES_TOGETHER
        }
    }

    fn history(&self, kind: SpatialKind, theme: u64, seed: u64, size: Size) -> SpatialHistory {
        let mut random = SmallRng::seed_from_u64(seed);
        let history = if size.threads < 2 {
            places_alone(kind, theme, size.operations, &mut random)
        } else {
            places_together(kind, theme, size, &mut random)
        };
        with_extent(history, &mut random)
    }

    fn rare_history(&self, _: SpatialKind, seed: u64, size: Size) -> Option<SpatialHistory> {
        (size.threads < 2 && seed % 64 == 63).then(|| tall(seed, size.operations))
    }

    fn rare_seeds(&self) -> &'static [u64] {
        // An index that grows, and one that shrinks; crashes between the commit of a relocation and its end; a grid learned again, after which a
        // compaction moves the head and the root block into the free blocks.
        &[63, 127, 13, 21]
    }
}

/// In half of the histories the extent is declared; always where places lie on a line, whose order the codes then follow.
fn with_extent(mut history: SpatialHistory, random: &mut SmallRng) -> SpatialHistory {
    let has_two_axes = matches!(history.keys.of, GeometryType::Point2 | GeometryType::Box2);
    if has_two_axes && (history.keys.lay == Lay::Line || random.random_ratio(1, 2)) {
        history.options = declared().into();
    }
    history
}

fn declared() -> HilbertOptions {
    let corner = |at| Point2::new(at, at);
    HilbertOptions::default().extent(Box2::new(corner(0.0), corner(4096.0)))
}

/// An index with so many leaves that its root gets another level as it grows, or loses it as it shrinks.
fn tall(seed: u64, operations: usize) -> SpatialHistory {
    let operations = operations as u64;
    let grows = (seed / 64).is_multiple_of(2);
    let loaded = if grows { 1_500 } else { 1_800 };
    let keys = Places {
        of: GeometryType::Point2,
        lay: Lay::Line,
        payloads: 3_000,
    };
    let load = BulkLoad((0..loaded).map(|payload| (payload, 0)).collect());
    let removals = || (0..loaded).rev().map(|payload| Remove(payload, 0));
    // About where the last but one of the upper nodes goes.
    let removed = if grows { 0 } else { SHRINKS_AFTER };
    let recorded: Vec<_> = if grows {
        let new = loaded..loaded + operations;
        new.map(|payload| Insert(payload, 0)).collect()
    } else {
        let left = removals().skip(removed);
        left.take(operations as usize).collect()
    };
    History {
        options: declared().into(),
        keys,
        before: std::iter::once(load)
            .chain(removals().take(removed))
            .collect(),
        threads: vec![recorded],
    }
}

/// Records that are removed from the right before the root of an index that shrinks has one child left.
const SHRINKS_AFTER: usize = 420;
