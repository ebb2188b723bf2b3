//! How a data node that is too full is restructured: decisions and plans, which change nothing.
//!
//! The choices, about in the order in which [`smo`](super::smo) tries them:
//!
//! - *replace*: one data node, larger or with another model;
//! - *grow the parent at an edge*: keys lie beyond all slots of the parent, so the parent gets as many slots again on
//!   that side;
//! - *split sideways*: the node's child group has several slots, so its halves get a child group each;
//! - *refine the parent*: the node has a single slot, and twice as many slots of half the width give it two;
//! - *split downwards*: an inner node with several data nodes below takes the place of the node.
//!
//! All boundaries between data nodes are multiples of powers of two: each data node covers a range of keys of a power
//! of two, aligned to that power (but for the nodes at the ends of an inner node). So [`flatten`](super::flatten) can
//! plan other inner nodes over them without moving records.

use super::build::Record;
use super::data::DataNode;
use super::format::is_link;
use super::inner::InnerNode;
use super::layout::{Radix, SLOT_BYTES};
use super::plan::{MIN_DATA_BYTES, NodeLimits, Plan, Trend, with_empty_margins};
use crate::pmem::Cell;

/// Records per slot, at most, of a new data node that lies behind the trend of the keys: few more inserts come there.
const FILL_BEHIND_TREND: f64 = 0.9;

/// Most halvings that a sideways split makes beyond those that separate records, of a node with few records: each
/// halving leaves an empty data node of 512 bytes. A node with more records may make one more for each doubling of
/// them.
const MAX_EMPTY_HALVINGS: u32 = 4;

/// Most slots per child of an inner node that gets twice as many slots: more would be slots that nothing needs.
const MAX_SLOTS_PER_CHILD: usize = 8;

/// An inner node gets twice as many slots, too, if they take at most one byte in this many of the bytes of the data
/// nodes below: slots that little cost hardly any space.
const SLOT_BYTES_DIVISOR: u64 = 20;

/// A lower bound for the bytes of data nodes below an inner node, per byte of its slots: each child has at least 512
/// bytes, and at most [`MAX_SLOTS_PER_CHILD`] slots.
const MIN_SLOT_BYTES_DIVISOR: u64 =
    MIN_DATA_BYTES / (MAX_SLOTS_PER_CHILD * size_of::<Cell>()) as u64;

/// The records of a data node that is to be restructured, and what is known of them.
pub(super) struct NodeContents<'a> {
    pub(super) limits: NodeLimits,
    pub(super) records: &'a [Record],
    pub(super) keys: &'a [u64],
    pub(super) trend: Trend,
}

impl<'a> NodeContents<'a> {
    /// What is known of `records`, the records of `data` in order, with these keys.
    pub(super) fn new(
        limits: NodeLimits,
        data: &DataNode,
        records: &'a [Record],
        keys: &'a [u64],
    ) -> Self {
        let trend = data.built.map_or(Trend::Mixed, |(count, first, last)| {
            let new = keys.len().saturating_sub(count);
            let is_most = |keys: usize| new >= 8 && keys * 10 >= new * 9;
            if is_most(keys.len() - keys.partition_point(|&key| key <= last)) {
                Trend::Up
            } else if is_most(keys.partition_point(|&key| key < first)) {
                Trend::Down
            } else {
                Trend::Mixed
            }
        });
        Self {
            limits,
            records,
            keys,
            trend,
        }
    }

    /// Whether the records are too many for one data node that has free slots for inserts.
    pub(super) fn exceeds_one_node(&self) -> bool {
        let slots = self.limits.max_data_bytes / SLOT_BYTES;
        self.keys.len() as f64 > slots as f64 * self.limits.fill
    }

    /// How many keys are smaller than `boundary`, which may be larger than any key.
    fn count_below(&self, boundary: u128) -> usize {
        self.keys.partition_point(|&key| u128::from(key) < boundary)
    }
}

/// A child group: the slots of an inner node that lead to one child, from `first` on, `1 << log` of them.
#[derive(Clone, Copy)]
pub(super) struct ChildGroup<'a> {
    pub(super) parent: &'a InnerNode,
    pub(super) first: usize,
    pub(super) log: u32,
}

/// A part of the records of a data node that is split, with the child group that is to lead to it.
pub(super) struct SplitPart {
    pub(super) first: usize,
    pub(super) log: u32,
    pub(super) range: (u64, u64),
    /// The indices of its records: from `from` to before `to`.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) plan: Plan,
}

