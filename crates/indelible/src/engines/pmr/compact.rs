//! Compaction: merges thin nodes, and moves blocks out of the last extents of the index, so that `Pool::shrink` can give these back.
//!
//! Other threads use the index meanwhile. A node is merged or moved by replacing it (`smo`); if another thread comes in between, the
//! compaction looks again.

use super::Tree;
use super::node::View;
use super::smo::{Area, Attempt};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::rect::layout::Entries;
use crate::engines::rect::{Cost, Link};
use crate::pool::{MOST_ROUNDS, Offset};
use crate::spatial::Geometry;
use std::collections::HashSet;

/// Attempts to change a child of a node which other threads disturb, before the compaction leaves it as it is.
const MOST_ATTEMPTS: u32 = 64;

/// What a compaction does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Merge,
    MoveBefore(Offset),
}

/// Nodes below which everything is done, and whether there are no more free blocks.
#[derive(Default)]
struct Progress {
    done: HashSet<Offset>,
    is_over: bool,
}

impl<G: Geometry> Tree<G> {
    /// See [`Engine::compact`](crate::engines::Engine::compact).
    pub(super) fn compact(&self) -> Result<()> {
        if self.core.is_read_only() {
            return Ok(());
        }
        self.tend_all(Work::Merge)?;
        for round in 0..MOST_ROUNDS {
            self.space.settle();
            let Some(end) = self.space.packed_end(round) else {
                break;
            };
            let retire = |block| self.retire(block);
            if self.words.move_descriptors_below(end, retire) {
                self.tend_all(Work::MoveBefore(end))?;
            }
        }
        self.space.settle();
        Ok(())
    }

    fn tend_all(&self, work: Work) -> Result<()> {
        let _guard = epochs::pin();
        let mut progress = Progress::default();
        for _ in 0..MOST_ATTEMPTS {
            let root = self.root()?;
            if let Work::MoveBefore(end) = work
                && root.offset >= end
                && let Some(path) = self.path_to(root, &self.view(root)?.bounds())?
                && self.replace(&path, 0, false, Area::Before(end))? == Attempt::NoBlock
            {
                return Ok(());
            }
            let root = self.root()?;
            if self.tend(root, work, &mut progress)? {
                break;
            }
        }
        if work == Work::Merge {
            self.shrink_root()?;
        }
        Ok(())
    }

    /// Works on the nodes below a node, from the bottom. Returns whether the node is still there.
    fn tend(&self, link: Link, work: Work, progress: &mut Progress) -> Result<bool> {
        let mut attempts = 0;
        loop {
            let view = self.view(link)?;
            if view.word.is_frozen() {
                return Ok(false);
            }
            if view.level == 0 || progress.is_over {
                return Ok(true);
            }
            let mut left = view.slots().map(|slot| view.link_to(slot));
            let child = left.find(|child| !progress.done.contains(&child.offset));
            let Some(child) = child else {
                return self.merge_children(link, work);
            };
            let is_there = match work {
                Work::MoveBefore(end) if child.offset >= end && attempts < MOST_ATTEMPTS => {
                    attempts += 1;
                    progress.is_over = self.move_child(child, end)? == Attempt::NoBlock;
                    false
                }
                _ => {
                    let is_there = self.tend(child, work, progress)?;
                    self.expect_replaced(&self.view(child)?, Some(&view))?;
                    is_there
                }
            };
            if is_there {
                progress.done.insert(child.offset);
            }
        }
    }

    fn move_child(&self, child: Link, end: Offset) -> Result<Attempt> {
        let bounds = self.view(child)?.bounds();
        match self.path_to(child, &bounds)? {
            Some(path) => self.replace(&path, path.depth(), false, Area::Before(end)),
            None => Ok(Attempt::Disturbed),
        }
    }

    /// Merges children of a node that have few entries. Returns whether the node is still there.
    fn merge_children(&self, link: Link, work: Work) -> Result<bool> {
        if work != Work::Merge {
            return Ok(true);
        }
        for _ in 0..MOST_ATTEMPTS {
            let parent = self.view(link)?;
            if parent.word.is_frozen() {
                return Ok(false);
            }
            let Some([first, second]) = self.mergeable(&parent)? else {
                return Ok(true);
            };
            match self.merge(&parent, [&first, &second]) {
                // Merging is to save space, and can wait for it.
                Err(crate::Error::NoSpace(_)) => return Ok(true),
                result => result?,
            };
        }
        Ok(true)
    }

    /// Two children of a node whose entries fit into one node, and leave room: a child that is half empty, with the one that it makes grow least.
    fn mergeable<'a>(&'a self, parent: &View<'a, G>) -> Result<Option<[View<'a, G>; 2]>> {
        let most = Entries::<G>::most(parent.level - 1);
        let mut children = Vec::new();
        for slot in parent.slots() {
            let child = self.view(parent.link_to(slot))?;
            children.push((child, parent.rect(slot)));
        }
        children.sort_by_key(|(child, _)| child.count());
        for (at, (first, rect)) in children.iter().enumerate() {
            if first.count() * 2 > most {
                break;
            }
            let fits =
                |other: &&(View<'a, G>, _)| (other.0.count() + first.count()) * 4 <= most * 3;
            let others = children[at + 1..].iter().take_while(fits);
            let cost = |of: &_| Cost::of_growth(of, rect, G::AXES);
            let least = others.min_by(|a, b| cost(&a.1).compare(&cost(&b.1)));
            if let Some((second, _)) = least {
                return Ok(Some([*first, *second]));
            }
        }
        Ok(None)
    }
}
