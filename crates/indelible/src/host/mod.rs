//! The host: what all engines share, so that no engine has to implement it.
//!
//! | file | what it owns |
//! |---|---|
//! | this one | opening and closing an object, retries for want of space, validation of input |
//! | `warm_up` | the thread that rebuilds what the last process left |
//! | `count` | the number of records across a clean close |
//! | `blocks` | what concerns all spaces of an object together |
//! | `check` | checks and statistics that do not depend on the engine |
//! | `cursor` | a range in progress, from both ends |
//! | `handle` | what the catalog and the pool have to know of an open object of whatever family |
//! | `any` | one map of any kind: the only branch on kinds, generated from the list of engines |
//! | `spatial` | what the host adds to a spatial engine |
//! | `any_spatial` | one spatial index of any kind, as `any` |
//! | `strings` | what the host adds to an engine of byte strings |
//! | `any_strings` | one map of byte strings of any kind, as `any` |

mod any;
mod any_spatial;
mod any_strings;
mod blocks;
mod check;
mod count;
mod cursor;
mod handle;
mod spatial;
mod strings;
mod warm_up;

pub(crate) use crate::concurrency::closures::deciding;
pub(crate) use any::{AnyCursor, AnyMap};
pub(crate) use any_spatial::AnySpatial;
pub(crate) use any_strings::AnyStrings;
pub use check::{IndexStat, MapStat, SpatialStat, StringStat};
pub(crate) use handle::Handle;

use crate::engines::{Decision, Engine, EngineOptions, Lookup, Ordered, Place};
use crate::pool::{Gate, Signature, as_last_resort};
use crate::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

crate::pmem::planted::bugs! { "host":
    /// The number of records in the catalog is used whatever generation wrote it, and not only after a clean close.
    ForgetGeneration,
}

/// What the user's threads and the thread that warms the object up share.
struct Shared<E> {
    engine: E,
    /// What operations wait for, if the pool has a log.
    gate: Option<Arc<Gate>>,
    place: Place,
    stop: AtomicBool,
    is_warm: AtomicBool,
    /// Held by the thread that warms the object up.
    warming: Mutex<()>,
}

/// One open object.
pub(crate) struct Host<E: Engine> {
    shared: Arc<Shared<E>>,
    background: Option<JoinHandle<()>>,
}

impl<E: Engine> Host<E> {
    /// Opens the object of a catalog entry. O(1).
    pub(crate) fn open(place: Place) -> Result<Arc<Self>> {
        crate::kernels::expect_kernel()?;
        let signature = place.core.signature(place.slot);
        let format = signature.object_format;
        if format > E::Options::FORMAT {
            return Err(Error::NewerFormat {
                found: format,
                supported: E::Options::FORMAT,
            });
        }
        let options = E::Options::decode(format, &signature.options)?;
        let engine = E::open(&place, options, format)?;
        let shared = Arc::new(Shared {
            engine,
            gate: place.core.gate().cloned(),
            place,
            stop: AtomicBool::new(false),
            is_warm: AtomicBool::new(false),
            warming: Mutex::default(),
        });
        shared.begin_count();
        if shared.gate.is_some() {
            // Appends what was stored without a fence, before other threads store there.
            shared.place.core.pm().fence();
        }
        let background = shared.warm_up_in_background();
        Ok(Arc::new(Self { shared, background }))
    }

    /// What the object is called now. The caller does not hold the registry.
    pub(crate) fn name(&self) -> String {
        let core = &self.shared.place.core;
        // A renaming writes the name that does not count; a second one would write the one that is being read.
        let _objects = core.registry();
        core.name_of(self.shared.place.slot)
    }

    /// What the catalog says of the object.
    pub(crate) fn signature(&self) -> Signature {
        self.shared.place.core.signature(self.shared.place.slot)
    }

    /// The number of the catalog entry.
    pub(crate) fn slot(&self) -> usize {
        self.shared.place.slot
    }

    pub(crate) fn len(&self) -> Result<u64> {
        self.shared.records()
    }

