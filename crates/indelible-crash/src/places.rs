//! The pool and its spatial indexes, of every kind, under the checker.
//!
//! The contents are told by payload: how many records each payload has at each of its places. A relocation changes one payload, so that
//! the histories of the payloads can be judged one by one, as those of the keys of a map: see [`Counts`].

use crate::history::{Change, Counts, Saw, Steps};
use crate::maps::{OTHER_NAMES, add_other, if_sound, of_pool, one_near, options, other_name, text};
use crate::{Contents, CrashModel, Memory, Structure, Workload, lock};
use SpatialOperation::{
    BulkLoad, CreateOther, DropOther, Insert, InsertBatch, Nearest, Relocate, Remove, RenameOther,
    Reopen, Shrink, Window,
};
use indelible::checker::{Corners, EVERYTHING, History, Places, SpatialOperation};
use indelible::{Geometry, Pool, Record, Spatial, SpatialKind, SpatialOptions};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex};

/// A pool with a spatial index "m" of geometries of type `G`, and at times another of the same kind.
#[derive(Debug)]
pub struct Spatials<G> {
    /// How the index is created.
    pub options: SpatialOptions,
    /// Where records lie.
    pub places: Places,
    /// The crashes that the pool survives, as it promises.
    pub survives: CrashModel,
    /// The places of each payload, which would take long to compute each time.
    corners: Arc<[[Corners; Places::PLACES as usize]]>,
    geometry: PhantomData<fn() -> G>,
}

impl<G> Clone for Spatials<G> {
    fn clone(&self) -> Self {
        Self {
            options: self.options.clone(),
            places: self.places,
            survives: self.survives,
            corners: Arc::clone(&self.corners),
            geometry: PhantomData,
        }
    }
}

/// An open pool and its index.
pub struct Open<G: Geometry> {
    memory: Arc<Memory>,
    survives: CrashModel,
    handles: Mutex<Option<(Pool, Spatial<G>)>>,
    /// The other index, if it has been made and is open.
    other: Mutex<Option<Spatial<G>>>,
}

impl<G: Geometry> Open<G> {
    fn new(memory: &Arc<Memory>, survives: CrashModel, pool: Pool, index: Spatial<G>) -> Self {
        Self {
            memory: Arc::clone(memory),
            survives,
            handles: Mutex::new(Some((pool, index))),
            other: Mutex::new(None),
        }
    }

    fn handles(&self) -> Result<(Pool, Spatial<G>), String> {
        let handles = lock(&self.handles);
        handles.clone().ok_or_else(|| "it is closed".into())
    }

    fn reopen(&self) -> Result<(), String> {
        *lock(&self.other) = None;
        let mut handles = lock(&self.handles);
        if let Some((pool, index)) = handles.take() {
            drop(index);
            pool.close().map_err(text)?;
        }
        let pool = options(self.survives)
            .open_memory(&self.memory)
            .map_err(text)?;
        let index = pool.open_spatial("m").map_err(text)?;
        *handles = Some((pool, index));
        Ok(())
    }
}

/// The geometry with these corners.
pub(crate) fn shape<G: Geometry>([low, high]: &Corners) -> G {
    G::from_coordinates(|i| {
        if i < G::AXES {
            low[i]
        } else {
            high[i - G::AXES]
        }
    })
}

/// The distance of a point from a box, rounded either way. Scaled by the greatest of the differences, so that squares neither overflow nor vanish.
fn distance([low, high]: &Corners, point: &[f64; 3], axes: usize) -> f64 {
    let apart = |axis: usize| {
        (low[axis] - point[axis])
            .max(point[axis] - high[axis])
            .max(0.0)
    };
    let most = (0..axes).map(apart).fold(0.0, f64::max);
    if most == 0.0 || most == f64::INFINITY {
        return most;
    }
    let squares = (0..axes).map(|axis| (apart(axis) / most).powi(2));
    most * squares.sum::<f64>().sqrt()
}

