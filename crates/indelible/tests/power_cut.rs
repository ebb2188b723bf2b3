//! Power cuts by search: operations are recorded store by store; from the recording come the images that a power cut
//! could leave; each is opened, checked and compared with what had been acknowledged.
//!
//! The model (docs/architecture.md, "The rules"): 8-byte stores are atomic; the stores to one line reach memory in program
//! order, so any prefix of them may be there; between lines only a flush followed by a fence orders anything.
//!
//! Then the same with bugs planted: all flushes, or all fences, of one line of source are taken out of the recording, and the
//! search must find out.
//!
//! `INDELIBLE_IMAGES` says how many images a point may have (default 48); `INDELIBLE_SEEDS` how many workloads there are.
#![cfg(feature = "trace")]

use indelible::pmem::trace::{self, Action, Event};
use indelible::{Durability, Map, MapOptions, Pool, PoolOptions};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

type Model = BTreeMap<u64, u64>;
type Line = [u64; 8];

const EXTENT: usize = 2 << 20;
/// Bytes at the beginning of each extent that these small pools use, at most.
const USED: usize = 192 << 10;
const MOST_BYTES: u64 = 8 * EXTENT as u64;

/// Of one image in this many the recovery is explored too.
const NESTED: usize = 61;

/// Recording is process-wide.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

#[derive(Clone, Debug)]
enum Operation {
    Insert(u64, u64),
    Remove(u64),
    Batch(Vec<(u64, u64)>),
    Load(Vec<(u64, u64)>),
    /// Another map is made, and with it an extent.
    Create,
    /// It goes, and with it the end of the file.
    Drop,
}

impl Operation {
    fn apply(&self, pool: &Pool, map: &Map<u64, u64>) {
        match self {
            Self::Insert(key, value) => drop(map.insert(*key, *value).unwrap()),
            Self::Remove(key) => drop(map.remove(*key).unwrap()),
            Self::Batch(records) => map.insert_batch(records).unwrap(),
            Self::Load(records) => map.bulk_load(records, 0.8).unwrap(),
            Self::Create => drop(pool.map::<u64, u64>("other").unwrap()),
            Self::Drop => {
                pool.drop_map("other").unwrap();
                pool.shrink().unwrap();
            }
        }
    }

    fn after(&self, before: &Model) -> Model {
        let mut model = before.clone();
        match self {
            Self::Insert(key, value) => drop(model.insert(*key, *value)),
            Self::Remove(key) => drop(model.remove(key)),
            Self::Batch(records) | Self::Load(records) => model.extend(records.iter().copied()),
            Self::Create => drop(model.insert(OTHER, 0)),
            Self::Drop => drop(model.remove(&OTHER)),
        }
        model
    }

