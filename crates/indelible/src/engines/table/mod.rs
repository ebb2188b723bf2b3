//! A table of slots: the smallest engine, which `docs/adding-an-index.md` walks through.
//!
//! Records lie in blocks of 1 KiB, in no order; a B-tree map in DRAM finds them. The blocks are a chain that begins at the catalog
//! entry's first root.
//!
//! ```text
//! block  +0     +8     +16
//!       | word | next | 63 slots of 16 bytes: key, value
//!
//! word  bit i: slot i is in use · bit 63: one, which tells an empty block from a page that never reached the disk
//! next  offset of the next block, 0 for none
//! ```
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | insert | 2, 2 | the block's word |
//! | update | 1, 1 | the value |
//! | remove | 1, 1 | the block's word |
//! | another block | 1 + 1, 2 | the catalog entry's root |
//! | bulk load, compaction | streamed, 2 | the catalog entry's root |
//! | a block moves, in a compaction | 16 streamed + 1, 2 | `next` of the block before it, or the catalog entry's root |
//!
//! One mutex protects everything, and it is held until a change is durable: so operations are linearizable, and no thread sees what
//! may still be lost. Opening reads all blocks, O(records), unlike that of the other engines.

#[cfg(all(test, not(loom)))]
pub(super) mod damage;
#[cfg(feature = "trace")]
pub(crate) mod testing;

use super::{
    Decision, Engine, EngineOptions, Fact, OptionBytes, OptionInfo, Ordered, Place, ReadBuffer,
    Report, Unread,
};
use crate::concurrency::records::{RecordCount, RecordLocks};
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::pmem::{Cell, Pm};
use crate::pool::{Offset, Space};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::{Arc, Mutex};

/// Slots of a block: one for each bit of the word but the highest.
const SLOTS: usize = 63;
const BLOCK_BYTES: u32 = 1024;
/// The bit of a block's word that is always one.
const WRITTEN: u64 = 1 << 63;

#[repr(C)]
struct Slot {
    key: Cell,
    value: Cell,
}

#[repr(C, align(64))]
struct Block {
    word: Cell,
    next: Cell,
    slots: [Slot; SLOTS],
}

const _: () = {
    assert!(size_of::<Block>() == BLOCK_BYTES as usize);
    assert!(offset_of!(Block, next) == 8);
    assert!(offset_of!(Block, slots) == 16);
};

crate::pmem::planted::bugs! { "table":
    /// An insert commits the block's word before the slot is durable.
    WordBeforeSlot,
}

/// There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableOptions;

impl EngineOptions for TableOptions {
    const FORMAT: u32 = 1;
    const LIST: &'static [OptionInfo] = &[];
    const IS_EXAMPLE: bool = true;

    fn set(&mut self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    fn get(&self, _: &str) -> String {
        String::new()
    }

    fn encode(&self) -> Result<OptionBytes> {
        Ok(OptionBytes::default())
    }

    fn decode(_: u32, bytes: &OptionBytes) -> Result<Self> {
        match *bytes == OptionBytes::default() {
            true => Ok(Self),
            false => Err(Error::Damaged("the options of a table".into())),
        }
    }

    fn extremes() -> Vec<Self> {
        Vec::new()
    }
}

/// Where a record is: the offset of its block, and the number of its slot.
type At = (Offset, usize);

/// The part of the table in DRAM: which blocks there are, and where the records are.
#[derive(Default)]
struct State {
    index: BTreeMap<u64, At>,
    free: Vec<At>,
    blocks: Vec<Offset>,
}

/// An open table.
pub(crate) struct Index {
    place: Place,
    pm: Pm,
    spaces: [Arc<Space>; 1],
    locks: RecordLocks,
    count: RecordCount,
    state: Mutex<State>,
}

impl Index {
    fn new(place: &Place) -> Result<Self> {
        Ok(Self {
            place: place.clone(),
            pm: place.core.pm(),
            spaces: [place.core.space(place.slot, BLOCK_BYTES)?],
            locks: RecordLocks::new(2),
            count: RecordCount::default(),
            state: Mutex::default(),
        })
    }

