//! Removals.
//!
//! Boxes do not shrink when records are removed, and leaves are not merged: compaction builds a thin tree anew. A leaf that has become empty
//! leaves the tree at once, with the inner nodes that led to it alone.

use super::Writer;
use super::insert::{Path, Step};
use super::layout::Word;
use super::log::Store;
use super::node::Node;
use crate::Result;
use crate::engines::rect::{Record, Visits};
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};

impl<'a, G: Geometry> Writer<'a, G> {
    /// A leaf with this record, with the way there, and the slot of the record. Reads all subtrees whose boxes contain it until one has it.
    pub(super) fn find(&self, record: &Record) -> Result<Option<(Path<'a, G>, usize)>> {
        let rect = record.rect::<G>();
        let root = self.tree.root();
        let mut steps = Vec::new();
        let node = self.tree.node(root.offset, root.level)?;
        let mut visits = Visits::new(&self.tree.space);
        let found = self.find_below(node, root.level, record, &rect, &mut steps, &mut visits)?;
        Ok(found.map(|(leaf, slot)| (Path { steps, leaf }, slot)))
    }

    fn find_below(
        &self,
        node: Node<'a, G>,
        level: u32,
        record: &Record,
        rect: &Rect,
        steps: &mut Vec<Step<'a, G>>,
        visits: &mut Visits<'_>,
    ) -> Result<Option<(Node<'a, G>, usize)>> {
        visits.count()?;
        if level == 0 {
            let slot = node.slots(0).find(|&slot| node.entry(0, slot) == *record);
            return Ok(slot.map(|slot| (node, slot)));
        }
        for slot in node.slots(level) {
            let child = node.child(level, slot);
            if !child.rect.contains(rect) {
                continue;
            }
            steps.push(Step { node, level, slot });
            let below = self.tree.node(child.offset, level - 1)?;
            let found = self.find_below(below, level - 1, record, rect, steps, visits)?;
            if found.is_some() {
                return Ok(found);
            }
            steps.pop();
        }
        Ok(None)
    }

    /// See [`Spatial::remove`](crate::engines::Spatial::remove).
    pub(super) fn remove(&self, shape: &G, payload: u64) -> Result<bool> {
        let Some((path, slot)) = self.find(&Record::new(shape, payload))? else {
            return Ok(false);
        };
        let guards = self.lock_nodes(&[path.leaf.offset]);
        let bitmap = path.leaf.word().bitmap() & !(1 << slot);
        self.commit_leaf(path.leaf, bitmap, guards);
        self.count_change(-1);
        self.unlink_if_empty(&path)?;
        Ok(true)
    }

    /// Takes an empty leaf out of the tree and out of the chain, unless it is the only leaf. The inner nodes go with it whose only child is what goes.
    ///
    /// The leaf has no records, so a search misses nothing, whether it comes before or after. A crash before this leaves an empty leaf in the tree,
    /// which does no harm.
    pub(super) fn unlink_if_empty(&self, path: &Path<'a, G>) -> Result<()> {
        let leaf = path.leaf;
        if leaf.count() > 0 {
            return Ok(());
        }
        // The lowest inner node that stays.
        let stays = path.steps.iter().rposition(|step| step.node.count() > 1);
        let Some(stays) = stays else {
            // The only leaf becomes the root.
            return self.shrink_root();
        };
        let step = path.steps[stays];
        let gone = &path.steps[stays + 1..];
        self.tree
            .pm
            .note("empty leaf unlinked", u64::from(!gone.is_empty()));
        let neighbours = self.neighbours(leaf)?;
        let guards = self.lock_nodes(&[step.node.offset]);
        let Word(value) = {
            let word = step.node.word();
            word.with(word.bitmap() & !(1 << step.slot))
        };
        let store = Store {
            cell: &step.node.block.word,
            value,
            level: step.level,
        };
        self.replace_leaf(&neighbours, store, leaf.next(), leaf.previous());
        drop(guards);
        let gone: Vec<Offset> = gone.iter().map(|step| step.node.offset).collect();
        gone.into_iter()
            .chain([leaf.offset])
            .for_each(|offset| self.retire(offset));
        self.shrink_root()
    }
}
