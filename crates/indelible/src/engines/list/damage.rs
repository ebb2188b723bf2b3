//! Links of a list in the file.

use super::{KEY, NEXT};
use crate::engines::damage::{Damage, Words};

/// The links of the blocks, which are a chain.
pub(in crate::engines) struct Links;

impl Damage for Links {
    fn opening_follows_links(&self) -> bool {
        true
    }

    fn links(&self, file: &Words) -> Vec<u64> {
        let next_after = |&link: &u64| match file.get(link) {
            0 => None,
            block => Some(block + 8 * NEXT as u64),
        };
        let mut links = Vec::from_iter(std::iter::successors(Some(file.first_root()), next_after));
        // The last one leads nowhere.
        links.pop();
        links
    }

    fn key_of(&self, file: &Words, block: u64) -> u64 {
        file.get(block + 8 * KEY as u64)
    }
}
