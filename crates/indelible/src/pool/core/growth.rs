//! Growth: where more extents come from.
//!
//! An extent is *ready* when it is reserved in the file, mapped, and backed by memory. Making an extent ready takes up to
//! milliseconds. So while a pool grows, a thread makes the next extents ready before they are needed, and ends when that is
//! done. These extents lie beyond the end of the pool, and no durable word mentions them: after a crash the file is longer
//! than the superblock says, which does no harm.

use super::PoolCore;
use super::extents::{Extents, first_run};
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::pool::Bug;
use crate::pool::layout::{EXTENT_BYTES, MAX_EXTENTS};
use crate::pool::mapping::{Mapping, metadata_end};
use crate::pool::superblock::Superblock;
use crate::pool::system;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The state of growing. It has a lock of its own, so that threads that take an extent, or look up the owner of one, do not wait
/// while another thread asks the system for more.
#[derive(Default)]
pub(super) struct Growth {
    ready_ahead: Option<ReadyAhead>,
    refusal: Option<Refusal>,
    /// Of a pool in the page cache, both copies of the superblock say on the disk, too, that it is open.
    is_open_in_both: bool,
}

/// A thread that makes extents beyond the pool's end ready ahead of their use, one after the other.
struct ReadyAhead {
    /// Gets a message after each extent: where the extents that are ready end.
    ready: Receiver<u64>,
    /// Where they end when the thread is done.
    to: u64,
    thread: JoinHandle<()>,
}

/// The disk was full. Asking again takes up to a tenth of a second on a journaling file system, and a thread that inserts
/// records would ask again at once.
struct Refusal {
    reason: String,
    /// How many extents the pool was to have, or more.
    needed: u64,
    until: Instant,
    /// Bytes that were free in the file system. As soon as more are free, and enough for an extent, the system is asked again.
    room: Option<u64>,
}

/// How long a refusal is remembered, at least and at most; in between, ten times as long as the refusal took. So a thread that
/// goes on inserting spends at most a tenth of its time on refusals, and space that has become free is found soon.
const REFUSAL_REMEMBERED: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

impl Refusal {
    fn new(mapping: &Mapping, reason: &str, needed: u64, began: Instant) -> Self {
        let [least, most] = REFUSAL_REMEMBERED;
        let now = Instant::now();
        Self {
            reason: reason.into(),
            needed,
            until: now + ((now - began) * 10).clamp(least, most),
            room: mapping.room(),
        }
    }

    fn still_holds(&self, mapping: &Mapping, needed: u64) -> bool {
        let has_more = || {
            let room = mapping.room();
            room > self.room && room >= Some(EXTENT_BYTES)
        };
        needed >= self.needed && Instant::now() < self.until && !has_more()
    }
}

impl Growth {
    pub(super) fn new(superblock: &Superblock) -> Self {
        Self {
            // A pool that is being created has no copy that says that it was closed.
            is_open_in_both: superblock.sequence == 0,
            ..Self::default()
        }
    }

    /// Where the extents that are ready end, in a pool of `count` extents. Waits until the first `needed` extents are ready, or the
    /// thread has ended.
    fn ready(&mut self, count: u64, needed: u64) -> u64 {
        let Some(ahead) = &self.ready_ahead else {
            return count;
        };
        let mut ready = count;
        while ready < needed {
            match ahead.ready.recv() {
                Ok(end) => ready = end,
                Err(_) => break,
            }
        }
        ready = ahead.ready.try_iter().last().unwrap_or(ready);
        if ready < needed || ready == ahead.to {
            self.stop_ready_ahead();
        }
        ready
    }

    /// Ends the thread that makes extents ready. Returns where the extents that it may have made ready end; 0 if there is no thread.
    pub(super) fn stop_ready_ahead(&mut self) -> u64 {
        let Some(ReadyAhead { ready, to, thread }) = self.ready_ahead.take() else {
            return 0;
        };
        // Without a receiver, the thread ends at its next message.
        drop(ready);
        let _ = thread.join();
        to
    }

    /// Forgets that the disk was full, since space is about to become free.
    pub(super) fn forget_refusal(&mut self) {
        self.refusal = None;
    }

