//! Bulk load: builds a whole map that is not reachable, and makes it the contents of the empty map with one store.

use super::inner::{Child, Inner};
use super::layout::LEVELS;
use super::{Tree, root_block_at};
use crate::concurrency::parallel::in_parallel;
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerTree, lock_empty_tree};
use crate::engines::parallel::helpers;
use crate::pool::Offset;
use crate::{Error, Result};
use std::sync::Mutex;

/// Leaves that a thread of a bulk load takes at a time: enough that threads seldom meet, few enough that all end at about the same time.
const PART_LEAVES: usize = 1024;

/// A loaded chain of leaves: each leaf's lowest key and offset.
type Chain = Vec<(u64, Offset)>;

impl Tree {
    /// See `Map::bulk_load`. `self` is the tree of records.
    pub(super) fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        if self.record_at_or_above(0)?.is_some() {
            return Err(Error::NotEmpty);
        }
        // A compaction that holds this mutex soon ends, since the map is empty.
        let _reorganizing = lock(&self.reorganizing);
        self.join_empty_leaves()?;
        let only_leaf = |bottom: &Inner| bottom.child(0).offset();
        let (root_guard, bottom_guard, leaf_guard, old_head) =
            lock_empty_tree(self.root(), &self.locks, only_leaf)?;
        if self.leaves.at(old_head).count() > 0 {
            return Err(Error::NotEmpty);
        }
        if records.is_empty() {
            return Ok(());
        }
        self.pm.note("bulk load", self.leaves.blocks() as u64);
        let old = self.old_blocks()?;
        let root_block = self.space.alloc()?;
        let chains = self
            .build_chains(records, fill)
            .inspect_err(|_| self.space.free_now(root_block))?;
        self.switch_root_block(root_block, &chains)?;
        self.count_change(old_head, 0, records.len() as i64);
        drop(bottom_guard);
        self.index_chains(&chains)?;
        drop((leaf_guard, root_guard));
        for offset in old {
            self.space.retire(offset);
        }
        Ok(())
    }

    /// A map whose records were all removed may still have several empty leaves; merging makes them one.
    fn join_empty_leaves(&self) -> Result<()> {
        while self.record_at_or_above(0)?.is_none() {
            let splits = self.nodes_at_the_left();
            if splits == (1, 1, 1) {
                break;
            }
            self.merge(0);
            if self.nodes_at_the_left() == splits {
                break;
            }
        }
        Ok(())
    }

    /// The root's level and count, and its first child's count.
    fn nodes_at_the_left(&self) -> (u32, usize, usize) {
        (
            self.root().level(),
            self.root().count(),
            self.root().node(0).count(),
        )
    }

    /// Builds the chain of the records and those of its directories, all unreachable as yet.
    fn build_chains(&self, records: &[(u64, u64)], fill: f64) -> Result<Vec<Chain>> {
        let mut chains = vec![self.build_chain(records, fill)?];
        let mut tree = Some(self);
        while chains.len() < LEVELS {
            tree = tree.and_then(Tree::directory);
            let signposts = Self::signposts_among(&chains[chains.len() - 1][1..]);
            if signposts.is_empty() && tree.is_none() {
                break;
            }
            match self.build_chain(&signposts, fill.min(0.7)) {
                Ok(chain) => chains.push(chain),
                Err(error) => {
                    chains
                        .iter()
                        .flatten()
                        .for_each(|&(_, offset)| self.space.free_now(offset));
                    return Err(error);
                }
            }
        }
        Ok(chains)
    }

    /// Writes the leaves of one chain, with one thread per core.
    fn build_chain(&self, records: &[(u64, u64)], fill: f64) -> Result<Chain> {
        let per_leaf = (self.leaves.capacity() as f64 * fill).max(1.0);
        let count = ((records.len() as f64 / per_leaf).ceil() as usize).max(1);
        let offsets = self.space.alloc_many(count)?;
        let mut chain: Chain = offsets.iter().map(|&offset| (0, offset)).collect();
        // Spread evenly; in 128 bits, since the product may be large.
        let cut = |at: usize| (records.len() as u128 * at as u128 / count as u128) as usize;
        let write = |at: usize, leaf: &mut (u64, Offset)| {
            let mine = &records[cut(at)..cut(at + 1)];
            // The first leaf covers everything from zero on.
            leaf.0 = if at == 0 { 0 } else { mine[0].0 };
            let next = offsets.get(at + 1).copied().unwrap_or(Offset::NONE);
            self.leaves.at(leaf.1).stream(self.pm, mine, next);
        };
        let parts = Mutex::new(chain.chunks_mut(PART_LEAVES).enumerate());
        let next_part = || lock(&parts).next();
        let work = || {
            while let Some((part, leaves)) = next_part() {
                for (i, leaf) in leaves.iter_mut().enumerate() {
                    write(part * PART_LEAVES + i, leaf);
                }
            }
            // Each thread waits for its own stores.
            self.pm.named("lbtree.load.part").fence();
        };
        in_parallel(helpers(&self.core, count / PART_LEAVES), work);
        Ok(chain)
    }

    /// Every block that the load makes unreachable: the leaves of all present chains and the root block.
    fn old_blocks(&self) -> Result<Vec<Offset>> {
        let root = self.root_block()?;
        let mut old = vec![Offset::from_word(
            self.core.entry(self.slot).roots[0].load(),
        )];
        for head in &root.heads {
            let mut next = Offset::from_word(head.load());
            while !next.is_none() {
                old.push(next);
                next = self.leaf_at(next)?.next();
            }
        }
        Ok(old)
    }

    fn switch_root_block(&self, new: Offset, chains: &[Chain]) -> Result<()> {
        let mut heads = [Offset::NONE; LEVELS];
        for (head, chain) in heads.iter_mut().zip(chains) {
            *head = chain[0].1;
        }
        root_block_at(&self.core, &self.space, new)?.fill(self.pm, heads);
        // COMMIT lbtree.load: the catalog entry's root. Before this store recovery sees the empty map, and all that was loaded is
        // swept; after it, it sees all records and their signposts, and the old chains are swept.
        self.pm.commit(
            &self.core.entry(self.slot).roots[0],
            new.get(),
            "lbtree.load",
        );
        Ok(())
    }

    /// Builds the inner nodes over the loaded chains: those of this tree, whose root is locked, and those of its directories.
    fn index_chains(&self, chains: &[Chain]) -> Result<()> {
        self.index_chain(&chains[0]);
        let mut tree = self;
        for chain in &chains[1..] {
            let index = |directory: &Tree| {
                let _root = directory.root().lock().lock();
                directory.index_chain(chain);
            };
            tree = match tree.directory() {
                Some(directory) => {
                    index(directory);
                    directory
                }
                None => {
                    let directory = tree.directory.new_tree(Child::leaf(chain[0].1))?;
                    index(&directory);
                    tree.directory.attach(directory)
                }
            };
        }
        Ok(())
    }

    /// Replaces all inner nodes below the root, which is locked.
    fn index_chain(&self, chain: &Chain) {
        let leaves = chain.iter();
        self.load_nodes(
            leaves
                .map(|&(low, offset)| Child::leaf(offset).entry(low))
                .collect(),
        );
    }
}
