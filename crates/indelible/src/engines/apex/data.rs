//! The mirror of a data node: what DRAM holds for one data node of the pool.
//!
//! A data node keeps its records in the pool, in a *primary array* and a *stash array* ([`layout`](super::layout) has
//! the drawings). The node's *model* maps a key to its *predicted slot* in the primary array. The record of the key
//! lies in the *window* of the predicted slot: the 16 slots that consist of the *line pair* (two neighbouring cache
//! lines, 8 slots) of the predicted slot and one more line pair. If all 16 slots are taken, the record lies in the
//! stash array, or in an *extended stash block* behind it. A record outside of the line pair of its predicted slot is a
//! *displaced* record.
//!
//! The primary array is divided into *groups* of 256 slots. A key belongs to the group of its predicted slot, wherever
//! its record lies, and a writer of the record holds the version lock of that group. The group has an *overflow bucket*
//! ([`bucket`](super::bucket)) that says in which stash slots the records of the group lie.
//!
//! The primary array needs no accelerator in DRAM: a search compares the slots of the window with the key, and with the
//! marker of free slots, in vector registers. (The paper keeps fingerprints and bitmaps for the primary array, 18 bytes
//! per 16 slots, because reading Optane was slow. Here they would be one more cache line to miss.) So the first touch
//! of a node after an open reads only its stash.
//!
//! ```text
//! line 0, read by every lookup    model (40) | number of the first lock (4) | slots (4) | primary array (8) | groups (8)
//! line 1, read by writers         state, sizes, stash bitmap
//!
//! group (one per 256 slots)
//!   word       bits 0..47 address of the group's overflow bucket, or 0
//!              bits 48..63 number of the group's records, or 0xffff if they have not been counted
//!   displaced  bit n: records whose predicted slot is in line pair n may be displaced
//!              bit 32 + n: these records may be in the stash
//! ```
//!
//! # Invariants
//!
//! - I1. A record lies in the window of its predicted slot, or in a stash slot that an overflow entry of the group of
//!   its predicted slot names.
//! - I2. A window never leaves its group (`window_of`). So the lock of one group protects every slot in which a record
//!   of the group may lie.
//! - I3. A slot is free if and only if its key is the node's *marker*. The marker is never a key of the range
//!   `low..=high`.
//! - I4. The displaced bit of a line pair is set while a record with its predicted slot there is displaced, and the
//!   stash bit while such a record is in the stash. A bit may be set without need; counting the group clears it.
//! - I5. Each overflow entry names a stash slot that exists and whose bit is set in the stash bitmap. Each record in
//!   the stash has exactly one overflow entry.
//! - I6. While `is_in_order` is set, the records of a group ascend from slot to slot, but for the displaced records of
//!   the group's last line pair, which lie at the end of the line pair before it.
//! - I7. The model predicts only slots whose window lies in the primary array (`predictable_slots`).
//! - I8. The records change only while the state is `Live`, under the lock of their group.

mod density;

use density::EXTEND_STASH_GROWTH_DIVISOR;
pub(super) use density::{GROUP_RETRAIN_PERCENT, TREND_GROUP_RETRAIN_PERCENT};

use super::bucket::{Bucket, Entry};
use super::layout::{
    DataGeometry, EXTENSION_SLOTS, GROUP_LINE_PAIRS, GROUP_SLOTS, HEADER_BYTES, LINE_PAIR_SLOTS,
    Offset, SLOT_BYTES,
};
use super::model::Model;
use super::recover::MAX_EXTENSIONS;
use crate::concurrency::sync::lock;
use crate::kernels::{KeyLine, Simd, prefetch};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What operations may do with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// Read and write.
    Live = 0,
    /// Read only: a structure change copies the records, or has copied them and not yet finished.
    Frozen = 1,
    /// Read only, by threads that reached the node earlier: another node has taken its place.
    Dead = 2,
}

