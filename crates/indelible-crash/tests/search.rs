//! The short form of the search: the pool and both kinds of index, every change of structure, more than a million images.
//! `indelible crash --deep` is the long form.

use indelible_crash::indelible::Kind;
use indelible_crash::{Coverage, Limits, Medium, Run, Tally, maps};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Histories of so many operations by so many threads.
fn explore(
    kind: Kind,
    medium: Medium,
    threads: usize,
    operations: usize,
    histories: u64,
    tally: &Tally,
) -> Coverage {
    let run = Run {
        history: &|seed| maps::history(Some(kind), seed, operations, threads),
        medium,
        limits: Limits::default(),
        seed: 0,
        histories,
        time: None,
        workers: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let summary = run.go(tally, &AtomicU64::new(0));
    if let Some(failure) = summary.failure {
        panic!("{kind}, {threads} threads of {operations} operations: {failure}");
    }
    println!(
        "{kind}, {medium:?}, {threads} threads: images {:?}, {} distinct so far, {:?}",
        summary.coverage.images, summary.distinct, summary.elapsed
    );
    summary.coverage
}

/// Every change of structure that there is, as the library notes it.
const CHANGES: [&str; 29] = [
    "bulk load",
    "clean close",
    "data node replaced",
    "directory made",
    "empty leaf relinked",
    "entry moving",
    "extent freed",
    "extent taken",
    "file growth",
    "file shrink",
    "inner merge",
    "inner node collapsed",
    "inner node grown",
    "inner nodes laid out anew",
    "inner split",
    "leaf merge",
    "leaf split",
    "map created",
    "map dropped",
    "merge",
    "open",
    "root growth",
    "root shrink",
    "signpost added",
    "signpost removed",
    "split downwards",
    "split sideways",
    "stash extended",
    "unlink of an emptied leaf",
];

/// And in how many shapes at least, where those make a difference: a data node replaced by a larger, an equal and a smaller one; an inner
/// node that grows finer, to the right and to the left; slots in one cache line and in several.
const SHAPES: [(&str, usize); 4] = [
    ("data node replaced", 3),
    ("inner node grown", 3),
    ("merge", 2),
    ("split sideways", 3),
];

#[test]
fn whatever_a_crash_leaves_nothing_acknowledged_is_missing() {
    let tally = Tally::default();
    let mut coverage = Coverage::default();
    for (kind, alone, together) in [(Kind::LbTree, 320, 210), (Kind::Apex, 264, 108)] {
        coverage.merge(explore(kind, Medium::Pmem, 1, 200, alone, &tally));
        for threads in 2..=4 {
            coverage.merge(explore(kind, Medium::Pmem, threads, 40, together, &tally));
        }
    }
    let changes: BTreeSet<&str> = coverage.changes.keys().copied().collect();
    let missing: Vec<&str> = CHANGES
        .into_iter()
        .filter(|kind| !changes.contains(kind))
        .collect();
    assert!(
        missing.is_empty(),
        "changes of structure not met: {missing:?}"
    );
    for (kind, shapes) in SHAPES {
        let met = &coverage.changes[kind];
        assert!(met.len() >= shapes, "shapes of {kind}: {met:?}");
    }
    // Leaves of one block: from the header's line to each of the others, with as many records moved as there can be.
    let shapes = coverage.changes["entry moving"].keys();
    let of_one_block = shapes.filter(|&&shape| shape < 0x100).count();
    assert_eq!(of_one_block, 4 + 4 + 3, "shapes of entry moving");
    let missed = coverage.commits_missed();
    assert!(missed.is_empty(), "not crashed on both sides: {missed:#?}");
    assert!(coverage.images.iter().all(|&images| images > 10_000));
    assert!(tally.distinct() > 1_000_000, "{} images", tally.distinct());
}

#[test]
fn a_killed_process_leaves_nothing_unacknowledged_in_part() {
    let tally = Tally::default();
    let mut coverage = Coverage::default();
    for (kind, alone, together) in [(Kind::LbTree, 320, 210), (Kind::Apex, 132, 108)] {
        coverage.merge(explore(kind, Medium::Process, 1, 200, alone, &tally));
        coverage.merge(explore(kind, Medium::Process, 3, 40, together, &tally));
    }
    assert!(coverage.images.iter().all(|&images| images > 1_000));
}

#[test]
fn a_run_repeats_from_its_seed() {
    for (kind, threads) in maps::KINDS
        .into_iter()
        .flat_map(|kind| [(kind, 1), (kind, 3)])
    {
        let images = |_| {
            let tally = Tally::default();
            explore(kind, Medium::Pmem, threads, 40, 16, &tally);
            (tally.images(), tally.distinct())
        };
        let [first, second] = [0, 1].map(images);
        assert_eq!(first, second);
    }
}

#[test]
fn recorded_histories_of_threads_are_linearizable() {
    for (kind, threads) in (2..=4).flat_map(|threads| maps::KINDS.map(|kind| (kind, threads))) {
        let run = Run {
            history: &|seed| maps::history(Some(kind), seed, 40, threads),
            medium: Medium::Pmem,
            limits: Limits {
                images_per_point: 0,
                ..Limits::default()
            },
            seed: 1_000_000,
            histories: 4_000,
            time: None,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
        };
        let summary = run.go(&Tally::default(), &AtomicU64::new(0));
        if let Some(failure) = summary.failure {
            panic!("{kind}, {threads} threads: {failure}");
        }
        println!("{kind}, {threads} threads: {:?}", summary.elapsed);
    }
}

#[test]
fn a_run_ends_when_its_time_is_up_within_a_history_too() {
    let run = Run {
        history: &|seed| maps::history(None, seed, 200, 1),
        medium: Medium::Pmem,
        // Millions of images, which would take most of an hour.
        limits: Limits {
            images_per_point: 1 << 20,
            nested_every: 1,
            depth: 3,
        },
        seed: 7,
        histories: 1,
        time: Some(Duration::from_millis(50)),
        workers: 1,
    };
    let summary = run.go(&Tally::default(), &AtomicU64::new(0));
    assert!(summary.failure.is_none() && summary.distinct > 0);
}
