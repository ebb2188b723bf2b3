//! Running operations under the recorder, on one thread or on several that a deterministic scheduler interleaves.

use crate::history::Saw;
use crate::planted::Mutated;
use crate::{Contents, MEMORY_BYTES, Structure, Workload};
use indelible::checker::{self, Scheduler};
use indelible::pmem::trace::{self, Action, Event};
use indelible::pmem::{Cell as Word, LINE, Memory};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use shuttle::scheduler::{Schedule, Task, TaskId};
use shuttle::sync::atomic::AtomicBool;
use std::any::Any;
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
    pub(crate) before: Contents,
    /// Contents after all operations, without a crash. `None` if the last events are left out.
    pub(crate) after: Option<Contents>,
    /// If not all crashes are of interest: for each event, and for the end, whether one before it is. With a planted bug that is where a
    /// crash can leave what it does not leave without the bug.
    pub(crate) differs: Vec<bool>,
}

/// Events before and behind one that are near: a commit that is moved takes its flush and its fence with it.
const NEAR: usize = 3;

impl<O: Clone> Recording<O> {
    /// The recording with a planted bug in it.
    pub(crate) fn with(&self, mutated: Mutated) -> Self {
        Self {
            differs: mutated.differs(),
            events: mutated.events,
            operations: self.operations.clone(),
            saw: self.saw.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
            ..*self
        }
    }

    /// The recording up to a little behind event `at`, of which only crashes near it are of interest.
    pub(crate) fn near(&self, at: usize) -> Self {
        let end = (at + NEAR).min(self.events.len());
        let mut differs = vec![false; end + 1];
        differs[at.saturating_sub(NEAR)..].fill(true);
        Self {
            events: self.events[..end].to_vec(),
            operations: self.operations.clone(),
            saw: self.saw.clone(),
            before: self.before.clone(),
            after: None,
            differs,
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
    record_from(structure, workload, seed, false)
}

/// [Records](record) a workload. If the structure `is_recovered`, its process dies before the recording, and the threads begin with what the next one has just opened: so it is they who do, side
/// by side, what recovery leaves for later.
pub(crate) fn record_from<S: Structure>(
    structure: &Arc<S>,
    workload: &Workload<S::Operation>,
    seed: u64,
    is_recovered: bool,
) -> Result<Recording<S::Operation>, String> {
    let memory = Arc::new(Memory::new(MEMORY_BYTES));
    // From the very beginning: what was left without a flush then may be lost later.
    trace::start(Vec::new());
    let open = guarded(|| {
        let mut open = structure.create(&memory)?;
        for operation in &workload.before {
            structure.run(&open, operation)?;
        }
        let before = structure.contents(&open)?;
        if is_recovered {
            structure.crash(&open);
            drop(open);
            open = structure.recover(&memory)?;
        }
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
    expect_inside(&events, base, 0)?;
    expect_complete(&events, &memory)?;
    let saw = std::mem::take(&mut *saw.lock().unwrap_or_else(PoisonError::into_inner));
    // Whatever is wrong by now is wrong without a crash. Whether the contents are what the operations explain, the search says.
    let after = guarded(|| structure.contents(&open));
    let after = after.map_err(|error| format!("without a crash: {error}"))?;
    structure.crash(&open);
    Ok(Recording {
        address: base,
        events,
        from,
        operations,
        saw,
        before,
        after: Some(after),
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
    std::panic::catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(format!("panic: {}", text_of(&*panic))))
}

/// What a panic says.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("of another kind")
}

/// Whether each store was to memory that had been given its length by then: it was `length` long before these events. In a file that is
/// mapped, a store beyond the end is a signal.
pub(crate) fn expect_inside(events: &[Event], base: usize, mut length: u64) -> Result<(), String> {
    for event in events {
        match event.action {
            Action::Length { to, .. } => length = to,
            Action::Store { address, .. } if !(base..base + length as usize).contains(&address) => {
                return Err(format!(
                    "a store at {} to {:#x}, where the memory is {length:#x} long: was `set_length` forgotten?",
                    event.source,
                    address.wrapping_sub(base),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether these events, which began with memory that was empty, explain every word of it: what is written in another way is in no image.
fn expect_complete(events: &[Event], memory: &Memory) -> Result<(), String> {
    let mut known = vec![0; memory.capacity() / 8];
    for event in events {
        match event.action {
            Action::Store {
                address,
                value,
                before,
            } => {
                let at = (address - memory.base()) / 8;
                if known[at] != before {
                    return Err(unrecorded(at, before, known[at]));
                }
                known[at] = value;
            }
            Action::Length { from, to } if to < from => {
                known[(to as usize).next_multiple_of(LINE) / 8..from as usize / 8].fill(0);
            }
            _ => {}
        }
    }
    let words = &memory.words()[..memory.length() as usize / 8];
    let words = words.iter().map(Word::load);
    let mut all = words.zip(known).enumerate();
    all.find(|(_, (word, known))| word != known)
        .map_or(Ok(()), |(at, (word, known))| {
            Err(unrecorded(at, word, known))
        })
}

fn unrecorded(at: usize, word: u64, known: u64) -> String {
    format!(
        "the word at {:#x} is {word:#x}, where the recorder has seen {known:#x}: something has written behind its back",
        8 * at
    )
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

/// What shuttle's panic says then.
const TOO_MANY_STEPS: &str = "exceeded max_steps";

/// What the error begins with then.
pub(crate) const NO_END: &str = "the schedule did not end";

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
    ran.map_err(|error| match error.contains(TOO_MANY_STEPS) {
        true => format!("{NO_END}: {error}"),
        false => format!("under the scheduler: {error}"),
    })?;
    let problem = problem
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    problem.map_or(Ok(()), Err)
}
