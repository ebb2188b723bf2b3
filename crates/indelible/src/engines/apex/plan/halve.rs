//! Halving the range of keys until lookups would not become cheaper.
//!
//! The cost of a lookup is counted in cache misses, as in section 4.4 of the paper: of the record in its line pair, in
//! the other line pair or in the stash, of the mirror of its data node, and of the inner nodes above. The best trees of
//! both halves are planned before the halves are compared with a single data node, so a range is halved even where only
//! several halvings together pay.

use super::collapse::{EMPTY_NODE_BYTES_DIVISOR, EMPTY_NODE_BYTES_DIVISOR_REPLAN};
use super::{NodeLimits, SLOT_BYTES, STASH_RATIO, on_each, slots_in, usable};
use crate::engines::apex::model::{self, Model};
use std::ops::Range;

/// Cost of a lookup that finds its key in the other line pair of the window, in misses. The line pair itself is hardly
/// a miss; but the processor has predicted that the search ends, and repeats the lookups that it has begun meanwhile.
const MISSES_OTHER_LINE_PAIR: f64 = 1.0;

/// Cost of a lookup that finds its key in the stash, in misses: the overflow bucket, the stash slot, and as much again
/// for wrong predictions of branches.
const MISSES_STASHED: f64 = 4.0;

/// Cost of each overflow entry that a lookup compares, in misses: 16 entries share a line, and one fingerprint in 256
/// is equal by chance.
const MISSES_PER_BUCKET_ENTRY: f64 = 0.02;

/// Further cost of a record for which the stash array has no slot, in misses: an extended stash block has to be
/// allocated.
const MISSES_EXTENDED_STASH: f64 = 4.0;

/// Cost of reading a data node's mirror, in misses for each lookup.
const MISSES_NODE_MIRROR: f64 = 2.0;
/// Upper bound of the cost of reading a data node's mirror, in misses for one lookup of each record of the node: the
/// mirror of a large node stays in the caches.
const MAX_MISSES_NODE_MIRROR: f64 = 640.0;

/// Misses per record for collisions, at most, of a data node that is not halved even so: planning its halves would take
/// long, for little.
const MAX_COLLISION_MISSES_UNSPLIT: f64 = 0.05;

/// What a halving must save, in misses per record.
const MIN_GAIN_PER_RECORD: f64 = 0.01;

/// What a halving must save in addition, in misses per record, if it skips empty halves: they become an inner node or
/// data nodes without keys.
const MIN_GAIN_OVER_EMPTY_HALVES: f64 = 0.05;

/// Bytes of the nodes that a halving adds where it skips empty halves, about.
const EMPTY_HALVES_BYTES: u64 = 320;

/// A range is not halved if its tree takes more bytes per record than this, plus [`MAX_BYTES_PER_DOUBLING`] for each
/// doubling of its records.
const MAX_BYTES_PER_RECORD: u64 = 32;

/// Bytes per record by which the bound of space grows for each doubling of the records of a range. With one bound for
/// all sizes, a large range would stay whole because its small parts are all near the bound.
const MAX_BYTES_PER_DOUBLING: u64 = 4;

/// The keys that are partitioned over data nodes.
pub(super) struct Partitioner<'a> {
    pub(super) limits: NodeLimits,
    pub(super) keys: &'a [u64],
    /// The lowest and the highest key that are routed to the tree.
    pub(super) low: u64,
    pub(super) high: u64,
    fill: f64,
    max_records: usize,
    /// Data nodes without keys take at most one byte in this many of the bytes of all data nodes.
    pub(super) empty_bytes_divisor: u64,
}

/// A part of the keys: one data node, or two halves. Over existing data nodes, a part may also be a range without keys.
#[derive(Debug)]
pub(super) enum Partition {
    Empty,
    Leaf(Range<usize>),
    Branch(Box<Branch>),
}

/// A part that is halved.
#[derive(Debug)]
pub(super) struct Branch {
    /// The first key of the second half.
    pub(super) middle: u64,
    /// All keys lie within `1 << reach` of `middle`, on either side.
    pub(super) reach: u32,
    /// Keys below the first of these and from the second on belong to data nodes without keys, which may be cut off.
    pub(super) empty_margins: (u64, u64),
    pub(super) halves: [Partition; 2],
    pub(super) records: usize,
    /// Halvings from here to the data node of each record, added up over the records.
    pub(super) halvings: usize,
    /// Bytes of all data nodes below.
    pub(super) bytes: u64,
}

/// The best tree for some keys.
struct Best {
    part: Partition,
    /// Misses for looking up each record once.
    cost: f64,
    bytes: u64,
}

