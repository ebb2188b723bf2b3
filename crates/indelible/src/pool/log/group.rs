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

/// What a group syncs.
pub(super) trait Synced {
    /// Up to where it is on the disk.
    fn durable(&self) -> u64;

    /// An error if it has failed.
    fn expect_sound(&self) -> Result<()>;

    /// Where the round ends that begins now.
    fn end_of_round(&self) -> u64;

    /// Brings it to the disk up to there. One thread at a time.
    fn sync_until(&self, end: u64) -> Result<()>;

    /// A thread that has been counted is about to fall asleep. For tests.
    fn before_sleep(&self) {}

    /// The leader of the next round has been woken, and those who wait for this one have not. For tests.
    fn before_last_wake(&self) {}
}

impl Group {
    /// Waits until the log is on the disk up to `position`.
    pub(super) fn wait_for(&self, log: &impl Synced, position: u64) -> Result<()> {
        loop {
            if log.durable() >= position {
                return Ok(());
            }
            let mut state = lock(&self.state);
            // A round ends, and the log fails, before the lock that this thread has now.
            if log.durable() >= position {
                return Ok(());
            }
            log.expect_sound()?;
            if !state.is_running {
                state.is_running = true;
                let end = log.end_of_round();
                state.covered = end;
                drop(state);
                self.lead(log, end)?;
                continue;
            }
            let round = state.round + usize::from(position > state.covered);
            state.sleepers[round % 2] += 1;
            let seen = self.words[round % 2].load(Ordering::Relaxed);
            drop(state);
            log.before_sleep();
            self.sleep(round, seen);
        }
    }

    /// Syncs the log up to `end`, for all that wait for it.
    fn lead(&self, log: &impl Synced, end: u64) -> Result<()> {
        let result = log.sync_until(end);
        let mut state = lock(&self.state);
        let (round, next) = (state.round, state.round + 1);
        let waiting = std::mem::take(&mut state.sleepers[round % 2]);
        let are_next = state.sleepers[next % 2] > 0;
        state.is_running = false;
        state.round = next;
        self.change(round);
        if are_next {
            self.change(next);
        }
        drop(state);
        // The next leader first, so that the disk has something to do.
        if are_next {
            self.wake(next, 1);
        }
        log.before_last_wake();
        if waiting > 0 {
            self.wake(round, ALL);
        }
        result
    }
}

impl Log {
    /// Waits until the log is on the disk up to `position`.
    pub(crate) fn wait_for(&self, position: u64) -> Result<()> {
        self.group.wait_for(self, position)
    }
}

impl Synced for Log {
    fn durable(&self) -> u64 {
        self.progress.durable()
    }

    fn expect_sound(&self) -> Result<()> {
        Log::expect_sound(self)
    }

    fn end_of_round(&self) -> u64 {
        self.pad()
    }

    fn sync_until(&self, end: u64) -> Result<()> {
        Log::sync_until(self, end)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// A log whose threads, by their names, take their time.
    #[derive(Default)]
    struct Slow {
        group: Group,
        appended: AtomicU64,
        durable: AtomicU64,
    }

    fn pause(who: &str, millis: u64) {
        if std::thread::current().name() == Some(who) {
            std::thread::sleep(Duration::from_millis(millis));
        }
    }

    impl Synced for Slow {
        fn durable(&self) -> u64 {
            self.durable.load(Ordering::SeqCst)
        }

        fn expect_sound(&self) -> Result<()> {
            Ok(())
        }

        fn end_of_round(&self) -> u64 {
            self.appended.load(Ordering::SeqCst)
        }

        fn sync_until(&self, end: u64) -> Result<()> {
            pause("leader", 100);
            pause("next leader", 300);
            self.durable.fetch_max(end, Ordering::SeqCst);
            Ok(())
        }

        fn before_sleep(&self) {
            pause("late", 180);
        }

        fn before_last_wake(&self) {
            pause("leader", 150);
        }
    }

    /// A thread of a round falls asleep late, behind one of the next round but one, which shares its word. Once, the wake-ups were given to each other's threads:
    /// the last one was woken too early, the late one in its place, and the last one never again.
    #[test]
    fn a_thread_that_falls_asleep_late_takes_no_wake_up_of_another_one() {
        let (log, (ended, has_ended)) = (Arc::<Slow>::default(), channel());
        let start = |who: &'static str, position: u64| {
            log.appended.fetch_max(position, Ordering::SeqCst);
            let (log, ended) = (Arc::clone(&log), ended.clone());
            let work = move || {
                log.group.wait_for(&*log, position).unwrap();
                ended.send(who).unwrap();
            };
            let thread = std::thread::Builder::new().name(who.into());
            thread.spawn(work).unwrap();
        };
        let wait = |millis| std::thread::sleep(Duration::from_millis(millis));
        log.appended.store(2, Ordering::SeqCst);
        start("leader", 1);
        wait(20);
        start("late", 2);
        wait(20);
        start("next leader", 3);
        wait(110);
        start("last", 4);
        for _ in 0..4 {
            has_ended
                .recv_timeout(Duration::from_secs(20))
                .expect("a thread sleeps and nobody wakes it");
        }
    }
}
