//! A space: the blocks of one size of one map. Which blocks are in use is recorded in DRAM only.
//!
//! An extent that the map had when the pool was opened is *unswept*: which of its blocks are in use is unknown, so no block is
//! allocated from it. The map *claims* the blocks that it reaches, each once; at the end of the sweep the other blocks are free.
//! Of an extent that was taken since the open, every block in use was allocated since, so a link from before the open that leads
//! into such an extent is damage. So allocating and freeing a block persists nothing, a crash leaks no block, and no block
//! has two owners, whatever the file says.
//!
//! A block that has just become unreachable may still be read by threads that reached it earlier. It is *retired*: freed when
//! all these readers are gone (see `epochs`).
//!
//! A map of several block sizes has several spaces. A block larger than an extent is a *run* of extents, known by the number of
//! its first extent.

use super::core::PoolCore;
use super::layout::EXTENT_BYTES;
use super::occupancy::Occupancy;
use super::offset::Offset;
use crate::concurrency::epochs::{self, Stamp};
use crate::concurrency::sync::lock;
use crate::pmem::geometry::{sized, sized_in_tests};
use crate::pmem::planted::planted;
use crate::pmem::{Cell, count};
use crate::pool::Bug;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// The blocks of one size of one map. Safe to use from many threads.
pub(crate) struct Space {
    core: Arc<PoolCore>,
    owner: u32,
    block_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    extents: BTreeMap<u64, Extent>,
    /// Swept extents with free blocks.
    open: BTreeSet<u64>,
    /// Retired blocks: unreachable, but a reader may still hold them. The oldest comes first.
    retired: VecDeque<(Stamp, Offset)>,
    /// Blocks of unswept extents that were freed since the open; the end of the sweep frees them.
    freed_early: Vec<Offset>,
    /// Blocks that are kept from being used again.
    kept: BTreeMap<Offset, kept::Kept>,
}

impl State {
    /// Adds an extent with nothing in it.
    fn add(&mut self, extent: u64, blocks: usize) {
        let occupancy = Occupancy::new(blocks);
        let swept = true;
        self.extents.insert(extent, Extent { occupancy, swept });
        self.open.insert(extent);
    }

    /// Whether so many blocks are free; forgets that the first extents are open, if they are full.
    fn has_room_for(&mut self, blocks: usize) -> bool {
        while let Some(extent) = self.open.first() {
            let is_full = |e: &Extent| e.occupancy.is_full();
            if !self.extents.get(extent).is_none_or(is_full) {
                break;
            }
            self.open.pop_first();
        }
        let mut missing = blocks;
        self.open.iter().any(|extent| {
            let free = |extent: &Extent| extent.occupancy.room().0;
            missing = missing.saturating_sub(self.extents.get(extent).map_or(0, free));
            missing == 0
        })
    }
}

struct Extent {
    occupancy: Occupancy,
    swept: bool,
}

/// What a space consists of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceStat {
    /// Blocks in use or retired.
    pub(crate) used_blocks: u64,
    /// Bytes of all extents.
    pub(crate) file_bytes: u64,
    /// Bytes of DRAM for the occupancy.
    pub(crate) dram_bytes: u64,
}

/// Extents that a space has before it takes one more in advance: a smaller map may never need the extent.
const STOCK_FROM_EXTENTS: usize = sized(8, 3);

/// An extent that becomes empty goes back to the pool only if another extent has a quarter of its blocks free. Otherwise the next
/// few allocations would take an extent from the pool again.
const SPARE_ROOM_DIVISOR: usize = 4;

/// Retired blocks of a space before it asks which of them can be freed: asking costs a system call.
const MOST_RETIRED_BLOCKS: usize = sized_in_tests(64, 4);

/// Bytes in retired blocks of a space before it asks which of them can be freed: reached first if blocks are larger than 16 KiB.
const MOST_RETIRED_BYTES: u64 = 1 << 20;