impl<'a> Partitioner<'a> {
    pub(super) fn new(
        limits: NodeLimits,
        keys: &'a [u64],
        (low, high): (u64, u64),
        fill: f64,
    ) -> Self {
        let fill = usable(fill);
        let max_slots = slots_in(limits.max_data_bytes);
        Self {
            limits,
            keys,
            low,
            high,
            fill,
            max_records: (max_slots as f64 * fill) as usize,
            empty_bytes_divisor: EMPTY_NODE_BYTES_DIVISOR,
        }
    }

    /// For inner nodes over existing data nodes.
    pub(super) fn over(limits: NodeLimits, range: (u64, u64)) -> Self {
        Self {
            empty_bytes_divisor: EMPTY_NODE_BYTES_DIVISOR_REPLAN,
            ..Self::new(limits, &[], range, 1.0)
        }
    }

    /// The binary tree of all keys.
    pub(super) fn tree(&self, threads: usize) -> Partition {
        let all = 0..self.keys.len();
        let grain = (all.len() / threads.max(1) / 16).max(self.max_records);
        let mut jobs = Vec::new();
        self.down_to(grain, all.clone(), &mut |range| {
            jobs.push((range, None));
            Best {
                part: Partition::Leaf(0..0),
                cost: 0.0,
                bytes: 0,
            }
        });
        on_each(&mut jobs, threads, |(range, best)| {
            *best = Some(self.best(range.clone()));
        });
        let mut jobs = jobs.into_iter();
        let best = self.down_to(grain, all, &mut |range| {
            let done = jobs.next().and_then(|(_, best)| best);
            done.unwrap_or_else(|| self.leaf(range))
        });
        best.part
    }

    /// Halves every range of more than `grain` records, and asks `part` for the trees of the ranges below.
    fn down_to(
        &self,
        grain: usize,
        range: Range<usize>,
        part: &mut dyn FnMut(Range<usize>) -> Best,
    ) -> Best {
        match self.middle(&range).filter(|_| range.len() > grain) {
            Some(middle) => {
                let left = self.down_to(grain, range.start..middle, part);
                let right = self.down_to(grain, middle..range.end, part);
                self.branch(&range, left, right)
            }
            None => part(range),
        }
    }

    /// The best tree for the keys of `range`.
    fn best(&self, range: Range<usize>) -> Best {
        let leaf = self.leaf(range.clone());
        let records = range.len() as f64;
        let fits = range.len() <= self.max_records;
        let bound = records * (1.0 + MAX_COLLISION_MISSES_UNSPLIT) + node_cost(records);
        if fits && (leaf.cost <= bound || range.len() < 2 * self.limits.min_records) {
            return leaf;
        }
        let Some(middle) = self.middle(&range) else {
            return leaf;
        };
        let left = self.best(range.start..middle);
        let right = self.best(middle..range.end);
        let branch = self.branch(&range, left, right);
        let most =
            MAX_BYTES_PER_RECORD + MAX_BYTES_PER_DOUBLING * u64::from(range.len().max(1).ilog2());
        if fits && (leaf.cost <= branch.cost || branch.bytes > most * range.len() as u64) {
            leaf
        } else {
            branch
        }
    }

    /// One data node for the keys of `range`. If the keys are too many for one, its cost does not matter.
    fn leaf(&self, range: Range<usize>) -> Best {
        let bytes = self.limits.bytes_for(range.len(), self.fill);
        let keys = &self.keys[range.clone()];
        let records = keys.len() as f64;
        let mut cost = records + node_cost(records);
        if keys.len() <= self.max_records {
            let group = self.limits.group_slots;
            let primary = model::primary_slots((slots_in(bytes) as f64 * 0.95) as usize, group);
            let model = Model::fit(keys, primary, self.low, self.high);
            let fit = model::simulate_in(&model, keys, primary, group);
            let room = STASH_RATIO.end() * slots_in(bytes) as f64;
            cost += MISSES_OTHER_LINE_PAIR * fit.in_other_line_pair as f64
                + MISSES_STASHED * fit.overflowed as f64
                + MISSES_PER_BUCKET_ENTRY * fit.bucket_entries as f64
                + MISSES_EXTENDED_STASH * (fit.overflowed as f64 - room).max(0.0);
        }
        Best {
            part: Partition::Leaf(range),
            cost,
            bytes,
        }
    }