impl ChildGroup<'_> {
    fn radix(self) -> Radix {
        self.parent.radix
    }

    /// The slot behind the last one.
    fn end(self) -> usize {
        self.first + (1 << self.log)
    }

    /// Whether the keys of the child group are an aligned range of all keys, and not only of those from the parent's
    /// `base` on. Only such groups are split or merged, so that all boundaries suit any other inner node (the head of
    /// this file says why).
    pub(super) fn is_aligned_range(self) -> bool {
        let radix = self.radix();
        radix.start_of(self.first).trailing_zeros() >= radix.shift + self.log
    }

    /// Whether the two halves of the child group begin in different cache lines.
    pub(super) fn spans_cache_lines(self) -> bool {
        size_of::<Cell>() << self.log > 64
    }

    /// Whether no slot of the parent lies behind the child group.
    fn is_last(self) -> bool {
        self.end() == self.radix().slots()
    }

    /// Whether twice as many slots of the parent would be well used: there are enough children, or the slots take few
    /// bytes beside those of the data nodes below. The caller is pinned.
    fn is_dense(self, slots: &[Cell]) -> bool {
        let (mut children, mut bytes) = (0, 0);
        for first in (0..slots.len()).filter(|&slot| is_link(slots[slot].load())) {
            children += 1;
            bytes += self.bytes_below(first);
        }
        let more_bytes = 2 * size_of_val(slots) as u64;
        children * MAX_SLOTS_PER_CHILD >= slots.len() || more_bytes * SLOT_BYTES_DIVISOR <= bytes
    }

    /// Bytes of the data nodes below a slot of the parent, at least.
    fn bytes_below(self, slot: usize) -> u64 {
        let child = self.parent.child(slot);
        if child.is_inner() {
            // SAFETY: the caller is pinned, so the node is not freed before it unpins (apex I5).
            let inner = unsafe { &*child.as_inner() };
            (inner.radix.slots() * size_of::<Cell>()) as u64 * MIN_SLOT_BYTES_DIVISOR
        } else {
            // SAFETY: the caller is pinned (apex I5); the pointer of a cold child is null.
            unsafe { child.as_data().as_ref() }.map_or(MIN_DATA_BYTES, |data| data.bytes)
        }
    }

    /// At which edge the parent should grow, if keys of a node that is too full lie beyond all slots of the parent.
    /// `slots` are the durable slots of the parent.
    ///
    /// For keys without a trend, a quarter of the records has to lie beyond. With a trend one key is enough; or none,
    /// unless `needs_key_beyond`, for a node that cannot be split in its child group. An inner node below would take
    /// the keys to come instead, and a further one below that: the tree would get one level for each leap of the keys.
    pub(super) fn growth_at_edge(
        self,
        slots: &[Cell],
        contents: &NodeContents<'_>,
        needs_key_beyond: bool,
    ) -> Option<Growth> {
        let radix = self.radix();
        let parent = Self {
            first: 0,
            log: radix.log_slots,
            ..self
        };
        if radix.log_slots >= contents.limits.max_log_slots || !parent.is_aligned_range() {
            return None;
        }
        let (keys, width) = (contents.keys.len(), (radix.slots() as u128) << radix.shift);
        let end = radix.start_of(radix.slots());
        let above = keys - contents.count_below(end);
        let below = contents.count_below(u128::from(radix.base));
        let are_many = |beyond: usize, trend| {
            beyond * 4 >= keys || contents.trend == trend && (beyond > 0 || !needs_key_beyond)
        };
        // The parent grows only over keys that are routed to it: data nodes for other keys would never be reached.
        let right = self.is_last()
            && are_many(above, Trend::Up)
            && end + width <= u128::from(self.parent.high) + 1;
        let left = self.first == 0
            && are_many(below, Trend::Down)
            && u128::from(self.parent.low) + width <= u128::from(radix.base);
        let growth = match (right, left) {
            (true, _) => Growth::Right,
            (_, true) => Growth::Left,
            _ => return None,
        };
        self.is_dense(slots).then_some(growth)
    }

    /// Whether the node can be split between the slots of its child group, and the split separates enough records.
    pub(super) fn can_split_sideways(self, contents: &NodeContents<'_>) -> bool {
        let radix = self.radix();
        let (Some(&low), Some(&high)) = (contents.keys.first(), contents.keys.last()) else {
            return false;
        };
        let apart = radix.slot_of(low) ^ radix.slot_of(high);
        // At the ends of the parent slots may lie beyond the keys that are routed to the parent. A child there would
        // never be reached.
        let (start, end) = (radix.start_of(self.first), radix.start_of(self.end()));
        let is_inside =
            start >= u128::from(self.parent.low) && end <= u128::from(self.parent.high) + 1;
        // The logarithm of the smallest group of slots that all records are in.
        let log = usize::BITS - apart.leading_zeros();
        let records = contents.keys.len() as u64;
        // With a trend, the empty nodes ahead are for the keys to come.
        let empty_halvings = match contents.trend {
            Trend::Mixed => MAX_EMPTY_HALVINGS + (records / 64).checked_ilog2().unwrap_or(0),
            _ => radix.log_slots,
        };
        let is_near = log > 0 && self.log - log.min(self.log) <= empty_halvings;
        is_inside
            && is_near
            && self.is_aligned_range()
            && self.log > 0
            && radix.shift + self.log < 64
    }

    /// Whether the parent should get twice as many slots, so that a node with a single slot can be split between two.
    pub(super) fn can_refine_parent(self, slots: &[Cell], contents: &NodeContents<'_>) -> bool {
        let radix = self.radix();
        if self.log > 0 || radix.shift == 0 || radix.log_slots >= contents.limits.max_log_slots {
            return false;
        }
        let middle = radix.start_of(self.first) + (1 << (radix.shift - 1));
        let (left, records) = (contents.count_below(middle), contents.keys.len());
        left.min(records - left) * 8 >= records && self.is_dense(slots)
    }

    /// Splits the node between the slots of its child group, until each part makes one data node or has one slot.
    pub(super) fn split_parts(self, contents: &NodeContents<'_>) -> Vec<SplitPart> {
        let mut parts = Vec::new();
        self.halve(contents, 0..contents.keys.len(), &mut parts);
        parts
    }

    /// Splits the child group in halves, and halves the parts in turn.
    fn halve(
        self,
        contents: &NodeContents<'_>,
        range: std::ops::Range<usize>,
        parts: &mut Vec<SplitPart>,
    ) {
        let log = self.log - 1;
        let middle = self.first + (1 << log);
        let left = contents.count_below(self.radix().start_of(middle));
        let left = left.clamp(range.start, range.end);
        let halves = [(self.first, range.start..left), (middle, left..range.end)];
        for (first, range) in halves {
            let half = Self { first, log, ..self };
            let part = half.plan_part(self.radix(), contents, range.clone());
            let is_done = matches!(part.plan, Plan::Data(_)) || half.log == 0;
            if is_done {
                parts.push(part);
            } else {
                half.halve(contents, range, parts);
            }
        }
    }

    /// Plans the records of `range` for this child group of a parent with the slots of `radix`.
    fn plan_part(
        self,
        radix: Radix,
        contents: &NodeContents<'_>,
        range: std::ops::Range<usize>,
    ) -> SplitPart {
        let (low, high) = radix.range_of(self.first, self.log, self.parent.low, self.parent.high);
        let keys = &contents.keys[range.clone()];
        let is_ahead = match contents.trend {
            Trend::Mixed => true,
            Trend::Up => range.end == contents.keys.len(),
            Trend::Down => range.start == 0,
        };
        let plan = if !is_ahead {
            contents
                .limits
                .plan_tree(keys, (low, high), FILL_BEHIND_TREND, 1)
        } else {
            let ahead = contents
                .limits
                .plan_for_trend(keys, (low, high), contents.trend);
            let ahead = ahead.filter(|_| !keys.is_empty());
            let all = || {
                contents
                    .limits
                    .plan_tree(keys, (low, high), contents.limits.fill, 1)
            };
            ahead.map_or_else(all, Plan::Data)
        };
        let plan = with_empty_margins(contents.limits, plan, low, high);
        SplitPart {
            first: self.first,
            log: self.log,
            range: (low, high),
            from: range.start,
            to: range.end,
            plan,
        }
    }

    /// The two parts of the node in a parent that grows.
    pub(super) fn split_for_growth(
        self,
        growth: Growth,
        contents: &NodeContents<'_>,
    ) -> [SplitPart; 2] {
        let old = self.radix();
        let radix = growth.radix(old);
        let (first, _) = growth.new_slots_of(old, self.first);
        let groups = match growth {
            Growth::Finer => [(first, 0), (first + 1, 0)],
            Growth::Right => [(first, self.log), (old.slots(), old.log_slots)],
            Growth::Left => [(0, old.log_slots), (first, self.log)],
        };
        let left = contents.count_below(radix.start_of(groups[1].0));
        let ranges = [0..left, left..contents.keys.len()];
        let parts = groups.into_iter().zip(ranges);
        let mut parts = parts.map(|((first, log), range)| {
            let group = Self { first, log, ..self };
            group.plan_part(radix, contents, range)
        });
        // The array has two groups.
        std::array::from_fn(|_| parts.next().expect("two groups"))
    }
}

