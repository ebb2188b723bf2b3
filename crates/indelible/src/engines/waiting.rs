//! Operations that wait for a part of a chain to be indexed, and the sweep, which keeps out of their way.

use crate::concurrency::sync::nap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long the sweep sleeps while an operation is indexing a range: about as long as indexing one range takes.
const SWEEP_PAUSE: Duration = Duration::from_micros(50);

/// The number of operations of a tree that wait for a range to be indexed. While there are any, the sweep sleeps.
#[derive(Default)]
pub(crate) struct WaitingOperations(AtomicU32);

impl WaitingOperations {
    /// Counts an operation until the result is dropped.
    pub(crate) fn enter(&self) -> WaitingOperation<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        WaitingOperation(self)
    }

    /// Sleeps while there are any. Only the sweep calls this: mutexes are not fair, and the sweep, which indexes without a pause, would
    /// keep the operation out. To yield would not be enough: on the same core a thread that yields soon runs again, and may hold the
    /// mutex when its time slice ends.
    pub(crate) fn wait_for_none(&self) {
        while self.0.load(Ordering::Relaxed) > 0 {
            nap(SWEEP_PAUSE);
        }
    }
}

/// One operation that waits.
pub(crate) struct WaitingOperation<'a>(&'a WaitingOperations);

impl Drop for WaitingOperation<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
