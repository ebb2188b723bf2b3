//! After a crash: the sessions whose records count, and what is done with them.
//!
//! The superblock in the pool's file says which session was the last one. Of the segments that have its generation in their headers,
//! those count that lead to the highest ordinal; there is no gap among them (I3). Records are read from the first of them to the first place
//! where there is no whole record: that is where the log ends, whatever may follow.
//!
//! Segments that are used again are the oldest, and each header says up to where records were in the pool's file when it was written. So the oldest
//! segment that is there tells whether one before it is missing. One may be there whose header has been torn, by the power cut that came while it was to
//! be used again: its records tell which one it is. It counts, as if it had its old header.
//!
//! That session may have begun while records of an earlier one were not in the file yet (see `backlog`). Then its headers say which
//! session it continues, and where the log of that one ends. If the session's first segment is still there, so may be segments of the
//! earlier session, and these come before it; otherwise all that came before is in the file. If a crash came before the
//! session had a segment, the superblock names the earlier session.

use super::apply::{Applier, Reader};
use super::backlog::{Backlog, Trust};
use super::device::{DataFile, LogDevice, LogFile, PlainFile, Way};
use super::footer::Footer;
use super::record::{self, HEADER_WORDS, Header, Identity, SEGMENT_BYTES, Session};
use super::{Bug, LEAST_SEGMENTS, Log};
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::pool::layout::SUPERBLOCK_BYTES;
use crate::pool::superblock::Superblock;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// What was found in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Whole records of the sessions that count.
    pub(crate) records: u64,
    /// Bytes of the log from the first of them to the end of the last.
    pub(crate) bytes: u64,
}

/// What the superblock says of the last session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    pub(crate) identity: Identity,
    /// The generation of the session that it continues; 0 if there is none.
    pub(crate) earlier: u64,
    /// The session has got its first segment.
    pub(crate) has_begun: bool,
}

impl Last {
    /// What a superblock says that was read from these bytes.
    pub(in crate::pool) fn of(superblock: &Superblock, first_bytes: &[u8]) -> Self {
        Self {
            identity: Identity::of(superblock),
            earlier: superblock.earlier,
            has_begun: superblock.is_session_of_both(first_bytes),
        }
    }
}

impl Identity {
    pub(in crate::pool) fn of(superblock: &Superblock) -> Self {
        Self {
            uuid: superblock.uuid,
            generation: superblock.generation,
        }
    }
}

/// A session, as far as its records count.
pub(super) struct Part {
    pub(super) identity: Identity,
    /// Segments without a gap, by ordinal.
    pub(super) segments: BTreeMap<u64, usize>,
    /// Where its log ends, if the session that continues it says so.
    pub(super) end: Option<u64>,
    /// Words of the pool that count. What lay behind them was cut off before a later session began.
    pub(super) words: u64,
    /// Up to here the log was on the disk, for certain: as the last of its headers says, or the last of its footers.
    pub(super) durable: u64,
}

/// The sessions whose records count, oldest first.
pub(super) struct Sessions {
    pub(super) parts: Vec<Part>,
    /// An ordinal that no segment has had.
    pub(super) next_ordinal: u64,
}

impl Sessions {
    /// Finds them by the headers of the segments. An error if a segment is missing that must be there.
    pub(super) fn find(device: &dyn LogDevice, last: &Last) -> Result<Self> {
        if last.has_begun && device.segments() < LEAST_SEGMENTS {
            return Err(missing(last.identity.generation, "whole segments"));
        }
        let headers: Vec<(usize, Header)> = (0..device.segments())
            .filter_map(|slot| Some((slot, Header::read(device.segment(slot))?)))
            .filter(|(_, header)| header.session.identity.uuid == last.identity.uuid)
            .collect();
        let next_ordinal = headers.iter().map(|(_, header)| header.ordinal + 1).max();
        let mut parts: Vec<Part> = Vec::new();
        let mut words = u64::MAX;
        let mut applied = 0;
        let mut wanted = Some((last.identity.generation, None));
        while let Some((generation, end)) = wanted.take() {
            let search = PartSearch {
                device,
                headers: &headers,
                identity: Identity {
                    generation,
                    ..last.identity
                },
                end,
                words,
            };
            let Some((part, session)) = search.part(&mut applied)? else {
                if last.has_begun && generation == last.identity.generation {
                    return Err(missing(generation, "all of its segments"));
                }
                if parts.is_empty() && generation == last.identity.generation && last.earlier != 0 {
                    wanted = Some((last.earlier, None));
                }
                continue;
            };
            let oldest = part.segments.first_key_value();
            let is_first = |session: &Session| oldest.is_some_and(|it| *it.0 == session.first);
            if let Some(session) = session.filter(is_first) {
                words = words.min(session.words);
                // Generations grow: whatever a damaged header says, this ends.
                wanted = session
                    .earlier
                    .filter(|&(earlier, _)| earlier < generation)
                    .map(|(earlier, end)| (earlier, Some(end)));
            }
            parts.push(part);
            if planted(Bug::EarlierSessionForgotten) {
                break;
            }
        }
        if let Some(newest) = parts.first() {
            newest.expect_nothing_behind(device)?;
        }
        parts.reverse();
        Ok(Self {
            parts,
            next_ordinal: next_ordinal.unwrap_or(0),
        })
    }
}

