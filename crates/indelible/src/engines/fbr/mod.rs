//! The FBR-tree: an R-tree in persistent memory whose inner nodes are durable too, for comparison.
//!
//! Cho, Kim, Oh, Kim, Koh and Nam: "Failure-atomic byte-addressable R-tree for persistent memory", IEEE TPDS 32(3), 2020. Yoshioka, Hayamizu, Goda
//! and Kitsuregawa ran its release and a variant that flushes leaves only.
//!
//! # The structure
//!
//! An R-tree (Guttman, SIGMOD 1984). All nodes are blocks of 1 KiB in the pool: a word with a bit for each entry in use, then entries in no
//! order. An entry of a leaf is a record; one of an inner node is a box and the offset of the child, all of whose records lie in the box.
//! Leaves form a chain, in both directions. The offset of the root, and that of the first leaf, are in the root block. See [`layout`](self::layout).
//!
//! # What commits
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | insert | 1 or 2 for the record, as many for each box that grows, 1; 2 | the word of the leaf |
//! | remove | 1, 1 | the word of the leaf |
//! | relocate within a leaf | as an insert | the word of the leaf |
//! | relocate between leaves | as an insert, and 4; 4 | `state` of the log |
//! | split of a leaf | 2 leaves, 2 entries, 5; 4 | `state` of the log |
//! | split of an inner node | 2 nodes, 2 entries, 1; 2 | the word of the parent |
//! | the root gets a parent, or leaves the tree | a node, 1; 2 | `root` in the root block |
//! | an empty leaf leaves the tree | 5, 4 | `state` of the log |
//! | bulk load, compaction | streamed, 2 | the catalog entry's root |
//!
//! An insert enlarges the boxes on its way, top down, before it commits. A split copies a node into two new ones, and replaces it in its parent: one
//! store of the parent's word clears the bit of the old entry and sets those of the new ones, which were free. So a split of an inner node
//! needs no log. A leaf has neighbours in the chain besides, and so its split goes through the redo log of the root block (`log`).
//! The release logs each node that it splits and then changes the node in place; the number of lines written is about the same.
//!
//! With `flush=leaves` inner nodes are written like all others, and neither flushed nor logged. Then the leaves and their chain are the
//! durable state; `recover` builds the inner nodes anew after a crash.
//!
//! # Threads
//!
//! One mutex serialises all writers, as the release does: it does not scale, which is what there is to compare. Searches take no lock. They
//! read a node between two looks at its version, and read it again if it has changed. A node that a split has replaced stays as it was
//! until no reader can hold it, so a search that knew it before finds there what it contained at the moment of the split: a search meets
//! each record that was there throughout once, however many nodes split meanwhile. Only a relocation between leaves could show a record twice
//! or not at all; a search during which one took place begins again, and after a few failures keeps others from beginning (`rect::changes`).
//!
//! # What the release does not have
//!
//! It neither removes records nor recovers. It sets the bit of an entry before the entry is durable, links a sibling after the old node has lost
//! its records, and keeps the root in DRAM: these are among the bugs that the crash checker plants here.

mod build;
mod check;
mod compact;
mod insert;
mod layout;
mod log;
mod nearest;
mod node;
mod options;
mod recover;
mod relocate;
mod remove;
mod search;
mod split;

#[cfg(feature = "trace")]
pub(crate) mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
pub use options::FbrOptions;

use crate::concurrency::locks::WriteGuard;
use crate::concurrency::records::{self, RecordLocks};
use crate::concurrency::sync::lock;
use crate::engines::rect::{Changes, Link, Record, Sweep, expect_block};
use crate::engines::{Engine, Fact, Nearest, Neighbour, Place, Report, Spatial};
use crate::pmem::Pm;
use crate::pmem::planted::planted;
use crate::pool::{Offset, PoolCore, Space};
use crate::spatial::{Geometry, Metric, Rect};
use crate::{Error, Result};
use layout::{Entries, MOST_LEVELS, NODE_BYTES, RootBlock, Word};
use node::{Chain, Node, Nodes};
use options::Flush;
use recover::Rebuilt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The nodes in the pool, and what readers and writers share in DRAM.
struct Tree<G> {
    place: Place,
    core: Arc<PoolCore>,
    space: Arc<Space>,
    pm: Pm,
    flush: Flush,
    nodes: Nodes<G>,
    /// Versions of nodes.
    locks: RecordLocks,
    /// The root: a [`Link`].
    root: AtomicU64,
    /// Held by the thread that writes.
    writing: Mutex<()>,
    /// Relocations between leaves.
    relocations: Changes,
    sweep: Sweep,
    splits: AtomicU64,
    /// What building the inner nodes anew took at the open, if that was necessary.
    rebuilt: Rebuilt,
}

impl<G: Geometry> Tree<G> {
    fn open(place: &Place, options: FbrOptions) -> Result<Self> {
        let core = &place.core;
        let space = core.space(place.slot, NODE_BYTES as u32)?;
        let mut tree = Self {
            pm: core.pm(),
            flush: options.flush,
            nodes: Nodes::new(core.base()),
            locks: RecordLocks::new(records::LOCKS),
            place: place.clone(),
            core: Arc::clone(core),
            space,
            root: AtomicU64::new(0),
            writing: Mutex::new(()),
            relocations: Changes::default(),
            sweep: Sweep::default(),
            splits: AtomicU64::new(0),
            rebuilt: Rebuilt::default(),
        };
        tree.recover()?;
        Ok(tree)
    }

