//! Writing records into the pool's file: by the applier while the pool is open, and after a crash.
//!
//! | step | what is on the disk after it | what recovery does after a crash in it |
//! |---|---|---|
//! | 1. sync the log up to `to` | all records before `to` | applies them |
//! | 2. write the words of the records before `to` into the file | any of these words | applies the records again, from the oldest that is there (I2) |
//! | 3. sync the file | all of these words | the same |
//! | 4. write the copy of the superblock with the lower sequence, sync, then the other copy, sync | at any moment one whole copy | the same |
//! | 5. free the segments before `to` | headers of new segments over the oldest ones (I3) | applies what is left, which changes nothing |
//!
//! The superblock has a step of its own, since it has to be read before the log is: a power cut while both of its copies are being
//! written would leave none.

use super::backlog::Backlog;
use super::device::DataFile;
use super::footer::words_of_superblocks;
use super::record::{
    self, HEADER_WORDS, Identity, PLACE_BITS, Record, SEGMENT_BYTES, SEGMENT_WORDS, first_of_run,
    place_of,
};
use super::{Bug, Log, MOST_SEGMENTS};
use crate::concurrency::sync::lock;
use crate::kernels::prefetch;
use crate::pmem::planted::planted;
use crate::pool::layout::COPY_BYTES;
use crate::pool::superblock::order_in;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, TryLockError};
use std::time::Duration;

/// Words of the two copies of the superblock.
pub(super) const SUPERBLOCK_WORDS: u64 = 2 * COPY_BYTES as u64 / 8;

/// Bytes of a page, the unit of the page cache.
pub(super) const PAGE_BYTES: u64 = 4096;
const PAGE_WORDS: u64 = PAGE_BYTES / 8;
/// Runs that touch a page, up to which each is written by a call of its own. A page with more is read, patched and written: two calls.
const MOST_CALLS_PER_PAGE: usize = 2;
/// Bits of a piece that say where its run is, enough for the words of the longest log. The others say which page of the pool it has words of.
const RUN_BITS: u32 = 33;
const _: () = assert!(
    MOST_SEGMENTS as u64 * SEGMENT_WORDS as u64 <= 1 << RUN_BITS
        && (1 << PLACE_BITS) / PAGE_WORDS <= 1 << (u64::BITS - RUN_BITS)
);
/// How many pieces ahead the words of a run are fetched from memory: enough for the time of one miss.
const FETCHED_AHEAD: usize = 8;

/// Puts words into the bytes that begin at `begin` of the file, the first of them at word `at` of it.
pub(super) fn patch(bytes: &mut [u8], begin: u64, at: u64, words: &[u64]) {
    let bytes = &mut bytes[(at * 8 - begin) as usize..][..words.len() * 8];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
}

/// Segments whose records are written before the pool's file is synced: few enough that segments become free again at short
/// intervals, and enough that words which are written often are written once.
const SEGMENTS_PER_ROUND: u64 = 32;

/// How long a thread that needs a segment sleeps at most before it looks again who applies records.
const LONGEST_WAIT_FOR_ROOM: Duration = Duration::from_millis(1);

/// What the applier knows of the pool's file.
pub(super) struct Applier {
    /// The bytes of both superblocks, as the applied records make them.
    superblocks: Vec<u8>,
    superblocks_changed: bool,
    noted: Noted,
    /// Kept for its memory.
    bytes: Vec<u8>,
    /// Whether places are announced before they are written.
    reads_ahead: bool,
    /// What earlier sessions have left, until it is applied.
    pub(super) backlog: Option<Arc<Backlog>>,
}

/// What is to be written. A record of an insert has a few words, and one of a structure change hundreds that follow one another: so runs are put in
/// order, and not words.
#[derive(Default)]
struct Noted {
    /// Payloads of records, see [`record`](super::record).
    payloads: Vec<u64>,
    /// For each page that a run has words of, a *piece*: the number of the page, and in the low [`RUN_BITS`] bits where in `payloads` the run begins.
    pieces: Vec<u64>,
}

impl Noted {
    /// Notes a payload, but for the words of superblocks.
    fn add(&mut self, payload: &[u64]) {
        let mut run = self.payloads.len();
        self.payloads.extend_from_slice(payload);
        while run < self.payloads.len() {
            run = self.note_run(run);
        }
    }

