//! An index that does nothing: what it reaches is what the bench itself costs.

use super::{Contestant, Survives};
use crate::index::Index;
use crate::workload::value_of;
use std::hint::black_box;

/// Forgets everything, finds everything.
struct Nothing;

pub(super) fn contestant() -> Contestant {
    Contestant {
        name: "nothing".into(),
        about: "does nothing and answers yes to everything: the bench's own overhead".into(),
        survives: Survives::Nothing,
        map: None,
        kernel: None,
        points: None,
        has_batches: true,
        create: |_| Ok(Box::new(Nothing)),
        open: None,
    }
}

// `black_box` keeps arguments and answers from being optimised away together with the loop that asks.
impl Index for Nothing {
    fn get(&self, key: u64) -> Option<u64> {
        // The value that a key is loaded with, so that the bench finds nothing lost.
        Some(black_box(value_of(key)))
    }

    fn insert(&self, key: u64, value: u64) {
        black_box((key, value));
    }

    fn update(&self, key: u64, value: u64) -> bool {
        black_box((key, value));
        true
    }

    fn remove(&self, key: u64) -> bool {
        black_box(key);
        true
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        page.resize(page.len() + black_box(count), (black_box(from), 0));
    }

    fn get_batch(&self, keys: &[u64]) -> usize {
        black_box(keys).len()
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        black_box(records);
    }

    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        black_box(records);
        true
    }
}
