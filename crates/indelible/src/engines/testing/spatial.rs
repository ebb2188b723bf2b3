//! What is done to spatial indexes under the crash checker, and where their records lie.
//!
//! A payload may be at [`PLACES`](Places::PLACES) places, each of which it may have several records at. So the records of one payload are a few
//! numbers, which the checker keeps in one word: a relocation changes that word in one step.

use super::{Family, History, Size, Suite};
use crate::engines::SpatialKind;
use crate::spatial::GeometryType;
use SpatialOperation::{
    BulkLoad, CreateOther, DropOther, Insert, InsertBatch, Nearest, Relocate, Remove, RenameOther,
    Reopen, Shrink, Window,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The lower and the upper corner of a box, by axis.
pub type Corners = [[f64; 3]; 2];

/// A payload, and the number of its place.
pub type Record = (u64, u8);

/// An operation on the spatial index of a [`History`], or on its pool. Geometries are numbers of [`Places`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum SpatialOperation {
    Insert(u64, u8),
    InsertBatch(Vec<Record>),
    Remove(u64, u8),
    /// From one place of the payload to another, or to the same one.
    Relocate(u64, u8, u8),
    /// Whatever meets the box.
    Window(Corners),
    /// So many of the nearest records.
    Nearest([f64; 3], usize),
    BulkLoad(Vec<Record>),
    /// Another spatial index is created, which takes an extent.
    CreateOther,
    /// The other index gets its second name, or its first one again.
    RenameOther(bool),
    /// The other index is dropped, and its extents become free.
    DropOther,
    Shrink,
    /// The pool is closed cleanly and opened again.
    Reopen,
}

/// How the places of a history lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lay {
    /// Anywhere in a square.
    Spread,
    /// In a few clusters, the payloads of one side by side.
    Clusters,
    /// On a line, in the order of the payloads.
    Line,
    /// All payloads at four places.
    Equal,
    /// Far apart and close together: subnormal, huge and infinite coordinates.
    Extreme,
}

/// Where the records of a history may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The type of the geometries.
    pub of: GeometryType,
    /// How they lie.
    pub lay: Lay,
    /// Payloads are below this number.
    pub payloads: u64,
}

impl Lay {
    /// All ways.
    pub const ALL: &[Self] = &[
        Self::Spread,
        Self::Clusters,
        Self::Line,
        Self::Equal,
        Self::Extreme,
    ];
}

/// Everything that there is.
pub const EVERYTHING: Corners = [[f64::NEG_INFINITY; 3], [f64::INFINITY; 3]];

fn hash(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

impl Places {
    /// Places of each payload. No two of them are equal.
    pub const PLACES: u8 = 4;

    /// The geometry of a place: its corners, which are equal for a point. Where there are two axes the third number is not used.
    #[must_use]
    pub fn corners(self, payload: u64, place: u8) -> Corners {
        let number = payload * u64::from(Self::PLACES) + u64::from(place);
        let (random, at) = (hash(number), f64::from(place));
        let part = |shift: u32, below: u64| ((random >> shift) % below) as f64;
        let low = match self.lay {
            Lay::Spread => [part(0, 1024) + at / 8.0, part(10, 1024), part(20, 1024)],
            Lay::Clusters => {
                // The second place is in the cluster of the first one; the others are in other clusters.
                let cluster = payload / 9 * 3 + u64::from(place / 2) * 7;
                let centre = hash(cluster % 23);
                let axis = |shift: u32| ((centre >> shift) % 4096) as f64 + part(shift, 4);
                [axis(0) + at / 8.0, axis(12), axis(24)]
            }
            // The other places are further up the line, and the last ones beside it.
            Lay::Line => {
                let x = payload + [0, 1, 40, 7][usize::from(place % 4)];
                [x as f64 + at / 8.0, f64::from(place / 3) * 900.0, 0.0]
            }
            Lay::Equal => {
                let which = (payload + u64::from(place)) % 4;
                [which as f64 * 100.0, (which / 2) as f64 * 50.0, 1.0]
            }
            Lay::Extreme => {
                let all = [
                    0.0,
                    f64::MIN_POSITIVE / 4.0,
                    -1e-300,
                    1.0,
                    -1e9,
                    1e300,
                    f64::MAX,
                    f64::NEG_INFINITY,
                ];
                let axis = |shift: u32| all[(random >> shift) as usize % 8];
                // The first coordinate tells the places of a payload apart.
                [payload as f64 * 16.0 + at, axis(0), axis(3)]
            }
        };
        let is_box = matches!(self.of, GeometryType::Box2 | GeometryType::Box3);
        let sizes = [0.0, 0.25, 0.5, 1.0, 2.0, 5.0, 30.0, 0.0];
        let size = |axis: u32| {
            let size = sizes[(random >> (30 + 3 * axis)) as usize % 8];
            // Now and then a larger one than all before.
            size * (1.0 + (payload / 12) as f64)
        };
        let high = [0, 1, 2].map(|axis: u32| {
            let from = low[axis as usize];
            if is_box { from + size(axis) } else { from }
        });
        [low, high]
    }

    /// A box around a place of a payload, `margin` larger on each side.
    #[must_use]
    pub fn around(self, payload: u64, place: u8, margin: f64) -> Corners {
        let [low, high] = self.corners(payload, place);
        [low.map(|x| x - margin), high.map(|x| x + margin)]
    }
}

/// A number of axes of a geometry of this type.
#[must_use]
pub const fn axes(of: GeometryType) -> usize {
    match of {
        GeometryType::Point3 | GeometryType::Box3 => 3,
        _ => 2,
    }
}

impl Family for SpatialKind {
    type Keys = Places;
    type Operation = SpatialOperation;

    fn suite(self) -> &'static dyn Suite<Self> {
        Self::suite(self)
    }

    fn usual_keys() -> Places {
        Places {
            of: GeometryType::Point2,
            lay: Lay::Clusters,
            payloads: 60,
        }
    }

    /// Theme 0 grows and shrinks the index, theme 1 has everything.
    fn any_history(self, theme: u64, seed: u64, size: Size) -> History<Self> {
        let mut random = SmallRng::seed_from_u64(seed);
        let keys = Places {
            of: [GeometryType::Point2, GeometryType::Box2][random.random_range(0..2)],
            lay: Lay::ALL[random.random_range(0..Lay::ALL.len())],
            payloads: [6, 30, 60][random.random_range(0..3)],
        };
        let threads = size.threads.max(1);
        let per_thread = (size.operations / threads).max(1) as u64;
        let mut other = OtherIndex::Absent;
        let mut one = |i: u64| match theme {
            0 if (i / keys.payloads).is_multiple_of(2) => Insert(i % keys.payloads, 0),
            0 => Remove(i % keys.payloads, 0),
            _ => anything(keys, threads == 1, &mut random, &mut other),
        };
        History {
            keys,
            threads: (0..threads)
                .map(|_| (0..per_thread).map(&mut one).collect())
                .collect(),
            ..History::new(self)
        }
    }
}

