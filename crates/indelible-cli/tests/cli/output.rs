//! Standard output that is closed or full, and what is said when something fails.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Characters of a cell that a message shows at most.
const SHOWN: usize = 40;

struct Cli {
    directory: tempfile::TempDir,
}

impl Cli {
    /// A pool `p` with 100,000 records in the map `m`.
    fn with_records() -> Self {
        let cli = Self::new();
        let rows: String = (0..100_000).map(|i| format!("{i}\n")).collect();
        cli.write("rows.csv", &rows);
        let (code, err) = cli.run("load p m rows.csv --no-header");
        assert_eq!(code, Some(0), "{err}");
        cli
    }

    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_indelible"));
        command
            .args(line.split_whitespace())
            .current_dir(self.directory.path());
        command
    }

    /// Exit code and standard error.
    fn run(&self, line: &str) -> (Option<i32>, String) {
        self.run_into(line, Stdio::null())
    }

    fn run_into(&self, line: &str, stdout: impl Into<Stdio>) -> (Option<i32>, String) {
        let output = self.command(line).stdout(stdout).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!err.contains("panicked"), "{line}: {err}");
        (output.status.code(), err)
    }

    /// Into a device that is always full.
    fn run_full(&self, line: &str) -> (Option<i32>, String) {
        let full = File::options().write(true).open("/dev/full").unwrap();
        self.run_into(line, full)
    }

    /// Into a pipe that nobody reads.
    fn run_closed(&self, line: &str) -> (Option<i32>, String) {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        self.run_into(line, writer)
    }

    fn value(&self, key: u64) -> String {
        let line = format!("get p m {key}");
        String::from_utf8(self.command(&line).output().unwrap().stdout).unwrap()
    }
}

/// Command lines that print and change nothing.
const PRINTING: [&str; 15] = [
    "get p m 1 2 3",
    "scan p m",
    "--json scan p m --limit 3",
    "list p",
    "stat p",
    "--json stat p",
    "stat p m",
    "check p",
    "--help",
    "help scan",
    "--version",
    "bench list",
    "bench data dense -n 1000",
    "crash --kind lbtree --histories 1 --ops 10",
    "demo --kills 1 --run-ms 10 --power-cuts 1",
];

#[test]
fn a_reader_that_has_gone_ends_a_command_quietly() {
    let cli = Cli::with_records();
    for line in PRINTING {
        let (code, err) = cli.run_closed(line);
        assert_eq!((code, err.as_str()), (Some(141), ""), "{line}");
    }
    // A reader that goes after the first of many lines, as `head -1` does.
    let mut scan = cli.command("scan p m");
    let mut scan = scan
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(scan.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    drop(out);
    let output = scan.wait_with_output().unwrap();
    assert_eq!((line.as_str(), output.status.code()), ("0\t0\n", Some(141)));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_full_output_is_an_error() {
    let cli = Cli::with_records();
    for line in PRINTING {
        let (code, err) = cli.run_full(line);
        let expected = "indelible: write to standard output: No space left on device";
        assert_eq!(code, Some(1), "{line}: {err}");
        assert!(err.starts_with(expected), "{line}: {err}");
        assert_eq!(err.lines().count(), 1, "{line}: {err}");
    }
}

#[test]
fn a_change_whose_output_is_lost_is_made_and_said() {
    let cli = Cli::with_records();
    let (code, err) = cli.run_full("put p m 5 55");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("the record was set all the same"), "{err}");
    assert_eq!(cli.value(5), "55\n");
    let (code, err) = cli.run_full("del p m 5 6");
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("the records were removed all the same"),
        "{err}"
    );
    assert_eq!((cli.value(5), cli.value(6)), (String::new(), String::new()));
    let (code, err) = cli.run_closed("put p m 7 77");
    assert_eq!((code, err.as_str()), (Some(141), ""));
    assert_eq!(cli.value(7), "77\n");
    // Nothing to print, nothing that could fail.
    assert_eq!(cli.run_full("put p m 1000000 1").0, Some(0));
    let (_, err) = cli.run_full("load p new rows.csv --no-header");
    assert!(
        err.contains("the records were loaded all the same"),
        "{err}"
    );
    // The pool was closed each time.
    assert_eq!(cli.run("check p").0, Some(0));
}

#[test]
fn a_standard_error_that_is_full_is_no_panic() {
    let cli = Cli::with_records();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for (line, expected) in [
        ("get p m 1000000", 1),
        ("get none m 1", 1),
        ("torture --kills 1", 0),
    ] {
        let mut command = cli.command(line);
        let status = command.stdout(Stdio::null()).stderr(full()).status();
        assert_eq!(status.unwrap().code(), Some(expected), "{line}");
    }
}

