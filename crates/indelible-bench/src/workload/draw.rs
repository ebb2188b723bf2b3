//! Drawing the operations of a phase.

use super::{KINDS, Keys, Kinds, OperationKind, Present, Script, Supply, shares, value_of};
use crate::plan::{Arrival, Distribution, Phase};
use anyhow::{Result, ensure};
use rand::{RngExt, SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::{Distribution as _, Zipf};
use std::borrow::Cow;

/// The scripts of `threads` threads that do `operations` together. What they insert and remove comes from `supply`, so
/// that the same calls in the same order give the same scripts.
///
/// # Errors
///
/// If the supply has too few keys.
pub fn draw(
    phase: &Phase,
    keys: &Keys,
    supply: &mut Supply,
    threads: u32,
    operations: u64,
    seed: u64,
) -> Result<Vec<Script>> {
    let threads = threads as usize;
    let share = |thread: usize| -> usize {
        let upto = |thread: usize| operations as usize * thread / threads;
        upto(thread + 1) - upto(thread)
    };
    let kinds: Vec<Kinds> = (0..threads)
        .map(|thread| draw_kinds(phase, share(thread), seed ^ thread as u64))
        .collect();
    let news = new_keys(phase, &kinds, keys, supply)?;
    let goners = removals(&kinds, keys, supply)?;
    let reads = kinds.iter().any(|kinds| kinds.count(&READS) > 0);
    ensure!(
        !reads || supply.present(keys).count() > 0,
        "no keys are left to look up"
    );
    let window_side = if phase.is_spatial() {
        keys.window_side(phase.window_hits)
    } else {
        0
    };
    let scripts = kinds.into_iter().zip(news).zip(goners).enumerate();
    Ok(scripts
        .map(|(thread, ((kinds, new), gone))| {
            let pick = Pick::new(phase, keys, supply, new.len(), seed ^ !(thread as u64));
            Script {
                window_side,
                ..write(phase, kinds, &new, &gone, pick)
            }
        })
        .collect())
}

/// Kinds that take keys that are there.
const READS: [OperationKind; 7] = [
    OperationKind::Get,
    OperationKind::GetBatch,
    OperationKind::Update,
    OperationKind::Scan,
    OperationKind::ReadModifyWrite,
    OperationKind::Window,
    OperationKind::Nearest,
];

/// How many keys a step takes.
fn width(kind: OperationKind, phase: &Phase) -> usize {
    match kind {
        OperationKind::GetBatch | OperationKind::InsertBatch => phase.batch_size as usize,
        _ => 1,
    }
}

/// The kinds of the steps of one thread: steps that together take `operations` keys.
fn draw_kinds(phase: &Phase, operations: usize, seed: u64) -> Kinds {
    let shares = shares(&phase.mix);
    if let Some(only) = shares.iter().position(|&share| share >= 1.0) {
        return Kinds::All(KINDS[only], operations.div_ceil(width(KINDS[only], phase)));
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (mut steps, mut taken) = (Vec::with_capacity(operations), 0);
    let total: f64 = shares.iter().sum();
    // A batch of n keys counts as n operations, so it is drawn n times as rarely.
    let weights: Vec<f64> = KINDS
        .iter()
        .zip(shares)
        .map(|(&kind, share)| share / total / width(kind, phase) as f64)
        .collect();
    let sum: f64 = weights.iter().sum();
    while taken < operations {
        let mut at = random.random::<f64>() * sum;
        let drawn = weights.iter().position(|&weight| {
            at -= weight;
            at < 0.0
        });
        let last = weights.iter().rposition(|&weight| weight > 0.0);
        let kind = KINDS[drawn.or(last).unwrap_or(0)];
        taken += width(kind, phase);
        steps.push(kind);
    }
    Kinds::Each(steps)
}

impl Kinds {
    /// How many steps are of one of these kinds.
    fn count(&self, wanted: &[OperationKind]) -> usize {
        match self {
            Self::All(kind, steps) if wanted.contains(kind) => *steps,
            Self::All(..) => 0,
            Self::Each(steps) => steps.iter().filter(|kind| wanted.contains(kind)).count(),
        }
    }

    /// The kinds, one by one.
    fn iter(&self) -> Box<dyn Iterator<Item = OperationKind> + '_> {
        match self {
            Self::All(kind, steps) => Box::new(std::iter::repeat_n(*kind, *steps)),
            Self::Each(steps) => Box::new(steps.iter().copied()),
        }
    }
}

/// For each thread the new keys that it inserts, in order.
fn new_keys(
    phase: &Phase,
    kinds: &[Kinds],
    keys: &Keys,
    supply: &mut Supply,
) -> Result<Vec<Vec<u64>>> {
    let counts: Vec<usize> = kinds
        .iter()
        .map(|kinds| {
            kinds.count(&[OperationKind::Insert])
                + kinds.count(&[OperationKind::InsertBatch]) * phase.batch_size as usize
        })
        .collect();
    if phase.arrival == Arrival::Dense && counts.iter().any(|&count| count > 0) {
        let places = counts.len();
        let place = |(place, &count)| supply.dense(keys, place, places, count);
        return counts.iter().enumerate().map(place).collect();
    }
    let mut new = supply.insert(keys, counts.iter().sum())?.to_vec();
    if phase.arrival == Arrival::Ascending {
        new.sort_unstable();
    }
    let mut rest = new.as_slice();
    Ok(counts
        .iter()
        .map(|&count| rest.split_off(..count).unwrap_or_default().to_vec())
        .collect())
}

/// For each thread the keys that it removes, in order.
fn removals(kinds: &[Kinds], keys: &Keys, supply: &mut Supply) -> Result<Vec<Vec<u64>>> {
    kinds
        .iter()
        .map(|kinds| {
            Ok(supply
                .remove(keys, kinds.count(&[OperationKind::Remove]))?
                .to_vec())
        })
        .collect()
}

/// Writes the script of one thread.
fn write(phase: &Phase, kinds: Kinds, new: &[u64], gone: &[u64], mut pick: Pick) -> Script {
    let (mut keys, mut records) = (Vec::new(), Vec::new());
    let (mut new_at, mut gone_at) = (0, 0);
    for kind in kinds.iter() {
        match kind {
            OperationKind::Insert => {
                keys.push(new[new_at]);
                new_at += 1;
            }
            OperationKind::InsertBatch => {
                let batch = &new[new_at..new_at + phase.batch_size as usize];
                records.extend(batch.iter().map(|&key| (key, value_of(key))));
                new_at += batch.len();
            }
            OperationKind::Remove => {
                keys.push(gone[gone_at]);
                gone_at += 1;
            }
            OperationKind::GetBatch => {
                keys.extend((0..phase.batch_size).map(|_| pick.lookup(&new[..new_at])))
            }
            OperationKind::Get => keys.push(pick.lookup(&new[..new_at])),
            OperationKind::Scan
            | OperationKind::Update
            | OperationKind::ReadModifyWrite
            | OperationKind::Window
            | OperationKind::Nearest => {
                keys.push(pick.present(&new[..new_at]));
            }
        }
    }
    Script {
        kinds,
        keys,
        records,
        batch_size: phase.batch_size as usize,
        scan_size: phase.scan_size as usize,
        scan_varies: phase.scan_varies,
        window_side: 0,
        neighbours: phase.neighbours as usize,
    }
}

/// Draws keys that are there, or for some lookups keys that are not.
struct Pick<'keys> {
    random: Xoshiro256PlusPlus,
    distribution: Distribution,
    zipf: Option<Zipf<f64>>,
    missing_share: f64,
    missing: &'keys [u64],
    scattered: Present<'keys>,
    sorted: Cow<'keys, [u64]>,
    next: usize,
}

