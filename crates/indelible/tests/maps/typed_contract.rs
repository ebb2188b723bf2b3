//! The contract of typed maps: every operation against `BTreeMap`, for keys of many types; and maps are opened with their own types alone.

use crate::typed_model::{contract, string};
use indelible::{
    AsValue, Begins, BytesMap, BytesOptions, Error, OrderedKey, Pool, Result, StoredValue,
    StringKind, TypeCodes,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt::Debug;

#[test]
fn maps_of_integers_do_what_a_btreemap_does() {
    contract::<u128, u64>(
        |random| random.random::<u128>() >> 119 << 60,
        |random| random.random(),
    );
    contract::<i16, i128>(
        |random| random.random_range(-150..150),
        |random| random.random(),
    );
    contract::<u64, ()>(|random| random.random_range(0..300), |_| ());
}

#[test]
fn maps_of_strings_do_what_a_btreemap_does() {
    contract::<String, String>(string, |random| "v".repeat(random.random_range(0..600)));
    contract::<Vec<u8>, Vec<u8>>(
        |random| vec![random.random_range(0..2) * 255; random.random_range(0..100)],
        |random| vec![1; [0, 5, 5000][random.random_range(0..3)]],
    );
    contract::<[u8; 16], char>(
        |random| [random.random_range(0..200); 16],
        |random| char::from(random.random::<u8>()),
    );
}

#[test]
fn maps_of_tuples_do_what_a_btreemap_does() {
    contract::<(u32, i64), bool>(
        |random| (random.random_range(0..5), random.random_range(-30..30)),
        |random| random.random(),
    );
    contract::<(String, String, u8), [u8; 3]>(
        |random| (string(random), string(random), random.random_range(0..3)),
        |random| random.random(),
    );
    contract::<(Option<String>, bool, Option<(char, String)>), u16>(
        |random| {
            (
                random.random_bool(0.8).then(|| string(random)),
                random.random(),
                random.random_bool(0.5).then(|| ('x', string(random))),
            )
        },
        |random| random.random(),
    );
}

#[test]
fn a_prefix_finds_what_begins_with_it() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.typed::<(u8, String, i8), u32>("m").unwrap();
    let mut random = SmallRng::seed_from_u64(3);
    let mut model = BTreeMap::new();
    for i in 0..500 {
        let key = (
            [0, 7, 255][random.random_range(0..3)],
            string(&mut random),
            random.random_range(-1..2),
        );
        map.insert(&key, i).unwrap();
        model.insert(key, i);
    }
    type Key = (u8, String, i8);
    let expected = |is_in: &dyn Fn(&Key) -> bool| -> Vec<(Key, u32)> {
        let records = model.iter().filter(|(key, _)| is_in(key));
        records.map(|(key, value)| (key.clone(), *value)).collect()
    };
    for first in [0, 7, 8, 255] {
        let found: Vec<_> = map.prefix((first,)).map(Result::unwrap).collect();
        assert_eq!(found, expected(&|key| key.0 == first));
        for _ in 0..30 {
            let second = string(&mut random);
            let found = map.prefix((first, &second)).map(Result::unwrap);
            let is_in = |key: &Key| key.0 == first && key.1 == second;
            assert!(found.eq(expected(&is_in)));
            let is_in = |key: &Key| key.0 == first && key.1.starts_with(&second);
            let found = map.prefix((first, Begins(&second))).map(Result::unwrap);
            assert!(found.eq(expected(&is_in)));
            let found = map.prefix_keys((first, Begins(&second))).rev();
            let keys = expected(&is_in).into_iter().rev().map(|(key, _)| key);
            assert!(found.map(Result::unwrap).eq(keys));
        }
    }
    let urls = pool.typed::<String, ()>("urls").unwrap();
    urls.extend([("a", ()), ("a/b", ()), ("b", ())]).unwrap();
    assert_eq!(urls.prefix("a").count(), 2);
    assert_eq!(urls.prefix(Begins("a/")).count(), 1);
    assert_eq!(urls.prefix("").count(), 3);
}

