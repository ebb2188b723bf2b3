//! Histories for the FBR-tree: those of all spatial indexes with all nodes flushed, and one more theme with leaves flushed alone.
//!
//! Lines of inner nodes that are not flushed stay in doubt until the index is closed, so each crash of such a history has as many images as the
//! checker takes. These histories are short.

use super::Bug;
use crate::FbrOptions;
use crate::engines::SpatialKind;
use crate::engines::testing::Mutant::{EarlyCommit, NoFence, NoFlush, Swapped};
use crate::engines::testing::SpatialOperation::{
    BulkLoad, Insert, Relocate, Remove, Reopen, Shrink, Window,
};
use crate::engines::testing::{
    EVERYTHING, EquivalentMutant, History, Lay, Places, SPATIAL_THEMES, SPATIAL_THEMES_TOGETHER,
    Size, StructureChange, Suite, places_alone, places_together,
};
use crate::spatial::GeometryType;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// What the crash checker has to know of the FBR-tree.
pub(crate) struct Testing;

const SAME_RECORDS: &str = "the old root and the new one lead to the same records, and the block of the one that is not the root is not reused before the next fence";
const SAME_WORDS: &str = "both root blocks lead to the same nodes; the old one, and the nodes that it leads to, are there until their extents are freed";
const DONE_AGAIN: &str = "recovery does the stores of the log once more, in words that the same operation does not change afterwards, of nodes that stay";
const NO_TRANSACTION: &str = "a batch is not one transaction; and a removal that empties a leaf is done, too, when the leaf is unlinked";
const FREED_LATER: &str = "an extent that is freed later is found owned, and swept";

impl Suite<SpatialKind> for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn theme_of(&self, bug: &crate::pmem::planted::Bug) -> Option<u64> {
        match bug.name {
            // One thread changes records in place, and the other one looks at all of them.
            "fbr.UnlockBeforeFence" => Some(8),
            "fbr.InnerNodesBelieved" => Some(SPATIAL_THEMES_TOGETHER),
            // Records run to and fro.
            "fbr.RelocationNotAnnounced" => Some(5),
            _ => None,
        }
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

    /// Links are followed unchecked once all nodes have been claimed.
    fn ends_when_damaged_in_use(&self) -> bool {
        false
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
        [54, 24]
    }

    fn equivalent_mutants(&self) -> &'static [EquivalentMutant] {
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(
                NoFence("fbr.redone"),
                "the next fence of the thread that opens does for both; nothing that a second recovery does again has changed before it",
            ),
            EquivalentMutant::new(
                EarlyCommit("fbr.redo"),
                "what the log says is durable already",
            ),
            EquivalentMutant::new(
                NoFence("fbr.settle"),
                "inner nodes are believed only after the clean close of the pool, which has fences",
            ),
            EquivalentMutant::new(
                NoFence("fbr.settled"),
                "the host writes the number of records next, and its fence does for both",
            ),
            EquivalentMutant::new(
                NoFlush("fbr.settled"),
                "without the generation the open builds the inner nodes anew, from leaves that are durable",
            ),
            EquivalentMutant::new(NoFence("fbr.root"), SAME_RECORDS),
            EquivalentMutant::new(NoFence("fbr.move-root"), SAME_WORDS),
            EquivalentMutant::new(Swapped("fbr.move-root", "fbr.log"), SAME_WORDS),
            EquivalentMutant::new(Swapped("fbr.move-root", "fbr.single"), SAME_WORDS),
            EquivalentMutant::new(Swapped("fbr.root", "fbr.single"), SAME_RECORDS),
            EquivalentMutant::seldom(Swapped("fbr.logged", "fbr.single"), DONE_AGAIN),
            EquivalentMutant::new(Swapped("fbr.logged", "fbr.root"), DONE_AGAIN),
            EquivalentMutant::new(Swapped("fbr.logged", "fbr.leaf"), DONE_AGAIN),
            EquivalentMutant::new(Swapped("fbr.logged", "pool.free"), DONE_AGAIN),
            EquivalentMutant::seldom(Swapped("fbr.logged", "pool.take"), DONE_AGAIN),
            EquivalentMutant::new(Swapped("fbr.leaf", "fbr.single"), NO_TRANSACTION),
            EquivalentMutant::new(Swapped("fbr.leaf", "fbr.root"), NO_TRANSACTION),
            EquivalentMutant::new(Swapped("fbr.leaf", "fbr.log"), NO_TRANSACTION),
            EquivalentMutant::new(Swapped("pool.free", "fbr.single"), FREED_LATER),
            EquivalentMutant::new(Swapped("pool.free", "fbr.move-root"), FREED_LATER),
            EquivalentMutant::new(Swapped("pool.free", "fbr.log"), FREED_LATER),
            EquivalentMutant::new(Swapped("pool.free", "fbr.root"), FREED_LATER),
        ];
        LIST
    }

    fn themes(&self, threads: usize) -> u64 {
        1 + if threads < 2 {
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
            (true, SPATIAL_THEMES) => leaves_only(size, &mut random),
            // Batches, whose records are inserted one by one.
            (true, 2) => places_alone(kind, theme, size.operations / 4, &mut random),
            (true, _) => places_alone(kind, theme, size.operations, &mut random),
            (false, SPATIAL_THEMES_TOGETHER) => leaves_only(size, &mut random),
            (false, _) => places_together(kind, theme, size, &mut random),
        }
    }
}

/// A tree that has become thin, and is compacted: built anew behind its old blocks, and then moved to the front.
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

/// Operations of a history with leaves flushed alone, of all threads.
const FEW: usize = 20;

/// Leaves are flushed alone: records come and go, are relocated, and the pool is closed and opened.
fn leaves_only(size: Size, random: &mut SmallRng) -> History<SpatialKind> {
    let is_alone = size.threads < 2;
    let keys = Places {
        of: [GeometryType::Point2, GeometryType::Box2][random.random_range(0..2)],
        lay: [Lay::Clusters, Lay::Spread, Lay::Equal][random.random_range(0..3)],
        payloads: 24,
    };
    let there = random.random_range(0..keys.payloads);
    let mut one = || {
        let payload = random.random_range(0..keys.payloads);
        let place = random.random_range(0..Places::PLACES);
        match random.random_range(0..12) {
            0..4 => Insert(payload, place),
            4..6 => Remove(payload, 0),
            6..9 => Relocate(payload, 0, place),
            9 => Window(EVERYTHING),
            10 => Shrink,
            _ if is_alone => Reopen,
            _ => Insert(payload, 0),
        }
    };
    let per_thread = FEW.min(size.operations) / size.threads;
    let threads = (0..size.threads).map(|_| (0..per_thread).map(|_| one()).collect());
    let threads = threads.collect();
    History {
        options: FbrOptions::default().flush_leaves_only().into(),
        keys,
        before: (0..there).map(|payload| Insert(payload, 0)).collect(),
        threads,
    }
}
