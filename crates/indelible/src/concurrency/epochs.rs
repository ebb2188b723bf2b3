//! Epochs: when may a block that has become unreachable be reused?
//!
//! A reader *pins* its thread before it reads anything and unpins it afterwards. A thread that unlinks a block takes a
//! [`Stamp`]. When every thread that was pinned at that moment has unpinned, the stamp has *passed*, and the block may be
//! reused.
//!
//! Every lookup pins. With a full fence in the pin the processor could not overlap neighbouring lookups, and overlapping them
//! saves more than a lookup costs. So a pin is one plain store, and the thread that frees blocks, which happens seldom, pays:
//! before it reads the pins, it makes the kernel run a barrier on every core of the process (Linux `membarrier`). Where the
//! kernel has no such barrier, or has not granted it yet, a pin has a fence. crossbeam-epoch and seize issue a locked
//! instruction per pin or unpin; this is why they are not used here.

#![cfg_attr(loom, allow(dead_code, reason = "loom runs the clock alone"))]

use crate::concurrency::sync::atomic::{AtomicU64, Ordering, fence};

/// One thread's pin. A cache line each.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Pin {
    /// 0, or the epoch in which the thread pinned.
    epoch: AtomicU64,
    /// How many guards the thread has. Nobody else reads it: it lies here so that a guard has one address.
    depth: std::sync::atomic::AtomicU32,
    /// How often the thread has asked whether an operation is one of a sample.
    asked: std::sync::atomic::AtomicU32,
}

impl Pin {
    /// Whether this is one in so many calls by this thread: a power of two.
    #[inline(always)]
    fn is_one_in(&self, many: u32) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let asked = self.asked.load(Relaxed).wrapping_add(1);
        self.asked.store(asked, Relaxed);
        asked & (many - 1) == 0
    }

    /// What the last call of [`is_one_in`](Self::is_one_in) by this thread has said.
    fn was_one_in(&self, many: u32) -> bool {
        let asked = self.asked.load(std::sync::atomic::Ordering::Relaxed);
        asked & (many - 1) == 0
    }

    #[inline(always)]
    fn depth(&self) -> u32 {
        self.depth.load(std::sync::atomic::Ordering::Relaxed)
    }

    #[inline(always)]
    fn set_depth(&self, depth: u32) {
        self.depth
            .store(depth, std::sync::atomic::Ordering::Relaxed);
    }
}

/// The moment at which something was unlinked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(u64);

/// The clock that stamps and pins are read from.
#[derive(Debug)]
struct Clock(AtomicU64);

impl Clock {
    /// Pins: what is read afterwards is protected, provided that `has_passed` uses the kernel's barrier, or that `fences` is set.
    #[inline(always)]
    fn enter(&self, pin: &Pin, fences: bool) {
        // Acquire: a thread that reads an epoch later than a stamp also sees what was unlinked before the stamp.
        pin.epoch
            .store(self.0.load(Ordering::Acquire), Ordering::Relaxed);
        if fences {
            fence(Ordering::SeqCst);
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
    }

    /// Unpins: all reads before are done.
    #[inline(always)]
    fn leave(pin: &Pin) {
        pin.epoch.store(0, Ordering::Release);
    }

    /// A stamp for what the caller has just unlinked.
    fn stamp(&self) -> Stamp {
        Stamp(self.0.fetch_add(1, Ordering::SeqCst))
    }

    /// The epoch in which a thread pinned, if it is pinned.
    fn pinned(pin: &Pin) -> Option<u64> {
        match pin.epoch.load(Ordering::Acquire) {
            0 => None,
            epoch => Some(epoch),
        }
    }

    /// Whether `pin`, read after the kernel's barrier or a fence, does not protect what was unlinked before `stamp`.
    fn is_past(pin: &Pin, stamp: Stamp) -> bool {
        Self::pinned(pin).is_none_or(|epoch| epoch > stamp.0)
    }
}

#[cfg(not(loom))]
mod global;

#[cfg(not(loom))]
pub(crate) use global::{BriefGuard, has_passed, pin, retire, stamp, synchronize, try_pin};

/// The model checker runs the clock alone (below), not the whole library.
#[cfg(loom)]
mod global {
    use super::Stamp;

    pub(crate) struct Guard;

    pub(crate) struct BriefGuard;

    impl Guard {
        pub(crate) fn is_one_in(&self, _: u32) -> bool {
            false
        }

        pub(crate) fn was_one_in(&self, _: u32) -> bool {
            false
        }
    }

    impl BriefGuard {
        pub(crate) fn is_one_in(&self, _: u32) -> bool {
            false
        }
    }

    // As the real ones: what drops one before its end means something by that.
    impl Drop for Guard {
        fn drop(&mut self) {}
    }

    impl Drop for BriefGuard {
        fn drop(&mut self) {}
    }

    pub(crate) fn pin() -> Guard {
        Guard
    }

    pub(crate) fn try_pin() -> Option<BriefGuard> {
        None
    }

    pub(crate) fn stamp() -> Stamp {
        Stamp(0)
    }

    pub(crate) fn has_passed(_: Stamp) -> bool {
        true
    }

    pub(crate) unsafe fn retire(_: u64, _: unsafe fn(u64)) {}

    pub(crate) fn synchronize() -> Option<Stamp> {
        Some(Stamp(0))
    }
}

#[cfg(loom)]
pub(crate) use global::{BriefGuard, has_passed, pin, retire, stamp, synchronize, try_pin};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_does_not_pass_while_an_older_pin_lives_on_another_thread() {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (finish, may_finish) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let outer = pin();
            let inner = pin();
            drop(outer);
            ready.send(()).unwrap();
            may_finish.recv().unwrap();
            drop(inner);
        });
        is_ready.recv().unwrap();
        let stamp = stamp();
        assert!(!has_passed(stamp));
        finish.send(()).unwrap();
        thread.join().unwrap();
        while !has_passed(stamp) {
            // Other tests may be pinned for a moment.
            std::thread::yield_now();
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// A block is unlinked, stamped, and overwritten once the stamp has passed: no reader that found it sees that.
    #[test]
    fn loom_a_block_is_not_reused_while_a_reader_can_hold_it() {
        loom::model(|| {
            let clock = Arc::new(Clock(AtomicU64::new(1)));
            let pin = Arc::new(Pin::default());
            let link = Arc::new(AtomicU64::new(1));
            let block = Arc::new(AtomicU64::new(7));
            let reader = {
                let (clock, pin, link, block) =
                    (clock.clone(), pin.clone(), link.clone(), block.clone());
                loom::thread::spawn(move || {
                    clock.enter(&pin, true);
                    if link.load(Ordering::Acquire) == 1 {
                        assert_eq!(
                            block.load(Ordering::Acquire),
                            7,
                            "the block was reused under a reader"
                        );
                    }
                    Clock::leave(&pin);
                })
            };
            link.store(0, Ordering::SeqCst);
            let stamp = clock.stamp();
            fence(Ordering::SeqCst);
            if Clock::is_past(&pin, stamp) {
                block.store(0, Ordering::Release);
            }
            reader.join().unwrap();
        });
    }
}
