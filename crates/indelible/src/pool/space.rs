//! The blocks of one map: which are in use is volatile.
//!
//! An extent that existed when the pool was opened is *unswept*: nobody knows which of its blocks are in use, so none is
//! allocated from it. The map's sweep marks the blocks that it reaches; when it is done the others are free. An extent
//! taken since is known from the beginning. So allocating and freeing a block persists nothing, and a crash leaks
//! nothing.

use super::core::PoolCore;
use super::layout::EXTENT_BYTES;
use super::occupancy::Occupancy;
use crate::Result;
use crate::planted::{Bug, planted};
use crate::pmem::count;
use crate::reclaim::{self, Stamp};
use crate::sync::lock;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// See the module. Safe to use from many threads.
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
    /// Unlinked blocks that a reader may still hold.
    limbo: VecDeque<(Stamp, u64)>,
    /// Blocks of unswept extents that were unlinked since the open: free once those are swept.
    freed_early: Vec<u64>,
}

impl State {
    /// Adds an extent with nothing in it.
    fn add(&mut self, extent: u64, blocks: usize) {
        let occupancy = Occupancy::new(blocks);
        let swept = true;
        self.extents.insert(extent, Extent { occupancy, swept });
        self.open.insert(extent);
    }
}

struct Extent {
    occupancy: Occupancy,
    swept: bool,
}

/// What a space consists of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpaceStat {
    /// Blocks in use or in limbo.
    pub(crate) used_blocks: u64,
    /// Bytes of all extents.
    pub(crate) file_bytes: u64,
    /// Bytes of DRAM for the occupancy.
    pub(crate) dram_bytes: u64,
}

/// Extents of a map from which on one is kept in stock.
const MANY: usize = if cfg!(feature = "small") { 3 } else { 8 };

/// Blocks in limbo before one asks whether some can be used again, which costs a system call.
const LIMBO: usize = if cfg!(any(test, feature = "small")) {
    4
} else {
    64
};

/// Blocks in an extent; of a larger block, one in the whole run.
fn blocks_per_extent(block_bytes: u64) -> usize {
    (EXTENT_BYTES / block_bytes).max(1) as usize
}

