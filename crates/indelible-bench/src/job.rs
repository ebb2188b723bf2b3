//! One contestant, one experiment, one round, in a process of its own.
//!
//! The parent writes a [`Job`] to the child's standard input as one line of JSON, and reads [`Outcome`]s from its standard output,
//! likewise. A child that measures then goes on updating records until it is killed, if its job is to be killed.

use crate::console::explain;
use crate::contestants::{self, Contestant, Place};
use crate::index::Index;
use crate::machine;
use crate::outcome::{Measured, Outcome, Probe, Recovery, Space};
use crate::phase::{self, Setting};
use crate::plan::{Experiment, Load};
use crate::workload::{Keys, Supply, value_of};
use anyhow::{Context, Result, anyhow, ensure};
use indelible::pmem::count;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Records per transaction while contestants with transactions are loaded.
const LOAD_BATCH: usize = 100_000;
/// One key in this many is looked at again after the load and after the phases.
const VERIFY_EVERY: usize = 101;

/// What a child is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The experiment.
    pub experiment: Experiment,
    /// The contestant's name, as in the plan.
    pub contestant: String,
    /// The round.
    pub round: u32,
    /// Every draw follows from it.
    pub seed: u64,
    /// The shuffled keys, 8 little-endian bytes each.
    pub keys: PathBuf,
    /// How many of them, at the end, are never inserted.
    pub missing: u64,
    /// The contestant's own directory.
    pub directory: PathBuf,
    /// Milliseconds between entries of timelines.
    pub sampling_ms: u64,
    /// A planted slow-down, if the contestant is ours.
    pub slow_down: f64,
    /// The mood of memory before the round.
    pub probe: Probe,
    /// What to do.
    pub task: Task,
}

impl Job {
    /// An outcome that says whose it is, and nothing else.
    pub(crate) fn no_outcome_yet(&self) -> Outcome {
        Outcome {
            experiment: self.experiment.name.clone(),
            contestant: self.contestant.clone(),
            round: self.round,
            probe: self.probe,
            ..Outcome::default()
        }
    }
}

/// The two halves of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Load and measure, then end.
    Measure,
    /// Load and measure, then write until killed.
    MeasureAndWait,
    /// Open what a killed process left.
    Reopen,
}

/// The child: does the job on standard input.
///
/// # Errors
///
/// If the job cannot be read or its outcome cannot be written; what goes wrong in the job is part of the outcome.
pub fn child() -> Result<()> {
    // A child that waits to be killed would wait forever if its parent died first.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let job: Job = serde_json::from_str(&text).context("no job on standard input")?;
    let keys = read_keys(&job)?;
    let contestant = contestants::entrant(&job.contestant)?;
    let place = contestant.place(job.directory.clone());
    let mut outcome = job.no_outcome_yet();
    if job.task == Task::Reopen {
        outcome.recovery = Some(reopen(&job, &contestant, &place, &keys)?);
        return print(&outcome);
    }
    // A contestant that fails panics; what it did before is still worth telling.
    let attempt = AssertUnwindSafe(|| measure(&job, &contestant, &place, &keys, &mut outcome));
    let index = catch_unwind(attempt).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
        Err(anyhow!(text.unwrap_or_else(|| "it panicked".into())))
    });
    if let Err(error) = &index {
        outcome.error = Some(explain(error));
    }
    print(&outcome)?;
    if let (Ok(index), Task::MeasureAndWait) = (&index, job.task) {
        write_until_killed(index.as_ref(), &keys);
    }
    // Its memory and its files go with the process.
    std::mem::forget(index);
    Ok(())
}

fn print(outcome: &Outcome) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, outcome)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

fn read_keys(job: &Job) -> Result<Keys> {
    let bytes = std::fs::read(&job.keys).with_context(|| format!("{}", job.keys.display()))?;
    let (words, rest) = bytes.as_chunks::<8>();
    ensure!(rest.is_empty(), "a file of keys of a strange length");
    let keys = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
    Ok(Keys::new(
        keys,
        job.experiment.records as usize,
        job.missing as usize,
    ))
}

