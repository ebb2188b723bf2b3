use indelible_crash::*;
use std::sync::atomic::AtomicU64;
fn main() {
    let a: Vec<u64> = std::env::args()
        .skip(1)
        .map(|x| x.parse().unwrap())
        .collect();
    let (seed, histories, ops, threads, images, medium) = (
        a[0],
        a[1],
        a[2] as usize,
        a[3] as usize,
        a[4] as usize,
        a[5],
    );
    let run = Run {
        history: &|seed| lbtree::history(seed, ops, threads),
        medium: if medium == 0 {
            Medium::Pmem
        } else {
            Medium::Process
        },
        limits: Limits {
            images_per_point: images,
            ..Limits::default()
        },
        seed,
        histories,
        time: None,
        workers: 1,
    };
    let tally = Tally::default();
    let s = run.go(&tally, &AtomicU64::new(0));
    println!("{:?}", s.coverage.changes);
    println!(
        "ops {:?} events {} points {} images {:?} distinct {} in {:?}: {:.0}/s",
        s.coverage.operations,
        s.coverage.events,
        s.coverage.points,
        s.coverage.images,
        s.distinct,
        s.elapsed,
        tally.images() as f64 / s.elapsed.as_secs_f64()
    );
    for m in s.coverage.commits_missed() {
        println!(
            "missed {}:{} {}",
            m.file,
            m.lines.0,
            &m.story[..m.story.len().min(40)]
        );
    }
    if let Some(f) = s.failure {
        println!("{f}");
    }
}
