//! The log of a pool on a disk: what makes an ordinary file survive a power cut.
//!
//! # Overview
//!
//! Operations work on an *image* of the pool in memory, which is a private mapping of the pool's file: what is stored there never
//! reaches the file by itself. What a thread stores it appends to the *log* as one record per fence, before it gives its locks
//! back (see `pmem::journal`). The log is a file of its own, `PATH.log`. When the log is on the disk as far as the operation's last record,
//! the operation is durable. The *applier* writes the words of durable records into the pool's file, and when they are on the disk,
//! the part of the log that had them is used again.
//!
//! | file | what it owns |
//! |---|---|
//! | this one | appending, failure |
//! | `group` | waiting for the disk: group commit |
//! | `record` | the bytes of segments and records |
//! | `footer` | what is in a full segment, in short, at its end |
//! | `apply` | writing records into the pool's file: by the applier, after a crash, and for a backup |
//! | `recover` | after a crash: the sessions whose records count |
//! | `backlog` | their records, until they are in the pool's file |
//! | `beginning` | the session that begins while the pool is read already |
//! | `gate` | what operations wait for, and what readers may see |
//! | `device` | the two files |
//! | `held` | for tests: work behind the scenes that is held up |
//! | `simulate` | a disk that is cut off at any moment, for tests and the crash checker |
//!
//! # Invariants
//!
//! - I1. A record is appended before the locks are given back under which its words were stored, or the block in which they lie. So records that write one word are
//!   in the log in the order of the stores, and every prefix of the log is a state that persistent memory could have after a crash.
//! - I2. The pool's file gets only words of durable records (`applied <= durable <= appended`). So whatever prefix of the log a crash
//!   leaves, it reaches at least as far as what is in the file.
//! - I3. A segment gets records only after its header is on the disk; headers are written one at a time, in the order of their ordinals,
//!   over the oldest segment that is free. So the segments of a session that a crash leaves have consecutive ordinals.
//! - I4. A segment is free once all of its records are applied and the pool's file is synced. To apply records again that have been
//!   applied does no harm, if all that follow them are applied too.
//! - I5. Every sync ends at a sector's end: padding fills the rest. What has been acknowledged is never written again, so that
//!   a write that the power cut tears cannot damage it.
//! - I6. If a sync or a write fails, the pool takes no more writes. A failed sync is not repeated: the kernel may have marked the pages
//!   as clean, and then a second sync succeeds without having written them. The failure is noted under the lock under which it happened, of
//!   `applier`, `preparing` or the group, and whoever gets that lock looks for it: a thread that had waited for the lock found the log sound
//!   before. Where the header of a segment could not be written, the next one over the segment behind would leave a gap (I3).
//! - I7. A segment gets its footer when all of its records are on the disk, in sectors that have nothing else. So a footer that is whole says
//!   that the log was on the disk up to the segment's end.
//! - I8. After a crash nothing is written, neither into the log nor into the pool's file, before the records that count are on the disk, and
//!   no operation that writes returns before the new session has begun.

mod apply;
mod background;
mod backlog;
mod beginning;
#[cfg(all(test, not(loom)))]
#[path = "../../../tests/shared/death.rs"]
mod death;
mod device;
mod footer;
mod gate;
mod group;
mod held;
#[cfg(all(test, not(loom)))]
mod late_tests;
mod progress;
mod record;
mod recover;
#[cfg(any(all(test, not(loom)), feature = "trace"))]
pub(crate) mod simulate;
#[cfg(all(test, not(loom)))]
mod tests;

pub(crate) use background::Threads;
pub(crate) use backlog::Backlog;
pub(crate) use beginning::Beginning;
pub(crate) use device::{LogFile, Way, expect_no_log, log_path};
pub(crate) use gate::{Gate, OneWait};
pub(crate) use record::Identity;
pub(crate) use recover::{Last, Recovered, verify};

