//! New nodes, before anybody can reach them.

use super::Index;
use super::fit::{Layout, Places};
use super::inner::{Inner, Side, range_of};
use super::layout::{
    BUCKET_MARK, DATA_MARK, GROUP_LINES, HAS_PIECES, INNER_MARK, LEAST_ROOT_LOG_PARTS,
    LEAST_WITH_PIECES, LINE, LINE_SLOTS, MOST_LOG_PARTS, NO_CHILD, NO_LINK, SIZES, Slot, bare,
    block_bytes, bucket_bytes, bucket_slots, first_slot_line, inner_bytes, key_word, slot_lines,
    state,
};
use super::node::{Block, Bucket, Child, Node};
use super::plan::{Growth, LEAST_EXPANSION, Plan, Record, need_all_sizes};
use super::tuning::Samples;
use crate::Result;
use crate::engines::blocks::SMALLEST_BLOCK;
use crate::pmem::Pm;
use crate::pmem::geometry::{sized, sized_in_tests};
use crate::pool::Offset;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Nodes of fewer records are not divided because their model fits badly.
const LEAST_TO_DIVIDE: usize = sized_in_tests(128, 32);

/// Bytes of the largest data node of a map that is too small for blocks of all sizes.
const MOST_IN_SMALL_MAP: u64 = 32 << 10;

/// Records of which one part more is made where a range is divided because one line fits badly, as far as the smallest block has room for
/// parts.
const RECORDS_PER_PART: usize = 128;

/// How many times as many keys as its parent's parts have the parts of an inner node have that lies above or below these. So what keys that
/// ascend make is not a chain that grows with their number: after 16 such nodes there is no key above.
const OUTER_GROWTH: u64 = 16;

/// Blocks of the smallest size that only compactions and moves get: in a full pool of which many records have been removed, one block for a node with few
/// records is enough to free the larger ones that the records lay in. They are to suffice until a whole extent is free: it has eight of the largest nodes, and a
/// compaction replaces nodes in the order of their keys, wherever they lie. And a record that is copied for a move must find a place: until it has, its key cannot
/// be removed. 64 KiB.
pub(super) const SPARED_BLOCKS: usize = sized(256, 0);

/// Parts of the inner node that fills the smallest block, as a power of two.
const LEAST_LOG_PARTS: u32 = sized(4, 1) as u32;

/// Nodes that are built and not linked; dropping them frees them.
pub(super) struct Built<'a> {
    index: &'a Index,
    pub(super) child: Child,
    pub(super) word: u64,
    blocks: Vec<(Offset, u64)>,
    /// Blocks of what was built before in place of this: they are used first.
    held: Vec<(Offset, u64)>,
}

impl Built<'_> {
    /// Forgets the nodes, and holds their blocks for what is built in their place.
    pub(super) fn without_nodes(mut self) -> Self {
        let mut built = self.index.nothing_built();
        built.held.append(&mut self.blocks);
        built.held.append(&mut self.held);
        built
    }

    pub(super) fn holds_blocks(&self) -> bool {
        !self.held.is_empty()
    }

    /// Bytes of the block among those that are held which suits a data node best that is to have `wanted` bytes, and cannot have less than `least`: no
    /// other block may be free.
    fn best_held(&self, wanted: u64, least: u64) -> Option<u64> {
        let sizes = self.held.iter().map(|block| block.1);
        let larger = sizes.clone().filter(|&bytes| bytes >= wanted).min();
        larger.or_else(|| sizes.filter(|&bytes| bytes >= least).max())
    }

    /// The nodes are linked.
    pub(super) fn keep(mut self) -> (Child, u64) {
        self.blocks.clear();
        let kept = (self.child, self.word);
        self.child = Child::EMPTY;
        kept
    }
}

impl Drop for Built<'_> {
    fn drop(&mut self) {
        for &(offset, bytes) in self.blocks.iter().chain(&self.held) {
            self.index.blocks.free_now(offset, bytes);
        }
        // SAFETY: nobody else has seen the nodes.
        unsafe { self.index.free_tree(self.child) };
    }
}

impl Index {
    /// Lays out the root of a new map, and returns the word for it.
    pub(super) fn build_empty_root(&self) -> Result<u64> {
        let mut built = self.nothing_built();
        let log_parts = LEAST_ROOT_LOG_PARTS;
        let base = Shape {
            base: 0,
            shift: 64 - log_parts,
            log_parts,
        };
        let words = vec![NO_CHILD; (1 << log_parts) + 2];
        let plan = self.plan();
        let block = self.write_inner(&mut built, &plan, (0, u64::MAX), base, &words)?;
        let word = block.offset.get() | super::layout::IS_INNER;
        built.blocks.clear();
        Ok(word)
    }

