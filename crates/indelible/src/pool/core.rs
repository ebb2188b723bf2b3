//! The open pool: its mapping, superblock and catalog. Its extents are in `extents`.

mod extents;

use super::layout::{
    CATALOG_AT, CatalogEntry, EXTENT_BYTES, MAPS, MAX_EXTENTS, NAME_BYTES, OBJECT_FORMAT, TABLE_AT,
    Use,
};
use super::mapping::Mapping;
use super::space::Space;
use super::superblock::{Copy, Promise, Superblock};
use crate::index::{AnyIndex, WeakIndex};
use crate::planted::{Bug, planted};
use crate::pmem::{Cell, Medium, Pm};
use crate::sync::lock;
use crate::{Error, Kind, Result};
use extents::Extents;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// See the module.
pub(crate) struct PoolCore {
    mapping: Arc<Mapping>,
    pm: Pm,
    read_only: AtomicBool,
    was_clean: bool,
    promise: Promise,
    uuid: [u64; 2],
    boot: [u64; 2],
    generation: AtomicU64,
    closed: AtomicBool,
    extents: Mutex<Extents>,
    /// The owner number of each catalog entry, also of one that is being prepared and not committed yet.
    owners: [AtomicU32; MAPS],
    maps: Mutex<HashMap<usize, WeakIndex>>,
    map_closed: Condvar,
    spaces: Mutex<Vec<Weak<Space>>>,
}

/// The open maps, locked.
pub(super) type Registry<'a> = MutexGuard<'a, HashMap<usize, WeakIndex>>;

/// What to open, once the file is at hand.
pub(super) struct Opening {
    pub(super) mapping: Mapping,
    pub(super) medium: Medium,
    pub(super) superblock: Superblock,
    pub(super) boot: [u64; 2],
}

impl PoolCore {
    /// Maps the pool, for reading until [`begin_writing`](Self::begin_writing), and scans its extent table: 8 bytes per 2 MiB, and nothing else that grows with the pool.
    pub(super) fn open(opening: Opening) -> Result<Self> {
        let Opening {
            mapping,
            medium,
            superblock,
            boot,
        } = opening;
        let length = superblock.extents * EXTENT_BYTES;
        if length > mapping.reserved() {
            return Err(Error::NoSpace(format!(
                "the pool has {length} bytes, and only {} may be mapped",
                mapping.reserved()
            )));
        }
        mapping.map(0, length)?;
        let core = Self {
            pm: mapping.pen(medium),
            mapping: Arc::new(mapping),
            read_only: AtomicBool::new(true),
            was_clean: superblock.clean,
            promise: superblock.promise,
            uuid: superblock.uuid,
            boot,
            generation: AtomicU64::new(superblock.generation),
            closed: AtomicBool::new(false),
            extents: Mutex::new(Extents::new(superblock.extents, superblock.sequence)),
            owners: std::array::from_fn(|_| AtomicU32::new(0)),
            maps: Mutex::default(),
            map_closed: Condvar::new(),
            spaces: Mutex::default(),
        };
        for (slot, owner) in core.owners.iter().enumerate() {
            owner.store(core.entry(slot).owner.load() as u32, Ordering::Relaxed);
        }
        core.scan_extents()?;
        Ok(core)
    }

    /// Marks the pool as open for writing. The mark is on the disk before anything else changes.
    pub(super) fn begin_writing(&self) -> Result<()> {
        self.read_only.store(false, Ordering::Relaxed);
        let extents = &mut *lock(&self.extents);
        self.generation.fetch_add(1, Ordering::Relaxed);
        self.pm.note("open", 0);
        // COMMIT, by checksum: the pool is open. Before it the pool is as it was closed, or as it crashed; after it the pool
        // counts as crashed, which it is until it is closed.
        self.write_superblock(extents, false);
        // Also if it says so already: the process that marked it may have died before it could sync.
        self.mapping.sync_superblock()?;
        // Extents of maps whose creation or removal a crash cut short.
        for extent in 1..extents.count {
            let word = self.table(extent).load();
            if word != 0 && extents.free.contains(&extent) {
                // COMMIT: the extent is free. Before this store recovery finds its owner missing and says the same.
                self.pm.store(self.table(extent), Use::FREE.0);
                self.pm.flush(self.table(extent));
            }
        }
        self.pm.fence();
        Ok(())
    }

