//! APEX (Lu, Ding, Lo, Minhas and Wang: "APEX: A High-Performance Learned Index on Persistent Memory", PVLDB 15(3), 2021).
//!
//! # The structure
//!
//! A tree of *inner nodes*, each of which divides its range of keys into equal parts, so that a search in it is a subtraction
//! and a shift. At its ends are *data nodes* of up to 16,000 records. A data node's *model*, a line, predicts where in its
//! *primary array* a key is; the record is in one of 16 slots there, or, if they were taken, in the *stash array* behind. See
//! [`layout`](self::layout) for drawings.
//!
//! On top of what stays in the caches a lookup costs one miss, in the primary array.
//!
//! # What commits
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | insert | 1, 1 | the key, written after the value in the same line |
//! | update | 1, 1 | the value |
//! | remove | 1, 1 | the key, which becomes the marker |
//! | insert that needs an extended stash block | 4 + 2, 3 | the header's `extension`, then the key |
//! | a data node is replaced: expansion, retraining, contraction, split downwards | the new node + 1, 2 | the slot of its parent |
//! | split sideways, merge | the new nodes + 4, 4 | the same, three times; every state in between is a legal tree |
//! | an inner node is replaced: expansion, collapse, new layout | the new node + 1, 2 | the slot of its parent, or the catalog's root |
//! | bulk load | streamed, 2 | the catalog's root |
//!
//! The log of the paper (section 4.4) is not needed: before the store that commits a change its new nodes cannot be reached,
//! and are swept (undo); after it nothing is left to do (redo).
//!
//! # What readers see
//!
//! Readers write nothing shared and never wait for a structure change: until it is done they read the old nodes, which
//! nobody changes meanwhile. A writer locks its key's group of 256 slots; a reader checks that lock's version afterwards.
//!
//! # What recovery does
//!
//! Nothing, at first: nodes are mirrored in DRAM when they are first touched; see `recover`.

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
mod inner;
mod insert;
mod layout;
mod merge;
mod model;
mod options;
mod plan;
mod records;
mod recover;
mod scan;
mod search;
mod smo;
#[cfg(feature = "trace")]
pub(crate) mod testing;
mod window;

pub use options::ApexOptions;

use crate::concurrency::records::{RecordCount, RecordLocks};
use crate::engines::{Change, Engine, Fact, Ordered, Place, Report, Unread};
use crate::kernels::{KeyLine, SimdLevel};

use crate::concurrency::epochs::{self, Stamp};
use crate::concurrency::sync::lock;
use crate::pmem::geometry::sized;
use crate::pmem::planted::planted;
use crate::pmem::{Cell, Pm};
use crate::pool::{PoolCore, Space};
use crate::{Error, Result};
use blocks::Blocks;
use data::Data;
use inner::{Child, Inner};
use layout::{DataHeader, Extension, InnerHead, LINE_SLOTS, Offset, Slot};
use plan::Shape;
use scan::Buffer;
use std::collections::{HashSet, VecDeque};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The version locks of a map, in each of which its records are counted.
const LOCKS: usize = sized(8192, 64);

/// Mirrors that have been replaced, before one asks whether some can be freed, which costs a system call.
const LIMBO: usize = sized(64, 4);

/// The records of a map: what is in the pool, and what mirrors it.
struct Tree {
    core: Arc<PoolCore>,
    base: *mut u8,
    pm: Pm,
    blocks: Blocks,
    simd: SimdLevel,
    locks: RecordLocks,
    count: RecordCount,
    root: AtomicPtr<Inner>,
    /// Held while the root is replaced.
    changing_root: Mutex<()>,
    /// Mirrors that a reader may still hold.
    limbo: Mutex<VecDeque<(Stamp, Child)>>,
    /// Blocks that have been claimed, or made since the open, and have no mirror now.
    given_up: Mutex<HashSet<Offset>>,
    /// The map's place in the catalog.
    slot: usize,
    shape: Shape,
    changes: Changes,
    /// The last structure change that could have waited found no space.
    is_starved: AtomicBool,
}

// SAFETY: the mapping at `base` lives as long as `core`, and what is in it is accessed through atomics; mirrors are made of
// atomics and mutexes, and are freed only when nobody can hold them.
unsafe impl Send for Tree {}
// SAFETY: as above.
unsafe impl Sync for Tree {}

/// Structure changes since the map was opened.
#[derive(Default)]
struct Changes {
    expansions: Counter,
    sideways_splits: Counter,
    downward_splits: Counter,
    inner_expansions: Counter,
    merges: Counter,
}