/// Blocks in an extent; 1 if a block is larger than an extent.
fn blocks_per_extent(block_bytes: u64) -> usize {
    (EXTENT_BYTES / block_bytes).max(1) as usize
}

impl Space {
    /// A space of the map `owner`, which has these extents from before the open. They are unswept.
    pub(super) fn new(
        core: Arc<PoolCore>,
        owner: u32,
        block_bytes: u64,
        extents: Vec<u64>,
    ) -> Self {
        let per_extent = blocks_per_extent(block_bytes);
        let extents: BTreeMap<_, _> = extents
            .into_iter()
            .map(|extent| {
                (
                    extent,
                    Extent {
                        occupancy: Occupancy::new(per_extent),
                        swept: planted(Bug::UseUnswept),
                    },
                )
            })
            .collect();
        let open = match &extents {
            extents if planted(Bug::UseUnswept) => extents.keys().copied().collect(),
            _ => BTreeSet::new(),
        };
        Self {
            core,
            owner,
            block_bytes,
            state: Mutex::new(State {
                extents,
                open,
                ..State::default()
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Allocates a block. Its contents are undefined. Grows the pool if there is no free block.
    pub(crate) fn alloc(&self) -> Result<Offset> {
        self.alloc_beside(&[], 0)
    }

    /// [`alloc`](Self::alloc) for a map of several spaces: before this space takes another extent, the other spaces give back their
    /// extents of which no block is in use. A growing map needs blocks of one size after the other, and each size would keep an
    /// empty extent. So many free blocks are `spared`: they stay free for a compaction of a full pool.
    pub(crate) fn alloc_beside(&self, others: &[Arc<Self>], spared: usize) -> Result<Offset> {
        let (block, is_another_extent) = {
            let mut state = self.lock();
            let before = state.open.first().copied();
            if !state.has_room_for(spared + 1) && !others.is_empty() {
                drop(state);
                others
                    .iter()
                    .for_each(|other| other.give_back_without_waiting());
                state = self.lock();
            }
            if spared > 0 && !state.has_room_for(spared + 1) {
                state.add(self.take_extent()?, blocks_per_extent(self.block_bytes));
            }
            let block = self.alloc_in(&mut state)?;
            (block, state.open.first().copied() != before)
        };
        if is_another_extent {
            self.stock_up(block.extent());
        }
        Ok(block)
    }

    /// Whether there is a free block, after the retired ones that no reader can hold any more have been freed.
    pub(crate) fn has_room(&self) -> bool {
        let state = &mut *self.lock();
        self.reuse_all_retired(state);
        state.has_room_for(1)
    }

    /// Puts the extent that blocks now come from on a huge page, and takes the next extent before it is needed. Both together take
    /// half a millisecond, during which other threads can allocate.
    #[cold]
    fn stock_up(&self, current: u64) {
        self.collapse(current);
        // An extent of few blocks is soon used up, and one taken in advance would often stay empty.
        if self.block_bytes > EXTENT_BYTES / 8 {
            return;
        }
        {
            let state = self.lock();
            if state.extents.len() < STOCK_FROM_EXTENTS || state.open.len() > 1 {
                return;
            }
        }
        if let Ok(extent) = self.take_extent() {
            self.collapse(extent);
            self.lock().add(extent, blocks_per_extent(self.block_bytes));
        }
    }

    fn take_extent(&self) -> Result<u64> {
        self.core
            .take_extents(self.owner, self.block_bytes, self.length(), None)
    }

    /// Extents in a row that are taken and given back together.
    fn length(&self) -> u64 {
        self.block_bytes.div_ceil(EXTENT_BYTES)
    }

    /// Puts an extent, or a run of them, on huge pages, if they can be had.
    fn collapse(&self, first: u64) {
        (first..first + self.length()).for_each(|extent| self.core.collapse_extent(extent));
    }

    /// Allocates `count` blocks, ascending, or none of them.
    pub(crate) fn alloc_many(&self, count: usize) -> Result<Vec<Offset>> {
        let state = &mut *self.lock();
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            match self.alloc_in(state) {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    blocks.iter().for_each(|&block| self.free_in(state, block));
                    return Err(error);
                }
            }
        }
        blocks.sort_unstable();
        let mut last = 0;
        for extent in blocks.iter().map(|block| block.extent()) {
            if extent != last {
                self.collapse(extent);
                last = extent;
            }
        }
        Ok(blocks)
    }

    fn alloc_in(&self, state: &mut State) -> Result<Offset> {
        self.reuse_retired_if_many(state);
        loop {
            let Some(&extent) = state.open.first() else {
                state.add(self.take_extent()?, blocks_per_extent(self.block_bytes));
                continue;
            };
            if let Some(block) = self.alloc_in_extent(state, extent) {
                return Ok(block);
            }
        }
    }

    /// A block of `extent`, which is open. If none is free, the extent is not open any more.
    fn alloc_in_extent(&self, state: &mut State, extent: u64) -> Option<Offset> {
        let block = state
            .extents
            .get_mut(&extent)
            .and_then(|extent| extent.occupancy.alloc());
        let Some(block) = block else {
            state.open.remove(&extent);
            return None;
        };
        count::allocated(self.block_bytes);
        Some(Offset::of_extent(extent) + block as u64 * self.block_bytes)
    }

    /// The extent of a block, and the block's number in it.
    fn locate(&self, offset: Offset) -> (u64, usize) {
        (
            offset.extent(),
            (offset.within_extent() / self.block_bytes) as usize,
        )
    }

    /// Frees a block that was never reachable, or that no thread can hold any more.
    pub(crate) fn free_now(&self, offset: Offset) {
        // What this thread has written there and not committed, before another thread gets the block.
        self.core.pm().named("pool.unused").hand_over();
        self.free_in(&mut self.lock(), offset);
    }

    fn free_in(&self, state: &mut State, offset: Offset) {
        let (extent, block) = self.locate(offset);
        match state.extents.get_mut(&extent) {
            Some(Extent {
                occupancy,
                swept: true,
            }) => {
                let was_used = occupancy.free(block);
                if !was_used {
                    // The block stays free.
                    tracing::error!(offset = offset.get(), "a block was freed twice");
                }
                let is_empty = occupancy.used() == 0;
                state.open.insert(extent);
                if is_empty && self.is_spare(state, extent) {
                    self.release(state, extent);
                }
            }
            Some(_) => state.freed_early.push(offset),
            // The block stays with the space that owns it.
            None => tracing::error!(
                offset = offset.get(),
                "a block is freed that is not in this space"
            ),
        }
    }

    /// Whether the extent `empty`, of which no block is in use, can go back to the pool: it is not likely to be needed soon.
    fn is_spare(&self, state: &State, empty: u64) -> bool {
        if self.block_bytes >= EXTENT_BYTES {
            return true;
        }
        let has_room = |extent: &u64| {
            let room = state.extents.get(extent).map(|e| e.occupancy.room());
            *extent != empty
                && room.is_some_and(|(free, blocks)| free * SPARE_ROOM_DIVISOR >= blocks)
        };
        state.open.iter().any(has_room)
    }

    fn release(&self, state: &mut State, extent: u64) {
        state.extents.remove(&extent);
        state.open.remove(&extent);
        self.core.free_extents(self.owner, extent);
    }

    /// Retires a block that has just become unreachable: frees it when no reader can hold it any more.
    pub(crate) fn retire(&self, offset: Offset) {
        let mut state = self.lock();
        if planted(Bug::ReuseWithoutEpoch) {
            return self.free_in(&mut state, offset);
        }
        // The stamp is taken under the lock, so that retired blocks are in the order of their stamps.
        state.retired.push_back((epochs::stamp(), offset));
        // Also here, and not only in `alloc`: in a space without further allocations no retired block would ever be freed.
        self.reuse_retired_if_many(&mut state);
    }

    fn reuse_retired_if_many(&self, state: &mut State) {
        let most = (MOST_RETIRED_BYTES / self.block_bytes) as usize;
        if state.retired.len() >= most.clamp(4, MOST_RETIRED_BLOCKS) {
            self.reuse_retired(state);
        }
    }

    /// Frees the older half of the retired blocks, if no reader can hold them any more.
    fn reuse_retired(&self, state: &mut State) {
        // Half of them: the older a stamp, the likelier it has passed.
        let half = state.retired.len().div_ceil(2);
        if epochs::has_passed(state.retired[half - 1].0) {
            for (_, offset) in state.retired.drain(..half).collect::<Vec<_>>() {
                self.free_unless_kept(state, offset);
            }
        }
    }

    /// Frees the retired blocks that no reader can hold any more.
    fn reuse_all_retired(&self, state: &mut State) {
        let mut before = usize::MAX;
        while !state.retired.is_empty() && state.retired.len() < before {
            before = state.retired.len();
            self.reuse_retired(state);
        }
    }

    /// Bytes in a block.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Whether there is a block of this space at `offset`, which comes from the file and may be anything. O(1).
    pub(crate) fn owns(&self, offset: Offset) -> bool {
        self.core.block_bytes_at(self.owner, offset) == Some(self.block_bytes)
    }

    /// The words of a block, which has been allocated or claimed.
    ///
    /// # Panics
    ///
    /// If there is no block of this space.
    pub(crate) fn words(&self, block: Offset) -> &[Cell] {
        assert!(self.owns(block), "no block at {block:#x}");
        let first = self.core.base().wrapping_add(block.get() as usize);
        // SAFETY: `owns` says that a block of this size lies, whole and aligned, in the mapping, which lives as long as `core`. Cells are
        // atomics, for which every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(first.cast(), self.block_bytes as usize / 8) }
    }

    /// Those of `blocks` that are free, as far as is known.
    pub(crate) fn free_among(&self, blocks: &[Offset]) -> Vec<Offset> {
        let state = self.lock();
        let is_free = |&offset: &Offset| {
            let (extent, block) = self.locate(offset);
            let extent = state.extents.get(&extent);
            extent.is_none_or(|extent| extent.swept && !extent.occupancy.is_used(block))
        };
        blocks.iter().copied().filter(is_free).collect()
    }

    /// Whether there are extents from before the open that have not been swept.
    pub(crate) fn needs_sweep(&self) -> bool {
        self.lock().extents.values().any(|extent| !extent.swept)
    }

    /// Claims the block at `offset`, of which [`owns`](Self::owns) is true: a link from before the open leads there. `false` if the
    /// block is claimed already, or if its extent was taken since the open, where no block from before can be. Before it is
    /// claimed, the block must not even be read: its extent may be given back at any time.
    pub(crate) fn claim(&self, offset: Offset) -> bool {
        let (extent, block) = self.locate(offset);
        match self.lock().extents.get_mut(&extent) {
            Some(extent) if !extent.swept => extent.occupancy.mark(block),
            _ => planted(Bug::UseUnswept),
        }
    }

    /// [`claim`](Self::claim)s the block at `offset`, which comes from the file and may be anything.
    pub(crate) fn claim_linked(&self, offset: Offset) -> Result<()> {
        if !self.owns(offset) {
            return Err(Error::Damaged(format!("there is no block at {offset:#x}")));
        }
        if !self.claim(offset) {
            return Err(Error::Damaged(format!(
                "block {offset:#x} is reached twice, or was free"
            )));
        }
        Ok(())
    }

    /// Undoes a claim, if the sweep has not ended.
    pub(crate) fn unclaim(&self, offset: Offset) {
        let (extent, block) = self.locate(offset);
        if let Some(extent) = self.lock().extents.get_mut(&extent)
            && !extent.swept
        {
            extent.occupancy.free(block);
        }
    }

    /// Ends the sweep: every block in use has been claimed. Frees the others, and gives extents without a block in use back to the
    /// pool.
    pub(crate) fn finish_sweep(&self) {
        let mut swept = Vec::new();
        {
            let state = &mut *self.lock();
            for (&number, extent) in state.extents.iter_mut().filter(|(_, extent)| !extent.swept) {
                extent.swept = true;
                swept.push(number);
            }
            for offset in std::mem::take(&mut state.freed_early) {
                let (extent, block) = self.locate(offset);
                state
                    .extents
                    .get_mut(&extent)
                    .map(|e| e.occupancy.free(block));
            }
            for number in &swept {
                if state
                    .extents
                    .get(number)
                    .is_some_and(|extent| !extent.occupancy.is_full())
                {
                    state.open.insert(*number);
                }
            }
        }
        self.release_empty_extents();
        for extent in swept {
            // Putting an extent on a huge page takes long; the sweep runs in the background, and has the time.
            if self.lock().extents.contains_key(&extent) {
                self.collapse(extent);
            }
        }
    }

    /// Gives swept extents without a block in use back to the pool, after it has freed the retired blocks that no reader can hold
    /// any more. Does not wait for readers; see [`give_back`](Self::give_back).
    pub(crate) fn give_back_without_waiting(&self) {
        let state = &mut *self.lock();
        self.reuse_all_retired(state);
        self.release_empty(state);
    }

    /// Gives swept extents without a block in use back to the pool.
    fn release_empty_extents(&self) {
        self.release_empty(&mut self.lock());
    }

    fn release_empty(&self, state: &mut State) {
        let empty: Vec<u64> = state
            .extents
            .iter()
            .filter(|(_, extent)| extent.swept && extent.occupancy.used() == 0)
            .map(|(&number, _)| number)
            .collect();
        for extent in empty {
            self.release(state, extent);
        }
    }

    /// Makes the space own nothing from here on: the map is closed.
    pub(crate) fn close(&self) {
        *self.lock() = State::default();
    }

    /// An upper limit of the number of blocks in the space.
    pub(crate) fn most_blocks(&self) -> u64 {
        self.core.length() / self.block_bytes
    }

    /// Frees all retired blocks but those that are kept, after waiting for the readers that may hold them. A thread that is pinned, since it writes within
    /// a closure that reads a value, would wait for itself: it frees what can be freed at once.
    pub(crate) fn settle(&self) {
        if self.lock().retired.is_empty() {
            return;
        }
        let Some(passed) = epochs::synchronize() else {
            return self.reuse_all_retired(&mut self.lock());
        };
        let state = &mut *self.lock();
        while let Some((_, offset)) = state.retired.pop_front_if(|(stamp, _)| *stamp <= passed) {
            self.free_unless_kept(state, offset);
        }
    }

    /// Gives all extents of which no block is in use back to the pool, waiting for the readers as [`settle`](Self::settle) does.
    pub(crate) fn give_back(&self) {
        self.settle();
        self.release_empty_extents();
    }

    pub(crate) fn stat(&self) -> SpaceStat {
        let state = self.lock();
        SpaceStat {
            used_blocks: state
                .extents
                .values()
                .map(|extent| extent.occupancy.used() as u64)
                .sum(),
            file_bytes: state.extents.len() as u64 * self.length() * EXTENT_BYTES,
            dram_bytes: state
                .extents
                .values()
                .map(|extent| extent.occupancy.bytes() as u64)
                .sum(),
        }
    }
}

mod compact;
mod kept;
mod last_resort;
pub(crate) use compact::{MOST_ROUNDS, SpaceNeed};
pub(crate) use last_resort::{as_last_resort, is_last_resort};

#[cfg(all(test, not(loom)))]
mod tests;