    fn root(&self) -> Link {
        Link::from_word(self.root.load(Ordering::Acquire))
    }

    fn root_block_offset(&self) -> Offset {
        Offset::from_word(self.core.entry(self.place.slot).roots[0].load_acquire())
    }

    /// The root block, whose offset has been validated when the index was opened.
    fn root_block(&self) -> &RootBlock {
        self.nodes.part(self.root_block_offset())
    }

    /// The node at an offset that the file holds, which has to be one of `level`. The caller holds the mutex, or nobody else uses the tree.
    fn node(&self, offset: Offset, level: u32) -> Result<Node<'_, G>> {
        self.sweep.expect_owned(&self.space, offset)?;
        let node = self.nodes.at(offset);
        self.expect_level(offset, node.word(), level)?;
        Ok(node)
    }

    /// The leaf that another one says lies beside it in the chain. The sweep claims nodes by the links of their parents, and does not look at those of the chain.
    fn leaf_of_chain(&self, offset: Offset) -> Result<Node<'_, G>> {
        expect_block(&self.space, offset)?;
        self.node(offset, 0)
    }

    /// An error unless this may be the word of a node of `level`, of the entries that such a node has.
    fn expect_level(&self, offset: Offset, word: Word, level: u32) -> Result<()> {
        if word.is_of(level) && word.bitmap() & !Entries::<G>::bits(level) == 0 {
            return Ok(());
        }
        Err(Error::Damaged(format!(
            "node {offset:#x} has the word {:#x}, and is linked as one of level {level}",
            word.0
        )))
    }

    /// Becomes the thread that writes, and waits while another one is.
    fn write(&self) -> Writer<'_, G> {
        Writer {
            tree: self,
            _writing: lock(&self.writing),
        }
    }
}

/// The right to write the tree: its mutex, held.
struct Writer<'a, G: Geometry> {
    tree: &'a Tree<G>,
    _writing: MutexGuard<'a, ()>,
}

impl<G: Geometry> Drop for Writer<'_, G> {
    fn drop(&mut self) {
        // Words of inner nodes that are not flushed, before another thread writes them.
        self.tree.pm.named("fbr.unlock").hand_over();
    }
}

impl<'a, G: Geometry> Writer<'a, G> {
    /// Locks nodes, so that readers wait until their change is durable. Two nodes may have one lock.
    fn lock_nodes(&self, nodes: &[Offset]) -> Vec<WriteGuard<'a>> {
        let locks = &self.tree.locks;
        let mut numbers: Vec<usize> = nodes
            .iter()
            .map(|node| locks.number_of(node.get()))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        let lock = |number| locks.numbered(number).version.lock();
        numbers.into_iter().map(lock).collect()
    }

    /// Whether nodes of this level are flushed.
    fn is_durable(&self, level: u32) -> bool {
        level == 0 || self.tree.flush == Flush::All
    }

    /// Flushes a part of a node of this level, if such nodes are flushed.
    fn flush<T: ?Sized>(&self, level: u32, part: &T) {
        if self.is_durable(level) {
            self.tree.pm.named("fbr.part").flush(part);
        }
    }

    /// Makes a node of these entries, which nothing leads to as yet, at a block that has just been allocated. Flushed without a fence.
    fn fill(&self, offset: Offset, level: u32, entries: &[Record], chain: Chain) {
        let node = self.tree.nodes.at(offset);
        let word = Word::new(level, (1 << entries.len()) - 1);
        node.fill(self.tree.pm, word.0, level, entries, chain);
        if self.is_durable(level) {
            self.tree.pm.named("fbr.fill").flush(node.block);
        }
    }

    /// Waits until what the next commit depends on is durable.
    fn persist_prepared(&self) {
        self.tree.pm.named("fbr.prepared").fence();
    }

    /// Replaces the word of a leaf, and unlocks the leaf.
    fn commit_leaf(&self, leaf: Node<'_, G>, bitmap: u64, guards: Vec<WriteGuard<'_>>) {
        let (pm, word) = (self.tree.pm, leaf.word().with(bitmap));
        if planted(Bug::UnlockBeforeFence) {
            drop(guards);
            pm.publish(&leaf.block.word, word.0, "fbr.leaf");
            return pm.fence();
        }
        // COMMIT fbr.leaf: the word of a leaf, and with it an insert, a removal or a relocation within the leaf. Before this store recovery sees
        // the leaf without the change, which was written to an entry that is not in use; after it, with the change.
        pm.commit(&leaf.block.word, word.0, "fbr.leaf");
    }

    /// Makes another node the root of the tree.
    fn commit_root(&self, root: Link) {
        if !planted(Bug::RootInDramOnly) {
            // COMMIT fbr.root: the root of the tree. Before this store recovery sees the tree with its old root; after it, with the new one. Both
            // lead to the same records: one is the only child of the other.
            let cell = &self.tree.root_block().root;
            self.tree.pm.commit(cell, root.offset.get(), "fbr.root");
        }
        self.tree.root.store(root.to_word(), Ordering::Release);
    }

    /// Retires a block that has just become unreachable. It is claimed first, if it has not been: otherwise the end of the sweep would free it at once.
    fn retire(&self, offset: Offset) {
        if planted(Bug::FreedAtOnce) {
            return self.tree.space.free_now(offset);
        }
        self.tree.space.claim(offset);
        self.tree.space.retire(offset);
    }

    /// Counts records added, or with a negative number removed, if those from before the open have been counted.
    fn count_change(&self, change: i64) {
        // The mutex is held, so no other thread counts.
        if self.tree.locks.count.is_complete() {
            self.tree.locks.entry(0).add(change);
        }
    }
}

