//! Ranges, in both directions.
//!
//! A range reads a few leaves at a time into a buffer: each leaf is copied, sorted and validated while the caches fetch
//! those that follow under the same bottom node. Between two reads it holds no lock and no guard, only the key to go on
//! from and a [`Bookmark`] in the bottom node; if that node has changed meanwhile, it comes down again from the root. So
//! splits and merges cannot confuse it: every key belongs to exactly one leaf at any time, and no key is asked for twice.

use super::arena::NodeRef;
use super::layout::MAX_RECORDS;
use super::leaf::Leaf;
use super::search::{Retry, Spot};
use super::{LbTree, Tree};
use crate::index::simd::{Kernel, Simd, dispatch};
use crate::locks::Version;
use crate::{Error, Result, reclaim};
use std::sync::Arc;

type Pair = [u64; 2];

/// Leaves that the caches are asked for ahead of the one being read.
const AHEAD: usize = 4;

/// Records in a buffer. At 16 bytes each they fit into what a thread's allocator keeps at hand.
const ROOM: usize = 64;
/// Records that [`Leaf::copy_sorted`] writes at once, some of which do not count.
const WINDOW: usize = 16;

// A leaf always fits into an empty buffer.
const _: () = assert!(MAX_RECORDS <= ROOM && WINDOW <= ROOM);

/// Keys not read yet, both ends included.
type Unread = Option<(u64, u64)>;

/// Where in a bottom node a range goes on.
struct Bookmark {
    parent: NodeRef,
    version: Version,
    slot: usize,
    /// The next leaf to ask the caches for.
    ahead: Option<usize>,
    end: Option<u64>,
}

/// Records read and not given out yet, in the order of reading.
#[derive(Default)]
pub(super) struct Run {
    /// Empty, or `ROOM` long.
    records: Vec<Pair>,
    start: usize,
    end: usize,
    bookmark: Option<Bookmark>,
}

impl Run {
    /// The next record.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<Pair> {
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
    fn pop_chunk(&mut self, most: usize) -> &[Pair] {
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

    fn restart(&mut self) {
        self.records.resize(ROOM, [0, 0]);
        (self.start, self.end) = (0, 0);
    }

    /// Adds the records of `leaf` whose keys lie between `first` and `last`, in order.
    #[inline(always)]
    fn append<S: Simd, const UP: bool>(&mut self, leaf: Leaf<'_>, first: u64, last: u64) {
        let free = &mut self.records[self.end..];
        let mut count = 0;
        if !leaf.is_one_block() {
            let mut records = [(0, 0); MAX_RECORDS];
            count = leaf.copy_to(&mut records);
            records[..count].sort_unstable_by_key(|record| record.0);
            for (to, record) in free.iter_mut().zip(&records[..count]) {
                *to = [record.0, record.1];
            }
        } else if let Some(window) = free.first_chunk_mut() {
            count = leaf.copy_sorted::<S>(window);
        }
        let mut added = &mut free[..count];
        if added.first().is_some_and(|record| record[0] < first) {
            let below = added.partition_point(|record| record[0] < first);
            added.copy_within(below.., 0);
            added = &mut free[..count - below];
        }
        if added.last().is_some_and(|record| record[0] > last) {
            let within = added.partition_point(|record| record[0] <= last);
            added = &mut added[..within];
        }
        if !UP {
            added.reverse();
        }
        self.end += added.len();
    }
}

impl Tree {
    /// Reads on: fills `run`, which is empty, from the lower end of `unread` upwards or from its upper end downwards,
    /// until there is something in it or nothing left to read. At most `leaves` leaves.
    pub(super) fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        run: &mut Run,
        leaves: usize,
    ) -> Result<()> {
        while let (Some((first, last)), true) = (*unread, run.is_empty()) {
            run.restart();
            let read = {
                let _guard = reclaim::pin();
                dispatch(
                    self.simd,
                    Read::<UP> {
                        tree: self,
                        unread: &mut *unread,
                        run: &mut *run,
                        leaves,
                    },
                )
            };
            if read == Err(Retry::Gap) {
                self.heal(if UP { first } else { last })?;
            }
        }
        Ok(())
    }

    /// The first record whose key is `key` or above.
    pub(super) fn record_at_or_above(&self, key: u64) -> Result<Option<(u64, u64)>> {
        let mut run = Run::default();
        self.read_on::<true>(&mut Some((key, u64::MAX)), &mut run, 1)?;
        Ok(run.pop().map(|[key, value]| (key, value)))
    }

    /// The last record whose key is `key` or below.
    pub(super) fn record_at_or_below(&self, key: u64) -> Result<Option<(u64, u64)>> {
        let mut run = Run::default();
        self.read_on::<false>(&mut Some((0, key)), &mut run, 1)?;
        Ok(run.pop().map(|[key, value]| (key, value)))
    }

