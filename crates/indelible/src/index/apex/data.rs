//! Data nodes: what DRAM knows of one.
//!
//! ```text
//! line 0, read by every lookup    model (40) | primary array (8) | groups (16)
//! line 1, read by writers         state, sizes, stash bitmap
//!
//! group (one per 256 slots)
//!   word    bits 0..47 the group's overflow bucket, or 0 · bits 48..63 its records, or 0xffff: not counted
//!   strays  bit n: records whose home is in pair n of lines may be elsewhere, in the other pair of their window or in the stash
//!           bit 32 + n: they may be in the stash
//! ```
//!
//! A group is 256 slots of the primary array. A key belongs to the group of its home wherever its record is, and whoever writes
//! the record holds the group's lock. The primary array itself needs nothing in DRAM: the 16 slots that may hold a key are
//! compared at once, with the key and with the marker of free slots. (The paper has fingerprints and bitmaps for it, 18 bytes
//! per 16 slots, because Optane was slow to read; here they would be one more line to miss.) So when a pool is opened only
//! the stashes have to be read, on first touch.

use super::bucket::{Bucket, Entry};
use super::layout::{
    DataShape, EXTENSION_SLOTS, GROUP, GROUP_PAIRS, HEADER_BYTES, Offset, PAIR_SLOTS, SLOT_BYTES,
};
use super::model::Model;
use super::plan::MIN_DATA_BYTES;
use crate::index::simd::{KeyLine, Simd, prefetch};
use crate::sync::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What may be done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// Everything.
    Live = 0,
    /// Reading: a structure change is being made, or has just been made.
    Frozen = 1,
    /// Reading, by those who are still here: another node has taken its place.
    Dead = 2,
}

/// See the module.
#[repr(C, align(64))]
pub(super) struct Data {
    pub(super) model: Model,
    /// Offset in the pool of the primary array.
    primary_at: Offset,
    groups: Box<[Group]>,
    /// A [`State`].
    state: AtomicU32,
    /// Slots in the primary array.
    pub(super) primary: u32,
    /// Slots in the stash array.
    pub(super) stash: u32,
    /// One bit per slot of the stash array, then of the extended stash.
    stash_bits: Box<[AtomicU64]>,
    /// Offsets of the extended stash blocks, 0 beyond the last.
    extensions: Box<[AtomicU64]>,
    /// The marker of free slots.
    marker: u64,
    /// Bytes of the block.
    pub(super) bytes: u64,
    /// The keys that are routed here, from the first to the second.
    pub(super) low: u64,
    pub(super) high: u64,
    /// How many records the node was built with, and the first and the last of their keys. Of a node from before the open
    /// nothing is known.
    pub(super) built: Option<(usize, u64, u64)>,
    /// How many it had then, or when somebody last looked at all of them and left the node as it is; 0 if nobody has.
    looked_at: AtomicUsize,
    /// Nobody has inserted since the node was built: the records of each group are in order, but for strays of its last pair of
    /// lines, which are in the pair before. Ranges rely on it.
    pub(super) is_in_order: AtomicBool,
    /// Held while an extended stash block is added.
    pub(super) extending: Mutex<()>,
    /// Addresses of the buckets that larger ones have replaced: readers may be in them, so they stay for as long as the node.
    replaced: Mutex<Vec<u64>>,
}

/// See the module.
#[repr(C, align(16))]
struct Group {
    word: AtomicU64,
    strays: AtomicU64,
}

const _: () = assert!(GROUP_PAIRS <= 32);

const UNCOUNTED: u64 = 0xffff;
const BUCKET_BITS: u64 = (1 << 48) - 1;

impl Data {
    /// A node for a block at `offset`; its overflow buckets are empty, and of its groups nothing is known. `extensions` are
    /// the extended stash blocks that it has.
    pub(super) fn new(
        offset: Offset,
        bytes: u64,
        shape: &DataShape,
        high: u64,
        extensions: &[Offset],
    ) -> Box<Self> {
        // As many more as `is_roomy` may ask for.
        let more_extensions = (shape.primary + shape.stash) / PATIENCE / EXTENSION_SLOTS + 2;
        let most_extensions = extensions.len() + more_extensions;
        let stash_slots = shape.stash + most_extensions * EXTENSION_SLOTS;
        let data = Box::new(Self {
            model: shape.model,
            primary_at: offset + HEADER_BYTES,
            groups: (0..shape.primary.div_ceil(GROUP))
                .map(|_| Group::unknown())
                .collect(),
            state: AtomicU32::new(State::Frozen as u32),
            primary: shape.primary as u32,
            stash: shape.stash as u32,
            stash_bits: words(stash_slots.div_ceil(64)),
            extensions: words(most_extensions),
            marker: shape.marker,
            bytes,
            low: shape.low,
            high,
            built: None,
            looked_at: AtomicUsize::new(0),
            is_in_order: AtomicBool::new(false),
            extending: Mutex::default(),
            replaced: Mutex::default(),
        });
        for (known, &offset) in data.extensions.iter().zip(extensions) {
            known.store(offset, Ordering::Relaxed);
        }
        data
    }

