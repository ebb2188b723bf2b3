//! The LB+-Tree (Liu, Chen and Wang: "LB+-Trees: Optimizing Persistent Index Performance on 3DXPoint Memory", PVLDB 13(7),
//! 2020), without the hardware transactions that it leaned on.
//!
//! # The structure
//!
//! Records live in *leaves* of 256 bytes (or two to four times that) in the pool, unsorted, found by one-byte
//! *fingerprints*. Leaves form a chain in key order. Above them are *inner nodes*, in DRAM. See [`layout`](self::layout)
//! and [`inner`](self::inner) for drawings.
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
//! Readers write nothing shared. They go down by optimistic lock coupling (`search`), read a leaf, and check that the
//! leaf's version is what it was; otherwise they begin again. Versions live in DRAM, 8192 of them, a leaf's chosen by a
//! hash of its offset: a version in the leaf would cost a slot, or a second dirty line per write.
//!
//! A lookup costs, on top of what stays in the second-level cache, one miss in a bottom inner node and one in the leaf, whose
//! lines are all asked for at once.
//!
//! # What recovery does
//!
//! Nothing, at first: see `recover` for signposts, healing on demand and the sweep in the background.

mod arena;
mod batch;
mod bulk;
mod check;
mod compact;
mod inner;
mod insert;
mod layout;
mod leaf;
mod recover;
mod scan;
mod search;
mod smo;

pub(crate) use scan::Cursor;

use crate::index::Change;
use crate::index::simd::{Kernel, Simd, SimdLevel, dispatch};
use crate::index::tally::{self, RecordLocks, Tally};
use crate::map::MapStat;
use crate::pmem::Pm;
use crate::pool::{PoolCore, Space};
use crate::{Error, Result};
use arena::Arena;
use inner::{Child, Inner};
use layout::{BLOCK_BYTES, LEVELS, MAX_BLOCKS, RootBlock};
use leaf::{Leaves, Offset};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Locks of a directory: it is small and rarely written.
const DIRECTORY_LOCKS: usize = if tally::LOCKS < 512 {
    8
} else {
    tally::LOCKS / 64
};

/// A chain of leaves and the inner nodes above it: the records, or a directory of signposts into the level below.
struct Tree {
    core: Arc<PoolCore>,
    space: Arc<Space>,
    pm: Pm,
    leaves: Leaves,
    simd: SimdLevel,
    locks: RecordLocks,
    arena: Arena,
    /// The root never moves: growing and shrinking change what is in it.
    root: NonNull<Inner>,
    /// The map's place in the catalog.
    slot: usize,
    /// 0 for the records, 1 for the directory of their signposts, and so on.
    level: usize,
    /// Held while a gap is being indexed.
    healing: Mutex<()>,
    /// Operations that wait for a gap to be indexed: the background gives way to them.
    urgent: AtomicU32,
    directory: OnceLock<Box<Tree>>,
    /// Held while the directory is being created.
    creating: Mutex<()>,
    /// That of the records is held while chains are compacted, or replaced by a bulk load.
    reorganizing: Mutex<()>,
    /// Counts records; directories are not counted.
    tally: Option<Tally>,
    splits: AtomicU64,
}

