//! The threads of a log: one keeps segments ready for records, and applies records; in a pool with
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
const THROTTLED_FROM_PERCENT: u64 = 70;

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
        let stop = Arc::clone(&this.stop);
        let tended = Arc::clone(log);
        this.spawn("indelible-applier", move || {
            let _ = tended.tender.set(std::thread::current());
            while !stop.load(Ordering::Relaxed) {
                // After a failure every operation returns the error; there is nothing left to do.
                if !tended.tend().unwrap_or(false) {
                    std::thread::park();
                }
            }
        })?;
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
    /// Prepares a segment or applies records, if need be; whether it was.
    pub(super) fn tend(&self) -> Result<bool> {
        self.expect_sound()?;
        let applier = &mut *lock(&self.applier);
        let (prepared, used, are_left) = {
            let appender = lock(&self.appender);
            let are_left = !appender.unprepared.is_empty();
            (appender.prepared.len(), appender.used.len(), are_left)
        };
        let most = self.device.most_segments();
        let is_short = prepared < PREPARED_SEGMENTS;
        let is_lean = used > 1 && is_short && !are_left && self.is_lean(used);
        if is_short && !is_lean && self.add_segment()? {
            return Ok(true);
        }
        if is_lean || used > most / 2 {
            self.apply_all(applier)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether the log is mostly padding: then to apply it is cheaper than to make it longer. So it is where a single thread waits
    /// for each of its operations.
    fn is_lean(&self, used_segments: usize) -> bool {
        let words =
            self.payload.load(Ordering::Relaxed) - self.applied_payload.load(Ordering::Relaxed);
        words < (used_segments * SEGMENT_WORDS / LEAN_SHARE) as u64
    }

    /// Bytes of log that are not applied, beyond which operations are delayed.
    pub(super) fn throttled_from(most_segments: usize) -> u64 {
        most_segments as u64 * SEGMENT_BYTES * THROTTLED_FROM_PERCENT / 100
    }

    /// Delays an operation that has given its locks back, if the applier does not keep up.
    #[inline]
    pub(super) fn throttle(&self) {
        let used = self.appended() - self.applied();
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
