//! Building nodes that are not reachable yet.
//!
//! A structure change never changes a reachable data node or moves its records in place. The change lays the records
//! out in a [`NodeImage`] in DRAM, streams the image to a new block of the pool with non-temporal stores, and makes the
//! mirror of the new node, all through [`UnpublishedNodes`]. Then the change fences, commits one word that makes the
//! new nodes reachable, points the mirrors to them, and opens them for writers. If the change fails or is abandoned
//! before its commit, dropping `UnpublishedNodes` frees the blocks and the mirrors; after a crash the sweep frees the
//! blocks.
//!
//! # How a data node is laid out
//!
//! The records are placed group by group and line pair by line pair in ascending order, each in the line pair of its
//! predicted slot. If more than 8 records are predicted in a line pair, the last ones are *displaced* to the next line
//! pair. If that one is full, too, its own last records may in turn move to the line pair behind it, over at most
//! [`MAX_SHIFTED_LINE_PAIRS`] line pairs, where this keeps a record out of the stash. So the records of a group ascend
//! from slot to slot, which ranges rely on (data I6); only the displaced records of the last line pair of a group lie
//! in the line pair before it. Records for which there is no free slot in their windows are *spilled* to the stash
//! array, and what does not fit there to extended stash blocks.

use super::Tree;
use super::data::{DataNode, State};
use super::format::{Format, marker_of};
use super::inner::{Child, InnerNode};
use super::layout::{
    DataGeometry, DataHeader, EXTENSION_SLOTS, Extension, GROUP_LINE_PAIRS, GROUP_SLOTS,
    HEADER_BYTES, INLINE_SLOTS, LINE_PAIR_SLOTS, Link, Offset, Radix, SMALLEST_BLOCK, WINDOW_SLOTS,
    window_of,
};
use super::plan::{DataPlan, InnerPlan, Plan};
use super::records::Buffer;
use crate::Result;
use crate::engines::blocks::Surplus;
use crate::pmem::Cell;
use std::ptr::NonNull;

/// Words of a block before the primary array.
const HEADER_WORDS: usize = HEADER_BYTES as usize / 8;
/// The word of the header that links to the first extended stash block.
pub(super) const EXTENSION_WORD: usize = std::mem::offset_of!(DataHeader, extension) / 8;

/// A key and a value.
pub(super) type Record = (u64, u64);

/// Most line pairs in a row of which each displaces a record so that one record stays out of the stash. Each displaced
/// record costs its lookups about one cache miss, and a record in the stash about four, so longer chains cost more than
/// they save.
const MAX_SHIFTED_LINE_PAIRS: usize = 3;

/// A data node as it will lie in its block, and what its mirror has to know.
pub(super) struct NodeImage {
    geometry: DataGeometry,
    pub(super) bytes: u64,
    high: u64,
    words: Buffer,
    /// Predicted slot, key and stash slot of every record in the stash array.
    stashed: Vec<(usize, u64, u32)>,
    /// For each group the number of its records and the bits of the line pairs with displaced records (data I4).
    groups: Vec<(usize, u64)>,
    /// Predicted slot and record of every record for which the stash array has no slot. They go to extended stash
    /// blocks.
    beyond_stash: Vec<(usize, Record)>,
}

impl NodeImage {
    /// Lays out `records`, in ascending order of their keys, in the data node of `plan`.
    pub(super) fn new(plan: &DataPlan, records: &[Record], format: Format) -> Self {
        // A data node of all keys would have no marker (data I3).
        assert!(
            plan.low > 0 || plan.high < u64::MAX,
            "a data node of all keys"
        );
        // The marker of this node would be zero in format 2. Every boundary between data nodes is a multiple of a power
        // of two above 1, so there is no such node.
        debug_assert!(plan.low > 1 || plan.high < u64::MAX);
        let geometry = DataGeometry {
            model: plan.model,
            primary: plan.primary,
            stash: plan.stash,
            low: plan.low,
            marker: marker_of(format, plan.low, plan.high),
        };
        let mut words = Buffer::of(plan.bytes as usize / 8);
        words[..HEADER_WORDS].copy_from_slice(&DataHeader::words(&geometry, format));
        for slot in words[HEADER_WORDS + geometry.primary * 2..].chunks_exact_mut(2) {
            slot.copy_from_slice(&[geometry.marker, 0]);
        }
        let mut image = Self {
            geometry,
            bytes: plan.bytes,
            high: plan.high,
            words,
            stashed: Vec::new(),
            groups: vec![(0, 0); geometry.primary.div_ceil(GROUP_SLOTS)],
            beyond_stash: Vec::new(),
        };
        image.place_records(records);
        image
    }

