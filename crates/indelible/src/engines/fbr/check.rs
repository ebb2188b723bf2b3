//! Looking at everything: `check` and `stat`.

use super::layout::{Entries, NODE_BYTES};
use super::node::{Child, Node};
use super::{Tree, Writer};
use crate::Result;
use crate::engines::rect::{Link, common};
use crate::engines::{Fact, Report};
use crate::pool::Offset;
use crate::spatial::{Geometry, Rect};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl<G: Geometry> Tree<G> {
    /// See [`Engine::check`](crate::engines::Engine::check).
    pub(super) fn check(&self, report: &mut Report) -> Result<()> {
        let writer = self.write();
        report.reach(self.root_block_offset(), NODE_BYTES as u64);
        let root = self.root();
        let durable = self.root_block().root.load();
        report.expect(durable == root.offset.get(), || {
            format!(
                "the root is {:#x}, and {durable:#x} in the root block",
                root.offset
            )
        });
        let state = self.root_block().log.state.load();
        report.expect(state == 0, || format!("the log has state {state:#x}"));
        let mut leaves = BTreeSet::new();
        let mut waiting = vec![(root, Rect::EVERYTHING)];
        while let Some((Link { offset, level }, within)) = waiting.pop() {
            let node = self.node(offset, level)?;
            report.reach(offset, NODE_BYTES as u64);
            if level > 0 {
                waiting.extend(children_within(node, level, &within, report));
                continue;
            }
            report.add_records(node.count() as u64);
            let bounds = node.bounds();
            let is_within = node.count() == 0 || contains(&within, &bounds, G::AXES);
            report.expect(is_within, || {
                format!("leaf {offset:#x} has records outside of a box above it")
            });
            if !leaves.insert(offset) {
                report.problem(format!("leaf {offset:#x} is reached twice"));
                return Ok(());
            }
        }
        writer.check_chain(leaves, report)
    }

    /// See [`Engine::facts`](crate::engines::Engine::facts).
    pub(super) fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let (mut leaves, mut inner) = (0_u32, 0_u32);
        let writer = self.write();
        writer.visit_nodes(&mut |_, level| {
            *(if level == 0 { &mut leaves } else { &mut inner }) += 1;
            true
        })?;
        let slots = f64::from(leaves) * Entries::<G>::most(0) as f64;
        let rebuilt = self.rebuilt;
        let [rebuilt, time] = Fact::timed(
            Fact::changes(
                "rebuilt-from",
                rebuilt.leaves,
                "leaves from which the open built the inner nodes anew, with flush=leaves after a crash",
            ),
            "rebuild-time",
            rebuilt.time.as_nanos() as u64,
            "the time that building the inner nodes anew took",
        );
        Ok(vec![
            Fact::share("fill", records as f64, slots, "records divided by slots"),
            Fact::count("leaves", leaves.into(), "leaves in the pool"),
            Fact::count("inner-nodes", inner.into(), "inner nodes in the pool"),
            Fact::bytes("node-bytes", NODE_BYTES as u64, "bytes in a node"),
            Fact::count(
                "height",
                self.root().level.into(),
                "levels of inner nodes above the leaves",
            ),
            Fact::changes(
                "splits",
                self.splits.load(Ordering::Relaxed),
                "leaf splits since the index was opened",
            ),
            rebuilt,
            time,
        ])
    }
}

/// The children of an inner node, each with what it has in common with `within`, which contains all records below the node. A box need not contain
/// the boxes below it, but all records: a crash may leave a lower box enlarged and a higher one not.
fn children_within<G: Geometry>(
    node: Node<'_, G>,
    level: u32,
    within: &Rect,
    report: &mut Report,
) -> Vec<(Link, Rect)> {
    report.expect(node.count() > 0, || {
        format!("inner node {:#x} has no children", node.offset)
    });
    let child_in = |slot: usize| {
        let Child { rect, offset } = node.child(level, slot);
        let level = level - 1;
        (Link { offset, level }, common(within, &rect))
    };
    node.slots(level).map(child_in).collect()
}

/// Whether a box contains another one, on the first axes.
fn contains(outer: &Rect, inner: &Rect, axes: usize) -> bool {
    (0..axes).all(|axis| outer.low[axis] <= inner.low[axis] && outer.high[axis] >= inner.high[axis])
}

impl<G: Geometry> Writer<'_, G> {
    /// Checks that the chain consists of these leaves.
    fn check_chain(&self, mut leaves: BTreeSet<Offset>, report: &mut Report) -> Result<()> {
        let mut previous = Offset::NONE;
        let mut next = Offset::from_word(self.tree.root_block().head.load());
        while !next.is_none() {
            if !leaves.remove(&next) {
                report.problem(format!(
                    "leaf {next:#x} of the chain is not in the tree, or twice in the chain"
                ));
                return Ok(());
            }
            let leaf = self.tree.node(next, 0)?;
            report.expect(leaf.previous() == previous, || {
                format!(
                    "leaf {next:#x} comes after {previous:#x}, and has {:#x} before it",
                    leaf.previous()
                )
            });
            (previous, next) = (next, leaf.next());
        }
        for leaf in leaves {
            report.problem(format!("leaf {leaf:#x} is not in the chain"));
        }
        Ok(())
    }
}
