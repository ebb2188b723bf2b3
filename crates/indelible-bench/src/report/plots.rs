//! What is plotted: panels for each kind of measurement of an experiment.

use super::chart::{
    Bar, Bars, Chart, Dumbbell, Dumbbells, Ink, Lines, Panel, Series, Spark, Sparks, Tick,
};
use super::format::{self, nanoseconds};
use super::summary::{COUNTS, Cell, Column, Count, ExperimentSummary, Row};
use crate::outcome::{Cost, QUANTILES};

/// A kind of plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Plot {
    /// A selection for a README: four phases, recovery and space.
    Main,
    /// Operations per second with the fewest threads, a panel per phase.
    Throughput,
    /// Operations per second by threads.
    Threads,
    /// Percentiles of latency.
    Latency,
    /// How the rate went over time.
    OverTime,
    /// Opening after a kill, and warming up.
    Recovery,
    /// Bytes per record.
    Space,
    /// Lines flushed, fences and blocks per operation.
    Counts,
}

impl Plot {
    /// All but [`Plot::Main`], in the order of the page.
    pub const KINDS: [Self; 7] = [
        Self::Throughput,
        Self::Threads,
        Self::Latency,
        Self::OverTime,
        Self::Recovery,
        Self::Space,
        Self::Counts,
    ];

    /// Its heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Main => "Side by side",
            Self::Throughput => "Throughput",
            Self::Threads => "Throughput by threads",
            Self::Latency => "Latency",
            Self::OverTime => "Throughput over time",
            Self::Recovery => "After kill -9",
            Self::Space => "Space",
            Self::Counts => "Counts",
        }
    }

    /// Whether colours stand for contestants, and not for what they survive.
    #[must_use]
    pub fn colours_contestants(self, panels: &[Panel]) -> bool {
        let lines = |p: &Panel| matches!(p.chart, Chart::Lines(_));
        self != Self::Main && panels.iter().any(lines)
    }
}

/// The panels of a plot; none if there is nothing to show.
#[must_use]
pub fn panels(plot: Plot, experiment: &ExperimentSummary) -> Vec<Panel> {
    match plot {
        Plot::Main => main(experiment),
        Plot::Throughput => experiment
            .fewest_threads()
            .filter_map(|at| throughput(experiment, at))
            .collect(),
        Plot::Threads => threads(experiment),
        Plot::Latency => each_column(experiment, latency),
        Plot::OverTime => each_column(experiment, over_time),
        Plot::Recovery => recovery(experiment)
            .into_iter()
            .chain(warm_up(experiment))
            .collect(),
        Plot::Space => space(experiment)
            .into_iter()
            .chain(peak(experiment))
            .collect(),
        Plot::Counts => counts(experiment),
    }
}

fn each_column(
    experiment: &ExperimentSummary,
    panel: fn(&ExperimentSummary, usize) -> Option<Panel>,
) -> Vec<Panel> {
    experiment
        .fewest_threads()
        .filter_map(|at| panel(experiment, at))
        .collect()
}

/// The first four phases after the load, recovery and space.
fn main(experiment: &ExperimentSummary) -> Vec<Panel> {
    let phases = experiment
        .fewest_threads()
        .filter(|&at| experiment.columns[at].phase != "load");
    let phases = phases.filter_map(|at| throughput(experiment, at)).take(4);
    phases
        .chain(recovery(experiment))
        .chain(space(experiment))
        .collect()
}

/// The colour of what a contestant survives.
fn ink(row: &Row) -> Ink {
    match row.survives.as_str() {
        _ if row.is_ours => Ink::Ours,
        "nothing" => Ink::Nothing,
        "power cut" => Ink::Power,
        _ => Ink::Kill,
    }
}

