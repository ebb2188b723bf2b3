//! The figures of the papers, scaled to the machine at hand.

use super::{Scale, experiment, one_and_all, or};
use crate::plan::{Arrival, Distribution, Experiment, Load, Mix, Phase};

/// The LB+-Tree, and databases whose records outlive the process without waiting for a disk.
pub(super) const LBTREE_CONTESTANTS: &[&str] = &[
    "indelible-pmem",
    "indelible",
    "redb",
    "lmdb-nosync",
    "fjall",
];

/// The LB+-Tree and APEX, on persistent memory and with the library's default.
pub(super) const APEX_CONTESTANTS: &[&str] = &[
    "indelible-pmem",
    "indelible-apex-pmem",
    "indelible",
    "indelible-apex",
];

/// LB+-Tree, figures 11 to 14.
pub(super) fn lbtree(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(20_000_000);
    let operations = scale.operations.unwrap_or(300_000);
    let threads = or(&scale.threads, &[1, 2, 4, 8, 16]);
    let insert = |arrival, threads: u32, operations| {
        let name = if arrival == Arrival::Dense {
            "dense insert"
        } else {
            "insert"
        };
        Phase::new(name, Mix::INSERT, operations)
            .arrival(arrival)
            .threads(&[threads])
    };
    let bulk = |figure: &str, fill: f64, phases| {
        let name = format!("{figure}, {:.0} % full", fill * 100.0);
        experiment(&name, "uniform", records, Load::Bulk { fill }, phases)
    };
    let one = |arrival| vec![insert(arrival, 1, operations)];
    let many = |arrival| -> Vec<Phase> {
        let each = |&threads| insert(arrival, threads, u64::from(threads) * operations / 3);
        threads.iter().map(each).collect()
    };
    let mut experiments = vec![
        bulk("fig. 11 inserts", 0.7, one(Arrival::Random)),
        bulk("fig. 11 inserts", 1.0, one(Arrival::Random)),
        bulk("fig. 11 dense", 0.7, one(Arrival::Dense)),
        bulk("fig. 12 inserts", 0.7, many(Arrival::Random)),
        bulk("fig. 12 inserts", 1.0, many(Arrival::Random)),
        bulk("fig. 12 dense", 0.7, many(Arrival::Dense)),
    ];
    let leaves = [
        "indelible-pmem@leaf=256",
        "indelible-pmem@leaf=512",
        "indelible-pmem@leaf=1024",
    ];
    for (fill, arrival, what) in [
        (0.7, Arrival::Random, "fig. 13 inserts"),
        (1.0, Arrival::Random, "fig. 13 inserts"),
        (0.7, Arrival::Dense, "fig. 13 dense"),
    ] {
        let mut sizes = bulk(what, fill, one(arrival));
        sizes.contestants = leaves.map(String::from).into();
        experiments.push(sizes);
    }
    let search = vec![
        Phase::new("get", Mix::GET, operations),
        Phase::new("remove", Mix::REMOVE, operations),
    ];
    experiments.push(bulk("fig. 14", 0.7, search));
    experiments
}

/// PM range indexes part two, figures 2, 4, 5 and 6, and table 3.
pub(super) fn survey(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(10_000_000);
    let operations = scale.operations.unwrap_or(2_000_000);
    let cores = one_and_all(scale).last().copied().unwrap_or(1);
    let threads = or(&scale.threads, &[1, cores, 2 * cores]);
    let skewed = Distribution::SelfSimilar { skew: 0.2 };
    let most = |phase: Phase| phase.at_most(10.0);
    let single = |distribution: Distribution| {
        let phase = |name: &str, mix, operations| {
            let phase = Phase::new(name, mix, operations).threads(&threads);
            most(phase.distribution(distribution))
        };
        let (lookup, update) = (
            phase("lookup", Mix::GET, operations),
            phase("update", Mix::UPDATE, operations),
        );
        let scan = phase("scan 100", Mix::SCAN, operations / 20);
        // Figure 6 is the uniform case; figures 4 (e) to (g) leave inserts out, which have no skew.
        if distribution == Distribution::Uniform {
            let insert = phase("insert", Mix::INSERT, operations).with_latency();
            vec![lookup.with_latency(), update, scan.with_latency(), insert]
        } else {
            vec![lookup, update, scan]
        }
    };
    let mixed = [90, 50, 10].map(|get: u32| {
        let name = format!("{get} % lookups");
        let mix = Mix::get_insert(f64::from(get) / 100.0);
        most(Phase::new(&name, mix, operations).threads(&threads))
    });
    let experiment =
        |name: &str, phases| experiment(name, "uniform", records, Load::Random, phases);
    vec![
        experiment("fig. 2, 4, 6: uniform", single(Distribution::Uniform)),
        experiment("fig. 4: self-similar", single(skewed)),
        experiment("fig. 5: mixes", mixed.into()),
    ]
}

/// The sets of keys of APEX section 6.2, and ours that are nearest to them.
const APEX_SETS: [(&str, &str); 6] = [
    ("longitudes", "longitudes"),
    ("longlat", "lon-lat"),
    ("lognormal", "lognormal:2"),
    ("FB-like", "cascade:0.3"),
    ("YCSB-like", "uniform"),
    ("TPC-E-like", "piecewise:1000"),
];

