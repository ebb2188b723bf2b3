//! Maps of byte strings: ours, the standard library's, and peers. A point write on a database is one transaction, as is a lookup; a load is
//! one large transaction.

#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod tests;

use anyhow::Result;
use indelible::{BytesMap, Pool};
use std::collections::BTreeMap;
use std::path::Path;

/// A map from byte strings to numbers.
pub(super) trait StringIndex {
    fn insert(&mut self, key: &[u8], value: u64);

    /// Inserts keys, each with its number.
    fn load(&mut self, keys: &[Box<[u8]>]) {
        for (key, number) in numbered(keys) {
            self.insert(key, number);
        }
    }

    fn get(&self, key: &[u8]) -> Option<u64>;

    /// How many of these keys have these values.
    fn get_batch(&self, keys: &[(&[u8], u64)]) -> usize {
        let right = keys
            .iter()
            .filter(|&&(key, value)| self.get(key) == Some(value));
        right.count()
    }

    /// Reads so many records from a key on, and returns the sum of what [`look_at`] says of each.
    fn scan(&self, from: &[u8], count: usize) -> usize;

    /// Bytes of files and of memory.
    fn bytes(&self, directory: &Path) -> u64;

    /// Inserts records in batches.
    fn insert_batch(&mut self, records: &[(&[u8], u64)]) {
        for &(key, value) in records {
            self.insert(key, value);
        }
    }

    /// The same map for several threads, if it takes several writers.
    fn shared(&self) -> Option<&dyn SharedIndex> {
        None
    }
}

/// A map that several threads write and read.
pub(super) trait SharedIndex: Sync {
    fn insert(&self, key: &[u8], value: u64);

    fn get(&self, key: &[u8]) -> Option<u64>;

    /// As [`StringIndex::scan`].
    fn scan(&self, from: &[u8], count: usize) -> usize;
}

/// What a scan does with a record: the lengths and the last byte of the key.
#[inline(always)]
fn look_at(key: &[u8], value_bytes: usize) -> usize {
    key.len() + value_bytes + usize::from(key.last().copied().unwrap_or_default())
}

/// Keys, each with its number.
fn numbered(keys: &[Box<[u8]>]) -> impl Iterator<Item = (&[u8], u64)> {
    (0..).zip(keys).map(|(number, key)| (&**key, number))
}

/// A map that can be measured.
pub(super) struct Contestant {
    pub(super) name: &'static str,
    pub(super) create: fn(&Path) -> Result<Box<dyn StringIndex>>,
}

/// All of this build, ours first.
pub(super) fn all() -> Vec<Contestant> {
    let one = |name, create| Contestant { name, create };
    #[allow(unused_mut, reason = "without the features there are no others")]
    let mut all = vec![
        one("slotted", |directory| {
            Ours::boxed(Pool::create(directory.join("pool"))?)
        }),
        one("slotted-dram", |_| Ours::boxed(Pool::in_memory()?)),
        one("btreemap", |_| Ok(Box::new(Tree::default()))),
    ];
    #[cfg(feature = "peers")]
    all.extend([
        one("skiplist", |_| Ok(Box::new(peers::SkipList::default()))),
        one("redb", peers::redb),
        one("lmdb-nosync", peers::lmdb),
    ]);
    #[cfg(feature = "rocksdb")]
    all.extend([
        one("rocksdb", rocksdb::create),
        one("rocksdb-durable", rocksdb::create_durable),
    ]);
    #[cfg(feature = "sqlite")]
    all.extend([
        one("sqlite", sqlite::create),
        one("sqlite-durable", sqlite::create_durable),
    ]);
    all
}

struct Ours(Pool, BytesMap);

impl Ours {
    fn boxed(pool: Pool) -> Result<Box<dyn StringIndex>> {
        let map = pool.bytes("m")?;
        Ok(Box::new(Self(pool, map)))
    }
}

fn number(value: &[u8]) -> u64 {
    value.try_into().map_or(u64::MAX, u64::from_ne_bytes)
}

impl StringIndex for Ours {
    fn insert(&mut self, key: &[u8], value: u64) {
        SharedIndex::insert(self, key, value);
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        SharedIndex::get(self, key)
    }

    fn get_batch(&self, keys: &[(&[u8], u64)]) -> usize {
        let (mut right, texts) = (0, keys.iter().map(|(key, _)| *key));
        let texts: Vec<&[u8]> = texts.collect();
        self.1
            .get_batch_with(&texts, |at, value| {
                right += usize::from(number(value) == keys[at].1);
            })
            .expect("get_batch");
        right
    }

    fn scan(&self, from: &[u8], count: usize) -> usize {
        SharedIndex::scan(self, from, count)
    }

