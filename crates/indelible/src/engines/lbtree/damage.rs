//! Links of an LB+-Tree in the file, and what only an LB+-Tree can suffer from.

use super::layout::{Block, Header, Slot, fingerprint};
use crate::engines::damage::{Damage, RECORDS, Words, in_time, is_damaged, key, load};
use crate::engines::slots;
use crate::{Kind, Map, Pool};
use std::mem::offset_of;

/// The links of the leaves, of one block each.
pub(in crate::engines) struct Links;

fn header(file: &Words, leaf: u64) -> Header {
    Header::from_words([file.get(leaf), file.get(leaf + 8)])
}

/// The keys of a leaf, and where they are.
fn keys(file: &Words, leaf: u64) -> Vec<(u64, u64)> {
    let records = leaf + offset_of!(Block, slots) as u64;
    let mut keys: Vec<(u64, u64)> = slots(header(file, leaf).bitmap())
        .map(|slot| records + (slot * size_of::<Slot>()) as u64)
        .map(|at| (file.get(at), at))
        .collect();
    keys.sort_unstable();
    keys
}

impl Damage for Links {
    fn links(&self, file: &Words) -> Vec<u64> {
        let mut links = vec![file.get(file.first_root())];
        loop {
            let leaf = file.get(links[links.len() - 1]);
            if leaf == 0 {
                links.pop();
                return links;
            }
            let siblings = leaf + offset_of!(Block, tail) as u64;
            links.push(siblings + header(file, leaf).alt() as u64 * 8);
        }
    }

    fn key_of(&self, file: &Words, node: u64) -> u64 {
        keys(file, node).pop().unwrap().0
    }
}

/// A loaded map in a pool whose file `damage` has changed while it was closed.
fn damaged(damage: impl FnOnce(&Words)) -> Map<u64, u64> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.pool");
    let pool = Pool::create(&path).unwrap();
    let map = pool.map_with::<u64, u64>("m", Kind::LbTree).unwrap();
    load(&map);
    drop(map);
    pool.close().unwrap();
    damage(&Words::open(&path));
    Pool::open(&path).unwrap().open_map("m").unwrap()
}

/// The lowest key would become the separator between the halves of the leaf, and the bottom node would have it twice.
#[test]
fn a_leaf_with_one_key_many_times_is_not_split() {
    let map = damaged(|file| {
        let first = file.get(Links.links(file)[0]);
        for (_, at) in keys(file, first) {
            file.set(at, 0);
        }
    });
    assert!((1..20).any(|i| is_damaged(map.insert(i, i))));
    for i in 20..100 {
        assert_eq!(map.get(key(i)).unwrap(), Some(i), "in a leaf that is whole");
    }
    assert!(map.iter().any(|record| record.is_err()) || map.iter().count() as u64 > RECORDS / 2);
}

/// Lookups would pass the leaf that has the records.
#[test]
fn a_signpost_with_a_wrong_key_hides_no_record() {
    let mut hidden = Vec::new();
    let map = damaged(|file| {
        let root = file.get(file.first_root());
        let links = Links.links(file);
        let directory = keys(file, file.get(root + 8));
        // One whose fingerprint the wrong key does not have: of two signposts, one at least.
        let wrong = directory[1..].iter().find_map(|&(low, at)| {
            let to = links
                .iter()
                .position(|&link| file.get(link) == file.get(at + 8))?;
            let before = keys(file, file.get(links[to.checked_sub(1)?]));
            let upper = &before[before.len() / 2..];
            (fingerprint(upper[0].0) != fingerprint(low)).then(|| (at, upper.to_vec()))
        });
        let (at, upper) = wrong.unwrap();
        hidden = upper.iter().map(|&(key, _)| key).collect();
        file.set(at, hidden[0]);
    });
    for key in hidden {
        assert!(is_damaged(map.get(key)), "{key:#x}");
    }
}

/// Where such a leaf is split, its upper half would go to where no search comes by.
#[test]
fn a_leaf_with_keys_of_its_right_neighbours_is_an_error() {
    for add in [1 << 50, 1 << 55, 1 << 62] {
        let mut lowest = 0;
        let map = damaged(|file| {
            let links = Links.links(file);
            let keys = keys(file, file.get(links[links.len() / 3]));
            lowest = keys[0].0;
            for &(key, at) in &keys[keys.len() / 3..] {
                file.set(at, key + add);
            }
        });
        for i in 0..200 {
            assert!(is_damaged(map.insert(lowest + i * 3, i)));
        }
        assert_eq!(map.check().unwrap().len(), 1);
        for i in 0..400 {
            for start in [
                lowest + i,
                key(i * 500),
                lowest + add + i * 50,
                key(RECORDS / 3 - 100 + i),
            ] {
                let mut last = None;
                let mut range = map.range(start..).unwrap();
                for (key, _) in range.by_ref().take(500).map_while(Result::ok) {
                    assert!(Some(key) > last, "{add:#x}: {key:#x} after {last:x?}");
                    last = Some(key);
                }
            }
        }
    }
}

#[test]
fn a_key_with_a_wrong_fingerprint_at_an_end_is_an_error_for_pop() {
    let map = damaged(|file| {
        let links = Links.links(file);
        for link in [links[0], links[links.len() - 1]] {
            let leaf = file.get(link);
            file.set(leaf, file.get(leaf) ^ 0x0101_0101_0101_0000);
            file.set(leaf + 8, file.get(leaf + 8) ^ 0x0101_0101_0101_0101);
        }
    });
    let records = map.len().unwrap();
    in_time({
        let map = map.clone();
        move || {
            assert!(is_damaged(map.pop_first()));
            assert!(is_damaged(map.pop_last()));
        }
    });
    assert_eq!(map.len().unwrap(), records);
}
