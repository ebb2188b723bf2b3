//! What nodes have in DRAM: which slots threads have taken, and which records have been counted.
//!
//! A table of three levels, from the offset of a node to its part. Parts are made when a node of their extent is first asked for, by whichever
//! thread comes first, and stay until the index is closed.
//!
//! # Slots
//!
//! A slot is free if its bit in the node's word is zero, and nobody has taken it. A thread takes a slot before it writes an entry there; and it
//! takes the slot of an entry before it makes the entry go out of use. So no slot is used twice while the node lives and the pool is open: who
//! has read the node's word finds the entries of that moment, however late. A node that has no free slot any more is replaced.
//!
//! # Counting
//!
//! After a crash the number of records is not known, and the sweep counts them, while other threads insert and remove. Whoever first marks a slot of a
//! leaf as counted, adds one: the thread that has inserted the record, or the sweep, or the thread that copies the leaf. Who removes a record marks its
//! slot too, and subtracts one if it was marked already. The records of a new leaf are marked from the beginning.

use super::Bug;
use super::layout::NODE_BYTES;
use crate::pmem::planted::planted;
use crate::pmem::schedule::point;
use crate::pool::{EXTENT_BYTES, Offset};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Entries of the two upper levels of the table: together one for each extent that a pool can have.
const WIDTH: usize = 512;
/// Nodes in an extent.
const PER_EXTENT: usize = EXTENT_BYTES as usize / NODE_BYTES;

/// The part of a node in DRAM.
#[derive(Default)]
pub(super) struct NodeSlots {
    /// Slots that somebody has taken, as bits.
    taken: AtomicU64,
    /// Slots whose records have been counted, as bits.
    counted: AtomicU64,
}

impl NodeSlots {
    /// Takes one of the slots in `wanted`, if one of them is free. `bitmap` are those in use, which was read before.
    pub(super) fn take(&self, wanted: u64, bitmap: u64) -> Option<usize> {
        loop {
            point();
            let free = wanted & !(bitmap | self.taken.load(Ordering::SeqCst));
            if free == 0 {
                return None;
            }
            let bit = free & free.wrapping_neg();
            if self.taken.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
                return Some(bit.trailing_zeros() as usize);
            }
        }
    }

    /// Gives a slot back that was taken and never used.
    pub(super) fn give_back(&self, slot: usize) {
        self.taken.fetch_and(!(1 << slot), Ordering::SeqCst);
    }

    /// Takes slots in use, whose entries are about to go out of use.
    pub(super) fn take_used(&self, bits: u64) {
        if planted(Bug::SlotReusedAtOnce) {
            return;
        }
        self.taken.fetch_or(bits, Ordering::SeqCst);
    }

    /// Marks slots as counted, and returns which of them were not.
    pub(super) fn count(&self, bits: u64) -> u64 {
        bits & !self.counted.fetch_or(bits, Ordering::SeqCst)
    }

    /// Begins with a new node, which nobody else knows, and whose records, in the slots of `bitmap`, are counted.
    pub(super) fn begin(&self, bitmap: u64) {
        self.taken.store(0, Ordering::SeqCst);
        self.counted.store(bitmap, Ordering::SeqCst);
    }
}

type Extent = [NodeSlots; PER_EXTENT];
type Middle = [AtomicPtr<Extent>; WIDTH];

/// The parts of all nodes.
pub(super) struct Slots {
    top: Box<[AtomicPtr<Middle>]>,
    extents: AtomicU64,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            top: (0..WIDTH).map(|_| AtomicPtr::new(null_mut())).collect(),
            extents: AtomicU64::new(0),
        }
    }

    /// The part of the node at `offset`, where there is a block.
    #[inline]
    pub(super) fn of(&self, offset: Offset) -> &NodeSlots {
        let extent = offset.extent() as usize;
        let middle = made(&self.top[extent / WIDTH % WIDTH], || {
            Box::new(std::array::from_fn(|_| AtomicPtr::new(null_mut())))
        })
        .0;
        let (nodes, is_new) = made(&middle[extent % WIDTH], || {
            let nodes: Vec<NodeSlots> = (0..PER_EXTENT).map(|_| NodeSlots::default()).collect();
            let nodes: Box<[NodeSlots]> = nodes.into();
            // As many as were made.
            nodes.try_into().unwrap_or_else(|_| unreachable!())
        });
        if is_new {
            self.extents.fetch_add(1, Ordering::Relaxed);
        }
        &nodes[offset.within_extent() as usize / NODE_BYTES]
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        let extents = self.extents.load(Ordering::Relaxed);
        size_of_val(&*self.top) as u64 + extents * size_of::<Extent>() as u64
    }
}

/// What a pointer of the table leads to, which is made if there is nothing, and whether this call has made it.
#[inline]
fn made<T>(pointer: &AtomicPtr<T>, make: impl FnOnce() -> Box<T>) -> (&T, bool) {
    let known = pointer.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: a pointer of the table, once set, stays until the table is dropped.
        return (unsafe { &*known }, false);
    }
    let new = Box::into_raw(make());
    match pointer.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: as above.
        Ok(_) => (unsafe { &*new }, true),
        Err(known) => {
            // SAFETY: `new` was just made, and nobody else has seen it; `known` as above.
            let known = unsafe {
                drop(Box::from_raw(new));
                &*known
            };
            (known, false)
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for middle in &self.top {
            let middle = middle.load(Ordering::Acquire);
            if middle.is_null() {
                continue;
            }
            // SAFETY: the table owns what its pointers lead to, and nobody else uses the table any more.
            let middle = unsafe { Box::from_raw(middle) };
            for extent in middle.iter() {
                let extent = extent.load(Ordering::Acquire);
                if !extent.is_null() {
                    // SAFETY: as above.
                    drop(unsafe { Box::from_raw(extent) });
                }
            }
        }
    }
}
