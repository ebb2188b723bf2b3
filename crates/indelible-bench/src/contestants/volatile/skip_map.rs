//! crossbeam-skiplist: a lock-free skip list.

use super::{Contestant, volatile};
use crate::index::Index;
use crossbeam_skiplist::SkipMap;

#[derive(Default)]
struct Skip(SkipMap<u64, u64>);

pub(super) fn contestant() -> Contestant {
    volatile(
        "skiplist",
        "crossbeam-skiplist 0.1.3: SkipMap; an update is a lookup and an insert",
        |_| Ok(Box::<Skip>::default()),
    )
}

impl Index for Skip {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key).map(|entry| *entry.value())
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    /// Values cannot be replaced in place, and `compare_insert` inserts missing keys: two steps. A remove between them is
    /// undone.
    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        let present = self.0.contains_key(&key);
        if present {
            self.0.insert(key, value);
        }
        present
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        self.0.remove(&key).is_some()
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        for entry in self.0.range(from..).take(count) {
            page.push((*entry.key(), *entry.value()));
        }
    }
}
