//! A child whose syncs are seen.
//!
//! The child is traced (`ptrace(2)`), as a debugger does: each of its threads stops at each system call, and this process sees which one
//! it is before it lets the thread go on. So the child and the library in it are those that users run, and nothing in them knows
//! about the test. When a thread calls `fsync` or `fdatasync`, what the file has at this moment is noted; when the call has returned,
//! that is what the [`Disk`] has for certain.

use super::disk::{Disk, Sync};
use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

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
        } else if let Some(path) = self.synced_by(thread)?
            && let Some(sync) = disk.begin_sync(&path)?
        {
            self.pending.insert(thread, sync);
            return Ok(Some(path));
        }
        Ok(None)
    }

    /// The file that a thread is about to sync.
    fn synced_by(&self, thread: Pid) -> Result<Option<PathBuf>> {
        // The number of the call, and its arguments in hexadecimal digits.
        let path = format!("/proc/{}/task/{thread}/syscall", self.child);
        let Ok(line) = std::fs::read_to_string(&path) else {
            return Ok(None);
        };
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|word| word.parse().ok());
        if !number.is_some_and(|number| [libc::SYS_fsync, libc::SYS_fdatasync].contains(&number)) {
            return Ok(None);
        }
        let digits = words.next().and_then(|word| word.strip_prefix("0x"));
        let file = digits.and_then(|digits| i32::from_str_radix(digits, 16).ok());
        let file = file.with_context(|| format!("{path} is {line:?}"))?;
        let file = format!("/proc/{}/fd/{file}", self.child);
        Ok(std::fs::read_link(file).ok())
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

/// Lets a thread run to its next system call.
fn go_on(thread: Pid, signal: Option<Signal>) -> Result<()> {
    match ptrace::syscall(thread, signal) {
        // It is dying.
        Err(Errno::ESRCH) => Ok(()),
        result => result.context("let a thread of the writers go on"),
    }
}
