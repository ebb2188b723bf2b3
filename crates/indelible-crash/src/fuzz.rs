//! What a fuzzer drives: bytes in, a panic if something is wrong.
//!
//! `fuzz/` has the targets for cargo-fuzz; the tests run both on bytes from a seed.

use crate::explore::{Explorer, Limits};
use crate::maps::{Keys, Maps, Operation};
use crate::places::shape;
use crate::record::{record, text_of};
use crate::tally::Tally;
use crate::texts::Strings;
use crate::{CrashModel, Structure, Workload, any};
use indelible::checker::{AnyKind, EVERYTHING, History, Lay, Places, SpatialOperation, Texts};
use indelible::pmem::{BEYOND_THE_END, Memory};
use indelible::{
    Box2, Box3, BytesOptions, Durability, Geometry, GeometryType, Kind, MapOptions, Point2, Point3,
    PoolOptions, SpatialKind, SpatialOptions, StringKind,
};
use std::io::{Read, Write};
use std::sync::Arc;

/// Takes numbers off the front of some bytes; zeros when they are used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u64 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                u64::from(first)
            }
            None => 0,
        }
    }

    fn next_of<const N: usize>(&mut self) -> u64 {
        (0..N).fold(0, |number, _| number << 8 | self.next())
    }
}

/// Operations in a history at most.
const MOST_OPERATIONS: usize = 48;

/// Runs operations and crashes, both from bytes.
///
/// # Panics
///
/// If an image that a crash could leave is not recovered to what may be there.
pub fn operations(data: &[u8]) {
    let mut bytes = Bytes(data);
    let head = bytes.next();
    match (bytes.next() % 3, bytes.next() as usize) {
        (0, which) => {
            let kind = one_of(Kind::all(), which);
            let structure = Maps {
                options: layout(MapOptions::extremes(kind), kind.into(), head),
                keys: one_of(Keys::ALL, bytes.next() as usize),
                survives: CrashModel::Pmem,
            };
            let keys = structure.keys;
            let key = |number| match number {
                // The end of the domain, and its middle.
                0xff => u64::MAX,
                0xfe => 1 << 63,
                number => keys.key(number),
            };
            let workload = of_maps(&mut bytes, &key, false);
            // Recoveries of the other kinds take many times as long.
            explore(&structure, &workload, (head, kind == Kind::default()));
        }
        (1, which) => {
            let kind = one_of(StringKind::all(), which);
            let structure = Strings {
                options: layout(BytesOptions::extremes(kind), kind.into(), head),
                keys: one_of(Texts::ALL, bytes.next() as usize),
                survives: CrashModel::Pmem,
            };
            let workload = of_maps(&mut bytes, &|number| number, true);
            explore(&structure, &workload, (head, false));
        }
        (_, which) => {
            let kind = one_of(SpatialKind::all(), which);
            let history = of_places(kind, &mut bytes, head);
            let (structure, workload) = any::of_places(history);
            explore(&structure, &workload, (head, false));
        }
    }
}

fn one_of<T: Copy>(all: &[T], which: usize) -> T {
    all[which % all.len()]
}

/// One of the layouts of a kind.
fn layout<T>(mut extremes: Vec<T>, usual: T, head: u64) -> T {
    extremes.push(usual);
    extremes.swap_remove(head as usize % extremes.len())
}

/// Operations on a map, from bytes. `key` makes a key of a number.
fn of_maps(
    bytes: &mut Bytes<'_>,
    key: &dyn Fn(u64) -> u64,
    has_parts: bool,
) -> Workload<Operation> {
    let before = (0..bytes.next() % 64)
        .map(|i| Operation::Insert(key(3 * i), i))
        .collect();
    let one =
        |bytes: &mut Bytes<'_>, has_other: &mut bool| operation(key, bytes, has_parts, has_other);
    Workload {
        before,
        threads: vec![all_from(bytes, one)],
    }
}

/// As many operations as there are bytes for. Each is told whether there is another object, and says so if that has changed.
fn all_from<O>(bytes: &mut Bytes<'_>, one: impl Fn(&mut Bytes<'_>, &mut bool) -> O) -> Vec<O> {
    let mut operations = Vec::new();
    let mut has_other = false;
    while !bytes.0.is_empty() && operations.len() < MOST_OPERATIONS {
        operations.push(one(bytes, &mut has_other));
    }
    operations
}

