//! Ranges, in both directions.
//!
//! A range reads some neighbouring groups at a time, as many homes as should hold the records that are wanted. Of each group it copies the
//! slots that may hold them, and those from the stash, validates the group's version, and merges. Nodes are laid out in order, but
//! for the ends of groups; once somebody has inserted, each pair of lines is sorted on its way through the registers, and then
//! what belongs before the pair is put back. Between two reads it holds no lock and no guard, only the keys not read
//! yet: coming down again costs less than a miss. So structure changes cannot confuse it: every key has one home at any time,
//! and no key is asked for twice.

use super::data::DataNode;
use super::layout::{
    GROUP_SLOTS, LINE_PAIR_SLOTS, LINE_SLOTS, WINDOW_SLOTS, line_pair_of, window_of,
};
use super::{Apex, Tree};
use crate::index::simd::{Kernel, KeyLine, Simd, dispatch, prefetch, put_back};
use crate::{Error, Result, reclaim};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) type KeyValue = [u64; 2];

/// Keys not read yet, both ends included.
type Unread = Option<(u64, u64)>;

/// Records that are read at once where nothing is known of how many are wanted, and at most.
const DEFAULT_READ_RECORDS: usize = 48;
const MAX_READ_RECORDS: usize = 256;

/// Records read and not given out yet, in the order of reading.
#[derive(Default)]
struct ReadBuffer {
    /// At least as many as there may be, some of which do not count.
    records: Vec<KeyValue>,
    /// Those from the stash, before they join the others.
    stashed: Vec<KeyValue>,
    start: usize,
    end: usize,
    /// How many have been read by this range before.
    before: usize,
}

impl ReadBuffer {
    #[inline(always)]
    fn pop(&mut self) -> Option<KeyValue> {
        if self.start == self.end {
            return None;
        }
        let record = self.records.get(self.start).copied();
        self.start += 1;
        record
    }

    /// The record read last.
    fn pop_last(&mut self) -> Option<KeyValue> {
        if self.start == self.end {
            return None;
        }
        self.end -= 1;
        self.records.get(self.end).copied()
    }

