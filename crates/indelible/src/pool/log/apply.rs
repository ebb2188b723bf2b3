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
use super::record::{self, HEADER_WORDS, Identity, Record, SEGMENT_BYTES, SEGMENT_WORDS, runs};
use super::{Bug, Log};
use crate::concurrency::sync::lock;
use crate::pmem::journal::Word;
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
/// So many words of a page, and fewer than it has, are taken for words in many places of it, without looking.
const WORDS_OF_MANY_RUNS: usize = 16;

/// Puts words into the bytes that begin at `begin` of the file.
pub(super) fn patch(bytes: &mut [u8], begin: u64, words: &[Word]) {
    for &(at, value) in words {
        let at = (at * 8 - begin) as usize;
        bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
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
    /// Kept for their memory.
    words: Vec<Word>,
    bytes: Vec<u8>,
    /// Whether places are announced before they are written.
    reads_ahead: bool,
    /// What earlier sessions have left, until it is applied.
    pub(super) backlog: Option<Arc<Backlog>>,
}

impl Applier {
    pub(super) fn new(data: &dyn DataFile) -> Result<Self> {
        let mut superblocks = vec![0; 2 * COPY_BYTES];
        data.read(&mut superblocks, 0)?;
        Ok(Self {
            superblocks,
            superblocks_changed: false,
            words: Vec::new(),
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
        for (at, words) in runs(payload) {
            let words = (at..).zip(words.iter().copied());
            if at < SUPERBLOCK_WORDS {
                words.for_each(|word| self.add_word(word));
            } else {
                self.words.extend(words);
            }
        }
    }

    /// Notes a word.
    pub(super) fn add_word(&mut self, word: Word) {
        if word.0 < SUPERBLOCK_WORDS {
            self.note_superblocks(&[word]);
        } else {
            self.words.push(word);
        }
    }

    /// Notes bytes of a superblock that the file has got since.
    pub(super) fn note_in_file(&mut self, at: u64, bytes: &[u8]) {
        self.superblocks[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Writes what was noted into the file, of which `length` bytes exist. What lies beyond them was cut off after the words were logged.
    pub(super) fn write(&mut self, data: &dyn DataFile, length: u64) -> Result<()> {
        let mut words = std::mem::take(&mut self.words);
        // By page, and within a page in the order of the log: of the values of one word, the last one stays behind the others.
        radsort::sort_by_key(&mut words, |&(at, _)| at / PAGE_WORDS);
        if self.reads_ahead {
            let mut page = u64::MAX;
            for &(at, _) in &words {
                if at / PAGE_WORDS != page && at * 8 < length {
                    page = at / PAGE_WORDS;
                    data.expect_write(at * 8);
                }
            }
        }
        for page in words.chunk_by_mut(|a, b| a.0 / PAGE_WORDS == b.0 / PAGE_WORDS) {
            if page[0].0 / PAGE_WORDS * PAGE_BYTES < length {
                self.write_page(data, length, page)?;
            }
        }
        self.words = words;
        self.words.clear();
        Ok(())
    }

    pub(super) fn note_superblocks(&mut self, words: &[Word]) {
        patch(&mut self.superblocks, 0, words);
        self.superblocks_changed |= !words.is_empty();
    }

    /// Writes words of one page; of those with one place the last one counts.
    fn write_page(&mut self, data: &dyn DataFile, length: u64, words: &mut [Word]) -> Result<()> {
        let page = words[0].0 / PAGE_WORDS * PAGE_BYTES;
        let is_whole = page >= SUPERBLOCK_WORDS * 8 && page + PAGE_BYTES <= length;
        if is_whole && (WORDS_OF_MANY_RUNS..PAGE_WORDS as usize).contains(&words.len()) {
            return self.patch_page(data, page, words);
        }
        // Stable, as above.
        words.sort_by_key(|&(at, _)| at);
        let runs = words.chunk_by(|a, b| b.0 - a.0 <= 1);
        // Two calls for the page, or one for each run.
        if is_whole && runs.clone().count() > 2 {
            return self.patch_page(data, page, words);
        }
        for run in runs {
            let (begin, end) = (run[0].0 * 8, (run[run.len() - 1].0 + 1) * 8);
            if end > length {
                break;
            }
            self.bytes.clear();
            self.bytes.resize((end - begin) as usize, 0);
            patch(&mut self.bytes, begin, run);
            data.write(&self.bytes, begin)?;
        }
        Ok(())
    }

    /// Reads a page, and writes it with these words.
    fn patch_page(&mut self, data: &dyn DataFile, page: u64, words: &[Word]) -> Result<()> {
        self.bytes.clear();
        self.bytes.resize(PAGE_BYTES as usize, 0);
        data.read(&mut self.bytes, page)?;
        patch(&mut self.bytes, page, words);
        data.write(&self.bytes, page)
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
