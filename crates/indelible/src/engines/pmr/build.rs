//! Bulk loads: a tree is built at once, and becomes the root of the empty index.

use super::Tree;
use super::node::View;
use super::smo::Area;
use crate::concurrency::epochs;
use crate::engines::parallel::helpers;
use crate::engines::rect::{
    Child, Link, Record, begin_of, expect_numbers, grid_of, nodes_for, order_by_curve,
};
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use crate::{Error, Result};

/// Records per thread that a sort of a bulk load is worth another thread for: below that, starting the thread takes longer.
const RECORDS_PER_HELPER: usize = 1 << 14;

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::bulk_load`](crate::engines::Spatial::bulk_load).
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | 1. nodes are filled and flushed | nodes that nothing leads to | sweeps them |
    /// | 2. the word of the empty leaf, which is frozen, and the root, as `multiword` says; its first fence makes the nodes durable | the new tree, in place of the leaf | sweeps the leaf |
    pub(super) fn bulk_load(&self, records: &[(G, u64)], fill: f64) -> Result<()> {
        expect_numbers(records.len())?;
        let _guard = epochs::pin();
        let mut leaf = self.only_leaf()?;
        if records.is_empty() {
            return Ok(());
        }
        let mut blocks = Vec::new();
        let root = self.build(records, fill, &mut blocks).inspect_err(|_| {
            blocks.iter().for_each(|&block| self.space.free_now(block));
        })?;
        self.pm.note("pmr: bulk load", 0);
        // Another thread may insert, and remove what it has inserted.
        while !self.root_instead(&leaf, root)? {
            leaf = match self.only_leaf() {
                Ok(leaf) => leaf,
                Err(error) => {
                    blocks.iter().for_each(|&block| self.space.free_now(block));
                    return Err(error);
                }
            };
        }
        self.count_loaded(records.len());
        Ok(())
    }

    /// The root, which is an empty leaf: takes empty nodes out of the tree before. `NotEmpty` if there are records.
    fn only_leaf(&self) -> Result<View<'_, G>> {
        // Each time a node leaves the tree.
        for _ in 0..self.space.most_blocks() {
            let root = self.view(self.root()?)?;
            if root.word.is_frozen() {
                self.expect_replaced(&root, None)?;
                continue;
            }
            if root.level == 0 && root.bitmap() == 0 {
                return Ok(root);
            }
            let mut empty = None;
            let is_empty = self.visit_nodes(&mut |view| {
                if view.bitmap() == 0 {
                    empty = empty.or(Some(view.link()));
                }
                view.level > 0 || view.bitmap() == 0
            })?;
            if !is_empty {
                return Err(Error::NotEmpty);
            }
            if let Some(empty) = empty
                && let Some(path) = self.path_to(empty, &Rect::NOTHING)?
            {
                self.unlink(&path)?;
            }
        }
        let problem = "empty nodes of the index do not leave the tree";
        Err(Error::Damaged(problem.into()))
    }

    /// Writes a tree of these records, which nothing leads to as yet. Flushed without a fence. `blocks` gets its blocks.
    fn build(&self, records: &[(G, u64)], fill: f64, blocks: &mut Vec<Offset>) -> Result<Link> {
        let threads = helpers(&self.core, records.len() / RECORDS_PER_HELPER);
        let order = order_by_curve(&grid_of(records), records, threads);
        let record = |at: usize| {
            let (shape, payload) = &records[order[at].1 as usize];
            Record::new(shape, *payload)
        };
        let mut children = self.pack(0, order.len(), fill, blocks, record)?;
        let mut level = 0;
        while children.len() > 1 {
            level += 1;
            let entry = |at: usize| children[at].entry::<G>();
            children = self.pack(level, children.len(), fill, blocks, entry)?;
        }
        Ok(Link {
            offset: children[0].offset,
            level,
        })
    }

    /// Packs entries into nodes of a level.
    fn pack(
        &self,
        level: u32,
        entries: usize,
        fill: f64,
        blocks: &mut Vec<Offset>,
        entry: impl Fn(usize) -> Record,
    ) -> Result<Vec<Child>> {
        let count = nodes_for::<G>(level, entries, fill);
        let offsets = self.alloc(count, Area::Anywhere)?.unwrap_or_default();
        blocks.extend(&offsets);
        let node = |(number, &offset): (usize, &Offset)| {
            let cut = |number| begin_of(number, count, entries);
            let mine: Vec<Record> = (cut(number)..cut(number + 1)).map(&entry).collect();
            self.fill(offset, level, &mine);
            let rect_of = |entry: &Record| match level {
                0 => entry.rect::<G>(),
                _ => entry.rect::<G::Window>(),
            };
            let nothing = Rect::NOTHING;
            let rect = mine
                .iter()
                .fold(nothing, |all, entry| all.join(&rect_of(entry)));
            Child { rect, offset }
        };
        Ok(offsets.iter().enumerate().map(node).collect())
    }
}