    fn root(&self) -> &Cell {
        &self.place.core.entry(self.place.slot).roots[0]
    }

    /// The block at an offset that the space allocated, or that it owns.
    fn block(&self, offset: Offset) -> &Block {
        // SAFETY: by the condition above the block lies in the mapping, which lives as long as the pool, whole and aligned; a
        // `Block` consists of atomics, for which every bit pattern is valid.
        unsafe {
            &*self
                .place
                .core
                .base()
                .add(offset.get() as usize)
                .cast_const()
                .cast()
        }
    }

    /// Reads all blocks.
    fn read_chain(&self, state: &mut State) -> Result<()> {
        let damaged =
            |offset: Offset, what| Err(Error::Damaged(format!("block {offset:#x} {what}")));
        let mut offset = Offset::from_word(self.root().load_acquire());
        while !offset.is_none() {
            if !self.spaces[0].owns(offset) || !self.spaces[0].claim(offset) {
                return damaged(offset, "is not a block of this map, or is reached twice");
            }
            let block = self.block(offset);
            let word = block.word.load();
            if word & WRITTEN == 0 {
                return damaged(offset, "was never written");
            }
            state.blocks.push(offset);
            for slot in 0..SLOTS {
                let at = (offset, slot);
                if word >> slot & 1 == 0 {
                    state.free.push(at);
                } else if state
                    .index
                    .insert(block.slots[slot].key.load(), at)
                    .is_some()
                {
                    return damaged(offset, "has a key that is there already");
                }
            }
            offset = Offset::from_word(block.next.load());
        }
        Ok(())
    }

    /// A free slot, in another block if there is none.
    fn free_slot(&self, state: &mut State) -> Result<At> {
        if let Some(at) = state.free.pop() {
            return Ok(at);
        }
        let offset = self.spaces[0].alloc()?;
        self.pm.note("block added", 0);
        self.fill(offset, &[], Offset::from_word(self.root().load()));
        self.pm.fence();
        // COMMIT table.grow: the new block, which is empty, is the first of the chain. Before this store recovery does not reach the
        // block, and sweeps it.
        self.pm.commit(self.root(), offset.get(), "table.grow");
        state.blocks.push(offset);
        state
            .free
            .extend((0..SLOTS).rev().map(|slot| (offset, slot)));
        state
            .free
            .pop()
            .ok_or_else(|| Error::Damaged("no slots".into()))
    }

    /// Writes a whole block that is not reachable yet, past the caches.
    fn fill(&self, offset: Offset, records: &[(u64, u64)], next: Offset) {
        let mut image = [0; BLOCK_BYTES as usize / 8];
        image[0] = WRITTEN | ((1 << records.len()) - 1);
        image[1] = next.get();
        for (words, &(key, value)) in image[2..].chunks_mut(2).zip(records) {
            words.copy_from_slice(&[key, value]);
        }
        self.pm.stream(self.cells(offset), &image);
    }

    /// The words of a block.
    fn cells(&self, offset: Offset) -> &[Cell] {
        let block = std::ptr::from_ref(self.block(offset)).cast::<Cell>();
        // SAFETY: a block consists of cells alone.
        unsafe { std::slice::from_raw_parts(block, BLOCK_BYTES as usize / 8) }
    }

