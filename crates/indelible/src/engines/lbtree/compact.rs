//! Compaction: merges leaves that have few records and moves leaves out of the last extents of the map, so that
//! `Pool::shrink` can give these extents back.
//!
//! # How a leaf moves
//!
//! Only one link leads to a leaf durably: the sibling of its left neighbour, or, for the first leaf of a chain, its head in
//! the root block. So a leaf moves with one 8-byte store, without a log:
//!
//! | step | what is durable | what recovery does after a crash |
//! |---|---|---|
//! | the signpost to the leaf, if there is one, is removed | the signpost is gone | walks a few more leaves |
//! | its records and its sibling are written to a free block, with a fence | a copy that nothing leads to | sweeps the copy |
//! | the link to the leaf is replaced (the commit) | the copy is in the chain | sweeps the old block |
//! | its bottom node gets the new offset (in DRAM) | nothing | |
//! | a signpost to the new block is added, if it is to have one | the signpost | |
//! | the old block is retired; it is reused after an epoch | nothing | |
//!
//! # What others see
//!
//! The leaf, its left neighbour and the leaf's bottom node are locked throughout, and all three locks are only tried, so
//! the lock order of `smo` holds: on failure all of them are released and the move begins again.
//!
//! - *Lookups, ranges and batches* take the version of the old leaf's lock and then validate the bottom node, whose
//!   version the move changes. Either both happened before the move, and the old block still holds what it held, since a move
//!   writes nothing to it and the epoch keeps it from being reused; or one of them fails and the reader searches again.
//!   Bookmarks of ranges remember the bottom node's version and fail in the same way.
//! - *Writers* that have found the old leaf and wait for its lock validate the bottom node once they have it. A writer that
//!   holds the lock (also one of a batch) makes the move fail.
//! - *Splits and merges* of the leaf need its bottom node. A split or merge of the left neighbour may happen under another
//!   bottom node, but needs the neighbour's lock. Once the move holds that lock it asks whether the neighbour is still the
//!   leaf that covers the key before the moving leaf's lowest, so it does not write to a leaf that is gone.
//! - *The new block's lock* is not taken, as in a split: no thread can reach the block before the bottom node is unlocked, and
//!   no thread still holds the block from earlier, since blocks become free only after an epoch.
//! - *Indexing on demand* changes chains only inside unindexed ranges. There are none: the map has been warmed up before.
//! - *Bulk loads* replace all chains and the root block at once; `Tree::reorganizing` keeps them apart from the rounds of a compaction.
//! - *Directories* are made by writing to the root block; `Directory::hold` keeps that apart from moving the root block.

use super::inner::Child;
use super::layout::{MAX_RECORDS, RootBlock};
use super::search::Spot;
use super::{Tree, root_block_at};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::{Wait, WriteGuard};
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerTree, not_linked};
use crate::pool::{MOST_ROUNDS, Offset};

impl Tree {
    /// Compacts the tree of records, its directories and the root block. Other operations go on meanwhile. The map is warm.
    pub(super) fn compact(&self) -> Result<()> {
        if self.core.is_read_only() {
            return Ok(());
        }
        self.merge_all()?;
        for round in 0..MOST_ROUNDS {
            // Not locked: one of the readers that this waits for may wait for the lock, to compact or load the map.
            self.space.settle();
            let _reorganizing = lock(&self.reorganizing);
            let Some(end) = self.space.packed_end(round) else {
                break;
            };
            self.move_all_below(end)?;
        }
        self.space.settle();
        Ok(())
    }

    /// Merges leaves of the tree of records and of its directories with their neighbours.
    fn merge_all(&self) -> Result<()> {
        let _reorganizing = lock(&self.reorganizing);
        // Upwards, since merges at one level remove signposts from the next one.
        std::iter::successors(Some(self), |here| here.directory())
            .try_for_each(Self::merge_neighbours)
    }

