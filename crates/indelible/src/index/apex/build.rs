//! Building nodes that nobody can reach yet.

use super::Tree;
use super::blocks::Surplus;
use super::data::{Data, State};
use super::format::{Format, marker_of};
use super::inner::{Child, Inner};
use super::layout::{
    DataHeader, DataShape, EXTENSION_SLOTS, Extension, GROUP, GROUP_PAIRS, HEADER_BYTES,
    INLINE_SLOTS, Link, Offset, PAIR_SLOTS, Radix, SMALLEST_BLOCK, WINDOW, window_of,
};
use super::plan::{DataPlan, InnerPlan, Plan};
use super::records::Buffer;
use crate::Result;
use crate::pmem::Cell;
use std::ptr::NonNull;

/// Words before the primary array.
const HEADER_WORDS: usize = HEADER_BYTES as usize / 8;
/// The word of the header that names the first extended stash block.
pub(super) const EXTENSION_WORD: usize = std::mem::offset_of!(DataHeader, extension) / 8;

/// A key and a value.
pub(super) type Record = (u64, u64);

/// How many pairs in a row make room for one record: each then has a record elsewhere, at a miss for whoever looks for it,
/// and a record in the stash costs four.
const CHAIN: usize = 3;

/// A data node as it will lie in its block.
pub(super) struct Image {
    shape: DataShape,
    pub(super) bytes: u64,
    high: u64,
    words: Buffer,
    /// Home, key and stash slot of every record that is not in its window.
    overflow: Vec<(usize, u64, u32)>,
    /// Records of each group, and the pairs of lines that have strays.
    groups: Vec<(usize, u64)>,
    /// Records for which the stash array has no room.
    rest: Vec<(usize, Record)>,
}

impl Image {
    pub(super) fn new(plan: &DataPlan, records: &[Record], format: Format) -> Self {
        // Else there would be no marker.
        assert!(
            plan.low > 0 || plan.high < u64::MAX,
            "a data node for all keys"
        );
        // Else the marker would be zero. Whatever divides the domain has a border above key 1.
        debug_assert!(plan.low > 1 || plan.high < u64::MAX);
        let shape = DataShape {
            model: plan.model,
            primary: plan.primary,
            stash: plan.stash,
            low: plan.low,
            marker: marker_of(format, plan.low, plan.high),
        };
        let mut words = Buffer::of(plan.bytes as usize / 8);
        words[..HEADER_WORDS].copy_from_slice(&DataHeader::words(&shape, format));
        for slot in words[HEADER_WORDS + shape.primary * 2..].chunks_exact_mut(2) {
            slot.copy_from_slice(&[shape.marker, 0]);
        }
        let mut image = Self {
            shape,
            bytes: plan.bytes,
            high: plan.high,
            words,
            overflow: Vec::new(),
            groups: vec![(0, 0); shape.primary.div_ceil(GROUP)],
            rest: Vec::new(),
        };
        image.place(records);
        image
    }

    /// Gives every record a slot. In each group they lie in order, but for strays of its last pair of lines: ranges rely on it.
    fn place(&mut self, records: &[Record]) {
        // By their homes, where the records of each pair of lines begin, and at last where they end. Pairs without any first
        // leave a 0 behind them.
        let mut bounds = vec![0; self.shape.primary / PAIR_SLOTS + 1];
        for (i, &(key, _)) in records.iter().enumerate() {
            bounds[self.shape.model.predict(key) / PAIR_SLOTS + 1] = i + 1;
        }
        for pair in 1..bounds.len() {
            bounds[pair] = bounds[pair].max(bounds[pair - 1]);
        }
        for group in 0..self.groups.len() {
            let first = group * GROUP_PAIRS;
            let last = (first + GROUP_PAIRS).min(bounds.len() - 1);
            self.place_group(records, group, &bounds[first..=last]);
        }
    }

