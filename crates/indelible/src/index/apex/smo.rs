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
use super::build::{Aside, Built, Image, Record, block_for};
use super::data::{Data, HEAP, PILE, State};
use super::divide::{Group, Growth, Load, Part, radix_between};
use super::format::is_link;
use super::inner::{Child, Inner, group_log, group_of};
use super::layout::{GROUP, INLINE_SLOTS, Link, Radix, SMALLEST_BLOCK};
use super::merge::THINNER;
use super::plan::{DataPlan, MAX_LOG_SLOTS, Plan, Trend, with_room_around};
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
    pub(super) data: &'a Data,
}

pub(super) struct Step<'a> {
    pub(super) inner: &'a Inner,
    pub(super) slot: usize,
}

/// A node that is frozen, and live again if nothing comes of it.
pub(super) struct Frozen<'a> {
    pub(super) data: &'a Data,
    /// When that began.
    pub(super) since: Instant,
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if self.data.state() == State::Frozen {
            self.data.become_(State::Live);
        }
    }
}

/// The node of a plan, or a larger one, that is not full again at once.
fn roomy(mut plan: DataPlan, load: &Load<'_>) -> Option<Image> {
    loop {
        let image = Image::new(&plan, load.records, load.shape.format);
        if image.has_room() {
            return Some(image);
        }
        plan = load.shape.larger(&plan, load.keys)?;
    }
}

