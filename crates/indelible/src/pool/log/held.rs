//! For tests: what goes on behind the scenes after a crash is held up, to see that nobody needs it.

#[cfg(all(test, not(loom)))]
use std::{
    cell::RefCell,
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
};

#[cfg(all(test, not(loom)))]
thread_local! {
    /// Pools that this thread opens are held up as long as this says so.
    pub(in crate::pool) static HOLD: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Whether the work behind the scenes is held up: extents are provided only if they are touched, sessions begin only if somebody waits for
/// them, and the backlog is applied only if somebody needs the room: not to make a log shorter that is mostly padding.
#[derive(Clone, Default)]
pub(crate) struct Held {
    #[cfg(all(test, not(loom)))]
    flag: Option<Arc<AtomicBool>>,
}

impl Held {
    /// For a pool that this thread opens.
    pub(super) fn here() -> Self {
        Self {
            #[cfg(all(test, not(loom)))]
            flag: HOLD.with_borrow(Clone::clone),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        #[cfg(all(test, not(loom)))]
        {
            self.flag
                .as_ref()
                .is_some_and(|flag| flag.load(Ordering::Relaxed))
        }
        #[cfg(not(all(test, not(loom))))]
        {
            false
        }
    }
}
