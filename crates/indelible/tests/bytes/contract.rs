//! The contract of maps of byte strings: every operation against `BTreeMap`, with keys that are hard, for every kind and its extreme options.

use indelible::{BytesMap, BytesOptions, CompareExchange, Error, Pool, StringKind};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Bound;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn all_options() -> Vec<BytesOptions> {
    let kinds = StringKind::all().iter();
    kinds
        .flat_map(|&kind| BytesOptions::extremes(kind))
        .collect()
}

/// Ways to make keys.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// A few bytes of a small alphabet, the empty key among them: many keys are beginnings of others.
    Short,
    /// Zeros and 255s.
    Edges,
    /// What follows a long common prefix.
    Prefixed,
    /// Numbers, ascending mostly.
    Numbers,
    /// Up to 64 KiB.
    Long,
    /// Random bytes of one length.
    Uuids,
}

const KEYS: [Keys; 6] = [
    Keys::Short,
    Keys::Edges,
    Keys::Prefixed,
    Keys::Numbers,
    Keys::Long,
    Keys::Uuids,
];

impl Keys {
    fn make(self, random: &mut SmallRng) -> Vec<u8> {
        match self {
            Self::Short => {
                let length = random.random_range(0..6);
                (0..length)
                    .map(|_| b"ab\0"[random.random_range(0..3)])
                    .collect()
            }
            Self::Edges => {
                let length = random.random_range(0..12);
                (0..length)
                    .map(|_| [0, 255][random.random_range(0..2)])
                    .collect()
            }
            Self::Prefixed => {
                let length = [0, 7, 64, 300, 1024][random.random_range(0..5)];
                let mut key = vec![b'p'; length];
                key.extend_from_slice(&random.random_range(0..300_u32).to_be_bytes()[2..]);
                key
            }
            Self::Numbers => format!("{:08}", random.random_range(0..2000_u32)).into_bytes(),
            Self::Long => {
                let length = [200, 256, 257, 600, 3000, 65_535, 65_536][random.random_range(0..7)];
                let mut key = vec![7; length];
                let at = [0, length / 2, length - 1][random.random_range(0..3)];
                key[at] = random.random_range(0..40);
                key
            }
            Self::Uuids => (0..16)
                .map(|_| random.random_range(0..=255_u8) & 0x8f)
                .collect(),
        }
    }
}

fn value(random: &mut SmallRng) -> Vec<u8> {
    let length = match random.random_range(0..20) {
        0 => 0,
        1..8 => 8,
        8..12 => random.random_range(1..20),
        12..15 => random.random_range(100..260),
        15..18 => random.random_range(256..1200),
        _ => random.random_range(1000..20_000),
    };
    vec![random.random_range(0..=255); length]
}

fn records(map: &BytesMap) -> Vec<(Vec<u8>, Vec<u8>)> {
    map.iter().map(Result::unwrap).collect()
}

fn expect_same(map: &BytesMap, model: &Model) {
    assert_eq!(map.len().unwrap(), model.len() as u64);
    assert!(records(map).iter().map(|(k, v)| (k, v)).eq(model.iter()));
    let problems = map.check().unwrap();
    assert!(problems.is_empty(), "{problems:?}");
}

