//! What the log needs of a disk: a file of segments that is mapped, and the pool's file that records are applied to. Tests have
//! other ones, see `simulate`.

use super::apply::PAGE_BYTES;
use super::record::{Header, Identity, SECTOR_WORDS, SEGMENT_BYTES, SEGMENT_WORDS};
use crate::pool::files::{
    LockedFile, OPEN, directory_of, expect_within_limit, io_error, is_file, is_one_file, lock_file,
    sync_name,
};
use crate::pool::system;
use crate::{Error, Result};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::borrow::Borrow;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Words of a segment: its slot, and which.
pub(super) type Place = (usize, Range<usize>);

/// The file that has the segments of the log.
pub(super) trait LogDevice: Send + Sync {
    /// How many segments there are.
    fn segments(&self) -> usize;

    /// How many segments there may be.
    fn most_segments(&self) -> usize;

    /// A segment. What is stored to it, and then [written out](Self::write_out), outlives the process, and is on the disk after the next
    /// [`sync`](Self::sync).
    fn segment(&self, slot: usize) -> &[AtomicU64];

    /// Gives these words to the system.
    fn write_out(&self, place: &Place) -> Result<()>;

    /// Makes the file one segment longer. The new segment is on the disk, so that to write it needs no space. `false` if there are as
    /// many as there can be.
    fn add_segment(&self) -> Result<bool>;

    /// Makes the next sync write the pages of these words, also if a sync of an earlier process has failed: its pages may count as written
    /// then, and are not.
    fn touch(&self, place: &Place) -> Result<()>;

    /// Waits until everything that was stored before the call is on the disk.
    fn sync(&self) -> Result<()>;

    /// Waits until these words, at least, are on the disk as they were before the call.
    fn sync_words(&self, places: &[Place]) -> Result<()>;

    /// [`sync_words`](Self::sync_words) for a thread that does not sync for the operations. An error has to reach both.
    fn sync_beside(&self, place: &Place) -> Result<()>;

    /// Has the disk begin to write these words, so that they are on it after whatever is synced next. A hint.
    fn begin_write(&self, _place: &Place) {}

    /// Removes the file's name, if it is still this file's. A hint.
    fn remove(&self) {}

    /// The lock on the file, for whoever opens the file once more for the same pool.
    fn lock(&self) -> Option<Arc<LockedFile>> {
        None
    }
}

/// The file of the pool, as the log writes it.
pub(super) trait DataFile: Send + Sync {
    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()>;

    fn write(&self, bytes: &[u8], at: u64) -> Result<()>;

    /// Waits until everything that was written before the call is on the disk.
    fn sync(&self) -> Result<()>;

    /// Writes, and waits until that is on the disk.
    fn write_for_good(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.write(bytes, at)?;
        self.sync()
    }

    fn length(&self) -> Result<u64>;

    /// A hint that this place is about to be written, and has to be read before.
    fn expect_write(&self, _at: u64) {}
}

/// A pool's file.
pub(super) struct PlainFile<F: Borrow<File>> {
    pub(super) file: F,
    pub(super) path: PathBuf,
}

impl PlainFile<File> {
    /// The file of an open pool, once more. Linux tells each opening of a file by itself of an error: if the applier and a thread that
    /// makes the pool longer shared one, a sync of the latter would take the error of a sync of the former.
    pub(super) fn reopened(file: &File, path: &Path) -> Result<Self> {
        let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let again = match system::open(&opened, OFlags::RDWR, 0) {
            // There may be no `/proc`.
            Err(Errno::NOENT) => open_again(file, path),
            again => again,
        };
        let again = again.map_err(|errno| io_error("open", path, errno))?;
        system::read_no_more_than_asked(&again);
        Ok(Self {
            file: again,
            path: path.to_owned(),
        })
    }
}

/// Opens a file once more by its name, which may have been given to another one.
fn open_again(file: &File, path: &Path) -> rustix::io::Result<File> {
    let again = system::open(path, OFlags::RDWR | OPEN, 0)?;
    let is_same = is_one_file(&system::fstat(file)?, &system::fstat(&again)?);
    is_same.then_some(again).ok_or(Errno::STALE)
}

