//! `torture`.

use super::{ObjectArgs, durability};
use crate::output::{Output, note};
use crate::torture::{Cut, Moment, Plan, Random, Victim};
use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};
use indelible::{Durability, PoolOptions};
use serde_json::json;
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
    #[arg(long, default_value_t = 50)]
    kills: u64,
    /// Writer threads.
    #[arg(long, default_value_t = 4)]
    threads: u64,
    #[command(flatten)]
    new: ObjectArgs,
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
    /// are traced, and what was not synced is lost, torn or kept at random. Needs `--durability power-loss`.
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
            self.failing == Failing::Process || self.durability == Durability::PowerLoss,
            "only pools with --durability power-loss survive power cuts with everything in them"
        );
        note(format_args!("seed {seed}"));
        let progress = output.progress(self.kills, "kills");
        let (mut acknowledged, mut slowest) = (0, Duration::ZERO);
        let mut sectors = Cut::default();
        let mut victim: Option<(tempfile::TempDir, Victim)> = None;
        for kill in 0..self.kills {
            if kill.is_multiple_of(self.fresh_after.max(1)) {
                victim = None;
            }
            let (_, victim) = match &mut victim {
                Some(victim) => victim,
                none => {
                    let parent = self.directory.clone().unwrap_or_else(std::env::temp_dir);
                    let directory = tempfile::Builder::new()
                        .prefix("indelible-torture-")
                        .tempdir_in(parent)?;
                    let mut options = PoolOptions::new();
                    options.durability(self.durability);
                    let new = Victim::new(
                        directory.path(),
                        options,
                        self.new.clone(),
                        self.threads,
                        seed ^ kill,
                    )?;
                    none.insert((directory, new))
                }
            };
            let random = (seed ^ kill << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let during_open = random.is_multiple_of(7);
            match self.failing {
                Failing::Process => {
                    let after = Duration::from_micros(random % (self.within_ms * 1000 + 1));
                    let outcome = victim.kill_once(after, during_open)?;
                    acknowledged += outcome.acknowledged;
                    slowest = slowest.max(outcome.first_answer);
                }
                Failing::Power => {
                    let plan = self.plan(random, during_open);
                    let Some(outcome) = victim.cut_once(&plan)? else {
                        bail!("this system does not allow to trace the writers (ptrace)");
                    };
                    acknowledged += outcome.acknowledged;
                    slowest = slowest.max(outcome.open);
                    sectors += outcome.sectors;
                }
            }
            progress.inc(1);
        }
        progress.finish_and_clear();
        let mut facts = vec![
            ("kind", json!(self.new.text())),
            ("kills", json!(self.kills)),
            ("writer threads", json!(self.threads)),
            ("operations acknowledged", json!(acknowledged)),
            ("operations lost", json!(0)),
            (
                match self.failing {
                    Failing::Process => "slowest first answer, ms",
                    Failing::Power => "slowest open, ms",
                },
                json!(slowest.as_secs_f64() * 1e3),
            ),
        ];
        if self.failing == Failing::Power {
            facts.extend([
                ("sectors not synced and lost", json!(sectors.lost)),
                ("sectors not synced and kept", json!(sectors.kept)),
                ("sectors not synced and torn", json!(sectors.torn)),
            ]);
        }
        output.facts("survived", &facts)?;
        Ok(true)
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
