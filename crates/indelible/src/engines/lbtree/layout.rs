//! The layout of what lies in the pool: leaves and the root block.
//!
//! A leaf is `m` blocks of 256 bytes, `m` from 1 to 4 (figures 4 and 7 of the paper):
//!
//! ```text
//! block 0        +0      +8      +16                                        blocks 1..m
//! line 0  +0    | word0 | word1 | record 0 | record 1  | record 2  |       the same
//! line 1  +64   | record 3      | record 4 | record 5  | record 6  |       the same
//! line 2  +128  | record 7      | record 8 | record 9  | record 10 |       the same
//! line 3  +192  | record 11 | record 12 | record 13 | sibling 0 | 1 |      siblings' place: the alternative header
//!
//! word0   bits 0..13 bitmap of the slots in use · bit 14 one · bit 15 alt (block 0 only) · bytes 2..7 fingerprints 0..5
//! word1   fingerprints 6..13
//! record  key (8 bytes, encoded so that it sorts as an unsigned number) · value (8 bytes)
//! sibling offset in the pool of the leaf to the right, 0 for none; `alt` says which of the two counts
//! ```
//!
//! `alt` of block 0 also chooses the header that counts in all other blocks: 0 the front one, 1 the one at the end. So
//! one 8-byte store to block 0's word0 switches the sibling, all headers and its own bitmap at once: that is how a leaf
//! splits and merges without a log.
//!
//! Bit 14 tells an empty leaf from a page that never reached the disk: see `PoolOptions::salvage`.
//!
//! There is no lock and no version in a leaf: locks lie in DRAM (see `concurrency::records`), so recovery has none to reset.

use crate::pmem::{Cell, Pm};
use crate::pool::Offset;
use std::mem::offset_of;

/// Bytes in a block.
pub(super) const BLOCK_BYTES: usize = 256;
/// Record slots in a block.
pub(super) const SLOTS: usize = 14;
/// Most blocks in a leaf.
pub(super) const MAX_BLOCKS: usize = 4;
/// Most records in a leaf.
pub(super) const MAX_RECORDS: usize = SLOTS * MAX_BLOCKS;
/// The slots of each of the four lines of a block, as bitmaps.
pub(super) const LINE_SLOTS: [u16; 4] = [0x0007, 0x0078, 0x0780, 0x3800];

const BITMAP: u128 = 0x3fff;
const MARK: u128 = 1 << 14;
const ALT: u128 = 1 << 15;

/// A slot of a leaf: room for one record.
#[repr(C, align(16))]
pub(super) struct Slot {
    pub(super) key: Cell,
    pub(super) value: Cell,
}

/// 256 bytes of a leaf. The head of this file has a drawing.
#[repr(C, align(64))]
pub(super) struct Block {
    /// The header at the front.
    pub(super) front: [Cell; 2],
    pub(super) slots: [Slot; SLOTS],
    /// Block 0: the two siblings. Other blocks: the alternative header.
    pub(super) tail: [Cell; 2],
}

/// The root block of a map: the first root of the catalog entry holds its offset.
///
/// ```text
/// +0   head 0   leftmost leaf of the records
/// +8   head 1   leftmost leaf of the directory of signposts into level 0, or 0
/// +16  head 2   the same into level 1, or 0
/// +24  head 3   the same into level 2, or 0
/// +32  zero
/// ```
#[repr(C, align(64))]
pub(super) struct RootBlock {
    pub(super) heads: [Cell; LEVELS],
    zero: [Cell; 32 - LEVELS],
}

impl RootBlock {
    pub(super) fn heads(&self) -> [Offset; LEVELS] {
        self.heads
            .each_ref()
            .map(|head| Offset::from_word(head.load_acquire()))
    }

    /// Fills a root block that is not reachable yet, and persists it.
    pub(super) fn fill(&self, pm: Pm, heads: [Offset; LEVELS]) {
        for (cell, head) in self.heads.iter().zip(heads) {
            pm.store(cell, head.get());
        }
        for cell in &self.zero {
            pm.store(cell, 0);
        }
        pm.persist(self);
    }
}

/// Levels of leaf chains: the records and at most three directories above them.
pub(super) const LEVELS: usize = 4;

const _: () = {
    assert!(size_of::<Slot>() == 16);
    assert!(size_of::<Block>() == BLOCK_BYTES);
    assert!(offset_of!(Block, front) == 0);
    assert!(offset_of!(Block, slots) == 16);
    assert!(offset_of!(Block, tail) == 240);
    assert!(size_of::<RootBlock>() == BLOCK_BYTES);
    assert!(offset_of!(RootBlock, heads) == 0);
};

/// A header as a number: bitmap, `alt` and 14 fingerprints. A copy in DRAM; writing it back is a separate step, so that
/// the durable header changes only where the code says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header(u128);

impl Header {
    #[inline(always)]
    pub(super) fn read(cells: &[Cell; 2]) -> Self {
        Self(u128::from(cells[0].load()) | u128::from(cells[1].load()) << 64)
    }

    /// The header that these two words of a file are.
    #[cfg(all(test, not(loom)))]
    pub(super) fn from_words([word0, word1]: [u64; 2]) -> Self {
        Self(u128::from(word0) | u128::from(word1) << 64)
    }