    /// The two halves of `range` as one part.
    fn branch(&self, range: &Range<usize>, left: Best, right: Best) -> Best {
        let (start, width) = self.aligned(range);
        let middle = start + (1 << (width - 1));
        let passed = [&left, &right].map(|half| u8::from(half.part.skips_empty_halves(width - 1)));
        let passed = passed[0] + passed[1];
        let bytes = left.bytes + right.bytes + u64::from(passed) * EMPTY_HALVES_BYTES;
        let records = range.len() as f64;
        let price = MIN_GAIN_PER_RECORD
            + if passed > 0 {
                MIN_GAIN_OVER_EMPTY_HALVES
            } else {
                0.0
            };
        Best {
            cost: left.cost + right.cost + records * price,
            bytes,
            part: Partition::Branch(Box::new(Branch {
                middle,
                empty_margins: (middle, middle),
                reach: reach(self.keys[range.start], middle, self.keys[range.end - 1]),
                halvings: range.len() + left.part.halvings() + right.part.halvings(),
                halves: [left.part, right.part],
                records: range.len(),
                bytes,
            })),
        }
    }

    /// The smallest aligned range of keys that holds the keys of `range`, of which there are at least two: its first
    /// key, and the logarithm of its width.
    pub(super) fn aligned(&self, range: &Range<usize>) -> (u64, u32) {
        let (first, last) = (self.keys[range.start], self.keys[range.end - 1]);
        let width = 64 - (first ^ last).leading_zeros();
        let start = first.checked_shr(width);
        (start.map_or(0, |high_bits| high_bits << width), width)
    }

    /// The index of the first key of the second half; `None` if `range` has no two halves with keys.
    fn middle(&self, range: &Range<usize>) -> Option<usize> {
        if range.len() < 2 {
            return None;
        }
        let (start, width) = self.aligned(range);
        let middle = start + (1 << (width.max(1) - 1));
        let left = self.keys[range.clone()].partition_point(|&key| key < middle);
        (left > 0 && left < range.len()).then_some(range.start + left)
    }
}

impl Partition {
    /// The halvings of [`Branch::halvings`]; none for a data node.
    fn halvings(&self) -> usize {
        match self {
            Self::Empty | Self::Leaf(_) => 0,
            Self::Branch(branch) => branch.halvings,
        }
    }

    /// Whether an aligned range of `1 << width` keys is halved more than once before both halves have keys.
    fn skips_empty_halves(&self, width: u32) -> bool {
        matches!(self, Self::Branch(branch) if branch.width() < width)
    }
}

impl Branch {
    /// The first key of an inner node that divides the range from here on.
    pub(super) fn start(&self) -> u64 {
        self.middle - (1 << self.reach)
    }

    /// The logarithm of the width of the smallest aligned range that holds both halves.
    pub(super) fn width(&self) -> u32 {
        self.middle.trailing_zeros() + 1
    }
}

/// The value of [`Branch::reach`]: no more than `middle` is aligned to.
fn reach(first: u64, middle: u64, last: u64) -> u32 {
    let most = 1 << middle.trailing_zeros();
    let far = (middle - first).max(last - middle + 1).min(most);
    far.next_power_of_two().trailing_zeros()
}

/// The binary tree over the existing data nodes `nodes`, with `borders` between them and so many `bytes` each, 0 for a
/// node without keys. The tree is halved at the borders, at those with the largest alignment first. `None` if the tree
/// would have more than `levels` levels.
pub(super) fn tree_over(
    borders: &[u64],
    bytes: &[u64],
    nodes: Range<usize>,
    levels: u32,
) -> Option<Partition> {
    let within = nodes.start..nodes.end - 1;
    let best = within
        .clone()
        .max_by_key(|&at| borders[at].trailing_zeros());
    let Some(at) = best else {
        let is_empty_node = bytes[nodes.start] == 0;
        return Some(if is_empty_node {
            Partition::Empty
        } else {
            Partition::Leaf(nodes)
        });
    };
    let (first, middle, last) = (borders[within.start], borders[at], borders[within.end - 1]);
    let bytes_of = bytes[nodes.clone()].iter().sum::<u64>();
    let records = (bytes_of / SLOT_BYTES).max(1) as usize;
    let empty_margins = (
        if bytes[nodes.start] == 0 { first } else { 0 },
        if bytes[nodes.end - 1] == 0 {
            last
        } else {
            u64::MAX
        },
    );
    let halves = [nodes.start..at + 1, at + 1..nodes.end];
    let levels = levels.checked_sub(1)?;
    let [left, right] = halves.map(|nodes| tree_over(borders, bytes, nodes, levels));
    let halves = [left?, right?];
    Some(Partition::Branch(Box::new(Branch {
        middle,
        // Keys beyond the borders at the ends belong to the data nodes there.
        reach: reach(first - 1, middle, last),
        empty_margins,
        halvings: records + halves.iter().map(Partition::halvings).sum::<usize>(),
        halves,
        records,
        bytes: bytes_of,
    })))
}

/// Misses for the mirrors of data nodes, if each of the records is looked up once.
fn node_cost(records: f64) -> f64 {
    (MISSES_NODE_MIRROR * records).min(MAX_MISSES_NODE_MIRROR)
}
