//! What a pool does that has a log: see `pool::log`.

use super::PoolCore;
use super::extents::Extents;
use super::growth::Growth;
use crate::concurrency::sync::lock;
use crate::pmem::trace;
use crate::pool::files::{NewFile, expect_within_limit, write_error};
use crate::pool::layout::{COPY_BYTES, EXTENT_BYTES, SUPERBLOCK_BYTES};
use crate::pool::log::{
    Backlog, Beginning, Gate, Identity, Log, Threads, Way, expect_no_log, log_path,
};
use crate::pool::mapping::Mapping;
use crate::pool::superblock::{COPIED, Promise, Superblock, Writes, unsynced};
use crate::pool::system;
use crate::{Error, Result};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// For so long a session that begins late leaves the processor, the disk, and the lock of the address space to the operations that read first,
/// unless somebody waits for it.
const HEAD_START: Duration = Duration::from_millis(15);

/// The log of an open pool, with its threads.
pub(super) struct OpenLog {
    log: Arc<Beginning>,
    /// The thread that begins it.
    late: Option<JoinHandle<()>>,
    // Dropping them ends them.
    threads: Arc<Mutex<Option<Threads>>>,
}

impl Drop for OpenLog {
    fn drop(&mut self) {
        if let Some(late) = self.late.take() {
            // The wish to wait is what wakes it.
            let _ = self.log.wait();
            let _ = late.join();
        }
        drop(lock(&self.threads).take());
    }
}

/// What it takes to begin a session of the log.
struct Session {
    mapping: Arc<Mapping>,
    identity: Identity,
    /// The pool's file has no words of sessions from this generation on.
    later: u64,
    log_bytes: u64,
    way: Way,
    interval: Option<Duration>,
    superblocks: Writes,
    /// Bytes in the pool.
    length: u64,
    backlog: Option<Arc<Backlog>>,
}

impl Session {
    /// Begins the session.
    ///
    /// | step | after a crash behind it |
    /// |---|---|
    /// | 1. the records of earlier sessions are on the disk | as before |
    /// | 2. the superblock that was written last is on the disk | as before that write: see [`Writes`] |
    /// | 3. the file of the log has its name, and segments if the pool was closed | as before: of a pool that was closed, the log of an earlier session is not read |
    /// | 4. a superblock says that the pool is open, in a new session | a session without records; see `log::backlog` for what earlier ones have left |
    /// | 5. cut off what the file has behind the pool's end | as before |
    /// | 6. a segment for the new session | as before |
    /// | 7. the other superblock says what the one of step 4 says | as before. From here on a log without a segment of the session is damaged |
    fn begin(self, threads: &Mutex<Option<Threads>>) -> Result<Arc<Log>> {
        if let Some(backlog) = &self.backlog {
            backlog.make_durable()?;
        }
        let (mapping, path) = (&self.mapping, self.mapping.path());
        let write = |(at, bytes): &(u64, Vec<u8>)| mapping.write_file_for_good(bytes, *at);
        self.superblocks.again.iter().try_for_each(write)?;
        let at = mapping.log_path();
        let backlog = self.backlog.as_deref();
        let data = mapping
            .file()
            .expect("invariant: a pool with a log has a file");
        let session = (&self.identity, self.later);
        let file = Log::open_file(at, data, session, self.log_bytes, backlog, self.way)?;
        if backlog.is_none() {
            // Without space for them the pool stays closed: from step 4 on it could not be read without its log.
            Log::reserve(&file)?;
        }
        let [first, second] = &self.superblocks.copies;
        write(first)?;
        // What lies there may be anything, and extents that the pool grows by are zero in the image. Not earlier: the superblock that was
        // in the file may say that they belong to the pool.
        mapping.cut_file(self.length)?;
        let words = self.length / 8;
        let log = Log::begin_in(self.identity, words, file, data, path, self.backlog)?;
        log.write_superblock(second)?;
        let log = Arc::new(log);
        *lock(threads) = Some(Threads::start(&log, self.interval)?);
        Ok(log)
    }

