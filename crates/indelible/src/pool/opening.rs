//! Opening: from a path and a wish to a pool, or to the reason why not.

use super::core::{Opening, PoolCore};
use super::files::{LockedFile, NewFile, expect_within_limit, io_error, open_and_lock};
use super::layout::{EXTENT_BYTES, SUPERBLOCK_BYTES, TABLE_AT};
use super::log::{self, Backlog, Last};
use super::machine::{boot_identity, is_in_memory, is_persistent_memory, medium_of, random_uuid};
use super::mapping::{Access, Backing, Mapping};
use super::superblock::{Promise, Superblock};
use super::{Bug, Durability, PoolOptions, system};
use crate::pmem::Medium;
use crate::pmem::planted::planted;
use crate::{Error, Result};
use rustix::fs::OFlags;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Decides whether a pool that was open when the machine went down is whole: the layers above know what is in it.
pub(crate) type Accept<'a> = &'a dyn Fn(&Arc<PoolCore>) -> Result<()>;

impl PoolOptions {
    /// Creates a new pool.
    pub(crate) fn create_core(&self, path: &Path) -> Result<Arc<PoolCore>> {
        let name = || random_uuid().map(|[a, b]| format!("{a:016x}{b:016x}"));
        let (new, file) = NewFile::create(path, self.mode, name)?;
        let (core, promise) = self.create_in(file, path)?;
        if promise.is_logged() {
            // There may be the log of a pool that was moved away, or removed.
            log::expect_no_log(core.mapping().log_path())?;
        } else {
            core.begin_writing()?;
        }
        if let Some(file) = core.mapping().file() {
            new.publish(file)?;
        }
        if promise.is_logged() {
            // The pool has its name, and is clean, before it has a log: so a crash leaves no log without a pool.
            core.begin_writing().inspect_err(|error| {
                // Another file, or the log of another pool, may have got that name since.
                if !is_taken(error) && !matches!(error, Error::Locked(_)) {
                    let _ = system::unlink(core.mapping().log_path());
                }
                let _ = system::unlink(path);
            })?;
        }
        Ok(core)
    }

    /// A new pool that is not open for writing yet.
    fn create_in(&self, file: LockedFile, path: &Path) -> Result<(Arc<PoolCore>, Promise)> {
        let durability = self.durability.unwrap_or_default();
        let (promise, medium) = self.promise(durability, Some(&file))?;
        let backing = Backing::File {
            file,
            path: path.to_owned(),
            log: log_place(path, promise.is_logged())?,
            read_only: false,
            access: access_of(promise),
        };
        let core = self.create_over(backing, medium, self.fresh(random_uuid()?, promise))?;
        if promise.is_logged() {
            core.write_new_superblock()?;
        }
        Ok((core, promise))
    }

    /// What the superblock of a new pool says.
    fn fresh(&self, uuid: [u64; 2], promise: Promise) -> Superblock {
        Superblock {
            uuid,
            sequence: 0,
            generation: 0,
            promise,
            clean: true,
            earlier: 0,
            boot: self.boot_words(),
            extents: 1,
        }
    }

    fn create_over(
        &self,
        backing: Backing,
        medium: Medium,
        superblock: Superblock,
    ) -> Result<Arc<PoolCore>> {
        let mapping = Mapping::reserve(backing, 0, self.max_bytes, self.huge_pages)?;
        mapping.allocate(0, EXTENT_BYTES.min(TABLE_AT + 4096))?;
        mapping.allocate(EXTENT_BYTES - 4096, EXTENT_BYTES)?;
        self.open_mapped(mapping, medium, superblock, None)
    }

    fn open_mapped(
        &self,
        mapping: Mapping,
        medium: Medium,
        superblock: Superblock,
        backlog: Option<Arc<Backlog>>,
    ) -> Result<Arc<PoolCore>> {
        let opening = Opening {
            mapping,
            medium,
            superblock,
            boot: self.boot_words(),
            log_bytes: self.log_bytes,
            backlog,
        };
        PoolCore::open(opening).map(Arc::new)
    }

    /// Opens an existing pool for reading and writing. O(1) in the number of records, unless the file has holes or shares
    /// blocks with another one, since `cp` has made it: then the pool gets blocks of its own first.
    pub(crate) fn open_core(&self, path: &Path, accept: Accept) -> Result<Arc<PoolCore>> {
        let file = open_and_lock(path, OFlags::RDWR)?;
        self.open_locked(file, path, accept)
    }

    fn open_locked(&self, file: LockedFile, path: &Path, accept: Accept) -> Result<Arc<PoolCore>> {
        let mut superblock = read_superblock(&file, path)?;
        let has_log = !superblock.clean && superblock.promise.is_logged();
        let is_asked_for = !matches!(self.durability, None | Some(Durability::Process));
        let log = log_place(path, is_asked_for || superblock.promise.is_logged())?;
        let mut backlog = None;
        if has_log {
            (superblock, backlog) = self.read_log(&file, path, &log, &superblock)?;
        }
        let (promise, medium) = self.promise_for(&superblock, Some(&file))?;
        let backing = Backing::File {
            file,
            path: path.to_owned(),
            log: log.clone(),
            read_only: false,
            access: access_of(promise),
        };
        let core = self.open_over(superblock, backlog, accept, (promise, medium), backing)?;
        if has_log && !core.promise().is_logged() {
            let _ = system::unlink(&log);
        }
        Ok(core)
    }

