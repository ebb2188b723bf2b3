//! Every write: insert, update, remove, and what is made of them.

use super::Tree;
use super::batch::LANES;
use super::build::choose_free_slot;
use super::data::{DataNode, State};
use super::layout::{Extension, GROUP_SLOTS, LINE_PAIR_SLOTS, Slot, window_of};
use super::search::{LockedGroup, Place};
use crate::index::Change;
use crate::index::simd::{Kernel, Simd, dispatch};
use crate::locks::{Wait, WriteGuard};
use crate::planted::{Bug, planted};
use crate::sync::lock;
use crate::{Error, Result, reclaim};
use std::sync::atomic::Ordering;

/// Records that share a fence.
const MAX_RECORDS_PER_FENCE: usize = LANES;

impl Tree {
    /// See [`AnyIndex::apply`](crate::index::AnyIndex::apply).
    #[inline]
    pub(super) fn apply(
        &self,
        key: u64,
        mut change: impl FnMut(Option<u64>) -> Change,
    ) -> Result<Option<u64>, Box<Error>> {
        if self.core.is_read_only() {
            return Err(Error::ReadOnly.into());
        }
        let _guard = reclaim::pin();
        let (mut was_changed, mut wait) = (false, Wait::default());
        loop {
            let write = Write {
                tree: self,
                key,
                change: &mut change,
            };
            match dispatch(self.simd, write) {
                WriteOutcome::WasAbsent => return Ok(None),
                WriteOutcome::WasPresent(value) => return Ok(Some(value)),
                WriteOutcome::InsertedTooFull => {
                    self.restructure_early(key);
                    return Ok(None);
                }
                WriteOutcome::RemovedTooSparse(value) => {
                    if self.restructure(key).is_ok() {
                        self.is_starved.store(false, Ordering::Relaxed);
                    }
                    return Ok(Some(value));
                }
                WriteOutcome::NoFreeSlot => was_changed = self.make_space(key, was_changed)?,
                WriteOutcome::Cold => self.mirror_toward(key)?,
                WriteOutcome::Frozen => wait.step(),
            }
        }
    }

    /// One try. Few instructions lie between what waits for memory here and the same in the next call, so that the processor
    /// can begin with that while it waits: between 320 and 400 of them an insert begins to take half as long again.
    #[inline(always)]
    fn try_write<S: Simd>(
        &self,
        key: u64,
        change: &mut impl FnMut(Option<u64>) -> Change,
    ) -> WriteOutcome {
        let Some(data) = self.data_for(key) else {
            return WriteOutcome::Cold;
        };
        let predicted = data.model.predict(key);
        self.prefetch_to_write(data, predicted);
        let locked = self.lock_group(data, predicted);
        // Whoever freezes a node takes each of its locks afterwards: from here on it waits for us, or we see it.
        if data.state() != State::Live && !planted(Bug::WriteWithoutVersion) {
            return WriteOutcome::Frozen;
        }
        let (found, free) = self.locate::<S>(data, predicted, key);
        let before = found.map(|place| self.slot_of(data, place).value.load());
        match (change(before), found, before) {
            (Change::Put(value), Some(place), Some(before)) => {
                self.publish_update(data, place, value);
                if planted(Bug::UnlockBeforeFence) {
                    drop(locked);
                }
                self.pm.fence();
                WriteOutcome::WasPresent(before)
            }
            (Change::Put(value), ..) => {
                let Some(place) = free_place(data, predicted, free) else {
                    return WriteOutcome::NoFreeSlot;
                };
                let records = self.publish_insert(&locked, place, key, value);
                self.pm.fence();
                drop(locked);
                if may_be_too_full(data, place, records) {
                    WriteOutcome::InsertedTooFull
                } else {
                    WriteOutcome::WasAbsent
                }
            }
            (Change::Remove, Some(place), Some(before)) => {
                if planted(Bug::ReleaseBeforeRemoval) {
                    release(&locked, place);
                }
                let records = self.publish_remove(&locked, place, key);
                self.pm.fence();
                if !planted(Bug::ReleaseBeforeRemoval) {
                    release(&locked, place);
                }
                drop(locked);
                if may_be_too_sparse(data, records) {
                    WriteOutcome::RemovedTooSparse(before)
                } else {
                    WriteOutcome::WasPresent(before)
                }
            }
            (_, _, Some(before)) => WriteOutcome::WasPresent(before),
            (_, _, None) => WriteOutcome::WasAbsent,
        }
    }

    /// Sees to it that there is a free place for a key: more stash, or another structure of its node, of which it returns
    /// whether that was changed. If it just was, the stash is extended, or there would never be an end to it: no model has room
    /// for all keys that lie close together, if there is one far away.
    #[cold]
    fn make_space(&self, key: u64, was_changed: bool) -> Result<bool> {
        let data = self.data_of(key)?;
        let locked = self.lock_group(data, data.model.predict(key));
        if data.state() == State::Live {
            let can_add_extension = was_changed || data.prefers_extended_stash();
            if data.has_stash_room() || can_add_extension && self.extend(data)? {
                return Ok(was_changed);
            }
        }
        drop(locked);
        let is_changed = self.restructure(key)?;
        self.is_starved.store(false, Ordering::Relaxed);
        Ok(is_changed)
    }