    /// Replaces the chain of blocks by new blocks with these records, whose keys ascend.
    fn rebuild(&self, state: &mut State, records: &[(u64, u64)], per_block: usize) -> Result<()> {
        let mut next = State::default();
        let space = &self.spaces[0];
        next.blocks = space.alloc_many(records.len().div_ceil(per_block))?;
        for (i, records) in records.chunks(per_block).enumerate() {
            let offset = next.blocks[i];
            self.fill(
                offset,
                records,
                next.blocks.get(i + 1).copied().unwrap_or(Offset::NONE),
            );
            let keys = records.iter().zip(0..);
            next.index
                .extend(keys.map(|(record, slot)| (record.0, (offset, slot))));
            next.free
                .extend((records.len()..SLOTS).map(|slot| (offset, slot)));
        }
        self.pm.note("table rebuilt", 0);
        self.pm.fence();
        // COMMIT table.load: the chain. Before this store recovery sees the old blocks, after it the new ones, and sweeps the others.
        let first = next.blocks.first().copied().unwrap_or(Offset::NONE);
        self.pm.commit(self.root(), first.get(), "table.load");
        let old = std::mem::replace(state, next);
        // A thread reads blocks only while it holds the mutex, which this thread holds: no other thread can hold an old block.
        old.blocks
            .into_iter()
            .for_each(|block| space.free_now(block));
        Ok(())
    }
}

/// Compaction.
impl Index {
    /// Moves blocks to the front of the pool, as far as there are free blocks. The table has just been rebuilt, so
    /// `state.blocks` are in the order of the chain.
    fn move_to_front(&self, state: &mut State) {
        let space = &self.spaces[0];
        let Some(end) = space.packed_end(0) else {
            return;
        };
        let mut moved = BTreeMap::new();
        for number in 0..state.blocks.len() {
            let old = state.blocks[number];
            if old < end {
                continue;
            }
            let Some(new) = space.alloc_below(end) else {
                break;
            };
            let image: Vec<u64> = self.cells(old).iter().map(Cell::load).collect();
            self.pm.stream(self.cells(new), &image);
            self.pm.fence();
            self.pm.note("block moved", 0);
            let link = match number.checked_sub(1) {
                Some(before) => &self.block(state.blocks[before]).next,
                None => self.root(),
            };
            // COMMIT table.move: the link to the block. Before this store recovery sees the old block, and sweeps the copy; after it,
            // it sees the copy, which has the same records and the same next block, and sweeps the old one.
            self.pm.commit(link, new.get(), "table.move");
            state.blocks[number] = new;
            moved.insert(old, new);
            // A thread reads blocks only while it holds the mutex, which this thread holds.
            space.free_now(old);
        }
        for at in state.index.values_mut().chain(&mut state.free) {
            if let Some(&new) = moved.get(&at.0) {
                at.0 = new;
            }
        }
    }
}

impl Engine for Index {
    type Options = TableOptions;

    fn format(place: &Place, _: &TableOptions) -> Result<()> {
        // A table without blocks: the catalog entry's roots are zero already.
        Self::new(place).map(drop)
    }

    fn open(place: &Place, _: TableOptions, _: u32) -> Result<Self> {
        let index = Self::new(place)?;
        let mut state = State::default();
        index.read_chain(&mut state)?;
        index
            .count
            .begin_with(&index.locks, state.index.len() as u64);
        *lock(&index.state) = state;
        Ok(index)
    }

    fn spaces(&self) -> &[Arc<Space>] {
        &self.spaces
    }

    fn locks(&self) -> &RecordLocks {
        &self.locks
    }

    fn count(&self) -> &RecordCount {
        &self.count
    }

    fn sweeps_at_once(&self) -> bool {
        true
    }

    fn sweep(&self, _: &dyn Fn() -> bool) -> Result<bool> {
        // Opening has claimed all blocks and counted all records.
        Ok(true)
    }

    fn check(&self, report: &mut Report) -> Result<()> {
        let state = lock(&self.state);
        for &offset in &state.blocks {
            report.reach(offset, BLOCK_BYTES.into());
            let word = self.block(offset).word.load();
            report.expect(word & WRITTEN != 0, || {
                format!("block {offset:#x} was never written")
            });
            report.add_records((word & !WRITTEN).count_ones().into());
        }
        for (&key, &(offset, slot)) in &state.index {
            let block = self.block(offset);
            let is_there = block.word.load() >> slot & 1 == 1;
            report.expect(is_there && block.slots[slot].key.load() == key, || {
                format!("key {key:#x} is not in slot {slot} of block {offset:#x}")
            });
        }
        Ok(())
    }

    fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let blocks = lock(&self.state).blocks.len();
        let slots = (blocks * SLOTS) as f64;
        Ok(vec![
            Fact::share("fill", records as f64, slots, "records divided by slots"),
            Fact::count("blocks", blocks as u64, "blocks in the pool"),
        ])
    }

