//! Running a phase: threads, the clock, the timeline.

use crate::execute::{Meter, Progress, Sampler, clock_cost};
use crate::index::Index;
use crate::outcome::{Cost, Latency, Measured, QUANTILES};
use crate::plan::{Phase, latency_operations};
use crate::together::together;
use crate::workload::{Keys, Script, Supply, draw};
use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use indelible::pmem::count::{self, Counts};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// So many operations timed are enough: 100 of them lie beyond the last quantile.
const SAMPLES: f64 = 1e6;
/// A quantile is said if at least so many of the operations timed lie beyond it.
const BEYOND: f64 = 10.0;

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
    /// Whether operations of several threads must find every key that is there. With one thread all must; but an
    /// update that is a removal and an insert, as skiplist's, hides its key from others in between.
    pub is_strict: bool,
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
/// If the supply of keys ends, or operations on keys that are there do not find them.
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
    let mut mine = supply.set_aside(phase, threads);
    let piece = phase.piece() * u64::from(threads);
    let mut left = phase.operations;
    while left > 0 {
        let seconds_left = phase.seconds.map(|most| most - measured.seconds);
        if seconds_left.is_some_and(|seconds| seconds <= 0.0) {
            break;
        }
        let (seed, from) = (setting.seed ^ left, mine.inserted());
        let wanted = left.min(piece);
        let scripts = draw(phase, setting.keys, &mut mine, threads, wanted, seed)?;
        left -= wanted;
        let shares = run_scripts(index, &scripts, setting, seconds_left, None, &mut measured)?;
        shares.iter().for_each(|share| counts += share.counts);
        if is_all_done(&scripts, &shares) {
            supply.was_done(&mut mine, from);
        }
    }
    if setting.is_strict || threads == 1 {
        check(phase, &measured)?;
    }
    measured.cost = cost(counts, measured.operations);
    if phase.latency_sampling > 0.0 {
        measured.latency = Some(latency(index, phase, threads, setting, supply, &mut mine)?);
    }
    Ok(measured)
}

/// Whether every step was done. As many operations as were asked for may be fewer than the scripts have: each thread ends with a whole
/// batch, and some may have been stopped before theirs.
fn is_all_done(scripts: &[Script], shares: &[Share]) -> bool {
    let done: u64 = shares.iter().map(|share| share.operations).sum();
    let all: u64 = scripts.iter().map(Script::operations).sum();
    done >= all
}

/// Whether everything was found that had to be.
fn check(phase: &Phase, measured: &Measured) -> Result<()> {
    let may_miss =
        phase.missing > 0.0 || phase.mix.remove > 0.0 || phase.mix.scan > 0.0 || phase.is_spatial();
    let missed = measured.operations.saturating_sub(measured.hits);
    ensure!(
        may_miss || missed == 0,
        "{missed} of {} operations did not find a key that is there",
        measured.operations
    );
    Ok(())
}

/// Times single operations, in a pass of its own of about a quarter of the operations.
fn latency(
    index: &dyn Index,
    phase: &Phase,
    threads: u32,
    setting: &Setting,
    supply: &mut Supply,
    mine: &mut Supply,
) -> Result<Latency> {
    let enough = (SAMPLES / phase.latency_sampling) as u64;
    let mut left = latency_operations(phase.operations).min(enough).max(1);
    let sampling = Some(phase.latency_sampling);
    let mut timed = Measured::default();
    let mut all = Histogram::<u64>::new(3).expect("three digits are allowed");
    // In pieces, as at full speed: where few operations are timed, many are done.
    let piece = phase.piece() * u64::from(threads);
    while left > 0 {
        let seconds_left = phase.seconds.map(|most| most - timed.seconds);
        if seconds_left.is_some_and(|seconds| seconds <= 0.0) {
            break;
        }
        let (seed, from) = (!setting.seed ^ left, mine.inserted());
        let wanted = left.min(piece);
        let scripts = draw(phase, setting.keys, mine, threads, wanted, seed)?;
        left -= wanted;
        let shares = run_scripts(index, &scripts, setting, seconds_left, sampling, &mut timed)?;
        if is_all_done(&scripts, &shares) {
            supply.was_done(mine, from);
        }
        for histogram in shares.iter().filter_map(|share| share.histogram.as_ref()) {
            all.add(histogram).expect("histograms of one kind");
        }
    }
    if setting.is_strict || threads == 1 {
        check(phase, &timed)?;
    }
    Ok(Latency {
        samples: all.len(),
        clock_ns: clock_cost(),
        quantiles: QUANTILES
            .iter()
            .take_while(|&&q| all.len() as f64 * (1.0 - q) >= BEYOND)
            .map(|&q| all.value_at_quantile(q))
            .collect(),
        max_ns: all.max(),
        mean_ns: all.mean(),
    })
}

