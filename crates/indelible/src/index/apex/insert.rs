//! Every write: insert, update, remove, and what is made of them.

use super::Tree;
use super::batch::LANES;
use super::build::choose;
use super::data::{Data, State};
use super::layout::{Extension, GROUP, PAIR_SLOTS, Slot, window_of};
use super::search::{Held, Place};
use crate::index::Change;
use crate::index::simd::{Kernel, Simd, dispatch};
use crate::locks::{Wait, WriteGuard};
use crate::planted::{Bug, planted};
use crate::sync::lock;
use crate::{Error, Result, reclaim};
use std::sync::atomic::Ordering;

/// Records that share a fence.
const SHARING: usize = LANES;

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
                Wrote::New => return Ok(None),
                Wrote::Old(value) => return Ok(Some(value)),
                Wrote::Crowded => {
                    self.restructure_early(key);
                    return Ok(None);
                }
                Wrote::Deserted(value) => {
                    if self.restructure(key).is_ok() {
                        self.is_starved.store(false, Ordering::Relaxed);
                    }
                    return Ok(Some(value));
                }
                Wrote::Full => was_changed = self.make_place(key, was_changed)?,
                Wrote::Cold => self.warm(key)?,
                Wrote::Frozen => wait.step(),
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
    ) -> Wrote {
        let Some(data) = self.data_for(key) else {
            return Wrote::Cold;
        };
        let home = data.model.predict(key);
        self.prefetch_to_write(data, home);
        let held = self.hold(data, home);
        // Whoever freezes a node takes each of its locks afterwards: from here on it waits for us, or we see it.
        if data.state() != State::Live && !planted(Bug::WriteWithoutVersion) {
            return Wrote::Frozen;
        }
        let (found, free) = self.look::<S>(data, home, key);
        let before = found.map(|place| self.slot_of(data, place).value.load());
        match (change(before), found, before) {
            (Change::Put(value), Some(place), Some(before)) => {
                self.publish_update(data, place, value);
                if planted(Bug::UnlockBeforeFence) {
                    drop(held);
                }
                self.pm.fence();
                Wrote::Old(before)
            }
            (Change::Put(value), ..) => {
                let Some(place) = room_for(data, home, free) else {
                    return Wrote::Full;
                };
                let records = self.publish_insert(&held, place, key, value);
                self.pm.fence();
                drop(held);
                if is_crowded(data, place, records) {
                    Wrote::Crowded
                } else {
                    Wrote::New
                }
            }
            (Change::Remove, Some(place), Some(before)) => {
                if planted(Bug::ReleaseBeforeRemoval) {
                    release(&held, place);
                }
                let records = self.publish_remove(&held, place, key);
                self.pm.fence();
                if !planted(Bug::ReleaseBeforeRemoval) {
                    release(&held, place);
                }
                drop(held);
                if is_deserted(data, records) {
                    Wrote::Deserted(before)
                } else {
                    Wrote::Old(before)
                }
            }
            (_, _, Some(before)) => Wrote::Old(before),
            (_, _, None) => Wrote::New,
        }
    }

    /// Sees to it that there is a free place for a key: more stash, or another structure of its node, of which it returns
    /// whether that was changed. If it just was, the stash is extended, or there would never be an end to it: no model has room
    /// for all keys that lie close together, if there is one far away.
    #[cold]
    fn make_place(&self, key: u64, was_changed: bool) -> Result<bool> {
        let data = self.data_of(key)?;
        let held = self.hold(data, data.model.predict(key));
        if data.state() == State::Live {
            let may_extend = was_changed || data.is_roomy();
            if data.has_stash_room() || may_extend && self.extend(data)? {
                return Ok(was_changed);
            }
        }
        drop(held);
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
    fn publish_update(&self, data: &Data, place: Place, value: u64) {
        // COMMIT: the value. Before this store the record has the old one, after it the new one.
        self.pm.publish(&self.slot_of(data, place).value, value);
    }

    /// Writes a record to a free place, durable with the next fence, and returns how many its group has now. The group is held.
    #[inline(always)]
    fn publish_insert(&self, held: &Held<'_>, place: Place, key: u64, value: u64) -> usize {
        let Slot {
            key: key_cell,
            value: value_cell,
        } = self.slot_of(held.data, place);
        if planted(Bug::KeyBeforeValue) {
            self.pm.store(key_cell, key);
        }
        self.pm.store(value_cell, value);
        // COMMIT: the key. Before this store the slot has the marker and is free; after it the record is there, with its
        // value, which was stored before in the same line.
        self.pm.publish(key_cell, key);
        match place {
            Place::Primary(slot) if slot / PAIR_SLOTS == held.home / PAIR_SLOTS => {}
            Place::Primary(_) => held.data.add_stray(held.home),
            Place::Stash(slot) => held.data.add_overflow(held.home, key, slot),
        }
        if held.data.is_in_order.load(Ordering::Relaxed) {
            held.data.is_in_order.store(false, Ordering::Relaxed);
        }
        self.tally.change(held.lock, key, 1);
        self.count_change(held, 1)
    }

    /// Counts a change to the group that is held, and returns how many records it has now.
    #[inline(always)]
    fn count_change(&self, held: &Held<'_>, change: i64) -> usize {
        match held.data.change_count(held.home, change) {
            Some(records) => records,
            // Nobody has counted them since the node was mirrored.
            None => self.count_records(held.data, held.home / GROUP).len(),
        }
    }

    /// Takes a record out, durably with the next fence, and returns how many its group has now. The group is held.
    fn publish_remove(&self, held: &Held<'_>, place: Place, key: u64) -> usize {
        let slot = self.slot_of(held.data, place);
        let marker = match held.data.marker() {
            _ if planted(Bug::WrongMarker) => u64::MAX,
            marker => marker,
        };
        // COMMIT: the key, which becomes the marker. Before this store the record is there, after it the slot is free.
        self.pm.publish(&slot.key, marker);
        self.tally.change(held.lock, key, -1);
        self.count_change(held, -1)
    }

    /// Adds an extended stash block; `false` if the node has as many as it may have. A group of the node is held.
    fn extend(&self, data: &Data) -> Result<bool> {
        let _extending = lock(&data.extending);
        if !data.may_extend() {
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
            let done = self.insert_sharing(&rest[..rest.len().min(SHARING)]);
            *rest = &rest[done..];
            if let Some((&(key, value), more)) = rest.split_first().filter(|_| done < SHARING) {
                // What ended it early, a full node or a lock held elsewhere, is done by itself.
                self.apply(key, |_| Change::Put(value))
                    .map_err(|error| *error)?;
                *rest = more;
            }
        }
        Ok(())
    }

    /// Inserts as many of `records` as can share a fence, and returns how many that was.
    fn insert_sharing(&self, records: &[(u64, u64)]) -> usize {
        let _guard = reclaim::pin();
        let lanes = self.find_windows(records);
        let mut guards: Vec<WriteGuard<'_>> = Vec::with_capacity(records.len());
        let mut done = 0;
        for (lane, &(key, value)) in records.iter().enumerate() {
            let Some((data, home)) = lanes.get(lane) else {
                break;
            };
            let lock = self.locks.entry(data.lock_of(home));
            // The keys ascend, so it is most often the last one.
            let guard = match (guards.iter()).rposition(|guard| guard.holds(&lock.version)) {
                Some(at) => guards.swap_remove(at),
                // Waiting while holding other locks could be waiting for somebody who waits for us.
                None => match lock.version.try_lock() {
                    Some(guard) => guard,
                    None => break,
                },
            };
            let held = Held {
                data,
                home,
                lock,
                guard,
            };
            let is_in = data.state() == State::Live && self.put_unfenced(&held, key, value);
            guards.push(held.guard);
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
    fn put_unfenced(&self, held: &Held<'_>, key: u64, value: u64) -> bool {
        let &Held { data, home, .. } = held;
        let look = Look {
            tree: self,
            data,
            home,
            key,
        };
        let (found, free) = dispatch(self.simd, look);
        if let Some(place) = found {
            self.publish_update(data, place, value);
            return true;
        }
        let Some(place) = room_for(data, home, free) else {
            return false;
        };
        self.publish_insert(held, place, key, value);
        true
    }
}

/// How a write went. Flat, so that it comes back in registers.
#[derive(Clone, Copy)]
enum Wrote {
    /// It is done; the key was not there.
    New,
    /// It is done; the key was there with this value.
    Old(u64),
    /// As `New`, and the node may be too full now.
    Crowded,
    /// As `Old`, and the node may be too empty now.
    Deserted(u64),
    /// There is no place.
    Full,
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
    type Out = Wrote;

    #[inline(always)]
    fn run<S: Simd>(self) -> Wrote {
        self.tree.try_write::<S>(self.key, self.change)
    }
}

struct Look<'a> {
    tree: &'a Tree,
    data: &'a Data,
    home: usize,
    key: u64,
}

impl Kernel for Look<'_> {
    type Out = (Option<Place>, u32);

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree.look::<S>(self.data, self.home, self.key)
    }
}

