//! Trees that are built at once: bulk loads, compaction of a thin tree, and the inner nodes above leaves that a crash has left.
//!
//! Records are packed into leaves in the order of their centres on a Hilbert curve, and nodes into the nodes above them (Kamel and Faloutsos: "On packing
//! R-trees", CIKM 1993).

use super::Writer;
use super::layout::RootBlock;
use super::node::{Chain, Child};
use crate::engines::parallel::helpers;
use crate::engines::rect::Link;
use crate::engines::rect::{Record, begin_of, expect_numbers, grid_of, nodes_for, order_by_curve};
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use crate::{Error, Result};
use std::sync::atomic::Ordering;

/// Records per thread that a sort of a bulk load is worth another thread for: below that, starting the thread takes longer.
const RECORDS_PER_HELPER: usize = 1 << 14;

impl<G: Geometry> Writer<'_, G> {
    /// See [`Spatial::bulk_load`](crate::engines::Spatial::bulk_load).
    pub(super) fn bulk_load(&self, records: &[(G, u64)], fill: f64) -> Result<()> {
        expect_numbers(records.len())?;
        // The host has warmed the index up, so all records are counted.
        if self.tree.locks.total() > 0 {
            return Err(Error::NotEmpty);
        }
        if records.is_empty() {
            return Ok(());
        }
        self.tree.pm.note("bulk load", 0);
        self.replace_all(records, fill)?;
        self.count_change(records.len() as i64);
        Ok(())
    }

    /// Replaces the whole tree by one of these records. Searches that know the old tree go on in it.
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | 1. leaves, inner nodes and a root block are written past the caches or flushed; fence | nodes that nothing leads to | sweeps them |
    /// | 2. the catalog entry's root | the new tree, in place of the old one | sweeps the old nodes |
    pub(super) fn replace_all(&self, records: &[(G, u64)], fill: f64) -> Result<()> {
        let tree = self.tree;
        let mut old = vec![tree.root_block_offset()];
        self.visit_nodes(&mut |node, _| {
            old.push(node.offset);
            true
        })?;
        let (leaves, block) = self.build_leaves(records, fill)?;
        let root = self.build_above(&leaves, fill).inspect_err(|_| {
            let leaves = leaves.iter().map(|leaf| leaf.offset);
            leaves
                .chain([block])
                .for_each(|offset| tree.space.free_now(offset));
        })?;
        let new = tree.nodes.part::<RootBlock>(block);
        new.fill(tree.pm, root.offset, leaves[0].offset, 0);
        tree.pm.named("fbr.load").fence();
        // COMMIT fbr.load: the catalog entry's root. Before this store recovery sees the old tree, and all that was built is swept; after it,
        // it sees the new tree, and the old one is swept.
        let cell = &tree.core.entry(tree.place.slot).roots[0];
        tree.pm.commit(cell, block.get(), "fbr.load");
        tree.root.store(root.to_word(), Ordering::Release);
        old.into_iter().for_each(|offset| self.retire(offset));
        Ok(())
    }

    /// Writes the leaves of a chain, which nothing leads to as yet, and allocates a block for the root block.
    fn build_leaves(&self, records: &[(G, u64)], fill: f64) -> Result<(Vec<Child>, Offset)> {
        let tree = self.tree;
        let threads = helpers(&tree.core, records.len() / RECORDS_PER_HELPER);
        let order = order_by_curve(&grid_of(records), records, threads);
        let count = nodes_for::<G>(0, order.len(), fill);
        let mut offsets = tree.space.alloc_many(count + 1)?;
        let block = offsets.pop().unwrap_or(Offset::NONE);
        let of_leaf = |number: usize| {
            let cut = |number| begin_of(number, count, order.len());
            let mine = order[cut(number)..cut(number + 1)].iter();
            let mine = mine.map(|&(_, at)| records[at as usize]);
            let mine: Vec<Record> = mine
                .map(|(shape, payload)| Record::new(&shape, payload))
                .collect();
            let rects = mine.iter().map(Record::rect::<G>);
            let rect = rects.fold(Rect::NOTHING, |all, rect| all.join(&rect));
            let beside = |at: Option<usize>| at.and_then(|at| offsets.get(at).copied());
            let chain = Chain {
                previous: beside(number.checked_sub(1)).unwrap_or(Offset::NONE),
                next: beside(Some(number + 1)).unwrap_or(Offset::NONE),
            };
            self.fill(offsets[number], 0, &mine, chain);
            Child {
                rect,
                offset: offsets[number],
            }
        };
        Ok(((0..count).map(of_leaf).collect(), block))
    }

    /// Writes inner nodes above nodes of one level, the leaves, which nothing leads to as yet, and returns the root. Flushed without a fence.
    pub(super) fn build_above(&self, leaves: &[Child], fill: f64) -> Result<Link> {
        let mut counts = Vec::new();
        let mut count = leaves.len();
        while count > 1 {
            count = nodes_for::<G>(1, count, fill);
            counts.push(count);
        }
        // All of them, or none.
        let offsets = self.tree.space.alloc_many(counts.iter().sum())?;
        let mut free = offsets.into_iter();
        let mut children = leaves.to_vec();
        let mut level = 0;
        for count in counts {
            level += 1;
            let node = |(number, offset): (usize, Offset)| {
                let cut = |number| begin_of(number, count, children.len());
                let mine = &children[cut(number)..cut(number + 1)];
                let entries: Vec<Record> = mine.iter().map(Child::entry::<G>).collect();
                self.fill(offset, level, &entries, Chain::default());
                let rects = mine.iter().map(|child| child.rect);
                let rect = rects.fold(Rect::NOTHING, |all, rect| all.join(&rect));
                Child { rect, offset }
            };
            children = (0..count).zip(free.by_ref()).map(node).collect();
        }
        Ok(Link {
            offset: children[0].offset,
            level,
        })
    }

    /// All records of the tree.
    pub(super) fn all_records(&self) -> Result<Vec<(G, u64)>> {
        let mut records = Vec::new();
        self.visit_nodes(&mut |node, level| {
            if level == 0 {
                let all = node.slots(0).map(|slot| node.entry(0, slot));
                records.extend(all.map(|record| (record.shape::<G>(), record.payload::<G>())));
            }
            true
        })?;
        Ok(records)
    }
}