    /// The same for a group. `bounds` say where the records of each of its pairs begin, and where the last one's end.
    fn place_group(&mut self, records: &[Record], group: usize, bounds: &[usize]) {
        let pairs = bounds.len() - 1;
        let own = |pair: usize| bounds[pair + 1] - bounds[pair];
        // How many records of the pair before each can take, so that none goes to the stash: as many as its own leave room for,
        // and as many as it can hand on of its own. Behind the last pair is another group, which takes none.
        let mut room = [0; GROUP_PAIRS + 1];
        for _ in 0..CHAIN {
            for pair in 1..pairs {
                let handed_on = own(pair).min(room[pair + 1]);
                room[pair] = (PAIR_SLOTS + handed_on).saturating_sub(own(pair));
            }
        }
        // Those that go on from the pair before.
        let mut carried = 0..0;
        for pair in 0..pairs {
            // As many go on as find no room here; and to make room for those that come, no more than the next pair can take.
            // Who comes and finds no room even so goes to the stash.
            let stay = own(pair)
                .saturating_sub(room[pair + 1])
                .max(PAIR_SLOTS.saturating_sub(carried.len()))
                .min(PAIR_SLOTS)
                .min(own(pair));
            let at = bounds[pair];
            let slot = group * GROUP + pair * PAIR_SLOTS;
            if carried.is_empty() {
                self.put_pair(slot, &records[at..], stay);
            } else {
                let lucky = carried.len().min(PAIR_SLOTS - stay);
                let unlucky = carried.start + lucky..carried.end;
                self.put_pair(slot, &records[carried.start..], lucky);
                for (slot, record) in (slot + lucky..).zip(at..at + stay) {
                    self.put(slot, records[record]);
                }
                unlucky.for_each(|record| self.put_aside(records[record]));
            }
            carried = at + stay..bounds[pair + 1];
            if !carried.is_empty() {
                self.groups[group].1 |= Data::pair_bit(slot);
            }
        }
        // Of the last pair: their window is that pair, which is full, and the one before, where they come last.
        for &record in &records[carried] {
            match self.room_for(self.shape.model.predict(record.0)) {
                Some(slot) => self.put(slot, record),
                None => self.put_aside(record),
            }
        }
        self.groups[group].0 = bounds[pairs] - bounds[0];
    }

    /// Fills a pair of lines with the first so many of `records`. The pairs before it have been filled, and those behind it
    /// have not.
    #[inline(always)]
    fn put_pair(&mut self, first: usize, records: &[Record], count: usize) {
        let free = [self.shape.marker, 0];
        let slots = &mut self.words[HEADER_WORDS..].as_chunks_mut().0[first..self.shape.primary];
        if let (Some(two_pairs), Some(pair)) = (
            slots.first_chunk_mut::<{ 2 * PAIR_SLOTS }>(),
            records.first_chunk::<PAIR_SLOTS>(),
        ) {
            // All of them, and behind those that count as many free slots, which may reach into the next pair.
            for (slot, &(key, value)) in two_pairs.iter_mut().zip(pair) {
                *slot = [key, value];
            }
            two_pairs[count..count + PAIR_SLOTS].fill(free);
        } else {
            slots[..PAIR_SLOTS].fill(free);
            for (slot, &(key, value)) in slots.iter_mut().zip(&records[..count]) {
                *slot = [key, value];
            }
        }
    }

    /// Puts a record into the stash.
    fn put_aside(&mut self, record: Record) {
        let home = self.shape.model.predict(record.0);
        let slot = self.overflow.len();
        if slot < self.shape.stash {
            self.put(self.shape.primary + slot, record);
            self.overflow.push((home, record.0, slot as u32));
        } else {
            self.rest.push((home, record));
        }
    }

    /// Whether the node would not be full again at once: the next record finds a place, wherever its home is.
    pub(super) fn has_room(&self) -> bool {
        let free = self.shape.stash - self.overflow.len();
        self.rest.is_empty() && free >= (self.shape.stash / 8).max(2)
    }