/// The mirror of a data node; the head of this file describes the fields.
#[repr(C, align(64))]
pub(super) struct DataNode {
    pub(super) model: Model,
    /// The number of the version lock of the first group.
    first_lock: u32,
    /// Slots in the primary array.
    pub(super) primary: u32,
    /// Offset in the pool of the primary array.
    primary_at: Offset,
    groups: Box<[SlotGroup]>,
    /// A [`State`].
    state: AtomicU32,
    /// Slots in the stash array.
    pub(super) stash: u32,
    /// One bit for each slot of the stash array, then for each slot of the extended stash: set while the slot is taken.
    stash_bits: Box<[AtomicU64]>,
    /// One bit for each of the first 64 words of the stash bitmap: set when all slots of the word have been taken, and cleared when one
    /// is released. A hint: searches for a free slot pass over these words at first.
    full_words: AtomicU64,
    /// Offsets of the extended stash blocks, in the order in which they were added; 0 beyond the last.
    extensions: Box<[AtomicU64]>,
    /// The key value of free slots (I3).
    marker: u64,
    /// Size of the node's block.
    pub(super) bytes: u64,
    /// The lowest and the highest key that are routed to the node.
    pub(super) low: u64,
    pub(super) high: u64,
    /// How many records the node was built with, and the lowest and the highest of their keys. `None` for a node that
    /// was built before the pool was opened: its block does not say.
    pub(super) built: Option<(usize, u64, u64)>,
    /// The number of records when the node was built, or when a structure change last examined the node and left it as
    /// it was; 0 if neither has happened since the pool was opened.
    records_at_review: AtomicUsize,
    /// Records when the node was to become smaller and there was no space, or the most that a number can say.
    records_at_failure: AtomicUsize,
    /// Nobody has inserted since the node was built; see I6. Ranges copy the records of such a node without sorting.
    pub(super) is_in_order: AtomicBool,
    /// Held while an extended stash block is added.
    pub(super) extending: Mutex<()>,
    /// Addresses of overflow buckets that larger ones have replaced. Readers may still search them, so they are freed
    /// with the node.
    replaced: Mutex<Vec<u64>>,
}

/// What DRAM knows of 256 slots of the primary array; the head of this file has the drawing.
#[repr(C, align(16))]
struct SlotGroup {
    word: AtomicU64,
    displaced: AtomicU64,
}

/// From the lock of one group of a node to that of the next: so many that the two lie in different cache lines, and odd, so that no
/// two groups of a node have one lock.
const LOCKS_BETWEEN_GROUPS: usize = 5;

/// The displaced word has one bit per line pair in each of its halves.
const _: () = assert!(GROUP_LINE_PAIRS <= 32);

/// The count of a group whose records have not been counted since the node was mirrored.
const UNCOUNTED: u64 = 0xffff;
/// The bits of a group word that hold the address of the overflow bucket.
const BUCKET_BITS: u64 = (1 << 48) - 1;

impl DataNode {
    /// A frozen node in the block at `offset`, with the extended stash blocks `extensions`; `first_lock` is the number of the lock of its
    /// first group. Its overflow buckets are
    /// empty and its groups uncounted: the caller fills them.
    pub(super) fn new(
        offset: Offset,
        bytes: u64,
        geometry: &DataGeometry,
        high: u64,
        extensions: &[Offset],
        first_lock: usize,
    ) -> Box<Self> {
        // Room for as many more blocks as `prefers_extended_stash` asks for before the node is rebuilt.
        let more_extensions =
            (geometry.primary + geometry.stash) / EXTEND_STASH_GROWTH_DIVISOR / EXTENSION_SLOTS + 2;
        let most_extensions = extensions.len() + more_extensions;
        let stash_slots = geometry.stash + most_extensions * EXTENSION_SLOTS;
        let data = Box::new(Self {
            model: geometry.model,
            first_lock: first_lock as u32,
            primary_at: offset + HEADER_BYTES,
            groups: (0..geometry.primary.div_ceil(GROUP_SLOTS))
                .map(|_| SlotGroup::uncounted())
                .collect(),
            state: AtomicU32::new(State::Frozen as u32),
            primary: geometry.primary as u32,
            stash: geometry.stash as u32,
            stash_bits: zeroed_words(stash_slots.div_ceil(64)),
            full_words: AtomicU64::new(0),
            extensions: zeroed_words(most_extensions),
            marker: geometry.marker,
            bytes,
            low: geometry.low,
            high,
            built: None,
            records_at_review: AtomicUsize::new(0),
            records_at_failure: AtomicUsize::new(usize::MAX),
            is_in_order: AtomicBool::new(false),
            extending: Mutex::default(),
            replaced: Mutex::default(),
        });
        for (known, &offset) in data.extensions.iter().zip(extensions) {
            known.store(offset.get(), Ordering::Relaxed);
        }
        data
    }