/// An open index.
pub(crate) struct Index<G> {
    tree: Tree<G>,
    /// Where all blocks come from.
    spaces: [Arc<Space>; 1],
}

impl<G: Geometry> Engine for Index<G> {
    type Options = FbrOptions;

    fn format(place: &Place, _: &FbrOptions) -> Result<()> {
        let core = &place.core;
        let pm = core.pm();
        let space = core.space(place.slot, NODE_BYTES as u32)?;
        let (leaf, root) = (space.alloc()?, space.alloc()?);
        let nodes = Nodes::<G>::new(core.base());
        let node = nodes.at(leaf);
        node.fill(pm, Word::new(0, 0).0, 0, &[], Chain::default());
        pm.flush(node.block);
        nodes
            .part::<RootBlock>(root)
            .fill(pm, leaf, leaf, core.generation());
        // Needs no flush: it lies in the line of the word that commits the entry.
        pm.store(&core.entry(place.slot).roots[0], root.get());
        Ok(())
    }

    fn open(place: &Place, options: FbrOptions, _: u32) -> Result<Self> {
        let tree = Tree::open(place, options)?;
        let spaces = [Arc::clone(&tree.space)];
        Ok(Self { tree, spaces })
    }

    fn spaces(&self) -> &[Arc<Space>] {
        &self.spaces
    }

    fn locks(&self) -> &RecordLocks {
        &self.tree.locks
    }

    fn sweeps_at_once(&self) -> bool {
        self.tree.root().level == 0
    }

    fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        self.tree.sweep(go_on)
    }

    fn check(&self, report: &mut Report) -> Result<()> {
        self.tree.check(report)
    }

    fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        self.tree.facts(records)
    }

    fn dram_bytes(&self) -> u64 {
        self.tree.locks.bytes()
    }

    fn compact(&self) -> Result<()> {
        self.tree.compact()
    }

    fn before_close(&self) -> Result<()> {
        self.tree.settle()
    }
}

impl<G: Geometry> Spatial<G> for Index<G> {
    fn insert(&self, shape: &G, payload: u64) -> Result<()> {
        self.tree.write().insert(shape, payload)
    }

    fn remove(&self, shape: &G, payload: u64) -> Result<bool> {
        self.tree.write().remove(shape, payload)
    }

    fn relocate(&self, payload: u64, from: &G, to: &G) -> Result<bool> {
        self.tree.relocate(payload, from, to)
    }

    fn search(&self, windows: &[Rect], found: &mut Vec<(G, u64)>) -> Result<()> {
        self.tree.search(windows, found)
    }

    fn nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
        found: &mut Vec<Neighbour<G>>,
    ) -> Result<()> {
        self.tree.nearest(metric, request, found)
    }

    fn bounds(&self) -> Result<Option<Rect>> {
        self.tree.bounds()
    }

    fn bulk_load(&self, records: &mut [(G, u64)], fill: f64) -> Result<()> {
        self.tree.write().bulk_load(records, fill)
    }

    fn leaves(&self) -> Result<Vec<(Rect, usize)>> {
        self.tree.leaf_boxes()
    }
}

crate::pmem::planted::bugs! { "fbr":
    /// An insert sets the bit of the entry before the entry is durable, as the release does.
    BitBeforeEntry,
    /// A split takes the records out of the old leaf's place before the new ones are linked, as the release does: without the log.
    SiblingAfterBitmap,
    /// A new root is noted in DRAM only, as in the release.
    RootInDramOnly,
    /// A node that has left the tree is freed at once, and not when no reader can hold it any more.
    FreedAtOnce,
    /// The boxes above a leaf are enlarged after the record has been committed.
    EnlargedTooLate,
    /// A relocation between leaves is two commits.
    RelocateInTwoCommits,
    /// A relocation between leaves is not announced to searches.
    RelocationNotAnnounced,
    /// Recovery does not do what the log says.
    LogIgnored,
    /// The log is cleared before its stores are durable.
    LogClearedEarly,
    /// A leaf is unlocked before its change is durable.
    UnlockBeforeFence,
    /// The sweep does not mark the root block of the index.
    SweepForgetsRoot,
    /// With flush=leaves, inner nodes are believed after a crash.
    InnerNodesBelieved,
}
