//! The layout of what lies in the pool: leaves and the root block.
//!
//! A leaf of points in the plane, 1024 bytes:
//!
//! ```text
//!              +0     +8 ..                        +56
//! line 0       word0 | record 0       | record 1  | sibling 0
//! line 1       word1 | record 2       | record 3  | sibling 1
//! lines 2..15  records 4 to 40, one after the other, and 8 bytes unused
//!
//! word0    bit i, below 48: record i is in use, except records of line 1 · bit 61 turn · bit 62 alt · bit 63 one
//! word1    bits 0..7: the records of line 1 in use if turn is 0 · bits 8..15: if turn is 1 · bit 63 one
//! record   coordinates of the geometry (8 bytes each, f64) · payload (8 bytes)
//! sibling  offset in the pool of the leaf to the right, 0 for none; alt says which of the two counts
//! ```
//!
//! Records of other geometries are longer, so there are fewer: lines 0 and 1 have as many as fit beside the word, and the siblings lie
//! behind them or, if there is no room, at the end of the leaf. [`Shape`] computes all places.
//!
//! A record in line 0 or line 1 shares its line with the word that commits it: one line is flushed, with one fence. When both lines are full,
//! the next record goes to the other lines together with those of lines 0 and 1, so that the next inserts find these two lines free
//! again ("entry moving", section 3.2 of the LB+-Tree paper). One store of word0 commits that: it sets the bits of the records in
//! their new places, clears those of line 0, and turns `turn` over, which makes those of line 1 invalid at once.
//!
//! `alt` and `turn` together make one store of word0 replace the sibling, the records of line 1 and all other records: that is how a leaf
//! splits and merges without a log, as in the LB+-Tree.
//!
//! Bit 63 tells an empty leaf from a page that never reached the disk: see `PoolOptions::salvage`.
//!
//! Records are not sorted. There is no lock and no version in a leaf: locks lie in DRAM (see `concurrency::records`).

use crate::engines::lbtree::directory::DIRECTORIES;
use crate::engines::rect::MAX_WORDS;
use crate::pmem::Cell;
use crate::pmem::geometry::sized_in_tests;
use crate::pool::Offset;
use crate::spatial::{Geometry, MAX_AXES, Rect};
use std::marker::PhantomData;
use std::mem::offset_of;

/// Bytes in a leaf. Smaller under test, so that leaves split and merge within a few operations.
pub(super) const LEAF_BYTES: usize = sized_in_tests(1024, 256);
/// Words in a leaf.
pub(super) const LEAF_WORDS: usize = LEAF_BYTES / 8;
/// Words in a line.
pub(super) const LINE_WORDS: usize = 8;
/// Most records in a leaf, whatever the geometry: as many as word0 has bits for.
pub(super) const MAX_RECORDS: usize = 48;

pub(super) const TURN: u64 = 1 << 61;
pub(super) const ALT: u64 = 1 << 62;
pub(super) const MARK: u64 = 1 << 63;

/// Where what lies in a leaf of geometries of type `G`.
pub(super) struct Shape<G>(PhantomData<G>);

impl<G: Geometry> Shape<G> {
    /// Words in a record.
    pub(super) const WORDS: usize = G::COORDINATES + 1;
    /// Records in each of lines 0 and 1.
    pub(super) const NEAR: usize = (LINE_WORDS - 1) / Self::WORDS;
    /// Whether the siblings lie at the end of lines 0 and 1.
    const SIBLINGS_NEAR: bool = Self::NEAR * Self::WORDS < LINE_WORDS - 1;
    /// Records in the other lines.
    const FAR: usize =
        (LEAF_WORDS - 2 * LINE_WORDS - if Self::SIBLINGS_NEAR { 0 } else { 2 }) / Self::WORDS;
    /// Records in a leaf.
    pub(super) const RECORDS: usize = 2 * Self::NEAR + Self::FAR;

    /// Bits of the records in line 0.
    pub(super) const FRONT_BITS: u64 = (1 << Self::NEAR) - 1;
    /// Bits of the records in line 1, as in the bitmap of a whole leaf.
    pub(super) const ARRIVAL_BITS: u64 = Self::FRONT_BITS << Self::NEAR;
    /// Bits of all records.
    pub(super) const ALL_BITS: u64 = (1 << Self::RECORDS) - 1;
    /// Bits of the records in the other lines.
    pub(super) const FAR_BITS: u64 = Self::ALL_BITS & !Self::FRONT_BITS & !Self::ARRIVAL_BITS;

    const FITS: () =
        assert!(Self::RECORDS <= MAX_RECORDS && Self::FAR > 0 && Self::WORDS <= MAX_WORDS);

    /// The first word of record `slot`.
    #[inline(always)]
    pub(super) const fn word_of(slot: usize) -> usize {
        let () = Self::FITS;
        if slot < Self::NEAR {
            1 + slot * Self::WORDS
        } else if slot < 2 * Self::NEAR {
            LINE_WORDS + 1 + (slot - Self::NEAR) * Self::WORDS
        } else {
            2 * LINE_WORDS + (slot - 2 * Self::NEAR) * Self::WORDS
        }
    }

