//! Lock-freedom, shown: one thread is stopped for ever at each point of its operations in turn, and another one has to complete a workload.
//!
//! Threads are coroutines under a scheduler that lets the first one run to its N-th point (a store, an exchange, a flush, a fence, a lock, a
//! look at a slot), and then never again, until the other one has ended. A thread that waits for the stopped one yields for ever, which is
//! noticed by its steps. The allocator's locks are the exception that is allowed: the stack of the stopped thread tells.

use indelible_crash::Memory;
use indelible_crash::indelible::checker::AnyKind;
use indelible_crash::indelible::checker::{self, Scheduler};
use indelible_crash::indelible::{
    Box2, Durability, Kind, Map, MapOptions, Point2, Pool, PoolOptions, Spatial, SpatialKind,
};
use shuttle::scheduler::{Schedule, Task, TaskId};
use shuttle::sync::atomic::AtomicBool;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

thread_local! {
    static POINT: AtomicBool = const { AtomicBool::new(false) };
    /// Points that the first thread has passed.
    static PASSED: Cell<u64> = const { Cell::new(0) };
    /// The point at which it is stopped.
    static STOP_AT: Cell<u64> = const { Cell::new(0) };
    static STOPPED: Cell<bool> = const { Cell::new(false) };
    static WANTS_STACK: Cell<bool> = const { Cell::new(false) };
    static STACK: RefCell<String> = const { RefCell::new(String::new()) };
    static BLOCKED: Cell<bool> = const { Cell::new(false) };
}

/// The thread that is stopped, and the one that goes on.
const FIRST: usize = 1;

const SCHEDULER: Scheduler = Scheduler {
    point: || {
        if usize::from(shuttle::current::me()) == FIRST {
            let passed = PASSED.get() + 1;
            PASSED.set(passed);
            if passed == STOP_AT.get() {
                if WANTS_STACK.get() {
                    let stack = std::backtrace::Backtrace::force_capture();
                    STACK.with_borrow_mut(|text| *text = stack.to_string());
                }
                STOPPED.set(true);
            }
        }
        POINT.with(|point| point.load(Ordering::SeqCst));
    },
    wait: shuttle::thread::yield_now,
    thread: || usize::from(shuttle::current::me()),
};

/// Steps that the other thread may take while the first one is stopped: many times what its work takes.
const MOST_STEPS: u64 = 300_000;

struct Stopping {
    is_begun: bool,
    steps: u64,
}

impl shuttle::scheduler::Scheduler for Stopping {
    fn new_execution(&mut self) -> Option<Schedule> {
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        is_first.then(|| Schedule::new(0))
    }

    fn next_task(&mut self, runnable: &[&Task], _: Option<TaskId>, _: bool) -> Option<TaskId> {
        let find = |wanted: fn(usize) -> bool| {
            let mut ids = runnable.iter().map(|task| task.id());
            ids.find(|&id| wanted(usize::from(id)))
        };
        let (main, first) = (find(|id| id == 0), find(|id| id == FIRST));
        let other = find(|id| id > FIRST);
        let chosen = match STOPPED.get() && !BLOCKED.get() {
            false => main.or(first).or(other),
            true => {
                self.steps += 1;
                if other.is_some() && self.steps > MOST_STEPS {
                    BLOCKED.set(true);
                }
                main.or(other).or(first)
            }
        };
        chosen.or_else(|| runnable.first().map(|task| task.id()))
    }

    fn next_u64(&mut self) -> u64 {
        0
    }
}

/// An index, and what two threads do with it.
trait Shared: Send + Sync {
    /// What the first thread does: every operation, and enough inserts in one place for changes of structure.
    fn first_work(&self);
    /// What the other thread does beside it.
    fn other_work(&self);
    /// What is wrong with the index.
    fn problems(&self) -> Vec<String>;
}

