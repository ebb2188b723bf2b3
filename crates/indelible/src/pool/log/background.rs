//! The threads of a log: one keeps segments ready for records, another one applies records; in a pool with
//! [`Durability::Interval`](crate::Durability::Interval) another one syncs the log at intervals.

use super::Log;
use super::record::{SEGMENT_BYTES, SEGMENT_WORDS};
use crate::Result;
use crate::concurrency::sync::lock;
use crate::pool::system;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Segments that are kept prepared, so that no thread that appends has to wait for one.
pub(super) const PREPARED_SEGMENTS: usize = 2;

/// How full the log is, in percent, when operations begin to be delayed, so that the applier keeps up before it is full.
const THROTTLED_FROM_PERCENT: u64 = 88;

/// A log of which less than one part in this many is records is applied rather than made longer, where no segments are left that an earlier
/// session has made.
const LEAN_SHARE: usize = 4;

/// The longest delay of one operation, when the log is full.
const LONGEST_DELAY: Duration = Duration::from_millis(5);

/// The running threads of a log.
pub(crate) struct Threads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts them; `interval` is the time between two syncs, if nobody waits for them.
    pub(crate) fn start(log: &Arc<Log>, interval: Option<Duration>) -> Result<Self> {
        let mut this = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        this.tend(log, "indelible-segments", Log::tend_segments)?;
        this.tend(log, "indelible-applier", Log::tend_records)?;
        if let Some(interval) = interval {
            let (synced, stop) = (Arc::clone(log), Arc::clone(&this.stop));
            this.spawn("indelible-sync", move || {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::park_timeout(interval);
                    // An error makes every operation fail from here on.
                    let _ = synced.sync();
                }
            })?;
        }
        Ok(this)
    }

    /// Starts a thread that works for the log whenever a segment was begun, until there is no more work.
    fn tend(&mut self, log: &Arc<Log>, name: &str, work: fn(&Log) -> Result<bool>) -> Result<()> {
        let (stop, tended) = (Arc::clone(&self.stop), Arc::clone(log));
        self.spawn(name, move || {
            lock(&tended.tenders).push(std::thread::current());
            while !stop.load(Ordering::Relaxed) {
                // After a failure every operation returns the error; there is nothing left to do.
                if !work(&tended).unwrap_or(false) {
                    std::thread::park();
                }
            }
        })
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = system::spawn(name, work).map_err(|source| crate::Error::Io {
            action: "start a thread for the log of",
            path: "the pool".into(),
            source,
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Log {
    /// Prepares a segment, if need be, or gives one its footer; whether it did.
    pub(super) fn tend_segments(&self) -> Result<bool> {
        self.expect_sound()?;
        let is_needed = self.is_short() && !self.is_lean();
        Ok(is_needed && self.add_segment()? || self.write_footer()?)
    }

    /// Applies records, if need be; whether it did. It takes long, and segments are needed meanwhile, so another thread
    /// prepares those.
    pub(super) fn tend_records(&self) -> Result<bool> {
        self.expect_sound()?;
        let used = lock(&self.appender).used.len();
        let is_needed = used > self.device.most_segments() / 2 || self.is_short() && self.is_lean();
        if self.has_backlog() {
            let mut applier = lock(&self.applier);
            if !self.held.is_held() {
                self.apply_backlog(&mut applier)?;
            }
        }
        if is_needed {
            self.apply_all(&mut lock(&self.applier))?;
        }
        Ok(is_needed)
    }

    fn is_short(&self) -> bool {
        lock(&self.appender).prepared.len() < PREPARED_SEGMENTS
    }

    /// Whether the log is mostly padding, and would have to be made longer: then to apply it is cheaper. So it is where a single thread
    /// waits for each of its operations.
    fn is_lean(&self) -> bool {
        if self.held.is_held() {
            return false;
        }
        // In this order: what has been applied was appended before.
        let applied = self.applied_payload.load(Ordering::Acquire);
        let words = self.payload.load(Ordering::Relaxed).saturating_sub(applied);
        let appender = lock(&self.appender);
        let used = appender.used.len();
        let are_left = !appender.unprepared.is_empty();
        used > 1 && !are_left && words < (used * SEGMENT_WORDS / LEAN_SHARE) as u64
    }

    /// Bytes of log that are not applied, beyond which operations are delayed.
    pub(super) fn throttled_from(most_segments: usize) -> u64 {
        // Of the oldest segment a part may have been applied, which nobody can use yet. So the log may be full with one segment less.
        (most_segments as u64 - 1) * SEGMENT_BYTES * THROTTLED_FROM_PERCENT / 100
    }

    /// Delays an operation that has given its locks back, if the applier does not keep up.
    #[inline]
    pub(super) fn throttle(&self) {
        // In this order: others may append and apply between the two loads.
        let applied = self.applied();
        let used = self.appended().saturating_sub(applied);
        if used > self.throttled_from {
            self.delay(used);
        }
    }

    #[cold]
    fn delay(&self, used: u64) {
        let most = self.device.most_segments() as u64 * SEGMENT_BYTES;
        let share = (used - self.throttled_from) as f64 / (most - self.throttled_from) as f64;
        std::thread::sleep(LONGEST_DELAY.mul_f64(share.min(1.0)));
    }
}
