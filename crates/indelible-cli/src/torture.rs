//! Writers that get killed, and the proof that nothing was lost.
//!
//! Each writer thread owns a range of keys and works through a sequence of operations that a seed determines. After
//! every operation that returned it adds one to a counter in a small shared file. When the process is killed, the
//! parent reads the counters: of each thread exactly so many operations were acknowledged, and the next one may have
//! been in flight. It replays the acknowledged ones in an ordinary map and compares the whole contents; the record of the
//! operation in flight may be as before or as after it, and nothing else may differ.
//!
//! Instead of only killing the writers the parent can cut the power of the disk that they write to: then it also takes back what
//! the writers have not synced (`disk`). It sees their syncs because it traces them (`traced`). In a pool with
//! [`Durability::Interval`] each writer waits for what it has written now and then, and its counter says how far that was. What it did later may be missing
//! after a power cut, from some operation on (`prefix`).

mod disk;
mod places;
mod prefix;
mod target;
mod traced;

use crate::output::{Output, note};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
pub use disk::Cut;
use disk::Disk;
pub use disk::Random;
use indelible::{Durability, Pool, PoolOptions};
use memmap2::{MmapMut, MmapOptions};
pub use prefix::Verify;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use target::Target;
pub use target::TargetArgs;
use traced::Traced;

/// The name of what the writers write to.
pub const MAP: &str = "torture";
/// The name of the pool's file.
const POOL: &str = "torture.pool";
/// System calls of the writers that are waited for a moment; after that, power is cut at any.
const PATIENCE: u64 = 4_000;
/// Keys of each thread.
const DOMAIN: u64 = 1 << 14;
/// Operations of a thread per sync that it waits for, on average, in a pool whose operations return before they are durable.
const OPERATIONS_PER_SYNC: u64 = 200;
/// Operations of one kind before the next: growing, changing, and emptying a stretch of keys.
const PHASE: u64 = 1 << 12;

/// One step of a thread's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Put(u64, u64),
    Remove(u64),
}

impl Step {
    /// Step `i` of `thread`.
    pub fn at(seed: u64, thread: u64, i: u64) -> Self {
        let random = mix(mix(seed ^ thread << 56) ^ i);
        // Threads' keys lie among each other, so that they meet in the same leaves.
        let key = |x: u64| (x % DOMAIN) << 20 | thread << 8;
        match i / PHASE % 4 {
            // A whole stretch goes, so that leaves run empty.
            3 => Self::Remove(key(mix(seed ^ (i / PHASE)) + i % PHASE)),
            2 if random.is_multiple_of(3) => Self::Remove(key(random >> 8)),
            _ => Self::Put(key(random >> 8), i),
        }
    }

    /// Whose key this is.
    fn thread_of(key: u64) -> u64 {
        key >> 8 & 0xfff
    }

