//! The loops that are timed.

use crate::data::points;
use crate::index::Index;
use crate::workload::{Kinds, OperationKind, Script, scan_length, value_of};
use hdrhistogram::Histogram;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Steps between two looks at whether the phase is over.
const STRIDE: usize = 16;
/// A slowed contestant pauses whenever it has worked this long; it looks at the clock after so many operations, so that
/// looking costs it nothing beside.
const PAUSE: Duration = Duration::from_micros(100);
const LOOK: u64 = 512;

/// One thread's view of a phase: how far it is, and whether it shall stop. Alone in its lines, so that watching one
/// thread slows no other down.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
}

impl Progress {
    /// Operations done.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

/// What a thread counts while it runs.
#[derive(Debug)]
pub struct Meter<'phase> {
    progress: &'phase Progress,
    stop: &'phase AtomicBool,
    slow_down: f64,
    since: Instant,
    looked: u64,
    /// Operations done.
    pub operations: u64,
    /// Those that found what they asked for or changed something; records for scans.
    pub hits: u64,
}

impl<'phase> Meter<'phase> {
    /// A meter that starts at 0 and obeys `stop`. With `slow_down` above 0 everything takes longer by that share: a
    /// planted fault that comparisons must find.
    #[must_use]
    pub fn new(progress: &'phase Progress, stop: &'phase AtomicBool, slow_down: f64) -> Self {
        Self {
            progress,
            stop,
            slow_down,
            since: Instant::now(),
            looked: 0,
            operations: 0,
            hits: 0,
        }
    }

    /// Takes a stride in, and says whether to go on.
    #[inline]
    fn goes_on(&mut self, operations: usize, hits: u64) -> bool {
        self.operations += operations as u64;
        self.hits += hits;
        self.progress.done.store(self.operations, Ordering::Relaxed);
        if self.slow_down > 0.0 && self.operations >= self.looked + LOOK {
            self.pause();
        }
        !self.stop.load(Ordering::Relaxed)
    }

    /// Waits for a share of the time that has been worked.
    #[cold]
    fn pause(&mut self) {
        self.looked = self.operations;
        let worked = self.since.elapsed();
        if worked >= PAUSE {
            while self.since.elapsed() < worked.mul_f64(1.0 + self.slow_down) {
                std::hint::spin_loop();
            }
            self.since = Instant::now();
        }
    }
}

/// Times some of the steps.
#[derive(Debug)]
pub struct Sampler {
    histogram: Histogram<u64>,
    /// Steps between two that are timed are fewer than this, each number of them as likely.
    span: f64,
    until: u64,
    random: u64,
}

impl Sampler {
    /// Times about the given share of the steps, at random distances.
    #[must_use]
    pub fn new(share: f64, seed: u64) -> Self {
        Self {
            histogram: Histogram::new(3).expect("three digits are allowed"),
            // On average half of it, less a half: a distance of one by the share.
            span: 2.0 / share.clamp(1e-6, 1.0) - 1.0,
            until: 0,
            // Not 0, and another one for each seed: threads that time the same steps would wait for the clock together.
            random: seed << 1 | 1,
        }
    }

    /// The times taken, in nanoseconds.
    #[must_use]
    pub fn into_histogram(self) -> Histogram<u64> {
        self.histogram
    }

    /// Takes a time in. The histogram grows when it must, which happens after the clock was read.
    fn record(&mut self, nanoseconds: u64) {
        self.histogram
            .record(nanoseconds)
            .expect("a histogram that grows takes all numbers");
    }

    /// Whether the next step is to be timed.
    #[inline]
    fn is_due(&mut self) -> bool {
        if self.until > 0 {
            self.until -= 1;
            return false;
        }
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let unit = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        self.until = (unit * self.span) as u64;
        true
    }
}

/// The next keys and records of a script, and room for what a scan finds.
struct Cursor<'script> {
    script: &'script Script,
    key: usize,
    record: usize,
    /// What a scan has found.
    page: Vec<(u64, u64)>,
    /// What a search for points has found.
    found: Vec<u64>,
}

impl<'script> Cursor<'script> {
    fn new(script: &'script Script) -> Self {
        Self {
            script,
            key: 0,
            record: 0,
            page: Vec::with_capacity(script.scan_size),
            found: Vec::new(),
        }
    }

    #[inline]
    fn key(&mut self) -> u64 {
        self.key += 1;
        self.script.keys[self.key - 1]
    }

    #[inline]
    fn keys(&mut self) -> &'script [u64] {
        let from = self.key;
        self.key += self.script.batch_size;
        &self.script.keys[from..self.key]
    }

    #[inline]
    fn records(&mut self) -> &'script [(u64, u64)] {
        let from = self.record;
        self.record += self.script.batch_size;
        &self.script.records[from..self.record]
    }
}

