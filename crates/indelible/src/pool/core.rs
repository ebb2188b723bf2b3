//! The open pool: its mapping, superblock, catalog and extents.

use super::layout::{
    CATALOG_AT, CatalogEntry, EXTENT_BYTES, MAPS, MAX_EXTENTS, NAME_BYTES, TABLE_AT, Use,
};
use super::mapping::Mapping;
use super::space::Space;
use super::superblock::{Copy, Promise, Superblock};
use crate::index::{AnyIndex, WeakIndex};
use crate::planted::{Bug, planted};
use crate::pmem::{Cell, Medium, Pm};
use crate::sync::lock;
use crate::{Error, Kind, Result};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// See the module.
pub(crate) struct PoolCore {
    mapping: Mapping,
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

/// What is known about extents while the pool is open.
#[derive(Default)]
struct Extents {
    /// Length of the pool in extents.
    count: u64,
    free: BTreeSet<u64>,
    sequence: u64,
    next_owner: u32,
}

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
            mapping,
            read_only: AtomicBool::new(true),
            was_clean: superblock.clean,
            promise: superblock.promise,
            uuid: superblock.uuid,
            boot,
            generation: AtomicU64::new(superblock.generation),
            closed: AtomicBool::new(false),
            extents: Mutex::new(Extents {
                count: superblock.extents,
                sequence: superblock.sequence,
                ..Extents::default()
            }),
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

    /// Finds out which extents are free, and the next owner number. Two maps with one number would free each other's extents,
    /// and so would a run that says to be longer than it is.
    fn scan_extents(&self) -> Result<()> {
        let mut owners = BTreeSet::new();
        for owner in &self.owners {
            let owner = owner.load(Ordering::Relaxed);
            if owner != 0 && !owners.insert(owner) {
                return Err(Error::Damaged(format!("two maps have the number {owner}")));
            }
        }
        let extents = &mut *lock(&self.extents);
        extents.next_owner = owners.last().copied().unwrap_or(0);
        let mut extent = 1;
        while extent < extents.count {
            let word = Use(self.table(extent).load());
            extents.next_owner = extents.next_owner.max(word.owner());
            // A continuation that no head speaks for is what a crash left of a large block.
            let is_used = owners.contains(&word.owner()) && !word.is_continuation();
            if !is_used {
                extents.free.insert(extent);
                extent += 1;
                continue;
            }
            let after = extent + word.length().max(1);
            let continuation = Use::continuation(word.owner(), word.length());
            let is_whole = after <= extents.count
                && (extent + 1..after).all(|more| self.table(more).load() == continuation.0);
            if !is_whole {
                let length = word.length();
                return Err(Error::Damaged(format!(
                    "extent {extent} says that it is the first of {length}, which is not so"
                )));
            }
            extent = after;
        }
        extents.next_owner = extents.next_owner.saturating_add(1);
        Ok(())
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
    pub(super) fn extent_counts(&self) -> (u64, u64) {
        let extents = lock(&self.extents);
        (extents.count, extents.free.len() as u64)
    }
}

/// Extents.
impl PoolCore {
    /// Takes `length` extents in a row for `owner`, growing the file if need be, and returns the first.
    pub(super) fn take_extents(&self, owner: u32, block_bytes: u64, length: u64) -> Result<u64> {
        let extents = &mut *lock(&self.extents);
        self.pm.note("extent taken", u64::from(length > 1));
        let first = match first_run(&extents.free, length) {
            Some(first) => first,
            None => self.grow(extents, length)?,
        };
        (first..first + length).for_each(|extent| {
            extents.free.remove(&extent);
        });
        if length == 1 && planted(Bug::ExtentNotRecorded) {
            return Ok(first);
        }
        if length == 1 {
            // COMMIT: the extent is `owner`'s. Before this store recovery finds it free; after it, unswept and its
            // owner's, or free again if the owner itself was not committed.
            self.pm
                .commit(self.table(first), Use::blocks(owner, block_bytes).0);
            return Ok(first);
        }
        for extent in first + 1..first + length {
            self.pm
                .store(self.table(extent), Use::continuation(owner, length).0);
            self.pm.flush(self.table(extent));
        }
        self.pm.fence();
        // COMMIT: the whole run is `owner`'s. Before this store recovery finds continuations without a head, which are
        // free; after it the head speaks for all of them.
        self.pm
            .commit(self.table(first), Use::head(owner, length).0);
        Ok(first)
    }

