//! A simulated disk under the log and the applier, cut off at any moment: for tests, and for the crash checker.
//!
//! The disk has two files, the log and the pool's. Of each, it knows what is in the page cache and what is on the disk. A sync
//! copies everything to the disk; single sectors also get there at any other time, in any order. When power fails, each sector that
//! differs is on the disk as it was, as it is, or torn: some of its words old and some new; in the log also anything. When the
//! process dies, the page cache stays. Calls fail at random, too: a failed sync leaves sectors that no later sync writes.
//!
//! A [`trial`] runs sessions on such a disk, from a seed. In each it appends batches, waits, applies and closes in random order, until
//! power fails, also inside of any call, or the process dies. Then the pool is recovered by the code that recovers real pools, which
//! is interrupted in turn. What must hold: the pool's file is what the batches up to some number make of it, none missing in
//! between, and all batches are among them that were acknowledged.

use super::device::{DataFile, LogDevice};
use super::record::{
    self, Encoded, HEADER_WORDS, Identity, Record, SEGMENT_BYTES, SEGMENT_WORDS, runs,
};
use super::{Log, recover};
use crate::concurrency::sync::lock;
use crate::pmem::Cell;
use crate::pmem::journal::{MOST_WORDS, Sink, Word};
use crate::pool::layout::{COPY_BYTES, EXTENT_BYTES};
use crate::pool::superblock::{Copy, Promise, Superblock};
use crate::{Error, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}

/// Words in what the disk writes whole unless power fails.
const SECTOR: usize = 64;
/// Segments of the simulated log.
const SEGMENTS: usize = 5;
/// Words of the pool's file: the superblocks, and a few more.
const DATA_WORDS: usize = FIRST_WORD + 200;
/// The first word behind the superblocks; has the number of the last batch.
const FIRST_WORD: usize = 2 * COPY_BYTES / 8;

/// One file on the simulated disk.
struct SimFile {
    /// In the page cache.
    current: Arc<[AtomicU64]>,
    /// On the disk.
    durable: Vec<u64>,
    /// What was in the sectors that a failed sync has left as clean.
    lost: Vec<Option<Vec<u64>>>,
}

impl SimFile {
    fn new(words: usize) -> Self {
        Self {
            current: (0..words).map(|_| AtomicU64::new(0)).collect(),
            durable: vec![0; words],
            lost: vec![None; words.div_ceil(SECTOR)],
        }
    }

    fn sectors(&self) -> usize {
        self.lost.len()
    }

    fn words_of(&self, sector: usize) -> Range<usize> {
        sector * SECTOR..((sector + 1) * SECTOR).min(self.durable.len())
    }

    fn read(&self, words: Range<usize>) -> Vec<u64> {
        let words = self.current[words].iter();
        words.map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn is_dirty(&self, sector: usize) -> bool {
        self.words_of(sector)
            .any(|at| self.current[at].load(Ordering::Relaxed) != self.durable[at])
    }

    fn write_back(&mut self, sector: usize) {
        let words = self.words_of(sector);
        // A sector that has been written again is not clean any more.
        if self.lost[sector]
            .as_ref()
            .is_none_or(|lost| *lost != self.read(words.clone()))
        {
            self.lost[sector] = None;
            for at in words {
                self.durable[at] = self.current[at].load(Ordering::Relaxed);
            }
        }
    }

    fn sync(&mut self) {
        (0..self.sectors()).for_each(|sector| self.write_back(sector));
    }

    /// A sync that fails: some sectors are written, and the others count as clean.
    fn fail_to_sync(&mut self, random: &mut Random) {
        for sector in 0..self.sectors() {
            if self.is_dirty(sector) && random.one_in(2) {
                self.lost[sector] = Some(self.read(self.words_of(sector)));
            } else {
                self.write_back(sector);
            }
        }
    }

    /// Makes the next sync write these words.
    fn touch(&mut self, words: Range<usize>) {
        self.lost[words.start / SECTOR..words.end.div_ceil(SECTOR)].fill(None);
    }

    /// Power fails.
    fn cut(&mut self, random: &mut Random, may_be_garbage: bool) {
        for sector in 0..self.sectors() {
            if !self.is_dirty(sector) {
                continue;
            }
            let fate = random.below(5);
            for at in self.words_of(sector) {
                let new = self.current[at].load(Ordering::Relaxed);
                match fate {
                    0 => {}
                    1 | 2 => self.durable[at] = new,
                    3 if may_be_garbage && random.one_in(8) => self.durable[at] = random.next(),
                    _ if random.one_in(2) => self.durable[at] = new,
                    _ => {}
                }
            }
        }
    }

    /// The page cache is lost: what is read next comes from the disk.
    fn restart(&mut self) {
        for (cell, &word) in self.current.iter().zip(&self.durable) {
            cell.store(word, Ordering::Relaxed);
        }
        self.lost.fill(None);
    }
}

/// What happens to the disk.
struct Sim {
    log: SimFile,
    data: SimFile,
    random: Random,
    /// Calls until power fails.
    calls_left: u64,
    is_off: bool,
    /// One call in this many fails; 0 for none.
    fails: u64,
}

impl Sim {
    /// A call begins: power may fail.
    fn call(&mut self) -> Result<()> {
        if !self.is_off && self.calls_left == 0 {
            self.cut();
        }
        self.calls_left = self.calls_left.saturating_sub(1);
        if self.is_off {
            return Err(Error::Damaged("the power is off".into()));
        }
        Ok(())
    }

