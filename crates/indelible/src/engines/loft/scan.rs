//! Ranges.
//!
//! Records of a node are in order only as far as the model is monotonous: a record lies in the window that begins at its predicted line, or
//! in a bucket of its group. So a range reads a *stretch* of keys at a time: the lines from the predicted line of its first key to that of
//! its last key, and on to the first line that has an empty slot, since no record that is predicted before such a line lies behind it. For
//! the same reason buckets have records of the stretch only if as many lines in a row are full as a window has, and most are not looked at.
//! Each pair of lines is sorted in vector registers, and records that lie behind their predicted line are then moved back.
//!
//! The state is the upper part of a slot's key word, so the words of live records with keys of the stretch are those between two bounds. When
//! all has been read, the range looks whether the node is being moved: if not, no slot was frozen or closed. Of a node whose slots are being frozen all
//! records are read one by one; other moves are finished first.

use super::Index;
use super::layout::{GROUP_LINES, LINE_SLOTS, PIECES, bare, key_word, state, state_of};
use super::node::{Kin, Mode, Move, Node, load_move};
use super::recover::keys_of;
use super::search::{End, Spot, closed_for_nothing, never_written};
use super::tuning::{Counted, SAMPLED};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::sync::atomic::{AtomicU64, Ordering, fence};
use crate::engines::{KeyValue, MOST_READ, ReadBuffer, Unread, rest};
use crate::kernels::{Kernel, KeyLine, PAIR_RECORDS, Simd, dispatch, insert_in_order, prefetch};
use crate::pmem::schedule::point;

/// What reading a stretch of a node came to.
enum Read {
    Done,
    /// The node is being moved.
    Moved,
}

