//! APEX (Lu, Ding, Lo, Minhas and Wang: "APEX: A High-Performance Learned Index on Persistent Memory", PVLDB 15(3),
//! 2021).
//!
//! # The structure
//!
//! The index is a tree. An *inner node* divides its range of keys into 2^k equal parts, so finding a child takes a
//! subtraction and a shift. At the ends of the tree are *data nodes* of up to 16,000 records each. The *model* of a
//! data node, a line, predicts for a key a slot of the *primary array*: the *predicted slot*. The record of the key
//! lies in one of 16 slots there, or, if these were taken, in the *stash* behind the primary array. Besides nodes that
//! stay in the caches, a lookup costs one miss, in the primary array. [`layout`] has drawings of the blocks, [`data`]
//! describes data nodes in detail.
//!
//! All nodes lie in the pool. Each node that has been used since the open has a *mirror*: its part in DRAM, with
//! pointers to the mirrors of its children, or with the overflow buckets of its stash. Operations descend through the
//! mirrors. A child without a mirror is *cold* and gets its mirror when it is first touched.
//!
//! # Where to find what
//!
//! | file | contents |
//! |---|---|
//! | `layout`, `blocks` | blocks of the pool and what they contain; allocation |
//! | `inner`, `data`, `window`, `bucket`, `model` | the parts of a node |
//! | `search`, `insert`, `batch`, `scan` | operations |
//! | `smo`, `merge`, `flatten`, `bulk` | structure changes; `divide` and `plan` decide what they make, `build` and `records` do the work they share |
//! | `recover`, `check` | mirrors, sweep, verification |
//!
//! # Words
//!
//! - *Group*: 256 slots of the primary array, with one version lock. *Child group*: the aligned group of slots of an
//!   inner node that lead to one child.
//! - *Marker*: the key value that free slots of a data node hold, outside of the range of the node.
//! - *Line pair*: two neighbouring cache lines, 8 slots. *Window*: the two line pairs, 16 slots, that may hold the
//!   record of a key.
//! - *Displaced record*: a record outside of the line pair of its predicted slot.
//! - *Pinned*: a thread that holds an epoch guard. What the thread reaches meanwhile is not freed before the thread
//!   unpins.
//! - *Freeze*: stop writers of a data node, but not readers. *Retire*: free, once no reader can hold it.
//! - *Claim*: mark a block of the pool, or a stash slot, as in use. A link from before the open is followed only after its
//!   block has been claimed.
//! - *Sweep*: after an open, visit all nodes; old blocks that no link led to, and so were not claimed, are free afterwards.
//!
//! # What commits
//!
//! | change | lines flushed, fences | the 8-byte store that commits the change |
//! |---|---|---|
//! | insert | 1, 1 | the key, stored after the value in the same line |
//! | update | 1, 1 | the value |
//! | remove | 1, 1 | the key, which becomes the marker |
//! | insert that needs an extended stash block | 4 + 2, 3 | the header's `extension`, then the key |
//! | a data node is replaced: expansion, retraining, contraction, downward split | the new node + 1, 2 | the slot of its parent |
//! | sideways split, merge | the new nodes + 4, 4 | a slot of the parent, three times; every state in between is a legal tree |
//! | an inner node is replaced: growth, removal, flattening | the new node + 1, 2 | the slot of its parent, or the catalog's root |
//! | bulk load | streamed, 2 | the catalog's root |
//!
//! The paper's log (section 4.4) is not needed. Before the store that commits a change, the new nodes are unreachable,
//! and the sweep frees them (undo); after the store, nothing is left to do (redo).
//!
//! # What readers see
//!
//! Readers write nothing shared and never wait for a structure change: until the change is done they read the old
//! nodes, which nobody changes meanwhile. A writer locks the group of its key; a reader validates the version of that
//! lock afterwards.
//!
//! # Invariants
//!
//! - I1. One durable word holds the link to a node: the first slot of its child group, or the root in the catalog.
//! - I2. The child groups of an inner node are powers of two of slots, aligned to their size, and tile the slots. So
//!   each key has exactly one path to one data node, also in every state that a crash can leave behind.
//! - I3. A node is complete and durable before the store that makes it reachable. Recovery never reads an unreachable
//!   node; its blocks are free after the sweep.
//! - I4. A node has at most one mirror. A node from before the open is mirrored only after its blocks have been
//!   claimed, each once.
//! - I5. Mirrors and blocks that have become unreachable are freed only when all threads that were pinned at that time
//!   have unpinned.
//! - I6. A write is durable before its group is unlocked, so no reader sees what a crash could undo.
//!
//! [`data`] has the invariants of data nodes, [`smo`] those of structure changes. Comments cite them as "apex I1",
//! "data I1" and "smo I1".

