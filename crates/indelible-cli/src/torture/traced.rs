//! A child whose syncs are seen.
//!
//! The child is traced (`ptrace(2)`), as a debugger does: each of its threads stops at each system call, and this process sees which one
//! it is before it lets the thread go on. So the child and the library in it are those that users run, and nothing in them knows
//! about the test. When a thread calls `fsync` or `fdatasync`, or `msync` of a part of a file, what the file has there at this moment is noted; when
//! the call has returned, that is what the [`Disk`] has for certain.

use super::disk::{Disk, Sync};
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

/// A file, and which part of it, if not all.
type Place = (PathBuf, Option<Range<usize>>);

/// A running child that is traced.
pub struct Traced {
    child: Pid,
    /// The child begins when this is closed.
    begin: Option<ChildStdin>,
    /// Syncs that have been called and have not returned, by thread.
    pending: HashMap<Pid, Sync>,
    is_alive: bool,
}

impl Traced {
    /// Starts a child that does nothing until its standard input ends, and traces it. `None` if this system does not allow to trace.
    pub fn start(command: &mut Command) -> Result<Option<Self>> {
        let spawned = command
            .stdin(Stdio::piped())
            .spawn()
            .context("start the writers")?;
        let child = Pid::from_raw(i32::try_from(spawned.id())?);
        let mut this = Self {
            child,
            begin: spawned.stdin,
            pending: HashMap::new(),
            is_alive: true,
        };
        // If this process dies, so does the child.
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_EXITKILL;
        match ptrace::seize(child, options).and_then(|()| ptrace::interrupt(child)) {
            Err(Errno::EPERM | Errno::ENOSYS | Errno::EIO) => {
                this.kill()?;
                return Ok(None);
            }
            result => result.context("trace the writers")?,
        }
        Ok(Some(this))
    }

    /// Lets the child run until `is_time` says so, and stops it there: no thread goes on beyond its next system call. `is_time` is asked at
    /// each system call and at each return of one, and gets the file that the call is about to sync, if it is a sync.
    pub fn run(
        &mut self,
        disk: &mut Disk,
        mut is_time: impl FnMut(&mut Disk, Option<&Path>) -> bool,
    ) -> Result<()> {
        loop {
            match waitpid(None, Some(WaitPidFlag::__WALL))? {
                WaitStatus::PtraceSyscall(thread) => {
                    let synced = self.at_call(thread, disk)?;
                    if is_time(disk, synced.as_deref()) {
                        return Ok(());
                    }
                    go_on(thread, None)?;
                }
                // The stop that was asked for, or a new thread.
                WaitStatus::PtraceEvent(thread, ..) => {
                    go_on(thread, None)?;
                    if thread == self.child {
                        self.begin = None;
                    }
                }
                WaitStatus::Stopped(thread, signal) => go_on(thread, Some(signal))?,
                status @ (WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, ..))
                    if thread == self.child =>
                {
                    self.is_alive = false;
                    bail!("the writers ended by themselves: {status:?}");
                }
                _ => {}
            }
        }
    }

    /// A thread calls the system, or a call of it has returned. Returns the file that it is about to sync.
    fn at_call(&mut self, thread: Pid, disk: &mut Disk) -> Result<Option<PathBuf>> {
        let call = match ptrace::syscall_info(thread) {
            // The thread is dying.
            Err(Errno::ESRCH) => return Ok(None),
            call => call.context("look at a system call")?,
        };
        if call.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            if let Some(sync) = self.pending.remove(&thread) {
                disk.end_sync(sync);
            }
        } else if let Some((path, part)) = self.synced_by(thread)?
            && let Some(sync) = disk.begin_sync(&path, part)?
        {
            self.pending.insert(thread, sync);
            return Ok(Some(path));
        }
        Ok(None)
    }

    /// The file that a thread is about to sync, and which part of it, if not all.
    fn synced_by(&self, thread: Pid) -> Result<Option<Place>> {
        // The number of the call, and its arguments in hexadecimal digits.
        let path = format!("/proc/{}/task/{thread}/syscall", self.child);
        let Ok(line) = std::fs::read_to_string(&path) else {
            return Ok(None);
        };
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|word| word.parse().ok());
        let mut argument = || {
            let number = words.next().and_then(hexadecimal);
            number.with_context(|| format!("{path} is {line:?}"))
        };
        match number {
            Some(libc::SYS_fsync | libc::SYS_fdatasync) => {
                let file = format!("/proc/{}/fd/{}", self.child, argument()?);
                Ok(std::fs::read_link(file).ok().map(|file| (file, None)))
            }
            Some(libc::SYS_msync) => {
                let begin = argument()?;
                self.mapped_at(begin..begin + argument()?)
            }
            _ => Ok(None),
        }
    }

    /// The file of which a part is mapped at these addresses, shared, and which part that is.
    fn mapped_at(&self, addresses: Range<usize>) -> Result<Option<Place>> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child))?;
        let mapped = maps.lines().find_map(|line| {
            // `begin-end permissions offset device inode   path`
            let mut words = line.splitn(6, ' ');
            let (begin, end) = words.next()?.split_once('-')?;
            let (begin, end) = (hexadecimal(begin)?, hexadecimal(end)?);
            let is_shared = words.next()?.ends_with('s');
            let offset = hexadecimal(words.next()?)?;
            let path = words.nth(2)?.trim_start();
            let is_it = is_shared && begin <= addresses.start && addresses.end <= end;
            is_it.then(|| {
                let from = offset + (addresses.start - begin);
                (path.into(), Some(from..from + addresses.len()))
            })
        });
        Ok(mapped)
    }

    /// Kills the child, and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        ensure!(self.is_alive, "the writers are gone");
        self.is_alive = false;
        kill(self.child, Signal::SIGKILL).context("kill the writers")?;
        loop {
            // Threads that stop on their way die too.
            match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Err(Errno::ECHILD) => return Ok(()),
                Ok(WaitStatus::Signaled(thread, ..)) if thread == self.child => return Ok(()),
                // A writer had failed before the signal came.
                Ok(status @ WaitStatus::Exited(thread, _)) if thread == self.child => {
                    bail!("the writers ended by themselves: {status:?}");
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("wait for the writers"),
            }
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if self.is_alive {
            let _ = self.kill();
        }
    }
}

/// A number in hexadecimal digits, with or without `0x`.
fn hexadecimal(digits: &str) -> Option<usize> {
    usize::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
}

/// Lets a thread run to its next system call.
fn go_on(thread: Pid, signal: Option<Signal>) -> Result<()> {
    match ptrace::syscall(thread, signal) {
        // It is dying.
        Err(Errno::ESRCH) => Ok(()),
        result => result.context("let a thread of the writers go on"),
    }
}
