//! Instructions, branches and simulated cache misses per operation, counted by valgrind's callgrind and compared with the table in
//! `instructions.txt`. Unlike rates, the counts do not depend on what else runs on the machine, and hardly on the machine.
//!
//! The test runs itself under callgrind, once for each kernel that valgrind can execute. A change that makes an operation longer or
//! shorter on purpose writes the table anew:
//!
//! ```text
//! INDELIBLE_PIN=1 cargo test --profile optimized -p indelible --test instructions
//! ```
//!
//! With `-- --nocapture` the test prints what it has counted. It does so in other profiles too, which the table says nothing about.

#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "shared/costs.rs"]
mod costs;

use costs::{mix, new_map};
use indelible::pmem::count;
use indelible::{Kind, Map};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Records of each map, with keys that are spread evenly at random.
const RECORDS: u64 = 200_000;
/// The share of each node that the bulk load fills.
const FILL: f64 = 0.7;
/// Keys that are looked up, inserted or removed.
const KEYS: u64 = 12_500;
/// Ranges that are read, and records of each.
const RANGES: u64 = 250;
const RECORDS_OF_A_RANGE: usize = 100;
/// Keys of one call of `get_batch`.
const BATCH: usize = 500;
/// One in so many operations comes before the counting, so that caches are warm and what is allocated once is there.
const WARM_UP: usize = 5;

/// Kernels whose instructions valgrind does not know.
const UNKNOWN_TO_VALGRIND: &[&str] = &["avx512"];
/// The simulated caches, whatever the machine has. The last one is small, so that most of the map is not in it.
const CACHES: [&str; 3] = ["--I1=32768,8,64", "--D1=49152,12,64", "--LL=1048576,16,64"];

/// What is counted, and the names of callgrind's counters that make it up.
const COLUMNS: [(&str, &[&str]); 4] = [
    ("instructions", &["Ir"]),
    ("branches", &["Bc", "Bi"]),
    ("L1-misses", &["D1mr", "D1mw"]),
    ("LL-misses", &["DLmr", "DLmw"]),
];
/// By how much counts may differ from the table, as a share of the pinned count.
const TOLERANCE: f64 = 0.02;
/// By how much misses may differ on top, per operation: where the system maps memory decides which lines share a place in a cache.
const TOLERANCE_OF_MISSES: f64 = 0.1;
/// [`TOLERANCE`] for a test that another compiler has built than the one that the table names: compilers inline differently.
const TOLERANCE_OF_OTHER_COMPILERS: f64 = 0.25;

/// The first words of a line in which the child tells what one of callgrind's files is about.
const COUNTED: &str = "COUNTED";
/// The heading of the line that names the compiler.
const COMPILER: &str = "# compiler: ";

/// Words that name a row: kind, kernel and operation.
const NAMES: usize = 3;
/// By kind, kernel and operation; the counts of one operation, as in [`COLUMNS`].
type Table = BTreeMap<[String; NAMES], [f64; COLUMNS.len()]>;

#[test]
fn operations_take_as_many_instructions_as_the_table_says() {
    if count::enabled() || cfg!(debug_assertions) {
        return println!("SKIPPED: not an optimized build without the feature `count`");
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return println!("SKIPPED: valgrind is not installed");
    }
    let counted = count_all_kernels();
    let compiler = compiler();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.txt");
    if !is_profile_optimized() {
        println!("{}", print(&counted, &compiler));
        return println!("SKIPPED: the table is about the profile `optimized`");
    }
    if std::env::var_os("INDELIBLE_PIN").is_some() {
        return std::fs::write(path, print(&counted, &compiler)).unwrap();
    }
    let (pinned, pinned_compiler) = parse(&std::fs::read_to_string(path).unwrap());
    let (tolerance, about) = if compiler == pinned_compiler {
        (TOLERANCE, "the same compiler".to_owned())
    } else {
        let about = format!("built by {compiler}, the table by {pinned_compiler}");
        (TOLERANCE_OF_OTHER_COMPILERS, about)
    };
    let deviations = compare(&counted, &pinned, tolerance);
    assert!(
        deviations.is_empty(),
        "{about}: counts differ by more than {} %:\n{}\nIf that is meant: \
         INDELIBLE_PIN=1 cargo test --profile optimized -p indelible --test instructions",
        tolerance * 100.0,
        deviations.join("\n")
    );
}

/// Counts the operations of all kinds with each kernel that this machine and valgrind have.
fn count_all_kernels() -> Table {
    let mut kernels = indelible::kernels();
    kernels.retain(|kernel| !UNKNOWN_TO_VALGRIND.contains(kernel));
    std::thread::scope(|scope| {
        let children: Vec<_> = kernels
            .into_iter()
            .map(|kernel| scope.spawn(move || count_under_callgrind(kernel)))
            .collect();
        let tables = children.into_iter().map(|child| child.join().unwrap());
        tables.flatten().collect()
    })
}

