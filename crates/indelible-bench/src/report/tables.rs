//! The tables of a run. Terminal and page show the same ones.

use super::format::{self, nanoseconds};
use super::summary::{COUNTS, Column, ExperimentSummary, Row, Summary};
use super::table::{Line, Table, Value};
use crate::outcome::Space;
use std::collections::BTreeSet;

/// Quantiles in the tables.
const SHARES: [(f64, &str); 4] = [
    (0.5, "p50"),
    (0.99, "p99"),
    (0.999, "p99.9"),
    (0.9999, "p99.99"),
];

/// A line of a contestant, without its errors.
pub(super) fn line(row: &Row, values: Vec<Value>) -> Line {
    Line {
        name: row.name.clone(),
        is_ours: row.is_ours,
        values,
        remark: None,
    }
}

/// Million operations per second, with noise, and how many times as fast as the first of ours.
#[must_use]
pub fn throughput(experiment: &ExperimentSummary) -> Table {
    let reference = experiment.reference();
    let value = |row: &Row, at: usize| {
        let Some(cell) = &row.cells[at] else {
            return Value::default();
        };
        let ours = reference.filter(|r| r.name != row.name);
        let ours = ours.and_then(|r| r.cells[at].as_ref());
        let times = ours.map(|ours| cell.rate.median / ours.rate.median);
        let noise = format::noise(cell.rate.noise);
        Value {
            main: format::rate(cell.rate.median),
            side: format!(
                "{noise:<4} {:>5}",
                times.map_or(String::new(), format::ratio)
            ),
            times,
        }
    };
    let lines = experiment.rows.iter().map(|row| Line {
        remark: row.error.clone(),
        ..line(row, (0..row.cells.len()).map(|at| value(row, at)).collect())
    });
    let than = reference.map_or(String::new(), |r| format!(", times {}", r.name));
    Table {
        title: "Throughput".into(),
        note: format!(
            "million operations per second, median of the rounds ± half their range{than}"
        ),
        corner: "M operations/s".into(),
        head: experiment
            .columns
            .iter()
            .map(|c| threads(experiment, c))
            .collect(),
        groups: grouped(experiment.columns.iter().map(|c| c.phase.clone())),
        lines: lines.collect(),
    }
}

/// Latency of single operations: a column per phase and quantile. All numbers of threads, or the fewest of each phase.
#[must_use]
pub fn latency(experiment: &ExperimentSummary, all_threads: bool) -> Table {
    let taken = |at: &usize| {
        let cells = experiment
            .rows
            .iter()
            .filter_map(|row| row.cells[*at].as_ref());
        cells.filter_map(|c| c.latency.as_ref()).next().is_some()
    };
    let fewest: Vec<usize> = experiment.fewest_threads().collect();
    let columns: Vec<usize> = (0..experiment.columns.len())
        .filter(|at| taken(at) && (all_threads || fewest.contains(at)))
        .collect();
    let value = |row: &Row, at: usize, share: f64| {
        let latency = row.cells[at].as_ref().and_then(|c| c.latency.as_ref());
        Value::plain(
            latency
                .and_then(|l| l.at(share))
                .map_or(String::new(), nanoseconds),
        )
    };
    let values = |row: &Row| {
        let of = |&at: &usize| SHARES.map(|(share, _)| value(row, at, share));
        columns.iter().flat_map(of).collect()
    };
    let head = |_: &usize| SHARES.map(|(_, name)| name.into());
    let label = |&at: &usize| (experiment.columns[at].label(), SHARES.len());
    Table {
        title: "Latency".into(),
        note: "of single operations, timed in a pass of their own; the median of the rounds for each percentile".into(),
        corner: "latency".into(),
        head: columns.iter().flat_map(head).collect(),
        groups: columns.iter().map(label).collect(),
        lines: experiment.rows.iter().map(|row| line(row, values(row))).filter(has_values).collect(),
    }
}

