//! The short form of the search: the pool and the LB+-tree, every change of structure, more than a million images.
//! `indelible crash --deep` is the long form.

use indelible_crash::{Coverage, Limits, Medium, Run, Tally, maps};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;

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
const CHANGES: [&str; 21] = [
    "bulk load",
    "clean close",
    "directory made",
    "empty leaf relinked",
    "entry moving",
    "extent freed",
    "extent taken",
    "file growth",
    "file shrink",
    "inner merge",
    "inner split",
    "leaf merge",
    "leaf split",
    "map created",
    "map dropped",
    "open",
    "root growth",
    "root shrink",
    "signpost added",
    "signpost removed",
    "unlink of an emptied leaf",
];

#[test]
fn whatever_a_crash_leaves_nothing_acknowledged_is_missing() {
    let tally = Tally::default();
    let mut coverage = explore(Medium::Pmem, 1, 200, 320, &tally);
    for threads in 2..=4 {
        coverage.merge(explore(Medium::Pmem, threads, 40, 210, &tally));
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
    let mut coverage = explore(Medium::Process, 1, 200, 320, &tally);
    coverage.merge(explore(Medium::Process, 3, 40, 210, &tally));
    assert!(coverage.images.iter().all(|&images| images > 1_000));
}

#[test]
fn a_run_repeats_from_its_seed() {
    for threads in [1, 3] {
        let images = |_| {
            let tally = Tally::default();
            explore(Medium::Pmem, threads, 40, 16, &tally);
            (tally.images(), tally.distinct())
        };
        let [first, second] = [0, 1].map(images);
        assert_eq!(first, second);
    }
}

#[test]
fn recorded_histories_of_threads_are_linearizable() {
    for threads in 2..=4 {
        let run = Run {
            history: &|seed| lbtree::history(seed, 40, threads),
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
            panic!("{threads} threads: {failure}");
        }
        println!("{threads} threads: {:?}", summary.elapsed);
    }
}