#[test]
fn the_extremes_of_every_type_of_keys_are_found() {
    fn check<K: OrderedKey + PartialEq + Debug>(keys: &[K]) {
        let pool = Pool::in_memory().unwrap();
        let map = pool.typed::<K, u32>("m").unwrap();
        for (i, key) in keys.iter().enumerate().rev() {
            assert!(!map.insert(key, i as u32).unwrap());
        }
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(map.get(key).unwrap(), Some(i as u32));
        }
        let values: Vec<u32> = map.values().map(Result::unwrap).collect();
        assert!(values.into_iter().eq(0..keys.len() as u32), "in order");
        assert_eq!(map.check().unwrap(), Vec::<String>::new());
    }
    macro_rules! integers {
        (signed $($type:ident)+) => {$(check(&[$type::MIN, $type::MIN + 1, -1, 0, 1, $type::MAX - 1, $type::MAX]);)+};
        (unsigned $($type:ident)+) => {$(check(&[0, 1, $type::MAX / 2, $type::MAX / 2 + 1, $type::MAX - 1, $type::MAX]);)+};
    }
    integers!(signed i8 i16 i32 i64 i128);
    integers!(unsigned u8 u16 u32 u64 u128);
    check(&[
        f32::NEG_INFINITY,
        f32::MIN,
        -f32::MIN_POSITIVE,
        0.0,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::INFINITY,
    ]);
    check(&[
        f64::NEG_INFINITY,
        f64::MIN,
        -f64::MIN_POSITIVE,
        0.0,
        f64::MIN_POSITIVE,
        f64::MAX,
        f64::INFINITY,
    ]);
    check(&[false, true]);
    check(&['\0', 'a', '\u{d7ff}', '\u{e000}', char::MAX]);
    check(&[
        String::new(),
        "\0".into(),
        "\0\0".into(),
        "a".into(),
        "a\0".into(),
        "b".repeat(64 << 10),
    ]);
    check(&[
        vec![],
        vec![0],
        vec![0, 255],
        vec![255],
        vec![255; 64 << 10],
    ]);
    check(&[[0; 0]]);
    check(&[[0; 300], [1; 300], [255; 300]]);
    check(&[None, Some(i8::MIN), Some(i8::MAX)]);
    check(&[
        None,
        Some(None),
        Some(Some(String::new())),
        Some(Some("\0".into())),
    ]);
    check(&[
        (u8::MIN, i8::MIN),
        (u8::MIN, i8::MAX),
        (u8::MAX, i8::MIN),
        (u8::MAX, i8::MAX),
    ]);
    let long = |length: usize| vec![0_u8; length];
    check(&[
        (long(0), long(0)),
        (long(0), long(9)),
        (long(1), long(0)),
        (long(30_000), long(5)),
    ]);
    check(&[
        (0_u8, 0_u16, 0_u32, 0_u64, 0_u128, false),
        (u8::MAX, u16::MAX, u32::MAX, u64::MAX, u128::MAX, true),
    ]);
}

#[test]
fn floats_are_keys_in_total_order() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.typed::<f64, u8>("m").unwrap();
    let keys = [
        -f64::NAN,
        f64::NEG_INFINITY,
        -0.0,
        0.0,
        f64::INFINITY,
        f64::NAN,
    ];
    for (i, key) in (0..).zip(keys) {
        map.insert(key, i).unwrap();
    }
    assert!(map.values().map(Result::unwrap).eq(0..6));
    assert_eq!(map.get(f64::NAN).unwrap(), Some(5));
    assert_eq!(map.range(0.0..).count(), 3);
}

