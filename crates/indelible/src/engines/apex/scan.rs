//! Ranges, in both directions.
//!
//! A range reads the records of a *chunk* at a time: of as many neighbouring predicted slots of a group as should hold
//! the records that are wanted. For a chunk, the range copies the records in the windows of these predicted slots and
//! those of the same predicted slots in the stash, validates the version of the group's lock, and merges the two.
//!
//! A data node is built with its records in order, but for the ends of groups (data I6). Once a record has been
//! inserted, the records of each line pair are sorted in vector registers while they are copied, and displaced records
//! are then moved back to where they belong.
//!
//! Between two reads a range holds no lock and no epoch guard, only the bounds of the keys that it has not read yet;
//! descending from the root again costs less than one cache miss. So structure changes cannot confuse a range: each key
//! has one predicted slot in one data node at any time (apex I2), and a range asks for no key twice.

use super::Tree;
use super::data::DataNode;
use super::layout::{
    GROUP_SLOTS, LINE_PAIR_SLOTS, LINE_SLOTS, Offset, WINDOW_SLOTS, line_pair_of, window_of,
};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::{KeyValue, MOST_READ, ReadBuffer, Unread, rest};
use crate::kernels::{Kernel, KeyLine, Simd, dispatch, insert_in_order, prefetch};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Records read and not given out yet.
pub(super) type Buffer = ReadBuffer<()>;

impl Buffer {
    /// Merges the records from the stash into those read since `from`, which are in order.
    #[inline(always)]
    fn merge_stashed<S: Simd>(&mut self, from: usize, up: bool) {
        if !self.to_merge.is_empty() {
            sort_tail::<S>(&mut self.to_merge, usize::MAX);
            self.make_room(self.to_merge.len());
            self.end = merge(&mut self.records, from..self.end, &self.to_merge);
        }
        if !up {
            self.records[from..self.end].reverse();
        }
    }
}

/// What a range reads at once: predicted slots of one group, from the first to the last, and the keys that are
/// predicted there.
struct Chunk {
    predicted: (usize, usize),
    keys: (u64, u64),
}

impl Chunk {
    /// The chunk of `width` predicted slots from `predicted` on, that of the key `first`, without keys above `last`.
    fn upwards(data: &DataNode, (first, last): (u64, u64), predicted: usize, width: usize) -> Self {
        let after = (predicted + width).min((predicted | (GROUP_SLOTS - 1)) + 1);
        let end = data.model.first_key_of(after);
        let end = end.and_then(|key| key.checked_sub(1)).unwrap_or(data.high);
        Self {
            predicted: (predicted, after - 1),
            keys: (first, end.min(data.high).min(last)),
        }
    }

    /// The chunk of `width` predicted slots up to `predicted`, that of the key `last`, without keys below `first`.
    fn downwards(
        data: &DataNode,
        (first, last): (u64, u64),
        predicted: usize,
        width: usize,
    ) -> Self {
        let begin = (predicted + 1)
            .saturating_sub(width)
            .max(predicted & !(GROUP_SLOTS - 1));
        let low = if begin == 0 {
            data.low
        } else {
            data.model.first_key_of(begin).unwrap_or(data.low)
        };
        Self {
            predicted: (begin, predicted),
            keys: (low.max(data.low).max(first), last),
        }
    }

    /// The slots of the primary array in which the records of the chunk may lie; the array may end before. Displaced
    /// records of the predicted slots in the middle lie in line pairs of the chunk, too; for the first and for the last
    /// predicted slot, the displaced bits tell.
    #[inline(always)]
    fn slots(&self, data: &DataNode) -> Range<usize> {
        let slots_of = |predicted| {
            if data.has_displaced(predicted) {
                window_of(predicted)..window_of(predicted) + WINDOW_SLOTS
            } else {
                let pair = line_pair_of(predicted);
                pair..pair + LINE_PAIR_SLOTS
            }
        };
        let (from, to) = self.predicted;
        slots_of(from).start..slots_of(to).end
    }
}

impl DataNode {
    /// How many predicted slots from `predicted` on should hold so many records, judging by the number of records of
    /// its group.
    #[inline(always)]
    fn predicted_width(&self, predicted: usize, records: usize) -> usize {
        let group = predicted / GROUP_SLOTS;
        let slots = self.slots_of(group).len();
        let here = self.count(group).unwrap_or(slots / 2).max(1);
        // A few records more, since they are not spread evenly.
        let records = records + records / 16 + LINE_PAIR_SLOTS;
        // At least one predicted slot, or a range would never get beyond a group with many times as many records as
        // slots.
        (records * slots / here).clamp(1, 2 * GROUP_SLOTS)
    }
}

