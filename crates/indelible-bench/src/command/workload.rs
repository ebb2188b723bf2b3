//! A workload of one's own, from the command line.

use crate::data::Source;
use crate::plan::{Arrival, Distribution, Load, Mix, Phase};
use crate::preset;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

/// A workload of one's own.
#[derive(Args)]
#[command(
    rename_all = "snake_case",
    next_help_heading = "Workload (without a preset)"
)]
pub(super) struct WorkloadArguments {
    /// Keys: uniform, lognormal, lon-lat, hilbert, sosd:FILE, csv:FILE:COLUMN, ...; `indelible bench data` shows them all.
    #[arg(long, value_delimiter = ',', default_value = "uniform")]
    pub(super) data: Vec<Source>,
    /// Ratio of read operations.
    #[arg(short = 'r', long, visible_alias = "read-ratio")]
    read_ratio: Option<f64>,
    /// Ratio of insert operations.
    #[arg(
        short = 'i',
        long,
        visible_alias = "insert-ratio",
        default_value_t = 0.0
    )]
    insert_ratio: f64,
    /// Ratio of update operations.
    #[arg(
        short = 'u',
        long,
        visible_alias = "update-ratio",
        default_value_t = 0.0
    )]
    update_ratio: f64,
    /// Ratio of remove operations.
    #[arg(
        short = 'd',
        long,
        visible_alias = "remove-ratio",
        default_value_t = 0.0
    )]
    remove_ratio: f64,
    /// Ratio of scan operations.
    #[arg(short = 's', long, visible_alias = "scan-ratio", default_value_t = 0.0)]
    scan_ratio: f64,
    /// Ratio of lookups in batches.
    #[arg(long, visible_alias = "batch-read-ratio", default_value_t = 0.0)]
    batch_read_ratio: f64,
    /// Ratio of inserts in batches.
    #[arg(long, visible_alias = "batch-insert-ratio", default_value_t = 0.0)]
    batch_insert_ratio: f64,
    /// Ratio of searches for the points in a window; with `--data points:...`.
    #[arg(long, visible_alias = "window-ratio", default_value_t = 0.0)]
    window_ratio: f64,
    /// Ratio of searches for the nearest points; with `--data points:...`.
    #[arg(long, visible_alias = "nearest-ratio", default_value_t = 0.0)]
    nearest_ratio: f64,
    /// Points that a window contains on average.
    #[arg(long, visible_alias = "window-hits", default_value_t = 24)]
    window_hits: u32,
    /// Points that a search for the nearest ones asks for.
    #[arg(long, default_value_t = 10)]
    neighbours: u32,
    /// Keys per batch.
    #[arg(long, visible_alias = "batch-size", default_value_t = 1024)]
    batch_size: u32,
    /// Number of records to be scanned.
    #[arg(long, visible_alias = "scan-size", default_value_t = 100)]
    scan_size: u32,
    /// Which of the present keys operations take.
    #[arg(long, value_enum, ignore_case = true, default_value = "uniform")]
    distribution: Named,
    /// Key distribution skew factor: the exponent of zipfian (0.99 if not said), the share of the keys that gets most of the
    /// accesses for selfsimilar (0.2) and hotspot (0.01).
    #[arg(long)]
    skew: Option<f64>,
    /// Where new keys go.
    #[arg(long, value_enum, default_value = "random")]
    arrival: ArrivalName,
    /// Share of the lookups that ask for a key that is not there.
    #[arg(long, default_value_t = 0.0)]
    missing: f64,
    /// Workloads of YCSB instead of ratios, by letter: `--ycsb A,B`.
    #[arg(long, value_delimiter = ',', conflicts_with_all = OF_ONE_MIX)]
    ycsb: Vec<char>,
    /// The five phases of LOFT section 5.3 instead of ratios: from 90 % lookups and 10 % inserts to the reverse.
    #[arg(long, conflicts_with = "ycsb", conflicts_with_all = OF_ONE_MIX)]
    shift: bool,
    /// End phases after a number of operations, or after a time.
    #[arg(
        short = 'm',
        long,
        value_enum,
        ignore_case = true,
        default_value = "operation"
    )]
    mode: Mode,
    /// Time in seconds of a phase in time-based mode.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Use bulk loading.
    #[arg(long, visible_alias = "bulk-load")]
    bulk_load: bool,
    /// How full bulk loading makes nodes, from 0 to 1.
    #[arg(long, default_value_t = 0.7)]
    fill: f64,
    /// Load in ascending order.
    #[arg(long, group = "order", conflicts_with = "bulk_load")]
    ascending: bool,
    /// Load in descending order.
    #[arg(long, group = "order", conflicts_with = "bulk_load")]
    descending: bool,
    /// Load so many ascending streams side by side, a record of each in turn.
    #[arg(long, group = "order", conflicts_with = "bulk_load")]
    interleaved: Option<u32>,
    /// Sample latency of requests: the share of operations timed in a pass of their own, from 0 to 1.
    #[arg(long, visible_alias = "latency-sampling", default_value_t = 0.1)]
    latency_sampling: f64,
    /// Kill a process with a loaded map, too, and open what it left.
    #[arg(long)]
    pub(super) recovery: bool,
}

