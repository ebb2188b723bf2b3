//! Inner nodes, in DRAM.
//!
//! A node holds up to 56 separators and children in 15 cache lines (an odd number, so that the first lines of many nodes
//! spread over all sets of the caches):
//!
//! ```text
//! line 0       | lock | meta | pivot 0 | pivot 1 | ... | pivot 5 |     pivot g = key 8(g+1)
//! line 1 + 2g  | key 8g | key 8g+1 | ... | key 8g+7 |
//! line 2 + 2g  | child 8g | ...          | child 8g+7 |
//! ```
//!
//! Child `i` covers the keys from `key i` up to `key i+1`; `key 0` is the lower end of the whole node. A search compares
//! the pivots, then the keys of one group, then picks the child: three lines, no branch. Keys beyond the count are
//! `u64::MAX`.
//!
//! A bottom node's children are leaves, an upper node's are nodes. Three rules let a reader follow a child before it has
//! validated the node: nodes are never given back to the system while the tree lives; a node that was once an upper node
//! is never used as a bottom node, nor the other way round; and every child word of an upper node is a pointer to a
//! node, also those beyond the count. So a reader that has lost its way reads old nodes, finds a version changed, and begins
//! again. Versions only grow.
//!
//! The last child is repeated in the last slot, where a search for `u64::MAX` ends: so lookups need not know the count.

use super::leaf::Offset;
use crate::index::simd::{KeyLine, Simd, prefetch};
use crate::locks::{VersionLock, WriteGuard};
use crate::sync::atomic::{AtomicU64, Ordering};
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

const GROUP: usize = 8;
#[cfg(not(test))]
const GROUPS: usize = 7;
/// Smaller under test, so that inner nodes split and merge within a few hundred operations.
#[cfg(test)]
const GROUPS: usize = 2;
/// The words of the first line that are pivots, as bits.
const PIVOTS: u8 = 0b1111_1100;
/// Most children of a node.
pub(super) const FANOUT: usize = GROUP * GROUPS;

/// One child slot's group: eight keys, then their eight children.
#[repr(C)]
struct Group {
    keys: KeyLine,
    children: [AtomicU64; GROUP],
}

/// The first line, kept as one line of words so that the pivots can be compared at once.
#[repr(C, align(64))]
struct Head {
    lock: VersionLock,
    /// Bits 0..31 number of children, bits 32..63 level: 0 for a bottom node.
    meta: AtomicU64,
    pivots: [AtomicU64; 6],
}

/// An inner node; see the module.
#[repr(C)]
pub(super) struct Inner {
    head: Head,
    groups: [Group; GROUPS],
}

const _: () = {
    assert!(size_of::<Head>() == 64);
    assert!(size_of::<Group>() == 128);
    assert!(size_of::<Inner>() == 64 + 128 * GROUPS);
    assert!(GROUPS <= 7, "the first line has six pivots");
};

/// What a bottom node says of a child: the offset of a leaf, and whether the leaves to its right, up to the next
/// separator, are not indexed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child(u64);

impl Child {
    const GAP: u64 = 1;

    #[inline(always)]
    pub(super) fn leaf(offset: Offset) -> Self {
        Self(offset)
    }

    pub(super) fn gap(offset: Offset) -> Self {
        Self(offset | Self::GAP)
    }

    #[inline(always)]
    pub(super) fn offset(self) -> Offset {
        self.0 & !Self::GAP
    }

    #[inline(always)]
    pub(super) fn is_gap(self) -> bool {
        self.0 & Self::GAP != 0
    }
}

impl Inner {
    /// The node's version lock.
    #[inline(always)]
    pub(super) fn lock(&self) -> &VersionLock {
        &self.head.lock
    }

    /// Number of children.
    #[inline(always)]
    pub(super) fn count(&self) -> usize {
        // A torn read may be anything; the clamp keeps indexes inside the node until the version check.
        (self.head.meta.load(Ordering::Relaxed) as u32 as usize).min(FANOUT)
    }

    /// 0 if the children are leaves.
    #[inline(always)]
    pub(super) fn level(&self) -> u32 {
        (self.head.meta.load(Ordering::Relaxed) >> 32) as u32
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.count() == FANOUT
    }

