//! The nearest records that a search has found so far.

use crate::engines::{Nearest, Neighbour};
use crate::spatial::Geometry;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A neighbour in a heap whose greatest element is the last one in order.
pub(in crate::engines) struct Last<G>(Neighbour<G>);

impl<G> Last<G> {
    pub(in crate::engines) fn into_neighbour(self) -> Neighbour<G> {
        self.0
    }
}

impl<G: Geometry> PartialEq for Last<G> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<G: Geometry> Eq for Last<G> {}

impl<G: Geometry> PartialOrd for Last<G> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<G: Geometry> Ord for Last<G> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.compare(&other.0)
    }
}

/// The greatest distance that is still of interest.
pub(in crate::engines) fn limit<G: Geometry>(
    best: &BinaryHeap<Last<G>>,
    request: &Nearest<'_, G>,
) -> f64 {
    match best.peek() {
        Some(last) if best.len() >= request.wanted => last.0.distance.min(request.within),
        _ => request.within,
    }
}

/// Keeps a record if it is among the nearest ones that are asked for.
#[inline(always)]
pub(in crate::engines) fn offer<G: Geometry>(
    best: &mut BinaryHeap<Last<G>>,
    request: &mut Nearest<'_, G>,
    neighbour: Neighbour<G>,
) {
    let is_far = neighbour.distance > limit(best, request);
    let is_early = request
        .from
        .is_some_and(|from| neighbour.compare(&from).is_lt());
    if is_far || is_early || !(request.accepts)(&neighbour.shape, neighbour.payload) {
        return;
    }
    best.push(Last(neighbour));
    if best.len() > request.wanted {
        best.pop();
    }
}
