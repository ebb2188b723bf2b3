//! Structure changes of nodes that have few records left: contraction, merge, collapse.

use super::Tree;
use super::build::{Aside, Image, Record};
use super::data::Data;
use super::divide::{Group, Load, radix_between};
use super::format::is_link;
use super::inner::{Child, group_log};
use super::layout::Link;
use super::plan::{DataPlan, Plan};
use super::records::Buffer;
use super::smo::{Frozen, Outcome, Path, Step};
use crate::planted::{Bug, planted};
use crate::sync::lock;
use crate::{Result, reclaim};
use std::time::Instant;

/// How many times fewer records per slot a node has that has just become smaller, at most: far from where it would have to grow
/// again.
pub(super) const THINNER: f64 = 1.5;

/// The two halves of a group, and what is to take their place.
struct Merger<'a> {
    /// The group of the left one.
    left: Group<'a>,
    right: usize,
    nodes: [&'a Data; 2],
    records: Vec<Record>,
    plan: DataPlan,
    /// When the first of them was frozen.
    since: Instant,
}

impl Tree {
    /// Merges a frozen node of few records with its neighbour, or else makes it smaller, but so that it has no more than `fill` records
    /// per slot.
    pub(super) fn thin_out(&self, frozen: &Frozen<'_>, load: &Load<'_>, fill: f64) -> Result<()> {
        let data = frozen.data;
        loop {
            let path = self.path_to(data.low)?;
            let group = self.group(&path);
            if self.merge(group, frozen, load, fill)? {
                return self.collapse(data.low);
            }
            let (keys, all) = (load.keys, 0..load.keys.len());
            let plan = self.shape.data(keys, all, (data.low, data.high), fill);
            let image = Image::new(&plan, load.records, load.shape.format);
            if plan.bytes >= data.bytes
                || !image.has_room()
                || self.replace(group, frozen, image, load.records)? == Outcome::Replaced
            {
                return Ok(());
            }
        }
    }

    /// Merges a frozen node with the one in the other half of a group of twice the size, if that is worth while.
    fn merge(
        &self,
        group: Group<'_>,
        thin: &Frozen<'_>,
        load: &Load<'_>,
        fill: f64,
    ) -> Result<bool> {
        let data = thin.data;
        let Some(buddy) = self.buddy(group)? else {
            return Ok(false);
        };
        let Some(frozen) = self.freeze(buddy) else {
            return Ok(false);
        };
        let mut records = self.records_of(frozen.data);
        let is_left = group.first & 1 << group.log == 0;
        let nodes = if is_left {
            [data, buddy]
        } else {
            [buddy, data]
        };
        let at = if is_left { 0 } else { records.len() };
        records.splice(at..at, load.records.iter().copied());
        let mut keys = Buffer::empty();
        keys.extend(records.iter().map(|&(key, _)| key));
        let range = (nodes[0].low, nodes[1].high);
        let Plan::Data(plan) = self.shape.plan(&keys, range, fill, 1) else {
            return Ok(false);
        };
        let is_smaller = plan.bytes < data.bytes + buddy.bytes;
        if !is_smaller {
            return Ok(false);
        }
        let first = group.first & !(1 << group.log);
        self.join(&Merger {
            left: Group { first, ..group },
            right: first | 1 << group.log,
            nodes,
            records,
            plan,
            since: thin.since,
        })
    }

    /// The data node that covers the other half of a group of twice the size.
    fn buddy<'a>(&'a self, group: Group<'a>) -> Result<Option<&'a Data>> {
        let radix = group.parent.radix;
        if group.log >= radix.log_slots || radix.shift + group.log >= 63 {
            return Ok(None);
        }
        let merged = Group {
            first: group.first & !(1 << group.log),
            log: group.log + 1,
            ..group
        };
        if !merged.is_cell() {
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
        // A node of all keys would have no marker.
        if whole == (0, u64::MAX) {
            return Ok(None);
        }
        let data = self.data_of(low)?;
        Ok((data.low == low && data.high == high).then_some(data))
    }

    /// Puts one node in the place of two; `false` if their parent has been replaced meanwhile.
    fn join(&self, merger: &Merger<'_>) -> Result<bool> {
        let Merger { left, right, .. } = *merger;
        let mut aside = Aside::new(self);
        let (link, child) = aside.data(&merger.plan, &merger.records)?;
        let whole = Group {
            log: left.log + 1,
            ..left
        };
        let between = radix_between(whole);
        let links = merger.nodes.map(|node| Link::data(node.offset()));
        let (head, _) = aside.inner_blocks(between, links.into_iter().enumerate())?;
        self.pm.fence();
        let (slots, continued) = (
            self.durable_slots(left.parent),
            self.shape.format.continued(),
        );
        let Some(_slots) = self.lock_group(left, merger.nodes[0]) else {
            return Ok(false);
        };
        let is_right_there = left.parent.child(right) == Child::data(merger.nodes[1].into());
        if !is_right_there {
            return Ok(false);
        }
        self.pm.note("merge", u64::from(whole.has_lines()));
        if planted(Bug::MergeDropsRightFirst) {
            self.pm.commit(&slots[right], continued);
        }
        // COMMIT: the node between, which has both. Before this store each has its slot; after it the left one is found one
        // level deeper than it should be.
        self.pm.commit(&slots[left.first], Link::inner(head).0);
        // COMMIT: the right one's slot, which becomes a part of the left one's group. Before this store its keys come to
        // it at once, after it by way of the node between.
        self.pm.commit(&slots[right], continued);
        // COMMIT: the merged node, in the slot of the group. Before this store the two count, after it the one; what does
        // not count is swept.
        self.pm.commit(&slots[left.first], link.0);
        left.parent.set(left.first, left.log + 1, child);
        self.retire_inner_blocks(head, between);
        for node in merger.nodes {
            self.retire_data(node);
        }
        aside.open();
        self.changes.merges.add(merger.since);
        Ok(true)
    }

    /// Takes inner nodes with a single child out of the way to `key`. The root stays.
    fn collapse(&self, key: u64) -> Result<()> {
        let _guard = reclaim::pin();
        loop {
            let Path { steps, .. } = self.path_to(key)?;
            let [.., above, last] = &steps[..] else {
                return Ok(());
            };
            let slots = self.durable_slots(last.inner);
            if group_log(slots, 0) < last.inner.radix.log_slots {
                return Ok(());
            }
            self.take_out(above, last);
        }
    }

    fn take_out(&self, above: &Step<'_>, step: &Step<'_>) {
        let inner = step.inner;
        let _above = lock(&above.inner.changing);
        let _slots = lock(&inner.changing);
        let slots = self.durable_slots(inner);
        let has_one_child = group_log(slots, 0) == inner.radix.log_slots;
        if inner.is_dead() || !has_one_child || !self.is_child(Some(above), inner) {
            return;
        }
        self.pm.note("inner node collapsed", 0);
        self.relink_inner(Some(above), Link(slots[0].load()), inner.child(0));
        self.retire_inner(inner);
    }
}
