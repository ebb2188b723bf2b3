//! The thread that warms an object up: rebuilds in DRAM what the last process had there.

use super::{Host, Shared};
use crate::Result;
use crate::concurrency::sync::lock;
use crate::engines::Engine;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};

impl<E: Engine> Shared<E> {
    /// Warms the object up, unless it is warm: rebuilds its part in DRAM, counts its records, and frees blocks that are not in use.
    /// Stops early if `go_on` is false.
    pub(super) fn warm_up(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let _warming = lock(&self.warming);
        if self.is_warm.load(Ordering::Acquire) {
            return Ok(());
        }
        if !self.engine.sweep(go_on)? {
            return Ok(());
        }
        if !self.place.core.is_read_only() && self.needs_sweep() {
            self.finish_sweep();
        }
        self.is_warm.store(true, Ordering::Release);
        Ok(())
    }

    /// Starts the thread that warms the object up.
    pub(super) fn warm_up_in_background(self: &Arc<Self>) -> Option<JoinHandle<()>> {
        if self.place.core.runs_alone() {
            return None;
        }
        let shared = Arc::clone(self);
        let work = move || {
            let go_on = || !shared.stop.load(Ordering::Relaxed);
            if let Err(error) = shared.warm_up(&go_on) {
                // An operation that meets the damage in the foreground returns the error.
                tracing::warn!(%error, "warming up stopped");
            }
        };
        // A small object, such as a new one, is warmed up at once. Then it also allocates the same blocks in every run, which would
        // otherwise depend on the speed of the thread.
        if self.engine.sweeps_at_once() {
            work();
            return None;
        }
        // Without the thread the object works too: each part is rebuilt when it is first used.
        let name = "indelible-warm-up".to_owned();
        Builder::new().name(name).spawn(work).ok()
    }
}

impl<E: Engine> Host<E> {
    /// The engine inside, for its own tests.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn engine(&self) -> &E {
        &self.shared.engine
    }
}
