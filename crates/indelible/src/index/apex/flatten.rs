//! A structure change that keeps trees flat: inner nodes are laid out anew over the data nodes that there are.
//!
//! Data nodes are split one by one, and each split sees no further than its parent. So a tree that grows becomes deeper than
//! one that is planned as a whole. As all borders between data nodes are aligned to powers of two, other inner nodes can be
//! planned over them, and no record moves: the new inner nodes are written aside, and one store of a link above commits them.
//!
//! That is done whenever a quarter as many splits as there are nodes have been made beneath an inner node, so a split pays for
//! looking at four nodes.

use super::Tree;
use super::build::{Aside, Built};
use super::format::is_link;
use super::inner::{Child, Inner, group_log};
use super::layout::Link;
use super::plan::{InnerPlan, MIN_DATA_BYTES, Plan, Shape};
use super::smo::{Frozen, Step};
use crate::sync::lock;
use crate::{Error, Result, reclaim};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

/// One split in so many nodes beneath,
const SPLITS: usize = 4;
/// and at least so many splits, are worth another look at the inner nodes.
const LEAST_SPLITS: usize = 4;
/// Nodes that are looked at while no other structure change goes on among them, at most.
const MOST_NODES: usize = 1 << 18;
/// Levels on the way to a record that must be saved on average.
const GAIN: f64 = 0.1;

/// A node that stays as it is. One without keys, of no bytes, is replaced: what it covers may be divided at will, and so be
/// passed over.
struct Kept {
    /// The first key that is routed there.
    low: u64,
    /// The last one, where that may not change: the node's marker depends on it, and its mirror knows it.
    high: Option<u64>,
    link: Link,
    /// Its mirror, if it has one.
    child: Child,
    bytes: u64,
}

/// What lies beneath an inner node.
#[derive(Default)]
struct Beneath<'a> {
    /// The inner nodes that are to go, with that one, and the locks of their slots.
    inners: Vec<(&'a Inner, MutexGuard<'a, ()>)>,
    /// From left to right.
    kept: Vec<Kept>,
    /// Nodes without keys.
    voids: Vec<Frozen<'a>>,
    /// Bytes of all that is kept, and the same times the levels above each.
    bytes: u64,
    levels: u64,
}

impl Tree {
    /// After a split of the node of `key`: makes the way there shorter, if it is time for that.
    pub(super) fn flatten(&self, key: u64) -> Result<()> {
        let _guard = reclaim::pin();
        let path = self.path_to(key)?;
        let mut above = None;
        for step in &path.steps {
            let splits = step.inner.splits.fetch_add(1, Ordering::Relaxed) + 1;
            let nodes = step.inner.nodes.load(Ordering::Relaxed);
            if splits >= LEAST_SPLITS.max(nodes / SPLITS) {
                return self.lay_out_anew(above, step.inner);
            }
            above = Some(step);
        }
        Ok(())
    }

    /// Puts other inner nodes in the place of one and those beneath it, if records then have a shorter way.
    fn lay_out_anew(&self, above: Option<&Step<'_>>, inner: &Inner) -> Result<()> {
        let _above = match above {
            Some(step) => lock(&step.inner.changing),
            None => lock(&self.changing_root),
        };
        if !self.is_child(above, inner) {
            return Ok(());
        }
        let mut beneath = Beneath::default();
        let is_fine = self.look_beneath(inner, 1, &mut beneath);
        // Whatever comes of it, the next look is due only after as many splits again.
        inner.splits.store(0, Ordering::Relaxed);
        inner.nodes.store(beneath.kept.len(), Ordering::Relaxed);
        if !is_fine {
            return Ok(());
        }
        let Beneath {
            inners,
            kept,
            voids,
            bytes,
            levels,
        } = beneath;
        if bytes == 0 {
            return Ok(());
        }
        let kept = halve_voids(kept);
        let borders: Vec<u64> = kept[1..].iter().map(|node| node.low).collect();
        let sizes: Vec<u64> = kept.iter().map(|node| node.bytes).collect();
        let Some(plan) = self.shape.over(&borders, &sizes, (inner.low, inner.high)) else {
            return Ok(());
        };
        let saved = levels as f64 - levels_of(&plan, &kept, 1) as f64;
        if saved < GAIN * bytes as f64 {
            return Ok(());
        }
        let mut aside = Aside::new(self);
        let (link, child) = plant(
            self.shape,
            &mut aside,
            &plan,
            &kept,
            (inner.low, inner.high),
            inner.depth,
        )?;
        // SAFETY: it has just been made.
        unsafe { &*child.as_inner() }
            .nodes
            .store(kept.len(), Ordering::Relaxed);
        self.pm.fence();
        self.pm.note("inner nodes laid out anew", 0);
        self.relink_inner(above, link, child);
        for (inner, _slots) in &inners {
            self.retire_inner(inner);
        }
        for node in &voids {
            self.retire_data(node.data);
        }
        aside.open();
        Ok(())
    }

