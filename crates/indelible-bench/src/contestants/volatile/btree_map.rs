//! The standard library's map behind the standard library's lock.

use super::{Contestant, volatile};
use crate::index::Index;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Default)]
struct StdMap(RwLock<BTreeMap<u64, u64>>);

pub(super) fn contestant() -> Contestant {
    volatile(
        "btreemap",
        "std::collections::BTreeMap behind a std::sync::RwLock",
        |_| Ok(Box::<StdMap>::default()),
    )
}

impl StdMap {
    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, u64>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, u64>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index for StdMap {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.read().get(&key).copied()
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        self.write().insert(key, value);
    }

    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        let mut map = self.write();
        let place = map.get_mut(&key);
        place.map(|place| *place = value).is_some()
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        self.write().remove(&key).is_some()
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        for (&key, &value) in self.read().range(from..).take(count) {
            page.push((key, value));
        }
    }

    /// Its nodes are always full after this: `BTreeMap` offers no choice.
    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        *self.write() = records.iter().copied().collect();
        true
    }
}
