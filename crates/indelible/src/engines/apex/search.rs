//! Lookups: from a key to its record.
//!
//! A lookup descends from the root: each inner node is an array of pointers to its children, indexed by a shift of the
//! key ([`inner`](super::inner)). At the data node the model predicts a slot, and the lookup compares the line pair of
//! the predicted slot with the key. That is one cache miss, and for most keys all that is needed. If the key is not
//! there, and the line pair has displaced records, the lookup compares the other line pair of the window, and then the
//! stash slots that the overflow bucket names.
//!
//! A lookup takes no lock. The lookup pins an epoch, so that no node is freed under it; takes the version of the lock
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
use super::layout::{GROUP_SLOTS, Slot};
use super::window::{LinePair, Window};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::WriteGuard;
use crate::concurrency::records::RecordLock;
use crate::engines;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::planted::planted;
use crate::pmem::schedule::point;

/// The result of a lookup. A flat enum, because an `Option` in a `Result` would be returned through memory.
#[derive(Clone, Copy)]
enum Lookup {
    Found(u64),
    Absent,
    /// A writer held the group's lock meanwhile.
    Changed,
    /// A node on the path to the key has no mirror.
    Cold,
}

/// A slot of a data node: of the primary array, or of the stash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Primary(usize),
    Stash(u32),
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
        while child.is_inner() {
            // SAFETY: the caller is pinned, so no node that it reaches is freed before it unpins (apex I5).
            child = unsafe { &*child.as_inner() }.child_for(key);
        }
        // SAFETY: the caller is pinned (apex I5); the pointer of a cold child is null.
        unsafe { child.as_data().as_ref() }
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

    /// One attempt to look up `key`. Few instructions depend on each of the lines read here, so that the processor
    /// begins the next lookup while this one waits for memory.
    #[inline(always)]
    fn try_get<S: Simd>(&self, key: u64) -> Lookup {
        let Some(data) = self.data_for(key) else {
            return Lookup::Cold;
        };
        let predicted = data.model.predict(key);
        let lock = self.locks.of(data.lock_of(predicted));
        let version = lock.read();
        let found = self.find_value::<S>(data, predicted, key);
        if !lock.validate(version) && !planted(Bug::ReadWithoutVersion) {
            return Lookup::Changed;
        }
        found.map_or(Lookup::Absent, Lookup::Found)
    }

    /// The value of `key`. The caller validates the version of the group's lock.
    #[inline(always)]
    pub(super) fn find_value<S: Simd>(
        &self,
        data: &DataNode,
        predicted: usize,
        key: u64,
    ) -> Option<u64> {
        // SAFETY: the mirror was made for a block of this pool, and its model predicted the slot (data I7).
        let pair = unsafe { LinePair::new(self.base, data, predicted) };
        let equal = pair.equal::<S>(key);
        point();
        if equal != 0 {
            return Some(pair.value(equal));
        }
        self.find_displaced(data, predicted, key)
    }

    /// The value of `key` if its record is displaced. The caller validates the version of the group's lock.
    #[inline(never)]
    fn find_displaced(&self, data: &DataNode, predicted: usize, key: u64) -> Option<u64> {
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
    pub(super) fn look_up(&self, key: u64) -> engines::Lookup {
        let _guard = epochs::pin();
        match dispatch(self.simd, Get { tree: self, key }) {
            Lookup::Found(value) => engines::Lookup::Found(value),
            Lookup::Absent => engines::Lookup::Absent,
            Lookup::Changed | Lookup::Cold => engines::Lookup::Retry,
        }
    }

    /// The value of `key`, or `None` if there is no record.
    pub(super) fn get(&self, key: u64) -> Result<Option<u64>> {
        loop {
            let _guard = epochs::pin();
            match dispatch(self.simd, Get { tree: self, key }) {
                Lookup::Found(value) => return Ok(Some(value)),
                Lookup::Absent => return Ok(None),
                Lookup::Changed => {}
                Lookup::Cold => self.mirror_toward(key)?,
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
        let lock = self.locks.entry(data.lock_of(predicted));
        LockedGroup {
            data,
            predicted,
            lock,
            guard: lock.version.lock(),
        }
    }

    /// Prefetches what a write of a key with this predicted slot reads.
    #[inline(always)]
    pub(super) fn prefetch_to_write(&self, data: &DataNode, predicted: usize) {
        let window = self.window(data, predicted);
        window.prefetch_half(window.predicted_half(predicted));
        if data.has_displaced(predicted) {
            window.prefetch_half(1 - window.predicted_half(predicted));
            if data.has_stashed(predicted) {
                data.prefetch_overflow(predicted / GROUP_SLOTS);
            }
        }
    }

    /// Where the record of `key` is, and a mask of free slots of its window: those of the line pair of the predicted
    /// slot, and, if this line pair is full or has displaced records, those of the other line pair. The group is
    /// locked.
    #[inline(always)]
    pub(super) fn locate<S: Simd>(
        &self,
        data: &DataNode,
        predicted: usize,
        key: u64,
    ) -> (Option<Place>, u32) {
        let window = self.window(data, predicted);
        let (predicted_half, marker) = (window.predicted_half(predicted), data.marker());
        let mut equal = window.equal_in_half::<S>(predicted_half, key);
        let mut free = window.equal_in_half::<S>(predicted_half, marker);
        let mut stashed = None;
        // If this line pair is full, the record of a new key will be displaced, so the other half is needed too.
        if data.has_displaced(predicted) || free == 0 {
            equal |= window.equal_in_half::<S>(1 - predicted_half, key);
            free |= window.equal_in_half::<S>(1 - predicted_half, marker);
            if equal == 0 && data.has_stashed(predicted) {
                stashed = self.find_in_stash::<S>(data, predicted, key);
            }
        }
        let found = if equal != 0 {
            Some(Place::Primary(window.slot(equal)))
        } else {
            stashed.map(|(slot, _)| Place::Stash(slot))
        };
        (found, free)
    }

    /// The slot at a place of a data node.
    #[inline(always)]
    pub(super) fn slot_of(&self, data: &DataNode, place: Place) -> &Slot {
        let offset = match place {
            Place::Primary(slot) => data.slot_at(slot),
            // An overflow entry or a claim gave the number, so the slot exists (data I5). Writing any other slot would
            // overwrite another record.
            Place::Stash(slot) => data.stash_at(slot).expect("data I5: a stash slot exists"),
        };
        self.slot_at(offset)
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
            return Some(pair.value(equal));
        }
        if !self.data.has_stashed(self.predicted) {
            return None;
        }
        self.tree
            .find_in_stash::<S>(self.data, self.predicted, self.key)
            .map(|(_, slot)| slot.value.load())
    }
}
