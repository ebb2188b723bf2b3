//! Inner nodes, in DRAM.
//!
//! A node is a first line and seven *groups* of up to 32 separators and children each: 57 cache lines (an odd number, so
//! that the first lines of many nodes spread over all sets of the caches):
//!
//! ```text
//! line 0         | lock | shape | pivot 1 | pivot 2 | ... | pivot 6 |     pivot g = first key of group g
//! line 1 + 8g    | key 0  | key 1  | ... | key 7  |                       group g: 32 keys, sorted,
//! ...            | ...                   | key 31 |
//! line 5 + 8g    | child 0  | ...        | child 7  |                     and their children
//! ...            | ...                   | child 31 |
//! ```
//!
//! A child covers the keys from its own up to the next child's; the first key of all is the lower end of the node. A
//! search compares the pivots, then the keys of one group, then picks the child, all without a branch. The first lines of
//! a whole tree of 20 million records stay in the second-level cache, and the lines of a group are fetched side by side: so
//! a node costs one miss, not two.
//!
//! Groups in use come first, and each of them has a child. An insert moves keys inside its group only; when the group is
//! full, the children are spread evenly over all groups. Keys beyond a group's count are `u64::MAX`.
//!
//! A bottom node's children are leaves, an upper node's are nodes. Three rules let a reader take a child's version before
//! it has validated the node (and no more than that: what lies in the child may be anything until then). Nodes are never
//! given back to the system while the tree lives; a node that was once an upper node is never used as a bottom node, nor
//! the other way round; and every child word of an upper node is a pointer to a node of the same tree, also those not in
//! use. So a reader that has lost its way reads old versions, finds one changed, and begins again. Versions only grow.
//!
//! The last child is repeated in the last slot, where a search for `u64::MAX` ends: so lookups need not know the shape.

use crate::concurrency::locks::VersionLock;
use crate::concurrency::sync::atomic::{AtomicU64, Ordering};
use crate::kernels::{KeyLine, Simd, prefetch};
use crate::pmem::geometry::sized_in_tests;
use crate::pool::Offset;

// Smaller under test, so that inner nodes split and merge within a few hundred operations.
const GROUP: usize = sized_in_tests(32, 8);
const GROUPS: usize = sized_in_tests(7, 2);
/// The words of the first line that are pivots, as bits.
const PIVOTS: u8 = 0b1111_1100;
/// Child slots of a node.
const SLOTS: usize = GROUP * GROUPS;
/// Most children of a node. Some slots stay free, so that the children are rarely spread anew.
pub(super) const FANOUT: usize = SLOTS - 2 * GROUPS;

/// Keys, then their children.
#[repr(C)]
struct Group {
    keys: [KeyLine; GROUP / 8],
    children: [AtomicU64; GROUP],
}

/// The first line, kept as one line of words so that the pivots can be compared at once.
#[repr(C, align(64))]
struct Head {
    lock: VersionLock,
    /// A [`Shape`].
    shape: AtomicU64,
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
    assert!(size_of::<Group>() == 16 * GROUP);
    assert!(size_of::<Inner>() == 64 + 16 * SLOTS);
    assert!(GROUPS <= 7, "the first line has six pivots");
    assert!(FANOUT.div_ceil(GROUPS) < GROUP, "spreading makes room");
};

/// What a bottom node says of a child: the offset of a leaf, and whether the leaves to its right, up to the next
/// separator, are not indexed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child(u64);

impl Child {
    const GAP: u64 = 1;

    #[inline(always)]
    pub(super) fn leaf(offset: Offset) -> Self {
        Self(offset.get())
    }

    pub(super) fn gap(offset: Offset) -> Self {
        Self(offset.get() | Self::GAP)
    }

    #[inline(always)]
    pub(super) fn offset(self) -> Offset {
        Offset::from_word(self.0 & !Self::GAP)
    }

    #[inline(always)]
    pub(super) fn is_gap(self) -> bool {
        self.0 & Self::GAP != 0
    }
}

