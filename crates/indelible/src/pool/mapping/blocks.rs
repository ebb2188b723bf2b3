//! Blocks of the disk: reserved before anything is stored, so that a full disk is an error and never a signal.
//!
//! A store to a mapped page of a file needs a free block in two cases: the page is in a *hole* (a part of the file that has
//! no block), or its block is *shared* with another file, so that the store gets a copy. A pool that this library has
//! written has neither where it is used. But `cp --sparse=always` makes holes of zeros, and `cp` on XFS or btrfs lets both
//! files share all blocks. Such extents are found when the pool is opened ([`Mapping::without_blocks`]) and get blocks of
//! their own ([`Mapping::allocate`]) before anything is written.
//!
//! On tmpfs, blocks are memory, and *reading* a hole through a mapping takes memory too, also through one that is private or
//! for reading only. There a pool that is opened for reading has its holes read at the open, in a way that is an error, and
//! not a signal, if there is too little memory.

use super::{Backing, Mapping};
use crate::pool::files::{expect_within_limit, is_no_space};
use crate::pool::layout::{EXTENT_BYTES, TABLE_AT};
use crate::pool::system::{self, STRETCHES, Stretch};
use crate::{Error, Result};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::Advice;
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The unit in which extent 0 has its blocks.
const PAGE: u64 = 4096;

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// Where the part of extent 0 ends that is in use in a pool of `extents` extents: the pages up to the last word of the
/// extent table that says something.
pub(in crate::pool) fn metadata_end(extents: u64) -> u64 {
    (TABLE_AT + extents * 8)
        .next_multiple_of(PAGE)
        .clamp(EXTENT_BYTES.min(TABLE_AT + PAGE), EXTENT_BYTES)
}

