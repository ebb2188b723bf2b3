//! Running operations under the recorder, on one thread or on several that a deterministic scheduler interleaves.

use crate::history::Saw;
use crate::planted::Mutated;
use crate::{MEMORY_BYTES, Structure, Workload};
use indelible::checker::{self, Scheduler};
use indelible::pmem::Memory;
use indelible::pmem::trace::{self, Action, Event};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use shuttle::scheduler::{Schedule, Task, TaskId};
use shuttle::sync::atomic::AtomicBool;
use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Once, PoisonError};

/// What was done, store by store, and what there was before.
#[derive(Clone)]
pub(crate) struct Recording<O> {
    /// Where the memory was.
    pub(crate) address: usize,
    /// Everything that happened since it was empty.
    pub(crate) events: Vec<Event>,
    /// The first event of the operations.
    pub(crate) from: usize,
    /// Operation `i` begins at the mark `2 i` and returns at `2 i + 1`.
    pub(crate) operations: Vec<O>,
    /// What each saw.
    pub(crate) saw: Vec<Vec<Saw>>,
    /// Contents before.
    pub(crate) before: Vec<(u64, u64)>,
    /// With a planted bug: for each event, and for the end, whether a crash before it can leave what it does not leave without the bug.
    pub(crate) differs: Vec<bool>,
}

impl<O: Clone> Recording<O> {
    /// The recording with a planted bug in it.
    pub(crate) fn with(&self, mutated: Mutated) -> Self {
        Self {
            differs: mutated.differs(),
            events: mutated.events,
            operations: self.operations.clone(),
            saw: self.saw.clone(),
            before: self.before.clone(),
            ..*self
        }
    }
}

/// Runs a workload: what it does before, unrecorded, and then its threads. An error is one of the structure's.
pub(crate) fn record<S: Structure>(
    structure: &Arc<S>,
    workload: &Workload<S::Operation>,
    seed: u64,
) -> Result<Recording<S::Operation>, String> {
    let memory = Arc::new(Memory::new(MEMORY_BYTES));
    // From the very beginning: what was left without a flush then may be lost later.
    trace::start(Vec::new());
    let open = guarded(|| {
        let open = structure.create(&memory)?;
        for operation in &workload.before {
            structure.run(&open, operation)?;
        }
        let before = structure.contents(&open)?;
        Ok((open, before))
    });
    let (open, before) = open.map_err(|error| format!("before the recording: {error}"))?;
    let mut events = trace::stop();
    let from = events.len();
    let operations: Vec<S::Operation> = workload.threads.iter().flatten().cloned().collect();
    let saw = Arc::new(Mutex::new(vec![Vec::new(); operations.len()]));
    let open = Arc::new(open);
    trace::start(Vec::new());
    let result = match &*workload.threads {
        [operations] => run_one(&**structure, &open, operations, 0, &saw),
        threads => run_scheduled(structure, &open, threads, &saw, seed),
    };
    events.extend(trace::stop());
    result?;
    let base = memory.base();
    if events
        .iter()
        .any(|event| is_outside(event, base, memory.length()))
    {
        return Err("a store beyond the memory's length: was `set_length` forgotten?".into());
    }
    let saw = std::mem::take(&mut *saw.lock().unwrap_or_else(PoisonError::into_inner));
    // Whatever is wrong by now is wrong without a crash.
    guarded(|| structure.contents(&open)).map_err(|error| format!("without a crash: {error}"))?;
    structure.crash(&open);
    Ok(Recording {
        address: base,
        events,
        from,
        operations,
        saw,
        before,
        differs: Vec::new(),
    })
}

thread_local! {
    /// Whether a panic is caught, and told of as an error.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Keeps panics that are caught from being printed as well.
fn silence_guarded_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                before(panic);
            }
        }));
    });
}

/// Calls `work`; a panic is an error of the structure's too.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    silence_guarded_panics();
    let outer = IS_GUARDED.replace(true);
    let result = catch(work);
    IS_GUARDED.set(outer);
    result
}

fn catch<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", message.unwrap_or("of another kind")))
    })
}

fn is_outside(event: &Event, base: usize, length: u64) -> bool {
    let Action::Store { address, .. } = event.action else {
        return false;
    };
    // Shorter memory has been longer; stores before that are no concern here.
    address < base || length == 0 || address >= base + MEMORY_BYTES
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

thread_local! {
    /// Every access to it is a point at which shuttle may switch threads. (Shuttle's atomics belong to one thread of the
    /// system.)
    static POINT: AtomicBool = const { AtomicBool::new(false) };
}

const SCHEDULER: Scheduler = Scheduler {
    point: || {
        POINT.with(|point| point.load(Ordering::SeqCst));
    },
    wait: shuttle::thread::yield_now,
    thread: || usize::from(shuttle::current::me()),
};

/// A schedule from a seed: at each point the running thread goes on, but for one time in so many, which the seed says too:
/// from taking turns at every store to long runs that are interrupted at few places. Now and then the one that is
/// interrupted does not come back for long, as a reader that has lost its core.
struct Sticky {
    random: SmallRng,
    one_in: u32,
    /// A thread that is kept from running, and for how many steps still.
    stalled: Option<(TaskId, u32)>,
    is_done: bool,
}

impl Sticky {
    fn new(seed: u64) -> Self {
        Self {
            random: SmallRng::seed_from_u64(seed),
            one_in: [2, 8, 30, 120][(seed ^ seed >> 3) as usize % 4],
            stalled: None,
            is_done: false,
        }
    }
}

impl shuttle::scheduler::Scheduler for Sticky {
    fn new_execution(&mut self) -> Option<Schedule> {
        let is_first = !std::mem::replace(&mut self.is_done, true);
        is_first.then(|| Schedule::new(0))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        self.stalled = self
            .stalled
            .and_then(|(task, steps)| Some((task, steps.checked_sub(1)?)));
        let is_stalled = |task: &TaskId| self.stalled.is_some_and(|(other, _)| other == *task);
        let tasks: Vec<TaskId> = runnable.iter().map(|task| task.id()).collect();
        let mut others: Vec<TaskId> = tasks
            .iter()
            .copied()
            .filter(|&task| Some(task) != current)
            .collect();
        if others.iter().any(|task| !is_stalled(task)) || !is_yielding {
            others.retain(|task| !is_stalled(task));
        }
        let running = current.filter(|task| tasks.contains(task));
        if others.is_empty() {
            return running.or(tasks.first().copied());
        }
        if running.is_some() && !is_yielding && !self.random.random_ratio(1, self.one_in) {
            return running;
        }
        if let Some(task) = running.filter(|_| !is_yielding && self.random.random_ratio(1, 4)) {
            self.stalled = Some((task, self.random.random_range(50..600)));
        }
        Some(others[self.random.random_range(0..others.len())])
    }

    fn next_u64(&mut self) -> u64 {
        self.random.random()
    }
}

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
    checker::set(Some(SCHEDULER));
    let ran = guarded(|| {
        shuttle::Runner::new(Sticky::new(seed), config).run(work);
        Ok(())
    });
    checker::set(None);
    ran.map_err(|error| format!("the schedule did not end: {error}"))?;
    let problem = problem
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    problem.map_or(Ok(()), Err)
}
