//! The shape of a tree, or of what takes the place of one data node: which keys share a data node, and which inner
//! nodes lead there.
//!
//! The range of keys is halved again and again, always at multiples of powers of two from one base, until lookups would
//! not become cheaper: a binary tree (`halve.rs`). Halves without keys are passed over, so the tree has fewer branches
//! than there are keys, and its depth is at most 64. Then the top levels of that tree become one inner node, and so on
//! downwards (`collapse.rs`).

mod collapse;
mod halve;

use super::format::Format;
use super::layout::{HEADER_BYTES, Radix, SLOT_BYTES};
use super::model::{self, Model};
use crate::ApexTuning;
use crate::pmem::Cell;
use crate::sync::lock;
use halve::Parts;
use std::ops::{Range, RangeInclusive};
use std::sync::Mutex;

/// The smallest data node.
pub(super) const MIN_DATA_BYTES: u64 = 512;

/// The largest data node of any map.
pub(super) const MAX_DATA_BYTES: u64 = SHAPE.max_data_bytes;

/// The logarithm of the most slots that an inner node of any map has.
pub(super) const MAX_LOG_SLOTS: u32 = SHAPE.max_log_slots;

/// Where a data node is so full that its structure must change (section 4.4). The stash is made for that time.
pub(super) const UPPER_DENSITY: f64 = 0.9;

/// The stash, as a share of all slots.
const STASH_RATIO: RangeInclusive<f64> = 0.05..=0.3;

/// The stash ratio per share of keys that overflow (section 4.5).
const STASH_COEFFICIENT: f64 = 1.5;

/// Records per slot below which a node is not made larger for want of room.
const FILL_LEAST: f64 = 0.1;

/// Records per slot of a node that is to take as many again.
const FILL_TREND: f64 = 0.55;

/// And the records of it that may overflow. Keys that come in leaps lie along no line, and with a line through them nearly
/// all would overflow.
const OVERFLOW_TREND: f64 = 0.2;

/// Halvings on the way to a node that is there already, at most: far more than there are of ranges that are aligned.
const MOST_LEVELS: u32 = 256;

/// How the nodes of a map are laid out: what its [`ApexTuning`] says, and sizes that differ under test.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) max_data_bytes: u64,
    pub(super) max_log_slots: u32,
    /// Parts with fewer records than two such are halved only if they are too large for a node.
    min_records: usize,
    group: usize,
    /// The stash, as a share of all slots, if it is not to follow from the keys.
    stash_ratio: Option<f64>,
    /// Records per slot in a node that has just been laid out, at most. Blocks are of twice the size each, so between half of this
    /// and this: the paper's lower density of 0.5 on average.
    pub(super) fill: f64,
    pub(super) format: Format,
}

const REAL: Shape = Shape {
    max_data_bytes: 256 << 10,
    max_log_slots: 21,
    min_records: 64,
    group: 256,
    stash_ratio: None,
    fill: 0.65,
    format: Format::Two,
};

/// Trees of a few hundred records have all kinds of nodes.
const SMALL: Shape = Shape {
    max_data_bytes: 1 << 10,
    max_log_slots: 6,
    min_records: 8,
    group: 32,
    ..REAL
};

const SHAPE: Shape = if cfg!(any(test, feature = "small")) {
    SMALL
} else {
    REAL
};

const _: () = assert!(SHAPE.group == model::GROUP);

/// A data node to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DataPlan {
    /// Index of its first key.
    pub(super) first: usize,
    /// Index after its last key.
    pub(super) last: usize,
    /// The lowest key that is routed to it.
    pub(super) low: u64,
    /// The highest.
    pub(super) high: u64,
    /// Size of the block: 512 to [`MAX_DATA_BYTES`], a power of two.
    pub(super) bytes: u64,
    /// Slots of the primary array.
    pub(super) primary: usize,
    /// Slots of the stash.
    pub(super) stash: usize,
    /// From keys to primary slots.
    pub(super) model: Model,
}

/// An inner node to be. The slot of a key is `min(key.saturating_sub(base) >> shift, 2^log_slots - 1)`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InnerPlan {
    pub(super) base: u64,
    pub(super) shift: u32,
    pub(super) log_slots: u32,
    /// The children from left to right, each with the first slot of its aligned group.
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

    /// The slots that lead to a child: the first, and the logarithm of how many.
    pub(super) fn group(&self, child: usize) -> (usize, u32) {
        let first = self.children[child].0;
        let next = self.children.get(child + 1);
        let end = next.map_or(1 << self.log_slots, |next| next.0);
        (first, (end - first).ilog2())
    }
}

