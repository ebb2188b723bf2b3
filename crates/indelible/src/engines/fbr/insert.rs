//! From a box to the leaf that takes it, and inserts.

use super::layout::Entries;
use super::node::Node;
use super::{Bug, Writer};
use crate::Result;
use crate::engines::rect::{Cost, Record};
use crate::pmem::planted::planted;
use crate::spatial::{Geometry, Rect};

/// A step on the way down: an inner node, and the slot of the child.
#[derive(Clone, Copy)]
pub(super) struct Step<'a, G> {
    pub(super) node: Node<'a, G>,
    pub(super) level: u32,
    pub(super) slot: usize,
}

/// The inner nodes from the root to a leaf, and the leaf.
pub(super) struct Path<'a, G> {
    pub(super) steps: Vec<Step<'a, G>>,
    pub(super) leaf: Node<'a, G>,
}

impl<'a, G: Geometry> Path<'a, G> {
    /// The node at a depth: 0 is the root, and the last one is the leaf.
    pub(super) fn node(&self, depth: usize) -> Node<'a, G> {
        self.steps.get(depth).map_or(self.leaf, |step| step.node)
    }
}

impl<'a, G: Geometry> Writer<'a, G> {
    /// The way to a leaf for `rect`: at each node to the child whose box grows least, in volume, then in margin; then to the smallest one.
    pub(super) fn choose(&self, rect: &Rect) -> Result<Path<'a, G>> {
        let root = self.tree.root();
        let mut steps = Vec::with_capacity(root.level as usize);
        let mut node = self.tree.node(root.offset, root.level)?;
        for level in (1..=root.level).rev() {
            let costs = node.slots(level).map(|slot| {
                (
                    Cost::of_growth(&node.rect(level, slot), rect, G::AXES),
                    slot,
                )
            });
            let least = costs.min_by(|(a, _), (b, _)| a.compare(b));
            let Some((_, slot)) = least else {
                let problem = format!("inner node {:#x} has no children", node.offset);
                return Err(crate::Error::Damaged(problem));
            };
            steps.push(Step { node, level, slot });
            node = self.tree.node(node.child(level, slot).offset, level - 1)?;
        }
        Ok(Path { steps, leaf: node })
    }

    /// [`choose`](Self::choose), where the leaf has a free entry: splits what has to be split first, from the top.
    pub(super) fn choose_with_room(&self, rect: &Rect) -> Result<Path<'a, G>> {
        loop {
            let path = self.choose(rect)?;
            let depths = path.steps.len() + 1;
            // A split replaces one entry of the parent by two new ones, beside the old one: an inner node with fewer than two free ones is full.
            let is_full = |&depth: &usize| {
                let room = path.node(depth).free().count_ones();
                room < if depth + 1 == depths { 1 } else { 2 }
            };
            // A leaf that has room needs nothing of its parents.
            if !is_full(&(depths - 1)) {
                return Ok(path);
            }
            // All that would have to be split: full nodes in a row, up from the leaf. The topmost has a parent with room, or none.
            let full = (0..depths).rev().take_while(is_full);
            self.split(&path, full.last().unwrap_or(depths - 1))?;
        }
    }

    /// Makes the boxes on the way contain `rect`, from the top. Flushed without a fence.
    pub(super) fn enlarge(&self, path: &Path<'_, G>, rect: &Rect) {
        for step in &path.steps {
            if step.node.enlarge(self.tree.pm, step.level, step.slot, rect) {
                self.tree.pm.note("box enlarged", u64::from(step.level > 1));
                self.flush(step.level, step.node.cells(step.level, step.slot));
            }
        }
    }

    /// Writes a record to a free entry of a leaf, and returns the bit of the entry. Flushed without a fence.
    pub(super) fn write_record(&self, leaf: Node<'_, G>, record: &Record) -> u64 {
        let free = leaf.free();
        assert!(free != 0, "invariant: a leaf that is chosen has room");
        let slot = free.trailing_zeros() as usize;
        leaf.write(self.tree.pm, 0, slot, record);
        self.flush(0, leaf.cells(0, slot));
        1 << slot
    }

    /// See [`Spatial::insert`](crate::engines::Spatial::insert). O(log n) nodes are read.
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | 1. boxes on the way are enlarged, the record is written to a free entry; fence | boxes that are larger than necessary | nothing |
    /// | 2. the word of the leaf | the record | nothing |
    pub(super) fn insert(&self, shape: &G, payload: u64) -> Result<()> {
        let rect = Rect::of(shape);
        let path = self.choose_with_room(&rect)?;
        let leaf = path.leaf;
        let guards = self.lock_nodes(&[leaf.offset]);
        if !planted(Bug::EnlargedTooLate) {
            self.enlarge(&path, &rect);
        }
        let bit = self.write_record(leaf, &Record::new(shape, payload));
        if !planted(Bug::BitBeforeEntry) {
            self.persist_prepared();
        }
        self.commit_leaf(leaf, leaf.word().bitmap() | bit, guards);
        if planted(Bug::EnlargedTooLate) {
            self.enlarge(&path, &rect);
            self.persist_prepared();
        }
        self.count_change(1);
        Ok(())
    }
}

/// At least two free entries of a node of four or more: a split leaves its parent with room for another one.
const _: () = assert!(Entries::<crate::Box3>::most(1) >= 4);
