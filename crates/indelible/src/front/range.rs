//! Reading a map in key order, lazily, in both directions.

use super::{Key, Map, Value};
use crate::engines::KeyValue;
use crate::host::{AnyCursor, AnyMap};
use crate::{Error, Result};
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// Reading in key order.
impl<K: Key, V: Value> Map<K, V> {
    /// The record with the smallest key.
    ///
    /// O(log n). Flushes nothing. If other threads write meanwhile: a record that was there at some moment of the call, and no record with a smaller key
    /// was there during the whole call.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(3, 30), (1, 10)])?;
    /// assert_eq!(map.first()?, Some((1, 10)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.iter().next().transpose()
    }

    /// The record with the largest key.
    ///
    /// O(log n). Flushes nothing. If other threads write meanwhile: a record that was there at some moment of the call, and no record with a larger key
    /// was there during the whole call.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(3, 30), (1, 10)])?;
    /// assert_eq!(map.last()?, Some((3, 30)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.iter().next_back().transpose()
    }

    /// The records whose keys lie in `bounds`, lazily, in key order; `.rev()` gives them in reverse.
    ///
    /// The iterator owns its handle and holds no lock, so the map may be written meanwhile, also by the same thread. It yields every record that was
    /// there throughout, none twice, in order, never one outside its bounds; records that come or go meanwhile it may or may not yield. It reads ahead by
    /// up to some hundred records.
    ///
    /// The first record costs O(log n), each further one some nanoseconds. Bounds that exclude everything (start above end) give an empty range, not a
    /// panic.
    ///
    /// # Errors
    ///
    /// [`Error::NanKey`](crate::Error::NanKey) for a bound that is a NaN. This is why `range` returns a `Result` and [`iter`](Self::iter),
    /// which has no bounds, does not. What the iterator meets afterwards comes as its items: see [`Range`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend((0..100).map(|i| (i, i)))?;
    /// let keys: indelible::Result<Vec<u64>> = map.range(10..=12)?.map(|record| Ok(record?.0)).collect();
    /// assert_eq!(keys?, [10, 11, 12]);
    /// assert_eq!(map.range(50..40)?.count(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range(&self, bounds: impl RangeBounds<K>) -> Result<Range<K, V>> {
        Range::new(self.index().clone(), &bounds)
    }

    /// All records, in key order: what [`range(..)`](Self::range) gives, without a `Result` around it, as no bound can be wrong. `&map` in a `for` loop
    /// does the same.
    ///
    /// Each item is a `Result`: an error if the map is damaged there.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(3, 30), (1, 10)])?;
    /// let all: Vec<_> = map.iter().collect::<Result<_, _>>()?;
    /// assert_eq!(all, [(1, 10), (3, 30)]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn iter(&self) -> Range<K, V> {
        Range::all(self.index().clone())
    }

    /// All keys, in ascending order. Each item is a `Result`: an error if the map is damaged there. See [`range`](Self::range).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(3, 30), (1, 10)])?;
    /// assert_eq!(map.keys().collect::<Result<Vec<_>, _>>()?, [1, 3]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn keys(&self) -> Keys<K, V> {
        Keys(self.iter())
    }

    /// All values, in the order of their keys. Each item is a `Result`: an error if the map is damaged there. See [`range`](Self::range).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(3, 30), (1, 10)])?;
    /// let mut sum = 0;
    /// for value in map.values() {
    ///     sum += value?;
    /// }
    /// assert_eq!(sum, 40);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn values(&self) -> Values<K, V> {
        Values(self.iter())
    }
}

/// All records in key order, as [`Map::iter`] gives them.
impl<K: Key, V: Value> IntoIterator for &Map<K, V> {
    type Item = Result<(K, V)>;
    type IntoIter = Range<K, V>;

    fn into_iter(self) -> Range<K, V> {
        self.iter()
    }
}

