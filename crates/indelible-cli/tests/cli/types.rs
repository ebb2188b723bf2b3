//! Types of keys and values on the command line: typed maps, maps of every type, and values that a type does not have.

use super::commands::Cli;
use indelible::{Pool, Type};

#[test]
fn typed_maps_are_created_and_loaded_from_tables() {
    let cli = Cli::new();
    let create = |name: &str, key: &str, value: &str| {
        let line = [
            "create",
            "t.pool",
            name,
            "--key-type",
            key,
            "--value-type",
            value,
        ];
        assert!(cli.run_words(line).status.success(), "{key} to {value}");
    };
    create("prices", "(Option<u32>, String)", "f64");
    create("wide", "u128", "bytes16");
    create("set", "String", "unit");
    let pool = Pool::open(cli.path("t.pool")).unwrap();
    pool.open_typed::<u128, [u8; 16]>("wide").unwrap();
    pool.open_typed::<String, ()>("set").unwrap();
    pool.close().unwrap();

    // The fields of a key are in columns of their own, or in one as JSON. A typed map that is there knows its types.
    cli.write(
        "t.csv",
        b"shop,what,price\n7,\"tea, black\",2.5\n,\\n,1\n7,milk,3\n7,milk,4\n",
    );
    let loaded = cli.ok("--json load t.pool prices t.csv --key shop --key what --value price");
    assert!(
        loaded.contains("\"keys_repeated\": 1") || loaded.contains("\"keys_repeated\":1"),
        "{loaded}"
    );
    cli.write("json.csv", b"\"[9,\"\"x\"\"]\",8\n");
    cli.ok("load t.pool prices json.csv --no-header --value 2");
    let pool = Pool::open(cli.path("t.pool")).unwrap();
    let map = pool
        .open_typed::<(Option<u32>, String), f64>("prices")
        .unwrap();
    for (shop, what, price) in [
        (Some(7), "tea, black", 2.5),
        (None, "\\n", 1.0),
        (Some(7), "milk", 4.0),
        (Some(9), "x", 8.0),
    ] {
        assert_eq!(map.get((shop, what)).unwrap(), Some(price), "{what}");
    }
    assert_eq!(map.len().unwrap(), 4);
    drop(map);
    pool.close().unwrap();

    // One that is not there is created with the types of the command line.
    cli.ok(
        "load t.pool notes t.csv --key what --key-type String --row-as-json --value-type String",
    );
    assert!(cli.ok("get t.pool notes milk").contains("\"price\":\"4\""));
    cli.write("lines", b"one\ntwo\n");
    cli.ok("load t.pool lines lines --format lines --key-type String");
    assert_eq!(cli.ok("scan t.pool lines"), "one\t0\ntwo\t1\n");

    let deep = ["Option<".repeat(9_000), ">".repeat(9_000)].join("u8");
    let deep = format!("create t.pool n --key-type {deep}");
    for (line, why) in [
        (
            "load t.pool prices t.csv --key shop --value price",
            "line 2: the key: it is a tuple in one column",
        ),
        (
            "load t.pool prices t.csv --key 1 --key 2 --key 3",
            "2 fields, and 3 columns",
        ),
        (
            "load t.pool prices t.csv --key what --key shop --value price",
            "field 1 of the key",
        ),
        (
            "load t.pool prices t.csv --key shop --key what --value what",
            "line 2: the value",
        ),
        (
            "load t.pool lines t.csv --key what --key-type String --value-type String",
            "String to u64",
        ),
        (
            "load t.pool words t.csv --key 1 --key 2",
            "a key of 2 columns is for typed maps",
        ),
        (
            "create t.pool n --key-type String --kind apex",
            "at most 8 bytes",
        ),
        ("create t.pool n --key-type unit", "cannot be a key"),
        ("create t.pool n --value-type Option<u8>", "known types"),
        (&deep, "such a long name"),
    ] {
        let refused = cli.fails(line);
        assert!(refused.contains(why), "{line}: {refused}");
    }
    assert_eq!(
        cli.ok("scan t.pool prices --limit 1"),
        "[null,\"\\\\n\"]\t1\n"
    );
    assert!(cli.ok("check t.pool").contains("sound"));
}

