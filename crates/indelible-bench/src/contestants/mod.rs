//! The structures that are compared, behind one trait.
//!
//! Each is used as its own documentation advises for speed, and each does what a user of it would have to do for the same
//! effect: a point write on a database is one transaction, a batch is one transaction, a lookup is one read transaction.
//! Where a structure has no operation of its own for something, its file says what stands in and what that costs.
//!
//! | file | contestants |
//! |---|---|
//! | `ours` | indelible's LB+-tree and APEX: in memory, on a file, and with the power-loss protocol |
//! | `nothing` | the bench itself |
//! | `volatile` | structures that live in the memory of the process: the standard library's, and peers |
//! | `redb`, `lmdb`, `fjall` | databases, each with its fastest setting and with one that waits for the medium |
//!
//! Without the feature `peers` only the first two and the standard library's `BTreeMap` are there.

#[cfg(feature = "peers")]
mod fjall;
mod layout;
#[cfg(feature = "peers")]
mod lmdb;
mod nothing;
mod ours;
#[cfg(feature = "peers")]
mod redb;
mod volatile;

#[cfg(test)]
mod tests;

use crate::index::Index;
use anyhow::{Context, Result};
use indelible::MapOptions;
use std::fmt;
use std::path::PathBuf;

/// What a contestant still has after a calamity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Nothing: it lives in the memory of the process.
    Nothing,
    /// A killed process.
    Kill,
    /// A power cut, if its directory is on a medium that does. Every write waits for the medium.
    PowerCut,
}

impl fmt::Display for Survives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "nothing",
            Self::Kill => "kill -9",
            Self::PowerCut => "power cut",
        })
    }
}

/// Where a contestant keeps its files, and how it is built.
#[derive(Clone, Debug)]
pub struct Place {
    /// A directory of its own, empty when it is created.
    pub directory: PathBuf,
    /// How ours are laid out, but for their kind; others ignore it.
    pub layout: MapOptions,
}

/// A structure that can be measured.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// Its name in tables, on the command line and in files.
    pub name: &'static str,
    /// One line: what it is, and with which settings.
    pub about: &'static str,
    /// What its writes survive.
    pub survives: Survives,
    /// Whether it is indelible itself.
    pub is_ours: bool,
    /// Whether it has batches of its own, so that measuring them means something.
    pub has_batches: bool,
    /// Makes an empty one.
    pub create: Open,
    /// Opens what a process left, however it ended. None if nothing is left.
    pub open: Option<Open>,
}

/// Makes an index at a place, or finds it there.
pub type Open = fn(&Place) -> Result<Box<dyn Index>>;

/// All contestants of this build, ours first.
#[must_use]
pub fn all() -> Vec<Contestant> {
    let mut all = ours::contestants();
    all.extend(volatile::contestants());
    #[cfg(feature = "peers")]
    for database in [
        redb::contestants(),
        lmdb::contestants(),
        fjall::contestants(),
    ] {
        all.extend(database);
    }
    all.push(nothing::contestant());
    all
}

/// A contestant and how it is laid out, if it is ours: `NAME` or `NAME@LAYOUT`, such as `indelible@512` or
/// `indelible-apex@data=4K+stash=20`.
///
/// # Errors
///
/// If there is no such contestant, or the rest says nothing.
pub fn entrant(name: &str) -> Result<(Contestant, MapOptions)> {
    match name.split_once('@') {
        None => Ok((find(name)?, MapOptions::default())),
        Some((name, layout)) => Ok((find(name)?, layout::parse(layout)?)),
    }
}

/// The contestant called `name`.
///
/// # Errors
///
/// If there is none; the error lists the names that there are.
pub fn find(name: &str) -> Result<Contestant> {
    let mut all = all();
    let names: Vec<_> = all.iter().map(|contestant| contestant.name).collect();
    let found = names.iter().position(|&known| known == name);
    let place = found.with_context(|| {
        let hint = if cfg!(feature = "peers") {
            ""
        } else {
            "; more with the feature \"peers\""
        };
        format!(
            "no contestant is called {name:?}; there are {}{hint}",
            names.join(", ")
        )
    })?;
    Ok(all.swap_remove(place))
}
