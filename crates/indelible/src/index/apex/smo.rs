//! Structure changes.
//!
//! A data node that has to change is *frozen*: writers wait, readers go on. Its records are laid out in new nodes, aside; one
//! store of a link commits them; then the mirrors are switched, and at last the new nodes are opened for writers. Nobody
//! can have seen a change in a new node, therefore, who would then read the old one.
//!
//! Where a change moves a boundary between two slots of the same inner node it takes three such stores, through a small inner
//! node *between* that has both children:
//!
//! ```text
//! split sideways    | D | ^ |    | B | ^ |    | B | R |    | L | R |        ^: see the slot to the left
//!                                 B{L,R}       B{L,R}
//! merge             | L | R |    | B | R |    | B | ^ |    | M | ^ |
//!                                 B{L,R}       B{L,R}
//! ```
//!
//! A node that becomes more than two is split in halves, and these in turn, with a node between for each.
//!
//! In every one of these states each key has one way to one node, and each child an aligned group of slots. So recovery has nothing to undo or redo, and nothing knows,
//! or needs to know, that a change was cut short: at worst the node between stays, one level that was not asked for.
//!
//! The locks: a node is frozen before an inner node's `changing` is taken, and of two inner nodes the upper one is first.

use super::Tree;
use super::build::{BuiltChild, NodeImage, Record, UnpublishedNodes, block_for};
use super::data::{DataNode, GROUP_RETRAIN_PERCENT, State, TREND_GROUP_RETRAIN_PERCENT};
use super::divide::{Group, Growth, NodeContents, SplitPart, intermediate_radix};
use super::inner::{Child, InnerNode, group_log, group_of};
use super::layout::{GROUP_SLOTS, INLINE_SLOTS, Link, Radix, SMALLEST_BLOCK};
use super::plan::{DataPlan, MAX_LOG_SLOTS, Plan, Trend, with_empty_margins};
use super::records::Buffer;
use crate::Result;
use crate::locks::Wait;
use crate::planted::{Bug, planted};
use crate::sync::lock;
use std::ptr::NonNull;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Where a key is routed.
pub(super) struct Path<'a> {
    /// The inner nodes from the root on, each with the slot that is taken.
    pub(super) steps: Vec<Step<'a>>,
    pub(super) data: &'a DataNode,
}

pub(super) struct Step<'a> {
    pub(super) inner: &'a InnerNode,
    pub(super) slot: usize,
}

/// A node that is frozen, and live again if nothing comes of it.
pub(super) struct FrozenNode<'a> {
    pub(super) data: &'a DataNode,
    /// When that began.
    pub(super) since: Instant,
}

impl Drop for FrozenNode<'_> {
    fn drop(&mut self) {
        if self.data.state() == State::Frozen {
            self.data.set_state(State::Live);
        }
    }
}

/// The node of a plan, or a larger one, that is not full again at once.
fn image_with_spare_stash(mut plan: DataPlan, contents: &NodeContents<'_>) -> Option<NodeImage> {
    loop {
        let image = NodeImage::new(&plan, contents.records);
        if image.has_spare_stash() {
            return Some(image);
        }
        plan = contents.limits.plan_larger_node(&plan, contents.keys)?;
    }
}

/// Nodes between, and how to get rid of them.
#[derive(Default)]
struct SplitStores {
    /// Slots of the parent, and what is stored there, in this order.
    stores: Vec<(usize, Link)>,
    between: Vec<(Link, Radix)>,
}

/// What has become of a node.
#[derive(PartialEq, Eq)]
pub(super) enum Outcome {
    /// Another one.
    Replaced,
    /// Several.
    Split,
    /// Nothing: the parent has been replaced meanwhile, and one has to look again.
    ParentReplaced,
}

