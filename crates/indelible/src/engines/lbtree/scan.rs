//! Ranges, in both directions.
//!
//! A range reads a few leaves at a time into a buffer: each leaf is copied, sorted and validated while the caches fetch
//! those that follow under the same bottom node. Between two reads it holds no lock and no guard, only the key to go on
//! from and a [`Bookmark`] in the bottom node; if that node has changed meanwhile, it comes down again from the root. So
//! splits and merges do not disturb a range: every key belongs to exactly one leaf at any time, and no key is asked for twice.

use super::Tree;
use super::arena::NodeRef;
use super::layout::MAX_RECORDS;
use super::leaf::Leaf;
use super::search::{Retry, Spot};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::Version;
use crate::engines::{ReadBuffer, Unread};
use crate::kernels::{Kernel, Simd, dispatch};

/// Leaves that are prefetched ahead of the one being read, in a range.
const LEAVES_AHEAD: usize = 4;

/// Records for which a buffer has room. At 16 bytes each they make 1 KiB, which the allocator hands out from a cache of the thread.
const BUFFER_RECORDS: usize = 64;
/// Records that [`Leaf::copy_sorted`] writes: those of one block, and up to two more that mean nothing.
const SORTED_RECORDS: usize = 16;

// A leaf always fits into an empty buffer.
const _: () = assert!(MAX_RECORDS <= BUFFER_RECORDS && SORTED_RECORDS <= BUFFER_RECORDS);

/// Where in a bottom node a range goes on.
pub(crate) struct Bookmark {
    parent: NodeRef,
    version: Version,
    slot: usize,
    /// The next leaf to ask the caches for.
    ahead: Option<usize>,
    end: Option<u64>,
}

/// Records read and not given out yet.
pub(super) type Buffer = ReadBuffer<Option<Bookmark>>;

impl Buffer {
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
    /// Reads on: fills `buffer`, which is empty, from the lower end of `unread` upwards or from its upper end downwards,
    /// until there is something in it or nothing left to read. At most `leaves` leaves.
    pub(super) fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut Buffer,
        leaves: usize,
    ) -> Result<()> {
        while let (Some((first, last)), true) = (*unread, buffer.is_empty()) {
            buffer.restart();
            buffer.make_room(BUFFER_RECORDS);
            let read = {
                let _guard = epochs::pin();
                dispatch(
                    self.simd,
                    Read::<UP> {
                        tree: self,
                        unread: &mut *unread,
                        buffer: &mut *buffer,
                        leaves,
                    },
                )
            };
            if read == Err(Retry::Unindexed) {
                self.index_on_demand(if UP { first } else { last })?;
            }
        }
        Ok(())
    }

    /// The first record whose key is `key` or above.
    pub(super) fn record_at_or_above(&self, key: u64) -> Result<Option<(u64, u64)>> {
        let mut buffer = Buffer::default();
        self.read_on::<true>(&mut Some((key, u64::MAX)), &mut buffer, 1)?;
        Ok(buffer.pop().map(|[key, value]| (key, value)))
    }

    /// The last record whose key is `key` or below.
    pub(super) fn record_at_or_below(&self, key: u64) -> Result<Option<(u64, u64)>> {
        let mut buffer = Buffer::default();
        self.read_on::<false>(&mut Some((0, key)), &mut buffer, 1)?;
        Ok(buffer.pop().map(|[key, value]| (key, value)))
    }

    /// Fails only if nothing could be read.
    #[inline(always)]
    fn try_read_on<S: Simd, const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut Buffer,
        leaves: usize,
    ) -> Result<(), Retry> {
        let Some((mut first, mut last)) = *unread else {
            return Ok(());
        };
        let (spot, mut slot, mut ahead) = match self.reopen(buffer.bookmark.take()) {
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
        let full = BUFFER_RECORDS - self.leaves.capacity().max(SORTED_RECORDS);
        for read in 0..leaves {
            if let Some(slot) = ahead {
                self.leaves.prefetch(spot.parent.child(slot).offset());
                ahead = next(slot);
            }
            // Before the leaf is read: reading it validates the node, and this with it.
            let (low, high) = (spot.parent.key(slot), spot.high_of(slot));
            if let Err(retry) = self.read_leaf::<S, UP>(&spot, slot, first, last, buffer) {
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
            if buffer.end > full {
                break;
            }
        }
        buffer.bookmark = Some(Bookmark {
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
        let spot = self.try_descend::<S, _>(key)?;
        let shape = spot.parent.shape();
        let mut ahead = Some(spot.slot);
        for _ in 0..LEAVES_AHEAD {
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
        buffer: &mut Buffer,
    ) -> Result<(), Retry> {
        let child = spot.parent.child(slot);
        let lock = self.locks.of(child.offset().get());
        let version = lock.read();
        // While the bottom node is unchanged the leaf holds exactly the keys between its separators.
        if !spot.is_current() {
            return Err(Retry::Changed);
        }
        if child.is_unindexed() {
            return Err(Retry::Unindexed);
        }
        let before = buffer.end;
        buffer.append::<S, UP>(self.leaves.at(child.offset()), first, last);
        if !lock.validate(version) {
            buffer.end = before;
            return Err(Retry::Changed);
        }
        Ok(())
    }
}

struct Read<'a, const UP: bool> {
    tree: &'a Tree,
    unread: &'a mut Unread,
    buffer: &'a mut Buffer,
    leaves: usize,
}

impl<const UP: bool> Kernel for Read<'_, UP> {
    type Out = Result<(), Retry>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree
            .try_read_on::<S, UP>(self.unread, self.buffer, self.leaves)
    }
}
