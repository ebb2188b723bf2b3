//! Blocks that are kept: one that somebody reads for longer than a thread may be pinned, or that somebody writes for longer than one operation.
//!
//! A kept block is not used again before it has been let go, also after it has been retired and its epoch is over. So a reader that takes
//! minutes costs the one block that it reads. Were it pinned, no block of the process could be used again meanwhile.

use super::{Space, State};
use crate::pool::offset::Offset;
use std::collections::BTreeSet;

/// What is known of a kept block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    /// How many readers and writers keep it.
    holders: u32,
    /// It was retired, and is to be freed when it has been let go.
    is_retired: bool,
}

impl Space {
    /// Keeps a block until it has been [let go](Self::let_go) as often. The caller has just allocated it, or has been pinned since before it found what
    /// leads to the block: then the block cannot have been freed yet, since this happens under the same mutex, after the caller has unpinned.
    pub(crate) fn keep(&self, offset: Offset) {
        self.lock().kept.entry(offset).or_default().holders += 1;
    }

    /// Lets go of a block that was kept, and frees it if it has been retired and nobody else keeps it.
    pub(crate) fn let_go(&self, offset: Offset) {
        let state = &mut *self.lock();
        let Some(kept) = state.kept.get_mut(&offset) else {
            // The block stays with whoever has it.
            tracing::error!(offset = offset.get(), "a block is let go that was not kept");
            return;
        };
        kept.holders -= 1;
        if kept.holders == 0 {
            let is_retired = kept.is_retired;
            state.kept.remove(&offset);
            if is_retired {
                self.free_in(state, offset);
            }
        }
    }

    /// Frees a retired block whose epoch is over, as soon as nobody keeps it.
    pub(super) fn free_unless_kept(&self, state: &mut State, offset: Offset) {
        match state.kept.get_mut(&offset) {
            Some(kept) => kept.is_retired = true,
            None => self.free_in(state, offset),
        }
    }

    /// The blocks that are not free, although nothing may lead to them: those that are kept, and those that are retired.
    pub(crate) fn held(&self) -> BTreeSet<Offset> {
        let state = self.lock();
        let retired = state.retired.iter().map(|&(_, offset)| offset);
        state.kept.keys().copied().chain(retired).collect()
    }
}
