//! What the root block says about coordinates: the grid, and how far records reach from their centres.

use super::Bug;
use super::Tree;
use super::layout::RootBlock;
use super::leaf::Leaf;
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::spatial::{Geometry, Grid, MAX_AXES, Rect, centre};
use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// How much larger than the box of the first records the extent of the grid is, on each side, as a share of that box. What lies outside the extent
/// costs quality and nothing else.
const LEARNED_MARGIN: f64 = 1.0;

/// The grid that the root block has, if it was chosen.
pub(super) fn read<G: Geometry>(root: &RootBlock) -> Result<OnceLock<Grid>> {
    let grid = OnceLock::new();
    match root.grid.load_acquire() {
        0 => {}
        1 => {
            let word = |i: usize| f64::from_bits(root.extent[i].load());
            let extent = Rect {
                low: std::array::from_fn(word),
                high: std::array::from_fn(|axis| word(MAX_AXES + axis)),
            };
            let is_sound = |axis| extent.low[axis] <= extent.high[axis];
            if !(0..G::AXES).all(is_sound) {
                return Err(Error::Damaged("the extent of a spatial index".into()));
            }
            let _ = grid.set(Grid::new(&extent, G::AXES));
        }
        other => {
            return Err(Error::Damaged(format!(
                "a spatial index has grid {other:#x}"
            )));
        }
    }
    Ok(grid)
}

/// The extent that suits these records, if more of their kind follow.
pub(super) fn extent_of(records: &Rect) -> Rect {
    let mut extent = *records;
    for axis in 0..MAX_AXES {
        let finite = |x: f64| x.clamp(f64::MIN / 4.0, f64::MAX / 4.0);
        let (low, high) = (finite(extent.low[axis]), finite(extent.high[axis]));
        let margin = (high - low) * LEARNED_MARGIN;
        (extent.low[axis], extent.high[axis]) = (low - margin, high + margin);
    }
    extent
}

impl<G: Geometry> Tree<G> {
    /// Chooses the grid by the records of the only leaf, which is full and locked. The caller splits the leaf afterwards.
    pub(super) fn choose_grid(&self, leaf: Leaf<'_, G>) -> Result<()> {
        let centres = leaf.records().fold(Rect::NOTHING, |all, (_, record)| {
            let at = centre(&record.shape::<G>());
            all.join(&Rect { low: at, high: at })
        });
        let extent = extent_of(&centres);
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
        let _ = self.grid.set(Grid::new(&extent, G::AXES));
        Ok(())
    }
}

/// How far records reach from their centres, by axis, at least.
pub(super) struct Reach {
    /// As at the open: what an unindexed range may contain.
    at_open: [f64; MAX_AXES],
    /// As in the root block now, f64.
    now: [AtomicU64; MAX_AXES],
    raising: Mutex<()>,
}

impl Reach {
    pub(super) fn read(root: &RootBlock) -> Result<Self> {
        let at_open = [0, 1, 2].map(|axis: usize| f64::from_bits(root.reach[axis].load()));
        if at_open.iter().any(|reach| reach.is_nan() || *reach < 0.0) {
            return Err(Error::Damaged("the reach of a spatial index".into()));
        }
        Ok(Self {
            at_open,
            now: at_open.map(|reach| AtomicU64::new(reach.to_bits())),
            raising: Mutex::default(),
        })
    }

    /// What records that lie in unindexed ranges do not exceed.
    pub(super) fn at_open(&self) -> [f64; MAX_AXES] {
        self.at_open
    }

    /// What all records do not exceed.
    pub(super) fn now(&self) -> [f64; MAX_AXES] {
        [0, 1, 2].map(|axis: usize| f64::from_bits(self.now[axis].load(Ordering::Acquire)))
    }

    /// How far a box reaches from its centre, rounded up.
    pub(super) fn of<G: Geometry>(shape: &G) -> [f64; MAX_AXES] {
        let (rect, centre) = (Rect::of(shape), centre(shape));
        [0, 1, 2].map(|axis: usize| {
            let (low, high) = (rect.low[axis], rect.high[axis]);
            if low == high {
                return 0.0;
            }
            let half = (high - centre[axis]).max(centre[axis] - low).next_up();
            if half.is_nan() { f64::INFINITY } else { half }
        })
    }

    /// Makes the reach large enough for a record, durably.
    #[inline]
    pub(super) fn raise_to<G: Geometry>(&self, tree: &Tree<G>, shape: &G) -> Result<()> {
        let wanted = Self::of(shape);
        let now = self.now();
        if (0..G::AXES).all(|axis| wanted[axis] <= now[axis]) {
            return Ok(());
        }
        self.raise(tree, wanted)
    }

    #[cold]
    fn raise<G: Geometry>(&self, tree: &Tree<G>, wanted: [f64; MAX_AXES]) -> Result<()> {
        // A compaction that moves the root block holds this mutex too.
        let _raising = lock(&self.raising);
        let root = tree.root_block()?;
        for axis in 0..MAX_AXES {
            if wanted[axis] > self.now()[axis] {
                tree.pm.note("reach raised", 0);
                let word = wanted[axis].to_bits();
                if planted(Bug::ReachTooLate) {
                    self.now[axis].store(word, Ordering::Release);
                    continue;
                }
                // COMMIT hilbert.reach: a reach that is too large costs time and nothing else. It is durable before a record needs it.
                tree.pm.commit(&root.reach[axis], word, "hilbert.reach");
                self.now[axis].store(word, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Notes the reach of a new root block.
    pub(super) fn set(&self, reach: [f64; MAX_AXES]) {
        for (now, reach) in self.now.iter().zip(reach) {
            now.store(reach.to_bits(), Ordering::Release);
        }
    }

    /// Keeps the reach as it is until the result is dropped.
    pub(super) fn hold(&self) -> std::sync::MutexGuard<'_, ()> {
        lock(&self.raising)
    }
}
