//! The layout of the pool's blocks: inner nodes, data nodes, extended stash blocks. What is in DRAM only has other
//! names and lies in other files.
//!
//! A block has 256 bytes times a power of two, up to 16 MiB.
//!
//! ```text
//! inner node    +0    word0 | base | slots | zero ...           word0: mark (16 bits), shift (8), log2 of the slots (8)
//! (head, 256 B) +64   up to 16 slots, if there are no more      slots: offset of the slots, in the head or in a block of their own
//!
//! slot          offset of a child's block, plus 1 if the child is an inner node
//!               2 (in format 1: 0): this slot leads to the child of the slot whose number lacks the lowest set bit,
//!               and so on
//!
//! data node     +0    word0 | base | limit | mult | bias | extension | low | marker | zero ...
//! (512 B to     +128  primary array: 16-byte slots, 4 to a line
//!  256 KiB)     ...   stash array: 16-byte slots, to the end of the block
//!
//!               word0: mark (16 bits), the model's shift (8), 8 bits zero, primary slots (16), stash slots (16)
//!               base, limit, mult, bias: the model · low: the smallest key that is routed here
//!               extension: the first extended stash block, or 0 · marker: the key of free slots (in format 1: 0)
//!
//! extended      +0    next | zero                               next: the next extended stash block, or 0
//! stash (256 B) +16   15 slots
//! ```
//!
//! An inner node of 2^k slots takes a key to slot `min((key - base) >> shift, 2^k - 1)`, and keys below `base` to slot
//! 0. A child has a *child group* of slots: a power of two of them, aligned to their number. **Only the first slot of a
//! child group holds the link to the child**; the others hold none. So one durable word leads to each node, and one 8-byte
//! store replaces a node. That is why structure changes need no log.
//!
//! A slot of a data node is free if its key is the node's *marker*, a key value outside of the range of the node:
//! `u64::MAX`, or in the node that has `u64::MAX` in its range the key value before the first of its range. (In format
//! 1: 0, or `u64::MAX` in the node whose range begins at 0.) No data node has all keys in its range, so every data node
//! has a marker. (Section 4.2 of the paper does the same.) In format 2 neither free slots nor slots without a link are
//! zero, so a lost page, which reads as zeros, is never taken for a part of a map: see [`format`](super::format).

use super::format::{Format, marker_of};
use super::model::Model;
pub(super) use crate::engines::blocks::SMALLEST_BLOCK;
use crate::pmem::{Cell, Pm};
pub(super) use crate::pool::Offset;
use std::mem::offset_of;

/// Number of sizes of blocks: 256 bytes times a power of two, up to 16 MiB.
pub(super) const CLASSES: usize = 17;
/// Most slots that lie in the head of an inner node.
pub(super) const INLINE_SLOTS: usize = 16;
/// Slots of an extended stash block.
pub(super) const EXTENSION_SLOTS: usize = 15;
/// Bytes of a data node before its primary array.
pub(super) const HEADER_BYTES: u64 = size_of::<DataHeader>() as u64;
/// Bytes of a slot of a data node.
pub(super) const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

/// What the first 16 bits of an inner node are. So damage, or a wrong link, does not pass for an inner node.
const INNER_MARK: u64 = 0x1a9e;
/// What the first 16 bits of a data node are.
const DATA_MARK: u64 = 0xda7a;

/// A slot of a data node or of an extended stash block: room for one record.
#[repr(C, align(16))]
pub(super) struct Slot {
    pub(super) key: Cell,
    pub(super) value: Cell,
}

/// The first 256 bytes of an inner node; the head of this file has the drawing.
#[repr(C, align(256))]
pub(super) struct InnerHead {
    word0: Cell,
    pub(super) base: Cell,
    pub(super) slots: Cell,
    zero: [Cell; 5],
    pub(super) inline: [Cell; INLINE_SLOTS],
    rest: [Cell; 8],
}

