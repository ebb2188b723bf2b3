//! Inner nodes: the mirror of an inner node in DRAM, and child groups in the durable slots.
//!
//! The *mirror* of an inner node is an array of tagged pointers to the mirrors of its children, one for each slot; all
//! slots of a child group hold the same pointer. Lookups read mirrors only. A slot whose child has no mirror is *cold*
//! and holds null. The first operation that comes to a cold slot mirrors the child from the pool (see
//! [`recover`](super::recover)). So opening a map builds nothing, and the mirror of an inner node of 16 MiB takes only
//! the pages that have been used.
//!
//! The durable slots, in the pool, are read by structure changes, under the node's mutex `changing`, and when a cold
//! slot is mirrored.

use super::data::DataNode;
use super::format::is_link;
use super::layout::{Link, Offset, Radix};
use crate::kernels::prefetch;
use crate::pmem::Cell;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A tagged pointer to the mirror of a child: a data node, an inner node, or null if the child has no mirror.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Child(usize);

/// The tag of pointers to data nodes. Mirrors are aligned to lines, so the bit is free. A descent that meets the tag is at its end, and
/// need not ask whether the child is cold.
const DATA: usize = 1;

impl Child {
    /// A child without a mirror.
    pub(super) const COLD: Self = Self(0);

    pub(super) fn data(node: NonNull<DataNode>) -> Self {
        Self(node.as_ptr() as usize | DATA)
    }

    pub(super) fn inner(node: NonNull<InnerNode>) -> Self {
        Self(node.as_ptr() as usize)
    }

