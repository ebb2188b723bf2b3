//! Histories for the Hilbert index: leaves that split, merge and run empty, records that are relocated, directories, levels that come
//! and go.

use super::Bug;
use crate::engines::SpatialKind;
use crate::engines::testing::Mutant;
use crate::engines::testing::SpatialOperation::{
    BulkLoad, Insert, InsertBatch, Relocate, Remove, Reopen, Shrink, Window,
};
use crate::engines::testing::{
    EVERYTHING, EquivalentMutant, History, Lay, OtherIndex, Places, Size, SpatialOperation,
    StructureChange, Suite, anything, in_spatial_catalog, nearest_some,
    only_loads_places_into_empty, spatial_batch,
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
            StructureChange::new("leaf merge"),
            StructureChange::with_variants("unlink of an emptied leaf", 2),
            StructureChange::new("inner split"),
            StructureChange::new("inner merge"),
            StructureChange::new("root growth"),
            StructureChange::new("root shrink"),
            StructureChange::new("grid chosen"),
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
                Mutant::NoFence("hilbert.move-root"),
                "leaves move afterwards, and the fence of the first one does for both",
            ),
            EquivalentMutant::new(
                Mutant::EarlyCommit("hilbert.reach"),
                "a reach depends on nothing",
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
            EquivalentMutant::new(Mutant::Swapped("pool.free", "hilbert.relink"), FREED_LATER),
            EquivalentMutant::new(Mutant::Swapped("pool.free", "lbtree.remove"), FREED_LATER),
        ];
        LIST
    }

    fn themes(&self, threads: usize) -> u64 {
        if threads < 2 { THEMES } else { THEMES_TOGETHER }
    }

    fn history(&self, kind: SpatialKind, theme: u64, seed: u64, size: Size) -> SpatialHistory {
        let mut random = SmallRng::seed_from_u64(seed);
        let history = if size.threads < 2 {
            alone(kind, theme, size.operations, &mut random)
        } else {
            together(kind, theme, size, &mut random)
        };
        with_extent(history, &mut random)
    }

    fn rare_history(&self, _: SpatialKind, seed: u64, size: Size) -> Option<SpatialHistory> {
        (size.threads < 2 && seed % 64 == 63).then(|| tall(seed, size.operations))
    }

    fn not_provoked(&self) -> &'static [&'static str] {
        // The blocks of this index are small, and the first extent always has room for the root block and the first leaf.
        &["hilbert.move-head", "hilbert.move-root", "root block moved"]
    }

    fn rare_seeds(&self) -> &'static [u64] {
        // An index that grows, and one that shrinks.
        &[63, 127]
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

/// Places of points or boxes, now and then with three axes.
fn places(random: &mut SmallRng, payloads: u64) -> Places {
    use GeometryType::{Box2, Box3, Point2, Point3};
    use Lay::{Clusters, Equal, Extreme, Line, Spread};
    let of = [
        Point2, Point2, Box2, Box2, Point2, Box2, Point3, Box3, Point2, Box2,
    ];
    let lays = [
        Clusters, Clusters, Spread, Line, Line, Equal, Extreme, Clusters,
    ];
    Places {
        of: of[random.random_range(0..of.len())],
        lay: lays[random.random_range(0..lays.len())],
        payloads,
    }
}

/// Themes of one thread.
const THEMES: u64 = 8;

fn alone(
    kind: SpatialKind,
    theme: u64,
    operations: usize,
    random: &mut SmallRng,
) -> SpatialHistory {
    let payloads = match theme {
        // So many equal records that they fill leaves.
        7 => random.random_range(1..4),
        _ => [20, 40, 60, 160][random.random_range(0..4)],
    };
    let keys = places(random, payloads);
    let size = random.random_range(1..payloads.max(2));
    let before = match theme {
        // Bulk loads need an empty index; the others begin with one that has seen some life.
        3 => Vec::new(),
        _ => (0..size)
            .map(|_| Insert(random.random_range(0..payloads), 0))
            .collect(),
    };
    let mut other = OtherIndex::Absent;
    let mut recorded = Vec::with_capacity(operations);
    for i in 0..operations as u64 {
        let payload = random.random_range(0..payloads);
        let place = random.random_range(0..Places::PLACES);
        let dice = random.random_range(0..16);
        let round = i / payloads.max(8);
        recorded.push(match (theme, dice) {
            (0, 0) => Remove(payload, 0),
            (0, 1) => Window(keys.around(payload, place, 3.0)),
            (0, _) => Insert(payload, place / 2),
            // Neighbours, so that leaves run empty and merge; then they fill again.
            (1, 0..14) if round % 2 == 0 => Remove(i % payloads, place / 3),
            (1, 14) => nearest_some(keys, random),
            (1, _) => Insert(i % payloads, 0),
            (2, 0..6) => InsertBatch(spatial_batch(keys, random)),
            (2, 6..12) => Remove(payload, place),
            (2, _) => Insert(payload, place),
            (3, _) if i % 48 == 0 => BulkLoad(load(keys, random)),
            (3, 0..5) => in_spatial_catalog(random, &mut other),
            (3, 5..8) => Relocate(payload, 0, place),
            (3, _) => Remove(payload, 0),
            (4, 0) => Reopen,
            (4, 1..6) => Insert(payload, place),
            (4, 6..9) => Remove(payload, place),
            (4, 9) => Window(keys.around(payload, place, 10.0)),
            (4, 10) => nearest_some(keys, random),
            (4 | 5, 11..13) => Relocate(payload, place, 3 - place),
            // Places 0 and 1 are in one leaf, mostly, the other two elsewhere.
            (5, 0..4) => Relocate(payload, place, place ^ 1),
            (5, 4..8) => Relocate(payload, place, place ^ 2),
            (5, 8..10) => Insert(payload, place),
            (5, 10) => Window(keys.around(payload, place, 5.0)),
            (5, 13) => Reopen,
            (7, 0..9) if round % 4 < 2 => Insert(payload, 0),
            (7, 0..9) => Remove(payload, 0),
            (7, 9) => Relocate(payload, 0, 1),
            _ => anything(keys, true, random, &mut other),
        });
    }
    if theme == 3 {
        recorded = only_loads_places_into_empty(recorded);
    }
    History {
        keys,
        before,
        threads: vec![recorded],
        ..History::new(kind)
    }
}

