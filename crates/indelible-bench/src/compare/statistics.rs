//! How sure one can be that two runs differ.
//!
//! Everything is a logarithm: a change of `x` is a factor of `exp(x)`, and changes add up.
//!
//! - A **pair** is one figure (a phase of a contestant, say) with its rounds in both runs. Its change is the difference of the
//!   rounds' means; its error follows from how much the rounds scatter. A handful of rounds tells little about scatter, so it
//!   is mixed with the typical scatter of all pairs.
//! - **Controls** are pairs whose code did not change between the runs. In each phase their median change is the machine's
//!   drift, and is subtracted from all. How far they still are from it, in units of their own errors, says how much more runs
//!   differ than their rounds: all errors are stretched by that.
//! - A **group** of pairs is more certain than each of them: its change is their mean, weighted by certainty.
//!
//! What is beyond the noise is chosen so that two runs of the same binary rarely have a single false alarm in all of a
//! comparison: the more is looked at, the more it takes.

use crate::report::summary::median;

/// Rounds of typical scatter that a pair's own scatter is mixed with.
const PRIOR: f64 = 8.0;

/// The median of the distances from the median, times this, is the standard deviation of a normal distribution.
const MAD: f64 = 1.4826;

/// The standard error of a median, relative to that of a mean.
const MEDIAN: f64 = 1.2533;

/// A figure in two runs.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Logarithms of the rounds of the first run.
    pub before: Vec<f64>,
    /// Of the second run.
    pub after: Vec<f64>,
    /// Pairs with the same number drift alike.
    pub block: usize,
    /// Whether its code is the same in both runs.
    pub is_control: bool,
}

/// A logarithm and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// As measured.
    pub raw: f64,
    /// Less the machine's drift.
    pub change: f64,
    /// Its standard error.
    pub error: f64,
}

/// Pairs that were estimated together.
#[derive(Clone, Debug)]
pub struct Estimated {
    /// In the order of the pairs.
    pub pairs: Vec<Estimate>,
    /// The drift of each block, none where there were fewer than three controls.
    pub drifts: Vec<Option<f64>>,
    /// How many times as far apart runs are as their rounds say.
    pub stretch: f64,
}

/// Estimates all changes.
#[must_use]
pub fn estimate(pairs: &[Pair]) -> Estimated {
    let blocks = pairs.iter().map(|p| p.block + 1).max().unwrap_or(0);
    let typical = typical_variance(pairs);
    let mut found: Vec<Estimate> = pairs.iter().map(|p| alone(p, typical)).collect();
    let drifts: Vec<Option<(f64, f64)>> = (0..blocks)
        .map(|block| drift(pairs, &found, block))
        .collect();
    for (pair, estimate) in pairs.iter().zip(&mut found) {
        estimate.change -= drifts[pair.block].map_or(0.0, |(drift, _)| drift);
    }
    let controls = |pair: &Pair| pair.is_control && drifts[pair.block].is_some();
    let stretch = stretch(
        pairs
            .iter()
            .zip(&found)
            .filter(|(p, _)| controls(p))
            .map(|(_, e)| *e),
    );
    for (pair, estimate) in pairs.iter().zip(&mut found) {
        let drift_error = drifts[pair.block].map_or(0.0, |(_, error)| error);
        estimate.error = (estimate.error * stretch).hypot(drift_error);
    }
    Estimated {
        pairs: found,
        drifts: drifts
            .into_iter()
            .map(|d| d.map(|(drift, _)| drift))
            .collect(),
        stretch,
    }
}

/// The mean of several, weighted by certainty.
#[must_use]
pub fn together(of: &[Estimate]) -> Estimate {
    let weight = |e: &Estimate| 1.0 / e.error.powi(2).max(1e-12);
    let all: f64 = of.iter().map(weight).sum();
    let mean = |get: fn(&Estimate) -> f64| of.iter().map(|e| weight(e) * get(e)).sum::<f64>() / all;
    Estimate {
        raw: mean(|e| e.raw),
        change: mean(|e| e.change),
        error: all.sqrt().recip(),
    }
}

