//! redb: a copy-on-write B+ tree in a file.
//!
//! Its fastest commits ([`Durability::None`]) are undone by a crash of the process: the file keeps the last commit that was
//! [`Durability::Immediate`], which here is the empty table. (Closing makes them durable.) There is nothing between the two.

use super::{Contestant, Place, Survives};
use crate::index::Index;
use anyhow::Result;
use redb::{Builder, Database, Durability, ReadableDatabase, StorageError};
use redb::{ReadOnlyTable, Table, TableDefinition};

/// Pages that it may keep in memory.
const CACHE_BYTES: usize = 4 << 30;

/// Records in a transaction of a bulk load.
const BULK_RECORDS: usize = 1 << 20;

const RECORDS: TableDefinition<'_, u64, u64> = TableDefinition::new("records");

struct Redb {
    database: Database,
    durability: Durability,
}

pub(super) fn contestants() -> Vec<Contestant> {
    vec![
        Contestant::database(
            "redb",
            "redb 4.5.0: Durability::None, which a crash of the process undoes; 4 GiB of cache",
            Survives::Nothing,
            |place| create(place, Durability::None),
            None,
        ),
        Contestant::database(
            "redb-fsync",
            "redb 4.5.0: Durability::Immediate, an fsync per commit; 4 GiB of cache",
            Survives::PowerCut,
            |place| create(place, Durability::Immediate),
            Some(open),
        ),
    ]
}

fn create(place: &Place, durability: Durability) -> Result<Box<dyn Index>> {
    let path = place.directory.join("redb");
    let database = Builder::new().set_cache_size(CACHE_BYTES).create(path)?;
    // Later transactions, lookups above all, find the table.
    let transaction = database.begin_write()?;
    transaction.open_table(RECORDS)?;
    transaction.commit()?;
    Ok(Box::new(Redb {
        database,
        durability,
    }))
}

fn open(place: &Place) -> Result<Box<dyn Index>> {
    let path = place.directory.join("redb");
    let database = Builder::new().set_cache_size(CACHE_BYTES).open(path)?;
    let durability = Durability::Immediate;
    Ok(Box::new(Redb {
        database,
        durability,
    }))
}

impl Redb {
    /// One write transaction. Committed if `work` says that it changed something, and that is returned.
    fn write(
        &self,
        work: impl FnOnce(&mut Table<'_, u64, u64>) -> Result<bool, StorageError>,
    ) -> bool {
        let mut transaction = self.database.begin_write().expect("begin_write");
        transaction
            .set_durability(self.durability)
            .expect("durability");
        let mut table = transaction.open_table(RECORDS).expect("table");
        let changed = work(&mut table).expect("write");
        drop(table);
        if changed {
            transaction.commit().expect("commit");
        } else {
            transaction.abort().expect("abort");
        }
        changed
    }

    /// The table in one read transaction, which ends with it.
    fn read(&self) -> ReadOnlyTable<u64, u64> {
        let transaction = self.database.begin_read().expect("begin_read");
        transaction.open_table(RECORDS).expect("table")
    }
}

impl Index for Redb {
    fn get(&self, key: u64) -> Option<u64> {
        // The table goes last: what `get` returns does not keep the transaction alive, and the page must not outlive it.
        let table = self.read();
        let value = table.get(key).expect("get");
        value.map(|value| value.value())
    }

    fn insert(&self, key: u64, value: u64) {
        self.write(|table| table.insert(key, value).map(|_| true));
    }

    fn update(&self, key: u64, value: u64) -> bool {
        self.write(|table| {
            let Some(mut place) = table.get_mut(key)? else {
                return Ok(false);
            };
            place.insert(value)?;
            Ok(true)
        })
    }

    fn remove(&self, key: u64) -> bool {
        self.write(|table| Ok(table.remove(key)?.is_some()))
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        let table = self.read();
        for record in table.range(from..).expect("range").take(count) {
            let (key, value) = record.expect("record");
            page.push((key.value(), value.value()));
        }
    }

    fn get_batch(&self, keys: &[u64]) -> usize {
        let table = self.read();
        let found = |key: &&u64| table.get(**key).expect("get").is_some();
        keys.iter().filter(found).count()
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        self.write(|table| {
            for &(key, value) in records {
                table.insert(key, value)?;
            }
            Ok(!records.is_empty())
        });
    }

    /// Large transactions in ascending order; how full pages become is redb's choice.
    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        for chunk in records.chunks(BULK_RECORDS) {
            self.insert_batch(chunk);
        }
        true
    }
}