    /// Notes a run that is in `payloads`; returns where the next one begins.
    fn note_run(&mut self, run: usize) -> usize {
        let (at, length) = place_of(self.payloads[run]);
        if at + length > SUPERBLOCK_WORDS {
            let first = at.max(SUPERBLOCK_WORDS) / PAGE_WORDS;
            for page in first..=(at + length - 1) / PAGE_WORDS {
                self.pieces.push(page << RUN_BITS | run as u64);
            }
        }
        run + 1 + length as usize
    }

    /// The words of a piece before word `limit` of the file, and where the first of them belongs.
    fn words(&self, piece: u64, limit: u64) -> (u64, &[u64]) {
        let (page, run) = (page_of(piece), run_of(piece));
        let (at, length) = place_of(self.payloads[run]);
        let first = at.max(page * PAGE_WORDS).max(SUPERBLOCK_WORDS);
        let end = (at + length).min((page + 1) * PAGE_WORDS).min(limit);
        let words = &self.payloads[run + 1..];
        let places = (first - at) as usize..(end.max(first) - at) as usize;
        (first, &words[places])
    }

    /// Puts the pieces in order: by page, and of one page in the order of the log.
    fn sort(&mut self) {
        // Stable, so that the last value of a word stays behind the others.
        radsort::sort_by_key(&mut self.pieces, |&piece| page_of(piece) as u32);
    }

    fn clear(&mut self) {
        self.payloads.clear();
        self.pieces.clear();
    }
}

fn page_of(piece: u64) -> u64 {
    piece >> RUN_BITS
}

fn run_of(piece: u64) -> usize {
    (piece & ((1 << RUN_BITS) - 1)) as usize
}

impl Applier {
    pub(super) fn new(data: &dyn DataFile) -> Result<Self> {
        let mut superblocks = vec![0; 2 * COPY_BYTES];
        data.read(&mut superblocks, 0)?;
        Ok(Self {
            superblocks,
            superblocks_changed: false,
            noted: Noted::default(),
            bytes: Vec::new(),
            reads_ahead: false,
            backlog: None,
        })
    }

    /// Announces all places before it writes them: after a crash the file is not in the page cache, and a page has to be read before a
    /// part of it is written. So the disk reads many pages at a time.
    pub(super) fn reading_ahead(mut self) -> Self {
        self.reads_ahead = true;
        self
    }

    /// Notes the words of a batch.
    pub(super) fn add(&mut self, payload: &[u64]) {
        for (at, word) in words_of_superblocks(payload) {
            patch(&mut self.superblocks, 0, at, &[word]);
            self.superblocks_changed = true;
        }
        self.noted.add(payload);
    }

    /// Notes words that follow one another, the first of them at word `at`, which is behind the superblocks.
    pub(super) fn add_run(&mut self, at: u64, words: &[u64]) {
        let payloads = &mut self.noted.payloads;
        let run = payloads.len();
        payloads.push(first_of_run(at, words.len() as u64));
        payloads.extend_from_slice(words);
        self.noted.note_run(run);
    }

