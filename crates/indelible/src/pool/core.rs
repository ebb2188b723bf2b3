//! The open pool: its mapping and superblock. Its objects are in `catalog`, its extents in `extents`, how it gets more in `growth`, and what it does with
//! a log in `logged`.

mod catalog;
mod extents;
mod growth;
mod logged;

use super::layout::{CATALOG_AT, CatalogEntry, EXTENT_BYTES, MAX_EXTENTS, OBJECTS, TABLE_AT, Use};
use super::machine::medium_of;
use super::mapping::Mapping;
use super::space::Space;
use super::superblock::{COPIED, Copy, Promise, Superblock, unsynced};
use crate::concurrency::sync::lock;
use crate::pmem::journal::Journal;
use crate::pmem::{Cell, Medium, Pm};
use crate::pool::Durability;
use crate::pool::log::{Backlog, Gate};
use crate::{Error, Result};
use catalog::WeakObject;
pub(crate) use catalog::{Object, Signature};
use extents::Extents;
use growth::Growth;
use logged::OpenLog;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::Duration;

/// An open pool.
pub(crate) struct PoolCore {
    pm: Pm,
    read_only: AtomicBool,
    was_clean: bool,
    /// It was copied from an open pool, and has not been opened for writing since.
    was_copied: bool,
    /// The machine has been up, as far as is known, since the pool was open last.
    may_have_died_alone: bool,
    promise: Promise,
    uuid: [u64; 2],
    boot: [u64; 2],
    generation: AtomicU64,
    closed: AtomicBool,
    /// The process that has opened the pool.
    process: u32,
    extents: Mutex<Extents>,
    /// Locked before `extents` by a thread that makes the pool longer or shorter.
    growth: Mutex<Growth>,
    /// The owner number of each catalog entry, also of one that is being prepared and not committed yet.
    owners: [AtomicU32; OBJECTS],
    open_objects: Mutex<HashMap<usize, WeakObject>>,
    object_closed: Condvar,
    spaces: Mutex<Vec<Weak<Space>>>,
    /// In a pool with a log, from [`begin_writing`](PoolCore::begin_writing) to the close.
    log: Mutex<Option<OpenLog>>,
    gate: OnceLock<Arc<Gate>>,
    journal: Option<&'static Journal>,
    /// Bytes that the log may have at most.
    log_bytes: u64,
    /// Records of earlier sessions that are not in the file yet, until [`begin_writing`](PoolCore::begin_writing).
    backlog: Mutex<Option<Arc<Backlog>>>,
    /// The generation of the last of these sessions; 0 without.
    earlier: u64,
    /// The last one to be dropped: whoever gets the lock on the pool's file finds the log's unlocked.
    mapping: Arc<Mapping>,
}

/// Words between two that [`make_present`](PoolCore::make_present) reads: no more than a page has.
const MOST_WORDS_BETWEEN_TOUCHES: usize = 4096 / 8;

/// What to open, once the file is at hand.
pub(super) struct Opening {
    pub(super) mapping: Mapping,
    pub(super) medium: Medium,
    pub(super) superblock: Superblock,
    pub(super) boot: [u64; 2],
    pub(super) log_bytes: u64,
    /// Records of earlier sessions that are not in the file yet.
    pub(super) backlog: Option<Arc<Backlog>>,
}