mod batch;
mod blocks;
mod bucket;
mod build;
mod bulk;
mod check;
mod compact;
mod data;
mod divide;
mod flatten;
mod format;
mod inner;
mod insert;
mod layout;
mod merge;
mod model;
mod plan;
mod records;
mod recover;
mod relocate;
mod scan;
mod search;
mod smo;
mod window;

pub(crate) use scan::Cursor;

use crate::index::Change;
use crate::index::simd::{KeyLine, SimdLevel};
use crate::index::tally::{self, RecordLocks, Tally};
use crate::map::MapStat;
use crate::planted::{Bug, planted};
use crate::pmem::{Cell, Pm};
use crate::pool::PoolCore;
use crate::reclaim::{self, Stamp};
use crate::sync::lock;
use crate::{ApexTuning, Error, Result};
use blocks::Blocks;
use data::DataNode;
use format::Format;
use inner::{Child, InnerNode};
use layout::{DataHeader, Extension, InnerHead, LINE_SLOTS, Offset, Slot};
use plan::NodeLimits;
use std::collections::{HashSet, VecDeque};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Version locks of a map. A group chooses its lock by a hash of its place, and each lock counts the records written
/// under it.
const LOCKS: usize = if cfg!(feature = "small") { 64 } else { 8192 };

/// Retired mirrors that wait for readers before a thread asks whether some can be freed: the question costs a system
/// call.
const RETIRED_MIRRORS_BEFORE_FREEING: usize = if cfg!(feature = "small") { 4 } else { 64 };

/// One map: its blocks in the pool, and their mirrors in DRAM.
struct Tree {
    core: Arc<PoolCore>,
    base: *mut u8,
    pm: Pm,
    blocks: Blocks,
    simd: SimdLevel,
    locks: RecordLocks,
    tally: Tally,
    root: AtomicPtr<InnerNode>,
    /// Held while the root is replaced.
    changing_root: Mutex<()>,
    /// Retired mirrors, oldest first, each with the epoch in which it became unreachable.
    retired_mirrors: Mutex<VecDeque<(Stamp, Child)>>,
    /// Blocks of nodes whose mirrors were released, or could not be made. These blocks are claimed already, so
    /// mirroring such a node again does not claim them a second time (I4).
    blocks_without_mirror: Mutex<HashSet<Offset>>,
    /// The number of the map's entry in the catalog.
    slot: usize,
    limits: NodeLimits,
    changes: Changes,
    /// The last structure change that was not urgent found no space for a node.
    is_starved: AtomicBool,
}

// SAFETY: the mapping at `base` lives as long as `core`, and its contents are accessed through atomics; mirrors consist
// of atomics and mutexes, and are freed only when no thread can hold them (I5).
unsafe impl Send for Tree {}
// SAFETY: all shared access is through atomics and mutexes, as for `Send`.
unsafe impl Sync for Tree {}

/// Counts of structure changes since the map was opened.
#[derive(Default)]
struct Changes {
    expansions: Counter,
    sideways_splits: Counter,
    downward_splits: Counter,
    inner_expansions: Counter,
    merges: Counter,
}

/// How many structure changes of one kind there were, and how long they took together.
#[derive(Default)]
struct Counter {
    changes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Counter {
    /// Counts a structure change that froze its node at `since` and is done now.
    fn add(&self, since: Instant) {
        let nanoseconds = since.elapsed().as_nanos() as u64;
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Relaxed)
    }
}