impl Index {
    pub(super) fn read_more<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut ReadBuffer<()>,
        wanted: Option<usize>,
    ) -> Result<()> {
        let usual = buffer.restart();
        let wanted = wanted.unwrap_or(usual).clamp(1, MOST_READ);
        while let Some((first, last)) = *unread
            && buffer.end < wanted
        {
            let pinned = epochs::pin();
            let next = if UP { first } else { last };
            let Some(spot) = self.walk_in_tree(next)? else {
                continue;
            };
            let (low, high) = keys_of(&spot, next)?;
            let End::Node(node) = spot.end else {
                *unread = rest::<UP>((first, last), if UP { high } else { low });
                continue;
            };
            if let Some(moved) = load_move(&node.moving) {
                if matches!(moved.mode, Mode::Whole) && moved.target().is_none() {
                    let keys = (first.max(low), last.min(high));
                    if self.read_frozen::<UP>(node, moved, keys, buffer)? {
                        *unread = rest::<UP>((first, last), if UP { keys.1 } else { keys.0 });
                    }
                } else {
                    self.finish_any(node, moved)?;
                }
                continue;
            }
            let keys = (first.max(low), last.min(high));
            let keys = stretch_of::<UP>(node, keys, wanted - buffer.end);
            match self.read_stretch::<UP>(node, keys, buffer)? {
                Read::Done => {
                    *unread = rest::<UP>((first, last), if UP { keys.1 } else { keys.0 });
                    if pinned.is_one_in(SAMPLED) {
                        node.sampled(Counted::Range);
                    }
                }
                Read::Moved => {}
            }
        }
        Ok(())
    }

    /// Appends the records with these keys of a node whose slots are being frozen, unless the move has got a target.
    fn read_frozen<const UP: bool>(
        &self,
        node: &Node,
        moved: &Move,
        (first, last): (u64, u64),
        buffer: &mut ReadBuffer<()>,
    ) -> Result<bool> {
        let mut records = self.records_of(node)?;
        records.retain(|record| (first..=last).contains(&record.0));
        self.flight.settle_lines(node.slots(), 0..node.slot_count);
        for bucket in node.all_buckets() {
            let slots = bucket.slots();
            self.flight.settle_lines(slots, 0..slots.len());
        }
        // What was read before is not younger than what is read now.
        fence(Ordering::Acquire);
        point();
        if moved.target().is_some() {
            return Ok(false);
        }
        if !UP {
            records.reverse();
        }
        buffer.make_room(records.len());
        let room = &mut buffer.records[buffer.end..][..records.len()];
        for (place, (key, value)) in room.iter_mut().zip(records.iter().copied()) {
            *place = [key, value];
        }
        buffer.end += records.len();
        Ok(true)
    }

    /// Appends the records with these keys of a node, in order.
    fn read_stretch<const UP: bool>(
        &self,
        node: &Node,
        (first, last): (u64, u64),
        buffer: &mut ReadBuffer<()>,
    ) -> Result<Read> {
        let (begin, end) = (node.predicted(first), node.predicted(last));
        let lines = node.lines_of_words(begin..end + u64::from(node.window));
        let predicted = (end - begin) as usize + 1;
        // All lines at once: the processor sees by itself only after a few of them that they follow each other.
        lines[..predicted].iter().for_each(|line| prefetch(line));
        let start = buffer.end;
        buffer.make_room(lines.len() * LINE_SLOTS + PAIR_RECORDS);
        let low = key_word(state::LIVE, first);
        let read = ReadLines {
            lines,
            predicted,
            window: node.window as usize,
            low,
            span: last - first,
            out: &mut buffer.records[start..],
        };
        let read = dispatch(self.simd, read);
        let mut count = read.count;
        let mut is_in_order = read.is_in_order;
        if read.is_crowded {
            let records = &mut buffer.to_merge;
            records.clear();
            for group in begin / GROUP_LINES..=end / GROUP_LINES {
                for bucket in node.buckets(group) {
                    let slots = bucket.slots();
                    for slot in slots {
                        point();
                        let word = slot.first.load_acquire();
                        if state_of(word) == state::NEVER_WRITTEN {
                            return Err(never_written(node));
                        }
                        let record = [word, slot.second.load_acquire()];
                        if word.wrapping_sub(low) <= last - first {
                            records.push(record);
                        }
                    }
                    self.flight.settle_lines(slots, 0..slots.len());
                }
            }
            if !records.is_empty() {
                buffer.make_room(count + buffer.to_merge.len());
                let room = &mut buffer.records[start + count..];
                room[..buffer.to_merge.len()].copy_from_slice(&buffer.to_merge);
                count += buffer.to_merge.len();
                is_in_order = false;
            }
        }
        if self.flight.is_needed() {
            // The kernel may have read values after keys in no order; who has one looks at the table of writes after it has read.
            fence(Ordering::Acquire);
            let slots = node.slots();
            let slots = &slots[begin as usize * LINE_SLOTS..][..read.lines * LINE_SLOTS];
            let firsts = slots.iter().step_by(LINE_SLOTS);
            firsts.for_each(|slot| self.flight.settle(slot));
        }
        // What was read before is not younger than what is read now.
        fence(Ordering::Acquire);
        point();
        if load_move(&node.moving).is_some() {
            return Ok(Read::Moved);
        }
        if read.states & (1 << state::NEVER_WRITTEN) != 0 {
            return Err(never_written(node));
        }
        if read.states & (1 << state::FROZEN | 1 << state::CLOSED) != 0 {
            return Err(closed_for_nothing(node));
        }
        if !is_in_order {
            count = sort_and_deduplicate(&mut buffer.records[start..start + count]);
        }
        let records = &mut buffer.records[start..start + count];
        let of_node = node.key(0).wrapping_sub(bare(state::LIVE));
        for record in records.iter_mut() {
            record[0] = record[0].wrapping_add(of_node);
        }
        if !UP {
            records.reverse();
        }
        buffer.end = start + count;
        node.note_density(count, predicted);
        Ok(Read::Done)
    }

    /// [`walk`](Self::walk), but not to the target of an inner node that is moved: that may have the keys of other children too, whose records
    /// have not been copied yet. Finishes such a move, and returns `None`. The thread is pinned.
    fn walk_in_tree(&self, key: u64) -> Result<Option<Spot<'_>>> {
        let mut child = self.top();
        let mut parent = None;
        loop {
            // SAFETY: the thread is pinned, and the child was loaded since from a link to it.
            let end = match unsafe { child.kin() } {
                Kin::Inner(inner) => {
                    let index = inner.index(key);
                    point();
                    child = inner.child(index);
                    parent = Some((inner, index));
                    continue;
                }
                Kin::Untouched => {
                    child = self.touch(parent)?;
                    continue;
                }
                Kin::Closed => break,
                Kin::Node(node) => End::Node(node),
                Kin::Empty => End::Nothing,
            };
            return Ok(Some(Spot { end, parent }));
        }
        let moved = parent.and_then(|(inner, _)| load_move(&inner.moving));
        let moved = moved.expect("a closed child belongs to an inner node that is moved");
        // SAFETY: the source is retired after the move has ended, and the thread is pinned since before.
        if let Kin::Inner(source) = unsafe { moved.source.kin() } {
            self.finish_inner(source, moved)?;
        }
        Ok(None)
    }

    /// Finishes the move that a node is part of.
    pub(super) fn finish_any(&self, node: &Node, moved: &super::node::Move) -> Result<()> {
        if !matches!(moved.mode, Mode::Subtree) {
            return self.finish(node, moved);
        }
        // SAFETY: the source is retired after the move has ended, and the caller is pinned since before.
        match unsafe { moved.source.kin() } {
            Kin::Inner(inner) => self.finish_inner(inner, moved),
            _ => Ok(()),
        }
    }
}

