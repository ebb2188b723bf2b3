//! The recorder: every store, flush and fence, in the order in which it happened.
//!
//! Compiled only with the `trace` feature. Recording is process-wide and switched on and off with [`start`] and
//! [`stop`]; the crash checker replays what it gets. Recording takes a lock per event, so the order of events of
//! different threads is the order in which they were recorded.

use super::Cell;
use std::panic::Location;
use std::sync::Mutex;
use std::thread::ThreadId;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `value` was stored to the 8-byte word at `address`.
    Store {
        /// Address of the word in this process; subtract the pool's base to get its offset.
        address: usize,
        /// The new value.
        value: u64,
    },
    /// The lines from `address` on, `bytes` in all, were flushed.
    Flush {
        /// Address of the first line.
        address: usize,
        /// A multiple of 64.
        bytes: usize,
    },
    /// A store fence.
    Fence,
    /// A note of the caller's: the boundary of an operation, say.
    Mark(u64),
}

/// One recorded event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The thread that did it.
    pub thread: ThreadId,
    /// What it did.
    pub action: Action,
    /// The line of source that did it.
    pub source: &'static Location<'static>,
}

static RECORD: Mutex<Option<Vec<Event>>> = Mutex::new(None);

/// Starts a new recording, dropping any that was running.
pub fn start() {
    *lock() = Some(Vec::new());
}

/// Ends the recording and returns it; empty if none was running.
#[must_use]
pub fn stop() -> Vec<Event> {
    lock().take().unwrap_or_default()
}

/// Records a note of the caller's.
#[track_caller]
pub fn mark(note: u64) {
    push(Action::Mark(note));
}

#[track_caller]
pub(super) fn store(cell: &Cell, value: u64) {
    push(Action::Store {
        address: std::ptr::from_ref(cell) as usize,
        value,
    });
}

#[track_caller]
pub(super) fn flush(address: usize, bytes: usize) {
    push(Action::Flush { address, bytes });
}

#[track_caller]
pub(super) fn fence() {
    push(Action::Fence);
}

fn lock() -> std::sync::MutexGuard<'static, Option<Vec<Event>>> {
    RECORD
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[track_caller]
fn push(action: Action) {
    let source = Location::caller();
    if let Some(events) = lock().as_mut() {
        events.push(Event {
            thread: std::thread::current().id(),
            action,
            source,
        });
    }
}