/// The first two lines of a data node; the head of this file has the drawing. The second line is zero: it makes the
/// line pairs of the primary array begin at multiples of 128 bytes, as the pairs of lines that the processor fetches
/// together do.
#[repr(C, align(128))]
pub(super) struct DataHeader {
    word0: Cell,
    model: [Cell; 4],
    pub(super) extension: Cell,
    pub(super) low: Cell,
    marker: Cell,
    zero: [Cell; 8],
}

/// An extended stash block; the head of this file has the drawing.
#[repr(C, align(256))]
pub(super) struct Extension {
    pub(super) next: Cell,
    pub(super) zero: Cell,
    pub(super) slots: [Slot; EXTENSION_SLOTS],
}

const _: () = {
    assert!(size_of::<Slot>() == 16);
    assert!(size_of::<InnerHead>() == 256);
    assert!(offset_of!(InnerHead, base) == 8);
    assert!(offset_of!(InnerHead, slots) == 16);
    assert!(offset_of!(InnerHead, inline) == 64);
    assert!(size_of::<DataHeader>() == 128);
    assert!(offset_of!(DataHeader, model) == 8);
    assert!(offset_of!(DataHeader, extension) == 40);
    assert!(offset_of!(DataHeader, low) == 48);
    assert!(offset_of!(DataHeader, marker) == 56);
    assert!(size_of::<Extension>() == 256);
    assert!(offset_of!(Extension, slots) == 16);
};

/// The link to a child in a durable slot: the offset of the child's block, and whether the child is an inner node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link(pub(super) u64);

impl Link {
    pub(super) fn data(offset: Offset) -> Self {
        Self(offset.get())
    }

    pub(super) fn inner(offset: Offset) -> Self {
        Self(offset.get() | 1)
    }

    pub(super) fn is_inner(self) -> bool {
        self.0 & 1 != 0
    }

    pub(super) fn offset(self) -> Offset {
        Offset::from_word(self.0 & !1)
    }
}

/// How an inner node maps keys to slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Radix {
    pub(super) base: u64,
    pub(super) shift: u32,
    pub(super) log_slots: u32,
}

impl Radix {
    pub(super) fn slots(self) -> usize {
        1 << self.log_slots
    }

    /// The slot that `key` is mapped to.
    #[inline(always)]
    pub(super) fn slot_of(self, key: u64) -> usize {
        let last = (1 << self.log_slots) - 1;
        ((key.saturating_sub(self.base) >> self.shift) as usize).min(last)
    }

    /// The smallest key from `base` on that is mapped to `slot` or a later slot; larger than any key if there is none.
    pub(super) fn start_of(self, slot: usize) -> u128 {
        u128::from(self.base) + ((slot as u128) << self.shift)
    }

    /// The lowest and the highest key that are mapped to the child group of `1 << log` slots from `first` on, in a node
    /// for the keys from `low` to `high`. A child group that begins beyond all keys has the highest key as its lowest
    /// one.
    pub(super) fn range_of(self, first: usize, log: u32, low: u64, high: u64) -> (u64, u64) {
        let after = first + (1 << log);
        let from = if first == 0 {
            low
        } else {
            u64::try_from(self.start_of(first))
                .unwrap_or(u64::MAX)
                .max(low)
        };
        let to = if after >= self.slots() {
            high
        } else {
            u64::try_from(self.start_of(after) - 1)
                .unwrap_or(u64::MAX)
                .min(high)
        };
        (from, to)
    }

    /// Whether an inner node of at most `1 << most` slots can have this radix.
    fn is_valid(self, most: u32) -> bool {
        self.shift < 64 && (1..=most).contains(&self.log_slots)
    }
}