/// Rows that have something, with it.
fn having<'a, T>(
    experiment: &'a ExperimentSummary,
    get: impl Fn(&'a Row) -> Option<T>,
) -> Vec<(&'a Row, T)> {
    experiment
        .rows
        .iter()
        .filter_map(|row| Some((row, get(row)?)))
        .collect()
}

/// Rows with a cell in a column, fastest first.
fn fastest<'a>(experiment: &'a ExperimentSummary, at: usize) -> Vec<(&'a Row, &'a Cell)> {
    let mut rows = having(experiment, |row| row.cells[at].as_ref());
    rows.sort_by(|a, b| b.1.rate.median.total_cmp(&a.1.rate.median));
    rows
}

fn is_reference(experiment: &ExperimentSummary, row: &Row) -> bool {
    experiment.reference().is_some_and(|r| r.name == row.name)
}

fn title(column: &Column) -> String {
    match column.threads {
        0 | 1 => format!("{}, 1 thread", column.phase),
        _ => column.label(),
    }
}

fn throughput(experiment: &ExperimentSummary, at: usize) -> Option<Panel> {
    let ours = experiment.reference().and_then(|r| r.cells[at].as_ref());
    let rows = fastest(experiment, at);
    let bar = |(row, cell): &(&Row, &Cell)| {
        let rate = cell.rate;
        let half = rate.noise.map(|n| n * rate.median);
        let times = ours.filter(|_| !is_reference(experiment, row));
        Bar {
            label: row.name.clone(),
            bold: is_reference(experiment, row),
            ink: ink(row),
            parts: vec![rate.median],
            range: half.map(|h| (rate.median - h, rate.median + h)),
            figure: format!(
                "{} {}",
                format::rate(rate.median),
                format::noise(rate.noise)
            ),
            side: times.map_or(String::new(), |o| {
                format::ratio(rate.median / o.rate.median)
            }),
        }
    };
    let failed = |row: &&Row| row.error.is_some() && row.cells[at].is_none();
    let failed = experiment.rows.iter().filter(failed).map(|row| Bar {
        label: row.name.clone(),
        bold: false,
        ink: ink(row),
        parts: Vec::new(),
        range: None,
        figure: "failed".into(),
        side: String::new(),
    });
    let than = experiment.reference().map_or("", |r| &r.name);
    (!rows.is_empty()).then(|| Panel {
        title: title(&experiment.columns[at]),
        note: format!("million operations per second; at the right, times {than}"),
        chart: Chart::Bars(Bars {
            bars: rows.iter().map(bar).chain(failed).collect(),
            mark: None,
        }),
    })
}

fn series(experiment: &ExperimentSummary, row: &Row, points: Vec<(f64, f64)>) -> Series {
    Series {
        label: row.name.clone(),
        ink: Ink::Contestant(row.place),
        bold: is_reference(experiment, row),
        points,
    }
}

/// A panel per phase that was measured with several numbers of threads. Who is near the bottom line all along is named
/// in the note instead.
fn threads(experiment: &ExperimentSummary) -> Vec<Panel> {
    let several = |at: &usize| {
        let same = |c: &&Column| c.phase == experiment.columns[*at].phase;
        experiment.columns.iter().filter(same).count() > 1
    };
    let phases = experiment.fewest_threads().filter(several);
    phases
        .filter_map(|at| by_threads(experiment, &experiment.columns[at].phase))
        .collect()
}

