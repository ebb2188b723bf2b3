//! Removals.
//!
//! Boxes do not shrink when records are removed, and thin nodes are not merged: compaction does both. A leaf that has become empty leaves the tree at
//! once.
//!
//! That a record is *not* there is only known of all leaves whose boxes contain its place together. So who does not find a record looks at the words
//! of all nodes that it has read once more. If none of them has changed, all had these values at the moment in between, since no word has a value twice.

use super::Tree;
use super::layout::ROOT;
use super::node::{Path, Step, View};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::rect::{Link, Record, Visits};
use crate::engines::unless_full;
use crate::pmem::Cell;
use crate::spatial::{Geometry, Rect};

/// What a thread has found that looks for a record.
pub(super) enum Found<'a, G> {
    /// The way to a leaf with the record, and its slot there.
    At(Path<'a, G>, usize),
    Absent,
    /// Other threads have changed what was read: the caller begins again.
    Disturbed,
}

/// A look for a record.
struct Look<'a, G> {
    record: Record,
    rect: Rect,
    /// The words that were read, with their values.
    seen: Vec<(&'a Cell, u64)>,
    steps: Vec<Step<'a, G>>,
    meets_frozen: bool,
    visits: Visits<'a>,
}

impl<G: Geometry> Tree<G> {
    /// Looks for a record. Reads all subtrees whose boxes contain it until one has it.
    pub(super) fn find(&self, record: &Record) -> Result<Found<'_, G>> {
        let root = self.root()?;
        let mut look = Look {
            record: *record,
            rect: record.rect::<G>(),
            seen: vec![(self.words.root_cell(ROOT), root.to_word())],
            steps: Vec::new(),
            meets_frozen: false,
            visits: Visits::new(&self.space),
        };
        if let Some((last, slot)) = self.look_below(root, &mut look)? {
            let steps = look.steps;
            return Ok(Found::At(Path { steps, last }, slot));
        }
        if look.meets_frozen {
            return Ok(Found::Disturbed);
        }
        for (cell, word) in look.seen {
            if self.words.read(cell)? != word {
                return Ok(Found::Disturbed);
            }
        }
        Ok(Found::Absent)
    }

    fn look_below<'a>(
        &'a self,
        link: Link,
        look: &mut Look<'a, G>,
    ) -> Result<Option<(View<'a, G>, usize)>> {
        look.visits.count()?;
        let view = self.view(link)?;
        look.seen.push((&view.node.block.word, view.word.0));
        if view.word.is_frozen() {
            self.expect_replaced(&view, look.steps.last().map(|step| &step.view))?;
            look.meets_frozen = true;
        }
        if view.level == 0 {
            let mut slots = view.slots();
            let slot = slots.find(|&slot| view.entry(slot) == look.record);
            return Ok(slot.map(|slot| (view, slot)));
        }
        for slot in view.slots() {
            if !view.rect(slot).contains(&look.rect) {
                continue;
            }
            look.steps.push(Step { view, slot });
            let found = self.look_below(view.link_to(slot), look)?;
            if found.is_some() {
                return Ok(found);
            }
            look.steps.pop();
        }
        Ok(None)
    }

    /// See [`Spatial::remove`](crate::engines::Spatial::remove).
    pub(super) fn remove(&self, shape: &G, payload: u64) -> Result<bool> {
        let record = Record::new(shape, payload);
        loop {
            let _guard = epochs::pin();
            match self.find(&record)? {
                Found::Absent => return Ok(false),
                Found::Disturbed => {}
                Found::At(path, slot) => {
                    if self.take_out(&path.last, slot)? {
                        self.unlink_if_empty(&path)?;
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Removes the record in a slot of a leaf; `false` if another thread has, or has replaced the leaf.
    fn take_out(&self, leaf: &View<'_, G>, slot: usize) -> Result<bool> {
        loop {
            let now = self.again(leaf)?;
            if now.word.is_frozen() || now.bitmap() >> slot & 1 == 0 {
                return Ok(false);
            }
            self.slots.of(leaf.offset()).take_used(1 << slot);
            let word = now.word.without(1 << slot);
            // COMMIT pmr.remove: the word of the leaf. Before this store recovery sees the record; after it, none.
            let cell = &leaf.node.block.word;
            if self.words.exchange(cell, now.word.0, word.0, "pmr.remove") {
                self.count_removed(leaf.offset(), 1 << slot);
                return Ok(true);
            }
        }
    }

    /// Takes a leaf that has become empty out of the tree, unless it is the root. Space is not needed for what is removed: if there is none for the
    /// leaf that an empty tree has, a node without children stays.
    pub(super) fn unlink_if_empty(&self, path: &Path<'_, G>) -> Result<()> {
        let leaf = self.again(&path.last)?;
        if leaf.bitmap() != 0 || path.depth() == 0 {
            return Ok(());
        }
        unless_full(self.unlink(path))
    }
}
