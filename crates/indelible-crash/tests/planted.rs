//! A check that cannot fail is a defect: every bug that can be planted is found, or does no harm and says why.
//!
//! Most of the time goes into the search for histories that show bugs in the code. The short form begins with those in `witnesses.txt`,
//! which showed the bugs the last time, and searches only if one of them no longer does. To write the file anew:
//!
//! ```text
//! INDELIBLE_PIN=1 cargo test --profile ci -p indelible-crash --test planted every
//! ```

use indelible_crash::indelible::Kind;
use indelible_crash::indelible::checker::{AnyKind, EquivalentMutant, common, plant};
use indelible_crash::planted::{Hunt, Hunter, Mutation, Witness, equivalent_mutants, on_all_cores};
use indelible_crash::{CrashModel, Limits, Search, Tally, maps};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

fn is_deep() -> bool {
    std::env::var_os("INDELIBLE_DEEP").is_some()
}

fn hunter() -> &'static Hunter {
    static HUNTER: LazyLock<Hunter> = LazyLock::new(Hunter::new);
    &HUNTER
}

/// The histories that have shown bugs in the code, by the bug's name and the kind of index.
type Witnesses = BTreeMap<String, Witness>;

/// What a mutation has in [`Witnesses`], if it is in the code.
fn name_of(mutation: Mutation) -> Option<String> {
    match mutation {
        Mutation::Code(bug, kind) => Some(format!("{} {kind}", bug.name)),
        _ => None,
    }
}

fn path_of_witnesses() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/witnesses.txt")
}

/// A line is the name of a bug, the kind of index, and the witness.
fn read_witnesses() -> Witnesses {
    let text = std::fs::read_to_string(path_of_witnesses()).unwrap_or_default();
    let read = |line: &str| {
        let (at, _) = line.match_indices(' ').nth(1)?;
        Some((line[..at].to_owned(), line[at + 1..].parse().ok()?))
    };
    text.lines().filter_map(read).collect()
}

/// Writes down what has shown the bugs, and keeps what was known of those that were not looked for.
fn write_witnesses(mut witnesses: Witnesses, hunts: &[Hunt]) {
    let found = hunts
        .iter()
        .filter_map(|hunt| name_of(hunt.mutation).zip(hunt.witness));
    witnesses.extend(found);
    let lines = witnesses
        .iter()
        .map(|(name, witness)| format!("{name} {witness}\n"));
    std::fs::write(path_of_witnesses(), lines.collect::<String>()).unwrap();
}

/// Looks for all of them, the last ones first: these are the bugs in the code, some of which take long.
fn hunt_all(hunter: &Hunter, mutations: &[Mutation], witnesses: &Witnesses) -> Vec<Hunt> {
    let begin = Instant::now();
    let last_first: Vec<Mutation> = mutations.iter().rev().copied().collect();
    on_all_cores(&last_first, |&mutation| {
        let last_time = name_of(mutation).and_then(|name| witnesses.get(&name).copied());
        let hunt = hunter.hunt_again(mutation, last_time);
        if last_time.is_some() && hunt.witness != last_time {
            println!("the history in witnesses.txt no longer shows the next one");
        }
        let outcome = hunt.failure.as_ref().map(|failure| &failure.problem);
        let seconds = begin.elapsed().as_secs();
        let images = hunt.images;
        println!("{seconds} s: {mutation}: {outcome:?} after {images} images");
        hunt
    })
}

/// In the short form, bugs in what all kinds of index share are planted with one kind each: with maps of words and with places in turn.
/// (Histories of byte strings seldom drop a map that has extents.)
fn shorten(mutations: &mut Vec<Mutation>) {
    for (number, shared) in common::bugs().enumerate() {
        let kinds = mutations.iter().filter_map(|mutation| match mutation {
            Mutation::Code(_, AnyKind::Strings(_)) => None,
            Mutation::Code(bug, kind) if bug.name == shared.name => Some(*kind),
            _ => None,
        });
        let kinds: Vec<AnyKind> = kinds.collect();
        let turn = kinds[number % kinds.len()];
        mutations.retain(|mutation| match mutation {
            Mutation::Code(bug, kind) => bug.name != shared.name || *kind == turn,
            _ => true,
        });
    }
}

