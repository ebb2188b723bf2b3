//! The records of a frozen node, in order: what most structure changes begin with. And the buffers in which structure
//! changes lay out nodes.
//!
//! The primary array is nearly sorted. So the records of each line pair are sorted in vector registers, and the few
//! displaced records are moved to where they belong as the line pairs are appended to one another; then the sorted
//! records of the stash are merged in.

use super::Tree;
use super::build::Record;
use super::data::DataNode;
use super::scan::{merge, sorted_line_pairs};
use crate::engines::KeyValue;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::{Error, Result};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

impl Tree {
    /// All records of a frozen node, in ascending order of their keys. `Error::Damaged` if a key occurs twice, which only
    /// damage of the pool can cause: a new node for these records would lose one of them.
    pub(super) fn records_of(&self, data: &DataNode) -> Result<Vec<Record>> {
        let (buffer, count) = dispatch(self.simd, Gather { tree: self, data });
        let records: &[KeyValue] = &buffer.as_chunks().0[..count];
        let all: Vec<Record> = records.iter().map(|&[key, value]| (key, value)).collect();
        if !all.is_sorted_by(|a, b| a.0 < b.0) {
            let at = data.offset();
            let problem = format!("data node {at:#x} has several records of a key");
            return Err(Error::Damaged(problem));
        }
        Ok(all)
    }
}

/// Copies the records of a frozen node whose keys are in the range of the node, in order, and counts them.
struct Gather<'a> {
    tree: &'a Tree,
    data: &'a DataNode,
}

impl Kernel for Gather<'_> {
    type Out = (Buffer, usize);

    #[inline(always)]
    fn run<S: Simd>(self) -> (Buffer, usize) {
        let Self { tree, data } = self;
        let (low, span) = (data.low, data.high.saturating_sub(data.low));
        let mut stash: Vec<KeyValue> = (0..data.stash_slots())
            .filter_map(|slot| {
                let slot = tree.slot_at(data.stash_at(slot)?);
                let key = slot.key.load();
                // The marker of free slots is not in the range (data I3).
                (key.wrapping_sub(low) <= span).then(|| [key, slot.value.load()])
            })
            .collect();
        stash.sort_unstable_by_key(|record| record[0]);
        let mut buffer = Buffer::of((data.slots() + stash.len()) * 2);
        let records: &mut [KeyValue] = buffer.as_chunks_mut().0;
        let pairs = tree.lines(data, 0, data.primary as usize).as_chunks().0;
        let count = sorted_line_pairs::<S>(pairs, low, span, records);
        let count = merge(records, 0..count, &stash);
        (buffer, count)
    }
}

/// Words of memory for a structure change. A thread keeps some buffers for the next structure change, since the system
/// takes longer to map fresh memory than the change takes to fill it.
#[derive(Default)]
pub(super) struct Buffer(Vec<u64>);

thread_local! {
    static SPARE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Most buffers that a thread keeps. Each may be as large as a data node, and a structure change has few of them
/// in use at once.
const MAX_SPARE_BUFFERS: usize = 4;

impl Buffer {
    /// An empty buffer.
    pub(super) fn empty() -> Self {
        let mut words = Self::spare();
        words.clear();
        Self(words)
    }

    /// A buffer of `length` words, whose values mean nothing.
    pub(super) fn of(length: usize) -> Self {
        let mut words = Self::spare();
        words.resize(length, 0);
        Self(words)
    }

    /// A buffer that the thread has kept, or else an empty one. A thread that is ending has no buffers any more.
    fn spare() -> Vec<u64> {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        spare.ok().flatten().unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.0);
        // A thread that is ending keeps no buffers.
        let _ = SPARE.try_with(|spare| {
            let spare = &mut *spare.borrow_mut();
            if spare.len() < MAX_SPARE_BUFFERS {
                spare.push(words);
            }
        });
    }
}

impl Deref for Buffer {
    type Target = Vec<u64>;

    fn deref(&self) -> &Vec<u64> {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u64> {
        &mut self.0
    }
}
