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
mod space;
mod superblock;

pub(crate) use core::PoolCore;
pub(crate) use space::Space;

use crate::index::lbtree::LbTree;
use crate::pmem::{FlushInstruction, Medium};
use crate::{Error, Key, Map, MapOptions, Result, Type, Value};
use core::Opening;
use layout::{EXTENT_BYTES, NAME_BYTES, TABLE_AT};
use mapping::{Backing, Mapping};
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use superblock::{COPY_BYTES, Promise, Superblock};

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

/// How to open a pool.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("cache.pool");
/// use indelible::{Durability, PoolOptions};
/// let pool = PoolOptions::new().durability(Durability::Process).max_bytes(1 << 30).open_or_create(&path)?;
/// pool.map::<u64, u64>("hits")?.insert(1, 2)?;
/// pool.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PoolOptions {
    durability: Option<Durability>,
    force_power_loss_protocol: bool,
    max_bytes: u64,
    salvage: bool,
    huge_pages: bool,
    boot: Option<[u8; 16]>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Address space reserved unless `max_bytes` says otherwise: more than the format's limit.
const DEFAULT_MAX_BYTES: u64 = 512 << 30;

impl PoolOptions {
    /// The defaults: `Durability::Process` for a new pool and as recorded for an existing one, room for 496 GiB, huge pages
    /// where they can be had.
    #[must_use]
    pub fn new() -> Self {
        Self {
            durability: None,
            force_power_loss_protocol: false,
            max_bytes: DEFAULT_MAX_BYTES,
            salvage: false,
            huge_pages: true,
            boot: None,
        }
    }

