//! The pool's calls into the operating system that can fail: one thin function each.
//!
//! They are in one place so that a test can let any of them fail: in the library's own tests the N-th call that a thread
//! makes, or a thread that [`spawn`] has started for it, returns an error of the test's choice (see `faults`). In all
//! other builds nothing is counted.

mod absent;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, Result, retry_on_intr};
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::path::Path;
use std::thread::{Builder, JoinHandle};

pub(super) use absent::Absent;
pub(super) use rustix::fs::{Stat, StatVfs};

/// Fails if a test wants this call to.
#[inline(always)]
fn fault() -> Result<()> {
    #[cfg(all(test, not(loom)))]
    faults::count()?;
    Ok(())
}

/// Makes a call again that a signal has interrupted.
fn retried<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    retry_on_intr(|| {
        fault()?;
        call()
    })
}

/// Calls that a test may want to be told of before they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Sync,
    Lock,
}

/// Tells a test that this thread is about to make such a call.
#[inline(always)]
fn before(_call: Call) {
    #[cfg(all(test, not(loom)))]
    faults::tell(_call);
}

pub(super) fn open(path: &Path, flags: OFlags, mode: u32) -> Result<File> {
    let mode = Mode::from_raw_mode(mode);
    retried(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, mode)).map(File::from)
}

pub(super) fn stat(path: &Path) -> Result<Stat> {
    fault()?;
    rustix::fs::stat(path)
}

/// [`stat`] that does not follow a symbolic link.
pub(super) fn lstat(path: &Path) -> Result<Stat> {
    fault()?;
    rustix::fs::lstat(path)
}

pub(super) fn fstat(file: &File) -> Result<Stat> {
    fault()?;
    rustix::fs::fstat(file)
}

/// Bytes in the file.
pub(super) fn length(file: &File) -> Result<u64> {
    fstat(file).map(|stat| stat.st_size as u64)
}

/// The number that says which file system the file is on.
pub(super) fn file_system(file: &File) -> Result<u64> {
    fault()?;
    rustix::fs::fstatfs(file).map(|system| system.f_type as u64)
}

/// How much room the file's file system has.
pub(super) fn room(file: &File) -> Result<StatVfs> {
    fault()?;
    rustix::fs::fstatvfs(file)
}

/// The first place at or after `at` that has no data, as far as the file system tells; at the latest the end of the file.
pub(super) fn next_hole(file: &File, at: u64) -> Result<u64> {
    fault()?;
    rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(at))
}

pub(super) fn fallocate(file: &File, flags: FallocateFlags, from: u64, length: u64) -> Result<()> {
    retried(|| rustix::fs::fallocate(file, flags, from, length))
}

pub(super) fn ftruncate(file: &File, length: u64) -> Result<()> {
    retried(|| rustix::fs::ftruncate(file, length))
}

/// Reads as much of `bytes` as the file has at `at`.
pub(super) fn read_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        let read = retried(|| rustix::io::pread(file, &mut *bytes, at))?;
        if read == 0 {
            return Ok(());
        }
        bytes = &mut bytes[read..];
        at += read as u64;
    }
    Ok(())
}

pub(super) fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        let written = retried(|| {
            #[cfg(all(test, not(loom)))]
            faults::before_write();
            rustix::io::pwrite(file, bytes, at)
        })?;
        if written == 0 {
            return Err(Errno::NOSPC);
        }
        bytes = &bytes[written..];
        at += written as u64;
    }
    Ok(())
}

pub(super) fn fsync(file: &File) -> Result<()> {
    before(Call::Sync);
    retried(|| rustix::fs::fsync(file))
}

/// Waits until all that was written to the file's file system is on the disk, names too.
pub(super) fn sync_file_system(file: &File) -> Result<()> {
    before(Call::Sync);
    retried(|| rustix::fs::syncfs(file))
}

