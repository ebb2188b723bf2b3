//! Links that something else has damaged, in maps that are in use: none of them leads to a block that has another owner, or that is
//! given to one.

use indelible::{ApexOptions, Error, Kind, Map, Pool, PoolOptions};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

const EXTENT: u64 = 2 << 20;
const CATALOG: u64 = 8192;
const TABLE: u64 = 64 << 10;
const RECORDS: u64 = 200_000;

/// A pool with the map "m", which has records all over the domain and whose background sweep has met damage, so that what has not been
/// touched stays as it is; and its file, which may be written behind its back.
struct Damaged {
    _directory: tempfile::TempDir,
    pool: Pool,
    map: Map<u64, u64>,
    file: Words,
    kind: Kind,
}

struct Words(File);

impl Words {
    fn get(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }

    fn set(&self, at: u64, value: u64) {
        self.0.write_all_at(&value.to_ne_bytes(), at).unwrap();
    }

    fn copy(&self, from: u64, to: u64, bytes: u64) {
        (0..bytes)
            .step_by(8)
            .for_each(|i| self.set(to + i, self.get(from + i)));
    }

    fn extents(&self) -> u64 {
        self.0.metadata().unwrap().len() / EXTENT
    }

    /// Owner of an extent, and the size of its blocks.
    fn extent(&self, extent: u64) -> (u64, u64) {
        let word = self.get(TABLE + extent * 8);
        (word & 0xffff_ffff, (word >> 40) * 256)
    }

    fn block_bytes(&self, offset: u64) -> u64 {
        self.extent(offset / EXTENT).1
    }

    /// The last block of an extent of "m" that is not among `known`, of blocks of this size.
    fn new_block(&self, bytes: u64, known: u64) -> Option<u64> {
        let owner = self.get(CATALOG);
        let extent =
            (known..self.extents()).find(|&extent| self.extent(extent) == (owner, bytes))?;
        Some((extent + 1) * EXTENT - bytes)
    }

    /// A key that belongs to a node, of which nothing has been removed.
    fn key_of(&self, kind: Kind, node: u64) -> u64 {
        match kind {
            Kind::Apex => self.get(node + 48),
            _ => (0..14).map(|i| self.get(node + 16 + i * 16)).max().unwrap(),
        }
    }

    /// Where the words are that link to the nodes of "m" from left to right: data nodes below the root of an APEX, leaves of an LB+-tree.
    fn links(&self, kind: Kind) -> Vec<u64> {
        let root = self.get(CATALOG + 16) & !1;
        if kind == Kind::Apex {
            let log_slots = self.get(root) >> 24;
            let slots = self.get(root + 16);
            let slots = (0..1 << log_slots).map(|slot| slots + slot * 8);
            let is_data = |&at: &u64| self.get(at) != 0 && self.get(at) & 1 == 0;
            return slots.filter(is_data).collect();
        }
        let mut links = vec![root];
        loop {
            let leaf = self.get(links[links.len() - 1]);
            if leaf == 0 {
                links.pop();
                return links;
            }
            let sibling = self.get(leaf) >> 15 & 1;
            links.push(leaf + 240 + sibling * 8);
        }
    }
}

/// Keys all over the domain.
fn key(number: u64) -> u64 {
    number * (u64::MAX / RECORDS)
}

impl Damaged {
    /// `damage` gets the links, and breaks one.
    fn new(kind: Kind, damage: impl Fn(&Words, &[u64])) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("damaged.pool");
        let pool = Pool::create(&path).unwrap();
        let map = pool.map_with::<u64, u64>("m", kind).unwrap();
        let records: Vec<(u64, u64)> = (0..RECORDS).map(|i| (key(i), i)).collect();
        map.bulk_load(&records, 0.7).unwrap();
        let other = pool.map_with::<u64, u64>("other", kind).unwrap();
        other.bulk_load(&records, 0.7).unwrap();
        drop((map, other));
        pool.close().unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = Words(file.unwrap());
        damage(&file, &file.links(kind));
        let pool = Pool::open(&path).unwrap();
        let map = pool.open_map("m").unwrap();
        assert_eq!(map.check().unwrap().len(), 1, "the sweep stops");
        Self {
            _directory: directory,
            pool,
            map,
            file,
            kind,
        }
    }

    /// Inserts near the end of the domain until there is an extent that was not there, for blocks of this size, and returns its
    /// last block, which is still free.
    fn block_taken_since(&self, bytes: u64, before: u64) -> u64 {
        for i in 1..1_000_000 {
            self.map.insert(u64::MAX - i * 977, i).unwrap();
            if let Some(block) = self.file.new_block(bytes, before) {
                return block;
            }
        }
        panic!("no extent of blocks of {bytes} bytes is taken")
    }

    /// "other" has all its records, and the pool is whole but for "m".
    fn others_are_well(self) {
        let _ = self.pool.shrink();
        let other = self.pool.open_map::<u64, u64>("other").unwrap();
        assert_eq!(other.check().unwrap(), [""; 0]);
        assert!(
            other
                .iter()
                .map(Result::unwrap)
                .eq((0..RECORDS).map(|i| (key(i), i)))
        );
        assert_eq!(self.pool.check(), [""; 0], "{:?}", self.kind);
    }
}

fn is_damaged<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Damaged(_)))
}

/// Something left over from before: what the extent held when it was last in use may be anything, also a node that fits.
#[test]
fn a_link_to_a_block_that_was_taken_since_the_open_is_refused() {
    [Kind::LbTree, Kind::Apex]
        .into_iter()
        .for_each(link_to_new_block);
}

