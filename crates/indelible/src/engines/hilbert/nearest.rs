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
use super::inner::{BOUND_LINES, Inner, Key, code_of, key_of};
use super::layout::MAX_RECORDS;
use super::search::Changed;
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::{Version, Wait};
use crate::engines::rect::slots;
use crate::engines::rect::{Last, MOST_FAILURES, limit, offer};
use crate::engines::{Nearest, Neighbour};
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pool::Offset;
use crate::spatial::{Geometry, MAX_AXES, Metric, Quadrant, f32_above, f32_below};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is still to be searched.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// A node, its version, and where the node to its right begins.
    Node(&'a Inner, Version, Option<Key>),
    Leaf(Offset),
    /// Quadrants that contain the unindexed range that begins at the key.
    Gap(Key, Quadrant),
}

/// Places in the order of the least distance that something there can have.
struct Queue<'a> {
    /// The bits of a distance (f32, at least 0, so that bits are in the order of distances), and below them the number of a place.
    heap: BinaryHeap<Reverse<u64>>,
    places: Vec<Place<'a>>,
}

impl<'a> Queue<'a> {
    /// With room for the places that a search for a few records meets.
    fn new() -> Self {
        Self {
            heap: BinaryHeap::with_capacity(64),
            places: Vec::with_capacity(64),
        }
    }

    /// The leaf that comes next, if it is a leaf that does.
    #[inline(always)]
    fn next_leaf(&self) -> Option<Offset> {
        let Reverse(first) = self.heap.peek()?;
        match self.places[*first as u32 as usize] {
            Place::Leaf(offset) => Some(offset),
            _ => None,
        }
    }

    #[inline(always)]
    fn push(&mut self, bound: f32, place: Place<'a>) {
        let number = self.places.len() as u64;
        self.places.push(place);
        self.heap
            .push(Reverse(u64::from(bound.to_bits()) << 32 | number));
    }