impl Tree {
    fn new(core: &Arc<PoolCore>, slot: usize) -> Result<Self> {
        let entry = core.entry(slot);
        let tuning = ApexTuning::from_word((entry.shape.load() >> 32) as u32)?;
        let format = Format::from_word(entry.object_format.load())?;
        Ok(Self {
            limits: NodeLimits::of(tuning, format),
            base: core.base(),
            pm: core.pm(),
            blocks: Blocks::new(core, slot),
            simd: SimdLevel::best(),
            locks: RecordLocks::new(LOCKS),
            tally: Tally::default(),
            root: AtomicPtr::default(),
            changing_root: Mutex::default(),
            retired_mirrors: Mutex::default(),
            blocks_without_mirror: Mutex::default(),
            core: Arc::clone(core),
            slot,
            changes: Changes::default(),
            is_starved: AtomicBool::new(false),
        })
    }

    #[inline(always)]
    fn root(&self) -> &InnerNode {
        // SAFETY: the root is set before the tree is shared; the caller is pinned or alone, so the root is not freed
        // under it (I5).
        unsafe { &*self.root.load(Ordering::Acquire) }
    }

    /// The durable word that holds the link to the root.
    fn root_cell(&self) -> &Cell {
        &self.core.entry(self.slot).roots[0]
    }

    /// What lies in a block of the map.
    ///
    /// # Safety
    ///
    /// The map owns the block at `offset`, and a `T` lies within the block. `T` consists of cells.
    #[inline(always)]
    unsafe fn at<T>(&self, offset: Offset) -> &T {
        // SAFETY: the contract; the mapping lives as long as `core`. Cells are atomics, valid for every bit pattern.
        unsafe { &*self.base.add(offset as usize).cast_const().cast() }
    }

    fn inner_head(&self, offset: Offset) -> &InnerHead {
        // SAFETY: `Blocks` allocated the block or checked its offset and size.
        unsafe { self.at(offset) }
    }

    fn data_header(&self, offset: Offset) -> &DataHeader {
        // SAFETY: `Blocks` allocated the block or checked its offset and size.
        unsafe { self.at(offset) }
    }

    fn extension(&self, offset: Offset) -> &Extension {
        // SAFETY: `Blocks` allocated the block or checked its offset and size.
        unsafe { self.at(offset) }
    }

    #[inline(always)]
    fn slot_at(&self, offset: Offset) -> &Slot {
        // SAFETY: the mirror of a data node computes offsets of slots of the node's own blocks only.
        unsafe { self.at(offset) }
    }

    /// The lines of the primary array of a data node from slot `from` to before slot `to`. Both slots begin a line.
    #[inline(always)]
    fn lines(&self, data: &DataNode, from: usize, to: usize) -> &[KeyLine] {
        let to = to.min(data.primary as usize);
        let count = to.saturating_sub(from) / LINE_SLOTS;
        // SAFETY: the lines lie in the primary array, and the mirror was made for a block of this pool.
        unsafe { std::slice::from_raw_parts(self.at(data.slot_at(from)), count) }
    }

    /// The words of a block.
    fn cells(&self, offset: Offset, count: usize) -> &[Cell] {
        // SAFETY: the callers stay within a block that `Blocks` allocated or checked.
        unsafe { std::slice::from_raw_parts(self.at::<Cell>(offset), count) }
    }

    /// The durable slots of an inner node.
    fn durable_slots(&self, inner: &InnerNode) -> &[Cell] {
        self.cells(inner.durable_slots, inner.radix.slots())
    }

    /// Offset within the head of an inner node of slots that lie in the head.
    fn inline_slots_offset(&self) -> u64 {
        offset_of!(InnerHead, inline) as u64
    }

