//! The pool and its maps, of every kind of index, under the checker.

mod apex;
mod lbtree;

use crate::history::{Change, Saw, Steps};
use crate::{Contents, Memory, Structure, Workload, lock};
use indelible::{Durability, Kind, Map, MapOptions, Pool, PoolOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Mutex};

/// A pool with a map "m", and at times another of the same kind.
#[derive(Clone, Copy, Debug)]
pub struct Maps {
    /// The kind of index.
    pub kind: Kind,
    /// Bytes in a leaf, if the index has leaves.
    pub leaf_bytes: u32,
    /// The keys that are used.
    pub keys: Keys,
}

/// How the keys of a history lie in their domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Side by side, from 0 on.
    Dense,
    /// Equally far apart, over a part of the domain that has a simple beginning.
    Even,
    /// Anywhere, in no order.
    Wide,
    /// 32 close together, and the next ones far away.
    Clusters,
    /// Ever farther apart.
    Ladder,
    /// At both ends of the domain.
    Ends,
    /// Equally far apart, up to the end of the domain, for numbers up to 1,150.
    Top,
    /// In ever longer stretches, for numbers from 900 on.
    Octaves,
    /// Equally far apart, from the middle of the domain, where the first node of a map is divided, for numbers from 870 on.
    Middle,
}

/// Keys of a stretch of [`Keys::Octaves`].
const OCTAVE: u64 = 32;

impl Keys {
    /// All ways.
    pub const ALL: &[Self] = &[
        Self::Dense,
        Self::Even,
        Self::Wide,
        Self::Clusters,
        Self::Ladder,
        Self::Ends,
        Self::Top,
        Self::Octaves,
        Self::Middle,
    ];

    /// The key of a number.
    #[must_use]
    pub fn key(self, number: u64) -> u64 {
        match self {
            Self::Dense => number,
            Self::Even => (1 << 62) + (number << 40),
            Self::Wide => number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            Self::Clusters => ((number / 32) << 44) + number % 32 * (1 + number / 32 % 3),
            Self::Ladder => (1 << (number % 48 + 12)) + number / 48,
            Self::Octaves => {
                let number = number.saturating_sub(900);
                (OCTAVE + number % OCTAVE) << (number / OCTAVE + 20).min(50)
            }
            Self::Top => u64::MAX - ((1_150_u64.saturating_sub(number)) << 40),
            Self::Middle => (1 << 63) + (number.saturating_sub(870) << 40),
            Self::Ends if number.is_multiple_of(2) => number / 2,
            Self::Ends => u64::MAX - number / 2,
        }
    }

    /// The keys of some numbers, in order.
    fn some(self, numbers: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut keys: Vec<u64> = numbers.map(|number| self.key(number)).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// What can be done to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    Get(u64),
    GetBatch(Vec<u64>),
    Insert(u64, u64),
    InsertNew(u64, u64),
    Update(u64, u64),
    Remove(u64),
    CompareExchange(u64, Option<u64>, Option<u64>),
    InsertBatch(Vec<(u64, u64)>),
    /// From the first to the last of these keys, which are all that there may be in between; backwards.
    Range(Vec<u64>, bool),
    BulkLoad(Vec<(u64, u64)>),
    /// Another map is made, and with it an extent.
    CreateOther,
    /// It goes, and its extents are free.
    DropOther,
    Shrink,
    /// What mirrors the records in DRAM is given up.
    ReleaseMemory,
    /// The other map, which has none, takes a run of extents, as a large block would.
    TakeRun(u64),
    /// And gives it back.
    FreeRun,
    /// The pool is closed cleanly and opened again.
    Reopen,
}

use Operation::{
    BulkLoad, CompareExchange, CreateOther, DropOther, FreeRun, Get, GetBatch, Insert, InsertBatch,
    InsertNew, Range as RangeOf, ReleaseMemory, Remove, Reopen, Shrink, TakeRun, Update,
};

/// An open pool and its map.
pub struct Open {
    memory: Arc<Memory>,
    handles: Mutex<Option<(Pool, Map<u64, u64>)>>,
    /// The other map, if it has been made and is open.
    other: Mutex<Option<Map<u64, u64>>>,
}

/// Stands for the other map in the contents: how many runs of extents it has, if it is there. No history has it as a key.
const OTHER: u64 = 0x07e2_0000_0000_0e55;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn options() -> PoolOptions {
    PoolOptions::new()
        .durability(Durability::PowerLoss)
        .force_power_loss_protocol(true)
        .boot_identity([7; 16])
        .to_owned()
}

impl Maps {
    /// Maps with leaves of 256 bytes, if they have leaves, and keys side by side.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        Self {
            kind,
            leaf_bytes: 256,
            keys: Keys::Dense,
        }
    }

    fn options(&self, leaf_bytes: u32) -> MapOptions {
        MapOptions {
            kind: self.kind,
            leaf_bytes,
            ..MapOptions::default()
        }
    }
}

