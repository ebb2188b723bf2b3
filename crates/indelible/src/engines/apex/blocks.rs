//! The blocks of a map.
//!
//! A *block* is a piece of the pool that holds one node, the slots of one inner node, or one extended stash block. APEX
//! uses blocks of 17 sizes, 256 bytes times a power of two. Each size has a [`Space`] of its own, which takes extents
//! of 2 MiB from the pool and hands out their blocks. Blocks that were in use before the open are unknown until a link
//! to them is followed and the block is *claimed*; when the sweep has followed all links, the other blocks of old
//! extents are free.

use super::layout::{CLASSES, Offset, SMALLEST_BLOCK};
use crate::Result;
use crate::pool::{PoolCore, Space};
use std::sync::Arc;

/// One [`Space`] for each size of blocks, the smallest first.
pub(super) struct Blocks {
    spaces: [Arc<Space>; CLASSES],
    core: Arc<PoolCore>,
    slot: usize,
}

impl Blocks {
    /// The blocks of the map at `slot` of the catalog. Extents from before the open have not been swept.
    pub(super) fn new(core: &Arc<PoolCore>, slot: usize) -> Self {
        let sizes: [u32; CLASSES] = std::array::from_fn(|class| (SMALLEST_BLOCK as u32) << class);
        Self {
            spaces: core.spaces(slot, sizes),
            core: Arc::clone(core),
            slot,
        }
    }

    /// The space of blocks of `bytes`.
    fn space(&self, bytes: u64) -> &Space {
        assert!(
            bytes.is_power_of_two() && bytes >= SMALLEST_BLOCK,
            "{bytes} bytes is no size of blocks"
        );
        &self.spaces[(bytes / SMALLEST_BLOCK).trailing_zeros() as usize]
    }

    /// Allocates a block of `bytes`. Its contents are undefined.
    pub(super) fn alloc(&self, bytes: u64) -> Result<Offset> {
        self.space(bytes).alloc_beside(&self.spaces)
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
        let most = SMALLEST_BLOCK << (CLASSES - 1);
        (bytes.is_power_of_two() && (SMALLEST_BLOCK..=most).contains(&bytes)).then_some(bytes)
    }

    /// Claims a block that a link from before the open leads to; `false` if the block is claimed already, or free.
    pub(super) fn claim(&self, offset: Offset, bytes: u64) -> bool {
        self.space(bytes).claim(offset)
    }

    /// Takes back a claim, so that the sweep frees the block. Only planted bugs do.
    pub(super) fn unclaim(&self, offset: Offset, bytes: u64) {
        self.space(bytes).unclaim(offset);
    }

    /// The space of each size.
    pub(super) fn spaces(&self) -> &[Arc<Space>] {
        &self.spaces
    }
}
