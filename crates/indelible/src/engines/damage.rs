//! Links that something else has damaged, in maps that are in use: what an engine brings so that tests can break its links, and the
//! test that all engines share. Each engine's `damage` module implements [`Damage`], and has the tests that are the engine's own.
//!
//! Compiled only for the library's own tests, so nodes are small here.

use super::{Kind, ordered_engines};
use crate::{Error, Map, MapOptions, Pool};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const EXTENT: u64 = crate::pool::EXTENT_BYTES;
const CATALOG: u64 = 8192;
const TABLE: u64 = 64 << 10;
/// Records of [`load`].
pub(super) const RECORDS: u64 = 200_000;

/// How the nodes of an engine's objects hang together in the file.
pub(super) trait Damage {
    /// Whether opening an object follows all links, so that an object with a broken link is refused then.
    fn opening_follows_links(&self) -> bool {
        false
    }

    /// Where the words are that link to the nodes with records, from left to right. The object is that of the first catalog entry.
    fn links(&self, file: &Words) -> Vec<u64>;

    /// A key that belongs to a node, of which nothing has been removed.
    fn key_of(&self, file: &Words, node: u64) -> u64;
}

macro_rules! damages {
    ($($(#[$doc:meta])+ $variant:ident = $code:literal, $name:literal, $folder:ident, $options:ident;)+) => {
        fn damage_of(kind: Kind) -> &'static dyn Damage {
            match kind {
                $(Kind::$variant => &super::$folder::damage::Links,)+
            }
        }
    };
}
ordered_engines!(damages);

/// The words of a pool's file, which may be open, and is read and written behind the pool's back.
pub(super) struct Words(File);

impl Words {
    pub(super) fn open(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Self(file.unwrap())
    }

    pub(super) fn get(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }

    pub(super) fn set(&self, at: u64, value: u64) {
        self.0.write_all_at(&value.to_ne_bytes(), at).unwrap();
    }

    /// Where the first root of the first catalog entry is.
    pub(super) fn first_root(&self) -> u64 {
        CATALOG + 16
    }

    pub(super) fn copy(&self, from: u64, to: u64, bytes: u64) {
        (0..bytes)
            .step_by(8)
            .for_each(|i| self.set(to + i, self.get(from + i)));
    }

    pub(super) fn extents(&self) -> u64 {
        self.0.metadata().unwrap().len() / EXTENT
    }

    /// Owner of an extent, and the size of its blocks.
    fn extent(&self, extent: u64) -> (u64, u64) {
        let word = self.get(TABLE + extent * 8);
        (word & 0xffff_ffff, (word >> 40) * 256)
    }

    /// The last block of an extent of "m" that is not among the first `known`, of blocks of this size.
    pub(super) fn new_block(&self, bytes: u64, known: u64) -> Option<u64> {
        let owner = self.get(CATALOG);
        let extent =
            (known..self.extents()).find(|&extent| self.extent(extent) == (owner, bytes))?;
        Some((extent + 1) * EXTENT - bytes)
    }
}

/// The key of a record of [`load`]: they are all over the domain.
pub(super) fn key(number: u64) -> u64 {
    number * (u64::MAX / RECORDS)
}

/// Fills an empty map.
pub(super) fn load(map: &Map<u64, u64>) {
    map.bulk_load((0..RECORDS).map(|i| (key(i), i)), 0.7)
        .unwrap();
}

pub(super) fn is_damaged<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Damaged(_)))
}

/// A closed pool with the maps "m" and "other", which have the records of [`load`].
struct Loaded {
    directory: tempfile::TempDir,
    kind: Kind,
}

impl Loaded {
    fn new(kind: Kind) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let loaded = Self { directory, kind };
        let pool = Pool::create(loaded.path()).unwrap();
        for name in ["m", "other"] {
            load(&pool.map_with(name, MapOptions::from(kind)).unwrap());
        }
        pool.close().unwrap();
        loaded
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("damaged.pool")
    }

    /// "other" has all its records, and the pool is whole but for "m".
    fn assert_others_are_well(&self, pool: &Pool) {
        let _ = pool.shrink();
        let other = pool.open_map::<u64, u64>("other").unwrap();
        assert_eq!(other.check().unwrap(), [""; 0]);
        let records = (0..RECORDS).map(|i| (key(i), i));
        assert!(other.iter().map(Result::unwrap).eq(records));
        assert_eq!(pool.check(), [""; 0], "{:?}", self.kind);
    }
}

/// Inserts near the end of the domain until there is an extent that was not there, for blocks of this size, and returns its last
/// block, which is still free.
fn block_taken_since(map: &Map<u64, u64>, file: &Words, bytes: u64, before: u64) -> u64 {
    for i in 1..1_000_000 {
        map.insert(u64::MAX - i * 977, i).unwrap();
        // Every look reads what the file says of all extents.
        if !i.is_multiple_of(32) {
            continue;
        }
        if let Some(block) = file.new_block(bytes, before) {
            return block;
        }
    }
    panic!("no extent of blocks of {bytes} bytes is taken")
}

/// What the extent of the new block held when it was last in use may be anything, also a node that fits.
#[test]
fn a_link_to_a_block_that_was_taken_since_the_open_is_refused() {
    for &kind in Kind::all() {
        let loaded = Loaded::new(kind);
        let file = Words::open(&loaded.path());
        let links = damage_of(kind).links(&file);
        assert!(links.len() > 100, "{kind}: {} links", links.len());
        let at = links[links.len() / 2];
        let node = file.get(at);
        file.set(at, 1 << 50);
        let pool = Pool::open(loaded.path()).unwrap();
        if damage_of(kind).opening_follows_links() {
            assert!(is_damaged(pool.open_map::<u64, u64>("m")), "{kind}");
        } else {
            follow_link_to_new_block(kind, &pool, &file, at, node);
        }
        loaded.assert_others_are_well(&pool);
    }
}

/// `at` is where the link to `node` was. It leads nowhere when the map is opened, so that the sweep in the background stops, and what has
/// not been touched stays as it is.
fn follow_link_to_new_block(kind: Kind, pool: &Pool, file: &Words, at: u64, node: u64) {
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.check().unwrap().len(), 1, "the sweep stops");
    let before = file.extents();
    let (_, bytes) = file.extent(node / EXTENT);
    let block = block_taken_since(&map, file, bytes, before);
    file.copy(node, block, bytes);
    file.set(at, block);
    let middle = damage_of(kind).key_of(file, node);
    for _ in 0..2 {
        assert!(is_damaged(map.get(middle)), "{kind}");
    }
    assert!(is_damaged(map.insert(middle + 1, 1)), "{kind}");
    for i in 0..RECORDS {
        map.insert(u64::MAX - i, i).unwrap();
    }
    for i in 0..RECORDS {
        assert_eq!(map.get(u64::MAX - i).unwrap(), Some(i), "{kind}");
    }
}

/// What `work` returns, which must not go on for ever.
pub(super) fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    let result = is_done.recv_timeout(std::time::Duration::from_secs(120));
    result.expect("it goes on for ever")
}