    fn put(&mut self, slot: usize, (key, value): Record) {
        let at = HEADER_WORDS + slot * 2;
        self.words[at] = key;
        self.words[at + 1] = value;
    }

    /// The slot that an insert would choose.
    fn room_for(&self, home: usize) -> Option<usize> {
        let (first, free) = (window_of(home), self.shape.marker);
        let keys = &self.words[HEADER_WORDS + first * 2..];
        let mut mask = 0;
        for slot in 0..WINDOW {
            mask |= u32::from(keys[slot * 2] == free) << (slot * 2);
        }
        choose(mask, home - first).map(|slot| first + slot)
    }
}

/// Which of the free slots of a window, two bits each, an insert takes whose home is `at` slots into the window: the next
/// one in the home's pair of lines, else the first one in that pair, else the first one in the other pair. So most lookups find
/// the key in the pair of its home. Without a branch: nobody can foresee which slots are free.
#[inline(always)]
pub(super) fn choose(free: u32, at: usize) -> Option<usize> {
    const PAIR: u32 = PAIR_SLOTS as u32;
    let (pair, within) = (at as u32 & PAIR, at as u32 % PAIR);
    // The home's pair to the lower half, and there its home to the front.
    let turned = free.rotate_right(pair * 2);
    let order = u32::from((turned as u16).rotate_right(within * 2)) | turned & 0xffff_0000;
    let found = order.trailing_zeros() / 2;
    let in_pair = (found + within) % PAIR;
    let slot = if found < PAIR { in_pair } else { found } ^ pair;
    (order != 0).then_some(slot as usize)
}

/// Nodes that are not reachable yet, with their mirrors; given back unless they are opened.
pub(super) struct Aside<'a> {
    tree: &'a Tree,
    blocks: Vec<(Offset, u64)>,
    mirrors: Vec<Child>,
}

/// A child that has been built: the first slot of its group, the logarithm of the group's size, and what it is.
pub(super) struct Built {
    pub(super) first: usize,
    pub(super) log: u32,
    pub(super) link: Link,
    pub(super) child: Child,
}

