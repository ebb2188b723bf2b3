//! A run as it could have been, for tests and for looking at the report: fourteen contestants, three experiments.

use crate::outcome::*;
use crate::plan::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution as _, Normal};

/// A contestant that fails in every round of the first experiment.
pub const FAILING: &str = "treemap-lab";

/// The contestant of ours that says what it is made of, of a kind of index that there is not.
pub const LEARNED: &str = "indelible-learned";

/// Name, what it survives, million lookups per second, inserts relative to lookups, bytes per record in file and DRAM.
const CONTESTANTS: [(&str, &str, f64, f64, f64, f64); 14] = [
    ("indelible", "kill -9", 4.97, 0.40, 21.5, 1.1),
    ("indelible-pmem", "power cut", 4.46, 0.38, 21.5, 1.1),
    (LEARNED, "kill -9", 5.2, 0.33, 20.3, 0.6),
    ("btreemap+rwlock", "nothing", 1.30, 0.84, 0.0, 26.5),
    ("crossbeam-skiplist", "nothing", 0.31, 0.90, 0.0, 57.0),
    ("scc-treeindex", "nothing", 0.89, 0.71, 0.0, 32.4),
    ("congee", "nothing", 2.57, 0.31, 0.0, 38.0),
    ("ferntree", "nothing", 1.17, 0.99, 0.0, 24.8),
    (FAILING, "nothing", 2.0, 0.5, 0.0, 30.0),
    ("leveldb", "kill -9", 0.42, 0.7, 19.0, 3.5),
    ("fjall", "kill -9", 0.35, 0.8, 23.5, 12.4),
    ("redb", "power cut", 0.62, 0.000_8, 44.0, 1.2),
    ("heed", "power cut", 1.04, 0.000_5, 39.0, 0.4),
    ("sqlite", "power cut", 0.21, 0.001_3, 28.9, 2.2),
];

/// Phase, its rate relative to lookups, its rate relative to inserts (one of both is 0), numbers of threads.
const PHASES: [(&str, f64, f64, &[u32]); 7] = [
    ("get", 1.0, 0.0, &[1, 2, 4]),
    ("get missing", 1.25, 0.0, &[1]),
    ("insert", 0.0, 1.0, &[1, 2, 4]),
    ("update", 0.0, 1.4, &[1, 2]),
    ("scan 100", 0.14, 0.0, &[1, 2]),
    ("YCSB A zipfian", 0.9, 0.9, &[1, 2, 4]),
    ("get_batch", 2.6, 0.0, &[1]),
];

/// A run of some rounds, with 3 % of noise.
pub fn run(seed: u64, rounds: u32) -> Run {
    noisy(seed, rounds, 0.03)
}

/// A run whose rates vary by this standard deviation.
pub fn noisy(seed: u64, rounds: u32, sigma: f64) -> Run {
    let mut rng = SmallRng::seed_from_u64(seed);
    let experiments = [
        ("uniform", "uniform", 1.0),
        ("lognormal", "lognormal:1", 0.93),
        ("cities", "cities", 2.3),
    ];
    let mut outcomes = Vec::new();
    for round in 0..rounds {
        for (experiment, _, speed) in experiments {
            for contestant in &CONTESTANTS {
                outcomes.push(outcome(
                    &mut rng, sigma, experiment, contestant, round, speed,
                ));
            }
        }
    }
    Run {
        format: FORMAT,
        command: "indelible bench --preset standard --records 20000000 --rounds 5 -o run.json"
            .into(),
        date: "2026-11-21 13:46".into(),
        seconds: 3_127.0,
        machine: machine(),
        plan: Plan {
            name: "standard".into(),
            seed: 1,
            rounds,
            contestants: CONTESTANTS.iter().map(|c| c.0.into()).collect(),
            experiments: experiments
                .iter()
                .map(|&(name, data, _)| experiment(name, data))
                .collect(),
        },
        contestants: CONTESTANTS.iter().map(described).collect(),
        data: experiments
            .iter()
            .zip(1..)
            .map(|(e, n)| facts(e.0, e.1, n))
            .collect(),
        outcomes,
    }
}

/// Renames all contestants.
pub fn rename(run: &mut Run, new: impl Fn(&str) -> String) {
    run.plan
        .contestants
        .iter_mut()
        .for_each(|name| *name = new(name));
    run.contestants
        .iter_mut()
        .for_each(|c| c.name = new(&c.name));
    run.outcomes
        .iter_mut()
        .for_each(|o| o.contestant = new(&o.contestant));
}

