//! The atomics of the small concurrent cores, from `std` or, under `--cfg loom`, from the model checker.

#[cfg(not(loom))]
pub(crate) use std::{hint::spin_loop, sync::atomic, thread::yield_now};

#[cfg(loom)]
pub(crate) use loom::{hint::spin_loop, sync::atomic, thread::yield_now};