/// Operations on a spatial index, from bytes.
fn of_places(kind: SpatialKind, bytes: &mut Bytes<'_>, head: u64) -> History<SpatialKind> {
    let keys = Places {
        of: one_of(GeometryType::all(), bytes.next() as usize),
        lay: one_of(Lay::ALL, bytes.next() as usize),
        payloads: one_of(&[6, 30, 60], bytes.next() as usize),
    };
    let before = (0..bytes.next() % 64)
        .map(|i| SpatialOperation::Insert(i % keys.payloads, (i % 4) as u8))
        .collect();
    let one = |bytes: &mut Bytes<'_>, has_other: &mut bool| on_places(keys, bytes, has_other);
    let operations = all_from(bytes, one);
    // Those that are for places of any kind: not all have two axes, or lie on the globe.
    let layouts = SpatialOptions::extremes(kind).into_iter();
    let is_for_any = |options: &SpatialOptions| {
        let get = |name| options.get(name).unwrap_or_default();
        get("coordinates") != "lonlat" && !get("extent").contains(':')
    };
    let layouts = layouts.filter(is_for_any).collect();
    History {
        options: layout(layouts, kind.into(), head),
        keys,
        before,
        threads: vec![operations],
    }
}

fn on_places(keys: Places, bytes: &mut Bytes<'_>, has_other: &mut bool) -> SpatialOperation {
    let (kind, number, more) = (bytes.next(), bytes.next(), bytes.next());
    let payload = number % keys.payloads;
    let [place, to] = [more, more >> 2].map(|place| (place % u64::from(Places::PLACES)) as u8);
    match kind % 16 {
        0..5 => SpatialOperation::Insert(payload, place),
        5..8 => SpatialOperation::Remove(payload, place),
        8..11 => SpatialOperation::Relocate(payload, place, to),
        11 => SpatialOperation::Window(keys.around(payload, place, (more >> 4) as f64)),
        12 => {
            let payloads = (number..number + 1 + more / 32).map(|payload| payload % keys.payloads);
            SpatialOperation::InsertBatch(payloads.map(|payload| (payload, place)).collect())
        }
        13 => SpatialOperation::Reopen,
        14 => SpatialOperation::Shrink,
        _ => {
            *has_other = !*has_other;
            match *has_other {
                true => SpatialOperation::CreateOther,
                false => SpatialOperation::DropOther,
            }
        }
    }
}

/// Runs operations on a structure, and crashes.
fn explore<S>(structure: &S, workload: &Workload<S::Operation>, (head, is_fast): (u64, bool))
where
    S: Structure + Clone + Send + Sync + 'static,
{
    let crash_model = if head & 4 == 0 {
        CrashModel::Pmem
    } else {
        CrashModel::Process
    };
    let recording = match record(&Arc::new(structure.clone()), workload, 0) {
        Ok(recording) => recording,
        Err(problem) => panic!("{problem}\n{workload:?}"),
    };
    let limits = Limits {
        images_per_point: if is_fast {
            4 + (head as usize >> 4) * 2
        } else {
            2
        },
        nested_every: if is_fast { 32 } else { 1024 },
        depth: 2,
    };
    let tally = Tally::default();
    let result = Explorer::new(structure, crash_model, limits, head, &tally).explore(&recording);
    if let Err(failure) = result {
        panic!("{failure}\n{workload:?}");
    }
}

fn operation(
    key_of: &dyn Fn(u64) -> u64,
    bytes: &mut Bytes<'_>,
    has_parts: bool,
    has_other: &mut bool,
) -> Operation {
    let (kind, number, value) = (bytes.next(), bytes.next(), bytes.next());
    let key = key_of(number);
    // Values that can be read and written in parts are those of byte strings.
    match kind % if has_parts { 20 } else { 16 } {
        0..5 => Operation::Insert(key, value),
        5..8 => Operation::Remove(key),
        8 => Operation::Update(key, value),
        9 => Operation::InsertNew(key, value),
        10 => Operation::CompareExchange(key, Some(value), None),
        11 => {
            let step = 1 + value / 32;
            let keys = (0..value % 20).filter_map(|i| key.checked_add(i * step));
            Operation::InsertBatch(keys.map(|key| (key, value)).collect())
        }
        12 => Operation::Get(key),
        13 => Operation::Reopen,
        14 => Operation::Shrink,
        15 => {
            *has_other = !*has_other;
            if *has_other {
                Operation::CreateOther
            } else {
                Operation::DropOther
            }
        }
        16 => Operation::GetInParts(key),
        17 => Operation::GetBatch((number..(number + 6).min(256)).map(key_of).collect()),
        18 => Operation::Range((0..400).map(key_of).collect(), value % 2 == 0),
        _ => Operation::InsertInParts(key, value),
    }
}

