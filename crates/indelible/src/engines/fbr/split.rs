//! Splits, and the root that comes and goes.
//!
//! A split copies the entries of a full node into two new nodes, and replaces the node in its parent. The old node stays as it was until no
//! reader can hold it.
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. both nodes are filled, their entries are written to free entries of the parent; fence | nodes that nothing leads to | sweeps the new nodes |
//! | 2. an inner node: the word of the parent | the new nodes, in place of the old one | sweeps the old node |
//! | 2. a leaf: the log, with the word of the parent and the links of the neighbours (`log`) | the same | does what the log says |
//!
//! Entries are divided as by the R*-tree (`rect::quality`).

use super::insert::Path;
use super::layout::{Entries, MOST_LEVELS};
use super::log::Store;
use super::node::{Chain, Child, Node};
use super::{Bug, Writer};
use crate::engines::rect::{Link, Record, divide};
use crate::engines::slots;
use crate::pmem::Cell;
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use crate::{Error, Result};
use std::sync::atomic::Ordering;

impl<'a, G: Geometry> Writer<'a, G> {
    /// Splits the node at a depth of a path, whose parent has two free entries. The root gets a parent instead, and nothing is split.
    pub(super) fn split(&self, path: &Path<'a, G>, depth: usize) -> Result<()> {
        let node = path.node(depth);
        let Some(above) = depth.checked_sub(1) else {
            return self.grow(node);
        };
        let parent = &path.steps[above];
        let level = parent.level - 1;
        let entries: Vec<Record> = node
            .slots(level)
            .map(|slot| node.entry(level, slot))
            .collect();
        let rects: Vec<Rect> = node
            .slots(level)
            .map(|slot| node.rect(level, slot))
            .collect();
        let halves = divide(&rects, G::AXES);
        let neighbours = match level {
            0 => Some(self.neighbours(node)?),
            _ => None,
        };
        let offsets = self.tree.space.alloc_many(2)?;
        let chains = match level {
            0 => chains_of_halves(node, &offsets),
            _ => [Chain::default(); 2],
        };
        let name = if level == 0 {
            "leaf split"
        } else {
            "inner split"
        };
        self.tree.pm.note(name, halves[0].len() as u64);
        let mut bitmap = parent.node.word().bitmap() & !(1 << parent.slot);
        let guards = self.lock_nodes(&[parent.node.offset]);
        let free = slots(parent.node.free());
        for (((half, &offset), chain), slot) in halves.iter().zip(&offsets).zip(chains).zip(free) {
            let of_half: Vec<Record> = half.iter().map(|&at| entries[at]).collect();
            let nothing = Rect::NOTHING;
            let rect = half.iter().fold(nothing, |all, &at| all.join(&rects[at]));
            self.fill(offset, level, &of_half, chain);
            let child = Child { rect, offset };
            let entry = child.entry::<G>();
            parent.node.write(self.tree.pm, parent.level, slot, &entry);
            self.flush(parent.level, parent.node.cells(parent.level, slot));
            bitmap |= 1 << slot;
        }
        let word = Store {
            cell: &parent.node.block.word,
            value: parent.node.word().with(bitmap).0,
            level: parent.level,
        };
        match neighbours {
            Some(neighbours) => self.replace_leaf(&neighbours, word, offsets[0], offsets[1]),
            None => self.commit_together(&[word]),
        }
        drop(guards);
        self.retire(node.offset);
        self.tree
            .splits
            .fetch_add(u64::from(level == 0), Ordering::Relaxed);
        Ok(())
    }

    /// What leads to a leaf in the chain. An error if one of the two does not lead to it: a change of the chain at another place would lose leaves.
    pub(super) fn neighbours(&self, leaf: Node<'_, G>) -> Result<Neighbours<'a, G>> {
        let (previous, next) = (leaf.previous(), leaf.next());
        let link = if previous.is_none() {
            &self.tree.root_block().head
        } else {
            &self.tree.leaf_of_chain(previous)?.block.next
        };
        let next = if next.is_none() {
            None
        } else {
            Some(self.tree.leaf_of_chain(next)?)
        };
        let leads_here = link.load_acquire() == leaf.offset.get()
            && next.is_none_or(|next: Node<'_, G>| next.previous() == leaf.offset);
        if !leads_here {
            let offset = leaf.offset;
            return Err(Error::Damaged(format!(
                "the leaves beside leaf {offset:#x} in the chain do not lead to it"
            )));
        }
        Ok(Neighbours { link, next })
    }

    /// Replaces a leaf in the chain, of which these are the neighbours, by the leaves from `first` to `last`, whose own links are set; or by none, if these
    /// two are the neighbours themselves. Does `store`, which changes the parent, together with that.
    pub(super) fn replace_leaf(
        &self,
        neighbours: &Neighbours<'_, G>,
        store: Store<'_>,
        first: Offset,
        last: Offset,
    ) {
        let link = |cell, value: Offset| Store {
            cell,
            value: value.get(),
            level: 0,
        };
        let next = neighbours.next;
        let next = next.map(|next| link(&next.block.previous, last));
        let stores = [Some(store), Some(link(neighbours.link, first)), next];
        let stores: Vec<Store<'_>> = stores.into_iter().flatten().collect();
        if planted(Bug::SiblingAfterBitmap) {
            stores
                .iter()
                .for_each(|&store| self.commit_together(&[store]));
        } else {
            self.commit_together(&stores);
        }
    }

    /// Gives the root a parent, whose only child it is.
    fn grow(&self, root: Node<'_, G>) -> Result<()> {
        let level = root.level() + 1;
        if level > MOST_LEVELS {
            return Err(Error::Damaged(format!(
                "a tree has more than {MOST_LEVELS} levels"
            )));
        }
        let offset = self.tree.space.alloc()?;
        let child = Child {
            rect: root.bounds(),
            offset: root.offset,
        };
        self.tree.pm.note("root growth", u64::from(level > 1));
        self.fill(offset, level, &[child.entry::<G>()], Chain::default());
        self.persist_prepared();
        self.commit_root(Link { offset, level });
        Ok(())
    }

    /// Takes the root out of the tree while it has only one child.
    pub(super) fn shrink_root(&self) -> Result<()> {
        loop {
            let root = self.tree.root();
            let node = self.tree.node(root.offset, root.level)?;
            if root.level == 0 || node.count() != 1 {
                return Ok(());
            }
            let Some(slot) = node.slots(root.level).next() else {
                return Ok(());
            };
            let level = root.level - 1;
            let child = self.tree.node(node.child(root.level, slot).offset, level)?;
            self.tree.pm.note("root shrink", 0);
            self.commit_root(Link {
                offset: child.offset,
                level,
            });
            self.retire(root.offset);
        }
    }
}

/// What leads to a leaf in the chain: the link from the leaf before it or the head of the chain, and the leaf behind it.
pub(super) struct Neighbours<'a, G> {
    pub(super) link: &'a Cell,
    pub(super) next: Option<Node<'a, G>>,
}

/// The neighbours of the two halves of a leaf.
fn chains_of_halves<G: Geometry>(leaf: Node<'_, G>, halves: &[Offset]) -> [Chain; 2] {
    [
        Chain {
            previous: leaf.previous(),
            next: halves[1],
        },
        Chain {
            previous: halves[0],
            next: leaf.next(),
        },
    ]
}

/// A node is split when it has at least three entries, so that the second half is not empty.
const _: () = assert!(Entries::<crate::Box3>::most(0) >= 4);
