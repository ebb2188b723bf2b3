//! Links of a LOFT in the file.

use super::layout::{DataHeader, IS_INNER, InnerHeader, LINE, NO_CHILD};
use crate::engines::damage::{Damage, Words};
use std::mem::offset_of;

/// The links of the data nodes.
pub(in crate::engines) struct Links;

/// Adds to `links` where the words are that link to the data nodes below an inner node, from left to right.
fn add_links(file: &Words, inner: u64, links: &mut Vec<u64>) {
    let parts = 1 << (file.get(inner + offset_of!(InnerHeader, mark) as u64) & 0xff);
    let below = std::iter::once(parts);
    for part in below.chain(0..parts).chain([parts + 1]) {
        let at = inner + LINE + part * 8;
        match file.get(at) {
            NO_CHILD => {}
            word if word & IS_INNER != 0 => add_links(file, word & !IS_INNER, links),
            _ => links.push(at),
        }
    }
}

impl Damage for Links {
    fn links(&self, file: &Words) -> Vec<u64> {
        let root = file.get(file.first_root());
        assert!(root & IS_INNER != 0);
        let mut links = Vec::new();
        add_links(file, root & !IS_INNER, &mut links);
        links
    }

    fn key_of(&self, file: &Words, node: u64) -> u64 {
        // The node's lowest key belongs there whether it is there or not.
        file.get(node + offset_of!(DataHeader, low) as u64)
    }
}
