//! What a command that is refused says, and what it leaves as it was.

use super::commands::Cli;

#[test]
fn a_create_whose_durability_the_file_cannot_have_leaves_no_object() {
    let cli = Cli::in_memory();
    cli.ok("create t.pool m");
    cli.write("t.csv", b"k\n1\n");
    for (line, name) in [
        ("create t.pool made --durability power-loss", "made"),
        (
            "create t.pool strings --kind slotted --durability 10ms",
            "strings",
        ),
        ("load t.pool loaded t.csv --durability 10ms", "loaded"),
    ] {
        // Where the directory is on a disk, the pool can have it.
        let is_done = cli.run(line).status.success();
        let is_there = cli.ok("list t.pool").contains(name);
        assert_eq!(is_there, is_done, "{line}");
    }
    let again = cli.run("load t.pool m t.csv --durability power-loss");
    let said = String::from_utf8(again.stderr).unwrap();
    let is_said = said.contains("\"m\" is as asked for, but t.pool keeps its durability");
    assert_eq!(is_said, !again.status.success(), "{said}");
    assert_eq!(cli.ok("get t.pool m 1"), "0\n");
}

#[test]
fn a_value_that_is_missing_is_said_with_its_key_and_its_map() {
    let cli = Cli::in_memory();
    cli.ok("create t.pool numbers");
    cli.ok("create t.pool wide --value-type u128");
    cli.ok("create t.pool bytes --kind slotted");
    for (map, hint) in [
        ("numbers", ""),
        ("wide", ""),
        ("bytes", "; '' is the empty one"),
    ] {
        let said = cli.fails(&format!("put t.pool {map} 7"));
        let missing = format!("a value is missing for the key \"7\" of {map:?}{hint}\n");
        assert!(said.ends_with(&missing), "{said}");
    }
}

#[test]
fn an_interval_that_no_pool_can_have_is_refused() {
    let cli = Cli::in_memory();
    for interval in ["0ms", "4294967296ms"] {
        let said = cli.fails(&format!("create t.pool m --durability {interval}"));
        assert!(said.contains("from 1ms to 4294967295ms"), "{said}");
    }
}

#[test]
fn a_negative_fill_is_said_by_its_option() {
    let cli = Cli::in_memory();
    cli.write("t.csv", b"k\n1\n");
    let said = cli.fails("load t.pool m t.csv --fill -1");
    assert!(
        said.contains("'--fill <FILL>': expected a number from 0.1 to 1"),
        "{said}"
    );
}

#[test]
fn names_in_tables_and_titles_have_nothing_that_is_not_seen() {
    let cli = Cli::in_memory();
    let name = "two\nlines\u{202e}\x1b[31m \"é\" \\";
    let shown = "two\\nlines\\u{202e}\\u{1b}[31m \"é\" \\";
    cli.write("t.csv", b"k\n1\n");
    for words in [
        &["load", "t.pool", name, "t.csv"][..],
        &["list", "t.pool"],
        &["check", "t.pool"],
        &["stat", "t.pool"],
        &["stat", "t.pool", name],
    ] {
        let output = cli.run_words(words.iter().copied());
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains(shown), "{words:?}: {printed}");
    }
    // Programs get names as they are.
    let listed: serde_json::Value = serde_json::from_str(&cli.ok("--json list t.pool")).unwrap();
    assert_eq!(listed[0]["object"], name);
}

#[test]
fn keys_that_are_options_are_json_and_errors_say_so() {
    let cli = Cli::in_memory();
    cli.ok("create t.pool m --key-type Option<String>");
    cli.ok("create t.pool wide --key-type Option<u128>");
    let said = cli.fails("put t.pool m tea 1");
    assert!(said.contains("`tea` is not JSON"), "{said}");
    assert!(
        said.contains("text is in double quotes, and None is null"),
        "{said}"
    );
    let said = cli.fails("put t.pool m 5 1");
    assert!(
        said.contains("5 is no text, which is in double quotes"),
        "{said}"
    );
    let most = format!("\"{}\"", u128::MAX);
    for (map, key) in [
        ("m", "null"),
        ("m", "\"tea\""),
        ("wide", "7"),
        ("wide", &most),
    ] {
        cli.ok(&format!("put t.pool {map} {key} 1"));
    }
    assert_eq!(cli.ok("scan t.pool m"), "null\t1\n\"tea\"\t1\n");
    assert_eq!(cli.ok("scan t.pool wide"), format!("7\t1\n{most}\t1\n"));
}

#[test]
fn a_pool_has_the_durability_that_was_asked_for_last_or_the_command_fails() {
    // Where a superblock says what the pool promises, and what it says of power-loss safety that was forced, and of a log.
    const PROMISE: usize = 56;
    const FORCED: u8 = 3;
    const LOGGED: u8 = 4;
    // In memory, where a pool cannot have a log, and perhaps on a disk.
    for cli in [Cli::in_memory(), Cli::new()] {
        let promise = || std::fs::read(cli.path("f.pool")).unwrap()[PROMISE];
        cli.ok("create f.pool m --durability power-loss --force-power-loss-protocol");
        assert_eq!(promise(), FORCED);
        let is_done = cli
            .run("create f.pool n --durability power-loss")
            .status
            .success();
        assert_eq!(promise(), if is_done { LOGGED } else { FORCED });
        assert_eq!(cli.ok("list f.pool").contains(" n "), is_done);
        let stat: serde_json::Value = serde_json::from_str(&cli.ok("--json stat f.pool")).unwrap();
        assert_eq!(stat["durability"], "power-loss");
        cli.ok("create f.pool o --durability power-loss --force-power-loss-protocol");
        assert_eq!(promise(), FORCED);
        for line in [
            "create f.pool p --force-power-loss-protocol",
            "create new.pool p --force-power-loss-protocol --durability process",
        ] {
            let said = cli.fails(line);
            assert!(said.contains("needs --durability power-loss"), "{said}");
        }
        assert!(!cli.path("new.pool").exists());
    }
}