    fn is_atomic(&self) -> bool {
        !matches!(self, Self::Batch(_))
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// A map that has seen some life, and what is done to it under the recorder.
fn workload(seed: u64) -> (Vec<Operation>, Vec<Operation>) {
    let random = |i: u64| mix(seed << 32 | i);
    let key = |i: u64| random(i) % 2_000;
    if seed % 4 == 3 {
        let load = (0..700).map(|i| (3 * i, i)).collect();
        let inserts = (0..20).map(|i| Operation::Insert(key(i), i));
        let operations = [
            Operation::Create,
            Operation::Drop,
            Operation::Create,
            Operation::Load(load),
            Operation::Drop,
        ];
        return (Vec::new(), operations.into_iter().chain(inserts).collect());
    }
    let before = (0..900).map(|i| Operation::Insert(key(i), i)).collect();
    let recorded = (1_000..1_090).map(|i| match (seed % 4, random(i) >> 40 & 7) {
        (0, 0) => Operation::Remove(key(i + 500)),
        // Neighbours, so that leaves become empty and merge.
        (1, _) => Operation::Remove(random(0) % 1_000 + i - 1_000),
        (2, 0..3) => Operation::Batch((0..12).map(|j| (key(i * 20 + j), i)).collect()),
        _ => Operation::Insert(key(i), i),
    });
    (before, recorded.collect())
}

/// What was recorded, and what there was before.
struct Recording {
    image: Vec<u8>,
    /// Addresses are offsets in the pool.
    events: Vec<Event>,
    operations: Vec<Operation>,
    /// Contents before each operation, and after the last.
    models: Vec<Model>,
    leaf_bytes: u32,
}

fn options() -> PoolOptions {
    PoolOptions::new()
        .durability(Durability::PowerLoss)
        .force_power_loss_protocol(true)
        .huge_pages(false)
        .max_bytes(MOST_BYTES)
        .clone()
}

fn record(seed: u64, leaf_bytes: u32) -> Recording {
    let directory = tempfile::tempdir_in(fast_directory()).unwrap();
    let path = directory.path().join("recorded.pool");
    let pool = options().create(&path).unwrap();
    let map = pool.map_with("m", MapOptions { leaf_bytes }).unwrap();
    map.warm_up().unwrap();
    let (before, operations) = workload(seed);
    let mut models = vec![Model::new()];
    for operation in before {
        operation.apply(&pool, &map);
        models[0] = operation.after(&models[0]);
    }
    let image = std::fs::read(&path).unwrap();
    trace::start();
    for (i, operation) in operations.iter().enumerate() {
        trace::mark(2 * i as u64);
        operation.apply(&pool, &map);
        trace::mark(2 * i as u64 + 1);
        models.push(operation.after(&models[i]));
    }
    let events = stop_recording(&pool);
    assert!(map.iter().eq(models[operations.len()].clone()));
    Recording {
        image,
        events,
        operations,
        models,
        leaf_bytes,
    }
}

/// Ends the recording, and makes offsets in the pool of its addresses.
fn stop_recording(pool: &Pool) -> Vec<Event> {
    let mut events = trace::stop();
    let base = pool.base_address();
    for event in &mut events {
        match &mut event.action {
            Action::Store { address, .. } | Action::Flush { address, .. } => *address -= base,
            Action::Fence | Action::Mark(_) => {}
        }
    }
    events
}

fn fast_directory() -> PathBuf {
    let shared_memory = PathBuf::from("/dev/shm");
    if shared_memory.is_dir() {
        shared_memory
    } else {
        std::env::temp_dir()
    }
}

/// What memory holds for certain, and what may or may not have arrived.
#[derive(Default)]
struct Memory {
    durable: BTreeMap<usize, Line>,
    /// Stores to each line, in order: word in the line and value.
    pending: BTreeMap<usize, Vec<(usize, u64)>>,
    /// How many of a line's pending stores the next fence makes durable.
    flushed: BTreeMap<usize, usize>,
}

impl Memory {
    fn line(&self, image: &[u8], line: usize) -> Line {
        self.durable.get(&line).copied().unwrap_or_else(|| {
            std::array::from_fn(|word| {
                let at = line + 8 * word;
                let bytes = image
                    .get(at..at + 8)
                    .map_or([0; 8], |b| b.try_into().unwrap());
                u64::from_ne_bytes(bytes)
            })
        })
    }

    fn replay(&mut self, image: &[u8], action: Action) {
        match action {
            Action::Store { address, value } => {
                let line = address & !63;
                let pending = self.pending.entry(line).or_default();
                pending.push((address % 64 / 8, value));
            }
            Action::Flush { address, bytes } => {
                for line in (address..address + bytes).step_by(64) {
                    if let Some(pending) = self.pending.get(&line) {
                        self.flushed.insert(line, pending.len());
                    }
                }
            }
            Action::Fence => {
                for (line, count) in std::mem::take(&mut self.flushed) {
                    let mut words = self.line(image, line);
                    let pending = self.pending.get_mut(&line).unwrap();
                    pending
                        .drain(..count)
                        .for_each(|(word, value)| words[word] = value);
                    if pending.is_empty() {
                        self.pending.remove(&line);
                    }
                    self.durable.insert(line, words);
                }
            }
            Action::Mark(_) => {}
        }
    }

    /// How much of each pending line has arrived, for every image to look at: all combinations if there are few, else
    /// none, all, each alone, all but each, and some at random.
    fn choices(&self, most: usize, seed: u64) -> Vec<Vec<usize>> {
        let lengths: Vec<usize> = self.pending.values().map(Vec::len).collect();
        let all = lengths
            .iter()
            .try_fold(1_usize, |product, length| product.checked_mul(length + 1));
        if let Some(count) = all.filter(|&count| count <= most) {
            let choice = |mut number: usize| {
                let digit = |length: &usize| {
                    let digit = number % (length + 1);
                    number /= length + 1;
                    digit
                };
                lengths.iter().map(digit).collect()
            };
            return (0..count).map(choice).collect();
        }
        let none = vec![0; lengths.len()];
        let mut choices = vec![none.clone(), lengths.clone()];
        for line in 0..lengths.len() {
            let (mut alone, mut without) = (none.clone(), lengths.clone());
            (alone[line], without[line]) = (lengths[line], 0);
            choices.extend([alone, without]);
        }
        for i in choices.len()..most.max(choices.len() + 8) {
            let at_random = |(line, length): (usize, &usize)| {
                mix(seed ^ (i * 1_000 + line) as u64) as usize % (length + 1)
            };
            choices.push(lengths.iter().enumerate().map(at_random).collect());
        }
        choices
    }

    /// The lines that differ from the image, for one choice.
    fn lines(&self, image: &[u8], choice: &[usize]) -> BTreeMap<usize, Line> {
        let mut lines = self.durable.clone();
        for ((&line, pending), &count) in self.pending.iter().zip(choice) {
            let mut words = self.line(image, line);
            pending[..count]
                .iter()
                .for_each(|&(word, value)| words[word] = value);
            lines.insert(line, words);
        }
        lines
    }
}

/// A file to open images in.
struct Bench {
    _directory: tempfile::TempDir,
    path: PathBuf,
    file: File,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(fast_directory()).unwrap();
        let path = directory.path().join("image.pool");
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        Self {
            _directory: directory,
            path,
            file,
        }
    }

    fn write(&self, image: &[u8], lines: &BTreeMap<usize, Line>) {
        // Empty, then as long as it can be: space is reserved before a superblock tells of it, and a file that is longer than
        // the superblock says does no harm.
        self.file.set_len(0).unwrap();
        self.file.set_len(MOST_BYTES).unwrap();
        for start in (0..image.len()).step_by(EXTENT) {
            let used = &image[start..image.len().min(start + USED)];
            if used.iter().any(|&byte| byte != 0) {
                self.file.write_all_at(used, start as u64).unwrap();
            }
        }
        for (&line, words) in lines {
            assert!(line % EXTENT < USED, "these pools are small");
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            self.file.write_all_at(&bytes, line as u64).unwrap();
        }
    }

    /// Opens the image, checks it, and inserts a record. The contents before that, and what was written meanwhile; or what
    /// is wrong.
    fn recover(&self) -> Result<(Model, Vec<Event>), String> {
        let opened = std::panic::catch_unwind(|| {
            trace::start();
            let pool = options().open(&self.path)?;
            let map = pool.open_map::<u64, u64>("m")?;
            map.warm_up()?;
            let mut problems = map.check()?;
            let mut contents: Model = map.iter().collect();
            if pool.maps().len() > 1 {
                let other = pool.open_map::<u64, u64>("other")?;
                problems.extend(other.check()?);
                contents.insert(OTHER, other.len()?);
            }
            trace::mark(0);
            map.insert(PROBE.0, PROBE.1)?;
            trace::mark(1);
            let events = stop_recording(&pool);
            if map.get(PROBE.0)? != Some(PROBE.1) {
                problems.push("an insert after recovery is not found".into());
            }
            Ok::<_, indelible::Error>((problems, contents, events))
        });
        match opened {
            Err(_) => Err("recovery panicked".into()),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok((problems, contents, events))) if problems.is_empty() => Ok((contents, events)),
            Ok(Ok((problems, ..))) => Err(problems.join("; ")),
        }
    }
}

