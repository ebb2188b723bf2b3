//! Ranges, in both directions.
//!
//! A range reads a few leaves at a time into a buffer: each leaf is copied, sorted and validated while the caches fetch
//! those that follow under the same bottom node. Between two reads it holds no lock and no guard, only the key to go on
//! from and a [`Bookmark`] in the bottom node; if that node has changed meanwhile, it comes down again from the root. So
//! splits and merges do not disturb a range: every key belongs to exactly one leaf at any time, and no key is asked for twice.

use super::Tree;
use super::inner::{Child, Inner};
use super::leaf::Leaf;
use super::search::{Retry, Spot};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::Version;
use crate::engines::arena::NodeRef;
use crate::engines::{MOST_READ, ReadBuffer, Unread};
use crate::kernels::{Kernel, Simd, dispatch};

/// Leaves that are prefetched ahead of the one being read, in a range.
const LEAVES_AHEAD: usize = 4;

/// Places that [`Leaf::copy_sorted`] writes, beyond those for all records of a leaf.
const SPARE_PLACES: usize = 2;

/// Where in a bottom node a range goes on.
pub(crate) struct Bookmark {
    parent: NodeRef<Inner>,
    version: Version,
    slot: usize,
    end: Option<u64>,
}

/// How much to read at once: until so many records have been read, and at most so many leaves.
#[derive(Clone, Copy)]
pub(super) struct Portion {
    pub(super) records: Option<usize>,
    pub(super) leaves: usize,
}

impl Portion {
    /// One leaf that has records.
    const ONE_LEAF: Self = Self {
        records: Some(1),
        leaves: 1,
    };
}

/// The keys of a leaf or of a range: from the lowest to the highest.
#[derive(Clone, Copy)]
struct Keys {
    first: u64,
    last: u64,
}

/// Records read and not given out yet.
pub(super) type Buffer = ReadBuffer<Option<Bookmark>>;

