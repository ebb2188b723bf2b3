//! Lookups: from a key to its record.
//!
//! A lookup descends from the root: each inner node is an array of pointers to its children, indexed by a shift of the
//! key ([`inner`](super::inner)). At the data node the model predicts a slot, and the lookup compares the line pair of
//! the predicted slot with the key. That is one cache miss, and for most keys all that is needed. If the key is not
//! there, and the line pair has displaced records, the lookup compares the other line pair of the window, and then the
//! stash slots that the overflow bucket names.
//!
//! A lookup takes no lock. It pins an epoch, so that no node is freed under it; takes the version of the lock
//! of the predicted slot's group; reads; and validates the version. If a writer held the lock meanwhile, the lookup
//! starts again. Slots of inner nodes need no validation: a structure change replaces a pointer with one store, and the
//! old node stays readable and unchanged.
//!
//! A write locks the group of its key ([`Tree::lock_group`]) and searches the same places ([`Tree::locate`]), this time
//! also for free slots.

use super::Bug;
use super::Tree;
use super::data::DataNode;
use super::inner::Child;
use super::layout::{GROUP_SLOTS, Offset, Slot};
use super::window::{LinePair, Window};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::{Version, WriteGuard};
use crate::concurrency::records::RecordLock;
use crate::engines::Lookup;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::planted::planted;
use crate::pmem::schedule::point;

/// The result of an attempt that may wait for a writer. A flat enum, because an `Option` in a `Result` would be returned through memory.
#[derive(Clone, Copy)]
enum Waited {
    Found(u64),
    Absent,
    /// A writer held the group's lock meanwhile.
    Changed,
    /// A node on the path to the key has no mirror.
    Cold,
}

/// Where a slot lies, as seen from a predicted slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the line pair of the predicted slot.
    Predicted,
    /// In the other line pair of the window.
    Other,
    /// In the stash: the number of the stash slot.
    Stash(u32),
}

/// A slot of a data node.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) slot: &'a Slot,
    pub(super) place: Place,
}

/// The group of a key's predicted slot, locked.
pub(super) struct LockedGroup<'a> {
    pub(super) data: &'a DataNode,
    pub(super) predicted: usize,
    pub(super) lock: &'a RecordLock,
    pub(super) guard: WriteGuard<'a>,
}

impl Tree {
    /// The data node for `key`; `None` if a node on the path has no mirror. The caller is pinned.
    #[inline(always)]
    pub(super) fn data_for(&self, key: u64) -> Option<&DataNode> {
        let mut child = self.root().child_for(key);
        while !child.is_data() {
            if child.is_cold() {
                return None;
            }
            // SAFETY: the caller is pinned, so no node that it reaches is freed before it unpins (apex I5).
            child = unsafe { &*child.as_inner() }.child_for(key);
        }
        // SAFETY: the caller is pinned (apex I5), and the tag says that the pointer is one to a data node. Taking the tag off by
        // subtraction costs nothing: it becomes a part of the addresses of the node's fields.
        Some(unsafe { &*child.as_data_tagged() })
    }

    /// The data node for `key`, after mirroring the nodes of the path that have no mirror. The caller is pinned.
    #[inline(always)]
    pub(super) fn data_of(&self, key: u64) -> Result<&DataNode> {
        loop {
            match self.data_for(key) {
                Some(data) => return Ok(data),
                None => self.mirror_toward(key)?,
            }
        }
    }

