//! Searches in windows, and what they have found.

use super::Spatial;
use crate::Result;
use crate::spatial::{Geometry, Grid, Rect, Windows, box_of_centres};

/// A record of a spatial index.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Point2, Pool, Record};
/// let places = Pool::in_memory()?.spatial::<Point2>("places")?;
/// let here = Point2::new(1.0, 2.0);
/// places.insert(here, 10)?;
/// assert_eq!(places.at_point(here)?.next(), Some(Record { shape: here, payload: 10 }));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record<G> {
    /// The point or the box.
    pub shape: G,
    /// What was stored beside it.
    pub payload: u64,
}

impl<G> From<(G, u64)> for Record<G> {
    fn from((shape, payload): (G, u64)) -> Self {
        Self { shape, payload }
    }
}

/// The numbers of windows, in the order of their centres on a Hilbert curve over all of them.
fn along_a_curve<W: Geometry>(windows: &[W]) -> Vec<usize> {
    let grid = Grid::new(&box_of_centres(windows.iter().copied()), W::AXES);
    let mut numbers: Vec<usize> = (0..windows.len()).collect();
    numbers.sort_by_cached_key(|&number| grid.code_of(&windows[number]));
    numbers
}

/// The records that a search has found: an iterator that knows its length.
///
/// The search is over when the iterator is there; it holds the records, and nothing of the index.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Box2, Point2, Pool};
/// let places = Pool::in_memory()?.spatial::<Point2>("places")?;
/// places.insert(Point2::new(1.0, 2.0), 10)?;
/// let found = places.intersecting(Box2::new(Point2::new(0.0, 0.0), Point2::new(9.0, 9.0)))?;
/// assert_eq!(found.len(), 1);
/// for record in found {
///     println!("{:?}: {}", record.shape, record.payload);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Records<G> {
    found: std::vec::IntoIter<(G, u64)>,
}

impl<G> Records<G> {
    pub(super) fn new(found: Vec<(G, u64)>) -> Self {
        Self {
            found: found.into_iter(),
        }
    }
}

impl<G> Iterator for Records<G> {
    type Item = Record<G>;

    fn next(&mut self) -> Option<Record<G>> {
        self.found.next().map(Record::from)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.found.size_hint()
    }
}

impl<G> DoubleEndedIterator for Records<G> {
    fn next_back(&mut self) -> Option<Record<G>> {
        self.found.next_back().map(Record::from)
    }
}

impl<G> ExactSizeIterator for Records<G> {}
impl<G> std::iter::FusedIterator for Records<G> {}

