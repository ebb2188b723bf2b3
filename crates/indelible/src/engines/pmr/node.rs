//! Nodes as a thread has read them, and the way to a node.
//!
//! The word of a node says which entries are in use. No entry changes while it is in use, and no slot is used again while a thread could know the
//! node. So what a thread finds in the slots of a word is the node at the moment at which the word was read.

use super::Tree;
use super::layout::Word;
use crate::engines::rect::layout::Entries;
use crate::engines::rect::{Child, Link, Node, Record, Visits};
use crate::engines::slots;
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use crate::{Error, Result};

/// A node at a moment.
pub(super) struct View<'a, G> {
    pub(super) node: Node<'a, G>,
    pub(super) word: Word,
    pub(super) level: u32,
}

impl<G> Clone for View<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G> Copy for View<'_, G> {}

impl<G: Geometry> View<'_, G> {
    pub(super) fn offset(&self) -> Offset {
        self.node.offset
    }

    pub(super) fn link(&self) -> Link {
        Link {
            offset: self.node.offset,
            level: self.level,
        }
    }

    /// The slots in use, as bits.
    #[inline(always)]
    pub(super) fn bitmap(&self) -> u64 {
        self.word.bitmap::<G>()
    }

    #[inline(always)]
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + use<G> {
        slots(self.bitmap())
    }

    pub(super) fn count(&self) -> usize {
        self.bitmap().count_ones() as usize
    }

    pub(super) fn entry(&self, slot: usize) -> Record {
        self.node.entry(self.level, slot)
    }

    pub(super) fn rect(&self, slot: usize) -> Rect {
        self.node.rect(self.level, slot)
    }

    pub(super) fn child(&self, slot: usize) -> Child {
        self.node.child(self.level, slot)
    }

    /// The link to the child in a slot.
    pub(super) fn link_to(&self, slot: usize) -> Link {
        Link {
            offset: self.child(slot).offset,
            level: self.level - 1,
        }
    }

    /// The slot of the child at `offset`.
    pub(super) fn slot_of(&self, offset: Offset) -> Option<usize> {
        self.slots().find(|&slot| self.child(slot).offset == offset)
    }

    /// The smallest box that contains all entries.
    pub(super) fn bounds(&self) -> Rect {
        let rects = self.slots().map(|slot| self.rect(slot));
        rects.fold(Rect::NOTHING, |all, rect| all.join(&rect))
    }

    /// Slots of such a node, as bits.
    pub(super) fn all_slots(&self) -> u64 {
        Entries::<G>::bits(self.level)
    }
}

/// A step on the way down: an inner node, and the slot of the child.
#[derive(Clone, Copy)]
pub(super) struct Step<'a, G> {
    pub(super) view: View<'a, G>,
    pub(super) slot: usize,
}

/// The inner nodes from the root to a node, and the node.
pub(super) struct Path<'a, G> {
    pub(super) steps: Vec<Step<'a, G>>,
    pub(super) last: View<'a, G>,
}

impl<'a, G: Geometry> Path<'a, G> {
    /// The node at a depth: 0 is the root.
    pub(super) fn view(&self, depth: usize) -> View<'a, G> {
        self.steps.get(depth).map_or(self.last, |step| step.view)
    }

    /// The depth of the node that the way leads to.
    pub(super) fn depth(&self) -> usize {
        self.steps.len()
    }
}

impl<G: Geometry> Tree<G> {
    /// The node that a link leads to, as it is now.
    pub(super) fn view(&self, link: Link) -> Result<View<'_, G>> {
        self.sweep.expect_owned(&self.space, link.offset)?;
        let node = self.nodes.at(link.offset);
        let word = Word(self.words.read(&node.block.word)?);
        if !word.is_of(link.level) {
            return Err(Error::Damaged(format!(
                "node {:#x} has the word {:#x}, and is linked as one of level {}",
                link.offset, word.0, link.level
            )));
        }
        Ok(View {
            node,
            word,
            level: link.level,
        })
    }

    /// The same node, as it is now.
    pub(super) fn again<'a>(&self, view: &View<'a, G>) -> Result<View<'a, G>> {
        let word = Word(self.words.read(&view.node.block.word)?);
        Ok(View { word, ..*view })
    }

    /// An error if a node is frozen and yet in the tree: what `above` leads to. A node is frozen in the step in which it leaves the tree, so the word
    /// above has changed since it was read.
    pub(super) fn expect_replaced(
        &self,
        view: &View<'_, G>,
        above: Option<&View<'_, G>>,
    ) -> Result<()> {
        let is_in_tree = match above {
            _ if !view.word.is_frozen() => false,
            None => self.root()? == view.link(),
            Some(above) => !above.word.is_frozen() && self.again(above)?.word == above.word,
        };
        if is_in_tree {
            let problem = format!("node {:#x} is in the tree and frozen", view.offset());
            return Err(Error::Damaged(problem));
        }
        Ok(())
    }

    /// Takes a free slot of a node.
    pub(super) fn take_slot(&self, view: &View<'_, G>) -> Option<usize> {
        let slots = self.slots.of(view.offset());
        slots.take(view.all_slots(), view.bitmap())
    }

    /// The way to a node that is there now, in whose box `rect` lies.
    pub(super) fn path_to(&self, to: Link, rect: &Rect) -> Result<Option<Path<'_, G>>> {
        let mut steps = Vec::new();
        let root = self.view(self.root()?)?;
        let mut visits = Visits::new(&self.space);
        let last = self.path_below(root, to, rect, &mut steps, &mut visits)?;
        Ok(last.map(|last| Path { steps, last }))
    }

    fn path_below<'a>(
        &'a self,
        view: View<'a, G>,
        to: Link,
        rect: &Rect,
        steps: &mut Vec<Step<'a, G>>,
        visits: &mut Visits<'_>,
    ) -> Result<Option<View<'a, G>>> {
        visits.count()?;
        if view.level <= to.level {
            return Ok((view.link() == to && !view.word.is_frozen()).then_some(view));
        }
        for slot in view.slots() {
            let child = view.child(slot);
            if child.offset != to.offset
                && (view.level == to.level + 1 || !child.rect.contains(rect))
            {
                continue;
            }
            steps.push(Step { view, slot });
            let below = self.view(view.link_to(slot))?;
            if let Some(last) = self.path_below(below, to, rect, steps, visits)? {
                return Ok(Some(last));
            }
            steps.pop();
        }
        Ok(None)
    }
}
