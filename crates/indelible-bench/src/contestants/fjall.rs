//! fjall: a log-structured merge tree with a journal.
//!
//! Every write is handed to the system before it returns, which is fjall's default and survives a killed process. (It could
//! be told to keep writes in a buffer of its own; what is left after a kill would then be anybody's guess.)

use super::{Contestant, Place, Survives};
use crate::index::Index;
use anyhow::{Result, ensure};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

/// Blocks that it may keep in memory.
const CACHE_BYTES: u64 = 4 << 30;

const RECORDS: &str = "records";

struct Fjall {
    records: Keyspace,
    database: Database,
    persist: PersistMode,
}

pub(super) fn contestants() -> Vec<Contestant> {
    vec![
        Contestant::database(
            "fjall",
            "fjall 3.1.13: journal to the system's buffers per write (its default); 4 GiB of cache, no compression",
            Survives::Kill,
            |place| create(place, PersistMode::Buffer),
            Some(|place| open(place, PersistMode::Buffer)),
        ),
        Contestant::database(
            "fjall-fsync",
            "fjall 3.1.13: PersistMode::SyncAll after each write; 4 GiB of cache, no compression",
            Survives::PowerCut,
            |place| create(place, PersistMode::SyncAll),
            Some(|place| open(place, PersistMode::SyncAll)),
        ),
    ]
}

fn create(place: &Place, persist: PersistMode) -> Result<Box<dyn Index>> {
    start(database(place)?, persist)
}

fn open(place: &Place, persist: PersistMode) -> Result<Box<dyn Index>> {
    let database = database(place)?;
    let there = database.keyspace_exists(RECORDS);
    ensure!(there, "the database was never created");
    start(database, persist)
}

fn database(place: &Place) -> Result<Database> {
    let path = place.directory.join("fjall");
    let database = Database::builder(path).cache_size(CACHE_BYTES).open()?;
    Ok(database)
}

fn start(database: Database, persist: PersistMode) -> Result<Box<dyn Index>> {
    let records = database.keyspace(RECORDS, KeyspaceCreateOptions::default)?;
    Ok(Box::new(Fjall {
        records,
        database,
        persist,
    }))
}

/// The order of bytes is the order of numbers.
#[inline]
fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

impl Fjall {
    /// The write has been handed to the system already.
    fn persist(&self) {
        if self.persist != PersistMode::Buffer {
            self.database.persist(self.persist).expect("persist");
        }
    }

    fn contains(&self, key: u64) -> bool {
        let present = self.records.contains_key(key.to_be_bytes());
        present.expect("contains_key")
    }
}

impl Index for Fjall {
    fn get(&self, key: u64) -> Option<u64> {
        let value = self.records.get(key.to_be_bytes()).expect("get");
        value.map(|value| number(&value))
    }

    fn insert(&self, key: u64, value: u64) {
        self.records
            .insert(key.to_be_bytes(), value.to_be_bytes())
            .expect("insert");
        self.persist();
    }

    /// Writes are blind: to know whether the key is there takes a lookup first. A remove between the two is undone.
    fn update(&self, key: u64, value: u64) -> bool {
        let present = self.contains(key);
        if present {
            self.insert(key, value);
        }
        present
    }

    /// As for [`update`](Self::update): two at once may both find the key.
    fn remove(&self, key: u64) -> bool {
        let present = self.contains(key);
        if present {
            self.records.remove(key.to_be_bytes()).expect("remove");
            self.persist();
        }
        present
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        for record in self.records.range(from.to_be_bytes()..).take(count) {
            let (key, value) = record.into_inner().expect("record");
            page.push((number(&key), number(&value)));
        }
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        let mut batch = self.database.batch().durability(Some(self.persist));
        for &(key, value) in records {
            batch.insert(&self.records, key.to_be_bytes(), value.to_be_bytes());
        }
        batch.commit().expect("commit");
    }

    /// By ingestion: sorted records become tables of the tree, past the journal.
    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        let mut ingestion = self.records.start_ingestion().expect("ingestion");
        for &(key, value) in records {
            ingestion
                .write(key.to_be_bytes(), value.to_be_bytes())
                .expect("write");
        }
        ingestion.finish().expect("finish");
        true
    }
}
