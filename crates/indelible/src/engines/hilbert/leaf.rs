//! Operations on one leaf. The caller of a function that writes holds the lock of the leaf; the caller of a function that reads
//! holds the lock or validates the version of the leaf afterwards.

use super::Bug;
use super::layout::{ALT, LEAF_BYTES, LEAF_WORDS, LINE_WORDS, MARK, MAX_RECORDS, Shape, TURN};
use crate::concurrency::sync::atomic::AtomicU64;
use crate::engines::rect::{MAX_WORDS, Record};
use crate::engines::slots;
use crate::kernels::{Simd, prefetch};
use crate::pmem::planted::planted;
use crate::pmem::schedule::point;
use crate::pmem::{Cell, Pm};
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use std::marker::PhantomData;

/// Turns offsets into leaves: the base of the pool's mapping.
pub(super) struct Leaves<G> {
    base: *const u8,
    geometry: PhantomData<fn() -> G>,
}

impl<G> Clone for Leaves<G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G> Copy for Leaves<G> {}

// SAFETY: the base is the start of the pool's mapping, which the tree keeps alive; all access through it is by atomics.
unsafe impl<G> Send for Leaves<G> {}
// SAFETY: as for `Send`.
unsafe impl<G> Sync for Leaves<G> {}

impl<G: Geometry> Leaves<G> {
    pub(super) fn new(base: *const u8) -> Self {
        Self {
            base,
            geometry: PhantomData,
        }
    }

    /// The leaf at `offset`, which must come from a validated inner node, from the allocator, or from a durable
    /// pointer that `Space::owns` has approved: then it lies, whole and aligned, inside the mapping.
    #[inline(always)]
    pub(super) fn at<'a>(self, offset: Offset) -> Leaf<'a, G> {
        debug_assert!(!offset.is_none() && offset.get().is_multiple_of(LEAF_BYTES as u64));
        point();
        crate::pmem::expect_mapped(self.base as usize + offset.get() as usize, LEAF_BYTES);
        // SAFETY: by the condition above the bytes are mapped for as long as the tree lives, and cells are atomics, for which every bit
        // pattern is valid.
        let words = unsafe { &*self.base.add(offset.get() as usize).cast() };
        Leaf {
            words,
            offset,
            geometry: PhantomData,
        }
    }

    /// Asks the caches for the whole leaf.
    #[inline(always)]
    pub(super) fn prefetch(self, offset: Offset) {
        for line in 0..LEAF_BYTES / 64 {
            prefetch(self.base.wrapping_add(offset.get() as usize + line * 64));
        }
    }

    /// Asks the caches for the lines that an insert reads and, mostly, writes.
    #[inline(always)]
    pub(super) fn prefetch_front(self, offset: Offset) {
        for line in 0..2 {
            prefetch(self.base.wrapping_add(offset.get() as usize + line * 64));
        }
    }
}

/// One leaf.
pub(super) struct Leaf<'a, G> {
    words: &'a [Cell; LEAF_WORDS],
    pub(super) offset: Offset,
    geometry: PhantomData<fn() -> G>,
}

impl<G> Clone for Leaf<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G> Copy for Leaf<'_, G> {}

/// The two words that say what counts in a leaf: a copy in DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    word0: u64,
    word1: u64,
}

impl Header {
    /// The bits of `word1` that count if `turn` is this.
    fn shift(turn: bool) -> u32 {
        if turn { 8 } else { 0 }
    }

    #[inline(always)]
    fn turn(self) -> bool {
        self.word0 & TURN != 0
    }

    /// Which of the two siblings counts.
    #[inline(always)]
    fn alt(self) -> usize {
        usize::from(self.word0 & ALT != 0)
    }

    /// The records in line 1, as bits from 0.
    #[inline(always)]
    fn arrivals<G: Geometry>(self, turn: bool) -> u64 {
        self.word1 >> Self::shift(turn) & Shape::<G>::FRONT_BITS
    }

    /// Word0 with the records of `bitmap`, apart from those of line 1.
    #[inline(always)]
    fn with_rest<G: Geometry>(self, bitmap: u64) -> u64 {
        self.word0 & !Shape::<G>::ALL_BITS | bitmap & !Shape::<G>::ARRIVAL_BITS
    }