    /// The next records, at most `most`.
    fn pop_chunk(&mut self, most: usize) -> &[KeyValue] {
        let first = self.start;
        self.start += most.min(self.end - first);
        &self.records[first..self.start]
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Takes over what the other end has read.
    fn take_reversed(&mut self, other: &mut Self) {
        std::mem::swap(self, other);
        self.records[self.start..self.end].reverse();
    }

    /// Empties the run, and returns how many records to read next, if nobody says.
    fn restart(&mut self) -> usize {
        let read = self.before + self.end;
        (self.start, self.end, self.before) = (0, 0, read);
        if read > 0 {
            return read.clamp(DEFAULT_READ_RECORDS, MAX_READ_RECORDS);
        }
        // At the end of the thread there is nothing to spare.
        let spare = SPARE.try_with(|spare| {
            let taken = spare.take();
            spare.set(Spare {
                given: taken.given,
                ..Spare::default()
            });
            taken
        });
        let spare = spare.unwrap_or_default();
        (self.records, self.stashed) = (spare.records, spare.stashed);
        let wanted = spare.given[0].min(spare.given[1]);
        if wanted == 0 {
            DEFAULT_READ_RECORDS
        } else {
            wanted.min(MAX_READ_RECORDS)
        }
    }

    /// Makes room for so many more records.
    #[inline(always)]
    fn make_room(&mut self, records: usize) {
        let room = self.end + records;
        if self.records.len() < room {
            self.records.resize(room.next_power_of_two(), [0, 0]);
        }
    }

    /// Puts what came from the stash into its place among what was read since `from`, which is in order.
    #[inline(always)]
    fn settle<S: Simd>(&mut self, from: usize, up: bool) {
        if !self.stashed.is_empty() {
            sort_tail::<S>(&mut self.stashed, usize::MAX);
            self.make_room(self.stashed.len());
            self.end = merge(&mut self.records, from..self.end, &self.stashed);
        }
        debug_assert!(self.records[from..self.end].is_sorted_by_key(|record| record[0]));
        if !up {
            self.records[from..self.end].reverse();
        }
    }
}

/// What the last ranges of a thread leave to the next.
#[derive(Default)]
struct Spare {
    /// Their buffers: to allocate and clear them takes as long as a short range.
    records: Vec<KeyValue>,
    stashed: Vec<KeyValue>,
    /// How many records the last two gave. Ranges are often as long as the one before, and reading all at once is
    /// cheaper than piece by piece.
    given: [usize; 2],
}

thread_local! {
    static SPARE: Cell<Spare> = const {
        Cell::new(Spare { records: Vec::new(), stashed: Vec::new(), given: [0; 2] })
    };
}

impl Drop for ReadBuffer {
    fn drop(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let given = self.before + self.start;
        // Not at the end of the thread, when there is no use for it.
        let _ = SPARE.try_with(|spare| {
            let last = spare.take().given[1];
            spare.set(Spare {
                records: std::mem::take(&mut self.records),
                stashed: std::mem::take(&mut self.stashed),
                given: [last, given.max(1)],
            });
        });
    }
}

/// Homes of one group, from the first to the last, and the keys that have them.
struct Chunk {
    predicted: (usize, usize),
    keys: (u64, u64),
}

impl Chunk {
    /// As many `homes` from `home` on, that of `first`, and no key above `last`.
    fn upwards(data: &DataNode, (first, last): (u64, u64), predicted: usize, width: usize) -> Self {
        let after = (predicted + width).min((predicted | (GROUP_SLOTS - 1)) + 1);
        let end = data.model.first_key_of(after);
        let end = end.and_then(|key| key.checked_sub(1)).unwrap_or(data.high);
        Self {
            predicted: (predicted, after - 1),
            keys: (first, end.min(data.high).min(last)),
        }
    }

    /// As many `homes` up to `home`, that of `last`, and no key below `first`.
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

    /// The slots of the primary array that may hold its records; the array may end before. Those of the homes between lie in the
    /// pairs of lines of others, if not in their own; of the first and the last home it has to be asked.
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
    /// Homes from `home` on that should hold so many records, going by those of its group.
    #[inline(always)]
    fn predicted_width(&self, predicted: usize, records: usize) -> usize {
        let group = predicted / GROUP_SLOTS;
        let slots = self.slots_of(group).len();
        let here = self.count(group).unwrap_or(slots / 2).max(1);
        // A few more, as they are not spread evenly.
        let records = records + records / 16 + LINE_PAIR_SLOTS;
        // At least one, or a range would never get beyond a group that has many times as many records as slots.
        (records * slots / here).clamp(1, 2 * GROUP_SLOTS)
    }
}

impl Tree {
    /// Reads on: fills `run`, which is empty, from the lower end of `unread` upwards or from its upper end downwards, until
    /// it has the records `wanted`, or nothing is left to read. Without a number it chooses one.
    fn read_more<const UP: bool>(
        &self,
        unread: &mut Unread,
        run: &mut ReadBuffer,
        wanted: Option<usize>,
    ) -> Result<()> {
        let usual = run.restart();
        let wanted = wanted.map_or(usual, |wanted| wanted.min(MAX_READ_RECORDS));
        let _guard = reclaim::pin();
        while let (Some((first, last)), true) = (*unread, run.end < wanted) {
            let data = match self.data_of(if UP { first } else { last }) {
                Ok(data) => data,
                // What was read is good; the error comes up again when that has been given out.
                Err(_) if !run.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            };
            let predicted = data.model.predict(if UP { first } else { last });
            self.prefetch_from::<UP>(data, predicted);
            data.prefetch_overflow(predicted / GROUP_SLOTS);
            let width = data.predicted_width(predicted, wanted - run.end);
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
                run: &mut *run,
            };
            if !dispatch(self.simd, read) {
                continue;
            }
            *unread = if UP {
                let next = chunk.keys.1.checked_add(1);
                next.filter(|&next| next <= last).map(|next| (next, last))
            } else {
                let next = chunk.keys.0.checked_sub(1);
                next.filter(|&next| next >= first).map(|next| (first, next))
            };
        }
        Ok(())
    }

