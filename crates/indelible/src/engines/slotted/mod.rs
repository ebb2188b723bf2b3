//! A map of byte strings: slotted leaves with the records inside, and long keys and values beside them.
//!
//! # The structure
//!
//! Records live in *leaves* of 512 to 2048 bytes in the pool, which form a chain in the order of keys. How large a leaf is follows from its records, see
//! [`sizes`](self::sizes). A leaf is a line of header and a heap, see
//! [`layout`](self::layout): a lookup finds a record by a one-byte *fingerprint* of its key, and the keys of a leaf share a *prefix* that is
//! stored once. Keys and values that are longer than a quarter of a leaf (of the usual leaf, and of the largest one) are *blobs*, see [`blobs`](self::blobs). The *inner nodes* above the leaves lie
//! in DRAM, see [`inner`](self::inner).
//!
//! # What commits
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | insert | the record's lines + 1, 2 | the commit word of the header |
//! | update of a value of up to 8 bytes by one of the same length | 1, 1 | the last word of the record |
//! | replacement | the record's lines + 1, 2 | the commit word, which takes the old record's slot out and the new one's in |
//! | insert of several records of one leaf | their lines + 1, 2 | the commit word |
//! | remove | 1, 1 | the commit word |
//! | append at the right end | a leaf + 1, 2 | the sibling of the last leaf |
//! | split, rewrite, merge, move | the new leaves + 1, 2 | the link to the first old leaf |
//! | an empty leaf goes | 1 or 2, 1 or 2 | the sibling of its left neighbour |
//! | bulk load | streamed, 2 | the head of the chain |
//!
//! A blob costs its lines and a fence more.
//!
//! # Invariants
//!
//! - I1: a leaf covers the keys from its low key up to that of the next leaf; these are the separators in the inner nodes.
//! - I2: all keys that a leaf covers begin with its prefix, which is a beginning of its low key.
//! - I3: each blob is referred to by one record or one low key of one leaf that is in the chain.
//! - I4: a leaf that has left the chain is not written any more, and is reused after an epoch; so is a blob, if no reader of its parts keeps it.
//! - I5: a signpost leads to a leaf in the chain that begins at the key of the signpost.
//!
//! # What readers see
//!
//! Readers write no shared memory, as in the LB+-Tree: they descend by optimistic lock coupling, copy what they need out of a leaf, and validate the version
//! of the leaf. A blob never changes, so it is read after that, where it lies, while the thread is pinned. There is one exception: the first range that
//! reads a leaf since it was changed notes the order of its keys in DRAM, under the lock of the leaf, see [`orders`](self::orders).

mod batch;
mod blobs;
mod bulk;
mod check;
mod compact;
#[cfg(all(test, not(loom)))]
mod damage;
mod directory;
mod distribute;
mod groups;
mod inner;
mod insert;
mod layout;
mod leaf;
mod options;
mod orders;
mod ranked;
mod records;
mod recover;
mod scan;
mod search;
mod separator;
mod sizes;
mod smo;
#[cfg(feature = "trace")]
pub(crate) mod testing;
mod together;
mod values;

pub use options::SlottedOptions;

use crate::concurrency::records::{self as locks, RecordLocks};
use crate::engines::arena::{Arena, Node};
use crate::engines::inner_nodes::InnerNode;
use crate::engines::waiting::WaitingOperations;
use crate::engines::{
    Current, Engine, Fact, LastPart, LongValue, Place, ReadableValue, Report, StringBuffer,
    StringDecision, StringRange, StringRecord, Strings, unless_full,
};
use crate::kernels::SimdLevel;
use crate::pmem::geometry::sized;
use crate::pmem::{Cell, Pm};
use crate::pool::{Offset, PoolCore, Space, is_last_resort};
use crate::{Error, Result};
use blobs::{Blobs, CLASS_BYTES, CLASSES, MOST_KEY_BYTES, MOST_VALUE_BYTES};
use directory::Directory;
use inner::{Child, Entry, Inner};
use leaf::Leaf;
use orders::Orders;
use records::{Records, Value};
use separator::Text;
use sizes::{Size, Sizes, Wanted};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Locks of a directory: it is small and rarely written.
const DIRECTORY_LOCKS: usize = sized(locks::LOCKS / 64, 8);

