//! A sorted list with a block for each record: the smallest engine, which `docs/adding-an-index.md` walks through.
//!
//! The blocks are a chain in the order of the keys, which begins at the catalog entry's first root. A map in DRAM finds the block of a key.
//!
//! ```text
//! block  +0        +8    +16     +24
//!       | written | key | value | next |  and 224 bytes that are not used
//!
//! written   1, which tells a block from a page that never reached the disk
//! next      offset of the next block, 0 for none
//! ```
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | update | 1, 1 | `value` |
//! | insert, move | 1 streamed + 1, 2 | `next` of the block before it, or the catalog entry's root |
//! | remove | 1, 1 | the same link |
//! | bulk load | 1 streamed for each record + 1, 2 | the root |
//!
//! One mutex protects everything, and it is held until a change is durable: so operations are linearizable, and no thread sees what
//! may still be lost. Opening reads all blocks, O(records), unlike that of the other engines.

#[cfg(all(test, not(loom)))]
pub(super) mod damage;
#[cfg(feature = "trace")]
pub(crate) mod testing;

use super::{Decision, Engine, EngineOptions, Ordered, Place, ReadBuffer, Report, Unread};
use crate::concurrency::records::RecordLocks;
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::pmem::{Cell, Pm};
use crate::pool::{Offset, Space};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// The smallest block that there is. Its words, by their numbers:
const BLOCK_BYTES: u32 = 256;
const WRITTEN: usize = 0;
const KEY: usize = 1;
const VALUE: usize = 2;
const NEXT: usize = 3;

crate::pmem::planted::bugs! { "list":
    /// A block is linked before it is durable.
    LinkBeforeBlock,
}

/// There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListOptions;

impl EngineOptions for ListOptions {
    const IS_EXAMPLE: bool = true;
}

/// Where the block of each key is.
type Blocks = BTreeMap<u64, Offset>;

/// An open list.
pub(crate) struct Index {
    place: Place,
    pm: Pm,
    spaces: [Arc<Space>; 1],
    locks: RecordLocks,
    blocks: Mutex<Blocks>,
}

impl Index {
    fn words(&self, block: Offset) -> &[Cell] {
        self.spaces[0].words(block)
    }

    /// The word that links to the block of `key`, or to the one that follows if there is none.
    fn link_to(&self, blocks: &Blocks, key: u64) -> &Cell {
        match blocks.range(..key).next_back() {
            Some((_, &before)) => &self.words(before)[NEXT],
            None => &self.place.core.entry(self.place.slot).roots[0],
        }
    }

    /// Fills a new block, to which nothing leads yet. A fence makes it durable.
    fn write(&self, block: Offset, [key, value]: [u64; 2], next: u64) {
        let words = &self.words(block)[..=NEXT];
        self.pm.stream(words, &[1, key, value, next]);
    }

    /// Links to a new block with a record, which goes before the block `next`.
    fn link(&self, blocks: &mut Blocks, block: Offset, record: [u64; 2], next: u64) {
        self.write(block, record, next);
        if !planted(Bug::LinkBeforeBlock) {
            self.pm.fence();
        }
        let link = self.link_to(blocks, record[0]);
        // COMMIT list.link: the link. Before this store recovery sees the list without the new block, and sweeps it; after it, with it, and
        // without the block from which the record has moved, if it has.
        self.pm.commit(link, block.get(), "list.link");
        blocks.insert(record[0], block);
    }
}

impl Engine for Index {
    type Options = ListOptions;

    /// Follows the chain. Nothing in the file is believed before it has been looked at.
    fn open(place: &Place, _: ListOptions, _: u32) -> Result<Self> {
        let index = Self {
            place: place.clone(),
            pm: place.core.pm(),
            spaces: [place.core.space(place.slot, BLOCK_BYTES)?],
            locks: RecordLocks::new(2),
            blocks: Mutex::default(),
        };
        let mut blocks = Blocks::new();
        let mut block = Offset::from_word(index.link_to(&blocks, 0).load_acquire());
        while !block.is_none() {
            index.spaces[0].claim_linked(block)?;
            let words = index.words(block);
            let key = words[KEY].load();
            let last = blocks.last_key_value();
            if words[WRITTEN].load() != 1 || last.is_some_and(|(&last, _)| key <= last) {
                let what = "was never written, or has a key that does not ascend";
                return Err(Error::Damaged(format!("block {block:#x} {what}")));
            }
            blocks.insert(key, block);
            block = Offset::from_word(words[NEXT].load());
        }
        index.locks.begin_with(blocks.len() as u64);
        *lock(&index.blocks) = blocks;
        Ok(index)
    }

