//! Structure modification operations (SMOs, section 4.4 of the paper), here *structure changes*: expansion, retraining
//! and contraction of a data node, its splits, and growth of an inner node. [`merge`](super::merge) has the changes
//! that make the tree smaller, [`flatten`](super::flatten) those of inner nodes alone, [`divide`](super::divide) and
//! [`plan`](super::plan) decide what a change makes.
//!
//! # The steps of a change that replaces one node
//!
//! A data node that has to change is *frozen*: writers of the node wait, readers go on. The change copies the records
//! into new nodes, stores one link that commits the change, points the mirror of the parent to the new nodes, and opens
//! the new nodes for writers. Until then no writer can write to a new node, so a reader that is still in the old node
//! misses nothing.
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. freeze the data node, acquire and release each group lock | the old tree | nothing |
//! | 2. write the new nodes, flush, fence | the old tree; new nodes that are unreachable | sweeps the new nodes |
//! | 3. lock the slots of the parent, store the link (commit), flush, fence | the new tree | sweeps the old node |
//! | 4. point the parent's mirror to the new nodes, retire the old node, open the new nodes for writers | the new tree | sweeps the old node |
//!
//! Expansion, retraining and contraction replace the node by one data node; a *downward split* replaces it by an inner
//! node with several data nodes; a *parent growth* replaces the parent by an inner node of twice as many slots, and in
//! it the data node by two.
//!
//! # The steps of a sideways split
//!
//! A *sideways split* gives the two halves of a data node a child group each in the same parent. That takes several
//! stores, by way of an *intermediate* inner node with two slots:
//!
//! ```text
//! slots of the parent    | D | 0 |    | I | 0 |    | I | R |    | L | R |      D: data node, L and R: its halves
//!                                      I{L,R}       I{L,R}                     I: intermediate inner node
//! ```
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. freeze D; write L, R and I; flush, fence | D; unreachable nodes | sweeps L, R and I |
//! | 2. store the link to I in the slot of D (commit) | I with both halves, one level too deep | sweeps D |
//! | 3. store the link to R in its own slot (commit) | R in its slot, L by way of I | sweeps D |
//! | 4. store the link to L in the slot of I (commit) | L and R in their slots | sweeps D and I |
//! | 5. point the mirror to L and R, retire D and I, open L and R for writers | the same tree | sweeps D and I |
//!
//! A node that becomes more than two is split into halves, and the halves in turn, with an intermediate node for each.
//! Steps 3 and 4 then run from the upper halves to the lower ones. A merge ([`merge`](super::merge)) runs the steps
//! backwards.
//!
//! In each of these states every key has one path to one data node, and every child an aligned child group. So recovery
//! has nothing to undo or redo, and does not even notice that a change was cut short: at worst an intermediate node
//! stays, one level that was not planned. The paper's log is not needed.
//!
//! # Invariants
//!
//! - I1. A structure change has frozen each data node that it replaces from before it reads the records until the node
//!   is dead, or live again because the change was abandoned.
//! - I2. The data nodes that a change builds stay frozen until the commit is durable and the mirrors lead to the new
//!   nodes.
//! - I3. Lock order: `changing_root`, then `changing` of inner nodes from the root downwards, then the locks of groups.
//!   A thread that holds the lock of a group waits for none of the others. No thread that holds one of these locks waits
//!   for a frozen node: freezing a node that is not live fails at once, and writers wait for it without a lock.
//! - I4. After each single store of a change, apex I1 and I2 hold for the durable tree.
//! - I5. A change stores links of an inner node only while it holds the node's `changing` and the node is not dead.

mod links;

use super::Bug;
use super::Tree;
use super::build::{BuiltChild, NodeImage, Record, UnpublishedNodes};
use super::data::{DataNode, GROUP_RETRAIN_PERCENT, State, TREND_GROUP_RETRAIN_PERCENT};
use super::divide::{ChildGroup, Growth, NodeContents, SplitPart, intermediate_radix};
use super::format::is_link;
use super::inner::{Child, InnerNode, group_log, group_of};
use super::layout::{GROUP_SLOTS, Link, Offset, SMALLEST_BLOCK};
use super::merge::SHRINK_FILL_DIVISOR;
use super::plan::{DataPlan, Plan, Trend, with_empty_margins};
use super::records::Buffer;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::lock;
use crate::pmem::planted::planted;
use crate::{Error, Result};
use std::ptr::NonNull;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The path on which a key is routed.
pub(super) struct Path<'a> {
    /// The inner nodes from the root on, each with the slot of the key.
    pub(super) steps: Vec<Step<'a>>,
    pub(super) data: &'a DataNode,
}

