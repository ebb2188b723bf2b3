//! Inner nodes, in DRAM: keys, children, and the boxes of the children.
//!
//! ```text
//! line 0            | lock | shape | 48 bytes unused |
//! codes             64 words, sorted: the code at which each child begins; those of slots not in use are u64::MAX (stored less 2^63)
//! ties              64 words: the second half of the key at which each child begins
//! children          64 words
//! bounds            for each axis 64 times the lower end of the child's box (f32), then 64 times the negated upper end
//! ```
//!
//! A child covers the keys from its own up to the next child's. The box of a child contains all records below it. Boxes are rounded
//! outwards to f32, which halves what a search reads, and their upper ends are negated, so that a box grows by taking minima and a search
//! compares everything in one direction. The boxes of 16 children are compared at once, and the result for all children of a node is one
//! word of bits.
//!
//! Three rules allow a reader to take the version of a child before it has validated the node:
//!
//! 1. Nodes are not freed while the tree lives.
//! 2. A node that was once an upper node is never reused as a bottom node, nor the other way round.
//! 3. Every child word of an upper node is a pointer to a node of the same tree, also in slots that are not in use.
//!
//! How boxes grow while nodes change is at the head of [`boxes`](super::boxes).

use super::boxes::BoxNode;
use crate::concurrency::locks::VersionLock;
use crate::concurrency::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::engines::arena::Node;
use crate::kernels::{KeyLine, Simd, TagLine, prefetch};
use crate::pmem::geometry::sized_in_tests;
use crate::pool::Offset;
use crate::spatial::{MAX_AXES, Rect, f32_above, f32_below};

/// Most children of a node: as many as a word has bits. Fewer under test, so that inner nodes split and merge within a few hundred operations.
pub(super) const FANOUT: usize = sized_in_tests(64, 16);
const KEY_LINES: usize = FANOUT / 8;
pub(super) const BOUND_LINES: usize = FANOUT / 16;
/// Bounds of a box: two for each axis.
const BOUNDS: usize = 2 * MAX_AXES;

/// Squares below this have lost digits: it is a few times the least f32 that is not denormal.
const LEAST_SQUARE: f32 = 1e-36;

/// A key: the code of a geometry's centre on the Hilbert curve, then a hash of the whole record, which tells records of one code apart.
pub(super) type Key = u128;

pub(super) fn code_of(key: Key) -> u64 {
    (key >> 64) as u64
}

pub(super) fn key_of(code: u64, tie: u64) -> Key {
    Key::from(code) << 64 | Key::from(tie)
}

/// A code as a node stores it: so that codes are in order as signed numbers, which AVX2 compares.
#[inline(always)]
fn signed(code: u64) -> i64 {
    code as i64 ^ i64::MIN
}

#[inline(always)]
fn unsigned(stored: u64) -> u64 {
    stored ^ 1 << 63
}

/// The box of a child: the lower ends by axis, then the negated upper ends, rounded so that the box contains what it stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds(pub(super) [f32; BOUNDS]);

impl Bounds {
    pub(super) const NOTHING: Self = Self([f32::INFINITY; BOUNDS]);
    pub(super) const EVERYTHING: Self = Self([f32::NEG_INFINITY; BOUNDS]);

    #[inline(always)]
    pub(super) fn of(rect: &Rect) -> Self {
        Self(std::array::from_fn(|i| {
            if i < MAX_AXES {
                f32_below(rect.low[i])
            } else {
                -f32_above(rect.high[i - MAX_AXES])
            }
        }))
    }

    /// What the bounds of a box that meets `window` do not exceed.
    pub(super) fn limits(window: &Rect) -> Self {
        Self(std::array::from_fn(|i| {
            if i < MAX_AXES {
                f32_above(window.high[i])
            } else {
                -f32_below(window.low[i - MAX_AXES])
            }
        }))
    }