    fn spaces(&self) -> &[Arc<Space>] {
        &self.spaces
    }

    fn locks(&self) -> &RecordLocks {
        &self.locks
    }

    fn check(&self, report: &mut Report) -> Result<()> {
        let blocks = lock(&self.blocks);
        for (&key, &block) in &*blocks {
            report.reach(block, BLOCK_BYTES.into());
            report.add_records(1);
            let is_linked = self.link_to(&blocks, key).load() == block.get();
            report.expect(is_linked && self.words(block)[KEY].load() == key, || {
                format!("block {block:#x} is not where the chain has it, or has another key")
            });
        }
        Ok(())
    }

    fn dram_bytes(&self) -> u64 {
        (lock(&self.blocks).len() * size_of::<(u64, Offset)>()) as u64
    }

    /// Moves blocks to the front of the pool.
    fn compact(&self) -> Result<()> {
        let (blocks, space) = (&mut *lock(&self.blocks), &self.spaces[0]);
        let end = space.packed_end(0).unwrap_or(Offset::MAX);
        for (key, old) in blocks.clone() {
            if old >= end
                && let Some(new) = space.alloc_below(end)
            {
                let words = self.words(old);
                self.link(blocks, new, [key, words[VALUE].load()], words[NEXT].load());
                space.free_now(old);
            }
        }
        Ok(())
    }
}

impl Ordered for Index {
    type Bookmark = ();

    // Not inlined into the one branch on kinds that all engines share: there each instruction counts for the fast ones.
    #[inline(never)]
    fn apply(
        &self,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        let blocks = &mut *lock(&self.blocks);
        let there = blocks.get(&key).map(|&block| (block, self.words(block)));
        let before = there.map(|(_, words)| words[VALUE].load());
        match (decide(before), there) {
            (Decision::Keep, _) | (Decision::Remove, None) => {}
            (Decision::Put(value), Some((_, words))) => {
                // COMMIT list.update: the value. Before this store recovery sees the old one, after it the new one.
                self.pm.commit(&words[VALUE], value, "list.update");
            }
            (Decision::Put(value), None) => {
                let next = self.link_to(blocks, key).load();
                self.link(blocks, self.spaces[0].alloc()?, [key, value], next);
                self.locks.entry(0).add(1);
            }
            (Decision::Remove, Some((block, words))) => {
                let (link, next) = (self.link_to(blocks, key), words[NEXT].load());
                // COMMIT list.remove: the link. Before this store recovery sees the record; after it, the sweep frees the block.
                self.pm.commit(link, next, "list.remove");
                blocks.remove(&key);
                // A thread reads blocks only while it holds the mutex, which this thread holds: there are no readers to wait for.
                self.spaces[0].free_now(block);
                self.locks.entry(0).add(-1);
            }
        }
        Ok(before)
    }

    fn bulk_load(&self, records: &[(u64, u64)], _: f64) -> Result<()> {
        let blocks = &mut *lock(&self.blocks);
        if !blocks.is_empty() {
            return Err(Error::NotEmpty);
        }
        let new = self.spaces[0].alloc_many(records.len())?;
        let mut next = 0;
        for (&(key, value), &block) in records.iter().zip(&new).rev() {
            self.write(block, [key, value], next);
            next = block.get();
        }
        self.pm.fence();
        // COMMIT list.load: the root. Before this store recovery sees an empty list, after it all records.
        self.pm.commit(self.link_to(blocks, 0), next, "list.load");
        blocks.extend(records.iter().map(|record| record.0).zip(new));
        self.locks.entry(0).add(records.len() as i64);
        Ok(())
    }

    fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut ReadBuffer<()>,
        wanted: Option<usize>,
    ) -> Result<()> {
        if let Some((first, last)) = *unread {
            let blocks = lock(&self.blocks);
            let read = blocks.range(first..=last);
            let records = read.map(|(&key, &block)| [key, self.words(block)[VALUE].load()]);
            buffer.read_from::<UP>(records, unread, wanted);
        }
        Ok(())
    }
}
