//! Structure changes of data nodes with few records: contraction, merge, and removal of inner nodes with a single
//! child. (The paper leaves them out.)
//!
//! A *merge* joins a data node with its *buddy*: the data node whose child group is the other half of an aligned group
//! of twice the size. A merge is a sideways split ([`smo`](super::smo)) run backwards, by way of an intermediate inner
//! node with both data nodes:
//!
//! ```text
//! slots of the parent    | L | R |    | I | R |    | I | 0 |    | M | 0 |      L, R: data nodes, M: the merged one
//!                                      I{L,R}       I{L,R}                     I: intermediate inner node
//! ```
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. freeze L and R; write M and I; flush, fence | L and R; unreachable nodes | sweeps M and I |
//! | 2. store the link to I in the slot of L (commit) | L by way of I, R in its slot | sweeps M |
//! | 3. remove the link from the slot of R (commit) | L and R by way of I, one level too deep | sweeps M |
//! | 4. store the link to M in the slot of I (commit) | M | sweeps L, R and I |
//! | 5. point the mirror to M, retire L, R and I, open M for writers | M | sweeps L, R and I |

use super::Bug;
use super::Tree;
use super::build::{NodeImage, Record, UnpublishedNodes};
use super::data::DataNode;
use super::divide::{ChildGroup, NodeContents, intermediate_radix};
use super::format::is_link;
use super::inner::{Child, group_log};
use super::layout::{Link, SMALLEST_BLOCK};
use super::plan::{DataPlan, Plan};
use super::records::Buffer;
use super::smo::{FrozenNode, Outcome, Path, Step};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use std::time::Instant;

/// By this factor a node that has been shrunk or merged has fewer records per slot than a new one usually has, at most:
/// so the node is far from the density at which it would have to grow again.
pub(super) const SHRINK_FILL_DIVISOR: f64 = 1.5;

/// Two data nodes that are to be merged, and the node that takes their place.
struct Merger<'a> {
    /// The child group of the left node, and the first slot of the right node's.
    left: ChildGroup<'a>,
    right: usize,
    nodes: [&'a DataNode; 2],
    records: Vec<Record>,
    plan: DataPlan,
    /// When the first of the nodes was frozen.
    since: Instant,
}

impl Tree {
    /// Merges a frozen node of few records with its buddy, or else makes the node smaller. The node that takes its
    /// place has at most `fill` records per slot.
    pub(super) fn shrink_or_merge(
        &self,
        frozen: &FrozenNode<'_>,
        contents: &NodeContents<'_>,
        fill: f64,
    ) -> Result<()> {
        let data = frozen.data;
        loop {
            let path = self.path_to(data.low)?;
            let group = self.child_group(&path)?;
            if self.merge(group, frozen, contents, fill)? {
                return self.collapse(data.low);
            }
            let (keys, all) = (contents.keys, 0..contents.keys.len());
            let plan = self
                .limits
                .plan_data_node(keys, all, (data.low, data.high), fill);
            let image = NodeImage::new(&plan, contents.records, contents.limits.format);
            if plan.bytes >= data.bytes
                || !image.has_spare_stash()
                || self.replace(group, frozen, image, contents.records)? == Outcome::Replaced
            {
                return Ok(());
            }
        }
    }

    /// Merges a frozen node with its buddy, if one data node of less space has room for the records of both.
    fn merge(
        &self,
        group: ChildGroup<'_>,
        frozen: &FrozenNode<'_>,
        contents: &NodeContents<'_>,
        fill: f64,
    ) -> Result<bool> {
        let data = frozen.data;
        let Some(buddy) = self.buddy(group)? else {
            return Ok(false);
        };
        let Some(frozen_buddy) = self.freeze(buddy) else {
            return Ok(false);
        };
        let mut records = self.checked_records_of(frozen_buddy.data)?;
        let is_left = group.first & 1 << group.log == 0;
        let nodes = if is_left {
            [data, buddy]
        } else {
            [buddy, data]
        };
        let at = if is_left { 0 } else { records.len() };
        records.splice(at..at, contents.records.iter().copied());
        let mut keys = Buffer::empty();
        keys.extend(records.iter().map(|&(key, _)| key));
        let range = (nodes[0].low, nodes[1].high);
        let Plan::Data(plan) = self.limits.plan_tree(&keys, range, fill, 1) else {
            return Ok(false);
        };
        let is_smaller = plan.bytes < data.bytes + buddy.bytes;
        if !is_smaller {
            return Ok(false);
        }
        let first = group.first & !(1 << group.log);
        self.join(&Merger {
            left: ChildGroup { first, ..group },
            right: first | 1 << group.log,
            nodes,
            records,
            plan,
            since: frozen.since,
        })
    }

