//! Which nodes belong to a tree whose nodes are all durable: what a sweep finds out, and what searches rely on.

use crate::pool::{EXTENT_BYTES, Offset, Space};
use crate::{Error, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the sweep of an index has found out.
#[derive(Default)]
pub(in crate::engines) struct Sweep {
    /// All blocks in use have been claimed since the open: then no link of a parent can lead out of the index.
    is_done: AtomicBool,
    /// A node is reached twice. Which of the links is wrong is not known, and the records below it are found twice, and others not at all: so nothing is
    /// read or written any more.
    damage: OnceLock<String>,
}

impl Sweep {
    pub(in crate::engines) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    pub(in crate::engines) fn finish(&self) {
        self.is_done.store(true, Ordering::Release);
    }

    /// Claims all blocks that were reached, those from before the open; those allocated since belong to the index already.
    pub(in crate::engines) fn claim_all(
        &self,
        space: &Space,
        mut reached: Vec<Offset>,
    ) -> Result<()> {
        reached.sort_unstable();
        let twice = reached.windows(2).find(|pair| pair[0] == pair[1]);
        let free = space.free_among(&reached);
        if let Some(offset) = twice.map(|pair| pair[0]).or(free.first().copied()) {
            let damage = format!("node {offset:#x} is reached twice, or was free");
            return Err(self.refuse(damage));
        }
        for offset in reached {
            space.claim(offset);
        }
        Ok(())
    }

    /// Keeps the index from being used: the error for that.
    fn refuse(&self, damage: String) -> Error {
        Error::Damaged(self.damage.get_or_init(|| damage).clone())
    }

    /// An error if there is no block of this index at `offset`, to which a link of a parent leads, or if the index is not to be used.
    #[inline]
    pub(in crate::engines) fn expect_owned(&self, space: &Space, offset: Offset) -> Result<()> {
        if self.is_done() {
            return Ok(());
        }
        match self.damage.get() {
            Some(damage) => Err(Error::Damaged(damage.clone())),
            None => expect_block(space, offset),
        }
    }
}

/// An error if there is no block of this index at `offset`.
pub(in crate::engines) fn expect_block(space: &Space, offset: Offset) -> Result<()> {
    if space.owns(offset) {
        return Ok(());
    }
    Err(Error::Damaged(format!(
        "{offset:#x} is not a node of this index"
    )))
}

/// Counts the nodes that are visited on the way through a tree, as long as no node that is visited can be freed. In a damaged tree in which many links lead to
/// one node the way would hardly come to an end.
pub(in crate::engines) struct Visits<'a> {
    space: &'a Space,
    visited: u64,
    /// There are at least so many blocks.
    blocks: u64,
}

impl<'a> Visits<'a> {
    pub(in crate::engines) fn new(space: &'a Space) -> Self {
        Self {
            space,
            visited: 0,
            // Those of one extent. How many there are in all is asked when it matters, since that takes a lock.
            blocks: EXTENT_BYTES / space.block_bytes(),
        }
    }

    /// Counts a node. An error if there are not so many.
    #[inline]
    pub(in crate::engines) fn count(&mut self) -> Result<()> {
        self.visited += 1;
        if self.visited > self.blocks {
            self.blocks = self.space.most_blocks();
        }
        if self.visited > self.blocks {
            let problem = "the index has more nodes than blocks".into();
            return Err(Error::Damaged(problem));
        }
        Ok(())
    }
}