/// One step. Returns its hits.
#[inline(always)]
fn step<I: Index + ?Sized>(index: &I, kind: OperationKind, cursor: &mut Cursor) -> u64 {
    match kind {
        OperationKind::Get => u64::from(black_box(index.get(cursor.key())).is_some()),
        OperationKind::Insert => {
            let key = cursor.key();
            index.insert(key, value_of(key));
            1
        }
        OperationKind::Update => {
            let key = cursor.key();
            u64::from(index.update(key, !value_of(key)))
        }
        OperationKind::Remove => u64::from(index.remove(cursor.key())),
        OperationKind::Scan => {
            let (key, most) = (cursor.key(), cursor.script.scan_size);
            let varies = cursor.script.scan_varies;
            let length = if varies { scan_length(key, most) } else { most };
            cursor.page.clear();
            index.scan(key, length, &mut cursor.page);
            black_box(&cursor.page).len() as u64
        }
        OperationKind::GetBatch => index.get_batch(cursor.keys()) as u64,
        OperationKind::InsertBatch => {
            let records = cursor.records();
            index.insert_batch(records);
            records.len() as u64
        }
        OperationKind::ReadModifyWrite => {
            let key = cursor.key();
            let hit = black_box(index.get(key)).is_some();
            u64::from(hit && index.update(key, !value_of(key)))
        }
        OperationKind::Window => {
            let (low, high) = points::window(cursor.key(), cursor.script.window_side);
            cursor.found.clear();
            index.window(low, high, &mut cursor.found);
            black_box(&cursor.found).len() as u64
        }
        OperationKind::Nearest => {
            let point = points::beside(cursor.key(), cursor.script.window_side);
            cursor.found.clear();
            index.nearest(point, cursor.script.neighbours, &mut cursor.found);
            black_box(&cursor.found).len() as u64
        }
    }
}

/// Walks through a script at full speed.
pub(crate) fn run<I: Index + ?Sized>(index: &I, script: &Script, meter: &mut Meter) {
    match &script.kinds {
        // A loop per kind: in each the kind is known, and the match in `step` goes away.
        Kinds::All(OperationKind::Get, steps) => {
            run_kind(index, script, meter, *steps, || OperationKind::Get)
        }
        Kinds::All(OperationKind::Insert, steps) => {
            run_kind(index, script, meter, *steps, || OperationKind::Insert)
        }
        Kinds::All(OperationKind::Update, steps) => {
            run_kind(index, script, meter, *steps, || OperationKind::Update)
        }
        Kinds::All(OperationKind::GetBatch, steps) => {
            run_kind(index, script, meter, *steps, || OperationKind::GetBatch);
        }
        Kinds::All(OperationKind::Window, steps) => {
            run_kind(index, script, meter, *steps, || OperationKind::Window);
        }
        Kinds::All(OperationKind::Nearest, steps) => {
            run_kind(index, script, meter, *steps, || OperationKind::Nearest);
        }
        Kinds::All(kind, steps) => run_kind(index, script, meter, *steps, || *kind),
        Kinds::Each(kinds) => {
            let mut kinds_left = kinds.iter();
            run_kind(index, script, meter, kinds.len(), || {
                *kinds_left.next().expect("as many kinds as steps")
            });
        }
    }
}

#[inline(always)]
fn run_kind<I: Index + ?Sized>(
    index: &I,
    script: &Script,
    meter: &mut Meter,
    steps: usize,
    mut kind: impl FnMut() -> OperationKind,
) {
    let mut cursor = Cursor::new(script);
    let mut left = steps;
    while left > 0 {
        let stride = left.min(STRIDE);
        let (mut hits, mut operations) = (0, 0);
        for _ in 0..stride {
            let kind = kind();
            operations += script.weight(kind);
            hits += step(index, kind, &mut cursor);
        }
        if !meter.goes_on(operations, hits) {
            return;
        }
        left -= stride;
    }
}

/// Walks through a script and times some of its steps.
pub(crate) fn run_timed<I: Index + ?Sized>(
    index: &I,
    script: &Script,
    meter: &mut Meter,
    sampler: &mut Sampler,
) {
    let mut cursor = Cursor::new(script);
    let mut do_step = |kind: OperationKind, meter: &mut Meter| {
        let operations = script.weight(kind);
        let hits = if sampler.is_due() {
            let start = Instant::now();
            let hits = step(index, kind, &mut cursor);
            let nanoseconds = start.elapsed().as_nanos();
            sampler.record(nanoseconds as u64);
            hits
        } else {
            step(index, kind, &mut cursor)
        };
        meter.goes_on(operations, hits)
    };
    match &script.kinds {
        Kinds::All(kind, steps) => {
            let _ = (0..*steps).all(|_| do_step(*kind, meter));
        }
        Kinds::Each(kinds) => {
            let _ = kinds.iter().all(|&kind| do_step(kind, meter));
        }
    }
}

/// What the clock itself takes between two readings, in nanoseconds: the median of many.
#[must_use]
pub fn clock_cost() -> u64 {
    let mut costs: Vec<u128> = (0..1001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos()
        })
        .collect();
    costs.sort_unstable();
    costs[costs.len() / 2] as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_was_asked_for_is_timed_and_threads_time_other_steps() {
        for share in [1.0, 0.7, 0.4, 0.1, 0.01] {
            let due = |seed| -> Vec<usize> {
                let mut sampler = Sampler::new(share, seed);
                (0..200_000).filter(|_| sampler.is_due()).collect()
            };
            let (one, other) = (due(6), due(7));
            let timed = one.len() as f64 / 200_000.0;
            assert!((timed / share - 1.0).abs() < 0.05, "{share}: {timed}");
            assert!(share == 1.0 || one != other, "{share}");
        }
    }
}
