//! Links of an LB+-Tree in the file, and what only an LB+-Tree can suffer from.

use super::layout::{Block, Header, Slot};
use crate::engines::damage::{Damage, RECORDS, Words, is_damaged, key, load};
use crate::engines::slots;
use crate::{Kind, Pool};
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

/// Where such a leaf is split, its upper half would go to where no search comes by.
#[test]
fn a_leaf_with_keys_of_its_right_neighbours_is_an_error() {
    for add in [1 << 50, 1 << 55, 1 << 62] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("damaged.pool");
        let pool = Pool::create(&path).unwrap();
        let map = pool.map_with::<u64, u64>("m", Kind::LbTree).unwrap();
        load(&map);
        drop(map);
        pool.close().unwrap();
        let file = Words::open(&path);
        let links = Links.links(&file);
        let keys = keys(&file, file.get(links[links.len() / 3]));
        let lowest = keys[0].0;
        for &(key, at) in &keys[keys.len() / 3..] {
            file.set(at, key + add);
        }
        let pool = Pool::open(&path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
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
