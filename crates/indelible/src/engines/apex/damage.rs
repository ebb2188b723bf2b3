//! Links of an APEX in the file, and what only an APEX can suffer from.

use super::format::is_link;
use super::layout::{DataHeader, InnerHead, Link};
use super::options::ApexOptions;
use crate::Pool;
use crate::engines::damage::{Damage, Words, is_damaged, load};
use std::mem::offset_of;

/// The links of the data nodes.
pub(in crate::engines) struct Links;

/// Adds to `links` where the words are that link to the data nodes below an inner node, from left to right.
fn add_links(file: &Words, inner: u64, links: &mut Vec<u64>) {
    let log_slots = file.get(inner) >> 24;
    let slots = file.get(inner + offset_of!(InnerHead, slots) as u64);
    for at in (0..1 << log_slots).map(|slot| slots + slot * 8) {
        let link = Link(file.get(at));
        match is_link(link.0) {
            true if link.is_inner() => add_links(file, link.offset().get(), links),
            true => links.push(at),
            false => {}
        }
    }
}

impl Damage for Links {
    fn links(&self, file: &Words) -> Vec<u64> {
        let root = Link(file.get(file.first_root()));
        assert!(root.is_inner());
        let mut links = Vec::new();
        add_links(file, root.offset().get(), &mut links);
        links
    }

    fn key_of(&self, file: &Words, node: u64) -> u64 {
        file.get(node + offset_of!(DataHeader, low) as u64)
    }
}

/// Inner nodes are laid out anew over the nodes beneath, whose ranges follow from where the root begins.
#[test]
fn an_inner_node_that_begins_elsewhere_does_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.pool");
    let pool = Pool::create(&path).unwrap();
    let options = ApexOptions::default().max_data_bytes(1024);
    let map = pool.map_with::<u64, u64>("m", options).unwrap();
    let count = 600_000;
    let records = (0..count).map(|i| (i * (u64::MAX / count), i));
    map.bulk_load(records, 0.65).unwrap();
    drop(map);
    pool.close().unwrap();

    let file = Words::open(&path);
    let root = Link(file.get(file.first_root())).offset().get();
    assert!(Links.links(&file).len() > 10_000);
    let shift = file.get(root) >> 16 & 0xff;
    // Most of its slots are beyond all keys; or all borders are elsewhere.
    let elsewhere = [1, (1 << shift) + 1, 1 << shift, 3 << shift];
    for base in [3 << 62, u64::MAX << shift].into_iter().chain(elsewhere) {
        file.set(root + offset_of!(InnerHead, base) as u64, base);
        let pool = Pool::open(&path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        for i in 0..20_000 {
            map.insert(i * 977, i).unwrap();
        }
        for i in 0..20_000 {
            assert_eq!(map.get(i * 977).unwrap(), Some(i));
        }
        assert_eq!(map.check().unwrap().len(), 1);
        drop(map);
        pool.close().unwrap();
    }
}

/// The slots of a node whose link is lost while the map is in use look like slots of the node to their left. If they led there, whoever goes from node to node
/// would come to that node again and again.
#[test]
fn a_link_that_is_lost_in_use_leads_nobody_in_circles() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.pool");
    let pool = Pool::create(&path).unwrap();
    load(&pool.map_with("m", ApexOptions::default()).unwrap());
    pool.close().unwrap();

    let file = Words::open(&path);
    let links = Links.links(&file);
    let at = (links.len() / 2..)
        .find(|&at| links[at + 1] - links[at] < 64)
        .unwrap();
    let [left, lost] = [at, at + 1].map(|at| Links.key_of(&file, file.get(links[at])));
    // The sweep in the background stops before it comes there.
    let first = file.get(links[1]);
    file.set(links[1], 1 << 50);
    let pool = Pool::open(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.check().unwrap().len(), 1);
    map.get(left).unwrap();
    file.set(links[1], first);
    file.set(links[at + 1], 2);
    for _ in 0..2 {
        assert!(is_damaged(map.get(lost)));
        assert!(is_damaged(map.insert(lost, 1)));
    }
    assert_eq!(map.check().unwrap().len(), 1);
    assert!(map.stat().is_err());
    assert!(map.iter().any(|record| record.is_err()));
    map.release_memory();
    assert!(map.get(left).is_ok());
}