    /// What the pool shall survive. Verified at open, never assumed.
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = Some(durability);
        self
    }

    /// With [`Durability::PowerLoss`]: flush and fence as on persistent memory, but accept any file. For tests and
    /// measurements; it does **not** make an ordinary file survive power loss.
    pub fn force_power_loss_protocol(&mut self, yes: bool) -> &mut Self {
        self.force_power_loss_protocol = yes;
        self
    }

    /// The most bytes that the pool may ever have: the address range that is reserved. Default, and limit of the format:
    /// 496 GiB.
    pub fn max_bytes(&mut self, bytes: u64) -> &mut Self {
        self.max_bytes = bytes;
        self
    }

    /// Accept a pool that was open when the machine went down, if a check of every map finds it whole. O(records).
    pub fn salvage(&mut self, yes: bool) -> &mut Self {
        self.salvage = yes;
        self
    }

    /// Ask for huge pages. Default yes; where they cannot be had nothing is lost.
    pub fn huge_pages(&mut self, yes: bool) -> &mut Self {
        self.huge_pages = yes;
        self
    }

    /// Pretend that the machine has this boot identity. For tests.
    #[doc(hidden)]
    pub fn boot_identity(&mut self, boot: [u8; 16]) -> &mut Self {
        self.boot = Some(boot);
        self
    }

    /// Creates a new pool.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] (the file exists, say), [`Error::NoSpace`], [`Error::NoPowerLossSafety`], [`Error::Locked`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        let file = open_file(
            path,
            OpenOptions::new().read(true).write(true).create_new(true),
        )?;
        lock_file(&file, path, false)?;
        let created = self.create_in(file, path);
        if created.is_err() {
            let _ = std::fs::remove_file(path);
        }
        created
    }

    fn create_in(&self, file: File, path: &Path) -> Result<Pool> {
        let durability = self.durability.unwrap_or_default();
        let (promise, medium) = self.promise(durability)?;
        let superblock = Superblock {
            uuid: random_uuid()?,
            sequence: 0,
            generation: 0,
            promise,
            clean: true,
            boot: self.boot_words(),
            extents: 1,
        };
        // The file gets its length at the end: until then it is not a pool, and open says so.
        let sync = promise == Promise::PowerLoss;
        let backing = Backing::File {
            file,
            path: path.to_owned(),
            read_only: false,
            sync,
        };
        let mapping = Mapping::reserve(backing, self.max_bytes, self.huge_pages)?;
        mapping.allocate(0, TABLE_AT + 4096)?;
        mapping.allocate(EXTENT_BYTES - 4096, EXTENT_BYTES)?;
        let opening = Opening {
            mapping,
            medium,
            superblock,
            boot: self.boot_words(),
            read_only: true,
        };
        let core = PoolCore::open(opening)?;
        core.begin_writing(true)?;
        Ok(Pool {
            core: Arc::new(core),
        })
    }

    /// Opens an existing pool for reading and writing. O(1) in the number of records.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::Locked`], [`Error::NotAPool`], [`Error::NewerFormat`], [`Error::IncompatibleMachine`],
    /// [`Error::Damaged`], [`Error::Truncated`], [`Error::MachineWentDown`], [`Error::NoPowerLossSafety`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        let file = open_file(path, OpenOptions::new().read(true).write(true))?;
        lock_file(&file, path, false)?;
        self.open_locked(file, path)
    }

    fn open_locked(&self, file: File, path: &Path) -> Result<Pool> {
        let (mut superblock, _) = read_superblock(&file, path)?;
        let same_boot = superblock.boot == self.boot_words();
        let went_down = !superblock.clean && superblock.promise.is_page_cached() && !same_boot;
        if went_down && !self.salvage {
            return Err(Error::MachineWentDown);
        }
        let must_sync = superblock.clean || !same_boot;
        let medium = match self.durability {
            Some(durability) => {
                let (promise, medium) = self.promise(durability)?;
                superblock.promise = promise;
                medium
            }
            None => medium_of(superblock.promise)?,
        };
        let sync = superblock.promise == Promise::PowerLoss;
        let backing = Backing::File {
            file,
            path: path.to_owned(),
            read_only: false,
            sync,
        };
        let mapping = Mapping::reserve(backing, self.max_bytes, self.huge_pages)?;
        let opening = Opening {
            mapping,
            medium,
            superblock,
            boot: self.boot_words(),
            read_only: true,
        };
        let pool = Pool {
            core: Arc::new(PoolCore::open(opening)?),
        };
        if went_down {
            pool.accept_if_whole()?;
        }
        pool.core.begin_writing(must_sync)?;
        Ok(pool)
    }

    /// Opens a pool, creating it if the file does not exist.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        match self.open(path) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                self.create(path)
            }
            result => result,
        }
    }

    /// Opens a cleanly closed pool for reading only. Any number of processes may do so at once.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`Error::NotClean`].
    pub fn open_read_only(&self, path: impl AsRef<Path>) -> Result<Pool> {
        let path = path.as_ref();
        let file = open_file(path, OpenOptions::new().read(true))?;
        lock_file(&file, path, true)?;
        let (superblock, _) = read_superblock(&file, path)?;
        if !superblock.clean {
            return Err(Error::NotClean);
        }
        let backing = Backing::File {
            file,
            path: path.to_owned(),
            read_only: true,
            sync: false,
        };
        let mapping = Mapping::reserve(backing, self.max_bytes, self.huge_pages)?;
        let boot = self.boot_words();
        let opening = Opening {
            mapping,
            medium: Medium::Process,
            superblock,
            boot,
            read_only: true,
        };
        Ok(Pool {
            core: Arc::new(PoolCore::open(opening)?),
        })
    }

    /// A pool in anonymous memory, which survives nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the system has no address space to give.
    pub fn in_memory(&self) -> Result<Pool> {
        let mapping = Mapping::reserve(Backing::Anonymous, self.max_bytes, self.huge_pages)?;
        let superblock = Superblock {
            uuid: random_uuid()?,
            sequence: 0,
            generation: 0,
            promise: Promise::Process,
            clean: true,
            boot: self.boot_words(),
            extents: 1,
        };
        let medium = Medium::Dram;
        let core = PoolCore::open(Opening {
            mapping,
            medium,
            superblock,
            boot: [0; 2],
            read_only: true,
        })?;
        core.begin_writing(false)?;
        Ok(Pool {
            core: Arc::new(core),
        })
    }

    fn promise(&self, durability: Durability) -> Result<(Promise, Medium)> {
        let promise = match durability {
            Durability::Process => Promise::Process,
            Durability::PowerLoss if self.force_power_loss_protocol => Promise::ForcedPowerLoss,
            Durability::PowerLoss => Promise::PowerLoss,
        };
        Ok((promise, medium_of(promise)?))
    }

    fn boot_words(&self) -> [u64; 2] {
        let bytes = self.boot.unwrap_or_else(boot_identity);
        let [a, b] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        [a, b]
    }
}

/// The medium that keeps a promise on this machine.
fn medium_of(promise: Promise) -> Result<Medium> {
    if promise == Promise::Process {
        return Ok(Medium::Process);
    }
    if FlushInstruction::detect() == FlushInstruction::None {
        return Err(Error::NoPowerLossSafety(
            "this CPU has no instruction to write a cache line back",
        ));
    }
    Ok(if promise == Promise::PowerLoss && has_eadr() {
        Medium::PmemEadr
    } else {
        Medium::Pmem
    })
}

/// Whether the platform says that its caches survive power loss, for every region of persistent memory.
fn has_eadr() -> bool {
    let Ok(devices) = std::fs::read_dir("/sys/bus/nd/devices") else {
        return false;
    };
    let domains: Vec<String> = devices
        .flatten()
        .filter_map(|device| std::fs::read_to_string(device.path().join("persistence_domain")).ok())
        .collect();
    !domains.is_empty() && domains.iter().all(|domain| domain.trim() == "cpu_cache")
}

