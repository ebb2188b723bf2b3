//! The structures that are compared, behind one trait.

use crate::index::Index;
use anyhow::Result;
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

/// Where a contestant keeps its files, and how it is built.
#[derive(Clone, Debug)]
pub struct Place {
    /// A directory of its own, empty when it is created.
    pub directory: PathBuf,
    /// Bytes in our leaves; others ignore it.
    pub leaf_bytes: u32,
}

/// A structure that can be measured.
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
    pub create: fn(&Place) -> Result<Box<dyn Index>>,
    /// Opens what a process left, however it ended. None if nothing is left.
    pub open: Option<fn(&Place) -> Result<Box<dyn Index>>>,
}

/// All contestants of this build, ours first.
pub fn all() -> Vec<Contestant> {
    Vec::new()
}