use crate::concurrency::sync::lock;
use crate::pmem::geometry::sized_in_tests;
use crate::pmem::journal::{Sink, Word};
use crate::pmem::planted::planted;
use crate::pool::files::io_error;
use crate::pool::system;
use crate::{Error, Result};
use device::{DataFile, LogDevice, Place, PlainFile, put};
use held::Held;
use progress::{LOST, Progress};
use record::{
    Encoded, HEADER_WORDS, RECORD_WORDS, SECTOR_WORDS, SEGMENT_BYTES, SEGMENT_WORDS, Session,
    word_in,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::Thread;

crate::pmem::planted::bugs! { "log":
    /// An operation returns before its records are durable.
    NoWait,
    /// Readers see what is not durable.
    ReadersDoNotWait,
    /// A change that another thread may have completed waits for the records of its own thread alone.
    HelpedWaitsForOwn,
    /// The applier writes records into the pool's file that are not durable.
    ApplierAheadOfSync,
    /// A segment is used again before the pool's file is synced.
    FreedBeforeSync,
    /// Checksums depend neither on the generation nor on the position.
    ChecksumNotSeeded,
    /// Records are taken for whole whatever their checksum.
    ChecksumIgnored,
    /// A segment gets records before its header is durable.
    HeaderNotSynced,
    /// After a crash, records are applied before the log is synced.
    RecoveryAheadOfSync,
    /// What a sync acknowledges shares a sector with what is appended next.
    NoPadding,
    /// A failed sync counts as one that succeeded.
    SyncErrorIgnored,
    /// A thread that waited for a lock while the log failed goes on as if it had not.
    WentOnAfterFailure,
    /// After a crash, a session that the last one continues is not looked for.
    EarlierSessionForgotten,
    /// Words of superblocks count, whichever session has written them.
    OldSuperblocksCount,
    /// Words count that lie behind the end of the pool.
    BacklogNotCut,
    /// A session begins to use the segments of an earlier one before their records are applied.
    BacklogOverwritten,
    /// Checksums of footers depend neither on the generation nor on the position.
    FooterNotSeeded,
    /// Footers are believed whatever their checksum.
    FooterChecksumIgnored,
    /// A segment gets its footer before its records are durable.
    FooterAheadOfSync,
    /// A footer lacks the last record of its segment.
    FooterForgetsRecord,
    /// What records say is believed for the sake of a footer, without their checksums.
    FooterVouchesForRecords,
    /// What was stored before a late session had begun is forgotten.
    KeptForgotten,
    /// The applier does not know of the second copy of the superblock.
    SecondSuperblockNotNoted,
    /// Segments that are missing before the oldest one that is there are not missed.
    OldestNotMissed,
    /// A segment whose header is torn is not looked for.
    TornHeaderForgotten,
}

/// The log of an open pool.
pub(crate) struct Log {
    session: Session,
    /// Position of the first record.
    begin: u64,
    device: Box<dyn LogDevice>,
    data: Box<dyn DataFile>,
    appender: Mutex<Appender>,
    progress: Arc<Progress>,
    /// Position up to which records are in the pool's file, on the disk.
    applied: AtomicU64,
    /// Where threads wait for a sync.
    group: group::Group,
    /// Held while records are applied, and by a backup.
    applier: Mutex<apply::Applier>,
    failure: OnceLock<String>,
    /// Words of all batches so far, and of those that were applied.
    payload: AtomicU64,
    applied_payload: AtomicU64,
    /// Bytes that are not applied, beyond which operations are delayed.
    throttled_from: u64,
    /// Where threads wait for a segment, with the lock of `appender`.
    room: Condvar,
    /// Held while a segment is prepared: their headers are written in the order of their ordinals (I3). And while one gets its footer.
    preparing: Mutex<()>,
    /// The ordinal of the next segment that gets a footer, once it is full and durable.
    next_footer: AtomicU64,
    /// The threads that keep segments prepared and apply records, if there are any.
    tenders: Mutex<Vec<Thread>>,
    /// Whether a test holds up what goes on behind the scenes.
    held: Held,
}

/// Where the next record goes.
struct Appender {
    /// Segments from the oldest that is not free to the one that is written now: ordinal and slot.
    used: VecDeque<(u64, usize)>,
    /// Slots whose headers are on the disk, for the ordinals that come next.
    prepared: VecDeque<usize>,
    /// Slots that earlier sessions have left and that are not prepared yet.
    unprepared: VecDeque<usize>,
    /// The word in the last segment where the next record goes.
    at: usize,
    /// What the footer of the last segment will have, at most about: for each batch, the extents that it has words for.
    entries: usize,
}

impl Appender {
    /// The segment that is written now.
    fn current(&self) -> (u64, usize) {
        *self
            .used
            .back()
            .expect("invariant: a log always has a segment that is written")
    }

    /// The ordinal of the segment that is to be prepared next. Segments that are taken into use meanwhile change nothing in it.
    fn next_ordinal(&self) -> u64 {
        self.current().0 + self.prepared.len() as u64 + 1
    }

    fn position(&self) -> u64 {
        self.current().0 * SEGMENT_BYTES + self.at as u64 * 8
    }
}

/// Segments that a log has at least.
pub(crate) const LEAST_SEGMENTS: usize = 4;
/// Segments that a log may have beyond what was asked for, one for each session that has ended by a crash before the records of earlier ones were applied. A session
/// that finds so many applies these records before it begins.
const SURPLUS_SEGMENTS: usize = sized_in_tests(4, 0);
/// Segments that a log has at most, unless an earlier session has left more: 64 GiB, with a place in memory for each.
const MOST_SEGMENTS: usize = 1 << 16;

thread_local! {
    static ENCODED: RefCell<Encoded> = RefCell::new(Encoded::default());
}

/// The segments that a backlog still needs.
fn taken_by(backlog: Option<&Backlog>) -> &[usize] {
    match backlog {
        Some(backlog) if !planted(Bug::BacklogOverwritten) => backlog.slots(),
        _ => &[],
    }
}

impl Log {
    /// Begins a log of a new session on `device`. Of what it has, only the records of `backlog` are still needed. The superblock that has the
    /// session's generation is on the disk already. The pool has `words` words.
    fn begin(
        identity: Identity,
        words: u64,
        device: Box<dyn LogDevice>,
        data: Box<dyn DataFile>,
        backlog: Option<Arc<Backlog>>,
    ) -> Result<Self> {
        // If the backlog is applied now, its segments are used again, the oldest first. As long as the first header of the new session is not whole, what is
        // left of the backlog counts: where that header is torn, the segment has lost its old header only, and is found (`recover`).
        let left = taken_by(backlog.as_deref()).to_vec();
        let progress = backlog
            .as_ref()
            .map_or_else(Arc::default, |it| Arc::clone(it.progress()));
        let backlog = Self::make_space(&*device, &*data, backlog)?;
        let taken = taken_by(backlog.as_deref());
        let unprepared = (0..device.segments())
            .filter(|slot| !left.contains(slot))
            .chain(left.iter().copied().filter(|slot| !taken.contains(slot)))
            .collect();
        let mut applier = apply::Applier::new(&*data)?;
        let first = backlog.as_ref().map_or(0, |it| it.next_ordinal);
        let begin = first * SEGMENT_BYTES + HEADER_WORDS as u64 * 8;
        progress.begin(begin);
        let applied = backlog.as_ref().map_or(begin, |it| it.begin);
        let session = Session {
            identity,
            first,
            words,
            earlier: backlog.as_ref().and_then(|it| it.end),
        };
        let held = backlog
            .as_ref()
            .map_or_else(Held::default, |it| it.held().clone());
        applier.backlog = backlog;
        let log = Self {
            session,
            begin,
            data,
            appender: Mutex::new(Appender {
                used: VecDeque::new(),
                prepared: VecDeque::new(),
                unprepared,
                at: HEADER_WORDS,
                entries: 0,
            }),
            progress,
            applied: AtomicU64::new(applied),
            group: group::Group::default(),
            applier: Mutex::new(applier),
            failure: OnceLock::new(),
            payload: AtomicU64::new(0),
            applied_payload: AtomicU64::new(0),
            throttled_from: Self::throttled_from(device.most_segments()),
            room: Condvar::new(),
            preparing: Mutex::new(()),
            next_footer: AtomicU64::new(first),
            tenders: Mutex::new(Vec::new()),
            held,
            device,
        };
        // The others are prepared by a thread of their own. Each takes a sync, and an open does not wait for more than one.
        log.prepare_left(first)?;
        let mut appender = lock(&log.appender);
        let slot = appender
            .prepared
            .pop_front()
            .expect("invariant: a log has segments");
        appender.used.push_back((first, slot));
        drop(appender);
        Ok(log)
    }

    /// Makes the log as long as so many segments; `false` if it cannot be made so long.
    fn lengthen(device: &dyn LogDevice, segments: usize) -> Result<bool> {
        while device.segments() < segments {
            if !device.add_segment()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes sure that there are as many segments as a log needs without a backlog.
    fn make_least(device: &dyn LogDevice) -> Result<()> {
        if Self::lengthen(device, LEAST_SEGMENTS)? {
            return Ok(());
        }
        let bytes = LEAST_SEGMENTS as u64 * SEGMENT_BYTES;
        Err(Error::NoSpace(format!(
            "the log beside the pool needs {bytes} bytes"
        )))
    }

    /// Makes sure that a session can begin in this file, of a pool that was closed. Otherwise nothing is left of the file.
    pub(crate) fn reserve(file: &LogFile) -> Result<()> {
        Self::make_least(file).inspect_err(|_| file.remove())
    }

    /// Makes sure that there are enough segments, and one beside those of the backlog. If the log cannot be made longer, the backlog is
    /// applied now, and none is left.
    fn make_space(
        device: &dyn LogDevice,
        data: &dyn DataFile,
        backlog: Option<Arc<Backlog>>,
    ) -> Result<Option<Arc<Backlog>>> {
        if let Some(backlog) = backlog {
            let taken = taken_by(Some(&backlog)).len();
            if Self::lengthen(device, LEAST_SEGMENTS.max(taken + 1))? {
                return Ok(Some(backlog));
            }
            backlog.apply_into(data)?;
            // Its segments are used again at once, and there may be extents that nobody has read yet.
            backlog.note_in_file();
        }
        Self::make_least(device)?;
        Ok(None)
    }

    /// Opens the file at `path` for the log of this session, or creates it. What it has must be from earlier sessions of the pool, before that with the generation
    /// `later`. Those of `backlog` are not free yet. Whoever may use the pool's file, `data`, may use the log.
    pub(crate) fn open_file(
        path: &Path,
        data: &File,
        (identity, later): (&Identity, u64),
        bytes: u64,
        backlog: Option<&Backlog>,
        way: Way,
    ) -> Result<LogFile> {
        let taken = backlog.map_or(0, |it| it.slots().len());
        let held = backlog.and_then(Backlog::lock);
        let wanted = ((bytes / SEGMENT_BYTES) as usize).clamp(LEAST_SEGMENTS, MOST_SEGMENTS);
        let most = wanted.max((taken + 1).min(wanted + SURPLUS_SEGMENTS));
        let stat = system::fstat(data).map_err(|errno| io_error("look at", path, errno))?;
        let mode = stat.st_mode & 0o666;
        // With records of an earlier session it is there, or nobody could read these any more.
        let create = backlog.is_none().then_some(mode);
        let file = LogFile::open(path.to_owned(), most, create, way, held)?;
        file.expect_own(identity, later)?;
        file.take_own_blocks()?;
        file.sync_name()?;
        Ok(file)
    }

    /// Begins a log in that file for the pool in `data`, which is at `path`.
    pub(crate) fn begin_in(
        identity: Identity,
        words: u64,
        file: LogFile,
        data: &File,
        path: &Path,
        backlog: Option<Arc<Backlog>>,
    ) -> Result<Self> {
        let data = PlainFile::reopened(data, path)?;
        Self::begin(identity, words, Box::new(file), Box::new(data), backlog)
    }

    /// Writes the second copy of the superblock into the pool's file: the session has its first segment, and no records yet.
    pub(in crate::pool) fn write_superblock(&self, (at, bytes): &(u64, Vec<u8>)) -> Result<()> {
        self.data.write_for_good(bytes, *at)?;
        if !planted(Bug::SecondSuperblockNotNoted) {
            lock(&self.applier).note_in_file(*at, bytes);
        }
        Ok(())
    }

    /// Removes the file of the log, of a pool that is clean. A hint: a log that stays is not looked at.
    pub(crate) fn remove_file(&self) {
        self.device.remove();
    }

    /// Writes the header of a free segment, and offers it for records when the header is on the disk (I3). With `preparing` locked.
    fn prepare(&self, ordinal: u64, slot: usize) -> Result<()> {
        self.expect_still_sound()?;
        let written = self.write_header(ordinal, slot);
        self.fail(written)?;
        lock(&self.appender).prepared.push_back(slot);
        self.room.notify_all();
        Ok(())
    }

    fn write_header(&self, ordinal: u64, slot: usize) -> Result<()> {
        let header = self.session.header(ordinal, self.durable(), self.applied());
        put(self.device.segment(slot), 0, &header);
        let place = (slot, 0..header.len());
        self.device.write_out(&place)?;
        if !planted(Bug::HeaderNotSynced) {
            self.device.sync_beside(&place)?;
        }
        Ok(())
    }

    /// Prepares a segment that an earlier session has left, if there is one.
    fn prepare_left(&self, ordinal: u64) -> Result<bool> {
        let Some(slot) = lock(&self.appender).unprepared.pop_front() else {
            return Ok(false);
        };
        self.prepare(ordinal, slot)?;
        Ok(true)
    }

    pub(crate) fn appended(&self) -> u64 {
        self.progress.appended()
    }

    pub(crate) fn durable(&self) -> u64 {
        self.progress.durable()
    }

    /// An error if the log has failed.
    pub(crate) fn expect_sound(&self) -> Result<()> {
        match self.failure.get() {
            None => Ok(()),
            Some(why) => Err(Error::LogFailed(why.clone())),
        }
    }

    /// An error if the log has failed: for a thread that has waited for the lock of the applier or of `preparing`. The thread that had the
    /// lock before may have left something undone, such as the header of a segment or a superblock (I6).
    fn expect_still_sound(&self) -> Result<()> {
        if planted(Bug::WentOnAfterFailure) {
            return Ok(());
        }
        self.expect_sound()
    }

    /// From here on the pool takes no writes (I6).
    fn fail<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            let _ = self.failure.set(error.to_string());
            // Nobody shall wait for a sync that will not come.
            self.group.wake_all();
        }
        result
    }

    /// Appends an encoded batch.
    fn append_encoded(&self, encoded: &mut Encoded) -> Result<u64> {
        loop {
            self.expect_sound()?;
            let mut appender = lock(&self.appender);
            let length = encoded.words().len();
            if appender.at + length > appender.limit() && !self.next_segment(&mut appender) {
                // The log is full. Whoever holds locks meanwhile does not keep the applier waiting, which takes none.
                drop(appender);
                self.make_room()?;
                continue;
            }
            encoded.seal(&self.session.identity, appender.position());
            let segment = self.device.segment(appender.current().1);
            let at = appender.at;
            // The words before the head, so that a killed process leaves no head without its payload.
            let (head, payload) = encoded.words().split_at(RECORD_WORDS);
            put(segment, at + RECORD_WORDS, payload);
            put(segment, at, head);
            appender.at += length;
            appender.entries += encoded.extents();
            // Only this thread writes it now.
            let payload = self.payload.load(Ordering::Relaxed) + length as u64;
            self.payload.store(payload, Ordering::Relaxed);
            let end = appender.position();
            self.progress.append(end);
            return Ok(end);
        }
    }

    /// Goes on in the next segment, if one is prepared.
    fn next_segment(&self, appender: &mut Appender) -> bool {
        let Some(slot) = appender.prepared.pop_front() else {
            return false;
        };
        // Without padding, a reader could not tell a segment that is full from one whose last record was torn.
        self.fill(appender, SEGMENT_WORDS - appender.at);
        let (ordinal, _) = appender.current();
        appender.used.push_back((ordinal + 1, slot));
        appender.at = HEADER_WORDS;
        appender.entries = 0;
        lock(&self.tenders).iter().for_each(Thread::unpark);
        true
    }

    /// Writes padding of this many words. A single word that is left at the end of a segment stays as it is.
    fn fill(&self, appender: &mut Appender, words: usize) {
        if words >= RECORD_WORDS {
            let record = record::padding(&self.session.identity, words, appender.position());
            let segment = self.device.segment(appender.current().1);
            put(segment, appender.at, &record);
        }
        appender.at += words;
    }

    /// Fills the sector that the next record would begin in (I5). Returns where the log ends now.
    fn pad(&self) -> u64 {
        let mut appender = lock(&self.appender);
        let mut rest = appender.at.next_multiple_of(SECTOR_WORDS) - appender.at;
        if rest == 1 && appender.at + 1 < SEGMENT_WORDS {
            // A single word is too little for padding.
            rest += SECTOR_WORDS;
        }
        if rest > 0 && !planted(Bug::NoPadding) {
            self.fill(&mut appender, rest);
        }
        let end = appender.position();
        self.progress.append(end);
        end
    }

    /// Waits until everything that has been appended is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.wait_for(self.appended())?;
        self.expect_sound()
    }

    /// The words of the log between two positions.
    fn places(&self, from: u64, to: u64) -> Vec<Place> {
        let used = self.used_segments().into_iter();
        let places = used.map(|(ordinal, slot)| {
            let from = word_in(from, ordinal).max(HEADER_WORDS);
            (slot, from..word_in(to, ordinal))
        });
        places.filter(|(_, words)| !words.is_empty()).collect()
    }

    /// Brings the log to the disk up to `end`. One thread at a time.
    fn sync_until(&self, end: u64) -> Result<()> {
        let places = self.places(self.durable(), end);
        let mut all = places.iter();
        let written = all.try_for_each(|place| self.device.write_out(place));
        self.fail(written)?;
        match self.device.sync_words(&places) {
            Err(error) if !planted(Bug::SyncErrorIgnored) => return self.fail(Err(error)),
            _ => {}
        }
        let before = self.progress.advance(end);
        if before / SEGMENT_BYTES < end / SEGMENT_BYTES {
            // A segment may get its footer.
            lock(&self.tenders).iter().for_each(Thread::unpark);
        }
        Ok(())
    }
}

impl Sink for Log {
    fn append(&self, words: &[Word]) -> u64 {
        let append = |encoded: &mut Encoded| {
            encoded.set(words);
            let appended = self.append_encoded(encoded);
            self.fail(appended).unwrap_or_else(|_| {
                // Every operation that writes says so from here on. Before the locks are given back, readers learn that not all is durable what they may see.
                self.progress.note(LOST);
                u64::MAX
            })
        };
        ENCODED
            .try_with(|encoded| append(&mut encoded.borrow_mut()))
            // The thread is ending.
            .unwrap_or_else(|_| append(&mut Encoded::default()))
    }
}
