//! Inner nodes, in DRAM.
//!
//! A node consists of a first line and seven *segments* of up to 32 separators and children each: 57 cache lines (an odd
//! number, so that the first lines of many nodes spread over all sets of the caches):
//!
//! ```text
//! line 0         | lock | shape | pivot 1 | pivot 2 | ... | pivot 6 |     pivot g = first key of segment g
//! line 1 + 8g    | key 0  | key 1  | ... | key 7  |                       segment g: 32 keys, sorted,
//! ...            | ...                   | key 31 |
//! line 5 + 8g    | child 0  | ...        | child 7  |                     and their children
//! ...            | ...                   | child 31 |
//! ```
//!
//! A child covers the keys from its own up to the next child's; the first key of all is the lower end of the node. A
//! search compares the pivots, then the keys of one segment, then picks the child, all without a branch. The first lines of
//! a whole tree of 20 million records stay in the second-level cache, and the lines of a segment are fetched side by side: so
//! a node costs one miss, not two.
//!
//! Groups in use come first, and each of them has a child. An insert moves keys inside its segment only; when the segment is
//! full, the children are spread evenly over all segments.
//!
//! A word of a node that stands for a key is its [`bound`]: the signed comparison, the only one that AVX2 has, then says in one instruction
//! whether a key is at or after that key. Words that are not in use are above every key.
//!
//! The children of a *bottom node* are leaves, the children of an *upper node* are nodes. Three rules allow a reader to take
//! the version of a child before it has validated the node (the reader may not use anything else of the child before that):
//!
//! 1. Nodes are not freed while the tree lives.
//! 2. A node that was once an upper node is never reused as a bottom node, nor the other way round.
//! 3. Every child word of an upper node is a pointer to a node of the same tree, also in slots that are not in use.
//!
//! So a reader that follows an outdated pointer reads old versions, finds one of them changed, and begins again. Versions
//! only grow.
//!

mod change;
mod walk;

use crate::concurrency::locks::VersionLock;
use crate::concurrency::sync::atomic::{AtomicU64, Ordering};
use crate::engines::arena::Node;
use crate::engines::inner_nodes::InnerNode;
use crate::kernels::{KeyLine, Simd, prefetch, whole_part};
use crate::pmem::geometry::sized_in_tests;
use crate::pool::Offset;

// Slots in a segment, and segments in a node: 57 lines in all. Smaller under test, so that inner nodes split and merge within a few
// hundred operations.
const SEGMENT_SLOTS: usize = sized_in_tests(32, 8);
const SEGMENTS: usize = sized_in_tests(7, 2);
/// The words of the first line that are pivots, as bits.
const PIVOTS: u8 = 0b1111_1100;
/// Child slots of a node, used or not.
const SLOTS: usize = SEGMENT_SLOTS * SEGMENTS;
/// Most children of a node. Two slots per segment stay free, so that a full segment is rare: an insert into a full segment
/// spreads all children of the node anew.
pub(super) const FANOUT: usize = SLOTS - 2 * SEGMENTS;

/// The word that stands for the first key of a child: the key less one, with the highest bit flipped. As signed numbers, it is below
/// [`probe`] of a key if that key is at or after the child's. The key 0 needs no such word: only the first child of a node can have it, and
/// the words of first children are not compared. So what would stand for it means that a slot is not in use.
#[inline(always)]
fn bound(key: u64) -> u64 {
    key.wrapping_sub(1) ^ 1 << 63
}

/// The key that a word stands for.
#[inline(always)]
fn key_of(bound: u64) -> u64 {
    (bound ^ 1 << 63).wrapping_add(1)
}

/// What the words of a node are compared with in a search for a key.
#[inline(always)]
fn probe(key: u64) -> i64 {
    (key ^ 1 << 63) as i64
}

/// The word of a slot or of a segment without children: above every [`probe`], or equal to it.
const UNUSED: u64 = i64::MAX as u64;

/// A part of a node: keys, then the children that begin at these keys.
#[repr(C)]
struct Segment {
    keys: [KeyLine; SEGMENT_SLOTS / 8],
    children: [AtomicU64; SEGMENT_SLOTS],
}

/// The first line, kept as one line of words so that the pivots can be compared at once.
#[repr(C, align(64))]
struct Head {
    lock: VersionLock,
    /// A [`NodeShape`].
    shape: AtomicU64,
    pivots: [AtomicU64; 6],
}

/// An inner node. The head of this file has a drawing.
#[repr(C)]
pub(super) struct Inner {
    head: Head,
    segments: [Segment; SEGMENTS],
}