impl Part {
    /// An error if the segment behind the last one has been used: then its header is lost, and what it has had been acknowledged.
    fn expect_nothing_behind(&self, device: &dyn LogDevice) -> Result<()> {
        let Some((&highest, &slot)) = self.segments.last_key_value() else {
            return Ok(());
        };
        // A segment gets its footer when the next one is in use.
        let has_footer = Footer::read(&self.identity, device.segment(slot), highest).is_some();
        if has_footer || without_header(device, &self.identity, highest + 1).is_some() {
            let what = format!("the segment behind {highest}");
            return Err(missing(self.identity.generation, &what));
        }
        Ok(())
    }
}

/// The log is damaged: it lacks this.
fn missing(generation: u64, what: &str) -> Error {
    Error::Damaged(format!(
        "the log of session {generation} lacks {what}; was it replaced, or cut off?"
    ))
}

/// The slot of a segment of this session and ordinal that has no header: the first of its records says which one it is.
fn without_header(device: &dyn LogDevice, identity: &Identity, ordinal: u64) -> Option<usize> {
    let mut buffer = Vec::new();
    (0..device.segments()).find(|&slot| {
        let segment = device.segment(slot);
        Header::read(segment).is_none()
            && record::read(identity, segment, ordinal, HEADER_WORDS, &mut buffer).is_some()
    })
}

/// What is known of a session whose segments are looked for.
struct PartSearch<'a> {
    device: &'a dyn LogDevice,
    /// All headers, with their slots.
    headers: &'a [(usize, Header)],
    identity: Identity,
    /// Where its log ends, if the session that continues it says so.
    end: Option<u64>,
    /// Words of the pool that count.
    words: u64,
}

impl PartSearch<'_> {
    /// The session's segments up to its end, without a gap, and what their headers say of it; `None` if the last one is not there any more. `applied` is
    /// up to where records are in the pool's file, as the headers of the sessions after it say, 0 if none does; those of this one are added.
    fn part(&self, applied: &mut u64) -> Result<Option<(Part, Option<Session>)>> {
        // An end that lies at the end of a segment belongs to that segment.
        let last = self.end.map(|end| (end - 1) / SEGMENT_BYTES);
        let of_session = || {
            let headers = self.headers.iter();
            headers.filter(|(_, header)| header.session.identity == self.identity)
        };
        let session = of_session().next().map(|(_, header)| header.session);
        *applied = of_session().fold(*applied, |most, (_, header)| most.max(header.applied));
        let mut segments: BTreeMap<u64, usize> = of_session()
            .filter(|(_, header)| last.is_none_or(|last| header.ordinal <= last))
            .map(|(slot, header)| (header.ordinal, *slot))
            .collect();
        if let Some(last) = last
            && !segments.contains_key(&last)
        {
            segments.extend(self.with_torn_header(last));
        }
        let ends = segments.first_key_value().zip(segments.last_key_value());
        let ends = ends.map(|((&lowest, _), (&highest, _))| (lowest, highest));
        let Some((lowest, highest)) =
            ends.filter(|&(_, highest)| last.is_none_or(|last| last == highest))
        else {
            let is_missed = |end: u64| *applied != 0 && end > *applied;
            return match last.filter(|_| self.end.is_some_and(is_missed)) {
                Some(last) if !planted(Bug::OldestNotMissed) => Err(self.missing(last)),
                _ => Ok(None),
            };
        };
        // The oldest are used again first (I3).
        if let Some(gap) = (lowest..highest).find(|ordinal| !segments.contains_key(ordinal)) {
            return Err(self.missing(gap));
        }
        let first = session.map_or(lowest, |session| session.first);
        let in_file = *applied;
        let is_needed = |ordinal: &u64| (ordinal + 1) * SEGMENT_BYTES > in_file;
        for ordinal in (first..lowest).rev().take_while(is_needed) {
            match self.with_torn_header(ordinal) {
                Some(segment) => segments.extend([segment]),
                // Where nothing says what is in the file, it may have been used again.
                None if in_file == 0 || planted(Bug::OldestNotMissed) => break,
                None => return Err(self.missing(ordinal)),
            }
        }
        let durable = of_session().filter(|(_, header)| segments.contains_key(&header.ordinal));
        let part = Part {
            identity: self.identity,
            durable: durable.fold(0, |most, (_, header)| most.max(header.durable)),
            segments,
            end: self.end,
            words: self.words,
        };
        Ok(Some((part, session)))
    }

    fn missing(&self, ordinal: u64) -> Error {
        missing(self.identity.generation, &format!("segment {ordinal}"))
    }

    /// A segment of this ordinal that has no header, and its slot.
    fn with_torn_header(&self, ordinal: u64) -> Option<(u64, usize)> {
        let slot = without_header(self.device, &self.identity, ordinal);
        let slot = slot.filter(|_| !planted(Bug::TornHeaderForgotten));
        slot.map(|slot| (ordinal, slot))
    }
}