    /// The lines that hold record `slot`, as a bitmap.
    #[inline(always)]
    pub(super) const fn lines_of(slot: usize) -> u32 {
        let first = Self::word_of(slot);
        let (from, to) = (first / LINE_WORDS, (first + Self::WORDS - 1) / LINE_WORDS);
        1 << from | 1 << to
    }

    /// [`lines_of`](Self::lines_of) by slot.
    pub(super) const LINES: [u32; MAX_RECORDS] = {
        let mut lines = [0; MAX_RECORDS];
        let mut slot = 0;
        while slot < Self::RECORDS {
            lines[slot] = Self::lines_of(slot);
            slot += 1;
        }
        lines
    };

    /// The word that holds sibling `which`.
    #[inline(always)]
    pub(super) const fn sibling(which: usize) -> usize {
        if Self::SIBLINGS_NEAR {
            which * LINE_WORDS + LINE_WORDS - 1
        } else {
            LEAF_WORDS - 2 + which
        }
    }
}

/// Relocations between two leaves that can be under way at a time.
pub(super) const INTENTS: usize = 2;

/// Two stores that belong together: once `state` is one, recovery does both.
///
/// ```text
/// +0   state: 1 while the two stores are under way, 0 otherwise
/// +8   offset in the pool of the first word
/// +16  what is stored there
/// +24  offset in the pool of the second word
/// +32  what is stored there
/// +40  zero
/// ```
#[repr(C, align(64))]
pub(super) struct Intent {
    pub(super) state: Cell,
    /// Offset and value, twice.
    pub(super) stores: [Cell; 4],
    zero: [Cell; 3],
}

/// The root block of a spatial index: the first root of the catalog entry holds its offset.
///
/// ```text
/// +0    head      leftmost leaf of the records
/// +8    heads of the directories of signposts (see lbtree::directory), or 0
/// +32   grid      1 once the extent of the grid has been chosen, 0 before
/// +40   reach     by axis, half the extent of the largest record, or more: f64
/// +64   extent    lower corner, three words · upper corner, three words: f64
/// +112  zero
/// +128  intents   relocations under way, a line each
/// ```
#[repr(C, align(64))]
pub(super) struct RootBlock {
    pub(super) head: Cell,
    pub(super) directories: [Cell; DIRECTORIES],
    pub(super) grid: Cell,
    /// Half of the largest extent of a record by axis, or more: what lies in an unindexed range may reach so far out of it.
    pub(super) reach: [Cell; MAX_AXES],
    pub(super) extent: [Cell; 2 * MAX_AXES],
    zero: [Cell; 2],
    pub(super) intents: [Intent; INTENTS],
}

const _: () = {
    assert!(size_of::<Intent>() == 64);
    assert!(size_of::<RootBlock>() == 256 && size_of::<RootBlock>() <= LEAF_BYTES);
    assert!(offset_of!(RootBlock, directories) == 8);
    assert!(offset_of!(RootBlock, grid) == 32);
    assert!(offset_of!(RootBlock, reach) == 40);
    assert!(offset_of!(RootBlock, extent) == 64);
    assert!(offset_of!(RootBlock, intents) == 128);
};

/// What the root block of a new index holds.
pub(super) struct RootWords {
    pub(super) head: Offset,
    /// Lower and upper corner, once chosen.
    pub(super) extent: Option<[f64; 2 * MAX_AXES]>,
    pub(super) reach: [f64; MAX_AXES],
    pub(super) directories: [Offset; DIRECTORIES],
}

impl RootBlock {
    /// The extent of the grid, if one has been chosen.
    pub(super) fn extent(&self) -> Rect {
        let [a, b, c, d, e, f] = self.corners();
        Rect {
            low: [a, b, c],
            high: [d, e, f],
        }
    }

    fn corners(&self) -> [f64; 2 * MAX_AXES] {
        std::array::from_fn(|i| f64::from_bits(self.extent[i].load()))
    }

    /// What the block holds, for another one that is to take its place.
    pub(super) fn words(&self) -> RootWords {
        RootWords {
            head: Offset::from_word(self.head.load()),
            extent: (self.grid.load() == 1).then(|| self.corners()),
            reach: std::array::from_fn(|axis| f64::from_bits(self.reach[axis].load())),
            directories: std::array::from_fn(|i| Offset::from_word(self.directories[i].load())),
        }
    }

    /// Fills a root block that is not reachable yet, and flushes it.
    pub(super) fn fill(&self, pm: crate::pmem::Pm, words: &RootWords) {
        pm.store(&self.head, words.head.get());
        for (cell, head) in self.directories.iter().zip(words.directories) {
            pm.store(cell, head.get());
        }
        pm.store(&self.grid, u64::from(words.extent.is_some()));
        for (cell, value) in self.reach.iter().zip(words.reach) {
            pm.store(cell, value.to_bits());
        }
        for (cell, value) in self.extent.iter().zip(words.extent.unwrap_or_default()) {
            pm.store(cell, value.to_bits());
        }
        for cell in &self.zero {
            pm.store(cell, 0);
        }
        for intent in &self.intents {
            for cell in [&intent.state]
                .into_iter()
                .chain(&intent.stores)
                .chain(&intent.zero)
            {
                pm.store(cell, 0);
            }
        }
        pm.flush(self);
    }
}