    /// The records of the leaf.
    #[inline(always)]
    pub(super) fn bitmap<G: Geometry>(self) -> u64 {
        let near = self.arrivals::<G>(self.turn()) << Shape::<G>::NEAR;
        self.word0 & (Shape::<G>::FRONT_BITS | Shape::<G>::FAR_BITS) | near
    }
}

impl<'a, G: Geometry> Leaf<'a, G> {
    #[inline(always)]
    pub(super) fn header(self) -> Header {
        Header {
            word0: self.words[0].load_acquire(),
            word1: self.words[LINE_WORDS].load_acquire(),
        }
    }

    /// The records in use, as bits.
    #[inline(always)]
    pub(super) fn bitmap(self) -> u64 {
        self.header().bitmap::<G>()
    }

    /// Whether a leaf was ever written here.
    pub(super) fn is_marked(self) -> bool {
        self.words[0].load() & MARK != 0 && self.words[LINE_WORDS].load() & MARK != 0
    }

    #[inline(always)]
    pub(super) fn count(self) -> usize {
        self.bitmap().count_ones() as usize
    }

    #[inline(always)]
    pub(super) fn is_full(self) -> bool {
        self.bitmap() == Shape::<G>::ALL_BITS
    }

    /// The leaf to the right.
    #[inline(always)]
    pub(super) fn next(self) -> Offset {
        let alt = self.header().alt();
        Offset::from_word(self.words[Shape::<G>::sibling(alt)].load_acquire())
    }

    /// The words of the record in `slot`. They may be of different moments, until the caller has validated the version of the leaf.
    #[inline(always)]
    pub(super) fn record(self, slot: usize) -> Record {
        let first = Shape::<G>::word_of(slot);
        let mut record = [0; MAX_WORDS];
        for (word, cell) in record
            .iter_mut()
            .zip(&self.words[first..first + Shape::<G>::WORDS])
        {
            *word = cell.load();
        }
        Record::from_words(record)
    }

    /// The geometry of the record in `slot`, as [`record`](Self::record).
    #[inline(always)]
    pub(super) fn shape(self, slot: usize) -> G {
        let cells = self.cells(slot);
        G::from_coordinates(|i| f64::from_bits(cells[i].load()))
    }

    /// The payload of the record in `slot`.
    #[inline(always)]
    pub(super) fn payload(self, slot: usize) -> u64 {
        self.cells(slot)[G::COORDINATES].load()
    }

