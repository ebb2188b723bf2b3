//! The promises of the encodings: order, both ways, no panic on any bytes, and no encoding inside a key that another one begins with.

use indelible::{
    AsKey, AsValue, Begins, KeyBuffer, KeyPrefix, OrderedKey, Place, Pool, StoredValue, TypeCodes,
};
use proptest::prelude::*;
use std::cmp::Ordering;
use std::fmt::Debug;

/// The key with this encoding.
fn from_bytes<K: OrderedKey>(mut bytes: &[u8]) -> Option<K> {
    let key = K::decode(&mut bytes, Place::End)?;
    bytes.is_empty().then_some(key)
}

fn whole<K>(key: &impl AsKey<K>) -> Vec<u8> {
    key.with_encoded(<[u8]>::to_vec)
}

fn inside<K>(key: &impl AsKey<K>) -> Vec<u8> {
    let mut buffer = KeyBuffer::new();
    key.encode(&mut buffer, Place::Inside);
    buffer.as_slice().to_vec()
}

fn beginning<K>(prefix: &impl KeyPrefix<K>) -> Vec<u8> {
    let mut buffer = KeyBuffer::new();
    prefix.encode_prefix(&mut buffer, Place::End);
    buffer.as_slice().to_vec()
}

/// Two keys: order, decoding, and prefixes, at the end of a key and inside.
fn check_pair<K: OrderedKey + Debug>(a: &K, b: &K, order: Ordering) {
    assert_eq!(whole(a).cmp(&whole(b)), order, "{a:?}, {b:?}");
    assert_eq!(inside(a).cmp(&inside(b)), order, "{a:?}, {b:?}");
    assert_eq!(
        inside(a).starts_with(&inside(b)),
        order.is_eq(),
        "{a:?}, {b:?}"
    );
    for key in [a, b] {
        let mut buffer = KeyBuffer::new();
        key.encode(&mut buffer, Place::End);
        assert_eq!(buffer.as_slice(), whole(key), "both ways to encode agree");
        let read: K = from_bytes(&whole(key)).unwrap();
        // Compared encoded: a NaN is not equal to itself.
        assert_eq!(whole(&read), whole(key));
        let mut bytes = [inside(key), b"rest".to_vec()].concat();
        let mut left = bytes.as_slice();
        let read = K::decode(&mut left, Place::Inside).unwrap();
        assert_eq!((inside(&read), left), (inside(key), &b"rest"[..]));
        // What is cut off is missed.
        bytes.truncate(inside(key).len() - 1);
        assert!(K::decode(&mut bytes.as_slice(), Place::Inside).is_none());
    }
}

/// Any bytes are the encoding of one key, or of none.
fn check_bytes<K: OrderedKey + Debug>(bytes: &[u8]) {
    if let Some(key) = from_bytes::<K>(bytes) {
        assert_eq!(whole(&key), bytes, "{key:?}");
    }
    let mut left = bytes;
    if let Some(key) = K::decode(&mut left, Place::Inside) {
        assert_eq!([&inside(&key), left].concat(), bytes, "{key:?}");
    }
}

fn check_value<V: StoredValue + Debug>(value: &V, bytes: &[u8]) {
    let encoded = value.with_bytes(<[u8]>::to_vec).unwrap();
    let read = V::from_view(V::view(&encoded).unwrap());
    assert_eq!(read.with_bytes(<[u8]>::to_vec).unwrap(), encoded);
    assert_eq!(format!("{read:?}"), format!("{value:?}"));
    if let Some(view) = V::view(bytes) {
        let again = V::from_view(view).with_bytes(<[u8]>::to_vec).unwrap();
        assert_eq!(again, bytes);
    }
}

/// All pairs of some keys, which ascend strictly.
fn check_ascending<K: OrderedKey + Debug>(keys: &[K]) {
    for (i, a) in keys.iter().enumerate() {
        for (j, b) in keys.iter().enumerate() {
            check_pair(a, b, i.cmp(&j));
        }
    }
}

/// Bytes that are hard: many zeros, ones and 255s.
fn hard_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0_u8), Just(1), Just(255), any::<u8>()];
    proptest::collection::vec(byte, 0..8)
}

