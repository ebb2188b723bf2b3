//! Every command, end to end.

use indelible::{Durability, Kind, Pool};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

pub struct Cli {
    directory: tempfile::TempDir,
}

impl Cli {
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    /// Where files are memory, for many commands in a row: they need not wait for a disk.
    pub fn in_memory() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self {
            directory: directory.unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.path(name), content).unwrap();
    }

    pub fn run(&self, line: &str) -> Output {
        self.run_words(line.split_whitespace())
    }

    pub fn run_words<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Output {
        Command::new(env!("CARGO_BIN_EXE_indelible"))
            .args(words)
            .current_dir(self.directory.path())
            .output()
            .unwrap()
    }

    /// What a command that must succeed prints.
    pub fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(
            output.status.success(),
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// What a command that must fail, without a panic, says.
    pub fn fails(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(
            matches!(output.status.code(), Some(1 | 2)),
            "{line}: {:?}",
            output.status
        );
        String::from_utf8(output.stderr).unwrap()
    }
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_csv_file_is_loaded_read_changed_and_scanned() {
    let cli = Cli::new();
    cli.write(
        "t.csv",
        b"city,degrees,id\nOslo,-3.5,1\nRome,14,2\nOslo,-4.25,3\nCairo,21.75,4\n",
    );
    cli.ok("load t.pool temperatures t.csv --key degrees --value id --key-type f64");
    assert_eq!(
        cli.ok("scan t.pool temperatures"),
        "-4.25\t3\n-3.5\t1\n14\t2\n21.75\t4\n"
    );
    assert_eq!(
        cli.ok("scan t.pool temperatures --from -4 --to 14 --reverse"),
        "14\t2\n-3.5\t1\n"
    );
    assert_eq!(cli.ok("scan t.pool temperatures --limit 1"), "-4.25\t3\n");
    assert_eq!(cli.ok("get t.pool temperatures -3.5 14"), "1\n2\n");
    assert_eq!(cli.ok("put t.pool temperatures -3.5 9"), "1\n");
    assert_eq!(cli.ok("put t.pool temperatures -100 5"), "");
    assert_eq!(cli.ok("del t.pool temperatures 14"), "2\n");
    assert_eq!(
        cli.ok("scan t.pool temperatures"),
        "-100\t5\n-4.25\t3\n-3.5\t9\n21.75\t4\n"
    );
    assert!(
        cli.fails("get t.pool temperatures 14")
            .contains("not there")
    );
    assert!(
        cli.fails("get t.pool temperatures warm")
            .contains("not a f64")
    );
    assert!(cli.fails("put t.pool temperatures NaN 1").contains("NaN"));
    // By names, as bytes; a repeated key keeps its last value.
    let loaded = cli.ok("--json load t.pool names t.csv --key city --value 3 --key-type bytes8");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&loaded).unwrap()["keys_repeated"],
        1
    );
    assert_eq!(cli.ok("scan t.pool names"), "Cairo\t4\nOslo\t3\nRome\t2\n");
    // A second load adds.
    cli.write("more.csv", b"Bern;7\n");
    // The types are those of the map, which need not be said again.
    cli.ok("load t.pool names more.csv --no-header --delimiter ; --value 2");
    assert_eq!(cli.ok("get t.pool names Bern"), "7\n");
    let refused = cli.fails("load t.pool names more.csv --no-header --key-type u64");
    assert!(refused.contains("[u8; 8]"), "{refused}");
}

