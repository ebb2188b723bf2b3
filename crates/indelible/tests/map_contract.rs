//! The whole contract of a map against `BTreeMap`, with hostile keys, every kind of index, every leaf size, and crashes in
//! between.

#[path = "shared/cases.rs"]
mod cases;
#[path = "shared/image.rs"]
mod image;
#[path = "shared/kinds.rs"]
mod kinds;

use image::crash;
use indelible::{CompareExchange, Error, Key, Kind, Map, MapOptions, Pool, Range};
use kinds::{KINDS, map_of};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, u64),
    InsertNew(u64, u64),
    Update(u64, u64),
    Remove(u64),
    GetOrInsert(u64, u64),
    CompareExchange(u64, Option<u64>, Option<u64>),
    Get(u64),
    Range(u64, u64),
    RemoveRange(u64, u64),
    InsertBatch(Vec<(u64, u64)>),
    GetBatch(Vec<u64>),
    Ends,
    Crash,
    Close,
    Check,
}

/// Keys that meet each other: the ends of the domain, dense ones, clusters, and a few far apart.
fn key() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..200_u64,
        2 => (0..200_u64).prop_map(|k| u64::MAX - k),
        2 => (0..8_u64, 0..20_u64).prop_map(|(cluster, k)| (cluster << 56) + k),
        1 => any::<u64>(),
    ]
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![0..4_u64, Just(u64::MAX), any::<u64>()]
}

fn operation() -> impl Strategy<Value = Operation> {
    let record = || (key(), value());
    prop_oneof![
        20 => record().prop_map(|(k, v)| Operation::Insert(k, v)),
        4 => record().prop_map(|(k, v)| Operation::InsertNew(k, v)),
        4 => record().prop_map(|(k, v)| Operation::Update(k, v)),
        8 => key().prop_map(Operation::Remove),
        2 => record().prop_map(|(k, v)| Operation::GetOrInsert(k, v)),
        4 => (key(), proptest::option::of(value()), proptest::option::of(value()))
            .prop_map(|(k, a, b)| Operation::CompareExchange(k, a, b)),
        4 => key().prop_map(Operation::Get),
        3 => (key(), key()).prop_map(|(a, b)| Operation::Range(a, b)),
        1 => (key(), 0..120_u64).prop_map(|(a, n)| Operation::RemoveRange(a, n)),
        2 => proptest::collection::vec(record(), 0..80).prop_map(Operation::InsertBatch),
        1 => proptest::collection::vec(key(), 0..80).prop_map(Operation::GetBatch),
        1 => Just(Operation::Ends),
        1 => Just(Operation::Crash),
        1 => Just(Operation::Close),
        1 => Just(Operation::Check),
    ]
}

type Model = BTreeMap<u64, u64>;

