//! Sessions on the simulated disk.
//!
//! A [`trial`] runs sessions on such a disk, from a seed. In each it appends batches, waits, applies and closes in random order, until
//! power fails, also inside of any call, or the process dies. Then the pool is recovered by the code that recovers real pools, which
//! is interrupted in turn. The recovered words are applied at once, or the next session begins with them as its backlog. What must
//! hold: the pool is what the batches up to some number make of it, none missing in between, and all batches are among them that
//! were acknowledged.
//!
//! In a batch the pool may become shorter, and what lies behind its end is zero in the next session. How long it is, in words, is in
//! the superblock's word for the boot.

use super::{Data, Disk, Random, SEGMENTS, Sim, failed};
use crate::Result;
use crate::concurrency::sync::lock;
use crate::pmem::Cell;
use crate::pmem::journal::{MOST_WORDS, Sink, Word};
use crate::pool::layout::{COPY_BYTES, EXTENT_BYTES};
use crate::pool::log::device::DataFile;
use crate::pool::log::record::SEGMENT_BYTES;
use crate::pool::log::{Backlog, Last, Log, recover};
use crate::pool::superblock::{Copy, Promise, Superblock};
use std::path::Path;
use std::sync::Arc;

/// Words of the pool's file: the superblocks, a whole page for words, and a part of another one.
pub(super) const DATA_WORDS: usize = FIRST_WORD.next_multiple_of(512) + 512 + 200;
/// The first word behind the superblocks; has the number of the last batch.
const FIRST_WORD: usize = 2 * COPY_BYTES / 8;

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
    /// Sessions that began with records of earlier ones.
    pub continued: u64,
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
    /// The log has failed in this session, and takes no batches any more.
    has_failed: bool,
    /// The pool has become shorter in this session, and does not become longer before the next one.
    has_shrunk: bool,
    /// What the next session begins with.
    backlog: Option<Arc<Backlog>>,
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
    let is_shared = random.one_in(2);
    let disk = Disk::new(Random(random.next()), is_shared);
    let superblock = Superblock {
        uuid: [random.next(), random.next()],
        sequence: 1,
        generation: 1,
        promise: Promise::Logged,
        clean: true,
        earlier: 0,
        boot: [DATA_WORDS as u64, 0],
        extents: 1,
    };
    let mut trial = Trial {
        image: vec![0; DATA_WORDS],
        base: Vec::new(),
        batches: Vec::new(),
        acknowledged: 0,
        has_failed: false,
        has_shrunk: false,
        backlog: None,
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
    /// Words in the pool.
    fn words(&self) -> usize {
        self.superblock.boot[0] as usize
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
        self.superblock.earlier = self.backlog.as_ref().map_or(0, |it| it.generation());
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
        self.has_failed = false;
        self.has_shrunk = false;
        self.base.clone_from(&self.image);
        self.write_superblock()?;
        debug_assert_eq!(before.0, self.superblock.generation);
        let length = self.words();
        self.disk.failing(|sim| {
            sim.data.cut_off(length);
            Ok(())
        })?;
        let identity = Last::of(&self.superblock).identity;
        let device = Box::new(self.disk.clone());
        let data = Box::new(Data(self.disk.clone()));
        let backlog = self.backlog.clone();
        self.met.continued += u64::from(backlog.is_some());
        let log = Log::begin(identity, length as u64, device, data, backlog)?;
        let first = log.appended() / SEGMENT_BYTES;
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
                7 if !is_lazy => drop(log.tend_segments()? || log.tend_records()?),
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
            self.superblock.earlier = 0;
            self.superblock.sequence += 1;
            self.write_superblock().inspect_err(|_| {
                // It is on the disk or not; the recovery finds out.
                self.superblock.clean = false;
            })?;
        }
        let ordinal = log.appended() / SEGMENT_BYTES - first;
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
            self.has_shrunk |= self.random.one_in(4);
            self.superblock.boot[0] = if self.has_shrunk {
                self.random
                    .below(100)
                    .min(self.superblock.boot[0] - FIRST_WORD as u64 - 2)
                    + FIRST_WORD as u64
                    + 2
            } else {
                DATA_WORDS as u64
            };
            let copy = self.random.below(2) * COPY_BYTES as u64 / 8;
            batch.extend((copy..).zip(self.superblock.words()));
        }
        let most = [4, 30, MOST_WORDS as u64 - 20][self.random.below(3) as usize];
        for _ in 0..self.random.below(most) {
            let at =
                FIRST_WORD as u64 + 1 + self.random.below((self.words() - FIRST_WORD) as u64 - 1);
            batch.push((at, self.random.next()));
        }
        self.met.batches += 1;
        for &(at, value) in &batch {
            self.image[at as usize] = value;
        }
        self.batches.push(batch.clone());
        let position = log.append(&batch);
        self.has_failed |= position == u64::MAX;
        position
    }

    /// Recovers the pool after whatever has happened, perhaps in several attempts, and looks at what is there.
    fn recover(&mut self, mut end: &End) -> Result<(), String> {
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
                    end = &End::Cut;
                    self.disk.restart();
                }
            }
        }
    }

    fn recover_once(&mut self) -> Result<Superblock> {
        let data = Data(self.disk.clone());
        let (mut bytes, mut found) = read_superblock(&data)?;
        self.backlog = None;
        if found.clean {
            return Ok(found);
        }
        let mut backlog = recover::find(Box::new(self.disk.clone()), &Last::of(&found))?;
        backlog.complete_superblocks(&mut bytes);
        found = parse(&bytes)?;
        backlog.cut_at(found.boot[0] * 8);
        if self.random.one_in(2) {
            self.backlog = (!backlog.is_empty()).then(|| Arc::new(backlog));
            return Ok(found);
        }
        backlog.apply_all(&data)?;
        // What is read later comes from the disk, or the recovery has not done its work. (If the session could not write its superblock,
        // that is written at the next open.)
        self.disk.with(|sim| {
            let words = FIRST_WORD..found.boot[0] as usize;
            if sim.data.read(words.clone()) == sim.data.durable[words] {
                Ok(found)
            } else {
                Err(failed())
            }
        })
    }

    /// What the pool has: the file, and the words that are not in it yet.
    fn state(&self) -> Vec<u64> {
        let mut words = self.disk.with(|sim| sim.data.read(0..DATA_WORDS));
        if let Some(backlog) = &self.backlog {
            for extent in backlog.extents() {
                backlog.words_of(extent, |at, value| words[at as usize] = value);
            }
        }
        words
    }

    /// Compares the file with what the batches make of it.
    fn compare(&mut self, found: &Superblock, end: &End) -> Result<(), String> {
        let mut file = self.state();
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
        let loses_nothing = *end == End::Died && self.disk.is_shared && !self.has_failed;
        if loses_nothing && count != self.batches.len() {
            return Err("the process died, and a batch is missing".into());
        }
        let mut expected = self.base.clone();
        for &(at, value) in self.batches[..count].iter().flatten() {
            expected[at as usize] = value;
        }
        let is_wrong = |at: &usize| file[*at] != expected[*at];
        if let Some(at) = (FIRST_WORD..found.boot[0] as usize).find(is_wrong) {
            return Err(format!(
                "word {at} is wrong after {count} of {} batches, {} acknowledged",
                self.batches.len(),
                self.acknowledged
            ));
        }
        // A session that could not sync its second superblock, and the next one that is cut off while it writes its first, leave the one before
        // both. Neither has begun a log.
        if found.generation > generation || found.generation + 2 < generation {
            return Err(format!("generation {} in {generation}", found.generation));
        }
        self.met.lost += (self.batches.len() - count) as u64;
        // A session whose superblock did not reach the disk has no log, and its generation is used again.
        self.superblock.generation = found.generation;
        self.superblock.sequence = self.superblock.sequence.max(found.sequence);
        self.superblock.clean = true;
        self.superblock.boot = found.boot;
        file[found.boot[0] as usize..].fill(0);
        self.image = file;
        Ok(())
    }
}

fn read_superblock(data: &Data) -> Result<(Vec<u8>, Superblock)> {
    let mut bytes = vec![0; 2 * COPY_BYTES];
    data.read(&mut bytes, 0)?;
    let superblock = parse(&bytes)?;
    Ok((bytes, superblock))
}

fn parse(bytes: &[u8]) -> Result<Superblock> {
    Superblock::read(Path::new("(simulated)"), bytes, EXTENT_BYTES)
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