    #[inline(always)]
    pub(super) fn key(&self, i: usize) -> u64 {
        self.groups[i / GROUP].keys.0[i % GROUP].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn word(&self, i: usize) -> u64 {
        self.groups[i / GROUP].children[i % GROUP].load(Ordering::Relaxed)
    }

    /// Child `i` of a bottom node.
    #[inline(always)]
    pub(super) fn child(&self, i: usize) -> Child {
        Child(self.word(i))
    }

    /// The index of the child that covers `key`.
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, key: u64) -> usize {
        self.find_in_group::<S>(self.find_group::<S>(key), key)
            .min(self.count().saturating_sub(1))
    }

    /// The group that covers `key`.
    #[inline(always)]
    pub(super) fn find_group<S: Simd>(&self, key: u64) -> usize {
        // SAFETY: `Head` is one aligned line of eight words, all atomics.
        let line = unsafe { &*std::ptr::from_ref(&self.head).cast::<KeyLine>() };
        let group = S::count_at_most(line, PIVOTS, key);
        if GROUPS < 7 {
            group.min(GROUPS - 1)
        } else {
            group
        }
    }

    /// Asks the caches for all lines of the node. For writers, which cannot overlap one operation with the next, and so
    /// have bandwidth to spare but no time to wait twice.
    #[inline(always)]
    pub(super) fn prefetch_keys(&self) {
        for group in 0..GROUPS {
            self.prefetch_group(group);
        }
    }

    /// Asks the caches for both lines of a group.
    #[inline(always)]
    pub(super) fn prefetch_group(&self, group: usize) {
        prefetch(&raw const self.groups[group].keys);
        prefetch(&raw const self.groups[group].children);
    }

    /// The slot of the child that covers `key`, which lies in `group`: its index, or the last slot.
    #[inline(always)]
    pub(super) fn find_in_group<S: Simd>(&self, group: usize, key: u64) -> usize {
        group * GROUP + self.find_place::<S>(group, key)
    }

    /// [`find_in_group`](Self::find_in_group), counted from the beginning of the group. Its first key is known not to be
    /// above `key`: it is a pivot, or the lower end of the node.
    #[inline(always)]
    fn find_place<S: Simd>(&self, group: usize, key: u64) -> usize {
        S::count_at_most(&self.groups[group].keys, !1, key)
    }

    /// The node in slot `i` of an upper node. It may be the wrong one, unless this node's version is checked afterwards.
    #[inline(always)]
    pub(super) fn node(&self, i: usize) -> &Inner {
        // SAFETY: every child word of an upper node is a pointer to a node of the arena, which outlives its nodes (see
        // the module's rules).
        unsafe { &*(self.word(i) as *const Inner) }
    }

    /// The child of an upper node that covers `key`, to be validated.
    #[inline(always)]
    pub(super) fn node_for<S: Simd>(&self, key: u64) -> &Inner {
        let group = self.find_group::<S>(key);
        let word = self.child_in(group, self.find_place::<S>(group, key));
        // SAFETY: as in `node`.
        unsafe { &*(word as *const Inner) }
    }

    /// The child of a bottom node that covers `key`, to be validated.
    #[inline(always)]
    pub(super) fn leaf_for<S: Simd>(&self, key: u64) -> Child {
        let group = self.find_group::<S>(key);
        prefetch(&raw const self.groups[group].children);
        Child(self.child_in(group, self.find_place::<S>(group, key)))
    }

    #[inline(always)]
    fn child_in(&self, group: usize, place: usize) -> u64 {
        self.groups[group].children[place].load(Ordering::Relaxed)
    }

    /// Asks the caches for the line that a search reads first.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(&raw const self.head);
    }
}

/// What only the holder of the node's lock may do.
impl Inner {
    /// Starts the node afresh.
    pub(super) fn reset(&self, level: u32) {
        // Stands in the empty slots of an upper node, so that they too hold a node.
        let filler = if level == 0 {
            0
        } else {
            std::ptr::from_ref(self) as u64
        };
        for slot in 0..FANOUT {
            self.set(slot, u64::MAX, filler);
        }
        self.set_meta(0, level);
        self.set_pivots();
    }

    /// Sets the count, after the slots.
    fn set_meta(&self, count: usize, level: u32) {
        self.head
            .meta
            .store(count as u64 | u64::from(level) << 32, Ordering::Relaxed);
        if count > 0 && count < FANOUT {
            self.set_word(FANOUT - 1, self.word(count - 1));
        }
    }

    pub(super) fn set_child(&self, i: usize, child: Child) {
        self.set_word(i, child.0);
        self.set_meta(self.count(), self.level());
    }

    fn set_word(&self, i: usize, word: u64) {
        self.groups[i / GROUP].children[i % GROUP].store(word, Ordering::Relaxed);
    }

