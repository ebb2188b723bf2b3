//! Indelible: each kind of spatial index of the library's list, with each of the promises that a pool can make.

use super::OfPoints;
use crate::contestants::ours::{Family, about, on_memory_file_and_pmem};
use crate::contestants::{Contestant, Place};
use crate::data::points::{self, Point};
use crate::index::Index;
use crate::outcome::Statistics;
use anyhow::{Context, Result};
use indelible::{Box2, Point2, Pool, Spatial, SpatialKind};

/// A spatial index in a pool of its own.
struct Ours {
    index: Spatial<Point2>,
}

/// The three contestants of each kind of index, in the order of the library's list.
pub(in crate::contestants) fn contestants() -> Vec<Contestant> {
    let kinds = SpatialKind::all().iter().copied();
    kinds.flat_map(of_kind).collect()
}

/// The contestant of a kind of spatial index that uses the library's default pool. Two more contestants of each kind have this name and an
/// ending: `-dram` promises less, `-pmem` more.
#[must_use]
pub fn name_of(kind: SpatialKind) -> String {
    format!("indelible-{kind}")
}

fn of_kind(kind: SpatialKind) -> [Contestant; 3] {
    let points = OfPoints {
        options: Some(kind.into()),
        loads_at_once: false,
        is_mutable: true,
        has_windows: true,
    };
    let about = |pool: &str| about(kind, pool);
    on_memory_file_and_pmem::<Ours>(&name_of(kind), about, None, Some(points))
}

impl Family for Ours {
    fn create(pool: &Pool, place: &Place) -> Result<Box<dyn Index>> {
        let options = place.spatial.as_ref();
        let options = options.context("a spatial index of indelible needs options")?;
        let index = pool.spatial_with("bench", options)?;
        Ok(Box::new(Self { index }))
    }

    fn reopen(pool: &Pool) -> Result<Box<dyn Index>> {
        let index = pool.open_spatial("bench")?;
        Ok(Box::new(Self { index }))
    }
}

#[inline]
fn point_of([x, y]: Point) -> Point2 {
    Point2::new(x, y)
}

#[inline]
fn place(key: u64) -> Point2 {
    point_of(points::point(key))
}

impl Index for Ours {
    fn get(&self, key: u64) -> Option<u64> {
        let mut found = self.index.at_point(place(key)).expect("at_point");
        found.next().map(|record| record.payload)
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        self.index.insert(place(key), value).expect("insert");
    }

    fn update(&self, key: u64, value: u64) -> bool {
        let place = place(key);
        self.index.insert(place, value).expect("insert");
        if self.index.remove(place, !value).expect("remove") {
            return true;
        }
        // The value was there already, or the point was not.
        self.index.remove(place, value).expect("remove");
        self.get(key).is_some()
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        let value = crate::workload::value_of(key);
        let remove = |value| self.index.remove(place(key), value).expect("remove");
        remove(value) || remove(!value)
    }

    fn scan(&self, _from: u64, _count: usize, _page: &mut Vec<(u64, u64)>) {
        unimplemented!("points have no order")
    }

    fn window(&self, low: Point, high: Point, page: &mut Vec<u64>) {
        let window = Box2::new(point_of(low), point_of(high));
        let found = self.index.intersecting(window).expect("intersecting");
        page.extend(found.map(|record| record.payload));
    }

    fn nearest(&self, point: Point, count: usize, page: &mut Vec<u64>) {
        let nearest = self.index.nearest(point_of(point)).expect("nearest");
        let payload = |found: indelible::Result<(f64, indelible::Record<Point2>)>| {
            found.expect("nearest").1.payload
        };
        page.extend(nearest.take(count).map(payload));
    }

    fn insert_batch(&self, records: &[(u64, u64)]) {
        let records: Vec<_> = records
            .iter()
            .map(|&(key, value)| (place(key), value))
            .collect();
        self.index.insert_batch(&records).expect("insert_batch");
    }

    fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> bool {
        let records = records.iter().map(|&(key, value)| (place(key), value));
        self.index.bulk_load(records, fill).expect("bulk_load");
        true
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(self.index.stat().expect("stat").into())
    }
}
