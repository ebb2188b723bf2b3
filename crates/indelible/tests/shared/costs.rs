//! What tests of the cost of operations share.

#![allow(dead_code, reason = "no test needs all of it")]

use indelible::pmem::count::{self, Counts};
use indelible::{Kind, Map, MapOptions, Pool};

pub fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// What a change costs that writes one line.
pub fn one_line() -> Counts {
    let mut one = Counts::default();
    (one.lines_flushed, one.fences, one.blocks_written) = (1, 1, 1);
    one
}

pub fn cost<T>(work: impl FnOnce() -> T) -> Counts {
    let before = count::here();
    work();
    count::here() - before
}

/// Lines flushed and fences, of each of so many operations on average.
pub fn average(sum: Counts, count: u64) -> (f64, f64) {
    let count = count as f64;
    (sum.lines_flushed as f64 / count, sum.fences as f64 / count)
}

/// A map in memory.
pub fn new_map(options: impl Into<MapOptions>) -> Map<u64, u64> {
    Pool::in_memory().unwrap().map_with("m", options).unwrap()
}

/// A map of 200,000 records, bulk loaded.
pub fn loaded(kind: Kind, fill: f64) -> Map<u64, u64> {
    let map = new_map(kind);
    let mut keys: Vec<u64> = (0..200_000).map(mix).collect();
    keys.sort_unstable();
    map.bulk_load(keys.iter().map(|&key| (key, key)), fill)
        .unwrap();
    map
}
