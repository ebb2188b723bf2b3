//! Planning of trees: which keys share a data node, and which inner nodes lead to the data nodes. Bulk loads plan a
//! whole tree, structure changes what takes the place of one data node.
//!
//! The range of keys is halved again and again, always at multiples of powers of two, until a further halving would not
//! make lookups cheaper. The result is a binary tree ([`halve`]). Halves without keys are skipped, so the tree has
//! fewer branches than there are keys, and a depth of at most 64. Then the top levels of the binary tree become one
//! inner node, the next levels the inner nodes below it, and so on ([`collapse`]). The paper builds its trees with a
//! greedy choice of fanouts instead (section 4.5), and has other rules for splits; here one rule serves both.
//!
//! The costs of a plan are counted in cache misses, as in section 4.4 of the paper.

mod collapse;
mod halve;

use super::ApexOptions;
use super::format::Format;
use super::layout::{HEADER_BYTES, Radix, SLOT_BYTES};
use super::model::{self, Model};
use crate::concurrency::parallel::in_parallel;
use crate::concurrency::sync::lock;
use crate::pmem::Cell;
use crate::pmem::geometry::SMALL_IN_TESTS;
use halve::Partitioner;
use std::ops::{Range, RangeInclusive};
use std::sync::Mutex;

/// Size of the smallest data node, in bytes: a header and 24 slots.
pub(super) const MIN_DATA_BYTES: u64 = 512;

/// Size of the largest data node of any map, in bytes.
pub(super) const MAX_DATA_BYTES: u64 = LIMITS.max_data_bytes;

/// Logarithm of the largest number of slots of an inner node of any map.
pub(super) const MAX_LOG_SLOTS: u32 = LIMITS.max_log_slots;

/// Records per slot from which on a data node is rebuilt or split (section 4.4). The stash is sized for a node that is
/// as full as this.
pub(super) const UPPER_DENSITY: f64 = 0.9;

/// Smallest and largest size of the stash, as a share of all slots of a data node.
const STASH_RATIO: RangeInclusive<f64> = 0.05..=0.3;

/// Size of the stash for each record that is expected to overflow (section 4.5): more than one slot, as the keys to
/// come may fit worse.
const STASH_COEFFICIENT: f64 = 1.5;

/// Records per slot below which a data node is not made larger because its stash is full: its keys crowd in a few
/// places, where a larger node would not help.
const MIN_FILL_OF_LARGER_NODE: f64 = 0.1;

/// Records per slot, at most, of a new data node for keys with a trend: room for nearly as many again.
const TREND_FILL: f64 = 0.55;

/// Share of the records, at most, that overflow in a data node for keys with a trend. Keys that come in leaps lie along
/// no line, and nearly all of them would overflow.
const TREND_MAX_OVERFLOW: f64 = 0.2;

/// Most levels of the binary tree over existing data nodes. Aligned ranges have at most 64 levels, so only damage leads
/// to more.
const MAX_LEVELS: u32 = 256;

/// The limits of the nodes of a map: what its [`ApexOptions`] says, and limits that are smaller under test.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeLimits {
    /// Size of the largest data node, in bytes.
    pub(super) max_data_bytes: u64,
    /// Logarithm of the largest number of slots of an inner node.
    pub(super) max_log_slots: u32,
    /// A range of keys is halved only if it has at least twice as many records as this, or too many for one data node.
    min_records: usize,
    /// Slots of a group of the primary array.
    group_slots: usize,
    /// Slots of the stash as a share of all slots, if the options set it; otherwise it follows from the keys.
    stash_ratio: Option<f64>,
    /// Records per slot of a new data node, at most. The sizes of blocks are powers of two, so new nodes have between
    /// half of this and this: on average the paper's lower density of 0.5.
    pub(super) fill: f64,
    pub(super) format: Format,
}

/// The limits of the paper: data nodes of up to 256 KiB, inner nodes of up to 16 MiB.
const REAL_LIMITS: NodeLimits = NodeLimits {
    max_data_bytes: 256 << 10,
    max_log_slots: 21,
    min_records: 64,
    group_slots: 256,
    stash_ratio: None,
    fill: 0.65,
    format: Format::Two,
};

/// Small limits, so that trees of a few hundred records have all kinds of nodes.
const SMALL_LIMITS: NodeLimits = NodeLimits {
    max_data_bytes: 1 << 10,
    max_log_slots: 6,
    min_records: 8,
    group_slots: 32,
    ..REAL_LIMITS
};

/// The limits of this build.
const LIMITS: NodeLimits = if SMALL_IN_TESTS {
    SMALL_LIMITS
} else {
    REAL_LIMITS
};

