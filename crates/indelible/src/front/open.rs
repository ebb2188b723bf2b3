//! Opening pools: the public methods of [`PoolOptions`].

use super::{LogStat, Pool, accept_if_whole};
use crate::Result;
use crate::pool::PoolOptions;
use std::path::Path;

impl PoolOptions {
    /// Creates a new pool, which is empty and open for reading and writing.
    ///
    /// The file has 2 MiB of address space, of which only the pages in use are reserved on the disk, and appears at `path` whole or not at
    /// all. When the call returns, the pool survives what its [`Durability`](crate::Durability) promises.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] (the file exists, say), [`Error::NoSpace`], [`Error::NoPowerLossSafety`], [`Error::Locked`]. After an
    /// error there is no file.
    ///
    /// [`Error::Io`]: crate::Error::Io
    /// [`Error::NoSpace`]: crate::Error::NoSpace
    /// [`Error::NoPowerLossSafety`]: crate::Error::NoPowerLossSafety
    /// [`Error::Locked`]: crate::Error::Locked
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::PoolOptions;
    /// let pool = PoolOptions::new().create(&path)?;
    /// assert!(pool.maps().is_empty());
    /// assert!(PoolOptions::new().create(&path).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.create_core(path.as_ref()).map(Pool::over)
    }

    /// Opens an existing pool for reading and writing, also one whose process has died.
    ///
    /// O(1) in the number of records: what a crash left to be rebuilt is rebuilt on first touch and in the background. Only if the
    /// file has holes or shares blocks with another one, since `cp` has made it, the pool gets blocks of its own first: O(file).
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Locked`], [`Error::NotAPool`], [`Error::NewerFormat`], [`Error::IncompatibleMachine`],
    /// [`Error::Damaged`], [`Error::Truncated`], [`Error::MachineWentDown`], [`Error::NoPowerLossSafety`], [`Error::NoSpace`]
    /// (for a file that `cp` has made, and for a pool with a log that was closed: a new log needs 4 MiB of the disk; [`open_read_only`](Self::open_read_only) needs none).
    /// The file is not changed then.
    ///
    /// [`Error::Io`]: crate::Error::Io
    /// [`Error::Locked`]: crate::Error::Locked
    /// [`Error::NotAPool`]: crate::Error::NotAPool
    /// [`Error::NewerFormat`]: crate::Error::NewerFormat
    /// [`Error::IncompatibleMachine`]: crate::Error::IncompatibleMachine
    /// [`Error::Damaged`]: crate::Error::Damaged
    /// [`Error::Truncated`]: crate::Error::Truncated
    /// [`Error::MachineWentDown`]: crate::Error::MachineWentDown
    /// [`Error::NoPowerLossSafety`]: crate::Error::NoPowerLossSafety
    /// [`Error::NoSpace`]: crate::Error::NoSpace
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::PoolOptions;
    /// use indelible::Error;
    /// drop(PoolOptions::new().create(&path)?);
    /// let pool = PoolOptions::new().open(&path)?;
    /// assert!(matches!(PoolOptions::new().open(&path), Err(Error::Locked(_))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_core(path.as_ref(), &accept_if_whole)
            .map(Pool::over)
    }

    /// Opens a pool as [`open`](Self::open) does, creating it as [`create`](Self::create) does if the file does not exist.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and [`create`](Self::create).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::PoolOptions;
    /// for _ in 0..2 {
    ///     let pool = PoolOptions::new().open_or_create(&path)?;
    ///     pool.map::<u64, u64>("starts")?.update_with(0, |starts| Some(starts.unwrap_or(0) + 1))?;
    /// }
    /// assert_eq!(PoolOptions::new().open(&path)?.map::<u64, u64>("starts")?.get(0)?, Some(2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_or_create_core(path.as_ref(), &accept_if_whole)
            .map(Pool::over)
    }

    /// Opens a cleanly closed pool for reading only. Any number of processes may do so at once.
    ///
    /// O(1) in the number of records. Every write returns `Error::ReadOnly`, and nothing in the file is changed.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`Error::NotClean`](crate::Error::NotClean).
    /// [`Error::NoSpace`](crate::Error::NoSpace) only on tmpfs, where to read the holes of a file takes memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::PoolOptions;
    /// use indelible::Error;
    /// let pool = PoolOptions::new().create(&path)?;
    /// pool.map::<u64, u64>("m")?.insert(1, 10)?;
    /// pool.close()?;
    /// let map = PoolOptions::new().open_read_only(&path)?.open_map::<u64, u64>("m")?;
    /// assert_eq!(map.get(1)?, Some(10));
    /// assert!(matches!(map.remove(1), Err(Error::ReadOnly)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_read_only(&self, path: impl AsRef<Path>) -> Result<Pool> {
        self.open_read_only_core(path.as_ref()).map(Pool::over)
    }

    /// Reads the log of the pool at `path`, which was not closed, from the first whole record to the last, and changes nothing. `None` if the
    /// pool was closed, or has no log. O(log).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`Error::NoLog`](crate::Error::NoLog).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::PoolOptions;
    /// drop(PoolOptions::new().create(&path)?);
    /// assert_eq!(PoolOptions::new().verify_log(&path)?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn verify_log(&self, path: impl AsRef<Path>) -> Result<Option<LogStat>> {
        let found = self.log_of(path.as_ref())?;
        Ok(found.map(|found| LogStat {
            records: found.records,
            bytes: found.bytes,
        }))
    }

    /// A pool in anonymous memory, which survives nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the system has no address space to give.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::PoolOptions;
    /// let pool = PoolOptions::new().max_bytes(1 << 30).in_memory()?;
    /// pool.map::<u64, u64>("m")?.insert(1, 10)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory(&self) -> Result<Pool> {
        self.in_memory_core().map(Pool::over)
    }
}
