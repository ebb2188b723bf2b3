//! The typed front of a spatial index: the handle, what it does with one record, and its upkeep.
//!
//! | file | what it owns |
//! |---|---|
//! | this one | the handle, writes, upkeep |
//! | `open` | opening and listing spatial indexes |
//! | `search` | windows, and the records that a search has found |
//! | `nearest` | the nearest records |
//! | `join` | pairs of records from two indexes |

mod join;
mod nearest;
mod open;
mod search;

pub use join::Join;
pub use nearest::Nearest;
pub use open::SpatialInfo;
pub use search::{Record, Records};

use super::{SpatialOptions, SpatialStat};
use crate::Result;
use crate::engines::SpatialKind;
use crate::host::{AnySpatial, Handle};
use crate::spatial::{Coordinates, Geometry, Rect};
use std::borrow::Borrow;

/// A persistent spatial index: points or boxes of type `G`, each with 8 bytes beside it, under a name in a [`Pool`](crate::Pool).
///
/// A record is a *shape*, which is a [`Point2`](crate::Point2), [`Point3`](crate::Point3), [`Box2`](crate::Box2) or
/// [`Box3`](crate::Box3), and a *payload*, a `u64` of your own: a number of a row, say, or a key of a map in the same pool.
///
/// A `Spatial` is a handle: cloning it is cheap, it has no lifetime, and it keeps the pool open. All methods take `&self` and may be called
/// from any number of threads. Costs are given for n records in an index of the default kind. In the published R-trees, `fbr` and `pm-rtree`, all leaves
/// whose boxes contain a place are read until a record there is found; they are there to compare with.
///
/// # Equal records
///
/// The index is a multiset. The same shape may be there with several payloads, and also several times with the same payload: then
/// [`len`](Self::len) counts each copy, searches report each, and [`remove`](Self::remove) removes one.
///
/// # Coordinates
///
/// Coordinates are `f64` in any unit, infinite ones included, and distances are Euclidean, in the same unit. Edges and faces belong to
/// boxes and windows. An index of the default kind finds its way by boxes of `f32`: where records lie closer together than a 2^24th of their distance from
/// zero (seconds since 1970 within 128 s of each other, say), answers are right, and a window reads all leaves there. Store differences from a place nearby
/// then. An index for places on the globe is created with the option `coordinates=lonlat`
/// ([`HilbertOptions::lonlat`](crate::HilbertOptions::lonlat)):
///
/// - `x` is the longitude, from −180 to 180, and `y` the latitude, from −90 to 90, in degrees.
/// - Distances are metres on a sphere with the earth's mean radius, 6,371,008.8 m.
/// - A window whose western edge (`low.x`) is east of its eastern one (`high.x`) crosses the antimeridian; its longitudes may also lie
///   beyond it, from −360 to 360. Its latitudes are from −90 to 90, or infinite: a window around a place near a pole is to be cut off there. A box that is
///   stored cannot cross the antimeridian: store two. An infinite longitude of a window stands for the antimeridian, which is −180 as a western edge and
///   180 as an eastern one.
/// - The longitudes 180 and −180 are one meridian, for distances and for windows. [`remove`](Self::remove), [`relocate`](Self::relocate) and
///   [`join`](Self::join) compare numbers.
/// - A pole is one place for distances. For windows it has the longitude that it is stored with.
///
/// # Concurrency and durability
///
/// What is done with one record ([`insert`](Self::insert), [`remove`](Self::remove), [`relocate`](Self::relocate)) is one linearizable step.
/// A search reports each record that is there during the whole search exactly once, and may or may not report a record that is inserted
/// or removed meanwhile.
///
/// When a call returns, its changes survive whatever the pool's [`Durability`](crate::Durability) promises to survive. Of a change of one
/// record that is in flight at a crash, all is there afterwards, or nothing.
///
/// # Errors
///
/// Every method that takes a shape, a window or a point may return [`Error::BadGeometry`], and changes nothing then. Every method may return
/// [`Error::Damaged`] if it meets a broken structure. Every write may also return [`Error::ReadOnly`] and [`Error::NoSpace`]. No method panics
/// on any input.
///
/// In a pool with a log every write may also return [`Error::LogFailed`](crate::Error::LogFailed), and with `Durability::PowerLoss` so may a read of records that are not durable yet. After that
/// error a change may or may not be there when the pool is opened again.
///
/// [`Error::BadGeometry`]: crate::Error::BadGeometry
/// [`Error::Damaged`]: crate::Error::Damaged
/// [`Error::ReadOnly`]: crate::Error::ReadOnly
/// [`Error::NoSpace`]: crate::Error::NoSpace
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Box2, HilbertOptions, Point2, Pool};
/// let pool = Pool::in_memory()?;
/// let stations = pool.spatial_with::<Point2>("stations", HilbertOptions::default().lonlat())?;
/// stations.insert(Point2::new(139.767, 35.681), 1)?; // Tokyo
/// stations.insert(Point2::new(139.701, 35.690), 2)?; // Shinjuku
/// stations.insert(Point2::new(135.500, 34.734), 3)?; // Shin-Osaka
///
/// let kanto = Box2::new(Point2::new(138.5, 35.0), Point2::new(141.0, 37.0));
/// assert_eq!(stations.intersecting(kanto)?.len(), 2);
///
/// let palace = Point2::new(139.753, 35.685);
/// for found in stations.nearest(palace)?.within(20_000.0)? {
///     let (metres, station) = found?;
///     println!("station {} is {metres:.0} m away", station.payload);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Spatial<G: Geometry> {
    index: AnySpatial<G>,
    coordinates: Coordinates,
    options: SpatialOptions,
}

