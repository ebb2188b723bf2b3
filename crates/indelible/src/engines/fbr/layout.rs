//! The layout of the root block and of its log. Nodes are those of [`rect::layout`](crate::engines::rect::layout).

pub(super) use crate::engines::rect::layout::{Entries, MOST_LEVELS, NODE_BYTES, Word};
use crate::pmem::{Cell, Pm};
use crate::pool::Offset;
use std::mem::offset_of;

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