impl Tree {
    /// Reads more records into the empty `buffer`: from the lower end of `unread` upwards or from its upper end
    /// downwards, until the buffer has the `wanted` records or nothing is left to read. If `wanted` is `None`, the
    /// number follows from the ranges before.
    pub(super) fn read_more<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut Buffer,
        wanted: Option<usize>,
    ) -> Result<()> {
        let usual = buffer.restart();
        let wanted = wanted.map_or(usual, |wanted| wanted.min(MOST_READ));
        let _guard = epochs::pin();
        while let (Some((first, last)), true) = (*unread, buffer.end < wanted) {
            let data = match self.data_of(if UP { first } else { last }) {
                Ok(data) => data,
                // The records that have been read are good. The error comes up again when they have been returned.
                Err(_) if !buffer.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            };
            let predicted = data.model.predict(if UP { first } else { last });
            self.prefetch_from::<UP>(data, predicted);
            data.prefetch_overflow(predicted / GROUP_SLOTS);
            let width = data.predicted_width(predicted, wanted - buffer.end);
            let chunk = if UP {
                Chunk::upwards(data, (first, last), predicted, width)
            } else {
                Chunk::downwards(data, (first, last), predicted, width)
            };
            let read = Read::<UP> {
                tree: self,
                data,
                chunk: &chunk,
                width,
                buffer: &mut *buffer,
            };
            if !dispatch(self.simd, read) {
                continue;
            }
            let (low, high) = chunk.keys;
            *unread = rest::<UP>((first, last), if UP { high } else { low });
        }
        Ok(())
    }

    /// Prefetches the first lines of a chunk, before its width is known.
    #[inline(always)]
    fn prefetch_from<const UP: bool>(&self, data: &DataNode, predicted: usize) {
        let end = window_of(predicted) + WINDOW_SLOTS;
        let slots = if UP {
            end - WINDOW_SLOTS..end + WINDOW_SLOTS
        } else {
            end.saturating_sub(2 * WINDOW_SLOTS)..end
        };
        prefetch_all(self.lines(data, slots.start, slots.end));
    }

    /// Prefetches what lies in the next group, of `width` predicted slots from `predicted` on.
    #[inline(always)]
    fn prefetch_beyond<const UP: bool>(&self, data: &DataNode, predicted: usize, width: usize) {
        let group = predicted & !(GROUP_SLOTS - 1);
        let beyond = if UP {
            let after = group + GROUP_SLOTS;
            after
                ..(predicted + width)
                    .next_multiple_of(LINE_PAIR_SLOTS)
                    .max(after)
        } else {
            line_pair_of((predicted + 1).saturating_sub(width).min(group))..group
        };
        if beyond.start < data.primary as usize && !beyond.is_empty() {
            data.prefetch_overflow(beyond.start / GROUP_SLOTS);
            prefetch_all(self.lines(data, beyond.start, beyond.end));
        }
    }

    /// Appends the records of a chunk in order; `false` if a writer interfered, and then nothing is appended.
    #[inline(always)]
    fn read_chunk<S: Simd, const UP: bool>(
        &self,
        data: &DataNode,
        chunk: &Chunk,
        width: usize,
        buffer: &mut Buffer,
    ) -> bool {
        let ((from, to), (low, high)) = (chunk.predicted, chunk.keys);
        let lock = &self.lock_of(data, from).version;
        let version = lock.read();
        let slots = chunk.slots(data);
        let lines = self.lines(data, slots.start, slots.end);
        prefetch_all(lines);
        self.prefetch_beyond::<UP>(data, if UP { from } else { to }, width);
        self.locate_stashed::<S>(data, from, to, &mut buffer.to_merge);
        buffer.make_room(lines.len() * LINE_SLOTS);
        let room = &mut buffer.records[buffer.end..];
        // The marker of free slots is outside of the range of the node, in which `low` and `high` are (data I3).
        let (pairs, span) = (lines.as_chunks().0, high - low);
        let count = if data.is_in_order.load(Ordering::Relaxed) {
            let count = S::records_between(pairs, low, span, room);
            // All records are in order but those of a group's last two line pairs (data I6).
            sort_tail::<S>(&mut room[..count], 2 * LINE_PAIR_SLOTS);
            count
        } else {
            sorted_line_pairs::<S>(pairs, low, span, room)
        };
        self.load_stashed(low, span, &mut buffer.to_merge);
        if !lock.validate(version) {
            return false;
        }
        let from = buffer.end;
        buffer.end += count;
        buffer.merge_stashed::<S>(from, UP);
        true
    }

    /// Finds the stash slots that may hold records with a predicted slot from `from` to `to`, both of one group. Stores
    /// their offsets in the place of keys, and prefetches them.
    #[inline(always)]
    fn locate_stashed<S: Simd>(
        &self,
        data: &DataNode,
        from: usize,
        to: usize,
        found: &mut Vec<KeyValue>,
    ) {
        found.clear();
        if data.has_stashed_between(from, to) {
            data.find_overflow_between::<S>(from, to, |slot| {
                if let Some(at) = data.stash_at(slot) {
                    prefetch(std::ptr::from_ref(self.slot_at(at)));
                    found.push([at.get(), 0]);
                }
            });
        }
    }

    /// Replaces the offsets in `found` by the records there, and drops records whose keys are not from `low` to `low +
    /// span`.
    #[inline(always)]
    fn load_stashed(&self, low: u64, span: u64, found: &mut Vec<KeyValue>) {
        let mut count = 0;
        for i in 0..found.len() {
            let slot = self.slot_at(Offset::from_word(found[i][0]));
            // Store the record in any case: no branch could be predicted.
            found[count] = [slot.key.load(), slot.value.load()];
            count += usize::from(found[count][0].wrapping_sub(low) <= span);
        }
        found.truncate(count);
    }
}

