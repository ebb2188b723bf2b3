//! The front of a typed map over byte strings: the handle, and what it does with one key.
//!
//! | file | what it owns |
//! |---|---|
//! | this one | the handle, reads and writes of one key |
//! | `open` | opening and listing typed maps |
//! | `many` | batches, bulk loads, removing many records |
//! | `range` | ranges and prefixes, in both directions |
//! | `stream` | long values in parts |
//! | `upkeep` | name, options, counts, statistics, checks, compaction |

mod many;
mod open;
mod range;
mod stream;
mod upkeep;

pub use open::TypedInfo;
pub use range::{TypedKeys, TypedRange, TypedValues};

use super::{BytesMap, CompareExchange};
use crate::encoding::{AsKey, AsValue, OrderedKey, StoredValue, TypeCodes, from_bytes};
use crate::{Error, Result};
use std::marker::PhantomData;

/// A persistent ordered map from keys of any type that has an order-preserving encoding ([`OrderedKey`]) to values of any type that has an encoding
/// ([`StoredValue`]): a named index in a [`Pool`](crate::Pool).
///
/// Keys are numbers of up to 128 bits, floats, `bool`, `char`, strings, byte strings, arrays of bytes, `Option`s, and tuples of these. They are ordered as
/// Rust orders them, floats as `total_cmp` does. Values are the same without `Option`s and tuples, plain structs (`Plain<T>`, with the feature `zerocopy`),
/// what `serde` serializes (`Postcard<T>`, with the feature `serde`), and types that implement [`StoredValue`]. Keys and values are given as whatever is [`AsKey`] and
/// [`AsValue`] of their types, so that no `String` has to be made for a lookup.
///
/// It is a [`BytesMap`] of the encodings. A key has at most 64 KiB encoded ([`BytesMap::MOST_KEY_BYTES`]), a value 1 GiB ([`BytesMap::MOST_VALUE_BYTES`]). If keys and values
/// both have at most 8 bytes, [`Pool::map`](crate::Pool::map) makes a [`Map`](crate::Map) of words, which is several times as fast.
///
/// A `TypedMap` is a handle: cloning it is cheap, it has no lifetime, and it keeps the pool open. All methods take `&self` and may be called
/// from any number of threads. What a [`BytesMap`] promises of concurrency and durability holds here too.
///
/// # Errors
///
/// Every method may return [`Error::Damaged`] if it meets a broken structure, or bytes that are no `K` or no `V`. Every write may also return
/// [`Error::TooLong`], [`Error::ReadOnly`], [`Error::NoSpace`] and [`Error::NoEncoding`]. A write of one key changes nothing then. No method panics on any input.
///
/// In a pool with a log every write may also return [`Error::LogFailed`](crate::Error::LogFailed), and with `Durability::PowerLoss` so may a read of records that are not durable yet. After that
/// error a change may or may not be there when the pool is opened again.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let pool = indelible::Pool::in_memory()?;
/// // Under tenant and time, what happened.
/// let events = pool.typed::<(u32, u64, String), String>("events")?;
/// events.insert((7, 1_700_000_000, "ada"), "logged in")?;
/// events.insert((7, 1_700_000_060, "ada"), "logged out")?;
/// events.insert((8, 1_700_000_000, "bob"), "logged in")?;
/// for event in events.prefix((7,)).rev() {
///     let ((_, time, user), what) = event?;
///     println!("{time}: {user} {what}");
/// }
/// assert_eq!(events.range((7, 1_700_000_060, "")..).count(), 2);
/// assert!(pool.typed::<(u32, u64), String>("events").is_err(), "the types are those of the first time");
/// # Ok(())
/// # }
/// ```
pub struct TypedMap<K, V> {
    bytes: BytesMap,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> Clone for TypedMap<K, V> {
    fn clone(&self) -> Self {
        Self {
            bytes: self.bytes.clone(),
            types: PhantomData,
        }
    }
}

impl<K, V> std::fmt::Debug for TypedMap<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypedMap({:?})", self.bytes.index().name())
    }
}

/// The codes of both types.
fn codes_of<K: OrderedKey, V: StoredValue>() -> TypeCodes {
    let mut codes = TypeCodes::default();
    K::name(&mut codes);
    V::name(&mut codes);
    codes
}

/// The bytes of what is given as a value.
fn bytes_of<V>(value: &impl AsValue<V>) -> Result<Vec<u8>> {
    value.with_bytes(<[u8]>::to_vec)
}

fn damaged(what: &str) -> Error {
    Error::Damaged(format!("bytes in a typed map are no {what} of its type"))
}

fn key_of<K: OrderedKey>(bytes: &[u8]) -> Result<K> {
    from_bytes(bytes).ok_or_else(|| damaged("key"))
}

