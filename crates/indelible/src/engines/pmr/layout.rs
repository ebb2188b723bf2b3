//! The layout of what lies in the pool: nodes, descriptors of changes, and the roots in the catalog entry.
//!
//! Nodes are those of [`rect::layout`](crate::engines::rect::layout), with more in the word:
//!
//! ```text
//! word      bits 0..41: the entries in use · bits 42..47: entries that were taken out of use, modulo 64 · bits 48..55: level, 0 for a leaf
//!           bit 56: frozen, the node has been replaced · bit 62 zero · bit 63 one
//! next, previous   0
//! ```
//!
//! An entry comes into use at most once while the node lives and the pool is open, and goes out of use at most once. So the number in bits 42..47
//! does not come round, and the word of a node never has the same value twice. What depends on that is said in `multiword`.
//!
//! A word that is part of a change of several words holds a *mark* meanwhile:
//!
//! ```text
//! mark      bits 0..31: offset of the descriptor, in units of 128 bytes · bits 32..61: number of the change · bits 62, 63 one
//! ```
//!
//! The roots in the catalog entry:
//!
//! ```text
//! root 0        the root of the tree: offset of the node, and its level in the low byte
//! root 1        bit 63 one · bits 0..61: relocations between leaves, ever
//! roots 2..7    offsets of blocks of descriptors
//! ```

use crate::engines::rect::Part;
use crate::engines::rect::layout::Entries;
pub(super) use crate::engines::rect::layout::{MOST_LEVELS, NODE_BYTES};
use crate::pmem::Cell;
use crate::pool::Offset;
use crate::spatial::Geometry;
use std::mem::offset_of;

/// Bits of a word that say which entries are in use.
const ENTRY_BITS: u32 = 42;
const REMOVED_SHIFT: u32 = 42;
const REMOVED: u64 = 0x3f << REMOVED_SHIFT;
const LEVEL_SHIFT: u32 = 48;
const FROZEN: u64 = 1 << 56;
const ONE: u64 = 1 << 63;
const IS_MARK: u64 = 0b11 << 62;

/// The word of a node, at a moment when no change of several words was under way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    /// The word of a new node, whose first entries are in use.
    pub(super) fn new(level: u32, entries: usize) -> Self {
        Self(ONE | u64::from(level) << LEVEL_SHIFT | ((1 << entries) - 1))
    }

    /// The entries in use, as bits. What the word says beyond the entries that fit is not believed.
    #[inline(always)]
    pub(super) fn bitmap<G: Geometry>(self) -> u64 {
        let () = Fits::<G>::FITS;
        self.0 & Entries::<G>::bits(self.level())
    }

    #[inline(always)]
    pub(super) fn level(self) -> u32 {
        (self.0 >> LEVEL_SHIFT & 0xff) as u32
    }

    /// Whether this may be the word of a node of `level`.
    #[inline(always)]
    pub(super) fn is_of(self, level: u32) -> bool {
        let known = FROZEN | REMOVED | ((1 << ENTRY_BITS) - 1);
        self.0 & !known == ONE | u64::from(level) << LEVEL_SHIFT
    }

    /// Whether the node has been replaced. It stays as it is.
    #[inline(always)]
    pub(super) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// The word of the node once it has been replaced.
    pub(super) fn frozen(self) -> Self {
        Self(self.0 | FROZEN)
    }

    /// The word with these entries in use too.
    pub(super) fn with(self, bits: u64) -> Self {
        Self(self.0 | bits)
    }

    /// The word with these entries, all of which are in use, out of use.
    pub(super) fn without(self, bits: u64) -> Self {
        let removed = (self.0 & REMOVED) + (u64::from(bits.count_ones()) << REMOVED_SHIFT);
        Self(self.0 & !(bits | REMOVED) | removed & REMOVED)
    }
}

/// What is asserted of the entries of nodes.
struct Fits<G>(std::marker::PhantomData<G>);

impl<G: Geometry> Fits<G> {
    const FITS: () = assert!(
        Entries::<G>::most(0) <= ENTRY_BITS as usize
            && Entries::<G>::most(1) <= ENTRY_BITS as usize
            // So that a half, or the half of a half, has room for two entries more: see `smo`.
            && Entries::<G>::most(0) >= 4
            && Entries::<G>::most(1) >= 4
    );
}

/// Whether a word is the mark of a change of several words.
#[inline(always)]
pub(super) fn is_mark(word: u64) -> bool {
    word & IS_MARK == IS_MARK
}

/// Numbers of changes have so many bits.
const NUMBER_BITS: u32 = 30;

/// A change of several words: its descriptor, and the number that the change has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) descriptor: Offset,
    pub(super) number: u64,
}

