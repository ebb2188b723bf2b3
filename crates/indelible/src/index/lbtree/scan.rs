//! Ranges, in both directions.
//!
//! A range reads a few leaves at a time: it goes down to the leaf of its next key, asks the caches for the leaves that
//! follow under the same bottom node, and copies each, sorted and validated, to a buffer. It goes on from the separator at
//! which it stopped, a key, so it holds no lock and no guard in between, and splits and merges cannot confuse it: every
//! key belongs to exactly one leaf at any time, and no key is asked for twice.

use super::layout::{MAX_RECORDS, SLOTS};
use super::leaf::Leaf;
use super::search::Retry;
use super::{LbTree, Tree};
use crate::index::simd::{Kernel, Simd, dispatch};
use crate::{Error, Result, reclaim};
use std::sync::Arc;

type Pair = (u64, u64);

impl Leaf<'_> {
    /// Appends the records from `first` to `last`, sorted, to `out`.
    #[inline(always)]
    fn append_sorted<S: Simd>(self, first: u64, last: u64, out: &mut Vec<Pair>) {
        let before = out.len();
        if self.is_one_block() {
            self.append_block::<S>(out);
        } else {
            let mut records = [(0, 0); MAX_RECORDS];
            let count = self.copy_to(&mut records);
            records[..count].sort_unstable_by_key(|record| record.0);
            out.extend_from_slice(&records[..count]);
        }
        if out.get(before).is_some_and(|record| record.0 < first) {
            let below = out[before..].partition_point(|record| record.0 < first);
            out.drain(before..before + below);
        }
        while out.len() > before && out[out.len() - 1].0 > last {
            out.pop();
        }
    }

    /// Appends the records of the first block, sorted: each at the place that the number of smaller keys says. All slots
    /// are treated alike, whether in use or not, so that neither the number of records nor the order of their keys can
    /// mislead a branch.
    #[inline(always)]
    fn append_block<S: Simd>(self, out: &mut Vec<Pair>) {
        const NOWHERE: usize = 15;
        let (in_use, records) = self.first_block();
        let key = |slot: usize| if slot < SLOTS { records[slot].0 } else { 0 };
        let low = S::pack(std::array::from_fn(key));
        let high = S::pack(std::array::from_fn(|i| key(8 + i)));
        let mut sorted = [(0, 0); NOWHERE + 1];
        for (slot, &record) in records.iter().enumerate() {
            let at_most = S::at_most_in(low, record.0) | S::at_most_in(high, record.0) << 8;
            // One more than its place; of a slot not in use, which may hold anything, nothing is wanted.
            let place = (at_most & u32::from(in_use)).count_ones() as usize;
            let is_used = in_use >> slot & 1 != 0;
            sorted[if is_used {
                place.wrapping_sub(1) & NOWHERE
            } else {
                NOWHERE
            }] = record;
        }
        let after = out.len() + in_use.count_ones() as usize;
        out.extend_from_slice(&sorted[..SLOTS]);
        out.truncate(after);
    }
}

impl Tree {
    /// Appends records from `first` on, ascending, none above `last`, from at most `leaves` leaves, to `out`. Returns the
    /// key to go on from, `None` at the end.
    pub(super) fn collect_up(
        &self,
        first: u64,
        last: u64,
        leaves: usize,
        out: &mut Vec<Pair>,
    ) -> Result<Option<u64>> {
        loop {
            let collected = {
                let _guard = reclaim::pin();
                dispatch(
                    self.simd,
                    CollectUp {
                        tree: self,
                        first,
                        last,
                        leaves,
                        out: &mut *out,
                    },
                )
            };
            match collected {
                Ok(next) => return Ok(next),
                Err(Retry::Changed) => {}
                Err(Retry::Gap) => self.heal(first)?,
            }
        }
    }

    /// Appends records from `last` downwards, descending, none below `first`. Otherwise as [`collect_up`](Self::collect_up).
    pub(super) fn collect_down(
        &self,
        first: u64,
        last: u64,
        leaves: usize,
        out: &mut Vec<Pair>,
    ) -> Result<Option<u64>> {
        loop {
            let collected = {
                let _guard = reclaim::pin();
                dispatch(
                    self.simd,
                    CollectDown {
                        tree: self,
                        first,
                        last,
                        leaves,
                        out: &mut *out,
                    },
                )
            };
            match collected {
                Ok(next) => return Ok(next),
                Err(Retry::Changed) => {}
                Err(Retry::Gap) => self.heal(last)?,
            }
        }
    }

