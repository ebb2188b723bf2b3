//! One contract for all contestants, compared with the standard library's map.

use super::{StringIndex, all, look_at};
use std::collections::BTreeMap;

/// Not empty and below 500 bytes, which is what all contestants take: with common beginnings, and with bytes whose order differs if they are signed.
fn keys(count: u64) -> Vec<Box<[u8]>> {
    let key = |number: u64| {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut key = vec![b'k'; (number % 7) as usize * 9];
        key.extend_from_slice(&mixed.to_be_bytes()[..4]);
        key.extend_from_slice(&number.to_le_bytes());
        key.into()
    };
    (0..count).map(key).collect()
}

fn compare(name: &str, index: &dyn StringIndex, model: &BTreeMap<&[u8], u64>) {
    let records: Vec<(&[u8], u64)> = model.iter().map(|(&key, &value)| (key, value)).collect();
    for &(key, value) in &records {
        assert_eq!(index.get(key), Some(value), "{name}");
    }
    let mut asked = records.clone();
    asked.push((b"nobody", 1));
    asked[0].1 += 1;
    assert_eq!(index.get_batch(&asked), asked.len() - 2, "{name}");
    for from in [0, 1, 17, records.len() - 3] {
        let looked = |&(key, value): &(&[u8], u64)| look_at(key, size_of_val(&value));
        let expected: usize = records[from..].iter().take(100).map(looked).sum();
        assert_eq!(index.scan(records[from].0, 100), expected, "{name}: {from}");
    }
}

#[test]
fn all_hold_what_they_are_given() {
    let keys = keys(1200);
    let (loaded, more) = keys.split_at(1000);
    let (singles, batch) = more.split_at(50);
    for contestant in all() {
        let name = contestant.name;
        let directory = tempfile::tempdir().expect("a directory");
        let mut index = (contestant.create)(directory.path()).expect("an index");
        index.load(loaded);
        let mut model: BTreeMap<&[u8], u64> = super::numbered(loaded).collect();
        compare(name, &*index, &model);
        for key in singles.iter().chain(&loaded[..20]) {
            index.insert(key, 7);
            model.insert(key, 7);
        }
        let batch = batch.iter().chain(&loaded[10..30]);
        let batch: Vec<(&[u8], u64)> = batch.map(|key| (&**key, 9)).collect();
        index.insert_batch(&batch);
        model.extend(batch);
        compare(name, &*index, &model);
        assert_eq!(index.get(b"nobody"), None, "{name}");
    }
}
