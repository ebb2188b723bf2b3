//! Ranges.
//!
//! Records of a node are in order only as far as the model is monotonous: a record lies in the window that begins at its predicted line, or
//! in a bucket of its group. So a range reads the lines of a stretch of the model and a window more, and the buckets of the groups, keeps
//! the records whose predicted line is in the stretch, and sorts them. A node that is being moved is finished first.

use super::Index;
use super::layout::{GROUP_LINES, KEY_BITS, LINE_SLOTS, state, state_of};
use super::node::{Node, load_move};
use super::search::{closed_for_nothing, never_written};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::{KeyValue, MOST_READ, ReadBuffer, Unread};
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
        loop {
            let stretch = (wanted / 2 + 4) as u64;
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
            if records.len() - before >= wanted {
                return Ok(records.last().map(|record| record[0]));
            }
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
        let in_buckets = groups
            .flat_map(|group| node.buckets(group))
            .map(|bucket| bucket.slots());
        // A record lies at most a window behind its predicted line. So only in the first lines can be one from before the stretch, and
        // only beyond the stretch, and in buckets, one from behind it.
        let first_sure = (u64::from(node.window) as usize - 1) * LINE_SLOTS;
        let sure = first_sure..(end - begin) as usize * LINE_SLOTS;
        for (slots, sure) in
            std::iter::once((in_lines, sure)).chain(in_buckets.map(|slots| (slots, 0..0)))
        {
            for (number, slot) in slots.iter().enumerate() {
                point();
                let word = slot.first.load_acquire();
                let state = state_of(word);
                if state == state::LIVE {
                    let key = node.low & !KEY_BITS | word & KEY_BITS;
                    let value = slot.second.load_acquire();
                    let is_here = || (begin..end).contains(&node.model.line(key));
                    if first <= key && key <= last && (sure.contains(&number) || is_here()) {
                        records.push([key, value]);
                    }
                } else if state == state::FROZEN || state == state::CLOSED {
                    return Ok(Read::Moved);
                } else if state == state::NEVER_WRITTEN {
                    return Err(never_written(node));
                }
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
