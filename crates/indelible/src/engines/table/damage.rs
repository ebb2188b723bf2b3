//! Links of a table in the file.

use super::{Block, Slot};
use crate::engines::damage::{Damage, Words};
use std::mem::offset_of;

/// The links of the blocks, which are a chain.
pub(in crate::engines) struct Links;

impl Damage for Links {
    fn opening_follows_links(&self) -> bool {
        true
    }

    fn links(&self, file: &Words) -> Vec<u64> {
        let mut links = vec![file.first_root()];
        loop {
            let block = file.get(links[links.len() - 1]);
            if block == 0 {
                links.pop();
                return links;
            }
            links.push(block + offset_of!(Block, next) as u64);
        }
    }

    fn key_of(&self, file: &Words, node: u64) -> u64 {
        let slot = u64::from(file.get(node).trailing_zeros());
        let slots = node + offset_of!(Block, slots) as u64;
        file.get(slots + slot * size_of::<Slot>() as u64)
    }
}
