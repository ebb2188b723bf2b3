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

use super::{Data, Disk, Random, SECTOR, SEGMENTS, Sim, failed};
use crate::Result;
use crate::concurrency::sync::lock;
use crate::pmem::Cell;
use crate::pmem::journal::{MOST_WORDS, Sink, Word};
use crate::pool::layout::{COPY_BYTES, EXTENT_BYTES, SUPERBLOCK_BYTES};
use crate::pool::log::device::DataFile;
use crate::pool::log::footer::Footer;
use crate::pool::log::record::{HEADER_WORDS, Header, SEGMENT_BYTES, SEGMENT_WORDS};
use crate::pool::log::{Backlog, Beginning, Identity, Last, Log, recover};
use crate::pool::superblock::{Copy, Promise, Superblock};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Segments that got a footer, apart from those of the log's threads.
    pub footers: u64,
    /// Sessions that had batches before they had begun.
    pub late: u64,
    /// Segments that were damaged, and that was noticed or did not matter.
    pub damaged: u64,
    /// Logs that had failed, and with which threads went on that had not noticed yet.
    pub went_on: u64,
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
    /// The session's generation.
    batches_of: u64,
    acknowledged: usize,
    /// The log has failed in this session, and takes no batches any more.
    has_failed: bool,
    /// The log has begun in this session.
    has_begun: bool,
    /// The disk has changed something in the log by itself.
    is_damaged: bool,
    /// The pool has become shorter in this session, and does not become longer before the next one.
    has_shrunk: bool,
    /// Threads go on after a failure that have not noticed it.
    goes_on: bool,
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
        batches_of: 1,
        acknowledged: 0,
        has_failed: false,
        has_begun: true,
        is_damaged: false,
        has_shrunk: false,
        goes_on: seed % 2 == 1,
        backlog: None,
        met: Met::default(),
        disk,
        random,
        superblock,
    };
    let created = trial.write_superblock();
    created.map_err(|error| error.to_string())?;
    let is_short = trial.random.one_in(4);
    let sessions = if is_short { 10 } else { 4 };
    for session in 1..=sessions {
        // Some end again and again before they have done anything.
        let calls = if is_short && session % 3 > 0 {
            25
        } else {
            1210
        };
        let end = trial.session(calls)?;
        match end {
            End::Closed => {}
            End::Died => trial.met.deaths += 1,
            End::Cut => trial.met.cuts += 1,
        }
        trial.disk.restart();
        if session == sessions {
            trial.damage();
        }
        trial.recover(&end)?;
    }
    Ok(trial.met)
}

impl Trial {
    /// Words in the pool.
    fn words(&self) -> usize {
        self.superblock.boot[0] as usize
    }

    /// Writes the superblock into the image and the file, as a pool does when it is closed.
    fn write_superblock(&mut self) -> Result<()> {
        let second = self.write_first_superblock()?;
        Data(self.disk.clone()).write_for_good(&second.1, second.0)
    }

    /// Writes the superblock into the image, and the first copy of it into the file. When a pool is opened, the log gets its first segment before the
    /// second copy is written, which this returns.
    fn write_first_superblock(&mut self) -> Result<(u64, Vec<u8>)> {
        let copies = [0, 1].map(|copy| Copy::of(&self.image[copy * COPY_BYTES / 8..]));
        let data = Data(self.disk.clone());
        let in_file = superblocks_in(&data)?;
        let writes = self.superblock.write_directly(&copies, &in_file);
        self.superblock.sequence = writes.sequence;
        let [first, second] = writes.copies;
        // In a session that has begun, both are on the disk.
        let again = writes.again.iter().filter(|_| !self.superblock.clean);
        again
            .chain([&first])
            .try_for_each(|(at, bytes)| data.write_for_good(bytes, *at))?;
        for (copy, words) in copies.iter().enumerate() {
            words.copy_to(&mut self.image[copy * COPY_BYTES / 8..]);
        }
        Ok(second)
    }