/// Runs one script per thread and adds what came out to `measured`.
///
/// # Errors
///
/// If there cannot be so many threads.
fn run_scripts(
    index: &dyn Index,
    scripts: &[Script],
    setting: &Setting,
    seconds: Option<f64>,
    sampling: Option<f64>,
    measured: &mut Measured,
) -> Result<Vec<Share>> {
    let progress: Vec<Progress> = scripts.iter().map(|_| Progress::default()).collect();
    let stop = AtomicBool::new(false);
    let (finished, all_finished) = mpsc::channel::<()>();
    let mut workers = Vec::new();
    for (thread, (script, progress)) in scripts.iter().zip(&progress).enumerate() {
        let meter = Meter::new(progress, &stop, setting.slow_down);
        let seed = setting.seed.wrapping_add(thread as u64);
        let sampler = sampling.map(|share| Sampler::new(share, seed));
        let finished = finished.clone();
        workers.push(move || {
            let share = run_share(index, script, meter, sampler);
            drop(finished);
            share
        });
    }
    drop(finished);
    let shares = together(workers, || {
        watch(&all_finished, &progress, &stop, setting, seconds, measured);
    })?;
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
    Ok(shares)
}

/// Writes the timeline until all threads are through, and stops them when the time is up.
fn watch(
    all_finished: &Receiver<()>,
    progress: &[Progress],
    stop: &AtomicBool,
    setting: &Setting,
    seconds: Option<f64>,
    measured: &mut Measured,
) {
    let start = Instant::now();
    let deadline = seconds.map(Duration::from_secs_f64);
    // A phase that is short has entries enough for a picture, too.
    let tick = deadline.map_or(setting.sampling, |deadline| {
        setting.sampling.min(deadline / 20)
    });
    let next = || {
        let left = deadline.map(|deadline| deadline.saturating_sub(start.elapsed()));
        left.filter(|left| !left.is_zero())
            .map_or(tick, |left| left.min(tick))
    };
    while all_finished.recv_timeout(next()) == Err(RecvTimeoutError::Timeout) {
        let now = start.elapsed();
        let done: u64 = progress.iter().map(Progress::done).sum();
        let so_far = (
            measured.seconds + now.as_secs_f64(),
            measured.operations + done,
        );
        measured.timeline.push(so_far);
        if deadline.is_some_and(|deadline| now >= deadline) {
            stop.store(true, Ordering::Relaxed);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mix;
    use std::sync::atomic::AtomicU64;

    /// An index that finds everything for so many lookups.
    struct Forgetful(AtomicU64);

    impl Index for Forgetful {
        fn get(&self, key: u64) -> Option<u64> {
            let take = |left: u64| left.checked_sub(1);
            let taken = (self.0).fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            taken.is_ok().then_some(key)
        }

        fn insert(&self, _key: u64, _value: u64) {}

        fn update(&self, _key: u64, _value: u64) -> bool {
            true
        }

        fn remove(&self, _key: u64) -> bool {
            true
        }

        fn scan(&self, _from: u64, _count: usize, _page: &mut Vec<(u64, u64)>) {}
    }

    #[test]
    fn a_key_must_be_found_at_full_speed_and_when_latencies_are_taken() {
        let keys = Keys::shuffle((0..100).collect(), 100, 0, 1);
        let setting = Setting {
            keys: &keys,
            seed: u64::MAX,
            sampling: Duration::from_millis(100),
            slow_down: 0.0,
            is_strict: true,
        };
        let phase = Phase::new("get", Mix::GET, 1000).with_latency();
        let run = |lookups| {
            let index = Forgetful(AtomicU64::new(lookups));
            run(&index, &phase, 2, &setting, &mut Supply::default())
        };
        let measured = run(1250).unwrap();
        assert_eq!((measured.operations, measured.hits), (1000, 1000));
        assert!(measured.latency.unwrap().samples > 10);
        for (lookups, says) in [(999, "1 of 1000"), (1249, "1 of 250")] {
            let error = run(lookups).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