/// What all trees of one map share.
#[derive(Clone)]
struct Home {
    place: Place,
    spaces: Arc<[Arc<Space>; CLASSES]>,
    /// Of the leaves of records. Those of directories are all of the usual size.
    sizes: Sizes,
}

/// A chain of leaves and the inner nodes above it: the records, or a directory of signposts into the level below.
struct Tree {
    home: Home,
    core: Arc<PoolCore>,
    pm: Pm,
    blobs: Blobs,
    sizes: Sizes,
    /// For the hashes of keys.
    seed: u64,
    simd: SimdLevel,
    locks: RecordLocks,
    arena: Arena<Inner>,
    /// The root never moves: growing and shrinking change what is in it.
    root: NonNull<Inner>,
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
    /// In the tree of records: whether all records have been counted. Each leaf is counted when it is indexed, before anything else happens to it.
    splits: AtomicU64,
    /// In which order the keys of leaves are, as far as ranges have found it out.
    orders: Orders,
}

// SAFETY: the only field that is not `Send` and `Sync` by itself is `root`, which points into the arena that the tree keeps
// alive, to a node that consists of atomics.
unsafe impl Send for Tree {}
// SAFETY: as for `Send`.
unsafe impl Sync for Tree {}

impl Tree {
    /// A tree over the chain that begins at `head`: a leaf with no leaf to its right, or the begin of an unindexed range.
    fn over(home: &Home, level: usize, head: Child) -> Result<Self> {
        let core = &home.place.core;
        let arena = Arena::new();
        let root = NonNull::from(arena.alloc(1).0);
        let tree = Self {
            core: Arc::clone(core),
            pm: core.pm(),
            blobs: Blobs::new(core, &home.spaces),
            sizes: Sizes {
                differ: home.sizes.differ && level == 0,
                ..home.sizes
            },
            seed: core.seed(),
            simd: SimdLevel::best(),
            locks: RecordLocks::new(if level == 0 {
                locks::LOCKS
            } else {
                DIRECTORY_LOCKS
            }),
            arena,
            root,
            level,
            indexing: Mutex::new(()),
            waiting_operations: WaitingOperations::default(),
            directory: Directory::new(home, level + 1),
            reorganizing: Mutex::new(()),
            splits: AtomicU64::new(0),
            orders: Orders::default(),
            home: home.clone(),
        };
        tree.leaf_at(head.offset())?;
        let root_guard = tree.root().lock().lock();
        let (bottom, bottom_guard) = tree.arena.alloc(0);
        bottom.refill(&[Entry::leaf(&[], head)]);
        tree.root().refill(&[Inner::entry_for(Text::EMPTY, bottom)]);
        drop((bottom_guard, root_guard));
        Ok(tree)
    }

    #[inline(always)]
    fn root(&self) -> &Inner {
        // SAFETY: the node comes from the arena, which the tree keeps alive and which never frees it.
        unsafe { self.root.as_ref() }
    }

