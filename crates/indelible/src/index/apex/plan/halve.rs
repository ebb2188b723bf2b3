//! Halving the range of keys until lookups would not become cheaper.
//!
//! What a lookup costs is counted in memory misses, as in section 4.4 of the paper. A part is halved even where one
//! halving does not pay, if several do: the best tree of each half is found first.

use super::collapse::{EMPTY_NODE_BYTES_DIVISOR, EMPTY_NODE_BYTES_DIVISOR_REPLAN};
use super::{NodeLimits, SLOT_BYTES, STASH_RATIO, in_parallel, slots_in, usable};
use crate::index::apex::model::{self, Model};
use std::ops::Range;

/// Misses for a key in the other pair of lines of its window. The lines themselves come nearly for nothing; but that the search has
/// to go on cannot be foreseen, and the lookups that had begun meanwhile begin again.
const MISSES_OTHER_LINE_PAIR: f64 = 1.0;

/// Misses for a key in the stash: its overflow bucket, the stash, and the same once more for what nobody foresees.
const MISSES_STASHED: f64 = 4.0;

/// Misses for an entry of an overflow bucket: a 16th of a line, and one fingerprint in 256 misleads.
const MISSES_PER_BUCKET_ENTRY: f64 = 0.02;

/// Misses, and an allocation, for a key that the stash has no room for.
const MISSES_EXTENDED_STASH: f64 = 4.0;

/// Misses for the node's description in DRAM; but for a large node it stays in the caches.
const MISSES_NODE_MIRROR: f64 = 2.0;
const MAX_MISSES_NODE_MIRROR: f64 = 640.0;

/// A node with no more than this for collisions per record is not halved: looking for more would take long.
const MAX_COLLISION_MISSES_UNSPLIT: f64 = 0.05;

/// What a halving must save per record.
const MIN_GAIN_PER_RECORD: f64 = 0.01;

/// And what more, if it passes over halves without keys: they become an inner node, or empty data nodes.
const MIN_GAIN_OVER_EMPTY_HALVES: f64 = 0.05;
const EMPTY_HALVES_BYTES: u64 = 320;

/// A part is not halved if that takes more bytes per record than this, and 4 more each time that its records double: a
/// large part must not be left whole because its small parts are near the bound.
const MAX_BYTES_PER_RECORD: u64 = 32;
const MAX_BYTES_PER_DOUBLING: u64 = 4;

/// What is to be divided.
pub(super) struct Partitioner<'a> {
    pub(super) limits: NodeLimits,
    pub(super) keys: &'a [u64],
    /// The lowest and the highest key that are routed here.
    pub(super) low: u64,
    pub(super) high: u64,
    fill: f64,
    max_records: usize,
    /// Data nodes without keys take at most one byte in so many.
    pub(super) empty_bytes_divisor: u64,
}

/// A part of the keys: one data node, or two halves. Among nodes that there are already also what has no keys.
#[derive(Debug)]
pub(super) enum Partition {
    Empty,
    Leaf(Range<usize>),
    Branch(Box<Branch>),
}

/// A part that is halved.
#[derive(Debug)]
pub(super) struct Branch {
    /// Where the second half begins.
    pub(super) middle: u64,
    /// The logarithm of how far keys lie from there, at most: they are within `1 << reach` on either side.
    pub(super) reach: u32,
    /// Keys below the first and from the second on are not in a node with keys. Those may be cut off.
    pub(super) void: (u64, u64),
    pub(super) halves: [Partition; 2],
    pub(super) records: usize,
    /// Halvings from here to each record's data node, added up.
    pub(super) halvings: usize,
    /// Of all data nodes beneath.
    pub(super) bytes: u64,
}

/// The best tree of some part.
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

    /// For nodes that there are already.
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
        in_parallel(&mut jobs, threads, |(range, best)| {
            *best = Some(self.best(range.clone()));
        });
        let mut jobs = jobs.into_iter();
        let best = self.down_to(grain, all, &mut |range| {
            let done = jobs.next().and_then(|(_, best)| best);
            done.unwrap_or_else(|| self.leaf(range))
        });
        best.part
    }

    /// Halves everything that has more than `grain` records, and asks for the parts that have no more.
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

    /// One data node for the keys of `range`. If they are too many, what it costs does not matter.
    fn leaf(&self, range: Range<usize>) -> Best {
        let bytes = self.limits.bytes_for(range.len(), self.fill);
        let keys = &self.keys[range.clone()];
        let records = keys.len() as f64;
        let mut cost = records + node_cost(records);
        if keys.len() <= self.max_records {
            let group = self.limits.group;
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
                void: (middle, middle),
                reach: reach(self.keys[range.start], middle, self.keys[range.end - 1]),
                halvings: range.len() + left.part.halvings() + right.part.halvings(),
                halves: [left.part, right.part],
                records: range.len(),
                bytes,
            })),
        }
    }

    /// The smallest aligned range that holds the keys of `range`, of which there are at least two: its first key and the
    /// logarithm of its width.
    pub(super) fn aligned(&self, range: &Range<usize>) -> (u64, u32) {
        let (first, last) = (self.keys[range.start], self.keys[range.end - 1]);
        let width = 64 - (first ^ last).leading_zeros();
        let start = first.checked_shr(width);
        (start.map_or(0, |high_bits| high_bits << width), width)
    }

    /// Where the second half of `range` begins; `None` if there are no two halves with keys.
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
    /// See [`Branch::halvings`].
    fn halvings(&self) -> usize {
        match self {
            Self::Empty | Self::Leaf(_) => 0,
            Self::Branch(branch) => branch.halvings,
        }
    }

    /// Whether a range of the given width must be halved more than once before this part really has two halves.
    fn skips_empty_halves(&self, width: u32) -> bool {
        matches!(self, Self::Branch(branch) if branch.width() < width)
    }
}

impl Branch {
    /// The first key of an inner node that divides from here on.
    pub(super) fn start(&self) -> u64 {
        self.middle - (1 << self.reach)
    }

    /// The logarithm of the width of the smallest aligned range that holds both halves.
    pub(super) fn width(&self) -> u32 {
        self.middle.trailing_zeros() + 1
    }
}

/// See [`Branch::reach`]. It is no more than `middle` is aligned to.
fn reach(first: u64, middle: u64, last: u64) -> u32 {
    let most = 1 << middle.trailing_zeros();
    let far = (middle - first).max(last - middle + 1).min(most);
    far.next_power_of_two().trailing_zeros()
}

/// The binary tree over nodes that there are already, with `borders` between them and so many `bytes` each, 0 of what has no
/// keys: halved at the borders, those first that are aligned best. None if it would have more than so many levels.
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
    let void = (
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
        // Keys that lie beyond the borders at the ends are in the nodes there.
        reach: reach(first - 1, middle, last),
        void,
        halvings: records + halves.iter().map(Partition::halvings).sum::<usize>(),
        halves,
        records,
        bytes: bytes_of,
    })))
}

/// Misses for the descriptions of data nodes, if each of the node's records is looked up once.
fn node_cost(records: f64) -> f64 {
    (MISSES_NODE_MIRROR * records).min(MAX_MISSES_NODE_MIRROR)
}
