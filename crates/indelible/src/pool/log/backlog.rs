//! Records of sessions that a crash has ended, from the open after the crash to the moment when they are in the pool's file.
//!
//! An open does not wait until they are there. It reads the log once, to find where the log ends and which extents there are words
//! for. The words get into the image extent by extent, at the latest when the extent is first touched (see `pool::mapping::late`), and the
//! applier writes them into the file behind the scenes. Meanwhile the new session has records of its own, in other segments.
//!
//! | step | what counts after a crash behind it |
//! |---|---|
//! | 1. make the log durable, and read it | the sessions as before |
//! | 2. write a superblock with a new generation, which names the session before it | the sessions as before: the new one has no segment |
//! | 3. write a header of the new session, which says where the one before it ends | both, the new one last |
//! | 4. write the words of the backlog into the file, in any order | both: words that are written again do no harm |
//! | 5. sync the file | the same |
//! | 6. use the backlog's segments for new headers | the new session, and what is left of the others: all of it is in the file already |
//!
//! Words of superblocks count only if the last session has written them: when a session begins, both superblocks in the file are its own.

use super::Bug;
use super::apply::{Applier, SUPERBLOCK_WORDS, patch};
use super::device::{DataFile, LogDevice};
use super::record::{self, HEADER_WORDS, Identity, Record, SEGMENT_BYTES, SEGMENT_WORDS};
use super::recover::{Last, Recovered, Sessions};
use crate::concurrency::parallel::in_parallel;
use crate::concurrency::sync::lock;
use crate::pmem::journal::Word;
use crate::pmem::planted::planted;
use crate::pool::layout::{EXTENT_BYTES, MAX_EXTENTS};
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// Words in an extent.
const EXTENT_WORDS: u64 = EXTENT_BYTES / 8;

/// Threads that read the log at most. Each has several segments to read, and more would wait for the memory.
const READERS: usize = 8;
/// Segments for each thread that reads the log, at least: a thread is not started for less.
const SEGMENTS_PER_READER: usize = 4;

/// The records of earlier sessions.
pub(crate) struct Backlog {
    device: Box<dyn LogDevice>,
    /// In the order of the log.
    segments: Vec<Scanned>,
    /// Slots of all segments by which the sessions are found, also of those that were prepared and have no records: as long as the next
    /// session has no segment, nothing else tells where they end.
    slots: Vec<usize>,
    /// Words of superblocks that the last session has written, in order.
    superblocks: Vec<Word>,
    /// Words in the pool. What is behind them was cut off.
    words: u64,
    recovered: Recovered,
    /// Where the first segment begins.
    pub(super) begin: u64,
    /// The last session with records, and where its log ends.
    pub(super) end: Option<(u64, u64)>,
    pub(super) next_ordinal: u64,
    /// The pool's file has all words, and the segments may be used again.
    is_in_file: Mutex<bool>,
}

/// A segment that is to be read.
struct Wanted {
    identity: Identity,
    ordinal: u64,
    slot: usize,
    /// Where its records end, if that is known.
    until: Option<usize>,
    words: u64,
}

/// What was read from a segment.
struct Scanned {
    slot: usize,
    /// Words of the pool that count.
    words: u64,
    records: u64,
    /// Words of superblocks, in order.
    superblocks: Vec<Word>,
    /// Extents for which there are words, in order, and the first of their [`runs`](Self::runs).
    extents: Vec<(u32, u32)>,
    /// Words of the segment at which runs begin: by extent, those of an extent in order.
    runs: Vec<u32>,
    /// The word behind the last whole record.
    end: usize,
}

impl Backlog {
    /// Reads all records of these sessions.
    pub(super) fn read(
        device: Box<dyn LogDevice>,
        sessions: Sessions,
        last: &Last,
    ) -> Result<Self> {
        let mut this = Self {
            device,
            segments: Vec::new(),
            slots: Vec::new(),
            superblocks: Vec::new(),
            words: u64::MAX,
            recovered: Recovered::default(),
            begin: 0,
            end: None,
            next_ordinal: sessions.next_ordinal,
            is_in_file: Mutex::new(false),
        };
        let wanted = sessions.parts.iter().flat_map(|part| {
            part.segments.iter().map(|(&ordinal, &slot)| Wanted {
                identity: part.identity,
                ordinal,
                slot,
                until: part.end.map(|end| word_in(end, ordinal)),
                words: part.words,
            })
        });
        let wanted: Vec<Wanted> = wanted.collect();
        this.slots = wanted.iter().map(|it| it.slot).collect();
        let scanned = scan_all(&*this.device, &wanted);
        let mut ended = None;
        for (wanted, scanned) in wanted.iter().zip(scanned) {
            let generation = wanted.identity.generation;
            if ended == Some(generation) {
                continue;
            }
            if scanned.end < SEGMENT_WORDS {
                ended = Some(generation);
            }
            this.add(wanted, scanned, last)?;
        }
        this.expect_durable(&sessions)?;
        Ok(this)
    }