const _: () = {
    assert!(size_of::<Head>() == 64);
    assert!(size_of::<Segment>() == 16 * SEGMENT_SLOTS);
    assert!(size_of::<Inner>() == 64 + 16 * SLOTS);
    assert!(SEGMENTS <= 7, "the first line has six pivots");
    assert!(
        FANOUT.div_ceil(SEGMENTS) < SEGMENT_SLOTS,
        "spreading makes room"
    );
};

/// A child of a bottom node: the offset of a leaf, and whether an *unindexed range* begins there. Then the bottom node knows the
/// first leaf of the range only; the leaves to its right, up to the next separator, are in the chain but have no separator yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child(u64);

impl Child {
    const UNINDEXED: u64 = 1;

    #[inline(always)]
    pub(super) fn leaf(offset: Offset) -> Self {
        Self(offset.get())
    }

    /// What a bottom node holds of this child, which begins at `key`.
    pub(super) fn entry(self, key: u64) -> (u64, u64) {
        (key, self.0)
    }

    pub(super) fn unindexed(offset: Offset) -> Self {
        Self(offset.get() | Self::UNINDEXED)
    }

    #[inline(always)]
    pub(super) fn offset(self) -> Offset {
        Offset::from_word(self.0 & !Self::UNINDEXED)
    }

    #[inline(always)]
    pub(super) fn is_unindexed(self) -> bool {
        self.0 & Self::UNINDEXED != 0
    }
}

/// The level of a node, in byte 0, and the number of children in each of its segments, in the other bytes. This is a copy, which
/// may be outdated until the node is validated; every slot that its functions return is inside the node.
#[derive(Clone, Copy)]
pub(super) struct NodeShape(u64);

impl NodeShape {
    #[inline(always)]
    fn in_segment(self, segment: usize) -> usize {
        // The count never exceeds the limit; `min` lets the compiler omit bounds checks.
        ((self.0 >> (8 * segment + 8)) as u8 as usize).min(SEGMENT_SLOTS)
    }

    /// 0 if the children are leaves.
    #[inline(always)]
    fn level(self) -> u32 {
        u32::from(self.0 as u8)
    }

    /// Number of children.
    fn count(self) -> usize {
        (0..SEGMENTS).map(|segment| self.in_segment(segment)).sum()
    }

    fn with(self, segment: usize, count: usize) -> Self {
        let shift = 8 * segment + 8;
        Self(self.0 & !(0xff << shift) | (count as u64) << shift)
    }

    /// The slot of the last child; 0 if there is none.
    #[inline(always)]
    pub(super) fn last(self) -> usize {
        let bytes = 8 - (self.0 | 0x100).leading_zeros() as usize / 8;
        let segment = (bytes - 2).min(SEGMENTS - 1);
        segment * SEGMENT_SLOTS + self.in_segment(segment).saturating_sub(1)
    }

    /// The slot of the next child to the right.
    #[inline(always)]
    pub(super) fn after(self, slot: usize) -> Option<usize> {
        let (segment, place) = (slot / SEGMENT_SLOTS, slot % SEGMENT_SLOTS);
        if place + 1 < self.in_segment(segment) {
            Some(slot + 1)
        } else if segment + 1 < SEGMENTS && self.in_segment(segment + 1) > 0 {
            Some((segment + 1) * SEGMENT_SLOTS)
        } else {
            None
        }
    }

    /// The slot of the next child to the left.
    #[inline(always)]
    pub(super) fn before(self, slot: usize) -> Option<usize> {
        let (segment, place) = (slot / SEGMENT_SLOTS, slot % SEGMENT_SLOTS);
        if place > 0 {
            Some(slot - 1)
        } else {
            let segment = segment.checked_sub(1)?;
            Some(segment * SEGMENT_SLOTS + self.in_segment(segment).saturating_sub(1))
        }
    }
}

/// A slot as a search finds it: its segment, and its place in the segment.
#[derive(Clone, Copy)]
pub(super) struct Position {
    segment: usize,
    place: usize,
}

impl Position {
    #[inline(always)]
    fn of(slot: usize) -> Self {
        Self {
            segment: slot / SEGMENT_SLOTS,
            place: slot % SEGMENT_SLOTS,
        }
    }

    #[inline(always)]
    pub(super) fn slot(self) -> usize {
        self.segment * SEGMENT_SLOTS + self.place
    }
}

impl Inner {
    /// The node's version lock.
    #[inline(always)]
    pub(super) fn lock(&self) -> &VersionLock {
        &self.head.lock
    }

    #[inline(always)]
    pub(super) fn shape(&self) -> NodeShape {
        NodeShape(self.head.shape.load(Ordering::Relaxed))
    }

