//! Strings, byte strings and arrays of bytes as keys. The [module](super) proves that escaping keeps the order.

use super::names::Code;
use super::numbers::take;
use super::{AsKey, Begins, KeyBuffer, KeyPrefix, OrderedKey, Place, TypeCodes};
use std::borrow::Cow;

/// What follows a 0 of a string that has something behind it.
const ESCAPE: u8 = 255;
/// What such a string ends with.
const END: [u8; 2] = [0, 0];

/// Adds a string with something behind it, without its end.
fn push_escaped(bytes: &[u8], key: &mut KeyBuffer) {
    let mut runs = bytes.split(|&byte| byte == 0);
    // A string without zeros is one run, also the empty string.
    key.push(runs.next().unwrap_or_default());
    for run in runs {
        key.push(&[0, ESCAPE]);
        key.push(run);
    }
}

fn push_string(bytes: &[u8], key: &mut KeyBuffer, place: Place) {
    match place {
        Place::End => key.push(bytes),
        Place::Inside => {
            push_escaped(bytes, key);
            key.push(&END);
        }
    }
}

/// The beginning of a string, which may go on.
fn push_beginning(bytes: &[u8], key: &mut KeyBuffer, place: Place) {
    match place {
        Place::End => key.push(bytes),
        Place::Inside => push_escaped(bytes, key),
    }
}

fn take_string<'a>(bytes: &mut &'a [u8], place: Place) -> Option<Cow<'a, [u8]>> {
    if place == Place::End {
        return Some(Cow::Borrowed(std::mem::take(bytes)));
    }
    let mut string = Cow::Borrowed(&[][..]);
    loop {
        let zero = bytes.iter().position(|&byte| byte == 0)?;
        let (run, rest) = bytes.split_at(zero);
        if string.is_empty() {
            string = Cow::Borrowed(run);
        } else {
            string.to_mut().extend_from_slice(run);
        }
        let (&[_, after], behind) = rest.split_first_chunk()?;
        *bytes = behind;
        match after {
            0 => return Some(string),
            ESCAPE => string.to_mut().push(0),
            _ => return None,
        }
    }
}

/// Implements the traits for what can be given as a string: a complete one, and, at the end of a key, the beginning of one.
macro_rules! given {
    ($($($parameter:ident: $of:ty)?, $type:ty, $key:ty;)+) => {$(
        impl$(<const $parameter: $of>)? AsKey<$key> for $type {
            #[inline]
            fn encode(&self, key: &mut KeyBuffer, place: Place) {
                push_string(self.as_ref(), key, place);
            }

            #[inline]
            fn with_encoded<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R {
                // At the end of a key a string is its own encoding.
                use_key(self.as_ref())
            }
        }

        impl$(<const $parameter: $of>)? KeyPrefix<$key> for $type {
            #[inline]
            fn encode_prefix(&self, key: &mut KeyBuffer, place: Place) {
                push_string(self.as_ref(), key, place);
            }
        }
    )+};
}
given! {
    , str, String;
    , String, String;
    , [u8], Vec<u8>;
    , Vec<u8>, Vec<u8>;
    N: usize, [u8; N], Vec<u8>;
}

impl<T: AsRef<str>> KeyPrefix<String> for Begins<T> {
    #[inline]
    fn encode_prefix(&self, key: &mut KeyBuffer, place: Place) {
        push_beginning(self.0.as_ref().as_bytes(), key, place);
    }
}

impl<T: AsRef<[u8]>> KeyPrefix<Vec<u8>> for Begins<T> {
    #[inline]
    fn encode_prefix(&self, key: &mut KeyBuffer, place: Place) {
        push_beginning(self.0.as_ref(), key, place);
    }
}

impl OrderedKey for String {
    fn name(codes: &mut TypeCodes) {
        codes.push(Code::String);
    }

    fn decode(bytes: &mut &[u8], place: Place) -> Option<Self> {
        Self::from_utf8(take_string(bytes, place)?.into_owned()).ok()
    }
}

impl OrderedKey for Vec<u8> {
    fn name(codes: &mut TypeCodes) {
        codes.push(Code::Bytes);
    }

    fn decode(bytes: &mut &[u8], place: Place) -> Option<Self> {
        take_string(bytes, place).map(Cow::into_owned)
    }
}

impl<const N: usize> AsKey<Self> for [u8; N] {
    #[inline]
    fn encode(&self, key: &mut KeyBuffer, _: Place) {
        key.push(self);
    }

    #[inline]
    fn with_encoded<R>(&self, use_key: impl FnOnce(&[u8]) -> R) -> R {
        use_key(self)
    }
}

impl<const N: usize> KeyPrefix<Self> for [u8; N] {
    #[inline]
    fn encode_prefix(&self, key: &mut KeyBuffer, _: Place) {
        key.push(self);
    }
}

impl<const M: usize, const N: usize> KeyPrefix<[u8; N]> for Begins<[u8; M]> {
    #[inline]
    fn encode_prefix(&self, key: &mut KeyBuffer, _: Place) {
        // Else it would be compared with the field behind the array.
        const { assert!(M <= N, "the beginning is longer than the array") };
        key.push(&self.0);
    }
}

impl<const N: usize> OrderedKey for [u8; N] {
    fn name(codes: &mut TypeCodes) {
        codes.push_array(N);
    }

    #[inline]
    fn decode(bytes: &mut &[u8], _: Place) -> Option<Self> {
        take(bytes)
    }
}
