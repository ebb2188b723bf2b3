//! Keys and values of at most 8 bytes, each with the whole domain of its type.
//!
//! Every key is stored as a `u64` whose order is the order of the type, and every value as a `u64` that keeps each of its bits. The
//! [list](each_type) generates [`Type`], its codes and names, and the implementations.
//!
//! Wider keys and values (strings, `u128`, arrays of more than 8 bytes) will be a second family beside this one: traits of their own,
//! next to [`Key`] and [`Value`], for kinds of index that store byte strings. Their codes go on in [`Type`], which is why that is
//! `#[non_exhaustive]`, and a map from them will be a type of its own beside [`Map`](crate::Map), as no method of this family can
//! promise a word for them.

use crate::{Error, Result};

/// The list of types: variant of [`Type`], code in the catalog, type, and the macro that implements [`Key`] and [`Value`] for it. A code
/// is part of the file format: it is never changed and never used again.
macro_rules! each_type {
    ($use_list:ident) => {
        $use_list! {
            U64 = 1, u64, unsigned, "";
            I64 = 2, i64, signed, "";
            U32 = 3, u32, unsigned, "";
            I32 = 4, i32, signed, "";
            F64 = 5, f64, float, ", without NaN as a key";
            F32 = 6, f32, float, ", without NaN as a key";
            Bytes8 = 7, [u8; 8], bytes, ", ordered as `memcmp` orders it";
            Unit = 8, (), unit, ": a map with this value type is a set; it cannot be a key";
            U16 = 9, u16, unsigned, "";
            I16 = 10, i16, signed, "";
            U8 = 11, u8, unsigned, "";
            I8 = 12, i8, signed, "";
            Bool = 13, bool, boolean, ": `false` comes before `true`";
            Char = 14, char, character, ", ordered by code point";
            Bytes1 = 15, [u8; 1], bytes, ", ordered as `memcmp` orders it";
            Bytes2 = 16, [u8; 2], bytes, ", ordered as `memcmp` orders it";
            Bytes3 = 17, [u8; 3], bytes, ", ordered as `memcmp` orders it";
            Bytes4 = 18, [u8; 4], bytes, ", ordered as `memcmp` orders it";
            Bytes5 = 19, [u8; 5], bytes, ", ordered as `memcmp` orders it";
            Bytes6 = 20, [u8; 6], bytes, ", ordered as `memcmp` orders it";
            Bytes7 = 21, [u8; 7], bytes, ", ordered as `memcmp` orders it";
        }
    };
}

macro_rules! type_codes {
    ($($variant:ident = $code:literal, $type:ty, $class:ident, $more:literal;)+) => {
        /// The type of a map's keys or values, as the catalog records it.
        ///
        /// A [`Newtype`] has the type that it wraps.
        ///
        /// # Examples
        ///
        /// ```
        /// use indelible::{Key, Type};
        /// assert_eq!(<[u8; 4] as Key>::TYPE, Type::Bytes4);
        /// assert_eq!(Type::Bytes4.to_string(), "[u8; 4]");
        /// assert_eq!(Type::from_code(Type::Char as u8), Some(Type::Char));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Type {
            $(#[doc = concat!("`", stringify!($type), "`", $more)] $variant = $code,)+
        }

        impl Type {
            /// All types of this version, in the order of their codes.
            #[must_use]
            pub const fn all() -> &'static [Self] {
                &[$(Self::$variant,)+]
            }
        }

        impl std::fmt::Display for Type {
            /// The type as Rust spells it.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $(Self::$variant => stringify!($type),)+
                })
            }
        }
    };
}
each_type!(type_codes);

impl Type {
    /// Whether keys can be of this type, and not only values. Only [`Type::Unit`] cannot.
    ///
    /// # Examples
    ///
    /// ```
    /// use indelible::Type;
    /// assert!(Type::Char.can_be_key() && !Type::Unit.can_be_key());
    /// ```
    #[must_use]
    pub const fn can_be_key(self) -> bool {
        !matches!(self, Self::Unit)
    }

    /// The type with this code in the catalog, if this version knows it.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let all = Self::all().iter().copied();
        all.into_iter().find(|known| *known as u8 == code)
    }
}

mod sealed {
    pub trait Sealed {}
    impl<T: super::Newtype> Sealed for T {}
}

