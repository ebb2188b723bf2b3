//! What a map offers beyond single reads and writes: changes by a closure, removal by range, iterators, and every type of key and
//! value, for every kind of index.

use crate::kinds::{KINDS, map_of};
use indelible::{CompareExchange, Error, Key, Kind, Map, Newtype, Pool, PoolOptions, Type, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

type Model = BTreeMap<u64, u64>;

/// An empty map of every kind, with the pool that keeps it.
fn each_map(test: impl Fn(&Map<u64, u64>)) {
    for &kind in KINDS {
        let pool = Pool::in_memory().unwrap();
        let map = map_of(&pool, kind);
        test(&map);
        assert_eq!(map.check().unwrap(), [""; 0], "{kind}");
    }
}

#[derive(Clone, Debug)]
enum Operation {
    /// Adds a number to the value, which begins at 0; removes the key at a multiple of 4.
    UpdateWith(u64, u64),
    GetOrInsertWith(u64, u64),
    PopFirst,
    PopLast,
    RemoveRange(u64, u64),
    /// Keeps the values in the bounds that are no multiple of the number.
    Retain(u64, u64, u64),
    Clear,
    Extend(Vec<(u64, u64)>),
    BulkLoad(Vec<(u64, u64)>),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::{
        BulkLoad, Clear, Extend, GetOrInsertWith, PopFirst, PopLast, RemoveRange, Retain,
        UpdateWith,
    };
    let key = || prop_oneof![4 => 0..300_u64, 1 => (0..300_u64).prop_map(|key| u64::MAX - key)];
    let records = || proptest::collection::vec((key(), 0..100_u64), 0..200);
    prop_oneof![
        20 => (key(), 0..6_u64).prop_map(|(key, number)| UpdateWith(key, number)),
        8 => (key(), 0..100_u64).prop_map(|(key, value)| GetOrInsertWith(key, value)),
        4 => Just(PopFirst),
        4 => Just(PopLast),
        3 => (key(), 0..60_u64).prop_map(|(from, count)| RemoveRange(from, count)),
        3 => (key(), key(), 1..5_u64).prop_map(|(a, b, number)| Retain(a.min(b), a.max(b), number)),
        1 => Just(Clear),
        8 => records().prop_map(Extend),
        2 => records().prop_map(BulkLoad),
    ]
}

fn apply(map: &Map<u64, u64>, model: &mut Model, operation: Operation) {
    match operation {
        Operation::UpdateWith(key, number) => {
            let change = |value: Option<u64>| {
                let sum = value.unwrap_or(0).wrapping_add(number);
                (!sum.is_multiple_of(4)).then_some(sum)
            };
            let before = model.get(&key).copied();
            assert_eq!(map.update_with(key, change).unwrap(), before);
            match change(before) {
                Some(value) => drop(model.insert(key, value)),
                None => drop(model.remove(&key)),
            }
            assert_eq!(map.get(key).unwrap(), model.get(&key).copied());
        }
        Operation::GetOrInsertWith(key, value) => {
            let mut calls = 0;
            let make = || {
                calls += 1;
                value
            };
            let is_new = !model.contains_key(&key);
            let wanted = *model.entry(key).or_insert(value);
            assert_eq!(map.get_or_insert_with(key, make).unwrap(), wanted);
            assert_eq!(calls, i32::from(is_new));
        }
        Operation::PopFirst => assert_eq!(map.pop_first().unwrap(), model.pop_first()),
        Operation::PopLast => assert_eq!(map.pop_last().unwrap(), model.pop_last()),
        Operation::RemoveRange(from, count) => {
            let bounds = from..from.saturating_add(count);
            let before = model.len();
            model.retain(|key, _| !bounds.contains(key));
            let removed = (before - model.len()) as u64;
            assert_eq!(map.remove_range(bounds).unwrap(), removed);
        }
        Operation::Retain(from, to, number) => {
            let before = model.len();
            model
                .retain(|&key, value| !(from..=to).contains(&key) || !value.is_multiple_of(number));
            let removed = map.retain(from..=to, |key, value| {
                assert!((from..=to).contains(key));
                !value.is_multiple_of(number)
            });
            assert_eq!(removed.unwrap(), (before - model.len()) as u64);
        }
        Operation::Clear => {
            assert_eq!(map.clear().unwrap(), model.len() as u64);
            model.clear();
        }
        Operation::Extend(records) => {
            map.extend(&records).unwrap();
            model.extend(records);
        }
        Operation::BulkLoad(records) => {
            let sorted: Model = records.into_iter().collect();
            match map.bulk_load(sorted.iter().map(|(key, value)| (*key, *value)), 0.7) {
                Ok(()) => {
                    assert!(model.is_empty());
                    model.extend(sorted);
                }
                Err(Error::NotEmpty) => assert!(!model.is_empty()),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn assert_same(map: &Map<u64, u64>, model: &Model) {
    let records: Result<Model, Error> = map.into_iter().collect();
    assert_eq!(records.unwrap(), *model);
    assert!(map.keys().map(Result::unwrap).eq(model.keys().copied()));
    assert!(map.values().map(Result::unwrap).eq(model.values().copied()));
    let reversed = map.keys().rev().map(Result::unwrap);
    assert!(reversed.eq(model.keys().rev().copied()));
    let reversed = map.values().rev().map(Result::unwrap);
    assert!(reversed.eq(model.values().rev().copied()));
    assert_eq!(map.len().unwrap(), model.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32 * KINDS.len() as u32, ..ProptestConfig::default() })]

    #[test]
    fn compound_operations_do_what_btreemap_does(
        kind in proptest::sample::select(KINDS),
        operations in proptest::collection::vec(operation(), 0..120),
    ) {
        let pool = Pool::in_memory().unwrap();
        let map = map_of(&pool, kind);
        let mut model = Model::new();
        for operation in operations {
            apply(&map, &mut model, operation);
        }
        assert_same(&map, &model);
        prop_assert_eq!(map.check().unwrap(), [""; 0]);
    }
}

#[test]
fn update_with_is_one_step_among_threads() {
    each_map(|map| {
        const THREADS: u64 = 4;
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for i in 0..5000 {
                        let add = |count: Option<u64>| Some(count.unwrap_or(0) + 1);
                        map.update_with(i % 7, add).unwrap();
                    }
                });
            }
        });
        let sum: u64 = map.values().map(Result::unwrap).sum();
        assert_eq!(sum, THREADS * 5000);
    });
}