    /// Offset in the pool of the node's block.
    pub(super) fn offset(&self) -> Offset {
        Offset::from_word(self.primary_at.get() - HEADER_BYTES)
    }

    /// Offset in the pool of a slot of the primary array.
    #[inline(always)]
    pub(super) fn slot_at(&self, slot: usize) -> Offset {
        self.primary_at + slot as u64 * SLOT_BYTES
    }

    /// The number of the lock of the group of a predicted slot.
    #[inline(always)]
    pub(super) fn lock_of(&self, predicted: usize) -> usize {
        self.first_lock as usize + predicted / GROUP_SLOTS * LOCKS_BETWEEN_GROUPS
    }

    /// The key value that free slots of the node hold.
    #[inline(always)]
    pub(super) fn marker(&self) -> u64 {
        self.marker
    }

    pub(super) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The slots of the primary array that belong to a group.
    pub(super) fn slots_of(&self, group: usize) -> std::ops::Range<usize> {
        group * GROUP_SLOTS..((group + 1) * GROUP_SLOTS).min(self.primary as usize)
    }

    /// Slots of the primary array and of the stash array together.
    pub(super) fn slots(&self) -> usize {
        (self.primary + self.stash) as usize
    }

    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Live,
            1 => State::Frozen,
            _ => State::Dead,
        }
    }

    /// Sets a live node to `Frozen`; `false` if the node was not live.
    pub(super) fn freeze(&self) -> bool {
        self.state
            .compare_exchange(
                State::Live as u32,
                State::Frozen as u32,
                Ordering::SeqCst,
                Ordering::Relaxed,
            )
            .is_ok()
    }

    /// Sets the state of a frozen node: `Live` opens it for writers, `Dead` closes it for good.
    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// A group's overflow bucket, if it has one.
    #[inline(always)]
    fn bucket(&self, group: usize) -> Option<Bucket<'_>> {
        let word = self.groups[group].word.load(Ordering::Acquire);
        // SAFETY: a group word holds 0 or the address of a bucket that is freed only when the node is dropped.
        unsafe { Bucket::at(word & BUCKET_BITS) }
    }

    /// Bytes of DRAM that the mirror takes, with its overflow buckets.
    pub(super) fn dram_bytes(&self) -> u64 {
        let current = (0..self.group_count()).filter_map(|group| self.bucket(group));
        let replaced = lock(&self.replaced);
        // SAFETY: replaced buckets are freed only when the node is dropped.
        let replaced = replaced.iter().filter_map(|&at| unsafe { Bucket::at(at) });
        let buckets: usize = current.chain(replaced).map(Bucket::bytes).sum();
        (size_of::<Self>()
            + size_of_val(&*self.groups)
            + size_of_val(&*self.stash_bits)
            + size_of_val(&*self.extensions)
            + buckets) as u64
    }
}

/// The model predicts only slots of the primary array (data I7), so what is indexed by predicted slots needs no check.
impl DataNode {
    /// The group of a predicted slot.
    #[inline(always)]
    fn group(&self, predicted: usize) -> &SlotGroup {
        debug_assert!(predicted / GROUP_SLOTS < self.groups.len());
        // SAFETY: every 256 slots of the primary array have a group, and by data I7 the model predicts no other slots. Callers pass results of
        // `predict`, or slots of a group that has such a result: the last group may have fewer slots than 256, and the chunks of a scan do not
        // ask how many.
        unsafe { self.groups.get_unchecked(predicted / GROUP_SLOTS) }
    }
}