#[test]
fn a_key_that_is_too_long_encoded_is_refused() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.typed::<(Vec<u8>, u8), u8>("m").unwrap();
    let key = (vec![0; 33_000], 1);
    assert!(matches!(
        map.insert(&key, 1),
        Err(Error::TooLong { what: "key", .. })
    ));
    assert_eq!(map.get(&key).unwrap(), None);
    assert!(map.is_empty().unwrap());
}

#[test]
fn types_of_which_no_record_can_be_stored_are_refused_before_there_is_a_map() {
    fn refused<K: OrderedKey, V: StoredValue>(why: &str) {
        let pool = Pool::in_memory().unwrap();
        match pool.typed::<K, V>("m") {
            Err(Error::BadOption(message)) => assert_eq!(message, why),
            other => panic!("{other:?}"),
        }
        assert!(pool.typed_maps().is_empty() && !pool.has_object("m"));
    }
    fn taken<K: OrderedKey, V: StoredValue>(key: K, value: V) {
        let pool = Pool::in_memory().unwrap();
        let map = pool.typed::<K, V>("m").unwrap();
        map.insert(key, value).unwrap();
        assert_eq!(map.len().unwrap(), 1);
    }
    let limit = "bytes, and a key has at most 65536";
    refused::<[u8; 65_537], u8>(&format!(
        "a key of the type [u8; 65537] has at least 65537 {limit}"
    ));
    refused::<([u8; 65_000], u32, String, [u8; 531]), ()>(&format!(
        "a key of the type ([u8; 65000], u32, String, [u8; 531]) has at least 65537 {limit}"
    ));
    refused::<Option<[u8; 65_536]>, ()>(&format!(
        "a key of the type Option<[u8; 65536]> with a Some has at least 65537 {limit}"
    ));
    refused::<(u8, Option<(bool, [u8; 65_534])>), ()>(&format!(
        "a key of the type (u8, Option<(bool, [u8; 65534])>) with a Some has at least 65537 {limit}"
    ));
    refused::<u8, [u8; (1 << 30) + 1]>(
        "a value of the type [u8; 1073741825] has at least 1073741825 bytes, and a value has at most 1073741824",
    );
    // What can be stored is taken, up to the last byte.
    assert_eq!(BytesMap::MOST_KEY_BYTES, 65_536);
    taken([7; BytesMap::MOST_KEY_BYTES], 1_u8);
    taken((1_u8, String::new(), [7; 65_533]), ());
    taken(Some([7; 65_535]), ());
    taken((1_u8, Some((true, [7; 65_533]))), ());
    // Each of these fits with one `Some`, though not with two.
    taken((Some([7; 40_000]), None::<[u8; 40_000]>), ());
    // Of such a type there is no value, but there is a map.
    let pool = Pool::in_memory().unwrap();
    pool.typed::<u8, [u8; BytesMap::MOST_VALUE_BYTES as usize]>("m")
        .unwrap();
    // Tools that have names and no types.
    let named = |key: &str, value: &str| {
        pool.typed_as_bytes_with("named", key, value, BytesOptions::default())
            .unwrap_err()
            .to_string()
    };
    let by_name = named("(u8, Option<[u8; 65535]>)", "u8");
    assert!(
        by_name.contains("with a Some has at least 65537"),
        "{by_name}"
    );
    assert!(named("u8", "[u8; 9223372036854775807]").contains("1073741824"));
    assert!(!pool.has_object("named"));
}

