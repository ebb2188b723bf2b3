//! The pool and its maps of byte strings, of every kind, under the checker. Histories speak of keys and values by numbers: see [`Texts`].

use crate::history::{Change, Saw, Steps};
use crate::maps::{
    OTHER_NAMES, add_other, if_sound, of_pool, one_near, options, other_name, text, told_by_range,
};
use crate::{Contents, CrashModel, Memory, Structure, Workload, lock};
use Operation::{
    BulkLoad, CompareExchange, CreateOther, DropOther, Get, GetBatch, GetInParts, Insert,
    InsertBatch, InsertInParts, InsertNew, Range as RangeOf, Remove, RenameOther, Reopen, Shrink,
    Update,
};
use indelible::checker::{History, Operation, Texts};
use indelible::{BytesMap, BytesOptions, Pool, StringKind, ValueWriter};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

/// A pool with a map of byte strings "m", and at times another of the same kind.
#[derive(Clone, Debug)]
pub struct Strings {
    /// How the map is created.
    pub options: BytesOptions,
    /// Which strings the keys are.
    pub keys: Texts,
    /// The crashes that the pool survives, as it promises.
    pub survives: CrashModel,
}

/// An open pool and its map.
pub struct Open {
    memory: Arc<Memory>,
    survives: CrashModel,
    handles: Mutex<Option<(Pool, BytesMap)>>,
    /// The other map, if it has been made and is open.
    other: Mutex<Option<BytesMap>>,
}

impl Open {
    fn new(memory: &Arc<Memory>, survives: CrashModel, pool: Pool, map: BytesMap) -> Self {
        Self {
            memory: Arc::clone(memory),
            survives,
            handles: Mutex::new(Some((pool, map))),
            other: Mutex::new(None),
        }
    }

    fn handles(&self) -> Result<(Pool, BytesMap), String> {
        let handles = lock(&self.handles);
        handles.clone().ok_or_else(|| "it is closed".into())
    }

    fn reopen(&self) -> Result<(), String> {
        *lock(&self.other) = None;
        let mut handles = lock(&self.handles);
        if let Some((pool, map)) = handles.take() {
            drop(map);
            pool.close().map_err(text)?;
        }
        let pool = options(self.survives)
            .open_memory(&self.memory)
            .map_err(text)?;
        let map = pool.open_bytes("m").map_err(text)?;
        *handles = Some((pool, map));
        Ok(())
    }
}

/// The number that a value stands for.
fn number(value: &[u8]) -> Result<u64, String> {
    Texts::number_of_value(value)
        .ok_or_else(|| format!("{} bytes that are the value of no number", value.len()))
}

/// Bytes that are read or written at a time.
const PART_BYTES: usize = 200;

fn get_in_parts(map: &BytesMap, key: &[u8]) -> Result<Saw, String> {
    let Some(mut reader) = map.value_reader(key).map_err(text)? else {
        return Ok(Saw::Value(None));
    };
    let mut value = Vec::new();
    let mut part = [0; PART_BYTES];
    loop {
        match reader.read(&mut part).map_err(|error| error.to_string())? {
            0 => return Ok(Saw::Value(Some(number(&value)?))),
            read => value.extend_from_slice(&part[..read]),
        }
    }
}

/// Whether the key was there.
fn insert_in_parts(map: &BytesMap, key: &[u8], value: &[u8]) -> Result<bool, String> {
    let begin = || map.value_writer(key, value.len() as u64).map_err(text);
    let write = |writer: &mut ValueWriter, part: &[u8]| {
        let written = writer.write_all(part);
        written.map_err(|error| error.to_string())
    };
    let (mut given_up, mut writer) = (begin()?, begin()?);
    for part in value.chunks(PART_BYTES) {
        write(&mut writer, part)?;
    }
    write(&mut given_up, &value[..value.len() / 2])?;
    let was_there = writer.commit().map_err(text)?;
    drop(given_up);
    Ok(was_there)
}

fn saw(value: indelible::Result<Option<Vec<u8>>>) -> Result<Saw, String> {
    let value = value.map_err(text)?;
    Ok(Saw::Value(value.as_deref().map(number).transpose()?))
}

