//! What a map does with many records: each is a step of its own, in an order that is said.

use super::map::damaged_value;
use super::range::{damaged_record, encode_bounds};
use super::{Key, Map, Value};
use crate::engines::Decision;
use crate::host::{AnyCursor, Handle};
use crate::pool::OneWait;
use crate::{Error, Result};
use std::borrow::Borrow;
use std::ops::RangeBounds;

/// Records that [`Map::extend`] collects before it writes them, and the other maps too: of words 64 KiB of keys and values, which fit the second-level cache, and enough that
/// sorting them makes neighbours meet in the same nodes.
pub(super) const EXTEND_RECORDS: usize = 4096;

/// Rounds in which the key at one end of a map is not found by its removal, before that is damage.
const MOST_MISSES: u32 = 1000;

/// The rounds of [`Map::pop_first`] and its like in which the key that was at the end was gone when it was to be removed. Another thread may have removed it, and
/// may have put the same key there again, but not so often in a row, each time between the two steps of this thread, and never so that this one finds the map empty. A
/// key in a damaged node that ranges read and lookups do not find, as one with a wrong fingerprint, would be tried again for ever.
#[derive(Default)]
pub(super) struct Misses<K> {
    last: Option<K>,
    in_a_row: u32,
}

impl<K: PartialEq> Misses<K> {
    /// Counts a round.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] after too many rounds with the same key.
    pub(super) fn add(&mut self, key: K) -> Result<()> {
        if self.last.as_ref() != Some(&key) {
            (self.last, self.in_a_row) = (Some(key), 0);
        }
        self.in_a_row += 1;
        if self.in_a_row < MOST_MISSES {
            return Ok(());
        }
        let what = "the key at one end of the map is read by ranges, and lookups do not find it";
        Err(Error::Damaged(what.into()))
    }
}

impl<K: Key, V: Value> Map<K, V> {
    /// Inserts all `records`, in an order of its own choice; of records with equal keys the last one wins.
    ///
    /// Groups of records share their fences, so on persistent memory a batch is much cheaper than its records one by one. O(m log n) for m records, and
    /// 16 bytes of memory for each. When the call returns, all of them are durable; if it fails or the process dies, each is there whole or not at all.
    /// The batch is not one transaction.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been inserted then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.insert_batch(&[(3, 30), (1, 10), (3, 33)])?;
    /// assert_eq!(map.get(3)?, Some(33));
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_batch(&self, records: &[(K, V)]) -> Result<()> {
        let mut words = encode_records(records)?;
        // Stable, so that of equal keys the last one is written last.
        words.sort_by_key(|&(key, _)| key);
        self.index().insert_batch(&words)
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
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.insert_batch(&[(3, 30), (1, 10)])?;
    /// assert_eq!(map.remove_batch(&[1, 2])?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_batch(&self, keys: &[K]) -> Result<u64> {
        let codes = keys
            .iter()
            .map(|&key| key.encode())
            .collect::<Result<Vec<_>>>()?;
        self.index().expect_writable()?;
        self.index().waiting_once(|| {
            codes
                .into_iter()
                .map(|code| self.remove_code(code).map(u64::from))
                .sum()
        })
    }

    /// Removes a key, and returns whether it was there.
    fn remove_code(&self, code: u64) -> Result<bool> {
        let before = self.index().remove(code);
        Ok(before.map_err(|error| *error)?.is_some())
    }