#[test]
fn csv_files_and_lines_are_loaded_into_maps_of_byte_strings() {
    let cli = Cli::new();
    cli.write(
        "t.csv",
        "city,degrees,note\nOslo,-3.5,cold\nRio de Janeiro,31,\"hot, \"\"wet\"\"\"\nOslo,-4,é\n"
            .as_bytes(),
    );
    let loaded = cli.ok("--json load t.pool notes t.csv --kind slotted --key city --value note");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&loaded).unwrap()["keys_repeated"],
        1
    );
    assert_eq!(
        cli.ok("scan t.pool notes"),
        "Oslo\té\nRio de Janeiro\thot, \"wet\"\n"
    );
    cli.ok("load t.pool rows t.csv --kind slotted --key city --row-as-json");
    let row = cli.ok("get t.pool rows Oslo");
    let row: serde_json::Value = serde_json::from_str(&row).unwrap();
    assert_eq!(
        row,
        serde_json::json!({"city": "Oslo", "degrees": "-4", "note": "é"})
    );
    // A second load adds, and needs no kind.
    cli.write("more.csv", b"Bern;7\n");
    cli.ok("load t.pool rows more.csv --no-header --delimiter ; --row-as-json");
    assert_eq!(
        cli.ok("get t.pool rows Bern"),
        "{\"1\":\"Bern\",\"2\":\"7\"}\n"
    );
    cli.write("twice.csv", b"a,a\n1,2\n");
    for columns in ["--row-as-json", "--value a"] {
        let refused = cli.fails(&format!("load t.pool rows twice.csv {columns}"));
        assert!(refused.contains("two columns"), "{refused}");
    }
    cli.write("open.csv", b"id,v\n1,2\n3,\"4\n5,6\n");
    let refused = cli.fails("load t.pool rows open.csv --value v");
    assert!(
        refused.contains("line 3: a quote in the last row is not closed"),
        "{refused}"
    );
    for cell in ["5\" pipe", "\"a \"\"b\"\"\nc\""] {
        cli.write("whole.csv", format!("id,v\n1,{cell}\n").as_bytes());
        cli.ok("load t.pool whole whole.csv --kind slotted --value v");
    }
    cli.write("lines", b"\xef\xbb\xbfone\ntwo\r\n");
    cli.ok("load t.pool lines lines --kind slotted --format lines");
    assert_eq!(cli.ok("scan t.pool lines"), "one\t0\ntwo\t1\n");
    let refused = cli.fails("load t.pool numbers t.csv --key degrees --row-as-json");
    assert!(refused.contains("maps of byte strings"), "{refused}");
    assert!(cli.ok("check t.pool").contains("sound"));
}

#[test]
fn a_sosd_file_is_loaded_and_a_wrong_one_refused() {
    let cli = Cli::new();
    let keys: Vec<u64> = (0..10_000).map(|i| i * i).collect();
    let mut bytes = (keys.len() as u64).to_le_bytes().to_vec();
    keys.iter().for_each(|key| bytes.extend(key.to_le_bytes()));
    cli.write("keys.bin", &bytes);
    cli.ok("load s.pool squares keys.bin --format sosd --fill 1.0");
    assert_eq!(cli.ok("get s.pool squares 9801 99980001"), "99\n9999\n");
    let stat: serde_json::Value =
        serde_json::from_str(&cli.ok("--json stat s.pool squares")).unwrap();
    assert_eq!(stat["records"], 10_000);
    assert!(stat["fill"].as_f64().unwrap() > 0.98);
    cli.write("short.bin", &bytes[..bytes.len() - 1]);
    assert!(
        cli.fails("load s.pool other short.bin --format sosd")
            .contains("not so")
    );
    assert!(
        cli.fails("load s.pool other none.bin --format sosd")
            .contains("none.bin")
    );
}

#[test]
fn stat_check_rm_and_shrink_see_the_same_pool() {
    let cli = Cli::new();
    let rows: String = (0..100_000).map(|i| format!("{i}\n")).collect();
    cli.write("rows.csv", rows.as_bytes());
    cli.ok("create p.pool kept --key-type i64 --value-type unit");
    cli.ok("put p.pool kept -7");
    cli.ok("load p.pool big rows.csv --no-header");
    let stat: serde_json::Value = serde_json::from_str(&cli.ok("--json stat p.pool")).unwrap();
    assert_eq!(stat["maps"].as_array().unwrap().len(), 2);
    assert!(cli.ok("stat p.pool").contains("100,000"));
    assert!(cli.ok("check p.pool").contains("sound"));
    let before = std::fs::metadata(cli.path("p.pool")).unwrap().len();
    cli.ok("rm p.pool big");
    cli.ok("shrink p.pool");
    assert!(std::fs::metadata(cli.path("p.pool")).unwrap().len() < before);
    assert_eq!(cli.ok("scan p.pool kept"), "-7\t\n");
    assert!(
        cli.fails("rm p.pool big")
            .contains("nothing is named \"big\"")
    );
    assert!(
        cli.fails("get p.pool big 1")
            .contains("nothing is named \"big\"")
    );
}

fn expect_json_names(value: &serde_json::Value) {
    let (names, inside): (Vec<&String>, Vec<_>) = match value {
        serde_json::Value::Object(object) => object.iter().unzip(),
        serde_json::Value::Array(all) => (Vec::new(), all.iter().collect()),
        _ => return,
    };
    let is_one_word = |name: &&String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    assert!(names.iter().all(is_one_word), "{names:?}");
    inside.into_iter().for_each(expect_json_names);
}