impl Strings {
    /// The structure of a history, and what is done to it.
    pub(crate) fn from_history(history: History<StringKind>) -> (Self, Workload<Operation>) {
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

    fn key(&self, number: u64) -> Vec<u8> {
        self.keys.key(number)
    }

    fn records(&self, records: &[(u64, u64)]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let records = records.iter();
        records
            .map(|&(key, value)| (self.key(key), Texts::value(value)))
            .collect()
    }

    fn numbers(
        &self,
        records: impl Iterator<Item = indelible::Result<(Vec<u8>, Vec<u8>)>>,
    ) -> Result<Contents, String> {
        let numbers = records.map(|record| {
            let (key, value) = record.map_err(text)?;
            let key = (self.keys.number(&key))
                .ok_or_else(|| format!("a key of {} bytes that nobody inserted", key.len()))?;
            Ok((key, number(&value)?))
        });
        numbers.collect()
    }

    /// What a range from the first to the last of `keys` says of each of them.
    fn range(&self, map: &BytesMap, keys: &[u64], backwards: bool) -> Result<Vec<Saw>, String> {
        let (Some(&from), Some(&to)) = (keys.first(), keys.last()) else {
            return Ok(Vec::new());
        };
        let range = map.range(self.key(from)..=self.key(to));
        let found = if backwards {
            self.numbers(range.rev())?
        } else {
            self.numbers(range)?
        };
        told_by_range(keys, found, backwards)
    }
}

impl Structure for Strings {
    type Open = Open;
    type Operation = Operation;

    fn create(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        let pool = options(self.survives).create_memory(memory).map_err(text)?;
        let map = pool.bytes_with("m", self.options.clone()).map_err(text)?;
        // So that its first extent is used as well.
        map.warm_up().map_err(text)?;
        Ok(Open::new(memory, self.survives, pool, map))
    }

    fn recover(&self, memory: &Arc<Memory>) -> Result<Open, String> {
        let pool = options(self.survives).open_memory(memory).map_err(text)?;
        let map = pool.open_bytes("m").map_err(text)?;
        Ok(Open::new(memory, self.survives, pool, map))
    }

