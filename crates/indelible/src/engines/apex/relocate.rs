//! Moving blocks to the front of the pool: a node is copied as it is, and one store replaces it by the copy.
//!
//! | what moves | what keeps it unchanged meanwhile | the store that commits the move |
//! |---|---|---|
//! | a data node with its extended stash blocks | the node is frozen | to the slot of its parent (`relink`) |
//! | an inner node: its head and its slots | its slots and those of its parent are locked | to the slot of its parent, or to the root in the catalog (`relink_inner`) |
//!
//! Before the store, recovery sees the old node and sweeps the copy; after it, recovery sees the copy and sweeps the old
//! node.

use super::Tree;
use super::build::{EXTENSION_WORD, UnpublishedNodes, slots_block_bytes};
use super::data::DataNode;
use super::inner::{Child, InnerNode};
use super::layout::{DataGeometry, INLINE_SLOTS, Link, Offset, SMALLEST_BLOCK};
use super::records::Buffer;
use super::smo::{FrozenNode, Step};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::sync::lock;
use crate::engines::blocks::Surplus;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// What was moved: the variant of the structure change "node moved".
#[derive(Clone, Copy)]
enum Moved {
    Data = 0,
    Inner = 1,
}

impl Tree {
    /// Moves the nodes with blocks in surplus extents to the front of the pool, as far as there is space. Returns whether
    /// any has been moved.
    pub(super) fn move_blocks(&self, surplus: &Surplus) -> Result<bool> {
        let (mut from, mut has_moved, mut stuck) = (0, false, BTreeSet::new());
        loop {
            let _guard = epochs::pin();
            let path = self.path_to(from)?;
            let inner = path.steps.iter().position(|step| {
                let inner = step.inner;
                let is_surplus = surplus.has(inner.head) || surplus.has(inner.durable_slots);
                is_surplus && !stuck.contains(&inner.head)
            });
            if let Some(at) = inner {
                let head = path.steps[at].inner.head;
                if self.move_inner(path.steps[..at].last(), path.steps[at].inner, surplus)? {
                    has_moved = true;
                } else {
                    stuck.insert(head);
                }
                // The path to the data node may have changed.
                continue;
            }
            has_moved |= self.move_data(path.data, surplus)?;
            match path.data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(has_moved),
            }
        }
    }

    /// Moves a data node with its extended stash blocks, if one of these blocks lies in a surplus extent. `false` if none
    /// does, if the node is not live, or if there is no space.
    fn move_data(&self, data: &DataNode, surplus: &Surplus) -> Result<bool> {
        let mut blocks = data.extensions().chain([data.offset()]);
        if !blocks.any(|block| surplus.has(block)) {
            return Ok(false);
        }
        let Some(frozen) = self.freeze(data) else {
            return Ok(false);
        };
        let mut unpublished = UnpublishedNodes::new(self);
        let Some(extensions) = self.copy_extensions(&mut unpublished, data, surplus) else {
            return Ok(false);
        };
        self.move_frozen_node(&frozen, unpublished, &extensions, surplus)
    }

    /// Copies the extended stash blocks of a frozen node, not fenced yet; `None` if there is no space.
    fn copy_extensions(
        &self,
        unpublished: &mut UnpublishedNodes<'_>,
        data: &DataNode,
        surplus: &Surplus,
    ) -> Option<Vec<Offset>> {
        let mut copies = Vec::new();
        for block in data.extensions() {
            copies.push(unpublished.alloc_before(block, SMALLEST_BLOCK, surplus)?);
        }
        for (i, block) in data.extensions().enumerate() {
            let next = copies.get(i + 1).copied().unwrap_or(Offset::NONE);
            let slots = self.extension(block).slots.iter();
            let records = slots.map(|slot| (slot.key.load(), slot.value.load()));
            let copy = self.extension(copies[i]);
            copy.fill(self.pm, next, data.marker(), records);
        }
        Some(copies)
    }

    /// Moves a frozen node whose extended stash blocks have been copied.
    fn move_frozen_node(
        &self,
        frozen: &FrozenNode<'_>,
        mut unpublished: UnpublishedNodes<'_>,
        extensions: &[Offset],
        surplus: &Surplus,
    ) -> Result<bool> {
        let data = frozen.data;
        let Some(offset) = unpublished.alloc_before(data.offset(), data.bytes, surplus) else {
            return Ok(false);
        };
        let count = data.bytes as usize / 8;
        let mut words = Buffer::empty();
        words.extend(
            self.cells(data.offset(), count)
                .iter()
                .map(|cell| cell.load()),
        );
        words[EXTENSION_WORD] = extensions.first().copied().unwrap_or(Offset::NONE).get();
        self.pm.stream(self.cells(offset, count), &words);
        self.pm.fence();
        let child = unpublished.adopt(self.copy_of(data, offset, extensions));
        loop {
            let path = self.path_to(data.low)?;
            let group = self.child_group(&path)?;
            let Some(_slots) = self.lock_child_group(group, data)? else {
                // Another change has replaced the parent meanwhile.
                continue;
            };
            self.pm.note("node moved", Moved::Data as u64);
            self.relink(group, Link::data(offset), child);
            self.retire_data(data);
            unpublished.open_for_writers();
            return Ok(true);
        }
    }

    /// Makes the mirror of a copy of a frozen node: all records are in the same slots.
    fn copy_of(&self, data: &DataNode, offset: Offset, extensions: &[Offset]) -> Box<DataNode> {
        let geometry = DataGeometry {
            model: data.model,
            primary: data.primary as usize,
            stash: data.stash as usize,
            low: data.low,
            marker: data.marker(),
        };
        let mut copy = DataNode::new(
            offset,
            data.bytes,
            &geometry,
            data.high,
            extensions,
            self.first_lock(offset),
        );
        for slot in 0..data.stash_slots() {
            let key = data.stash_at(slot).map(|at| self.slot_at(at).key.load());
            if let Some(key) = key.filter(|&key| key != data.marker()) {
                copy.mark_stash_taken(slot);
                copy.add_overflow(data.model.predict(key), key, slot);
            }
        }
        copy.copy_statistics(data);
        copy
    }

    /// Moves an inner node; `false` if there is no space, or if another change has replaced the node meanwhile.
    fn move_inner(
        &self,
        above: Option<&Step<'_>>,
        inner: &InnerNode,
        surplus: &Surplus,
    ) -> Result<bool> {
        let _above = match above {
            Some(step) => lock(&step.inner.changing),
            None => lock(&self.changing_root),
        };
        let _slots = lock(&inner.changing);
        if inner.is_dead() || !self.is_child(above, inner) {
            return Ok(false);
        }
        let mut unpublished = UnpublishedNodes::new(self);
        let Some(blocks) = self.copy_inner(&mut unpublished, inner, surplus) else {
            return Ok(false);
        };
        let copy =
            unpublished.add_inner_mirror(inner.radix, blocks, (inner.low, inner.high), inner.depth);
        for slot in 0..inner.radix.slots() {
            copy.set_one(slot, inner.child(slot));
        }
        for (new, old) in [
            (&copy.nodes_at_replan, &inner.nodes_at_replan),
            (&copy.splits_since_replan, &inner.splits_since_replan),
        ] {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.pm.fence();
        self.pm.note("node moved", Moved::Inner as u64);
        let (link, child) = (Link::inner(blocks.0), Child::inner(NonNull::from(copy)));
        self.relink_inner(above, link, child)?;
        self.retire_inner(inner);
        unpublished.open_for_writers();
        Ok(true)
    }

    /// Copies the head and the slots of an inner node, which are locked; not fenced yet.
    fn copy_inner(
        &self,
        unpublished: &mut UnpublishedNodes<'_>,
        inner: &InnerNode,
        surplus: &Surplus,
    ) -> Option<(Offset, Offset)> {
        let mut words = Buffer::empty();
        words.extend(self.durable_slots(inner).iter().map(|slot| slot.load()));
        let head = unpublished.alloc_before(inner.head, SMALLEST_BLOCK, surplus)?;
        if words.len() <= INLINE_SLOTS {
            let inline = head + self.inline_slots_offset();
            (self.inner_head(head)).fill(self.pm, inner.radix, inline, &words);
            return Some((head, inline));
        }
        let bytes = slots_block_bytes(words.len());
        let block = unpublished.alloc_before(inner.durable_slots, bytes, surplus)?;
        self.pm.stream(self.cells(block, words.len()), &words);
        (self.inner_head(head)).fill(self.pm, inner.radix, block, &[]);
        Some((head, block))
    }
}
