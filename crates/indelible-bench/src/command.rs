//! `indelible bench`: the command line.

mod workload;

use crate::compare;
use crate::console::note;
use crate::contestants;
use crate::data::{self, Source};
use crate::job;
use crate::machine;
use crate::outcome::Run;
use crate::plan::{Experiment, Phase, Plan};
use crate::preset::{self, Preset, Scale};
use crate::race::{self, Options};
use crate::report::plots::Plot;
use crate::report::{html, markdown, svg, terminal};
use crate::stop::Stop;
use crate::strings::StringsArguments;
use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use indelible::{IndexKind, Kind, SpatialKind};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workload::WorkloadArguments;

/// Measure indelible and what people use instead, side by side.
///
/// With --preset, a plan that comes with the program; without, the workload that the options describe, which have
/// PiBench's names where it has the option.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Bench {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Draw the page of a run that was measured before.
    Report(ReportArguments),
    /// Say what differs between two runs beyond the noise.
    Compare(CompareArguments),
    /// The contestants.
    List,
    /// Maps of byte strings beside their peers: insert, get, scan, bytes per key.
    Strings(StringsArguments),
    /// How hard sets of keys are: pieces of a piecewise linear function through them.
    Data(DataArguments),
    /// The child that measures one contestant.
    #[command(name = "__job", hide = true)]
    Job,
}

#[derive(Args)]
struct ReportArguments {
    /// The file that a run wrote.
    run: PathBuf,
    /// Where the page goes.
    #[arg(short, long, default_value = "report.html")]
    output: PathBuf,
    /// Write one plot as an SVG file instead of the page.
    #[arg(long, value_enum)]
    svg: Option<Plot>,
    /// Print a table in Markdown instead.
    #[arg(long, conflicts_with = "svg")]
    markdown: bool,
    /// The experiment that the plot or the table shows; the first if none is named.
    #[arg(long)]
    experiment: Option<String>,
}

#[derive(Args)]
struct CompareArguments {
    /// The run before.
    a: PathBuf,
    /// The run after.
    b: PathBuf,
    /// Show every place of the tables, also those that did not change beyond the noise.
    #[arg(long)]
    all: bool,
    /// Exit code 1 if one of ours got worse beyond the noise, or nothing of ours is in both runs to be compared.
    #[arg(long)]
    fail_on_slower: bool,
}

#[derive(Args)]
struct DataArguments {
    /// Sets of keys; all that can be made up if none is named.
    sources: Vec<Source>,
    /// Keys of each.
    #[arg(short = 'n', long, default_value_t = 1_000_000)]
    records: u64,
    /// Seed for random generators.
    #[arg(long, default_value_t = SEED)]
    seed: u64,
}

/// PiBench's.
const SEED: u64 = 1729;