impl<G: Geometry> Clone for Spatial<G> {
    fn clone(&self) -> Self {
        Self {
            index: self.index.clone(),
            coordinates: self.coordinates,
            options: self.options.clone(),
        }
    }
}

impl<G: Geometry> std::fmt::Debug for Spatial<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Spatial<{}>({:?})", G::TYPE, self.index.name())
    }
}

/// Writes.
impl<G: Geometry> Spatial<G> {
    /// Adds a record, also if there is an equal one.
    ///
    /// O(log n). Durable when the call returns.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors); nothing is changed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert(Point2::new(1.0, 2.0), 10)?;
    /// assert!(places.insert(Point2::new(f64::NAN, 2.0), 11).is_err());
    /// assert_eq!(places.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn insert(&self, shape: G, payload: u64) -> Result<()> {
        self.index
            .insert(&self.coordinates.accept(&shape)?, payload)
    }

    /// Adds all `records`, in an order of its own choice.
    ///
    /// Records that lie together share fences, so on persistent memory a batch is cheaper than its records one by one. O(m log n) for m
    /// records, and memory for a copy of them. When the call returns, all of them are durable; if it fails or the process dies, each is there
    /// whole or not at all. The batch is not one transaction.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). After [`Error::BadGeometry`](crate::Error::BadGeometry) nothing is changed; after other errors some
    /// of the records may have been added.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert_batch(&[(Point2::new(1.0, 2.0), 10), (Point2::new(3.0, 4.0), 20)])?;
    /// assert_eq!(places.len()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_batch(&self, records: &[(G, u64)]) -> Result<()> {
        let records = self.accept_all(records)?;
        self.index.insert_batch(records)
    }

    /// Removes one record with this shape and this payload, and returns whether there was one.
    ///
    /// Coordinates are compared as numbers, so `-0.0` is `0.0`. O(log n), also among many records in the same place. Durable when the call
    /// returns.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors); nothing is changed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// let here = Point2::new(1.0, 2.0);
    /// places.insert(here, 10)?;
    /// assert!(!places.remove(here, 11)?);
    /// assert!(places.remove(here, 10)?);
    /// assert!(!places.remove(here, 10)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove(&self, shape: G, payload: u64) -> Result<bool> {
        self.index
            .remove(&self.coordinates.accept(&shape)?, payload)
    }

    /// Removes all records, one after the other, and returns how many it removed. To drop a large index at once, use
    /// [`Pool::drop_object`](crate::Pool::drop_object).
    ///
    /// Each removal is a step of its own: after a crash, some of the records may be gone and others not. A record that comes or is relocated
    /// meanwhile may stay. O(n log n), with memory for a copy of the records.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert(Point2::new(1.0, 2.0), 10)?;
    /// assert_eq!(places.clear()?, 1);
    /// assert!(places.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<u64> {
        self.index.expect_writable()?;
        let mut found = Vec::new();
        self.index.search(&[Rect::EVERYTHING], &mut found)?;
        let remove = |(shape, payload)| self.index.remove(&shape, payload).map(u64::from);
        self.index
            .waiting_once(|| found.into_iter().map(remove).sum())
    }

    /// Moves one record with this payload `from` one shape `to` another, in one atomic step, and returns whether it was there.
    ///
    /// Every other thread sees the record in the old place or in the new one, never in both and never in none; after a crash it is in one of
    /// the two. A search that runs meanwhile reports the record at most once, and if its windows contain both places, once. If the record is
    /// not there, nothing is changed.
    ///
    /// O(log n). Durable when the call returns.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors); nothing is changed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// let (here, there) = (Point2::new(1.0, 2.0), Point2::new(1.5, 2.0));
    /// places.insert(here, 10)?;
    /// assert!(places.relocate(10, here, there)?);
    /// assert!(!places.relocate(10, here, there)?);
    /// assert_eq!(places.at_point(there)?.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn relocate(&self, payload: u64, from: G, to: G) -> Result<bool> {
        let from = self.coordinates.accept(&from)?;
        let to = self.coordinates.accept(&to)?;
        self.index.relocate(payload, &from, &to)
    }

    /// Fills an empty index from records in any order, with one thread per core.
    ///
    /// `records` may be a slice, a vector, or an iterator of pairs or of references to pairs. They are collected first, 24 to 56 bytes of
    /// memory for each, and sorted. `fill` is the share of each leaf that is used, from 0.1 to 1.0; 0.7 leaves room for later inserts. O(m log m)
    /// for m records.
    ///
    /// The whole load commits with one 8-byte store: after a crash the index is empty or complete. Other operations on the index wait until
    /// the load is done; in a `pm-rtree` they go on, and a record that is there when the load is to commit makes it fail with `NotEmpty`.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`](crate::Error::NotEmpty), [`Error::BadOption`](crate::Error::BadOption) for a fill factor out of range, and those of
    /// [every write](Self#errors). The index is as before then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// let spiral = (0..1000_u32).map(|i| {
    ///     let (turn, radius) = (f64::from(i) * 0.1, f64::from(i));
    ///     (Point2::new(radius * turn.cos(), radius * turn.sin()), u64::from(i))
    /// });
    /// places.bulk_load(spiral, 0.7)?;
    /// assert_eq!(places.len()?, 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bulk_load(
        &self,
        records: impl IntoIterator<Item: Borrow<(G, u64)>>,
        fill: f64,
    ) -> Result<()> {
        self.index.expect_writable()?;
        let records = self.accept_all(records)?;
        self.index.bulk_load(records, fill)
    }

    /// The records as they are stored.
    fn accept_all(
        &self,
        records: impl IntoIterator<Item: Borrow<(G, u64)>>,
    ) -> Result<Vec<(G, u64)>> {
        let records = records.into_iter();
        let mut accepted = Vec::new();
        // An iterator may promise more records than there is memory for, and its first one may be refused: then the list grows as they come.
        let _ = accepted.try_reserve_exact(records.size_hint().0);
        for record in records {
            let (shape, payload) = record.borrow();
            accepted.push((self.coordinates.accept(shape)?, *payload));
        }
        Ok(accepted)
    }
}

