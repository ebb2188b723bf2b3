//! Looking at everything: `check`, `stat`, `bounds`.

use super::Tree;
use super::inner::{Bounds, Key, key_of};
use super::insert::ORDINALS;
use super::layout::{LEAF_BYTES, Shape};
use super::leaf::Leaf;
use super::way::Spot;
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::{Fact, Report};
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use std::sync::atomic::Ordering;

impl<G: Geometry> Tree<G> {
    /// Calls `visit` with the spot of every leaf, in order. Nothing is written meanwhile, or `visit` sees what is.
    fn for_each_leaf(&self, mut visit: impl FnMut(&Spot<'_>, Leaf<'_, G>)) -> Result<()> {
        let mut from = 0;
        loop {
            let _guard = epochs::pin();
            let spot = self.locate(from)?;
            let (high, leaf) = (spot.high(), self.leaves.at(spot.child.offset()));
            if !spot.is_current() {
                continue;
            }
            visit(&spot, leaf);
            match high {
                Some(high) => from = high,
                None => return Ok(()),
            }
        }
    }

    pub(super) fn check(&self, report: &mut Report) -> Result<()> {
        report.reach(self.root_offset(), LEAF_BYTES as u64);
        let mut expected = {
            let _guard = epochs::pin();
            Offset::from_word(self.root_block()?.head.load())
        };
        let (mut records, mut last) = (0, 0);
        self.for_each_leaf(|spot, leaf| {
            expected = self.skip_empty(expected, leaf.offset);
            report.expect(expected == leaf.offset, || {
                format!(
                    "leaf {:#x} is indexed where the chain has {expected:#x}",
                    leaf.offset
                )
            });
            report.expect(self.space.owns(leaf.offset), || {
                format!("leaf {:#x} is not the index's own", leaf.offset)
            });
            report.reach(leaf.offset, LEAF_BYTES as u64);
            records += self.check_leaf(spot, leaf, &mut last, report);
            expected = leaf.next();
        })?;
        expected = self.skip_empty(expected, Offset::NONE);
        report.expect(expected.is_none(), || {
            format!("the chain goes on to {expected:#x} after the last indexed leaf")
        });
        report.add_records(records);
        self.check_intents(report)?;
        self.check_signposts(report)
    }

    /// Checks the records of a leaf, and returns their number. `last` is the greatest key so far.
    fn check_leaf(
        &self,
        spot: &Spot<'_>,
        leaf: Leaf<'_, G>,
        last: &mut Key,
        report: &mut Report,
    ) -> u64 {
        let (low, high) = (spot.low(), spot.high());
        let (before, reach) = (*last, self.reach.now());
        let path = self.locate_for(low, None).1;
        let mut count = 0;
        for (slot, record) in leaf.records() {
            let place = || format!("record {slot} of leaf {:#x}", leaf.offset);
            let (key, rect) = (self.key(&record), record.rect::<G>());
            let is_sound = (0..G::AXES).all(|axis| rect.low[axis] <= rect.high[axis]);
            report.expect(is_sound, || format!("{} is no geometry", place()));
            let belongs = key | ORDINALS >= low && high.is_none_or(|high| key < high);
            report.expect(belongs, || format!("{} does not belong there", place()));
            report.expect(key | ORDINALS >= before, || {
                format!("{} is out of order", place())
            });
            let wanted = super::grid::Reach::of(&record.shape::<G>());
            report.expect((0..G::AXES).all(|axis| wanted[axis] <= reach[axis]), || {
                format!("{} is larger than the index says", place())
            });
            let bounds = Bounds::of(&rect);
            report.expect(path.contains(&bounds, low, G::AXES), || {
                format!("{} lies outside of a box above it", place())
            });
            *last = (*last).max(key);
            count += 1;
        }
        count
    }

    /// In a read-only pool empty leaves may stand in the chain that are not indexed.
    fn skip_empty(&self, mut offset: Offset, until: Offset) -> Offset {
        if !self.core.is_read_only() {
            return offset;
        }
        // Bounded, for a circle of empty leaves.
        for _ in 0..self.space.most_blocks() {
            match self.leaf_at(offset) {
                Ok(leaf) if offset != until && leaf.count() == 0 => offset = leaf.next(),
                _ => break,
            }
        }
        offset
    }