/// Stands for the other map in the contents: how long it is, if it is there.
const OTHER: u64 = u64::MAX - 1;

/// What is inserted after a recovery.
const PROBE: (u64, u64) = (u64::MAX, 7);

#[derive(Default)]
struct Summary {
    points: usize,
    images: usize,
    images_in_recovery: usize,
    failure: Option<String>,
}

/// Looks at all images of a recording, `skip` left out of it; stops at the first failure. Of every `nested`th image the
/// recovery is itself explored in this way, if that is not 0.
fn explore(recording: &Recording, nested: usize, skip: &dyn Fn(&Event) -> bool) -> Summary {
    let most = setting("INDELIBLE_IMAGES", 48);
    let bench = Bench::new();
    let mut memory = Memory::default();
    let (mut summary, mut seen) = (Summary::default(), HashSet::new());
    // Operations acknowledged, and whether one more is in flight.
    let (mut acknowledged, mut in_flight) = (0, false);
    for event in recording.events.iter().filter(|event| !skip(event)) {
        // Between two of these points images only become more: all of them are still possible at the second.
        let is_point = match event.action {
            Action::Fence => !memory.flushed.is_empty(),
            Action::Mark(_) => true,
            _ => false,
        };
        if is_point {
            summary.points += 1;
            for choice in memory.choices(most, summary.points as u64) {
                let lines = memory.lines(&recording.image, &choice);
                let mut hasher = DefaultHasher::new();
                (&lines, acknowledged, in_flight).hash(&mut hasher);
                if !seen.insert(hasher.finish()) {
                    continue;
                }
                summary.images += 1;
                bench.write(&recording.image, &lines);
                let is_nested = nested > 0 && summary.images % nested == 0;
                let before = is_nested.then(|| std::fs::read(&bench.path).unwrap());
                let allowed = bench.recover().and_then(|(found, events)| {
                    compare(recording, acknowledged, in_flight, &found)?;
                    let Some(image) = before else { return Ok(0) };
                    let recovery = Recording {
                        image,
                        events,
                        operations: vec![Operation::Insert(PROBE.0, PROBE.1)],
                        models: vec![found.clone(), found.into_iter().chain([PROBE]).collect()],
                        leaf_bytes: recording.leaf_bytes,
                    };
                    let summary = explore(&recovery, 0, &|_| false);
                    match summary.failure {
                        Some(failure) => Err(format!("in recovery: {failure}")),
                        None => Ok(summary.images),
                    }
                });
                let problem = match allowed {
                    Ok(images) => {
                        summary.images_in_recovery += images;
                        None
                    }
                    Err(problem) => Some(problem),
                };
                if let Some(problem) = problem {
                    let operation = recording.operations.get(acknowledged);
                    summary.failure = Some(format!(
                        "{problem}\n  in operation {acknowledged}, {operation:?}, before {:?} at {}",
                        event.action, event.source
                    ));
                    return summary;
                }
            }
        }
        match event.action {
            Action::Mark(mark) if mark % 2 == 0 => in_flight = true,
            Action::Mark(_) => (acknowledged, in_flight) = (acknowledged + 1, false),
            _ => {}
        }
        memory.replay(&recording.image, event.action);
    }
    summary
}