    fn cut(&mut self) {
        self.is_off = true;
        self.log.cut(&mut self.random, true);
        self.data.cut(&mut self.random, false);
    }

    fn fails(&mut self) -> bool {
        self.fails > 0 && self.random.one_in(self.fails)
    }

    /// Some sectors reach the disk by themselves.
    fn trickle(&mut self) {
        let Self {
            log, data, random, ..
        } = self;
        for file in [log, data] {
            for _ in 0..random.below(8) {
                let sector = random.below(file.sectors() as u64) as usize;
                file.write_back(sector);
            }
        }
    }
}

/// The disk, and the log's file on it, which is mapped.
#[derive(Clone)]
struct Disk {
    sim: Arc<Mutex<Sim>>,
    log: Arc<[AtomicU64]>,
}

impl Disk {
    fn new(random: Random) -> Self {
        let log = SimFile::new(SEGMENTS * SEGMENT_WORDS);
        Self {
            log: Arc::clone(&log.current),
            sim: Arc::new(Mutex::new(Sim {
                log,
                data: SimFile::new(DATA_WORDS),
                random,
                calls_left: u64::MAX,
                is_off: false,
                fails: 0,
            })),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Sim) -> T) -> T {
        work(&mut lock(&self.sim))
    }

    /// The next process begins; if the power was off, it is back.
    fn restart(&self) {
        self.with(|sim| {
            if sim.is_off {
                sim.log.restart();
                sim.data.restart();
            }
            sim.is_off = false;
            sim.fails = 0;
        });
    }

    fn failing<T>(&self, work: impl FnOnce(&mut Sim) -> Result<T>) -> Result<T> {
        self.with(|sim| {
            sim.call()?;
            let result = work(sim);
            // And after it has done its work.
            sim.call()?;
            result
        })
    }
}

fn failed() -> Error {
    Error::NoSpace("simulated".into())
}

impl LogDevice for Disk {
    fn segments(&self) -> usize {
        SEGMENTS
    }

    fn most_segments(&self) -> usize {
        SEGMENTS
    }

    fn segment(&self, slot: usize) -> &[AtomicU64] {
        &self.log[slot * SEGMENT_WORDS..(slot + 1) * SEGMENT_WORDS]
    }

    fn add_segment(&self) -> Result<bool> {
        Ok(false)
    }

    fn touch(&self, slot: usize) {
        let words = slot * SEGMENT_WORDS..(slot + 1) * SEGMENT_WORDS;
        self.with(|sim| sim.log.touch(words));
    }