/// A node to be, with all that is beneath.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Plan {
    Data(DataPlan),
    Inner(InnerPlan),
}

/// `plan` with data nodes without keys beside each inner node whose slots do not reach as far as its keys might: when inner nodes
/// are laid out anew those can be divided at will, which the nodes at the ends of the inner node cannot.
pub(super) fn with_room_around(shape: Shape, plan: Plan, low: u64, high: u64) -> Plan {
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
        let (first, log) = plan.group(i);
        let (low, high) = radix.range_of(first, log, from, to);
        let child = &mut plan.children[i].1;
        let void = Plan::Data(shape.void(low, high));
        *child = with_room_around(shape, std::mem::replace(child, void), low, high);
    }
    if before.is_none() && after.is_none() {
        return Plan::Inner(plan);
    }
    let base = before.unwrap_or(plan.base);
    let void = |low, high| Plan::Data(shape.void(low, high));
    let before = before.map(|_| void(low, from - 1));
    let children = before.into_iter().chain([Plan::Inner(plan)]);
    let children = children.chain(after.map(|end| void(end, high)));
    let children: Vec<_> = (0..).zip(children).collect();
    Plan::Inner(InnerPlan {
        base,
        shift,
        log_slots: children.len() as u32 - 1,
        children,
    })
}

/// Where most keys go that a node has got since it was laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trend {
    /// Anywhere.
    No,
    /// Above all others.
    Up,
    /// Below all others.
    Down,
}

impl Shape {
    /// What a map's tuning and its format say.
    pub(super) fn of(tuning: ApexTuning, format: Format) -> Self {
        let most = u64::from(tuning.max_inner_bytes) / size_of::<Cell>() as u64;
        Self {
            max_data_bytes: SHAPE.max_data_bytes.min(tuning.max_data_bytes.into()),
            max_log_slots: SHAPE.max_log_slots.min(most.ilog2()),
            stash_ratio: tuning.stash_percent.map(|share| f64::from(share) / 100.0),
            fill: f64::from(tuning.fill_percent) / 100.0,
            format,
            ..SHAPE
        }
    }

    /// The best tree for `keys`, strictly ascending, in a place that covers `low` to `high`, with data nodes no fuller than
    /// `fill`. A tree for all keys from 0 on has at least two data nodes. It is the same whatever the number of threads.
    pub(super) fn plan(
        self,
        keys: &[u64],
        (low, high): (u64, u64),
        fill: f64,
        threads: usize,
    ) -> Plan {
        let low = keys.first().map_or(low, |&key| key.min(low));
        let high = keys.last().map_or(high, |&key| key.max(high));
        let parts = Parts::new(self, keys, (low, high), fill);
        let mut plan = parts.collapse(&parts.tree(threads));
        let mut nodes = Vec::new();
        plan.data_nodes(&mut |node| nodes.push(node));
        in_parallel(&mut nodes, threads, |node| {
            **node = self.data(keys, node.first..node.last, (node.low, node.high), fill);
        });
        plan
    }

    /// The same node in a block of twice the size, if there is one and it would not stand nearly empty.
    pub(super) fn larger(self, plan: &DataPlan, keys: &[u64]) -> Option<DataPlan> {
        let bytes = plan.bytes * 2;
        let fill = keys.len() as f64 / slots_in(bytes) as f64;
        (bytes <= self.max_data_bytes && fill >= FILL_LEAST)
            .then(|| self.data(keys, 0..keys.len(), (plan.low, plan.high), fill))
    }

    /// Two nodes for keys that no data node suits: the smallest and the largest of them go different ways. None for fewer
    /// than two keys.
    pub(super) fn two(self, keys: &[u64], (low, high): (u64, u64)) -> Option<Plan> {
        let (first, last) = (*keys.first()?, *keys.last()?);
        let shift = (first ^ last).checked_ilog2()?;
        let base = first >> shift << shift;
        let border = base + (1 << shift);
        let at = keys.partition_point(|&key| key < border);
        let data = |range, place| Plan::Data(self.data(keys, range, place, self.fill));
        let left = data(0..at, (low, border - 1));
        let right = data(at..keys.len(), (border, high));
        Some(Plan::Inner(InnerPlan {
            base,
            shift,
            log_slots: 1,
            children: vec![(0, left), (1, right)],
        }))
    }

