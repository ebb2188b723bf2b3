//! The model of a data node, and how well keys fit along it.
//!
//! A model is a line from keys to slots. It gives a key its *predicted slot* in the primary array. The line is computed
//! in integers of fixed point, so that it predicts the same slot on every machine and after every open, and predicted
//! slots never descend as keys ascend. Fitting a model to keys uses floating point, once for each new data node; only
//! the fitted integers are durable. (The paper's models are two floating point numbers.)
//!
//! The simulation at the end of this file inserts keys into an array of counters. Plans use it to predict how many
//! records of a data node would be displaced or overflow.

use crate::kernels::{LINE_RECORDS, PAIR_RECORDS};
use crate::pmem::geometry::sized_in_tests;

/// Slots of a group of the primary array. A window never leaves its group, and each group has a version lock.
pub(super) const GROUP_SLOTS: usize = sized_in_tests(256, 32);

/// Slots of a window: the line pair of the predicted slot and one more. A record that finds no free slot there goes to
/// the stash. (The paper's probing distance is 16, too.)
pub(super) const WINDOW_SLOTS: usize = 16;

/// Slots in a cache line.
pub(super) const LINE_SLOTS: usize = LINE_RECORDS;

/// Slots in a line pair: two neighbouring cache lines, which processors fetch together.
pub(super) const LINE_PAIR_SLOTS: usize = PAIR_RECORDS;

/// Line pairs in a group.
pub(super) const GROUP_LINE_PAIRS: usize = GROUP_SLOTS / LINE_PAIR_SLOTS;

/// Most slots of a primary array: a predicted slot has 14 bits before the binary point and 48 behind it.
pub(super) const MAX_PRIMARY_SLOTS: usize = 1 << 14;

/// Bits of a predicted slot behind the binary point.
const FRACTION_BITS: u32 = 48;

const _: () = assert!(
    WINDOW_SLOTS == 2 * LINE_PAIR_SLOTS
        && GROUP_SLOTS.is_power_of_two()
        && GROUP_SLOTS >= WINDOW_SLOTS
);

/// A line from keys to slots, in fixed point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    /// Keys up to this one are predicted in the first slot that the line reaches.
    pub(super) base: u64,
    /// Keys that are more than this above `base` are predicted in the last slot that the line reaches.
    pub(super) limit: u64,
    /// The slope: slots, scaled by 2^48, per distance of 2^64 after the shift.
    pub(super) mult: u64,
    /// The predicted slot of `base`, scaled by 2^48: not zero where the line begins below the lowest possible key.
    pub(super) bias: u64,
    /// By how many bits distances from `base` are shifted to the left, for precision. `limit << left_shift` loses no
    /// bits.
    pub(super) left_shift: u32,
}

impl Model {
    /// The predicted slot of `key`.
    #[inline(always)]
    pub(super) fn predict(&self, key: u64) -> usize {
        let distance = key.saturating_sub(self.base).min(self.limit);
        let product = u128::from(distance << self.left_shift) * u128::from(self.mult);
        (((product >> 64) as u64 + self.bias) >> FRACTION_BITS) as usize
    }

    /// The line through `keys`, strictly ascending, for a data node of `slots` predictable slots that covers `low` to
    /// `high`.
    pub(super) fn fit(keys: &[u64], slots: usize, low: u64, high: u64) -> Self {
        Line::fit(keys).map_or_else(
            || Self::spread(slots, low, high),
            |line| line.model(slots as f64 / keys.len() as f64, slots, low, high),
        )
    }

    /// The line for a data node that receives ascending keys: `keys` fill the left of the array at `density`, and
    /// further keys go on to their right with the same slope.
    pub(super) fn fit_append(keys: &[u64], slots: usize, density: f64) -> Self {
        let spacing = (1.0 / density.clamp(0.1, 1.0)).min(slots as f64 / keys.len().max(1) as f64);
        // With at most one key, nothing is known but that the next keys are above it; dense keys are the best guess.
        let line = Line::fit(keys).unwrap_or(Line {
            center: keys.first().copied().unwrap_or(0),
            slope: 1.0,
            rank: 0.0,
        });
        line.model(spacing, slots, 0, u64::MAX)
    }

