//! The race: every round, every experiment, every contestant, each in a process of its own.

use crate::console::{explain, note};
use crate::contestants::entrant;
use crate::data::{self, Source};
use crate::job::{Job, Task};
use crate::machine;
use crate::outcome::{DataFacts, Described, FORMAT, Measured, Outcome, Probe, Run};
use crate::plan::{Experiment, Plan};
use crate::report::format;
use crate::stop::Stop;
use crate::workload::Keys;
use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a child that waits to be killed goes on writing first.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// Characters of a line that tells of a measurement.
const LINE: usize = 100;
/// The variable by which the library lets its kernel be chosen.
const KERNEL: &str = "INDELIBLE_KERNEL";
/// What the names of our directories begin with.
const DIRECTORY: &str = "indelible-bench-";

/// Where and how to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory for contestants that need not survive a power cut: tmpfs, if there is one.
    pub pool_path: PathBuf,
    /// The directory for those that wait for the medium at every write: a disk.
    pub disk_path: PathBuf,
    /// Milliseconds between entries of timelines.
    pub sampling_ms: u64,
    /// The share by which ours are made to take longer; 0 but for tests of comparisons.
    pub slow_down: f64,
    /// Arguments that make this program a child of the race.
    pub child: Vec<String>,
    /// The command line, for the record.
    pub command: String,
    /// Ends the run early.
    pub stop: Arc<Stop>,
}

/// Runs a plan until it is through or [`Options::stop`] ends it, and gives `save` what there is so far after each experiment of each
/// round. What goes wrong with one contestant is written into its outcome.
///
/// # Errors
///
/// If the plan names what there is not, keys cannot be made, a directory cannot be used, or `save` fails.
pub fn run(
    plan: &Plan,
    options: &Options,
    mut save: impl FnMut(&Run) -> Result<()>,
) -> Result<Run> {
    let start = Instant::now();
    let home = Home::create(&options.pool_path, DIRECTORY)?;
    let disk = Home::create(&options.disk_path, DIRECTORY)?;
    let mut run = Run {
        format: FORMAT,
        command: options.command.clone(),
        date: machine::date(),
        seconds: 0.0,
        machine: machine::describe(&[&options.pool_path, &options.disk_path]),
        plan: plan.clone(),
        contestants: describe(plan)?,
        data: Vec::new(),
        outcomes: Vec::new(),
    };
    let mut progress = Progress::new(plan);
    for experiment in &plan.experiments {
        if options.stop.signal().is_none() {
            let what = format!("making keys: {}", experiment.name);
            progress.begins(&what);
            progress.tell(&what);
            run.data.push(make_keys(plan, experiment, &home)?);
        }
    }
    let rounds = (0..plan.rounds)
        .flat_map(|round| (plan.experiments.iter()).map(move |experiment| (round, experiment)));
    for (round, experiment) in rounds {
        let probe = machine::probe_memory();
        let entrants = plan.contestants_of(experiment);
        let first = first_entrant(round, plan.rounds, entrants.len());
        let of_this_round = run.outcomes.len();
        for turn in 0..entrants.len() {
            let name = &entrants[(first + turn) % entrants.len()];
            let what = format!("round {}, {}, {name}", round + 1, experiment.name);
            progress.begins(&what);
            let places = (&home, &disk);
            let job = job(plan, options, experiment, name, round, probe, places)?;
            let goes_on = || options.stop.signal().is_none();
            let outcome = goes_on().then(|| measure(&job, options, &home));
            // The outcome of a child that was killed is none.
            let Some(outcome) = outcome.filter(|_| goes_on()) else {
                progress.ends();
                run.seconds = start.elapsed().as_secs_f64();
                return Ok(run);
            };
            progress.has_measured(&what, &outcome);
            run.outcomes.push(outcome);
        }
        find_disagreements(experiment, &mut run.outcomes[of_this_round..]);
        run.seconds = start.elapsed().as_secs_f64();
        save(&run)?;
    }
    progress.ends();
    Ok(run)
}

/// Who begins a round: another one in each round as long as there are others, so that nobody always runs in the same place. The steps are
/// as wide as they can be without coming around to one that has begun before.
fn first_entrant(round: u32, rounds: u32, entrants: usize) -> usize {
    let step = (entrants / rounds.max(1) as usize).max(1);
    round as usize * step % entrants.max(1)
}

