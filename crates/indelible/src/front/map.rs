//! The typed front of an ordered index: the map, and what it does with one key. What is done with the map as a whole is in `upkeep`.

use super::range::{damaged_record, decoded_before};
use super::{Key, Value};
use crate::engines::Decision;
use crate::host::{AnyMap, deciding};
use crate::{Error, Result};
use std::marker::PhantomData;

/// A persistent ordered map from `K` to `V`: a named index in a [`Pool`](crate::Pool).
///
/// A `Map` is a handle: cloning it is cheap, it has no lifetime, and it keeps the pool open. All methods take `&self` and may be called
/// from any number of threads.
///
/// The index is of the [`Kind`](crate::Kind) that the map was created with. Where a method names costs in lines and fences, and a section of
/// a paper, they are the LB+-Tree's (Liu, Chen and Wang, PVLDB 13(7), 2020); n is the number of records.
///
/// # Concurrency and durability
///
/// What is done with one key ([`get`](Self::get), [`insert`](Self::insert), [`update_with`](Self::update_with) and their like) is one
/// linearizable step. What is done with many records is many such steps; each method says what that means.
///
/// When a call returns, its changes survive whatever the pool's [`Durability`](crate::Durability) promises to survive. Of a change of one key
/// that is in flight at a crash, all is there afterwards, or nothing.
///
/// # Errors
///
/// Every method may return [`Error::NanKey`] if a key is a NaN, and [`Error::Damaged`] if it meets a broken structure, or bytes that are no
/// `K` or no `V`. Every write may also return [`Error::ReadOnly`] and [`Error::NoSpace`]. No method panics on any input.
///
/// In a pool with a log every write may also return [`Error::LogFailed`](crate::Error::LogFailed), and with `Durability::PowerLoss` so may a read of records that are not durable yet. After that
/// error a change may or may not be there when the pool is opened again.
///
/// [`Error::NanKey`]: crate::Error::NanKey
/// [`Error::Damaged`]: crate::Error::Damaged
/// [`Error::ReadOnly`]: crate::Error::ReadOnly
/// [`Error::NoSpace`]: crate::Error::NoSpace
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
/// for record in &map {
///     let (day, degrees) = record?;
///     println!("{day}: {degrees}");
/// }
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

/// What [`Map::compare_exchange`] did.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::CompareExchange;
/// let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
/// match map.compare_exchange(1, Some(5), Some(6))? {
///     CompareExchange::Exchanged => println!("5 became 6"),
///     CompareExchange::Unchanged(Some(value)) => println!("it was {value}"),
///     CompareExchange::Unchanged(None) => println!("there was none"),
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "the exchange may not have happened"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareExchange<V> {
    /// The key had the value that was expected, and has the new one now.
    Exchanged,
    /// The key had this value, `None` meaning that it was absent, and still has it.
    Unchanged(Option<V>),
}

impl<V> CompareExchange<V> {
    /// Whether the key has the new value now.
    #[must_use]
    pub const fn is_exchanged(&self) -> bool {
        matches!(self, Self::Exchanged)
    }
}

impl<K: Key, V: Value> Map<K, V> {
    pub(crate) fn new(index: AnyMap) -> Self {
        Self {
            index,
            types: PhantomData,
        }
    }

    /// The index below.
    pub(crate) fn index(&self) -> &AnyMap {
        &self.index
    }

