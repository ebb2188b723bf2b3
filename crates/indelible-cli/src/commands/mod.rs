//! One file per command, or per family of small ones. A command returns whether its exit code is 0.

pub mod crash;
pub mod create;
pub mod demo;
pub mod inspect;
pub mod load;
pub mod records;
pub mod torture;

use crate::output::note;
use anyhow::Result;
use clap::Args;
use indelible::{Durability, Error, Kind, MapOptions, Pool, PoolOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of commands that may create a pool.
#[derive(Args)]
pub struct PoolArguments {
    /// The pool file.
    pool: PathBuf,
    /// What the pool shall survive: `process`, `power-loss`, or an interval such as `10ms`, after which what was written survives power loss.
    #[arg(long, value_parser = durability)]
    durability: Option<Durability>,
    /// With `--durability power-loss`: flush and fence, but accept a file that is not on persistent memory (for tests).
    #[arg(long)]
    force_power_loss_protocol: bool,
}

/// [`Durability`] on the command line.
pub fn durability(text: &str) -> Result<Durability, String> {
    let millis = text
        .strip_suffix("ms")
        .and_then(|digits| digits.parse().ok());
    match (text, millis) {
        ("process", _) => Ok(Durability::Process),
        ("power-loss", _) => Ok(Durability::PowerLoss),
        (_, Some(millis)) => Ok(Durability::Interval(Duration::from_millis(millis))),
        _ => Err("expected process, power-loss, or a number of milliseconds such as 10ms".into()),
    }
}

impl PoolArguments {
    /// Opens the pool for writing, or creates it, has `work` change the map of this name, and closes the pool. If that fails, a pool
    /// or a map that was not there before is removed again.
    pub fn change<T>(&self, map: &str, work: impl FnOnce(&Pool) -> Result<T>) -> Result<T> {
        let (pool, is_new_pool) = self.open_or_create()?;
        let is_new_map = pool.maps().iter().all(|known| known.name != map);
        let result = work(&pool);
        match &result {
            Ok(_) => pool.close()?,
            // While it is open, and so locked: nobody else can have begun to use it.
            Err(_) if is_new_pool => {
                if let Err(error) = std::fs::remove_file(&self.pool) {
                    let path = self.pool.display();
                    note(format_args!("{path} is left behind: {error}"));
                }
            }
            Err(_) => {
                let removed = match is_new_map.then(|| pool.drop_map(map)) {
                    None | Some(Err(Error::NoSuchMap(_))) => Ok(()),
                    Some(removed) => removed,
                };
                if let Err(error) = removed.and_then(|()| pool.close()) {
                    note(format_args!("after the error below: {error}"));
                }
            }
        }
        result
    }

    /// The pool, and whether this call has created it.
    fn open_or_create(&self) -> Result<(Pool, bool)> {
        let mut options = PoolOptions::new();
        if let Some(durability) = self.durability {
            options.durability(durability);
        }
        options.force_power_loss_protocol(self.force_power_loss_protocol);
        let failed = |error: &Error, kind| match error {
            Error::Io { source, .. } => source.kind() == kind,
            _ => false,
        };
        match options.open(&self.pool) {
            Err(error) if failed(&error, ErrorKind::NotFound) => {}
            result => return Ok((result?, false)),
        }
        match options.create(&self.pool) {
            // Somebody else was faster.
            Err(error) if failed(&error, ErrorKind::AlreadyExists) => {
                Ok((options.open(&self.pool)?, false))
            }
            result => Ok((result?, true)),
        }
    }
}

/// What a new map is. Every command that makes maps has this option, and nothing else in the command line knows what there is
/// to choose.
#[derive(Args, Clone)]
pub struct MapArgs {
    #[arg(
        long = "kind",
        value_name = "KIND[,OPTION=VALUE...]",
        default_value_t = MapOptions::default(),
        help = format!("Kind of index of a new map: {}", kinds()),
        long_help = long_help()
    )]
    options: MapOptions,
}

impl MapArgs {
    /// For the library: a map that is there has to be as the command line says, unless it says nothing.
    pub fn options(&self) -> MapOptions {
        let says_nothing = self.options == MapOptions::default();
        self.options.clone().accept_any(says_nothing)
    }

    /// The words of a command line that say the same.
    pub fn words(&self) -> Vec<String> {
        vec!["--kind".into(), self.options.to_string()]
    }
}

/// The names of all kinds of index.
pub fn kinds() -> String {
    let names: Vec<&str> = Kind::all().iter().map(|kind| kind.name()).collect();
    names.join(", ")
}

/// Every kind with its options.
fn long_help() -> String {
    let mut help =
        String::from("Kind of index of a new map, and its options, separated by commas.\n");
    for kind in Kind::all() {
        help.push_str(&format!("\n{kind}: {}\n", kind.description()));
        for option in kind.options() {
            let (name, values, meaning) = (option.name, option.values, option.meaning);
            help.push_str(&format!("    {name}=VALUE  {meaning}: {values}\n"));
        }
    }
    help
}

/// Opens a pool for reading: read-only if it was closed cleanly, otherwise for writing, which recovers it.
pub fn open_to_read(path: &Path) -> Result<Pool> {
    match PoolOptions::new().open_read_only(path) {
        Err(indelible::Error::NotClean) => Ok(Pool::open(path)?),
        result => Ok(result?),
    }
}
