//! The part of the structure in DRAM: what operations read on their way to a slot.
//!
//! Every inner node, data node and bucket of the pool has a part in DRAM, made when it is first touched after an open. It has been validated,
//! and what it refers to in the pool has been claimed, so operations follow pointers and check nothing. All of it is freed after an epoch.

use super::inner::{Inner, Side};
use super::layout::{
    BucketHeader, DataHeader, GROUP_LINES, HAS_PIECES, InnerHeader, LINE, LINE_SLOTS, NO_CHILD,
    PIECES, Slot, bucket_slots, first_slot_line, slot_lines,
};
use super::model::{Model, Pieces, line_of};
use super::tuning::{Pattern, Samples};
use crate::kernels::KeyLine;
use crate::pmem::Cell;
use crate::pool::Offset;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// A block: in the pool, or, in a pool that may not be written, on the heap.
pub(super) struct Block {
    pub(super) at: *mut u8,
    /// [`Offset::NONE`] on the heap.
    pub(super) offset: Offset,
    pub(super) bytes: u64,
    _heap: Option<Box<[HeapLine]>>,
}

#[repr(align(64))]
#[derive(Clone, Copy)]
struct HeapLine(#[allow(dead_code)] [u64; 8]);

impl Block {
    /// # Safety
    ///
    /// The block lies at `at`, whole and aligned to a line, consists of words that are only accessed atomically, and stays until the last
    /// use of what is made from this.
    pub(super) unsafe fn in_pool(at: *mut u8, offset: Offset, bytes: u64) -> Self {
        Self {
            at,
            offset,
            bytes,
            _heap: None,
        }
    }

    pub(super) fn on_heap(bytes: u64) -> Self {
        let mut lines = vec![HeapLine([0; 8]); (bytes / LINE) as usize].into_boxed_slice();
        Self {
            at: lines.as_mut_ptr().cast(),
            offset: Offset::NONE,
            bytes,
            _heap: Some(lines),
        }
    }

    /// Fills a block on the heap, which nobody else has seen.
    pub(super) fn fill_heap(&self, image: &[u64]) {
        assert!(self.offset.is_none() && image.len() as u64 * 8 <= self.bytes);
        // SAFETY: the block has so many words, as asserted, and nobody else has seen it.
        unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), self.at.cast(), image.len()) };
    }

    fn part<T>(&self, at: u64, count: u64) -> &[T] {
        assert!(at + count * size_of::<T>() as u64 <= self.bytes);
        crate::pmem::expect_mapped(
            self.at as usize + at as usize,
            count as usize * size_of::<T>(),
        );
        // SAFETY: the part lies in the block, as asserted; `T` is a word or a pair or a header, all made of words, for which any bytes are
        // valid; the block is aligned to a line and `at` is a multiple of the alignment.
        unsafe { std::slice::from_raw_parts(self.at.add(at as usize).cast(), count as usize) }
    }

    pub(super) fn cells(&self) -> &[Cell] {
        self.part(0, self.bytes / 8)
    }

    pub(super) fn data_header(&self) -> &DataHeader {
        &self.part(0, 1)[0]
    }

    pub(super) fn inner_header(&self) -> &InnerHeader {
        &self.part(0, 1)[0]
    }

    pub(super) fn bucket_header(&self) -> &BucketHeader {
        &self.part(0, 1)[0]
    }
}

/// A child: nothing, or a node, which is at least 64-byte aligned, so that the low bits of its address are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child(pub(super) usize);

impl Child {
    /// Nobody has been there since the open.
    pub(super) const UNTOUCHED: Self = Self(0);
    /// There is no node yet.
    pub(super) const EMPTY: Self = Self(1);
    /// There was no node when the parent was moved.
    pub(super) const CLOSED: Self = Self(2);
    const INNER: usize = 4;

    pub(super) fn node(node: *const Node) -> Self {
        Self(node as usize)
    }

    pub(super) fn inner(inner: *const Inner) -> Self {
        Self(inner as usize | Self::INNER)
    }
}

