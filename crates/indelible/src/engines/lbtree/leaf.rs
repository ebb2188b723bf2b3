//! Operations on one leaf. The caller of a function that writes holds the lock of the leaf; the caller of a function that reads
//! holds the lock or validates the version of the leaf afterwards.

mod sort;

use super::Bug;
use super::layout::{
    BLOCK_BYTES, Block, Header, LINE_SLOTS, MAX_BLOCKS, MAX_RECORDS, SLOTS, Slot, fingerprint,
};
use crate::engines::slots;
use crate::kernels::{KeyLine, prefetch};
use crate::pmem::planted::planted;
use crate::pmem::schedule::point;
use crate::pmem::{Cell, Pm};
use crate::pool::Offset;

/// Turns offsets into leaves: the base of the pool's mapping and the blocks per leaf.
#[derive(Clone, Copy)]
pub(super) struct Leaves {
    base: *const u8,
    blocks: usize,
}

// SAFETY: the base is the start of the pool's mapping, which the tree keeps alive; all access through it is by atomics.
unsafe impl Send for Leaves {}
// SAFETY: as for `Send`.
unsafe impl Sync for Leaves {}

impl Leaves {
    pub(super) fn new(base: *const u8, leaf_bytes: u32) -> Self {
        Self {
            base,
            blocks: leaf_bytes as usize / BLOCK_BYTES,
        }
    }

    /// Record slots in a leaf.
    #[inline(always)]
    pub(super) fn capacity(self) -> usize {
        self.blocks * SLOTS
    }

    /// Blocks in a leaf.
    pub(super) fn blocks(self) -> usize {
        self.blocks
    }

    /// The leaf at `offset`, which must come from a validated inner node, from the allocator, or from a durable
    /// pointer that `Space::owns` has approved: then it lies, whole and aligned, inside the mapping.
    #[inline(always)]
    pub(super) fn at<'a>(self, offset: Offset) -> Leaf<'a> {
        debug_assert!(!offset.is_none() && offset.get().is_multiple_of(BLOCK_BYTES as u64));
        point();
        crate::pmem::expect_mapped(
            self.base as usize + offset.get() as usize,
            self.blocks * BLOCK_BYTES,
        );
        // SAFETY: by the condition above the bytes are mapped for as long as the tree lives, and a `Block` is made of
        // atomics, for which every bit pattern is valid.
        let blocks = unsafe {
            std::slice::from_raw_parts(self.base.add(offset.get() as usize).cast(), self.blocks)
        };
        Leaf { blocks, offset }
    }

    /// Asks the caches for the lines of the leaf's headers.
    #[inline(always)]
    pub(super) fn prefetch_header(self, offset: Offset) {
        prefetch(self.base.wrapping_add(offset.get() as usize));
    }

    /// Asks the caches for the whole leaf.
    #[inline(always)]
    pub(super) fn prefetch(self, offset: Offset) {
        let leaf = self.base.wrapping_add(offset.get() as usize);
        const BLOCK_LINES: usize = BLOCK_BYTES / 64;
        for line in 0..BLOCK_LINES {
            prefetch(leaf.wrapping_add(line * 64));
        }
        for line in BLOCK_LINES..self.blocks * BLOCK_LINES {
            prefetch(leaf.wrapping_add(line * 64));
        }
    }
}

/// One leaf.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    blocks: &'a [Block],
    pub(super) offset: Offset,
}

/// The slot of a record: the number of its block in the leaf, and of its slot in the block.
#[derive(Clone, Copy)]
pub(super) struct Place {
    block: usize,
    slot: usize,
}

/// The headers of all blocks of a leaf: a copy in DRAM.
pub(super) type Headers = [Header; MAX_BLOCKS];

impl<'a> Leaf<'a> {
    /// Which of the two siblings, and of the headers of blocks 1 and up, counts.
    #[inline(always)]
    fn alt(self) -> usize {
        Header::read(&self.blocks[0].front).alt()
    }