    fn sync(&self) -> Result<()> {
        self.failing(|sim| {
            if sim.fails() {
                sim.log.fail_to_sync(&mut sim.random);
                return Err(failed());
            }
            sim.log.sync();
            Ok(())
        })
    }
}

/// The pool's file on the disk.
struct Data(Disk);

impl DataFile for Data {
    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.0.failing(|sim| {
            let words = &sim.data.current[at as usize / 8..];
            for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            }
            Ok(())
        })
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.0.failing(|sim| {
            let fails = sim.fails();
            let words = &sim.data.current[at as usize / 8..];
            for (bytes, word) in bytes.as_chunks::<8>().0.iter().zip(words) {
                if fails && sim.random.one_in(2) {
                    return Err(failed());
                }
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            sim.data
                .touch(at as usize / 8..(at as usize + bytes.len()) / 8);
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        self.0.failing(|sim| {
            if sim.fails() {
                sim.data.fail_to_sync(&mut sim.random);
                return Err(failed());
            }
            sim.data.sync();
            Ok(())
        })
    }

    fn length(&self) -> Result<u64> {
        Ok(DATA_WORDS as u64 * 8)
    }
}

/// What a trial has met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Batches appended.
    pub batches: u64,
    /// Times that the power failed.
    pub cuts: u64,
    /// Times that only the process died.
    pub deaths: u64,
    /// Recoveries that were interrupted.
    pub recoveries_cut: u64,
    /// Batches that were lost, none of them acknowledged.
    pub lost: u64,
    /// Segments that were used again.
    pub reused: u64,
}

/// The pool as the trial knows it.
struct Trial {
    disk: Disk,
    random: Random,
    superblock: Superblock,
    image: Vec<u64>,
    /// What the file was when the session began, and the batches since.
    base: Vec<u64>,
    batches: Vec<Vec<Word>>,
    acknowledged: usize,
    met: Met,
}

/// How a session ends.
#[derive(PartialEq, Eq)]
enum End {
    Closed,
    Died,
    Cut,
}

/// Runs some sessions on a simulated disk.
///
/// # Errors
///
/// What is wrong, in words.
pub fn trial(seed: u64) -> Result<Met, String> {
    let mut random = Random(seed);
    let disk = Disk::new(Random(random.next()));
    let superblock = Superblock {
        uuid: [random.next(), random.next()],
        sequence: 1,
        generation: 1,
        promise: Promise::Logged,
        clean: true,
        boot: [0; 2],
        extents: 1,
    };
    let mut trial = Trial {
        image: vec![0; DATA_WORDS],
        base: Vec::new(),
        batches: Vec::new(),
        acknowledged: 0,
        met: Met::default(),
        disk,
        random,
        superblock,
    };
    let created = trial.write_superblock();
    created.map_err(|error| error.to_string())?;
    for _ in 0..4 {
        let end = trial.session();
        match end {
            End::Closed => {}
            End::Died => trial.met.deaths += 1,
            End::Cut => trial.met.cuts += 1,
        }
        trial.disk.restart();
        trial.recover(&end)?;
    }
    Ok(trial.met)
}

impl Trial {
    fn identity(&self) -> Identity {
        Identity {
            uuid: self.superblock.uuid,
            generation: self.superblock.generation,
        }
    }

    /// Writes the superblock into the image and the file, as a pool does when it is opened and closed.
    fn write_superblock(&mut self) -> Result<()> {
        let copies = [0, 1].map(|copy| Copy::of(&self.image[copy * COPY_BYTES / 8..]));
        let data = Data(self.disk.clone());
        self.superblock.write_directly(&copies, |at, bytes| {
            data.write(bytes, at)?;
            data.sync()
        })?;
        for (copy, words) in copies.iter().enumerate() {
            words.copy_to(&mut self.image[copy * COPY_BYTES / 8..]);
        }
        Ok(())
    }

    /// Opens the pool, works, and ends somehow.
    fn session(&mut self) -> End {
        self.superblock.generation += 1;
        self.superblock.sequence += 1;
        self.superblock.clean = false;
        let calls = self.random.below(1200);
        let fails = [0, 0, 100, 30][self.random.below(4) as usize];
        self.disk.with(|sim| {
            sim.calls_left = 10 + calls;
            sim.fails = fails;
        });
        let _ = self.work();
        let (is_off, dies) = (
            self.disk.with(|sim| sim.is_off),
            self.superblock.clean || self.random.one_in(2),
        );
        match (is_off, dies) {
            (false, true) if self.superblock.clean => End::Closed,
            (false, true) => End::Died,
            _ => {
                self.disk.with(|sim| {
                    if !sim.is_off {
                        sim.cut();
                    }
                });
                End::Cut
            }
        }
    }