    /// A data node for keys with a trend: they lie densely at one end of the primary array, and the rest of it waits for those
    /// to come. None if there is no trend, no node that has room for as many again, or no line along which keys come.
    pub(super) fn trend(
        self,
        keys: &[u64],
        (low, high): (u64, u64),
        trend: Trend,
    ) -> Option<DataPlan> {
        if trend == Trend::No {
            return None;
        }
        let with_stash = |ratio| {
            let all = 0..keys.len();
            let mut plan = self.data_with_stash(keys, all, (low, high), FILL_TREND, ratio);
            let homes = model::homes(plan.primary);
            plan.model = match trend {
                Trend::No | Trend::Up => Model::fit_append(keys, homes, UPPER_DENSITY),
                Trend::Down => Model::fit_prepend(keys, homes, UPPER_DENSITY, low),
            };
            plan
        };
        let least = self.stash_ratio.unwrap_or(*STASH_RATIO.start());
        let plan = with_stash(least);
        if keys.len() as f64 > slots_in(plan.bytes) as f64 * FILL_TREND {
            return None;
        }
        let fit = model::simulate_in(&plan.model, keys, plan.primary, self.group);
        let overflow = fit.overflowed as f64 / keys.len().max(1) as f64;
        let ratio = overflow * STASH_COEFFICIENT;
        if overflow > OVERFLOW_TREND {
            None
        } else if ratio <= least || self.stash_ratio.is_some() {
            Some(plan)
        } else {
            Some(with_stash(ratio))
        }
    }

    /// The best inner nodes over nodes that there are already, which cover `low` to `high`: with `borders` between them, each
    /// the first key of the node to its right, and so many `bytes` each, 0 of what has no keys and may be divided at will. The
    /// plan's data nodes have nothing but numbers of these, from `first` to before `last`, or none. None if there is only one, or
    /// if the borders are none that nodes of a sound pool have.
    pub(super) fn over(
        self,
        borders: &[u64],
        bytes: &[u64],
        place: (u64, u64),
    ) -> Option<InnerPlan> {
        let tree = halve::tree_over(borders, bytes, 0..bytes.len(), MOST_LEVELS)?;
        match Parts::over(self, place).collapse(&tree) {
            Plan::Inner(plan) if bytes.len() > 1 => Some(plan),
            _ => None,
        }
    }

    /// A data node without keys.
    pub(super) fn void(self, low: u64, high: u64) -> DataPlan {
        self.data_with_stash(&[], 0..0, (low, high), 1.0, *STASH_RATIO.start())
    }

    /// One data node for the keys of `range`, whatever it costs; it covers `low` to `high`. Its stash is simulated: in place of
    /// another node, the paper takes that one's overflow ratio.
    pub(super) fn data(
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
        let primary = model::primary_slots(slots - stash.ceil() as usize, self.group);
        DataPlan {
            first,
            last,
            low,
            high,
            bytes,
            primary,
            stash: slots - primary,
            model: Model::fit(keys, model::homes(primary), low, high),
        }
    }

    /// Section 4.5: by how many keys overflow when the node is as full as it may be.
    fn simulated_stash_ratio(self, keys: &[u64], low: u64, high: u64) -> f64 {
        let slots = (keys.len() as f64 / UPPER_DENSITY) as usize;
        let slots = model::primary_slots(slots.min(model::MAX_SLOTS), self.group);
        let model = Model::fit(keys, slots, low, high);
        let fit = model::simulate_in(&model, keys, slots, self.group);
        let ratio = STASH_COEFFICIENT * fit.overflowed as f64 / keys.len().max(1) as f64;
        ratio.clamp(*STASH_RATIO.start(), *STASH_RATIO.end())
    }

    /// The smallest block in which `records` are no denser than `fill`; or the largest there is.
    fn bytes_for(self, records: usize, fill: f64) -> u64 {
        let slots = (records as f64 / usable(fill)).ceil() as u64;
        (HEADER_BYTES + slots * SLOT_BYTES)
            .next_power_of_two()
            .clamp(MIN_DATA_BYTES, self.max_data_bytes)
    }
}

impl Plan {
    /// All data nodes from left to right.
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

/// Slots of a data node of so many bytes.
fn slots_in(bytes: u64) -> usize {
    ((bytes - HEADER_BYTES) / SLOT_BYTES) as usize
}

/// A fill that leaves room for inserts.
fn usable(fill: f64) -> f64 {
    if fill.is_nan() {
        0.7
    } else {
        fill.clamp(0.1, UPPER_DENSITY)
    }
}

/// Does the work on each item, in order if there is one thread.
fn in_parallel<T: Send>(items: &mut [T], threads: usize, work: impl Fn(&mut T) + Sync) {
    let queue = Mutex::new(items.iter_mut());
    let run = || {
        loop {
            let next = lock(&queue).next();
            let Some(item) = next else { return };
            work(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // Without more threads this one does it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
}

#[cfg(test)]
mod tests;