impl PoolCore {
    /// Maps the pool, for reading until [`begin_writing`](Self::begin_writing), and scans its extent table: 8 bytes per 2 MiB, and nothing else that grows with the pool.
    pub(super) fn open(opening: Opening) -> Result<Self> {
        let Opening {
            mapping,
            medium,
            superblock,
            boot,
            log_bytes,
            backlog,
        } = opening;
        let length = superblock.extents * EXTENT_BYTES;
        if length > mapping.reserved() {
            return Err(Error::NoSpace(format!(
                "the pool has {length} bytes, and only {} may be mapped",
                mapping.reserved()
            )));
        }
        mapping.map(0, length)?;
        mapping.reserve_metadata(superblock.extents)?;
        if let Some(backlog) = &backlog {
            mapping.complete(backlog)?;
        }
        let is_logged = medium == Medium::Disk && !mapping.is_model();
        let journal = is_logged.then(|| Journal::new(mapping.base() as usize));
        let core = Self {
            pm: journal.map_or_else(|| mapping.pm(medium), Pm::journaled),
            journal,
            log: Mutex::default(),
            gate: OnceLock::new(),
            log_bytes,
            earlier: backlog.as_ref().map_or(0, |it| it.generation()),
            backlog: Mutex::new(backlog),
            mapping: Arc::new(mapping),
            read_only: AtomicBool::new(true),
            was_clean: superblock.clean,
            was_copied: superblock.clean && superblock.boot == COPIED,
            may_have_died_alone: [boot, COPIED, [0; 2]].contains(&superblock.boot)
                || boot == [0; 2],
            promise: superblock.promise,
            uuid: superblock.uuid,
            boot,
            generation: AtomicU64::new(superblock.generation),
            closed: AtomicBool::new(false),
            process: std::process::id(),
            extents: Mutex::new(Extents::new(superblock.extents, superblock.sequence)),
            growth: Mutex::new(Growth::new(&superblock)),
            owners: std::array::from_fn(|_| AtomicU32::new(0)),
            open_objects: Mutex::default(),
            object_closed: Condvar::new(),
            spaces: Mutex::default(),
        };
        for (slot, owner) in core.owners.iter().enumerate() {
            let word = core.entry(slot).owner.load();
            let number = u32::try_from(word)
                .map_err(|_| Error::Damaged(format!("{word:#x} cannot be the number of a map")))?;
            owner.store(number, Ordering::Relaxed);
        }
        core.scan_extents()?;
        core.reserve_used_extents()?;
        Ok(core)
    }

    /// Marks the pool as open for writing. The mark is on the disk before anything else changes.
    pub(super) fn begin_writing(&self) -> Result<()> {
        self.read_only.store(false, Ordering::Relaxed);
        let extents = &mut *lock(&self.extents);
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.pm.note("open", 0);
        // COMMIT pool.open, by checksum: the pool is open. Before it the pool is as it was closed, or as it crashed; after it the pool
        // counts as crashed, which it is until it is closed.
        if self.promise.is_logged() {
            self.begin_log(extents)?;
        } else {
            // Also if the superblock says so already: the process that wrote it may have died before it could sync. Nobody waits for the second copy: on the disk
            // the first one counts, until the pool grows (see `expect_open_in_both`).
            self.write_superblock_in_turn(extents, false, "pool.open")?;
        }
        let pm = self.pm.named("pool.wipe");
        // Frees extents of objects whose creation or removal a crash interrupted.
        for extent in 1..extents.count {
            let word = self.table(extent).load();
            if word != 0 && extents.free.contains(&extent) {
                // COMMIT pool.wipe: the extent is free. Before this store recovery finds that its owner does not exist, and takes the
                // extent for free too.
                pm.store(self.table(extent), Use::FREE.0);
                pm.flush(self.table(extent));
            }
        }
        pm.fence();
        Ok(())
    }

    /// Bytes in the pool.
    pub(crate) fn length(&self) -> u64 {
        lock(&self.extents).count * EXTENT_BYTES
    }

    /// Writes the superblock where the pool is mapped, and waits for nothing. What the disk gets of it, and when, is the log's business; on persistent memory
    /// each copy is there before the next one is written. In a pool that is in the page cache both copies may be on their way to the disk at the same time.
    fn write_superblock(&self, extents: &mut Extents, clean: bool, name: &'static str) {
        let superblock = self.next_superblock(extents, clean);
        let second = superblock.write_first(self.pm.named(name), self.superblocks());
        extents.sequence = second.write();
    }

