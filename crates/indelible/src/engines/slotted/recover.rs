//! Recovery: indexing on demand, and the sweep. It works as in the LB+-Tree, whose `recover` tells the whole story.
//!
//! After an open the inner nodes have one child, an *unindexed range*. An operation on a key in it walks from the signpost before the key to
//! the signpost after it, adds the low keys of these leaves to the inner nodes, claims the leaves and the blobs that they refer to, and counts
//! their records. A value is not read for that, and of keys only low keys that are blobs.
//!
//! Nothing is repaired: every crash leaves a chain of leaves that is whole.

use super::inner::{Child, Entry, Seek};
use super::layout::{Reference, prefix_of};
use super::leaf::Leaf;
use super::records::{Snapshot, Value};
use super::separator::Text;
use super::{Bug, Tree};
use crate::concurrency::epochs;
use crate::concurrency::sync::lock;
use crate::engines::arena::Node;
use crate::engines::inner_nodes::{InnerNode, InnerTree};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::{Error, Result};

/// The leaf at which a walk began, and those to its right, each with its low key.
type Walked = (Child, Vec<(Vec<u8>, Child)>);

/// What a walk has claimed and counted. Claims are undone unless it is kept.
struct Claims<'a> {
    tree: &'a Tree,
    leaves: Vec<(Child, usize)>,
    blobs: Vec<Reference>,
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        for &(leaf, _) in &self.leaves {
            self.tree.space_of(leaf.size()).unclaim(leaf.offset());
        }
        for &blob in &self.blobs {
            self.tree.blobs.unclaim(blob);
        }
    }
}

impl<'a> Claims<'a> {
    fn none(tree: &'a Tree) -> Self {
        Self {
            tree,
            leaves: Vec::new(),
            blobs: Vec::new(),
        }
    }

    /// Claims the leaf at an offset read from the pool, which no thread has claimed before, and all that it refers to.
    fn claim(&mut self, offset: Offset) -> Result<(Child, Snapshot, Vec<u8>)> {
        let tree = self.tree;
        let block = tree.block_at(offset)?;
        tree.space_of(block.size()).claim_linked(offset)?;
        self.leaves.push((block, 0));
        let leaf: Leaf<'_> = tree.leaf_in(block)?;
        let snapshot = Snapshot::of(leaf);
        snapshot.expect_sound(tree.sizes)?;
        for blob in snapshot.references()? {
            if planted(Bug::SweepForgetsBlobs) {
                continue;
            }
            tree.blobs.claim(blob)?;
            self.blobs.push(blob);
        }
        let low = match snapshot.low()? {
            Value::Inline(low) => low.to_vec(),
            Value::Blob(blob) => tree.blobs.bytes(blob).to_vec(),
        };
        if let Some(last) = self.leaves.last_mut() {
            last.1 = leaf.count();
        }
        Ok((block, snapshot, low))
    }

    /// Keeps the claims, and counts the records, as nobody can have changed them.
    fn keep(mut self) {
        let tree = self.tree;
        if tree.level == 0 && !tree.locks.count.is_complete() {
            for &(leaf, records) in &self.leaves {
                let entry = tree.locks.entry(leaf.offset().get());
                let _lock = entry.version.lock();
                entry.add(records as i64);
            }
        }
        self.leaves.clear();
        self.blobs.clear();
    }
}

impl Tree {
    /// Indexes the leaves around what is sought, if they are in an unindexed range, for an operation that needs them. The sweep waits meanwhile.
    /// The caller holds no lock of this tree.
    #[cold]
    pub(super) fn index_on_demand(&self, seek: Seek<'_>) -> Result<()> {
        let _waiting = self.waiting_operations.enter();
        self.index_around(seek)
    }

    /// Indexes the leaves around what is sought, if they are in an unindexed range: those between the nearest signposts on both sides.
    fn index_around(&self, seek: Seek<'_>) -> Result<()> {
        let _indexing = lock(&self.indexing);
        let _guard = epochs::pin();
        // Unindexed ranges change only under `indexing`, so what is read here stays true.
        let (low, high, child) = self.read_child(seek);
        if !child.is_unindexed() {
            return Ok(());
        }
        let start = self
            .directory
            .last_at(seek)?
            .filter(|(start, _)| *start > low)
            .unwrap_or_else(|| (low.clone(), child.offset()));
        let end = self
            .directory
            .first_after(seek)?
            .filter(|(end, _)| high.as_ref().is_none_or(|high| end < high));
        let stop = match (&end, &high) {
            // From the pool, and not claimed before the range behind it is indexed.
            (Some((_, offset)), _) => self.block_at(*offset)?.offset(),
            (None, Some(high)) => self.locate_any(Seek::At(high)).child.offset(),
            (None, None) => Offset::NONE,
        };
        let mut claims = Claims::none(self);
        let walked_to = end.as_ref().map(|(key, _)| key).or(high.as_ref());
        let (first, found) = self.walk(&start, stop, walked_to.map(Vec::as_slice), &mut claims)?;
        claims.keep();
        // From right to left, so that at every moment every leaf without a separator lies in an unindexed range.
        if let Some((end, offset)) = &end {
            self.add_separator(end, Child::unindexed(*offset));
        }
        for (separator, leaf) in found.iter().rev() {
            self.add_separator(separator, *leaf);
        }
        if start.0 > low {
            self.add_separator(&start.0, first);
        } else {
            self.mark_indexed(&low, first);
        }
        Ok(())
    }