/// Much more than two ways of computing a distance differ by.
const ROUNDING: f64 = 1e-9;

impl<G: Geometry> Spatials<G> {
    /// The structure of a history, and what is done to it.
    pub(crate) fn from_history(
        history: History<SpatialKind>,
    ) -> (Self, Workload<SpatialOperation>) {
        let places = history.keys;
        let of = |payload| std::array::from_fn(|place| places.corners(payload, place as u8));
        let structure = Self {
            options: history.options,
            places,
            survives: CrashModel::Pmem,
            corners: (0..places.payloads).map(of).collect(),
            geometry: PhantomData,
        };
        let workload = Workload {
            before: history.before,
            threads: history.threads,
        };
        (structure, workload)
    }

    fn corners(&self, payload: u64, place: u8) -> &Corners {
        &self.corners[payload as usize][usize::from(place)]
    }

    fn shape(&self, payload: u64, place: u8) -> G {
        shape(self.corners(payload, place))
    }

    /// The places of a payload that meet a box, as counts that are 0 or `u16::MAX`.
    fn meeting(&self, payload: u64, [low, high]: &Corners) -> Counts {
        let meets = |place: &u8| {
            let corners = self.corners(payload, *place);
            (0..G::AXES).all(|axis| {
                // A point has no upper corner of its own.
                corners[0][axis] <= high[axis] && corners[1][axis] >= low[axis]
            })
        };
        let all = (0..Places::PLACES).filter(meets);
        all.fold(Counts::default(), |counts, place| {
            counts.with(0xffff, place)
        })
    }

    /// The payloads that may have records in a box.
    fn payloads_in(&self, window: &Corners) -> Vec<u64> {
        let all = 0..self.places.payloads;
        all.filter(|&payload| self.meeting(payload, window).0 > 0)
            .collect()
    }

    /// Counts records by payload and place.
    fn counted(
        &self,
        records: impl Iterator<Item = Record<G>>,
    ) -> Result<BTreeMap<u64, Counts>, String> {
        let mut all: BTreeMap<u64, Counts> = BTreeMap::new();
        for Record { shape, payload, .. } in records {
            if payload >= self.places.payloads {
                return Err(format!("payload {payload} is there, which nobody inserted"));
            }
            let is_here = |place: &u8| self.shape(payload, *place) == shape;
            let place = (0..Places::PLACES)
                .find(is_here)
                .ok_or_else(|| format!("payload {payload} is at {shape:?}, where nobody put it"))?;
            let counts = all.entry(payload).or_default();
            *counts = counts.with(1, place);
        }
        Ok(all)
    }

    /// What a window says of each payload that may be there.
    fn search(&self, index: &Spatial<G>, window: &Corners) -> Result<Vec<Saw>, String> {
        let found = index.intersecting(shape(window)).map_err(text)?;
        let found = self.counted(found)?;
        let payloads = self.payloads_in(window);
        if let Some(payload) = found
            .keys()
            .find(|payload| payloads.binary_search(payload).is_err())
        {
            return Err(format!("payload {payload} is not in the window {window:?}"));
        }
        let saw = payloads.iter().map(|payload| {
            let found = found.get(payload).copied().unwrap_or_default();
            // Places outside of the window may have any number.
            let unknown = !self.meeting(*payload, window).0;
            Saw::Between(found, Counts(found.0 | unknown))
        });
        Ok(saw.collect())
    }

