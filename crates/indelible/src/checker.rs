//! The crash checker's doors into the library; compiled only with the `trace` feature.

pub use crate::engines::testing::*;
pub use crate::pmem::planted::{Bug, plant};
pub use crate::pmem::schedule::{MOST_THREADS, Scheduler, set};

pub use crate::pool::{Met, through_the_log, trial};

use crate::pmem::Memory;
use crate::pool::SUPERBLOCK_BYTES;
use crate::{Pool, PoolOptions, Result};
use std::sync::{Arc, Mutex, MutexGuard};

/// Locks a mutex, letting other threads of the scheduler run until it can be had. A mutex that is held across a
/// [point](Scheduler::point) has to be locked in this way.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    crate::concurrency::sync::lock(mutex)
}

/// Bugs of the log that the search finds with [`CrashModel::Disk`](../../indelible_crash/enum.CrashModel.html) and every kind of index, those that it finds with kinds
/// whose threads complete each other's changes, and those that [`trial`] finds.
#[must_use]
pub fn disk_bugs() -> [Vec<&'static Bug>; 3] {
    const WITH_EVERY_KIND: [&str; 2] = ["log.NoWait", "log.ReadersDoNotWait"];
    const WITH_HELPERS: [&str; 1] = ["log.HelpedWaitsForOwn"];
    let all = crate::pool::LOG_BUGS.iter();
    let (every, others): (Vec<_>, Vec<_>) =
        all.partition(|bug| WITH_EVERY_KIND.contains(&bug.name));
    let others = others.into_iter();
    let (helped, tried) = others.partition(|bug: &&Bug| WITH_HELPERS.contains(&bug.name));
    let every = crate::pmem::BUGS.iter().chain(every).collect();
    [every, helped, tried]
}

impl PoolOptions {
    /// Creates a pool in `memory`, which is zero.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`](crate::Error::NoSpace) if the memory is too small.
    pub fn create_memory(&self, memory: &Arc<Memory>) -> Result<Pool> {
        self.create_in_memory(memory).map(Pool::over)
    }

    /// Opens the pool in `memory`.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_memory(&self, memory: &Arc<Memory>) -> Result<Pool> {
        // The superblock's two copies. The checker comes here once for each image, so what is read, and how, decides how many images
        // it recovers per second.
        let words = memory.words().iter().take(memory.length() as usize / 8);
        let mut first = [0; SUPERBLOCK_BYTES];
        for (bytes, word) in first.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.load().to_ne_bytes();
        }
        self.open_in_memory(memory, &first, &crate::front::accept_if_whole)
            .map(Pool::over)
    }
}

impl Pool {
    /// Takes `extents` in a row for the map `name`, as a large block would, or gives all such runs back.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`](crate::Error::NoSuchMap), [`Error::NoSpace`](crate::Error::NoSpace).
    pub fn take_run(&self, name: &str, extents: u64) -> Result<()> {
        let core = self.core();
        core.durably(|| core.take_run(self.find(name)?, extents))
    }

    /// Runs that the map `name` has.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`](crate::Error::NoSuchMap).
    pub fn runs(&self, name: &str) -> Result<usize> {
        Ok(self.core().runs(self.find(name)?).len())
    }

    /// Gives all runs of the map `name` back.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`](crate::Error::NoSuchMap).
    pub fn free_runs(&self, name: &str) -> Result<()> {
        let core = self.core();
        core.durably(|| {
            core.free_runs(self.find(name)?);
            Ok(())
        })
    }

    /// Makes this pool and its maps forget that they must be closed: dropping them writes nothing any more. A crash.
    pub fn abandon(&self) {
        self.core().abandon();
    }
}