    /// Reads the log of a pool that was not closed. Returns the superblock with what the log has for it, and the records that are not in the
    /// file: none if the pool is to have no log any more, and they are applied now.
    fn read_log(
        &self,
        file: &File,
        path: &Path,
        log: &Path,
        superblock: &Superblock,
    ) -> Result<(Superblock, Option<Arc<Backlog>>)> {
        let (promise, _) = self.promise_for(superblock, Some(file))?;
        let (mut bytes, length) = superblock_bytes(file, path)?;
        let mut backlog = Backlog::find(log, &Last::of(superblock, &bytes))?;
        if !promise.is_logged() {
            expect_within_limit(path, length)?;
            backlog.apply_to(file, path)?;
            return Ok((read_superblock(file, path)?, None));
        }
        // The pool may have grown since.
        backlog.complete_superblocks(&mut bytes);
        let superblock = Superblock::read(path, &bytes, length)?;
        backlog.cut_at(superblock.bytes());
        let backlog = (!backlog.is_empty()).then(|| Arc::new(backlog));
        Ok((superblock, backlog))
    }

    fn open_over(
        &self,
        mut superblock: Superblock,
        backlog: Option<Arc<Backlog>>,
        accept: Accept,
        (promise, medium): (Promise, Medium),
        backing: Backing,
    ) -> Result<Arc<PoolCore>> {
        // Where the system does not tell, no boot is the same.
        let boot = self.boot_words();
        let is_unsynced = superblock.is_unsynced(boot) && boot != [0; 2];
        let same_boot = superblock.boot == boot && boot != [0; 2] || is_unsynced;
        let went_down = !superblock.clean && superblock.promise.is_page_cached() && !same_boot;
        if went_down && !self.salvage {
            return Err(Error::MachineWentDown);
        }
        let changed = superblock.promise != promise;
        superblock.promise = promise;
        let used = superblock.bytes();
        let mapping = Mapping::reserve(backing, used, self.max_bytes, self.huge_pages)?;
        let core = self.open_mapped(mapping, medium, superblock, backlog)?;
        if went_down {
            accept(&core)?;
        }
        if is_unsynced {
            core.mapping().write_again(used)?;
        }
        if medium == Medium::Pmem && !planted(Bug::DeathNotSynced) {
            // What the last process stored and did not flush before it died is in the caches: this process sees it, and builds on it, and a power cut would
            // take it back. Nothing but a sync of the file knows which lines these are. (Also if the superblock says that the pool was closed: that may be what
            // is in the caches.)
            core.mapping().sync_after_death()?;
        }
        if changed {
            // What was written under the old promise has to be as safe as the new one says.
            core.sync_under_new_promise()?;
        }
        core.begin_writing()?;
        Ok(core)
    }

    /// Opens a pool, creating it if the file does not exist.
    pub(crate) fn open_or_create_core(&self, path: &Path, accept: Accept) -> Result<Arc<PoolCore>> {
        match self.open_core(path, accept) {
            Err(error) if is_missing(&error) => {
                let created = self.create_core(path);
                let is_taken = created.as_ref().is_err_and(is_taken);
                if !is_taken {
                    return created;
                }
                match self.open_core(path, accept) {
                    // What is in the way is no pool: a symbolic link to nothing, or a log.
                    Err(error) if is_missing(&error) => created,
                    // Another process was faster.
                    opened => opened,
                }
            }
            result => result,
        }
    }

    /// Opens a cleanly closed pool for reading only. Any number of processes may do so at once.
    pub(crate) fn open_read_only_core(&self, path: &Path) -> Result<Arc<PoolCore>> {
        let file = open_and_lock(path, OFlags::RDONLY)?;
        let superblock = read_superblock(&file, path)?;
        if !superblock.clean {
            return Err(Error::NotClean);
        }
        let backing = Backing::File {
            file,
            path: path.to_owned(),
            log: PathBuf::new(),
            read_only: true,
            access: Access::PageCache,
        };
        let used = superblock.bytes();
        let mapping = Mapping::reserve(backing, used, self.max_bytes, self.huge_pages)?;
        self.open_mapped(mapping, Medium::Process, superblock, None)
    }

    /// Reads the log of a pool that was not closed, and changes nothing. `None` for a pool that has no log, or needs none.
    pub(crate) fn log_of(&self, path: &Path) -> Result<Option<log::Recovered>> {
        let file = open_and_lock(path, OFlags::RDONLY)?;
        let (bytes, length) = superblock_bytes(&file, path)?;
        let superblock = Superblock::read(path, &bytes, length)?;
        if superblock.clean || !superblock.promise.is_logged() {
            return Ok(None);
        }
        let last = Last::of(&superblock, &bytes);
        log::verify(&log::log_path(path)?, &last).map(Some)
    }

