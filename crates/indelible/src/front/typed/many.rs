//! Batches, bulk loads, and removing many records.

use super::range::{encoded_bounds, encoded_prefix};
use super::{TypedMap, bytes_of, key_of, value_of, view_of};
use crate::Result;
use crate::encoding::{AsKey, AsValue, KeyPrefix, OrderedKey, StoredValue};
use crate::front::CompareExchange;
use crate::front::many::Misses;
use std::ops::RangeBounds;

/// Bytes of a key and of a value.
type Encoded = (Vec<u8>, Vec<u8>);

fn encoded<K, V>(key: &impl AsKey<K>, value: &impl AsValue<V>) -> Result<Encoded> {
    Ok((key.with_encoded(<[u8]>::to_vec), bytes_of(value)?))
}

fn encoded_keys<K>(keys: &[impl AsKey<K>]) -> Vec<Vec<u8>> {
    let keys = keys.iter();
    keys.map(|key| key.with_encoded(<[u8]>::to_vec)).collect()
}

/// What is done with many records. Each record is a linearizable step by itself, apart from [`bulk_load`](TypedMap::bulk_load), which is one,
/// and [`pop_first`](TypedMap::pop_first) and [`pop_last`](TypedMap::pop_last), which say themselves what they are.
impl<K: OrderedKey, V: StoredValue> TypedMap<K, V> {
    /// The values of `keys`, in their order.
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
    /// map.insert("b", 2)?;
    /// assert_eq!(map.get_batch(&["a", "b"])?, [None, Some(2)]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_batch(&self, keys: &[impl AsKey<K>]) -> Result<Vec<Option<V>>> {
        let mut values: Vec<Option<V>> = keys.iter().map(|_| None).collect();
        self.get_batch_with(keys, |number, value| {
            values[number] = Some(V::from_view(value));
        })?;
        Ok(values)
    }

    /// Calls `use_value` with the number in `keys` and the value of each key that is there, in any order. `use_value` sees the value where it lies: a `String`
    /// as `&str`. What [`BytesMap::get_batch_with`](crate::BytesMap::get_batch_with) says of the closure holds here too.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors). The closure may have been called for some keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, String>("m")?;
    /// map.extend([(1, "one"), (2, "two"), (3, "three")])?;
    /// let mut lengths = [0; 3];
    /// map.get_batch_with(&[1, 3, 4], |number, value| lengths[number] = value.len())?;
    /// assert_eq!(lengths, [3, 5, 0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_batch_with(
        &self,
        keys: &[impl AsKey<K>],
        mut use_value: impl FnMut(usize, V::View<'_>),
    ) -> Result<()> {
        let mut outcome = Ok(());
        self.bytes
            .get_batch_with(&encoded_keys(keys), |number, bytes| {
                match view_of::<V>(bytes) {
                    Ok(value) => use_value(number, value),
                    Err(error) => outcome = Err(error),
                }
            })?;
        outcome
    }

    /// Inserts records in the order of their keys; of equal keys the last one counts. After an error some of them are inserted, none if a value has no encoding.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.insert_batch(&[("b", 2), ("a", 1), ("b", 3)])?;
    /// assert_eq!(map.get("b")?, Some(3));
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_batch(&self, records: &[(impl AsKey<K>, impl AsValue<V>)]) -> Result<()> {
        let records = records.iter().map(|(key, value)| encoded(key, value));
        self.bytes
            .insert_batch(&records.collect::<Result<Vec<_>>>()?)
    }

    /// Removes the records of `keys`, in their order, and returns how many were there.
    ///
    /// Each removal is a step of its own: after a crash, some of the records may be gone and others not. The call waits for the disk once.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.insert_batch(&[("a", 1), ("b", 2)])?;
    /// assert_eq!(map.remove_batch(&["b", "c"])?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_batch(&self, keys: &[impl AsKey<K>]) -> Result<u64> {
        self.bytes.remove_batch(&encoded_keys(keys))
    }

    /// Inserts the records of an iterator, in chunks of some thousands or of 1 MiB; of records with equal keys the last one wins: see
    /// [`BytesMap::extend`](crate::BytesMap::extend).
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Of the records before the one that failed, none, some or all have been inserted then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.extend([("b", 2), ("a", 1)])?;
    /// assert_eq!(map.len()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn extend<A: AsKey<K>, B: AsValue<V>>(
        &self,
        records: impl IntoIterator<Item = (A, B)>,
    ) -> Result<()> {
        let records = records.into_iter();
        self.bytes
            .extend_results(records.map(|(key, value)| encoded(&key, &value)))
    }

    /// Fills the empty map with records whose keys ascend strictly, to the share `fill` (0.1 to 1.0) of each leaf. All of it appears in one step; after
    /// a crash or an error the map has all records or none.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors), [`Error::NotEmpty`](crate::Error::NotEmpty), [`Error::NotAscending`](crate::Error::NotAscending).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u8, u64), String>("m")?;
    /// map.bulk_load((0..1000).map(|i| ((7, i), format!("{i}"))), 0.7)?;
    /// assert_eq!(map.len()?, 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bulk_load<A: AsKey<K>, B: AsValue<V>>(
        &self,
        records: impl IntoIterator<Item = (A, B)>,
        fill: f64,
    ) -> Result<()> {
        let records = records.into_iter();
        let mut records = records.map(|(key, value)| encoded(&key, &value));
        self.bytes.bulk_load_results(&mut records, fill)
    }

    /// Removes the record with the smallest key, and returns it.
    ///
    /// No record is returned twice. The key is found and then removed, in two steps, which are one linearizable step as long as no other thread inserts a smaller key
    /// between them; see [`Map::pop_first`](crate::Map::pop_first).
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.insert("key", 1)?;
    /// assert_eq!(map.pop_first()?, Some(("key".to_owned(), 1)));
    /// assert_eq!(map.pop_first()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_first(&self) -> Result<Option<(K, V)>> {
        self.pop(|map| map.bytes.first())
    }

    /// Removes the record with the largest key, and returns it.
    ///
    /// No record is returned twice. The key is found and then removed, in two steps, which are one linearizable step as long as no other thread inserts a larger key
    /// between them; see [`Map::pop_last`](crate::Map::pop_last).
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, ()>("m")?;
    /// map.extend([(1, ()), (2, ())])?;
    /// assert_eq!(map.pop_last()?, Some((2, ())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_last(&self) -> Result<Option<(K, V)>> {
        self.pop(|map| map.bytes.last())
    }

    /// Removes the record that `find` finds, and returns it. What cannot be decoded is not removed.
    fn pop(&self, find: impl Fn(&Self) -> Result<Option<Encoded>>) -> Result<Option<(K, V)>> {
        self.bytes.index().expect_writable()?;
        let mut misses = Misses::default();
        while let Some((key, value)) = find(self)? {
            let record = (key_of(&key)?, value_of(&value)?);
            let popped = (self.bytes).compare_exchange(&key, Some(&value), None)?;
            match popped {
                CompareExchange::Exchanged => return Ok(Some(record)),
                CompareExchange::Unchanged(None) => misses.add(key)?,
                // Another thread has given it another value.
                CompareExchange::Unchanged(Some(_)) => {}
            }
        }
        Ok(None)
    }

    /// Removes the records for which `keep` is false, and returns how many it removed. A record that another thread changes meanwhile stays. So does one whose
    /// bytes are no key or no value; the error comes when all others have been seen.
    /// `keep` is called without any lock, so it may use the map.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.extend([("a", 1), ("b", 2)])?;
    /// assert_eq!(map.retain(|_, value| value == 2)?, 1);
    /// assert_eq!(map.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retain(&self, keep: impl FnMut(K, V::View<'_>) -> bool) -> Result<u64> {
        decoding::<K, V, _>(keep, |keep| self.bytes.retain(keep))
    }

    /// Removes those records in `bounds` for which `keep` is false, and returns how many it removed: see [`retain`](Self::retain).
    /// `keep` is called without any lock, so it may use the map.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.extend([("a", 1), ("b", 1), ("c", 2)])?;
    /// assert_eq!(map.retain_range("b".., |_, value| value == 2)?, 1);
    /// assert!(map.contains_key("a")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retain_range<Q: AsKey<K>>(
        &self,
        bounds: impl RangeBounds<Q>,
        keep: impl FnMut(K, V::View<'_>) -> bool,
    ) -> Result<u64> {
        let bounds = encoded_bounds::<K, Q>(&bounds);
        decoding::<K, V, _>(keep, |keep| {
            self.bytes.retain_range::<Vec<u8>>(bounds, keep)
        })
    }

    /// Removes all records whose keys lie in `bounds`, and returns how many it removed.
    ///
    /// Each removal is a step of its own, in the order of keys. Every record that is there during the whole call is removed; a record that comes meanwhile
    /// may stay. After a crash, some of the records may be gone and others not.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), u64>("m")?;
    /// map.extend([((1, "a"), 1), ((2, "b"), 2), ((3, "c"), 3)])?;
    /// assert_eq!(map.remove_range((2, "")..(3, ""))?, 1);
    /// assert_eq!(map.len()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_range<Q: AsKey<K>>(&self, bounds: impl RangeBounds<Q>) -> Result<u64> {
        let bounds = encoded_bounds::<K, Q>(&bounds);
        self.bytes.remove_range::<Vec<u8>>(bounds)
    }

    /// Removes all records whose keys begin with `prefix`, and returns how many it removed: see [`remove_range`](Self::remove_range), and
    /// [`prefix`](Self::prefix) for what can be given.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), u64>("m")?;
    /// map.extend([((1, "a"), 1), ((2, "b"), 2), ((2, "c"), 3)])?;
    /// assert_eq!(map.remove_prefix((2,))?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_prefix(&self, prefix: impl KeyPrefix<K>) -> Result<u64> {
        self.bytes.remove_prefix(encoded_prefix(&prefix).as_slice())
    }

    /// Removes all records, one after the other, and returns how many it removed: see [`remove_range`](Self::remove_range). To drop a large map at once, use
    /// [`Pool::drop_map`](crate::Pool::drop_map).
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<String, u64>("m")?;
    /// map.extend([("a", 1), ("b", 2)])?;
    /// assert_eq!(map.clear()?, 2);
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<u64> {
        self.bytes.clear()
    }
}

/// Calls `retain` with what decodes keys and values for `keep`, and keeps what cannot be decoded. The error for that comes in the end.
fn decoding<K: OrderedKey, V: StoredValue, F: FnMut(K, V::View<'_>) -> bool>(
    mut keep: F,
    retain: impl FnOnce(&mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<u64>,
) -> Result<u64> {
    let mut outcome = Ok(());
    let removed = retain(&mut |key, value| {
        let kept = key_of(key).and_then(|key| Ok(keep(key, view_of::<V>(value)?)));
        kept.unwrap_or_else(|error| {
            outcome = Err(error);
            true
        })
    })?;
    outcome.map(|()| removed)
}
