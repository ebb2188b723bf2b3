//! The act of `demo` on a disk: power cuts, simulated from what the writers have really synced.

use super::places::Act;
use crate::output::grouped;
use crate::torture::{Cut, Moment, Plan, PowerCut, Random, TargetArgs, Victim};
use anyhow::{Result, bail};
use indelible::Durability;
use serde_json::json;
use std::path::Path;

/// System calls of the writers, after their first acknowledged operation, within which each cut comes.
const WITHIN_CALLS: u64 = 600;

/// What the pool promises.
const DURABILITY: Durability = Durability::PowerLoss;

/// Where the seeds of the cuts begin. What a cut leaves depends also on when the threads run, which no seed repeats.
const SEED: u64 = 11;

/// Cuts the power of a disk while writers write to it, and shows that the check would find what is missing.
pub fn act(directory: &Path, new: TargetArgs, threads: u64, cuts: u64) -> Result<Act> {
    let place = directory.join("power");
    std::fs::create_dir(&place)?;
    let mut victim = match Victim::new(&place, DURABILITY, new.clone(), threads, SEED) {
        Err(error) if is_not_for_disks(&error) => return Ok(left_out(&error.to_string())),
        victim => victim?,
    };
    let mut outcomes = Vec::new();
    for cut in 0..cuts {
        let plan = Plan {
            seed: SEED + cut,
            calls: Random(SEED + cut).below(WITHIN_CALLS),
            during_open: false,
            moment: Moment::InSync,
            disk_lies: false,
        };
        match victim.cut_once(&plan)? {
            Some(outcome) => outcomes.push(outcome),
            None => {
                return Ok(left_out(
                    "this system does not allow to trace the writers (ptrace)",
                ));
            }
        }
    }
    let missing = with_a_disk_that_lies(directory, new, threads)?;
    Ok(told(&outcomes, &missing, threads))
}

/// A pool in memory survives no power cut.
fn is_not_for_disks(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(indelible::Error::NoPowerLossSafety(..))
    )
}

fn left_out(why: &str) -> Act {
    Act {
        narration: vec![format!("SKIPPED: the power cuts on a disk: {why}")],
        facts: vec![("power cuts", json!(0))],
    }
}

/// What the check says if the disk loses what it has reported as synced.
fn with_a_disk_that_lies(directory: &Path, new: TargetArgs, threads: u64) -> Result<String> {
    let place = directory.join("lies");
    std::fs::create_dir(&place)?;
    let mut victim = Victim::new(&place, DURABILITY, new, threads, SEED)?;
    let plan = Plan {
        seed: SEED,
        calls: WITHIN_CALLS,
        during_open: false,
        moment: Moment::InSync,
        disk_lies: true,
    };
    match victim.cut_once(&plan) {
        Err(error) => Ok(error.to_string()),
        Ok(_) => {
            bail!("a disk that does not sync has lost nothing, so the check cannot be trusted")
        }
    }
}

/// The act in words.
fn told(outcomes: &[PowerCut], missing: &str, threads: u64) -> Act {
    let acknowledged: u64 = outcomes.iter().map(|outcome| outcome.acknowledged).sum();
    let mut sectors = Cut::default();
    let mut narration = vec![format!(
        "Then {threads} threads wrote to a pool on a disk with Durability::PowerLoss, in a process of their own, and the power of the disk was cut\n\
         while they wrote. The cut is simulated: the demo traces the process (ptrace), and notes what a file has when a sync of it is called. When\n\
         the sync has returned, the disk has that for certain. The process is killed when it is about to sync. Of each sector of 512 bytes that\n\
         was written and not synced, the disk then has the old bytes, the new ones, or a mixture, at random; in the log also bytes that nobody\n\
         wrote. The pool is opened from that."
    )];
    for (number, outcome) in outcomes.iter().enumerate() {
        let Cut { lost, kept, torn } = outcome.sectors;
        sectors += outcome.sectors;
        narration.push(format!(
            "  cut {}: {} operations acknowledged, all there; sectors not synced: {lost} lost, {kept} kept, {torn} torn; opened in {:.2} ms",
            number + 1,
            grouped(outcome.acknowledged),
            outcome.open.as_secs_f64() * 1e3
        ));
    }
    narration.push(format!(
        "The same check, with a disk that reports syncs and does not do them, finds the loss:\n  {missing}"
    ));
    let facts = vec![
        ("power cuts", json!(outcomes.len())),
        (
            "operations acknowledged before power cuts",
            json!(acknowledged),
        ),
        ("operations lost in power cuts", json!(0)),
        ("sectors not synced and lost", json!(sectors.lost)),
        ("sectors not synced and kept", json!(sectors.kept)),
        ("sectors not synced and torn", json!(sectors.torn)),
    ];
    Act { narration, facts }
}
