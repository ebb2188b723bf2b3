//! Recovery: mirrors on first touch, and the sweep in the background.
//!
//! # What survives
//!
//! A crash leaves every reachable node whole (apex I2, I3; [`smo`](super::smo)). The mirrors in DRAM are lost. After an
//! open only the root has a mirror, and all its slots are cold. So an open takes the same time for any number of
//! records.
//!
//! # First touch
//!
//! The first operation that comes to a cold slot mirrors the child. The mirror of an inner node is an array of cold
//! slots. The mirror of a data node needs the overflow buckets of its stash, for which the stash has to be read: a
//! twentieth of the node, if its model fits. Nodes need no stamp of the generation that mirrored them, as in section 5
//! of the paper, since nothing in the pool points to DRAM.
//!
//! The blocks of a node are *claimed* before they are read, each once, and only if they were in use before the open. So
//! in a damaged pool no node gets two mirrors that know nothing of each other, and no block that is being written now
//! is taken for an old node (apex I4).
//!
//! # Sweep
//!
//! A background thread visits all data nodes from left to right, mirrors them, and counts the records of each group.
//! Afterwards all blocks that were not claimed are free: they belong to structure changes that a crash cut short, or
//! that were done but whose old nodes had not been freed.
//!
//! # Releasing mirrors
//!
//! [`Tree::release_mirrors`] makes the data nodes cold again, to save DRAM.

use super::build::slots_block_bytes;
use super::data::{DataNode, State};
use super::inner::{Child, InnerNode, group_log, group_of};
use super::layout::{
    DataGeometry, EXTENSION_SLOTS, GROUP_SLOTS, INLINE_SLOTS, LINE_PAIR_SLOTS, Link, Offset,
    SLOT_BYTES, SMALLEST_BLOCK,
};
use super::plan::{MAX_DATA_BYTES, MAX_LOG_SLOTS, MIN_DATA_BYTES};
use super::{Bug, Tree};
use crate::concurrency::epochs;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::lock;
use crate::pmem::Cell;
use crate::pmem::planted::planted;
use crate::{Error, Result};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Most inner nodes above a data node: far more than any tree has, but links that go in circles end here.
const MAX_LEVELS: u32 = 1024;

/// Most extended stash blocks of a data node: twice as many slots as the largest data node has. A chain of links that
/// goes in circles ends here.
pub(super) const MAX_EXTENSIONS: usize =
    2 * (MAX_DATA_BYTES / SLOT_BYTES) as usize / EXTENSION_SLOTS;

/// The error for a block that is not what a link says.
fn damaged(offset: Offset, what: &str) -> Error {
    Error::Damaged(format!("{offset:#x} is not {what} of this map"))
}

impl Tree {
    /// Mirrors the root.
    pub(super) fn open_root(&self) -> Result<()> {
        let link = Link(self.root_cell().load_acquire());
        if !link.is_inner() {
            return Err(damaged(link.offset(), "the root"));
        }
        let root = self.mirror_inner(link.offset(), (0, u64::MAX), 0)?;
        self.root.store(Box::into_raw(root), Ordering::Release);
        Ok(())
    }

    /// Mirrors the first node without a mirror on the path to `key`, if there is one. The caller is pinned.
    #[cold]
    pub(super) fn mirror_toward(&self, key: u64) -> Result<()> {
        let mut node = self.root();
        loop {
            let slot = node.radix.slot_of(key);
            let child = node.child(slot);
            if child.is_cold() {
                return self.mirror_child(node, slot);
            }
            if !child.is_inner() {
                return Ok(());
            }
            // SAFETY: the caller is pinned, so the node is not freed before it unpins (apex I5).
            node = unsafe { &*child.as_inner() };
        }
    }

