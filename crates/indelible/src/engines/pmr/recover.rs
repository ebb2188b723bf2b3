//! Recovery, and the number of records.
//!
//! All nodes are durable. An open finishes the changes of several words that were under way, or takes them back, and answers (`multiword`). The sweep
//! then visits all nodes, claims their blocks and counts the records, beside all other operations. A search meets each node once that was there
//! before, whatever is replaced meanwhile, and so does the sweep.

use super::layout::{MOST_LEVELS, ROOT};
use super::node::View;
use super::{Bug, Tree};
use crate::concurrency::epochs;
use crate::engines::flight::thread_number;
use crate::engines::rect::{Link, Visits};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::Geometry;
use crate::{Error, Result};
use std::sync::atomic::Ordering;

impl<G: Geometry> Tree<G> {
    /// Makes the index what it was: part of the open, before anything else reads nodes.
    pub(super) fn recover(&self) -> Result<()> {
        self.words.recover()?;
        self.relocations()?;
        self.view(self.root()?).map(|_| ())
    }

    /// The root of the tree.
    pub(super) fn root(&self) -> Result<Link> {
        let root = Link::from_word(self.words.read(self.words.root_cell(ROOT))?);
        if root.level > MOST_LEVELS {
            let problem = format!("the root {:#x} is of level {}", root.offset, root.level);
            return Err(Error::Damaged(problem));
        }
        Ok(root)
    }

    /// Calls `visit` with every node, parents before their children, until it returns `false`; returns what it returned last. The caller is pinned.
    pub(super) fn visit_nodes(&self, visit: &mut dyn FnMut(&View<'_, G>) -> bool) -> Result<bool> {
        let mut waiting = vec![self.root()?];
        let mut visits = Visits::new(&self.space);
        while let Some(link) = waiting.pop() {
            let view = self.view(link)?;
            visits.count()?;
            if !visit(&view) {
                return Ok(false);
            }
            if view.level > 0 {
                waiting.extend(view.slots().map(|slot| view.link_to(slot)));
            }
        }
        Ok(true)
    }

    /// See [`Engine::sweep`](crate::engines::Engine::sweep).
    pub(super) fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let _guard = epochs::pin();
        if self.sweep.is_done() {
            return Ok(true);
        }
        let mut reached = self.words.descriptor_blocks().to_vec();
        let is_whole = self.visit_nodes(&mut |view| {
            reached.push(view.offset());
            if view.level == 0 {
                self.count_found(view);
            }
            go_on()
        })?;
        if !is_whole {
            return Ok(false);
        }
        if planted(Bug::SweepForgetsDescriptors) {
            reached.remove(0);
        }
        self.sweep.claim_all(&self.space, reached)?;
        if !self.locks.count.is_complete() {
            self.counts_by_slot.store(true, Ordering::SeqCst);
            self.locks.count.complete();
        }
        self.sweep.finish();
        Ok(true)
    }

    /// Retires a block that has just become unreachable. It has been claimed while it was reachable: see `freezing`; descriptors move after the sweep only.
    pub(super) fn retire(&self, offset: Offset) {
        if planted(Bug::FreedAtOnce) {
            return self.space.free_now(offset);
        }
        self.space.retire(offset);
    }
}

/// Counting: see the head of `slots`.
impl<G: Geometry> Tree<G> {
    /// Whether the number of records was known at the open, so that each change counts by itself.
    fn knows_number(&self) -> bool {
        self.locks.count.is_complete() && !self.counts_by_slot.load(Ordering::SeqCst)
    }

    fn add(&self, change: i64) {
        if change != 0 {
            self.locks.numbered(thread_number()).add_shared(change);
        }
    }

    /// Counts records that have been added to a leaf, in these slots.
    pub(super) fn count_added(&self, leaf: Offset, bits: u64) {
        let new = match self.knows_number() {
            true => bits,
            false => self.slots.of(leaf).count(bits),
        };
        self.add(i64::from(new.count_ones()));
    }

    /// Counts a record that has been removed from a leaf.
    pub(super) fn count_removed(&self, leaf: Offset, bit: u64) {
        let was_counted = self.knows_number() || self.slots.of(leaf).count(bit) == 0;
        self.add(-i64::from(was_counted));
    }

    /// Counts the records of a leaf that the sweep has found.
    fn count_found(&self, leaf: &View<'_, G>) {
        if !self.knows_number() {
            self.count_added(leaf.offset(), leaf.bitmap());
        }
    }

    /// Counts the records of a leaf that are copied to other leaves, where they are taken for counted.
    pub(super) fn count_copied(&self, leaf: &View<'_, G>) {
        self.count_found(leaf);
    }

    /// Counts records that a bulk load has brought.
    pub(super) fn count_loaded(&self, records: usize) {
        self.add(records as i64);
    }
}