    /// Bytes in the pool.
    pub(crate) fn length(&self) -> u64 {
        lock(&self.extents).count * EXTENT_BYTES
    }

    #[cfg_attr(feature = "trace", track_caller)]
    fn write_superblock(&self, extents: &mut Extents, clean: bool) {
        extents.sequence += 1;
        let superblock = Superblock {
            uuid: self.uuid,
            sequence: extents.sequence,
            generation: self.generation(),
            promise: self.promise,
            clean,
            boot: self.boot,
            extents: extents.count,
        };
        superblock.write(self.pm, self.superblocks());
    }

    fn superblocks(&self) -> &[Copy; 2] {
        // SAFETY: the metadata extent is mapped from the base on for as long as `self` lives, and copies are atomics.
        unsafe { &*self.base().cast_const().cast() }
    }

    fn catalog(&self) -> &[CatalogEntry; MAPS] {
        // SAFETY: as above; the layout module asserts that the catalog fits.
        unsafe { &*self.base().add(CATALOG_AT as usize).cast_const().cast() }
    }

    /// The extent table's word for an extent below the limit.
    fn table(&self, extent: u64) -> &Cell {
        debug_assert!(extent < MAX_EXTENTS);
        // SAFETY: as above; the table ends where extent 0 ends.
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

    /// Whether no other thread may touch the pool, since the crash checker is watching this one.
    pub(crate) fn runs_alone(&self) -> bool {
        self.mapping.is_model()
    }

    /// Whether the pool's last word has been written.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    /// Whether the pool had been closed cleanly when it was opened.
    pub(crate) fn was_clean(&self) -> bool {
        self.was_clean
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Length of the pool in extents, and how many of them are free.
    pub(crate) fn extent_counts(&self) -> (u64, u64) {
        let extents = lock(&self.extents);
        (extents.count, extents.free.len() as u64)
    }
}

/// The catalog.
impl PoolCore {
    /// The catalog entry at `slot`.
    pub(crate) fn entry(&self, slot: usize) -> &CatalogEntry {
        &self.catalog()[slot]
    }

    /// What kind of index the map at `slot` is, if this version knows it.
    pub(crate) fn kind_of(&self, slot: usize) -> Option<Kind> {
        Kind::from_code(self.entry(slot).shape.load() as u8)
    }

    pub(crate) fn name_of(&self, slot: usize) -> String {
        let (bytes, length) = self.name_bytes(slot);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    pub(super) fn has_name(&self, slot: usize, name: &str) -> bool {
        let (bytes, length) = self.name_bytes(slot);
        bytes[..length] == *name.as_bytes()
    }

    fn name_bytes(&self, slot: usize) -> ([u8; 64], usize) {
        let entry = self.entry(slot);
        let mut bytes = [0; 64];
        for (bytes, cell) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&entry.name) {
            *bytes = cell.load().to_ne_bytes();
        }
        let length = (entry.shape.load() >> 24) as u8 as usize;
        (bytes, length.min(NAME_BYTES))
    }

    /// The slots of all maps.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        (0..MAPS).filter(|&slot| self.entry(slot).owner.load_acquire() != 0)
    }

    /// Writes a free entry, all but its owner, and returns its slot. The registry is locked by the caller.
    pub(super) fn prepare_entry(&self, name: &str, shape: u64) -> Result<usize> {
        let Some(slot) = (0..MAPS).find(|&slot| self.entry(slot).owner.load() == 0) else {
            return Err(Error::TooManyMaps(MAPS));
        };
        let entry = self.entry(slot);
        let mut bytes = [0; 64];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        for (cell, word) in entry.name.iter().zip(bytes.as_chunks::<8>().0) {
            self.pm.store(cell, u64::from_ne_bytes(*word));
        }
        let zeros = entry
            .roots
            .iter()
            .chain(&entry.zero)
            .chain([&entry.records, &entry.records_generation]);
        zeros.for_each(|cell| self.pm.store(cell, 0));
        self.pm.store(&entry.object_format, OBJECT_FORMAT);
        self.pm
            .store(&entry.shape, shape | (name.len() as u64) << 24);
        // Durable with what is laid out next, before the entry is committed.
        self.pm.flush(entry);
        let mut extents = lock(&self.extents);
        let owner = extents.next_owner;
        // Numbers are not used again; four billion maps, one after the other, are more than anybody makes.
        extents.next_owner = owner
            .checked_add(1)
            .ok_or_else(|| Error::Damaged(format!("{owner} cannot be the number of a map")))?;
        self.owners[slot].store(owner, Ordering::Relaxed);
        Ok(slot)
    }

    /// Makes a prepared entry real.
    pub(super) fn commit_entry(&self, slot: usize) {
        self.pm.note("map created", 0);
        // COMMIT: the owner's number. Before this store recovery finds a free entry and extents without an owner, which
        // are free; after it the map exists.
        self.pm.commit(
            &self.entry(slot).owner,
            u64::from(self.owners[slot].load(Ordering::Relaxed)),
        );
    }

    /// Takes an entry out, prepared or real, and frees its extents. The map is not open.
    pub(super) fn remove_entry(&self, slot: usize) {
        self.pm.note("map dropped", 0);
        let owner = self.owners[slot].swap(0, Ordering::Relaxed);
        if planted(Bug::DropFreesFirst) {
            self.free_all(owner);
        }
        // COMMIT: the entry is free. Before this store recovery finds the map, whole; after it, extents without an owner.
        self.pm.commit(&self.entry(slot).owner, 0);
        self.free_all(owner);
    }

    fn free_all(&self, owner: u32) {
        for extent in self.extents_of(owner, |_| true) {
            self.free_extents(owner, extent);
        }
    }

    /// Locks the registry of open maps, once no map at `slot` is just being closed.
    pub(super) fn registry(&self) -> Registry<'_> {
        lock(&self.maps)
    }

