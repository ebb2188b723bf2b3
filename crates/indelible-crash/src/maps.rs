//! The pool and its maps, of every kind of index, under the checker. What a kind needs for this its engine brings; see
//! [`Suite`](indelible::checker::Suite).

use crate::history::{Change, Saw, Steps};
use crate::{Contents, CrashModel, Memory, Structure, Workload, lock};
use Operation::{
    BulkLoad, CompareExchange, CreateOther, DropOther, FreeRun, Get, GetBatch, GetInParts, Insert,
    InsertBatch, InsertInParts, InsertNew, Range as RangeOf, ReleaseMemory, Remove, RenameOther,
    Reopen, Shrink, TakeRun, Update,
};
use indelible::checker::{Family, History};
pub use indelible::checker::{Keys, Operation, Size};
use indelible::{Durability, Kind, Map, MapOptions, Pool, PoolOptions};
use std::sync::{Arc, Mutex};

/// A pool with a map "m", and at times another of the same kind.
#[derive(Clone, Debug)]
pub struct Maps {
    /// How the map is created.
    pub options: MapOptions,
    /// The keys that are used.
    pub keys: Keys,
    /// The crashes that the pool survives, as it promises.
    pub survives: CrashModel,
}

/// An open pool and its map.
pub struct Open {
    memory: Arc<Memory>,
    survives: CrashModel,
    handles: Mutex<Option<(Pool, Map<u64, u64>)>>,
    /// The other map, if it has been made and is open.
    other: Mutex<Option<Map<u64, u64>>>,
}

/// Stands for the other map in the contents: how many runs of extents it has, if it is there. No history has it as a key.
pub(crate) const OTHER: u64 = 0x07e2_0000_0000_0e55;

/// In the contents if the other map has its second name. The key after [`OTHER`], and no history's either.
pub(crate) const SECOND_NAME: u64 = OTHER + 1;

/// What happens to the other object of a pool, as changes of these two keys.
impl Steps {
    /// The creation of the other object.
    #[must_use]
    pub(crate) fn other_created() -> Self {
        Self::one(OTHER, Change::PutNew(0))
    }

    /// The other object gets its second name, or its first one again.
    #[must_use]
    pub(crate) fn other_renamed(to_second: bool) -> Self {
        let change = if to_second {
            Change::Put(1)
        } else {
            Change::Remove
        };
        Self::one(SECOND_NAME, change)
    }

    /// The end of the other object.
    #[must_use]
    pub(crate) fn other_dropped() -> Self {
        Self {
            steps: [OTHER, SECOND_NAME]
                .map(|key| (key, Change::Remove))
                .to_vec(),
            atomic: true,
        }
    }
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// What a pool promises that survives these crashes.
pub(crate) fn options(survives: CrashModel) -> PoolOptions {
    let durability = match survives {
        CrashModel::Process => Durability::Process,
        CrashModel::Pmem | CrashModel::Disk => Durability::PowerLoss,
    };
    PoolOptions::new()
        .durability(durability)
        .force_power_loss_protocol(survives == CrashModel::Pmem)
        .boot_identity([7; 16])
        .to_owned()
}

impl Maps {
    /// Maps of a kind with its default options, and keys side by side.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        Self {
            options: kind.into(),
            keys: Keys::Dense,
            survives: CrashModel::Pmem,
        }
    }
}

impl Open {
    fn new(memory: &Arc<Memory>, survives: CrashModel, pool: Pool, map: Map<u64, u64>) -> Self {
        Self {
            memory: Arc::clone(memory),
            survives,
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
        let pool = options(self.survives)
            .open_memory(&self.memory)
            .map_err(text)?;
        let map = pool.open_map("m").map_err(text)?;
        *handles = Some((pool, map));
        Ok(())
    }
}

impl Structure for Maps {
    type Open = Open;
    type Operation = Operation;

    fn create(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        let pool = options(self.survives).create_memory(memory).map_err(text)?;
        let map = pool.map_with("m", self.options.clone()).map_err(text)?;
        // So that its first extent is used as well.
        map.warm_up().map_err(text)?;
        Ok(Open::new(memory, self.survives, pool, map))
    }