/// Whether the contents are what was acknowledged, with the operation in flight or without it.
fn compare(
    recording: &Recording,
    acknowledged: usize,
    in_flight: bool,
    found: &Model,
) -> Result<(), String> {
    let before = &recording.models[acknowledged];
    if found == before {
        return Ok(());
    }
    let after =
        &recording.models[(acknowledged + usize::from(in_flight)).min(recording.operations.len())];
    if found == after {
        return Ok(());
    }
    let keys: BTreeSet<&u64> = before
        .keys()
        .chain(after.keys())
        .chain(found.keys())
        .collect();
    let wrong = keys.into_iter().find(|key| {
        let value = found.get(key);
        value != before.get(key) && value != after.get(key)
    });
    match wrong {
        Some(key) => Err(format!(
            "key {key} is {:?}, where {:?} or {:?} is right",
            found.get(key),
            before.get(key),
            after.get(key)
        )),
        None if recording.operations[acknowledged].is_atomic() => {
            Err("the operation in flight is there in part".into())
        }
        None => Ok(()),
    }
}

#[test]
fn after_a_power_cut_at_any_point_nothing_acknowledged_is_missing() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut points, mut images, mut in_recovery) = (0, 0, 0);
    for seed in 0..setting("INDELIBLE_SEEDS", 8) as u64 {
        let recording = record(seed, [256, 256, 512, 1024][seed as usize / 4 % 4]);
        let summary = explore(&recording, NESTED, &|_| false);
        if let Some(failure) = summary.failure {
            panic!("seed {seed}, leaves of {}: {failure}", recording.leaf_bytes);
        }
        points += summary.points;
        images += summary.images;
        in_recovery += summary.images_in_recovery;
    }
    println!("{images} images at {points} points, and {in_recovery} of crashes in recovery");
    assert!(images > 1_000);
}

#[test]
fn a_missing_flush_or_fence_anywhere_is_found_out() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let recordings: Vec<Recording> = (0..4).map(|seed| record(seed, 256)).collect();
    let is_candidate =
        |event: &&Event| matches!(event.action, Action::Flush { .. } | Action::Fence);
    let sites: BTreeSet<(&str, u32, bool)> = recordings
        .iter()
        .flat_map(|recording| recording.events.iter().filter(is_candidate))
        .map(|event| site(event))
        .filter(|site| !is_excused(site))
        .collect();
    let survivors: Vec<_> = sites
        .iter()
        .filter(|&&planted| {
            let skip = |event: &Event| is_candidate(&event) && site(event) == planted;
            recordings
                .iter()
                .all(|recording| explore(recording, 0, &skip).failure.is_none())
        })
        .collect();
    println!("{} planted bugs, not found: {survivors:#?}", sites.len());
    assert!(survivors.is_empty(), "not found: {survivors:#?}");
}

/// Places whose flushes and fences are not needed, or not in recordings as small as these.
fn is_excused(site: &(&str, u32, bool)) -> bool {
    let (file, _, is_fence) = site;
    // The number of records is a hint for the next open after a clean close.
    file.ends_with("lbtree/tally.rs")
        // The fence of a thread that helps with a bulk load: here it is alone, and that of the commit does for both.
        || file.ends_with("lbtree/bulk.rs") && *is_fence
        // Extents without a live owner are free, and every change of the catalog is followed by a fence of the map's.
        || file.ends_with("pool/core.rs")
}

/// Where an event comes from, and whether it is a fence.
fn site(event: &Event) -> (&'static str, u32, bool) {
    let is_fence = matches!(event.action, Action::Fence);
    (event.source.file(), event.source.line(), is_fence)
}
