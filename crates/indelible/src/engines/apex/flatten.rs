//! Flattening: new inner nodes over the data nodes that there are.
//!
//! Data nodes are split one by one, and each split sees no further than its parent. So a tree that has grown is deeper
//! than a tree that was planned as a whole, by a factor of two to five. All boundaries between data nodes are aligned
//! to powers of two, so other inner nodes can be planned over them without moving a record: the new inner nodes are
//! built unpublished, and one store of a link above them commits them.
//!
//! Below an inner node the inner nodes are planned again when there have been a quarter as many splits as there are
//! data nodes. So each split pays for examining four nodes.
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. lock the slots of all inner nodes below, freeze the data nodes without records | the old inner nodes | nothing |
//! | 2. write the new inner nodes, and new data nodes without records; flush, fence | the old inner nodes; new nodes that are unreachable | sweeps the new nodes |
//! | 3. store the link to the topmost new inner node (commit, in `relink_inner`) | the new inner nodes, over the old data nodes | sweeps the old inner nodes |
//! | 4. retire the old inner nodes and the data nodes without records | the new inner nodes | sweeps the old inner nodes |

use super::Tree;
use super::build::{BuiltChild, UnpublishedNodes};
use super::format::is_link;
use super::inner::{Child, InnerNode, group_log};
use super::layout::Link;
use super::plan::{InnerPlan, MIN_DATA_BYTES, NodeLimits, Plan};
use super::smo::{FrozenNode, Step};
use crate::concurrency::epochs;
use crate::concurrency::sync::lock;
use crate::{Error, Result};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

/// The inner nodes below an inner node are planned again after one split for each this many data nodes below.
const REPLAN_SPLITS_DIVISOR: usize = 4;
/// Fewest splits after which the inner nodes below an inner node are planned again: a plan after fewer splits would
/// hardly differ.
const REPLAN_MIN_SPLITS: usize = 4;
/// Most data nodes over which inner nodes are planned: no other structure change below can commit while the plan is
/// made.
const REPLAN_MAX_NODES: usize = 1 << 18;
/// Levels above a record that a new plan has to save on average: less does not pay for the cache lines that change.
const REPLAN_MIN_LEVELS_SAVED: f64 = 0.1;

/// A data node, or an inner node that has no mirror, that keeps its place in the new tree. A data node without records
/// counts no bytes and is replaced: its range may be divided anywhere, or become part of a larger slot.
struct KeptNode {
    /// The lowest key that is routed to the node.
    low: u64,
    /// The last one, where that may not change: the node's marker depends on it, and its mirror knows it.
    high: Option<u64>,
    link: Link,
    /// The mirror, if the node has one.
    child: Child,
    bytes: u64,
}

/// What lies below an inner node.
#[derive(Default)]
struct Subtree<'a> {
    /// The inner nodes that are to be replaced, with the locks of their slots.
    inners: Vec<(&'a InnerNode, MutexGuard<'a, ()>)>,
    /// The nodes that are kept, from left to right.
    kept: Vec<KeptNode>,
    /// Data nodes without records.
    empty_nodes: Vec<FrozenNode<'a>>,
    /// Bytes of all nodes that are kept; and the sum of these bytes times the levels above each.
    bytes: u64,
    levels: u64,
}

impl Tree {
    /// After a split of the data node of `key`: plans the inner nodes on the path again, where that is due.
    pub(super) fn flatten(&self, key: u64) -> Result<()> {
        let _guard = epochs::pin();
        let path = self.path_to(key)?;
        let mut above = None;
        for step in &path.steps {
            let splits = step
                .inner
                .splits_since_replan
                .fetch_add(1, Ordering::Relaxed)
                + 1;
            let nodes = step.inner.nodes_at_replan.load(Ordering::Relaxed);
            if splits >= REPLAN_MIN_SPLITS.max(nodes / REPLAN_SPLITS_DIVISOR) {
                return self.replan_inner_nodes(above, step.inner);
            }
            above = Some(step);
        }
        Ok(())
    }