#[test]
fn every_planted_bug_is_found() {
    let hunter = hunter();
    let mut mutations = hunter.mutations();
    let mut witnesses = Witnesses::new();
    if !is_deep() {
        shorten(&mut mutations);
        witnesses = read_witnesses();
    }
    let hunts = hunt_all(hunter, &mutations, &witnesses);
    if std::env::var_os("INDELIBLE_PIN").is_some() {
        write_witnesses(witnesses, &hunts);
    }
    assert_eq!(hunts.len(), mutations.len());
    let (found, not_found): (Vec<_>, Vec<_>) =
        hunts.iter().partition(|hunt| hunt.failure.is_some());
    let holes: Vec<String> = not_found
        .iter()
        .filter(|hunt| hunt.mutation.equivalent().is_none())
        .map(|hunt| hunt.mutation.to_string())
        .collect();
    println!("{} of {} found", found.len(), hunts.len());
    for hunt in &found {
        if hunt.failure.as_ref().is_some_and(|it| it.is_without_end()) {
            println!(
                "of these, only by threads that go on for ever: {}",
                hunt.mutation
            );
        }
    }
    assert!(holes.is_empty(), "not found: {holes:#?}");
    let in_code = |hunt: &&&Hunt| matches!(hunt.mutation, Mutation::Code(..));
    assert!(found.iter().filter(in_code).count() >= 40);
    assert!(found.iter().filter(|hunt| !in_code(hunt)).count() >= 100);
    // The lists of equivalent mutants are for what is never found, or so seldom that a change elsewhere decides whether it is.
    let needless: Vec<String> = found
        .iter()
        .filter(|hunt| {
            let equivalent = hunt.mutation.equivalent();
            equivalent.is_some_and(|entry| !entry.is_seldom_found)
        })
        .map(|hunt| hunt.mutation.to_string())
        .collect();
    assert!(
        needless.is_empty(),
        "found although listed as equivalent: {needless:#?}"
    );
    // Which commits follow each other depends on the histories, so the short form only says so.
    let is_dead = |entry: &&EquivalentMutant| {
        let mut mutations = mutations.iter();
        !entry.is_seldom_found && !mutations.any(|mutation| mutation.is(entry.mutant))
    };
    let dead: Vec<_> = equivalent_mutants().filter(is_dead).collect();
    println!("listed as equivalent, and no mutation: {dead:#?}");
    assert!(dead.is_empty() || !is_deep(), "no mutation: {dead:#?}");
}

#[test]
fn the_report_names_the_operation_the_event_the_lines_and_the_source() {
    let hunter = hunter();
    let is_split = |mutation: &Mutation| matches!(mutation, Mutation::NoFlush(site) if site.name == "lbtree.fill");
    let mutation = hunter.mutations().into_iter().find(is_split).unwrap();
    let failure = hunter.hunt(mutation).failure.unwrap();
    println!("{failure}");
    assert!(!failure.place.operations.is_empty());
    assert!(failure.place.source.is_some());
    let line = failure.lines.first().unwrap();
    assert!(line.source.file().ends_with("lbtree/leaf.rs"), "{failure}");
    assert!(!line.is_flushed);
    assert!(failure.to_string().contains("not flushed"));
}

#[test]
fn a_failing_seed_fails_again_in_the_same_way() {
    let run = |seed, histories| {
        let run = Search {
            history: &|seed| maps::history(Kind::LbTree, seed, 24, 2),
            crash_model: CrashModel::Pmem,
            limits: Limits {
                images_per_point: 24,
                ..Limits::default()
            },
            seed,
            histories,
            time: None,
            // On this thread, for which the bug is planted.
            workers: 1,
        };
        let bugs = Kind::LbTree.suite().bugs().iter();
        let bug = bugs
            .clone()
            .find(|bug| bug.name == "lbtree.UnlockBeforeFence");
        plant(bug);
        let summary = run.go(&Tally::default(), &AtomicU64::new(0));
        plant(None);
        summary.failure.expect("a planted bug that shows itself")
    };
    let first = run(0, 2_000);
    let again = run(first.seed.unwrap(), 1);
    assert_eq!(first.to_string(), again.to_string());
}
