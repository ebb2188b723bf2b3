//! The front of a map of byte strings: the handle, and what it does with one key.
//!
//! | file | what it owns |
//! |---|---|
//! | this one | the handle, reads and writes of one key |
//! | `open` | opening and listing maps of byte strings |
//! | `many` | batches, bulk loads, removing many records |
//! | `range` | ranges, in both directions |
//! | `stream` | values that are written and read in parts |
//! | `upkeep` | counts, statistics, checks, compaction |

mod many;
mod open;
mod range;
mod stream;
mod upkeep;

pub use open::BytesInfo;
pub use range::{BytesKeys, BytesRange, BytesValues};
pub use stream::{ValueReader, ValueWriter};

use super::CompareExchange;
use crate::Result;
use crate::engines::{Current, StringDecision};
use crate::host::{AnyStrings, deciding};
use std::borrow::Cow;

/// A persistent ordered map from byte strings to byte strings: a named index in a [`Pool`](crate::Pool).
///
/// Keys have 0 bytes to 64 KiB ([`MOST_KEY_BYTES`](Self::MOST_KEY_BYTES)), values 0 bytes to 1 GiB ([`MOST_VALUE_BYTES`](Self::MOST_VALUE_BYTES)), of any content; keys are ordered as `memcmp` orders them, and a key that another one begins with
/// comes before it. Whatever is `AsRef<[u8]>` is taken: `&str`, `String`, `Vec<u8>`, `[u8; 16]`.
///
/// A `BytesMap` is a handle: cloning it is cheap, it has no lifetime, and it keeps the pool open. All methods take `&self` and may be called
/// from any number of threads. n is the number of records.
///
/// # Concurrency and durability
///
/// What is done with one key ([`get`](Self::get), [`insert`](Self::insert), [`update_with`](Self::update_with) and their like) is one
/// linearizable step, of whatever length the value is. What is done with many records is many such steps; each method says what that means.
///
/// When a call returns, its changes survive whatever the pool's [`Durability`](crate::Durability) promises to survive. Of a change of one key
/// that is in flight at a crash, all is there afterwards, or nothing.
///
/// # Long values
///
/// A value of more than 512 bytes (a quarter of a leaf, if the map was [created](crate::SlottedOptions) with leaves of one size) lies in a block of its own. It is
/// written whole before the record refers to it, and replaced by another block. [`get_with`](Self::get_with) shows it where it lies, without a copy.
/// [`value_writer`](Self::value_writer) and [`value_reader`](Self::value_reader) write and read it in parts, so that it need not be in memory as a whole.
///
/// # Errors
///
/// Every method may return [`Error::Damaged`] if it meets a broken structure. Every write may also return [`Error::TooLong`],
/// [`Error::ReadOnly`] and [`Error::NoSpace`], and changes nothing then. No method panics on any input.
///
/// In a pool with a log every write may also return [`Error::LogFailed`](crate::Error::LogFailed), and with `Durability::PowerLoss` so may a read of records that are not durable yet. After that
/// error a change may or may not be there when the pool is opened again.
///
/// [`Error::Damaged`]: crate::Error::Damaged
/// [`Error::TooLong`]: crate::Error::TooLong
/// [`Error::ReadOnly`]: crate::Error::ReadOnly
/// [`Error::NoSpace`]: crate::Error::NoSpace
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let pool = indelible::Pool::in_memory()?;
/// let pages = pool.bytes("pages")?;
/// pages.insert("https://example.org/", "<title>Example</title>")?;
/// pages.insert("https://example.org/about", "...")?;
/// assert_eq!(pages.get("https://example.org/about")?.as_deref(), Some(&b"..."[..]));
/// for record in pages.prefix("https://example.org/") {
///     let (url, page) = record?;
///     println!("{}: {} bytes", String::from_utf8_lossy(&url), page.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BytesMap {
    index: AnyStrings,
}

impl std::fmt::Debug for BytesMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BytesMap({:?})", self.index.name())
    }
}

impl BytesMap {
    /// Bytes in the longest key: 65,536, which are 64 KiB. Of a [`TypedMap`](super::TypedMap) it is the encoding of the key that has these.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::BytesMap;
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// let longest = vec![7; BytesMap::MOST_KEY_BYTES];
    /// map.insert(&longest, "")?;
    /// assert!(map.insert([&longest[..], b"7"].concat(), "").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub const MOST_KEY_BYTES: usize = AnyStrings::MOST_BYTES[0] as usize;

