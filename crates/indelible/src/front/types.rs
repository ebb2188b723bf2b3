//! Keys and values: 8 bytes each, the whole domain of their types.

use crate::{Error, Result};

/// The type of a map's keys or values, as the catalog records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Type {
    /// `u64`
    U64 = 1,
    /// `i64`
    I64 = 2,
    /// `u32`
    U32 = 3,
    /// `i32`
    I32 = 4,
    /// `f64`
    F64 = 5,
    /// `f32`
    F32 = 6,
    /// `[u8; 8]`, ordered as `memcmp` orders it
    Bytes8 = 7,
    /// `()`: a map with this value type is a set
    Unit = 8,
}

impl Type {
    /// The type with this code, if it is known.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        [
            Self::U64,
            Self::I64,
            Self::U32,
            Self::I32,
            Self::F64,
            Self::F32,
            Self::Bytes8,
            Self::Unit,
        ]
        .into_iter()
        .find(|known| *known as u8 == code)
    }
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::Bytes8 => "[u8; 8]",
            Self::Unit => "()",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A key: a type with an order-preserving 8-byte encoding.
///
/// Implemented for `u64 i64 u32 i32 f64 f32 [u8; 8]`. Sealed: the encoding is part of the file format.
pub trait Key: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The code in the catalog.
    const TYPE: Type;
    /// The encoding, whose order as `u64` is the order of the type.
    ///
    /// # Errors
    ///
    /// [`Error::NanKey`] for a NaN. `-0.0` is the same key as `0.0`.
    fn encode(self) -> Result<u64>;
    /// The key with this encoding.
    fn decode(code: u64) -> Self;
}

/// A value: any type of at most 8 bytes that the catalog knows. Every bit pattern is stored as it is.
///
/// Implemented for `u64 i64 u32 i32 f64 f32 [u8; 8] ()`.
pub trait Value: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The code in the catalog.
    const TYPE: Type;
    /// The 8 bytes that are stored.
    fn to_word(self) -> u64;
    /// The value stored in these 8 bytes.
    fn from_word(word: u64) -> Self;
}

const SIGN_64: u64 = 1 << 63;

macro_rules! plain {
    ($type:ty, $code:expr, $encode:expr, $decode:expr, $to:expr, $from:expr) => {
        impl sealed::Sealed for $type {}

        impl Key for $type {
            const TYPE: Type = $code;

            #[inline(always)]
            fn encode(self) -> Result<u64> {
                let encode: fn($type) -> Result<u64> = $encode;
                encode(self)
            }

            #[inline(always)]
            fn decode(code: u64) -> Self {
                let decode: fn(u64) -> $type = $decode;
                decode(code)
            }
        }

        impl Value for $type {
            const TYPE: Type = $code;

            #[inline(always)]
            fn to_word(self) -> u64 {
                let to: fn($type) -> u64 = $to;
                to(self)
            }

            #[inline(always)]
            fn from_word(word: u64) -> Self {
                let from: fn(u64) -> $type = $from;
                from(word)
            }
        }
    };
}

plain!(u64, Type::U64, Ok, |code| code, |value| value, |word| word);
plain!(
    i64,
    Type::I64,
    |key| Ok(key as u64 ^ SIGN_64),
    |code| (code ^ SIGN_64) as i64,
    |value| value as u64,
    |word| word as i64
);
plain!(
    u32,
    Type::U32,
    |key| Ok(u64::from(key)),
    |code| code as u32,
    u64::from,
    |word| word as u32
);
plain!(
    i32,
    Type::I32,
    |key| Ok(i64::from(key) as u64 ^ SIGN_64),
    |code| (code ^ SIGN_64) as i32,
    |value| u64::from(value as u32),
    |word| word as u32 as i32
);
plain!(
    f64,
    Type::F64,
    encode_f64,
    decode_f64,
    f64::to_bits,
    f64::from_bits
);
plain!(
    f32,
    Type::F32,
    |key| encode_f64(f64::from(key)),
    |code| decode_f64(code) as f32,
    |value| u64::from(value.to_bits()),
    |word| f32::from_bits(word as u32)
);
plain!(
    [u8; 8],
    Type::Bytes8,
    |key| Ok(u64::from_be_bytes(key)),
    u64::to_be_bytes,
    u64::from_be_bytes,
    |word| word.to_be_bytes()
);