fn by_threads(experiment: &ExperimentSummary, phase: &str) -> Option<Panel> {
    let columns = experiment
        .columns
        .iter()
        .enumerate()
        .filter(|(_, c)| c.phase == phase);
    let columns: Vec<(usize, f64)> = columns
        .map(|(at, c)| (at, f64::from(c.threads.max(1))))
        .collect();
    let points = |row: &Row| {
        let rate = |&(at, n): &(usize, f64)| Some((n.log2(), row.cells[at].as_ref()?.rate.median));
        let points: Vec<_> = columns.iter().filter_map(rate).collect();
        (points.len() > 1).then_some(points)
    };
    let rows = having(experiment, points);
    let best = |points: &[(f64, f64)]| points.iter().map(|p| p.1).fold(0.0, f64::max);
    let most = rows
        .iter()
        .map(|(_, points)| best(points))
        .fold(0.0, f64::max);
    let (shown, hidden): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|(_, points)| best(points) > most * 0.01);
    let hidden: Vec<&str> = hidden.iter().map(|(row, _)| row.name.as_str()).collect();
    let below = match hidden.len() {
        0 => String::new(),
        _ => format!("; below 1 %: {}", hidden.join(", ")),
    };
    let tick = |&(_, n): &(usize, f64)| (n.log2(), format!("{n:.0}"));
    (!shown.is_empty()).then(|| Panel {
        title: phase.into(),
        note: format!("million operations per second{below}"),
        chart: Chart::Lines(Lines {
            series: shown
                .into_iter()
                .map(|(row, points)| series(experiment, row, points))
                .collect(),
            ticks: columns.iter().map(tick).collect(),
            axis: "threads".into(),
            logarithmic: None,
            dots: true,
        }),
    })
}

/// How many nines a share has.
fn nines(share: f64) -> f64 {
    -(1.0 - share).log10()
}

fn latency(experiment: &ExperimentSummary, at: usize) -> Option<Panel> {
    let points = |row: &Row| {
        let latency = row.cells[at].as_ref()?.latency.as_ref()?;
        let quantiles = QUANTILES.iter().zip(&latency.quantiles);
        let points: Vec<_> = quantiles.map(|(&q, &ns)| (nines(q), ns.max(1.0))).collect();
        (!points.is_empty()).then_some(points)
    };
    let rows = having(experiment, points);
    let clock = having(experiment, |row| {
        Some(row.cells[at].as_ref()?.latency.as_ref()?.clock)
    });
    let clock = clock.first().map_or(0.0, |(_, clock)| *clock);
    let ticks = [
        (0.5, "50 %"),
        (0.9, "90 %"),
        (0.99, "99 %"),
        (0.999, "99.9 %"),
        (0.9999, "99.99 %"),
    ];
    (!rows.is_empty()).then(|| Panel {
        title: title(&experiment.columns[at]),
        note: format!("time of an operation; reading the clock is {clock:.0} ns of it"),
        chart: Chart::Lines(Lines {
            series: rows
                .into_iter()
                .map(|(row, points)| series(experiment, row, points))
                .collect(),
            ticks: ticks.map(|(q, label)| (nines(q), label.into())).into(),
            axis: "share of the operations that took no longer".into(),
            logarithmic: Some(format::decade),
            dots: false,
        }),
    })
}

/// The rate in each window of time relative to the mean.
fn windows(timeline: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let Some(&(end, all)) = timeline.last().filter(|(end, all)| *end > 0.0 && *all > 0) else {
        return Vec::new();
    };
    let mean = all as f64 / end;
    let mut since = (0.0, 0);
    let mut points = Vec::new();
    for &(time, done) in timeline {
        if time - since.0 > end / 100.0 {
            let rate = done.saturating_sub(since.1) as f64 / (time - since.0);
            points.push((time / end, rate / mean));
            since = (time, done);
        }
    }
    points
}

fn over_time(experiment: &ExperimentSummary, at: usize) -> Option<Panel> {
    let rows = fastest(experiment, at).into_iter();
    let rows = rows.map(|(row, cell)| (row, cell, windows(&cell.timeline)));
    let rows: Vec<_> = rows.filter(|(_, _, points)| points.len() > 3).collect();
    let spark = |(row, cell, points): &(&Row, &Cell, Vec<(f64, f64)>)| {
        let slowest = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
        Spark {
            label: row.name.clone(),
            bold: is_reference(experiment, row),
            ink: ink(row),
            points: points.clone(),
            figures: (
                nanoseconds(cell.seconds * 1e9),
                format!("{:.0} %", slowest * 100.0),
            ),
        }
    };
    (!rows.is_empty()).then(|| Panel {
        title: title(&experiment.columns[at]),
        note: "rate of the median round over its own time, relative to its mean".into(),
        chart: Chart::Sparks(Sparks {
            sparks: rows.iter().map(spark).collect(),
        }),
    })
}