fn wrong_type<T: Debug>(result: Result<T>) -> [String; 2] {
    match result {
        Err(Error::WrongType {
            name,
            found,
            wanted,
        }) => {
            assert_eq!(name, "m");
            [found, wanted]
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_map_is_opened_with_its_own_types_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    for kind in StringKind::all() {
        for options in BytesOptions::extremes(*kind) {
            let pool = Pool::options().open_or_create(&path).unwrap();
            let map = pool.typed_with::<(u32, String), [u8; 20]>("m", &options);
            map.unwrap().insert((7, "key"), [1; 20]).unwrap();
            pool.close().unwrap();
            let pool = Pool::open(&path).unwrap();
            let found = "(u32, String) to [u8; 20] as byte strings";
            let refused = wrong_type(pool.typed::<(i32, String), [u8; 20]>("m"));
            assert_eq!(
                refused,
                [found, "(i32, String) to [u8; 20] as byte strings"]
            );
            let refused = wrong_type(pool.open_typed::<(u32, String), [u8; 21]>("m"));
            assert_eq!(
                refused,
                [found, "(u32, String) to [u8; 21] as byte strings"]
            );
            wrong_type(pool.typed::<(u32, Vec<u8>), [u8; 20]>("m"));
            wrong_type(pool.typed::<(u32, String, u8), [u8; 20]>("m"));
            wrong_type(pool.typed::<u32, [u8; 20]>("m"));
            assert_eq!(wrong_type(pool.bytes("m")), [found, "byte strings"]);
            assert_eq!(wrong_type(pool.map::<u64, u64>("m")), [found, "u64 to u64"]);
            let other = pool.typed_with::<(u32, String), [u8; 20]>("m", &options);
            assert_eq!(other.unwrap().get((7, "key")).unwrap(), Some([1; 20]));
            let (info, bytes) = pool.open_typed_as_bytes("m").unwrap();
            assert_eq!(
                (info.name.as_str(), info.key.as_str()),
                ("m", "(u32, String)")
            );
            assert_eq!((info.value.as_str(), &info.options), ("[u8; 20]", &options));
            assert_eq!(bytes.get(b"\0\0\0\x07key").unwrap(), Some(vec![1; 20]));
            assert_eq!(pool.typed_maps(), [info]);
            assert!(pool.bytes_maps().is_empty() && pool.maps().is_empty());
            drop(bytes);
            pool.shrink().unwrap();
            pool.drop_map("m").unwrap();
        }
    }
    let pool = Pool::open(&path).unwrap();
    drop(pool.bytes("m").unwrap());
    let refused = wrong_type(pool.typed::<Vec<u8>, Vec<u8>>("m"));
    assert_eq!(
        refused,
        ["byte strings", "Vec<u8> to Vec<u8> as byte strings"]
    );
    wrong_type(pool.open_typed_as_bytes("m"));
    pool.drop_map("m").unwrap();
    drop(pool.map::<u64, u64>("m").unwrap());
    let refused = wrong_type(pool.typed::<u64, u64>("m"));
    assert_eq!(refused, ["u64 to u64", "u64 to u64 as byte strings"]);
    wrong_type(pool.open_typed_as_bytes("m"));
    assert!(matches!(
        pool.open_typed::<u8, u8>("n"),
        Err(Error::NoSuchMap(_))
    ));
    type Long = (
        [u8; 300],
        [u8; 300],
        [u8; 300],
        [u8; 300],
        [u8; 300],
        [u8; 300],
    );
    assert!(matches!(
        pool.typed::<(Long, Long), ()>("n"),
        Err(Error::BadOption(_))
    ));
}

#[test]
fn damaged_records_are_reported_and_kept() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.typed::<u32, bool>("m").unwrap();
    map.insert(1, true).unwrap();
    let (_, bytes) = pool.open_typed_as_bytes("m").unwrap();
    bytes.insert([0, 0, 0, 2], [2]).unwrap();
    fn is_damaged<T: Debug>(result: Result<T>) {
        assert!(matches!(result, Err(Error::Damaged(_))), "{result:?}");
    }
    is_damaged(map.get(2));
    is_damaged(map.replace(2, true));
    is_damaged(map.take(2));
    is_damaged(map.update_with(2, |_| None));
    is_damaged(map.get_or_insert_with(2, || true));
    is_damaged(map.compare_exchange(2, None, Some(true)));
    is_damaged(map.pop_last());
    is_damaged(map.get_batch(&[1, 2]));
    is_damaged(map.get_batch_with(&[1, 2], |_, _| ()));
    assert_eq!(map.value_len(2).unwrap(), Some(1));
    let mut backwards = map.iter();
    is_damaged(backwards.next_back_with(|_, _| ()).unwrap());
    assert!(backwards.next_back_with(|_, _| ()).is_none());
    is_damaged(map.retain(|_, _| false));
    assert_eq!(bytes.get([0, 0, 0, 2]).unwrap(), Some(vec![2]));
    assert_eq!(map.len().unwrap(), 1, "the sound one was not retained");
    assert_eq!(map.check().unwrap().len(), 1);
    // A key that is too short. A range ends with the error.
    bytes.insert([0, 0], [1]).unwrap();
    map.insert(3, true).unwrap();
    let mut range = map.iter();
    is_damaged(range.next().unwrap());
    assert!(range.next().is_none() && range.next_back().is_none());
    is_damaged(map.first());
    is_damaged(map.pop_first());
    assert_eq!(map.last().unwrap(), Some((3, true)));
    // Who does not read a value overwrites and removes it.
    assert!(map.insert(2, true).unwrap());
    assert!(bytes.remove([0, 0]).unwrap());
    assert_eq!(map.check().unwrap(), Vec::<String>::new());
}

/// A value of which some cannot be encoded.
#[derive(Debug, PartialEq)]
struct Even(u8);

impl AsValue<Even> for Even {
    fn with_bytes<R>(&self, use_value: impl FnOnce(&[u8]) -> R) -> Result<R> {
        if self.0.is_multiple_of(2) {
            return Ok(use_value(&[self.0]));
        }
        Err(Error::NoEncoding("odd".into()))
    }
}

impl StoredValue for Even {
    type View<'a> = Self;

    fn name(codes: &mut TypeCodes) {
        codes.own("Even");
    }

    fn view(bytes: &[u8]) -> Option<Self> {
        let [byte] = *bytes else { return None };
        byte.is_multiple_of(2).then_some(Self(byte))
    }

    fn from_view(view: Self) -> Self {
        view
    }
}

#[test]
fn a_value_without_an_encoding_changes_nothing() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.typed::<String, Even>("m").unwrap();
    fn is_refused<T: Debug>(result: Result<T>) {
        assert!(matches!(result, Err(Error::NoEncoding(_))), "{result:?}");
    }
    let records = [("a", Even(2)), ("b", Even(3)), ("c", Even(4))];
    is_refused(map.bulk_load(records.iter().map(|(key, value)| (key, value)), 0.7));
    is_refused(map.insert_batch(&records));
    assert!(map.is_empty().unwrap());
    map.insert("a", Even(2)).unwrap();
    is_refused(map.insert("a", Even(1)));
    is_refused(map.insert_new("b", Even(1)));
    is_refused(map.replace("a", Even(1)));
    is_refused(map.update_with("a", |_| Some(Even(1))));
    is_refused(map.compare_exchange("a", Some(Even(2)), Some(Even(1))));
    is_refused(map.get_or_insert_with("b", || Even(1)));
    assert_eq!(map.len().unwrap(), 1);
    assert_eq!(map.get("a").unwrap(), Some(Even(2)));
    assert_eq!(pool.typed_maps()[0].value, "Even");
}

