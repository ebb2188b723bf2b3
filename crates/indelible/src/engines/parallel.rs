//! How many threads share the work of a bulk load.

use crate::pool::PoolCore;

/// Threads that may help with work of a pool: one per core, apart from the caller's, and `most` at most. None where all must run on one thread.
pub(crate) fn helpers(core: &PoolCore, most: usize) -> usize {
    match std::thread::available_parallelism() {
        Ok(threads) if !core.runs_alone() => most.min(threads.get() - 1),
        _ => 0,
    }
}
