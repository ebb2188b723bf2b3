//! The door for a scheduler, which the crash checker uses to run threads one at a time in an order of its choice.
//!
//! Compiled only with the `trace` feature. A scheduler is set for one thread of the system and runs its "threads" there,
//! as coroutines. Without one, nothing here does anything.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard};

/// How to reach the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Scheduler {
    /// Another thread may come in between here.
    pub point: fn(),
    /// The current thread cannot go on before another one has.
    pub wait: fn(),
    /// Number of the current thread, below [`MOST_THREADS`].
    pub thread: fn() -> usize,
}

/// Threads of a scheduler, at most.
pub const MOST_THREADS: usize = 8;

thread_local! {
    static CURRENT: Cell<Option<Scheduler>> = const { Cell::new(None) };
}

/// Sets the scheduler of this thread of the system, or takes it away. Nothing of the library is running on it.
pub fn set(scheduler: Option<Scheduler>) {
    // Without one, since nothing runs yet that it could switch.
    CURRENT.set(None);
    // What an aborted run left pinned would be pinned for good.
    crate::reclaim::start_anew();
    CURRENT.set(scheduler);
}

/// Locks a mutex, letting other threads run until it can be had. A mutex that is held across a [point](Scheduler::point) has to
/// be locked in this way.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    crate::sync::lock(mutex)
}

pub(crate) fn is_on() -> bool {
    CURRENT.get().is_some()
}

#[inline]
pub(crate) fn point() {
    if let Some(scheduler) = CURRENT.get() {
        (scheduler.point)();
    }
}

/// `false` without a scheduler.
pub(crate) fn wait() -> bool {
    CURRENT.get().map(|scheduler| (scheduler.wait)()).is_some()
}

/// Number of the current thread; 0 without a scheduler.
#[inline]
pub(crate) fn thread() -> usize {
    CURRENT.get().map_or(0, |scheduler| (scheduler.thread)())
}
