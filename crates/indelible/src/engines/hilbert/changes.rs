//! Changes that a search over many leaves must not see half of: relocations from leaf to leaf, and changes of structure.
//!
//! Two counters, of changes begun and of changes finished, as in a sequence lock with many writers. A search that began while none was under way,
//! and ended before the next one began, has seen none half. Others begin again; one that has failed a few times keeps new changes
//! from beginning until it is done.

use super::inner::Key;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::concurrency::sync::lock;
use std::sync::Mutex;

/// Searches that fail so often keep changes from beginning.
pub(super) const MOST_FAILURES: u32 = 3;

/// The changes of one kind.
#[derive(Default)]
pub(super) struct Changes {
    begun: AtomicU64,
    finished: AtomicU64,
    /// Searches that keep changes from beginning.
    paused_by: AtomicU32,
}

/// The number of changes at a moment when none was under way.
#[derive(Clone, Copy)]
pub(super) struct Seen(u64);

/// A change under way.
pub(super) struct Change<'a>(&'a Changes);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, Ordering::Release);
    }
}

/// Keeps changes from beginning.
pub(super) struct Pause<'a>(&'a Changes);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.paused_by.fetch_sub(1, Ordering::Release);
    }
}

impl Changes {
    /// Begins a change, unless a search keeps changes from beginning.
    pub(super) fn try_begin(&self) -> Option<Change<'_>> {
        if self.paused_by.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // Sequentially consistent, as in `pause`: of a change that begins and a search that pauses one sees the other.
        self.begun.fetch_add(1, Ordering::SeqCst);
        let change = Change(self);
        (self.paused_by.load(Ordering::SeqCst) == 0).then_some(change)
    }

    /// Begins a change also if a search keeps changes from beginning: that search begins again.
    pub(super) fn begin(&self) -> Change<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Change(self)
    }

    /// Waits until changes may begin. The caller holds no lock.
    pub(super) fn wait_for_searches(&self) {
        let mut wait = Wait::default();
        while self.paused_by.load(Ordering::SeqCst) != 0 {
            wait.step();
        }
    }

    /// The number of changes, waiting until none is under way.
    pub(super) fn read(&self) -> Seen {
        let mut wait = Wait::default();
        loop {
            let finished = self.finished.load(Ordering::Acquire);
            if self.begun.load(Ordering::Acquire) == finished {
                return Seen(finished);
            }
            wait.step();
        }
    }

    /// Whether no change has begun since.
    pub(super) fn are_none_since(&self, seen: Seen) -> bool {
        crate::concurrency::sync::atomic::fence(Ordering::Acquire);
        self.begun.load(Ordering::Relaxed) == seen.0
    }

    /// Keeps changes from beginning, and waits for those under way. The caller holds no lock.
    pub(super) fn pause(&self) -> Pause<'_> {
        self.paused_by.fetch_add(1, Ordering::SeqCst);
        let pause = Pause(self);
        let mut wait = Wait::default();
        while self.begun.load(Ordering::SeqCst) != self.finished.load(Ordering::SeqCst) {
            wait.step();
        }
        pause
    }
}

/// Merges of leaves that are remembered: many more than happen between two visits of a search.
const RECENT: usize = 64;

/// Where leaves have been merged lately.
///
/// A search that has visited a leaf, and not yet the next one, must not go on if these two have been merged meanwhile: a record may have been
/// relocated across the key at which they met, while they were one leaf. They may have been split at this key again since, so that the leaves
/// do not show it.
pub(super) struct Merges {
    /// Merges since the open.
    count: AtomicU64,
    /// The keys at which the merged leaves met, of the last merges.
    recent: Mutex<[Key; RECENT]>,
}

impl Default for Merges {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            recent: Mutex::new([0; RECENT]),
        }
    }
}

impl Merges {
    /// Two leaves that meet at `key` are being merged. Their bottom node is locked, so that a search that sees the merged leaf there sees this too.
    pub(super) fn note(&self, key: Key) {
        let mut recent = lock(&self.recent);
        let count = self.count.load(Ordering::Relaxed);
        recent[count as usize % RECENT] = key;
        self.count.store(count + 1, Ordering::Release);
    }

    /// Merges so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Whether leaves that met at `key` have been merged since `count` was so much. May be mistaken if there have been many merges since.
    pub(super) fn may_have_been_at(&self, key: Key, count: u64) -> bool {
        if self.count() == count {
            return false;
        }
        let recent = lock(&self.recent);
        let now = self.count.load(Ordering::Relaxed);
        now - count > RECENT as u64
            || (count..now).any(|number| recent[number as usize % RECENT] == key)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_merge_is_remembered_until_many_others_have_come() {
        let merges = Merges::default();
        merges.note(7);
        let count = merges.count();
        assert!(!merges.may_have_been_at(7, count));
        assert!(merges.may_have_been_at(7, count - 1));
        assert!(!merges.may_have_been_at(8, count - 1));
        for key in 0..RECENT as Key {
            merges.note(100 + key);
        }
        assert!(!merges.may_have_been_at(7, count));
        assert!(merges.may_have_been_at(100, count));
        merges.note(1);
        assert!(merges.may_have_been_at(7, count), "nobody knows any more");
    }
}