    /// Whether all records are in one leaf, and there is no directory.
    pub(super) fn has_one_leaf(&self) -> bool {
        let _guard = epochs::pin();
        let head = self.locate_any(Seek::At(&[])).child;
        self.directory().is_none()
            && self
                .leaf_at(head.offset())
                .is_ok_and(|leaf| leaf.next().is_none())
    }

    /// The child that is sought: its low key, the low key of the next child, and the child.
    fn read_child(&self, seek: Seek<'_>) -> (Vec<u8>, Option<Vec<u8>>, Child) {
        loop {
            let spot = self.locate_any(seek);
            let found = (
                spot.low().to_vec(),
                spot.high().map(<[u8]>::to_vec),
                spot.child,
            );
            if spot.is_current() {
                return found;
            }
        }
    }

    /// Claims the leaf `start` and the leaves to its right, up to but not including `stop`, which begins at `high`. Returns the leaves to the
    /// right of `start`, each with its low key, and before them `start`.
    fn walk(
        &self,
        start: &(Vec<u8>, Offset),
        stop: Offset,
        high: Option<&[u8]>,
        claims: &mut Claims<'_>,
    ) -> Result<Walked> {
        let out_of_order = |leaf: Offset| {
            let problem = format!("leaf {leaf:#x} has keys out of order");
            Err(Error::Damaged(problem))
        };
        let mut found: Vec<(Vec<u8>, Child)> = Vec::new();
        let (first, mut here, low) = claims.claim(start.1)?;
        if low != start.0 {
            return out_of_order(start.1);
        }
        let (mut last, mut last_low) = (start.1, low);
        loop {
            let next = here.next();
            let prefix = here.commit_word().prefix();
            if next == stop {
                if prefix > prefix_of(&last_low, high)
                    || high.is_some_and(|high| *last_low >= *high)
                {
                    return out_of_order(last);
                }
                return Ok((first, found));
            }
            if next.is_none() {
                return Err(Error::Damaged(format!(
                    "the chain of leaves ends before leaf {stop:#x}"
                )));
            }
            let (leaf, snapshot, low) = claims.claim(next)?;
            if low <= last_low || prefix > prefix_of(&last_low, Some(&low)) {
                return out_of_order(next);
            }
            found.push((low.clone(), leaf));
            (here, last, last_low) = (snapshot, next, low);
        }
    }

    fn add_separator(&self, key: &[u8], child: Child) {
        loop {
            let spot = self.locate_any(Seek::At(key));
            if spot.parent.is_full() {
                self.split_inner(Text::of(key));
                continue;
            }
            if let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) {
                debug_assert!(spot.low() < key);
                spot.parent.insert(spot.slot, &Entry::leaf(key, child));
                return;
            }
        }
    }

    /// Replaces the unindexed range that begins at key `low` by its first leaf alone.
    fn mark_indexed(&self, low: &[u8], leaf: Child) {
        loop {
            let spot = self.locate_any(Seek::At(low));
            if let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) {
                spot.parent.set_child(spot.slot, leaf);
                return;
            }
        }
    }

    /// Sweeps the tree of records, which this is, and its directories. Stops early, with `false`, when `go_on` says so.
    pub(super) fn sweep_all(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut trees = vec![self];
        while let Some(directory) = trees[trees.len() - 1].directory() {
            trees.push(directory);
        }
        // Directories first: indexing a tree is fast only with the signposts of its directory.
        for tree in trees.into_iter().rev() {
            if !tree.sweep(go_on)? {
                return Ok(false);
            }
        }
        self.locks.count.complete();
        Ok(true)
    }

    /// Visits every leaf from left to right, and indexes unindexed ranges. Stops early, with `false`, when `go_on` says so.
    fn sweep(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut from = Vec::new();
        while go_on() {
            self.waiting_operations.wait_for_none();
            self.directory.wait_for_operations();
            let _guard = epochs::pin();
            let spot = self.locate_any(Seek::At(&from));
            if spot.child.is_unindexed() {
                self.index_around(Seek::At(&from))?;
                continue;
            }
            let high = spot.high().map(<[u8]>::to_vec);
            if !spot.is_current() {
                continue;
            }
            match high {
                Some(high) => from = high,
                None => return Ok(true),
            }
        }
        Ok(false)
    }
}
