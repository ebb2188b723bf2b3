//! Histories of spatial indexes, of any kind: records that come and go, that are relocated, loads, batches, closes and compactions.

use super::spatial::{anything, batch, in_catalog, nearest, only_loads_into_empty};
use super::{EVERYTHING, History, Lay, OtherIndex, Places, Size, SpatialOperation};
use crate::engines::SpatialKind;
use crate::spatial::GeometryType;
use SpatialOperation::{BulkLoad, Insert, InsertBatch, Relocate, Remove, Reopen, Shrink, Window};
use rand::RngExt;
use rand::rngs::SmallRng;

type SpatialHistory = History<SpatialKind>;

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
pub(crate) const THEMES: u64 = 8;

/// A history of one thread, of a theme below [`THEMES`].
pub(crate) fn alone(
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
            (1, 14) => nearest(keys, random),
            (1, _) => Insert(i % payloads, 0),
            (2, 0..6) => InsertBatch(batch(keys, random)),
            (2, 6..12) => Remove(payload, place),
            (2, _) => Insert(payload, place),
            (3, _) if i % 48 == 0 => BulkLoad(load(keys, random)),
            (3, 0..5) => in_catalog(random, &mut other),
            (3, 5..8) => Relocate(payload, 0, place),
            (3, _) => Remove(payload, 0),
            (4, 0) => Reopen,
            (4, 1..6) => Insert(payload, place),
            (4, 6..9) => Remove(payload, place),
            (4, 9) => Window(keys.around(payload, place, 10.0)),
            (4, 10) => nearest(keys, random),
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
        recorded = only_loads_into_empty(recorded);
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

/// Themes of several threads.
pub(crate) const THEMES_TOGETHER: u64 = 10;

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
pub(crate) fn together(
    kind: SpatialKind,
    theme: u64,
    size: Size,
    random: &mut SmallRng,
) -> SpatialHistory {
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
                (5, 5..8) => nearest(keys, random),
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