#[test]
fn changes_of_records_are_told_as_json() {
    let cli = Cli::in_memory();
    cli.ok("create j.pool m");
    let read =
        |line: &str| serde_json::from_slice::<serde_json::Value>(&cli.run(line).stdout).unwrap();
    let null = serde_json::Value::Null;
    assert_eq!(read("--json put j.pool m 1 10")["before"], null);
    assert_eq!(read("--json put j.pool m 1 11")["before"], "10");
    let removed = serde_json::json!([{"key": "1", "value": "11"}, {"key": "2", "value": null}]);
    assert_eq!(read("--json del j.pool m 1 2"), removed);
    assert_eq!(read("--json verify j.pool")["whole_records"], null);
    assert!(cli.fails("--json bench list").contains("--output"));
}

/// So that programs need no brackets and quotes for them.
#[test]
fn names_in_json_are_words() {
    let cli = Cli::new();
    for kind in Kind::all() {
        cli.ok(&format!("create p.pool {kind} --kind {kind}"));
    }
    cli.ok("create p.pool places --geometry point2");
    cli.ok("create p.pool texts --key-type String --value-type String");
    let mut lines = vec!["--json stat p.pool".into(), "--json check p.pool".into()];
    lines.extend(
        Kind::all()
            .iter()
            .map(|kind| format!("--json stat p.pool {kind}")),
    );
    lines.extend(["places", "texts"].map(|name| format!("--json stat p.pool {name}")));
    for line in lines {
        expect_json_names(&serde_json::from_str(&cli.ok(&line)).unwrap());
    }
}

#[test]
fn a_map_is_of_the_kind_asked_for() {
    let cli = Cli::new();
    cli.ok("create k.pool m --kind lbtree");
    let read = |line: &str| serde_json::from_str::<serde_json::Value>(&cli.ok(line)).unwrap();
    assert_eq!(read("--json stat k.pool")["maps"][0]["kind"], "lbtree");
    assert_eq!(read("--json stat k.pool m")["kind"], "lbtree");
    let names: Vec<&str> = Kind::all().iter().map(|kind| kind.name()).collect();
    let known = format!("known are {}", names.join(", "));
    assert!(cli.fails("create k.pool n --kind btree").contains(&known));
    // The default by its name is as definite as any other.
    cli.ok("create k.pool learned --kind apex");
    let refused = cli.fails("create k.pool learned --kind lbtree");
    assert!(
        refused.contains("kind=apex") && refused.contains("kind=lbtree"),
        "{refused}"
    );
    cli.ok("create k.pool learned");
    cli.write("t.csv", b"1\n");
    cli.fails("load k.pool learned t.csv --no-header --kind lbtree");
    cli.ok("load k.pool learned t.csv --no-header");
}

#[test]
fn check_tells_by_its_exit_code_what_is_wrong() {
    let cli = Cli::new();
    cli.ok("create p.pool m");
    for i in 0..30 {
        cli.ok(&format!("put p.pool m {i} {i}"));
    }
    cli.ok("check p.pool");
    flip(&cli.path("p.pool"), 70);
    cli.ok("check p.pool");
    std::fs::copy(cli.path("p.pool"), cli.path("q.pool")).unwrap();
    flip(&cli.path("q.pool"), 70);
    flip(&cli.path("q.pool"), 4096 + 70);
    assert!(cli.fails("check q.pool").contains("damaged"));
    // A key in a leaf: every byte of the first leaves' keys matters. 14 slots are in use in one of the first blocks.
    let bytes = std::fs::read(cli.path("p.pool")).unwrap();
    let key = 5_u64.to_le_bytes();
    let at = (2 << 20..bytes.len() - 16)
        .step_by(8)
        .find(|&at| bytes[at..at + 8] == key && bytes[at + 8..at + 16] == key)
        .unwrap();
    flip(&cli.path("p.pool"), at);
    let output = cli.run("check p.pool");
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    cli.write("foreign.pool", b"not a pool at all");
    assert!(
        cli.fails("check foreign.pool")
            .contains("not an indelible pool")
    );
    assert!(cli.fails("stat none.pool").contains("none.pool"));
}