#[test]
fn a_cause_is_said_once() {
    let cli = Cli::new();
    for line in [
        "stat none.pool",
        "get none.pool m 1",
        "load p m none.csv",
        "load p m none.bin --format sosd",
        "bench report none.json",
        "create none/p m",
    ] {
        let (code, err) = cli.run(line);
        assert_eq!(code, Some(1), "{line}");
        assert_eq!(err.matches("No such file").count(), 1, "{line}: {err}");
    }
}

#[test]
fn a_load_that_fails_leaves_nothing_behind() {
    let cli = Cli::new();
    cli.write("bad.csv", "k,v\n1,2\n2,two\n");
    cli.write("good.csv", "k,v\n1,2\n");
    for line in [
        "load p m bad.csv --value v",
        "load p m none.csv",
        "load p m bad.csv --value nothing",
        "load p m none.bin --format sosd",
        // Refused before anything is done.
        "load p m good.csv --fill 7",
        "load p m good.csv --kind lbtree,leaf=100",
        "create p m --kind lbtree,leaf=100",
    ] {
        let is_usage = line.contains("--kind") || line.contains("--fill");
        let code = if is_usage { 2 } else { 1 };
        assert_eq!(cli.run(line).0, Some(code), "{line}");
        let left = std::fs::read_dir(cli.directory.path()).unwrap().count();
        assert_eq!(left, 2, "{line}: the two files and no pool");
    }
    assert_eq!(cli.run("create p other").0, Some(0));
    assert_eq!(cli.run("load p old good.csv --value v").0, Some(0));
    for line in ["load p m bad.csv --value v", "load p old bad.csv --value v"] {
        assert_eq!(cli.run(line).0, Some(1), "{line}");
    }
    let stat = cli.command("--json stat p").output().unwrap();
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    let maps = stat["maps"].as_array().unwrap();
    let names: Vec<_> = maps
        .iter()
        .map(|map| map["map"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["other", "old"]);
    assert_eq!(cli.run("check p").0, Some(0));
}

#[test]
fn a_first_row_of_numbers_is_not_taken_for_names_in_silence() {
    let cli = Cli::new();
    cli.write("rows.csv", "1,2\n3,4\n");
    let (code, err) = cli.run("load p m rows.csv");
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("--no-header"), "{err}");
    cli.write("named.csv", "key,value\n3,4\n");
    for line in ["load p m rows.csv --no-header", "load p m named.csv"] {
        assert_eq!(cli.run(line), (Some(0), String::new()), "{line}");
    }
}

#[test]
fn a_bad_cell_is_said_with_its_place() {
    let cli = Cli::new();
    let long = "é".repeat(5000);
    cli.write("bad.csv", &format!("k,v\n1,2\n\"3\",\"{long}\"\nx,5\n"));
    let (_, err) = cli.run("load p m bad.csv --value v");
    assert!(err.contains("bad.csv: line 3, column 2 (\"v\"): "), "{err}");
    assert!(err.contains("is not a u64"), "{err}");
    assert_eq!(err.matches('é').count(), SHOWN);
    // As RFC 4180 has lines end.
    cli.write("bad.csv", "k,v\r\n1,10\r\n2,x\r\n");
    for (load, place) in [
        ("m bad.csv --key k --value v", "line 3, column 2 (\"v\"): "),
        (
            "b bad.csv --key k --value v --key-type String --value-type u64",
            "line 3: the value: ",
        ),
        ("s bad.csv --x k --y v", "line 3, column 2 (\"v\"): "),
    ] {
        let (_, err) = cli.run(&format!("load p {load}"));
        assert!(err.contains(&format!("bad.csv: {place}")), "{err}");
    }
    cli.write("bad.csv", "1,2\nx,5\n");
    let (_, err) = cli.run("load p m bad.csv --no-header");
    assert!(
        err.contains("bad.csv: line 2, column 1: \"x\" is not a u64"),
        "{err}"
    );
    cli.write("bad.csv", "1,2\nNaN,5\n");
    let (_, err) = cli.run("load p m bad.csv --no-header --key-type f64");
    assert!(
        err.contains("line 2, column 1: NaN cannot be a key"),
        "{err}"
    );
    cli.write("bad.csv", "a\n1\n");
    let (_, err) = cli.run("load p m bad.csv --value 4");
    assert!(err.contains("bad.csv: line 2 has no column 4"), "{err}");
}

