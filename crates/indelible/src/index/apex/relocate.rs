//! Moving blocks to the front of the pool: a node is copied as it is, and one store makes the copy count.
//!
//! | what moves | what holds still meanwhile | the store that commits it |
//! |---|---|---|
//! | a data node, and its extended stash blocks | the node is frozen | the slot of its parent |
//! | an inner node: its head, and its slots | its slots and those above are locked | the slot of its parent, or the catalog's root |

use super::Tree;
use super::blocks::Surplus;
use super::build::Aside;
use super::data::Data;
use super::inner::{Child, Inner};
use super::layout::{DataShape, INLINE_SLOTS, Link, Offset, SMALLEST_BLOCK};
use super::records::Buffer;
use super::smo::{Frozen, Step};
use crate::sync::lock;
use crate::{Result, reclaim};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Word of a data node's header that names the first extended stash block.
const EXTENSION_WORD: usize = super::build::EXTENSION_WORD;

/// What was moved, as the notes for the checker tell it.
#[derive(Clone, Copy)]
enum Moved {
    Data = 0,
    Inner = 1,
}

impl Tree {
    /// Moves blocks that lie in surplus extents to the front of the pool, if there is room. Returns whether any was moved.
    pub(super) fn move_blocks(&self, surplus: &Surplus) -> Result<bool> {
        let (mut from, mut has_moved, mut stuck) = (0, false, BTreeSet::new());
        loop {
            let _guard = reclaim::pin();
            let path = self.path_to(from)?;
            let inner = path.steps.iter().position(|step| {
                let inner = step.inner;
                let is_surplus = surplus.has(inner.head) || surplus.has(inner.durable_slots);
                is_surplus && !stuck.contains(&inner.head)
            });
            if let Some(at) = inner {
                let head = path.steps[at].inner.head;
                if self.move_inner(path.steps[..at].last(), path.steps[at].inner, surplus) {
                    has_moved = true;
                } else {
                    stuck.insert(head);
                }
                // The way to the data node is another one now.
                continue;
            }
            has_moved |= self.move_data(path.data, surplus)?;
            match path.data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(has_moved),
            }
        }
    }

    /// Moves a data node with its extended stash blocks, if one of these blocks is surplus and the node can be had.
    fn move_data(&self, data: &Data, surplus: &Surplus) -> Result<bool> {
        let mut blocks = data.extensions().chain([data.offset()]);
        if !blocks.any(|block| surplus.has(block)) {
            return Ok(false);
        }
        let Some(frozen) = self.freeze(data) else {
            return Ok(false);
        };
        let mut aside = Aside::new(self);
        let Some(extensions) = self.copy_extensions(&mut aside, data, surplus) else {
            return Ok(false);
        };
        self.move_frozen(&frozen, aside, &extensions, surplus)
    }

    /// Copies the extended stash blocks of a frozen node, not fenced; `None` if there is no place.
    fn copy_extensions(
        &self,
        aside: &mut Aside<'_>,
        data: &Data,
        surplus: &Surplus,
    ) -> Option<Vec<Offset>> {
        let mut copies = Vec::new();
        for block in data.extensions() {
            copies.push(aside.alloc_before(block, SMALLEST_BLOCK, surplus)?);
        }
        for (i, block) in data.extensions().enumerate() {
            let next = copies.get(i + 1).copied().unwrap_or(0);
            let slots = self.extension(block).slots.iter();
            let records = slots.map(|slot| (slot.key.load(), slot.value.load()));
            let copy = self.extension(copies[i]);
            copy.fill(self.pm, next, data.marker(), records);
        }
        Some(copies)
    }

    /// Copies a frozen node, whose extended stash blocks have been copied, to the front of the pool.
    fn move_frozen(
        &self,
        frozen: &Frozen<'_>,
        mut aside: Aside<'_>,
        extensions: &[Offset],
        surplus: &Surplus,
    ) -> Result<bool> {
        let data = frozen.data;
        let Some(offset) = aside.alloc_before(data.offset(), data.bytes, surplus) else {
            return Ok(false);
        };
        let count = data.bytes as usize / 8;
        let mut words = Buffer::empty();
        words.extend(
            self.cells(data.offset(), count)
                .iter()
                .map(|cell| cell.load()),
        );
        words[EXTENSION_WORD] = extensions.first().copied().unwrap_or(0);
        self.pm.stream(self.cells(offset, count), &words);
        self.pm.fence();
        let child = aside.adopt(self.copy_of(data, offset, extensions));
        loop {
            let path = self.path_to(data.low)?;
            let group = self.group(&path);
            let Some(_slots) = self.lock_group(group, data) else {
                // The parent was replaced meanwhile.
                continue;
            };
            self.pm.note("node moved", Moved::Data as u64);
            self.relink(group, Link::data(offset), child);
            self.retire_data(data);
            aside.open();
            return Ok(true);
        }
    }

    /// The mirror of a copy of a frozen node: all records are in the same slots.
    fn copy_of(&self, data: &Data, offset: Offset, extensions: &[Offset]) -> Box<Data> {
        let shape = DataShape {
            model: data.model,
            primary: data.primary as usize,
            stash: data.stash as usize,
            low: data.low,
            marker: data.marker(),
        };
        let mut copy = Data::new(offset, data.bytes, &shape, data.high, extensions);
        for slot in 0..data.stash_slots() {
            let key = data.stash_at(slot).map(|at| self.slot_at(at).key.load());
            if let Some(key) = key.filter(|&key| key != data.marker()) {
                copy.take_stash(slot);
                copy.add_overflow(data.model.predict(key), key, slot);
            }
        }
        copy.resemble(data);
        copy
    }

    /// Copies an inner node to the front of the pool; `false` if there is no place, or it is not where it was.
    fn move_inner(&self, above: Option<&Step<'_>>, inner: &Inner, surplus: &Surplus) -> bool {
        let _above = match above {
            Some(step) => lock(&step.inner.changing),
            None => lock(&self.changing_root),
        };
        let _slots = lock(&inner.changing);
        if inner.is_dead() || !self.is_child(above, inner) {
            return false;
        }
        let mut aside = Aside::new(self);
        let Some(blocks) = self.copy_inner(&mut aside, inner, surplus) else {
            return false;
        };
        let copy = aside.mirror(inner.radix, blocks, (inner.low, inner.high), inner.depth);
        for slot in 0..inner.radix.slots() {
            copy.set_one(slot, inner.child(slot));
        }
        for (new, old) in [(&copy.nodes, &inner.nodes), (&copy.splits, &inner.splits)] {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.pm.fence();
        self.pm.note("node moved", Moved::Inner as u64);
        let (link, child) = (Link::inner(blocks.0), Child::inner(NonNull::from(copy)));
        self.relink_inner(above, link, child);
        self.retire_inner(inner);
        aside.open();
        true
    }

    /// Copies the head and the slots of an inner node, which are locked, not fenced.
    fn copy_inner(
        &self,
        aside: &mut Aside<'_>,
        inner: &Inner,
        surplus: &Surplus,
    ) -> Option<(Offset, Offset)> {
        let mut words = Buffer::empty();
        words.extend(self.durable_slots(inner).iter().map(|slot| slot.load()));
        let head = aside.alloc_before(inner.head, SMALLEST_BLOCK, surplus)?;
        if words.len() <= INLINE_SLOTS {
            let inline = head + self.inline_at();
            (self.inner_head(head)).fill(self.pm, inner.radix, inline, &words);
            return Some((head, inline));
        }
        let bytes = super::build::block_for(words.len());
        let block = aside.alloc_before(inner.durable_slots, bytes, surplus)?;
        self.pm.stream(self.cells(block, words.len()), &words);
        (self.inner_head(head)).fill(self.pm, inner.radix, block, &[]);
        Some((head, block))
    }
}
