//! The traits of keys.

use super::TypeCodes;
use std::borrow::Cow;
use std::sync::Arc;

/// Where in a key an encoding lies.
///
/// # Examples
///
/// ```
/// use indelible::{AsKey, KeyBuffer, Place};
/// let mut key = KeyBuffer::new();
/// AsKey::<String>::encode("ab", &mut key, Place::Inside);
/// AsKey::<String>::encode("cd", &mut key, Place::End);
/// assert_eq!(key.as_slice(), b"ab\0\0cd");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Something may follow in the key, so the encoding tells where it ends.
    Inside,
    /// Nothing follows in the key: the encoding ends where the key ends.
    End,
}

/// A type of keys of a [`TypedMap`](crate::TypedMap): it has an encoding into bytes that keeps the order.
///
/// Implemented for `u8 u16 u32 u64 u128`, `i8 i16 i32 i64 i128`, `f32` and `f64` (ordered by `total_cmp`, NaNs among them), `bool`, `char`,
/// `String`, `Vec<u8>`, `[u8; N]`, `Option<K>` (`None` comes first), and tuples of two to six of these. [`key_newtype!`](crate::key_newtype)
/// implements it for a struct around one of them. A key can be given as whatever is [`AsKey`] of its type: a `String` as `&str`.
///
/// # Examples
///
/// ```
/// use indelible::{AsKey, KeyBuffer, OrderedKey, Place};
/// fn encoded<K: OrderedKey>(key: impl AsKey<K>) -> Vec<u8> {
///     key.with_encoded(<[u8]>::to_vec)
/// }
/// assert!(encoded::<(i16, String)>((-1, "z")) < encoded::<(i16, String)>((1, "a")));
/// assert_eq!(encoded::<(i16, String)>((1, "a")), b"\x80\x01a");
/// let mut bytes = &b"\x80\x01a"[..];
/// let key = <(i16, String)>::decode(&mut bytes, Place::End);
/// assert_eq!(key, Some((1, "a".to_owned())));
/// ```
pub trait OrderedKey: AsKey<Self> + KeyPrefix<Self> + Send + Sync + Sized + 'static {
    /// Adds the codes of the type to those that the catalog keeps.
    fn name(codes: &mut TypeCodes);

    /// Takes a key off the beginning of `bytes`: at the [end](Place::End) of a key, of all that is left. `None` if no key has this encoding, so that the
    /// bytes are damaged.
    fn decode(bytes: &mut &[u8], place: Place) -> Option<Self>;
}

/// What can be given as a key of the type `K`: a `K`, or a reference to one, `&str` for `String`, `&[u8]` for `Vec<u8>`, tuples of these for tuples.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let map = indelible::Pool::in_memory()?.typed::<(String, u32), u64>("m")?;
/// map.insert(("a", 1), 10)?;
/// map.insert((String::from("a"), &2), 20)?;
/// let key = ("a".to_owned(), 2);
/// assert_eq!(map.get(&key)?, Some(20));
/// # Ok(())
/// # }
/// ```
pub trait AsKey<K> {
    /// Adds the encoding of the key to `key`.
    fn encode(&self, key: &mut KeyBuffer, place: Place);

    /// What `use_key` makes of the encoding as a whole key.
    fn with_encoded<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R {
        let mut key = KeyBuffer::new();
        self.encode(&mut key, Place::End);
        use_key(key.as_slice())
    }
}

/// The beginning of keys of the type `K`, for [`TypedMap::prefix`](crate::TypedMap::prefix).
///
/// - Of a tuple, a tuple of its first fields, from one of them to all. Each is a whole field of the key. The last one may be
///   [`Begins`] instead: the beginning of a field. It may also be the beginning of a field that is itself a tuple.
/// - Of a string, a string: the beginning of the key. A string that is the last field of the key is such a beginning too.
/// - Of an `Option`, `None`, or `Some` of the beginning of what it holds: `Some("ab")` is one of `Some("abc")`.
/// - Of any other type, a key.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Begins, Pool};
/// let map = Pool::in_memory()?.typed::<(u32, String, u8), ()>("m")?;
/// map.extend([((7, "ab", 1), ()), ((7, "abc", 1), ()), ((7, "b", 1), ()), ((8, "ab", 1), ())])?;
/// assert_eq!(map.prefix((7,)).count(), 3);
/// assert_eq!(map.prefix((7, "ab")).count(), 1);
/// assert_eq!(map.prefix((7, Begins("ab"))).count(), 2);
/// # Ok(())
/// # }
/// ```
pub trait KeyPrefix<K> {
    /// Adds to `key` what the encodings of all keys with this beginning begin with.
    fn encode_prefix(&self, key: &mut KeyBuffer, place: Place);
}