    /// The window of the slot `predicted`, which the model of `data` predicted.
    #[inline(always)]
    pub(super) fn window(&self, data: &DataNode, predicted: usize) -> Window<'_> {
        // SAFETY: the mirror was made for a block of this pool, and its model predicted the slot (data I7).
        unsafe { Window::new(self.base, data, predicted) }
    }

    /// The lock of the group of a predicted slot, with its number of records.
    #[inline(always)]
    pub(super) fn lock_of(&self, data: &DataNode, predicted: usize) -> &RecordLock {
        self.locks.numbered(data.lock_of(predicted))
    }

    /// The number of the lock of the first group of the data node at `offset`.
    pub(super) fn first_lock(&self, offset: Offset) -> usize {
        self.locks.number_of(offset.get())
    }

    /// One attempt to look up `key`, which waits for no writer. Nearly all lookups end here: the record is in the line pair of its
    /// predicted slot. The processor begins the next lookup while this one waits for memory, if only few instructions lie in between. So
    /// all other work is in functions that take over from here, and this one saves no registers for them.
    #[inline(always)]
    fn try_get<S: Simd>(&self, key: u64) -> Lookup {
        let Some(guard) = epochs::try_pin() else {
            return self.look_up_slowly(key);
        };
        let Some(data) = self.data_for(key) else {
            drop(guard);
            return Lookup::Retry;
        };
        let predicted = data.model.predict(key);
        let lock = &self.lock_of(data, predicted).version;
        let Some(version) = lock.try_read() else {
            drop(guard);
            return Lookup::Retry;
        };
        let pair = self.line_pair(data, predicted);
        let equal = pair.equal::<S>(key);
        point();
        if equal == 0 {
            return self.look_up_displaced(guard, data, key, version);
        }
        let value = pair.value::<S>(equal);
        let is_whole = lock.validate(version) || planted(Bug::ReadWithoutVersion);
        drop(guard);
        if is_whole {
            Lookup::Found(value)
        } else {
            Lookup::Retry
        }
    }

    /// Goes on with a lookup whose key is not in the line pair of its predicted slot. `guard` has pinned the thread since before `data`
    /// was reached, and `version` was taken before the line pair was read.
    #[inline(never)]
    fn look_up_displaced(
        &self,
        guard: epochs::BriefGuard,
        data: &DataNode,
        key: u64,
        version: Version,
    ) -> Lookup {
        // Predicted once more: the caller has no register left for the slot.
        let predicted = data.model.predict(key);
        let found = self.displaced_value(data, predicted, key);
        let lock = &self.lock_of(data, predicted).version;
        let is_whole = lock.validate(version) || planted(Bug::ReadWithoutVersion);
        drop(guard);
        match found {
            _ if !is_whole => Lookup::Retry,
            Some(value) => Lookup::Found(value),
            None => Lookup::Absent,
        }
    }

    /// One attempt to look up `key` where [`try_get`](Self::try_get) may not: the thread is pinned already, or pins with a fence.
    #[cold]
    #[inline(never)]
    fn look_up_slowly(&self, key: u64) -> Lookup {
        let _guard = epochs::pin();
        match dispatch(self.simd, WaitingGet { tree: self, key }) {
            Waited::Found(value) => Lookup::Found(value),
            Waited::Absent => Lookup::Absent,
            Waited::Changed | Waited::Cold => Lookup::Retry,
        }
    }

    /// One attempt to look up `key`, which waits while a writer holds the group's lock. The caller is pinned.
    #[inline(always)]
    fn get_waiting<S: Simd>(&self, key: u64) -> Waited {
        let Some(data) = self.data_for(key) else {
            return Waited::Cold;
        };
        let predicted = data.model.predict(key);
        let lock = &self.lock_of(data, predicted).version;
        let version = lock.read();
        let found = self.find_value::<S>(data, predicted, key);
        if !lock.validate(version) && !planted(Bug::ReadWithoutVersion) {
            return Waited::Changed;
        }
        found.map_or(Waited::Absent, Waited::Found)
    }

    /// The value of `key`. The caller validates the version of the group's lock.
    #[inline(always)]
    pub(super) fn find_value<S: Simd>(
        &self,
        data: &DataNode,
        predicted: usize,
        key: u64,
    ) -> Option<u64> {
        let pair = self.line_pair(data, predicted);
        let equal = pair.equal::<S>(key);
        point();
        if equal != 0 {
            return Some(pair.value::<S>(equal));
        }
        self.find_displaced(data, predicted, key)
    }

    /// The value of `key` if its record is displaced. The caller validates the version of the group's lock.
    #[inline(never)]
    fn find_displaced(&self, data: &DataNode, predicted: usize, key: u64) -> Option<u64> {
        self.displaced_value(data, predicted, key)
    }

    /// [`find_displaced`](Self::find_displaced), inlined.
    #[inline(always)]
    fn displaced_value(&self, data: &DataNode, predicted: usize, key: u64) -> Option<u64> {
        point();
        if !data.has_displaced(predicted) {
            return None;
        }
        dispatch(
            self.simd,
            FindDisplaced {
                tree: self,
                data,
                predicted,
                key,
            },
        )
    }

    /// The stash slot that holds `key`. The caller holds the group's lock or validates its version.
    #[inline(always)]
    pub(super) fn find_in_stash<S: Simd>(
        &self,
        data: &DataNode,
        predicted: usize,
        key: u64,
    ) -> Option<(u32, &Slot)> {
        data.find_overflow::<S, _>(predicted, key, |slot| {
            let found = self.slot_at(data.stash_at(slot)?);
            (found.key.load() == key).then_some((slot, found))
        })
    }

    /// One attempt to find `key`.
    #[inline(always)]
    pub(super) fn look_up(&self, key: u64) -> Lookup {
        dispatch(self.simd, Get { tree: self, key })
    }

    /// The value of `key`, or `None` if there is no record.
    pub(super) fn get(&self, key: u64) -> Result<Option<u64>> {
        loop {
            let _guard = epochs::pin();
            match dispatch(self.simd, WaitingGet { tree: self, key }) {
                Waited::Found(value) => return Ok(Some(value)),
                Waited::Absent => return Ok(None),
                Waited::Changed => {}
                Waited::Cold => self.mirror_toward(key)?,
            }
        }
    }

    /// Locks the group of a predicted slot. The caller then has to ask whether the node is `Live`.
    #[inline(always)]
    pub(super) fn lock_group<'a>(
        &'a self,
        data: &'a DataNode,
        predicted: usize,
    ) -> LockedGroup<'a> {
        let lock = self.lock_of(data, predicted);
        LockedGroup {
            data,
            predicted,
            lock,
            guard: lock.version.lock(),
        }
    }

    /// The line pair of a predicted slot.
    #[inline(always)]
    fn line_pair(&self, data: &DataNode, predicted: usize) -> LinePair<'_> {
        // SAFETY: the mirror was made for a block of this pool, and its model predicted the slot (data I7).
        unsafe { LinePair::new(self.base, data, predicted) }
    }

    /// Prefetches what a write of a key with this predicted slot reads.
    #[inline(always)]
    pub(super) fn prefetch_to_write(&self, data: &DataNode, predicted: usize) {
        self.line_pair(data, predicted).prefetch();
        if data.has_displaced(predicted) {
            let window = self.window(data, predicted);
            window.prefetch_half(1 - window.predicted_half(predicted));
            if data.has_stashed(predicted) {
                data.prefetch_overflow(predicted / GROUP_SLOTS);
            }
        }
    }

    /// Where the record of `key` is, and, if it is nowhere, a free slot of its window: one of the line pair of the predicted slot, or
    /// else one of the other line pair. The group is locked.
    #[inline(always)]
    pub(super) fn locate<'a, S: Simd>(
        &'a self,
        data: &DataNode,
        predicted: usize,
        key: u64,
    ) -> (Option<Spot<'a>>, Option<Spot<'a>>) {
        let marker = data.marker();
        let in_pair = |pair: LinePair<'a>, place| {
            let found = pair.equal_to_either::<S>([key, marker]);
            found.map(|slots| {
                (slots != 0).then(|| Spot {
                    slot: pair.slot::<S>(slots),
                    place,
                })
            })
        };
        let [found, free] = in_pair(self.line_pair(data, predicted), Place::Predicted);
        // If this line pair is full, the record of a new key will be displaced, so the other half is needed too.
        if found.is_some() || free.is_some() && !data.has_displaced(predicted) {
            return (found, free);
        }
        let window = self.window(data, predicted);
        let other = window.line_pair(1 - window.predicted_half(predicted));
        let [found, free_in_other] = in_pair(other, Place::Other);
        if found.is_some() || !data.has_stashed(predicted) {
            return (found, free.or(free_in_other));
        }
        let stashed = self.find_in_stash::<S>(data, predicted, key);
        let found = stashed.map(|(number, slot)| Spot {
            slot,
            place: Place::Stash(number),
        });
        (found, free.or(free_in_other))
    }

    /// Retires the mirror of a data node that is no longer reachable.
    pub(super) fn retire_data_mirror(&self, data: &DataNode) {
        self.retire_mirror(Child::data(std::ptr::NonNull::from(data)));
    }
}

