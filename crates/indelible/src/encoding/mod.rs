//! Types of keys and values as byte strings: what a typed map stores in a map of byte strings.
//!
//! # Keys
//!
//! The encoding of a key keeps the order: encodings are compared as `memcmp` compares them, and a string that another one begins with comes
//! before it. It is a bijection onto its image: a byte string is the encoding of one key, or of none, in which case decoding says so.
//!
//! | type | encoding |
//! |---|---|
//! | `u8` to `u128` | the bytes, the highest first |
//! | `i8` to `i128` | the same with the sign bit flipped |
//! | `f32`, `f64` | the bits, the highest byte first: of positive numbers with the sign bit flipped, of negative ones with all bits flipped. So the order is that of `total_cmp`. |
//! | `bool` | 0 or 1 |
//! | `char` | three bytes, the highest first |
//! | `[u8; N]` | the bytes |
//! | `String`, `Vec<u8>` | the bytes; if something follows in the key, 0 becomes 0, 255, and the end is 0, 0 |
//! | `Option<K>` | 0 for `None`; 1 and the encoding of the key |
//! | tuples | the encodings of the fields, one behind the other |
//!
//! # Why a string with something behind it keeps the order
//!
//! A string at the end of the key ends where the key ends ([`Place::End`]). Elsewhere ([`Place::Inside`]) its encoding must tell where it ends,
//! and no encoding may begin with another one, because otherwise the field behind would be compared with a part of the string. Let `a` and `b` be two strings, `a < b`.
//!
//! - They differ at some byte first. If neither byte is 0, the encodings differ there in the same way. If the byte of `a` is 0, its encoding has a
//!   0 there and that of `b` has a larger byte. The byte of `b` cannot be 0, as it is the larger one.
//! - `b` begins with `a`. Behind `a` the encoding of `a` has 0, 0. That of `b` has a byte above 0, or 0, 255, or, if `a` and `b` are the same,
//!   the same end.
//!
//! Inside a string 0 is followed by 255, at its end by 0. So the end is found, and an encoding begins with another one only if both are the same.
//! For the other types that holds because they have one length, or because a first byte tells which it is.
//!
//! A tuple's encoding begins with the encoding of its first fields, each [inside](Place::Inside): the encoding of a [`KeyPrefix`].

mod compound;
mod key;
mod names;
mod numbers;
mod parse;
#[cfg(feature = "zerocopy")]
mod plain;
#[cfg(feature = "serde")]
mod postcard;
mod strings;
mod value;

#[cfg(feature = "serde")]
pub use self::postcard::Postcard;
pub use key::{AsKey, Begins, KeyBuffer, KeyPrefix, OrderedKey, Place};
pub use names::TypeCodes;
pub(crate) use names::{CODE_BYTES, Lengths, lengths_of, names_of};
#[cfg(feature = "zerocopy")]
pub use plain::Plain;
pub use value::{AsValue, Named, StoredValue};

pub(crate) use key::from_bytes;