    /// The line for a data node that receives descending keys: `keys` fill the right of the array of a node for keys
    /// from `low` on.
    pub(super) fn fit_prepend(keys: &[u64], slots: usize, density: f64, low: u64) -> Self {
        let spacing = (1.0 / density.clamp(0.1, 1.0)).min(slots as f64 / keys.len().max(1) as f64);
        let mut line = Line::fit(keys).unwrap_or(Line {
            center: keys.first().copied().unwrap_or(low),
            slope: 1.0,
            rank: 0.0,
        });
        line.rank += (slots as f64 / spacing - keys.len() as f64).max(0.0);
        line.model(spacing, slots, low, u64::MAX)
    }

    /// The line that spreads the keys from `low` to `high` evenly: without keys nothing better is known.
    fn spread(slots: usize, low: u64, high: u64) -> Self {
        let width = high.saturating_sub(low) as f64 + 1.0;
        let line = Line {
            center: low,
            slope: 1.0 / width,
            rank: 0.0,
        };
        line.model(slots as f64, slots, low, high)
    }

    /// The smallest key that is predicted in the slot `predicted` or behind it; `None` if there is no such key.
    pub(super) fn first_key_of(&self, predicted: usize) -> Option<u64> {
        let wanted = ((predicted as u128) << FRACTION_BITS).saturating_sub(u128::from(self.bias));
        if wanted == 0 {
            return Some(0);
        }
        // `predict` compares `(distance << left_shift) * mult` with `wanted << 64`, so this inverse is exact.
        let wanted = wanted.checked_mul(1 << 64)?;
        let shifted = wanted.div_ceil(u128::from(self.mult).max(1));
        let distance = u64::try_from(shifted.div_ceil(1 << self.left_shift)).ok()?;
        if self.mult == 0 || distance > self.limit {
            return None;
        }
        self.base.checked_add(distance)
    }

    /// A model as read from the pool; `None` if it could predict a slot beyond `slots`.
    pub(super) fn from_words(words: [u64; 4], left_shift: u32, slots: usize) -> Option<Self> {
        let [base, limit, mult, bias] = words;
        let model = Self {
            base,
            limit,
            mult,
            bias,
            left_shift,
        };
        model.is_valid_for(slots).then_some(model)
    }

    /// Whether the model predicts only slots below `slots`, without an overflow on the way (data I7).
    pub(super) fn is_valid_for(&self, slots: usize) -> bool {
        if slots == 0
            || slots > MAX_PRIMARY_SLOTS
            || self.left_shift > self.limit.leading_zeros().min(63)
        {
            return false;
        }
        let last = (u128::from(self.limit << self.left_shift) * u128::from(self.mult)) >> 64;
        (last + u128::from(self.bias)) >> FRACTION_BITS < slots as u128
    }
}

/// A line from keys to their ranks, in floating point: `rank + slope * (key - center)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    center: u64,
    slope: f64,
    rank: f64,
}

impl Line {
    /// The line through the keys a 32nd of all keys from either end; `None` for fewer than two keys.
    ///
    /// The paper takes the line of least squares. This line needs no pass over the keys, and fewer keys overflow: in
    /// data nodes of 10,000 records and 14,284 slots, 1.0 % instead of 1.1 % of uniform keys, and 1.2 % instead of 1.8
    /// % of lognormal ones. What matters is not how far the predicted slots are from the ranks, but that they are
    /// spread, and the line of least squares leads beyond the ends of the array. Nor do a few keys far away bend this
    /// line.
    pub(super) fn fit(keys: &[u64]) -> Option<Self> {
        let left = keys.len() / 32;
        let right = keys.len().checked_sub(left + 1)?;
        let width = keys[right]
            .checked_sub(keys[left])
            .filter(|&width| width > 0)?;
        Some(Self {
            center: keys[left],
            slope: (right - left) as f64 / width as f64,
            rank: left as f64,
        })
    }

