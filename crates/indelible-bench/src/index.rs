//! What a contestant can do.

use crate::data::points::Point;
use crate::execute::{self, Meter, Sampler};
use crate::outcome::Statistics;
use crate::workload::Script;

/// A map from `u64` to `u64`, as every contestant is seen by the bench: ordered by key, or, if the contestant is spatial, of points that
/// the keys stand for ([`crate::data::points`]). Spatial contestants have no scans, and load records in any order. All methods may be called by many
/// threads at once. A contestant that fails panics: its job ends, and the others go on.
pub trait Index: Send + Sync {
    /// The value of a key.
    fn get(&self, key: u64) -> Option<u64>;
    /// Adds a record, or replaces the value of one.
    fn insert(&self, key: u64, value: u64);
    /// Replaces the value of a key that is there; false if it is not.
    fn update(&self, key: u64, value: u64) -> bool;
    /// Removes a key; false if it is not there.
    fn remove(&self, key: u64) -> bool;
    /// Appends up to `count` records to `page`, from the first key that is not less than `from` on, in order: as PiBench has it,
    /// a scan is done when its records are in an array.
    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>);

    /// Looks all keys up and returns how many are there. One at a time unless the contestant has better.
    fn get_batch(&self, keys: &[u64]) -> usize {
        keys.iter().filter(|&&key| self.get(key).is_some()).count()
    }
    /// Adds all records: in one transaction where there are transactions, one at a time where there is nothing better.
    fn insert_batch(&self, records: &[(u64, u64)]) {
        records
            .iter()
            .for_each(|&(key, value)| self.insert(key, value));
    }
    /// Appends the values of the points in a window, edges included, to `page`, in any order. Spatial contestants only.
    fn window(&self, _low: Point, _high: Point, _page: &mut Vec<u64>) {
        unimplemented!("a map of keys has no windows")
    }
    /// Appends the values of the `count` points nearest to `point` to `page`, the nearest first. Spatial contestants only.
    fn nearest(&self, _point: Point, _count: usize, _page: &mut Vec<u64>) {
        unimplemented!("a map of keys has no distances")
    }
    /// Fills the empty map with sorted records, its nodes as full as `fill` says. False if it cannot.
    fn bulk_load(&self, _records: &[(u64, u64)], _fill: f64) -> bool {
        false
    }
    /// What it is made of; O(records). None if it cannot tell.
    fn statistics(&self) -> Option<Statistics> {
        None
    }
    /// Walks through a script, in a loop that is compiled for this very contestant: an operation costs what it costs a
    /// program that uses it. Leave it as it is.
    fn run(&self, script: &Script, meter: &mut Meter) {
        execute::run(self, script, meter);
    }
    /// The same with a look at the clock before and after some of the steps. Leave it as it is.
    fn run_timed(&self, script: &Script, meter: &mut Meter, sampler: &mut Sampler) {
        execute::run_timed(self, script, meter, sampler);
    }
}
