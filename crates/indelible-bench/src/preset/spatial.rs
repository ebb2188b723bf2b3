//! Spatial indexes beside their peers, and the figures of the paper on R-trees in persistent memory.

use super::{Scale, experiment, known, one_and_all, or, removable};
use crate::contestants::name_of_spatial;
use crate::plan::{Experiment, Load, Mix, Phase};
use indelible::SpatialKind;

/// Peers that points are inserted into.
const GROWN: &[&str] = &["rstar", "boost", "sqlite-rtree"];

/// Peers that take all points at once; some of them cannot be changed then.
const AT_ONCE: &[&str] = &["rstar-bulk", "boost-bulk", "geo-index", "kiddo"];

/// The kinds of index that the general preset compares, with the library's default pool. Kinds that are there to be compared with are left out.
fn every_kind() -> Vec<String> {
    let kinds = SpatialKind::all().iter().copied();
    let kinds = kinds.filter(|kind| !kind.is_example());
    kinds.map(name_of_spatial).collect()
}

/// Each kind of index, and what the other promises of a pool cost: they are measured with the default kind alone.
fn ours() -> Vec<String> {
    let default = name_of_spatial(SpatialKind::default());
    let promises = ["dram", "pmem"].map(|promise| format!("{default}-{promise}"));
    every_kind().into_iter().chain(promises).collect()
}

/// All contestants, ours first.
#[must_use]
pub fn everybody() -> Vec<String> {
    let peers = known(&[GROWN, AT_ONCE].concat());
    ours().into_iter().chain(peers).collect()
}

/// Those that a bulk load says something about.
fn bulk_loaded() -> Vec<String> {
    ours().into_iter().chain(known(AT_ONCE)).collect()
}

/// Searches come before changes, so that everybody searches among the same points.
pub(super) fn spatial(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(5_000_000);
    let operations = scale.operations.unwrap_or(1_000_000);
    let threads = one_and_all(scale);
    let phase = |name: &str, mix, operations: u64| {
        Phase::new(name, mix, operations.max(1)).threads(&threads)
    };
    let searches = || {
        vec![
            phase("window 24", Mix::WINDOW, operations / 2).with_latency(),
            phase("nearest 10", Mix::NEAREST, operations / 4).with_latency(),
        ]
    };
    let half = Mix::window_and_changes(0.5);
    let most = Mix::window_and_changes(0.9);
    let changes = || {
        // What is removed in all is below what is loaded, with any number of threads.
        let times = 4 * threads.len() as u64;
        let removed = removable(scale, records / 3, operations / times);
        vec![
            phase("insert", Mix::INSERT, operations / 2).with_latency(),
            phase("90 % window", most, removed),
            phase("50 % window", half, removed),
            phase("remove", Mix::REMOVE, removed).with_latency(),
        ]
    };
    let sets = [
        ("cities", "points:cities"),
        ("clustered", "points:clustered"),
        ("uniform", "points:uniform"),
    ];
    let mut experiments = Vec::new();
    for (name, data) in sets {
        let phases = searches().into_iter().chain(changes()).collect();
        let mut grown = experiment(name, data, records, Load::Random, phases);
        grown.recovery = 1;
        experiments.push(grown);
    }
    let mut bulk = experiment(
        "cities, bulk load",
        "points:cities",
        records,
        Load::Bulk { fill: 0.7 },
        searches().into_iter().chain(changes()).collect(),
    );
    bulk.contestants = bulk_loaded();
    let sorted = experiment(
        "cities, west to east",
        "points:cities",
        records,
        Load::Ascending,
        searches(),
    );
    let mut sorted = Experiment {
        contestants: ours(),
        ..sorted
    };
    sorted.contestants.extend(known(GROWN));
    experiments.extend([bulk, sorted]);
    experiments
}

/// Each kind of index with the protocol of persistent memory, as the paper has it, with the variants of the FBR-tree, and the peers that can be changed.
pub(super) fn paper_contestants() -> Vec<String> {
    let ours = SpatialKind::all().iter().flat_map(|&kind| match kind {
        SpatialKind::Fbr => flushing(),
        _ => vec![in_persistent_memory(kind)],
    });
    ours.chain(known(GROWN)).collect()
}

fn in_persistent_memory(kind: SpatialKind) -> String {
    format!("{}-pmem", name_of_spatial(kind))
}

/// Points of figures 5 and 6, unless the scale says otherwise.
const FEW: u64 = 50_000;

/// Figures 4, 5, 6 and 8, and the recovery that figure 8 leaves out. The paper's points are uniform.
pub(super) fn paper(scale: &Scale) -> Vec<Experiment> {
    let few = scale.records.unwrap_or(FEW);
    let operations = scale.operations.unwrap_or(few);
    let threads = or(&scale.threads, &[1, 2, 4, 8, 16, 32]);
    let load =
        |name: &str, records| experiment(name, "points:uniform", records, Load::Random, Vec::new());
    let mut experiments = Vec::new();
    for times in [2, 4, 6, 8, 10] {
        let records = few * times;
        experiments.push(load(&format!("fig. 4, {records} points"), records));
    }
    let mut inserts = load("fig. 5 insert", few);
    inserts.phases = vec![Phase::new("insert", Mix::INSERT, operations).threads(&threads)];
    let mut searches = load("fig. 6 search", few);
    let mut search = Phase::new("window 100", Mix::WINDOW, operations).threads(&threads);
    search.window_hits = 100;
    searches.phases = vec![search];
    experiments.extend([inserts, searches]);
    for times in [10, 20, 40, 80] {
        let records = few * times;
        let mut flushes = load(&format!("fig. 8, {records} points"), records);
        flushes.contestants = flushing();
        flushes.recovery = u32::MAX;
        experiments.push(flushes);
    }
    experiments
}

/// The FBR-tree, which differs in which nodes it flushes.
fn flushing() -> Vec<String> {
    let name = in_persistent_memory(SpatialKind::Fbr);
    vec![name.clone(), format!("{name}@flush=leaves")]
}