/// Bytes per record.
#[must_use]
pub fn space(experiment: &ExperimentSummary) -> Table {
    let values = |s: &Space| {
        let per_record =
            |bytes: u64| Value::plain(format::digits(bytes as f64 / s.records.max(1) as f64));
        [
            s.file_bytes,
            s.dram_bytes,
            s.file_bytes + s.dram_bytes,
            s.peak_bytes,
        ]
        .map(per_record)
    };
    let rows = experiment.rows.iter();
    let lines = rows.filter_map(|row| Some(line(row, values(row.space.as_ref()?).to_vec())));
    Table {
        title: "Space".into(),
        note: "bytes per record after the load; a record is 16 bytes. Peak is the most memory of the process during the load, mapped files included".into(),
        corner: "bytes/record".into(),
        head: ["file", "DRAM", "together", "peak"].map(String::from).into(),
        groups: Vec::new(),
        lines: lines.collect(),
    }
}

/// Milliseconds after a kill.
#[must_use]
pub fn recovery(experiment: &ExperimentSummary) -> Table {
    let figure = |f: super::summary::Figure| Value {
        main: nanoseconds(f.median * 1e6),
        side: format::noise(f.noise),
        times: None,
    };
    let values = |row: &Row| {
        let r = row.recovery.as_ref()?;
        let lost = Value::plain(format::grouped(r.lost));
        let records = Value::plain(format::count(r.records));
        let full_speed = r.full_speed.map(figure).unwrap_or_default();
        Some(vec![
            figure(r.open),
            figure(r.first_get),
            full_speed,
            records,
            lost,
        ])
    };
    let rows = experiment.rows.iter();
    Table {
        title: "After kill -9".into(),
        note: "until the map is open, until the first lookup is answered, and until lookups are about as fast (nine tenths) as \
               in the end, opening included; the last of these in steps of 5 ms"
            .into(),
        corner: "recovery".into(),
        head: ["open", "first get", "full speed", "records", "lost"]
            .map(String::from)
            .into(),
        groups: Vec::new(),
        lines: rows
            .filter_map(|row| Some(line(row, values(row)?)))
            .collect(),
    }
}

/// Exact counts per operation: a line per contestant that counts and column. All numbers of threads, or the
/// fewest of each phase.
#[must_use]
pub fn counts(experiment: &ExperimentSummary, all_threads: bool) -> Table {
    let fewest: Vec<usize> = experiment.fewest_threads().collect();
    let lines = experiment.rows.iter().flat_map(|row| {
        let columns = experiment.columns.iter().zip(&row.cells).enumerate();
        let shown = columns.filter(|(at, _)| all_threads || fewest.contains(at));
        shown.filter_map(|(_, (column, cell))| {
            let c = cell.as_ref()?.cost.as_ref()?;
            let mut values = vec![Value::plain(column.label())];
            values.extend(COUNTS.map(|(_, get)| Value::plain(format::digits(get(c)))));
            Some(line(row, values))
        })
    });
    let head = ["phase"].into_iter().chain(COUNTS.map(|(name, _)| name));
    Table {
        title: "Counts".into(),
        note: "per operation, counted and not estimated, structure changes included".into(),
        corner: "counts".into(),
        head: head.map(String::from).collect(),
        groups: Vec::new(),
        lines: lines.collect(),
    }
}