// SAFETY: the only field that is not `Send` and `Sync` by itself is `root`, which points into the arena that the tree keeps
// alive, to a node that consists of atomics.
unsafe impl Send for Tree {}
// SAFETY: as above.
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
                tally::LOCKS
            } else {
                DIRECTORY_LOCKS
            }),
            core: Arc::clone(core),
            space: Arc::clone(space),
            arena,
            root,
            slot,
            level,
            healing: Mutex::new(()),
            urgent: AtomicU32::new(0),
            directory: OnceLock::new(),
            creating: Mutex::new(()),
            reorganizing: Mutex::new(()),
            tally: (level == 0).then(Tally::default),
            splits: AtomicU64::new(0),
        }
    }

    /// A tree over the chain that begins at `head`: a leaf with nothing to its right, or a gap that is not indexed yet.
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
        self.directory.get().map(Box::as_ref)
    }

    fn leaf_bytes(&self) -> u64 {
        (self.leaves.blocks() * BLOCK_BYTES) as u64
    }

    #[inline(always)]
    fn find_child(&self, node: &Inner, key: u64) -> usize {
        dispatch(self.simd, FindChild { node, key })
    }

    fn root_block(&self) -> Result<&RootBlock> {
        root_block(&self.core, &self.space, self.slot)
    }

    #[inline(always)]
    fn count(&self, leaf: Offset, key: u64, change: i64) {
        if let Some(tally) = &self.tally {
            tally.change(self.locks.entry(leaf), key, change);
        }
    }

    fn split_happened(&self) {
        self.splits.fetch_add(1, Ordering::Relaxed);
    }
}

struct FindChild<'a> {
    node: &'a Inner,
    key: u64,
}

impl Kernel for FindChild<'_> {
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        self.node.find::<S>(self.key)
    }
}

/// The root block of the catalog entry at `slot`.
fn root_block<'a>(core: &'a PoolCore, space: &Space, slot: usize) -> Result<&'a RootBlock> {
    root_block_at(core, space, core.entry(slot).roots[0].load_acquire())
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
    Ok(unsafe { &*core.base().add(offset as usize).cast_const().cast() })
}

/// What the foreground and the background thread share.
struct Shared {
    tree: Tree,
    name: String,
    stop: AtomicBool,
    warm: AtomicBool,
    /// Held by whoever warms up.
    warming: Mutex<()>,
}

/// One open map.
pub(crate) struct LbTree {
    shared: Arc<Shared>,
    background: Option<std::thread::JoinHandle<()>>,
}

impl LbTree {
    /// Lays out an empty map for the catalog entry at `slot`, which is not committed yet.
    pub(crate) fn format(core: &Arc<PoolCore>, slot: usize) -> Result<()> {
        let leaf_bytes = leaf_bytes_of(core, slot)?;
        let space = core.space(slot, leaf_bytes)?;
        let leaves = Leaves::new(core.base(), leaf_bytes);
        let (head, root) = (space.alloc()?, space.alloc()?);
        leaves.at(head).fill(core.pm(), &[], 0);
        root_block_at(core, &space, root)?.fill(core.pm(), [head, 0, 0, 0]);
        // Needs no flush: it lies in the line of the word that commits the entry.
        core.pm().store(&core.entry(slot).roots[0], root);
        Ok(())
    }

