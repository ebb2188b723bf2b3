//! Where leaves have been merged lately, which a search that has visited one of them must know.

use super::inner::Key;
use crate::concurrency::sync::atomic::{AtomicU64, Ordering};
use crate::concurrency::sync::lock;
use std::sync::Mutex;

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

    /// All leaves have been replaced by others.
    pub(super) fn note_everywhere(&self) {
        let _recent = lock(&self.recent);
        // More than are remembered, so that any of them may have been anywhere.
        self.count.fetch_add(RECENT as u64 + 1, Ordering::Release);
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