impl Shared for Map<u64, u64> {
    fn first_work(&self) {
        self.get(8).unwrap();
        self.insert(8, 1).unwrap();
        self.remove(16).unwrap();
        for key in 0..40 {
            self.insert(key * 8 + 3, key).unwrap();
        }
        assert!(self.iter().count() > 40);
        self.update(24, 7).unwrap();
        self.insert(u64::MAX, 1).unwrap();
    }

    fn other_work(&self) {
        for key in 0..30 {
            self.insert(key * 8 + 5, key).unwrap();
            assert_eq!(self.get(key * 8 + 5).unwrap(), Some(key));
            self.get(key * 8 + 3).unwrap();
        }
        for key in 0..30 {
            self.insert(key * 8, key).unwrap();
            assert_eq!(self.remove(key * 8 + 5).unwrap(), Some(key));
        }
        assert!(self.iter().count() >= 30);
        self.insert(u64::MAX - 1, 1).unwrap();
    }

    fn problems(&self) -> Vec<String> {
        self.check().unwrap()
    }
}

/// A place of a payload: its number is 0 or 1.
fn place(payload: u64, number: u64) -> Point2 {
    Point2::new((payload * 5 % 17) as f64, (payload + number * 40) as f64)
}

fn found(index: &Spatial<Point2>) -> usize {
    let everything = Box2::new(Point2::new(-1.0, -1.0), Point2::new(1e3, 1e3));
    index.intersecting(everything).unwrap().count()
}

impl Shared for Spatial<Point2> {
    fn first_work(&self) {
        for payload in 100..112 {
            self.insert(place(payload, 0), payload).unwrap();
        }
        assert!(found(self) >= 12);
        for payload in 100..104 {
            let moved = self.relocate(payload, place(payload, 0), place(payload, 1));
            assert!(moved.unwrap());
            assert!(self.remove(place(payload, 1), payload).unwrap());
        }
        assert!(!self.remove(place(900, 0), 900).unwrap());
        let nearest = self.nearest(place(50, 0)).unwrap();
        assert_eq!(nearest.take(4).count(), 4);
    }

    fn other_work(&self) {
        for payload in 20..34 {
            self.insert(place(payload, 0), payload).unwrap();
        }
        for payload in 20..34 {
            let moved = self.relocate(payload, place(payload, 0), place(payload, 1));
            assert!(moved.unwrap());
        }
        assert!(found(self) >= 14);
        let nearest = self.nearest(place(30, 1)).unwrap();
        assert_eq!(nearest.take(4).count(), 4);
        for payload in 20..34 {
            assert!(self.remove(place(payload, 1), payload).unwrap());
        }
        assert!(!self.remove(place(20, 1), 20).unwrap());
    }

    fn problems(&self) -> Vec<String> {
        self.check().unwrap()
    }
}

/// An index of a kind, with ten records.
fn create(kind: AnyKind, pool: &Pool) -> Arc<dyn Shared> {
    match kind {
        AnyKind::Map(kind) => {
            let map: Map<u64, u64> = pool.map_with("m", MapOptions::from(kind)).unwrap();
            (0..10).for_each(|key| drop(map.insert(key * 8, key)));
            Arc::new(map)
        }
        AnyKind::Spatial(kind) => {
            let index: Spatial<Point2> = pool.spatial_with("m", kind).unwrap();
            (0..10).for_each(|payload| index.insert(place(payload, 0), payload).unwrap());
            Arc::new(index)
        }
        AnyKind::Strings(_) => unreachable!("no kind of these is free of locks"),
    }
}

/// How a run ended: whether the first thread came to the point, and, if the other one was blocked, where the first one was.
struct Ended {
    is_reached: bool,
    blocked: Option<String>,
}