    /// Restructures the node of a key before it is full. The record is in; that there is no space for another node is a
    /// later insert's trouble, and is not found out again, at the price of a whole plan, by each one until then.
    #[cold]
    fn restructure_early(&self, key: u64) {
        if !self.is_starved.load(Ordering::Relaxed) {
            let result = self.restructure(key);
            self.is_starved.store(result.is_err(), Ordering::Relaxed);
        }
    }

    /// Gives a record another value, durable with the next fence. The group is held.
    fn publish_update(&self, data: &DataNode, place: Place, value: u64) {
        // COMMIT: the value. Before this store the record has the old one, after it the new one.
        self.pm.publish(&self.slot_of(data, place).value, value);
    }

    /// Writes a record to a free place, durable with the next fence, and returns how many its group has now. The group is held.
    #[inline(always)]
    fn publish_insert(
        &self,
        locked: &LockedGroup<'_>,
        place: Place,
        key: u64,
        value: u64,
    ) -> usize {
        let Slot {
            key: key_cell,
            value: value_cell,
        } = self.slot_of(locked.data, place);
        if planted(Bug::KeyBeforeValue) {
            self.pm.store(key_cell, key);
        }
        self.pm.store(value_cell, value);
        // COMMIT: the key. Before this store the slot has the marker and is free; after it the record is there, with its
        // value, which was stored before in the same line.
        self.pm.publish(key_cell, key);
        match place {
            Place::Primary(slot)
                if slot / LINE_PAIR_SLOTS == locked.predicted / LINE_PAIR_SLOTS => {}
            Place::Primary(_) => locked.data.mark_displaced(locked.predicted),
            Place::Stash(slot) => locked.data.add_overflow(locked.predicted, key, slot),
        }
        if locked.data.is_in_order.load(Ordering::Relaxed) {
            locked.data.is_in_order.store(false, Ordering::Relaxed);
        }
        self.tally.change(locked.lock, key, 1);
        self.count_change(locked, 1)
    }

    /// Counts a change to the group that is held, and returns how many records it has now.
    #[inline(always)]
    fn count_change(&self, locked: &LockedGroup<'_>, change: i64) -> usize {
        match locked.data.change_count(locked.predicted, change) {
            Some(records) => records,
            // Nobody has counted them since the node was mirrored.
            None => self
                .count_records(locked.data, locked.predicted / GROUP_SLOTS)
                .len(),
        }
    }

    /// Takes a record out, durably with the next fence, and returns how many its group has now. The group is held.
    fn publish_remove(&self, locked: &LockedGroup<'_>, place: Place, key: u64) -> usize {
        let slot = self.slot_of(locked.data, place);
        let marker = match locked.data.marker() {
            _ if planted(Bug::WrongMarker) => 0,
            marker => marker,
        };
        // COMMIT: the key, which becomes the marker. Before this store the record is there, after it the slot is free.
        self.pm.publish(&slot.key, marker);
        self.tally.change(locked.lock, key, -1);
        self.count_change(locked, -1)
    }

    /// Adds an extended stash block; `false` if the node has as many as it may have. A group of the node is held.
    fn extend(&self, data: &DataNode) -> Result<bool> {
        let _extending = lock(&data.extending);
        if !data.can_add_extension() {
            return Ok(false);
        }
        self.pm.note("stash extended", 0);
        let block = self.blocks.alloc(size_of::<Extension>() as u64)?;
        let header = self.data_header(data.offset());
        let next = header.extension.load();
        if planted(Bug::ExtensionBeforeFill) {
            self.pm.commit(&header.extension, block);
        }
        self.extension(block)
            .fill(self.pm, next, data.marker(), std::iter::empty());
        self.pm.fence();
        // COMMIT: the first extended stash block. Before this store the new one is not reachable, and swept; after it the
        // node has it, with nothing in it.
        self.pm.commit(&header.extension, block);
        data.extend(block);
        Ok(true)
    }

    /// Inserts records in ascending key order, equal keys after one another; see `Map::insert_batch`.
    ///
    /// Thirty-two records share a fence: their groups are locked, the records written and flushed, and after the fence the
    /// groups are unlocked. No reader sees a record before it is durable.
    ///
    /// `rest` loses the records that are inserted: after an error those left are not.
    pub(super) fn insert_batch(&self, rest: &mut &[(u64, u64)]) -> Result<()> {
        if self.core.is_read_only() {
            return Err(Error::ReadOnly);
        }
        while !rest.is_empty() {
            let done = self.insert_under_one_fence(&rest[..rest.len().min(MAX_RECORDS_PER_FENCE)]);
            *rest = &rest[done..];
            if let Some((&(key, value), more)) =
                rest.split_first().filter(|_| done < MAX_RECORDS_PER_FENCE)
            {
                // What ended it early, a full node or a lock held elsewhere, is done by itself.
                self.apply(key, |_| Change::Put(value))
                    .map_err(|error| *error)?;
                *rest = more;
            }
        }
        Ok(())
    }