impl Node {
    /// Remembers how many records a stretch had that begins in the first of some lines and ends in the last, if that is news.
    fn note_density(&self, records: usize, lines: usize) {
        if lines < LINES_TO_JUDGE {
            return;
        }
        let density = (records * 64 / (lines - 1)) as u32;
        // Other threads have the line in their caches.
        if density.abs_diff(self.density.load(Ordering::Relaxed)) > density / 8 {
            self.density.store(density.max(1), Ordering::Relaxed);
        }
    }
}

/// The first of these keys, which belong to a node, as far as they probably have so many records; without `UP` the last ones.
#[inline(always)]
fn stretch_of<const UP: bool>(node: &Node, (first, last): (u64, u64), wanted: usize) -> (u64, u64) {
    // Some more than wanted: keys are not spread evenly, and a second stretch costs more than a line.
    let wanted = (wanted + wanted / 8 + LINE_SLOTS) as u64;
    let density = u64::from(node.density.load(Ordering::Relaxed));
    let lines = (wanted * 64 / density).clamp(1, MOST_LINES);
    let (from, to) = (
        node.model.first,
        node.model.first.saturating_add(node.model.span),
    );
    // At least as many keys as a line has, or a range would read a line many times. All keys outside of those that the model tells apart
    // belong to one line. In a damaged file the span may be the largest number, and a sum that began again at zero would make stretches of one key each.
    let per_line = (node.model.span / node.lines).saturating_add(1);
    let keys = match &node.pieces {
        None => per_line.saturating_mul(lines),
        Some(pieces) => {
            let (line, key) = match UP {
                true => (node.predicted(first) + lines, first.clamp(from, to)),
                false => (
                    node.predicted(last).saturating_sub(lines),
                    last.clamp(from, to),
                ),
            };
            let share = u128::from(pieces.share_before(line));
            let before = ((u128::from(node.model.span) * share) >> 32) as u64;
            let there = from.saturating_add(before);
            there.abs_diff(key).max(per_line / PIECES as u64 + 1)
        }
    };
    if UP {
        let end = first.max(from).saturating_add(keys);
        (first, if end >= to { last } else { end.min(last) })
    } else {
        let begin = last.min(to).saturating_sub(keys);
        (
            if begin <= from {
                first
            } else {
                begin.max(first)
            },
            last,
        )
    }
}

/// Copies the live records with the key words from `low` to `low + span` of some lines to `out`, in order. The first `predicted` lines are those in which such
/// records are predicted, and a window more follows the last of them. `out` has room for all slots of the lines and of a pair.
struct ReadLines<'a> {
    lines: &'a [KeyLine],
    predicted: usize,
    window: usize,
    low: u64,
    span: u64,
    out: &'a mut [KeyValue],
}

