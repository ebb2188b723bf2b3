//! Links to nodes, and a queue of them for searches for the nearest records.

use super::layout::{MOST_LEVELS, NODE_BYTES};
use crate::pool::Offset;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A link to a node: its offset, and its level in the low byte, which the offset of a block leaves free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) struct Link {
    pub(in crate::engines) offset: Offset,
    pub(in crate::engines) level: u32,
}

impl Link {
    pub(in crate::engines) fn to_word(self) -> u64 {
        self.offset.get() | u64::from(self.level)
    }

    pub(in crate::engines) fn from_word(word: u64) -> Self {
        Self {
            offset: Offset::from_word(word & !0xff),
            level: (word & 0xff) as u32,
        }
    }
}

const _: () = assert!(NODE_BYTES >= 256 && MOST_LEVELS < 256);

/// Nodes in the order of distances, which are at least 0, so that their bits are in the order of the numbers; then in that of their offsets.
#[derive(Default)]
pub(in crate::engines) struct Queue(BinaryHeap<Reverse<(u64, u64)>>);

impl Queue {
    pub(in crate::engines) fn push(&mut self, bound: f64, link: Link) {
        self.0.push(Reverse((bound.to_bits(), link.to_word())));
    }

    pub(in crate::engines) fn pop(&mut self) -> Option<(f64, Link)> {
        let Reverse((bound, link)) = self.0.pop()?;
        Some((f64::from_bits(bound), Link::from_word(link)))
    }
}
