//! From a key to its record.

use super::Bug;
use super::Tree;
use super::data::Data;
use super::inner::Child;
use super::layout::{GROUP, Slot};
use super::window::{LinePair, Window};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::WriteGuard;
use crate::concurrency::records::RecordLock;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pmem::planted::planted;
use crate::pmem::schedule::point;

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
pub(super) struct Held<'a> {
    pub(super) data: &'a Data,
    pub(super) home: usize,
    pub(super) lock: &'a RecordLock,
    pub(super) guard: WriteGuard<'a>,
}

impl Tree {
    /// The data node for `key`, unless the way to it is cold. The caller is pinned.
    #[inline(always)]
    pub(super) fn data_for(&self, key: u64) -> Option<&Data> {
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
    pub(super) fn data_of(&self, key: u64) -> Result<&Data> {
        loop {
            match self.data_for(key) {
                Some(data) => return Ok(data),
                None => self.warm(key)?,
            }
        }
    }

    #[inline(always)]
    pub(super) fn window(&self, data: &Data, home: usize) -> Window<'_> {
        // SAFETY: mirrors are made for blocks of this pool; `home` comes from the node's model.
        unsafe { Window::new(self.base, data, home) }
    }

    /// Few instructions wait for each of the lines read here, so that the processor can begin with the next lookup while
    /// it waits.
    #[inline(always)]
    fn try_get<S: Simd>(&self, key: u64) -> Lookup {
        let Some(data) = self.data_for(key) else {
            return Lookup::Cold;
        };
        let home = data.model.predict(key);
        let lock = self.locks.of(data.lock_of(home));
        let version = lock.read();
        let found = self.find_in::<S>(data, home, key);
        if !lock.is_still(version) && !planted(Bug::ReadWithoutVersion) {
            return Lookup::Changed;
        }
        found.map_or(Lookup::Absent, Lookup::Found)
    }

    /// The value of `key`, to be validated.
    #[inline(always)]
    pub(super) fn find_in<S: Simd>(&self, data: &Data, home: usize, key: u64) -> Option<u64> {
        // SAFETY: as in `window`.
        let pair = unsafe { LinePair::new(self.base, data, home) };
        let equal = pair.equal::<S>(key);
        point();
        if equal != 0 {
            return Some(pair.value(equal));
        }
        self.find_far(data, home, key)
    }

    /// The same, if it is not in the pair of lines where most keys are.
    #[inline(never)]
    fn find_far(&self, data: &Data, home: usize, key: u64) -> Option<u64> {
        point();
        if !data.has_strays(home) {
            return None;
        }
        dispatch(
            self.simd,
            Far {
                tree: self,
                data,
                home,
                key,
            },
        )
    }

    /// The stash slot of `key`, to be validated.
    #[inline(always)]
    pub(super) fn find_in_stash<S: Simd>(
        &self,
        data: &Data,
        home: usize,
        key: u64,
    ) -> Option<(u32, &Slot)> {
        data.find_overflow::<S, _>(home, key, |slot| {
            let found = self.slot_at(data.stash_at(slot)?);
            (found.key.load() == key).then_some((slot, found))
        })
    }

    /// The value of `key`.
    #[inline]
    pub(super) fn get(&self, key: u64) -> Result<Option<u64>> {
        loop {
            let _guard = epochs::pin();
            match dispatch(self.simd, Get { tree: self, key }) {
                Lookup::Found(value) => return Ok(Some(value)),
                Lookup::Absent => return Ok(None),
                Lookup::Changed => {}
                Lookup::Cold => self.warm(key)?,
            }
        }
    }

    /// The group of a home, locked. Whether its node may be written is to be seen.
    #[inline(always)]
    pub(super) fn hold<'a>(&'a self, data: &'a Data, home: usize) -> Held<'a> {
        let lock = self.locks.entry(data.lock_of(home));
        Held {
            data,
            home,
            lock,
            guard: lock.version.lock(),
        }
    }

    /// Asks the caches for what a write reads.
    #[inline(always)]
    pub(super) fn prefetch_to_write(&self, data: &Data, home: usize) {
        let window = self.window(data, home);
        window.prefetch_half(window.near(home));
        if data.has_strays(home) {
            window.prefetch_half(1 - window.near(home));
            if data.has_stashed(home) {
                data.prefetch_overflow(home / GROUP);
            }
        }
    }

    /// Where `key` is, and free slots of its window: all of them, or at least one of the home's pair of lines. The group is held.
    #[inline(always)]
    pub(super) fn look<S: Simd>(&self, data: &Data, home: usize, key: u64) -> (Option<Place>, u32) {
        let window = self.window(data, home);
        let (near, marker) = (window.near(home), data.marker());
        let mut equal = window.half::<S>(near, key);
        let mut free = window.half::<S>(near, marker);
        let mut stashed = None;
        // If this pair of lines is full, the key becomes a stray.
        if data.has_strays(home) || free == 0 {
            equal |= window.half::<S>(1 - near, key);
            free |= window.half::<S>(1 - near, marker);
            if equal == 0 && data.has_stashed(home) {
                stashed = self.find_in_stash::<S>(data, home, key);
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
    pub(super) fn slot_of(&self, data: &Data, place: Place) -> &Slot {
        let offset = match place {
            Place::Primary(slot) => data.slot_at(slot),
            // Entries name slots that there are.
            Place::Stash(slot) => data.stash_at(slot).unwrap_or(data.slot_at(0)),
        };
        self.slot_at(offset)
    }

    /// Frees a mirror, and nothing beneath it, when nobody can hold it any more.
    pub(super) fn bury_data(&self, data: &Data) {
        self.bury(Child::data(std::ptr::NonNull::from(data)));
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

struct Far<'a> {
    tree: &'a Tree,
    data: &'a Data,
    home: usize,
    key: u64,
}

impl Kernel for Far<'_> {
    type Out = Option<u64>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        let window = self.tree.window(self.data, self.home);
        let pair = window.pair(1 - window.near(self.home));
        let equal = pair.equal::<S>(self.key);
        if equal != 0 {
            return Some(pair.value(equal));
        }
        if !self.data.has_stashed(self.home) {
            return None;
        }
        self.tree
            .find_in_stash::<S>(self.data, self.home, self.key)
            .map(|(_, slot)| slot.value.load())
    }
}