impl SlotGroup {
    /// A group whose records have not been counted: any of them may be displaced (I4).
    fn uncounted() -> Self {
        Self {
            word: (UNCOUNTED << 48).into(),
            displaced: u64::MAX.into(),
        }
    }
}

/// Displaced records: those outside of the line pair of their predicted slot (I4).
impl DataNode {
    /// The bit that says that records predicted in this line pair may be displaced.
    #[inline(always)]
    pub(super) fn line_pair_bit(predicted: usize) -> u64 {
        1 << (predicted % GROUP_SLOTS / LINE_PAIR_SLOTS)
    }

    /// The bit that says that records predicted in this line pair may be in the stash.
    #[inline(always)]
    fn stash_bit(predicted: usize) -> u64 {
        Self::line_pair_bit(predicted) << 32
    }

    /// Both bits, for a record in the stash.
    #[inline(always)]
    pub(super) fn stashed_bits(predicted: usize) -> u64 {
        Self::line_pair_bit(predicted) | Self::stash_bit(predicted)
    }

    /// Whether a record that was predicted in this line pair may be displaced. If not, a search reads this line pair
    /// only.
    #[inline(always)]
    pub(super) fn has_displaced(&self, predicted: usize) -> bool {
        self.group(predicted).displaced.load(Ordering::Relaxed) & Self::line_pair_bit(predicted)
            != 0
    }

    /// Whether a record that was predicted in this line pair may be in the stash. If not, a search skips the overflow
    /// bucket.
    #[inline(always)]
    pub(super) fn has_stashed(&self, predicted: usize) -> bool {
        self.group(predicted).displaced.load(Ordering::Relaxed) & Self::stash_bit(predicted) != 0
    }

    /// Whether a record with its predicted slot from `from` to `to`, both of one group, may be in the stash.
    #[inline(always)]
    pub(super) fn has_stashed_between(&self, from: usize, to: usize) -> bool {
        let bits = (Self::stash_bit(to) - Self::stash_bit(from)) | Self::stash_bit(to);
        self.group(from).displaced.load(Ordering::Relaxed) & bits != 0
    }

    /// Whether all bits of `displaced` are set in the group's displaced word.
    pub(super) fn has_displaced_bits(&self, group: usize, displaced: u64) -> bool {
        displaced & !self.groups[group].displaced.load(Ordering::Relaxed) == 0
    }

    /// Sets the bit for a record that lies in the other line pair of its window. The group's lock is held.
    #[inline(always)]
    pub(super) fn mark_displaced(&self, predicted: usize) {
        self.set_displaced_bits(predicted, Self::line_pair_bit(predicted));
    }

    /// Sets bits of the displaced word of a predicted slot's group. The group's lock is held.
    #[inline(always)]
    fn set_displaced_bits(&self, predicted: usize, bits: u64) {
        let displaced = &self.group(predicted).displaced;
        displaced.store(displaced.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }
}

/// Overflow: the records that found no free slot in their windows (I5).
impl DataNode {
    /// Asks `found` for each stash slot that may hold the record of `key`, and returns its first answer. A writer may
    /// be changing the entries: a caller without the group's lock validates the version afterwards.
    #[inline(always)]
    pub(super) fn find_overflow<S: Simd, T>(
        &self,
        predicted: usize,
        key: u64,
        found: impl Fn(u32) -> Option<T>,
    ) -> Option<T> {
        self.bucket(predicted / GROUP_SLOTS)?
            .find::<S, T>(predicted, key, found)
    }

    /// Prefetches the first two lines of a group's overflow bucket; few buckets are longer.
    #[inline(always)]
    pub(super) fn prefetch_overflow(&self, group: usize) {
        let word = self.groups[group].word.load(Ordering::Relaxed);
        let bucket = std::ptr::without_provenance::<KeyLine>((word & BUCKET_BITS) as usize);
        (0..2).for_each(|line| prefetch(bucket.wrapping_add(line)));
    }

