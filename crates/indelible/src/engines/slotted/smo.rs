//! Structure changes: leaves are replaced by new ones.
//!
//! Every structure change has one form. A run of neighbouring leaves is replaced by a run of new ones, which hold the same records, and at most
//! one record more or in another version. So a leaf is split (one by two or more), rewritten (one by one, when its heap has gaps and no room),
//! merged with its neighbour (two by one), and moved (one by one, elsewhere).
//!
//! | step | what is durable | what recovery does after a crash |
//! |---|---|---|
//! | blobs that are new are written, with a fence | blobs that nothing refers to | sweeps them |
//! | signposts to the old leaves are removed | they are gone | walks a few more leaves |
//! | the new leaves are written to free blocks, with a fence; the last one leads to where the last old one did | leaves that nothing leads to | sweeps them |
//! | the link to the first old leaf is replaced (the commit) | the new leaves are in the chain | sweeps the old ones |
//! | the bottom node gets the new leaves (in DRAM) | nothing | |
//! | signposts to the new leaves are added, where they are to have one | the signposts | |
//! | the old blocks are retired; they are reused after an epoch | nothing | |
//!
//! The link is the sibling of the left neighbour or, for the first leaf of a chain, its head in the catalog entry. References to blobs are copied
//! from old leaves to new ones: blobs stay where they are. At the right end of a chain a leaf that is full stays as it is, and a new leaf is linked
//! to it: so ascending keys leave full leaves, and write each record once.
//!
//! The first new leaf has the low key of the first old one, and the leaf after the last one keeps its low key. So a leaf always covers the keys from
//! its low key to that of the next leaf, and its prefix, which was chosen for these two keys, holds.
//!
//! Lock order: a thread waits for the lock of one leaf, holding nothing else. All further locks are only tried: the left neighbour, other leaves of the
//! run, and then the bottom node, at the version at which it was searched. A thread that fails releases all of them and begins again. The left neighbour
//! is looked for before the bottom node is locked, since a search that follows an outdated pointer may wait for any node. A thread may
//! search and change a directory while it holds locks of the tree below it, never the other way round.

use super::distribute::Part;
use super::inner::{Child, Entry, Inner, Seek};
use super::insert::NewBlobs;
use super::layout::{Reference, SLOTS, prefix_of, shortest_separator};
use super::leaf::{Leaf, Probe};
use super::records::{Records, Snapshot, Value, image};
use super::search::{LockedLeaf, Spot};
use super::separator::Text;
use super::{Bug, Tree};
use crate::concurrency::locks::WriteGuard;
use crate::engines::arena::{Arena, Node};
use crate::engines::inner_nodes::{InnerNode, InnerTree, Merge};
use crate::kernels::prefetch;
use crate::pmem::Pm;
use crate::pmem::planted::planted;
use crate::pool::{Offset, as_last_resort};
use crate::{Error, Result};
use std::ops::Range;

/// A record that a structure change adds.
pub(super) struct NewRecord<'a> {
    pub(super) probe: Probe<'a>,
    pub(super) key_blob: Option<Reference>,
    pub(super) value: &'a Value<'a>,
    /// The slot of the record of the same key, which goes.
    pub(super) replaces: Option<usize>,
}

/// What leads to a leaf.
pub(super) enum Link<'a> {
    /// The sibling of this leaf. If it is under another bottom node, where it was found.
    Sibling(Child, Option<Spot<'a>>),
    /// The head of the chain.
    Head,
}

/// A link, or what has to be indexed before it is known.
pub(super) enum LinkTo<'a> {
    Known(Link<'a>),
    Unindexed,
}

/// What is locked for a structure change.
pub(super) struct Held<'a> {
    pub(super) link: Link<'a>,
    _leaves: Vec<WriteGuard<'a>>,
    _parent: WriteGuard<'a>,
}

/// The old leaves of a structure change, and what is known of them.
pub(super) struct Run<'a> {
    pub(super) spot: Spot<'a>,
    /// The slots of the old leaves in the bottom node.
    pub(super) slots: Range<usize>,
    /// The low key of the first one, as it lies there.
    pub(super) low: Value<'a>,
    /// Where the last one leads.
    pub(super) next: Offset,
    /// The name of the commit.
    pub(super) name: &'static str,
}

