//! Opening: from a path and a wish to a pool, or to the reason why not.

use super::core::{Opening, PoolCore};
use super::files::{NewFile, io_error, lock_file, open_file};
use super::layout::{COPY_BYTES, EXTENT_BYTES, TABLE_AT};
use super::mapping::{Backing, Mapping};
use super::superblock::{Promise, Superblock};
use super::{Durability, system};
use crate::pmem::{FlushInstruction, Medium};
use crate::{Error, Result};
use rustix::fs::OFlags;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Decides whether a pool that was open when the machine went down is whole: the layers above know what is in it.
pub(crate) type Accept<'a> = &'a dyn Fn(&Arc<PoolCore>) -> Result<()>;

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
    mode: u32,
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
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::PoolOptions;
    /// let pool = PoolOptions::new().in_memory()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new() -> Self {
        Self {
            durability: None,
            force_power_loss_protocol: false,
            max_bytes: DEFAULT_MAX_BYTES,
            mode: 0o600,
            salvage: false,
            huge_pages: true,
            boot: None,
        }
    }

    /// What the pool shall survive. Verified at open, never assumed.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::{Durability, PoolOptions};
    /// let pool = PoolOptions::new().durability(Durability::Process).create(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = Some(durability);
        self
    }

    /// With [`Durability::PowerLoss`]: flush and fence as on persistent memory, but accept any file. For tests and
    /// measurements; it does **not** make an ordinary file survive power loss.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::{Durability, PoolOptions};
    /// let mut options = PoolOptions::new();
    /// options.durability(Durability::PowerLoss).force_power_loss_protocol(true);
    /// let pool = options.create(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn force_power_loss_protocol(&mut self, yes: bool) -> &mut Self {
        self.force_power_loss_protocol = yes;
        self
    }

    /// The most bytes that the pool may ever have: the address range that is reserved. Default, and limit of the format:
    /// 496 GiB. Under `RLIMIT_AS` no more than half of the address space that is left is reserved, or what an existing pool
    /// needs: the rest is for the heap and for the stacks of threads.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::{Error, PoolOptions};
    /// let map = PoolOptions::new().max_bytes(4 << 20).in_memory()?.map::<u64, u64>("m")?;
    /// let full = map.extend((0..1_000_000).map(|i| (i, i)));
    /// assert!(matches!(full, Err(Error::NoSpace(_))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_bytes(&mut self, bytes: u64) -> &mut Self {
        self.max_bytes = bytes;
        self
    }

    /// The permissions of a new pool's file, less the process's umask. Default `0o600`: no other user may read it. Without
    /// effect on a pool that exists.
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("shared.pool");
    /// use std::os::unix::fs::PermissionsExt;
    /// indelible::PoolOptions::new().mode(0o640).create(&path)?;
    /// let others = std::fs::metadata(&path).unwrap().permissions().mode() & 0o007;
    /// assert_eq!(others, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode & 0o7777;
        self
    }

    /// Accept a pool that was open when the machine went down, if a check of every map finds it whole. O(records).
    ///
    /// What the check proves is order, not completeness: pages that the disk has in an older state, in a way that fits
    /// together, look like a map that is missing the latest changes.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::PoolOptions;
    /// drop(PoolOptions::new().create(&path)?);
    /// let pool = PoolOptions::new().salvage(true).open(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn salvage(&mut self, yes: bool) -> &mut Self {
        self.salvage = yes;
        self
    }

    /// Ask for huge pages. Default yes; where they cannot be had nothing is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// use indelible::PoolOptions;
    /// let pool = PoolOptions::new().huge_pages(false).in_memory()?;
    /// # Ok(())
    /// # }
    /// ```
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
    pub(crate) fn create_core(&self, path: &Path) -> Result<Arc<PoolCore>> {
        let name = || random_uuid().map(|[a, b]| format!("{a:016x}{b:016x}"));
        let (new, file) = NewFile::create(path, self.mode, name)?;
        let core = self.create_in(file, path)?;
        if let Some(file) = core.mapping().file() {
            new.publish(file)?;
        }
        Ok(core)
    }

    fn create_in(&self, file: File, path: &Path) -> Result<Arc<PoolCore>> {
        let durability = self.durability.unwrap_or_default();
        let (promise, medium) = self.promise(durability)?;
        let backing = Backing::File {
            file,
            path: path.to_owned(),
            read_only: false,
            sync: promise == Promise::PowerLoss,
        };
        self.create_over(backing, medium, self.fresh(random_uuid()?, promise))
    }

    /// What the superblock of a new pool says.
    fn fresh(&self, uuid: [u64; 2], promise: Promise) -> Superblock {
        Superblock {
            uuid,
            sequence: 0,
            generation: 0,
            promise,
            clean: true,
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
        let opening = Opening {
            mapping,
            medium,
            superblock,
            boot: self.boot_words(),
        };
        let core = PoolCore::open(opening)?;
        core.begin_writing()?;
        Ok(Arc::new(core))
    }

    /// Opens an existing pool for reading and writing. O(1) in the number of records, unless the file has holes or shares
    /// blocks with another one, since `cp` has made it: then the pool gets blocks of its own first.
    pub(crate) fn open_core(&self, path: &Path, accept: Accept) -> Result<Arc<PoolCore>> {
        let file = open_file(path, OFlags::RDWR)?;
        lock_file(&file, path, false)?;
        self.open_locked(file, path, accept)
    }

    fn open_locked(&self, file: File, path: &Path, accept: Accept) -> Result<Arc<PoolCore>> {
        let superblock = read_superblock(&file, path)?;
        self.open_over(superblock, accept, |promise| Backing::File {
            file,
            path: path.to_owned(),
            read_only: false,
            sync: promise == Promise::PowerLoss,
        })
    }

    fn open_over(
        &self,
        mut superblock: Superblock,
        accept: Accept,
        backing: impl FnOnce(Promise) -> Backing,
    ) -> Result<Arc<PoolCore>> {
        // Where the system does not tell, no boot is the same.
        let same_boot = superblock.boot == self.boot_words() && superblock.boot != [0; 2];
        let went_down = !superblock.clean && superblock.promise.is_page_cached() && !same_boot;
        if went_down && !self.salvage {
            return Err(Error::MachineWentDown);
        }
        let mut changed = false;
        let medium = match self.durability {
            Some(durability) => {
                let (promise, medium) = self.promise(durability)?;
                changed = superblock.promise != promise;
                superblock.promise = promise;
                medium
            }
            None => medium_of(superblock.promise)?,
        };
        let backing = backing(superblock.promise);
        let used = superblock.bytes();
        let mapping = Mapping::reserve(backing, used, self.max_bytes, self.huge_pages)?;
        let opening = Opening {
            mapping,
            medium,
            superblock,
            boot: self.boot_words(),
        };
        let core = Arc::new(PoolCore::open(opening)?);
        if went_down {
            accept(&core)?;
        }
        if changed {
            // What was written under the old promise has to be as safe as the new one says.
            core.sync()?;
        }
        core.begin_writing()?;
        Ok(core)
    }

    /// Opens a pool, creating it if the file does not exist.
    pub(crate) fn open_or_create_core(&self, path: &Path, accept: Accept) -> Result<Arc<PoolCore>> {
        match self.open_core(path, accept) {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                match self.create_core(path) {
                    // Another process was faster.
                    Err(Error::Io { source, .. })
                        if source.kind() == std::io::ErrorKind::AlreadyExists =>
                    {
                        self.open_core(path, accept)
                    }
                    result => result,
                }
            }
            result => result,
        }
    }

    /// Opens a cleanly closed pool for reading only. Any number of processes may do so at once.
    pub(crate) fn open_read_only_core(&self, path: &Path) -> Result<Arc<PoolCore>> {
        let file = open_file(path, OFlags::RDONLY)?;
        lock_file(&file, path, true)?;
        let superblock = read_superblock(&file, path)?;
        if !superblock.clean {
            return Err(Error::NotClean);
        }
        let backing = Backing::File {
            file,
            path: path.to_owned(),
            read_only: true,
            sync: false,
        };
        let used = superblock.bytes();
        let mapping = Mapping::reserve(backing, used, self.max_bytes, self.huge_pages)?;
        let boot = self.boot_words();
        let opening = Opening {
            mapping,
            medium: Medium::Process,
            superblock,
            boot,
        };
        Ok(Arc::new(PoolCore::open(opening)?))
    }

    /// A pool in anonymous memory, which survives nothing.
    pub(crate) fn in_memory_core(&self) -> Result<Arc<PoolCore>> {
        let superblock = self.fresh(random_uuid()?, Promise::Process);
        self.create_over(Backing::Anonymous, Medium::Dram, superblock)
    }

    /// Creates a pool in `memory`, which is zero. For the crash checker.
    #[allow(dead_code, reason = "only the crash checker has such memory")]
    pub(crate) fn create_in_memory(
        &self,
        memory: &Arc<crate::pmem::Memory>,
    ) -> Result<Arc<PoolCore>> {
        let (promise, medium) = self.promise(self.durability.unwrap_or_default())?;
        let superblock = self.fresh([1, 2], promise);
        self.create_over(Backing::Memory(Arc::clone(memory)), medium, superblock)
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
        self.open_over(superblock, accept, |_| Backing::Memory(Arc::clone(memory)))
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
    system::open(source, OFlags::RDONLY, 0)
        .and_then(|random| system::read_at(&random, &mut bytes, 0))
        .map_err(|errno| io_error("read", source, errno))?;
    let number = u128::from_ne_bytes(bytes);
    Ok([number as u64, (number >> 64) as u64])
}

fn read_superblock(file: &File, path: &Path) -> Result<Superblock> {
    let io = |errno| io_error("read", path, errno);
    let length = system::length(file).map_err(io)?;
    let mut bytes = vec![0; length.min(2 * COPY_BYTES as u64) as usize];
    system::read_at(file, &mut bytes, 0).map_err(io)?;
    Superblock::read(path, &bytes, length)
}