    pub(super) fn join(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].min(other.0[i])))
    }

    /// Whether `other` lies in this box, on the first axes.
    pub(super) fn contains(&self, other: &Self, axes: usize) -> bool {
        (0..axes)
            .flat_map(|axis| [axis, MAX_AXES + axis])
            .all(|i| self.0[i] <= other.0[i])
    }

    /// The box, with the first axes; it lies at zero on the others, whose bounds nobody keeps.
    #[inline(always)]
    pub(super) fn rect(&self, axes: usize) -> Rect {
        let bound = |i: usize, axis: usize| if axis < axes { self.0[i].into() } else { 0.0 };
        Rect {
            low: std::array::from_fn(|axis| bound(axis, axis)),
            high: std::array::from_fn(|axis| 0.0 - bound(MAX_AXES + axis, axis)),
        }
    }
}

/// A child of a bottom node: the offset of a leaf; whether an *unindexed range* begins there, of which only the first leaf is known; and
/// whether the records of the leaf have been counted since the open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child(u64);

impl Child {
    const UNINDEXED: u64 = 1;
    const COUNTED: u64 = 2;

    /// No leaf.
    pub(super) const NONE: Self = Self(0);

    #[inline(always)]
    pub(super) fn leaf(offset: Offset, is_counted: bool) -> Self {
        Self(offset.get() | if is_counted { Self::COUNTED } else { 0 })
    }

    /// The child that a word of a bottom node says.
    #[inline(always)]
    pub(super) fn from_word(word: u64) -> Self {
        Self(word)
    }

    pub(super) fn unindexed(offset: Offset) -> Self {
        Self(offset.get() | Self::UNINDEXED)
    }

    #[inline(always)]
    pub(super) fn offset(self) -> Offset {
        Offset::from_word(self.0 & !(Self::UNINDEXED | Self::COUNTED))
    }

    #[inline(always)]
    pub(super) fn is_unindexed(self) -> bool {
        self.0 & Self::UNINDEXED != 0
    }

    #[inline(always)]
    pub(super) fn is_counted(self) -> bool {
        self.0 & Self::COUNTED != 0
    }
}

/// An inner node. The head of this file has a drawing.
#[repr(C, align(64))]
pub(super) struct Inner {
    lock: VersionLock,
    /// The level in the low half, 0 if the children are leaves; the number of children in the high half.
    shape: AtomicU64,
    unused: [AtomicU64; 6],
    codes: [KeyLine; KEY_LINES],
    ties: [AtomicU64; FANOUT],
    children: [AtomicU64; FANOUT],
    bounds: [[TagLine; BOUND_LINES]; BOUNDS],
}

// The model checker's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Inner>() == 64 + FANOUT * (24 + 4 * BOUNDS) && FANOUT <= 64);

/// A child with its key and its box, copied out of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(super) key: Key,
    pub(super) word: u64,
    pub(super) bounds: Bounds,
}

impl Entry {
    pub(super) fn leaf(key: Key, child: Child, bounds: Bounds) -> Self {
        Self {
            key,
            word: child.0,
            bounds,
        }
    }

    pub(super) fn node<N>(key: Key, node: &N, bounds: Bounds) -> Self {
        Self {
            key,
            word: std::ptr::from_ref(node) as u64,
            bounds,
        }
    }
}

impl Inner {
    #[inline(always)]
    pub(super) fn lock(&self) -> &VersionLock {
        &self.lock
    }