    /// Passes to `found` the stash slots that may hold records with a predicted slot from `from` to `to`, both of one
    /// group. A writer may be changing the entries: a caller without the group's lock validates the version afterwards.
    #[inline(always)]
    pub(super) fn find_overflow_between<S: Simd>(
        &self,
        from: usize,
        to: usize,
        found: impl FnMut(u32),
    ) {
        if let Some(bucket) = self.bucket(from / GROUP_SLOTS) {
            bucket.find_between::<S>(from, to, found);
        }
    }

    /// All overflow entries of a group.
    pub(super) fn overflow_of(&self, group: usize) -> impl Iterator<Item = Entry> {
        self.bucket(group).into_iter().flat_map(Bucket::entries)
    }

    /// Adds the overflow entry of a record that has been written to a stash slot. The group's lock is held.
    pub(super) fn add_overflow(&self, predicted: usize, key: u64, stash_slot: u32) {
        let group = predicted / GROUP_SLOTS;
        self.set_displaced_bits(predicted, Self::stashed_bits(predicted));
        let entry = Entry::new(predicted, key, stash_slot);
        let old = self.bucket(group);
        if old.is_some_and(|bucket| bucket.push(entry)) {
            return;
        }
        let address = Bucket::grown(old, entry).address();
        assert!(address <= BUCKET_BITS, "user addresses have 48 bits");
        let word = &self.groups[group].word;
        let count = word.load(Ordering::Relaxed) & !BUCKET_BITS;
        word.store(count | address, Ordering::Release);
        if let Some(old) = old {
            lock(&self.replaced).push(old.address());
        }
    }

    /// Removes the overflow entry of a record that has been taken out of a stash slot. The group's lock is held.
    pub(super) fn remove_overflow(&self, predicted: usize, stash_slot: u32) {
        let bucket = self.bucket(predicted / GROUP_SLOTS);
        let is_removed = bucket.is_some_and(|bucket| bucket.remove(stash_slot));
        assert!(is_removed, "data I5: stash slot {stash_slot} has no entry");
    }

    /// Records in the stash, of all groups: an estimate while writers change the node.
    pub(super) fn overflowed(&self) -> usize {
        (0..self.group_count())
            .filter_map(|group| self.bucket(group))
            .map(Bucket::len)
            .sum()
    }
}

/// The stash: the stash array, then the extended stash blocks. Their slots are numbered through.
impl DataNode {
    /// Offset in the pool of a stash slot; `None` if there are fewer stash slots.
    #[inline(always)]
    pub(super) fn stash_at(&self, slot: u32) -> Option<Offset> {
        if slot < self.stash {
            return Some(self.slot_at((self.primary + slot) as usize));
        }
        let beyond = (slot - self.stash) as usize;
        let block = self.extensions.get(beyond / EXTENSION_SLOTS)?;
        let block = Offset::from_word(block.load(Ordering::Acquire));
        let within = (1 + beyond % EXTENSION_SLOTS) as u64 * SLOT_BYTES;
        (!block.is_none()).then_some(block + within)
    }

    /// Offsets of the extended stash blocks.
    pub(super) fn extensions(&self) -> impl Iterator<Item = Offset> + '_ {
        self.extensions
            .iter()
            .map(|block| Offset::from_word(block.load(Ordering::Acquire)))
            .take_while(|block| !block.is_none())
    }

    /// Takes over what is known of a frozen node whose records are in the same slots.
    pub(super) fn copy_statistics(&mut self, old: &Self) {
        self.built = old.built;
        self.set_reviewed(old.records_at_review.load(Ordering::Relaxed));
        self.is_in_order = old.is_in_order.load(Ordering::Relaxed).into();
        for group in 0..self.group_count() {
            if let Some(count) = old.count(group) {
                let displaced = old.groups[group].displaced.load(Ordering::Relaxed);
                self.set_counted(group, count, displaced);
            }
        }
    }

    /// Whether the mirror has room for one more extended stash block, and the node may have one more.
    pub(super) fn can_add_extension(&self) -> bool {
        let has_room = self
            .extensions
            .last()
            .is_some_and(|block| block.load(Ordering::Relaxed) == 0);
        has_room && self.extensions().count() < MAX_EXTENSIONS
    }