impl<F: Borrow<File>> PlainFile<F> {
    fn io(&self, action: &'static str) -> impl Fn(rustix::io::Errno) -> Error + '_ {
        move |errno| io_error(action, &self.path, errno)
    }
}

impl<F: Borrow<File> + Send + Sync> DataFile for PlainFile<F> {
    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        system::read_at(self.file.borrow(), bytes, at).map_err(self.io("read"))
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        system::write_at(self.file.borrow(), bytes, at).map_err(self.io("write"))
    }

    fn sync(&self) -> Result<()> {
        system::fsync(self.file.borrow()).map_err(self.io("sync"))
    }

    fn length(&self) -> Result<u64> {
        system::length(self.file.borrow()).map_err(self.io("look at"))
    }

    fn expect_write(&self, at: u64) {
        system::read_ahead(self.file.borrow(), at, 4096);
    }
}

/// Where the log of the pool at `path` lies: beside the pool's file, in `FILE.log`. The path is absolute and has no symbolic links in it. So
/// one pool has one log, by whatever path the pool is opened, and it stays the same when the process changes its directory.
///
/// It is not in the pool's own file, since a sync of a file waits for everything that was written to that file: an operation that
/// waits for the log would wait for what the applier has just written as well.
pub(crate) fn log_path(path: &Path) -> Result<PathBuf> {
    let pool = match std::fs::canonicalize(path) {
        // A new pool gets its name later.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let directory = std::fs::canonicalize(directory_of(path));
            directory.map(|directory| directory.join(path.file_name().unwrap_or_default()))
        }
        pool => pool,
    };
    let mut name = pool
        .map_err(|source| Error::Io {
            action: "open",
            path: path.to_owned(),
            source,
        })?
        .into_os_string();
    name.push(".log");
    Ok(name.into())
}

/// Refuses to use the file at `path` for a log: it is not known to be one of this pool.
pub(crate) fn foreign_log(path: &Path) -> Error {
    unusable_log(
        path,
        "it is not a log of this pool, which would overwrite it; move it away",
    )
}

/// An error if there is anything at the path of a log that is yet to be created.
pub(crate) fn expect_no_log(path: &Path) -> Result<()> {
    match system::lstat(path) {
        Err(Errno::NOENT) => Ok(()),
        Ok(_) => Err(foreign_log(path)),
        // The name may be too long, say.
        Err(errno) => Err(io_error("look at", path, errno)),
    }
}

/// Refuses to use the file at `path` for a log: it has what was written to this pool after the state that the pool's file is in.
fn later_log(path: &Path) -> Error {
    unusable_log(
        path,
        "it is the log of a later state of this pool, whose file was replaced by an older one; put the later file back, or move the log away to go on without \
         what it has",
    )
}

fn unusable_log(path: &Path, what: &'static str) -> Error {
    Error::Io {
        action: "use",
        path: path.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::AlreadyExists, what),
    }
}

/// Words of a page. A segment is written page by page when it is new or used again: Linux keeps what one call writes in one piece of its
/// page cache, as far as memory is not fragmented, and after a store to one page by way of a shared mapping a sync writes the whole piece.
/// With pages of their own, inserts that a sync follows every 10 ms had the disk write 0.55 times as many bytes.
const PAGE_WORDS: usize = PAGE_BYTES as usize / 8;

/// The log's file, mapped segment by segment.
pub(crate) struct LogFile {
    file: File,
    /// The file once more, for syncs beside those that operations wait for. See [`PlainFile::reopened`].
    beside: File,
    path: PathBuf,
    /// As many as there can be; the first ones are mapped.
    slots: Box<[OnceLock<Segment>]>,
    way: Way,
    /// The lock on the pool's file does not do: the log belongs to a name, and if somebody gives that name to another pool's file while this one is open,
    /// the two have locks of their own.
    lock: Arc<LockedFile>,
}

/// How words get from memory into the log's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The memory is the file's: what is stored outlives the process at once. For operations that return before a sync, and for recovery.
    Shared,
    /// By a call before each sync. A sync of pages that were written so takes half as long as one of pages that were stored to. For operations
    /// that wait for the sync: what has not been written out when the process dies has not been acknowledged.
    Written,
    /// Not at all: the file is only looked at.
    Read,
}

struct Segment(*mut AtomicU64);