    fn key(self) -> u64 {
        match self {
            Self::Put(key, _) | Self::Remove(key) => key,
        }
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// The counters that outlive the writers: one line each, so that threads do not share them.
struct Progress(MmapMut);

/// Threads at most.
const MAX_THREADS: usize = 64;

impl Progress {
    fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        file.set_len(MAX_THREADS as u64 * 64)?;
        // SAFETY: parent and child are the only users of the file, they never change its length again, and they access
        // it through atomics.
        Ok(Self(unsafe { MmapOptions::new().map_mut(&file)? }))
    }

    /// Operations of `thread` that have returned.
    fn done(&self, thread: u64) -> &AtomicU64 {
        // SAFETY: the mapping is page-aligned and has 64 bytes for every thread; it lives as long as `self`.
        unsafe {
            &*self
                .0
                .as_ptr()
                .add(thread as usize % MAX_THREADS * 64)
                .cast()
        }
    }
}

/// The child.
#[derive(Args)]
pub struct Writer {
    pool: PathBuf,
    progress: PathBuf,
    threads: u64,
    seed: u64,
    /// Print the number of acknowledged operations of each thread so often.
    #[arg(long)]
    print_ms: Option<u64>,
    /// Acknowledge operations when they are durable, also if they return before.
    #[arg(long)]
    synced: bool,
    #[command(flatten)]
    new: TargetArgs,
}

impl Writer {
    /// Writes until killed, once the standard input has ended: whoever wants to trace the writers does so before.
    pub fn run(self) -> Result<bool> {
        // A panic ends the process too, of whatever thread, and at once: while a stack is printed, the process would be killed.
        std::panic::set_hook(Box::new(|panic| {
            note(format_args!("writer: {panic}"));
            std::process::exit(4);
        }));
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
        let pool = Pool::open(&self.pool)?;
        let map = Target::open(&pool, &self.new)?;
        let progress = Progress::open(&self.progress)?;
        std::thread::scope(|scope| {
            if let Some(interval) = self.print_ms {
                let (this, progress) = (&self, &progress);
                scope.spawn(move || this.print(progress, Duration::from_millis(interval)));
            }
            let synced = self.synced.then_some(&pool);
            for thread in 0..self.threads {
                let (map, done) = (map.clone(), progress.done(thread));
                scope.spawn(move || end_process(|| write(&map, self.seed, thread, done, synced)));
            }
        });
        Ok(false)
    }
}

impl Writer {
    /// Prints what has been acknowledged, a line each time, until nobody reads it any more.
    fn print(&self, progress: &Progress, interval: Duration) {
        let output = Output::new(false);
        loop {
            let done = (0..self.threads).map(|thread| progress.done(thread));
            let done: Vec<String> = done
                .map(|done| done.load(Ordering::Acquire).to_string())
                .collect();
            if output
                .line(format_args!("acknowledged {} .", done.join(",")))
                .is_err()
            {
                return;
            }
            std::thread::sleep(interval);
        }
    }
}

/// Does a thread's work, which has no end, and ends the process if it fails. The thread that started it cannot: it waits for other threads,
/// which go on until they are killed, and their process would look sound.
fn end_process(work: impl FnOnce() -> Result<()>) {
    if let Err(error) = work() {
        note(format_args!("writer: {error:#}"));
        std::process::exit(3);
    }
}

/// Works through a thread's sequence. With a pool, only what has been synced counts as done.
fn write(
    map: &Target,
    seed: u64,
    thread: u64,
    done: &AtomicU64,
    synced: Option<&Pool>,
) -> Result<()> {
    for i in done.load(Ordering::Acquire).. {
        match Step::at(seed, thread, i) {
            Step::Put(key, value) => map.insert(key, value)?,
            Step::Remove(key) => map.remove(key)?,
        };
        if let Some(pool) = synced {
            if !mix(mix(seed ^ thread) ^ i).is_multiple_of(OPERATIONS_PER_SYNC) {
                continue;
            }
            pool.sync()?;
        }
        // The operation has returned, and is durable: from here on it must survive.
        done.store(i + 1, Ordering::Release);
    }
    Ok(())
}

/// A pool under torture, and the model of what must be in it.
pub struct Victim {
    pool: PathBuf,
    progress_path: PathBuf,
    progress: Progress,
    options: PoolOptions,
    new: TargetArgs,
    /// Operations return before they are durable: a power cut may take back what has not been synced, and no kill may.
    is_late: bool,
    threads: u64,
    seed: u64,
    /// Operations of each thread that the model has replayed.
    replayed: Vec<u64>,
    model: BTreeMap<u64, u64>,
}

/// What one kill showed.
pub struct Outcome {
    /// Operations acknowledged since the kill before.
    pub acknowledged: u64,
    /// From the first to the last of them.
    pub running: Duration,
    /// To open the pool.
    pub open: Duration,
    /// From the start of the open to the first answer.
    pub first_answer: Duration,
    /// Records there were.
    pub records: u64,
}

/// A moment for a power cut.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    /// Any system call.
    Anywhere,
    /// Something is about to be synced.
    InSync,
    /// The pool's file is about to be synced, not its log.
    InSyncOfPool,
}

impl Moment {
    /// Whether it is now that `synced` is about to be synced.
    fn is_now(self, synced: Option<&Path>) -> bool {
        match self {
            Self::Anywhere => true,
            Self::InSync => synced.is_some(),
            Self::InSyncOfPool => synced.is_some_and(|file| file.ends_with(POOL)),
        }
    }
}

/// When the power is cut.
pub struct Plan {
    /// Decides what is left of what was not synced.
    pub seed: u64,
    /// The cut comes after so many system calls of the writers.
    pub calls: u64,
    /// They are counted from the writers' start, and not from their first acknowledged operation.
    pub during_open: bool,
    /// And then at the next such moment.
    pub moment: Moment,
    /// Syncs do nothing from the first acknowledged operation on: operations must be missing.
    pub disk_lies: bool,
}

