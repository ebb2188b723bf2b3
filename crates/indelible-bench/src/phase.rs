//! Running a phase: threads, the clock, the timeline.

use crate::execute::{Meter, Progress, Sampler, clock_cost};
use crate::index::Index;
use crate::outcome::{Cost, Latency, Measured, QUANTILES};
use crate::plan::{Phase, latency_operations};
use crate::workload::{Keys, Script, Supply, draw};
use anyhow::Result;
use hdrhistogram::Histogram;
use indelible::pmem::count::{self, Counts};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Operations of a latency pass in which about this many are timed are enough: 100 beyond the last quantile.
const SAMPLES: f64 = 1e6;

/// Everything that stays the same while phases run.
#[derive(Debug)]
pub struct Setting<'job> {
    /// The keys of the experiment.
    pub keys: &'job Keys,
    /// Every draw follows from it.
    pub seed: u64,
    /// The time between two entries of a timeline.
    pub sampling: Duration,
    /// A planted slow-down of the contestant.
    pub slow_down: f64,
}

/// What one thread brings home.
struct Share {
    start: Instant,
    end: Instant,
    operations: u64,
    hits: u64,
    counts: Counts,
    histogram: Option<Histogram<u64>>,
}

/// Runs a phase with a number of threads: at full speed, then, if asked for, a shorter pass that takes latencies.
///
/// # Errors
///
/// If the supply of keys ends.
pub fn run(
    index: &dyn Index,
    phase: &Phase,
    threads: u32,
    setting: &Setting,
    supply: &mut Supply,
) -> Result<Measured> {
    let mut measured = Measured {
        phase: phase.name.clone(),
        threads,
        ..Measured::default()
    };
    let mut counts = Counts::default();
    // Whatever the phase leaves of them, the next one begins behind them: the same keys for every contestant.
    let supply = &mut supply.set_aside(phase, threads);
    let piece = phase.piece() * u64::from(threads);
    let mut left = phase.operations;
    while left > 0 {
        let seconds_left = phase.seconds.map(|most| most - measured.seconds);
        if seconds_left.is_some_and(|seconds| seconds <= 0.0) {
            break;
        }
        let seed = setting.seed ^ left ^ u64::from(threads) << 48;
        let scripts = draw(phase, setting.keys, supply, threads, left.min(piece), seed)?;
        left -= left.min(piece);
        let shares = run_scripts(index, &scripts, setting, seconds_left, None, &mut measured);
        shares.iter().for_each(|share| counts += share.counts);
    }
    measured.cost = cost(counts, measured.operations);
    if phase.latency_sampling > 0.0 {
        measured.latency = Some(latency(index, phase, threads, setting, supply, &measured)?);
    }
    Ok(measured)
}

/// Times single operations, in a pass of its own of about a quarter of the operations.
fn latency(
    index: &dyn Index,
    phase: &Phase,
    threads: u32,
    setting: &Setting,
    supply: &mut Supply,
    measured: &Measured,
) -> Result<Latency> {
    let enough = (SAMPLES / phase.latency_sampling) as u64;
    let operations = latency_operations(phase.operations).min(enough).max(1);
    let seed = !setting.seed ^ u64::from(threads) << 48;
    let scripts = draw(phase, setting.keys, supply, threads, operations, seed)?;
    let mut ignored = Measured::default();
    let seconds = phase.seconds.or(Some(measured.seconds.max(0.05)));
    let shares = run_scripts(
        index,
        &scripts,
        setting,
        seconds,
        Some(phase.latency_sampling),
        &mut ignored,
    );
    let mut all = Histogram::<u64>::new(3).expect("three digits are allowed");
    for histogram in shares.iter().filter_map(|share| share.histogram.as_ref()) {
        all.add(histogram).expect("histograms of one kind");
    }
    Ok(Latency {
        samples: all.len(),
        clock_ns: clock_cost(),
        quantiles: QUANTILES
            .iter()
            .map(|&q| all.value_at_quantile(q))
            .collect(),
        max_ns: all.max(),
        mean_ns: all.mean(),
    })
}

