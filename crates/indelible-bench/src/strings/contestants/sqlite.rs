//! SQLite: a table `WITHOUT ROWID`, whose B-tree is in the order of the byte strings. The settings are those of the contestants of words.

use super::{StringIndex, look_at, number, numbered};
use crate::contestants::{Connections, Synchronous};
use crate::machine::bytes_below;
use anyhow::Result;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};
use std::path::Path;

const SCHEMA: &str = "CREATE TABLE records (k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID";
const GET: &str = "SELECT v FROM records WHERE k = ?1";
const PUT: &str = "REPLACE INTO records (k, v) VALUES (?1, ?2)";
const SCAN: &str = "SELECT k, v FROM records WHERE k >= ?1 ORDER BY k LIMIT ?2";

struct Sqlite(Connections);

/// `synchronous=NORMAL`: a commit is handed to the system.
pub(super) fn create(directory: &Path) -> Result<Box<dyn StringIndex>> {
    start(directory, Synchronous::Normal)
}

/// `synchronous=FULL`: a commit waits for the medium.
pub(super) fn create_durable(directory: &Path) -> Result<Box<dyn StringIndex>> {
    start(directory, Synchronous::Full)
}

fn start(directory: &Path, synchronous: Synchronous) -> Result<Box<dyn StringIndex>> {
    let path = directory.join("sqlite");
    let connections = Connections::create(&path, synchronous, SCHEMA)?;
    Ok(Box::new(Sqlite(connections)))
}

fn value(connection: &Connection, key: &[u8]) -> rusqlite::Result<Option<u64>> {
    let mut get = connection.prepare_cached(GET)?;
    get.query_row((key,), |row| Ok(number(bytes(row.get_ref(0)?))))
        .optional()
}

/// The bytes where they lie: taking a blob out as a vector would allocate.
fn bytes(value: ValueRef<'_>) -> &[u8] {
    value.as_blob().expect("a blob")
}

impl Sqlite {
    fn put<'k>(&self, records: impl Iterator<Item = (&'k [u8], u64)>) {
        self.0.write_many(|connection| {
            let mut put = connection.prepare_cached(PUT)?;
            for (key, value) in records {
                put.execute((key, &value.to_ne_bytes()[..]))?;
            }
            Ok(())
        });
    }
}

impl StringIndex for Sqlite {
    fn insert(&mut self, key: &[u8], value: u64) {
        let value = value.to_ne_bytes();
        self.0
            .write(|connection| connection.prepare_cached(PUT)?.execute((key, &value[..])));
    }

    fn load(&mut self, keys: &[Box<[u8]>]) {
        self.put(numbered(keys));
        self.0.shorten_log();
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        value(&self.0.get(), key).expect("get")
    }

    /// In one transaction.
    fn get_batch(&self, keys: &[(&[u8], u64)]) -> usize {
        let right = self.0.read_many(|connection| {
            let mut right = 0;
            for &(key, wanted) in keys {
                right += usize::from(value(connection, key)? == Some(wanted));
            }
            Ok(right)
        });
        right.expect("get_batch")
    }

    fn scan(&self, from: &[u8], count: usize) -> usize {
        let connection = self.0.get();
        let mut scan = connection.prepare_cached(SCAN).expect("scan");
        let mut rows = scan.query((from, count as i64)).expect("query");
        let mut total = 0;
        while let Some(row) = rows.next().expect("record") {
            let column = |place| bytes(row.get_ref(place).expect("a column"));
            total += look_at(column(0), column(1).len());
        }
        total
    }

    fn bytes(&self, directory: &Path) -> u64 {
        bytes_below(directory)
    }

    /// In one transaction.
    fn insert_batch(&mut self, records: &[(&[u8], u64)]) {
        self.put(records.iter().copied());
    }
}
