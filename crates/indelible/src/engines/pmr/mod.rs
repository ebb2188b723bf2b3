//! The PM-RTree: an R-tree in persistent memory whose operations take no locks, for comparison.
//!
//! Lavinsky and Zhang: "PM-Rtree: a highly-efficient crash-consistent R-tree for persistent memory", SSDBM 2022. As Yoshioka, Hayamizu, Goda and
//! Kitsuregawa describe it, the PM-RTree is the answer to the lock on the root of the FBR-tree (`fbr`): all changes are exchanges of words, those of
//! several words with durable descriptors (PMwCAS). How the nodes are changed is ours; the release was not available.
//!
//! # The structure
//!
//! An R-tree (Guttman, SIGMOD 1984) of the nodes of the FBR-tree: blocks of 1 KiB in the pool, each a word with a bit for each entry in use, and
//! entries in no order. See [`layout`](self::layout).
//!
//! # Invariants
//!
//! - **I1** An entry does not change while it is in use, and no slot is used twice while a thread could know the node (`slots`). So the word of a node,
//!   read once, is the whole node at that moment; and no word of a node has the same value twice.
//! - **I2** A node that is not in the tree any more is frozen: its word does not change. A node is frozen in the same step in which it leaves the tree.
//! - **I3** The box of an entry contains all entries of the child (`insert`).
//! - **I4** What an exchange depends on is durable before it, and nobody acts upon a word before the word is durable (`multiword`).
//!
//! # What commits
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | insert | 1 or 2 for the record, as many and 1 for each box that grows, 1; 2, and 1 for each box | the word of the leaf |
//! | remove | 1, 1 | the word of the leaf |
//! | relocate within a leaf | as an insert | the word of the leaf |
//! | relocate between leaves | as an insert, and 9; 8 | `status` of a descriptor |
//! | a node is copied or split; two are merged | the new nodes and their entries, 7 or 9; 6 or 8 | `status` of a descriptor |
//! | an empty node leaves the tree; the root changes | 7, 6 | `status` of a descriptor |
//! | bulk load | all nodes, 7; 6 | `status` of a descriptor |
//!
//! A box grows by another entry that takes the place of the old one. Slots are not used again, so a node that has none left is copied, or split
//! if it is more than three quarters full.
//!
//! # Threads
//!
//! No operation waits for another thread, apart from the allocator's cold path and from pools with a log: whoever meets a change that is not finished
//! finishes it. Searches take no lock and write nothing, but for that. A thread that stands still keeps blocks from being reused, and with each
//! change of several words that it is in, a descriptor; there are 48 of these, and who finds all of them taken waits. `quiet` says what searches and relocations do for each other.

mod build;
mod check;
mod compact;
mod insert;
mod layout;
mod multiword;
mod nearest;
mod node;
mod options;
mod quiet;
mod recover;
mod relocate;
mod remove;
mod search;
mod slots;
mod smo;

#[cfg(feature = "trace")]
pub(crate) mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
pub use options::PmRtreeOptions;

use crate::Result;
use crate::concurrency::records::RecordLocks;
use crate::engines::rect::{Chain, Link, Nodes, Sweep};
use crate::engines::{Engine, Fact, Nearest, Neighbour, Place, Report, Spatial};
use crate::pmem::Pm;
use crate::pool::{PoolCore, Space};
use crate::spatial::{Geometry, Metric, Rect};
use layout::{
    DESCRIPTOR_BLOCKS, FIRST_DESCRIPTORS, NO_RELOCATIONS, NODE_BYTES, PER_BLOCK, RELOCATIONS, ROOT,
    State, Status, Word,
};
use multiword::Words;
use quiet::Announced;
use slots::Slots;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};

/// Counters that threads add to, each its own as far as there are enough.
const COUNTERS: usize = 64;

/// The nodes in the pool, and what threads share in DRAM.
struct Tree<G> {
    core: Arc<PoolCore>,
    space: Arc<Space>,
    pm: Pm,
    nodes: Nodes<G>,
    words: Words<G>,
    slots: Slots,
    /// Counters of records.
    locks: RecordLocks,
    /// Whether the number of records was not known at the open, and the sweep has counted them: see `slots`.
    counts_by_slot: AtomicBool,
    /// The search that waits for a moment without relocations, if there is one.
    announced: AtomicPtr<Announced<G>>,
    sweep: Sweep,
    splits: AtomicU64,
    copies: AtomicU64,
}