    /// The value of `key`, if the key is there.
    ///
    /// O(log n): two to three memory misses; flushes nothing. Section 3.1.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.insert(1, 10)?;
    /// assert_eq!(map.get(1)?, Some(10));
    /// assert_eq!(map.get(2)?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn get(&self, key: K) -> Result<Option<V>> {
        Self::value(self.index.get(key.encode()?)?)
    }

    /// Whether `key` is there. Costs what [`get`](Self::get) costs.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.insert(1, 10)?;
    /// assert!(map.contains(1)?);
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn contains(&self, key: K) -> Result<bool> {
        Ok(self.index.get(key.encode()?)?.is_some())
    }

    /// The values of `keys`, in their order.
    ///
    /// The lookups are interleaved, so that their memory misses overlap: several times the rate of single lookups. Each lookup is linearizable by
    /// itself; the batch is not one snapshot.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
    /// map.extend([(1, 10), (3, 30)])?;
    /// assert_eq!(map.get_batch(&[3, 2, 1])?, [Some(30), None, Some(10)]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_batch(&self, keys: &[K]) -> Result<Vec<Option<V>>> {
        let mut codes = Vec::with_capacity(keys.len());
        for key in keys {
            codes.push(key.encode()?);
        }
        let mut words = vec![None; keys.len()];
        self.index.get_batch(&codes, &mut words)?;
        let decode = |word: Option<u64>| word.map(V::from_word);
        if !V::IS_TOTAL
            && let Some(at) = words
                .iter()
                .position(|&word| matches!(decode(word), Some(None)))
        {
            return Err(damaged_record::<K, V>([codes[at], words[at].unwrap_or(0)]));
        }
        let values = words.into_iter();
        Ok(values
            .map(|word| decode(word).map(decoded_before))
            .collect())
    }

    /// Sets the value of `key`, and returns the value before.
    ///
    /// A new key costs one flushed line and one fence in the good case and two of each otherwise (section 3.2), at most 1.31 lines on average; a key
    /// that is there costs one and one. A full leaf is split first (section 3.3).
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
    /// assert_eq!(map.insert(1, 10)?, None);
    /// assert_eq!(map.insert(1, 11)?, Some(10));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn insert(&self, key: K, value: V) -> Result<Option<V>> {
        let word = value.to_word();
        if V::IS_TOTAL {
            return Self::present(self.index.put(key.encode()?, word));
        }
        self.write(key, |_| Decision::Put(word))
    }

    /// Adds `key` if it is not there, and returns whether it did; a key that is there keeps its value.
    ///
    /// Costs what [`insert`](Self::insert) costs, or a lookup.
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
    /// assert!(map.insert_new(1, 10)?);
    /// assert!(!map.insert_new(1, 11)?);
    /// assert_eq!(map.get(1)?, Some(10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_new(&self, key: K, value: V) -> Result<bool> {
        let word = value.to_word();
        let before = self.apply(key, &mut |now| put_if(now.is_none(), word))?;
        Ok(before.is_none())
    }

    /// Sets the value of `key` if the key is there, and returns the value before. One flushed line, one fence.
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
    /// assert_eq!(map.update(1, 10)?, None);
    /// assert!(map.is_empty()?);
    /// map.insert(1, 11)?;
    /// assert_eq!(map.update(1, 12)?, Some(11));
    /// # Ok(())
    /// # }
    /// ```
    pub fn update(&self, key: K, value: V) -> Result<Option<V>> {
        let word = value.to_word();
        if V::IS_TOTAL {
            return Self::present(self.index.replace(key.encode()?, word));
        }
        self.write(key, |now| put_if(now.is_some(), word))
    }

    /// Changes `key` to what `change` makes of its present value, in one atomic step, and returns the value before. `None` means that the key is
    /// absent: returning it removes the key.
    ///
    /// `change` may be called more than once, each time with the value of that moment; the last call counts. While it runs, this thread holds a lock
    /// that other operations on the key wait for: keep it short. It must not use any map of the pool, which may wait for the lock that this thread
    /// holds: a wait of five seconds within `change`, for any map, panics. If it panics, nothing is changed.
    ///
    /// A value that is unchanged, bit by bit, is not written. Otherwise the step costs what [`insert`](Self::insert) or
    /// [`remove`](Self::remove) costs.
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
    /// for word in [7, 9, 7] {
    ///     map.update_with(word, |count| Some(count.unwrap_or(0) + 1))?;
    /// }
    /// assert_eq!(map.get(7)?, Some(2));
    /// // Count down, and remove what reaches zero.
    /// let less = |count: Option<u64>| count?.checked_sub(1).filter(|&count| count > 0);
    /// assert_eq!(map.update_with(9, less)?, Some(1));
    /// assert_eq!(map.get(9)?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn update_with(
        &self,
        key: K,
        mut change: impl FnMut(Option<V>) -> Option<V>,
    ) -> Result<Option<V>> {
        self.write(key, |now| {
            // `write` has looked: every word is a value.
            let present = now.and_then(V::from_word);
            match deciding(|| change(present)).map(V::to_word) {
                new if new == now => Decision::Keep,
                Some(word) => Decision::Put(word),
                None => Decision::Remove,
            }
        })
    }

    /// Changes the value of `key` from `current` to `new`, where `None` means that the key is absent, in one atomic step.
    ///
    /// Values are compared bit by bit, so a NaN equals itself, and `0.0` does not equal `-0.0`. An exchange costs what [`insert`](Self::insert) or
    /// [`remove`](Self::remove) costs; if there is none, nothing is flushed.
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
    /// use indelible::CompareExchange;
    /// assert!(map.compare_exchange(1, None, Some(10))?.is_exchanged());
    /// assert_eq!(map.compare_exchange(1, None, Some(11))?, CompareExchange::Unchanged(Some(10)));
    /// assert!(map.compare_exchange(1, Some(10), None)?.is_exchanged());
    /// # Ok(())
    /// # }
    /// ```
    pub fn compare_exchange(
        &self,
        key: K,
        current: Option<V>,
        new: Option<V>,
    ) -> Result<CompareExchange<V>> {
        let (current, new) = (current.map(V::to_word), new.map(V::to_word));
        // Several words may be one value: each is a `()`, and a newtype may drop bits of what it wraps.
        let is_current = |now: Option<u64>| match now {
            Some(word) => V::from_word(word).is_some_and(|now| Some(now.to_word()) == current),
            None => current.is_none(),
        };
        let before = self.apply(key, &mut |now| match new {
            _ if !is_current(now) => Decision::Keep,
            Some(word) => Decision::Put(word),
            None => Decision::Remove,
        })?;
        if is_current(before) {
            return Ok(CompareExchange::Exchanged);
        }
        Ok(CompareExchange::Unchanged(Self::value(before)?))
    }

    /// The value of `key`, which is inserted with `value` first if it is not there, in one atomic step.
    ///
    /// Costs a lookup, or what [`insert`](Self::insert) costs.
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
    /// assert_eq!(map.get_or_insert(1, 10)?, 10);
    /// assert_eq!(map.get_or_insert(1, 11)?, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_or_insert(&self, key: K, value: V) -> Result<V> {
        let word = value.to_word();
        let before = self.write(key, |now| put_if(now.is_none(), word))?;
        Ok(before.unwrap_or(value))
    }

    /// The value of `key`, which is inserted with the value that `make` returns if it is not there.
    ///
    /// `make` is called at most once, only if a lookup does not find the key, and without any lock: it may take long, and may use the map. The key is
    /// then inserted unless another thread has inserted it meanwhile; if one has, its value is returned, and what `make` returned is dropped.
    ///
    /// Costs a lookup, and what [`insert`](Self::insert) costs if the key is not there.
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
    /// assert_eq!(map.get_or_insert_with(1, || 10)?, 10);
    /// assert_eq!(map.get_or_insert_with(1, || unreachable!())?, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_or_insert_with(&self, key: K, make: impl FnOnce() -> V) -> Result<V> {
        match self.get(key)? {
            Some(value) => Ok(value),
            None => self.get_or_insert(key, make()),
        }
    }

    /// Removes `key` and returns its value.
    ///
    /// One flushed line, one fence (section 3.1, deletion). A leaf that runs empty is merged into its neighbour afterwards, and its space is used
    /// again.
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
    /// map.insert(1, 10)?;
    /// assert_eq!(map.remove(1)?, Some(10));
    /// assert_eq!(map.remove(1)?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove(&self, key: K) -> Result<Option<V>> {
        if V::IS_TOTAL {
            return Self::present(self.index.remove(key.encode()?));
        }
        self.write(key, |_| Decision::Remove)
    }

    /// Changes one key, and returns its value from before. If the bytes there are no `V`, nothing is changed.
    #[inline]
    fn write(&self, key: K, mut decide: impl FnMut(Option<u64>) -> Decision) -> Result<Option<V>> {
        let before = self.apply(key, &mut |now| match now.map(V::from_word) {
            Some(None) => Decision::Keep,
            _ => decide(now),
        })?;
        Self::value(before)
    }

    #[inline(always)]
    pub(super) fn apply(
        &self,
        key: K,
        decide: &mut dyn FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>> {
        let before = self.index.apply(key.encode()?, decide);
        before.map_err(|error| *error)
    }

    /// The value that a change has found.
    #[inline(always)]
    fn present(before: Result<Option<u64>, Box<Error>>) -> Result<Option<V>> {
        Self::value(before.map_err(|error| *error)?)
    }

    /// The value that is stored as a word.
    #[inline(always)]
    fn value(word: Option<u64>) -> Result<Option<V>> {
        let Some(word) = word else {
            return Ok(None);
        };
        match V::from_word(word) {
            Some(value) => Ok(Some(value)),
            None => Err(damaged_value::<V>(word)),
        }
    }
}

/// The error for a word that no `V` is stored as.
#[cold]
pub(super) fn damaged_value<V: Value>(word: u64) -> Error {
    Error::Damaged(format!(
        "no {} is stored as {word:#x}, which is a value of the map",
        V::TYPE
    ))
}

#[inline(always)]
fn put_if(condition: bool, word: u64) -> Decision {
    if condition {
        Decision::Put(word)
    } else {
        Decision::Keep
    }
}