/// Reads a chunk, with the vector instructions of the machine.
struct Read<'a, const UP: bool> {
    tree: &'a Tree,
    data: &'a DataNode,
    chunk: &'a Chunk,
    width: usize,
    buffer: &'a mut Buffer,
}

impl<const UP: bool> Kernel for Read<'_, UP> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        self.tree
            .read_chunk::<S, UP>(self.data, self.chunk, self.width, self.buffer)
    }
}

/// Prefetches lines.
#[inline(always)]
fn prefetch_all(lines: &[KeyLine]) {
    lines
        .iter()
        .for_each(|line| prefetch(std::ptr::from_ref(line)));
}

/// Copies the records whose keys are from `low` to `low + span` out of line pairs, in order, and returns their number.
/// `out` has room for all records of the line pairs.
#[inline(always)]
pub(super) fn sorted_line_pairs<S: Simd>(
    pairs: &[[KeyLine; 2]],
    low: u64,
    span: u64,
    out: &mut [KeyValue],
) -> usize {
    let mut count = 0;
    for pair in pairs {
        let Some(room) = out[count..].first_chunk_mut() else {
            // Going on would lose records, and structure changes copy them from here.
            panic!("there is room for all records of the line pairs");
        };
        let end = count + S::sorted_between(pair, low, span, room);
        // The line pair begins with displaced records of the line pair before, if there are any. And the whole last
        // line pair of a group may belong before its own displaced records, which lie in the line pair before.
        for at in count.max(1)..end {
            if out[at - 1][0] < out[at][0] {
                break;
            }
            insert_in_order(out, at);
        }
        count = end;
    }
    count
}

/// Sorts records of which only the last `count` may be out of order. Few of them are, and not by much.
#[inline(always)]
fn sort_tail<S: Simd>(records: &mut [KeyValue], count: usize) {
    let mut from = records.len().saturating_sub(count);
    while let Some(before) = S::descent(records, from) {
        insert_in_order(records, before + 1);
        from = before + 1;
    }
}

/// Merges the sorted records of `more` into those of `range`, which are sorted, too, and returns the end of the result.
/// There is room behind the range.
#[inline(always)]
pub(super) fn merge(records: &mut [KeyValue], range: Range<usize>, more: &[KeyValue]) -> usize {
    // From the end, so that no record is overwritten that is still needed.
    let mut left = range.end;
    for (right, &record) in more.iter().enumerate().rev() {
        while left >= range.start + 4 && records[left - 4][0] > record[0] {
            left -= 4;
            let four: [KeyValue; 4] = std::array::from_fn(|i| records[left + i]);
            records[left + right + 1..][..4].copy_from_slice(&four);
        }
        while left > range.start && records[left - 1][0] > record[0] {
            records[left + right] = records[left - 1];
            left -= 1;
        }
        records[left + right] = record;
    }
    range.end + more.len()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engines::apex::layout::DataGeometry;
    use crate::engines::apex::model::Model;

    #[test]
    fn records_of_the_stash_are_merged_wherever_they_belong() {
        for (count, more) in (0..20).flat_map(|count| (0..8).map(move |more| (count, more))) {
            for shift in 0..count + 2 {
                let record = |key: usize| [key as u64, !(key as u64)];
                let stash: Vec<KeyValue> = (0..more)
                    .map(|i| record(2 * (shift + i * (shift % 3)) + 1))
                    .collect();
                let mut records: Vec<KeyValue> = [0; 3].map(|_| record(999)).to_vec();
                records.extend((0..count).map(|i| record(2 * i)));
                let mut expected = records[3..].to_vec();
                expected.extend_from_slice(&stash);
                expected.sort_by_key(|record| record[0]);
                records.resize(3 + count + more, [0, 0]);
                assert_eq!(merge(&mut records, 3..3 + count, &stash), 3 + count + more);
                assert_eq!(records[3..], expected);
                assert_eq!(records[..3], [record(999); 3]);
            }
        }
    }

    #[test]
    fn a_range_gets_beyond_a_group_that_has_many_times_as_many_records_as_slots() {
        let geometry = DataGeometry {
            model: Model::fit(&[], WINDOW_SLOTS, 0, 1000),
            primary: WINDOW_SLOTS,
            stash: WINDOW_SLOTS,
            low: 0,
            marker: u64::MAX,
        };
        let data = DataNode::new(Offset::from_word(1 << 20), 1 << 10, &geometry, 1000, &[], 0);
        data.set_counted(0, 5000, 0);
        for wanted in 0..MOST_READ {
            assert!(data.predicted_width(0, wanted) > 0);
            let chunk = Chunk::upwards(&data, (10, 900), 0, data.predicted_width(0, wanted));
            assert!(chunk.keys.1 >= 10, "{wanted} {:?}", chunk.keys);
        }
    }
}
