//! Pairs of records from two indexes.

use super::{Record, Spatial};
use crate::Result;
use crate::host::AnySpatial;
use crate::spatial::{Geometry, Rect};

/// Records of the smaller index that are looked for in the larger one at once: their searches wait for memory together.
const BLOCK: usize = 64;

/// The pairs of records from two indexes that have a point in common, from [`Spatial::join`].
///
/// An iterator of `Result<(record of the first, record of the second)>`, in no particular order. It holds the records of the smaller index,
/// and the pairs of 64 of them at a time. After an error it ends.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Box2, Point2, Pool};
/// let pool = Pool::in_memory()?;
/// let (parks, trees) = (pool.spatial::<Box2>("parks")?, pool.spatial::<Point2>("trees")?);
/// parks.insert(Box2::new(Point2::new(0.0, 0.0), Point2::new(3.0, 3.0)), 10)?;
/// trees.insert_batch(&[(Point2::new(1.0, 1.0), 1), (Point2::new(4.0, 1.0), 2)])?;
/// for pair in parks.join(&trees)? {
///     let (park, tree) = pair?;
///     assert_eq!((park.payload, tree.payload), (10, 1));
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "the iterator is lazy"]
pub struct Join<G: Geometry, H: Geometry> {
    search: Search<G, H>,
    /// Pairs that have been found and not returned yet.
    pairs: std::vec::IntoIter<(Record<G>, Record<H>)>,
}

/// The records of the smaller index that are left, and the larger index.
enum Search<G: Geometry, H: Geometry> {
    Second(Vec<(G, u64)>, AnySpatial<H>),
    First(Vec<(H, u64)>, AnySpatial<G>),
}

impl<G: Geometry, H: Geometry> std::fmt::Debug for Join<G, H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Join<{}, {}>", G::TYPE, H::TYPE)
    }
}

impl<G: Geometry, H: Geometry> Join<G, H> {
    /// Finds the pairs of the next block of records; `false` if no record is left.
    fn read(&mut self) -> Result<bool> {
        let mut pairs = Vec::new();
        let is_more = match &mut self.search {
            Search::Second(rest, index) => {
                find_pairs(rest, index, |one, other| pairs.push((one, other)))?
            }
            Search::First(rest, index) => {
                find_pairs(rest, index, |one, other| pairs.push((other, one)))?
            }
        };
        self.pairs = pairs.into_iter();
        Ok(is_more)
    }

    fn end(&mut self) {
        match &mut self.search {
            Search::Second(rest, _) => rest.clear(),
            Search::First(rest, _) => rest.clear(),
        }
    }
}

/// Takes a block of records from the end of `rest`, and calls `found` for each pair of one of them and a record of `index`. Returns whether
/// there was a record left.
fn find_pairs<A: Geometry, B: Geometry>(
    rest: &mut Vec<(A, u64)>,
    index: &AnySpatial<B>,
    mut found: impl FnMut(Record<A>, Record<B>),
) -> Result<bool> {
    let block = rest.split_off(rest.len().saturating_sub(BLOCK));
    if block.is_empty() {
        return Ok(false);
    }
    let windows: Vec<[Rect; 1]> = block.iter().map(|(shape, _)| [Rect::of(shape)]).collect();
    let searches: Vec<&[Rect]> = windows.iter().map(|window| &window[..]).collect();
    let mut partners = vec![Vec::new(); block.len()];
    index.search_many(&searches, &mut partners)?;
    for (record, partners) in block.into_iter().zip(partners) {
        for partner in partners {
            found(record.into(), partner.into());
        }
    }
    Ok(true)
}

impl<G: Geometry, H: Geometry> Iterator for Join<G, H> {
    type Item = Result<(Record<G>, Record<H>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(pair) = self.pairs.next() {
                return Some(Ok(pair));
            }
            match self.read() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.end();
                    return Some(Err(error));
                }
            }
        }
    }
}

impl<G: Geometry, H: Geometry> std::iter::FusedIterator for Join<G, H> {}

impl<G: Geometry> Spatial<G> {
    /// The pairs of a record of this index and a record of `other` that have a point in common. Edges and faces belong to both.
    ///
    /// The geometries of the indexes may be points and boxes, of as many axes; coordinates are compared as numbers, whatever they mean. Joined
    /// with itself, an index has each record in a pair with itself, and each pair in both orders.
    ///
    /// The records of the smaller index are read when this is called, O(m) memory for m of them; their partners are looked for as the
    /// iterator goes on: O(m log n + pairs) for small shapes that overlap little. Soon after a crash the call waits until the records of both indexes have been counted. Each pair of records that both are there, in one
    /// place, from this call to the end of the iteration is found exactly once.
    ///
    /// # Errors
    ///
    /// Those of [every method](Self#errors); what goes wrong later, the iterator yields.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # use indelible::{Box2, Point2, Pool};
    /// # let pool = Pool::in_memory()?;
    /// let (parks, trees) = (pool.spatial::<Box2>("parks")?, pool.spatial::<Point2>("trees")?);
    /// parks.insert(Box2::new(Point2::new(0.0, 0.0), Point2::new(3.0, 3.0)), 10)?;
    /// trees.insert(Point2::new(3.0, 3.0), 1)?;
    /// assert_eq!(parks.join(&trees)?.count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn join<H>(&self, other: &Spatial<H>) -> Result<Join<G, H>>
    where
        H: Geometry<Window = G::Window>,
    {
        let search = if self.len()? <= other.len()? {
            Search::Second(everything(&self.index)?, other.index.clone())
        } else {
            Search::First(everything(&other.index)?, self.index.clone())
        };
        Ok(Join {
            search,
            pairs: Vec::new().into_iter(),
        })
    }
}

/// All records of an index.
fn everything<G: Geometry>(index: &AnySpatial<G>) -> Result<Vec<(G, u64)>> {
    let mut records = Vec::new();
    index.search(&[Rect::EVERYTHING], &mut records)?;
    Ok(records)
}