    #[inline(always)]
    pub(super) fn is_cold(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(super) fn is_inner(self) -> bool {
        self.0 & DATA == 0 && !self.is_cold()
    }

    #[inline(always)]
    pub(super) fn is_data(self) -> bool {
        self.0 & DATA != 0
    }

    /// The data node, if the child is no inner node. Null if the slot is cold.
    #[inline(always)]
    pub(super) fn as_data(self) -> *mut DataNode {
        (self.0 & !DATA) as *mut DataNode
    }

    /// The data node that the child is.
    ///
    /// # Safety
    ///
    /// [`is_data`](Self::is_data) is true.
    #[inline(always)]
    pub(super) unsafe fn as_data_tagged(self) -> *mut DataNode {
        debug_assert!(self.is_data());
        // SAFETY: the caller has asked for the tag, and a tagged pointer is not null.
        unsafe { std::hint::assert_unchecked(self.0 != DATA) };
        (self.0 - DATA) as *mut DataNode
    }

    /// The inner node, if the child is one.
    #[inline(always)]
    pub(super) fn as_inner(self) -> *mut InnerNode {
        self.0 as *mut InnerNode
    }

    /// The lowest and the highest key that are routed to the node; `None` if it has no mirror.
    ///
    /// # Safety
    ///
    /// The mirror is not freed meanwhile.
    pub(super) unsafe fn range(self) -> Option<(u64, u64)> {
        // SAFETY: the tag says what the pointer leads to, and by the contract the node is there; the pointer of a cold child is null.
        unsafe {
            if self.is_inner() {
                let inner = &*self.as_inner();
                Some((inner.low, inner.high))
            } else {
                self.as_data().as_ref().map(|data| (data.low, data.high))
            }
        }
    }

    /// Frees the mirror of the node, and not those below it.
    ///
    /// # Safety
    ///
    /// Nobody else can reach the mirror, now or later.
    pub(super) unsafe fn free_node(self) {
        // SAFETY: mirrors are made by `Box`; by the contract this is the last pointer.
        unsafe {
            if self.is_inner() {
                drop(Box::from_raw(self.as_inner()));
            } else if !self.is_cold() {
                drop(Box::from_raw(self.as_data()));
            }
        }
    }

    /// Frees the mirror of the node, and of an inner node all mirrors below it.
    ///
    /// # Safety
    ///
    /// Nobody else can reach the mirrors, now or later.
    pub(super) unsafe fn free_subtree(self) {
        if self.is_cold() {
            return;
        }
        // SAFETY: mirrors are made by `Box`; by the contract this is the last pointer.
        unsafe {
            if self.is_inner() {
                let inner = Box::from_raw(self.as_inner());
                let mut last = Self::COLD;
                for slot in &inner.slots {
                    let child = Self(slot.load(Ordering::Relaxed));
                    // All slots of a child group hold the same pointer, but some of them may be cold.
                    if child != last && !child.is_cold() {
                        child.free_subtree();
                        last = child;
                    }
                }
            } else {
                drop(Box::from_raw(self.as_data()));
            }
        }
    }
}

/// The mirror of an inner node.
#[repr(C, align(64))]
pub(super) struct InnerNode {
    pub(super) radix: Radix,
    /// The number of the last slot.
    last: usize,
    slots: Box<[AtomicUsize]>,
    /// Offset of the durable node's head.
    pub(super) head: Offset,
    /// Offset of the durable node's slots.
    pub(super) durable_slots: Offset,
    /// The lowest and the highest key that are routed to the node.
    pub(super) low: u64,
    pub(super) high: u64,
    /// Number of inner nodes above this one.
    pub(super) depth: u32,
    /// Held while slots are changed: during the few stores of a structure change, or while a cold slot gets its mirror.
    pub(super) changing: Mutex<()>,
    /// Another node has taken the place of this one. Written while `changing` is held.
    dead: AtomicBool,
    /// For [`flatten`](super::flatten): the number of data nodes below when the inner nodes below this one were last
    /// planned, or 0; and the number of splits below since then.
    pub(super) nodes_at_replan: AtomicUsize,
    pub(super) splits_since_replan: AtomicUsize,
}

impl InnerNode {
    /// The mirror of the node at `head` for the keys in `range`. All slots are cold.
    pub(super) fn new(
        radix: Radix,
        head: Offset,
        durable_slots: Offset,
        range: (u64, u64),
        depth: u32,
    ) -> Box<Self> {
        // Large zeroed memory comes from the system page by page, on first use.
        let slots: Box<[usize]> = vec![0; radix.slots()].into_boxed_slice();
        // SAFETY: an `AtomicUsize` has the layout of a `usize`, and nobody else has the slice.
        let slots = unsafe { Box::from_raw(Box::into_raw(slots) as *mut [AtomicUsize]) };
        Box::new(Self {
            radix,
            last: radix.slots() - 1,
            slots,
            head,
            durable_slots,
            low: range.0,
            high: range.1,
            depth,
            changing: Mutex::default(),
            dead: AtomicBool::new(false),
            nodes_at_replan: AtomicUsize::new(0),
            splits_since_replan: AtomicUsize::new(0),
        })
    }

    /// [`Radix::slot_of`] with fewer instructions.
    #[inline(always)]
    fn slot_of(&self, key: u64) -> usize {
        let distance = key.saturating_sub(self.radix.base);
        ((distance >> self.radix.shift) as usize).min(self.last)
    }

    /// The child for `key`. The caller is pinned, and may follow the pointer until it unpins (apex I5).
    #[inline(always)]
    pub(super) fn child_for(&self, key: u64) -> Child {
        self.child(self.slot_of(key))
    }

    /// The child of a slot.
    #[inline(always)]
    pub(super) fn child(&self, slot: usize) -> Child {
        // SAFETY: the callers take slots from the node's `Radix`, which has as many slots as the array.
        let slot = unsafe { self.slots.get_unchecked(slot) };
        Child(slot.load(Ordering::Acquire))
    }

    /// Prefetches the slot of `key`.
    #[inline(always)]
    pub(super) fn prefetch_slot(&self, key: u64) {
        prefetch(self.slots.as_ptr().wrapping_add(self.radix.slot_of(key)));
    }

