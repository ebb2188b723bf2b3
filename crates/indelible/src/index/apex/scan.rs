//! Ranges, in both directions.
//!
//! A range reads some neighbouring groups at a time, as many homes as should hold the records that are wanted. Of each group it copies the
//! slots that may hold them, and those from the stash, validates the group's version, and merges. Nodes are laid out in order, but
//! for the ends of groups; once somebody has inserted, each pair of lines is sorted on its way through the registers, and then
//! what belongs before the pair is put back. Between two reads it holds no lock and no guard, only the keys not read
//! yet: coming down again costs less than a miss. So structure changes cannot confuse it: every key has one home at any time,
//! and no key is asked for twice.

use super::data::Data;
use super::layout::{GROUP, LINE_SLOTS, PAIR_SLOTS, WINDOW, pair_of, window_of};
use super::{Apex, Tree};
use crate::index::simd::{Kernel, KeyLine, Simd, dispatch, prefetch, put_back};
use crate::{Error, Result, reclaim};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) type Pair = [u64; 2];

/// Keys not read yet, both ends included.
type Unread = Option<(u64, u64)>;

/// Records that are read at once where nothing is known of how many are wanted, and at most.
const WANTED: usize = 48;
const MOST_WANTED: usize = 256;

/// Records read and not given out yet, in the order of reading.
#[derive(Default)]
struct Run {
    /// At least as many as there may be, some of which do not count.
    records: Vec<Pair>,
    /// Those from the stash, before they join the others.
    stashed: Vec<Pair>,
    start: usize,
    end: usize,
    /// How many have been read by this range before.
    before: usize,
}

impl Run {
    #[inline(always)]
    fn pop(&mut self) -> Option<Pair> {
        if self.start == self.end {
            return None;
        }
        let record = self.records.get(self.start).copied();
        self.start += 1;
        record
    }

    /// The record read last.
    fn pop_last(&mut self) -> Option<Pair> {
        if self.start == self.end {
            return None;
        }
        self.end -= 1;
        self.records.get(self.end).copied()
    }

    /// The next records, at most `most`.
    fn pop_some(&mut self, most: usize) -> &[Pair] {
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
            return read.clamp(WANTED, MOST_WANTED);
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
            WANTED
        } else {
            wanted.min(MOST_WANTED)
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
            sort_end::<S>(&mut self.stashed, usize::MAX);
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
    records: Vec<Pair>,
    stashed: Vec<Pair>,
    /// How many records the last two gave. Ranges are often as long as the one before, and reading all at once is
    /// cheaper than piece by piece.
    given: [usize; 2],
}

thread_local! {
    static SPARE: Cell<Spare> = const {
        Cell::new(Spare { records: Vec::new(), stashed: Vec::new(), given: [0; 2] })
    };
}

impl Drop for Run {
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
    homes: (usize, usize),
    keys: (u64, u64),
}

impl Chunk {
    /// As many `homes` from `home` on, that of `first`, and no key above `last`.
    fn upwards(data: &Data, (first, last): (u64, u64), home: usize, homes: usize) -> Self {
        let after = (home + homes).min((home | (GROUP - 1)) + 1);
        let end = data.model.first_key_of(after);
        let end = end.and_then(|key| key.checked_sub(1)).unwrap_or(data.high);
        Self {
            homes: (home, after - 1),
            keys: (first, end.min(data.high).min(last)),
        }
    }

    /// As many `homes` up to `home`, that of `last`, and no key below `first`.
    fn downwards(data: &Data, (first, last): (u64, u64), home: usize, homes: usize) -> Self {
        let begin = (home + 1).saturating_sub(homes).max(home & !(GROUP - 1));
        let low = if begin == 0 {
            data.low
        } else {
            data.model.first_key_of(begin).unwrap_or(data.low)
        };
        Self {
            homes: (begin, home),
            keys: (low.max(data.low).max(first), last),
        }
    }

