//! Learning the extent of the grid, if none is declared.
//!
//! The first leaf that splits is the first that needs a grid, and its records are all that is known then. Where records come in no particular
//! order they show well where others will lie. Where records come in an order, by longitude say, they show nothing: they lie on a narrow strip,
//! a grid laid over it has cells that are much too narrow, and most records will lie outside. So the extent is looked at again when the index
//! has a few leaves ([`LEAVES_AT_SECOND_LOOK`]), and when its only bottom node is full. If it does not suit, the records are written
//! anew in the order of another grid:
//!
//! | step | what is durable afterwards | what recovery does after a crash |
//! |---|---|---|
//! | the root, the bottom node and all leaves are locked | nothing | nothing |
//! | the records are written to a new chain of leaves, the new extent to a new root block | blocks that nothing leads to | sweeps them |
//! | the signposts are removed | a chain with fewer hints, and those blocks | sweeps them |
//! | the root in the catalog entry changes (the commit `hilbert.learn`) | the new chain and the new grid | sweeps the old chain |
//! | the inner nodes follow, the number of the grid changes, the locks are released | | |
//!
//! An operation that computed a key in the old grid finds the number of the grid changed once it has locked a leaf, and begins again. So the
//! change takes as long as writing 64 leaves does, twice in the life of an index. After that the extent stays, until all records have been removed and
//! others are loaded at once (`bulk`).

use super::grid::sound;
use super::inner::Inner;
use super::leaf::Leaf;
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::locks::{Wait, WriteGuard};
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerNode, InnerTree};
use crate::engines::rect::order_by_curve;
use crate::engines::unless_full;
use crate::pmem::geometry::sized_in_tests;
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::{Geometry, Grid, MAX_AXES, Rect, box_of_centres, centre};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// How much larger than the box of the known records the extent is, on each side, as a share of that box. What lies outside the extent costs
/// quality and nothing else; and so large an extent costs 5 of the 32 bits of a cell's number.
const MARGIN: f64 = 16.0;

/// The same where records come in an order, so that the box of the known ones says little: 11 of the 32 bits.
const MARGIN_IF_GROWING: f64 = 1024.0;

/// If the box of all records has become so much longer on an axis since the extent was learned, records come in an order.
const GROWTH: f64 = 4.0;

/// The same for an axis beside the one on which the box has grown least: the shape of the box has changed.
const GROWTH_OF_ONE_AXIS: f64 = 1.5;

/// Centres by which it is decided which lie far from the others, at most: so many show it well.
const MOST_SAMPLED: usize = 4096;

/// Of the centres, one in so many may lie beside the middle ones, on each side of each axis.
const BESIDE: usize = 20;

/// Centres that lie further from the middle ones than so many widths of these are left out when an extent is learned. So a single record at a place that
/// stands for none, or at infinity, does not make all others lie in one cell. Nearer ones cost at most 11 of the 32 bits of a cell's number.
const FAR: f64 = 1024.0;

/// An extent that is so many times longer than the box of the records is too large, however they have grown.
const TOO_LARGE: f64 = 8.0 * (1.0 + 2.0 * MARGIN_IF_GROWING);

/// Leaves of the index when the extent is looked at for the second time: there are eight times as many records as at the first time, so
/// that an order shows.
pub(super) const LEAVES_AT_SECOND_LOOK: usize = sized_in_tests(8, 3);

/// Leaves that are written anew are filled to this share, so that they do not split at once.
const FILL: f64 = 0.8;

/// Grids that an index has from its open on, at most: none, the one that it was opened with or chose first, the two learned afterwards, and those of
/// bulk loads of records elsewhere. After so many the last one stays until the index is closed.
const MOST_GRIDS: usize = 16;

/// The grid of an index, by its number. An outdated one stays until the index is closed, for those who still look at it.
#[derive(Default)]
pub(super) struct Grids {
    /// 0 without a grid.
    number: AtomicU32,
    grids: [OnceLock<Grid>; MOST_GRIDS],
}

impl Grids {
    pub(super) fn with(grid: Grid) -> Self {
        let grids = Self::default();
        grids.replace(grid);
        grids
    }

    /// The grid, if it has been chosen.
    #[inline(always)]
    pub(super) fn get(&self) -> Option<&Grid> {
        // Not more than there are: the number is read again and again, and the compiler cannot know that it is small.
        self.grids[self.number() as usize % MOST_GRIDS].get()
    }

