//! What operations wait for: the gate between the log and those who call.
//!
//! With [`Durability::PowerLoss`](crate::Durability::PowerLoss) a write returns when its last record is durable, and a reader returns
//! what it has read when that is durable. Both wait after all locks have been given back, here and nowhere else, so that no
//! engine knows of it.
//!
//! A reader does not know which record made what it has read. So each key has a *place* in a table, chosen by a hash. A write
//! announces itself in the places of its keys before it begins, and leaves there the position of its last record when it is done. A
//! reader looks at the place *after* it has read. If a write is under way there, the value may be that write's, whose record has
//! been appended then: the reader waits for everything that has been appended. Otherwise it waits for the place's position, which
//! is nearly always durable already.
//!
//! Why the reader sees the announcement of the write whose value it has read: the announcement comes before the stores of the write,
//! the writer gives its lock back after them, and the reader has seen the lock given back.
//!
//! With [`Durability::Interval`](crate::Durability::Interval) nobody waits; a write only learns whether the log has failed.
//!
//! A call that does many writes, of which the caller learns nothing before it returns, waits for all of them at its end: see [`OneWait`].

use super::progress::{DAMAGED, LOST, Progress};
use super::{Backlog, Beginning, Bug, Log};
use crate::pmem::planted::planted;
use crate::pmem::{Pm, schedule, trace};
use crate::{Error, Result};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// While a [`OneWait`] does a part of its work in this thread: its gate, as an address, and what it has to wait for.
    static ONE_WAIT: Cell<Option<(usize, u64)>> = const { Cell::new(None) };
}

/// Many writes that wait once, together, to be durable.
pub(crate) struct OneWait<'a> {
    gate: Option<&'a Gate>,
    position: u64,
}

/// Ends a part of the work, also if it panics.
struct EndOfPart(Option<(usize, u64)>);

impl Drop for EndOfPart {
    fn drop(&mut self) {
        ONE_WAIT.set(self.0);
    }
}

impl<'a> OneWait<'a> {
    /// For a pool with this gate, if it has one.
    pub(crate) fn new(gate: Option<&'a Gate>) -> Self {
        Self { gate, position: 0 }
    }

    /// Does a part of the work, which is not to return anything to anybody else, or call anybody else: nothing in it waits.
    pub(crate) fn part<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let Some(gate) = self.gate else {
            return work();
        };
        let outer = ONE_WAIT.replace(Some((gate.address(), self.position)));
        let _end = EndOfPart(outer);
        let result = work();
        self.position = ONE_WAIT.get().map_or(u64::MAX, |(_, position)| position);
        result
    }

    /// Waits until all of it is durable.
    pub(crate) fn wait(self) -> Result<()> {
        self.gate
            .map_or(Ok(()), |gate| gate.wait_for(self.position))
    }
}

/// Places of a pool, a power of two: 64 KiB, so that a reader seldom meets a write to another key.
const PLACES: usize = crate::pmem::geometry::sized(4096, 64);

/// A write that has been announced in these places. If the work panics, it ends all the same: otherwise readers would wait for it for good.
struct Announced<'a, I: Iterator<Item = &'a Place> + Clone> {
    gate: &'a Gate,
    places: I,
    pm: Pm,
    has_ended: bool,
}

impl<'a, I: Iterator<Item = &'a Place> + Clone> Announced<'a, I> {
    fn new(gate: &'a Gate, places: I, pm: Pm) -> Self {
        places.clone().for_each(Place::begin);
        Self {
            gate,
            places,
            pm,
            has_ended: false,
        }
    }

    /// The work is done; its records end there, at most.
    fn end(mut self, position: u64) {
        self.end_at(position);
    }

    fn end_at(&mut self, position: u64) {
        self.places.clone().for_each(|place| place.end(position));
        self.has_ended = true;
    }
}

impl<'a, I: Iterator<Item = &'a Place> + Clone> Drop for Announced<'a, I> {
    fn drop(&mut self) {
        if !self.has_ended {
            // As after work that returns. What it has stored may have been read.
            self.pm.fence_after_unlock();
            self.gate.take_position(self.pm);
            self.end_at(self.gate.appended());
        }
    }
}

/// What is known of the writes to some keys.
#[derive(Default)]
struct Place {
    /// Writes under way.
    writes: AtomicU64,
    /// Where the records of those that are done ended, at most.
    position: AtomicU64,
}

