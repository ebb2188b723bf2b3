//! The recorder: every store, flush and fence, in the order in which it happened.
//!
//! Compiled only with the `trace` feature. Each thread of the system records for itself, between [`start`] and [`stop`];
//! the crash checker replays what it gets. Threads that a [scheduler](super::schedule) runs share a recording, in which
//! each event names its thread.

use super::journal::MOST_WORDS;
use super::schedule;
use super::{Cell as Word, Medium};
use std::cell::{Cell, RefCell};
use std::panic::Location;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `value` was stored to the 8-byte word at `address`.
    Store {
        /// Address of the word in this process; subtract the base of the memory to get its offset.
        address: usize,
        /// The new value.
        value: u64,
        /// The value before.
        before: u64,
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
    /// On a disk: what this thread had stored since its last batch was appended to the log as the batch of this number.
    Appended(u64),
    /// On a disk: the batches up to this number are durable.
    Durable(u64),
    /// On persistent memory: the file was synced, so that all that was stored so far is durable, by whomever.
    Synced,
    /// A note of the caller's: what is in the memory has been read, and may not be taken back any more.
    Looked,
    /// The memory's length changed, durably. What was cut off is gone; what was added is zero.
    Length {
        /// Bytes before.
        from: u64,
        /// Bytes now.
        to: u64,
    },
    /// A change of structure is being made.
    Note {
        /// Its name.
        change: &'static str,
        /// Tells its variants apart.
        variant: u64,
    },
    /// A note of the caller's: the boundary of an operation, say.
    Mark(u64),
}

/// One recorded event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Number of the thread that did it, from the scheduler; 0 without one.
    pub thread: usize,
    /// What it did.
    pub action: Action,
    /// The stable name under which it was written (see [`Pm::named`](super::Pm::named)), or nothing.
    pub name: &'static str,
    /// The line of source that did it.
    pub source: &'static Location<'static>,
}

thread_local! {
    static RECORD: RefCell<Option<Vec<Event>>> = const { RefCell::new(None) };
    /// Batches that were appended to the log of a disk on this thread of the system, ever.
    static APPENDED: Cell<u64> = const { Cell::new(0) };
    /// Words that each thread of the scheduler has stored since its last batch was appended.
    static STORED: RefCell<[usize; schedule::MOST_THREADS]> = const { RefCell::new([0; schedule::MOST_THREADS]) };
    /// The number of the last one of each thread of the scheduler.
    static LAST_APPENDED: RefCell<[u64; schedule::MOST_THREADS]> = const { RefCell::new([0; schedule::MOST_THREADS]) };
}

/// Starts a new recording on this thread of the system, dropping any that was running. `events` is used for it, emptied.
pub fn start(mut events: Vec<Event>) {
    events.clear();
    RECORD.set(Some(events));
    STORED.set([0; schedule::MOST_THREADS]);
}

/// Ends the recording and returns it; empty if none was running.
#[must_use]
pub fn stop() -> Vec<Event> {
    RECORD.take().unwrap_or_default()
}

/// Records a note of the caller's.
#[track_caller]
pub fn mark(note: u64) {
    push(Action::Mark(note));
}

/// The name that a `Pm` gives to what it writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Name(&'static str);

impl Name {
    #[inline(always)]
    pub(super) fn new(name: &'static str) -> Self {
        Self(name)
    }
}

/// Records that a change of structure is being made.
#[track_caller]
pub(super) fn note(change: &'static str, variant: u64) {
    push(Action::Note { change, variant });
}

#[track_caller]
pub(super) fn store(cell: &Word, value: u64, name: Name, medium: Medium) {
    if medium == Medium::Disk {
        // As the journal does with a batch that is full.
        if STORED.with_borrow(|stored| stored[schedule::thread()] >= MOST_WORDS) {
            append();
        }
        STORED.with_borrow_mut(|stored| stored[schedule::thread()] += 1);
    }
    let action = Action::Store {
        address: std::ptr::from_ref(cell) as usize,
        value,
        before: cell.load(),
    };
    push_named(action, name);
}

/// Stores one word, through the caches: the memory of the crash checker is read again at once, and waiting for its lines took a tenth of a search.
pub(super) fn stream(cell: &Word, value: u64) {
    cell.set_relaxed(value);
}

#[track_caller]
pub(super) fn flush(address: usize, bytes: usize, name: Name) {
    push_named(Action::Flush { address, bytes }, name);
}

#[track_caller]
pub(super) fn fence(name: Name, medium: Medium) {
    push_named(Action::Fence, name);
    if medium == Medium::Disk {
        append();
    }
}

/// Records that a batch of the current thread is appended, at its fence or before.
#[track_caller]
pub(super) fn append() {
    let thread = schedule::thread();
    STORED.with_borrow_mut(|stored| stored[thread] = 0);
    APPENDED.set(APPENDED.get() + 1);
    LAST_APPENDED.with_borrow_mut(|last| last[thread] = APPENDED.get());
    push(Action::Appended(APPENDED.get()));
}

/// Whether the number of events so far is odd: decides between two orders that are both possible.
pub(super) fn is_at_odd_event() -> bool {
    RECORD.with_borrow(|record| record.as_ref().is_some_and(|events| events.len() % 2 == 1))
}

/// The number of the last batch that a thread of this recording has appended.
pub(crate) fn appended() -> u64 {
    APPENDED.get()
}

/// The number of the last batch that the current thread has appended since the last call; 0 if it has appended none.
pub(crate) fn take_appended() -> u64 {
    LAST_APPENDED.with_borrow_mut(|last| std::mem::take(&mut last[schedule::thread()]))
}

/// Records that the batches up to this number are durable.
#[track_caller]
pub(crate) fn durable(number: u64) {
    push(Action::Durable(number));
}

/// Records a note of the caller's: what is in the memory has been read.
#[track_caller]
pub fn looked() {
    push(Action::Looked);
}

/// Records that all that was stored so far is durable.
#[track_caller]
pub(super) fn synced() {
    push(Action::Synced);
}

#[track_caller]
pub(super) fn length(from: u64, to: u64) {
    push(Action::Length { from, to });
}

#[track_caller]
fn push(action: Action) {
    push_named(action, Name::default());
}

#[track_caller]
fn push_named(action: Action, name: Name) {
    let source = Location::caller();
    RECORD.with_borrow_mut(|record| {
        if let Some(events) = record {
            let thread = schedule::thread();
            events.push(Event {
                thread,
                action,
                name: name.0,
                source,
            });
        }
    });
}
