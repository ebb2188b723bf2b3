//! Inner nodes, in DRAM.
//!
//! A node has up to [`SLOTS`] children. A child covers the keys from its own separator up to the next child's; the separator of the first child
//! is the lower end of the node. Separators are cut as short as they can be when a leaf splits.
//!
//! ```text
//! | lock | shape | first slot of each group | column of each group | 4 words free |
//! | prefix: up to 64 bytes that all separators but the first begin with |
//! | bounds: the 8 bytes behind the prefix of the first separator of each group |
//! | heads: 8 bytes of each separator from the column of its group on, as a number that compares as they do |
//! | separators: the address of each |
//! | children: offsets of leaves, or addresses of nodes |
//! ```
//!
//! A search compares the prefix, then bounds, then the heads of one [group](super::groups), and looks at whole separators only where heads are equal.
//! Heads are padded with zeros, so `"a"` and `"a\0"` tie, and the whole separators decide.
//!
//! The bytes between a bound and the column of its group lie in the separators alone, elsewhere in memory. A *sure* search compares them. Another one
//! does not, and a key that differs there may be led to a wrong child: that is seldom, since a key between two separators of a group has
//! these bytes too. Nor does it compare more than the last 8 bytes of the prefix. Who finds the key in a leaf, behind the prefix of that leaf, need not ask.
//! Others compare the key with both ends of the leaf, which come from memory at the same time as the leaf, and search again if it does not lie
//! between them.
//!
//! The three rules of the LB+-Tree's inner nodes hold here too, so that a reader may take the version of a child before it has validated the
//! node: nodes are not freed while the tree lives, an upper node is never reused as a bottom node, and every child word of an upper node
//! is a pointer to a node of the same tree. And one more: every separator word of a node is 0 or the address of a separator that has not been
//! freed. Words of slots that are not in use are 0, and a separator is freed only after an epoch.

mod find;

use super::groups::{GROUPS, Groups, bound};
use super::separator::{LENGTH_BYTES, Separator, Text};
use super::sizes::Size;
use crate::concurrency::locks::VersionLock;
use crate::concurrency::sync::atomic::{AtomicU64, Ordering};
use crate::engines::arena::Node;
use crate::engines::inner_nodes::InnerNode;
use crate::kernels::prefetch;
use crate::pmem::geometry::sized_in_tests;
use crate::pool::Offset;

/// Slots of a node. The last ones are for splits that make more than two leaves.
pub(super) const SLOTS: usize = sized_in_tests(64, 12);
/// Children that a structure change of leaves may add at once.
pub(super) const MOST_ADDED: usize = 3;
/// Most bytes of the prefix.
const MOST_PREFIX: usize = 64;

/// A child of a bottom node: the offset and the size of a leaf, or the offset where an *unindexed range* begins.
///
/// Blocks begin at multiples of 256 bytes. Bit 0 says that the range is unindexed, bits 1..2 have the number of the size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Child(u64);

impl Child {
    const UNINDEXED: u64 = 1;
    const SIZE_SHIFT: u32 = 1;
    /// Bits below the offset of a leaf.
    const BITS_BELOW: u64 = 0xff;

    pub(super) fn leaf(offset: Offset, size: Size) -> Self {
        Self(offset.get() | size.number() << Self::SIZE_SHIFT)
    }

    pub(super) fn unindexed(offset: Offset) -> Self {
        Self(offset.get() | Self::UNINDEXED)
    }

    #[inline(always)]
    pub(super) fn offset(self) -> Offset {
        // An unindexed range may begin anywhere, as far as is known: that it is a block of a leaf is found out when it is indexed.
        let below = Self::BITS_BELOW >> (7 * (self.0 & Self::UNINDEXED));
        Offset::from_word(self.0 & !below)
    }

    /// The size of the leaf. Of an unindexed range it is not known.
    #[inline(always)]
    pub(super) fn size(self) -> Size {
        Size::of_number(self.0 >> Self::SIZE_SHIFT & ((1 << Size::BITS) - 1))
    }

    #[inline(always)]
    pub(super) fn is_unindexed(self) -> bool {
        self.0 & Self::UNINDEXED != 0
    }
}

