//! RocksDB: a log-structured merge tree with a write-ahead log.
//!
//! Every write is in the log, and with the system, before it returns; that survives a killed process. A write with `sync` also waits for
//! the medium. Threads that write at once share a write of the log, and a sync of it.

mod store;

pub(crate) use store::{Store, Sync};

use super::{Contestant, Place, Survives};
use crate::index::Index;
use anyhow::{Context, Result};

/// Words in the order of bytes, which is that of numbers.
struct Words(Store);

pub(super) fn contestants() -> Vec<Contestant> {
    vec![
        Contestant::database(
            "rocksdb",
            "RocksDB by rocksdb 0.25.0: log to the system's buffers per write (its default); Bloom filter, 4 GiB of cache, no compression",
            Survives::Kill,
            |place| start(place, Sync::No, true),
            Some(|place| start(place, Sync::No, false)),
        ),
        Contestant::database(
            "rocksdb-durable",
            "RocksDB by rocksdb 0.25.0: sync=true, the log is synced per write; Bloom filter, 4 GiB of cache, no compression",
            Survives::PowerCut,
            |place| start(place, Sync::Yes, true),
            Some(|place| start(place, Sync::Yes, false)),
        ),
    ]
}

fn start(place: &Place, sync: Sync, create: bool) -> Result<Box<dyn Index>> {
    let store = Store::start(&place.directory, sync, create);
    Ok(Box::new(Words(store.context("RocksDB")?)))
}

#[inline]
fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

impl Index for Words {
    fn get(&self, key: u64) -> Option<u64> {
        self.0.get(&key.to_be_bytes()).map(|value| number(&value))
    }

    fn insert(&self, key: u64, value: u64) {
        self.0.put(&key.to_be_bytes(), &value.to_be_bytes());
    }

    /// Writes are blind: to know whether the key is there takes a lookup first. A remove between the two is undone.
    fn update(&self, key: u64, value: u64) -> bool {
        let present = self.0.get(&key.to_be_bytes()).is_some();
        if present {
            self.insert(key, value);
        }
        present
    }

    /// As for [`update`](Self::update): two at once may both find the key.
    fn remove(&self, key: u64) -> bool {
        let key = key.to_be_bytes();
        let present = self.0.get(&key).is_some();
        if present {
            self.0.delete(&key);
        }
        present
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        let look = |key: &[u8], value: &[u8]| page.push((number(key), number(value)));
        self.0.scan(&from.to_be_bytes(), count, look);
    }

    fn get_batch(&self, keys: &[u64]) -> usize {
        let keys: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
        self.0.get_batch(keys.iter()).flatten().count()
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        let bytes = |&(key, value): &(u64, u64)| (key.to_be_bytes(), value.to_be_bytes());
        self.0.put_batch(records.iter().map(bytes));
    }

    /// By ingestion.
    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        self.0.ingest(records).expect("ingestion");
        true
    }
}
