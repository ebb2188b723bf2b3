//! Extents: which are free, and which map owns each of the others. How the pool gets more extents: see `growth`.

use super::PoolCore;
use super::growth::Growth;
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::pool::layout::{EXTENT_BYTES, Use};
use crate::pool::{Bug, Offset, Space};
use crate::{Error, Result};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};

/// What is known about extents while the pool is open.
#[derive(Default)]
pub(super) struct Extents {
    /// Length of the pool in extents.
    pub(super) count: u64,
    pub(super) free: BTreeSet<u64>,
    /// Free extents that do not have all their blocks on the disk, since the file is a copy: see `Mapping::without_blocks`.
    pub(super) without_blocks: BTreeSet<u64>,
    pub(super) sequence: u64,
    /// The superblock says that a sync has failed.
    pub(super) is_noted_unsynced: bool,
    pub(super) next_owner: u32,
}

impl Extents {
    pub(super) fn new(count: u64, sequence: u64) -> Self {
        Self {
            count,
            sequence,
            ..Self::default()
        }
    }

    /// The first of `length` free extents in a row that have their blocks.
    pub(super) fn first_run(&self, length: u64) -> Option<u64> {
        if self.without_blocks.is_empty() {
            return first_run(&self.free, length);
        }
        first_run(&(&self.free - &self.without_blocks), length)
    }

    /// Makes the pool end at `count`.
    fn cut(&mut self, count: u64) {
        self.count = count;
        self.free.split_off(&count);
        self.without_blocks.split_off(&count);
    }
}

