//! Indelible: each of its indexes, with each of the promises that a pool can make.

use super::{Contestant, Open, Place, Survives};
use crate::index::Index;
use crate::outcome::Statistics;
use anyhow::Result;
use indelible::{Durability, Kind, Map, MapOptions, MapStat, Pool, PoolOptions};

/// A map in a pool of its own.
struct Ours {
    map: Map<u64, u64>,
}

/// The beginning of a description: name, version and index.
macro_rules! about {
    ($index:literal, $medium:literal) => {
        concat!(
            "indelible ",
            env!("CARGO_PKG_VERSION"),
            ": ",
            $index,
            ", ",
            $medium
        )
    };
}

/// The three contestants of one kind of index. `NAME` is the default of the library for the kind; `NAME-dram` promises
/// less, `NAME-pmem` more.
macro_rules! three {
    ($kind:expr, $name:literal, $index:literal) => {
        [
            Contestant {
                name: concat!($name, "-dram"),
                about: about!($index, "in anonymous memory"),
                survives: Survives::Nothing,
                is_ours: true,
                has_batches: true,
                create: |place| index(&PoolOptions::new().in_memory()?, place, $kind),
                open: None,
            },
            Contestant {
                name: $name,
                about: about!($index, "on a file, Durability::Process (the default)"),
                survives: Survives::Kill,
                is_ours: true,
                has_batches: true,
                create: |place| index(&PoolOptions::new().create(pool(place))?, place, $kind),
                open: Some((|place| reopened(&PoolOptions::new().open(pool(place))?)) as Open),
            },
            Contestant {
                name: concat!($name, "-pmem"),
                about: about!(
                    $index,
                    "Durability::PowerLoss, flushes and fences as on persistent memory whatever the file is on"
                ),
                survives: Survives::PowerCut,
                is_ours: true,
                has_batches: true,
                create: |place| index(&power_loss().create(pool(place))?, place, $kind),
                open: Some((|place| reopened(&power_loss().open(pool(place))?)) as Open),
            },
        ]
    };
}

/// The LB+-tree, which is the library's default, then APEX.
pub(super) fn contestants() -> Vec<Contestant> {
    let lbtree = three!(Kind::LbTree, "indelible", "LB+-tree");
    let apex = three!(Kind::Apex, "indelible-apex", "APEX, a learned index");
    lbtree.into_iter().chain(apex).collect()
}

/// The file of a contestant's pool.
fn pool(place: &Place) -> std::path::PathBuf {
    place.directory.join("pool")
}

/// The protocol of persistent memory on any file: measures what it costs.
fn power_loss() -> PoolOptions {
    let mut options = PoolOptions::new();
    options
        .durability(Durability::PowerLoss)
        .force_power_loss_protocol(true);
    options
}

fn index(pool: &Pool, place: &Place, kind: Kind) -> Result<Box<dyn Index>> {
    let options = MapOptions {
        kind,
        ..place.layout
    };
    let map = pool.map_with("bench", options)?;
    Ok(Box::new(Ours { map }))
}

fn reopened(pool: &Pool) -> Result<Box<dyn Index>> {
    let map = pool.open_map("bench")?;
    Ok(Box::new(Ours { map }))
}

impl Index for Ours {
    #[inline]
    fn get(&self, key: u64) -> Option<u64> {
        self.map.get(key).expect("get")
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        self.map.insert(key, value).expect("insert");
    }

    #[inline]
    fn update(&self, key: u64, value: u64) -> bool {
        self.map.update(key, value).expect("update").is_some()
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        self.map.remove(key).expect("remove").is_some()
    }

    fn scan(&self, from: u64, count: usize, page: &mut Vec<(u64, u64)>) {
        let mut range = self.map.range(from..).expect("range");
        range.read(count, page).expect("read");
    }

    fn get_batch(&self, keys: &[u64]) -> usize {
        let values = self.map.get_batch(keys).expect("get_batch");
        values.iter().flatten().count()
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        self.map.insert_batch(records).expect("insert_batch");
    }

    fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> bool {
        self.map.bulk_load(records, fill).expect("bulk_load");
        true
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(self.map.stat().expect("stat").into())
    }
}

impl From<MapStat> for Statistics {
    fn from(stat: MapStat) -> Self {
        Self {
            kind: stat.kind.to_string(),
            records: stat.records,
            fill: stat.fill,
            file_bytes: stat.file_bytes,
            dram_bytes: stat.dram_bytes,
            leaves: stat.leaves,
            height: stat.height,
            leaf_bytes: stat.leaf_bytes,
            signposts: stat.signposts,
            splits: stat.splits,
            data_nodes: stat.data_nodes,
            inner_nodes: stat.inner_nodes,
            average_depth: stat.average_depth,
            max_depth: stat.max_depth,
            stash_ratio: stat.stash_ratio,
            overflow_ratio: stat.overflow_ratio,
            extensions: stat.extensions,
            smallest_node: stat.smallest_node,
            median_node: stat.median_node,
            largest_node: stat.largest_node,
            expansions: stat.expansions,
            expansion_ns: stat.expansion_ns,
            sideways_splits: stat.sideways_splits,
            sideways_split_ns: stat.sideways_split_ns,
            downward_splits: stat.downward_splits,
            downward_split_ns: stat.downward_split_ns,
            inner_expansions: stat.inner_expansions,
            inner_expansion_ns: stat.inner_expansion_ns,
            merges: stat.merges,
            merge_ns: stat.merge_ns,
        }
    }
}
