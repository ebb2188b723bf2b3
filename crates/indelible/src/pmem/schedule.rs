//! The door for a scheduler, which the crash checker uses to run threads one at a time in an order of its choice.
//!
//! A scheduler is set for one thread of the system and runs its "threads" there, as coroutines. Without the `trace` feature there
//! is no scheduler: [`point`] does nothing, and the other functions answer with constants.

/// How to reach the scheduler.
#[cfg(feature = "trace")]
#[derive(Clone, Copy, Debug)]
pub struct Scheduler {
    /// Another thread may come in between here.
    pub point: fn(),
    /// The current thread cannot go on before another one has.
    pub wait: fn(),
    /// Number of the current thread, below [`MOST_THREADS`].
    pub thread: fn() -> usize,
}

/// Whether this build can have a scheduler at all.
pub(crate) const IS_POSSIBLE: bool = cfg!(feature = "trace");

/// Threads of a scheduler, at most.
#[cfg_attr(loom, allow(dead_code, reason = "only epochs count threads"))]
pub const MOST_THREADS: usize = 8;

#[cfg(feature = "trace")]
thread_local! {
    static CURRENT: std::cell::Cell<Option<Scheduler>> = const { std::cell::Cell::new(None) };
    static SESSION: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Sets the scheduler of this thread of the system, or takes it away. Nothing of the library is running on it.
#[cfg(feature = "trace")]
pub fn set(scheduler: Option<Scheduler>) {
    SESSION.set(SESSION.get() + 1);
    CURRENT.set(scheduler);
}

/// Counts the calls of `set` on this thread of the system. What an aborted run left behind belongs to an earlier session.
#[inline]
pub(crate) fn session() -> u64 {
    #[cfg(feature = "trace")]
    {
        SESSION.get()
    }
    #[cfg(not(feature = "trace"))]
    {
        0
    }
}

/// Whether threads run one at a time, so that spinning leads nowhere.
#[inline]
pub(crate) fn is_on() -> bool {
    #[cfg(feature = "trace")]
    {
        CURRENT.get().is_some()
    }
    #[cfg(not(feature = "trace"))]
    {
        false
    }
}

/// Another thread may come in between here.
#[inline(always)]
pub(crate) fn point() {
    #[cfg(feature = "trace")]
    if let Some(scheduler) = CURRENT.get() {
        (scheduler.point)();
    }
}

/// Lets another thread of the scheduler run; `false` without a scheduler.
pub(crate) fn wait() -> bool {
    #[cfg(feature = "trace")]
    {
        CURRENT.get().map(|scheduler| (scheduler.wait)()).is_some()
    }
    #[cfg(not(feature = "trace"))]
    {
        false
    }
}

/// Number of the current thread; 0 without a scheduler.
#[inline]
pub(crate) fn thread() -> usize {
    #[cfg(feature = "trace")]
    {
        CURRENT.get().map_or(0, |scheduler| (scheduler.thread)())
    }
    #[cfg(not(feature = "trace"))]
    {
        0
    }
}