/// How many structure changes of a kind there were, and how long they took.
#[derive(Default)]
struct Counter {
    changes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Counter {
    /// A change that froze its node at `since` is done.
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
    fn new(core: &Arc<PoolCore>, slot: usize, options: ApexOptions) -> Self {
        Self {
            shape: Shape::of(options),
            base: core.base(),
            pm: core.pm(),
            blocks: Blocks::new(core, slot),
            simd: SimdLevel::best(),
            locks: RecordLocks::new(LOCKS),
            count: RecordCount::default(),
            root: AtomicPtr::default(),
            changing_root: Mutex::default(),
            limbo: Mutex::default(),
            given_up: Mutex::default(),
            core: Arc::clone(core),
            slot,
            changes: Changes::default(),
            is_starved: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    fn root(&self) -> &Inner {
        // SAFETY: set before the tree is shared; the caller is pinned or alone, so it is not freed under it.
        unsafe { &*self.root.load(Ordering::Acquire) }
    }

    /// The durable word that holds the root.
    fn root_cell(&self) -> &Cell {
        &self.core.entry(self.slot).roots[0]
    }

    /// Something in a block of the map.
    ///
    /// # Safety
    ///
    /// The block at `offset` is the map's and has room for a `T`, which consists of cells.
    #[inline(always)]
    unsafe fn at<T>(&self, offset: Offset) -> &T {
        // SAFETY: by the contract; the mapping lives as long as `core`. Cells are atomics, valid for every bit pattern.
        unsafe { &*self.base.add(offset as usize).cast_const().cast() }
    }

    fn inner_head(&self, offset: Offset) -> &InnerHead {
        // SAFETY: the callers have the offset from `Blocks`, which made or checked it.
        unsafe { self.at(offset) }
    }

    fn data_header(&self, offset: Offset) -> &DataHeader {
        // SAFETY: as above.
        unsafe { self.at(offset) }
    }

    fn extension(&self, offset: Offset) -> &Extension {
        // SAFETY: as above.
        unsafe { self.at(offset) }
    }

    #[inline(always)]
    fn slot_at(&self, offset: Offset) -> &Slot {
        // SAFETY: the offset comes from a data node's mirror, which has only slots of its own blocks.
        unsafe { self.at(offset) }
    }

    /// The lines of the primary array of a data node from slot `from` to before slot `to`, both of which begin a line.
    #[inline(always)]
    fn lines(&self, data: &Data, from: usize, to: usize) -> &[KeyLine] {
        let to = to.min(data.primary as usize);
        let count = to.saturating_sub(from) / LINE_SLOTS;
        // SAFETY: the lines lie in the primary array of a node whose mirror was made for a block of this pool.
        unsafe { std::slice::from_raw_parts(self.at(data.slot_at(from)), count) }
    }

    /// Cells of a block.
    fn cells(&self, offset: Offset, count: usize) -> &[Cell] {
        // SAFETY: the callers stay within a block that `Blocks` made or checked.
        unsafe { std::slice::from_raw_parts(self.at::<Cell>(offset), count) }
    }

    /// The durable slots of an inner node.
    fn durable_slots(&self, inner: &Inner) -> &[Cell] {
        self.cells(inner.durable_slots, inner.radix.slots())
    }

    /// Where in its head a small inner node has its slots.
    fn inline_at(&self) -> u64 {
        offset_of!(InnerHead, inline) as u64
    }

    /// Frees a mirror that has just been replaced, once nobody can hold it any more.
    fn bury(&self, child: Child) {
        // With this bug copied inner nodes lead to what goes here. It stays, or the checker would read freed memory before
        // it finds the bug.
        if planted(Bug::CopyWithoutLock) {
            return;
        }
        let passed = {
            let mut limbo = lock(&self.limbo);
            limbo.push_back((epochs::stamp(), child));
            let half = limbo.len() / 2;
            if limbo.len() < LIMBO || !epochs::has_passed(limbo[half].0) {
                return;
            }
            limbo.drain(..=half).collect::<Vec<_>>()
        };
        for (_, child) in passed {
            // SAFETY: it was unlinked before its stamp, and all who were pinned then have let go.
            unsafe { child.free_alone() }
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        for (_, child) in lock(&self.limbo).drain(..) {
            // SAFETY: nobody has the tree any more.
            unsafe { child.free_alone() }
        }
        if let Some(root) = std::ptr::NonNull::new(*self.root.get_mut()) {
            // SAFETY: as above.
            unsafe { Child::inner(root).free() }
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
        let tree = Tree::new(&place.core, place.slot, *options);
        let root = tree.build_empty()?;
        // Needs no flush: it lies in the line of the word that commits the entry.
        tree.pm.store(tree.root_cell(), root.0);
        Ok(())
    }

    fn open(place: &Place, options: ApexOptions, _: u32) -> Result<Self> {
        let tree = Tree::new(&place.core, place.slot, options);
        tree.open_root()?;
        Ok(Self { tree })
    }

    fn spaces(&self) -> &[Arc<Space>] {
        self.tree.blocks.spaces()
    }

    fn locks(&self) -> &RecordLocks {
        &self.tree.locks
    }

    fn count(&self) -> &RecordCount {
        &self.tree.count
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
        self.tree.forget()
    }
}

impl Ordered for Index {
    type Bookmark = ();

    #[inline]
    fn get(&self, key: u64) -> Result<Option<u64>> {
        self.tree.get(key)
    }

    fn get_batch(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<()> {
        self.tree.get_batch(keys, values)
    }

    #[inline]
    fn apply(
        &self,
        key: u64,
        change: &mut impl FnMut(Option<u64>) -> Change,
    ) -> Result<Option<u64>, Box<Error>> {
        self.tree.apply(key, change)
    }

    fn insert_batch(&self, rest: &mut &[(u64, u64)]) -> Result<()> {
        self.tree.insert_batch(rest)
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
        self.tree.read_on::<UP>(unread, buffer, wanted)
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
    /// A removal leaves the marker of the nodes that do not begin at key 0, in all of them.
    WrongMarker,
    /// Recovery finds the records in the stash array, and forgets those in extended stash blocks.
    ExtensionsForgotten,
    /// The sweep takes extended stash blocks for free.
    SweepForgetsExtensions,
}

#[cfg(all(test, not(loom)))]
mod tests;

/// Once more, with small nodes.
#[cfg(all(test, not(loom)))]
#[path = "../../../tests/linearizable.rs"]
mod linearizable;
