//! The atomics of the small concurrent cores, from `std` or, under `--cfg loom`, from the model checker; and the two ways
//! to wait for another thread.
//!
//! Under the crash checker a scheduler may run several "threads" on one thread of the system (see
//! [`schedule`]): there, no thread may block, and every place where another thread could come in between calls
//! [`schedule::point`].

use crate::pmem::schedule;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(not(loom))]
pub(crate) use std::{hint::spin_loop, sync::atomic};

#[cfg(loom)]
pub(crate) use loom::{hint::spin_loop, sync::atomic};

/// Lets other threads run: the caller waits for one of them.
pub(crate) fn yield_now() {
    if schedule::wait() {
        return;
    }
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Sleeps, so that other threads can use the core.
pub(crate) fn nap(length: std::time::Duration) {
    if schedule::is_on() || cfg!(loom) {
        return yield_now();
    }
    std::thread::sleep(length);
}

/// Locks a mutex, also after a thread has panicked while it held the mutex: what the library's mutexes protect is consistent at
/// every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    schedule::point();
    while schedule::is_on() {
        use std::sync::TryLockError;
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => yield_now(),
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