/// What a [`ReadLines`] found.
struct LinesRead {
    count: usize,
    /// How many lines were read.
    lines: usize,
    /// The states of the lines' last slots, as bits.
    states: u32,
    /// Whether so many lines in a row were full that there may be records in buckets.
    is_crowded: bool,
    /// Whether the records are in order, and no key is there twice: one that was removed and has returned while the lines were read may have been
    /// read in both slots.
    is_in_order: bool,
}

impl Kernel for ReadLines<'_> {
    type Out = LinesRead;

    #[inline(always)]
    fn run<S: Simd>(self) -> LinesRead {
        let (mut count, mut lines) = (0, 0);
        let (mut states, mut full, mut most_full) = (0, 0_usize, 0);
        for pair in self.lines.chunks(2) {
            point();
            let mut has_room = [false; 2];
            for (line, has_room) in pair.iter().zip(&mut has_room) {
                // The slots of a line are used one after the other, so the last one says whether there is room.
                let state = state_of(line.0[2 * LINE_SLOTS - 2].load(Ordering::Acquire));
                states |= 1 << state;
                *has_room = state == state::EMPTY;
                full = if *has_room { 0 } else { full + 1 };
                most_full = most_full.max(full);
            }
            let copy = match pair {
                [left, right] => [S::records(left), S::records(right)],
                [left, ..] => [S::records(left), no_records()],
                [] => break,
            };
            let Some(room) = self.out[count..].first_chunk_mut() else {
                // Going on would lose records.
                panic!("there is room for all records of the lines");
            };
            // Of two slots with one key, a kernel may leave one place as it was: that must look like disorder.
            *room = [[0; 2]; PAIR_RECORDS];
            let end = count + S::sorted_between(&copy, self.low, self.span, room);
            for at in count.max(1)..end {
                if self.out[at - 1][0] < self.out[at][0] {
                    break;
                }
                insert_in_order(self.out, at);
            }
            count = end;
            let behind = [lines + 1, lines + 2].map(|end| end >= self.predicted);
            lines += pair.len();
            if (has_room[0] & behind[0]) | (has_room[1] & behind[1]) {
                break;
            }
        }
        let records = &self.out[..count];
        LinesRead {
            count,
            lines,
            states,
            is_crowded: most_full >= self.window,
            is_in_order: records.first().is_none_or(|first| first[0] >= self.low)
                && S::is_strict::<true>(records),
        }
    }
}

/// A line of empty slots.
fn no_records() -> KeyLine {
    KeyLine(
        [
            bare(state::EMPTY),
            0,
            bare(state::EMPTY),
            0,
            bare(state::EMPTY),
            0,
            bare(state::EMPTY),
            0,
        ]
        .map(AtomicU64::new),
    )
}

/// Lines from which on a stretch says how densely a node is filled.
const LINES_TO_JUDGE: usize = 8;

/// Lines of a stretch, at most: those of a quarter of the largest node.
const MOST_LINES: u64 = 256;