/// What a [`Child`] is.
pub(super) enum Kin<'a> {
    Untouched,
    Empty,
    Closed,
    Node(&'a Node),
    Inner(&'a Inner),
}

impl Child {
    /// # Safety
    ///
    /// The child is live, and stays so for `'a`: the thread is pinned and has loaded it since, or it is not linked yet.
    #[inline(always)]
    pub(super) unsafe fn kin<'a>(self) -> Kin<'a> {
        match self {
            Self::UNTOUCHED => Kin::Untouched,
            Self::EMPTY => Kin::Empty,
            Self::CLOSED => Kin::Closed,
            Self(address) if address & Self::INNER == 0 => {
                // SAFETY: by the contract of this function.
                Kin::Node(unsafe { &*(address as *const Node) })
            }
            Self(address) => {
                // SAFETY: by the contract of this function.
                Kin::Inner(unsafe { &*((address & !Self::INNER) as *const Inner) })
            }
        }
    }
}

impl Child {
    /// The target of the move of which this is the source, if there is one that has been decided.
    ///
    /// # Safety
    ///
    /// As for [`kin`](Self::kin).
    pub(super) unsafe fn target(self) -> Option<Self> {
        // SAFETY: by the contract of this function.
        let moving = match unsafe { self.kin() } {
            Kin::Node(node) => &node.moving,
            Kin::Inner(inner) => &inner.moving,
            _ => return None,
        };
        let moved = load_move(moving).filter(|moved| moved.source == self)?;
        moved.target()
    }
}

/// Records in 64 lines of a node that no range has read: in nodes that are half full.
const USUAL_DENSITY: u32 = 128;

/// A data node.
#[repr(C, align(64))]
pub(super) struct Node {
    // What every operation reads, in one line.
    /// The line of a key, or the piece if there are pieces.
    pub(super) model: Model,
    pub(super) pieces: Option<Box<Pieces>>,
    slots: *const Slot,
    /// How the node is moved to its successor; null if it is not.
    pub(super) moving: AtomicPtr<Move>,
    /// Lines of a window.
    pub(super) window: u32,
    /// Whether the link to this node is durable.
    pub(super) linked: AtomicBool,
    // What only some read.
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) slot_count: usize,
    /// Lines that the model chooses from.
    pub(super) lines: u64,
    pub(super) groups: Box<[AtomicPtr<Bucket>]>,
    pub(super) block: Block,
    /// The word that links here, while `linked` is false.
    pub(super) cell: *const Cell,
    /// Inserts that went far from their predicted places, and inserts into buckets.
    pub(super) far: AtomicU32,
    /// Records of those with which it was made that lie far from their predicted places.
    pub(super) born_far: AtomicU32,
    /// Records with which it was made by this process; `u32::MAX` if another one has made it.
    pub(super) born: u32,
    /// Records in 64 lines, as the last range found them, which says how many lines the next one needs.
    pub(super) density: AtomicU32,
    /// What operations come here.
    pub(super) samples: Samples,
    /// Nodes in a row, this one the last, that were laid out anew since they were full.
    pub(super) expansions: u32,
}

// SAFETY: all that is written after a node has been made is atomic; the pointers lead to memory that stays as long as the node.
unsafe impl Send for Node {}
// SAFETY: as for `Send`.
unsafe impl Sync for Node {}

impl Node {
    /// The node in `block`, whose header is valid; `None` if its model leads beyond its lines.
    pub(super) fn new(block: Block, expansions: u32) -> Option<Self> {
        let header = block.data_header();
        let (first, span) = (header.first.load(), header.span.load());
        let shape = header.shape.load();
        let lines = shape & 0xffff_ffff;
        let (low, high) = (header.low.load(), header.high.load());
        let has_pieces = shape & HAS_PIECES != 0;
        let at = LINE * first_slot_line(block.bytes, has_pieces);
        let slot_count = slot_lines(block.bytes, has_pieces) as usize * LINE_SLOTS;
        let (pieces, places) = match has_pieces {
            true => {
                let pieces_at = LINE * first_slot_line(block.bytes, false);
                let cells = block.part::<Cell>(pieces_at, PIECES as u64 / 4);
                (Some(Box::new(Pieces::load(cells, lines)?)), PIECES as u64)
            }
            false => (None, lines),
        };
        let model = Model::from_parts(first, span, header.multiplier.load());
        if model.line(u64::MAX) >= places {
            return None;
        }
        Some(Self {
            model,
            pieces,
            slots: block.part::<Slot>(at, slot_count as u64).as_ptr(),
            moving: AtomicPtr::default(),
            window: (shape >> 32 & 0xffff) as u32,
            linked: AtomicBool::new(true),
            low,
            high,
            slot_count,
            lines,
            groups: (0..lines.div_ceil(GROUP_LINES))
                .map(|_| AtomicPtr::default())
                .collect(),
            cell: std::ptr::null(),
            far: AtomicU32::new(0),
            born_far: AtomicU32::new(0),
            born: u32::MAX,
            density: AtomicU32::new(USUAL_DENSITY),
            samples: Samples::begin(Pattern::Unknown),
            expansions,
            block,
        })
    }

    /// The line in which a key is predicted.
    #[inline(always)]
    pub(super) fn predicted(&self, key: u64) -> u64 {
        line_of(key, &self.model, self.pieces.as_deref())
    }