    /// Makes the file longer, and returns the first of `length` new extents in a row.
    fn grow(&self, extents: &mut Extents, length: u64) -> Result<u64> {
        // Free extents at the end of the file count towards the run.
        let mut first = extents.count;
        while extents.free.contains(&(first - 1)) {
            first -= 1;
        }
        let limit = MAX_EXTENTS.min(self.mapping.reserved() / EXTENT_BYTES);
        if first + length > limit {
            return Err(Error::NoSpace(format!(
                "the pool has reached its limit of {} bytes",
                limit * EXTENT_BYTES
            )));
        }
        // By a 64th at a time, so that growing is rare and little stands unused. If the disk has less, as much as is needed.
        let step = (extents.count / 64).clamp(1, 32);
        let wanted = (first + length).max(extents.count + step).min(limit);
        self.pm.note("file growth", 0);
        if planted(Bug::GrowCommitsEarly) {
            let count = std::mem::replace(&mut extents.count, wanted);
            self.write_superblock(extents, false);
            extents.count = count;
        }
        let count = match self.extend_file(extents.count, wanted) {
            Err(Error::NoSpace(_)) if wanted > first + length => {
                self.extend_file(extents.count, first + length)?;
                first + length
            }
            result => result.map(|()| wanted)?,
        };
        extents.free.extend(extents.count..count);
        extents.count = count;
        // COMMIT: the pool's length, by checksum (see the superblock). Before it the file is longer than the superblock
        // says, which does no harm; after it the new extents exist and are free, since a new page of the table is zero.
        self.write_superblock(extents, false);
        Ok(first)
    }

    fn extend_file(&self, from: u64, to: u64) -> Result<()> {
        // The page of the extent table that speaks for the new extents must not be a hole either.
        self.mapping
            .allocate(TABLE_AT, (TABLE_AT + to * 8).next_multiple_of(4096))?;
        // Their words in the table say that they are free: whatever a shrink cuts off said so durably before.
        self.mapping.extend(from * EXTENT_BYTES, to * EXTENT_BYTES)
    }

    /// Puts an extent on a huge page, if that can be had.
    pub(super) fn collapse_extent(&self, extent: u64) {
        self.mapping.collapse(extent);
    }

    /// Gives back the extents of `owner` that the word of `first` speaks for. Nobody uses them.
    pub(super) fn free_extents(&self, owner: u32, first: u64) {
        let extents = &mut *lock(&self.extents);
        if first >= extents.count || Use(self.table(first).load()).owner() != owner {
            debug_assert!(false, "extent {first} is not {owner}'s to free");
            return;
        }
        let length = Use(self.table(first).load())
            .length()
            .min(extents.count - first);
        self.pm.note("extent freed", u64::from(length > 1));
        // COMMIT: the run is free. Before this store recovery finds it its owner's, to be swept; after it the
        // continuations have no head and are free too.
        self.pm.commit(self.table(first), Use::FREE.0);
        for extent in first + 1..first + length {
            self.pm.store(self.table(extent), Use::FREE.0);
            self.pm.flush(self.table(extent));
        }
        self.pm.fence();
        extents.free.extend(first..first + length);
    }

    /// The extents of `owner`, of runs their heads, whose words are `wanted`.
    fn extents_of(&self, owner: u32, wanted: impl Fn(Use) -> bool) -> Vec<u64> {
        let extents = lock(&self.extents);
        let is_wanted = |extent: &u64| {
            let word = Use(self.table(*extent).load());
            word.owner() == owner
                && !word.is_continuation()
                && !extents.free.contains(extent)
                && wanted(word)
        };
        (1..extents.count).filter(is_wanted).collect()
    }

    /// Bytes of the block at `offset`, if the extent table says that one of `owner` lies there, whole. O(1), for offsets
    /// that come from the file: they may be anything.
    pub(super) fn block_bytes_at(&self, owner: u32, offset: u64) -> Option<u64> {
        let (extent, within) = (offset / EXTENT_BYTES, offset % EXTENT_BYTES);
        // The word of an extent beyond the end of the file is zero, or lies in a page that is not there yet; the
        // count is asked first.
        let count = lock(&self.extents).count;
        if owner == 0 || !(1..count).contains(&extent) {
            return None;
        }
        let word = Use(self.table(extent).load());
        let bytes = word
            .block_bytes()
            .filter(|_| word.owner() == owner && extent + word.length() <= count)?;
        let is_whole =
            within.is_multiple_of(bytes) && within + bytes <= word.length() * EXTENT_BYTES;
        is_whole.then_some(bytes)
    }

    /// Bytes of the block at `offset`, if there is one of the map at `slot`; see
    /// [`block_bytes_at`](Self::block_bytes_at). A map of several block sizes learns from it what a link leads to.
    #[allow(dead_code, reason = "for APEX, which is being built")]
    pub(crate) fn block_bytes_of(&self, slot: usize, offset: u64) -> Option<u64> {
        self.block_bytes_at(self.owners[slot].load(Ordering::Relaxed), offset)
    }

