//! Ranges.
//!
//! Records of a node are in order only as far as the model is monotonous: a record lies in the window that begins at its predicted line, or
//! in a bucket of its group. So a range reads the lines of a stretch of the model and a window more, and the buckets of the groups, keeps
//! the records whose predicted line is in the stretch, and sorts them. A node that is being moved is finished first.

use super::Index;
use super::layout::{GROUP_LINES, LINE_SLOTS, Slot, state, state_of};
use super::node::{Node, load_move};
use super::search::{closed_for_nothing, never_written};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::{KeyValue, MOST_READ, ReadBuffer, Unread};
use crate::kernels::prefetch;
use crate::pmem::schedule::point;

/// What reading a stretch of a node came to.
enum Read {
    Done,
    /// A slot is frozen or closed: the node is being moved.
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
        let mut records = std::mem::take(&mut buffer.to_merge);
        records.clear();
        let result = self.read_nodes::<UP>(unread, &mut records, wanted);
        buffer.make_room(records.len());
        buffer.records[..records.len()].copy_from_slice(&records);
        buffer.end = records.len();
        records.clear();
        buffer.to_merge = records;
        result
    }

    fn read_nodes<const UP: bool>(
        &self,
        unread: &mut Unread,
        records: &mut Vec<KeyValue>,
        wanted: usize,
    ) -> Result<()> {
        while let Some((first, last)) = *unread
            && records.len() < wanted
        {
            let _pinned = epochs::pin();
            let (node, (low, high)) = self.node_at(if UP { first } else { last })?;
            let Some(node) = node else {
                *unread = rest::<UP>((first, last), if UP { high } else { low });
                continue;
            };
            if let Some(moved) = load_move(&node.moving) {
                self.finish_any(node, moved)?;
                continue;
            }
            let before = records.len();
            let range = (first.max(low), last.min(high));
            let end = match self.read_node::<UP>(node, range, wanted - before, records)? {
                Some(end) => end,
                None => {
                    if load_move(&node.moving).is_none() {
                        return Err(closed_for_nothing(node));
                    }
                    records.truncate(before);
                    continue;
                }
            };
            *unread = rest::<UP>((first, last), end);
        }
        Ok(())
    }

    /// Reads records of a node in order until there are `wanted`. Returns the last key that is done, or `None` if the node is being moved.
    fn read_node<const UP: bool>(
        &self,
        node: &Node,
        (first, last): (u64, u64),
        wanted: usize,
        records: &mut Vec<KeyValue>,
    ) -> Result<Option<u64>> {
        let (mut from, mut to) = (node.model.line(first), node.model.line(last) + 1);
        let before = records.len();
        let mut stretch = (wanted / RECORDS_PER_LINE + 2) as u64;
        loop {
            let (begin, end) = match UP {
                true => (from, to.min(from + stretch)),
                false => (from.max(to.saturating_sub(stretch)), to),
            };
            let start = records.len();
            if let Read::Moved = self.read_lines(node, (begin, end), (first, last), records)? {
                return Ok(None);
            }
            let new = &mut records[start..];
            sort::<UP>(new);
            // A key that was removed and has returned while the lines were read may have been read twice.
            records.dedup_by_key(|record| record[0]);
            match UP {
                true => from = end,
                false => to = begin,
            }
            if from >= to {
                return Ok(Some(if UP { last } else { first }));
            }
            let found = records.len() - before;
            if found >= wanted {
                return Ok(records.last().map(|record| record[0]));
            }
            // As many lines as hold what is missing, if there are as many records in a line as in those before.
            let of_lines = (records.len() - start).max(1) as u64;
            stretch = (stretch * (wanted - found) as u64 / of_lines + 2).min(MOST_LINES);
        }
    }

    /// Adds the records in a range of keys whose predicted line lies in a stretch.
    fn read_lines(
        &self,
        node: &Node,
        (begin, end): (u64, u64),
        (first, last): (u64, u64),
        records: &mut Vec<KeyValue>,
    ) -> Result<Read> {
        let lines = begin as usize..(end + u64::from(node.window) - 1) as usize;
        let in_lines = &node.slots()[lines.start * LINE_SLOTS..lines.end * LINE_SLOTS];
        let groups = begin / GROUP_LINES..=(end - 1) / GROUP_LINES;
        // All lines at once: the processor sees by itself only after a few of them that they follow each other.
        prefetch(&node.groups[*groups.start() as usize]);
        for line in in_lines.iter().step_by(LINE_SLOTS) {
            prefetch(line);
        }
        let in_buckets = groups
            .flat_map(|group| node.buckets(group))
            .map(|bucket| bucket.slots());
        // A record lies at most a window behind its predicted line. So only in the first lines can be one from before the stretch, and
        // only beyond the stretch, and in buckets, one from behind it.
        let sure = node.window as usize - 1..(end - begin) as usize;
        let of_stretch = |key: u64| (begin..end).contains(&node.model.line(key));
        for (slots, sure) in
            std::iter::once((in_lines, sure)).chain(in_buckets.map(|slots| (slots, 0..0)))
        {
            let (lines, rest) = slots.as_chunks::<LINE_SLOTS>();
            let mut states = States::default();
            for (number, line) in lines.iter().enumerate() {
                states.add(if sure.contains(&number) {
                    read_slots(node, line, |key| (first <= key) & (key <= last), records)
                } else {
                    let is_wanted = |key| first <= key && key <= last && of_stretch(key);
                    read_slots(node, line, is_wanted, records)
                });
                if states.has(state::FROZEN) || states.has(state::CLOSED) {
                    return Ok(Read::Moved);
                }
            }
            for slot in rest {
                let is_wanted = |key| first <= key && key <= last && of_stretch(key);
                let slot = std::array::from_ref(slot);
                states.add(read_slots(node, slot, is_wanted, records));
            }
            if states.has(state::FROZEN) || states.has(state::CLOSED) {
                return Ok(Read::Moved);
            }
            if states.has(state::NEVER_WRITTEN) {
                return Err(never_written(node));
            }
            self.flight.settle_lines(slots, 0..slots.len());
        }
        Ok(Read::Done)
    }

    /// Finishes the move that a node is part of.
    fn finish_any(&self, node: &Node, moved: &super::node::Move) -> Result<()> {
        if !moved.done.is_empty() {
            return self.finish(node, moved);
        }
        // SAFETY: the source is retired after the move has ended, and the caller is pinned since before.
        match unsafe { moved.source.kin() } {
            super::node::Kin::Inner(inner) => self.finish_inner(inner, moved),
            _ => Ok(()),
        }
    }
}

