//! A spatial index: the LB+-Tree with rectangles.
//!
//! # The structure
//!
//! Records, a geometry and a payload each, live in *leaves* of 1 KiB in the pool, ordered from leaf to leaf by the place of their centre on
//! a Hilbert curve, not sorted within a leaf. The leaves form a chain. The *inner nodes* above them lie in DRAM: keys, and for each child a box that
//! contains everything below it. So the leaves are those of a B+-tree, with its commits of 8 bytes and its splits without a log, and a search by
//! window is that of an R-tree (Kamel and Faloutsos: "Hilbert R-tree", VLDB 1994). See [`layout`](self::layout) and
//! [`inner`](self::inner) for drawings.
//!
//! Why not an R-tree that chooses subtrees by area: its inner nodes would have to be durable, or be rebuilt before the first answer. The order of
//! the curve lets a signpost say where a part of the chain begins, and an interval of codes say which part of the plane it covers.
//!
//! # What commits
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | insert, free slot beside a commit word | 1, 1 | the bitmap in line 0, or in line 1 |
//! | insert, elsewhere ("entry moving"), with four points moved along | 3, 2 | word0 |
//! | remove | 1, 1 | word0, or word1 |
//! | relocate within a leaf | 1 to 3, 1 or 2 | word0, or word1 |
//! | relocate between leaves | 6, 4 | `state` of an intent; see `insert` |
//! | split | a leaf + 2 or 3, 2 | word0 of the left leaf, whose `alt` bit switches the sibling |
//! | merge | up to a leaf, 2 | the same |
//! | move (compaction) | a leaf + 1, 2 | the sibling of the left neighbour, or the head in the root block |
//! | choice of the grid | 2, 2 | `grid` in the root block |
//! | another grid, learned from more records | up to 64 leaves + 2, 2 | the catalog entry's root; see `learn` |
//! | bulk load | streamed, 2 | the catalog entry's root |
//!
//! # What readers see
//!
//! Readers write no shared memory. A search by a small window asks for all nodes of a level, then for all leaves, before it reads the first, and
//! validates all of them (`together`). A search by a larger window visits leaves in the order of keys, remembers only how far it has come, and reads each leaf
//! whole under its version: splits and merges do not disturb it (`scan`). A search for the nearest records reads nodes in the order of
//! distances, and begins again if the structure has changed meanwhile (`nearest`).
//!
//! # What recovery does
//!
//! Opening finishes at most two relocations and rebuilds nothing. Inner nodes are rebuilt on first touch and by the sweep: see `recover`.

mod batch;
mod boxes;
mod bulk;
mod check;
mod compact;
#[cfg(all(test, not(loom)))]
mod damage;
mod grid;
mod inner;
mod insert;
mod layout;
mod leaf;
mod learn;
mod merges;
mod nearest;
mod options;
mod recover;
mod scan;
mod search;
mod smo;
mod together;
mod way;

#[cfg(all(test, loom))]
mod model;

#[cfg(feature = "trace")]
pub(crate) mod testing;

pub use options::HilbertOptions;

use crate::concurrency::records::{self, RecordLocks};
use crate::engines::arena::Arena;
use crate::engines::inner_nodes::InnerNode;
use crate::engines::lbtree::directory::{DIRECTORIES, Directory};
use crate::engines::rect::Changes;
use crate::engines::waiting::WaitingOperations;
use crate::engines::{Engine, Fact, Nearest, Neighbour, Place, Report, Spatial};
use crate::kernels::SimdLevel;
use crate::pmem::Pm;
use crate::pool::{Offset, PoolCore, Space};
use crate::spatial::{Geometry, MAX_AXES, Metric, Rect};
use crate::{Error, Result};
use grid::Reach;
use inner::{Bounds, Child, Entry, Inner};
use layout::{INTENTS, LEAF_BYTES, RootBlock, RootWords};
use leaf::Leaves;
use learn::Grids;
use merges::Merges;
use search::Locked;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