fn apply(map: &Map<u64, u64>, model: &mut Model, operation: Operation) {
    match operation {
        Operation::Insert(k, v) => assert_eq!(map.insert(k, v).unwrap(), model.insert(k, v)),
        Operation::InsertNew(k, v) => {
            assert_eq!(map.insert_new(k, v).unwrap(), !model.contains_key(&k));
            model.entry(k).or_insert(v);
        }
        Operation::Update(k, v) => {
            assert_eq!(map.update(k, v).unwrap(), model.get(&k).copied());
            model.entry(k).and_modify(|old| *old = v);
        }
        Operation::Remove(k) => assert_eq!(map.remove(k).unwrap(), model.remove(&k)),
        Operation::GetOrInsert(k, v) => assert_eq!(
            map.get_or_insert(k, v).unwrap(),
            *model.entry(k).or_insert(v)
        ),
        Operation::CompareExchange(k, current, new) => {
            let actual = model.get(&k).copied();
            let expected = if actual == current {
                CompareExchange::Exchanged
            } else {
                CompareExchange::Unchanged(actual)
            };
            assert_eq!(map.compare_exchange(k, current, new).unwrap(), expected);
            match new {
                _ if !expected.is_exchanged() => {}
                Some(v) => drop(model.insert(k, v)),
                None => drop(model.remove(&k)),
            }
        }
        Operation::Get(k) => {
            assert_eq!(map.get(k).unwrap(), model.get(&k).copied());
            assert_eq!(map.contains(k).unwrap(), model.contains_key(&k));
        }
        Operation::Range(a, b) => assert_ranges(map, model, a, b),
        Operation::RemoveRange(a, n) => {
            for k in a..a.saturating_add(n) {
                assert_eq!(map.remove(k).unwrap(), model.remove(&k));
            }
        }
        Operation::InsertBatch(records) => {
            map.insert_batch(&records).unwrap();
            model.extend(records);
        }
        Operation::GetBatch(keys) => {
            let expected: Vec<_> = keys.iter().map(|k| model.get(k).copied()).collect();
            assert_eq!(map.get_batch(&keys).unwrap(), expected);
        }
        Operation::Ends => {
            let pair = |record: Option<(&u64, &u64)>| record.map(|(k, v)| (*k, *v));
            assert_eq!(map.first().unwrap(), pair(model.first_key_value()));
            assert_eq!(map.last().unwrap(), pair(model.last_key_value()));
            assert_eq!(map.len().unwrap(), model.len() as u64);
            assert_eq!(map.is_empty().unwrap(), model.is_empty());
        }
        Operation::Check => assert_eq!(map.check().unwrap(), [""; 0]),
        Operation::Crash | Operation::Close => unreachable!("the caller does that"),
    }
}

/// A range read in pages gives the same, also if it is read from the other end in between, and so does what is left then.
fn assert_pages(range: impl Fn() -> Range<u64, u64>, wanted: &[(u64, u64)]) {
    for most in [1, 7, 40, usize::MAX] {
        let (mut range, mut page) = (range(), Vec::new());
        while range.read(most, &mut page).unwrap() == most {}
        assert_eq!(page, wanted);
    }
    let (mut range, mut front) = (range(), Vec::new());
    range.read(3, &mut front).unwrap();
    front.extend(range.next().map(Result::unwrap));
    let back = range.next_back().map(Result::unwrap);
    range.read(2, &mut front).unwrap();
    let front = range.fold(front, |mut front, record| {
        front.push(record.unwrap());
        front
    });
    assert_eq!([front, Vec::from_iter(back)].concat(), wanted);
}

fn assert_ranges(map: &Map<u64, u64>, model: &Model, a: u64, b: u64) {
    use Bound::{Excluded, Included, Unbounded};
    let expected = |low: Bound<u64>, high: Bound<u64>| -> Vec<(u64, u64)> {
        let in_range = |k: u64| {
            (match low {
                Included(low) => k >= low,
                Excluded(low) => k > low,
                Unbounded => true,
            }) && (match high {
                Included(high) => k <= high,
                Excluded(high) => k < high,
                Unbounded => true,
            })
        };
        model
            .iter()
            .map(|(k, v)| (*k, *v))
            .filter(|record| in_range(record.0))
            .collect()
    };
    for low in [Included(a), Excluded(a), Unbounded] {
        for high in [Included(b), Excluded(b), Unbounded] {
            let mut wanted = expected(low, high);
            let all = || map.range((low, high)).unwrap().map(Result::unwrap);
            assert_eq!(all().collect::<Vec<_>>(), wanted);
            // From both ends in turn.
            let mut range = all();
            let (mut front, mut back) = (Vec::new(), Vec::new());
            while let Some(record) = range.next() {
                front.push(record);
                back.extend(range.next_back());
            }
            back.reverse();
            front.extend(back);
            assert_eq!(front, wanted);
            assert_pages(|| map.range((low, high)).unwrap(), &wanted);
            wanted.reverse();
            assert_eq!(all().rev().collect::<Vec<_>>(), wanted);
        }
    }
}

