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
}

impl<K: Key, V: Value> DoubleEndedIterator for Range<K, V> {
    #[inline(always)]
    fn next_back(&mut self) -> Option<(K, V)> {
        self.cursor.next_back().map(Self::decode)
    }
}

impl<K: Key, V: Value> FusedIterator for Range<K, V> {}
