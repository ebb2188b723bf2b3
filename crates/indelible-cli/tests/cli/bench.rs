//! The bench as its users run it, on tiny maps: that it works, not how fast anything is.

use indelible_bench::outcome::Run;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

fn bench(directory: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_indelible"))
        .arg("bench")
        .args(words)
        .current_dir(directory)
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8(all).unwrap()
}

/// Runs a small workload and reads what it wrote.
fn run(directory: &Path, name: &str, words: &[&str]) -> (String, Run) {
    let pools = directory.to_str().unwrap();
    let rounds = if words.contains(&"--rounds") {
        &[][..]
    } else {
        &["--rounds", "2"][..]
    };
    let all = [
        words,
        rounds,
        &["-n", "3000", "-p", "2000", "-o", name, "--pool_path", pools],
    ]
    .concat();
    let output = bench(directory, &all);
    assert!(output.status.success(), "{}", text(&output));
    let run = std::fs::read(directory.join(name)).unwrap();
    (text(&output), serde_json::from_slice(&run).unwrap())
}

#[test]
fn a_run_kills_reopens_prints_and_draws() {
    let directory = tempfile::tempdir().unwrap();
    let words = [
        "--contestants",
        "indelible,btreemap,indelible-pmem@leaf=512,indelible-apex",
        "--recovery",
        "-t",
        "1,3",
        "--ycsb",
        "A,D,E,F",
    ];
    let (printed, run) = run(directory.path(), "a.json", &words);
    assert!(
        printed.lines().all(|line| line.chars().count() <= 100),
        "{printed}"
    );
    assert_eq!(run.outcomes.len(), 8);
    for outcome in &run.outcomes {
        assert_eq!(outcome.error, None);
        assert_eq!(
            outcome.phases.len(),
            8,
            "four workloads with two numbers of threads"
        );
        for phase in &outcome.phases {
            // Batches of 16 steps may end a phase, and a mix is drawn.
            assert_eq!(phase.operations, 2000, "{}", phase.phase);
            assert!(phase.hits > 0 && phase.latency.is_some() && phase.seconds > 0.0);
        }
        let ours = outcome.contestant.starts_with("indelible");
        assert_eq!(outcome.phases[0].cost.is_some(), ours);
        let load = outcome.load.as_ref().unwrap();
        assert_eq!(load.statistics.is_some(), ours);
        assert_eq!(
            outcome.recovery.as_ref().map(|recovery| recovery.lost),
            ours.then_some(0)
        );
    }
    for text in ["Structure\n", "Structure changes\n"] {
        assert!(printed.contains(text), "{printed}");
    }
    let page = std::fs::read_to_string(directory.path().join("a.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("indelible-pmem@leaf=512"));
    assert!(
        !page.contains("http://") || !page.contains("src=\"http"),
        "the page stands alone"
    );
    let left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(
        left.len(),
        2,
        "nothing is left but the run and its page: {left:?}"
    );
    let output = bench(
        directory.path(),
        &["report", "a.json", "--svg", "main", "-o", "a.svg"],
    );
    assert!(output.status.success(), "{}", text(&output));
    let output = bench(directory.path(), &["report", "a.json", "--markdown"]);
    assert!(text(&output).contains("| **indelible-pmem@leaf=512** | power cut (on PMem) |"));
}

#[test]
fn apex_is_measured_laid_out_otherwise_and_warming_up_with_several_threads() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["--preset", "paper-apex", "-t", "2", "--rounds", "1"];
    let (printed, run) = run(directory.path(), "a.json", &words);
    for outcome in &run.outcomes {
        let who = (&outcome.experiment, &outcome.contestant);
        assert_eq!(outcome.error, None, "{who:?}");
        let is_killed = ["table 3", "fig. 13"]
            .iter()
            .any(|of| who.0.starts_with(of));
        let recovery = outcome.recovery.as_ref();
        assert_eq!(recovery.map(|r| r.lost), is_killed.then_some(0), "{who:?}");
        let statistics = outcome.load.as_ref().unwrap().statistics.as_ref().unwrap();
        let is_small = who.1.ends_with("@data=4K");
        let largest = statistics.fact("largest-node");
        let is_within = largest.is_some_and(|fact| fact.value.as_f64() <= 4096.0);
        assert!(!is_small || is_within, "{who:?}");
    }
    let changed = |outcome: &indelible_bench::outcome::Outcome| {
        let of_phases = outcome
            .phases
            .iter()
            .filter_map(|phase| phase.statistics.as_ref());
        let of = |s: &indelible_bench::outcome::Statistics, name| {
            s.fact(name).map_or(0.0, |fact| fact.value.as_f64())
        };
        of_phases
            .map(|s| of(s, "expansions") * of(s, "expansion-ns"))
            .fold(0.0, f64::max)
    };
    assert!(
        run.outcomes
            .iter()
            .map(changed)
            .any(|product| product > 0.0)
    );
    assert!(printed.contains("fig. 13, 2 threads") && printed.contains("indelible-apex@stash=90"));
}

#[test]
fn adversaries_are_loaded_in_every_order_and_summed_up() {
    let directory = tempfile::tempdir().unwrap();
    let words = ["--preset", "adversarial", "--rounds", "1"];
    let (printed, run) = run(directory.path(), "a.json", &words);
    for outcome in &run.outcomes {
        let who = (&outcome.experiment, &outcome.contestant);
        assert_eq!(outcome.error, None, "{who:?}");
        let load = outcome.load.as_ref().unwrap();
        let statistics = load.statistics.as_ref().unwrap();
        assert_eq!(statistics.records, 3000, "{who:?}");
    }
    let (_, across) = printed.split_once("Across the experiments").unwrap();
    for experiment in &run.plan.experiments {
        assert!(across.contains(&experiment.name), "{across}");
    }
    assert!(printed.lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn the_same_seed_counts_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let counts = |name: &str| {
        let words = [
            "--contestants",
            "indelible",
            "-i",
            "0.5",
            "-r",
            "0.5",
            "--data",
            "lon-lat",
        ];
        let (_, run) = run(directory.path(), name, &words);
        run.outcomes
            .iter()
            .map(|outcome| outcome.phases[0].cost)
            .collect::<Vec<_>>()
    };
    let (a, b) = (counts("a.json"), counts("b.json"));
    assert_eq!(a, b);
    assert_eq!(a[0], a[1], "both rounds do the same");
    let output = bench(directory.path(), &["compare", "a.json", "b.json"]);
    assert!(output.status.success(), "{}", text(&output));
    // With a run in which nothing was measured there is nothing to compare.
    let a = std::fs::read(directory.path().join("a.json")).unwrap();
    let mut nothing: Run = serde_json::from_slice(&a).unwrap();
    nothing.outcomes.clear();
    let nothing = serde_json::to_vec(&nothing).unwrap();
    std::fs::write(directory.path().join("c.json"), nothing).unwrap();
    let words = ["compare", "a.json", "c.json", "--fail-on-slower"];
    let output = bench(directory.path(), &words);
    assert!(
        !output.status.success() && text(&output).contains("stopped after 0 of 2"),
        "{}",
        text(&output)
    );
}

#[test]
fn strings_leave_no_files_whatever_ends_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let left = || {
        let entries = std::fs::read_dir(path).unwrap().flatten();
        entries.map(|entry| entry.file_name()).collect::<Vec<_>>()
    };
    let words = "strings --pool_path . --contestants slotted -n 1000 -p 1000";
    let words: Vec<&str> = words.split(' ').collect();
    let output = bench(path, &[&words[..], &["--data", "uuids,nowhere"]].concat());
    assert!(!output.status.success() && text(&output).contains("nowhere"));
    assert!(left().is_empty(), "{:?}", left());
    let mut child = Command::new(env!("CARGO_BIN_EXE_indelible"))
        .arg("bench")
        .args([&words[..], &["--data", "uuids", "--rounds", "1000000"]].concat())
        .current_dir(path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    while !path.join(format!("indelible-strings-{pid}/files")).exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let sent = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
    assert!(sent.success());
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(15)
    );
    // Files that were made while it was removed may be left: they go with the next run.
    let output = bench(path, &[&words[..], &["--data", "uuids"]].concat());
    assert!(output.status.success() && left().is_empty(), "{:?}", left());
}

/// Starts a run of many rounds, sends it a signal when it has told of `lines` measurements, and returns what it printed.
fn stopped_by(signal: &str, directory: &Path, lines: usize) -> (ExitStatus, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_indelible"))
        .args([
            "bench",
            "--contestants",
            "indelible,btreemap",
            "-o",
            "a.json",
        ])
        .args([
            "-n",
            "20000",
            "-p",
            "20000",
            "--rounds",
            "1000",
            "--data",
            "dense,uniform",
        ])
        .args(["--pool_path", "."])
        .current_dir(directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut from_child = BufReader::new(child.stderr.take().unwrap());
    let (mut told, mut seen) = (String::new(), 0);
    while seen < lines || told.is_empty() {
        let mut line = String::new();
        assert!(from_child.read_line(&mut line).unwrap() > 0, "{told}");
        seen += usize::from(line.contains(&format!("[{}/4000] round", seen + 1)));
        told += &line;
    }
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(sent.success());
    from_child.read_to_string(&mut told).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    (output.status, printed, told)
}

fn part_of(directory: &Path) -> Run {
    let part = std::fs::read(directory.join("a.json.part")).unwrap();
    serde_json::from_slice(&part).unwrap()
}

#[test]
fn a_run_that_is_stopped_prints_and_leaves_what_it_measured() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("a.json"), "an older run").unwrap();
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let (status, printed, told) = stopped_by(signal, directory, 7);
        assert_eq!(status.code(), Some(code), "{told}");
        let run = part_of(directory);
        assert!(
            run.outcomes.len() >= 7,
            "the last one, of half an experiment, too"
        );
        assert!(run.outcomes.iter().all(|outcome| outcome.error.is_none()));
        let stopped = format!("stopped after {} of 4000 measurements", run.outcomes.len());
        assert!(told.contains(&stopped), "{told}");
        assert!(
            printed.contains("Throughput") && printed.contains("of 4000 measurements"),
            "{printed}"
        );
        assert!(
            told.contains("`indelible bench report a.json.part`"),
            "{told}"
        );
        let told_of = told.lines().find(|line| line.contains("[7/4000]")).unwrap();
        assert!(
            told_of.contains("M/s") && told_of.contains("load "),
            "{told_of}"
        );
        assert!(
            told.lines().all(|line| line.chars().count() <= 100),
            "{told}"
        );
    }
    let older = std::fs::read_to_string(directory.join("a.json")).unwrap();
    assert_eq!(older, "an older run");
    let mut left: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["a.json", "a.json.part"]);
    let output = bench(directory, &["report", "a.json.part", "--markdown"]);
    assert!(
        text(&output).contains("| **indelible** |"),
        "{}",
        text(&output)
    );
    let output = bench(directory, &["report", "a.json.part", "-o", "a.html"]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_run_that_is_killed_leaves_what_it_measured() {
    let directory = tempfile::tempdir().unwrap();
    let (status, printed, told) = stopped_by("-KILL", directory.path(), 5);
    assert_eq!((status.code(), printed.as_str()), (None, ""), "{told}");
    let run = part_of(directory.path());
    assert!(
        run.outcomes.len() >= 4,
        "two experiments of two contestants"
    );
    let output = bench(directory.path(), &["report", "a.json.part"]);
    assert!(output.status.success(), "{}", text(&output));
    // Before the first experiment is through there is nothing to lose, either.
    let (.., told) = stopped_by("-TERM", directory.path(), 0);
    assert!(told.contains("stopped after 0 of"), "{told}");
    assert_eq!(part_of(directory.path()).outcomes.len(), 0);
    let output = bench(directory.path(), &["report", "a.json.part", "--markdown"]);
    assert!(!text(&output).contains("panicked"), "{}", text(&output));
}

#[test]
fn kernels_are_measured_side_by_side_or_chosen_by_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let kernels = indelible::kernels();
    let list = kernels.join(",");
    let words = ["--contestants", "btreemap,indelible", "--kernel", &list];
    let (_, run) = run(directory.path(), "a.json", &words);
    let mut expected = vec!["btreemap".to_owned()];
    expected.extend(
        kernels
            .iter()
            .map(|kernel| format!("indelible@kernel={kernel}")),
    );
    assert_eq!(run.plan.contestants, expected);
    assert!(run.outcomes.iter().all(|outcome| outcome.error.is_none()));
    assert_eq!(run.machine.kernel, kernels[0]);
    let words = [
        "--contestants",
        "indelible",
        "-n",
        "100",
        "-p",
        "100",
        "--rounds",
        "1",
    ];
    let forced = |kernel: &str| {
        Command::new(env!("CARGO_BIN_EXE_indelible"))
            .arg("bench")
            .args(words)
            .current_dir(directory.path())
            .env("INDELIBLE_KERNEL", kernel)
            .output()
            .unwrap()
    };
    let printed = text(&forced("portable"));
    assert!(printed.contains("kernel portable"), "{printed}");
    let output = forced("avx1024");
    assert!(!output.status.success() && text(&output).contains("INDELIBLE_KERNEL=avx1024"));
}

