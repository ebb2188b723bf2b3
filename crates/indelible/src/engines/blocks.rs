//! The blocks of a map that needs blocks of many sizes: APEX and LOFT.
//!
//! A *block* is a piece of the pool that holds, for example, one data node, the slots of one inner node, or one bucket. Sizes are
//! multiples of [`SMALLEST_BLOCK`]. Each size has a [`Space`] of its own, which takes extents of 2 MiB from the pool and hands out
//! their blocks. Blocks that were in use before the open are unknown until a link to them is followed and the block is *claimed*; when the
//! sweep has followed all links, the other blocks of old extents are free.

use crate::Result;
use crate::pool::{EXTENT_BYTES, Offset, PoolCore, Space, SpaceNeed};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of the smallest block.
pub(super) const SMALLEST_BLOCK: u64 = 256;

/// Extents that the map would not need if its blocks lay densely at the front of the pool.
#[derive(Debug)]
pub(super) struct Surplus {
    extents: BTreeSet<u64>,
    /// Where the pool would end then: an offset.
    end: Offset,
    /// Bytes of the pool behind that end.
    behind: u64,
}

impl Surplus {
    pub(super) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Bytes by which the pool could be shorter.
    pub(super) fn bytes_behind_end(&self) -> u64 {
        self.behind
    }

    /// Whether the block at `offset` lies in one of the extents.
    pub(super) fn has(&self, offset: Offset) -> bool {
        self.extents.contains(&offset.extent())
    }
}

/// [`SMALLEST_BLOCK`] times the first powers of two.
pub(super) const fn doubling_sizes<const CLASSES: usize>() -> [u32; CLASSES] {
    let mut sizes = [SMALLEST_BLOCK as u32; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        sizes[class] = 2 * sizes[class - 1];
        class += 1;
    }
    sizes
}

/// One [`Space`] for each of `CLASSES` sizes of blocks, the smallest first.
pub(super) struct Blocks<const CLASSES: usize> {
    sizes: [u32; CLASSES],
    spaces: [Arc<Space>; CLASSES],
    core: Arc<PoolCore>,
    slot: usize,
}

impl<const CLASSES: usize> Blocks<CLASSES> {
    /// The blocks of the map at `slot` of the catalog, of these sizes, which ascend. Extents from before the open have not been swept.
    pub(super) fn new(core: &Arc<PoolCore>, slot: usize, sizes: [u32; CLASSES]) -> Self {
        Self {
            sizes,
            spaces: core.spaces(slot, sizes),
            core: Arc::clone(core),
            slot,
        }
    }

    fn class_of(&self, bytes: u64) -> Option<usize> {
        let class = self.sizes.partition_point(|&size| u64::from(size) < bytes);
        let is_size = |&size: &u32| u64::from(size) == bytes;
        self.sizes.get(class).is_some_and(is_size).then_some(class)
    }

    /// The space of blocks of `bytes`.
    fn space(&self, bytes: u64) -> &Space {
        let class = self.class_of(bytes);
        &self.spaces[class.unwrap_or_else(|| panic!("{bytes} bytes is no size of blocks"))]
    }

    /// Allocates a block of `bytes`. Its contents are undefined.
    pub(super) fn alloc(&self, bytes: u64) -> Result<Offset> {
        self.alloc_sparing(bytes, 0)
    }

    /// [`alloc`](Self::alloc) that leaves so many blocks of this size free, and takes another extent instead.
    pub(super) fn alloc_sparing(&self, bytes: u64, spared: usize) -> Result<Offset> {
        self.space(bytes).alloc_beside(&self.spaces, spared)
    }

    /// The next size after `tried`, and below `end`, of which a block is free. Other threads may take it.
    pub(super) fn next_with_room(&self, tried: u64, end: u64) -> Option<u64> {
        let sizes = self
            .spaces
            .iter()
            .filter(|space| (tried + 1..end).contains(&space.block_bytes()));
        sizes
            .map(|space| space.block_bytes())
            .find(|&bytes| self.space(bytes).has_room())
    }

    /// Allocates a block of `bytes` to which the contents of the block `old` can be moved; its contents are undefined.
    /// The block lies where the pool would not have to end before it, or nearer to the front than `old`. The pool does
    /// not grow.
    pub(super) fn alloc_before(
        &self,
        old: Offset,
        bytes: u64,
        surplus: &Surplus,
    ) -> Option<Offset> {
        let (space, extent) = (self.space(bytes), Offset::of_extent(old.extent()));
        if !surplus.has(old) {
            // The block need not move, and does so only because another block of the node does.
            return space.alloc_below(Offset::MAX);
        }
        let end = extent.min(surplus.end);
        space.alloc_below(end).or_else(|| space.alloc_below(extent))
    }

    /// The surplus extents of the map. The caller has given back what was retired.
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
        Surplus {
            extents,
            behind: (count - end) * EXTENT_BYTES,
            end: Offset::of_extent(end),
        }
    }

    /// Gives all extents of which no block is in use back to the pool, waiting for the readers as [`Space::settle`] does.
    pub(super) fn give_back(&self) {
        for space in &self.spaces {
            space.give_back();
        }
    }

    /// Extents that the map has.
    pub(super) fn extents(&self) -> u64 {
        let needs = self.spaces.iter().map(|space| space.needed());
        needs.map(|need| need.all as u64 * need.length).sum()
    }

    /// Frees a block that was never reachable.
    pub(super) fn free_now(&self, offset: Offset, bytes: u64) {
        self.space(bytes).free_now(offset);
    }

    /// Retires a block that has just become unreachable: frees it when all readers that may hold it are gone.
    pub(super) fn retire(&self, offset: Offset, bytes: u64) {
        self.space(bytes).retire(offset);
    }

    /// Size of the block at an offset that comes from the file; `None` if the map has no block there.
    pub(super) fn bytes_at(&self, offset: Offset) -> Option<u64> {
        let bytes = self.core.block_bytes_of(self.slot, offset)?;
        self.class_of(bytes).map(|_| bytes)
    }

    /// Claims a block that a link from before the open leads to.
    pub(super) fn claim_linked(&self, offset: Offset, bytes: u64) -> Result<()> {
        self.space(bytes).claim_linked(offset)
    }

    /// Takes back the claim of a block that nobody has come to know, so that it can be claimed once more. Of a block that was allocated since the open it
    /// does nothing.
    pub(super) fn unclaim(&self, offset: Offset, bytes: u64) {
        self.space(bytes).unclaim(offset);
    }

    /// The space of each size.
    pub(super) fn spaces(&self) -> &[Arc<Space>] {
        &self.spaces
    }
}