/// Identifies this boot of this machine; all zero where the system does not tell.
fn boot_identity() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

fn random_uuid() -> Result<[u64; 2]> {
    let mut bytes = [0; 16];
    let source = Path::new("/dev/urandom");
    File::open(source)
        .and_then(|mut random| std::io::Read::read_exact(&mut random, &mut bytes))
        .map_err(|error| Error::Io {
            action: "read",
            path: source.to_owned(),
            source: error,
        })?;
    let number = u128::from_ne_bytes(bytes);
    Ok([number as u64, (number >> 64) as u64])
}

fn open_file(path: &Path, options: &OpenOptions) -> Result<File> {
    let io = |source| Error::Io {
        action: "open",
        path: path.to_owned(),
        source,
    };
    let file = options.open(path).map_err(io)?;
    if !file.metadata().map_err(io)?.is_file() {
        return Err(Error::NotAPool(path.to_owned()));
    }
    Ok(file)
}

fn lock_file(file: &File, path: &Path, shared: bool) -> Result<()> {
    match if shared {
        file.try_lock_shared()
    } else {
        file.try_lock()
    } {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(Error::Locked(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(Error::Io {
            action: "lock",
            path: path.to_owned(),
            source,
        }),
    }
}

fn read_superblock(file: &File, path: &Path) -> Result<(Superblock, bool)> {
    let io = |source| Error::Io {
        action: "read",
        path: path.to_owned(),
        source,
    };
    let length = file.metadata().map_err(io)?.len();
    let mut bytes = vec![0; length.min(2 * COPY_BYTES as u64) as usize];
    file.read_exact_at(&mut bytes, 0).map_err(io)?;
    Superblock::read(path, &bytes, length)
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
    /// Kind of index: "lbtree".
    pub kind: &'static str,
    /// Bytes in a leaf.
    pub leaf_bytes: u32,
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

    /// [`map`](Self::map), a new one laid out as `options` say.
    pub fn map_with<K: Key, V: Value>(&self, name: &str, options: MapOptions) -> Result<Map<K, V>> {
        match self.open_map(name) {
            Err(Error::NoSuchMap(_)) if self.core.is_read_only() => Err(Error::ReadOnly),
            Err(Error::NoSuchMap(_)) => {
                self.create_map(name, Shape::new::<K, V>(options))?;
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
        let wanted = Shape::new::<K, V>(MapOptions::default());
        if !found.same_types(wanted) {
            let (found, wanted) = (found.to_string(), wanted.to_string());
            return Err(Error::WrongType {
                name: name.into(),
                found,
                wanted,
            });
        }
        let (mut maps, open) = self.core.open_map(maps, slot);
        if let Some(tree) = open {
            return Ok(Map::new(tree));
        }
        // While the registry was unlocked the map may have been dropped.
        if self.find(name)? != slot {
            drop(maps);
            return self.open_map(name);
        }
        let tree = LbTree::open(Arc::clone(&self.core), slot)?;
        maps.insert(slot, Arc::downgrade(&tree));
        Ok(Map::new(tree))
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.core
            .slots()
            .find(|&slot| self.core.name_of(slot) == name)
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
        match LbTree::format(&self.core, slot) {
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
                kind: "lbtree",
                leaf_bytes: shape.leaf_bytes(),
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
        self.core.shrink()
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
    fn accept_if_whole(&self) -> Result<()> {
        for slot in self.core.slots().collect::<Vec<_>>() {
            let tree = LbTree::open(Arc::clone(&self.core), slot)?;
            if let Some(problem) = tree.check()?.into_iter().next() {
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

const LBTREE: u64 = 1;

impl Shape {
    fn new<K: Key, V: Value>(options: MapOptions) -> Self {
        let types = (K::TYPE as u64) << 8 | (V::TYPE as u64) << 16;
        Self(LBTREE | types | u64::from(options.leaf_bytes) << 32)
    }

    fn same_types(self, other: Self) -> bool {
        // The name's length and the leaf's size are no matter of type.
        (self.0 ^ other.0) & 0x00ff_ffff == 0
    }

    fn key(self) -> Option<Type> {
        Type::from_code((self.0 >> 8) as u8)
    }

    fn value(self) -> Option<Type> {
        Type::from_code((self.0 >> 16) as u8)
    }

    fn leaf_bytes(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.key(), self.value()) {
            (Some(key), Some(value)) if self.0 as u8 as u64 == LBTREE => {
                write!(f, "{key} to {value}")
            }
            _ => write!(f, "something that this version does not know"),
        }
    }
}