/// What one power cut showed.
pub struct PowerCut {
    /// Operations acknowledged since the cut before.
    pub acknowledged: u64,
    /// What became of the sectors that had not been synced.
    pub sectors: Cut,
    /// To open the pool.
    pub open: Duration,
}

/// Where the log of a pool lies.
fn log_of(pool: &Path) -> PathBuf {
    let mut log = pool.to_owned().into_os_string();
    log.push(".log");
    log.into()
}

impl Victim {
    /// Creates the pool in `directory`, for an object with these options.
    pub fn new(
        directory: &Path,
        durability: Durability,
        new: TargetArgs,
        threads: u64,
        seed: u64,
    ) -> Result<Self> {
        let mut options = PoolOptions::new();
        options.durability(durability);
        ensure!(
            (1..=MAX_THREADS as u64).contains(&threads),
            "1 to {MAX_THREADS} threads"
        );
        let pool = directory.join(POOL);
        let progress_path = directory.join("torture.progress");
        options.create(&pool)?.close()?;
        let progress = Progress::open(&progress_path)?;
        let (replayed, model) = (vec![0; threads as usize], BTreeMap::new());
        Ok(Self {
            pool,
            progress_path,
            progress,
            options,
            new,
            is_late: matches!(durability, Durability::Interval(_)),
            threads,
            seed,
            replayed,
            model,
        })
    }

    /// Starts writers, kills them `after` their first acknowledged operation, and checks what is left. `during_open`: the kill
    /// comes after that time from the start of the child instead, which may well be while it opens the pool.
    pub fn kill_once(&mut self, after: Duration, during_open: bool) -> Result<Outcome> {
        let before = self.total();
        let mut child = self.writers()?;
        let child = child.stdin(Stdio::null()).spawn();
        let mut child = child.context("start the writers")?;
        if !during_open {
            self.wait_for_progress(&mut child, before)?;
        }
        let start = Instant::now();
        std::thread::sleep(after);
        child.kill().context("kill the writers")?;
        let running = start.elapsed();
        let status = child.wait()?;
        ensure!(
            status.code().is_none(),
            "the writers ended by themselves: {status}"
        );
        let acknowledged = self.total() - before;
        let pool = self.pool.clone();
        let (open, first_answer, records) = self.verify(&pool, false)?;
        Ok(Outcome {
            acknowledged,
            running,
            open,
            first_answer,
            records,
        })
    }

    /// Starts writers, cuts the power of the disk at a random one of their system calls, and checks what is left on the disk. `None` if
    /// this system does not allow to trace the writers.
    pub fn cut_once(&mut self, plan: &Plan) -> Result<Option<PowerCut>> {
        let before = self.total();
        let directory = self.pool.parent().context("no directory of the pool")?;
        let files = vec![(self.pool.clone(), false), (log_of(&self.pool), true)];
        let mut disk = Disk::new(directory, files)?;
        let mut command = self.writers()?;
        if self.is_late {
            command.arg("--synced");
        }
        let Some(mut writers) = Traced::start(&mut command)? else {
            return Ok(None);
        };
        let mut calls = 0;
        writers.run(&mut disk, |disk, synced| {
            if plan.during_open || self.total() > before {
                calls += 1;
                if plan.disk_lies {
                    disk.start_to_lie();
                }
            }
            calls > plan.calls && (plan.moment.is_now(synced) || calls > plan.calls + PATIENCE)
        })?;
        writers.kill()?;
        let sectors = disk.cut(&mut Random(!plan.seed))?;
        let acknowledged = self.total() - before;
        let (open, _, _) = self.verify_copy()?;
        Ok(Some(PowerCut {
            acknowledged,
            sectors,
            open,
        }))
    }

    /// Looks at a copy of the pool. So the next writers find the pool as the power cut left it, and the next cut may come while they recover it.
    fn verify_copy(&mut self) -> Result<(Duration, Duration, u64)> {
        let copy = self.pool.with_file_name("copy.pool");
        std::fs::copy(&self.pool, &copy)?;
        // A cut may come before there is a log.
        if log_of(&self.pool).exists() {
            std::fs::copy(log_of(&self.pool), log_of(&copy))?;
        }
        let verified = self.verify(&copy, self.is_late)?;
        std::fs::remove_file(&copy)?;
        if log_of(&copy).exists() {
            std::fs::remove_file(log_of(&copy))?;
        }
        Ok(verified)
    }