    /// A line of slots. The model and the window lead to lines of the node alone, since `lines + window` is one more than it has.
    #[inline(always)]
    pub(super) fn line(&self, line: u64) -> &[Slot; LINE_SLOTS] {
        debug_assert!((line as usize + 1) * LINE_SLOTS <= self.slot_count);
        let first = line as usize * LINE_SLOTS;
        crate::pmem::expect_mapped(
            self.slots as usize + first * size_of::<Slot>(),
            LINE_SLOTS * size_of::<Slot>(),
        );
        // SAFETY: the line is one of the node, and the node's block stays as long as the node.
        unsafe { &*self.slots.add(first).cast() }
    }

    pub(super) fn slots(&self) -> &[Slot] {
        crate::pmem::expect_mapped(self.slots as usize, self.slot_count * size_of::<Slot>());
        // SAFETY: the node's block has so many slots, and stays as long as the node.
        unsafe { std::slice::from_raw_parts(self.slots, self.slot_count) }
    }

    /// Lines of slots, as lines of words.
    pub(super) fn lines_of_words(&self, lines: Range<u64>) -> &[KeyLine] {
        let slots =
            &self.slots()[lines.start as usize * LINE_SLOTS..lines.end as usize * LINE_SLOTS];
        // SAFETY: four slots are eight atomic words, and the first slot of a line is aligned to a line.
        unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len() / LINE_SLOTS) }
    }

    /// The words of the bucket links.
    pub(super) fn link_cell(&self, group: u64) -> &Cell {
        &self.block.cells()[(LINE / 8 + group) as usize]
    }

    /// The slots of a group's lines; those of the last group include the lines that the model never chooses.
    pub(super) fn group_slots(&self, group: u64) -> &[Slot] {
        let of_group = GROUP_LINES as usize * LINE_SLOTS;
        let start = group as usize * of_group;
        let end = if group as usize + 1 == self.groups.len() {
            self.slot_count
        } else {
            start + of_group
        };
        &self.slots()[start..end]
    }

    /// The buckets of a group, from the first level on.
    pub(super) fn buckets(&self, group: u64) -> impl Iterator<Item = &Bucket> {
        let first = load_bucket(&self.groups[group as usize]);
        std::iter::successors(first, |bucket| load_bucket(&bucket.next))
    }

    pub(super) fn all_buckets(&self) -> impl Iterator<Item = &Bucket> {
        (0..self.groups.len() as u64).flat_map(|group| self.buckets(group))
    }

    /// The key of a key word.
    #[inline(always)]
    pub(super) fn key(&self, word: u64) -> u64 {
        self.low & !super::layout::KEY_BITS | word & super::layout::KEY_BITS
    }

    /// The child word that links here.
    pub(super) fn word(&self) -> u64 {
        self.block.offset.get()
    }

    pub(super) fn dram_bytes(&self) -> u64 {
        let buckets = self.all_buckets().count() * size_of::<Bucket>();
        let pieces = self.pieces.as_ref().map_or(0, |_| size_of::<Pieces>());
        (size_of::<Self>() + size_of_val(&*self.groups) + pieces + buckets) as u64
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for group in &self.groups {
            let mut bucket = group.load(Ordering::Relaxed);
            while !bucket.is_null() && bucket != Bucket::closed() {
                // SAFETY: the buckets of a node are its own, made by `Box::into_raw`, and the node can be reached by nobody.
                let owned = unsafe { Box::from_raw(bucket) };
                bucket = owned.next.load(Ordering::Relaxed);
            }
        }
    }
}

/// A bucket: slots of a group for which there was no room in their windows.
#[repr(align(64))]
pub(super) struct Bucket {
    pub(super) block: Block,
    pub(super) next: AtomicPtr<Bucket>,
    pub(super) linked: AtomicBool,
}

impl Bucket {
    pub(super) fn new(block: Block, linked: bool) -> Self {
        Self {
            block,
            next: AtomicPtr::default(),
            linked: AtomicBool::new(linked),
        }
    }

    /// What a link to a bucket holds once no bucket may come there any more.
    pub(super) fn closed() -> *mut Self {
        std::ptr::without_provenance_mut(1)
    }

    pub(super) fn slots(&self) -> &[Slot] {
        self.block
            .part(size_of::<Slot>() as u64, bucket_slots(self.block.bytes))
    }
}

/// The bucket behind a link, if there is one.
pub(super) fn load_bucket(link: &AtomicPtr<Bucket>) -> Option<&Bucket> {
    let bucket = link.load(Ordering::Acquire);
    if bucket.is_null() || bucket == Bucket::closed() {
        return None;
    }
    // SAFETY: a bucket stays as long as its node, which has the link.
    Some(unsafe { &*bucket })
}

