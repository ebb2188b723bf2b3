//! How nodes are to be laid out, and how that follows from what came to the node before (section 3.4 of the paper).

use super::Index;
use super::inner::Side;
use super::node::Node;
use super::tuning::Pattern;
use crate::engines::blocks::Surplus;
use crate::pmem::geometry::sized_in_tests;
use crate::pool::{EXTENT_BYTES, Offset};

/// A record.
pub(super) type Record = (u64, u64);

/// Inserts into a node that went beyond half a window, or into buckets, before the node is replaced: one in so many slots, as many as the
/// records it was made with that lie far, and some more.
const SLOTS_PER_FAR: u32 = 32;
const LEAST_FAR: u32 = sized_in_tests(8, 2) as u32;

/// Slots per hundred records, at least, of a node whose keys ascend or descend: where keys have been, few come, and as many slots again are for those that will.
const GROWING_EXPANSION: u64 = 260;

/// Nodes in a row that were laid out anew since they were full, as far as they are counted.
const MOST_EXPANSIONS: u32 = 3;

/// Slots of a node of a map that grows, in percent of what its plan says.
const LEAST_VARIED: u64 = 85;
const MOST_VARIED: u64 = 121;
/// Slots per hundred records of a node at least.
pub(super) const LEAST_EXPANSION: u64 = 105;

/// Extents of a map from which on data nodes have blocks of all sizes: each size that is in use may have an extent that is mostly free.
const EXTENTS_FOR_ALL_SIZES: u64 = 4;

/// How nodes are to be laid out.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    /// Slots per hundred records.
    pub(super) expansion: u64,
    /// Whether nodes have a little more or fewer slots, so that not all of them are full at the same time.
    pub(super) varies: bool,
    /// Lines of a window.
    pub(super) window: u64,
    /// Whether the records are stored; otherwise they only say how many keys lie where.
    pub(super) stores: bool,
    /// Where more keys are expected.
    pub(super) growth: Growth,
    pub(super) expansions: u32,
    /// What operations came to the node that is laid out.
    pub(super) pattern: Pattern,
    /// Where the node that is laid out lies among the children of its parent.
    pub(super) side: Side,
    /// Whether data nodes have blocks of all sizes.
    pub(super) has_all_sizes: bool,
    /// Blocks lie before those extents, in a compaction, and before this block.
    pub(super) surplus: Option<(&'a Surplus, Offset)>,
    /// Bytes of data nodes at least, up to the largest: what a node needs may not be there.
    pub(super) least_bytes: u64,
    /// Whether blocks may be had of those that are [spared](super::build::SPARED_BLOCKS).
    pub(super) has_spared: bool,
    /// Blocks lie on the heap, since the pool may not be written.
    pub(super) on_heap: bool,
}

/// Where more keys are expected in a new node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    /// Between those that it has.
    Inside,
    /// Above the last one.
    Upwards,
    /// Below the first one.
    Downwards,
}

impl Plan<'_> {
    /// The plan with slots that vary, as many as before on average, if also the nodes with the fewest have some room.
    pub(super) fn varied(self) -> Self {
        let expansion = self.expansion * 200 / (LEAST_VARIED + MOST_VARIED);
        match expansion * LEAST_VARIED / 100 >= LEAST_EXPANSION {
            true => Self {
                expansion,
                varies: true,
                ..self
            },
            false => self,
        }
    }

    /// Slots per hundred records of the node with this lowest key.
    pub(super) fn expansion_at(&self, low: u64) -> u64 {
        let hash = low.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        match self.varies {
            true => self.expansion * (LEAST_VARIED + hash % (MOST_VARIED - LEAST_VARIED)) / 100,
            false => self.expansion,
        }
    }
}

/// Where most of the inserts went that this node has got, of which these are the records.
fn growth_of(node: &Node, records: &[Record]) -> Growth {
    let end = node.model.first.saturating_add(node.model.span);
    let above = records.len() - records.partition_point(|record| record.0 <= end);
    let below = records.partition_point(|record| record.0 < node.model.first);
    let inserted = records.len().checked_sub(node.born as usize);
    let is_most = |count: usize| {
        let is_most_of = |inserted| count * 2 > inserted && count as u32 * 2 > far_enough(node);
        count * 4 > records.len() || inserted.is_some_and(is_most_of)
    };
    match above >= below {
        true if is_most(above) => Growth::Upwards,
        false if is_most(below) => Growth::Downwards,
        _ => Growth::Inside,
    }
}

/// Inserts that go far before a node is replaced, where none of the records with which it was made lies far.
pub(super) fn far_enough(node: &Node) -> u32 {
    LEAST_FAR + node.slot_count as u32 / SLOTS_PER_FAR
}

impl Index {
    pub(super) fn plan(&self) -> Plan<'static> {
        Plan {
            expansion: self.options.expansion(),
            varies: false,
            window: self.options.window_lines(),
            stores: false,
            growth: Growth::Inside,
            expansions: 0,
            pattern: Pattern::Unknown,
            side: Side::Part,
            has_all_sizes: self.blocks.extents() >= EXTENTS_FOR_ALL_SIZES,
            surplus: None,
            least_bytes: 0,
            has_spared: false,
            on_heap: false,
        }
    }

    /// The parameters for the successor of a node (section 3.4).
    pub(super) fn plan_for(&self, node: &Node, side: Side, records: &[Record]) -> Plan<'static> {
        let mut plan = self.plan();
        plan.side = side;
        let is_full = records.len() * 2 >= node.slot_count;
        let expansions = if is_full { node.expansions + 1 } else { 0 };
        plan.expansions = expansions.min(MOST_EXPANSIONS);
        if is_full {
            plan.varies = plan.has_all_sizes;
            plan = self.tuned(plan, node.samples.pattern());
        }
        plan.growth = growth_of(node, records);
        if plan.growth != Growth::Inside {
            plan.expansion = plan.expansion.max(GROWING_EXPANSION);
        }
        plan
    }
}

/// Whether so many bytes of slots are enough for blocks of all sizes.
pub(super) fn need_all_sizes(bytes: u64) -> bool {
    bytes >= EXTENTS_FOR_ALL_SIZES * EXTENT_BYTES
}
