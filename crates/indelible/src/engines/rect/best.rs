//! The nearest records that a search has found so far.

use crate::engines::{Nearest, Neighbour};
use crate::spatial::Geometry;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// So many records at most are kept in order, by insertion. More of them are in a heap, since an insertion moves half of those that are in order.
const MOST_IN_ORDER: usize = 64;

/// Records for which a heap has room at first.
const FIRST_HEAP: usize = 1 << 10;

/// The nearest records found so far, at most as many as are wanted, and only those that are asked for.
pub(in crate::engines) struct Best<'r, 'n, G> {
    request: &'r mut Nearest<'n, G>,
    /// The records, if at most [`MOST_IN_ORDER`] are wanted.
    in_order: Vec<Neighbour<G>>,
    /// The records, if more are wanted.
    heap: BinaryHeap<Last<G>>,
}

impl<'r, 'n, G: Geometry> Best<'r, 'n, G> {
    pub(in crate::engines) fn new(request: &'r mut Nearest<'n, G>) -> Self {
        let [in_order, heap] = match request.wanted {
            few @ ..=MOST_IN_ORDER => [few, 0],
            many => [0, many.min(FIRST_HEAP)],
        };
        Self {
            request,
            in_order: Vec::with_capacity(in_order),
            heap: BinaryHeap::with_capacity(heap),
        }
    }

    fn are_in_order(&self) -> bool {
        self.request.wanted <= MOST_IN_ORDER
    }

    /// The greatest distance that is still of interest.
    #[inline(always)]
    pub(in crate::engines) fn limit(&self) -> f64 {
        let Nearest { wanted, within, .. } = *self.request;
        let last = if self.are_in_order() {
            self.in_order.get(wanted - 1)
        } else {
            let last = self.heap.peek().map(|last| &last.0);
            last.filter(|_| self.heap.len() >= wanted)
        };
        last.map_or(within, |last| last.distance.min(within))
    }

    /// How many records of one leaf can be among the nearest at most. More may be offered: those at the same distance as another.
    pub(in crate::engines) fn most_of_a_leaf(&self) -> usize {
        match (&self.request.accepts, self.request.from) {
            (None, None) => self.request.wanted,
            // Some of the nearest are not asked for.
            _ => usize::MAX,
        }
    }

    /// Keeps a record if it is among the nearest ones that are asked for.
    #[inline(always)]
    pub(in crate::engines) fn offer(&mut self, neighbour: Neighbour<G>) {
        let is_far = neighbour.distance > self.limit();
        let from = self.request.from;
        let is_early = from.is_some_and(|from| neighbour.compare(&from).is_lt());
        if is_far || is_early || !self.request.accepts(&neighbour) {
            return;
        }
        let wanted = self.request.wanted;
        if !self.are_in_order() {
            self.heap.push(Last(neighbour));
            if self.heap.len() > wanted {
                self.heap.pop();
            }
            return;
        }
        let is_before = |other: &Neighbour<G>| other.compare(&neighbour).is_lt();
        let at = self
            .in_order
            .iter()
            .rposition(is_before)
            .map_or(0, |before| before + 1);
        if at < wanted {
            self.in_order.truncate(wanted - 1);
            self.in_order.insert(at, neighbour);
        }
    }

    /// The records, the nearest first.
    pub(in crate::engines) fn into_sorted(self) -> Vec<Neighbour<G>> {
        if self.are_in_order() {
            return self.in_order;
        }
        let sorted = self.heap.into_sorted_vec();
        sorted.into_iter().map(|last| last.0).collect()
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