    /// Gives every record a slot, as the head of this file says.
    fn place_records(&mut self, records: &[Record]) {
        // For each line pair the index of the first record predicted there, and at last the number of records. At first
        // an entry is 0 if no record is predicted in the line pair before it.
        let mut bounds = vec![0; self.geometry.primary / LINE_PAIR_SLOTS + 1];
        for (i, &(key, _)) in records.iter().enumerate() {
            bounds[self.geometry.model.predict(key) / LINE_PAIR_SLOTS + 1] = i + 1;
        }
        for pair in 1..bounds.len() {
            bounds[pair] = bounds[pair].max(bounds[pair - 1]);
        }
        for group in 0..self.groups.len() {
            let first = group * GROUP_LINE_PAIRS;
            let last = (first + GROUP_LINE_PAIRS).min(bounds.len() - 1);
            self.place_group(records, group, &bounds[first..=last]);
        }
    }

    /// Gives the records of one group their slots. `bounds` has for each line pair of the group the index of the first
    /// record predicted there, and at last the end of the last line pair's records.
    fn place_group(&mut self, records: &[Record], group: usize, bounds: &[usize]) {
        let pairs = bounds.len() - 1;
        let own_records = |pair: usize| bounds[pair + 1] - bounds[pair];
        // How many displaced records of the line pair before it each line pair can take without spilling one: as many
        // as its own records leave free, and as many as it can displace in turn. The line pair behind the last one
        // belongs to another group and takes none.
        let mut can_take = [0; GROUP_LINE_PAIRS + 1];
        for _ in 0..MAX_SHIFTED_LINE_PAIRS {
            for pair in 1..pairs {
                let handed_on = own_records(pair).min(can_take[pair + 1]);
                can_take[pair] = (LINE_PAIR_SLOTS + handed_on).saturating_sub(own_records(pair));
            }
        }
        // The records that the line pair before displaces into this one.
        let mut carried = 0..0;
        for pair in 0..pairs {
            // The records that find no free slot here move on; and, to make room for those that come, no more than the
            // next line pair can take. Records that come and find no free slot all the same are spilled.
            let stay = own_records(pair)
                .saturating_sub(can_take[pair + 1])
                .max(LINE_PAIR_SLOTS.saturating_sub(carried.len()))
                .min(LINE_PAIR_SLOTS)
                .min(own_records(pair));
            let at = bounds[pair];
            let slot = group * GROUP_SLOTS + pair * LINE_PAIR_SLOTS;
            if carried.is_empty() {
                self.fill_line_pair(slot, &records[at..], stay);
            } else {
                let placed = carried.len().min(LINE_PAIR_SLOTS - stay);
                let spilled = carried.start + placed..carried.end;
                self.fill_line_pair(slot, &records[carried.start..], placed);
                for (slot, record) in (slot + placed..).zip(at..at + stay) {
                    self.set_slot(slot, records[record]);
                }
                spilled.for_each(|record| self.spill(records[record]));
            }
            carried = at + stay..bounds[pair + 1];
            if !carried.is_empty() {
                self.groups[group].1 |= DataNode::line_pair_bit(slot);
            }
        }
        // The last line pair of the group is full. The window of its records is this line pair and the one before,
        // where they come last.
        for &record in &records[carried] {
            match self.free_place(self.geometry.model.predict(record.0)) {
                Some(slot) => self.set_slot(slot, record),
                None => self.spill(record),
            }
        }
        self.groups[group].0 = bounds[pairs] - bounds[0];
    }

    /// Fills a line pair with the first `count` of `records`. The line pairs before this one have been filled, those
    /// behind it have not.
    #[inline(always)]
    fn fill_line_pair(&mut self, first: usize, records: &[Record], count: usize) {
        let free = [self.geometry.marker, 0];
        let slots = &mut self.words[HEADER_WORDS..].as_chunks_mut().0[first..self.geometry.primary];
        if let (Some(two_line_pairs), Some(pair)) = (
            slots.first_chunk_mut::<{ 2 * LINE_PAIR_SLOTS }>(),
            records.first_chunk::<LINE_PAIR_SLOTS>(),
        ) {
            // Copy 8 records at once, then overwrite those behind the first `count` with free slots, which may reach
            // into the next line pair.
            for (slot, &(key, value)) in two_line_pairs.iter_mut().zip(pair) {
                *slot = [key, value];
            }
            two_line_pairs[count..count + LINE_PAIR_SLOTS].fill(free);
        } else {
            slots[..LINE_PAIR_SLOTS].fill(free);
            for (slot, &(key, value)) in slots.iter_mut().zip(&records[..count]) {
                *slot = [key, value];
            }
        }
    }