#[cfg(feature = "zerocopy")]
#[test]
fn plain_structs_are_values() {
    use indelible::{Named, Plain};
    use zerocopy::{FromBytes, Immutable, IntoBytes};

    #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct Account {
        cents: i64,
        limit: u64,
    }
    impl Named for Account {
        const NAME: &'static str = "Account";
    }
    #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct Narrow(u64);
    impl Named for Narrow {
        const NAME: &'static str = "Account";
    }
    contract::<(u8, String), Plain<Account>>(
        |random| (random.random_range(0..9), string(random)),
        |random| {
            Plain(Account {
                cents: random.random(),
                limit: random.random(),
            })
        },
    );
    let pool = Pool::in_memory().unwrap();
    pool.typed::<u8, Plain<Account>>("m").unwrap();
    let refused = wrong_type(pool.typed::<u8, Plain<Narrow>>("m"));
    assert_eq!(
        refused[0],
        "u8 to Plain<Account> of 16 bytes as byte strings"
    );
    assert_eq!(
        refused[1],
        "u8 to Plain<Account> of 8 bytes as byte strings"
    );
}

#[cfg(feature = "serde")]
#[test]
fn what_serde_serializes_is_a_value() {
    use indelible::{Named, Postcard};
    use serde::{Deserialize, Serialize};

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Order {
        item: String,
        pieces: Vec<Option<u32>>,
    }
    impl Named for Order {
        const NAME: &'static str = "Order";
    }
    contract::<(u8, u128), Postcard<Order>>(
        |random| (random.random_range(0..9), random.random_range(0..30)),
        |random| {
            Postcard(Order {
                item: string(random),
                pieces: (0..random.random_range(0..200)).map(Some).collect(),
            })
        },
    );
    let pool = Pool::in_memory().unwrap();
    let map = pool.typed::<u8, Postcard<Order>>("m").unwrap();
    assert_eq!(pool.typed_maps()[0].value, "Postcard<Order>");
    let order = Order {
        item: "lamp".into(),
        pieces: vec![],
    };
    map.insert(1, Postcard(&order)).unwrap();
    let length = map.get_with(1, |order| order.item.len()).unwrap();
    assert_eq!(length, Some(4));
    wrong_type(pool.typed::<u8, Vec<u8>>("m"));
    let (_, bytes) = pool.open_typed_as_bytes("m").unwrap();
    for damaged in [&[9, 9][..], &[], &[1, b'a', 0, 0]] {
        bytes.insert([1], damaged).unwrap();
        assert!(matches!(map.get(1), Err(Error::Damaged(_))));
    }
}

