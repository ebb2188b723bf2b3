//! scc's tree: a B+ tree whose readers take no locks.

use super::{Contestant, volatile};
use crate::index::Index;
use scc::{Guard, TreeIndex};

#[derive(Default)]
struct Scc(TreeIndex<u64, u64>);

pub(super) fn contestant() -> Contestant {
    volatile(
        "scc",
        "scc 3.8.8: TreeIndex, peek_with and upsert_sync; an update is a lookup and an upsert",
        |_| Ok(Box::<Scc>::default()),
    )
}

impl Index for Scc {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.0.peek_with(&key, |_, value| *value)
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        self.0.upsert_sync(key, value);
    }

    /// Values cannot be replaced in place: two steps. A remove between them is undone.
    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        let present = self.0.contains(&key);
        if present {
            self.0.upsert_sync(key, value);
        }
        present
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        self.0.remove_sync(&key)
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        let guard = Guard::new();
        for (&key, &value) in self.0.range(from.., &guard).take(count) {
            page.push((key, value));
        }
    }
}