    /// Number of children.
    pub(super) fn count(&self) -> usize {
        self.shape().count()
    }

    /// 0 if the children are leaves.
    #[inline(always)]
    pub(super) fn level(&self) -> u32 {
        self.shape().level()
    }

    /// The key of the child in `slot`: the lowest that it covers.
    #[inline(always)]
    pub(super) fn key(&self, slot: usize) -> u64 {
        let (segment, place) = (slot / SEGMENT_SLOTS, slot % SEGMENT_SLOTS);
        key_of(if place == 0 && segment > 0 {
            // The same word, in a line that a search has already read.
            self.head.pivots[segment - 1].load(Ordering::Relaxed)
        } else {
            self.key_cell(slot).load(Ordering::Relaxed)
        })
    }

    /// The key of the next child to the right of `slot`, if there is one.
    #[inline(always)]
    pub(super) fn next_key(&self, slot: usize) -> Option<u64> {
        let (segment, place) = (slot / SEGMENT_SLOTS, slot % SEGMENT_SLOTS);
        let load =
            |word: Option<&AtomicU64>| word.map_or(UNUSED, |w| w.load(Ordering::Relaxed)) as i64;
        let keys = &self.segments[segment].keys;
        let in_segment = load(
            keys.get((place + 1) / 8)
                .map(|line| &line.0[(place + 1) % 8]),
        );
        let next = in_segment.min(load(self.head.pivots.get(segment))) as u64;
        (next != UNUSED).then(|| key_of(next))
    }

    #[inline(always)]
    fn child_cell(&self, slot: usize) -> &AtomicU64 {
        &self.segments[slot / SEGMENT_SLOTS].children[slot % SEGMENT_SLOTS]
    }

    #[inline(always)]
    fn key_cell(&self, slot: usize) -> &AtomicU64 {
        let place = slot % SEGMENT_SLOTS;
        &self.segments[slot / SEGMENT_SLOTS].keys[place / 8].0[place % 8]
    }

    #[inline(always)]
    fn word(&self, slot: usize) -> u64 {
        self.child_cell(slot).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn word_at(&self, at: Position) -> u64 {
        // Acquire: a node was written before it was put here.
        self.segments[at.segment].children[at.place].load(Ordering::Acquire)
    }

    /// The child in `slot` of a bottom node.
    #[inline(always)]
    pub(super) fn child(&self, slot: usize) -> Child {
        Child(self.word(slot))
    }

    /// The node in `slot` of an upper node. It may be the wrong one, unless this node's version is checked afterwards.
    #[inline(always)]
    pub(super) fn node(&self, slot: usize) -> &Inner {
        self.node_at(Position::of(slot))
    }

    /// [`node`](Self::node) at a position.
    #[inline(always)]
    pub(super) fn node_at(&self, at: Position) -> &Inner {
        let word = self.word_at(at);
        // SAFETY: every child word of an upper node is a pointer to a node of the arena, which frees no node while the tree lives
        // (rules 1 and 3 at the head of this file).
        unsafe { &*(word as *const Inner) }
    }

    /// The slots of all children, from left to right.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> {
        let shape = self.shape();
        (0..SEGMENTS).flat_map(move |segment| {
            (0..shape.in_segment(segment)).map(move |i| segment * SEGMENT_SLOTS + i)
        })
    }