    /// Begins the session behind the scenes.
    fn begin_later(self) -> Result<OpenLog> {
        let log = Arc::new(Beginning::after(self.backlog.clone()));
        let threads = Arc::default();
        let (begun, started) = (Arc::clone(&log), Arc::clone(&threads));
        let path = self.mapping.path().to_owned();
        let late = system::spawn("indelible-session", move || {
            if let Some(backlog) = &self.backlog {
                begun.sleep(HEAD_START, backlog.held());
            }
            let result = self.begin(&started);
            if let Err(error) = &result {
                tracing::error!(%error, "the session of the log could not begin; the pool takes no writes");
            }
            begun.end(result);
        });
        let late = late.map_err(|source| Error::Io {
            action: "start a thread for the log of",
            path,
            source,
        })?;
        Ok(OpenLog {
            log,
            late: Some(late),
            threads,
        })
    }
}

impl PoolCore {
    /// Marks the pool as open, and begins a new session of its log; after a crash, behind the scenes.
    pub(super) fn begin_log(&self, extents: &mut Extents) -> Result<()> {
        if self.mapping.is_model() {
            self.write_superblock(extents, false, "pool.open");
            trace::durable(trace::appended());
            let _ = self.gate.set(Arc::new(Gate::model()));
            return Ok(());
        }
        if self.mapping.file().is_none() {
            return Ok(());
        }
        let length = extents.count * EXTENT_BYTES;
        // The applier writes anywhere in the file.
        expect_within_limit(self.path(), length)?;
        let (is_strict, interval) = match self.promise {
            Promise::LoggedAtIntervals(interval) => {
                (false, Some(Duration::from_millis(interval.into())))
            }
            _ => (true, None),
        };
        let backlog = lock(&self.backlog).take();
        if let Some(backlog) = &backlog
            && is_strict
            && self.may_have_died_alone
        {
            // Readers must not see what a power cut could take back. After one, all that there is comes from the disk.
            backlog.make_durable()?;
        }
        let mut superblocks = self.write_superblock_to_image(extents, false)?;
        if !self.may_have_died_alone {
            // After a power cut, what the file has comes from the disk.
            superblocks.again = None;
        }
        let session = Session {
            mapping: Arc::clone(&self.mapping),
            identity: Identity {
                uuid: self.uuid,
                generation: self.generation(),
            },
            // The session in which a copy was made has gone on.
            later: self.generation() - u64::from(self.was_copied),
            log_bytes: self.log_bytes,
            way: if is_strict { Way::Written } else { Way::Shared },
            interval,
            superblocks,
            length,
            backlog: backlog.clone(),
        };
        let open = if backlog.is_some() {
            session.begin_later()?
        } else {
            let threads = Arc::default();
            let log = Beginning::done(session.begin(&threads)?);
            OpenLog {
                log: Arc::new(log),
                late: None,
                threads,
            }
        };
        let gate = Gate::new(&open.log, is_strict, backlog);
        let _ = self.gate.set(Arc::new(gate));
        if let Some(journal) = self.journal {
            journal.set_sink(Some(open.log.clone()));
        }
        *lock(&self.log) = Some(open);
        Ok(())
    }

    /// Writes the superblock to the image, and to the file for good. Both copies in the file are on the disk.
    fn write_superblock_directly(&self, extents: &mut Extents, clean: bool) -> Result<()> {
        let writes = self.write_superblock_to_image(extents, clean)?;
        let mut copies = writes.copies.iter();
        copies.try_for_each(|(at, bytes)| self.mapping.write_file_for_good(bytes, *at))
    }

