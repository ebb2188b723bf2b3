//! A VOLATILE placeholder of the Hilbert index: a list of records in DRAM, searched by brute force. It is here until the index is, so that
//! what lies above an engine can be built and tested.

mod options;

pub use options::HilbertOptions;

use super::{Engine, Fact, Nearest, Neighbour, Place, Report, Spatial};
use crate::concurrency::records::{RecordCount, RecordLocks};
use crate::concurrency::sync::lock;
use crate::pool::Space;
use crate::spatial::{Geometry, Metric, Rect};
use crate::{Error, Result};
use std::sync::{Arc, Mutex};

/// An open index.
pub(crate) struct Index<G> {
    locks: RecordLocks,
    count: RecordCount,
    records: Mutex<Vec<(G, u64)>>,
}

impl<G: Geometry> Index<G> {
    fn add(&self, records: &mut Vec<(G, u64)>, shape: &G, payload: u64) {
        records.push((*shape, payload));
        self.count.change(self.locks.entry(0), 0, 1);
    }

    fn take(&self, records: &mut Vec<(G, u64)>, shape: &G, payload: u64) -> bool {
        let Some(at) = records.iter().position(|of| *of == (*shape, payload)) else {
            return false;
        };
        records.swap_remove(at);
        self.count.change(self.locks.entry(0), 0, -1);
        true
    }
}

impl<G: Geometry> Engine for Index<G> {
    type Options = HilbertOptions;

    fn format(_: &Place, _: &HilbertOptions) -> Result<()> {
        Ok(())
    }

    fn open(_: &Place, _: HilbertOptions, _: u32) -> Result<Self> {
        let (locks, count) = (RecordLocks::new(2), RecordCount::default());
        count.begin_with(&locks, 0);
        Ok(Self {
            locks,
            count,
            records: Mutex::default(),
        })
    }

    fn spaces(&self) -> &[Arc<Space>] {
        &[]
    }

    fn locks(&self) -> &RecordLocks {
        &self.locks
    }

    fn count(&self) -> &RecordCount {
        &self.count
    }

    fn sweeps_at_once(&self) -> bool {
        true
    }

    fn sweep(&self, _: &dyn Fn() -> bool) -> Result<bool> {
        Ok(true)
    }

    fn check(&self, report: &mut Report) -> Result<()> {
        report.add_records(lock(&self.records).len() as u64);
        Ok(())
    }

    fn facts(&self, _: u64) -> Result<Vec<Fact>> {
        Ok(Vec::new())
    }

    fn dram_bytes(&self) -> u64 {
        (lock(&self.records).capacity() * size_of::<(G, u64)>()) as u64
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }
}

impl<G: Geometry> Spatial<G> for Index<G> {
    fn insert(&self, shape: &G, payload: u64) -> Result<()> {
        self.add(&mut lock(&self.records), shape, payload);
        Ok(())
    }

    fn remove(&self, shape: &G, payload: u64) -> Result<bool> {
        Ok(self.take(&mut lock(&self.records), shape, payload))
    }

    fn relocate(&self, payload: u64, from: &G, to: &G) -> Result<bool> {
        let mut records = lock(&self.records);
        let is_there = self.take(&mut records, from, payload);
        if is_there {
            self.add(&mut records, to, payload);
        }
        Ok(is_there)
    }

    fn search(
        &self,
        windows: &[Rect],
        accepts: &mut dyn FnMut(&G, u64) -> bool,
        found: &mut Vec<(G, u64)>,
    ) -> Result<()> {
        let records = lock(&self.records).clone();
        let meets = |shape: &G| {
            let rect = Rect::of(shape);
            windows.iter().any(|window| window.intersects(&rect))
        };
        let records = records.into_iter();
        found.extend(records.filter(|(shape, payload)| meets(shape) && accepts(shape, *payload)));
        Ok(())
    }

    fn nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
        found: &mut Vec<Neighbour<G>>,
    ) -> Result<()> {
        let records = lock(&self.records).clone();
        let neighbours = records.into_iter().map(|(shape, payload)| Neighbour {
            distance: metric.comparable(&shape),
            shape,
            payload,
        });
        let mut neighbours: Vec<Neighbour<G>> = neighbours
            .filter(|of| of.distance <= request.within)
            .filter(|of| request.from.is_none_or(|from| of.compare(&from).is_ge()))
            .collect();
        neighbours.sort_by(Neighbour::compare);
        let accepted = neighbours
            .into_iter()
            .filter(|of| (request.accepts)(&of.shape, of.payload));
        found.extend(accepted.take(request.wanted));
        Ok(())
    }

    fn bounds(&self) -> Result<Option<Rect>> {
        let records = lock(&self.records);
        let rects = records.iter().map(|(shape, _)| Rect::of(shape));
        Ok(rects.reduce(|all, rect| all.join(&rect)))
    }

    fn bulk_load(&self, new: &mut [(G, u64)], _: f64) -> Result<()> {
        let mut records = lock(&self.records);
        if !records.is_empty() {
            return Err(Error::NotEmpty);
        }
        for (shape, payload) in new {
            self.add(&mut records, shape, *payload);
        }
        Ok(())
    }

    fn leaves(&self) -> Result<Vec<(Rect, usize)>> {
        let bounds = self.bounds()?;
        Ok(bounds
            .map(|rect| (rect, lock(&self.records).len()))
            .into_iter()
            .collect())
    }
}