/// Finds the records that count. They are not durable yet, see [`Backlog::make_durable`].
pub(super) fn find(device: Box<dyn LogDevice>, last: &Last) -> Result<Backlog> {
    let mut sessions = Sessions::find(&*device, last)?;
    Backlog::read(device, &mut sessions, last, Trust::Footers)
}

impl Backlog {
    /// Finds the records in the log at `path` that count. They are neither durable yet nor in the pool's file.
    pub(crate) fn find(path: &Path, last: &Last) -> Result<Self> {
        let backlog = find(Box::new(open(path, last, Way::Shared)?), last)?;
        let Recovered { records, bytes } = backlog.recovered();
        tracing::info!(records, bytes, "the log of the last session was read");
        Ok(backlog)
    }

    /// Applies them to the pool's file now. Doing so again changes nothing.
    pub(crate) fn apply_to(&self, file: &File, path: &Path) -> Result<()> {
        let path = path.to_owned();
        self.apply_all(&PlainFile { file, path })
    }

    /// Applies all records but those of superblocks, and waits until that is on the disk. The file has the superblocks of a later session.
    pub(super) fn apply_into(&self, data: &dyn DataFile) -> Result<()> {
        self.make_durable()?;
        let mut applier = Applier::new(data)?;
        self.apply(&mut applier, data)?;
        applier.finish(data)
    }

    /// Applies all records, with those of the superblocks, and waits until that is on the disk.
    pub(super) fn apply_all(&self, data: &dyn DataFile) -> Result<()> {
        self.make_durable()?;
        let mut applier = Applier::new(data)?.reading_ahead();
        self.apply(&mut applier, data)?;
        applier.finish(data)?;
        if self.superblocks().is_empty() {
            return Ok(());
        }
        let mut in_file = vec![0; SUPERBLOCK_BYTES];
        data.read(&mut in_file, 0)?;
        let mut completed = in_file.clone();
        self.complete_superblocks(&mut completed);
        let writes = Superblock::renewed(&completed)?.writes(&in_file);
        writes
            .all()
            .try_for_each(|(at, bytes)| data.write_for_good(bytes, *at))
    }
}

impl Log {
    /// Copies the pool's file as it is with the whole log applied, while it goes on being used: `copy` copies the file, which nobody
    /// writes meanwhile, and the records that are not in the file yet are applied to the copy.
    pub(in crate::pool) fn copy_to(
        &self,
        file: &File,
        path: &Path,
        copy: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.expect_sound()?;
        // While this is locked no record is applied, and no segment is used again.
        let mut applier = lock(&self.applier);
        self.apply_backlog(&mut applier)?;
        let end = self.appended();
        self.wait_for(end)?;
        copy()?;
        let data = PlainFile {
            file,
            path: path.to_owned(),
        };
        let mut copied = Applier::new(&data)?;
        let begin = self.applied();
        let used = self.used_segments();
        let segment_of = |ordinal| self.segment_among(&used, ordinal);
        let mut reader = Reader::new(self.session.identity, &segment_of, begin..end);
        while let Some(payload) = reader.next() {
            copied.add(payload);
        }
        reader.expect_end()?;
        copied.write(&data, data.length()?)?;
        copied.finish(&data)
    }
}

/// Opens the log at `path` of a pool whose superblock names this session.
fn open(path: &Path, last: &Last, way: Way) -> Result<LogFile> {
    let device = match LogFile::open(path.to_owned(), 0, None, way, None) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoLog(path.to_owned()));
        }
        device => device?,
    };
    for slot in 0..device.segments() {
        let Some(header) = Header::read(device.segment(slot)) else {
            continue;
        };
        let (found, expected) = (header.session.identity, last.identity);
        if found.uuid != expected.uuid || found.generation > expected.generation {
            return Err(Error::Damaged(format!(
                "{} is the log of another pool, or of a later state of this one",
                path.display()
            )));
        }
    }
    Ok(device)
}

/// Reads the log at `path` of a pool that was not closed, and changes nothing.
pub(crate) fn verify(path: &Path, last: &Last) -> Result<Recovered> {
    let device = Box::new(open(path, last, Way::Read)?);
    let mut sessions = Sessions::find(&*device, last)?;
    let read = Backlog::read(device, &mut sessions, last, Trust::Records)?;
    Ok(read.recovered())
}
