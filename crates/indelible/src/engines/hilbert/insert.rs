//! Writes: insert, remove, and relocation.
//!
//! # Relocation from leaf to leaf
//!
//! One store cannot change two leaves. So the two stores that do are written to an *intent* in the root block first, and recovery does both if it
//! finds the intent committed:
//!
//! | step | what is durable afterwards | what recovery does after a crash |
//! |---|---|---|
//! | both leaves are locked; the record is written to a free slot of the new leaf | a record that no bit counts | nothing |
//! | the intent is written: the commit word of each leaf and its new value | nothing | nothing |
//! | `state` of the intent becomes 1 (the commit) | the relocation | does both stores, then clears `state` |
//! | both stores are done | both leaves | the same, which changes nothing |
//! | `state` becomes 0 | no intent | nothing |
//! | both leaves are unlocked | | |
//!
//! As long as `state` is 1 both leaves are locked, so that nothing else has changed their words. Lookups wait for the locks; a search over many
//! leaves begins again if a relocation began meanwhile (see `rect::changes`).

use super::Bug;
use super::Tree;
use super::inner::{Bounds, Key, code_of, key_of};
use super::layout::{INTENTS, Intent, Shape};
use super::leaf::Leaf;
use super::search::{Locked, LockedLeaf};
use crate::concurrency::epochs;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerTree, is_worth_merging};
use crate::engines::rect::Record;
use crate::pmem::planted::planted;
use crate::spatial::Geometry;
use crate::{Error, Result};
use std::sync::atomic::Ordering;

/// The low bits of a key tell leaves apart that hold records of one code and one hash: see [`Tree::key_to_insert`].
const ORDINAL_BITS: u32 = 24;
pub(super) const ORDINALS: Key = (1 << ORDINAL_BITS) - 1;

impl<G: Geometry> Tree<G> {
    /// The smallest key that stands for a record: its code, and 40 bits of its hash. Equal records, and now and then others, have one
    /// smallest key. The greatest is [`ORDINALS`] above it. 0 while all records are in one leaf and the grid has not been chosen.
    #[inline(always)]
    pub(super) fn key(&self, record: &Record) -> Key {
        match self.grids.get() {
            Some(grid) => {
                let code = grid.code_of(&record.shape::<G>());
                key_of(code, record.tie::<G>() & !(ORDINALS as u64))
            }
            None => 0,
        }
    }

    /// The key under which to insert a record of smallest key `key`. Records with one smallest key may go anywhere among its keys; the
    /// place changes whenever a leaf of such records splits, so that they spread evenly.
    #[inline(always)]
    pub(super) fn key_to_insert(&self, key: Key) -> Key {
        let splits = self.splits_of_equals.load(Ordering::Relaxed);
        let ordinal = splits.reverse_bits() >> (u32::BITS - ORDINAL_BITS);
        key | Key::from(ordinal)
    }

