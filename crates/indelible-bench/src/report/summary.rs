//! A run in figures: medians over the rounds, and how far the rounds are apart. Everything that is shown is read from here.

use crate::outcome::{Cost, DataFacts, Measured, Outcome, Run, Space, Statistics};
use crate::plan::Experiment;

/// A kind of count: its name, and how to read it.
pub type Count = (&'static str, fn(&Cost) -> f64);

/// All kinds of counts.
pub const COUNTS: [Count; 5] = [
    ("lines flushed", |c| c.lines_flushed),
    ("fences", |c| c.fences),
    ("lines streamed", |c| c.lines_streamed),
    ("256 B blocks", |c| c.blocks_written),
    ("bytes allocated", |c| c.bytes_allocated),
];

/// A figure of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The median over the rounds.
    pub median: f64,
    /// Half the range of the rounds, relative to the median. None if there was one round only.
    pub noise: Option<f64>,
}

impl Figure {
    /// None without values.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let median = median(values)?;
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let noise = (values.len() > 1 && median != 0.0).then(|| (high - low) / 2.0 / median.abs());
        Some(Self { median, noise })
    }
}

/// The middle value, or the mean of the two in the middle.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// A run, summed up.
#[derive(Clone, Debug)]
pub struct Summary<'a> {
    /// What is summed up.
    pub run: &'a Run,
    /// In the order of the plan.
    pub experiments: Vec<ExperimentSummary<'a>>,
}

/// An experiment: who was how fast at what.
#[derive(Clone, Debug)]
pub struct ExperimentSummary<'a> {
    /// As planned.
    pub plan: &'a Experiment,
    /// About its keys.
    pub facts: Option<&'a DataFacts>,
    /// What was measured: the load, then the phases with their numbers of threads.
    pub columns: Vec<Column>,
    /// One per contestant, in the order of the plan.
    pub rows: Vec<Row>,
}

/// A phase with a number of threads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Column {
    /// The phase's name, or "load".
    pub phase: String,
    /// Threads at once.
    pub threads: u32,
}

impl Column {
    /// The phase, and the threads if they are several: `get, 2 threads`.
    #[must_use]
    pub fn label(&self) -> String {
        match self.threads {
            0 | 1 => self.phase.clone(),
            n => format!("{}, {n} threads", self.phase),
        }
    }

    fn of(measured: &Measured) -> Self {
        Self {
            phase: measured.phase.clone(),
            threads: measured.threads,
        }
    }
}

/// A contestant in an experiment.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Where it stands among all contestants of the run; its colour follows from it.
    pub place: usize,
    /// Whether it is indelible.
    pub is_ours: bool,
    /// "nothing", "kill -9" or "power cut".
    pub survives: String,
    /// Why something of it is missing.
    pub error: Option<String>,
    /// As many as there are columns.
    pub cells: Vec<Option<Cell>>,
    /// Medians of the space after the load.
    pub space: Option<Space>,
    /// Opening after a kill.
    pub recovery: Option<RecoverySummary>,
    /// What it was made of in one of the rounds: after the load, then after each phase that changed it.
    pub structure: Vec<(Column, Statistics)>,
}

/// A contestant in a column.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Million operations per second.
    pub rate: Figure,
    /// Latency, the median over the rounds of each quantile.
    pub latency: Option<LatencySummary>,
    /// Counts per operation, medians over the rounds.
    pub cost: Option<Cost>,
    /// The round whose rate is the median: operations done since the start, at times in seconds.
    pub timeline: Vec<(f64, u64)>,
    /// How long that round took.
    pub seconds: f64,
}

/// Times of single operations, in nanoseconds.
#[derive(Clone, Debug)]
pub struct LatencySummary {
    /// At each of [`crate::outcome::QUANTILES`].
    pub quantiles: Vec<f64>,
    /// The longest of all rounds.
    pub max: f64,
    /// What reading the clock takes, contained in all.
    pub clock: f64,
}

impl LatencySummary {
    /// The time within which this share of the operations was done, if it was taken.
    #[must_use]
    pub fn at(&self, share: f64) -> Option<f64> {
        let near = |q: &f64| (q - share).abs() < 1e-9;
        let place = crate::outcome::QUANTILES.iter().position(near)?;
        self.quantiles.get(place).copied()
    }
}

/// Opening after a real kill.
#[derive(Clone, Debug)]
pub struct RecoverySummary {
    /// Milliseconds until the map was open.
    pub open: Figure,
    /// Milliseconds until the first lookup was answered, opening included.
    pub first_get: Figure,
    /// Milliseconds until lookups were about as fast as in the end, opening included.
    pub full_speed: Option<Figure>,
    /// The round whose first lookup is the median: lookups answered, at times in milliseconds since opening began.
    pub warm_up: Vec<(f64, u64)>,
    /// Records that had been acknowledged.
    pub records: u64,
    /// Of all rounds together, acknowledged records that are not there.
    pub lost: u64,
}

impl<'a> Summary<'a> {
    /// Sums a run up.
    #[must_use]
    pub fn of(run: &'a Run) -> Self {
        let experiments = run.plan.experiments.iter();
        Self {
            run,
            experiments: experiments.map(|plan| experiment(run, plan)).collect(),
        }
    }

