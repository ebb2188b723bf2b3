//! Inner nodes, in DRAM.
//!
//! A node has up to [`SLOTS`] children. A child covers the keys from its own separator up to the next child's; the separator of the first child
//! is the lower end of the node. Separators are cut as short as they can be when a leaf splits.
//!
//! ```text
//! | lock | shape | 6 words free | prefix: up to 64 bytes that all separators but the first begin with |
//! | heads: the 8 bytes of each separator after the prefix, as a number that compares as they do |
//! | separators: the address of each |
//! | children: offsets of leaves, or addresses of nodes |
//! ```
//!
//! A search compares the prefix, then heads, and looks at whole separators only where heads are equal. Heads are padded with zeros, so `"a"` and
//! `"a\0"` tie, and the whole separators decide.
//!
//! The three rules of the LB+-Tree's inner nodes hold here too, so that a reader may take the version of a child before it has validated the
//! node: nodes are not freed while the tree lives, an upper node is never reused as a bottom node, and every child word of an upper node
//! is a pointer to a node of the same tree. And one more: every separator word of a node is 0 or the address of a separator that has not been
//! freed. Words of slots that are not in use are 0, and a separator is freed only after an epoch.

use super::separator::{Separator, Text};
use crate::concurrency::locks::VersionLock;
use crate::concurrency::sync::atomic::{AtomicU64, Ordering};
use crate::engines::arena::Node;
use crate::engines::inner_nodes::InnerNode;
use crate::kernels::prefetch;
use crate::pmem::geometry::sized_in_tests;
use crate::pool::Offset;
use std::ops::Range;

/// Slots of a node. The last ones are for splits that make more than two leaves.
pub(super) const SLOTS: usize = sized_in_tests(64, 12);
/// Children that a structure change of leaves may add at once.
pub(super) const MOST_ADDED: usize = 3;
/// Most bytes of the prefix.
const MOST_PREFIX: usize = 64;

/// A child of a bottom node: the offset of a leaf, and whether an *unindexed range* begins there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child(u64);

impl Child {
    const UNINDEXED: u64 = 1;