    fn dram_bytes(&self) -> u64 {
        let state = lock(&self.state);
        let entries = state.index.len() * size_of::<(u64, At)>();
        (entries + (state.free.len() + state.blocks.len()) * size_of::<At>()) as u64
    }

    fn compact(&self) -> Result<()> {
        let mut state = lock(&self.state);
        let value_at = |&(block, slot): &At| self.block(block).slots[slot].value.load();
        let records = state.index.iter().map(|(&key, at)| (key, value_at(at)));
        let records: Vec<(u64, u64)> = records.collect();
        self.rebuild(&mut state, &records, SLOTS)?;
        self.move_to_front(&mut state);
        Ok(())
    }
}

impl Ordered for Index {
    type Bookmark = ();

    // Not inlined into the one branch on kinds that all engines share: there each instruction counts for the fast ones.
    #[inline(never)]
    fn get(&self, key: u64) -> Result<Option<u64>> {
        let state = lock(&self.state);
        let at = state.index.get(&key);
        Ok(at.map(|&(block, slot)| self.block(block).slots[slot].value.load()))
    }

    #[inline(never)]
    fn apply(
        &self,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        let mut state = lock(&self.state);
        let found = state.index.get(&key).copied();
        let before = found.map(|(block, slot)| self.block(block).slots[slot].value.load());
        match (decide(before), found) {
            (Decision::Keep, _) | (Decision::Remove, None) => {}
            (Decision::Put(value), Some((block, slot))) => {
                // COMMIT table.update: the value. Before this store recovery sees the old one, after it the new one.
                let cell = &self.block(block).slots[slot].value;
                self.pm.commit(cell, value, "table.update");
            }
            (Decision::Put(value), None) => {
                let at = self.free_slot(&mut state)?;
                let (block, slot) = (self.block(at.0), &self.block(at.0).slots[at.1]);
                self.pm.store(&slot.key, key);
                self.pm.store(&slot.value, value);
                if !planted(Bug::WordBeforeSlot) {
                    self.pm.persist(slot);
                }
                // COMMIT table.insert: the slot is in use. Before this store recovery sees a free slot, after it the record.
                let word = block.word.load() | 1 << at.1;
                self.pm.commit(&block.word, word, "table.insert");
                state.index.insert(key, at);
                self.count.change(self.locks.entry(0), key, 1);
            }
            (Decision::Remove, Some(at)) => {
                let block = self.block(at.0);
                // COMMIT table.remove: the slot is free. Before this store recovery sees the record, after it a free slot.
                let word = block.word.load() & !(1 << at.1);
                self.pm.commit(&block.word, word, "table.remove");
                state.index.remove(&key);
                state.free.push(at);
                self.count.change(self.locks.entry(0), key, -1);
            }
        }
        Ok(before)
    }

    fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        let mut state = lock(&self.state);
        if !state.index.is_empty() {
            return Err(Error::NotEmpty);
        }
        let per_block = ((SLOTS as f64 * fill) as usize).max(1);
        self.rebuild(&mut state, records, per_block)?;
        let loaded = records.len() as i64;
        self.count.change(self.locks.entry(0), 0, loaded);
        Ok(())
    }

    fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut ReadBuffer<()>,
        wanted: Option<usize>,
    ) -> Result<()> {
        let usual = buffer.restart();
        let most = wanted.unwrap_or(usual).min(super::MOST_READ);
        buffer.make_room(most);
        let Some((first, last)) = *unread else {
            return Ok(());
        };
        let state = lock(&self.state);
        let mut range = state.index.range(first..=last);
        while buffer.end < most {
            let Some((&key, &(block, slot))) = (if UP { range.next() } else { range.next_back() })
            else {
                *unread = None;
                return Ok(());
            };
            let value = self.block(block).slots[slot].value.load();
            buffer.records[buffer.end] = [key, value];
            buffer.end += 1;
            *unread = if UP {
                (key < last).then(|| (key + 1, last))
            } else {
                (key > first).then(|| (first, key - 1))
            };
        }
        Ok(())
    }
}
