//! Maps of byte strings whose keys are as awkward as keys can be.

use indelible::Pool;
use std::collections::BTreeMap;

/// Keys of which each has a much longer common prefix with the next one than with the one before: where such a leaf is divided, one short
/// separator after the other would cut off one record.
fn nested(group: u64, at: usize) -> Vec<u8> {
    let mut key = group.to_be_bytes()[6..].to_vec();
    key.resize(2 + 1100 * at, b'b');
    key.push(b'a');
    key
}

#[test]
fn leaves_of_ever_longer_common_prefixes_are_divided_into_few() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let mut model = BTreeMap::new();
    let mut put = |key: Vec<u8>, value: Vec<u8>| {
        map.insert(&key, &value).unwrap();
        model.insert(key, value);
    };
    for group in 0..120 {
        for at in 0..13 {
            put(nested(group, at), vec![1; 8]);
        }
    }
    // One large record more in each of the leaves, from right to left.
    for group in (0..120).rev() {
        let mut key = nested(group, 12);
        key.push(b'c');
        put(key, vec![2; 256]);
    }
    assert_eq!(map.check().unwrap(), [""; 0]);
    let records: Vec<_> = map.iter().map(Result::unwrap).collect();
    assert!(
        records
            .iter()
            .map(|(key, value)| (key, value))
            .eq(model.iter())
    );
    let records: Vec<_> = map.iter().rev().map(Result::unwrap).collect();
    assert!(
        records
            .iter()
            .rev()
            .map(|(key, value)| (key, value))
            .eq(model.iter())
    );
    for (key, value) in &model {
        assert_eq!(map.get(key).unwrap().as_ref(), Some(value));
    }
}

/// Strings of two different bytes and of zeros: many of them differ late, or only in how many zeros they end with.
fn alike(number: u64) -> Vec<u8> {
    let mut key = b"all of them begin with these".to_vec();
    let length = number % 21;
    key.extend(
        (0..length).map(|at| match number >> 5 >> (2 * (at / 3)) & 3 {
            0 | 1 => 0,
            2 => b'a',
            _ => b'b',
        }),
    );
    key
}

#[test]
fn keys_that_differ_late_are_found_and_read_in_order() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let mut model = BTreeMap::new();
    for number in (0..20_000_u64).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) {
        let (key, value) = (alike(number), number.to_ne_bytes().to_vec());
        map.insert(&key, &value).unwrap();
        model.insert(key, value);
    }
    assert_eq!(map.check().unwrap(), [""; 0]);
    let read: Vec<_> = map.iter().map(Result::unwrap).collect();
    assert!(
        read.iter()
            .map(|(key, value)| (key, value))
            .eq(model.iter())
    );
    let keys: Vec<_> = model.keys().collect();
    for (at, key) in keys.iter().enumerate().step_by(7) {
        assert_eq!(map.get(key).unwrap().as_ref(), model.get(*key));
        // A few records on either side, and what is between two keys that are near each other.
        let up = map.range(key.as_slice()..).take(40);
        assert!(
            up.map(|record| record.unwrap().0)
                .eq(keys[at..].iter().copied().take(40).cloned())
        );
        let down = map.range(..key.as_slice()).rev().take(40);
        let below = keys[..at].iter().rev().copied().take(40).cloned();
        assert!(down.map(|record| record.unwrap().0).eq(below));
        let end = keys[(at + 5).min(keys.len() - 1)];
        let between = map.range(key.as_slice()..=end.as_slice()).count();
        assert_eq!(between, (at + 5).min(keys.len() - 1) - at + 1);
    }
}

#[test]
fn a_range_that_is_read_from_both_ends_meets_every_record_once() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    for number in 0..3_000_u64 {
        map.insert(alike(number), [number as u8; 3]).unwrap();
    }
    let all: Vec<_> = map.keys().map(Result::unwrap).collect();
    for steps in [1, 2, 5] {
        let mut range = map.keys();
        let (mut front, mut back) = (Vec::new(), Vec::new());
        'both: loop {
            for _ in 0..steps {
                match range.next() {
                    Some(key) => front.push(key.unwrap()),
                    None => break 'both,
                }
            }
            match range.next_back() {
                Some(key) => back.push(key.unwrap()),
                None => break,
            }
        }
        back.reverse();
        front.extend(back);
        assert_eq!(front, all);
    }
}