/// Searches for points must have found equally much in all contestants that have done equally much so far. Others have searched in other
/// places, or among other points.
fn find_disagreements(experiment: &Experiment, outcomes: &mut [Outcome]) {
    let searches = |name: &str| {
        let phase = experiment.phases.iter().find(|phase| phase.name == name);
        phase.is_some_and(|phase| phase.mix.window + phase.mix.nearest >= 1.0)
    };
    let is_same = |a: &Measured, b: &Measured| {
        (&a.phase, a.threads, a.operations) == (&b.phase, b.threads, b.operations)
    };
    let difference = |one: &Outcome, other: &Outcome| {
        let pairs = one.phases.iter().zip(&other.phases);
        let mut pairs = pairs.take_while(|(a, b)| is_same(a, b));
        let (a, b) = pairs.find(|(a, b)| searches(&a.phase) && a.hits != b.hits)?;
        let (phase, one) = (&a.phase, &one.contestant);
        Some(format!(
            "{phase}: it found {} points, {one} {}",
            b.hits, a.hits
        ))
    };
    for at in 1..outcomes.len() {
        let (before, others) = outcomes.split_at_mut(at);
        let other = &mut others[0];
        if other.error.is_some() {
            continue;
        }
        // With all before it, not with the first one alone, which may have failed early, or may not have what these two have.
        let mut right: Vec<&Outcome> = before.iter().filter(|one| one.error.is_none()).collect();
        if right.is_empty() {
            right.extend(before.first());
        }
        other.error = right.into_iter().find_map(|one| difference(one, other));
    }
}

/// What a run tells while it goes on: a bar on a terminal, else a line for each measurement.
struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    done: u64,
    all: u64,
    begun: Instant,
}

impl Progress {
    fn new(plan: &Plan) -> Self {
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {pos}/{len} {msg}");
        let all = plan.measurements();
        Self {
            bar: ProgressBar::new(all)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
            is_terminal: std::io::stderr().is_terminal(),
            done: 0,
            all,
            begun: Instant::now(),
        }
    }

    fn begins(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.begun = Instant::now();
    }

    fn has_measured(&mut self, what: &str, outcome: &Outcome) {
        self.done += 1;
        self.bar.inc(1);
        let seconds = self.begun.elapsed().as_secs_f64();
        let head = format!("[{}/{}] {what}, {seconds:.1} s: ", self.done, self.all);
        let told = match &outcome.error {
            Some(error) => error.clone(),
            None => {
                let measured = outcome.load.iter().chain(&outcome.phases);
                let rate = |m: &Measured| format!("{} {}", m.phase, format::rate(m.rate()));
                let rates: Vec<String> = measured.map(rate).collect();
                format!("{} M/s", rates.join(", "))
            }
        };
        self.tell(&(head + &told));
    }

    /// A line for those who see no bar.
    fn tell(&self, line: &str) {
        if !self.is_terminal {
            note(format::cut(line, LINE));
        }
    }

    fn ends(&self) {
        self.bar.finish_and_clear();
    }
}

/// All contestants that take part in anything, in the order of the plan.
fn describe(plan: &Plan) -> Result<Vec<Described>> {
    let mut names: Vec<&String> = Vec::new();
    let extra = plan
        .experiments
        .iter()
        .flat_map(|experiment| &experiment.contestants);
    for name in plan.contestants.iter().chain(extra) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let available = indelible::kernels();
    // Also if the environment names one that the machine has not.
    indelible::kernel()?;
    let describe = |name: &String| {
        let contestant = entrant(name)?;
        if let Some(kernel) = contestant.kernel.as_deref() {
            ensure!(
                available.contains(&kernel),
                "{name}: this machine has no kernel {kernel:?}, but {}",
                available.join(", ")
            );
        }
        Ok(Described {
            is_ours: contestant.is_ours(),
            name: contestant.name,
            about: contestant.about,
            survives: contestant.survives.to_string(),
        })
    };
    names.into_iter().map(describe).collect()
}

/// Makes the keys of an experiment and leaves them, shuffled, in a file for the jobs.
fn make_keys(plan: &Plan, experiment: &Experiment, home: &Home) -> Result<DataFacts> {
    let source: Source = experiment.data.parse()?;
    let missing = experiment.missing_keys();
    let count = experiment.all_keys();
    let keys = data::generate(&source, count as usize, plan.seed)
        .with_context(|| format!("the keys of {}", experiment.name))?;
    let keys = Keys::shuffle(
        keys,
        experiment.records as usize,
        missing as usize,
        plan.seed,
    );
    let path = home.keys(experiment);
    if !path.exists() {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
        for key in keys.all() {
            file.write_all(&key.to_le_bytes())?;
        }
        file.flush().with_context(|| path.display().to_string())?;
    }
    Ok(DataFacts {
        experiment: experiment.name.clone(),
        source: source.to_string(),
        keys: count,
        segments_32: data::hardness::segments(keys.sorted(), 32),
        segments_4096: data::hardness::segments(keys.sorted(), 4096),
    })
}

