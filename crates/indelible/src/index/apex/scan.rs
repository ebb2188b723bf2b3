//! Ranges, in both directions.
//!
//! A range reads the records of some neighbouring homes at a time: it copies the slots that may hold them, takes those from the
//! stash, validates the group's version, and sorts. The slots are in order but for the distance of a window, so sorting
//! is cheap. Between two reads it holds no lock and no guard, only the keys not read yet: coming down again costs less than a
//! miss. So structure changes cannot confuse it: every key has one home at any time, and no key is asked for twice.

use super::bucket::Entry;
use super::data::Data;
use super::layout::{GROUP, LINE_SLOTS, WINDOW, window_of};
use super::{Apex, Tree};
use crate::index::simd::{Kernel, Simd, dispatch, prefetch};
use crate::{Error, Result, reclaim};
use std::cell::Cell;
use std::sync::Arc;

pub(super) type Pair = [u64; 2];

/// Homes that are read at once: first, for ranges that end soon, and then.
const CHUNKS: [usize; 2] = if GROUP < 128 {
    [GROUP / 4, GROUP / 2]
} else {
    [64, 128]
};

/// Records that the windows of so many homes have at most, and a line more: lines are written whole.
const fn room_for(homes: usize) -> usize {
    homes + 2 * WINDOW + LINE_SLOTS
}

/// Keys not read yet, both ends included.
type Unread = Option<(u64, u64)>;

/// Records read and not given out yet, in the order of reading.
#[derive(Default)]
struct Run {
    /// At least as many as there may be, some of which do not count.
    records: Vec<Pair>,
    start: usize,
    end: usize,
    /// This is not the first chunk.
    goes_on: bool,
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

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Empties the run, and returns how many homes to read next.
    fn restart(&mut self) -> usize {
        if self.records.is_empty() {
            self.records = SPARE.take();
            let room = self.records.len().max(room_for(CHUNKS[1]));
            self.records.resize(room, [0, 0]);
        }
        (self.start, self.end) = (0, 0);
        CHUNKS[usize::from(self.goes_on)]
    }

    /// Adds a record from a stash, of which there may be any number.
    fn push(&mut self, record: Pair) {
        if self.end == self.records.len() {
            self.records.resize(2 * self.end, [0, 0]);
        }
        self.records[self.end] = record;
        self.end += 1;
    }
}

thread_local! {
    /// What the last range of this thread had for a buffer: to allocate and clear one takes as long as a short range.
    static SPARE: Cell<Vec<Pair>> = const { Cell::new(Vec::new()) };
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.records.is_empty() {
            // Not at the end of the thread, when there is no use for it.
            let _ = SPARE.try_with(|spare| spare.set(std::mem::take(&mut self.records)));
        }
    }
}

/// Homes of one group, from the first to the last, and the keys that have them.
struct Chunk {
    homes: (usize, usize),
    keys: (u64, u64),
}

impl Chunk {
    /// As many `homes` from that of `first` on, and no key above `last`.
    fn upwards(data: &Data, first: u64, last: u64, homes: usize) -> Self {
        let home = data.model.predict(first);
        let after = (home + homes).min((home | (GROUP - 1)) + 1);
        let end = data.model.first_key_of(after);
        let end = end.and_then(|key| key.checked_sub(1)).unwrap_or(data.high);
        Self {
            homes: (home, after - 1),
            keys: (first, end.min(data.high).min(last)),
        }
    }

    /// As many `homes` up to that of `last`, and no key below `first`.
    fn downwards(data: &Data, first: u64, last: u64, homes: usize) -> Self {
        let home = data.model.predict(last);
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
}

impl Tree {
    /// Reads on: fills `run`, which is empty, from the lower end of `unread` upwards or from its upper end downwards, until
    /// there is something in it or nothing left to read.
    fn read_on<const UP: bool>(&self, unread: &mut Unread, run: &mut Run) -> Result<()> {
        while let (Some((first, last)), true) = (*unread, run.is_empty()) {
            let homes = run.restart();
            let _guard = reclaim::pin();
            let data = self.data_of(if UP { first } else { last })?;
            let chunk = if UP {
                Chunk::upwards(data, first, last, homes)
            } else {
                Chunk::downwards(data, first, last, homes)
            };
            let read = Read::<UP> {
                tree: self,
                data,
                chunk: &chunk,
                run: &mut *run,
            };
            if !dispatch(self.simd, read) {
                run.restart();
                continue;
            }
            run.goes_on = true;
            let records = &mut run.records[..run.end];
            sort_nearly(records);
            if !UP {
                records.reverse();
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

    /// Adds the records of a chunk, nearly sorted but for those from the stash; `false` if somebody changed them meanwhile.
    #[inline(always)]
    fn read_chunk<S: Simd, const UP: bool>(
        &self,
        data: &Data,
        chunk: &Chunk,
        run: &mut Run,
    ) -> bool {
        let ((from, to), (low, high)) = (chunk.homes, chunk.keys);
        let lock = self.locks.of(data.lock_of(from));
        let version = lock.read();
        let lines = self.lines(data, window_of(from), window_of(to) + WINDOW);
        lines
            .iter()
            .for_each(|line| prefetch(std::ptr::from_ref(line)));
        let blocks = Entry::block(from)..=Entry::block(to);
        let stashed = || {
            data.overflow_of(from / GROUP)
                .filter(|entry| blocks.contains(&entry.block_of_home()))
                .filter_map(|entry| data.stash_at(entry.stash_slot()))
                .map(|at| self.slot_at(at))
        };
        stashed().for_each(|slot| prefetch(std::ptr::from_ref(slot)));
        for line in lines {
            // Free slots have a key outside of the node's range, which `low` and `high` are not.
            if let Some(out) = run.records[run.end..].first_chunk_mut() {
                run.end += S::records_between(line, low, high - low, out);
            }
        }
        for slot in stashed() {
            let record = [slot.key.load(), slot.value.load()];
            if (low..=high).contains(&record[0]) {
                run.push(record);
            }
        }
        lock.is_still(version)
    }
}

struct Read<'a, const UP: bool> {
    tree: &'a Tree,
    data: &'a Data,
    chunk: &'a Chunk,
    run: &'a mut Run,
}

impl<const UP: bool> Kernel for Read<'_, UP> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        self.tree
            .read_chunk::<S, UP>(self.data, self.chunk, self.run)
    }
}

/// Sorts records that are not far from where they belong.
#[inline(always)]
pub(super) fn sort_nearly(records: &mut [Pair]) {
    let mut last = 0;
    for i in 0..records.len() {
        let record = records[i];
        if record[0] >= last {
            last = record[0];
            continue;
        }
        let mut at = i;
        while at > 0 && records[at - 1][0] > record[0] {
            records[at] = records[at - 1];
            at -= 1;
        }
        records[at] = record;
    }
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

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    #[inline(never)]
    fn read_front(&mut self) -> Option<Pair> {
        let tree = &self.apex.shared.tree;
        let read = tree.read_on::<true>(&mut self.unread, &mut self.front);
        self.stop_at_error(read);
        // The ends have met: the rest lies in the other buffer.
        self.front.pop().or_else(|| self.back.pop_last())
    }

    #[inline(never)]
    fn read_back(&mut self) -> Option<Pair> {
        let tree = &self.apex.shared.tree;
        let read = tree.read_on::<false>(&mut self.unread, &mut self.back);
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