/// Runs one script per thread and adds what came out to `measured`.
fn run_scripts(
    index: &dyn Index,
    scripts: &[Script],
    setting: &Setting,
    seconds: Option<f64>,
    sampling: Option<f64>,
    measured: &mut Measured,
) -> Vec<Share> {
    let progress: Vec<Progress> = scripts.iter().map(|_| Progress::default()).collect();
    let stop = AtomicBool::new(false);
    let barrier = Barrier::new(scripts.len() + 1);
    let (finished, all_finished) = mpsc::channel::<()>();
    let before = (measured.seconds, measured.operations);
    let shares: Vec<Share> = std::thread::scope(|scope| {
        let workers: Vec<_> = scripts
            .iter()
            .zip(&progress)
            .enumerate()
            .map(|(thread, (script, progress))| {
                let meter = Meter::new(progress, &stop, setting.slow_down);
                let sampler =
                    sampling.map(|share| Sampler::new(share, setting.seed + thread as u64));
                let (barrier, finished) = (&barrier, finished.clone());
                scope.spawn(move || {
                    barrier.wait();
                    let share = run_share(index, script, meter, sampler);
                    drop(finished);
                    share
                })
            })
            .collect();
        drop(finished);
        barrier.wait();
        let start = Instant::now();
        let deadline = seconds.map(Duration::from_secs_f64);
        // Wakes up for the timeline, or for the end if that comes first.
        let next = || {
            let left = deadline.map(|deadline| deadline.saturating_sub(start.elapsed()));
            left.filter(|left| !left.is_zero())
                .map_or(setting.sampling, |left| left.min(setting.sampling))
        };
        while all_finished.recv_timeout(next()) == Err(RecvTimeoutError::Timeout) {
            let now = start.elapsed();
            let done: u64 = progress.iter().map(Progress::done).sum();
            let so_far = (before.0 + now.as_secs_f64(), before.1 + done);
            measured.timeline.push(so_far);
            if deadline.is_some_and(|deadline| now >= deadline) {
                stop.store(true, Ordering::Relaxed);
            }
        }
        let join = |worker: std::thread::ScopedJoinHandle<'_, Share>| match worker.join() {
            Ok(share) => share,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        workers.into_iter().map(join).collect()
    });
    let start = shares.iter().map(|share| share.start).min();
    let end = shares.iter().map(|share| share.end).max();
    if let (Some(start), Some(end)) = (start, end) {
        measured.seconds += (end - start).as_secs_f64();
    }
    measured.operations += shares.iter().map(|share| share.operations).sum::<u64>();
    measured.hits += shares.iter().map(|share| share.hits).sum::<u64>();
    measured
        .timeline
        .push((measured.seconds, measured.operations));
    shares
}

/// What one thread does between the barrier and its end.
fn run_share(
    index: &dyn Index,
    script: &Script,
    mut meter: Meter,
    mut sampler: Option<Sampler>,
) -> Share {
    let before = count::here();
    let start = Instant::now();
    match &mut sampler {
        Some(sampler) => index.run_timed(script, &mut meter, sampler),
        None => index.run(script, &mut meter),
    }
    Share {
        start,
        end: Instant::now(),
        operations: meter.operations,
        hits: meter.hits,
        counts: count::here() - before,
        histogram: sampler.map(Sampler::into_histogram),
    }
}

/// Counts per operation; none if nothing counted.
pub(crate) fn cost(counts: Counts, operations: u64) -> Option<Cost> {
    let per = |count: u64| count as f64 / operations.max(1) as f64;
    (counts != Counts::default()).then(|| Cost {
        lines_flushed: per(counts.lines_flushed),
        fences: per(counts.fences),
        lines_streamed: per(counts.lines_streamed),
        blocks_written: per(counts.blocks_written),
        bytes_allocated: per(counts.bytes_allocated),
    })
}