fn step(map: &BytesMap, model: &mut Model, keys: Keys, random: &mut SmallRng) {
    let key = keys.make(random);
    match random.random_range(0..15) {
        0..4 => {
            let value = value(random);
            let was_there = map.insert(&key, &value).unwrap();
            assert_eq!(was_there, model.insert(key, value).is_some());
        }
        4 => {
            let value = value(random);
            assert_eq!(map.replace(&key, &value).unwrap(), model.insert(key, value));
        }
        5 => assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some()),
        6 => assert_eq!(map.take(&key).unwrap(), model.remove(&key)),
        7 => {
            let before = map.update_with(&key, |now| {
                let mut value = now?.to_vec();
                value.push(1);
                (value.len() % 3 > 0).then_some(value)
            });
            assert_eq!(before.unwrap(), model.get(&key).cloned());
            if let Some(mut value) = model.remove(&key) {
                value.push(1);
                if value.len() % 3 > 0 {
                    model.insert(key, value);
                }
            }
        }
        8 => {
            let new = value(random);
            let now = model.get(&key).cloned();
            let other = Some(&b"another value"[..]);
            let kept = map.compare_exchange(&key, other, Some(&new)).unwrap();
            assert_eq!(kept, CompareExchange::Unchanged(now.clone()));
            let done = map.compare_exchange(&key, now.as_deref(), Some(&new));
            assert!(done.unwrap().is_exchanged());
            model.insert(key, new);
        }
        9 => {
            let new = value(random);
            assert_eq!(
                map.insert_new(&key, &new).unwrap(),
                !model.contains_key(&key)
            );
            model.entry(key).or_insert(new);
        }
        10 => {
            let new = value(random);
            let got = if random.random_bool(0.5) {
                map.get_or_insert(&key, &new)
            } else {
                map.get_or_insert_with(&key, || new.clone())
            };
            assert_eq!(&got.unwrap(), model.entry(key).or_insert(new));
        }
        11 => {
            assert_eq!(map.get(&key).unwrap().as_ref(), model.get(&key));
            let length = map.value_len(&key).unwrap();
            assert_eq!(length, model.get(&key).map(|value| value.len() as u64));
        }
        12 => {
            let (a, b) = (keys.make(random), keys.make(random));
            let (low, high) = if a <= b { (a, b) } else { (b, a) };
            let bound = |key: Vec<u8>, random: &mut SmallRng| match random.random_range(0..3) {
                0 => Bound::Included(key),
                1 => Bound::Excluded(key),
                _ => Bound::Unbounded,
            };
            let bounds = (bound(low, random), bound(high, random));
            let is_bad = matches!(&bounds, (Bound::Excluded(a), Bound::Excluded(b)) if a == b);
            let range = map.range(bounds.clone()).map(Result::unwrap);
            if is_bad {
                assert_eq!(range.count(), 0);
                return;
            }
            let expected = model
                .range(bounds.clone())
                .map(|(k, v)| (k.clone(), v.clone()));
            assert!(range.eq(expected.clone()));
            let backwards = map.range(bounds.clone()).rev().map(Result::unwrap);
            assert!(backwards.eq(expected.clone().rev()));
            // From both ends by turns.
            let (mut ours, mut theirs) = (map.range(bounds), expected);
            loop {
                let front = random.random_bool(0.5);
                let pair = if front {
                    (ours.next(), theirs.next())
                } else {
                    (ours.next_back(), theirs.next_back())
                };
                assert_eq!(pair.0.map(Result::unwrap), pair.1);
                if pair.1.is_none() {
                    break;
                }
            }
        }
        13 => {
            let mut prefix = keys.make(random);
            prefix.truncate(random.random_range(0..=prefix.len()));
            let ours = map.prefix(&prefix).map(Result::unwrap);
            let theirs = model.iter().filter(|(key, _)| key.starts_with(&prefix));
            assert!(ours.eq(theirs.map(|(k, v)| (k.clone(), v.clone()))));
        }
        _ => {
            let first = model.first_key_value().map(|(k, v)| (k.clone(), v.clone()));
            assert_eq!(map.first().unwrap(), first);
            let last = model.last_key_value().map(|(k, v)| (k.clone(), v.clone()));
            assert_eq!(map.last().unwrap(), last);
        }
    }
}

#[test]
fn every_operation_does_what_a_btreemap_does() {
    for (seed, keys) in (0..).zip(KEYS) {
        for options in all_options() {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a.pool");
            let mut pool = Pool::create(&path).unwrap();
            let mut map = pool.bytes_with("m", &options).unwrap();
            let mut model = Model::new();
            let mut random = SmallRng::seed_from_u64(seed);
            for round in 0..6 {
                let steps = if matches!(keys, Keys::Long) { 150 } else { 500 };
                for _ in 0..steps {
                    step(&map, &mut model, keys, &mut random);
                }
                expect_same(&map, &model);
                if round % 2 == 0 {
                    drop(map);
                    pool.close().unwrap();
                    pool = Pool::open(&path).unwrap();
                    map = pool.open_bytes("m").unwrap();
                    // Soon after the open, while the sweep may still be at work.
                    for _ in 0..50 {
                        step(&map, &mut model, keys, &mut random);
                    }
                    expect_same(&map, &model);
                } else {
                    pool.shrink().unwrap();
                    expect_same(&map, &model);
                    assert!(pool.check().is_empty());
                }
            }
            // Down to nothing, and up again.
            for key in model.keys() {
                assert!(map.remove(key).unwrap());
            }
            model.clear();
            expect_same(&map, &model);
            for _ in 0..200 {
                step(&map, &mut model, keys, &mut random);
            }
            expect_same(&map, &model);
        }
    }
}