    /// The cells of the record in `slot`.
    #[inline(always)]
    pub(super) fn cells(self, slot: usize) -> &'a [Cell] {
        let first = Shape::<G>::word_of(slot);
        &self.words[first..first + Shape::<G>::WORDS]
    }

    /// The records whose boxes meet `window`, as bits.
    #[inline(always)]
    pub(super) fn meeting<S: Simd>(self, window: &Rect) -> u64 {
        let near = Shape::<G>::NEAR;
        let mut meets = 0;
        for slot in 0..2 * near {
            meets |= u64::from(self.meets(slot, window)) << slot;
        }
        let far = &self.words[2 * LINE_WORDS..];
        if G::COORDINATES == 2 {
            let (low, high) = (
                [window.low[0], window.low[1]],
                [window.high[0], window.high[1]],
            );
            // SAFETY: a cell is one atomic word and nothing else, so that three of them are laid out as three atomic words.
            let points = unsafe {
                let (points, _) = far.as_chunks::<3>();
                std::slice::from_raw_parts(points.as_ptr().cast::<[AtomicU64; 3]>(), points.len())
            };
            meets |= S::points_between(points, low, high) << (2 * near);
        } else {
            for slot in 2 * near..Shape::<G>::RECORDS {
                meets |= u64::from(self.meets(slot, window)) << slot;
            }
        }
        meets & self.bitmap()
    }

    /// Whether the box of the record in `slot` meets `window`. Without a branch: which records are met cannot be predicted.
    #[inline(always)]
    fn meets(self, slot: usize, window: &Rect) -> bool {
        let cells = self.cells(slot);
        let mut is_met = true;
        for axis in 0..G::AXES {
            let low = f64::from_bits(cells[axis].load());
            let high = f64::from_bits(cells[G::COORDINATES - G::AXES + axis].load());
            is_met &= (low <= window.high[axis]) & (high >= window.low[axis]);
        }
        is_met
    }

    /// The records of the leaf with their slots.
    pub(super) fn records(self) -> impl Iterator<Item = (usize, Record)> {
        slots(self.bitmap()).map(move |slot| (slot, self.record(slot)))
    }

    /// A slot that holds this record.
    pub(super) fn find(self, record: &Record) -> Option<usize> {
        let payload = record.words()[G::COORDINATES];
        slots(self.bitmap()).find(|&slot| {
            point();
            self.cells(slot)[G::COORDINATES].load() == payload && self.record(slot) == *record
        })
    }

    /// Writes a record to a slot that is not in use, and returns the lines written.
    #[inline(always)]
    fn write(self, pm: Pm, slot: usize, record: &Record) -> u32 {
        for (cell, &word) in self.cells(slot).iter().zip(record.words()) {
            pm.store(cell, word);
        }
        Shape::<G>::lines_of(slot)
    }

    /// Flushes the lines of a bitmap.
    #[inline(always)]
    fn flush(self, pm: Pm, mut lines: u32) {
        while lines != 0 {
            let first = lines.trailing_zeros() as usize * LINE_WORDS;
            pm.flush(&self.words[first..first + LINE_WORDS]);
            lines &= lines - 1;
        }
    }

    /// Adds a record to a leaf that is not full. Section 3.2 of the LB+-Tree paper, algorithm 2, with two lines beside commit words.
    #[inline(always)]
    pub(super) fn insert(self, pm: Pm, record: &Record) {
        let header = self.header();
        let free = Shape::<G>::ALL_BITS & !header.bitmap::<G>();
        let near = free & (Shape::<G>::FRONT_BITS | Shape::<G>::ARRIVAL_BITS);
        if near != 0 {
            let slot = near.trailing_zeros() as usize;
            self.write(pm, slot, record);
            return self.replace_bitmap(pm, header, header.bitmap::<G>() | 1 << slot, 0, None);
        }
        self.insert_far(pm, header, free, record);
    }

    /// Adds records to a leaf that has room for all of them, with one commit.
    pub(super) fn insert_all(self, pm: Pm, records: &[Record]) {
        if let [record] = records {
            return self.insert(pm, record);
        }
        let header = self.header();
        let bitmap = header.bitmap::<G>();
        let free = Shape::<G>::ALL_BITS & !bitmap;
        // Lines 0 and 1 stay free for single inserts, if they can.
        let far = free & !(Shape::<G>::FRONT_BITS | Shape::<G>::ARRIVAL_BITS);
        let has_room = far.count_ones() as usize >= records.len();
        let to = Self::slots_in_few_lines(if has_room { far } else { free }, records.len());
        assert_eq!(
            to.count_ones() as usize,
            records.len(),
            "invariant: there is room for all"
        );
        pm.note("records added together", 0);
        let mut lines = 0;
        for (slot, record) in slots(to).zip(records) {
            lines |= self.write(pm, slot, record);
        }
        // The commit is in `replace_bitmap`. Before it recovery sees none of the records, after it all of them.
        self.replace_bitmap(pm, header, bitmap | to, lines, None);
    }

    /// Adds a record to a leaf whose lines 0 and 1 are full, and moves as many records of these lines as there is room for.
    #[inline(never)]
    fn insert_far(self, pm: Pm, header: Header, free: u64, record: &Record) {
        let room = free.count_ones() as usize;
        let near = Shape::<G>::NEAR;
        // Records of line 1 can only leave it all together; those of line 0 may do so alone.
        let [all, front] = [2 * near, near.min(room - 1)].map(|moving| {
            let to = Self::slots_in_few_lines(free, moving + 1);
            // Lines flushed by this insert and by those that find the freed slots.
            let lines = Self::lines_of_all(to).count_ones() as usize + 1 + moving;
            (moving, to, lines)
        });
        // For each of these inserts.
        let is_cheaper = all.2 * (front.0 + 1) <= front.2 * (all.0 + 1);
        let (moving, to, _) = if room > 2 * near && is_cheaper {
            all
        } else {
            front
        };
        let mut bitmap = header.bitmap::<G>();
        let mut lines = 0;
        let mut to = slots(to);
        let mut place = || {
            to.next()
                .expect("invariant: a leaf has a free slot when a record is inserted")
        };
        let slot = place();
        lines |= self.write(pm, slot, record);
        bitmap |= 1 << slot;
        for from in 0..moving {
            let slot = place();
            lines |= self.write(pm, slot, &self.record(from));
            bitmap = (bitmap | 1 << slot) & !(1 << from);
        }
        pm.note("entry moving", moving as u64);
        if planted(Bug::MoveInTwoSteps) {
            let cleared = header.word0 & !Shape::<G>::FRONT_BITS;
            pm.publish(&self.words[0], cleared, "hilbert.change");
        }
        self.replace_bitmap(pm, header, bitmap, lines, None);
    }

    /// So many slots of a bitmap, one after the other, that lie in few lines: as bits, none if there are not so many.
    fn slots_in_few_lines(free: u64, count: usize) -> u64 {
        let least = (count * Shape::<G>::WORDS).div_ceil(LINE_WORDS) as u32;
        let (mut best, mut fewest) = (0, u32::MAX);
        // The last slots that have been looked at, as many as are wanted, the number of their lines, and the lines of the last one.
        let (mut window, mut in_window, mut lines, mut before) = (0_u64, 0, 0, 0);
        for slot in slots(free) {
            // Slots lie one behind the other, so that lines which the one before does not lie in are new.
            let its_lines = Shape::<G>::LINES[slot];
            lines += (its_lines & !before).count_ones();
            before = its_lines;
            window |= 1 << slot;
            in_window += 1;
            if in_window > count {
                let first = window.trailing_zeros() as usize;
                window &= window - 1;
                in_window -= 1;
                let next = window.trailing_zeros() as usize;
                lines -= (Shape::<G>::LINES[first] & !Shape::<G>::LINES[next]).count_ones();
            }
            if in_window == count && lines < fewest {
                (best, fewest) = (window, lines);
                if lines == least {
                    break;
                }
            }
        }
        best
    }

    /// The lines that hold the records in these slots, as a bitmap.
    #[inline(always)]
    fn lines_of_all(bitmap: u64) -> u32 {
        slots(bitmap).fold(0, |all, slot| all | Shape::<G>::LINES[slot])
    }

    /// Removes the record in `slot`.
    #[inline(always)]
    pub(super) fn remove(self, pm: Pm, slot: usize) {
        let header = self.header();
        self.replace_bitmap(pm, header, header.bitmap::<G>() & !(1 << slot), 0, None);
    }

    /// [`remove`](Self::remove) without the fence, as a bug that can be planted.
    pub(super) fn remove_without_fence(self, pm: Pm, slot: usize) {
        let header = self.header();
        if 1 << slot & Shape::<G>::ARRIVAL_BITS != 0 {
            let bit = 1_u64 << (slot - Shape::<G>::NEAR) << Header::shift(header.turn());
            pm.publish(
                &self.words[LINE_WORDS],
                header.word1 & !bit,
                "hilbert.arrival",
            );
        } else {
            pm.publish(
                &self.words[0],
                header.word0 & !(1 << slot),
                "hilbert.change",
            );
        }
    }

    /// Puts `record` in the place of the one in `slot`, in one step; `false` if there is no free slot.
    pub(super) fn replace(self, pm: Pm, slot: usize, record: &Record) -> bool {
        let header = self.header();
        let bitmap = header.bitmap::<G>();
        let free = Shape::<G>::ALL_BITS & !bitmap;
        // A slot under the same commit word first: line 0, then records that lie in one line, then others.
        let is_arrival = 1 << slot & Shape::<G>::ARRIVAL_BITS != 0;
        let cost = |&to: &usize| {
            let bit = 1_u64 << to;
            let lines = Shape::<G>::lines_of(to);
            let same_word = (bit & Shape::<G>::ARRIVAL_BITS != 0) == is_arrival;
            (
                !same_word,
                bit & Shape::<G>::FRONT_BITS == 0,
                lines.count_ones(),
            )
        };
        let Some(to) = slots(free).min_by_key(cost) else {
            return false;
        };
        let lines = self.write(pm, to, record);
        pm.note("relocation within a leaf", 0);
        self.replace_bitmap(pm, header, (bitmap | 1 << to) & !(1 << slot), lines, None);
        true
    }

    /// Makes `bitmap` the records of the leaf, and `next` its sibling if there is one, with one store. `lines` have been written and not
    /// flushed, in slots that are not in use yet. With `next`, lines of another leaf may have been flushed and lack a fence.
    #[inline(always)]
    pub(super) fn replace_bitmap(
        self,
        pm: Pm,
        now: Header,
        bitmap: u64,
        lines: u32,
        next: Option<Offset>,
    ) {
        let arrivals = Self::arrivals_in(bitmap);
        if now.with_rest::<G>(bitmap) == now.word0 && next.is_none() {
            // Only line 1 changes. What is not valid under this turn is cleared as well: so it is clean when the turn changes.
            let word1 = MARK | arrivals << Header::shift(now.turn());
            self.persist_before(pm, lines & !0b10, false);
            // COMMIT hilbert.arrival: the bits of line 1. Before this store recovery sees the leaf without the change; after it with it. The
            // record in line 1 was stored before, and shares the flush.
            return pm.commit(&self.words[LINE_WORDS], word1, "hilbert.arrival");
        }
        let (mut word0, mut lines) = self.prepare_word0(pm, now, bitmap, lines);
        if let Some(next) = next {
            word0 ^= ALT;
            let sibling = Shape::<G>::sibling(1 - now.alt());
            pm.store(&self.words[sibling], next.get());
            lines |= 1 << (sibling / LINE_WORDS);
        }
        self.persist_before(pm, lines & !1, next.is_some());
        // COMMIT hilbert.change: the bitmap, with `turn` and `alt`: an insert, a removal, a relocation within the leaf, a split or a merge.
        // Before this store recovery sees the old leaf, whole: all that was written lies in slots, in bits of line 1 and in the sibling that
        // do not count. After it, it sees the new state. What was written in line 0 was stored before, and shares the flush.
        pm.commit(&self.words[0], word0, "hilbert.change");
    }

    /// The records of line 1 in a bitmap, as bits from 0.
    #[inline(always)]
    fn arrivals_in(bitmap: u64) -> u64 {
        bitmap >> Shape::<G>::NEAR & Shape::<G>::FRONT_BITS
    }

    /// The word0 that makes `bitmap` the records of the leaf. If those of line 1 change, they are written to the bits that do not count,
    /// and the turn changes. Returns the lines written as well, with `lines`.
    #[inline(always)]
    fn prepare_word0(self, pm: Pm, now: Header, bitmap: u64, lines: u32) -> (u64, u32) {
        let arrivals = Self::arrivals_in(bitmap);
        let word0 = now.with_rest::<G>(bitmap);
        if arrivals == now.arrivals::<G>(now.turn()) {
            return (word0, lines);
        }
        if now.arrivals::<G>(!now.turn()) == arrivals {
            return (word0 ^ TURN, lines);
        }
        let others = now.arrivals::<G>(now.turn()) << Header::shift(now.turn());
        let word1 = MARK | arrivals << Header::shift(!now.turn()) | others;
        pm.store(&self.words[LINE_WORDS], word1);
        (word0 ^ TURN, lines | 0b10)
    }

    /// Persists the lines on which a commit depends, if there are any, with those elsewhere that lack a fence.
    #[inline(always)]
    fn persist_before(self, pm: Pm, lines: u32, is_fence_due: bool) {
        if lines != 0 || is_fence_due {
            self.flush(pm, lines);
            pm.named("hilbert.records").fence();
        }
    }

    /// The word whose store would make `bitmap` the records of the leaf, and what would be stored; for two leaves that change together. The
    /// arrival line may have been prepared, and `lines` been written: all of it is flushed, and durable after the next fence.
    pub(super) fn prepare_bitmap(self, pm: Pm, bitmap: u64, lines: u32) -> (u64, u64) {
        let (word0, lines) = self.prepare_word0(pm, self.header(), bitmap, lines);
        self.flush(pm, lines);
        (self.offset.get(), word0)
    }

    /// Writes a record to a free slot for [`prepare_bitmap`](Self::prepare_bitmap): returns the new bitmap and the lines written; `None`
    /// if the leaf is full.
    pub(super) fn prepare_insert(self, pm: Pm, record: &Record) -> Option<(u64, u32)> {
        let bitmap = self.bitmap();
        let slot = slots(Shape::<G>::ALL_BITS & !bitmap).next()?;
        Some((bitmap | 1 << slot, self.write(pm, slot, record)))
    }

    /// The word that commits changes of the leaf.
    pub(super) fn commit_cell(self) -> &'a Cell {
        &self.words[0]
    }

    /// Fills a leaf that is not reachable yet, and flushes it without a fence. Records go to the end, so that lines 0 and 1 stay free for
    /// the next inserts.
    pub(super) fn fill(self, pm: Pm, records: &[Record], next: Offset) {
        let image = Self::image(records, next);
        for (cell, word) in self.words.iter().zip(image) {
            pm.store(cell, word);
        }
        pm.named("hilbert.fill").flush(self.words);
    }

    /// [`fill`](Self::fill) past the caches, for bulk loads.
    pub(super) fn stream(self, pm: Pm, records: &[Record], next: Offset) {
        pm.stream(self.words, &Self::image(records, next));
    }

    /// The words of a leaf that holds `records`.
    fn image(records: &[Record], next: Offset) -> [u64; LEAF_WORDS] {
        assert!(
            records.len() <= Shape::<G>::RECORDS,
            "invariant: a leaf gets no more records than it has slots"
        );
        let mut words = [0; LEAF_WORDS];
        let mut bitmap = 0;
        for (slot, record) in (0..Shape::<G>::RECORDS).rev().zip(records) {
            let first = Shape::<G>::word_of(slot);
            words[first..first + Shape::<G>::WORDS]
                .copy_from_slice(&record.words()[..Shape::<G>::WORDS]);
            bitmap |= 1 << slot;
        }
        words[0] = MARK | bitmap & !Shape::<G>::ARRIVAL_BITS;
        words[LINE_WORDS] = MARK | bitmap >> Shape::<G>::NEAR & Shape::<G>::FRONT_BITS;
        words[Shape::<G>::sibling(0)] = next.get();
        words
    }

    /// Takes over the records of the right neighbour and its sibling: a merge, the split run backwards.
    pub(super) fn merge(self, pm: Pm, records: &[Record], next: Offset) {
        let header = self.header();
        let mut bitmap = header.bitmap::<G>();
        let mut lines = 0;
        // Lines 0 and 1 come last: the next inserts want them free.
        for record in records {
            let free = Shape::<G>::ALL_BITS & !bitmap;
            assert!(
                free != 0,
                "invariant: a merge moves no more records than the left leaf has room for"
            );
            let slot = 63 - free.leading_zeros() as usize;
            lines |= self.write(pm, slot, record);
            bitmap |= 1 << slot;
        }
        self.replace_bitmap(pm, header, bitmap, lines, Some(next));
    }

    /// Unlinks the empty right neighbour of this leaf, or replaces it by a copy: `next` becomes the sibling.
    pub(super) fn relink(self, pm: Pm, next: Offset) {
        let sibling = self.header().alt() ^ usize::from(planted(Bug::RelinkWrongSibling));
        // COMMIT hilbert.relink: the sibling that counts. Before this store recovery sees the old neighbour; after it the new one, which leads to
        // the same leaf. The block that is then unreachable is swept.
        pm.commit(
            &self.words[Shape::<G>::sibling(sibling)],
            next.get(),
            "hilbert.relink",
        );
    }

    /// The box of all records.
    pub(super) fn rect(self) -> Rect {
        self.records().fold(Rect::NOTHING, |all, (_, record)| {
            all.join(&record.rect::<G>())
        })
    }
}

const _: () = assert!(MAX_RECORDS <= 48);
