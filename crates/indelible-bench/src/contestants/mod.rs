//! The structures that are compared, behind one trait.
//!
//! Each is used as its own documentation advises for speed, and each does what a user of it would have to do for the same
//! effect: a point write on a database is one transaction, a batch is one transaction, a lookup is one read transaction.
//! Where a structure has no operation of its own for something, its file says what stands in and what that costs.
//!
//! | file | contestants |
//! |---|---|
//! | `ours` | each kind of index of indelible: in memory, on a file, with the power-loss protocol, and with a log |
//! | `nothing` | the bench itself |
//! | `volatile` | structures that live in the memory of the process: the standard library's, and peers |
//! | `points` | spatial indexes: each kind of indelible's, and peers |
//! | `redb`, `lmdb`, `fjall`, `rocksdb`, `sqlite` | databases, each with its fastest setting and with one that waits for the medium |
//!
//! Without the feature `peers` only the first two and the standard library's `BTreeMap` are there. Peers in C and C++ have a feature each:
//! `sqlite`, `rocksdb`, `boost`.

#[cfg(feature = "peers")]
mod fjall;
#[cfg(feature = "peers")]
mod lmdb;
mod nothing;
mod ours;
mod points;
#[cfg(feature = "peers")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(feature = "sqlite")]
mod sqlite;
mod volatile;

#[cfg(test)]
mod tests;

pub use ours::name_of;
pub use points::{OfPoints, name_of as name_of_spatial};
#[cfg(feature = "rocksdb")]
pub(crate) use rocksdb::{Store, Sync};
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::{Connections, Synchronous};

use crate::data::Source;
use crate::index::Index;
use crate::plan::Mix;
use anyhow::{Context, Result, bail};
use indelible::{MapOptions, SpatialOptions};
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
    /// The kind of index and its options, if it is indelible itself.
    pub map: Option<MapOptions>,
    /// The same for its spatial indexes.
    pub spatial: Option<SpatialOptions>,
}

/// A structure that can be measured.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// Its name in tables, on the command line and in files.
    pub name: String,
    /// One line: what it is, and with which settings.
    pub about: String,
    /// What its writes survive.
    pub survives: Survives,
    /// The kind of index and its options, if it is indelible itself.
    pub map: Option<MapOptions>,
    /// The kernel that its process is made to use, if it is indelible itself; else the process chooses.
    pub kernel: Option<String>,
    /// What only spatial contestants have.
    pub points: Option<OfPoints>,
    /// Whether it has batches of its own, so that measuring them means something.
    pub has_batches: bool,
    /// Makes an empty one.
    pub create: Open,
    /// Opens what a process left, however it ended. None if nothing is left.
    pub open: Option<Open>,
}

impl Contestant {
    /// A database of words.
    #[cfg(any(feature = "peers", feature = "rocksdb", feature = "sqlite"))]
    fn database(
        name: &str,
        about: &str,
        survives: Survives,
        create: Open,
        open: Option<Open>,
    ) -> Self {
        Self {
            name: name.into(),
            about: about.into(),
            survives,
            map: None,
            kernel: None,
            points: None,
            has_batches: true,
            create,
            open,
        }
    }

    /// Whether it is indelible itself.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.map.is_some() || self.spatial().is_some()
    }

    /// The kind of spatial index and its options, if it is one of indelible's.
    #[must_use]
    pub fn spatial(&self) -> Option<&SpatialOptions> {
        self.points.as_ref()?.options.as_ref()
    }

    /// Whether it has all operations of a mix.
    #[must_use]
    pub fn can(&self, mix: &Mix) -> bool {
        let has_batches = self.has_batches || mix.get_batch + mix.insert_batch == 0.0;
        let has_kinds = match &self.points {
            None => mix.window + mix.nearest == 0.0,
            Some(points) => {
                let writes = mix.changes_structure() || mix.update + mix.read_modify_write > 0.0;
                mix.scan == 0.0
                    && (points.has_windows || mix.window == 0.0)
                    && (points.is_mutable || !writes)
            }
        };
        has_batches && has_kinds
    }

    /// Why it cannot take part in an experiment with this data, if it cannot.
    ///
    /// # Errors
    ///
    /// If one has points and the other one has not.
    pub fn check_data(&self, source: &Source) -> Result<()> {
        let name = &self.name;
        match (&self.points, source.is_spatial()) {
            (Some(_), false) => {
                bail!("{name} holds points, and {source} has none: --data points:SET")
            }
            (None, true) => bail!("{name} does not hold points, and {source} has nothing else"),
            _ => Ok(()),
        }
    }

    /// Whether every write waits for a sync of a file.
    #[must_use]
    pub fn waits_for_sync(&self) -> bool {
        // The protocol of persistent memory waits for cache lines.
        self.survives == Survives::PowerCut && !self.name.contains("-pmem")
    }

    /// Whether it syncs files, so that it is measured on a disk.
    #[must_use]
    pub fn needs_disk(&self) -> bool {
        self.waits_for_sync() || (self.is_ours() && self.name.contains("-disk"))
    }

    /// A place for it in `directory`.
    #[must_use]
    pub fn place(&self, directory: PathBuf) -> Place {
        Place {
            directory,
            map: self.map.clone(),
            spatial: self.spatial().cloned(),
        }
    }
}