    fn recover(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        let pool = options(self.survives).open_memory(memory).map_err(text)?;
        let map = pool.open_map("m").map_err(text)?;
        Ok(Open::new(memory, self.survives, pool, map))
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
                Ok(vec![Saw::Value(match result {
                    indelible::CompareExchange::Exchanged => *current,
                    indelible::CompareExchange::Unchanged(now) => now,
                })])
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
                let other = pool.map_with("other", self.options.kind()).map_err(text)?;
                open.set_other(Some(other));
                Ok(vec![Saw::Nothing])
            }
            RenameOther(to_second) => {
                let [from, to] = [!to_second, *to_second].map(|n| OTHER_NAMES[usize::from(n)]);
                pool.rename_map(from, to).map_err(text)?;
                Ok(vec![Saw::Nothing])
            }
            DropOther => {
                open.set_other(None);
                let name = other_name(pool.maps().into_iter().map(|info| info.name))
                    .ok_or("there is no other map")?;
                pool.drop_map(name).map_err(text)?;
                Ok(vec![Saw::Nothing; 2])
            }
            Shrink => pool.shrink().map(|_| Vec::new()).map_err(text),
            ReleaseMemory => {
                map.release_memory();
                Ok(Vec::new())
            }
            GetInParts(_) | InsertInParts(..) => {
                Err("a map of words has no parts of values".into())
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
            CreateOther => Steps::other_created(),
            RenameOther(to_second) => Steps::other_renamed(*to_second),
            DropOther => Steps::other_dropped(),
            TakeRun(_) => Steps::one(OTHER, Change::Update(1)),
            FreeRun => Steps::one(OTHER, Change::Update(0)),
            Shrink | ReleaseMemory | Reopen | GetInParts(_) | InsertInParts(..) => Steps::default(),
        }
    }

    fn contents(&self, open: &Open) -> Result<Contents, String> {
        let (pool, map) = open.handles()?;
        let mut problems = map.check().map_err(text)?;
        problems.extend(pool.check());
        let mut contents: Contents = map.iter().collect::<Result<_, _>>().map_err(text)?;
        if pool.maps().len() > 1 {
            let name = other_name(pool.maps().into_iter().map(|info| info.name))
                .ok_or("the other map has neither of its names")?;
            let other = pool.open_map::<u64, u64>(name).map_err(text)?;
            problems.extend(other.check().map_err(text)?);
            if other.len().map_err(text)? > 0 {
                problems.push("the other map has records".into());
            }
            let at = contents.partition_point(|&(key, _)| key < OTHER);
            contents.insert(at, (OTHER, pool.runs(name).map_err(text)? as u64));
            if name == OTHER_NAMES[1] {
                contents.insert(at + 1, (SECOND_NAME, 1));
            }
        }
        if_sound(contents, &problems)
    }

    fn probes(&self, seed: u64, near: &[u64]) -> Vec<Operation> {
        // Every other time where something was happening.
        let near = one_near(seed, near);
        let key = |shift: u32| match near {
            // That key, or one beside it.
            Some(key) => key.wrapping_add(seed >> shift & 1),
            None => self.keys.key(self.keys.first() + (seed >> shift) % 200),
        };
        let mut probes = vec![Insert(key(16), 7), Get(key(16))];
        if (seed >> 4).is_multiple_of(4) {
            probes.push(Remove(key(26)));
        }
        if (seed >> 4).is_multiple_of(16) {
            let keys = match near {
                // So many that there is no room for all of them.
                Some(key) => Keys::Dense.some((0..16).map(|i| key.wrapping_add(i))),
                None => {
                    let from = self.keys.first() + (seed >> 46) % 200;
                    self.keys.some((0..6).map(|i| from + 3 * i))
                }
            };
            probes.push(InsertBatch(keys.into_iter().map(|key| (key, 8)).collect()));
        }
        probes.extend(of_pool(seed, Reopen, Shrink));
        probes
    }

    fn may_shorten(&self, operation: &Operation) -> bool {
        matches!(operation, Shrink | Reopen)
    }

    fn crash(&self, open: &Open) {
        if let Ok((pool, _)) = open.handles() {
            pool.abandon();
        }
    }
}

/// One of the keys where something was happening, every other time.
pub(crate) fn one_near(seed: u64, near: &[u64]) -> Option<u64> {
    let near = near.iter().copied();
    let keys: Vec<u64> = near
        .filter(|&key| key != OTHER && key != SECOND_NAME)
        .collect();
    let is_near = seed >> 63 == 0 && !keys.is_empty();
    is_near.then(|| keys[(seed >> 52) as usize % 2_048 % keys.len()])
}