impl Tree {
    /// The way to `key`. The caller is pinned.
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
                // SAFETY: reached while pinned.
                inner = unsafe { &*child.as_inner() };
            };
            // SAFETY: as above; null if it is cold.
            match unsafe { child.as_data().as_ref() } {
                Some(data) => return Ok(Path { steps, data }),
                None => self.mirror_toward(key)?,
            }
        }
    }

    /// Makes the node of `key` fit for what is in it: larger, smaller, or several. `false` if somebody else was at it.
    /// The caller is pinned and holds no lock.
    #[cold]
    pub(super) fn restructure(&self, key: u64) -> Result<bool> {
        let data = self.data_of(key)?;
        let is_heap = data.has_crowded_group(GROUP_RETRAIN_PERCENT);
        let is_fine = |records| {
            !data.is_over_upper_density(records)
                && !data.is_under_lower_density(records)
                && !is_heap
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
        // One whose stash is full has few records and a record that finds no place: a smaller node might have none either.
        if data.is_under_lower_density(records.len()) && data.has_stash_room() {
            self.shrink_or_merge(&frozen, &contents)?;
            return Ok(true);
        }
        let is_group_crowded = is_heap
            || contents.trend != Trend::Mixed
                && data.has_crowded_group(TREND_GROUP_RETRAIN_PERCENT);
        if data.has_stash_room() && !data.is_over_upper_density(records.len()) && !is_group_crowded
        {
            data.set_reviewed(records.len());
            return Ok(false);
        }
        loop {
            let path = self.path_to(data.low)?;
            let group = self.child_group(&path);
            match self.grow_or_split(&path, group, &frozen, &contents)? {
                Outcome::ParentReplaced => continue,
                Outcome::Replaced => {}
                Outcome::Split => {
                    // The change is made; that there is no space to make the tree flatter is no reason to fail.
                    if let Err(error) = self.flatten(key) {
                        tracing::debug!(%error, key, "not flattened");
                    }
                }
            }
            return Ok(true);
        }
    }

    /// Freezes a node and waits until nobody writes it any more.
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
            // Who held it before may not have seen that the node is frozen; who takes it from here on does.
            drop(self.locks.of(data.lock_of(group * GROUP_SLOTS)).lock());
        }
        Some(frozen)
    }

    pub(super) fn child_group<'a>(&self, path: &Path<'a>) -> Group<'a> {
        let step = &path.steps[path.steps.len() - 1];
        let slots = self.durable_slots(step.inner);
        let first = group_of(slots, step.slot).map_or(step.slot, |(first, _)| first);
        Group {
            parent: step.inner,
            first,
            log: group_log(slots, first),
        }
    }

    /// Locks the slots of a parent, if the node is still its child.
    pub(super) fn lock_child_group<'a>(
        &self,
        group: Group<'a>,
        data: &DataNode,
    ) -> Option<MutexGuard<'a, ()>> {
        let guard = lock(&group.parent.changing);
        let child = group.parent.child(group.first);
        (!group.parent.is_dead() && child.as_data().cast_const() == std::ptr::from_ref(data))
            .then_some(guard)
    }

    /// Gives a node that is full another shape.
    fn grow_or_split(
        &self,
        path: &Path<'_>,
        group: Group<'_>,
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
        let growth_at_edge = |enough| group.growth_at_edge(slots, contents, enough);
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
        // There is no room ahead for a trend, and records behind would be laid out in vain.
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
            // A plan for a data node that would be full again at once is none.
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

    /// Puts another data node in the place of a frozen one: expansion, retraining or contraction.
    pub(super) fn replace(
        &self,
        group: Group<'_>,
        frozen: &FrozenNode<'_>,
        image: NodeImage,
        records: &[Record],
    ) -> Result<Outcome> {
        let bytes = image.bytes;
        let mut unpublished = UnpublishedNodes::new(self);
        let (link, child) = unpublished.write_image(image, records)?;
        self.pm.fence();
        let Some(_slots) = self.lock_child_group(group, frozen.data) else {
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

    /// Points a group to another child, durably and then for readers. Its slots are locked.
    fn relink(&self, group: Group<'_>, link: Link, child: Child) {
        let slot = &self.durable_slots(group.parent)[group.first];
        if planted(Bug::SwitchBeforeCommit) && !child.is_inner() {
            group.parent.set(group.first, group.log, child);
            // SAFETY: the caller has it.
            unsafe { &*child.as_data() }.set_state(State::Live);
        }
        // COMMIT: the slot of the parent. Before this store the old node counts and the new ones are not reachable, and
        // swept; after it the new ones count, and the old one is swept.
        self.pm.commit(slot, link.0);
        group.parent.set(group.first, group.log, child);
    }

    /// Puts a tree of several nodes in the place of a frozen one.
    fn split_downwards(
        &self,
        group: Group<'_>,
        frozen: &FrozenNode<'_>,
        plan: &Plan,
        contents: &NodeContents<'_>,
    ) -> Result<Outcome> {
        let (data, depth) = (frozen.data, group.parent.depth + 1);
        let mut unpublished = UnpublishedNodes::new(self);
        let (link, child) =
            unpublished.build_subtree(plan, contents.records, (data.low, data.high), depth)?;
        self.pm.fence();
        let Some(_slots) = self.lock_child_group(group, data) else {
            return Ok(Outcome::ParentReplaced);
        };
        self.pm.note("split downwards", 0);
        self.relink(group, link, child);
        self.retire_data(data);
        unpublished.open_for_writers();
        self.changes.downward_splits.add(frozen.since);
        Ok(Outcome::Split)
    }

    /// Splits a frozen node between slots of its parent.
    fn divide(
        &self,
        group: Group<'_>,
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
        let mut halves = SplitStores::default();
        let between = self.build_intermediate(&mut unpublished, group, &built, &mut halves)?;
        self.pm.fence();
        let Some(_slots) = self.lock_child_group(group, data) else {
            return Ok(Outcome::ParentReplaced);
        };
        let kind = u64::from(built.len() > 2) | u64::from(group.spans_cache_lines()) << 1;
        self.pm.note("split sideways", kind);
        let slots = self.durable_slots(group.parent);
        if planted(Bug::SplitLeftFirst) {
            self.pm.commit(&slots[group.first], built[0].link.0);
        }
        // COMMIT: the node between, which has all children. Before this store the old node counts, and the new ones are
        // swept; after it the children count, deeper than they should be.
        self.pm.commit(&slots[group.first], between.0);
        for &(slot, link) in &halves.stores {
            // COMMIT: one half of what is below a node between, first the right one, which gets a slot of its own: its keys
            // come to it before this store by way of that node, after it at once. Then the left one: before this store
            // only its own keys come by way of the node between, after it none do, and that node is swept.
            self.pm.commit(&slots[slot], link.0);
        }
        for child in &built {
            group.parent.set(child.first, child.log, child.child);
        }
        for (link, radix) in halves.between {
            self.retire_inner_blocks(link.offset(), radix);
        }
        self.retire_data(data);
        unpublished.open_for_writers();
        self.changes.sideways_splits.add(frozen.since);
        Ok(Outcome::Split)
    }

    /// The way to all children of a group: to the only one, or to a node between that has two halves, each a child or again
    /// a node between. So every state on the way to the children's own slots has groups of slots as they should be.
    fn build_intermediate(
        &self,
        unpublished: &mut UnpublishedNodes<'_>,
        group: Group<'_>,
        built: &[BuiltChild],
        halves: &mut SplitStores,
    ) -> Result<Link> {
        if let [only] = built {
            return Ok(only.link);
        }
        let (log, radix) = (group.log - 1, intermediate_radix(group));
        let middle = group.first + (1 << log);
        let right = Group {
            first: middle,
            log,
            ..group
        };
        let (built_left, built_right) =
            built.split_at(built.partition_point(|child| child.first < middle));
        let mut further = SplitStores::default();
        let left = self.build_intermediate(
            unpublished,
            Group { log, ..group },
            built_left,
            &mut further,
        )?;
        let right = self.build_intermediate(unpublished, right, built_right, &mut further)?;
        let (head, _) =
            unpublished.write_inner_node(radix, [left, right].into_iter().enumerate())?;
        halves.stores.extend([(middle, right), (group.first, left)]);
        halves.stores.append(&mut further.stores);
        halves.between.push((Link::inner(head), radix));
        halves.between.append(&mut further.between);
        Ok(Link::inner(head))
    }

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

    /// Gives the parent of a frozen node twice as many slots, and splits the node there.
    fn grow_parent(
        &self,
        path: &Path<'_>,
        group: Group<'_>,
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
        let Some(_slots) = self.lock_child_group(group, data) else {
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
            .filter(|&(slot, link)| slot != group.first && link.load() != 0)
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
        );
        self.retire_inner(parent);
        self.retire_data(data);
        unpublished.open_for_writers();
        self.changes.inner_expansions.add(frozen.since);
        Ok(Outcome::Split)
    }

    /// Whether `inner` is what the step leads to, or the root if there is none. Its slots above are locked.
    pub(super) fn is_child(&self, above: Option<&Step<'_>>, inner: &InnerNode) -> bool {
        let now = match above {
            Some(step) if step.inner.is_dead() => return false,
            Some(step) => step.inner.child(step.slot).as_inner().cast_const(),
            None => self.root.load(Ordering::Acquire).cast_const(),
        };
        now == std::ptr::from_ref(inner)
    }

    /// Points the group of a step, or the root, to another node. Its slots are locked.
    pub(super) fn relink_inner(&self, above: Option<&Step<'_>>, link: Link, child: Child) {
        let Some(step) = above else {
            // COMMIT: the root, in the catalog. Before this store the old root counts, after it the new one; the other
            // is swept.
            self.pm.commit(self.root_cell(), link.0);
            self.root.store(child.as_inner(), Ordering::Release);
            return;
        };
        let slots = self.durable_slots(step.inner);
        if let Some((first, _)) = group_of(slots, step.slot) {
            let group = Group {
                parent: step.inner,
                first,
                log: group_log(slots, first),
            };
            self.relink(group, link, child);
        }
    }

    /// A data node has been replaced.
    pub(super) fn retire_data(&self, data: &DataNode) {
        for block in data.extensions() {
            self.blocks.retire(block, SMALLEST_BLOCK);
        }
        if !planted(Bug::FreeBeforeCommit) {
            self.blocks.retire(data.offset(), data.bytes);
        }
        data.set_state(State::Dead);
        self.retire_data_mirror(data);
    }

    /// An inner node has been replaced. Its slots are locked.
    pub(super) fn retire_inner(&self, inner: &InnerNode) {
        inner.set_dead();
        self.retire_inner_blocks(inner.head, inner.radix);
        self.retire_mirror(Child::inner(NonNull::from(inner)));
    }

    pub(super) fn retire_inner_blocks(&self, head: u64, radix: Radix) {
        let slots = self.inner_head(head).read(MAX_LOG_SLOTS);
        if let (Some((_, slots)), true) = (slots, radix.slots() > INLINE_SLOTS) {
            self.blocks.retire(slots, slots_block_bytes(radix.slots()));
        }
        self.blocks.retire(head, SMALLEST_BLOCK);
    }
}