    /// The slots of the primary array that may hold its records; the array may end before. Those of the homes between lie in the
    /// pairs of lines of others, if not in their own; of the first and the last home it has to be asked.
    #[inline(always)]
    fn slots(&self, data: &Data) -> Range<usize> {
        let slots_of = |home| {
            if data.has_strays(home) {
                window_of(home)..window_of(home) + WINDOW
            } else {
                let pair = pair_of(home);
                pair..pair + PAIR_SLOTS
            }
        };
        let (from, to) = self.homes;
        slots_of(from).start..slots_of(to).end
    }
}

impl Data {
    /// Homes from `home` on that should hold so many records, going by those of its group.
    #[inline(always)]
    fn homes_for(&self, home: usize, records: usize) -> usize {
        let group = home / GROUP;
        let slots = self.slots_of(group).len();
        let here = self.count(group).unwrap_or(slots / 2).max(1);
        // A few more, as they are not spread evenly.
        let records = records + records / 16 + PAIR_SLOTS;
        // At least one, or a range would never get beyond a group that has many times as many records as slots.
        (records * slots / here).clamp(1, 2 * GROUP)
    }
}

impl Tree {
    /// Reads on: fills `run`, which is empty, from the lower end of `unread` upwards or from its upper end downwards, until
    /// it has the records `wanted`, or nothing is left to read. Without a number it chooses one.
    fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        run: &mut Run,
        wanted: Option<usize>,
    ) -> Result<()> {
        let usual = run.restart();
        let wanted = wanted.map_or(usual, |wanted| wanted.min(MOST_WANTED));
        let _guard = reclaim::pin();
        while let (Some((first, last)), true) = (*unread, run.end < wanted) {
            let data = match self.data_of(if UP { first } else { last }) {
                Ok(data) => data,
                // What was read is good; the error comes up again when that has been given out.
                Err(_) if !run.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            };
            let home = data.model.predict(if UP { first } else { last });
            self.prefetch_from::<UP>(data, home);
            data.prefetch_overflow(home / GROUP);
            let homes = data.homes_for(home, wanted - run.end);
            let chunk = if UP {
                Chunk::upwards(data, (first, last), home, homes)
            } else {
                Chunk::downwards(data, (first, last), home, homes)
            };
            let read = Read::<UP> {
                tree: self,
                data,
                chunk: &chunk,
                homes,
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
    fn prefetch_from<const UP: bool>(&self, data: &Data, home: usize) {
        let end = window_of(home) + WINDOW;
        let slots = if UP {
            end - WINDOW..end + WINDOW
        } else {
            end.saturating_sub(2 * WINDOW)..end
        };
        prefetch_all(self.lines(data, slots.start, slots.end));
    }

    /// Asks the caches for what lies in the next group of so many `homes`.
    #[inline(always)]
    fn prefetch_beyond<const UP: bool>(&self, data: &Data, home: usize, homes: usize) {
        let group = home & !(GROUP - 1);
        let beyond = if UP {
            let after = group + GROUP;
            after..(home + homes).next_multiple_of(PAIR_SLOTS).max(after)
        } else {
            pair_of((home + 1).saturating_sub(homes).min(group))..group
        };
        if beyond.start < data.primary as usize && !beyond.is_empty() {
            data.prefetch_overflow(beyond.start / GROUP);
            prefetch_all(self.lines(data, beyond.start, beyond.end));
        }
    }

    /// Adds the records of a chunk, in order; `false` if somebody changed them meanwhile, and nothing is added.
    #[inline(always)]
    fn read_chunk<S: Simd, const UP: bool>(
        &self,
        data: &Data,
        chunk: &Chunk,
        homes: usize,
        run: &mut Run,
    ) -> bool {
        let ((from, to), (low, high)) = (chunk.homes, chunk.keys);
        let lock = self.locks.of(data.lock_of(from));
        let version = lock.read();
        let slots = chunk.slots(data);
        let lines = self.lines(data, slots.start, slots.end);
        prefetch_all(lines);
        self.prefetch_beyond::<UP>(data, if UP { from } else { to }, homes);
        self.seek_stashed::<S>(data, from, to, &mut run.stashed);
        run.make_room(lines.len() * LINE_SLOTS);
        let room = &mut run.records[run.end..];
        // Free slots have a key outside of the node's range, which `low` and `high` are not.
        let (pairs, span) = (lines.as_chunks().0, high - low);
        let count = if data.is_in_order.load(Ordering::Relaxed) {
            let count = S::records_between(pairs, low, span, room);
            // All are in order but those of a group's last two pairs (see `Image::place`).
            sort_end::<S>(&mut room[..count], 2 * PAIR_SLOTS);
            count
        } else {
            sorted_pairs::<S>(pairs, low, span, room)
        };
        self.fetch_stashed(low, span, &mut run.stashed);
        if !lock.is_still(version) {
            return false;
        }
        let from = run.end;
        run.end += count;
        run.settle::<S>(from, UP);
        true
    }

    /// Where the records are that homes from `from` to `to`, of one group, have in the stash: offsets for keys. Asks the caches for them.
    #[inline(always)]
    fn seek_stashed<S: Simd>(&self, data: &Data, from: usize, to: usize, found: &mut Vec<Pair>) {
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
    fn fetch_stashed(&self, low: u64, span: u64, found: &mut Vec<Pair>) {
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
    data: &'a Data,
    chunk: &'a Chunk,
    homes: usize,
    run: &'a mut Run,
}

impl<const UP: bool> Kernel for Read<'_, UP> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        self.tree
            .read_chunk::<S, UP>(self.data, self.chunk, self.homes, self.run)
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
    out: &mut [Pair],
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
fn sort_end<S: Simd>(records: &mut [Pair], count: usize) {
    let mut from = records.len().saturating_sub(count);
    while let Some(before) = S::descent(records, from) {
        put_back(records, before + 1);
        from = before + 1;
    }
}

/// Merges `more` into the records of `range`, both sorted, and returns where they end now. There is room behind the range.
#[inline(always)]
pub(super) fn merge(records: &mut [Pair], range: Range<usize>, more: &[Pair]) -> usize {
    // From the end, so that nothing is overwritten that is still needed.
    let mut left = range.end;
    for (right, &record) in more.iter().enumerate().rev() {
        while left >= range.start + 4 && records[left - 4][0] > record[0] {
            left -= 4;
            let four: [Pair; 4] = std::array::from_fn(|i| records[left + i]);
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
    front: Run,
    /// What was read at the upper end, descending.
    back: Run,
    error: Option<Error>,
}

impl Cursor {
    /// A range over the keys from the first to the second of `bounds`, both included; over nothing for `None`.
    pub(crate) fn new(apex: Arc<Apex>, bounds: Unread) -> Self {
        Self {
            apex,
            unread: bounds,
            front: Run::default(),
            back: Run::default(),
            error: None,
        }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Pair> {
        match self.front.pop() {
            Some(record) => Some(record),
            None => self.read_front(),
        }
    }

    #[inline(always)]
    pub(crate) fn next_back(&mut self) -> Option<Pair> {
        match self.back.pop() {
            Some(record) => Some(record),
            None => self.read_back(),
        }
    }

    /// The next records, at most `most`; none only at the end.
    pub(crate) fn next_some(&mut self, most: usize) -> &[Pair] {
        if self.front.is_empty() {
            let tree = &self.apex.shared.tree;
            let read = tree.read_on::<true>(&mut self.unread, &mut self.front, Some(most));
            self.stop_at_error(read);
        }
        if self.front.is_empty() {
            // The ends have met: the rest lies in the other buffer, in reverse.
            self.front.take_reversed(&mut self.back);
        }
        self.front.pop_some(most)
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    #[inline(never)]
    fn read_front(&mut self) -> Option<Pair> {
        let tree = &self.apex.shared.tree;
        let read = tree.read_on::<true>(&mut self.unread, &mut self.front, None);
        self.stop_at_error(read);
        // The ends have met: the rest lies in the other buffer.
        self.front.pop().or_else(|| self.back.pop_last())
    }

    #[inline(never)]
    fn read_back(&mut self) -> Option<Pair> {
        let tree = &self.apex.shared.tree;
        let read = tree.read_on::<false>(&mut self.unread, &mut self.back, None);
        self.stop_at_error(read);
        self.back.pop().or_else(|| self.front.pop_last())
    }

    fn stop_at_error(&mut self, read: Result<()>) {
        if let Err(error) = read {
            self.error = Some(error);
            // What was read at the other end lies beyond the hole.
            (self.unread, self.front, self.back) = (None, Run::default(), Run::default());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::index::apex::layout::DataShape;
    use crate::index::apex::model::Model;

    #[test]
    fn records_of_the_stash_are_merged_wherever_they_belong() {
        for (count, more) in (0..20).flat_map(|count| (0..8).map(move |more| (count, more))) {
            for shift in 0..count + 2 {
                let record = |key: usize| [key as u64, !(key as u64)];
                let stash: Vec<Pair> = (0..more)
                    .map(|i| record(2 * (shift + i * (shift % 3)) + 1))
                    .collect();
                let mut records: Vec<Pair> = [0; 3].map(|_| record(999)).to_vec();
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
        let shape = DataShape {
            model: Model::fit(&[], WINDOW, 0, 1000),
            primary: WINDOW,
            stash: WINDOW,
            low: 0,
            marker: u64::MAX,
        };
        let data = Data::new(1 << 20, 1 << 10, &shape, 1000, &[]);
        data.set_counted(0, 5000, 0);
        for wanted in 0..MOST_WANTED {
            assert!(data.homes_for(0, wanted) > 0);
            let chunk = Chunk::upwards(&data, (10, 900), 0, data.homes_for(0, wanted));
            assert!(chunk.keys.1 >= 10, "{wanted} {:?}", chunk.keys);
        }
    }
}
