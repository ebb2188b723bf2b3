//! Operations on one node. Only the thread that holds the tree's mutex writes nodes; what it changes in a node that others can reach, apart
//! from boxes that grow, it changes with the lock of the node. Who reads without the mutex validates the version of the node afterwards.

use super::layout::{Block, Entries, NODE_BYTES, RootBlock, Word};
use crate::engines::rect::{MAX_WORDS, Record, slots};
use crate::pmem::schedule::point;
use crate::pmem::{Cell, Pm};
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use std::marker::PhantomData;

/// A child of an inner node: its box and where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Child {
    pub(super) rect: Rect,
    pub(super) offset: Offset,
}

impl Child {
    /// The words of the entry: those of a record whose geometry is the box.
    pub(super) fn entry<G: Geometry>(&self) -> Record {
        Record::new(&self.rect.window::<G::Window>(), self.offset.get())
    }
}

/// Turns offsets into nodes: the base of the pool's mapping.
pub(super) struct Nodes<G> {
    base: *const u8,
    geometry: PhantomData<fn() -> G>,
}

// SAFETY: the base is the start of the pool's mapping, which the tree keeps alive; all access through it is by atomics.
unsafe impl<G> Send for Nodes<G> {}
// SAFETY: as for `Send`.
unsafe impl<G> Sync for Nodes<G> {}

impl<G: Geometry> Nodes<G> {
    pub(super) fn new(base: *const u8) -> Self {
        Self {
            base,
            geometry: PhantomData,
        }
    }

    /// The node at `offset`, which must come from the allocator, or from a durable pointer that `Space::owns` has approved: then it
    /// lies, whole and aligned, inside the mapping.
    #[inline(always)]
    pub(super) fn at(&self, offset: Offset) -> Node<'_, G> {
        debug_assert!(!offset.is_none() && offset.get().is_multiple_of(NODE_BYTES as u64));
        point();
        crate::pmem::expect_mapped(self.base as usize + offset.get() as usize, NODE_BYTES);
        // SAFETY: by the condition above the bytes are mapped for as long as the tree lives, and cells are atomics, for which every bit
        // pattern is valid.
        let block = unsafe { &*self.base.add(offset.get() as usize).cast() };
        Node {
            block,
            offset,
            geometry: PhantomData,
        }
    }

    /// The root block at `offset`, as [`at`](Self::at).
    pub(super) fn root_block(&self, offset: Offset) -> &RootBlock {
        // SAFETY: as in `at`; a root block is smaller than a node, and consists of atomics too.
        unsafe { &*self.base.add(offset.get() as usize).cast() }
    }

    /// The word at `offset`, which lies in a block for which the condition of [`at`](Self::at) holds.
    pub(super) fn cell(&self, offset: Offset) -> &Cell {
        // SAFETY: as in `at`; the word is aligned, since blocks are and the offset is a multiple of 8.
        unsafe { &*self.base.add(offset.get() as usize & !7).cast() }
    }

    /// Where a word of the pool is: the other way round.
    pub(super) fn offset_of(&self, cell: &Cell) -> Offset {
        Offset::from_word((std::ptr::from_ref(cell) as usize - self.base as usize) as u64)
    }
}

/// One node.
pub(super) struct Node<'a, G> {
    pub(super) block: &'a Block,
    pub(super) offset: Offset,
    geometry: PhantomData<fn() -> G>,
}

impl<G> Clone for Node<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G> Copy for Node<'_, G> {}

impl<'a, G: Geometry> Node<'a, G> {
    #[inline(always)]
    pub(super) fn word(self) -> Word {
        Word(self.block.word.load_acquire())
    }

    #[inline(always)]
    pub(super) fn level(self) -> u32 {
        self.word().level()
    }

    pub(super) fn count(self) -> usize {
        self.word().bitmap().count_ones() as usize
    }

    /// Entries that are not in use, as bits.
    pub(super) fn free(self) -> u64 {
        Entries::<G>::bits(self.level()) & !self.word().bitmap()
    }