    /// Writes the superblock of a pool without a log: the first copy is on the disk before the second one is written, for which nobody waits.
    fn write_superblock_in_turn(
        &self,
        extents: &mut Extents,
        clean: bool,
        name: &'static str,
    ) -> Result<()> {
        let superblock = self.next_superblock(extents, clean);
        let second = superblock.write_first(self.pm.named(name), self.superblocks());
        // After an error the second copy stays as it is: it may be the only one that the disk has.
        self.mapping.sync_superblock()?;
        extents.sequence = second.write();
        Ok(())
    }

    fn next_superblock(&self, extents: &mut Extents, clean: bool) -> Superblock {
        extents.sequence += 1;
        Superblock {
            uuid: self.uuid,
            sequence: extents.sequence,
            generation: self.generation(),
            promise: self.promise,
            clean,
            earlier: if clean { 0 } else { self.earlier },
            boot: self.boot_now(),
            extents: extents.count,
        }
    }

    /// What the superblock of the open pool has for the boot.
    fn boot_now(&self) -> [u64; 2] {
        let is_unsynced = self.promise.is_page_cached() && self.mapping.expect_synced().is_err();
        if is_unsynced {
            unsynced(self.boot)
        } else {
            self.boot
        }
    }

    fn superblocks(&self) -> &[Copy; 2] {
        // SAFETY: the metadata extent is mapped from the base on for as long as `self` lives, and copies are atomics.
        unsafe { &*self.base().cast_const().cast() }
    }

    fn catalog(&self) -> &[CatalogEntry; OBJECTS] {
        // SAFETY: the metadata extent is mapped for as long as `self` lives, entries consist of atomics, and `layout` asserts that
        // the catalog fits.
        unsafe { &*self.base().add(CATALOG_AT as usize).cast_const().cast() }
    }

    /// The extent table's word for an extent below the limit.
    fn table(&self, extent: u64) -> &Cell {
        assert!(
            extent < MAX_EXTENTS,
            "invariant: a pool has at most {MAX_EXTENTS} extents"
        );
        // SAFETY: the metadata extent is mapped for as long as `self` lives, and the table ends where that extent ends.
        unsafe {
            &*self
                .base()
                .add((TABLE_AT + extent * 8) as usize)
                .cast_const()
                .cast()
        }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    pub(crate) fn pm(&self) -> Pm {
        self.pm
    }

    /// Makes sure that a system call may be given these words: right after a crash some of an image's pages may be absent, and without a
    /// privilege only the program itself can wait for them.
    pub(crate) fn make_present(&self, words: &[Cell]) {
        if self.mapping.is_incomplete() {
            let in_pages = words.iter().step_by(MOST_WORDS_BETWEEN_TOUCHES);
            let words = in_pages.chain(words.last());
            words.for_each(|word| _ = std::hint::black_box(word.load()));
        }
    }

    /// Whether no other thread may touch the pool, since the crash checker is watching this one.
    pub(crate) fn runs_alone(&self) -> bool {
        self.mapping.is_model()
    }

    /// Whether the pool is closed: nothing is written any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.is_forked()
    }

