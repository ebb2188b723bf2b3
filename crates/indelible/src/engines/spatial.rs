//! What a spatial index can do.

use super::{Engine, EngineOptions};
use crate::Result;
use crate::spatial::{Coordinates, Geometry, Metric, Rect};

/// What the options of a spatial engine say to the host, which does not know the engine.
pub(crate) trait SpatialEngineOptions: EngineOptions {
    /// What the coordinates of the index mean.
    fn coordinates(&self) -> Coordinates;

    /// [`Error::BadOption`](crate::Error::BadOption) if geometries with so many axes cannot be indexed with these options.
    fn expect_axes(&self, axes: usize) -> Result<()>;
}

/// A record that a search for the nearest records has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Neighbour<G> {
    /// The distance as the metric compares distances: see [`Metric::comparable`].
    pub(crate) distance: f64,
    pub(crate) shape: G,
    pub(crate) payload: u64,
}

impl<G: Geometry> Neighbour<G> {
    /// The order in which neighbours are reported: by distance, and records at the same distance by payload and by coordinates.
    #[inline(always)]
    pub(crate) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let distances = self.distance.total_cmp(&other.distance);
        distances.then_with(|| self.compare_at_one_distance(other))
    }

    #[cold]
    fn compare_at_one_distance(&self, other: &Self) -> std::cmp::Ordering {
        let coordinates = |shape: &G| {
            let shape = *shape;
            (0..G::COORDINATES).map(move |i| shape.coordinate(i))
        };
        let payloads = self.payload.cmp(&other.payload);
        payloads.then_with(|| {
            coordinates(&self.shape)
                .zip(coordinates(&other.shape))
                .map(|(a, b)| a.total_cmp(&b))
                .find(|order| order.is_ne())
                .unwrap_or(std::cmp::Ordering::Equal)
        })
    }
}

/// Whether a record, which is a geometry and its payload, may be reported.
pub(crate) type Accepts<'a, G> = dyn FnMut(&G, u64) -> bool + 'a;

/// What is asked of a search for the nearest records.
pub(crate) struct Nearest<'a, G> {
    /// How many records are wanted, at least 1.
    pub(crate) wanted: usize,
    /// Greatest distance, included, as the metric compares distances.
    pub(crate) within: f64,
    /// Report records only that come at or after this one.
    pub(crate) from: Option<Neighbour<G>>,
    /// Report records only that this accepts; without it, all.
    pub(crate) accepts: Option<&'a mut Accepts<'a, G>>,
}

impl<G> Nearest<'_, G> {
    /// Whether a record may be reported, wherever it is.
    #[inline(always)]
    pub(crate) fn accepts(&mut self, found: &Neighbour<G>) -> bool {
        match &mut self.accepts {
            Some(accepts) => accepts(&found.shape, found.payload),
            None => true,
        }
    }
}

/// What a spatial index of geometries of one type, with 8 bytes beside each, can do. The host has checked that the pool may be
/// written; the front, that geometries are what [`Coordinates::accept`] returns, and that
/// windows are not inverted and have no NaN.
///
/// The index is a multiset: the same geometry may be inserted with the same payload several times, and is then there several times.
pub(crate) trait Spatial<G: Geometry>: Engine {
    /// Adds a record. Durable when it returns.
    fn insert(&self, shape: &G, payload: u64) -> Result<()>;

    /// Adds records, in any order; they may share fences, and all are durable when it returns. Takes out of `records` what it has added:
    /// after an error those that are left have not been added, so that the host can try again.
    fn insert_batch(&self, records: &mut Vec<(G, u64)>) -> Result<()> {
        while let Some((shape, payload)) = records.last() {
            self.insert(shape, *payload)?;
            records.pop();
        }
        Ok(())
    }

    /// Removes one record equal to this one; `false` if there is none.
    fn remove(&self, shape: &G, payload: u64) -> Result<bool>;

    /// Moves one record to another place, in one step as seen by all other threads and by recovery; `false` if it is not there.
    fn relocate(&self, payload: u64, from: &G, to: &G) -> Result<bool>;

    /// Adds to `found` all records that meet one of `windows`, edges included. A record that is there throughout is found exactly once,
    /// wherever it is relocated to meanwhile.
    fn search(&self, windows: &[Rect], found: &mut Vec<(G, u64)>) -> Result<()>;

    /// Adds to each list of `found` what [`search`](Self::search) finds in the windows with its number. Each search is a step by itself.
    fn search_many(&self, searches: &[&[Rect]], found: &mut [Vec<(G, u64)>]) -> Result<()> {
        for (windows, found) in searches.iter().zip(found) {
            self.search(windows, found)?;
        }
        Ok(())
    }

    /// Adds the nearest records to `found`, in order, fewer than wanted only if there are no more.
    fn nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
        found: &mut Vec<Neighbour<G>>,
    ) -> Result<()>;

    /// A box that contains all records, and may be larger after removals; `None` for an empty index.
    fn bounds(&self) -> Result<Option<Rect>>;

    /// Fills the empty index with records in any order, to the share `fill` of each node. One store commits all of it.
    ///
    /// The engine may bring the records into another order; after an error all of them are still there, so that the host can try again.
    /// [`Error::NotEmpty`](crate::Error::NotEmpty) if the index is not empty.
    fn bulk_load(&self, records: &mut [(G, u64)], fill: f64) -> Result<()>;

    /// The boxes of the leaves with their numbers of records, in the order of the leaves: for drawings.
    fn leaves(&self) -> Result<Vec<(Rect, usize)>>;
}