// SAFETY: the mapping is the value's own, and consists of atomics.
unsafe impl Send for Segment {}
// SAFETY: as for `Send`.
unsafe impl Sync for Segment {}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped in `LogFile::map` with this length, and there are no references to it any more.
        let _ = unsafe { system::unmap(self.0.cast(), SEGMENT_BYTES as usize) };
    }
}

impl LogFile {
    /// Opens the log's file at `path`, see [`log_path`], whole segments of which are mapped: at most `most`. Creates it if `create` says so. `held` is the lock
    /// of whoever has opened it for the same pool already.
    pub(super) fn open(
        path: PathBuf,
        most: usize,
        create: Option<u32>,
        way: Way,
        held: Option<Arc<LockedFile>>,
    ) -> Result<Self> {
        let access = match way {
            Way::Read => OFlags::RDONLY,
            Way::Shared | Way::Written => OFlags::RDWR,
        };
        let access = access | OFlags::NOFOLLOW | OPEN;
        let flags = match create {
            Some(_) => access | OFlags::CREATE,
            None => access,
        };
        let file = system::open(&path, flags, create.unwrap_or(0))
            .map_err(|errno| io_error("open", &path, errno))?;
        let stat = system::fstat(&file).map_err(|errno| io_error("look at", &path, errno))?;
        if !is_file(&stat) {
            return Err(foreign_log(&path));
        }
        let lock = lock_log(&file, &path, way, held)?;
        let beside =
            system::open(&path, access, 0).map_err(|errno| io_error("open", &path, errno))?;
        let length = system::length(&file).map_err(|errno| io_error("look at", &path, errno))?;
        if way != Way::Read {
            expect_within_limit(&path, length)?;
        }
        let there = (length / SEGMENT_BYTES) as usize;
        let this = Self {
            file,
            beside,
            path,
            slots: (0..most.max(there)).map(|_| OnceLock::new()).collect(),
            way,
            lock,
        };
        (0..there).try_for_each(|slot| this.map(slot))?;
        Ok(this)
    }

    /// Writes words of a segment into the file as the mapping has them.
    fn write(&self, slot: usize, words: Range<usize>) -> Result<()> {
        let at = slot as u64 * SEGMENT_BYTES + words.start as u64 * 8;
        let words = self.segment(slot)[words].iter();
        let bytes: Vec<u8> = words
            .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
            .collect();
        system::write_at(&self.file, &bytes, at).map_err(self.io("write"))
    }

    fn io(&self, action: &'static str) -> impl Fn(rustix::io::Errno) -> Error + '_ {
        move |errno| io_error(action, &self.path, errno)
    }

    /// Removes the entries of the page table for the pages before the one in which `words` end: a sync would make them read-only one by one,
    /// and interrupt the other processors for each.
    fn forget_entries(&self, (slot, words): &Place) {
        let page = rustix::param::page_size();
        let (begin, end) = (words.start * 8 / page * page, words.end * 8 / page * page);
        if begin < end {
            let address = self.segment(*slot)[begin / 8..].as_ptr().cast_mut();
            // SAFETY: whole pages of a shared mapping of the file. Their contents are the file's, and stay as they are.
            let _ = unsafe { system::advise(address.cast(), end - begin, Advice::LinuxDontNeed) };
        }
    }

    fn map(&self, slot: usize) -> Result<()> {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let (protection, flags) = match self.way {
            Way::Shared => (both, MapFlags::SHARED),
            Way::Written => (both, MapFlags::PRIVATE),
            Way::Read => (ProtFlags::READ, MapFlags::SHARED),
        };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            system::map(
                std::ptr::null_mut(),
                SEGMENT_BYTES as usize,
                protection,
                flags,
                &self.file,
                slot as u64 * SEGMENT_BYTES,
            )
        };
        let mapped = mapped.map_err(self.io("map"))?;
        // Segments are added by one thread at a time, so the slot is empty.
        let _ = self.slots[slot].set(Segment(mapped.cast()));
        Ok(())
    }