    /// Puts a record into the stash.
    fn spill(&mut self, record: Record) {
        let predicted = self.geometry.model.predict(record.0);
        let slot = self.stashed.len();
        if slot < self.geometry.stash {
            self.set_slot(self.geometry.primary + slot, record);
            self.stashed.push((predicted, record.0, slot as u32));
        } else {
            self.beyond_stash.push((predicted, record));
        }
    }

    /// Whether enough of the stash is free for the node not to be full again at once: the next record finds a slot,
    /// whatever its predicted slot is.
    pub(super) fn has_spare_stash(&self) -> bool {
        let free = self.geometry.stash - self.stashed.len();
        self.beyond_stash.is_empty() && free >= (self.geometry.stash / 8).max(2)
    }

    /// Stores a record in a slot of the primary array or the stash array.
    fn set_slot(&mut self, slot: usize, (key, value): Record) {
        let at = HEADER_WORDS + slot * 2;
        self.words[at] = key;
        self.words[at + 1] = value;
    }

    /// The slot of its window for a record that found no room where it belongs.
    fn free_place(&self, predicted: usize) -> Option<usize> {
        let (first, free) = (window_of(predicted), self.geometry.marker);
        let keys = &self.words[HEADER_WORDS + first * 2..];
        let mut mask = 0;
        for slot in 0..WINDOW_SLOTS {
            mask |= u32::from(keys[slot * 2] == free) << (slot * 2);
        }
        choose_free_slot(mask, predicted - first).map(|slot| first + slot)
    }
}

/// Which free slot of a window a record gets. `free` has two bits for each slot, and the predicted slot is slot `at` of
/// the window: the next free slot of the line pair of the predicted slot, else the first free slot of this line pair,
/// else the first one of the other line pair. So most lookups find their key in the line pair of its predicted slot.
fn choose_free_slot(free: u32, at: usize) -> Option<usize> {
    const PAIR: u32 = LINE_PAIR_SLOTS as u32;
    let (pair, within) = (at as u32 & PAIR, at as u32 % PAIR);
    // The line pair of the predicted slot to the lower half of the word, and the predicted slot to the front of that
    // half.
    let turned = free.rotate_right(pair * 2);
    let order = u32::from((turned as u16).rotate_right(within * 2)) | turned & 0xffff_0000;
    let found = order.trailing_zeros() / 2;
    let in_pair = (found + within) % PAIR;
    let slot = if found < PAIR { in_pair } else { found } ^ pair;
    (order != 0).then_some(slot as usize)
}

/// Nodes that are not reachable yet, with their mirrors. Dropping them frees their blocks and mirrors, unless
/// [`open_for_writers`](Self::open_for_writers) has been called after the commit.
pub(super) struct UnpublishedNodes<'a> {
    tree: &'a Tree,
    blocks: Vec<(Offset, u64)>,
    mirrors: Vec<Child>,
}

/// A child that has been built: the first slot of its child group in the parent, the logarithm of the number of slots,
/// the link to the child, and its mirror.
pub(super) struct BuiltChild {
    pub(super) first: usize,
    pub(super) log: u32,
    pub(super) link: Link,
    pub(super) child: Child,
}