#[test]
fn a_bulk_load_is_what_was_loaded() {
    for options in all_options() {
        for (seed, keys) in (0..).zip(KEYS) {
            let mut random = SmallRng::seed_from_u64(seed);
            let count = if matches!(keys, Keys::Long) { 60 } else { 1500 };
            let model: Model = (0..count)
                .map(|_| (keys.make(&mut random), value(&mut random)))
                .collect();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("a.pool");
            let pool = Pool::create(&path).unwrap();
            let map = pool.bytes_with("m", &options).unwrap();
            map.bulk_load(&model, [0.1, 0.7, 1.0][seed as usize % 3])
                .unwrap();
            expect_same(&map, &model);
            assert!(matches!(map.bulk_load(&model, 0.7), Err(Error::NotEmpty)));
            let mut grown = model.clone();
            for _ in 0..300 {
                step(&map, &mut grown, keys, &mut random);
            }
            expect_same(&map, &grown);
            drop(map);
            pool.close().unwrap();
            let pool = Pool::open(&path).unwrap();
            let map = pool.open_bytes("m").unwrap();
            expect_same(&map, &grown);
            map.clear().unwrap();
            expect_same(&map, &Model::new());
            map.bulk_load(&model, 0.7).unwrap();
            expect_same(&map, &model);
        }
    }
}

#[test]
fn a_bulk_load_ends_where_the_iterator_ends_first() {
    // As `Receiver::try_iter`: after the end more may come. That the records do not all fit into one leaf is noticed behind the end.
    let records = || {
        let mut comes = 0_u16;
        std::iter::from_fn(move || {
            comes += 1;
            (!comes.is_multiple_of(21) && comes < 100).then_some(comes)
        })
    };
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    map.bulk_load(records().map(|i| (i.to_be_bytes(), "")), 0.7)
        .unwrap();
    assert_eq!(map.len().unwrap(), 20);
    let typed = pool.typed::<u16, ()>("typed").unwrap();
    typed.bulk_load(records().map(|i| (i, ())), 0.7).unwrap();
    assert!(typed.keys().map(Result::unwrap).eq(1..=20));
}

#[test]
fn a_bad_bulk_load_changes_nothing() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let long = vec![1; 10_000];
    let refused = map.bulk_load([(&b"a"[..], &long[..]), (b"b", b""), (b"b", b"")], 0.7);
    assert!(matches!(refused, Err(Error::NotAscending(2))));
    expect_same(&map, &Model::new());
    assert!(map.bulk_load([("a", "")], 2.0).is_err());
    map.bulk_load::<&str, &str>([], 0.7).unwrap();
    map.bulk_load([("", "")], 0.7).unwrap();
    assert_eq!(map.get("").unwrap(), Some(vec![]));
}

#[test]
fn what_is_too_long_is_refused() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let longest = vec![1; 64 << 10];
    map.insert(&longest, "value").unwrap();
    assert_eq!(map.get(&longest).unwrap(), Some(b"value".to_vec()));
    let longer = vec![1; (64 << 10) + 1];
    assert!(matches!(
        map.insert(&longer, ""),
        Err(Error::TooLong { what: "key", .. })
    ));
    assert_eq!(map.get(&longer).unwrap(), None);
    assert!(!map.contains_key(&longer).unwrap());
    assert_eq!(map.len().unwrap(), 1);
    assert!(map.check().unwrap().is_empty());
}

#[test]
fn records_that_are_hard_to_tell_apart() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let keys: [&[u8]; 9] = [
        b"",
        b"\0",
        b"\0\0\0\0\0\0\0\0\0",
        b"a",
        b"a\0",
        b"a\0\0\0\0\0\0\0",
        b"a\0\0\0\0\0\0\0\0",
        b"\xff\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ];
    for (i, key) in keys.iter().enumerate() {
        map.insert(key, [i as u8]).unwrap();
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(map.get(key).unwrap(), Some(vec![i as u8]));
    }
    assert_eq!(map.prefix(b"\xff\xff").count(), 2);
    assert_eq!(map.prefix(b"a").count(), 4);
    let mut sorted = keys.map(<[u8]>::to_vec).to_vec();
    sorted.sort();
    let found: Vec<_> = map.keys().map(Result::unwrap).collect();
    assert_eq!(found, sorted);
}

#[test]
fn the_types_of_objects_are_not_confused() {
    let pool = Pool::in_memory().unwrap();
    pool.bytes("strings").unwrap();
    pool.map::<u64, u64>("words").unwrap();
    assert!(matches!(pool.bytes("words"), Err(Error::WrongType { .. })));
    let refused = pool.map::<u64, u64>("strings");
    assert!(matches!(refused, Err(Error::WrongType { .. })));
    assert_eq!(pool.bytes_maps().len(), 1);
    assert_eq!(pool.maps().len(), 1);
    pool.rename_map("strings", "names").unwrap();
    pool.drop_map("names").unwrap();
    assert!(pool.bytes_maps().is_empty());
}