fn run(kind: AnyKind, stop_at: u64, wants_stack: bool) -> Ended {
    let memory = Arc::new(Memory::new(1 << 20));
    let pool = PoolOptions::new()
        .durability(Durability::PowerLoss)
        .force_power_loss_protocol(true)
        .boot_identity([7; 16])
        .create_memory(&memory)
        .unwrap();
    let index = create(kind, &pool);
    PASSED.set(0);
    STOP_AT.set(stop_at);
    STOPPED.set(false);
    BLOCKED.set(false);
    WANTS_STACK.set(wants_stack);
    let pool = Arc::new(pool);
    let work = {
        let (index, pool) = (Arc::clone(&index), Arc::clone(&pool));
        move || {
            let works: [fn(&dyn Shared); 2] =
                [|index| index.first_work(), |index| index.other_work()];
            let handles = works.map(|work| {
                let (index, _pool) = (Arc::clone(&index), Arc::clone(&pool));
                shuttle::thread::spawn(move || work(&*index))
            });
            handles
                .into_iter()
                .for_each(|handle| handle.join().unwrap());
        }
    };
    let mut config = shuttle::Config::new();
    config.stack_size = 512 << 10;
    config.failure_persistence = shuttle::FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::FailAfter(4_000_000);
    config.silence_warnings = true;
    checker::set(Some(SCHEDULER));
    let stopping = Stopping {
        is_begun: false,
        steps: 0,
    };
    shuttle::Runner::new(stopping, config).run(work);
    checker::set(None);
    assert_eq!(index.problems(), [""; 0], "{kind}: stopped at {stop_at}");
    let ended = Ended {
        is_reached: STOPPED.get(),
        blocked: BLOCKED.get().then(|| STACK.take()),
    };
    Pool::abandon(&pool);
    ended
}

/// Whether a stack is inside the allocator: one of its spaces, the pool, or what frees memory after an epoch.
fn is_in_allocator(stack: &str) -> bool {
    [
        "pool::space",
        "pool::core",
        "RetiredParts",
        "concurrency::epochs",
    ]
    .iter()
    .any(|part| stack.contains(part))
}

/// Stops the first thread at each point in turn, every `step`-th of them. Returns how many there were, and where the other thread was blocked
/// outside the allocator.
fn stop_everywhere(kind: AnyKind, step: usize) -> (u64, Vec<String>) {
    let mut blocked = Vec::new();
    for stop_at in (1..).step_by(step) {
        let ended = run(kind, stop_at, false);
        if !ended.is_reached {
            return (stop_at, blocked);
        }
        if ended.blocked.is_some() {
            let stack = run(kind, stop_at, true).blocked.unwrap_or_default();
            if !is_in_allocator(&stack) {
                blocked.push(format!("stopped at point {stop_at}:\n{stack}"));
            }
            if blocked.len() >= 3 {
                return (stop_at, blocked);
            }
        }
    }
    unreachable!("points do not end")
}

#[test]
fn nobody_waits_for_a_thread_of_a_loft_that_has_stopped() {
    let (points, blocked) = stop_everywhere(AnyKind::Map(Kind::Loft), 1);
    println!("loft: stopped at {points} points");
    assert!(points > 500, "only {points} points");
    assert!(blocked.is_empty(), "{}", blocked.join("\n"));
}

#[test]
fn nobody_waits_for_a_thread_of_a_pm_rtree_that_has_stopped() {
    let (points, blocked) = stop_everywhere(AnyKind::Spatial(SpatialKind::PmRtree), 1);
    println!("pm-rtree: stopped at {points} points");
    assert!(points > 500, "only {points} points");
    assert!(blocked.is_empty(), "{}", blocked.join("\n"));
}

#[test]
fn the_engines_with_locks_fail_this_test() {
    let spatial = [SpatialKind::Hilbert, SpatialKind::Fbr].map(AnyKind::Spatial);
    let maps = [Kind::LbTree, Kind::Apex].map(AnyKind::Map);
    for kind in maps.into_iter().chain(spatial) {
        let (_, blocked) = stop_everywhere(kind, 7);
        assert!(!blocked.is_empty(), "{kind}");
    }
}
