//! One contract for all contestants: what the bench relies on when it compares them.

use super::{Contestant, Place, Survives, all, entrant, find, name_of};
use crate::index::Index;
use indelible::{Kind, MapOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Keys at both ends, neighbours, and some in between.
const EDGES: [u64; 9] = [
    0,
    1,
    2,
    255,
    256,
    1 << 63,
    u64::MAX - 256,
    u64::MAX - 1,
    u64::MAX,
];

/// A directory and a new index in it.
fn fresh(contestant: &Contestant) -> (TempDir, Place, Box<dyn Index>) {
    let directory = tempfile::tempdir().expect("a directory");
    let place = contestant.place(directory.path().to_owned());
    let index = (contestant.create)(&place)
        .unwrap_or_else(|error| panic!("{}: {error:#}", contestant.name));
    (directory, place, index)
}

/// All that keep what they are given.
fn maps() -> impl Iterator<Item = Contestant> {
    all()
        .into_iter()
        .filter(|contestant| contestant.name != "nothing" && contestant.points.is_none())
}

/// Whether every write waits for a disk.
fn is_slow(contestant: &Contestant) -> bool {
    contestant.waits_for_sync()
}

fn model_scan(model: &BTreeMap<u64, u64>, from: u64, count: usize) -> Vec<(u64, u64)> {
    let records = model.range(from..).take(count);
    records.map(|(&key, &value)| (key, value)).collect()
}

fn scan(index: &dyn Index, from: u64, count: usize) -> Vec<(u64, u64)> {
    let mut page = vec![(1, 2)];
    index.scan(from, count, &mut page);
    assert_eq!(page.remove(0), (1, 2));
    page
}

/// Everything in the index is what is in the model, from wherever one looks.
fn compare(name: &str, index: &dyn Index, model: &BTreeMap<u64, u64>) {
    for (&key, &value) in model {
        assert_eq!(index.get(key), Some(value), "{name}: get {key}");
    }
    for from in EDGES {
        for count in [0, 1, 2, 7, 101, 5000] {
            let (found, expected) = (scan(index, from, count), model_scan(model, from, count));
            assert_eq!(found, expected, "{name}: scan {from}, {count}");
        }
    }
}

/// A key that is likely to have been drawn before, or an edge.
fn draw(random: &mut SmallRng) -> u64 {
    match random.random_range(0..10) {
        0 => EDGES[random.random_range(0..EDGES.len())],
        1..5 => random.random_range(0..300),
        _ => random
            .random_range(0..300_u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15),
    }
}

/// One random operation on both.
fn step(name: &str, index: &dyn Index, model: &mut BTreeMap<u64, u64>, random: &mut SmallRng) {
    let (key, value) = (draw(random), random.random());
    match random.random_range(0..8) {
        0 | 1 => {
            index.insert(key, value);
            model.insert(key, value);
        }
        2 => {
            let place = model.get_mut(&key);
            let expected = place.map(|place| *place = value).is_some();
            assert_eq!(index.update(key, value), expected, "{name}: update {key}");
        }
        3 => {
            let expected = model.remove(&key).is_some();
            assert_eq!(index.remove(key), expected, "{name}: remove {key}");
        }
        4 => {
            let batch: Vec<_> = (0..20).map(|_| (draw(random), random.random())).collect();
            index.insert_batch(&batch);
            model.extend(batch);
        }
        5 => {
            let batch: Vec<_> = (0..20).map(|_| draw(random)).collect();
            let expected = batch.iter().filter(|key| model.contains_key(key)).count();
            assert_eq!(index.get_batch(&batch), expected, "{name}: get_batch");
        }
        6 => {
            let count = random.random_range(0..200);
            let expected = model_scan(model, key, count);
            assert_eq!(scan(index, key, count), expected, "{name}: scan {key}");
        }
        _ => assert_eq!(index.get(key), model.get(&key).copied(), "{name}: {key}"),
    }
}

#[test]
fn all_contestants_do_what_an_ordered_map_does() {
    for contestant in maps() {
        let name = contestant.name.as_str();
        let (_directory, _place, index) = fresh(&contestant);
        let mut model = BTreeMap::new();
        compare(name, &*index, &model);
        let mut random = SmallRng::seed_from_u64(1);
        let steps = if is_slow(&contestant) { 60 } else { 4000 };
        for _ in 0..steps {
            step(name, &*index, &mut model, &mut random);
        }
        for key in EDGES {
            model.insert(key, !key);
        }
        index.insert_batch(&EDGES.map(|key| (key, !key)));
        compare(name, &*index, &model);
    }
}

#[test]
fn empty_and_repeating_batches_are_no_special_case() {
    for contestant in maps() {
        let name = contestant.name.as_str();
        let (_directory, _place, index) = fresh(&contestant);
        index.insert_batch(&[]);
        assert_eq!(index.get_batch(&[]), 0, "{name}");
        index.insert_batch(&[(5, 1), (3, 2), (5, 3)]);
        assert_eq!(index.get(5), Some(3), "{name}: the last one wins");
        assert_eq!(index.get_batch(&[3, 4, 5, 5]), 3, "{name}");
    }
}

#[test]
fn bulk_loads_hold_what_was_loaded_and_take_more() {
    for contestant in maps() {
        let (_directory, _place, index) = fresh(&contestant);
        let mut model: BTreeMap<_, _> = (0..3000).map(|i| (i * 7, i)).collect();
        model.insert(u64::MAX, 1);
        let records: Vec<_> = model.iter().map(|(&key, &value)| (key, value)).collect();
        if !index.bulk_load(&records, 0.7) {
            assert_eq!(scan(&*index, 0, 1), [], "{}", contestant.name);
            continue;
        }
        compare(&contestant.name, &*index, &model);
        for key in 100..105 {
            index.insert(key, key);
            model.insert(key, key);
        }
        assert!(model.remove(&14).is_some() && index.remove(14));
        assert_eq!(index.get(14), None, "{}", contestant.name);
        compare(&contestant.name, &*index, &model);
    }
}

#[test]
fn ours_say_what_they_are_made_of_and_others_do_not() {
    for contestant in maps() {
        let (_directory, _place, index) = fresh(&contestant);
        let records: Vec<_> = (0..500).map(|key| (key * key, key)).collect();
        index.insert_batch(&records);
        let statistics = index.statistics();
        assert_eq!(statistics.is_some(), contestant.is_ours());
        let Some(statistics) = statistics else {
            continue;
        };
        let name = &contestant.name;
        let kind = contestant.map.as_ref().map(|map| map.kind().name());
        assert_eq!(Some(statistics.kind.as_str()), kind, "{name}");
        assert_eq!(statistics.records, 500, "{name}");
        assert!(!statistics.facts.is_empty(), "{name}");
    }
}

/// Contestants of ours have the kind of index that their names say, with the options that follow the names.
#[test]
fn every_kind_has_five_contestants_with_any_options() {
    for &kind in Kind::all() {
        for ending in ["", "-dram", "-pmem", "-disk", "-disk-10ms"] {
            let name = format!("{}{ending}", name_of(kind));
            let contestant = entrant(&name).expect("a contestant");
            assert_eq!(contestant.map, Some(kind.into()), "{name}");
            for option in kind.options() {
                for wanted in MapOptions::extremes(kind) {
                    let value = wanted.get(option.name).expect("an option");
                    let setting = format!("{name}@{}={value}", option.name);
                    let contestant = entrant(&setting).expect("a contestant");
                    let (_directory, _place, index) = fresh(&contestant);
                    assert_eq!(index.get(1), None);
                    let map = contestant.map.expect("one of ours");
                    assert_eq!(map.get(option.name), Some(value), "{setting}");
                    assert!(contestant.name == setting && contestant.about.contains(option.name));
                }
            }
            assert!(entrant(&format!("{name}@512")).is_err());
        }
    }
    assert!(entrant("btreemap@leaf=512").is_err() && entrant("nobody@leaf=512").is_err());
}

#[test]
fn four_threads_find_what_they_wrote() {
    for contestant in maps() {
        let (_directory, _place, index) = fresh(&contestant);
        let operations = if is_slow(&contestant) { 6 } else { 1000 };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (index, name) = (&*index, contestant.name.as_str());
                scope.spawn(move || work(name, index, thread, operations));
            }
        });
        let left = scan(&*index, 0, 10_000).len();
        let expected = 4 * operations.div_ceil(2);
        assert_eq!(left, expected as usize, "{}", contestant.name);
    }
}

