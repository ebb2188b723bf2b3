//! Seeded runs of the same binary, of a slower one, and on a machine that drifts.

use super::*;
use crate::report::sample::{noisy, rename, scale};
use crate::report::table::WIDTH;

/// Two runs of the same binary.
fn twice(seed: u64, rounds: u32) -> (Run, Run) {
    (
        noisy(2 * seed, rounds, 0.03),
        noisy(2 * seed + 1, rounds, 0.03),
    )
}

fn share(seeds: u64, holds: impl Fn(u64) -> bool) -> f64 {
    (0..seeds).filter(|&seed| holds(seed)).count() as f64 / seeds as f64
}

fn slower(change: &Difference) -> bool {
    change.metric == Metric::Rate && change.verdict == Verdict::Worse
}

#[test]
fn two_runs_of_one_binary_rarely_differ() {
    for (rounds, seeds) in [(3, 30), (5, 50)] {
        let flagged = share(seeds, |seed| {
            let (a, b) = twice(seed, rounds);
            compare(&a, &b).beyond_noise().next().is_some()
        });
        println!("{rounds} rounds: {flagged}");
        assert!(
            flagged <= 0.08,
            "{flagged} of the comparisons flag something"
        );
    }
}

/// Phases of all contestants are not equally noisy, some rounds are disturbed, and runs differ more than their rounds.
fn disturb(run: &mut Run, seed: u64) {
    use rand::{RngExt, SeedableRng};
    let mut rng = rand::rngs::SmallRng::seed_from_u64(seed);
    let mut habit = std::collections::HashMap::new();
    for outcome in &mut run.outcomes {
        let contestant = outcome.contestant.clone();
        for measured in outcome.load.iter_mut().chain(&mut outcome.phases) {
            let spot = (contestant.clone(), measured.phase.clone(), measured.threads);
            let common = *habit
                .entry(spot)
                .or_insert_with(|| rng.random_range(-0.02..0.02));
            let noisy = 0.02 * f64::from(measured.phase.len() as u32 % 4);
            let disturbed = if rng.random_bool(0.03) { 0.2 } else { 0.0 };
            let by: f64 = rng.random_range(-1.0..1.0) * noisy + common + disturbed;
            measured.seconds *= by.exp();
        }
    }
}

#[test]
fn unruly_machines_rarely_raise_false_alarms() {
    let flagged = share(50, |seed| {
        let (mut a, mut b) = twice(seed, 5);
        disturb(&mut a, 2 * seed);
        disturb(&mut b, 2 * seed + 1);
        compare(&a, &b)
            .changes
            .iter()
            .any(|c| c.metric == Metric::Rate && c.verdict != Verdict::Same)
    });
    println!("unruly: {flagged}");
    assert!(flagged <= 0.10, "flagged in {flagged}");
}

#[test]
fn ten_percent_everywhere_is_seen() {
    for rounds in [3, 5] {
        let seen = share(30, |seed| {
            let (a, mut b) = twice(seed, rounds);
            scale(&mut b, 0.9, |o, _| o.contestant == "indelible");
            let found = compare(&a, &b);
            let whole =
                |c: &Difference| c.level == Level::Contestant && c.contestant == "indelible";
            found.got_worse() && found.changes.iter().any(|c| whole(c) && slower(c))
        });
        assert!(seen >= 0.99, "{rounds} rounds: seen in {seen}");
    }
}

#[test]
fn ten_percent_in_one_phase_is_seen() {
    let seen = share(30, |seed| {
        let (a, mut b) = twice(seed, 5);
        scale(&mut b, 0.9, |o, m| {
            o.contestant == "indelible" && m.phase == "get missing"
        });
        let found = compare(&a, &b);
        found
            .changes
            .iter()
            .any(|c| slower(c) && c.what == "get missing")
    });
    println!("one phase: {seen}");
    assert!(seen >= 0.95, "seen in {seen}");
}

#[test]
fn ten_percent_at_one_place_is_mostly_seen() {
    let seen = share(30, |seed| {
        let (a, mut b) = twice(seed, 5);
        let here = |o: &Outcome| o.contestant == "indelible" && o.experiment == "cities";
        scale(&mut b, 0.9, |o, m| {
            here(o) && m.phase == "get" && m.threads == 2
        });
        let found = compare(&a, &b);
        found
            .changes
            .iter()
            .any(|c| slower(c) && c.what == "cities · get, 2 threads")
    });
    println!("one place: {seen}");
    assert!(seen >= 0.6, "seen in {seen}");
}

#[test]
fn a_small_plan_is_enough() {
    let small = |run: &mut Run| {
        run.plan.experiments.truncate(1);
        run.outcomes.retain(|o| o.experiment == "uniform");
        for outcome in &mut run.outcomes {
            outcome
                .phases
                .retain(|m| m.phase == "get" && m.threads == 1);
        }
    };
    let seen = share(30, |seed| {
        let (mut a, mut b) = twice(seed, 5);
        small(&mut a);
        small(&mut b);
        scale(&mut b, 0.9, |o, _| o.contestant == "indelible");
        compare(&a, &b).changes.iter().any(slower)
    });
    println!("small plan: {seen}");
    assert!(seen >= 0.95, "seen in {seen}");
}

