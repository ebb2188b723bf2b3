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