#[derive(Args)]
#[command(rename_all = "snake_case")]
struct RunArguments {
    /// A plan that comes with the program.
    #[arg(long, value_enum, conflicts_with = "WorkloadArguments")]
    preset: Option<Preset>,
    /// Where the run goes; the page goes beside it, with the ending `.html`. Until the run is through, and if it is stopped, what has been
    /// measured is beside it with the ending `.json.part`.
    #[arg(short, long, default_value = "indelible-bench.json")]
    output: PathBuf,
    /// Contestants, by name: `indelible bench list` shows them. `NAME@OPTION=VALUE`, further options after a `+`, is one of ours with
    /// other options of its kind of index: `indelible@leaf=512`.
    #[arg(long, visible_alias = "only", value_delimiter = ',')]
    contestants: Vec<String>,
    /// Kernels, which compare keys with `portable`, `avx2` or `avx512` instructions: each contestant of ours takes part once with each of
    /// them, as `NAME@kernel=KERNEL`. Without this option ours use the best that the machine has, or the one that INDELIBLE_KERNEL names.
    #[arg(long, value_delimiter = ',')]
    kernel: Vec<String>,
    /// How often everything is measured.
    #[arg(long)]
    rounds: Option<u32>,
    /// Number of records to load.
    #[arg(short = 'n', long)]
    records: Option<u64>,
    /// Number of operations to execute; with a preset, of each phase that it does not scale itself.
    #[arg(short = 'p', long)]
    operations: Option<u64>,
    /// Numbers of threads, each a measurement; more than there are cores if you like.
    #[arg(short = 't', long, value_delimiter = ',')]
    threads: Vec<u32>,
    /// Seed for random generators.
    #[arg(long, default_value_t = SEED)]
    seed: u64,
    /// Directory of the contestants' files.
    #[arg(long, visible_alias = "pool-path")]
    pool_path: Option<PathBuf>,
    /// Directory of those that wait for the medium at every write: a disk.
    #[arg(long, visible_alias = "disk-path")]
    disk_path: Option<PathBuf>,
    /// Sampling window of the throughput over time, in milliseconds.
    #[arg(long, visible_alias = "sampling-ms", default_value_t = 100)]
    sampling_ms: u64,
    /// Waste this share of the time of ours, from 0 to 1: a fault that `compare` must find.
    #[arg(long, alias = "plant-slowdown", hide = true, default_value_t = 0.0)]
    plant_slowdown: f64,
    #[command(flatten)]
    workload: WorkloadArguments,
}

impl Bench {
    /// Does what the command line says, and prints to `out`. `child` are the arguments that lead to this command. Returns the
    /// exit code.
    ///
    /// # Errors
    ///
    /// If it cannot be done, or `out` cannot be written to; the text says why.
    pub fn run(&self, child: &[&str], out: &mut dyn Write) -> Result<u8> {
        let is_well = match &self.command {
            None => return self.run.run(child, out),
            Some(BenchCommand::Report(arguments)) => arguments.run(out),
            Some(BenchCommand::Compare(arguments)) => arguments.run(out),
            Some(BenchCommand::List) => list(out),
            Some(BenchCommand::Strings(arguments)) => arguments.run(out),
            Some(BenchCommand::Data(arguments)) => arguments.run(out),
            Some(BenchCommand::Job) => job::child().map(|()| true),
        };
        Ok(u8::from(!is_well?))
    }

    /// Whether the command line makes sense, as far as that can be told without doing what it says.
    ///
    /// # Errors
    ///
    /// Those of a plan that cannot be carried out.
    pub fn check(&self) -> Result<()> {
        match &self.command {
            None => self.run.plan().map(|_| ()),
            Some(_) => Ok(()),
        }
    }
}

impl ReportArguments {
    fn run(&self, out: &mut dyn Write) -> Result<bool> {
        let run = read(&self.run)?;
        if self.markdown {
            let table = markdown::table(&run, self.experiment.as_deref())?;
            write!(out, "{table}")?;
            return Ok(true);
        }
        let page = match self.svg {
            Some(plot) => svg::standalone(&run, plot, self.experiment.as_deref())?,
            None => html::page(&run),
        };
        fs::write(&self.output, page).with_context(|| self.output.display().to_string())?;
        writeln!(out, "{}", self.output.display())?;
        Ok(true)
    }
}

impl CompareArguments {
    fn run(&self, out: &mut dyn Write) -> Result<bool> {
        let comparison = compare::compare(&read(&self.a)?, &read(&self.b)?);
        write!(out, "{}", compare::print(&comparison, self.all))?;
        // A gate that has compared nothing must not let pass.
        let is_well = !comparison.got_worse() && !comparison.changes.is_empty();
        Ok(is_well || !self.fail_on_slower)
    }
}