fn hard_string() -> impl Strategy<Value = String> {
    let character = prop_oneof![Just('\0'), Just('\u{1}'), Just('\u{10ffff}'), any::<char>()];
    let characters = proptest::collection::vec(character, 0..6);
    characters.prop_map(|characters| characters.into_iter().collect())
}

macro_rules! ordered {
    ($($name:ident: $strategy:expr, $K:ty;)+) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(400))]
            $(#[test]
            fn $name(a in $strategy, b in $strategy, bytes in hard_bytes()) {
                let order = a.cmp(&b);
                check_pair::<$K>(&a, &b, order);
                check_pair::<Option<$K>>(&Some(a.clone()), &None, Ordering::Greater);
                check_pair(&Some(a), &Some(b), order);
                check_bytes::<$K>(&bytes);
                check_bytes::<Option<$K>>(&bytes);
            })+
        }
    };
}
ordered! {
    u8_keeps_its_order: any::<u8>(), u8;
    u16_keeps_its_order: any::<u16>(), u16;
    u32_keeps_its_order: any::<u32>(), u32;
    u64_keeps_its_order: any::<u64>(), u64;
    u128_keeps_its_order: any::<u128>(), u128;
    i8_keeps_its_order: any::<i8>(), i8;
    i16_keeps_its_order: any::<i16>(), i16;
    i32_keeps_its_order: any::<i32>(), i32;
    i64_keeps_its_order: any::<i64>(), i64;
    i128_keeps_its_order: any::<i128>(), i128;
    bool_keeps_its_order: any::<bool>(), bool;
    char_keeps_its_order: any::<char>(), char;
    strings_keep_their_order: hard_string(), String;
    byte_strings_keep_their_order: hard_bytes(), Vec<u8>;
    arrays_keep_their_order: any::<[u8; 5]>(), [u8; 5];
    pairs_keep_their_order: (hard_bytes(), hard_bytes()), (Vec<u8>, Vec<u8>);
    triples_keep_their_order: (hard_string(), any::<i16>(), hard_bytes()), (String, i16, Vec<u8>);
    four_fields_keep_their_order: (any::<bool>(), hard_bytes(), hard_bytes(), any::<u8>()), (bool, Vec<u8>, Vec<u8>, u8);
    nested_keys_keep_their_order: ((any::<i8>(), hard_bytes()), proptest::option::of(hard_string()), hard_bytes()), ((i8, Vec<u8>), Option<String>, Vec<u8>);
    six_fields_keep_their_order: (any::<bool>(), any::<bool>(), hard_bytes(), any::<bool>(), any::<bool>(), hard_bytes()), (bool, bool, Vec<u8>, bool, bool, Vec<u8>);
    five_fields_keep_their_order: (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), proptest::option::of((any::<bool>(), hard_bytes()))), (bool, bool, bool, bool, Option<(bool, Vec<u8>)>);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn floats_are_in_total_order(a in any::<u64>(), b in any::<u64>(), bytes in hard_bytes()) {
        for (a, b) in [(a, b), (a, a ^ 1), (a, a ^ (1 << 63))] {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            check_pair(&a, &b, a.total_cmp(&b));
            let (a, b) = (f32::from_bits(a.to_bits() as u32), f32::from_bits(b.to_bits() as u32));
            check_pair(&a, &b, a.total_cmp(&b));
        }
        check_bytes::<f32>(&bytes);
        check_bytes::<f64>(&bytes);
    }

    #[test]
    fn a_partial_tuple_is_the_beginning_of_exactly_its_keys(
        a in (0..2_u8, hard_bytes(), hard_bytes()),
        b in (0..2_u8, hard_bytes(), hard_bytes()),
    ) {
        type Key = (u8, Vec<u8>, Vec<u8>);
        let begins = |prefix: Vec<u8>| whole::<Key>(&a).starts_with(&prefix);
        let (first, second) = (a.0 == b.0, a.1 == b.1);
        assert_eq!(begins(beginning::<Key>(&(b.0,))), first);
        assert_eq!(begins(beginning::<Key>(&(b.0, &b.1))), first && second);
        let has = first && a.1.starts_with(&b.1);
        assert_eq!(begins(beginning::<Key>(&(b.0, Begins(&b.1)))), has);
        let has = first && second && a.2.starts_with(&b.2);
        assert_eq!(begins(beginning::<Key>(&(b.0, &b.1, Begins(&b.2)))), has);
        assert_eq!(begins(beginning::<Key>(&(b.0, &b.1, &b.2))), has);

        // A part of a tuple inside of a tuple.
        type Nested = ((Vec<u8>, u8), Vec<u8>);
        let nested = ((a.1.clone(), a.0), a.2.clone());
        let begins = |prefix: Vec<u8>| whole::<Nested>(&nested).starts_with(&prefix);
        assert_eq!(begins(beginning::<Nested>(&((&b.1,),))), second);
        assert_eq!(begins(beginning::<Nested>(&((&b.1, b.0),))), first && second);
        let has = a.1.starts_with(&b.1);
        assert_eq!(begins(beginning::<Nested>(&((Begins(&b.1),),))), has);
    }

    #[test]
    fn values_are_read_as_they_were_written(
        number in any::<u128>(),
        character in any::<char>(),
        string in hard_string(),
        bytes in hard_bytes(),
    ) {
        check_value(&(number as u8), &bytes);
        check_value(&(number as u16), &bytes);
        check_value(&(number as u32), &bytes);
        check_value(&(number as u64), &bytes);
        check_value(&number, &bytes);
        check_value(&(number as i8), &bytes);
        check_value(&(number as i16), &bytes);
        check_value(&(number as i32), &bytes);
        check_value(&(number as i64), &bytes);
        check_value(&(number as i128), &bytes);
        check_value(&f32::from_bits(number as u32), &bytes);
        check_value(&f64::from_bits(number as u64), &bytes);
        check_value(&(number % 2 == 0), &bytes);
        check_value(&character, &bytes);
        check_value(&string, &bytes);
        check_value(&bytes, &bytes);
        check_value(&number.to_ne_bytes(), &bytes);
        check_value(&(), &bytes);
    }
}