fn recovery(experiment: &ExperimentSummary) -> Option<Panel> {
    let mut rows = having(experiment, |row| row.recovery.as_ref());
    rows.sort_by(|a, b| a.1.first_get.median.total_cmp(&b.1.first_get.median));
    let lost: u64 = rows.iter().map(|(_, r)| r.lost).sum();
    let dumbbell = |(row, r): &(&Row, &super::summary::RecoverySummary)| Dumbbell {
        label: row.name.clone(),
        bold: is_reference(experiment, row),
        ink: ink(row),
        from: r.open.median * 1e6,
        to: r.first_get.median * 1e6,
        figure: match r.lost {
            0 => nanoseconds(r.first_get.median * 1e6),
            lost => format!("LOST {}", format::grouped(lost)),
        },
    };
    let losses = match lost {
        0 => "no record lost".into(),
        n => format!("{} records LOST", format::grouped(n)),
    };
    (!rows.is_empty()).then(|| Panel {
        title: "Open after kill -9".into(),
        note: format!("until it is open (ring) and has answered (dot); {losses}"),
        chart: Chart::Dumbbells(Dumbbells {
            rows: rows.iter().map(dumbbell).collect(),
        }),
    })
}

/// Million lookups per second between the moments of a warm-up, over the logarithm of nanoseconds.
fn warm_up(experiment: &ExperimentSummary) -> Option<Panel> {
    let points = |row: &Row| {
        let warm_up = &row.recovery.as_ref()?.warm_up;
        let window = |w: &[(f64, u64)]| {
            let (ms, done) = (w[1].0 - w[0].0, w[1].1.saturating_sub(w[0].1));
            ((w[1].0.max(1e-3) * 1e6).log10(), done as f64 / ms / 1e3)
        };
        let moving: Vec<_> = warm_up
            .windows(2)
            .filter(|w| w[1].0 > w[0].0)
            .map(window)
            .collect();
        (moving.len() > 1).then_some(moving)
    };
    let rows = having(experiment, points);
    let ticks: Vec<Tick> = (3..=12)
        .map(|d| (f64::from(d), format::decade(10f64.powi(d))))
        .collect();
    (!rows.is_empty()).then(|| Panel {
        title: "Warming up after kill -9".into(),
        note: match experiment.plan.recovery_threads {
            0 | 1 => "million lookups per second, 1 thread".into(),
            n => format!("million lookups per second, {n} threads"),
        },
        chart: Chart::Lines(Lines {
            series: rows
                .into_iter()
                .map(|(row, points)| series(experiment, row, points))
                .collect(),
            ticks,
            axis: "time since opening began".into(),
            logarithmic: None,
            dots: false,
        }),
    })
}

fn space(experiment: &ExperimentSummary) -> Option<Panel> {
    let per_record = |bytes: u64, records: u64| bytes as f64 / records.max(1) as f64;
    let both = |row: &Row| {
        let s = row.space?;
        Some((
            per_record(s.file_bytes, s.records),
            per_record(s.dram_bytes, s.records),
        ))
    };
    let mut rows = having(experiment, both);
    rows.sort_by(|a, b| (a.1.0 + a.1.1).total_cmp(&(b.1.0 + b.1.1)));
    let bar = |(row, (file, dram)): &(&Row, (f64, f64))| Bar {
        label: row.name.clone(),
        bold: is_reference(experiment, row),
        ink: ink(row),
        parts: vec![*file, *dram],
        range: None,
        figure: format!("{} B", format::digits(file + dram)),
        side: String::new(),
    };
    (!rows.is_empty()).then(|| Panel {
        title: "Bytes per record".into(),
        note: "full colour: in its file; faint: in DRAM".into(),
        chart: Chart::Bars(Bars {
            bars: rows.iter().map(bar).collect(),
            mark: Some((16.0, "the record itself, 16 B".into())),
        }),
    })
}

