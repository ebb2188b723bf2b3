//! Group commit: one thread syncs the log for all that wait.
//!
//! A sync covers what has been appended when it begins; who appends while it runs needs the next one. So two *rounds* are of interest:
//! the one that runs, and the next. Each thread waits for the round that covers its position, and is woken once: at the end of that
//! round, or to lead the next one. Waiting takes no lock, or all who are woken at once would wait for it one after the other.

use super::Log;
use crate::Result;
use crate::concurrency::sync::lock;
use rustix::thread::futex;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

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
    /// Lets `sleepers` threads that wait for this round go on, and all that have not fallen asleep yet.
    fn wake(&self, round: usize, sleepers: u32) {
        let word = &self.words[round % 2];
        word.fetch_add(1, Ordering::Release);
        if sleepers > 0 {
            // An error would be one of the arguments. Nothing is lost without it but time: see `sleep`.
            let _ = futex::wake(word, futex::Flags::PRIVATE, sleepers);
        }
    }

    /// Sleeps until this round's word is not `seen` any more, or a wake-up. Returns early now and then.
    fn sleep(&self, round: usize, seen: u32) {
        let _ = futex::wait(&self.words[round % 2], futex::Flags::PRIVATE, seen, None);
    }

    /// Lets every thread look again whether the log has failed.
    pub(super) fn wake_all(&self) {
        let _state = lock(&self.state);
        for round in 0..2 {
            // The kernel takes the number as a signed one.
            self.wake(round, i32::MAX as u32);
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
        let leaders = state.sleepers[next % 2].min(1);
        state.is_running = false;
        state.round = next;
        drop(state);
        // The next leader first, so that the disk has something to do.
        if leaders > 0 {
            group.wake(next, leaders);
        }
        group.wake(round, waiting);
        result
    }
}