    /// Writes the superblock to the image, and returns how it is written to the file, which may not have all that the image has.
    fn write_superblock_to_image(&self, extents: &mut Extents, clean: bool) -> Result<Writes> {
        let mut in_file = vec![0; SUPERBLOCK_BYTES];
        self.mapping.read_file(&mut in_file, 0)?;
        let superblock = self.next_superblock(extents, clean);
        let writes = superblock.write_directly(self.superblocks(), &in_file);
        extents.sequence = writes.sequence;
        Ok(writes)
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
        let Some(log) = self.open_log()? else {
            // The log could not be begun.
            return Ok(());
        };
        log.drain()?;
        // Its threads, and not the log itself, end.
        self.drop_log();
        // Not before the superblock is in the file that says that the pool ends there: if the log has failed, an older one is.
        self.cut_surplus_if_possible(growth, extents);
        self.write_superblock_directly(extents, true)?;
        log.remove_file();
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
        let Some((log, from)) = self.open_log()?.zip(self.mapping.file()) else {
            return Err(Error::BadOption(
                "only a pool with a log, open for writing, can be copied while it is open; close this pool, and copy its file".into(),
            ));
        };
        // The name is taken, say, by this pool itself.
        let (new, file) = NewFile::create(to, 0o600, || {
            Ok(format!(
                "{:016x}{:016x}",
                self.generation(),
                std::process::id()
            ))
        })?;
        // One of an earlier pool of that name may be the log of a later state of this one, and the copy could not be opened.
        expect_no_log(&log_path(to)?)?;
        log.copy_to(&file, to, || self.mapping.copy_file(from, &file, to))?;
        self.mark_copy(&file, to)?;
        new.publish(&file)
    }

    /// Marks a copy as a pool that was closed.
    fn mark_copy(&self, file: &File, path: &Path) -> Result<()> {
        write_superblock_again(file, path, |superblock| {
            Some(Superblock {
                clean: true,
                boot: COPIED,
                ..superblock
            })
        })
    }

    /// Syncs a pool that had another promise when it was opened, and has not begun to write.
    pub(in crate::pool) fn sync_under_new_promise(&self) -> Result<()> {
        self.mapping.sync().inspect_err(|_| {
            let Some(file) = self.mapping.file() else {
                return;
            };
            let boot = unsynced(self.boot);
            // Nothing is written for a pool with a log: which sessions its copies name says which segments there are.
            let marked = write_superblock_again(file, self.path(), |superblock| {
                let needs_mark = !superblock.clean && superblock.promise.is_page_cached();
                needs_mark.then_some(Superblock { boot, ..superblock })
            });
            if let Err(error) = marked {
                tracing::error!(%error, "that a sync has failed could not be recorded");
            }
        })
    }

    /// The log of a pool that has one, and is open for writing. Waits until its session has begun.
    pub(super) fn open_log(&self) -> Result<Option<Arc<Log>>> {
        let log = lock(&self.log).as_ref().map(|open| Arc::clone(&open.log));
        log.map(|log| log.wait().cloned()).transpose()
    }

    /// Whether the session has begun, and whether what earlier ones have left is not in the file yet.
    #[cfg(all(test, not(loom)))]
    pub(in crate::pool) fn behind_the_scenes(&self) -> (bool, bool) {
        let open = lock(&self.log);
        let log = open.as_ref().and_then(|open| open.log.log());
        (log.is_some(), log.is_none_or(|log| log.has_backlog()))
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

    /// Writes the superblock of an open pool, and waits until it is on the disk, before the file is cut.
    pub(super) fn write_superblock_for_good(
        &self,
        extents: &mut Extents,
        name: &'static str,
    ) -> Result<()> {
        if !self.promise.is_logged() {
            let written = self.write_superblock_in_turn(extents, false, name);
            return written.inspect_err(|_| self.note_unsynced(extents));
        }
        self.write_superblock(extents, false, name);
        match self.open_log()? {
            // The words of what is cut off have to be out of the log, too: applied, or beyond the end of the file.
            Some(log) => log.drain(),
            None => {
                trace::durable(trace::appended());
                Ok(())
            }
        }
    }
}

/// Writes the superblock that a file has once more, changed, and syncs the file after each copy, unless nothing is to be changed. What the file shows need not be on
/// the disk.
fn write_superblock_again(
    file: &File,
    path: &Path,
    change: impl FnOnce(Superblock) -> Option<Superblock>,
) -> Result<()> {
    let mut bytes = vec![0; 2 * COPY_BYTES];
    let failed = |errno| write_error(path, errno);
    system::read_at(file, &mut bytes, 0).map_err(failed)?;
    let length = system::length(file).map_err(failed)?;
    let Some(superblock) = change(Superblock::read(path, &bytes, length)?) else {
        return Ok(());
    };
    superblock.writes(&bytes).all().try_for_each(|(at, bytes)| {
        system::write_at(file, bytes, *at)
            .and_then(|()| system::fsync(file))
            .map_err(failed)
    })
}