impl DataArguments {
    fn run(&self, out: &mut dyn Write) -> Result<bool> {
        // Without what may follow it each name is a source, but for those of files.
        let name = |(name, _): &(&'static str, _)| name.split('[').next().unwrap_or_default();
        let made_up = data::KNOWN
            .iter()
            .map(name)
            .filter(|name| !name.contains(':'));
        let sources = match self.sources.as_slice() {
            [] => made_up.map(str::parse).collect::<Result<_>>()?,
            named => named.to_vec(),
        };
        writeln!(
            out,
            "{:>24} {:>12} {:>12} {:>12}",
            "", "keys", "error 32", "error 4096"
        )?;
        for source in sources {
            let keys = data::generate(&source, self.records as usize, self.seed)?;
            let hardness = |error| data::hardness::segments(&keys, error);
            let (fine, coarse) = (hardness(32), hardness(4096));
            writeln!(
                out,
                "{:>24} {:>12} {fine:>12} {coarse:>12}",
                source.to_string(),
                keys.len()
            )?;
            // At once: the next ones may take a while.
            out.flush()?;
        }
        Ok(true)
    }
}

fn list(out: &mut dyn Write) -> Result<bool> {
    for contestant in contestants::all() {
        writeln!(
            out,
            "{:20} survives {:10} {}",
            contestant.name, contestant.survives, contestant.about
        )?;
    }
    writeln!(
        out,
        "\nOptions of the kinds of index, for NAME@OPTION=VALUE:"
    )?;
    list_options::<Kind>(out)?;
    list_options::<SpatialKind>(out)?;
    Ok(true)
}

/// The kinds of index of a family, and their options.
fn list_options<K: IndexKind>(out: &mut dyn Write) -> Result<()> {
    for kind in K::all() {
        writeln!(out, "{kind}: {}", kind.description())?;
        for option in kind.options() {
            let (name, values) = (option.name, option.values);
            writeln!(out, "    {name:8} {}: {values}", option.meaning)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Run> {
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    let run: Run = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not the file of a run", path.display()))?;
    ensure!(
        run.format == crate::outcome::FORMAT,
        "{} has format {}, this program reads {}",
        path.display(),
        run.format,
        crate::outcome::FORMAT
    );
    Ok(run)
}

/// The file of a run that goes on, beside the one that the whole run will be in. It is replaced as a whole after each experiment: a
/// run that is stopped, or killed, leaves what it had measured, and has not touched an older run.
struct Draft {
    path: PathBuf,
    next: PathBuf,
}

impl Draft {
    fn create(output: &Path) -> Result<Self> {
        let path = output.with_extension("json.part");
        let next = output.with_extension("json.part.new");
        // Now rather than after the first experiment.
        File::create(&next).with_context(|| next.display().to_string())?;
        Ok(Self { path, next })
    }

    fn save(&self, run: &Run) -> Result<()> {
        let text = serde_json::to_vec(run)?;
        fs::write(&self.next, text).with_context(|| self.next.display().to_string())?;
        fs::rename(&self.next, &self.path).with_context(|| self.path.display().to_string())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.next);
    }
}

impl RunArguments {
    fn run(&self, child: &[&str], out: &mut dyn Write) -> Result<u8> {
        let plan = self.plan()?;
        let stop = Stop::on_signals()?;
        let options = Options {
            pool_path: self.pool_path.clone().unwrap_or_else(fast_directory),
            disk_path: self.disk_path.clone().unwrap_or_else(std::env::temp_dir),
            sampling_ms: self.sampling_ms,
            slow_down: self.plant_slowdown,
            child: child
                .iter()
                .map(|&word| word.into())
                .chain(["__job".into()])
                .collect(),
            // Paths need not be text.
            command: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
                .join(" "),
            stop: Arc::clone(&stop),
        };
        let page = self.output.with_extension("html");
        ensure!(page != self.output, "the page goes to {}", page.display());
        for file in [&self.output, &page] {
            // Now rather than when everything is measured.
            ensure!(!file.is_dir(), "{} is a directory", file.display());
        }
        let draft = Draft::create(&self.output)?;
        if machine::file_system(&options.disk_path) == "tmpfs" {
            let path = options.disk_path.display();
            note(format_args!(
                "{path} is tmpfs: what waits for a disk there does not wait; see --disk_path"
            ));
        }
        let part = draft.path.display();
        note(format_args!(
            "{} measurements; after each experiment they are in {part},\n\
             which `indelible bench report {part}` draws",
            plan.measurements()
        ));
        let run = race::run(&plan, &options, |run| draft.save(run))?;
        if let Some(signal) = stop.signal() {
            draft.save(&run)?;
            let done = run.outcomes.len();
            note(format_args!(
                "stopped after {done} of {} measurements, which are in {part}",
                plan.measurements()
            ));
            write!(out, "{}", terminal::print(&run))?;
            return Ok(128 + signal as u8);
        }
        fs::rename(&draft.path, &self.output)?;
        fs::write(&page, html::page(&run))?;
        write!(out, "{}", terminal::print(&run))?;
        writeln!(out, "{} and {}", self.output.display(), page.display())?;
        let failed = run
            .outcomes
            .iter()
            .filter(|outcome| outcome.error.is_some())
            .count();
        Ok(u8::from(failed > 0))
    }

    fn plan(&self) -> Result<Plan> {
        let scale = Scale {
            records: self.records,
            operations: self.operations,
            threads: self.threads.clone(),
            rounds: self.rounds,
            seed: self.seed,
        };
        let mut plan = match self.preset {
            Some(preset) => preset.plan(&scale),
            None => self.custom(&scale)?,
        };
        if !self.contestants.is_empty() {
            plan.contestants.clone_from(&self.contestants);
            plan.experiments
                .iter_mut()
                .for_each(|experiment| experiment.contestants.clear());
        }
        if !self.kernel.is_empty() {
            let experiments = plan.experiments.iter_mut();
            let lists = experiments.map(|experiment| &mut experiment.contestants);
            for names in lists.chain([&mut plan.contestants]) {
                *names = contestants::with_kernels(names, &self.kernel)?;
            }
        }
        ensure!(plan.rounds > 0, "--rounds must be at least 1");
        let share = 0.0..1.0;
        ensure!(
            share.contains(&self.plant_slowdown),
            "--plant_slowdown is from 0 to below 1"
        );
        let mut names = BTreeSet::new();
        for experiment in &plan.experiments {
            ensure!(
                names.insert(&experiment.name),
                "{} is named twice",
                experiment.name
            );
            experiment
                .check()
                .with_context(|| experiment.name.clone())?;
            let source: Source = experiment.data.parse()?;
            let searches = experiment.phases.iter().any(Phase::is_spatial);
            ensure!(
                source.is_spatial() || !searches,
                "{source} has no points to search for: --data points:SET"
            );
            let mut entrants = BTreeSet::new();
            for name in plan.contestants_of(experiment) {
                ensure!(entrants.insert(name), "{name} takes part twice");
                contestants::entrant(name)?.check_data(&source)?;
            }
        }
        Ok(plan)
    }

    /// The plan that the workload options describe.
    fn custom(&self, scale: &Scale) -> Result<Plan> {
        let workload = &self.workload;
        let phases = workload.phases(self.operations, &self.threads)?;
        let experiment = |source: &Source| Experiment {
            name: source.to_string(),
            data: source.to_string(),
            records: self.records.unwrap_or(1_000_000),
            load: workload.load(),
            contestants: if source.is_spatial() {
                preset::spatial_contestants()
            } else {
                Vec::new()
            },
            phases: phases.clone(),
            recovery: if workload.recovery { u32::MAX } else { 0 },
            recovery_threads: 1,
        };
        let quick = Preset::Quick.plan(scale);
        let is_spatial = workload.data.iter().all(Source::is_spatial);
        Ok(Plan {
            name: "custom".into(),
            contestants: if is_spatial {
                preset::spatial_contestants()
            } else {
                quick.contestants
            },
            experiments: workload.data.iter().map(experiment).collect(),
            ..quick
        })
    }
}

/// tmpfs where there is some, else the directory for temporary files.
pub(crate) fn fast_directory() -> PathBuf {
    let tmpfs = PathBuf::from("/dev/shm");
    if tmpfs.is_dir() {
        tmpfs
    } else {
        std::env::temp_dir()
    }
}
