//! Inserts of many records at once: those of one leaf share the fences and the store that commits them, and those of different leaves wait for
//! memory together.

use super::Tree;
use super::inner::{Bounds, Inner, Key};
use super::layout::Shape;
use super::way::MOST_LEVELS;
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::rect::Record;
use crate::kernels::{Kernel, Simd, dispatch, prefetch};
use crate::spatial::Geometry;
use std::cmp::Reverse;

/// Leaves that are asked for together, at most: enough to keep the memory busy, few enough for their lines, and those of the nodes above, to stay in
/// the first-level cache.
const LANES: usize = 16;

/// How far the leaves of a batch have been asked for.
#[derive(Default)]
struct Ahead {
    /// The records to insert before leaves are asked for again.
    left: usize,
    /// Records inserted since leaves were asked for.
    records: usize,
    /// Leaves that they went to.
    leaves: usize,
}

impl Ahead {
    /// Asks for the leaves of the last of these keys, if those that were asked for have been used.
    fn ask<G: Geometry>(&mut self, tree: &Tree<G>, all: &[Key]) {
        if self.left > 0 || all.len() < 2 {
            return;
        }
        // As many records apart as went to one leaf, so that each lane asks for another one.
        let step = (self.records / self.leaves.max(1)).max(1);
        let mut keys = [0; LANES];
        let mut lanes = 0;
        for (key, &last) in keys.iter_mut().zip(all.iter().rev().step_by(step)) {
            *key = last;
            lanes += 1;
        }
        let keys = &keys[..lanes];
        dispatch(tree.simd, AskForLeaves { tree, keys });
        *self = Self {
            left: lanes * step,
            ..Self::default()
        };
    }

    /// So many records went to one leaf.
    fn note(&mut self, records: usize) {
        self.left = self.left.saturating_sub(records);
        self.records += records;
        self.leaves += 1;
    }
}

/// Brings what inserts with these keys read to the caches: of the bottom nodes and of the leaves.
struct AskForLeaves<'a, G> {
    tree: &'a Tree<G>,
    keys: &'a [Key],
}

impl<G: Geometry> Kernel for AskForLeaves<'_, G> {
    type Out = ();

    /// Validates nothing: nodes are not freed while the tree lives, and what a wrong way leads to is asked for and not read.
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { tree, keys } = self;
        let mut nodes = [tree.root(); LANES];
        // Bounded, since a node that others change may point to itself.
        for _ in 1..MOST_LEVELS {
            let mut is_below = false;
            for (node, &key) in nodes.iter_mut().zip(keys) {
                if node.level() > 0 {
                    *node = node.node(node.find::<S>(key));
                    node.prefetch_keys();
                    is_below = true;
                }
            }
            if !is_below {
                break;
            }
        }
        let mut slots = [0; LANES];
        let lanes = || nodes.iter().zip(keys);
        for (slot, (node, &key)) in slots.iter_mut().zip(lanes()) {
            *slot = node.find::<S>(key);
            node.prefetch_slot(*slot, G::AXES);
        }
        for (&slot, (node, _)) in slots.iter().zip(lanes()) {
            let offset = Inner::child(node, slot).offset();
            tree.leaves.prefetch_front(offset);
            prefetch(tree.locks.of(offset.get()));
        }
    }
}

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::insert_batch`](crate::engines::Spatial::insert_batch). O(n log n) for the sort, and one way down per leaf.
    pub(super) fn insert_batch(&self, records: &mut Vec<(G, u64)>) -> Result<()> {
        while !records.is_empty() {
            let grid = self.grids.number();
            let mut keys = self.sort(records);
            let mut ahead = Ahead::default();
            while !records.is_empty() && self.grids.number() == grid {
                ahead.ask(self, &keys);
                let added = self.insert_run(records, &keys, grid)?;
                ahead.note(added);
                records.truncate(records.len() - added);
                keys.truncate(records.len());
            }
        }
        Ok(())
    }

    /// Sorts records by their keys and returns the keys. Descending, since records are taken out from the end. Without a grid all keys are equal.
    fn sort(&self, records: &mut Vec<(G, u64)>) -> Vec<Key> {
        let key = |(shape, payload): &(G, u64)| self.key(&Record::new(shape, *payload));
        let mut sorted: Vec<_> = records
            .drain(..)
            .map(|record| (key(&record), record))
            .collect();
        sorted.sort_by_key(|&(key, _)| Reverse(key));
        records.extend(sorted.iter().map(|&(_, record)| record));
        sorted.iter().map(|&(key, _)| key).collect()
    }

    /// Inserts as many of the last records, which are in descending order of their keys in a grid, as one leaf takes. Returns how
    /// many: none if the grid is another one meanwhile, and so the order.
    fn insert_run(&self, records: &[(G, u64)], keys: &[Key], grid: u32) -> Result<usize> {
        let mut run = Vec::with_capacity(Shape::<G>::RECORDS);
        let _guard = epochs::pin();
        loop {
            if self.grids.number() != grid {
                return Ok(0);
            }
            let all = records.iter().rev();
            let mut all = all.map(|(shape, payload)| Record::new(shape, *payload));
            let Some(first) = all.next() else {
                return Ok(0);
            };
            let keys = || keys.iter().rev();
            let key = self.key_to_insert(keys().next().copied().unwrap_or(0));
            // What the leaf has room for is seen without a lock, and looked at again below.
            let spot = self.locate(key)?;
            let (high, count) = (spot.high(), self.leaves.at(spot.child.offset()).count());
            if !spot.is_current() {
                continue;
            }
            let room = Shape::<G>::RECORDS - count;
            run.clear();
            run.push(first);
            let others = keys().skip(1).take(room.saturating_sub(1));
            let below = Self::below(others, high);
            run.extend(all.take(below));
            let mut bounds = Bounds::of(&first.rect::<G>());
            for record in &run {
                self.make_reach(record)?;
                bounds = bounds.join(Bounds::of(&record.rect::<G>()));
            }
            let Some(locked) = self.lock_room(key, &bounds, grid)? else {
                continue;
            };
            // The leaf covers `key`, and so all records from the first one's smallest key on that are below its end: records with the smallest key of
            // the first one may lie anywhere among its keys.
            let room = Shape::<G>::RECORDS - locked.leaf.count();
            let others = keys().take(run.len().min(room)).skip(1);
            let others = Self::below(others, locked.high);
            let run = &run[..1 + others];
            locked.leaf.insert_all(self.pm, run);
            self.count_change(&locked, run.len() as i64);
            return Ok(run.len());
        }
    }

    /// How many of the first keys are below `high`.
    fn below<'k>(keys: impl Iterator<Item = &'k Key>, high: Option<Key>) -> usize {
        keys.take_while(|&&key| high.is_none_or(|high| key < high))
            .count()
    }
}