const _: () = assert!(LIMITS.group_slots == model::GROUP_SLOTS);

/// The plan of a data node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DataPlan {
    /// Index of the node's first key.
    pub(super) first: usize,
    /// Index behind the node's last key.
    pub(super) last: usize,
    /// The lowest key that is routed to the node.
    pub(super) low: u64,
    /// The highest key that is routed to the node.
    pub(super) high: u64,
    /// Size of the block in bytes, a power of two from 512 to [`MAX_DATA_BYTES`].
    pub(super) bytes: u64,
    /// Slots of the primary array.
    pub(super) primary: usize,
    /// Slots of the stash.
    pub(super) stash: usize,
    /// The model of the node.
    pub(super) model: Model,
}

/// The plan of an inner node. It maps a key to slot `min(key.saturating_sub(base) >> shift, 2^log_slots - 1)`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InnerPlan {
    pub(super) base: u64,
    pub(super) shift: u32,
    pub(super) log_slots: u32,
    /// The children from left to right, each with the first slot of its child group.
    pub(super) children: Vec<(usize, Plan)>,
}

impl InnerPlan {
    pub(super) fn radix(&self) -> Radix {
        Radix {
            base: self.base,
            shift: self.shift,
            log_slots: self.log_slots,
        }
    }

    /// The child group of a child: its first slot, and the logarithm of the number of slots.
    pub(super) fn child_group(&self, child: usize) -> (usize, u32) {
        let first = self.children[child].0;
        let next = self.children.get(child + 1);
        let end = next.map_or(1 << self.log_slots, |next| next.0);
        (first, (end - first).ilog2())
    }
}

/// The plan of a node, with all nodes below it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Plan {
    Data(DataPlan),
    Inner(InnerPlan),
}

/// `plan`, with a data node without keys on either side of each inner node whose slots cover less than its range of
/// keys from `low` to `high`. When inner nodes are planned again, the ranges of such data nodes can be divided
/// anywhere; the range of the first or the last child of an inner node, which extends beyond the slots, cannot.
pub(super) fn with_empty_margins(limits: NodeLimits, plan: Plan, low: u64, high: u64) -> Plan {
    let mut plan = match plan {
        Plan::Data(node) => return Plan::Data(DataPlan { low, high, ..node }),
        Plan::Inner(plan) => plan,
    };
    let radix = plan.radix();
    let shift = plan.shift + plan.log_slots;
    let width = 1_u64.checked_shl(shift);
    let before = width.and_then(|width| plan.base.checked_sub(width).filter(|_| low < plan.base));
    let after = width.and_then(|width| plan.base.checked_add(width).filter(|&end| end <= high));
    let from = before.map_or(low, |_| plan.base);
    let to = after.map_or(high, |end| end - 1);
    for i in 0..plan.children.len() {
        let (first, log) = plan.child_group(i);
        let (low, high) = radix.range_of(first, log, from, to);
        let child = &mut plan.children[i].1;
        let empty_node = Plan::Data(limits.plan_empty_node(low, high));
        *child = with_empty_margins(limits, std::mem::replace(child, empty_node), low, high);
    }
    if before.is_none() && after.is_none() {
        return Plan::Inner(plan);
    }
    let base = before.unwrap_or(plan.base);
    let empty_node = |low, high| Plan::Data(limits.plan_empty_node(low, high));
    let before = before.map(|_| empty_node(low, from - 1));
    let children = before.into_iter().chain([Plan::Inner(plan)]);
    let children = children.chain(after.map(|end| empty_node(end, high)));
    let children: Vec<_> = (0..).zip(children).collect();
    Plan::Inner(InnerPlan {
        base,
        shift,
        log_slots: children.len() as u32 - 1,
        children,
    })
}

/// Where nine in ten of the keys lie that a data node has got since it was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trend {
    /// There is no such place.
    Mixed,
    /// Above all keys that the node was built with.
    Up,
    /// Below all keys that the node was built with.
    Down,
}

impl NodeLimits {
    /// The limits of a map with these options and this format.
    pub(super) fn of(options: ApexOptions, format: Format) -> Self {
        let most = u64::from(options.inner_bytes()) / size_of::<Cell>() as u64;
        Self {
            max_data_bytes: LIMITS.max_data_bytes.min(options.data_bytes().into()),
            max_log_slots: LIMITS.max_log_slots.min(most.ilog2()),
            stash_ratio: options.stash().map(|share| f64::from(share) / 100.0),
            fill: f64::from(options.fill()) / 100.0,
            format,
            ..LIMITS
        }
    }

