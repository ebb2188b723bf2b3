//! Bulk load: builds a whole index that is not reachable, and makes it the contents of the empty index with one store.

use super::grid::Reach;
use super::inner::{Bounds, Child, Entry, Inner, key_of};
use super::insert::ORDINALS;
use super::layout::{RootWords, Shape};
use super::learn::{extent_by, extent_instead_of};
use super::recover::{Found, spread_equals};
use super::{Tree, root_block_at};
use crate::concurrency::epochs;
use crate::concurrency::parallel::in_parallel;
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerTree, lock_empty_tree};
use crate::engines::parallel::helpers;
use crate::engines::rect::{Coded, Record, expect_numbers, order_by_curve};
use crate::kernels::prefetch;
use crate::pool::Offset;
use crate::spatial::{Geometry, Grid, MAX_AXES, Rect};
use crate::{Error, Result};
use std::sync::Mutex;

/// Leaves that a thread of a bulk load takes at a time: enough that threads seldom meet, few enough that all end at about the same time.
const PART_LEAVES: usize = 512;

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::bulk_load`](crate::engines::Spatial::bulk_load).
    pub(super) fn bulk_load(&self, records: &[(G, u64)], fill: f64) -> Result<()> {
        expect_numbers(records.len())?;
        // A compaction that holds this mutex soon ends, since the index is empty.
        let _reorganizing = lock(&self.reorganizing);
        let _guard = epochs::pin();
        self.join_empty_leaves()?;
        let _change = self.structure.begin();
        let only_leaf = |bottom: &Inner| bottom.child(0).offset();
        let (root_guard, bottom_guard, leaf_guard, head) =
            lock_empty_tree(self.root(), &self.locks, only_leaf)?;
        if self.leaves.at(head).count() > 0 {
            return Err(Error::NotEmpty);
        }
        if records.is_empty() {
            return Ok(());
        }
        self.pm.note("bulk load", 0);
        // While no directory can be made, the root block keeps the heads that are copied.
        let held = (self.reach.hold(), self.directory.hold());
        let (extent, is_another) = self.extent_for(records)?;
        let grid = Grid::new(&extent, G::AXES);
        let coded = order_by_curve(&grid, records, self.helpers(records.len() / PART_LEAVES));
        let old_root = self.root_offset();
        let root = self.space.alloc()?;
        let chain = self
            .build_chain(records, &coded, fill)
            .inspect_err(|_| self.space.free_now(root))?;
        // COMMIT hilbert.load: the catalog entry's root. Before this store recovery sees the empty index, and all that was loaded is swept; after
        // it, it sees all records, and the old root block and the empty leaf are swept.
        self.switch_root(root, &chain, &extent, records, "hilbert.load")?;
        if is_another {
            // Other threads find the grid changed once they have locked a leaf.
            self.grids.replace(grid);
            self.merges.note_everywhere();
        }
        drop(held);
        self.locks.entry(head.get()).add(records.len() as i64);
        drop(bottom_guard);
        self.index_chain(&chain);
        // Before any thread can enter: one that changes a leaf removes the signpost to that leaf, and it would not be there yet.
        for leaf in &chain[1..] {
            self.add_signpost(leaf.low, leaf.offset);
        }
        drop((leaf_guard, root_guard));
        self.space.retire(old_root);
        self.space.retire(head);
        Ok(())
    }

    /// An index whose records were all removed may still have several empty leaves; merging makes them one.
    fn join_empty_leaves(&self) -> Result<()> {
        loop {
            let before = self.nodes_at_the_left();
            if before == (1, 1, 1) {
                return Ok(());
            }
            if !self
                .locate(0)
                .is_ok_and(|spot| self.leaves.at(spot.child.offset()).count() == 0)
            {
                return Err(Error::NotEmpty);
            }
            self.merge(0);
            if self.nodes_at_the_left() == before {
                return Ok(());
            }
        }
    }

    /// The root's level and count, and its first child's count.
    fn nodes_at_the_left(&self) -> (u32, usize, usize) {
        let root = self.root();
        (root.level(), root.count(), root.node(0).count())
    }

    /// Threads that help with a load, if it has so many parts.
    fn helpers(&self, parts: usize) -> usize {
        helpers(&self.core, parts.saturating_sub(1))
    }

    /// The extent of the grid, and whether it is another one than before: that of the index stays if it was declared, or suits these records.
    fn extent_for(&self, records: &[(G, u64)]) -> Result<(Rect, bool)> {
        let shapes = records.iter().map(|&(shape, _)| shape);
        if self.grids.get().is_none() {
            return Ok((extent_by(shapes)?, true));
        }
        let old = self.root_block()?.extent();
        if self.extent_is_declared || !self.grids.can_be_replaced() {
            return Ok((old, false));
        }
        let new = extent_instead_of(&old, shapes)?;
        Ok(new.map_or((old, false), |new| (new, true)))
    }

    /// Writes the leaves of the chain, which nothing leads to as yet.
    pub(super) fn build_chain(
        &self,
        records: &[(G, u64)],
        coded: &[Coded],
        fill: f64,
    ) -> Result<Vec<Found>> {
        // Rounded up, so that leaves are not emptier than asked for.
        let per_leaf = (Shape::<G>::RECORDS as f64 * fill).ceil().max(1.0) as usize;
        let count = coded.len().div_ceil(per_leaf);
        let offsets = self.space.alloc_many(count)?;
        let cut = |at: usize| (coded.len() as u128 * at as u128 / count as u128) as usize;
        let record_at = |at: usize| {
            let (shape, payload) = &records[coded[at].1 as usize];
            Record::new(shape, *payload)
        };
        // Records lie anywhere: they are asked for while the leaf before theirs is written.
        let prefetch_leaf = |at: usize| {
            for coded in &coded[cut(at)..cut(at + 1)] {
                let record = &raw const records[coded.1 as usize];
                prefetch(record);
                // It may lie in two lines.
                prefetch(record.wrapping_add(1).cast::<u8>().wrapping_sub(1));
            }
        };
        let key_at = |at: usize| key_of(coded[at].0, record_at(at).tie::<G>() & !(ORDINALS as u64));
        let nothing = |&offset: &Offset| Found {
            low: 0,
            shares_first: false,
            offset,
            bounds: Bounds::NOTHING,
        };
        let mut chain: Vec<Found> = offsets.iter().map(nothing).collect();
        let write = |at: usize, leaf: &mut Found| {
            let (from, to) = (cut(at), cut(at + 1));
            let mine: Vec<Record> = (from..to).map(record_at).collect();
            if at > 0 {
                // The first leaf covers everything from zero on.
                let begins_code = coded[from].0 > coded[from - 1].0;
                leaf.low = if begins_code {
                    key_of(coded[from].0, 0)
                } else {
                    key_at(from)
                };
                leaf.shares_first = !begins_code && leaf.low == key_at(from - 1);
            }
            let rects = mine.iter().map(Record::rect::<G>);
            leaf.bounds = Bounds::of(&rects.fold(Rect::NOTHING, |all, rect| all.join(&rect)));
            let next = offsets.get(at + 1).copied().unwrap_or(Offset::NONE);
            self.leaves.at(leaf.offset).stream(self.pm, &mine, next);
        };
        {
            let parts = Mutex::new(chain.chunks_mut(PART_LEAVES).enumerate());
            let next_part = || lock(&parts).next();
            in_parallel(self.helpers(count / PART_LEAVES), || {
                while let Some((part, leaves)) = next_part() {
                    for (i, leaf) in leaves.iter_mut().enumerate() {
                        let at = part * PART_LEAVES + i;
                        if at + 1 < count {
                            prefetch_leaf(at + 1);
                        }
                        write(at, leaf);
                    }
                }
                // Each thread waits for its own stores.
                self.pm.named("hilbert.load.part").fence();
            });
        }
        let (first, rest) = chain.split_at_mut(1);
        if spread_equals(first[0].low, None, rest) {
            return Ok(chain);
        }
        offsets
            .iter()
            .for_each(|&offset| self.space.free_now(offset));
        Err(Error::BadOption(
            "a bulk load of too many records of one code".into(),
        ))
    }

    /// Fills a new root block and makes it that of the index: the commit of the change `name`, whose caller says what recovery sees before and after.
    pub(super) fn switch_root(
        &self,
        new: Offset,
        chain: &[Found],
        extent: &Rect,
        records: &[(G, u64)],
        name: &'static str,
    ) -> Result<()> {
        let mut reach = self.reach.now();
        if G::COORDINATES > G::AXES {
            for (shape, _) in records {
                for (axis, of) in Reach::of(shape).into_iter().enumerate() {
                    reach[axis] = reach[axis].max(of);
                }
            }
        }
        let mut words = [0.0; 2 * MAX_AXES];
        words[..MAX_AXES].copy_from_slice(&extent.low);
        words[MAX_AXES..].copy_from_slice(&extent.high);
        let block = root_block_at(&self.core, &self.space, new)?;
        block.fill(
            self.pm,
            &RootWords {
                head: chain[0].offset,
                extent: Some(words),
                reach,
                ..self.root_block()?.words()
            },
        );
        self.pm.named("hilbert.new-root").fence();
        self.pm
            .commit(&self.core.entry(self.place.slot).roots[0], new.get(), name);
        self.reach.set(reach);
        Ok(())
    }

    /// Replaces all inner nodes below the root, which is locked.
    pub(super) fn index_chain(&self, chain: &[Found]) {
        let is_counted = self.locks.count.is_complete();
        let entry = |leaf: &Found| {
            let child = Child::leaf(leaf.offset, is_counted);
            Entry::leaf(leaf.low, child, leaf.bounds)
        };
        self.load_nodes(chain.iter().map(entry).collect());
    }
}
