//! Pools: the file and the objects in it.

use super::catalog::{Holds, compact_at};
use super::{Key, Map, MapOptions, Type, Value};
use crate::engines::Kind;
use crate::pmem::Medium;
use crate::pool::{EXTENT_BYTES, PoolCore, PoolOptions};
use crate::{Durability, Error, Result};
use std::path::Path;
use std::sync::Arc;

/// An open pool: a handle. Cloning it is cheap; the pool is closed when the last handle, to it or to one of its objects, is
/// dropped.
///
/// Closing syncs everything to the file and marks the pool as clean. [`close`](Self::close) does the same and tells
/// whether it went well. A process that dies without closing loses nothing that its pool's durability covers.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("users.pool");
/// use indelible::Pool;
/// let pool = Pool::create(&path)?;
/// let users = pool.map::<u64, u64>("users")?;
/// users.insert(7, 700)?;
/// drop((users, pool));
///
/// let users = Pool::open(&path)?.map::<u64, u64>("users")?;
/// assert_eq!(users.get(7)?, Some(700));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    pub(super) core: Arc<PoolCore>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.core.path().display())
    }
}

/// A map in the catalog, from [`Pool::maps`].
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::Pool;
/// let pool = Pool::in_memory()?;
/// pool.map::<u64, bool>("seen")?;
/// for map in pool.maps() {
///     println!("{}: {} to {}, {}", map.name, map.key, map.value, map.options);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MapInfo {
    /// Its name.
    pub name: String,
    /// Type of its keys.
    pub key: Type,
    /// Type of its values.
    pub value: Type,
    /// Kind of index, and what was chosen when the map was created.
    pub options: MapOptions,
}

impl MapInfo {
    /// Kind of index.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.options.kind()
    }
}

/// What is in the log of a pool that was not closed, from [`PoolOptions::verify_log`].
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("a.pool");
/// use indelible::{Pool, PoolOptions};
/// drop(Pool::create(&path)?);
/// assert_eq!(PoolOptions::new().verify_log(&path)?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStat {
    /// Whole records, each the words that one thread wrote between two of its fences.
    pub records: u64,
    /// Bytes from the first of them to the end of the last.
    pub bytes: u64,
}

/// What a pool is, from [`Pool::stat`].
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::Pool;
/// let stat = Pool::in_memory()?.stat();
/// assert_eq!((stat.read_only, stat.clean_at_open), (false, true));
/// println!("{} bytes", stat.file_bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStat {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Extents of 2 MiB, including the one for metadata.
    pub extents: u64,
    /// Extents that no object owns.
    pub free_extents: u64,
    /// How often the pool has been opened for writing.
    pub generation: u64,
    /// Where the bytes live, and so what a commit does: in a pool that is open for reading only, what one does when it is open for writing.
    pub medium: Medium,
    /// Whether the pool had been closed cleanly.
    pub clean_at_open: bool,
    /// Whether it is open for reading only.
    pub read_only: bool,
    /// What the pool promises to survive. One in memory survives nothing, and says [`Durability::Process`].
    pub durability: Durability,
}