/// Makes measurements faster by a factor, or slower.
pub fn scale(run: &mut Run, factor: f64, which: impl Fn(&Outcome, &Measured) -> bool) {
    for outcome in &mut run.outcomes {
        let whole = outcome.clone();
        for measured in outcome.load.iter_mut().chain(&mut outcome.phases) {
            if which(&whole, measured) {
                measured.seconds /= factor;
            }
        }
    }
}

fn machine() -> Machine {
    Machine {
        cpu: "AMD EPYC 9B45".into(),
        cores: 2,
        memory_bytes: 16 << 30,
        files: "/dev/shm on tmpfs, /tmp on ext4".into(),
        system: "Linux 6.18.44".into(),
        build: "rustc 1.95.0, indelible 0.1.0".into(),
        kernel: "avx512".into(),
    }
}

fn described(c: &(&str, &str, f64, f64, f64, f64)) -> Described {
    Described {
        name: c.0.into(),
        about: format!("{} <with> \"settings\" & {} B of file per record", c.0, c.4),
        survives: c.1.into(),
        is_ours: c.0.starts_with("indelible"),
    }
}

fn facts(experiment: &str, source: &str, hard: u64) -> DataFacts {
    DataFacts {
        experiment: experiment.into(),
        source: source.into(),
        keys: 24_000_000,
        segments_32: 31_207 * hard,
        segments_4096: 41 * hard,
    }
}

fn experiment(name: &str, data: &str) -> Experiment {
    let phase = |&(name, get, insert, threads): &(&str, f64, f64, &[u32])| Phase {
        name: name.into(),
        mix: Mix {
            get: get.min(1.0),
            insert: insert.min(1.0),
            ..Mix::default()
        },
        distribution: Distribution::Uniform,
        arrival: Arrival::Random,
        missing: 0.0,
        operations: 2_000_000,
        seconds: Some(10.0),
        threads: threads.to_vec(),
        scan_size: 100,
        scan_varies: false,
        batch_size: 64,
        window_hits: 24,
        neighbours: 10,
        latency_sampling: 0.1,
    };
    Experiment {
        name: name.into(),
        data: data.into(),
        records: 20_000_000,
        load: Load::Random,
        contestants: Vec::new(),
        phases: PHASES.iter().map(phase).collect(),
        recovery: 3,
        recovery_threads: 1,
    }
}

type Made = (&'static str, &'static str, f64, f64, f64, f64);

fn outcome(
    rng: &mut SmallRng,
    sigma: f64,
    experiment: &str,
    made: &Made,
    round: u32,
    speed: f64,
) -> Outcome {
    let &(name, survives, get, insert, file, dram) = made;
    let base = Outcome {
        experiment: experiment.into(),
        contestant: name.into(),
        round,
        probe: Probe {
            independent_ns: 7.9,
            dependent_ns: 96.0,
        },
        ..Outcome::default()
    };
    if name == FAILING && experiment == "uniform" {
        let error = "killed by signal 11 while loading: <memory> access out of bounds";
        return Outcome {
            error: Some(error.into()),
            ..base
        };
    }
    let load = get * speed * if insert < 0.01 { 0.3 } else { insert * 1.2 };
    let ours = name.starts_with("indelible");
    let mut phases = Vec::new();
    for (phase, gets, inserts, threads) in PHASES {
        let rate = if gets * inserts > 0.0 {
            2.0 / (1.0 / gets + 1.0 / (inserts * insert))
        } else {
            gets + inserts * insert
        };
        let locked = name == "btreemap+rwlock" && inserts > 0.0;
        for &n in threads {
            let scaling = if locked {
                f64::from(n).powf(-0.4)
            } else {
                f64::from(n).powf(0.9)
            };
            let costs = ours && inserts > 0.0;
            phases.push(measured(
                rng,
                sigma,
                phase,
                n,
                get * speed * rate * scaling,
                costs,
            ));
        }
    }
    let records = 20_000_000;
    let mut loaded = measured(rng, sigma, "load", 1, load, ours);
    if name == LEARNED {
        loaded.statistics = Some(statistics(1));
        let mut inserts = phases.iter_mut().filter(|phase| phase.phase == "insert");
        if let Some(insert) = inserts.next() {
            insert.statistics = Some(statistics(3));
        }
    }
    Outcome {
        load: Some(loaded),
        phases,
        space: Some(Space {
            records,
            file_bytes: (file * 2e7) as u64,
            dram_bytes: (dram * 2e7) as u64,
            peak_bytes: ((file + dram) * 2.2e7) as u64,
        }),
        recovery: (survives != "nothing").then(|| recovery(rng, ours, get)),
        ..base
    }
}

