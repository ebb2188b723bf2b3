//! The search over the pool and every kind of index. The short form, which CI runs, meets every change of structure and crashes both sides
//! of every commit point; with INDELIBLE_DEEP=1 (`.ci/deep search`) it explores several times as many histories, more than a million
//! images. `indelible crash --deep` goes on for as long as it is told.

use indelible_crash::any::Made;
use indelible_crash::indelible::SpatialKind;
use indelible_crash::indelible::checker::AnyKind;
use indelible_crash::{Coverage, CrashModel, Limits, Search, Tally, any};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

fn is_deep() -> bool {
    std::env::var_os("INDELIBLE_DEEP").is_some()
}

/// All of so many histories, or the part of them that the short form explores.
fn part(histories: u64) -> u64 {
    if is_deep() {
        histories
    } else {
        histories.div_ceil(PART)
    }
}

/// The short form explores one history in so many.
const PART: u64 = 12;

/// Images at one point of a history that is there for what it provokes. Some of these histories have a hundred thousand images, of which each
/// takes a millisecond.
const IMAGES_OF_RARE: usize = 24;

/// The short form crashes fewer recoveries of what is not a map of words. Maps of byte strings have ten times as many images as others, with
/// their blobs, and recoveries of spatial indexes take long: each of them would take as long as all others together.
fn limits(kind: AnyKind) -> Limits {
    let mut limits = Limits::default();
    if is_deep() {
        return limits;
    }
    let (nested_every, images_per_point) = match kind {
        AnyKind::Map(_) => (1, limits.images_per_point / 2),
        AnyKind::Strings(_) => (8, 48),
        AnyKind::Spatial(_) => (2, 64),
    };
    limits.nested_every *= nested_every;
    limits.images_per_point = images_per_point;
    limits
}

/// A history, in a pool that survives such crashes.
fn history(
    kind: AnyKind,
    seed: u64,
    operations: usize,
    threads: usize,
    crash_model: CrashModel,
) -> Made {
    let (mut index, workload) = any::history(Some(kind), seed, operations, threads);
    index.promise(any::promised(crash_model, seed));
    (index, workload)
}