    /// Whether this process is a child of the one that has opened the pool, by `fork`. The pool is still that one's: the file and the locks are the same in both, and
    /// the threads that work for the pool are not in the child.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Whether the pool had been closed cleanly when it was opened.
    pub(crate) fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// A number that is this pool's for good and that hardly another pool has: for hashes that nobody outside can predict.
    pub(crate) fn seed(&self) -> u64 {
        self.uuid[0] ^ self.uuid[1].rotate_left(32)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// What the pool promises to survive.
    pub(crate) fn durability(&self) -> Durability {
        match self.promise {
            Promise::Process => Durability::Process,
            Promise::PowerLoss | Promise::ForcedPowerLoss | Promise::Logged => {
                Durability::PowerLoss
            }
            Promise::LoggedAtIntervals(millis) => {
                Durability::Interval(Duration::from_millis(millis.into()))
            }
        }
    }

    /// The medium that the pool is on when it is open for writing.
    pub(crate) fn medium(&self) -> Medium {
        let own = self.pm.medium();
        if self.is_read_only() && self.is_in_file() {
            // One that cannot keep the promise would not be opened for writing.
            return medium_of(self.promise).unwrap_or(own);
        }
        own
    }

    /// Whether the pool is in a file.
    pub(crate) fn is_in_file(&self) -> bool {
        self.mapping.file().is_some()
    }

    pub(super) fn promise(&self) -> Promise {
        self.promise
    }

    /// Where the pool lives, for messages.
    pub(crate) fn path(&self) -> &std::path::Path {
        self.mapping.path()
    }

    /// Makes the pool forget that it must be closed: from here on nothing is written any more. A crash, for the checker.
    #[allow(dead_code, reason = "only the crash checker abandons pools")]
    pub(crate) fn abandon(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Length of the pool in extents, and how many of them are free.
    pub(crate) fn extent_counts(&self) -> (u64, u64) {
        let extents = lock(&self.extents);
        (extents.count, extents.free.len() as u64)
    }
}

/// Closing.
impl PoolCore {
    /// Waits until all of the file is on the disk, or in the persistent memory.
    pub(crate) fn sync(&self) -> Result<()> {
        match self.open_log()? {
            Some(log) => log.sync(),
            None => self
                .sync_file()
                .inspect_err(|_| self.note_unsynced(&mut lock(&self.extents))),
        }
    }

    /// Waits until all of the file of a pool without a log is on the disk. An error if an earlier sync has failed, which is not tried again.
    fn sync_file(&self) -> Result<()> {
        self.mapping.expect_synced()?;
        self.mapping.sync()
    }

    /// If a sync has failed, has the superblock say so, which the next open could not know: it writes all again.
    fn note_unsynced(&self, extents: &mut Extents) {
        let is_unsynced = self.promise.is_page_cached() && self.mapping.expect_synced().is_err();
        if !is_unsynced || extents.is_noted_unsynced || self.is_read_only() {
            return;
        }
        let noted = self.write_superblock_in_turn(extents, false, "pool.open");
        extents.is_noted_unsynced = noted.is_ok();
    }

    /// Syncs everything and marks the pool as cleanly closed. A pool without a log of which a sync has failed stays marked as open: after a power cut
    /// nobody knows what its file has.
    pub(crate) fn close(&self) -> Result<()> {
        if self.is_forked() {
            return Err(Error::InUse(self.path().display().to_string()));
        }
        if self.is_read_only()
            || !self.mapping.is_durable()
            || self.closed.swap(true, Ordering::Relaxed)
        {
            return Ok(());
        }
        let growth = &mut *lock(&self.growth);
        let extents = &mut *lock(&self.extents);
        self.pm.note("clean close", 0);
        // COMMIT pool.close, by checksum: the pool is clean. Everything else is on the disk before this.
        if self.promise.is_logged() {
            return self.end_log(growth, extents);
        }
        self.cut_surplus_if_possible(growth, extents);
        self.sync_file()
            .inspect_err(|_| self.note_unsynced(extents))?;
        // With the first copy on the disk the pool is closed, whatever becomes of the second one: that is older, says the same, or is torn.
        self.write_superblock_in_turn(extents, true, "pool.close")
    }

    fn cut_surplus_if_possible(&self, growth: &mut Growth, extents: &Extents) {
        if let Err(error) = self.cut_surplus(growth, extents) {
            // The file stays longer than necessary.
            tracing::debug!(%error, "what was made ready ahead could not be cut off");
        }
    }
}

impl Drop for PoolCore {
    fn drop(&mut self) {
        if self.is_forked() {
            // To drop these would be to unlock the files of the process that has opened the pool, and to wait for threads that are not there.
            std::mem::forget(Arc::clone(&self.mapping));
            std::mem::forget(self.log.get_mut().map(Option::take));
            std::mem::forget(self.growth.get_mut().map(std::mem::take));
            return;
        }
        if let Err(error) = self.close() {
            // The pool stays marked as open: the next open takes it for crashed, which is right.
            tracing::warn!(%error, "the pool could not be closed cleanly");
        }
        self.drop_log();
        // The file stays locked until the thread that makes extents ready has ended too.
        lock(&self.growth).stop_ready_ahead();
    }
}
