//! The structures that are compared, behind one trait.

use crossbeam_skiplist::SkipMap;
use indelible::{Durability, Map, MapOptions, Pool, PoolOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

/// An ordered map from `u64` to `u64`, for measuring. Lookups return a number that depends on the answer.
pub trait Contestant: Sync {
    /// Adds a record.
    fn insert(&self, key: u64, value: u64);
    /// The value of a key that is there.
    fn get(&self, key: u64) -> u64;
    /// Sums up to `count` records from `from` on.
    fn scan(&self, from: u64, count: usize) -> u64;
    /// Whether `scan` means anything.
    fn can_scan(&self) -> bool {
        true
    }
    /// Whether there are batch operations.
    fn has_batches(&self) -> bool {
        false
    }
    /// Looks all keys up.
    fn get_batch(&self, keys: &[u64]) -> u64 {
        keys.iter()
            .fold(0, |sum, &key| sum.wrapping_add(self.get(key)))
    }
    /// Adds all records.
    fn insert_batch(&self, records: &[(u64, u64)]) {
        records
            .iter()
            .for_each(|&(key, value)| self.insert(key, value));
    }
    /// Something to say about it at the end.
    fn note(&self) -> Option<String> {
        None
    }
    /// Whether it is ours.
    fn is_ours(&self) -> bool {
        false
    }
}

/// Where our pool lives.
#[derive(Clone, Copy, Debug)]
pub enum Medium {
    /// Anonymous memory.
    Dram,
    /// A file.
    Process,
    /// A file, written with real flushes and fences.
    Pmem,
}

/// Indelible.
pub struct Ours {
    map: Map<u64, u64>,
    file: Option<PathBuf>,
}

impl Ours {
    /// An empty map in a new pool.
    pub fn new(medium: Medium, directory: &Path, leaf_bytes: u32) -> Self {
        let path = directory.join(format!("indelible-bench-{}.pool", std::process::id()));
        let mut options = PoolOptions::new();
        let (pool, file) = match medium {
            Medium::Dram => (options.in_memory(), None),
            Medium::Process => (options.create(&path), Some(path)),
            Medium::Pmem => {
                options
                    .durability(Durability::PowerLoss)
                    .force_power_loss_protocol(true);
                (options.create(&path), Some(path))
            }
        };
        let pool: Pool = pool.expect("a pool to measure");
        let map = pool
            .map_with("bench", MapOptions { leaf_bytes })
            .expect("a map to measure");
        Self { map, file }
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.file.as_ref().map(std::fs::remove_file);
    }
}

impl Contestant for Ours {
    fn insert(&self, key: u64, value: u64) {
        self.map.insert(key, value).expect("insert");
    }

    fn get(&self, key: u64) -> u64 {
        self.map
            .get(key)
            .expect("get")
            .expect("a key that is there")
    }

    fn scan(&self, from: u64, count: usize) -> u64 {
        let range = self.map.range(from..).expect("range");
        range
            .take(count)
            .fold(0, |sum, (key, value)| sum.wrapping_add(key ^ value))
    }

    fn has_batches(&self) -> bool {
        true
    }

    fn get_batch(&self, keys: &[u64]) -> u64 {
        let values = self.map.get_batch(keys).expect("get_batch");
        values.into_iter().fold(0, |sum, value| {
            sum.wrapping_add(value.expect("a key that is there"))
        })
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        self.map.insert_batch(records).expect("insert_batch");
    }

    fn note(&self) -> Option<String> {
        let stat = self.map.stat().ok()?;
        let per_record = |bytes: u64| bytes as f64 / stat.records as f64;
        let (file, dram) = (per_record(stat.file_bytes), per_record(stat.dram_bytes));
        Some(format!(
            "fill {:.2}, {file:.1} bytes of file and {dram:.2} of DRAM per record",
            stat.fill
        ))
    }

    fn is_ours(&self) -> bool {
        true
    }
}

/// The standard library's map behind a lock.
#[derive(Default)]
pub struct StdMap(RwLock<BTreeMap<u64, u64>>);

impl Contestant for StdMap {
    fn insert(&self, key: u64, value: u64) {
        self.0.write().expect("lock").insert(key, value);
    }

    fn get(&self, key: u64) -> u64 {
        self.0.read().expect("lock")[&key]
    }

    fn scan(&self, from: u64, count: usize) -> u64 {
        let map = self.0.read().expect("lock");
        map.range(from..)
            .take(count)
            .fold(0, |sum, (key, value)| sum.wrapping_add(key ^ value))
    }
}

/// crossbeam-skiplist.
#[derive(Default)]
pub struct Skip(SkipMap<u64, u64>);

impl Contestant for Skip {
    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    fn get(&self, key: u64) -> u64 {
        *self.0.get(&key).expect("a key that is there").value()
    }

    fn scan(&self, from: u64, count: usize) -> u64 {
        self.0.range(from..).take(count).fold(0, |sum, entry| {
            sum.wrapping_add(entry.key() ^ entry.value())
        })
    }
}

/// scc's tree.
#[derive(Default)]
pub struct Scc(scc::TreeIndex<u64, u64>);

impl Contestant for Scc {
    fn insert(&self, key: u64, value: u64) {
        self.0.insert_sync(key, value).expect("a new key");
    }

    fn get(&self, key: u64) -> u64 {
        self.0
            .peek_with(&key, |_, value| *value)
            .expect("a key that is there")
    }

    fn scan(&self, from: u64, count: usize) -> u64 {
        let guard = scc::Guard::new();
        self.0
            .range(from.., &guard)
            .take(count)
            .fold(0, |sum, (key, value)| sum.wrapping_add(key ^ value))
    }
}

/// congee's adaptive radix tree.
#[derive(Default)]
pub struct Congee(congee::U64Congee<usize>);

impl Contestant for Congee {
    fn insert(&self, key: u64, value: u64) {
        let guard = congee::epoch::pin();
        self.0.insert(key, value as usize, &guard).expect("memory");
    }

    fn get(&self, key: u64) -> u64 {
        let guard = congee::epoch::pin();
        self.0.get(key, &guard).expect("a key that is there") as u64
    }

    fn scan(&self, from: u64, count: usize) -> u64 {
        let guard = congee::epoch::pin();
        let mut records = [([0; 8], 0); 100];
        let found = self.0.range(from, u64::MAX, &mut records[..count], &guard);
        records[..found].iter().fold(0, |sum, (key, value)| {
            sum.wrapping_add(u64::from_be_bytes(*key) ^ *value as u64)
        })
    }
}

/// ferntree.
pub struct Fern(ferntree::Tree<u64, u64>);

impl Default for Fern {
    fn default() -> Self {
        Self(ferntree::Tree::new())
    }
}

impl Contestant for Fern {
    fn insert(&self, key: u64, value: u64) {
        self.0.insert(key, value);
    }

    fn get(&self, key: u64) -> u64 {
        self.0
            .lookup(&key, |value| *value)
            .expect("a key that is there")
    }

    fn scan(&self, from: u64, count: usize) -> u64 {
        let mut iterator = self.0.raw_iter();
        iterator.seek(&from);
        let (mut sum, mut seen) = (0_u64, 0);
        while let (true, Some((key, value))) = (seen < count, iterator.next()) {
            sum = sum.wrapping_add(key ^ value);
            seen += 1;
        }
        sum
    }
}
