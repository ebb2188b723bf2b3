//! The layout of a node of an R-tree in the pool.
//!
//! A node, leaf or inner node, of 1024 bytes:
//!
//! ```text
//!        +0     +8     +16        +24    +32
//!       | word | next | previous | zero | entries, one after the other |
//!
//! word      bits 0..47: the entries in use · bits 48..55: level, 0 for a leaf · bit 63 one
//! next      leaf: offset of the next leaf of the chain, 0 for none · inner node, and where leaves form no chain: 0
//! previous  leaf: offset of the leaf before it in the chain, 0 for none · otherwise 0
//! entry     of a leaf: coordinates of the geometry (8 bytes each, f64) · payload
//!           of an inner node: lower corner · upper corner · offset of the child
//! ```
//!
//! Entries are in no order. There is no lock and no version in a node: both lie in DRAM (see `concurrency::records`).

use super::record::MAX_WORDS;
use crate::pmem::Cell;
use crate::pmem::geometry::sized_in_tests;
use crate::spatial::Geometry;
use std::marker::PhantomData;
use std::mem::offset_of;

/// Bytes in a node. Smaller under test, so that nodes split within a few operations.
pub(in crate::engines) const NODE_BYTES: usize = sized_in_tests(1024, 256);
/// Words in front of the entries.
const HEADER_WORDS: usize = 4;
/// Words of all entries of a node.
const ENTRY_WORDS: usize = NODE_BYTES / 8 - HEADER_WORDS;
/// Most entries in a node: as many as its word has bits for.
pub(in crate::engines) const MAX_ENTRIES: usize = 48;
/// Levels of a tree, at most; what the file says is not believed beyond this. A half of a node that was split takes four more entries or more before it is
/// split itself, so each level has at most a quarter of the splits of the one below, and no pool holds a higher tree. Under test a half may take only
/// one, so trees of boxes of space are high and thin.
pub(in crate::engines) const MOST_LEVELS: u32 = sized_in_tests(40, 250) as u32;

const LEVEL_SHIFT: u32 = 48;
const MARK: u64 = 1 << 63;
const BITS: u64 = (1 << MAX_ENTRIES) - 1;

/// The word of a node: which entries are in use, and the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) struct Word(pub(in crate::engines) u64);

impl Word {
    pub(in crate::engines) fn new(level: u32, bitmap: u64) -> Self {
        Self(MARK | u64::from(level) << LEVEL_SHIFT | bitmap)
    }

    /// The entries in use, as bits.
    #[inline(always)]
    pub(in crate::engines) fn bitmap(self) -> u64 {
        self.0 & BITS
    }

    #[inline(always)]
    pub(in crate::engines) fn level(self) -> u32 {
        (self.0 >> LEVEL_SHIFT & 0xff) as u32
    }

    /// The word of the node with other entries in use.
    #[inline(always)]
    pub(in crate::engines) fn with(self, bitmap: u64) -> Self {
        Self(self.0 & !BITS | bitmap)
    }

    /// Whether this may be the word of a node of `level`.
    #[inline(always)]
    pub(in crate::engines) fn is_of(self, level: u32) -> bool {
        self.0 & !BITS == Self::new(level, 0).0
    }
}

/// How many words an entry of a node has, and how many entries fit.
pub(in crate::engines) struct Entries<G>(PhantomData<G>);

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
    pub(in crate::engines) const fn words(level: u32) -> usize {
        let () = Self::FITS;
        if level == 0 {
            Self::OF_LEAF
        } else {
            Self::OF_INNER
        }
    }

    /// Entries of a node.
    #[inline(always)]
    pub(in crate::engines) const fn most(level: u32) -> usize {
        ENTRY_WORDS / Self::words(level)
    }

    /// The bits of all entries of a node.
    #[inline(always)]
    pub(in crate::engines) const fn bits(level: u32) -> u64 {
        (1 << Self::most(level)) - 1
    }
}

/// A node. The head of this file has a drawing.
#[repr(C, align(64))]
pub(in crate::engines) struct Block {
    pub(in crate::engines) word: Cell,
    pub(in crate::engines) next: Cell,
    pub(in crate::engines) previous: Cell,
    zero: Cell,
    pub(in crate::engines) entries: [Cell; ENTRY_WORDS],
}

const _: () = {
    assert!(size_of::<Block>() == NODE_BYTES && NODE_BYTES.is_power_of_two());
    assert!(offset_of!(Block, next) == 8 && offset_of!(Block, previous) == 16);
    assert!(offset_of!(Block, entries) == 8 * HEADER_WORDS);
};