#[test]
fn an_object_that_is_damaged_is_told_and_the_others_are_too() {
    // The word of an entry that says what the object is, and those that say where its index begins.
    const ENTRY: usize = 8192;
    let cli = Cli::in_memory();
    let fresh = |name: &str| {
        for map in ["m", "n"] {
            cli.ok(&format!("create {name} {map}"));
            cli.ok(&format!("put {name} {map} 1 2"));
        }
    };
    let check = |name: &str| {
        let output = cli.run(&format!("--json check {name}"));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = rows.as_array().unwrap().iter();
        let row = |row: &serde_json::Value| {
            ["object", "finding"].map(|column| row[column].as_str().unwrap().to_owned())
        };
        rows.map(row).collect::<Vec<_>>()
    };
    let sound = ["n", "sound"].map(str::to_owned);

    fresh("unknown.pool");
    flip(&cli.path("unknown.pool"), ENTRY + 8);
    assert!(cli.ok("list unknown.pool").contains(" m "));
    let stat: serde_json::Value =
        serde_json::from_str(&cli.ok("--json stat unknown.pool")).unwrap();
    assert_eq!(stat["unknown"][0]["object"], "m");
    assert_eq!(stat["unknown"][0]["records"], serde_json::Value::Null);
    assert_eq!(stat["maps"][0]["records"], 1);
    let found = check("unknown.pool");
    assert!(found.contains(&sound), "{found:?}");
    let of_m: Vec<_> = found.iter().filter(|row| row[0] == "m").collect();
    assert_eq!(of_m.len(), 1, "{found:?}");
    assert!(of_m[0][1].contains("entry"), "{found:?}");

    fresh("lost.pool");
    let mut bytes = std::fs::read(cli.path("lost.pool")).unwrap();
    (ENTRY + 16..ENTRY + 80).for_each(|at| bytes[at] ^= 0x10);
    cli.write("lost.pool", &bytes);
    let found = check("lost.pool");
    assert!(found.contains(&sound), "{found:?}");
    let is_of_m = |row: &[String; 2]| row[0] == "m" && row[1].contains("damaged");
    assert!(found.iter().any(is_of_m), "{found:?}");
    let stat = cli.run("stat lost.pool");
    assert_eq!(stat.status.code(), Some(1), "{stat:?}");
    let said = String::from_utf8(stat.stderr).unwrap();
    assert!(said.starts_with("\"m\": the pool is damaged"), "{said}");
    assert!(String::from_utf8(stat.stdout).unwrap().contains(" n "));
}

#[test]
fn the_demo_runs_and_loses_nothing() {
    let cli = Cli::new();
    let out = cli.ok("--json demo --kills 2 --run-ms 100 --power-cuts 2");
    let facts: serde_json::Value = serde_json::from_str(out.trim()).unwrap();
    assert_eq!(facts["cities_indexed"], 144_563);
    assert_eq!(facts["operations_lost"], 0);
    assert!(facts["operations_acknowledged"].as_u64().unwrap() > 0);
    // None where the directory for temporary files is in memory, or processes cannot be traced.
    if facts["power_cuts"] != 0 {
        assert_eq!(facts["power_cuts"], 2);
        assert_eq!(facts["operations_lost_in_power_cuts"], 0);
        let acknowledged = &facts["operations_acknowledged_before_power_cuts"];
        assert!(acknowledged.as_u64().unwrap() > 0);
    }
}

#[test]
fn a_create_that_fails_changes_neither_the_promise_nor_the_objects() {
    let cli = Cli::new();
    let durability = || Pool::open(cli.path("t.pool")).unwrap().durability();
    cli.ok("create t.pool m --kind lbtree,leaf=512");
    cli.fails("create t.pool m --kind apex --durability 10ms");
    assert_eq!(durability(), Durability::Process);
    cli.ok("create t.pool n --durability 10ms");
    assert_eq!(
        durability(),
        Durability::Interval(Duration::from_millis(10))
    );
    cli.ok("create t.pool o");
    assert_eq!(
        durability(),
        Durability::Interval(Duration::from_millis(10))
    );
    cli.ok("create t.pool p --durability process");
    assert_eq!(durability(), Durability::Process);
}

#[test]
fn options_behind_keys_are_options_and_keys_behind_two_hyphens_are_keys() {
    let cli = Cli::new();
    cli.ok("create t.pool m --kind slotted");
    cli.ok("put t.pool m -- -key --json");
    assert_eq!(cli.ok("get t.pool m -- -key"), "--json\n");
    assert!(cli.ok("get t.pool m --json -- -key").starts_with('['));
    assert!(cli.fails("get t.pool m -key").contains("-- -k"));
    assert!(cli.fails("del t.pool m -key").contains("-- -k"));
    assert_eq!(cli.ok("del t.pool m -- -key"), "--json\n");
}

#[test]
fn a_set_takes_no_values_and_every_other_map_wants_one() {
    let cli = Cli::new();
    cli.ok("create t.pool numbers");
    cli.ok("create t.pool strings --kind slotted");
    for set in [
        "words --value-type unit",
        "typed --key-type u128 --value-type unit",
    ] {
        cli.ok(&format!("create t.pool {set}"));
        let name = set.split(' ').next().unwrap();
        cli.ok(&format!("put t.pool {name} 1"));
        cli.ok(&format!("put t.pool {name} 2 ()"));
        assert!(
            cli.fails(&format!("put t.pool {name} 3 x"))
                .contains("is a set")
        );
        assert_eq!(cli.ok(&format!("scan t.pool {name}")), "1\t\n2\t\n");
    }
    for name in ["numbers", "strings"] {
        let missing = cli.fails(&format!("put t.pool {name} 1"));
        assert!(missing.contains("a value is missing"), "{missing}");
    }
    let empty = ["put", "t.pool", "strings", "1", ""];
    assert!(cli.run_words(empty).status.success());
}