#[test]
fn typed_maps_are_listed_read_changed_and_checked_and_never_removed_by_a_load_that_fails() {
    let cli = Cli::new();
    let pool = Pool::create(cli.path("t.pool")).unwrap();
    let map = pool.typed::<(u32, String), f64>("prices").unwrap();
    for (tenant, name, price) in [(1, "tea", 2.5), (1, "milk", 1.0), (2, "tea", 3.0)] {
        map.insert((tenant, name), price).unwrap();
    }
    drop(map);
    pool.close().unwrap();
    assert!(cli.ok("list t.pool").contains("(u32, String) to f64"));
    assert!(cli.ok("--json stat t.pool").contains("\"typed\""));
    assert!(
        cli.ok("stat t.pool prices")
            .contains("(u32, String) to f64")
    );
    assert_eq!(cli.ok("get t.pool prices [1,\"tea\"]"), "2.5\n");
    assert_eq!(cli.ok("put t.pool prices [1,\"tea\"] 2.75"), "2.5\n");
    assert_eq!(
        cli.ok("scan t.pool prices --prefix [1]"),
        "[1,\"milk\"]\t1\n[1,\"tea\"]\t2.75\n"
    );
    assert_eq!(
        cli.ok("scan t.pool prices --reverse --limit 1"),
        "[2,\"tea\"]\t3\n"
    );
    assert_eq!(cli.ok("del t.pool prices [2,\"tea\"]"), "3\n");
    cli.fails("get t.pool prices [1]");
    // What is there already is not of this load, and stays.
    cli.write("t.csv", b"key,value\n1,2\n");
    cli.fails("load t.pool prices t.csv --key key --value value");
    // Nor is it one of other types, whether of strings or of numbers.
    cli.write("p.csv", b"key,value\n\"[1,\"\"tea\"\"]\",2.75\n");
    let load = "load t.pool prices p.csv --key key --value value";
    cli.ok(&format!("{load} --value-type f64"));
    for types in [
        "--value-type u8",
        "--key-type u64",
        "--key-type u32 --value-type f64",
    ] {
        let refused = cli.fails(&format!("{load} {types}"));
        assert!(refused.contains("(u32, String)"), "{types}: {refused}");
    }
    cli.ok("create t.pool raw --kind slotted");
    cli.fails("load t.pool raw p.csv --key-type u32");
    assert_eq!(cli.ok("get t.pool prices [1,\"milk\"]"), "1\n");
    let checked = cli.ok("check t.pool");
    assert!(checked.contains("prices") && checked.contains("sound"));
}

