//! Plans with names: from two and a half minutes on a laptop to the figures of the papers.

mod loft;
mod papers;
mod spatial;

pub use spatial::everybody as spatial_contestants;

use crate::contestants;
use crate::plan::{Arrival, Distribution, Experiment, Load, Mix, Phase, Plan};
use clap::ValueEnum;
use indelible::Kind;

/// Plans that come with the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Everything side by side in two minutes and a half.
    Quick,
    /// Every contestant on easy and hard data with 20 million records. docs/measurements.md shows a run with 10 million.
    Full,
    /// LB+-Tree, figures 11 to 14: inserts into leaves that have room or not, dense inserts, threads, sizes of nodes, search
    /// and deletion.
    PaperLbtree,
    /// "Evaluating Persistent Memory Range Indexes: Part Two", figures 2 and 4 to 6 and table 3: single operations by
    /// threads, uniform and skewed, mixes, tail latency, space.
    PaperSurvey,
    /// APEX, figures 4 to 9 and 11 to 13 and tables 1 to 3: single operations on six sets of keys, threads, inserts into nodes
    /// that have room or not, skew, sizes of nodes and stashes, what the index is made of, structure changes, recovery.
    PaperApex,
    /// LOFT, figures 7 to 13 and 15: mixes and single operations by threads, more of them than cores, with tail latencies; a workload that
    /// shifts from lookups to inserts, a million operations at a time.
    PaperLoft,
    /// Sets of keys, and orders of inserting them, that hurt learned indexes: every kind of index of ours.
    Adversarial,
    /// Writes that survive a power cut, on a disk (`--disk_path` says where): one thread, 64 threads, batches; and those that survive it after
    /// 10 ms.
    Durable,
    /// Spatial indexes and their peers on real and made-up points: bulk load, inserts, windows, nearest points, removals and
    /// mixes, one thread and all.
    Spatial,
    /// "Spatial indexes on non-volatile memory" (R-trees), figures 4 to 6 and 8: inserts of 100,000 to 500,000 points, 1 to 32
    /// threads that insert or search, flushes of leaves only, and the recovery that the paper left out.
    PaperRtree,
}

/// What a preset can be asked to do otherwise.
#[derive(Clone, Debug, Default)]
pub struct Scale {
    /// Records loaded.
    pub records: Option<u64>,
    /// Operations of a phase.
    pub operations: Option<u64>,
    /// Numbers of threads.
    pub threads: Vec<u32>,
    /// Rounds.
    pub rounds: Option<u32>,
    /// The seed.
    pub seed: u64,
}

/// Peers that live in the memory of the process.
const IN_MEMORY: &[&str] = &["btreemap", "skiplist", "scc", "congee", "ferntree"];

/// Databases, each with its fastest setting, then those that wait for the medium.
const DATABASES: &[&str] = &[
    "redb",
    "lmdb-nosync",
    "fjall",
    "rocksdb",
    "sqlite",
    "redb-fsync",
    "lmdb-fsync",
    "fjall-fsync",
    "rocksdb-durable",
    "sqlite-durable",
];

/// The kinds of index that the general presets compare, the default kind first. A kind that is there to be read, not to be fast, is left
/// out here, and only here: `bench --contestants` takes it.
fn compared_kinds() -> impl Iterator<Item = Kind> {
    Kind::all()
        .iter()
        .copied()
        .filter(|kind| !kind.is_example())
}

/// Each kind of index with the library's default pool.
fn every_kind() -> Vec<String> {
    compared_kinds().map(contestants::name_of).collect()
}

/// Each kind of index, and what the other promises of a pool cost: they are measured with the default kind alone.
fn ours() -> Vec<String> {
    let default = contestants::name_of(Kind::default());
    let promises = ["dram", "pmem"].map(|promise| format!("{default}-{promise}"));
    every_kind().into_iter().chain(promises).collect()
}

/// All contestants of a full comparison, ours first.
fn everybody() -> Vec<String> {
    let peers = known(&[IN_MEMORY, DATABASES].concat());
    ours().into_iter().chain(peers).collect()
}

impl Preset {
    /// The plan.
    #[must_use]
    pub fn plan(self, scale: &Scale) -> Plan {
        let (name, rounds, contestants, experiments) = match self {
            Self::Quick => ("quick", 5, everybody(), quick(scale)),
            Self::Full => ("full", 3, everybody(), full(scale)),
            Self::PaperLbtree => {
                let contestants = known(papers::LBTREE_CONTESTANTS);
                ("paper-lbtree", 3, contestants, papers::lbtree(scale))
            }
            Self::PaperSurvey => ("paper-survey", 3, everybody(), papers::survey(scale)),
            Self::PaperApex => {
                let contestants = known(papers::APEX_CONTESTANTS);
                ("paper-apex", 3, contestants, papers::apex(scale))
            }
            Self::PaperLoft => ("paper-loft", 3, loft::contestants(), loft::loft(scale)),
            Self::Adversarial => ("adversarial", 3, every_kind(), adversarial(scale)),
            Self::Durable => ("durable", 3, durable_contestants(), durable(scale)),
            Self::Spatial => ("spatial", 3, spatial::everybody(), spatial::spatial(scale)),
            Self::PaperRtree => {
                let contestants = spatial::paper_contestants();
                ("paper-rtree", 3, contestants, spatial::paper(scale))
            }
        };
        Plan {
            name: name.into(),
            seed: scale.seed,
            rounds: scale.rounds.unwrap_or(rounds),
            contestants,
            experiments,
        }
    }
}