/// How much further than their errors say groups of controls are from no change; at least 1. What the pairs of one
/// contestant have in common makes groups less certain than independent pairs would.
#[must_use]
pub fn stretch(controls: impl Iterator<Item = Estimate>) -> f64 {
    let far: Vec<f64> = controls
        .filter(|e| e.error > 0.0)
        .map(|e| (e.change / e.error).abs())
        .collect();
    if far.len() < 3 {
        return 1.0;
    }
    median(&far).map_or(1.0, |m| (m * MAD).max(1.0))
}

/// How many standard errors are beyond the noise if so many changes are looked at, and with this chance one of them may
/// be beyond it although nothing changed.
#[must_use]
pub fn beyond(looked_at: usize, false_alarm: f64) -> f64 {
    // The tail of the normal distribution: Abramowitz and Stegun 26.2.23, good to 0.0005.
    let tail = false_alarm / 2.0 / looked_at.max(1) as f64;
    let t = (-2.0 * tail.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The sum of squares of the distances from the means, and how many of them are free.
fn scatter(pair: &Pair) -> (f64, f64) {
    let of = |values: &[f64]| {
        let mean = mean(values);
        values.iter().map(|v| (v - mean).powi(2)).sum::<f64>()
    };
    let free = pair.before.len() + pair.after.len() - 2;
    (of(&pair.before) + of(&pair.after), free as f64)
}

/// The median variance of the rounds; none if there are no rounds to compare.
fn typical_variance(pairs: &[Pair]) -> Option<f64> {
    let free = pairs.iter().map(scatter).filter(|&(_, free)| free > 0.0);
    // The median of a variance is a little below the variance itself.
    let variances: Vec<f64> = free
        .map(|(sum, free)| sum / free / (1.0 - 2.0 / (9.0 * free)).powi(3))
        .collect();
    median(&variances)
}

/// The change of a pair, and its error from the rounds.
fn alone(pair: &Pair, typical: Option<f64>) -> Estimate {
    let raw = mean(&pair.after) - mean(&pair.before);
    let (sum, free) = scatter(pair);
    // With one round in each run nothing is known but how far the controls are apart; a guess is stretched to that.
    let variance = typical.map_or(1e-4, |typical| (typical * PRIOR + sum) / (PRIOR + free));
    let rounds = 1.0 / pair.before.len() as f64 + 1.0 / pair.after.len() as f64;
    Estimate {
        raw,
        change: raw,
        error: (variance * rounds).sqrt(),
    }
}

/// The median change of the controls of a block, and its error.
fn drift(pairs: &[Pair], found: &[Estimate], block: usize) -> Option<(f64, f64)> {
    let controls = pairs
        .iter()
        .zip(found)
        .filter(|(p, _)| p.is_control && p.block == block);
    let changes: Vec<f64> = controls.map(|(_, e)| e.raw).collect();
    if changes.len() < 3 {
        return None;
    }
    let drift = median(&changes)?;
    let distances: Vec<f64> = changes.iter().map(|c| (c - drift).abs()).collect();
    let deviation = median(&distances)? * MAD;
    Some((drift, MEDIAN * deviation / (changes.len() as f64).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_looked_at_the_more_it_takes() {
        // The quantiles 0.99 and 0.9999 of the normal distribution.
        assert!((beyond(1, 0.02) - 2.3263).abs() < 1e-3);
        assert!((beyond(100, 0.02) - 3.719).abs() < 1e-3);
    }

    #[test]
    fn drift_is_what_the_controls_agree_on() {
        let pair = |change: f64, is_control| Pair {
            before: vec![0.0, 0.01, -0.01],
            after: vec![change, change + 0.01, change - 0.01],
            block: 0,
            is_control,
        };
        let mut pairs = vec![
            pair(-0.3, false),
            pair(-0.2, true),
            pair(-0.21, true),
            pair(-0.19, true),
        ];
        let with = estimate(&pairs);
        assert!((with.drifts[0].unwrap() + 0.2).abs() < 1e-12);
        assert!(
            (with.pairs[0].change + 0.1).abs() < 1e-12 && (with.pairs[0].raw + 0.3).abs() < 1e-12
        );
        pairs.truncate(2);
        assert_eq!(estimate(&pairs).drifts[0], None, "two controls are too few");
    }
}