/// Texts of a type in the order of their keys, as the command line prints them.
fn samples(of: Type) -> Vec<String> {
    let texts: &[&str] = match of {
        Type::U64 => &["0", "7", "18446744073709551615"],
        Type::U32 => &["0", "7", "4294967295"],
        Type::U16 => &["0", "7", "65535"],
        Type::U8 => &["0", "7", "255"],
        Type::I64 => &["-9223372036854775808", "-1", "0"],
        Type::I32 => &["-2147483648", "-1", "0"],
        Type::I16 => &["-32768", "-1", "0"],
        Type::I8 => &["-128", "-1", "0"],
        Type::F64 | Type::F32 => &["-inf", "-0.5", "1.25"],
        Type::Bool => &["false", "true"],
        Type::Char => &["U+0009", "a", "é"],
        Type::Bytes1 => &["A", "z", "0xff"],
        Type::Unit => &["", ""],
        // Arrays of several bytes: text, and bytes that are none.
        _ => {
            let count = of.to_string()["[u8; ".len()..][..1].parse().unwrap();
            return vec![
                "A".repeat(count),
                "é".to_owned(),
                format!("0x{}", "ff".repeat(count)),
            ];
        }
    };
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn maps_of_every_type_of_keys_and_values_are_created_loaded_read_changed_and_checked() {
    let cli = Cli::in_memory();
    let printed = |words: &[&str]| {
        let output = cli.run_words(words.iter().copied());
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    for &of in Type::all() {
        let texts = samples(of);
        let name = of.to_string();
        // As a key with numbers, and as a value of numbers.
        for as_key in [true, false] {
            let types: [&str; 4] = match as_key {
                true => ["--key-type", &name, "--value-type", "u64"],
                false => ["--key-type", "u64", "--value-type", &name],
            };
            let [made, filled] = ["made", "filled"].map(|what| format!("{what} {name} {as_key}"));
            let creates = [&["create", "t.pool", made.as_str()], &types[..]].concat();
            if as_key && of == Type::Unit {
                let output = cli.run_words(creates);
                assert_eq!(output.status.code(), Some(2), "{output:?}");
                continue;
            }
            assert_eq!(printed(&creates), "");
            let record = |at: usize| match as_key {
                true => (texts[at].clone(), at.to_string()),
                false => (at.to_string(), texts[at].clone()),
            };
            let records: Vec<_> = (0..texts.len()).map(record).collect();
            let row = |(key, value): &(String, String)| format!("{key}\t{value}\n");
            let rows: String = records.iter().map(row).collect();
            let lines = records.iter().rev();
            let csv: String = lines
                .map(|(key, value)| format!("{key},{value}\n"))
                .collect();
            cli.write("t.csv", csv.as_bytes());
            let load = [
                "load",
                "t.pool",
                &filled,
                "t.csv",
                "--no-header",
                "--value",
                "2",
            ];
            printed(&[&load[..], &types[..]].concat());
            assert_eq!(printed(&["scan", "t.pool", &filled]), rows, "{of}");
            for (key, value) in records.iter().rev() {
                assert_eq!(printed(&["put", "t.pool", &made, "--", key, value]), "");
            }
            let keys = records.iter().map(|record| record.0.as_str());
            let get: Vec<&str> = ["get", "t.pool", &made, "--"]
                .into_iter()
                .chain(keys)
                .collect();
            let values: String = records
                .iter()
                .map(|(_, value)| format!("{value}\n"))
                .collect();
            assert_eq!(printed(&get), values, "{of}");
            assert_eq!(printed(&["scan", "t.pool", &made]), rows, "{of}");
            let (first, value) = &records[0];
            let range = ["scan", "t.pool", &made, "--to", first, "--reverse"];
            assert_eq!(printed(&range), row(&records[0]), "{of}");
            let removed = printed(&["del", "t.pool", &made, "--", first]);
            assert_eq!(removed, format!("{value}\n"), "{of}");
            let stat = printed(&["--json", "stat", "t.pool", &made]);
            let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
            assert_eq!(stat["records"], records.len() - 1, "{of}");
        }
    }
    assert!(printed(&["stat", "t.pool"]).contains("[u8; 3] to u64"));
    printed(&["check", "t.pool"]);
    // The types in the pool are those that programs ask for.
    let pool = Pool::open(cli.path("t.pool")).unwrap();
    let map = pool.open_map::<i16, u64>("filled i16 true").unwrap();
    assert_eq!(map.get(-1).unwrap(), Some(1));
    let map = pool.open_map::<u64, char>("filled char false").unwrap();
    assert_eq!(map.get(2).unwrap(), Some('é'));
}

#[test]
fn what_is_no_value_of_its_type_is_refused_typed_and_reported_in_a_file() {
    let cli = Cli::new();
    cli.ok("create t.pool m --key-type u8 --value-type bool");
    for line in ["put t.pool m 256 true", "put t.pool m -1 true"] {
        assert!(cli.fails(line).contains("not a u8"));
    }
    assert!(cli.fails("put t.pool m 1 2").contains("not a bool"));
    let unknown = cli.fails("create t.pool n --key-type u256");
    assert!(unknown.contains("known types: u64") && unknown.contains("bytes7"));
    assert!(unknown.contains("(u32, String)"), "{unknown}");
    let pool = Pool::open(cli.path("t.pool")).unwrap();
    pool.open_map_of_words("m").unwrap().1.insert(1, 2).unwrap();
    pool.close().unwrap();
    assert!(cli.fails("get t.pool m 1").contains("damaged"));
    assert!(cli.fails("scan t.pool m").contains("damaged"));
}

#[test]
fn types_that_are_said_count_for_every_kind_of_map() {
    let cli = Cli::new();
    cli.ok("create t.pool bytes --kind slotted");
    cli.ok("create t.pool typed --kind slotted --key-type u64 --value-type u32");
    cli.ok("create t.pool half --kind slotted --key-type i64");
    let types: serde_json::Value = serde_json::from_str(&cli.ok("--json list t.pool")).unwrap();
    let mut types: Vec<&str> = (types.as_array().unwrap().iter())
        .map(|row| row["types"].as_str().unwrap())
        .collect();
    types.sort_unstable();
    assert_eq!(types, ["byte strings", "i64 to u64", "u64 to u32"]);
    cli.ok("put t.pool typed 10 7");
    cli.ok("put t.pool typed 9 8");
    assert_eq!(cli.ok("scan t.pool typed"), "9\t8\n10\t7\n");
}

#[test]
fn hexadecimal_digits_are_for_maps_with_text_or_bytes() {
    let cli = Cli::in_memory();
    for (name, types) in [
        ("numbers", ""),
        ("words", "--key-type bytes8"),
        ("wide", "--key-type u128"),
    ] {
        cli.ok(&format!("create t.pool {name} {types}"));
        for line in ["put", "get", "del", "scan"] {
            let arguments = match line {
                "put" => "61626364 1",
                "scan" => "",
                _ => "61626364",
            };
            let said = cli.fails(&format!("{line} t.pool {name} {arguments} --hex"));
            assert!(said.contains("--hex is for"), "{said}");
        }
        assert_eq!(cli.ok(&format!("scan t.pool {name}")), "");
    }
    for (name, types) in [
        ("bytes", "--kind slotted --value-type u8 --key-type Vec<u8>"),
        ("array", "--key-type bytes9"),
        ("value", "--value-type String"),
    ] {
        cli.ok(&format!("create t.pool {name} {types}"));
        let key = match name {
            "array" => "616263646566676869",
            "value" => "7",
            _ => "ff00",
        };
        cli.ok(&format!("put t.pool {name} {key} 31 --hex"));
        let scanned = cli.ok(&format!("scan t.pool {name} --hex"));
        assert_eq!(scanned, format!("{key}\t31\n"));
    }
}

#[test]
fn types_have_the_names_that_people_try() {
    let cli = Cli::in_memory();
    for (at, (said, name)) in [
        ("string", "String"),
        ("str", "String"),
        ("text", "String"),
        ("bytes", "Vec<u8>"),
        ("bytes09", "[u8; 9]"),
        ("bytes07", "[u8; 7]"),
        ("(u32,text)", "(u32, String)"),
        ("(bytes,bytes4)", "(Vec<u8>, [u8; 4])"),
        ("Option<string>", "Option<String>"),
    ]
    .into_iter()
    .enumerate()
    {
        let map = format!("m{at}");
        cli.ok(&format!("create t.pool {map} --key-type {said}"));
        let shown = cli.ok("list t.pool");
        assert!(shown.contains(&format!("{name} to u64")), "{said}: {shown}");
    }
    cli.ok("create t.pool values --value-type text");
    cli.ok("put t.pool values 1 tea");
    assert_eq!(cli.ok("get t.pool values 1"), "tea\n");
    // What is no type is told those that there are, these names included.
    for said in ["int", "bytes-1", "texts", "text8", "my_string"] {
        let refused = cli.fails(&format!("create t.pool n --key-type {said}"));
        assert!(refused.contains("known types: u64"), "{said}: {refused}");
        assert!(refused.contains("str, text"), "{said}: {refused}");
    }
}

#[test]
fn arrays_that_no_record_can_have_are_refused_before_there_is_a_map() {
    let cli = Cli::in_memory();
    for (types, why) in [
        ("--key-type bytes65537", "a key has at most 65536 bytes"),
        (
            "--key-type bytes99999999999999999999",
            "a key has at most 65536 bytes",
        ),
        (
            "--value-type bytes1073741825",
            "a value has at most 1073741824 bytes",
        ),
        (
            "--key-type (u32,bytes65533)",
            "a key of the type (u32, [u8; 65533]) has at least 65537 bytes, and a key has at most 65536",
        ),
        (
            "--key-type Option<bytes65536>",
            "with a Some has at least 65537 bytes",
        ),
    ] {
        let refused = cli.fails(&format!("create t.pool n {types}"));
        assert!(refused.contains(why), "{types}: {refused}");
    }
    assert!(!cli.path("t.pool").exists());
    // The longest key is one that a map takes.
    cli.ok("create t.pool m --key-type bytes65536");
    let line = "k".repeat(65_536);
    cli.write("lines", line.as_bytes());
    cli.ok("load t.pool m lines --format lines");
    assert_eq!(cli.ok("scan t.pool m"), format!("{line}\t0\n"));
    cli.ok("create t.pool v --value-type bytes1073741824");
}