#[test]
fn a_closure_that_panics_changes_nothing_and_leaves_no_lock() {
    each_map(|map| {
        map.extend((0..100).map(|key| (key, key))).unwrap();
        for key in [50, 500] {
            let work = || map.update_with(key, |_| panic!("as planned"));
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            assert!(panicked.is_err());
            assert_eq!(map.insert(key, 1).unwrap(), (key == 50).then_some(50));
        }
        assert_eq!(map.len().unwrap(), 101);
    });
}

#[test]
fn get_or_insert_with_may_use_the_map() {
    each_map(|map| {
        map.insert(1, 10).unwrap();
        let make = || map.get(1).unwrap().unwrap() + map.get_or_insert(2, 5).unwrap();
        assert_eq!(map.get_or_insert_with(2, make).unwrap(), 5);
        assert_eq!(map.get_or_insert_with(3, make).unwrap(), 15);
    });
}

#[test]
fn threads_that_pop_take_every_record_once_and_in_order() {
    const RECORDS: u64 = 6000;
    each_map(|map| {
        map.extend((0..1000).map(|key| (key, key))).unwrap();
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for key in 1000..RECORDS {
                    map.insert(key, key).unwrap();
                }
            });
            let takers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut mine = Vec::new();
                        while taken.load(Ordering::Relaxed) < RECORDS {
                            if let Some((key, value)) = map.pop_first().unwrap() {
                                assert_eq!(key, value);
                                mine.push(key);
                                taken.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        mine
                    })
                })
                .collect();
            let mut all = Vec::new();
            for taker in takers {
                let mine = taker.join().unwrap();
                assert!(mine.is_sorted(), "what is added in order is taken in order");
                all.extend(mine);
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..RECORDS));
        });
        assert!(map.is_empty().unwrap());
    });
}