fn job(
    plan: &Plan,
    options: &Options,
    experiment: &Experiment,
    name: &str,
    round: u32,
    probe: Probe,
    (home, disk): (&Home, &Home),
) -> Result<Job> {
    let contestant = entrant(name)?;
    // Ours obeys the same protocol on any medium; a database that syncs is measured on a medium that can be synced.
    let place = if contestant.needs_disk() { disk } else { home };
    let killable = round < experiment.recovery && contestant.open.is_some();
    Ok(Job {
        experiment: experiment.clone(),
        contestant: name.to_owned(),
        round,
        seed: plan.seed,
        keys: home.keys(experiment),
        missing: experiment.missing_keys(),
        directory: place.path.join("files"),
        sampling_ms: options.sampling_ms,
        slow_down: options.slow_down,
        probe,
        task: if killable {
            Task::MeasureAndWait
        } else {
            Task::Measure
        },
    })
}

/// Has a child do the job, and, if it is to be killed, another one open what is left.
fn measure(job: &Job, options: &Options, home: &Home) -> Outcome {
    let failed = |error: anyhow::Error| Outcome {
        error: Some(explain(&error)),
        ..job.no_outcome_yet()
    };
    let measured = (|| {
        let _ = fs::remove_dir_all(&job.directory);
        fs::create_dir_all(&job.directory)?;
        let mut outcome = child(job, options, home)?;
        if job.task == Task::MeasureAndWait && outcome.error.is_none() {
            let mut job = job.clone();
            job.task = Task::Reopen;
            match child(&job, options, home) {
                Ok(reopened) => outcome.recovery = reopened.recovery,
                Err(error) => outcome.error = Some(format!("after the kill: {}", explain(&error))),
            }
        }
        Ok(outcome)
    })();
    let _ = fs::remove_dir_all(&job.directory);
    measured.unwrap_or_else(failed)
}