    /// [`compact`](Self::compact) of a directory of another engine, which this is, and of the directories above it.
    pub(super) fn compact_as_directory(&self, end: Offset) -> Result<()> {
        let mut tree = Some(self);
        while let Some(here) = tree {
            here.merge_neighbours()?;
            if !here.move_leaves_below(end)? {
                return Ok(());
            }
            tree = here.directory();
        }
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

    /// Moves whatever lies at `end` or behind it to free blocks before `end`, as far as there are any.
    fn move_all_below(&self, end: Offset) -> Result<()> {
        self.move_root_block_below(end)?;
        let mut tree = Some(self);
        while let Some(here) = tree {
            if !here.move_leaves_below(end)? {
                return Ok(());
            }
            // Upwards, since moves at one level write signposts of the next one.
            tree = here.directory();
        }
        Ok(())
    }

    /// `false` if there are no more free blocks before `end`.
    fn move_leaves_below(&self, end: Offset) -> Result<bool> {
        let (mut from, mut wait) = (0, Wait::default());
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

    /// Moves the leaf of `spot`, which was current a moment ago, to a free block before `end`. The head of this file has the
    /// steps.
    fn try_move(&self, spot: &Spot<'_>, end: Offset) -> Result<Move> {
        let (parent, low, old) = (spot.parent, spot.low(), spot.child.offset());
        // Before anything is locked: a search that follows an outdated pointer may reach any node and wait for its lock, also for
        // a lock that this thread holds.
        let link = self.link_to(spot)?;
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
        self.pm.note("leaf moved", self.level as u64);
        let mut records = [(0, 0); MAX_RECORDS];
        let count = leaf.copy_to(&mut records);
        let copy = self.leaves.at(new);
        copy.fill(self.pm, &records[..count], leaf.next());
        self.pm.fence();
        match link {
            Link::Sibling { left, .. } => self.leaves.at(left).relink_to_copy(self.pm, new),
            // COMMIT lbtree.move-head: the head of the chain in the root block. Before this store recovery sees the old leaf, and the copy
            // is swept; after it, it sees the copy, with the same records and sibling, and the old leaf is swept.
            Link::Head(root) => {
                self.pm
                    .commit(&root.heads[self.level], new.get(), "lbtree.move-head");
            }
        }
        parent.set_child(spot.slot, Child::leaf(new));
        // While the bottom node is locked, no thread can merge the leaf away. The first leaf of a chain has no signpost.
        if low > 0 {
            self.directory.add(low, new);
        }
        self.space.retire(old);
        Ok(Move::Done)
    }

    /// What leads to the leaf of `spot`.
    fn link_to(&self, spot: &Spot<'_>) -> Result<Link<'_>> {
        let low = spot.low();
        if let Some(before) = spot.parent.shape().before(spot.slot) {
            let left = spot.parent.child(before).offset();
            return Ok(Link::Sibling { left, spot: None });
        }
        // A bottom node's first key is its lower end.
        let Some(key) = low.checked_sub(1) else {
            return Ok(Link::Head(self.root_block()?));
        };
        let spot = self.locate(key)?;
        Ok(Link::Sibling {
            left: spot.child.offset(),
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
        let entry = self.core.entry(self.slot);
        let old = Offset::from_word(entry.roots[0].load());
        if old < end {
            return Ok(());
        }
        let _held = self.directory.hold();
        let Some(new) = self.space.alloc_below(end) else {
            return Ok(());
        };
        let heads = self.root_block()?.heads();
        self.pm.note("root block moved", 0);
        root_block_at(&self.core, &self.space, new)?.fill(self.pm, heads);
        // COMMIT lbtree.move-root: the catalog entry's root. Before this store recovery sees the old root block, and the copy is swept; after
        // it, it sees the copy, with the same heads, and the old one is swept.
        self.pm
            .commit(&entry.roots[0], new.get(), "lbtree.move-root");
        self.space.retire(old);
        Ok(())
    }
}

/// What leads to a leaf.
enum Link<'a> {
    /// The sibling of the leaf at `left`. If that leaf is under another bottom node, where it was found.
    Sibling {
        left: Offset,
        spot: Option<Spot<'a>>,
    },
    /// Its head in the root block: it is the first leaf of its chain. Only compaction and bulk loads move the root block, and
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::host::AnyMap;
    use crate::pool::EXTENT_BYTES;
    use crate::{LbTreeOptions, Map, Pool};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn lbtree(pool: &Pool, name: &str, leaf_bytes: u32) -> Map<u64, u64> {
        let options = LbTreeOptions::default().leaf_bytes(leaf_bytes);
        pool.map_with(name, options).unwrap()
    }

    fn tree_of(map: &Map<u64, u64>) -> &Tree {
        let AnyMap::LbTree(host) = map.index() else {
            panic!("another kind of index");
        };
        &host.engine().tree
    }

    /// Offsets of all blocks of the map, and the number of its directories. No thread writes meanwhile.
    fn blocks(tree: &Tree) -> (Vec<Offset>, usize) {
        let root = tree.root_block().unwrap();
        let mut blocks = vec![Offset::from_word(
            tree.core.entry(tree.slot).roots[0].load(),
        )];
        let mut chains = 0;
        for head in root.heads.iter().map(|head| Offset::from_word(head.load())) {
            chains += usize::from(!head.is_none());
            let mut next = head;
            while !next.is_none() {
                blocks.push(next);
                next = tree.leaf_at(next).unwrap().next();
            }
        }
        (blocks, chains - 1)
    }

    /// Nodes are small under test, so a few thousand records have all levels of directories.
    #[test]
    fn first_leaves_directories_and_the_root_block_move_to_the_front() {
        for leaf_bytes in [256, 1024] {
            let pool = Pool::in_memory().unwrap();
            drop(lbtree(&pool, "first", leaf_bytes));
            let map = lbtree(&pool, "m", leaf_bytes);
            for key in 0..40_000_u64 {
                map.insert(key.reverse_bits(), key).unwrap();
            }
            let tree = tree_of(&map);
            let (before, directories) = blocks(tree);
            assert!(directories >= 2);
            let first = Offset::of_extent(1);
            assert!(before.iter().all(|&block| block >= Offset::of_extent(2)));
            // The first extent is free now, and all of the map goes there.
            pool.drop_map("first").unwrap();
            let used = before.len() as u64 * u64::from(leaf_bytes);
            let end = Offset::of_extent(1 + used.div_ceil(EXTENT_BYTES));
            pool.shrink().unwrap();
            let (after, still) = blocks(tree);
            assert_eq!(still, directories);
            assert!(after.iter().all(|&block| (first..end).contains(&block)));
            assert_eq!(pool.stat().file_bytes, end.get());
            assert_eq!(map.check().unwrap(), [""; 0]);
            assert_eq!(pool.check(), [""; 0]);
            let mut expected: Vec<(u64, u64)> = (0..40_000_u64)
                .map(|key| (key.reverse_bits(), key))
                .collect();
            expected.sort_unstable();
            assert!(map.iter().map(Result::unwrap).eq(expected));
        }
    }

    #[test]
    fn without_free_blocks_in_front_nothing_moves() {
        let pool = Pool::in_memory().unwrap();
        let map = lbtree(&pool, "m", 256);
        for key in 0..1_000 {
            map.insert(key, key).unwrap();
        }
        let tree = tree_of(&map);
        let before = blocks(tree);
        pool.shrink().unwrap();
        assert_eq!(blocks(tree), before);
        // Where blocks would have to go lies nothing of the pool.
        tree.move_all_below(Offset::of_extent(1)).unwrap();
        assert_eq!(blocks(tree), before);
        assert_eq!(map.check().unwrap(), [""; 0]);
    }

    /// Writers, readers of ranges and batches of lookups meet leaves that move at all levels.
    #[test]
    fn leaves_move_under_readers_and_writers() {
        const KEYS: u64 = 4_000;
        let pool = Pool::in_memory().unwrap();
        let map = lbtree(&pool, "m", 256);
        // Of 16 keys one stays, one belongs to each of two writers, and the others to this thread.
        for key in (0..KEYS).step_by(16) {
            map.insert(key, key).unwrap();
        }
        let tree = tree_of(&map);
        let end = Offset::of_extent(2);
        let done = AtomicBool::new(false);
        let moved = std::thread::scope(|scope| {
            // Also if this thread panics, or the others would go on for ever.
            let _done = SetOnDrop(&done);
            for thread in 1..3_u64 {
                let (map, done) = (&map, &done);
                scope.spawn(move || {
                    let mut seed = thread;
                    while !done.load(Ordering::Relaxed) {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let key = (seed >> 33) % (KEYS / 16) * 16 + thread;
                        if seed >> 63 == 0 {
                            map.insert(key, key).unwrap();
                        } else {
                            map.remove(key).unwrap();
                        }
                        if seed >> 40 & 63 == 0 {
                            let all = map.iter().map(Result::unwrap);
                            let stays = all.filter(|(key, _)| key.is_multiple_of(16));
                            assert!(stays.eq((0..KEYS).step_by(16).map(|key| (key, key))));
                            let keys: Vec<u64> = (0..KEYS).step_by(80).collect();
                            let values = map.get_batch(&keys).unwrap();
                            assert!(keys.iter().zip(values).all(|(&k, v)| v == Some(k)));
                            let batch: Vec<(u64, u64)> = (0..20)
                                .map(|i| (i * 160 + thread, i * 160 + thread))
                                .collect();
                            map.insert_batch(&batch).unwrap();
                        }
                    }
                });
            }
            let mut moved = 0;
            for _ in 0..if cfg!(debug_assertions) { 10 } else { 60 } {
                // With no free block in the first extent new leaves lie behind it.
                let held: Vec<Offset> =
                    std::iter::from_fn(|| tree.space.alloc_below(end)).collect();
                for key in (0..KEYS).filter(|key| key % 16 > 2) {
                    map.insert(key, key).unwrap();
                }
                held.into_iter()
                    .for_each(|block| tree.space.free_now(block));
                moved += blocks_behind(tree, end);
                tree.compact().unwrap();
                for key in (0..KEYS).filter(|key| key % 16 > 2) {
                    map.remove(key).unwrap();
                }
            }
            moved
        });
        assert!(moved > 1_000, "{moved} leaves moved");
        tree.compact().unwrap();
        assert_eq!(blocks_behind(tree, end), 0);
        assert_eq!(map.check().unwrap(), [""; 0]);
    }

    struct SetOnDrop<'a>(&'a AtomicBool);

    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Leaves of records at `end` or behind it.
    fn blocks_behind(tree: &Tree, end: Offset) -> usize {
        let (mut from, mut behind) = (0, 0);
        loop {
            let _guard = epochs::pin();
            let spot = tree.locate(from).unwrap();
            let high = spot.high();
            if spot.is_current() {
                behind += usize::from(spot.child.offset() >= end);
                match high {
                    Some(high) => from = high,
                    None => return behind,
                }
            }
        }
    }
}