impl Mapping {
    /// Reserves the bytes of the file from `from` to `to` on the disk, so that writing them cannot fail.
    pub(in crate::pool) fn allocate(&self, from: u64, to: u64) -> Result<()> {
        if let Backing::Memory(memory) = &self.backing {
            memory.set_length(memory.length().max(to));
        }
        match &self.backing {
            Backing::File { file, .. } => {
                self.allocate_in(file, from..to)?;
                if self.backing.syncs_length() {
                    return self.sync();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn allocate_in(&self, file: &File, bytes: Range<u64>) -> Result<()> {
        self.check_file_limit(file, bytes.end)?;
        let reserve = |flags| system::fallocate(file, flags, bytes.start, bytes.end - bytes.start);
        let mut reserved = Err(Errno::OPNOTSUPP);
        if self.is_shared.load(Ordering::Relaxed) {
            reserved = reserve(FallocateFlags::UNSHARE_RANGE);
            if is_unsupported(reserved) {
                // The file system gives a file blocks of its own when it writes shared ones.
                self.rewrite(file, bytes.clone())?;
            }
        }
        if is_unsupported(reserved) {
            reserved = reserve(FallocateFlags::empty());
        }
        if is_unsupported(reserved) {
            // On a file system without `fallocate`, writing reserves the blocks.
            self.rewrite(file, bytes.clone())?;
            return self.write_zeros(file, bytes.end);
        }
        reserved.map_err(|errno| self.growth_error(errno, bytes.end))
    }

    /// The file system refuses to make a part of the file ready that ends at `to`.
    fn growth_error(&self, errno: Errno, to: u64) -> Error {
        if is_no_space(errno) {
            let (path, error) = (self.path().display(), std::io::Error::from(errno));
            return Error::NoSpace(format!("{path} cannot have {to} bytes: {error}"));
        }
        self.backing.error("grow", errno)
    }

    /// A process that makes a file longer than its `RLIMIT_FSIZE` is killed by a signal.
    fn check_file_limit(&self, file: &File, to: u64) -> Result<()> {
        let Err(beyond) = expect_within_limit(self.path(), to) else {
            return Ok(());
        };
        let length = system::length(file).map_err(|errno| self.backing.error("look at", errno))?;
        if to <= length { Ok(()) } else { Err(beyond) }
    }

    /// Writes all that a file of `length` bytes has once more, and syncs it: the page cache has it, and the disk perhaps not. Nobody writes to it meanwhile.
    pub(in crate::pool) fn write_again(&self, length: u64) -> Result<()> {
        match &self.backing {
            Backing::File { file, .. } => self.rewrite(file, 0..length),
            _ => Ok(()),
        }
    }

    /// Writes what the file has there once more.
    fn rewrite(&self, file: &File, bytes: Range<u64>) -> Result<()> {
        let length = system::length(file).map_err(|errno| self.backing.error("look at", errno))?;
        let end = bytes.end.min(length);
        if bytes.start >= end {
            return Ok(());
        }
        // Unlike `fallocate`, a write is refused also where the file is that long.
        expect_within_limit(self.path(), end)?;
        let mut chunk = vec![0; CHUNK.min((end - bytes.start) as usize)];
        for at in (bytes.start..end).step_by(CHUNK) {
            let part = (end - at).min(CHUNK as u64) as usize;
            system::read_at(file, &mut chunk[..part], at)
                .map_err(|errno| self.backing.error("read", errno))?;
            system::write_at(file, &chunk[..part], at)
                .map_err(|errno| self.growth_error(errno, end))?;
        }
        // Some file systems look for blocks only when they write to the disk.
        self.noting_failure(system::fsync(file))
            .map_err(|errno| self.growth_error(errno, end))
    }

    /// Some file systems cannot reserve. All that lies beyond the end is written, so that there never is a hole.
    fn write_zeros(&self, file: &File, to: u64) -> Result<()> {
        let length = system::length(file).map_err(|errno| self.backing.error("look at", errno))?;
        let zeros = vec![0; CHUNK];
        for at in (length..to).step_by(CHUNK) {
            let part = &zeros[..CHUNK.min((to - at) as usize)];
            system::write_at(file, part, at).map_err(|errno| self.growth_error(errno, to))?;
        }
        Ok(())
    }

    /// Reserves the bytes from `from` to `to`, which are whole extents, and maps them; or leaves the file ending at `from`.
    pub(in crate::pool) fn extend(&self, from: u64, to: u64) -> Result<()> {
        let extended = if self.is_memory_file {
            (from..to)
                .step_by(EXTENT_BYTES as usize)
                .try_for_each(|at| self.extend_in_memory(at))
        } else {
            self.allocate(from, to)
                .and_then(|()| self.map_new(from, to))
        };
        if extended.is_err() {
            // Others may need what this attempt had already got, and nothing may stay mapped that has no blocks.
            self.cut_back(from, to);
        }
        extended
    }

    /// [`extend`](Self::extend) by one extent, for a file on tmpfs.
    fn extend_in_memory(&self, from: u64) -> Result<()> {
        let to = from + EXTENT_BYTES;
        if !self.has_room(EXTENT_BYTES) {
            // It may have its memory already. If not, this is refused at once; to ask for a huge page would take up to a
            // tenth of a second, for which the kernel gathers one.
            self.allocate(from, to)?;
            return self.map(from, to);
        }
        // Collapsing an extent that has a page fills it with one huge page, in a third of the time that it takes to
        // allocate small ones and then to copy them into a huge one.
        self.allocate(to - PAGE, to)?;
        self.map(from, to)?;
        if self.collapse(from / EXTENT_BYTES) {
            return Ok(());
        }
        self.allocate(from, to)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.room().is_none_or(|room| room >= bytes)
    }

    /// Bytes that the file system has to give, where it tells and has a limit.
    pub(in crate::pool) fn room(&self) -> Option<u64> {
        let Backing::File { file, .. } = &self.backing else {
            return None;
        };
        let room = system::room(file)
            .ok()
            .filter(|system| system.f_blocks > 0)?;
        Some(room.f_bavail.saturating_mul(room.f_frsize))
    }

    /// Gives back what an attempt to reserve the bytes from `from` to `to` has left behind. A hint: opening the pool,
    /// and making it longer, allow for a file that is longer than the pool.
    fn cut_back(&self, from: u64, to: u64) {
        let Backing::File { file, .. } = &self.backing else {
            return;
        };
        if system::length(file).is_ok_and(|length| length >= from) {
            let _ = self.cut(from, to);
        }
    }
}

/// Holes and shared blocks of a file that another program may have written.
impl Mapping {
    /// Reserves the part of extent 0 that a pool of `extents` extents uses, if it is not reserved. It is mapped, but before it is
    /// reserved nothing may be read there: on tmpfs, reading a hole takes memory, and is a signal if there is too little.
    pub(in crate::pool) fn reserve_metadata(&self, extents: u64) -> Result<()> {
        let end = metadata_end(extents);
        if self.needs_blocks() && !self.find_without_blocks(0..end)?.is_empty() {
            self.reserve_again(0..end)?;
        }
        Ok(())
    }

    /// Those of a pool's `extents` extents, the first left out, that have no blocks of their own, or not everywhere. Their
    /// number apart, this takes time that grows with the number of stretches in which the file lies on the disk.
    pub(in crate::pool) fn without_blocks(&self, extents: u64) -> Result<BTreeSet<u64>> {
        if !self.needs_blocks() {
            return Ok(BTreeSet::new());
        }
        // What lies beyond the pool's end may have shared blocks too, and that has to be known when the pool grows.
        let end = extents.max(self.file_extents()?) * EXTENT_BYTES;
        let mut found = self.find_without_blocks(EXTENT_BYTES..end)?;
        found.split_off(&extents);
        Ok(found)
    }

    /// Reserves bytes that the file has already, and which are mapped.
    pub(in crate::pool) fn reserve_again(&self, bytes: Range<u64>) -> Result<()> {
        let is_read_only = matches!(
            self.backing,
            Backing::File {
                read_only: true,
                ..
            }
        );
        if !is_read_only {
            return self.allocate(bytes.start, bytes.end);
        }
        let address = self.base.wrapping_add(bytes.start as usize);
        let length = (bytes.end - bytes.start) as usize;
        // SAFETY: the range is mapped, says the caller; to read it changes no contents. Where a read would end in a signal
        // this is an error.
        match unsafe { system::advise(address.cast(), length, Advice::LinuxPopulateRead) } {
            Err(Errno::FAULT | Errno::NOMEM) => Err(Error::NoSpace(format!(
                "to read the holes of {} takes memory, and its file system has too little",
                self.path().display()
            ))),
            // Linux before 5.14 cannot, and offers no other way to find out.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(self.backing.error("read", errno)),
        }
    }

    /// Whether a part of the file that has no block could do harm.
    fn needs_blocks(&self) -> bool {
        match &self.backing {
            Backing::File { read_only, .. } => !read_only || self.is_on_tmpfs,
            _ => false,
        }
    }

    fn find_without_blocks(&self, bytes: Range<u64>) -> Result<BTreeSet<u64>> {
        let Backing::File { file, .. } = &self.backing else {
            return Ok(BTreeSet::new());
        };
        let found = match self.by_stretches(file, bytes.clone()) {
            // tmpfs, network file systems and others do not tell.
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS | Errno::INVAL) => {
                by_seeking(file, bytes)
            }
            found => found,
        };
        found.map_err(|errno| self.backing.error("find the holes of", errno))
    }

    /// By the list of the stretches that have blocks.
    fn by_stretches(&self, file: &File, bytes: Range<u64>) -> rustix::io::Result<BTreeSet<u64>> {
        let mut found = BTreeSet::new();
        let mut add = |from: u64, to: u64| {
            if from < to {
                found.extend(from / EXTENT_BYTES..to.div_ceil(EXTENT_BYTES));
            }
        };
        let mut at = bytes.start;
        while at < bytes.end {
            let stretches = system::stretches(file, at, bytes.end - at)?;
            let is_last = stretches.len() < STRETCHES;
            for stretch in stretches {
                let (from, to) = (stretch.from, stretch.from + stretch.length);
                add(at, from.min(bytes.end));
                if stretch.flags & Stretch::SHARED != 0 {
                    self.is_shared.store(true, Ordering::Relaxed);
                    add(from.max(bytes.start), to.min(bytes.end));
                }
                at = at.max(to);
                if stretch.flags & Stretch::LAST != 0 {
                    break;
                }
            }
            if is_last {
                break;
            }
        }
        add(at, bytes.end);
        Ok(found)
    }
}

/// By the count of the file's blocks, and if that is not what a pool should have by looking for data. A page that is reserved
/// and has never been written may look like a hole; to reserve it again does no harm.
fn by_seeking(file: &File, bytes: Range<u64>) -> rustix::io::Result<BTreeSet<u64>> {
    let stat = system::fstat(file)?;
    let (length, blocks) = (stat.st_size as u64, stat.st_blocks as u64 * 512);
    // What it has without the part of extent 0 that is not used; the last page of extent 0 is reserved as well.
    let unused = EXTENT_BYTES.saturating_sub(metadata_end(length / EXTENT_BYTES) + PAGE);
    let mut found = BTreeSet::new();
    if blocks >= length || blocks == length - unused.min(length) {
        return Ok(found);
    }
    let mut at = bytes.start;
    while at < bytes.end {
        let hole = match system::next_hole(file, at) {
            Err(Errno::NXIO) => at,
            hole => hole?,
        };
        if hole >= bytes.end {
            break;
        }
        found.insert(hole / EXTENT_BYTES);
        at = (hole / EXTENT_BYTES + 1) * EXTENT_BYTES;
    }
    Ok(found)
}

fn is_unsupported(result: rustix::io::Result<()>) -> bool {
    matches!(result, Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
}
