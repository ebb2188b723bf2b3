//! A run: many histories, recorded and explored on all cores.

use crate::coverage::Coverage;
use crate::explore::{Explorer, Limits};
use crate::record::{guarded, record_from};
use crate::report::Failure;
use crate::tally::Tally;
use crate::{CrashModel, Structure, Workload};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What to run.
pub struct Search<'a, S: Structure> {
    /// The structure and what is done to it, from a seed.
    #[allow(clippy::type_complexity)]
    pub history: &'a (dyn Fn(u64) -> (S, Workload<S::Operation>) + Sync),
    /// What a crash does.
    pub crash_model: CrashModel,
    /// How far the search goes.
    pub limits: Limits,
    /// Of the first history; the others follow.
    pub seed: u64,
    /// Histories at most.
    pub histories: u64,
    /// No image is looked at after this time: a history may have millions.
    pub time: Option<Duration>,
    /// Threads of the system to run on.
    pub workers: usize,
}

/// What a run has found.
#[derive(Debug)]
pub struct Summary {
    /// What was looked at.
    pub coverage: Coverage,
    /// Distinct images.
    pub distinct: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// What is wrong, if anything is.
    pub failure: Option<Box<Failure>>,
}

impl<S: Structure> Search<'_, S> {
    /// Runs until all histories are explored, the time is up, or something is wrong.
    ///
    /// `tally` tells, meanwhile, how far it is; so does the number of histories begun.
    #[must_use]
    pub fn go(&self, tally: &Tally, begun: &AtomicU64) -> Summary {
        let start = Instant::now();
        let until = self.time.map(|time| start + time);
        let coverage = Mutex::new(Coverage::default());
        let failure: Mutex<Option<Box<Failure>>> = Mutex::new(None);
        let stop = AtomicBool::new(false);
        let work = || {
            let mut mine = Coverage::default();
            while !stop.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until)
            {
                let number = begun.fetch_add(1, Ordering::Relaxed);
                if number >= self.histories {
                    break;
                }
                let seed = self.seed.wrapping_add(number);
                let (found, result) = self.one(seed, until, tally);
                mine.merge(found);
                if let Err(mut found) = result {
                    found.seed = Some(seed);
                    stop.store(true, Ordering::Relaxed);
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    // With several, the one that is found again first.
                    if failure.as_ref().is_none_or(|other| other.seed > Some(seed)) {
                        *failure = Some(found);
                    }
                }
            }
            coverage
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .merge(mine);
        };
        std::thread::scope(|scope| {
            for _ in 1..self.workers {
                scope.spawn(work);
            }
            work();
        });
        Summary {
            coverage: coverage
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner),
            distinct: tally.distinct(),
            elapsed: start.elapsed(),
            failure: failure.into_inner().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Records and explores the history of one seed.
    fn one(
        &self,
        seed: u64,
        until: Option<Instant>,
        tally: &Tally,
    ) -> (Coverage, Result<(), Box<Failure>>) {
        let (structure, workload) = (self.history)(seed);
        let structure = Arc::new(structure);
        let is_recovered = workload.threads.len() > 1 && is_recovered(seed);
        let recording = match record_from(&structure, &workload, seed, is_recovered) {
            Ok(recording) => recording,
            Err(problem) => {
                return (Coverage::default(), Err(Failure::without_crash(problem)));
            }
        };
        let mut explorer = Explorer::new(&*structure, self.crash_model, self.limits, seed, tally);
        explorer.until = until;
        explorer.coverage.histories = 1;
        for operation in &recording.operations {
            explorer.coverage.operation(operation);
        }
        let result = guarded(|| Ok(explorer.explore(&recording)))
            .unwrap_or_else(|panic| Err(Failure::without_crash(panic)));
        (explorer.coverage, result)
    }
}

/// Whether the threads of the history of this seed, if they are several, begin with a structure that has just been recovered: those of one in four. (By all bits of the seed, since
/// the last ones choose the theme.)
fn is_recovered(seed: u64) -> bool {
    seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0
}
