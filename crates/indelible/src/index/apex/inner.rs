//! Inner nodes: a durable one in the pool, and what mirrors it in DRAM.
//!
//! Lookups read the mirror only. Its slots hold pointers to nodes in DRAM, each of a child's slots the same one; a slot that
//! nobody has been to since the pool was opened is *cold*, and is resolved from the durable node on first touch (see
//! `recover`). So opening builds nothing, and a node of 16 MiB costs no more than its pages that are used.

use super::data::Data;
use super::format::is_link;
use super::layout::{Link, Offset, Radix};
use crate::index::simd::prefetch;
use crate::pmem::Cell;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A child in DRAM: nothing yet, a data node or an inner node. A tagged pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Child(usize);

const INNER: usize = 1;

impl Child {
    pub(super) const COLD: Self = Self(0);

    pub(super) fn data(node: NonNull<Data>) -> Self {
        Self(node.as_ptr() as usize)
    }

    pub(super) fn inner(node: NonNull<Inner>) -> Self {
        Self(node.as_ptr() as usize | INNER)
    }

    #[inline(always)]
    pub(super) fn is_cold(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(super) fn is_inner(self) -> bool {
        self.0 & INNER != 0
    }

    /// The data node, if it is not an inner node. Null if it is cold.
    #[inline(always)]
    pub(super) fn as_data(self) -> *mut Data {
        self.0 as *mut Data
    }

    /// The inner node, if it is one.
    #[inline(always)]
    pub(super) fn as_inner(self) -> *mut Inner {
        (self.0 & !INNER) as *mut Inner
    }

    /// Frees the node, and not what is beneath it.
    ///
    /// # Safety
    ///
    /// Nobody else can reach the node, now or later.
    pub(super) unsafe fn free_alone(self) {
        // SAFETY: nodes are made by `Box`; by the contract this is the last pointer.
        unsafe {
            if self.is_inner() {
                drop(Box::from_raw(self.as_inner()));
            } else if !self.is_cold() {
                drop(Box::from_raw(self.as_data()));
            }
        }
    }

    /// Frees the node and, of an inner node, all beneath it.
    ///
    /// # Safety
    ///
    /// Nobody else can reach the node, now or later.
    pub(super) unsafe fn free(self) {
        if self.is_cold() {
            return;
        }
        // SAFETY: nodes are made by `Box`; by the contract this is the last pointer.
        unsafe {
            if self.is_inner() {
                let inner = Box::from_raw(self.as_inner());
                let mut last = Self::COLD;
                for slot in &inner.slots {
                    let child = Self(slot.load(Ordering::Relaxed));
                    // A child's slots lie side by side; some may be cold.
                    if child != last && !child.is_cold() {
                        child.free();
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
pub(super) struct Inner {
    pub(super) radix: Radix,
    /// The number of the last slot.
    last: usize,
    slots: Box<[AtomicUsize]>,
    /// The durable node: its head.
    pub(super) head: Offset,
    /// Where its slots are.
    pub(super) durable_slots: Offset,
    /// The keys that are routed here, from the first to the second.
    pub(super) low: u64,
    pub(super) high: u64,
    /// Inner nodes above this one.
    pub(super) depth: u32,
    /// Held while slots are changed: for the few stores of a structure change, or while a cold slot is resolved.
    pub(super) changing: Mutex<()>,
    /// Another node has taken its place. Written under `changing`.
    dead: AtomicBool,
    /// Nodes beneath when they were last looked at, or 0, and splits among them since then; see `flatten`.
    pub(super) nodes: AtomicUsize,
    pub(super) splits: AtomicUsize,
}

impl Inner {
    /// A mirror of the node at `head` for the keys in `range`, all of its slots cold.
    pub(super) fn new(
        radix: Radix,
        head: Offset,
        durable_slots: Offset,
        range: (u64, u64),
        depth: u32,
    ) -> Box<Self> {
        // Zeroed memory comes untouched from the system, if it is much.
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
            nodes: AtomicUsize::new(0),
            splits: AtomicUsize::new(0),
        })
    }

    /// [`Radix::slot_of`], with less to compute.
    #[inline(always)]
    fn slot_of(&self, key: u64) -> usize {
        let distance = key.saturating_sub(self.radix.base);
        ((distance >> self.radix.shift) as usize).min(self.last)
    }

    /// The child for `key`. It can be followed as long as the caller is pinned.
    #[inline(always)]
    pub(super) fn child_for(&self, key: u64) -> Child {
        self.child(self.slot_of(key))
    }

    #[inline(always)]
    pub(super) fn child(&self, slot: usize) -> Child {
        // SAFETY: slots come from the node's own `Radix`, which has as many as the array is long.
        let slot = unsafe { self.slots.get_unchecked(slot) };
        Child(slot.load(Ordering::Acquire))
    }

    /// Asks the caches for the slot of `key`.
    #[inline(always)]
    pub(super) fn prefetch_slot(&self, key: u64) {
        prefetch(self.slots.as_ptr().wrapping_add(self.radix.slot_of(key)));
    }

    /// Points `1 << log` slots from `first` on to `child`. `changing` is held, or nobody else has the node.
    pub(super) fn set(&self, first: usize, log: u32, child: Child) {
        for slot in &self.slots[first..first + (1 << log)] {
            slot.store(child.0, Ordering::Release);
        }
    }

    /// Points one slot to `child`. `changing` is held.
    pub(super) fn set_one(&self, slot: usize, child: Child) {
        self.slots[slot].store(child.0, Ordering::Release);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    pub(super) fn die(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.slots)) as u64
    }
}

/// The first slot of the group that `slot` is in, and its link, in durable slots; `None` if there is none, which no sound
/// node has.
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

/// The logarithm of the size of the group that begins at `first`: the largest aligned one in which no other slot has a link.
pub(super) fn group_log(slots: &[Cell], first: usize) -> u32 {
    let mut log = 0;
    while first.trailing_zeros() > log && first + (2 << log) <= slots.len() {
        let other = &slots[first + (1 << log)..first + (2 << log)];
        // Groups tile a sound node, where the first of these says it all.
        if other.iter().any(|slot| is_link(slot.load())) {
            break;
        }
        log += 1;
    }
    log
}