#[test]
fn ranges_of_records_are_removed_in_the_order_of_the_keys() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.typed::<(i64, String), u32>("m").unwrap();
    map.extend((-50..50).map(|i| ((i, "a"), i as u32 % 5)))
        .unwrap();
    assert_eq!(map.range_keys((-10, "")..(10, "")).count(), 20);
    assert_eq!(map.remove_range((-10, "")..(10, "")).unwrap(), 20);
    assert_eq!(map.remove_range((-10, "")..(10, "")).unwrap(), 0);
    assert_eq!(map.remove_prefix((20,)).unwrap(), 1);
    let removed = map
        .retain_range((30, "").., |(i, _), _| i % 2 == 0)
        .unwrap();
    assert_eq!((removed, map.len().unwrap()), (10, 69));
    assert_eq!(map.clear().unwrap(), 69);
}

#[test]
fn strings_are_given_by_whatever_owns_them() {
    use std::borrow::Cow;
    use std::sync::Arc;
    let pool = Pool::in_memory().unwrap();
    let map = pool.typed::<String, String>("m").unwrap();
    let boxed: Box<str> = "boxed".into();
    let shared: Arc<str> = "shared".into();
    let lent = Cow::Borrowed("lent");
    map.insert(&boxed, shared.clone()).unwrap();
    map.insert(shared, lent.clone()).unwrap();
    map.insert(lent, boxed.clone()).unwrap();
    let records = map.iter().map(Result::unwrap);
    let expected = [("boxed", "shared"), ("lent", "boxed"), ("shared", "lent")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert!(records.eq(expected));
    assert_eq!(map.prefix(boxed).count(), 1);
    let pairs = pool.typed::<(u8, Vec<u8>), ()>("pairs").unwrap();
    pairs.insert((1, Cow::Borrowed(&b"ab"[..])), ()).unwrap();
    assert!(
        pairs
            .contains_key((1, Box::<[u8]>::from(&b"ab"[..])))
            .unwrap()
    );
}