/// Loads the contestant and runs all phases.
fn measure(
    job: &Job,
    contestant: &Contestant,
    place: &Place,
    keys: &Keys,
    outcome: &mut Outcome,
) -> Result<Box<dyn Index>> {
    let records = ordered_records(job, contestant, keys);
    let mut batch = room_for_a_batch(keys);
    machine::forget_peak();
    let (resident, anonymous) = (machine::of_process("VmRSS"), machine::of_process("RssAnon"));
    let index = (contestant.create)(place)?;
    let ordered = records.as_deref();
    let loaded = load(index.as_ref(), job, contestant, keys, ordered, &mut batch)?;
    outcome.load = Some(loaded);
    let grown = |name, before| machine::of_process(name).saturating_sub(before);
    outcome.space = Some(Space {
        records: job.experiment.records,
        file_bytes: machine::bytes_below(&job.directory),
        dram_bytes: grown("RssAnon", anonymous),
        peak_bytes: grown("VmHWM", resident),
    });
    // After the space: looking at all nodes takes some.
    if let Some(load) = &mut outcome.load {
        load.statistics = index.statistics();
    }
    drop((records, batch));
    let mut supply = Supply::default();
    verify(index.as_ref(), keys, &supply)?;
    let mut setting = Setting {
        keys,
        seed: job.seed,
        sampling: Duration::from_millis(job.sampling_ms.max(1)),
        slow_down: if contestant.is_ours() {
            job.slow_down
        } else {
            0.0
        },
        is_strict: contestant.is_ours(),
    };
    for phase in &job.experiment.phases {
        for &threads in &phase.threads {
            setting.seed = setting.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            if !contestant.can(&phase.mix) {
                // Later phases have the same keys for everybody.
                let _ = supply.set_aside(phase, threads);
                continue;
            }
            let mut measured = phase::run(index.as_ref(), phase, threads, &setting, &mut supply)?;
            if phase.mix.changes_structure() {
                measured.statistics = index.statistics();
            }
            outcome.phases.push(measured);
        }
    }
    verify(index.as_ref(), keys, &supply)?;
    Ok(index)
}

/// The records of a load that wants them in an order of their own, made before memory is measured.
fn ordered_records(job: &Job, contestant: &Contestant, keys: &Keys) -> Option<Vec<(u64, u64)>> {
    let record = |&key: &u64| (key, value_of(key));
    let sorted = || keys.sorted().iter();
    let random = || keys.loaded().iter().map(record).collect();
    match job.experiment.load {
        Load::Random => loads_at_once(contestant).then(random),
        // An order of one coordinate would be no help, and points come in any.
        Load::Bulk { .. } if contestant.points.is_some() => Some(random()),
        Load::Ascending | Load::Bulk { .. } => Some(sorted().map(record).collect()),
        Load::Descending => Some(sorted().rev().map(record).collect()),
        Load::Interleaved { runs } => {
            let runs = interleaved(keys.sorted(), runs.max(1) as usize);
            Some(runs.iter().map(record).collect())
        }
    }
}

/// Room for the records that a load takes at once, all of it touched before memory is measured: it is the bench's, and what an allocator
/// keeps of it would else count as the contestant's.
fn room_for_a_batch(keys: &Keys) -> Vec<(u64, u64)> {
    let mut room = Vec::new();
    room.resize(keys.loaded().len().min(LOAD_BATCH), (u64::MAX, u64::MAX));
    room
}

/// Whether the contestant is bulk-loaded whatever the experiment says.
fn loads_at_once(contestant: &Contestant) -> bool {
    let points = contestant.points.as_ref();
    points.is_some_and(|points| points.loads_at_once)
}

/// Sorted keys, cut into equal runs, the first keys of all runs before the second ones.
fn interleaved(sorted: &[u64], runs: usize) -> Vec<u64> {
    let length = sorted.len().div_ceil(runs).max(1);
    let step = |step| sorted.chunks(length).filter_map(move |run| run.get(step));
    (0..length).flat_map(step).copied().collect()
}