#[test]
fn a_record_that_is_too_long_is_said_with_its_line_before_any_is_added() {
    let cli = Cli::in_memory();
    let lines = format!("aa\n{}\ncc\n", "b".repeat(70_000));
    cli.write("lines", lines.as_bytes());
    cli.ok("create t.pool bytes --kind slotted");
    cli.ok("create t.pool texts --key-type String");
    for map in ["bytes", "texts"] {
        let load = format!("load t.pool {map} lines --format lines");
        // Into an empty map, and into one with a record.
        for expected in ["", "zz\t1\n"] {
            let said = cli.fails(&load);
            let is_said = said.contains("lines: line 2: a key has at most 65536 bytes");
            assert!(is_said, "{map}: {said}");
            assert_eq!(cli.ok(&format!("scan t.pool {map}")), expected);
            cli.ok(&format!("put t.pool {map} zz 1"));
        }
    }
}

#[test]
fn options_that_a_load_would_not_look_at_are_refused() {
    let cli = Cli::in_memory();
    cli.write("t.csv", b"k,lon,lat\n1,2,3\n");
    cli.write("keys.bin", &[1_u64, 7].map(u64::to_le_bytes).concat());
    cli.write("t.geojson", b"{\"type\":\"Point\",\"coordinates\":[1,2]}");
    let of_rows = ["--key k", "--value k", "--row-as-json"];
    let of_csv = ["--delimiter ;", "--no-header"];
    let of_types = ["--key-type u32", "--value-type u32"];
    let lines = "t.csv --format lines --kind slotted";
    let shapes = "t.csv --lon lon --lat lat";
    let refused = [
        (lines, &of_rows[..]),
        (lines, &of_csv),
        ("keys.bin --format sosd", &of_rows),
        ("keys.bin --format sosd", &of_csv),
        ("t.geojson", &of_rows),
        ("t.geojson", &of_csv),
        ("t.geojson", &of_types),
        (shapes, &of_rows),
        (shapes, &of_types),
    ];
    for (load, options) in refused {
        for option in options {
            let said = cli.fails(&format!("load t.pool m {load} {option}"));
            let name = option.split(' ').next().unwrap();
            assert!(said.contains(name), "{load} {option}: {said}");
            assert!(!cli.path("t.pool").exists(), "{load} {option}");
        }
        cli.ok(&format!("load t.pool m {load}"));
        std::fs::remove_file(cli.path("t.pool")).unwrap();
    }
}

#[test]
fn a_pool_in_memory_that_is_to_survive_power_loss_names_the_durability_that_it_can_have() {
    let cli = Cli::in_memory();
    let created = cli.run("create t.pool m --durability power-loss");
    // Where the directory is on a disk, the pool can have it.
    if !created.status.success() {
        let said = String::from_utf8(created.stderr).unwrap();
        assert!(said.contains("with --durability process"), "{said}");
    }
}

#[test]
fn a_key_that_is_a_tuple_and_in_one_column_is_told_how_to_name_several() {
    let cli = Cli::in_memory();
    cli.write("t.csv", b"id,name,v\n1,a,x\n");
    let load = "load t.pool m t.csv --key-type (u32,String) --value-type String --value v";
    for (key, says) in [
        ("id", "1 is no JSON array of 2 fields"),
        ("id,name", "there is no column \"id,name\""),
    ] {
        let said = cli.fails(&format!("{load} --key {key}"));
        assert!(said.contains(says), "{said}");
        assert!(said.contains("with a --key of its own"), "{said}");
    }
    cli.ok(&format!("{load} --key id --key name"));
}

#[test]
fn a_column_that_is_named_where_there_is_no_header_is_told_the_numbers() {
    let cli = Cli::in_memory();
    cli.write("t.csv", b"1,2\n3,4\n");
    cli.write("empty.csv", b"");
    for (line, column) in [
        ("load t.pool m t.csv --no-header --value v", "v"),
        ("load t.pool m t.csv --no-header --key 0", "0"),
        ("load t.pool m empty.csv --value v", "v"),
        (
            "load t.pool m t.csv --no-header --key-type String --value v",
            "v",
        ),
        ("load t.pool m t.csv --no-header --lon x --lat y", "x"),
    ] {
        let said = cli.fails(line);
        let why = format!("there is no column {column:?}: without a header, columns have no names");
        assert!(said.contains(&why), "{line}: {said}");
        assert!(said.contains("numbers from 1"), "{line}: {said}");
    }
    cli.ok("load t.pool m t.csv --no-header --value 2");
    assert_eq!(cli.ok("scan t.pool m"), "1\t2\n3\t4\n");
}

#[test]
fn a_hyphen_is_what_another_program_prints() {
    let cli = Cli::in_memory();
    cli.write("t.csv", b"key,value\n7,8\n");
    let loaded = std::process::Command::new(env!("CARGO_BIN_EXE_indelible"))
        .arg("load")
        .arg(cli.path("t.pool"))
        .args(["m", "-", "--value", "value"])
        .stdin(std::fs::File::open(cli.path("t.csv")).unwrap())
        .output()
        .unwrap();
    assert!(loaded.status.success(), "{loaded:?}");
    assert_eq!(cli.ok("get t.pool m 7"), "8\n");
}
