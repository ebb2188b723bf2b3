//! Running operations under the recorder, on one thread or on several that a deterministic scheduler interleaves.

use crate::history::Saw;
use crate::{MEMORY_BYTES, Structure, Workload};
use indelible::pmem::Memory;
use indelible::pmem::trace::{self, Event};
use indelible::schedule::{self, Scheduler};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler as Schedule};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// What was done, store by store, and what there was before.
#[derive(Clone)]
pub(crate) struct Recording<O> {
    /// The memory before, all words up to its length, and where it was.
    pub(crate) words: Vec<u64>,
    pub(crate) address: usize,
    pub(crate) events: Vec<Event>,
    /// Operation `i` begins at the mark `2 i` and returns at `2 i + 1`.
    pub(crate) operations: Vec<O>,
    /// What each saw.
    pub(crate) saw: Vec<Vec<Saw>>,
    /// Contents before.
    pub(crate) before: Vec<(u64, u64)>,
}

/// Runs a workload: what it does before, unrecorded, and then its threads. An error is one of the structure's.
pub(crate) fn record<S: Structure>(
    structure: &Arc<S>,
    workload: &Workload<S::Operation>,
    seed: u64,
) -> Result<Recording<S::Operation>, String> {
    let memory = Arc::new(Memory::new(MEMORY_BYTES));
    let open = guarded(|| {
        let open = structure.create(&memory)?;
        for operation in &workload.before {
            structure.run(&open, operation)?;
        }
        let before = structure.contents(&open)?;
        Ok((open, before))
    });
    let (open, before) = open.map_err(|error| format!("before the recording: {error}"))?;
    let length = memory.length() as usize / 8;
    let words = memory.words()[..length]
        .iter()
        .map(|word| word.load())
        .collect();
    let operations: Vec<S::Operation> = workload.threads.iter().flatten().cloned().collect();
    let saw = Arc::new(Mutex::new(vec![Vec::new(); operations.len()]));
    let open = Arc::new(open);
    trace::start(Vec::new());
    let result = match &*workload.threads {
        [operations] => run_one(&**structure, &open, operations, 0, &saw),
        threads => run_scheduled(structure, &open, threads, &saw, seed),
    };
    let events = trace::stop();
    result?;
    let saw = std::mem::take(&mut *saw.lock().unwrap_or_else(PoisonError::into_inner));
    // Whatever is wrong by now is wrong without a crash.
    guarded(|| structure.contents(&open)).map_err(|error| format!("without a crash: {error}"))?;
    structure.crash(&open);
    Ok(Recording {
        words,
        address: memory.base(),
        events,
        operations,
        saw,
        before,
    })
}

/// Calls `work`; a panic is an error of the structure's too.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", message.unwrap_or("of another kind")))
    })
}

type AllSaw = Mutex<Vec<Vec<Saw>>>;

fn run_one<S: Structure>(
    structure: &S,
    open: &S::Open,
    operations: &[S::Operation],
    first: usize,
    saw: &AllSaw,
) -> Result<(), String> {
    for (number, operation) in (first..).zip(operations) {
        trace::mark(2 * number as u64);
        let result = guarded(|| structure.run(open, operation));
        let seen = result.map_err(|error| format!("operation {operation:?}: {error}"))?;
        saw.lock().unwrap_or_else(PoisonError::into_inner)[number] = seen;
        trace::mark(2 * number as u64 + 1);
    }
    Ok(())
}

/// Every access to it is a point at which shuttle may switch threads.
static POINT: shuttle::sync::atomic::AtomicBool = shuttle::sync::atomic::AtomicBool::new(false);

const SCHEDULER: Scheduler = Scheduler {
    point: || {
        let _ = POINT.load(Ordering::SeqCst);
    },
    wait: shuttle::thread::yield_now,
    thread: || usize::from(shuttle::current::me()),
};

/// Steps after which a schedule counts as one that never ends.
const MOST_STEPS: usize = 2_000_000;

fn run_scheduled<S: Structure>(
    structure: &Arc<S>,
    open: &Arc<S::Open>,
    threads: &[Vec<S::Operation>],
    saw: &Arc<AllSaw>,
    seed: u64,
) -> Result<(), String> {
    let problem = Arc::new(Mutex::new(None));
    let work = {
        let (structure, open) = (Arc::clone(structure), Arc::clone(open));
        let (threads, saw) = (threads.to_vec(), Arc::clone(saw));
        let problem = Arc::clone(&problem);
        move || {
            let mut first = 0;
            let mut handles = Vec::new();
            for operations in threads.clone() {
                let (structure, open) = (Arc::clone(&structure), Arc::clone(&open));
                let (saw, problem) = (Arc::clone(&saw), Arc::clone(&problem));
                let begin = first;
                first += operations.len();
                handles.push(shuttle::thread::spawn(move || {
                    if let Err(error) = run_one(&*structure, &open, &operations, begin, &saw) {
                        *problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    }
                }));
            }
            for handle in handles {
                let _ = handle.join();
            }
        }
    };
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    config.failure_persistence = shuttle::FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::FailAfter(MOST_STEPS);
    config.silence_warnings = true;
    schedule::set(Some(SCHEDULER));
    let ran = guarded(|| {
        // One thread runs for long and is interrupted at few places, or all take turns.
        let schedule: Box<dyn Schedule + Send> = if seed.is_multiple_of(2) {
            Box::new(PctScheduler::new_from_seed(seed, 4, 1))
        } else {
            Box::new(RandomScheduler::new_from_seed(seed, 1))
        };
        shuttle::Runner::new(schedule, config).run(work);
        Ok(())
    });
    schedule::set(None);
    ran.map_err(|error| format!("the schedule did not end: {error}"))?;
    let problem = problem
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    problem.map_or(Ok(()), Err)
}
