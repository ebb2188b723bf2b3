//! Pools: where indexes live.
//!
//! # The story
//!
//! A pool is one file (or anonymous memory) that is mapped whole. Its first extent says what it is (two copies of the
//! *superblock*), which maps there are (the *catalog*), and whose every other extent is (the *extent table*); see
//! `layout` for the drawing. Extents of 2 MiB belong to one map and one block size. Which blocks in an extent are in
//! use is not recorded anywhere: it follows from what the map can reach (see `space`).
//!
//! # What commits
//!
//! Creating and dropping a map: the entry's owner word. Taking and freeing an extent: its word in the table. Growing,
//! shrinking, opening and closing: the superblock, by checksum. Each is one store (or one checksum) whose both sides
//! recovery understands; the comments marked COMMIT say how.
//!
//! # What recovery does
//!
//! Opening reads the superblocks, the catalog and the extent table (8 bytes per 2 MiB: 40 KiB for 10 GB), and nothing that
//! grows with the number of records. Extents whose owner is not in the catalog are free.

mod core;
mod layout;
mod mapping;
mod occupancy;
mod options;
mod space;
mod superblock;

pub(crate) use core::PoolCore;
pub(crate) use layout::EXTENT_BYTES;
pub use options::PoolOptions;
pub(crate) use space::{Space, SpaceNeed};

use crate::index::AnyIndex;
use crate::planted::{Bug, planted};
use crate::pmem::Medium;
use crate::{ApexTuning, Error, Key, Kind, Map, MapOptions, Result, Type, Value};
use layout::NAME_BYTES;
use std::path::Path;
use std::sync::Arc;

/// What a pool promises to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// The death of the process at any instruction: `kill -9`, a panic, an upgrade. The file may lie anywhere: tmpfs, a
    /// disk. A commit costs a store. If the *machine* goes down while the pool is open, the pool is refused at
    /// the next open ([`Error::MachineWentDown`]); once closed cleanly it is good across reboots.
    #[default]
    Process,
    /// Power loss too. Needs a file on persistent memory (DAX, mapped with `MAP_SYNC`); a commit costs a cache-line
    /// write-back and a fence, or on eADR machines a fence. Asking for it where it cannot be had is an error.
    PowerLoss,
}

/// An open pool: a handle. Cloning it is cheap; the pool is closed when the last handle, to it or to one of its maps, is
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
    core: Arc<PoolCore>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.core.mapping().path().display())
    }
}

/// A map in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapInfo {
    /// Its name.
    pub name: String,
    /// Type of its keys.
    pub key: Type,
    /// Type of its values.
    pub value: Type,
    /// Kind of index.
    pub kind: Kind,
    /// Bytes in a leaf of an LB+-tree, 0 for other kinds.
    pub leaf_bytes: u32,
    /// How an APEX is laid out, the default for other kinds.
    pub apex: ApexTuning,
}

/// What a pool is, from [`Pool::stat`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStat {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Extents of 2 MiB, including the one for metadata.
    pub extents: u64,
    /// Extents that no map owns.
    pub free_extents: u64,
    /// How often the pool has been opened for writing.
    pub generation: u64,
    /// Where the bytes live, and so what a commit does.
    pub medium: Medium,
    /// Whether the pool had been closed cleanly.
    pub clean_at_open: bool,
    /// Whether it is open for reading only.
    pub read_only: bool,
}

impl Pool {
    /// The default options; see [`PoolOptions`].
    #[must_use]
    pub fn options() -> PoolOptions {
        PoolOptions::new()
    }

