//! How to open a pool: the options. What is done with them is in `opening`.

use super::Durability;

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
    pub(super) durability: Option<Durability>,
    pub(super) force_power_loss_protocol: bool,
    pub(super) max_bytes: u64,
    pub(super) mode: u32,
    pub(super) salvage: bool,
    pub(super) huge_pages: bool,
    pub(super) boot: Option<[u8; 16]>,
    pub(super) log_bytes: u64,
    pub(super) log_anywhere: bool,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Address space reserved unless `max_bytes` says otherwise: more than the format's limit.
const DEFAULT_MAX_BYTES: u64 = 512 << 30;

/// Bytes that a log may have: what is written to the pool's file behind the scenes after a crash, a second or less of an SSD's time.
const DEFAULT_LOG_BYTES: u64 = 64 << 20;

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
            log_bytes: DEFAULT_LOG_BYTES,
            log_anywhere: false,
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

    /// The most bytes that the pool may ever have: the address range that is reserved. Rounded up to a multiple of 2 MiB. Default, and limit of the format:
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
    /// effect on a pool that exists. The log of a pool gets the permissions that the pool's file has when the log is created, less the umask.
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

    /// The most bytes that the log of a pool may have, which lies beside the pool in `PATH.log`: with [`Durability::PowerLoss`] on a file
    /// that is not on persistent memory, and with [`Durability::Interval`]. Default 64 MiB, at least 4 MiB, at most 64 GiB; what is outside is taken
    /// for the nearest of these. When the log is half full, its
    /// older half is written into the pool's file; a longer log writes words that change often less often, and takes longer to read
    /// after a power cut.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> indelible::Result<()> {
    /// # let directory = tempfile::tempdir_in(".").unwrap();
    /// # let path = directory.path().join("a.pool");
    /// use indelible::{Durability, PoolOptions};
    /// let mut options = PoolOptions::new();
    /// let pool = options.durability(Durability::PowerLoss).log_bytes(16 << 20).create(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn log_bytes(&mut self, bytes: u64) -> &mut Self {
        self.log_bytes = bytes;
        self
    }

    /// Accept a file in memory (tmpfs) for a pool with a log, which survives no power cut there. For tests.
    #[doc(hidden)]
    pub fn log_anywhere(&mut self, yes: bool) -> &mut Self {
        self.log_anywhere = yes;
        self
    }

    /// Pretend that the machine has this boot identity. For tests.
    #[doc(hidden)]
    pub fn boot_identity(&mut self, boot: [u8; 16]) -> &mut Self {
        self.boot = Some(boot);
        self
    }
}