    /// Notes bytes of a superblock that the file has got since.
    pub(super) fn note_in_file(&mut self, at: u64, bytes: &[u8]) {
        self.superblocks[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Writes what was noted into the file, of which `length` bytes exist. What lies beyond them was cut off after the words were logged.
    pub(super) fn write(&mut self, data: &dyn DataFile, length: u64) -> Result<()> {
        let mut noted = std::mem::take(&mut self.noted);
        noted.sort();
        let end = length.div_ceil(PAGE_BYTES);
        let count = noted.pieces.partition_point(|&piece| page_of(piece) < end);
        let pages = noted.pieces[..count].chunk_by(|&a, &b| page_of(a) == page_of(b));
        if self.reads_ahead {
            for page in pages.clone() {
                data.expect_write(page_of(page[0]) * PAGE_BYTES);
            }
        }
        for pieces in pages {
            self.write_page(data, length, &noted, pieces)?;
        }
        noted.clear();
        self.noted = noted;
        Ok(())
    }

    /// Writes the pieces of one page.
    fn write_page(
        &mut self,
        data: &dyn DataFile,
        length: u64,
        noted: &Noted,
        pieces: &[u64],
    ) -> Result<()> {
        let page = page_of(pieces[0]) * PAGE_BYTES;
        // Of the first page, a part may be a superblock, and of the last one a part may lie behind the end.
        let (begin, end) = (
            page.max(SUPERBLOCK_WORDS * 8),
            (page + PAGE_BYTES).min(length),
        );
        if pieces.len() > MOST_CALLS_PER_PAGE {
            self.bytes.clear();
            self.bytes.resize((end - begin) as usize, 0);
            data.read(&mut self.bytes, begin)?;
            for (i, &piece) in pieces.iter().enumerate() {
                if let Some(&later) = pieces.get(i + FETCHED_AHEAD) {
                    prefetch(&raw const noted.payloads[run_of(later)]);
                }
                let (at, words) = noted.words(piece, end / 8);
                if !words.is_empty() {
                    patch(&mut self.bytes, begin, at, words);
                }
            }
            return data.write(&self.bytes, begin);
        }
        for &piece in pieces {
            let (at, words) = noted.words(piece, end / 8);
            if words.is_empty() {
                continue;
            }
            self.bytes.clear();
            self.bytes.resize(words.len() * 8, 0);
            patch(&mut self.bytes, at * 8, at, words);
            data.write(&self.bytes, at * 8)?;
        }
        Ok(())
    }

    /// Waits until what was written is on the disk, and then writes the superblocks, one after the other: the newer one last, as
    /// `superblock::Writes` wants it. In the file both are whole since the session has begun.
    pub(super) fn finish(&mut self, data: &dyn DataFile) -> Result<()> {
        data.sync()?;
        if std::mem::take(&mut self.superblocks_changed) {
            for copy in order_in(&self.superblocks) {
                let at = copy * COPY_BYTES;
                data.write_for_good(&self.superblocks[at..at + COPY_BYTES], at as u64)?;
            }
        }
        Ok(())
    }
}

/// Reads records, segment after segment.
pub(super) struct Reader<'a> {
    identity: Identity,
    segment_of: &'a dyn Fn(u64) -> Option<&'a [AtomicU64]>,
    /// Where the next record is.
    pub(super) position: u64,
    /// Where to stop: records behind it may be there, and do not count.
    end: u64,
    buffer: Vec<u64>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        identity: Identity,
        segment_of: &'a dyn Fn(u64) -> Option<&'a [AtomicU64]>,
        positions: Range<u64>,
    ) -> Self {
        Self {
            identity,
            segment_of,
            position: positions.start,
            end: positions.end,
            buffer: Vec::new(),
        }
    }

    /// The next batch; `None` at the end of the log.
    pub(super) fn next(&mut self) -> Option<&[u64]> {
        while self.position < self.end {
            let mut ordinal = self.position / SEGMENT_BYTES;
            let mut at = (self.position % SEGMENT_BYTES) as usize / 8;
            if at + 1 == SEGMENT_WORDS {
                // One word is too little for a record.
                (ordinal, at) = (ordinal + 1, 0);
            }
            let at = at.max(HEADER_WORDS);
            let segment = (self.segment_of)(ordinal)?;
            let (record, words) =
                record::read(&self.identity, segment, ordinal, at, &mut self.buffer)?;
            self.position = ordinal * SEGMENT_BYTES + (at + words) as u64 * 8;
            if let Record::Batch = record {
                return Some(&self.buffer);
            }
        }
        None
    }

    /// An error if there was no record where one was known to be.
    pub(super) fn expect_end(&self) -> Result<()> {
        // A single word may be left at the end of a segment.
        if self.position + 8 < self.end {
            return Err(Error::Damaged(format!(
                "the log has no record at {:#x}, which has been appended",
                self.position
            )));
        }
        Ok(())
    }
}

impl Log {
    /// Applies all records before `to`, which are durable, to the pool's file, and frees their segments.
    pub(super) fn apply_until(&self, applier: &mut Applier, to: u64) -> Result<()> {
        self.apply_backlog(applier)?;
        loop {
            self.expect_still_sound()?;
            let from = self.applied.load(Ordering::Acquire);
            if from >= to {
                return Ok(());
            }
            let step = (from / SEGMENT_BYTES + SEGMENTS_PER_ROUND) * SEGMENT_BYTES;
            let applied = self.apply_step(applier, from..to.min(step));
            self.fail(applied)?;
        }
    }

    fn apply_step(&self, applier: &mut Applier, positions: Range<u64>) -> Result<()> {
        let used = self.used_segments();
        let segment_of = |ordinal| self.segment_among(&used, ordinal);
        let mut reader = Reader::new(self.session.identity, &segment_of, positions.clone());
        while let Some(payload) = reader.next() {
            applier.add(payload);
        }
        reader.expect_end()?;
        let length = self.data.length()?;
        applier.write(&*self.data, length)?;
        if !planted(Bug::FreedBeforeSync) {
            applier.finish(&*self.data)?;
        }
        self.applied.store(positions.end, Ordering::Release);
        self.free_until(positions.end)
    }

