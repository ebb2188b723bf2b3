//! Links of leaves in the file, and what only this engine can suffer from.
//!
//! The test that the engines of words share fills maps of words. Here the same is done with byte strings.

use super::layout::{
    CommitWord, FINGERPRINTS, HEADER_WORDS, LENGTHS_BYTES, Lengths, PLACES, SIBLING, byte_of,
};
use crate::engines::damage::{Words, in_time, is_damaged};
use crate::{BytesMap, Pool};
use std::path::PathBuf;

const LEAF_BYTES: u64 = 1024;
const RECORDS: u64 = 60_000;

fn key(number: u64) -> Vec<u8> {
    format!("https://example.org/{:x}/{number:06}", number / 5_000).into_bytes()
}

fn value(number: u64) -> Vec<u8> {
    vec![number as u8; if number.is_multiple_of(500) { 700 } else { 9 }]
}

/// A closed pool with the maps "m" and "other", which have the same records.
struct Loaded(tempfile::TempDir);

impl Loaded {
    fn new() -> Self {
        let loaded = Self(tempfile::tempdir().unwrap());
        let pool = Pool::create(loaded.path()).unwrap();
        for name in ["m", "other"] {
            let map = pool.bytes(name).unwrap();
            map.bulk_load((0..RECORDS).map(|i| (key(i), value(i))), 0.7)
                .unwrap();
        }
        pool.close().unwrap();
        loaded
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("damaged.pool")
    }

    /// "other" has all its records, and the pool is whole but for "m".
    fn assert_others_are_well(&self, pool: &Pool) {
        let _ = pool.shrink();
        let other = pool.open_bytes("other").unwrap();
        assert_eq!(other.check().unwrap(), [""; 0]);
        let mut number = 0;
        for record in &other {
            assert_eq!(record.unwrap(), (key(number), value(number)));
            number += 1;
        }
        assert_eq!(number, RECORDS);
        assert_eq!(pool.check(), [""; 0]);
    }
}

/// Where the words are that link to the leaves of "m", from left to right.
fn links(file: &Words) -> Vec<u64> {
    let mut links = vec![file.first_root()];
    loop {
        let leaf = file.get(links[links.len() - 1]);
        if leaf == 0 {
            links.pop();
            return links;
        }
        links.push(leaf + 8 * SIBLING as u64);
    }
}

/// Where the records of a leaf begin in the file.
fn records(file: &Words, leaf: u64) -> Vec<u64> {
    let places = std::array::from_fn(|i| file.get(leaf + 8 * (PLACES + i) as u64));
    let slots = CommitWord(file.get(leaf)).slots();
    (0..24)
        .filter(|slot| slots >> slot & 1 != 0)
        .map(|slot| leaf + 8 * u64::from(byte_of(&places, slot)))
        .collect()
}

/// So many bytes from a place that is a multiple of 8 bytes on.
fn bytes(file: &Words, at: u64, count: usize) -> Vec<u8> {
    let words = (0..count.div_ceil(8) as u64).map(|word| file.get(at + 8 * word).to_ne_bytes());
    let mut bytes: Vec<u8> = words.flatten().collect();
    bytes.truncate(count);
    bytes
}

/// A key of a leaf.
fn key_of(file: &Words, leaf: u64) -> Vec<u8> {
    let prefix = CommitWord(file.get(leaf)).prefix();
    let mut key = bytes(file, leaf + 8 * HEADER_WORDS as u64, prefix);
    let record = records(file, leaf)[0];
    let lengths = Lengths::of_word(file.get(record));
    key.extend(&bytes(file, record, LENGTHS_BYTES + lengths.key())[LENGTHS_BYTES..]);
    key
}

/// Inserts behind all records until there is an extent of leaves that was not there, and returns its last block, which is still free.
fn block_taken_since(map: &BytesMap, file: &Words, before: u64) -> u64 {
    for i in 0..1_000_000_u64 {
        map.insert(format!("z{i:08}"), "new").unwrap();
        if let Some(block) = file.new_block(LEAF_BYTES, before) {
            return block;
        }
    }
    panic!("no extent of leaves is taken")
}