    /// Offset in the pool of the node's block.
    pub(super) fn offset(&self) -> Offset {
        self.primary_at - HEADER_BYTES
    }

    /// Offset in the pool of a slot of the primary array.
    #[inline(always)]
    pub(super) fn slot_at(&self, slot: usize) -> Offset {
        self.primary_at + slot as u64 * SLOT_BYTES
    }

    /// What names the lock of a group: an offset that no other group has.
    #[inline(always)]
    pub(super) fn lock_of(&self, home: usize) -> Offset {
        self.slot_at(home & !(GROUP - 1))
    }

    /// The marker of free slots.
    #[inline(always)]
    pub(super) fn marker(&self) -> u64 {
        self.marker
    }

    pub(super) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The slots of a group.
    pub(super) fn slots_of(&self, group: usize) -> std::ops::Range<usize> {
        group * GROUP..((group + 1) * GROUP).min(self.primary as usize)
    }

    /// Slots of both arrays.
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

    /// Freezes a live node; `false` if it is not live.
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

    /// Opens a frozen node for writers, or shuts it for good.
    pub(super) fn become_(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// A group's overflow bucket, if it has one.
    #[inline(always)]
    fn bucket(&self, group: usize) -> Option<Bucket<'_>> {
        let word = self.groups[group].word.load(Ordering::Acquire);
        // SAFETY: the address in a group word is 0 or a bucket that the node owns for as long as it lives.
        unsafe { Bucket::at(word & BUCKET_BITS) }
    }

    /// Bytes of DRAM.
    pub(super) fn dram_bytes(&self) -> u64 {
        let current = (0..self.group_count()).filter_map(|group| self.bucket(group));
        let replaced = lock(&self.replaced);
        // SAFETY: the node owns the buckets that it has replaced until it is dropped.
        let replaced = replaced.iter().filter_map(|&at| unsafe { Bucket::at(at) });
        let buckets: usize = current.chain(replaced).map(Bucket::bytes).sum();
        (size_of::<Self>()
            + size_of_val(&*self.groups)
            + size_of_val(&*self.stash_bits)
            + size_of_val(&*self.extensions)
            + buckets) as u64
    }
}

impl Group {
    fn unknown() -> Self {
        Self {
            word: (UNCOUNTED << 48).into(),
            strays: u64::MAX.into(),
        }
    }
}

/// Strays: the records that are not in the pair of lines of their home.
impl Data {
    /// Of a home's pair, the bit that says that records may be elsewhere.
    #[inline(always)]
    pub(super) fn pair_bit(home: usize) -> u64 {
        1 << (home % GROUP / PAIR_SLOTS)
    }

    /// And the one that says that they may be in the stash.
    #[inline(always)]
    fn stash_bit(home: usize) -> u64 {
        Self::pair_bit(home) << 32
    }

    /// Both bits, of a home that has a record in the stash.
    #[inline(always)]
    pub(super) fn stashed_bits(home: usize) -> u64 {
        Self::pair_bit(home) | Self::stash_bit(home)
    }

    /// Whether a record of the same pair of homes may be elsewhere. If not, that pair of lines is all there is to search.
    #[inline(always)]
    pub(super) fn has_strays(&self, home: usize) -> bool {
        self.groups[home / GROUP].strays.load(Ordering::Relaxed) & Self::pair_bit(home) != 0
    }

    /// Whether one may be in the stash. If not, there is no need to look into the overflow bucket.
    #[inline(always)]
    pub(super) fn has_stashed(&self, home: usize) -> bool {
        self.groups[home / GROUP].strays.load(Ordering::Relaxed) & Self::stash_bit(home) != 0
    }

