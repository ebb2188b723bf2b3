//! Operations on all spaces of an object together. An object has one space for each size of its blocks.

use super::Shared;
use crate::engines::{Engine, Report};
use crate::pool::Offset;

/// What the spaces of an object have, together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Blocks in use, or unlinked and perhaps still held by a reader.
    pub(super) used_blocks: u64,
    /// Bytes of all extents.
    pub(super) file_bytes: u64,
    /// Bytes of DRAM that say which blocks are in use.
    pub(super) dram_bytes: u64,
}

impl<E: Engine> Shared<E> {
    /// Whether there are extents from before the open that have not been swept.
    pub(super) fn needs_sweep(&self) -> bool {
        let spaces = self.engine.spaces();
        spaces.iter().any(|space| space.needs_sweep())
    }

    /// Ends the sweep: all blocks in use have been claimed, so the others are free.
    pub(super) fn finish_sweep(&self) {
        for space in self.engine.spaces() {
            space.finish_sweep();
        }
    }

    /// Gives all extents of which no block is in use back to the pool, waiting for the readers as [`Space::settle`](crate::pool::Space::settle) does.
    pub(super) fn give_back(&self) {
        for space in self.engine.spaces() {
            space.give_back();
        }
    }

    fn settle(&self) {
        for space in self.engine.spaces() {
            space.settle();
        }
    }

    /// The object is closed: from here on its spaces own nothing.
    pub(super) fn close_spaces(&self) {
        for space in self.engine.spaces() {
            space.close();
        }
    }

    pub(super) fn usage(&self) -> Usage {
        let spaces = self.engine.spaces().iter().map(|space| space.stat());
        spaces.fold(Usage::default(), |sum, space| Usage {
            used_blocks: sum.used_blocks + space.used_blocks,
            file_bytes: sum.file_bytes + space.file_bytes,
            dram_bytes: sum.dram_bytes + space.dram_bytes,
        })
    }

    /// Checks that every block that can be reached is in use, once, and that no other block is.
    pub(super) fn check_blocks(&self, report: &mut Report) {
        let reachable = report.take_reachable();
        for pair in reachable.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            report.expect(a.0 != b.0, || format!("block {:#x} is reached twice", a.0));
        }
        for space in self.engine.spaces() {
            let of_size = reachable
                .iter()
                .filter(|(_, bytes)| *bytes == space.block_bytes());
            let blocks: Vec<Offset> = of_size.map(|&(offset, _)| offset).collect();
            for offset in space.free_among(&blocks) {
                report.problem(format!("block {offset:#x} is reached and free"));
            }
        }
        self.settle();
        let is_reached = |offset: &Offset| reachable.iter().any(|(reached, _)| reached == offset);
        // Readers hold what nothing leads to any more, and writers what nothing leads to yet.
        let held = self.engine.spaces().iter().flat_map(|space| space.held());
        let held = held.filter(|offset| !is_reached(offset)).count() as u64;
        let (used, reached) = (self.usage().used_blocks, reachable.len() as u64);
        report.expect(used == reached + held, || {
            format!("{used} blocks are in use, {reached} are reached, and {held} more are held")
        });
    }
}