fn view_of<V: StoredValue>(bytes: &[u8]) -> Result<V::View<'_>> {
    V::view(bytes).ok_or_else(|| damaged("value"))
}

fn value_of<V: StoredValue>(bytes: &[u8]) -> Result<V> {
    view_of::<V>(bytes).map(V::from_view)
}

impl<K: OrderedKey, V: StoredValue> TypedMap<K, V> {
    fn new(bytes: BytesMap) -> Self {
        Self {
            bytes,
            types: PhantomData,
        }
    }

    /// Changes the bytes under a key to what `change` makes of the present ones, in one step, and returns the bytes before. If the last call of `change`
    /// fails, nothing is changed.
    fn change(
        &self,
        key: &impl AsKey<K>,
        mut change: impl FnMut(Option<&[u8]>) -> Result<Option<Vec<u8>>>,
    ) -> Result<Option<Vec<u8>>> {
        let mut outcome = Ok(());
        let before = key.with_encoded(|key| {
            self.bytes.update_with(key, |now| match change(now) {
                Ok(new) => {
                    outcome = Ok(());
                    new
                }
                Err(error) => {
                    outcome = Err(error);
                    now.map(<[u8]>::to_vec)
                }
            })
        })?;
        outcome.map(|()| before)
    }

    /// The value of `key`, copied, if the key is there.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), String>("m")?;
    /// map.insert((7, "key"), "value")?;
    /// assert_eq!(map.get((7, "key"))?.as_deref(), Some("value"));
    /// assert_eq!(map.get((8, "key"))?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&self, key: impl AsKey<K>) -> Result<Option<V>> {
        self.get_with(key, V::from_view)
    }

    /// What `use_value` makes of the value of `key`, if the key is there. `use_value` sees the value where it lies: a `String` as `&str`.
    ///
    /// What [`BytesMap::get_with`] says of the time while `use_value` runs holds here too.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), String>("m")?;
    /// map.insert((7, "key"), "value")?;
    /// assert_eq!(map.get_with((7, "key"), str::len)?, Some(5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_with<T>(
        &self,
        key: impl AsKey<K>,
        use_value: impl FnOnce(V::View<'_>) -> T,
    ) -> Result<Option<T>> {
        key.with_encoded(|key| {
            self.bytes
                .get_with(key, |bytes| view_of::<V>(bytes).map(use_value))?
                .transpose()
        })
    }

    /// Whether `key` is there. Does not read the value.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<Option<char>, ()>("m")?;
    /// map.insert(Some('x'), ())?;
    /// assert!(map.contains_key(Some('x'))? && !map.contains_key(None::<char>)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn contains_key(&self, key: impl AsKey<K>) -> Result<bool> {
        key.with_encoded(|key| self.bytes.contains_key(key))
    }

    /// Bytes of the encoding of the value of `key`, if the key is there: of a `String` or a `Vec<u8>` its length. Does not read the value.
    ///
    /// # Errors
    ///
    /// Those of [every read](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), String>("m")?;
    /// map.insert((7, "key"), "value")?;
    /// assert_eq!(map.value_len((7, "key"))?, Some(5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_len(&self, key: impl AsKey<K>) -> Result<Option<u64>> {
        key.with_encoded(|key| self.bytes.value_len(key))
    }

    /// Sets the value of `key`, and returns whether the key was there before. Does not read the value before; [`replace`](Self::replace) does.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<(u32, String), String>("m")?;
    /// assert!(!map.insert((7, "key"), "1")?);
    /// assert!(map.insert((7, "key"), "2")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        key.with_encoded(|key| value.with_bytes(|value| self.bytes.insert(key, value)))?
    }

    /// Adds `key` if it is not there, and returns whether it did; a key that is there keeps its value.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, String>("m")?;
    /// assert!(map.insert_new(1, "1")?);
    /// assert!(!map.insert_new(1, "2")?);
    /// assert_eq!(map.get(1)?.as_deref(), Some("1"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_new(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        key.with_encoded(|key| value.with_bytes(|value| self.bytes.insert_new(key, value)))?
    }

    /// Sets the value of `key` if the key is there, and returns whether it is.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, String>("m")?;
    /// assert!(!map.update(1, "1")?);
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn update(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<bool> {
        key.with_encoded(|key| value.with_bytes(|value| self.bytes.update(key, value)))?
    }

    /// Sets the value of `key`, and returns the value before.
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
    /// assert_eq!(map.replace("key", 1)?, None);
    /// assert_eq!(map.replace("key", 2)?, Some(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn replace(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<Option<V>> {
        let value = bytes_of(&value)?;
        let before = self.change(&key, |now| {
            now.map(view_of::<V>).transpose()?;
            Ok(Some(value.clone()))
        })?;
        before.as_deref().map(value_of).transpose()
    }

    /// Removes `key`, and returns whether it was there. Does not read the value; [`take`](Self::take) does.
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
    /// assert!(map.remove("key")?);
    /// assert!(!map.remove("key")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove(&self, key: impl AsKey<K>) -> Result<bool> {
        key.with_encoded(|key| self.bytes.remove(key))
    }

    /// Removes `key`, and returns its value.
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
    /// assert_eq!(map.take("key")?, Some(1));
    /// assert_eq!(map.take("key")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn take(&self, key: impl AsKey<K>) -> Result<Option<V>> {
        let before = self.change(&key, |now| {
            now.map(view_of::<V>).transpose()?;
            Ok(None)
        })?;
        before.as_deref().map(value_of).transpose()
    }

    /// Changes `key` to what `change` makes of its present value, in one atomic step, and returns the value before. `None` means that the key is
    /// absent: returning it removes the key.
    ///
    /// `change` may be called more than once, each time with the value of that moment; the last call counts. While it runs, this thread holds a lock
    /// that other operations on the key wait for: keep it short. It must not use any map of the pool, which may wait for the lock that this thread
    /// holds: a wait of five seconds within `change`, for any map, panics. If it panics, nothing is changed.
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
    /// for word in ["a", "b", "a"] {
    ///     map.update_with(word, |count| Some(count.unwrap_or(0) + 1))?;
    /// }
    /// assert_eq!(map.get("a")?, Some(2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn update_with(
        &self,
        key: impl AsKey<K>,
        mut change: impl FnMut(Option<V::View<'_>>) -> Option<V>,
    ) -> Result<Option<V>> {
        let before = self.change(&key, |now| {
            let new = change(now.map(view_of::<V>).transpose()?);
            new.as_ref().map(bytes_of).transpose()
        })?;
        before.as_deref().map(value_of).transpose()
    }

    /// Changes the value of `key` from `current` to `new`, where `None` means that the key is absent, in one atomic step. Values are the same if their
    /// encodings are: two NaNs of the same bits are, `0.0` and `-0.0` are not.
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
    /// use indelible::CompareExchange;
    /// assert!(map.compare_exchange("key", None, Some(1))?.is_exchanged());
    /// assert_eq!(map.compare_exchange("key", None, Some(2))?, CompareExchange::Unchanged(Some(1)));
    /// assert!(map.compare_exchange("key", Some(1), None)?.is_exchanged());
    /// # Ok(())
    /// # }
    /// ```
    pub fn compare_exchange<Q: AsValue<V>>(
        &self,
        key: impl AsKey<K>,
        current: Option<Q>,
        new: Option<Q>,
    ) -> Result<CompareExchange<V>> {
        let current = current.as_ref().map(bytes_of).transpose()?;
        let new = new.as_ref().map(bytes_of).transpose()?;
        let done = key.with_encoded(|key| {
            (self.bytes).compare_exchange(key, current.as_deref(), new.as_deref())
        })?;
        Ok(match done {
            CompareExchange::Exchanged => CompareExchange::Exchanged,
            CompareExchange::Unchanged(now) => {
                CompareExchange::Unchanged(now.as_deref().map(value_of).transpose()?)
            }
        })
    }

    /// The value of `key`, which is inserted with `value` first if it is not there, in one atomic step.
    ///
    /// # Errors
    ///
    /// Those of [every write](Self#errors).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.typed::<u128, String>("m")?;
    /// assert_eq!(map.get_or_insert(1, "1")?, "1");
    /// assert_eq!(map.get_or_insert(1, "2")?, "1");
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_or_insert(&self, key: impl AsKey<K>, value: impl AsValue<V>) -> Result<V> {
        let insert = |key: &[u8]| value.with_bytes(|value| self.bytes.get_or_insert(key, value));
        value_of(&key.with_encoded(insert)??)
    }

    /// The value of `key`, which is inserted with the value that `make` returns if it is not there.
    ///
    /// `make` is called at most once, only if a lookup does not find the key, and without any lock. The key is then inserted unless another thread has
    /// inserted it meanwhile; if one has, its value is returned, and what `make` returned is dropped.
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
    /// assert_eq!(map.get_or_insert_with("key", || 1)?, 1);
    /// assert_eq!(map.get_or_insert_with("key", || unreachable!())?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_or_insert_with(&self, key: impl AsKey<K>, make: impl FnOnce() -> V) -> Result<V> {
        match self.get(&key)? {
            Some(value) => Ok(value),
            None => self.get_or_insert(key, make()),
        }
    }
}
