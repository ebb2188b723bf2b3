//! `torture`.

use super::{ObjectArgs, durability};
use crate::output::{Output, note};
use crate::torture::Victim;
use anyhow::Result;
use clap::Args;
use indelible::{Durability, PoolOptions};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

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
        note(format_args!("seed {seed}"));
        let progress = output.progress(self.kills, "kills");
        let (mut acknowledged, mut slowest) = (0, Duration::ZERO);
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
            let after = Duration::from_micros(random % (self.within_ms * 1000 + 1));
            let outcome = victim.kill_once(after, random.is_multiple_of(7))?;
            acknowledged += outcome.acknowledged;
            slowest = slowest.max(outcome.first_answer);
            progress.inc(1);
        }
        progress.finish_and_clear();
        let facts = [
            ("kind", json!(self.new.text())),
            ("kills", json!(self.kills)),
            ("writer threads", json!(self.threads)),
            ("operations acknowledged", json!(acknowledged)),
            ("operations lost", json!(0)),
            (
                "slowest first answer, ms",
                json!(slowest.as_secs_f64() * 1e3),
            ),
        ];
        output.facts("survived", &facts)?;
        Ok(true)
    }
}
