//! What changed between two runs, beyond the noise.
//!
//! The peers are the same code in both runs: they are the controls that say how the machine drifted, and how much runs
//! differ anyway ([`statistics`]). Changes of ours are looked at from far to near: per contestant over everything it did, per phase
//! over all experiments and threads, per place of the tables. A change in one phase is seen in its own line, a small one
//! everywhere in the first. Latency, recovery and space are looked at likewise; exact counts do not jitter, so any
//! difference is said; a lost record is a defect.
//!
//! How often it is wrong is measured with made-up runs of 3 contestants of ours, 11 peers and 16 columns in 3 experiments
//! (`tests`): two runs of one binary with 5 rounds of 3 % noise have any of 504 changes flagged in one comparison of 18;
//! 10 % of slow-down in one phase is seen in at least 19 of 20, in one single place in 7 of 8.

mod facts;
mod print;
pub mod statistics;
#[cfg(test)]
mod tests;

use crate::outcome::{Measured, Outcome, Run};
use statistics::{Estimate, Pair, beyond, estimate, stretch, together};
use std::collections::{BTreeMap, BTreeSet};

pub use facts::Fact;
pub use print::print;

/// What a change is a change of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Operations per second.
    Rate,
    /// The median latency.
    P50,
    /// The latency that one in a thousand operations exceeds.
    P999,
    /// Milliseconds until a killed map was open again and answered.
    Recovery,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Rate, Self::P50, Self::P999, Self::Recovery];

    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::P50 => "p50",
            Self::P999 => "p99.9",
            Self::Recovery => "recovery",
        }
    }

    /// Changes below this are never beyond the noise: the clock has steps, and tails are rare events.
    fn least(self) -> f64 {
        match self {
            Self::Rate => 0.02,
            Self::P50 => 0.05,
            Self::P999 | Self::Recovery => 0.15,
        }
    }

    /// The chance of a false alarm in each of the three lists of changes. The rate is what matters most.
    fn false_alarm(self) -> f64 {
        match self {
            Self::Rate => 0.006,
            _ => 0.002,
        }
    }

    /// Whether more of it is worse.
    fn more_is_worse(self) -> bool {
        self != Self::Rate
    }

    fn of(self, measured: &Measured) -> Option<f64> {
        let quantile = |place: usize| {
            measured
                .latency
                .as_ref()?
                .quantiles
                .get(place)
                .map(|&ns| ns as f64)
        };
        match self {
            Self::Rate => Some(measured.rate()),
            Self::P50 => quantile(1),
            Self::P999 => quantile(7),
            Self::Recovery => None,
        }
    }
}

/// How far one looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Everything that all of ours did, if there are several.
    Ours,
    /// Everything that a contestant did.
    Contestant,
    /// One phase of it, in all experiments and with all numbers of threads.
    Phase,
    /// One place of the tables.
    Place,
}

/// How it turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing beyond the noise.
    Same,
    /// Better beyond the noise.
    Better,
    /// Worse beyond the noise.
    Worse,
}

/// A change of one of ours.
#[derive(Clone, Debug)]
pub struct Difference {
    /// What was measured.
    pub metric: Metric,
    /// How many places it sums up.
    pub level: Level,
    /// Whose.
    pub contestant: String,
    /// The phase, with its experiment and threads at [`Level::Place`]; empty for a whole contestant.
    pub what: String,
    /// Places summed up.
    pub places: usize,
    /// Logarithms: as measured, and less the machine's drift.
    pub estimate: Estimate,
    /// The logarithm that the corrected change must exceed.
    pub noise: f64,
    /// Whether it does, and in which direction.
    pub verdict: Verdict,
}

/// Two runs, compared.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Why the runs may not be comparable.
    pub warnings: Vec<String>,
    /// All changes of ours.
    pub changes: Vec<Difference>,
    /// What does not jitter: counts, space, lost records, failures.
    pub facts: Vec<Fact>,
    /// The median drift of the machine, and the strongest one in a phase; logarithms. None without controls.
    pub drift: Option<(f64, f64)>,
    /// How many times as far apart runs are as their rounds say.
    pub stretch: f64,
}

impl Comparison {
    /// Whether something of ours got worse: slower beyond the noise, greedier, or wrong.
    #[must_use]
    pub fn got_worse(&self) -> bool {
        let slower = self.changes.iter().any(|c| c.verdict == Verdict::Worse);
        slower || self.facts.iter().any(|f| f.is_worse)
    }

    /// Changes beyond the noise.
    pub fn beyond_noise(&self) -> impl Iterator<Item = &Difference> {
        self.changes.iter().filter(|c| c.verdict != Verdict::Same)
    }
}

/// Says what changed from one run to another.
#[must_use]
pub fn compare(a: &Run, b: &Run) -> Comparison {
    let mut comparison = Comparison {
        warnings: facts::warnings(a, b),
        facts: facts::facts(a, b),
        stretch: 1.0,
        ..Comparison::default()
    };
    for metric in Metric::ALL {
        changes(a, b, metric, &mut comparison);
    }
    comparison
}

/// Experiment, phase and threads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    experiment: String,
    phase: String,
    threads: u32,
}

impl Place {
    fn label(&self) -> String {
        match self.threads {
            0 | 1 => format!("{} · {}", self.experiment, self.phase),
            n => format!("{} · {}, {n} threads", self.experiment, self.phase),
        }
    }
}

/// A contestant at a place.
type Spot = (String, Place);

