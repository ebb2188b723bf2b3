//! A comparison for a terminal of 100 columns.

use super::{Comparison, Difference, Level, Metric, Verdict};
use crate::report::format::{self, wrap};
use crate::report::table::{Line, Table, Value, WIDTH};

/// The comparison in text, no line longer than 100 columns. With `all`, places within the noise are listed too.
#[must_use]
pub fn print(comparison: &Comparison, all: bool) -> String {
    let mut out = String::new();
    for warning in &comparison.warnings {
        push(&mut out, &format!("warning: {warning}"));
    }
    if let Some((median, strongest)) = comparison.drift {
        let (median, strongest) = (format::change(median), format::change(strongest));
        let text = format!(
            "The machine drifted by {median} (up to {strongest} in one phase), as the peers show; corrected below."
        );
        push(&mut out, &text);
    }
    let listed: Vec<Table> = Metric::ALL
        .iter()
        .map(|&m| table(comparison, m, all))
        .collect();
    for table in listed.iter().filter(|t| !t.lines.is_empty()) {
        out += &format!("\n{}", table.text());
    }
    if !comparison.facts.is_empty() {
        out += "\nWithout noise\n";
        for fact in &comparison.facts {
            let mark = if fact.is_worse {
                "worse: "
            } else {
                "differs: "
            };
            push(&mut out, &format!("{mark}{}", fact.text));
        }
    }
    out += &format!("\n{}\n", verdict(comparison));
    out
}

/// One sentence.
#[must_use]
pub fn verdict(comparison: &Comparison) -> String {
    let count = |v: Verdict| comparison.changes.iter().filter(|c| c.verdict == v).count();
    let looked_at = comparison.changes.len();
    match (
        count(Verdict::Worse),
        count(Verdict::Better),
        comparison.got_worse(),
    ) {
        (0, 0, false) if looked_at == 0 => "Nothing of ours is in both runs to be compared.".into(),
        (0, 0, false) => format!("Nothing beyond the noise in {looked_at} comparisons."),
        (0, 0, true) => "No slower beyond the noise, but worse without noise.".into(),
        (worse, better, _) => {
            format!("Beyond the noise, of {looked_at} comparisons: {worse} worse, {better} better.")
        }
    }
}

/// Whole contestants and phases of the rate are always listed, the rest if it is beyond the noise.
fn table(comparison: &Comparison, metric: Metric, all: bool) -> Table {
    let shown = |c: &&Difference| {
        let summed_up = metric == Metric::Rate && c.level != Level::Place;
        let whole = matches!(c.level, Level::Ours | Level::Contestant);
        c.metric == metric && (all || summed_up || whole || c.verdict != Verdict::Same)
    };
    let lines = comparison.changes.iter().filter(shown).map(line);
    let head = ["of", "places", "measured", "corrected", "noise", ""];
    Table {
        title: match metric {
            Metric::Rate => "Throughput".into(),
            Metric::P50 => "Latency, median".into(),
            Metric::P999 => "Latency, 99.9 %".into(),
            Metric::Recovery => "Recovery".into(),
        },
        corner: "change".into(),
        head: head.map(String::from).into(),
        lines: lines.collect(),
        ..Table::default()
    }
}

fn line(change: &Difference) -> Line {
    let what = match change.level {
        Level::Ours | Level::Contestant => "everything",
        Level::Phase | Level::Place => &change.what,
    };
    let verdict = match change.verdict {
        Verdict::Same => "",
        Verdict::Better => "BETTER",
        Verdict::Worse => "WORSE",
    };
    let values = [
        format::cut(what, 34),
        change.places.to_string(),
        format::change(change.estimate.raw),
        format::change(change.estimate.change),
        format!("±{:.1} %", change.noise * 100.0),
        verdict.into(),
    ];
    Line {
        name: change.contestant.clone(),
        is_ours: true,
        values: values.map(Value::plain).into(),
        remark: None,
    }
}

fn push(out: &mut String, text: &str) {
    *out += &(wrap(text, WIDTH).join("\n") + "\n");
}