    /// Changes whenever the grid does.
    #[inline(always)]
    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    pub(super) fn can_be_replaced(&self) -> bool {
        (self.number() as usize) + 1 < MOST_GRIDS
    }

    /// Sets the next grid. No other thread does so meanwhile.
    pub(super) fn replace(&self, grid: Grid) {
        let next = self.number() + 1;
        let is_set = self.grids[next as usize].set(grid).is_ok();
        assert!(is_set, "invariant: one thread at a time sets a grid");
        self.number.store(next, Ordering::Release);
    }
}

/// The box of the centres of these geometries, of which there is one at least, but for those that lie far from nearly all others.
fn box_of_most<G: Geometry>(shapes: impl ExactSizeIterator<Item = G> + Clone) -> Rect {
    let mut limits = Rect::EVERYTHING;
    let sample = shapes
        .clone()
        .step_by(shapes.len().div_ceil(MOST_SAMPLED).max(1));
    let sample: Vec<_> = sample.map(|shape| centre(&shape)).collect();
    let beside = sample.len() / BESIDE;
    for axis in 0..G::AXES {
        let mut places: Vec<f64> = sample.iter().map(|centre| finite(centre[axis])).collect();
        places.sort_unstable_by(f64::total_cmp);
        let middle = &places[beside..places.len() - beside];
        if let [low, .., high] = *middle
            && low < high
        {
            let far = (high - low) * FAR;
            (limits.low[axis], limits.high[axis]) = (low - far, high + far);
        }
    }
    let most = box_of_centres(shapes.clone().filter(|shape| {
        let at = centre(shape);
        limits.contains(&Rect { low: at, high: at })
    }));
    if most.low[0] <= most.high[0] {
        return most;
    }
    // Each lies far from most of the others on one axis: half of them are at infinity on the first, say, and half on the second.
    box_of_centres(shapes)
}

/// The extent that suits these records, if they show where others will lie.
fn extent_of(records: &Rect) -> Rect {
    let widths = std::array::from_fn(|axis| width(records, axis));
    widened(records, widths, MARGIN)
}

/// The first extent of an index, by the geometries that are known then: one at least.
pub(super) fn extent_by<G: Geometry>(
    shapes: impl ExactSizeIterator<Item = G> + Clone,
) -> Result<Rect> {
    sound::<G>(extent_of(&box_of_most(shapes)))
}

/// The extent by the records of a bulk load, if that of the emptied index, which was learned from others, does not suit them.
pub(super) fn extent_instead_of<G: Geometry>(
    old: &Rect,
    shapes: impl ExactSizeIterator<Item = G> + Clone,
) -> Result<Option<Rect>> {
    let all = box_of_most(shapes);
    let is_better = better_extent(old, &all, G::AXES).is_some();
    // All records are known, so whether they come in an order does not matter.
    is_better.then(|| sound::<G>(extent_of(&all))).transpose()
}

/// The extent that suits these records if they come in an order. How long their box will become is not known, and so the cells are squares.
fn extent_if_growing(records: &Rect, axes: usize) -> Rect {
    let longest = (0..axes).map(|axis| width(records, axis));
    let longest = longest.fold(0.0, f64::max);
    widened(records, [longest; MAX_AXES], MARGIN_IF_GROWING)
}

fn width(rect: &Rect, axis: usize) -> f64 {
    finite(rect.high[axis]) - finite(rect.low[axis])
}

fn finite(x: f64) -> f64 {
    const LARGEST: f64 = f64::MAX / 8.0 / MARGIN_IF_GROWING;
    x.clamp(-LARGEST, LARGEST)
}

/// A box of these widths and their margins around the middle of another one.
fn widened(records: &Rect, widths: [f64; MAX_AXES], margin: f64) -> Rect {
    let mut extent = *records;
    for (axis, width) in widths.into_iter().enumerate() {
        let (low, high) = (finite(records.low[axis]), finite(records.high[axis]));
        let (middle, half) = (low / 2.0 + high / 2.0, width / 2.0 + width * margin);
        (extent.low[axis], extent.high[axis]) = (middle - half, middle + half);
    }
    extent
}

