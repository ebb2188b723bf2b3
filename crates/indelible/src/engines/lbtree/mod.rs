//! The LB+-Tree (Liu, Chen and Wang: "LB+-Trees: Optimizing Persistent Index Performance on 3DXPoint Memory", PVLDB 13(7),
//! 2020), without the hardware transactions that it leaned on.
//!
//! # The structure
//!
//! Records live in *leaves* of 256, 512, 768 or 1024 bytes in the pool. They are not sorted within a leaf; a lookup finds
//! them by one-byte *fingerprints* in the header of the leaf. The leaves form a chain in key order. The *inner nodes* above
//! the leaves lie in DRAM. See [`layout`](self::layout) and [`inner`](self::inner) for drawings.
//!
//! # What commits
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | insert, free slot beside the header | 1, 1 | bitmap word of the header |
//! | insert, elsewhere ("entry moving") | 2, 2 | the same |
//! | update | 1, 1 | the value |
//! | remove | 1, 1 | bitmap word |
//! | split | a leaf + 2, 2 | bitmap word of the left leaf, whose `alt` bit switches the sibling |
//! | merge | up to a leaf, 2 | the same |
//! | move (compaction) | a leaf + 1, 2 | the sibling of the left neighbour, or the head in the root block |
//! | bulk load | streamed, 2 | the catalog entry's root, which switches all chains |
//!
//! # What readers see
//!
//! Readers write no shared memory. They descend by optimistic lock coupling (`search`), read a leaf, and validate the
//! version of the leaf; if the version has changed, they begin again. There are 8192 version locks, in DRAM; a hash of the
//! offset of a leaf chooses its lock. A version inside the leaf would cost a record slot, or a second dirty line per write.
//!
//! A lookup costs one cache miss in a bottom inner node and one in the leaf, all of whose lines are prefetched together. The
//! upper inner nodes and the first lines of the bottom ones stay in the second-level cache.
//!
//! # What recovery does
//!
//! Opening rebuilds nothing. Inner nodes are rebuilt on first touch and by the sweep in the background: see `recover` for
//! signposts, indexing on demand and the sweep.

mod batch;
mod bulk;
mod check;
mod compact;
#[cfg(all(test, not(loom)))]
pub(super) mod damage;
pub(crate) mod directory;
mod inner;
mod insert;
mod layout;
mod leaf;
mod options;
mod recover;
mod scan;
mod search;
mod smo;
#[cfg(feature = "trace")]
pub(crate) mod testing;

pub use options::LbTreeOptions;

use crate::concurrency::records::{self, RecordLocks};
use crate::engines::arena::Arena;
use crate::engines::waiting::WaitingOperations;
use crate::engines::{Decision, Engine, Fact, Lookup, Ordered, Place, Report, Unread};
use crate::kernels::SimdLevel;
use crate::pmem::Pm;
use crate::pmem::geometry::sized;
use crate::pool::{Offset, PoolCore, Space};
use crate::{Error, Result};
use directory::Directory;
use inner::{Child, Inner};
use layout::{BLOCK_BYTES, RootBlock};
use leaf::Leaves;
use scan::{Bookmark, Buffer, Portion};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Locks of a directory: it is small and rarely written.
const DIRECTORY_LOCKS: usize = sized(records::LOCKS / 64, 8);

/// A chain of leaves and the inner nodes above it: the records, or a directory of signposts into the level below.
struct Tree {
    core: Arc<PoolCore>,
    space: Arc<Space>,
    pm: Pm,
    leaves: Leaves,
    simd: SimdLevel,
    locks: RecordLocks,
    arena: Arena<Inner>,
    /// The root never moves: growing and shrinking change what is in it.
    root: NonNull<Inner>,
    /// The map's place in the catalog.
    slot: usize,
    /// 0 for the records, 1 for the directory of their signposts, and so on.
    level: usize,
    /// Held while a part of an unindexed range is being indexed.
    indexing: Mutex<()>,
    /// Operations that need a part of an unindexed range.
    waiting_operations: WaitingOperations,
    /// Signposts into the chain.
    directory: Directory,
    /// In the tree of records: held while chains are compacted, or replaced by a bulk load.
    reorganizing: Mutex<()>,
    /// In the tree of records: how far the records have been counted since the open.
    splits: AtomicU64,
}