#[test]
fn a_batch_finds_what_lookups_find() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let long = vec![7; 5_000];
    for number in (0..20_000_u64).step_by(2) {
        map.insert(alike(number), number.to_ne_bytes()).unwrap();
    }
    map.insert(&long, &long).unwrap();
    for count in [0, 1, 15, 16, 17, 333] {
        let mut keys: Vec<Vec<u8>> = (0..count).map(|at| alike(at * 59)).collect();
        keys.extend([vec![], long.clone(), vec![7; 4_999]]);
        let found = map.get_batch(&keys).unwrap();
        let single: Vec<_> = keys.iter().map(|key| map.get(key).unwrap()).collect();
        assert_eq!(found, single);
        let mut numbers = Vec::new();
        map.get_batch_with(&keys, |number, value| {
            assert_eq!(single[number].as_deref(), Some(value));
            numbers.push(number);
        })
        .unwrap();
        numbers.sort_unstable();
        let there = (0..keys.len()).filter(|&number| single[number].is_some());
        assert!(there.eq(numbers));
    }
}

#[test]
fn a_batch_beside_writers_finds_what_nobody_touches() {
    let pool = Pool::in_memory().unwrap();
    let map = pool.bytes("m").unwrap();
    let stays = |number: u64| format!("key {:06}", 10 * number).into_bytes();
    for number in 0..500 {
        map.insert(stays(number), [1; 8]).unwrap();
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 0..6_u64 {
                for number in (0..5_000).filter(|number| number % 10 != 0) {
                    let key = format!("key {number:06}");
                    if round % 2 == 0 {
                        map.insert(&key, [2; 40]).unwrap();
                    } else {
                        map.remove(&key).unwrap();
                    }
                }
            }
        });
        let keys: Vec<_> = (0..500).map(stays).collect();
        while !writer.is_finished() {
            let values = map.get_batch(&keys).unwrap();
            assert!(values.iter().all(|value| value.as_deref() == Some(&[1; 8])));
            // Ranges go over leaves that are being split and merged.
            let stayed = map.range("key "..).map(Result::unwrap);
            assert_eq!(stayed.filter(|(_, value)| value == &[1; 8]).count(), 500);
        }
    });
}

/// Keys that differ early, at the bytes by which leaves are ranked, behind the first line, or only in their lengths.
fn stem_and_end(random: &mut impl rand::RngExt) -> Vec<u8> {
    let stem = [0, 1, 6, 7, 8, 30, 63, 64, 65, 130][random.random_range(0..10)];
    let mut key = vec![*b"\0a\xff".get(random.random_range(0..3)).unwrap(); stem];
    let end = [0, 1, 2, 7, 8, 9, 70][random.random_range(0..7)];
    key.extend((0..end).map(|_| [0, 1, 0xff][random.random_range(0..3)]));
    key
}

#[test]
fn leaves_are_read_in_order_wherever_their_keys_differ() {
    use rand::{RngExt, SeedableRng};
    for seed in 0..30 {
        let random = &mut rand::rngs::SmallRng::seed_from_u64(seed);
        let pool = Pool::in_memory().unwrap();
        let map = pool.bytes("m").unwrap();
        let mut model = BTreeMap::new();
        for number in 0..400_u64 {
            let key = stem_and_end(random);
            if random.random_range(0..4) == 0 {
                map.remove(&key).unwrap();
                model.remove(&key);
            } else {
                // Some are long.
                let value = vec![number as u8; [1, 8, 300][(number % 16) as usize / 7]];
                map.insert(&key, &value).unwrap();
                model.insert(key, value);
            }
            if number % 40 == 0 {
                let from = stem_and_end(random);
                let records = map.range::<Vec<u8>>(from.clone()..).map(Result::unwrap);
                assert!(records.eq(model.range(from..).map(|(k, v)| (k.clone(), v.clone()))));
            }
        }
        let records = map.iter().rev().map(Result::unwrap);
        assert!(records.eq(model.into_iter().rev()));
    }
}
