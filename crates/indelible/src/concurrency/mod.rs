//! Who may read and write when: locks, epochs, and the two ways to wait for another thread.

pub(crate) mod epochs;
pub(crate) mod locks;
pub(crate) mod records;
pub(crate) mod sync;