    /// Mirrors the child of a cold slot.
    fn mirror_child(&self, node: &InnerNode, slot: usize) -> Result<()> {
        let _changing = lock(&node.changing);
        if node.is_dead() || !node.child(slot).is_cold() {
            return Ok(());
        }
        let slots = self.durable_slots(node);
        let Some((first, link)) = group_of(slots, slot) else {
            return Err(damaged(node.head, "an inner node"));
        };
        let log = group_log(slots, first);
        let continued = self.limits.format.continued();
        let is_whole = |slots: &[Cell]| slots.iter().all(|slot| slot.load() == continued);
        if slot >= first + (1 << log) || !is_whole(&slots[first + 1..first + (1 << log)]) {
            // The child groups do not tile the node (apex I2): a change that replaces the child would not find all
            // slots that lead to it.
            return Err(damaged(node.head, "an inner node"));
        }
        let mut child = node.child(first);
        if !node.is_in_group(first, log, child) {
            return Err(damaged(node.head, "an inner node"));
        }
        if child.is_cold() {
            child = self.mirror(link, node.range_of(first, log), node.depth + 1)?;
            node.set_one(first, child);
        }
        node.set_one(slot, child);
        Ok(())
    }

    /// Mirrors the node that a link leads to.
    fn mirror(&self, link: Link, range: (u64, u64), depth: u32) -> Result<Child> {
        if link.is_inner() {
            let inner = self.mirror_inner(link.offset(), range, depth)?;
            Ok(Child::inner(NonNull::from(Box::leak(inner))))
        } else {
            let data = self.mirror_data(link.offset(), range)?;
            Ok(Child::data(NonNull::from(Box::leak(data))))
        }
    }

    /// Mirrors an inner node. Its slots are cold.
    fn mirror_inner(&self, head: Offset, range: (u64, u64), depth: u32) -> Result<Box<InnerNode>> {
        let mut claims = Claims::of(self);
        let bytes = claims.add(head)?;
        if bytes != SMALLEST_BLOCK || depth > MAX_LEVELS {
            return Err(damaged(head, "an inner node"));
        }
        let Some((radix, slots)) = self.inner_head(head).read(MAX_LOG_SLOTS) else {
            return Err(damaged(head, "an inner node"));
        };
        let is_inline = slots == head + self.inline_slots_offset() && radix.slots() <= INLINE_SLOTS;
        if !is_inline && claims.add(slots)? != slots_block_bytes(radix.slots()) {
            return Err(damaged(slots, "an array of slots"));
        }
        claims.keep();
        Ok(InnerNode::new(radix, head, slots, range, depth))
    }

    /// Mirrors a data node. The mirror is live.
    fn mirror_data(&self, offset: Offset, range: (u64, u64)) -> Result<Box<DataNode>> {
        let mut claims = Claims::of(self);
        let bytes = claims.add(offset)?;
        let geometry = (bytes >= MIN_DATA_BYTES)
            .then(|| {
                self.data_header(offset)
                    .read(bytes, range.1, self.limits.format)
            })
            .flatten();
        let Some(geometry) = geometry else {
            return Err(damaged(offset, "a data node"));
        };
        if geometry.low != range.0 || range == (0, u64::MAX) {
            return Err(damaged(offset, "the data node of its range"));
        }
        let extensions = self.extensions_of(offset, &mut claims)?;
        let data = DataNode::new(
            offset,
            bytes,
            &geometry,
            range.1,
            &extensions,
            self.first_lock(offset),
        );
        self.index_stash(&data, &geometry)?;
        claims.keep();
        data.set_state(State::Live);
        Ok(data)
    }

    /// The offsets of a data node's extended stash blocks, in the order in which they were added.
    fn extensions_of(&self, offset: Offset, claims: &mut Claims<'_>) -> Result<Vec<Offset>> {
        let mut blocks = Vec::new();
        let mut next = Offset::from_word(self.data_header(offset).extension.load_acquire());
        while !next.is_none() {
            let bytes = claims.add(next)?;
            if bytes != SMALLEST_BLOCK || blocks.len() == MAX_EXTENSIONS {
                return Err(damaged(next, "an extended stash block"));
            }
            if planted(Bug::SweepForgetsExtensions) {
                self.blocks.unclaim(next, bytes);
            }
            blocks.push(next);
            next = Offset::from_word(self.extension(next).next.load_acquire());
        }
        // The block that was added last comes first in the chain, and its slots have the highest numbers.
        blocks.reverse();
        Ok(blocks)
    }