/// Those that this build has.
fn known(wanted: &[&str]) -> Vec<String> {
    let known = contestants::all();
    let is_known = |name: &&&str| known.iter().any(|contestant| contestant.name == **name);
    let wanted = wanted.iter().filter(is_known);
    wanted.map(|&name| name.into()).collect()
}

impl Phase {
    /// A phase of one mix, uniform, with one thread.
    #[must_use]
    pub fn new(name: &str, mix: Mix, operations: u64) -> Self {
        Self {
            name: name.into(),
            mix,
            distribution: Distribution::Uniform,
            arrival: Arrival::Random,
            missing: 0.0,
            operations,
            seconds: None,
            threads: vec![1],
            scan_size: 100,
            scan_varies: false,
            batch_size: 1024,
            window_hits: 24,
            neighbours: 10,
            latency_sampling: 0.0,
        }
    }

    /// With these numbers of threads.
    #[must_use]
    pub fn threads(mut self, threads: &[u32]) -> Self {
        self.threads = threads.to_vec();
        self
    }

    /// Which of the present keys.
    #[must_use]
    pub fn distribution(mut self, distribution: Distribution) -> Self {
        self.distribution = distribution;
        self
    }

    /// Where new keys go.
    #[must_use]
    pub fn arrival(mut self, arrival: Arrival) -> Self {
        self.arrival = arrival;
        self
    }

    /// Ends after this many seconds, if it has not before.
    #[must_use]
    pub fn at_most(mut self, seconds: f64) -> Self {
        self.seconds = Some(seconds);
        self
    }

    /// With a pass that takes the latency of a tenth of the operations, as PiBench's authors do.
    #[must_use]
    pub fn with_latency(mut self) -> Self {
        self.latency_sampling = 0.1;
        self
    }
}

/// Mixes by name.
impl Mix {
    /// Whether it adds or removes records, so that nodes change.
    #[must_use]
    pub fn changes_structure(&self) -> bool {
        self.insert + self.insert_batch + self.remove > 0.0
    }
    /// Lookups only.
    pub const GET: Self = Self {
        get: 1.0,
        ..Self::NONE
    };
    /// Inserts only.
    pub const INSERT: Self = Self {
        insert: 1.0,
        ..Self::NONE
    };
    /// Updates only.
    pub const UPDATE: Self = Self {
        update: 1.0,
        ..Self::NONE
    };
    /// Removals only.
    pub const REMOVE: Self = Self {
        remove: 1.0,
        ..Self::NONE
    };
    /// Scans only.
    pub const SCAN: Self = Self {
        scan: 1.0,
        ..Self::NONE
    };
    /// Batches of lookups only.
    pub const GET_BATCH: Self = Self {
        get_batch: 1.0,
        ..Self::NONE
    };
    /// Batches of inserts only.
    pub const INSERT_BATCH: Self = Self {
        insert_batch: 1.0,
        ..Self::NONE
    };
    /// Searches in windows only.
    pub const WINDOW: Self = Self {
        window: 1.0,
        ..Self::NONE
    };
    /// Searches for the nearest points only.
    pub const NEAREST: Self = Self {
        nearest: 1.0,
        ..Self::NONE
    };
    const NONE: Self = Self {
        get: 0.0,
        insert: 0.0,
        update: 0.0,
        remove: 0.0,
        scan: 0.0,
        get_batch: 0.0,
        insert_batch: 0.0,
        read_modify_write: 0.0,
        window: 0.0,
        nearest: 0.0,
    };

    /// Lookups and inserts.
    #[must_use]
    pub fn get_insert(get: f64) -> Self {
        Self {
            get,
            insert: 1.0 - get,
            ..Self::NONE
        }
    }

    /// Searches in windows; what is left is inserts and removals, as many of each.
    #[must_use]
    pub fn window_and_changes(window: f64) -> Self {
        let change = (1.0 - window) / 2.0;
        Self {
            window,
            insert: change,
            remove: change,
            ..Self::NONE
        }
    }

    /// Lookups and updates.
    #[must_use]
    pub fn get_update(get: f64) -> Self {
        Self {
            get,
            update: 1.0 - get,
            ..Self::NONE
        }
    }
}

