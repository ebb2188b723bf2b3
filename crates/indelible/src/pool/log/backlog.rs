//! Records of sessions that a crash has ended, from the open after the crash to the moment when they are in the pool's file.
//!
//! An open does not wait until they are there. It reads the log once, to find where the log ends and which extents there are words
//! for. The words get into the image extent by extent, at the latest when the extent is first touched (see `pool::mapping::late`), and the
//! applier writes them into the file behind the scenes. Meanwhile the new session has records of its own, in other segments.
//!
//! | step | what counts after a crash behind it |
//! |---|---|
//! | 1. read the log, and make it durable | the sessions as before |
//! | 2. write a superblock with a new generation, which names the session before it | the sessions as before: the new one has no segment |
//! | 3. write a header of the new session, which says where the one before it ends | both, the new one last |
//! | 4. write the words of the backlog into the file, in any order | both: words that are written again do no harm |
//! | 5. sync the file | the same |
//! | 6. use the backlog's segments for new headers | the new session, and what is left of the others: all of it is in the file already |
//!
//! Words of superblocks count only if the last session has written them: when a session begins, both superblocks in the file are its own.

use super::Bug;
use super::apply::{Applier, SUPERBLOCK_WORDS, patch};
use super::device::{DataFile, LogDevice, Place};
use super::footer::{self, EXTENT_WORDS, Footer, Index};
use super::held::Held;
use super::progress::{DAMAGED, Progress};
use super::record::{self, HEADER_WORDS, Identity, Record, SEGMENT_BYTES, SEGMENT_WORDS, word_in};
use super::recover::{Last, Part, Recovered, Sessions};
use crate::concurrency::parallel::in_parallel;
use crate::concurrency::sync::lock;
use crate::pmem::journal::Word;
use crate::pmem::planted::planted;
use crate::pool::files::LockedFile;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

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
    /// Words of the payloads of all records.
    payload: u64,
    /// Where the records of the first segment begin.
    pub(super) begin: u64,
    /// The last session with records, and where its log ends.
    pub(super) end: Option<(u64, u64)>,
    pub(super) next_ordinal: u64,
    /// The pool's file has all words, and the segments may be used again.
    is_in_file: Mutex<bool>,
    /// Where segments may have words that are not on the disk yet, until they are.
    doubtful: Mutex<Option<Vec<Place>>>,
    held: Held,
    /// A record that is not whole was to be put into the image.
    damage: OnceLock<String>,
    /// That of the session that continues this one.
    progress: Arc<Progress>,
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

/// What is known of a segment.
struct Scanned {
    identity: Identity,
    ordinal: u64,
    slot: usize,
    /// Words of the pool that count.
    words: u64,
    records: u64,
    /// Words of the payloads of all records.
    payload: u64,
    index: Index,
    /// The word behind the last whole record.
    end: usize,
}