/// Implements the traits for references and pointers to what can be given.
macro_rules! pointers {
    ($([$($also:tt)*] $pointer:ty;)+) => {$(
        impl<K, Q: AsKey<K> + ?Sized $($also)*> AsKey<K> for $pointer {
            #[inline]
            fn encode(&self, key: &mut KeyBuffer, place: Place) {
                (**self).encode(key, place);
            }

            #[inline]
            fn with_encoded<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R {
                (**self).with_encoded(use_key)
            }
        }

        impl<K, Q: KeyPrefix<K> + ?Sized $($also)*> KeyPrefix<K> for $pointer {
            #[inline]
            fn encode_prefix(&self, key: &mut KeyBuffer, place: Place) {
                (**self).encode_prefix(key, place);
            }
        }
    )+};
}
pointers! {
    [] &Q;
    [] Box<Q>;
    [] Arc<Q>;
    [+ ToOwned] Cow<'_, Q>;
}

/// The beginning of a string in a [`KeyPrefix`]: of a `String`, a `Vec<u8>` or a `[u8; N]`.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Begins, Pool};
/// let map = Pool::in_memory()?.typed::<([u8; 16], u64), ()>("m")?;
/// map.insert(([7; 16], 1), ())?;
/// assert_eq!(map.prefix((Begins([7, 7]),)).count(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begins<T>(
    /// The beginning.
    pub T,
);

/// Bytes of a key that lie in the buffer itself.
const INLINE_BYTES: usize = 64;

/// A key that is being encoded. The first 64 bytes take no memory of the heap.
///
/// # Examples
///
/// ```
/// let mut key = indelible::KeyBuffer::new();
/// key.push(b"ab");
/// key.push(&[0; 100]);
/// assert_eq!(key.as_slice().len(), 102);
/// ```
#[derive(Clone)]
pub struct KeyBuffer {
    inline: [u8; INLINE_BYTES],
    length: usize,
    /// The whole key, once it is longer than `inline`.
    spilled: Vec<u8>,
}

impl Default for KeyBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for KeyBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyBuffer({:?})", self.as_slice())
    }
}

impl KeyBuffer {
    /// An empty buffer.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self {
            inline: [0; INLINE_BYTES],
            length: 0,
            spilled: Vec::new(),
        }
    }

    /// Adds bytes.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if self.spilled.is_empty() && end <= INLINE_BYTES {
            self.inline[self.length..end].copy_from_slice(bytes);
        } else {
            self.spill(bytes);
        }
        self.length = end;
    }

    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        if self.spilled.is_empty() {
            self.spilled.reserve(2 * (self.length + bytes.len()));
            self.spilled.extend_from_slice(&self.inline[..self.length]);
        }
        self.spilled.extend_from_slice(bytes);
    }

    /// What was added.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        if self.spilled.is_empty() {
            &self.inline[..self.length]
        } else {
            &self.spilled
        }
    }
}

/// The key with this encoding.
pub(crate) fn from_bytes<K: OrderedKey>(mut bytes: &[u8]) -> Option<K> {
    let key = K::decode(&mut bytes, Place::End)?;
    bytes.is_empty().then_some(key)
}

/// Makes a struct around a type of keys a type of keys itself. In the pool it is what it wraps: the catalog has the name of the type inside, and the map
/// can be opened as a map of the type inside.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// struct Uuid(u128);
/// indelible::key_newtype!(Uuid(u128));
///
/// let pool = indelible::Pool::in_memory()?;
/// let names = pool.typed::<Uuid, String>("names")?;
/// names.insert(Uuid(7), "seven")?;
/// assert_eq!(names.first()?, Some((Uuid(7), "seven".to_owned())));
/// let by_pair = pool.typed::<(Uuid, u8), ()>("pairs")?;
/// by_pair.insert((Uuid(7), 1), ())?;
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! key_newtype {
    ($Outer:ident($Inner:ty)) => {
        impl $crate::AsKey<$Outer> for $Outer {
            #[inline]
            fn encode(&self, key: &mut $crate::KeyBuffer, place: $crate::Place) {
                $crate::AsKey::<$Inner>::encode(&self.0, key, place);
            }
        }

        impl $crate::KeyPrefix<$Outer> for $Outer {
            #[inline]
            fn encode_prefix(&self, key: &mut $crate::KeyBuffer, place: $crate::Place) {
                $crate::KeyPrefix::<$Inner>::encode_prefix(&self.0, key, place);
            }
        }

        impl $crate::OrderedKey for $Outer {
            fn name(codes: &mut $crate::TypeCodes) {
                <$Inner as $crate::OrderedKey>::name(codes);
            }

            #[inline]
            fn decode(bytes: &mut &[u8], place: $crate::Place) -> ::core::option::Option<Self> {
                <$Inner as $crate::OrderedKey>::decode(bytes, place).map($Outer)
            }
        }
    };
}
