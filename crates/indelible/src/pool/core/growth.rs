//! Growth: where more extents come from.
//!
//! To make an extent *ready*, reserved in the file, mapped, and its memory had from the system, takes up to milliseconds. So
//! of a pool that grows the next ones are made ready ahead of their use, by a thread that lives as long as that takes. They
//! lie beyond the pool's end, and nothing says durably that they are there: a crash leaves a file that is longer than the
//! superblock says, which does no harm.

use super::PoolCore;
use super::extents::{Extents, first_run};
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::pool::Bug;
use crate::pool::layout::{EXTENT_BYTES, MAX_EXTENTS, TABLE_AT};
use crate::pool::mapping::Mapping;
use crate::pool::system;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What whoever makes the pool longer has to know. It has a lock of its own, so that others who look for an extent, or ask
/// whose one is, do not wait while the system is asked for more.
#[derive(Default)]
pub(super) struct Growth {
    ahead: Option<Ahead>,
    refusal: Option<Refusal>,
}

/// A thread that makes extents beyond the pool's end ready, one after the other.
struct Ahead {
    /// After each one, where those that are ready end.
    ready: Receiver<u64>,
    /// Where they all will.
    to: u64,
    thread: JoinHandle<()>,
}

/// The disk was full. To ask again takes long, up to a tenth of a second on a journaling file system, and whoever has records
/// to insert asks again at once.
struct Refusal {
    reason: String,
    /// How many extents the pool was to have, or more.
    needed: u64,
    until: Instant,
    /// Bytes that the file system had left. As soon as it has more, and enough for an extent, it is asked again.
    room: Option<u64>,
}

/// How long a refusal is remembered: for ten times as long as it took, within these limits. So a thread that goes on
/// inserting spends a tenth of its time on it at most, and space that has come back is found soon.
const REMEMBERED: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

impl Refusal {
    fn new(mapping: &Mapping, reason: &str, needed: u64, began: Instant) -> Self {
        let [least, most] = REMEMBERED;
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
    /// Where the extents beyond the end of a pool of `count` extents that are ready end. Waits until `needed` of all extents
    /// are, or no more will be.
    fn ready(&mut self, count: u64, needed: u64) -> u64 {
        let Some(ahead) = &self.ahead else {
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
            self.stop_ahead();
        }
        ready
    }

    /// Has no more extents made ready, and returns the end of what may have been, if anything.
    pub(super) fn stop_ahead(&mut self) -> u64 {
        let Some(Ahead { ready, to, thread }) = self.ahead.take() else {
            return 0;
        };
        // Now it has nobody to tell, and ends.
        drop(ready);
        let _ = thread.join();
        to
    }

    /// The disk will have more.
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

    /// Remembers how an attempt to have `needed` extents ended that began then.
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

/// Extents of a pool from which on the next ones are made ready ahead: a small pool may never need them.
const MANY: u64 = 4;

impl PoolCore {
    /// Sees to it that there are `length` free extents in a row, and returns the first. Only while the pool's length changes
    /// are the extents locked.
    pub(super) fn grow(&self, length: u64) -> Result<(MutexGuard<'_, Extents>, u64)> {
        let growth = &mut *lock(&self.growth);
        loop {
            let mut extents = lock(&self.extents);
            // Meanwhile somebody else may have grown the pool, or given some back.
            if let Some(first) = extents.first_run(length) {
                return Ok((extents, first));
            }
            if let Some(first) = first_run(&extents.free, length) {
                drop(extents);
                self.reserve_free(growth, first..first + length)?;
                continue;
            }
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
            let mut extents = lock(&self.extents);
            extents.free.extend(count..end);
            extents.count = end;
            // COMMIT: the pool's length, by checksum (see the superblock). Before it the file is longer than the superblock
            // says, which does no harm; after it the new extents exist and are free, since a new page of the table is zero.
            self.write_superblock(&mut extents, false, "pool.grow");
            drop(extents);
            self.look_ahead(growth, end, limit);
        }
    }

    /// Has extents ready behind the first `count`, and returns where they end: between `ends.start`, or there is an error, and
    /// `ends.end`, or beyond.
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
        // If the disk has less, as much as is needed.
        let made = match make_ready(&self.mapping, ready, wanted) {
            Err(Error::NoSpace(_)) if wanted > needed => {
                make_ready(&self.mapping, ready, needed).map(|()| needed)
            }
            result => result.map(|()| wanted),
        };
        growth.remember(&self.mapping, needed, began, made)
    }

    /// Reserves free extents of a file that somebody has copied.
    fn reserve_free(&self, growth: &mut Growth, run: Range<u64>) -> Result<()> {
        growth.check_refusal(&self.mapping, run.end)?;
        let began = Instant::now();
        let bytes = run.start * EXTENT_BYTES..run.end * EXTENT_BYTES;
        let reserved = self.mapping.reserve_again(bytes);
        growth.remember(&self.mapping, run.end, began, reserved)?;
        let without_blocks = &mut lock(&self.extents).without_blocks;
        run.for_each(|extent| {
            without_blocks.remove(&extent);
        });
        Ok(())
    }

    /// Has the next extents made ready.
    fn look_ahead(&self, growth: &mut Growth, from: u64, limit: u64) {
        let to = after_next_step(from).min(limit);
        if self.runs_alone() || from < MANY || growth.ahead.is_some() || from == to {
            return;
        }
        let mapping = Arc::clone(&self.mapping);
        let (tell, ready) = channel();
        let work = move || {
            // What cannot be had, who needs it will try to have again, and say why not.
            if reserve_table(&mapping, to).is_err() {
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
        growth.ahead = thread.ok().map(|thread| Ahead { ready, to, thread });
    }
}

/// Where a pool of `count` extents ends when it has grown: by a 64th, so that growing is rare and little stands unused.
fn after_next_step(count: u64) -> u64 {
    count + (count / 64).clamp(1, 32)
}

/// Makes the extents from `from` to `to` ready.
fn make_ready(mapping: &Mapping, from: u64, to: u64) -> Result<()> {
    reserve_table(mapping, to)?;
    // Their words in the table say that they are free: whatever a shrink cuts off said so durably before.
    mapping.extend(from * EXTENT_BYTES, to * EXTENT_BYTES)
}

/// The page of the extent table that speaks for the extents before `to` must not be a hole either.
fn reserve_table(mapping: &Mapping, to: u64) -> Result<()> {
    mapping.allocate(TABLE_AT, (TABLE_AT + to * 8).next_multiple_of(4096))
}
