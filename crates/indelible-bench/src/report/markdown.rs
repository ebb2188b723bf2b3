//! The table of a README: an experiment in one table, in Markdown.

use super::format;
use super::summary::{Row, Summary};
use crate::outcome::Run;
use anyhow::{Context, Result};

/// Rates of all phases after the load, bytes per record, and the first answer after a kill. Below it stands who failed: the figures of such a
/// contestant are not those of one that did all it should.
///
/// # Errors
///
/// If there is no such experiment.
pub fn table(run: &Run, experiment: Option<&str>) -> Result<String> {
    let summary = Summary::of(run);
    let mut experiments = summary.experiments.iter();
    let experiment = experiments
        .find(|e| experiment.is_none_or(|name| e.plan.name == name))
        .context("the run has no such experiment")?;
    let phases = || {
        let columns = experiment.columns.iter().enumerate();
        columns.filter(|(_, column)| column.phase != "load")
    };
    let mut head = vec![
        format!("M/s, {} records", format::grouped(experiment.plan.records)),
        "survives".into(),
    ];
    head.extend(phases().map(|(_, column)| column.label()));
    head.extend(["B/record".into(), "after `kill -9`".into()]);
    let cells = |row: &Row| {
        let name = if row.is_ours {
            format!("**{}**", row.name)
        } else {
            row.name.clone()
        };
        let needs_pmem = row.survives == "power cut" && row.name.contains("-pmem");
        let survives = format!(
            "{}{}",
            row.survives,
            if needs_pmem { " (on PMem)" } else { "" }
        );
        let rate = |at: usize| match &row.cells[at] {
            Some(cell) => format::rate(cell.rate.median),
            None => String::new(),
        };
        let space = row.space.map(|s| {
            let bytes = (s.file_bytes + s.dram_bytes) as f64;
            format::digits(bytes / s.records.max(1) as f64)
        });
        let recovery = row.recovery.as_ref();
        let first_get = recovery.map(|r| format::nanoseconds(r.first_get.median * 1e6));
        let mut cells = vec![name, survives];
        cells.extend(phases().map(|(at, _)| rate(at)));
        cells.extend([space.unwrap_or_default(), first_get.unwrap_or_default()]);
        cells
    };
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    let rows = experiment.rows.iter().map(|row| line(&cells(row)));
    let failed = experiment.rows.iter().filter_map(|row| {
        let why = row.error.as_ref()?.split_whitespace().collect::<Vec<_>>();
        Some(format!("\n**{}** {}\n", row.name, why.join(" ")))
    });
    Ok(line(&head) + &rule + &rows.chain(failed).collect::<String>())
}

#[cfg(test)]
mod tests {
    use crate::report::sample;

    #[test]
    fn every_line_has_as_many_cells() {
        let table = super::table(&sample::run(1, 2), None).unwrap();
        let cells = |line: &str| line.matches('|').count();
        let (table, failed) = table.split_once("\n\n").unwrap();
        let mut lines = table.lines();
        let head = cells(lines.next().unwrap());
        assert!(
            lines.clone().count() > 3 && lines.all(|line| cells(line) == head),
            "{table}"
        );
        assert!(
            table.contains("**") && table.contains("power cut (on PMem)"),
            "{table}"
        );
        let expected = format!("**{}** failed in all 2 rounds: killed by ", sample::FAILING);
        assert!(failed.starts_with(&expected), "{failed}");
        assert!(super::table(&sample::run(1, 2), Some("none")).is_err());
    }
}