/// Runs a child until it says its outcome, and kills it if that is its fate.
fn child(job: &Job, options: &Options, home: &Home) -> Result<Outcome> {
    let said = home.path.join("stderr");
    let kernel = entrant(&job.contestant)?.kernel;
    let mut child = Command::new(std::env::current_exe()?)
        .args(&options.child)
        .envs(kernel.map(|kernel| (KERNEL, kernel)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(&said)?)
        // Not of the terminal's group: Ctrl-C is for this process, which kills its child.
        .process_group(0)
        .spawn()
        .context("no child process")?;
    options.stop.watch(&child);
    let outcome = converse(&mut child, job);
    options.stop.forget();
    if outcome.is_err() || job.task == Task::MeasureAndWait {
        std::thread::sleep(if outcome.is_ok() {
            LAST_WORDS
        } else {
            Duration::ZERO
        });
        let _ = child.kill();
    }
    let status = child.wait()?;
    outcome.with_context(|| {
        let said = fs::read_to_string(&said).unwrap_or_default();
        let said: Vec<&str> = said
            .lines()
            .filter(|line| !line.trim().is_empty())
            .take(2)
            .collect();
        format!(
            "the process of {} ended ({status}): {}",
            job.contestant,
            said.join(" ")
        )
    })
}

fn converse(child: &mut Child, job: &Job) -> Result<Outcome> {
    let mut to_child = child.stdin.take().context("no pipe to the child")?;
    to_child.write_all(&serde_json::to_vec(job)?)?;
    drop(to_child);
    let mut answer = String::new();
    let from_child = child.stdout.take().context("no pipe from the child")?;
    BufReader::new(from_child).read_line(&mut answer)?;
    serde_json::from_str(&answer).context("no outcome")
}

/// A directory of this run's own, which goes when the run does.
pub(crate) struct Home {
    pub(crate) path: PathBuf,
}

impl Home {
    /// Its name is a prefix and the number of the process. What runs that were killed have left under such names goes first.
    pub(crate) fn create(parent: &Path, prefix: &str) -> Result<Self> {
        remove_orphans(parent, prefix);
        let path = parent.join(format!("{prefix}{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("{}", path.display()))?;
        Ok(Self { path })
    }

    /// Where the keys of an experiment are; experiments with the same keys share them.
    fn keys(&self, experiment: &Experiment) -> PathBuf {
        let data = experiment
            .data
            .replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let hash = crate::workload::value_of(experiment.data.bytes().fold(0, |hash: u64, byte| {
            hash.wrapping_mul(31).wrapping_add(byte.into())
        }));
        self.path
            .join(format!("keys-{data}-{hash:x}-{}", experiment.all_keys()))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes what runs that were killed have left. The directories are common ones, such as that of temporary files: what is named
/// `indelible-bench-results` is somebody else's.
fn remove_orphans(parent: &Path, prefix: &str) {
    let is_number = |text: &&str| text.parse::<u32>().is_ok_and(|n| n.to_string() == **text);
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(prefix));
        let process = process.filter(is_number);
        let is_orphan = process.is_some_and(|process| !Path::new("/proc").join(process).exists());
        if is_orphan {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Load, Mix, Phase};
    use std::collections::BTreeSet;

    fn outcome(phases: &[(&str, u64, u64)]) -> Outcome {
        let measured = |&(phase, operations, hits): &(&str, u64, u64)| Measured {
            phase: String::from(phase),
            operations,
            hits,
            ..Measured::default()
        };
        Outcome {
            phases: phases.iter().map(measured).collect(),
            ..Outcome::default()
        }
    }

    #[test]
    fn every_round_begins_with_another_contestant() {
        for entrants in 1..40 {
            for rounds in 1..12 {
                let first = |round| first_entrant(round, rounds, entrants);
                let begun: BTreeSet<usize> = (0..rounds).map(first).collect();
                assert_eq!(begun.len(), entrants.min(rounds as usize));
                assert!(begun.iter().all(|&first| first < entrants));
            }
        }
    }

    #[test]
    fn only_what_dead_runs_left_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        // Numbers of processes end far below.
        let dead = format!("{DIRECTORY}{}", u32::MAX);
        let alive = format!("{DIRECTORY}{}", std::process::id());
        let others = ["results", "", "+1", "007", "1.old"].map(|rest| format!("{DIRECTORY}{rest}"));
        for name in others.iter().chain([&dead, &alive]) {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        remove_orphans(parent.path(), DIRECTORY);
        let is_there = |name: &String| parent.path().join(name).exists();
        assert!(!is_there(&dead) && is_there(&alive));
        assert!(others.iter().all(is_there));
    }

    #[test]
    fn a_contestant_that_finds_other_points_fails() {
        let experiment = Experiment {
            name: "points".into(),
            data: "points:uniform".into(),
            records: 10,
            load: Load::Random,
            contestants: Vec::new(),
            phases: vec![
                Phase::new("window", Mix::WINDOW, 100),
                Phase::new("insert", Mix::INSERT, 100),
                Phase::new("nearest", Mix::NEAREST, 100),
            ],
            recovery: 0,
            recovery_threads: 1,
        };
        let first = [
            ("window", 100, 2400),
            ("insert", 100, 100),
            ("nearest", 100, 1000),
        ];
        let mut outcomes = [
            outcome(&first),
            outcome(&first),
            outcome(&[("window", 100, 2399)]),
            outcome(&[first[0], first[1], ("nearest", 100, 999)]),
            // Only as far as it came, and among other points afterwards: nothing to compare.
            outcome(&[("window", 99, 2300), first[1], ("nearest", 100, 999)]),
            outcome(&[first[0], ("nearest", 100, 999)]),
        ];
        find_disagreements(&experiment, &mut outcomes);
        let failed = outcomes.map(|outcome| outcome.error.is_some());
        assert_eq!(failed, [false, false, true, true, false, false]);
        // The first one has no windows, the second one came nowhere, and the third one is not measured by the fourth, which is wrong.
        let mut outcomes = [
            outcome(&[("nearest", 100, 1000)]),
            outcome(&[]),
            outcome(&first),
            outcome(&[("window", 100, 2399)]),
            outcome(&first),
        ];
        outcomes[1].error = Some("out of memory".into());
        find_disagreements(&experiment, &mut outcomes);
        let failed = outcomes.map(|outcome| outcome.error.is_some());
        assert_eq!(failed, [false, true, false, true, false]);
    }
}