    /// The leaf after this one in the chain.
    pub(super) fn next(self) -> Offset {
        Offset::from_word(self.block.next.load_acquire())
    }

    /// The leaf before this one in the chain.
    pub(super) fn previous(self) -> Offset {
        Offset::from_word(self.block.previous.load_acquire())
    }

    /// The cells of the entry in `slot` of a node of `level`.
    #[inline(always)]
    pub(super) fn cells(self, level: u32, slot: usize) -> &'a [Cell] {
        let words = Entries::<G>::words(level);
        &self.block.entries[slot * words..(slot + 1) * words]
    }

    /// The words of the entry in `slot`. They may be of different moments, unless the caller holds the mutex or validates.
    #[inline(always)]
    pub(super) fn entry(self, level: u32, slot: usize) -> Record {
        point();
        let mut words = [0; MAX_WORDS];
        for (word, cell) in words.iter_mut().zip(self.cells(level, slot)) {
            *word = cell.load();
        }
        Record::from_words(words)
    }

    /// The box of the entry in `slot`.
    #[inline(always)]
    pub(super) fn rect(self, level: u32, slot: usize) -> Rect {
        let entry = self.entry(level, slot);
        if level == 0 {
            entry.rect::<G>()
        } else {
            entry.rect::<G::Window>()
        }
    }

    /// The child in `slot` of an inner node.
    #[inline(always)]
    pub(super) fn child(self, level: u32, slot: usize) -> Child {
        let entry = self.entry(level, slot);
        Child {
            rect: entry.rect::<G::Window>(),
            offset: Offset::from_word(entry.payload::<G::Window>()),
        }
    }

    /// The slots in use of a node of `level`. What the word says beyond the entries that fit is not believed.
    #[inline(always)]
    pub(super) fn slots(self, level: u32) -> impl Iterator<Item = usize> + use<G> {
        slots(self.word().bitmap() & Entries::<G>::bits(level))
    }

    /// The smallest box that contains all entries.
    pub(super) fn bounds(self) -> Rect {
        let level = self.level();
        let rects = self.slots(level).map(|slot| self.rect(level, slot));
        rects.fold(Rect::NOTHING, |all, rect| all.join(&rect))
    }

    /// Writes an entry to a slot that is not in use.
    pub(super) fn write(self, pm: Pm, slot: usize, entry: &Record) {
        for (cell, &word) in self.cells(self.level(), slot).iter().zip(entry.words()) {
            pm.store(cell, word);
        }
    }

    /// Fills a node that is not reachable yet.
    pub(super) fn fill(self, pm: Pm, level: u32, entries: &[Record], chain: Chain) {
        assert!(
            entries.len() <= Entries::<G>::most(level),
            "invariant: a node gets no more entries than it has slots"
        );
        for (slot, entry) in entries.iter().enumerate() {
            for (cell, &word) in self.cells(level, slot).iter().zip(entry.words()) {
                pm.store(cell, word);
            }
        }
        pm.store(&self.block.next, chain.next.get());
        pm.store(&self.block.previous, chain.previous.get());
        let word = Word::new(level, (1 << entries.len()) - 1);
        pm.store(&self.block.word, word.0);
    }

    /// Makes the box of the child in `slot` contain `rect`. Each bound only moves outwards, so that any subset of the stores is safe, for
    /// recovery and for readers, which see some box between the old one and the new one. Returns whether anything had to change.
    pub(super) fn enlarge(self, pm: Pm, level: u32, slot: usize, rect: &Rect) -> bool {
        let (old, cells) = (self.rect(level, slot), self.cells(level, slot));
        let mut grew = false;
        for axis in 0..G::AXES {
            if rect.low[axis] < old.low[axis] {
                pm.store(&cells[axis], rect.low[axis].to_bits());
                grew = true;
            }
            if rect.high[axis] > old.high[axis] {
                pm.store(&cells[G::AXES + axis], rect.high[axis].to_bits());
                grew = true;
            }
        }
        grew
    }
}

/// The neighbours of a leaf in the chain; none for an inner node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    pub(super) previous: Offset,
    pub(super) next: Offset,
}