impl<'keys> Pick<'keys> {
    fn new(phase: &Phase, keys: &'keys Keys, supply: &Supply, new: usize, seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let scattered = supply.present(keys);
        let sorted = match phase.distribution {
            Distribution::Sequential | Distribution::HotSpot { .. } => supply.present_sorted(keys),
            _ => Cow::Borrowed(&[][..]),
        };
        let (theta, ranks) = match phase.distribution {
            Distribution::Zipfian { theta } => (theta, scattered.count()),
            Distribution::Latest => (0.99, scattered.count() + new),
            _ => (1.0, 1),
        };
        Self {
            zipf: Zipf::new(ranks.max(1) as f64, theta).ok(),
            distribution: phase.distribution,
            missing_share: phase.missing,
            missing: keys.missing(),
            scattered,
            next: random.random_range(0..sorted.len().max(1)),
            sorted,
            random,
        }
    }

    /// A key to look up; `new` are the ones that this thread has inserted in this phase.
    fn lookup(&mut self, new: &[u64]) -> u64 {
        if self.missing_share > 0.0 && self.random.random::<f64>() < self.missing_share {
            return self.missing[self.random.random_range(0..self.missing.len())];
        }
        self.present(new)
    }

    /// A key that is there.
    fn present(&mut self, new: &[u64]) -> u64 {
        let count = self.scattered.count();
        match self.distribution {
            Distribution::Uniform => self.scattered.at(self.random.random_range(0..count)),
            Distribution::Zipfian { .. } => {
                let rank = self.rank(count);
                self.scattered.at(rank)
            }
            Distribution::SelfSimilar { skew } => {
                // Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994.
                let power = skew.ln() / (1.0 - skew).ln();
                let at = count as f64 * self.random.random::<f64>().powf(power);
                self.scattered.at((at as usize).min(count - 1))
            }
            Distribution::Latest => {
                let age = self.rank(count + new.len());
                match age.checked_sub(new.len()) {
                    None => new[new.len() - 1 - age],
                    Some(age) => self.scattered.at(count - 1 - age),
                }
            }
            Distribution::Sequential => {
                self.next = (self.next + 1) % self.sorted.len();
                self.sorted[self.next]
            }
            Distribution::HotSpot { share } => self.hot(share),
        }
    }

    /// A Zipfian rank from 0 to below `count`.
    fn rank(&mut self, count: usize) -> usize {
        let rank = self.zipf.map_or(0.0, |zipf| zipf.sample(&mut self.random));
        // There may be more ranks than keys so far; those that are too many are spread over all.
        (rank as usize).saturating_sub(1) % count
    }

    /// One of the neighbours in the middle, or, one time in ten, any key.
    fn hot(&mut self, share: f64) -> u64 {
        let count = self.sorted.len();
        let width = ((count as f64 * share) as usize).clamp(1, count);
        let from = (count - width) / 2;
        if self.random.random::<f64>() < 0.9 {
            self.sorted[from + self.random.random_range(0..width)]
        } else {
            self.sorted[self.random.random_range(0..count)]
        }
    }
}