/// A workload of YCSB (Cooper et al., SoCC 2010) by its letter.
#[must_use]
pub fn ycsb(letter: char, operations: u64) -> Option<Phase> {
    let zipfian = Distribution::Zipfian { theta: 0.99 };
    let (mix, distribution) = match letter.to_ascii_uppercase() {
        'A' => (Mix::get_update(0.5), zipfian),
        'B' => (Mix::get_update(0.95), zipfian),
        'C' => (Mix::GET, zipfian),
        'D' => (Mix::get_insert(0.95), Distribution::Latest),
        'E' => (
            Mix {
                scan: 0.95,
                insert: 0.05,
                ..Mix::NONE
            },
            zipfian,
        ),
        'F' => (
            Mix {
                get: 0.5,
                read_modify_write: 0.5,
                ..Mix::NONE
            },
            zipfian,
        ),
        _ => return None,
    };
    let name = format!("ycsb-{}", letter.to_ascii_lowercase());
    let mut phase = Phase::new(&name, mix, operations).distribution(distribution);
    phase.scan_varies = true;
    Some(phase)
}

/// The five phases of LOFT section 5.3: from nine lookups in ten operations to one in ten.
#[must_use]
pub fn shift(operations: u64) -> Vec<Phase> {
    let phase = |get: u32| {
        Phase::new(
            &format!("shift {get}/{}", 100 - get),
            Mix::get_insert(f64::from(get) / 100.0),
            operations,
        )
    };
    [90, 70, 50, 30, 10].map(phase).into()
}

/// One thread, and as many as there are cores.
fn one_and_all(scale: &Scale) -> Vec<u32> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    or(
        &scale.threads,
        [1, cores]
            .get(..1 + usize::from(cores > 1))
            .unwrap_or_default(),
    )
}

/// What was asked for, or otherwise something else; each number once.
fn or(asked: &[u32], otherwise: &[u32]) -> Vec<u32> {
    let mut threads = if asked.is_empty() { otherwise } else { asked }.to_vec();
    let mut seen = std::collections::BTreeSet::new();
    threads.retain(|&number| seen.insert(number));
    threads
}

fn experiment(name: &str, data: &str, records: u64, load: Load, phases: Vec<Phase>) -> Experiment {
    Experiment {
        name: name.into(),
        data: data.into(),
        records,
        load,
        contestants: Vec::new(),
        phases,
        recovery: 0,
        recovery_threads: 1,
    }
}

fn quick(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(400_000);
    let operations = scale.operations.unwrap_or(2_000_000);
    let threads = one_and_all(scale);
    // By the clock: long enough to average over what a laptop does beside, short enough for two minutes in all.
    let short = |phase: Phase| phase.at_most(0.1);
    let get = Phase::new("get", Mix::GET, operations).threads(&threads);
    let insert = Phase::new("insert", Mix::INSERT, operations / 8).threads(&threads);
    let phases = vec![
        short(get.with_latency()),
        short(Phase::new("scan 100", Mix::SCAN, operations / 10)),
        short(Phase::new("get_batch", Mix::GET_BATCH, operations)),
        short(ycsb('A', operations).expect("a workload of YCSB")),
        short(insert.with_latency()),
        short(Phase::new(
            "insert_batch",
            Mix::INSERT_BATCH,
            operations / 8,
        )),
    ];
    let mut uniform = experiment("uniform", "uniform", records, Load::Random, phases);
    uniform.recovery = 2;
    vec![uniform]
}

fn full(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(20_000_000);
    let operations = scale.operations.unwrap_or(5_000_000);
    let threads = one_and_all(scale);
    let most = |phase: Phase| phase.at_most(10.0);
    let named = |letter| ycsb(letter, operations).expect("a workload of YCSB");
    let phases = |rich: bool| {
        let mut phases = vec![
            most(
                Phase::new("get", Mix::GET, operations)
                    .threads(&threads)
                    .with_latency(),
            ),
            most(Phase::new("scan 100", Mix::SCAN, operations / 20)),
            most(Phase::new("get_batch", Mix::GET_BATCH, operations)),
        ];
        if rich {
            phases.extend([most(named('A')), most(named('E'))]);
        }
        phases.extend([
            most(
                Phase::new("insert", Mix::INSERT, operations)
                    .threads(&threads)
                    .with_latency(),
            ),
            most(Phase::new("insert_batch", Mix::INSERT_BATCH, operations)),
        ]);
        phases
    };
    let sources = ["uniform", "lognormal", "lon-lat", "hilbert"];
    let experiments = sources.map(|source| {
        let rich = source == "uniform";
        let mut experiment = experiment(source, source, records, Load::Random, phases(rich));
        if rich {
            experiment.recovery = u32::MAX;
        } else {
            // Loading 20 million records takes the databases minutes; once is enough.
            experiment.contestants = ours().into_iter().chain(known(IN_MEMORY)).collect();
        }
        experiment
    });
    experiments.into()
}

