//! The keys of an experiment, and which of them are there.

use crate::data::points;
use crate::plan::{Arrival, Phase};
use anyhow::{Result, ensure};
use rand::seq::SliceRandom;
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::ops::Range;

/// The keys of an experiment in a random order: those that are loaded, those that are inserted later, and those that
/// are never there.
#[derive(Debug)]
pub struct Keys {
    shuffled: Vec<u64>,
    loaded: usize,
    missing: usize,
    sorted: OnceCell<Vec<u64>>,
    all_sorted: OnceCell<Vec<u64>>,
    /// The number of points that a window should contain, and the side of such windows.
    window_side: Cell<Option<(u32, u32)>>,
}

impl Keys {
    /// Shuffles `keys`; the first `loaded` are loaded, the last `missing` are never inserted, the others may be.
    #[must_use]
    pub fn shuffle(mut keys: Vec<u64>, loaded: usize, missing: usize, seed: u64) -> Self {
        keys.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
        Self::new(keys, loaded, missing)
    }

    /// Keys that are shuffled already.
    #[must_use]
    pub fn new(shuffled: Vec<u64>, loaded: usize, missing: usize) -> Self {
        assert!(loaded + missing <= shuffled.len());
        Self {
            shuffled,
            loaded,
            missing,
            sorted: OnceCell::new(),
            all_sorted: OnceCell::new(),
            window_side: Cell::new(None),
        }
    }

    /// All keys, as they lie in the file for the jobs.
    #[must_use]
    pub fn all(&self) -> &[u64] {
        &self.shuffled
    }

    /// The loaded keys, in random order.
    #[must_use]
    pub fn loaded(&self) -> &[u64] {
        &self.shuffled[..self.loaded]
    }

    /// The loaded keys, ascending.
    #[must_use]
    pub fn sorted(&self) -> &[u64] {
        self.sorted.get_or_init(|| {
            let mut sorted = self.loaded().to_vec();
            sorted.sort_unstable();
            sorted
        })
    }

    /// All keys, ascending.
    fn all_sorted(&self) -> &[u64] {
        self.all_sorted.get_or_init(|| {
            let mut sorted = self.shuffled.clone();
            sorted.sort_unstable();
            sorted
        })
    }

    /// The side of square windows around loaded points that contain this many loaded points on average, in steps of
    /// [`points`].
    #[must_use]
    pub fn window_side(&self, hits: u32) -> u32 {
        if let Some((of, side)) = self.window_side.get()
            && of == hits
        {
            return side;
        }
        let side = points::window_side(self.loaded(), self.sorted(), hits);
        self.window_side.set(Some((hits, side)));
        side
    }

    /// Keys that are inserted later, in random order.
    #[must_use]
    pub fn fresh(&self) -> &[u64] {
        &self.shuffled[self.loaded..self.shuffled.len() - self.missing]
    }

    /// Keys that are never there, in random order.
    #[must_use]
    pub fn missing(&self) -> &[u64] {
        &self.shuffled[self.shuffled.len() - self.missing..]
    }
}

/// What of the keys is used up: every insert takes new ones, every removal takes ones that are there.
#[derive(Clone, Debug, Default)]
pub struct Supply {
    /// Keys taken from [`Keys::fresh`].
    inserted: usize,
    /// Keys taken from the front of [`Keys::loaded`].
    removed: usize,
    /// Ranges of [`Keys::fresh`] that are known to be there, because all that would insert them was done.
    there: Vec<Range<usize>>,
    /// Neighbours taken at any place of dense inserts before this phase.
    dense: u64,
    /// For each place of dense inserts, the neighbours taken there in this phase.
    dense_here: BTreeMap<u64, u64>,
}

impl Supply {
    /// The supply of one phase with one number of threads. What is left goes on behind the most that the phase could
    /// take, whatever it will take: the next one has the same keys for every contestant, also after a phase that ends
    /// by the clock.
    #[must_use]
    pub fn set_aside(&mut self, phase: &Phase, threads: u32) -> Self {
        let mine = self.clone();
        self.inserted += phase.fresh_keys_with(threads) as usize;
        self.removed += phase.removed_keys_with(threads) as usize;
        if phase.arrival == Arrival::Dense {
            let most = phase.all_operations().saturating_mul(2);
            self.dense = self.dense.saturating_add(most);
        }
        mine
    }

