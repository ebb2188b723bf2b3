//! The pool and the LB+-tree under the checker.

use crate::history::{Change, Saw, Steps};
use crate::{Contents, Memory, Structure, Workload, lock};
use indelible::{Durability, Kind, Map, MapOptions, Pool, PoolOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Mutex};

/// A pool with a map "m", and at times another.
#[derive(Clone, Copy, Debug)]
pub struct LbTree {
    /// Bytes in a leaf.
    pub leaf_bytes: u32,
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
    /// From and to, both included; backwards.
    Range(u64, u64, bool),
    BulkLoad(Vec<(u64, u64)>),
    /// Another map is made, and with it an extent.
    CreateOther,
    /// It goes, and its extents are free.
    DropOther,
    Shrink,
    /// The other map, which has none, takes a run of extents, as a large block would.
    TakeRun(u64),
    /// And gives it back.
    FreeRun,
    /// The pool is closed cleanly and opened again.
    Reopen,
}

use Operation::{
    BulkLoad, CompareExchange, CreateOther, DropOther, FreeRun, Get, GetBatch, Insert, InsertBatch,
    InsertNew, Range as RangeOf, Remove, Reopen, Shrink, TakeRun, Update,
};

/// An open pool and its map.
pub struct Open {
    memory: Arc<Memory>,
    handles: Mutex<Option<(Pool, Map<u64, u64>)>>,
    /// The other map, if it has been made and is open.
    other: Mutex<Option<Map<u64, u64>>>,
}

/// Stands for the other map in the contents: how many runs of extents it has, if it is there. No history has it as a key.
const OTHER: u64 = u64::MAX;

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

