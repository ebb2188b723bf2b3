//! Pools: files, or memory, in which indexes lie.
//!
//! # Overview
//!
//! A pool is one file (or anonymous memory) that is mapped whole, in *extents* of 2 MiB. The first extent holds two copies of
//! the *superblock* (what the pool is), the *catalog* (which maps there are), and the *extent table* (which map owns each
//! other extent); see `layout` for the drawing. An extent belongs to one map and has blocks of one size. Which blocks of an
//! extent are in use is recorded nowhere in the file: it follows from which blocks the map can reach (see `space`).
//!
//! # What commits
//!
//! Creating and dropping a map: the entry's owner word. Taking and freeing an extent: its word in the table. Growing,
//! shrinking, opening and closing: the superblock, by checksum. Each is one store (or one checksum); the comments marked
//! COMMIT say what recovery finds if a crash comes before it, and after it.
//!
//! # What recovery does
//!
//! Opening reads the superblocks, the catalog and the extent table (8 bytes per 2 MiB: 40 KiB for 10 GB), and nothing that
//! grows with the number of records. Extents whose owner is not in the catalog are free. The file system is asked which
//! parts of the file have blocks on the disk: extents that have holes or share blocks with another file, as copies by `cp` do,
//! get blocks of their own before anything is written to them (see `mapping::blocks`).
//!
//! # What cannot be guarded
//!
//! A store to a mapped file that the system cannot carry out is no error but the signal SIGBUS. Blocks are reserved before they
//! are used, so that a full disk is an error. These are beyond us, and end the process, which loses nothing acknowledged:
//!
//! - Another process truncates the file of an open pool, or punches holes into it. The lock that a pool has is advisory.
//! - Another process makes a copy that shares blocks (`cp --reflink`), or a snapshot, while the pool is open for writing, and
//!   then the disk fills up. At the next open such blocks are found.
//! - The file is on a file system that writes every changed page to another place, such as btrfs, and the disk is full.
//! - The disk reports an error when a page is read.

mod core;
#[cfg(all(test, not(loom)))]
mod faults;
mod files;
mod layout;
mod log;
mod machine;
mod mapping;
mod occupancy;
mod offset;
mod opening;
mod options;
mod space;
mod superblock;
mod system;

pub(crate) use core::{Object, PoolCore, Signature};
#[cfg(feature = "trace")]
pub(crate) use layout::SUPERBLOCK_BYTES;
pub(crate) use layout::{EXTENT_BYTES, NAME_BYTES, OPTION_BYTES};
#[cfg(feature = "trace")]
pub use log::simulate::{Met, through_the_log, trial};
pub(crate) use log::{Gate, OneWait};
pub(crate) use offset::Offset;
pub use options::PoolOptions;
pub(crate) use space::{MOST_ROUNDS, Space, SpaceNeed, as_last_resort, is_last_resort};

/// What a pool promises to survive, once a call has returned.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// use indelible::{Durability, Error, PoolOptions};
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("safe.pool");
/// match PoolOptions::new().durability(Durability::PowerLoss).create(&path) {
///     Ok(_) => println!("on a disk, or on persistent memory"),
///     Err(Error::NoPowerLossSafety(why)) => println!("not here: {why}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The death of the process at any instruction: `kill -9`, a panic, an upgrade. The file may lie anywhere: tmpfs, a
    /// disk. A commit costs a store. If the *machine* goes down while the pool is open, the pool is refused at
    /// the next open ([`Error::MachineWentDown`](crate::Error::MachineWentDown)); once closed cleanly it is good across reboots.
    #[default]
    Process,
    /// Power loss too: a call returns when what it has written, or read, survives a power cut.
    ///
    /// On persistent memory (DAX, mapped with `MAP_SYNC`) a commit costs a cache-line write-back and a fence, or on eADR
    /// machines a fence. On any other disk the pool has a log beside it, in `PATH.log`, and a call waits for a sync of the log, which
    /// it shares with all calls that wait at that time. The log is removed at a clean close. On a file in memory (tmpfs) it is an error.
    PowerLoss,
    /// Power loss too, with a delay: a call returns at once. A power cut may lose what was written in about this interval before it (the
    /// interval, and the time that a sync takes), and nothing in the middle: what is left is a state that the pool was in. The death of the
    /// process loses nothing. [`Pool::sync`](crate::Pool::sync) waits until everything written so far is safe.
    ///
    /// The pool has a log, as with [`PowerLoss`](Self::PowerLoss) on a disk, also on persistent memory. Intervals are rounded down to
    /// milliseconds, and are at least one.
    Interval(std::time::Duration),
}

/// The bugs that can be planted in the log.
#[cfg(feature = "trace")]
pub(crate) const LOG_BUGS: &[crate::pmem::planted::Bug] = log::Bug::ALL;

crate::pmem::planted::bugs! { "pool":
    /// Blocks that were unlinked are free at once, under readers that hold them.
    ReuseWithoutEpoch,
    /// Blocks are taken from extents of before the open that no sweep has looked at.
    UseUnswept,
    /// An object's catalog entry is committed before the object is laid out.
    CreateCommitsEarly,
    /// A dropped object's extents are freed before the catalog forgets the object.
    DropFreesFirst,
    /// The superblock says that the pool has grown before the file has.
    GrowCommitsEarly,
    /// The file is cut before the superblock says that the pool is shorter.
    ShrinkCutsFirst,
    /// An extent is used without its word in the table.
    ExtentNotRecorded,
    /// The superblock's better copy is written first, so that two crashes can tear both.
    BetterCopyFirst,
    /// What a process that has died left in the caches is believed before it is durable.
    DeathNotSynced,
}
