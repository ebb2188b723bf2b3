//! SQLite: a B-tree in a file, with a write-ahead log, behind SQL.
//!
//! A key is a rowid (`INTEGER PRIMARY KEY`), the fastest key that SQLite has: rowids are compared as integers, those of a table `WITHOUT
//! ROWID` as records. They are signed, so the top bit of a key is flipped, which keeps the order.
//!
//! Statements are compiled once for each connection, and each thread has a connection of its own ([`Connections`]). The pages of a database
//! whose log is handed to the system at each commit survive a killed process; SQLite applies the log when the file is opened.

mod connections;

pub(crate) use connections::{Connections, Synchronous};

use super::{Contestant, Place, Survives};
use crate::index::Index;
use anyhow::Result;
use rusqlite::{Connection, OptionalExtension};

/// Records in a transaction of a bulk load.
const BULK_RECORDS: usize = 1 << 20;

const SCHEMA: &str = "CREATE TABLE records (k INTEGER PRIMARY KEY, v INTEGER NOT NULL)";
const GET: &str = "SELECT v FROM records WHERE k = ?1";
const PUT: &str = "REPLACE INTO records (k, v) VALUES (?1, ?2)";
const UPDATE: &str = "UPDATE records SET v = ?2 WHERE k = ?1";
const REMOVE: &str = "DELETE FROM records WHERE k = ?1";
const SCAN: &str = "SELECT k, v FROM records WHERE k >= ?1 ORDER BY k LIMIT ?2";

struct Sqlite(Connections);

pub(super) fn contestants() -> Vec<Contestant> {
    vec![
        Contestant::database(
            "sqlite",
            "SQLite by rusqlite 0.43.0: WAL, synchronous=NORMAL, commits go to the system's buffers; 2 GiB mapped, checkpoints after 10,000 pages",
            Survives::Kill,
            |place| create(place, Synchronous::Normal),
            Some(|place| open(place, Synchronous::Normal)),
        ),
        Contestant::database(
            "sqlite-durable",
            "SQLite by rusqlite 0.43.0: WAL, synchronous=FULL, the log is synced per commit; 2 GiB mapped, checkpoints after 10,000 pages",
            Survives::PowerCut,
            |place| create(place, Synchronous::Full),
            Some(|place| open(place, Synchronous::Full)),
        ),
    ]
}

fn create(place: &Place, synchronous: Synchronous) -> Result<Box<dyn Index>> {
    let path = place.directory.join("sqlite");
    let connections = Connections::create(&path, synchronous, SCHEMA)?;
    Ok(Box::new(Sqlite(connections)))
}

fn open(place: &Place, synchronous: Synchronous) -> Result<Box<dyn Index>> {
    let path = place.directory.join("sqlite");
    Ok(Box::new(Sqlite(Connections::open(&path, synchronous)?)))
}

/// A rowid in the place that the key has among keys.
#[inline]
fn rowid(key: u64) -> i64 {
    (key ^ 1 << 63).cast_signed()
}

#[inline]
fn key(rowid: i64) -> u64 {
    rowid.cast_unsigned() ^ 1 << 63
}

fn value(connection: &Connection, key: u64) -> rusqlite::Result<Option<u64>> {
    let mut get = connection.prepare_cached(GET)?;
    let value = get.query_row((rowid(key),), |row| row.get(0)).optional()?;
    Ok(value.map(i64::cast_unsigned))
}

impl Index for Sqlite {
    fn get(&self, key: u64) -> Option<u64> {
        value(&self.0.get(), key).expect("get")
    }

    fn insert(&self, key: u64, value: u64) {
        let record = (rowid(key), value.cast_signed());
        self.0
            .write(|connection| connection.prepare_cached(PUT)?.execute(record));
    }

    fn update(&self, key: u64, value: u64) -> bool {
        let record = (rowid(key), value.cast_signed());
        let changed = |connection: &Connection| connection.prepare_cached(UPDATE)?.execute(record);
        self.0.write(changed) > 0
    }

    fn remove(&self, key: u64) -> bool {
        let key = (rowid(key),);
        let removed = |connection: &Connection| connection.prepare_cached(REMOVE)?.execute(key);
        self.0.write(removed) > 0
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        let connection = self.0.get();
        let mut scan = connection.prepare_cached(SCAN).expect("scan");
        let mut rows = scan.query((rowid(from), count as i64)).expect("query");
        while let Some(row) = rows.next().expect("record") {
            let (rowid, value): (i64, i64) = row.try_into().expect("two integers");
            page.push((key(rowid), value.cast_unsigned()));
        }
    }

    fn get_batch(&self, keys: &[u64]) -> usize {
        let found = self.0.read_many(|connection| {
            let mut found = 0;
            for &key in keys {
                found += usize::from(value(connection, key)?.is_some());
            }
            Ok(found)
        });
        found.expect("get_batch")
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        self.0.write_many(|connection| {
            let mut put = connection.prepare_cached(PUT)?;
            for &(key, value) in records {
                put.execute((rowid(key), value.cast_signed()))?;
            }
            Ok(())
        });
    }

    /// Large transactions in ascending order, for which SQLite fills pages whole.
    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        for chunk in records.chunks(BULK_RECORDS) {
            self.insert_batch(chunk);
        }
        self.0.shorten_log();
        true
    }
}
