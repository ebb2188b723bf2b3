//! From a box to the leaf that takes it, and inserts.
//!
//! # Why the boxes above a record contain it
//!
//! A thread makes the boxes on its way contain the record, from the top, before it makes the record visible. Another thread may replace nodes
//! meanwhile. An entry for a child changes in three ways: another entry with a larger box takes its place; it is copied, as it is, to a node that
//! replaces its own; or the child itself is replaced, and is frozen from then on. And the box of a node that replaces another one is the smallest one
//! around its entries at that moment. So as long as a child is not frozen, the boxes above contain what a thread has made the entry for the child
//! contain. The exchange that makes the record visible fails if the leaf is frozen, and so does each on the way for its node; then the
//! thread begins again.

use super::node::{Path, Step, View};
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::rect::{Child, Cost, Record};
use crate::pmem::planted::planted;
use crate::spatial::{Geometry, Rect};

/// An entry of an inner node that another one with a larger box is to replace.
struct Enlargement<'a, G> {
    view: View<'a, G>,
    old: usize,
    new: usize,
}

impl<G: Geometry> Tree<G> {
    /// The way to a leaf for `rect`: at each node to the child whose box grows least, in volume, then in margin; then to the smallest one. None if
    /// another thread has replaced a node on the way.
    pub(super) fn choose(&self, rect: &Rect) -> Result<Option<Path<'_, G>>> {
        let mut view = self.view(self.root()?)?;
        let mut steps: Vec<Step<'_, G>> = Vec::with_capacity(view.level as usize);
        loop {
            if view.word.is_frozen() {
                self.expect_replaced(&view, steps.last().map(|step| &step.view))?;
                return Ok(None);
            }
            if view.level == 0 {
                return Ok(Some(Path { steps, last: view }));
            }
            let costs = view
                .slots()
                .map(|slot| (Cost::of_growth(&view.rect(slot), rect, G::AXES), slot));
            let least = costs.min_by(|(a, _), (b, _)| a.compare(b));
            let Some((_, slot)) = least else {
                // A removal, or a crash in the middle of one, has left a node without children.
                self.unlink(&Path { steps, last: view })?;
                return Ok(None);
            };
            let child = self.view(view.link_to(slot))?;
            steps.push(Step { view, slot });
            view = child;
        }
    }

    /// Writes a record to a free slot of the leaf at the end of a way, and makes the boxes on the way contain `rect`. Returns the slot, whose bit is all
    /// that is left to be set; none if the caller has to begin again, since a node had no free slot, or has been replaced.
    pub(super) fn prepare(
        &self,
        path: &Path<'_, G>,
        rect: &Rect,
        record: &Record,
    ) -> Result<Option<usize>> {
        let enlargements = if planted(Bug::EnlargedTooLate) {
            Some(Vec::new())
        } else {
            self.plan_enlargements(path, rect)?
        };
        let Some(enlargements) = enlargements else {
            return Ok(None);
        };
        let leaf = &path.last;
        let Some(slot) = self.take_slot(leaf) else {
            self.give_back(&enlargements);
            self.make_room(path, path.depth(), 1)?;
            return Ok(None);
        };
        self.write_all(&enlargements, rect);
        leaf.node.write(self.pm, 0, slot, record);
        self.pm.named("pmr.part").flush(leaf.node.cells(0, slot));
        if !planted(Bug::BitBeforeEntry) {
            self.pm.named("pmr.prepared").fence();
        }
        if !self.enlarge_all(&enlargements)? {
            self.slots.of(leaf.offset()).give_back(slot);
            return Ok(None);
        }
        Ok(Some(slot))
    }

    /// The boxes on a way that do not contain `rect`, each with a slot for a larger one; none if a node had no free slot.
    fn plan_enlargements<'a>(
        &self,
        path: &Path<'a, G>,
        rect: &Rect,
    ) -> Result<Option<Vec<Enlargement<'a, G>>>> {
        let mut enlargements = Vec::new();
        for (depth, step) in path.steps.iter().enumerate() {
            if step.view.rect(step.slot).contains(rect) {
                continue;
            }
            let Some(new) = self.take_slot(&step.view) else {
                self.give_back(&enlargements);
                self.make_room(path, depth, 1)?;
                return Ok(None);
            };
            enlargements.push(Enlargement {
                view: step.view,
                old: step.slot,
                new,
            });
        }
        Ok(Some(enlargements))
    }

    /// Makes the boxes on a way contain `rect`, as far as there is room: a planted bug does this too late.
    #[cold]
    fn enlarge(&self, path: &Path<'_, G>, rect: &Rect) -> Result<()> {
        if let Some(enlargements) = self.plan_enlargements(path, rect)? {
            self.write_all(&enlargements, rect);
            self.pm.named("pmr.prepared").fence();
            self.enlarge_all(&enlargements)?;
        }
        Ok(())
    }

    /// Writes the entries with the larger boxes. Flushed without a fence.
    fn write_all(&self, enlargements: &[Enlargement<'_, G>], rect: &Rect) {
        for Enlargement { view, old, new } in enlargements {
            let Child {
                rect: before,
                offset,
            } = view.child(*old);
            let child = Child {
                rect: before.join(rect),
                offset,
            };
            view.node
                .write(self.pm, view.level, *new, &child.entry::<G>());
            self.pm
                .named("pmr.part")
                .flush(view.node.cells(view.level, *new));
        }
    }

    /// Exchanges entries for those with larger boxes, from the top. Returns whether all of them were still there.
    fn enlarge_all(&self, enlargements: &[Enlargement<'_, G>]) -> Result<bool> {
        for (number, Enlargement { view, old, new }) in enlargements.iter().enumerate() {
            let slots = self.slots.of(view.offset());
            loop {
                let now = self.again(view)?;
                if now.word.is_frozen() || now.bitmap() >> old & 1 == 0 {
                    self.give_back(&enlargements[number..]);
                    return Ok(false);
                }
                slots.take_used(1 << old);
                let word = now.word.with(1 << new).without(1 << old);
                // COMMIT pmr.enlarge: the word of an inner node. Before this store recovery sees the child with its old box, after it with the larger one:
                // both contain all records below.
                let cell = &view.node.block.word;
                if self.words.exchange(cell, now.word.0, word.0, "pmr.enlarge") {
                    self.pm.note("pmr: box enlarged", u64::from(view.level > 1));
                    break;
                }
            }
        }
        Ok(true)
    }

    fn give_back(&self, enlargements: &[Enlargement<'_, G>]) {
        for Enlargement { view, new, .. } in enlargements {
            self.slots.of(view.offset()).give_back(*new);
        }
    }

    /// See [`Spatial::insert`](crate::engines::Spatial::insert). O(log n) nodes are read.
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | 1. the record, and entries with larger boxes, are written to free slots; fence | entries that no word mentions | nothing |
    /// | 2. the words of the inner nodes on the way, one after the other, from the top | boxes that are larger than necessary | nothing |
    /// | 3. the word of the leaf | the record | nothing |
    pub(super) fn insert(&self, shape: &G, payload: u64) -> Result<()> {
        let (rect, record) = (Rect::of(shape), Record::new(shape, payload));
        loop {
            let _guard = epochs::pin();
            if let Some(path) = self.choose(&rect)?
                && let Some(slot) = self.prepare(&path, &rect, &record)?
                && self.make_visible(&path.last, slot)?
            {
                if planted(Bug::EnlargedTooLate) {
                    self.enlarge(&path, &rect)?;
                }
                return Ok(());
            }
        }
    }

    /// Makes the record in a slot of a leaf visible; not if the leaf has been replaced.
    fn make_visible(&self, leaf: &View<'_, G>, slot: usize) -> Result<bool> {
        loop {
            let now = self.again(leaf)?;
            if now.word.is_frozen() {
                return Ok(false);
            }
            let word = now.word.with(1 << slot);
            // COMMIT pmr.insert: the word of the leaf. Before this store recovery sees the leaf without the record; after it, with the record.
            let cell = &leaf.node.block.word;
            if self.words.exchange(cell, now.word.0, word.0, "pmr.insert") {
                self.count_added(leaf.offset(), 1 << slot);
                return Ok(true);
            }
        }
    }
}
