//! Closures that users pass to decide about a record, which run while their thread holds the lock of the record.
//!
//! Such a closure must not use its own pool, since it may have to wait for a lock that its own thread holds, for ever. Locks are shared by many records,
//! so that this can happen with any other record, but rarely: a test of the user's program does not find it. So an operation that has waited for long
//! within such a closure panics, and says why.

use crate::pmem::schedule;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long an operation within a closure waits before it takes its own thread for the one that it waits for. No lock is held for so long but by a closure.
const LONGEST_WAIT: Duration = if cfg!(test) {
    Duration::from_millis(300)
} else {
    Duration::from_secs(5)
};

/// What of the time between two looks at the clock counts, at most. If it was more, the process was stopped meanwhile, by a signal or a debugger, and with it the
/// thread that it waits for.
const LONGEST_STRETCH: Duration = Duration::from_millis(LONGEST_WAIT.as_millis() as u64 / 10);

/// Steps of waiting between two looks at the clock.
const STEPS_BETWEEN_LOOKS: u32 = 1024;

thread_local! {
    /// The closures that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Of the wait that this thread is in, if it is within a closure: the last look at the clock, and how long it has been waiting then.
    static WAITED: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// Runs a user's closure that decides about a record.
#[inline]
pub(crate) fn deciding<T>(closure: impl FnOnce() -> T) -> T {
    /// Leaves the closure, also if it panics.
    struct Within;

    impl Drop for Within {
        #[inline]
        fn drop(&mut self) {
            DEPTH.set(DEPTH.get() - 1);
        }
    }

    DEPTH.set(DEPTH.get() + 1);
    let _within = Within;
    closure()
}

/// Called after each step of a wait in which the processor has been given up.
///
/// # Panics
///
/// If this thread is within a closure that decides about a record, and the wait has been going on for [`LONGEST_WAIT`].
pub(super) fn after_step(steps: u32) {
    // Where a scheduler runs several threads on one thread of the system, they share the depth.
    if steps.is_multiple_of(STEPS_BETWEEN_LOOKS) && DEPTH.get() > 0 && !schedule::is_on() {
        look_at_clock(steps == STEPS_BETWEEN_LOOKS);
    }
}

#[cold]
fn look_at_clock(is_first: bool) {
    let now = Instant::now();
    let before = WAITED.get().filter(|_| !is_first);
    let waited = before.map_or(Duration::ZERO, |(last, waited)| {
        waited + now.duration_since(last).min(LONGEST_STRETCH)
    });
    WAITED.set(Some((now, waited)));
    assert!(
        waited < LONGEST_WAIT,
        "a closure that decides about a record, such as that of `update_with`, has used the pool, and has waited for {LONGEST_WAIT:?}, most likely for a \
         lock that its own thread holds"
    );
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Kind, Pool};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// What a test does instead of stopping the process: this thread has not looked at the clock for so long.
    fn stop_for(stopped: Duration) {
        WAITED.set(WAITED.get().map(|(last, waited)| (last - stopped, waited)));
    }

    /// What a panic said.
    fn panic_of(closure: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(closure)).expect_err("it did not panic");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    fn is_told(said: &str) {
        assert!(said.contains("lock that its own thread holds"), "{said}");
    }

    #[test]
    fn a_closure_that_waits_for_its_own_thread_panics() {
        let pool = Pool::in_memory().unwrap();
        for kind in [Kind::LbTree, Kind::Apex] {
            let map = pool.map_with::<u64, u64>(kind.name(), kind).unwrap();
            map.insert(1, 10).unwrap();
            is_told(&panic_of(|| {
                let _ = map.update_with(1, |_| map.get(1).unwrap());
            }));
            is_told(&panic_of(|| {
                let _ = map.update_with(1, |_| map.insert(1, 20).unwrap());
            }));
            // Nothing was changed, and the lock is free.
            assert_eq!(
                map.update_with(1, |now| now.map(|now| now + 1)).unwrap(),
                Some(10)
            );
            assert_eq!(map.get(1).unwrap(), Some(11));
        }
    }

    #[test]
    fn a_process_that_was_stopped_has_not_waited() {
        deciding(|| {
            after_step(STEPS_BETWEEN_LOOKS);
            for look in 2..6 {
                stop_for(10 * LONGEST_WAIT);
                after_step(look * STEPS_BETWEEN_LOOKS);
            }
        });
    }

    #[test]
    fn a_closure_of_a_map_of_byte_strings_that_waits_for_its_own_thread_panics() {
        let map = Pool::in_memory().unwrap().bytes("m").unwrap();
        map.insert("key", "value").unwrap();
        is_told(&panic_of(|| {
            let _ = map.update_with("key", |_| map.get("key").unwrap());
        }));
        is_told(&panic_of(|| {
            let _ = map.update_with("key", |_| {
                map.insert("key", "other").unwrap();
                None
            });
        }));
        assert_eq!(map.take("key").unwrap(), Some(b"value".to_vec()));
    }
}