/// Inserts from empty, in the order that the set or the load says, then lookups, scans and removals.
fn adversarial(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(2_000_000);
    let operations = scale.operations.unwrap_or(1_000_000);
    let threads = or(&scale.threads, &[1]);
    let streams = Load::Interleaved { runs: 1000 };
    let sets = [
        ("low bits", "low-bits:32", Load::Random),
        ("exponential", "exponential", Load::Random),
        ("sawtooth", "sawtooth:100", Load::Random),
        ("clusters", "clustered:1000", Load::Random),
        ("cascade", "cascade:0.2", Load::Random),
        ("sorted", "uniform", Load::Ascending),
        ("reverse", "uniform", Load::Descending),
        ("sorted, dense", "dense", Load::Ascending),
        ("reverse, dense", "dense", Load::Descending),
        ("sorted, exponential", "exponential", Load::Ascending),
        ("reverse, exponential", "exponential", Load::Descending),
        ("sorted, sawtooth", "sawtooth:100", Load::Ascending),
        ("1000 streams, dense", "dense", streams),
        ("1000 streams, clusters", "clustered:1000", streams),
    ];
    let most = |phase: Phase| phase.threads(&threads).at_most(20.0);
    let phases = vec![
        most(Phase::new("get", Mix::GET, operations)),
        most(Phase::new("scan 100", Mix::SCAN, operations / 20)),
        most(Phase::new(
            "remove",
            Mix::REMOVE,
            removable(scale, records, operations),
        )),
    ];
    let experiment = |(name, data, load)| experiment(name, data, records, load, phases.clone());
    sets.map(experiment).into()
}

/// Each kind of index with a log and without one, and the databases.
fn durable_contestants() -> Vec<String> {
    let promises = ["-disk", "-disk-10ms", ""];
    let ours = every_kind()
        .into_iter()
        .flat_map(|name| promises.map(|promise| format!("{name}{promise}")));
    ours.chain(known(DATABASES)).collect()
}

/// By the clock, since a sync of the disk takes a thousand times as long as an insert without one.
fn durable(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(1_000_000);
    let operations = scale.operations.unwrap_or(2_000_000);
    let threads = or(&scale.threads, &[1, 64]);
    let short = |phase: Phase| phase.at_most(3.0);
    let phases = vec![
        short(Phase::new("get", Mix::GET, operations)),
        short(
            Phase::new("insert", Mix::INSERT, operations)
                .threads(&threads)
                .with_latency(),
        ),
        short(Phase::new("insert_batch", Mix::INSERT_BATCH, operations)),
    ];
    let load = Load::Bulk { fill: 0.7 };
    vec![experiment("durable", "uniform", records, load, phases)]
}

/// So many of the records can be removed with each number of threads that a tenth is left.
fn removable(scale: &Scale, records: u64, operations: u64) -> u64 {
    let times = scale.threads.len().max(1) as u64;
    operations.min(records * 9 / 10 / times).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestants::entrant;
    use crate::data::Source;
    use std::collections::BTreeSet;

    /// The plans of all presets, small and as they are.
    fn plans() -> impl Iterator<Item = Plan> {
        let small = Scale {
            records: Some(3000),
            operations: Some(2000),
            threads: vec![1, 3],
            ..Scale::default()
        };
        let scales = [small, Scale::default()];
        scales.into_iter().flat_map(|scale| {
            let presets = Preset::value_variants().iter();
            presets.map(move |preset| preset.plan(&scale))
        })
    }

    #[test]
    fn every_plan_can_be_run() {
        for plan in plans() {
            let mut names = BTreeSet::new();
            for experiment in &plan.experiments {
                let what = format!("{}, {}", plan.name, experiment.name);
                assert!(names.insert(&experiment.name), "{what} is there twice");
                experiment.check().expect(&what);
                let source: Source = experiment.data.parse().expect(&what);
                let searches = experiment.phases.iter().any(Phase::is_spatial);
                assert!(source.is_spatial() || !searches, "{what}");
                for name in plan.contestants_of(experiment) {
                    let contestant = entrant(name).expect(&what);
                    contestant.check_data(&source).expect(&what);
                }
            }
        }
    }

    #[test]
    fn every_kind_is_in_the_general_presets() {
        let general = [Preset::Quick, Preset::Full, Preset::Adversarial];
        for plan in general.map(|preset| preset.plan(&Scale::default())) {
            for experiment in &plan.experiments {
                let entrants = plan.contestants_of(experiment);
                for kind in compared_kinds() {
                    assert!(entrants.contains(&contestants::name_of(kind)), "{kind}");
                }
            }
        }
    }
}
