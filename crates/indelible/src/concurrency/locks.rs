//! Version locks: optimistic readers, exclusive writers.
//!
//! A version lock is one word. Bit 0 says that a writer holds it; the rest counts writers. A reader takes the version,
//! reads what the lock protects without writing anything shared, and asks afterwards whether the version is still the
//! same. If it is not, what was read may be torn, and the reader begins again. (Optimistic lock coupling, Leis et al.
//! 2016; it takes the place of the hardware transactions in the LB+-Tree paper, section 3.1.)
//!
//! The version has 63 bits, so it does not return to an old value while a reader sleeps.

use crate::concurrency::sync::atomic::{AtomicU64, Ordering, fence};
use crate::concurrency::sync::yield_now;
use crate::pmem::schedule::{self, point};

const LOCKED: u64 = 1;

/// The version of a lock at some moment, which a reader compares with the version after it has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// A version lock: bit 0 says that a writer holds it, the rest counts writers.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct VersionLock(AtomicU64);

impl VersionLock {
    #[cfg(all(test, loom))]
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The current version, waiting while a writer holds the lock.
    #[inline(always)]
    pub(crate) fn read(&self) -> Version {
        point();
        let word = self.0.load(Ordering::Acquire);
        if word & LOCKED == 0 {
            return Version(word);
        }
        self.read_slow()
    }

    /// The current version; `None` while a writer holds the lock.
    #[inline(always)]
    pub(crate) fn try_read(&self) -> Option<Version> {
        point();
        let word = self.0.load(Ordering::Acquire);
        (word & LOCKED == 0).then_some(Version(word))
    }

    #[cold]
    fn read_slow(&self) -> Version {
        let mut wait = Wait::default();
        loop {
            let word = self.0.load(Ordering::Acquire);
            if word & LOCKED == 0 {
                return Version(word);
            }
            wait.step();
        }
    }

    /// Whether no writer has held the lock since `version` was taken: what was read in between is whole.
    #[inline(always)]
    #[must_use]
    pub(crate) fn validate(&self, version: Version) -> bool {
        point();
        // The loads before must not sink below the check.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == version.0
    }

    /// Takes the lock if no writer has held it since `version`.
    #[inline(always)]
    #[must_use]
    pub(crate) fn try_lock_at(&self, version: Version) -> Option<WriteGuard<'_>> {
        point();
        self.0
            .compare_exchange(
                version.0,
                version.0 | LOCKED,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .ok()
            .map(|_| {
                // The stores that follow must not be seen before the lock bit.
                fence(Ordering::Release);
                WriteGuard { lock: self }
            })
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    #[must_use]
    pub(crate) fn try_lock(&self) -> Option<WriteGuard<'_>> {
        point();
        let word = self.0.load(Ordering::Relaxed);
        if word & LOCKED != 0 {
            None
        } else {
            self.try_lock_at(Version(word))
        }
    }

    /// Takes the lock, waiting for it.
    #[inline(always)]
    pub(crate) fn lock(&self) -> WriteGuard<'_> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_slow(),
        }
    }

    #[cold]
    fn lock_slow(&self) -> WriteGuard<'_> {
        let mut wait = Wait::default();
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            wait.step();
        }
    }
}

/// The right to write what a [`VersionLock`] protects. Dropping it moves the version on.
#[derive(Debug)]
pub(crate) struct WriteGuard<'a> {
    lock: &'a VersionLock,
}

impl WriteGuard<'_> {
    /// Whether this guard holds `lock`.
    pub(crate) fn holds(&self, lock: &VersionLock) -> bool {
        std::ptr::eq(self.lock, lock)
    }
}

impl Drop for WriteGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.lock.0.load(Ordering::Relaxed);
        // Adding one to a word whose lock bit is set clears the bit and carries into the version.
        self.lock.0.store(word + LOCKED, Ordering::Release);
    }
}

/// Waits for another thread: spins 63 times, then yields the core at each step, since the other thread may need it.
#[derive(Default)]
pub(crate) struct Wait {
    steps: u32,
}

impl Wait {
    pub(crate) fn step(&mut self) {
        self.steps = self.steps.saturating_add(1);
        if self.steps < 64 && !cfg!(loom) && !schedule::is_on() {
            crate::concurrency::sync::spin_loop();
        } else {
            yield_now();
            super::closures::after_step(self.steps);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    struct Pair {
        lock: VersionLock,
        a: AtomicU64,
        b: AtomicU64,
    }

    impl Pair {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                lock: VersionLock::new(),
                a: AtomicU64::new(0),
                b: AtomicU64::new(0),
            })
        }

        fn write(&self) {
            let _guard = self.lock.lock();
            let value = self.a.load(Ordering::Relaxed) + 1;
            self.a.store(value, Ordering::Relaxed);
            self.b.store(value, Ordering::Relaxed);
        }
    }

    #[test]
    fn loom_a_validated_reader_never_sees_half_a_write() {
        loom::model(|| {
            let pair = Pair::new();
            let writer = {
                let pair = pair.clone();
                loom::thread::spawn(move || pair.write())
            };
            let version = pair.lock.read();
            let (a, b) = (
                pair.a.load(Ordering::Relaxed),
                pair.b.load(Ordering::Relaxed),
            );
            if pair.lock.validate(version) {
                assert_eq!(a, b);
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn loom_writers_exclude_each_other_and_an_old_version_gives_no_lock() {
        loom::model(|| {
            let pair = Pair::new();
            let version = pair.lock.read();
            let writer = {
                let pair = pair.clone();
                loom::thread::spawn(move || pair.write())
            };
            pair.write();
            writer.join().unwrap();
            assert_eq!(pair.a.load(Ordering::Relaxed), 2);
            assert_eq!(pair.b.load(Ordering::Relaxed), 2);
            assert!(pair.lock.try_lock_at(version).is_none());
        });
    }

    /// How a node is copied while others write: it is frozen, then each of its locks is taken once. A writer looks
    /// at the state under its lock.
    struct Node {
        lock: VersionLock,
        is_frozen: AtomicU64,
        record: AtomicU64,
    }

    impl Node {
        fn write(&self) -> bool {
            let _guard = self.lock.lock();
            let is_live = self.is_frozen.load(Ordering::Acquire) == 0;
            if is_live {
                self.record.store(1, Ordering::Relaxed);
            }
            is_live
        }

        fn freeze(&self) -> bool {
            self.is_frozen
                .compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
        }
    }

    #[test]
    fn loom_a_frozen_node_loses_no_record_that_a_writer_believes_it_wrote() {
        loom::model(|| {
            let node = Arc::new(Node {
                lock: VersionLock::new(),
                is_frozen: AtomicU64::new(0),
                record: AtomicU64::new(0),
            });
            let writer = {
                let node = node.clone();
                loom::thread::spawn(move || node.write())
            };
            assert!(node.freeze());
            drop(node.lock.lock());
            let copied = node.record.load(Ordering::Relaxed);
            let was_written = writer.join().unwrap();
            assert_eq!(u64::from(was_written), copied);
        });
    }
}
