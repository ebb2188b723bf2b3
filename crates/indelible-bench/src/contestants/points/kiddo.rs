//! kiddo's k-d tree that cannot be changed. It searches for the nearest points; it has no windows.

use super::{cannot_be_changed, volatile};
use crate::contestants::Contestant;
use crate::data::points::{Point, point};
use crate::index::Index;
use kiddo::{ImmutableKdTree, SquaredEuclidean};
use std::num::NonZero;
use std::sync::OnceLock;

/// The tree, and the value of each point by its number.
#[derive(Default)]
struct Kiddo(OnceLock<(ImmutableKdTree<f64, 2>, Vec<u64>)>);

pub(super) fn contestant() -> Contestant {
    let about = "kiddo 5.3.3: ImmutableKdTree, built once; values in a vector";
    let mut contestant = volatile("kiddo", about, |_| Ok(Box::<Kiddo>::default()));
    if let Some(points) = &mut contestant.points {
        points.has_windows = false;
    }
    contestant
}

impl Kiddo {
    #[inline]
    fn built(&self) -> (&ImmutableKdTree<f64, 2>, &[u64]) {
        let (tree, values) = self.0.get().expect("a tree that was built");
        (tree, values)
    }
}

impl Index for Kiddo {
    fn get(&self, key: u64) -> Option<u64> {
        let (tree, values) = self.built();
        let nearest = tree.nearest_one::<SquaredEuclidean>(&point(key));
        (nearest.distance == 0.0).then(|| values[nearest.item as usize])
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

    fn nearest(&self, point: Point, count: usize, page: &mut Vec<u64>) {
        let Some(count) = NonZero::new(count) else {
            return;
        };
        let (tree, values) = self.built();
        let found = tree.nearest_n::<SquaredEuclidean>(&point, count);
        page.extend(found.into_iter().map(|near| values[near.item as usize]));
    }

    fn bulk_load(&self, records: &[(u64, u64)], _fill: f64) -> bool {
        let points: Vec<Point> = records.iter().map(|&(key, _)| point(key)).collect();
        let values = records.iter().map(|&(_, value)| value).collect();
        let tree = ImmutableKdTree::new_from_slice(&points);
        self.0.set((tree, values)).is_ok()
    }
}
