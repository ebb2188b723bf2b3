//! What a pool does that has a log: see `pool::log`.

use super::PoolCore;
use super::extents::Extents;
use super::growth::Growth;
use crate::concurrency::sync::lock;
use crate::pmem::trace;
use crate::pool::files::{NewFile, io_error};
use crate::pool::layout::{COPY_BYTES, EXTENT_BYTES};
use crate::pool::log::{Gate, Identity, Log, Threads, Way};
use crate::pool::superblock::{Promise, Superblock};
use crate::pool::system;
use crate::{Error, Result};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The log of an open pool, with its threads.
pub(super) struct OpenLog {
    log: Arc<Log>,
    // Dropping them ends them.
    _threads: Threads,
}

impl PoolCore {
    /// Marks the pool as open, and begins a new session of its log.
    ///
    /// | step | after a crash behind it |
    /// |---|---|
    /// | 1. the file of the log has its name | as before: of a pool that was closed, the log of an earlier session is not looked at |
    /// | 2. the superblocks say that the pool is open, in a new session | a session without records; see `log::backlog` for what earlier ones have left |
    /// | 3. cut off what the file has behind the pool's end | as before |
    /// | 4. a segment for the new session | as before |
    pub(super) fn begin_log(&self, extents: &mut Extents) -> Result<()> {
        if self.mapping.is_model() {
            self.write_superblock(extents, false, "pool.open");
            trace::durable(trace::appended());
            let _ = self.gate.set(Arc::new(Gate::model()));
            return Ok(());
        }
        let (is_strict, interval) = match self.promise {
            Promise::LoggedAtIntervals(interval) => {
                (false, Some(Duration::from_millis(interval.into())))
            }
            _ => (true, None),
        };
        let way = if is_strict { Way::Written } else { Way::Shared };
        let backlog = lock(&self.backlog).take();
        let taken = backlog.as_ref().map_or(0, |it| it.slots().len());
        let path = self.mapping.path();
        let file = Log::open_file(path, self.uuid, self.log_bytes, taken, way)?;
        self.write_superblock_directly(extents, false)?;
        // What lies there may be anything, and extents that the pool grows by are zero in the image. Not earlier: the superblock that was
        // in the file may say that they belong to the pool.
        let length = extents.count * EXTENT_BYTES;
        self.mapping.cut_file(length)?;
        let identity = Identity {
            uuid: self.uuid,
            generation: self.generation(),
        };
        let Some(data) = self.mapping.file() else {
            return Ok(());
        };
        let log = Log::begin_in(identity, length / 8, file, data, path, backlog)?;
        let log = Arc::new(log);
        let threads = Threads::start(&log, interval)?;
        let _ = self.gate.set(Arc::new(Gate::new(&log, is_strict)));
        if let Some(journal) = self.journal {
            journal.set_sink(Some(log.clone()));
        }
        *lock(&self.log) = Some(OpenLog {
            log,
            _threads: threads,
        });
        Ok(())
    }

    /// Writes the superblock to the image, and to the file for good.
    fn write_superblock_directly(&self, extents: &mut Extents, clean: bool) -> Result<()> {
        let superblock = self.next_superblock(extents, clean);
        superblock.write_directly(self.superblocks(), |at, bytes| {
            self.mapping.write_file(bytes, at)?;
            self.mapping.sync()
        })
    }

    /// Marks a pool that has just been created as clean: it gets its name before it is opened.
    pub(in crate::pool) fn write_new_superblock(&self) -> Result<()> {
        self.write_superblock_directly(&mut lock(&self.extents), true)
    }

    /// Applies the whole log to the file, marks the pool as clean, and removes the log.
    pub(super) fn end_log(&self, growth: &mut Growth, extents: &mut Extents) -> Result<()> {
        // What this thread has stored and not fenced, such as a hint.
        self.pm.fence();
        if self.mapping.is_model() {
            trace::durable(trace::appended());
            self.cut_surplus_if_possible(growth, extents);
            self.write_superblock(extents, true, "pool.close");
            trace::durable(trace::appended());
            return Ok(());
        }
        let Some(log) = self.open_log() else {
            // The log could not be begun.
            return Ok(());
        };
        log.drain()?;
        self.drop_log();
        // Not before the superblock is in the file that says that the pool ends there: if the log has failed, an older one is.
        self.cut_surplus_if_possible(growth, extents);
        self.write_superblock_directly(extents, true)?;
        Log::remove_file(self.mapping.path());
        Ok(())
    }

    /// Ends the threads of the log. What is stored from here on is lost.
    pub(super) fn drop_log(&self) {
        if let Some(journal) = self.journal {
            journal.set_sink(None);
        }
        let log = lock(&self.log).take();
        drop(log);
    }

    /// Copies the pool to a new file, which is as that of a pool that was closed. The pool goes on being used; the copy has what was
    /// written before the call.
    pub(crate) fn backup(&self, to: &Path) -> Result<()> {
        let Some((log, from)) = self.open_log().zip(self.mapping.file()) else {
            return Err(Error::BadOption(
                "only a pool with a log, open for writing, can be copied while it is in use; close the pool and copy its file".into(),
            ));
        };
        let (new, file) = NewFile::create(to, 0o600, || {
            Ok(format!(
                "{:016x}{:016x}",
                self.generation(),
                std::process::id()
            ))
        })?;
        log.copy_to(&file, to, || self.mapping.copy_file(from, &file, to))?;
        self.mark_copy(&file, to)?;
        new.publish(&file)
    }

    /// Marks a copy as a pool that was closed.
    fn mark_copy(&self, file: &File, path: &Path) -> Result<()> {
        let mut bytes = vec![0; 2 * COPY_BYTES];
        let failed = |errno| io_error("write", path, errno);
        system::read_at(file, &mut bytes, 0).map_err(failed)?;
        let length = system::length(file).map_err(failed)?;
        let superblock = Superblock {
            clean: true,
            ..Superblock::read(path, &bytes, length)?
        };
        for copy in [0, 1] {
            let at = copy * COPY_BYTES as u64;
            system::write_at(file, &superblock.bytes_of_copy(), at).map_err(failed)?;
        }
        system::fsync(file).map_err(failed)
    }

    /// The log of a pool that has one, and is open for writing.
    pub(super) fn open_log(&self) -> Option<Arc<Log>> {
        lock(&self.log).as_ref().map(|open| Arc::clone(&open.log))
    }

    /// What operations have to wait for, if the pool has a log.
    pub(crate) fn gate(&self) -> Option<&Arc<Gate>> {
        self.gate.get()
    }

    /// Does work that writes, whatever it writes, and waits until that is durable.
    pub(crate) fn durably<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.gate() {
            Some(gate) => gate.write_anything(self.pm, work),
            None => work(),
        }
    }

    /// Waits until the superblock is on the disk, before the file is cut.
    pub(super) fn superblock_to_disk(&self) -> Result<()> {
        match self.open_log() {
            // The words of what is cut off have to be out of the log, too: applied, or beyond the end of the file.
            Some(log) => log.drain(),
            None if self.mapping.is_model() && self.promise.is_logged() => {
                trace::durable(trace::appended());
                Ok(())
            }
            None => self.mapping.sync_superblock(),
        }
    }
}
