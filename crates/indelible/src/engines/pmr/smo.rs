//! Changes of structure: nodes that are replaced by copies or halves of themselves, nodes that leave the tree, and the root that comes and goes.
//!
//! Each is one change of several words (`multiword`): a node is frozen with the entries that have been copied from it, and the word that leads to it leads
//! elsewhere. If a thread changes one of these words in between, the change fails, and what was built for it is freed.
//!
//! | change | words |
//! |---|---|
//! | a node is replaced by one or two nodes | of the node: frozen · of the parent: without the old entry, with the new ones |
//! | the root is replaced by one node, or by one over two halves | of the root node: frozen · the root |
//! | two nodes are merged | of both: frozen · of the parent |
//! | an empty node leaves the tree | of the node: frozen · of the parent: without the entry |
//! | the root has one child, which becomes the root | of the root node: frozen · the root |
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. nodes are filled, and their entries are written to free slots of the parent; flush | nodes and entries that nothing leads to | sweeps the nodes |
//! | 2. the change of several words, whose first fence makes all of that durable | as `multiword` says: all words, or none | sweeps the nodes that are not in the tree |

use super::layout::{MOST_LEVELS, ROOT, Word};
use super::multiword::Exchange;
use super::node::{Path, View};
use super::{Bug, Tree};
use crate::engines::rect::layout::Entries;
use crate::engines::rect::{Chain, Child, Link, Record, divide};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use crate::{Error, Result};
use std::sync::atomic::Ordering;

/// Where the blocks of new nodes have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Area {
    Anywhere,
    /// Before this offset, in a pool that does not grow.
    Before(Offset),
}

/// How an attempt to change the structure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Done,
    /// Another thread came in between, or something else had to be changed first: the caller looks again.
    Disturbed,
    /// There is no free block in the area.
    NoBlock,
}

/// A node that has been filled, and that nothing leads to as yet.
struct New {
    child: Child,
    bitmap: u64,
}

