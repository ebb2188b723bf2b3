//! geo-index: an R-tree in one array, packed along a Hilbert curve, that cannot be changed.

use super::{cannot_be_changed, volatile};
use crate::contestants::Contestant;
use crate::data::points::{Point, point};
use crate::index::Index;
use geo_index::rtree::sort::HilbertSort;
use geo_index::rtree::{RTree, RTreeBuilder, RTreeIndex};
use std::sync::OnceLock;

/// The tree, and the value of each point by its number.
#[derive(Default)]
struct Packed(OnceLock<(RTree<f64>, Vec<u64>)>);

pub(super) fn contestant() -> Contestant {
    volatile(
        "geo-index",
        "geo-index 0.4.0: RTree in Hilbert order, built once; values in a vector",
        |_| Ok(Box::<Packed>::default()),
    )
}

impl Packed {
    #[inline]
    fn built(&self) -> (&RTree<f64>, &[u64]) {
        let (tree, values) = self.0.get().expect("a tree that was built");
        (tree, values)
    }
}

impl Index for Packed {
    fn get(&self, key: u64) -> Option<u64> {
        let mut page = Vec::new();
        self.window(point(key), point(key), &mut page);
        page.first().copied()
    }

    fn insert(&self, _key: u64, _value: u64) {
        cannot_be_changed()
    }

    fn update(&self, _key: u64, _value: u64) -> bool {
        cannot_be_changed()
    }

    fn remove(&self, _key: u64) -> bool {
        cannot_be_changed()
    }

    fn scan(&self, _from: u64, _count: usize, _page: &mut Vec<(u64, u64)>) {
        unimplemented!("points have no order")
    }

    fn window(&self, low: Point, high: Point, page: &mut Vec<u64>) {
        let (tree, values) = self.built();
        let found = tree.search(low[0], low[1], high[0], high[1]);
        page.extend(found.into_iter().map(|number| values[number as usize]));
    }

    fn nearest(&self, [x, y]: Point, count: usize, page: &mut Vec<u64>) {
        let (tree, values) = self.built();
        let found = tree.neighbors(x, y, Some(count), None);
        page.extend(found.into_iter().map(|number| values[number as usize]));
    }

    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        let mut builder = RTreeBuilder::new(records.len() as u32);
        for &(key, _) in records {
            let [x, y] = point(key);
            builder.add(x, y, x, y);
        }
        let values = records.iter().map(|&(_, value)| value).collect();
        self.0
            .set((builder.finish::<HilbertSort>(), values))
            .is_ok()
    }
}
