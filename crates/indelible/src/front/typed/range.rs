//! Reading a typed map in the order of keys, lazily, in both directions.

use super::{TypedMap, key_of, value_of, view_of};
use crate::Result;
use crate::encoding::{AsKey, KeyBuffer, KeyPrefix, OrderedKey, Place, StoredValue};
use crate::front::{BytesKeys, BytesRange, BytesValues};
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// Reading in the order of keys. While others write, a range reports each record that is there during the whole range exactly once, and may or may not
/// report one that is inserted or removed meanwhile; each value is one that its key had at some moment.
impl<K: OrderedKey, V: StoredValue> TypedMap<K, V> {
    /// The records whose keys lie in `bounds`, lazily, in the order of keys; `.rev()` gives them in reverse. For all of them: [`iter`](Self::iter).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(String, u32), u64>("m")?;
    /// map.extend([(("a", 1), 1), (("a", 2), 2), (("b", 1), 3)])?;
    /// let values: Vec<_> = map.range(("a", 2)..=("b", 1)).rev().map(|record| record.unwrap().1).collect();
    /// assert_eq!(values, [3, 2]);
    /// assert_eq!(map.range(..("b", 0)).count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range<Q: AsKey<K>>(&self, bounds: impl RangeBounds<Q>) -> TypedRange<K, V> {
        let bounds = encoded_bounds::<K, Q>(&bounds);
        TypedRange::new(self.bytes.range::<Vec<u8>>(bounds))
    }

    /// All records, lazily, in the order of keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<i128, u64>("m")?;
    /// map.extend([(1, 1), (-1, 2)])?;
    /// assert_eq!(map.iter().next().transpose()?, Some((-1, 2)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn iter(&self) -> TypedRange<K, V> {
        TypedRange::new(self.bytes.iter())
    }

    /// The records whose keys begin with `prefix`, lazily, in the order of keys: with the first fields of a tuple, or with a string. [`KeyPrefix`] says what can be given.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), u64>("m")?;
    /// use indelible::Begins;
    /// map.extend([((7, "ab"), 1), ((7, "cd"), 2), ((8, "ab"), 3)])?;
    /// assert_eq!(map.prefix((7,)).count(), 2);
    /// assert_eq!(map.prefix((7, Begins("a"))).count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix(&self, prefix: impl KeyPrefix<K>) -> TypedRange<K, V> {
        TypedRange::new(self.bytes.prefix(encoded_prefix(&prefix).as_slice()))
    }

    /// All keys, lazily, in order. Long values are not read.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<i128, u64>("m")?;
    /// map.insert(1, 1)?;
    /// assert_eq!(map.keys().next().transpose()?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn keys(&self) -> TypedKeys<K> {
        TypedKeys::new(self.bytes.keys())
    }

    /// The keys in `bounds`, lazily, in order. Long values are not read.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.extend([("a", 1), ("b", 2), ("c", 3)])?;
    /// assert_eq!(map.range_keys("b"..).count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn range_keys<Q: AsKey<K>>(&self, bounds: impl RangeBounds<Q>) -> TypedKeys<K> {
        let bounds = encoded_bounds::<K, Q>(&bounds);
        TypedKeys::new(self.bytes.range_keys::<Vec<u8>>(bounds))
    }

    /// The keys that begin with `prefix`, lazily, in order. Long values are not read.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.extend([("a", 1), ("ab", 2), ("b", 3)])?;
    /// assert_eq!(map.prefix_keys("a").count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn prefix_keys(&self, prefix: impl KeyPrefix<K>) -> TypedKeys<K> {
        TypedKeys::new(self.bytes.prefix_keys(encoded_prefix(&prefix).as_slice()))
    }

    /// All values, lazily, in the order of their keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<i128, u64>("m")?;
    /// map.insert(1, 10)?;
    /// assert_eq!(map.values().next().transpose()?, Some(10));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn values(&self) -> TypedValues<V> {
        TypedValues::new(self.bytes.values())
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
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.extend([("b", 2), ("a", 1)])?;
    /// assert_eq!(map.first()?, Some(("a".to_owned(), 1)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn first(&self) -> Result<Option<(K, V)>> {
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
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.extend([("b", 2), ("a", 1)])?;
    /// assert_eq!(map.last()?, Some(("b".to_owned(), 2)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.iter().next_back().transpose()
    }
}

impl<K: OrderedKey, V: StoredValue> IntoIterator for &TypedMap<K, V> {
    type Item = Result<(K, V)>;
    type IntoIter = TypedRange<K, V>;

    fn into_iter(self) -> TypedRange<K, V> {
        self.iter()
    }
}

/// Bounds as the map of byte strings has them.
pub(super) fn encoded_bounds<K, Q: AsKey<K>>(
    bounds: &impl RangeBounds<Q>,
) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let bound = |bound: Bound<&Q>| bound.map(|key| key.with_encoded(<[u8]>::to_vec));
    (bound(bounds.start_bound()), bound(bounds.end_bound()))
}