/// Counts the operations of all kinds with one kernel, in a child.
fn count_under_callgrind(kernel: &str) -> Table {
    let mut table = Table::new();
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().join("counts");
    let program = std::env::current_exe().unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("valgrind")
        .args(["--tool=callgrind", "--cache-sim=yes", "--branch-sim=yes"])
        // Only what happens in `counted` counts, and goes to a file whenever `counted` returns: `counts.1`, `counts.2`, ...
        .args(["--collect-atstart=no", "--toggle-collect=*::counted"])
        .arg("--dump-after=*::counted")
        .args(CACHES)
        .arg(format!("--callgrind-out-file={}", files.display()))
        .arg(program)
        .args(["all_operations", "--exact", "--ignored", "--nocapture"])
        .arg("--test-threads=1")
        .env("INDELIBLE_KERNEL", kernel)
        .output()
        .unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{kernel}: {stdout}{stderr}");
    let lines = stdout.lines().filter_map(|line| line.split_once(COUNTED));
    let mut file = 0;
    for (_, about) in lines {
        let [kind, operation, operations] =
            std::array::from_fn(|at| about.split_whitespace().nth(at).unwrap());
        file += 1;
        let counts = read_counts(&files.with_extension(file.to_string()));
        let operations: f64 = operations.parse().unwrap();
        let name = [kind, kernel, operation].map(str::to_owned);
        table.insert(name, counts.map(|count| count / operations));
    }
    assert!(file > 0, "{kernel}: {stdout}{stderr}");
    table
}

/// The sums of one of callgrind's files.
fn read_counts(path: &PathBuf) -> [f64; COLUMNS.len()] {
    let text = std::fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("callgrind has not written {}: {error}", path.display()));
    let line = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
    };
    let counts: BTreeMap<&str, f64> = line("events:")
        .split_whitespace()
        .zip(line("totals:").split_whitespace())
        .map(|(event, count)| (event, count.parse().unwrap()))
        .collect();
    COLUMNS.map(|(_, events)| events.iter().map(|event| counts[event]).sum())
}

/// What callgrind counts. Called with a closure behind a pointer, so that there is one such function.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
}

#[test]
#[ignore = "runs under callgrind, as a child of the other test"]
fn all_operations() {
    assert_eq!(
        Some(indelible::kernel().unwrap()),
        std::env::var("INDELIBLE_KERNEL").ok().as_deref(),
    );
    let mut keys: Vec<u64> = (0..RECORDS).map(mix).collect();
    keys.sort_unstable();
    let kinds = Kind::all().iter().filter(|kind| !kind.is_example());
    for &kind in kinds {
        let map = new_map(kind);
        let records = keys.iter().map(|&key| (key, key));
        map.bulk_load(records, FILL).unwrap();
        map.warm_up().unwrap();
        lookups(kind, &map);
        ranges(kind, &map, &keys);
        changes(kind, &map);
    }
}

/// Has `work` done with all `items`, and counted but for the first ones. Each item stands for so many operations.
fn count_operations<T>(
    about: (Kind, &str),
    items: &[T],
    operations: usize,
    mut work: impl FnMut(&[T]),
) {
    let (first, rest) = items.split_at(items.len() / WARM_UP);
    work(first);
    counted(&mut || work(rest));
    // Behind the line break, since the test harness has begun a line of its own.
    println!(
        "\n{COUNTED} {} {} {}",
        about.0,
        about.1,
        rest.len() * operations
    );
}

fn lookups(kind: Kind, map: &Map<u64, u64>) {
    let keys: Vec<u64> = (0..KEYS).map(|i| mix(mix(i) % RECORDS)).collect();
    count_operations((kind, "get"), &keys, 1, |keys| {
        for key in keys {
            assert_eq!(black_box(map.get(*key).unwrap()), Some(*key));
        }
    });
    let batches: Vec<&[u64]> = keys.chunks_exact(BATCH).collect();
    count_operations((kind, "get_batch"), &batches, BATCH, |batches| {
        for keys in batches {
            assert_eq!(black_box(map.get_batch(keys).unwrap()).len(), BATCH);
        }
    });
}