    /// A leaf whose offset was checked, or allocated.
    #[inline(always)]
    fn leaf(&self, leaf: Child) -> Leaf<'_> {
        Leaf::at(&self.core, leaf)
    }

    /// The space of leaves of one size.
    fn space_of(&self, size: Size) -> &Space {
        &self.home.spaces[size.class()]
    }

    fn alloc_leaf_of(&self, size: Size) -> Result<Child> {
        let spaces = &self.home.spaces;
        let block = spaces[size.class()].alloc_beside(&spaces[..], 0)?;
        Ok(Child::leaf(block, size))
    }

    /// A block for a leaf: of the best size; if the pool has no space for that, and is not going to be asked again, of another size that will do.
    fn alloc_leaf(&self, wanted: Wanted) -> Result<Child> {
        let no_space = match self.alloc_leaf_of(wanted.best) {
            Err(error @ Error::NoSpace(_)) if is_last_resort() => error,
            best => return best,
        };
        for size in wanted.others() {
            if let Some(block) = unless_full(self.alloc_leaf_of(size).map(Some))? {
                return Ok(block);
            }
        }
        Err(no_space)
    }

    fn retire_leaf(&self, leaf: Child) {
        self.space_of(leaf.size()).retire(leaf.offset());
    }

    /// Frees a leaf that has never been in the chain.
    fn free_leaf_now(&self, leaf: Child) {
        self.space_of(leaf.size()).free_now(leaf.offset());
    }

    /// The leaf whose block is at an offset read from the pool. What it holds is not looked at.
    fn block_at(&self, offset: Offset) -> Result<Child> {
        let mut sizes = Size::all().filter(|&size| self.sizes.differ || size == self.sizes.usual);
        sizes
            .find(|&size| self.space_of(size).owns(offset))
            .map(|size| Child::leaf(offset, size))
            .ok_or_else(|| Error::Damaged(format!("{offset:#x} is not a leaf of this map")))
    }

    /// The leaf in a block, if there is one of the size of the block.
    fn leaf_in(&self, block: Child) -> Result<Leaf<'_>> {
        let (leaf, offset) = (self.leaf(block), block.offset());
        let word = leaf.commit_word();
        if !word.is_marked() {
            return Err(Error::Damaged(format!(
                "leaf {offset:#x} was never written"
            )));
        }
        if self.sizes.of_code(word.size_code()) != Some(block.size()) {
            return Err(Error::Damaged(format!(
                "leaf {offset:#x} says that it has another size than its block"
            )));
        }
        Ok(leaf)
    }

    /// The leaf at an offset read from the pool.
    fn leaf_at(&self, offset: Offset) -> Result<Leaf<'_>> {
        self.leaf_in(self.block_at(offset)?)
    }

    /// The durable word that leads to the first leaf of the chain.
    fn head(&self) -> &Cell {
        &self.core.entry(self.home.place.slot).roots[self.level]
    }

    #[inline(always)]
    fn directory(&self) -> Option<&Tree> {
        self.directory.tree()
    }

    /// Counts records added to a leaf that is locked, or removed from it.
    #[inline(always)]
    fn count_change(&self, leaf: Offset, change: i64) {
        if self.level == 0 {
            self.locks.entry(leaf.get()).add(change);
        }
    }

    fn split_happened(&self) {
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    /// Lays out a leaf without records that covers all keys, in a free block, and flushes it without a fence.
    fn fill_empty_leaf(home: &Home, offset: Offset) {
        let (core, usual) = (&home.place.core, home.sizes.usual);
        let low = (&Value::Inline(&[]), 0);
        let image = records::image(
            (home.sizes, usual),
            0,
            low,
            Offset::NONE,
            &Records::default(),
            0..0,
        );
        let leaf = Leaf::at(core, Child::leaf(offset, usual));
        for (cell, &word) in leaf.cells.iter().zip(&image) {
            core.pm().store(cell, word);
        }
        core.pm().named("slotted.fill").flush(leaf.cells);
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.root().free_separators();
    }
}

impl Home {
    fn new(place: &Place, options: &SlottedOptions) -> Self {
        Self {
            spaces: Arc::new(place.core.spaces(place.slot, CLASS_BYTES)),
            place: place.clone(),
            sizes: options.sizes(),
        }
    }

    /// A block for a leaf of the usual size.
    fn alloc_usual(&self) -> Result<Offset> {
        self.spaces[self.sizes.usual.class()].alloc()
    }

    fn head(&self, level: usize) -> Offset {
        Offset::from_word(self.place.core.entry(self.place.slot).roots[level].load_acquire())
    }
}

/// An open map of byte strings: the tree of records, below its directories.
pub(crate) struct Index {
    tree: Tree,
}

impl Engine for Index {
    type Options = SlottedOptions;

    fn format(place: &Place, options: &SlottedOptions) -> Result<()> {
        let home = Home::new(place, options);
        let head = home.alloc_usual()?;
        Tree::fill_empty_leaf(&home, head);
        // Needs no flush: it lies in the line of the word that commits the entry.
        let pm = place.core.pm();
        pm.store(&place.core.entry(place.slot).roots[0], head.get());
        Ok(())
    }

