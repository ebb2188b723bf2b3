use indelible_crash::indelible::Kind;
use indelible_crash::{Limits, Medium, Run, Tally, maps};
use std::sync::atomic::AtomicU64;
fn main() {
    let args: Vec<u64> = std::env::args()
        .skip(1)
        .map(|a| a.parse().unwrap())
        .collect();
    let [threads, ops, from, count, images] = args[..] else {
        panic!()
    };
    let medium = if std::env::var("PROCESS").is_ok() {
        Medium::Process
    } else {
        Medium::Pmem
    };
    let kind = if std::env::var("LB").is_ok() {
        Kind::LbTree
    } else {
        Kind::Apex
    };
    let keep = std::env::var("KEEP").is_ok();
    let mut seed = from;
    loop {
        let run = Run {
            history: &|seed| {
                if std::env::var("SAY").is_ok() {
                    eprintln!("{seed}");
                }
                maps::history(Some(kind), seed, ops as usize, threads as usize)
            },
            medium,
            limits: Limits {
                images_per_point: images as usize,
                ..Limits::default()
            },
            seed,
            histories: from + count - seed,
            time: None,
            workers: std::env::var("WORKERS").map_or(1, |w| w.parse().unwrap()),
        };
        let tally = Tally::default();
        let s = run.go(&tally, &AtomicU64::new(0));
        println!(
            "{:#?} images {:?} distinct {} in {:?}",
            s.coverage.changes, s.coverage.images, s.distinct, s.elapsed
        );
        for p in s.coverage.commits_missed() {
            println!("missed {}:{}", p.file, p.lines.0);
        }
        match s.failure {
            Some(f) => {
                println!("SEED {:?}: {f}", f.seed);
                seed = f.seed.unwrap() + 1;
                if !keep {
                    break;
                }
            }
            None => break,
        }
    }
}