    /// The first record whose key is `key` or above.
    pub(super) fn record_at_or_above(&self, key: u64) -> Result<Option<Pair>> {
        let (mut from, mut out) = (Some(key), Vec::new());
        while let (Some(first), true) = (from, out.is_empty()) {
            from = self.collect_up(first, u64::MAX, 1, &mut out)?;
        }
        Ok(out.first().copied())
    }

    /// The last record whose key is `key` or below.
    pub(super) fn record_at_or_below(&self, key: u64) -> Result<Option<Pair>> {
        let (mut from, mut out) = (Some(key), Vec::new());
        while let (Some(last), true) = (from, out.is_empty()) {
            from = self.collect_down(0, last, 1, &mut out)?;
        }
        Ok(out.first().copied())
    }

    #[inline(always)]
    fn try_collect_up<S: Simd>(
        &self,
        first: u64,
        last: u64,
        leaves: usize,
        out: &mut Vec<Pair>,
    ) -> Result<Option<u64>, Retry> {
        let spot = self.try_descend::<S>(first)?;
        let count = spot.parent.count();
        let end = (spot.index + leaves).min(count);
        for i in spot.index + 1..(spot.index + AHEAD).min(count) {
            self.leaves.prefetch(spot.parent.child(i).offset());
        }
        let mut from = first;
        for i in spot.index..end {
            if i + AHEAD < (end + BEYOND).min(count) {
                self.leaves.prefetch(spot.parent.child(i + AHEAD).offset());
            }
            let (child, high) = (spot.parent.child(i), spot.high_of(i));
            match self.read_leaf::<S>(&spot, child, from, last, out) {
                Ok(()) => {}
                Err(retry) if i == spot.index => return Err(retry),
                Err(_) => return Ok(Some(from)),
            }
            match high {
                Some(high) if high <= last => from = high,
                _ => return Ok(None),
            }
        }
        Ok(Some(from))
    }

    #[inline(always)]
    fn try_collect_down<S: Simd>(
        &self,
        first: u64,
        last: u64,
        leaves: usize,
        out: &mut Vec<Pair>,
    ) -> Result<Option<u64>, Retry> {
        let spot = self.try_descend::<S>(last)?;
        let start = (spot.index + 1).saturating_sub(leaves);
        for i in (spot.index + 1).saturating_sub(AHEAD)..spot.index {
            self.leaves.prefetch(spot.parent.child(i).offset());
        }
        let mut to = last;
        for i in (start..=spot.index).rev() {
            if i >= AHEAD && i + BEYOND >= start + AHEAD {
                self.leaves.prefetch(spot.parent.child(i - AHEAD).offset());
            }
            let (child, low) = (spot.parent.child(i), spot.low_of(i));
            let before = out.len();
            match self.read_leaf::<S>(&spot, child, first, to, out) {
                Ok(()) => out[before..].reverse(),
                Err(retry) if i == spot.index => return Err(retry),
                Err(_) => return Ok(Some(to)),
            }
            if low <= first {
                return Ok(None);
            }
            to = low - 1;
        }
        Ok(Some(to))
    }

    /// Appends one leaf's records, sorted, if it can be read whole at once.
    #[inline(always)]
    fn read_leaf<S: Simd>(
        &self,
        spot: &super::search::Spot<'_>,
        child: super::inner::Child,
        first: u64,
        last: u64,
        out: &mut Vec<Pair>,
    ) -> Result<(), Retry> {
        let before = out.len();
        let lock = self.locks.of(child.offset());
        let version = lock.read();
        // While the bottom node is unchanged the leaf holds exactly the keys between its separators.
        if !spot.is_current() {
            return Err(Retry::Changed);
        }
        if child.is_gap() {
            return Err(Retry::Gap);
        }
        self.leaves
            .at(child.offset())
            .append_sorted::<S>(first, last, out);
        if !lock.is_still(version) {
            out.truncate(before);
            return Err(Retry::Changed);
        }
        Ok(())
    }
}