    /// Writes the second word, which means nothing for slots whose bit is clear, if it differs from `old`.
    #[inline(always)]
    pub(super) fn store_fingerprints(self, pm: Pm, cells: &[Cell; 2], old: Self) {
        if self.word1() != old.word1() {
            pm.store(&cells[1], self.word1());
        }
    }

    /// The word whose store commits a change.
    #[inline(always)]
    pub(super) fn word0(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    pub(super) fn word1(self) -> u64 {
        (self.0 >> 64) as u64
    }

    #[inline(always)]
    pub(super) fn bitmap(self) -> u16 {
        (self.0 & BITMAP) as u16
    }

    #[inline(always)]
    pub(super) fn count(self) -> usize {
        self.bitmap().count_ones() as usize
    }

    /// Bitmap of the slots not in use.
    #[inline(always)]
    pub(super) fn free(self) -> u16 {
        !self.bitmap() & BITMAP as u16
    }

    /// The header of a block with nothing in it.
    pub(super) fn empty() -> Self {
        Self(MARK)
    }

    /// Whether this was ever written as a header.
    pub(super) fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    /// Which sibling, and which headers of the other blocks, count: 0 or 1.
    #[inline(always)]
    pub(super) fn alt(self) -> usize {
        usize::from(self.0 & ALT != 0)
    }

    #[inline(always)]
    pub(super) fn switched(self) -> Self {
        Self(self.0 ^ ALT)
    }

    #[inline(always)]
    pub(super) fn fingerprint(self, slot: usize) -> u8 {
        (self.0 >> (16 + 8 * slot)) as u8
    }

    #[inline(always)]
    pub(super) fn with(self, slot: usize, fingerprint: u8) -> Self {
        let shift = 16 + 8 * slot;
        Self(self.0 & !(0xff << shift) | u128::from(fingerprint) << shift | 1 << slot)
    }

    #[inline(always)]
    pub(super) fn without(self, slot: usize) -> Self {
        Self(self.0 & !(1 << slot))
    }

    /// Bitmap of the slots in use, in the header in `cells`, whose fingerprint is `fingerprint`.
    #[inline(always)]
    pub(super) fn matches(cells: &[Cell; 2], fingerprint: u8) -> u16 {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set1_epi8};
            // SAFETY: SSE2 is part of x86-64. The cells are 16 live bytes, aligned as in a `Block`; others may be writing them, which is why the
            // load is volatile and why the caller validates a version afterwards.
            let equal = unsafe {
                let header = cells.as_ptr().cast::<__m128i>().read_volatile();
                _mm_movemask_epi8(_mm_cmpeq_epi8(header, _mm_set1_epi8(fingerprint as i8)))
            };
            (equal >> 2) as u16 & cells[0].load() as u16 & BITMAP as u16
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let header = Self::read(cells);
            header.equal_plain(fingerprint) & header.bitmap()
        }
    }

    #[cfg(any(all(test, not(loom)), not(target_arch = "x86_64")))]
    fn equal_plain(self, fingerprint: u8) -> u16 {
        (0..SLOTS).fold(0, |mask, slot| {
            mask | u16::from(self.fingerprint(slot) == fingerprint) << slot
        })
    }
}

/// The one-byte hash of a key that the header holds for each slot in use.
#[inline(always)]
pub(super) fn fingerprint(key: u64) -> u8 {
    // The high bits of a product by an odd constant depend on all bits of the key (Fibonacci hashing).
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engines::slots;
    use proptest::prelude::*;

    /// As headers lie in blocks.
    #[repr(align(16))]
    struct Aligned([Cell; 2]);

    #[test]
    fn the_lines_hold_the_slots_that_the_drawing_says() {
        assert_eq!(
            LINE_SLOTS.iter().fold(0, |all, line| all | line),
            BITMAP as u16
        );
        for (line, bitmap) in LINE_SLOTS.iter().enumerate() {
            for slot in slots(*bitmap) {
                assert_eq!(
                    (offset_of!(Block, slots) + slot * size_of::<Slot>()) / 64,
                    line
                );
            }
        }
    }

    proptest! {
        #[test]
        fn headers_remember_slots_and_fingerprints(set in proptest::collection::vec((0..SLOTS, any::<u8>()), 0..40)) {
            let mut header = Header::default().switched();
            let mut model = [None; SLOTS];
            for (slot, print) in set {
                if print % 3 == 0 {
                    header = header.without(slot);
                    model[slot] = None;
                } else {
                    header = header.with(slot, print);
                    model[slot] = Some(print);
                }
                prop_assert_eq!(header.alt(), 1);
                prop_assert_eq!(header.count(), model.iter().flatten().count());
                let wanted = slots(header.bitmap()).filter(|&s| model[s] == Some(print)).map(|s| 1 << s).sum::<u16>();
                let cells = Aligned([Cell::new(header.word0()), Cell::new(header.word1())]);
                prop_assert_eq!(Header::matches(&cells.0, print), wanted);
                prop_assert_eq!(header.equal_plain(print) & header.bitmap(), wanted);
                prop_assert_eq!(header.free() | header.bitmap(), BITMAP as u16);
            }
        }
    }
}
