//! Numbers, `bool` and `char` as keys.

use super::names::Code;
use super::{AsKey, KeyBuffer, KeyPrefix, OrderedKey, Place, TypeCodes};

/// Takes the first `N` bytes off.
#[inline]
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// Implements the traits of keys for a type whose encodings have so many bytes.
macro_rules! fixed {
    ($type:ty, $code:ident, $bytes:literal, $encode:expr, $decode:expr) => {
        impl AsKey<Self> for $type {
            #[inline]
            fn encode(&self, key: &mut KeyBuffer, _: Place) {
                let encode: fn($type) -> [u8; $bytes] = $encode;
                key.push(&encode(*self));
            }
        }

        impl KeyPrefix<Self> for $type {
            #[inline]
            fn encode_prefix(&self, key: &mut KeyBuffer, place: Place) {
                self.encode(key, place);
            }
        }

        impl OrderedKey for $type {
            fn name(codes: &mut TypeCodes) {
                codes.push(Code::$code);
            }

            #[inline]
            fn decode(bytes: &mut &[u8], _: Place) -> Option<Self> {
                let decode: fn([u8; $bytes]) -> Option<$type> = $decode;
                decode(take(bytes)?)
            }
        }
    };
}

macro_rules! unsigned {
    ($($type:ident, $code:ident, $bytes:literal;)+) => {$(
        fixed!($type, $code, $bytes, $type::to_be_bytes, |bytes| Some($type::from_be_bytes(bytes)));
    )+};
}
unsigned! {
    u8, U8, 1;
    u16, U16, 2;
    u32, U32, 4;
    u64, U64, 8;
    u128, U128, 16;
}

macro_rules! signed {
    ($($type:ident, $code:ident, $bytes:literal;)+) => {$(
        // `MIN` is the sign bit alone: flipped, negative numbers sort below the others.
        fixed!(
            $type,
            $code,
            $bytes,
            |key| (key ^ $type::MIN).to_be_bytes(),
            |bytes| Some($type::from_be_bytes(bytes) ^ $type::MIN)
        );
    )+};
}
signed! {
    i8, I8, 1;
    i16, I16, 2;
    i32, I32, 4;
    i64, I64, 8;
    i128, I128, 16;
}

macro_rules! floats {
    ($($type:ident, $unsigned:ident, $signed:ident, $code:ident, $bytes:literal;)+) => {$(
        fixed!(
            $type,
            $code,
            $bytes,
            |key| {
                let bits = key.to_bits();
                // All bits if the number is negative, none otherwise.
                let negative = (bits.cast_signed() >> ($unsigned::BITS - 1)).cast_unsigned();
                (bits ^ (negative | $signed::MIN.cast_unsigned())).to_be_bytes()
            },
            |bytes| {
                let bits = $unsigned::from_be_bytes(bytes);
                let positive = (bits.cast_signed() >> ($unsigned::BITS - 1)).cast_unsigned();
                Some($type::from_bits(bits ^ (!positive | $signed::MIN.cast_unsigned())))
            }
        );
    )+};
}
floats! {
    f32, u32, i32, F32, 4;
    f64, u64, i64, F64, 8;
}

fixed!(bool, Bool, 1, |key| [u8::from(key)], |[byte]| (byte <= 1)
    .then_some(byte == 1));

fixed!(
    char,
    Char,
    3,
    |key| {
        // No code of a character has more than 21 bits.
        let [_, bytes @ ..] = u32::from(key).to_be_bytes();
        bytes
    },
    |[a, b, c]| char::from_u32(u32::from_be_bytes([0, a, b, c]))
);