/// Histories of so many operations by so many threads.
fn explore(
    seeds: Range<u64>,
    kind: AnyKind,
    crash_model: CrashModel,
    limits: Limits,
    threads: usize,
    operations: usize,
    tally: &Tally,
) -> Coverage {
    let run = Search {
        history: &|seed| history(kind, seed, operations, threads, crash_model),
        crash_model,
        limits,
        seed: seeds.start,
        histories: seeds.end - seeds.start,
        time: None,
        workers: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let summary = run.go(tally, &AtomicU64::new(0));
    if let Some(failure) = summary.failure {
        panic!("{kind}, {threads} threads of {operations} operations: {failure}");
    }
    println!(
        "{kind}, {crash_model:?}, {threads} threads: images {:?}, {} distinct so far, {:?}",
        summary.coverage.images, summary.distinct, summary.elapsed
    );
    summary.coverage
}

/// The histories of a kind are explored in so many rounds, each with as many histories of each number of threads.
const ROUNDS: u64 = 24;

/// After so many rounds the short form ends, whatever it has met. What it has not met by then is a hole in the histories.
const MOST_ROUNDS: u64 = 8;

/// Distinct images of one kind that the short form looks at, at least. (The deep form looks at millions.)
const LEAST_OF_A_KIND: u64 = 25_000;

/// Everything that the engine lists has been met, but for what its histories are known not to provoke.
fn meets_all(coverage: &Coverage, kind: AnyKind) -> bool {
    coverage.missed_of_engine(kind).len() == kind.not_provoked().len()
}

/// The search for one kind. The short form ends as soon as it has met everything and has looked at enough images.
fn search(kind: AnyKind, tally: &Tally) -> Coverage {
    let mut coverage = Coverage::default();
    let mut limits_of_rare = Limits::default();
    if !is_deep() {
        limits_of_rare.images_per_point = IMAGES_OF_RARE;
    }
    for &seed in kind.rare_seeds() {
        let (model, seeds) = (CrashModel::Pmem, seed..seed + 1);
        coverage.merge(explore(seeds, kind, model, limits_of_rare, 1, 200, tally));
    }
    let [alone, together] = kind.histories();
    let before = tally.distinct();
    let rounds = if is_deep() { ROUNDS } else { MOST_ROUNDS };
    for (round, threads) in
        (0..rounds).flat_map(|round| (1..=4).map(move |threads| (round, threads)))
    {
        // Every number of threads has had its part of the first round before the short form ends.
        let is_enough = round > 0 && tally.distinct() - before >= LEAST_OF_A_KIND;
        if !is_deep() && is_enough && meets_all(&coverage, kind) {
            break;
        }
        let (histories, operations) = if threads == 1 {
            (alone, 200)
        } else {
            (together, 40)
        };
        let [first, end] = [round, round + 1].map(|round| histories * round / ROUNDS);
        let (model, limits) = (CrashModel::Pmem, limits(kind));
        coverage.merge(explore(
            first..end,
            kind,
            model,
            limits,
            threads,
            operations,
            tally,
        ));
    }
    coverage
}

/// What is missed of a kind, apart from what its histories are known not to provoke.
fn missed(coverage: &Coverage, kind: AnyKind) -> Vec<String> {
    let is_gap = |missed: &str| {
        let mut gaps = kind.not_provoked().iter();
        gaps.any(|gap| missed.starts_with(gap))
    };
    let mut missed = coverage.missed_of_engine(kind);
    missed.retain(|missed| !is_gap(missed));
    missed
}

/// The search for one kind that is not a map of words, and what it must have met.
fn search_alone(kind: AnyKind) {
    let tally = Tally::default();
    let coverage = search(kind, &tally);
    let not_met = missed(&coverage, kind);
    assert!(not_met.is_empty(), "{kind}: not met: {not_met:#?}");
    let (missed, gaps) = (coverage.missed_of_engine(kind), kind.not_provoked());
    assert_eq!(
        missed.len(),
        gaps.len(),
        "{kind}: met after all: {missed:#?} of {gaps:?}"
    );
    let unlisted = coverage.commits_unlisted(&AnyKind::all());
    assert!(
        unlisted.is_empty(),
        "{kind}: in no list of commit points: {unlisted:#?}"
    );
    let least = if is_deep() { 500_000 } else { 25_000 };
    assert!(
        tally.distinct() > least,
        "{kind}: {} images",
        tally.distinct()
    );
}

#[test]
fn whatever_a_crash_leaves_of_a_spatial_index_nothing_acknowledged_is_missing() {
    // Side by side, since some histories of each keep one processor busy for long.
    std::thread::scope(|threads| {
        for kind in AnyKind::all() {
            if !matches!(kind, AnyKind::Map(_)) {
                threads.spawn(move || search_alone(kind));
            }
        }
    });
}

#[test]
fn whatever_a_crash_leaves_nothing_acknowledged_is_missing() {
    let tally = Tally::default();
    let mut coverage = Coverage::default();
    let kinds: Vec<AnyKind> = AnyKind::all()
        .into_iter()
        .filter(|kind| matches!(kind, AnyKind::Map(_)))
        .collect();
    for &kind in &kinds {
        coverage.merge(search(kind, &tally));
    }
    let missed = coverage.changes_missed(&kinds);
    assert!(
        missed.is_empty(),
        "changes of structure not met: {missed:#?}"
    );
    let missed = coverage.commits_missed(&kinds);
    assert!(missed.is_empty(), "not crashed on both sides: {missed:#?}");
    let unlisted = coverage.commits_unlisted(&kinds);
    assert!(
        unlisted.is_empty(),
        "in no list of commit points: {unlisted:#?}"
    );
    let [least, distinct] = if is_deep() {
        [10_000, 1_000_000]
    } else {
        [1_000, 100_000]
    };
    assert!(coverage.images.iter().all(|&images| images > least));
    assert!(tally.distinct() > distinct, "{} images", tally.distinct());
}

/// The search for one kind of index whose process dies. It ends when it has met everything; in the short form at once if the kind is one of
/// those whose images take long.
fn search_killed(kind: AnyKind, tally: &Tally) -> Coverage {
    let (model, limits) = (CrashModel::Process, limits(kind));
    let is_fast = matches!(
        kind,
        AnyKind::Map(_) | AnyKind::Spatial(SpatialKind::PmRtree)
    );
    let meets_all = is_fast || is_deep();
    let mut coverage = Coverage::default();
    for &seed in kind.rare_seeds().iter().filter(|_| meets_all) {
        let seeds = seed..seed + 1;
        coverage.merge(explore(seeds, kind, model, limits, 1, 200, tally));
    }
    let rounds = if meets_all { 4 * ROUNDS } else { 1 };
    for round in 0..rounds {
        if round > 0 && !is_deep() && missed(&coverage, kind).is_empty() {
            break;
        }
        let [alone, together] = [2, 12].map(|number| number * round..number * (round + 1));
        coverage.merge(explore(alone, kind, model, limits, 1, 200, tally));
        coverage.merge(explore(together, kind, model, limits, 3, 40, tally));
    }
    let missed = missed(&coverage, kind);
    assert!(
        !meets_all || missed.is_empty(),
        "{kind}: not met: {missed:#?}"
    );
    coverage
}

#[test]
fn a_killed_process_leaves_nothing_unacknowledged_in_part() {
    let tally = Tally::default();
    let mut coverage = Coverage::default();
    for kind in AnyKind::all() {
        let of_kind = search_killed(kind, &tally);
        assert!(of_kind.images[0] > 1_000, "{kind}: {:?}", of_kind.images);
        coverage.merge(of_kind);
    }
    assert!(coverage.images.iter().all(|&images| images > 1_000));
}

#[test]
fn a_run_repeats_from_its_seed() {
    let kinds = AnyKind::all().into_iter();
    for (kind, threads) in kinds.flat_map(|kind| [(kind, 1), (kind, 3)]) {
        let images = |_| {
            let run = Search {
                history: &|seed| any::history(Some(kind), seed, 40, threads),
                crash_model: CrashModel::Pmem,
                // Few, since what happened before the crash is what could differ.
                limits: Limits {
                    images_per_point: 4,
                    ..Limits::default()
                },
                seed: 0,
                histories: if is_deep() { 16 } else { 4 },
                time: None,
                workers: 2,
            };
            let tally = Tally::default();
            let summary = run.go(&tally, &AtomicU64::new(0));
            assert!(summary.failure.is_none(), "{:?}", summary.failure);
            (tally.images(), tally.distinct())
        };
        let [first, second] = [0, 1].map(images);
        assert_eq!(first, second, "{kind}, {threads} threads");
    }
}

#[test]
fn recorded_histories_of_threads_are_linearizable() {
    let kinds = AnyKind::all().into_iter();
    for (kind, threads) in kinds.flat_map(|kind| (2..=4).map(move |threads| (kind, threads))) {
        let run = Search {
            // Without crashes; pools of both promises in turn.
            history: &|seed| history(kind, seed, 40, threads, CrashModel::Process),
            crash_model: CrashModel::Pmem,
            limits: Limits {
                images_per_point: 0,
                ..Limits::default()
            },
            seed: 1_000_000,
            histories: part(2_400),
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
    let run = Search {
        history: &|seed| any::history(None, seed, 200, 1),
        crash_model: CrashModel::Pmem,
        // Millions of images, which would take most of an hour.
        limits: Limits {
            images_per_point: 1 << 20,
            nested_every: 1,
            depth: 3,
        },
        seed: 7,
        histories: 1,
        time: Some(Duration::from_secs(1)),
        workers: 1,
    };
    let summary = run.go(&Tally::default(), &AtomicU64::new(0));
    assert!(summary.failure.is_none() && summary.distinct > 0);
}