/// The logarithms of all rounds.
fn rounds(run: &Run, metric: Metric) -> BTreeMap<Spot, Vec<f64>> {
    let mut found: BTreeMap<Spot, Vec<f64>> = BTreeMap::new();
    for outcome in &run.outcomes {
        for (place, value) in values(outcome, metric) {
            if value.is_finite() && value > 0.0 {
                let spot = (outcome.contestant.clone(), place);
                found.entry(spot).or_default().push(value.ln());
            }
        }
    }
    found
}

/// All values of one round of a contestant.
fn values(outcome: &Outcome, metric: Metric) -> Vec<(Place, f64)> {
    let place = |phase: &str, threads| Place {
        experiment: outcome.experiment.clone(),
        phase: phase.into(),
        threads,
    };
    if let (Metric::Recovery, Some(r)) = (metric, &outcome.recovery) {
        return vec![(place("first get after kill -9", 1), r.first_get_ms)];
    }
    let measured = outcome.load.iter().chain(&outcome.phases);
    let value = |m: &Measured| Some((place(&m.phase, m.threads), metric.of(m)?));
    measured.filter_map(value).collect()
}

/// What is estimated of one metric.
struct Found {
    spots: Vec<Spot>,
    ours: Vec<bool>,
    estimates: Vec<Estimate>,
}

fn changes(a: &Run, b: &Run, metric: Metric, into: &mut Comparison) {
    let (before, mut after) = (rounds(a, metric), rounds(b, metric));
    let is_ours = |name: &str| {
        let mut all = a.contestants.iter().chain(&b.contestants);
        all.any(|c| c.name == name && c.is_ours)
    };
    let mut blocks: BTreeMap<Place, usize> = BTreeMap::new();
    let (mut spots, mut pairs) = (Vec::new(), Vec::new());
    for (spot, before) in before {
        let Some(after) = after.remove(&spot) else {
            continue;
        };
        let next = blocks.len();
        let block = *blocks.entry(spot.1.clone()).or_insert(next);
        let is_control = !is_ours(&spot.0);
        spots.push(spot);
        pairs.push(Pair {
            before,
            after,
            block,
            is_control,
        });
    }
    let estimated = estimate(&pairs);
    if metric == Metric::Rate {
        into.drift = strongest(estimated.drifts.iter().flatten().copied().collect());
        into.stretch = estimated.stretch;
    }
    let found = Found {
        ours: pairs.iter().map(|p| !p.is_control).collect(),
        spots,
        estimates: estimated.pairs,
    };
    let ours = found.spots.iter().zip(&found.ours);
    let names: BTreeSet<_> = ours
        .filter(|(_, ours)| **ours)
        .map(|(spot, _)| &spot.0)
        .collect();
    let several = (names.len() > 1).then_some(Level::Ours);
    let levels = [Level::Contestant, Level::Phase, Level::Place];
    for level in several.into_iter().chain(levels) {
        into.changes.extend(found.level(metric, level));
    }
}

/// The median of some drifts, and the one that is furthest from 0.
fn strongest(drifts: Vec<f64>) -> Option<(f64, f64)> {
    let median = crate::report::summary::median(&drifts)?;
    let far = |a: &f64, b: &f64| a.abs().total_cmp(&b.abs());
    Some((median, drifts.into_iter().max_by(far)?))
}

impl Found {
    /// All changes of ours at a level. The errors of groups are stretched as far as those of the controls' groups must be.
    fn level(&self, metric: Metric, level: Level) -> Vec<Difference> {
        let mut groups: BTreeMap<(String, String), Vec<usize>> = BTreeMap::new();
        for (at, (contestant, place)) in self.spots.iter().enumerate() {
            // Controls stay apart: how far they differ says how far two runs differ without a change.
            let contestant = match level {
                Level::Ours if self.ours[at] => "all of ours",
                _ => contestant,
            };
            let what = match level {
                Level::Ours | Level::Contestant => String::new(),
                Level::Phase => place.phase.clone(),
                Level::Place => place.label(),
            };
            groups
                .entry((contestant.to_owned(), what))
                .or_default()
                .push(at);
        }
        let sum = |places: &[usize]| {
            let estimates: Vec<Estimate> = places.iter().map(|&at| self.estimates[at]).collect();
            together(&estimates)
        };
        let (ours, controls): (Vec<_>, Vec<_>) =
            groups.iter().partition(|(_, places)| self.ours[places[0]]);
        let stretch = stretch(controls.into_iter().map(|(_, places)| sum(places)));
        let limit = beyond(ours.len(), metric.false_alarm()) * stretch;
        let change = |((contestant, what), places): (&(String, String), &Vec<usize>)| {
            let estimate = sum(places);
            let noise = (limit * estimate.error).max(metric.least());
            Difference {
                metric,
                level,
                contestant: contestant.clone(),
                what: what.clone(),
                places: places.len(),
                estimate,
                noise,
                verdict: verdict(metric, estimate.change, noise),
            }
        };
        ours.into_iter().map(change).collect()
    }
}

fn verdict(metric: Metric, change: f64, noise: f64) -> Verdict {
    match change {
        c if c.abs() <= noise => Verdict::Same,
        c if (c > 0.0) == metric.more_is_worse() => Verdict::Worse,
        _ => Verdict::Better,
    }
}

/// Names that only one of two runs has.
fn only<'a>(one: impl Iterator<Item = &'a String>, other: &BTreeSet<&String>) -> Vec<String> {
    one.filter(|name| !other.contains(name)).cloned().collect()
}