    /// Asks the caches for the first lines, before it is known how many it will be.
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

    /// Asks the caches for what lies in the next group of so many `homes`.
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

    /// Adds the records of a chunk, in order; `false` if somebody changed them meanwhile, and nothing is added.
    #[inline(always)]
    fn read_chunk<S: Simd, const UP: bool>(
        &self,
        data: &DataNode,
        chunk: &Chunk,
        width: usize,
        run: &mut ReadBuffer,
    ) -> bool {
        let ((from, to), (low, high)) = (chunk.predicted, chunk.keys);
        let lock = self.locks.of(data.lock_of(from));
        let version = lock.read();
        let slots = chunk.slots(data);
        let lines = self.lines(data, slots.start, slots.end);
        prefetch_all(lines);
        self.prefetch_beyond::<UP>(data, if UP { from } else { to }, width);
        self.locate_stashed::<S>(data, from, to, &mut run.stashed);
        run.make_room(lines.len() * LINE_SLOTS);
        let room = &mut run.records[run.end..];
        // Free slots have a key outside of the node's range, which `low` and `high` are not.
        let (pairs, span) = (lines.as_chunks().0, high - low);
        let count = if data.is_in_order.load(Ordering::Relaxed) {
            let count = S::records_between(pairs, low, span, room);
            // All are in order but those of a group's last two pairs (see `Image::place`).
            sort_tail::<S>(&mut room[..count], 2 * LINE_PAIR_SLOTS);
            count
        } else {
            sorted_pairs::<S>(pairs, low, span, room)
        };
        self.load_stashed(low, span, &mut run.stashed);
        if !lock.validate(version) {
            return false;
        }
        let from = run.end;
        run.end += count;
        run.settle::<S>(from, UP);
        true
    }

    /// Where the records are that homes from `from` to `to`, of one group, have in the stash: offsets for keys. Asks the caches for them.
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
                    found.push([at, 0]);
                }
            });
        }
    }

    /// Replaces where a record is by the record, and leaves out those whose keys are not at most `span` above `low`.
    #[inline(always)]
    fn load_stashed(&self, low: u64, span: u64, found: &mut Vec<KeyValue>) {
        let mut count = 0;
        for i in 0..found.len() {
            let slot = self.slot_at(found[i][0]);
            // Written in any case: whether it counts cannot be foreseen.
            found[count] = [slot.key.load(), slot.value.load()];
            count += usize::from(found[count][0].wrapping_sub(low) <= span);
        }
        found.truncate(count);
    }
}

struct Read<'a, const UP: bool> {
    tree: &'a Tree,
    data: &'a DataNode,
    chunk: &'a Chunk,
    width: usize,
    run: &'a mut ReadBuffer,
}

impl<const UP: bool> Kernel for Read<'_, UP> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        self.tree
            .read_chunk::<S, UP>(self.data, self.chunk, self.width, self.run)
    }
}

/// Asks the caches for lines.
#[inline(always)]
fn prefetch_all(lines: &[KeyLine]) {
    lines
        .iter()
        .for_each(|line| prefetch(std::ptr::from_ref(line)));
}

/// Takes the records whose keys are at most `span` above `low` out of pairs of lines, in order, and returns how many there are.
/// `out` has room for all records of the pairs.
#[inline(always)]
pub(super) fn sorted_pairs<S: Simd>(
    pairs: &[[KeyLine; 2]],
    low: u64,
    span: u64,
    out: &mut [KeyValue],
) -> usize {
    let mut count = 0;
    for pair in pairs {
        let Some(room) = out[count..].first_chunk_mut() else {
            break;
        };
        let end = count + S::sorted_between(pair, low, span, room);
        // First come the strays of the pair before, if there are any; and the whole last pair of a group may belong before
        // its strays.
        for at in count.max(1)..end {
            if out[at - 1][0] < out[at][0] {
                break;
            }
            put_back(out, at);
        }
        count = end;
    }
    count
}

