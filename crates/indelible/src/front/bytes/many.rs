//! Batches, bulk loads, and removing many records.

use super::BytesMap;
use crate::Result;
use crate::engines::StringDecision;

/// What is done with many records. Each record is a linearizable step by itself, apart from [`bulk_load`](BytesMap::bulk_load), which is one.
impl BytesMap {
    /// The values of `keys`, in their order. Lookups wait for memory together, so that this is several times as fast as one after the other in a map
    /// that does not fit the caches.
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
    /// map.insert("b", "2")?;
    /// assert_eq!(map.get_batch(&["a", "b"])?, [None, Some(b"2".to_vec())]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_batch(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = vec![None; keys.len()];
        self.get_batch_with(keys, |number, value| values[number] = Some(value.to_vec()))?;
        Ok(values)
    }

    /// Calls `use_value` with the number in `keys` and the value of each key that is there, in any order. Nothing is copied to the heap for
    /// a value, apart from pools that survive power cuts by a log; the closure is to be as short as that of [`get_with`](Self::get_with).
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors). The closure may have been called for some keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "22")])?;
    /// let mut lengths = [0; 3];
    /// map.get_batch_with(&["a", "b", "c"], |number, value| lengths[number] = value.len())?;
    /// assert_eq!(lengths, [1, 2, 0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_batch_with(
        &self,
        keys: &[impl AsRef<[u8]>],
        mut use_value: impl FnMut(usize, &[u8]),
    ) -> Result<()> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.index.get_many(&keys, &mut use_value)
    }

    /// Inserts records in the order of their keys; of equal keys the last one counts. Records that lie in one leaf share their fences. With a log
    /// ([`Durability::PowerLoss`](crate::Durability::PowerLoss) on a disk) all of them wait for the disk once.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). After [`Error::TooLong`](crate::Error::TooLong) nothing is inserted, after others some records are.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert_batch(&[("b", "2"), ("a", "1"), ("b", "3")])?;
    /// assert_eq!(map.get("b")?, Some(b"3".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_batch(&self, records: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)]) -> Result<()> {
        let mut sorted: Vec<(&[u8], &[u8])> = (records.iter())
            .map(|(key, value)| (key.as_ref(), value.as_ref()))
            .collect();
        // Stable, so that of equal keys the last one stays the last one.
        sorted.sort_by(|a, b| a.0.cmp(b.0));
        sorted.dedup_by(|later, kept| {
            let is_same = later.0 == kept.0;
            if is_same {
                *kept = *later;
            }
            is_same
        });
        self.index.insert_batch(&sorted)
    }

    /// Inserts records in any order. After an error those before are inserted.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("b", "2"), ("a", "1")])?;
    /// assert_eq!(map.len()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn extend<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
    ) -> Result<()> {
        for (key, value) in records {
            self.insert(key, value)?;
        }
        Ok(())
    }

    /// Fills the empty map with records whose keys ascend strictly, to the share `fill` (0.1 to 1.0) of each leaf. All of it appears in one step; after
    /// a crash the map has all records or none.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors), [`Error::NotEmpty`](crate::Error::NotEmpty), [`Error::NotAscending`](crate::Error::NotAscending).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.bulk_load((0..1000).map(|i| (format!("{i:04}"), "")), 0.7)?;
    /// assert_eq!(map.len()?, 1000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bulk_load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl IntoIterator<Item = (K, V)>,
        fill: f64,
    ) -> Result<()> {
        let records = records.into_iter();
        let mut copies =
            records.map(|(key, value)| Ok((key.as_ref().to_vec(), value.as_ref().to_vec())));
        self.bulk_load_results(&mut copies, fill)
    }

    /// [`bulk_load`](Self::bulk_load) of records that may fail to come: after an error the map is empty.
    pub(in crate::front) fn bulk_load_results(
        &self,
        records: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
        fill: f64,
    ) -> Result<()> {
        self.index.bulk_load(records, fill)
    }

    /// Removes the record with the smallest key, and returns it.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert_eq!(map.pop_first()?, Some((b"key".to_vec(), b"value".to_vec())));
    /// assert_eq!(map.pop_first()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        while let Some(key) = self.keys().next().transpose()? {
            if let Some(value) = self.take(&key)? {
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }

    /// Removes the record with the largest key, and returns it.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", ""), ("b", "")])?;
    /// assert_eq!(map.pop_last()?, Some((b"b".to_vec(), vec![])));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_last(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        while let Some(key) = self.keys().next_back().transpose()? {
            if let Some(value) = self.take(&key)? {
                return Ok(Some((key, value)));
            }
        }
        Ok(None)
    }

    /// Removes the records for which `keep` is false. A record that another thread changes meanwhile stays.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "2")])?;
    /// map.retain(|_, value| value == b"2")?;
    /// assert_eq!(map.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retain(&self, mut keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.index.expect_writable()?;
        for record in self.iter() {
            let (key, value) = record?;
            if !keep(&key, &value) {
                self.index.apply(&key, None, &mut |now| match now {
                    Some(now) if now.is(&value) => StringDecision::Remove,
                    _ => StringDecision::Keep,
                })?;
            }
        }
        Ok(())
    }

    /// Removes all records, one by one: a crash in between leaves some. Records that other threads insert meanwhile may stay.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "2")])?;
    /// map.clear()?;
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<()> {
        self.index.expect_writable()?;
        for key in self.keys() {
            self.remove(key?)?;
        }
        Ok(())
    }
}