    /// An error if the log ends before a place up to which it was on the disk: what is missing had been acknowledged.
    fn expect_durable(&self, sessions: &Sessions) -> Result<()> {
        let newest = sessions.parts.last();
        let durable = newest.map_or(0, |part| part.durable);
        let end = self.end.map_or(0, |(_, end)| end);
        if end >= durable {
            return Ok(());
        }
        Err(Error::Damaged(format!(
            "the log has no whole record at {end:#x}, and was on the disk up to {durable:#x}"
        )))
    }

    fn add(&mut self, wanted: &Wanted, mut scanned: Scanned, last: &Last) -> Result<()> {
        if wanted.until.is_some_and(|until| scanned.end < until) {
            return Err(Error::Damaged(format!(
                "the log of session {} has no whole record at word {} of its segment {}, and went on there",
                wanted.identity.generation, scanned.end, wanted.ordinal
            )));
        }
        let begin = wanted.ordinal * SEGMENT_BYTES;
        if self.segments.is_empty() {
            self.begin = begin;
        }
        let end = begin + scanned.end as u64 * 8;
        self.end = Some((wanted.identity.generation, end));
        self.recovered.records += scanned.records;
        self.recovered.bytes += (scanned.end - HEADER_WORDS) as u64 * 8;
        let superblocks = std::mem::take(&mut scanned.superblocks);
        if wanted.identity == last.identity || planted(Bug::OldSuperblocksCount) {
            self.superblocks.extend(superblocks);
        }
        self.segments.push(scanned);
        Ok(())
    }

    pub(crate) fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// The generation of the last session; 0 if no session has a segment.
    pub(crate) fn generation(&self) -> u64 {
        self.end.map_or(0, |(generation, _)| generation)
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.recovered.records == 0
    }

    /// The words of superblocks that count, in order.
    pub(super) fn superblocks(&self) -> &[Word] {
        &self.superblocks
    }

    /// Changes the bytes of both superblocks from the file into those that count.
    pub(crate) fn complete_superblocks(&self, bytes: &mut [u8]) {
        patch(bytes, 0, &self.superblocks);
    }

    /// The pool has this many bytes: words behind them do not count. To be called before the words are.
    pub(crate) fn cut_at(&mut self, bytes: u64) {
        if !planted(Bug::BacklogNotCut) {
            self.words = bytes / 8;
        }
    }

    /// The slots that the next session may not use before the records are in the file.
    pub(crate) fn slots(&self) -> &[usize] {
        &self.slots
    }

    /// The extents for which there are words.
    pub(crate) fn extents(&self) -> BTreeSet<u64> {
        let all = self.segments.iter().flat_map(|segment| &segment.extents);
        let limit = self.words.div_ceil(EXTENT_WORDS);
        all.map(|&(extent, _)| u64::from(extent))
            .filter(|&extent| extent < limit)
            .collect()
    }

    /// About how many runs of words there are.
    pub(crate) fn runs(&self) -> usize {
        self.segments.iter().map(|segment| segment.runs.len()).sum()
    }

    /// Calls `put` with each word of an extent, and where it belongs in the pool, in the order of the log.
    pub(crate) fn words_of(&self, extent: u64, mut put: impl FnMut(u64, u64)) {
        let first = (extent * EXTENT_WORDS).max(SUPERBLOCK_WORDS);
        for segment in &self.segments {
            let end = ((extent + 1) * EXTENT_WORDS)
                .min(self.words)
                .min(segment.words);
            let cells = self.device.segment(segment.slot);
            for &at in segment.runs_of(extent as u32) {
                let at = at as usize;
                let (place, length) = record::place_of(cells[at].load(Ordering::Relaxed));
                let words = first.max(place)..end.min(place + length);
                for word in words {
                    let cell = &cells[at + 1 + (word - place) as usize];
                    put(word, cell.load(Ordering::Relaxed));
                }
            }
        }
    }

    /// Fills `contents` with an extent: `read` reads it from the pool's file, and the words follow that the file may lack. The segments are not
    /// used again meanwhile.
    pub(crate) fn complete<E>(
        &self,
        extent: u64,
        contents: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let is_in_file = lock(&self.is_in_file);
        read(contents)?;
        if !*is_in_file {
            let begin = extent * EXTENT_BYTES;
            self.words_of(extent, |at, value| patch(contents, begin, &[(at, value)]));
        }
        Ok(())
    }

    /// Notes that the pool's file has all words: nobody reads the segments from here on.
    pub(super) fn note_in_file(&self) {
        *lock(&self.is_in_file) = true;
    }