/// Sizes of the largest nodes, of stashes, and of the room in new nodes, for figures 9, 11 and 12 of APEX: the figure, the keys,
/// and layouts, the last of which is the default.
const APEX_LAYOUTS: [(&str, &str, &[&str]); 5] = [
    (
        "fig. 9 data nodes",
        "lognormal:2",
        &["@data=4K", "@data=16K", "@data=64K", ""],
    ),
    (
        "fig. 9 inner nodes",
        "lognormal:2",
        &["@inner=1K", "@inner=16K", "@inner=256K", ""],
    ),
    ("fig. 11 longitudes", "longitudes", STASHES),
    ("fig. 11 longlat", "lon-lat", STASHES),
    ("fig. 12 density", "lon-lat", &["@fill=80", ""]),
];

const STASHES: &[&str] = &[
    "@stash=1",
    "@stash=10",
    "@stash=20",
    "@stash=30",
    "@stash=50",
    "@stash=70",
    "@stash=90",
    "",
];

/// APEX, figures 4 to 9 and 11 to 13, tables 1 to 3. The paper loads 100 million records and does as many operations.
pub(super) fn apex(scale: &Scale) -> Vec<Experiment> {
    let records = scale.records.unwrap_or(10_000_000);
    let operations = scale.operations.unwrap_or(records);
    let threads = or(&scale.threads, &doubling());
    let one_and_all = one_and_all(scale);
    let most = |phase: Phase| phase.at_most(60.0);
    let bulk = |name: &str, data: &str, records: u64, fill: f64, phases| {
        experiment(name, data, records, Load::Bulk { fill }, phases)
    };
    // Figures 4 to 6 and tables 1 and 2. Inserts come before removals, so that table 2 sees inserts only.
    let removals = operations.min(records) * 9 / 10;
    let single = |(name, data): (&str, &str)| {
        let phases = vec![
            most(Phase::new("search", Mix::GET, operations).threads(&threads)),
            most(Phase::new("scan 100", Mix::SCAN, operations.div_ceil(20))),
            most(Phase::new("update", Mix::UPDATE, operations)),
            most(Phase::new("insert", Mix::INSERT, operations).threads(&threads)),
            most(Phase::new("delete", Mix::REMOVE, removals.max(1))),
        ];
        bulk(&format!("fig. 4 {name}"), data, records, 0.7, phases)
    };
    let mut experiments: Vec<Experiment> = APEX_SETS.map(single).into();
    for (name, fill) in [("fig. 7 normal", 0.5), ("fig. 7 SMO-intensive", 0.9)] {
        let insert = Phase::new("insert", Mix::INSERT, operations.div_ceil(10));
        let phases = vec![most(insert.threads(&one_and_all))];
        experiments.push(bulk(name, "uniform", records, fill, phases));
    }
    let mut skewed = Vec::new();
    for theta in [0.0, 0.5, 0.7, 0.9, 0.99] {
        for (name, mix) in [("search", Mix::GET), ("update", Mix::UPDATE)] {
            let name = format!("{name}, theta {theta}");
            let phase = Phase::new(&name, mix, operations).threads(&one_and_all);
            skewed.push(most(phase.distribution(match theta {
                0.0 => Distribution::Uniform,
                theta => Distribution::Zipfian { theta },
            })));
        }
    }
    experiments.push(bulk("fig. 8 skew", "lon-lat", records, 0.7, skewed));
    for (name, data, layouts) in APEX_LAYOUTS {
        let search = Phase::new("search", Mix::GET, operations.div_ceil(4));
        let insert = Phase::new("insert", Mix::INSERT, operations.div_ceil(2));
        let phases = [search, insert].map(|phase| most(phase.threads(&one_and_all)));
        let mut layout = bulk(name, data, records, 0.7, phases.into());
        let contestants = layouts.iter().map(|of| format!("indelible-apex{of}"));
        layout.contestants = contestants.collect();
        experiments.push(layout);
    }
    for (name, share) in [("a quarter", 4), ("half", 2), ("all", 1)] {
        let records = (records / share).max(1);
        let insert = Phase::new("insert", Mix::INSERT, operations.div_ceil(10 * share));
        let phases = vec![most(insert)];
        let name = format!("table 3, {name}");
        let mut recovery = bulk(&name, "lon-lat", records, 0.7, phases);
        recovery.recovery = u32::MAX;
        experiments.push(recovery);
    }
    // With one thread figure 13 is what table 3 shows.
    for &threads in one_and_all.iter().filter(|&&threads| threads > 1) {
        let insert = Phase::new("insert", Mix::INSERT, operations.div_ceil(10));
        let name = format!("fig. 13, {threads} threads");
        let mut recovery = bulk(&name, "lon-lat", records, 0.7, vec![most(insert)]);
        recovery.recovery = u32::MAX;
        recovery.recovery_threads = threads;
        experiments.push(recovery);
    }
    experiments
}

/// 1, 2, 4 and so on below the number of cores, and that number.
fn doubling() -> Vec<u32> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let below = std::iter::successors(Some(1_u32), |n| n.checked_mul(2));
    below.take_while(|&n| n < cores).chain([cores]).collect()
}
