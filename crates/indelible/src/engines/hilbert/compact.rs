//! Compaction: merges leaves that have few records and moves leaves out of the last extents of the index, so that
//! `Pool::shrink` can give these extents back. The steps are those of the LB+-Tree; its `compact` has the table.

use super::inner::{Child, Key};
use super::layout::{LEAF_BYTES, RootBlock};
use super::way::Spot;
use super::{Tree, root_block_at};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::{Wait, WriteGuard};
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerTree, not_linked};
use crate::engines::rect::Record;
use crate::pool::{MOST_ROUNDS, Offset};
use crate::spatial::Geometry;

impl<G: Geometry> Tree<G> {
    /// Compacts the chain, the directories and the root block. Other operations go on meanwhile. The index is warm.
    pub(super) fn compact(&self) -> Result<()> {
        if self.core.is_read_only() {
            return Ok(());
        }
        {
            let _reorganizing = lock(&self.reorganizing);
            self.merge_neighbours()?;
        }
        for round in 0..MOST_ROUNDS {
            // Not locked: one of the readers that this waits for may wait for the lock, to compact or load the index.
            self.space.settle();
            let _reorganizing = lock(&self.reorganizing);
            let Some(end) = self.space.packed_end(round) else {
                break;
            };
            self.move_root_block_below(end)?;
            if self.move_leaves_below(end)? {
                // Afterwards, since moves of leaves write signposts.
                self.directory.compact_below(end)?;
            }
        }
        self.space.settle();
        Ok(())
    }

    /// Merges leaves with their neighbours, from left to right, as long as the records of two fit into one.
    fn merge_neighbours(&self) -> Result<()> {
        let mut from = 0;
        loop {
            let _guard = epochs::pin();
            let spot = self.locate(from)?;
            // Looked at without locks first: where nothing can be merged no reader has to begin again.
            let (high, could_merge) = (spot.high(), self.could_merge(&spot));
            if !spot.is_current() || could_merge && self.merge(from) {
                continue;
            }
            match high {
                Some(high) => from = high,
                None => return Ok(()),
            }
        }
    }

    /// `false` if there are no more free blocks before `end`.
    fn move_leaves_below(&self, end: Offset) -> Result<bool> {
        let (mut from, mut wait): (Key, _) = (0, Wait::default());
        loop {
            let guard = epochs::pin();
            let spot = self.locate(from)?;
            let high = spot.high();
            if !spot.is_current() {
                continue;
            }
            if spot.child.offset() >= end {
                match self.try_move(&spot, end)? {
                    Move::Done => {}
                    Move::NoRoom => return Ok(false),
                    Move::Busy => {
                        drop(guard);
                        self.structure.wait_for_searches();
                        wait.step();
                        continue;
                    }
                }
            }
            wait = Wait::default();
            match high {
                Some(high) => from = high,
                None => return Ok(true),
            }
        }
    }

    /// Moves the leaf of `spot`, which was current a moment ago, to a free block before `end`.
    fn try_move(&self, spot: &Spot<'_>, end: Offset) -> Result<Move> {
        let (parent, low, old) = (spot.parent, spot.low(), spot.child.offset());
        let link = self.link_to(spot)?;
        let Some(_change) = self.structure.try_begin() else {
            return Ok(Move::Busy);
        };
        let Some(_leaves) = self.try_lock_ends(&link, old) else {
            return Ok(Move::Busy);
        };
        let Some(_parent) = parent.lock().try_lock_at(spot.version) else {
            return Ok(Move::Busy);
        };
        if !link.is_current() {
            return Ok(Move::Busy);
        }
        let leaf = self.leaves.at(old);
        if let Link::Sibling { left, .. } = link
            && self.leaves.at(left).next() != old
        {
            return Err(not_linked(left, old));
        }
        let Some(new) = self.space.alloc_below(end) else {
            return Ok(Move::NoRoom);
        };
        // A signpost must never point to a leaf that is gone. It goes first: a missing one does no harm.
        if let Err(error) = self.remove_signpost(low, old) {
            self.space.free_now(new);
            return Err(error);
        }
        self.pm.note("leaf moved", 0);
        let records: Vec<Record> = leaf.records().map(|(_, record)| record).collect();
        self.leaves.at(new).fill(self.pm, &records, leaf.next());
        self.pm.named("hilbert.copy").fence();
        match link {
            Link::Sibling { left, .. } => self.leaves.at(left).relink(self.pm, new),
            // COMMIT hilbert.move-head: the head of the chain in the root block. Before this store recovery sees the old leaf, and the copy
            // is swept; after it, it sees the copy, with the same records and sibling, and the old leaf is swept.
            Link::Head(root) => self.pm.commit(&root.head, new.get(), "hilbert.move-head"),
        }
        parent.set_child(spot.slot, Child::leaf(new, spot.child.is_counted()));
        // While the bottom node is locked, no thread can merge the leaf away. The first leaf of a chain has no signpost.
        if low > 0 {
            self.add_signpost(low, new);
        }
        self.space.retire(old);
        Ok(Move::Done)
    }