/// Keys of four threads lie side by side. Every other one goes again.
fn work(name: &str, index: &dyn Index, thread: u64, operations: u64) {
    for i in 0..operations {
        let key = i * 4 + thread;
        index.insert(key, i);
        assert_eq!(index.get(key), Some(i), "{name}");
        assert!(index.update(key, i + 1), "{name}");
        assert_eq!(index.get(key), Some(i + 1), "{name}");
        // Congee 0.4.1 does not look at a node's version again after it has read the last of its children (`range_scan.rs`), so a range
        // beside writers can miss records. One has been empty here.
        let found = !scan(index, key, 5).is_empty();
        assert!(found || name == "congee", "{name}");
        if i % 2 == 1 {
            assert!(index.remove(key), "{name}");
            assert_eq!(index.get(key), None, "{name}");
        }
    }
}

#[test]
fn what_was_closed_is_there_when_it_is_opened_again() {
    for contestant in maps() {
        let Some(open) = contestant.open else {
            assert_eq!(contestant.survives, Survives::Nothing);
            continue;
        };
        let name = contestant.name.as_str();
        let (_directory, place, index) = fresh(&contestant);
        let mut model = BTreeMap::new();
        let mut random = SmallRng::seed_from_u64(2);
        for _ in 0..if is_slow(&contestant) { 20 } else { 500 } {
            step(name, &*index, &mut model, &mut random);
        }
        drop(index);
        let index = open(&place).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        compare(name, &*index, &model);
        index.insert(77, 78);
        model.insert(77, 78);
        compare(name, &*index, &model);
    }
}

