//! Indelible: each kind of index of the library's list, with each of the promises that a pool can make.

use super::points::OfPoints;
use super::{Contestant, Place, Survives};
use crate::index::Index;
use crate::outcome::{Fact, Number, Statistics};
use anyhow::{Context, Result};
use indelible::{
    Durability, FactValue, IndexKind, IndexOptions, IndexStat, Kind, Map, MapOptions, Pool,
    PoolOptions,
};
use std::fmt::Display;
use std::time::Duration;

/// A map in a pool of its own.
struct Ours {
    map: Map<u64, u64>,
}

/// The five contestants of each kind of index, in the order of the library's list, which begins with the default kind.
pub(super) fn contestants() -> Vec<Contestant> {
    let kinds = Kind::all().iter().copied();
    kinds.flat_map(of_kind).collect()
}

/// The contestant of a kind of index that uses the library's default pool: `indelible` for the default kind, `indelible-KIND` for
/// another kind. Four more contestants of each kind have this name and an ending: `-dram` promises less, `-pmem`, `-disk` and
/// `-disk-10ms` more.
#[must_use]
pub fn name_of(kind: Kind) -> String {
    if kind == Kind::default() {
        "indelible".into()
    } else {
        format!("indelible-{kind}")
    }
}

/// A family of our indexes: how one is made in a pool, and found there again.
pub(super) trait Family {
    fn create(pool: &Pool, place: &Place) -> Result<Box<dyn Index>>;

    fn reopen(pool: &Pool) -> Result<Box<dyn Index>>;
}

/// The contestants of one kind of index in anonymous memory, on a file, and with the protocol of persistent memory.
pub(super) fn on_memory_file_and_pmem<F: Family>(
    name: &str,
    about: impl Fn(&str) -> String,
    map: Option<MapOptions>,
    points: Option<OfPoints>,
) -> [Contestant; 3] {
    let dram = Contestant {
        name: format!("{name}-dram"),
        about: about("in anonymous memory"),
        survives: Survives::Nothing,
        map,
        kernel: None,
        points,
        has_batches: true,
        create: |place| F::create(&PoolOptions::new().in_memory()?, place),
        open: None,
    };
    let file = Contestant {
        about: about("on a file, Durability::Process (the default)"),
        survives: Survives::Kill,
        create: |place| F::create(&PoolOptions::new().create(pool(place))?, place),
        open: Some(|place| F::reopen(&PoolOptions::new().open(pool(place))?)),
        name: name.into(),
        ..dram.clone()
    };
    let pmem = Contestant {
        about: about(
            "Durability::PowerLoss, flushes and fences as on persistent memory whatever the file is on",
        ),
        survives: Survives::PowerCut,
        create: |place| F::create(&power_loss().create(pool(place))?, place),
        open: Some(|place| F::reopen(&power_loss().open(pool(place))?)),
        name: format!("{name}-pmem"),
        ..dram.clone()
    };
    [dram, file, pmem]
}

/// What is said of a kind of index of ours in a pool.
pub(super) fn about(kind: impl Display, pool: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!("indelible {version}: kind {kind}, {pool}")
}

fn of_kind(kind: Kind) -> [Contestant; 5] {
    let name = name_of(kind);
    let about = |pool: &str| about(kind, pool);
    let [dram, file, pmem] = on_memory_file_and_pmem::<Ours>(&name, about, Some(kind.into()), None);
    let disk = Contestant {
        about: about("Durability::PowerLoss with a log, as on any disk"),
        survives: Survives::PowerCut,
        create: |place| Ours::create(&logged(Durability::PowerLoss).create(pool(place))?, place),
        open: Some(|place| Ours::reopen(&PoolOptions::new().open(pool(place))?)),
        name: format!("{name}-disk"),
        ..dram.clone()
    };
    let disk_10ms = Contestant {
        about: about("Durability::Interval(10 ms) with a log, as on any disk"),
        survives: Survives::Kill,
        create: |place| Ours::create(&logged(TEN_MILLIS).create(pool(place))?, place),
        name: format!("{name}-disk-10ms"),
        ..disk.clone()
    };
    [dram, file, pmem, disk, disk_10ms]
}