/// Searches in windows.
impl<G: Geometry> Spatial<G> {
    /// The records that have a point in common with `window`, in no particular order. Edges and faces belong to both.
    ///
    /// Edges of the window may be infinite. In an index of longitudes and latitudes the window may
    /// [cross the antimeridian](Self#coordinates).
    ///
    /// The records are collected: O(hits) memory. O(log n + hits) for small windows and shapes that overlap little. Each record that is there
    /// during the whole call is found exactly once.
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
    /// # let parks = Pool::in_memory()?.spatial::<Box2>("parks")?;
    /// let square = |low: f64, high: f64| Box2::new(Point2::new(low, low), Point2::new(high, high));
    /// parks.insert(square(0.0, 3.0), 10)?;
    /// parks.insert(square(4.0, 5.0), 20)?;
    /// assert_eq!(parks.intersecting(square(2.0, 4.0))?.len(), 2);
    /// assert_eq!(parks.intersecting(square(f64::NEG_INFINITY, f64::INFINITY))?.len(), 2);
    /// assert!(parks.intersecting(square(2.0, 1.0)).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn intersecting(&self, window: G::Window) -> Result<Records<G>> {
        let windows = self.coordinates.windows(&window)?;
        Ok(Records::new(self.search(&windows)?))
    }

    /// The records that lie in `window` with all of their points, in no particular order. Edges and faces belong to both.
    ///
    /// As [`intersecting`](Self::intersecting), which is the same for points.
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
    /// # let parks = Pool::in_memory()?.spatial::<Box2>("parks")?;
    /// let square = |low: f64, high: f64| Box2::new(Point2::new(low, low), Point2::new(high, high));
    /// parks.insert(square(0.0, 3.0), 10)?;
    /// parks.insert(square(4.0, 5.0), 20)?;
    /// let inside: Vec<u64> = parks.contained_in(square(2.0, 5.0))?.map(|park| park.payload).collect();
    /// assert_eq!(inside, [20]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn contained_in(&self, window: G::Window) -> Result<Records<G>> {
        let windows = self.coordinates.windows(&window)?;
        let mut found = self.search(&windows)?;
        found.retain(|(shape, _)| {
            let rect = Rect::of(shape);
            let mut windows = windows.as_slice().iter();
            windows.any(|window| window.contains(&rect))
        });
        Ok(Records::new(found))
    }

    /// The records that contain `point`, on an edge or inside, in no particular order.
    ///
    /// For points: the records that are there. As [`intersecting`](Self::intersecting).
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
    /// # let parks = Pool::in_memory()?.spatial::<Box2>("parks")?;
    /// parks.insert(Box2::new(Point2::new(0.0, 0.0), Point2::new(3.0, 3.0)), 10)?;
    /// assert_eq!(parks.at_point(Point2::new(1.0, 3.0))?.len(), 1);
    /// assert_eq!(parks.at_point(Point2::new(1.0, 3.1))?.len(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn at_point(&self, point: G::Point) -> Result<Records<G>> {
        let point = self.coordinates.accept(&point)?;
        let window: G::Window = Rect::of(&point).window();
        self.intersecting(window)
    }

    /// The records that have a point in common with each of `windows`, in the order of the windows: as [`intersecting`](Self::intersecting) for
    /// each of them.
    ///
    /// Each search is a step by itself; the batch is not one snapshot. The windows are searched in the order of their centres on a Hilbert curve, so
    /// that a search finds in the processor's caches what the one before has read, if there are many of them; and several small windows are
    /// searched at a time, so that their waits for memory overlap.
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors); nothing is searched after [`Error::BadGeometry`](crate::Error::BadGeometry).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Box2, Point2, Pool};
    /// # let places = Pool::in_memory()?.spatial::<Point2>("places")?;
    /// places.insert(Point2::new(1.0, 1.0), 10)?;
    /// let square = |low: f64, high: f64| Box2::new(Point2::new(low, low), Point2::new(high, high));
    /// let found = places.query_batch(&[square(0.0, 1.0), square(2.0, 3.0)])?;
    /// assert_eq!((found[0].len(), found[1].len()), (1, 0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn query_batch(&self, windows: &[G::Window]) -> Result<Vec<Records<G>>> {
        let accepted: Result<Vec<Windows>> = windows
            .iter()
            .map(|window| self.coordinates.windows(window))
            .collect();
        let accepted = accepted?;
        let order = along_a_curve(windows);
        let searches: Vec<&[Rect]> = order
            .iter()
            .map(|&number| accepted[number].as_slice())
            .collect();
        let mut found: Vec<Vec<(G, u64)>> = Vec::new();
        found.resize_with(windows.len(), Vec::new);
        self.index.search_many(&searches, &mut found)?;
        let mut in_order: Vec<Records<G>> = Vec::new();
        in_order.resize_with(windows.len(), || Records::new(Vec::new()));
        for (number, found) in order.into_iter().zip(found) {
            in_order[number] = Records::new(found);
        }
        Ok(in_order)
    }

    /// The records that meet one of `windows`.
    pub(super) fn search(&self, windows: &Windows) -> Result<Vec<(G, u64)>> {
        let mut found = Vec::new();
        self.index.search(windows.as_slice(), &mut found)?;
        Ok(found)
    }
}