/// A node's level, in byte 0, and the number of children in each of its groups, in the other bytes. A copy, which may be
/// outdated until the node is validated; every slot that it names is inside the node.
#[derive(Clone, Copy)]
pub(super) struct Shape(u64);

impl Shape {
    #[inline(always)]
    fn in_group(self, group: usize) -> usize {
        // It never is more; the compiler should know that too.
        ((self.0 >> (8 * group + 8)) as u8 as usize).min(GROUP)
    }

    /// 0 if the children are leaves.
    #[inline(always)]
    fn level(self) -> u32 {
        u32::from(self.0 as u8)
    }

    /// Number of children.
    fn count(self) -> usize {
        (0..GROUPS).map(|group| self.in_group(group)).sum()
    }

    fn with(self, group: usize, count: usize) -> Self {
        let shift = 8 * group + 8;
        Self(self.0 & !(0xff << shift) | (count as u64) << shift)
    }

    /// The slot of the last child; 0 if there is none.
    #[inline(always)]
    pub(super) fn last(self) -> usize {
        let bytes = 8 - (self.0 | 0x100).leading_zeros() as usize / 8;
        let group = (bytes - 2).min(GROUPS - 1);
        group * GROUP + self.in_group(group).saturating_sub(1)
    }

    /// The slot of the next child to the right.
    #[inline(always)]
    pub(super) fn after(self, slot: usize) -> Option<usize> {
        let (group, place) = (slot / GROUP, slot % GROUP);
        if place + 1 < self.in_group(group) {
            Some(slot + 1)
        } else if group + 1 < GROUPS && self.in_group(group + 1) > 0 {
            Some((group + 1) * GROUP)
        } else {
            None
        }
    }

    /// The slot of the next child to the left.
    #[inline(always)]
    pub(super) fn before(self, slot: usize) -> Option<usize> {
        let (group, place) = (slot / GROUP, slot % GROUP);
        if place > 0 {
            Some(slot - 1)
        } else {
            let group = group.checked_sub(1)?;
            Some(group * GROUP + self.in_group(group).saturating_sub(1))
        }
    }
}

impl Inner {
    /// The node's version lock.
    #[inline(always)]
    pub(super) fn lock(&self) -> &VersionLock {
        &self.head.lock
    }

    #[inline(always)]
    pub(super) fn shape(&self) -> Shape {
        Shape(self.head.shape.load(Ordering::Relaxed))
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

    pub(super) fn is_full(&self) -> bool {
        self.count() >= FANOUT
    }

    /// The key of the child in `slot`: the lowest that it covers.
    #[inline(always)]
    pub(super) fn key(&self, slot: usize) -> u64 {
        let (group, place) = (slot / GROUP, slot % GROUP);
        if place == 0 && group > 0 {
            // The same word, in a line that a search has already read.
            self.head.pivots[group - 1].load(Ordering::Relaxed)
        } else {
            self.key_cell(slot).load(Ordering::Relaxed)
        }
    }

    /// The key of the next child to the right of `slot`, if there is one.
    #[inline(always)]
    pub(super) fn next_key(&self, slot: usize) -> Option<u64> {
        let (group, place) = (slot / GROUP, slot % GROUP);
        let load = |word: Option<&AtomicU64>| word.map_or(u64::MAX, |w| w.load(Ordering::Relaxed));
        let keys = &self.groups[group].keys;
        let in_group = load(
            keys.get((place + 1) / 8)
                .map(|line| &line.0[(place + 1) % 8]),
        );
        // Slots and groups not in use say `u64::MAX`.
        let next = in_group.min(load(self.head.pivots.get(group)));
        if next < u64::MAX {
            return Some(next);
        }
        self.shape().after(slot).map(|next| self.key(next))
    }

    #[inline(always)]
    fn child_cell(&self, slot: usize) -> &AtomicU64 {
        &self.groups[slot / GROUP].children[slot % GROUP]
    }

    #[inline(always)]
    fn key_cell(&self, slot: usize) -> &AtomicU64 {
        let place = slot % GROUP;
        &self.groups[slot / GROUP].keys[place / 8].0[place % 8]
    }

    #[inline(always)]
    fn word(&self, slot: usize) -> u64 {
        self.child_cell(slot).load(Ordering::Relaxed)
    }

    /// The child in `slot` of a bottom node.
    #[inline(always)]
    pub(super) fn child(&self, slot: usize) -> Child {
        Child(self.word(slot))
    }

    /// The node in `slot` of an upper node. It may be the wrong one, unless this node's version is checked afterwards.
    #[inline(always)]
    pub(super) fn node(&self, slot: usize) -> &Inner {
        // Acquire: the node was written before it was put here.
        let word = self.child_cell(slot).load(Ordering::Acquire);
        // SAFETY: every child word of an upper node is a pointer to a node of the arena, which outlives its nodes (see
        // the module's rules).
        unsafe { &*(word as *const Inner) }
    }

    /// The slots of all children, from left to right.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> {
        let shape = self.shape();
        (0..GROUPS)
            .flat_map(move |group| (0..shape.in_group(group)).map(move |i| group * GROUP + i))
    }

