//! Writers that get killed, and the proof that nothing was lost.
//!
//! Each writer thread owns a range of keys and works through a sequence of operations that a seed determines. After
//! every operation that returned it adds one to a counter in a small shared file. When the process is killed, the
//! parent reads the counters: of each thread exactly so many operations were acknowledged, and the next one may have
//! been in flight. It replays the acknowledged ones in an ordinary map and compares the whole contents; the record of the
//! operation in flight may be as before or as after it, and nothing else may differ.

mod target;

use crate::commands::ObjectArgs;
use crate::output::note;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indelible::{Pool, PoolOptions};
use memmap2::{MmapMut, MmapOptions};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use target::Target;

/// The map that the writers write to.
pub const MAP: &str = "torture";
/// Keys of each thread.
const DOMAIN: u64 = 1 << 14;
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
    #[command(flatten)]
    new: ObjectArgs,
}

impl Writer {
    /// Writes until killed.
    pub fn run(self) -> Result<bool> {
        let pool = Pool::open(&self.pool)?;
        let map = Target::open(&pool, &self.new)?;
        let progress = Progress::open(&self.progress)?;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let (map, done) = (map.clone(), progress.done(thread));
                    scope.spawn(move || write(&map, self.seed, thread, done))
                })
                .collect();
            for thread in threads {
                if let Ok(Err(error)) = thread.join() {
                    note(format_args!("writer: {error}"));
                    std::process::exit(3);
                }
            }
        });
        Ok(false)
    }
}

fn write(map: &Target, seed: u64, thread: u64, done: &AtomicU64) -> indelible::Result<()> {
    for i in done.load(Ordering::Acquire).. {
        match Step::at(seed, thread, i) {
            Step::Put(key, value) => map.insert(key, value)?,
            Step::Remove(key) => map.remove(key)?,
        };
        // The operation has returned: from here on it must survive.
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
    new: ObjectArgs,
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

impl Victim {
    /// Creates the pool in `directory`, for a map with these options.
    pub fn new(
        directory: &Path,
        options: PoolOptions,
        new: ObjectArgs,
        threads: u64,
        seed: u64,
    ) -> Result<Self> {
        ensure!(
            (1..=MAX_THREADS as u64).contains(&threads),
            "1 to {MAX_THREADS} threads"
        );
        let pool = directory.join("torture.pool");
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
        let mut child = Command::new(std::env::current_exe()?)
            .args([
                "__writer".into(),
                self.pool.clone(),
                self.progress_path.clone(),
            ])
            .args([self.threads, self.seed].map(|number| number.to_string()))
            .args(self.new.words())
            .stdin(Stdio::null())
            .spawn()
            .context("start the writers")?;
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
        let (open, first_answer, records) = self.verify()?;
        Ok(Outcome {
            acknowledged,
            running,
            open,
            first_answer,
            records,
        })
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

    /// Opens the pool, times that, and compares everything in it with the model.
    fn verify(&mut self) -> Result<(Duration, Duration, u64)> {
        let in_flight = self.replay();
        let start = Instant::now();
        let pool = self.options.open(&self.pool)?;
        let open = start.elapsed();
        let map = Target::open(&pool, &self.new)?;
        map.get((mix(self.seed) % DOMAIN) << 20)?;
        let first_answer = start.elapsed();
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