    /// The command that runs the writers.
    fn writers(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        let numbers = [self.threads, self.seed].map(|number| number.to_string());
        command
            .arg("__writer")
            .args([&self.pool, &self.progress_path])
            .args(numbers)
            .args(self.new.words());
        Ok(command)
    }

    fn total(&self) -> u64 {
        (0..self.threads)
            .map(|thread| self.progress.done(thread).load(Ordering::Acquire))
            .sum()
    }

    fn wait_for_progress(&self, child: &mut Child, before: u64) -> Result<()> {
        let start = Instant::now();
        while self.total() == before {
            if let Some(status) = child.try_wait()? {
                bail!("the writers ended by themselves: {status}");
            }
            ensure!(
                start.elapsed() < Duration::from_secs(60),
                "the writers do nothing"
            );
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Opens the pool, times that, and compares everything in it with the model. With `may_have_more`, each thread may have done more than it has acknowledged.
    fn verify(&mut self, path: &Path, may_have_more: bool) -> Result<(Duration, Duration, u64)> {
        let start = Instant::now();
        let pool = self.options.open(path)?;
        let open = start.elapsed();
        let map = Target::open(&pool, &self.new)?;
        map.first_answer((mix(self.seed) % DOMAIN) << 20)?;
        let first_answer = start.elapsed();
        if may_have_more {
            self.count_what_is_there(&map)?;
        }
        let in_flight = self.replay();
        self.compare(&map, &in_flight)?;
        let problems = map.check()?;
        ensure!(
            problems.is_empty(),
            "seed {}: the index is damaged: {problems:#?}",
            self.seed
        );
        let records = map.len()?;
        // Not closed but abandoned half of the time, so that opening after a crash follows on opening after a crash.
        if self.total().is_multiple_of(2) {
            drop(map);
            pool.close()?;
        }
        Ok((open, first_answer, records))
    }

    /// Counts as acknowledged what has survived without that: some operations of each thread, and none behind the first that is missing.
    fn count_what_is_there(&self, map: &Target) -> Result<()> {
        let done = (0..self.threads).map(|thread| self.progress.done(thread));
        let acknowledged: Vec<u64> = done
            .clone()
            .map(|done| done.load(Ordering::Acquire))
            .collect();
        let there = prefix::count(map, self.seed, &acknowledged)?;
        done.zip(there)
            .for_each(|(done, there)| done.store(there, Ordering::Release));
        Ok(())
    }

    /// Brings the model up to what was acknowledged, and returns the steps that may have been in flight.
    fn replay(&mut self) -> Vec<Step> {
        let mut in_flight = Vec::new();
        for thread in 0..self.threads {
            let done = self.progress.done(thread).load(Ordering::Acquire);
            for i in self.replayed[thread as usize]..done {
                match Step::at(self.seed, thread, i) {
                    Step::Put(key, value) => self.model.insert(key, value),
                    Step::Remove(key) => self.model.remove(&key),
                };
            }
            self.replayed[thread as usize] = done;
            in_flight.push(Step::at(self.seed, thread, done));
        }
        in_flight
    }

    fn compare(&self, map: &Target, in_flight: &[Step]) -> Result<()> {
        let uncertain = |key: u64| in_flight.iter().find(|step| step.key() == key);
        let certain = |(key, _): &(u64, u64)| uncertain(*key).is_none();
        let mut found = map
            .records()
            .with_context(|| format!("seed {}", self.seed))?;
        found.retain(certain);
        let expected: Vec<(u64, u64)> = self
            .model
            .iter()
            .map(|(&key, &value)| (key, value))
            .filter(certain)
            .collect();
        if found != expected {
            let at = found
                .iter()
                .zip(&expected)
                .position(|(a, b)| a != b)
                .unwrap_or(found.len().min(expected.len()));
            bail!(
                "seed {}: after {} operations record {at} is {:?} and was acknowledged as {:?} ({} records, expected {})",
                self.seed,
                self.total(),
                found.get(at),
                expected.get(at),
                found.len(),
                expected.len()
            );
        }
        for step in in_flight {
            let before = self.model.get(&step.key()).copied();
            let after = if let Step::Put(_, value) = *step {
                Some(value)
            } else {
                None
            };
            let now = map.get(step.key())?;
            ensure!(
                now == before || now == after,
                "seed {}: {step:?} was in flight and left {now:?}",
                self.seed
            );
        }
        Ok(())
    }
}
