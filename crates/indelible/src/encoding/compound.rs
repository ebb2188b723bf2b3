//! `Option` and tuples as keys.

use super::names::Code;
use super::numbers::take;
use super::{AsKey, KeyBuffer, KeyPrefix, OrderedKey, Place, TypeCodes};

const NONE: u8 = 0;
const SOME: u8 = 1;

impl<K: OrderedKey, Q: AsKey<K>> AsKey<Option<K>> for Option<Q> {
    #[inline]
    fn encode(&self, key: &mut KeyBuffer, place: Place) {
        match self {
            None => key.push(&[NONE]),
            Some(inner) => {
                key.push(&[SOME]);
                inner.encode(key, place);
            }
        }
    }
}

impl<K: OrderedKey, Q: KeyPrefix<K>> KeyPrefix<Option<K>> for Option<Q> {
    #[inline]
    fn encode_prefix(&self, key: &mut KeyBuffer, place: Place) {
        match self {
            None => key.push(&[NONE]),
            Some(inner) => {
                key.push(&[SOME]);
                inner.encode_prefix(key, place);
            }
        }
    }
}

impl<K: OrderedKey> OrderedKey for Option<K> {
    fn name(codes: &mut TypeCodes) {
        codes.push(Code::Option);
        K::name(codes);
    }

    #[inline]
    fn decode(bytes: &mut &[u8], place: Place) -> Option<Self> {
        match take(bytes)? {
            [NONE] => Some(None),
            [SOME] => Some(Some(K::decode(bytes, place)?)),
            _ => None,
        }
    }
}

/// A tuple as a key: first the fields but the last, then the last one, each as: what is given, type of the field, index.
macro_rules! tuple {
    ($code:ident; $($Q:ident $K:ident $at:tt),+; $L:ident $M:ident $last:tt) => {
        impl<$($Q: AsKey<$K>, $K: OrderedKey,)+ $L: AsKey<$M>, $M: OrderedKey>
            AsKey<($($K,)+ $M)> for ($($Q,)+ $L)
        {
            #[inline]
            fn encode(&self, key: &mut KeyBuffer, place: Place) {
                $(self.$at.encode(key, Place::Inside);)+
                self.$last.encode(key, place);
            }
        }

        impl<$($K: OrderedKey,)+ $M: OrderedKey> OrderedKey for ($($K,)+ $M) {
            fn name(codes: &mut TypeCodes) {
                codes.push(Code::$code);
                $($K::name(codes);)+
                $M::name(codes);
            }

            #[inline]
            fn decode(bytes: &mut &[u8], place: Place) -> Option<Self> {
                // The fields of a tuple expression are evaluated from the first to the last.
                Some(($($K::decode(bytes, Place::Inside)?,)+ $M::decode(bytes, place)?))
            }
        }
    };
}
tuple!(Tuple2; A I 0; B J 1);
tuple!(Tuple3; A I 0, B J 1; C K 2);
tuple!(Tuple4; A I 0, B J 1, C K 2; D L 3);
tuple!(Tuple5; A I 0, B J 1, C K 2, D L 3; E M 4);
tuple!(Tuple6; A I 0, B J 1, C K 2, D L 3, E M 4; F N 5);

/// Where the last field that is given lies, if so many fields of the key follow.
const fn place_before(place: Place, fields: usize) -> Place {
    if fields == 0 { place } else { Place::Inside }
}

/// First fields of a tuple: those but the last that are given, the last one, and the types of those that follow.
macro_rules! prefix {
    ($($Q:ident $K:ident $at:tt),*; $L:ident $M:ident $last:tt; $($R:ident),*) => {
        impl<$($Q: AsKey<$K>, $K: OrderedKey,)* $L: KeyPrefix<$M>, $M: OrderedKey, $($R: OrderedKey,)*>
            KeyPrefix<($($K,)* $M, $($R,)*)> for ($($Q,)* $L,)
        {
            #[inline]
            fn encode_prefix(&self, key: &mut KeyBuffer, place: Place) {
                $(self.$at.encode(key, Place::Inside);)*
                let follow: &[&str] = &[$(stringify!($R)),*];
                self.$last.encode_prefix(key, place_before(place, follow.len()));
            }
        }
    };
}
prefix!(; A I 0; J);
prefix!(A I 0; B J 1;);
prefix!(; A I 0; J, K);
prefix!(A I 0; B J 1; K);
prefix!(A I 0, B J 1; C K 2;);
prefix!(; A I 0; J, K, L);
prefix!(A I 0; B J 1; K, L);
prefix!(A I 0, B J 1; C K 2; L);
prefix!(A I 0, B J 1, C K 2; D L 3;);
prefix!(; A I 0; J, K, L, M);
prefix!(A I 0; B J 1; K, L, M);
prefix!(A I 0, B J 1; C K 2; L, M);
prefix!(A I 0, B J 1, C K 2; D L 3; M);
prefix!(A I 0, B J 1, C K 2, D L 3; E M 4;);
prefix!(; A I 0; J, K, L, M, N);
prefix!(A I 0; B J 1; K, L, M, N);
prefix!(A I 0, B J 1; C K 2; L, M, N);
prefix!(A I 0, B J 1, C K 2; D L 3; M, N);
prefix!(A I 0, B J 1, C K 2, D L 3; E M 4; N);
prefix!(A I 0, B J 1, C K 2, D L 3, E M 4; F N 5;);