#[test]
fn threads_do_not_disturb_each_other() {
    for options in all_options() {
        let pool = Pool::in_memory().unwrap();
        let map = pool.bytes_with("m", &options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let map = map.clone();
                scope.spawn(move || {
                    let mut random = SmallRng::seed_from_u64(thread);
                    let mut model = Model::new();
                    for i in 0..4000 {
                        let number = random.random_range(0..400_u64);
                        // Neighbouring keys belong to different threads.
                        let key = format!("key {:05}", number * 4 + thread);
                        if i % 5 == 4 || i > 3000 {
                            assert_eq!(map.take(&key).unwrap(), model.remove(key.as_bytes()));
                        } else if i % 7 == 0 {
                            let length = random.random_range(0..1000);
                            let value = vec![i as u8; length];
                            assert_eq!(
                                map.replace(&key, &value).unwrap(),
                                model.insert(key.into_bytes(), value)
                            );
                        } else if i % 11 == 0 {
                            let mut last = Vec::new();
                            for record in map.range(key.as_bytes()..).take(30) {
                                let (key, value) = record.unwrap();
                                assert!(last < key && value.iter().all(|&byte| byte == value[0]));
                                last = key;
                            }
                        } else {
                            let expected = model.get(key.as_bytes());
                            assert_eq!(map.get(&key).unwrap().as_ref(), expected);
                        }
                    }
                });
            }
        });
        let problems = map.check().unwrap();
        assert!(problems.is_empty(), "{problems:?}");
    }
}

#[test]
fn removals_of_many_records_do_what_a_btreemap_does() {
    let pool = Pool::in_memory().unwrap();
    for (i, options) in all_options().into_iter().enumerate() {
        let map = pool.bytes_with(&i.to_string(), options).unwrap();
        let all = (0..2000).map(|i| (format!("{i:05}"), format!("{}", i % 7)));
        let all: Vec<(String, String)> = all.collect();
        map.extend(all.iter().map(|(k, v)| (k, v))).unwrap();
        let mut model: Model = (all.into_iter())
            .map(|(k, v)| (k.into_bytes(), v.into_bytes()))
            .collect();
        let mut expect_removed =
            |removed: indelible::Result<u64>, goes: &dyn Fn(&[u8], &[u8]) -> bool| {
                let before = model.len();
                model.retain(|key, value| !goes(key, value));
                assert_eq!(removed.unwrap(), (before - model.len()) as u64);
                expect_same(&map, &model);
            };
        let between = |key: &[u8]| (&b"00100"[..]..&b"00200"[..]).contains(&key);
        expect_removed(map.remove_range("00100".."00200"), &|key, _| between(key));
        expect_removed(map.remove_range("00100".."00200"), &|_, _| false);
        expect_removed(map.remove_range("00300"..="00300"), &|key, _| {
            key == b"00300"
        });
        expect_removed(map.remove_prefix("0050"), &|key, _| {
            key.starts_with(b"0050")
        });
        expect_removed(
            map.retain_range(.."01000", |_, value| value != b"3"),
            &|key, value| key < &b"01000"[..] && value == b"3",
        );
        expect_removed(map.retain(|_, value| value != b"5"), &|_, value| {
            value == b"5"
        });
        expect_removed(map.clear(), &|_, _| true);
        expect_removed(map.clear(), &|_, _| true);
    }
}

#[test]
fn a_pool_that_is_read_only_refuses_every_change_also_one_of_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    pool.bytes("bytes").unwrap();
    pool.typed::<u128, String>("typed").unwrap();
    pool.close().unwrap();
    let pool = Pool::options().open_read_only(&path).unwrap();
    let (bytes, typed) = (
        pool.bytes("bytes").unwrap(),
        pool.typed::<u128, String>("typed").unwrap(),
    );
    let refused = [
        bytes.pop_first().map(drop),
        bytes.pop_last().map(drop),
        bytes.extend([("", ""); 0]),
        bytes.insert_batch(&[("", ""); 0]),
        bytes.remove_batch(&[""; 0]).map(drop),
        bytes.remove_range("a"..).map(drop),
        bytes.remove_prefix("").map(drop),
        bytes.retain(|_, _| true).map(drop),
        bytes.clear().map(drop),
        typed.pop_first().map(drop),
        typed.pop_last().map(drop),
        typed.extend([(1, ""); 0]),
        typed.insert_batch(&[(1, ""); 0]),
        typed.remove_batch(&[1; 0]).map(drop),
        typed.remove_range(1..).map(drop),
        typed.retain(|_, _| true).map(drop),
        typed.clear().map(drop),
    ];
    for (i, result) in refused.into_iter().enumerate() {
        assert!(matches!(result, Err(Error::ReadOnly)), "{i}: {result:?}");
    }
}