/// The chain of leaves and the inner nodes above it.
struct Tree<G> {
    place: Place,
    core: Arc<PoolCore>,
    space: Arc<Space>,
    pm: Pm,
    leaves: Leaves<G>,
    simd: SimdLevel,
    locks: RecordLocks,
    arena: Arena<Inner>,
    /// The root never moves: growing and shrinking change what is in it.
    root: NonNull<Inner>,
    /// From coordinates to codes; not chosen before the first leaf splits, unless the options say.
    grids: Grids,
    /// Whether the options say what the grid is. It is never replaced then.
    extent_is_declared: bool,
    /// How many leaves there were when the extent was last looked at.
    learned_at: AtomicU32,
    /// How far a record reaches from its centre.
    reach: Reach,
    /// Signposts into the chain.
    directory: Directory,
    /// Held while a part of an unindexed range is being indexed.
    indexing: Mutex<()>,
    /// Operations that need a part of an unindexed range.
    waiting_operations: WaitingOperations,
    /// Held while the chain is compacted, or replaced by a bulk load.
    reorganizing: Mutex<()>,
    /// Relocations between leaves.
    relocations: Changes,
    /// Changes of the inner nodes and of the chain.
    structure: Changes,
    /// Where leaves have been merged lately.
    merges: Merges,
    /// Which intents of the root block are in use.
    intents: Mutex<[bool; INTENTS]>,
    /// How far the records have been counted since the open: children of bottom nodes say which leaves have been.
    splits: AtomicU64,
    /// Splits of leaves all of whose records have one key.
    splits_of_equals: AtomicU32,
}

// SAFETY: the only field that is not `Send` and `Sync` by itself is `root`, which points into the arena that the tree keeps
// alive, to a node that consists of atomics.
unsafe impl<G: Geometry> Send for Tree<G> {}
// SAFETY: as for `Send`.
unsafe impl<G: Geometry> Sync for Tree<G> {}

impl<G: Geometry> Tree<G> {
    fn open(place: &Place, extent_is_declared: bool) -> Result<Self> {
        let core = &place.core;
        let space = core.space(place.slot, LEAF_BYTES as u32)?;
        let root_block = root_block(core, &space, place.slot)?;
        let head = Offset::from_word(root_block.head.load_acquire());
        let arena = Arena::new();
        let root = NonNull::from(arena.alloc(1).0);
        let tree = Self {
            pm: core.pm(),
            leaves: Leaves::new(core.base()),
            simd: SimdLevel::best(),
            locks: RecordLocks::new(records::LOCKS),
            grids: grid::read::<G>(root_block)?,
            extent_is_declared,
            learned_at: AtomicU32::new(0),
            reach: Reach::read(root_block)?,
            directory: Directory::open(place, &space, LEAF_BYTES as u32)?,
            place: place.clone(),
            core: Arc::clone(core),
            space,
            arena,
            root,
            indexing: Mutex::new(()),
            waiting_operations: WaitingOperations::default(),
            reorganizing: Mutex::new(()),
            relocations: Changes::default(),
            structure: Changes::default(),
            merges: Merges::default(),
            intents: Mutex::default(),
            splits: AtomicU64::new(0),
            splits_of_equals: AtomicU32::new(0),
        };
        // A first split chooses the grid before anything else. All keys of a chain without one would be the same.
        if !tree.leaf_at(head)?.next().is_none() && tree.grids.get().is_none() {
            return Err(Error::Damaged(
                "an index of several leaves has no grid".into(),
            ));
        }
        tree.space.claim(tree.root_offset());
        tree.cover(Child::unindexed(head), &Bounds::EVERYTHING);
        tree.finish_relocations()?;
        Ok(tree)
    }

    /// Makes the inner nodes those of one child, which covers everything. No other thread uses the tree.
    fn cover(&self, head: Child, bounds: &Bounds) {
        let root_guard = self.root().lock().lock();
        let (bottom, bottom_guard) = self.arena.alloc(0);
        bottom.refill(&[Entry::leaf(0, head, *bounds)]);
        self.root().refill(&[Entry::node(0, bottom, *bounds)]);
        drop((bottom_guard, root_guard));
    }

    #[inline(always)]
    fn root(&self) -> &Inner {
        // SAFETY: the node comes from the arena, which the tree keeps alive and which never frees it.
        unsafe { self.root.as_ref() }
    }

    fn root_offset(&self) -> Offset {
        Offset::from_word(self.core.entry(self.place.slot).roots[0].load_acquire())
    }

    fn root_block(&self) -> Result<&RootBlock> {
        root_block(&self.core, &self.space, self.place.slot)
    }

    /// Counts records added to a leaf that is locked, or removed from it.
    #[inline(always)]
    fn count_change(&self, locked: &Locked<'_, G>, change: i64) {
        self.count_entry(locked.leaf.offset, locked.spot.child.is_counted(), change);
    }