fn load(keys: Places, random: &mut SmallRng) -> Vec<(u64, u8)> {
    let count = random.random_range(0..90);
    let step = random.random_range(1..4);
    (0..count).map(|i| (i * step % keys.payloads, 0)).collect()
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

/// Themes of several threads.
const THEMES_TOGETHER: u64 = 10;

/// Leaves of the index that [`thin_leaves`] makes, about.
const LEAVES: u64 = 18;

/// Leaves of four records and less, and others that split at the next inserts.
fn thin_leaves(payloads: u64) -> Vec<SpatialOperation> {
    let inserts = (0..payloads).map(|payload| Insert(payload, 0));
    let removals = (0..payloads / 2).filter(|payload| payload % 9 > 3);
    inserts
        .chain(removals.map(|payload| Remove(payload, 0)))
        .collect()
}

/// Threads on few records, so that they meet; on leaves that are about to split or to merge.
fn together(kind: SpatialKind, theme: u64, size: Size, random: &mut SmallRng) -> SpatialHistory {
    let Size {
        operations,
        threads,
    } = size;
    let payloads = match theme {
        0 => 5,
        1 | 5 => 30,
        8 => 24,
        2 => 24,
        7 => 2,
        9 => 3,
        _ => LEAVES * 6,
    };
    let mut keys = places(random, payloads);
    match theme {
        7 => keys.lay = Lay::Equal,
        8 => keys.lay = Lay::Line,
        _ => {}
    }
    let all = |payloads: u64| (0..payloads).map(|payload| Insert(payload, 0)).collect();
    let before = match theme {
        0 => Vec::new(),
        1 => all(8),
        2 | 5 | 6 | 9 => all(payloads),
        7 => (0..random.random_range(6..24))
            .map(|i| Insert(i % payloads, 0))
            .collect(),
        _ => thin_leaves(payloads),
    };
    let per_thread = (operations / threads).max(1) as u64;
    let mut thread = |number: u64| {
        let mut one = |i: u64| {
            let payload = random.random_range(0..payloads);
            let place = random.random_range(0..Places::PLACES);
            // Payloads whose leaves are thin, and those that are not.
            let (thin, full) = (payload % (payloads / 2).max(1), payload.max(payloads / 2));
            let is_even = number.is_multiple_of(2);
            match (theme, random.random_range(0..16)) {
                (1, 0..9) => Insert(payload, place),
                (2, 0..9) => Remove(payload, 0),
                // One thread makes leaves thin and has others move, while others read and fill these.
                (3, 0..6) if is_even => Remove(thin, 0),
                (3, 6..12) if is_even => Shrink,
                (3, 0..6) => Insert(full, place),
                (3, 6..10) => Window(keys.around(full, 0, 2.0)),
                (4, 0..9) if is_even => Remove((i * 3 + number) % (payloads / 2), 0),
                (4, 0..6) => Insert(full, 1),
                (4, 6..9) => Insert(thin, 1),
                // Records run to and fro, while others look at all of them.
                (5, 0..10) if is_even => Relocate(payload, place, place ^ 2),
                (5, 10..12) if is_even => Relocate(payload, 0, place),
                (5, 0..5) => Window(EVERYTHING),
                (5, 5..8) => nearest_some(keys, random),
                (6, 0..10) => Insert(payload, place),
                (7, 0..5) => Insert(payload, 0),
                (7, 5..10) => Remove(payload, 0),
                (7, 10) => Window(EVERYTHING),
                // Leaves are merged, and records run from one half of a merged leaf to the other, while others look at all of them.
                (8, 0..6) if is_even => Remove(payload, 0),
                (8, 6..16) if is_even => Relocate(payload, 0, 1),
                (8, 0..14) => Window(EVERYTHING),
                // Few records, which several threads remove.
                (9, 0..11) => Remove(payload, 0),
                (9, 11..15) => Insert(payload, 0),
                _ => anything(keys, false, random, &mut OtherIndex::Absent),
            }
        };
        (0..per_thread).map(&mut one).collect()
    };
    let threads = (0..threads as u64).map(&mut thread).collect();
    History {
        keys,
        before,
        threads,
        ..History::new(kind)
    }
}
