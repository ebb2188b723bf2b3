//! What our indexes are made of. The columns are the facts that the kinds of index say of themselves: this file knows none of them.
//!
//! A fact says what a map is made of now, such as its number of nodes, or it counts what has happened since the map was made, such
//! as splits of nodes ([`Fact::since_open`]). The former are shown after the load, the latter as differences between two phases.

use super::format;
use super::summary::{Column, ExperimentSummary, Row, Summary};
use super::table::{Line, Table, Value};
use super::tables::line;
use crate::outcome::{Fact, Number, Statistics};

/// Bytes of a node: `256 B`, `16 KiB`.
fn bytes(bytes: f64) -> String {
    match bytes {
        b if b < 1024.0 => format!("{} B", format::digits(b)),
        b if b < f64::from(1 << 20) => format!("{} KiB", format::digits(b / 1024.0)),
        b => format!("{} MiB", format::digits(b / f64::from(1 << 20))),
    }
}

/// The number of a fact in its unit.
fn figure(fact: &Fact) -> String {
    let number = fact.value.as_f64();
    match (fact.unit.as_str(), fact.value) {
        ("bytes", _) => bytes(number),
        ("ns", _) => format::nanoseconds(number),
        // A share may be very small.
        ("share", _) => format!("{} %", format::digits(number * 100.0)),
        (_, Number::Whole(number)) => format::grouped(number),
        (_, Number::Real(number)) => format::digits(number),
    }
}

/// Whether a fact is a column of [`after_load`].
fn is_state(fact: &Fact) -> bool {
    !fact.since_open
}

/// Whether a fact is a column of [`changes`]. The times of changes stand beside their counts.
fn is_change(fact: &Fact) -> bool {
    fact.since_open && fact.unit != "ns"
}

/// The facts of one sort that any contestant has, each name once, in the order in which they are said.
fn facts<'a>(
    experiments: impl IntoIterator<Item = &'a ExperimentSummary<'a>>,
    is_wanted: fn(&Fact) -> bool,
) -> Vec<&'a Fact> {
    let rows = experiments.into_iter().flat_map(|of| &of.rows);
    let all = rows.flat_map(|row| &row.structure);
    let mut found: Vec<&Fact> = Vec::new();
    for fact in all.flat_map(|(_, statistics)| &statistics.facts) {
        if is_wanted(fact) && found.iter().all(|known| known.name != fact.name) {
            found.push(fact);
        }
    }
    found
}

/// What an index is made of after the load. The place of a fact that its kind of index does not have is empty.
#[must_use]
pub fn after_load(experiment: &ExperimentSummary) -> Table {
    let columns = facts([experiment], is_state);
    let loaded = |row: &Row| {
        let (column, statistics) = row.structure.first()?;
        let value = |fact: &&Fact| {
            let mine = statistics.fact(&fact.name).map(figure);
            Value::plain(mine.unwrap_or_default())
        };
        let is_said = column.phase == "load" && !statistics.facts.is_empty();
        is_said.then(|| line(row, columns.iter().map(value).collect()))
    };
    Table {
        title: "Structure".into(),
        note: "what ours are made of after the load, as far as their kind of index has it".into(),
        corner: "structure".into(),
        head: columns.iter().map(|fact| fact.name.clone()).collect(),
        groups: Vec::new(),
        lines: experiment.rows.iter().filter_map(loaded).collect(),
    }
}

/// How many changes there have been, and how many nanoseconds they took, if that was measured.
fn counted(statistics: &Statistics, name: &str) -> Option<(f64, Option<f64>)> {
    let at = statistics.facts.iter().position(|fact| fact.name == name)?;
    let time = statistics.facts.get(at + 1);
    let time = time.filter(|fact| fact.since_open && fact.unit == "ns");
    let count = statistics.facts[at].value.as_f64();
    Some((count, time.map(|fact| fact.value.as_f64())))
}

/// Structure changes of one name in one phase, with how long one took on average if that was measured.
fn done(before: Option<&Statistics>, now: &Statistics, name: &str) -> Value {
    let Some((count, time)) = counted(now, name) else {
        return Value::default();
    };
    let (count_before, time_before) = before
        .and_then(|before| counted(before, name))
        .unwrap_or_default();
    let count = (count - count_before).max(0.0);
    let average = time
        .map(|time| (time - time_before.unwrap_or_default()) / count)
        .filter(|average| average.is_finite() && *average > 0.0);
    Value {
        side: average.map_or(String::new(), format::nanoseconds),
        ..Value::plain(format::grouped(count as u64))
    }
}

/// Structure changes of the load and of each phase that inserts or removes.
#[must_use]
pub fn changes(experiment: &ExperimentSummary) -> Table {
    let columns = facts([experiment], is_change);
    let stage = |row: &Row, at: usize| {
        let (column, now): &(Column, Statistics) = &row.structure[at];
        let before = at.checked_sub(1).map(|before| &row.structure[before].1);
        let done = columns.iter().map(|fact| done(before, now, &fact.name));
        let values: Vec<Value> = [Value::plain(column.label())]
            .into_iter()
            .chain(done)
            .collect();
        now.facts.iter().any(is_change).then(|| line(row, values))
    };
    let stages = |row| {
        let stages = move |at| stage(row, at);
        (0..row.structure.len()).filter_map(stages)
    };
    let head = columns.iter().map(|fact| fact.name.clone());
    Table {
        title: "Structure changes".into(),
        note: "of each phase in one of the rounds, as far as the kind of index counts them; beside a count how long one of them took on \
               average, if that was measured"
            .into(),
        corner: "changes".into(),
        head: ["phase".into()].into_iter().chain(head).collect(),
        groups: Vec::new(),
        lines: experiment.rows.iter().flat_map(stages).collect(),
    }
}