struct CollectUp<'a> {
    tree: &'a Tree,
    first: u64,
    last: u64,
    leaves: usize,
    out: &'a mut Vec<Pair>,
}

impl Kernel for CollectUp<'_> {
    type Out = Result<Option<u64>, Retry>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree
            .try_collect_up::<S>(self.first, self.last, self.leaves, self.out)
    }
}

struct CollectDown<'a> {
    tree: &'a Tree,
    first: u64,
    last: u64,
    leaves: usize,
    out: &'a mut Vec<Pair>,
}

impl Kernel for CollectDown<'_> {
    type Out = Result<Option<u64>, Retry>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree
            .try_collect_down::<S>(self.first, self.last, self.leaves, self.out)
    }
}

/// Leaves asked for ahead of the one being read, also of the next read: memory that waits for nobody.
const AHEAD: usize = 6;
/// Of these, beyond what is read at once.
const BEYOND: usize = 1;

/// Leaves read at once: few at first, for the many ranges of which only the beginning is wanted.
const FIRST_LEAVES: usize = 6;
const MOST_LEAVES: usize = 16;

/// A range in progress, from both ends.
pub(crate) struct Cursor {
    tree: Arc<LbTree>,
    /// The keys that have not been read from the tree yet, both ends included.
    unread: Option<(u64, u64)>,
    /// What was read at the lower end, ascending, from `front_at` on not yet given out.
    front: Vec<Pair>,
    front_at: usize,
    /// What was read at the upper end, descending.
    back: Vec<Pair>,
    back_at: usize,
    leaves: usize,
    error: Option<Error>,
}

impl Cursor {
    /// A range over the keys from the first to the second of `bounds`, both included; over nothing for `None`.
    pub(crate) fn new(tree: Arc<LbTree>, bounds: Option<(u64, u64)>) -> Self {
        let (front, back) = (Vec::new(), Vec::new());
        Self {
            tree,
            unread: bounds,
            front,
            front_at: 0,
            back,
            back_at: 0,
            leaves: FIRST_LEAVES,
            error: None,
        }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> Option<Pair> {
        if self.front_at == self.front.len() {
            self.read_front();
        }
        match self.front.get(self.front_at) {
            Some(&record) => {
                self.front_at += 1;
                Some(record)
            }
            // The ends have met: the rest lies in the other buffer.
            None if self.back_at < self.back.len() => self.back.pop(),
            None => None,
        }
    }

    #[inline]
    pub(crate) fn next_back(&mut self) -> Option<Pair> {
        if self.back_at == self.back.len() {
            self.read_back();
        }
        match self.back.get(self.back_at) {
            Some(&record) => {
                self.back_at += 1;
                Some(record)
            }
            None if self.front_at < self.front.len() => self.front.pop(),
            None => None,
        }
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    fn read_front(&mut self) {
        self.front_at = 0;
        self.front.clear();
        self.front.reserve(MOST_LEAVES * SLOTS);
        while let (Some((first, last)), true) = (self.unread, self.front.is_empty()) {
            let read = self
                .tree
                .shared
                .tree
                .collect_up(first, last, self.leaves, &mut self.front);
            self.unread = self.or_end(read).map(|first| (first, last));
            self.leaves = (self.leaves + self.leaves / 4).min(MOST_LEAVES);
        }
    }

    fn read_back(&mut self) {
        self.back_at = 0;
        self.back.clear();
        self.back.reserve(MOST_LEAVES * SLOTS);
        while let (Some((first, last)), true) = (self.unread, self.back.is_empty()) {
            let read = self
                .tree
                .shared
                .tree
                .collect_down(first, last, self.leaves, &mut self.back);
            self.unread = self.or_end(read).map(|last| (first, last));
            self.leaves = (self.leaves + self.leaves / 4).min(MOST_LEAVES);
        }
    }

    fn or_end(&mut self, read: Result<Option<u64>>) -> Option<u64> {
        read.unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })
    }
}

// A block's keys, sorted above, fit into two lines.
const _: () = assert!(SLOTS <= 16);
