//! `crash`.

use crate::output::{Output, grouped, note};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use indelible_crash::indelible::checker::AnyKind;
use indelible_crash::planted::{Hunt, Hunter};
use indelible_crash::{CrashModel, Limits, Search, Summary, Tally, any};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Every kind of index in turn.
const ALL: &str = "all";

/// Search what crashes could leave: run operations, stop at every point, recover every image of the memory, compare.
#[derive(Args)]
pub struct Crash {
    #[arg(
        long,
        default_value = ALL,
        value_parser = kind_or_all,
        help = format!("Kind of index: {}, or {ALL} in turn", kinds())
    )]
    kind: String,
    /// Operations in a history.
    #[arg(long, default_value_t = 200)]
    ops: usize,
    /// Seed of the first history; the others follow.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads that a deterministic scheduler interleaves, 1 to 4.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    threads: u8,
    /// Histories: 128, or as many as there is time for with --deep.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    histories: Option<u64>,
    /// What fails: the power, or the process.
    #[arg(long, value_enum, default_value_t = Failing::Power)]
    failing: Failing,
    /// What the pool is on when the power fails: persistent memory, or a disk, where it has a log.
    #[arg(long, value_enum, default_value_t = Medium::Pmem)]
    medium: Medium,
    /// Images at one point at most; beyond that a sample.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    images: Option<u32>,
    /// As many histories as there is time for (see --minutes), more images at a point, recovery crashed more often.
    #[arg(long)]
    deep: bool,
    /// How long --deep goes on.
    #[arg(long, default_value = "10", value_parser = minutes, requires = "deep")]
    minutes: Duration,
    /// Plant every known bug instead, one after the other, and look whether each is found.
    #[arg(long)]
    planted: bool,
    /// Plant the bugs whose description contains this, and print how they were found.
    #[arg(long)]
    plant: Option<String>,
}

/// The names of all kinds of index.
fn kinds() -> String {
    let names: Vec<&str> = AnyKind::all().into_iter().map(AnyKind::name).collect();
    names.join(", ")
}

fn kind_or_all(name: &str) -> Result<String, indelible_crash::indelible::Error> {
    if name == ALL {
        return Ok(name.into());
    }
    Ok(name.parse::<AnyKind>()?.to_string())
}

/// A number of minutes.
fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(minutes * 60.0).map_err(|error| error.to_string())
}

#[derive(Clone, Copy, ValueEnum)]
enum Failing {
    Power,
    Process,
}

#[derive(Clone, Copy, ValueEnum)]
enum Medium {
    Pmem,
    Disk,
}

impl Crash {
    /// Runs the command; the exit code is 1 if something is wrong.
    pub fn run(self, output: &Output) -> Result<bool> {
        if self.planted || self.plant.is_some() {
            return self.plant_bugs(output);
        }
        let kind = self.kind.parse::<AnyKind>().ok();
        let crash_model = match (self.failing, self.medium) {
            (Failing::Power, Medium::Pmem) => CrashModel::Pmem,
            // A process that dies leaves the whole log, which is one of the prefixes that the power may leave.
            (_, Medium::Disk) => CrashModel::Disk,
            (Failing::Process, Medium::Pmem) => CrashModel::Process,
        };
        let run = Search {
            history: &|seed| {
                let (mut index, workload) =
                    any::history(kind, seed, self.ops, usize::from(self.threads));
                index.promise(any::promised(crash_model, seed));
                (index, workload)
            },
            crash_model,
            limits: self.limits(),
            seed: self.seed,
            histories: self.most_histories(),
            time: self.deep.then_some(self.minutes),
            workers: workers(),
        };
        let (tally, begun) = (Tally::default(), AtomicU64::new(0));
        let summary = self.with_progress(output, &tally, &begun, || run.go(&tally, &begun));
        let printed = self.print(output, &tally, &summary);
        if let Some(failure) = &summary.failure {
            note(format_args!("\nWRONG: {failure}"));
            if let Some(seed) = failure.seed {
                let Self { ops, threads, .. } = &self;
                let (kind, failing) = (&self.kind, name_of(&self.failing));
                let medium = name_of(&self.medium);
                let images = self.limits().images_per_point;
                let deep = if self.deep { " --deep" } else { "" };
                note(format_args!(
                    "again: indelible crash --kind {kind} --ops {ops} --threads {threads} --failing {failing} --medium {medium} --images {images} --seed {seed} --histories 1{deep}"
                ));
            }
        }
        printed?;
        Ok(summary.failure.is_none())
    }

    fn most_histories(&self) -> u64 {
        self.histories
            .unwrap_or(if self.deep { u64::MAX } else { 128 })
    }

    fn limits(&self) -> Limits {
        let usual = Limits::default();
        Limits {
            images_per_point: self.images.map_or(
                usual.images_per_point * if self.deep { 8 } else { 1 },
                |it| it as usize,
            ),
            nested_every: usual.nested_every / if self.deep { 2 } else { 1 },
            ..usual
        }
    }