    /// The leaf that covers `key`, locked, with room for a record, and with `bounds` in all boxes above. `None` if the caller has to begin again:
    /// a full leaf has been split, or the grid is not the one in which `key` was computed.
    #[inline(always)]
    pub(super) fn lock_room(
        &self,
        key: Key,
        bounds: &Bounds,
        grid: u32,
    ) -> Result<Option<LockedLeaf<'_, G>>> {
        let locked = self.lock_leaf(key, Some(bounds))?;
        if self.grids.number() != grid {
            return Ok(None);
        }
        if locked.leaf.is_full() {
            self.split(locked, key)?;
            return Ok(None);
        }
        Ok(Some(locked))
    }

    /// [`lock_room`](Self::lock_room) for one record.
    #[inline(always)]
    fn lock_room_for_one(
        &self,
        key: Key,
        bounds: &Bounds,
        grid: u32,
    ) -> Result<Option<Locked<'_, G>>> {
        let locked = self.lock_leaf_only(key, bounds)?;
        if self.grids.number() != grid {
            return Ok(None);
        }
        if locked.leaf.is_full() {
            drop(locked);
            // Once more, to split it: only a split has to know where the leaf begins and ends.
            let locked = self.lock_room(key, bounds, grid)?;
            return Ok(locked.map(LockedLeaf::into_locked));
        }
        Ok(Some(locked))
    }

    pub(super) fn insert(&self, shape: &G, payload: u64) -> Result<()> {
        let record = Record::new(shape, payload);
        self.make_reach(&record)?;
        let bounds = Bounds::of(&record.rect::<G>());
        let _guard = epochs::pin();
        loop {
            let grid = self.grids.number();
            let key = self.key_to_insert(self.key(&record));
            let Some(locked) = self.lock_room_for_one(key, &bounds, grid)? else {
                continue;
            };
            locked.leaf.insert(self.pm, &record);
            self.count_change(&locked, 1);
            return Ok(());
        }
    }

    pub(super) fn remove(&self, shape: &G, payload: u64) -> Result<bool> {
        let record = Record::new(shape, payload);
        let _guard = epochs::pin();
        let Some((locked, slot)) = self.lock_record(&record)? else {
            return Ok(false);
        };
        let key = locked.low;
        if planted(Bug::UnlockBeforeFence) {
            locked.leaf.remove_without_fence(self.pm, slot);
            self.count_change(&locked, -1);
            drop(locked);
            self.pm.fence();
            return Ok(true);
        }
        locked.leaf.remove(self.pm, slot);
        self.count_change(&locked, -1);
        let left = locked.leaf.count();
        drop(locked);
        if is_worth_merging(left, Shape::<G>::RECORDS) {
            self.merge(key);
        }
        Ok(true)
    }

    /// The leaf that holds a record equal to this one, locked, and the slot; `None` if there is none. The caller is pinned.
    ///
    /// Records of one smallest key may fill several leaves, which are locked one after the other. If the leaf that was locked last has been merged
    /// with the next one meanwhile, and the two were split again, the record may have moved to the leaf that was looked at already: so the search
    /// begins again.
    fn lock_record(&self, record: &Record) -> Result<Option<(LockedLeaf<'_, G>, usize)>> {
        'again: loop {
            let grid = self.grids.number();
            let first = self.key(record);
            let (mut key, mut merges) = (first, 0);
            loop {
                let locked = self.lock_leaf(key, None)?;
                if self.grids.number() != grid {
                    continue 'again;
                }
                if let Some(slot) = locked.leaf.find(record) {
                    return Ok(Some((locked, slot)));
                }
                if key > first && self.merges.may_have_been_at(key, merges) {
                    continue 'again;
                }
                // Equal records may be in several leaves.
                match locked.high {
                    Some(high) if grid > 0 && high <= first | ORDINALS => {
                        // While the leaf is locked, so that no merge of it is missed.
                        merges = self.merges.count();
                        key = high;
                    }
                    _ => return Ok(None),
                }
            }
        }
    }

    pub(super) fn relocate(&self, payload: u64, from: &G, to: &G) -> Result<bool> {
        let (old, new) = (Record::new(from, payload), Record::new(to, payload));
        self.make_reach(&new)?;
        let bounds = Bounds::of(&new.rect::<G>());
        let mut wait = Wait::default();
        loop {
            let _guard = epochs::pin();
            match self.try_relocate(&old, &new, &bounds)? {
                Relocation::Done => return Ok(true),
                Relocation::Absent => return Ok(false),
                Relocation::Busy => {}
            }
            self.relocations.wait_for_searches();
            wait.step();
        }
    }

    fn try_relocate(&self, old: &Record, new: &Record, bounds: &Bounds) -> Result<Relocation> {
        let Some((from, slot)) = self.lock_record(old)? else {
            return Ok(Relocation::Absent);
        };
        if old == new {
            return Ok(Relocation::Done);
        }
        let key = self.key_to_insert(self.key(new));
        let low = from.low;
        let covers = low <= key && from.high.is_none_or(|high| key < high);
        if covers && !from.leaf.is_full() {
            // The way down to this leaf once more, to enlarge the boxes.
            let (spot, path) = self.locate_for(key, Some(bounds));
            if spot.child != from.spot.child || !path.is_current() {
                return Ok(Relocation::Busy);
            }
            let done = from.leaf.replace(self.pm, slot, new);
            return Ok(if done {
                Relocation::Done
            } else {
                Relocation::Busy
            });
        }
        if covers {
            self.split(from, key)?;
            return Ok(Relocation::Busy);
        }
        let (spot, path) = self.locate_for(key, Some(bounds));
        if spot.child.is_unindexed() {
            drop(from);
            self.index_on_demand(key)?;
            return Ok(Relocation::Busy);
        }
        let offset = spot.child.offset();
        let lock_of_to = self.locks.of(offset.get());
        let to_guard = if from.guard.holds(lock_of_to) {
            None
        } else {
            // Only tried: another thread may hold that leaf and wait for this one.
            let Some(guard) = lock_of_to.try_lock() else {
                return Ok(Relocation::Busy);
            };
            Some(guard)
        };
        if !path.is_current() || !from.spot.is_current() {
            return Ok(Relocation::Busy);
        }
        let to = self.leaves.at(offset);
        if to.is_full() {
            drop((to_guard, from));
            let locked = self.lock_leaf(key, None)?;
            if locked.leaf.is_full() {
                self.split(locked, key)?;
            }
            return Ok(Relocation::Busy);
        }
        // Not waited for: a search that keeps relocations from beginning waits for the locks of this thread.
        let Some(change) = self.relocations.try_begin() else {
            return Ok(Relocation::Busy);
        };
        let target = LockedTarget {
            leaf: to,
            is_counted: spot.child.is_counted(),
        };
        self.relocate_between(&from, slot, &target, new)?;
        let left = from.leaf.count();
        // A merge may have to wait for a search, and that search for this relocation.
        drop((change, to_guard, from));
        if is_worth_merging(left, Shape::<G>::RECORDS) {
            self.merge(low);
        }
        Ok(Relocation::Done)
    }

    /// Moves a record between two leaves, which are locked. The head of this file has the steps.
    fn relocate_between(
        &self,
        from: &LockedLeaf<'_, G>,
        slot: usize,
        to: &LockedTarget<'_, G>,
        new: &Record,
    ) -> Result<()> {
        let taken = self.take_intent();
        let intent = &self.root_block()?.intents[taken.number];
        let (bitmap, lines) = to
            .leaf
            .prepare_insert(self.pm, new)
            .expect("invariant: the target of a relocation has a free slot");
        let stores = [
            to.leaf.prepare_bitmap(self.pm, bitmap, lines),
            from.leaf
                .prepare_bitmap(self.pm, from.leaf.bitmap() & !(1 << slot), 0),
        ];
        self.pm.note("relocation between leaves", 0);
        let words = stores.iter().flat_map(|&(offset, word)| [offset, word]);
        for (cell, word) in intent.stores.iter().zip(words) {
            self.pm.store(cell, word);
        }
        self.pm.named("hilbert.intent").fence();
        // COMMIT hilbert.relocate: `state` of the intent, in one line with its other words. Before this store recovery sees the record in its old
        // place; after it, recovery does both stores, and the record is in its new place only.
        self.pm.commit(&intent.state, 1, "hilbert.relocate");
        for (leaf, (_, word)) in [to.leaf, from.leaf].into_iter().zip(stores) {
            if planted(Bug::IntentClearedEarly) {
                self.pm.commit(&intent.state, 0, "hilbert.relocated");
            }
            // COMMIT hilbert.relocate.leaf: recovery does both of these stores, whichever of them it finds done.
            self.pm
                .publish(leaf.commit_cell(), word, "hilbert.relocate.leaf");
        }
        self.pm.named("hilbert.relocate.leaf").fence();
        // COMMIT hilbert.relocated: from here on recovery leaves both leaves as they are, which others may change again.
        self.pm.commit(&intent.state, 0, "hilbert.relocated");
        if to.is_counted != from.spot.child.is_counted() {
            self.count_entry(to.leaf.offset, to.is_counted, 1);
            self.count_change(from, -1);
        }
        Ok(())
    }

    /// Waits for an intent that no other thread uses.
    fn take_intent(&self) -> TakenIntent<'_> {
        let mut wait = Wait::default();
        loop {
            {
                let mut taken = lock(&self.intents);
                if let Some(number) = (0..INTENTS).find(|&number| !taken[number]) {
                    taken[number] = true;
                    return TakenIntent {
                        number,
                        all: &self.intents,
                    };
                }
            }
            wait.step();
        }
    }

    /// Does what committed intents say: part of the open, before anything else reads the leaves. O(1). In a read-only pool, where nothing can be done, such an
    /// intent is an error.
    pub(super) fn finish_relocations(&self) -> Result<()> {
        for intent in &self.root_block()?.intents {
            match intent.state.load_acquire() {
                0 => continue,
                1 => {}
                state => {
                    let problem = format!("a relocation has state {state:#x}");
                    return Err(Error::Damaged(problem));
                }
            }
            if planted(Bug::IntentIgnored) {
                continue;
            }
            if self.core.is_read_only() {
                // The pool was closed without this index having been opened since a crash.
                return Err(Error::NotClean);
            }
            self.finish_relocation(intent)?;
        }
        Ok(())
    }

    fn finish_relocation(&self, intent: &Intent) -> Result<()> {
        let words = [0, 1, 2, 3].map(|i: usize| intent.stores[i].load());
        self.pm.note("relocation finished by recovery", 0);
        for [offset, word] in [[words[0], words[1]], [words[2], words[3]]] {
            let leaf = self.leaf_at(crate::pool::Offset::from_word(offset))?;
            // COMMIT hilbert.recover: as `hilbert.relocate.leaf`.
            self.pm.publish(leaf.commit_cell(), word, "hilbert.recover");
        }
        self.pm.named("hilbert.recover").fence();
        // COMMIT hilbert.recovered: as `hilbert.relocated`.
        self.pm.commit(&intent.state, 0, "hilbert.recovered");
        Ok(())
    }

    /// Makes `reach` of the root block as large as half the record's extent, before the record can be there.
    #[inline(always)]
    pub(super) fn make_reach(&self, record: &Record) -> Result<()> {
        if G::COORDINATES == G::AXES {
            return Ok(());
        }
        self.reach.raise_to(self, &record.shape::<G>())
    }

    /// The code at which a leaf of key `low` begins, if it is one that a signpost can name.
    pub(super) fn signpost_code(low: Key) -> Option<u64> {
        (low as u64 == 0).then(|| code_of(low))
    }
}

/// How an attempt to relocate a record ended.
enum Relocation {
    Done,
    Absent,
    /// A lock was held by another thread, or a leaf had to be split first.
    Busy,
}

/// The leaf that gets a relocated record, locked.
struct LockedTarget<'a, G> {
    leaf: Leaf<'a, G>,
    is_counted: bool,
}

/// An intent that this thread uses.
struct TakenIntent<'a> {
    number: usize,
    all: &'a std::sync::Mutex<[bool; INTENTS]>,
}

impl Drop for TakenIntent<'_> {
    fn drop(&mut self) {
        lock(self.all)[self.number] = false;
    }
}
