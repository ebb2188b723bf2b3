//! What our indexes are made of: the tables 1 and 2 of the APEX paper, for both kinds.

use super::format;
use super::summary::{Column, ExperimentSummary, Row};
use super::table::{Table, Value};
use super::tables::line;
use crate::outcome::Statistics;

/// Bytes of a node: `256 B`, `16 KiB`.
fn bytes(bytes: u64) -> String {
    match bytes {
        b if b < 1024 => format!("{b} B"),
        b if b < 1 << 20 => format!("{} KiB", format::digits(b as f64 / 1024.0)),
        b => format!("{} MiB", format::digits(b as f64 / f64::from(1 << 20))),
    }
}

/// A share that may be very small.
fn share(share: f64) -> String {
    match share {
        0.0 => "0 %".into(),
        s => format!("{} %", format::digits(s * 100.0)),
    }
}

/// How long one of them took; nothing if there are none, or none was timed.
fn average(nanoseconds: u64, changes: u64) -> String {
    match (nanoseconds, changes) {
        (0, _) | (_, 0) => String::new(),
        (nanoseconds, changes) => format::nanoseconds(nanoseconds as f64 / changes as f64),
    }
}

/// What an index is made of after the load.
#[must_use]
pub fn after_load(experiment: &ExperimentSummary) -> Table {
    let values = |s: &Statistics| {
        let is_apex = s.kind == "apex";
        let only_apex = |text: String| if is_apex { text } else { String::new() };
        let (nodes, average, deepest, sizes) = if is_apex {
            let sizes = [s.smallest_node, s.median_node, s.largest_node];
            (s.data_nodes, s.average_depth, s.max_depth, sizes)
        } else {
            let sizes = [u64::from(s.leaf_bytes); 3];
            (s.leaves, f64::from(s.height), s.height, sizes)
        };
        let [smallest, median, largest] = sizes.map(bytes);
        [
            format::digits(average),
            deepest.to_string(),
            only_apex(format::grouped(s.inner_nodes)),
            format::grouped(nodes),
            smallest,
            median,
            largest,
            share(s.fill),
            only_apex(share(s.stash_ratio)),
            only_apex(share(s.overflow_ratio)),
            only_apex(format::grouped(s.extensions)),
        ]
        .map(Value::plain)
    };
    let head = [
        "depth",
        "deepest",
        "inner",
        "nodes",
        "smallest",
        "median",
        "largest",
        "fill",
        "stash",
        "overflow",
        "extensions",
    ];
    let loaded = |row: &Row| {
        let (column, statistics) = row.structure.first()?;
        (column.phase == "load").then(|| line(row, values(statistics).into()))
    };
    Table {
        title: "Structure".into(),
        note: "after the load: inner nodes above a record, on average and at most; nodes that hold records and their bytes; \
               records per slot; slots that are stash; records that are in one; blocks that extend stashes"
            .into(),
        corner: "structure".into(),
        head: head.map(String::from).into(),
        groups: Vec::new(),
        lines: experiment.rows.iter().filter_map(loaded).collect(),
    }
}

/// The place of the one figure of [`changes`] that the LB+-tree has, too.
const SPLITS: usize = 1;

/// Structure changes of the load and of each phase that inserts or removes.
#[must_use]
pub fn changes(experiment: &ExperimentSummary) -> Table {
    let of = |s: &Statistics| {
        [
            s.expansions,
            s.splits + s.sideways_splits,
            s.downward_splits,
            s.inner_expansions,
            s.merges,
        ]
    };
    let times = |s: &Statistics| {
        [
            s.expansion_ns,
            s.sideways_split_ns,
            s.downward_split_ns,
            s.inner_expansion_ns,
            s.merge_ns,
        ]
    };
    let lines = experiment.rows.iter().flat_map(|row| {
        let mut before = Statistics::default();
        let stage = move |(column, statistics): &(Column, Statistics)| {
            let since = |of: &dyn Fn(&Statistics) -> [u64; 5]| {
                let (before, now) = (of(&before), of(statistics));
                std::array::from_fn::<u64, 5, _>(|at| now[at].saturating_sub(before[at]))
            };
            let (done, took) = (since(&of), since(&times));
            before = statistics.clone();
            let mut values = vec![Value::plain(column.label())];
            let is_counted = |at| statistics.kind == "apex" || at == SPLITS;
            values.extend((0..5).map(|at| match is_counted(at) {
                true => Value {
                    side: average(took[at], done[at]),
                    ..Value::plain(format::grouped(done[at]))
                },
                false => Value::default(),
            }));
            line(row, values)
        };
        row.structure.iter().map(stage).collect::<Vec<_>>()
    });
    Table {
        title: "Structure changes".into(),
        note: "in one of the rounds: nodes rebuilt, split, split below a new inner node; inner nodes rebuilt; nodes merged \
               (of the LB+-tree only splits are counted), each with how long writers of the node waited for one on average"
            .into(),
        corner: "changes".into(),
        head: ["phase", "rebuilt", "split", "split down", "inner", "merged"]
            .map(String::from)
            .into(),
        groups: Vec::new(),
        lines: lines.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;
    use crate::report::summary::Summary;
    use crate::report::table::Line;

    #[test]
    fn changes_are_those_of_each_phase() {
        let run = sample::run(1, 2);
        let summary = Summary::of(&run);
        let experiment = &summary.experiments[0];
        let learned = |table: Table| {
            let mut lines = table.lines.into_iter();
            lines.find(|line| line.name == sample::LEARNED).unwrap()
        };
        let figures = |line: &Line| {
            let figure = |value: &Value| format!("{} {}", value.main, value.side).trim().to_owned();
            line.values
                .iter()
                .map(figure)
                .collect::<Vec<_>>()
                .join(" | ")
        };
        let loaded = learned(after_load(experiment));
        assert!(
            figures(&loaded).contains("512 B | 136 KiB | 256 KiB | 65.0 %"),
            "{loaded:?}"
        );
        let table = changes(experiment);
        let mine = |line: &&Line| line.name == sample::LEARNED;
        let mine: Vec<String> = table.lines.iter().filter(mine).map(figures).collect();
        assert_eq!(mine[0], "load | 1,000 40 µs | 100 | 10 | 5 | 0");
        assert_eq!(mine[1], "insert | 2,000 40 µs | 200 | 20 | 10 | 1");
    }
}