    fn with_progress<T>(
        &self,
        output: &Output,
        tally: &Tally,
        begun: &AtomicU64,
        work: impl FnOnce() -> T,
    ) -> T {
        let (total, what) = if self.deep {
            (self.minutes.as_secs(), "seconds")
        } else {
            (self.most_histories(), "histories")
        };
        let bar = output.progress(total, what);
        let done = AtomicBool::new(false);
        let start = Instant::now();
        let result = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(100));
                    self.show(&bar, start, tally, begun);
                }
            });
            let result = work();
            done.store(true, Ordering::Relaxed);
            result
        });
        bar.finish_and_clear();
        result
    }

    fn show(&self, bar: &ProgressBar, start: Instant, tally: &Tally, begun: &AtomicU64) {
        let elapsed = start.elapsed().as_secs_f64();
        let rate = tally.images() as f64 / elapsed;
        bar.set_message(format!(
            "{} images, {}/s",
            grouped(tally.images()),
            grouped(rate as u64)
        ));
        let histories = begun.load(Ordering::Relaxed);
        bar.set_position(if self.deep { elapsed as u64 } else { histories });
    }

    fn print(&self, output: &Output, tally: &Tally, summary: &Summary) -> Result<()> {
        let coverage = &summary.coverage;
        let seconds = summary.elapsed.as_secs_f64();
        let rate = tally.images() as f64 / seconds;
        let operations: Vec<String> = coverage
            .operations
            .iter()
            .map(|(name, count)| format!("{name} {}", grouped(*count)))
            .collect();
        let changes: Vec<String> = coverage
            .changes
            .iter()
            .map(|(change, variants)| {
                let count = grouped(variants.values().sum());
                match variants.len() {
                    1 => format!("{change} {count}"),
                    variants => format!("{change} {count} in {variants} variants"),
                }
            })
            .collect();
        let kind = self.kind.parse::<AnyKind>().ok();
        let kinds = kind.map_or_else(AnyKind::all, |kind| vec![kind]);
        let commits = indelible_crash::commit_points(&kinds);
        let missed = coverage.commits_missed(&kinds);
        let missed: Vec<String> = missed.into_iter().map(String::from).collect();
        let [images, in_recovery, deeper] = coverage.images;
        let list = |items: Vec<String>| {
            if output.json {
                json!(items)
            } else {
                json!(wrapped(&items))
            }
        };
        let mut facts: Vec<(&str, Value)> = vec![
            ("histories", json!(coverage.histories)),
            ("operations", list(operations)),
            ("changes of structure", list(changes)),
            ("events", json!(coverage.events)),
            ("crash points", json!(coverage.points)),
            ("images", json!(images)),
            ("images of crashes in recovery", json!(in_recovery)),
            (
                "images of crashes in the recovery from those",
                json!(deeper),
            ),
            ("distinct images", json!(summary.distinct)),
            ("seconds", json!(seconds)),
            ("images per second", json!(rate as u64)),
            (
                "images per second and core",
                json!((rate / workers() as f64) as u64),
            ),
            ("commit points", json!(commits.len())),
            (
                "of them crashed on both sides",
                json!(commits.len() - missed.len()),
            ),
        ];
        if !missed.is_empty() {
            facts.push(("not on both sides", list(missed)));
        }
        let title = match summary.failure {
            None => "every image was recovered, and is what it may be",
            Some(_) => "something is wrong",
        };
        output.facts(title, &facts)
    }

    /// Plants bugs, on all cores.
    fn plant_bugs(&self, output: &Output) -> Result<bool> {
        let hunter = Hunter::new();
        let wanted = self.plant.as_deref().unwrap_or("");
        let mutations = described_with(wanted, hunter.mutations())?;
        let bar = output.progress(mutations.len() as u64, "planted bugs");
        let hunts: Mutex<Vec<Hunt>> = Mutex::new(Vec::new());
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..workers() {
                scope.spawn(|| {
                    while let Some(&mutation) = mutations.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        let hunt = hunter.hunt(mutation);
                        hunts
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(hunt);
                        bar.inc(1);
                    }
                });
            }
        });
        bar.finish_and_clear();
        let hunts = hunts.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut rows = Vec::new();
        let mut survivors = 0;
        for mutation in &mutations {
            let Some(hunt) = hunts.iter().find(|hunt| hunt.mutation == *mutation) else {
                continue;
            };
            let found = match (&hunt.failure, mutation.equivalent()) {
                (Some(failure), _) => format!("found: {}", first_words(&failure.problem)),
                (None, Some(equivalent)) => format!("harmless: {}", equivalent.reason),
                (None, None) => {
                    survivors += 1;
                    "NOT FOUND".into()
                }
            };
            rows.push(vec![
                json!(mutation.to_string()),
                json!(hunt.images),
                json!(found),
            ]);
            if let (Some(failure), Some(_)) = (&hunt.failure, &self.plant) {
                note(format_args!("{mutation}\n{failure}\n"));
            }
        }
        output.table(&["planted bug", "images", "outcome"], &rows)?;
        Ok(survivors == 0)
    }
}

/// Those of the bugs whose description contains `wanted`.
fn described_with<T: Display>(wanted: &str, bugs: Vec<T>) -> Result<Vec<T>> {
    let is_wanted = |bug: &T| bug.to_string().contains(wanted);
    let found: Vec<T> = bugs.into_iter().filter(is_wanted).collect();
    // Without any, the command would look as if it had found all of them.
    ensure!(
        !found.is_empty(),
        "no planted bug has {wanted:?} in its description"
    );
    Ok(found)
}

fn name_of(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().into())
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn first_words(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.into(),
    }
}

/// Items on lines of about 60 characters.
fn wrapped(items: &[String]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line) if line.len() + item.len() < 60 => *line += &format!(" · {item}"),
            _ => lines.push(item.clone()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Not by way of the program, which records for many seconds before it knows all bugs.
    #[test]
    fn a_planted_bug_that_is_none_is_an_error() {
        let bugs = || vec!["a flush is left out", "a fence is left out"];
        assert_eq!(
            described_with("fence", bugs()).unwrap(),
            ["a fence is left out"]
        );
        assert_eq!(described_with("", bugs()).unwrap(), bugs());
        let refused = described_with("nonsense", bugs()).unwrap_err();
        assert!(refused.to_string().contains("\"nonsense\""), "{refused}");
    }
}