#[test]
fn retain_removes_only_what_it_has_seen() {
    each_map(|map| {
        map.extend((0..1000).map(|key| (key, 0))).unwrap();
        // The value changes after it has been read and before it is removed.
        let mut calls = 0;
        let removed = map.retain(.., |&key, &value| {
            calls += 1;
            if key % 2 == 0 && value == 0 {
                map.insert(key, 1).unwrap();
            }
            value == 1
        });
        assert_eq!((removed.unwrap(), calls), (500, 1500));
        assert!(map.keys().map(Result::unwrap).eq((0..1000).step_by(2)));
        let removed = map.retain(.., |&key, _| {
            map.remove(key).unwrap();
            false
        });
        assert_eq!(removed.unwrap(), 0, "another has removed them all");
    });
}

#[test]
fn bulk_load_takes_slices_vectors_and_iterators() {
    each_map(|map| {
        let records: Vec<(u64, u64)> = (0..5000).map(|key| (key, !key)).collect();
        let model: Model = records.iter().copied().collect();
        let loads: [&dyn Fn() -> indelible::Result<()>; 6] = [
            &|| map.bulk_load(&records, 0.7),
            &|| map.bulk_load(&records[..], 0.7),
            &|| map.bulk_load(records.clone(), 0.7),
            &|| map.bulk_load(records.iter(), 0.7),
            &|| map.bulk_load((0..5000).map(|key| (key, !key)), 0.7),
            &|| map.bulk_load(model.clone(), 0.7),
        ];
        for load in loads {
            load().unwrap();
            assert_same(map, &model);
            assert_eq!(map.clear().unwrap(), 5000);
        }
        map.bulk_load([(1, 2), (3, 4)], 0.7).unwrap();
        map.bulk_load([(1, 2), (3, 4)], 0.7).unwrap_err();
        map.clear().unwrap();
        let error = map.bulk_load([(1, 0), (3, 0), (2, 0)], 0.7).unwrap_err();
        assert!(matches!(error, Error::NotAscending(2)));
        assert!(error.to_string().contains("sort the records"), "{error}");
    });
}

#[test]
fn extend_ends_where_the_iterator_ends_first() {
    each_map(|map| {
        // As `Receiver::try_iter`: after the end more may come.
        let mut comes = 0;
        let records = std::iter::from_fn(|| {
            comes += 1;
            (comes % 3 != 0 && comes < 10).then_some((comes, comes))
        });
        map.extend(records).unwrap();
        assert!(map.keys().map(Result::unwrap).eq([1, 2]));
    });
}

#[test]
fn compare_exchange_says_what_it_found() {
    each_map(|map| {
        let exchange = |now, new| map.compare_exchange(1, now, new).unwrap();
        assert!(exchange(None, Some(1)).is_exchanged());
        assert_eq!(exchange(None, Some(2)), CompareExchange::Unchanged(Some(1)));
        assert!(!exchange(Some(2), None).is_exchanged());
        assert!(exchange(Some(1), None).is_exchanged());
        assert_eq!(exchange(Some(1), Some(2)), CompareExchange::Unchanged(None));
    });
}

#[test]
fn compare_exchange_takes_every_word_of_a_set_for_its_value() {
    for &kind in KINDS {
        let pool = Pool::in_memory().unwrap();
        let words = pool.map_of_words("m", Type::U64, Type::Unit, kind).unwrap();
        words.extend([(1, 7), (2, 0)]).unwrap();
        let set = pool.open_map::<u64, ()>("m").unwrap();
        for key in [1, 2] {
            assert_eq!(set.get(key).unwrap(), Some(()));
            let exchange = |now, new| set.compare_exchange(key, now, new).unwrap();
            assert_eq!(
                exchange(None, Some(())),
                CompareExchange::Unchanged(Some(()))
            );
            assert!(exchange(Some(()), Some(())).is_exchanged());
            assert!(exchange(Some(()), None).is_exchanged());
            assert_eq!(exchange(Some(()), None), CompareExchange::Unchanged(None));
        }
        assert!(words.is_empty().unwrap());
    }
}

