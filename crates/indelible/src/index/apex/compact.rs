//! Compaction: makes the map small again after most of its records were removed, so that `Pool::shrink` can cut the file.
//!
//! Three steps, each made of changes that are committed by themselves, while other operations go on:
//!
//! 1. *Lay out anew*: what lies beneath an inner node takes much more than it needs. All data nodes beneath are frozen, their records
//!    are planned as a bulk load would plan them, and one store of the link above puts the new nodes in the place of the old ones.
//!    For parts of so many records that writers do not wait long.
//! 2. *Contract*: every other data node of few records becomes smaller, or is merged with its neighbour.
//! 3. *Move*: blocks at the end of the pool, and in extents that would not be needed if blocks lay side by side, are copied to
//!    the front; see `relocate`.
//!
//! Data nodes contract without this when records are removed, but at a fifth of their slots at most, so that they do not grow again
//! at once; and where the blocks lie nobody asks then.

use super::Tree;
use super::build::{Aside, Record, block_for};
use super::data::{Data, State};
use super::divide::Load;
use super::format::is_link;
use super::inner::{Child, Inner};
use super::layout::{CLASSES, INLINE_SLOTS, Link, Offset, SMALLEST_BLOCK};
use super::plan::{Plan, with_room_around};
use super::records::Buffer;
use super::smo::{Frozen, Path, Step};
use crate::locks::Wait;
use crate::pool::EXTENT_BYTES;
use crate::sync::lock;
use crate::{Error, Result, reclaim};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;

/// Records of a part that is laid out anew at once, at most: writers wait meanwhile, a few tens of milliseconds.
const MOST_RECORDS: usize = if cfg!(any(test, feature = "small")) {
    1 << 9
} else {
    1 << 18
};

/// Bytes per record above which a part is planned anew: a bulk load takes 25 to 50, and 32 on average.
const MANY_BYTES: usize = 48;

/// A plan is good enough if it takes this share of the bytes that there are, in hundredths.
const WORTH_WHILE: u64 = 70;

/// Records per slot, in hundredths, below which a data node can become smaller: half of what a new one has at most, as blocks are of
/// twice the size each.
const THIN: usize = 33;

/// How often a node contracts in one compaction, at most: sizes from the largest to the smallest.
const MOST_CONTRACTIONS: usize = 10;

/// How often blocks are moved: what one pass has emptied is free for the next one.
const PASSES: usize = 4;

/// Steps to wait for somebody who is changing a node. It may be somebody who waits for a node that we have frozen.
const PATIENCE: usize = 1 << 10;

/// What lies beneath an inner node.
#[derive(Clone, Copy)]
struct Beneath {
    /// The first key that is routed there.
    low: u64,
    /// Inner nodes above.
    depth: usize,
    records: usize,
    bytes: u64,
}

impl Beneath {
    fn is_thin(&self) -> bool {
        self.bytes > (self.records * MANY_BYTES) as u64 + EXTENT_BYTES.min(1 << 14)
    }
}

impl Tree {
    /// Compacts the tree. Other operations go on meanwhile.
    pub(super) fn compact(&self) -> Result<()> {
        self.lay_out_thin_parts()?;
        self.contract_nodes()?;
        self.blocks.give_back();
        for _ in 0..PASSES {
            let surplus = self.blocks.surplus();
            if surplus.is_empty() || !self.move_blocks(&surplus)? {
                break;
            }
            self.blocks.give_back();
        }
        Ok(())
    }

    /// Lays out anew what takes much more space than it needs, beneath inner nodes as near to the root as possible.
    fn lay_out_thin_parts(&self) -> Result<()> {
        let mut parts: Vec<_> = self.parts()?.into_iter().collect();
        // From the root downwards: of what has been laid out anew nothing beneath is looked at.
        parts.sort_by_key(|(_, part)| (part.depth, part.low));
        let extents = self.blocks.extents();
        for (head, part) in parts {
            // A map of few records may have an extent for each of many sizes of blocks.
            let few = 3 + part.records as u64 * 32 / EXTENT_BYTES;
            let is_scattered = part.depth == 0 && extents > few;
            if part.records <= MOST_RECORDS && (part.is_thin() || is_scattered) {
                unless_full(self.rebuild(part.low, head))?;
            }
        }
        Ok(())
    }