    /// The model that predicts slots `spacing` apart for consecutive ranks, in a data node of `slots` predictable slots
    /// that covers `low` to `high`.
    pub(super) fn model(&self, spacing: f64, slots: usize, low: u64, high: u64) -> Model {
        let slots = slots.clamp(1, MAX_PRIMARY_SLOTS);
        // A slope of more than all slots from one key to the next makes no difference.
        let slope = (self.slope * spacing).clamp(f64::MIN_POSITIVE, slots as f64);
        let at_center = self.rank * spacing;
        // The model begins where the line is at slot 0, but not below `low`.
        let back = at_center / slope;
        let reach = self.center.saturating_sub(low);
        let (base, bias) = if back < 0.0 {
            (self.center.saturating_add(-back as u64), 0.0)
        } else if back <= reach as f64 {
            (self.center - (back as u64).min(reach), 0.0)
        } else {
            (low, at_center - slope * reach as f64)
        };
        let bias = bias.clamp(0.0, (slots - 1) as f64);
        let limit = ((slots as f64 - bias) / slope) as u64;
        let limit = limit.min(high.saturating_sub(base));
        let left_shift = limit.leading_zeros().min(63);
        let mut model = Model {
            base,
            limit,
            mult: (slope * 2f64.powi(64 + FRACTION_BITS as i32 - left_shift as i32)) as u64,
            bias: (bias * 2f64.powi(FRACTION_BITS as i32)) as u64,
            left_shift,
        };
        // Rounding may have put the limit a little too far.
        let room = ((slots as u128) << FRACTION_BITS) - u128::from(model.bias);
        if let Some(most) = ((room << 64) - 1).checked_div(u128::from(model.mult)) {
            model.limit = limit.min(u64::try_from(most >> left_shift).unwrap_or(u64::MAX));
        }
        model
    }
}

/// The largest number of primary slots, at most `slots`, with room for a window in the last group.
pub(super) const fn primary_slots(slots: usize, group: usize) -> usize {
    let slots = slots / LINE_PAIR_SLOTS * LINE_PAIR_SLOTS;
    let beyond = slots % group;
    if slots <= WINDOW_SLOTS {
        WINDOW_SLOTS
    } else if beyond < WINDOW_SLOTS {
        slots - beyond
    } else {
        slots
    }
}

/// How many slots of an array of `primary` slots a model may predict: the window of the last one still lies in the
/// array (data I7).
pub(super) const fn predictable_slots(primary: usize) -> usize {
    primary - (WINDOW_SLOTS - LINE_PAIR_SLOTS)
}

/// How keys would lie in a data node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fit {
    /// Keys without a free slot in their windows.
    pub(super) overflowed: usize,
    /// Keys in the other line pair of their windows.
    pub(super) in_other_line_pair: usize,
    /// Overflow entries that are compared if each key that overflowed is looked up once: a bucket is searched from end
    /// to end.
    pub(super) bucket_entries: usize,
}

/// How `keys` would lie after being inserted in a random order. `slots` is a result of [`primary_slots`].
#[cfg(test)]
pub(super) fn simulate(model: &Model, keys: &[u64], slots: usize) -> Fit {
    simulate_in(model, keys, slots, GROUP_SLOTS)
}

/// Groups that are simulated of a data node with at least twice as many.
const SAMPLED_GROUPS: usize = 16;