    /// Bytes in the longest value: 1,073,741,824, which are 1 GiB. Of a [`TypedMap`](super::TypedMap) it is the encoding of the value that has these.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::BytesMap;
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert!(map.value_writer("film", BytesMap::MOST_VALUE_BYTES + 1).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub const MOST_VALUE_BYTES: u64 = AnyStrings::MOST_BYTES[1];

    pub(super) fn new(index: AnyStrings) -> Self {
        Self { index }
    }

    /// The index below.
    pub(super) fn index(&self) -> &AnyStrings {
        &self.index
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert_eq!(map.get("key")?, Some(b"value".to_vec()));
    /// assert_eq!(map.get("")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// What `use_value` makes of the value of `key`, if the key is there. The value is not copied to the heap, and a long one is not copied at all.
    ///
    /// While `use_value` runs, no block that this pool or any other pool of the process frees can be used again: keep it short. No lock is held, so it may use
    /// this map and others; a write in a full pool is [`NoSpace`](crate::Error::NoSpace) where it would otherwise wait for freed blocks. For other threads, a write in a
    /// full pool, a compaction and a shrink wait until all such closures have ended: so do not wait in one for what such a thread has locked. With a
    /// log ([`Durability::PowerLoss`](crate::Durability::PowerLoss) on a disk) the value is a copy.
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
    /// map.insert("key", "value")?;
    /// let is_short = map.get_with("key", |value| value.len() < 10)?;
    /// assert_eq!(is_short, Some(true));
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_with<T>(
        &self,
        key: impl AsRef<[u8]>,
        use_value: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let (mut use_value, mut made) = (Some(use_value), None);
        self.index.get_with(key.as_ref(), &mut |value| {
            // A lookup that succeeds hands out one value.
            made = use_value.take().map(|use_value| use_value(value));
        })?;
        Ok(made)
    }

    /// Copies the value of `key` into `buffer`, whose contents it replaces, and returns whether the key is there. If it is not, `buffer` is empty.
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
    /// let mut buffer = Vec::new();
    /// map.insert("key", "value")?;
    /// assert!(map.get_into("key", &mut buffer)?);
    /// assert_eq!(buffer, b"value");
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_into(&self, key: impl AsRef<[u8]>, buffer: &mut Vec<u8>) -> Result<bool> {
        buffer.clear();
        let found = self.get_with(key, |value| buffer.extend_from_slice(value))?;
        Ok(found.is_some())
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("", "the empty key")?;
    /// assert!(map.contains_key("")? && !map.contains_key("\0")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        Ok(self.value_len(key)?.is_some())
    }

    /// Bytes of the value of `key`, if the key is there. Does not read the value.
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
    /// map.insert("film", vec![0; 100_000])?;
    /// assert_eq!(map.value_len("film")?, Some(100_000));
    /// # Ok(())
    /// # }
    /// ```
    pub fn value_len(&self, key: impl AsRef<[u8]>) -> Result<Option<u64>> {
        self.index.value_len(key.as_ref())
    }

    /// Whether the map takes a record with this key and this value, which only their lengths decide. For those who look at many records before they
    /// insert the first one.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`](crate::Error::TooLong), as of a write.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.expect_lengths("film", "")?;
    /// let refused = map.expect_lengths(vec![0; 70_000], "");
    /// assert!(matches!(refused, Err(indelible::Error::TooLong { most: 65_536, .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn expect_lengths(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.index
            .expect_lengths(key.as_ref(), value.as_ref().len() as u64)
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert!(!map.insert("key", "1")?);
    /// assert!(map.insert("key", "2")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let value = value.as_ref();
        (self.index).apply(key.as_ref(), Some(value), &mut |_| put(value))
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert!(map.insert_new("key", "1")?);
    /// assert!(!map.insert_new("key", "2")?);
    /// assert_eq!(map.get("key")?, Some(b"1".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert_new(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let value = value.as_ref();
        let was_there = (self.index).apply(key.as_ref(), Some(value), &mut |now| match now {
            None => put(value),
            Some(_) => StringDecision::Keep,
        })?;
        Ok(!was_there)
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert!(!map.update("key", "1")?);
    /// assert!(map.is_empty()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool> {
        let value = value.as_ref();
        (self.index).apply(key.as_ref(), Some(value), &mut |now| match now {
            Some(_) => put(value),
            None => StringDecision::Keep,
        })
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert_eq!(map.replace("key", "1")?, None);
    /// assert_eq!(map.replace("key", "2")?, Some(b"1".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn replace(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        let (value, mut before) = (value.as_ref(), None);
        (self.index).apply(key.as_ref(), Some(value), &mut |now| {
            before = now.map(Current::to_vec);
            put(value)
        })?;
        Ok(before)
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert!(map.remove("key")?);
    /// assert!(!map.remove("key")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        (self.index).apply(key.as_ref(), None, &mut |_| StringDecision::Remove)
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// map.insert("key", "value")?;
    /// assert_eq!(map.take("key")?, Some(b"value".to_vec()));
    /// assert_eq!(map.take("key")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn take(&self, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        let mut before = None;
        (self.index).apply(key.as_ref(), None, &mut |now| {
            before = now.map(Current::to_vec);
            StringDecision::Remove
        })?;
        Ok(before)
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// for line in ["one", "two"] {
    ///     map.update_with("log", |now| Some([now.unwrap_or_default(), line.as_bytes()].concat()))?;
    /// }
    /// assert_eq!(map.get("log")?, Some(b"onetwo".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn update_with(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>> {
        let mut before = None;
        (self.index).apply(key.as_ref(), None, &mut |now| {
            before = now.map(Current::to_vec);
            match deciding(|| change(before.as_deref())) {
                new if new == before => StringDecision::Keep,
                Some(value) => StringDecision::Put(Cow::Owned(value)),
                None => StringDecision::Remove,
            }
        })?;
        Ok(before)
    }

    /// Changes the value of `key` from `current` to `new`, where `None` means that the key is absent, in one atomic step.
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
    /// use indelible::CompareExchange;
    /// assert!(map.compare_exchange("key", None, Some(b"1"))?.is_exchanged());
    /// let now = map.compare_exchange("key", None, Some(b"2"))?;
    /// assert_eq!(now, CompareExchange::Unchanged(Some(b"1".to_vec())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn compare_exchange(
        &self,
        key: impl AsRef<[u8]>,
        current: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareExchange<Vec<u8>>> {
        let mut other = None;
        (self.index).apply(key.as_ref(), new, &mut |now| {
            let is_current = match (now, current) {
                (None, None) => true,
                (Some(now), Some(current)) => now.is(current),
                _ => false,
            };
            if !is_current {
                other = Some(now.map(Current::to_vec));
                return StringDecision::Keep;
            }
            other = None;
            match new {
                Some(_) if new == current => StringDecision::Keep,
                Some(new) => put(new),
                None => StringDecision::Remove,
            }
        })?;
        Ok(other.map_or(CompareExchange::Exchanged, CompareExchange::Unchanged))
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert_eq!(map.get_or_insert("key", "1")?, b"1");
    /// assert_eq!(map.get_or_insert("key", "2")?, b"1");
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_or_insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let (value, mut before) = (value.as_ref(), None);
        (self.index).apply(key.as_ref(), Some(value), &mut |now| {
            before = now.map(Current::to_vec);
            match now {
                None => put(value),
                Some(_) => StringDecision::Keep,
            }
        })?;
        Ok(before.unwrap_or_else(|| value.to_vec()))
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
    /// # let map = indelible::Pool::in_memory()?.bytes("m")?;
    /// assert_eq!(map.get_or_insert_with("key", || b"1".to_vec())?, b"1");
    /// assert_eq!(map.get_or_insert_with("key", || unreachable!())?, b"1");
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_or_insert_with(
        &self,
        key: impl AsRef<[u8]>,
        make: impl FnOnce() -> Vec<u8>,
    ) -> Result<Vec<u8>> {
        match self.get(&key)? {
            Some(value) => Ok(value),
            None => self.get_or_insert(key, make()),
        }
    }
}

fn put(value: &[u8]) -> StringDecision<'_> {
    StringDecision::Put(Cow::Borrowed(value))
}