/// The states of slots that have been read, as bits.
#[derive(Clone, Copy, Default)]
struct States(u32);

impl States {
    fn add(&mut self, more: Self) {
        self.0 |= more.0;
    }

    fn has(self, state: u64) -> bool {
        self.0 >> state & 1 == 1
    }
}

/// Adds the wanted records of some slots, without a branch that depends on which slots are in use: that is as good as random.
#[inline(always)]
fn read_slots<const SLOTS: usize>(
    node: &Node,
    slots: &[Slot; SLOTS],
    is_wanted: impl Fn(u64) -> bool,
    records: &mut Vec<KeyValue>,
) -> States {
    let mut found = [[0; 2]; SLOTS];
    let mut count = 0;
    let mut states = States::default();
    for slot in slots {
        point();
        let word = slot.first.load_acquire();
        let value = slot.second.load_acquire();
        let state = state_of(word);
        states.add(States(1 << state));
        let key = node.key(word);
        found[count.min(SLOTS - 1)] = [key, value];
        count += usize::from((state == state::LIVE) & is_wanted(key));
    }
    let before = records.len();
    records.extend_from_slice(&found);
    records.truncate(before + count);
    states
}

/// Records in a line on average that the first stretch of a range reckons with: nodes that were loaded have nearly three.
const RECORDS_PER_LINE: usize = 3;

/// Lines of a stretch, at most: those of a quarter of the largest node.
const MOST_LINES: u64 = 256;

/// Records of which one may be far from its place before the others are sorted in another way.
const MOST_TO_INSERT: usize = 16;

/// Sorts records that are nearly in order, since each lies near its predicted line.
fn sort<const UP: bool>(records: &mut [KeyValue]) {
    let rank = |record: &KeyValue| if UP { record[0] } else { !record[0] };
    if !UP {
        records.reverse();
    }
    for next in 1..records.len() {
        let record = records[next];
        let mut at = next;
        while at > 0 && rank(&records[at - 1]) > rank(&record) {
            records[at] = records[at - 1];
            at -= 1;
            if next - at > MOST_TO_INSERT {
                records[at] = record;
                return records.sort_unstable_by_key(rank);
            }
        }
        records[at] = record;
    }
}

/// What is left of a range of keys from which those up to `done`, or down to it, have been read.
fn rest<const UP: bool>((first, last): (u64, u64), done: u64) -> Unread {
    match UP {
        true => (done < last).then(|| (done + 1, last)),
        false => (done > first).then(|| (first, done - 1)),
    }
}