    /// The nearest place, with its bound.
    fn pop(&mut self) -> Option<(f64, Place<'a>)> {
        let Reverse(first) = self.heap.pop()?;
        let bound = f32::from_bits((first >> 32) as u32);
        Some((bound.into(), self.places[first as u32 as usize]))
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
            let _no_sweep = (failures >= MOST_FAILURES).then(|| self.waiting_operations.enter());
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
                    found.extend(best.into_sorted_vec().into_iter().map(Last::into_neighbour));
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
        let mut best = BinaryHeap::with_capacity(request.wanted.min(1 << 10) + 1);
        let mut queue = Queue::new();
        let nearby = around(metric);
        let root = self.root();
        queue.push(0.0, Place::Node(root, root.lock().read(), None));
        while let Some((bound, place)) = queue.pop() {
            let limit = limit(&best, request);
            if bound > limit {
                break;
            }
            let next = match place {
                Place::Node(node, version, end) => {
                    let opened = (node, version, end);
                    if let Some(nearby) = nearby {
                        self.open_node(metric, nearby, opened, request, &mut best, &mut queue)
                    } else {
                        self.open_node_slowly(metric, opened, limit, &mut queue)
                    }
                }
                Place::Leaf(offset) => {
                    // Most searches open the next one too, which arrives meanwhile.
                    if let Some(next) = queue.next_leaf() {
                        self.leaves.prefetch(next);
                    }
                    self.open_leaf(metric, offset, request, &mut best);
                    Ok(())
                }
                Place::Gap(low, quadrant) => {
                    match self.open_gap(metric, low, quadrant, &mut queue)? {
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

    /// Replaces a node by its children: computes the bounds of 16 children at once.
    ///
    /// As long as too few records are known, there is no distance to leave children out by. Then the nearest child is opened at once, down to
    /// a leaf, before the others are considered.
    fn open_node<'a, M: Metric>(
        &'a self,
        metric: &M,
        nearby: Nearby,
        opened: Opened<'a>,
        request: &mut Nearest<'_, G>,
        best: &mut BinaryHeap<Last<G>>,
        queue: &mut Queue<'a>,
    ) -> Result<(), Obstacle> {
        let (node, version, end) = opened;
        let count = node.count();
        let mut bounds = [[0.0; 16]; BOUND_LINES];
        dispatch(
            self.simd,
            SquareBounds {
                node,
                nearby,
                axes: G::AXES,
                bounds: &mut bounds,
            },
        );
        let bounds = bounds.as_flattened();
        let used = u64::MAX.checked_shr(64 - count as u32).unwrap_or(0);
        let within = |limit: f32| dispatch(self.simd, Within { bounds, limit }) & used;
        let mut opened_first = 0;
        if best.len() < request.wanted && count > 0 {
            let least = bounds[..count].iter().fold(f32::INFINITY, |a, &b| a.min(b));
            let first = within(least).trailing_zeros() as usize;
            if node.level() > 0 {
                let child = node.node(first);
                let opened = (child, child.lock().read(), node.next_key(first).or(end));
                self.open_node(metric, nearby, opened, request, best, queue)?;
                opened_first = 1 << first;
            } else if !node.child(first).is_unindexed() {
                self.open_leaf(metric, node.child(first).offset(), request, best);
                opened_first = 1 << first;
            }
        }
        // What is at most the limit is at most the greatest f32 that is.
        let limit = f32_below(limit(best, request));
        for slot in slots(within(limit) & !opened_first) {
            self.push_child(metric, opened, slot, bounds[slot], queue)?;
        }
        if node.lock().validate(version) {
            Ok(())
        } else {
            Err(Obstacle::Changed)
        }
    }

    /// [`open_node`](Self::open_node) for other metrics, and for points far away.
    #[cold]
    fn open_node_slowly<'a, M: Metric>(
        &'a self,
        metric: &M,
        opened: Opened<'a>,
        limit: f64,
        queue: &mut Queue<'a>,
    ) -> Result<(), Obstacle> {
        let (node, version, _) = opened;
        for slot in 0..node.count() {
            let bound = metric.bound(&node.bounds(slot).rect(G::AXES));
            if bound <= limit {
                self.push_child(metric, opened, slot, f32_below(bound), queue)?;
            }
        }
        if node.lock().validate(version) {
            Ok(())
        } else {
            Err(Obstacle::Changed)
        }
    }

    #[inline(always)]
    fn push_child<'a, M: Metric>(
        &'a self,
        metric: &M,
        (node, version, end): Opened<'a>,
        slot: usize,
        bound: f32,
        queue: &mut Queue<'a>,
    ) -> Result<(), Obstacle> {
        if node.level() > 0 {
            let child = node.node(slot);
            let place = Place::Node(child, child.lock().read(), node.next_key(slot).or(end));
            queue.push(bound, place);
            return Ok(());
        }
        let child = node.child(slot);
        if child.is_unindexed() {
            return self.push_gap(metric, (node, version, end), slot, queue);
        }
        queue.push(bound, Place::Leaf(child.offset()));
        Ok(())
    }

    /// Adds the quadrants that make up an unindexed range.
    #[cold]
    fn push_gap<'a, M: Metric>(
        &'a self,
        metric: &M,
        (node, version, end): Opened<'a>,
        slot: usize,
        queue: &mut Queue<'a>,
    ) -> Result<(), Obstacle> {
        let (low, high) = (node.key(slot), node.next_key(slot).or(end));
        if !node.lock().validate(version) {
            return Err(Obstacle::Changed);
        }
        let Some(grid) = self.grid.get() else {
            return Err(Obstacle::Unindexed(low));
        };
        let last = high.map_or(u64::MAX, |high| code_of(high - 1));
        for quadrant in grid.covering(code_of(low), last) {
            let bound = metric.bound(&self.reach.widened(&grid.rect(&quadrant)));
            queue.push(f32_below(bound), Place::Gap(low, quadrant));
        }
        Ok(())
    }

    /// Divides a quadrant of an unindexed range, or returns a key around which the range has to be indexed.
    fn open_gap<'a, M: Metric>(
        &self,
        metric: &M,
        low: Key,
        quadrant: Quadrant,
        queue: &mut Queue<'a>,
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
            let bound = metric.bound(&self.reach.widened(&grid.rect(&child)));
            queue.push(f32_below(bound), Place::Gap(low, child));
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
        let limit_before = limit(best, request);
        loop {
            let mut candidates = [(0.0, 0); MAX_RECORDS];
            let mut count = 0;
            let version = lock.read();
            let leaf = self.leaves.at(offset);
            for slot in slots(leaf.bitmap()) {
                let distance = metric.comparable(&leaf.shape(slot));
                // Written in any case: which records are near enough cannot be predicted.
                candidates[count] = (distance, slot);
                count += usize::from(distance <= limit_before);
            }
            let candidates = &mut candidates[..count];
            if count > request.wanted {
                // The nearest first, so that the others are found to be too far away.
                candidates.select_nth_unstable_by(request.wanted.saturating_sub(1), |a, b| {
                    a.0.total_cmp(&b.0)
                });
            }
            let mut near = [None; MAX_RECORDS];
            for (near, &(distance, slot)) in near.iter_mut().zip(&*candidates) {
                *near = Some((distance, leaf.shape(slot), leaf.payload(slot)));
            }
            if !lock.validate(version) {
                continue;
            }
            for (distance, shape, payload) in near[..count].iter().flatten().copied() {
                offer(
                    best,
                    request,
                    Neighbour {
                        distance,
                        shape,
                        payload,
                    },
                );
            }
            return;
        }
    }
}

/// A node with its version, and where the node to its right begins.
type Opened<'a> = (&'a Inner, Version, Option<Key>);

/// The bounds of all children of a node. The search around it calls itself, so that it cannot be compiled for an instruction set as a whole.
struct SquareBounds<'a> {
    node: &'a Inner,
    nearby: Nearby,
    axes: usize,
    bounds: &'a mut [[f32; 16]; BOUND_LINES],
}

impl Kernel for SquareBounds<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Nearby { up, down } = self.nearby;
        for (line, bounds) in self.bounds.iter_mut().enumerate() {
            *bounds = if self.axes == 2 {
                self.node.square_bounds::<S, 2>(line, &up, &down)
            } else {
                self.node.square_bounds::<S, 3>(line, &up, &down)
            };
        }
    }
}

/// Which of the bounds are at most `limit`, as bits.
struct Within<'a> {
    bounds: &'a [f32],
    limit: f32,
}

impl Kernel for Within<'_> {
    type Out = u64;

    #[inline(always)]
    fn run<S: Simd>(self) -> u64 {
        let mut within = 0;
        for (at, &bound) in self.bounds.iter().enumerate() {
            within |= u64::from(bound <= self.limit) << at;
        }
        within
    }
}

/// A point, rounded up and rounded down.
#[derive(Clone, Copy)]
struct Nearby {
    up: [f32; MAX_AXES],
    down: [f32; MAX_AXES],
}

/// The point of a metric whose comparable distances are squares; none if it is so far away that squares of f32 would not do.
fn around<M: Metric>(metric: &M) -> Option<Nearby> {
    let point = metric.square_from()?;
    let is_near = point.iter().all(|x| x.abs() < 1e30);
    is_near.then(|| Nearby {
        up: point.map(f32_above),
        down: point.map(f32_below),
    })
}