impl Space {
    /// The space of `owner`, its extents from before unswept.
    pub(super) fn new(core: Arc<PoolCore>, owner: u32, block_bytes: u64) -> Self {
        let per_extent = blocks_per_extent(block_bytes);
        let extents: BTreeMap<_, _> = core
            .extents_with(owner, block_bytes)
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

    /// A block, its contents undefined. Grows the pool if need be.
    pub(crate) fn alloc(&self) -> Result<u64> {
        let (block, is_another_extent) = {
            let state = &mut *self.lock();
            let before = state.open.first().copied();
            let block = self.alloc_in(state)?;
            (block, state.open.first().copied() != before)
        };
        if is_another_extent {
            self.stock_up(block / EXTENT_BYTES);
        }
        Ok(block)
    }

    /// Puts the extent that blocks now come from on a huge page, and sees to it that the next one is there before it is
    /// needed: to take one and to put it on a huge page takes half a millisecond, during which others go on here.
    #[cold]
    fn stock_up(&self, current: u64) {
        self.core.collapse_extent(current);
        {
            let state = self.lock();
            if state.extents.len() < MANY || state.open.len() > 1 {
                return;
            }
        }
        if let Ok(extent) = self.take_extent() {
            self.core.collapse_extent(extent);
            self.lock().add(extent, blocks_per_extent(self.block_bytes));
        }
    }

    fn take_extent(&self) -> Result<u64> {
        let length = self.block_bytes.div_ceil(EXTENT_BYTES);
        self.core.take_extents(self.owner, self.block_bytes, length)
    }

    /// `count` blocks, ascending, or none.
    pub(crate) fn alloc_many(&self, count: usize) -> Result<Vec<u64>> {
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
        for extent in blocks.iter().map(|block| block / EXTENT_BYTES) {
            if extent != last {
                self.core.collapse_extent(extent);
                last = extent;
            }
        }
        Ok(blocks)
    }

    fn alloc_in(&self, state: &mut State) -> Result<u64> {
        if state.limbo.len() >= LIMBO {
            self.leave_limbo(state);
        }
        loop {
            let Some(&extent) = state.open.first() else {
                state.add(self.take_extent()?, blocks_per_extent(self.block_bytes));
                continue;
            };
            if let Some(block) = state
                .extents
                .get_mut(&extent)
                .and_then(|e| e.occupancy.alloc())
            {
                count::allocated(self.block_bytes);
                return Ok(extent * EXTENT_BYTES + block as u64 * self.block_bytes);
            }
            state.open.remove(&extent);
        }
    }

    /// The extent of a block, and the block's number in it.
    fn locate(&self, offset: u64) -> (u64, usize) {
        (
            offset / EXTENT_BYTES,
            (offset % EXTENT_BYTES / self.block_bytes) as usize,
        )
    }

    /// Gives back a block that nobody has ever seen.
    pub(crate) fn free_now(&self, offset: u64) {
        self.free_in(&mut self.lock(), offset);
    }

    fn free_in(&self, state: &mut State, offset: u64) {
        let (extent, block) = self.locate(offset);
        match state.extents.get_mut(&extent) {
            Some(Extent {
                occupancy,
                swept: true,
            }) => {
                let was_used = occupancy.free(block);
                debug_assert!(was_used, "block {offset:#x} was freed twice");
                state.open.insert(extent);
            }
            Some(_) => state.freed_early.push(offset),
            None => debug_assert!(false, "block {offset:#x} is not in this space"),
        }
    }

    /// Gives back a block that has just been unlinked, once no reader can hold it any more.
    pub(crate) fn retire(&self, offset: u64) {
        let mut state = self.lock();
        if planted(Bug::ReuseWithoutEpoch) {
            return self.free_in(&mut state, offset);
        }
        // Under the lock, so that the blocks in limbo are in the order of their stamps.
        state.limbo.push_back((reclaim::stamp(), offset));
    }

    /// Frees the blocks in limbo that nobody can hold any more.
    fn leave_limbo(&self, state: &mut State) {
        // Half of what is there: the older a stamp, the likelier it has passed.
        let half = state.limbo.len().div_ceil(2);
        if reclaim::has_passed(state.limbo[half - 1].0) {
            for (_, offset) in state.limbo.drain(..half).collect::<Vec<_>>() {
                self.free_in(state, offset);
            }
        }
    }

    /// Whether there is a block of this space at `offset`: for offsets that come from the file. O(1).
    pub(crate) fn owns(&self, offset: u64) -> bool {
        let extent = offset / EXTENT_BYTES;
        let within = offset % EXTENT_BYTES;
        within.is_multiple_of(self.block_bytes)
            && within + self.block_bytes <= EXTENT_BYTES
            && self.core.holds_blocks(extent, self.owner, self.block_bytes)
    }

    /// Those of `blocks` that are free, as far as is known.
    pub(crate) fn free_among(&self, blocks: &[u64]) -> Vec<u64> {
        let state = self.lock();
        let is_free = |&offset: &u64| {
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

    /// Sweep: the block at `offset` is in use. Means nothing for blocks allocated since the open.
    pub(crate) fn mark(&self, offset: u64) {
        self.mark_in(&mut self.lock().extents, offset);
    }

    fn mark_in(&self, extents: &mut BTreeMap<u64, Extent>, offset: u64) {
        let (extent, block) = self.locate(offset);
        if let Some(Extent {
            occupancy,
            swept: false,
        }) = extents.get_mut(&extent)
        {
            occupancy.mark(block);
        }
    }

    /// Sweep: everything in use has been marked. The rest is free; extents with nothing in them go back to the pool.
    pub(crate) fn finish_sweep(&self) {
        let mut swept = Vec::new();
        {
            let state = &mut *self.lock();
            // A block in limbo may not have been marked, and must not be handed out before it leaves.
            for &(_, offset) in &state.limbo {
                self.mark_in(&mut state.extents, offset);
            }
            for (&number, extent) in state.extents.iter_mut().filter(|(_, extent)| !extent.swept) {
                extent.swept = true;
                swept.push(number);
            }
            for offset in std::mem::take(&mut state.freed_early) {
                let (extent, block) = self.locate(offset);
                // It may have been marked before it was unlinked, or not.
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
            // Only now, in the background, is there time for it.
            if self.lock().extents.contains_key(&extent) {
                self.core.collapse_extent(extent);
            }
        }
    }

    /// Gives swept extents without a block in use back to the pool.
    pub(crate) fn release_empty_extents(&self) {
        let state = &mut *self.lock();
        let empty: Vec<u64> = state
            .extents
            .iter()
            .filter(|(_, extent)| extent.swept && extent.occupancy.used() == 0)
            .map(|(&number, _)| number)
            .collect();
        for extent in empty {
            state.extents.remove(&extent);
            state.open.remove(&extent);
            self.core.free_extents(self.owner, extent);
        }
    }

    /// The map is closed: from here on the space owns nothing, whoever still holds it.
    pub(crate) fn close(&self) {
        *self.lock() = State::default();
    }

    /// More blocks than there can be.
    pub(crate) fn most_blocks(&self) -> u64 {
        self.core.length() / self.block_bytes
    }

    /// Frees everything in limbo, waiting for the readers. The caller is not pinned.
    pub(crate) fn settle(&self) {
        let passed = reclaim::synchronize();
        let state = &mut *self.lock();
        while let Some((_, offset)) = state.limbo.pop_front_if(|(stamp, _)| *stamp <= passed) {
            self.free_in(state, offset);
        }
    }

    pub(crate) fn stat(&self) -> SpaceStat {
        let state = self.lock();
        SpaceStat {
            used_blocks: state
                .extents
                .values()
                .map(|extent| extent.occupancy.used() as u64)
                .sum(),
            file_bytes: state.extents.len() as u64 * EXTENT_BYTES.max(self.block_bytes),
            dram_bytes: state
                .extents
                .values()
                .map(|extent| extent.occupancy.bytes() as u64)
                .sum(),
        }
    }
}