fn run(options: MapOptions, operations: Vec<Operation>) {
    let directory = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let path = directory.path().join("contract.pool");
    let mut pool = Pool::create(&path).unwrap();
    let mut map = pool.map_with::<u64, u64>("m", options.clone()).unwrap();
    let mut model = Model::new();
    for operation in operations {
        match operation {
            Operation::Crash => {
                crash(&path, || drop((pool, map)));
                pool = Pool::open(&path).unwrap();
                map = pool.open_map("m").unwrap();
            }
            Operation::Close => {
                drop(map);
                pool.close().unwrap();
                pool = Pool::open(&path).unwrap();
                map = pool.open_map("m").unwrap();
            }
            operation => apply(&map, &mut model, operation),
        }
    }
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert!(map.iter().map(Result::unwrap).eq(model.into_iter()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases::cases(24) * KINDS.len() as u32, ..ProptestConfig::default() })]

    #[test]
    fn a_map_does_what_btreemap_does(
        layout in proptest::sample::select(layouts()),
        operations in proptest::collection::vec(operation(), 0..600),
    ) {
        run(layout, operations);
    }
}

#[test]
fn ascending_and_descending_keys_fill_leaves_and_come_back() {
    for &kind in KINDS {
        come_and_go(kind, (0..50_000).collect(), true);
        come_and_go(kind, (0..50_000).rev().collect(), false);
    }
}

fn come_and_go(kind: Kind, keys: Vec<u64>, ascending: bool) {
    let pool = Pool::in_memory().unwrap();
    let map = map_of(&pool, kind);
    for &key in &keys {
        map.insert(key, !key).unwrap();
    }
    assert!(
        map.iter()
            .map(Result::unwrap)
            .eq((0..50_000).map(|key| (key, !key)))
    );
    assert_eq!(map.check().unwrap(), [""; 0]);
    let stat = map.stat().unwrap();
    assert_eq!((stat.kind, stat.records), (kind, 50_000));
    if kind == Kind::LbTree && ascending {
        let fill = stat.fact("fill").unwrap().value.as_f64();
        assert!(fill > 0.98, "ascending keys should fill leaves, not {fill}");
    }
    for &key in &keys {
        assert_eq!(map.remove(key).unwrap(), Some(!key));
    }
    assert!(map.is_empty().unwrap());
    assert_eq!(map.check().unwrap(), [""; 0]);
    let stat = map.stat().unwrap();
    if let Some(leaves) = stat.fact("leaves") {
        assert!(leaves.value.as_u64() <= 2, "emptied leaves are given back");
    }
}

/// Every kind of index, as it is and with all that can be chosen at its ends.
fn layouts() -> Vec<MapOptions> {
    let all = KINDS.iter().copied();
    all.flat_map(|kind| MapOptions::extremes(kind).into_iter().chain([kind.into()]))
        .collect()
}

#[test]
fn bulk_load_gives_the_map_that_inserts_would() {
    for options in layouts() {
        for (count, fill) in [(0, 0.7), (1, 0.7), (13, 0.1), (5000, 1.0), (100_000, 0.7)] {
            let pool = Pool::in_memory().unwrap();
            let map = pool.map_with::<u64, u64>("m", options.clone()).unwrap();
            let records: Vec<(u64, u64)> = (0..count).map(|i| (i * 3, i)).collect();
            map.bulk_load(&records, fill).unwrap();
            assert!(map.iter().map(Result::unwrap).eq(records.iter().copied()));
            assert_eq!(map.len().unwrap(), count);
            assert_eq!(map.check().unwrap(), [""; 0]);
            if count < 100_000 {
                continue;
            }
            if options.kind() == Kind::LbTree {
                let stat = map.stat().unwrap();
                let found = stat.fact("fill").unwrap().value.as_f64();
                assert!((found - fill).abs() < 0.01);
            }
            assert!(matches!(
                map.bulk_load(&records, fill),
                Err(Error::NotEmpty)
            ));
            for i in 0..count {
                map.insert(i * 3 + 1, i).unwrap();
                map.remove(i * 3).unwrap();
            }
            assert_eq!(map.check().unwrap(), [""; 0]);
            for i in 0..count {
                map.remove(i * 3 + 1).unwrap();
            }
            map.bulk_load(&records, fill).unwrap();
            assert!(
                map.iter().map(Result::unwrap).eq(records.iter().copied()),
                "a map that was emptied can be loaded again"
            );
            assert_eq!(map.check().unwrap(), [""; 0]);
        }
    }
}