    /// All inner nodes, and what is beneath each.
    fn parts(&self) -> Result<BTreeMap<Offset, Beneath>> {
        let mut parts = BTreeMap::new();
        let mut from = 0;
        loop {
            let _guard = reclaim::pin();
            let path = self.path_to(from)?;
            let data = path.data;
            let bytes = data.bytes + data.extensions().count() as u64 * SMALLEST_BLOCK;
            for (depth, step) in path.steps.iter().enumerate() {
                let part = parts.entry(step.inner.head).or_insert(Beneath {
                    low: step.inner.low,
                    depth,
                    records: 0,
                    bytes: 0,
                });
                part.records += self.count_of(data);
                part.bytes += bytes;
            }
            match data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(parts),
            }
        }
    }

    /// Records of a node; an estimate, unless it is frozen.
    fn count_of(&self, data: &Data) -> usize {
        let count = |group| {
            let known = data.count(group);
            known.unwrap_or_else(|| self.keys_of(data, group).len())
        };
        (0..data.group_count()).map(count).sum()
    }

    /// All records of a frozen node, in order. Records that cannot be where they are would be lost with the node, and so would what
    /// says that the pool is damaged.
    fn sound_records_of(&self, data: &Data) -> Result<Vec<Record>> {
        let records = self.records_of(data);
        if records.len() == self.count_of(data) {
            return Ok(records);
        }
        let at = data.offset();
        Err(Error::Damaged(format!(
            "data node {at:#x} has keys that are not in its range, or twice"
        )))
    }

    /// Makes every data node of few records smaller, or a part of its neighbour.
    fn contract_nodes(&self) -> Result<()> {
        let (mut from, mut contractions) = (0, 0);
        loop {
            let _guard = reclaim::pin();
            let data = self.path_to(from)?.data;
            let is_thin = self.count_of(data) * 100 < data.slots() * THIN;
            if is_thin && contractions < MOST_CONTRACTIONS {
                unless_full(self.contract(data))?;
                if data.state() == State::Dead {
                    contractions += 1;
                    continue;
                }
            }
            contractions = 0;
            match data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Makes a data node smaller, or a part of its neighbour, if it can be had.
    fn contract(&self, data: &Data) -> Result<bool> {
        let Some(frozen) = self.freeze(data) else {
            return Ok(false);
        };
        let records = self.sound_records_of(data)?;
        let mut keys = Buffer::empty();
        keys.extend(records.iter().map(|&(key, _)| key));
        let load = Load::new(self.shape, data, &records, &keys);
        self.thin_out(&frozen, &load, self.shape.fill)?;
        Ok(true)
    }

    /// Lays out anew all that is beneath the inner node at `head`, to which `low` is the first key that is routed, if that saves
    /// space and nobody is in the way.
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | all data nodes beneath are frozen | the old nodes | nothing |
    /// | new nodes are written, fence | the old nodes; the new ones cannot be reached | sweeps the new ones |
    /// | the link above is stored | the new nodes | sweeps the old ones |
    fn rebuild(&self, low: u64, head: Offset) -> Result<bool> {
        let _guard = reclaim::pin();
        let steps = self.path_to(low)?.steps;
        let Some(at) = steps.iter().position(|step| step.inner.head == head) else {
            return Ok(false);
        };
        let (above, inner) = (steps[..at].last(), steps[at].inner);
        let Some((frozen, records, sizes)) = self.freeze_beneath(inner)? else {
            return Ok(false);
        };
        let mut keys = Buffer::empty();
        keys.extend(records.iter().map(|&(key, _)| key));
        let range = (inner.low, inner.high);
        let plan = self.shape.plan(&keys, range, self.shape.fill, 1);
        let plan = match above {
            Some(_) => with_room_around(self.shape, plan, range.0, range.1),
            None => plan,
        };
        let mut wanted = Sizes::default();
        wanted.add_plan(&plan);
        if !wanted.is_worth_while(&sizes, above.is_none()) {
            return Ok(false);
        }
        let mut aside = Aside::new(self);
        let (link, child) = aside.plant(&plan, &records, range, inner.depth)?;
        self.pm.fence();
        self.switch(above, inner, &frozen, (link, child), aside)
    }

    /// Puts new nodes in the place of an inner node and all beneath, of which the data nodes are frozen; `false` if the inner node
    /// is not where it was.
    fn switch(
        &self,
        above: Option<&Step<'_>>,
        inner: &Inner,
        frozen: &[Frozen<'_>],
        (link, child): (Link, Child),
        aside: Aside<'_>,
    ) -> Result<bool> {
        let _above = match above {
            Some(step) => lock(&step.inner.changing),
            None => lock(&self.changing_root),
        };
        if inner.is_dead() || !self.is_child(above, inner) {
            return Ok(false);
        }
        let mut inners = Vec::new();
        if self.lock_beneath(inner, &mut inners) != frozen.len() {
            // Somebody has made a part of the way cold, or is about to be found out as damaged.
            return Ok(false);
        }
        self.pm
            .note("nodes laid out anew", u64::from(above.is_none()));
        self.relink_inner(above, link, child);
        for (inner, _slots) in &inners {
            self.retire_inner(inner);
        }
        for node in frozen {
            self.retire_data(node.data);
        }
        aside.open();
        Ok(true)
    }

    /// Freezes all data nodes beneath an inner node, and returns them with their records and the sizes of all nodes beneath; `None`
    /// if somebody is at one of them for too long, or the records are too many.
    fn freeze_beneath(&self, inner: &Inner) -> Result<Option<AllBeneath<'_>>> {
        let (mut frozen, mut records) = (Vec::new(), Vec::new());
        let (mut sizes, mut inners) = (Sizes::default(), BTreeSet::new());
        let (mut from, mut wait, mut waits) = (inner.low, Wait::default(), 0);
        loop {
            let Path { steps, data } = self.path_to(from)?;
            let Some(node) = self.freeze(data) else {
                waits += 1;
                if waits > PATIENCE {
                    return Ok(None);
                }
                wait.step();
                continue;
            };
            frozen.push(node);
            sizes.add_data(data);
            for step in &steps {
                if step.inner.depth >= inner.depth && inners.insert(step.inner.head) {
                    sizes.add_inner(step.inner.radix.slots());
                }
            }
            records.append(&mut self.sound_records_of(data)?);
            if records.len() > 2 * MOST_RECORDS {
                return Ok(None);
            }
            match data.high.checked_add(1) {
                Some(next) if next <= inner.high => from = next,
                _ => return Ok(Some((frozen, records, sizes))),
            }
        }
    }

    /// Locks the slots of an inner node and of all beneath, from above, and returns how many data nodes are beneath that have a
    /// mirror.
    fn lock_beneath<'a>(
        &'a self,
        inner: &'a Inner,
        inners: &mut Vec<(&'a Inner, MutexGuard<'a, ()>)>,
    ) -> usize {
        inners.push((inner, lock(&inner.changing)));
        let slots = self.durable_slots(inner);
        let mut count = 0;
        for first in (0..slots.len()).filter(|&slot| is_link(slots[slot].load())) {
            let child = inner.child(first);
            if child.is_inner() {
                // SAFETY: reached while pinned.
                count += self.lock_beneath(unsafe { &*child.as_inner() }, inners);
            } else {
                count += usize::from(!child.is_cold());
            }
        }
        count
    }
}

