//! Reading a map of byte strings in the order of keys, lazily, in both directions.

use super::BytesMap;
use crate::engines::{ReadValue, StringBuffer, StringRange};
use crate::host::AnyStrings;
use crate::{Error, Result};
use std::iter::FusedIterator;
use std::ops::{Bound, RangeBounds};

/// A record.
type Record = (Vec<u8>, Vec<u8>);

/// Reading in the order of keys. While others write, a range reports each record that is there during the whole range exactly once, and may or may not
/// report one that is inserted or removed meanwhile; each value is one that its key had at some moment.
impl BytesMap {
    /// The records whose keys lie in `bounds`, lazily, in the order of keys; `.rev()` gives them in reverse. For all of them: [`iter`](Self::iter).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "2"), ("c", "3")])?;
    /// let keys: Vec<_> = map.range("a"..="b").rev().map(|record| record.unwrap().0).collect();
    /// assert_eq!(keys, [b"b", b"a"]);
    /// assert_eq!(map.range("b"..).count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> BytesRange {
        BytesRange(Cursor::new(self, owned(&bounds), true))
    }

    /// All records, lazily, in the order of keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert_eq!(map.iter().count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn iter(&self) -> BytesRange {
        BytesRange(Cursor::new(
            self,
            (Bound::Unbounded, Bound::Unbounded),
            true,
        ))
    }

    /// The records whose keys begin with `prefix`, lazily, in the order of keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", ""), ("a/b", ""), ("a/c", ""), ("b", "")])?;
    /// assert_eq!(map.prefix("a/").count(), 2);
    /// assert_eq!(map.prefix("").count(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> BytesRange {
        BytesRange(Cursor::new(self, prefix_bounds(prefix.as_ref()), true))
    }

    /// All keys, lazily, in order. Long values are not read.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert_eq!(map.keys().next().transpose()?, Some(b"key".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn keys(&self) -> BytesKeys {
        BytesKeys(Cursor::new(
            self,
            (Bound::Unbounded, Bound::Unbounded),
            false,
        ))
    }

    /// The keys in `bounds`, lazily, in order. Long values are not read.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", ""), ("b", ""), ("c", "")])?;
    /// assert_eq!(map.range_keys("b"..).count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range_keys<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> BytesKeys {
        BytesKeys(Cursor::new(self, owned(&bounds), false))
    }

    /// The keys that begin with `prefix`, lazily, in order. Long values are not read.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", ""), ("a/b", "")])?;
    /// assert_eq!(map.prefix_keys("a/").count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix_keys(&self, prefix: impl AsRef<[u8]>) -> BytesKeys {
        BytesKeys(Cursor::new(self, prefix_bounds(prefix.as_ref()), false))
    }

    /// All values, lazily, in the order of their keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert_eq!(map.values().next().transpose()?, Some(b"value".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn values(&self) -> BytesValues {
        BytesValues(Cursor::new(
            self,
            (Bound::Unbounded, Bound::Unbounded),
            true,
        ))
    }

    /// The record with the smallest key.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("b", "2"), ("a", "1")])?;
    /// assert_eq!(map.first()?, Some((b"a".to_vec(), b"1".to_vec())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn first(&self) -> Result<Option<Record>> {
        self.iter().next().transpose()
    }

    /// The record with the largest key.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("b", "2"), ("a", "1")])?;
    /// assert_eq!(map.last()?, Some((b"b".to_vec(), b"2".to_vec())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn last(&self) -> Result<Option<Record>> {
        self.iter().next_back().transpose()
    }
}

fn owned<K: AsRef<[u8]>>(bounds: &impl RangeBounds<K>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let bound = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (bound(bounds.start_bound()), bound(bounds.end_bound()))
}

impl IntoIterator for &BytesMap {
    type Item = Result<Record>;
    type IntoIter = BytesRange;

    fn into_iter(self) -> BytesRange {
        self.iter()
    }
}

/// The bounds of the keys that begin with `prefix`.
fn prefix_bounds(prefix: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let low = Bound::Included(prefix.to_vec());
    // The first string that is above all that begin with the prefix: its last byte that is not 255 counts one up, and what follows goes.
    let Some(last) = prefix.iter().rposition(|&byte| byte < u8::MAX) else {
        return (low, Bound::Unbounded);
    };
    let mut high = prefix[..=last].to_vec();
    high[last] += 1;
    (low, Bound::Excluded(high))
}

/// A range in progress, from both ends. Between two calls it holds no lock and no guard.
struct Cursor {
    index: AnyStrings,
    unread: StringRange,
    /// What was read at the lower end, ascending.
    front: StringBuffer,
    /// What was read at the upper end, descending.
    back: StringBuffer,
    with_values: bool,
}

impl Cursor {
    fn new(
        map: &BytesMap,
        (low, high): (Bound<Vec<u8>>, Bound<Vec<u8>>),
        with_values: bool,
    ) -> Self {
        Self {
            index: map.index.clone(),
            unread: StringRange::new(low, high),
            front: StringBuffer::default(),
            back: StringBuffer::default(),
            with_values,
        }
    }