#[test]
fn bulk_load_refuses_what_is_not_ascending_and_leaves_the_map_empty() {
    for &kind in KINDS {
        let pool = Pool::in_memory().unwrap();
        let map = map_of(&pool, kind);
        assert!(matches!(
            map.bulk_load([(1, 0), (1, 0)], 0.7),
            Err(Error::NotAscending(1))
        ));
        assert!(matches!(
            map.bulk_load([(1, 0), (2, 0), (0, 0)], 0.7),
            Err(Error::NotAscending(2))
        ));
        for fill in [0.0, 1.5, f64::NAN, -1.0] {
            assert!(matches!(
                map.bulk_load([(1, 0)], fill),
                Err(Error::BadOption(_))
            ));
        }
        assert!(map.is_empty().unwrap());
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}

#[test]
fn nan_is_refused_by_every_operation_and_changes_nothing() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.map::<f64, f64>("m").unwrap();
    let nan = f64::NAN;
    assert!(matches!(map.get(nan), Err(Error::NanKey)));
    assert!(matches!(map.insert(nan, 1.0), Err(Error::NanKey)));
    assert!(matches!(map.remove(nan), Err(Error::NanKey)));
    assert!(matches!(map.range(nan..), Err(Error::NanKey)));
    assert!(matches!(
        map.insert_batch(&[(1.0, 1.0), (nan, 1.0)]),
        Err(Error::NanKey)
    ));
    assert!(matches!(map.get_batch(&[nan]), Err(Error::NanKey)));
    assert!(matches!(
        map.bulk_load([(nan, 1.0)], 0.7),
        Err(Error::NanKey)
    ));
    assert!(map.is_empty().unwrap());
    map.insert(f64::NEG_INFINITY, nan).unwrap();
    map.insert(-0.0, 2.0).unwrap();
    assert_eq!(map.get(0.0).unwrap(), Some(2.0));
    assert!(
        map.get(f64::NEG_INFINITY).unwrap().unwrap().is_nan(),
        "a NaN value is a value like any other"
    );
}

fn round_trip<K: Key + PartialOrd + std::fmt::Debug>(keys: &[K]) {
    for &kind in KINDS {
        round_trip_in(kind, keys);
    }
}

fn round_trip_in<K: Key + PartialOrd + std::fmt::Debug>(kind: Kind, keys: &[K]) {
    let pool = Pool::in_memory().unwrap();
    let map = pool.map_with::<K, u64>("m", kind).unwrap();
    for (i, &key) in keys.iter().enumerate().rev() {
        map.insert(key, i as u64).unwrap();
    }
    let found: Vec<(K, u64)> = map.iter().map(Result::unwrap).collect();
    assert_eq!(found, keys.iter().copied().zip(0..).collect::<Vec<_>>());
    assert_eq!(map.last().unwrap().unwrap().0, keys[keys.len() - 1]);
}

#[test]
fn every_key_type_sorts_as_it_should_in_a_map() {
    round_trip(&[0_u64, 1, u64::MAX - 1, u64::MAX]);
    round_trip(&[i64::MIN, -1, 0, 1, i64::MAX]);
    round_trip(&[0_u32, 7, u32::MAX]);
    round_trip(&[i32::MIN, -1, 0, i32::MAX]);
    round_trip(&[
        f64::NEG_INFINITY,
        -1.5,
        0.0,
        f64::MIN_POSITIVE,
        f64::INFINITY,
    ]);
    round_trip(&[f32::NEG_INFINITY, -1.5, 0.0, f32::INFINITY]);
    round_trip(&[*b"\0\0\0\0\0\0\0\0", *b"aaaaaaaa", *b"aaaaaaab", [0xff; 8]]);
}