    /// Creates a new pool with the default options; see [`PoolOptions::create`].
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        PoolOptions::new().create(path)
    }

    /// Opens an existing pool with the default options; see [`PoolOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        PoolOptions::new().open(path)
    }

    /// A pool in anonymous memory with the default options; see [`PoolOptions::in_memory`].
    pub fn in_memory() -> Result<Self> {
        PoolOptions::new().in_memory()
    }

    /// Opens the map `name`, creating it if it is not there.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`], [`Error::BadName`], [`Error::TooManyMaps`], [`Error::NoSpace`], [`Error::ReadOnly`] (it is
    /// not there), [`Error::Damaged`].
    pub fn map<K: Key, V: Value>(&self, name: &str) -> Result<Map<K, V>> {
        self.map_with(name, MapOptions::default())
    }

    /// [`map`](Self::map), a new one laid out as `options` say; [`Error::BadOption`] if no map can be.
    pub fn map_with<K: Key, V: Value>(&self, name: &str, options: MapOptions) -> Result<Map<K, V>> {
        match self.open_map(name) {
            Err(Error::NoSuchMap(_)) if self.core.is_read_only() => Err(Error::ReadOnly),
            Err(Error::NoSuchMap(_)) => {
                self.create_map(name, Shape::new::<K, V>(options)?)?;
                self.open_map(name)
            }
            result => result,
        }
    }

    /// Opens the map `name`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::WrongType`], [`Error::Damaged`].
    pub fn open_map<K: Key, V: Value>(&self, name: &str) -> Result<Map<K, V>> {
        let maps = self.core.registry();
        let slot = self.find(name)?;
        let found = Shape(self.core.entry(slot).shape.load());
        let wanted = Shape::new::<K, V>(MapOptions::default())?;
        if !found.is_usable_as(wanted) {
            let (found, wanted) = (found.to_string(), wanted.to_string());
            return Err(Error::WrongType {
                name: name.into(),
                found,
                wanted,
            });
        }
        let (mut maps, open) = self.core.open_map(maps, slot);
        if let Some(index) = open {
            return Ok(Map::new(index));
        }
        // While the registry was unlocked the map may have been dropped.
        if self.find(name)? != slot {
            drop(maps);
            return self.open_map(name);
        }
        let index = AnyIndex::open(Arc::clone(&self.core), slot)?;
        maps.insert(slot, index.downgrade());
        Ok(Map::new(index))
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.core
            .slots()
            .find(|&slot| self.core.has_name(slot, name))
            .ok_or_else(|| Error::NoSuchMap(name.into()))
    }

    fn create_map(&self, name: &str, shape: Shape) -> Result<()> {
        if name.is_empty() || name.len() > NAME_BYTES {
            return Err(Error::BadName(name.len()));
        }
        let _maps = self.core.registry();
        if self.find(name).is_ok() {
            return Ok(());
        }
        let slot = self.core.prepare_entry(name, shape.0)?;
        if planted(Bug::CreateCommitsEarly) {
            self.core.commit_entry(slot);
        }
        match AnyIndex::format(&self.core, slot) {
            Ok(()) => self.core.commit_entry(slot),
            Err(error) => {
                self.core.remove_entry(slot);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The maps in the pool.
    #[must_use]
    pub fn maps(&self) -> Vec<MapInfo> {
        let _maps = self.core.registry();
        let info = |slot| {
            let shape = Shape(self.core.entry(slot).shape.load());
            Some(MapInfo {
                name: self.core.name_of(slot),
                key: shape.key()?,
                value: shape.value()?,
                kind: shape.kind()?,
                leaf_bytes: shape.leaf_bytes(),
                apex: shape.apex().ok()?,
            })
        };
        self.core.slots().filter_map(info).collect()
    }

    /// Removes the map `name` and frees its space.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::ReadOnly`], [`Error::InUse`] while a handle to it lives.
    pub fn drop_map(&self, name: &str) -> Result<()> {
        if self.core.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let maps = self.core.registry();
        let slot = self.find(name)?;
        let (maps, open) = self.core.open_map(maps, slot);
        if open.is_some() {
            // The handle may be the last one, and dropping it locks the registry.
            drop(maps);
            return Err(Error::InUse(format!("map {name:?}")));
        }
        if self.find(name)? == slot {
            self.core.remove_entry(slot);
        }
        Ok(())
    }

    /// Cuts free extents off the end of the file. Returns the bytes given back.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::Io`].
    pub fn shrink(&self) -> Result<u64> {
        if self.core.is_read_only() {
            return Err(Error::ReadOnly);
        }
        for slot in self.core.slots().collect::<Vec<_>>() {
            let (maps, open) = self.core.open_map(self.core.registry(), slot);
            // Compacting takes long, and closing the map needs the registry.
            drop(maps);
            if let Some(index) = open {
                index.compact()?;
            }
        }
        self.core.shrink()
    }

    /// Checks what the pool knows of itself, apart from its maps (see [`Map::check`](crate::Map::check)): that every extent
    /// is either free or a map's. Returns what is wrong, in words; empty means sound. O(extents).
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        self.core.check_extents()
    }

    /// What the pool is.
    #[must_use]
    pub fn stat(&self) -> PoolStat {
        let (extents, free_extents) = self.core.extent_counts();
        PoolStat {
            file_bytes: extents * EXTENT_BYTES,
            extents,
            free_extents,
            generation: self.core.generation(),
            medium: self.core.pm().medium(),
            clean_at_open: self.core.was_clean(),
            read_only: self.core.is_read_only(),
        }
    }

    /// Takes `extents` in a row for the map `name`, as a large block would, or gives all such runs back. No index of
    /// this version has blocks larger than an extent; for the checker, compiled only with the `trace` feature.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`], [`Error::NoSpace`].
    #[cfg(feature = "trace")]
    pub fn take_run(&self, name: &str, extents: u64) -> Result<()> {
        let slot = self.find(name)?;
        self.core.take_run(slot, extents)
    }

    /// Runs that the map `name` has.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`].
    #[cfg(feature = "trace")]
    pub fn runs(&self, name: &str) -> Result<usize> {
        let slot = self.find(name)?;
        Ok(self.core.runs(slot).len())
    }

    /// See [`take_run`](Self::take_run).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchMap`].
    #[cfg(feature = "trace")]
    pub fn free_runs(&self, name: &str) -> Result<()> {
        let slot = self.find(name)?;
        self.core.free_runs(slot);
        Ok(())
    }

    /// Makes this pool and its maps forget that they must be closed: dropping them writes nothing any more. A crash, for
    /// the checker; compiled only with the `trace` feature.
    #[cfg(feature = "trace")]
    pub fn abandon(&self) {
        self.core.abandon();
    }

    /// Closes the pool: syncs it and marks it as clean. Dropping the last handle does the same, but cannot report errors.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] while other handles, to the pool or to its maps, live; [`Error::Io`] if the sync fails.
    pub fn close(self) -> Result<()> {
        match Arc::try_unwrap(self.core) {
            Ok(core) => core.close(),
            Err(core) => Err(Error::InUse(core.mapping().path().display().to_string())),
        }
    }

    /// Salvage: opens every map, without writing anything, and checks it.
    pub(super) fn accept_if_whole(&self) -> Result<()> {
        for slot in self.core.slots().collect::<Vec<_>>() {
            let index = AnyIndex::open(Arc::clone(&self.core), slot)?;
            if let Some(problem) = index.check()?.into_iter().next() {
                return Err(Error::Damaged(format!(
                    "map {:?}: {problem}",
                    self.core.name_of(slot)
                )));
            }
        }
        Ok(())
    }
}

/// The word of the catalog that says what a map holds; see `layout`.
#[derive(Clone, Copy)]
struct Shape(u64);

impl Shape {
    fn new<K: Key, V: Value>(options: MapOptions) -> Result<Self> {
        let types = (K::TYPE as u64) << 8 | (V::TYPE as u64) << 16;
        let layout = match options.kind {
            Kind::LbTree => options.leaf_bytes,
            Kind::Apex => options.apex.to_word()?,
        };
        Ok(Self(options.kind as u64 | types | u64::from(layout) << 32))
    }

    /// Whether a map of this shape, of whatever kind, holds what `wanted` does.
    fn is_usable_as(self, wanted: Self) -> bool {
        self.kind().is_some() && (self.0 ^ wanted.0) & 0x00ff_ff00 == 0
    }

    fn kind(self) -> Option<Kind> {
        Kind::from_code(self.0 as u8)
    }

    fn key(self) -> Option<Type> {
        Type::from_code((self.0 >> 8) as u8)
    }

    fn value(self) -> Option<Type> {
        Type::from_code((self.0 >> 16) as u8)
    }

    fn leaf_bytes(self) -> u32 {
        match self.kind() {
            Some(Kind::LbTree) => (self.0 >> 32) as u32,
            _ => 0,
        }
    }

    fn apex(self) -> Result<ApexTuning> {
        match self.kind() {
            Some(Kind::Apex) => ApexTuning::from_word((self.0 >> 32) as u32),
            _ => Ok(ApexTuning::default()),
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.kind(), self.key(), self.value()) {
            (Some(_), Some(key), Some(value)) => write!(f, "{key} to {value}"),
            _ => write!(f, "something that this version does not know"),
        }
    }
}