impl<G: Geometry> Tree<G> {
    fn open(place: &Place) -> Result<Self> {
        let core = &place.core;
        let space = core.space(place.slot, NODE_BYTES as u32)?;
        let tree = Self {
            pm: core.pm(),
            nodes: Nodes::new(core.base()),
            words: Words::new(place, &space),
            slots: Slots::new(),
            locks: RecordLocks::new(COUNTERS),
            counts_by_slot: AtomicBool::new(false),
            announced: AtomicPtr::new(null_mut()),
            core: Arc::clone(core),
            space,
            sweep: Sweep::default(),
            splits: AtomicU64::new(0),
            copies: AtomicU64::new(0),
        };
        tree.recover()?;
        Ok(tree)
    }
}

/// An open index.
pub(crate) struct Index<G> {
    tree: Tree<G>,
    /// Where all blocks come from.
    spaces: [Arc<Space>; 1],
}

impl<G: Geometry> Engine for Index<G> {
    type Options = PmRtreeOptions;

    /// Whoever meets a mark finishes the change, see [`multiword`].
    const IS_HELPED: bool = true;

    fn format(place: &Place, _: &PmRtreeOptions) -> Result<()> {
        let core = &place.core;
        let pm = core.pm();
        let space = core.space(place.slot, NODE_BYTES as u32)?;
        let nodes = Nodes::<G>::new(core.base());
        let leaf = space.alloc()?;
        let node = nodes.at(leaf);
        node.fill(pm, Word::new(0, 0).0, 0, &[], Chain::default());
        pm.flush(node.block);
        let roots = &core.entry(place.slot).roots;
        let link = Link {
            offset: leaf,
            level: 0,
        };
        pm.store(&roots[ROOT], link.to_word());
        pm.store(&roots[RELOCATIONS], NO_RELOCATIONS);
        let unused = Status {
            state: State::Unused,
            number: 0,
        };
        for root in &roots[FIRST_DESCRIPTORS..FIRST_DESCRIPTORS + DESCRIPTOR_BLOCKS] {
            let block = space.alloc()?;
            Words::fill_descriptors(pm, &nodes, block, [unused.to_word(); PER_BLOCK]);
            pm.store(root, block.get());
        }
        // Not all of them lie in the line of the word that commits the entry.
        pm.flush(roots);
        Ok(())
    }

    fn open(place: &Place, _: PmRtreeOptions, _: u32) -> Result<Self> {
        let tree = Tree::open(place)?;
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
        self.tree.root().is_ok_and(|root| root.level == 0)
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
        self.tree.locks.bytes() + self.tree.words.bytes() + self.tree.slots.bytes()
    }

    fn compact(&self) -> Result<()> {
        self.tree.compact()
    }
}

impl<G: Geometry> Spatial<G> for Index<G> {
    fn insert(&self, shape: &G, payload: u64) -> Result<()> {
        self.tree.insert(shape, payload)
    }

    fn remove(&self, shape: &G, payload: u64) -> Result<bool> {
        self.tree.remove(shape, payload)
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
        self.tree.bulk_load(records, fill)
    }

    fn leaves(&self) -> Result<Vec<(Rect, usize)>> {
        self.tree.leaf_boxes()
    }
}

crate::pmem::planted::bugs! { "pmr":
    /// A mark is set before the descriptor that it refers to is durable.
    MarkBeforeDescriptor,
    /// A change of several words is applied before the decision is durable.
    AppliedBeforeDecided,
    /// A descriptor is used for another change, under the same number, while threads help with the one before.
    DescriptorReusedEarly,
    /// Recovery does not look at descriptors.
    ChangesForgotten,
    /// An insert sets the bit of the entry before the entry is durable.
    BitBeforeEntry,
    /// A node is replaced by two changes: it is frozen, and then the parent leads to others.
    SplitInTwoCommits,
    /// The boxes above a leaf are enlarged after the record has been committed.
    EnlargedTooLate,
    /// A relocation between leaves is two commits.
    RelocateInTwoCommits,
    /// A relocation between leaves does not count itself, so that searches do not know of it.
    RelocationNotCounted,
    /// A slot is used again at once when its entry has gone out of use.
    SlotReusedAtOnce,
    /// A node that has left the tree is freed at once, and not when no reader can hold it any more.
    FreedAtOnce,
    /// The sweep does not mark the first block of descriptors.
    SweepForgetsDescriptors,
}
