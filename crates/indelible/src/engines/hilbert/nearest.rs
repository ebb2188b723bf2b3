//! Search for the nearest records.
//!
//! Best first (Hjaltason and Samet: "Distance browsing in spatial databases", ACM TODS 24(2), 1999): a heap holds nodes and leaves by the least
//! distance that something in their boxes can have, and the search goes on with the first of the heap until that is farther away than the
//! records it has found. The nodes are read in no order of keys, so a split could move records from a node that is still to be read to one
//! that never will be: the search begins again if the structure has changed meanwhile, and after a few failures keeps it from changing.
//!
//! An unindexed range is a set of quadrants of the grid. They enter the heap as well, and are divided on the way until one lies
//! between two signposts; then this part of the range is indexed, and the search begins again.

use super::Tree;
use super::changes::MOST_FAILURES;
use super::inner::{Inner, Key, code_of, key_of};
use super::layout::MAX_RECORDS;
use super::search::Changed;
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::{Version, Wait};
use crate::engines::{Nearest, Neighbour};
use crate::pool::Offset;
use crate::spatial::{Geometry, Metric, Quadrant, Rect};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What the heap holds.
enum Place<'a> {
    /// A node, its version, and where the node to its right begins.
    Node(&'a Inner, Version, Option<Key>),
    Leaf(Offset),
    /// Quadrants that contain the unindexed range that begins at the key.
    Gap(Key, Quadrant),
}

/// A place with a lower bound of the distance to what lies there.
struct Candidate<'a> {
    distance: f64,
    place: Place<'a>,
}

impl PartialEq for Candidate<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate<'_> {}

impl PartialOrd for Candidate<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate<'_> {
    /// The nearest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.distance.total_cmp(&self.distance)
    }
}

/// A neighbour in a heap whose greatest element is the last one in order.
struct Last<G>(Neighbour<G>);

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

/// Why an attempt has ended without a result.
enum Obstacle {
    Changed,
    /// This key lies in an unindexed range that has to be indexed.
    Unindexed(Key),
}