    /// Replaces an inner node and those below it by other inner nodes, if that brings the records closer to the root.
    fn replan_inner_nodes(&self, above: Option<&Step<'_>>, inner: &InnerNode) -> Result<()> {
        let _above = match above {
            Some(step) => lock(&step.inner.changing),
            None => lock(&self.changing_root),
        };
        if !self.is_child(above, inner) {
            return Ok(());
        }
        let mut subtree = Subtree::default();
        let is_fine = self.collect_subtree(inner, 1, &mut subtree);
        // Whether the nodes are replaced or not, the next plan is due only after as many splits again.
        inner.splits_since_replan.store(0, Ordering::Relaxed);
        inner
            .nodes_at_replan
            .store(subtree.kept.len(), Ordering::Relaxed);
        if !is_fine {
            return Ok(());
        }
        let Subtree {
            inners,
            kept,
            empty_nodes,
            bytes,
            levels,
        } = subtree;
        if bytes == 0 {
            return Ok(());
        }
        let kept = split_empty_nodes(kept);
        let borders: Vec<u64> = kept[1..].iter().map(|node| node.low).collect();
        let sizes: Vec<u64> = kept.iter().map(|node| node.bytes).collect();
        let Some(plan) =
            self.limits
                .plan_inner_nodes_over(&borders, &sizes, (inner.low, inner.high))
        else {
            return Ok(());
        };
        let saved = levels as f64 - levels_of(&plan, &kept, 1) as f64;
        if saved < REPLAN_MIN_LEVELS_SAVED * bytes as f64 {
            return Ok(());
        }
        let mut unpublished = UnpublishedNodes::new(self);
        let (link, child) = build_subtree(
            self.limits,
            &mut unpublished,
            &plan,
            &kept,
            (inner.low, inner.high),
            inner.depth,
        )?;
        // SAFETY: the mirror has just been made, and nobody else has it.
        unsafe { &*child.as_inner() }
            .nodes_at_replan
            .store(kept.len(), Ordering::Relaxed);
        self.pm.fence();
        self.pm.note("inner nodes laid out anew", 0);
        self.relink_inner(above, link, child)?;
        for (inner, _slots) in &inners {
            self.retire_inner(inner);
        }
        for node in &empty_nodes {
            self.retire_data(node.data);
        }
        unpublished.open_for_writers();
        Ok(())
    }

    /// Locks the slots of an inner node and of all inner nodes below it, and collects what is kept. An inner node
    /// without a mirror is kept as it is. `false` if there are too many nodes, or one is damaged.
    fn collect_subtree<'a>(
        &'a self,
        inner: &'a InnerNode,
        depth: u64,
        subtree: &mut Subtree<'a>,
    ) -> bool {
        subtree.inners.push((inner, lock(&inner.changing)));
        let slots = self.durable_slots(inner);
        let mut first = 0;
        while first < slots.len() {
            let link = Link(slots[first].load());
            let child = inner.child(first);
            let start = inner.radix.start_of(first);
            let is_routed =
                first == 0 || u128::from(inner.low) < start && start <= u128::from(inner.high);
            if !is_link(link.0) || subtree.kept.len() == REPLAN_MAX_NODES {
                return false;
            }
            let log = group_log(slots, first);
            if !is_routed {
                // A change that a crash has cut short leaves an intermediate node for one half of its children. The other half is reached on another way.
                first += 1 << log;
                continue;
            }
            if !inner.has_group(first, log, child) {
                // It would be locked twice, or kept and retired.
                return false;
            }
            if child.is_inner() {
                // SAFETY: the caller is pinned, so the node is not freed before it unpins (apex I5).
                let is_fine =
                    self.collect_subtree(unsafe { &*child.as_inner() }, depth + 1, subtree);
                if !is_fine {
                    return false;
                }
            } else {
                let Some(bytes) = self.blocks.bytes_at(link.offset()) else {
                    return false;
                };
                let empty_node = self.freeze_if_empty(child);
                let bytes = if empty_node.is_some() { 0 } else { bytes };
                subtree.bytes += bytes;
                subtree.levels += bytes * depth;
                let was_empty = subtree.kept.last().is_some_and(|node| node.bytes == 0);
                if empty_node.is_none() || !was_empty {
                    let (low, high) = inner.range_of(first, log);
                    subtree.kept.push(KeptNode {
                        low,
                        high: (bytes > 0).then_some(high),
                        link,
                        child,
                        bytes,
                    });
                }
                subtree.empty_nodes.extend(empty_node);
            }
            first += 1 << log;
        }
        true
    }

    /// Freezes a data node if it has no records and can be frozen at once.
    fn freeze_if_empty(&self, child: Child) -> Option<FrozenNode<'_>> {
        // SAFETY: the caller is pinned (apex I5); the pointer of a cold child is null.
        let data = unsafe { child.as_data().as_ref() }?;
        let is_empty_node = || data.bytes == MIN_DATA_BYTES && data.total() == Some(0);
        if !is_empty_node() {
            return None;
        }
        // Freezing waits for the writers of the node. That is no deadlock: a writer that holds a group lock does not
        // wait for a structure change.
        self.freeze(data).filter(|_| is_empty_node())
    }
}