/// Fills the contestant.
fn load(
    index: &dyn Index,
    job: &Job,
    contestant: &Contestant,
    keys: &Keys,
    ordered: Option<&[(u64, u64)]>,
    batch: &mut Vec<(u64, u64)>,
) -> Result<Measured> {
    // Transactions are paid once per batch, or the load of a store that waits for the disk would take days.
    let in_batches = contestant.has_batches && !contestant.is_ours();
    let insert = |records: &[(u64, u64)]| {
        if in_batches {
            records
                .chunks(LOAD_BATCH)
                .for_each(|batch| index.insert_batch(batch));
        } else {
            records
                .iter()
                .for_each(|&(key, value)| index.insert(key, value));
        }
    };
    let before = count::here();
    let start = Instant::now();
    match (job.experiment.load, ordered) {
        (Load::Bulk { fill }, Some(records)) => {
            if !index.bulk_load(records, fill) {
                insert(records);
            }
        }
        (_, Some(records)) if loads_at_once(contestant) => {
            ensure!(
                index.bulk_load(records, 1.0),
                "it has no bulk load, and nothing else"
            );
        }
        (_, Some(records)) => insert(records),
        (_, None) => {
            for keys in keys.loaded().chunks(LOAD_BATCH) {
                batch.clear();
                batch.extend(keys.iter().map(|&key| (key, value_of(key))));
                insert(batch);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let operations = job.experiment.records;
    Ok(Measured {
        phase: "load".into(),
        threads: 1,
        operations,
        seconds,
        hits: operations,
        timeline: vec![(seconds, operations)],
        latency: None,
        cost: phase::cost(count::here() - before, operations),
        statistics: None,
    })
}

/// Looks at some of the records: whether they are there, with the value of an insert or of an update.
fn verify(index: &dyn Index, keys: &Keys, supply: &Supply) -> Result<()> {
    let present = supply.present(keys);
    let lost = lost_among(index, present.iter().step_by(VERIFY_EVERY));
    ensure!(
        lost == 0,
        "{lost} of every {VERIFY_EVERY}th of {} records are lost or wrong",
        present.count()
    );
    Ok(())
}

/// How many of the keys do not have the value that they should.
fn lost_among(index: &dyn Index, keys: impl Iterator<Item = u64>) -> u64 {
    keys.filter(|&key| {
        let right = [value_of(key), !value_of(key)];
        !index.get(key).is_some_and(|value| right.contains(&value))
    })
    .count() as u64
}

/// What a process that serves would be doing when it is killed.
fn write_until_killed(index: &dyn Index, keys: &Keys) {
    for &key in keys.loaded().iter().cycle() {
        index.update(key, !value_of(key));
    }
}

/// Lookups of the loaded keys, those loaded last first, from one of equally many places for each thread.
struct Lookups<'a> {
    keys: &'a [u64],
    next: usize,
}

impl<'a> Lookups<'a> {
    fn new(keys: &'a [u64], thread: usize, threads: usize) -> Self {
        Self {
            keys,
            next: keys.len() - keys.len() / threads * thread,
        }
    }

    #[inline]
    fn one(&mut self, index: &dyn Index) {
        self.next = match self.next {
            0 => self.keys.len() - 1,
            next => next - 1,
        };
        std::hint::black_box(index.get(self.keys[self.next]));
    }

    /// So many at once that nothing else counts.
    fn some(&mut self, index: &dyn Index) -> u64 {
        const SOME: u64 = 64;
        (0..SOME).for_each(|_| self.one(index));
        SOME
    }
}

/// Opens what is left and lets it warm up, each thread doing one lookup after the other.
fn reopen(job: &Job, contestant: &Contestant, place: &Place, keys: &Keys) -> Result<Recovery> {
    let open = contestant.open.context("nothing is left of it")?;
    let records = job.experiment.records;
    // What was removed on purpose is no loss.
    let mut supply = Supply::default();
    for phase in &job.experiment.phases {
        for &threads in &phase.threads {
            let _ = supply.set_aside(phase, threads);
        }
    }
    // A second for ten million records. Those of a test are warm at once.
    let seconds = (records as f64 / 1e7).max((records as f64 / 2e5).min(0.5));
    let long = Duration::from_secs_f64(seconds.clamp(0.05, 5.0));
    let tick = Duration::from_millis(5);
    let threads = job.experiment.recovery_threads.max(1) as usize;
    let mut lookups = Lookups::new(keys.loaded(), 0, threads);
    let start = Instant::now();
    let index = open(place)?;
    let index = index.as_ref();
    let opened = start.elapsed();
    lookups.one(index);
    let first = start.elapsed();
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let (mut mine, mut warm_up, mut now) = (1_u64, vec![(ms(first), 1)], first);
    let is_over = AtomicBool::new(false);
    let theirs: Vec<AtomicU64> = (1..threads).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (done, thread) in theirs.iter().zip(1..) {
            let (mut lookups, is_over) = (Lookups::new(keys.loaded(), thread, threads), &is_over);
            let looks_up = move || {
                while !is_over.load(Ordering::Relaxed) {
                    done.fetch_add(lookups.some(index), Ordering::Relaxed);
                }
            };
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, looks_up) {
                // The others would go on forever.
                is_over.store(true, Ordering::Relaxed);
                let refused = format!("thread {} of {threads}", thread + 1);
                return Err(error).context(refused);
            }
        }
        while now < first + long {
            let until = now + tick;
            while now < until {
                mine += lookups.some(index);
                now = start.elapsed();
            }
            let theirs = theirs.iter().map(|done| done.load(Ordering::Relaxed));
            warm_up.push((ms(now), mine + theirs.sum::<u64>()));
        }
        is_over.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let lost = lost_among(index, supply.present(keys).iter().step_by(VERIFY_EVERY));
    Ok(Recovery {
        records,
        open_ms: ms(opened),
        first_get_ms: ms(first),
        warm_up,
        lost,
    })
}

#[cfg(test)]
mod tests {
    use super::interleaved;

    #[test]
    fn interleaved_runs_take_turns() {
        let keys: Vec<u64> = (0..7).collect();
        assert_eq!(interleaved(&keys, 3), [0, 3, 6, 1, 4, 2, 5]);
        assert_eq!(interleaved(&keys, 1), keys);
        assert_eq!(interleaved(&keys, 7), keys);
        assert_eq!(interleaved(&keys, 100), keys);
        assert!(interleaved(&[], 3).is_empty());
    }
}