/// A better extent than `old`, which was learned from fewer records, for all `records`; `None` if it will do.
fn better_extent(old: &Rect, records: &Rect, axes: usize) -> Option<Rect> {
    let is_square = (1..axes).all(|axis| {
        let (first, other) = (width(old, 0), width(old, axis));
        (first - other).abs() <= first * 1e-6
    });
    let is_outside = (0..axes)
        .any(|axis| records.low[axis] < old.low[axis] || records.high[axis] > old.high[axis]);
    let longest = |rect| (0..axes).map(|axis| width(rect, axis)).fold(0.0, f64::max);
    if longest(records) > 0.0 && longest(old) > longest(records) * TOO_LARGE {
        // The first records lay far from each other, and these do not.
        return Some(extent_of(records));
    }
    if is_square && !is_outside {
        return None;
    }
    let growth = |axis| {
        let before = width(old, axis) / (1.0 + 2.0 * MARGIN);
        match width(records, axis) {
            // Nothing is known of this axis.
            0.0 => f64::INFINITY,
            now => now / before,
        }
    };
    let most = (0..axes).map(growth).fold(0.0, f64::max);
    let least = (0..axes).map(growth).fold(f64::INFINITY, f64::min);
    if most > GROWTH || most > GROWTH_OF_ONE_AXIS * least {
        return Some(extent_if_growing(records, axes));
    }
    is_outside.then(|| extent_of(records))
}

/// A small tree, locked: nobody else can read or write a record.
struct LockedTree<'a> {
    bottom: &'a Inner,
    leaves: Vec<Offset>,
    _root: WriteGuard<'a>,
    _bottom: WriteGuard<'a>,
    _leaves: Vec<WriteGuard<'a>>,
}

impl<G: Geometry> Tree<G> {
    /// Chooses the grid by the records of the only leaf, which is full and locked. The caller splits the leaf afterwards.
    pub(super) fn choose_grid(&self, leaf: Leaf<'_, G>) -> Result<()> {
        let shapes: Vec<G> = leaf.records().map(|(_, record)| record.shape()).collect();
        let extent = extent_by(shapes.iter().copied())?;
        let root = self.root_block()?;
        let words = extent.low.iter().chain(&extent.high);
        for (cell, coordinate) in root.extent.iter().zip(words) {
            self.pm.store(cell, coordinate.to_bits());
        }
        self.pm.flush(&root.extent);
        self.pm.named("hilbert.extent").fence();
        // COMMIT hilbert.grid: `grid`. Before this store recovery sees one leaf and no grid; after it, one leaf, and the grid by which it will be
        // split.
        self.pm.commit(&root.grid, 1, "hilbert.grid");
        self.pm.note("grid chosen", 0);
        // Other threads find the grid changed once they have locked the leaf.
        self.grids.replace(Grid::new(&extent, G::AXES));
        Ok(())
    }

    /// Whether the extent is to be looked at again, now that this bottom node is about to get another leaf.
    pub(super) fn is_time_to_learn(&self, bottom: &Inner) -> bool {
        let count = bottom.count();
        !self.extent_is_declared
            && (count == LEAVES_AT_SECOND_LOOK || bottom.is_full())
            && self.learned_at.load(Ordering::Relaxed) < count as u32
            && self.is_only_bottom(bottom)
            // The sweep has been here: all leaves are indexed and counted.
            && self.locks.count.is_complete()
            && self.grids.can_be_replaced()
    }

    fn is_only_bottom(&self, bottom: &Inner) -> bool {
        let root = self.root();
        root.level() == 1 && root.count() == 1 && std::ptr::eq(root.node(0), bottom)
    }

    /// Looks at the extent again, now that there are so many leaves, and replaces it if it does not suit. The caller holds no lock, and is
    /// pinned.
    #[cold]
    pub(super) fn learn(&self, leaves: usize) -> Result<()> {
        // Once, whatever comes of it: the caller goes on with its split.
        let before = self.learned_at.fetch_max(leaves as u32, Ordering::Relaxed);
        if before >= leaves as u32 {
            return Ok(());
        }
        let Ok(_reorganizing) = self.reorganizing.try_lock() else {
            // The index is being compacted or loaded.
            return Ok(());
        };
        let _change = self.announce();
        let Some(tree) = self.lock_small_tree()? else {
            return Ok(());
        };
        let mut records = Vec::new();
        for &offset in &tree.leaves {
            let leaf = self.leaves.at(offset);
            records.extend(
                leaf.records()
                    .map(|(_, record)| (record.shape::<G>(), record.payload::<G>())),
            );
        }
        let old = self.root_block()?.extent();
        if records.is_empty() {
            // They have been removed meanwhile, and show nothing.
            return Ok(());
        }
        let all = box_of_most(records.iter().map(|&(shape, _)| shape));
        let Some(extent) = better_extent(&old, &all, G::AXES) else {
            return Ok(());
        };
        let extent = sound::<G>(extent)?;
        // Without space the index goes on with the grid that it has.
        unless_full(self.reorder(tree, &records, &extent))
    }

