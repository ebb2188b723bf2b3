//! Making inner nodes from a binary tree.
//!
//! An inner node with 2^k slots stands for k levels of the binary tree. More levels in one inner node shorten the path
//! to a record, but the slots take space, and data nodes without keys have to fill the child groups of halves that the
//! binary tree skips. So for each inner node the number of slots is chosen that costs lookups the fewest misses within
//! bounds of space. What is below becomes inner nodes in turn.

use super::halve::{Branch, Partition, Partitioner};
use super::{DataPlan, InnerPlan, MIN_DATA_BYTES, Plan};
use crate::engines::apex::model::Model;
use std::ops::Range;

/// Data nodes without keys take at most one byte in this many of the bytes of the data nodes below an inner node.
pub(super) const EMPTY_NODE_BYTES_DIVISOR: u64 = 20;

/// The same bound where inner nodes are planned over existing data nodes: most data nodes without keys exist already.
pub(super) const EMPTY_NODE_BYTES_DIVISOR_REPLAN: u64 = 1;

/// The slots of an inner node take at most one byte in this many of the bytes of the data nodes below, unless there
/// are no more than [`MAX_SLOTS_PER_CHILD`] slots per child.
const SLOT_BYTES_DIVISOR: u64 = 20;

/// An inner node may have this many slots per child, however many bytes they take.
const MAX_SLOTS_PER_CHILD: usize = 4;

/// Misses that a lookup has for each further inner node on its path.
const MISSES_PER_LEVEL: f64 = 0.3;

/// Misses that a lookup has for each halving that is left to inner nodes further down: where many are left, the next
/// inner node is not the last one.
const MISSES_PER_HALVING_LEFT: f64 = 0.03;

/// Misses of every lookup for slots that take as many bytes as the data nodes below; in proportion for fewer.
const MISSES_PER_SLOT_SHARE: f64 = 4.0;

/// Bytes of a slot of an inner node.
const SLOT_BYTES: u64 = 8;

/// An aligned group of slots of a planned inner node.
#[derive(Clone, Copy)]
struct PlannedGroup {
    /// The first slot.
    slot: usize,
    /// The first key of the first slot.
    start: u64,
    /// The logarithm of the number of keys in all slots of the group.
    width: u32,
    /// The lowest and the highest key that are routed here: at the ends of the inner node more keys than the slots
    /// cover.
    low: u64,
    high: u64,
}

impl PlannedGroup {
    /// All slots of an inner node that begins at `branch`.
    fn of(branch: &Branch, low: u64, high: u64) -> Self {
        Self {
            slot: 0,
            start: branch.start(),
            width: branch.reach + 1,
            low,
            high,
        }
    }

    /// The first key of the second half.
    fn middle(self) -> u64 {
        self.start + (1 << (self.width - 1))
    }

    /// The two halves of the group, in an inner node whose slots have `1 << shift` keys each.
    fn halves(self, shift: u32) -> [Self; 2] {
        let (width, middle) = (self.width - 1, self.middle());
        let left = Self {
            width,
            high: middle - 1,
            ..self
        };
        let right = Self {
            slot: self.slot + (1 << (width - shift)),
            start: middle,
            width,
            low: middle,
            high: self.high,
        };
        [left, right]
    }
}

