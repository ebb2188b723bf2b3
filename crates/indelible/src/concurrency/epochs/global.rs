//! The clock and the pins of the process.

use super::{Clock, Pin, Stamp};
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use crate::concurrency::sync::lock;
use crate::pmem::schedule::{self, MOST_THREADS, point};
use rustix::thread::{MembarrierCommand, membarrier};
use std::cell::Cell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Mutex;

/// The threads that share a clock: all of the process.
struct Domain {
    clock: Clock,
    pins: Mutex<Pins>,
    /// All stamps before this one have passed.
    passed: AtomicU64,
    /// Memory that is waiting to be freed, the oldest first.
    retired: Mutex<VecDeque<(Stamp, Retired)>>,
}

/// Memory that only threads still reach which were pinned when it was retired.
struct Retired {
    address: u64,
    free: unsafe fn(u64),
}

/// How much memory is retired before it is asked what of it can be freed, since that costs a system call.
const MOST_RETIRED: usize = 64;

/// The pins of all threads that there ever were. The pins of ended threads go to new threads.
struct Pins {
    all: Vec<&'static Pin>,
    free: Vec<&'static Pin>,
}

impl Domain {
    const fn new() -> Self {
        Self {
            // Epochs start at 1: a pin of 0 means none.
            clock: Clock(AtomicU64::new(1)),
            pins: Mutex::new(Pins {
                all: Vec::new(),
                free: Vec::new(),
            }),
            passed: AtomicU64::new(0),
            retired: Mutex::new(VecDeque::new()),
        }
    }
}

struct Local {
    pin: Cell<Option<&'static Pin>>,
    fences: Cell<bool>,
    /// The same pin, once pins of this thread need no fence.
    unfenced: Cell<Option<&'static Pin>>,
}

impl Local {
    const fn new() -> Self {
        Self {
            pin: Cell::new(None),
            fences: Cell::new(true),
            unfenced: Cell::new(None),
        }
    }
}

/// The domain of the whole process.
static DOMAIN: Domain = Domain::new();

thread_local! {
    static LOCAL: Local = const { Local::new() };
    /// Under the crash checker each thread of the system is an explorer with pools of its own. Each has a domain of its own, since
    /// otherwise a run of one explorer would depend on the pins of the others, and could not be repeated.
    static MODEL_DOMAIN: Cell<Option<&'static Domain>> = const { Cell::new(None) };
    static MODEL_LOCALS: [Local; MOST_THREADS] = const { [const { Local::new() }; MOST_THREADS] };
    static MODEL_SESSION: Cell<u64> = const { Cell::new(0) };
}

#[inline(always)]
fn domain() -> &'static Domain {
    if schedule::IS_POSSIBLE {
        begin_session();
        model_domain()
    } else {
        &DOMAIN
    }
}

#[inline(always)]
fn with_local<T>(work: impl FnOnce(&Local) -> T) -> T {
    if schedule::IS_POSSIBLE {
        begin_session();
        MODEL_LOCALS.with(|locals| work(&locals[schedule::thread() % MOST_THREADS]))
    } else {
        LOCAL.with(work)
    }
}

fn model_domain() -> &'static Domain {
    MODEL_DOMAIN.get().unwrap_or_else(|| {
        let domain = Box::leak(Box::new(Domain::new()));
        MODEL_DOMAIN.set(Some(domain));
        domain
    })
}

/// In a new session of the scheduler, forgets all pins of this thread of the system, so that every run begins in the same way:
/// nothing is pinned, or what is pinned belongs to an aborted run and will never be released. Frees what has been retired.
fn begin_session() {
    let session = schedule::session();
    if MODEL_SESSION.replace(session) == session {
        return;
    }
    MODEL_LOCALS.with(|locals| {
        for local in locals {
            local.pin.set(None);
        }
    });
    // Not `sync::lock`, which would let the scheduler switch threads in the middle of this.
    let domain = model_domain();
    let mut pins = domain
        .pins
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    for pin in &pins.all {
        pin.epoch.store(0, Ordering::Relaxed);
        pin.set_depth(0);
        pin.asked.store(0, Ordering::Relaxed);
    }
    pins.free = pins.all.clone();
    let mut retired = domain
        .retired
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    for (_, Retired { address, free }) in retired.drain(..) {
        // SAFETY: nobody is pinned.
        unsafe { free(address) };
    }
}