    /// Adds an extended stash block, for which [`can_add_extension`](Self::can_add_extension) has found room.
    /// `extending` is held.
    pub(super) fn extend(&self, block: Offset) {
        self.extensions[self.extensions().count()].store(block.get(), Ordering::Release);
    }

    /// Slots of the stash array and of the extended stash blocks.
    pub(super) fn stash_slots(&self) -> u32 {
        self.stash + (self.extensions().count() * EXTENSION_SLOTS) as u32
    }

    /// Claims a free stash slot: sets its bit in the stash bitmap, so that no other writer writes there. Slots that
    /// correspond to the predicted slot come first, so that a range reads the stash about in order.
    pub(super) fn claim_stash(&self, predicted: usize) -> Option<u32> {
        let slots = self.stash_slots();
        let words = slots.div_ceil(64);
        let near = predicted as u32 * self.stash / self.primary / 64;
        if near < 64 {
            let full = self.full_words.load(Ordering::Relaxed);
            let likely = near + (!full >> near).trailing_zeros();
            if likely < words.min(64)
                && let Some(slot) = self.claim_in_word(likely, slots)
            {
                return Some(slot);
            }
        }
        (near..words)
            .chain(0..near)
            .find_map(|index| self.claim_in_word(index, slots))
    }

    /// Claims a free one of the stash slots that a word of the stash bitmap stands for. `slots` is the number of all.
    #[inline(always)]
    fn claim_in_word(&self, index: u32, slots: u32) -> Option<u32> {
        let word = &self.stash_bits[index as usize];
        let in_use = (slots - index * 64).min(64);
        let mut bits = word.load(Ordering::Relaxed);
        loop {
            let free = bits.trailing_ones();
            if free >= in_use {
                // An extended stash block may add slots to a word that ends early.
                if free == 64 && index < 64 {
                    self.full_words.fetch_or(1 << index, Ordering::Relaxed);
                }
                return None;
            }
            // Writers of other groups may claim slots of the same word.
            match word.compare_exchange_weak(
                bits,
                bits | 1 << free,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(index * 64 + free),
                Err(now) => bits = now,
            }
        }
    }

    /// Sets the bit of a stash slot that holds a record, of a node that nobody else has yet.
    pub(super) fn mark_stash_taken(&self, slot: u32) {
        let word = &self.stash_bits[(slot / 64) as usize];
        word.fetch_or(1 << (slot % 64), Ordering::Relaxed);
    }

    /// Stash slots that are taken.
    pub(super) fn taken_stash_slots(&self) -> usize {
        let words = self.stash_bits.iter();
        words
            .map(|word| word.load(Ordering::Relaxed).count_ones() as usize)
            .sum()
    }

    /// Whether a stash slot is free.
    pub(super) fn has_stash_room(&self) -> bool {
        self.taken_stash_slots() < self.stash_slots() as usize
    }

    /// Returns a stash slot, whose key is the marker again, to the other writers.
    pub(super) fn release_stash(&self, slot: u32) {
        let word = &self.stash_bits[(slot / 64) as usize];
        word.fetch_and(!(1 << (slot % 64)), Ordering::Release);
        if slot / 64 < 64 {
            self.full_words
                .fetch_and(!(1 << (slot / 64)), Ordering::Relaxed);
        }
    }
}

impl Drop for DataNode {
    fn drop(&mut self) {
        let words = self
            .groups
            .iter()
            .map(|group| group.word.load(Ordering::Relaxed));
        let current = words.map(|word| word & BUCKET_BITS);
        let replaced = std::mem::take(&mut *lock(&self.replaced));
        for address in current.chain(replaced) {
            // SAFETY: group words and `replaced` hold the buckets that the node owns, each once, and nobody has the
            // node any more.
            unsafe {
                if let Some(bucket) = Bucket::at(address) {
                    bucket.free();
                }
            }
        }
    }
}

fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}