/// Sorts the key words and values of records, and drops what is there twice and what is none. Returns how many are left.
#[cold]
fn sort_and_deduplicate(records: &mut [KeyValue]) -> usize {
    // Most often there are two runs in order, which this sort finds.
    records.sort_by_key(|record| record[0]);
    let mut count = 0;
    for at in 0..records.len() {
        let is_new = count == 0 || records[count - 1][0] != records[at][0];
        if is_new && state_of(records[at][0]) == state::LIVE {
            records[count] = records[at];
            count += 1;
        }
    }
    count
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::layout::KEY_BITS;
    use super::*;
    use crate::kernels::SimdLevel;
    use proptest::prelude::*;

    fn lines_of(words: &[u64]) -> Vec<KeyLine> {
        let line = |slots: &[u64]| {
            let words = std::array::from_fn(|i| {
                if i % 2 == 0 {
                    slots[i / 2]
                } else {
                    !slots[i / 2]
                }
            });
            KeyLine(words.map(AtomicU64::new))
        };
        words.chunks_exact(LINE_SLOTS).map(line).collect()
    }

    fn read(
        level: SimdLevel,
        words: &[u64],
        predicted: usize,
        (low, high): (u64, u64),
    ) -> (LinesRead, Vec<u64>) {
        let lines = lines_of(words);
        let mut out = vec![[7, 7]; words.len() + PAIR_RECORDS];
        let read = ReadLines {
            lines: &lines,
            predicted,
            window: 3,
            low: key_word(state::LIVE, low),
            span: high - low,
            out: &mut out,
        };
        let read = dispatch(level, read);
        let mut count = read.count;
        if !read.is_in_order {
            count = sort_and_deduplicate(&mut out[..count]);
        }
        assert!(out[..count].iter().all(|record| record[1] == !record[0]));
        let keys = out[..count].iter().map(|record| record[0] & KEY_BITS);
        (read, keys.collect())
    }

    /// Slots as they may be: in each line some that are used come first; keys may be there twice, in other states and as live ones.
    fn slots() -> impl Strategy<Value = Vec<u64>> {
        let slot = (
            0..60_u64,
            prop_oneof![4 => Just(state::LIVE), 1 => Just(state::REMOVED), 1 => Just(state::PENDING), 1 => Just(state::DEAD)],
        );
        let line = (proptest::array::uniform4(slot), 0..=LINE_SLOTS).prop_map(|(slots, used)| {
            let word = |i: usize| {
                if i < used {
                    key_word(slots[i].1, slots[i].0)
                } else {
                    bare(state::EMPTY)
                }
            };
            std::array::from_fn::<_, LINE_SLOTS, _>(word)
        });
        proptest::collection::vec(line, 1..12)
            .prop_map(|lines| lines.into_iter().flatten().collect())
    }

    proptest! {
        #[test]
        fn lines_are_read_in_order_up_to_the_first_one_with_room(
            words in slots(),
            predicted in 1..12_usize,
            bounds in proptest::array::uniform2(0..60_u64),
        ) {
            let (low, high) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]));
            let count = words.len() / LINE_SLOTS;
            let predicted = predicted.min(count);
            let has_room = |line: usize| words[line * LINE_SLOTS + LINE_SLOTS - 1] == bare(state::EMPTY);
            let needed = (predicted..=count).find(|&end| has_room(end - 1)).unwrap_or(count);
            let is_wanted = |word: &u64| state_of(*word) == state::LIVE && (low..=high).contains(&(word & KEY_BITS));
            let wanted = |words: &[u64]| {
                let keys = words.iter().filter(|word| is_wanted(word)).map(|word| word & KEY_BITS);
                keys.collect::<std::collections::BTreeSet<u64>>().into_iter().collect::<Vec<u64>>()
            };
            for level in SimdLevel::available() {
                let (read, keys) = read(level, &words, predicted, (low, high));
                prop_assert!(read.lines == needed || read.lines == needed + 1, "{level:?}");
                prop_assert_eq!(&keys, &wanted(&words[..read.lines * LINE_SLOTS]), "{:?}", level);
                let rows = (0..read.lines).collect::<Vec<_>>();
                let is_crowded = rows.windows(3).any(|row| row.iter().all(|&line| !has_room(line)));
                prop_assert_eq!(read.is_crowded, is_crowded, "{:?}", level);
            }
        }
    }

    #[test]
    fn lines_that_were_never_written_and_moved_slots_are_told() {
        for level in SimdLevel::available() {
            for state in [state::NEVER_WRITTEN, state::FROZEN, state::CLOSED] {
                for at in 0..5 {
                    let mut words = vec![bare(state::EMPTY); 5 * LINE_SLOTS];
                    words[at * LINE_SLOTS..][..LINE_SLOTS].fill(bare(state));
                    let (read, keys) = read(level, &words, 5, (0, 9));
                    assert!(read.states & 1 << state != 0 && keys.is_empty());
                }
            }
        }
    }
}