impl Place {
    fn begin(&self) {
        self.writes.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self, position: u64) {
        self.position.fetch_max(position, Ordering::Release);
        self.writes.fetch_sub(1, Ordering::Release);
    }

    /// What a reader has to wait for; `None` if a write is under way.
    fn position(&self) -> Option<u64> {
        // In this order: a write that ends in between has left its position.
        match self.writes.load(Ordering::Acquire) {
            0 => Some(self.position.load(Ordering::Acquire)),
            _ => None,
        }
    }
}

/// The gate of one pool.
pub(crate) struct Gate {
    /// How far the log is. For the crash checker, which knows by itself, nothing is durable here.
    progress: Arc<Progress>,
    /// Whether readers wait for what they have read to be durable.
    holds_readers: bool,
    /// What may have happened to the log for which readers have to look.
    looked_for: u8,
    waiting: Waiting,
    places: Box<[Place]>,
    /// The place of all keys at once, for writes that do not say which keys they change.
    all: Place,
    /// What earlier sessions have left, and what was read of it.
    backlog: Option<Arc<Backlog>>,
}

enum Waiting {
    /// Operations wait for the log.
    Strict(Arc<Beginning>),
    /// Operations do not wait.
    Later(Arc<Beginning>),
    /// The crash checker decides what is durable. The number of the last batch that somebody has waited for.
    Model(AtomicU64),
}

impl Gate {
    /// A gate for a pool with this log.
    pub(crate) fn new(
        log: &Arc<Beginning>,
        is_strict: bool,
        backlog: Option<Arc<Backlog>>,
    ) -> Self {
        let waiting = if is_strict {
            Waiting::Strict(Arc::clone(log))
        } else {
            Waiting::Later(Arc::clone(log))
        };
        Self::with(Arc::clone(log.progress()), waiting, backlog)
    }

    /// A gate for a pool in the memory of the crash checker.
    pub(crate) fn model() -> Self {
        let progress = Arc::<Progress>::default();
        progress.append(u64::MAX);
        let waiting = Waiting::Model(AtomicU64::new(trace::appended()));
        Self::with(progress, waiting, None)
    }

    fn with(progress: Arc<Progress>, waiting: Waiting, backlog: Option<Arc<Backlog>>) -> Self {
        let holds_readers = !matches!(waiting, Waiting::Later(_));
        Self {
            progress,
            holds_readers,
            looked_for: if holds_readers {
                DAMAGED | LOST
            } else {
                DAMAGED
            },
            waiting,
            places: (0..PLACES).map(|_| Place::default()).collect(),
            all: Place::default(),
            backlog,
        }
    }

    fn place(&self, key: u64) -> &Place {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.places[hash as usize % PLACES]
    }

    /// The log, if it has begun. Before, nothing has been written that anybody would wait for.
    fn log(&self) -> Option<&Arc<Log>> {
        match &self.waiting {
            Waiting::Strict(log) | Waiting::Later(log) => log.log(),
            Waiting::Model(_) => None,
        }
    }

    fn durable(&self) -> u64 {
        match &self.waiting {
            Waiting::Strict(_) | Waiting::Later(_) => self.progress.durable(),
            Waiting::Model(durable) => durable.load(Ordering::Relaxed),
        }
    }

    /// Where everything ends that has been appended, which a position is that never becomes durable if the log has lost something: then who reads what may be
    /// that gets the error.
    fn appended(&self) -> u64 {
        match &self.waiting {
            Waiting::Strict(_) if self.progress.has(LOST) => u64::MAX,
            Waiting::Strict(_) | Waiting::Later(_) => self.progress.appended(),
            Waiting::Model(_) => trace::appended(),
        }
    }

    /// An error if what was read may be wrong, since the log of an earlier session is damaged.
    #[inline]
    pub(crate) fn expect_whole(&self) -> Result<()> {
        self.backlog.as_ref().map_or(Ok(()), |it| it.expect_whole())
    }

