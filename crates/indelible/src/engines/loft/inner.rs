//! The part of an inner node in DRAM.

use super::layout::LINE;
use super::node::{Block, Child, Move};
use crate::concurrency::epochs::{self, Stamp};
use crate::pmem::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// An inner node: equal parts of a range of keys, and what lies outside the parts.
#[repr(C, align(64))]
pub(super) struct Inner {
    pub(super) base: u64,
    pub(super) shift: u32,
    pub(super) log_parts: u32,
    pub(super) children: Box<[AtomicUsize]>,
    pub(super) moving: AtomicPtr<Move>,
    pub(super) settling: Settling,
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) block: Block,
    /// Inner nodes above this one, and moves to it, if it was opened. One that this process has built has nothing beneath it that is still to be opened, and
    /// says 0.
    pub(super) level: u32,
}

/// Whether threads may still copy records to a node from the node that it replaces.
///
/// A copy that comes late finds in the successor that its key has been there, or that the key was removed: slots keep their keys. Where the
/// successor has nodes beneath it, these must not be replaced in their turn as long as such a thread may come: it would find the replacement, which has
/// forgotten what was removed, and the record would be there again. So an inner node that is the target of a move keeps its children until the move has
/// ended and an epoch has passed. Meanwhile nodes that are full get buckets, so nobody waits for this.
#[derive(Default)]
pub(super) struct Settling {
    is_under_way: AtomicBool,
    /// When the move ended.
    ended: OnceLock<Stamp>,
}

impl Settling {
    /// The node is the target of a move that begins.
    pub(super) fn begin(&self) {
        self.is_under_way.store(true, Ordering::Relaxed);
    }

    /// The move has ended, as the stamp says.
    pub(super) fn end(&self, stamp: Stamp) {
        let _ = self.ended.set(stamp);
    }

    /// Whether the children may be replaced.
    pub(super) fn is_over(&self) -> bool {
        if !self.is_under_way.load(Ordering::Relaxed) {
            return true;
        }
        let is_over = self
            .ended
            .get()
            .is_some_and(|&stamp| epochs::has_passed(stamp));
        if is_over {
            self.is_under_way.store(false, Ordering::Relaxed);
        }
        is_over
    }
}

// SAFETY: as for `Node`.
unsafe impl Send for Inner {}
// SAFETY: as for `Node`.
unsafe impl Sync for Inner {}

impl Inner {
    /// The node in `block`, whose header is valid, with these children, below so many others.
    pub(super) fn new(block: Block, children: Box<[AtomicUsize]>, level: u32) -> Self {
        let header = block.inner_header();
        let mark = header.mark.load();
        Self {
            base: header.base.load(),
            shift: (mark >> 8 & 0xff) as u32,
            log_parts: (mark & 0xff) as u32,
            children,
            moving: AtomicPtr::default(),
            settling: Settling::default(),
            low: header.low.load(),
            high: header.high.load(),
            block,
            level,
        }
    }

    fn parts(&self) -> usize {
        1 << self.log_parts
    }

    /// The number of the child that a key of this node belongs to.
    #[inline(always)]
    pub(super) fn index(&self, key: u64) -> usize {
        let part = key.wrapping_sub(self.base) >> (self.shift & 63);
        if part >> (self.log_parts & 63) == 0 {
            part as usize
        } else {
            self.parts() + usize::from(key >= self.base)
        }
    }

    #[inline(always)]
    pub(super) fn child(&self, index: usize) -> Child {
        // SAFETY: `index` comes from `index()`, which is below the number of children, parts and two, or from a loop over them.
        Child(unsafe { self.children.get_unchecked(index) }.load(Ordering::Acquire))
    }

    /// Replaces a child, if it is the expected one.
    pub(super) fn replace(&self, index: usize, old: Child, new: Child) -> bool {
        let child = &self.children[index];
        child
            .compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    pub(super) fn cell(&self, index: usize) -> &Cell {
        &self.block.cells()[LINE as usize / 8 + index]
    }

    /// The keys of a child, both ends included; `None` if it has none.
    pub(super) fn range(&self, index: usize) -> Option<(u64, u64)> {
        range_of(
            (self.low, self.high),
            (self.base, self.shift, self.log_parts),
            index,
        )
    }

    /// Where a child lies.
    pub(super) fn side(&self, index: usize) -> Side {
        let span = 1_u64.checked_shl(self.log_parts + self.shift);
        let span = span.unwrap_or(u64::MAX);
        match index.checked_sub(self.parts()) {
            None => Side::Part,
            Some(0) => Side::Below { span },
            Some(_) => Side::Above { span },
        }
    }

    pub(super) fn word(&self) -> u64 {
        self.block.offset.get() | super::layout::IS_INNER
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.children)) as u64
    }
}

/// Where a node lies among the children of its parent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// It is one of the equal parts.
    Part,
    /// Below all parts, which have so many keys together.
    Below { span: u64 },
    /// Above all parts.
    Above { span: u64 },
}

/// The keys of child `index` of an inner node of some shape.
pub(super) fn range_of(
    (low, high): (u64, u64),
    (base, shift, log_parts): (u64, u32, u32),
    index: usize,
) -> Option<(u64, u64)> {
    let parts = 1_u128 << log_parts;
    let begin = |part: u128| u128::from(base) + (part << shift);
    let (from, to) = match index as u128 {
        part if part < parts => (begin(part), begin(part + 1)),
        part if part == parts => (u128::from(low), u128::from(base)),
        _ => (begin(parts), u128::from(high) + 1),
    };
    let (from, to) = (from.max(low.into()), to.min(u128::from(high) + 1));
    (from < to).then(|| (from as u64, (to - 1) as u64))
}