    fn bytes(&self, _: &Path) -> u64 {
        self.0.stat().file_bytes + self.1.stat().expect("stat").dram_bytes
    }

    fn insert_batch(&mut self, records: &[(&[u8], u64)]) {
        let records = records.iter();
        let records: Vec<_> = records
            .map(|&(key, value)| (key, value.to_ne_bytes()))
            .collect();
        self.1.insert_batch(&records).expect("insert_batch");
    }

    fn shared(&self) -> Option<&dyn SharedIndex> {
        Some(self)
    }
}

impl SharedIndex for Ours {
    fn insert(&self, key: &[u8], value: u64) {
        self.1.insert(key, value.to_ne_bytes()).expect("insert");
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.1.get_with(key, number).expect("get")
    }

    fn scan(&self, from: &[u8], count: usize) -> usize {
        let mut range = self.1.range(from..);
        let mut total = 0;
        for _ in 0..count {
            match range.next_with(|key, value| look_at(key, value.len())) {
                Some(sum) => total += sum.expect("scan"),
                None => break,
            }
        }
        total
    }
}

/// Bytes that the allocator has handed out for a boxed key: a header of 8 bytes, and multiples of 16.
fn allocated(key: &[u8]) -> u64 {
    ((key.len() as u64 + 8).next_multiple_of(16)).max(32)
}

#[derive(Default)]
struct Tree(BTreeMap<Box<[u8]>, u64>);

impl StringIndex for Tree {
    fn insert(&mut self, key: &[u8], value: u64) {
        self.0.insert(key.into(), value);
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.get(key).copied()
    }

    fn scan(&self, from: &[u8], count: usize) -> usize {
        let range = self
            .0
            .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        range
            .take(count)
            .map(|(key, value)| look_at(key, size_of_val(value)))
            .sum()
    }

    /// Nodes of eleven slots that are two thirds full, and the keys.
    fn bytes(&self, _: &Path) -> u64 {
        self.0
            .keys()
            .map(|key| allocated(key) + 24 * 3 / 2 + 3)
            .sum()
    }
}

#[cfg(feature = "peers")]
mod peers {
    use super::{SharedIndex, StringIndex, allocated, look_at, number, numbered};
    use crate::machine::bytes_below;
    use anyhow::Result;
    use crossbeam_skiplist::SkipMap;
    use heed::types::Bytes;
    use heed::{CommitOrAbort, Env, EnvFlags, EnvOpenOptions, WithTls};
    use redb::{Database, Durability, ReadableDatabase, TableDefinition};
    use std::path::Path;

    #[derive(Default)]
    pub(super) struct SkipList(SkipMap<Box<[u8]>, u64>);

    impl StringIndex for SkipList {
        fn insert(&mut self, key: &[u8], value: u64) {
            SharedIndex::insert(self, key, value);
        }

        fn get(&self, key: &[u8]) -> Option<u64> {
            SharedIndex::get(self, key)
        }

        fn scan(&self, from: &[u8], count: usize) -> usize {
            SharedIndex::scan(self, from, count)
        }

        /// A node has its key and value, two words, and two links on average.
        fn bytes(&self, _: &Path) -> u64 {
            self.0.iter().map(|entry| allocated(entry.key()) + 64).sum()
        }

        fn shared(&self) -> Option<&dyn SharedIndex> {
            Some(self)
        }
    }

    impl SharedIndex for SkipList {
        fn insert(&self, key: &[u8], value: u64) {
            self.0.insert(key.into(), value);
        }

        fn get(&self, key: &[u8]) -> Option<u64> {
            self.0.get(key).map(|entry| *entry.value())
        }

        fn scan(&self, from: &[u8], count: usize) -> usize {
            let range = self
                .0
                .range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
            range
                .take(count)
                .map(|entry| look_at(entry.key(), size_of_val(entry.value())))
                .sum()
        }
    }

    const RECORDS: TableDefinition<'_, &[u8], u64> = TableDefinition::new("records");

    struct Redb(Database);

    /// Its fastest commits, which a crash of the process undoes.
    pub(super) fn redb(directory: &Path) -> Result<Box<dyn StringIndex>> {
        let database = Database::builder()
            .set_cache_size(4 << 30)
            .create(directory.join("redb"))?;
        Ok(Box::new(Redb(database)))
    }