impl Backlog {
    /// Reads all records of these sessions.
    pub(super) fn read(
        device: Box<dyn LogDevice>,
        sessions: &mut Sessions,
        last: &Last,
        trust: Trust,
    ) -> Result<Self> {
        let mut this = Self {
            device,
            segments: Vec::new(),
            slots: Vec::new(),
            superblocks: Vec::new(),
            words: u64::MAX,
            recovered: Recovered::default(),
            payload: 0,
            begin: 0,
            end: None,
            next_ordinal: sessions.next_ordinal,
            is_in_file: Mutex::new(false),
            doubtful: Mutex::default(),
            held: Held::here(),
            damage: OnceLock::new(),
            progress: Arc::default(),
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
        let scanned = scan_all(&*this.device, &wanted, trust);
        if let Some(newest) = sessions.parts.last_mut() {
            let of_newest = wanted.iter().zip(&scanned);
            let known = of_newest
                .filter(|(wanted, (_, has_footer))| {
                    wanted.identity == newest.identity && *has_footer
                })
                .map(|(wanted, _)| (wanted.ordinal + 1) * SEGMENT_BYTES);
            newest.durable = known.fold(newest.durable, u64::max);
        }
        let mut ended = None;
        for (wanted, (scanned, _)) in wanted.iter().zip(scanned) {
            let generation = wanted.identity.generation;
            if ended == Some(generation) {
                continue;
            }
            if scanned.end < SEGMENT_WORDS {
                ended = Some(generation);
            }
            this.add(wanted, scanned, last)?;
        }
        this.expect_durable(sessions)?;
        let newest = sessions.parts.last();
        this.doubtful = Mutex::new(newest.map(|part| this.doubtful_of(part)));
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

    /// Where words may not be on the disk yet: from the place up to which the log was, to its end, and the headers from there on, also those of segments
    /// without records. (If a header could not be synced, the session that wrote it has never used the segment. But it is found by it, and named as
    /// the earlier one by the next.)
    fn doubtful_of(&self, newest: &Part) -> Vec<Place> {
        let generation = newest.identity.generation;
        let end = self.end.filter(|end| end.0 == generation);
        let (from, to) = (newest.durable, end.map_or(0, |end| end.1));
        let segments = newest.segments.range(from / SEGMENT_BYTES..);
        let places = segments.flat_map(|(&ordinal, &slot)| {
            let from = word_in(from, ordinal).max(HEADER_WORDS);
            [(slot, 0..1), (slot, from..word_in(to, ordinal))]
        });
        places.filter(|(_, words)| !words.is_empty()).collect()
    }

    fn add(&mut self, wanted: &Wanted, scanned: Scanned, last: &Last) -> Result<()> {
        if wanted.until.is_some_and(|until| scanned.end < until) {
            return Err(Error::Damaged(format!(
                "the log of session {} has no whole record at word {} of its segment {}, and went on there",
                wanted.identity.generation, scanned.end, wanted.ordinal
            )));
        }
        let begin = wanted.ordinal * SEGMENT_BYTES;
        if self.segments.is_empty() {
            self.begin = begin + HEADER_WORDS as u64 * 8;
        }
        let end = begin + scanned.end as u64 * 8;
        self.end = Some((wanted.identity.generation, end));
        self.recovered.records += scanned.records;
        self.recovered.bytes += (scanned.end - HEADER_WORDS) as u64 * 8;
        self.payload += scanned.payload;
        if wanted.identity == last.identity || planted(Bug::OldSuperblocksCount) {
            for extent in 0..SUPERBLOCK_WORDS.div_ceil(EXTENT_WORDS) {
                scanned.batches_of(&*self.device, extent, |payload| {
                    self.superblocks
                        .extend(footer::words_of_superblocks(payload));
                })?;
            }
        }
        self.segments.push(scanned);
        Ok(())
    }

    /// Makes all records durable. If the process has died and the machine has not, there are records that are not on the disk yet (I2). An earlier
    /// session was made durable before the next one began.
    pub(crate) fn make_durable(&self) -> Result<()> {
        let mut doubtful = lock(&self.doubtful);
        let Some(places) = &*doubtful else {
            return Ok(());
        };
        for place in places {
            self.device.touch(place)?;
        }
        if !planted(Bug::RecoveryAheadOfSync) {
            self.device.sync()?;
        }
        *doubtful = None;
        Ok(())
    }

    /// The lock on the log's file.
    pub(super) fn lock(&self) -> Option<Arc<LockedFile>> {
        self.device.lock()
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
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
        for &(at, word) in &self.superblocks {
            patch(bytes, 0, at, &[word]);
        }
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
        let all = self.segments.iter().flat_map(|it| it.index.extents());
        let limit = self.words.div_ceil(EXTENT_WORDS);
        all.filter(|&extent| extent < limit).collect()
    }

    /// Words of the payloads of all records.
    pub(crate) fn payload(&self) -> u64 {
        self.payload
    }

    /// Calls `put` with all words of an extent, as [`runs_in`](Self::runs_in) does.
    pub(crate) fn runs_of(&self, extent: u64, put: impl FnMut(u64, &[u64])) -> Result<()> {
        self.runs_in(extent * EXTENT_WORDS..(extent + 1) * EXTENT_WORDS, put)
    }

    /// Calls `put` with all words of these places, which are in one extent, in the order of the log: with words that follow one another, and where the
    /// first of them belongs in the pool. Returns an error where a record that is known from a footer is not whole.
    fn runs_in(&self, places: Range<u64>, mut put: impl FnMut(u64, &[u64])) -> Result<()> {
        let first = places.start.max(SUPERBLOCK_WORDS);
        for segment in &self.segments {
            let end = places.end.min(self.words).min(segment.words);
            let extent = places.start / EXTENT_WORDS;
            segment.batches_of(&*self.device, extent, |payload| {
                for (place, words) in record::runs(payload) {
                    let (from, to) = (first.max(place), end.min(place + words.len() as u64));
                    if from < to {
                        put(from, &words[(from - place) as usize..(to - place) as usize]);
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Fills `contents` with what the pool has from byte `begin` on, in one extent: `read` reads it from the pool's file, and the words follow that
    /// the file may lack. The segments are not used again meanwhile. If a record is not whole, the words before it are there, and what was read must not be believed
    /// ([`expect_whole`](Self::expect_whole)).
    pub(crate) fn complete<E>(
        &self,
        begin: u64,
        contents: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let is_in_file = lock(&self.is_in_file);
        read(contents)?;
        if !*is_in_file {
            let places = begin / 8..(begin + contents.len() as u64) / 8;
            let put = |at, words: &[u64]| patch(contents, begin, at, words);
            if let Err(error) = self.runs_in(places, put) {
                tracing::error!(%error, "the log is damaged");
                let what = match error {
                    Error::Damaged(what) => what,
                    error => error.to_string(),
                };
                let _ = self.damage.set(what);
                self.progress.note(DAMAGED);
            }
        }
        Ok(())
    }

    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// An error if a part of the image may be wrong, since the log is damaged. Whoever has read something asks afterwards.
    #[inline]
    pub(crate) fn expect_whole(&self) -> Result<()> {
        match self.damage.get() {
            None => Ok(()),
            Some(what) => Err(Error::Damaged(what.clone())),
        }
    }

    /// Notes that the pool's file has all words: nobody reads the segments from here on.
    pub(super) fn note_in_file(&self) {
        *lock(&self.is_in_file) = true;
    }

    /// Writes all words into the pool's file, but for those of superblocks.
    pub(super) fn apply(&self, applier: &mut Applier, data: &dyn DataFile) -> Result<()> {
        let length = data.length()?;
        for extent in self.extents() {
            self.runs_of(extent, |at, words| applier.add_run(at, words))?;
            applier.write(data, length)?;
        }
        Ok(())
    }
}

impl Scanned {
    /// Reads a segment up to the first place where there is no whole record.
    fn read(device: &dyn LogDevice, wanted: &Wanted) -> Self {
        let segment = device.segment(wanted.slot);
        let until = wanted.until.unwrap_or(SEGMENT_WORDS);
        let (mut pairs, mut buffer) = (Vec::new(), Vec::new());
        let (mut at, mut records, mut payload) = (HEADER_WORDS, 0, 0);
        while at < until {
            let read = record::read(&wanted.identity, segment, wanted.ordinal, at, &mut buffer);
            let Some((record, words)) = read else { break };
            if let Record::Batch = record {
                records += 1;
                payload += buffer.len() as u64;
                footer::note(at, &buffer, &mut pairs);
            }
            at += words;
        }
        if at + 1 == SEGMENT_WORDS {
            // One word is too little for a record.
            at += 1;
        }
        Self {
            identity: wanted.identity,
            ordinal: wanted.ordinal,
            slot: wanted.slot,
            words: wanted.words,
            records,
            payload,
            index: Index::of(pairs),
            end: at,
        }
    }

    /// What the segment's footer says, if it has one.
    fn of_footer(device: &dyn LogDevice, wanted: &Wanted) -> Option<Self> {
        if wanted.until.is_some_and(|until| until < SEGMENT_WORDS) {
            return None;
        }
        let segment = device.segment(wanted.slot);
        let footer = Footer::read(&wanted.identity, segment, wanted.ordinal)?;
        Some(Self {
            identity: wanted.identity,
            ordinal: wanted.ordinal,
            slot: wanted.slot,
            words: wanted.words,
            records: footer.records.into(),
            payload: footer.payload.into(),
            index: footer.index,
            end: SEGMENT_WORDS,
        })
    }

    /// Calls `take` with the payload of each record that has words for an extent, in order.
    fn batches_of(
        &self,
        device: &dyn LogDevice,
        extent: u64,
        mut take: impl FnMut(&[u64]),
    ) -> Result<()> {
        let segment = device.segment(self.slot);
        let mut buffer = Vec::new();
        for at in self.index.records_of(extent) {
            let read = if planted(Bug::FooterVouchesForRecords) {
                record::glance(segment, at, &mut buffer)
            } else {
                record::read(&self.identity, segment, self.ordinal, at, &mut buffer)
            };
            let Some((Record::Batch, _)) = read else {
                return Err(Error::Damaged(format!(
                    "the log of session {} has no whole record at word {at} of its segment {}, where it had one",
                    self.identity.generation, self.ordinal
                )));
            };
            take(&buffer);
        }
        Ok(())
    }
}

/// Whether footers are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    Footers,
    /// Every record is read.
    Records,
}

/// What is in these segments, and whether they have footers. Segments without one are read record by record, by several threads if there are many.
fn scan_all(device: &dyn LogDevice, wanted: &[Wanted], trust: Trust) -> Vec<(Scanned, bool)> {
    let footers = wanted.iter().map(|it| Scanned::of_footer(device, it));
    let footers: Vec<Option<Scanned>> = footers.collect();
    let is_unknown = |footer: &Option<Scanned>| trust == Trust::Records || footer.is_none();
    let unknown: Vec<&Wanted> = wanted
        .iter()
        .zip(&footers)
        .filter_map(|(wanted, footer)| is_unknown(footer).then_some(wanted))
        .collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = threads
        .min(unknown.len() / SEGMENTS_PER_READER)
        .min(READERS);
    let next = AtomicUsize::new(0);
    let scanned: Vec<OnceLock<Scanned>> = unknown.iter().map(|_| OnceLock::new()).collect();
    in_parallel(threads.saturating_sub(1), || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(wanted) = unknown.get(at) else {
                return;
            };
            let _ = scanned[at].set(Scanned::read(device, wanted));
        }
    });
    let mut scanned = scanned.into_iter().map(|it| {
        it.into_inner()
            .expect("each segment was taken by a thread, and all have ended")
    });
    let mut known = |footer: Option<Scanned>| {
        let has_footer = footer.is_some();
        let read = if is_unknown(&footer) {
            scanned.next()
        } else {
            footer
        };
        (read.expect("as many as are unknown were read"), has_footer)
    };
    footers.into_iter().map(&mut known).collect()
}
