//! Work that several threads share, in a bulk load.

use crate::pool::PoolCore;

/// Threads that may help with work of a pool: one per core, apart from the caller's, and `most` at most. None where all must run on one thread.
pub(crate) fn helpers(core: &PoolCore, most: usize) -> usize {
    match std::thread::available_parallelism() {
        Ok(threads) if !core.runs_alone() => most.min(threads.get() - 1),
        _ => 0,
    }
}

/// Does `work` in so many more threads, and in this one. If the system has no more threads, the others do all the work.
pub(crate) fn in_parallel(helpers: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            let _ = std::thread::Builder::new().spawn_scoped(scope, &work);
        }
        work();
    });
}