/// How a node, or an inner node with all beneath it, is replaced by a new one, its *target*.
#[repr(align(64))]
pub(super) struct Move {
    pub(super) source: Child,
    /// [`Child::UNTOUCHED`] as long as it has not been decided which target counts.
    target: AtomicUsize,
    /// The child word of the source.
    pub(super) source_word: u64,
    /// The source's word `moved to`.
    pub(super) cell: *const Cell,
    /// Where the source hangs: the durable word, and what mirrors it.
    pub(super) parent_cell: *const Cell,
    pub(super) parent_child: *const AtomicUsize,
    /// Where the source lies among the children of its parent.
    pub(super) side: Side,
    /// Whether the link to the target is durable.
    pub(super) linked: AtomicBool,
    /// Whether the thread that began the move is at it, with blocks for the target.
    pub(super) has_mover: AtomicBool,
    /// Operations that have come by.
    pub(super) passed: AtomicU32,
    pub(super) mode: Mode,
}

/// How the records of a source get into its target.
pub(super) enum Mode {
    /// The target is written with all records, and the parent's word is the link to it.
    Whole,
    /// The source links to the target, which is empty at first. Records are copied group by group.
    Grouped(Groups),
    /// The source is an inner node, which links to the target. Whoever began the move goes through all nodes beneath the source.
    Subtree,
}

/// How far a move is that copies records group by group.
pub(super) struct Groups {
    /// The next group to be moved; beyond the last one, helpers look for groups that others have left.
    pub(super) cursor: AtomicU32,
    /// Which groups of the source are frozen and copied.
    pub(super) done: Box<[AtomicBool]>,
}

impl Groups {
    /// None of the groups of a node has been moved.
    pub(super) fn of(node: &Node) -> Self {
        Self {
            cursor: AtomicU32::new(0),
            done: node.groups.iter().map(|_| AtomicBool::new(false)).collect(),
        }
    }

    pub(super) fn are_done(&self) -> bool {
        self.done.iter().all(|done| done.load(Ordering::Acquire))
    }
}

// SAFETY: as for `Node`: what it points to stays until it has been freed itself.
unsafe impl Send for Move {}
// SAFETY: as for `Send`.
unsafe impl Sync for Move {}

impl Move {
    pub(super) fn new(
        source: Child,
        target: Option<Child>,
        moved_to: &Cell,
        parent: (&Cell, &AtomicUsize),
        mode: Mode,
    ) -> Self {
        Self {
            source,
            target: AtomicUsize::new(target.unwrap_or(Child::UNTOUCHED).0),
            source_word: super::recover::word_of(source),
            cell: moved_to,
            parent_cell: parent.0,
            parent_child: parent.1,
            side: Side::Part,
            linked: AtomicBool::new(false),
            has_mover: AtomicBool::new(false),
            passed: AtomicU32::new(0),
            mode,
        }
    }

    /// The move of a data node, child `index` of `parent`.
    pub(super) fn of_node(
        node: &Node,
        (parent, index): (&Inner, usize),
        target: Option<Child>,
        mode: Mode,
    ) -> Self {
        let moved_to = &node.block.data_header().moved_to;
        let parent_place = (parent.cell(index), &parent.children[index]);
        Self {
            side: parent.side(index),
            ..Self::new(Child::node(node), target, moved_to, parent_place, mode)
        }
    }

    /// The target, if it has been decided which one counts.
    pub(super) fn target(&self) -> Option<Child> {
        let target = Child(self.target.load(Ordering::Acquire));
        (target != Child::UNTOUCHED).then_some(target)
    }

    /// The target of a move that has had one since it began.
    pub(super) fn linked_target(&self) -> Child {
        self.target()
            .expect("invariant: only a whole move begins without a target")
    }

    /// Decides that this target counts, unless another one does; whether it did.
    pub(super) fn decide(&self, target: Child) -> bool {
        let none = Child::UNTOUCHED.0;
        self.target
            .compare_exchange(none, target.0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    pub(super) fn cell(&self) -> &Cell {
        // SAFETY: the word lies in the source's block, which is retired together with this.
        unsafe { &*self.cell }
    }

    pub(super) fn parent_cell(&self) -> &Cell {
        // SAFETY: whoever holds this is pinned since before the source was replaced, and the parent is retired after that.
        unsafe { &*self.parent_cell }
    }

    pub(super) fn parent_child(&self) -> &AtomicUsize {
        // SAFETY: as for `parent_cell`.
        unsafe { &*self.parent_child }
    }
}

/// The move that a pointer in a node leads to.
pub(super) fn load_move(moving: &AtomicPtr<Move>) -> Option<&Move> {
    let moving = moving.load(Ordering::Acquire);
    // SAFETY: a move is freed after an epoch, together with its source, which the caller holds.
    unsafe { moving.as_ref() }
}

const _: () = assert!(NO_CHILD & 3 == 2);