#[test]
fn extremes_are_in_order() {
    macro_rules! integers {
        ($($type:ident)+) => {$(
            let (min, max) = ($type::MIN, $type::MAX);
            let mut all = vec![min, min + 1, min / 2, max / 2, max - 1, max, 0, 1];
            all.sort();
            all.dedup();
            check_ascending(&all);
        )+};
    }
    integers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);
    macro_rules! floats {
        ($($type:ident)+) => {$(
            let tiny = $type::from_bits(1);
            check_ascending(&[
                -$type::NAN, $type::NEG_INFINITY, $type::MIN, -1.0, -$type::MIN_POSITIVE, -tiny, -0.0,
                0.0, tiny, $type::MIN_POSITIVE, 1.0, $type::MAX, $type::INFINITY, $type::NAN,
            ]);
        )+};
    }
    floats!(f32 f64);
    check_ascending(&[false, true]);
    check_ascending(&[
        '\0',
        'a',
        '\u{d7ff}',
        '\u{e000}',
        '\u{ffff}',
        '\u{10000}',
        char::MAX,
    ]);
    let strings = [
        "",
        "\0",
        "\0\0",
        "\0a",
        "\u{1}",
        "a",
        "a\0",
        "a\0\0",
        "a\0b",
        "a\u{1}",
        "ab",
        "\u{10ffff}",
    ];
    check_ascending(&strings.map(String::from));
    let bytes: [&[u8]; 11] = [
        b"",
        b"\0",
        b"\0\0",
        b"\0\0\xff",
        b"\0\x01",
        b"\0\xff",
        b"\0\xff\0",
        b"\x01",
        b"\xff",
        b"\xff\0",
        b"\xff\xff",
    ];
    check_ascending(&bytes.map(Vec::from));
    check_ascending(&bytes.map(|first| (Vec::from(first), 0_u8)));
    check_ascending(&[None, Some(None), Some(Some(0_u8)), Some(Some(255))]);
    check_ascending(&[[0_u8; 0]; 1].map(|empty| (empty, 1_u8)));
    check_ascending(&[
        vec![0; 300],
        vec![0; 301],
        vec![1; 63],
        vec![1; 64],
        vec![1; 65],
    ]);
}