fn measured(
    rng: &mut SmallRng,
    sigma: f64,
    phase: &str,
    threads: u32,
    rate: f64,
    costs: bool,
) -> Measured {
    let noise = Normal::new(0.0, sigma).unwrap().sample(rng);
    let rate = rate * f64::exp(noise) * 1e6;
    let operations = (rate * 10.0).min(2e6) as u64;
    let seconds = operations as f64 / rate;
    let windows = 40;
    let mut timeline = Vec::new();
    let mut weights: Vec<f64> = (0..windows).map(|_| rng.random_range(0.9..1.05)).collect();
    if rate < 1e6 {
        weights[17] = 0.15;
    }
    let total: f64 = weights.iter().sum();
    let mut done = 0.0;
    for (at, weight) in weights.iter().enumerate() {
        done += weight / total * operations as f64;
        timeline.push((
            seconds * f64::from(at as u32 + 1) / f64::from(windows),
            done as u64,
        ));
    }
    let mean = 1e9 / rate * f64::from(threads);
    let tail = [0.6, 0.95, 1.1, 1.3, 1.6, 2.6, 3.5, 9.0, 14.0, 55.0];
    Measured {
        phase: phase.into(),
        threads,
        operations,
        seconds,
        hits: operations,
        timeline,
        latency: (phase != "load").then(|| Latency {
            samples: operations / 10,
            clock_ns: 24,
            quantiles: tail.iter().map(|t| (t * mean) as u64 + 24).collect(),
            max_ns: (mean * 900.0) as u64,
            mean_ns: mean + 24.0,
        }),
        cost: costs.then(|| Cost {
            lines_flushed: if phase == "load" { 1.61 } else { 1.6 },
            fences: 1.07,
            lines_streamed: 0.12,
            blocks_written: 1.33,
            bytes_allocated: 22.4,
        }),
        statistics: None,
    }
}

/// After a phase, with `times` as many structure changes as after the load.
fn statistics(times: u64) -> Statistics {
    let fact = |name: &str, unit: &str, value| Fact {
        name: name.into(),
        unit: unit.into(),
        value,
        since_open: false,
        meaning: format!(
            "what {name} means, <in words> that are more than one line of a terminal has room for"
        ),
    };
    let since = |name: &str, unit: &str, value| Fact {
        since_open: true,
        ..fact(name, unit, Number::Whole(value))
    };
    Statistics {
        kind: "learned".into(),
        records: 20_000_000,
        file_bytes: 420 << 20,
        dram_bytes: 12 << 20,
        facts: vec![
            fact("fill", "share", Number::Real(0.65)),
            fact("nodes", "count", Number::Whole(2_731)),
            fact("average-depth", "count", Number::Real(1.64)),
            fact("median-node", "bytes", Number::Whole(136 << 10)),
            since("rebuilds", "count", 1_000 * times),
            since("rebuild-ns", "ns", 40_000_000 * times),
            since("splits", "count", 100 * times),
            since("merges", "count", times / 2),
            since("merge-ns", "ns", 0),
        ],
    }
}

fn recovery(rng: &mut SmallRng, ours: bool, get: f64) -> Recovery {
    let jitter: f64 = rng.random_range(0.95..1.05);
    let open_ms = if ours { 0.28 } else { 190.0 / get } * jitter;
    let warm = |at: u32| {
        let ms = open_ms * 1.1 + f64::from(at * at) * 0.9;
        (
            ms,
            (get * 1e3 * (ms - open_ms - 30.0 * (1.0 - f64::exp(-ms / 40.0))).max(0.01)) as u64,
        )
    };
    Recovery {
        records: 20_000_000,
        open_ms,
        first_get_ms: open_ms * 1.1,
        warm_up: (0..24).map(warm).collect(),
        lost: 0,
    }
}