/// A small pool, cleanly closed or crashed, with indexes of a kind.
fn pool(kind: AnyKind, clean: bool) -> Result<Arc<Memory>, String> {
    let (structure, workload) = any::varied(kind);
    let memory = Arc::new(Memory::new(crate::MEMORY_BYTES));
    let open = structure.create(&memory)?;
    for operation in &workload.before {
        structure.run(&open, operation)?;
    }
    structure.run(&open, &any::create_other(kind))?;
    if !clean {
        structure.crash(&open);
    }
    drop(open);
    Ok(memory)
}

/// Damages a pool as the bytes say, before it is opened or while it is in use, and uses it all the same: everything must be an error, or an
/// answer; in a pool that is in use also a panic, unless it stands for a signal.
///
/// # Panics
///
/// If the library does, on a file that anybody might hand it.
pub fn damaged_pool(data: &[u8]) {
    let mut bytes = Bytes(data);
    let head = bytes.next();
    let kind = one_of(&AnyKind::all(), (head >> 4) as usize);
    let memory = pool(kind, head & 1 == 0)
        .unwrap_or_else(|error| panic!("{kind}, before anything is damaged: {error}"));
    // Whether the pool is damaged while it is in use, and not before.
    let is_live = bytes.next() & 1 != 0 && kind.ends_when_damaged_in_use();
    if head & 2 != 0 && !is_live {
        let length = bytes.next_of::<3>() % (memory.length() + 1);
        memory.set_length_unseen(length / 8 * 8);
    }
    if head & 4 != 0 && !is_live {
        // Superblocks are checked as a whole; behind a right checksum anything may stand.
        forge_superblocks(&memory, &mut bytes);
    }
    let mut damage_all = || {
        while !bytes.0.is_empty() {
            damage(&memory, &mut bytes);
        }
    };
    if !is_live {
        damage_all();
    }
    let mut options = PoolOptions::new();
    options
        .durability(Durability::PowerLoss)
        .force_power_loss_protocol(true)
        .boot_identity([7; 16]);
    if head & 8 != 0 {
        options.boot_identity([8; 16]).salvage(true);
    }
    if !is_live {
        let _ = use_all(&options, &memory, None);
        return;
    }
    // What the process has found sound may have changed since, which may be a broken invariant, and a panic; but never more than that.
    let used = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        use_all(&options, &memory, Some(&mut damage_all))
    }));
    if let Err(panic) = used
        && text_of(&*panic).contains(BEYOND_THE_END)
    {
        std::panic::resume_unwind(panic);
    }
}

fn damage(memory: &Memory, bytes: &mut Bytes<'_>) {
    let words = (memory.length() as usize / 8).max(1);
    let (how, at) = (bytes.next(), bytes.next_of::<2>() as usize);
    // Most words are free space; what is read first is at the beginning of each extent and of each block.
    let at = match how >> 4 {
        0..2 => at,
        2..4 => at / 512 * 512 % words + at % 40,
        4..8 => at % words / 32 * 32 + at % 11,
        _ => in_use(memory, words, at),
    } % words;
    let now = memory.words()[at].load();
    let value = match how >> 1 & 7 {
        0 => now ^ 1 << (bytes.next() % 64),
        1 => bytes.next_of::<8>(),
        2 => 0,
        3 => u64::MAX,
        // Another word of the pool: offsets look like offsets.
        4 => {
            let other = bytes.next_of::<2>() as usize;
            memory.words()[in_use(memory, words, other)].load()
        }
        5 => now.wrapping_add(256),
        6 => now.wrapping_sub(256),
        // A block, there or not yet, with the mark of inner nodes or not.
        _ => {
            let block = bytes.next_of::<2>();
            (block % (words as u64 / 16 + 1) * 256) | block >> 15
        }
    };
    memory.set(at, value);
}

/// One of the words that are not zero.
fn in_use(memory: &Memory, words: usize, which: usize) -> usize {
    let words = &memory.words()[..words];
    let used = |&at: &usize| words[at].load() != 0;
    let count = (0..words.len()).filter(used).count().max(1);
    (0..words.len())
        .filter(used)
        .nth(which % count)
        .unwrap_or(0)
}

