//! What the host adds to a spatial engine: it refuses writes to pools that are open for reading only, and repeats what fails for want of
//! space.

use super::{Host, expect_fill};
use crate::Result;
use crate::engines::{Engine, Spatial};
use crate::spatial::Geometry;

impl<E: Engine> Host<E> {
    /// Adds a record.
    pub(crate) fn insert_shape<G: Geometry>(&self, shape: &G, payload: u64) -> Result<()>
    where
        E: Spatial<G>,
    {
        self.expect_writable()?;
        self.durably(payload, || {
            self.with_space(|| self.shared.engine.insert(shape, payload))
        })
    }

    /// Adds records, in an order of the engine's choice.
    pub(crate) fn insert_shapes<G: Geometry>(&self, mut records: Vec<(G, u64)>) -> Result<()>
    where
        E: Spatial<G>,
    {
        self.expect_writable()?;
        let core = &self.shared.place.core;
        core.durably(|| self.with_space(|| self.shared.engine.insert_batch(&mut records)))
    }

    /// Removes one record equal to this one, if there is one.
    pub(crate) fn remove_shape<G: Geometry>(&self, shape: &G, payload: u64) -> Result<bool>
    where
        E: Spatial<G>,
    {
        self.expect_writable()?;
        self.durably(payload, || {
            self.with_space(|| self.shared.engine.remove(shape, payload))
        })
    }

    /// Moves one record, if it is there.
    pub(crate) fn relocate<G: Geometry>(&self, payload: u64, from: &G, to: &G) -> Result<bool>
    where
        E: Spatial<G>,
    {
        self.expect_writable()?;
        self.durably(payload, || {
            self.with_space(|| self.shared.engine.relocate(payload, from, to))
        })
    }

    /// Fills the empty index.
    pub(crate) fn bulk_load_shapes<G: Geometry>(
        &self,
        mut records: Vec<(G, u64)>,
        fill: f64,
    ) -> Result<()>
    where
        E: Spatial<G>,
    {
        self.expect_writable()?;
        expect_fill(fill)?;
        // The load replaces all nodes, which the sweep may not meet.
        self.shared.warm_up(&|| true)?;
        let core = &self.shared.place.core;
        core.durably(|| self.with_space(|| self.shared.engine.bulk_load(&mut records, fill)))
    }

    /// Does work on records with this payload, and waits until it is durable, if the pool promises that.
    #[inline]
    fn durably<T>(&self, payload: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match &self.shared.gate {
            None => work(),
            Some(gate) => self.write_through(gate, std::iter::once(payload), work),
        }
    }

    /// Waits until what a search has read is durable, if the pool promises that.
    #[inline]
    pub(crate) fn settled<T>(&self, read: Result<T>) -> Result<T> {
        let read = read?;
        self.shared.after_reading_anything()?;
        Ok(read)
    }

    /// The engine, for what only reads.
    pub(crate) fn reader<G: Geometry>(&self) -> &impl Spatial<G>
    where
        E: Spatial<G>,
    {
        &self.shared.engine
    }
}