    pub(super) fn leaf(offset: Offset) -> Self {
        Self(offset.get())
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

/// Which child a search is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seek<'a> {
    /// The one that covers this key.
    At(&'a [u8]),
    /// The one that covers the keys right below this one, which is not empty.
    Below(&'a [u8]),
    /// The last one.
    Last,
}

/// What a node holds of a child.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    separator: Separator,
    child: u64,
}

impl Entry {
    /// An entry for a bottom node; its separator is new.
    pub(super) fn leaf(low: &[u8], child: Child) -> Self {
        Self {
            separator: Separator::new(low),
            child: child.0,
        }
    }
}

/// An inner node. The head of this file has a drawing.
#[repr(C, align(64))]
pub(super) struct Inner {
    lock: VersionLock,
    /// Bits 0..7 the level, 8..23 the number of children, 32..39 bytes of the prefix.
    shape: AtomicU64,
    _free: [AtomicU64; 6],
    prefix: [AtomicU64; MOST_PREFIX / 8],
    heads: [AtomicU64; SLOTS],
    separators: [AtomicU64; SLOTS],
    children: [AtomicU64; SLOTS],
}

// SAFETY: all fields are atomics, and all-zero bytes are a bottom node without children.
unsafe impl Node for Inner {
    #[inline(always)]
    fn lock(&self) -> &VersionLock {
        &self.lock
    }

    #[inline(always)]
    fn level(&self) -> u32 {
        self.shape.load(Ordering::Relaxed) as u8 as u32
    }

    fn reset(&self, level: u32) {
        self.shape.store(u64::from(level), Ordering::Relaxed);
        for separator in &self.separators {
            separator.store(0, Ordering::Relaxed);
        }
        if level > 0 {
            for child in &self.children {
                if child.load(Ordering::Relaxed) == 0 {
                    // Some node of this tree, as the rules at the head of this file want.
                    child.store(std::ptr::from_ref(self) as u64, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The first 8 bytes as a number that compares as they do, padded with zeros.
#[inline(always)]
pub(super) fn head_of(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(&eight) => u64::from_be_bytes(eight),
        None => {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(padded)
        }
    }
}

impl Inner {
    #[inline(always)]
    fn prefix_bytes(&self) -> usize {
        ((self.shape.load(Ordering::Relaxed) >> 32) as u8 as usize).min(MOST_PREFIX)
    }

    fn set_shape(&self, count: usize, prefix: usize) {
        let level = u64::from(self.level());
        let shape = level | (count as u64) << 8 | (prefix as u64) << 32;
        self.shape.store(shape, Ordering::Relaxed);
    }

    /// The prefix, which may be torn until the node is validated.
    #[inline(always)]
    fn prefix(&self, bytes: usize) -> [u8; MOST_PREFIX] {
        let mut prefix = [0; MOST_PREFIX];
        for (at, word) in self.prefix.iter().enumerate().take(bytes.div_ceil(8)) {
            let word = word.load(Ordering::Relaxed).to_ne_bytes();
            prefix[8 * at..8 * at + 8].copy_from_slice(&word);
        }
        prefix
    }

    /// How a key compares with the separators by the prefix alone.
    #[inline(always)]
    fn compare_prefix(&self, key: &[u8], bytes: usize) -> std::cmp::Ordering {
        if bytes == 0 {
            return std::cmp::Ordering::Equal;
        }
        let prefix = self.prefix(bytes);
        let most = key.len().min(bytes);
        key[..most]
            .cmp(&prefix[..most])
            // A key that is a part of the prefix is below all separators.
            .then(most.cmp(&bytes))
    }

    /// Asks the caches for the lines that a search reads, side by side: it would wait for one after the other.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(&self.lock);
        prefetch(&self.prefix);
        for heads in self.heads.chunks(8) {
            prefetch(heads.as_ptr());
        }
    }

    #[inline(always)]
    fn head(&self, slot: usize) -> u64 {
        self.heads[slot].load(Ordering::Relaxed)
    }

    /// The separator of a child. The rules at the head of this file say how long it may be looked at.
    #[inline(always)]
    pub(super) fn separator(&self, slot: usize) -> Separator {
        Separator::from_word(self.separators[slot].load(Ordering::Acquire))
    }

    /// The separator of the next child to the right, if there is one.
    #[inline(always)]
    pub(super) fn next_separator(&self, slot: usize) -> Option<Separator> {
        (slot + 1 < self.count()).then(|| self.separator(slot + 1))
    }

    /// The slot of the child that is sought; some slot if the node changes meanwhile. The caller is pinned.
    #[inline(always)]
    pub(super) fn find(&self, seek: Seek<'_>) -> usize {
        match seek {
            Seek::At(key) => self.find_key::<false>(key),
            Seek::Below(key) => self.find_key::<true>(key),
            Seek::Last => self.last(),
        }
    }

    #[inline(always)]
    fn find_key<const BELOW: bool>(&self, key: &[u8]) -> usize {
        let count = self.count();
        let prefix = self.prefix_bytes();
        match self.compare_prefix(key, prefix) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return count.saturating_sub(1),
            std::cmp::Ordering::Equal => {}
        }
        let rest = &key[prefix..];
        let head = head_of(rest);
        // The first slot from 1 on whose head is not below that of the key.
        let (mut from, mut length) = (1, count.saturating_sub(1));
        while length > 0 {
            let half = length / 2;
            if self.head(from + half) < head {
                from += half + 1;
                length -= half + 1;
            } else {
                length = half;
            }
        }
        if from < count && self.head(from) == head {
            from = self.among_equal::<BELOW>(key, head, from..count);
        }
        from - 1
    }

    /// The first of `slots` whose separator is past a key. The heads of the first ones are equal to that of the key, so the whole separators
    /// decide. Looking at one waits for memory, and all separators of a node may begin alike, so it is a binary search as well.
    fn among_equal<const BELOW: bool>(&self, key: &[u8], head: u64, slots: Range<usize>) -> usize {
        let (mut from, mut to) = (slots.start, slots.end);
        let mut last = slots.start + 1;
        while last < to {
            let middle = last + (to - last) / 2;
            if self.head(middle) == head {
                last = middle + 1;
            } else {
                to = middle;
            }
        }
        while from < to {
            let middle = from + (to - from) / 2;
            // SAFETY: the caller of `find` is pinned, and the rules at the head of this file hold.
            let separator = unsafe { self.separator(middle).bytes() };
            let is_past = if BELOW {
                separator >= key
            } else {
                separator > key
            };
            if is_past {
                to = middle;
            } else {
                from = middle + 1;
            }
        }
        from
    }

    #[inline(always)]
    fn word(&self, slot: usize) -> u64 {
        self.children[slot].load(Ordering::Acquire)
    }

    /// The child in `slot` of a bottom node.
    #[inline(always)]
    pub(super) fn child(&self, slot: usize) -> Child {
        Child(self.word(slot))
    }

    /// Replaces the child in `slot` of a bottom node.
    pub(super) fn set_child(&self, slot: usize, child: Child) {
        self.children[slot].store(child.0, Ordering::Release);
    }

    fn set(&self, slot: usize, entry: &Entry, prefix: usize) {
        // SAFETY: the caller has locked the node that the separator is in, or is about to be in.
        let bytes = unsafe { entry.separator.bytes() };
        self.heads[slot].store(
            head_of(bytes.get(prefix..).unwrap_or_default()),
            Ordering::Relaxed,
        );
        self.separators[slot].store(entry.separator.word(), Ordering::Release);
        self.children[slot].store(entry.child, Ordering::Release);
    }

    fn entry(&self, slot: usize) -> Entry {
        Entry {
            separator: self.separator(slot),
            child: self.word(slot),
        }
    }

    /// Frees the separators of this node and of all below it. No other thread uses the tree any more.
    pub(super) fn free_separators(&self) {
        for slot in 0..self.count() {
            if self.level() > 0 {
                self.node(slot).free_separators();
            }
            // SAFETY: the tree is being dropped, so nobody has the separator; each slot has its own.
            unsafe { self.separator(slot).free() };
        }
        self.reset(self.level());
    }
}

impl InnerNode for Inner {
    const FANOUT: usize = SLOTS - MOST_ADDED + 1;

    const LOADED: usize = Self::FANOUT * 7 / 8;

    type Key = Text;

    const LOWEST_KEY: Text = Text::EMPTY;

    type Entry = Entry;

    #[inline(always)]
    fn count(&self) -> usize {
        // The count never exceeds the limit; `min` lets the compiler omit bounds checks.
        ((self.shape.load(Ordering::Relaxed) >> 8) as u16 as usize).min(SLOTS)
    }

    #[inline(always)]
    fn node(&self, slot: usize) -> &Self {
        let word = self.word(slot);
        // SAFETY: every child word of an upper node is a pointer to a node of the arena, which frees no node while the tree lives.
        unsafe { &*(word as *const Self) }
    }

    fn last(&self) -> usize {
        self.count().saturating_sub(1)
    }

    fn after(&self, slot: usize) -> Option<usize> {
        (slot + 1 < self.count()).then_some(slot + 1)
    }

    fn before(&self, slot: usize) -> Option<usize> {
        slot.checked_sub(1)
    }

    fn entries(&self) -> Vec<Entry> {
        (0..self.count()).map(|slot| self.entry(slot)).collect()
    }

    fn refill(&self, entries: &[Entry]) {
        let prefix = match entries {
            // SAFETY: the separators are in a node that the caller has locked, or are about to be in this one.
            [_, first, .., last] => unsafe {
                super::layout::common_prefix(first.separator.bytes(), last.separator.bytes())
            }
            .min(MOST_PREFIX),
            // SAFETY: as above.
            [_, only] => unsafe { only.separator.bytes() }.len().min(MOST_PREFIX),
            _ => 0,
        };
        if let Some(entry) = entries.get(1) {
            // SAFETY: as above.
            let bytes = unsafe { entry.separator.bytes() };
            for (at, word) in self.prefix.iter().enumerate().take(prefix.div_ceil(8)) {
                word.store(super::layout::word_at(bytes, 8 * at), Ordering::Relaxed);
            }
        }
        for (slot, entry) in entries.iter().enumerate() {
            self.set(slot, entry, prefix);
        }
        for separator in &self.separators[entries.len()..] {
            separator.store(0, Ordering::Relaxed);
        }
        self.set_shape(entries.len(), prefix);
    }

    fn insert(&self, slot: usize, entry: &Entry) {
        let (count, prefix) = (self.count(), self.prefix_bytes());
        assert!(
            count < SLOTS,
            "invariant: a node has room for the children that it gets"
        );
        // SAFETY: the entry is about to be in this node.
        let bytes = unsafe { entry.separator.bytes() };
        let shares = bytes.len() >= prefix && bytes[..prefix] == self.prefix(prefix)[..prefix];
        if count < 2 || !shares {
            let mut entries = self.entries();
            entries.insert(slot + 1, *entry);
            self.refill(&entries);
            return;
        }
        for to in (slot + 2..=count).rev() {
            self.copy(to - 1, to);
        }
        self.set(slot + 1, entry, prefix);
        self.set_shape(count + 1, prefix);
    }

    fn remove(&self, slot: usize) {
        let count = self.count();
        let removed = self.separator(slot);
        for to in slot..count - 1 {
            self.copy(to + 1, to);
        }
        self.set_shape(count - 1, self.prefix_bytes());
        self.separators[count - 1].store(0, Ordering::Relaxed);
        removed.retire();
    }

    fn key_of(entry: &Entry) -> Text {
        // SAFETY: the entry is in a node that the caller has locked.
        Text::of(unsafe { entry.separator.bytes() })
    }

    fn entry_for(key: Text, child: &Self) -> Entry {
        Entry {
            // SAFETY: the key is one that the caller has just got from an entry, or the empty one.
            separator: Separator::new(unsafe { key.bytes() }),
            child: std::ptr::from_ref(child) as u64,
        }
    }
}

impl Inner {
    fn copy(&self, from: usize, to: usize) {
        self.heads[to].store(self.head(from), Ordering::Relaxed);
        self.separators[to].store(self.separator(from).word(), Ordering::Release);
        self.children[to].store(self.word(from), Ordering::Release);
    }
}

impl Inner {
    /// Bytes of DRAM in the separators of this node and of those below it, roughly: other threads may change nodes meanwhile. The caller is not
    /// pinned.
    pub(super) fn separator_bytes(&self) -> u64 {
        let _guard = crate::concurrency::epochs::pin();
        let version = self.lock.read();
        let mut bytes = 0;
        for slot in 0..self.count() {
            // SAFETY: the caller is pinned, and the rules at the head of this file hold.
            let length = unsafe { self.separator(slot).bytes() }.len() as u64;
            bytes += if length > 0 { length + 4 } else { 0 };
            if self.level() > 0 {
                let child = self.node(slot);
                if !self.lock.validate(version) {
                    break;
                }
                bytes += child.separator_bytes();
            }
        }
        bytes
    }
}