impl<'a> Aside<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        Self {
            tree,
            blocks: Vec::new(),
            mirrors: Vec::new(),
        }
    }

    fn alloc(&mut self, bytes: u64) -> Result<Offset> {
        let offset = self.tree.blocks.alloc(bytes)?;
        self.blocks.push((offset, bytes));
        Ok(offset)
    }

    /// A block to which the contents of `old` can be moved; see [`Blocks::alloc_before`](super::blocks::Blocks::alloc_before).
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

    /// Takes a mirror that was made elsewhere.
    pub(super) fn adopt(&mut self, data: Box<Data>) -> Child {
        let child = Child::data(NonNull::from(Box::leak(data)));
        self.mirrors.push(child);
        child
    }

    /// Takes over what another thread has built.
    pub(super) fn absorb(&mut self, mut other: Self) {
        self.blocks.append(&mut other.blocks);
        self.mirrors.append(&mut other.mirrors);
    }

    /// They are reachable now, also through all mirrors: from here on they may be written.
    pub(super) fn open(mut self) {
        self.blocks.clear();
        for child in self.mirrors.drain(..) {
            if !child.is_inner() {
                // SAFETY: made here and not freed since.
                unsafe { &*child.as_data() }.become_(State::Live);
            }
        }
    }

    /// Writes a data node with `records`, not fenced, and makes its mirror, which is frozen.
    pub(super) fn data(&mut self, plan: &DataPlan, records: &[Record]) -> Result<(Link, Child)> {
        self.image(Image::new(plan, records, self.tree.shape.format), records)
    }

    /// The same for a node that has been laid out.
    pub(super) fn image(&mut self, mut image: Image, records: &[Record]) -> Result<(Link, Child)> {
        let (tree, shape) = (self.tree, image.shape);
        let offset = self.alloc(image.bytes)?;
        let extensions = self.extensions(&shape, &image.rest)?;
        image.words[EXTENSION_WORD] = extensions.first().copied().unwrap_or(0);
        let cells = tree.cells(offset, image.words.len());
        tree.pm.stream(cells, &image.words);
        let mut data = Data::new(offset, image.bytes, &shape, image.high, &extensions);
        data.built = (records.first().zip(records.last()))
            .map(|(first, last)| (records.len(), first.0, last.0));
        data.leave_at(records.len());
        data.is_in_order = true.into();
        // Before the overflow entries, which say themselves that there are records in the stash.
        for (group, &(count, strays)) in image.groups.iter().enumerate() {
            data.set_counted(group, count, strays);
        }
        let in_stash = image.overflow.iter().copied();
        let beyond = image.rest.iter().zip(shape.stash as u32..);
        let beyond = beyond.map(|(&(home, (key, _)), slot)| (home, key, slot));
        for (home, key, slot) in in_stash.chain(beyond) {
            data.take_stash(slot);
            data.add_overflow(home, key, slot);
        }
        let child = Child::data(NonNull::from(Box::leak(data)));
        self.mirrors.push(child);
        Ok((Link::data(offset), child))
    }

    /// Writes extended stash blocks for `records`, in the order of their links.
    fn extensions(
        &mut self,
        shape: &DataShape,
        records: &[(usize, Record)],
    ) -> Result<Vec<Offset>> {
        let parts: Vec<_> = records.chunks(EXTENSION_SLOTS).collect();
        let mut blocks = Vec::with_capacity(parts.len());
        for _ in &parts {
            blocks.push(self.alloc(SMALLEST_BLOCK)?);
        }
        for (i, part) in parts.iter().enumerate() {
            let next = blocks.get(i + 1).copied().unwrap_or(0);
            let records = part.iter().map(|&(_, record)| record);
            let block = self.tree.extension(blocks[i]);
            block.fill(self.tree.pm, next, shape.marker, records);
        }
        Ok(blocks)
    }

    /// Writes the slots and the head of an inner node, not fenced, and returns where they are: the head, then the slots.
    pub(super) fn inner_blocks(
        &mut self,
        radix: Radix,
        links: impl Iterator<Item = (usize, Link)>,
    ) -> Result<(Offset, Offset)> {
        let (tree, slots) = (self.tree, radix.slots());
        let mut words = vec![tree.shape.format.continued(); slots];
        for (first, link) in links {
            words[first] = link.0;
        }
        let head = self.alloc(SMALLEST_BLOCK)?;
        if slots <= INLINE_SLOTS {
            let inline = head + tree.inline_at();
            tree.inner_head(head).fill(tree.pm, radix, inline, &words);
            return Ok((head, inline));
        }
        let block = self.alloc(block_for(slots))?;
        tree.pm.stream(tree.cells(block, slots), &words);
        tree.inner_head(head).fill(tree.pm, radix, block, &[]);
        Ok((head, block))
    }

    /// A mirror for an inner node that has been written.
    pub(super) fn mirror(
        &mut self,
        radix: Radix,
        (head, slots): (Offset, Offset),
        range: (u64, u64),
        depth: u32,
    ) -> &'a Inner {
        let inner = Inner::new(radix, head, slots, range, depth);
        let inner = NonNull::from(Box::leak(inner));
        self.mirrors.push(Child::inner(inner));
        // SAFETY: it is freed with `self` if it is not opened, and else when nobody can hold it; the caller does not
        // keep it longer.
        unsafe { inner.as_ref() }
    }

    /// Writes what a plan says, not fenced. `records` are those that the plan was made for.
    pub(super) fn plant(
        &mut self,
        plan: &Plan,
        records: &[Record],
        range: (u64, u64),
        depth: u32,
    ) -> Result<(Link, Child)> {
        let plan = match plan {
            Plan::Data(plan) => return self.data(plan, &records[plan.first..plan.last]),
            Plan::Inner(plan) => plan,
        };
        let radix = plan.radix();
        let built = self.plant_children(plan, 0..plan.children.len(), records, range, depth)?;
        self.plant_over(radix, &built, range, depth)
    }

    /// Some of the children of an inner node.
    pub(super) fn plant_children(
        &mut self,
        plan: &InnerPlan,
        which: std::ops::Range<usize>,
        records: &[Record],
        (low, high): (u64, u64),
        depth: u32,
    ) -> Result<Vec<Built>> {
        let radix = plan.radix();
        let mut built = Vec::with_capacity(which.len());
        for i in which {
            let (first, log) = plan.group(i);
            let range = radix.range_of(first, log, low, high);
            let (link, child) = self.plant(&plan.children[i].1, records, range, depth + 1)?;
            built.push(Built {
                first,
                log,
                link,
                child,
            });
        }
        Ok(built)
    }

    /// An inner node over children that have been built.
    pub(super) fn plant_over(
        &mut self,
        radix: Radix,
        built: &[Built],
        range: (u64, u64),
        depth: u32,
    ) -> Result<(Link, Child)> {
        let links = built.iter().map(|child| (child.first, child.link));
        let blocks = self.inner_blocks(radix, links)?;
        let inner = self.mirror(radix, blocks, range, depth);
        for child in built {
            inner.set(child.first, child.log, child.child);
        }
        Ok((Link::inner(blocks.0), Child::inner(NonNull::from(inner))))
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        for child in self.mirrors.drain(..) {
            // SAFETY: made here, and nobody else has it.
            unsafe { child.free_alone() }
        }
        for (offset, bytes) in self.blocks.drain(..) {
            self.tree.blocks.free_now(offset, bytes);
        }
    }
}

