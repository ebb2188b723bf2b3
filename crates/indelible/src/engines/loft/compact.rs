//! How space comes back: inner nodes whose children have few records become data nodes, data nodes with few records become smaller, and
//! blocks in surplus extents are laid out anew nearer to the front.

use super::Index;
use super::build::Built;
use super::inner::Inner;
use super::layout::Slot;
use super::node::{Child, Kin, Node, load_move};
use super::plan::{Plan, Record, need_all_sizes};
use super::recover::keys_of;
use super::search::End;
use super::tuning::WIDE_WINDOW;
use crate::concurrency::epochs;
use crate::concurrency::sync::lock;
use crate::engines::blocks::Surplus;
use crate::engines::unless_full;
use crate::pmem::geometry::sized_in_tests;
use crate::pool::{EXTENT_BYTES, Offset};
use crate::{Error, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A node is laid out anew if it has fewer records than this share of its slots, in percent.
const COLD_PERCENT: usize = 64;
/// Slots per hundred records in a node that is laid out anew for space.
const COLD_EXPANSION: u64 = 125;
/// A map is sparse if the slots of its records would fill less than one part in so many of its extents.
const SPARSE_DIVISOR: u64 = 4;
/// A compaction because a write found no space, which may free nothing, takes one part in so many of the time at most.
const PAUSE_FACTOR: u32 = 8;
/// Rounds in which blocks are moved to the front, at most.
const ROUNDS: usize = 4;

/// Records of a subtree that is laid out anew because one of its inner nodes lies in a surplus extent: 1 MiB of records. An inner
/// node is moved together with all that lies beneath it, and above this size that costs more than the extent is worth: see [`most_to_rebuild`].
const CHEAP_TO_REBUILD: usize = sized_in_tests(1 << 16, 1 << 8);
/// Records of such a subtree, at most: they are held in memory meanwhile, 64 MiB.
const MOST_TO_REBUILD: usize = 1 << 22;

/// Records of a subtree, at most, that is laid out anew because of one of its inner nodes. If a single inner node lies at the end of the pool, all that is
/// free before it stays in the file; so as many records may be written as the file could be shorter by.
fn most_to_rebuild(surplus: &Surplus) -> usize {
    let records = surplus.bytes_behind_end() as usize / size_of::<Record>();
    records.clamp(CHEAP_TO_REBUILD, MOST_TO_REBUILD)
}

/// The last compaction because a write found no space.
#[derive(Default)]
pub(super) struct ForSpace {
    /// Extents that the map had afterwards, and the most records that it is known to have had meanwhile.
    extents: u64,
    records: u64,
    end: Option<Instant>,
    took: Duration,
}

impl ForSpace {
    /// Whether another one may free more, or is a small part of the time since this one.
    fn is_worth_another(&self, extents: u64, records: u64) -> bool {
        let has_less = extents > self.extents || records < self.records.div_ceil(2);
        has_less
            || self
                .end
                .is_none_or(|end| end.elapsed() >= self.took * PAUSE_FACTOR)
    }
}

impl Index {
    /// Compacts the map if a write finds no space and the records are few for its extents: slots of records that were removed are used again only after
    /// their nodes have been replaced. Threads that find no space at the same time wait for one of them.
    pub(super) fn compact_if_sparse(&self) -> Result<bool> {
        let before = self.blocks.extents();
        let mut last = lock(&self.last_for_space);
        let (extents, records) = (self.blocks.extents(), self.locks.total());
        if extents < before {
            // Another thread has compacted the map.
            return Ok(true);
        }
        let is_sparse =
            records * size_of::<Slot>() as u64 * SPARSE_DIVISOR < extents * EXTENT_BYTES;
        if !is_sparse || !self.locks.count.is_complete() || !last.is_worth_another(extents, records)
        {
            return Ok(false);
        }
        let begin = Instant::now();
        // Data nodes alone: they are replaced by what has been written already. An inner node gives its place to one that is empty, and while other threads
        // insert, the records beneath it may need more space there than there is.
        self.wait_for_copies();
        self.relay_nodes(None)?;
        self.blocks.give_back();
        *last = ForSpace {
            extents: self.blocks.extents(),
            records: records.max(self.locks.total()),
            end: Some(Instant::now()),
            took: begin.elapsed(),
        };
        Ok(last.extents < extents)
    }

    pub(super) fn compact_all(&self) -> Result<()> {
        self.wait_for_copies();
        self.for_each_child_of_root(|root, index| {
            self.merge_below(&mut vec![(root, index)], root.child(index))
        })?;
        self.relay_nodes(None)?;
        self.blocks.give_back();
        for _ in 0..ROUNDS {
            let surplus = self.blocks.surplus();
            if surplus.is_empty() {
                break;
            }
            self.wait_for_copies();
            self.relay_root(&surplus)?;
            self.for_each_child_of_root(|root, index| self.relay_inner(root, index, &surplus))?;
            self.relay_nodes(Some(&surplus))?;
            self.blocks.give_back();
        }
        Ok(())
    }

    /// Waits until no thread copies records for a move that has ended: until then the nodes beneath its target are not replaced (see
    /// [`Settling`](super::inner::Settling)), and a compaction leaves them as they are. A thread that is pinned does not wait.
    fn wait_for_copies(&self) {
        let _ = epochs::synchronize();
    }

    /// Lays the whole map out anew if the block of its root lies in a surplus extent. It is moved as a bulk load moves the root: see [`load`](Index::load).
    fn relay_root(&self, surplus: &Surplus) -> Result<()> {
        let _pinned = epochs::pin();
        let root = self.touched_root()?;
        if surplus.has(root.block.offset) {
            self.relay_all_beneath(None, root, surplus)?;
        }
        Ok(())
    }

    /// Calls `work` for each child of the root, pinned for each by itself: readers and writers free nothing while a thread is pinned.
    fn for_each_child_of_root(&self, work: impl Fn(&Inner, usize) -> Result<()>) -> Result<()> {
        for index in 0.. {
            let _pinned = epochs::pin();
            let root = self.touched_root()?;
            if index >= root.children.len() {
                break;
            }
            work(root, index)?;
        }
        Ok(())
    }

    /// Merges the children of inner nodes at and beneath `child`, to which `path` leads, the lowest first.
    fn merge_below<'a>(&'a self, path: &mut Vec<(&'a Inner, usize)>, child: Child) -> Result<()> {
        // SAFETY: the thread is pinned, and has loaded the child since.
        let Kin::Inner(inner) = (unsafe { child.kin::<'a>() }) else {
            return Ok(());
        };
        for index in 0..inner.children.len() {
            path.push((inner, index));
            let merged = self.merge_below(path, inner.child(index));
            path.pop();
            merged?;
        }
        let plan = self.cold_plan(None);
        let most = self.most_records(&plan) * 3 / 4;
        let (Some(&(parent, index)), Some(records)) =
            (path.last(), self.records_within(child, most)?)
        else {
            return Ok(());
        };
        let Some(built) = self.build_if_space(inner, &records, &plan)? else {
            return Ok(());
        };
        // SAFETY: it has just been built.
        if let Kin::Node(_) = unsafe { built.child.kin() }
            && parent.settling.is_over()
        {
            self.pm.note("loft: nodes merged", 0);
            super::Changes::add(&self.changes.merges);
            self.move_inner(inner, parent.cell(index), &parent.children[index], built)?;
        }
        Ok(())
    }

    /// Lays subtrees anew at and beneath a child, so that no inner node in them lies in a surplus extent.
    fn relay_inner(&self, parent: &Inner, index: usize, surplus: &Surplus) -> Result<()> {
        let child = parent.child(index);
        // SAFETY: the thread is pinned, and has loaded the child since.
        let Kin::Inner(inner) = (unsafe { child.kin() }) else {
            return Ok(());
        };
        if !self.relay_all_beneath(Some((parent, index)), inner, surplus)? {
            let mut children = 0..inner.children.len();
            children.try_for_each(|index| self.relay_inner(inner, index, surplus))?;
        }
        Ok(())
    }

    /// Lays an inner node, or the root, anew with all that lies beneath it, if a block of its inner nodes lies in a surplus extent and there is space; `false` if
    /// too much lies beneath it. The caller is pinned.
    fn relay_all_beneath(
        &self,
        parent: Option<(&Inner, usize)>,
        inner: &Inner,
        surplus: &Surplus,
    ) -> Result<bool> {
        let whole = Child::inner(inner);
        let Some(before) = last_inner_in(whole, surplus) else {
            return Ok(true);
        };
        let Some(records) = self.records_within(whole, most_to_rebuild(surplus))? else {
            return Ok(false);
        };
        let mut plan = self.cold_plan(Some(surplus));
        plan.surplus = Some((surplus, before));
        let built = match parent {
            None => unless_full(self.build_root(&records, &plan).map(Some))?,
            Some(_) => self.build_if_space(inner, &records, &plan)?,
        };
        if let Some(built) = built
            && parent.is_none_or(|(parent, _)| parent.settling.is_over())
        {
            if parent.is_none() {
                self.pm.note("loft: root moved by a compaction", 0);
            }
            let (child, cell) = self.hanging(parent);
            self.move_inner(inner, cell, child, built)?;
        }
        Ok(true)
    }

    /// Nodes for the keys of an inner node, which has these records, unless there is no space.
    fn build_if_space(
        &self,
        inner: &Inner,
        records: &[Record],
        plan: &Plan<'_>,
    ) -> Result<Option<Built<'_>>> {
        unless_full(self.build((inner.low, inner.high), records, plan).map(Some))
    }

    /// The records at and beneath a child, in order, unless there are more than `most`, or some have not been touched, or are being moved with an inner node. The
    /// caller is pinned.
    fn records_within(&self, child: Child, most: usize) -> Result<Option<Vec<Record>>> {
        fn add(
            index: &Index,
            child: Child,
            most: usize,
            records: &mut Vec<Record>,
        ) -> Result<bool> {
            // SAFETY: the thread is pinned, and has loaded the child since.
            match unsafe { child.kin() } {
                Kin::Node(node) => records.extend(index.records_of(node)?),
                // A move that has found no space would be left in the middle of the next one, and an open finishes one at a time.
                Kin::Inner(inner) if load_move(&inner.moving).is_some() => return Ok(false),
                Kin::Inner(inner) => {
                    for below in 0..inner.children.len() {
                        if !add(index, inner.child(below), most, records)? {
                            return Ok(false);
                        }
                    }
                }
                Kin::Empty => {}
                Kin::Untouched | Kin::Closed => return Ok(false),
            }
            Ok(records.len() <= most)
        }
        let mut records = Vec::new();
        if !add(self, child, most, &mut records)? {
            return Ok(None);
        }
        records.sort_unstable();
        Ok(Some(records))
    }

    fn cold_plan<'a>(&self, surplus: Option<&'a Surplus>) -> Plan<'a> {
        let slot_bytes = size_of::<Slot>() as u64;
        let bytes = self.locks.total() * slot_bytes * COLD_EXPANSION / 100;
        Plan {
            expansion: COLD_EXPANSION,
            window: self.window_or(WIDE_WINDOW),
            // What is left may be little, and each size of blocks takes an extent at least.
            has_all_sizes: self.locks.count.is_complete() && need_all_sizes(bytes),
            surplus: surplus.map(|surplus| (surplus, Offset::MAX)),
            has_spared: true,
            ..self.plan()
        }
    }

    /// Lays out data nodes anew: those with few records, or those with a block in a surplus extent.
    fn relay_nodes(&self, surplus: Option<&Surplus>) -> Result<()> {
        let mut next = Some(0);
        while let Some(key) = next {
            let _pinned = epochs::pin();
            let spot = self.walk(Child(self.root.load(Ordering::Acquire)), key)?;
            let (_, high) = keys_of(&spot, key)?;
            if let (End::Node(node), Some((parent, index))) = (&spot.end, spot.parent) {
                if let Some(moved) = load_move(&node.moving) {
                    unless_full(self.finish_any(node, moved))?;
                } else if self.is_to_relay(node, surplus)? {
                    self.relay(node, parent, index, surplus)?;
                }
            }
            next = high.checked_add(1);
        }
        Ok(())
    }

    fn is_to_relay(&self, node: &Node, surplus: Option<&Surplus>) -> Result<bool> {
        Ok(match surplus {
            Some(surplus) => {
                let blocks = node.all_buckets().map(|bucket| bucket.block.offset);
                blocks
                    .chain([node.block.offset])
                    .any(|offset| surplus.has(offset))
            }
            None => {
                let records = self.records_of(node)?.len();
                let plan = self.cold_plan(None);
                let is_cold = records * 100 < node.slot_count * COLD_PERCENT;
                let (bytes, now) = (self.bytes_for(records, &plan), node.block.bytes);
                // A size that only larger maps have may be that of few blocks, and has an extent.
                is_cold && bytes < now || bytes != now && !self.is_used(now, &plan)
            }
        })
    }

    fn relay(
        &self,
        node: &Node,
        parent: &Inner,
        index: usize,
        surplus: Option<&Surplus>,
    ) -> Result<()> {
        let mut plan = self.cold_plan(surplus);
        if let Some((_, before)) = &mut plan.surplus {
            *before = node.block.offset;
        }
        loop {
            match self.move_node(node, parent, index, Some(plan)) {
                Err(Error::NoSpace(_)) if surplus.is_none() => {}
                done => return unless_full(done),
            }
            // In a full pool any smaller block than the one that the node has is a gain.
            let tried = plan
                .least_bytes
                .max(self.bytes_for(self.records_of(node)?.len(), &plan));
            match self.blocks.next_with_room(tried, node.block.bytes) {
                Some(bytes) => plan.least_bytes = bytes,
                None => return Ok(()),
            }
        }
    }
}

/// The last block of an inner node at or beneath a child that lies in a surplus extent, if there is one: what is built in place of all of them has to
/// lie before that one at least. The caller is pinned, and has loaded the child since.
fn last_inner_in(child: Child, surplus: &Surplus) -> Option<Offset> {
    // SAFETY: as the caller promises.
    let Kin::Inner(inner) = (unsafe { child.kin() }) else {
        return None;
    };
    let beneath = (0..inner.children.len())
        .filter_map(|index| last_inner_in(inner.child(index), surplus))
        .max();
    let own = Some(inner.block.offset).filter(|&offset| surplus.has(offset));
    own.max(beneath)
}