fn ranges(kind: Kind, map: &Map<u64, u64>, keys: &[u64]) {
    // The first and the last keys of ranges, other ones for each operation: what was read before is in the caches.
    let ranges = |operation: u64| -> Vec<(u64, u64)> {
        let drawn = (0..RANGES).map(|i| mix(operation * RANGES + i) as usize);
        drawn
            .map(|at| at % (keys.len() - RECORDS_OF_A_RANGE))
            .map(|at| (keys[at], keys[at + RECORDS_OF_A_RANGE - 1]))
            .collect()
    };
    let mut page = Vec::with_capacity(RECORDS_OF_A_RANGE);
    count_operations((kind, "read_100"), &ranges(0), 1, |ranges| {
        for (first, last) in ranges {
            page.clear();
            let mut range = map.range(first..).unwrap();
            range.read(RECORDS_OF_A_RANGE, &mut page).unwrap();
            assert_eq!(black_box(&page).last(), Some(&(*last, *last)));
        }
    });
    count_operations((kind, "iterate_100"), &ranges(1), 1, |ranges| {
        for (first, last) in ranges {
            let mut end = 0;
            for record in map.range(first..).unwrap().take(RECORDS_OF_A_RANGE) {
                end = black_box(record.unwrap().0);
            }
            assert_eq!(end, *last);
        }
    });
    count_operations((kind, "for_each_100"), &ranges(2), 1, |ranges| {
        for (first, last) in ranges {
            let mut end = 0;
            let range = map.range(first..=last).unwrap();
            range.for_each(|record| end = black_box(record.unwrap().0));
            assert_eq!(end, *last);
        }
    });
}

fn changes(kind: Kind, map: &Map<u64, u64>) {
    let present: Vec<u64> = (0..KEYS).map(mix).collect();
    let absent: Vec<u64> = (0..KEYS).map(|i| mix(RECORDS + i)).collect();
    let insert = |keys: &[u64], was_there| {
        for key in keys {
            assert_eq!(black_box(map.insert(*key, 1).unwrap()).is_some(), was_there);
        }
    };
    count_operations((kind, "update"), &present, 1, |keys| insert(keys, true));
    count_operations((kind, "insert"), &absent, 1, |keys| insert(keys, false));
    count_operations((kind, "remove"), &present, 1, |keys| {
        for key in keys {
            assert_eq!(black_box(map.remove(*key).unwrap()), Some(1));
        }
    });
}

/// The deviations that are too large, in words.
fn compare(counted: &Table, pinned: &Table, tolerance: f64) -> Vec<String> {
    let mut deviations = Vec::new();
    for (name, counts) in counted {
        let name_of_row = name.join(" ");
        let Some(expected) = pinned.get(name) else {
            deviations.push(format!("{name_of_row}: is not in the table"));
            continue;
        };
        for ((column, _), (&count, &expected)) in COLUMNS.iter().zip(counts.iter().zip(expected)) {
            let change = 100.0 * (count / expected - 1.0);
            let line =
                format!("{name_of_row}: {count:.2} {column}, {expected:.2} pinned, {change:+.1} %");
            println!("{line}");
            let more = if column.ends_with("misses") {
                TOLERANCE_OF_MISSES
            } else {
                0.0
            };
            if (count - expected).abs() > expected * tolerance + more {
                deviations.push(line);
            }
        }
    }
    let kernels: Vec<&String> = counted.keys().map(|[_, kernel, _]| kernel).collect();
    for name in pinned.keys().filter(|name| !counted.contains_key(*name)) {
        if kernels.contains(&&name[1]) {
            deviations.push(format!("{}: is in the table alone", name.join(" ")));
        } else {
            println!(
                "SKIPPED: {}: this machine has not that kernel",
                name.join(" ")
            );
        }
    }
    deviations
}

/// The table as it is checked in.
fn print(table: &Table, compiler: &str) -> String {
    let columns: Vec<String> = COLUMNS
        .iter()
        .map(|(name, _)| format!("{name:>13}"))
        .collect();
    let mut text = format!(
        "# What one operation takes in a map of 200,000 records, counted by callgrind: tests/instructions.rs.\n\
         # INDELIBLE_PIN=1 cargo test --profile optimized -p indelible --test instructions\n\
         {COMPILER}{compiler}\n\
         # {:<6} {:<9} {:<13}{}\n",
        "kind",
        "kernel",
        "operation",
        columns.concat()
    );
    for ([kind, kernel, operation], counts) in table {
        let counts: Vec<String> = counts
            .iter()
            .map(|count| format!("{count:>13.2}"))
            .collect();
        text += &format!("{kind:<8} {kernel:<9} {operation:<13}{}\n", counts.concat());
    }
    text
}

/// The table, and the compiler that it is about.
fn parse(text: &str) -> (Table, String) {
    let compiler = text.lines().find_map(|line| line.strip_prefix(COMPILER));
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let table = rows.map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let name = std::array::from_fn(|at| words[at].to_owned());
        let counts = std::array::from_fn(|at| words[NAMES + at].parse().unwrap());
        (name, counts)
    });
    (table.collect(), compiler.unwrap_or_default().to_owned())
}

/// The compiler on the path, which has built the test: cargo runs both.
fn compiler() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Whether cargo has put this program where those of the profile `ci` are: `target/ci/deps`.
fn is_profile_optimized() -> bool {
    let program = std::env::current_exe().unwrap();
    program
        .parent()
        .and_then(Path::parent)
        .is_some_and(|directory| directory.ends_with("optimized"))
}