    /// Applies what earlier sessions have left, and gives their segments to this one. (Steps 4 to 6 in `backlog`.)
    pub(super) fn apply_backlog(&self, applier: &mut Applier) -> Result<()> {
        self.expect_still_sound()?;
        let Some(backlog) = applier.backlog.take() else {
            return Ok(());
        };
        let applied = backlog.apply(applier, &*self.data);
        self.fail(applied)?;
        if !planted(Bug::FreedBeforeSync) {
            let synced = applier.finish(&*self.data);
            self.fail(synced)?;
        }
        backlog.note_in_file();
        self.applied.store(self.begin, Ordering::Release);
        lock(&self.appender).unprepared.extend(backlog.slots());
        self.room.notify_all();
        Ok(())
    }

    /// Whether records of earlier sessions are not in the pool's file yet.
    pub(in crate::pool) fn has_backlog(&self) -> bool {
        self.applied() < self.begin
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The segments that are not free now, oldest first: ordinal and slot.
    pub(super) fn used_segments(&self) -> VecDeque<(u64, usize)> {
        lock(&self.appender).used.clone()
    }

    /// The segment of this ordinal, of those that were used.
    pub(super) fn segment_among(
        &self,
        used: &VecDeque<(u64, usize)>,
        ordinal: u64,
    ) -> Option<&[AtomicU64]> {
        let first = used.front()?.0;
        let (_, slot) = used.get(ordinal.checked_sub(first)? as usize)?;
        Some(self.device.segment(*slot))
    }

    /// Prepares the segments that end before `position` for new records.
    fn free_until(&self, position: u64) -> Result<()> {
        loop {
            let _preparing = lock(&self.preparing);
            let mut appender = lock(&self.appender);
            let (oldest, slot) = appender.used[0];
            if appender.used.len() == 1 || oldest >= position / SEGMENT_BYTES {
                return Ok(());
            }
            appender.used.pop_front();
            let ordinal = appender.next_ordinal();
            drop(appender);
            self.prepare(ordinal, slot)?;
        }
    }

    /// Makes sure that there is a segment for the next record: adds one, applies records, or waits for a segment while another thread applies
    /// them.
    pub(super) fn make_room(&self) -> Result<()> {
        loop {
            self.expect_sound()?;
            if !lock(&self.appender).prepared.is_empty() || self.add_segment()? {
                return Ok(());
            }
            match self.applier.try_lock() {
                Ok(mut applier) => return self.apply_all(&mut applier),
                Err(TryLockError::Poisoned(applier)) => {
                    return self.apply_all(&mut applier.into_inner());
                }
                Err(TryLockError::WouldBlock) => {}
            }
            let appender = lock(&self.appender);
            if appender.prepared.is_empty() {
                // Not for long: whoever has the applier may have had nothing to apply.
                let _ = self.room.wait_timeout(appender, LONGEST_WAIT_FOR_ROOM);
            }
        }
    }

    /// Applies everything that has been appended up to now.
    pub(super) fn apply_all(&self, applier: &mut Applier) -> Result<()> {
        let payload = self.payload.load(Ordering::Relaxed);
        let to = self.appended();
        if !planted(Bug::ApplierAheadOfSync) {
            self.wait_for(to)?;
        }
        self.apply_until(applier, to)?;
        self.applied_payload.store(payload, Ordering::Relaxed);
        Ok(())
    }

    /// Prepares one more segment, which an earlier session has left or by which the log gets longer; `false` if there can be none.
    pub(super) fn add_segment(&self) -> Result<bool> {
        let _preparing = lock(&self.preparing);
        let ordinal = lock(&self.appender).next_ordinal();
        if self.prepare_left(ordinal)? {
            return Ok(true);
        }
        let added = self.device.add_segment();
        if !self.fail(added)? {
            return Ok(false);
        }
        let ordinal = lock(&self.appender).next_ordinal();
        self.prepare(ordinal, self.device.segments() - 1)?;
        Ok(true)
    }

    /// Applies everything, so that the pool's file is as the image. Nothing is written meanwhile.
    pub(crate) fn drain(&self) -> Result<()> {
        self.expect_sound()?;
        self.apply_all(&mut lock(&self.applier))
    }
}