impl<'a> UnpublishedNodes<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            blocks: Vec::new(),
            mirrors: Vec::new(),
        }
    }

    /// Allocates a block that is freed with `self`.
    fn alloc(&mut self, bytes: u64) -> Result<Offset> {
        let offset = self.tree.blocks.alloc(bytes)?;
        self.blocks.push((offset, bytes));
        Ok(offset)
    }

    /// Allocates a block to which the contents of `old` can be moved, and which is freed with `self`; see
    /// [`Blocks::alloc_before`](crate::engines::blocks::Blocks::alloc_before).
    pub(super) fn alloc_before(
        &mut self,
        old: Offset,
        bytes: u64,
        surplus: &Surplus,
    ) -> Option<Offset> {
        let offset = self.tree.blocks.alloc_before(old, bytes, surplus)?;
        self.blocks.push((offset, bytes));
        Some(offset)
    }

    /// Takes over the mirror of a data node that was made elsewhere.
    pub(super) fn adopt(&mut self, data: Box<DataNode>) -> Child {
        let child = Child::data(NonNull::from(Box::leak(data)));
        self.mirrors.push(child);
        child
    }

    /// Takes over what another thread has built.
    pub(super) fn append(&mut self, mut other: Self) {
        self.blocks.append(&mut other.blocks);
        self.mirrors.append(&mut other.mirrors);
    }

    /// Opens the data nodes for writers, and gives them up to the tree: they are reachable, durably and through all
    /// mirrors (smo I2).
    pub(super) fn open_for_writers(mut self) {
        self.blocks.clear();
        for child in self.mirrors.drain(..) {
            if !child.is_inner() {
                // SAFETY: the mirror was made here and has not been freed.
                unsafe { &*child.as_data() }.set_state(State::Live);
            }
        }
    }

    /// Writes a data node with `records`, not fenced yet, and makes its mirror, which is frozen.
    pub(super) fn build_data_node(
        &mut self,
        plan: &DataPlan,
        records: &[Record],
    ) -> Result<(Link, Child)> {
        self.write_image(
            NodeImage::new(plan, records, self.tree.limits.format),
            records,
        )
    }

    /// Writes a data node that has been laid out, not fenced yet, and makes its mirror, which is frozen.
    pub(super) fn write_image(
        &mut self,
        mut image: NodeImage,
        records: &[Record],
    ) -> Result<(Link, Child)> {
        let (tree, geometry) = (self.tree, image.geometry);
        let offset = self.alloc(image.bytes)?;
        let extensions = self.build_extensions(&geometry, &image.beyond_stash)?;
        image.words[EXTENSION_WORD] = extensions.first().copied().unwrap_or(Offset::NONE).get();
        let cells = tree.cells(offset, image.words.len());
        tree.pm.stream(cells, &image.words);
        let mut data = DataNode::new(
            offset,
            image.bytes,
            &geometry,
            image.high,
            &extensions,
            tree.first_lock(offset),
        );
        data.built = (records.first().zip(records.last()))
            .map(|(first, last)| (records.len(), first.0, last.0));
        data.set_reviewed(records.len());
        data.is_in_order = true.into();
        // This comes before the overflow entries: adding them sets the stash bits.
        for (group, &(count, displaced)) in image.groups.iter().enumerate() {
            data.set_counted(group, count, displaced);
        }
        let in_stash = image.stashed.iter().copied();
        let beyond = image.beyond_stash.iter().zip(geometry.stash as u32..);
        let beyond = beyond.map(|(&(predicted, (key, _)), slot)| (predicted, key, slot));
        for (predicted, key, slot) in in_stash.chain(beyond) {
            data.mark_stash_taken(slot);
            data.add_overflow(predicted, key, slot);
        }
        let child = Child::data(NonNull::from(Box::leak(data)));
        self.mirrors.push(child);
        Ok((Link::data(offset), child))
    }

    /// Writes extended stash blocks for `records`, not fenced yet, and returns their offsets in the order of the chain.
    fn build_extensions(
        &mut self,
        geometry: &DataGeometry,
        records: &[(usize, Record)],
    ) -> Result<Vec<Offset>> {
        let parts: Vec<_> = records.chunks(EXTENSION_SLOTS).collect();
        let mut blocks = Vec::with_capacity(parts.len());
        for _ in &parts {
            blocks.push(self.alloc(SMALLEST_BLOCK)?);
        }
        for (i, part) in parts.iter().enumerate() {
            let next = blocks.get(i + 1).copied().unwrap_or(Offset::NONE);
            let records = part.iter().map(|&(_, record)| record);
            let block = self.tree.extension(blocks[i]);
            block.fill(self.tree.pm, next, geometry.marker, records);
        }
        Ok(blocks)
    }

    /// Writes the head and the slots of an inner node, not fenced yet, and returns the offsets of the head and of the
    /// slots.
    pub(super) fn write_inner_node(
        &mut self,
        radix: Radix,
        links: impl Iterator<Item = (usize, Link)>,
    ) -> Result<(Offset, Offset)> {
        let (tree, slots) = (self.tree, radix.slots());
        let mut words = vec![tree.limits.format.continued(); slots];
        for (first, link) in links {
            words[first] = link.0;
        }
        let head = self.alloc(SMALLEST_BLOCK)?;
        if slots <= INLINE_SLOTS {
            let inline = head + tree.inline_slots_offset();
            tree.inner_head(head).fill(tree.pm, radix, inline, &words);
            return Ok((head, inline));
        }
        let block = self.alloc(slots_block_bytes(slots))?;
        tree.pm.stream(tree.cells(block, slots), &words);
        tree.inner_head(head).fill(tree.pm, radix, block, &[]);
        Ok((head, block))
    }

    /// Makes the mirror of an inner node that has been written. Its slots are cold.
    pub(super) fn add_inner_mirror(
        &mut self,
        radix: Radix,
        (head, slots): (Offset, Offset),
        range: (u64, u64),
        depth: u32,
    ) -> &'a InnerNode {
        let inner = InnerNode::new(radix, head, slots, range, depth);
        let inner = NonNull::from(Box::leak(inner));
        self.mirrors.push(Child::inner(inner));
        // SAFETY: the mirror is freed with `self`, or after `open_for_writers` when no reader can hold it (apex I5);
        // the caller keeps the reference for less.
        unsafe { inner.as_ref() }
    }

    /// Writes the nodes of a plan, not fenced yet. `records` are those that the plan was made for.
    pub(super) fn build_subtree(
        &mut self,
        plan: &Plan,
        records: &[Record],
        range: (u64, u64),
        depth: u32,
    ) -> Result<(Link, Child)> {
        let plan = match plan {
            Plan::Data(plan) => return self.build_data_node(plan, &records[plan.first..plan.last]),
            Plan::Inner(plan) => plan,
        };
        let radix = plan.radix();
        let built = self.build_children(plan, 0..plan.children.len(), records, range, depth)?;
        self.build_inner_node_over(radix, &built, range, depth)
    }

    /// Writes the children `which` of a planned inner node, with all nodes below them, not fenced yet.
    pub(super) fn build_children(
        &mut self,
        plan: &InnerPlan,
        which: std::ops::Range<usize>,
        records: &[Record],
        (low, high): (u64, u64),
        depth: u32,
    ) -> Result<Vec<BuiltChild>> {
        let radix = plan.radix();
        let mut built = Vec::with_capacity(which.len());
        for i in which {
            let (first, log) = plan.child_group(i);
            let range = radix.range_of(first, log, low, high);
            let (link, child) =
                self.build_subtree(&plan.children[i].1, records, range, depth + 1)?;
            built.push(BuiltChild {
                first,
                log,
                link,
                child,
            });
        }
        Ok(built)
    }

    /// Writes an inner node over children that have been built, not fenced yet.
    pub(super) fn build_inner_node_over(
        &mut self,
        radix: Radix,
        built: &[BuiltChild],
        range: (u64, u64),
        depth: u32,
    ) -> Result<(Link, Child)> {
        let links = built.iter().map(|child| (child.first, child.link));
        let blocks = self.write_inner_node(radix, links)?;
        let inner = self.add_inner_mirror(radix, blocks, range, depth);
        for child in built {
            inner.set(child.first, child.log, child.child);
        }
        Ok((Link::inner(blocks.0), Child::inner(NonNull::from(inner))))
    }
}

impl Drop for UnpublishedNodes<'_> {
    fn drop(&mut self) {
        for child in self.mirrors.drain(..) {
            // SAFETY: the mirror was made here, and nobody else has it.
            unsafe { child.free_node() }
        }
        for (offset, bytes) in self.blocks.drain(..) {
            self.tree.blocks.free_now(offset, bytes);
        }
    }
}

/// Size of the block for this many slots of an inner node.
pub(super) fn slots_block_bytes(slots: usize) -> u64 {
    ((slots * size_of::<Cell>()) as u64).max(SMALLEST_BLOCK)
}

impl Extension {
    /// Fills an extended stash block that is not reachable yet, and flushes it.
    pub(super) fn fill(
        &self,
        pm: crate::pmem::Pm,
        next: Offset,
        marker: u64,
        records: impl Iterator<Item = Record>,
    ) {
        pm.store(&self.next, next.get());
        pm.store(&self.zero, 0);
        let records = records.chain(std::iter::repeat((marker, 0)));
        for (slot, (key, value)) in self.slots.iter().zip(records) {
            pm.store(&slot.key, key);
            pm.store(&slot.value, value);
        }
        pm.flush(self);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
