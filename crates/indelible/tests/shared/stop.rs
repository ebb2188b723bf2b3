//! Ends the threads that work beside a test, also when the test fails: their scope waits for them.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag when it is dropped.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
