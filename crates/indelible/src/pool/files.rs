//! Pool files by name: opened without waiting, locked, and created so that a file with the name is always a whole pool.
//!
//! A new pool is written to a file without a name (`O_TMPFILE`), which gets its name when it is whole; if the process dies
//! before, the file is gone with it. Where the file system has no such files, the new pool has a hidden name, `.NAME.`
//! and 32 hexadecimal digits, until it is whole. What a process leaves there that dies meanwhile is removed when the next
//! pool of that name is created.

use super::system;
use crate::{Error, Result};
use rustix::fs::{FileType, FlockOperation, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Flags of every open of what should be a file: a FIFO would wait for its other end, and a terminal take us over.
pub(super) const OPEN: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// Attempts to create a file under a hidden name, or to lock one that has its name. An attempt fails only if another process removes leftovers, or
/// replaces the file, at that moment.
const ATTEMPTS: usize = 8;

/// Hexadecimal digits at the end of a hidden name.
const DIGITS: usize = 32;

/// Bytes of the longest name of a file.
const MOST_NAME_BYTES: usize = 255;

pub(super) fn io_error(action: &'static str, path: &Path, errno: Errno) -> Error {
    Error::Io {
        action,
        path: path.to_owned(),
        source: errno.into(),
    }
}

/// Whether a system call has found no space for a file.
pub(super) fn is_no_space(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG)
}

/// The error of a write to a file, which may have found no space.
pub(super) fn write_error(path: &Path, errno: Errno) -> Error {
    if is_no_space(errno) {
        let (path, error) = (path.display(), std::io::Error::from(errno));
        return Error::NoSpace(format!("{path} cannot be written: {error}"));
    }
    io_error("write", path, errno)
}