/// A key: a type with an order-preserving 8-byte encoding.
///
/// Implemented for `u64 i64 u32 i32 u16 i16 u8 i8 f64 f32 bool char`, for `[u8; 1]` to `[u8; 8]`, and for every [`Newtype`] around
/// one of them. Not for `usize` and `isize`, whose width depends on the machine. Sealed: the encoding is part of the file format.
///
/// # Examples
///
/// ```
/// use indelible::Key;
/// # fn main() -> indelible::Result<()> {
/// assert!((-1_i32).encode()? < 0_i32.encode()?);
/// assert_eq!(i32::decode((-1_i32).encode()?), Some(-1));
/// assert_eq!(char::decode(0xd800), None, "no character has this code");
/// # Ok(())
/// # }
/// ```
pub trait Key: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The type's code in the catalog.
    const TYPE: Type;

    /// The encoding, whose order as `u64` is the order of the type.
    ///
    /// # Errors
    ///
    /// [`Error::NanKey`] for a NaN. `-0.0` is the same key as `0.0`.
    fn encode(self) -> Result<u64>;

    /// The key with this encoding; `None` if no key has it, so that the file that it comes from is damaged.
    fn decode(code: u64) -> Option<Self>;

    /// Whether every word is the encoding of a key, so that nobody need ask.
    #[doc(hidden)]
    const IS_TOTAL: bool;
}

/// A value: a type of at most 8 bytes that the catalog knows. Every bit of it is stored as it is.
///
/// Implemented for all [keys](Key), and for `()`: a map of `()` is a set. NaNs are values like others.
///
/// # Examples
///
/// ```
/// use indelible::Value;
/// assert_eq!(bool::from_word(true.to_word()), Some(true));
/// assert_eq!(bool::from_word(2), None);
/// ```
pub trait Value: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The type's code in the catalog.
    const TYPE: Type;

    /// The 8 bytes that are stored.
    fn to_word(self) -> u64;

    /// The value stored in these 8 bytes; `None` if no value is stored like this, so that the file that they come from is damaged.
    fn from_word(word: u64) -> Option<Self>;

    /// Whether every word is a value, so that nobody need ask.
    #[doc(hidden)]
    const IS_TOTAL: bool;
}

/// A type of your own that wraps a key or a value, and is one itself.
///
/// In the file it is what it wraps: the catalog records the type inside, the order of the keys is that of the type inside, and a map of
/// the newtype can be opened as a map of the type inside.
///
/// # Examples
///
/// ```
/// use indelible::{Newtype, Pool};
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// struct UserId(u32);
///
/// impl Newtype for UserId {
///     type Inner = u32;
///
///     fn into_inner(self) -> u32 {
///         self.0
///     }
///
///     fn from_inner(inner: u32) -> Self {
///         Self(inner)
///     }
/// }
///
/// # fn main() -> indelible::Result<()> {
/// let friends = Pool::in_memory()?.map::<UserId, UserId>("friends")?;
/// friends.insert(UserId(1), UserId(2))?;
/// assert_eq!(friends.first()?, Some((UserId(1), UserId(2))));
/// # Ok(())
/// # }
/// ```
pub trait Newtype: Copy + Send + Sync + 'static {
    /// The type inside.
    type Inner: Key + Value;

    /// What is inside.
    fn into_inner(self) -> Self::Inner;

    /// Wraps a value, which may be any: it comes from a file.
    fn from_inner(inner: Self::Inner) -> Self;
}

impl<T: Newtype> Key for T {
    const TYPE: Type = <T::Inner as Key>::TYPE;
    const IS_TOTAL: bool = <T::Inner as Key>::IS_TOTAL;

    #[inline(always)]
    fn encode(self) -> Result<u64> {
        self.into_inner().encode()
    }

    #[inline(always)]
    fn decode(code: u64) -> Option<Self> {
        T::Inner::decode(code).map(Self::from_inner)
    }
}

impl<T: Newtype> Value for T {
    const TYPE: Type = <T::Inner as Value>::TYPE;
    const IS_TOTAL: bool = <T::Inner as Value>::IS_TOTAL;

    #[inline(always)]
    fn to_word(self) -> u64 {
        self.into_inner().to_word()
    }

    #[inline(always)]
    fn from_word(word: u64) -> Option<Self> {
        T::Inner::from_word(word).map(Self::from_inner)
    }
}

/// The sign bit of an `i64` or `f64`: flipped, negative numbers sort below positive ones.
const SIGN_64: u64 = 1 << 63;

/// Implements [`Key`] and [`Value`] of one type by four functions.
macro_rules! by_functions {
    ($type:ty, $code:ident, $encode:expr, $decode:expr, $to_word:expr, $from_word:expr) => {
        impl Key for $type {
            const TYPE: Type = Type::$code;
            const IS_TOTAL: bool = matches!(Type::$code, Type::U64 | Type::I64 | Type::Bytes8);

            #[inline(always)]
            fn encode(self) -> Result<u64> {
                let encode: fn($type) -> Result<u64> = $encode;
                encode(self)
            }

            #[inline(always)]
            fn decode(code: u64) -> Option<Self> {
                let decode: fn(u64) -> Option<$type> = $decode;
                decode(code)
            }
        }

        by_functions!($type, $code, $to_word, $from_word);
    };
    ($type:ty, $code:ident, $to_word:expr, $from_word:expr) => {
        impl sealed::Sealed for $type {}

        impl Value for $type {
            const TYPE: Type = Type::$code;
            const IS_TOTAL: bool = matches!(
                Type::$code,
                Type::U64 | Type::I64 | Type::F64 | Type::Bytes8 | Type::Unit
            );

            #[inline(always)]
            fn to_word(self) -> u64 {
                let to_word: fn($type) -> u64 = $to_word;
                to_word(self)
            }

            #[inline(always)]
            fn from_word(word: u64) -> Option<Self> {
                let from_word: fn(u64) -> Option<$type> = $from_word;
                from_word(word)
            }
        }
    };
}