impl sealed::Sealed for () {}

impl Value for () {
    const TYPE: Type = Type::Unit;

    #[inline(always)]
    fn to_word(self) -> u64 {
        0
    }

    #[inline(always)]
    fn from_word(_: u64) -> Self {}
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

fn decode_f64(code: u64) -> f64 {
    f64::from_bits(if code & SIGN_64 != 0 {
        code & !SIGN_64
    } else {
        !code
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keeps_order<K: Key + PartialOrd + std::fmt::Debug>(a: K, b: K) {
        let (code_a, code_b) = (a.encode().unwrap(), b.encode().unwrap());
        assert_eq!(a.partial_cmp(&b), Some(code_a.cmp(&code_b)), "{a:?} {b:?}");
        assert_eq!(K::decode(code_a), a);
    }

    #[test]
    fn the_ends_of_every_domain_keep_their_order() {
        for pair in [u64::MIN, 1, u64::MAX - 1, u64::MAX].windows(2) {
            keeps_order(pair[0], pair[1]);
        }
        for pair in [i64::MIN, -1, 0, 1, i64::MAX].windows(2) {
            keeps_order(pair[0], pair[1]);
        }
        for pair in [i32::MIN, -1, 0, 1, i32::MAX].windows(2) {
            keeps_order(pair[0], pair[1]);
        }
        let tiny = f64::from_bits(1);
        for pair in [
            f64::NEG_INFINITY,
            f64::MIN,
            -1.0,
            -tiny,
            0.0,
            tiny,
            1.0,
            f64::MAX,
            f64::INFINITY,
        ]
        .windows(2)
        {
            keeps_order(pair[0], pair[1]);
        }
        let tiny = f32::from_bits(1);
        for pair in [
            f32::NEG_INFINITY,
            f32::MIN,
            -tiny,
            0.0,
            tiny,
            f32::MAX,
            f32::INFINITY,
        ]
        .windows(2)
        {
            keeps_order(pair[0], pair[1]);
        }
    }

    #[test]
    fn nan_is_refused_and_the_two_zeros_are_one_key() {
        assert!(matches!(f64::NAN.encode(), Err(Error::NanKey)));
        assert!(matches!((-f32::NAN).encode(), Err(Error::NanKey)));
        assert_eq!((-0.0f64).encode().unwrap(), 0.0f64.encode().unwrap());
    }

    #[test]
    fn a_nan_value_keeps_its_bits() {
        let odd = f64::from_bits(0x7ff8_dead_beef_0001);
        assert_eq!(f64::from_word(odd.to_word()).to_bits(), odd.to_bits());
    }

    proptest! {
        #[test]
        fn order_is_kept(a: u64, b: u64) {
            keeps_order(a, b);
            keeps_order(a as i64, b as i64);
            keeps_order(a as u32, b as u32);
            keeps_order(a as i32, b as i32);
            keeps_order(a.to_ne_bytes(), b.to_ne_bytes());
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            if !x.is_nan() && !y.is_nan() {
                keeps_order(x, y);
            }
        }

        #[test]
        fn values_keep_every_bit(word: u64) {
            prop_assert_eq!(u64::from_word(word).to_word(), word);
            prop_assert_eq!(i64::from_word(word).to_word(), word);
            prop_assert_eq!(f64::from_word(word).to_word(), word);
            prop_assert_eq!(<[u8; 8]>::from_word(word).to_word(), word);
        }
    }
}