/// An inner node on a path, with the slot of the key.
pub(super) struct Step<'a> {
    pub(super) inner: &'a InnerNode,
    pub(super) slot: usize,
}

/// A frozen data node. Dropping it sets the node live again, unless the node is dead (I1).
pub(super) struct FrozenNode<'a> {
    pub(super) data: &'a DataNode,
    /// When the node was frozen.
    pub(super) since: Instant,
}

impl Drop for FrozenNode<'_> {
    fn drop(&mut self) {
        if self.data.state() == State::Frozen {
            self.data.set_state(State::Live);
        }
    }
}

/// Lays out the node of a plan, or a larger one, so that the node is not full again at once; `None` if no data node
/// suffices.
fn image_with_spare_stash(mut plan: DataPlan, contents: &NodeContents<'_>) -> Option<NodeImage> {
    loop {
        let image = NodeImage::new(&plan, contents.records, contents.limits.format);
        if image.has_spare_stash() {
            return Some(image);
        }
        plan = contents.limits.plan_larger_node(&plan, contents.keys)?;
    }
}

/// The stores of a sideways split, and its intermediate nodes.
#[derive(Default)]
struct SplitStores {
    /// Slots of the parent and the links to store there, in the order of the stores, after the first store has made all
    /// children reachable.
    stores: Vec<(usize, Link)>,
    /// Offsets of the heads of the intermediate nodes, in which their slots lie.
    intermediates: Vec<Offset>,
}

/// The error for a slot whose child group has no link, which only damage of the pool can cause (apex I1).
fn no_child(step: &Step<'_>) -> Error {
    let (head, slot) = (step.inner.head, step.slot);
    Error::Damaged(format!("inner node {head:#x} has no child for slot {slot}"))
}

/// The error for a key that leads to a data node in whose range it is not (apex I2).
fn beyond_its_node(key: u64, data: &DataNode) -> Error {
    let (at, low, high) = (data.offset(), data.low, data.high);
    Error::Damaged(format!(
        "the key {key:#x} leads to the data node at {at:#x}, which is for the keys from {low:#x} to {high:#x}"
    ))
}

/// What a structure change has made of a data node.
#[derive(PartialEq, Eq)]
pub(super) enum Outcome {
    /// One data node in its place.
    Replaced,
    /// Several data nodes.
    Split,
    /// Nothing: another change has replaced the parent meanwhile, so the caller has to find the path again.
    ParentReplaced,
}

