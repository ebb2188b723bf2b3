//! After a crash, an image gets its words from the log: few of them at once, many of them extent by extent, each when it is touched
//! first, and the rest behind the scenes. So an open does not wait for them.
//!
//! Extents for which the log has words are mapped as memory that is absent. A thread that touches a page there waits until the thread
//! `indelible-recovery` has provided it: read from the file, with the words of the log put over it, in their order. Who touches an extent first
//! gets the piece around the page, and the rest comes later. The applier may write words into the file meanwhile. They are the log's own, or later
//! ones of a page that somebody has touched before and that is therefore present; pages that are present are left as they are.
//!
//! Where the system cannot do this, all words get into the image before the open returns.

use super::{ANONYMOUS, Mapping};
use crate::Result;
use crate::concurrency::sync::lock;
use crate::pmem::{Cell, Medium, Pm};
use crate::pool::layout::EXTENT_BYTES;
use crate::pool::log::Backlog;
use crate::pool::system::{self, Absent};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Words of records that an open puts into the image itself: at most about two milliseconds, even if every other one lies in a page of its own.
const WORDS_AT_ONCE: u64 = 2000;

/// For so long only extents are provided that somebody waits for: the open is still at work, and needs the lock of the address space,
/// which is held while pages are provided.
const HEAD_START: Duration = Duration::from_millis(20);

/// Bytes that who touches an extent first waits for: a twentieth of the time that all of it takes.
const PIECE_BYTES: u64 = 64 << 10;
const _: () = assert!(EXTENT_BYTES.is_multiple_of(PIECE_BYTES) || cfg!(feature = "small"));

/// How often an extent is tried again that the file could not be read for, and the time between.
const TRIES: usize = 10;
const TIME_BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// The thread that provides extents.
#[derive(Default)]
pub(super) struct Late {
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Extents are absent.
    is_running: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Late {
    /// Waits until all extents are present.
    pub(super) fn finish(&self) {
        // Whoever comes meanwhile waits too.
        let mut thread = lock(&self.thread);
        if let Some(thread) = thread.take() {
            // It does not panic: what it could fail in, it tries again.
            let _ = thread.join();
        }
    }

    /// Ends the thread. Extents that are not present never will be.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.finish();
    }
}

/// What the thread works with.
struct Provider {
    absent: Absent,
    backlog: Arc<Backlog>,
    file: File,
    base: usize,
    /// Extents that are not wholly present.
    left: BTreeSet<u64>,
    /// Those of them of which a part is.
    begun: BTreeSet<u64>,
    stop: Arc<AtomicBool>,
    /// The words of an extent.
    contents: Vec<u8>,
}

impl Mapping {
    /// Puts the words of a backlog into the image, now or when they are needed. Nobody has read from the image so far but the superblocks.
    pub(in crate::pool) fn complete(&self, backlog: &Arc<Backlog>) -> Result<()> {
        let mut extents = backlog.extents();
        if extents.remove(&0) {
            self.complete_now(backlog, 0)?;
        }
        if backlog.payload() > WORDS_AT_ONCE {
            match self.complete_later(backlog, &extents) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::debug!(%error, "the open waits until the log's words are in memory");
                }
            }
            for range in ranges(&extents) {
                self.map(range.start, range.end)?;
            }
        }
        for extent in extents {
            self.complete_now(backlog, extent)?;
        }
        Ok(())
    }

    fn complete_now(&self, backlog: &Backlog, extent: u64) -> Result<()> {
        // The words are in the log already.
        let pm = Pm::new(Medium::Process);
        backlog.runs_of(extent, |at, words| {
            for (at, &value) in (at as usize..).zip(words) {
                // SAFETY: the backlog has words of the pool only, whose bytes are mapped, and which consist of atomics.
                let cell: &Cell = unsafe { &*self.base.add(at * 8).cast_const().cast() };
                pm.store(cell, value);
            }
        })
    }

    fn complete_later(&self, backlog: &Arc<Backlog>, extents: &BTreeSet<u64>) -> Result<()> {
        let failed = |errno: Errno| self.backing.error("map", errno);
        let file = self.file().map(File::try_clone).transpose();
        let file = file.ok().flatten().ok_or_else(|| failed(Errno::MFILE))?;
        let absent = Absent::new().map_err(failed)?;
        for range in ranges(extents) {
            let at = |byte: u64| self.base.wrapping_add(byte as usize).cast::<c_void>();
            let both = ProtFlags::READ | ProtFlags::WRITE;
            let length = (range.end - range.start) as usize;
            // SAFETY: the extents belong to the pool, whose range is ours, and nobody refers to what they have: only the superblocks were read.
            unsafe {
                system::map_anonymous(at(range.start), length, both, ANONYMOUS)
                    .and_then(|_| absent.register(at(range.start)..at(range.end)))
            }
            .map_err(failed)?;
        }
        let mut provider = Provider {
            absent,
            backlog: Arc::clone(backlog),
            file,
            base: self.base as usize,
            left: extents.clone(),
            begun: BTreeSet::new(),
            stop: Arc::clone(&self.late.stop),
            contents: vec![0; EXTENT_BYTES as usize],
        };
        let is_running = Arc::clone(&self.late.is_running);
        is_running.store(true, Ordering::Relaxed);
        let thread = system::spawn("indelible-recovery", move || {
            provider.run();
            is_running.store(false, Ordering::Release);
        });
        let thread = thread.map_err(|_| {
            self.late.is_running.store(false, Ordering::Relaxed);
            failed(Errno::AGAIN)
        })?;
        *lock(&self.late.thread) = Some(thread);
        Ok(())
    }

    /// Whether pages of the image may be absent.
    #[inline]
    pub(in crate::pool) fn is_incomplete(&self) -> bool {
        self.late.is_running.load(Ordering::Acquire)
    }

    /// Waits until every word of the log is in the image.
    pub(in crate::pool) fn finish_completion(&self) {
        self.late.finish();
    }
}