/// Makes an index at a place, or finds it there.
pub type Open = fn(&Place) -> Result<Box<dyn Index>>;

/// All contestants of this build, ours first.
#[must_use]
pub fn all() -> Vec<Contestant> {
    let mut all = ours::contestants();
    all.extend(points::ours());
    all.extend(volatile::contestants());
    #[cfg(feature = "peers")]
    for database in [
        redb::contestants(),
        lmdb::contestants(),
        fjall::contestants(),
    ] {
        all.extend(database);
    }
    #[cfg(feature = "rocksdb")]
    all.extend(rocksdb::contestants());
    #[cfg(feature = "sqlite")]
    all.extend(sqlite::contestants());
    all.extend(points::peers());
    all.push(nothing::contestant());
    all
}

/// The contestant called `NAME` or `NAME@OPTION=VALUE`, where the latter is `NAME` with other options of its kind of index. Further
/// options follow after a `+`: `indelible@leaf=512`, `NAME@OPTION=VALUE+OPTION=VALUE`. The option `kernel`, which every kind of index of
/// ours has, is the kernel that the contestant's process uses; whether the machine has it is known when the process runs.
///
/// # Errors
///
/// If there is no such contestant, if it is none of ours and has options, or if its kind of index does not know them.
pub fn entrant(name: &str) -> Result<Contestant> {
    let Some((plain, options)) = name.split_once('@') else {
        return find(name);
    };
    let mut contestant = find(plain)?;
    let of_points = contestant.points.as_mut();
    if let Some(map) = contestant.map.take() {
        let with_options = ours::with_options(map, options);
        let (map, kernel) = with_options.with_context(|| format!("{name:?}"))?;
        (contestant.map, contestant.kernel) = (Some(map), kernel);
    } else if let Some(spatial) = of_points.and_then(|points| points.options.as_mut()) {
        let with_options = ours::with_options(spatial.clone(), options);
        (*spatial, contestant.kernel) = with_options.with_context(|| format!("{name:?}"))?;
    } else {
        bail!("{name:?}: {plain} has no options");
    }
    contestant.about = format!("{}, with {options}", contestant.about);
    contestant.name = name.into();
    Ok(contestant)
}

/// The names of contestants with each of these kernels in turn: those that are not ours stay as they are.
///
/// # Errors
///
/// If there is no contestant of one of the names.
pub fn with_kernels(names: &[String], kernels: &[String]) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for name in names {
        if !entrant(name)?.is_ours() {
            all.push(name.clone());
            continue;
        }
        let separator = if name.contains('@') { '+' } else { '@' };
        let kernels = kernels.iter();
        all.extend(kernels.map(|kernel| format!("{name}{separator}kernel={kernel}")));
    }
    Ok(all)
}

/// The contestant called `name`.
///
/// # Errors
///
/// If there is none; the error lists the names that there are.
pub fn find(name: &str) -> Result<Contestant> {
    let mut all = all();
    let found = all.iter().position(|contestant| contestant.name == name);
    let place = found.with_context(|| {
        let hint = if cfg!(feature = "peers") {
            ""
        } else {
            "; more with the feature \"peers\""
        };
        let names: Vec<_> = all.iter().map(|known| known.name.as_str()).collect();
        format!(
            "no contestant is called {name:?}; there are {}{hint}",
            names.join(", ")
        )
    })?;
    Ok(all.swap_remove(place))
}