    /// The slot of the child that covers `key`.
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, key: u64) -> usize {
        self.in_use(self.find_in_group::<S>(self.find_group::<S>(key), key))
    }

    /// The slot of the child that is repeated in the last slot, if it is that; `slot` otherwise.
    #[inline(always)]
    pub(super) fn in_use(&self, slot: usize) -> usize {
        if slot < SLOTS - 1 {
            slot
        } else {
            self.shape().last()
        }
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

    /// Asks the caches for all lines of a group.
    #[inline(always)]
    pub(super) fn prefetch_group(&self, group: usize) {
        self.prefetch_keys(group);
        self.prefetch_children(group);
    }

    #[inline(always)]
    pub(super) fn prefetch_keys(&self, group: usize) {
        for line in &self.groups[group].keys {
            prefetch(line);
        }
    }

    /// Asks the caches for the line that says which child is in `slot`.
    #[inline(always)]
    pub(super) fn prefetch_child(&self, slot: usize) {
        prefetch(self.child_cell(slot));
    }

    /// Asks the caches for the group in which `key` would be if the keys from `low` to `high`, which the node covers,
    /// were evenly spread. A guess, made while the first line is on its way.
    #[inline(always)]
    pub(super) fn prefetch_likely_group(&self, key: u64, low: u64, high: u64) {
        let part = (key.wrapping_sub(low)) as f64 / (high.wrapping_sub(low)) as f64;
        let group = (part * GROUPS as f64) as usize;
        self.prefetch_group(group.min(GROUPS - 1));
    }

    #[inline(always)]
    fn prefetch_children(&self, group: usize) {
        for line in self.groups[group].children.chunks(8) {
            prefetch(line.as_ptr());
        }
    }

    /// The slot of the child that covers `key`, which lies in `group`; or the last slot.
    #[inline(always)]
    pub(super) fn find_in_group<S: Simd>(&self, group: usize, key: u64) -> usize {
        let mut place = 0;
        for (i, line) in self.groups[group].keys.iter().enumerate() {
            // The first key is known not to be above `key`: it is a pivot, or the lower end of the node.
            let among = if i == 0 { !1 } else { !0 };
            place += S::count_at_most(line, among, key);
        }
        group * GROUP + place
    }

    /// The child of a bottom node that covers `key`, to be validated.
    #[inline(always)]
    pub(super) fn leaf_for<S: Simd>(&self, key: u64) -> Child {
        let group = self.find_group::<S>(key);
        self.prefetch_children(group);
        self.child(self.find_in_group::<S>(group, key))
    }

    /// Asks the caches for the line that a search reads first.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(&raw const self.head);
    }
}

/// Children with their keys, copied out of a node.
pub(super) type Children = Vec<(u64, u64)>;

/// What only the holder of the node's lock may do.
impl Inner {
    /// Starts the node afresh.
    pub(super) fn reset(&self, level: u32) {
        // Stands in the slots not in use of an upper node, so that they too hold a node.
        let filler = if level == 0 {
            0
        } else {
            std::ptr::from_ref(self) as u64
        };
        for slot in 0..SLOTS {
            self.set(slot, u64::MAX, filler);
        }
        self.head.shape.store(u64::from(level), Ordering::Relaxed);
        self.set_pivots();
    }

