//! Opening pools: the public methods of [`PoolOptions`].

use super::{Pool, accept_if_whole};
use crate::Result;
use crate::pool::PoolOptions;
use std::path::Path;

impl PoolOptions {
    /// Creates a new pool.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] (the file exists, say), [`Error::NoSpace`], [`Error::NoPowerLossSafety`], [`Error::Locked`]. After an
    /// error there is no file.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.create_core(path.as_ref()).map(Pool::over)
    }

    /// Opens an existing pool for reading and writing. O(1) in the number of records, unless the file has holes or shares
    /// blocks with another one, since `cp` has made it: then the pool gets blocks of its own first.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Locked`], [`Error::NotAPool`], [`Error::NewerFormat`], [`Error::IncompatibleMachine`],
    /// [`Error::Damaged`], [`Error::Truncated`], [`Error::MachineWentDown`], [`Error::NoPowerLossSafety`], [`Error::NoSpace`]
    /// (for a file that `cp` has made; it is left as it is).
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_core(path.as_ref(), &accept_if_whole)
            .map(Pool::over)
    }

    /// Opens a pool, creating it if the file does not exist.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_or_create_core(path.as_ref(), &accept_if_whole)
            .map(Pool::over)
    }

    /// Opens a cleanly closed pool for reading only. Any number of processes may do so at once.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`Error::NotClean`]. [`Error::NoSpace`] only on tmpfs, where to read the holes of a
    /// file takes memory.
    pub fn open_read_only(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_read_only_core(path.as_ref()).map(Pool::over)
    }

    /// A pool in anonymous memory, which survives nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the system has no address space to give.
    pub fn in_memory(&self) -> Result<Pool> {
        self.in_memory_core().map(Pool::over)
    }
}
