//! Extents: whose each is, and where more come from.
//!
//! To make an extent *ready*, reserved in the file, mapped, and its memory had from the system, takes up to milliseconds. So
//! of a pool that grows the next ones are made ready ahead of their use, by a thread that lives as long as that takes. They
//! lie beyond the pool's end, and nothing says durably that they are there: a crash leaves a file that is longer than the
//! superblock says, which does no harm.

use super::PoolCore;
use crate::planted::{Bug, planted};
use crate::pool::Space;
use crate::pool::layout::{EXTENT_BYTES, MAX_EXTENTS, TABLE_AT, Use};
use crate::pool::mapping::Mapping;
use crate::sync::lock;
use crate::{Error, Result};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};

/// What is known about extents while the pool is open.
#[derive(Default)]
pub(super) struct Extents {
    /// Length of the pool in extents.
    pub(super) count: u64,
    pub(super) free: BTreeSet<u64>,
    pub(super) sequence: u64,
    pub(super) next_owner: u32,
    ahead: Option<Ahead>,
}

/// A thread that makes extents beyond the pool's end ready, one after the other.
struct Ahead {
    /// After each one, where those that are ready end.
    ready: Receiver<u64>,
    /// Where they all will.
    to: u64,
    thread: JoinHandle<()>,
}

impl Extents {
    pub(super) fn new(count: u64, sequence: u64) -> Self {
        Self {
            count,
            sequence,
            ..Self::default()
        }
    }

    /// Where the extents beyond the pool's end that are ready end. Waits until `needed` of all extents are, or no more will be.
    fn ready(&mut self, needed: u64) -> u64 {
        let Some(ahead) = &self.ahead else {
            return self.count;
        };
        let mut ready = self.count;
        while ready < needed {
            match ahead.ready.recv() {
                Ok(end) => ready = end,
                Err(_) => break,
            }
        }
        ready = ahead.ready.try_iter().last().unwrap_or(ready);
        if ready < needed || ready == ahead.to {
            self.stop_ahead();
        }
        ready
    }

    /// Has no more extents made ready, and returns the end of what may have been.
    pub(super) fn stop_ahead(&mut self) -> u64 {
        let Some(Ahead { ready, to, thread }) = self.ahead.take() else {
            return self.count;
        };
        // Now it has nobody to tell, and ends.
        drop(ready);
        let _ = thread.join();
        to
    }
}

/// Extents of a pool from which on the next ones are made ready ahead: a small pool may never need them.
const MANY: u64 = 4;

impl PoolCore {
    /// Finds out which extents are free, and the next owner number. Two maps with one number would free each other's extents,
    /// and so would a run that says to be longer than it is.
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

    /// Takes `length` extents in a row for `owner`, growing the file if need be, and returns the first.
    pub(in crate::pool) fn take_extents(
        &self,
        owner: u32,
        block_bytes: u64,
        length: u64,
    ) -> Result<u64> {
        let extents = &mut *lock(&self.extents);
        self.pm.note("extent taken", u64::from(length > 1));
        let first = match first_run(&extents.free, length) {
            Some(first) => first,
            None => self.grow(extents, length)?,
        };
        Ok(self.assign_extents(extents, first, owner, block_bytes, length))
    }

    /// The same for extents before `end` that are free already: the pool does not grow.
    pub(in crate::pool) fn take_extents_below(
        &self,
        owner: u32,
        block_bytes: u64,
        length: u64,
        end: u64,
    ) -> Option<u64> {
        let extents = &mut *lock(&self.extents);
        let first = first_run(&extents.free, length).filter(|&first| first + length <= end)?;
        self.pm.note("extent taken", u64::from(length > 1));
        Some(self.assign_extents(extents, first, owner, block_bytes, length))
    }

