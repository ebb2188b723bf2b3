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
//! these bytes too. Who finds the key in the leaf need not ask. Others compare the key with both ends of the leaf, which come from memory at the same
//! time as the leaf, and search again if it does not lie between them.
//!
//! The three rules of the LB+-Tree's inner nodes hold here too, so that a reader may take the version of a child before it has validated the
//! node: nodes are not freed while the tree lives, an upper node is never reused as a bottom node, and every child word of an upper node
//! is a pointer to a node of the same tree. And one more: every separator word of a node is 0 or the address of a separator that has not been
//! freed. Words of slots that are not in use are 0, and a separator is freed only after an epoch.

use super::groups::{GROUPS, Groups, HEAD_BYTES, bound};
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

/// Where the heads of a node lead a key.
pub(super) struct Guess {
    /// The child, unless some heads are equal to that of the key.
    pub(super) slot: usize,
    /// The first slot whose head is equal, and those of its group behind it.
    pub(super) tied: Range<usize>,
    /// Behind the prefix, where the heads of the group begin.
    column: usize,
    /// Whether all bytes in front of the heads were compared.
    pub(super) is_sure: bool,
}

impl Guess {
    #[inline(always)]
    fn surely(slot: usize) -> Self {
        Self {
            slot,
            tied: 0..0,
            column: 0,
            is_sure: true,
        }
    }
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

    /// How a key compares with the separators by the prefix alone.
    #[inline(always)]
    fn compare_prefix(&self, key: &[u8], bytes: usize) -> std::cmp::Ordering {
        for (at, word) in self.prefix.iter().enumerate().take(bytes.div_ceil(8)) {
            let rest = key.get(8 * at..).unwrap_or_default();
            // The last word may have bytes that are not of the prefix.
            let among = bits_of_first(bytes - 8 * at);
            let prefix = u64::from_be_bytes(word.load(Ordering::Relaxed).to_ne_bytes());
            let order = (head_of(rest) & among).cmp(&(prefix & among));
            if order.is_ne() {
                return order;
            }
        }
        // A key that is a part of the prefix is below all separators.
        key.len().min(bytes).cmp(&bytes)
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
        let guess = self.guess::<true>(key);
        if guess.tied.is_empty() {
            return guess.slot;
        }
        let tied = self.prefetch_tied(&guess);
        self.among_equal::<BELOW>(key, tied, guess.column) - 1
    }

    /// The slot of the child that covers a key, and whether that is sure; see the head of this file. The caller is pinned.
    #[inline(always)]
    pub(super) fn find_likely(&self, key: &[u8]) -> (usize, bool) {
        let guess = self.guess::<false>(key);
        let Range { start, end } = guess.tied;
        if start == end {
            return (guess.slot, guess.is_sure);
        }
        let is_one = start + 1 == end || self.head(start + 1) != self.head(start);
        let tied = if is_one {
            start..start + 1
        } else {
            self.prefetch_tied(&guess)
        };
        (self.find_tied(key, &guess, tied), guess.is_sure)
    }

    /// The slot of the child that covers a key, as far as heads say it. `SURE`: what lies between the bound of its group and the heads is compared too.
    #[inline(always)]
    pub(super) fn guess<const SURE: bool>(&self, key: &[u8]) -> Guess {
        let count = self.count();
        let prefix = self.prefix_bytes();
        // A guess compares the last word of a long prefix only: how many words there are could not be predicted.
        if SURE || !self.ends_alike(key, prefix) {
            match self.compare_prefix(key, prefix) {
                std::cmp::Ordering::Less => return Guess::surely(0),
                std::cmp::Ordering::Greater => return Guess::surely(count.saturating_sub(1)),
                std::cmp::Ordering::Equal => {}
            }
        }
        // The lengths are those of one moment, or the version will not be valid.
        let rest = key.get(prefix..).unwrap_or_default();
        let first = head_of(rest);
        let likely = |slot| Guess {
            is_sure: SURE || prefix <= HEAD_BYTES,
            ..Guess::surely(slot)
        };
        let Some(group) = self.group_of(first) else {
            return likely(0);
        };
        let slots = self.slots_of(group, count);
        let column = self.column(group);
        let differs = first ^ self.bounds[group].load(Ordering::Relaxed);
        if differs & bits_of_first(column.min(HEAD_BYTES)) != 0 {
            // Not below the bound, so above all separators of the group.
            return likely(slots.end - 1);
        }
        if SURE && column > HEAD_BYTES {
            match self.compare_up_to_column(key, slots.start, prefix, column) {
                std::cmp::Ordering::Less => return Guess::surely(slots.start - 1),
                std::cmp::Ordering::Greater => return Guess::surely(slots.end - 1),
                std::cmp::Ordering::Equal => {}
            }
        }
        let head = head_of(rest.get(column..).unwrap_or_default());
        let end = slots.end;
        let at = self.first_at_least(slots, head);
        let is_tied = at < end && self.head(at) == head;
        Guess {
            slot: at - 1,
            tied: at..if is_tied { end } else { at },
            column,
            is_sure: SURE || column.max(prefix) <= HEAD_BYTES,
        }
    }

