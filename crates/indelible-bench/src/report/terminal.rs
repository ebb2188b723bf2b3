//! A run for a terminal of 100 columns.

use super::format::{self, wrap};
use super::summary::{ExperimentSummary, Summary};
use super::table::{Table, WIDTH};
use super::{structure, tables};
use crate::outcome::Run;

/// The run in text, no line longer than 100 columns. Latency is of the fewest threads of each phase; the page has all.
#[must_use]
pub fn print(run: &Run) -> String {
    let summary = Summary::of(run);
    let mut out = String::new();
    for line in head(run) {
        push(&mut out, &line);
    }
    for experiment in &summary.experiments {
        out += &heading(experiment);
        let tables = [
            tables::throughput(experiment),
            tables::latency(experiment, false),
            tables::recovery(experiment),
            tables::space(experiment),
            tables::counts(experiment, false),
            structure::after_load(experiment),
            structure::changes(experiment),
        ];
        let shown: Vec<String> = tables
            .iter()
            .filter(|t| !t.is_empty())
            .map(Table::text)
            .collect();
        out += &shown.join("\n");
    }
    for table in [tables::across(&summary), tables::data(&summary)] {
        if !table.is_empty() {
            out += &format!("\n{}", table.text());
        }
    }
    out + &meanings(&summary)
}

/// What the columns of structures mean: sentences, which a column of a table has no room for.
fn meanings(summary: &Summary) -> String {
    let table = structure::meanings(summary);
    if table.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n{}\n\n", table.title, table.note);
    for line in &table.lines {
        let meaning: String = line
            .values
            .iter()
            .map(|value| value.main.as_str())
            .collect();
        push(&mut out, &format!("{}: {meaning}", line.name));
    }
    out
}

/// What was run, where and how.
#[must_use]
pub fn head(run: &Run) -> Vec<String> {
    let machine = &run.machine;
    let (done, all) = (run.outcomes.len() as u64, run.plan.measurements());
    let stopped = (done < all).then(|| format!("stopped after {done} of {all} measurements"));
    let whole = [
        format!(
            "{}: {} contestants, {} rounds, seed {}, {} UTC, took {:.0} s",
            run.plan.name,
            run.contestants.len(),
            run.plan.rounds,
            run.plan.seed,
            run.date,
            run.seconds
        ),
        format!(
            "{}, {} cores, {:.0} GiB, {}",
            machine.cpu,
            machine.cores,
            machine.memory_bytes as f64 / f64::from(1 << 30),
            machine.system
        ),
        machine.build_and_kernel(),
        format!("$ {}", run.command),
    ];
    whole.into_iter().chain(stopped).collect()
}

/// A line across, with the experiment's name in it.
fn heading(experiment: &ExperimentSummary) -> String {
    let plan = experiment.plan;
    let text = format!(
        "{}: {} records, {}",
        plan.name,
        format::count(plan.records),
        plan.data
    );
    let text = format::cut(&text, WIDTH - 6);
    let rule = "─".repeat(WIDTH - 4 - text.chars().count());
    format!("\n── {text} {rule}\n\n")
}

fn push(out: &mut String, text: &str) {
    *out += &(wrap(text, WIDTH).join("\n") + "\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap()
    }

    #[test]
    fn no_line_is_longer_than_a_hundred_columns() {
        let mut run = sample::run(7, 3);
        assert!(widest(&print(&run)) <= WIDTH);
        sample::rename(&mut run, |name| {
            format!("{name}, {}", "a very long name ".repeat(12))
        });
        assert!(widest(&print(&run)) <= WIDTH);
        sample::rename(&mut run, |_| "x".repeat(300));
        assert!(widest(&print(&run)) <= WIDTH);
    }

    #[test]
    fn failures_and_ratios_are_shown() {
        let text = print(&sample::run(7, 3));
        assert!(text.contains(&format!("{}: failed in all 3 rounds", sample::FAILING)));
        assert!(text.contains("±") && text.contains("x"));
    }

    #[test]
    fn an_empty_run_prints_its_head() {
        let mut run = sample::run(7, 3);
        run.outcomes.clear();
        assert!(print(&run).contains(&run.command));
        run.plan.experiments.clear();
        run.contestants.clear();
        assert!(print(&run).lines().count() >= 4);
    }
}