#[test]
fn a_pool_that_is_read_only_refuses_every_change_also_one_of_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for &kind in KINDS {
        let path = directory.path().join(kind.name());
        let pool = Pool::create(&path).unwrap();
        drop(map_of(&pool, kind));
        pool.close().unwrap();
        let pool = PoolOptions::new().open_read_only(&path).unwrap();
        let map = map_of(&pool, kind);
        let refused = [
            map.update_with(1, |_| Some(1)).map(drop),
            map.get_or_insert_with(1, || 1).map(drop),
            map.pop_first().map(drop),
            map.pop_last().map(drop),
            map.remove_range(..).map(drop),
            map.clear().map(drop),
            map.retain(.., |_, _| false).map(drop),
            map.extend([(1, 1)]),
            map.extend([(0, 0); 0]),
            map.bulk_load([(1, 1)], 0.7),
        ];
        for result in refused {
            assert!(matches!(result, Err(Error::ReadOnly)), "{kind}: {result:?}");
        }
        assert_eq!(map.keys().count(), 0);
    }
}

#[test]
fn nan_is_refused_also_by_compound_operations() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.map::<f64, f64>("m").unwrap();
    let nan = f64::NAN;
    let refused = [
        map.update_with(nan, |_| Some(1.0)).map(drop),
        map.get_or_insert_with(nan, || 1.0).map(drop),
        map.remove_range(nan..).map(drop),
        map.retain(..nan, |_, _| false).map(drop),
        map.extend([(1.0, 1.0), (nan, 1.0)]),
        map.bulk_load([(nan, 1.0)], 0.7),
    ];
    for result in refused {
        assert!(matches!(result, Err(Error::NanKey)));
    }
    assert!(map.is_empty().unwrap());
}

/// Writes `keys`, which ascend, with `values` in turn, and reads all of it back in every way.
fn round_trip<K, V>(keys: &[K], values: &[V])
where
    K: Key + PartialEq + Debug,
    V: Value + PartialEq + Debug,
{
    for &kind in KINDS {
        let pool = Pool::in_memory().unwrap();
        let map = pool.map_with::<K, V>("m", kind).unwrap();
        let records = keys.iter().zip(values.iter().cycle());
        let records: Vec<(K, V)> = records.map(|(key, value)| (*key, *value)).collect();
        map.extend(records.iter().rev()).unwrap();
        let found: Vec<(K, V)> = map.iter().collect::<Result<_, _>>().unwrap();
        assert_eq!(found, records);
        let mut page = Vec::new();
        map.iter().read(usize::MAX, &mut page).unwrap();
        assert_eq!(page, records);
        let expected: Vec<Option<V>> = records.iter().map(|record| Some(record.1)).collect();
        assert_eq!(map.get_batch(keys).unwrap(), expected);
        for &(key, value) in &records {
            assert_eq!(map.get(key).unwrap(), Some(value));
        }
        assert_eq!(map.last().unwrap(), records.last().copied());
        map.clear().unwrap();
        map.bulk_load(&records, 0.7).unwrap();
        let bounds = (Bound::Excluded(keys[0]), Bound::Unbounded);
        assert_eq!(map.remove_range(bounds).unwrap(), keys.len() as u64 - 1);
        assert_eq!(map.pop_first().unwrap(), Some(records[0]));
        let info = &pool.maps()[0];
        assert_eq!((info.key, info.value), (K::TYPE, V::TYPE));
    }
}

