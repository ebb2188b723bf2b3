//! rstar's R*-tree behind the standard library's lock.

use super::volatile;
use crate::contestants::Contestant;
use crate::data::points::{Point, point};
use crate::index::Index;
use crate::workload::value_of;
use rstar::primitives::GeomWithData;
use rstar::{AABB, RTree};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

type Record = GeomWithData<Point, u64>;

#[derive(Default)]
struct Star(RwLock<RTree<Record>>);

/// Grown by inserts, and bulk-loaded.
pub(super) fn contestants() -> [Contestant; 2] {
    let contestant = |name, about, loads_at_once| {
        let mut contestant = volatile(name, about, |_| Ok(Box::<Star>::default()));
        if let Some(points) = &mut contestant.points {
            points.is_mutable = true;
            points.loads_at_once = loads_at_once;
        }
        contestant
    };
    [
        contestant(
            "rstar",
            "rstar 0.12.2: RTree behind a std::sync::RwLock, grown by inserts",
            false,
        ),
        contestant(
            "rstar-bulk",
            "rstar 0.12.2: the same, bulk-loaded in every experiment",
            true,
        ),
    ]
}

impl Star {
    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, RTree<Record>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn write(&self) -> RwLockWriteGuard<'_, RTree<Record>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index for Star {
    fn get(&self, key: u64) -> Option<u64> {
        let tree = self.read();
        tree.locate_at_point(&point(key)).map(|found| found.data)
    }

    #[inline]
    fn insert(&self, key: u64, value: u64) {
        self.write().insert(Record::new(point(key), value));
    }

    fn update(&self, key: u64, value: u64) -> bool {
        let mut tree = self.write();
        let found = tree.locate_at_point_mut(&point(key));
        found.map(|found| found.data = value).is_some()
    }

    #[inline]
    fn remove(&self, key: u64) -> bool {
        let mut tree = self.write();
        let mut remove = |value| tree.remove(&Record::new(point(key), value)).is_some();
        remove(value_of(key)) || remove(!value_of(key))
    }

    fn scan(&self, _from: u64, _count: usize, _page: &mut Vec<(u64, u64)>) {
        unimplemented!("points have no order")
    }

    fn window(&self, low: Point, high: Point, page: &mut Vec<u64>) {
        let tree = self.read();
        let found = tree.locate_in_envelope_intersecting(&AABB::from_corners(low, high));
        page.extend(found.map(|found| found.data));
    }

    fn nearest(&self, point: Point, count: usize, page: &mut Vec<u64>) {
        let tree = self.read();
        let nearest = tree.nearest_neighbor_iter(&point).take(count);
        page.extend(nearest.map(|found| found.data));
    }

    /// Its nodes are as full as they can be after this: rstar offers no choice.
    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        let records = records
            .iter()
            .map(|&(key, value)| Record::new(point(key), value));
        *self.write() = RTree::bulk_load(records.collect());
        true
    }
}