    /// Points a child group to `child`. `changing` is held, or nobody else has the node.
    pub(super) fn set(&self, first: usize, log: u32, child: Child) {
        for slot in &self.slots[first..first + (1 << log)] {
            slot.store(child.0, Ordering::Release);
        }
    }

    /// The lowest and the highest key that are routed to a child group.
    pub(super) fn range_of(&self, first: usize, log: u32) -> (u64, u64) {
        self.radix.range_of(first, log, self.low, self.high)
    }

    /// Whether `child`, which may be cold, belongs to this child group: its keys are those of the group, and no slot of the group points to another node.
    /// `changing` is held, and the caller is pinned.
    ///
    /// In a sound pool it does. But child groups are read from the durable slots, which something else may have damaged since the child was mirrored. A mirror
    /// that followed them would lead keys to a node that is not theirs, where whoever goes from node to node would go in circles.
    pub(super) fn is_in_group(&self, first: usize, log: u32, child: Child) -> bool {
        // SAFETY: the caller is pinned, so the node is not freed before it unpins (apex I5).
        let range = unsafe { child.range() };
        let mut group = self.children(first, 1 << log);
        range.is_none_or(|range| range == self.range_of(first, log))
            && group.all(|at_slot| at_slot == child || at_slot.is_cold())
    }

    /// Whether `child` [belongs](Self::is_in_group) to this child group, and no other slot points to it: otherwise a change that replaces the child would leave
    /// a pointer to a mirror that is freed. `changing` is held, and the caller is pinned.
    ///
    /// In the mirror all slots that point to one child lie in an aligned group too, with no other child among them. So a larger group is looked at
    /// only as long as what was added to it is cold.
    pub(super) fn has_group(&self, mut first: usize, log: u32, child: Child) -> bool {
        if !self.is_in_group(first, log, child) {
            return false;
        }
        let mut size = 1 << log;
        while size < self.slots.len() && !child.is_cold() {
            let added = first ^ size;
            if let Some(other) = self.children(added, size).find(|other| !other.is_cold()) {
                return other != child;
            }
            first = first.min(added);
            size *= 2;
        }
        true
    }

    /// The children of so many slots.
    fn children(&self, first: usize, count: usize) -> impl Iterator<Item = Child> {
        let slots = self.slots[first..first + count].iter();
        slots.map(|slot| Child(slot.load(Ordering::Relaxed)))
    }

    /// Points one slot to `child`. `changing` is held.
    pub(super) fn set_one(&self, slot: usize, child: Child) {
        self.slots[slot].store(child.0, Ordering::Release);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Notes that another node has taken the place of this one. `changing` is held.
    pub(super) fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Bytes of DRAM that the mirror takes.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.slots)) as u64
    }
}

/// The first slot of the child group that `slot` is in, and the link to the child; `None` if no slot holds the link,
/// which is damage (apex I1).
pub(super) fn group_of(slots: &[Cell], slot: usize) -> Option<(usize, Link)> {
    let mut first = slot;
    loop {
        let link = slots[first].load_acquire();
        if is_link(link) {
            return Some((first, Link(link)));
        }
        if first == 0 {
            return None;
        }
        first &= first - 1;
    }
}

/// The logarithm of the number of slots of the child group that begins at `first`: of the largest aligned group in
/// which no other slot holds a link.
pub(super) fn group_log(slots: &[Cell], first: usize) -> u32 {
    let mut log = 0;
    while first.trailing_zeros() > log && first + (2 << log) <= slots.len() {
        let other = &slots[first + (1 << log)..first + (2 << log)];
        // In a sound node the child groups tile the slots (apex I2), so that the first slot of the other half decides.
        // The others are asked for the sake of a damaged one.
        if other.iter().any(|slot| is_link(slot.load())) {
            break;
        }
        log += 1;
    }
    log
}