#[test]
fn nothing_is_opened_where_nothing_was_created() {
    for contestant in maps() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = contestant.place(directory.path().to_owned());
        let opened = contestant.open.map(|open| open(&place).is_err());
        assert_ne!(opened, Some(false), "{}", contestant.name);
    }
}

/// Where the child of the next test works, and as whom.
const CHILD: &str = "INDELIBLE_BENCH_TEST_CHILD";

/// Records that it has acknowledged before it is killed.
const ACKNOWLEDGED: u64 = 20;

#[test]
fn what_was_acknowledged_survives_a_real_kill() {
    for contestant in maps() {
        let Some(open) = contestant.open else {
            continue;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let place = contestant.place(directory.path().to_owned());
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "--nocapture", "contestants::tests::child"])
            .env(CHILD, &contestant.name)
            .current_dir(&place.directory)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.ends_with("acknowledged")));
        child.kill().expect("kill -9");
        child.wait().expect("its end");
        assert!(ready, "{}: the child failed", contestant.name);
        let index = open(&place).unwrap_or_else(|error| panic!("{}: {error:#}", contestant.name));
        for key in 0..ACKNOWLEDGED {
            assert_eq!(index.get(key), Some(!key), "{}: {key}", contestant.name);
        }
    }
}

/// Writes, says so, and waits for its end. Does nothing unless the test above starts it.
#[test]
fn child() {
    let Ok(name) = std::env::var(CHILD) else {
        return;
    };
    let contestant = find(&name).expect("a contestant");
    let place = contestant.place(std::env::current_dir().expect("a directory"));
    let index = (contestant.create)(&place).expect("an index");
    let half = ACKNOWLEDGED / 2;
    (0..half).for_each(|key| index.insert(key, !key));
    let batch: Vec<_> = (half..ACKNOWLEDGED).map(|key| (key, !key)).collect();
    index.insert_batch(&batch);
    println!("\nacknowledged");
    let _ = std::io::stdin().read(&mut [0]);
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn contestants_are_found_by_name_and_the_error_lists_them() {
    let all = all();
    for (place, contestant) in all.iter().enumerate() {
        let found = find(&contestant.name).expect("a known name");
        assert_eq!(found.about, contestant.about);
        let earlier = &all[..place];
        assert!(!earlier.iter().any(|other| other.name == contestant.name));
    }
    let ours = all.iter().take_while(|contestant| contestant.is_ours());
    let total = all.iter().filter(|contestant| contestant.is_ours());
    assert_eq!(ours.count(), total.count(), "ours come first");
    let error = find("bdb").expect_err("an unknown name").to_string();
    for contestant in &all {
        assert!(error.contains(&contestant.name), "{error}");
    }
}

/// The versions in `about` are those that are linked.
#[test]
fn descriptions_name_the_versions_in_the_lock_file() {
    let lock = include_str!("../../../../Cargo.lock");
    for contestant in all() {
        let words = contestant.about.split([' ', ':']).collect::<Vec<_>>();
        let is_version = |word: &str| word.split('.').all(|part| part.parse::<u32>().is_ok());
        let Some(place) = words.iter().position(|word| is_version(word)) else {
            continue;
        };
        let (name, version) = (words[place - 1], words[place]);
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"");
        assert!(
            lock.contains(&entry),
            "{}: {name} {version}",
            contestant.name
        );
    }
}