    /// Inserts the records of an iterator, in chunks of some thousands; of records with equal keys the last one wins.
    ///
    /// As [`insert_batch`](Self::insert_batch), for records that do not lie in memory together: O(m log n) for m records, and a bounded amount of memory.
    /// To fill an empty map with sorted records, [`bulk_load`](Self::bulk_load) is faster.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Of the records before the one that failed, none, some or all have been inserted then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend((0..100_000).map(|i| (i * 7 % 100_003, i)))?;
    /// map.extend(&vec![(1, 10)])?;
    /// assert_eq!(map.get(1)?, Some(10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn extend(&self, records: impl IntoIterator<Item: Borrow<(K, V)>>) -> Result<()> {
        self.index().expect_writable()?;
        // The iterator is asked on after each chunk, and one that has ended may begin again.
        let mut records = records.into_iter().fuse();
        let mut chunk: Vec<(K, V)> = Vec::new();
        loop {
            chunk.clear();
            chunk.extend(
                records
                    .by_ref()
                    .take(EXTEND_RECORDS)
                    .map(|record| *record.borrow()),
            );
            if chunk.is_empty() {
                return Ok(());
            }
            self.insert_batch(&chunk)?;
        }
    }

    /// Fills an empty map from records in strictly ascending key order, with one thread per core.
    ///
    /// `records` may be a slice, a vector, or an iterator of pairs or of references to pairs. They are collected first: 16 bytes of memory for each.
    /// `fill` is the share of each leaf's slots that is used, from 0.1 to 1.0; 0.7 leaves room for later inserts. O(m) for m records.
    ///
    /// The whole load commits with one 8-byte store: after a crash the map is empty or complete. Other operations on the map wait until the load is
    /// done.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`], [`Error::NotAscending`], [`Error::BadOption`] for a fill factor out of range, and those of
    /// [every write](Self#errors). The map is as before then.
    ///
    /// [`Error::NotEmpty`]: crate::Error::NotEmpty
    /// [`Error::NotAscending`]: crate::Error::NotAscending
    /// [`Error::BadOption`]: crate::Error::BadOption
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// use std::collections::BTreeMap;
    /// map.bulk_load((0..1000).map(|i| (i, i * i)), 0.7)?;
    /// assert_eq!(map.get(31)?, Some(961));
    ///
    /// // Unsorted records: sort them first.
    /// let sorted: BTreeMap<u64, u64> = [(3, 30), (1, 10)].into();
    /// map.clear()?;
    /// map.bulk_load(sorted, 1.0)?;
    /// assert_eq!(map.len()?, 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bulk_load(
        &self,
        records: impl IntoIterator<Item: Borrow<(K, V)>>,
        fill: f64,
    ) -> Result<()> {
        self.index().bulk_load(&encode_records(records)?, fill)
    }

    /// Removes the record with the smallest key and returns it; `None` if the map is empty.
    ///
    /// No record is returned twice, however many threads call this. It finds the smallest key and then removes it, in two steps. So while no other thread
    /// inserts a smaller key, the call is one linearizable step: several threads can take from this end what others add in ascending order. If another thread does
    /// insert a smaller key between the two steps, that key stays, and the record returned is the one that [`first`](Self::first) found.
    ///
    /// O(log n), and what [`remove`](Self::remove) costs; from the beginning again whenever another thread has taken the record.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors); nothing is changed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(3, 30), (1, 10)])?;
    /// assert_eq!(map.pop_first()?, Some((1, 10)));
    /// assert_eq!(map.pop_first()?, Some((3, 30)));
    /// assert_eq!(map.pop_first()?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_first(&self) -> Result<Option<(K, V)>> {
        self.pop(Self::first)
    }

    /// Removes the record with the largest key and returns it; `None` if the map is empty.
    ///
    /// No record is returned twice, however many threads call this. It finds the largest key and then removes it, in two steps. So while no other thread
    /// inserts a larger key, the call is one linearizable step: several threads can take from this end what others add in descending order. If another thread does
    /// insert a larger key between the two steps, that key stays, and the record returned is the one that [`last`](Self::last) found.
    ///
    /// O(log n), and what [`remove`](Self::remove) costs; from the beginning again whenever another thread has taken the record.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors); nothing is changed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(3, 30), (1, 10)])?;
    /// assert_eq!(map.pop_last()?, Some((3, 30)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn pop_last(&self) -> Result<Option<(K, V)>> {
        self.pop(Self::last)
    }

    fn pop(&self, find: impl Fn(&Self) -> Result<Option<(K, V)>>) -> Result<Option<(K, V)>> {
        self.index().expect_writable()?;
        let mut misses = Misses::default();
        while let Some((key, _)) = find(self)? {
            // The value may have changed since: what counts is the one that is removed.
            if let Some(value) = self.remove(key)? {
                return Ok(Some((key, value)));
            }
            misses.add(key.encode()?)?;
        }
        Ok(None)
    }

    /// Removes all records whose keys lie in `bounds`, and returns how many it removed.
    ///
    /// Each removal is a step of its own, in ascending order. Every record that is there during the whole call is removed; a record that comes meanwhile
    /// may stay. After a crash, some of the records may be gone and others not. O(log n + m) for m records; each costs what [`remove`](Self::remove)
    /// costs, but the call waits for the disk once.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend((0..100).map(|i| (i, i)))?;
    /// assert_eq!(map.remove_range(10..20)?, 10);
    /// assert_eq!(map.len()?, 90);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove_range(&self, bounds: impl RangeBounds<K>) -> Result<u64> {
        self.index()
            .waiting_once(|| self.remove_each(&bounds, |[key, _]| self.remove_code(key)))
    }

    /// Removes all records, one after the other, and returns how many it removed: [`remove_range(..)`](Self::remove_range).
    ///
    /// O(n). To drop a large map at once, use [`Pool::drop_map`](crate::Pool::drop_map).
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(3, 30), (1, 10)])?;
    /// assert_eq!(map.clear()?, 2);
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<u64> {
        self.remove_range(..)
    }

    /// Removes those records in `bounds` for which `keep` returns `false`, and returns how many it removed.
    ///
    /// Each removal is a step of its own, in ascending order, and removes a record only with the value that `keep` has seen: if another thread changes
    /// the value first, `keep` is called again. Records that come meanwhile may or may not be looked at. `keep` is called without any lock, so it may use
    /// the map. After a crash, some of the records may be gone and others not.
    ///
    /// O(log n + m) for m records in the bounds; each that is removed costs what [`remove`](Self::remove) costs, without its wait for the disk, and the others flush nothing.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors). Some of the records may have been removed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend((0..100).map(|i| (i, i % 10)))?;
    /// assert_eq!(map.retain(50.., |_, value| *value != 0)?, 5);
    /// assert!(map.contains(40)? && !map.contains(50)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retain(
        &self,
        bounds: impl RangeBounds<K>,
        mut keep: impl FnMut(&K, &V) -> bool,
    ) -> Result<u64> {
        let mut wait = self.index().upkeep().one_wait();
        let removed = self.remove_each(&bounds, |[code, word]| {
            let Some(key) = K::decode(code) else {
                return Err(damaged_record::<K, V>([code, word]));
            };
            self.remove_unless(code, word, &mut wait, |value| keep(&key, value))
        })?;
        wait.wait()?;
        Ok(removed)
    }

    /// Calls `remove` for each record in `bounds`, in ascending order, and returns how often it says that it has removed one.
    fn remove_each(
        &self,
        bounds: &impl RangeBounds<K>,
        mut remove: impl FnMut([u64; 2]) -> Result<bool>,
    ) -> Result<u64> {
        self.index().expect_writable()?;
        let mut cursor = AnyCursor::new(self.index().clone(), encode_bounds(bounds)?);
        let mut removed = 0;
        loop {
            let chunk = cursor.next_chunk(usize::MAX)?;
            if chunk.is_empty() {
                return Ok(removed);
            }
            for &record in chunk {
                removed += u64::from(remove(record)?);
            }
        }
    }

    /// Removes the key `code`, whose value was `word`, unless `keep` wants its value. Returns whether it did.
    fn remove_unless(
        &self,
        code: u64,
        word: u64,
        wait: &mut OneWait<'_>,
        mut keep: impl FnMut(&V) -> bool,
    ) -> Result<bool> {
        let mut seen = word;
        loop {
            let value = V::from_word(seen).ok_or_else(|| damaged_value::<V>(seen))?;
            if keep(&value) {
                return Ok(false);
            }
            let remove = &mut |now| {
                if now == Some(seen) {
                    Decision::Remove
                } else {
                    Decision::Keep
                }
            };
            let before = wait.part(|| self.index().apply(code, remove));
            match before.map_err(|error| *error)? {
                // Read once more, since `keep` is not to see what a power cut could take back.
                Some(now) if now != seen => match self.index().get(code)? {
                    Some(now) => seen = now,
                    None => return Ok(false),
                },
                before => return Ok(before.is_some()),
            }
        }
    }
}

fn encode_records<K: Key, V: Value>(
    records: impl IntoIterator<Item: Borrow<(K, V)>>,
) -> Result<Vec<(u64, u64)>> {
    let records = records.into_iter();
    let mut words = Vec::new();
    // An iterator may promise more records than there is memory for, and its first one may be refused: then the list grows as they come.
    let _ = words.try_reserve_exact(records.size_hint().0);
    for record in records {
        let &(key, value) = record.borrow();
        words.push((key.encode()?, value.to_word()));
    }
    Ok(words)
}