const _: () = assert!(Size::BITS < 8);

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
    /// Bits 0..7 the level, 8..23 the number of children, 32..39 bytes of the prefix, 40..47 the number of groups.
    shape: AtomicU64,
    /// The slot of the first separator of each group, a byte each.
    starts: AtomicU64,
    /// Bytes behind the prefix that the separators of each group share, a byte each.
    columns: AtomicU64,
    _free: [AtomicU64; 4],
    prefix: [AtomicU64; MOST_PREFIX / 8],
    bounds: [AtomicU64; GROUPS],
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
    if let Some(&eight) = bytes.first_chunk() {
        return u64::from_be_bytes(eight);
    }
    let to_top = |word: u64, bytes: usize| word << (8 * (8 - bytes));
    match (bytes.first_chunk(), bytes.last_chunk()) {
        // From 4 to 7 bytes: the first four and the last four, which may overlap.
        (Some(&first), Some(&last)) => {
            let [first, last] = [first, last].map(|four| u64::from(u32::from_be_bytes(four)));
            first << 32 | to_top(last, bytes.len())
        }
        _ => bytes
            .iter()
            .zip(1..)
            .map(|(&byte, at)| to_top(byte.into(), at))
            .fold(0, |head, byte| head | byte),
    }
}

/// The bits of so many first bytes of a head.
#[inline(always)]
pub(super) fn bits_of_first(bytes: usize) -> u64 {
    !u64::MAX.checked_shr(8 * bytes as u32).unwrap_or(0)
}

impl Inner {
    #[inline(always)]
    fn prefix_bytes(&self) -> usize {
        ((self.shape.load(Ordering::Relaxed) >> 32) as u8 as usize).min(MOST_PREFIX)
    }

    fn set_shape(&self, count: usize, prefix: usize, groups: usize) {
        let level = u64::from(self.level());
        let shape = level | (count as u64) << 8 | (prefix as u64) << 32 | (groups as u64) << 40;
        self.shape.store(shape, Ordering::Relaxed);
    }