    /// The best tree for `keys`, strictly ascending, in a place that covers `low` to `high`, with data nodes no fuller
    /// than `fill`. A tree for the whole range of keys has at least two data nodes, since a data node of all keys would
    /// have no marker. The plan does not depend on the number of threads.
    pub(super) fn plan_tree(
        self,
        keys: &[u64],
        (low, high): (u64, u64),
        fill: f64,
        threads: usize,
    ) -> Plan {
        let low = keys.first().map_or(low, |&key| key.min(low));
        let high = keys.last().map_or(high, |&key| key.max(high));
        let parts = Partitioner::new(self, keys, (low, high), fill);
        let mut plan = parts.collapse(&parts.tree(threads));
        let mut nodes = Vec::new();
        plan.data_nodes(&mut |node| nodes.push(node));
        on_each(&mut nodes, threads, |node| {
            **node = self.plan_data_node(keys, node.first..node.last, (node.low, node.high), fill);
        });
        plan
    }

    /// The data node of `plan` in a block of twice the size; `None` if the block would be too large, or the node nearly
    /// empty.
    pub(super) fn plan_larger_node(self, plan: &DataPlan, keys: &[u64]) -> Option<DataPlan> {
        let bytes = plan.bytes * 2;
        let fill = keys.len() as f64 / slots_in(bytes) as f64;
        (bytes <= self.max_data_bytes && fill >= MIN_FILL_OF_LARGER_NODE)
            .then(|| self.plan_data_node(keys, 0..keys.len(), (plan.low, plan.high), fill))
    }

    /// Two data nodes below an inner node, for keys that no single data node suits: the smallest and the largest key go
    /// to different ones. `None` for fewer than two keys.
    pub(super) fn plan_two_nodes(self, keys: &[u64], (low, high): (u64, u64)) -> Option<Plan> {
        let (first, last) = (*keys.first()?, *keys.last()?);
        let shift = (first ^ last).checked_ilog2()?;
        let base = first >> shift << shift;
        let border = base + (1 << shift);
        let at = keys.partition_point(|&key| key < border);
        let data = |range, place| Plan::Data(self.plan_data_node(keys, range, place, self.fill));
        let left = data(0..at, (low, border - 1));
        let right = data(at..keys.len(), (border, high));
        Some(Plan::Inner(InnerPlan {
            base,
            shift,
            log_slots: 1,
            children: vec![(0, left), (1, right)],
        }))
    }

    /// A data node for keys with a trend: the keys lie densely at one end of the primary array, and the rest of the
    /// array is for the keys to come. `None` if there is no trend, if no data node has room for enough further keys, or
    /// if the keys do not lie along a line.
    pub(super) fn plan_for_trend(
        self,
        keys: &[u64],
        (low, high): (u64, u64),
        trend: Trend,
    ) -> Option<DataPlan> {
        if trend == Trend::Mixed {
            return None;
        }
        let with_stash = |ratio| {
            let all = 0..keys.len();
            let mut plan = self.data_with_stash(keys, all, (low, high), TREND_FILL, ratio);
            let predictable_slots = model::predictable_slots(plan.primary);
            plan.model = match trend {
                Trend::Mixed | Trend::Up => {
                    Model::fit_append(keys, predictable_slots, UPPER_DENSITY)
                }
                Trend::Down => Model::fit_prepend(keys, predictable_slots, UPPER_DENSITY, low),
            };
            plan
        };
        let least = self.stash_ratio.unwrap_or(*STASH_RATIO.start());
        let plan = with_stash(least);
        if keys.len() as f64 > slots_in(plan.bytes) as f64 * TREND_FILL {
            return None;
        }
        let fit = model::simulate_in(&plan.model, keys, plan.primary, self.group_slots);
        let overflow = fit.overflowed as f64 / keys.len().max(1) as f64;
        let ratio = overflow * STASH_COEFFICIENT;
        if overflow > TREND_MAX_OVERFLOW {
            None
        } else if ratio <= least || self.stash_ratio.is_some() {
            Some(plan)
        } else {
            Some(with_stash(ratio))
        }
    }

    /// The best inner nodes over existing data nodes that cover `place`. `borders` has the lowest keys of all but the
    /// first data node. `bytes` has the sizes of the data nodes; 0 stands for a node without keys, whose range may be
    /// divided anywhere. The data nodes of the plan have indices of existing ones, from `first` to before `last`, and
    /// nothing else; `first == last` stands for a node without keys. `None` if there is only one node, or if the
    /// borders are not those of a sound tree.
    pub(super) fn plan_inner_nodes_over(
        self,
        borders: &[u64],
        bytes: &[u64],
        place: (u64, u64),
    ) -> Option<InnerPlan> {
        let tree = halve::tree_over(borders, bytes, 0..bytes.len(), MAX_LEVELS)?;
        match Partitioner::over(self, place).collapse(&tree) {
            Plan::Inner(plan) if bytes.len() > 1 => Some(plan),
            _ => None,
        }
    }