    /// Whether a key and the prefix have the same bytes in the last 8 of the prefix, or in all of a shorter one.
    #[inline(always)]
    fn ends_alike(&self, key: &[u8], prefix: usize) -> bool {
        let from = prefix.saturating_sub(HEAD_BYTES);
        let Some(&of_key) = key.get(from..).and_then(|rest| rest.first_chunk()) else {
            return false;
        };
        let (word, shift) = (from / 8, 8 * (from % 8) as u32);
        let word_at = |at: usize| {
            let word = self.prefix[at % self.prefix.len()].load(Ordering::Relaxed);
            u128::from(u64::from_le_bytes(word.to_ne_bytes()))
        };
        // The bytes of the prefix from there on, in the order of memory.
        let of_prefix = (word_at(word) | word_at(word + 1) << 64) >> shift;
        let differs = of_prefix as u64 ^ u64::from_le_bytes(of_key);
        differs << (64 - 8 * prefix.clamp(1, HEAD_BYTES)) == 0 || prefix == 0
    }

    /// The last group whose bound is not above the first bytes of a key behind the prefix.
    #[inline(always)]
    fn group_of(&self, first: u64) -> Option<usize> {
        let not_above = |bound: &AtomicU64| usize::from(bound.load(Ordering::Relaxed) <= first);
        let groups: usize = self.bounds.iter().map(not_above).sum();
        groups.min(self.group_count()).checked_sub(1)
    }

    #[inline(always)]
    fn group_count(&self) -> usize {
        ((self.shape.load(Ordering::Relaxed) >> 40) as u8 as usize).min(GROUPS)
    }

    #[inline(always)]
    fn column(&self, group: usize) -> usize {
        let columns = self.columns.load(Ordering::Relaxed).to_le_bytes();
        usize::from(columns[group % GROUPS])
    }

    /// The slots of a group, of `count` in the node. At least 1 each, and in order, whatever changes meanwhile.
    #[inline(always)]
    fn slots_of(&self, group: usize, count: usize) -> Range<usize> {
        let starts = self.starts.load(Ordering::Relaxed).to_le_bytes();
        let start = usize::from(starts[group % GROUPS]).clamp(1, SLOTS);
        let end = if group + 1 < self.group_count() {
            usize::from(starts[(group + 1) % GROUPS]).min(SLOTS)
        } else {
            count
        };
        start..end.max(start)
    }

    /// How a key compares with the separators of a group, which begins in this slot, by what they have between the bound and the column.
    #[inline(never)]
    fn compare_up_to_column(
        &self,
        key: &[u8],
        slot: usize,
        prefix: usize,
        column: usize,
    ) -> std::cmp::Ordering {
        // SAFETY: the caller of `find` is pinned, and the rules at the head of this file hold.
        let separator = unsafe { self.separator(slot.min(SLOTS - 1)).bytes() };
        let (from, to) = (prefix + HEAD_BYTES, prefix + column);
        let part =
            |bytes: &[u8]| -> (usize, usize) { (from.min(bytes.len()), to.min(bytes.len())) };
        let (of_key, of_separator) = (part(key), part(separator));
        key[of_key.0..of_key.1].cmp(&separator[of_separator.0..of_separator.1])
    }

    /// Asks the caches for separators that a binary search among the tied slots of a guess may look at. Returns the slots whose heads are equal.
    #[inline]
    pub(super) fn prefetch_tied(&self, guess: &Guess) -> Range<usize> {
        let Range { start, mut end } = guess.tied;
        if start < end
            && let Some(above) = self.head(start).checked_add(1)
        {
            end = self.first_at_least(start..end, above);
        }
        let eighth = (end - start).div_ceil(8).max(1);
        // The first bytes that can differ, and those that are compared with them.
        let behind = self.prefix_bytes() + guess.column + 16;
        (start..end)
            .step_by(eighth)
            .for_each(|slot| self.prefetch_separator(slot, behind));
        start..end
    }

    /// The slot of the child that covers a key, among slots that [`prefetch_tied`](Self::prefetch_tied) has returned.
    pub(super) fn find_tied(&self, key: &[u8], guess: &Guess, tied: Range<usize>) -> usize {
        self.among_equal::<false>(key, tied, guess.column) - 1
    }

