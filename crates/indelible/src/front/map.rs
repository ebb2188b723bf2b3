//! The typed front of an ordered index.

use super::range::Range;
use super::{Key, MapStat, Value};
use crate::Result;
use crate::engines::Change;
use crate::host::AnyMap;
use std::marker::PhantomData;
use std::ops::RangeBounds;

/// A persistent ordered map from `K` to `V`: a named index in a [`Pool`](crate::Pool).
///
/// A `Map` is a handle: cloning it is cheap, it has no lifetime, and it keeps the pool open. All methods take `&self`
/// and may be called from any number of threads. Point operations are linearizable; on a durable pool durably so: when
/// a call returns, its change survives whatever the pool's [`Durability`](crate::Durability) promises to survive, and
/// a change in flight at a crash is there whole or not at all.
///
/// Every method may return [`Error::NanKey`] if the key is a NaN, and [`Error::Damaged`] if it meets a broken
/// structure; writes may return [`Error::ReadOnly`] and [`Error::NoSpace`]. A failed write changes nothing. No method panics on
/// any input.
///
/// The index is of the [`Kind`](crate::Kind) that the map was created with. Costs and sections named below are the LB+-Tree's, and its
/// paper's (Liu, Chen and Wang, PVLDB 13(7), 2020).
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let pool = indelible::Pool::in_memory()?;
/// let map = pool.map::<i64, f64>("temperatures")?;
/// assert_eq!(map.insert(-5, 21.5)?, None);
/// assert_eq!(map.insert(-5, 22.5)?, Some(21.5));
/// map.insert(7, 19.0)?;
/// let all: Vec<_> = map.range(..)?.collect::<Result<_, _>>()?;
/// assert_eq!(all, [(-5, 22.5), (7, 19.0)]);
/// # Ok(())
/// # }
/// ```
pub struct Map<K, V> {
    index: AnyMap,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Self {
            index: self.index.clone(),
            types: PhantomData,
        }
    }
}

impl<K: Key, V: Value> std::fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Map<{}, {}>({:?})", K::TYPE, V::TYPE, self.index.name())
    }
}

