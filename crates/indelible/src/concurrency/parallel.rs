//! Work that several threads share.

/// Does `work` in so many more threads, and in this one. If the system has no more threads, the others do all the work.
pub(crate) fn in_parallel(helpers: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            let _ = std::thread::Builder::new().spawn_scoped(scope, &work);
        }
        work();
    });
}