fn lbtree(leaf_bytes: u32) -> MapOptions {
    MapOptions {
        kind: Kind::LbTree,
        leaf_bytes,
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

impl Structure for LbTree {
    type Open = Open;
    type Operation = Operation;

    fn create(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        let pool = options().create_memory(memory).map_err(text)?;
        let map = pool.map_with("m", lbtree(self.leaf_bytes)).map_err(text)?;
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
            RangeOf(from, to, backwards) => range(&map, *from, *to, *backwards),
            BulkLoad(records) => {
                map.bulk_load(records, 0.8).map_err(text)?;
                Ok(vec![Saw::Nothing; records.len()])
            }
            CreateOther => {
                open.set_other(Some(pool.map_with("other", lbtree(256)).map_err(text)?));
                Ok(vec![Saw::Nothing])
            }
            DropOther => {
                open.set_other(None);
                pool.drop_map("other").map_err(text)?;
                Ok(vec![Saw::Nothing])
            }
            Shrink => pool.shrink().map(|_| Vec::new()).map_err(text),
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
            RangeOf(from, to, _) => gets(&mut (*from..=*to)),
            InsertBatch(records) => puts(records, false),
            BulkLoad(records) => puts(records, true),
            CreateOther => Steps::one(OTHER, Change::PutNew(0)),
            DropOther => Steps::one(OTHER, Change::Remove),
            TakeRun(_) => Steps::one(OTHER, Change::Update(1)),
            FreeRun => Steps::one(OTHER, Change::Update(0)),
            Shrink | Reopen => Steps::default(),
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
            contents.push((OTHER, pool.runs("other").map_err(text)? as u64));
        }
        if problems.is_empty() {
            Ok(contents)
        } else {
            Err(problems.join("; "))
        }
    }

    fn probes(&self, seed: u64) -> Vec<Operation> {
        let key = |shift: u32| (seed >> shift) % 200;
        let mut probes = vec![Insert(key(16), 7), Get(key(16))];
        if (seed >> 4).is_multiple_of(4) {
            probes.push(Remove(key(26)));
        }
        if (seed >> 4).is_multiple_of(16) {
            probes.push(InsertBatch((0..6).map(|i| (key(46) + 3 * i, 8)).collect()));
        }
        probes
    }

    fn crash(&self, open: &Open) {
        if let Ok((pool, _)) = open.handles() {
            pool.abandon();
        }
    }
}

/// What a range says of every key between its bounds.
fn range(map: &Map<u64, u64>, from: u64, to: u64, backwards: bool) -> Result<Vec<Saw>, String> {
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
    let is_inside = found.iter().all(|(key, _)| (from..=to).contains(key));
    if !is_ordered || !is_inside {
        return Err(format!("a range over {from}..={to} gave {found:?}"));
    }
    let value = |key| {
        let at = found.binary_search_by_key(&key, |record| record.0).ok()?;
        Some(found[at].1)
    };
    Ok((from..=to).map(|key| Saw::Value(value(key))).collect())
}

/// The history of a seed: `operations` of them by `threads` threads. Seeds take turns at the kinds of histories.
#[must_use]
pub fn history(seed: u64, operations: usize, threads: usize) -> (LbTree, Workload<Operation>) {
    if threads < 2 && seed % 64 == 63 {
        return (LbTree { leaf_bytes: 256 }, tall(seed, operations));
    }
    let kinds = if threads < 2 { KINDS } else { KINDS_TOGETHER };
    history_of_kind(seed % kinds, seed, operations, threads)
}

/// A history of one kind, below [`KINDS`], or of several threads below [`KINDS_TOGETHER`].
pub(crate) fn history_of_kind(
    kind: u64,
    seed: u64,
    operations: usize,
    threads: usize,
) -> (LbTree, Workload<Operation>) {
    let mut random = SmallRng::seed_from_u64(seed);
    let leaf_bytes = [256, 256, 256, 512, 256, 768, 256, 1024][random.random_range(0..8)];
    let workload = if threads < 2 {
        alone(kind, seed, operations, &mut random)
    } else {
        together(kind, seed, operations, threads, &mut random)
    };
    (LbTree { leaf_bytes }, workload)
}

/// Kinds of histories of one thread.
pub(crate) const KINDS: u64 = 8;

fn alone(kind: u64, seed: u64, operations: usize, random: &mut SmallRng) -> Workload<Operation> {
    // Small maps are searched fast; of larger ones the inner nodes split too.
    let keys = [30, 60, 60, 180][random.random_range(0..4)];
    let size = random.random_range(1..keys / 2);
    let before = match kind {
        // Bulk loads need an empty map; the others begin with one that has seen some life.
        3 | 7 => Vec::new(),
        _ => (0..size)
            .map(|i| Insert(random.random_range(0..keys), i))
            .collect(),
    };
    let mut recorded = Vec::with_capacity(operations);
    let (mut other, mut at) = (Other::Absent, 1_000);
    for i in 0..operations as u64 {
        let key = random.random_range(0..keys);
        let dice = random.random_range(0..16);
        let operation = match (kind, dice) {
            (0, 0) => Remove(key),
            (0, _) => Insert(key, i),
            // Neighbours, so that leaves run empty and merge; then they fill again.
            (1, 0..14) if i % keys < keys * 2 / 3 => Remove((seed * 7 + i) % keys),
            (1, _) => Insert(key, i),
            (2, 0..6) => InsertBatch(batch(random, keys, i)),
            (2, 6..12) => Remove(key),
            (2, _) => Insert(key, i),
            (3 | 7, _) if i % 64 == 0 => BulkLoad(load(random)),
            // Until the map is empty, and can be loaded again.
            (7, 0..4) | (3, 0..6) => in_catalog(random, &mut other),
            (3 | 7, _) => Remove(key),
            (4, 0) => Reopen,
            (4, 1..6) => Insert(key, i),
            (4, 6..10) => Remove(key),
            (5, 0) => Remove(at - random.random_range(0..20)),
            (5, _) => {
                at += 1;
                Insert(at, i)
            }
            (_, 0..4) => Insert(key, i),
            (_, 4..6) => Remove(key),
            (_, 6) => InsertNew(key, i),
            (_, 7) => Update(key, i),
            (_, 8) => CompareExchange(key, None, Some(i)),
            (_, 9) => CompareExchange(key, Some(i / 2), None),
            (_, 10) => Get(key),
            (_, 11) => RangeOf(key, key + 20, i % 2 == 0),
            (_, 12) => GetBatch((0..20).map(|j| key + 3 * j).collect()),
            (_, 13) => InsertBatch(batch(random, keys, i)),
            (_, _) => in_catalog(random, &mut other),
        };
        recorded.push(operation);
    }
    if kind == 3 || kind == 7 {
        recorded = only_loads_into_empty(recorded);
    }
    Workload {
        before,
        threads: vec![recorded],
    }
}

/// A map with so many leaves that its root gets another level as it grows, or loses it as it shrinks.
fn tall(seed: u64, operations: usize) -> Workload<Operation> {
    let operations = operations as u64;
    let grows = (seed / 64).is_multiple_of(2);
    let most = if grows { 1_400 } else { 1_700 };
    let load = BulkLoad((0..most).map(|key| (key, seed)).collect());
    if grows {
        return Workload {
            before: vec![load],
            threads: vec![
                (most..most + operations)
                    .map(|key| Insert(key, 1))
                    .collect(),
            ],
        };
    }
    // About where the last but one of the upper nodes goes.
    let from = 1110;
    Workload {
        before: std::iter::once(load)
            .chain((from..most).rev().map(Remove))
            .collect(),
        threads: vec![
            (0..from)
                .rev()
                .map(Remove)
                .take(operations as usize)
                .collect(),
        ],
    }
}

/// What has become of the other map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Other {
    Absent,
    There,
    HasRun,
}