/// A number as it is, with zeros above.
macro_rules! unsigned {
    ($type:ty, $code:ident) => {
        by_functions!(
            $type,
            $code,
            |key| Ok(u64::from(key)),
            |code| code.try_into().ok(),
            u64::from,
            |word| word.try_into().ok()
        );
    };
}

/// As a key the number as an `i64`, with its sign flipped; as a value the number's own bytes, with zeros above.
macro_rules! signed {
    ($type:ty, $code:ident) => {
        by_functions!(
            $type,
            $code,
            |key| Ok(i64::from(key).cast_unsigned() ^ SIGN_64),
            |code| (code ^ SIGN_64).cast_signed().try_into().ok(),
            |value| u64::from(value.cast_unsigned()),
            |word| {
                let number = word as $type;
                (u64::from(number.cast_unsigned()) == word).then_some(number)
            }
        );
    };
}

/// As a key the number as an `f64`, whose bits are changed so that they sort; as a value the number's own bits, with zeros above.
macro_rules! float {
    ($type:ty, $code:ident) => {
        by_functions!(
            $type,
            $code,
            |key| encode_f64(f64::from(key)),
            |code| {
                let number = decode_f64(code)?;
                // An `f32` is stored as the `f64` that it equals.
                let narrow = number as $type;
                (f64::from(narrow) == number).then_some(narrow)
            },
            |value| u64::from(value.to_bits()),
            |word| Some(<$type>::from_bits(word.try_into().ok()?))
        );
    };
}

/// The bytes as a number with the first byte highest, and zeros above.
macro_rules! bytes {
    ($type:ty, $code:ident) => {
        by_functions!(
            $type,
            $code,
            |key| Ok(word_of_bytes(key)),
            bytes_of_word,
            word_of_bytes,
            bytes_of_word
        );
    };
}

macro_rules! boolean {
    ($type:ty, $code:ident) => {
        by_functions!(
            $type,
            $code,
            |key| Ok(u64::from(key)),
            |code| (code <= 1).then_some(code == 1),
            u64::from,
            |word| (word <= 1).then_some(word == 1)
        );
    };
}

macro_rules! character {
    ($type:ty, $code:ident) => {
        by_functions!(
            $type,
            $code,
            |key| Ok(u64::from(key)),
            |code| char::from_u32(code.try_into().ok()?),
            u64::from,
            |word| char::from_u32(word.try_into().ok()?)
        );
    };
}

/// A value without bytes, and no key. What lies in the file does not matter.
macro_rules! unit {
    ($type:ty, $code:ident) => {
        by_functions!($type, $code, |()| 0, |_| Some(()));
    };
}

macro_rules! implement {
    ($($variant:ident = $code:literal, $type:ty, $class:ident, $more:literal;)+) => {
        $($class!($type, $variant);)+
    };
}
each_type!(implement);

fn word_of_bytes<const N: usize>(bytes: [u8; N]) -> u64 {
    let mut word = [0; 8];
    word[8 - N..].copy_from_slice(&bytes);
    u64::from_be_bytes(word)
}

fn bytes_of_word<const N: usize>(word: u64) -> Option<[u8; N]> {
    let word = word.to_be_bytes();
    let (zeros, bytes) = word.split_at(8 - N);
    if zeros.iter().any(|&byte| byte != 0) {
        return None;
    }
    bytes.try_into().ok()
}

/// Positive floats sort as their bits do, once the sign bit is set; negative ones sort the other way round.
fn encode_f64(key: f64) -> Result<u64> {
    if key.is_nan() {
        return Err(Error::NanKey);
    }
    // Adding zero turns -0.0 into 0.0 and leaves every other number as it is.
    let bits = (key + 0.0).to_bits();
    Ok(if bits & SIGN_64 == 0 {
        bits | SIGN_64
    } else {
        !bits
    })
}

fn decode_f64(code: u64) -> Option<f64> {
    let number = f64::from_bits(if code & SIGN_64 != 0 {
        code & !SIGN_64
    } else {
        !code
    });
    // Zero is encoded without its sign.
    (!number.is_nan() && code != !SIGN_64).then_some(number)
}

#[cfg(test)]
mod tests;