    fn wait_for(&self, position: u64) -> Result<()> {
        if position <= self.durable() || self.is_left_for_later(position) {
            return Ok(());
        }
        match &self.waiting {
            Waiting::Strict(log) => log.wait()?.wait_for(position),
            Waiting::Later(_) => Ok(()),
            Waiting::Model(durable) => {
                // Others run while this thread waits.
                schedule::point();
                if durable.fetch_max(position, Ordering::Relaxed) < position {
                    trace::durable(position);
                }
                Ok(())
            }
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether a [`OneWait`] in this thread will wait for this position.
    fn is_left_for_later(&self, position: u64) -> bool {
        match ONE_WAIT.get() {
            Some((gate, most)) if gate == self.address() => {
                ONE_WAIT.set(Some((gate, most.max(position))));
                true
            }
            _ => false,
        }
    }

    /// Where the records of this thread end that it has appended since the last call; 0 if it has appended none. A log that has lost them gives no position:
    /// then the end of time.
    fn take_position(&self, pm: Pm) -> u64 {
        match &self.waiting {
            Waiting::Model(_) => trace::take_appended(),
            _ => pm.take_position().unwrap_or_else(|| self.appended()),
        }
    }

    /// Whether a reader may return whatever it has read: nearly always so where nobody writes, and cheaper to ask than whether a key is settled. The record of
    /// a write has been appended before anybody can read what it has written, so if all that has been appended is durable, all that was read is.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        let is_durable = !self.holds_readers | self.progress.is_all_durable();
        is_durable & !self.progress.has(self.looked_for)
    }

    /// [`is_open`](Self::is_open) as the crash checker knows it.
    fn is_open_in_model(&self) -> bool {
        match &self.waiting {
            Waiting::Model(durable) => trace::appended() <= durable.load(Ordering::Relaxed),
            Waiting::Strict(_) | Waiting::Later(_) => false,
        }
    }

    /// Whether a reader may return what it is about to look at, and has not copied. Not after a crash: to look at a page that is not there yet may find
    /// out that the log is damaged.
    #[inline]
    pub(crate) fn is_open_for_what_comes(&self) -> bool {
        self.backlog.is_none() && (self.is_open() || self.is_open_in_model())
    }

    /// Waits until what this thread has read of `keys` is durable.
    #[inline]
    pub(crate) fn after_reading(&self, keys: &[u64]) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        self.wait_for_keys(keys)
    }

    #[inline(never)]
    fn wait_for_keys(&self, keys: &[u64]) -> Result<()> {
        self.expect_whole()?;
        if planted(Bug::ReadersDoNotWait) || !self.holds_readers || self.is_open_in_model() {
            return Ok(());
        }
        let places = keys.iter().map(|&key| self.place(key));
        let position = places.chain([&self.all]).try_fold(0, |most, place| {
            place.position().map(|position| most.max(position))
        });
        self.wait_for(position.unwrap_or_else(|| self.appended()))
    }

    /// Whether [`after_reading`](Self::after_reading) of this key would not wait.
    #[inline(always)]
    pub(crate) fn is_settled(&self, key: u64) -> bool {
        self.is_open() || self.is_key_settled(key)
    }

    #[inline(never)]
    fn is_key_settled(&self, key: u64) -> bool {
        if self.expect_whole().is_err() {
            return false;
        }
        if planted(Bug::ReadersDoNotWait) || !self.holds_readers || self.is_open_in_model() {
            return true;
        }
        let durable = self.durable();
        [self.place(key), &self.all]
            .iter()
            .all(|place| place.position().is_some_and(|at| at <= durable))
    }

    /// Waits until everything that this thread can have read is durable.
    pub(crate) fn after_reading_anything(&self) -> Result<()> {
        self.expect_whole()?;
        if planted(Bug::ReadersDoNotWait) || !self.holds_readers {
            return Ok(());
        }
        self.wait_for(self.appended())
    }

    /// Does `work`, which may change the values of `keys`, and waits until what it has written is durable, and what it has read of them. Work
    /// that changes no value may have written all the same, before it has read: a signpost, or a part of a structure change.
    pub(crate) fn write<T, E: From<Error>>(
        &self,
        keys: impl Iterator<Item = u64> + Clone,
        pm: Pm,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.before_writing()?;
        if let Waiting::Later(log) = &self.waiting {
            let log = log.wait()?;
            // No reader asks for the places.
            let result = work();
            // Taken for nobody: a thread that opens many pools in its life would remember a position in the log of each.
            let _ = pm.take_position();
            log.throttle();
            log.expect_sound()?;
            self.expect_whole()?;
            return result;
        }
        let places = keys.clone().map(|key| self.place(key));
        let announced = Announced::new(self, places, pm);
        self.take_position(pm);
        let result = work();
        pm.fence_after_unlock();
        let position = self.take_position(pm);
        announced.end(position);
        // Also after an error: it may come after a part of the work.
        self.after_writing(position)?;
        if position == 0 || !planted(Bug::NoWait) {
            keys.into_iter()
                .try_for_each(|key| self.after_reading(&[key]))?;
        }
        result
    }