    pub(super) fn nothing_built(&self) -> Built<'_> {
        Built {
            index: self,
            child: Child::EMPTY,
            word: NO_CHILD,
            blocks: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Builds a root for records, whose keys ascend.
    pub(super) fn build_root(&self, records: &[Record], plan: &Plan<'_>) -> Result<Built<'_>> {
        let mut built = self.nothing_built();
        let bytes = (records.len() * size_of::<Slot>()) as u64 * plan.expansion / 100;
        let has_all_sizes = plan.has_all_sizes || need_all_sizes(bytes);
        let mut plan = Plan {
            has_all_sizes,
            ..*plan
        };
        if has_all_sizes {
            // Otherwise the inserts that come later would fill all nodes at the same time.
            plan = plan.varied();
        }
        let plan = &plan;
        let per_node = self.most_records(plan).max(1);
        let wanted = (records.len() / per_node * 2).max(1).next_power_of_two();
        let log_parts = wanted.ilog2().clamp(LEAST_ROOT_LOG_PARTS, MOST_LOG_PARTS);
        let shape = Shape {
            base: 0,
            shift: 64 - log_parts,
            log_parts,
        };
        (built.child, built.word) =
            self.build_inner(&mut built, (0, u64::MAX), shape, records, plan)?;
        Ok(built)
    }

    /// Builds nodes for a range of keys, which lie in one eighth of the domain, and the records in it, whose keys ascend. What has been
    /// written is durable after the next fence.
    pub(super) fn build(
        &self,
        range: (u64, u64),
        records: &[Record],
        plan: &Plan<'_>,
    ) -> Result<Built<'_>> {
        self.build_in(self.nothing_built(), range, records, plan)
    }

    /// [`build`](Self::build) that uses first the blocks that `built` holds, which has no nodes. Blocks that are left are freed with what is built, or when that
    /// is linked.
    pub(super) fn build_in<'a>(
        &self,
        mut built: Built<'a>,
        range: (u64, u64),
        records: &[Record],
        plan: &Plan<'_>,
    ) -> Result<Built<'a>> {
        (built.child, built.word) = self.build_part(&mut built, range, records, plan)?;
        Ok(built)
    }

    /// Bytes of the largest data node.
    fn most_bytes(&self, plan: &Plan<'_>) -> u64 {
        let most = self.options.data_bytes();
        match plan.has_all_sizes {
            true => most,
            false => most.min(MOST_IN_SMALL_MAP),
        }
    }

    /// Records of the largest data node when it is new.
    pub(super) fn most_records(&self, plan: &Plan<'_>) -> usize {
        let slots = slot_lines(self.most_bytes(plan), false) * LINE_SLOTS as u64;
        (slots * 100 / plan.expansion) as usize
    }

    fn build_part(
        &self,
        built: &mut Built<'_>,
        range: (u64, u64),
        records: &[Record],
        plan: &Plan<'_>,
    ) -> Result<(Child, u64)> {
        let (fitted, is_held) = self.fitted(built, range.0, records.len(), plan);
        // What was divided before is divided again if none of its blocks has room for all.
        let is_divided = built.holds_blocks() && !is_held && records.len() > LEAST_TO_DIVIDE;
        if !is_divided && let Some(layout) = self.lay_out(range, records, &fitted) {
            return self.write_node(built, range, records, &fitted, layout);
        }
        let shape = self.divide(range, records, plan);
        let of_children = Plan {
            side: Side::Part,
            ..*plan
        };
        self.build_inner(built, range, shape, records, &of_children)
    }

    /// The plan of a data node, such that the node gets one of the blocks that are held, if there are any that are large enough; and whether there are.
    fn fitted<'p>(
        &self,
        built: &Built<'_>,
        low: u64,
        records: usize,
        plan: &Plan<'p>,
    ) -> (Plan<'p>, bool) {
        let wanted = self.bytes_for_node(low, records, plan);
        let mut plan = *plan;
        let dense = Plan {
            expansion: LEAST_EXPANSION,
            varies: false,
            ..plan
        };
        let best = match built.holds_blocks() {
            true => built.best_held(wanted, self.bytes_for(records, &dense)),
            false => None,
        };
        if let Some(bytes) = best {
            plan.least_bytes = bytes;
            plan.varies &= wanted <= bytes;
            while self.bytes_for_node(low, records, &plan) > bytes
                && plan.expansion > LEAST_EXPANSION
            {
                plan.expansion = (plan.expansion - 5).max(LEAST_EXPANSION);
            }
        }
        (plan, best.is_some())
    }

    /// Whether data nodes below the largest have blocks of this size.
    pub(super) fn is_used(&self, bytes: u64, plan: &Plan<'_>) -> bool {
        match plan.has_all_sizes {
            true => self.has_stepped_sizes || bytes.is_power_of_two(),
            false => block_bytes(bytes) == bytes && bytes <= MOST_IN_SMALL_MAP,
        }
    }

    /// Bytes of the block of a data node for so many records.
    pub(super) fn bytes_for(&self, records: usize, plan: &Plan<'_>) -> u64 {
        let slots = (records as u64 * plan.expansion / 100).max(1);
        let most = self.most_bytes(plan);
        let sizes = SIZES.iter().map(|&size| u64::from(size));
        let mut sizes = sizes.filter(|&bytes| bytes < most && self.is_used(bytes, plan));
        let has_room = |&bytes: &u64| {
            bytes >= plan.least_bytes && slot_lines(bytes, false) * LINE_SLOTS as u64 >= slots
        };
        sizes.find(has_room).unwrap_or(most)
    }

    /// Bytes of the block of a data node with this lowest key and so many records.
    pub(super) fn bytes_for_node(&self, low: u64, records: usize, plan: &Plan<'_>) -> u64 {
        let varied = Plan {
            expansion: plan.expansion_at(low),
            ..*plan
        };
        self.bytes_for(records, &varied)
    }

    /// How one data node could hold the records, if that is better than to divide them.
    fn lay_out(
        &self,
        (low, high): (u64, u64),
        records: &[Record],
        plan: &Plan<'_>,
    ) -> Option<Layout> {
        if records.len() > self.most_records(plan) {
            return None;
        }
        let bytes = self.bytes_for_node(low, records.len(), plan);
        let one_line = Layout::new(bytes, (low, high), records, plan);
        if one_line.fits(records) {
            return Some(one_line);
        }
        // Where keys ascend, most of them lie above all pieces soon: smaller nodes are replaced sooner.
        let can_have_pieces =
            self.has_pieces && bytes >= LEAST_WITH_PIECES && plan.growth == Growth::Inside;
        let stays = records.len() < LEAST_TO_DIVIDE;
        match can_have_pieces {
            true => Some(one_line.with_pieces(records, plan))
                .filter(|layout| stays || layout.fits(records)),
            false => stays.then_some(one_line),
        }
    }

    /// Whether one model would fit the records if there were a node large enough for them.
    fn fits_one_model(&self, range: (u64, u64), records: &[Record], plan: &Plan<'_>) -> bool {
        let slots = records.len() as u64 * plan.expansion / 100;
        let bytes = (slots * size_of::<Slot>() as u64 + 2 * LINE).next_multiple_of(LINE);
        let one_line = Layout::new(bytes, range, records, plan);
        let can_have_pieces = self.has_pieces && one_line.lines < u64::from(u16::MAX);
        one_line.fits(records)
            || can_have_pieces && one_line.with_pieces(records, plan).fits(records)
    }

    /// How records are divided among the parts of an inner node.
    fn divide(&self, (low, high): (u64, u64), records: &[Record], plan: &Plan<'_>) -> Shape {
        let (first, last) = (records[0].0, records[records.len() - 1].0);
        let most = self.most_records(plan).max(1);
        let wanted = match records.len() > most && self.fits_one_model((low, high), records, plan) {
            true => records.len() * 2 / most,
            false => (records.len() * 2 / most).max(records.len() / RECORDS_PER_PART),
        };
        let log_parts = wanted.max(2).next_power_of_two().ilog2();
        let log_parts = log_parts.clamp(LEAST_LOG_PARTS, MOST_LOG_PARTS);
        let fit = |from: u64, to: u64| {
            let bits = 64 - (to - from).leading_zeros();
            Shape {
                base: from,
                shift: bits.saturating_sub(log_parts),
                log_parts: log_parts.min(bits),
            }
        };
        match plan.side {
            Side::Above { span } => {
                let reach = low.saturating_add(span.saturating_mul(OUTER_GROWTH));
                fit(low, last.max(reach.min(high)))
            }
            Side::Below { span } => {
                let reach = high.saturating_sub(span.saturating_mul(OUTER_GROWTH));
                fit(first.min(reach.max(low)), high)
            }
            Side::Part if last - first > (high - low) / 2 => fit(low, high),
            Side::Part => fit(first, last),
        }
    }

    fn build_inner(
        &self,
        built: &mut Built<'_>,
        range: (u64, u64),
        shape: Shape,
        records: &[Record],
        plan: &Plan<'_>,
    ) -> Result<(Child, u64)> {
        let parts = (1 << shape.log_parts) + 2;
        let (mut words, mut children) = (Vec::with_capacity(parts), Vec::with_capacity(parts));
        let result = (0..parts).try_for_each(|part| {
            let part = range_of(range, (shape.base, shape.shift, shape.log_parts), part);
            let of_part = part.map_or(&[][..], |(low, high)| {
                let from = records.partition_point(|record| record.0 < low);
                let to = records.partition_point(|record| record.0 <= high);
                &records[from..to]
            });
            let (child, word) = match (part, of_part) {
                (None, _) | (_, []) => (Child::EMPTY, NO_CHILD),
                (Some(range), records) => self.build_part(built, range, records, plan)?,
            };
            children.push(child);
            words.push(word);
            Ok(())
        });
        let block = result.and_then(|()| self.write_inner(built, plan, range, shape, &words));
        match block {
            Ok(block) => {
                let children = children.iter().map(|child| AtomicUsize::new(child.0));
                let inner = Box::into_raw(Box::new(Inner::new(block, children.collect(), 0)));
                // SAFETY: it has just been made.
                let word = unsafe { (*inner).word() };
                Ok((Child::inner(inner), word))
            }
            Err(error) => {
                // SAFETY: nobody else has seen the children.
                children
                    .iter()
                    .for_each(|&child| unsafe { self.free_tree(child) });
                Err(error)
            }
        }
    }

    fn write_inner(
        &self,
        built: &mut Built<'_>,
        plan: &Plan<'_>,
        (low, high): (u64, u64),
        shape: Shape,
        words: &[u64],
    ) -> Result<Block> {
        let block = self.new_block(built, inner_bytes(shape.log_parts), plan)?;
        let mark = INNER_MARK | u64::from(shape.shift) << 8 | u64::from(shape.log_parts);
        let mut image = vec![mark, shape.base, low, high, NO_LINK, 1, 1, 1];
        image.extend(words);
        image.resize(block.bytes as usize / 8, NO_CHILD);
        self.fill(&block, &image, plan.stores);
        Ok(block)
    }

    fn write_node(
        &self,
        built: &mut Built<'_>,
        (low, high): (u64, u64),
        records: &[Record],
        plan: &Plan<'_>,
        layout: Layout,
    ) -> Result<(Child, u64)> {
        let block = self.new_block(built, layout.bytes, plan)?;
        let has_pieces = u64::from(layout.pieces.is_some()) * HAS_PIECES;
        let shape = layout.lines | layout.window << 32 | has_pieces;
        let model = layout.model;
        let mut image = vec![
            DATA_MARK | layout.bytes,
            low,
            high,
            model.first,
            model.span,
            model.multiplier,
            shape,
            NO_LINK,
        ];
        let links_at = image.len();
        let words_before = |pieces| (LINE * first_slot_line(layout.bytes, pieces)) as usize / 8;
        image.resize(words_before(false), NO_LINK);
        if let Some(pieces) = &layout.pieces {
            image.extend(pieces.words());
        }
        let slots_at = words_before(layout.pieces.is_some());
        image.resize(slots_at, NO_LINK);
        while image.len() < layout.bytes as usize / 8 {
            image.extend([bare(state::EMPTY), 0]);
        }
        let mut buckets: Vec<Vec<Block>> = Vec::new();
        let mut far = 0;
        if plan.stores {
            let mut overflow: Vec<Vec<Record>> = vec![Vec::new(); layout.groups()];
            let mut places = Places::of(&layout);
            for &(key, value) in records {
                let line = layout.line(key);
                match places.next(line) {
                    Some(slot) => {
                        let lines = slot / LINE_SLOTS as u64 - line;
                        far += usize::from(lines * 2 > layout.window);
                        let at = slots_at + slot as usize * 2;
                        (image[at], image[at + 1]) = (key_word(state::LIVE, key), value);
                    }
                    None => overflow[(line / GROUP_LINES) as usize].push((key, value)),
                }
            }
            for (group, records) in overflow.iter().enumerate() {
                far += records.len();
                let made = self.write_buckets(built, records, plan)?;
                if let Some(first) = made.first() {
                    image[links_at + group] = first.offset.get();
                }
                buckets.push(made);
            }
        }
        self.fill(&block, &image, plan.stores);
        let mut node = Node::new(block, plan.expansions)
            .expect("invariant: a model leads to lines of its node");
        node.samples = Samples::begin(plan.pattern);
        node.born = if plan.stores { records.len() as u32 } else { 0 };
        node.born_far.store(far as u32, Ordering::Relaxed);
        for (group, blocks) in buckets.into_iter().enumerate() {
            let mut next = std::ptr::null_mut();
            for block in blocks.into_iter().rev() {
                let bucket = Bucket::new(block, true);
                bucket.next.store(next, Ordering::Relaxed);
                next = Box::into_raw(Box::new(bucket));
            }
            node.groups[group].store(next, Ordering::Relaxed);
        }
        let word = node.word();
        Ok((Child::node(Box::into_raw(Box::new(node))), word))
    }

    /// Buckets for the records of a group that found no room in their windows, the first level first.
    fn write_buckets(
        &self,
        built: &mut Built<'_>,
        records: &[Record],
        plan: &Plan<'_>,
    ) -> Result<Vec<Block>> {
        let mut rest = records.to_vec();
        let mut blocks: Vec<Block> = Vec::new();
        let mut images: Vec<Vec<u64>> = Vec::new();
        while !rest.is_empty() {
            let bytes = bucket_bytes(blocks.len() as u32);
            let count = bucket_slots(bytes) as usize;
            let mut image = vec![BUCKET_MARK | bytes, NO_LINK];
            (0..count).for_each(|_| image.extend([bare(state::EMPTY), 0]));
            rest.retain(|&(key, value)| {
                let begin = super::search::start_in(count, key);
                let slots = (begin..count).chain(0..begin);
                let free = slots
                    .map(|slot| 2 + slot * 2)
                    .find(|&at| image[at] == bare(state::EMPTY));
                if let Some(at) = free {
                    (image[at], image[at + 1]) = (key_word(state::LIVE, key), value);
                }
                free.is_none()
            });
            blocks.push(self.new_block(built, bytes, plan)?);
            images.push(image);
        }
        for level in 0..blocks.len() {
            if let Some(next) = blocks.get(level + 1) {
                images[level][1] = next.offset.get().max(NO_LINK);
            }
            self.fill(&blocks[level], &images[level], plan.stores);
        }
        Ok(blocks)
    }

    /// An empty bucket, which is durable after the next fence.
    pub(super) fn new_bucket(&self, level: u32, has_spared: bool) -> Result<Block> {
        let bytes = bucket_bytes(level);
        let offset = self.alloc(bytes, has_spared)?;
        let block = self.block_at(offset, bytes);
        let mut image = vec![BUCKET_MARK | bytes, NO_LINK];
        (0..bucket_slots(bytes)).for_each(|_| image.extend([bare(state::EMPTY), 0]));
        self.fill(&block, &image, false);
        Ok(block)
    }

    /// Fills a new block. One without records is about to get some.
    fn fill(&self, block: &Block, image: &[u64], has_records: bool) {
        if block.offset.is_none() {
            return block.fill_heap(image);
        }
        let fill = if has_records {
            Pm::stream
        } else {
            Pm::fill_cached
        };
        fill(&self.pm, block.cells(), image);
    }

    fn alloc(&self, bytes: u64, has_spared: bool) -> Result<Offset> {
        let is_spared = bytes == SMALLEST_BLOCK && !has_spared;
        let spared = if is_spared { SPARED_BLOCKS } else { 0 };
        self.blocks.alloc_sparing(bytes, spared)
    }

    fn new_block(&self, built: &mut Built<'_>, bytes: u64, plan: &Plan<'_>) -> Result<Block> {
        if plan.on_heap {
            return Ok(Block::on_heap(bytes));
        }
        if let Some(at) = built.held.iter().position(|block| block.1 == bytes) {
            let block = built.held.swap_remove(at);
            built.blocks.push(block);
            return Ok(self.block_at(block.0, bytes));
        }
        let offset = match plan.surplus {
            None => self.alloc(bytes, plan.has_spared)?,
            Some((surplus, old)) => self
                .blocks
                .alloc_before(old, bytes, surplus)
                .ok_or_else(|| crate::Error::NoSpace("before the end of the pool".into()))?,
        };
        built.blocks.push((offset, bytes));
        Ok(self.block_at(offset, bytes))
    }

    /// The block at an offset that was allocated, or claimed.
    pub(super) fn block_at(&self, offset: Offset, bytes: u64) -> Block {
        let base = self.place.core.base();
        // SAFETY: by the condition above, the block lies in the mapping, which lives as long as the pool; blocks are aligned to their size,
        // up to that of an extent. All words of blocks are accessed atomically. Blocks are retired after what refers to them has been
        // unlinked, and so stay until threads that hold it have unpinned.
        unsafe { Block::in_pool(base.add(offset.get() as usize), offset, bytes) }
    }
}

/// An inner node to be.
#[derive(Clone, Copy)]
struct Shape {
    base: u64,
    shift: u32,
    log_parts: u32,
}