/// Some operation. Those on the catalog, and closing the pool, only if one thread runs.
pub(crate) fn anything(
    keys: Places,
    is_alone: bool,
    random: &mut SmallRng,
    other: &mut OtherIndex,
) -> SpatialOperation {
    let payload = random.random_range(0..keys.payloads);
    let place = random.random_range(0..Places::PLACES);
    match random.random_range(0..20) {
        0..6 => Insert(payload, place),
        6..9 => Remove(payload, place),
        9..13 => Relocate(payload, place, random.random_range(0..Places::PLACES)),
        13 => Window(keys.around(payload, place, 0.0)),
        14 => Window(keys.around(payload, place, random.random_range(1.0..300.0))),
        15 => Window(EVERYTHING),
        16 => nearest(keys, random),
        17 => InsertBatch(batch(keys, random)),
        18 if is_alone => in_catalog(random, other),
        19 if is_alone => Reopen,
        _ => Shrink,
    }
}

/// So many results of `nearest` are found at once; the iterator promises nothing about more of them together.
const READ_AT_ONCE: usize = 10;

/// A search for the nearest records: of so few that the iterator reads the index once.
pub(crate) fn nearest(keys: Places, random: &mut SmallRng) -> SpatialOperation {
    let [low, _] = keys.corners(random.random_range(0..keys.payloads), 1);
    let finite = low.map(|x| x.clamp(-1e200, 1e200));
    Nearest(finite, random.random_range(1..=READ_AT_ONCE))
}

pub(crate) fn batch(keys: Places, random: &mut SmallRng) -> Vec<Record> {
    let from = random.random_range(0..keys.payloads);
    let place = random.random_range(0..Places::PLACES);
    let count = random.random_range(2..12);
    (0..count)
        .map(|i| ((from + i) % keys.payloads, place))
        .collect()
}

/// What has become of the other index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherIndex {
    Absent,
    There,
    HasSecondName,
}

/// An operation on the pool rather than the index.
pub(crate) fn in_catalog(random: &mut SmallRng, other: &mut OtherIndex) -> SpatialOperation {
    let (operation, now) = match (random.random_range(0..8), *other) {
        (0..3, now) => (Shrink, now),
        (_, OtherIndex::Absent) => (CreateOther, OtherIndex::There),
        (3, OtherIndex::There) => (RenameOther(true), OtherIndex::HasSecondName),
        (3, OtherIndex::HasSecondName) => (RenameOther(false), OtherIndex::There),
        _ => (DropOther, OtherIndex::Absent),
    };
    *other = now;
    operation
}

/// Removes whatever is there before each bulk load.
pub(crate) fn only_loads_into_empty(operations: Vec<SpatialOperation>) -> Vec<SpatialOperation> {
    let mut present: Vec<Record> = Vec::new();
    let mut result = Vec::new();
    for operation in operations {
        match &operation {
            BulkLoad(records) => {
                // From both ends, so that leaves merge with either neighbour.
                present.sort_unstable();
                let all = std::mem::replace(&mut present, records.clone());
                let (low, high) = all.split_at(all.len() / 2);
                let all = low.iter().chain(high.iter().rev());
                result.extend(all.map(|&(payload, place)| Remove(payload, place)));
            }
            Insert(payload, place) => present.push((*payload, *place)),
            InsertBatch(records) => present.extend(records),
            Remove(payload, place) => {
                if let Some(at) = present.iter().position(|&is| is == (*payload, *place)) {
                    present.swap_remove(at);
                }
            }
            Relocate(payload, from, to) => {
                if let Some(at) = present.iter().position(|&is| is == (*payload, *from)) {
                    present[at].1 = *to;
                }
            }
            _ => {}
        }
        result.push(operation);
    }
    result
}
