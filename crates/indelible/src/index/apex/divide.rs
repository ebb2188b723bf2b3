//! How a node that is too full is to be changed: decisions, which touch nothing.

use super::build::Record;
use super::data::Data;
use super::format::is_link;
use super::inner::Inner;
use super::layout::{Radix, SLOT_BYTES};
use super::plan::{MIN_DATA_BYTES, Plan, Shape, Trend, with_room_around};
use crate::pmem::Cell;

/// Records per slot in a node that has just been laid out where no more inserts are expected, at most.
const FILL_BEHIND: f64 = 0.9;

/// Halvings that a split may take beyond those that records call for, of nodes with few records: each leaves an empty node.
const IDLE_HALVINGS: u32 = 4;

/// Of the slots of an inner node, one in so many must have a child of its own before it gets more.
const SLOTS_PER_CHILD: usize = 8;

/// Or its slots take one byte in so many of those of the data nodes beneath, at most.
const SLOT_SHARE: u64 = 20;

/// No inner node's slots take more than one byte in so many of the data nodes beneath: a node has 512 bytes for its slots.
const LEAST_SHARE: u64 = MIN_DATA_BYTES / (SLOTS_PER_CHILD * size_of::<Cell>()) as u64;

/// Records that are to be laid out anew, and what is known of them.
pub(super) struct Load<'a> {
    pub(super) shape: Shape,
    pub(super) records: &'a [Record],
    pub(super) keys: &'a [u64],
    pub(super) trend: Trend,
}

impl<'a> Load<'a> {
    /// The records of `data`, in order, and their keys.
    pub(super) fn new(shape: Shape, data: &Data, records: &'a [Record], keys: &'a [u64]) -> Self {
        let trend = data.built.map_or(Trend::No, |(count, first, last)| {
            let new = keys.len().saturating_sub(count);
            let is_most = |keys: usize| new >= 8 && keys * 10 >= new * 9;
            if is_most(keys.len() - keys.partition_point(|&key| key <= last)) {
                Trend::Up
            } else if is_most(keys.partition_point(|&key| key < first)) {
                Trend::Down
            } else {
                Trend::No
            }
        });
        Self {
            shape,
            records,
            keys,
            trend,
        }
    }

    /// Whether they are too many for one node, with room for more.
    pub(super) fn is_too_much(&self) -> bool {
        let slots = self.shape.max_data_bytes / SLOT_BYTES;
        self.keys.len() as f64 > slots as f64 * self.shape.fill
    }

    /// How many keys are less than a boundary, which may lie beyond all.
    fn below(&self, boundary: u128) -> usize {
        self.keys.partition_point(|&key| u128::from(key) < boundary)
    }
}

/// The group of slots of a node's parent that lead to it.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub(super) parent: &'a Inner,
    pub(super) first: usize,
    pub(super) log: u32,
}

/// A part of a node's records, with the slots that are to lead to it.
pub(super) struct Part {
    pub(super) first: usize,
    pub(super) log: u32,
    pub(super) range: (u64, u64),
    /// Its records: from the first to before the second.
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) plan: Plan,
}