#[test]
fn what_fails_is_said_and_the_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let pools = directory.path().to_str().unwrap();
    let words = [
        "--contestants",
        "indelible@leaf=100,btreemap",
        "-n",
        "1000",
        "-p",
        "1000",
        "--rounds",
        "1",
        "--pool_path",
        pools,
    ];
    let output = bench(directory.path(), &words);
    assert!(!output.status.success());
    let run: Run = serde_json::from_slice(
        &std::fs::read(directory.path().join("indelible-bench.json")).unwrap(),
    )
    .unwrap();
    assert!(
        run.outcomes[0]
            .error
            .as_ref()
            .is_some_and(|error| error.contains("leaf")),
        "{:?}",
        run.outcomes[0].error
    );
    assert_eq!(run.outcomes[1].error, None);
}

/// So many keys that an allocator would keep what the bench itself takes for them.
#[test]
fn what_the_bench_takes_is_not_counted_as_a_contestants() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--contestants nothing --rounds 1 -n 250000 -p 1000 --latency_sampling 0";
    let words: Vec<&str> = words.split(' ').collect();
    let output = bench(directory.path(), &words);
    assert!(output.status.success(), "{}", text(&output));
    let run = std::fs::read(directory.path().join("indelible-bench.json")).unwrap();
    let run: Run = serde_json::from_slice(&run).unwrap();
    let space = run.outcomes[0].space.unwrap();
    assert!(space.dram_bytes < 250_000, "{space:?}");
}