    /// The first of `slots` whose head is not below this one, or the end. A step has no branch that depends on a head: nobody could predict it.
    #[inline(always)]
    fn first_at_least(&self, slots: Range<usize>, head: u64) -> usize {
        let (mut from, mut length) = (slots.start, slots.len());
        while length > 0 {
            let half = length.div_ceil(2);
            let is_below = self.head(from + half - 1) < head;
            from = std::hint::select_unpredictable(is_below, from + half, from);
            length -= half;
        }
        from
    }

    /// The first of `slots` whose separator is past a key, or the end. The key shares the node's prefix and what is in front of the column, and the
    /// heads of all of them are equal to its own, so the whole separators decide. Looking at one waits for memory, and all separators of a node may begin alike: so it is a binary
    /// search as well.
    #[inline(never)]
    fn among_equal<const BELOW: bool>(
        &self,
        key: &[u8],
        slots: Range<usize>,
        column: usize,
    ) -> usize {
        let Range {
            start: mut from,
            end: mut to,
        } = slots;
        let equal = self.prefix_bytes() + column + HEAD_BYTES;
        // A key that is shorter than the head has zeros there, and so may a separator; then all bytes are compared.
        let equal = if key.len() >= equal { equal } else { 0 };
        let rest = &key[equal..];
        let rest_head = head_of(rest);
        while from < to {
            let middle = from + (to - from) / 2;
            // SAFETY: the caller of `find` is pinned, and the rules at the head of this file hold.
            let separator = unsafe { self.separator(middle).bytes() };
            let is_past = match separator.get(equal..) {
                Some(separator) => {
                    let order = head_of(separator)
                        .cmp(&rest_head)
                        .then_with(|| separator.cmp(rest));
                    if BELOW { order.is_ge() } else { order.is_gt() }
                }
                // Shorter than the key, of which the head has zeros where the separator ends: below it. If the node has changed meanwhile, any answer
                // will do.
                None => false,
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::concurrency::epochs;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn text(most: usize) -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(
            prop_oneof![Just(0), Just(1), Just(0x1f), Just(0xff)],
            0..most,
        )
    }

    proptest! {
        #[test]
        fn a_head_compares_as_padded_bytes(a in text(12), b in text(12)) {
            let padded = |bytes: &[u8]| {
                let mut padded = bytes.to_vec();
                padded.resize(12, 0);
                padded.truncate(8);
                padded
            };
            prop_assert_eq!(head_of(&a).cmp(&head_of(&b)), padded(&a).cmp(&padded(&b)));
        }

        /// Whatever the separators share, a node finds what a search through all of them finds.
        #[test]
        fn a_node_finds_the_child_of_every_key(
            shared in text(70),
            separators in proptest::collection::btree_set(text(20), 0..SLOTS - 3),
            keys in proptest::collection::vec(text(20), 20),
        ) {
            let with_shared = |rest: &Vec<u8>| [&shared[..], rest].concat();
            let separators: BTreeSet<Vec<u8>> = separators.iter().map(with_shared).collect();
            let mut all = vec![Vec::new()];
            all.extend(separators.into_iter().filter(|separator| !separator.is_empty()));
            let arena = crate::engines::arena::Arena::<Inner>::new();
            let (node, _guard) = arena.alloc(0);
            let child = |at: usize| Child::leaf(Offset::from_word(64 * (at as u64 + 1)));
            let entries: Vec<Entry> = (all.iter().enumerate())
                .map(|(at, separator)| Entry::leaf(separator, child(at)))
                .collect();
            node.refill(&entries);
            let _pinned = epochs::pin();
            let probes = keys.iter().map(with_shared).chain(keys.iter().cloned()).chain(all.iter().cloned());
            for key in probes.chain([shared.clone(), Vec::new()]) {
                let at = all.partition_point(|separator| *separator <= key) - 1;
                prop_assert_eq!(node.find(Seek::At(&key)), at);
                let guess = node.guess::<true>(&key);
                let tied = node.prefetch_tied(&guess);
                prop_assert_eq!(if tied.is_empty() { guess.slot } else { node.find_tied(&key, &guess, tied) }, at);
                let (likely, is_sure) = node.find_likely(&key);
                prop_assert!(likely < all.len() && (likely == at || !is_sure));
                if !key.is_empty() {
                    let below = all.partition_point(|separator| *separator < key) - 1;
                    prop_assert_eq!(node.find(Seek::Below(&key)), below);
                }
            }
            node.free_separators();
        }
    }
}