    fn work(&mut self) -> Result<()> {
        // Until the superblock is written, the file is the last session's.
        let before = (self.superblock.generation, self.superblock.sequence);
        self.batches.clear();
        self.acknowledged = 0;
        self.base.clone_from(&self.image);
        self.write_superblock()?;
        debug_assert_eq!(before.0, self.superblock.generation);
        let device = Box::new(self.disk.clone());
        let log = Log::begin(self.identity(), device, Box::new(Data(self.disk.clone())))?;
        let mut positions = Vec::new();
        let is_lazy = self.random.one_in(2);
        for _ in 0..self.random.below(300) {
            match self.random.below(10) {
                0..5 => positions.push(self.append(&log)),
                5 if !positions.is_empty() => {
                    let at = self.random.below(positions.len() as u64) as usize;
                    log.wait_for(positions[at])?;
                    self.acknowledged = self.acknowledged.max(at + 1);
                }
                6 => {
                    log.sync()?;
                    self.acknowledged = positions.len();
                }
                7 if !is_lazy => drop(log.tend()?),
                // Another thread may append between the steps of the applier.
                7 => self.apply_one_segment(&log)?,
                8 if !is_lazy && self.random.one_in(4) => {
                    log.drain()?;
                    self.acknowledged = positions.len();
                }
                _ => self.disk.with(Sim::trickle),
            }
        }
        if self.random.one_in(4) {
            log.drain()?;
            self.acknowledged = positions.len();
            self.superblock.clean = true;
            self.superblock.sequence += 1;
            self.write_superblock().inspect_err(|_| {
                // It is on the disk or not; the recovery finds out.
                self.superblock.clean = false;
            })?;
        }
        let ordinal = log.appended() / SEGMENT_BYTES;
        self.met.reused += ordinal.saturating_sub(SEGMENTS as u64 - 1);
        Ok(())
    }