pub(super) fn encoded_prefix<K>(prefix: &impl KeyPrefix<K>) -> KeyBuffer {
    let mut bytes = KeyBuffer::new();
    prefix.encode_prefix(&mut bytes, Place::End);
    bytes
}

impl<K: OrderedKey, V: StoredValue> TypedRange<K, V> {
    /// What `use_record` makes of the next record, in the order of keys. `use_record` gets the key, and sees the value where a copy of its bytes lies: a
    /// `String` as `&str`. So nothing is allocated for a short value, which [`next`](Iterator::next) returns as one of its own; the bytes of a
    /// [long one](crate::BytesMap#long-values) are copied into a vector.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, u32), String>("m")?;
    /// map.extend([((7, 1), "one"), ((7, 2), "two"), ((8, 1), "three")])?;
    /// let (mut range, mut bytes) = (map.prefix((7,)), 0);
    /// while let Some(length) = range.next_with(|_, value| value.len()) {
    ///     bytes += length?;
    /// }
    /// assert_eq!(bytes, 6);
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_with<T>(
        &mut self,
        use_record: impl FnOnce(K, V::View<'_>) -> T,
    ) -> Option<Result<T>> {
        self.read_record::<true, T>(use_record)
    }

    /// What `use_record` makes of the record at the upper end: [`next_with`](Self::next_with) for [`next_back`](DoubleEndedIterator::next_back).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, String>("m")?;
    /// map.extend([(1, "one"), (2, "three")])?;
    /// let length = map.iter().next_back_with(|_, value| value.len()).transpose()?;
    /// assert_eq!(length, Some(5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_back_with<T>(
        &mut self,
        use_record: impl FnOnce(K, V::View<'_>) -> T,
    ) -> Option<Result<T>> {
        self.read_record::<false, T>(use_record)
    }

    fn read_record<const UP: bool, T>(
        &mut self,
        use_record: impl FnOnce(K, V::View<'_>) -> T,
    ) -> Option<Result<T>> {
        self.read::<UP, T>(|key, value| Ok(use_record(key_of(key)?, view_of::<V>(value)?)))
    }
}

macro_rules! iterator {
    ($(#[$doc:meta])+ $Name:ident<$($T:ident: $Trait:ident),+>, $Bytes:ident, $Item:ty, $decode:expr) => {
        $(#[$doc])+
        pub struct $Name<$($T),+> {
            bytes: $Bytes,
            /// Something could not be decoded.
            is_done: bool,
            types: PhantomData<fn() -> ($($T,)+)>,
        }

        impl<$($T),+> std::fmt::Debug for $Name<$($T),+> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({:?})", stringify!($Name), self.bytes)
            }
        }

        impl<$($T: $Trait),+> $Name<$($T),+> {
            fn new(bytes: $Bytes) -> Self {
                Self {
                    bytes,
                    is_done: false,
                    types: PhantomData,
                }
            }

            /// What `decode` makes of the next record, at the lower end if `UP`.
            fn read<const UP: bool, T>(
                &mut self,
                decode: impl FnOnce(&[u8], &[u8]) -> Result<T>,
            ) -> Option<Result<T>> {
                if self.is_done {
                    return None;
                }
                let item = self.bytes.read_with::<UP, Result<T>>(decode)?;
                let item = item.and_then(|decoded| decoded);
                self.is_done = item.is_err();
                Some(item)
            }
        }

        impl<$($T: $Trait),+> Iterator for $Name<$($T),+> {
            type Item = Result<$Item>;

            fn next(&mut self) -> Option<Self::Item> {
                self.read::<true, _>($decode)
            }
        }

        impl<$($T: $Trait),+> DoubleEndedIterator for $Name<$($T),+> {
            fn next_back(&mut self) -> Option<Self::Item> {
                self.read::<false, _>($decode)
            }
        }

        impl<$($T: $Trait),+> FusedIterator for $Name<$($T),+> {}
    };
}
iterator! {
    /// The records of a range, from [`TypedMap::range`], [`TypedMap::prefix`] and [`TypedMap::iter`]. After an error it ends.
    TypedRange<K: OrderedKey, V: StoredValue>, BytesRange, (K, V),
    |key, value| Ok((key_of(key)?, value_of(value)?))
}
iterator! {
    /// The keys of a map, from [`TypedMap::keys`] and [`TypedMap::prefix_keys`]. After an error it ends.
    TypedKeys<K: OrderedKey>, BytesKeys, K, |key, _| key_of(key)
}
iterator! {
    /// The values of a map, from [`TypedMap::values`]. After an error it ends.
    TypedValues<V: StoredValue>, BytesValues, V, |_, value| value_of(value)
}
