//! The nearest records.

use super::{Record, Records, Spatial};
use crate::engines;
use crate::host::AnySpatial;
use crate::spatial::{AnyMetric, Geometry, Metric, with_metric};
use crate::{Error, Result};

/// Records that an iteration asks for at first.
const FIRST_BLOCK: usize = 10;

/// How many times as many records it asks for each time after that. Each time the index is searched from the beginning: so all of the
/// searches together cost a third more than the last one.
const GROWTH: usize = 4;

/// A distance as the metric compares distances.
fn comparable_of(metric: &AnyMetric, distance: f64) -> Result<f64> {
    // A comparison with NaN is false.
    if distance >= 0.0 {
        return Ok(with_metric!(metric, metric => metric.comparable_of(distance)));
    }
    Err(Error::BadDistance(distance))
}

/// The records that `request` asks for.
fn find<G: Geometry>(
    index: &AnySpatial<G>,
    metric: &AnyMetric,
    request: &mut engines::Nearest<'_, G>,
) -> Result<Vec<engines::Neighbour<G>>> {
    let mut found = Vec::new();
    with_metric!(metric, metric => index.nearest(metric, request, &mut found))?;
    Ok(found)
}

/// What a [`Nearest`] asks of each record.
type Accepts<'a, G> = Box<dyn FnMut(&Record<G>) -> bool + Send + 'a>;

/// The records of an index in the order of their distances from a point, from [`Spatial::nearest`].
///
/// An iterator of `Result<(distance, record)>`. The distance is in the unit of the coordinates; in metres, if they are
/// [longitudes and latitudes](Spatial#coordinates). Records at equal distances come in the order of their payloads. (What is compared is finer than what is returned:
/// distances from square roots and on the sphere may be returned as equal, and have differed in their last bits.)
///
/// The iterator is lazy: it reads 10 records, then 40, then 160, and so on, as they are wanted. To read k records takes O(log n + k), with
/// O(k) memory, and, each time that it reads, time for the records that are as far away as the last one that it has returned: of a million records at one place all are
/// looked at. After an error it ends.
///
/// Each record that is there, in one place, during the whole iteration comes exactly once. A record that is inserted or relocated
/// meanwhile may be missed, and a relocated one may come twice.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Point2, Pool};
/// let places = Pool::in_memory()?.spatial::<Point2>("places")?;
/// places.bulk_load((0..100_u32).map(|i| (Point2::new(f64::from(i), 0.0), i.into())), 0.7)?;
///
/// // The three nearest with even payloads, at most 2.5 away.
/// let mut nearest = places.nearest(Point2::new(10.25, 0.0))?.within(2.5)?.matching(|place| place.payload % 2 == 0);
/// let (distance, place) = nearest.next().unwrap()?;
/// assert_eq!((distance, place.payload), (0.25, 10));
/// assert_eq!(nearest.next().unwrap()?.1.payload, 12);
/// assert_eq!(nearest.next().unwrap()?.1.payload, 8);
/// assert!(nearest.next().is_none());
/// # Ok(())
/// # }
/// ```
#[must_use = "the iterator is lazy"]
pub struct Nearest<'a, G: Geometry> {
    index: AnySpatial<G>,
    metric: AnyMetric,
    /// Greatest distance, as the metric compares distances.
    within: f64,
    accepts: Option<Accepts<'a, G>>,
    /// What has been read and not returned yet.
    block: std::vec::IntoIter<engines::Neighbour<G>>,
    /// How many records to read next.
    wanted: usize,
    /// The record returned last, and how many equal to it have been returned.
    last: Option<(engines::Neighbour<G>, usize)>,
    /// Whether nothing is left to read.
    is_read: bool,
}

impl<G: Geometry> std::fmt::Debug for Nearest<'_, G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nearest<{}>({:?})", G::TYPE, self.index.name())
    }
}

impl<'a, G: Geometry> Nearest<'a, G> {
    fn new(spatial: &Spatial<G>, point: &G::Point) -> Result<Self> {
        Ok(Self {
            index: spatial.index.clone(),
            metric: spatial.coordinates.metric(point)?,
            within: f64::INFINITY,
            accepts: None,
            block: Vec::new().into_iter(),
            wanted: FIRST_BLOCK,
            last: None,
            is_read: false,
        })
    }

