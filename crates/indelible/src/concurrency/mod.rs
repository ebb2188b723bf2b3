//! Concurrency: version locks, the locks that count records, epochs, the two ways to wait for another thread, and what tells a thread that waits for itself.

pub(crate) mod closures;
pub(crate) mod epochs;
pub(crate) mod locks;
pub(crate) mod parallel;
pub(crate) mod records;
pub(crate) mod sync;