thread_local! {
    static RETURN: ReturnPin = const { ReturnPin };
}

/// Frees the thread's pin for other threads when the thread ends.
struct ReturnPin;

impl Drop for ReturnPin {
    fn drop(&mut self) {
        let pin = with_local(|local| {
            local.unfenced.set(None);
            local.pin.take()
        });
        lock(&domain().pins).free.extend(pin);
    }
}

/// Whether the kernel runs barriers on all cores for us: [`UNASKED`], [`ASKED`], [`GRANTED`].
static MEMBARRIER: AtomicU8 = AtomicU8::new(UNASKED);
const UNASKED: u8 = 0;
const ASKED: u8 = 1;
const GRANTED: u8 = 2;

/// Whether the kernel has refused a barrier after it had granted them, as it does when a filter of system calls comes later. No stamp passes then.
static BARRIERS_FAIL: AtomicBool = AtomicBool::new(false);

/// Asks the kernel, at the first call, and does not wait for the answer: in a process of several threads that takes
/// milliseconds, as long as opening a pool and answering a thousand lookups.
fn ask_for_membarrier() {
    // The explorers of the crash checker pin far more often than they ask, and each is alone in its domain.
    let first =
        || MEMBARRIER.compare_exchange(UNASKED, ASKED, Ordering::Relaxed, Ordering::Relaxed);
    if schedule::IS_POSSIBLE || first().is_err() {
        return;
    }
    let ask = || {
        if membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() {
            MEMBARRIER.store(GRANTED, Ordering::SeqCst);
        }
    };
    // Without this thread, pins have fences for ever, which is slower and correct.
    let _ = std::thread::Builder::new()
        .name("indelible-membarrier".into())
        .spawn(ask);
}

/// Whether pins of this thread need a fence; no longer once the kernel has granted its barriers.
#[cold]
fn still_fences(local: &Local) -> bool {
    if MEMBARRIER.load(Ordering::Acquire) == GRANTED {
        local.fences.set(false);
        local.unfenced.set(local.pin.get());
        // Pairs with the fence in `has_passed`: a thread that found the barrier not granted there had unlinked its block before
        // anything that this thread reads from here on.
        fence(Ordering::SeqCst);
    }
    local.fences.get()
}

#[cold]
fn register(local: &Local) -> &'static Pin {
    ask_for_membarrier();
    let mut pins = lock(&domain().pins);
    let pin = pins.free.pop().unwrap_or_else(|| {
        // One line per thread that ever lived at the same time as others, never freed.
        let pin: &'static Pin = Box::leak(Box::default());
        pins.all.push(pin);
        pin
    });
    drop(pins);
    local.pin.set(Some(pin));
    // A thread that is already ending keeps its pin for good.
    let _ = RETURN.try_with(|_| ());
    pin
}

/// The thread is pinned for as long as this lives. Guards nest.
pub(crate) struct Guard {
    pin: &'static Pin,
    // The guard unpins the thread it was made on.
    not_send: PhantomData<*const ()>,
}

/// Pins the thread: what is unlinked from now on is not reused until the guard is dropped.
#[inline]
pub(crate) fn pin() -> Guard {
    point();
    with_local(|local| {
        let pin = match local.pin.get() {
            Some(pin) => pin,
            None => register(local),
        };
        let depth = pin.depth();
        pin.set_depth(depth + 1);
        if depth == 0 {
            let fences = local.fences.get() && still_fences(local);
            domain().clock.enter(pin, fences);
        }
        Guard {
            pin,
            not_send: PhantomData,
        }
    })
}

/// The thread is pinned for as long as this lives. Guards that the thread makes meanwhile end before this one does.
pub(crate) struct BriefGuard {
    pin: &'static Pin,
    // The guard unpins the thread it was made on.
    not_send: PhantomData<*const ()>,
}

impl Guard {
    /// Whether this is one in so many calls by this thread: a power of two. Costs a few instructions, on a line that is in the cache.
    #[inline(always)]
    pub(crate) fn is_one_in(&self, many: u32) -> bool {
        self.pin.is_one_in(many)
    }