#[test]
fn small_types_are_keys_and_values() {
    round_trip(&[0, 1, u16::MAX], &[u16::MAX, 0]);
    round_trip(&[i16::MIN, -1, 0, i16::MAX], &[i16::MIN, -1]);
    round_trip(&(0..=u8::MAX).collect::<Vec<_>>(), &[0, u8::MAX]);
    round_trip(&(i8::MIN..=i8::MAX).collect::<Vec<_>>(), &[i8::MIN, -1, 0]);
    round_trip(&[false, true], &[true, false]);
    round_trip(
        &['\0', 'a', 'é', '\u{d7ff}', '\u{e000}', '🌍', char::MAX],
        &['\0', char::MAX],
    );
    round_trip(&[[0], [255]], &[[7]]);
    round_trip(&[*b"aa", *b"ab", *b"b\0"], &[*b"xy"]);
    round_trip(&[*b"aaa", *b"aab"], &[*b"xyz"]);
    round_trip(&[*b"aaaa", *b"aaab"], &[*b"wxyz"]);
    round_trip(&[*b"aaaaa", [255; 5]], &[*b"vwxyz"]);
    round_trip(&[[0; 6], *b"aaaaaa"], &[*b"uvwxyz"]);
    round_trip(&[[0; 7], [255; 7]], &[[1, 2, 3, 4, 5, 6, 7], [255; 7]]);
    round_trip(&[1_u8, 2], &[(), ()]);
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Celsius(f32);

impl Newtype for Celsius {
    type Inner = f32;

    fn into_inner(self) -> f32 {
        self.0
    }

    fn from_inner(inner: f32) -> Self {
        Self(inner)
    }
}

/// A newtype of a newtype.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Outside(Celsius);

impl Newtype for Outside {
    type Inner = Celsius;

    fn into_inner(self) -> Celsius {
        self.0
    }

    fn from_inner(inner: Celsius) -> Self {
        Self(inner)
    }
}

#[test]
fn newtypes_are_stored_as_what_they_wrap() {
    round_trip(
        &[-20.0, 0.0, 30.5].map(Celsius),
        &[Outside(Celsius(f32::INFINITY))],
    );
    let pool = Pool::in_memory().unwrap();
    let map = pool.map::<Outside, Celsius>("m").unwrap();
    map.insert(Outside(Celsius(1.5)), Celsius(2.5)).unwrap();
    let inside = pool.open_map::<f32, f32>("m").unwrap();
    assert_eq!(inside.get(1.5).unwrap(), Some(2.5));
    assert_eq!(
        (pool.maps()[0].key, pool.maps()[0].value),
        (Type::F32, Type::F32)
    );
    let nan = Outside(Celsius(f32::NAN));
    assert!(matches!(map.get(nan), Err(Error::NanKey)));
    // More records than there can be: what the iterator promises is not believed.
    let endless = std::iter::repeat((nan, Celsius(0.0)));
    assert!(matches!(map.bulk_load(endless, 0.7), Err(Error::NanKey)));
    let other = pool.open_map::<f64, f32>("m");
    assert!(matches!(other, Err(Error::WrongType { .. })));
}

/// Where the types of the first map lie in the file, those of its keys and then those of its values: `docs/format.md`, catalog.
const TYPES_AT: usize = 8192 + 9;

/// Opens a map from `u64` to `u64` as one from `K` to `V`, so that it holds words that no `K` and no `V` is stored as: what a damaged
/// file may hold too.
fn open_as<K: Key, V: Value>(kind: Kind, records: &[(u64, u64)], test: impl Fn(&Map<K, V>)) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.pool");
    let pool = Pool::create(&path).unwrap();
    let map = map_of(&pool, kind);
    map.extend(records).unwrap();
    drop(map);
    pool.close().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let types = &mut bytes[TYPES_AT..TYPES_AT + 2];
    assert_eq!(types, [Type::U64 as u8; 2]);
    types.copy_from_slice(&[K::TYPE as u8, V::TYPE as u8]);
    std::fs::write(&path, bytes).unwrap();
    let pool = Pool::open(&path).unwrap();
    test(&pool.open_map("m").unwrap());
}

fn assert_damaged<T: Debug>(result: indelible::Result<T>) {
    assert!(matches!(result, Err(Error::Damaged(_))), "{result:?}");
}