    /// Only records that are at most so far away. Of an iteration that has begun: from here on, behind the record that was returned last.
    ///
    /// # Errors
    ///
    /// [`Error::BadDistance`] if `distance` is NaN or negative.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert(Point2::new(3.0, 4.0), 10)?;
    /// let origin = Point2::new(0.0, 0.0);
    /// assert_eq!(places.nearest(origin)?.within(5.0)?.count(), 1);
    /// assert_eq!(places.nearest(origin)?.within(4.9)?.count(), 0);
    /// assert!(places.nearest(origin)?.within(-1.0).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn within(mut self, distance: f64) -> Result<Self> {
        self.within = comparable_of(&self.metric, distance)?;
        Ok(self.read_again())
    }

    /// Only records for which `accepts` returns `true`: those that others are refused for are not counted in the blocks that are read, so
    /// this is faster than [`filter`](Iterator::filter). A second filter takes the place of the first, from here on if the iteration has begun.
    ///
    /// `accepts` may be called more than once for a record, and for records that are not reported. It must always say the same of equal
    /// records, must not use the index, and must not wait for a thread that does: a search that others disturb for long keeps them from changing the
    /// structure of the index meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert_batch(&[(Point2::new(1.0, 0.0), 10), (Point2::new(2.0, 0.0), 20)])?;
    /// let mut open = places.nearest(Point2::new(0.0, 0.0))?.matching(|place| place.payload >= 20);
    /// assert_eq!(open.next().unwrap()?.1.payload, 20);
    /// # Ok(())
    /// # }
    /// ```
    pub fn matching(mut self, accepts: impl FnMut(&Record<G>) -> bool + Send + 'a) -> Self {
        self.accepts = Some(Box::new(accepts));
        self.read_again()
    }

    /// Forgets what has been read and not returned, since it was asked for in another way.
    fn read_again(mut self) -> Self {
        self.block = Vec::new().into_iter();
        self.wanted = FIRST_BLOCK;
        self.is_read = false;
        self
    }

    /// Reads the next block.
    fn read(&mut self) -> Result<()> {
        let returned = self.last.map_or(0, |(_, equal)| equal);
        let wanted = self.wanted.saturating_add(returned);
        let mut accepts = self.accepts.as_mut().map(|accepts| {
            |shape: &G, payload| {
                accepts(&Record {
                    shape: *shape,
                    payload,
                })
            }
        });
        let mut request = engines::Nearest {
            wanted,
            within: self.within,
            from: self.last.map(|(last, _)| last),
            accepts: accepts.as_mut().map(|accepts| accepts as _),
        };
        let mut found = find(&self.index, &self.metric, &mut request)?;
        self.is_read = found.len() < wanted;
        if let Some((last, equal)) = &self.last {
            // The search begins with the record that was returned last: what is equal to it has been returned as often as counted.
            let repeated = found
                .iter()
                .take(*equal)
                .take_while(|of| of.compare(last).is_eq());
            let repeated = repeated.count();
            found.drain(..repeated);
        }
        self.block = found.into_iter();
        self.wanted = self.wanted.saturating_mul(GROWTH);
        Ok(())
    }
}

impl<G: Geometry> Iterator for Nearest<'_, G> {
    type Item = Result<(f64, Record<G>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(next) = self.block.next() {
                let equal = match &self.last {
                    Some((last, equal)) if last.compare(&next).is_eq() => equal + 1,
                    _ => 1,
                };
                self.last = Some((next, equal));
                let record = Record {
                    shape: next.shape,
                    payload: next.payload,
                };
                let distance = with_metric!(&self.metric, metric => metric.distance(next.distance));
                return Some(Ok((distance, record)));
            }
            if self.is_read {
                return None;
            }
            if let Err(error) = self.read() {
                self.is_read = true;
                return Some(Err(error));
            }
        }
    }
}

impl<G: Geometry> std::iter::FusedIterator for Nearest<'_, G> {}

/// Searches by distance.
impl<G: Geometry> Spatial<G> {
    /// The records in the order of their distances from `point`: an iterator, which yields the distances too.
    ///
    /// The distance to a box is that to its nearest point, 0 inside. Two coordinates that are the same infinity are at distance 0 from each other;
    /// from any other number an infinite one is infinitely far. See [`Nearest`] for the order, the units and the costs, and for how to
    /// [bound](Nearest::within) and to [filter](Nearest::matching).
    ///
    /// # Errors
    ///
    /// [`Error::BadGeometry`]; what goes wrong later, the iterator yields.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert_batch(&[(Point2::new(3.0, 4.0), 10), (Point2::new(0.0, 1.0), 20)])?;
    /// for found in places.nearest(Point2::new(0.0, 0.0))?.take(10) {
    ///     let (distance, place) = found?;
    ///     println!("{} is {distance} away", place.payload);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn nearest<'a>(&self, point: G::Point) -> Result<Nearest<'a, G>> {
        Nearest::new(self, &point)
    }

    /// The records that are at most `distance` away from `point`, in no particular order. The distance is in the unit of the coordinates; in
    /// metres, if they are [longitudes and latitudes](Self#coordinates).
    ///
    /// As [`intersecting`](Self::intersecting): the records are collected, and each that is there during the whole call is found exactly once.
    /// [`nearest`](Self::nearest) with [`within`](Nearest::within) finds the same records in the order of their distances, and yields those.
    ///
    /// # Errors
    ///
    /// [`Error::BadDistance`] if `distance` is NaN or negative, and those of [every method](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Error, Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert_batch(&[(Point2::new(3.0, 4.0), 10), (Point2::new(9.0, 9.0), 20)])?;
    /// let origin = Point2::new(0.0, 0.0);
    /// assert_eq!(places.within_distance(origin, 5.0)?.len(), 1);
    /// assert!(matches!(places.within_distance(origin, f64::NAN), Err(Error::BadDistance(_))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn within_distance(&self, point: G::Point, distance: f64) -> Result<Records<G>> {
        let metric = self.coordinates.metric(&point)?;
        let within = comparable_of(&metric, distance)?;
        with_metric!(&metric, metric => {
            let mut found = self.search(&metric.windows(distance))?;
            found.retain(|(shape, _)| metric.comparable(shape) <= within);
            Ok(Records::new(found))
        })
    }

    /// The nearest records, at most so many.
    pub(super) fn nearest_block(
        &self,
        point: G::Point,
        wanted: usize,
    ) -> Result<Vec<engines::Neighbour<G>>> {
        let metric = self.coordinates.metric(&point)?;
        let mut request = engines::Nearest {
            wanted,
            within: f64::INFINITY,
            from: None,
            accepts: None,
        };
        find(&self.index, &metric, &mut request)
    }
}
