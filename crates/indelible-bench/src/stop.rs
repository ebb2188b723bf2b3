//! Ends a run early: what has been measured stays, what is being measured is dropped.

use anyhow::Result;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::process::Child;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Whether the run is to end, and the child that is measuring at the moment.
#[derive(Debug, Default)]
pub struct Stop {
    /// The signal that asked for it; 0 while nobody has.
    signal: AtomicI32,
    /// The child from its start until just before it is waited for, so that its number cannot be another process's.
    child: Mutex<Option<Pid>>,
}

impl Stop {
    /// A stop that Ctrl-C (SIGINT) and SIGTERM ask for. The second one ends the program at once, as it would have without this.
    ///
    /// # Errors
    ///
    /// If the system refuses the handlers.
    pub fn on_signals() -> Result<Arc<Self>> {
        let stop = Arc::new(Self::default());
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        let asked = Arc::clone(&stop);
        std::thread::spawn(move || {
            for signal in signals.forever() {
                if asked.signal().is_some() {
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
                asked.ask(signal);
            }
        });
        Ok(stop)
    }

    /// Ctrl-C (SIGINT) and SIGTERM end the program as they would have without this, but first there is something to be done.
    ///
    /// # Errors
    ///
    /// If the system refuses the handlers.
    pub(crate) fn after(last: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                last();
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
        Ok(())
    }

    /// The signal that asked for the run to end, if one did.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// Ends the run, and the child that measures: its outcome would not be one.
    fn ask(&self, signal: i32) {
        let child = self.lock();
        self.signal.store(signal, Ordering::SeqCst);
        if let Some(child) = *child {
            let _ = kill_process(child, Signal::KILL);
        }
    }

    /// From here on the child goes with the run.
    pub(crate) fn watch(&self, child: &Child) {
        let pid = Pid::from_child(child);
        let mut watched = self.lock();
        *watched = Some(pid);
        if self.signal().is_some() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// The child is about to be waited for.
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pid>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
