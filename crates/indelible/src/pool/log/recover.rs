//! After a crash: the records of the last session, found and applied.
//!
//! The superblock in the pool's file says which session was the last one. Of the segments that have its generation in their headers,
//! those count that lead to the highest ordinal without a gap (I3). Records are read from the first of them to the first place
//! where there is no whole record: that is where the log ends, whatever may follow.

use super::apply::{Applier, Reader};
use super::device::{DataFile, LogDevice, LogFile, PlainFile, Way};
use super::record::{HEADER_WORDS, Header, Identity, SEGMENT_BYTES};
use super::{Bug, Log, log_path};
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// What was found in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Whole records of the session.
    pub(crate) records: u64,
    /// Bytes of the log from the first of them to the end of the last.
    pub(crate) bytes: u64,
}

/// Log that is read before its words are written: bounds the memory that a recovery takes.
const BYTES_AT_ONCE: u64 = 8 << 20;

/// The segments of a session, without a gap, by ordinal.
fn segments_of(device: &dyn LogDevice, identity: &Identity) -> BTreeMap<u64, usize> {
    let mut segments: BTreeMap<u64, usize> = (0..device.segments())
        .filter_map(|slot| Some((identity.ordinal(device.segment(slot))?, slot)))
        .collect();
    let Some((&last, _)) = segments.last_key_value() else {
        return segments;
    };
    let mut first = last;
    while first > 0 && segments.contains_key(&(first - 1)) {
        first -= 1;
    }
    segments.split_off(&first)
}

/// Calls `work` for each batch of the session, and whenever some of the log has been read.
fn read_all(
    device: &dyn LogDevice,
    identity: &Identity,
    mut add: impl FnMut(&[u64]),
    mut between: impl FnMut() -> Result<()>,
) -> Result<Recovered> {
    let segments = segments_of(device, identity);
    let Some((&first, _)) = segments.first_key_value() else {
        return Ok(Recovered::default());
    };
    let segment_of =
        |ordinal: u64| -> Option<&[AtomicU64]> { Some(device.segment(*segments.get(&ordinal)?)) };
    let begin = first * SEGMENT_BYTES + HEADER_WORDS as u64 * 8;
    let mut reader = Reader::new(*identity, &segment_of, begin..u64::MAX);
    let (mut records, mut done) = (0, begin);
    while let Some(payload) = reader.next() {
        add(payload);
        records += 1;
        if reader.position - done > BYTES_AT_ONCE {
            done = reader.position;
            between()?;
        }
    }
    between()?;
    let bytes = reader.position - begin;
    Ok(Recovered { records, bytes })
}

/// Applies the log of the session `identity` to the pool's file, and waits until that is on the disk.
pub(super) fn recover_from(
    device: &dyn LogDevice,
    data: &dyn DataFile,
    identity: &Identity,
) -> Result<Recovered> {
    // If the process has died and the machine has not, there are records that are not on the disk yet (I2).
    segments_of(device, identity)
        .values()
        .for_each(|&slot| device.touch(slot));
    if !planted(Bug::RecoveryAheadOfSync) {
        device.sync()?;
    }
    apply_to(device, data, identity)
}

/// Applies the whole records of a session to a file.
pub(super) fn apply_to(
    device: &dyn LogDevice,
    data: &dyn DataFile,
    identity: &Identity,
) -> Result<Recovered> {
    let length = data.length()?;
    let applier = std::cell::RefCell::new(Applier::new(data)?.reading_ahead());
    let recovered = read_all(
        device,
        identity,
        |payload| applier.borrow_mut().add(payload),
        || applier.borrow_mut().write(data, length),
    )?;
    applier.into_inner().finish(data)?;
    Ok(recovered)
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
        let _applier = lock(&self.applier);
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
        let mut reader = Reader::new(self.identity, &segment_of, begin..end);
        while let Some(payload) = reader.next() {
            copied.add(payload);
        }
        reader.expect_end()?;
        copied.write(&data, data.length()?)?;
        copied.finish(&data)
    }
}

/// Opens the log of the pool at `path`, whose superblock names this session.
fn open(path: &Path, identity: &Identity) -> Result<LogFile> {
    let log = log_path(path);
    let device = match LogFile::open(log.clone(), 0, None, Way::Shared) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::NoLog(log));
        }
        device => device?,
    };
    for slot in 0..device.segments() {
        let Some(header) = Header::read(device.segment(slot)) else {
            continue;
        };
        let found = header.identity;
        if found.uuid != identity.uuid || found.generation > identity.generation {
            return Err(Error::Damaged(format!(
                "{} is the log of another pool, or of a later state of this one",
                log.display()
            )));
        }
    }
    Ok(device)
}

/// Applies the log of a pool that was not closed to its file. Doing so again changes nothing.
pub(crate) fn recover(path: &Path, file: &File, identity: &Identity) -> Result<Recovered> {
    let device = open(path, identity)?;
    let data = PlainFile {
        file,
        path: path.to_owned(),
    };
    let recovered = recover_from(&device, &data, identity)?;
    tracing::info!(
        records = recovered.records,
        bytes = recovered.bytes,
        "the log of the last session was applied"
    );
    Ok(recovered)
}

/// Reads the log of a pool that was not closed, and changes nothing.
pub(crate) fn verify(path: &Path, identity: &Identity) -> Result<Recovered> {
    read_all(&open(path, identity)?, identity, |_| (), || Ok(()))
}