/// What is done to the whole pool after some recoveries.
pub(crate) fn of_pool<O>(seed: u64, reopen: O, shrink: O) -> Option<O> {
    match (seed >> 4) % 64 {
        6 => Some(reopen),
        37 => Some(shrink),
        _ => None,
    }
}

/// The names that the other map has in turn.
pub(crate) const OTHER_NAMES: [&str; 2] = [
    "other",
    "another, with a name that is longer than a line of names",
];

/// Which of its names the other object has, if it is there: `all` are the names of the objects of the family.
pub(crate) fn other_name(all: impl Iterator<Item = String>) -> Option<&'static str> {
    let all: Vec<String> = all.collect();
    let is_used = |name: &&str| all.iter().any(|other| other == name);
    OTHER_NAMES.into_iter().find(is_used)
}

/// Tells that the other object is there, behind all that the first one has.
pub(crate) fn add_other(contents: &mut Contents, name: &str) {
    contents.push((OTHER, 0));
    if name == OTHER_NAMES[1] {
        contents.push((SECOND_NAME, 1));
    }
}

/// The contents, unless there are problems.
pub(crate) fn if_sound(contents: Contents, problems: &[String]) -> Result<Contents, String> {
    if problems.is_empty() {
        Ok(contents)
    } else {
        Err(problems.join("; "))
    }
}

/// What a range from the first to the last of `keys` says of each of them.
fn range(map: &Map<u64, u64>, keys: &[u64], backwards: bool) -> Result<Vec<Saw>, String> {
    let (Some(&from), Some(&to)) = (keys.first(), keys.last()) else {
        return Ok(Vec::new());
    };
    let range = map.range(from..=to).map_err(text)?;
    let found: indelible::Result<Contents> = if backwards {
        range.rev().collect()
    } else {
        range.collect()
    };
    told_by_range(keys, found.map_err(text)?, backwards)
}

/// What a range from the first to the last of `keys` says of each of them, if it has found these records.
pub(crate) fn told_by_range(
    keys: &[u64],
    mut found: Contents,
    backwards: bool,
) -> Result<Vec<Saw>, String> {
    let (Some(from), Some(to)) = (keys.first(), keys.last()) else {
        return Ok(Vec::new());
    };
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

impl Maps {
    /// The structure of a history, and what is done to it.
    pub(crate) fn from_history(history: History) -> (Self, Workload<Operation>) {
        let structure = Self {
            options: history.options,
            keys: history.keys,
            survives: CrashModel::Pmem,
        };
        let workload = Workload {
            before: history.before,
            threads: history.threads,
        };
        (structure, workload)
    }
}

/// The history of a seed for maps of one kind: see [`any::history`](crate::any::history).
#[must_use]
pub fn history(
    kind: Kind,
    seed: u64,
    operations: usize,
    threads: usize,
) -> (Maps, Workload<Operation>) {
    Maps::from_history(of_seed(kind, seed, operations, threads))
}

/// The history of a seed for an index of one kind.
pub(crate) fn of_seed<K: Family>(
    kind: K,
    seed: u64,
    operations: usize,
    threads: usize,
) -> History<K> {
    let size = Size {
        operations,
        threads,
    };
    let suite = kind.suite();
    let rare = suite.rare_history(kind, seed, size);
    rare.unwrap_or_else(|| suite.history(kind, seed % suite.themes(threads), seed, size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_tried_after_a_recovery_lies_where_the_crash_came_and_everywhere_else() {
        for &keys in Keys::ALL {
            let structure = Maps {
                keys,
                ..Maps::of(Kind::default())
            };
            let near = [keys.key(1_000), OTHER];
            let first = |seed: u64| match structure.probes(seed, &near)[0] {
                Insert(key, _) => key,
                ref other => panic!("{other:?}"),
            };
            let seeds = (1..2_000_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let tried: BTreeSet<u64> = seeds.map(first).collect();
            assert!(tried.contains(&near[0]), "{keys:?}");
            assert!(tried.len() > 100, "{keys:?}: {} keys", tried.len());
        }
    }
}