/// Changes words of the superblocks and makes their checksums right again.
fn forge_superblocks(memory: &Memory, bytes: &mut Bytes<'_>) {
    let (word, value) = (bytes.next() as usize % 12, bytes.next_of::<8>());
    for copy in 0..2 {
        let words = copy * 128..copy * 128 + 12;
        memory.set(words.start + word, value);
        let mut checksum = crc32fast::Hasher::new();
        for word in &memory.words()[words.clone()] {
            checksum.update(&word.load().to_ne_bytes());
        }
        memory.set(words.end, u64::from(checksum.finalize()));
    }
}

/// Does the work with `$G` as the type that a [`GeometryType`] stands for.
macro_rules! with_geometry {
    ($of:expr, $G:ident => $work:expr) => {
        with_geometry!(Point2, Point3, Box2, Box3; $of, $G => $work)
    };
    ($($geometry:ident),+; $of:expr, $G:ident => $work:expr) => {
        match $of {
            $(GeometryType::$geometry => {
                type $G = $geometry;
                $work
            })+
            other => unreachable!("{other} is a type of geometry that the fuzzer does not know"),
        }
    };
}

/// Opens everything in a pool, and reads half of each object, so that a part of it has been touched.
fn read_all(pool: &indelible::Pool) -> Vec<Box<dyn std::any::Any>> {
    let mut handles: Vec<Box<dyn std::any::Any>> = Vec::new();
    let half = |count: indelible::Result<u64>| MOST_RECORDS.min(count.unwrap_or(0) as usize / 2);
    for info in pool.maps() {
        if let Ok(map) = pool.open_map::<u64, u64>(&info.name) {
            let _ = map.iter().take(half(map.len())).count();
            handles.push(Box::new(map));
        }
    }
    for info in pool.bytes_maps() {
        if let Ok(map) = pool.open_bytes(&info.name) {
            let _ = map.iter().take(half(map.len())).count();
            handles.push(Box::new(map));
        }
    }
    for info in pool.spatials() {
        with_geometry!(info.geometry, G => {
            if let Ok(index) = pool.open_spatial::<G>(&info.name) {
                let _ = index.nearest(place(1)).map(|near| near.take(9).count());
                handles.push(Box::new(index));
            }
        });
    }
    handles
}

/// Uses everything in a pool. If the pool is damaged in use, calls `damage` when everything is open and a part of it has been read.
fn use_all(
    options: &PoolOptions,
    memory: &Arc<Memory>,
    damage: Option<&mut dyn FnMut()>,
) -> indelible::Result<()> {
    let pool = options.open_memory(memory)?;
    let handles = damage.map(|damage| {
        let handles = read_all(&pool);
        damage();
        handles
    });
    let _ = (pool.check(), pool.stat());
    for info in pool.maps() {
        // Whatever is wrong with one, the others are looked at as well.
        let _ = use_map(&pool, &info.name);
    }
    for info in pool.bytes_maps() {
        let _ = use_strings(&pool, &info.name);
    }
    for info in pool.spatials() {
        let _ = with_geometry!(info.geometry, G => use_places::<G>(&pool, &info.name));
    }
    // What is open cannot be dropped.
    drop(handles);
    let _ = pool.drop_object("other");
    let _ = pool.shrink();
    pool.close()
}

fn use_map(pool: &indelible::Pool, name: &str) -> indelible::Result<()> {
    let map = pool.open_map::<u64, u64>(name)?;
    let _ = map.get(7);
    let _ = map.iter().take(MOST_RECORDS).count();
    let _ = map.iter().rev().take(MOST_RECORDS).count();
    let _ = map.check();
    let _ = map.stat();
    for key in 0..40 {
        let _ = map.insert(key * 11, key);
        let _ = map.remove(key * 7);
    }
    // Nodes that are there are filled and emptied.
    let records = map.iter().map_while(Result::ok).take(MOST_RECORDS);
    let keys: Vec<u64> = records.map(|(key, _)| key).collect();
    for &key in keys.iter().take(60) {
        let _ = map.insert(key ^ 1, key);
        let _ = map.remove(key);
    }
    map.release_memory();
    for &key in keys.iter().step_by(5) {
        for i in 0..12 {
            let _ = map.insert(key.wrapping_add(i * i), i);
        }
    }
    for &key in &keys {
        let _ = map.remove(key);
    }
    let _ = map.insert_batch(&[(1, 1), (500, 2), (u64::MAX, 3)]);
    let _ = map.get_batch(&[0, 7, u64::MAX]);
    let _ = map.len();
    map.release_memory();
    let records = map.iter().map_while(Result::ok).take(MOST_RECORDS);
    let keys: Vec<u64> = records.map(|(key, _)| key).collect();
    for key in keys {
        let _ = map.remove(key);
    }
    let _ = map.bulk_load([(5, 5), (6, 6)], 0.8);
    let _ = map.check();
    Ok(())
}