/// An error if this process may not write a file of `bytes` bytes up to its end: a write behind its limit ends the process by a signal, even where the file
/// is that long.
pub(super) fn expect_within_limit(path: &Path, bytes: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < bytes => Err(Error::NoSpace(format!(
            "{} cannot be written up to {bytes} bytes: this process may write no file beyond {limit} bytes (RLIMIT_FSIZE)",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Whether this is a file, and not a directory, a pipe or a device.
pub(super) fn is_file(stat: &system::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
}

/// Opens a pool's file. What is not a file is refused before it is opened, since opening a device may do something.
pub(super) fn open_file(path: &Path, access: OFlags) -> Result<File> {
    let io = |errno| io_error("open", path, errno);
    if !is_file(&system::stat(path).map_err(io)?) {
        return Err(Error::NotAPool(path.to_owned()));
    }
    let file = system::open(path, access | OPEN, 0).map_err(io)?;
    if !is_file(&system::fstat(&file).map_err(io)?) {
        return Err(Error::NotAPool(path.to_owned()));
    }
    Ok(file)
}

/// A pool's file that this process has locked.
pub(super) struct LockedFile(File);

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing it is not enough: a child that is just being started still has it open, until it is another program.
        let _ = system::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Locks a pool's file, shared or not.
pub(super) fn lock_file(file: File, path: &Path, shared: bool) -> Result<LockedFile> {
    let operation = if shared {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match system::flock(&file, operation) {
        Ok(()) => Ok(LockedFile(file)),
        Err(Errno::WOULDBLOCK) => Err(Error::Locked(path.to_owned())),
        Err(errno) => Err(io_error("lock", path, errno)),
    }
}

/// Whether both are what the system says of one file.
pub(super) fn is_one_file(a: &system::Stat, b: &system::Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Opens a pool's file and locks it: shared, if it is opened for reading only.
///
/// The name may have been given to another file since the first one was opened, or been removed, by whoever had that locked. What would be written to a file
/// without a name would be lost.
pub(super) fn open_and_lock(path: &Path, access: OFlags) -> Result<LockedFile> {
    let io = |errno| io_error("open", path, errno);
    for _ in 0..ATTEMPTS {
        let file = lock_file(open_file(path, access)?, path, access == OFlags::RDONLY)?;
        let named = system::stat(path).map_err(io)?;
        if is_one_file(&named, &system::fstat(&file).map_err(io)?) {
            return Ok(file);
        }
    }
    Err(Error::Locked(path.to_owned()))
}

/// What is to become a pool's file.
pub(super) struct NewFile {
    path: PathBuf,
    /// The name that it has until then, if it has one.
    hidden: Option<PathBuf>,
}

impl NewFile {
    /// A new file, open and locked, for a pool at `path`, where there is nothing. `digits` makes up names.
    pub(super) fn create(
        path: &Path,
        mode: u32,
        digits: impl Fn() -> Result<String>,
    ) -> Result<(Self, LockedFile)> {
        let failed = |errno| io_error("create", path, errno);
        match system::lstat(path) {
            Err(Errno::NOENT) => {}
            Ok(_) if system::stat(path).err() == Some(Errno::NOENT) => {
                return Err(Error::Io {
                    action: "create",
                    path: path.to_owned(),
                    source: std::io::Error::new(
                        std::io::ErrorKind::AlreadyExists,
                        "it is a symbolic link to nothing",
                    ),
                });
            }
            Ok(_) => return Err(failed(Errno::EXIST)),
            Err(errno) => return Err(failed(errno)),
        }
        remove_leftovers(path);
        let mut new = Self {
            path: path.to_owned(),
            hidden: None,
        };
        let file = match new.open_unnamed(mode)? {
            Some(file) => file,
            None => new.open_hidden(mode, digits)?,
        };
        Ok((new, file))
    }

    /// A file without a name, if there can be one that is given a name later.
    fn open_unnamed(&self, mode: u32) -> Result<Option<LockedFile>> {
        let flags = OFlags::RDWR | OFlags::TMPFILE;
        match system::open(directory_of(&self.path), flags, mode) {
            // The name is given through `/proc`, which may not be there.
            Ok(file) if system::stat(&opened(&file)).is_ok() => {
                lock_file(file, &self.path, false).map(Some)
            }
            Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => Ok(None),
            Err(errno) => Err(io_error("create", &self.path, errno)),
        }
    }

    /// A file with a hidden name.
    fn open_hidden(
        &mut self,
        mode: u32,
        digits: impl Fn() -> Result<String>,
    ) -> Result<LockedFile> {
        let failed = |errno| io_error("create", &self.path, errno);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        for _ in 0..ATTEMPTS {
            let mut name = hidden_prefix(&self.path);
            name.push(digits()?);
            let name = self.path.with_file_name(name);
            let file = system::open(&name, flags, mode).map_err(failed)?;
            self.hidden = Some(name);
            // Until the file is locked, a process that removes leftovers may take it for one.
            let file = match lock_file(file, &self.path, false) {
                Err(Error::Locked(_)) => continue,
                result => result?,
            };
            if system::fstat(&file).map_err(failed)?.st_nlink > 0 {
                return Ok(file);
            }
        }
        Err(failed(Errno::AGAIN))
    }

    /// Gives the file, in which there is a pool now, its name, unless that is taken, for good.
    pub(super) fn publish(mut self, file: &File) -> Result<()> {
        let failed = |errno| io_error("create", &self.path, errno);
        match &self.hidden {
            Some(hidden) => system::rename(hidden, &self.path),
            None => system::link(&opened(file), &self.path),
        }
        .map_err(failed)?;
        self.hidden = None;
        sync_name(&self.path, file).map_err(|errno| {
            // An error leaves nothing.
            let _ = system::unlink(&self.path);
            io_error("create", &self.path, errno)
        })
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(hidden) = &self.hidden {
            let _ = system::unlink(hidden);
        }
    }
}

/// The path by which an open file can be given a name.
fn opened(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The directory in which a file is.
pub(super) fn directory_of(path: &Path) -> &Path {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    directory.unwrap_or(Path::new("."))
}

/// Makes the name of a file durable, which is open.
pub(super) fn sync_name(path: &Path, file: &File) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    match system::open(directory_of(path), flags, 0) {
        // Who may not list the directory may create files in it all the same.
        Err(Errno::ACCESS) => system::sync_file_system(file),
        directory => match system::fsync(&directory?) {
            // Not every file system can.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => system::sync_file_system(file),
            synced => synced,
        },
    }
}

/// What hidden names begin with: the name of the pool, as far as there is room for it. Who shares a prefix with another pool may remove what a dead process has left of
/// that one, too.
fn hidden_prefix(path: &Path) -> OsString {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let most = MOST_NAME_BYTES - DIGITS - 2;
    let mut prefix = OsString::from(".");
    prefix.push(OsStr::from_bytes(&name[..name.len().min(most)]));
    prefix.push(".");
    prefix
}

/// Removes the hidden files of processes that died while they created a pool at `path`: files that no process has locked. A hint.
fn remove_leftovers(path: &Path) {
    let prefix = hidden_prefix(path);
    let is_leftover = |name: &OsStr| {
        let digits = name.as_bytes().strip_prefix(prefix.as_bytes());
        digits.is_some_and(|digits| {
            digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit)
        })
    };
    let Ok(entries) = std::fs::read_dir(directory_of(path)) else {
        return;
    };
    for entry in entries
        .flatten()
        .filter(|entry| is_leftover(&entry.file_name()))
    {
        let leftover = entry.path();
        if let Ok(file) = open_file(&leftover, OFlags::RDWR | OFlags::NOFOLLOW)
            && let Ok(_locked) = lock_file(file, &leftover, false)
        {
            let _ = system::unlink(&leftover);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
