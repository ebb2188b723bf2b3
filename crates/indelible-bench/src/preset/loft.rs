//! The figures of LOFT (Mo and Hua, EuroSys 2025), scaled to the machine at hand, with more threads than cores.

use super::{Scale, every_kind, experiment, known, or};
use crate::plan::{Distribution, Experiment, Load, Mix, Phase};

/// The sets of keys of LOFT section 5.1 that the bench has or can draw, from the easiest to the hardest.
const SETS: [(&str, &str); 4] = [
    ("longitudes", "longitudes"),
    ("lognormal", "lognormal:2"),
    ("FB-like", "cascade:0.3"),
    ("OSM-like", "hilbert"),
];

/// Lookups of each hundred operations in the mixes of figures 7, 8 and 12.
const MIXES: [u32; 3] = [90, 50, 10];

/// So many parts of a million operations has each phase of figure 11; the paper's have 400.
const SHIFT_PARTS: u64 = 4;

/// Every kind of index of ours, and the fastest peers of one process that several threads can change.
pub(super) fn contestants() -> Vec<String> {
    let peers = known(&["skiplist", "congee"]);
    every_kind().into_iter().chain(peers).collect()
}

/// LOFT, figures 7 to 13 and 15. Figure 14 compares ways of retraining that the engine `loft` cannot be told to take.
pub(super) fn loft(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(10_000_000);
    let operations = scale.operations.unwrap_or(records / 5).max(1);
    let threads = or(&scale.threads, &more_than_cores());
    let bulk = |name: &str, data: &str, records: u64, phases| {
        experiment(name, data, records, Load::Bulk { fill: 0.7 }, phases)
    };
    // Also with the clock around each operation: figure 12.
    let most = |phase: Phase| phase.threads(&threads).at_most(10.0).with_latency();
    let mixes = |distribution: Distribution| -> Vec<Phase> {
        let phase = |get: u32| {
            let mix = Mix::get_insert(f64::from(get) / 100.0);
            let name = format!("{get} % lookups");
            most(Phase::new(&name, mix, operations).distribution(distribution))
        };
        MIXES.map(phase).into()
    };
    let zipfian = |theta| Distribution::Zipfian { theta };
    let mut experiments: Vec<Experiment> = [
        ("fig. 7: zipfian 0.99", zipfian(0.99)),
        ("fig. 8: zipfian 0.5", zipfian(0.5)),
        ("fig. 8: uniform", Distribution::Uniform),
    ]
    .map(|(name, distribution)| bulk(name, "uniform", records, mixes(distribution)))
    .into();
    for (name, data) in SETS {
        let get = Phase::new("get", Mix::GET, operations).distribution(zipfian(0.99));
        let insert = Phase::new("insert", Mix::INSERT, operations);
        let phases = [get, insert].map(most).into();
        let name = format!("fig. 9, 10, 12, 15: {name}");
        experiments.push(bulk(&name, data, records, phases));
    }
    experiments.push(bulk(
        "fig. 11: shift",
        "uniform",
        records,
        shift(scale, &threads),
    ));
    // Inserts into less, until there is as much in each of them.
    for percent in [10, 50, 75] {
        let loaded = (records * percent / 100).max(1);
        let inserted = (records - loaded).max(1);
        let insert = Phase::new("insert", Mix::INSERT, inserted).threads(&cores_only(&threads));
        let name = format!("fig. 13 (a): {percent} %");
        experiments.push(bulk(&name, "longitudes", loaded, vec![insert]));
    }
    experiments.push(bulk(
        "fig. 13 (b): read latest",
        "uniform",
        records,
        mixes(Distribution::Latest),
    ));
    experiments
}

/// The five mixes of figure 11, each in parts of a million operations, which are measured one by one.
fn shift(scale: &Scale, threads: &[u32]) -> Vec<Phase> {
    let part = scale.operations.unwrap_or(1_000_000).min(1_000_000);
    let threads = cores_only(threads);
    let parts = |phase: Phase| {
        let threads = threads.clone();
        (1..=SHIFT_PARTS).map(move |number| Phase {
            name: format!("{}, part {number}", phase.name),
            ..phase.clone().threads(&threads)
        })
    };
    super::shift(part).into_iter().flat_map(parts).collect()
}

/// 1, as many as there are cores, and 8 and 32 times as many.
fn more_than_cores() -> Vec<u32> {
    let cores = cores();
    [1, cores, 8 * cores, 32 * cores].into()
}

/// The greatest of these numbers of threads that does not exceed the number of cores; the least one, if all do.
fn cores_only(threads: &[u32]) -> Vec<u32> {
    let cores = cores();
    let fitting = threads.iter().filter(|&&number| number <= cores).max();
    fitting
        .or(threads.iter().min())
        .copied()
        .into_iter()
        .collect()
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}
