//! A model checker for programs on persistent memory: it proves crash safety by search.
//!
//! # Overview
//!
//! A structure that writes only through [`Pm`](indelible::pmem::Pm) is *recorded*: operations are run, by one thread or by
//! several under a deterministic scheduler, and every store, flush and fence is noted. Then the recording is replayed into a
//! *model* of the memory, and at every event at which it matters, every *image* that a crash could leave there (or,
//! where they are too many, a sample) is made, *recovered* by the structure's own code, and compared with the
//! *history*: what has returned must be there, what was in flight may be. The recoveries are recorded too, and crashed
//! in turn, and so are the recoveries from those.
//!
//! The same engine, without a crash, checks that recorded histories are linearizable.
//!
//! # What it believes
//!
//! [`CrashModel::Pmem`]: 8-byte stores are atomic; the stores to one 64-byte line arrive in program order, any prefix of them;
//! between lines nothing is ordered but by a flush and a fence of the same thread. [`CrashModel::Process`]: everything executed is there,
//! in the order of execution; this is also what machines whose caches survive (eADR) leave. Threads are interleaved at
//! every store, flush, fence, lock and version check, and see each other's stores at once: weaker orders of the
//! processor's are loom's business, in the library. A change of the memory's length is atomic and durable at once, as `fallocate` with
//! `fsync` is.
//!
//! [`CrashModel::Disk`]: a prefix of the log, at least as far as an operation has waited for it, and all further ones. What a disk can
//! do to the bytes of the log is searched elsewhere: see `indelible::checker::trial`.
//!
//! # A structure of your own
//!
//! Implement [`Structure`]; `examples/linked_list.rs` is one, with a bug.

pub mod any;
mod coverage;
mod explore;
pub mod fuzz;
mod history;
pub mod maps;
mod model;
pub mod places;
pub mod planted;
mod record;
mod recovery;
mod report;
mod run;
mod tally;
pub mod texts;

pub use coverage::{Coverage, commit_points};
pub use explore::Limits;
pub use history::{Change, Counts, Saw, Steps};
/// The library as the checker sees it: recorded, and with small nodes.
pub use indelible;
/// Locks a mutex, letting other threads of the scheduler run until it can be had.
pub use indelible::checker::lock;
pub use indelible::pmem::Memory;
pub use report::{Failure, MissingLine, Place};
pub use run::{Search, Summary};
pub use tally::Tally;

use std::fmt::Debug;
use std::sync::Arc;

/// Which stores that were not made durable a crash may lose. The documentation of the crate has the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashModel {
    /// Power fails: what was not flushed and fenced may be lost, per line.
    Pmem,
    /// The process dies: nothing that was executed is lost.
    Process,
    /// Power fails under a pool with a log, on a disk: what was appended to the log and is not durable may be lost, from some batch on.
    Disk,
}

/// Bytes that a structure under the checker may use.
pub const MEMORY_BYTES: usize = 512 << 10;

/// What is in a structure: keys, ascending, and their values. What is not a map can be told as one: a list by position, a
/// set with values of 0.
pub type Contents = Vec<(u64, u64)>;

/// A persistent structure, as the checker sees it. `self` only says how it is laid out.
///
/// Errors are strings: whatever is returned as one counts as a failure, and so does a panic.
pub trait Structure: Send + Sync + 'static {
    /// The structure, open.
    type Open: Send + Sync + 'static;
    /// What can be done to it.
    type Operation: Clone + Debug + Send + Sync + 'static;

    /// Makes an empty one in memory that is zero and has no length yet.
    fn create(&self, memory: &Arc<Memory>) -> Result<Self::Open, String>;

    /// Opens one after a crash. On persistent memory that may have been the death of a process, whose last stores are in the caches of the processor: recovery
    /// sees them, and a power cut takes them back. What recovery does not flush itself it makes durable by a sync of the file ([`Memory::sync`]).
    fn recover(&self, memory: &Arc<Memory>) -> Result<Self::Open, String>;

    /// Does an operation, and says what it saw of each of its steps.
    ///
    /// Threads are coroutines on one thread of the system, switched inside the calls of [`Pm`](indelible::pmem::Pm):
    /// do not hold a lock across those, unless it was taken with [`lock`].
    fn run(&self, open: &Self::Open, operation: &Self::Operation) -> Result<Vec<Saw>, String>;

    /// What an operation does to the contents.
    fn steps(&self, operation: &Self::Operation) -> Steps;

    /// The contents. Also looks whether the structure is sound, as closely as it can.
    fn contents(&self, open: &Self::Open) -> Result<Contents, String>;

    /// What is done to a structure after a recovery, to see whether it works. `seed` is different for every image. `near` has keys where something was
    /// happening when the crash came: those of the operations in flight, or else of the last one.
    fn probes(&self, seed: u64, near: &[u64]) -> Vec<Self::Operation> {
        let _ = (seed, near);
        Vec::new()
    }

    /// Whether an operation may make the memory shorter, as a clean close does that cuts off what was never needed. Of those among the probes the checker has to know, since it takes everything back.
    fn may_shorten(&self, operation: &Self::Operation) -> bool {
        let _ = operation;
        false
    }

    /// The process dies: dropping `open` should do nothing more. (If it does, it is undone.)
    fn crash(&self, open: &Self::Open) {
        let _ = open;
    }
}

/// What is done to a structure.
#[derive(Clone, Debug)]
pub struct Workload<O> {
    /// Before the recording.
    pub before: Vec<O>,
    /// Under the recorder: what each thread does.
    pub threads: Vec<Vec<O>>,
}
