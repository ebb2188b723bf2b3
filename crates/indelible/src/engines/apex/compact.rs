//! Compaction: makes the tree small again after most of its records have been removed, so that `Pool::shrink` can
//! truncate the file.
//!
//! There are three steps, each made of structure changes that are committed one by one while other operations go on:
//!
//! 1. *Rebuild*: the nodes below an inner node take much more space than their records need. All data nodes below are
//!    frozen, their records are planned as a bulk load would plan them, and one store of the link to the inner node
//!    replaces all of them. Only parts of a limited number of records are rebuilt, so that writers do not wait long.
//! 2. *Contract*: every other data node with few records becomes smaller, or is merged with its buddy.
//! 3. *Move*: blocks at the end of the pool, and in extents that would not be needed if the blocks lay densely, are
//!    copied to the front; see [`relocate`](super::relocate).
//!
//! Data nodes also contract without this when records are removed, but only when a fifth of their slots is taken, so
//! that they do not soon grow again; and nothing else looks at where the blocks lie.

use super::Tree;
use super::build::{Record, UnpublishedNodes, slots_block_bytes};
use super::data::{DataNode, State};
use super::divide::NodeContents;
use super::inner::{Child, InnerNode};
use super::layout::{CLASSES, INLINE_SLOTS, Link, Offset, SMALLEST_BLOCK};
use super::plan::{Plan, with_empty_margins};
use super::records::Buffer;
use super::smo::{FrozenNode, Path, Step};
use crate::concurrency::epochs;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::lock;
use crate::engines::unless_full;
use crate::pmem::geometry::sized_in_tests;
use crate::pool::EXTENT_BYTES;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::MutexGuard;

/// Most records in a subtree that is rebuilt at once. Writers to the subtree wait meanwhile, for some tens of
/// milliseconds.
const REBUILD_MAX_RECORDS: usize = sized_in_tests(1 << 18, 1 << 9);

/// A subtree is sparse, and a plan is made for it, if it takes more bytes per record than this. A bulk load takes 25 to
/// 50, and 32 on average.
const SPARSE_BYTES_PER_RECORD: usize = 48;

/// A subtree is rebuilt if the new nodes take at most this percentage of the bytes of the old ones.
const REBUILD_MAX_PERCENT: u64 = 70;

/// A data node can become smaller if this percentage of its slots is not taken: half of the most that a new one has, as
/// each size of blocks is twice the one before.
const CONTRACT_BELOW_PERCENT: usize = 33;

/// Most contractions in a row at one place: from the largest size of blocks to the smallest.
const MAX_CONTRACTIONS: usize = 10;

/// Most passes that move blocks: the extents that one pass has emptied are free for the next one.
const MAX_MOVE_PASSES: usize = 4;

/// Most steps of waiting for a data node that another thread has frozen. That thread may be waiting for a node that this
/// one has frozen.
const MAX_FREEZE_WAITS: usize = 1 << 10;

/// The size of what lies below an inner node.
#[derive(Clone, Copy)]
struct Subtree {
    /// The lowest key that is routed to the inner node.
    low: u64,
    /// Number of inner nodes above it.
    depth: usize,
    records: usize,
    bytes: u64,
}

impl Subtree {
    fn is_sparse(&self) -> bool {
        self.bytes > (self.records * SPARSE_BYTES_PER_RECORD) as u64 + EXTENT_BYTES.min(1 << 14)
    }
}

impl Tree {
    /// Compacts the tree. Other operations go on meanwhile.
    pub(super) fn compact(&self) -> Result<()> {
        self.rebuild_sparse_subtrees()?;
        self.contract_sparse_nodes()?;
        self.blocks.give_back();
        for _ in 0..MAX_MOVE_PASSES {
            let surplus = self.blocks.surplus();
            if surplus.is_empty() || !self.move_blocks(&surplus)? {
                break;
            }
            self.blocks.give_back();
        }
        Ok(())
    }

    /// Rebuilds the sparse subtrees, as near to the root as possible.
    fn rebuild_sparse_subtrees(&self) -> Result<()> {
        let mut subtrees: Vec<_> = self.subtrees()?.into_iter().collect();
        // From the root downwards: below a subtree that has been rebuilt, no inner node of the list is found any more.
        subtrees.sort_by_key(|(_, subtree)| (subtree.depth, subtree.low));
        let extents = self.blocks.extents();
        for (head, subtree) in subtrees {
            // A tree of few records may have an extent for each of many sizes of blocks.
            let few = 3 + subtree.records as u64 * 32 / EXTENT_BYTES;
            let is_scattered = subtree.depth == 0 && extents > few;
            if subtree.records <= REBUILD_MAX_RECORDS && (subtree.is_sparse() || is_scattered) {
                unless_full(self.rebuild(subtree.low, head))?;
            }
        }
        Ok(())
    }