    /// What the nearest records say of each payload: all that is nearer than the last of them has been found, and what is farther has not.
    fn nearest(
        &self,
        index: &Spatial<G>,
        point: &[f64; 3],
        count: usize,
    ) -> Result<Vec<Saw>, String> {
        let at = G::Point::from_coordinates(|i| point[i]);
        let nearest = index.nearest(at).map_err(text)?.take(count);
        let found: Vec<(f64, Record<G>)> = nearest.collect::<Result<_, _>>().map_err(text)?;
        if !found.is_sorted_by(|a, b| a.0 <= b.0) {
            return Err(format!("the nearest records come out of order: {found:?}"));
        }
        let last = if found.len() < count {
            f64::INFINITY
        } else {
            found.last().map_or(0.0, |found| found.0)
        };
        let is_complete = found.len() < count;
        let found = self.counted(found.into_iter().map(|(_, record)| record))?;
        let saw = (0..self.places.payloads).map(|payload| {
            let found = found.get(&payload).copied().unwrap_or_default();
            let unknown = (0..Places::PLACES).filter(|&place| {
                let corners = self.corners(payload, place);
                let distance = distance(corners, point, G::AXES);
                !is_complete && (distance >= last * (1.0 - ROUNDING) || distance.is_nan())
            });
            let most = unknown.fold(found.0, |most, place| most | 0xffff << (16 * place));
            Saw::Between(found, Counts(most))
        });
        Ok(saw.collect())
    }
}

impl<G: Geometry> Structure for Spatials<G> {
    type Open = Open<G>;
    type Operation = SpatialOperation;

    fn create(&self, memory: &Arc<Memory>) -> Result<Open<G>, String> {
        let pool = options(self.survives).create_memory(memory).map_err(text)?;
        let index = pool.spatial_with("m", self.options.clone()).map_err(text)?;
        // So that its first extent is used as well.
        index.warm_up().map_err(text)?;
        Ok(Open::new(memory, self.survives, pool, index))
    }

    fn recover(&self, memory: &Arc<Memory>) -> Result<Open<G>, String> {
        let pool = options(self.survives).open_memory(memory).map_err(text)?;
        let index = pool.open_spatial("m").map_err(text)?;
        Ok(Open::new(memory, self.survives, pool, index))
    }

    fn run(&self, open: &Open<G>, operation: &SpatialOperation) -> Result<Vec<Saw>, String> {
        if *operation == Reopen {
            open.reopen()?;
            return Ok(Vec::new());
        }
        let (pool, index) = open.handles()?;
        let one = |result: indelible::Result<Saw>| result.map(|saw| vec![saw]).map_err(text);
        let records = |records: &[(u64, u8)]| -> Vec<(G, u64)> {
            let shapes = records.iter();
            shapes
                .map(|&(payload, place)| (self.shape(payload, place), payload))
                .collect()
        };
        match operation {
            &Insert(payload, place) => {
                let result = index.insert(self.shape(payload, place), payload);
                one(result.map(|()| Saw::Nothing))
            }
            InsertBatch(batch) => {
                index.insert_batch(&records(batch)).map_err(text)?;
                Ok(vec![Saw::Nothing; batch.len()])
            }
            &Remove(payload, place) => {
                let result = index.remove(self.shape(payload, place), payload);
                one(result.map(|is_there| Saw::PresenceAt(place, is_there)))
            }
            &Relocate(payload, from, to) => {
                let shapes = [from, to].map(|place| self.shape(payload, place));
                let result = index.relocate(payload, shapes[0], shapes[1]);
                one(result.map(|is_there| Saw::PresenceAt(from, is_there)))
            }
            Window(window) => self.search(&index, window),
            Nearest(point, count) => self.nearest(&index, point, *count),
            BulkLoad(load) => {
                index.bulk_load(records(load), 0.8).map_err(text)?;
                Ok(vec![Saw::Nothing; load.len()])
            }
            CreateOther => {
                let other = pool
                    .spatial_with("other", self.options.kind())
                    .map_err(text)?;
                *lock(&open.other) = Some(other);
                Ok(vec![Saw::Nothing])
            }
            RenameOther(to_second) => {
                let [from, to] = [!to_second, *to_second].map(|n| OTHER_NAMES[usize::from(n)]);
                pool.rename_object(from, to).map_err(text)?;
                Ok(vec![Saw::Nothing])
            }
            DropOther => {
                *lock(&open.other) = None;
                let name = other_name(pool.spatials().into_iter().map(|info| info.name))
                    .ok_or("there is no other index")?;
                pool.drop_object(name).map_err(text)?;
                Ok(vec![Saw::Nothing; 2])
            }
            Shrink => pool.shrink().map(|_| Vec::new()).map_err(text),
            _ => Ok(Vec::new()),
        }
    }