    /// Writes the shape, after the slots.
    fn set_shape(&self, shape: Shape) {
        self.head.shape.store(shape.0, Ordering::Relaxed);
        if shape.last() < SLOTS - 1 {
            self.set_word(SLOTS - 1, self.word(shape.last()));
        }
    }

    fn set_pivots(&self) {
        let shape = self.shape();
        for group in 1..=self.head.pivots.len() {
            let key = if group < GROUPS && shape.in_group(group) > 0 {
                self.key_cell(group * GROUP).load(Ordering::Relaxed)
            } else {
                u64::MAX
            };
            self.head.pivots[group - 1].store(key, Ordering::Relaxed);
        }
    }

    fn set_word(&self, slot: usize, word: u64) {
        self.child_cell(slot).store(word, Ordering::Relaxed);
    }

    fn set(&self, slot: usize, key: u64, word: u64) {
        self.key_cell(slot).store(key, Ordering::Relaxed);
        self.set_word(slot, word);
    }

    pub(super) fn set_child(&self, slot: usize, child: Child) {
        self.set_word(slot, child.0);
        self.set_shape(self.shape());
    }

    /// Copies all children out.
    pub(super) fn children(&self) -> Children {
        self.slots()
            .map(|slot| (self.key(slot), self.word(slot)))
            .collect()
    }

    /// Replaces the children, which are spread evenly over all groups.
    pub(super) fn refill(&self, children: &[(u64, u64)]) {
        let (count, groups) = (children.len(), children.len().min(GROUPS));
        assert!(
            count > 0 && count <= FANOUT,
            "invariant: an inner node has 1 to {FANOUT} children, not {count}"
        );
        let mut shape = Shape(u64::from(self.level()));
        for group in 0..GROUPS {
            let share = if group < groups {
                &children[count * group / groups..count * (group + 1) / groups]
            } else {
                &[]
            };
            for place in 0..GROUP {
                let slot = group * GROUP + place;
                match share.get(place) {
                    Some(&(key, word)) => self.set(slot, key, word),
                    // The word stays: in an upper node it is a pointer to some node.
                    None => self.set(slot, u64::MAX, self.word(slot)),
                }
            }
            shape = shape.with(group, share.len());
        }
        self.set_shape(shape);
        self.set_pivots();
    }

    /// [`refill`](Self::refill) of a bottom node.
    pub(super) fn refill_leaves(&self, children: &[(u64, Child)]) {
        let words: Children = children
            .iter()
            .map(|&(key, child)| (key, child.0))
            .collect();
        self.refill(&words);
    }

    /// [`refill`](Self::refill) of an upper node.
    pub(super) fn refill_nodes(&self, children: &[(u64, &Inner)]) {
        let words: Children = children
            .iter()
            .map(|&(key, node)| (key, std::ptr::from_ref(node) as u64))
            .collect();
        self.refill(&words);
    }

    /// Adds a child to the right of `slot`. There are fewer than [`FANOUT`].
    fn insert_word(&self, slot: usize, key: u64, word: u64) {
        let (group, place) = (slot / GROUP, slot % GROUP + 1);
        let count = self.shape().in_group(group);
        if count == GROUP {
            let mut children = self.children();
            let at = children.partition_point(|child| child.0 < key);
            children.insert(at, (key, word));
            return self.refill(&children);
        }
        for place in (place..count).rev() {
            let from = group * GROUP + place;
            self.set(from + 1, self.key(from), self.word(from));
        }
        self.set(group * GROUP + place, key, word);
        self.set_shape(self.shape().with(group, count + 1));
    }

    /// Adds a leaf to the right of `slot`.
    pub(super) fn insert_leaf(&self, slot: usize, key: u64, child: Child) {
        self.insert_word(slot, key, child.0);
    }

    /// Adds a node to the right of `slot`.
    pub(super) fn insert_node(&self, slot: usize, key: u64, node: &Inner) {
        self.insert_word(slot, key, std::ptr::from_ref(node) as u64);
    }