    /// Fills the stash bitmap and the overflow buckets of a mirror that nobody else has yet.
    fn index_stash(&self, data: &DataNode, geometry: &DataGeometry) -> Result<()> {
        let slots = match data.stash_slots() {
            _ if planted(Bug::ExtensionsForgotten) => data.stash,
            slots => slots,
        };
        for slot in 0..slots {
            let Some(at) = data.stash_at(slot) else {
                continue;
            };
            let key = self.slot_at(at).key.load();
            if key == data.marker() {
                continue;
            }
            if !(data.low..=data.high).contains(&key) {
                return Err(damaged(at, "a record of its data node"));
            }
            data.mark_stash_taken(slot);
            data.add_overflow(geometry.model.predict(key), key, slot);
        }
        Ok(())
    }

    /// Visits every data node from left to right: mirrors it and counts its records. Returns `false`, before the end,
    /// when `go_on` says so.
    pub(super) fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut from = 0;
        let mut wait = Wait::default();
        loop {
            if !go_on() {
                return Ok(false);
            }
            let _guard = epochs::pin();
            let data = self.path_to(from)?.data;
            if !self.count_groups(data, from) {
                // A structure change is replacing the node. What takes its place has to be visited.
                wait.step();
                continue;
            }
            match data.high.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        if planted(Bug::SweepForgetsRoot) {
            self.blocks.unclaim(self.root().head, SMALLEST_BLOCK);
        }
        Ok(true)
    }

    /// Counts the records of a data node from the key `from` on; `false` if the node is not live.
    fn count_groups(&self, data: &DataNode, from: u64) -> bool {
        let mut first_key = from;
        for group in 0..data.group_count() {
            let lock = self.lock_of(data, group * GROUP_SLOTS);
            let _locked = lock.version.lock();
            if data.state() != State::Live {
                return false;
            }
            let keys = self.count_records(data, group);
            let next = (group + 1 < data.group_count())
                .then(|| data.model.first_key_of((group + 1) * GROUP_SLOTS))
                .flatten()
                // Groups beyond the node's keys have no keys of their own.
                .filter(|&key| key <= data.high);
            let end = next.or_else(|| data.high.checked_add(1));
            self.locks.count.count_under(lock, first_key, end, |from| {
                keys.iter().filter(|&&key| key >= from).count()
            });
            match end {
                Some(end) => first_key = end,
                None => first_key = u64::MAX,
            }
        }
        true
    }

    /// Counts the records of a group, sets its displaced bits, and returns its keys. The group is locked.
    pub(super) fn count_records(&self, data: &DataNode, group: usize) -> Vec<u64> {
        let keys = self.keys_of(data, group);
        data.set_counted(group, keys.len(), self.displaced_bits_of(data, group));
        keys
    }

    /// The displaced bits of a group (data I4), computed from its records. The group is locked, or no writer writes.
    pub(super) fn displaced_bits_of(&self, data: &DataNode, group: usize) -> u64 {
        let predicted_of = |at| {
            let key = self.slot_at(at).key.load();
            (key != data.marker()).then(|| data.model.predict(key))
        };
        let in_window = data.slots_of(group).filter_map(|slot| {
            predicted_of(data.slot_at(slot))
                .filter(|predicted| predicted / LINE_PAIR_SLOTS != slot / LINE_PAIR_SLOTS)
        });
        let in_stash = data
            .overflow_of(group)
            .filter_map(|entry| predicted_of(data.stash_at(entry.stash_slot())?));
        let in_window = in_window.map(DataNode::line_pair_bit);
        let in_stash = in_stash.map(DataNode::stashed_bits);
        in_window
            .chain(in_stash)
            .fold(0, |displaced, bits| displaced | bits)
    }

    /// The keys of a group, in no order. The group is locked, or no writer writes.
    pub(super) fn keys_of(&self, data: &DataNode, group: usize) -> Vec<u64> {
        let in_window = data.slots_of(group).map(|slot| data.slot_at(slot));
        let in_stash = data
            .overflow_of(group)
            .filter_map(|entry| data.stash_at(entry.stash_slot()));
        in_window
            .chain(in_stash)
            .map(|at| self.slot_at(at).key.load())
            .filter(|&key| key != data.marker())
            .collect()
    }
}

/// The blocks of a node that is to be mirrored. If the node gets no mirror after all, the blocks are noted as claimed.
struct Claims<'a> {
    tree: &'a Tree,
    blocks: Vec<Offset>,
}

