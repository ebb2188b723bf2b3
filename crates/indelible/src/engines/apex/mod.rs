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
//! | `layout`, `format`, `blocks` | blocks of the pool and what they contain; allocation |
//! | `inner`, `data`, `window`, `bucket`, `model` | the parts of a node |
//! | `search`, `insert`, `batch`, `scan` | operations |
//! | `smo`, `merge`, `flatten`, `bulk`, `compact`, `relocate` | structure changes; `divide` and `plan` decide what they make, `build` and `records` do the work they share |
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
mod bucket;
mod build;
mod bulk;
mod check;
mod compact;
#[cfg(all(test, not(loom)))]
pub(super) mod damage;
mod data;
mod divide;
mod flatten;
mod format;
mod inner;
mod insert;
mod layout;
mod merge;
mod model;
mod options;
mod plan;
mod records;
mod recover;
mod relocate;
mod scan;
mod search;
mod smo;
#[cfg(feature = "trace")]
pub(crate) mod testing;
mod window;

pub use options::ApexOptions;

use crate::concurrency::epochs::{self, Stamp};
use crate::concurrency::records::RecordLocks;
use crate::concurrency::sync::lock;
use crate::engines::blocks::{Blocks, doubling_sizes};
use crate::engines::{Decision, Engine, Fact, Lookup, Ordered, Place, Report, Unread};
use crate::kernels::{KeyLine, SimdLevel};
use crate::pmem::geometry::sized;
use crate::pmem::planted::planted;
use crate::pmem::{Cell, Pm};
use crate::pool::{PoolCore, Space};
use crate::{Error, Result};
use data::DataNode;
use format::Format;
use inner::{Child, InnerNode};
use layout::{DataHeader, Extension, InnerHead, LINE_SLOTS, Offset, Slot};
use plan::NodeLimits;
use scan::Buffer;
use std::collections::{HashSet, VecDeque};
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Version locks of a map. The place of a data node is hashed to the number of the lock of its first group, from which the numbers of
/// the other groups' locks are counted on. Each lock counts the records written under it.
const LOCKS: usize = sized(8192, 64);

/// Retired mirrors that wait for readers before a thread asks whether some can be freed: the question costs a system
/// call.
const RETIRED_MIRRORS_BEFORE_FREEING: usize = sized(64, 4);

/// One map: its blocks in the pool, and their mirrors in DRAM.
struct Tree {
    core: Arc<PoolCore>,
    base: *mut u8,
    pm: Pm,
    blocks: Blocks<{ layout::CLASSES }>,
    simd: SimdLevel,
    locks: RecordLocks,
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
    /// Structure changes of nodes of at least so many bytes have found no space, and none of these has found any since.
    starved_from: AtomicU64,
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
    fn new(core: &Arc<PoolCore>, slot: usize, options: ApexOptions, format: Format) -> Self {
        Self {
            limits: NodeLimits::of(options, format),
            base: core.base(),
            pm: core.pm(),
            blocks: Blocks::new(core, slot, doubling_sizes()),
            simd: SimdLevel::best(),
            locks: RecordLocks::new(LOCKS),
            root: AtomicPtr::default(),
            changing_root: Mutex::default(),
            retired_mirrors: Mutex::default(),
            blocks_without_mirror: Mutex::default(),
            core: Arc::clone(core),
            slot,
            changes: Changes::default(),
            starved_from: AtomicU64::new(u64::MAX),
        }
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
        self.expect_mapped(offset, size_of::<T>());
        // SAFETY: the contract; the mapping lives as long as `core`. Cells are atomics, valid for every bit pattern.
        unsafe { &*self.base.add(offset.get() as usize).cast_const().cast() }
    }

    /// For the crash checker: see [`crate::pmem::expect_mapped`].
    #[inline(always)]
    fn expect_mapped(&self, offset: Offset, bytes: usize) {
        crate::pmem::expect_mapped(self.base as usize + offset.get() as usize, bytes);
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
        self.expect_mapped(data.slot_at(from), count * size_of::<KeyLine>());
        // SAFETY: the lines lie in the primary array, and the mirror was made for a block of this pool.
        unsafe { std::slice::from_raw_parts(self.at(data.slot_at(from)), count) }
    }

    /// The words of a block.
    fn cells(&self, offset: Offset, count: usize) -> &[Cell] {
        self.expect_mapped(offset, count * size_of::<Cell>());
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
        let half = {
            let mut retired_mirrors = lock(&self.retired_mirrors);
            retired_mirrors.push_back((epochs::stamp(), child));
            let half = retired_mirrors[retired_mirrors.len() / 2].0;
            if retired_mirrors.len() < RETIRED_MIRRORS_BEFORE_FREEING || !epochs::has_passed(half) {
                return;
            }
            half
        };
        self.free_mirrors_before(half);
    }