#[test]
fn a_link_to_a_leaf_that_was_taken_since_the_open_is_refused() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let links = links(&file);
    assert!(links.len() > 100, "{} links", links.len());
    let at = links[links.len() / 2];
    let leaf = file.get(at);
    file.set(at, 1 << 50);
    let pool = Pool::open(loaded.path()).unwrap();
    let map = pool.open_bytes("m").unwrap();
    assert_eq!(map.check().unwrap().len(), 1, "the sweep stops");
    let block = block_taken_since(&map, &file, file.extents());
    // What the extent held when it was last in use may be anything, also a leaf that fits.
    file.copy(leaf, block, LEAF_BYTES);
    file.set(at, block);
    let middle = key_of(&file, leaf);
    for _ in 0..2 {
        assert!(is_damaged(map.get(&middle)));
        assert!(is_damaged(map.value_len(&middle)));
    }
    assert!(is_damaged(map.insert([&middle, &b"+"[..]].concat(), "1")));
    for i in 0..20_000 {
        map.insert(format!("z{i:08}"), [1; 20]).unwrap();
    }
    for i in 0..20_000 {
        assert_eq!(map.get(format!("z{i:08}")).unwrap(), Some(vec![1; 20]));
    }
    loaded.assert_others_are_well(&pool);
}

#[test]
fn a_blob_that_two_records_refer_to_is_an_error() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let mut references = Vec::new();
    for link in links(&file) {
        for record in records(&file, file.get(link)) {
            let lengths = Lengths::of_word(file.get(record));
            if lengths.value_is_blob() {
                references.push(record + 8 * lengths.words() as u64 - 16);
            }
        }
    }
    assert!(references.len() > 100);
    // Of another record, of another map, of nothing, of a length that no value has.
    let other = file.get(references[60]);
    for (which, offset, length) in [
        (30, other, 700),
        (30, 4096, 700),
        (30, 1 << 50, 700),
        (30, other, 1 << 40),
    ] {
        let at = references[which];
        let before = [file.get(at), file.get(at + 8)];
        file.set(at, offset);
        file.set(at + 8, length);
        let pool = Pool::open(loaded.path()).unwrap();
        let map = pool.open_bytes("m").unwrap();
        assert!(!map.check().unwrap().is_empty());
        // An answer or an error. Nothing says whose a blob is: the first record that is reached has it, and the other one is an error.
        let is_other = |number: &u64| {
            let found = map.get(key(*number));
            found.is_ok_and(|found| found.as_ref() != Some(&value(*number)))
        };
        assert!((0..RECORDS).filter(is_other).count() <= 1);
        drop(map);
        loaded.assert_others_are_well(&pool);
        drop(pool);
        file.set(at, before[0]);
        file.set(at + 8, before[1]);
    }
}

/// Where such a leaf is divided, its upper half would go to where no search comes by.
#[test]
fn a_leaf_with_keys_that_belong_elsewhere_is_an_error() {
    for byte in [0, b'~'] {
        let loaded = Loaded::new();
        let file = Words::open(&loaded.path());
        let links = links(&file);
        let leaf = file.get(links[links.len() / 3]);
        let low = key_of(&file, leaf);
        for record in records(&file, leaf) {
            let mut word = file.get(record).to_ne_bytes();
            word[LENGTHS_BYTES] = byte;
            file.set(record, u64::from_ne_bytes(word));
        }
        let pool = Pool::open(loaded.path()).unwrap();
        let map = pool.open_bytes("m").unwrap();
        assert!(!map.check().unwrap().is_empty());
        let mut refused = 0;
        for i in 0..200 {
            let key = [&low, format!("{i}").as_bytes()].concat();
            refused += u32::from(is_damaged(map.insert(key, [1; 60])));
        }
        assert!(refused > 100, "{refused}");
        // In order as far as they go, and an error where the leaf is.
        let mut range = map.iter();
        let (mut last, mut is_error) = (None, false);
        for record in range.by_ref() {
            match record {
                Ok((key, _)) => {
                    assert!(Some(&key) > last.as_ref());
                    last = Some(key);
                }
                Err(error) => is_error |= is_damaged::<()>(Err(error)),
            }
        }
        assert!(is_error);
        let (mut last, mut is_error) = (None, false);
        for record in map.iter().rev() {
            match record {
                Ok((key, _)) => {
                    assert!(last.is_none_or(|last| key < last));
                    last = Some(key);
                }
                Err(error) => is_error |= is_damaged::<()>(Err(error)),
            }
        }
        assert!(is_error);
    }
}