/// The options that follow the `@` in the name of a contestant: the grammar of [`IndexOptions`] with `+` for the comma, because a
/// list of contestants has commas of its own. `kernel=NAME` is no option of the map, but says which kernel the process uses.
///
/// # Errors
///
/// If the kind of index has no such option, or cannot read its value. Whether a map can have these options is known when it is made.
pub(super) fn with_options<K: IndexKind>(
    mut options: IndexOptions<K>,
    text: &str,
) -> Result<(IndexOptions<K>, Option<String>)> {
    let mut kernel = None;
    for setting in text.split('+') {
        // A setting without a value is no option, or not a value that the option takes: the library says which.
        match setting.split_once('=').unwrap_or((setting, "")) {
            ("kernel", name) => kernel = Some(name.to_owned()),
            (name, value) => options = options.set(name, value)?,
        }
    }
    Ok((options, kernel))
}

/// The file of a contestant's pool.
pub(super) fn pool(place: &Place) -> std::path::PathBuf {
    place.directory.join("pool")
}

/// The protocol of persistent memory on any file: measures what it costs.
pub(super) fn power_loss() -> PoolOptions {
    let mut options = PoolOptions::new();
    options
        .durability(Durability::PowerLoss)
        .force_power_loss_protocol(true);
    options
}

const TEN_MILLIS: Durability = Durability::Interval(Duration::from_millis(10));

/// A pool with a log, also where files are memory, on which the databases run too.
fn logged(durability: Durability) -> PoolOptions {
    let mut options = PoolOptions::new();
    options.durability(durability).log_anywhere(true);
    options
}

impl Family for Ours {
    fn create(pool: &Pool, place: &Place) -> Result<Box<dyn Index>> {
        let options = place.map.as_ref();
        let options = options.context("a map of indelible needs options")?;
        let map = pool.map_with("bench", options)?;
        Ok(Box::new(Self { map }))
    }

    fn reopen(pool: &Pool) -> Result<Box<dyn Index>> {
        let map = pool.open_map("bench")?;
        Ok(Box::new(Self { map }))
    }
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

impl<K: IndexKind> From<IndexStat<K>> for Statistics {
    fn from(stat: IndexStat<K>) -> Self {
        Self {
            kind: stat.kind.to_string(),
            records: stat.records,
            file_bytes: stat.file_bytes,
            dram_bytes: stat.dram_bytes,
            facts: stat.facts.into_iter().map(Fact::from).collect(),
        }
    }
}

impl From<indelible::Fact> for Fact {
    fn from(fact: indelible::Fact) -> Self {
        Self {
            name: fact.name.into(),
            unit: fact.unit.to_string(),
            value: match fact.value {
                FactValue::Whole(number) => Number::Whole(number),
                other => Number::Real(other.as_f64()),
            },
            since_open: fact.since_open,
            meaning: fact.meaning.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indelible::MapOptions;

    /// As a command line would have them.
    fn text(options: &MapOptions) -> String {
        let options = options.to_string();
        let (_, text) = options.split_once(',').unwrap_or_default();
        text.replace(',', "+")
    }

    #[test]
    fn options_are_read_as_the_library_writes_them() {
        for &kind in Kind::all() {
            for options in MapOptions::extremes(kind) {
                let read = with_options(MapOptions::from(kind), &text(&options));
                assert_eq!(read.unwrap(), (options.clone(), None));
                let text = format!("{}+kernel=avx2", text(&options));
                let read = with_options(MapOptions::from(kind), text.trim_start_matches('+'));
                assert_eq!(read.unwrap(), (options, Some("avx2".to_owned())));
            }
            for wrong in ["", "512", "nonsense=1", "="] {
                assert!(
                    with_options(MapOptions::from(kind), wrong).is_err(),
                    "{kind}@{wrong}"
                );
            }
        }
    }
}