// SAFETY: the only field that is not `Send` and `Sync` by itself is `root`, which points into the arena that the tree keeps
// alive, to a node that consists of atomics.
unsafe impl Send for Tree {}
// SAFETY: as for `Send`.
unsafe impl Sync for Tree {}

impl Tree {
    fn new(
        core: &Arc<PoolCore>,
        space: &Arc<Space>,
        leaf_bytes: u32,
        slot: usize,
        level: usize,
    ) -> Self {
        let arena = Arena::new();
        let root = NonNull::from(arena.alloc(1).0);
        Self {
            pm: core.pm(),
            leaves: Leaves::new(core.base(), leaf_bytes),
            simd: SimdLevel::best(),
            locks: RecordLocks::new(if level == 0 {
                records::LOCKS
            } else {
                DIRECTORY_LOCKS
            }),
            core: Arc::clone(core),
            space: Arc::clone(space),
            arena,
            root,
            slot,
            level,
            indexing: Mutex::new(()),
            waiting_operations: WaitingOperations::default(),
            directory: Directory::new(core, space, leaf_bytes, slot, level + 1),
            reorganizing: Mutex::new(()),
            splits: AtomicU64::new(0),
        }
    }

    /// Lays out an empty leaf in a free block, and flushes it without a fence.
    fn fill_empty_leaf(core: &PoolCore, leaf_bytes: u32, offset: Offset) {
        let leaf = Leaves::new(core.base(), leaf_bytes).at(offset);
        leaf.fill(core.pm(), &[], Offset::NONE);
    }

    /// A tree over the chain that begins at `head`: a leaf with no leaf to its right, or the begin of an unindexed range.
    fn over(self, head: Child) -> Result<Self> {
        self.leaf_at(head.offset())?;
        let root_guard = self.root().lock().lock();
        let (bottom, bottom_guard) = self.arena.alloc(0);
        bottom.refill_leaves(&[(0, head)]);
        self.root().refill_nodes(&[(0, bottom)]);
        drop((bottom_guard, root_guard));
        Ok(self)
    }

    #[inline(always)]
    fn root(&self) -> &Inner {
        // SAFETY: the node comes from the arena, which the tree keeps alive and which never frees it.
        unsafe { self.root.as_ref() }
    }

    #[inline(always)]
    fn directory(&self) -> Option<&Tree> {
        self.directory.tree()
    }

    fn leaf_bytes(&self) -> u64 {
        (self.leaves.blocks() * BLOCK_BYTES) as u64
    }

    fn root_block(&self) -> Result<&RootBlock> {
        root_block(&self.core, &self.space, self.slot)
    }

    #[inline(always)]
    fn count_change(&self, leaf: Offset, key: u64, change: i64) {
        if self.level == 0 {
            self.locks
                .count
                .change(self.locks.entry(leaf.get()), key, change);
        }
    }

    fn split_happened(&self) {
        self.splits.fetch_add(1, Ordering::Relaxed);
    }
}

/// The root block of the catalog entry at `slot`.
fn root_block<'a>(core: &'a PoolCore, space: &Space, slot: usize) -> Result<&'a RootBlock> {
    let root = Offset::from_word(core.entry(slot).roots[0].load_acquire());
    root_block_at(core, space, root)
}

/// The root block at `offset`, if that is a block of the map.
fn root_block_at<'a>(core: &'a PoolCore, space: &Space, offset: Offset) -> Result<&'a RootBlock> {
    if !space.owns(offset) {
        return Err(Error::Damaged(format!(
            "{offset:#x} is not the root of this map"
        )));
    }
    // SAFETY: `owns` says that the block lies, whole and aligned, in the mapping, which lives as long as `core`; a
    // `RootBlock` consists of atomics, for which every bit pattern is valid.
    Ok(unsafe { &*core.base().add(offset.get() as usize).cast_const().cast() })
}