    /// Inserts as many of `records` as can share a fence, and returns how many that was.
    fn insert_under_one_fence(&self, records: &[(u64, u64)]) -> usize {
        let _guard = reclaim::pin();
        let lanes = self.find_windows(records);
        let mut guards: Vec<WriteGuard<'_>> = Vec::with_capacity(records.len());
        let mut done = 0;
        for (lane, &(key, value)) in records.iter().enumerate() {
            let Some((data, predicted)) = lanes.get(lane) else {
                break;
            };
            let lock = self.locks.entry(data.lock_of(predicted));
            // The keys ascend, so it is most often the last one.
            let guard = match (guards.iter()).rposition(|guard| guard.holds(&lock.version)) {
                Some(at) => guards.swap_remove(at),
                // Waiting while holding other locks could be waiting for somebody who waits for us.
                None => match lock.version.try_lock() {
                    Some(guard) => guard,
                    None => break,
                },
            };
            let locked = LockedGroup {
                data,
                predicted,
                lock,
                guard,
            };
            let is_in = data.state() == State::Live && self.write_unfenced(&locked, key, value);
            guards.push(locked.guard);
            if !is_in {
                break;
            }
            done += 1;
        }
        if planted(Bug::UnlockBeforeFence) {
            guards.clear();
        }
        if done > 0 {
            self.pm.fence();
        }
        // Only now are the groups unlocked: nobody has seen a record that could still be lost.
        drop(guards);
        done
    }

    /// Writes a record, durable with the next fence, if there is room at once.
    #[inline]
    fn write_unfenced(&self, locked: &LockedGroup<'_>, key: u64, value: u64) -> bool {
        let &LockedGroup {
            data, predicted, ..
        } = locked;
        let locate = Locate {
            tree: self,
            data,
            predicted,
            key,
        };
        let (found, free) = dispatch(self.simd, locate);
        if let Some(place) = found {
            self.publish_update(data, place, value);
            return true;
        }
        let Some(place) = free_place(data, predicted, free) else {
            return false;
        };
        self.publish_insert(locked, place, key, value);
        true
    }
}

/// How a write went. Flat, so that it comes back in registers.
#[derive(Clone, Copy)]
enum WriteOutcome {
    /// It is done; the key was not there.
    WasAbsent,
    /// It is done; the key was there with this value.
    WasPresent(u64),
    /// As `New`, and the node may be too full now.
    InsertedTooFull,
    /// As `Old`, and the node may be too empty now.
    RemovedTooSparse(u64),
    /// There is no place.
    NoFreeSlot,
    /// The way is cold.
    Cold,
    /// The node's structure is being changed.
    Frozen,
}

struct Write<'a, F> {
    tree: &'a Tree,
    key: u64,
    change: &'a mut F,
}

impl<F: FnMut(Option<u64>) -> Change> Kernel for Write<'_, F> {
    type Out = WriteOutcome;

    #[inline(always)]
    fn run<S: Simd>(self) -> WriteOutcome {
        self.tree.try_write::<S>(self.key, self.change)
    }
}

struct Locate<'a> {
    tree: &'a Tree,
    data: &'a DataNode,
    predicted: usize,
    key: u64,
}

impl Kernel for Locate<'_> {
    type Out = (Option<Place>, u32);

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree.locate::<S>(self.data, self.predicted, self.key)
    }
}

/// A free place for a key of the group that is held: in its window, or else in the stash.
#[inline(always)]
fn free_place(data: &DataNode, predicted: usize, free: u32) -> Option<Place> {
    let first = window_of(predicted);
    match choose_free_slot(free, predicted - first) {
        Some(slot) => Some(Place::Primary(first + slot)),
        None => data.claim_stash(predicted).map(Place::Stash),
    }
}

/// After a removal, once it is durable: others may have the stash slot. The group is held.
fn release(locked: &LockedGroup<'_>, place: Place) {
    if let Place::Stash(slot) = place {
        locked.data.remove_overflow(locked.predicted, slot);
        locked.data.release_stash(slot);
    }
}

/// Whether the node of a group that has just got a record may be too full.
#[inline(always)]
fn may_be_too_full(data: &DataNode, place: Place, records: usize) -> bool {
    // As long as records find room in their windows there is no reason to move them.
    matches!(place, Place::Stash(_))
        && data.is_group_over_density(records)
        && (data.is_group_crowded(records)
            || data
                .total()
                .is_some_and(|records| data.is_over_upper_density(records)))
}

/// Whether the node of a group that has just lost a record may be too empty. Asked of the whole node only now and then.
#[inline(always)]
fn may_be_too_sparse(data: &DataNode, records: usize) -> bool {
    records.is_multiple_of(8)
        && data.is_group_under_density(records)
        && data
            .total()
            .is_some_and(|records| data.is_under_lower_density(records))
}
