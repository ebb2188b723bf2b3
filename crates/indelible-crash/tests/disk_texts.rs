//! Maps of byte strings on a disk with a log: the search over what a power cut leaves of the log.

use indelible_crash::indelible::StringKind;
use indelible_crash::indelible::checker::AnyKind;
use indelible_crash::{CrashModel, Limits, Search, Tally, any};
use std::sync::atomic::AtomicU64;

#[test]
fn whatever_a_power_cut_leaves_of_the_log_no_byte_string_that_was_acknowledged_is_missing() {
    let is_deep = std::env::var_os("INDELIBLE_DEEP").is_some();
    let [alone, together, least] = if is_deep {
        [600, 4_000, 500_000]
    } else {
        [12, 60, 5_000]
    };
    let tally = Tally::default();
    for &kind in StringKind::all() {
        for threads in 1..=4 {
            let (operations, histories) = if threads == 1 {
                (200, alone)
            } else {
                (40, together)
            };
            let run = Search {
                history: &|seed| {
                    let kind = Some(AnyKind::Strings(kind));
                    let (mut index, workload) = any::history(kind, seed, operations, threads);
                    assert!(index.put_on_disk());
                    (index, workload)
                },
                crash_model: CrashModel::Disk,
                limits: Limits::default(),
                seed: 0,
                histories,
                time: None,
                workers: 2,
            };
            let summary = run.go(&tally, &AtomicU64::new(0));
            if let Some(failure) = summary.failure {
                panic!("{kind}, {threads} threads: {failure}");
            }
            println!(
                "{kind}, {threads} threads: {:?}, {:?}",
                summary.coverage.images, summary.elapsed
            );
        }
    }
    println!("{} distinct images", tally.distinct());
    assert!(tally.distinct() > least, "{} images", tally.distinct());
}