    /// 0 if the children are leaves. Never changes between zero and other numbers.
    #[inline(always)]
    pub(super) fn level(&self) -> u32 {
        self.shape.load(Ordering::Relaxed) as u32
    }

    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        // Bounded, since the number may be outdated.
        ((self.shape.load(Ordering::Relaxed) >> 32) as usize).min(FANOUT)
    }

    #[inline(always)]
    fn code_cell(&self, slot: usize) -> &AtomicU64 {
        &self.codes[slot / 8].0[slot % 8]
    }

    #[inline(always)]
    fn bound_cell(&self, bound: usize, slot: usize) -> &AtomicU32 {
        &self.bounds[bound][slot / 16].0[slot % 16]
    }

    /// The first half of the key at which the child in `slot` begins.
    #[inline(always)]
    fn code(&self, slot: usize) -> u64 {
        unsigned(self.code_cell(slot).load(Ordering::Relaxed))
    }

    /// The key at which the child in `slot` begins.
    #[inline(always)]
    pub(super) fn key(&self, slot: usize) -> Key {
        key_of(self.code(slot), self.ties[slot].load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn child(&self, slot: usize) -> Child {
        Child::from_word(self.children[slot].load(Ordering::Relaxed))
    }

    /// The node in `slot` of an upper node. It may be the wrong one, unless the version of this node is checked afterwards.
    #[inline(always)]
    pub(super) fn node(&self, slot: usize) -> &Inner {
        // Acquire: the node was written before it was put here.
        let word = self.children[slot].load(Ordering::Acquire);
        // SAFETY: every child word of an upper node is a pointer to a node of the arena, which frees no node while the tree lives
        // (rules 1 and 3 at the head of this file).
        unsafe { &*(word as *const Inner) }
    }

    #[inline(always)]
    pub(super) fn bounds(&self, slot: usize) -> Bounds {
        Bounds(std::array::from_fn(|i| {
            f32::from_bits(self.bound_cell(i, slot).load(Ordering::Relaxed))
        }))
    }

    /// The slot of the child that covers `key`.
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, key: Key) -> usize {
        let bound = signed(code_of(key));
        let mut below = 0;
        // No closure: the compiler does not inline intrinsics into one.
        for line in &self.codes {
            below += S::count_below(line, 0xff, bound);
        }
        // The first child covers everything below the second one. Few children begin with one code: ties lie in other lines, and are looked
        // at for those only.
        let count = self.count();
        let mut slot = below.min(count).max(1) - 1;
        while slot + 1 < count && self.code(slot + 1) <= code_of(key) && self.key(slot + 1) <= key {
            slot += 1;
        }
        slot
    }

    /// The children whose boxes meet the window of `limits`, as bits. Some more may be among them, since boxes are rounded.
    #[inline(always)]
    pub(super) fn meeting<S: Simd, const AXES: usize>(&self, limits: &Bounds) -> u64 {
        let mut all = 0;
        for line in 0..BOUND_LINES {
            let mut meets = 0xffff;
            for axis in 0..AXES {
                for bound in [axis, MAX_AXES + axis] {
                    meets &= S::floats_at_most(&self.bounds[bound][line], limits.0[bound]);
                }
            }
            all |= u64::from(meets) << (16 * line);
        }
        let count = self.count();
        if count < 64 {
            all & ((1 << count) - 1)
        } else {
            all
        }
    }

    /// Lower bounds of the squares of the distances from a point to the boxes of 16 children: those from `16 * line` on. The point lies between
    /// `down` and `up` on each axis.
    #[inline(always)]
    pub(super) fn square_bounds<S: Simd, const AXES: usize>(
        &self,
        line: usize,
        up: &[f32; MAX_AXES],
        down: &[f32; MAX_AXES],
    ) -> [f32; 16] {
        let mut sums = [0.0; 16];
        for axis in 0..AXES {
            let (low, negated) = (
                &self.bounds[axis][line],
                &self.bounds[MAX_AXES + axis][line],
            );
            S::add_squares(low, negated, up[axis], down[axis], &mut sums);
        }
        for sum in &mut sums {
            // Less than the square by more than the rounding of all operations. A square that is too large for an f32 is above the greatest
            // one, and one so small that an f32 has no digits for it is above zero.
            let less = *sum * (1.0 - 32.0 * f32::EPSILON);
            *sum = if less < LEAST_SQUARE {
                0.0
            } else {
                less.min(f32::MAX)
            };
        }
        sums
    }

    /// Asks the caches for the lines that a search by key reads.
    #[inline(always)]
    pub(super) fn prefetch_keys(&self) {
        prefetch(&raw const self.lock);
        for line in &self.codes {
            prefetch(line);
        }
    }

    /// Asks the caches for the lines that say where the children are.
    #[inline(always)]
    pub(super) fn prefetch_children(&self) {
        for line in self.children.as_chunks::<8>().0 {
            prefetch(line);
        }
    }

    /// Asks the caches for the lines of one child, but for those that [`prefetch_keys`](Self::prefetch_keys) asks for.
    #[inline(always)]
    pub(super) fn prefetch_slot(&self, slot: usize, axes: usize) {
        prefetch(&raw const self.children[slot]);
        prefetch(&raw const self.ties[slot]);
        for axis in 0..axes {
            for bound in [axis, MAX_AXES + axis] {
                prefetch(self.bound_cell(bound, slot));
            }
        }
    }

    /// Asks the caches for the lines that a search by window reads, among geometries with so many axes.
    #[inline(always)]
    pub(super) fn prefetch_bounds(&self, axes: usize) {
        prefetch(&raw const self.lock);
        for axis in 0..axes {
            for line in self.bounds[axis]
                .iter()
                .chain(&self.bounds[MAX_AXES + axis])
            {
                prefetch(line);
            }
        }
    }
}

