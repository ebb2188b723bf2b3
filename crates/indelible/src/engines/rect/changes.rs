//! Changes that a search over many leaves must not see half of: relocations from leaf to leaf, and changes of structure.
//!
//! Two counters, of changes begun and of changes finished, as in a sequence lock with many writers. A search that began while none was under way,
//! and ended before the next one began, has seen none half. Others begin again; one that has failed a few times keeps new changes
//! from beginning until it is done.

use crate::Result;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Searches that fail so often keep changes from beginning.
pub(in crate::engines) const MOST_FAILURES: u32 = 3;

/// Steps that a search waits for a moment without a change: some microseconds, and then so often the time of others.
const MOST_STEPS: u32 = 128;

/// The changes of one kind.
#[derive(Default)]
pub(in crate::engines) struct Changes {
    begun: AtomicU64,
    finished: AtomicU64,
    /// Searches that keep changes from beginning.
    paused_by: AtomicU32,
}

/// The number of changes at a moment when none was under way.
#[derive(Clone, Copy)]
pub(in crate::engines) struct Seen(u64);

/// A change under way.
pub(in crate::engines) struct Change<'a>(&'a Changes);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, Ordering::Release);
    }
}

/// Keeps changes from beginning.
pub(in crate::engines) struct Pause<'a>(&'a Changes);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.paused_by.fetch_sub(1, Ordering::Release);
    }
}

impl Changes {
    /// Begins a change, unless a search keeps changes from beginning.
    pub(in crate::engines) fn try_begin(&self) -> Option<Change<'_>> {
        if self.paused_by.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // Sequentially consistent, as in `pause`: of a change that begins and a search that pauses one sees the other.
        self.begun.fetch_add(1, Ordering::SeqCst);
        let change = Change(self);
        (self.paused_by.load(Ordering::SeqCst) == 0).then_some(change)
    }

    /// Begins a change also if a search keeps changes from beginning: that search begins again.
    pub(in crate::engines) fn begin(&self) -> Change<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Change(self)
    }

    /// Waits until changes may begin. The caller holds no lock.
    pub(in crate::engines) fn wait_for_searches(&self) {
        let mut wait = Wait::default();
        while self.paused_by.load(Ordering::SeqCst) != 0 {
            wait.step();
        }
    }

    /// Repeats `attempt` until no change has begun meanwhile. The caller holds no lock.
    pub(in crate::engines) fn undisturbed<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        for _ in 0..MOST_FAILURES {
            let Some(seen) = self.read() else { break };
            let result = attempt()?;
            if self.are_none_since(seen) {
                return Ok(result);
            }
        }
        let _pause = self.pause();
        attempt()
    }

    /// The number of changes, at a moment when none is under way. Waits for that, but not for long: where many threads make changes one is nearly always
    /// under way, and the search has to keep new ones from beginning.
    pub(in crate::engines) fn read(&self) -> Option<Seen> {
        let mut wait = Wait::default();
        for _ in 0..MOST_STEPS {
            let finished = self.finished.load(Ordering::Acquire);
            if self.begun.load(Ordering::Acquire) == finished {
                return Some(Seen(finished));
            }
            wait.step();
        }
        None
    }

    /// Whether no change has begun since.
    pub(in crate::engines) fn are_none_since(&self, seen: Seen) -> bool {
        crate::concurrency::sync::atomic::fence(Ordering::Acquire);
        self.begun.load(Ordering::Relaxed) == seen.0
    }

    /// [Pauses](Self::pause) for a search that has begun again so often that it might never end, if it has not done so before.
    pub(in crate::engines) fn pause_after<'a>(
        &'a self,
        restarts: u32,
        pause: &mut Option<Pause<'a>>,
    ) {
        if restarts >= MOST_FAILURES && pause.is_none() {
            *pause = Some(self.pause());
        }
    }

    /// Keeps changes from beginning, and waits for those under way. The caller holds no lock.
    pub(in crate::engines) fn pause(&self) -> Pause<'_> {
        self.paused_by.fetch_add(1, Ordering::SeqCst);
        let pause = Pause(self);
        let mut wait = Wait::default();
        loop {
            // In this order: a change may begin and end between the two loads.
            let finished = self.finished.load(Ordering::SeqCst);
            if self.begun.load(Ordering::SeqCst) == finished {
                return pause;
            }
            wait.step();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_search_does_not_wait_long_for_changes_that_never_end() {
        let changes = Changes::default();
        let mut under_way = changes.try_begin();
        assert!(under_way.is_some() && changes.read().is_none());
        for _ in 0..3 {
            under_way = changes.try_begin();
            assert!(under_way.is_some() && changes.read().is_none());
        }
        drop(under_way);
        assert!(changes.read().is_some());
    }
}
