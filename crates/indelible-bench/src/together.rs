//! Threads that begin at once.

use anyhow::{Context, Result};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, ScopedJoinHandle, scope};

/// Where threads wait for each other. They can be sent home, other than those at a [`std::sync::Barrier`]: where the system refuses one of
/// the threads, the others would wait for it forever.
#[derive(Default)]
struct Gate {
    waiting: Mutex<Waiting>,
    has_come: Condvar,
    is_decided: Condvar,
}

#[derive(Default)]
struct Waiting {
    threads: usize,
    /// Whether they are to begin; none while that is not decided.
    begins: Option<bool>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits with the others, and says whether to begin.
    fn wait(&self) -> bool {
        let mut waiting = self.lock();
        waiting.threads += 1;
        self.has_come.notify_one();
        loop {
            if let Some(begins) = waiting.begins {
                return begins;
            }
            let woken = self.is_decided.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets so many threads begin, when all of them are there.
    fn open(&self, threads: usize) {
        let mut waiting = self.lock();
        while waiting.threads < threads {
            let woken = self.has_come.wait(waiting);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
        }
        waiting.begins = Some(true);
        self.is_decided.notify_all();
    }

    /// Sends all threads home, those that come later, too.
    fn close(&self) {
        self.lock().begins = Some(false);
        self.is_decided.notify_all();
    }
}

/// Does each work in a thread of its own, and `meanwhile` in this one. All begin when all are ready. A panic of a thread is one of the
/// caller.
///
/// # Errors
///
/// If the system refuses a thread; then nothing of the work has begun.
pub(crate) fn together<R: Send>(
    work: Vec<impl FnOnce() -> R + Send>,
    meanwhile: impl FnOnce(),
) -> Result<Vec<R>> {
    in_threads(|_| Builder::new(), work, meanwhile)
}

fn in_threads<R: Send>(
    builder: impl Fn(usize) -> Builder,
    work: Vec<impl FnOnce() -> R + Send>,
    meanwhile: impl FnOnce(),
) -> Result<Vec<R>> {
    let (threads, gate) = (work.len(), &Gate::default());
    scope(|scope| {
        let mut running: Vec<ScopedJoinHandle<'_, Option<R>>> = Vec::new();
        for (number, work) in work.into_iter().enumerate() {
            let thread = move || gate.wait().then(work);
            match builder(number).spawn_scoped(scope, thread) {
                Ok(thread) => running.push(thread),
                Err(error) => {
                    gate.close();
                    let refused = format!("thread {} of {threads}", number + 1);
                    return Err(error).context(refused);
                }
            }
        }
        gate.open(threads);
        meanwhile();
        let mut done = Vec::new();
        for thread in running {
            match thread.join() {
                Ok(result) => done.extend(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(done)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_work_is_done_and_its_results_are_in_order() {
        let done = AtomicUsize::new(0);
        let work = |number: usize| {
            let done = &done;
            move || {
                done.fetch_add(1, Ordering::Relaxed);
                number
            }
        };
        let mut watched = false;
        let results = together((0..5).map(work).collect(), || watched = true).unwrap();
        assert_eq!(results, [0, 1, 2, 3, 4]);
        assert!(watched && done.into_inner() == 5);
    }

    #[test]
    fn a_thread_that_cannot_be_had_is_an_error_and_the_others_go_home() {
        let done = AtomicUsize::new(0);
        let work = |_| {
            || {
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        // No address space has room for the third stack.
        let builder = |number| match number {
            2 => Builder::new().stack_size(1 << 50),
            _ => Builder::new(),
        };
        let refused = in_threads(builder, (0..4).map(work).collect(), || unreachable!());
        let error = format!("{:#}", refused.unwrap_err());
        assert!(error.starts_with("thread 3 of 4: "), "{error}");
        assert_eq!(done.into_inner(), 0);
    }
}