    impl Redb {
        fn put<'k>(&self, records: impl Iterator<Item = (&'k [u8], u64)>) {
            let mut transaction = self.0.begin_write().expect("begin_write");
            transaction
                .set_durability(Durability::None)
                .expect("durability");
            {
                let mut table = transaction.open_table(RECORDS).expect("table");
                for (key, value) in records {
                    table.insert(key, value).expect("insert");
                }
            }
            transaction.commit().expect("commit");
        }
    }

    impl StringIndex for Redb {
        fn insert(&mut self, key: &[u8], value: u64) {
            self.put(std::iter::once((key, value)));
        }

        fn load(&mut self, keys: &[Box<[u8]>]) {
            self.put(numbered(keys));
        }

        fn get(&self, key: &[u8]) -> Option<u64> {
            let transaction = self.0.begin_read().expect("begin_read");
            let table = transaction.open_table(RECORDS).expect("table");
            let value = table.get(key).expect("get");
            value.map(|value| value.value())
        }

        /// One transaction.
        fn get_batch(&self, keys: &[(&[u8], u64)]) -> usize {
            let transaction = self.0.begin_read().expect("begin_read");
            let table = transaction.open_table(RECORDS).expect("table");
            let right = keys.iter().filter(|&&(key, value)| {
                let found = table.get(key).expect("get");
                found.is_some_and(|found| found.value() == value)
            });
            right.count()
        }

        /// One transaction.
        fn insert_batch(&mut self, records: &[(&[u8], u64)]) {
            self.put(records.iter().copied());
        }

        fn scan(&self, from: &[u8], count: usize) -> usize {
            let transaction = self.0.begin_read().expect("begin_read");
            let table = transaction.open_table(RECORDS).expect("table");
            let range = table.range(from..).expect("range").take(count);
            let records = range.map(|record| record.expect("record"));
            records
                .map(|(key, value)| look_at(key.value(), size_of_val(&value.value())))
                .sum()
        }

        fn bytes(&self, directory: &Path) -> u64 {
            bytes_below(directory)
        }
    }

    type Records = heed::Database<'static, Bytes, Bytes>;

    struct Lmdb(Records, Env<WithTls>);

    /// Without syncs, written through the map.
    pub(super) fn lmdb(directory: &Path) -> Result<Box<dyn StringIndex>> {
        let mut options = EnvOpenOptions::new().read_txn_with_tls();
        options.map_size(64 << 30);
        // SAFETY: `NO_SYNC` and `WRITE_MAP` weaken only what a crash of the system leaves, and nothing opens that here.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::WRITE_MAP) };
        // SAFETY: while it is mapped, LMDB alone changes the file: it is in a directory of this contestant's own.
        let environment = unsafe { options.open(directory) }?;
        let transaction = environment.write_txn()?;
        let created =
            environment.create_databases_and_commit(transaction, |opener, transaction| {
                let options = opener.database_options().types::<Bytes, Bytes>();
                let created = options.create(transaction);
                created.map(CommitOrAbort::<_, ()>::Commit)
            });
        let records = created.map(CommitOrAbort::unwrap_commit)?;
        Ok(Box::new(Lmdb(records, environment)))
    }

    impl Lmdb {
        fn put<'k>(&self, records: impl Iterator<Item = (&'k [u8], u64)>) {
            let mut transaction = self.1.write_txn().expect("write_txn");
            for (key, value) in records {
                let value = value.to_ne_bytes();
                self.0.put(&mut transaction, key, &value).expect("put");
            }
            transaction.commit().expect("commit");
        }
    }

    impl StringIndex for Lmdb {
        fn insert(&mut self, key: &[u8], value: u64) {
            self.put(std::iter::once((key, value)));
        }

        fn load(&mut self, keys: &[Box<[u8]>]) {
            self.put(numbered(keys));
        }

        fn get(&self, key: &[u8]) -> Option<u64> {
            let transaction = self.1.read_txn().expect("read_txn");
            self.0.get(&transaction, key).expect("get").map(number)
        }

        /// One transaction.
        fn get_batch(&self, keys: &[(&[u8], u64)]) -> usize {
            let transaction = self.1.read_txn().expect("read_txn");
            let right = keys.iter().filter(|&&(key, value)| {
                let found = self.0.get(&transaction, key).expect("get");
                found.map(number) == Some(value)
            });
            right.count()
        }

        /// One transaction.
        fn insert_batch(&mut self, records: &[(&[u8], u64)]) {
            self.put(records.iter().copied());
        }

        fn scan(&self, from: &[u8], count: usize) -> usize {
            let transaction = self.1.read_txn().expect("read_txn");
            let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
            let range = self.0.range(&transaction, &bounds).expect("range");
            let records = range.take(count).map(|record| record.expect("record"));
            records.map(|(key, value)| look_at(key, value.len())).sum()
        }

        fn bytes(&self, directory: &Path) -> u64 {
            bytes_below(directory)
        }
    }
}