/// The most memory at any time.
fn peak(experiment: &ExperimentSummary) -> Option<Panel> {
    let per_record =
        |row: &Row| Some(row.space?.peak_bytes as f64 / row.space?.records.max(1) as f64);
    let mut rows = having(experiment, |row| {
        per_record(row).filter(|bytes| *bytes > 0.0)
    });
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    let bar = |(row, bytes): &(&Row, f64)| Bar {
        label: row.name.clone(),
        bold: is_reference(experiment, row),
        ink: ink(row),
        parts: vec![*bytes],
        range: None,
        figure: format!("{} B", format::digits(*bytes)),
        side: String::new(),
    };
    (!rows.is_empty()).then(|| Panel {
        title: "Peak memory per record".into(),
        note: "the most that the process had during the load, mapped files included".into(),
        chart: Chart::Bars(Bars {
            bars: rows.iter().map(bar).collect(),
            mark: None,
        }),
    })
}

/// With a capital letter.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// A panel per kind of count: of the first of ours, and of the first with each other kind of index.
fn counts(experiment: &ExperimentSummary) -> Vec<Panel> {
    let counting = |row: &&Row| row.is_ours && row.cells.iter().flatten().any(|c| c.cost.is_some());
    let index = |row: &Row| row.structure.first().map(|(_, first)| first.kind.clone());
    let mut rows: Vec<&Row> = Vec::new();
    for row in experiment.rows.iter().filter(counting) {
        if rows.iter().all(|known| index(known) != index(row)) {
            rows.push(row);
        }
    }
    // Bytes allocated are in the table: their scale is another one.
    let kinds = COUNTS
        .into_iter()
        .filter(|(name, _)| *name != "bytes allocated")
        .filter(|(_, get)| {
            let costs = |row| counted(experiment, row).any(|(_, cost)| get(&cost) > 0.0);
            rows.iter().any(|row| costs(row))
        });
    let each = |kind: Count| rows.iter().map(move |row| count(experiment, row, kind));
    kinds.flat_map(each).collect()
}

/// The counts of a contestant, with the fewest threads of each phase.
fn counted<'a>(
    experiment: &'a ExperimentSummary,
    row: &'a Row,
) -> impl Iterator<Item = (&'a Column, Cost)> {
    let cells = experiment
        .fewest_threads()
        .map(|at| (&experiment.columns[at], &row.cells[at]));
    cells.filter_map(|(column, cell)| Some((column, cell.as_ref()?.cost?)))
}

/// A bar per phase.
fn count(experiment: &ExperimentSummary, row: &Row, (name, get): Count) -> Panel {
    let bar = |(column, cost): (&Column, Cost)| Bar {
        label: column.label(),
        bold: false,
        ink: Ink::Ours,
        parts: vec![get(&cost)],
        range: None,
        figure: format::digits(get(&cost)),
        side: String::new(),
    };
    Panel {
        title: format!("{} per operation", capital(name)),
        note: format!("of {}, counted", row.name),
        chart: Chart::Bars(Bars {
            bars: counted(experiment, row).map(bar).collect(),
            mark: None,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nines_and_windows() {
        assert!((nines(0.999) - 3.0).abs() < 1e-9);
        let flat = windows(&[(1.0, 10), (2.0, 20), (4.0, 40)]);
        assert!(flat.iter().all(|p| (p.1 - 1.0).abs() < 1e-9));
        assert!(windows(&[]).is_empty() && windows(&[(0.0, 0)]).is_empty());
    }
}
