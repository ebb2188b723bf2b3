//! The records of a leaf in order, as ranges want them.

use super::Leaf;
use crate::engines::lbtree::layout::MAX_RECORDS;
use crate::engines::slots;
use crate::kernels::Simd;

impl Leaf<'_> {
    /// Copies the records of the leaf to the front of `out`, sorted, and returns their number. What lies beyond means nothing. `out` has room
    /// for two more records than the leaf. The keys that the leaf covers are at most `span` above `low`.
    #[inline(always)]
    pub(in crate::engines::lbtree) fn copy_sorted<S: Simd>(
        self,
        low: u64,
        span: u64,
        out: &mut [[u64; 2]],
    ) -> usize {
        let mut count = self.copy_sorted_block::<S>(0, low, span, out);
        for block in 1..self.blocks.len() {
            let more = self.copy_sorted_block::<S>(block, low, span, &mut out[count..]);
            if count > 0 && more > 0 && out[count - 1][0] > out[count][0] {
                merge_runs(&mut out[..count + more], count);
            }
            count += more;
        }
        count
    }

    /// [`copy_sorted`](Self::copy_sorted) of one block.
    ///
    /// Each record goes to the place that the number of smaller keys says, and what is in slots not in use, whose key counts as
    /// `u64::MAX`, behind all others.
    #[inline(always)]
    fn copy_sorted_block<S: Simd>(
        self,
        block: usize,
        low: u64,
        span: u64,
        out: &mut [[u64; 2]],
    ) -> usize {
        let in_use = self.header(block).bitmap();
        let block = &self.blocks[block];
        let count = in_use.count_ones() as usize;
        let out = out.first_chunk_mut();
        let out = out.expect("invariant: a buffer has room for a block behind the records before");
        // As sixteen records: the first and the last are headers or siblings. In memory; left alone, the compiler picks the ranks from
        // registers.
        let ranks = std::hint::black_box(S::ranks(block.lines(), in_use << 1, low, span));
        for (slot, record) in block.slots.iter().enumerate() {
            ranks.put(slot + 1, record.load(), out);
        }
        // What is no record counts as `u64::MAX` too, so all records have smaller keys, if not one has that very key.
        if ranks.of(0) < count {
            let mut in_use = slots(in_use);
            // What is in a slot not in use may have gone to its place.
            if let Some(largest) = in_use.find(|&slot| block.slots[slot].key.load() == u64::MAX) {
                out[count - 1] = block.slots[largest].load();
            }
        }
        count
    }
}

/// Merges the records before `middle` with those from there on; each of the two runs is in order.
#[inline(never)]
fn merge_runs(records: &mut [[u64; 2]], middle: usize) {
    let mut left = [[0; 2]; MAX_RECORDS];
    left[..middle].copy_from_slice(&records[..middle]);
    let left = &left[..middle];
    let (mut taken, mut next, mut to) = (0, middle, 0);
    while taken < left.len() && next < records.len() {
        // Without a branch on the keys, which could not be predicted.
        let is_right = records[next][0] < left[taken][0];
        let from = if is_right {
            &records[next]
        } else {
            &left[taken]
        };
        records[to] = *from;
        taken += usize::from(!is_right);
        next += usize::from(is_right);
        to += 1;
    }
    let rest = &left[taken..];
    records[to..to + rest.len()].copy_from_slice(rest);
}