/// Bytes of the block for so many slots of an inner node.
pub(super) fn block_for(slots: usize) -> u64 {
    ((slots * size_of::<Cell>()) as u64).max(SMALLEST_BLOCK)
}

impl Extension {
    /// Fills a block that nobody reads yet, and flushes it.
    pub(super) fn fill(
        &self,
        pm: crate::pmem::Pm,
        next: Offset,
        marker: u64,
        records: impl Iterator<Item = Record>,
    ) {
        pm.store(&self.next, next);
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
mod tests {
    use super::*;
    use crate::index::apex::layout::{SLOT_BYTES, pair_of};
    use crate::index::apex::model::Model;
    use proptest::prelude::*;

    #[test]
    fn an_insert_prefers_the_pair_of_lines_of_its_home() {
        let slots = |slots: &[usize]| slots.iter().fold(0, |mask, slot| mask | 1 << (slot * 2));
        assert_eq!(choose(slots(&[0, 2, 3, 5]), 1), Some(2));
        assert_eq!(choose(slots(&[0, 9]), 1), Some(0));
        assert_eq!(choose(slots(&[9, 12]), 5), Some(9));
        // At the end of a group the window begins before the home's pair.
        assert_eq!(choose(slots(&[2]), 14), Some(2));
        assert_eq!(choose(slots(&[2, 8]), 14), Some(8));
        assert_eq!(choose(0, 3), None);
    }

    /// The image of a node that has so many keys in each pair of lines.
    fn image_of(counts: &[u64]) -> (Image, Vec<Record>) {
        let primary = counts.len() * PAIR_SLOTS;
        let (stash, low, high) = (WINDOW, 1000, 1000 + 100 * primary as u64 - 1);
        let keys = (0..).zip(counts).flat_map(|(pair, &count)| {
            (0..count).map(move |key| low + pair * 100 * PAIR_SLOTS as u64 + key)
        });
        let records: Vec<Record> = keys.map(|key| (key, !key)).collect();
        let plan = DataPlan {
            first: 0,
            last: records.len(),
            low,
            high,
            bytes: HEADER_BYTES + ((primary + stash) as u64) * SLOT_BYTES,
            primary,
            stash,
            model: Model::fit(&[], primary, low, high),
        };
        (Image::new(&plan, &records, Format::Two), records)
    }

    fn stashed(image: &Image) -> usize {
        image.overflow.len() + image.rest.len()
    }

    #[test]
    fn keys_make_room_for_those_of_the_pair_before_if_that_helps() {
        // One too many, and the next pair with room is the last one.
        let (image, records) = image_of(&[9, 8, 8, 7]);
        assert_eq!((stashed(&image), image.groups[0]), (0, (32, 0b0111)));
        let slots = image.words[HEADER_WORDS..].as_chunks().0;
        let in_order = records.iter().map(|&(key, value)| [key, value]);
        assert!(slots[..GROUP].iter().copied().eq(in_order));
        // Those of the last pair find room in the one before.
        let (image, _) = image_of(&[8, 8, 6, 10]);
        assert_eq!((stashed(&image), image.groups[0]), (0, (32, 0b1000)));
        // No room for three of them: all others are at home, but for one that finds room in the next pair.
        let (image, _) = image_of(&[9, 9, 7, 10]);
        assert_eq!((stashed(&image), image.groups[0]), (3, (35, 0b1011)));
    }

    /// The records of an image, each of which is where it may be, and of each group how many they are and its strays.
    fn contents(image: &Image) -> (Vec<Record>, Vec<(usize, u64)>) {
        let in_stash = image.overflow.iter().map(|&(_, key, _)| (key, !key));
        let beyond = image.rest.iter().map(|&(_, record)| record);
        let mut records: Vec<Record> = in_stash.chain(beyond).collect();
        let mut groups = vec![(0, 0); image.groups.len()];
        let mut count = |home: usize, is_stray: bool| {
            let (count, strays) = &mut groups[home / GROUP];
            *count += 1;
            *strays |= if is_stray { Data::pair_bit(home) } else { 0 };
        };
        for &(key, _) in &records {
            count(image.shape.model.predict(key), true);
        }
        let slots: &[[u64; 2]] = image.words[HEADER_WORDS..].as_chunks().0;
        let pairs = slots[..image.shape.primary].chunks(PAIR_SLOTS);
        for (first, pair) in (0..).step_by(PAIR_SLOTS).zip(pairs) {
            let taken = pair.iter().filter(|slot| slot[0] != image.shape.marker);
            assert!(taken.clone().is_sorted());
            for &[key, value] in taken {
                let home = image.shape.model.predict(key);
                assert!((window_of(home)..window_of(home) + WINDOW).contains(&first));
                count(home, first != pair_of(home));
                records.push((key, value));
            }
        }
        for (group, &(_, strays)) in slots[..image.shape.primary].chunks(GROUP).zip(&groups) {
            let last_pair = group.len() - PAIR_SLOTS;
            let may_end = strays & Data::pair_bit(last_pair) != 0;
            let in_order = if may_end { last_pair } else { group.len() };
            let taken = group[..in_order]
                .iter()
                .filter(|slot| slot[0] != image.shape.marker);
            assert!(taken.is_sorted());
        }
        records.sort_unstable();
        (records, groups)
    }

    fn counts() -> impl Strategy<Value = Vec<u64>> {
        let count = prop_oneof![8 => 0_u64..12, 1 => 0_u64..100];
        proptest::collection::vec(count, 2..3 * GROUP_PAIRS)
    }

    proptest! {
        #[test]
        fn a_node_that_is_laid_out_has_every_record_where_it_is_looked_for(counts in counts()) {
            // The last pair of a node is no key's home: its window might leave the node.
            let (image, records) = image_of(&[&counts[..], &[0]].concat());
            prop_assert_eq!(contents(&image), (records, image.groups));
        }
    }
}