    /// Locks the slots of an inner node and of all beneath, and collects what is to be kept. Inner nodes that nobody has been
    /// to since the open are kept. `false` if there is too much, or something is wrong.
    fn look_beneath<'a>(&'a self, inner: &'a Inner, depth: u64, beneath: &mut Beneath<'a>) -> bool {
        beneath.inners.push((inner, lock(&inner.changing)));
        let slots = self.durable_slots(inner);
        let mut first = 0;
        while first < slots.len() {
            let link = Link(slots[first].load());
            let child = inner.child(first);
            let start = inner.radix.start_of(first);
            let is_routed =
                first == 0 || u128::from(inner.low) < start && start <= u128::from(inner.high);
            if !is_link(link.0) || !is_routed || beneath.kept.len() == MOST_NODES {
                return false;
            }
            if child.is_inner() {
                // SAFETY: reached while pinned.
                let is_fine = self.look_beneath(unsafe { &*child.as_inner() }, depth + 1, beneath);
                if !is_fine {
                    return false;
                }
            } else {
                let Some(bytes) = self.blocks.bytes_at(link.offset()) else {
                    return false;
                };
                let void = self.freeze_void(child);
                let bytes = if void.is_some() { 0 } else { bytes };
                beneath.bytes += bytes;
                beneath.levels += bytes * depth;
                let was_void = beneath.kept.last().is_some_and(|node| node.bytes == 0);
                if void.is_none() || !was_void {
                    let log = group_log(slots, first);
                    let (low, high) = inner.radix.range_of(first, log, inner.low, inner.high);
                    beneath.kept.push(Kept {
                        low,
                        high: (bytes > 0).then_some(high),
                        link,
                        child,
                        bytes,
                    });
                }
                beneath.voids.extend(void);
            }
            first += 1 << group_log(slots, first);
        }
        true
    }

    /// A node without keys, frozen, if this is one and it can be had at once.
    fn freeze_void(&self, child: Child) -> Option<Frozen<'_>> {
        // SAFETY: reached while pinned; null if it is cold.
        let data = unsafe { child.as_data().as_ref() }?;
        let is_void = || data.bytes == MIN_DATA_BYTES && data.total() == Some(0);
        if !is_void() {
            return None;
        }
        // This waits for writers, who wait for nobody while they are in a node.
        self.freeze(data).filter(|_| is_void())
    }
}

/// Divides what has no keys where it is crossed by the border of the largest aligned range, so that others to its left and right
/// can be told apart there. At the ends there is nobody to tell apart.
fn halve_voids(kept: Vec<Kept>) -> Vec<Kept> {
    let mut halved: Vec<Kept> = Vec::with_capacity(kept.len() + kept.len() / 4);
    let mut nodes = kept.into_iter().peekable();
    while let Some(node) = nodes.next() {
        let (low, is_void) = (node.low, node.bytes == 0);
        let is_first = halved.is_empty();
        halved.push(node);
        let last = nodes.peek().map_or(low, |next| next.low - 1);
        if let Some(bit) = (low ^ last)
            .checked_ilog2()
            .filter(|_| is_void && !is_first)
        {
            halved.push(Kept {
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

/// The levels above each node, times its bytes, under `plan`.
fn levels_of(plan: &InnerPlan, kept: &[Kept], depth: u64) -> u64 {
    let of_child = |child: &Plan| match child {
        Plan::Data(node) if node.first == node.last => 0,
        Plan::Data(node) => kept[node.first].bytes * depth,
        Plan::Inner(plan) => levels_of(plan, kept, depth + 1),
    };
    plan.children.iter().map(|(_, child)| of_child(child)).sum()
}

/// Writes the inner nodes of a plan over nodes that there are, not fenced.
fn plant(
    shape: Shape,
    aside: &mut Aside<'_>,
    plan: &InnerPlan,
    kept: &[Kept],
    range: (u64, u64),
    depth: u32,
) -> Result<(Link, Child)> {
    let radix = plan.radix();
    let mut built = Vec::with_capacity(plan.children.len());
    for (i, (_, child)) in plan.children.iter().enumerate() {
        let (first, log) = plan.group(i);
        let of_child = radix.range_of(first, log, range.0, range.1);
        let (link, child) = match child {
            Plan::Data(node) if node.first == node.last => {
                aside.data(&shape.void(of_child.0, of_child.1), &[])?
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
            Plan::Inner(plan) => plant(shape, aside, plan, kept, of_child, depth + 1)?,
        };
        built.push(Built {
            first,
            log,
            link,
            child,
        });
    }
    aside.plant_over(radix, &built, range, depth)
}