    fn set(&self, i: usize, key: u64, word: u64) {
        self.groups[i / GROUP].keys.0[i % GROUP].store(key, Ordering::Relaxed);
        self.set_word(i, word);
    }

    fn set_pivots(&self) {
        for (g, pivot) in self.head.pivots.iter().enumerate() {
            let key = if (g + 1) * GROUP < self.count() {
                self.key((g + 1) * GROUP)
            } else {
                u64::MAX
            };
            pivot.store(key, Ordering::Relaxed);
        }
    }

    fn insert_word(&self, at: usize, key: u64, word: u64) {
        let count = self.count();
        debug_assert!(at <= count && count < FANOUT);
        for i in (at..count).rev() {
            self.set(i + 1, self.key(i), self.word(i));
        }
        self.set(at, key, word);
        self.set_meta(count + 1, self.level());
        self.set_pivots();
    }

    /// Adds a leaf as child `at`.
    pub(super) fn insert_leaf(&self, at: usize, key: u64, child: Child) {
        self.insert_word(at, key, child.0);
    }

    /// Adds a node as child `at`.
    pub(super) fn insert_node(&self, at: usize, key: u64, node: &Inner) {
        self.insert_word(at, key, std::ptr::from_ref(node) as u64);
    }

    /// Adds a child at the end.
    fn push_word(&self, key: u64, word: u64) {
        let count = self.count();
        self.set(count, key, word);
        self.set_meta(count + 1, self.level());
        if count.is_multiple_of(GROUP) && count > 0 {
            self.head.pivots[count / GROUP - 1].store(key, Ordering::Relaxed);
        }
    }

    /// [`insert_leaf`](Self::insert_leaf) at the end.
    pub(super) fn push_leaf(&self, key: u64, child: Child) {
        self.push_word(key, child.0);
    }

    /// [`insert_node`](Self::insert_node) at the end.
    pub(super) fn push_node(&self, key: u64, node: &Inner) {
        self.push_word(key, std::ptr::from_ref(node) as u64);
    }

    /// Takes child `at` out; the one before it covers its keys from now on.
    pub(super) fn remove(&self, at: usize) {
        let count = self.count();
        debug_assert!(at > 0 && at < count);
        for i in at..count - 1 {
            self.set(i, self.key(i + 1), self.word(i + 1));
        }
        self.set(count - 1, u64::MAX, self.word(count - 1));
        self.set_meta(count - 1, self.level());
        self.set_pivots();
    }

    /// Moves the children from `from` on to the end of `to`.
    pub(super) fn move_tail(&self, from: usize, to: &Inner) {
        for i in from..self.count() {
            to.push_word(self.key(i), self.word(i));
            self.set(i, u64::MAX, self.word(i));
        }
        self.set_meta(from, self.level());
        self.set_pivots();
    }

    /// Becomes a copy of `other`.
    pub(super) fn copy_from(&self, other: &Inner) {
        self.reset(other.level());
        for i in 0..other.count() {
            self.push_word(other.key(i), other.word(i));
        }
    }
}

/// Where inner nodes come from: chunks that are freed with the tree, and a list of nodes to use again.
pub(super) struct Arena {
    state: Mutex<ArenaState>,
}

#[derive(Default)]
struct ArenaState {
    chunks: Vec<Chunk>,
    /// Nodes of the last chunk handed out so far.
    used: usize,
    /// Free bottom nodes and free upper nodes: the one is never used as the other.
    free: [Vec<NonNull<Inner>>; 2],
}

struct Chunk {
    nodes: NonNull<Inner>,
    layout: Layout,
}

// SAFETY: nodes consist of atomics, and the chunks are owned by the arena alone.
unsafe impl Send for ArenaState {}

/// The first chunk is small, for the many small maps; later ones have the size and alignment of a huge page.
const FIRST_CHUNK: usize = 16 << 10;
const CHUNK: usize = 2 << 20;