impl Open {
    fn new(memory: &Arc<Memory>, pool: Pool, map: Map<u64, u64>) -> Self {
        Self {
            memory: Arc::clone(memory),
            handles: Mutex::new(Some((pool, map))),
            other: Mutex::new(None),
        }
    }

    fn handles(&self) -> Result<(Pool, Map<u64, u64>), String> {
        let handles = lock(&self.handles);
        handles.clone().ok_or_else(|| "it is closed".into())
    }

    fn set_other(&self, map: Option<Map<u64, u64>>) {
        *lock(&self.other) = map;
    }

    fn reopen(&self) -> Result<(), String> {
        self.set_other(None);
        let mut handles = lock(&self.handles);
        if let Some((pool, map)) = handles.take() {
            drop(map);
            pool.close().map_err(text)?;
        }
        let pool = options().open_memory(&self.memory).map_err(text)?;
        let map = pool.open_map("m").map_err(text)?;
        *handles = Some((pool, map));
        Ok(())
    }
}

impl Structure for Maps {
    type Open = Open;
    type Operation = Operation;

    fn create(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        let pool = options().create_memory(memory).map_err(text)?;
        let map = pool
            .map_with("m", self.options(self.leaf_bytes))
            .map_err(text)?;
        // So that its first extent is used as well.
        map.warm_up().map_err(text)?;
        Ok(Open::new(memory, pool, map))
    }

    fn recover(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        let pool = options().open_memory(memory).map_err(text)?;
        let map = pool.open_map("m").map_err(text)?;
        Ok(Open::new(memory, pool, map))
    }

    fn run(&self, open: &Open, operation: &Operation) -> Result<Vec<Saw>, String> {
        if *operation == Reopen {
            open.reopen()?;
            return Ok(Vec::new());
        }
        let (pool, map) = open.handles()?;
        let value = |result: indelible::Result<Option<u64>>| {
            result.map(|value| vec![Saw::Value(value)]).map_err(text)
        };
        match operation {
            Get(key) => value(map.get(*key)),
            Insert(key, new) => value(map.insert(*key, *new)),
            Update(key, new) => value(map.update(*key, *new)),
            Remove(key) => value(map.remove(*key)),
            InsertNew(key, new) => {
                let is_new = map.insert_new(*key, *new).map_err(text)?;
                Ok(vec![Saw::Presence(!is_new)])
            }
            CompareExchange(key, current, new) => {
                let result = map.compare_exchange(*key, *current, *new).map_err(text)?;
                Ok(vec![Saw::Value(
                    result.map_or_else(|now| now, |()| *current),
                )])
            }
            GetBatch(keys) => {
                let values = map.get_batch(keys).map_err(text)?;
                Ok(values.into_iter().map(Saw::Value).collect())
            }
            InsertBatch(records) => {
                map.insert_batch(records).map_err(text)?;
                Ok(vec![Saw::Nothing; records.len()])
            }
            RangeOf(keys, backwards) => range(&map, keys, *backwards),
            BulkLoad(records) => {
                map.bulk_load(records, 0.8).map_err(text)?;
                Ok(vec![Saw::Nothing; records.len()])
            }
            CreateOther => {
                let other = pool.map_with("other", self.options(256)).map_err(text)?;
                open.set_other(Some(other));
                Ok(vec![Saw::Nothing])
            }
            DropOther => {
                open.set_other(None);
                pool.drop_map("other").map_err(text)?;
                Ok(vec![Saw::Nothing])
            }
            Shrink => pool.shrink().map(|_| Vec::new()).map_err(text),
            ReleaseMemory => {
                map.release_memory();
                Ok(Vec::new())
            }
            TakeRun(extents) => pool
                .take_run("other", *extents)
                .map(|()| vec![Saw::Nothing])
                .map_err(text),
            FreeRun => pool
                .free_runs("other")
                .map(|()| vec![Saw::Nothing])
                .map_err(text),
            Reopen => Ok(Vec::new()),
        }
    }

