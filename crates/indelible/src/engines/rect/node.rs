//! One node in the pool: what the R-trees have in common, which is all but the meaning of the node's word and who may write it.

use super::layout::{Block, Entries, NODE_BYTES};
use super::record::{MAX_WORDS, Record};
use crate::pmem::schedule::point;
use crate::pmem::{Cell, Pm};
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use std::marker::PhantomData;

/// What an engine keeps in the pool besides nodes.
///
/// # Safety
///
/// It consists of [`Cell`]s, and is not larger than a node.
pub(in crate::engines) unsafe trait Part {}

/// A child of an inner node: its box and where it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::engines) struct Child {
    pub(in crate::engines) rect: Rect,
    pub(in crate::engines) offset: Offset,
}

impl Child {
    /// The words of the entry: those of a record whose geometry is the box.
    pub(in crate::engines) fn entry<G: Geometry>(&self) -> Record {
        Record::new(&self.rect.window::<G::Window>(), self.offset.get())
    }
}

/// Turns offsets into nodes: the base of the pool's mapping.
pub(in crate::engines) struct Nodes<G> {
    base: *const u8,
    geometry: PhantomData<fn() -> G>,
}

// SAFETY: the base is the start of the pool's mapping, which the tree keeps alive; all access through it is by atomics.
unsafe impl<G> Send for Nodes<G> {}
// SAFETY: as for `Send`.
unsafe impl<G> Sync for Nodes<G> {}

impl<G: Geometry> Nodes<G> {
    pub(in crate::engines) fn new(base: *const u8) -> Self {
        Self {
            base,
            geometry: PhantomData,
        }
    }

    /// The node at `offset`, which must come from the allocator, or from a durable pointer that `Space::owns` has approved: then it
    /// lies, whole and aligned, inside the mapping.
    #[inline(always)]
    pub(in crate::engines) fn at(&self, offset: Offset) -> Node<'_, G> {
        debug_assert!(!offset.is_none() && offset.get().is_multiple_of(NODE_BYTES as u64));
        point();
        self.expect_mapped(offset, NODE_BYTES);
        // SAFETY: by the condition above the bytes are mapped for as long as the tree lives, and cells are atomics, for which every bit
        // pattern is valid.
        let block = unsafe { &*self.base.add(offset.get() as usize).cast() };
        Node {
            block,
            offset,
            geometry: PhantomData,
        }
    }

    /// For the crash checker: see [`crate::pmem::expect_mapped`].
    #[inline(always)]
    fn expect_mapped(&self, offset: Offset, bytes: usize) {
        crate::pmem::expect_mapped(self.base as usize + offset.get() as usize, bytes);
    }

    /// What an engine keeps at `offset`, which lies in a block for which the condition of [`at`](Self::at) holds, and is aligned as `T` is.
    pub(in crate::engines) fn part<T: Part>(&self, offset: Offset) -> &T {
        self.expect_mapped(offset, size_of::<T>());
        // SAFETY: as in `at`; a part is smaller than a node, and consists of cells.
        unsafe { &*self.base.add(offset.get() as usize).cast() }
    }

    /// The word at `offset`, which lies in a block for which the condition of [`at`](Self::at) holds.
    pub(in crate::engines) fn cell(&self, offset: Offset) -> &Cell {
        self.expect_mapped(offset, size_of::<Cell>());
        // SAFETY: as in `at`; the word is aligned, since blocks are and the offset is a multiple of 8.
        unsafe { &*self.base.add(offset.get() as usize & !7).cast() }
    }

    /// Where a word of the pool is: the other way round.
    pub(in crate::engines) fn offset_of(&self, cell: &Cell) -> Offset {
        Offset::from_word((std::ptr::from_ref(cell) as usize - self.base as usize) as u64)
    }
}

/// One node.
pub(in crate::engines) struct Node<'a, G> {
    pub(in crate::engines) block: &'a Block,
    pub(in crate::engines) offset: Offset,
    geometry: PhantomData<fn() -> G>,
}

impl<G> Clone for Node<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G> Copy for Node<'_, G> {}

impl<'a, G: Geometry> Node<'a, G> {
    /// The cells of the entry in `slot` of a node of `level`.
    #[inline(always)]
    pub(in crate::engines) fn cells(self, level: u32, slot: usize) -> &'a [Cell] {
        let words = Entries::<G>::words(level);
        &self.block.entries[slot * words..(slot + 1) * words]
    }

    /// The words of the entry in `slot`. They may be of different moments, unless the caller holds the mutex or validates.
    #[inline(always)]
    pub(in crate::engines) fn entry(self, level: u32, slot: usize) -> Record {
        point();
        let mut words = [0; MAX_WORDS];
        for (word, cell) in words.iter_mut().zip(self.cells(level, slot)) {
            *word = cell.load();
        }
        Record::from_words(words)
    }

    /// The box of the entry in `slot`.
    #[inline(always)]
    pub(in crate::engines) fn rect(self, level: u32, slot: usize) -> Rect {
        let entry = self.entry(level, slot);
        if level == 0 {
            entry.rect::<G>()
        } else {
            entry.rect::<G::Window>()
        }
    }

    /// The child in `slot` of an inner node.
    #[inline(always)]
    pub(in crate::engines) fn child(self, level: u32, slot: usize) -> Child {
        let entry = self.entry(level, slot);
        Child {
            rect: entry.rect::<G::Window>(),
            offset: Offset::from_word(entry.payload::<G::Window>()),
        }
    }

    /// Writes an entry to a slot that is not in use.
    pub(in crate::engines) fn write(self, pm: Pm, level: u32, slot: usize, entry: &Record) {
        for (cell, &word) in self.cells(level, slot).iter().zip(entry.words()) {
            pm.store(cell, word);
        }
    }

    /// Fills a node that is not reachable yet, its first slots with entries. `word` says so.
    pub(in crate::engines) fn fill(
        self,
        pm: Pm,
        word: u64,
        level: u32,
        entries: &[Record],
        chain: Chain,
    ) {
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
        pm.store(&self.block.word, word);
    }
}

/// The neighbours of a leaf in the chain; none for an inner node.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engines) struct Chain {
    pub(in crate::engines) previous: Offset,
    pub(in crate::engines) next: Offset,
}