impl Arena {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
        }
    }

    /// A node that nobody else knows, with nothing in it. It is locked, in case a reader still looks at what it was
    /// before; the caller fills it and drops the guard.
    pub(super) fn alloc(&self, level: u32) -> (&Inner, WriteGuard<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let node = state.free[usize::from(level > 0)]
            .pop()
            .unwrap_or_else(|| state.carve());
        drop(state);
        // SAFETY: the node lies in a chunk, which is freed only with the arena; zeroed or used, it is a valid `Inner`.
        let node: &Inner = unsafe { node.as_ref() };
        let guard = node.lock().lock();
        node.reset(level);
        (node, guard)
    }

    /// Takes back a node that is no longer reachable and not locked.
    pub(super) fn free(&self, node: &Inner) {
        let kind = usize::from(node.level() > 0);
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .free[kind]
            .push(NonNull::from(node));
    }

    /// Bytes of DRAM in use by nodes.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let whole: usize = state
            .chunks
            .iter()
            .rev()
            .skip(1)
            .map(|chunk| chunk.layout.size())
            .sum();
        (whole + state.used * size_of::<Inner>()) as u64
    }
}

impl ArenaState {
    fn carve(&mut self) -> NonNull<Inner> {
        let room = self
            .chunks
            .last()
            .map_or(0, |chunk| chunk.layout.size() / size_of::<Inner>());
        if self.used == room {
            self.add_chunk();
        }
        let chunk = self.chunks.last().expect("a chunk was just added");
        // SAFETY: `used` is below the number of nodes that fit into the chunk.
        let node = unsafe { chunk.nodes.add(self.used) };
        self.used += 1;
        node
    }

    fn add_chunk(&mut self) {
        let size = if self.chunks.is_empty() {
            FIRST_CHUNK
        } else {
            CHUNK
        };
        let layout = Layout::from_size_align(size, size).expect("sizes are powers of two");
        // SAFETY: the layout has a size. All-zero bytes are a valid `Inner`: it consists of atomic words.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(nodes) = NonNull::new(memory.cast()) else {
            std::alloc::handle_alloc_error(layout)
        };
        if size == CHUNK {
            // SAFETY: the range was just allocated and is whole pages; the advice changes no contents. It may fail.
            let _ = unsafe {
                rustix::mm::madvise(memory.cast(), size, rustix::mm::Advice::LinuxHugepage)
            };
        }
        self.chunks.push(Chunk { nodes, layout });
        self.used = 0;
    }
}

impl Drop for ArenaState {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            // SAFETY: allocated with this layout in `add_chunk`, and the tree, which alone had references, is gone.
            unsafe { std::alloc::dealloc(chunk.nodes.as_ptr().cast(), chunk.layout) }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::index::simd::{Kernel, SimdLevel, dispatch};

    struct Find<'a>(&'a Inner, u64);

    impl Kernel for Find<'_> {
        type Out = usize;

        #[inline(always)]
        fn run<S: Simd>(self) -> usize {
            self.0.find::<S>(self.1)
        }
    }

    fn assert_finds(node: &Inner) {
        let keys: Vec<u64> = (0..node.count()).map(|i| node.key(i)).collect();
        let probes = keys
            .iter()
            .flat_map(|&k| [k.saturating_sub(1), k, k.saturating_add(1)])
            .chain([0, u64::MAX]);
        for probe in probes {
            let expected = keys.iter().filter(|&&k| k <= probe).count().max(1) - 1;
            for level in SimdLevel::available() {
                assert_eq!(
                    dispatch(level, Find(node, probe)),
                    expected,
                    "{level:?} {probe} in {keys:?}"
                );
            }
        }
    }

    #[test]
    fn find_is_right_at_every_size_and_at_the_ends_of_the_domain() {
        let arena = Arena::new();
        for top in [1_000, u64::MAX] {
            let (node, _) = arena.alloc(0);
            node.push_leaf(0, Child::leaf(256));
            for i in (1..FANOUT as u64).rev() {
                node.insert_leaf(1, top - (FANOUT as u64 - 1 - i) * 3, Child::leaf(256 * i));
                assert_finds(node);
            }
            assert!(node.is_full());
            let (right, _) = arena.alloc(0);
            node.move_tail(FANOUT / 2, right);
            assert_finds(right);
            node.remove(1);
            assert_finds(node);
            right.move_tail(0, node);
            assert_finds(node);
        }
    }

    #[test]
    fn freed_nodes_are_used_again_for_what_they_were() {
        let arena = Arena::new();
        let (first, guard) = arena.alloc(0);
        drop(guard);
        arena.free(first);
        assert!(
            !std::ptr::eq(first, arena.alloc(1).0),
            "an upper node was a bottom node"
        );
        assert!(std::ptr::eq(first, arena.alloc(0).0));
        let bytes = arena.bytes();
        for _ in 0..3 * CHUNK / size_of::<Inner>() {
            arena.alloc(0);
        }
        assert!(arena.bytes() > bytes + CHUNK as u64);
    }
}
