//! The blocks of a map: a space for each size.

use super::layout::{CLASSES, Offset, SMALLEST_BLOCK};
use crate::Result;
use crate::pool::{PoolCore, Space};
use std::sync::Arc;

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

    /// The space of each size.
    pub(super) fn spaces(&self) -> &[Arc<Space>] {
        &self.spaces
    }
}