fn use_strings(pool: &indelible::Pool, name: &str) -> indelible::Result<()> {
    let map = pool.open_bytes(name)?;
    let key = |number: u64| Texts::Short.key(number);
    let _ = (map.get(key(7)), map.value_len(key(8)));
    let _ = map.iter().take(MOST_RECORDS).count();
    let _ = map.iter().rev().take(MOST_RECORDS).count();
    let _ = (map.check(), map.stat());
    for number in 0..40 {
        let _ = map.insert(key(number * 11), Texts::value(number));
        let _ = map.remove(key(number * 7));
    }
    // Leaves that are there are filled and emptied.
    let records = map.iter().map_while(Result::ok).take(MOST_RECORDS);
    let keys: Vec<Vec<u8>> = records.map(|(key, _)| key).collect();
    for (number, key) in keys.iter().enumerate().take(80) {
        let _ = map.insert([key, &b"+"[..]].concat(), Texts::value(number as u64));
        let _ = map.replace(key, Texts::value(number as u64 / 3));
        let _ = map.prefix(key).take(MOST_RECORDS).count();
        if let Ok(mut writer) = map.value_writer(key, 5_000) {
            let _ = writer.write_all(&[7; 5_000]);
            // Now and then the value is not committed.
            let _ = (number % 4 > 0).then(|| writer.commit());
        }
        if let Ok(Some(mut reader)) = map.value_reader(key) {
            let _ = reader.read_to_end(&mut Vec::new());
        }
    }
    let records: Vec<_> = (0..30).map(|i| (key(i), Texts::value(i * 9))).collect();
    let _ = map.insert_batch(&records);
    let _ = map.compact();
    for key in &keys {
        let _ = map.remove(key);
    }
    let _ = map.len();
    let records = map.iter().map_while(Result::ok).take(MOST_RECORDS);
    let keys: Vec<Vec<u8>> = records.map(|(key, _)| key).collect();
    for key in keys {
        let _ = map.take(key);
    }
    let _ = map.bulk_load([(key(5), b"5"), (key(6), b"6")], 0.8);
    let _ = map.check();
    Ok(())
}

/// A geometry with all its coordinates alike.
fn place<G: Geometry>(number: u64) -> G {
    G::from_coordinates(|_| number as f64 / 8.0)
}

fn use_places<G: Geometry>(pool: &indelible::Pool, name: &str) -> indelible::Result<()> {
    let index = pool.open_spatial::<G>(name)?;
    let everything = || -> G::Window { shape(&EVERYTHING) };
    let all = || -> Vec<(G, u64)> {
        let found = index.intersecting(everything()).into_iter().flatten();
        let records = found.take(MOST_RECORDS);
        records
            .map(|record| (record.shape, record.payload))
            .collect()
    };
    let searches = || {
        let _ = (index.len(), index.bounds(), index.check(), index.stat());
        let _ = index.contained_in(everything()).map(Iterator::count);
        let _ = index.at_point(place(7)).map(Iterator::count);
        let _ = index.within_distance(place(7), 3.0).map(Iterator::count);
        let _ = index
            .nearest(place(9))
            .map(|near| near.take(MOST_RECORDS).count());
        let _ = index
            .query_batch(&[place(3), everything()])
            .map(|found| found.len());
    };
    searches();
    for number in 0..40 {
        let _ = index.insert(place(number * 11), number);
        let _ = index.remove(place(number * 7), number);
    }
    // Nodes that are there are filled and emptied.
    let records = all();
    for (number, &(at, payload)) in (0..).zip(&records).take(80) {
        let _ = index.insert(at, number);
        let _ = index.relocate(payload, at, place(number));
        let _ = index.remove(at, payload);
    }
    let batch: Vec<(G, u64)> = (0..30).map(|number| (place(number), number)).collect();
    let _ = index.insert_batch(&batch);
    let _ = index.compact();
    searches();
    for (at, payload) in all() {
        let _ = index.remove(at, payload);
    }
    let _ = index.bulk_load(&batch, 0.8);
    searches();
    Ok(())
}

/// Far more than a pool for the fuzzer has.
const MOST_RECORDS: usize = 2_000;