    /// The plan of a data node without keys.
    pub(super) fn plan_empty_node(self, low: u64, high: u64) -> DataPlan {
        self.data_with_stash(&[], 0..0, (low, high), 1.0, *STASH_RATIO.start())
    }

    /// One data node for the keys of `range`, whatever that costs; the node covers `low` to `high`. The size of the
    /// stash comes from a simulation of inserts, also where the paper takes the overflow ratio of the node that is
    /// replaced.
    pub(super) fn plan_data_node(
        self,
        keys: &[u64],
        range: Range<usize>,
        (low, high): (u64, u64),
        fill: f64,
    ) -> DataPlan {
        let last = range.end.min(keys.len());
        let range = range.start.min(last)..last;
        let simulated = || self.simulated_stash_ratio(&keys[range.clone()], low, high);
        let ratio = self.stash_ratio.unwrap_or_else(simulated);
        self.data_with_stash(keys, range, (low, high), fill, ratio)
    }

    /// One data node for the keys of `range`, with the share `ratio` of its slots for the stash.
    fn data_with_stash(
        self,
        keys: &[u64],
        range: Range<usize>,
        (low, high): (u64, u64),
        fill: f64,
        ratio: f64,
    ) -> DataPlan {
        let Range {
            start: first,
            end: last,
        } = range;
        let keys = &keys[range];
        let bytes = self.bytes_for(keys.len(), fill);
        let slots = slots_in(bytes);
        let stash = slots as f64 * ratio;
        let primary = model::primary_slots(slots - stash.ceil() as usize, self.group_slots);
        DataPlan {
            first,
            last,
            low,
            high,
            bytes,
            primary,
            stash: slots - primary,
            model: Model::fit(keys, model::predictable_slots(primary), low, high),
        }
    }

    /// The stash ratio that section 4.5 computes: how many keys overflow in a data node that is as full as it may be.
    fn simulated_stash_ratio(self, keys: &[u64], low: u64, high: u64) -> f64 {
        let slots = (keys.len() as f64 / UPPER_DENSITY) as usize;
        let slots = model::primary_slots(slots.min(model::MAX_PRIMARY_SLOTS), self.group_slots);
        let model = Model::fit(keys, slots, low, high);
        let fit = model::simulate_in(&model, keys, slots, self.group_slots);
        let ratio = STASH_COEFFICIENT * fit.overflowed as f64 / keys.len().max(1) as f64;
        ratio.clamp(*STASH_RATIO.start(), *STASH_RATIO.end())
    }

    /// The size of the smallest block in which `records` are no denser than `fill`; or of the largest block.
    fn bytes_for(self, records: usize, fill: f64) -> u64 {
        // A quotient that is a whole number but for rounding is that number: another slot may take a node of twice the size.
        let slots = (records as f64 / usable(fill) - 1e-6).ceil() as u64;
        (HEADER_BYTES + slots * SLOT_BYTES)
            .next_power_of_two()
            .clamp(MIN_DATA_BYTES, self.max_data_bytes)
    }
}

impl Plan {
    /// Visits all data nodes from left to right.
    fn data_nodes<'a>(&'a mut self, visit: &mut impl FnMut(&'a mut DataPlan)) {
        match self {
            Self::Data(node) => visit(node),
            Self::Inner(inner) => {
                for (_, child) in &mut inner.children {
                    child.data_nodes(visit);
                }
            }
        }
    }
}

/// Slots of a data node in a block of so many bytes.
fn slots_in(bytes: u64) -> usize {
    ((bytes - HEADER_BYTES) / SLOT_BYTES) as usize
}

/// `fill`, within the bounds that leave room for inserts.
fn usable(fill: f64) -> f64 {
    if fill.is_nan() {
        0.7
    } else {
        fill.clamp(0.1, UPPER_DENSITY)
    }
}

/// Does `work` on each item, with several threads; in order, if there is one thread.
fn on_each<T: Send>(items: &mut [T], threads: usize, work: impl Fn(&mut T) + Sync) {
    let queue = Mutex::new(items.iter_mut());
    in_parallel(threads.saturating_sub(1), || {
        loop {
            let next = lock(&queue).next();
            let Some(item) = next else { return };
            work(item);
        }
    });
}

#[cfg(test)]
mod tests;