impl<K: Key, V: Value> Map<K, V> {
    /// The index below, for its tests.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn index(&self) -> &AnyMap {
        &self.index
    }

    pub(crate) fn new(index: AnyMap) -> Self {
        Self {
            index,
            types: PhantomData,
        }
    }

    /// The value of `key`, if it is there. O(log n): two to three memory misses; flushes nothing. Section 3.1.
    #[inline]
    pub fn get(&self, key: K) -> Result<Option<V>> {
        Ok(self.index.get(key.encode()?)?.map(V::from_word))
    }

    /// Whether `key` is there. Costs what [`get`](Self::get) costs.
    #[inline]
    pub fn contains(&self, key: K) -> Result<bool> {
        Ok(self.index.get(key.encode()?)?.is_some())
    }

    /// The values of `keys`, in their order.
    ///
    /// The lookups are interleaved, so that their memory misses overlap: several times the rate of single lookups.
    /// Each is linearizable by itself; the batch is not one snapshot.
    pub fn get_batch(&self, keys: &[K]) -> Result<Vec<Option<V>>> {
        let mut codes = Vec::with_capacity(keys.len());
        for key in keys {
            codes.push(key.encode()?);
        }
        let mut values = vec![None; keys.len()];
        self.index.get_batch(&codes, &mut values)?;
        Ok(values
            .into_iter()
            .map(|value| value.map(V::from_word))
            .collect())
    }

    /// Sets the value of `key` and returns the one before.
    ///
    /// A new key costs one flushed line and one fence in the good case and two of each otherwise (section 3.2), at
    /// most 1.31 lines on average; an existing key costs one and one. A full leaf is split first (section 3.3).
    #[inline]
    pub fn insert(&self, key: K, value: V) -> Result<Option<V>> {
        let word = value.to_word();
        self.write(key, |_| Change::Put(word))
    }

    /// Adds `key` if it is not there; returns `false`, and changes nothing, if it is.
    pub fn insert_new(&self, key: K, value: V) -> Result<bool> {
        let word = value.to_word();
        let before = self.write(key, |now| {
            if now.is_some() {
                Change::Keep
            } else {
                Change::Put(word)
            }
        })?;
        Ok(before.is_none())
    }

    /// Sets the value of `key` if it is there, and returns the one before. One flushed line, one fence.
    pub fn update(&self, key: K, value: V) -> Result<Option<V>> {
        let word = value.to_word();
        self.write(key, |now| {
            if now.is_some() {
                Change::Put(word)
            } else {
                Change::Keep
            }
        })
    }

    /// Changes the value of `key` from `current` to `new`, where `None` means that the key is absent, in one step.
    ///
    /// Returns `Ok(Ok(()))` if it did, and `Ok(Err(actual))` with the actual value if that was not `current`. Values
    /// are compared bit by bit, so a NaN equals itself.
    pub fn compare_exchange(
        &self,
        key: K,
        current: Option<V>,
        new: Option<V>,
    ) -> Result<std::result::Result<(), Option<V>>> {
        let (current, new) = (current.map(V::to_word), new.map(V::to_word));
        let before = self.apply(key, |now| match new {
            _ if now != current => Change::Keep,
            Some(word) => Change::Put(word),
            None => Change::Remove,
        })?;
        Ok(if before == current {
            Ok(())
        } else {
            Err(before.map(V::from_word))
        })
    }

    /// The value of `key`, inserting `value` first if the key is not there.
    pub fn get_or_insert(&self, key: K, value: V) -> Result<V> {
        let word = value.to_word();
        let before = self.write(key, |now| {
            if now.is_some() {
                Change::Keep
            } else {
                Change::Put(word)
            }
        })?;
        Ok(before.unwrap_or(value))
    }

    /// Removes `key` and returns its value. One flushed line, one fence (section 3.1, deletion); a leaf that runs empty is
    /// merged into its neighbour afterwards and its space is used again.
    pub fn remove(&self, key: K) -> Result<Option<V>> {
        self.write(key, |now| {
            if now.is_some() {
                Change::Remove
            } else {
                Change::Keep
            }
        })
    }

    /// Inserts all `records`, in an order of its own choice; of records with equal keys the last one wins.
    ///
    /// Groups of records share their fences, so on persistent memory a batch is much cheaper than its records one by
    /// one. When the call returns, all of them are durable; if it fails or the process dies, each is there whole or
    /// not at all. The batch is not one transaction.
    pub fn insert_batch(&self, records: &[(K, V)]) -> Result<()> {
        let mut words = Vec::with_capacity(records.len());
        for &(key, value) in records {
            words.push((key.encode()?, value.to_word()));
        }
        // Stable, so that of equal keys the last one is written last.
        words.sort_by_key(|&(key, _)| key);
        self.index.insert_batch(&words)
    }

    /// Fills an empty map from records in strictly ascending key order, with one thread per core.
    ///
    /// `fill` is the share of each leaf's slots that is used, from 0.1 to 1.0; 0.7 leaves room for later inserts. The whole load
    /// commits with one 8-byte store: after a crash the map is empty or complete. Other operations on the map wait
    /// until the load is done.
    ///
    /// # Errors
    ///
    /// [`Error::NotEmpty`], [`Error::NotAscending`], [`Error::BadOption`] for a fill factor out of range. The map
    /// stays empty.
    pub fn bulk_load(&self, records: &[(K, V)], fill: f64) -> Result<()> {
        let mut words = Vec::with_capacity(records.len());
        for &(key, value) in records {
            words.push((key.encode()?, value.to_word()));
        }
        self.index.bulk_load(&words, fill)
    }

    /// The record with the smallest key.
    pub fn first(&self) -> Result<Option<(K, V)>> {
        self.range(..)?.next().transpose()
    }

    /// The record with the largest key.
    pub fn last(&self) -> Result<Option<(K, V)>> {
        self.range(..)?.next_back().transpose()
    }

    /// The records whose keys lie in `bounds`, lazily, in key order; `.rev()` gives them in reverse.
    ///
    /// The iterator owns its handle and holds no lock, so the map may be written meanwhile, also by the same thread.
    /// It yields every record that was there throughout, none twice, in order, never one outside its bounds; records
    /// that come or go meanwhile it may or may not yield. It reads ahead by up to some hundred records.
    ///
    /// Bounds that exclude everything (start above end) give an empty range, not a panic.
    pub fn range(&self, bounds: impl RangeBounds<K>) -> Result<Range<K, V>> {
        Range::new(self.index.clone(), &bounds)
    }

    /// All records, in key order.
    pub fn iter(&self) -> Range<K, V> {
        Range::all(self.index.clone())
    }

    /// Number of records. O(1) once the map is warm; the first call after a crash waits until every leaf has been
    /// counted.
    pub fn len(&self) -> Result<u64> {
        self.index.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.first()?.is_none())
    }

    /// What the map is made of. O(nodes).
    pub fn stat(&self) -> Result<MapStat> {
        self.index.stat()
    }

    /// Checks every invariant of the index: order, fingerprints, links, inner nodes, signposts, ownership of every
    /// block. Returns what is wrong, in words; empty means sound. O(n).
    ///
    /// Run it while nobody writes: a concurrent write can look like a defect.
    pub fn check(&self) -> Result<Vec<String>> {
        self.index.check()
    }

    /// Gives DRAM back that is rebuilt when it is needed, and returns how many bytes; for when memory is short. Operations
    /// go on meanwhile, and rebuild what they touch. O(nodes).
    ///
    /// Not every kind of index has such DRAM; see the documentation of each.
    pub fn release_memory(&self) -> u64 {
        self.index.release_memory()
    }

    /// Waits until everything that a crash left to be rebuilt has been rebuilt. Never needed for correctness.
    pub fn warm_up(&self) -> Result<()> {
        self.index.warm_up()
    }

    #[inline]
    fn write(&self, key: K, change: impl FnMut(Option<u64>) -> Change) -> Result<Option<V>> {
        Ok(self.apply(key, change)?.map(V::from_word))
    }

    #[inline(always)]
    fn apply(&self, key: K, change: impl FnMut(Option<u64>) -> Change) -> Result<Option<u64>> {
        let before = self.index.apply(key.encode()?, change);
        before.map_err(|error| *error)
    }
}
