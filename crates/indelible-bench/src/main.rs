//! Side by side: indelible's map and the volatile ordered maps that it is compared with, in one run.
//!
//! Every structure gets the same records in the same random order, then the same lookups, scans and inserts, with each
//! number of threads asked for. One structure is built at a time, so that 20 million records of each fit into memory; a
//! memory probe before each structure shows whether the machine changed meanwhile.

mod contestants;
mod recovery;
mod workload;

use clap::Parser;
use contestants::{Contestant, Medium};
use std::path::PathBuf;
use workload::{Figures, Workload};

/// Measure indelible and its peers side by side.
#[derive(Parser, Debug)]
struct Arguments {
    /// Records loaded first, in random order.
    #[arg(long, default_value_t = 20_000_000)]
    records: u64,
    /// Operations per measurement.
    #[arg(long, default_value_t = 5_000_000)]
    operations: u64,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<u64>,
    /// Measurements of lookups and scans, of which the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only structures whose names contain one of these.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Where our pool files go: a directory on tmpfs or on a disk.
    #[arg(long, default_value = "/dev/shm")]
    pool_directory: PathBuf,
    /// Bytes in our leaves.
    #[arg(long, default_value_t = 256)]
    leaf_bytes: u32,
    /// Measure the time to open after a crash instead, with a bulk load at this fill factor.
    #[arg(long, value_name = "FILL")]
    recovery: Option<f64>,
}

fn main() {
    let arguments = Arguments::parse();
    println!("{}", std::env::args().collect::<Vec<_>>().join(" "));
    println!("{}", machine());
    if let Some(fill) = arguments.recovery {
        if let Err(error) = recovery::measure(arguments.records, fill, &arguments.pool_directory) {
            eprintln!("{error}");
            std::process::exit(1);
        }
        return;
    }
    let workload = Workload {
        records: arguments.records,
        operations: arguments.operations,
        threads: arguments.threads.clone(),
        rounds: arguments.rounds,
    };
    let mut results: Vec<(String, bool, Figures)> = Vec::new();
    for (name, build) in contestants(&arguments) {
        if !arguments.only.is_empty()
            && !arguments
                .only
                .iter()
                .any(|wanted| name.contains(wanted.as_str()))
        {
            continue;
        }
        let (independent, dependent) = workload::probe_memory();
        eprintln!("{name} (memory: {independent:.1} ns independent, {dependent:.0} ns dependent)");
        let contestant = build();
        let figures = workload.measure(contestant.as_ref());
        if let Some(note) = contestant.note() {
            eprintln!("  {note}");
        }
        results.push((name.into(), contestant.is_ours(), figures));
    }
    print_table(&results);
}

type Build = Box<dyn Fn() -> Box<dyn Contestant>>;

fn contestants(arguments: &Arguments) -> Vec<(&'static str, Build)> {
    let ours = |medium| -> Build {
        let (directory, leaf_bytes) = (arguments.pool_directory.clone(), arguments.leaf_bytes);
        Box::new(move || Box::new(contestants::Ours::new(medium, &directory, leaf_bytes)))
    };
    vec![
        ("indelible dram", ours(Medium::Dram)),
        ("indelible process", ours(Medium::Process)),
        ("indelible pmem", ours(Medium::Pmem)),
        (
            "BTreeMap+RwLock",
            Box::new(|| Box::new(contestants::StdMap::default())),
        ),
        (
            "crossbeam-skiplist",
            Box::new(|| Box::new(contestants::Skip::default())),
        ),
        (
            "scc::TreeIndex",
            Box::new(|| Box::new(contestants::Scc::default())),
        ),
        (
            "congee",
            Box::new(|| Box::new(contestants::Congee::default())),
        ),
        (
            "ferntree",
            Box::new(|| Box::new(contestants::Fern::default())),
        ),
    ]
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown CPU", |model| {
            model.trim_start_matches([' ', '\t', ':'])
        });
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, Linux {}", kernel.trim())
}

/// A row per structure, and for each of ours its ratio to the best peer.
fn print_table(results: &[(String, bool, Figures)]) {
    let columns: Vec<String> = results.first().map_or(Vec::new(), |(_, _, figures)| {
        figures.iter().map(|(column, _)| column.clone()).collect()
    });
    print!("{:20}", "M operations/s");
    columns.iter().for_each(|column| print!("{column:>13}"));
    println!();
    let value = |figures: &Figures, column: &str| {
        figures
            .iter()
            .find(|(name, _)| name == column)
            .and_then(|(_, value)| *value)
    };
    for (name, _, figures) in results {
        print!("{name:20}");
        for column in &columns {
            match value(figures, column) {
                Some(rate) => print!("{rate:13.3}"),
                None => print!("{:>13}", "-"),
            }
        }
        println!();
    }
    for (name, _, figures) in results.iter().filter(|(_, ours, _)| *ours) {
        print!(
            "{:20}",
            format!("{} / best", name.trim_start_matches("indelible "))
        );
        for column in &columns {
            // A batch is compared with the best single lookups and inserts.
            let peer_column = column
                .replace("get_batch", "get")
                .replace("insert_batch", "insert");
            let best = results
                .iter()
                .filter(|(_, ours, _)| !ours)
                .filter_map(|(_, _, peer)| value(peer, &peer_column))
                .fold(0.0, f64::max);
            match value(figures, column) {
                Some(rate) if best > 0.0 => print!("{:>12.2}x", rate / best),
                _ => print!("{:>13}", "-"),
            }
        }
        println!();
    }
}
