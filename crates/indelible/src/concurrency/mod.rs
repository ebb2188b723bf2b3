//! Concurrency: version locks, the locks that count records, epochs, and the two ways to wait for another thread.

pub(crate) mod epochs;
pub(crate) mod locks;
pub(crate) mod parallel;
pub(crate) mod records;
pub(crate) mod sync;