/// Sorts records of which only the last `count` may be out of order, and of these few, not far from where they belong.
#[inline(always)]
fn sort_tail<S: Simd>(records: &mut [KeyValue], count: usize) {
    let mut from = records.len().saturating_sub(count);
    while let Some(before) = S::descent(records, from) {
        put_back(records, before + 1);
        from = before + 1;
    }
}

/// Merges `more` into the records of `range`, both sorted, and returns where they end now. There is room behind the range.
#[inline(always)]
pub(super) fn merge(records: &mut [KeyValue], range: Range<usize>, more: &[KeyValue]) -> usize {
    // From the end, so that nothing is overwritten that is still needed.
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

/// A range in progress, from both ends.
pub(crate) struct Cursor {
    apex: Arc<Apex>,
    unread: Unread,
    /// What was read at the lower end, ascending.
    front: ReadBuffer,
    /// What was read at the upper end, descending.
    back: ReadBuffer,
    error: Option<Error>,
}

impl Cursor {
    /// A range over the keys from the first to the second of `bounds`, both included; over nothing for `None`.
    pub(crate) fn new(apex: Arc<Apex>, bounds: Unread) -> Self {
        Self {
            apex,
            unread: bounds,
            front: ReadBuffer::default(),
            back: ReadBuffer::default(),
            error: None,
        }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<KeyValue> {
        match self.front.pop() {
            Some(record) => Some(record),
            None => self.read_front(),
        }
    }

    #[inline(always)]
    pub(crate) fn next_back(&mut self) -> Option<KeyValue> {
        match self.back.pop() {
            Some(record) => Some(record),
            None => self.read_back(),
        }
    }

    /// The next records, at most `most`; none only at the end.
    pub(crate) fn next_chunk(&mut self, most: usize) -> &[KeyValue] {
        if self.front.is_empty() {
            let tree = &self.apex.shared.tree;
            let read = tree.read_more::<true>(&mut self.unread, &mut self.front, Some(most));
            self.stop_at_error(read);
        }
        if self.front.is_empty() {
            // The ends have met: the rest lies in the other buffer, in reverse.
            self.front.take_reversed(&mut self.back);
        }
        self.front.pop_chunk(most)
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    #[inline(never)]
    fn read_front(&mut self) -> Option<KeyValue> {
        let tree = &self.apex.shared.tree;
        let read = tree.read_more::<true>(&mut self.unread, &mut self.front, None);
        self.stop_at_error(read);
        // The ends have met: the rest lies in the other buffer.
        self.front.pop().or_else(|| self.back.pop_last())
    }

    #[inline(never)]
    fn read_back(&mut self) -> Option<KeyValue> {
        let tree = &self.apex.shared.tree;
        let read = tree.read_more::<false>(&mut self.unread, &mut self.back, None);
        self.stop_at_error(read);
        self.back.pop().or_else(|| self.front.pop_last())
    }

    fn stop_at_error(&mut self, read: Result<()>) {
        if let Err(error) = read {
            self.error = Some(error);
            // What was read at the other end lies beyond the hole.
            (self.unread, self.front, self.back) =
                (None, ReadBuffer::default(), ReadBuffer::default());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::index::apex::layout::DataGeometry;
    use crate::index::apex::model::Model;

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
        };
        let data = DataNode::new(1 << 20, 1 << 10, &geometry, 1000, &[]);
        data.set_counted(0, 5000, 0);
        for wanted in 0..MAX_READ_RECORDS {
            assert!(data.predicted_width(0, wanted) > 0);
            let chunk = Chunk::upwards(&data, (10, 900), 0, data.predicted_width(0, wanted));
            assert!(chunk.keys.1 >= 10, "{wanted} {:?}", chunk.keys);
        }
    }
}