    /// Applies what is durable of the oldest segment.
    fn apply_one_segment(&self, log: &Log) -> Result<()> {
        let end = (log.applied() / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
        log.apply_until(&mut lock(&log.applier), end.min(log.durable()))
    }

    /// Appends a batch, which has the number of the batch in its first word.
    fn append(&mut self, log: &Log) -> u64 {
        let number = self.batches.len() as u64 + 1;
        let mut batch = vec![(FIRST_WORD as u64, self.superblock.generation << 32 | number)];
        if self.random.one_in(6) {
            // The pool grows, say: one copy of the superblock changes in this batch, and the other in the next one or later.
            self.superblock.sequence += 1;
            let copy = self.random.below(2) * COPY_BYTES as u64 / 8;
            batch.extend((copy..).zip(self.superblock.words()));
        }
        let most = [4, 30, MOST_WORDS as u64 - 20][self.random.below(3) as usize];
        for _ in 0..self.random.below(most) {
            let at =
                FIRST_WORD as u64 + 1 + self.random.below((DATA_WORDS - FIRST_WORD) as u64 - 1);
            batch.push((at, self.random.next()));
        }
        self.met.batches += 1;
        for &(at, value) in &batch {
            self.image[at as usize] = value;
        }
        self.batches.push(batch.clone());
        log.append(&batch)
    }

    /// Recovers the pool after whatever has happened, perhaps in several attempts, and looks at what is there.
    fn recover(&mut self, end: &End) -> Result<(), String> {
        loop {
            let calls = self.random.below(60);
            let is_cut = self.random.one_in(3);
            self.disk
                .with(|sim| sim.calls_left = if is_cut { calls } else { u64::MAX });
            match self.recover_once() {
                Ok(found) => {
                    self.disk.with(|sim| sim.calls_left = u64::MAX);
                    return self.compare(&found, end);
                }
                Err(error) => {
                    if !self.disk.with(|sim| sim.is_off) {
                        return Err(format!("no recovery: {error}"));
                    }
                    self.met.recoveries_cut += 1;
                    self.disk.restart();
                }
            }
        }
    }

    fn recover_once(&mut self) -> Result<Superblock> {
        let data = Data(self.disk.clone());
        let mut found = read_superblock(&data)?;
        let is_recovered = !found.clean;
        if is_recovered {
            let identity = Identity {
                uuid: found.uuid,
                generation: found.generation,
            };
            recover::recover_from(&self.disk, &data, &identity)?;
            found = read_superblock(&data)?;
        }
        // What is read later comes from the disk, or the recovery has not done its work. (If the session could not write its superblock,
        // that is written at the next open.)
        self.disk.with(|sim| {
            let is_durable =
                |file: &SimFile| (FIRST_WORD / SECTOR..file.sectors()).all(|s| !file.is_dirty(s));
            if !is_recovered || is_durable(&sim.data) {
                Ok(found)
            } else {
                Err(failed())
            }
        })
    }

    /// Compares the file with what the batches make of it.
    fn compare(&mut self, found: &Superblock, end: &End) -> Result<(), String> {
        let file: Vec<u64> = self.disk.with(|sim| sim.data.durable.clone());
        let mark = file[FIRST_WORD];
        let generation = self.superblock.generation;
        let count = if mark >> 32 == generation {
            mark as u32 as usize
        } else {
            0
        };
        if count < self.acknowledged || count > self.batches.len() {
            return Err(format!(
                "{count} batches are there, of {}, of which {} were acknowledged",
                self.batches.len(),
                self.acknowledged
            ));
        }
        if *end != End::Cut && count != self.batches.len() && self.disk.with(|sim| sim.fails == 0) {
            let is_sound = self.batches.len() == self.acknowledged;
            if is_sound {
                return Err("the process died, and a batch is missing".into());
            }
        }
        let mut expected = self.base.clone();
        for &(at, value) in self.batches[..count].iter().flatten() {
            expected[at as usize] = value;
        }
        let is_wrong = |at: &usize| file[*at] != expected[*at];
        if let Some(at) = (FIRST_WORD..DATA_WORDS).find(is_wrong) {
            return Err(format!(
                "word {at} is wrong after {count} of {} batches, {} acknowledged",
                self.batches.len(),
                self.acknowledged
            ));
        }
        if found.generation > generation || found.generation + 1 < generation {
            return Err(format!("generation {} in {generation}", found.generation));
        }
        self.met.lost += (self.batches.len() - count) as u64;
        // A session whose superblock did not reach the disk has no log, and its generation is used again.
        self.superblock.generation = found.generation;
        self.superblock.sequence = self.superblock.sequence.max(found.sequence);
        self.superblock.clean = true;
        self.image = file;
        Ok(())
    }
}

fn read_superblock(data: &Data) -> Result<Superblock> {
    let mut bytes = vec![0; 2 * COPY_BYTES];
    data.read(&mut bytes, 0)?;
    Superblock::read(Path::new("(simulated)"), &bytes, EXTENT_BYTES)
}

impl Copy {
    fn of(words: &[u64]) -> Self {
        Self::from_words(std::array::from_fn(|at| Cell::new(words[at])))
    }

    fn copy_to(&self, words: &mut [u64]) {
        for (to, from) in words.iter_mut().zip(self.cells()) {
            *to = from.load();
        }
    }
}

/// Writes a batch to the bytes of a record, reads it from them, and returns what the applier would write: for the crash checker.
#[must_use]
pub fn through_the_log(batch: &[Word]) -> Option<Vec<Word>> {
    let identity = Identity {
        uuid: [1, 2],
        generation: 3,
    };
    let mut encoded = Encoded::default();
    encoded.set(batch);
    encoded.seal(&identity, HEADER_WORDS as u64 * 8);
    let record = encoded.words.iter().map(|&word| AtomicU64::new(word));
    let segment: Vec<AtomicU64> = (0..HEADER_WORDS)
        .map(|_| AtomicU64::new(0))
        .chain(record)
        .collect();
    let mut payload = Vec::new();
    match record::read(&identity, &segment, 0, HEADER_WORDS, &mut payload)? {
        (Record::Batch, _) => {
            let runs = runs(&payload);
            Some(
                runs.flat_map(|(at, words)| (at..).zip(words.iter().copied()))
                    .collect(),
            )
        }
        (Record::Padding, _) => None,
    }
}
