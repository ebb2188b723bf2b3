//! What the root block says about coordinates: the grid, and how far records reach from their centres.

use super::Bug;
use super::Tree;
use super::layout::RootBlock;
use super::learn::Grids;
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::spatial::{Geometry, Grid, MAX_AXES, Rect, centre};
use crate::{Error, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The grid that the root block has, if it was chosen.
pub(super) fn read<G: Geometry>(root: &RootBlock) -> Result<Grids> {
    match root.grid.load_acquire() {
        0 => Ok(Grids::default()),
        1 => {
            let extent = sound::<G>(root.extent())?;
            Ok(Grids::with(Grid::new(&extent, G::AXES)))
        }
        other => Err(Error::Damaged(format!(
            "a spatial index has grid {other:#x}"
        ))),
    }
}

/// The extent, unless it is one that no records have. It is asked before it is written, too: an index is refused that has another one.
pub(super) fn sound<G: Geometry>(extent: Rect) -> Result<Rect> {
    if (0..G::AXES).all(|axis| extent.low[axis] <= extent.high[axis]) {
        return Ok(extent);
    }
    Err(Error::Damaged("the extent of a spatial index".into()))
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

    /// The box in which all records that were there at the open and have their centres in `rect` lie; and, the other way round, in which the
    /// centres lie of all those that meet `rect`.
    pub(super) fn widened(&self, rect: &Rect) -> Rect {
        let mut wide = *rect;
        let sides = wide.low.iter_mut().zip(&mut wide.high);
        for ((low, high), &reach) in sides.zip(&self.at_open) {
            if reach > 0.0 {
                // One step further, for the rounding of the difference; infinity less infinity is not a number.
                let (below, above) = ((*low - reach).next_down(), (*high + reach).next_up());
                *low = if below.is_nan() {
                    f64::NEG_INFINITY
                } else {
                    below
                };
                *high = if above.is_nan() { f64::INFINITY } else { above };
            }
        }
        wide
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
        for (axis, &wanted) in wanted.iter().enumerate() {
            if wanted > self.now()[axis] {
                tree.pm.note("reach raised", 0);
                let word = wanted.to_bits();
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