/// An operation on the pool rather than the map.
fn in_catalog(random: &mut SmallRng, other: &mut Other) -> Operation {
    let (operation, now) = match (random.random_range(0..9), *other) {
        (0..3, now) => (Shrink, now),
        (_, Other::Absent) => (CreateOther, Other::There),
        (3..6, Other::There) => (TakeRun(random.random_range(2..4)), Other::HasRun),
        (3..6, Other::HasRun) => (FreeRun, Other::There),
        _ => (DropOther, Other::Absent),
    };
    *other = now;
    operation
}

fn batch(random: &mut SmallRng, keys: u64, value: u64) -> Vec<(u64, u64)> {
    let from = random.random_range(0..keys);
    let step = random.random_range(1..5);
    let count = random.random_range(2..20);
    (0..count).map(|i| (from + i * step, value)).collect()
}

fn load(random: &mut SmallRng) -> Vec<(u64, u64)> {
    let count = random.random_range(0..90);
    let step = random.random_range(1..4);
    (0..count).map(|i| (i * step, i)).collect()
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

/// Kinds of histories of several threads.
pub(crate) const KINDS_TOGETHER: u64 = 7;

fn puts(keys: std::ops::Range<u64>) -> Vec<Operation> {
    keys.map(|key| Insert(key, 1_000 + key)).collect()
}

/// Keys below this lie in thin leaves.
const THIN: u64 = 28 * 8;
/// Leaves, more than one bottom node holds: what happens under different ones may happen at once.
const LEAVES: u64 = 18;

/// The first key of one of them.
fn thin_leaf(seed: u64, i: u64) -> u64 {
    THIN - 28 - (seed + i / 2) * 28 % THIN
}

/// Leaves with four records each, which merge at the first removal, and others that split at the first insert.
fn thin_and_full_leaves() -> Vec<Operation> {
    let keys = (0..14 * LEAVES).map(|key| 2 * key);
    let removed = keys.clone().filter(|&key| key < THIN && key % 28 >= 8);
    let inserts = keys.map(|key| Insert(key, 1_000 + key));
    inserts.chain(removed.map(Remove)).collect()
}

/// Threads on few keys, so that they meet; on leaves that are about to split or to merge.
fn together(
    kind: u64,
    seed: u64,
    operations: usize,
    threads: usize,
    random: &mut SmallRng,
) -> Workload<Operation> {
    let keys = match kind {
        0 => 10,
        1 | 2 => 60,
        // Full leaves, and one with two records, which has an extent of its own.
        3 => 14 * random.random_range(12..15) + 2,
        6 => random.random_range(12..17) * 28,
        _ => LEAVES * 28,
    };
    let before = match kind {
        0 => puts(0..random.random_range(0..10)),
        1 => puts(0..14),
        2 | 3 => puts(0..keys),
        // Full leaves; their extent is nearly full too.
        6 => (0..keys / 2).map(|key| Insert(2 * key, 0)).collect(),
        _ => thin_and_full_leaves(),
    };
    let per_thread = (operations / threads).max(1);
    let mut value = 0;
    let mut thread = |number: u64| {
        let mut one = |i: u64| {
            value += 1;
            let key = random.random_range(0..keys);
            let is_even = number.is_multiple_of(2);
            match (kind, random.random_range(0..16)) {
                (1, 0..9) => Insert(key, value),
                (2, 0..9) => Remove(key),
                (3, 0..14) if is_even => Get(keys - 1 - i % 2),
                // That leaf goes, and with it the end of the file; and comes again.
                (3, _) if !is_even => match i % 5 {
                    0 | 1 => Remove(keys - 1 - i % 5),
                    2 => Shrink,
                    back => Insert(keys + 2 - back, value),
                },
                // One thread merges leaves, from right to left, so that what it frees is what is taken next, while another
                // one splits some, or fills the same.
                (4 | 5, 0..=8) if is_even => Remove(thin_leaf(seed, i) + i % 4 * 2),
                (6, 0..14) => Insert(key | 1, value),
                (4, 0..12) => Insert(random.random_range(THIN..keys) | 1, value),
                (5, 0..=8) => Insert(thin_leaf(seed, i) + 1 + i % 12, value),
                (_, 0..3) => Insert(key, value),
                (_, 3..5) => Remove(key),
                (_, 5) => InsertNew(key, value),
                (_, 6) => Update(key, value),
                (_, 7) => CompareExchange(key, None, Some(value)),
                (_, 8) => CompareExchange(key, Some(1_000 + key), None),
                (_, 9..12) => Get(key),
                (_, 12) => RangeOf(key.saturating_sub(6), key + 6, value % 2 == 0),
                (_, 13) => GetBatch((0..6_u64).map(|j| (key + j) % keys).collect()),
                (_, 14) => InsertBatch((0..4).map(|j| ((key + j) % keys, value)).collect()),
                (_, _) => Update(key, value),
            }
        };
        (0..per_thread as u64).map(&mut one).collect()
    };
    let threads = (0..threads as u64).map(&mut thread).collect();
    Workload { before, threads }
}