    /// A pool in anonymous memory, which survives nothing.
    pub(crate) fn in_memory_core(&self) -> Result<Arc<PoolCore>> {
        let superblock = self.fresh(random_uuid()?, Promise::Process);
        let core = self.create_over(Backing::Anonymous, Medium::Dram, superblock)?;
        core.begin_writing()?;
        Ok(core)
    }

    /// Creates a pool in `memory`, which is zero. For the crash checker.
    #[allow(dead_code, reason = "only the crash checker has such memory")]
    pub(crate) fn create_in_memory(
        &self,
        memory: &Arc<crate::pmem::Memory>,
    ) -> Result<Arc<PoolCore>> {
        let (promise, medium) = self.promise(self.durability.unwrap_or_default(), None)?;
        let superblock = self.fresh([1, 2], promise);
        let core = self.create_over(Backing::Memory(Arc::clone(memory)), medium, superblock)?;
        core.begin_writing()?;
        Ok(core)
    }

    /// Opens the pool in `memory`, whose first bytes are `first`. For the crash checker.
    #[allow(dead_code, reason = "only the crash checker has such memory")]
    pub(crate) fn open_in_memory(
        &self,
        memory: &Arc<crate::pmem::Memory>,
        first: &[u8],
        accept: Accept,
    ) -> Result<Arc<PoolCore>> {
        let length = memory.length();
        let first = &first[..first.len().min(length as usize)];
        let superblock = Superblock::read(Path::new("(memory)"), first, length)?;
        let promise = self.promise_for(&superblock, None)?;
        let backing = Backing::Memory(Arc::clone(memory));
        self.open_over(superblock, None, accept, promise, backing)
    }

    /// What to promise for a pool that is there, as [`promise`](Self::promise).
    fn promise_for(
        &self,
        superblock: &Superblock,
        file: Option<&File>,
    ) -> Result<(Promise, Medium)> {
        if let Some(durability) = self.durability {
            return self.promise(durability, file);
        }
        self.expect_disk(superblock.promise, file)?;
        Ok((superblock.promise, medium_of(superblock.promise)?))
    }

    /// What to promise for a file, and the medium that keeps the promise. Without a file, for the memory of the crash checker.
    fn promise(&self, durability: Durability, file: Option<&File>) -> Result<(Promise, Medium)> {
        let on_persistent_memory = || file.map_or(Ok(false), is_persistent_memory);
        let promise = match durability {
            Durability::Process => Promise::Process,
            Durability::PowerLoss if self.force_power_loss_protocol => Promise::ForcedPowerLoss,
            Durability::PowerLoss if on_persistent_memory()? => Promise::PowerLoss,
            Durability::PowerLoss => Promise::Logged,
            Durability::Interval(interval) => {
                let millis = interval.as_millis().clamp(1, u32::MAX.into());
                Promise::LoggedAtIntervals(millis as u32)
            }
        };
        self.expect_disk(promise, file)?;
        Ok((promise, medium_of(promise)?))
    }

    /// An error if a pool with a log would be in memory.
    fn expect_disk(&self, promise: Promise, file: Option<&File>) -> Result<()> {
        let is_in_memory = || file.map_or(Ok(false), is_in_memory);
        if promise.is_logged() && !self.log_anywhere && is_in_memory()? {
            return Err(Error::NoPowerLossSafety(
                "it is in memory (tmpfs), and not on a disk; there, use it with Durability::Process",
            ));
        }
        Ok(())
    }

    fn boot_words(&self) -> [u64; 2] {
        let bytes = self.boot.unwrap_or_else(boot_identity);
        let [a, b] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i])));
        [a, b]
    }
}

/// Where the log of a pool lies that has one, or may get one. One that has none can be opened also where the whole path is not to be had.
fn log_place(path: &Path, may_have_log: bool) -> Result<PathBuf> {
    match may_have_log {
        true => log::log_path(path),
        false => Ok(PathBuf::new()),
    }
}

/// How stores to a pool reach its file.
fn access_of(promise: Promise) -> Access {
    match promise {
        Promise::PowerLoss => Access::Direct,
        Promise::Logged | Promise::LoggedAtIntervals(_) => Access::Image,
        Promise::Process | Promise::ForcedPowerLoss => Access::PageCache,
    }
}

/// Whether an error says that there is something of that name already.
fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists)
}

/// Whether an error says that there is nothing of that name.
fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
}

fn read_superblock(file: &File, path: &Path) -> Result<Superblock> {
    let (bytes, length) = superblock_bytes(file, path)?;
    Superblock::read(path, &bytes, length)
}

/// The bytes of both superblocks, as far as the file has them, and its length.
fn superblock_bytes(file: &File, path: &Path) -> Result<(Vec<u8>, u64)> {
    let io = |errno| io_error("read", path, errno);
    let length = system::length(file).map_err(io)?;
    let mut bytes = vec![0; length.min(SUPERBLOCK_BYTES as u64) as usize];
    system::read_at(file, &mut bytes, 0).map_err(io)?;
    Ok((bytes, length))
}