/// What only the holder of the node's lock may do.
impl Inner {
    /// Makes this an empty node of `level`.
    pub(super) fn reset(&self, level: u32) {
        // Fills the slots not in use of an upper node, which must hold pointers to nodes too.
        let filler = if level == 0 {
            0
        } else {
            std::ptr::from_ref(self) as u64
        };
        for slot in 0..FANOUT {
            self.set(
                slot,
                &Entry {
                    key: Key::MAX,
                    word: filler,
                    bounds: Bounds::NOTHING,
                },
            );
        }
        self.shape.store(level.into(), Ordering::Relaxed);
    }

    pub(super) fn set_child(&self, slot: usize, child: Child) {
        self.children[slot].store(child.0, Ordering::Relaxed);
    }
}

impl BoxNode for Inner {
    const FANOUT: usize = FANOUT;
    /// 14 of 16 slots.
    const LOADED: usize = FANOUT * 14 / 16;

    fn count(&self) -> usize {
        self.count()
    }

    fn node(&self, slot: usize) -> &Self {
        self.node(slot)
    }

    #[inline(always)]
    fn find<S: Simd>(&self, key: Key) -> usize {
        self.find::<S>(key)
    }

    #[inline(always)]
    fn key(&self, slot: usize) -> Key {
        self.key(slot)
    }

    #[inline(always)]
    fn child(&self, slot: usize) -> Child {
        self.child(slot)
    }

    #[inline(always)]
    fn prefetch_keys(&self) {
        self.prefetch_keys();
    }

    #[inline(always)]
    fn bound_cell(&self, bound: usize, slot: usize) -> &AtomicU32 {
        self.bound_cell(bound, slot)
    }

    #[inline(always)]
    fn bounds(&self, slot: usize) -> Bounds {
        self.bounds(slot)
    }

    fn set_bounds(&self, slot: usize, bounds: &Bounds) {
        for (i, bound) in bounds.0.iter().enumerate() {
            self.bound_cell(i, slot)
                .store(bound.to_bits(), Ordering::Relaxed);
        }
    }

    fn entry(&self, slot: usize) -> Entry {
        Entry {
            key: self.key(slot),
            word: self.children[slot].load(Ordering::Relaxed),
            bounds: self.bounds(slot),
        }
    }

    fn set(&self, slot: usize, entry: &Entry) {
        self.code_cell(slot)
            .store(signed(code_of(entry.key)) as u64, Ordering::Relaxed);
        self.ties[slot].store(entry.key as u64, Ordering::Relaxed);
        // Release: a reader that follows a pointer to a node finds the node written.
        self.children[slot].store(entry.word, Ordering::Release);
        self.set_bounds(slot, &entry.bounds);
    }

    fn clear(&self, slot: usize) {
        let word = self.children[slot].load(Ordering::Relaxed);
        self.set(
            slot,
            &Entry {
                key: Key::MAX,
                word,
                bounds: Bounds::NOTHING,
            },
        );
    }

    fn set_count(&self, count: usize) {
        let level = u64::from(self.level());
        self.shape
            .store(level | (count as u64) << 32, Ordering::Relaxed);
    }
}

// SAFETY: `Inner` consists of atomics alone.
unsafe impl Node for Inner {
    #[inline(always)]
    fn lock(&self) -> &VersionLock {
        &self.lock
    }

    fn level(&self) -> u32 {
        self.level()
    }

    fn reset(&self, level: u32) {
        self.reset(level);
    }
}