    /// Opens the map of the catalog entry at `slot`. O(1).
    pub(crate) fn open(core: Arc<PoolCore>, slot: usize) -> Result<Arc<Self>> {
        let leaf_bytes = leaf_bytes_of(&core, slot)?;
        let space = core.space(slot, leaf_bytes)?;
        let heads: Vec<Offset> = root_block(&core, &space, slot)?
            .heads
            .iter()
            .map(|head| head.load_acquire())
            .collect();
        space.claim(core.entry(slot).roots[0].load());
        let mut above = None;
        for level in (0..LEVELS).rev().filter(|&level| heads[level] != 0) {
            let tree = Tree::new(&core, &space, leaf_bytes, slot, level);
            let tree = tree.over(Child::gap(heads[level]))?;
            if let Some(directory) = above.take() {
                let _ = tree.directory.set(Box::new(directory));
            }
            above = Some(tree);
        }
        let Some(tree) = above else {
            return Err(Error::Damaged(format!(
                "map {:?} has no leaves",
                core.name_of(slot)
            )));
        };
        if let (Some(tally), Some(records)) = (&tree.tally, tally::recorded(&core, slot)) {
            tally.begin_with(&tree.locks, records);
        }
        let shared = Arc::new(Shared {
            tree,
            name: core.name_of(slot),
            stop: AtomicBool::new(false),
            warm: AtomicBool::new(false),
            warming: Mutex::new(()),
        });
        let background = Self::warm_up_in_background(&shared);
        Ok(Arc::new(Self { shared, background }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.shared.name
    }

    #[inline]
    pub(crate) fn get(&self, key: u64) -> Result<Option<u64>> {
        self.shared.tree.get(key)
    }

    pub(crate) fn get_batch(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<()> {
        self.shared.tree.get_batch(keys, values)
    }

    #[inline]
    pub(crate) fn apply(
        &self,
        key: u64,
        mut change: impl FnMut(Option<u64>) -> Change,
    ) -> Result<Option<u64>, Box<Error>> {
        match self.shared.tree.apply(key, &mut change) {
            Err(error) => self.apply_again(key, &mut change, *error),
            result => result,
        }
    }

    /// Once more after an error, with all the space that there is, if it was for want of space.
    #[cold]
    fn apply_again(
        &self,
        key: u64,
        change: &mut dyn FnMut(Option<u64>) -> Change,
        error: Error,
    ) -> Result<Option<u64>, Box<Error>> {
        let Error::NoSpace(reason) = error else {
            return Err(error.into());
        };
        self.find_space(reason)?;
        self.shared.tree.apply(key, change)
    }

    /// Soon after an open the free blocks of old extents are not known yet. Before a write fails for want of space they
    /// have to be.
    #[cold]
    fn find_space(&self, reason: String) -> Result<()> {
        if !self.shared.tree.space.needs_sweep() {
            return Err(Error::NoSpace(reason));
        }
        self.shared.warm_up(&|| true)
    }

    pub(crate) fn insert_batch(&self, records: &[(u64, u64)]) -> Result<()> {
        let mut rest = records;
        match self.shared.tree.insert_batch(&mut rest) {
            Err(Error::NoSpace(reason)) => {
                self.find_space(reason)?;
                self.shared.tree.insert_batch(&mut rest)
            }
            result => result,
        }
    }

    pub(crate) fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        // The sweep must not meet chains that come and go.
        self.shared.warm_up(&|| true)?;
        self.shared.tree.bulk_load(records, fill)
    }

    pub(crate) fn len(&self) -> Result<u64> {
        let tree = &self.shared.tree;
        let Some(tally) = &tree.tally else {
            return Ok(0);
        };
        if !tally.is_complete() {
            self.shared.warm_up(&|| true)?;
        }
        Ok(tally.total(&tree.locks))
    }

    pub(crate) fn warm_up(&self) -> Result<()> {
        self.shared.warm_up(&|| true)
    }

    pub(crate) fn compact(&self) -> Result<()> {
        self.shared.warm_up(&|| true)?;
        self.shared.tree.compact()
    }

    pub(crate) fn check(&self) -> Result<Vec<String>> {
        self.shared.check()
    }

    pub(crate) fn stat(&self) -> Result<MapStat> {
        self.shared.stat()
    }
}

impl Drop for LbTree {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(background) = self.background.take() {
            let _ = background.join();
        }
        let tree = &self.shared.tree;
        if let Some(tally) = &tree.tally {
            tally::record(&tree.core, tree.slot, tally, &tree.locks);
        }
        // A shrink may hold it for a moment longer, and the map may be opened again by then.
        tree.space.close();
        tree.core.map_was_closed(tree.slot);
    }
}

fn leaf_bytes_of(core: &PoolCore, slot: usize) -> Result<u32> {
    let leaf_bytes = (core.entry(slot).shape.load() >> 32) as u32;
    let blocks = leaf_bytes as usize / BLOCK_BYTES;
    if (1..=MAX_BLOCKS).contains(&blocks) && (leaf_bytes as usize).is_multiple_of(BLOCK_BYTES) {
        Ok(leaf_bytes)
    } else {
        Err(Error::BadOption(format!(
            "a leaf has 256, 512, 768 or 1024 bytes, not {leaf_bytes}"
        )))
    }
}