    fn steps(&self, operation: &SpatialOperation) -> Steps {
        let adds = |records: &[(u64, u8)], atomic| Steps {
            steps: records
                .iter()
                .map(|&(payload, place)| (payload, Change::Add(place)))
                .collect(),
            atomic,
        };
        let looks = |payloads: &mut dyn Iterator<Item = u64>| Steps {
            steps: payloads.map(|payload| (payload, Change::Look)).collect(),
            atomic: false,
        };
        match operation {
            &Insert(payload, place) => Steps::one(payload, Change::Add(place)),
            &Remove(payload, place) => Steps::one(payload, Change::Take(place)),
            &Relocate(payload, from, to) => Steps::one(payload, Change::Move(from, to)),
            InsertBatch(records) => adds(records, false),
            BulkLoad(records) => adds(records, true),
            Window(window) => looks(&mut self.payloads_in(window).into_iter()),
            Nearest(..) => looks(&mut (0..self.places.payloads)),
            CreateOther => Steps::other_created(),
            RenameOther(to_second) => Steps::other_renamed(*to_second),
            DropOther => Steps::other_dropped(),
            _ => Steps::default(),
        }
    }

    fn contents(&self, open: &Open<G>) -> Result<Contents, String> {
        let (pool, index) = open.handles()?;
        let mut problems = index.check().map_err(text)?;
        problems.extend(pool.check());
        let found = index.intersecting(shape(&EVERYTHING)).map_err(text)?;
        let count = found.len() as u64;
        let length = index.len().map_err(text)?;
        if count != length {
            problems.push(format!(
                "the index says that it has {length} records, and has {count}"
            ));
        }
        let counted = self.counted(found)?.into_iter();
        let mut contents: Contents = counted
            .map(|(payload, counts)| (payload, counts.0))
            .collect();
        if pool.spatials().len() > 1 {
            let name = other_name(pool.spatials().into_iter().map(|info| info.name))
                .ok_or("the other index has neither of its names")?;
            let other = pool.open_spatial::<G>(name).map_err(text)?;
            problems.extend(other.check().map_err(text)?);
            if other.len().map_err(text)? > 0 {
                problems.push("the other index has records".into());
            }
            // Payloads are smaller numbers.
            add_other(&mut contents, name);
        }
        if_sound(contents, &problems)
    }

    fn probes(&self, seed: u64, near: &[u64]) -> Vec<SpatialOperation> {
        let near = one_near(seed, near);
        let payload = |shift: u32| near.unwrap_or((seed >> shift) % self.places.payloads);
        let [from, to] = [40, 42].map(|shift: u32| (seed >> shift) as u8 % Places::PLACES);
        let mut probes = vec![
            Insert(payload(16), from),
            Window(self.places.around(payload(16), from, 1.0)),
        ];
        match (seed >> 4) % 8 {
            0 | 1 => probes.push(Remove(payload(26), from)),
            2 | 3 => probes.push(Relocate(payload(26), from, to)),
            4 => {
                let point = self.places.corners(payload(26), to)[0];
                probes.push(Nearest(point.map(|x| x.clamp(-1e200, 1e200)), 3));
            }
            5 => {
                let batch = (0..6).map(|i| ((payload(26) + i) % self.places.payloads, to));
                probes.push(InsertBatch(batch.collect()));
            }
            _ => {}
        }
        probes.extend(of_pool(seed, Reopen, Shrink));
        probes
    }

    fn may_shorten(&self, operation: &SpatialOperation) -> bool {
        matches!(operation, Shrink | Reopen)
    }

    fn crash(&self, open: &Open<G>) {
        if let Ok((pool, _)) = open.handles() {
            pool.abandon();
        }
    }
}
