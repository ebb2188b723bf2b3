//! What compaction needs of a space: where its blocks could end if they lay densely, and free blocks before that end.

use super::{Space, blocks_per_extent};
use crate::pool::layout::EXTENT_BYTES;
use crate::pool::offset::Offset;

/// The extents that a space has, and how many it would need if its blocks lay densely.
#[derive(Clone, Debug)]
pub(crate) struct SpaceNeed {
    /// The extents with blocks in use or retired, ascending; of each run, the first extent.
    pub(crate) extents: Vec<u64>,
    /// How many of these are needed.
    pub(crate) needed: usize,
    /// How many extents or runs there are, empty ones included.
    pub(crate) all: usize,
    /// Extents in a row that are taken and given back together.
    pub(crate) length: u64,
}

/// Rounds of moving in a compaction, at most. One is enough if no thread writes meanwhile. Splits take some of the free blocks that a
/// round has counted on, and the next round counts the free blocks again; four rounds bound the time of a compaction under writers.
pub(crate) const MOST_ROUNDS: u64 = 4;

/// Each further round leaves one part in 16 of the number of blocks in use free, for the splits of writers.
const SPARE_DIVISOR: u64 = 16;

impl Space {
    /// What extents the space has, and how many it needs. An object of several spaces asks each of them, and decides for all
    /// of them together what is to move.
    pub(crate) fn needed(&self) -> SpaceNeed {
        let state = self.lock();
        let in_use = (state.extents.iter()).filter(|(_, extent)| extent.occupancy.used() > 0);
        let used: usize = in_use
            .clone()
            .map(|(_, extent)| extent.occupancy.used())
            .sum();
        SpaceNeed {
            extents: in_use.map(|(&number, _)| number).collect(),
            needed: used.div_ceil(blocks_per_extent(self.block_bytes)),
            all: state.extents.len(),
            length: self.length(),
        }
    }

    /// Where the blocks of this space could end if they were moved to the first extents, of its own ones and of those that
    /// are free in the pool; `None` if they end there already, or if nothing is known of some extents. An offset, the begin of
    /// an extent. In the first round of a compaction, `round` 0, no block is left free, and in each further one another
    /// [`SPARE_DIVISOR`]th of the number of blocks in use.
    ///
    /// So a move always leads from the last extents of the map to lower ones, and what is left behind are whole extents,
    /// also where other maps have extents in between.
    pub(crate) fn packed_end(&self, round: u64) -> Option<Offset> {
        debug_assert!(self.block_bytes <= EXTENT_BYTES);
        let state = self.lock();
        let (&last, _) = state.extents.last_key_value()?;
        if state.extents.values().any(|extent| !extent.swept) {
            return None;
        }
        let used: u64 = state
            .extents
            .values()
            .map(|extent| extent.occupancy.used() as u64)
            .sum();
        let blocks = blocks_per_extent(self.block_bytes) as u64;
        let needed = (used + used * round / SPARE_DIVISOR)
            .div_ceil(blocks)
            .max(1);
        let mut extents = self.core.free_extents_before(last);
        extents.extend(state.extents.keys());
        extents.sort_unstable();
        let end = extents.get(needed as usize - 1)? + 1;
        let is_behind = state
            .extents
            .range(end..)
            .any(|(_, extent)| extent.occupancy.used() > 0);
        is_behind.then_some(Offset::of_extent(end))
    }

    /// A free block that lies, whole, before `end`, the begin of an extent, if there is one or if the pool has free extents
    /// there. The pool does not grow.
    pub(crate) fn alloc_below(&self, end: Offset) -> Option<Offset> {
        let state = &mut *self.lock();
        let (length, end) = (self.length(), end.extent());
        loop {
            let first = state.open.first().copied();
            let Some(extent) = first.filter(|extent| extent + length <= end) else {
                let taken =
                    (self.core).take_extents(self.owner, self.block_bytes, length, Some(end));
                state.add(taken.ok()?, blocks_per_extent(self.block_bytes));
                continue;
            };
            if let Some(block) = self.alloc_in_extent(state, extent) {
                return Some(block);
            }
        }
    }
}