    /// The buddy of a node: the data node whose child group is the other half of an aligned group of twice the size.
    /// `None` if there is no such node.
    fn buddy<'a>(&'a self, group: ChildGroup<'a>) -> Result<Option<&'a DataNode>> {
        let radix = group.parent.radix;
        if group.log >= radix.log_slots || radix.shift + group.log >= 63 {
            return Ok(None);
        }
        let merged = ChildGroup {
            first: group.first & !(1 << group.log),
            log: group.log + 1,
            ..group
        };
        if !merged.is_aligned_range() {
            return Ok(None);
        }
        let slots = self.durable_slots(group.parent);
        let first = group.first ^ 1 << group.log;
        let link = Link(slots[first].load_acquire());
        if !is_link(link.0) || link.is_inner() || group_log(slots, first) != group.log {
            return Ok(None);
        }
        let (parent, log) = (group.parent, group.log);
        let (low, high) = radix.range_of(first, log, parent.low, parent.high);
        let whole = radix.range_of(first & !(1 << log), log + 1, parent.low, parent.high);
        // A data node of all keys would have no marker (data I3).
        if whole == (0, u64::MAX) {
            return Ok(None);
        }
        let data = self.data_of(low)?;
        Ok((data.low == low && data.high == high).then_some(data))
    }

    /// Replaces two frozen nodes by the merged one; `false` if another change has replaced their parent meanwhile.
    fn join(&self, merger: &Merger<'_>) -> Result<bool> {
        let Merger { left, right, .. } = *merger;
        let mut unpublished = UnpublishedNodes::new(self);
        let (link, child) = unpublished.build_data_node(&merger.plan, &merger.records)?;
        let whole = ChildGroup {
            log: left.log + 1,
            ..left
        };
        let intermediate = intermediate_radix(whole);
        let links = merger.nodes.map(|node| Link::data(node.offset()));
        let (head, _) =
            unpublished.write_inner_node(intermediate, links.into_iter().enumerate())?;
        self.pm.fence();
        let slots = self.durable_slots(left.parent);
        let continued = self.limits.format.continued();
        let Some(_slots) = self.lock_child_group(left, merger.nodes[0])? else {
            return Ok(false);
        };
        let is_right_there = left.parent.child(right) == Child::data(merger.nodes[1].into());
        if !is_right_there {
            return Ok(false);
        }
        self.pm.note("merge", u64::from(whole.spans_cache_lines()));
        if planted(Bug::MergeDropsRightFirst) {
            self.pm
                .commit(&slots[right], continued, "apex.merge.drop-right");
        }
        // COMMIT apex.merge.between: the link to the intermediate node, in the slot of the left node. Before this store,
        // recovery sees both nodes in their slots and sweeps the new ones; after it, the left node is found by way of
        // the intermediate one.
        self.pm.commit(
            &slots[left.first],
            Link::inner(head).0,
            "apex.merge.between",
        );
        // COMMIT apex.merge.drop-right: the slot of the right node holds no link any more, and so becomes a part of
        // the intermediate node's child group. Before this store, keys of the right node are routed to it directly;
        // after it, by way of the intermediate node.
        self.pm
            .commit(&slots[right], continued, "apex.merge.drop-right");
        // COMMIT apex.merge.whole: the link to the merged node. Before this store, recovery sees both nodes below the
        // intermediate one and sweeps the merged one; after it, recovery sees the merged node and sweeps the other
        // three.
        self.pm
            .commit(&slots[left.first], link.0, "apex.merge.whole");
        left.parent.set(left.first, left.log + 1, child);
        self.blocks.retire(head, SMALLEST_BLOCK);
        for node in merger.nodes {
            self.retire_data(node);
        }
        unpublished.open_for_writers();
        self.changes.merges.add(merger.since);
        Ok(true)
    }

    /// Removes inner nodes with a single child from the path to `key`. The root stays.
    fn collapse(&self, key: u64) -> Result<()> {
        let _guard = epochs::pin();
        loop {
            let Path { steps, .. } = self.path_to(key)?;
            let [.., above, last] = &steps[..] else {
                return Ok(());
            };
            let slots = self.durable_slots(last.inner);
            if group_log(slots, 0) < last.inner.radix.log_slots {
                return Ok(());
            }
            self.remove_single_child_node(above, last)?;
        }
    }

    /// Puts the only child of an inner node in the place of that inner node.
    fn remove_single_child_node(&self, above: &Step<'_>, step: &Step<'_>) -> Result<()> {
        let inner = step.inner;
        let _above = lock(&above.inner.changing);
        let _slots = lock(&inner.changing);
        let slots = self.durable_slots(inner);
        let has_one_child = group_log(slots, 0) == inner.radix.log_slots;
        if inner.is_dead() || !has_one_child || !self.is_child(Some(above), inner) {
            return Ok(());
        }
        self.pm.note("inner node collapsed", 0);
        self.relink_inner(Some(above), Link(slots[0].load()), inner.child(0))?;
        self.retire_inner(inner);
        Ok(())
    }
}