impl Tree {
    /// Puts a record into a leaf that has no room for it, by a structure change. `false` if the caller has to begin again.
    #[cold]
    pub(super) fn restructure(&self, locked: LockedLeaf<'_>, new: &NewRecord<'_>) -> Result<bool> {
        let LockedLeaf { spot, leaf, guard } = locked;
        let (low, high) = (spot.low(), spot.high());
        // The leaf is locked, but its bottom node is not: another leaf may have changed it.
        if !spot.is_current() {
            return Ok(false);
        }
        if let Some(left) = spot.slot.checked_sub(1) {
            // The left neighbour will have to be changed: its header comes from memory while the records are distributed.
            let left = spot.parent.child(left).offset().get() as usize;
            prefetch(self.core.base().wrapping_add(left).cast_const());
        }
        let snapshot = Snapshot::of(leaf);
        let mut records = Records::default();
        records.take(&snapshot, low, &self.blobs)?;
        records.list.retain(|old| Some(old.slot) != new.replaces);
        records.push(new.probe.key, new.key_blob, new.value);
        records.sort();
        let count = records.list.len();
        let whole = 0..count;
        records.expect_between(&whole, (low, high), leaf.offset())?;
        if spot.parent.is_full() {
            drop(guard);
            self.split_inner(Text::of(new.probe.key));
            return Ok(false);
        }
        let is_last = count > 1 && records.key(count - 1) == new.probe.key;
        if is_last && high.is_none() && new.replaces.is_none() && leaf.next().is_none() {
            return self.append(&spot, leaf, &guard, (&records, new));
        }
        let words = self.words_of(&records, &whole, (low, high));
        let roomy = leaf.place.size().heap_words() * 7 / 8;
        // A leaf of which most is free, though not in one piece, is rewritten. One that should be larger is split: its halves are.
        let is_rewritten = count < 2 || count < SLOTS && words.fit(roomy);
        let parts = if is_rewritten {
            vec![Part {
                size: self.size_for(words),
                records: whole,
                low: low.to_vec(),
            }]
        } else {
            self.distribute(&records, (low, high))
        };
        let run = Run {
            spot,
            slots: spot.slot..spot.slot + 1,
            low: snapshot.low()?,
            next: leaf.next(),
            name: if parts.len() == 1 {
                "slotted.rewrite"
            } else {
                "slotted.split"
            },
        };
        let link = match self.link_to(&spot, spot.slot)? {
            LinkTo::Known(link) => link,
            LinkTo::Unindexed => {
                drop(guard);
                self.index_on_demand(Seek::Below(low))?;
                return Ok(false);
            }
        };
        let Some(held) = self.try_hold(&spot, link, &[], Some(&guard)) else {
            return Ok(false);
        };
        self.pm.note("slotted leaf replaced", parts.len() as u64);
        self.replace(&held, &run, &[leaf.place], (&records, &parts), None)?;
        if new.replaces.is_none() {
            self.count_change(leaf.offset(), 1);
        }
        Ok(true)
    }

    /// Adds a leaf behind the last one of the chain, with one record, which is above all others.
    fn append(
        &self,
        spot: &Spot<'_>,
        leaf: Leaf<'_>,
        _leaf_guard: &WriteGuard<'_>,
        (records, new): (&Records, &NewRecord<'_>),
    ) -> Result<bool> {
        let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) else {
            return Ok(false);
        };
        let last = records.list.len() - 1;
        let low = shortest_separator(records.key(last - 1), new.probe.key);
        let mut blobs = NewBlobs::none(&self.blobs);
        let low_value = self.low_value(low, &mut blobs)?;
        // Those in the leaf say what records come here; the new one has to fit.
        let all = self.words_of(records, &(0..last + 1), (low, None));
        let own = self.words_of(records, &(last..last + 1), (low, None));
        let block = self.alloc_leaf(self.sizes_for(all, own))?;
        self.pm.note("slotted leaf appended", 0);
        self.write_leaf(
            block,
            (&low_value, 0),
            Offset::NONE,
            records,
            last..last + 1,
        );
        self.pm.fence();
        // COMMIT slotted.append: the sibling of the last leaf. Before this store recovery sees the chain without the new leaf, which is swept; after it,
        // it sees the record in the new leaf.
        leaf.relink(self.pm, block.offset(), "slotted.append");
        blobs.keep();
        spot.parent.insert(spot.slot, &Entry::leaf(low, block));
        self.split_happened();
        self.directory.add(low, block.offset());
        self.count_change(leaf.offset(), 1);
        Ok(true)
    }