impl<'a> Claims<'a> {
    fn of(tree: &'a Tree) -> Self {
        let blocks = Vec::new();
        Self { tree, blocks }
    }

    /// Claims the block at an offset that was read from the pool, and returns its size. Only a claimed block may be
    /// read.
    fn add(&mut self, offset: Offset) -> Result<u64> {
        let blocks = &self.tree.blocks;
        let Some(bytes) = blocks.bytes_at(offset) else {
            return Err(damaged(offset, "a block"));
        };
        // A block without a mirror has been claimed before, or was allocated since the open.
        if !lock(&self.tree.blocks_without_mirror).remove(&offset) {
            blocks.claim_linked(offset, bytes)?;
        }
        self.blocks.push(offset);
        Ok(bytes)
    }

    /// The node has its mirror.
    fn keep(mut self) {
        self.blocks.clear();
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        lock(&self.tree.blocks_without_mirror).extend(self.blocks.drain(..));
    }
}

/// Releasing mirrors, to save DRAM.
impl Tree {
    /// Releases the mirrors of all data nodes that no structure change is working on, so that their slots are cold
    /// again. Returns the bytes of DRAM. Waits for the readers that may hold one, unless the thread is pinned itself.
    pub(super) fn release_mirrors(&self) -> u64 {
        let bytes = self.retire_data_mirrors();
        self.free_retired_mirrors();
        bytes
    }

    fn retire_data_mirrors(&self) -> u64 {
        let _guard = epochs::pin();
        let mut inners = vec![self.root()];
        let mut bytes = 0;
        while let Some(inner) = inners.pop() {
            let mut last = Child::COLD;
            for slot in 0..inner.radix.slots() {
                let child = inner.child(slot);
                if child == last || child.is_cold() {
                    continue;
                }
                last = child;
                // SAFETY: the caller is pinned, so the node is not freed before it unpins (apex I5); the slot is not
                // cold.
                unsafe {
                    if child.is_inner() {
                        inners.push(&*child.as_inner());
                    } else {
                        bytes += self.release_data_mirror(inner, slot, &*child.as_data());
                    }
                }
            }
        }
        bytes
    }

    /// Releases the mirror of a data node; `slot` is one of its slots. No information is lost: the node is frozen, so
    /// no writer changes the records or the stash until the slots are cold, and then the next operation makes a mirror
    /// from the pool. Readers may still be in the old mirror. They use the same locks as writers in the new one.
    fn release_data_mirror(&self, parent: &InnerNode, slot: usize, data: &DataNode) -> u64 {
        let Some(frozen) = self.freeze(data) else {
            return 0;
        };
        let _changing = lock(&parent.changing);
        let child = Child::data(NonNull::from(data));
        if parent.is_dead() || parent.child(slot) != child {
            return 0;
        }
        // The whole child group, also slots to the left of `slot`: they may have been cold when `slot` was found.
        let slots = self.durable_slots(parent);
        let Some((first, _)) = group_of(slots, slot) else {
            // Damage (apex I1): the mirror stays, as the pool no longer says where the node is.
            return 0;
        };
        let log = group_log(slots, first);
        if !parent.has_group(first, log, child) {
            // Damage since the node was mirrored: a slot that kept the pointer would lead to memory that is freed.
            return 0;
        }
        // A range that comes late takes its versions from the locks, which the next mirror uses too, but believes the flags of this one.
        data.is_in_order.store(false, Ordering::Relaxed);
        parent.set(first, log, Child::COLD);
        lock(&self.blocks_without_mirror).extend(data.extensions().chain([data.offset()]));
        let bytes = data.dram_bytes();
        frozen.data.set_state(State::Dead);
        self.retire_data_mirror(data);
        bytes
    }
}

impl Tree {
    /// Whether all children of the root are data nodes of the smallest size.
    pub(super) fn is_small(&self) -> bool {
        let root = self.root();
        self.durable_slots(root).iter().all(|slot| {
            let link = Link(slot.load_acquire());
            !link.is_inner() && self.blocks.bytes_at(link.offset()) == Some(MIN_DATA_BYTES)
        })
    }
}

// Overflow entries have room for the numbers of all stash slots (data I5).
const _: () = assert!((super::plan::MAX_DATA_BYTES / 16) as usize * 2 + EXTENSION_SLOTS < 1 << 20);