impl<G: Geometry> Tree<G> {
    pub(super) fn alloc(&self, count: usize, area: Area) -> Result<Option<Vec<Offset>>> {
        let Area::Before(end) = area else {
            return self.space.alloc_many(count).map(Some);
        };
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(block) = self.space.alloc_below(end) else {
                self.free(&blocks);
                return Ok(None);
            };
            blocks.push(block);
        }
        Ok(Some(blocks))
    }

    /// Frees blocks that nobody else has seen.
    fn free(&self, blocks: &[Offset]) {
        blocks.iter().for_each(|&block| self.space.free_now(block));
    }

    /// Fills a node that nothing leads to as yet. Flushed without a fence.
    pub(super) fn fill(&self, offset: Offset, level: u32, entries: &[Record]) {
        let node = self.nodes.at(offset);
        let word = Word::new(level, entries.len());
        node.fill(self.pm, word.0, level, entries, Chain::default());
        self.slots.of(offset).begin(word.bitmap::<G>());
        self.pm.named("pmr.fill").flush(node.block);
    }

    /// Fills a node with some of these entries.
    fn fill_with(&self, offset: Offset, level: u32, entries: &[Record], which: &[usize]) -> New {
        let mine: Vec<Record> = which.iter().map(|&at| entries[at]).collect();
        self.fill(offset, level, &mine);
        let rect_of = |entry: &Record| match level {
            0 => entry.rect::<G>(),
            _ => entry.rect::<G::Window>(),
        };
        let nothing = Rect::NOTHING;
        let rect = mine
            .iter()
            .fold(nothing, |all, entry| all.join(&rect_of(entry)));
        New {
            child: Child { rect, offset },
            bitmap: Word::new(level, mine.len()).bitmap::<G>(),
        }
    }

    /// Freezes a node, which leaves the tree by that: part of a change.
    ///
    /// Its block is claimed before the change, while it is in the tree. Once it has left the tree the sweep does not meet it any more, and may end before this
    /// thread retires it; the end of the sweep frees what has not been claimed. For the same reason the records of a leaf are counted before.
    pub(super) fn freezing<'a>(&self, view: &View<'a, G>) -> Exchange<'a> {
        self.space.claim(view.offset());
        if view.level == 0 {
            self.count_copied(view);
        }
        Exchange {
            cell: &view.node.block.word,
            old: view.word.0,
            new: view.word.frozen().0,
        }
    }

    /// Makes another node the root: part of a change.
    pub(super) fn rooting(&self, old: Link, new: Link) -> Exchange<'_> {
        Exchange {
            cell: self.words.root_cell(ROOT),
            old: old.to_word(),
            new: new.to_word(),
        }
    }

    /// Makes room for `wanted` entries in the node at a depth of a way, which has not so many free slots: replaces the node by a copy without what is
    /// out of use, or by two halves. The caller begins again.
    pub(super) fn make_room(&self, path: &Path<'_, G>, depth: usize, wanted: usize) -> Result<()> {
        self.make_room_in(path, depth, wanted, Area::Anywhere)
            .map(|_| ())
    }

    fn make_room_in(
        &self,
        path: &Path<'_, G>,
        depth: usize,
        wanted: usize,
        area: Area,
    ) -> Result<Attempt> {
        let view = path.view(depth);
        let (count, most) = (view.count(), Entries::<G>::most(view.level));
        // A copy should last for some changes. To replace a node takes a slot of its parent: if a copy lasted for one change only, the work would
        // double with each level.
        let is_full = count * 4 > most * 3 || most - count < wanted + 1;
        self.replace(path, depth, is_full && count > 1, area)
    }

    /// Replaces the node at a depth of a way by a copy, or by two halves.
    pub(super) fn replace(
        &self,
        path: &Path<'_, G>,
        depth: usize,
        splits: bool,
        area: Area,
    ) -> Result<Attempt> {
        let view = self.again(&path.view(depth))?;
        let splits = splits && view.count() > 1;
        if view.word.is_frozen() {
            return Ok(Attempt::Disturbed);
        }
        let entries: Vec<Record> = view.slots().map(|slot| view.entry(slot)).collect();
        let groups: Vec<Vec<usize>> = if splits {
            let rects: Vec<Rect> = view.slots().map(|slot| view.rect(slot)).collect();
            divide(&rects, G::AXES).into()
        } else {
            vec![(0..entries.len()).collect()]
        };
        let Some(above) = depth.checked_sub(1) else {
            return self.replace_root(&view, &entries, &groups, area);
        };
        let parent = self.again(&path.view(above))?;
        let Some(old) = parent.slot_of(view.offset()) else {
            return Ok(Attempt::Disturbed);
        };
        if parent.word.is_frozen() {
            return Ok(Attempt::Disturbed);
        }
        let old_box = parent.rect(old);
        let Some(slots) = self.take_slots(&parent, groups.len()) else {
            let attempt = self.make_room_in(path, above, groups.len(), area)?;
            return Ok(match attempt {
                Attempt::Done => Attempt::Disturbed,
                attempt => attempt,
            });
        };
        let blocks = match self.alloc(groups.len(), area) {
            Ok(Some(blocks)) => blocks,
            other => {
                self.give_slots_back(&parent, &slots);
                return other.map(|_| Attempt::NoBlock);
            }
        };
        let mut word = parent.word;
        for ((group, &block), &slot) in groups.iter().zip(&blocks).zip(&slots) {
            let mut new = self.fill_with(block, view.level, &entries, group);
            if new.bitmap == 0 {
                // There is no box around nothing.
                new.child.rect = old_box;
            }
            self.write_child(&parent, slot, &new.child);
            word = word.with(1 << slot);
        }
        self.note_replacement(&view, &groups, area);
        self.slots.of(parent.offset()).take_used(1 << old);
        let mut exchanges = [
            self.freezing(&view),
            Exchange {
                cell: &parent.node.block.word,
                old: parent.word.0,
                new: word.without(1 << old).0,
            },
        ];
        if planted(Bug::SplitInTwoCommits) {
            for exchange in &mut exchanges {
                self.words.exchange_all(std::slice::from_mut(exchange))?;
            }
            self.replaced(&view);
            return Ok(Attempt::Done);
        }
        if self.words.exchange_all(&mut exchanges)? {
            self.replaced(&view);
            return Ok(Attempt::Done);
        }
        self.free(&blocks);
        self.give_slots_back(&parent, &slots);
        Ok(Attempt::Disturbed)
    }

    fn note_replacement(&self, view: &View<'_, G>, groups: &[Vec<usize>], area: Area) {
        let is_inner = u64::from(view.level > 0);
        match (groups, area) {
            ([first, _], _) => {
                self.pm.note(
                    ["pmr: leaf split", "pmr: inner split"][is_inner as usize],
                    first.len() as u64,
                );
                self.splits.fetch_add(1 - is_inner, Ordering::Relaxed);
            }
            (_, Area::Anywhere) => {
                self.pm.note("pmr: node copied", is_inner);
                self.copies.fetch_add(1, Ordering::Relaxed);
            }
            _ => self.pm.note("pmr: node moved", is_inner),
        }
    }

    fn take_slots(&self, view: &View<'_, G>, count: usize) -> Option<Vec<usize>> {
        let mut slots = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(slot) = self.take_slot(view) else {
                self.give_slots_back(view, &slots);
                return None;
            };
            slots.push(slot);
        }
        Some(slots)
    }

    fn give_slots_back(&self, view: &View<'_, G>, slots: &[usize]) {
        let part = self.slots.of(view.offset());
        slots.iter().for_each(|&slot| part.give_back(slot));
    }

    fn write_child(&self, parent: &View<'_, G>, slot: usize, child: &Child) {
        let (pm, level) = (self.pm, parent.level);
        parent.node.write(pm, level, slot, &child.entry::<G>());
        pm.named("pmr.part").flush(parent.node.cells(level, slot));
    }

    /// Replaces the root by a copy, or by a node over its two halves.
    fn replace_root(
        &self,
        view: &View<'_, G>,
        entries: &[Record],
        groups: &[Vec<usize>],
        area: Area,
    ) -> Result<Attempt> {
        let is_split = groups.len() > 1;
        let level = view.level + u32::from(is_split);
        if level > MOST_LEVELS {
            let problem = format!("a tree has more than {MOST_LEVELS} levels");
            return Err(Error::Damaged(problem));
        }
        let Some(blocks) = self.alloc(groups.len() + usize::from(is_split), area)? else {
            return Ok(Attempt::NoBlock);
        };
        let fill = |(group, &block): (&Vec<usize>, &Offset)| {
            self.fill_with(block, view.level, entries, group).child
        };
        let children: Vec<Child> = groups.iter().zip(&blocks).map(fill).collect();
        let mut offset = blocks[0];
        if is_split {
            offset = blocks[2];
            let children: Vec<Record> = children.iter().map(Child::entry::<G>).collect();
            self.fill(offset, level, &children);
            self.pm.note("pmr: root growth", u64::from(level > 1));
        }
        self.note_replacement(view, groups, area);
        if self.root_instead(view, Link { offset, level })? {
            return Ok(Attempt::Done);
        }
        self.free(&blocks);
        Ok(Attempt::Disturbed)
    }

    /// What is left to do for a node that is frozen, and not in the tree any more.
    pub(super) fn replaced(&self, view: &View<'_, G>) {
        self.retire(view.offset());
    }

    /// Takes the empty node at the end of a way out of the tree, with those above that become empty by that.
    pub(super) fn unlink(&self, path: &Path<'_, G>) -> Result<()> {
        for depth in (0..=path.depth()).rev() {
            let view = self.again(&path.view(depth))?;
            if view.word.is_frozen() || view.bitmap() != 0 {
                break;
            }
            let Some(above) = depth.checked_sub(1) else {
                return self.plant_leaf(&view);
            };
            let parent = self.again(&path.view(above))?;
            let Some(slot) = parent.slot_of(view.offset()) else {
                break;
            };
            if parent.word.is_frozen() {
                break;
            }
            self.slots.of(parent.offset()).take_used(1 << slot);
            let mut exchanges = [
                self.freezing(&view),
                Exchange {
                    cell: &parent.node.block.word,
                    old: parent.word.0,
                    new: parent.word.without(1 << slot).0,
                },
            ];
            self.pm
                .note("pmr: empty node unlinked", u64::from(view.level > 0));
            if !self.words.exchange_all(&mut exchanges)? {
                break;
            }
            self.replaced(&view);
        }
        self.shrink_root()
    }

    /// Replaces a root without children by an empty leaf.
    fn plant_leaf(&self, root: &View<'_, G>) -> Result<()> {
        if root.level == 0 {
            return Ok(());
        }
        let offset = self.space.alloc()?;
        self.fill(offset, 0, &[]);
        self.pm.note("pmr: leaf planted", 0);
        if !self.root_instead(root, Link { offset, level: 0 })? {
            self.free(&[offset]);
        }
        Ok(())
    }

    /// Makes another node the root, instead of the node that is.
    pub(super) fn root_instead(&self, root: &View<'_, G>, new: Link) -> Result<bool> {
        let mut exchanges = [self.freezing(root), self.rooting(root.link(), new)];
        let done = self.words.exchange_all(&mut exchanges)?;
        if done {
            self.replaced(root);
        }
        Ok(done)
    }

    /// Takes the root out of the tree while it has only one child.
    pub(super) fn shrink_root(&self) -> Result<()> {
        loop {
            let root = self.view(self.root()?)?;
            if root.level == 0 || root.count() != 1 || root.word.is_frozen() {
                return Ok(());
            }
            let Some(slot) = root.slots().next() else {
                return Ok(());
            };
            self.pm.note("pmr: root shrink", 0);
            self.root_instead(&root, root.link_to(slot))?;
        }
    }

    /// Merges two children of a node.
    pub(super) fn merge(
        &self,
        parent: &View<'_, G>,
        [first, second]: [&View<'_, G>; 2],
    ) -> Result<Attempt> {
        let old = [first, second].map(|view| parent.slot_of(view.offset()));
        let [Some(a), Some(b)] = old else {
            return Ok(Attempt::Disturbed);
        };
        let Some(slot) = self.take_slot(parent) else {
            let Some(path) = self.path_to(parent.link(), &parent.bounds())? else {
                return Ok(Attempt::Disturbed);
            };
            self.make_room(&path, path.depth(), 1)?;
            return Ok(Attempt::Disturbed);
        };
        let block = match self.space.alloc() {
            Ok(block) => block,
            Err(error) => {
                self.slots.of(parent.offset()).give_back(slot);
                return Err(error);
            }
        };
        let of = |view: &View<'_, G>| -> Vec<Record> {
            view.slots().map(|slot| view.entry(slot)).collect()
        };
        let entries = [of(first), of(second)].concat();
        let all: Vec<usize> = (0..entries.len()).collect();
        let mut new = self.fill_with(block, first.level, &entries, &all);
        if new.bitmap == 0 {
            new.child.rect = parent.rect(a);
        }
        self.write_child(parent, slot, &new.child);
        self.pm
            .note("pmr: nodes merged", u64::from(first.level > 0));
        let gone = 1 << a | 1 << b;
        self.slots.of(parent.offset()).take_used(gone);
        let mut exchanges = [
            self.freezing(first),
            self.freezing(second),
            Exchange {
                cell: &parent.node.block.word,
                old: parent.word.0,
                new: parent.word.with(1 << slot).without(gone).0,
            },
        ];
        if self.words.exchange_all(&mut exchanges)? {
            self.replaced(first);
            self.replaced(second);
            return Ok(Attempt::Done);
        }
        self.free(&[block]);
        self.slots.of(parent.offset()).give_back(slot);
        Ok(Attempt::Disturbed)
    }
}