    /// What the last call of `is_one_in` by this thread has said, of this guard or of another one.
    pub(crate) fn was_one_in(&self, many: u32) -> bool {
        self.pin.was_one_in(many)
    }
}

impl BriefGuard {
    /// As [`Guard::is_one_in`].
    #[inline(always)]
    pub(crate) fn is_one_in(&self, many: u32) -> bool {
        self.pin.is_one_in(many)
    }
}

impl Drop for BriefGuard {
    #[inline(always)]
    fn drop(&mut self) {
        debug_assert_eq!(self.pin.depth(), 1, "a guard has outlived a brief one");
        self.pin.set_depth(0);
        Clock::leave(self.pin);
    }
}

/// [`pin`], if that takes only a few instructions: if the thread is not pinned, has pinned before, and needs no fence. (Under the
/// crash checker a fence does not count.)
#[inline(always)]
pub(crate) fn try_pin() -> Option<BriefGuard> {
    point();
    with_local(|local| {
        let pin = if schedule::IS_POSSIBLE {
            local.pin.get()?
        } else {
            local.unfenced.get()?
        };
        if pin.depth() != 0 {
            return None;
        }
        pin.set_depth(1);
        domain().clock.enter(pin, schedule::IS_POSSIBLE);
        Some(BriefGuard {
            pin,
            not_send: PhantomData,
        })
    })
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        let depth = self.pin.depth() - 1;
        self.pin.set_depth(depth);
        if depth == 0 {
            Clock::leave(self.pin);
        }
    }
}

/// A stamp for what the caller has just unlinked.
pub(crate) fn stamp() -> Stamp {
    domain().clock.stamp()
}

/// Whether no thread can hold any more what was unlinked before `stamp`. Costs a system call, unless an earlier call has found out, or it
/// can be seen that a thread is pinned.
pub(crate) fn has_passed(stamp: Stamp) -> bool {
    let domain = domain();
    if stamp.0 < domain.passed.load(Ordering::Acquire) {
        return true;
    }
    let pins = lock(&domain.pins);
    if !pins.all.iter().all(|pin| Clock::is_past(pin, stamp)) {
        return false;
    }
    // Whatever was unlinked for a stamp before this one was unlinked before the barrier.
    let now = domain.clock.0.load(Ordering::SeqCst);
    // Orders the unlinking before the load of `MEMBARRIER`.
    fence(Ordering::SeqCst);
    let granted = MEMBARRIER.load(Ordering::SeqCst) == GRANTED;
    // A failure would mean that the kernel forgot our registration; then nothing may be reused.
    if granted && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
        BARRIERS_FAIL.store(true, Ordering::Relaxed);
        return false;
    }
    let pinned = pins.all.iter().filter_map(|pin| Clock::pinned(pin));
    let passed = pinned.fold(now, u64::min);
    domain.passed.fetch_max(passed, Ordering::AcqRel);
    stamp.0 < passed
}

/// Calls `free` with `address` some time after every thread that is pinned now has unpinned.
///
/// # Safety
///
/// `free` may be called then, once and on any thread: threads that pin from now on do not come across the memory.
pub(crate) unsafe fn retire(address: u64, free: unsafe fn(u64)) {
    let domain = domain();
    let retired = &mut *lock(&domain.retired);
    retired.push_back((stamp(), Retired { address, free }));
    if retired.len() < MOST_RETIRED {
        return;
    }
    let half = retired.len() / 2;
    if has_passed(retired[half - 1].0) {
        for (_, Retired { address, free }) in retired.drain(..half) {
            // SAFETY: all threads that were pinned when the memory was retired have unpinned.
            unsafe { free(address) };
        }
    }
}

/// Waits until every thread that is pinned now has unpinned, and returns a stamp that has passed. `None` if the calling thread is pinned, which would wait
/// for itself, and if the kernel refuses its barriers, which it has granted before.
pub(crate) fn synchronize() -> Option<Stamp> {
    if with_local(|local| local.pin.get().is_some_and(|pin| pin.depth() > 0)) {
        return None;
    }
    let stamp = stamp();
    let mut wait = Wait::default();
    while !has_passed(stamp) {
        if BARRIERS_FAIL.load(Ordering::Relaxed) {
            return None;
        }
        wait.step();
    }
    Some(stamp)
}