impl Tree {
    /// The path to `key`, after mirroring the nodes without a mirror. The caller is pinned.
    ///
    /// The key is in the range of the data node, so that whoever goes on behind that range comes to an end.
    pub(super) fn path_to(&self, key: u64) -> Result<Path<'_>> {
        loop {
            let mut steps = Vec::with_capacity(4);
            let mut inner = self.root();
            let child = loop {
                let slot = inner.radix.slot_of(key);
                steps.push(Step { inner, slot });
                let child = inner.child(slot);
                if !child.is_inner() {
                    break child;
                }
                // SAFETY: the caller is pinned, so the node is not freed before it unpins (apex I5).
                inner = unsafe { &*child.as_inner() };
            };
            // SAFETY: the caller is pinned (apex I5); the pointer of a cold child is null.
            match unsafe { child.as_data().as_ref() } {
                Some(data) if (data.low..=data.high).contains(&key) => {
                    return Ok(Path { steps, data });
                }
                Some(data) => return Err(beyond_its_node(key, data)),
                None => self.mirror_toward(key)?,
            }
        }
    }

    /// Restructures the data node of `key` if its number of records calls for it: the node becomes larger or smaller,
    /// is split, or is merged. Returns `false` if there was nothing to do, or another thread was at it. The caller is
    /// pinned and holds no lock.
    #[cold]
    pub(super) fn restructure(&self, key: u64) -> Result<bool> {
        let data = self.data_of(key)?;
        let is_crowded = data.has_crowded_group(GROUP_RETRAIN_PERCENT);
        let is_fine = |records| {
            !data.is_over_upper_density(records) && !data.is_to_shrink(records) && !is_crowded
        };
        if data.has_stash_room()
            && !data.is_outside_built_range(key)
            && data.total().is_some_and(is_fine)
        {
            return Ok(false);
        }
        let Some(frozen) = self.freeze(data) else {
            Wait::default().step();
            return Ok(false);
        };
        let records = self.records_of(data)?;
        let mut keys = Buffer::empty();
        keys.extend(records.iter().map(|&(key, _)| key));
        let contents = NodeContents::new(self.limits, data, &records, &keys);
        // If the stash is full, the node has few records and still no slot for one of them: a smaller node might have
        // none either.
        if data.is_under_lower_density(records.len()) && data.has_stash_room() {
            let fill = self.limits.fill / SHRINK_FILL_DIVISOR;
            let done = self.shrink_or_merge(&frozen, &contents, fill);
            if let Err(Error::NoSpace(_)) = done {
                data.set_not_shrunk(records.len());
            }
            return done.map(|()| true);
        }
        let must_retrain = is_crowded
            || contents.trend != Trend::Mixed
                && data.has_crowded_group(TREND_GROUP_RETRAIN_PERCENT);
        if data.has_stash_room() && !data.is_over_upper_density(records.len()) && !must_retrain {
            data.set_reviewed(records.len());
            return Ok(false);
        }
        loop {
            let path = self.path_to(data.low)?;
            let group = self.child_group(&path)?;
            match self.grow_or_split(&path, group, &frozen, &contents)? {
                Outcome::ParentReplaced => continue,
                Outcome::Replaced => {}
                Outcome::Split => {
                    // The split itself is done; that there is no space for flatter inner nodes is no error of the
                    // write.
                    if let Err(error) = self.flatten(key) {
                        tracing::debug!(%error, key, "not flattened");
                    }
                }
            }
            return Ok(true);
        }
    }

    /// Freezes a live data node and waits until no writer writes to it any more (data I8); `None` if the node is not
    /// live.
    pub(super) fn freeze<'a>(&self, data: &'a DataNode) -> Option<FrozenNode<'a>> {
        if !data.freeze() {
            return None;
        }
        let frozen = FrozenNode {
            data,
            since: Instant::now(),
        };
        for group in 0..data.group_count() {
            if planted(Bug::FreezeWithoutDraining) {
                break;
            }
            // A writer that held this lock before may have seen the state `Live`; a writer that acquires it from here
            // on sees `Frozen`.
            drop(self.lock_of(data, group * GROUP_SLOTS).version.lock());
        }
        Some(frozen)
    }

    /// The child group of the data node that a path leads to, in its parent.
    pub(super) fn child_group<'a>(&self, path: &Path<'a>) -> Result<ChildGroup<'a>> {
        let step = &path.steps[path.steps.len() - 1];
        let slots = self.durable_slots(step.inner);
        let Some((first, _)) = group_of(slots, step.slot) else {
            return Err(no_child(step));
        };
        Ok(ChildGroup {
            parent: step.inner,
            first,
            log: group_log(slots, first),
        })
    }

    /// Locks the slots of the parent of a frozen data node, and returns the guard, unless the parent is dead, since another change has replaced it (I5).
    ///
    /// A frozen node stays the child of a parent that is not dead, and its child group is that of its range. If it is not, the pool has been damaged since
    /// the node was mirrored: an error, before anything is changed.
    pub(super) fn lock_child_group<'a>(
        &self,
        group: ChildGroup<'a>,
        data: &DataNode,
    ) -> Result<Option<MutexGuard<'a, ()>>> {
        let (parent, child) = (group.parent, Child::data(NonNull::from(data)));
        let guard = lock(&parent.changing);
        if parent.is_dead() {
            return Ok(None);
        }
        let is_whole =
            parent.child(group.first) == child && parent.has_group(group.first, group.log, child);
        if !is_whole {
            return Err(Error::Damaged(format!(
                "the slots of the data node at {:#x} lead to another one, or others lead to it, too",
                data.offset()
            )));
        }
        Ok(Some(guard))
    }

    /// Replaces or splits a data node that is too full, with whatever suits its records best.
    fn grow_or_split(
        &self,
        path: &Path<'_>,
        group: ChildGroup<'_>,
        frozen: &FrozenNode<'_>,
        contents: &NodeContents<'_>,
    ) -> Result<Outcome> {
        let data = frozen.data;
        let slots = self.durable_slots(group.parent);
        let range = (data.low, data.high);
        let trend = contents
            .limits
            .plan_for_trend(contents.keys, range, contents.trend);
        if let Some(image) = trend.and_then(|plan| image_with_spare_stash(plan, contents)) {
            return self.replace(group, frozen, image, contents.records);
        }
        let growth_at_edge =
            |needs_key_beyond| group.growth_at_edge(slots, contents, needs_key_beyond);
        if contents.exceeds_one_node() {
            if let Some(growth) = growth_at_edge(true) {
                return self.grow_parent(path, group, growth, frozen, contents);
            }
            if group.can_split_sideways(contents) {
                return self.divide(group, frozen, contents);
            }
        }
        let planned = || {
            let plan = contents
                .limits
                .plan_tree(contents.keys, range, contents.limits.fill, 1);
            match &plan {
                Plan::Data(node) => image_with_spare_stash(node.clone(), contents).ok_or(plan),
                Plan::Inner(_) => Err(plan),
            }
        };
        // No data node has room ahead of the trend, and a plan for the records behind would be in vain.
        let is_outgrown =
            contents.trend != Trend::Mixed && data.bytes >= contents.limits.max_data_bytes;
        let first_plan = match (!is_outgrown).then(planned) {
            Some(Ok(image)) => return self.replace(group, frozen, image, contents.records),
            plan => plan,
        };
        let growth = if let Some(growth) = growth_at_edge(true) {
            growth
        } else if group.can_split_sideways(contents) {
            return self.divide(group, frozen, contents);
        } else if group.can_refine_parent(slots, contents) {
            Growth::Finer
        } else {
            let plan = match first_plan.unwrap_or_else(planned) {
                Ok(image) => return self.replace(group, frozen, image, contents.records),
                Err(plan) => plan,
            };
            if let Some(growth) = growth_at_edge(false) {
                return self.grow_parent(path, group, growth, frozen, contents);
            }
            // One data node was planned, but would be full again at once: split the keys over two nodes.
            let two = || contents.limits.plan_two_nodes(contents.keys, range);
            let plan = match plan {
                Plan::Data(_) => two().unwrap_or(plan),
                inner => inner,
            };
            let plan = with_empty_margins(contents.limits, plan, range.0, range.1);
            return self.split_downwards(group, frozen, &plan, contents);
        };
        self.grow_parent(path, group, growth, frozen, contents)
    }

    /// Replaces a frozen data node by another one: expansion, retraining or contraction.
    pub(super) fn replace(
        &self,
        group: ChildGroup<'_>,
        frozen: &FrozenNode<'_>,
        image: NodeImage,
        records: &[Record],
    ) -> Result<Outcome> {
        let bytes = image.bytes;
        let mut unpublished = UnpublishedNodes::new(self);
        let (link, child) = unpublished.write_image(image, records)?;
        self.pm.fence();
        let Some(_slots) = self.lock_child_group(group, frozen.data)? else {
            return Ok(Outcome::ParentReplaced);
        };
        self.pm.note(
            "data node replaced",
            bytes.cmp(&frozen.data.bytes) as i8 as u64 & 3,
        );
        if planted(Bug::FreeBeforeCommit) {
            self.blocks
                .free_now(frozen.data.offset(), frozen.data.bytes);
        }
        self.relink(group, link, child);
        self.retire_data(frozen.data);
        unpublished.open_for_writers();
        self.changes.expansions.add(frozen.since);
        Ok(Outcome::Replaced)
    }

    /// Points a child group to another child, durably and then in the mirror. The slots of the parent are locked.
    pub(super) fn relink(&self, group: ChildGroup<'_>, link: Link, child: Child) {
        let slot = &self.durable_slots(group.parent)[group.first];
        if planted(Bug::SwitchBeforeCommit) && !child.is_inner() {
            group.parent.set(group.first, group.log, child);
            // SAFETY: the caller built the node and has not freed it.
            unsafe { &*child.as_data() }.set_state(State::Live);
        }
        // COMMIT apex.replace: the slot of the parent. Before this store, recovery sees the old child, and sweeps
        // the new nodes, which are unreachable; after it, recovery sees the new nodes and sweeps the old one.
        self.pm.commit(slot, link.0, "apex.replace");
        group.parent.set(group.first, group.log, child);
    }

    /// Replaces a frozen data node by an inner node with several data nodes below.
    fn split_downwards(
        &self,
        group: ChildGroup<'_>,
        frozen: &FrozenNode<'_>,
        plan: &Plan,
        contents: &NodeContents<'_>,
    ) -> Result<Outcome> {
        let (data, depth) = (frozen.data, group.parent.depth + 1);
        let mut unpublished = UnpublishedNodes::new(self);
        let (link, child) =
            unpublished.build_subtree(plan, contents.records, (data.low, data.high), depth)?;
        self.pm.fence();
        let Some(_slots) = self.lock_child_group(group, data)? else {
            return Ok(Outcome::ParentReplaced);
        };
        self.pm.note("split downwards", 0);
        self.relink(group, link, child);
        self.retire_data(data);
        unpublished.open_for_writers();
        self.changes.downward_splits.add(frozen.since);
        Ok(Outcome::Split)
    }

    /// Splits a frozen data node between slots of its parent: a sideways split.
    fn divide(
        &self,
        group: ChildGroup<'_>,
        frozen: &FrozenNode<'_>,
        contents: &NodeContents<'_>,
    ) -> Result<Outcome> {
        let data = frozen.data;
        let mut unpublished = UnpublishedNodes::new(self);
        let parts = group.split_parts(contents);
        let built = parts
            .iter()
            .map(|part| self.build_part(&mut unpublished, part, contents, group.parent))
            .collect::<Result<Vec<_>>>()?;
        let mut split = SplitStores::default();
        let intermediate = self.build_intermediate(&mut unpublished, group, &built, &mut split)?;
        self.pm.fence();
        let Some(_slots) = self.lock_child_group(group, data)? else {
            return Ok(Outcome::ParentReplaced);
        };
        let kind = u64::from(built.len() > 2) | u64::from(group.spans_cache_lines()) << 1;
        self.pm.note("split sideways", kind);
        let slots = self.durable_slots(group.parent);
        if planted(Bug::SplitLeftFirst) {
            self.pm
                .commit(&slots[group.first], built[0].link.0, "apex.split.left");
        }
        // COMMIT apex.split.between: the link to the intermediate node, through which all children are reachable.
        // Before this store, recovery sees the old node and sweeps the new ones; after it, recovery sees the new data
        // nodes, one level or more too deep, and sweeps the old node.
        self.pm
            .commit(&slots[group.first], intermediate.0, "apex.split.between");
        for &(slot, link) in &split.stores {
            // COMMIT apex.split.part: the link to one half of an intermediate node: first to the right half, then
            // to the left one. Before this store, keys of that half are routed by way of the intermediate node; after
            // it, directly. The link to the left half takes the slot of the intermediate node, which recovery then
            // sweeps; the right half has been given its own slot before.
            self.pm.commit(&slots[slot], link.0, "apex.split.part");
        }
        for child in &built {
            group.parent.set(child.first, child.log, child.child);
        }
        for head in split.intermediates {
            self.blocks.retire(head, SMALLEST_BLOCK);
        }
        self.retire_data(data);
        unpublished.open_for_writers();
        self.changes.sideways_splits.add(frozen.since);
        Ok(Outcome::Split)
    }

    /// Builds the intermediate nodes for the children of a child group, and returns the link through which all of them
    /// are reachable: to the only child, or to an intermediate node with two halves, each a child or in turn an
    /// intermediate node. So every state on the way to the children's own slots has aligned child groups (I4).
    fn build_intermediate(
        &self,
        unpublished: &mut UnpublishedNodes<'_>,
        group: ChildGroup<'_>,
        built: &[BuiltChild],
        split: &mut SplitStores,
    ) -> Result<Link> {
        if let [only] = built {
            return Ok(only.link);
        }
        let (log, radix) = (group.log - 1, intermediate_radix(group));
        let middle = group.first + (1 << log);
        let right = ChildGroup {
            first: middle,
            log,
            ..group
        };
        let (built_left, built_right) =
            built.split_at(built.partition_point(|child| child.first < middle));
        let mut further = SplitStores::default();
        let left = self.build_intermediate(
            unpublished,
            ChildGroup { log, ..group },
            built_left,
            &mut further,
        )?;
        let right = self.build_intermediate(unpublished, right, built_right, &mut further)?;
        let (head, _) =
            unpublished.write_inner_node(radix, [left, right].into_iter().enumerate())?;
        split.stores.extend([(middle, right), (group.first, left)]);
        split.stores.append(&mut further.stores);
        split.intermediates.push(head);
        split.intermediates.append(&mut further.intermediates);
        Ok(Link::inner(head))
    }

    /// Builds one part of a data node that is split.
    fn build_part(
        &self,
        unpublished: &mut UnpublishedNodes<'_>,
        part: &SplitPart,
        contents: &NodeContents<'_>,
        parent: &InnerNode,
    ) -> Result<BuiltChild> {
        let records = &contents.records[part.from..part.to];
        let (low, high) = part.range;
        let (link, child) = match &part.plan {
            Plan::Data(plan) => unpublished.build_data_node(plan, records)?,
            inner => unpublished.build_subtree(inner, records, (low, high), parent.depth + 1)?,
        };
        Ok(BuiltChild {
            first: part.first,
            log: part.log,
            link,
            child,
        })
    }

    /// Replaces the parent of a frozen data node by an inner node of twice as many slots, in which the data node is
    /// replaced by two.
    fn grow_parent(
        &self,
        path: &Path<'_>,
        group: ChildGroup<'_>,
        growth: Growth,
        frozen: &FrozenNode<'_>,
        contents: &NodeContents<'_>,
    ) -> Result<Outcome> {
        let (data, parent) = (frozen.data, group.parent);
        let old = parent.radix;
        let radix = growth.radix(old);
        let mut unpublished = UnpublishedNodes::new(self);
        let mut built = Vec::new();
        for part in group.split_for_growth(growth, contents) {
            built.push(self.build_part(&mut unpublished, &part, contents, parent)?);
        }
        let upper = &path.steps[..path.steps.len() - 1];
        let _above = match upper.last() {
            Some(step) => lock(&step.inner.changing),
            None => lock(&self.changing_root),
        };
        let Some(_slots) = self.lock_child_group(group, data)? else {
            return Ok(Outcome::ParentReplaced);
        };
        if !self.is_child(upper.last(), parent) {
            return Ok(Outcome::ParentReplaced);
        }
        let _slots = (!planted(Bug::CopyWithoutLock)).then_some(_slots);
        let durable = self.durable_slots(parent);
        let kept = durable
            .iter()
            .enumerate()
            .filter(|&(slot, link)| slot != group.first && is_link(link.load()))
            .map(|(slot, link)| (growth.new_slots_of(old, slot).0, Link(link.load())));
        let new = built.iter().map(|child| (child.first, child.link));
        let blocks = unpublished.write_inner_node(radix, kept.chain(new))?;
        let range = (parent.low, parent.high);
        let inner = unpublished.add_inner_mirror(radix, blocks, range, parent.depth);
        for (new, old) in [
            (&inner.nodes_at_replan, &parent.nodes_at_replan),
            (&inner.splits_since_replan, &parent.splits_since_replan),
        ] {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for slot in 0..old.slots() {
            let (first, log) = growth.new_slots_of(old, slot);
            inner.set(first, log, parent.child(slot));
        }
        for child in &built {
            inner.set(child.first, child.log, child.child);
        }
        self.pm.fence();
        self.pm.note("inner node grown", growth as u64);
        self.relink_inner(
            upper.last(),
            Link::inner(blocks.0),
            Child::inner(NonNull::from(inner)),
        )?;
        self.retire_inner(parent);
        self.retire_data(data);
        unpublished.open_for_writers();
        self.changes.inner_expansions.add(frozen.since);
        Ok(Outcome::Split)
    }
}