    /// The same for homes from `from` to `to`, of one group.
    #[inline(always)]
    pub(super) fn has_stashed_between(&self, from: usize, to: usize) -> bool {
        let bits = (Self::stash_bit(to) - Self::stash_bit(from)) | Self::stash_bit(to);
        self.groups[from / GROUP].strays.load(Ordering::Relaxed) & bits != 0
    }

    /// Whether these strays, at least, are known.
    pub(super) fn knows_strays(&self, group: usize, strays: u64) -> bool {
        strays & !self.groups[group].strays.load(Ordering::Relaxed) == 0
    }

    /// Remembers that a record with this home is elsewhere. The group's lock is held.
    #[inline(always)]
    pub(super) fn add_stray(&self, home: usize) {
        self.add_strays(home, Self::pair_bit(home));
    }

    #[inline(always)]
    fn add_strays(&self, home: usize, bits: u64) {
        let strays = &self.groups[home / GROUP].strays;
        strays.store(strays.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
    }
}

/// Overflow: the records that found no room in their windows.
impl Data {
    /// The first answer of `found` to a stash slot that may hold a key. The entries may be changing: who holds no lock
    /// checks a version afterwards.
    #[inline(always)]
    pub(super) fn find_overflow<S: Simd, T>(
        &self,
        home: usize,
        key: u64,
        found: impl Fn(u32) -> Option<T>,
    ) -> Option<T> {
        self.bucket(home / GROUP)?.find::<S, T>(home, key, found)
    }

    /// Asks the caches for the first two lines of a group's overflow entries; few have more.
    #[inline(always)]
    pub(super) fn prefetch_overflow(&self, group: usize) {
        let word = self.groups[group].word.load(Ordering::Relaxed);
        let bucket = std::ptr::without_provenance::<KeyLine>((word & BUCKET_BITS) as usize);
        (0..2).for_each(|line| prefetch(bucket.wrapping_add(line)));
    }

    /// Tells `found` the stash slots that may have records of homes from `from` to `to`, of one group. The entries may be changing:
    /// who holds no lock checks a version afterwards.
    #[inline(always)]
    pub(super) fn find_overflow_between<S: Simd>(
        &self,
        from: usize,
        to: usize,
        found: impl FnMut(u32),
    ) {
        if let Some(bucket) = self.bucket(from / GROUP) {
            bucket.find_between::<S>(from, to, found);
        }
    }

    /// All overflow entries of a group.
    pub(super) fn overflow_of(&self, group: usize) -> impl Iterator<Item = Entry> {
        self.bucket(group).into_iter().flat_map(Bucket::entries)
    }

    /// Remembers that the record of `key` is in a stash slot. The group's lock is held.
    pub(super) fn add_overflow(&self, home: usize, key: u64, stash_slot: u32) {
        let group = home / GROUP;
        self.add_strays(home, Self::stashed_bits(home));
        let entry = Entry::new(home, key, stash_slot);
        let old = self.bucket(group);
        if old.is_some_and(|bucket| bucket.push(entry)) {
            return;
        }
        let address = Bucket::grown(old, entry).address();
        debug_assert!(address <= BUCKET_BITS);
        let word = &self.groups[group].word;
        let count = word.load(Ordering::Relaxed) & !BUCKET_BITS;
        word.store(count | address, Ordering::Release);
        if let Some(old) = old {
            lock(&self.replaced).push(old.address());
        }
    }

    /// Forgets that the record of a key is in a stash slot. The group's lock is held.
    pub(super) fn remove_overflow(&self, home: usize, stash_slot: u32) {
        if let Some(bucket) = self.bucket(home / GROUP) {
            bucket.remove(stash_slot);
        }
    }

    /// Overflowed records of the whole node: an estimate, unless nobody is changing it.
    pub(super) fn overflowed(&self) -> usize {
        (0..self.group_count())
            .filter_map(|group| self.bucket(group))
            .map(Bucket::len)
            .sum()
    }
}

/// Records per slot, in hundredths, above which a node is too full: the paper's upper density.
const FULL: usize = 90;
/// And below which it is too empty.
const EMPTY: usize = 20;
/// And below which a node with a full stash gets extended stash blocks: the keys of one region crowd, and a few more places
/// for them cost less than another node.
const SPARSE: usize = 50;
/// So does one that got less than one record in so many since it was laid out, or few: laid out anew it would be as full as
/// now, and that again for the next record. So the work of a new layout is always shared by many inserts.
const PATIENCE: usize = 8;

/// And records per slot of a group, in hundredths, above which something should be done for keys with a trend.
pub(super) const PILE: usize = 125;

/// And for keys without one: they crowd where they were not expected, and the line of the node no longer fits.
pub(super) const HEAP: usize = 300;

/// If the node got one record in so many since it was laid out: the next layout may have such a group again, at once, where keys
/// lie along no line.
const PILE_PATIENCE: usize = 4;

/// Counting.
impl Data {
    /// Whether the node has so many records that it has to become larger or several.
    pub(super) fn is_crowded(&self, records: usize) -> bool {
        records * 100 > self.slots() * FULL
    }