impl Partitioner<'_> {
    /// The tree of nodes for the binary tree `tree`. Its data nodes have indices of keys and ranges, but no sizes and
    /// models yet.
    pub(super) fn collapse(&self, tree: &Partition) -> Plan {
        match tree {
            Partition::Branch(branch) => Plan::Inner(self.inner(branch, self.low, self.high)),
            Partition::Leaf(range) if self.low == 0 && self.high == u64::MAX => {
                Plan::Inner(self.two_data_nodes(range.clone()))
            }
            Partition::Leaf(range) => keys_only_plan(range.clone(), self.low, self.high),
            Partition::Empty => keys_only_plan(0..0, self.low, self.high),
        }
    }

    /// Two data nodes for keys that one could hold, because no data node may cover all keys. All keys are in one of the
    /// two, if there is a simple border with no keys on one side.
    fn two_data_nodes(&self, range: Range<usize>) -> InnerPlan {
        let simple = [(0, 63), (0, 62), (1 << 63, 62)]
            .into_iter()
            .find(|(base, shift)| {
                let border = base + (1 << shift);
                let left = self.keys.partition_point(|&key| key < border);
                left == 0 || left == self.keys.len()
            });
        // Otherwise the keys lie far apart, and there are at least two.
        let (base, shift) = simple.unwrap_or_else(|| {
            let (start, width) = self.aligned(&range);
            (start, width.max(1) - 1)
        });
        let border = base + (1 << shift);
        let middle = self.keys.partition_point(|&key| key < border);
        let left = keys_only_plan(range.start..middle, 0, border - 1);
        let right = keys_only_plan(middle..range.end, border, u64::MAX);
        InnerPlan {
            base,
            shift,
            log_slots: 1,
            children: vec![(0, left), (1, right)],
        }
    }

    /// The inner node that begins at `branch`, with all nodes below it.
    fn inner(&self, branch: &Branch, low: u64, high: u64) -> InnerPlan {
        let log_slots = self.log_slots(branch, low, high);
        let shift = branch.reach + 1 - log_slots;
        let mut children = Vec::new();
        self.visit_halves(
            branch,
            PlannedGroup::of(branch, low, high),
            shift,
            &mut |group, part| {
                let child = match part {
                    None | Some(Partition::Empty) => {
                        let at = self.keys.partition_point(|&key| key < group.low);
                        keys_only_plan(at..at, group.low, group.high)
                    }
                    Some(Partition::Leaf(range)) => {
                        keys_only_plan(range.clone(), group.low, group.high)
                    }
                    Some(Partition::Branch(branch)) => {
                        Plan::Inner(self.inner(branch, group.low, group.high))
                    }
                };
                children.push((group.slot, child));
            },
        );
        InnerPlan {
            base: branch.start(),
            shift,
            log_slots,
            children,
        }
    }

    /// The number of levels of the binary tree that make one inner node.
    fn log_slots(&self, branch: &Branch, low: u64, high: u64) -> u32 {
        let (mut best, mut best_cost) = (1, f64::INFINITY);
        let width = branch.reach + 1;
        for log_slots in 1..=width.min(self.limits.max_log_slots) {
            let (mut children, mut deeper) = (0, 0.0);
            let group = PlannedGroup::of(branch, low, high);
            self.visit_halves(branch, group, width - log_slots, &mut |_, part| {
                children += 1;
                if let Some(Partition::Branch(branch)) = part {
                    deeper += MISSES_PER_LEVEL * branch.records as f64
                        + MISSES_PER_HALVING_LEFT * branch.halvings as f64;
                }
            });
            let bytes = SLOT_BYTES << log_slots;
            if log_slots > 1
                && bytes > branch.bytes / SLOT_BYTES_DIVISOR
                && 1 << log_slots > MAX_SLOTS_PER_CHILD * children
            {
                continue;
            }
            let cost = deeper / branch.records as f64
                + MISSES_PER_SLOT_SHARE * bytes as f64 / branch.bytes as f64;
            if cost < best_cost {
                (best, best_cost) = (log_slots, cost);
            }
            if deeper == 0.0 {
                break;
            }
        }
        best
    }

    /// Visits the children of an inner node in the halves of `branch`, from left to right.
    fn visit_halves(
        &self,
        branch: &Branch,
        group: PlannedGroup,
        shift: u32,
        visit: &mut dyn FnMut(PlannedGroup, Option<&Partition>),
    ) {
        let [left, right] = group.halves(shift);
        self.visit(&branch.halves[0], left, shift, visit);
        self.visit(&branch.halves[1], right, shift, visit);
    }

    /// Visits the children of an inner node in the place of `part`, from left to right: the parts that they stand for,
    /// or `None` for a child without keys.
    fn visit(
        &self,
        part: &Partition,
        group: PlannedGroup,
        shift: u32,
        visit: &mut dyn FnMut(PlannedGroup, Option<&Partition>),
    ) {
        let branch = match part {
            Partition::Branch(branch)
                if group.width > shift && self.can_be_halved_at(branch, shift, group) =>
            {
                branch
            }
            _ => return visit(group, Some(part)),
        };
        if branch.middle == group.middle() {
            return self.visit_halves(branch, group, shift, visit);
        }
        let [left, right] = group.halves(shift);
        if branch.middle < right.start {
            self.visit(part, left, shift, visit);
            visit(right, None);
        } else {
            visit(left, None);
            self.visit(part, right, shift, visit);
        }
    }

    /// Whether the group is halved where `branch` is, or the halves that are skipped on the way to `branch` may become
    /// data nodes without keys. Otherwise the group becomes a child group of its own, with an inner node below.
    fn can_be_halved_at(&self, branch: &Branch, shift: u32, group: PlannedGroup) -> bool {
        if branch.middle == group.middle() {
            return true;
        }
        let is_empty_node = if group.middle() < branch.middle {
            group.middle() < branch.empty_margins.0
        } else {
            group.middle() > branch.empty_margins.1
        };
        if !is_empty_node || branch.width() <= shift || branch.width() > group.width {
            return false;
        }
        let passed = u64::from(group.width - branch.width());
        let end = u128::from(group.start) + (1 << group.width);
        let reachable = group.start >= self.low && end <= u128::from(self.high) + 1;
        reachable && passed * MIN_DATA_BYTES * self.empty_bytes_divisor <= branch.bytes
    }
}

/// The plan of a data node of which only the keys and the range are known.
fn keys_only_plan(range: Range<usize>, low: u64, high: u64) -> Plan {
    Plan::Data(DataPlan {
        first: range.start,
        last: range.end,
        low,
        high,
        bytes: 0,
        primary: 0,
        stash: 0,
        model: Model::default(),
    })
}