/// A free place for a key of the group that is held: in its window, or else in the stash.
#[inline(always)]
fn room_for(data: &Data, home: usize, free: u32) -> Option<Place> {
    let first = window_of(home);
    match choose(free, home - first) {
        Some(slot) => Some(Place::Primary(first + slot)),
        None => data.claim_stash(home).map(Place::Stash),
    }
}

/// After a removal, once it is durable: others may have the stash slot. The group is held.
fn release(held: &Held<'_>, place: Place) {
    if let Place::Stash(slot) = place {
        held.data.remove_overflow(held.home, slot);
        held.data.release_stash(slot);
    }
}

/// Whether the node of a group that has just got a record may be too full.
#[inline(always)]
fn is_crowded(data: &Data, place: Place, records: usize) -> bool {
    // As long as records find room in their windows there is no reason to move them.
    matches!(place, Place::Stash(_))
        && data.is_full_group(records)
        && (data.is_pile(records) || data.total().is_some_and(|records| data.is_crowded(records)))
}

/// Whether the node of a group that has just lost a record may be too empty. Asked of the whole node only now and then.
#[inline(always)]
fn is_deserted(data: &Data, records: usize) -> bool {
    records.is_multiple_of(8)
        && data.is_empty_group(records)
        && data.total().is_some_and(|records| data.is_sparse(records))
}
