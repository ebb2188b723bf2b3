//! Every operation of a typed map against `BTreeMap`.

use indelible::{CompareExchange, OrderedKey, Pool, StoredValue, TypedMap};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Bound;

pub type Make<T> = fn(&mut SmallRng) -> T;

pub fn string(random: &mut SmallRng) -> String {
    let length = random.random_range(0..4);
    (0..length)
        .map(|_| ['a', '\0', '\u{1}', '\u{10ffff}'][random.random_range(0..4)])
        .collect()
}

/// A map, and what it must hold.
struct Pair<K, V> {
    map: TypedMap<K, V>,
    model: BTreeMap<K, V>,
    key: Make<K>,
    value: Make<V>,
    random: SmallRng,
}

impl<K: OrderedKey + Ord + Clone + Debug, V: StoredValue + Clone + PartialEq + Debug> Pair<K, V> {
    fn expect_same(&self) {
        assert_eq!(self.map.len().unwrap(), self.model.len() as u64);
        let records: Vec<(K, V)> = self.map.iter().map(Result::unwrap).collect();
        assert!(records.iter().map(|(k, v)| (k, v)).eq(self.model.iter()));
        let keys: Vec<K> = self.map.keys().map(Result::unwrap).collect();
        assert!(keys.iter().eq(self.model.keys()));
        let values: Vec<V> = self.map.values().map(Result::unwrap).collect();
        assert!(values.iter().eq(self.model.values()));
        let all: Vec<K> = self.model.keys().cloned().collect();
        let got = self.map.get_batch(&all).unwrap();
        assert!(
            got.iter()
                .map(Option::as_ref)
                .eq(self.model.values().map(Some))
        );
        let (mut range, mut read) = (self.map.iter(), Vec::new());
        while let Some(record) = range.next_with(|key, value| (key, V::from_view(value))) {
            read.push(record.unwrap());
        }
        assert!(read.iter().map(|(key, value)| (key, value)).eq(&self.model));
        assert_eq!(self.map.check().unwrap(), Vec::<String>::new());
    }

    fn write(&mut self) {
        let key = (self.key)(&mut self.random);
        let value = (self.value)(&mut self.random);
        let (map, model) = (&self.map, &mut self.model);
        let now = model.get(&key).cloned();
        match self.random.random_range(0..11) {
            0..3 => {
                assert_eq!(map.insert(&key, &value).unwrap(), now.is_some());
                model.insert(key, value);
            }
            3 => assert_eq!(map.replace(&key, &value).unwrap(), model.insert(key, value)),
            4 => assert_eq!(map.remove(&key).unwrap(), model.remove(&key).is_some()),
            5 => assert_eq!(map.take(&key).unwrap(), model.remove(&key)),
            6 => {
                assert_eq!(map.insert_new(&key, &value).unwrap(), now.is_none());
                model.entry(key).or_insert(value);
            }
            7 => {
                assert_eq!(map.update(&key, &value).unwrap(), now.is_some());
                model.entry(key).and_modify(|old| *old = value);
            }
            8 => {
                // Absent becomes the value, present becomes absent.
                let change = |found: Option<V::View<'_>>| found.is_none().then(|| value.clone());
                assert_eq!(map.update_with(&key, change).unwrap(), now);
                if now.is_some() {
                    model.remove(&key);
                } else {
                    model.insert(key, value);
                }
            }
            9 => {
                let wrong = if now.is_none() { Some(&value) } else { None };
                let kept = map.compare_exchange(&key, wrong, Some(&value)).unwrap();
                assert_eq!(kept, CompareExchange::Unchanged(now.clone()));
                let done = map.compare_exchange(&key, now.as_ref(), Some(&value));
                assert!(done.unwrap().is_exchanged());
                model.insert(key, value);
            }
            _ => {
                let got = if self.random.random_bool(0.5) {
                    map.get_or_insert(&key, &value)
                } else {
                    map.get_or_insert_with(&key, || value.clone())
                };
                assert_eq!(&got.unwrap(), model.entry(key).or_insert(value));
            }
        }
    }