    /// What leads to the leaf of `spot`.
    fn link_to<'a>(&'a self, spot: &Spot<'a>) -> Result<Link<'a>> {
        if let Some(before) = spot.slot.checked_sub(1) {
            let left = spot.parent.child(before).offset();
            return Ok(Link::Sibling { left, spot: None });
        }
        // A bottom node's first key is its lower end.
        let Some(key) = spot.low().checked_sub(1) else {
            return Ok(Link::Head(self.root_block()?));
        };
        let spot = self.locate(key)?;
        let left = spot.child.offset();
        Ok(Link::Sibling {
            left,
            spot: Some(spot),
        })
    }

    /// Locks the leaf at `old` and the one that leads to it, if a leaf does.
    fn try_lock_ends(
        &self,
        link: &Link<'_>,
        old: Offset,
    ) -> Option<(WriteGuard<'_>, Option<WriteGuard<'_>>)> {
        match *link {
            Link::Sibling { left, .. } => self.try_lock_two(left, old),
            Link::Head(_) => Some((self.locks.of(old.get()).try_lock()?, None)),
        }
    }

    /// Moves the root block to a free block before `end`, if it is not there and there is one.
    fn move_root_block_below(&self, end: Offset) -> Result<()> {
        let old = self.root_offset();
        if old < end {
            return Ok(());
        }
        // What writes to the root block: new directories, larger records, relocations, and the choice of the grid, for which the first leaf is
        // locked. The leaf comes first: a relocation waits for an intent, and a split for the directory, while they hold locks of leaves.
        let _guard = epochs::pin();
        let _first = self.lock_leaf(0, None)?;
        let _held = (self.directory.hold(), self.reach.hold());
        let mut wait = Wait::default();
        let _intents = loop {
            let mut intents = lock(&self.intents);
            if intents.iter().all(|taken| !taken) {
                *intents = std::array::from_fn(|_| true);
                drop(intents);
                break FreeIntents(self);
            }
            drop(intents);
            wait.step();
        };
        let Some(new) = self.space.alloc_below(end) else {
            return Ok(());
        };
        let words = self.root_block()?.words();
        self.pm.note("root block moved", LEAF_BYTES as u64);
        root_block_at(&self.core, &self.space, new)?.fill(self.pm, &words);
        self.pm.named("hilbert.root").fence();
        // COMMIT hilbert.move-root: the catalog entry's root. Before this store recovery sees the old root block, and the copy is swept; after
        // it, it sees the copy, with the same words, and the old one is swept.
        let root = &self.core.entry(self.place.slot).roots[0];
        self.pm.commit(root, new.get(), "hilbert.move-root");
        self.space.retire(old);
        Ok(())
    }
}

/// Makes all intents free again.
struct FreeIntents<'a, G: Geometry>(&'a Tree<G>);

impl<G: Geometry> Drop for FreeIntents<'_, G> {
    fn drop(&mut self) {
        *lock(&self.0.intents) = Default::default();
    }
}

/// What leads to a leaf.
#[allow(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum Link<'a> {
    /// The sibling of the leaf at `left`. If that leaf is under another bottom node, where it was found.
    Sibling {
        left: Offset,
        spot: Option<Spot<'a>>,
    },
    /// Its head in the root block: it is the first leaf of the chain. Only compaction and bulk loads move the root block, and
    /// this is the one that runs.
    Head(&'a RootBlock),
}

impl Link<'_> {
    /// Whether the left neighbour, which is locked, is still in the chain. A neighbour under the bottom node of the moving leaf is,
    /// since that node is locked and has not changed.
    fn is_current(&self) -> bool {
        match self {
            Self::Sibling {
                spot: Some(spot), ..
            } => spot.is_current(),
            _ => true,
        }
    }
}

/// How an attempt to move a leaf ended.
enum Move {
    Done,
    /// There is no free block before the end.
    NoRoom,
    /// A lock was held by another thread, or another thread changed the leaf or its bottom node.
    Busy,
}