    /// Keys that are not there yet.
    ///
    /// # Errors
    ///
    /// If too few are left.
    pub fn insert<'keys>(&mut self, keys: &'keys Keys, count: usize) -> Result<&'keys [u64]> {
        let left = keys.fresh().get(self.inserted..).unwrap_or_default();
        ensure!(
            count <= left.len(),
            "{count} new keys are wanted, {} are left: give the experiment more",
            left.len()
        );
        self.inserted += count;
        Ok(&left[..count])
    }

    /// Loaded keys that nobody has removed yet.
    ///
    /// # Errors
    ///
    /// If too few are left.
    pub fn remove<'keys>(&mut self, keys: &'keys Keys, count: usize) -> Result<&'keys [u64]> {
        let left = keys.loaded().get(self.removed..).unwrap_or_default();
        ensure!(
            count <= left.len(),
            "{count} keys are to be removed, {} are left: load more records",
            left.len()
        );
        self.removed += count;
        Ok(&left[..count])
    }

    /// Takes note that everything that `mine`, a part of this supply, gave out was done: its new keys are there.
    pub fn was_done(&mut self, mine: &mut Self, from: usize) {
        let new = from..mine.inserted;
        if !new.is_empty() {
            self.there.push(new.clone());
            mine.there.push(new);
        }
    }

    /// How many of [`Keys::fresh`] are taken.
    #[must_use]
    pub fn inserted(&self) -> usize {
        self.inserted
    }

    /// All keys that are there, in random order.
    #[must_use]
    pub fn present<'keys>(&self, keys: &'keys Keys) -> Present<'keys> {
        let loaded = keys.loaded().get(self.removed..).unwrap_or_default();
        let new = self.there.iter().map(|range| &keys.fresh()[range.clone()]);
        Present::new(std::iter::once(loaded).chain(new).collect())
    }

    /// Loaded keys that are still there, ascending.
    #[must_use]
    pub fn present_sorted<'keys>(&self, keys: &'keys Keys) -> Cow<'keys, [u64]> {
        if self.removed == 0 {
            return Cow::Borrowed(keys.sorted());
        }
        let mut left = keys
            .loaded()
            .get(self.removed..)
            .unwrap_or_default()
            .to_vec();
        left.sort_unstable();
        Cow::Owned(left)
    }

    /// Neighbouring numbers that are no keys: behind the greatest key if `place` is the last of all `places` and there
    /// is only one, else in the widest gap of its part of the keys.
    ///
    /// # Errors
    ///
    /// If the widest gap is too narrow.
    pub fn dense(
        &mut self,
        keys: &Keys,
        place: usize,
        places: usize,
        count: usize,
    ) -> Result<Vec<u64>> {
        let sorted = keys.all_sorted();
        let behind = *sorted.last().unwrap_or(&0);
        let room = u64::MAX - behind;
        let used = |base| {
            let here = *self.dense_here.get(&base).unwrap_or(&0);
            self.dense.saturating_add(here)
        };
        let has_room = |base, room: u64| {
            let left = room.checked_sub(used(base));
            left.is_some_and(|left| left >= count as u64)
        };
        let base = if places == 1 && has_room(behind, room) {
            behind
        } else {
            let part = &sorted[sorted.len() * place / places..sorted.len() * (place + 1) / places];
            let widest = part
                .windows(2)
                .max_by_key(|pair| pair[1] - pair[0])
                .map(|pair| (pair[0], pair[1] - pair[0] - 1));
            let (base, room) = widest.unwrap_or((0, 0));
            ensure!(
                has_room(base, room),
                "no room for {count} neighbouring new keys in this data set"
            );
            base
        };
        let from = base + 1 + used(base);
        *self.dense_here.entry(base).or_default() += count as u64;
        // The last one may be the greatest number there is.
        Ok((0..count as u64).map(|number| from + number).collect())
    }
}

/// Keys that lie in a few pieces.
#[derive(Clone, Debug)]
pub struct Present<'keys> {
    parts: Vec<&'keys [u64]>,
    count: usize,
}

impl<'keys> Present<'keys> {
    fn new(parts: Vec<&'keys [u64]>) -> Self {
        let count = parts.iter().map(|part| part.len()).sum();
        Self { parts, count }
    }

    /// How many keys there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The key at a place below [`count`](Self::count).
    #[must_use]
    pub fn at(&self, mut place: usize) -> u64 {
        for part in &self.parts {
            match part.get(place) {
                Some(&key) => return key,
                None => place -= part.len(),
            }
        }
        unreachable!("a place below the count")
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.parts.iter().copied().flatten().copied()
    }
}
