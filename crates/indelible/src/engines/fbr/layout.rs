//! The layout of what lies in the pool: nodes and the root block.
//!
//! A node, leaf or inner node, of 1024 bytes:
//!
//! ```text
//!        +0     +8     +16        +24    +32
//!       | word | next | previous | zero | entries, one after the other |
//!
//! word      bits 0..47: the entries in use · bits 48..55: level, 0 for a leaf · bit 63 one
//! next      leaf: offset of the next leaf of the chain, 0 for none · inner node: 0
//! previous  leaf: offset of the leaf before it in the chain, 0 for none · inner node: 0
//! entry     of a leaf: coordinates of the geometry (8 bytes each, f64) · payload
//!           of an inner node: lower corner · upper corner · offset of the child
//! ```
//!
//! Entries are in no order. There is no lock and no version in a node: both lie in DRAM (see `concurrency::records`).

use crate::engines::rect::MAX_WORDS;
use crate::pmem::geometry::sized_in_tests;
use crate::pmem::{Cell, Pm};
use crate::pool::Offset;
use crate::spatial::Geometry;
use std::marker::PhantomData;
use std::mem::offset_of;

/// Bytes in a node. Smaller under test, so that nodes split within a few operations.
pub(super) const NODE_BYTES: usize = sized_in_tests(1024, 256);
/// Words in front of the entries.
const HEADER_WORDS: usize = 4;
/// Words of all entries of a node.
const ENTRY_WORDS: usize = NODE_BYTES / 8 - HEADER_WORDS;
/// Most entries in a node: as many as its word has bits for.
pub(super) const MAX_ENTRIES: usize = 48;
/// Levels of a tree, at most; what the file says is not believed beyond this. A half of a node that was split takes four more entries or more before it is
/// split itself, so each level has at most a quarter of the splits of the one below, and no pool holds a higher tree. Under test a half may take only
/// one, so trees of boxes of space are high and thin.
pub(super) const MOST_LEVELS: u32 = sized_in_tests(40, 250) as u32;

const LEVEL_SHIFT: u32 = 48;
const MARK: u64 = 1 << 63;
const BITS: u64 = (1 << MAX_ENTRIES) - 1;

/// The word of a node: which entries are in use, and the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    pub(super) fn new(level: u32, bitmap: u64) -> Self {
        Self(MARK | u64::from(level) << LEVEL_SHIFT | bitmap)
    }

    /// The entries in use, as bits.
    #[inline(always)]
    pub(super) fn bitmap(self) -> u64 {
        self.0 & BITS
    }

    #[inline(always)]
    pub(super) fn level(self) -> u32 {
        (self.0 >> LEVEL_SHIFT & 0xff) as u32
    }

    /// The word of the node with other entries in use.
    #[inline(always)]
    pub(super) fn with(self, bitmap: u64) -> Self {
        Self(self.0 & !BITS | bitmap)
    }

    /// Whether this may be the word of a node of `level`.
    #[inline(always)]
    pub(super) fn is_of(self, level: u32) -> bool {
        self.0 & !BITS == Self::new(level, 0).0
    }
}

/// How many words an entry of a node has, and how many entries fit.
pub(super) struct Entries<G>(PhantomData<G>);

impl<G: Geometry> Entries<G> {
    const OF_LEAF: usize = G::COORDINATES + 1;
    const OF_INNER: usize = 2 * G::AXES + 1;

    const FITS: () = assert!(
        Self::OF_INNER <= MAX_WORDS
            && ENTRY_WORDS / Self::OF_LEAF <= MAX_ENTRIES
            && ENTRY_WORDS / Self::OF_INNER >= 4
    );

    /// Words of an entry.
    #[inline(always)]
    pub(super) const fn words(level: u32) -> usize {
        let () = Self::FITS;
        if level == 0 {
            Self::OF_LEAF
        } else {
            Self::OF_INNER
        }
    }

    /// Entries of a node.
    #[inline(always)]
    pub(super) const fn most(level: u32) -> usize {
        ENTRY_WORDS / Self::words(level)
    }

    /// The bits of all entries of a node.
    #[inline(always)]
    pub(super) const fn bits(level: u32) -> u64 {
        (1 << Self::most(level)) - 1
    }
}

/// A node. The head of this file has a drawing.
#[repr(C, align(64))]
pub(super) struct Block {
    pub(super) word: Cell,
    pub(super) next: Cell,
    pub(super) previous: Cell,
    zero: Cell,
    pub(super) entries: [Cell; ENTRY_WORDS],
}

/// Stores that the log takes: more than any change makes.
pub(super) const LOGGED: usize = 3;

/// A redo log of one change: once `state` is one, recovery does all its stores.
///
/// ```text
/// +0   offset in the pool of a word, or 0; what is stored there: three times
/// +48  state: 1 while the stores are under way, 0 otherwise
/// +56  zero
/// ```
///
/// All words lie in one line, `state` behind the others, so that one flush makes them durable in this order.
#[repr(C, align(64))]
pub(super) struct Log {
    pub(super) stores: [[Cell; 2]; LOGGED],
    pub(super) state: Cell,
    zero: Cell,
}

/// The root block of an index: the first root of the catalog entry holds its offset.
///
/// ```text
/// +0    root     the root of the tree: a leaf, or an inner node
/// +8    head     the first leaf of the chain
/// +16   settled  generation of the pool in which the inner nodes were made durable at a close, or 0; used with flush=leaves
/// +24   zero
/// +64   log      the change under way, a line
/// ```
#[repr(C, align(64))]
pub(super) struct RootBlock {
    pub(super) root: Cell,
    pub(super) head: Cell,
    pub(super) settled: Cell,
    zero: [Cell; 5],
    pub(super) log: Log,
}

const _: () = {
    assert!(size_of::<Block>() == NODE_BYTES);
    assert!(offset_of!(Block, next) == 8 && offset_of!(Block, previous) == 16);
    assert!(offset_of!(Block, entries) == 8 * HEADER_WORDS);
    assert!(size_of::<Log>() == 64 && offset_of!(Log, state) == 48);
    assert!(size_of::<RootBlock>() == 128 && size_of::<RootBlock>() <= NODE_BYTES);
    assert!(offset_of!(RootBlock, head) == 8 && offset_of!(RootBlock, settled) == 16);
    assert!(offset_of!(RootBlock, log) == 64);
};

impl RootBlock {
    /// Fills a root block that is not reachable yet, and flushes it.
    pub(super) fn fill(&self, pm: Pm, root: Offset, head: Offset, settled: u64) {
        pm.store(&self.root, root.get());
        pm.store(&self.head, head.get());
        pm.store(&self.settled, settled);
        let log = self.log.stores.as_flattened().iter();
        let zero = self.zero.iter().chain(log);
        zero.chain([&self.log.state, &self.log.zero])
            .for_each(|cell| pm.store(cell, 0));
        pm.flush(self);
    }
}
