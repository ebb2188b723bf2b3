//! From a key to its record.

use super::Tree;
use super::data::DataNode;
use super::inner::Child;
use super::layout::{GROUP_SLOTS, Slot};
use super::window::{LinePair, Window};
use crate::index::simd::{Kernel, Simd, dispatch};
use crate::index::tally::RecordLock;
use crate::locks::WriteGuard;
use crate::planted::{Bug, planted};
use crate::sync::point;
use crate::{Result, reclaim};

/// How a lookup ended. Flat, so that it comes back in registers.
#[derive(Clone, Copy)]
enum Lookup {
    Found(u64),
    Absent,
    Changed,
    Cold,
}

/// A slot of a data node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Primary(usize),
    Stash(u32),
}

/// The group that a key belongs to, and the right to write it.
pub(super) struct LockedGroup<'a> {
    pub(super) data: &'a DataNode,
    pub(super) predicted: usize,
    pub(super) lock: &'a RecordLock,
    pub(super) guard: WriteGuard<'a>,
}

impl Tree {
    /// The data node for `key`, unless the way to it is cold. The caller is pinned.
    #[inline(always)]
    pub(super) fn data_for(&self, key: u64) -> Option<&DataNode> {
        let mut child = self.root().child_for(key);
        while child.is_inner() {
            // SAFETY: a child that was reached while pinned is not freed until the caller unpins.
            child = unsafe { &*child.as_inner() }.child_for(key);
        }
        // SAFETY: as above; the pointer of a cold child is null.
        unsafe { child.as_data().as_ref() }
    }

    /// The data node for `key`, mirrored if need be. The caller is pinned.
    #[inline(always)]
    pub(super) fn data_of(&self, key: u64) -> Result<&DataNode> {
        loop {
            match self.data_for(key) {
                Some(data) => return Ok(data),
                None => self.mirror_toward(key)?,
            }
        }
    }

    #[inline(always)]
    pub(super) fn window(&self, data: &DataNode, predicted: usize) -> Window<'_> {
        // SAFETY: mirrors are made for blocks of this pool; `home` comes from the node's model.
        unsafe { Window::new(self.base, data, predicted) }
    }

    /// Few instructions wait for each of the lines read here, so that the processor can begin with the next lookup while
    /// it waits.
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

    /// The value of `key`, to be validated.
    #[inline(always)]
    pub(super) fn find_value<S: Simd>(
        &self,
        data: &DataNode,
        predicted: usize,
        key: u64,
    ) -> Option<u64> {
        // SAFETY: as in `window`.
        let pair = unsafe { LinePair::new(self.base, data, predicted) };
        let equal = pair.equal::<S>(key);
        point();
        if equal != 0 {
            return Some(pair.value(equal));
        }
        self.find_displaced(data, predicted, key)
    }

    /// The same, if it is not in the pair of lines where most keys are.
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

    /// The stash slot of `key`, to be validated.
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

    /// The value of `key`.
    #[inline]
    pub(super) fn get(&self, key: u64) -> Result<Option<u64>> {
        loop {
            let _guard = reclaim::pin();
            match dispatch(self.simd, Get { tree: self, key }) {
                Lookup::Found(value) => return Ok(Some(value)),
                Lookup::Absent => return Ok(None),
                Lookup::Changed => {}
                Lookup::Cold => self.mirror_toward(key)?,
            }
        }
    }

    /// The group of a home, locked. Whether its node may be written is to be seen.
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

    /// Asks the caches for what a write reads.
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

    /// Where `key` is, and free slots of its window: all of them, or at least one of the home's pair of lines. The group is held.
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
        // If this pair of lines is full, the key becomes a stray.
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
            // Entries name slots that there are.
            Place::Stash(slot) => data.stash_at(slot).unwrap_or(data.slot_at(0)),
        };
        self.slot_at(offset)
    }

    /// Frees a mirror, and nothing beneath it, when nobody can hold it any more.
    pub(super) fn retire_data_mirror(&self, data: &DataNode) {
        self.retire_mirror(Child::data(std::ptr::NonNull::from(data)));
    }
}

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