    /// Writes all words into the pool's file, but for those of superblocks.
    pub(super) fn apply(&self, applier: &mut Applier, data: &dyn DataFile) -> Result<()> {
        let length = data.length()?;
        for extent in self.extents() {
            self.words_of(extent, |at, value| applier.add_word((at, value)));
            applier.write(data, length)?;
        }
        Ok(())
    }
}

impl Scanned {
    /// Where the runs of an extent begin.
    fn runs_of(&self, extent: u32) -> &[u32] {
        let Ok(at) = self.extents.binary_search_by_key(&extent, |it| it.0) else {
            return &[];
        };
        let end = self.extents.get(at + 1);
        let end = end.map_or(self.runs.len(), |it| it.1 as usize);
        &self.runs[self.extents[at].1 as usize..end]
    }

    /// Reads a segment up to the first place where there is no whole record.
    fn read(device: &dyn LogDevice, wanted: &Wanted) -> Self {
        let segment = device.segment(wanted.slot);
        let until = wanted.until.unwrap_or(SEGMENT_WORDS);
        let (mut runs, mut superblocks) = (Vec::new(), Vec::new());
        let (mut at, mut records) = (HEADER_WORDS, 0);
        let mut buffer = Vec::new();
        while at < until {
            let read = record::read(&wanted.identity, segment, wanted.ordinal, at, &mut buffer);
            let Some((record, words)) = read else { break };
            if let Record::Batch = record {
                records += 1;
                note_runs(
                    at + words - buffer.len(),
                    &buffer,
                    &mut runs,
                    &mut superblocks,
                );
            }
            at += words;
        }
        if at + 1 == SEGMENT_WORDS {
            // One word is too little for a record.
            at += 1;
        }
        let (extents, runs) = by_extent(&runs);
        Self {
            slot: wanted.slot,
            words: wanted.words,
            records,
            superblocks,
            extents,
            runs,
            end: at,
        }
    }
}

/// Notes the runs of a batch whose payload begins at word `at` of its segment: the extent of each, and where it begins.
fn note_runs(
    mut at: usize,
    payload: &[u64],
    runs: &mut Vec<(u32, u32)>,
    superblocks: &mut Vec<Word>,
) {
    for (place, words) in record::runs(payload) {
        if place < SUPERBLOCK_WORDS {
            let all = (place..).zip(words.iter().copied());
            superblocks.extend(all.take_while(|word| word.0 < SUPERBLOCK_WORDS));
        }
        // A run may go on in the next extent.
        let last = (place + words.len() as u64 - 1) / EXTENT_WORDS;
        for extent in place / EXTENT_WORDS..=last.min(MAX_EXTENTS) {
            runs.push((extent as u32, at as u32));
        }
        at += 1 + words.len();
    }
}

/// Sorts runs by extent; those of an extent stay in order. Returns the extents with the first run of each, and the runs.
fn by_extent(runs: &[(u32, u32)]) -> (Vec<(u32, u32)>, Vec<u32>) {
    let most = runs.iter().map(|run| run.0 as usize + 1).max().unwrap_or(0);
    // First the number of each extent's runs, then where its next run goes.
    let mut next = vec![0_u32; most];
    for &(extent, _) in runs {
        next[extent as usize] += 1;
    }
    let (mut extents, mut begin) = (Vec::new(), 0);
    for (extent, next) in next.iter_mut().enumerate() {
        let count = std::mem::replace(next, begin);
        if count > 0 {
            extents.push((extent as u32, begin));
            begin += count;
        }
    }
    let mut sorted = vec![0; runs.len()];
    for &(extent, at) in runs {
        let next = &mut next[extent as usize];
        sorted[*next as usize] = at;
        *next += 1;
    }
    (extents, sorted)
}

/// Reads all of these segments, by several threads if there are many.
fn scan_all(device: &dyn LogDevice, wanted: &[Wanted]) -> Vec<Scanned> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.min(wanted.len() / SEGMENTS_PER_READER).min(READERS);
    let next = AtomicUsize::new(0);
    let scanned: Vec<OnceLock<Scanned>> = wanted.iter().map(|_| OnceLock::new()).collect();
    in_parallel(threads.saturating_sub(1), || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(wanted) = wanted.get(at) else { return };
            let _ = scanned[at].set(Scanned::read(device, wanted));
        }
    });
    let scanned = scanned.into_iter().map(OnceLock::into_inner);
    scanned
        .map(|it| it.expect("each segment was taken by a thread, and all have ended"))
        .collect()
}

/// The word of the segment `ordinal` at a position, or its end.
fn word_in(position: u64, ordinal: u64) -> usize {
    let bytes = position.saturating_sub(ordinal * SEGMENT_BYTES);
    ((bytes / 8) as usize).min(SEGMENT_WORDS)
}
