//! Indelible, with each of the promises that a pool can make.

use super::{Contestant, Open, Place, Survives};
use crate::index::{Index, Scanned};
use anyhow::Result;
use indelible::{Durability, Map, MapOptions, Pool, PoolOptions};

/// A map in a pool of its own.
struct Ours {
    map: Map<u64, u64>,
}

/// `indelible` is the default of the library; the others promise less and more.
pub(super) fn contestants() -> Vec<Contestant> {
    let ours = |name, about, survives, create, open| Contestant {
        name,
        about,
        survives,
        is_ours: true,
        has_batches: true,
        create,
        open,
    };
    vec![
        ours(
            "indelible-dram",
            concat!(
                "indelible ",
                env!("CARGO_PKG_VERSION"),
                ": in anonymous memory"
            ),
            Survives::Nothing,
            create_in_memory,
            None,
        ),
        ours(
            "indelible",
            concat!(
                "indelible ",
                env!("CARGO_PKG_VERSION"),
                ": on a file, Durability::Process (its default)"
            ),
            Survives::Kill,
            create_on_file,
            Some(open_on_file as Open),
        ),
        ours(
            "indelible-pmem",
            concat!(
                "indelible ",
                env!("CARGO_PKG_VERSION"),
                ": Durability::PowerLoss, flushes and fences as on persistent memory whatever the file is on"
            ),
            Survives::PowerCut,
            create_pmem,
            Some(open_pmem as Open),
        ),
    ]
}

fn create_in_memory(place: &Place) -> Result<Box<dyn Index>> {
    index(&PoolOptions::new().in_memory()?, place)
}

fn create_on_file(place: &Place) -> Result<Box<dyn Index>> {
    let path = place.directory.join("pool");
    index(&PoolOptions::new().create(path)?, place)
}

fn open_on_file(place: &Place) -> Result<Box<dyn Index>> {
    let path = place.directory.join("pool");
    reopened(&PoolOptions::new().open(path)?)
}

fn create_pmem(place: &Place) -> Result<Box<dyn Index>> {
    let path = place.directory.join("pool");
    index(&power_loss().create(path)?, place)
}

fn open_pmem(place: &Place) -> Result<Box<dyn Index>> {
    let path = place.directory.join("pool");
    reopened(&power_loss().open(path)?)
}

/// The protocol of persistent memory on any file: measures what it costs.
fn power_loss() -> PoolOptions {
    let mut options = PoolOptions::new();
    options
        .durability(Durability::PowerLoss)
        .force_power_loss_protocol(true);
    options
}

fn index(pool: &Pool, place: &Place) -> Result<Box<dyn Index>> {
    let leaf_bytes = place.leaf_bytes;
    let map = pool.map_with(
        "bench",
        MapOptions {
            leaf_bytes,
            ..MapOptions::default()
        },
    )?;
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

    fn scan(&self, from: u64, count: usize) -> Scanned {
        let mut scanned = Scanned::default();
        let mut range = self.map.range(from..).expect("range");
        for (key, value) in range.by_ref().take(count) {
            scanned.add(key, value);
        }
        if let Some(error) = range.error() {
            panic!("range: {error}");
        }
        scanned
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
}