    fn steps(&self, operation: &Operation) -> Steps {
        let puts = |records: &[(u64, u64)], atomic| Steps {
            steps: records
                .iter()
                .map(|&(key, value)| (key, Change::Put(value)))
                .collect(),
            atomic,
        };
        let gets = |keys: &mut dyn Iterator<Item = u64>| Steps {
            steps: keys.map(|key| (key, Change::Get)).collect(),
            atomic: false,
        };
        match operation {
            Get(key) => Steps::one(*key, Change::Get),
            Insert(key, value) => Steps::one(*key, Change::Put(*value)),
            InsertNew(key, value) => Steps::one(*key, Change::PutNew(*value)),
            Update(key, value) => Steps::one(*key, Change::Update(*value)),
            Remove(key) => Steps::one(*key, Change::Remove),
            CompareExchange(key, from, to) => Steps::one(*key, Change::Exchange(*from, *to)),
            GetBatch(keys) => gets(&mut keys.iter().copied()),
            RangeOf(keys, _) => gets(&mut keys.iter().copied()),
            InsertBatch(records) => puts(records, false),
            BulkLoad(records) => puts(records, true),
            CreateOther => Steps::one(OTHER, Change::PutNew(0)),
            DropOther => Steps::one(OTHER, Change::Remove),
            TakeRun(_) => Steps::one(OTHER, Change::Update(1)),
            FreeRun => Steps::one(OTHER, Change::Update(0)),
            Shrink | ReleaseMemory | Reopen => Steps::default(),
        }
    }

    fn contents(&self, open: &Open) -> Result<Contents, String> {
        let (pool, map) = open.handles()?;
        let mut problems = map.check().map_err(text)?;
        problems.extend(pool.check());
        let mut range = map.iter();
        let mut contents: Contents = range.by_ref().collect();
        range.error().map_or(Ok(()), Err).map_err(text)?;
        if pool.maps().len() > 1 {
            let other = pool.open_map::<u64, u64>("other").map_err(text)?;
            problems.extend(other.check().map_err(text)?);
            if other.len().map_err(text)? > 0 {
                problems.push("the other map has records".into());
            }
            let at = contents.partition_point(|&(key, _)| key < OTHER);
            contents.insert(at, (OTHER, pool.runs("other").map_err(text)? as u64));
        }
        if problems.is_empty() {
            Ok(contents)
        } else {
            Err(problems.join("; "))
        }
    }

    fn probes(&self, seed: u64) -> Vec<Operation> {
        let key = |shift: u32| self.keys.key((seed >> shift) % 200);
        let mut probes = vec![Insert(key(16), 7), Get(key(16))];
        if (seed >> 4).is_multiple_of(4) {
            probes.push(Remove(key(26)));
        }
        if (seed >> 4).is_multiple_of(16) {
            let from = (seed >> 46) % 200;
            let keys = self.keys.some((0..6).map(|i| from + 3 * i));
            probes.push(InsertBatch(keys.into_iter().map(|key| (key, 8)).collect()));
        }
        probes
    }

    fn crash(&self, open: &Open) {
        if let Ok((pool, _)) = open.handles() {
            pool.abandon();
        }
    }
}

/// What a range from the first to the last of `keys` says of each of them.
fn range(map: &Map<u64, u64>, keys: &[u64], backwards: bool) -> Result<Vec<Saw>, String> {
    let (Some(&from), Some(&to)) = (keys.first(), keys.last()) else {
        return Ok(Vec::new());
    };
    let mut range = map.range(from..=to).map_err(text)?;
    let mut found: Contents = if backwards {
        range.by_ref().rev().collect()
    } else {
        range.by_ref().collect()
    };
    range.error().map_or(Ok(()), Err).map_err(text)?;
    if backwards {
        found.reverse();
    }
    let is_ordered = found.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let is_inside = found.iter().all(|(key, _)| keys.binary_search(key).is_ok());
    if !is_ordered || !is_inside {
        return Err(format!("a range over {from}..={to} gave {found:?}"));
    }
    let value = |key| {
        let at = found.binary_search_by_key(&key, |record| record.0).ok()?;
        Some(found[at].1)
    };
    Ok(keys.iter().map(|&key| Saw::Value(value(key))).collect())
}