    fn open(place: &Place, options: SlottedOptions, _: u32) -> Result<Self> {
        let home = Home::new(place, &options);
        let head = home.head(0);
        if head.is_none() {
            let name = place.core.name_of(place.slot);
            return Err(Error::Damaged(format!("map {name:?} has no leaves")));
        }
        let tree = Tree::over(&home, 0, Child::unindexed(head))?;
        tree.directory.open_trees()?;
        Ok(Self { tree })
    }

    fn spaces(&self) -> &[Arc<Space>] {
        &self.tree.home.spaces[..]
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

impl Strings for Index {
    const MOST_BYTES: [u64; 2] = [MOST_KEY_BYTES as u64, MOST_VALUE_BYTES];

    fn get_with(&self, key: &[u8], use_value: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.tree.get_with(key, use_value)
    }

    fn value_len(&self, key: &[u8]) -> Result<Option<u64>> {
        self.tree.value_len(key)
    }

    fn get_many(&self, keys: &[&[u8]], use_value: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        self.tree.get_many(keys, use_value)
    }

    fn apply<'v>(
        &self,
        key: &[u8],
        likely: Option<&'v [u8]>,
        decide: &mut dyn FnMut(Option<&Current<'_>>) -> StringDecision<'v>,
    ) -> Result<bool> {
        self.tree.apply(key, likely, decide)
    }

    fn insert_together(&self, records: &[StringRecord<'_>]) -> Result<usize> {
        self.tree.insert_together(records)
    }

    fn new_value(&self, bytes: u64) -> Result<Option<LongValue>> {
        self.tree.new_value(bytes)
    }

    fn write_part(&self, value: &LongValue, at: u64, part: &[u8]) {
        self.tree.write_part(value, at, part);
    }

    fn put_value(&self, key: &[u8], value: &LongValue, last: LastPart<'_>) -> Result<bool> {
        self.tree.put_value(key, value, last)
    }

    fn keep_value(&self, key: &[u8]) -> Result<Option<ReadableValue>> {
        self.tree.keep_value(key)
    }

    fn kept_bytes<'a>(&'a self, value: &'a LongValue) -> &'a [u8] {
        self.tree.kept_bytes(value)
    }

    fn let_go(&self, value: &LongValue, is_new: bool) {
        self.tree.let_go(value, is_new);
    }

    fn bulk_load(
        &self,
        records: &mut dyn Iterator<Item = Result<(Vec<u8>, Vec<u8>)>>,
        fill: f64,
    ) -> Result<()> {
        self.tree.bulk_load(records, fill)
    }

    fn read_on(
        &self,
        up: bool,
        unread: &mut StringRange,
        buffer: &mut StringBuffer,
        with_values: bool,
    ) -> Result<()> {
        self.tree.read_on(up, unread, buffer, with_values)
    }
}

crate::pmem::planted::bugs! { "slotted":
    /// An update of a short value stores it in two steps.
    UpdateTwice,
    /// A replacement takes the old record out before the new one is in.
    ReplaceInTwoSteps,
    /// A structure change frees the old leaves before the new ones are in the chain.
    FreeTooEarly,
    /// A blob is freed at once when its reference has gone, and not after an epoch.
    BlobFreedAtOnce,
    /// A structure change leaves the signposts to the leaves that go.
    SignpostKept,
    /// A structure change does not lock the leaf whose sibling it changes.
    NeighbourNotLocked,
    /// A merge locks the left leaf only.
    MergeLocksOneLeaf,
    /// A reader does not look at the leaf's version afterwards.
    ReadWithoutVersion,
    /// A range does not look at the leaf's version once it has copied the leaf.
    RangeWithoutVersion,
    /// A range takes the order of a leaf's slots for that of its keys.
    RanksBySlot,
    /// A writer does not forget the order of the leaf's keys that a range has kept.
    OrderKept,
    /// A writer does not ask whether the leaf still covers its key, once it has locked it.
    WriteWithoutVersion,
    /// The sweep does not claim the blobs that leaves refer to.
    SweepForgetsBlobs,
    /// A value that is written in parts is put before its last part is written.
    PutBeforeLastPart,
    /// Records that are inserted together are committed before their bytes are durable.
    TogetherInOneFence,
    /// A reader of the parts of a value does not keep the block of the value.
    ReaderKeepsNothing,
    /// The commit word of a leaf does not say that the leaf has another size than the usual one.
    SizeNotSaid,
}