#[test]
fn drift_of_the_machine_is_no_change() {
    let flagged = share(30, |seed| {
        let (a, mut b) = twice(seed, 5);
        scale(&mut b, 0.8, |_, _| true);
        compare(&a, &b).changes.iter().any(slower)
    });
    assert!(flagged <= 0.08, "flagged in {flagged}");
    let (a, mut b) = twice(1, 5);
    scale(&mut b, 0.8, |_, _| true);
    let (median, _) = compare(&a, &b).drift.unwrap();
    assert!((median - 0.8f64.ln()).abs() < 0.02);
}

#[test]
fn counts_space_losses_and_failures_are_said() {
    let (a, mut b) = twice(3, 3);
    let ours = |o: &&mut Outcome| o.contestant == "indelible" && o.experiment == "uniform";
    for outcome in b.outcomes.iter_mut().filter(ours) {
        outcome.load.as_mut().unwrap().cost.as_mut().unwrap().fences += 0.001;
        outcome.space.as_mut().unwrap().file_bytes /= 2;
        outcome.recovery.as_mut().unwrap().lost = 1;
        outcome.error = Some("out of breath".into());
    }
    let found = compare(&a, &b);
    let says = |part: &str, worse| {
        found
            .facts
            .iter()
            .any(|f| f.text.contains(part) && f.is_worse == worse)
    };
    assert!(says("load: fences per operation 1.0700 -> 1.0710", true));
    assert!(says("file bytes per record 21.5 -> 10.8", false));
    assert!(says("lost 3 acknowledged records", true));
    assert!(says("failed in all 3 rounds: out of breath", true));
    assert!(found.got_worse());
    assert!(compare(&a, &a).facts.is_empty());
}

#[test]
fn a_few_pages_of_memory_are_no_difference() {
    let small = |dram_bytes| {
        let mut run = noisy(3, 3, 0.03);
        let spaces = run.outcomes.iter_mut().filter_map(|o| o.space.as_mut());
        spaces.for_each(|s| (s.records, s.dram_bytes) = (1000, dram_bytes));
        run
    };
    let says = |dram_bytes| {
        !compare(&small(150_000), &small(dram_bytes))
            .facts
            .is_empty()
    };
    assert!(!says(210_000) && says(220_000));
}

#[test]
fn unlike_runs_are_warned_of() {
    let (a, mut b) = twice(3, 3);
    b.machine.cores = 64;
    b.plan.experiments[0].records = 1;
    b.contestants.pop();
    b.plan.rounds = 2;
    let warnings = compare(&a, &b).warnings.join("\n");
    for part in [
        "cores differs: 2 / 64",
        "plan differs: uniform",
        "only in the first run: sqlite",
        "2 rounds",
    ] {
        assert!(warnings.contains(part), "{part} is missing in {warnings}");
    }
    assert!(compare(&a, &a).warnings.is_empty());
}

#[test]
fn runs_that_were_stopped_are_warned_of_and_nothing_is_no_success() {
    let (a, mut b) = twice(3, 3);
    b.outcomes.truncate(20);
    let found = compare(&a, &b);
    let stopped = "the second run was stopped after 20 of 126 measurements";
    assert!(found.warnings.iter().any(|warning| warning == stopped));
    assert!(!found.changes.is_empty());
    b.outcomes
        .retain(|o| !o.contestant.starts_with("indelible"));
    let text = print(&compare(&a, &b), false);
    assert!(text.ends_with("\nNothing of ours is in both runs to be compared.\n"));
}

#[test]
fn the_text_fits_a_hundred_columns() {
    let (mut a, mut b) = twice(3, 3);
    scale(&mut b, 0.5, |o, _| o.contestant == "indelible");
    let text = print(&compare(&a, &b), true);
    assert!(text.contains("WORSE") && text.contains("drifted"));
    for run in [&mut a, &mut b] {
        rename(run, |name| {
            format!("{name}{}", " and a long name".repeat(12))
        });
    }
    for text in [text, print(&compare(&a, &b), true)] {
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
    }
    let (a, mut b) = twice(3, 5);
    scale(&mut b, 0.9, |o, m| {
        o.contestant == "indelible" && m.phase == "insert"
    });
    scale(&mut b, 1.07, |_, _| true);
    let short = print(&compare(&a, &b), false);
    if let Ok(path) = std::env::var("INDELIBLE_SAMPLE") {
        std::fs::write(format!("{path}.compare.txt"), short).unwrap();
    }
}

#[test]
fn one_round_and_no_peers_still_compare() {
    let (mut a, mut b) = twice(5, 1);
    assert!(compare(&a, &b).changes.len() > 10);
    for run in [&mut a, &mut b] {
        run.contestants.retain(|c| c.is_ours);
        run.outcomes
            .retain(|o| o.contestant.starts_with("indelible"));
    }
    assert_eq!(compare(&a, &b).drift, None);
    a.outcomes.clear();
    assert!(compare(&a, &b).changes.is_empty());
}