    pub(crate) fn warm_up(&self) -> Result<()> {
        self.shared.warm_up(&|| true)
    }

    pub(crate) fn release_memory(&self) -> u64 {
        self.shared.engine.release_memory()
    }

    pub(crate) fn compact(&self) -> Result<()> {
        // Blocks can be given back only from extents that have been swept.
        self.shared.warm_up(&|| true)?;
        self.shared.engine.compact()
    }

    pub(crate) fn expect_writable(&self) -> Result<()> {
        if self.shared.place.core.is_read_only() {
            return Err(Error::ReadOnly);
        }
        Ok(())
    }

    /// Frees space for a write that has failed with `NoSpace`. Soon after an open, which blocks of old extents are free is not known
    /// yet: finishes the sweep. An extent without a block in use can serve blocks of another size, or another object, only after it has gone back to the
    /// pool: gives all such extents back, of the other open objects too.
    #[cold]
    fn find_space(&self) -> Result<()> {
        if self.shared.needs_sweep() {
            self.shared.warm_up(&|| true)?;
        }
        self.shared.give_back();
        self.shared.place.core.give_back_unused();
        Ok(())
    }

    /// Does `work`. If it fails with `NoSpace`, frees space and does it once more.
    fn with_space<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        match work() {
            Err(Error::NoSpace(_)) => self.with_more_space(&mut work),
            result => result,
        }
    }

    /// Does `work`, which has failed with `NoSpace`, once more after it has freed space, and a third time if the engine can free more.
    #[cold]
    fn with_more_space<T>(&self, work: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        self.find_space()?;
        match as_last_resort(&mut *work) {
            Err(Error::NoSpace(_)) if self.shared.engine.make_room()? => {
                self.find_space()?;
                as_last_resort(work)
            }
            result => result,
        }
    }

    /// Does `work`, which may change the values of `keys`, and waits until what it has written and read of them is durable.
    #[inline]
    fn write_through<T, F: From<Error>>(
        &self,
        gate: &Gate,
        keys: impl Iterator<Item = u64> + Clone,
        work: impl FnOnce() -> Result<T, F>,
    ) -> Result<T, F> {
        let pm = self.shared.place.core.pm();
        if E::IS_HELPED {
            return gate.write_anything(pm, work);
        }
        gate.write(keys, pm, work)
    }
}

impl<E: Engine> Shared<E> {
    /// Lets the engine make durable what it has kept back. What an error leaves undone is done by the recovery of the next open.
    fn finish(&self) {
        let core = &self.place.core;
        if core.is_read_only() || core.is_closed() {
            return;
        }
        if let Err(error) = self.engine.before_close() {
            tracing::warn!(%error, "closing an object");
        }
    }

    /// Waits until whatever was read is durable, if the pool promises that.
    #[inline]
    fn after_reading_anything(&self) -> Result<()> {
        match &self.gate {
            None => Ok(()),
            Some(gate) => gate.after_reading_anything(),
        }
    }
}

impl<E: Ordered> Host<E> {
    #[inline(always)]
    pub(crate) fn try_get(&self, key: u64) -> Lookup {
        let found = self.shared.engine.try_get(key);
        match &self.shared.gate {
            None => found,
            // What was found is not durable yet: `get` waits.
            Some(gate) if !gate.is_settled(key) => Lookup::Retry,
            Some(_) => found,
        }
    }

    pub(crate) fn get(&self, key: u64) -> Result<Option<u64>> {
        let value = self.shared.engine.get(key)?;
        self.after_reading(&[key])?;
        Ok(value)
    }

    /// Waits until what was read of `keys` is durable, if the pool promises that.
    #[inline]
    fn after_reading(&self, keys: &[u64]) -> Result<()> {
        match &self.shared.gate {
            None => Ok(()),
            Some(gate) => gate.after_reading(keys),
        }
    }