    /// Frees all mirrors that have been retired, after waiting for the readers that may hold one. A thread that is pinned would wait for itself, and
    /// frees none.
    fn free_retired_mirrors(&self) {
        if !lock(&self.retired_mirrors).is_empty()
            && let Some(passed) = epochs::synchronize()
        {
            self.free_mirrors_before(passed);
        }
    }

    /// Bytes of DRAM of the mirrors that wait for their readers.
    fn retired_bytes(&self) -> u64 {
        let retired_mirrors = lock(&self.retired_mirrors);
        // SAFETY: a mirror is taken out of the queue, which is locked, before it is freed.
        let bytes = |&(_, child): &(Stamp, Child)| unsafe {
            if child.is_inner() {
                (*child.as_inner()).bytes()
            } else {
                (*child.as_data()).dram_bytes()
            }
        };
        retired_mirrors.iter().map(bytes).sum()
    }

    /// Frees the mirrors that were retired up to a stamp that has passed.
    fn free_mirrors_before(&self, passed: Stamp) {
        let expired = {
            let retired_mirrors = &mut *lock(&self.retired_mirrors);
            let count = retired_mirrors.partition_point(|(stamp, _)| *stamp <= passed);
            retired_mirrors.drain(..count).collect::<Vec<_>>()
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

/// An open APEX.
pub(crate) struct Index {
    tree: Tree,
}

impl Engine for Index {
    type Options = ApexOptions;

    fn format(place: &Place, options: &ApexOptions) -> Result<()> {
        let tree = Tree::new(&place.core, place.slot, *options, Format::Two);
        let root = tree.build_empty()?;
        // Needs no flush: it lies in the line of the word that commits the entry.
        tree.pm.store(tree.root_cell(), root.0);
        Ok(())
    }

    fn open(place: &Place, options: ApexOptions, format: u32) -> Result<Self> {
        let tree = Tree::new(&place.core, place.slot, options, Format::of(format));
        tree.open_root()?;
        Ok(Self { tree })
    }

    fn spaces(&self) -> &[Arc<Space>] {
        self.tree.blocks.spaces()
    }

    fn locks(&self) -> &RecordLocks {
        &self.tree.locks
    }

    fn sweeps_at_once(&self) -> bool {
        self.tree.root().radix.slots() <= 2 && self.tree.is_small()
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

    fn release_memory(&self) -> u64 {
        self.tree.release_mirrors()
    }
}

impl Ordered for Index {
    type Bookmark = ();

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

    const RECORDS_PER_FENCE: usize = insert::MAX_RECORDS_PER_FENCE;

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
        self.tree.read_more::<UP>(unread, buffer, wanted)
    }
}

crate::pmem::planted::bugs! { "apex":
    /// An update unlocks the group before its fence, so that others see what may still be lost.
    UnlockBeforeFence,
    /// A reader does not look at the group's version afterwards.
    ReadWithoutVersion,
    /// A writer does not ask whether the node is still live, once it has locked its group.
    WriteWithoutVersion,
    /// The sweep does not mark the map's root.
    SweepForgetsRoot,
    /// An insert into a data node writes the key before the value.
    KeyBeforeValue,
    /// A split of a data node gives the left half its slot before the right half has one.
    SplitLeftFirst,
    /// A merge of data nodes gives the right one's slot up before there is another way to it.
    MergeDropsRightFirst,
    /// A new data node is shown to others before the store that makes it durable where it belongs.
    SwitchBeforeCommit,
    /// A data node is freed before another one has taken its place.
    FreeBeforeCommit,
    /// A data node is copied while somebody who came before the freezing still writes it.
    FreezeWithoutDraining,
    /// An inner node is copied while others change its slots.
    CopyWithoutLock,
    /// An extended stash block is linked before it is filled.
    ExtensionBeforeFill,
    /// A stash slot is given back before its record is taken out.
    ReleaseBeforeRemoval,
    /// A removal leaves the marker of the nodes that do not have the highest key, in all of them.
    WrongMarker,
    /// Recovery finds the records in the stash array, and forgets those in extended stash blocks.
    ExtensionsForgotten,
    /// The sweep takes extended stash blocks for free.
    SweepForgetsExtensions,
}

#[cfg(all(test, not(loom)))]
mod tests;