    /// Gives free extents to `owner`, and returns the first.
    fn assign_extents(
        &self,
        extents: &mut Extents,
        first: u64,
        owner: u32,
        block_bytes: u64,
        length: u64,
    ) -> u64 {
        (first..first + length).for_each(|extent| {
            extents.free.remove(&extent);
        });
        if length == 1 && planted(Bug::ExtentNotRecorded) {
            return first;
        }
        if length == 1 {
            // COMMIT: the extent is `owner`'s. Before this store recovery finds it free; after it, unswept and its
            // owner's, or free again if the owner itself was not committed.
            self.pm
                .commit(self.table(first), Use::blocks(owner, block_bytes).0);
            return first;
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
        first
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
        let needed = first + length;
        let wanted = needed.max(after_next_step(extents.count)).min(limit);
        self.pm.note("file growth", 0);
        if planted(Bug::GrowCommitsEarly) {
            let count = std::mem::replace(&mut extents.count, wanted);
            self.write_superblock(extents, false);
            extents.count = count;
        }
        let ready = extents.ready(needed);
        let count = if ready >= needed {
            ready
        } else {
            // If the disk has less, as much as is needed.
            match make_ready(&self.mapping, ready, wanted) {
                Err(Error::NoSpace(_)) if wanted > needed => {
                    make_ready(&self.mapping, ready, needed)?;
                    needed
                }
                result => result.map(|()| wanted)?,
            }
        };
        extents.free.extend(extents.count..count);
        extents.count = count;
        // COMMIT: the pool's length, by checksum (see the superblock). Before it the file is longer than the superblock
        // says, which does no harm; after it the new extents exist and are free, since a new page of the table is zero.
        self.write_superblock(extents, false);
        self.look_ahead(extents, limit);
        Ok(first)
    }

    /// Has the next extents made ready.
    fn look_ahead(&self, extents: &mut Extents, limit: u64) {
        let (from, to) = (extents.count, after_next_step(extents.count).min(limit));
        if self.runs_alone() || extents.count < MANY || extents.ahead.is_some() || from == to {
            return;
        }
        let mapping = Arc::clone(&self.mapping);
        let (tell, ready) = channel();
        let work = move || {
            // What cannot be had, who needs it will try to have again, and say why not.
            if reserve_table(&mapping, to).is_err() {
                return;
            }
            for extent in from..to {
                let end = extent + 1;
                if (mapping.extend(extent * EXTENT_BYTES, end * EXTENT_BYTES)).is_err() {
                    return;
                }
                mapping.populate(extent);
                if tell.send(end).is_err() {
                    return;
                }
            }
        };
        let thread = Builder::new().name("indelible-growth".into()).spawn(work);
        extents.ahead = thread.ok().map(|thread| Ahead { ready, to, thread });
    }

    /// Puts an extent on a huge page, if that can be had.
    pub(in crate::pool) fn collapse_extent(&self, extent: u64) {
        self.mapping.collapse(extent);
    }

    /// Gives back the extents of `owner` that the word of `first` speaks for. Nobody uses them.
    pub(in crate::pool) fn free_extents(&self, owner: u32, first: u64) {
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
    pub(in crate::pool) fn block_bytes_at(&self, owner: u32, offset: u64) -> Option<u64> {
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
    pub(crate) fn block_bytes_of(&self, slot: usize, offset: u64) -> Option<u64> {
        self.block_bytes_at(self.owners[slot].load(Ordering::Relaxed), offset)
    }

    /// Cuts free extents off the end of the file, and returns how many bytes.
    pub(in crate::pool) fn shrink(&self) -> Result<u64> {
        for space in lock(&self.spaces).iter().filter_map(Weak::upgrade) {
            space.give_up();
        }
        let extents = &mut *lock(&self.extents);
        let made = extents.stop_ahead();
        let used = extents.count;
        let old = self.mapping.file_extents()?.max(used);
        // What was to be made ready may not be there: it is cut off, and not counted.
        let mapped = old.max(made);
        while extents.count > 1 && extents.free.remove(&(extents.count - 1)) {
            extents.count -= 1;
        }
        if extents.count == mapped {
            return Ok(0);
        }
        self.pm.note("file shrink", 0);
        if planted(Bug::ShrinkCutsFirst) {
            self.mapping
                .cut(extents.count * EXTENT_BYTES, mapped * EXTENT_BYTES)?;
        }
        if extents.count < used {
            // COMMIT: the pool's length, by checksum. Before it the free extents are still the pool's; after it the file
            // is longer than the superblock says, which does no harm. On the disk too it must say so first.
            self.write_superblock(extents, false);
            self.mapping.sync_superblock()?;
        }
        // Nobody looks there any more: a block becomes free only after every reader has let go of it.
        self.mapping
            .cut(extents.count * EXTENT_BYTES, mapped * EXTENT_BYTES)?;
        Ok((old - extents.count) * EXTENT_BYTES)
    }

    /// Cuts off what lies beyond the pool's end.
    pub(super) fn cut_surplus(&self, extents: &mut Extents) -> Result<()> {
        let made = extents.stop_ahead();
        let end = self.mapping.file_extents()?.max(made);
        if end == extents.count {
            return Ok(());
        }
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
    pub(in crate::pool) fn check_extents(&self) -> Vec<String> {
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

/// Where a pool of `count` extents ends when it has grown: by a 64th, so that growing is rare and little stands unused.
fn after_next_step(count: u64) -> u64 {
    count + (count / 64).clamp(1, 32)
}

/// Makes the extents from `from` to `to` ready.
fn make_ready(mapping: &Mapping, from: u64, to: u64) -> Result<()> {
    reserve_table(mapping, to)?;
    // Their words in the table say that they are free: whatever a shrink cuts off said so durably before.
    mapping.extend(from * EXTENT_BYTES, to * EXTENT_BYTES)
}

/// The page of the extent table that speaks for the extents before `to` must not be a hole either.
fn reserve_table(mapping: &Mapping, to: u64) -> Result<()> {
    mapping.allocate(TABLE_AT, (TABLE_AT + to * 8).next_multiple_of(4096))
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

#[cfg(feature = "trace")]
impl PoolCore {
    pub(in crate::pool) fn take_run(&self, slot: usize, extents: u64) -> Result<()> {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        self.take_extents(owner, extents * EXTENT_BYTES, extents)?;
        Ok(())
    }

    pub(in crate::pool) fn runs(&self, slot: usize) -> Vec<u64> {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        self.extents_of(owner, |word| word.length() > 1)
    }

    pub(in crate::pool) fn free_runs(&self, slot: usize) {
        let owner = self.owners[slot].load(Ordering::Relaxed);
        for extent in self.runs(slot) {
            self.free_extents(owner, extent);
        }
    }
}