    fn run(&self, open: &Open, operation: &Operation) -> Result<Vec<Saw>, String> {
        if *operation == Reopen {
            open.reopen()?;
            return Ok(Vec::new());
        }
        let (pool, map) = open.handles()?;
        let done = |result: indelible::Result<()>, steps: usize| {
            result.map(|()| vec![Saw::Nothing; steps]).map_err(text)
        };
        match operation {
            Get(key) => Ok(vec![saw(map.get(self.key(*key)))?]),
            // By turns an insert that reads the value before and one that does not.
            Insert(key, new) if new % 16 < 8 => {
                let before = map.replace(self.key(*key), Texts::value(*new));
                Ok(vec![saw(before)?])
            }
            Insert(key, new) => {
                let was_there = map.insert(self.key(*key), Texts::value(*new));
                Ok(vec![Saw::Presence(was_there.map_err(text)?)])
            }
            Update(key, new) => {
                let was_there = map.update(self.key(*key), Texts::value(*new));
                Ok(vec![Saw::Presence(was_there.map_err(text)?)])
            }
            Remove(key) => Ok(vec![saw(map.take(self.key(*key)))?]),
            InsertNew(key, new) => {
                let is_new = map
                    .insert_new(self.key(*key), Texts::value(*new))
                    .map_err(text)?;
                Ok(vec![Saw::Presence(!is_new)])
            }
            CompareExchange(key, current, new) => {
                let [expected, wanted] = [*current, *new].map(|number| number.map(Texts::value));
                let result =
                    map.compare_exchange(self.key(*key), expected.as_deref(), wanted.as_deref());
                Ok(vec![match result.map_err(text)? {
                    indelible::CompareExchange::Exchanged => Saw::Value(*current),
                    indelible::CompareExchange::Unchanged(now) => saw(Ok(now))?,
                }])
            }
            GetInParts(key) => Ok(vec![get_in_parts(&map, &self.key(*key))?]),
            InsertInParts(key, new) => {
                let was_there = insert_in_parts(&map, &self.key(*key), &Texts::value(*new));
                Ok(vec![Saw::Presence(was_there?)])
            }
            GetBatch(keys) => {
                let keys: Vec<Vec<u8>> = keys.iter().map(|&key| self.key(key)).collect();
                let values = map.get_batch(&keys).map_err(text)?;
                values.into_iter().map(|value| saw(Ok(value))).collect()
            }
            InsertBatch(records) => done(map.insert_batch(&self.records(records)), records.len()),
            RangeOf(keys, backwards) => self.range(&map, keys, *backwards),
            BulkLoad(records) => done(map.bulk_load(self.records(records), 0.8), records.len()),
            CreateOther => {
                let other = pool.bytes_with("other", self.options.kind());
                *lock(&open.other) = Some(other.map_err(text)?);
                Ok(vec![Saw::Nothing])
            }
            RenameOther(to_second) => {
                let [from, to] = [!to_second, *to_second].map(|n| OTHER_NAMES[usize::from(n)]);
                done(pool.rename_object(from, to), 1)
            }
            DropOther => {
                *lock(&open.other) = None;
                let name = other_name(pool.bytes_maps().into_iter().map(|info| info.name))
                    .ok_or("there is no other map")?;
                done(pool.drop_object(name), 2)
            }
            Shrink => done(pool.shrink().map(drop), 0),
            _ => Ok(Vec::new()),
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
        let gets = |keys: &[u64]| Steps {
            steps: keys.iter().map(|&key| (key, Change::Get)).collect(),
            atomic: false,
        };
        match operation {
            Get(key) | GetInParts(key) => Steps::one(*key, Change::Get),
            Insert(key, value) | InsertInParts(key, value) => Steps::one(*key, Change::Put(*value)),
            InsertNew(key, value) => Steps::one(*key, Change::PutNew(*value)),
            Update(key, value) => Steps::one(*key, Change::Update(*value)),
            Remove(key) => Steps::one(*key, Change::Remove),
            CompareExchange(key, from, to) => Steps::one(*key, Change::Exchange(*from, *to)),
            GetBatch(keys) | RangeOf(keys, _) => gets(keys),
            InsertBatch(records) => puts(records, false),
            BulkLoad(records) => puts(records, true),
            CreateOther => Steps::other_created(),
            RenameOther(to_second) => Steps::other_renamed(*to_second),
            DropOther => Steps::other_dropped(),
            _ => Steps::default(),
        }
    }

    fn contents(&self, open: &Open) -> Result<Contents, String> {
        let (pool, map) = open.handles()?;
        let mut problems = map.check().map_err(text)?;
        problems.extend(pool.check());
        let mut contents = self.numbers(map.iter())?;
        let (count, length) = (contents.len() as u64, map.len().map_err(text)?);
        if count != length {
            problems.push(format!(
                "the map says that it has {length} records, and has {count}"
            ));
        }
        if pool.bytes_maps().len() > 1 {
            let name = other_name(pool.bytes_maps().into_iter().map(|info| info.name))
                .ok_or("the other map has neither of its names")?;
            let other = pool.open_bytes(name).map_err(text)?;
            problems.extend(other.check().map_err(text)?);
            if other.len().map_err(text)? > 0 {
                problems.push("the other map has records".into());
            }
            // Keys are smaller numbers.
            add_other(&mut contents, name);
        }
        if_sound(contents, &problems)
    }

    fn probes(&self, seed: u64, near: &[u64]) -> Vec<Operation> {
        let near = one_near(seed, near);
        let key = |shift: u32| near.unwrap_or((seed >> shift) % 130);
        let mut probes = vec![Insert(key(16), 7 * 8 + seed % 7), Get(key(16))];
        if (seed >> 4).is_multiple_of(4) {
            probes.push(Remove(key(26)));
        }
        if (seed >> 4).is_multiple_of(16) {
            let from = key(46);
            probes.push(InsertBatch((0..6).map(|i| (from + 3 * i, 65)).collect()));
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
