//! What the crash checker has to know of the PM-RTree: the histories of all spatial indexes, and one more.

use super::Bug;
use crate::engines::SpatialKind;
use crate::engines::testing::Mutant::{EarlyCommit, NoFence, Swapped};

use crate::engines::testing::SpatialOperation::{
    BulkLoad, Insert, Relocate, Remove, Shrink, Window,
};
use crate::engines::testing::{
    EVERYTHING, EquivalentMutant, History, Lay, Places, SPATIAL_THEMES, SPATIAL_THEMES_TOGETHER,
    Size, StructureChange, Suite, places_alone, places_together,
};
use crate::spatial::GeometryType;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Operations of one thread, at most. Each box that grows and each node that is replaced is several durable steps here, and a node of the checker's size
/// is replaced every few changes, so that 200 operations have as many events as 600 of the other engines.
const MOST_ALONE: usize = 60;

const FREED_LATER: &str = "an extent that is freed later is found owned, and swept";
const NO_TRANSACTION: &str = "a removal that empties a leaf is done, too, when the leaf is unlinked; and a batch is not one transaction";

/// What the crash checker has to know of the PM-RTree.
pub(crate) struct Testing;

impl Suite<SpatialKind> for Testing {
    fn bugs(&self) -> &'static [crate::pmem::planted::Bug] {
        Bug::ALL
    }

    fn theme_of(&self, bug: &crate::pmem::planted::Bug) -> Option<u64> {
        match bug.name {
            // Records run to and fro.
            "pmr.RelocationNotCounted" => Some(5),
            "pmr.DescriptorReusedEarly" => Some(RACE),
            _ => None,
        }
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

    /// Not yet: an operation may begin again for ever.
    fn ends_when_damaged_in_use(&self) -> bool {
        false
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
        const LIST: &[EquivalentMutant] = &[
            EquivalentMutant::new(
                NoFence("pmr.recover"),
                "the next fence of the thread that opens does for both; a second recovery does again what is not durable",
            ),
            EquivalentMutant::seldom(
                NoFence("pmr.move-descriptors"),
                "the old block is used again after further fences of the thread that has moved it",
            ),
            EquivalentMutant::new(EarlyCommit("pmr.remove"), "a removal depends on nothing"),
            EquivalentMutant::new(Swapped("pool.free", "pmr.mark"), FREED_LATER),
            EquivalentMutant::seldom(Swapped("pmr.apply", "pool.free"), FREED_LATER),
            EquivalentMutant::seldom(Swapped("pmr.remove", "pmr.mark"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("pmr.decide", "pmr.insert"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("pmr.insert", "pmr.decide"), NO_TRANSACTION),
            EquivalentMutant::seldom(Swapped("pmr.decide", "pool.free"), FREED_LATER),
            EquivalentMutant::seldom(
                Swapped("pmr.decide", "pmr.relocate"),
                "the change makes room for the record that is relocated, and the relocation returns after it",
            ),
            EquivalentMutant::seldom(
                Swapped("pmr.insert", "pmr.apply"),
                "the insert has not returned when its thread finishes the change of another one",
            ),
            EquivalentMutant::seldom(
                Swapped("pmr.apply", "pmr.remove"),
                "recovery does what is applied once more, in a word of another node than that of the removal",
            ),
            EquivalentMutant::seldom(
                Swapped("pmr.decide", "pmr.enlarge"),
                "between the two the same thread applies the change, unless others have",
            ),
            EquivalentMutant::seldom(
                Swapped("pmr.*", "pool.take"),
                "the extent was taken for another change, unless a thread went on with this one meanwhile",
            ),
            EquivalentMutant::seldom(
                Swapped("pmr.mark", "pmr.enlarge"),
                "two commits of two changes, of which the first has failed",
            ),
            EquivalentMutant::seldom(
                Swapped("pmr.move-descriptors", "pmr.mark"),
                "the next change has a descriptor of another block, mostly",
            ),
        ];
        LIST
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 {
            SPATIAL_THEMES
        } else {
            SPATIAL_THEMES_TOGETHER + 2
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

    fn not_provoked(&self) -> &'static [&'static str] {
        &[
            // The index is created first in the pool of a history, and so its descriptors lie at the front. A test of the engine moves them.
            "pmr.move-descriptors",
            "pmr: descriptors moved",
            // Two threads have to take the last two leaves out of the tree before either looks at the root.
            "pmr: leaf planted",
        ]
    }

    fn hunts(&self, kind: SpatialKind) -> Vec<(History<SpatialKind>, u64)> {
        let size = Size {
            operations: 24,
            threads: 2,
        };
        let meeting = |seed| {
            let mut random = SmallRng::seed_from_u64(seed);
            (meeting(kind, size, &mut random), seed)
        };
        let thin = std::iter::once((thin(kind), 0));
        thin.chain((0..MEETINGS).map(meeting)).collect()
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
        let operations = size.operations.min(MOST_ALONE);
        match (size.threads < 2, theme) {
            // Batches, whose records are inserted one by one.
            (true, 2) => places_alone(kind, theme, operations / 4, &mut random),
            (true, _) => places_alone(kind, theme, operations, &mut random),
            (false, RACE) => race(kind, size, &mut random),
            (false, MEETING) => meeting(kind, size, &mut random),
            (false, LAST) => places_together(kind, RACE, size, &mut random),
            (false, _) => places_together(kind, theme, size, &mut random),
        }
    }
}

/// The theme of several threads that move the same records: one of the first, so that few histories have it. The theme of all kinds with this number is
/// the last one.
const RACE: u64 = 1;
/// The theme of threads of which some write two records all the time and the others read them.
const MEETING: u64 = SPATIAL_THEMES_TOGETHER;
const LAST: u64 = MEETING + 1;

/// Histories of [`MEETING`] in which planted bugs are looked for besides.
const MEETINGS: u64 = 24;

fn on_a_line(payloads: u64) -> Places {
    Places {
        of: GeometryType::Point2,
        lay: Lay::Line,
        payloads,
    }
}

/// Threads of which some write two records all the time, and the others read what these are about to make durable.
fn meeting(kind: SpatialKind, size: Size, random: &mut SmallRng) -> History<SpatialKind> {
    let mut one = |is_writer: bool| {
        let payload = random.random_range(0..2);
        match random.random_range(0..8) {
            0..4 if is_writer => Insert(payload, 0),
            _ if is_writer => Remove(payload, 0),
            0..7 => Window(EVERYTHING),
            _ => Insert(payload, 1),
        }
    };
    let per_thread = size.operations / size.threads;
    let mut thread = |number: usize| {
        (0..per_thread)
            .map(|_| one(number.is_multiple_of(2)))
            .collect()
    };
    History {
        keys: on_a_line(2),
        before: vec![Insert(0, 0), Insert(1, 0)],
        threads: (0..size.threads).map(&mut thread).collect(),
        ..History::new(kind)
    }
}

/// Threads that move the same few records from leaf to leaf, and help each other, while they look at all of them.
fn race(kind: SpatialKind, size: Size, random: &mut SmallRng) -> History<SpatialKind> {
    const RECORDS: u64 = 24;
    let mut one = || {
        let payload = random.random_range(0..RECORDS / 4);
        match random.random_range(0..8) {
            0..3 => Relocate(payload, 0, 2),
            3..6 => Relocate(payload, 2, 0),
            _ => Window(EVERYTHING),
        }
    };
    let per_thread = size.operations / size.threads;
    let mut thread = |_| (0..per_thread).map(|_| one()).collect();
    History {
        keys: on_a_line(RECORDS),
        before: (0..RECORDS).map(|payload| Insert(payload, 0)).collect(),
        threads: (0..size.threads).map(&mut thread).collect(),
        ..History::new(kind)
    }
}

/// A tree that has become thin, and is compacted: its nodes are merged, and moved to the front.
fn thin(kind: SpatialKind) -> History<SpatialKind> {
    const RECORDS: u64 = 150;
    let load = BulkLoad((0..RECORDS).map(|payload| (payload, 0)).collect());
    let gone = (0..RECORDS).filter(|payload| payload % 3 > 0);
    History {
        keys: on_a_line(RECORDS),
        before: std::iter::once(load)
            .chain(gone.map(|payload| Remove(payload, 0)))
            .collect(),
        threads: vec![vec![Shrink, Insert(1, 0), Remove(0, 0)]],
        ..History::new(kind)
    }
}
