//! Looking at everything: `check` and `stat`.

use super::Tree;
use super::layout::NODE_BYTES;
use super::multiword::DESCRIPTORS;
use super::node::View;
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::rect::layout::Entries;
use crate::engines::rect::{Link, common};
use crate::engines::{Fact, Report};
use crate::pool::Offset;
use crate::spatial::{Geometry, MAX_AXES, Rect};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// The box of all that there can be.
const EVERYTHING: Rect = Rect {
    low: [f64::NEG_INFINITY; MAX_AXES],
    high: [f64::INFINITY; MAX_AXES],
};

impl<G: Geometry> Tree<G> {
    /// See [`Engine::check`](crate::engines::Engine::check).
    pub(super) fn check(&self, report: &mut Report) -> Result<()> {
        let _guard = epochs::pin();
        for block in self.words.descriptor_blocks() {
            report.reach(block, NODE_BYTES as u64);
        }
        let mut nodes: BTreeSet<Offset> = BTreeSet::new();
        let mut waiting = vec![(self.root()?, EVERYTHING)];
        while let Some((link, within)) = waiting.pop() {
            let view = self.view(link)?;
            let offset = view.offset();
            report.reach(offset, NODE_BYTES as u64);
            if !nodes.insert(offset) {
                report.problem(format!("node {offset:#x} is reached twice"));
                return Ok(());
            }
            if view.level > 0 {
                waiting.extend(children_within(&view, &within));
                continue;
            }
            report.add_records(view.count() as u64);
            let is_within = view.bitmap() == 0 || contains(&within, &view.bounds(), G::AXES);
            report.expect(is_within, || {
                format!("leaf {offset:#x} has records outside of a box above it")
            });
        }
        Ok(())
    }

    /// See [`Engine::facts`](crate::engines::Engine::facts).
    pub(super) fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let _guard = epochs::pin();
        let (mut leaves, mut inner) = (0_u32, 0_u32);
        self.visit_nodes(&mut |view| {
            *(if view.level == 0 {
                &mut leaves
            } else {
                &mut inner
            }) += 1;
            true
        })?;
        let slots = f64::from(leaves) * Entries::<G>::most(0) as f64;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Ok(vec![
            Fact::share("fill", records as f64, slots, "records divided by slots"),
            Fact::count("leaves", leaves.into(), "leaves in the pool"),
            Fact::count("inner-nodes", inner.into(), "inner nodes in the pool"),
            Fact::bytes("node-bytes", NODE_BYTES as u64, "bytes in a node"),
            Fact::count(
                "height",
                self.root()?.level.into(),
                "levels of inner nodes above the leaves",
            ),
            Fact::count(
                "descriptors",
                DESCRIPTORS as u64,
                "descriptors of changes of several words, which an open looks at",
            ),
            Fact::changes(
                "splits",
                load(&self.splits),
                "leaf splits since the index was opened",
            ),
            Fact::changes(
                "copies",
                load(&self.copies),
                "nodes that were copied for want of a free slot since the index was opened",
            ),
        ])
    }
}

/// The children of an inner node, each with what it has in common with `within`, which contains all records below the node.
fn children_within<G: Geometry>(view: &View<'_, G>, within: &Rect) -> Vec<(Link, Rect)> {
    let child = |slot: usize| (view.link_to(slot), common(within, &view.rect(slot)));
    view.slots().map(child).collect()
}

/// Whether a box contains another one, on the first axes.
fn contains(outer: &Rect, inner: &Rect, axes: usize) -> bool {
    (0..axes).all(|axis| outer.low[axis] <= inner.low[axis] && outer.high[axis] >= inner.high[axis])
}