    /// Retires the mirror of a node that has just become unreachable, and frees older ones that no reader can hold
    /// (I5).
    fn retire_mirror(&self, child: Child) {
        // With this bug, copies of inner nodes lead to the mirrors that are retired here. The mirrors stay allocated,
        // or the checker would read freed memory before it finds the bug.
        if planted(Bug::CopyWithoutLock) {
            return;
        }
        let expired = {
            let mut retired_mirrors = lock(&self.retired_mirrors);
            retired_mirrors.push_back((reclaim::stamp(), child));
            let half = retired_mirrors.len() / 2;
            if retired_mirrors.len() < RETIRED_MIRRORS_BEFORE_FREEING
                || !reclaim::has_passed(retired_mirrors[half].0)
            {
                return;
            }
            retired_mirrors.drain(..=half).collect::<Vec<_>>()
        };
        for (_, child) in expired {
            // SAFETY: the mirror was unreachable before its stamp was taken, and all threads that were pinned then have
            // unpinned (I5).
            unsafe { child.free_node() }
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for (_, child) in lock(&self.retired_mirrors).drain(..) {
            // SAFETY: nobody has the tree any more, so nobody has a mirror.
            unsafe { child.free_node() }
        }
        if let Some(root) = std::ptr::NonNull::new(*self.root.get_mut()) {
            // SAFETY: nobody has the tree any more, so nobody has a mirror.
            unsafe { Child::inner(root).free_subtree() }
        }
    }
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
pub(crate) struct Apex {
    shared: Arc<Shared>,
    background: Option<std::thread::JoinHandle<()>>,
}

impl Apex {
    /// Lays out an empty map for the catalog entry at `slot`, which is not committed yet.
    pub(crate) fn format(core: &Arc<PoolCore>, slot: usize) -> Result<()> {
        let tree = Tree::new(core, slot)?;
        let root = tree.build_empty()?;
        // Needs no flush: it lies in the line of the word that commits the entry.
        tree.pm.store(tree.root_cell(), root.0);
        Ok(())
    }

    /// Opens the map of the catalog entry at `slot`. O(1).
    pub(crate) fn open(core: Arc<PoolCore>, slot: usize) -> Result<Arc<Self>> {
        let tree = Tree::new(&core, slot)?;
        tree.open_root()?;
        if let Some(records) = tally::recorded(&core, slot) {
            tree.tally.begin_with(&tree.locks, records);
        }
        let shared = Arc::new(Shared {
            tree,
            name: core.name_of(slot),
            stop: AtomicBool::new(false),
            warm: AtomicBool::new(false),
            warming: Mutex::default(),
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
            Err(error) if matches!(*error, Error::NoSpace(_)) => self.apply_again(key, &mut change),
            result => result,
        }
    }

    /// Once more, with all the space that there is.
    #[cold]
    fn apply_again(
        &self,
        key: u64,
        change: &mut dyn FnMut(Option<u64>) -> Change,
    ) -> Result<Option<u64>, Box<Error>> {
        self.find_space()?;
        self.shared.tree.apply(key, change)
    }

    /// Before a write fails for want of space: soon after an open the free blocks of old extents are not known yet; and
    /// an extent of which no block is in use is of use to blocks of other sizes only if the pool has it.
    #[cold]
    fn find_space(&self) -> Result<()> {
        let blocks = &self.shared.tree.blocks;
        if blocks.needs_sweep() {
            self.shared.warm_up(&|| true)?;
        }
        blocks.give_back();
        Ok(())
    }

    pub(crate) fn insert_batch(&self, records: &[(u64, u64)]) -> Result<()> {
        let mut rest = records;
        match self.shared.tree.insert_batch(&mut rest) {
            Err(Error::NoSpace(_)) => {
                self.find_space()?;
                self.shared.tree.insert_batch(&mut rest)
            }
            result => result,
        }
    }

    pub(crate) fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        // The sweep must not meet nodes that come and go.
        self.shared.warm_up(&|| true)?;
        match self.shared.tree.bulk_load(records, fill) {
            Err(Error::NoSpace(_)) => {
                self.find_space()?;
                self.shared.tree.bulk_load(records, fill)
            }
            result => result,
        }
    }

    pub(crate) fn len(&self) -> Result<u64> {
        let tree = &self.shared.tree;
        if !tree.tally.is_complete() {
            self.shared.warm_up(&|| true)?;
        }
        Ok(tree.tally.total(&tree.locks))
    }

    pub(crate) fn warm_up(&self) -> Result<()> {
        self.shared.warm_up(&|| true)
    }

    pub(crate) fn release_memory(&self) -> u64 {
        self.shared.tree.release_mirrors()
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

impl Drop for Apex {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(background) = self.background.take() {
            let _ = background.join();
        }
        let tree = &self.shared.tree;
        tally::record(&tree.core, tree.slot, &tree.tally, &tree.locks);
        // A shrink may hold them for a moment longer, and the map may be opened again by then.
        tree.blocks.close();
        tree.core.map_was_closed(tree.slot);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

/// Once more, with small nodes.
#[cfg(all(test, not(loom)))]
#[path = "../../../tests/linearizable.rs"]
mod linearizable;