    /// Opens the pool, works, and ends somehow. An error if it fails without a fault of the disk.
    fn session(&mut self, calls: u64) -> Result<End, String> {
        let calls = self.random.below(calls);
        let fails = [0, 0, 100, 30][self.random.below(4) as usize];
        self.disk.with(|sim| {
            sim.calls_left = 2 + calls;
            sim.fails = fails;
            sim.has_failed = false;
        });
        if let Some(backlog) = self.backlog.clone()
            && let Err(error) = backlog.make_durable()
        {
            // The session has not begun. What was found may be lost that nobody has waited for.
            self.has_begun = false;
            self.superblock.clean = false;
            self.expect_fault(&error)?;
            return Ok(self.end());
        }
        self.superblock.generation += 1;
        self.superblock.sequence += 1;
        self.superblock.clean = false;
        self.superblock.earlier = self.backlog.as_ref().map_or(0, |it| it.generation());
        if let Err(error) = self.work() {
            self.expect_fault(&error)?;
        }
        if self.has_failed {
            self.expect_fault(&"the log takes no batches any more")?;
        }
        Ok(self.end())
    }

    /// Something has failed in this session, for which the disk has to be at fault.
    fn expect_fault(&self, what: &dyn Display) -> Result<(), String> {
        if self.disk.with(|sim| sim.is_off || sim.has_failed) {
            return Ok(());
        }
        Err(format!("without a fault of the disk: {what}"))
    }

    fn end(&mut self) -> End {
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
        self.batches.clear();
        self.batches_of = self.superblock.generation;
        self.acknowledged = 0;
        self.has_failed = false;
        self.has_begun = false;
        self.has_shrunk = false;
        self.base.clone_from(&self.image);
        let beginning = Beginning::default();
        let mut kept = 0;
        if self.backlog.is_some() {
            // The session begins late: some batches come before it.
            kept = self.random.below(5) as usize * self.random.below(2) as usize;
            (0..kept).for_each(|_| _ = self.append(&beginning, false));
            self.met.late += u64::from(kept > 0);
        }
        let second = self.write_first_superblock()?;
        let length = self.words();
        self.disk.failing(|sim| {
            sim.data.cut_off(length);
            Ok(())
        })?;
        let identity = Identity::of(&self.superblock);
        let device = Box::new(self.disk.clone());
        let data = Box::new(Data(self.disk.clone()));
        let backlog = self.backlog.clone();
        self.met.continued += u64::from(backlog.is_some());
        let log = Log::begin(identity, length as u64, device, data, backlog)?;
        log.write_superblock(&second)?;
        let first = log.appended() / SEGMENT_BYTES;
        let log = Arc::new(log);
        beginning.end(Ok(Arc::clone(&log)));
        log.expect_sound()?;
        self.has_begun = true;
        let worked = self.work_with(&log, kept);
        if worked.is_err() && self.goes_on && !self.disk.with(|sim| sim.is_off) {
            self.met.went_on += 1;
            self.go_on(&log);
        }
        let ordinal = log.appended() / SEGMENT_BYTES - first;
        self.met.reused += ordinal.saturating_sub(SEGMENTS as u64 - 1);
        worked
    }