impl Pool {
    /// The default options; see [`PoolOptions`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// let pool = Pool::options().max_bytes(1 << 30).in_memory()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn options() -> PoolOptions {
        PoolOptions::new()
    }

    /// Creates a new pool with the default options.
    ///
    /// # Errors
    ///
    /// Those of [`PoolOptions::create`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::Pool;
    /// let pool = Pool::create(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        PoolOptions::new().create(path)
    }

    /// Opens an existing pool with the default options. O(1) in the number of records.
    ///
    /// # Errors
    ///
    /// Those of [`PoolOptions::open`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::Pool;
    /// drop(Pool::create(&path)?);
    /// let pool = Pool::open(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        PoolOptions::new().open(path)
    }

    /// A pool in anonymous memory, which survives nothing, with the default options.
    ///
    /// # Errors
    ///
    /// Those of [`PoolOptions::in_memory`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// let pool = Pool::in_memory()?;
    /// pool.map::<u64, u64>("m")?.insert(1, 10)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_memory() -> Result<Self> {
        PoolOptions::new().in_memory()
    }

    pub(crate) fn over(core: Arc<PoolCore>) -> Self {
        Self { core }
    }

    /// The layers below, for the crash checker.
    #[allow(dead_code, reason = "only the crash checker asks")]
    pub(crate) fn core(&self) -> &Arc<PoolCore> {
        &self.core
    }

    /// Opens the map `name`, whatever its kind of index, creating it with the default options if it is not there.
    ///
    /// O(1). A map that is created is durable when the call returns.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`], [`Error::BadName`], [`Error::TooManyMaps`], [`Error::NoSpace`], [`Error::ReadOnly`] (it is
    /// not there), [`Error::Damaged`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// let pool = Pool::in_memory()?;
    /// let ages = pool.map::<u64, u8>("ages")?;
    /// ages.insert(1, 42)?;
    /// assert_eq!(pool.map::<u64, u8>("ages")?.get(1)?, Some(42));
    /// assert!(pool.map::<u64, u16>("ages").is_err(), "the types are those of the first time");
    /// # Ok(())
    /// # }
    /// ```
    pub fn map<K: Key, V: Value>(&self, name: &str) -> Result<Map<K, V>> {
        self.map_with(name, MapOptions::default().accept_any(true))
    }

    /// Opens the map `name`, creating it with `options` if it is not there.
    ///
    /// `options` are a [`MapOptions`], the options of one kind of index, or what can be parsed as such:
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{LbTreeOptions, MapOptions, Pool};
    /// let pool = Pool::in_memory()?;
    /// let wide = pool.map_with::<u64, u64>("wide", LbTreeOptions::default().leaf_bytes(1024))?;
    /// let parsed: MapOptions = "kind=lbtree,leaf=512".parse()?;
    /// let narrow = pool.map_with::<u64, u64>("narrow", parsed)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`map`](Self::map); [`Error::BadOption`] if no map can be as `options` say; [`Error::OtherOptions`] if the map is
    /// there with another kind of index or other options, unless [`MapOptions::accept_any`] allows that.
    pub fn map_with<K: Key, V: Value>(
        &self,
        name: &str,
        options: impl Into<MapOptions>,
    ) -> Result<Map<K, V>> {
        self.open_or_create(name, Holds::Map([K::TYPE, V::TYPE]), &options.into())
            .map(Map::new)
    }

    /// Opens the map `name`, whatever its kind of index. O(1).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::WrongType`], [`Error::Damaged`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Error, Pool};
    /// let pool = Pool::in_memory()?;
    /// assert!(matches!(pool.open_map::<u64, u64>("m"), Err(Error::NoSuchMap(_))));
    /// pool.map::<u64, u64>("m")?;
    /// pool.open_map::<u64, u64>("m")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_map<K: Key, V: Value>(&self, name: &str) -> Result<Map<K, V>> {
        let holds = Holds::Map([K::TYPE, V::TYPE]);
        self.open_as(name, Some(holds))
            .map(|(_, map)| Map::new(map))
    }

    /// The maps of keys and values of fixed length in the pool, those of a later version apart. O(objects). [`objects`](Self::objects) lists everything.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// let pool = Pool::in_memory()?;
    /// pool.map::<u64, u64>("m")?;
    /// assert_eq!(pool.maps()[0].name, "m");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn maps(&self) -> Vec<MapInfo> {
        let _objects = self.core.registry();
        let info = |slot| self.map_info(slot);
        self.core.slots().filter_map(info).collect()
    }

    /// Compacts every map and every spatial index (nodes that have few records are merged, and live blocks move to the front of the file), then cuts free
    /// extents off the end of the file. Returns the bytes given back. O(records); all of them can be
    /// used meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::Io`], [`Error::Damaged`], [`Error::LogFailed`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// let pool = Pool::in_memory()?;
    /// let map = pool.map::<u64, u64>("m")?;
    /// map.extend((0..100_000).map(|i| (i, i)))?;
    /// map.clear()?;
    /// println!("{} bytes given back", pool.shrink()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shrink(&self) -> Result<u64> {
        if self.core.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.core.expect_superblock_sound()?;
        for slot in self.core.slots().collect::<Vec<_>>() {
            compact_at(&self.core, slot)?;
        }
        self.core.shrink()
    }

    /// Checks what the pool knows of itself, apart from its objects (see [`Map::check`](crate::Map::check) and
    /// [`Spatial::check`](crate::Spatial::check)): that every extent is either free or an object's. Returns what is wrong, in words; empty means sound. O(extents).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// let pool = Pool::in_memory()?;
    /// assert!(pool.check().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        self.core.check_extents()
    }

    /// What the pool is: its size, its state, and where it lies. O(extents).
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::Pool;
    /// println!("{} of 2 MiB are free", Pool::in_memory()?.stat().free_extents);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stat(&self) -> PoolStat {
        let (extents, free_extents) = self.core.extent_counts();
        PoolStat {
            file_bytes: extents * EXTENT_BYTES,
            extents,
            free_extents,
            generation: self.core.generation(),
            medium: self.core.medium(),
            clean_at_open: self.core.was_clean(),
            read_only: self.core.is_read_only(),
            durability: self.core.durability(),
        }
    }

    /// The file of the pool, as it was given at the open; `None` if the pool is in memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::Pool;
    /// assert_eq!(Pool::create(&path)?.path(), Some(path.as_path()));
    /// assert_eq!(Pool::in_memory()?.path(), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.core.is_in_file().then(|| self.core.path())
    }

    /// What the pool promises to survive, once a call has returned: as it was chosen when the pool was created, or at a later open. A pool in memory
    /// survives nothing, and says [`Durability::Process`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::{Durability, Pool};
    /// assert_eq!(Pool::create(&path)?.durability(), Durability::Process);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.core.durability()
    }

    /// Waits until everything written so far is on the disk, and not only in the page cache. A pool with
    /// [`Durability::PowerLoss`](crate::Durability::PowerLoss) needs no such call; in one with
    /// [`Durability::Interval`](crate::Durability::Interval), what was written before the call survives a power cut from here on; one with
    /// [`Durability::Process`](crate::Durability::Process) remains refused after a power cut while it is open: what this does is to make
    /// the next close short.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::Pool;
    /// let pool = Pool::create(&path)?;
    /// pool.map::<u64, u64>("m")?.insert(1, 10)?;
    /// pool.sync()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn sync(&self) -> Result<()> {
        self.core.sync()
    }

    /// Copies the pool to a new file at `path`, while it goes on being used. The copy is that of a pool that was closed: a file by itself,
    /// with everything that was written before the call, and perhaps more. On file systems that can, it shares the blocks of the pool.
    ///
    /// A copy that falls into a change of a spatial index, or into the use of an `fbr` with `flush=leaves`, has that index as a crash would leave it: it is
    /// [`Error::NotClean`](crate::Error::NotClean) to who opens the copy for reading only, until it has been opened for writing once.
    ///
    /// Only for pools with a log ([`Durability::PowerLoss`](crate::Durability::PowerLoss) on a disk, and
    /// [`Durability::Interval`](crate::Durability::Interval)). O(file). Meanwhile the log is not used again: if it gets full, writes wait.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`] for a pool without a log, [`Error::Io`] (the file exists, say, or the log of an earlier one of its name), [`Error::NoSpace`],
    /// [`Error::LogFailed`]. After an error there is no file.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir_in(".").unwrap();
    /// # let path = directory.path().join("a.pool");
    /// # let copy = directory.path().join("copy.pool");
    /// use indelible::{Durability, Pool};
    /// let pool = Pool::options().durability(Durability::PowerLoss).create(&path)?;
    /// let map = pool.map::<u64, u64>("m")?;
    /// map.insert(1, 10)?;
    /// pool.backup(&copy)?;
    /// map.insert(1, 11)?;
    /// assert_eq!(Pool::open(&copy)?.open_map::<u64, u64>("m")?.get(1)?, Some(10));
    /// # Ok(())
    /// # }
    /// ```
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<()> {
        self.core.backup(path.as_ref())
    }

    /// Closes the pool: syncs it and marks it as clean. Dropping the last handle does the same, but cannot report errors.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while other handles, to the pool or to its objects, live; [`Error::Io`] if the sync fails.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::Pool;
    /// let pool = Pool::create(&path)?;
    /// pool.map::<u64, u64>("m")?.insert(1, 10)?;
    /// pool.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(self) -> Result<()> {
        match Arc::try_unwrap(self.core) {
            Ok(core) => core.close(),
            Err(core) => Err(Error::InUse(core.path().display().to_string())),
        }
    }
}
