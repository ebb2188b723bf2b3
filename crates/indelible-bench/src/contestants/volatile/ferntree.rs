//! ferntree: a B+ tree with optimistic lock coupling.

use super::{Contestant, volatile};
use crate::index::Index;
use ferntree::Tree;

struct Fern(Tree<u64, u64>);

pub(super) fn contestant() -> Contestant {
    volatile(
        "ferntree",
        "ferntree 0.7.0: Tree, lookup_optimistic, scans by raw_iter",
        |_| Ok(Box::new(Fern(Tree::new()))),
    )
}

impl Index for Fern {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.lookup_optimistic(&key, |value| *value)
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    /// `seek_exact` leaves the leaf locked, and `insert` finds it so: one step.
    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        let mut iterator = self.0.raw_iter_mut();
        let present = iterator.seek_exact(&key);
        if present {
            iterator.insert(key, value);
        }
        present
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        self.0.remove(&key).is_some()
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        let mut iterator = self.0.raw_iter();
        iterator.seek(&from);
        for _ in 0..count {
            let Some((&key, &value)) = iterator.next() else {
                break;
            };
            page.push((key, value));
        }
    }
}
