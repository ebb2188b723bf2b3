//! The pool's bytes in memory: a reserved range of addresses, and a file mapped at its start, piece by piece.
//!
//! The base address never changes while the pool is open, so growing moves nothing. Space on the disk is reserved before it
//! is mapped (see `blocks`), so a full disk is an error here and never a signal later.

mod blocks;
mod late;

pub(super) use blocks::metadata_end;

use super::files::{LockedFile, expect_within_limit, write_error};
use super::layout::{EXTENT_BYTES, MAX_EXTENTS, TABLE_AT};
use super::system;
use crate::pmem::{Medium, Pm};
use crate::{Error, Result};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// What is mapped.
pub(super) enum Backing {
    Anonymous,
    File {
        file: LockedFile,
        path: PathBuf,
        /// Where the pool's log lies, if it has one.
        log: PathBuf,
        read_only: bool,
        access: Access,
    },
    /// The crash checker's stand-in for a file on persistent memory. Other builds have no value of this type.
    #[allow(dead_code, reason = "only the crash checker makes one")]
    Memory(std::sync::Arc<crate::pmem::Memory>),
}

/// How stores reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Through the page cache, at a time of the kernel's choice.
    PageCache,
    /// At once: the file is on persistent memory, mapped with `MAP_SYNC`.
    Direct,
    /// Not at all: the memory is a private image of the file, which is written only from the pool's log.
    Image,
}

/// The bytes of a pool, mapped.
pub(super) struct Mapping {
    base: *mut u8,
    /// Bytes of address space, a multiple of the extent size.
    reserved: u64,
    /// After a crash, what provides the image with the log's words. Dropped before the file, so that the log is unlocked before the file is.
    late: late::Late,
    backing: Backing,
    huge_pages: bool,
    is_on_tmpfs: bool,
    /// The file is on tmpfs, and may be put on huge pages.
    is_memory_file: bool,
    /// Another file had blocks of this one too when it was opened.
    is_shared: AtomicBool,
    /// Why a sync of the file has failed, the first that has.
    failed_sync: OnceLock<Errno>,
}

// SAFETY: the range belongs to this value alone; what is in it is accessed through atomics.
unsafe impl Send for Mapping {}
// SAFETY: the range is accessed through atomics; parts of it are mapped and unmapped under the pool's growth lock, or by a thread that is waited for
// under that lock before anybody else does.
unsafe impl Sync for Mapping {}

// A pool is mapped whole, and lengths and offsets in it are converted to addresses: where those are shorter, a length would become another one, and what is
// mapped at a fixed address would lie on somebody else's memory.
const _: () = assert!(
    MAX_EXTENTS * EXTENT_BYTES <= usize::MAX as u64,
    "pools need addresses of 64 bits"
);

/// What `statfs` calls tmpfs, where files are memory.
pub(super) const TMPFS: u64 = 0x0102_1994;

/// What `statfs` calls ramfs, likewise.
pub(super) const RAMFS: u64 = 0x8584_58f6;

