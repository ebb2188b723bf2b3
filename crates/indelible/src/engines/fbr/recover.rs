//! Recovery.
//!
//! With `flush=all` an open does what the log says, if a change was under way, and nothing else: all nodes are durable. The sweep then visits all nodes,
//! claims their blocks and counts the records. It holds the mutex meanwhile, so that writers wait for it; searches do not.
//!
//! With `flush=leaves` the inner nodes are believed only if the last session made them durable when it closed the index (`settled` in the root block).
//! Otherwise the open walks the chain of leaves, and builds inner nodes anew above them. That takes time in proportion to the leaves, which `stat`
//! reports; the blocks of the old inner nodes are free afterwards.

use super::node::{Child, Node};
use super::options::Flush;
use super::{Bug, Tree, Writer};
use crate::engines::rect::Link;
use crate::engines::rect::{Visits, grid_of, order_by_curve};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::{Geometry, MAX_AXES, Rect};
use crate::{Error, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How the inner nodes were built anew at the open.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rebuilt {
    /// Leaves that they were built from; 0 if that was not necessary.
    pub(super) leaves: u64,
    pub(super) time: Duration,
}

impl<G: Geometry> Tree<G> {
    /// Makes the index what it was: part of the open, before anything else reads nodes.
    pub(super) fn recover(&mut self) -> Result<()> {
        let offset = self.root_block_offset();
        if !self.space.owns(offset) {
            return Err(Error::Damaged(format!(
                "{offset:#x} is not the root of this index"
            )));
        }
        let is_read_only = self.core.is_read_only();
        if self.has_logged_change() {
            if is_read_only {
                // The index has not been opened since a crash.
                return Err(Error::NotClean);
            }
            self.finish_logged_change()?;
        }
        if self.believes_inner_nodes() {
            let offset = Offset::from_word(self.root_block().root.load_acquire());
            self.sweep.expect_owned(&self.space, offset)?;
            let level = self.nodes.at(offset).level();
            if level > super::MOST_LEVELS {
                let problem = format!("the root {offset:#x} is of level {level}");
                return Err(Error::Damaged(problem));
            }
            self.node(offset, level)?;
            let root = Link { offset, level };
            self.root.store(root.to_word(), Ordering::Release);
        } else if is_read_only {
            return Err(Error::NotClean);
        } else {
            self.rebuild()?;
        }
        if self.flush == Flush::Leaves && !is_read_only {
            // Need not be durable: after a crash the generation is another one.
            self.pm.store(&self.root_block().settled, 0);
        }
        Ok(())
    }

    /// Whether what inner nodes say is durable.
    fn believes_inner_nodes(&self) -> bool {
        if self.flush == Flush::All || planted(Bug::InnerNodesBelieved) {
            return true;
        }
        let (core, settled) = (&self.core, self.root_block().settled.load());
        // A read-only open has the generation of the session before.
        let in_this_session =
            settled == core.generation() && (core.was_clean() || !core.is_read_only());
        let at_last_close = core.was_clean() && settled.checked_add(1) == Some(core.generation());
        settled != 0 && (in_this_session || at_last_close)
    }

    /// Makes inner nodes durable that have not been flushed: the index is being closed, and no other thread uses it.
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | 1. all inner nodes are flushed; fence | inner nodes that nobody believes | builds them anew |
    /// | 2. `settled` in the root block, and the clean close of the pool | the same | believes them |
    pub(super) fn settle(&self) -> Result<()> {
        if self.flush == Flush::All {
            return Ok(());
        }
        let writer = self.write();
        writer.visit_nodes(&mut |node, level| {
            if level > 0 {
                self.pm.named("fbr.settle").flush(node.block);
            }
            true
        })?;
        self.pm.note("inner nodes settled", 0);
        self.pm.named("fbr.settle").fence();
        // COMMIT fbr.settled: the generation in which inner nodes are durable. Before this store recovery builds them anew; after it, and once the pool
        // has been closed cleanly, it believes them.
        let settled = &self.root_block().settled;
        self.pm
            .commit(settled, self.core.generation(), "fbr.settled");
        Ok(())
    }

    /// See [`Engine::sweep`](crate::engines::Engine::sweep).
    pub(super) fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let writer = self.write();
        if self.sweep.is_done() {
            return Ok(true);
        }
        let mut reached = vec![self.root_block_offset()];
        let mut records = 0;
        let is_whole = writer.visit_nodes(&mut |node, level| {
            reached.push(node.offset);
            records += if level == 0 { node.count() as u64 } else { 0 };
            go_on()
        })?;
        if !is_whole {
            return Ok(false);
        }
        if planted(Bug::SweepForgetsRoot) {
            reached.remove(0);
        }
        self.sweep.claim_all(&self.space, reached)?;
        if !self.locks.count.is_complete() {
            self.locks.begin_with(records);
        }
        self.sweep.finish();
        Ok(true)
    }

    /// Builds inner nodes above the leaves of the chain, all of which it reads. No other thread uses the tree.
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | 1. the blocks of all leaves are claimed, all others are free from here on | leaves | begins again |
    /// | 2. inner nodes are written, and not flushed | leaves | begins again |
    fn rebuild(&mut self) -> Result<()> {
        let begin = Instant::now();
        let mut leaves = Vec::new();
        let mut records = 0;
        self.space.claim(self.root_block_offset());
        let mut next = Offset::from_word(self.root_block().head.load_acquire());
        while !next.is_none() {
            let leaf = self.node(next, 0)?;
            self.space.claim_linked(next)?;
            // A link that has been damaged may lead past leaves, whose blocks would be free from here on.
            let before = leaves
                .last()
                .map_or(Offset::NONE, |leaf: &Child| leaf.offset);
            if leaf.previous() != before {
                return Err(Error::Damaged(format!(
                    "leaf {next:#x} comes after {before:#x}, and has {:#x} before it",
                    leaf.previous()
                )));
            }
            records += leaf.count() as u64;
            leaves.push(Child {
                rect: self.box_of(leaf, leaves.last()),
                offset: next,
            });
            next = leaf.next();
        }
        if leaves.is_empty() {
            return Err(Error::Damaged("the index has no first leaf".into()));
        }
        self.pm
            .note("inner nodes rebuilt", u64::from(leaves.len() > 1));
        self.space.finish_sweep();
        self.sweep.finish();
        self.locks.begin_with(records);
        let count = leaves.len() as u64;
        let root = self.write().build_above(&along_curve::<G>(leaves), 1.0)?;
        self.pm.store(&self.root_block().root, root.offset.get());
        self.root.store(root.to_word(), Ordering::Release);
        self.rebuilt = Rebuilt {
            leaves: count,
            time: begin.elapsed(),
        };
        Ok(())
    }

    /// The box of a leaf. An empty one, which a crash can leave behind, lies where the leaf before it lies.
    fn box_of(&self, leaf: Node<'_, G>, before: Option<&Child>) -> Rect {
        const ORIGIN: Rect = Rect {
            low: [0.0; MAX_AXES],
            high: [0.0; MAX_AXES],
        };
        match leaf.count() {
            0 => before.map_or(ORIGIN, |child| child.rect),
            _ => leaf.bounds(),
        }
    }
}