/// What a range reads around a leaf, upwards and downwards: the numbers of the records that it returned, which are sound ones, and how many errors.
fn read_around(map: &BytesMap, number: u64) -> [(Vec<u64>, usize); 2] {
    [true, false].map(|up| {
        let mut range = map.range(key(number - 200)..=key(number + 200));
        let (mut numbers, mut errors) = (Vec::new(), 0);
        while let Some(record) = if up { range.next() } else { range.next_back() } {
            let Ok((found, bytes)) = record else {
                errors += 1;
                continue;
            };
            let digits = std::str::from_utf8(&found[found.len() - 6..]).unwrap();
            let number = digits.parse().unwrap();
            assert_eq!((found, bytes), (key(number), value(number)));
            numbers.push(number);
        }
        (numbers, errors)
    })
}

/// A leaf without long values, and the number of a record in it.
fn leaf_of_short_records(file: &Words) -> (u64, u64) {
    let leaves = links(file).into_iter().map(|link| file.get(link));
    let is_short = |leaf: &u64| {
        let mut records = records(file, *leaf).into_iter();
        records.all(|record| Lengths::of_word(file.get(record)).is_short())
    };
    let leaf = leaves.skip(20).find(is_short).unwrap();
    let key = key_of(file, leaf);
    let digits = std::str::from_utf8(&key[key.len() - 6..]).unwrap();
    (leaf, digits.parse().unwrap())
}

/// The range before has kept the order of the leaf, so no record of it is looked at before it is handed out.
#[test]
fn a_record_that_is_damaged_after_a_range_has_read_it_is_an_error() {
    const CHANGES: [(&str, u64); 5] = [
        ("no mark", 1 << 31),
        ("a long key", 1 << 24),
        ("a long value", 1 << 25),
        ("a key as long as lengths can tell", 0xfff),
        ("a value as long as lengths can tell", 0xfff << 12),
    ];
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let (leaf, number) = leaf_of_short_records(&file);
    let pool = Pool::open(loaded.path()).unwrap();
    let map = pool.open_bytes("m").unwrap();
    let all: Vec<u64> = (number - 200..=number + 200).collect();
    let sound = [all.clone(), all.into_iter().rev().collect()];
    assert_eq!(
        read_around(&map, number),
        sound.clone().map(|numbers| (numbers, 0))
    );
    for record in records(&file, leaf) {
        for (what, bits) in CHANGES {
            let word = file.get(record);
            let lengths = if bits == 1 << 31 {
                word & !bits
            } else {
                word | bits
            };
            file.set(record, lengths);
            for ((numbers, errors), sound) in read_around(&map, number).iter().zip(&sound) {
                assert_eq!(*errors, 1, "{what}");
                // All records up to the error, and none behind.
                assert!(sound.starts_with(numbers), "{what}");
            }
            file.set(record, word);
        }
    }
    assert_eq!(read_around(&map, number), sound.map(|numbers| (numbers, 0)));
}

/// Such a leaf has no order that could be kept: a range that knows one copies only up to the end of the last record.
#[test]
fn a_record_that_reaches_over_others_is_the_same_for_each_range() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let (leaf, number) = leaf_of_short_records(&file);
    let records = records(&file, leaf);
    for bytes in [8_u64, 64, 300, 600] {
        let word = file.get(records[0]);
        file.set(records[0], word + (bytes << 12));
        let pool = Pool::open(loaded.path()).unwrap();
        let map = pool.open_bytes("m").unwrap();
        let read = |_| {
            let record = map.range(key(number)..).next().unwrap();
            record.map_err(|error| error.to_string())
        };
        let [first, second, third] = [0, 1, 2].map(read);
        assert!(
            first == second && second == third,
            "{bytes} bytes: {first:?}, {second:?}"
        );
        drop(map);
        drop(pool);
        file.set(records[0], word);
    }
}