    /// Whether it has so few that it should become smaller, or part of another one.
    pub(super) fn is_sparse(&self, records: usize) -> bool {
        records * 100 < self.slots() * EMPTY && (records == 0 || self.bytes > MIN_DATA_BYTES)
    }

    /// Whether another place for keys that crowd is worth while.
    pub(super) fn is_roomy(&self) -> bool {
        self.total().is_some_and(|records| {
            records * 100 < self.slots() * SPARSE || !self.has_grown(records, PATIENCE)
        })
    }

    /// Whether the node, which has so many records, got one for each `part` of them since it was laid out or looked at, and more
    /// than a few: enough to pay for that work once more.
    fn has_grown(&self, records: usize, part: usize) -> bool {
        let before = self.looked_at.load(Ordering::Relaxed);
        records >= before + before / part + PATIENCE
    }

    /// Somebody has looked at so many records, all there are, and does not change the node.
    pub(super) fn leave_at(&self, records: usize) {
        self.looked_at.store(records, Ordering::Relaxed);
    }

    /// Whether a group of so many records is above the density at which its node may be crowded.
    #[inline(always)]
    pub(super) fn is_full_group(&self, records: usize) -> bool {
        records * 100 > GROUP * FULL
    }

    /// Whether a group that has just got a record has so many that something should be done: keys go on beyond the line of the
    /// node, and each of them searches all that are in the stash already. Asked of the whole node only now and then.
    #[inline(always)]
    pub(super) fn is_pile(&self, records: usize) -> bool {
        records * 100 >= PILE * GROUP && records.is_multiple_of(64) && self.has_pile(PILE)
    }

    /// Whether a key is above or below all that the node was built with.
    pub(super) fn is_beyond(&self, key: u64) -> bool {
        self.built
            .is_some_and(|(_, first, last)| key < first || key > last)
    }

    /// Whether there is a group with so many records per hundred slots, and the node has grown enough for it to be laid out
    /// anew.
    pub(super) fn has_pile(&self, density: usize) -> bool {
        let mut counts = (0..self.group_count()).filter_map(|group| self.count(group));
        counts.any(|records| records * 100 >= density * GROUP)
            && (self.total()).is_some_and(|records| self.has_grown(records, PILE_PATIENCE))
    }

    /// Whether a group of so many records is below the density at which its node may be sparse.
    #[inline(always)]
    pub(super) fn is_empty_group(&self, records: usize) -> bool {
        records * 100 < self.slots_of(0).len() * EMPTY
    }

    /// Records of a group, if they have been counted.
    pub(super) fn count(&self, group: usize) -> Option<usize> {
        let count = self.groups[group].word.load(Ordering::Relaxed) >> 48;
        (count != UNCOUNTED).then_some(count as usize)
    }

    /// Sets the number of records of a group, whose lock is held, and which of its pairs have strays, and where.
    pub(super) fn set_counted(&self, group: usize, records: usize, strays: u64) {
        let Group {
            word,
            strays: known,
        } = &self.groups[group];
        // A group has no more than its slots and the node's stash.
        let count = (records as u64).min(UNCOUNTED - 1);
        word.store(
            word.load(Ordering::Relaxed) & BUCKET_BITS | count << 48,
            Ordering::Release,
        );
        known.store(strays, Ordering::Relaxed);
    }

    /// Counts a change to a group, whose lock is held, and returns how many records it has now, if that is known.
    #[inline(always)]
    pub(super) fn change_count(&self, home: usize, change: i64) -> Option<usize> {
        let group = &self.groups[home / GROUP].word;
        let word = group.load(Ordering::Relaxed);
        if word >> 48 == UNCOUNTED {
            return None;
        }
        let word = word.wrapping_add((change as u64) << 48);
        group.store(word, Ordering::Release);
        Some((word >> 48) as usize)
    }