/// Leaves in the order of the places of their centres on a Hilbert curve.
fn along_curve<G: Geometry>(leaves: Vec<Child>) -> Vec<Child> {
    let boxes = leaves.iter().zip(0..);
    let boxes: Vec<(G::Window, u64)> = boxes
        .map(|(leaf, number)| (leaf.rect.window(), number))
        .collect();
    let order = order_by_curve(&grid_of(&boxes), &boxes, 0);
    order.iter().map(|&(_, at)| leaves[at as usize]).collect()
}

impl<'a, G: Geometry> Writer<'a, G> {
    /// Calls `visit` with every node and its level, parents before their children, until it returns `false`; returns what it returned last.
    pub(super) fn visit_nodes(
        &self,
        visit: &mut dyn FnMut(Node<'a, G>, u32) -> bool,
    ) -> Result<bool> {
        let mut waiting = vec![self.tree.root()];
        let mut visits = Visits::new(&self.tree.space);
        while let Some(Link { offset, level }) = waiting.pop() {
            let node = self.tree.node(offset, level)?;
            visits.count()?;
            if !visit(node, level) {
                return Ok(false);
            }
            if level > 0 {
                waiting.extend(node.slots(level).map(|slot| Link {
                    offset: node.child(level, slot).offset,
                    level: level - 1,
                }));
            }
        }
        Ok(true)
    }
}