    /// Works with a log that has begun, after `kept` batches that came before.
    fn work_with(&mut self, log: &Log, kept: usize) -> Result<()> {
        let mut positions = vec![log.appended(); kept];
        let is_lazy = self.random.one_in(2);
        for _ in 0..self.random.below(300) {
            match self.random.below(10) {
                0..5 => positions.push(self.append(log, true)),
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
                7 if self.random.one_in(2) => self.apply_one_segment(log)?,
                7 => self.met.footers += u64::from(log.write_footer()?),
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
        Ok(())
    }

    /// The log has failed. Threads that had found it sound before, and waited for a lock since, go on where they were.
    fn go_on(&mut self, log: &Log) {
        for _ in 0..self.random.below(8) {
            // What they return says that it has failed, or that what they had to do was done before.
            match self.random.below(4) {
                0 => _ = log.apply_all(&mut lock(&log.applier)),
                1 => _ = self.apply_one_segment(log),
                2 => _ = log.add_segment(),
                _ => _ = log.write_footer(),
            }
        }
    }

    /// Applies what is durable of the oldest segment.
    fn apply_one_segment(&self, log: &Log) -> Result<()> {
        let end = (log.applied() / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
        log.apply_until(&mut lock(&log.applier), end.min(log.durable()))
    }

    /// Appends a batch, which has the number of the batch in its first word.
    fn append(&mut self, log: &dyn Sink, may_resize: bool) -> u64 {
        let number = self.batches.len() as u64 + 1;
        let mut batch = vec![(FIRST_WORD as u64, self.superblock.generation << 32 | number)];
        if may_resize && self.random.one_in(6) {
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

    /// Changes a word of a segment that has a footer, as a disk does that does not keep what it was given. (What lies behind the place up to which the log
    /// was on the disk for certain could not be told from what a power cut leaves.)
    fn damage(&mut self) {
        let with_footers: Vec<usize> = (0..SEGMENTS).filter(|&it| self.has_footer(it)).collect();
        if with_footers.is_empty() {
            return;
        }
        let slot = with_footers[self.random.below(with_footers.len() as u64) as usize];
        self.is_damaged = true;
        self.met.damaged += 1;
        if self.goes_on && self.random.one_in(2) {
            return self.lose(slot);
        }
        let word = self.random.below((SEGMENT_WORDS - HEADER_WORDS) as u64) as usize;
        let at = slot * SEGMENT_WORDS + HEADER_WORDS + word;
        let flipped = 1 << self.random.below(64);
        self.disk.with(|sim| {
            sim.log.durable[at] ^= flipped;
            sim.log.current[at].fetch_xor(flipped, Ordering::Relaxed);
        });
        if !self.disk.is_shared {
            self.disk.log[at].fetch_xor(flipped, Ordering::Relaxed);
        }
    }

    /// Whether a segment has a footer on the disk: one that is in the page cache only may be lost, when power fails in the recovery.
    fn has_footer(&self, slot: usize) -> bool {
        let words = slot * SEGMENT_WORDS..(slot + 1) * SEGMENT_WORDS;
        let on_disk: Vec<AtomicU64> = self.disk.with(|sim| {
            let words = sim.log.durable[words].iter().copied();
            words.map(AtomicU64::new).collect()
        });
        Header::read(&on_disk)
            .and_then(|it| Footer::read(&it.session.identity, &on_disk, it.ordinal))
            .is_some()
    }

    /// Loses a segment: all of it, or only its header.
    fn lose(&mut self, slot: usize) {
        let words = [SECTOR, SEGMENT_WORDS][self.random.below(2) as usize];
        let words = slot * SEGMENT_WORDS..slot * SEGMENT_WORDS + words;
        self.disk.with(|sim| {
            sim.log.durable[words.clone()].fill(0);
            for at in words.clone() {
                sim.log.current[at].store(0, Ordering::Relaxed);
            }
        });
        for at in words {
            self.disk.log[at].store(0, Ordering::Relaxed);
        }
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
                        if self.is_damaged {
                            return Ok(());
                        }
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
        let mut backlog = recover::find(Box::new(self.disk.clone()), &Last::of(&found, &bytes))?;
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
    fn state(&self) -> Result<Vec<u64>> {
        let mut words = self.disk.with(|sim| sim.data.read(0..DATA_WORDS));
        if let Some(backlog) = &self.backlog {
            for extent in backlog.extents() {
                backlog.runs_of(extent, |at, run| {
                    words[at as usize..][..run.len()].copy_from_slice(run);
                })?;
            }
        }
        Ok(words)
    }

    /// Compares the file with what the batches make of it.
    fn compare(&mut self, found: &Superblock, end: &End) -> Result<(), String> {
        let mut file = match self.state() {
            // It was noticed.
            Err(_) if self.is_damaged => return Ok(()),
            state => state.map_err(|error| error.to_string())?,
        };
        let mark = file[FIRST_WORD];
        let generation = self.superblock.generation;
        let count = if mark >> 32 == self.batches_of {
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
        let is_sound = self.has_begun && !self.has_failed && !self.is_damaged;
        let loses_nothing = *end == End::Died && self.disk.is_shared && is_sound;
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

/// The bytes of both superblocks.
fn superblocks_in(data: &Data) -> Result<Vec<u8>> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    data.read(&mut bytes, 0)?;
    Ok(bytes)
}

fn read_superblock(data: &Data) -> Result<(Vec<u8>, Superblock)> {
    let bytes = superblocks_in(data)?;
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