    /// Fails if the disk has only just been too full for `needed` extents.
    fn check_refusal(&self, mapping: &Mapping, needed: u64) -> Result<()> {
        match &self.refusal {
            Some(refusal) if refusal.still_holds(mapping, needed) => {
                Err(Error::NoSpace(refusal.reason.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Remembers the `result` of an attempt to grow to `needed` extents, which began at `began`.
    fn remember<T>(
        &mut self,
        mapping: &Mapping,
        needed: u64,
        began: Instant,
        result: Result<T>,
    ) -> Result<T> {
        self.refusal = match &result {
            Err(Error::NoSpace(reason)) => Some(Refusal::new(mapping, reason, needed, began)),
            _ => None,
        };
        result
    }
}

/// Extents that a pool has before further ones are made ready ahead of their use: a small pool may never need them.
const READY_AHEAD_FROM_EXTENTS: u64 = 4;

impl PoolCore {
    /// Grows the pool until there are `length` free extents in a row, and returns the first of them, with the extents locked. They
    /// are not locked while this thread waits for the system.
    pub(super) fn grow(&self, length: u64) -> Result<(MutexGuard<'_, Extents>, u64)> {
        let grown = self.try_to_grow(length);
        // A sync may have failed.
        grown.inspect_err(|_| self.note_unsynced(&mut lock(&self.extents)))
    }

    fn try_to_grow(&self, length: u64) -> Result<(MutexGuard<'_, Extents>, u64)> {
        // A session that begins cuts the file at the pool's end.
        self.open_log()?;
        let growth = &mut *lock(&self.growth);
        loop {
            // Meanwhile another thread may have grown the pool, or freed extents.
            if let Some(found) = self.free_run_with_blocks(growth, length, u64::MAX)? {
                return Ok(found);
            }
            let mut extents = lock(&self.extents);
            let limit = MAX_EXTENTS.min(self.mapping.reserved() / EXTENT_BYTES);
            let count = extents.count;
            // Free extents at the end of the file count towards the run.
            let mut first = count;
            while extents.free.contains(&(first - 1)) {
                first -= 1;
            }
            let needed = first + length;
            if needed > limit {
                return Err(Error::NoSpace(format!(
                    "the pool has reached its limit of {} bytes",
                    limit * EXTENT_BYTES
                )));
            }
            let wanted = needed.max(after_next_step(count)).min(limit);
            self.pm.note("file growth", 0);
            if planted(Bug::GrowCommitsEarly) {
                extents.count = wanted;
                self.write_superblock(&mut extents, false, "pool.grow");
                extents.count = count;
            }
            drop(extents);
            let end = self.make_longer(growth, count, needed..wanted)?;
            self.expect_open_in_both(growth)?;
            let mut extents = lock(&self.extents);
            extents.free.extend(count..end);
            extents.count = end;
            // COMMIT pool.grow: the pool's length, by checksum (see the superblock). Before it the file is longer than the superblock
            // says, which does no harm; after it the new extents exist and are free, since a new page of the table is zero.
            self.write_superblock(&mut extents, false, "pool.grow");
            drop(extents);
            self.start_ready_ahead(growth, end, limit);
        }
    }

    /// Makes sure that the superblock may be written without waiting for the first copy, as it is when a pool in the page cache grows: no write waits for the
    /// disk there, and what such a pool has after a power cut while it was open is refused anyway. Both copies may be torn then. But the second copy that was written when
    /// the pool was opened may not be on the disk yet, which has that of a pool that was closed in its place: with the first one torn, that would count. So
    /// before a pool grows first, once, that copy gets to the disk. If a sync has failed, only the note of that can have got it there: a further sync takes what an
    /// earlier one has lost for synced.
    fn expect_open_in_both(&self, growth: &mut Growth) -> Result<()> {
        if self.promise().is_page_cached() && !growth.is_open_in_both {
            self.mapping.sync_superblock()?;
            if !lock(&self.extents).is_noted_unsynced {
                self.mapping.expect_synced()?;
            }
            growth.is_open_in_both = true;
        }
        Ok(())
    }

    /// Makes extents ready behind the first `count`, and returns where those that are ready end: not before `ends.start`, or there is
    /// an error; at `ends.end` if the disk has enough space, or further if more are ready already.
    fn make_longer(&self, growth: &mut Growth, count: u64, ends: Range<u64>) -> Result<u64> {
        let Range {
            start: needed,
            end: wanted,
        } = ends;
        let ready = growth.ready(count, needed);
        if ready >= needed {
            return Ok(ready);
        }
        growth.check_refusal(&self.mapping, needed)?;
        let began = Instant::now();
        // If the disk has too little space for all that is wanted, then for what is needed.
        let made = match make_ready(&self.mapping, ready, wanted) {
            Err(Error::NoSpace(_)) if wanted > needed => {
                make_ready(&self.mapping, ready, needed).map(|()| needed)
            }
            result => result.map(|()| wanted),
        };
        growth.remember(&self.mapping, needed, began, made)
    }

    /// The first of `length` free extents in a row that lie before the extent `end`, with the extents locked. Those that have no blocks, since the file is a
    /// copy, get some.
    pub(super) fn free_run_with_blocks(
        &self,
        growth: &mut Growth,
        length: u64,
        end: u64,
    ) -> Result<Option<(MutexGuard<'_, Extents>, u64)>> {
        let fits = |first: &u64| first + length <= end;
        loop {
            let extents = lock(&self.extents);
            if let Some(first) = extents.first_run(length).filter(fits) {
                return Ok(Some((extents, first)));
            }
            let Some(first) = first_run(&extents.free, length).filter(fits) else {
                return Ok(None);
            };
            let of_run = extents.without_blocks.range(first..first + length);
            let without_blocks: Vec<u64> = of_run.copied().collect();
            drop(extents);
            self.reserve_free(growth, &without_blocks)?;
        }
    }

    /// Reserves free extents that have no blocks. Nobody takes one before that, or reserves it meanwhile, since `growth` is locked. (An extent that has its blocks
    /// may be taken at any time. To reserve it, which may be to write what the file has once more, would lose what is stored there meanwhile.)
    fn reserve_free(&self, growth: &mut Growth, without_blocks: &[u64]) -> Result<()> {
        for run in without_blocks.chunk_by(|before, extent| before + 1 == *extent) {
            let (first, end) = (run[0], run[0] + run.len() as u64);
            growth.check_refusal(&self.mapping, end)?;
            let began = Instant::now();
            let bytes = first * EXTENT_BYTES..end * EXTENT_BYTES;
            let reserved = self.mapping.reserve_again(bytes);
            growth.remember(&self.mapping, end, began, reserved)?;
            let without_blocks = &mut lock(&self.extents).without_blocks;
            run.iter().for_each(|extent| {
                without_blocks.remove(extent);
            });
        }
        Ok(())
    }

    /// Starts a thread that makes the next extents ready, if none is running.
    fn start_ready_ahead(&self, growth: &mut Growth, from: u64, limit: u64) {
        let to = after_next_step(from).min(limit);
        if self.runs_alone()
            || from < READY_AHEAD_FROM_EXTENTS
            || growth.ready_ahead.is_some()
            || from == to
        {
            return;
        }
        let mapping = Arc::clone(&self.mapping);
        let (tell, ready) = channel();
        let work = move || {
            // On failure the thread just ends: a thread that needs the extents tries again, and returns the error.
            if reserve_table(&mapping, from, to).is_err() {
                return;
            }
            for extent in from..to {
                let end = extent + 1;
                if (mapping.extend(extent * EXTENT_BYTES, end * EXTENT_BYTES)).is_err() {
                    return;
                }
                mapping.populate(extent);
                if tell.send(end).is_err() {
                    return;
                }
            }
        };
        let thread = system::spawn("indelible-growth", work);
        growth.ready_ahead = thread.ok().map(|thread| ReadyAhead { ready, to, thread });
    }
}

/// How many extents a pool of `count` has after it has grown: a 64th more, so that growing is rare and little space is unused.
fn after_next_step(count: u64) -> u64 {
    count + (count / 64).clamp(1, 32)
}

/// Makes the extents from `from` to `to` ready.
fn make_ready(mapping: &Mapping, from: u64, to: u64) -> Result<()> {
    reserve_table(mapping, from, to)?;
    // Their words in the table say "free": an extent that a shrink cuts off was durably free before.
    mapping.extend(from * EXTENT_BYTES, to * EXTENT_BYTES)
}

/// The pages of the extent table that speak for the extents from `from` to `to` must not be holes either. Those with a word of an extent before `from`
/// are none, and are left alone: where reserving is writing what the file has once more, a word would be lost that another thread stores meanwhile, or that
/// the applier of a log writes.
fn reserve_table(mapping: &Mapping, from: u64, to: u64) -> Result<()> {
    let (begin, end) = (metadata_end(from), metadata_end(to));
    if begin < end {
        mapping.allocate(begin, end)?;
    }
    Ok(())
}