    /// [`count_change`](Self::count_change) for a leaf of which is known whether it has been counted.
    #[inline(always)]
    fn count_entry(&self, leaf: Offset, is_counted: bool, change: i64) {
        if is_counted || self.locks.count.is_complete() {
            self.locks.entry(leaf.get()).add(change);
        }
    }
}

/// The root block of the catalog entry at `slot`.
fn root_block<'a>(core: &'a PoolCore, space: &Space, slot: usize) -> Result<&'a RootBlock> {
    let root = Offset::from_word(core.entry(slot).roots[0].load_acquire());
    root_block_at(core, space, root)
}

/// The root block at `offset`, if that is a block of the index.
fn root_block_at<'a>(core: &'a PoolCore, space: &Space, offset: Offset) -> Result<&'a RootBlock> {
    if !space.owns(offset) {
        return Err(Error::Damaged(format!(
            "{offset:#x} is not the root of this index"
        )));
    }
    // SAFETY: `owns` says that the block lies, whole and aligned, in the mapping, which lives as long as `core`; a
    // `RootBlock` consists of atomics, for which every bit pattern is valid.
    Ok(unsafe { &*core.base().add(offset.get() as usize).cast_const().cast() })
}

/// An open spatial index.
pub(crate) struct Index<G> {
    tree: Tree<G>,
    /// Where all blocks come from.
    spaces: [Arc<Space>; 1],
}

impl<G: Geometry> Engine for Index<G> {
    type Options = HilbertOptions;

    fn format(place: &Place, options: &HilbertOptions) -> Result<()> {
        let core = &place.core;
        let pm = core.pm();
        let space = core.space(place.slot, LEAF_BYTES as u32)?;
        let (head, root) = (space.alloc()?, space.alloc()?);
        Leaves::<G>::new(core.base())
            .at(head)
            .fill(pm, &[], Offset::NONE);
        let words = RootWords {
            head,
            extent: options.corners(),
            reach: [0.0; MAX_AXES],
            directories: [Offset::NONE; DIRECTORIES],
        };
        root_block_at(core, &space, root)?.fill(pm, &words);
        // Needs no flush: it lies in the line of the word that commits the entry.
        pm.store(&core.entry(place.slot).roots[0], root.get());
        Ok(())
    }

    fn open(place: &Place, options: HilbertOptions, _: u32) -> Result<Self> {
        let tree = Tree::open(place, options.corners().is_some())?;
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
        self.tree.has_one_leaf()
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
        self.tree.dram_bytes()
    }

    fn compact(&self) -> Result<()> {
        self.tree.compact()
    }
}

impl<G: Geometry> Spatial<G> for Index<G> {
    fn insert(&self, shape: &G, payload: u64) -> Result<()> {
        self.tree.insert(shape, payload)
    }

    fn insert_batch(&self, records: &mut Vec<(G, u64)>) -> Result<()> {
        self.tree.insert_batch(records)
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

    fn search_many(&self, searches: &[&[Rect]], found: &mut [Vec<(G, u64)>]) -> Result<()> {
        self.tree.search_many(searches, found)
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

crate::pmem::planted::bugs! { "hilbert":
    /// Entry moving clears the records' old slots first, and sets the new ones with a second store.
    MoveInTwoSteps,
    /// A merge frees the right leaf before the left one has taken over.
    FreeTooEarly,
    /// A merge forgets the signpost to the leaf that goes.
    SignpostKept,
    /// A merge locks the left leaf only.
    MergeLocksOneLeaf,
    /// A removal unlocks the leaf before its fence, so that others see what may still be undone.
    UnlockBeforeFence,
    /// A search does not look at the version of a leaf afterwards.
    ReadWithoutVersion,
    /// A search that reads nodes together does not look at the versions of bottom nodes afterwards.
    NodesNotValidated,
    /// A search goes on after the leaf that it has visited last, and the next one, have been merged.
    MergesIgnored,
    /// A writer does not validate the boxes above the leaf once it has locked the leaf.
    BoxesNotValidated,
    /// The sweep does not mark the root block of the index.
    SweepForgetsRoot,
    /// Indexing on demand unlinks an empty leaf by writing the sibling that does not count.
    RelinkWrongSibling,
    /// Recovery does not finish relocations.
    IntentIgnored,
    /// A relocation clears its intent before both leaves have changed for good.
    IntentClearedEarly,
    /// A larger box is inserted before the reach that says so is durable.
    ReachTooLate,
    /// The records are written in the order of another grid, and keys are computed in the old one.
    GridKept,
}