impl Mapping {
    /// Reserves addresses for up to `max_bytes`, of which the pool has `used` already, with nothing mapped yet.
    pub(super) fn reserve(
        backing: Backing,
        used: u64,
        max_bytes: u64,
        huge_pages: bool,
    ) -> Result<Self> {
        if let Backing::Memory(memory) = &backing {
            return Ok(Self {
                base: memory.base() as *mut u8,
                reserved: memory.capacity() as u64,
                backing,
                huge_pages: false,
                is_on_tmpfs: false,
                is_memory_file: false,
                is_shared: AtomicBool::new(false),
                failed_sync: OnceLock::new(),
                late: late::Late::default(),
            });
        }
        let fair = fair_share().max(used).max(EXTENT_BYTES);
        let most = MAX_EXTENTS * EXTENT_BYTES;
        let mut reserved = max_bytes.min(fair).min(most).next_multiple_of(EXTENT_BYTES);
        let is_on_tmpfs = backing.is_on_tmpfs();
        let is_image = backing.is_image();
        loop {
            // One extent more, so that the start can be aligned.
            let length = (reserved + EXTENT_BYTES) as usize;
            // SAFETY: a new range at an address of the kernel's choice, not accessible.
            match unsafe {
                system::map_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), RESERVE)
            } {
                Ok(start) => {
                    let aligned =
                        start.map_addr(|address| address.next_multiple_of(EXTENT_BYTES as usize));
                    return Ok(Self {
                        base: aligned.cast(),
                        reserved,
                        is_on_tmpfs,
                        is_memory_file: huge_pages && is_on_tmpfs && !is_image,
                        is_shared: AtomicBool::new(false),
                        failed_sync: OnceLock::new(),
                        late: late::Late::default(),
                        backing,
                        huge_pages,
                    }
                    .trimmed(start.cast()));
                }
                // A limit on address space is no reason to refuse a small pool.
                Err(_) if reserved > 64 * EXTENT_BYTES => {
                    reserved = (reserved / 2).next_multiple_of(EXTENT_BYTES)
                }
                Err(errno) => return Err(backing.error("reserve address space for", errno)),
            }
        }
    }

    /// Gives back the parts of the range before and after the aligned one.
    fn trimmed(self, start: *mut u8) -> Self {
        let before = self.base as usize - start as usize;
        let after = EXTENT_BYTES as usize - before;
        // SAFETY: both parts belong to the range just reserved and lie outside the part that is kept.
        unsafe {
            if before > 0 {
                let _ = system::unmap(start.cast(), before);
            }
            if after > 0 {
                let _ = system::unmap(self.base.add(self.reserved as usize).cast(), after);
            }
        }
        self
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    pub(super) fn path(&self) -> &Path {
        match &self.backing {
            Backing::File { path, .. } => path,
            _ => Path::new("(memory)"),
        }
    }

    /// Where the log of a pool in a file lies, if it has one.
    pub(super) fn log_path(&self) -> &Path {
        match &self.backing {
            Backing::File { log, .. } => log,
            _ => Path::new("(memory)"),
        }
    }

    pub(super) fn file(&self) -> Option<&File> {
        match &self.backing {
            Backing::File { file, .. } => Some(file),
            _ => None,
        }
    }

    /// Whether what is written here outlives the process.
    pub(super) fn is_durable(&self) -> bool {
        !matches!(self.backing, Backing::Anonymous)
    }

    /// Maps the bytes from `from` to `to`, both multiples of the extent size.
    pub(super) fn map(&self, from: u64, to: u64) -> Result<()> {
        self.map_as(from, to, false)
    }

    /// [`map`](Self::map), of bytes that the file has not had before, and which are zero there.
    fn map_new(&self, from: u64, to: u64) -> Result<()> {
        self.map_as(from, to, self.backing.is_image())
    }

    /// `without_file`: the bytes are zero in the file, and an image of them needs nothing of it. Unlike a private mapping of a file,
    /// anonymous memory can be put on huge pages.
    fn map_as(&self, from: u64, to: u64, without_file: bool) -> Result<()> {
        if self.is_model() {
            return Ok(());
        }
        let address = self.base.wrapping_add(from as usize).cast::<c_void>();
        let length = (to - from) as usize;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the range lies in the reserved one, which is ours, and nothing in it is in use: it is mapped for the
        // first time, or again after a shrink that waited for all readers.
        let mapped = unsafe {
            match &self.backing {
                Backing::File {
                    file,
                    read_only,
                    access,
                    ..
                } if !without_file => {
                    let protection = if *read_only { ProtFlags::READ } else { both };
                    let sharing = match access {
                        Access::PageCache => MapFlags::SHARED,
                        Access::Direct => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
                        Access::Image => RESERVE,
                    };
                    system::map(
                        address,
                        length,
                        protection,
                        sharing | MapFlags::FIXED,
                        file,
                        from,
                    )
                }
                _ => system::map_anonymous(address, length, both, ANONYMOUS),
            }
        };
        match mapped {
            Ok(_) => {}
            Err(Errno::OPNOTSUPP) => {
                return Err(Error::NoPowerLossSafety(
                    "it is not on persistent memory (no MAP_SYNC)",
                ));
            }
            Err(errno) => return Err(self.backing.error("map", errno)),
        }
        if self.huge_pages {
            // SAFETY: the range was just mapped; the advice changes no contents. Where it is not taken nothing is lost.
            let _ = unsafe { system::advise(address, length, Advice::LinuxHugepage) };
        }
        Ok(())
    }

    /// Unmaps the bytes from `from` to `to` and cuts them off the end of the file. No thread uses them.
    pub(super) fn cut(&self, from: u64, to: u64) -> Result<()> {
        if let Backing::Memory(memory) = &self.backing {
            memory.set_length(from);
            return Ok(());
        }
        // The thread that provides the image knows nothing of extents that go.
        self.finish_completion();
        let address = self.base.wrapping_add(from as usize).cast::<c_void>();
        // SAFETY: the range lies in the reserved one, which is ours, and the caller has waited for all readers that might use it.
        unsafe {
            system::map_anonymous(
                address,
                (to - from) as usize,
                ProtFlags::empty(),
                RESERVE | MapFlags::FIXED,
            )
        }
        .map_err(|errno| self.backing.error("unmap a part of", errno))?;
        if let Backing::File { file, .. } = &self.backing {
            system::ftruncate(file, from).map_err(|errno| self.backing.error("shrink", errno))?;
            if self.backing.syncs_length() {
                // As when it grows: on persistent memory stores do not wait for the file's length.
                return self.sync();
            }
        }
        Ok(())
    }

    /// Asks for the extent to be put on a huge page now; whether it is on one. tmpfs honours this even where huge pages are
    /// off by default.
    pub(super) fn collapse(&self, extent: u64) -> bool {
        if !self.huge_pages {
            return false;
        }
        let address = self.base.wrapping_add((extent * EXTENT_BYTES) as usize);
        // SAFETY: the extent is mapped; collapsing changes no contents. It may be refused, and then nothing is lost.
        unsafe { system::collapse(address.cast(), EXTENT_BYTES as usize) }.is_ok()
    }

    /// Allocates the memory of a mapped extent now, rather than when the extent is first used. A hint.
    pub(super) fn populate(&self, extent: u64) {
        let address = self.base.wrapping_add((extent * EXTENT_BYTES) as usize);
        let (address, length) = (address.cast(), EXTENT_BYTES as usize);
        // SAFETY: the extent is mapped; populating it changes no contents.
        let _ = unsafe { system::advise(address, length, Advice::LinuxPopulateWrite) };
    }

    /// Length of the file in extents, begun ones included; 0 without a file.
    pub(super) fn file_extents(&self) -> Result<u64> {
        if let Backing::Memory(memory) = &self.backing {
            return Ok(memory.length().div_ceil(EXTENT_BYTES));
        }
        let Backing::File { file, .. } = &self.backing else {
            return Ok(0);
        };
        let length = system::length(file).map_err(|errno| self.backing.error("look at", errno))?;
        Ok(length.min(self.reserved).div_ceil(EXTENT_BYTES))
    }

    /// Whether this is the crash checker's stand-in for a file.
    pub(super) fn is_model(&self) -> bool {
        !matches!(self.backing, Backing::Anonymous | Backing::File { .. })
    }

    /// The [`Pm`] that writes durable words of this mapping.
    pub(super) fn pm(&self, medium: Medium) -> Pm {
        if self.is_model() {
            // The crash checker decides what a flush does.
            return Pm::with_instruction(medium, crate::pmem::FlushInstruction::None);
        }
        Pm::new(medium)
    }

    /// Waits until all of the file is on the disk.
    pub(super) fn sync(&self) -> Result<()> {
        match &self.backing {
            Backing::File { file, .. } => self
                .noting_failure(system::fsync(file))
                .map_err(|errno| self.backing.error("sync", errno)),
            _ => Ok(()),
        }
    }

    /// [Syncs](Self::sync) after the death of a process, whose stores may be in the caches of the processor and nowhere else. The crash checker has it as an event.
    pub(super) fn sync_after_death(&self) -> Result<()> {
        match &self.backing {
            Backing::Memory(memory) => {
                memory.sync();
                Ok(())
            }
            _ => self.sync(),
        }
    }

    /// Remembers a sync of the file that has failed.
    fn noting_failure(&self, synced: rustix::io::Result<()>) -> rustix::io::Result<()> {
        synced.inspect_err(|&errno| _ = self.failed_sync.set(errno))
    }

    /// An error if a sync of the file has failed. What was stored before may not be on the disk then, and no later sync brings it there or says so: the
    /// kernel reports the error once, and takes the pages for clean.
    pub(super) fn expect_synced(&self) -> Result<()> {
        match self.failed_sync.get() {
            None => Ok(()),
            Some(&errno) => Err(self.backing.error("sync", errno)),
        }
    }

    /// Makes the file end at `length` if it is longer. Nothing is mapped behind that.
    pub(super) fn cut_file(&self, length: u64) -> Result<()> {
        let Backing::File { file, .. } = &self.backing else {
            return Ok(());
        };
        if self.file_bytes()? > length {
            system::ftruncate(file, length).map_err(|errno| self.backing.error("shrink", errno))?;
        }
        Ok(())
    }

    /// Length of the file in bytes; 0 without a file.
    pub(super) fn file_bytes(&self) -> Result<u64> {
        let Backing::File { file, .. } = &self.backing else {
            return Ok(0);
        };
        system::length(file).map_err(|errno| self.backing.error("look at", errno))
    }

    /// Reads from the file, and not from the image.
    pub(super) fn read_file(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        let Backing::File { file, .. } = &self.backing else {
            return Ok(());
        };
        system::read_at(file, bytes, at).map_err(|errno| self.backing.error("read", errno))
    }

    /// Copies the file, as long as it is now, to a new one: with shared blocks where the file system can.
    pub(super) fn copy_file(&self, from: &File, to: &File, path: &Path) -> Result<()> {
        let failed = |errno| write_error(path, errno);
        let end = self.file_bytes()?;
        expect_within_limit(path, end)?;
        let mut at = 0;
        while at < end {
            match system::copy_range(from, to, at, (end - at).min(COPIED_AT_ONCE)) {
                Ok(0) => break,
                Ok(copied) => at += copied,
                // Not every pair of file systems can.
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    let mut bytes = vec![0; (end - at).min(1 << 20) as usize];
                    self.read_file(&mut bytes, at)?;
                    system::write_at(to, &bytes, at).map_err(failed)?;
                    at += bytes.len() as u64;
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(())
    }

    /// Writes to the file, and not to the image, and waits until that is on the disk.
    pub(super) fn write_file_for_good(&self, bytes: &[u8], at: u64) -> Result<()> {
        let Backing::File { file, .. } = &self.backing else {
            return Ok(());
        };
        system::write_at(file, bytes, at).map_err(|errno| self.backing.error("write", errno))?;
        self.sync()
    }

    /// Waits until the metadata extent's first pages are on the disk.
    pub(super) fn sync_superblock(&self) -> Result<()> {
        if !matches!(self.backing, Backing::File { .. }) {
            return Ok(());
        }
        // SAFETY: the metadata extent is mapped; writing it back changes no contents.
        let synced = unsafe { system::msync(self.base.cast(), TABLE_AT as usize) };
        self.noting_failure(synced)
            .map_err(|errno| self.backing.error("sync", errno))
    }
}

/// Bytes that one call copies at most, so that it can be interrupted.
const COPIED_AT_ONCE: u64 = 64 << 20;

const RESERVE: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);
const ANONYMOUS: MapFlags = MapFlags::PRIVATE
    .union(MapFlags::NORESERVE)
    .union(MapFlags::FIXED);

/// Bytes of address space that one pool may reserve beyond what it needs: half of what is left under `RLIMIT_AS`. The rest is
/// for the heap, the stacks of threads (of which the C library reserves 64 MiB each beside their own) and for more pools, each
/// of which gets half of what it finds.
fn fair_share() -> u64 {
    let Some(limit) = getrlimit(Resource::As).current else {
        return u64::MAX;
    };
    // The first number is the size of all mappings, in pages.
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let used = pages.unwrap_or(0) * rustix::param::page_size() as u64;
    limit.saturating_sub(used) / 2
}

impl Backing {
    fn is_image(&self) -> bool {
        matches!(
            self,
            Self::File {
                access: Access::Image,
                ..
            }
        )
    }

    /// Whether a change of the file's length is to be on the disk before anything that depends on it: what depends on it may be
    /// durable before the next sync of the file.
    fn syncs_length(&self) -> bool {
        let Self::File { access, .. } = self else {
            return false;
        };
        *access != Access::PageCache
    }

    fn is_on_tmpfs(&self) -> bool {
        let Self::File { file, .. } = self else {
            return false;
        };
        system::file_system(file).is_ok_and(|system| system == TMPFS)
    }

    fn error(&self, action: &'static str, errno: Errno) -> Error {
        let path = match self {
            Self::File { path, .. } => path.clone(),
            _ => PathBuf::from("(memory)"),
        };
        Error::Io {
            action,
            path,
            source: errno.into(),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_model() {
            return;
        }
        self.late.stop();
        // SAFETY: the range is ours, and with the mapping all references into it are gone.
        let _ = unsafe { system::unmap(self.base.cast(), self.reserved as usize) };
    }
}