impl From<Changed> for Obstacle {
    fn from(_: Changed) -> Self {
        Self::Changed
    }
}

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::nearest`](crate::engines::Spatial::nearest).
    pub(super) fn nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
        found: &mut Vec<Neighbour<G>>,
    ) -> Result<()> {
        let (mut failures, mut wait) = (0, Wait::default());
        loop {
            // The sweep would go on changing the structure.
            let _no_sweep = (failures >= MOST_FAILURES).then(|| self.keep_sweep_waiting());
            let _still = (failures >= MOST_FAILURES).then(|| self.structure.pause());
            let _in_place = (failures >= MOST_FAILURES).then(|| self.relocations.pause());
            let (structure, relocations) = (self.structure.read(), self.relocations.read());
            let attempt = {
                let _guard = epochs::pin();
                self.try_nearest(metric, request)
            };
            match attempt? {
                Err(Obstacle::Unindexed(key)) => {
                    drop((_no_sweep, _still, _in_place));
                    self.index_on_demand(key)?;
                    continue;
                }
                Ok(best)
                    if self.structure.are_none_since(structure)
                        && (_in_place.is_some()
                            || self.relocations.are_none_since(relocations)) =>
                {
                    found.extend(best.into_sorted_vec().into_iter().map(|last| last.0));
                    return Ok(());
                }
                _ => {
                    failures += 1;
                    wait.step();
                }
            }
        }
    }

    fn try_nearest<M: Metric>(
        &self,
        metric: &M,
        request: &mut Nearest<'_, G>,
    ) -> Result<Result<BinaryHeap<Last<G>>, Obstacle>> {
        let mut best: BinaryHeap<Last<G>> =
            BinaryHeap::with_capacity(request.wanted.min(1 << 10) + 1);
        let mut heap: BinaryHeap<Candidate<'_>> = BinaryHeap::with_capacity(64);
        let root = self.root();
        heap.push(Candidate {
            distance: 0.0,
            place: Place::Node(root, root.lock().read(), None),
        });
        while let Some(Candidate { distance, place }) = heap.pop() {
            if distance > limit(&best, request) {
                break;
            }
            let next = match place {
                Place::Node(node, version, end) => {
                    let limit = limit(&best, request);
                    self.open_node(metric, (node, version, end), limit, &mut heap)
                }
                Place::Leaf(offset) => {
                    self.open_leaf(metric, offset, request, &mut best);
                    Ok(())
                }
                Place::Gap(low, quadrant) => {
                    match self.open_gap(metric, low, quadrant, &mut heap)? {
                        Some(key) => Err(Obstacle::Unindexed(key)),
                        None => Ok(()),
                    }
                }
            };
            if let Err(obstacle) = next {
                return Ok(Err(obstacle));
            }
        }
        Ok(Ok(best))
    }

    /// Replaces a node by its children.
    fn open_node<'a, M: Metric>(
        &'a self,
        metric: &M,
        (node, version, end): (&'a Inner, Version, Option<Key>),
        limit: f64,
        heap: &mut BinaryHeap<Candidate<'a>>,
    ) -> Result<(), Obstacle> {
        let is_bottom = node.level() == 0;
        for slot in 0..node.count() {
            let distance = metric.bound(&node.bounds(slot).rect(G::AXES));
            if distance > limit {
                continue;
            }
            if !is_bottom {
                let child = node.node(slot);
                let place = Place::Node(child, child.lock().read(), node.next_key(slot).or(end));
                heap.push(Candidate { distance, place });
                continue;
            }
            let child = node.child(slot);
            if !child.is_unindexed() {
                heap.push(Candidate {
                    distance,
                    place: Place::Leaf(child.offset()),
                });
                continue;
            }
            let (low, high) = (node.key(slot), node.next_key(slot).or(end));
            if !node.lock().validate(version) {
                return Err(Obstacle::Changed);
            }
            let Some(grid) = self.grid.get() else {
                return Err(Obstacle::Unindexed(low));
            };
            let last = high.map_or(u64::MAX, |high| code_of(high - 1));
            for quadrant in grid.covering(code_of(low), last) {
                let distance = metric.bound(&self.reached_from(&grid.rect(&quadrant)));
                heap.push(Candidate {
                    distance,
                    place: Place::Gap(low, quadrant),
                });
            }
        }
        if node.lock().validate(version) {
            Ok(())
        } else {
            Err(Obstacle::Changed)
        }
    }

    /// The box of all that can have its centre in `rect`, of what was there at the open.
    fn reached_from(&self, rect: &Rect) -> Rect {
        let reach = self.reach.at_open();
        let mut wide = *rect;
        for axis in 0..G::AXES {
            if reach[axis] > 0.0 {
                let low = (rect.low[axis] - reach[axis]).next_down();
                let high = (rect.high[axis] + reach[axis]).next_up();
                wide.low[axis] = if low.is_nan() { f64::NEG_INFINITY } else { low };
                wide.high[axis] = if high.is_nan() { f64::INFINITY } else { high };
            }
        }
        wide
    }

    /// Divides a quadrant of an unindexed range, or returns a key around which the range has to be indexed.
    fn open_gap<'a, M: Metric>(
        &self,
        metric: &M,
        low: Key,
        quadrant: Quadrant,
        heap: &mut BinaryHeap<Candidate<'a>>,
    ) -> Result<Option<Key>> {
        let (first, last) = quadrant.codes();
        let is_between_signposts = match self.directory.above(first)? {
            Some((code, _)) => last < code,
            None => true,
        };
        let key = key_of(first, 0).max(low);
        if !self.is_unindexed(key) {
            // Another thread has indexed it: the structure has changed, and the search begins again in the end.
            return Ok(Some(key));
        }
        if is_between_signposts || quadrant.is_cell() {
            return Ok(Some(key));
        }
        let Some(grid) = self.grid.get() else {
            return Ok(Some(low));
        };
        for child in quadrant.children() {
            let distance = metric.bound(&self.reached_from(&grid.rect(&child)));
            heap.push(Candidate {
                distance,
                place: Place::Gap(low, child),
            });
        }
        Ok(None)
    }

    fn is_unindexed(&self, key: Key) -> bool {
        self.locate_any(key).child.is_unindexed()
    }

    /// Adds the records of a leaf.
    fn open_leaf<M: Metric>(
        &self,
        metric: &M,
        offset: Offset,
        request: &mut Nearest<'_, G>,
        best: &mut BinaryHeap<Last<G>>,
    ) {
        let lock = self.locks.of(offset.get());
        let mut records = [None; MAX_RECORDS];
        loop {
            let version = lock.read();
            let leaf = self.leaves.at(offset);
            let mut count = 0;
            for (_, record) in leaf.records() {
                records[count] = Some((record.shape::<G>(), record.payload::<G>()));
                count += 1;
            }
            if !lock.validate(version) {
                continue;
            }
            for (shape, payload) in records[..count].iter().flatten() {
                let distance = metric.comparable(shape);
                if distance > limit(best, request) {
                    continue;
                }
                let neighbour = Neighbour {
                    distance,
                    shape: *shape,
                    payload: *payload,
                };
                let is_early = request
                    .from
                    .is_some_and(|from| neighbour.compare(&from).is_lt());
                if is_early || !(request.accepts)(shape, *payload) {
                    continue;
                }
                best.push(Last(neighbour));
                if best.len() > request.wanted {
                    best.pop();
                }
            }
            return;
        }
    }
}

/// The greatest distance that is still of interest.
fn limit<G: Geometry>(best: &BinaryHeap<Last<G>>, request: &Nearest<'_, G>) -> f64 {
    match best.peek() {
        Some(last) if best.len() >= request.wanted => last.0.distance.min(request.within),
        _ => request.within,
    }
}