/// The rates of ours in all experiments, times those of the reference: a line per experiment and contestant. Empty with one
/// experiment, or one of ours.
#[must_use]
pub fn across(summary: &Summary) -> Table {
    let mut columns: Vec<(&Column, usize)> = Vec::new();
    for experiment in &summary.experiments {
        for column in experiment
            .fewest_threads()
            .map(|at| &experiment.columns[at])
        {
            match columns.iter_mut().find(|(known, _)| *known == column) {
                Some((_, times)) => *times += 1,
                None => columns.push((column, 1)),
            }
        }
    }
    columns.retain(|&(_, times)| times > 1);
    let value = |experiment: &ExperimentSummary, row: &Row, column: &Column| {
        let at = experiment.columns.iter().position(|c| c == column)?;
        let ours = experiment.reference()?.cells[at].as_ref()?;
        let times = row.cells[at].as_ref()?.rate.median / ours.rate.median;
        Some(Value {
            main: format::ratio(times),
            times: Some(times),
            ..Value::default()
        })
    };
    let lines = summary.experiments.iter().flat_map(|experiment| {
        let others = experiment.rows.iter().filter(|row| {
            let is_reference = experiment.reference().is_some_and(|r| r.name == row.name);
            row.is_ours && !is_reference
        });
        let columns = &columns;
        others.map(move |row| {
            let mut values = vec![Value::plain(format::cut(&row.name, 24))];
            let cells = columns
                .iter()
                .map(|(column, _)| value(experiment, row, column));
            values.extend(cells.map(Option::unwrap_or_default));
            Line {
                name: experiment.plan.name.clone(),
                ..line(row, values)
            }
        })
    });
    let several = summary.experiments.len() > 1;
    // Experiments with contestants of their own may have another one.
    let references = summary.experiments.iter().filter_map(|e| e.reference());
    let references: BTreeSet<&str> = references.map(|row| row.name.as_str()).collect();
    let reference = match references.len() {
        0 | 1 => references.first().copied().unwrap_or_default(),
        _ => "the first of ours in the experiment",
    };
    let labels = columns.iter().map(|(column, _)| column.label());
    Table {
        title: "Across the experiments".into(),
        note: format!("rates of ours, times those of {reference}"),
        corner: "experiment".into(),
        head: ["contestant".into()].into_iter().chain(labels).collect(),
        groups: Vec::new(),
        lines: lines.filter(|_| several).collect(),
    }
}

/// How hard the keys of each experiment are.
#[must_use]
pub fn data(summary: &Summary) -> Table {
    let lines = summary.run.data.iter().map(|d| Line {
        name: d.experiment.clone(),
        values: [
            format::cut(&d.source, 44),
            format::count(d.keys),
            format::grouped(d.segments_32),
            format::grouped(d.segments_4096),
        ]
        .map(Value::plain)
        .into(),
        ..Line::default()
    });
    Table {
        title: "Keys".into(),
        note: "hardness: pieces that a piecewise linear function through the loaded keys needs if it may be wrong by 32, by 4096 places".into(),
        corner: "experiment".into(),
        head: ["source", "keys", "pieces ±32", "pieces ±4096"].map(String::from).into(),
        groups: Vec::new(),
        lines: lines.collect(),
    }
}

/// The threads of a column, where its phase alone does not say what it is.
fn threads(experiment: &ExperimentSummary, column: &Column) -> String {
    let same = |c: &&Column| c.phase == column.phase;
    let alone = experiment.columns.iter().filter(same).count() == 1;
    match column.threads {
        0 | 1 if alone => String::new(),
        0 | 1 => "1 thread".into(),
        n => format!("{n} threads"),
    }
}

/// Equal neighbours, counted.
fn grouped(labels: impl Iterator<Item = String>) -> Vec<(String, usize)> {
    let mut groups: Vec<(String, usize)> = Vec::new();
    for label in labels {
        match groups.last_mut() {
            Some(last) if last.0 == label => last.1 += 1,
            _ => groups.push((label, 1)),
        }
    }
    groups
}

fn has_values(line: &Line) -> bool {
    line.values.iter().any(|v| !v.main.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn what_rates_across_experiments_are_times_of_is_said() {
        let mut run = sample::run(1, 1);
        let note = |run: &_| across(&Summary::of(run)).note;
        assert_eq!(note(&run), "rates of ours, times those of indelible");
        let others =
            |o: &crate::outcome::Outcome| o.experiment != "cities" || o.contestant != "indelible";
        run.outcomes.retain(others);
        let note = note(&run);
        assert!(note.ends_with("times those of the first of ours in the experiment"));
    }
}