/// Asks for a part of a file to be read into the page cache. A hint.
pub(super) fn read_ahead(file: &File, at: u64, length: u64) {
    let length = std::num::NonZeroU64::new(length);
    let _ = rustix::fs::fadvise(file, at, length, rustix::fs::Advice::WillNeed);
}

/// Has what is read by way of this opening of a file brought into the page cache page by page. A hint.
///
/// Read ahead, many pages get one folio. ext4 goes through all blocks of a folio (up to 512) at each write to one of them.
pub(super) fn read_no_more_than_asked(file: &File) {
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
}

/// Copies a part of a file to the same place in another one; returns how much.
pub(super) fn copy_range(from: &File, to: &File, at: u64, length: u64) -> Result<u64> {
    let copied = retried(|| {
        let (mut there, mut here) = (at, at);
        rustix::fs::copy_file_range(from, Some(&mut there), to, Some(&mut here), length as usize)
    });
    copied.map(|copied| copied as u64)
}

/// [`fsync`] without what is not needed to read the file again.
pub(super) fn fdatasync(file: &File) -> Result<()> {
    before(Call::Sync);
    retried(|| rustix::fs::fdatasync(file))
}

/// [`fdatasync`] of a part of a file, at least, which begins at a page. Linux has that for what is mapped only.
pub(super) fn sync_range(file: &File, from: u64, length: u64) -> Result<()> {
    let (length, protection) = (length as usize, ProtFlags::READ);
    let (anywhere, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let mapped = unsafe { map(anywhere, length, protection, flags, file, from) };
    let Ok(mapped) = mapped else {
        // The process may have as many mappings as it can.
        return fdatasync(file);
    };
    // SAFETY: it has just been mapped.
    let synced = unsafe { msync(mapped, length) };
    // SAFETY: the mapping is this function's own.
    let _ = unsafe { unmap(mapped, length) };
    synced
}

/// Has the disk begin to write a part of a file, without waiting for it. A hint.
pub(super) fn begin_write(file: &File, from: u64, length: u64) {
    use std::os::fd::AsRawFd;
    let (file, flags) = (file.as_raw_fd(), libc::SYNC_FILE_RANGE_WRITE);
    // SAFETY: it takes no memory.
    let _ = unsafe { libc::sync_file_range(file, from as i64, length as i64, flags) };
}

pub(super) fn flock(file: &File, operation: FlockOperation) -> Result<()> {
    before(Call::Lock);
    retried(|| rustix::fs::flock(file, operation))
}

/// Gives a file that is open, and has no name, one.
pub(super) fn link(opened: &Path, path: &Path) -> Result<()> {
    fault()?;
    rustix::fs::linkat(CWD, opened, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Renames a file, unless the new name is taken.
pub(super) fn rename(from: &Path, to: &Path) -> Result<()> {
    fault()?;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
            rustix::fs::unlink(from).inspect_err(|_| {
                // An error leaves the file with its old name alone.
                let _ = rustix::fs::unlink(to);
            })
        }
        result => result,
    }
}

pub(super) fn unlink(path: &Path) -> Result<()> {
    fault()?;
    rustix::fs::unlink(path)
}

/// Maps a part of a file, at `address`.
///
/// # Safety
///
/// That of [`rustix::mm::mmap`].
pub(super) unsafe fn map(
    address: *mut c_void,
    length: usize,
    protection: ProtFlags,
    flags: MapFlags,
    file: &File,
    from: u64,
) -> Result<*mut c_void> {
    fault()?;
    // SAFETY: the caller's.
    unsafe { rustix::mm::mmap(address, length, protection, flags, file, from) }
}

/// Maps memory of no file.
///
/// # Safety
///
/// That of [`rustix::mm::mmap_anonymous`].
pub(super) unsafe fn map_anonymous(
    address: *mut c_void,
    length: usize,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<*mut c_void> {
    fault()?;
    // SAFETY: the caller's.
    unsafe { rustix::mm::mmap_anonymous(address, length, protection, flags) }
}

/// # Safety
///
/// That of [`rustix::mm::munmap`].
pub(super) unsafe fn unmap(address: *mut c_void, length: usize) -> Result<()> {
    fault()?;
    // SAFETY: the caller's.
    unsafe { rustix::mm::munmap(address, length) }
}

/// # Safety
///
/// That of [`rustix::mm::madvise`].
pub(super) unsafe fn advise(address: *mut c_void, length: usize, advice: Advice) -> Result<()> {
    fault()?;
    // SAFETY: the caller's.
    unsafe { rustix::mm::madvise(address, length, advice) }
}

/// Copies a region into a huge page at once (`MADV_COLLAPSE`, Linux 6.1).
///
/// # Safety
///
/// The region is mapped.
pub(super) unsafe fn collapse(address: *mut c_void, length: usize) -> Result<()> {
    const MADV_COLLAPSE: i32 = 25;
    fault()?;
    // SAFETY: collapsing changes no contents, and the region is mapped, says the caller.
    match unsafe { libc::madvise(address, length, MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// # Safety
///
/// That of [`rustix::mm::msync`].
pub(super) unsafe fn msync(address: *mut c_void, length: usize) -> Result<()> {
    before(Call::Sync);
    // SAFETY: the caller's.
    retried(|| unsafe { rustix::mm::msync(address, length, MsyncFlags::SYNC) })
}

/// A stretch of a file that has blocks, as `FIEMAP` tells; `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Stretch {
    pub(super) from: u64,
    physical: u64,
    pub(super) length: u64,
    reserved: [u64; 2],
    pub(super) flags: u32,
    reserved_too: [u32; 3],
}

impl Stretch {
    /// There is none after this one.
    pub(super) const LAST: u32 = 1;
    /// Another file has these blocks too.
    pub(super) const SHARED: u32 = 0x2000;
}

/// Stretches that one call returns at most: 14 KiB of them.
pub(super) const STRETCHES: usize = 256;

/// `struct fiemap`, with its array.
#[repr(C)]
struct FileMap {
    header: FileMapHeader,
    stretches: [Stretch; STRETCHES],
}

#[repr(C)]
#[derive(Default)]
struct FileMapHeader {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<Stretch>() == 56 && size_of::<FileMapHeader>() == 32);

/// The first stretches of the file that have blocks and do not end before `from`.
pub(super) fn stretches(file: &File, from: u64, length: u64) -> Result<Vec<Stretch>> {
    use std::os::fd::AsRawFd;
    fault()?;
    let mut map = Box::new(FileMap {
        header: FileMapHeader {
            start: from,
            length,
            count: STRETCHES as u32,
            ..FileMapHeader::default()
        },
        stretches: [Stretch::default(); STRETCHES],
    });
    let operation = rustix::ioctl::opcode::read_write::<FileMapHeader>(b'f', 11);
    // SAFETY: FS_IOC_FIEMAP takes a header and fills the array behind it, with at most as many as the header says.
    if unsafe { libc::ioctl(file.as_raw_fd(), operation as _, &raw mut *map) } != 0 {
        return Err(last_error());
    }
    Ok(map.stretches[..(map.header.mapped as usize).min(STRETCHES)].to_vec())
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Starts a thread, in which calls count as the caller's do.
pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    fault()?;
    #[cfg(all(test, not(loom)))]
    let work = faults::inherited(work);
    Builder::new().name(name.into()).spawn(work)
}

/// Faults on purpose.
#[cfg(all(test, not(loom)))]
pub(super) mod faults {
    use crate::concurrency::sync::lock;
    use rustix::io::{Errno, Result};
    use std::cell::RefCell;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    /// Which call is to fail, and how.
    pub(in crate::pool) struct Plan {
        calls: AtomicU64,
        failing: u64,
        /// How many calls fail, from that one on.
        failures: u64,
        errno: Errno,
        /// What is done before the first write to a file after the call that has failed.
        meanwhile: Mutex<Option<Meanwhile>>,
    }

    type Meanwhile = Box<dyn FnOnce() + Send>;

    thread_local! {
        static PLAN: RefCell<Option<Arc<Plan>>> = const { RefCell::new(None) };
    }

    pub(super) fn count() -> Result<()> {
        PLAN.with_borrow(|plan| {
            let Some(plan) = plan else {
                return Ok(());
            };
            let call = plan.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if call >= plan.failing && call - plan.failing < plan.failures {
                return Err(plan.errno);
            }
            Ok(())
        })
    }

    /// A file is about to be written.
    pub(super) fn before_write() {
        PLAN.with_borrow(|plan| {
            let has_failed = |plan: &&Arc<Plan>| plan.calls.load(Ordering::Relaxed) > plan.failing;
            if let Some(plan) = plan.as_ref().filter(has_failed)
                && let Some(work) = lock(&plan.meanwhile).take()
            {
                work();
            }
        });
    }

    /// What is told of calls.
    type Told = Box<dyn FnMut(super::Call)>;

    thread_local! {
        static TOLD: RefCell<Option<Told>> = const { RefCell::new(None) };
    }

    pub(super) fn tell(call: super::Call) {
        // What it calls itself it is not told of.
        let Some(mut told) = TOLD.take() else { return };
        told(call);
        TOLD.set(Some(told));
    }

    /// Does `work`, and tells `told` before each of these calls that this thread makes.
    pub(in crate::pool) fn telling<T>(
        told: impl FnMut(super::Call) + 'static,
        work: impl FnOnce() -> T,
    ) -> T {
        TOLD.set(Some(Box::new(told)));
        let result = work();
        TOLD.set(None);
        result
    }

    /// The work, to be done with the plan of the thread that calls this.
    pub(super) fn inherited(work: impl FnOnce() + Send) -> impl FnOnce() + Send {
        let plan = PLAN.with_borrow(Clone::clone);
        move || {
            PLAN.set(plan);
            work();
        }
    }

    /// Lets the `failing`-th call fail that `work` makes, counted from 1. Returns what `work` does, and whether there was
    /// such a call.
    pub(in crate::pool) fn at<T>(
        failing: u64,
        errno: Errno,
        work: impl FnOnce() -> T,
    ) -> (T, bool) {
        run((failing, 1), errno, None, work)
    }

    /// [`at`], and so many calls fail, one after the other.
    pub(in crate::pool) fn from<T>(
        failing: u64,
        failures: u64,
        errno: Errno,
        work: impl FnOnce() -> T,
    ) -> (T, bool) {
        run((failing, failures), errno, None, work)
    }

    /// [`at`], and before the first write to a file after that call something else is done, as if by another thread.
    pub(in crate::pool) fn at_and_meanwhile<T>(
        failing: u64,
        errno: Errno,
        meanwhile: impl FnOnce() + Send + 'static,
        work: impl FnOnce() -> T,
    ) -> (T, bool) {
        run((failing, 1), errno, Some(Box::new(meanwhile)), work)
    }

    /// How many calls the work does.
    pub(in crate::pool) fn calls_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
        let mut calls = 0;
        let (result, _) = run((u64::MAX, 1), Errno::IO, None, || {
            let result = work();
            PLAN.with_borrow(|plan| {
                calls = plan
                    .as_ref()
                    .map_or(0, |plan| plan.calls.load(Ordering::Relaxed));
            });
            result
        });
        (result, calls)
    }

    fn run<T>(
        (failing, failures): (u64, u64),
        errno: Errno,
        meanwhile: Option<Meanwhile>,
        work: impl FnOnce() -> T,
    ) -> (T, bool) {
        let plan = Arc::new(Plan {
            calls: AtomicU64::new(0),
            failing,
            failures,
            errno,
            meanwhile: Mutex::new(meanwhile),
        });
        PLAN.set(Some(Arc::clone(&plan)));
        let result = work();
        PLAN.set(None);
        (result, plan.calls.load(Ordering::Relaxed) >= failing)
    }
}