/// How `keys` would lie after inserts in a random order, with groups of `group` slots, a power of two. As no window
/// leaves its group, a sample of groups stands for a large array: the groups of some keys, so that groups with many keys
/// are likely to be in the sample.
pub(super) fn simulate_in(model: &Model, keys: &[u64], slots: usize, group: usize) -> Fit {
    let slots = primary_slots(slots, group);
    let last = (slots - 1) / group * group;
    let begin = |first: usize| {
        let key = model.first_key_of(first).filter(|_| first <= last);
        key.map_or(keys.len(), |key| keys.partition_point(|&other| other < key))
    };
    let simulate = |first: usize| {
        let keys = &keys[begin(first)..begin(first + group)];
        let fit = simulate_group(model, keys, first, group.min(slots - first));
        (fit, keys.len())
    };
    let mut all = Fit::default();
    if slots < 2 * SAMPLED_GROUPS * group || keys.len() < SAMPLED_GROUPS {
        (0..=last)
            .step_by(group)
            .for_each(|first| all.add(simulate(first).0));
        return all;
    }
    let mut of_group = (usize::MAX, Fit::default());
    for i in 0..SAMPLED_GROUPS {
        let key = keys[(2 * i + 1) * keys.len() / (2 * SAMPLED_GROUPS)];
        let first = (model.predict(key) / group * group).min(last);
        if first != of_group.0 {
            let (fit, count) = simulate(first);
            let weight = keys.len() as f64 / (SAMPLED_GROUPS * count.max(1)) as f64;
            of_group = (first, fit.times(weight));
        }
        all.add(of_group.1);
    }
    all
}

/// Most line pairs of a group in any build.
const MAX_GROUP_LINE_PAIRS: usize = 256 / LINE_PAIR_SLOTS;

/// Simulates inserts of `keys` into the group of `slots` slots from `first` on.
fn simulate_group(model: &Model, keys: &[u64], first: usize, slots: usize) -> Fit {
    let last = slots / LINE_PAIR_SLOTS - 1;
    // How many slots of each line pair are taken: which ones does not matter.
    let mut taken = [0_u8; MAX_GROUP_LINE_PAIRS];
    // Entries of one overflow bucket by the 16 slots that their predicted slots are in: comparing other entries of the
    // bucket costs next to nothing.
    let mut buckets = [0_usize; MAX_GROUP_LINE_PAIRS / 2];
    let mut fit = Fit::default();
    let stride = stride(keys.len());
    let mut at = 0;
    for _ in 0..keys.len() {
        let predicted = ((model.predict(keys[at]) - first) / LINE_PAIR_SLOTS).min(last);
        let other = if predicted == last {
            predicted - 1
        } else {
            predicted + 1
        };
        if usize::from(taken[predicted]) < LINE_PAIR_SLOTS {
            taken[predicted] += 1;
        } else if usize::from(taken[other]) < LINE_PAIR_SLOTS {
            taken[other] += 1;
            fit.in_other_line_pair += 1;
        } else {
            let bucket = &mut buckets[predicted / 2];
            fit.overflowed += 1;
            // This entry is compared with all others, and in each lookup of another one.
            fit.bucket_entries += 2 * *bucket + 1;
            *bucket += 1;
        }
        at += stride;
        if at >= keys.len() {
            at -= keys.len();
        }
    }
    fit
}

impl Fit {
    fn add(&mut self, other: Self) {
        self.overflowed += other.overflowed;
        self.in_other_line_pair += other.in_other_line_pair;
        self.bucket_entries += other.bucket_entries;
    }

    fn times(self, factor: f64) -> Self {
        let times = |number: usize| (number as f64 * factor).round() as usize;
        Self {
            overflowed: times(self.overflowed),
            in_other_line_pair: times(self.in_other_line_pair),
            bucket_entries: times(self.bucket_entries),
        }
    }
}

/// A step that visits all of `count` places, neighbours at distant times: nearly as good as a random order, at no cost.
fn stride(count: usize) -> usize {
    let golden = (count as f64 * 0.618_033_988_749) as usize;
    (golden.max(1)..)
        .find(|&step| coprime(step, count))
        .unwrap_or(1)
}

fn coprime(mut a: usize, mut b: usize) -> bool {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

#[cfg(test)]
mod tests;
