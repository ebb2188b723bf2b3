//! Group commit: one thread syncs the log for all that wait.
//!
//! A sync covers what has been appended when it begins; who appends while it runs needs the next one. So two *rounds* are of interest:
//! the one that runs, and the next. Each thread waits for the round that covers its position, and is woken once: at the end of that
//! round, or to lead the next one. Waiting takes no lock, or all who are woken at once would wait for it one after the other.
//!
//! A round and the next but one share a word. A thread of the first may be counted and fall asleep late, behind one of the other, and the kernel wakes those first that
//! fell asleep first. So the word changes under the lock, before anybody can wait for the other round, and at the end of a round all are woken.

use super::Log;
use crate::Result;
use crate::concurrency::sync::lock;
use rustix::thread::futex;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// All threads that sleep. The kernel takes the number as a signed one.
const ALL: u32 = i32::MAX as u32;

/// Where the threads wait that want to have the log synced.
#[derive(Default)]
pub(super) struct Group {
    state: Mutex<State>,
    /// A word for every other round. Threads sleep while it does not change.
    words: [AtomicU32; 2],
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// The number of the round that runs, or of the next one if none runs.
    round: usize,
    /// What the round that runs covers.
    covered: u64,
    /// Threads that have gone to sleep until the end of a round, for every other round.
    sleepers: [u32; 2],
}

impl Group {
    /// Lets all threads that wait for this round and have not fallen asleep yet go on. The state is locked.
    fn change(&self, round: usize) {
        self.words[round % 2].fetch_add(1, Ordering::Release);
    }

    /// Lets so many threads go on that sleep until this round's word changes, which it has.
    fn wake(&self, round: usize, sleepers: u32) {
        // An error would be one of the arguments.
        let _ = futex::wake(&self.words[round % 2], futex::Flags::PRIVATE, sleepers);
    }

    /// Sleeps until this round's word is not `seen` any more, or a wake-up. Returns early now and then.
    fn sleep(&self, round: usize, seen: u32) {
        let _ = futex::wait(&self.words[round % 2], futex::Flags::PRIVATE, seen, None);
    }

    /// Lets every thread look again whether the log has failed.
    pub(super) fn wake_all(&self) {
        let _state = lock(&self.state);
        for round in 0..2 {
            self.change(round);
            self.wake(round, ALL);
        }
    }
}

impl Log {
    /// Waits until the log is on the disk up to `position`.
    pub(crate) fn wait_for(&self, position: u64) -> Result<()> {
        let group = &self.group;
        loop {
            if self.durable() >= position {
                return Ok(());
            }
            let mut state = lock(&group.state);
            // A round ends, and the log fails, before the lock that this thread has now.
            if self.durable() >= position {
                return Ok(());
            }
            self.expect_sound()?;
            if !state.is_running {
                state.is_running = true;
                let end = self.pad();
                state.covered = end;
                drop(state);
                self.lead(end)?;
                continue;
            }
            let round = state.round + usize::from(position > state.covered);
            state.sleepers[round % 2] += 1;
            let seen = group.words[round % 2].load(Ordering::Relaxed);
            drop(state);
            group.sleep(round, seen);
        }
    }

    /// Syncs the log up to `end`, for all that wait for it.
    fn lead(&self, end: u64) -> Result<()> {
        let result = self.sync_until(end);
        let group = &self.group;
        let mut state = lock(&group.state);
        let (round, next) = (state.round, state.round + 1);
        let waiting = std::mem::take(&mut state.sleepers[round % 2]);
        let are_next = state.sleepers[next % 2] > 0;
        state.is_running = false;
        state.round = next;
        group.change(round);
        if are_next {
            group.change(next);
        }
        drop(state);
        // The next leader first, so that the disk has something to do.
        if are_next {
            group.wake(next, 1);
        }
        if waiting > 0 {
            group.wake(round, ALL);
        }
        result
    }
}