#[test]
fn what_is_no_encoding_is_refused() {
    assert_eq!(from_bytes::<bool>(&[2]), None);
    assert_eq!(from_bytes::<char>(&[0, 0xd8, 0]), None);
    assert_eq!(from_bytes::<char>(&[0x11, 0, 0]), None);
    assert_eq!(from_bytes::<String>(&[0xff]), None);
    assert_eq!(from_bytes::<u16>(&[1]), None);
    assert_eq!(from_bytes::<u16>(&[1, 2, 3]), None);
    assert_eq!(from_bytes::<Option<u8>>(&[2, 0]), None);
    assert_eq!(from_bytes::<Option<u8>>(&[0, 0]), None);
    assert_eq!(from_bytes::<(Vec<u8>, u8)>(b"a\0\x01\0\0\0"), None);
    assert_eq!(from_bytes::<(Vec<u8>, u8)>(b"a\0"), None);
    assert_eq!(from_bytes::<(Vec<u8>, u8)>(b"a"), None);
    assert!(u32::view(&[1, 2, 3]).is_none() && bool::view(&[2]).is_none());
    assert!(char::view(&0xd800_u32.to_le_bytes()).is_none() && <()>::view(&[0]).is_none());
    assert!(String::view(&[0xff]).is_none() && <[u8; 2]>::view(&[1]).is_none());
}

#[test]
fn types_are_named_as_rust_spells_them() {
    fn names<K: OrderedKey, V: StoredValue>() -> Option<[String; 2]> {
        let pool = Pool::in_memory().unwrap();
        drop(pool.typed::<K, V>("m").ok()?);
        let info = pool.typed_maps().remove(0);
        Some([info.key, info.value])
    }
    macro_rules! check {
        ($($K:ty, $V:ty;)+) => {$(
            assert_eq!(names::<$K, $V>(), Some([stringify!($K).into(), stringify!($V).into()]));
        )+};
    }
    check! {
        u8, u16; u16, u32; u32, u64; u64, u128; u128, u8;
        i8, i16; i16, i32; i32, i64; i64, i128; i128, i8;
        f32, f64; f64, f32; bool, char; char, bool; String, Vec<u8>; Vec<u8>, String; u8, ();
        [u8; 0], [u8; 1]; [u8; 127], [u8; 128]; [u8; 65536], [u8; 300000];
        Option<u8>, (); Option<(u8, Option<String>)>, ();
        (u8, String), String; (u8, u8, u8), u8; (u8, u8, u8, u8), u8; (u8, u8, u8, u8, u8), u8; (u8, u8, u8, u8, u8, u8), u8;
    }
    type Twelve = ((u8, u8, u8, u8, u8, u8), (u8, u8, u8, u8, u8, u8));
    assert!(names::<(Twelve, u8, u8), u8>().is_some());
    assert!(
        names::<(Twelve, Twelve), u8>().is_none(),
        "too long for the catalog"
    );
    struct Own<const N: usize>;
    impl<const N: usize> AsValue<Self> for Own<N> {
        fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> indelible::Result<R> {
            Ok(use_value(&[]))
        }
    }
    impl<const N: usize> StoredValue for Own<N> {
        type View<'a> = Self;

        fn name(codes: &mut TypeCodes) {
            codes.own(&"n".repeat(N));
        }

        fn view(_: &[u8]) -> Option<Self> {
            Some(Self)
        }

        fn from_view(view: Self) -> Self {
            view
        }
    }
    assert_eq!(names::<u8, Own<0>>(), None);
    assert_eq!(names::<u8, Own<1>>(), Some(["u8".into(), "n".into()]));
    assert_eq!(names::<u8, Own<19>>(), Some(["u8".into(), "n".repeat(19)]));
    assert_eq!(names::<u8, Own<20>>(), None);
    assert_eq!(names::<u8, Own<300>>(), None);
}
