//! Lazy iteration in both directions.

use crate::index::{AnyCursor, AnyIndex};
use crate::{Error, Key, Result, Value};
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// An iterator over the records of a [`Map`](crate::Map) in key order, from [`Map::range`](crate::Map::range).
///
/// It works from both ends. It owns its handle and holds no lock and no guard between calls.
///
/// Should it meet a damaged structure it ends early and [`error`](Self::error) says so; on a sound pool it never does.
pub struct Range<K, V> {
    cursor: AnyCursor,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Key, V: Value> Range<K, V> {
    pub(super) fn all(index: AnyIndex) -> Self {
        Self {
            cursor: AnyCursor::new(index, Some((0, u64::MAX))),
            types: PhantomData,
        }
    }

    pub(super) fn new(index: AnyIndex, bounds: &impl RangeBounds<K>) -> Result<Self> {
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
        let bounds = first.zip(last).filter(|(first, last)| first <= last);
        Ok(Self {
            cursor: AnyCursor::new(index, bounds),
            types: PhantomData,
        })
    }

    /// The error that ended the iteration early, if one did. Taking it resets it.
    pub fn error(&mut self) -> Option<Error> {
        self.cursor.take_error()
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
    /// [`Error::Damaged`], as from [`error`](Self::error); what was read before is in `out`.
    pub fn read(&mut self, most: usize, out: &mut Vec<(K, V)>) -> Result<usize> {
        let mut left = most;
        while left > 0 {
            let some = self.cursor.next_chunk(left);
            if some.is_empty() {
                break;
            }
            out.extend(some.iter().copied().map(Self::decode));
            left -= some.len();
        }
        self.error().map_or(Ok(most - left), Err)
    }

    fn decode([key, value]: [u64; 2]) -> (K, V) {
        (K::decode(key), V::from_word(value))
    }
}

impl<K: Key, V: Value> Iterator for Range<K, V> {
    type Item = (K, V);

    #[inline(always)]
    fn next(&mut self) -> Option<(K, V)> {
        self.cursor.next().map(Self::decode)
    }

    fn fold<T, F: FnMut(T, (K, V)) -> T>(mut self, start: T, mut f: F) -> T {
        let mut result = start;
        loop {
            let some = self.cursor.next_chunk(usize::MAX);
            if some.is_empty() {
                return result;
            }
            for &record in some {
                result = f(result, Self::decode(record));
            }
        }
    }
}

impl<K: Key, V: Value> DoubleEndedIterator for Range<K, V> {
    #[inline(always)]
    fn next_back(&mut self) -> Option<(K, V)> {
        self.cursor.next_back().map(Self::decode)
    }
}

impl<K: Key, V: Value> FusedIterator for Range<K, V> {}
