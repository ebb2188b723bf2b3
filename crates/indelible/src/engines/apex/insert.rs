//! Writes: insert, update, remove, and batches of inserts.
//!
//! A write descends to the data node of its key, locks the group of the key's predicted slot, and asks whether the node
//! is `Live`. Then it looks for the key and for free slots, and stores one word that commits the write: the value of a
//! record that is there, the key of a new record, or the marker in place of the key of a removed record. The write
//! returns after a fence, and unlocks the group only then, so no reader sees what a crash could still undo.
//!
//! A new record goes to a free slot of the line pair of its predicted slot, else of the other line pair of the window,
//! else to a free stash slot, which the writer claims in the stash bitmap. If the stash is full, the node gets an
//! extended stash block or is rebuilt by a structure change ([`smo`](super::smo)), and the write starts again.
//!
//! # What is durable after each step
//!
//! | change | step | what is durable | what recovery does |
//! |---|---|---|---|
//! | insert | 1. store the value in a free slot | perhaps the value; the slot's key is the marker | nothing: the slot is free (data I3) |
//! | | 2. store the key in the same line (commit), flush, fence | the record, whole, as lines become durable in the order of their stores | nothing |
//! | update | 1. store the value (commit), flush, fence | the new value | nothing |
//! | remove | 1. store the marker as the key (commit), flush, fence | the free slot | nothing |
//! | | 2. return the stash slot to other writers | the free slot; the stash bitmap is in DRAM | rebuilds the stash bitmap |
//! | extension | 1. fill a new block with markers and a link to the first extended stash block, flush, fence | the block, which is unreachable | sweeps the block |
//! | | 2. store the block's offset in the header (commit), flush, fence | the header's link to the empty block | nothing |

use super::Bug;
use super::Tree;
use super::batch::LANES;
use super::data::{DataNode, State};
use super::layout::{Extension, GROUP_SLOTS, Offset, Slot};
use super::search::{LockedGroup, Place, Spot};
use crate::concurrency::epochs;
use crate::concurrency::locks::{Wait, WriteGuard};
use crate::concurrency::records::RecordLock;
use crate::concurrency::sync::lock;
use crate::engines::{Decision, unless_full};
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::planted::planted;
use crate::pool::is_last_resort;
use crate::{Error, Result};
use std::sync::atomic::Ordering;

/// Most records of a batch that share a fence: as many as one group of interleaved lookups prepares, so few that their
/// lines stay in the first-level cache until the fence.
pub(super) const MAX_RECORDS_PER_FENCE: usize = LANES;

impl Tree {
    /// Changes the record of `key` as `decide` says; see [`Ordered::apply`](crate::engines::Ordered::apply).
    #[inline]
    pub(super) fn apply(
        &self,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        let write = Write {
            tree: self,
            key,
            decide: &mut *decide,
            is_pinned: false,
        };
        match dispatch(self.simd, write) {
            WriteOutcome::WasAbsent => Ok(None),
            WriteOutcome::WasPresent(value) => Ok(Some(value)),
            outcome => self.apply_further(key, decide, outcome),
        }
    }

    /// Goes on after a first attempt with this outcome, which has not written, or after which the node may have to change.
    #[cold]
    #[inline(never)]
    fn apply_further(
        &self,
        key: u64,
        decide: &mut dyn FnMut(Option<u64>) -> Decision,
        mut outcome: WriteOutcome,
    ) -> Result<Option<u64>, Box<Error>> {
        let _guard = epochs::pin();
        let (mut was_changed, mut wait) = (false, Wait::default());
        loop {
            match outcome {
                WriteOutcome::WasAbsent => return Ok(None),
                WriteOutcome::WasPresent(value) => return Ok(Some(value)),
                WriteOutcome::InsertedTooFull => {
                    self.restructure_early(key);
                    return Ok(None);
                }
                WriteOutcome::RemovedTooSparse(value) => {
                    // The record is out already, so an error is not the caller's.
                    if let Ok(true) = self.restructure(key) {
                        self.starved_from.store(u64::MAX, Ordering::Relaxed);
                    }
                    return Ok(Some(value));
                }
                WriteOutcome::NoFreeSlot => was_changed = self.make_space(key, was_changed)?,
                WriteOutcome::Cold => self.mirror_toward(key)?,
                WriteOutcome::Frozen => {
                    self.refuse_dead_node(key)?;
                    wait.step();
                }
                WriteOutcome::NotPinned => {}
            }
            let write = Write {
                tree: self,
                key,
                decide: &mut *decide,
                is_pinned: true,
            };
            outcome = dispatch(self.simd, write);
        }
    }

