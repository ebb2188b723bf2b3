//! Compaction: builds a thin tree anew, and moves blocks out of the last extents of the index, so that `Pool::shrink` can give these back.
//!
//! A move copies a node to a block further to the front, and replaces the link to it in its parent; for a leaf also the links of its neighbours in the
//! chain. It commits as a split does, and searches that know the old node go on in it.

use super::layout::{Entries, NODE_BYTES, RootBlock};
use super::log::Store;
use super::node::{Chain, Node};
use super::{Tree, Writer};
use crate::Result;
use crate::engines::rect::Link;
use crate::engines::rect::Record;
use crate::engines::unless_full;
use crate::pmem::Cell;
use crate::pool::{MOST_ROUNDS, Offset};
use crate::spatial::Geometry;
use std::sync::atomic::Ordering;

/// A tree is built anew if less than this share of its entries for records is in use.
const THIN: f64 = 0.5;
/// The share of each node that is filled then: inserts go on, and should not split every leaf.
const NEW_FILL: f64 = 0.8;

impl<G: Geometry> Tree<G> {
    /// See [`Engine::compact`](crate::engines::Engine::compact). Writers wait while a round goes on; between rounds no lock is held, since
    /// waiting for readers to let go of retired blocks must not keep a writer out.
    pub(super) fn compact(&self) -> Result<()> {
        if self.core.is_read_only() {
            return Ok(());
        }
        self.write().rebuild_if_thin()?;
        for round in 0..MOST_ROUNDS {
            self.space.settle();
            let writer = self.write();
            let Some(end) = self.space.packed_end(round) else {
                break;
            };
            writer.move_root_block_below(end);
            writer.move_nodes_below(end)?;
        }
        self.space.settle();
        Ok(())
    }
}

impl<'a, G: Geometry> Writer<'a, G> {
    fn rebuild_if_thin(&self) -> Result<()> {
        let mut leaves = 0_usize;
        self.visit_nodes(&mut |_, level| {
            leaves += usize::from(level == 0);
            true
        })?;
        let records = self.tree.locks.total();
        let slots = leaves * Entries::<G>::most(0);
        if leaves < 2 || records == 0 || records as f64 >= slots as f64 * THIN {
            return Ok(());
        }
        let records = self.all_records()?;
        self.tree.pm.note("thin tree rebuilt", 0);
        // If both trees do not fit into the pool together, moves need no more space than there is.
        unless_full(self.replace_all(&records, NEW_FILL))
    }

    /// Moves the root block to a free block before `end`, if it is not there and there is one.
    fn move_root_block_below(&self, end: Offset) {
        let (tree, old) = (self.tree, self.tree.root_block_offset());
        if old < end {
            return;
        }
        let Some(new) = tree.space.alloc_below(end) else {
            return;
        };
        let words = tree.root_block();
        let word = |cell: &Cell| Offset::from_word(cell.load());
        tree.pm.note("root block moved", NODE_BYTES as u64);
        tree.nodes.part::<RootBlock>(new).fill(
            tree.pm,
            word(&words.root),
            word(&words.head),
            words.settled.load(),
        );
        tree.pm.named("fbr.copy").fence();
        // COMMIT fbr.move-root: the catalog entry's root. Before this store recovery sees the old root block, and the copy is swept; after
        // it, it sees the copy, with the same words, and the old one is swept. The log is empty, since the mutex is held.
        let cell = &tree.core.entry(tree.place.slot).roots[0];
        tree.pm.commit(cell, new.get(), "fbr.move-root");
        self.retire(old);
    }

    /// Moves nodes to free blocks before `end`, as long as there are any.
    fn move_nodes_below(&self, end: Offset) -> Result<()> {
        let root = self.tree.root();
        if root.offset >= end {
            let node = self.tree.node(root.offset, root.level)?;
            let Some(offset) = self.move_node(node, root.level, end, None)? else {
                return Ok(());
            };
            let level = root.level;
            self.tree
                .root
                .store(Link { offset, level }.to_word(), Ordering::Release);
        }
        let mut waiting = vec![self.tree.root()];
        while let Some(Link { offset, level }) = waiting.pop() {
            if level == 0 {
                continue;
            }
            let parent = self.tree.node(offset, level)?;
            for slot in parent.slots(level) {
                let mut offset = parent.child(level, slot).offset;
                if offset >= end {
                    let child = self.tree.node(offset, level - 1)?;
                    let moved = self.move_node(child, level - 1, end, Some((parent, slot)))?;
                    let Some(moved) = moved else {
                        return Ok(());
                    };
                    offset = moved;
                }
                waiting.push(Link {
                    offset,
                    level: level - 1,
                });
            }
        }
        Ok(())
    }

    /// Moves a node, which is the child in a slot of a node, or the root. Returns where it is now; `None` if there is no free block before `end`.
    fn move_node(
        &self,
        node: Node<'a, G>,
        level: u32,
        end: Offset,
        parent: Option<(Node<'a, G>, usize)>,
    ) -> Result<Option<Offset>> {
        let neighbours = match level {
            0 => Some(self.neighbours(node)?),
            _ => None,
        };
        let Some(new) = self.tree.space.alloc_below(end) else {
            return Ok(None);
        };
        let entries: Vec<Record> = node
            .slots(level)
            .map(|slot| node.entry(level, slot))
            .collect();
        let chain = Chain {
            previous: node.previous(),
            next: node.next(),
        };
        self.tree.pm.note("node moved", u64::from(level > 0));
        self.fill(new, level, &entries, chain);
        let guards = parent.map(|(parent, _)| self.lock_nodes(&[parent.offset]));
        let cell = match parent {
            Some((parent, slot)) => {
                let cells = parent.cells(level + 1, slot);
                &cells[cells.len() - 1]
            }
            None => &self.tree.root_block().root,
        };
        let store = Store {
            cell,
            value: new.get(),
            level: parent.map_or(0, |_| level + 1),
        };
        match neighbours {
            Some(neighbours) => self.replace_leaf(&neighbours, store, new, new),
            None => self.commit_together(&[store]),
        }
        drop(guards);
        self.retire(node.offset);
        Ok(Some(new))
    }
}