    /// The cells of the header of `block` that counts when block 0's `alt` is `alt`.
    #[inline(always)]
    fn header_cells(self, block: usize, alt: usize) -> &'a [Cell; 2] {
        let block_ref = &self.blocks[block];
        if block == 0 || alt == 0 {
            &block_ref.front
        } else {
            &block_ref.tail
        }
    }

    #[inline(always)]
    pub(super) fn header(self, block: usize) -> Header {
        if block == 0 {
            return Header::read(&self.blocks[0].front);
        }
        Header::read(self.header_cells(block, self.alt()))
    }

    pub(super) fn headers(self) -> Headers {
        std::array::from_fn(|block| {
            if block < self.blocks.len() {
                self.header(block)
            } else {
                Header::default()
            }
        })
    }

    /// Whether a leaf was ever written here: all of it, since a leaf of 768 bytes can lie in two pages, of which one never reached the disk.
    pub(super) fn is_marked(self) -> bool {
        (0..self.blocks.len()).all(|block| self.header(block).is_marked())
    }

    /// Records in the leaf.
    #[inline(always)]
    pub(super) fn count(self) -> usize {
        (0..self.blocks.len())
            .map(|block| self.header(block).count())
            .sum()
    }

    #[inline(always)]
    pub(super) fn is_full(self) -> bool {
        (0..self.blocks.len()).all(|block| self.header(block).free() == 0)
    }

    /// The leaf to the right.
    #[inline(always)]
    pub(super) fn next(self) -> Offset {
        Offset::from_word(self.blocks[0].tail[self.alt()].load_acquire())
    }

    #[inline(always)]
    fn slot(self, place: Place) -> &'a Slot {
        &self.blocks[place.block].slots[place.slot]
    }

    /// The record of `key`: its place and value. Section 3.1, algorithm 1.
    #[inline(always)]
    pub(super) fn find(self, key: u64) -> Option<(Place, u64)> {
        let print = fingerprint(key);
        let found = self.find_in(0, &self.blocks[0].front, key, print);
        if self.is_one_block() || found.is_some() {
            return found;
        }
        let alt = self.alt();
        (1..self.blocks.len())
            .find_map(|block| self.find_in(block, self.header_cells(block, alt), key, print))
    }

    #[inline(always)]
    fn find_in(
        self,
        block: usize,
        header: &[Cell; 2],
        key: u64,
        print: u8,
    ) -> Option<(Place, u64)> {
        let mut matches = Header::matches(header, print);
        while matches != 0 {
            let slot = matches.trailing_zeros() as usize;
            point();
            let candidate = self.slot(Place { block, slot });
            if candidate.key.load() == key {
                point();
                return Some((Place { block, slot }, candidate.value.load()));
            }
            matches &= matches - 1;
        }
        None
    }

    /// Asks the caches for the records that `key`'s fingerprint points to.
    #[inline(always)]
    pub(super) fn prefetch_record(self, key: u64) {
        let print = fingerprint(key);
        for block in 0..self.blocks.len() {
            let matches = Header::matches(self.header_cells(block, self.alt()), print);
            prefetch(
                &raw const self.blocks[block].slots[matches.trailing_zeros() as usize % SLOTS],
            );
        }
    }

    #[inline(always)]
    pub(super) fn is_one_block(self) -> bool {
        self.blocks.len() == 1
    }

    /// Copies all records, in no order, to `out` and returns their number.
    pub(super) fn copy_to(self, out: &mut [(u64, u64); MAX_RECORDS]) -> usize {
        let mut count = 0;
        for block in 0..self.blocks.len() {
            for slot in slots(self.header(block).bitmap()) {
                let candidate = self.slot(Place { block, slot });
                out[count] = (candidate.key.load(), candidate.value.load());
                count += 1;
            }
        }
        count
    }

    /// The smallest key and the largest, if there is one.
    pub(super) fn ends(self) -> Option<(u64, u64)> {
        self.keys().min().zip(self.keys().max())
    }

    /// How many keys are `from` or above.
    pub(super) fn count_from(self, from: u64) -> usize {
        self.keys().filter(|&key| key >= from).count()
    }

    /// The keys, in no order.
    fn keys(self) -> impl Iterator<Item = u64> {
        (0..self.blocks.len())
            .flat_map(move |block| {
                slots(self.header(block).bitmap()).map(move |slot| Place { block, slot })
            })
            .map(move |place| self.slot(place).key.load())
    }

    /// Calls `visit` with every record's key and whether its fingerprint is right.
    pub(super) fn inspect(self, mut visit: impl FnMut(u64, bool)) {
        for block in 0..self.blocks.len() {
            let header = self.header(block);
            for slot in slots(header.bitmap()) {
                let key = self.slot(Place { block, slot }).key.load();
                visit(key, header.fingerprint(slot) == fingerprint(key));
            }
        }
    }

    /// Gives a record a new value: one line, one fence.
    #[inline(always)]
    pub(super) fn update(self, pm: Pm, place: Place, value: u64) {
        // COMMIT lbtree.update: the value itself. Recovery sees the old value before this store and the new one after it.
        pm.commit(&self.slot(place).value, value, "lbtree.update");
    }

    /// [`update`](Self::update), durable after the next fence.
    pub(super) fn publish_update(self, pm: Pm, place: Place, value: u64) {
        // COMMIT lbtree.update-in-batch: the value itself. Recovery sees the old value before this store and the new one after it.
        pm.publish(&self.slot(place).value, value, "lbtree.update-in-batch");
    }

    /// Removes a record: one line, one fence. Section 3.1, theorem 3.1.
    #[inline(always)]
    pub(super) fn remove(self, pm: Pm, place: Place) {
        let cells = self.header_cells(place.block, self.alt());
        // COMMIT lbtree.remove: the bitmap without the record's bit. Recovery sees the record before this store and not after it.
        let removed = Header::read(cells).without(place.slot).word0();
        pm.commit(&cells[0], removed, "lbtree.remove");
    }

    /// Adds a record whose key is not there to a leaf that is not full. Section 3.2, algorithm 2.
    ///
    /// If the line of a header has a free slot: one line, one fence. Otherwise the record goes to another line, together with
    /// as many records of the header's line as fit ("entry moving"), so that the next inserts find that line free
    /// again: two lines, two fences.
    #[inline(always)]
    pub(super) fn insert(self, pm: Pm, key: u64, value: u64) {
        let prepared = self.prepare_insert(pm, key, value);
        if prepared.moved {
            pm.fence();
        }
        self.publish_insert(pm, &prepared);
        pm.fence();
    }

    /// The first half of an insert: writes and flushes what the commit depends on, to slots that are not in use. If
    /// `moved` is set in the result, a fence must come before the second half.
    #[inline(always)]
    pub(super) fn prepare_insert(self, pm: Pm, key: u64, value: u64) -> PreparedInsert {
        let alt = self.alt();
        let (block, header_line) = self.choose_block(alt);
        let old = Header::read(self.header_cells(block, alt));
        let free_beside_header = old.free() & LINE_SLOTS[header_line];
        if free_beside_header != 0 {
            let slot = free_beside_header.trailing_zeros() as usize;
            self.write_record(pm, Place { block, slot }, key, value);
            return PreparedInsert {
                block,
                old,
                new: old.with(slot, fingerprint(key)),
                moved: false,
            };
        }
        self.prepare_in_other_line(pm, block, header_line, old, key, value)
    }

    /// The second half of an insert: commits it. Durable after the next fence.
    #[inline(always)]
    pub(super) fn publish_insert(self, pm: Pm, prepared: &PreparedInsert) {
        let cells = self.header_cells(prepared.block, self.alt());
        prepared.new.store_fingerprints(pm, cells, prepared.old);
        if prepared.moved && planted(Bug::MoveInTwoSteps) {
            let between = prepared.old.word0() & prepared.new.word0();
            pm.publish(&cells[0], between, "lbtree.insert");
        }
        // COMMIT lbtree.insert: the bitmap with the new record's bit and with the moved records' bits changed over. Before this store
        // recovery sees the leaf without the record: every word written so far lies in slots not in use. After it, it
        // sees the record. The line's other words were stored before and share the flush.
        pm.publish(&cells[0], prepared.new.word0(), "lbtree.insert");
    }

    /// The block to insert into, one whose header line has a free slot if there is one, and the line of its header.
    #[inline(always)]
    fn choose_block(self, alt: usize) -> (usize, usize) {
        let mut fallback = None;
        for block in 0..self.blocks.len() {
            let header_line = if block > 0 && alt == 1 { 3 } else { 0 };
            let free = self.header(block).free();
            if free & LINE_SLOTS[header_line] != 0 {
                return (block, header_line);
            }
            if free != 0 && fallback.is_none() {
                fallback = Some((block, header_line));
            }
        }
        // Any other slot would overwrite a record.
        fallback.expect("invariant: a leaf has a free slot when a record is inserted")
    }

    fn prepare_in_other_line(
        self,
        pm: Pm,
        block: usize,
        header_line: usize,
        old: Header,
        key: u64,
        value: u64,
    ) -> PreparedInsert {
        // The emptiest line takes most records from the header's line, so that two-line inserts are rare.
        let emptiest = (0..4)
            .filter(|&line| line != header_line)
            .max_by_key(|&line| (old.free() & LINE_SLOTS[line]).count_ones());
        let line = emptiest.expect("invariant: a block has three lines beside its header's");
        let mut free = slots(old.free() & LINE_SLOTS[line]);
        // Any other slot would overwrite a record.
        let free_slot = free.next();
        let slot =
            free_slot.expect("invariant: a block that is chosen for an insert has a free slot");
        self.write_record(pm, Place { block, slot }, key, value);
        let mut new = old.with(slot, fingerprint(key));
        let most = (old.free() & LINE_SLOTS[line]).count_ones() - 1;
        let moving = most.min(LINE_SLOTS[header_line].count_ones());
        pm.note(
            "entry moving",
            (header_line << 8 | line << 4) as u64 | u64::from(moving),
        );
        for (to, from) in free.zip(slots(LINE_SLOTS[header_line])) {
            let candidate = self.slot(Place { block, slot: from });
            self.write_record(
                pm,
                Place { block, slot: to },
                candidate.key.load(),
                candidate.value.load(),
            );
            new = new.with(to, old.fingerprint(from)).without(from);
        }
        // All of it lies in one line: that of the first slot written.
        pm.flush(&self.slot(Place { block, slot }).key);
        PreparedInsert {
            block,
            old,
            new,
            moved: true,
        }
    }

    #[inline(always)]
    pub(super) fn write_record(self, pm: Pm, place: Place, key: u64, value: u64) {
        let record = self.slot(place);
        pm.store(&record.key, key);
        pm.store(&record.value, value);
    }

    /// Fills a leaf that is not reachable yet, and flushes it without a fence. Records go to the end of each block, so
    /// that the free slots are in the line of its header (section 3.3; theorem 3.5 counts on it).
    pub(super) fn fill(self, pm: Pm, records: &[(u64, u64)], next: Offset) {
        for (block, words) in self
            .blocks
            .iter()
            .zip(self.image(records, next).chunks(BLOCK_BYTES / 8))
        {
            for (cell, &word) in block.cells().iter().zip(words) {
                pm.store(cell, word);
            }
        }
        pm.named("lbtree.fill").flush(self.blocks);
    }

    /// [`fill`](Self::fill) past the caches, for bulk loads.
    pub(super) fn stream(self, pm: Pm, records: &[(u64, u64)], next: Offset) {
        let image = self.image(records, next);
        for (block, words) in self.blocks.iter().zip(image.chunks(BLOCK_BYTES / 8)) {
            pm.stream(block.cells(), words);
        }
    }

    /// The words of a leaf that holds `records`, spread evenly over its blocks.
    fn image(self, records: &[(u64, u64)], next: Offset) -> [u64; MAX_BLOCKS * BLOCK_BYTES / 8] {
        let mut words = [0; MAX_BLOCKS * BLOCK_BYTES / 8];
        let blocks = self.blocks.len();
        for (block, words) in words.chunks_mut(BLOCK_BYTES / 8).take(blocks).enumerate() {
            let share = records.len() * block / blocks..records.len() * (block + 1) / blocks;
            let mut header = Header::empty();
            for (slot, &(key, value)) in (0..SLOTS).rev().zip(&records[share]) {
                header = header.with(slot, fingerprint(key));
                words[2 + 2 * slot] = key;
                words[3 + 2 * slot] = value;
            }
            (words[0], words[1]) = (header.word0(), header.word1());
        }
        words[BLOCK_BYTES / 8 - 2] = next.get();
        words
    }

    /// Commits `headers` and the sibling `next` in one step: a split without a log (section 3.3 and 3.4), or, the
    /// other way round, a merge. `headers` are those that count now, with bits cleared for records that move out, or
    /// set for records that were written to free slots; what the new state depends on has been flushed.
    pub(super) fn switch(self, pm: Pm, headers: &Headers, next: Offset) {
        let alt = self.alt();
        let front = Header::read(&self.blocks[0].front);
        for (block, header) in headers.iter().enumerate().take(self.blocks.len()).skip(1) {
            let cells = self.header_cells(block, 1 - alt);
            pm.store(&cells[1], header.word1());
            pm.store(&cells[0], header.word0());
            pm.flush(cells);
        }
        pm.store(&self.blocks[0].tail[1 - alt], next.get());
        pm.flush(&self.blocks[0].tail[1 - alt]);
        pm.fence();
        headers[0].store_fingerprints(pm, &self.blocks[0].front, front);
        // COMMIT lbtree.switch: `alt` changes, and with it the sibling, the headers of all other blocks, and block 0's own bitmap.
        // Before this store recovery sees the old leaf, whole: all that was written lies in the sibling, the headers
        // and the slots that do not count. After it, it sees the new state: for a split both leaves, for a merge the
        // one. Whatever block is then unreachable is found free by the sweep.
        pm.commit(
            &self.blocks[0].front[0],
            headers[0].switched().word0(),
            "lbtree.switch",
        );
    }

    /// Unlinks the empty right neighbour of this leaf: `next`, the leaf behind it, becomes the sibling.
    pub(super) fn relink(self, pm: Pm, next: Offset) {
        let sibling = self.alt() ^ usize::from(planted(Bug::RelinkWrongSibling));
        pm.note("empty leaf relinked", sibling as u64);
        // COMMIT lbtree.relink: the sibling that counts. Before this store recovery finds the empty leaf and unlinks it
        // again; after it the empty leaf is unreachable and is swept.
        pm.commit(&self.blocks[0].tail[sibling], next.get(), "lbtree.relink");
    }

    /// Makes `copy` the sibling of this leaf: its right neighbour has been copied there, with the sibling of the neighbour.
    pub(super) fn relink_to_copy(self, pm: Pm, copy: Offset) {
        // COMMIT lbtree.move: the sibling that counts. Before this store recovery sees the old right neighbour, and the copy is swept;
        // after it, it sees the copy, which leads to the same leaf, and the old one is swept.
        pm.commit(&self.blocks[0].tail[self.alt()], copy.get(), "lbtree.move");
    }

    /// Writes `records` into free slots, flushes them, and returns the headers in which these slots are in use: the
    /// first half of a merge, before [`switch`](Self::switch). The leaf has room for the records.
    pub(super) fn prepare_merge(self, pm: Pm, records: &[(u64, u64)]) -> Headers {
        let mut headers = self.headers();
        let mut records = records.iter();
        // The slots of the header's line come last: the next inserts want them free.
        for line in [0x3f80_u16, 0x0078, 0x0007] {
            for block in 0..self.blocks.len() {
                for slot in slots(headers[block].free() & line) {
                    let Some(&(key, value)) = records.next() else {
                        return headers;
                    };
                    self.write_record(pm, Place { block, slot }, key, value);
                    pm.flush(self.slot(Place { block, slot }));
                    headers[block] = headers[block].with(slot, fingerprint(key));
                }
            }
        }
        assert!(
            records.next().is_none(),
            "invariant: a merge moves no more records than the left leaf has room for"
        );
        headers
    }

    /// Clears the bits of the records whose keys are `pivot` or above: the headers of the left half of a split.
    pub(super) fn headers_below(self, pivot: u64) -> Headers {
        let mut headers = self.headers();
        for (block, header) in headers.iter_mut().enumerate().take(self.blocks.len()) {
            for slot in slots(header.bitmap()) {
                if self.slot(Place { block, slot }).key.load() >= pivot {
                    *header = header.without(slot);
                }
            }
        }
        headers
    }
}