impl Mark {
    #[inline]
    pub(super) fn to_word(self) -> u64 {
        let descriptor = self.descriptor.get() / DESCRIPTOR_BYTES as u64;
        IS_MARK | self.number << 32 | descriptor
    }

    #[inline]
    pub(super) fn from_word(word: u64) -> Self {
        Self {
            descriptor: Offset::from_word((word & 0xffff_ffff) * DESCRIPTOR_BYTES as u64),
            number: word >> 32 & ((1 << NUMBER_BITS) - 1),
        }
    }
}

/// How far a change of several words has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There has been none as yet.
    Unused = 0,
    Undecided = 1,
    Succeeded = 2,
    Failed = 3,
}

/// The state of a change, and its number: the first word of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) state: State,
    pub(super) number: u64,
}

impl Status {
    pub(super) const fn to_word(self) -> u64 {
        ONE | self.number << 2 | self.state as u64
    }

    /// The status that a word holds, which comes from the file.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        let state = match word & 3 {
            0 => State::Unused,
            1 => State::Undecided,
            2 => State::Succeeded,
            _ => State::Failed,
        };
        let number = word >> 2 & ((1 << NUMBER_BITS) - 1);
        let status = Self { state, number };
        (status.to_word() == word).then_some(status)
    }

    /// The status of the next change.
    pub(super) fn next(self) -> Self {
        Self {
            state: State::Undecided,
            number: (self.number + 1) & ((1 << NUMBER_BITS) - 1),
        }
    }

    pub(super) fn with(self, state: State) -> Self {
        Self { state, ..self }
    }
}

/// Words of one change, at most.
pub(super) const MOST_WORDS: usize = 3;
/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 128;
/// Descriptors in a block.
pub(super) const PER_BLOCK: usize = NODE_BYTES / DESCRIPTOR_BYTES;
/// Blocks of descriptors: as many as the catalog entry has roots for.
pub(super) const DESCRIPTOR_BLOCKS: usize = 6;

/// The roots of the catalog entry.
pub(super) const ROOT: usize = 0;
pub(super) const RELOCATIONS: usize = 1;
pub(super) const FIRST_DESCRIPTORS: usize = 2;

/// The number of relocations in an index that has had none.
pub(super) const NO_RELOCATIONS: u64 = ONE;

/// A descriptor of a change of several words.
///
/// ```text
/// +0    status: bit 63 one · bits 2..31: number of the change · bits 0..1: 0 unused, 1 undecided, 2 succeeded, 3 failed
/// +8    offset of a word, or 0; its value before; its value afterwards: three times, in the order of the offsets
/// +80   zero
/// ```
#[repr(C, align(64))]
pub(super) struct Descriptor {
    pub(super) status: Cell,
    pub(super) targets: [Target; MOST_WORDS],
    pub(super) zero: [Cell; 6],
}

/// A word of a change.
#[repr(C)]
pub(super) struct Target {
    pub(super) offset: Cell,
    pub(super) old: Cell,
    pub(super) new: Cell,
}

// SAFETY: it consists of cells, and its layout is asserted to be smaller than a node.
unsafe impl Part for Descriptor {}

const _: () = {
    assert!(size_of::<Descriptor>() == DESCRIPTOR_BYTES && PER_BLOCK > 0);
    assert!(offset_of!(Descriptor, targets) == 8 && offset_of!(Descriptor, zero) == 80);
    assert!(offset_of!(Target, old) == 8 && offset_of!(Target, new) == 16);
    assert!(FIRST_DESCRIPTORS + DESCRIPTOR_BLOCKS <= 8);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Point2;

    #[test]
    fn words_marks_and_statuses_are_told_apart() {
        let word = Word::new(3, 2);
        assert!(word.is_of(3) && !word.is_of(2) && !word.is_frozen());
        assert!(word.frozen().is_of(3) && word.frozen().is_frozen());
        let later = word.with(4).without(3);
        assert!(later.is_of(3) && later.bitmap::<Point2>() == 4 && later != word);
        let around = (0..63).fold(later, |word, _| word.with(1).without(1));
        assert_ne!(around, later);
        assert!(!is_mark(word.0) && !is_mark(word.frozen().0) && !is_mark(NO_RELOCATIONS));
        let mark = Mark {
            descriptor: Offset::from_word(0x1280),
            number: 77,
        };
        assert!(is_mark(mark.to_word()));
        assert_eq!(Mark::from_word(mark.to_word()), mark);
        let status = Status {
            state: State::Failed,
            number: (1 << NUMBER_BITS) - 1,
        };
        assert_eq!(Status::from_word(status.to_word()), Some(status));
        assert_eq!(status.next().number, 0);
        assert_eq!(Status::from_word(0), None);
    }
}