impl PoolCore {
    /// Reads the extent table: which extents are free, and the next owner number. Refuses two maps with one number, and a run whose
    /// head gives a wrong length: both would lead to one map freeing extents of another.
    pub(super) fn scan_extents(&self) -> Result<()> {
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
            // A continuation without a head is free: a crash interrupted the taking or freeing of a run.
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

    /// Reserves blocks on the disk for all extents in use that lack some, before anything is stored in them. For a free extent this
    /// is done when the extent is taken.
    pub(super) fn reserve_used_extents(&self) -> Result<()> {
        let extents = &mut *lock(&self.extents);
        let without_blocks = self.mapping.without_blocks(extents.count)?;
        for &extent in without_blocks.difference(&extents.free) {
            self.mapping
                .reserve_again(extent * EXTENT_BYTES..(extent + 1) * EXTENT_BYTES)?;
        }
        extents.without_blocks = &without_blocks & &extents.free;
        Ok(())
    }

    /// The first of `length` free extents in a row, with the extents locked. The pool grows if need be.
    fn free_run(&self, length: u64) -> Result<(MutexGuard<'_, Extents>, u64)> {
        let extents = lock(&self.extents);
        match extents.first_run(length) {
            Some(first) => Ok((extents, first)),
            None => {
                drop(extents);
                self.grow(length)
            }
        }
    }

    /// The first of `length` free extents in a row that lie before the extent `end`, with the extents locked. The pool does not grow.
    fn free_run_before(&self, length: u64, end: u64) -> Result<(MutexGuard<'_, Extents>, u64)> {
        let extents = lock(&self.extents);
        let with_blocks = extents.first_run(length);
        if let Some(first) = with_blocks.filter(|first| first + length <= end) {
            return Ok((extents, first));
        }
        let are_others = !extents.without_blocks.is_empty();
        drop(extents);
        let found = if are_others {
            self.free_run_with_blocks(&mut lock(&self.growth), length, end)?
        } else {
            None
        };
        found.ok_or_else(|| Error::NoSpace("no extents are free there".into()))
    }

    /// Takes `length` extents in a row for `owner`, growing the file if need be, and returns the first.
    ///
    /// If they have to lie before the extent `end`, the file does not grow.
    pub(in crate::pool) fn take_extents(
        &self,
        owner: u32,
        block_bytes: u64,
        length: u64,
        end: Option<u64>,
    ) -> Result<u64> {
        let (mut extents, first) = match end {
            Some(end) => self.free_run_before(length, end)?,
            None => self.free_run(length)?,
        };
        self.pm.note("extent taken", u64::from(length > 1));
        (first..first + length).for_each(|extent| {
            extents.free.remove(&extent);
        });
        if length == 1 && planted(Bug::ExtentNotRecorded) {
            return Ok(first);
        }
        if length == 1 {
            // COMMIT pool.take: the extent is `owner`'s. Before this store recovery finds it free; after it, unswept and its
            // owner's, or free again if the owner itself was not committed.
            self.pm.commit(
                self.table(first),
                Use::blocks(owner, block_bytes).0,
                "pool.take",
            );
            return Ok(first);
        }
        for extent in first + 1..first + length {
            self.pm
                .store(self.table(extent), Use::continuation(owner, length).0);
            self.pm.flush(self.table(extent));
        }
        self.pm.fence();
        // COMMIT pool.take-run: the whole run is `owner`'s. Before this store recovery finds continuations without a head, which are
        // free; after it the head speaks for all of them.
        self.pm.commit(
            self.table(first),
            Use::head(owner, length).0,
            "pool.take-run",
        );
        Ok(first)
    }

    /// Puts an extent on a huge page, if that can be had.
    pub(in crate::pool) fn collapse_extent(&self, extent: u64) {
        self.mapping.collapse(extent);
    }

    /// Frees the extent `first` of `owner`, or the run that begins there. No thread uses it any more.
    pub(in crate::pool) fn free_extents(&self, owner: u32, first: u64) {
        let extents = &mut *lock(&self.extents);
        if first >= extents.count || Use(self.table(first).load()).owner() != owner {
            // The extent stays as it is: at worst its space is lost until the pool is checked.
            tracing::error!(first, owner, "an extent is not its owner's to free");
            return;
        }
        let length = Use(self.table(first).load())
            .length()
            .min(extents.count - first);
        self.pm.note("extent freed", u64::from(length > 1));
        // COMMIT pool.free: the run is free. Before this store recovery finds it its owner's, to be swept; after it the
        // continuations have no head and are free too.
        self.pm.commit(self.table(first), Use::FREE.0, "pool.free");
        // These stores have a name of their own, since they commit nothing: a continuation without a head is free anyway.
        let pm = self.pm.named("pool.free-continuations");
        for extent in first + 1..first + length {
            pm.store(self.table(extent), Use::FREE.0);
            pm.flush(self.table(extent));
        }
        pm.fence();
        extents.free.extend(first..first + length);
    }

    /// The free extents before `end`, ascending.
    pub(in crate::pool) fn free_extents_before(&self, end: u64) -> Vec<u64> {
        lock(&self.extents).free.range(..end).copied().collect()
    }

    /// The extents of `owner`, and the first extents of its runs, for whose words in the table `wanted` is true.
    pub(super) fn extents_of(&self, owner: u32, wanted: impl Fn(Use) -> bool) -> Vec<u64> {
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
    pub(in crate::pool) fn block_bytes_at(&self, owner: u32, offset: Offset) -> Option<u64> {
        let (extent, within) = (offset.extent(), offset.within_extent());
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
    pub(crate) fn block_bytes_of(&self, slot: usize, offset: Offset) -> Option<u64> {
        self.block_bytes_at(self.owners[slot].load(Ordering::Relaxed), offset)
    }

    /// An error if the file may have an older superblock than the one in memory, and will not get that: if the log or a sync has failed. The file must not be cut
    /// then. Waits until the session of the log has begun, which comes after a superblock that is in the log of an earlier session only.
    pub(crate) fn expect_superblock_sound(&self) -> Result<()> {
        if let Some(log) = self.open_log()? {
            log.expect_sound()?;
        }
        self.mapping.expect_synced()
    }

    /// Gives the extents of all open objects back of which no block is in use. Does not wait for readers.
    pub(crate) fn give_back_unused(&self) {
        for space in lock(&self.spaces).iter().filter_map(Weak::upgrade) {
            space.give_back_without_waiting();
        }
    }

    /// Cuts free extents off the end of the file, and returns how many bytes.
    pub(crate) fn shrink(&self) -> Result<u64> {
        self.expect_superblock_sound()?;
        self.give_back_unused();
        let growth = &mut *lock(&self.growth);
        let made = growth.stop_ready_ahead();
        growth.forget_refusal();
        let extents = &mut *lock(&self.extents);
        let used = extents.count;
        let old = self.mapping.file_extents()?.max(used);
        // Extents that were to be made ready may be mapped or not. They are cut off, and not counted.
        let mapped = old.max(made);
        let mut count = used;
        while count > 1 && extents.free.contains(&(count - 1)) {
            count -= 1;
        }
        extents.cut(count);
        if extents.count == mapped {
            return Ok(0);
        }
        self.pm.note("file shrink", 0);
        if planted(Bug::ShrinkCutsFirst) {
            self.mapping
                .cut(extents.count * EXTENT_BYTES, mapped * EXTENT_BYTES)?;
        }
        if extents.count < used {
            // COMMIT pool.shrink: the pool's length, by checksum. Before it the free extents are still the pool's; after it the
            // file is longer than the superblock says, which does no harm. The superblock must reach the disk before the file is cut.
            self.write_superblock_for_good(extents, "pool.shrink")?;
        }
        // No thread reads there any more: a block becomes free only when no reader can hold it.
        self.mapping
            .cut(extents.count * EXTENT_BYTES, mapped * EXTENT_BYTES)?;
        Ok((old - extents.count) * EXTENT_BYTES)
    }

    /// Cuts off the part of the file beyond the pool's end.
    pub(super) fn cut_surplus(&self, growth: &mut Growth, extents: &Extents) -> Result<()> {
        let made = growth.stop_ready_ahead();
        let end = self.mapping.file_extents()?.max(made);
        if end <= extents.count {
            return Ok(());
        }
        self.expect_superblock_sound()?;
        self.mapping
            .cut(extents.count * EXTENT_BYTES, end * EXTENT_BYTES)
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
    pub(crate) fn check_extents(&self) -> Vec<String> {
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

/// The first of `length` extents in a row.
pub(super) fn first_run(free: &BTreeSet<u64>, length: u64) -> Option<u64> {
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

/// Runs of extents, as blocks larger than an extent take them: the crash checker takes and frees runs through these.
#[allow(dead_code, reason = "only the crash checker takes runs")]
impl PoolCore {
    pub(crate) fn take_run(&self, slot: usize, extents: u64) -> Result<()> {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        self.take_extents(owner, extents * EXTENT_BYTES, extents, None)?;
        Ok(())
    }

    pub(crate) fn runs(&self, slot: usize) -> Vec<u64> {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        self.extents_of(owner, |word| word.length() > 1)
    }

    pub(crate) fn free_runs(&self, slot: usize) {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        for extent in self.runs(slot) {
            self.free_extents(owner, extent);
        }
    }
}
