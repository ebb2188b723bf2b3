//! The records of a node, and memory to lay them out in: what structure changes begin with.

use super::Tree;
use super::build::Record;
use super::data::DataNode;
use super::scan::{KeyValue, merge, sorted_pairs};
use crate::index::simd::{Kernel, Simd, dispatch};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

impl Tree {
    /// All records of a frozen node, in order.
    pub(super) fn records_of(&self, data: &DataNode) -> Vec<Record> {
        let (buffer, count) = dispatch(self.simd, Gather { tree: self, data });
        let records: &[KeyValue] = &buffer.as_chunks().0[..count];
        let mut all: Vec<Record> = records.iter().map(|&[key, value]| (key, value)).collect();
        if !all.is_sorted_by(|a, b| a.0 < b.0) {
            // In a damaged pool a node may have several records of a key, and nobody who lays out nodes reckons with that.
            all.dedup_by_key(|&mut (key, _)| key);
        }
        all
    }
}

/// Copies the records of a frozen node that are in its range, in order, and counts them.
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
                // Free slots have a key that is not in the range.
                (key.wrapping_sub(low) <= span).then(|| [key, slot.value.load()])
            })
            .collect();
        stash.sort_unstable_by_key(|record| record[0]);
        let mut buffer = Buffer::of((data.slots() + stash.len()) * 2);
        let records: &mut [KeyValue] = buffer.as_chunks_mut().0;
        let pairs = tree.lines(data, 0, data.primary as usize).as_chunks().0;
        let count = sorted_pairs::<S>(pairs, low, span, records);
        let count = merge(records, 0..count, &stash);
        (buffer, count)
    }
}

/// Words of memory, of which the thread keeps some: to have fresh memory mapped takes longer than to fill it.
#[derive(Default)]
pub(super) struct Buffer(Vec<u64>);

thread_local! {
    static SPARE: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// Buffers that a thread keeps. Each may have grown as large as a node.
const MAX_SPARE_BUFFERS: usize = 4;

impl Buffer {
    /// An empty one.
    pub(super) fn empty() -> Self {
        let mut words = Self::spare();
        words.clear();
        Self(words)
    }

    /// One of so many words, which mean nothing.
    pub(super) fn of(length: usize) -> Self {
        let mut words = Self::spare();
        words.resize(length, 0);
        Self(words)
    }

    /// What the thread has kept. A thread that is already ending has nothing any more.
    fn spare() -> Vec<u64> {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        spare.ok().flatten().unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.0);
        // Not at the end of the thread, when there is no use for it.
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