impl Group<'_> {
    fn radix(self) -> Radix {
        self.parent.radix
    }

    /// The slot after the last one.
    fn end(self) -> usize {
        self.first + (1 << self.log)
    }

    /// Whether its keys are an aligned range of all keys, not only as seen from the parent. All borders are to be borders of
    /// such ranges, so that other inner nodes can be laid out over them.
    pub(super) fn is_cell(self) -> bool {
        let radix = self.radix();
        radix.start_of(self.first).trailing_zeros() >= radix.shift + self.log
    }

    /// Whether its halves begin in different cache lines.
    pub(super) fn has_lines(self) -> bool {
        size_of::<Cell>() << self.log > 64
    }

    fn is_last(self) -> bool {
        self.end() == self.radix().slots()
    }

    /// Whether twice as many slots of the parent would not stand empty: there are enough children, or so much beneath them
    /// that the slots do not count. The caller is pinned.
    fn is_dense(self, slots: &[Cell]) -> bool {
        let (mut children, mut bytes) = (0, 0);
        for first in (0..slots.len()).filter(|&slot| is_link(slots[slot].load())) {
            children += 1;
            bytes += self.bytes_beneath(first);
        }
        let more_bytes = 2 * size_of_val(slots) as u64;
        children * SLOTS_PER_CHILD >= slots.len() || more_bytes * SLOT_SHARE <= bytes
    }

    /// Bytes of the data nodes beneath a slot of the parent, at least.
    fn bytes_beneath(self, slot: usize) -> u64 {
        let child = self.parent.child(slot);
        if child.is_inner() {
            // SAFETY: reached while pinned.
            let inner = unsafe { &*child.as_inner() };
            (inner.radix.slots() * size_of::<Cell>()) as u64 * LEAST_SHARE
        } else {
            // SAFETY: as above; null if it is cold.
            unsafe { child.as_data().as_ref() }.map_or(MIN_DATA_BYTES, |data| data.bytes)
        }
    }

    /// Whether keys of a node that is too small for them lie beyond all slots, and the parent should grow there. `slots` are
    /// the parent's durable ones.
    ///
    /// With a trend few such keys are as good as many; and none, if the node cannot be split in its group of slots, which is
    /// not `enough` then. Else an inner node beneath would be where keys are added from then on, and so on: the tree would
    /// become as deep as keys have leapt.
    pub(super) fn growth_at_the_edge(
        self,
        slots: &[Cell],
        load: &Load<'_>,
        enough: bool,
    ) -> Option<Growth> {
        let radix = self.radix();
        let parent = Self {
            first: 0,
            log: radix.log_slots,
            ..self
        };
        if radix.log_slots >= load.shape.max_log_slots || !parent.is_cell() {
            return None;
        }
        let (keys, width) = (load.keys.len(), (radix.slots() as u128) << radix.shift);
        let end = radix.start_of(radix.slots());
        let above = keys - load.below(end);
        let below = load.below(u128::from(radix.base));
        let is_many = |beyond: usize, trend| {
            beyond * 4 >= keys || load.trend == trend && (beyond > 0 || !enough)
        };
        // New slots for keys that are not routed to this parent would have nodes that nobody ever comes to.
        let right = self.is_last()
            && is_many(above, Trend::Up)
            && end + width <= u128::from(self.parent.high) + 1;
        let left = self.first == 0
            && is_many(below, Trend::Down)
            && u128::from(self.parent.low) + width <= u128::from(radix.base);
        let growth = match (right, left) {
            (true, _) => Growth::Right,
            (_, true) => Growth::Left,
            _ => return None,
        };
        self.is_dense(slots).then_some(growth)
    }

    /// Whether the node can be split between the slots that lead to it, and gains by it.
    pub(super) fn can_divide(self, load: &Load<'_>) -> bool {
        let radix = self.radix();
        let (Some(&low), Some(&high)) = (load.keys.first(), load.keys.last()) else {
            return false;
        };
        let apart = radix.slot_of(low) ^ radix.slot_of(high);
        // At the ends of a node slots may lie beyond the keys that are routed there, where no child would be found.
        let (start, end) = (radix.start_of(self.first), radix.start_of(self.end()));
        let is_inside =
            start >= u128::from(self.parent.low) && end <= u128::from(self.parent.high) + 1;
        // The group of slots that all records are in.
        let log = usize::BITS - apart.leading_zeros();
        let records = load.keys.len() as u64;
        // Where keys go on, the empty nodes ahead are for the next ones.
        let idle = match load.trend {
            Trend::No => IDLE_HALVINGS + (records / 64).checked_ilog2().unwrap_or(0),
            _ => radix.log_slots,
        };
        let is_near = log > 0 && self.log - log.min(self.log) <= idle;
        is_inside && is_near && self.is_cell() && self.log > 0 && radix.shift + self.log < 64
    }

    /// Whether the parent should have twice as many slots, so that the node can be split between two of them.
    pub(super) fn can_be_finer(self, slots: &[Cell], load: &Load<'_>) -> bool {
        let radix = self.radix();
        if self.log > 0 || radix.shift == 0 || radix.log_slots >= load.shape.max_log_slots {
            return false;
        }
        let middle = radix.start_of(self.first) + (1 << (radix.shift - 1));
        let (left, records) = (load.below(middle), load.keys.len());
        left.min(records - left) * 8 >= records && self.is_dense(slots)
    }

    /// Splits the node between slots of the parent, until each part is well off as it is or has one slot.
    pub(super) fn divide(self, load: &Load<'_>) -> Vec<Part> {
        let mut parts = Vec::new();
        self.halve(load, 0..load.keys.len(), &mut parts);
        parts
    }

    fn halve(self, load: &Load<'_>, range: std::ops::Range<usize>, parts: &mut Vec<Part>) {
        let log = self.log - 1;
        let middle = self.first + (1 << log);
        let left = load.below(self.radix().start_of(middle));
        let left = left.clamp(range.start, range.end);
        let halves = [(self.first, range.start..left), (middle, left..range.end)];
        for (first, range) in halves {
            let half = Self { first, log, ..self };
            let part = half.part(self.radix(), load, range.clone());
            let is_done = matches!(part.plan, Plan::Data(_)) || half.log == 0;
            if is_done {
                parts.push(part);
            } else {
                half.halve(load, range, parts);
            }
        }
    }

    /// Some of the records, as they would best lie behind this group of slots of a parent that divides as `radix` says.
    fn part(self, radix: Radix, load: &Load<'_>, range: std::ops::Range<usize>) -> Part {
        let (low, high) = radix.range_of(self.first, self.log, self.parent.low, self.parent.high);
        let keys = &load.keys[range.clone()];
        let is_ahead = match load.trend {
            Trend::No => true,
            Trend::Up => range.end == load.keys.len(),
            Trend::Down => range.start == 0,
        };
        let plan = if !is_ahead {
            load.shape.plan(keys, (low, high), FILL_BEHIND, 1)
        } else {
            let ahead = load.shape.trend(keys, (low, high), load.trend);
            let ahead = ahead.filter(|_| !keys.is_empty());
            let all = || load.shape.plan(keys, (low, high), load.shape.fill, 1);
            ahead.map_or_else(all, Plan::Data)
        };
        let plan = with_room_around(load.shape, plan, low, high);
        Part {
            first: self.first,
            log: self.log,
            range: (low, high),
            from: range.start,
            to: range.end,
            plan,
        }
    }

    /// The two parts of the node when its parent grows.
    pub(super) fn split_at(self, growth: Growth, load: &Load<'_>) -> [Part; 2] {
        let old = self.radix();
        let radix = growth.radix(old);
        let (first, _) = growth.place(old, self.first);
        let groups = match growth {
            Growth::Finer => [(first, 0), (first + 1, 0)],
            Growth::Right => [(first, self.log), (old.slots(), old.log_slots)],
            Growth::Left => [(0, old.log_slots), (first, self.log)],
        };
        let left = load.below(radix.start_of(groups[1].0));
        let ranges = [0..left, left..load.keys.len()];
        let parts = groups.into_iter().zip(ranges);
        let mut parts = parts.map(|((first, log), range)| {
            let group = Self { first, log, ..self };
            group.part(radix, load, range)
        });
        // There are two groups.
        std::array::from_fn(|_| parts.next().expect("two groups"))
    }
}

/// How a node between divides the group of a node that is split, or of two that are merged: in two halves.
pub(super) fn radix_between(group: Group<'_>) -> Radix {
    let radix = group.radix();
    Radix {
        base: u64::try_from(radix.start_of(group.first)).unwrap_or(u64::MAX),
        shift: radix.shift + group.log - 1,
        log_slots: 1,
    }
}

/// What an inner node becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Growth {
    /// Twice as many slots for the same keys.
    Finer,
    /// Twice as many slots, the new ones for keys above the old ones.
    Right,
    /// Or below.
    Left,
}

impl Growth {
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

    /// The slots that an old one becomes: the first, and the logarithm of their number.
    pub(super) fn place(self, old: Radix, slot: usize) -> (usize, u32) {
        match self {
            Self::Finer => (slot * 2, 1),
            Self::Right => (slot, 0),
            Self::Left => (slot + old.slots(), 0),
        }
    }
}