/// Nodes between, and how to get rid of them.
#[derive(Default)]
struct Halves {
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
    Moved,
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
                None => self.warm(key)?,
            }
        }
    }

    /// Makes the node of `key` fit for what is in it: larger, smaller, or several. `false` if somebody else was at it.
    /// The caller is pinned and holds no lock.
    #[cold]
    pub(super) fn restructure(&self, key: u64) -> Result<bool> {
        let data = self.data_of(key)?;
        let is_heap = data.has_pile(HEAP);
        let is_fine = |records| !data.is_crowded(records) && !data.is_sparse(records) && !is_heap;
        if data.has_stash_room() && !data.is_beyond(key) && data.total().is_some_and(is_fine) {
            return Ok(false);
        }
        let Some(frozen) = self.freeze(data) else {
            Wait::default().step();
            return Ok(false);
        };
        let records = self.records_of(data);
        let mut keys = Buffer::empty();
        keys.extend(records.iter().map(|&(key, _)| key));
        let load = Load::new(self.shape, data, &records, &keys);
        // One whose stash is full has few records and a record that finds no place: a smaller node might have none either.
        if data.is_sparse(records.len()) && data.has_stash_room() {
            self.thin_out(&frozen, &load, self.shape.fill / THINNER)?;
            return Ok(true);
        }
        let is_pile = is_heap || load.trend != Trend::No && data.has_pile(PILE);
        if data.has_stash_room() && !data.is_crowded(records.len()) && !is_pile {
            data.leave_at(records.len());
            return Ok(false);
        }
        loop {
            let path = self.path_to(data.low)?;
            let group = self.group(&path);
            match self.make_room(&path, group, &frozen, &load)? {
                Outcome::Moved => continue,
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
    pub(super) fn freeze<'a>(&self, data: &'a Data) -> Option<Frozen<'a>> {
        if !data.freeze() {
            return None;
        }
        let frozen = Frozen {
            data,
            since: Instant::now(),
        };
        for group in 0..data.group_count() {
            if planted(Bug::FreezeWithoutDraining) {
                break;
            }
            // Who held it before may not have seen that the node is frozen; who takes it from here on does.
            drop(self.locks.of(data.lock_of(group * GROUP)).lock());
        }
        Some(frozen)
    }

    pub(super) fn group<'a>(&self, path: &Path<'a>) -> Group<'a> {
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
    pub(super) fn lock_group<'a>(
        &self,
        group: Group<'a>,
        data: &Data,
    ) -> Option<MutexGuard<'a, ()>> {
        let guard = lock(&group.parent.changing);
        let child = group.parent.child(group.first);
        (!group.parent.is_dead() && child.as_data().cast_const() == std::ptr::from_ref(data))
            .then_some(guard)
    }

    /// Gives a node that is full another shape.
    fn make_room(
        &self,
        path: &Path<'_>,
        group: Group<'_>,
        frozen: &Frozen<'_>,
        load: &Load<'_>,
    ) -> Result<Outcome> {
        let data = frozen.data;
        let slots = self.durable_slots(group.parent);
        let range = (data.low, data.high);
        let trend = load.shape.trend(load.keys, range, load.trend);
        if let Some(image) = trend.and_then(|plan| roomy(plan, load)) {
            return self.replace(group, frozen, image, load.records);
        }
        let at_the_edge = |enough| group.growth_at_the_edge(slots, load, enough);
        if load.is_too_much() {
            if let Some(growth) = at_the_edge(true) {
                return self.grow_parent(path, group, growth, frozen, load);
            }
            if group.can_divide(load) {
                return self.divide(group, frozen, load);
            }
        }
        let planned = || {
            let plan = load.shape.plan(load.keys, range, load.shape.fill, 1);
            match &plan {
                Plan::Data(node) => roomy(node.clone(), load).ok_or(plan),
                Plan::Inner(_) => Err(plan),
            }
        };
        // There is no room ahead for a trend, and records behind would be laid out in vain.
        let is_outgrown = load.trend != Trend::No && data.bytes >= load.shape.max_data_bytes;
        let first_plan = match (!is_outgrown).then(planned) {
            Some(Ok(image)) => return self.replace(group, frozen, image, load.records),
            plan => plan,
        };
        let growth = if let Some(growth) = at_the_edge(true) {
            growth
        } else if group.can_divide(load) {
            return self.divide(group, frozen, load);
        } else if group.can_be_finer(slots, load) {
            Growth::Finer
        } else {
            let plan = match first_plan.unwrap_or_else(planned) {
                Ok(image) => return self.replace(group, frozen, image, load.records),
                Err(plan) => plan,
            };
            if let Some(growth) = at_the_edge(false) {
                return self.grow_parent(path, group, growth, frozen, load);
            }
            // A plan for a data node that would be full again at once is none.
            let two = || load.shape.two(load.keys, range);
            let plan = match plan {
                Plan::Data(_) => two().unwrap_or(plan),
                inner => inner,
            };
            let plan = with_room_around(load.shape, plan, range.0, range.1);
            return self.split_downwards(group, frozen, &plan, load);
        };
        self.grow_parent(path, group, growth, frozen, load)
    }

    /// Puts another data node in the place of a frozen one: expansion, retraining or contraction.
    pub(super) fn replace(
        &self,
        group: Group<'_>,
        frozen: &Frozen<'_>,
        image: Image,
        records: &[Record],
    ) -> Result<Outcome> {
        let bytes = image.bytes;
        let mut aside = Aside::new(self);
        let (link, child) = aside.image(image, records)?;
        self.pm.fence();
        let Some(_slots) = self.lock_group(group, frozen.data) else {
            return Ok(Outcome::Moved);
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
        aside.open();
        self.changes.expansions.add(frozen.since);
        Ok(Outcome::Replaced)
    }

    /// Points a group to another child, durably and then for readers. Its slots are locked.
    pub(super) fn relink(&self, group: Group<'_>, link: Link, child: Child) {
        let slot = &self.durable_slots(group.parent)[group.first];
        if planted(Bug::SwitchBeforeCommit) && !child.is_inner() {
            group.parent.set(group.first, group.log, child);
            // SAFETY: the caller has it.
            unsafe { &*child.as_data() }.become_(State::Live);
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
        frozen: &Frozen<'_>,
        plan: &Plan,
        load: &Load<'_>,
    ) -> Result<Outcome> {
        let (data, depth) = (frozen.data, group.parent.depth + 1);
        let mut aside = Aside::new(self);
        let (link, child) = aside.plant(plan, load.records, (data.low, data.high), depth)?;
        self.pm.fence();
        let Some(_slots) = self.lock_group(group, data) else {
            return Ok(Outcome::Moved);
        };
        self.pm.note("split downwards", 0);
        self.relink(group, link, child);
        self.retire_data(data);
        aside.open();
        self.changes.downward_splits.add(frozen.since);
        Ok(Outcome::Split)
    }

    /// Splits a frozen node between slots of its parent.
    fn divide(&self, group: Group<'_>, frozen: &Frozen<'_>, load: &Load<'_>) -> Result<Outcome> {
        let data = frozen.data;
        let mut aside = Aside::new(self);
        let parts = group.divide(load);
        let built = parts
            .iter()
            .map(|part| self.build_part(&mut aside, part, load, group.parent))
            .collect::<Result<Vec<_>>>()?;
        let mut halves = Halves::default();
        let between = self.build_between(&mut aside, group, &built, &mut halves)?;
        self.pm.fence();
        let Some(_slots) = self.lock_group(group, data) else {
            return Ok(Outcome::Moved);
        };
        let shape = u64::from(built.len() > 2) | u64::from(group.has_lines()) << 1;
        self.pm.note("split sideways", shape);
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
        aside.open();
        self.changes.sideways_splits.add(frozen.since);
        Ok(Outcome::Split)
    }

    /// The way to all children of a group: to the only one, or to a node between that has two halves, each a child or again
    /// a node between. So every state on the way to the children's own slots has groups of slots as they should be.
    fn build_between(
        &self,
        aside: &mut Aside<'_>,
        group: Group<'_>,
        built: &[Built],
        halves: &mut Halves,
    ) -> Result<Link> {
        if let [only] = built {
            return Ok(only.link);
        }
        let (log, radix) = (group.log - 1, radix_between(group));
        let middle = group.first + (1 << log);
        let right = Group {
            first: middle,
            log,
            ..group
        };
        let (built_left, built_right) =
            built.split_at(built.partition_point(|child| child.first < middle));
        let mut further = Halves::default();
        let left = self.build_between(aside, Group { log, ..group }, built_left, &mut further)?;
        let right = self.build_between(aside, right, built_right, &mut further)?;
        let (head, _) = aside.inner_blocks(radix, [left, right].into_iter().enumerate())?;
        halves.stores.extend([(middle, right), (group.first, left)]);
        halves.stores.append(&mut further.stores);
        halves.between.push((Link::inner(head), radix));
        halves.between.append(&mut further.between);
        Ok(Link::inner(head))
    }

    fn build_part(
        &self,
        aside: &mut Aside<'_>,
        part: &Part,
        load: &Load<'_>,
        parent: &Inner,
    ) -> Result<Built> {
        let records = &load.records[part.from..part.to];
        let (low, high) = part.range;
        let (link, child) = match &part.plan {
            Plan::Data(plan) => aside.data(plan, records)?,
            inner => aside.plant(inner, records, (low, high), parent.depth + 1)?,
        };
        Ok(Built {
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
        frozen: &Frozen<'_>,
        load: &Load<'_>,
    ) -> Result<Outcome> {
        let (data, parent) = (frozen.data, group.parent);
        let old = parent.radix;
        let radix = growth.radix(old);
        let mut aside = Aside::new(self);
        let mut built = Vec::new();
        for part in group.split_at(growth, load) {
            built.push(self.build_part(&mut aside, &part, load, parent)?);
        }
        let upper = &path.steps[..path.steps.len() - 1];
        let _above = match upper.last() {
            Some(step) => lock(&step.inner.changing),
            None => lock(&self.changing_root),
        };
        let Some(_slots) = self.lock_group(group, data) else {
            return Ok(Outcome::Moved);
        };
        if !self.is_child(upper.last(), parent) {
            return Ok(Outcome::Moved);
        }
        let _slots = (!planted(Bug::CopyWithoutLock)).then_some(_slots);
        let durable = self.durable_slots(parent);
        let kept = durable
            .iter()
            .enumerate()
            .filter(|&(slot, link)| slot != group.first && is_link(link.load()))
            .map(|(slot, link)| (growth.place(old, slot).0, Link(link.load())));
        let new = built.iter().map(|child| (child.first, child.link));
        let blocks = aside.inner_blocks(radix, kept.chain(new))?;
        let range = (parent.low, parent.high);
        let inner = aside.mirror(radix, blocks, range, parent.depth);
        for (new, old) in [
            (&inner.nodes, &parent.nodes),
            (&inner.splits, &parent.splits),
        ] {
            new.store(old.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for slot in 0..old.slots() {
            let (first, log) = growth.place(old, slot);
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
        aside.open();
        self.changes.inner_expansions.add(frozen.since);
        Ok(Outcome::Split)
    }

    /// Whether `inner` is what the step leads to, or the root if there is none. Its slots above are locked.
    pub(super) fn is_child(&self, above: Option<&Step<'_>>, inner: &Inner) -> bool {
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
    pub(super) fn retire_data(&self, data: &Data) {
        for block in data.extensions() {
            self.blocks.retire(block, SMALLEST_BLOCK);
        }
        if !planted(Bug::FreeBeforeCommit) {
            self.blocks.retire(data.offset(), data.bytes);
        }
        data.become_(State::Dead);
        self.bury_data(data);
    }

    /// An inner node has been replaced. Its slots are locked.
    pub(super) fn retire_inner(&self, inner: &Inner) {
        inner.die();
        self.retire_inner_blocks(inner.head, inner.radix);
        self.bury(Child::inner(NonNull::from(inner)));
    }

    pub(super) fn retire_inner_blocks(&self, head: u64, radix: Radix) {
        let slots = self.inner_head(head).read(MAX_LOG_SLOTS);
        if let (Some((_, slots)), true) = (slots, radix.slots() > INLINE_SLOTS) {
            self.blocks.retire(slots, block_for(radix.slots()));
        }
        self.blocks.retire(head, SMALLEST_BLOCK);
    }
}