    /// Fails only if nothing could be read.
    #[inline(always)]
    fn try_read_on<S: Simd, const UP: bool>(
        &self,
        unread: &mut Unread,
        run: &mut Run,
        leaves: usize,
    ) -> Result<(), Retry> {
        let Some((mut first, mut last)) = *unread else {
            return Ok(());
        };
        let (spot, mut slot, mut ahead) = match self.reopen(run.bookmark.take()) {
            Some(place) => place,
            None => self.begin::<S, UP>(if UP { first } else { last })?,
        };
        let shape = spot.parent.shape();
        let next = |slot| {
            if UP {
                shape.after(slot)
            } else {
                shape.before(slot)
            }
        };
        let full = ROOM - self.leaves.capacity().max(WINDOW);
        for read in 0..leaves {
            if let Some(slot) = ahead {
                self.leaves.prefetch(spot.parent.child(slot).offset());
                ahead = next(slot);
            }
            // Before the leaf is read: reading it validates the node, and this with it.
            let (low, high) = (spot.parent.key(slot), spot.high_of(slot));
            if let Err(retry) = self.read_leaf::<S, UP>(&spot, slot, first, last, run) {
                return if read == 0 { Err(retry) } else { Ok(()) };
            }
            match high {
                Some(high) if UP && high <= last => first = high,
                _ if !UP && low > first => last = low - 1,
                _ => {
                    *unread = None;
                    return Ok(());
                }
            }
            *unread = Some((first, last));
            let Some(after) = next(slot) else {
                return Ok(());
            };
            slot = after;
            if run.end > full {
                break;
            }
        }
        run.bookmark = Some(Bookmark {
            parent: self.arena.remember(spot.parent),
            version: spot.version,
            slot,
            ahead,
            end: spot.end,
        });
        Ok(())
    }

    /// Goes down to `key`, and asks the caches for the first leaves after it.
    #[inline(always)]
    fn begin<S: Simd, const UP: bool>(
        &self,
        key: u64,
    ) -> Result<(Spot<'_>, usize, Option<usize>), Retry> {
        let spot = self.try_descend::<S>(key)?;
        let shape = spot.parent.shape();
        let mut ahead = Some(spot.slot);
        for _ in 0..AHEAD {
            ahead = ahead.and_then(|slot| {
                self.leaves.prefetch(spot.parent.child(slot).offset());
                if UP {
                    shape.after(slot)
                } else {
                    shape.before(slot)
                }
            });
        }
        Ok((spot, spot.slot, ahead))
    }

    /// Where a bookmark points, if its node has not changed since. The caller is pinned.
    #[inline(always)]
    fn reopen(&self, bookmark: Option<Bookmark>) -> Option<(Spot<'_>, usize, Option<usize>)> {
        let bookmark = bookmark?;
        let parent = self.arena.recall(bookmark.parent);
        let spot = Spot {
            parent,
            version: bookmark.version,
            slot: bookmark.slot,
            child: parent.child(bookmark.slot),
            end: bookmark.end,
        };
        spot.is_current()
            .then_some((spot, bookmark.slot, bookmark.ahead))
    }

    /// Appends one leaf's records, in order, if it can be read whole at once.
    #[inline(always)]
    fn read_leaf<S: Simd, const UP: bool>(
        &self,
        spot: &Spot<'_>,
        slot: usize,
        first: u64,
        last: u64,
        run: &mut Run,
    ) -> Result<(), Retry> {
        let child = spot.parent.child(slot);
        let lock = self.locks.of(child.offset());
        let version = lock.read();
        // While the bottom node is unchanged the leaf holds exactly the keys between its separators.
        if !spot.is_current() {
            return Err(Retry::Changed);
        }
        if child.is_gap() {
            return Err(Retry::Gap);
        }
        let before = run.end;
        run.append::<S, UP>(self.leaves.at(child.offset()), first, last);
        if !lock.validate(version) {
            run.end = before;
            return Err(Retry::Changed);
        }
        Ok(())
    }
}

struct Read<'a, const UP: bool> {
    tree: &'a Tree,
    unread: &'a mut Unread,
    run: &'a mut Run,
    leaves: usize,
}

impl<const UP: bool> Kernel for Read<'_, UP> {
    type Out = Result<(), Retry>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree
            .try_read_on::<S, UP>(self.unread, self.run, self.leaves)
    }
}

/// A range in progress, from both ends.
pub(crate) struct Cursor {
    tree: Arc<LbTree>,
    unread: Unread,
    /// What was read at the lower end, ascending.
    front: Run,
    /// What was read at the upper end, descending.
    back: Run,
    error: Option<Error>,
}

impl Cursor {
    /// A range over the keys from the first to the second of `bounds`, both included; over nothing for `None`.
    pub(crate) fn new(tree: Arc<LbTree>, bounds: Unread) -> Self {
        Self {
            tree,
            unread: bounds,
            front: Run::default(),
            back: Run::default(),
            error: None,
        }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<[u64; 2]> {
        match self.front.pop() {
            Some(record) => Some(record),
            None => self.read_front(),
        }
    }

    #[inline(always)]
    pub(crate) fn next_back(&mut self) -> Option<[u64; 2]> {
        match self.back.pop() {
            Some(record) => Some(record),
            None => self.read_back(),
        }
    }

    /// The next records, at most `most`; none only at the end.
    pub(crate) fn next_chunk(&mut self, most: usize) -> &[Pair] {
        if self.front.is_empty() {
            let tree = &self.tree.shared.tree;
            let read = tree.read_on::<true>(&mut self.unread, &mut self.front, usize::MAX);
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
    fn read_front(&mut self) -> Option<Pair> {
        let tree = &self.tree.shared.tree;
        let read = tree.read_on::<true>(&mut self.unread, &mut self.front, usize::MAX);
        self.stop_at_error(read);
        // The ends have met: the rest lies in the other buffer.
        self.front.pop().or_else(|| self.back.pop_last())
    }

    #[inline(never)]
    fn read_back(&mut self) -> Option<Pair> {
        let tree = &self.tree.shared.tree;
        let read = tree.read_on::<false>(&mut self.unread, &mut self.back, usize::MAX);
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
