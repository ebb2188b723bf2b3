//! What operations come to a node, and how its successor is laid out for them (section 3.4 of the paper).
//!
//! The paper counts each operation in its node. Here a thread counts one operation in [`SAMPLED`], so that threads which read one node seldom write to a
//! line that they share. When so many have been counted in a node that they say something, the node gets a [`Pattern`], and the counts begin
//! again. The pattern decides how the node's successor is laid out when the node is full:
//!
//! | pattern | most of the work | window, slots | slots per hundred records |
//! |---|---|---|---|
//! | writing | inserts and removals | as the options say, 32 | 180, and 20 more for each time in a row, up to 240 |
//! | reading | lookups and updates | 24 | 180 |
//! | scanning | ranges | 72 | 180 |
//! | mixed, or not known | | as the options say, 32 | 180 |
//! | cold | a compaction has found few records in it | 72 | 125 |
//!
//! The paper gives nodes to which many writes come a window of 64 slots, and up to 300 slots per hundred records. With that window nodes are replaced
//! later, and then all at about the same time; with 300 slots a map takes more space than it should (`docs/optimising.md`).

use super::Index;
use super::node::Node;
use super::options::LoftOptions;
use super::plan::Plan;
use crate::pmem::geometry::sized_in_tests;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Operations of a thread of which one is counted: a power of two.
pub(super) const SAMPLED: u32 = sized_in_tests(64, 2) as u32;

/// Slots of a node for each unit of weight of the operations that are counted before the node gets its pattern.
const SLOTS_PER_WEIGHT: u64 = sized_in_tests(128, 16) as u64;
/// What they weigh at least.
const LEAST_WEIGHT: u64 = 8;

/// What an operation weighs, by [`Counted`]: about as much as the time that it takes, that of a lookup being one.
const WEIGHTS: [u64; 3] = [4, 1, 16];

/// What an operation is for the counts.
#[derive(Clone, Copy)]
pub(super) enum Counted {
    /// It changes which keys there are.
    Write,
    /// A lookup, or an update.
    Read,
    /// A part of a range.
    Range,
}

/// What operations come to a node, mostly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum Pattern {
    Unknown,
    Mixed,
    Writing,
    Reading,
    Scanning,
}

impl Pattern {
    fn from_code(code: u8) -> Self {
        let all = [
            Self::Unknown,
            Self::Mixed,
            Self::Writing,
            Self::Reading,
            Self::Scanning,
        ];
        all[usize::from(code)]
    }

    fn of(writes: u64, reads: u64, ranges: u64) -> Self {
        match writes + reads + ranges {
            all if writes * 2 > all => Self::Writing,
            all if ranges * 2 > all => Self::Scanning,
            all if reads * 8 > all * 7 => Self::Reading,
            _ => Self::Mixed,
        }
    }
}

/// Bits of one of the three counts. No count comes near the largest number of so many bits: the largest node has a pattern, and counts anew, long before.
const COUNT_BITS: u32 = 21;

/// Three counts in one word, and what the last ones came to.
pub(super) struct Samples {
    counts: AtomicU64,
    pattern: AtomicU8,
}

impl Samples {
    /// No counts yet; the pattern is that of the node before, as far as is known.
    pub(super) fn begin(pattern: Pattern) -> Self {
        Self {
            counts: AtomicU64::new(0),
            pattern: AtomicU8::new(pattern as u8),
        }
    }

    pub(super) fn pattern(&self) -> Pattern {
        Pattern::from_code(self.pattern.load(Ordering::Relaxed))
    }

    /// Counts an operation. If those that were counted weigh enough, they say what the pattern is, and the counts begin anew.
    fn add(&self, what: Counted, enough: u64) {
        let one = 1 << (COUNT_BITS * what as u32);
        let counts = self.counts.fetch_add(one, Ordering::Relaxed) + one;
        let weight = |what: Counted| {
            let count = counts >> (COUNT_BITS * what as u32) & ((1 << COUNT_BITS) - 1);
            count * WEIGHTS[what as usize]
        };
        let [writes, reads, ranges] = [Counted::Write, Counted::Read, Counted::Range].map(weight);
        if writes + reads + ranges >= enough {
            self.counts.store(0, Ordering::Relaxed);
            let pattern = Pattern::of(writes, reads, ranges);
            self.pattern.store(pattern as u8, Ordering::Relaxed);
        }
    }
}

impl Node {
    /// Counts an operation that has come here.
    #[cold]
    pub(super) fn sampled(&self, what: Counted) {
        let enough = self.slot_count as u64 / SLOTS_PER_WEIGHT;
        self.samples.add(what, enough.max(LEAST_WEIGHT));
    }
}

/// Slots per hundred records, at least, of the successor of a node that is full.
const FULL_EXPANSION: u64 = 180;
/// Slots per hundred records that nodes get more, each time in a row that they are full, to which mostly writes come.
const MORE_FOR_WRITES: u64 = 20;
/// Extents of a map from which on they get more. In a smaller one, each size of blocks that is in use takes a large part of the space.
const EXTENTS_FOR_MORE: u64 = sized_in_tests(40, 1) as u64;

/// Windows of 72 and of 24 slots, in lines.
pub(super) const WIDE_WINDOW: u64 = 18;
const NARROW_WINDOW: u64 = 6;

impl Index {
    /// A window of so many lines, unless the options ask for another than the usual one.
    pub(super) fn window_or(&self, tuned: u64) -> u64 {
        let asked = self.options.window_lines();
        match asked == LoftOptions::default().window_lines() {
            true => tuned,
            false => asked,
        }
    }

    /// The plan for the successor of a node that is full, to which such operations come.
    pub(super) fn tuned<'a>(&self, plan: Plan<'a>, pattern: Pattern) -> Plan<'a> {
        let gets_more = pattern == Pattern::Writing && self.blocks.extents() >= EXTENTS_FOR_MORE;
        let more = u64::from(gets_more) * MORE_FOR_WRITES * u64::from(plan.expansions);
        let window = match pattern {
            Pattern::Reading => self.window_or(NARROW_WINDOW),
            Pattern::Scanning => self.window_or(WIDE_WINDOW),
            _ => plan.window,
        };
        Plan {
            window,
            pattern,
            expansion: plan.expansion.max(FULL_EXPANSION + more),
            ..plan
        }
    }
}