#[test]
fn a_delimiter_is_one_ascii_character() {
    let cli = Cli::new();
    cli.write("tabs.tsv", "1\t2\n3\t4\n");
    for (i, delimiter) in ["tab", "\\t", "\t"].into_iter().enumerate() {
        let mut load = cli.command(&format!("load p m{i} tabs.tsv --no-header --value 2"));
        let output = load.args(["--delimiter", delimiter]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    for delimiter in ["é", "ab", "", "\"", "\n"] {
        let mut load = cli.command("load p m tabs.tsv --no-header");
        let output = load.args(["--delimiter", delimiter]).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{delimiter:?}: {err}");
        assert!(
            err.contains("ASCII") || err.contains("another meaning"),
            "{err}"
        );
    }
}

#[test]
fn findings_that_differ_only_in_numbers_are_counted() {
    let cli = Cli::with_records();
    // A fingerprint in each leaf of 64 KiB.
    let mut bytes = std::fs::read(cli.path("p")).unwrap();
    let leaves = (2 << 20) + (128 << 10)..(2 << 20) + (192 << 10);
    leaves.step_by(256).for_each(|leaf| bytes[leaf + 8] ^= 0xff);
    std::fs::write(cli.path("p"), bytes).unwrap();
    let check = |line: &str| {
        let output = cli.command(line).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let all: serde_json::Value = serde_json::from_str(&check("--json check p")).unwrap();
    let all = all.as_array().unwrap().len();
    assert!(all > 50, "{all} findings");
    let shown = check("check p");
    assert!(
        shown.contains(&format!("{all} findings like this")),
        "{shown}"
    );
    assert!(shown.lines().count() < 20, "{shown}");
}

#[test]
fn options_of_new_maps_are_the_same_everywhere() {
    let cli = Cli::new();
    for command in ["create p m", "load p m f", "torture", "demo", "crash"] {
        let (code, err) = cli.run(&format!("{command} --kind btree"));
        assert_eq!(code, Some(2), "{command}: {err}");
        assert!(
            err.contains("\"btree\" is no kind of index; known are"),
            "{command}: {err}"
        );
    }
    let crash = "crash --histories 2 --ops 10 --kind";
    assert_eq!(cli.run(&format!("{crash} all")).0, Some(0));
    assert_eq!(cli.run(&format!("{crash} both")).0, Some(2));
    assert_eq!(cli.run("create p m --kind all").0, Some(2));
    let torture = "torture --kills 2 --within-ms 5 --kind lbtree,leaf=512 --directory .";
    let (code, err) = cli.run(torture);
    assert_eq!(code, Some(0), "{err}");
}

/// Runs a command that may make no file longer than so many MiB.
fn run_with_files_of(cli: &Cli, mebibytes: u32, line: &str) -> (Option<i32>, String) {
    let program = env!("CARGO_BIN_EXE_indelible");
    // In units of 512 bytes.
    let script = format!("ulimit -f {}; exec {program} {line}", mebibytes * 2048);
    let mut shell = Command::new("sh");
    let shell = shell
        .args(["-c", &script])
        .current_dir(cli.directory.path());
    let output = shell.output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn a_load_that_fails_on_the_way_says_how_many_records_stay() {
    let cli = Cli::new();
    let rows: String = (0..100_000)
        .map(|i| format!("{i},{}\n", i * 7 % 1000))
        .collect();
    cli.write("rows.csv", &rows);
    for (name, create, columns, again) in [
        ("m", "", "--value 2", "goes on"),
        ("bytes", "--kind slotted", "--value 2", "goes on"),
        ("s", "--geometry point2", "--x 1 --y 2", "adds them again"),
    ] {
        // One pool each, so that each has as much space.
        cli.run(&format!("create {name}.pool {name} {create}"));
        let records = || {
            let line = format!("--json stat {name}.pool {name}");
            let stat = cli.command(&line).output().unwrap();
            let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
            stat["records"].as_u64().unwrap()
        };
        let add = match name {
            "s" => "insert s.pool s 1,1 1".to_owned(),
            _ => format!("put {name}.pool {name} 999999999 1"),
        };
        assert_eq!(cli.run(&add).0, Some(0));
        assert_eq!(records(), 1);
        let load = format!("load {name}.pool {name} rows.csv --no-header {columns}");
        let (code, err) = run_with_files_of(&cli, 4, &load);
        assert_eq!(code, Some(1), "{err}");
        let added = records() - 1;
        let said = format!("{added} of 100000 records were added to {name:?} and stay");
        assert!(added > 0 && err.contains(&said), "{added}: {err}");
        assert!(err.contains(again) && err.contains("no space"), "{err}");
    }
}

#[test]
fn what_a_command_cannot_do_is_no_panic_and_no_half_of_an_output() {
    let cli = Cli::new();
    for minutes in ["inf", "NaN", "1e300", "ten"] {
        let (code, err) = cli.run(&format!("crash --deep --minutes {minutes}"));
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains("--minutes"), "{err}");
    }
    assert_eq!(cli.run("create p s --geometry point2").0, Some(0));
    assert_eq!(cli.run("insert p s 1,1 1").0, Some(0));
    assert_eq!(cli.run("insert p s 1,inf 2").0, Some(0));
    let query = cli.command("query p s --geojson").output().unwrap();
    assert_eq!(query.status.code(), Some(1), "{query:?}");
    assert_eq!(String::from_utf8_lossy(&query.stdout), "");
}