    /// The contestant that all others are compared with: the first of ours, or the first at all.
    #[must_use]
    pub fn reference(&self) -> Option<&'a str> {
        let all = &self.run.contestants;
        let ours = all.iter().find(|c| c.is_ours).or(all.first())?;
        Some(&ours.name)
    }
}

impl ExperimentSummary<'_> {
    /// The row that all others are compared with: the first of ours that got anywhere.
    #[must_use]
    pub fn reference(&self) -> Option<&Row> {
        let got_somewhere = |row: &&Row| row.cells.iter().any(Option::is_some);
        let mut ours = self.rows.iter().filter(|row| row.is_ours);
        ours.find(got_somewhere)
    }

    /// Columns with the fewest threads of their phase.
    pub fn fewest_threads(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.columns.len()).filter(|&at| {
            let column = &self.columns[at];
            let same = self.columns.iter().filter(|c| c.phase == column.phase);
            same.map(|c| c.threads).min() == Some(column.threads)
        })
    }
}

fn experiment<'a>(run: &'a Run, plan: &'a Experiment) -> ExperimentSummary<'a> {
    let outcomes: Vec<&Outcome> = run
        .outcomes
        .iter()
        .filter(|o| o.experiment == plan.name)
        .collect();
    let columns = columns(plan, &outcomes);
    let row = |(place, described): (usize, &crate::outcome::Described)| {
        let mine = |o: &&&Outcome| o.contestant == described.name;
        let mine: Vec<&Outcome> = outcomes.iter().filter(mine).copied().collect();
        (!mine.is_empty()).then(|| Row {
            name: described.name.clone(),
            place,
            is_ours: described.is_ours,
            survives: described.survives.clone(),
            error: error(&mine),
            cells: columns.iter().map(|c| cell(&mine, c)).collect(),
            space: space(&mine),
            recovery: recovery(&mine),
            structure: structure(&mine),
        })
    };
    let rows = run.contestants.iter().enumerate().filter_map(row).collect();
    ExperimentSummary {
        plan,
        facts: run.data.iter().find(|d| d.experiment == plan.name),
        columns,
        rows,
    }
}

/// What was measured, in the order of the plan; what the plan does not know comes last.
fn columns(plan: &Experiment, outcomes: &[&Outcome]) -> Vec<Column> {
    let mut found: Vec<Column> = Vec::new();
    for measured in outcomes.iter().flat_map(|o| o.load.iter().chain(&o.phases)) {
        let column = Column::of(measured);
        if !found.contains(&column) {
            found.push(column);
        }
    }
    let place = |c: &Column| match c.phase.as_str() {
        "load" => 0,
        name => {
            1 + plan
                .phases
                .iter()
                .position(|p| p.name == name)
                .unwrap_or(usize::MAX - 1)
        }
    };
    found.sort_by_key(|c| (place(c), c.threads));
    found
}

fn error(outcomes: &[&Outcome]) -> Option<String> {
    let errors: Vec<&String> = outcomes.iter().filter_map(|o| o.error.as_ref()).collect();
    let first = errors.first()?;
    Some(match (errors.len(), outcomes.len()) {
        (1, 1) => format!("failed: {first}"),
        (n, all) if n == all => format!("failed in all {all} rounds: {first}"),
        (n, all) => format!("failed in {n} of {all} rounds: {first}"),
    })
}

/// All rounds of a contestant in a column.
pub(crate) fn rounds<'a>(outcomes: &[&'a Outcome], column: &Column) -> Vec<&'a Measured> {
    let all = outcomes.iter().flat_map(|o| o.load.iter().chain(&o.phases));
    all.filter(|m| m.phase == column.phase && m.threads == column.threads)
        .filter(|m| m.operations > 0 && m.seconds > 0.0)
        .collect()
}

fn cell(outcomes: &[&Outcome], column: &Column) -> Option<Cell> {
    let mut rounds = rounds(outcomes, column);
    let rates: Vec<f64> = rounds.iter().map(|m| m.rate()).collect();
    let rate = Figure::of(&rates)?;
    rounds.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    let middle = rounds[rounds.len() / 2];
    Some(Cell {
        rate,
        latency: latency(&rounds),
        cost: cost(&rounds),
        timeline: middle.timeline.clone(),
        seconds: middle.seconds,
    })
}

fn latency(rounds: &[&Measured]) -> Option<LatencySummary> {
    let taken: Vec<_> = rounds.iter().filter_map(|m| m.latency.as_ref()).collect();
    let quantile = |at: usize| {
        let values = taken.iter().filter_map(|l| l.quantiles.get(at));
        median(&values.map(|&ns| ns as f64).collect::<Vec<_>>())
    };
    let clocks: Vec<f64> = taken.iter().map(|l| l.clock_ns as f64).collect();
    Some(LatencySummary {
        quantiles: (0..crate::outcome::QUANTILES.len())
            .map_while(quantile)
            .collect(),
        max: taken.iter().map(|l| l.max_ns).max()? as f64,
        clock: median(&clocks)?,
    })
}