/// What a workload with a name says itself: beside such a name these would have no effect.
const OF_ONE_MIX: [&str; 12] = [
    "read_ratio",
    "insert_ratio",
    "update_ratio",
    "remove_ratio",
    "scan_ratio",
    "batch_read_ratio",
    "batch_insert_ratio",
    "window_ratio",
    "nearest_ratio",
    "distribution",
    "skew",
    "arrival",
];

/// The longest phase: a month. Infinity is no number in the file of a run, and the clock of a system ends somewhere.
const MOST_SECONDS: f64 = 31.0 * 86_400.0;

/// The most records of a step: there is room for them before it begins.
const MOST_AT_ONCE: u32 = 1 << 24;

/// [`Distribution`] by PiBench's names.
#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "lower")]
enum Named {
    Uniform,
    Zipfian,
    SelfSimilar,
    Latest,
    Sequential,
    HotSpot,
}

/// [`Arrival`] by name.
#[derive(Clone, Copy, ValueEnum)]
enum ArrivalName {
    Random,
    Ascending,
    Dense,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    Operation,
    Time,
}

impl WorkloadArguments {
    pub(super) fn load(&self) -> Load {
        match self.interleaved {
            _ if self.bulk_load => Load::Bulk { fill: self.fill },
            _ if self.ascending => Load::Ascending,
            _ if self.descending => Load::Descending,
            Some(runs) => Load::Interleaved { runs },
            None => Load::Random,
        }
    }

    pub(super) fn phases(&self, operations: Option<u64>, threads: &[u32]) -> Result<Vec<Phase>> {
        let timed = self.mode == Mode::Time;
        let changes = self.insert_ratio + self.remove_ratio + self.batch_insert_ratio > 0.0;
        let makes_keys = changes || self.shift || !self.ycsb.is_empty();
        let most = f64::from(threads.iter().copied().max().unwrap_or(1));
        let otherwise = match (timed, makes_keys) {
            // By the clock nothing else ends a phase; only keys for all that it inserts must be made before.
            (true, false) => 1 << 40,
            (true, true) => (self.seconds * most * 4e6) as u64,
            (false, _) if self.remove_ratio > 0.0 => 200_000,
            (false, _) => 1_000_000,
        };
        let operations = operations.unwrap_or(otherwise);
        let mut phases = if self.shift {
            preset::shift(operations)
        } else if self.ycsb.is_empty() {
            vec![self.phase(operations)?]
        } else {
            let named = |&letter| preset::ycsb(letter, operations).context("YCSB has A to F");
            self.ycsb.iter().map(named).collect::<Result<_>>()?
        };
        for phase in &mut phases {
            phase.threads = if threads.is_empty() {
                vec![1]
            } else {
                threads.to_vec()
            };
            phase.seconds = timed.then_some(self.seconds);
            phase.latency_sampling = self.latency_sampling;
            phase.missing = self.missing;
            phase.scan_size = self.scan_size;
            phase.batch_size = self.batch_size;
            phase.window_hits = self.window_hits;
            phase.neighbours = self.neighbours;
        }
        let share = 0.0..=1.0;
        ensure!(share.contains(&self.missing), "--missing is from 0 to 1");
        ensure!(
            share.contains(&self.latency_sampling),
            "--latency_sampling is from 0 to 1"
        );
        ensure!(
            self.fill > 0.0 && self.fill <= 1.0,
            "--fill is above 0 and at most 1"
        );
        ensure!(
            self.seconds > 0.0 && self.seconds <= MOST_SECONDS,
            "--seconds must be above 0, and at most {MOST_SECONDS}"
        );
        ensure!(
            [
                self.batch_size,
                self.scan_size,
                self.window_hits,
                self.neighbours
            ]
            .iter()
            .all(|&records| records > 0 && records <= MOST_AT_ONCE),
            "a batch, a scan, a window and a search for neighbours have at least one record, and at most {MOST_AT_ONCE}"
        );
        Ok(phases)
    }