/// An open LB+-Tree: the tree of records, below its directories.
pub(crate) struct Index {
    tree: Tree,
    /// Where all blocks come from.
    spaces: [Arc<Space>; 1],
}

impl Engine for Index {
    type Options = LbTreeOptions;

    fn format(place: &Place, options: &LbTreeOptions) -> Result<()> {
        let core = &place.core;
        let space = core.space(place.slot, options.bytes())?;
        let (head, root) = (space.alloc()?, space.alloc()?);
        Tree::fill_empty_leaf(core, options.bytes(), head);
        root_block_at(core, &space, root)?
            .fill(core.pm(), [head, Offset::NONE, Offset::NONE, Offset::NONE]);
        // Needs no flush: it lies in the line of the word that commits the entry.
        core.pm()
            .store(&core.entry(place.slot).roots[0], root.get());
        Ok(())
    }

    fn open(place: &Place, options: LbTreeOptions, _: u32) -> Result<Self> {
        let (core, slot) = (&place.core, place.slot);
        let space = core.space(slot, options.bytes())?;
        let heads = root_block(core, &space, slot)?.heads();
        space.claim(Offset::from_word(core.entry(slot).roots[0].load()));
        if heads[0].is_none() {
            let name = core.name_of(slot);
            return Err(Error::Damaged(format!("map {name:?} has no leaves")));
        }
        let tree = Tree::new(core, &space, options.bytes(), slot, 0);
        let tree = tree.over(Child::unindexed(heads[0]))?;
        tree.directory.open_trees(&heads)?;
        Ok(Self {
            tree,
            spaces: [space],
        })
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
        self.tree.sweep_all(go_on)
    }

    fn check(&self, report: &mut Report) -> Result<()> {
        let tree = &self.tree;
        report.reach(
            Offset::from_word(tree.core.entry(tree.slot).roots[0].load()),
            tree.leaf_bytes(),
        );
        tree.check(report)
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

impl Ordered for Index {
    type Bookmark = Option<Bookmark>;

    fn get(&self, key: u64) -> Result<Option<u64>> {
        self.tree.get(key)
    }

    #[inline(always)]
    fn try_get(&self, key: u64) -> Lookup {
        self.tree.look_up(key)
    }

    const LOOKUPS_TOGETHER: usize = batch::LANES;

    fn look_up_together(&self, keys: &[u64], values: &mut [Option<u64>]) -> u64 {
        self.tree.look_up_together(keys, values)
    }

    #[inline]
    fn apply(
        &self,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        self.tree.apply(key, decide)
    }

    const RECORDS_PER_FENCE: usize = insert::FENCE_SHARING_RECORDS;

    fn insert_sharing_fence(&self, records: &[(u64, u64)]) -> usize {
        self.tree.insert_sharing_fence(records)
    }

    fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        self.tree.bulk_load(records, fill)
    }

    #[inline]
    fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut Buffer,
        wanted: Option<usize>,
    ) -> Result<()> {
        let portion = Portion {
            records: wanted,
            leaves: usize::MAX,
        };
        self.tree.read_on::<UP>(unread, buffer, portion)
    }
}

crate::pmem::planted::bugs! { "lbtree":
    /// A split writes the new record into a slot that it frees, before it commits (so it is in the paper, algorithm 3).
    SplitOverwrites,
    /// Entry moving clears the records' old slots first, and sets the new ones with a second store.
    MoveInTwoSteps,
    /// A merge frees the right leaf before the left one has taken over.
    FreeTooEarly,
    /// A merge forgets the signpost to the leaf that goes.
    SignpostKept,
    /// A merge locks the left leaf only.
    MergeLocksOneLeaf,
    /// An update unlocks the leaf before its fence, so that others see what may still be lost.
    UnlockBeforeFence,
    /// A reader does not look at the leaf's version afterwards.
    ReadWithoutVersion,
    /// A writer does not ask whether the leaf still covers its key, once it has locked it.
    WriteWithoutVersion,
    /// The sweep does not mark the map's root block.
    SweepForgetsRoot,
    /// Indexing on demand unlinks an empty leaf by writing the sibling that does not count.
    RelinkWrongSibling,
}
