//! One file per command, or per family of small ones. A command returns whether its exit code is 0.

pub mod crash;
pub mod create;
pub mod demo;
pub mod inspect;
pub mod load;
pub mod records;
pub mod torture;

use anyhow::Result;
use clap::{Args, ValueEnum};
use indelible::{Durability, Pool, PoolOptions};
use std::path::{Path, PathBuf};

/// Options of commands that may create a pool.
#[derive(Args)]
pub struct PoolArguments {
    /// The pool file.
    pool: PathBuf,
    /// What the pool shall survive.
    #[arg(long, value_enum)]
    durability: Option<Promise>,
    /// With `--durability power-loss`: flush and fence, but accept a file that is not on persistent memory (for tests).
    #[arg(long)]
    force_power_loss_protocol: bool,
}

/// [`Durability`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum Promise {
    Process,
    PowerLoss,
}

impl PoolArguments {
    /// Opens the pool for writing, or creates it.
    pub fn open_or_create(&self) -> Result<Pool> {
        let mut options = PoolOptions::new();
        match self.durability {
            Some(Promise::Process) => options.durability(Durability::Process),
            Some(Promise::PowerLoss) => options.durability(Durability::PowerLoss),
            None => &mut options,
        };
        Ok(options
            .force_power_loss_protocol(self.force_power_loss_protocol)
            .open_or_create(&self.pool)?)
    }
}

/// Opens a pool for reading: read-only if it was closed cleanly, otherwise for writing, which recovers it.
pub fn open_to_read(path: &Path) -> Result<Pool> {
    match PoolOptions::new().open_read_only(path) {
        Err(indelible::Error::NotClean) => Ok(Pool::open(path)?),
        result => Ok(result?),
    }
}
