//! The blocks of a map: a space for each size.

use super::layout::{CLASSES, Offset, SMALLEST_BLOCK};
use crate::Result;
use crate::pool::{EXTENT_BYTES, PoolCore, Space, SpaceNeed};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Extents that the map could do without, if its blocks lay at the front of the pool.
#[derive(Debug)]
pub(super) struct Surplus {
    extents: BTreeSet<u64>,
    /// Where the pool would end.
    end: u64,
}

impl Surplus {
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Whether a block lies in one of the extents.
    pub(super) fn has(&self, offset: Offset) -> bool {
        self.extents.contains(&(offset / EXTENT_BYTES))
    }
}

/// See the module.
pub(super) struct Blocks {
    spaces: [Arc<Space>; CLASSES],
    core: Arc<PoolCore>,
    slot: usize,
}

impl Blocks {
    /// The blocks of the map at `slot`, those from before the open unswept.
    pub(super) fn new(core: &Arc<PoolCore>, slot: usize) -> Self {
        let sizes: [u32; CLASSES] = std::array::from_fn(|class| (SMALLEST_BLOCK as u32) << class);
        Self {
            spaces: core.spaces(slot, sizes),
            core: Arc::clone(core),
            slot,
        }
    }

    /// The space of blocks of `bytes`, which is one of the sizes.
    fn space(&self, bytes: u64) -> &Space {
        &self.spaces[(bytes / SMALLEST_BLOCK).trailing_zeros() as usize]
    }

    /// A block of `bytes`, its contents undefined.
    pub(super) fn alloc(&self, bytes: u64) -> Result<Offset> {
        self.space(bytes).alloc_beside(&self.spaces)
    }

    /// A block of `bytes` to which the contents of `old` can be moved, its contents undefined: where the pool would not end
    /// before it, or nearer to the front than `old`. The pool does not grow.
    pub(super) fn alloc_before(
        &self,
        old: Offset,
        bytes: u64,
        surplus: &Surplus,
    ) -> Option<Offset> {
        let (space, extent) = (self.space(bytes), old / EXTENT_BYTES);
        if !surplus.has(old) {
            // It is well where it is, and only moves because something else does.
            return space.alloc_below(u64::MAX);
        }
        let end = extent.min(surplus.end);
        space.alloc_below(end).or_else(|| space.alloc_below(extent))
    }

    /// The extents that the map could do without. What was retired has been settled.
    pub(super) fn surplus(&self) -> Surplus {
        let needs = self.spaces.each_ref().map(|space| space.needed());
        let (count, free) = self.core.extent_counts();
        let beyond = |need: &SpaceNeed| (need.all - need.needed) as u64 * need.length;
        let end = (count - free).saturating_sub(needs.iter().map(beyond).sum());
        let mut extents = BTreeSet::new();
        for need in &needs {
            let numbered = need.extents.iter().enumerate();
            let surplus = numbered
                .filter(|&(number, &extent)| number >= need.needed || extent + need.length > end);
            extents.extend(surplus.map(|(_, &extent)| extent));
        }
        Surplus { extents, end }
    }

    /// Extents that the map has with blocks in use.
    pub(super) fn extents(&self) -> u64 {
        let needs = self.spaces.iter().map(|space| space.needed());
        needs.map(|need| need.all as u64 * need.length).sum()
    }

    /// Gives back a block that nobody has ever seen.
    pub(super) fn free_now(&self, offset: Offset, bytes: u64) {
        self.space(bytes).free_now(offset);
    }

    /// Gives back a block that has just been unlinked, once no reader can hold it any more.
    pub(super) fn retire(&self, offset: Offset, bytes: u64) {
        self.space(bytes).retire(offset);
    }

    /// Bytes of the block at an offset that comes from the file; `None` if there is no block of the map.
    pub(super) fn bytes_at(&self, offset: Offset) -> Option<u64> {
        let bytes = self.core.block_bytes_of(self.slot, offset)?;
        let most = SMALLEST_BLOCK << (CLASSES - 1);
        (bytes.is_power_of_two() && (SMALLEST_BLOCK..=most).contains(&bytes)).then_some(bytes)
    }

    /// Claims a block that a link from before the open leads to; `false` if it cannot be had.
    pub(super) fn claim(&self, offset: Offset, bytes: u64) -> bool {
        self.space(bytes).claim(offset)
    }

    /// Takes back a claim.
    pub(super) fn unclaim(&self, offset: Offset, bytes: u64) {
        self.space(bytes).unclaim(offset);
    }

    pub(super) fn needs_sweep(&self) -> bool {
        self.spaces.iter().any(|space| space.needs_sweep())
    }

    /// Sweep: everything in use has been claimed.
    pub(super) fn finish_sweep(&self) {
        for space in &self.spaces {
            space.finish_sweep();
        }
    }

    /// The map is closed.
    pub(super) fn close(&self) {
        for space in &self.spaces {
            space.close();
        }
    }

    /// Frees all blocks that were retired, waiting for the readers. The caller is not pinned.
    pub(super) fn settle(&self) {
        for space in &self.spaces {
            space.settle();
        }
    }

    /// Gives all extents of which no block is in use back to the pool, waiting for the readers. The caller is not pinned.
    pub(super) fn give_back(&self) {
        self.settle();
        for space in &self.spaces {
            space.release_empty_extents();
        }
    }

    /// Those of `blocks`, with their sizes, that are free as far as is known.
    pub(super) fn free_among(&self, blocks: &[(Offset, u64)]) -> Vec<Offset> {
        let mut free = Vec::new();
        for (class, space) in self.spaces.iter().enumerate() {
            let of_class = blocks
                .iter()
                .filter(|(_, bytes)| *bytes == SMALLEST_BLOCK << class)
                .map(|&(offset, _)| offset);
            free.extend(space.free_among(&of_class.collect::<Vec<_>>()));
        }
        free
    }

    /// Blocks in use, bytes of the file and bytes of DRAM, of all sizes.
    pub(super) fn stat(&self) -> (u64, u64, u64) {
        let stats = self.spaces.iter().map(|space| space.stat());
        stats.fold((0, 0, 0), |(blocks, file, dram), stat| {
            (
                blocks + stat.used_blocks,
                file + stat.file_bytes,
                dram + stat.dram_bytes,
            )
        })
    }
}