#[test]
fn a_value_that_no_type_is_stored_as_is_an_error() {
    let records: Vec<(u64, u64)> = (0..300)
        .map(|i| (i, u64::from(i == 200) * 0xd800))
        .collect();
    for &kind in KINDS {
        open_as::<u64, char>(kind, &records, |map| {
            assert_eq!(map.get(199).unwrap(), Some('\0'));
            assert!(map.contains(200).unwrap());
            assert_damaged(map.get(200));
            assert_damaged(map.get_batch(&[199, 200]));
            assert_damaged(map.insert(200, 'a'));
            assert_damaged(map.update(200, 'a'));
            assert_damaged(map.remove(200));
            let mut calls = 0;
            let change = |_| {
                calls += 1;
                None
            };
            assert_damaged(map.update_with(200, change));
            assert_eq!(calls, 0);
            assert_damaged(map.get_or_insert_with(200, || 'a'));
            assert_damaged(map.compare_exchange(200, None, None));
            assert_damaged(map.retain(.., |_, _| true));
            let mut page = Vec::new();
            assert_damaged(map.iter().read(usize::MAX, &mut page));
            assert_eq!(
                page.len(),
                200,
                "what comes before the damage has been read"
            );
            assert_ends_at_damage(map.iter(), 200);
            assert_ends_at_damage(map.iter().rev(), 99);
            assert_ends_at_damage(map.values(), 200);
            let folded = map
                .iter()
                .fold((0, 0), |(sound, damaged), record| match record {
                    Ok(_) => (sound + 1, damaged),
                    Err(_) => (sound, damaged + 1),
                });
            assert_eq!(folded, (200, 1));
            // Removing needs no value.
            assert_eq!(map.remove_range(200..=200).unwrap(), 1);
            assert_eq!(map.iter().map(Result::unwrap).count(), 299);
        });
    }
}

#[test]
fn a_key_that_no_type_is_stored_as_is_an_error() {
    let records: Vec<(u64, u64)> = (0..300).map(|i| (i, i)).collect();
    for &kind in KINDS {
        open_as::<u8, u64>(kind, &records, |map| {
            assert_eq!(map.get(255).unwrap(), Some(255));
            assert_damaged(map.last());
            assert_damaged(map.pop_last());
            assert_damaged(map.retain(100.., |_, _| true));
            assert_ends_at_damage(map.keys(), 256);
            assert_eq!(map.len().unwrap(), 300, "nothing was removed");
        });
    }
}

/// So many records, one error, and then no more.
fn assert_ends_at_damage<T: Debug>(
    mut range: impl Iterator<Item = indelible::Result<T>>,
    sound: usize,
) {
    for _ in 0..sound {
        range.next().unwrap().unwrap();
    }
    assert_damaged(range.next().unwrap());
    assert!(range.next().is_none());
    assert!(range.next().is_none());
}

#[test]
fn objects_say_what_they_are() {
    use indelible::{Durability, ObjectInfo, Point2};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    for &kind in KINDS {
        let map = pool.map_with::<u64, u64>(kind.name(), kind).unwrap();
        assert_eq!((map.name().as_str(), map.kind()), (kind.name(), kind));
        assert_eq!(map.options().unwrap().kind(), kind);
    }
    let bytes = pool.bytes("bytes").unwrap();
    pool.rename_object("bytes", "a").unwrap();
    assert_eq!(bytes.name(), "a");
    let typed = pool.typed::<u128, ()>("typed").unwrap();
    assert_eq!(typed.name(), "typed");
    let spatial = pool.spatial::<Point2>("zz").unwrap();
    let objects = pool.objects();
    assert_eq!(objects.len(), KINDS.len() + 3);
    assert!(objects.is_sorted_by(|a, b| a.name() < b.name()));
    assert!(
        matches!(&objects[0], ObjectInfo::Bytes(info) if info.options == bytes.options().unwrap())
    );
    assert!(matches!(objects.last(), Some(ObjectInfo::Spatial(_))));
    let is_typed = |it: &ObjectInfo| matches!(it, ObjectInfo::Typed(info) if info.key == "u128");
    assert!(objects.iter().any(is_typed));
    assert_eq!(pool.path(), Some(path.as_path()));
    assert_eq!(pool.durability(), Durability::Process);
    drop((bytes, typed, spatial));
    pool.close().unwrap();
    // Where the pool is only read, its statistics are those of the pool, and not of the reader.
    let millis = std::time::Duration::from_millis(7);
    let mut options = PoolOptions::new();
    options
        .log_anywhere(true)
        .durability(Durability::Interval(millis));
    let pool = options.open(&path).unwrap();
    let stat = pool.stat();
    pool.close().unwrap();
    let read_only = PoolOptions::new().open_read_only(&path).unwrap();
    assert_eq!(read_only.durability(), Durability::Interval(millis));
    assert_eq!(read_only.stat().medium, stat.medium);
    assert_eq!(Pool::in_memory().unwrap().path(), None);
}
