//! Operations on one node. Only the thread that holds the tree's mutex writes nodes; what it changes in a node that others can reach, apart
//! from boxes that grow, it changes with the lock of the node. Who reads without the mutex validates the version of the node afterwards.

use super::layout::{Entries, RootBlock, Word};
use crate::engines::rect::Part;
pub(super) use crate::engines::rect::{Chain, Child, Node, Nodes};
use crate::engines::slots;
use crate::pmem::Pm;
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};

// SAFETY: it consists of cells, and its layout is asserted to be smaller than a node.
unsafe impl Part for RootBlock {}

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