fn link_to_new_block(kind: Kind) {
    let original = std::cell::Cell::new((0, 0));
    let damaged = Damaged::new(kind, |file, links| {
        let at = links[links.len() / 2];
        original.set((at, file.get(at)));
        file.set(at, 1 << 50);
    });
    let ((at, node), file) = (original.get(), &damaged.file);
    let before = file.extents();
    let bytes = file.block_bytes(node);
    let block = damaged.block_taken_since(bytes, before);
    file.copy(node, block, bytes);
    file.set(at, block);
    let middle = file.key_of(kind, node);
    for _ in 0..2 {
        assert!(is_damaged(damaged.map.get(middle)), "{kind:?}");
    }
    assert!(is_damaged(damaged.map.insert(middle + 1, 1)), "{kind:?}");
    for i in 0..200_000 {
        damaged.map.insert(u64::MAX - i, i).unwrap();
    }
    for i in 0..200_000 {
        assert_eq!(damaged.map.get(u64::MAX - i).unwrap(), Some(i), "{kind:?}");
    }
    damaged.others_are_well();
}

/// Inner nodes are laid out anew over the nodes beneath, whose ranges follow from where the root begins.
#[test]
fn an_inner_node_that_begins_elsewhere_does_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.pool");
    let pool = Pool::create(&path).unwrap();
    let options = ApexOptions::default().max_data_bytes(1024);
    let map = pool.map_with::<u64, u64>("m", options).unwrap();
    let count = 600_000;
    let records: Vec<(u64, u64)> = (0..count).map(|i| (i * (u64::MAX / count), i)).collect();
    map.bulk_load(&records, 0.65).unwrap();
    drop(map);
    pool.close().unwrap();

    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = Words(file.unwrap());
    let root = file.get(CATALOG + 16) & !1;
    assert!(file.links(Kind::Apex).len() > 10_000);
    let shift = file.get(root) >> 16 & 0xff;
    // Most of its slots are beyond all keys; or all borders are elsewhere.
    let elsewhere = [1, (1 << shift) + 1, 1 << shift, 3 << shift];
    for base in [3 << 62, u64::MAX << shift].into_iter().chain(elsewhere) {
        file.set(root + 8, base);
        let pool = Pool::open(&path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        for i in 0..20_000 {
            map.insert(i * 977, i).unwrap();
        }
        for i in 0..20_000 {
            assert_eq!(map.get(i * 977).unwrap(), Some(i));
        }
        assert_eq!(map.check().unwrap().len(), 1);
        drop(map);
        pool.close().unwrap();
    }
}

/// Else one map's sweep, or its removal, would take extents away from another one.
#[test]
fn a_pool_in_which_maps_share_extents_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.pool");
    let pool = Pool::create(&path).unwrap();
    for name in ["m", "other"] {
        let map = pool.map::<u64, u64>(name).unwrap();
        map.insert(1, 1).unwrap();
    }
    pool.close().unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let file = Words(file.unwrap());
    let owners = [CATALOG, CATALOG + 256].map(|entry| file.get(entry));
    let owned = (1..file.extents()).find(|&extent| file.extent(extent).0 == owners[0]);
    let table_word = TABLE + owned.unwrap() * 8;
    let run = |length: u64| owners[0] | 2 << 32 | length << 40;
    for (at, damage) in [
        (CATALOG + 256, owners[0]),
        (CATALOG + 256, owners[0] | 1 << 40),
        // The first extent of a run, but those behind it are others'.
        (table_word, run(2)),
        (table_word, run(1 << 23)),
    ] {
        let before = file.get(at);
        file.set(at, damage);
        assert!(is_damaged(Pool::open(&path)), "{damage:#x} at {at:#x}");
        assert!(is_damaged(PoolOptions::new().open_read_only(&path)));
        file.set(at, before);
    }
    let pool = Pool::open(&path).unwrap();
    assert_eq!(pool.check(), [""; 0]);
    for name in ["m", "other"] {
        let map = pool.open_map::<u64, u64>(name).unwrap();
        assert_eq!(map.get(1).unwrap(), Some(1));
    }
}

/// Where it is split, its upper half would go to where no search comes by.
#[test]
fn a_leaf_with_keys_of_its_right_neighbours_is_an_error() {
    for add in [1 << 50, 1 << 55, 1 << 62] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("damaged.pool");
        let pool = Pool::create(&path).unwrap();
        let map = pool.map::<u64, u64>("m").unwrap();
        let records: Vec<(u64, u64)> = (0..RECORDS).map(|i| (key(i), i)).collect();
        map.bulk_load(&records, 0.7).unwrap();
        drop(map);
        pool.close().unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = Words(file.unwrap());
        let links = file.links(Kind::LbTree);
        let leaf = file.get(links[links.len() / 3]);
        let mut keys: Vec<(u64, u64)> = (0..14)
            .map(|i| (file.get(leaf + 16 + i * 16), leaf + 16 + i * 16))
            .filter(|&(key, _)| key > 0)
            .collect();
        keys.sort_unstable();
        let lowest = keys[0].0;
        for &(key, at) in &keys[keys.len() / 3..] {
            file.set(at, key + add);
        }
        let pool = Pool::open(&path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        for i in 0..200 {
            assert!(is_damaged(map.insert(lowest + i * 3, i)));
        }
        assert_eq!(map.check().unwrap().len(), 1);
        for i in 0..400 {
            for start in [
                lowest + i,
                key(i * 500),
                lowest + add + i * 50,
                key(RECORDS / 3 - 100 + i),
            ] {
                let mut last = None;
                let mut range = map.range(start..).unwrap();
                for (key, _) in range.by_ref().take(500).map_while(Result::ok) {
                    assert!(Some(key) > last, "{add:#x}: {key:#x} after {last:x?}");
                    last = Some(key);
                }
            }
        }
    }
}