    fn read(&mut self) {
        let key = (self.key)(&mut self.random);
        assert_eq!(self.map.get(&key).unwrap().as_ref(), self.model.get(&key));
        let viewed = self.map.get_with(&key, V::from_view).unwrap();
        assert_eq!(viewed.as_ref(), self.model.get(&key));
        let is_there = self.map.contains_key(&key).unwrap();
        assert_eq!(is_there, self.model.contains_key(&key));
        let first = self.map.first().unwrap();
        assert_eq!(
            first.as_ref().map(|(k, v)| (k, v)),
            self.model.first_key_value()
        );
        let last = self.map.last().unwrap();
        assert_eq!(
            last.as_ref().map(|(k, v)| (k, v)),
            self.model.last_key_value()
        );
        let other = (self.key)(&mut self.random);
        let (low, high) = if key <= other {
            (key, other)
        } else {
            (other, key)
        };
        let bound = |key: K, random: &mut SmallRng| match random.random_range(0..3) {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        let bounds = (bound(low, &mut self.random), bound(high, &mut self.random));
        if matches!(&bounds, (Bound::Excluded(a), Bound::Excluded(b)) if a == b) {
            assert_eq!(self.map.range(bounds).count(), 0);
            return;
        }
        let expected = self.model.range(bounds.clone());
        let expected: Vec<(K, V)> = expected.map(|(k, v)| (k.clone(), v.clone())).collect();
        let up: Vec<(K, V)> = self.map.range(bounds.clone()).map(Result::unwrap).collect();
        assert_eq!(up, expected);
        let mut down: Vec<(K, V)> = self.map.range(bounds).rev().map(Result::unwrap).collect();
        down.reverse();
        assert_eq!(down, expected);
    }

    fn whole_map(&mut self) {
        let records: Vec<(K, V)> = (0..50)
            .map(|_| ((self.key)(&mut self.random), (self.value)(&mut self.random)))
            .collect();
        self.map.insert_batch(&records).unwrap();
        self.model.extend(records.iter().cloned());
        self.expect_same();
        assert_eq!(self.map.pop_first().unwrap(), self.model.pop_first());
        assert_eq!(self.map.pop_last().unwrap(), self.model.pop_last());
        let border = (self.key)(&mut self.random);
        self.map.retain(|key, _| key < border).unwrap();
        self.model.retain(|key, _| *key < border);
        self.expect_same();
        let all = self.model.clone();
        self.map.clear().unwrap();
        assert!(self.map.is_empty().unwrap() && self.map.pop_last().unwrap().is_none());
        self.map.bulk_load(&all, 0.7).unwrap();
        self.expect_same();
        self.map.clear().unwrap();
        self.map.extend(&all).unwrap();
        self.expect_same();
    }
}

/// Every operation on a map of these types, across a clean close.
pub fn contract<K, V>(key: Make<K>, value: Make<V>)
where
    K: OrderedKey + Ord + Clone + Debug,
    V: StoredValue + Clone + PartialEq + Debug,
{
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let mut pair = Pair {
        map: pool.typed::<K, V>("m").unwrap(),
        model: BTreeMap::new(),
        key,
        value,
        random: SmallRng::seed_from_u64(1),
    };
    for _ in 0..600 {
        pair.write();
        pair.read();
    }
    pair.expect_same();
    drop(pool);
    let Pair { map, model, .. } = pair;
    drop(map);
    let pool = Pool::open(&path).unwrap();
    let map = pool.open_typed::<K, V>("m").unwrap();
    let mut pair = Pair {
        map,
        model,
        key,
        value,
        random: SmallRng::seed_from_u64(2),
    };
    pair.expect_same();
    for _ in 0..300 {
        pair.write();
    }
    pair.whole_map();
}
