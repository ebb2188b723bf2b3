//! Lazy iteration in both directions.

use super::{Key, Value};
use crate::Result;
use crate::engines::KeyValue;
use crate::host::{AnyCursor, AnyMap};
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// An iterator over the records of a [`Map`](crate::Map) in key order, from [`Map::range`](crate::Map::range).
///
/// It works from both ends. It owns its handle and holds no lock and no guard between calls.
///
/// Each item is a `Result`: should the range meet a damaged structure, it yields the error and ends. On a sound pool it never does.
/// [`read`](Self::read) takes many records at once, which is faster.
pub struct Range<K, V> {
    cursor: AnyCursor,
    types: PhantomData<fn(K) -> V>,
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
    /// Cheaper than taking them one by one, above all if it is known how many are wanted. `out` keeps its room between calls:
    ///
    /// ```
    /// # use indelible::{Pool, Result};
    /// # fn main() -> Result<()> {
    /// let pool = Pool::in_memory()?;
    /// let map = pool.map::<u64, u64>("squares")?;
    /// for i in 0..1000 {
    ///     map.insert(i * i, i)?;
    /// }
    /// let mut page = Vec::new();
    /// assert_eq!(map.range(10_000..)?.read(3, &mut page)?, 3);
    /// assert_eq!(page, [(10_000, 100), (10_201, 101), (10_404, 102)]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`](crate::Error::Damaged); what was read before is in `out`.
    pub fn read(&mut self, most: usize, out: &mut Vec<(K, V)>) -> Result<usize> {
        let mut left = most;
        while left > 0 {
            let chunk = self.cursor.next_chunk(left)?;
            if chunk.is_empty() {
                break;
            }
            out.extend(chunk.iter().copied().map(Self::decode));
            left -= chunk.len();
        }
        Ok(most - left)
    }

    #[inline(always)]
    fn decode([key, value]: KeyValue) -> (K, V) {
        (K::decode(key), V::from_word(value))
    }

    #[inline(always)]
    fn item(next: Result<Option<KeyValue>>) -> Option<Result<(K, V)>> {
        match next {
            Ok(record) => record.map(|record| Ok(Self::decode(record))),
            Err(error) => Some(Err(error)),
        }
    }
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
            Some(record) => Some(Ok(Self::decode(record))),
            None => Self::item(self.cursor.read_front()),
        }
    }

    fn fold<T, F: FnMut(T, Self::Item) -> T>(mut self, start: T, mut f: F) -> T {
        let mut result = start;
        loop {
            match self.cursor.next_chunk(usize::MAX) {
                Ok([]) => return result,
                Ok(chunk) => {
                    for &record in chunk {
                        result = f(result, Ok(Self::decode(record)));
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
            Some(record) => Some(Ok(Self::decode(record))),
            None => Self::item(self.cursor.read_back()),
        }
    }
}

impl<K: Key, V: Value> FusedIterator for Range<K, V> {}
