//! congee: an adaptive radix tree with optimistic lock coupling.

use super::{Contestant, volatile};
use crate::index::Index;
use congee::epoch;
use std::cell::RefCell;

// Keys and values are `usize` to it.
const _: () = assert!(usize::BITS == u64::BITS);

#[derive(Default)]
struct Congee(congee::Congee<usize, usize>);

pub(super) fn contestant() -> Contestant {
    volatile(
        "congee",
        "congee 0.4.1: Congee<usize, usize>, a guard per operation; scans are copied to a buffer of the thread",
        |_| Ok(Box::<Congee>::default()),
    )
}

thread_local! {
    /// Where `range` puts what it finds; as long as the longest scan so far.
    static FOUND: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) };
}

impl Index for Congee {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        let guard = epoch::pin();
        let value = self.0.get(&(key as usize), &guard);
        value.map(|value| value as u64)
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        let guard = epoch::pin();
        let before = self.0.insert(key as usize, value as usize, &guard);
        before.expect("memory");
    }

    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        let guard = epoch::pin();
        let replace = |_| Some(value as usize);
        let before = self.0.compute_if_present(&(key as usize), replace, &guard);
        before.is_some()
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        let guard = epoch::pin();
        self.0.remove(&(key as usize), &guard).is_some()
    }

    /// `range` excludes its end, so no range contains the greatest key: it is looked up if there is room for it.
    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        let guard = epoch::pin();
        let before = page.len();
        FOUND.with_borrow_mut(|found| {
            if found.len() < count {
                found.resize(count, (0, 0));
            }
            let found = &mut found[..count];
            let records = self.0.range(&(from as usize), &usize::MAX, found, &guard);
            let found = found[..records].iter();
            page.extend(found.map(|&(key, value)| (key as u64, value as u64)));
        });
        if page.len() - before < count
            && let Some(value) = self.0.get(&usize::MAX, &guard)
        {
            page.push((u64::MAX, value as u64));
        }
    }
}