impl InnerHead {
    /// Fills a head that is not reachable yet, and flushes it. The slots are at the offset `slots`: `inline` if they
    /// lie in the head.
    pub(super) fn fill(&self, pm: Pm, radix: Radix, slots: Offset, inline: &[u64]) {
        let word0 = INNER_MARK | u64::from(radix.shift) << 16 | u64::from(radix.log_slots) << 24;
        pm.store(&self.word0, word0);
        pm.store(&self.base, radix.base);
        pm.store(&self.slots, slots.get());
        for cell in &self.zero {
            pm.store(cell, 0);
        }
        let links = inline.iter().copied().chain(std::iter::repeat(0));
        for (cell, link) in self.inline.iter().chain(&self.rest).zip(links) {
            pm.store(cell, link);
        }
        pm.flush(self);
    }

    /// The radix of the node and the offset of its slots; `None` if this is no head of an inner node of at most `1 <<
    /// most` slots.
    pub(super) fn read(&self, most: u32) -> Option<(Radix, Offset)> {
        let word0 = self.word0.load();
        let radix = Radix {
            base: self.base.load(),
            shift: (word0 >> 16) as u8 as u32,
            log_slots: (word0 >> 24) as u32,
        };
        let slots = || Offset::from_word(self.slots.load());
        (word0 & 0xffff == INNER_MARK && radix.is_valid(most)).then(|| (radix, slots()))
    }
}

/// What the header of a data node says of its arrays and its range, and what follows from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataGeometry {
    pub(super) model: Model,
    pub(super) primary: usize,
    pub(super) stash: usize,
    pub(super) low: u64,
    /// The marker of free slots.
    pub(super) marker: u64,
}

impl DataHeader {
    /// The words of a new node's header.
    pub(super) fn words(geometry: &DataGeometry, format: Format) -> [u64; 16] {
        let Model {
            base,
            limit,
            mult,
            bias,
            left_shift,
        } = geometry.model;
        let word0 = DATA_MARK
            | u64::from(left_shift) << 16
            | (geometry.primary as u64) << 32
            | (geometry.stash as u64) << 48;
        let mut words = [0; 16];
        words[..7].copy_from_slice(&[word0, base, limit, mult, bias, 0, geometry.low]);
        words[7] = format.stored_marker(geometry.marker);
        words
    }

    /// What the header of a node in a block of `bytes`, whose range ends at `high`, says; `None` if this is no valid
    /// header of a data node.
    pub(super) fn read(&self, bytes: u64, high: u64, format: Format) -> Option<DataGeometry> {
        let word0 = self.word0.load();
        let (primary, stash) = ((word0 >> 32) as u16 as usize, (word0 >> 48) as usize);
        let slots = (bytes - HEADER_BYTES) / SLOT_BYTES;
        let is_valid = word0 & 0xffff == DATA_MARK
            && (word0 >> 24) as u8 == 0
            && primary.is_multiple_of(LINE_PAIR_SLOTS)
            && primary >= WINDOW_SLOTS
            && (primary + stash) as u64 == slots;
        if !is_valid {
            return None;
        }
        let words = self.model.each_ref().map(Cell::load);
        let left_shift = (word0 >> 16) as u8 as u32;
        let low = self.low.load();
        let marker = marker_of(format, low, high);
        // Otherwise the node was made for another range, and its free slots would look like records.
        if self.marker.load() != format.stored_marker(marker) {
            return None;
        }
        Some(DataGeometry {
            model: Model::from_words(words, left_shift, predictable_slots(primary))?,
            primary,
            stash,
            low,
            marker,
        })
    }
}

pub(super) use super::model::{
    GROUP_LINE_PAIRS, GROUP_SLOTS, LINE_PAIR_SLOTS, LINE_SLOTS, WINDOW_SLOTS, predictable_slots,
};

/// The first slot of the line pair of a predicted slot.
#[inline(always)]
pub(super) fn line_pair_of(predicted: usize) -> usize {
    predicted & !(LINE_PAIR_SLOTS - 1)
}

/// The first slot of the window of a predicted slot: of its line pair, or of the line pair before, if the window would
/// leave the group otherwise (data I2).
#[inline(always)]
pub(super) fn window_of(predicted: usize) -> usize {
    line_pair_of(predicted).min((predicted | (GROUP_SLOTS - 1)) + 1 - WINDOW_SLOTS)
}