/// What the columns of the other two tables mean.
#[must_use]
pub fn meanings(summary: &Summary) -> Table {
    let known = [is_state, is_change].map(|sort| facts(&summary.experiments, sort));
    let line = |fact: &&Fact| Line {
        name: fact.name.clone(),
        values: vec![Value::plain(fact.meaning.clone())],
        ..Line::default()
    };
    Table {
        title: "Facts".into(),
        note: "what the columns of the tables of structures and of their changes mean".into(),
        corner: "column".into(),
        head: vec!["meaning".into()],
        groups: Vec::new(),
        lines: known.iter().flatten().map(line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Outcome, Run};
    use crate::report::{html, sample, terminal};

    fn figures(line: &Line) -> String {
        let figure = |value: &Value| format!("{} {}", value.main, value.side).trim().to_owned();
        let figures: Vec<String> = line.values.iter().map(figure).collect();
        figures.join(" | ")
    }

    #[test]
    fn states_and_changes_of_each_phase_are_apart() {
        let run = sample::run(1, 2);
        let summary = Summary::of(&run);
        let experiment = &summary.experiments[0];
        let loaded = after_load(experiment);
        let head = ["fill", "nodes", "average-depth", "median-node"];
        assert_eq!(loaded.head, head);
        assert_eq!(loaded.lines.len(), 1, "others say nothing");
        let line = &loaded.lines[0];
        assert_eq!(line.name, sample::LEARNED);
        assert_eq!(figures(line), "65.0 % | 2,731 | 1.64 | 136 KiB");
        let changes = changes(experiment);
        assert_eq!(changes.head, ["phase", "rebuilds", "splits", "merges"]);
        let lines: Vec<String> = changes.lines.iter().map(figures).collect();
        let expected = [
            "load | 1,000 40 µs | 100 | 0",
            "insert | 2,000 40 µs | 200 | 1",
        ];
        assert_eq!(lines, expected);
        let meant = meanings(&summary).lines;
        assert_eq!(meant.len(), 7, "each fact once, times with their counts");
    }

    /// Two kinds of index that have one fact in common.
    #[test]
    fn what_a_kind_does_not_say_is_empty() {
        let mut run = sample::run(1, 1);
        let experiment = run.plan.experiments[0].name.clone();
        let of = |o: &&mut Outcome, name: &str| o.contestant == name && o.experiment == experiment;
        let outcomes = &mut run.outcomes;
        let learned = outcomes.iter_mut().find(|o| of(o, sample::LEARNED));
        let learned = learned.and_then(|outcome| outcome.load.clone()?.statistics);
        let learned = learned.expect("statistics of the load");
        let mut plain = Statistics {
            kind: "plain".into(),
            ..Statistics::default()
        };
        plain.facts = learned.facts[..1].to_vec();
        plain.facts.push(Fact {
            name: "leaves".into(),
            ..learned.facts[1].clone()
        });
        let mine = outcomes.iter_mut().find(|o| of(o, "indelible"));
        let load = mine.and_then(|outcome| outcome.load.as_mut());
        load.expect("a load").statistics = Some(plain);
        let summary = Summary::of(&run);
        let loaded = after_load(&summary.experiments[0]);
        let head = ["fill", "leaves", "nodes", "average-depth", "median-node"];
        assert_eq!(loaded.head, head);
        let lines: Vec<String> = loaded.lines.iter().map(figures).collect();
        assert_eq!(lines[0], "65.0 % | 2,731 |  |  | ");
        assert_eq!(lines[1], "65.0 % |  | 2,731 | 1.64 | 136 KiB");
        let changes = changes(&summary.experiments[0]);
        let counts = changes
            .lines
            .iter()
            .all(|line| line.name == sample::LEARNED);
        assert!(counts, "the plain kind counts no changes");
    }

    /// Version 0.1 wrote a member per number.
    #[test]
    fn runs_of_earlier_versions_are_shown_without_their_structures() {
        let mut run = serde_json::to_value(sample::run(1, 3)).unwrap();
        for outcome in run["outcomes"].as_array_mut().unwrap() {
            let old = serde_json::json!({
                "kind": "lbtree", "records": 5, "fill": 0.7, "file_bytes": 1, "dram_bytes": 2,
                "leaves": 3, "height": 1, "splits": 9, "expansion_ns": 0,
            });
            if !outcome["load"].is_null() {
                outcome["load"]["statistics"] = old;
            }
            for phase in outcome["phases"].as_array_mut().unwrap() {
                phase["statistics"] = serde_json::Value::Null;
            }
        }
        let run: Run = serde_json::from_value(run).unwrap();
        let text = terminal::print(&run);
        assert!(text.contains("Throughput") && !text.contains("Structure"));
        assert!(!html::page(&run).contains("<h3>Structure"));
        let comparison = crate::compare::compare(&run, &sample::run(1, 3));
        assert!(!comparison.got_worse());
    }
}