    /// What `use_record` makes of the next record.
    #[inline]
    fn next_with<const UP: bool, T>(
        &mut self,
        use_record: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<Result<T>> {
        let buffer = if UP { &mut self.front } else { &mut self.back };
        if let Some((key, value)) = buffer.pop_short() {
            return Some(Ok(use_record(key, value)));
        }
        self.read_next_with::<UP, T>(use_record)
    }

    /// [`next_with`](Self::next_with) where the record has to be read first, or its value has to be looked up.
    #[inline(never)]
    fn read_next_with<const UP: bool, T>(
        &mut self,
        use_record: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<Result<T>> {
        loop {
            let (buffer, other) = if UP {
                (&mut self.front, &mut self.back)
            } else {
                (&mut self.back, &mut self.front)
            };
            let read = if buffer.is_empty() {
                (self.index).read_on(UP, &mut self.unread, buffer, self.with_values)
            } else {
                Ok(())
            };
            // The ends have met: the rest lies in the other buffer.
            let record = read.and_then(|()| match buffer.pop_front()? {
                Some(record) => Ok(Some(record)),
                None => other.pop_back(),
            });
            let (key, value) = match record {
                Ok(record) => record?,
                Err(error) => return self.end(error),
            };
            match value {
                ReadValue::Here(value) => return Some(Ok(use_record(key, value))),
                ReadValue::Later => {
                    let mut value = None;
                    let read =
                        (self.index).get_with(key, &mut |bytes| value = Some(bytes.to_vec()));
                    match (read, value) {
                        (Err(error), _) => return self.end(error),
                        (Ok(_), Some(value)) => return Some(Ok(use_record(key, &value))),
                        // Removed meanwhile.
                        (Ok(_), None) => {}
                    }
                }
            }
        }
    }

    /// Ends the range with an error: nothing is read any more.
    fn end<T>(&mut self, error: Error) -> Option<Result<T>> {
        self.unread.is_done = true;
        self.front.clear();
        self.back.clear();
        Some(Err(error))
    }
}

impl BytesRange {
    /// What `use_record` makes of the next record, key and value, in the order of keys. Nothing is allocated for a short record, so this is
    /// much faster than [`next`](Iterator::next), which copies key and value into vectors of their own. A [long value](BytesMap#long-values) is copied into a vector here too; who
    /// wants to read such values without a copy goes through the [keys](BytesMap::keys) with [`get_with`](BytesMap::get_with).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "22")])?;
    /// let mut bytes = 0;
    /// let mut range = map.range("a"..);
    /// while let Some(length) = range.next_with(|_, value| value.len()) {
    ///     bytes += length?;
    /// }
    /// assert_eq!(bytes, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn next_with<T>(
        &mut self,
        use_record: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<Result<T>> {
        self.0.next_with::<true, T>(use_record)
    }

    /// What `use_record` makes of the record at the upper end: [`next_with`](Self::next_with) for [`next_back`](DoubleEndedIterator::next_back).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "22")])?;
    /// let length = map.iter().next_back_with(|_, value| value.len()).transpose()?;
    /// assert_eq!(length, Some(2));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn next_back_with<T>(
        &mut self,
        use_record: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> Option<Result<T>> {
        self.0.next_with::<false, T>(use_record)
    }
}

macro_rules! iterator {
    ($(#[$doc:meta])+ $Name:ident, $Item:ty, $of_record:expr) => {
        $(#[$doc])+
        pub struct $Name(Cursor);

        impl std::fmt::Debug for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{} of {:?}", stringify!($Name), self.0.index.name())
            }
        }

        impl $Name {
            /// What `use_record` makes of the next record, at the lower end if `UP`. Of keys alone the value is empty, or anything.
            #[inline]
            pub(in crate::front) fn read_with<const UP: bool, T>(
                &mut self,
                use_record: impl FnOnce(&[u8], &[u8]) -> T,
            ) -> Option<Result<T>> {
                self.0.next_with::<UP, T>(use_record)
            }
        }

        impl Iterator for $Name {
            type Item = Result<$Item>;

            fn next(&mut self) -> Option<Self::Item> {
                self.read_with::<true, _>($of_record)
            }
        }

        impl DoubleEndedIterator for $Name {
            fn next_back(&mut self) -> Option<Self::Item> {
                self.read_with::<false, _>($of_record)
            }
        }

        impl FusedIterator for $Name {}
    };
}
iterator! {
    /// The records of a range, from [`BytesMap::range`], [`BytesMap::prefix`] and [`BytesMap::iter`]. After an error it ends.
    BytesRange, Record, |key, value| (key.to_vec(), value.to_vec())
}
iterator! {
    /// The keys of a map, from [`BytesMap::keys`] and [`BytesMap::prefix_keys`]. After an error it ends.
    BytesKeys, Vec<u8>, |key, _| key.to_vec()
}
iterator! {
    /// The values of a map, from [`BytesMap::values`]. After an error it ends.
    BytesValues, Vec<u8>, |_, value| value.to_vec()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn the_end_of_a_prefix_is_the_first_string_above_it() {
        let high = |prefix: &[u8]| prefix_bounds(prefix).1;
        assert_eq!(high(b""), Bound::Unbounded);
        assert_eq!(high(&[255, 255]), Bound::Unbounded);
        assert_eq!(high(&[3, 255]), Bound::Excluded(vec![4]));
        assert_eq!(high(b"ab"), Bound::Excluded(b"ac".to_vec()));
    }

    #[test]
    fn nothing_is_read_behind_an_error() {
        let map = Pool::in_memory().unwrap().bytes("m").unwrap();
        map.extend((0..100_u8).map(|i| ([i], [i]))).unwrap();
        let mut range = map.iter();
        // What comes next has been read, at both ends.
        assert!(range.next().is_some() && range.next_back().is_some());
        let last = range.0.end::<()>(Error::ReadOnly);
        assert!(matches!(last, Some(Err(Error::ReadOnly))));
        assert!(range.next().is_none() && range.next_back().is_none());
    }
}