    pub(crate) fn get_batch(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<()> {
        let engine = &self.shared.engine;
        let lookups = keys.chunks(E::LOOKUPS_TOGETHER);
        for (keys, values) in lookups.zip(values.chunks_mut(E::LOOKUPS_TOGETHER)) {
            let failed = engine.look_up_together(keys, values);
            for at in (0..keys.len()).filter(|at| failed >> at & 1 != 0) {
                values[at] = engine.get(keys[at])?;
            }
        }
        self.after_reading(keys)
    }

    /// See [`Ordered::apply`].
    #[inline]
    pub(crate) fn apply(
        &self,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        if self.shared.place.core.is_read_only() {
            return Err(Error::ReadOnly.into());
        }
        match &self.shared.gate {
            None => self.apply_now(key, decide),
            Some(gate) => self.apply_durably(gate, key, &mut decide),
        }
    }

    /// [`apply`](Self::apply) in a pool with a log: returns when the change, or what was read, is durable.
    #[inline(never)]
    fn apply_durably(
        &self,
        gate: &Gate,
        key: u64,
        decide: &mut dyn FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        self.write_through(gate, std::iter::once(key), || self.apply_now(key, decide))
    }

    #[inline(always)]
    fn apply_now(
        &self,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        match self.shared.engine.apply(key, &mut decide) {
            Err(error) if matches!(*error, Error::NoSpace(_)) => self.apply_again(key, &mut decide),
            result => result,
        }
    }

    /// Applies `decide` once more, after freeing space.
    #[cold]
    fn apply_again(
        &self,
        key: u64,
        mut decide: &mut dyn FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        let engine = &self.shared.engine;
        let mut apply = || engine.apply(key, &mut decide).map_err(|error| *error);
        self.with_more_space(&mut apply).map_err(Box::new)
    }

    pub(crate) fn insert_batch(&self, records: &[(u64, u64)]) -> Result<()> {
        self.expect_writable()?;
        let mut rest = records;
        let mut insert = || self.with_space(|| self.insert_all(&mut rest));
        match &self.shared.gate {
            None => insert(),
            Some(gate) => {
                let keys = records.iter().map(|&(key, _)| key);
                self.write_through(gate, keys, insert)
            }
        }
    }

    /// Inserts records whose keys ascend. `rest` loses those that are inserted: after an error the others are not.
    fn insert_all(&self, rest: &mut &[(u64, u64)]) -> Result<()> {
        let engine = &self.shared.engine;
        while !rest.is_empty() {
            let most = rest.len().min(E::RECORDS_PER_FENCE);
            let done = engine.insert_sharing_fence(&rest[..most]);
            *rest = &rest[done..];
            if done > 0 && done == E::RECORDS_PER_FENCE {
                continue;
            }
            // The record that cannot share a fence is inserted by itself.
            if let Some((&(key, value), more)) = rest.split_first() {
                engine
                    .apply(key, &mut |_| Decision::Put(value))
                    .map_err(|error| *error)?;
                *rest = more;
            }
        }
        Ok(())
    }

    pub(crate) fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        self.expect_writable()?;
        expect_fill(fill)?;
        if let Some(at) = records.windows(2).position(|pair| pair[0].0 >= pair[1].0) {
            return Err(Error::NotAscending(at + 1));
        }
        // The load replaces all nodes, which the sweep may not meet.
        self.shared.warm_up(&|| true)?;
        let core = &self.shared.place.core;
        core.durably(|| self.with_space(|| self.shared.engine.bulk_load(records, fill)))
    }
}

/// An error unless `fill` is the share of a node that a bulk load may fill.
fn expect_fill(fill: f64) -> Result<()> {
    if !(0.1..=1.0).contains(&fill) {
        return Err(Error::BadOption(format!(
            "a fill factor lies between 0.1 and 1.0, not at {fill}"
        )));
    }
    Ok(())
}

impl<E: Engine> Drop for Host<E> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // A child of the process that has started the thread does not have it.
        if let Some(background) = self.background.take()
            && !self.shared.place.core.is_forked()
        {
            let _ = background.join();
        }
        self.shared.finish();
        self.shared.record_count();
        // A shrink may hold the spaces for a moment longer, and the object may be opened again by then.
        self.shared.close_spaces();
        let place = &self.shared.place;
        place.core.object_was_closed(place.slot);
    }
}