/// The bytes of these extents, in as few ranges as possible.
fn ranges(extents: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for begin in extents.iter().map(|extent| extent * EXTENT_BYTES) {
        match ranges.last_mut() {
            Some(last) if last.end == begin => last.end += EXTENT_BYTES,
            _ => ranges.push(begin..begin + EXTENT_BYTES),
        }
    }
    ranges
}

impl Provider {
    /// Provides all extents: first those that somebody waits for.
    fn run(&mut self) {
        let begin = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let touched = self.absent.next();
            let mut rest = HEAD_START.saturating_sub(begin.elapsed());
            if self.backlog.held().is_held() {
                rest = rest.max(Duration::from_millis(1));
            }
            if touched.is_none() && !rest.is_zero() && !self.left.is_empty() {
                self.absent.wait(rest);
                continue;
            }
            let extent = match touched {
                Some(at) => (at.addr() - self.base) as u64 / EXTENT_BYTES,
                None => match self.left.first() {
                    Some(&extent) => extent,
                    None => return,
                },
            };
            let begin = extent * EXTENT_BYTES;
            if let Some(at) = touched
                && self.left.contains(&extent)
                && self.begun.insert(extent)
            {
                // A part, so that the thread does not wait for the rest. The next one that touches an absent page gets all of it.
                let at = (at.addr() - self.base) as u64 / PIECE_BYTES * PIECE_BYTES;
                self.provide(at..at + PIECE_BYTES);
            } else if self.left.remove(&extent) {
                self.provide(begin..begin + EXTENT_BYTES);
            } else {
                // It was provided after the thread had touched it, and before it waited.
                self.absent
                    .wake(self.address_of(begin)..self.address_of(begin + EXTENT_BYTES));
            }
        }
    }

    fn address_of(&self, byte: u64) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.base + byte as usize)
    }

    /// Provides the pages there that are absent.
    fn provide(&mut self, bytes: Range<u64>) {
        for attempt in 1.. {
            let Err(errno) = self.try_to_provide(&bytes) else {
                return;
            };
            if attempt < TRIES {
                std::thread::sleep(TIME_BETWEEN_TRIES);
                continue;
            }
            tracing::error!(%errno, at = bytes.start, "the pool's file could not be read after a crash; who touches the place is ended by a signal");
            let at = self.address_of(bytes.start)..self.address_of(bytes.end);
            // As after an error in reading a page of a mapped file: there is nothing that could be shown.
            // SAFETY: the bytes belong to the pool's range. What is present of them is lost, but cannot be read any more, as what is absent.
            let _ = unsafe {
                system::map_anonymous(
                    at.start,
                    (bytes.end - bytes.start) as usize,
                    ProtFlags::empty(),
                    ANONYMOUS | MapFlags::FIXED,
                )
            };
            return self.absent.wake(at);
        }
    }

    fn try_to_provide(&mut self, bytes: &Range<u64>) -> rustix::io::Result<()> {
        let at = self.address_of(bytes.start);
        let contents = &mut self.contents[..(bytes.end - bytes.start) as usize];
        let read = |contents: &mut [u8]| system::read_at(&self.file, contents, bytes.start);
        self.backlog.complete(bytes.start, contents, read)?;
        // SAFETY: the extent was registered.
        unsafe { self.absent.provide(at, contents) }
    }
}