#[test]
fn nonsense_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    for (words, expected) in [
        (vec!["--contestants", "nobody"], "nobody"),
        (vec!["-r", "0.5"], "Sum of ratios should be 1.0 but is 0.5"),
        (vec!["--ycsb", "G"], "A to F"),
        (
            vec!["-s", "1", "--scan_size", "4294967295"],
            "at most 16777216",
        ),
        (vec!["--ycsb", "A", "-i", "0.5"], "cannot be used with"),
        (vec!["--shift", "--skew", "0.5"], "cannot be used with"),
        (vec!["--data", "sosd:nowhere"], "nowhere"),
        (
            vec!["--distribution", "selfsimilar", "--skew", "0.7"],
            "Skew factor",
        ),
        (vec!["-t", "0"], "at least one thread"),
        (vec!["-m", "time", "--seconds", "inf"], "--seconds"),
        (vec!["-m", "time", "--seconds", "1e30"], "--seconds"),
        (
            vec!["-n", "18446744073709551615", "-i", "1"],
            "the machine has",
        ),
        (
            vec!["-p", "18446744073709551615", "-i", "1"],
            "the machine has",
        ),
        (
            vec!["data", "uniform", "-n", "1000000000000000"],
            "the machine has",
        ),
        (
            vec!["--contestants", "indelible", "--kernel", "avx1024"],
            "avx1024",
        ),
        (vec!["--contestants", "btreemap@kernel=avx2"], "no options"),
        (vec!["--contestants", "btreemap,nothing,btreemap"], "twice"),
        (vec!["-d", "1", "-n", "10", "-p", "100"], "may be removed"),
        (vec!["report", "nowhere.json"], "nowhere.json"),
        (vec!["strings", "--contestants", "slotted,nobody"], "nobody"),
        (vec!["strings", "-p", "0"], "at least one operation"),
    ] {
        let output = bench(directory.path(), &words);
        assert!(!output.status.success(), "{words:?}");
        assert!(
            text(&output).contains(expected),
            "{words:?}: {}",
            text(&output)
        );
    }
    std::fs::create_dir(directory.path().join("d.json")).unwrap();
    let output = bench(directory.path(), &["-o", "d.json"]);
    assert!(
        text(&output).contains("d.json is a directory"),
        "{}",
        text(&output)
    );
    std::fs::write(directory.path().join("other.json"), "{}").unwrap();
    let output = bench(directory.path(), &["report", "other.json"]);
    assert!(
        text(&output).contains("not the file of a run"),
        "{}",
        text(&output)
    );
}

#[test]
fn names_of_files_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let directory = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"a\xff.json");
    let output = Command::new(env!("CARGO_BIN_EXE_indelible"))
        .args(["bench", "--contestants", "nothing", "--rounds", "1"])
        .args(["-n", "100", "-p", "100", "-o"])
        .arg(name)
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(directory.path().join(name).exists());
}

#[test]
fn the_hardness_of_keys_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let output = bench(
        directory.path(),
        &["data", "dense", "lon-lat", "-n", "20000"],
    );
    let printed = text(&output);
    let figures = |name: &str| -> Vec<u64> {
        let line = printed
            .lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap();
        line.split_whitespace()
            .skip(1)
            .map(|figure| figure.parse().unwrap())
            .collect()
    };
    assert_eq!(figures("dense"), [20_000, 1, 1]);
    assert!(figures("lon-lat")[1] > 20);
}