    /// Refuses a file that a new session may not overwrite: one that is not a log of its pool, and not empty either, and one that has a session with the generation
    /// `later` or a higher one.
    ///
    /// A session has its generation in the pool's file before its log has a header, and the next session has the next generation. So a log with the
    /// generation of the new session, or a higher one, is beside an older copy of the pool's file. Its headers and records must not stay: the next open after a
    /// crash would take them for those of the new session, or refuse the log for their sake. And they may be wanted, with the file that they belong to.
    pub(super) fn expect_own(&self, new: &Identity, later: u64) -> Result<()> {
        let segments = || (0..self.segments()).map(|slot| self.segment(slot));
        let found: Vec<Identity> = segments()
            .filter_map(Header::read)
            .map(|header| header.session.identity)
            .collect();
        let is_own = if found.is_empty() {
            // Power that fails while a header is written may leave anything in its sector.
            segments().all(may_be_unfinished) && self.ends_with_zeros()?
        } else {
            found.iter().all(|it| it.uuid == new.uuid)
        };
        if !is_own {
            return Err(foreign_log(&self.path));
        }
        if found.iter().any(|it| it.generation >= later) {
            return Err(later_log(&self.path));
        }
        Ok(())
    }

    /// Whether there is nothing but zeros behind the last whole segment, as a process leaves that dies while it makes the log longer.
    fn ends_with_zeros(&self) -> Result<bool> {
        let whole = self.segments() as u64 * SEGMENT_BYTES;
        let length = system::length(&self.file).map_err(self.io("look at"))?;
        let mut rest = vec![0; length.saturating_sub(whole) as usize];
        system::read_at(&self.file, &mut rest, whole).map_err(self.io("read"))?;
        Ok(rest.iter().all(|&byte| byte == 0))
    }

    /// Gives the file blocks that it shares with no copy, if it is stored to by way of the mapping: such a store gets a block where it needs one, or the signal
    /// SIGBUS.
    pub(super) fn take_own_blocks(&self) -> Result<()> {
        let length = self.segments() as u64 * SEGMENT_BYTES;
        if self.way != Way::Shared || length == 0 {
            return Ok(());
        }
        match system::fallocate(&self.file, FallocateFlags::UNSHARE_RANGE, 0, length) {
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(Error::NoSpace(format!(
                "{} shares blocks with another file, and needs {length} bytes of its own: {errno}",
                self.path.display()
            ))),
            // Most file systems share no blocks, and do not know this.
            _ => Ok(()),
        }
    }

    /// Makes the name of the file durable.
    pub(super) fn sync_name(&self) -> Result<()> {
        sync_name(&self.path, &self.file).map_err(self.io("sync"))
    }
}

impl LogDevice for LogFile {
    fn segments(&self) -> usize {
        self.slots.iter().take_while(|s| s.get().is_some()).count()
    }

    fn most_segments(&self) -> usize {
        self.slots.len()
    }

    fn segment(&self, slot: usize) -> &[AtomicU64] {
        let segment = self.slots[slot]
            .get()
            .expect("invariant: only segments that are there are asked for");
        // SAFETY: the segment is mapped with this length for as long as `self` lives, and atomics may be shared.
        unsafe { std::slice::from_raw_parts(segment.0, SEGMENT_WORDS) }
    }

    fn write_out(&self, place: &Place) -> Result<()> {
        if self.way == Way::Shared {
            self.forget_entries(place);
            return Ok(());
        }
        let (slot, words) = place.clone();
        self.write(slot, words)
    }

    fn touch(&self, (slot, words): &Place) -> Result<()> {
        // By calls: to store to each page takes a page fault each, and fifty times as long.
        (words.start / PAGE_WORDS * PAGE_WORDS..words.end)
            .step_by(PAGE_WORDS)
            .try_for_each(|at| self.write(*slot, at..SEGMENT_WORDS.min(at + PAGE_WORDS)))
    }

    fn add_segment(&self) -> Result<bool> {
        let slot = self.segments();
        if slot == self.slots.len() {
            return Ok(false);
        }
        // Written, and not only reserved: a sync of blocks that are reserved and were never written has to write the file system's
        // journal too, and takes several times as long.
        let begin = slot as u64 * SEGMENT_BYTES;
        let write = || {
            expect_within_limit(&self.path, begin + SEGMENT_BYTES)?;
            (begin..begin + SEGMENT_BYTES)
                .step_by(PAGE_BYTES as usize)
                .try_for_each(|at| system::write_at(&self.beside, &[0; PAGE_BYTES as usize], at))
                .map_err(self.io("grow"))
        };
        // Without the space, or the memory, the log stays as long as it is.
        if let Err(error) = write() {
            tracing::debug!(%error, "the log cannot be made longer");
            return Ok(false);
        }
        self.sync_beside(&(slot, 0..SEGMENT_WORDS))?;
        let mapped = self.map(slot);
        Ok(mapped
            .inspect_err(|error| tracing::debug!(%error, "the log cannot be made longer"))
            .is_ok())
    }