    /// One phase with the ratios that were given.
    fn phase(&self, operations: u64) -> Result<Phase> {
        let others = [
            self.insert_ratio,
            self.update_ratio,
            self.remove_ratio,
            self.scan_ratio,
            self.batch_read_ratio,
            self.batch_insert_ratio,
            self.window_ratio,
            self.nearest_ratio,
        ];
        let sum: f64 = others.iter().sum();
        let get = self.read_ratio.unwrap_or((1.0 - sum).max(0.0));
        ensure!(
            others.iter().all(|&ratio| ratio >= 0.0)
                && get >= 0.0
                && (sum + get - 1.0).abs() < 1e-6,
            "Sum of ratios should be 1.0 but is {}",
            sum + get
        );
        let mix = Mix {
            get,
            insert: self.insert_ratio,
            update: self.update_ratio,
            remove: self.remove_ratio,
            scan: self.scan_ratio,
            get_batch: self.batch_read_ratio,
            insert_batch: self.batch_insert_ratio,
            read_modify_write: 0.0,
            window: self.window_ratio,
            nearest: self.nearest_ratio,
        };
        let distribution = self.distribution()?;
        let arrival = match self.arrival {
            ArrivalName::Random => Arrival::Random,
            ArrivalName::Ascending => Arrival::Ascending,
            ArrivalName::Dense => Arrival::Dense,
        };
        Ok(Phase::new(&name_of(&mix), mix, operations)
            .distribution(distribution)
            .arrival(arrival))
    }

    fn distribution(&self) -> Result<Distribution> {
        let skew = |otherwise: f64, most: f64| match self.skew.unwrap_or(otherwise) {
            skew if skew > 0.0 && skew <= most => Ok(skew),
            skew => bail!("Skew factor must be in the range (0 , {most}], but is {skew}"),
        };
        Ok(match self.distribution {
            Named::Uniform => Distribution::Uniform,
            Named::Zipfian => Distribution::Zipfian {
                theta: skew(0.99, 2.0)?,
            },
            Named::SelfSimilar => Distribution::SelfSimilar {
                skew: skew(0.2, 0.5)?,
            },
            Named::Latest => Distribution::Latest,
            Named::Sequential => Distribution::Sequential,
            Named::HotSpot => Distribution::HotSpot {
                share: skew(0.01, 1.0)?,
            },
        })
    }
}

/// A mix in words: `get`, or `50 % get, 50 % insert`.
fn name_of(mix: &Mix) -> String {
    let names = [
        "get",
        "insert",
        "update",
        "remove",
        "scan",
        "get_batch",
        "insert_batch",
        "rmw",
        "window",
        "nearest",
    ];
    let parts: Vec<(f64, &str)> = crate::workload::shares(mix)
        .into_iter()
        .zip(names)
        .filter(|(share, _)| *share > 0.0)
        .collect();
    match parts.as_slice() {
        [(_, name)] => (*name).into(),
        several => {
            let part = |(share, name): &(f64, &str)| format!("{:.0} % {name}", share * 100.0);
            several.iter().map(part).collect::<Vec<_>>().join(", ")
        }
    }
}