    /// The open map at `slot`, if there is one; waits for one that is being closed.
    pub(super) fn open_map<'a>(
        &'a self,
        mut maps: Registry<'a>,
        slot: usize,
    ) -> (Registry<'a>, Option<AnyIndex>) {
        loop {
            match maps.get(&slot).map(WeakIndex::upgrade) {
                None => return (maps, None),
                Some(Some(map)) => return (maps, Some(map)),
                Some(None) => {
                    maps = self
                        .map_closed
                        .wait(maps)
                        .unwrap_or_else(PoisonError::into_inner)
                }
            }
        }
    }

    /// A map has been closed: nothing of it touches the pool any more.
    pub(crate) fn map_was_closed(&self, slot: usize) {
        lock(&self.maps).remove(&slot);
        self.map_closed.notify_all();
    }
}

/// Closing.
impl PoolCore {
    /// Waits until all of the file is on the disk, or in the persistent memory.
    pub(super) fn sync(&self) -> Result<()> {
        self.mapping.sync()
    }

    /// Syncs everything and marks the pool as cleanly closed.
    pub(super) fn close(&self) -> Result<()> {
        if self.is_read_only()
            || !self.mapping.is_durable()
            || self.closed.swap(true, Ordering::Relaxed)
        {
            return Ok(());
        }
        let extents = &mut *lock(&self.extents);
        if let Err(error) = self.cut_surplus(extents) {
            // The file stays longer than it need be.
            tracing::debug!(%error, "what was made ready ahead could not be cut off");
        }
        self.mapping.sync()?;
        self.pm.note("clean close", 0);
        // COMMIT, by checksum: the pool is clean. Everything else is on the disk before this.
        self.write_superblock(extents, true);
        self.mapping.sync()
    }
}

#[cfg(feature = "trace")]
impl PoolCore {
    pub(super) fn abandon(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Drop for PoolCore {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            // The pool stays marked as open: the next open takes it for crashed, which is right.
            tracing::warn!(%error, "the pool could not be closed cleanly");
        }
        // Or the file would stay locked for as long as a thread has it.
        lock(&self.extents).stop_ahead();
    }
}