/// An iterator over the records of a [`Map`](crate::Map) in key order, from [`Map::range`](crate::Map::range) and
/// [`Map::iter`](crate::Map::iter).
///
/// The iterator works from both ends. It owns its handle, so it has no lifetime, and between two calls it holds no lock. One record costs
/// some nanoseconds; the first one costs a lookup, O(log n). Reading flushes nothing.
///
/// Each item is a `Result`: a range that meets a damaged structure yields [`Error::Damaged`](crate::Error::Damaged) once, and ends. On a
/// sound pool it never does. [`read`](Self::read) takes many records at once, which is faster.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
/// map.extend((0..10).map(|i| (i, i * i)))?;
/// for record in map.range(3..5)? {
///     let (key, value) = record?;
///     assert_eq!(value, key * key);
/// }
/// let mut ends = map.iter();
/// assert_eq!(ends.next().transpose()?, Some((0, 0)));
/// assert_eq!(ends.next_back().transpose()?, Some((9, 81)));
/// # Ok(())
/// # }
/// ```
pub struct Range<K, V> {
    cursor: AnyCursor,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> std::fmt::Debug for Range<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range").finish_non_exhaustive()
    }
}

impl<K: Key, V: Value> Range<K, V> {
    pub(super) fn all(map: AnyMap) -> Self {
        Self::over(map, Some((0, u64::MAX)))
    }

    pub(super) fn new(map: AnyMap, bounds: &impl RangeBounds<K>) -> Result<Self> {
        Ok(Self::over(map, encode_bounds(bounds)?))
    }

    fn over(map: AnyMap, bounds: Option<(u64, u64)>) -> Self {
        Self {
            cursor: AnyCursor::new(map, bounds),
            types: PhantomData,
        }
    }

    /// Appends the next `most` records to `out`, or all that are left if they are fewer, and returns how many that were.
    ///
    /// Cheaper than taking them one by one, above all if it is known how many are wanted. `out` keeps its room between calls.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`](crate::Error::Damaged); what was read before is in `out`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use indelible::{Pool, Result};
    /// # fn main() -> Result<()> {
    /// let pool = Pool::in_memory()?;
    /// let map = pool.map::<u64, u64>("squares")?;
    /// map.extend((0..1000).map(|i| (i * i, i)))?;
    /// let mut page = Vec::new();
    /// assert_eq!(map.range(10_000..)?.read(3, &mut page)?, 3);
    /// assert_eq!(page, [(10_000, 100), (10_201, 101), (10_404, 102)]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(&mut self, most: usize, out: &mut Vec<(K, V)>) -> Result<usize> {
        let mut left = most;
        while left > 0 {
            let chunk = self.cursor.next_chunk(left)?;
            if chunk.is_empty() {
                break;
            }
            // To ask first keeps the copy below free of branches.
            let is_total = K::IS_TOTAL && V::IS_TOTAL;
            let is_damaged = |record: &KeyValue| Self::decode(*record).is_none();
            if !is_total && let Some(at) = chunk.iter().position(is_damaged) {
                out.extend(chunk[..at].iter().copied().filter_map(Self::decode));
                let record = chunk[at];
                return Err(self.end_with(record));
            }
            out.extend(
                chunk
                    .iter()
                    .map(|&record| decoded_before(Self::decode(record))),
            );
            left -= chunk.len();
        }
        Ok(most - left)
    }

    #[inline(always)]
    fn decode([key, value]: KeyValue) -> Option<(K, V)> {
        Some((K::decode(key)?, V::from_word(value)?))
    }

    #[inline(always)]
    fn item(&mut self, record: KeyValue) -> Result<(K, V)> {
        match Self::decode(record) {
            Some(record) => Ok(record),
            None => Err(self.end_with(record)),
        }
    }

    /// Ends the range at a record that no map of these types can have.
    #[cold]
    fn end_with(&mut self, record: KeyValue) -> Error {
        self.cursor.end();
        damaged_record::<K, V>(record)
    }
}

/// What has been decoded already, to see whether it can be.
#[inline(always)]
pub(super) fn decoded_before<T>(decoded: Option<T>) -> T {
    decoded.expect("decoding the same word twice gives the same")
}

/// The error for a record that no map from `K` to `V` can have.
#[cold]
pub(super) fn damaged_record<K: Key, V: Value>([key, value]: KeyValue) -> Error {
    Error::Damaged(if K::decode(key).is_none() {
        format!(
            "no {} is stored as {key:#x}, which is a key of the map",
            K::TYPE
        )
    } else {
        format!(
            "no {} is stored as {value:#x}, which is a value of the map",
            V::TYPE
        )
    })
}

