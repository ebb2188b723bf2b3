//! `torture`.

use super::durability;
use crate::output::{Output, note};
use crate::torture::{Cut, Moment, Plan, Random, TargetArgs, Victim};
use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use indelible::Durability;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// What befalls the writers.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Failing {
    /// The process is killed.
    Process,
    /// The power of the disk is cut: what the writers have not synced is lost, torn or kept at random.
    Power,
}

/// Kill writers over and over.
#[derive(Args)]
pub struct Torture {
    /// Kills.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    kills: u64,
    /// Writer threads.
    #[arg(long, default_value_t = 4)]
    threads: u64,
    #[command(flatten)]
    new: TargetArgs,
    /// What the pools promise: `process`, `power-loss`, or an interval such as `10ms`. The last two have a log on a disk.
    #[arg(long, value_parser = durability, default_value = "process")]
    durability: Durability,
    /// Where the pool goes: a directory on tmpfs or on a disk. Default: the system's directory for temporary files.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// A seed repeats a run's operations; the moments of the kills it cannot repeat.
    #[arg(long)]
    seed: Option<u64>,
    /// The latest moment of a kill, in milliseconds after the first acknowledged operation.
    #[arg(long, default_value_t = 30)]
    within_ms: u64,
    /// Kills before the next fresh pool.
    #[arg(long, default_value_t = 10)]
    fresh_after: u64,
    /// What fails: the process, or the power of the disk. The writers run on this machine's kernel in both cases; with `power` their syncs
    /// are traced, and what was not synced is lost, torn or kept at random. Needs `--durability power-loss`, or an interval: then operations count as
    /// acknowledged when `Pool::sync` has returned, which the writers call now and then.
    #[arg(long, value_enum, default_value = "process")]
    failing: Failing,
    /// With `--failing power`: the latest moment of a cut, in system calls after the first acknowledged operation.
    #[arg(long, default_value_t = 400)]
    within_calls: u64,
    /// With `--failing power`: syncs do nothing, so that the check must find what is missing.
    #[arg(long, hide = true)]
    lying_disk: bool,
}

impl Torture {
    /// Runs the command.
    pub fn run(self, output: &Output) -> Result<bool> {
        let seed = self.seed.unwrap_or_else(|| {
            let now = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default();
            now.as_nanos() as u64
        });
        ensure!(
            self.failing == Failing::Process || self.durability != Durability::Process,
            "pools with --durability process do not survive power cuts: give power-loss, or an interval"
        );
        ensure!(
            self.failing == Failing::Power || !self.lying_disk,
            "--lying-disk needs --failing power"
        );
        let kind = self.new.text()?;
        note(format_args!("seed {seed}"));
        let progress = output.progress(self.kills, "kills");
        let mut total = Total::default();
        let mut victim: Option<(tempfile::TempDir, Victim)> = None;
        for kill in 0..self.kills {
            if kill.is_multiple_of(self.fresh_after.max(1)) {
                victim = None;
            }
            let (_, victim) = match &mut victim {
                Some(victim) => victim,
                none => none.insert(self.fresh(seed ^ kill)?),
            };
            let random = (seed ^ kill << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            self.fail_once(victim, random, &mut total)?;
            progress.inc(1);
        }
        progress.finish_and_clear();
        output.facts("survived", &self.facts(kind, &total))?;
        Ok(true)
    }

    /// A new pool, in a directory of its own.
    fn fresh(&self, seed: u64) -> Result<(tempfile::TempDir, Victim)> {
        let parent = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        let directory = tempfile::Builder::new()
            .prefix("indelible-torture-")
            .tempdir_in(parent)?;
        let new = self.new.clone();
        let victim = Victim::new(directory.path(), self.durability, new, self.threads, seed)?;
        Ok((directory, victim))
    }

    /// Kills the writers, or cuts their power, and checks what is left.
    fn fail_once(&self, victim: &mut Victim, random: u64, total: &mut Total) -> Result<()> {
        let during_open = random.is_multiple_of(7);
        match self.failing {
            Failing::Process => {
                let after = Duration::from_micros(random % (self.within_ms * 1000 + 1));
                let outcome = victim.kill_once(after, during_open)?;
                total.acknowledged += outcome.acknowledged;
                total.slowest = total.slowest.max(outcome.first_answer);
            }
            Failing::Power => {
                let Some(outcome) = victim.cut_once(&self.plan(random, during_open))? else {
                    bail!("this system does not allow to trace the writers (ptrace)");
                };
                total.acknowledged += outcome.acknowledged;
                total.slowest = total.slowest.max(outcome.open);
                total.sectors += outcome.sectors;
            }
        }
        Ok(())
    }

    fn facts(&self, kind: String, total: &Total) -> Vec<(&'static str, Value)> {
        let slowest = match self.failing {
            Failing::Process => "slowest first answer, ms",
            Failing::Power => "slowest open, ms",
        };
        let mut facts = vec![
            ("kind", json!(kind)),
            ("kills", json!(self.kills)),
            ("writer threads", json!(self.threads)),
            ("operations acknowledged", json!(total.acknowledged)),
            ("operations lost", json!(0)),
            (slowest, json!(total.slowest.as_secs_f64() * 1e3)),
        ];
        if self.failing == Failing::Power {
            facts.extend([
                ("sectors not synced and lost", json!(total.sectors.lost)),
                ("sectors not synced and kept", json!(total.sectors.kept)),
                ("sectors not synced and torn", json!(total.sectors.torn)),
            ]);
        }
        facts
    }

    /// When a power cut comes.
    fn plan(&self, seed: u64, during_open: bool) -> Plan {
        let mut random = Random(seed);
        Plan {
            seed,
            // A disk that lies gets time to lose something.
            calls: match self.lying_disk {
                true => self.within_calls,
                false => random.below(self.within_calls + 1),
            },
            during_open: during_open && !self.lying_disk,
            moment: match random.below(4) {
                0 => Moment::Anywhere,
                1 => Moment::InSyncOfPool,
                _ => Moment::InSync,
            },
            disk_lies: self.lying_disk,
        }
    }
}

/// What all kills together showed.
#[derive(Default)]
struct Total {
    acknowledged: u64,
    slowest: Duration,
    sectors: Cut,
}
