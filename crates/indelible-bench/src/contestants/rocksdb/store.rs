//! A database with the settings that all contestants of RocksDB share.

use anyhow::Result;
use rocksdb::{BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, Options};
use rocksdb::{DBCompressionType, DBPinnableSlice, DBRawIterator, DataBlockIndexType};
use rocksdb::{IngestExternalFileOptions, ReadOptions, SstFileWriter, WriteBatch, WriteOptions};
use std::path::Path;

/// Blocks that it may keep in memory: the caches of the other databases are as large.
const CACHE_BYTES: usize = 4 << 30;

/// Bits of the Bloom filter for each key: RocksDB's guide has ten, of which one lookup in a hundred is wrong.
const FILTER_BITS: f64 = 10.0;

/// The name that RocksDB gives the only column family of a database.
const DEFAULT: &str = "default";

/// What a write waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// It is handed to the system.
    No,
    /// It is on the medium.
    Yes,
}

/// A database.
pub(crate) struct Store {
    database: DB,
    read: ReadOptions,
    write: WriteOptions,
}

impl Store {
    /// Creates the database, or opens the one that is there.
    pub(crate) fn start(directory: &Path, sync: Sync, create: bool) -> Result<Self> {
        let mut options = options();
        options.create_if_missing(create);
        options.set_error_if_exists(create);
        // Named, so that there is a handle to it, which batches of lookups need.
        let family = ColumnFamilyDescriptor::new(DEFAULT, options.clone());
        let path = directory.join("rocksdb");
        let database = DB::open_cf_descriptors(&options, path, [family])?;
        let mut write = WriteOptions::default();
        write.set_sync(sync == Sync::Yes);
        Ok(Self {
            database,
            read: ReadOptions::default(),
            write,
        })
    }

    fn family(&self) -> &ColumnFamily {
        let family = self.database.cf_handle(DEFAULT);
        family.expect("the family that was opened")
    }

    /// The value where it lies: in a block of the cache, or in the buffer of writes.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<DBPinnableSlice<'_>> {
        self.database.get_pinned_opt(key, &self.read).expect("get")
    }

    /// The values of many keys, by the lookup that RocksDB has for that.
    pub(crate) fn get_batch<'k, K: AsRef<[u8]> + 'k>(
        &self,
        keys: impl Iterator<Item = &'k K>,
    ) -> impl Iterator<Item = Option<DBPinnableSlice<'_>>> {
        let values =
            (self.database).batched_multi_get_cf_opt(self.family(), keys, false, &self.read);
        values.into_iter().map(|value| value.expect("get_batch"))
    }

    #[inline]
    pub(crate) fn put(&self, key: &[u8], value: &[u8]) {
        let put = self.database.put_opt(key, value, &self.write);
        put.expect("put");
    }

    pub(super) fn delete(&self, key: &[u8]) {
        let deleted = self.database.delete_opt(key, &self.write);
        deleted.expect("delete");
    }

    /// All records in one step.
    pub(crate) fn put_batch<K: AsRef<[u8]>>(&self, records: impl Iterator<Item = (K, [u8; 8])>) {
        let mut batch = WriteBatch::default();
        for (key, value) in records {
            batch.put(key, value);
        }
        let written = self.database.write_opt(batch, &self.write);
        written.expect("write");
    }

    /// Makes tables of all writes, as time does: what was loaded long ago is not in the buffers of writes, where lookups are slow.
    pub(crate) fn flush(&self) {
        self.database.flush().expect("flush");
    }

    /// What is there from a key on. The caller looks at up to `count` records.
    pub(crate) fn scan(&self, from: &[u8], count: usize, mut look: impl FnMut(&[u8], &[u8])) {
        let mut records: DBRawIterator<'_> = self.database.raw_iterator();
        records.seek(from);
        for _ in 0..count {
            let Some((key, value)) = records.item() else {
                break;
            };
            look(key, value);
            records.next();
        }
        records.status().expect("scan");
    }

    /// Sorted records become a table of the tree, past the log.
    pub(super) fn ingest(&self, records: &[(u64, u64)]) -> Result<(), rocksdb::Error> {
        if records.is_empty() {
            return Ok(());
        }
        let options = options();
        let path = self.database.path().join("ingested.sst");
        let mut table = SstFileWriter::create(&options);
        table.open(&path)?;
        for &(key, value) in records {
            table.put(key.to_be_bytes(), value.to_be_bytes())?;
        }
        table.finish()?;
        let mut ingestion = IngestExternalFileOptions::default();
        ingestion.set_move_files(true);
        (self.database).ingest_external_file_opts(&ingestion, vec![path])
    }
}

/// What RocksDB's guide advises ("Setup Options and Basic Tuning"), but for blocks of 4 KiB (the default) instead of 16: the data are in
/// memory here, where small blocks are faster.
fn options() -> Options {
    let mut tables = BlockBasedOptions::default();
    // The cache whose lookups take no locks. Without an estimate of the size of blocks its table grows as it must, which is what RocksDB advises.
    tables.set_block_cache(&Cache::new_hyper_clock_cache(CACHE_BYTES, 0));
    tables.set_bloom_filter(FILTER_BITS, false);
    tables.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    let mut options = Options::default();
    options.set_block_based_table_factory(&tables);
    // Flushes and compactions, as many at once as there are cores.
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as i32);
    options.set_max_background_jobs(cores.max(2));
    // Of 64 MiB each, the default.
    options.set_max_write_buffer_number(4);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_enable_pipelined_write(true);
    options.set_bytes_per_sync(1 << 20);
    options.set_compression_type(DBCompressionType::None);
    // Neither statistics nor old messages.
    options.set_stats_dump_period_sec(0);
    options.set_keep_log_file_num(1);
    options
}