/// Facts and upkeep.
impl<G: Geometry> Spatial<G> {
    pub(crate) fn new(index: AnySpatial<G>, options: SpatialOptions) -> Self {
        Self {
            index,
            coordinates: options.any().coordinates(),
            options,
        }
    }

    /// The name of the index: after [`Pool::rename_object`](crate::Pool::rename_object) the new one.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// assert_eq!(places.name(), "places");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> String {
        self.index.name()
    }

    /// The kind of index.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool, SpatialKind};
    /// let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// assert_eq!(places.kind(), SpatialKind::default());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> SpatialKind {
        self.index.kind()
    }

    /// The kind of index, and what was chosen when the index was created.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// assert_eq!(places.options().get("coordinates").as_deref(), Some("plane"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn options(&self) -> &SpatialOptions {
        &self.options
    }

    /// Number of records.
    ///
    /// O(1) once the index is warm; the first call after a crash waits until all records have been counted. While others write: a number
    /// that counts every change that was complete before the call.
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// let here = Point2::new(1.0, 2.0);
    /// places.insert_batch(&[(here, 10), (here, 10)])?;
    /// assert_eq!(places.len()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> Result<u64> {
        self.index.len()
    }

    /// Whether there are no records. Costs what finding one record costs, also right after a crash.
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// assert!(places.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_empty(&self) -> Result<bool> {
        let anywhere = G::Point::from_coordinates(|_| 0.0);
        Ok(self.nearest_block(anywhere, 1)?.is_empty())
    }

    /// The box of all records; `None` if there are none. Reads all of them.
    ///
    /// While others write: every record that is there during the whole call lies in the box, and the box may contain places where records have been meanwhile.
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Box2, Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// assert_eq!(places.bounds()?, None);
    /// places.insert_batch(&[(Point2::new(1.0, 4.0), 10), (Point2::new(3.0, 2.0), 20)])?;
    /// assert_eq!(places.bounds()?, Some(Box2::new(Point2::new(1.0, 2.0), Point2::new(3.0, 4.0))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn bounds(&self) -> Result<Option<G::Window>> {
        Ok(self.index.bounds()?.map(|rect| rect.window()))
    }

    /// The boxes of the leaves of the index with their numbers of records, in the order of the leaves: for drawings. O(n).
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert(Point2::new(1.0, 4.0), 10)?;
    /// let records: usize = places.leaves()?.iter().map(|(_, records)| records).sum();
    /// assert_eq!(records, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn leaves(&self) -> Result<Vec<(G::Window, usize)>> {
        let leaves = self.index.leaves()?.into_iter();
        Ok(leaves
            .map(|(rect, records)| (rect.window(), records))
            .collect())
    }

    /// What the index is made of: records, bytes, and [facts](crate::Fact) of its kind of index. O(nodes).
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// let stat = places.stat()?;
    /// println!("{} records in {} bytes", stat.records, stat.file_bytes);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stat(&self) -> Result<SpatialStat> {
        self.index.stat()
    }

    /// Checks every invariant of the index: order, boxes, links, ownership of every block. Returns what is wrong, in words; empty means
    /// sound. O(n).
    ///
    /// Run it while nobody writes: a concurrent write can look like a defect. Payloads have no checksum, so a changed payload is not found.
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors), but not `Error::Damaged`: what is damaged is in what is returned.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert(Point2::new(1.0, 4.0), 10)?;
    /// assert!(places.check()?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<Vec<String>> {
        self.index.check()
    }

    /// Merges nodes that have few records, and moves blocks to the front of the file. O(n). Other threads may use the index meanwhile.
    ///
    /// [`Pool::shrink`](crate::Pool::shrink) does this with all objects, and then cuts the file.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.compact()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn compact(&self) -> Result<()> {
        self.index.compact()
    }

    /// Waits until everything that a crash left to be rebuilt has been rebuilt. O(n) after a crash, otherwise O(nodes).
    ///
    /// Never needed for correctness: for measurements, and for programs that want their first operations as fast as the others.
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.warm_up()?;
    /// assert!(places.stat()?.warm);
    /// # Ok(())
    /// # }
    /// ```
    pub fn warm_up(&self) -> Result<()> {
        self.index.warm_up()
    }

    /// Gives DRAM back that is rebuilt when it is needed, and returns how many bytes; for when memory is short. O(nodes). Nothing in the file
    /// is changed. Not every kind of index has such DRAM.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// println!("{} bytes are free now", places.release_memory());
    /// # Ok(())
    /// # }
    /// ```
    pub fn release_memory(&self) -> u64 {
        self.index.release_memory()
    }
}