    /// The sizes of what lies below each inner node, by the offset of its head.
    fn subtrees(&self) -> Result<BTreeMap<Offset, Subtree>> {
        let mut subtrees = BTreeMap::new();
        let mut from = 0;
        loop {
            let _guard = epochs::pin();
            let path = self.path_to(from)?;
            let data = path.data;
            let bytes = data.bytes + data.extensions().count() as u64 * SMALLEST_BLOCK;
            for (depth, step) in path.steps.iter().enumerate() {
                let subtree = subtrees.entry(step.inner.head).or_insert(Subtree {
                    low: step.inner.low,
                    depth,
                    records: 0,
                    bytes: 0,
                });
                subtree.records += self.count_of(data);
                subtree.bytes += bytes;
            }
            match data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(subtrees),
            }
        }
    }

    /// Number of records of a data node; an estimate, unless the node is frozen.
    fn count_of(&self, data: &DataNode) -> usize {
        let count = |group| {
            let known = data.count(group);
            known.unwrap_or_else(|| self.keys_of(data, group).len())
        };
        (0..data.group_count()).map(count).sum()
    }

    /// All records of a frozen node, in ascending order of their keys. `Error::Damaged` if the node has slots with keys
    /// that are not in its range: a new node would not have them, and nothing would show any more that the pool is
    /// damaged.
    pub(super) fn checked_records_of(&self, data: &DataNode) -> Result<Vec<Record>> {
        let records = self.records_of(data)?;
        if records.len() == self.count_of(data) {
            return Ok(records);
        }
        let at = data.offset();
        Err(Error::Damaged(format!(
            "data node {at:#x} has keys that are not in its range, or twice"
        )))
    }

    /// Contracts every data node of few records, or merges it with its buddy.
    fn contract_sparse_nodes(&self) -> Result<()> {
        let (mut from, mut contractions) = (0, 0);
        loop {
            let _guard = epochs::pin();
            let data = self.path_to(from)?.data;
            let is_sparse = self.count_of(data) * 100 < data.slots() * CONTRACT_BELOW_PERCENT;
            if is_sparse && contractions < MAX_CONTRACTIONS {
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

    /// Contracts a data node, or merges it with its buddy; `false` if the node is not live.
    fn contract(&self, data: &DataNode) -> Result<bool> {
        let Some(frozen) = self.freeze(data) else {
            return Ok(false);
        };
        let records = self.checked_records_of(data)?;
        let mut keys = Buffer::empty();
        keys.extend(records.iter().map(|&(key, _)| key));
        let load = NodeContents::new(self.limits, data, &records, &keys);
        self.shrink_or_merge(&frozen, &load, self.limits.fill)?;
        Ok(true)
    }

    /// Rebuilds the subtree of the inner node at `head`, to which `low` is the lowest key that is routed, if that saves
    /// space. `false` if it does not, or if another change is in the way.
    ///
    /// | step | durable state after it | recovery |
    /// |---|---|---|
    /// | 1. freeze all data nodes of the subtree | the old nodes | nothing |
    /// | 2. write the new nodes; flush, fence | the old nodes; new nodes that are unreachable | sweeps the new nodes |
    /// | 3. store the link to the new subtree (commit, in `relink_inner`) | the new nodes | sweeps the old nodes |
    /// | 4. retire the old nodes, open the new ones for writers | the new nodes | sweeps the old nodes |
    fn rebuild(&self, low: u64, head: Offset) -> Result<bool> {
        let _guard = epochs::pin();
        let steps = self.path_to(low)?.steps;
        let Some(at) = steps.iter().position(|step| step.inner.head == head) else {
            return Ok(false);
        };
        let (above, inner) = (steps[..at].last(), steps[at].inner);
        let Some((frozen, records, sizes)) = self.freeze_subtree(inner)? else {
            return Ok(false);
        };
        let mut keys = Buffer::empty();
        keys.extend(records.iter().map(|&(key, _)| key));
        let range = (inner.low, inner.high);
        let plan = self.limits.plan_tree(&keys, range, self.limits.fill, 1);
        let plan = match above {
            Some(_) => with_empty_margins(self.limits, plan, range.0, range.1),
            None => plan,
        };
        let mut wanted = Sizes::default();
        wanted.add_plan(&plan);
        if !wanted.is_worth_replacing(&sizes, above.is_none()) {
            return Ok(false);
        }
        let mut unpublished = UnpublishedNodes::new(self);
        let (link, child) = unpublished.build_subtree(&plan, &records, range, inner.depth)?;
        self.pm.fence();
        self.replace_subtree(above, inner, &frozen, (link, child), unpublished)
    }

    /// Replaces a subtree whose data nodes are frozen by new nodes; `false` if another change has replaced its inner node
    /// meanwhile.
    fn replace_subtree(
        &self,
        above: Option<&Step<'_>>,
        inner: &InnerNode,
        frozen: &[FrozenNode<'_>],
        (link, child): (Link, Child),
        unpublished: UnpublishedNodes<'_>,
    ) -> Result<bool> {
        let _above = match above {
            Some(step) => lock(&step.inner.changing),
            None => lock(&self.changing_root),
        };
        if inner.is_dead() || !self.is_child(above, inner) {
            return Ok(false);
        }
        let mut inners = Vec::new();
        if self.lock_subtree(inner, &mut inners) != frozen.len() {
            // A mirror has been released meanwhile, or the subtree is damaged.
            return Ok(false);
        }
        self.pm.note("subtree rebuilt", u64::from(above.is_none()));
        self.relink_inner(above, link, child)?;
        for (inner, _slots) in &inners {
            self.retire_inner(inner);
        }
        for node in frozen {
            self.retire_data(node.data);
        }
        unpublished.open_for_writers();
        Ok(true)
    }

    /// Freezes all data nodes below an inner node, and returns them with their records and the sizes of all nodes; `None`
    /// if another change keeps one of them frozen for too long, or the records are too many.
    fn freeze_subtree(&self, inner: &InnerNode) -> Result<Option<FrozenSubtree<'_>>> {
        let (mut frozen, mut records) = (Vec::new(), Vec::new());
        let (mut sizes, mut inners) = (Sizes::default(), BTreeSet::new());
        let (mut from, mut wait, mut waits) = (inner.low, Wait::default(), 0);
        loop {
            let Path { steps, data } = self.path_to(from)?;
            let Some(node) = self.freeze(data) else {
                waits += 1;
                if waits > MAX_FREEZE_WAITS {
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
            records.append(&mut self.checked_records_of(data)?);
            if records.len() > 2 * REBUILD_MAX_RECORDS {
                return Ok(None);
            }
            match data.high.checked_add(1) {
                Some(next) if next <= inner.high => from = next,
                _ => return Ok(Some((frozen, records, sizes))),
            }
        }
    }

    /// Locks the slots of an inner node and of all inner nodes below, from above, and returns the number of data nodes
    /// below that have a mirror.
    pub(super) fn lock_subtree<'a>(
        &'a self,
        inner: &'a InnerNode,
        inners: &mut Vec<(&'a InnerNode, MutexGuard<'a, ()>)>,
    ) -> usize {
        inners.push((inner, lock(&inner.changing)));
        let (mut count, mut last) = (0, Child::COLD);
        // The mirror, not the durable slots: if these were damaged, a node might be locked twice, which is a deadlock.
        for slot in 0..inner.radix.slots() {
            let child = inner.child(slot);
            if child == last || child.is_cold() {
                continue;
            }
            last = child;
            if child.is_inner() {
                // SAFETY: the caller is pinned, so the node is not freed before it unpins (apex I5).
                count += self.lock_subtree(unsafe { &*child.as_inner() }, inners);
            } else {
                count += 1;
            }
        }
        count
    }
}

/// All data nodes below an inner node, frozen; their records in ascending order; and the sizes of all nodes.
type FrozenSubtree<'a> = (Vec<FrozenNode<'a>>, Vec<Record>, Sizes);

/// Total bytes of the blocks of each size.
#[derive(Clone, Default)]
struct Sizes([u64; CLASSES]);

impl Sizes {
    fn add(&mut self, bytes: u64) {
        self.0[(bytes / SMALLEST_BLOCK).trailing_zeros() as usize] += bytes;
    }

    fn add_data(&mut self, data: &DataNode) {
        self.add(data.bytes);
        data.extensions().for_each(|_| self.add(SMALLEST_BLOCK));
    }

    fn add_inner(&mut self, slots: usize) {
        self.add(SMALLEST_BLOCK);
        if slots > INLINE_SLOTS {
            self.add(slots_block_bytes(slots));
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

    /// Extents that the blocks take if they lie densely.
    fn extents(&self) -> u64 {
        self.0
            .iter()
            .map(|bytes| bytes.div_ceil(EXTENT_BYTES))
            .sum()
    }

    /// Whether blocks of these sizes should replace those of the sizes `now`, which may be all of the map.
    fn is_worth_replacing(&self, now: &Self, is_all: bool) -> bool {
        self.bytes() * 100 <= now.bytes() * REBUILD_MAX_PERCENT
            || is_all && self.extents() < now.extents() && self.bytes() <= now.bytes() * 5 / 4
    }
}