    /// Takes the child in `slot`, not the first, out; the one before it covers its keys from now on.
    pub(super) fn remove(&self, slot: usize) {
        let (group, place) = (slot / GROUP, slot % GROUP);
        let count = self.shape().in_group(group);
        assert!(
            slot > 0 && place < count,
            "invariant: the first child of an inner node is never removed alone"
        );
        if count == 1 {
            // Not by its key, which another one may have as well if the pool is damaged.
            let others = self.slots().filter(|&other| other != slot);
            let children: Children = others
                .map(|other| (self.key(other), self.word(other)))
                .collect();
            return self.refill(&children);
        }
        for to in slot..group * GROUP + count - 1 {
            self.set(to, self.key(to + 1), self.word(to + 1));
        }
        let last = group * GROUP + count - 1;
        self.set(last, u64::MAX, self.word(last));
        self.set_shape(self.shape().with(group, count - 1));
        self.set_pivots();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engines::lbtree::arena::Arena;
    use crate::kernels::{Kernel, SimdLevel, dispatch};
    use proptest::prelude::*;

    struct Find<'a>(&'a Inner, u64);

    impl Kernel for Find<'_> {
        type Out = usize;

        #[inline(always)]
        fn run<S: Simd>(self) -> usize {
            self.0.find::<S>(self.1)
        }
    }

    /// The node holds `model` and finds it.
    fn assert_holds(node: &Inner, model: &[(u64, u64)]) {
        assert_eq!(node.children(), model);
        assert_eq!(node.count(), model.len());
        let shape = node.shape();
        let mut slot = Some(0);
        for (i, &(key, _)) in model.iter().enumerate() {
            let here = slot.expect("a slot for every child");
            assert_eq!(node.key(here), key);
            assert_eq!(shape.before(here).is_some(), i > 0);
            slot = shape.after(here);
            assert!(slot.is_none_or(|next| shape.before(next) == Some(here)));
        }
        assert_eq!(slot, None);
        let probes = model
            .iter()
            .flat_map(|&(k, _)| [k.saturating_sub(1), k, k.saturating_add(1)])
            .chain([0, u64::MAX]);
        for probe in probes {
            let expected = model.partition_point(|child| child.0 <= probe).max(1) - 1;
            for level in SimdLevel::available() {
                let slot = dispatch(level, Find(node, probe));
                assert_eq!(
                    (node.key(slot), node.word(slot)),
                    model[expected],
                    "{level:?} {probe} in {model:?}"
                );
            }
        }
    }

    /// The numbers below `FANOUT - 1`, ascending, descending or in any order.
    fn orders() -> impl Strategy<Value = Vec<u64>> {
        let ascending: Vec<u64> = (0..FANOUT as u64 - 1).collect();
        let descending: Vec<u64> = ascending.iter().rev().copied().collect();
        prop_oneof![
            Just(ascending.clone()),
            Just(descending),
            Just(ascending).prop_shuffle()
        ]
    }

    proptest! {
        #[test]
        fn nodes_find_what_they_hold_at_every_size_and_at_the_ends_of_the_domain(
            order in orders(),
            removals in orders(),
            top in prop_oneof![Just(1_000), Just(u64::MAX)],
        ) {
            let arena = Arena::new();
            let (node, _guard) = arena.alloc(0);
            node.refill_leaves(&[(0, Child::leaf(Offset::from_word(256)))]);
            let mut model = vec![(0, 256)];
            for key in order.iter().map(|i| top - 3 * i) {
                node.insert_leaf(dispatch(SimdLevel::Plain, Find(node, key)), key, Child::leaf(Offset::from_word(key << 8)));
                model.insert(model.partition_point(|child| child.0 < key), (key, key << 8));
                assert_holds(node, &model);
            }
            prop_assert!(node.is_full());
            for key in removals.iter().map(|i| top - 3 * i) {
                node.remove(dispatch(SimdLevel::Plain, Find(node, key)));
                model.retain(|child| child.0 != key);
                assert_holds(node, &model);
            }
        }
    }
}