impl Buffer {
    /// Adds the records of `leaf`, which covers the keys `covered`, as far as their keys are `wanted`, in order.
    #[inline(always)]
    fn append<S: Simd, const UP: bool>(&mut self, leaf: Leaf<'_>, covered: Keys, wanted: Keys) {
        let Keys { first, last } = wanted;
        let free = &mut self.records[self.end..];
        let span = covered.last.wrapping_sub(covered.first);
        let count = leaf.copy_sorted::<S>(covered.first, span, free);
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
    /// until there is something in it or nothing left to read.
    pub(super) fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut Buffer,
        portion: Portion,
    ) -> Result<()> {
        while let (Some((first, last)), true) = (*unread, buffer.is_empty()) {
            let usual = buffer.restart();
            let records = portion.records.unwrap_or(usual).min(MOST_READ);
            // The last leaf may bring more records than are wanted.
            buffer.make_room(records + self.leaves.capacity() + SPARE_PLACES);
            let read = {
                let _guard = epochs::pin();
                dispatch(
                    self.simd,
                    Read::<UP> {
                        tree: self,
                        unread: &mut *unread,
                        buffer: &mut *buffer,
                        records,
                        leaves: portion.leaves,
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
        self.read_on::<true>(&mut Some((key, u64::MAX)), &mut buffer, Portion::ONE_LEAF)?;
        Ok(buffer.pop().map(|[key, value]| (key, value)))
    }

    /// The last record whose key is `key` or below.
    pub(super) fn record_at_or_below(&self, key: u64) -> Result<Option<(u64, u64)>> {
        let mut buffer = Buffer::default();
        self.read_on::<false>(&mut Some((0, key)), &mut buffer, Portion::ONE_LEAF)?;
        Ok(buffer.pop().map(|[key, value]| (key, value)))
    }

    /// Fails only if nothing could be read.
    #[inline(always)]
    fn try_read_on<S: Simd, const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut Buffer,
        (records, leaves): (usize, usize),
    ) -> Result<(), Retry> {
        let Some((first, last)) = *unread else {
            return Ok(());
        };
        let mut wanted = Keys { first, last };
        let spot = match self.reopen(buffer.bookmark.take()) {
            Some(spot) => spot,
            None => self.begin::<S, UP>(if UP { first } else { last })?,
        };
        // The step after the leaf being read. All that the node says counts only once it has been validated, which reading a leaf does.
        let mut walk = spot.parent.walk_from(spot.slot);
        let mut child = spot.child;
        let mut covered = Keys {
            first: spot.low(),
            last: spot.high().map_or(u64::MAX, |high| high.wrapping_sub(1)),
        };
        let mut left = leaves;
        let stop = loop {
            self.leaves
                .prefetch(walk.ahead::<UP>(LEAVES_AHEAD).offset());
            let has_next = walk.step::<UP>();
            if UP {
                let high = if has_next { Some(walk.key()) } else { spot.end };
                covered.last = high.map_or(u64::MAX, |high| high.wrapping_sub(1));
            }
            if let Err(retry) = self.read_leaf::<S, UP>(&spot, child, covered, wanted, buffer) {
                break Stop::At(retry);
            }
            if UP {
                if covered.last >= wanted.last {
                    break Stop::AtEndOfRange;
                }
                wanted.first = covered.last + 1;
                covered.first = wanted.first;
            } else {
                if covered.first <= wanted.first {
                    break Stop::AtEndOfRange;
                }
                wanted.last = covered.first - 1;
                covered.last = wanted.last;
            }
            left -= 1;
            if !has_next {
                break Stop::AtEndOfNode;
            }
            if buffer.end >= records || left == 0 {
                break Stop::Full;
            }
            child = walk.child();
            if !UP {
                covered.first = walk.key();
            }
        };
        *unread = Some((wanted.first, wanted.last));
        match stop {
            Stop::At(retry) if left == leaves => return Err(retry),
            Stop::At(_) | Stop::AtEndOfNode => {}
            Stop::AtEndOfRange => *unread = None,
            Stop::Full => {
                buffer.bookmark = Some(Bookmark {
                    parent: self.arena.remember(spot.parent),
                    version: spot.version,
                    slot: walk.slot(),
                    end: spot.end,
                });
            }
        }
        Ok(())
    }

    /// Goes down to `key`, and asks the caches for the first leaves after it.
    #[inline(always)]
    fn begin<S: Simd, const UP: bool>(&self, key: u64) -> Result<Spot<'_>, Retry> {
        let spot = self.try_descend::<S, _>(key)?;
        let walk = spot.parent.walk_from(spot.slot);
        for by in 1..LEAVES_AHEAD {
            self.leaves.prefetch(walk.ahead::<UP>(by).offset());
        }
        Ok(spot)
    }

    /// Where a bookmark points, if its node has not changed since. The caller is pinned.
    #[inline(always)]
    fn reopen(&self, bookmark: Option<Bookmark>) -> Option<Spot<'_>> {
        let bookmark = bookmark?;
        let parent = self.arena.recall(bookmark.parent);
        let spot = Spot {
            parent,
            version: bookmark.version,
            slot: bookmark.slot,
            child: parent.child(bookmark.slot),
            end: bookmark.end,
        };
        spot.is_current().then_some(spot)
    }

    /// Appends one leaf's records, in order, if it can be read whole at once.
    #[inline(always)]
    fn read_leaf<S: Simd, const UP: bool>(
        &self,
        spot: &Spot<'_>,
        child: Child,
        covered: Keys,
        wanted: Keys,
        buffer: &mut Buffer,
    ) -> Result<(), Retry> {
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
        buffer.append::<S, UP>(self.leaves.at(child.offset()), covered, wanted);
        if !lock.validate(version) {
            buffer.end = before;
            return Err(Retry::Changed);
        }
        Ok(())
    }
}

/// Why a range does not read the next leaf now.
enum Stop {
    AtEndOfRange,
    AtEndOfNode,
    /// As much has been read as was wanted.
    Full,
    /// The leaf could not be read.
    At(Retry),
}

struct Read<'a, const UP: bool> {
    tree: &'a Tree,
    unread: &'a mut Unread,
    buffer: &'a mut Buffer,
    records: usize,
    leaves: usize,
}

impl<const UP: bool> Kernel for Read<'_, UP> {
    type Out = Result<(), Retry>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        self.tree
            .try_read_on::<S, UP>(self.unread, self.buffer, (self.records, self.leaves))
    }
}