    /// Cuts free extents off the end of the file, and returns how many bytes.
    pub(super) fn shrink(&self) -> Result<u64> {
        for space in lock(&self.spaces).iter().filter_map(Weak::upgrade) {
            space.give_up();
        }
        let extents = &mut *lock(&self.extents);
        let (used, old) = (
            extents.count,
            self.mapping.file_extents()?.max(extents.count),
        );
        while extents.count > 1 && extents.free.remove(&(extents.count - 1)) {
            extents.count -= 1;
        }
        if extents.count == old {
            return Ok(0);
        }
        self.pm.note("file shrink", 0);
        if planted(Bug::ShrinkCutsFirst) {
            self.mapping
                .cut(extents.count * EXTENT_BYTES, old * EXTENT_BYTES)?;
        }
        if extents.count < used {
            // COMMIT: the pool's length, by checksum. Before it the free extents are still the pool's; after it the file
            // is longer than the superblock says, which does no harm. On the disk too it must say so first.
            self.write_superblock(extents, false);
            self.mapping.sync_superblock()?;
        }
        // Nobody looks there any more: a block becomes free only after every reader has let go of it.
        self.mapping
            .cut(extents.count * EXTENT_BYTES, old * EXTENT_BYTES)?;
        Ok((old - extents.count) * EXTENT_BYTES)
    }

    /// The space for blocks of `block_bytes` of the map at `slot`, which may be prepared and not committed.
    pub(crate) fn space(self: &Arc<Self>, slot: usize, block_bytes: u32) -> Result<Arc<Space>> {
        let [space] = self.spaces(slot, [block_bytes]);
        Ok(space)
    }

    /// A space for each of several sizes of blocks. Those larger than an extent are a whole number of extents.
    pub(crate) fn spaces<const SIZES: usize>(
        self: &Arc<Self>,
        slot: usize,
        sizes: [u32; SIZES],
    ) -> [Arc<Space>; SIZES] {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        // The table is read once for all of them.
        let mut extents: HashMap<u64, Vec<u64>> = HashMap::new();
        for extent in self.extents_of(owner, |_| true) {
            if let Some(bytes) = Use(self.table(extent).load()).block_bytes() {
                extents.entry(bytes).or_default().push(extent);
            }
        }
        let made = sizes.map(|bytes| {
            let bytes = u64::from(bytes);
            let extents = extents.remove(&bytes).unwrap_or_default();
            Arc::new(Space::new(Arc::clone(self), owner, bytes, extents))
        });
        let mut spaces = lock(&self.spaces);
        spaces.retain(|space| space.strong_count() > 0);
        spaces.extend(made.iter().map(Arc::downgrade));
        made
    }
}

/// Checking.
impl PoolCore {
    /// What is wrong with the extent table: every extent is free, with no word in the table, or a map's.
    pub(super) fn check_extents(&self) -> Vec<String> {
        let extents = lock(&self.extents);
        let is_owner = |owner| {
            owner != 0
                && self
                    .owners
                    .iter()
                    .any(|known| known.load(Ordering::Relaxed) == owner)
        };
        let mut problems = Vec::new();
        let mut extent = 1;
        while extent < extents.count {
            let word = Use(self.table(extent).load());
            let is_free = extents.free.contains(&extent);
            // What a read-only open finds free it cannot wipe.
            if is_free && word != Use::FREE && !self.is_read_only() {
                problems.push(format!("extent {extent} is free and says {:#x}", word.0));
            }
            if !is_free && (!is_owner(word.owner()) || word.is_continuation()) {
                problems.push(format!("extent {extent} is lost: it says {:#x}", word.0));
            }
            extent += if is_free { 1 } else { word.length().max(1) };
        }
        problems
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
        self.mapping.sync()?;
        self.pm.note("clean close", 0);
        // COMMIT, by checksum: the pool is clean. Everything else is on the disk before this.
        self.write_superblock(&mut lock(&self.extents), true);
        self.mapping.sync()
    }
}

#[cfg(feature = "trace")]
impl PoolCore {
    pub(super) fn take_run(&self, slot: usize, extents: u64) -> Result<()> {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        self.take_extents(owner, extents * EXTENT_BYTES, extents)?;
        Ok(())
    }

    pub(super) fn runs(&self, slot: usize) -> Vec<u64> {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        self.extents_of(owner, |word| word.length() > 1)
    }

    pub(super) fn free_runs(&self, slot: usize) {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        for extent in self.runs(slot) {
            self.free_extents(owner, extent);
        }
    }

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
    }
}

/// The first of `length` extents in a row.
fn first_run(free: &BTreeSet<u64>, length: u64) -> Option<u64> {
    let mut run = 0;
    let mut last = 0;
    for &extent in free {
        run = if extent == last + 1 { run + 1 } else { 1 };
        last = extent;
        if run == length {
            return Some(extent + 1 - length);
        }
    }
    None
}