    /// Asks the caches for the lines that a search reads, side by side: it would wait for one after the other.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        prefetch(&self.lock);
        prefetch(&self.prefix);
        prefetch(&self.bounds);
        for heads in self.heads.chunks(8) {
            prefetch(heads.as_ptr());
        }
    }

    /// Asks the caches for all children: which of them a search needs is known late, and then it would wait.
    #[inline(always)]
    pub(super) fn prefetch_children(&self) {
        for children in self.children.chunks(8) {
            prefetch(children.as_ptr());
        }
    }

    /// Asks the caches for one child.
    #[inline(always)]
    pub(super) fn prefetch_child(&self, slot: usize) {
        prefetch(&self.children[slot.min(SLOTS - 1)]);
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

    /// Asks the caches for the begin of the separator of a child, and for what lies `behind` bytes further on.
    #[inline(always)]
    pub(super) fn prefetch_separator(&self, slot: usize, behind: usize) {
        let address = self.separators[slot.min(SLOTS - 1)].load(Ordering::Relaxed) as *const u8;
        prefetch(address);
        prefetch(address.wrapping_add(behind));
    }

    /// The separator of the next child to the right, if there is one.
    #[inline(always)]
    pub(super) fn next_separator(&self, slot: usize) -> Option<Separator> {
        (slot + 1 < self.count()).then(|| self.separator(slot + 1))
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

    /// `column` is counted from the begin of the separator.
    fn set(&self, slot: usize, entry: &Entry, column: usize) {
        // SAFETY: the caller has locked the node that the separator is in, or is about to be in.
        let bytes = unsafe { entry.separator.bytes() };
        let head = head_of(bytes.get(column..).unwrap_or_default());
        self.heads[slot].store(head, Ordering::Relaxed);
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
        // SAFETY: as above.
        let bytes = |entry: &Entry| unsafe { entry.separator.bytes() };
        let separators: Vec<&[u8]> = entries.iter().skip(1).map(bytes).collect();
        let groups = Groups::of(&separators, prefix);
        let mut group = 0;
        for (slot, entry) in entries.iter().enumerate() {
            if group + 1 < groups.count && slot >= usize::from(groups.starts[group + 1]) {
                group += 1;
            }
            self.set(slot, entry, prefix + usize::from(groups.columns[group]));
        }
        for separator in &self.separators[entries.len()..] {
            separator.store(0, Ordering::Relaxed);
        }
        self.set_groups(&groups);
        self.set_shape(entries.len(), prefix, groups.count);
    }

    fn insert(&self, slot: usize, entry: &Entry) {
        let (count, prefix, at) = (self.count(), self.prefix_bytes(), slot + 1);
        assert!(
            count < SLOTS,
            "invariant: a node has room for the children that it gets"
        );
        // SAFETY: the entry is about to be in this node.
        let bytes = unsafe { entry.separator.bytes() };
        let mut groups = self.groups();
        let Some(group) = self.group_for(&groups, at, bytes) else {
            let mut entries = self.entries();
            entries.insert(at, *entry);
            self.refill(&entries);
            return;
        };
        for to in (at + 1..=count).rev() {
            self.copy(to - 1, to);
        }
        if at == usize::from(groups.starts[group]) {
            groups.bounds[group] = bound(bytes, prefix);
        }
        for start in &mut groups.starts[group + 1..groups.count] {
            *start += 1;
        }
        self.set(at, entry, prefix + usize::from(groups.columns[group]));
        self.set_groups(&groups);
        self.set_shape(count + 1, prefix, groups.count);
    }

    fn remove(&self, slot: usize) {
        let count = self.count();
        let removed = self.separator(slot);
        let mut groups = self.groups();
        let starts = &mut groups.starts[..groups.count];
        if starts.contains(&(slot as u8)) {
            // The bound of its group goes with it.
            let mut entries = self.entries();
            entries.remove(slot);
            self.refill(&entries);
        } else {
            for to in slot..count - 1 {
                self.copy(to + 1, to);
            }
            for start in starts
                .iter_mut()
                .filter(|start| usize::from(**start) > slot)
            {
                *start -= 1;
            }
            self.set_groups(&groups);
            self.set_shape(count - 1, self.prefix_bytes(), groups.count);
            self.separators[count - 1].store(0, Ordering::Relaxed);
        }
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
    /// The groups of a node that the caller has locked.
    fn groups(&self) -> Groups {
        Groups {
            count: self.group_count(),
            starts: self.starts.load(Ordering::Relaxed).to_le_bytes(),
            columns: self.columns.load(Ordering::Relaxed).to_le_bytes(),
            bounds: std::array::from_fn(|group| self.bounds[group].load(Ordering::Relaxed)),
        }
    }

    fn set_groups(&self, groups: &Groups) {
        let (starts, columns) = (groups.starts, groups.columns);
        self.starts
            .store(u64::from_le_bytes(starts), Ordering::Relaxed);
        self.columns
            .store(u64::from_le_bytes(columns), Ordering::Relaxed);
        for (word, &bound) in self.bounds.iter().zip(&groups.bounds) {
            word.store(bound, Ordering::Relaxed);
        }
    }

    /// The group that a separator can join which is to be in slot `at`: it has the node's prefix and what the separators of that group share, and
    /// bounds tell it from the groups beside.
    fn group_for(&self, groups: &Groups, at: usize, separator: &[u8]) -> Option<usize> {
        let (count, prefix) = (self.count(), self.prefix_bytes());
        // SAFETY: the caller has locked this node.
        let in_slot = |slot: usize| unsafe { self.separator(slot).bytes() };
        (0..groups.count).find(|&group| {
            let slots = self.slots_of(group, count);
            if !(slots.start..=slots.end).contains(&at) {
                return false;
            }
            let is_first = at == slots.start;
            let member = in_slot(if is_first { at } else { at - 1 });
            let shared = prefix + usize::from(groups.columns[group]);
            let shares = (separator.get(..shared)).is_some_and(|own| member.starts_with(own));
            let is_above_left =
                || group == 0 || bound(in_slot(at - 1), prefix) < bound(separator, prefix);
            let is_below_right =
                || group + 1 == groups.count || bound(separator, prefix) < groups.bounds[group + 1];
            shares && (!is_first || is_above_left()) && (at < slots.end || is_below_right())
        })
    }

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
            bytes += if length > 0 {
                length + LENGTH_BYTES as u64
            } else {
                0
            };
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