/// The history of a seed: `operations` of them by `threads` threads. Seeds take turns at the themes of histories, and, if no
/// kind of index is given, at those first.
#[must_use]
pub fn history(
    kind: Option<Kind>,
    seed: u64,
    operations: usize,
    threads: usize,
) -> (Maps, Workload<Operation>) {
    let Some(kind) = kind else {
        let kind = KINDS[seed as usize % KINDS.len()];
        return history(Some(kind), seed / KINDS.len() as u64, operations, threads);
    };
    if kind == Kind::LbTree && threads < 2 && seed % 64 == 63 {
        return (Maps::of(kind), lbtree::tall(seed, operations));
    }
    let theme = seed % themes(kind, threads);
    history_of_theme(kind, theme, seed, operations, threads)
}

/// Merges of APEX in a pool with about so many inner nodes, where small blocks may have run out.
pub(crate) fn merging(crowds: u64) -> (Maps, Workload<Operation>) {
    (Maps::of(Kind::Apex), apex::merging(crowds))
}

/// The kinds of index that there are.
pub const KINDS: [Kind; 2] = [Kind::LbTree, Kind::Apex];

/// How many themes there are for histories of so many threads.
pub(crate) fn themes(kind: Kind, threads: usize) -> u64 {
    match (kind, threads) {
        (Kind::Apex, ..2) => apex::THEMES,
        (Kind::Apex, _) => apex::THEMES_TOGETHER,
        (_, ..2) => lbtree::THEMES,
        _ => lbtree::THEMES_TOGETHER,
    }
}

/// A history of one theme, below [`themes`].
pub(crate) fn history_of_theme(
    kind: Kind,
    theme: u64,
    seed: u64,
    operations: usize,
    threads: usize,
) -> (Maps, Workload<Operation>) {
    let mut random = SmallRng::seed_from_u64(seed);
    if kind == Kind::Apex {
        let keys = apex::keys(theme, threads, &mut random);
        let mut workload = if threads < 2 {
            apex::alone(keys, theme, operations, &mut random)
        } else {
            apex::together(keys, theme, operations, threads, &mut random)
        };
        if seed / themes(kind, threads) % 3 == 2 {
            with_releases(&mut workload, &mut random);
        }
        return (
            Maps {
                keys,
                ..Maps::of(kind)
            },
            workload,
        );
    }
    let leaf_bytes = [256, 256, 256, 512, 256, 768, 256, 1024][random.random_range(0..8)];
    let workload = if threads < 2 {
        lbtree::alone(theme, seed, operations, &mut random)
    } else {
        lbtree::together(theme, seed, operations, threads, &mut random)
    };
    (
        Maps {
            leaf_bytes,
            ..Maps::of(kind)
        },
        workload,
    )
}

/// What has become of the other map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Absent,
    There,
    HasRun,
}

/// An operation on the pool rather than the map. An index with blocks of all sizes sweeps runs that it does not know, so
/// those are only taken for one without.
fn in_catalog(kind: Kind, random: &mut SmallRng, other: &mut Other) -> Operation {
    let most = if kind == Kind::LbTree { 9 } else { 6 };
    let (operation, now) = match (random.random_range(0..most), *other) {
        (0..3, now) => (Shrink, now),
        (_, Other::Absent) => (CreateOther, Other::There),
        (6..9, Other::There) => (TakeRun(random.random_range(2..4)), Other::HasRun),
        (6..9, Other::HasRun) => (FreeRun, Other::There),
        _ => (DropOther, Other::Absent),
    };
    *other = now;
    operation
}

/// Now and then the mirrors are given up, and are made anew on first touch.
fn with_releases(workload: &mut Workload<Operation>, random: &mut SmallRng) {
    for operations in &mut workload.threads {
        let own = std::mem::take(operations);
        for operation in own {
            if random.random_ratio(1, 8) {
                operations.push(ReleaseMemory);
            }
            operations.push(operation);
        }
    }
}

/// Removes whatever is there before each bulk load.
fn only_loads_into_empty(operations: Vec<Operation>) -> Vec<Operation> {
    let mut present = std::collections::BTreeSet::new();
    let mut result = Vec::new();
    for operation in operations {
        match &operation {
            BulkLoad(records) => {
                // From both ends, so that leaves merge with either neighbour.
                let keys: Vec<u64> = std::mem::take(&mut present).into_iter().collect();
                let (low, high) = keys.split_at(keys.len() / 2);
                result.extend(low.iter().chain(high.iter().rev()).map(|&key| Remove(key)));
                present.extend(records.iter().map(|record| record.0));
            }
            Remove(key) => {
                present.remove(key);
            }
            _ => {}
        }
        result.push(operation);
    }
    result
}