/// Divides a range without records at the boundary of the largest aligned range that crosses it, so that the nodes to
/// its left and to its right can be told apart there. The range of the first node and that of the last one need no such
/// boundary: there is nothing beyond them.
fn split_empty_nodes(kept: Vec<KeptNode>) -> Vec<KeptNode> {
    let mut halved: Vec<KeptNode> = Vec::with_capacity(kept.len() + kept.len() / 4);
    let mut nodes = kept.into_iter().peekable();
    while let Some(node) = nodes.next() {
        let (low, is_empty_node) = (node.low, node.bytes == 0);
        let is_first = halved.is_empty();
        halved.push(node);
        let last = nodes.peek().map_or(low, |next| next.low - 1);
        if let Some(bit) = (low ^ last)
            .checked_ilog2()
            .filter(|_| is_empty_node && !is_first)
        {
            halved.push(KeptNode {
                low: last >> bit << bit,
                high: None,
                link: Link(0),
                child: Child::COLD,
                bytes: 0,
            });
        }
    }
    halved
}

/// The sum of the levels above each node times its bytes, in a plan whose topmost inner node is `depth` levels deep.
fn levels_of(plan: &InnerPlan, kept: &[KeptNode], depth: u64) -> u64 {
    let of_child = |child: &Plan| match child {
        Plan::Data(node) if node.first == node.last => 0,
        Plan::Data(node) => kept[node.first].bytes * depth,
        Plan::Inner(plan) => levels_of(plan, kept, depth + 1),
    };
    plan.children.iter().map(|(_, child)| of_child(child)).sum()
}

/// Writes the inner nodes of a plan over the nodes that are kept, not fenced yet.
fn build_subtree(
    limits: NodeLimits,
    unpublished: &mut UnpublishedNodes<'_>,
    plan: &InnerPlan,
    kept: &[KeptNode],
    range: (u64, u64),
    depth: u32,
) -> Result<(Link, Child)> {
    let radix = plan.radix();
    let mut built = Vec::with_capacity(plan.children.len());
    for (i, (_, child)) in plan.children.iter().enumerate() {
        let (first, log) = plan.child_group(i);
        let of_child = radix.range_of(first, log, range.0, range.1);
        let (link, child) = match child {
            Plan::Data(node) if node.first == node.last => {
                unpublished.build_data_node(&limits.plan_empty_node(of_child.0, of_child.1), &[])?
            }
            Plan::Data(node) => {
                let node = &kept[node.first];
                let is_as_wide = node.high.is_none_or(|high| high == of_child.1);
                if node.low != of_child.0 || !is_as_wide {
                    debug_assert!(
                        is_as_wide,
                        "{:#x} to {:#x?} became {of_child:#x?}",
                        node.low, node.high
                    );
                    let problem = format!("there is a border at {:#x}", node.low);
                    return Err(Error::Damaged(problem));
                }
                (node.link, node.child)
            }
            Plan::Inner(plan) => {
                build_subtree(limits, unpublished, plan, kept, of_child, depth + 1)?
            }
        };
        built.push(BuiltChild {
            first,
            log,
            link,
            child,
        });
    }
    unpublished.build_inner_node_over(radix, &built, range, depth)
}
