//! What does not jitter, and what makes two runs hard to compare.

use super::only;
use crate::outcome::Run;
use crate::report::format;
use crate::report::summary::{COUNTS, Cell, Row, Summary};
use std::collections::BTreeSet;

/// Something of ours that is different, without statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// In a sentence.
    pub text: String,
    /// Whether it is worse.
    pub is_worse: bool,
}

/// The share by which space, and counts of several threads, may differ between runs of the same binary.
const SLACK: f64 = 0.01;

/// Bytes by which the memory of a process may differ besides: what allocators take at once for threads and lists. The same binary differs by
/// up to 61,440 bytes from round to round, which is more than a hundredth of the memory of a small map.
const MEMORY_SLACK: f64 = 65_536.0;

/// Why the runs may not be comparable.
pub(super) fn warnings(a: &Run, b: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    let (one, other) = (&a.machine, &b.machine);
    let mut differs = |what: &str, a: &str, b: &str| {
        if a != b {
            warnings.push(format!("{what} differs: {a} / {b}"));
        }
    };
    differs("the processor", &one.cpu, &other.cpu);
    differs(
        "the number of cores",
        &one.cores.to_string(),
        &other.cores.to_string(),
    );
    let gib = |bytes: u64| format!("{:.0} GiB", bytes as f64 / f64::from(1 << 30));
    differs("memory", &gib(one.memory_bytes), &gib(other.memory_bytes));
    differs("the system", &one.system, &other.system);
    differs("the build", &one.build, &other.build);
    differs("the kernel", &one.kernel, &other.kernel);
    differs(
        "the seed",
        &a.plan.seed.to_string(),
        &b.plan.seed.to_string(),
    );
    if a.plan.experiments != b.plan.experiments {
        let names = |run: &Run| {
            run.plan
                .experiments
                .iter()
                .map(|e| e.name.clone())
                .collect::<BTreeSet<_>>()
        };
        let all: BTreeSet<String> = names(a).union(&names(b)).cloned().collect();
        let find = |run: &Run, name: &String| {
            run.plan
                .experiments
                .iter()
                .find(|e| e.name == *name)
                .cloned()
        };
        let different = all
            .into_iter()
            .filter(|name| find(a, name) != find(b, name));
        let different: Vec<String> = different.collect();
        warnings.push(format!("the plan differs: {}", different.join(", ")));
    }
    warnings.extend(lists(a, b));
    warnings
}

/// Contestants that are missing, and rounds that are too few.
fn lists(a: &Run, b: &Run) -> Vec<String> {
    let mut warnings = Vec::new();
    let names = |run: &'_ Run| {
        run.contestants
            .iter()
            .map(|c| c.name.clone())
            .collect::<Vec<_>>()
    };
    let (one, other) = (names(a), names(b));
    let missing = only(one.iter(), &other.iter().collect());
    let new = only(other.iter(), &one.iter().collect());
    if !missing.is_empty() {
        warnings.push(format!("only in the first run: {}", missing.join(", ")));
    }
    if !new.is_empty() {
        warnings.push(format!("only in the second run: {}", new.join(", ")));
    }
    for (which, run) in [("first", a), ("second", b)] {
        let (done, all) = (run.outcomes.len() as u64, run.plan.measurements());
        if done < all {
            warnings.push(format!(
                "the {which} run was stopped after {done} of {all} measurements"
            ));
        }
    }
    let rounds = a.plan.rounds.min(b.plan.rounds);
    if rounds < 3 {
        warnings.push(format!(
            "{rounds} rounds say little about noise; take 3 or more"
        ));
    }
    let controls = a
        .contestants
        .iter()
        .filter(|c| !c.is_ours && other.contains(&c.name));
    if controls.count() < 3 {
        warnings
            .push("fewer than 3 peers in both runs: drift of the machine is not corrected".into());
    }
    warnings
}

/// All differences of ours in what does not jitter.
pub(super) fn facts(a: &Run, b: &Run) -> Vec<Fact> {
    let (before, after) = (Summary::of(a), Summary::of(b));
    let mut facts = Vec::new();
    for new in &after.experiments {
        let old = before
            .experiments
            .iter()
            .find(|e| e.plan.name == new.plan.name);
        for row in new.rows.iter().filter(|row| row.is_ours) {
            let at = format!("{} in {}", row.name, new.plan.name);
            let old_row = old.and_then(|e| e.rows.iter().find(|r| r.name == row.name));
            wrong(&at, old_row, row, &mut facts);
            let (Some(old), Some(old_row)) = (old, old_row) else {
                continue;
            };
            space(&at, old_row, row, &mut facts);
            for (column, cell) in new.columns.iter().zip(&row.cells) {
                let place = old.columns.iter().position(|c| c == column);
                let old_cell = place.and_then(|place| old_row.cells[place].as_ref());
                let at = format!("{at}, {}", column.label());
                counts(
                    &at,
                    old_cell,
                    cell.as_ref(),
                    column.phase == "load",
                    &mut facts,
                );
            }
        }
    }
    facts
}

/// Lost records and failures.
fn wrong(at: &str, old: Option<&Row>, new: &Row, facts: &mut Vec<Fact>) {
    let failed = |row: &Row| row.error.clone();
    match (old.and_then(failed), failed(new)) {
        (None, Some(error)) => facts.push(Fact {
            text: format!("{at} {error}"),
            is_worse: true,
        }),
        (Some(_), None) => facts.push(Fact {
            text: format!("{at} does not fail any more"),
            is_worse: false,
        }),
        _ => {}
    }
    let lost = |row: &Row| row.recovery.as_ref().map_or(0, |r| r.lost);
    let before = old.map_or(0, lost);
    if lost(new) > 0 || before > 0 {
        facts.push(Fact {
            text: format!(
                "{at} lost {} acknowledged records, before: {before}",
                lost(new)
            ),
            is_worse: lost(new) > 0,
        });
    }
}

fn space(at: &str, old: &Row, new: &Row, facts: &mut Vec<Fact>) {
    let (Some(old), Some(new)) = (old.space, new.space) else {
        return;
    };
    let kinds = [
        ("file", old.file_bytes, new.file_bytes, 0.0),
        ("DRAM", old.dram_bytes, new.dram_bytes, MEMORY_SLACK),
    ];
    for (kind, before, after, slack) in kinds {
        let records = old.records.max(1) as f64;
        let before = before as f64 / records;
        let after = after as f64 / new.records.max(1) as f64;
        // A byte in a hundred records is nothing, whatever its share.
        if (after - before).abs() > (before * SLACK).max(slack / records).max(0.01) {
            let (from, to) = (format::digits(before), format::digits(after));
            facts.push(Fact {
                text: format!("{at}: {kind} bytes per record {from} -> {to}"),
                is_worse: after > before,
            });
        }
    }
}

/// Counts per operation. Those of a load are exact; those of phases follow a little from the interleaving of threads, and
/// from how far a phase came that the clock ended.
fn counts(at: &str, old: Option<&Cell>, new: Option<&Cell>, is_exact: bool, facts: &mut Vec<Fact>) {
    let cost = |cell: Option<&Cell>| cell.and_then(|c| c.cost);
    let (Some(old), Some(new)) = (cost(old), cost(new)) else {
        return;
    };
    let slack = if is_exact { 1e-9 } else { SLACK };
    for (kind, get) in COUNTS {
        let (before, after) = (get(&old), get(&new));
        if (after - before).abs() > before.abs().max(after.abs()) * slack {
            facts.push(Fact {
                text: format!("{at}: {kind} per operation {before:.4} -> {after:.4}"),
                is_worse: after > before,
            });
        }
    }
}