    /// Locks the tree, if it has one bottom node, and leaves that are all indexed and counted.
    fn lock_small_tree(&self) -> Result<Option<LockedTree<'_>>> {
        let mut wait = Wait::default();
        'again: loop {
            wait.step();
            let root = self.root();
            let root_guard = root.lock().lock();
            if root.level() > 1 || root.count() > 1 {
                return Ok(None);
            }
            let bottom = root.node(0);
            // The locks are tried, since others hold them while they try those of this thread.
            let Some(bottom_guard) = bottom.lock().try_lock() else {
                continue;
            };
            let children = (0..bottom.count()).map(|slot| bottom.child(slot));
            if bottom.count() < LEAVES_AT_SECOND_LOOK
                || children.clone().any(|child| child.is_unindexed())
            {
                return Ok(None);
            }
            let leaves: Vec<Offset> = children.map(|child| child.offset()).collect();
            let mut guards: Vec<WriteGuard<'_>> = Vec::new();
            for leaf in &leaves {
                let lock = self.locks.of(leaf.get());
                // One lock may belong to several leaves.
                if guards.iter().any(|guard| guard.holds(lock)) {
                    continue;
                }
                let Some(guard) = lock.try_lock() else {
                    continue 'again;
                };
                guards.push(guard);
            }
            return Ok(Some(LockedTree {
                bottom,
                leaves,
                _root: root_guard,
                _bottom: bottom_guard,
                _leaves: guards,
            }));
        }
    }

    /// Writes all records anew in the order of another grid. The head of this file has the steps.
    fn reorder(&self, tree: LockedTree<'_>, records: &[(G, u64)], extent: &Rect) -> Result<()> {
        let grid = Grid::new(extent, G::AXES);
        let coded = order_by_curve(&grid, records, 0);
        let root = self.space.alloc()?;
        let chain = self
            .build_chain(records, &coded, FILL)
            .inspect_err(|_| self.space.free_now(root))?;
        // A signpost must never point to a leaf that is gone. They go before the commit: a missing one does no harm. If there is no space for the new chain,
        // they stay.
        for (slot, &leaf) in tree.leaves.iter().enumerate() {
            self.remove_signpost(tree.bottom.key(slot), leaf)
                .inspect_err(|_| {
                    let new = chain.iter().map(|leaf| leaf.offset);
                    new.chain([root])
                        .for_each(|block| self.space.free_now(block));
                })?;
        }
        self.pm.note("grid learned again", 0);
        // While no directory can be made, and no reach be raised, the root block keeps what is copied. No relocation is under way, since it would
        // hold the locks of two leaves.
        let held = (self.reach.hold(), self.directory.hold());
        assert!(
            lock(&self.intents).iter().all(|taken| !taken),
            "invariant: a relocation between leaves holds the locks of leaves"
        );
        let old_root = self.root_offset();
        // COMMIT hilbert.learn: the catalog entry's root. The head of this file says what recovery sees before and after.
        self.switch_root(root, &chain, extent, records, "hilbert.learn")?;
        drop(held);
        if !planted(Bug::GridKept) {
            self.grids.replace(grid);
        }
        self.merges.note_everywhere();
        let LockedTree {
            leaves: old_leaves,
            _root,
            _bottom,
            _leaves,
            ..
        } = tree;
        drop(_bottom);
        self.index_chain(&chain);
        for leaf in &chain[1..] {
            self.add_signpost(leaf.low, leaf.offset);
        }
        drop((_leaves, _root));
        self.space.retire(old_root);
        for leaf in old_leaves {
            self.space.retire(leaf);
        }
        Ok(())
    }
}