    fn check_intents(&self, report: &mut Report) -> Result<()> {
        for (number, intent) in self.root_block()?.intents.iter().enumerate() {
            let state = intent.state.load();
            report.expect(state == 0, || {
                format!("relocation {number} has state {state:#x}")
            });
        }
        Ok(())
    }

    /// Every signpost must point to a leaf that begins at the signpost's code.
    fn check_signposts(&self, report: &mut Report) -> Result<()> {
        for (code, offset) in self.directory.all()? {
            let _guard = epochs::pin();
            let low = key_of(code, 0);
            let spot = self.locate(low)?;
            report.expect(spot.low() == low && spot.child.offset() == offset, || {
                format!(
                    "a signpost says that leaf {offset:#x} begins at {code:#x}, which is not so"
                )
            });
        }
        self.directory.check(report)
    }

    /// See [`Engine::dram_bytes`](crate::engines::Engine::dram_bytes).
    pub(super) fn dram_bytes(&self) -> u64 {
        self.arena.bytes() + self.locks.bytes() + self.directory.dram_bytes()
    }

    /// See [`Spatial::bounds`](crate::engines::Spatial::bounds). Exact: the sides of the box are those of records.
    pub(super) fn bounds(&self) -> Result<Option<Rect>> {
        // Records that were seen before the leaves got another order, or before a relocation, are records all the same, so nothing is forgotten then.
        let mut all: Option<Rect> = None;
        self.relocations.undisturbed(|| {
            self.for_each_leaf_locked(|leaf| {
                if let Some(leaf) = leaf.filter(|leaf| leaf.count() > 0) {
                    all = Some(all.unwrap_or(Rect::NOTHING).join(&leaf.rect()));
                }
            })
        })?;
        Ok(all)
    }

    /// See [`Spatial::leaves`](crate::engines::Spatial::leaves).
    pub(super) fn leaf_boxes(&self) -> Result<Vec<(Rect, usize)>> {
        let mut boxes = Vec::new();
        self.for_each_leaf_locked(|leaf| match leaf {
            Some(leaf) => boxes.push((leaf.rect(), leaf.count())),
            None => boxes.clear(),
        })?;
        Ok(boxes)
    }

    /// Calls `visit` with every leaf, locked, in order; with none when it begins again, since the leaves have been written anew in the order of
    /// another grid, or since the leaf of the last visit and the next one have been one leaf meanwhile, in which a record may have moved from the one to the other.
    fn for_each_leaf_locked(&self, mut visit: impl FnMut(Option<Leaf<'_, G>>)) -> Result<()> {
        let (mut grid, mut from) = (self.grids.number(), 0);
        let mut merges = 0;
        let (mut restarts, mut still) = (0, None);
        loop {
            // As in a search: from then on no leaves are merged.
            self.structure.pause_after(restarts, &mut still);
            let _guard = epochs::pin();
            let locked = self.lock_leaf(from, None)?;
            let is_torn = from > 0 && self.merges.may_have_been_at(from, merges);
            if self.grids.number() != grid || is_torn {
                (grid, from) = (self.grids.number(), 0);
                restarts += 1;
                visit(None);
                continue;
            }
            // While the leaf is locked, so that no merge of it is missed.
            merges = self.merges.count();
            visit(Some(locked.leaf));
            match locked.high {
                Some(high) => from = high,
                None => return Ok(()),
            }
        }
    }

    /// See [`Engine::facts`](crate::engines::Engine::facts).
    pub(super) fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let mut leaves = 0;
        self.for_each_leaf(|_, _| leaves += 1)?;
        let signposts = self.directory.all()?.len() as u64;
        let slots = leaves as f64 * Shape::<G>::RECORDS as f64;
        let splits = self.splits.load(Ordering::Relaxed);
        Ok(vec![
            Fact::share("fill", records as f64, slots, "records divided by slots"),
            Fact::count("leaves", leaves, "leaves in the pool"),
            Fact::bytes("leaf-bytes", LEAF_BYTES as u64, "bytes in a leaf"),
            Fact::count(
                "height",
                u64::from(self.root().level()) + 1,
                "levels of inner nodes above the leaves",
            ),
            Fact::count(
                "signposts",
                signposts,
                "leaves recorded in the durable directory, from which inner nodes are rebuilt after a crash",
            ),
            Fact::changes("splits", splits, "leaf splits since the index was opened"),
        ])
    }
}
