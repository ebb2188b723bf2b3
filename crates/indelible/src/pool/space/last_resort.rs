//! The second attempt of a write for which the pool had no space.

use std::cell::Cell;

thread_local! {
    static IS_LAST_RESORT: Cell<bool> = const { Cell::new(false) };
}

/// Ends an attempt, also if it panics.
struct Attempt {
    was_one: bool,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        IS_LAST_RESORT.set(self.was_one);
    }
}

/// Does `work`, a write that has failed for want of space and is done once more after space has been looked for: if it fails again, the caller of the
/// write gets the error.
pub(crate) fn as_last_resort<T>(work: impl FnOnce() -> T) -> T {
    let _attempt = Attempt {
        was_one: IS_LAST_RESORT.replace(true),
    };
    work()
}

/// Whether this thread is within [`as_last_resort`]. Only then may an engine use a block that suits it less: before, a block that suits it may become free,
/// and blocks used here and there keep extents from becoming empty.
pub(crate) fn is_last_resort() -> bool {
    IS_LAST_RESORT.get()
}
