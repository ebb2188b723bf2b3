//! LMDB, by way of heed: a copy-on-write B+ tree in a mapped file.
//!
//! Keys are native integers (`MDB_INTEGERKEY`). heed's own integer codec allocates for every key; ours lends the bytes.
//!
//! Without syncs the file is written through the map (`MDB_WRITEMAP`), as LMDB advises for data that fits in memory. It is
//! then as long as the map from the start, with holes: only its blocks say what it takes.

use super::{Contestant, Place, Survives};
use crate::index::Index;
use anyhow::{Context, Result, ensure};
use heed::{BoxedError, BytesDecode, BytesEncode, CommitOrAbort, Database};
use heed::{Env, EnvFlags, EnvOpenOptions, IntegerComparator, PutFlags, RwTxn, WithTls};
use std::borrow::Cow;
use std::path::Path;

/// The most that the file may ever have: address space only.
const MAP_BYTES: usize = 256 << 30;

/// Threads that may read at once.
const READERS: u32 = 1024;

/// Records in a transaction of a bulk load.
const BULK_RECORDS: usize = 1 << 20;

/// A number as LMDB stores it, aligned as LMDB reads it.
#[repr(align(8))]
struct Native([u8; 8]);

/// The codec for [`Native`].
enum Word {}

type Records = Database<'static, Word, Word, IntegerComparator>;

struct Lmdb {
    records: Records,
    environment: Env<WithTls>,
}

pub(super) fn contestants() -> Vec<Contestant> {
    vec![
        Contestant::database(
            "lmdb-nosync",
            "LMDB by heed 0.23.1: MDB_NOSYNC and MDB_WRITEMAP, the system writes when it likes; integer keys",
            Survives::Kill,
            |place| start(place, fastest(), true),
            Some(|place| start(place, fastest(), false)),
        ),
        Contestant::database(
            "lmdb-fsync",
            "LMDB by heed 0.23.1: no flags, data and meta page synced per commit; integer keys",
            Survives::PowerCut,
            |place| start(place, EnvFlags::empty(), true),
            Some(|place| start(place, EnvFlags::empty(), false)),
        ),
    ]
}

fn fastest() -> EnvFlags {
    EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP
}

/// Creates the database, or opens the one that is there.
fn start(place: &Place, flags: EnvFlags, create: bool) -> Result<Box<dyn Index>> {
    // LMDB itself makes no difference between the two.
    let there = place.directory.join("data.mdb").try_exists()?;
    ensure!(!(create && there), "a database is there already");
    ensure!(create || there, "no database is there");
    let environment = environment(&place.directory, flags)?;
    let records = if create {
        create_records(&environment)?
    } else {
        open_records(&environment)?.context("the database has no table")?
    };
    Ok(Box::new(Lmdb {
        records,
        environment,
    }))
}

fn environment(directory: &Path, flags: EnvFlags) -> Result<Env<WithTls>> {
    let mut options = EnvOpenOptions::new().read_txn_with_tls();
    options.map_size(MAP_BYTES).max_readers(READERS);
    // SAFETY: `NO_SYNC` and `WRITE_MAP` weaken only what a crash of the system leaves, and nothing opens that here; `NO_LOCK`,
    // which would weaken what threads see, is not among the flags.
    unsafe { options.flags(flags) };
    // SAFETY: while it is mapped, LMDB alone changes the file: it is in a local directory of this contestant's own, used by
    // one process at a time and with LMDB's locks in force. A kill may end the process within a transaction, which LMDB
    // recovers from.
    let environment = unsafe { options.open(directory) }?;
    Ok(environment)
}

fn create_records(environment: &Env<WithTls>) -> Result<Records, heed::Error> {
    let transaction = environment.write_txn()?;
    let created = environment.create_databases_and_commit(transaction, |opener, transaction| {
        let options = opener.database_options().types::<Word, Word>();
        let options = options.key_comparator::<IntegerComparator>();
        let created = options.create(transaction);
        created.map(CommitOrAbort::<_, ()>::Commit)
    });
    created.map(CommitOrAbort::unwrap_commit)
}

fn open_records(environment: &Env<WithTls>) -> Result<Option<Records>, heed::Error> {
    let transaction = environment.read_txn()?;
    let opened = environment.open_databases_and_commit(transaction, |opener, transaction| {
        let options = opener.database_options().types::<Word, Word>();
        let options = options.key_comparator::<IntegerComparator>();
        let opened = options.open(transaction);
        opened.map(CommitOrAbort::<_, ()>::Commit)
    });
    opened.map(CommitOrAbort::unwrap_commit)
}

impl Native {
    #[inline]
    fn new(number: u64) -> Self {
        Self(number.to_ne_bytes())
    }
}

impl<'a> BytesEncode<'a> for Word {
    type EItem = Native;

    #[inline]
    fn bytes_encode(item: &'a Native) -> Result<Cow<'a, [u8]>, BoxedError> {
        Ok(Cow::Borrowed(&item.0))
    }
}

impl BytesDecode<'_> for Word {
    type DItem = u64;

    #[inline]
    fn bytes_decode(bytes: &[u8]) -> Result<u64, BoxedError> {
        Ok(u64::from_ne_bytes(bytes.try_into()?))
    }
}

impl Lmdb {
    /// One write transaction. Committed if `work` says that it changed something, and that is returned.
    fn write(&self, work: impl FnOnce(&mut RwTxn<'_>) -> heed::Result<bool>) -> bool {
        let mut transaction = self.environment.write_txn().expect("write_txn");
        let changed = work(&mut transaction).expect("write");
        if changed {
            transaction.commit().expect("commit");
        } else {
            transaction.abort();
        }
        changed
    }

    fn put_all(&self, records: &[(u64, u64)], flags: PutFlags) {
        self.write(|transaction| {
            for &(key, value) in records {
                let (key, value) = (Native::new(key), Native::new(value));
                self.records
                    .put_with_flags(transaction, flags, &key, &value)?;
            }
            Ok(!records.is_empty())
        });
    }
}

impl Index for Lmdb {
    fn get(&self, key: u64) -> Option<u64> {
        let transaction = self.environment.read_txn().expect("read_txn");
        let value = self.records.get(&transaction, &Native::new(key));
        value.expect("get")
    }

    fn insert(&self, key: u64, value: u64) {
        self.put_all(&[(key, value)], PutFlags::empty());
    }

    fn update(&self, key: u64, value: u64) -> bool {
        let (key, value) = (Native::new(key), Native::new(value));
        self.write(|transaction| {
            let present = self.records.get(transaction, &key)?.is_some();
            if present {
                self.records.put(transaction, &key, &value)?;
            }
            Ok(present)
        })
    }

    fn remove(&self, key: u64) -> bool {
        self.write(|transaction| self.records.delete(transaction, &Native::new(key)))
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        let transaction = self.environment.read_txn().expect("read_txn");
        let bounds = Native::new(from)..;
        let range = self.records.range(&transaction, &bounds).expect("range");
        for record in range.take(count) {
            let (key, value) = record.expect("record");
            page.push((key, value));
        }
    }

    fn get_batch(&self, keys: &[u64]) -> usize {
        let transaction = self.environment.read_txn().expect("read_txn");
        let get = |key| self.records.get(&transaction, &Native::new(key));
        let found = |key: &&u64| get(**key).expect("get").is_some();
        keys.iter().filter(found).count()
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        self.put_all(records, PutFlags::empty());
    }

    /// Large transactions of appends, which fill pages whole.
    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        for chunk in records.chunks(BULK_RECORDS) {
            self.put_all(chunk, PutFlags::APPEND);
        }
        true
    }
}