    /// The slot of the child that covers `key`.
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, key: u64) -> usize {
        self.find_position::<S>(key).slot()
    }

    /// Where the child is that covers `key`.
    #[inline(always)]
    pub(super) fn find_position<S: Simd>(&self, key: u64) -> Position {
        self.find_in_segment::<S>(self.find_segment::<S>(key), key)
    }

    /// The segment that covers `key`.
    #[inline(always)]
    pub(super) fn find_segment<S: Simd>(&self, key: u64) -> usize {
        // SAFETY: `Head` is one aligned line of eight words, all atomics.
        let line = unsafe { &*std::ptr::from_ref(&self.head).cast::<KeyLine>() };
        let segment = S::count_below(line, PIVOTS, probe(key));
        if SEGMENTS < 7 {
            segment.min(SEGMENTS - 1)
        } else {
            segment
        }
    }

    /// Asks the caches for all lines of a segment.
    #[inline(always)]
    pub(super) fn prefetch_segment(&self, segment: usize) {
        self.prefetch_keys(segment);
        self.prefetch_children(segment);
    }

    #[inline(always)]
    pub(super) fn prefetch_keys(&self, segment: usize) {
        for line in &self.segments[segment].keys {
            prefetch(line);
        }
    }

    /// Asks the caches for the line that says which child is in `slot`.
    #[inline(always)]
    pub(super) fn prefetch_child(&self, slot: usize) {
        prefetch(self.child_cell(slot));
    }

    /// Asks the caches for the segment of the bottom node at a position in which `key` would be if that node's keys were evenly spread.
    /// A guess, made while the first line of that node is on its way; so nothing here need be validated.
    #[inline(always)]
    pub(super) fn prefetch_likely_segment(&self, at: Position, key: u64) {
        let keys = &self.segments[at.segment].keys;
        let key_at = |place: usize| keys[place / 8].0[place % 8].load(Ordering::Relaxed);
        let low = key_at(at.place);
        let mut high = key_at((at.place + 1) % SEGMENT_SLOTS);
        if high == UNUSED {
            // The last child of a segment. That of the last segment ends where a node further up says, which is not looked up.
            let pivot = self.head.pivots.get(at.segment);
            high = pivot.map_or(UNUSED, |pivot| pivot.load(Ordering::Relaxed));
        }
        // Halves, because a signed number is converted by one instruction.
        let half = |distance: u64| (distance >> 1) as i64 as f32;
        let part = half((probe(key) as u64).wrapping_sub(low)) / half(high.wrapping_sub(low));
        let segment = whole_part(part * SEGMENTS as f32) as u32 as usize;
        self.node_at(at).prefetch_segment(segment.min(SEGMENTS - 1));
    }

    #[inline(always)]
    fn prefetch_children(&self, segment: usize) {
        for line in self.segments[segment].children.chunks(8) {
            prefetch(line.as_ptr());
        }
    }

    /// Where the child is that covers `key`, which lies in `segment`.
    #[inline(always)]
    pub(super) fn find_in_segment<S: Simd>(&self, segment: usize, key: u64) -> Position {
        let keys = &self.segments[segment].keys;
        // Fewer instructions than comparing all lines: the first keys of the lines say which line to compare.
        let probe = probe(key);
        let mut line = 0;
        for (i, first) in keys.iter().enumerate().skip(1) {
            if (first.0[0].load(Ordering::Relaxed) as i64) < probe {
                line = i;
            }
        }
        // The first key of the line is known not to be above `key`. In the first line it is a pivot, or the lower end of the node.
        let place = line * 8 + S::count_below(&keys[line], !1, probe);
        Position { segment, place }
    }

    /// The child of a bottom node that covers `key`, to be validated.
    #[inline(always)]
    pub(super) fn leaf_for<S: Simd>(&self, key: u64) -> Child {
        let segment = self.find_segment::<S>(key);
        self.prefetch_children(segment);
        Child(self.word_at(self.find_in_segment::<S>(segment, key)))
    }

    /// Asks the caches for the line that a search reads first.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(&raw const self.head);
    }
}

impl InnerNode for Inner {
    const FANOUT: usize = FANOUT;
    /// 14 of 15 slots.
    const LOADED: usize = FANOUT * 14 / 15;

    type Key = u64;
    const LOWEST_KEY: u64 = 0;
    /// The key and the word of a child.
    type Entry = (u64, u64);

    fn count(&self) -> usize {
        self.count()
    }

    fn node(&self, slot: usize) -> &Self {
        self.node(slot)
    }

    fn last(&self) -> usize {
        self.shape().last()
    }

    fn after(&self, slot: usize) -> Option<usize> {
        self.shape().after(slot)
    }

    fn before(&self, slot: usize) -> Option<usize> {
        self.shape().before(slot)
    }

    fn entries(&self) -> Children {
        self.children()
    }

    fn refill(&self, children: &[(u64, u64)]) {
        self.refill(children);
    }

    fn insert(&self, slot: usize, &(key, word): &(u64, u64)) {
        self.insert_word(slot, key, word);
    }

    fn remove(&self, slot: usize) {
        self.remove(slot);
    }

    fn key_of(&(key, _): &(u64, u64)) -> u64 {
        key
    }

    fn entry_for(key: u64, child: &Self) -> (u64, u64) {
        (key, std::ptr::from_ref(child) as u64)
    }
}

// SAFETY: `Inner` consists of atomics alone.
unsafe impl Node for Inner {
    #[inline(always)]
    fn lock(&self) -> &VersionLock {
        self.lock()
    }

    fn level(&self) -> u32 {
        self.level()
    }

    fn reset(&self, level: u32) {
        self.reset(level);
    }
}

/// Children with their keys, copied out of a node.
pub(super) type Children = Vec<(u64, u64)>;

#[cfg(all(test, not(loom)))]
mod tests;