    /// `Error::Damaged` if a data node leads to `key` that another one has replaced, which a write would wait for for ever. The mirrors lead to the other one
    /// before a node is dead, so that nobody comes to a dead node twice. The caller is pinned.
    fn refuse_dead_node(&self, key: u64) -> Result<()> {
        let dead = self
            .data_for(key)
            .filter(|data| data.state() == State::Dead);
        // Once more, after its state was read.
        let again = dead.and_then(|_| self.data_for(key));
        match dead.zip(again) {
            Some((dead, again)) if std::ptr::eq(dead, again) => {
                let at = dead.offset();
                let problem =
                    format!("the key {key:#x} leads to data node {at:#x}, which was replaced");
                Err(Error::Damaged(problem))
            }
            _ => Ok(()),
        }
    }

    /// One attempt to write. The processor looks ahead only so far: while a write waits for memory, the next write can
    /// begin only if few instructions lie in between. Between 320 and 400 instructions, an insert begins to take half
    /// as long again.
    #[inline(always)]
    fn try_write<S: Simd>(
        &self,
        key: u64,
        decide: &mut (impl FnMut(Option<u64>) -> Decision + ?Sized),
    ) -> WriteOutcome {
        let Some(data) = self.data_for(key) else {
            return WriteOutcome::Cold;
        };
        let predicted = data.model.predict(key);
        self.prefetch_to_write(data, predicted);
        let locked = self.lock_group(data, predicted);
        // A structure change sets the node's state to `Frozen` and then acquires every group lock. Because this writer
        // holds the group's lock, either the writer sees `Frozen` here, or the structure change waits until the writer
        // releases the lock (data I8).
        if data.state() != State::Live && !planted(Bug::WriteWithoutVersion) {
            return WriteOutcome::Frozen;
        }
        let (found, free) = self.locate::<S>(data, predicted, key);
        let before = found.map(|spot| spot.slot.value.load());
        match (decide(before), found, before) {
            (Decision::Put(value), Some(spot), Some(before)) => {
                self.publish_update(spot.slot, value);
                if planted(Bug::UnlockBeforeFence) {
                    drop(locked);
                }
                self.pm.fence();
                WriteOutcome::WasPresent(before)
            }
            (Decision::Put(value), ..) => {
                let Some(spot) = self.free_spot(data, predicted, free) else {
                    return WriteOutcome::NoFreeSlot;
                };
                let records = self.publish_insert(&locked, spot, key, value);
                self.pm.fence();
                self.locks.count.change(locked.lock, key, 1);
                drop(locked);
                if may_be_too_full(data, spot.place, records) {
                    WriteOutcome::InsertedTooFull
                } else {
                    WriteOutcome::WasAbsent
                }
            }
            (Decision::Remove, Some(spot), Some(before)) => {
                if planted(Bug::ReleaseBeforeRemoval) {
                    release(&locked, spot.place);
                }
                let records = self.publish_remove(&locked, spot.slot);
                self.pm.fence();
                self.locks.count.change(locked.lock, key, -1);
                if !planted(Bug::ReleaseBeforeRemoval) {
                    release(&locked, spot.place);
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

    /// Makes a free slot for `key`: adds an extended stash block, or restructures the node of `key`. Returns whether
    /// the node was restructured. `was_changed` says that the last attempt restructured the node; then the stash is
    /// extended, or the attempts might never end: no model has slots for many keys that lie close together if one key
    /// is far away.
    #[cold]
    fn make_space(&self, key: u64, was_changed: bool) -> Result<bool> {
        let data = self.data_of(key)?;
        let locked = self.lock_group(data, data.model.predict(key));
        if data.state() == State::Live {
            let is_extended = if data.has_stash_room() {
                true
            } else if was_changed {
                self.extend(data)?
            } else {
                // Without space for a block of that size there may be space for another node.
                let is_preferred = data.prefers_extended_stash() || self.is_starved(data);
                is_preferred && unless_full(self.extend(data))?
            };
            if is_extended {
                return Ok(was_changed);
            }
        }
        drop(locked);
        let restructured = self.restructure(key);
        self.note_space(data.bytes, &restructured);
        match restructured {
            // The pool has no larger node: the stash is extended, as after a structure change.
            Err(Error::NoSpace(_)) if is_last_resort() && !was_changed => {
                self.make_space(key, true)
            }
            restructured => restructured,
        }
    }

    /// Whether a structure change of the node would be planned in vain, most likely, since the pool has no space for one. Then the stash is extended
    /// as long as there is space for that.
    fn is_starved(&self, data: &DataNode) -> bool {
        data.bytes >= self.starved_from.load(Ordering::Relaxed)
    }

    /// Notes whether a structure change of a node of so many bytes has found space.
    fn note_space(&self, bytes: u64, restructured: &Result<bool>) {
        match restructured {
            Err(Error::NoSpace(_)) => {
                self.starved_from.fetch_min(bytes, Ordering::Relaxed);
            }
            Ok(true) if bytes >= self.starved_from.load(Ordering::Relaxed) => {
                self.starved_from.store(u64::MAX, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Restructures the node of `key` before it is full. As the record is already in, an error is not the caller's: if
    /// there is no space for another node, a later insert that finds no slot reports it. Until a structure change
    /// succeeds, no write tries this again, since each try would plan a node in vain.
    #[cold]
    fn restructure_early(&self, key: u64) {
        if let Some(data) = self.data_for(key)
            && !self.is_starved(data)
        {
            self.note_space(data.bytes, &self.restructure(key));
        }
    }

    /// Stores another value in a record, durable with the next fence. The group is locked.
    #[inline(always)]
    fn publish_update(&self, slot: &Slot, value: u64) {
        // COMMIT apex.update: the value. Before this store, recovery sees the old value; after it, the new value.
        self.pm.publish(&slot.value, value, "apex.update");
    }

    /// A free slot for a new record of the locked group: `free`, a slot of its window, or else one of the stash.
    #[inline(always)]
    fn free_spot<'a>(
        &'a self,
        data: &DataNode,
        predicted: usize,
        free: Option<Spot<'a>>,
    ) -> Option<Spot<'a>> {
        free.or_else(|| self.claim_stash(data, predicted))
    }

    /// Claims a free stash slot.
    #[inline(never)]
    fn claim_stash(&self, data: &DataNode, predicted: usize) -> Option<Spot<'_>> {
        let number = data.claim_stash(predicted)?;
        // Writing any other slot would overwrite another record.
        let at = data
            .stash_at(number)
            .expect("data I5: a claimed stash slot exists");
        Some(Spot {
            slot: self.slot_at(at),
            place: Place::Stash(number),
        })
    }

    /// Writes a record to a free slot, durable with the next fence, and returns how many records the group has now.
    /// The group is locked. The caller counts the record among those of the index, behind that fence, since the number of records is read without a lock.
    #[inline(always)]
    fn publish_insert(
        &self,
        locked: &LockedGroup<'_>,
        spot: Spot<'_>,
        key: u64,
        value: u64,
    ) -> usize {
        let Slot {
            key: key_cell,
            value: value_cell,
        } = spot.slot;
        if planted(Bug::KeyBeforeValue) {
            self.pm.store(key_cell, key);
        }
        self.pm.store(value_cell, value);
        // COMMIT apex.insert: the key. Before this store, the slot's key is the marker and recovery sees a free slot;
        // after it, recovery sees the record with its value, which was stored earlier in the same cache line.
        self.pm.publish(key_cell, key, "apex.insert");
        match spot.place {
            Place::Predicted => {}
            Place::Other => locked.data.mark_displaced(locked.predicted),
            Place::Stash(slot) => locked.data.add_overflow(locked.predicted, key, slot),
        }
        if locked.data.is_in_order.load(Ordering::Relaxed) {
            locked.data.is_in_order.store(false, Ordering::Relaxed);
        }
        self.count_in_group(locked, 1)
    }

    /// Adds `change` to the number of records of the locked group, and returns the sum.
    #[inline(always)]
    fn count_in_group(&self, locked: &LockedGroup<'_>, change: i64) -> usize {
        match locked.data.change_count(locked.predicted, change) {
            Some(records) => records,
            // The group has not been counted since the node was mirrored.
            None => self
                .count_records(locked.data, locked.predicted / GROUP_SLOTS)
                .len(),
        }
    }

    /// Removes a record, durable with the next fence, and returns how many records the group has now. The group is
    /// locked. The caller counts, as after [`publish_insert`](Self::publish_insert).
    fn publish_remove(&self, locked: &LockedGroup<'_>, slot: &Slot) -> usize {
        let marker = match locked.data.marker() {
            _ if planted(Bug::WrongMarker) => u64::MAX,
            marker => marker,
        };
        // COMMIT apex.remove: the key becomes the marker. Before this store, recovery sees the record; after it, a free
        // slot.
        self.pm.publish(&slot.key, marker, "apex.remove");
        self.count_in_group(locked, -1)
    }

    /// Adds an extended stash block to the node; `false` if the mirror has no room for one more. The caller holds the
    /// lock of a group of the node, so the node stays live.
    fn extend(&self, data: &DataNode) -> Result<bool> {
        let _extending = lock(&data.extending);
        if !data.can_add_extension() {
            return Ok(false);
        }
        self.pm.note("stash extended", 0);
        let block = self.blocks.alloc(size_of::<Extension>() as u64)?;
        let header = self.data_header(data.offset());
        let next = Offset::from_word(header.extension.load());
        if planted(Bug::ExtensionBeforeFill) {
            self.pm
                .commit(&header.extension, block.get(), "apex.extend");
        }
        self.extension(block)
            .fill(self.pm, next, data.marker(), std::iter::empty());
        self.pm.fence();
        // COMMIT apex.extend: the header's link to the first extended stash block. Before this store, the new
        // block is unreachable and recovery sweeps it; after it, recovery sees the block, without records, and behind
        // it the older blocks.
        self.pm
            .commit(&header.extension, block.get(), "apex.extend");
        data.extend(block);
        Ok(true)
    }

    /// Inserts as many of the first of `records` as can share a fence, and returns how many those were. Keys ascend, equal
    /// keys one after the other.
    ///
    /// The groups of the records are locked, the records are written and flushed, and after the fence the groups are
    /// unlocked. So no reader sees a record before it is durable. A full node, or a lock that another thread holds, ends the
    /// shared fence early.
    pub(super) fn insert_sharing_fence(&self, records: &[(u64, u64)]) -> usize {
        let _guard = epochs::pin();
        let lanes = self.find_windows(records);
        let mut guards: Vec<WriteGuard<'_>> = Vec::with_capacity(records.len());
        let mut inserted: Vec<(&RecordLock, u64)> = Vec::with_capacity(records.len());
        let mut done = 0;
        for (lane, &(key, value)) in records.iter().enumerate() {
            let Some((data, predicted)) = lanes.get(lane) else {
                break;
            };
            let lock = self.lock_of(data, predicted);
            // As the keys ascend, the lock is most often the last one that was taken.
            let guard = match (guards.iter()).rposition(|guard| guard.holds(&lock.version)) {
                Some(at) => guards.swap_remove(at),
                // While this thread holds locks, waiting for a further one could be a deadlock: the other thread may be
                // waiting for one of these.
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
            let written = if data.state() == State::Live {
                self.write_unfenced(&locked, key, value)
            } else {
                None
            };
            guards.push(locked.guard);
            let Some(is_new) = written else { break };
            if is_new {
                inserted.push((lock, key));
            }
            done += 1;
        }
        if planted(Bug::UnlockBeforeFence) {
            guards.clear();
        }
        if done > 0 {
            self.pm.fence();
        }
        for (lock, key) in inserted {
            self.locks.count.change(lock, key, 1);
        }
        // Unlock the groups only now: before the fence, a reader would see records that a crash could still undo.
        drop(guards);
        done
    }

    /// Writes a record, durable with the next fence, and returns whether there was none of the key; `None` if there is no free slot.
    #[inline]
    fn write_unfenced(&self, locked: &LockedGroup<'_>, key: u64, value: u64) -> Option<bool> {
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
        if let Some(spot) = found {
            self.publish_update(spot.slot, value);
            return Some(false);
        }
        let spot = self.free_spot(data, predicted, free)?;
        self.publish_insert(locked, spot, key, value);
        Some(true)
    }
}

/// The result of an attempt to write. A flat enum, because an `Option` in a `Result` would be returned through memory.
#[derive(Clone, Copy)]
enum WriteOutcome {
    /// The write is done; there was no record of the key.
    WasAbsent,
    /// The write is done; the record had this value before.
    WasPresent(u64),
    /// The write is done; there was no record of the key, and with it the node may be too full.
    InsertedTooFull,
    /// The write is done; the record, which had this value, was removed, and without it the node may be too sparse.
    RemovedTooSparse(u64),
    /// There is no free slot for a new record.
    NoFreeSlot,
    /// A node on the path to the key has no mirror.
    Cold,
    /// A structure change has frozen the node, or has replaced it.
    Frozen,
    /// The thread is not pinned, and pinning it takes more than a few instructions.
    NotPinned,
}

/// An attempt to write, with the vector instructions of the machine.
struct Write<'a, F: ?Sized> {
    tree: &'a Tree,
    key: u64,
    decide: &'a mut F,
    /// The caller is pinned.
    is_pinned: bool,
}

impl<F: FnMut(Option<u64>) -> Decision + ?Sized> Kernel for Write<'_, F> {
    type Out = WriteOutcome;

    #[inline(always)]
    fn run<S: Simd>(self) -> WriteOutcome {
        let guard = if self.is_pinned {
            None
        } else {
            let guard = epochs::try_pin();
            if guard.is_none() {
                return WriteOutcome::NotPinned;
            }
            guard
        };
        let outcome = self.tree.try_write::<S>(self.key, self.decide);
        drop(guard);
        outcome
    }
}

/// A search for a key and for free slots, with the vector instructions of the machine.
struct Locate<'a> {
    tree: &'a Tree,
    data: &'a DataNode,
    predicted: usize,
    key: u64,
}

impl<'a> Kernel for Locate<'a> {
    type Out = (Option<Spot<'a>>, Option<Spot<'a>>);

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree.locate::<S>(self.data, self.predicted, self.key)
    }
}

/// Returns the stash slot of a removed record to other writers. The removal is durable, as another writer may write to
/// the slot at once. The group is locked.
fn release(locked: &LockedGroup<'_>, place: Place) {
    if let Place::Stash(slot) = place {
        locked.data.remove_overflow(locked.predicted, slot);
        locked.data.release_stash(slot);
    }
}

/// Whether a node may be too full, of which a group has just got a record. As the answer takes a pass over all groups of the node, only
/// every eighth record of a group asks for it.
#[inline(always)]
fn may_be_too_full(data: &DataNode, place: Place, records: usize) -> bool {
    // While records find free slots in their windows, there is no reason to rebuild the node.
    matches!(place, Place::Stash(_))
        && records.is_multiple_of(8)
        && data.is_group_over_density(records)
        && (data.is_group_crowded(records)
            || data
                .total()
                .is_some_and(|records| data.is_over_upper_density(records)))
}

/// Whether a node may be too sparse, of which a group has just lost a record. As the answer takes a pass over all
/// groups of the node, only every eighth removal from a group asks for it.
#[inline(always)]
fn may_be_too_sparse(data: &DataNode, records: usize) -> bool {
    records.is_multiple_of(8)
        && data.is_group_under_density(records)
        && data
            .total()
            .is_some_and(|records| data.is_to_shrink(records))
}
