//! Batches, bulk loads, and removing many records.

use super::{BytesKeys, BytesMap, BytesRange};
use crate::Result;
use crate::engines::{Current, StringDecision};
use crate::front::many::{EXTEND_RECORDS, Misses};
use crate::host::Handle;
use std::ops::RangeBounds;

/// Bytes of keys and values after which [`BytesMap::extend`] writes what it has collected, also if it is fewer records than [`EXTEND_RECORDS`].
const EXTEND_BYTES: usize = 1 << 20;

/// What is done with many records. Each record is a linearizable step by itself, apart from [`bulk_load`](BytesMap::bulk_load), which is one,
/// and [`pop_first`](BytesMap::pop_first) and [`pop_last`](BytesMap::pop_last), which say themselves what they are.
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert_batch(&[("a", "1"), ("b", "2")])?;
    /// assert_eq!(map.remove_batch(&["b", "c"])?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_batch(&self, keys: &[impl AsRef<[u8]>]) -> Result<u64> {
        self.remove_keys(keys.iter().map(Ok))
    }

    /// Inserts the records of an iterator, in chunks of some thousands or of 1 MiB; of records with equal keys the last one wins.
    ///
    /// As [`insert_batch`](Self::insert_batch), for records that do not lie in memory together. To fill an empty map with sorted records,
    /// [`bulk_load`](Self::bulk_load) is faster.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Of the records before the one that failed, none, some or all have been inserted then.
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
        self.extend_results(records.into_iter().map(Ok))
    }

    /// [`extend`](Self::extend) with records that may fail to come.
    pub(in crate::front) fn extend_results<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: impl Iterator<Item = Result<(K, V)>>,
    ) -> Result<()> {
        self.index.expect_writable()?;
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        for record in records {
            let (key, value) = record?;
            bytes += key.as_ref().len() + value.as_ref().len();
            chunk.push((key, value));
            if chunk.len() == EXTEND_RECORDS || bytes >= EXTEND_BYTES {
                self.insert_batch(&chunk)?;
                chunk.clear();
                bytes = 0;
            }
        }
        self.insert_batch(&chunk)
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert_eq!(map.pop_first()?, Some((b"key".to_vec(), b"value".to_vec())));
    /// assert_eq!(map.pop_first()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_first(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.pop(BytesKeys::next)
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", ""), ("b", "")])?;
    /// assert_eq!(map.pop_last()?, Some((b"b".to_vec(), vec![])));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_last(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.pop(BytesKeys::next_back)
    }

    /// Removes the record at one end of the keys, and returns it.
    fn pop(
        &self,
        end: impl Fn(&mut BytesKeys) -> Option<Result<Vec<u8>>>,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        self.index.expect_writable()?;
        let mut misses = Misses::default();
        while let Some(key) = end(&mut self.keys()).transpose()? {
            if let Some(value) = self.take(&key)? {
                return Ok(Some((key, value)));
            }
            misses.add(key)?;
        }
        Ok(None)
    }

    /// Removes the records for which `keep` is false, and returns how many it removed: [`retain_range`](Self::retain_range) of all keys.
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "2")])?;
    /// assert_eq!(map.retain(|_, value| value == b"2")?, 1);
    /// assert_eq!(map.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retain(&self, keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<u64> {
        self.retain_in(self.iter(), keep)
    }

    /// Removes those records in `bounds` for which `keep` is false, and returns how many it removed. A record that another thread changes meanwhile stays. Each
    /// removal is a step of its own, in the order of keys: after a crash, some of the records may be gone and others not.
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "1"), ("c", "2")])?;
    /// assert_eq!(map.retain_range("b".., |_, value| value == b"2")?, 1);
    /// assert!(map.contains_key("a")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retain_range<K: AsRef<[u8]>>(
        &self,
        bounds: impl RangeBounds<K>,
        keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        self.retain_in(self.range(bounds), keep)
    }

    fn retain_in(
        &self,
        records: BytesRange,
        mut keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64> {
        self.index.expect_writable()?;
        let (mut removed, mut wait) = (0, self.index.upkeep().one_wait());
        for record in records {
            let (key, value) = record?;
            if keep(&key, &value) {
                continue;
            }
            let mut is_same = false;
            let remove = &mut |now: Option<&Current<'_>>| {
                is_same = now.is_some_and(|now| now.is(&value));
                if is_same {
                    StringDecision::Remove
                } else {
                    StringDecision::Keep
                }
            };
            wait.part(|| self.index.apply(&key, None, remove))?;
            removed += u64::from(is_same);
        }
        wait.wait()?;
        Ok(removed)
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "2"), ("c", "3")])?;
    /// assert_eq!(map.remove_range("b"..)?, 2);
    /// assert_eq!(map.len()?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Result<u64> {
        self.remove_keys(self.range_keys(bounds))
    }

    /// Removes all records whose keys begin with `prefix`, and returns how many it removed: see [`remove_range`](Self::remove_range).
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("user/1", ""), ("user/2", ""), ("group/1", "")])?;
    /// assert_eq!(map.remove_prefix("user/")?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<u64> {
        self.remove_keys(self.prefix_keys(prefix))
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.extend([("a", "1"), ("b", "2")])?;
    /// assert_eq!(map.clear()?, 2);
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<u64> {
        self.remove_keys(self.keys())
    }

    fn remove_keys(&self, keys: impl Iterator<Item = Result<impl AsRef<[u8]>>>) -> Result<u64> {
        self.index.expect_writable()?;
        self.index
            .waiting_once(|| keys.map(|key| self.remove(key?).map(u64::from)).sum())
    }
}