/// An attempt to look up a key, with the vector instructions of the machine.
struct Get<'a> {
    tree: &'a Tree,
    key: u64,
}

impl Kernel for Get<'_> {
    type Out = Lookup;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree.try_get::<S>(self.key)
    }
}

/// [`Get`], by an attempt that waits for writers.
struct WaitingGet<'a> {
    tree: &'a Tree,
    key: u64,
}

impl Kernel for WaitingGet<'_> {
    type Out = Waited;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree.get_waiting::<S>(self.key)
    }
}

/// A search for a displaced record, with the vector instructions of the machine.
struct FindDisplaced<'a> {
    tree: &'a Tree,
    data: &'a DataNode,
    predicted: usize,
    key: u64,
}

impl Kernel for FindDisplaced<'_> {
    type Out = Option<u64>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        let window = self.tree.window(self.data, self.predicted);
        let pair = window.line_pair(1 - window.predicted_half(self.predicted));
        let equal = pair.equal::<S>(self.key);
        if equal != 0 {
            return Some(pair.value::<S>(equal));
        }
        if !self.data.has_stashed(self.predicted) {
            return None;
        }
        self.tree
            .find_in_stash::<S>(self.data, self.predicted, self.key)
            .map(|(_, slot)| slot.value.load())
    }
}