/// The radix of an intermediate node for a child group: two slots, one for each half.
pub(super) fn intermediate_radix(group: ChildGroup<'_>) -> Radix {
    let radix = group.radix();
    Radix {
        base: u64::try_from(radix.start_of(group.first))
            .expect("apex I2: keys lead to the child group"),
        shift: radix.shift + group.log - 1,
        log_slots: 1,
    }
}

/// How an inner node gets twice as many slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    /// The slots become half as wide, for the keys of the old ones.
    Finer,
    /// The new slots are for keys above those of the old ones.
    Right,
    /// The new slots are for keys below those of the old ones.
    Left,
}

impl Growth {
    /// The radix of the inner node that has grown.
    pub(super) fn radix(self, old: Radix) -> Radix {
        let (mut base, mut shift) = (old.base, old.shift);
        match self {
            Self::Finer => shift -= 1,
            Self::Right => {}
            Self::Left => base -= (old.slots() as u64) << old.shift,
        }
        Radix {
            base,
            shift,
            log_slots: old.log_slots + 1,
        }
    }

    /// The slots that an old slot becomes: the first, and the logarithm of their number.
    pub(super) fn new_slots_of(self, old: Radix, slot: usize) -> (usize, u32) {
        match self {
            Self::Finer => (slot * 2, 1),
            Self::Right => (slot, 0),
            Self::Left => (slot + old.slots(), 0),
        }
    }
}