    /// A low key as it goes into a leaf.
    pub(super) fn low_value<'k>(&self, low: &'k [u8], new: &mut NewBlobs<'_>) -> Result<Value<'k>> {
        if low.len() > self.sizes.most_key() {
            Ok(Value::Blob(new.write(low)?))
        } else {
            Ok(Value::Inline(low))
        }
    }

    /// Writes a new leaf, and flushes it without a fence.
    pub(super) fn write_leaf(
        &self,
        block: Child,
        low: (&Value<'_>, usize),
        next: Offset,
        records: &Records,
        range: Range<usize>,
    ) {
        let size = (self.sizes, block.size());
        let words = image(size, self.seed, low, next, records, range);
        let leaf = self.leaf(block);
        // The block may have been a leaf before.
        self.orders.forget(block);
        for (cell, &word) in leaf.cells.iter().zip(&words) {
            self.pm.store(cell, word);
        }
        self.pm.named("slotted.fill").flush(leaf.cells);
    }

    /// What leads to the leaf in `slot` of the bottom node of `spot`. The caller is pinned and holds no lock of an inner node.
    pub(super) fn link_to<'a>(&'a self, spot: &Spot<'a>, slot: usize) -> Result<LinkTo<'a>> {
        let found = if slot > 0 {
            (spot.parent.child(slot - 1), None)
        } else {
            let low = spot.low_of(0);
            if low.is_empty() {
                return Ok(LinkTo::Known(Link::Head));
            }
            let below = self.locate_any(Seek::Below(low));
            (below.child, Some(below))
        };
        if found.0.is_unindexed() {
            return Ok(LinkTo::Unindexed);
        }
        Ok(LinkTo::Known(Link::Sibling(found.0, found.1)))
    }

    /// Tries to lock what leads to the run, `leaves`, and the bottom node. `already` is the lock of a leaf that the caller has.
    pub(super) fn try_hold<'a>(
        &'a self,
        spot: &Spot<'a>,
        link: Link<'a>,
        leaves: &[Child],
        already: Option<&WriteGuard<'_>>,
    ) -> Option<Held<'a>> {
        let mut held: Vec<WriteGuard<'a>> = Vec::with_capacity(leaves.len() + 1);
        let left = match &link {
            Link::Sibling(left, _) if !planted(Bug::NeighbourNotLocked) => Some(*left),
            _ => None,
        };
        for leaf in leaves.iter().copied().chain(left) {
            let lock = self.locks.of(leaf.offset().get());
            // One lock may belong to several leaves.
            let has = |guard: &WriteGuard<'_>| guard.holds(lock);
            if already.is_some_and(has) || held.iter().any(has) {
                continue;
            }
            held.push(lock.try_lock()?);
        }
        let parent = spot.parent.lock().try_lock_at(spot.version)?;
        // A neighbour under the same bottom node is still there, since that node has not changed.
        if let Link::Sibling(_, Some(below)) = &link
            && !below.is_current()
        {
            return None;
        }
        Some(Held {
            link,
            _leaves: held,
            _parent: parent,
        })
    }

    /// Replaces the old leaves of a run by new ones. `block` is that of the first new leaf, if it has been chosen; it is freed if this fails.
    /// The caller holds all locks, and the bottom node has room. What the old leaves referred to and the new ones do not is the caller's to
    /// free. The head of this file has the steps.
    pub(super) fn replace(
        &self,
        held: &Held<'_>,
        run: &Run<'_>,
        old: &[Child],
        (records, parts): (&Records, &[Part]),
        block: Option<Child>,
    ) -> Result<()> {
        let mut blobs = NewBlobs::none(&self.blobs);
        let mut blocks = NewLeaves {
            tree: self,
            list: block.into_iter().collect(),
        };
        self.expect_link(&held.link, old[0].offset())?;
        for part in &parts[blocks.list.len()..] {
            let alloc = || self.alloc_leaf(part.size);
            // One leaf takes as much as those that it replaces give back, or less, and a merge that fails is not tried again.
            let block = if parts.len() == 1 {
                as_last_resort(alloc)?
            } else {
                alloc()?
            };
            blocks.list.push(block);
        }
        let was = old[0].size();
        let mut sizes = blocks.list.iter().map(|block| block.size());
        if let Some(other) = sizes.find(|&size| size != was) {
            self.pm.note("slotted leaf resized", u64::from(other > was));
        }
        let end = run.spot.high_of(run.slots.end - 1);
        for (i, part) in parts.iter().enumerate() {
            let low = if i == 0 {
                run.low
            } else {
                self.low_value(&part.low, &mut blobs)?
            };
            let high = parts.get(i + 1).map(|part| &part.low[..]).or(end);
            let next = blocks
                .list
                .get(i + 1)
                .map_or(run.next, |next| next.offset());
            records.expect_between(&part.records, (&part.low, high), old[0].offset())?;
            let prefix = prefix_of(&part.low, high);
            debug_assert!(part.size.includes(blocks.list[i].size()));
            self.write_leaf(
                blocks.list[i],
                (&low, prefix),
                next,
                records,
                part.records.clone(),
            );
        }
        // A signpost must never point to a leaf that is gone. It goes first: a missing one does no harm.
        for (slot, leaf) in run.slots.clone().zip(old) {
            if !planted(Bug::SignpostKept) {
                let low = run.spot.low_of(slot);
                self.directory.remove(low, leaf.offset())?;
            }
        }
        if planted(Bug::FreeTooEarly) {
            old.iter().for_each(|&leaf| self.free_leaf_now(leaf));
        }
        self.pm.fence();
        self.relink(&held.link, blocks.list[0].offset(), run.name);
        let new = std::mem::take(&mut blocks.list);
        blobs.keep();
        self.index_run(run, parts, &new);
        if !planted(Bug::FreeTooEarly) {
            old.iter().for_each(|&leaf| self.retire_leaf(leaf));
        }
        Ok(())
    }

    /// Damage, unless the link leads to this leaf.
    fn expect_link(&self, link: &Link<'_>, to: Offset) -> Result<()> {
        let leads = match link {
            Link::Sibling(left, _) => self.leaf(*left).next(),
            Link::Head => Offset::from_word(self.head().load_acquire()),
        };
        if leads != to {
            return Err(Error::Damaged(format!(
                "leaf {to:#x} is indexed where the chain has {leads:#x}"
            )));
        }
        Ok(())
    }

    /// The commit of a structure change.
    fn relink(&self, link: &Link<'_>, first: Offset, name: &'static str) {
        // COMMIT slotted.rewrite: the link to the leaf. Before this store recovery sees the old leaf, and the new one is swept; after it, it sees the
        // new one, with the new record, and the old one is swept.
        // COMMIT slotted.split: the same, with several new leaves.
        // COMMIT slotted.merge: the link to the left leaf. Before this store recovery sees both leaves; after it, the one that has the records of both.
        // COMMIT slotted.move: the link to the leaf. Before this store recovery sees the old leaf with its blobs, and the copies are swept; after it, it
        // sees the copies, and the old ones are swept.
        match link {
            Link::Sibling(left, _) => self.leaf(*left).relink(self.pm, first, name),
            Link::Head => self.pm.commit(self.head(), first.get(), name),
        }
    }

    /// Puts new leaves into the bottom node, in the place of the old ones, and adds their signposts.
    fn index_run(&self, run: &Run<'_>, parts: &[Part], new: &[Child]) {
        let (parent, first) = (run.spot.parent, run.slots.start);
        parent.set_child(first, new[0]);
        for slot in (first + 1..run.slots.end).rev() {
            parent.remove(slot);
        }
        for (i, (part, &leaf)) in parts.iter().zip(new).enumerate().skip(1) {
            parent.insert(first + i - 1, &Entry::leaf(&part.low, leaf));
            self.split_happened();
        }
        for (part, &leaf) in parts.iter().zip(new) {
            if !part.low.is_empty() {
                self.directory.add(&part.low, leaf.offset());
            }
        }
    }

    /// Merges the leaves in two neighbouring slots of the bottom node of `spot`.
    fn try_merge_pair(
        &self,
        spot: &Spot<'_>,
        left_slot: usize,
        right_slot: usize,
    ) -> Result<Merge> {
        let parent = spot.parent;
        let (left, right) = (parent.child(left_slot), parent.child(right_slot));
        let low = spot.low_of(left_slot);
        let (right_low, high) = (spot.low_of(right_slot), spot.high_of(right_slot));
        if !spot.is_current() {
            return Ok(Merge::Busy);
        }
        if left.is_unindexed() || right.is_unindexed() {
            return Ok(Merge::No);
        }
        let link = match self.link_to(spot, left_slot)? {
            LinkTo::Known(link) => link,
            LinkTo::Unindexed => {
                self.index_on_demand(Seek::Below(low))?;
                return Ok(Merge::Busy);
            }
        };
        let old = [left, right];
        let locked = if planted(Bug::MergeLocksOneLeaf) {
            &old[..1]
        } else {
            &old[..]
        };
        let Some(held) = self.try_hold(spot, link, locked, None) else {
            return Ok(Merge::Busy);
        };
        let [left, right] = old.map(|leaf| Snapshot::of(self.leaf(leaf)));
        if left.next() != old[1].offset() {
            return Ok(Merge::No);
        }
        let prefix = prefix_of(low, high);
        let is_unlinked = left.commit_word().prefix() <= prefix || left.commit_word().slots() == 0;
        if right.commit_word().slots() == 0 && is_unlinked {
            let right_low = right.low()?;
            self.directory
                .remove(spot.low_of(right_slot), old[1].offset())?;
            self.pm.note(
                "slotted leaf unlinked",
                u64::from(left.commit_word().slots() == 0),
            );
            self.leaf(old[0]).unlink_next(self.pm, right.next(), prefix);
            parent.remove(right_slot);
            self.retire_leaf(old[1]);
            if let Value::Blob(blob) = right_low {
                self.blobs.retire(blob);
            }
            return Ok(Merge::Done {
                parent_is_small: parent.is_small(),
            });
        }
        let mut records = Records::default();
        records.take(&left, low, &self.blobs)?;
        let of_left = records.list.len();
        records.take(&right, right_low, &self.blobs)?;
        let count = records.list.len();
        let is_any_empty = of_left == 0 || of_left == count;
        let whole = 0..count;
        let words = self.words_of(&records, &whole, (low, high));
        let Some(size) = self.size_merged(words, is_any_empty) else {
            return Ok(Merge::No);
        };
        records.sort();
        let run = Run {
            spot: *spot,
            slots: left_slot..right_slot + 1,
            low: left.low()?,
            next: right.next(),
            name: "slotted.merge",
        };
        let part = Part {
            records: whole,
            low: low.to_vec(),
            size,
        };
        self.pm.note("slotted leaf merge", u64::from(is_any_empty));
        let orphan = right.low()?;
        self.replace(&held, &run, &old, (&records, &[part]), None)?;
        if let Value::Blob(blob) = orphan {
            self.blobs.retire(blob);
        }
        Ok(Merge::Done {
            parent_is_small: parent.is_small(),
        })
    }
}