    /// Records of the whole node, if all groups have been counted.
    pub(super) fn total(&self) -> Option<usize> {
        (0..self.group_count()).map(|group| self.count(group)).sum()
    }
}

/// The stash.
impl Data {
    /// Where a stash slot is, if there is one of this number.
    #[inline(always)]
    pub(super) fn stash_at(&self, slot: u32) -> Option<Offset> {
        if slot < self.stash {
            return Some(self.slot_at((self.primary + slot) as usize));
        }
        let beyond = (slot - self.stash) as usize;
        let block = self.extensions.get(beyond / EXTENSION_SLOTS)?;
        let block = block.load(Ordering::Acquire);
        let within = (1 + beyond % EXTENSION_SLOTS) as u64 * SLOT_BYTES;
        (block != 0).then_some(block + within)
    }

    /// Extended stash blocks.
    pub(super) fn extensions(&self) -> impl Iterator<Item = Offset> + '_ {
        self.extensions
            .iter()
            .map(|block| block.load(Ordering::Acquire))
            .take_while(|&block| block != 0)
    }

    /// Takes over what a frozen node knows, whose records are in the same slots.
    pub(super) fn resemble(&mut self, old: &Self) {
        self.built = old.built;
        self.leave_at(old.looked_at.load(Ordering::Relaxed));
        self.is_in_order = old.is_in_order.load(Ordering::Relaxed).into();
        for group in 0..self.group_count() {
            if let Some(count) = old.count(group) {
                let strays = old.groups[group].strays.load(Ordering::Relaxed);
                self.set_counted(group, count, strays);
            }
        }
    }

    /// Whether one more extended stash block may be added.
    pub(super) fn may_extend(&self) -> bool {
        self.extensions
            .last()
            .is_some_and(|block| block.load(Ordering::Relaxed) == 0)
    }

    /// Adds an extended stash block. `extending` is held.
    pub(super) fn extend(&self, block: Offset) {
        if let Some(free) = self.extensions.get(self.extensions().count()) {
            free.store(block, Ordering::Release);
        }
    }

    /// Slots of the stash array and the extended stash.
    pub(super) fn stash_slots(&self) -> u32 {
        self.stash + (self.extensions().count() * EXTENSION_SLOTS) as u32
    }

    /// Takes a free stash slot, one near the place that corresponds to `home` if it can be had, so that ranges read them in order.
    pub(super) fn claim_stash(&self, home: usize) -> Option<u32> {
        let slots = self.stash_slots();
        let words = slots.div_ceil(64);
        let near = home as u32 * self.stash / self.primary / 64;
        for index in (near..words).chain(0..near) {
            let word = &self.stash_bits[index as usize];
            let in_use = (slots - index * 64).min(64);
            let mut bits = word.load(Ordering::Relaxed);
            loop {
                let free = bits.trailing_ones();
                if free >= in_use {
                    break;
                }
                // Several threads may be here, under the locks of different groups.
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
        None
    }

    /// Marks a stash slot as taken: of a node that nobody else has yet.
    pub(super) fn take_stash(&self, slot: u32) {
        let word = &self.stash_bits[(slot / 64) as usize];
        word.fetch_or(1 << (slot % 64), Ordering::Relaxed);
    }

    /// Stash slots in use.
    pub(super) fn taken_stash_slots(&self) -> usize {
        let words = self.stash_bits.iter();
        words
            .map(|word| word.load(Ordering::Relaxed).count_ones() as usize)
            .sum()
    }

    /// Whether there is a free stash slot.
    pub(super) fn has_stash_room(&self) -> bool {
        self.taken_stash_slots() < self.stash_slots() as usize
    }

    /// Gives a stash slot back, whose key is the marker again.
    pub(super) fn release_stash(&self, slot: u32) {
        let word = &self.stash_bits[(slot / 64) as usize];
        word.fetch_and(!(1 << (slot % 64)), Ordering::Release);
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let words = self
            .groups
            .iter()
            .map(|group| group.word.load(Ordering::Relaxed));
        let current = words.map(|word| word & BUCKET_BITS);
        let replaced = std::mem::take(&mut *lock(&self.replaced));
        for address in current.chain(replaced) {
            // SAFETY: the node owns the bucket, and nobody has the node any more.
            unsafe {
                if let Some(bucket) = Bucket::at(address) {
                    bucket.free();
                }
            }
        }
    }
}

fn words(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}