/// The lowest and the highest encoded key within bounds, or `None` if nothing lies within them.
pub(super) fn encode_bounds<K: Key>(bounds: &impl RangeBounds<K>) -> Result<Option<(u64, u64)>> {
    let first = match bounds.start_bound() {
        Bound::Included(key) => Some(key.encode()?),
        Bound::Excluded(key) => key.encode()?.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let last = match bounds.end_bound() {
        Bound::Included(key) => Some(key.encode()?),
        Bound::Excluded(key) => key.encode()?.checked_sub(1),
        Bound::Unbounded => Some(u64::MAX),
    };
    Ok(first.zip(last).filter(|(first, last)| first <= last))
}

impl<K: Key, V: Value> Iterator for Range<K, V> {
    type Item = Result<(K, V)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        match self.cursor.pop() {
            Some(record) => Some(self.item(record)),
            None => match self.cursor.read_front() {
                Ok(record) => record.map(|record| self.item(record)),
                Err(error) => Some(Err(error)),
            },
        }
    }

    fn fold<T, F: FnMut(T, Self::Item) -> T>(mut self, start: T, mut f: F) -> T {
        let mut result = start;
        loop {
            match self.cursor.next_chunk(usize::MAX) {
                Ok([]) => return result,
                Ok(chunk) => {
                    for &record in chunk {
                        let Some(record) = Self::decode(record) else {
                            return f(result, Err(damaged_record::<K, V>(record)));
                        };
                        result = f(result, Ok(record));
                    }
                }
                Err(error) => return f(result, Err(error)),
            }
        }
    }
}

impl<K: Key, V: Value> DoubleEndedIterator for Range<K, V> {
    #[inline(always)]
    fn next_back(&mut self) -> Option<Self::Item> {
        match self.cursor.pop_back() {
            Some(record) => Some(self.item(record)),
            None => match self.cursor.read_back() {
                Ok(record) => record.map(|record| self.item(record)),
                Err(error) => Some(Err(error)),
            },
        }
    }
}

impl<K: Key, V: Value> FusedIterator for Range<K, V> {}

macro_rules! halves {
    ($(#[$doc:meta])+ $name:ident, $item:ident, $half:tt;) => {
        $(#[$doc])+
        #[derive(Debug)]
        pub struct $name<K, V>(pub(super) Range<K, V>);

        impl<K: Key, V: Value> Iterator for $name<K, V> {
            type Item = Result<$item>;

            #[inline]
            fn next(&mut self) -> Option<Self::Item> {
                Some(self.0.next()?.map(|record| record.$half))
            }

            fn fold<T, F: FnMut(T, Self::Item) -> T>(self, start: T, mut f: F) -> T {
                self.0.fold(start, |result, record| f(result, record.map(|record| record.$half)))
            }
        }

        impl<K: Key, V: Value> DoubleEndedIterator for $name<K, V> {
            #[inline]
            fn next_back(&mut self) -> Option<Self::Item> {
                Some(self.0.next_back()?.map(|record| record.$half))
            }
        }

        impl<K: Key, V: Value> FusedIterator for $name<K, V> {}
    };
}

halves! {
    /// An iterator over the keys of a [`Map`](crate::Map) in ascending order, from [`Map::keys`](crate::Map::keys).
    ///
    /// Like [`Range`], of which it is one half: it works from both ends, and yields an error once, and ends, where the map is damaged.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let map = indelible::Pool::in_memory()?.map::<u64, bool>("m")?;
    /// map.extend([(3, true), (1, false)])?;
    /// assert_eq!(map.keys().rev().collect::<indelible::Result<Vec<_>>>()?, [3, 1]);
    /// # Ok(())
    /// # }
    /// ```
    Keys, K, 0;
}

halves! {
    /// An iterator over the values of a [`Map`](crate::Map) in the order of their keys, from [`Map::values`](crate::Map::values).
    ///
    /// Like [`Range`], of which it is one half: it works from both ends, and yields an error once, and ends, where the map is damaged.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// let map = indelible::Pool::in_memory()?.map::<u64, bool>("m")?;
    /// map.extend([(3, true), (1, false)])?;
    /// assert_eq!(map.values().collect::<indelible::Result<Vec<_>>>()?, [false, true]);
    /// # Ok(())
    /// # }
    /// ```
    Values, V, 1;
}