fn cost(rounds: &[&Measured]) -> Option<Cost> {
    let taken: Vec<Cost> = rounds.iter().filter_map(|m| m.cost).collect();
    let of = |get: fn(&Cost) -> f64| median(&taken.iter().map(get).collect::<Vec<_>>());
    Some(Cost {
        lines_flushed: of(|c| c.lines_flushed)?,
        fences: of(|c| c.fences)?,
        lines_streamed: of(|c| c.lines_streamed)?,
        blocks_written: of(|c| c.blocks_written)?,
        bytes_allocated: of(|c| c.bytes_allocated)?,
    })
}

fn space(outcomes: &[&Outcome]) -> Option<Space> {
    let taken: Vec<Space> = outcomes.iter().filter_map(|o| o.space).collect();
    let of = |get: fn(&Space) -> u64| {
        let values: Vec<f64> = taken.iter().map(|s| get(s) as f64).collect();
        median(&values).map(|m| m as u64)
    };
    Some(Space {
        records: of(|s| s.records)?,
        file_bytes: of(|s| s.file_bytes)?,
        dram_bytes: of(|s| s.dram_bytes)?,
        peak_bytes: of(|s| s.peak_bytes)?,
    })
}

fn recovery(outcomes: &[&Outcome]) -> Option<RecoverySummary> {
    let mut taken: Vec<_> = outcomes
        .iter()
        .filter_map(|o| o.recovery.as_ref())
        .collect();
    taken.sort_by(|a, b| a.first_get_ms.total_cmp(&b.first_get_ms));
    let open: Vec<f64> = taken.iter().map(|r| r.open_ms).collect();
    let first_get: Vec<f64> = taken.iter().map(|r| r.first_get_ms).collect();
    let full_speed = taken.iter().filter_map(|r| full_speed(&r.warm_up));
    let full_speed: Vec<f64> = full_speed.collect();
    Some(RecoverySummary {
        open: Figure::of(&open)?,
        first_get: Figure::of(&first_get)?,
        full_speed: Figure::of(&full_speed),
        warm_up: taken[taken.len() / 2].warm_up.clone(),
        records: taken.iter().map(|r| r.records).max()?,
        lost: taken.iter().map(|r| r.lost).sum(),
    })
}

/// When the rate first reaches nine tenths of what it comes to: the median of the later half.
fn full_speed(warm_up: &[(f64, u64)]) -> Option<f64> {
    let rate = |w: &[(f64, u64)]| {
        let took = w[1].0 - w[0].0;
        (took > 0.0).then(|| (w[1].0, w[1].1.saturating_sub(w[0].1) as f64 / took))
    };
    let rates: Vec<(f64, f64)> = warm_up.windows(2).filter_map(rate).collect();
    let later: Vec<f64> = rates[rates.len() / 2..].iter().map(|r| r.1).collect();
    let wanted = 0.9 * median(&later)?;
    let reached = rates.iter().find(|(_, rate)| *rate >= wanted);
    reached.map(|(ms, _)| *ms)
}

/// Statistics of the first round that has most of them: those of all phases must be of one round.
fn structure(outcomes: &[&Outcome]) -> Vec<(Column, Statistics)> {
    let of = |outcome: &&Outcome| {
        let all = outcome.load.iter().chain(&outcome.phases);
        all.filter_map(|m| Some((Column::of(m), m.statistics.clone()?)))
            .collect::<Vec<_>>()
    };
    let rounds = outcomes.iter().map(of);
    let longer = |a: Vec<_>, b: Vec<_>| if b.len() > a.len() { b } else { a };
    rounds.reduce(longer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn full_speed_is_nine_tenths_of_the_later_half() {
        let slow_then_fast = [
            (1.0, 1),
            (2.0, 11),
            (3.0, 31),
            (4.0, 126),
            (5.0, 226),
            (6.0, 326),
        ];
        assert_eq!(full_speed(&slow_then_fast), Some(4.0));
        assert_eq!(full_speed(&[(1.0, 1)]), None);
        assert_eq!(full_speed(&[]), None);
    }

    #[test]
    fn noise_is_half_the_range_of_the_rounds() {
        let figure = Figure::of(&[90.0, 100.0, 104.0]).unwrap();
        assert_eq!(figure.median, 100.0);
        assert!((figure.noise.unwrap() - 0.07).abs() < 1e-12);
        assert_eq!(Figure::of(&[3.0]).unwrap().noise, None);
        assert_eq!(Figure::of(&[]), None);
    }

    #[test]
    fn a_contestant_that_failed_stays_in_the_summary() {
        let run = sample::run(1, 3);
        let summary = Summary::of(&run);
        let failed = summary.experiments[0]
            .rows
            .iter()
            .find(|r| r.name == sample::FAILING);
        assert!(
            failed
                .unwrap()
                .error
                .as_ref()
                .unwrap()
                .contains("all 3 rounds")
        );
        assert_eq!(summary.experiments.len(), 3);
        assert_eq!(summary.reference(), Some("indelible"));
    }
}
