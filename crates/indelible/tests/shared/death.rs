//! Copies of pools with logs that are in use: what a process leaves that dies now.

use std::path::{Path, PathBuf};

/// The log of the pool at this path.
pub fn log_of(pool: &Path) -> PathBuf {
    PathBuf::from(format!("{}.log", pool.display()))
}

/// Copies a pool and its log, if it has one, while no operation writes.
///
/// Threads of the library still write: the applier of the log to the file, and then it frees what it has written; a sync, and the preparing of
/// segments, to the log. So the log comes first, and must be afterwards what it was: of two segments that are prepared meanwhile a single reading
/// may have the second one only.
pub fn copy_after_death(pool: &Path, copy: &Path) {
    const MOST_COPIES: usize = 1_000;
    let log = || std::fs::read(log_of(pool)).ok();
    for _ in 0..MOST_COPIES {
        let before = log();
        std::fs::copy(pool, copy).unwrap();
        if log() == before {
            return match before {
                Some(log) => std::fs::write(log_of(copy), log).unwrap(),
                None => drop(std::fs::remove_file(log_of(copy))),
            };
        }
    }
    panic!("the log of {pool:?} changes all the time");
}