#[test]
fn what_is_wrong_in_a_file_or_an_option_is_said_with_its_place() {
    let cli = Cli::new();
    cli.ok("create t.pool reals --value-type f64");
    assert!(
        cli.fails("put t.pool reals 1 1e400")
            .contains("larger than any f64")
    );
    cli.ok("put t.pool reals 1 inf");
    cli.write("t.csv", b"id,lon,lat\n1,0,0\n2,10,91\n");
    for fill in ["0", "1.5", "NaN"] {
        // Whether the map is empty or not.
        let refused = cli.fails(&format!("load t.pool reals t.csv --fill {fill}"));
        assert!(refused.contains("from 0.1 to 1"), "{refused}");
    }
    let refused = cli.fails("load t.pool shops t.csv --lon lon --lat lat");
    assert!(
        refused.contains("t.csv") && refused.contains("line 3"),
        "{refused}"
    );
    assert!(
        refused.contains("latitudes are from -90 to 90"),
        "{refused}"
    );
    let count = 3_u64.to_le_bytes();
    cli.write("short.bin", &count);
    let refused = cli.fails("load t.pool other short.bin --format sosd");
    assert!(refused.contains("short.bin"), "{refused}");
    let pool = Pool::open(cli.path("t.pool")).unwrap();
    pool.map::<u64, u64>("a\x1b[31mb").unwrap();
    pool.close().unwrap();
    let listed = cli.ok("list t.pool");
    assert!(listed.contains("a\\u{1b}[31mb"), "{listed}");
}

#[test]
fn ranges_of_every_kind_of_map_are_removed() {
    let cli = Cli::new();
    cli.write("t.csv", b"k,v\n-2,1\n-1,2\n1,3\n2,4\n10,5\n");
    for types in ["--key-type i64", "--key-type i128", "--kind slotted"] {
        let name = types.split(['-', ' ']).next_back().unwrap();
        cli.ok(&format!("load t.pool {name} t.csv --value v {types}"));
        let removed = cli.ok(&format!("--json del t.pool {name} --from 1 --to 2"));
        // As byte strings 10 lies between 1 and 2.
        let expected = if name == "slotted" { 3 } else { 2 };
        let removed: serde_json::Value = serde_json::from_str(&removed).unwrap();
        assert_eq!(removed["records_removed"], expected, "{name}");
    }
    assert_eq!(cli.ok("scan t.pool i64"), "-2\t1\n-1\t2\n10\t5\n");
    cli.ok("del t.pool i64 --to -2");
    assert_eq!(cli.ok("scan t.pool i64"), "-1\t2\n10\t5\n");
    cli.ok("del t.pool slotted --prefix -");
    assert_eq!(cli.ok("scan t.pool slotted"), "");
    assert!(cli.fails("del t.pool i64 --prefix 1").contains("is none"));
    for line in ["del t.pool i64", "del t.pool i64 1 --from 1"] {
        assert!(cli.fails(line).contains("Usage"), "{line}");
    }
}

#[test]
fn the_kinds_of_index_are_listed_with_their_options() {
    let cli = Cli::in_memory();
    let told = cli.ok("kinds");
    let helped = cli.ok("help kinds");
    let rows: serde_json::Value = serde_json::from_str(&cli.ok("--json kinds")).unwrap();
    let rows = rows.as_array().unwrap();
    assert!(rows.len() > 6, "{rows:?}");
    for row in rows {
        let kind = row["kind"].as_str().unwrap();
        let line = format!("\n{kind}: {}\n", row["description"].as_str().unwrap());
        assert!(told.contains(&line), "{kind}: {told}");
        assert!(helped.contains(&format!("\n{kind}: ")), "{kind}: {helped}");
        for option in row["options"].as_array().unwrap() {
            let option = option["name"].as_str().unwrap();
            assert!(told.contains(&format!("    {option}=VALUE")), "{told}");
        }
    }
    let spatial = |row: &&serde_json::Value| row["of"] == "spatial index";
    let spatial = rows.iter().find(spatial).unwrap()["kind"].as_str().unwrap();
    cli.ok(&format!("create t.pool s --geometry box2 --kind {spatial}"));
}