/// That a structure change found no space is no reason not to go on with others.
fn unless_full(result: Result<bool>) -> Result<bool> {
    match result {
        Err(Error::NoSpace(_)) => Ok(false),
        result => result,
    }
}

/// All data nodes beneath an inner node, frozen; their records in order; and the sizes of all nodes beneath.
type AllBeneath<'a> = (Vec<Frozen<'a>>, Vec<Record>, Sizes);

/// Bytes of blocks of each size.
#[derive(Clone, Default)]
struct Sizes([u64; CLASSES]);

impl Sizes {
    fn add(&mut self, bytes: u64) {
        self.0[(bytes / SMALLEST_BLOCK).trailing_zeros() as usize] += bytes;
    }

    fn add_data(&mut self, data: &Data) {
        self.add(data.bytes);
        data.extensions().for_each(|_| self.add(SMALLEST_BLOCK));
    }

    fn add_inner(&mut self, slots: usize) {
        self.add(SMALLEST_BLOCK);
        if slots > INLINE_SLOTS {
            self.add(block_for(slots));
        }
    }

    fn add_plan(&mut self, plan: &Plan) {
        match plan {
            Plan::Data(node) => self.add(node.bytes),
            Plan::Inner(inner) => {
                self.add_inner(inner.radix().slots());
                inner
                    .children
                    .iter()
                    .for_each(|(_, child)| self.add_plan(child));
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Extents that they would take if there were nothing else.
    fn extents(&self) -> u64 {
        self.0
            .iter()
            .map(|bytes| bytes.div_ceil(EXTENT_BYTES))
            .sum()
    }

    /// Whether blocks of these sizes should take the place of those that there are, which may be all of the map.
    fn is_worth_while(&self, now: &Self, is_all: bool) -> bool {
        self.bytes() * 100 <= now.bytes() * WORTH_WHILE
            || is_all && self.extents() < now.extents() && self.bytes() <= now.bytes() * 5 / 4
    }
}
