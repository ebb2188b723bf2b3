//! RocksDB: keys and values are byte strings of its own kind. The settings are those of the contestants of words.

use super::{SharedIndex, StringIndex, look_at, number, numbered};
use crate::contestants::{Store, Sync};
use crate::machine::bytes_below;
use anyhow::Result;
use std::path::Path;

/// Records in a batch of a load.
const LOAD_RECORDS: usize = 100_000;

struct Rocks(Store);

/// A write is handed to the system.
pub(super) fn create(directory: &Path) -> Result<Box<dyn StringIndex>> {
    Ok(Box::new(Rocks(Store::start(directory, Sync::No, true)?)))
}

/// A write waits for the medium.
pub(super) fn create_durable(directory: &Path) -> Result<Box<dyn StringIndex>> {
    Ok(Box::new(Rocks(Store::start(directory, Sync::Yes, true)?)))
}

impl StringIndex for Rocks {
    fn insert(&mut self, key: &[u8], value: u64) {
        SharedIndex::insert(self, key, value);
    }

    /// In several batches: one of all records would be in memory as a whole, twice.
    fn load(&mut self, keys: &[Box<[u8]>]) {
        let records: Vec<(&[u8], u64)> = numbered(keys).collect();
        for records in records.chunks(LOAD_RECORDS) {
            self.insert_batch(records);
        }
        self.0.flush();
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        SharedIndex::get(self, key)
    }

    fn get_batch(&self, keys: &[(&[u8], u64)]) -> usize {
        let values = self.0.get_batch(keys.iter().map(|(key, _)| key));
        let right = values
            .zip(keys)
            .filter(|(value, key)| value.as_deref().map(number) == Some(key.1));
        right.count()
    }

    fn scan(&self, from: &[u8], count: usize) -> usize {
        SharedIndex::scan(self, from, count)
    }

    fn bytes(&self, directory: &Path) -> u64 {
        bytes_below(directory)
    }

    fn insert_batch(&mut self, records: &[(&[u8], u64)]) {
        let bytes = |&(key, value): &(_, u64)| (key, value.to_ne_bytes());
        self.0.put_batch(records.iter().map(bytes));
    }

    fn shared(&self) -> Option<&dyn SharedIndex> {
        Some(self)
    }
}

impl SharedIndex for Rocks {
    fn insert(&self, key: &[u8], value: u64) {
        self.0.put(key, &value.to_ne_bytes());
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.get(key).map(|value| number(&value))
    }

    fn scan(&self, from: &[u8], count: usize) -> usize {
        let mut total = 0;
        self.0.scan(from, count, |key, value| {
            total += look_at(key, value.len());
        });
        total
    }
}