/// Whether a leaf whose records took `before` words and take `left` now should be merged with a neighbour. Asked at most three times between full
/// and empty, so that a leaf that stays small does not try at every removal.
pub(super) fn is_worth_merging(leaf: Leaf<'_>, before: usize, left: usize) -> bool {
    let heap = leaf.place.size().heap_words();
    let crosses = |limit: usize| left <= limit && before > limit;
    left == 0 || crosses(heap / 4) || crosses(heap / 8)
}

/// Blocks of leaves that are not reachable yet: freed unless they are taken out.
struct NewLeaves<'a> {
    tree: &'a Tree,
    list: Vec<Child>,
}

impl Drop for NewLeaves<'_> {
    fn drop(&mut self) {
        for &block in &self.list {
            self.tree.free_leaf_now(block);
        }
    }
}

impl InnerTree for Tree {
    type Node = Inner;

    fn root(&self) -> &Inner {
        self.root()
    }

    fn arena(&self) -> &Arena<Inner> {
        &self.arena
    }

    fn pm(&self) -> Pm {
        self.pm
    }

    fn find_child(&self, node: &Inner, key: Text) -> usize {
        // SAFETY: the caller has got the key from one of this tree's functions, whose caller keeps it alive.
        node.find(Seek::At(unsafe { key.bytes() }))
    }

    fn try_merge(&self, key: Text) -> Merge {
        // SAFETY: as in `find_child`.
        let key = unsafe { key.bytes() };
        let _guard = crate::concurrency::epochs::pin();
        for which in 0..2 {
            // Searched anew for each pair: an attempt that has locked the node has changed its version.
            let spot = self.locate_any(Seek::At(key));
            if spot.parent.count() == 1 {
                return if spot.is_current() {
                    Merge::Alone
                } else {
                    Merge::Busy
                };
            }
            let Some((left, right)) = spot.parent.pairs_at(spot.slot).nth(which) else {
                break;
            };
            // A merge that fails, for want of space say, leaves both leaves as they are.
            match self.try_merge_pair(&spot, left, right) {
                Ok(Merge::No) | Err(_) => {}
                Ok(merge) => return merge,
            }
        }
        Merge::No
    }
}