    fn sync(&self) -> Result<()> {
        system::fdatasync(&self.file).map_err(self.io("sync"))
    }

    /// The pages of these words, and no others: a sync of the file would also write those to which threads are storing now. Each of them would then be
    /// written again later, and its entry in the page table made read-only, for which the processors that store there are interrupted, and have a page fault
    /// at their next store. One thread of inserts had 23,000 such interrupts in two seconds, and has 1,700 without.
    fn sync_words(&self, places: &[Place]) -> Result<()> {
        if self.way != Way::Shared {
            // Nothing is dirty but what was written out for this sync.
            return self.sync();
        }
        places.iter().try_for_each(|(slot, words)| {
            let pages = pages_of(words);
            let address = self.segment(*slot)[pages.start / 8..].as_ptr().cast_mut();
            // SAFETY: the pages are mapped for as long as `self` lives.
            unsafe { system::msync(address.cast(), pages.len()) }.map_err(self.io("sync"))
        })
    }

    fn sync_beside(&self, (slot, words): &Place) -> Result<()> {
        let pages = pages_of(words);
        let at = *slot as u64 * SEGMENT_BYTES + pages.start as u64;
        system::sync_range(&self.beside, at, pages.len() as u64).map_err(self.io("sync"))
    }

    fn begin_write(&self, (slot, words): &Place) {
        // What was written out is on the disk after the next sync of the file.
        if self.way == Way::Shared {
            let at = *slot as u64 * SEGMENT_BYTES + words.start as u64 * 8;
            system::begin_write(&self.beside, at, words.len() as u64 * 8);
        }
    }

    fn remove(&self) {
        let named = system::lstat(&self.path);
        let is_this = |named: &system::Stat| {
            system::fstat(&self.file).is_ok_and(|own| is_one_file(&own, named))
        };
        if named.is_ok_and(|named| is_this(&named)) {
            let _ = system::unlink(&self.path);
        }
    }

    fn lock(&self) -> Option<Arc<LockedFile>> {
        Some(Arc::clone(&self.lock))
    }
}

/// Locks the log's file: shared, if it is only looked at. Where there is a lock already, `held`, it is one on that very file.
fn lock_log(
    file: &File,
    path: &Path,
    way: Way,
    held: Option<Arc<LockedFile>>,
) -> Result<Arc<LockedFile>> {
    let stat = |file: &File| system::fstat(file).map_err(|errno| io_error("look at", path, errno));
    let own = stat(file)?;
    if let Some(held) = held {
        if is_one_file(&stat(&held)?, &own) {
            return Ok(held);
        }
        // It has taken the place of the log, in which there are records that are not in the pool's file.
        return Err(foreign_log(path));
    }
    let again = file.try_clone().map_err(|source| Error::Io {
        action: "open",
        path: path.to_owned(),
        source,
    })?;
    let locked = lock_file(again, path, way == Way::Read)?;
    if stat(&locked)?.st_nlink == 0 {
        // Whoever had it locked has removed it since it was opened here: it is nobody's log any more.
        return Err(Error::Locked(path.to_owned()));
    }
    Ok(Arc::new(locked))
}

/// Whether a segment without a whole header may be one of a log whose first header was never whole: a process that dies before it has written
/// the header leaves zeros, and power that fails meanwhile leaves anything in the header's sector, but nothing behind it.
fn may_be_unfinished(segment: &[AtomicU64]) -> bool {
    let mut records = segment[SECTOR_WORDS..].iter();
    records.all(|word| word.load(Ordering::Relaxed) == 0)
}

/// The bytes of a segment that are the pages of these words.
fn pages_of(words: &Range<usize>) -> Range<usize> {
    let page = rustix::param::page_size();
    words.start * 8 / page * page..(words.end * 8).next_multiple_of(page)
}

/// Stores words to a segment, in order.
pub(super) fn put(segment: &[AtomicU64], at: usize, words: &[u64]) {
    let cells = &segment[at..at + words.len()];
    for at in 0..words.len() {
        cells[at].store(words[at], Ordering::Relaxed);
    }
}