    /// Does `work`, which writes what nobody can reach yet, and does not wait: what is committed later comes later in the log.
    pub(crate) fn write_ahead<T>(&self, pm: Pm, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.before_writing()?;
        self.take_position(pm);
        let result = work();
        pm.fence_after_unlock();
        self.take_position(pm);
        if let Some(log) = self.log() {
            log.throttle();
        }
        result
    }

    /// [`write`](Self::write) for work that does not say which keys it changes.
    pub(crate) fn write_anything<T, E: From<Error>>(
        &self,
        pm: Pm,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.before_writing()?;
        let announced = Announced::new(self, std::iter::once(&self.all), pm);
        let result = work();
        pm.fence_after_unlock();
        let own = self.take_position(pm);
        // Other threads may have worked for this one.
        let position = if planted(Bug::HelpedWaitsForOwn) {
            own
        } else {
            self.appended()
        };
        announced.end(position);
        self.after_writing(position)?;
        result
    }

    fn before_writing(&self) -> Result<()> {
        match &self.waiting {
            Waiting::Strict(log) | Waiting::Later(log) => log.wait()?.expect_sound(),
            Waiting::Model(_) => Ok(()),
        }
    }

    fn after_writing(&self, position: u64) -> Result<()> {
        self.expect_whole()?;
        match &self.waiting {
            Waiting::Strict(log) => log.wait()?.throttle(),
            Waiting::Later(log) => {
                let log = log.wait()?;
                log.throttle();
                return log.expect_sound();
            }
            Waiting::Model(_) => {}
        }
        if position == 0 || planted(Bug::NoWait) {
            return Ok(());
        }
        self.wait_for(position)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Gate;
    use crate::pmem::{Medium, Pm};
    use crate::{Durability, Error, PoolOptions, Result};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    #[test]
    fn work_that_panics_is_no_write_under_way_for_good() {
        let gate = Gate::model();
        let pm = Pm::new(Medium::Process);
        let panicking = || -> Result<(), Error> { panic!("on purpose") };
        let keys = [1, 2];
        for _ in 0..2 {
            catch_unwind(AssertUnwindSafe(|| {
                gate.write(keys.into_iter(), pm, panicking)
            }))
            .unwrap_err();
            catch_unwind(AssertUnwindSafe(|| gate.write_anything(pm, panicking))).unwrap_err();
        }
        let places = keys.map(|key| gate.place(key));
        assert!(places.iter().all(|place| place.position().is_some()));
        assert!(gate.all.position().is_some());
        gate.write(keys.into_iter(), pm, || Ok::<(), Error>(()))
            .unwrap();
    }

    /// The other log is longer, so its positions are never reached in this one.
    #[test]
    fn a_closure_that_writes_to_another_pool_does_not_make_the_operation_wait_for_that_pool() {
        let directory = tempfile::tempdir().unwrap();
        let create = |name: &str, durability| {
            let mut options = PoolOptions::new();
            options.durability(durability).log_anywhere(true);
            options.create(directory.path().join(name)).unwrap()
        };
        let pool = create("own.pool", Durability::PowerLoss);
        let map = pool.map::<u64, u64>("m").unwrap();
        for durability in [
            Durability::PowerLoss,
            Durability::Interval(Duration::from_secs(3600)),
        ] {
            let other = create(&format!("{durability:?}.pool"), durability);
            let far = other.map::<u64, u64>("m").unwrap();
            let records: Vec<(u64, u64)> = (0..5000).map(|i| (i, i)).collect();
            far.insert_batch(&records).unwrap();
            let map = map.clone();
            let (done, is_done) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let updated = map.update_with(1, |before| {
                    far.insert(1, 2).unwrap();
                    Some(before.unwrap_or(0) + 1)
                });
                done.send(updated).unwrap();
            });
            let updated = is_done.recv_timeout(Duration::from_secs(60));
            updated.expect("the operation waits for good").unwrap();
        }
        assert_eq!(map.get(1).unwrap(), Some(2));
    }
}