/// A structure change could write such a leaf nowhere.
#[test]
fn a_leaf_whose_records_share_bytes_or_are_too_long_is_an_error() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let (leaf, number) = leaf_of_short_records(&file);
    let records = records(&file, leaf);
    let words: Vec<u64> = records.iter().map(|&at| file.get(at)).collect();
    let commit_word = file.get(leaf);
    // Values longer by so many bytes, from the first records on; and a low key that nearly fills the leaf.
    let changes = [(600, 1), (600, 4), (300, 4), (120, 8)];
    let longer = changes.map(|(bytes, count)| {
        let change = records.iter().zip(&words).take(count);
        let change = change.map(|(&at, &word)| (at, word + (bytes << 12)));
        change.collect::<Vec<_>>()
    });
    let low_bytes = CommitWord::new(0, 0, 511, false).0 ^ CommitWord::new(0, 0, 0, false).0;
    for change in longer
        .into_iter()
        .chain([vec![(leaf, commit_word | low_bytes)]])
    {
        change.iter().for_each(|&(at, word)| file.set(at, word));
        let pool = Pool::open(loaded.path()).unwrap();
        let map = pool.open_bytes("m").unwrap();
        assert!(is_damaged(map.get(key(number))));
        assert!(is_damaged(map.insert(key(number), [1; 60])));
        assert!(is_damaged(pool.shrink()));
        assert!(!map.check().unwrap().is_empty());
        drop(map);
        loaded.assert_others_are_well(&pool);
        drop(pool);
        records
            .iter()
            .zip(&words)
            .for_each(|(&at, &word)| file.set(at, word));
        file.set(leaf, commit_word);
    }
}

/// What a signpost says is compared with the link to the same leaf. Here both say what lies outside the file.
#[test]
fn a_signpost_that_leads_out_of_the_file_is_an_error_for_batches_too() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let links = links(&file);
    let directory = file.get(file.first_root() + 8);
    let signposts = records(&file, directory);
    let record = signposts[signposts.len() / 2];
    let value = record + 8 * Lengths::of_word(file.get(record)).words() as u64 - 8;
    let leaf = file.get(value);
    let link = links.iter().find(|&&at| file.get(at) == leaf);
    let behind = key_of(&file, leaf);
    file.set(value, 1 << 50);
    file.set(*link.unwrap(), 1 << 50);
    let pool = Pool::open(loaded.path()).unwrap();
    let map = pool.open_bytes("m").unwrap();
    for number in (0..RECORDS).step_by(100) {
        let _ = map.get_batch(&[key(number), behind.clone()]);
    }
    assert!(is_damaged(map.get_batch(&[behind.clone(), key(0)])));
    assert!(is_damaged(map.get(&behind)));
    drop(map);
    loaded.assert_others_are_well(&pool);
}

/// Gives all keys of the leaf that a link leads to other fingerprints than they have.
fn change_fingerprints(file: &Words, link: u64) {
    let fingerprints = file.get(link) + 8 * FINGERPRINTS as u64;
    for word in (0..3).map(|word| fingerprints + 8 * word) {
        file.set(word, file.get(word) ^ u64::from_ne_bytes([1; 8]));
    }
}

/// Ranges read such keys, and lookups do not find them.
#[test]
fn a_key_with_a_wrong_fingerprint_at_an_end_is_an_error_for_pop() {
    let loaded = Loaded::new();
    let file = Words::open(&loaded.path());
    let links = links(&file);
    change_fingerprints(&file, links[0]);
    change_fingerprints(&file, links[links.len() - 1]);
    let pool = Pool::open(loaded.path()).unwrap();
    let map = pool.open_bytes("m").unwrap();
    in_time(move || {
        assert!(is_damaged(map.pop_first()));
        assert!(is_damaged(map.pop_last()));
        assert_eq!(map.len().unwrap(), RECORDS);
    });
    loaded.assert_others_are_well(&pool);
}

#[test]
fn a_key_with_a_wrong_fingerprint_at_an_end_is_an_error_for_pop_of_a_typed_map() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.typed::<u32, String>("m").unwrap();
    map.extend((0..1000).map(|i| (i, format!("{i}")))).unwrap();
    drop(map);
    pool.close().unwrap();
    let file = Words::open(&path);
    let links = links(&file);
    change_fingerprints(&file, links[0]);
    change_fingerprints(&file, links[links.len() - 1]);
    let pool = Pool::open(&path).unwrap();
    let map = pool.open_typed::<u32, String>("m").unwrap();
    in_time(move || {
        assert!(is_damaged(map.pop_first()));
        assert!(is_damaged(map.pop_last()));
        assert_eq!(map.len().unwrap(), 1000);
    });
}