/// An insert whose depending words are written; see [`Leaf::prepare_insert`].
#[derive(Clone, Copy)]
pub(super) struct PreparedInsert {
    block: usize,
    old: Header,
    new: Header,
    /// Whether a line other than the header's was written, so that a fence must come before the commit.
    pub(super) moved: bool,
}

impl Slot {
    /// Key and value. They may be of different moments, until the caller has validated the version of the leaf.
    #[inline(always)]
    fn load(&self) -> [u64; 2] {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::__m128i;
            // SAFETY: a slot is 16 aligned, live bytes, and both types are 16 bytes for which every bit pattern is
            // valid. Volatile, because others may be writing.
            unsafe {
                std::mem::transmute::<__m128i, [u64; 2]>(
                    std::ptr::from_ref(self).cast::<__m128i>().read_volatile(),
                )
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        [self.key.load(), self.value.load()]
    }
}

impl Block {
    /// The block as four lines.
    #[inline(always)]
    fn lines(&self) -> &[KeyLine; 4] {
        // SAFETY: a `Block` is 256 bytes, aligned to lines, of atomic words, and so are four `KeyLine`s.
        unsafe { &*std::ptr::from_ref(self).cast() }
    }

    /// The block as 32 words.
    fn cells(&self) -> &[Cell; BLOCK_BYTES / 8] {
        // SAFETY: a `Block` is `repr(C)` and consists of 32 cells without padding (asserted in `layout`).
        unsafe { &*std::ptr::from_ref(self).cast() }
    }
}
