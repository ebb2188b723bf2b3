//! Kinds of index of every family, for what treats all of them alike.

use super::{EquivalentMutant, StructureChange};
use crate::engines::{Kind, SpatialKind, StringKind};
use crate::pmem::planted::Bug;
use crate::{Error, Result};
use std::fmt::{Display, Formatter};

/// A kind of index, of whatever family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyKind {
    /// A kind of map.
    Map(Kind),
    /// A kind of spatial index.
    Spatial(SpatialKind),
    /// A kind of map of byte strings.
    Strings(StringKind),
}

/// The same expression for each family.
macro_rules! of_family {
    ($any:expr, $kind:ident => $value:expr) => {
        match $any {
            AnyKind::Map($kind) => $value,
            AnyKind::Spatial($kind) => $value,
            AnyKind::Strings($kind) => $value,
        }
    };
}

impl AnyKind {
    /// All kinds: those of maps, then those of spatial indexes, then those of maps of byte strings.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let maps = Kind::all().iter().copied().map(Self::Map);
        maps.chain(SpatialKind::all().iter().copied().map(Self::Spatial))
            .chain(StringKind::all().iter().copied().map(Self::Strings))
            .collect()
    }

    /// The name of the kind on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        of_family!(self, kind => kind.name())
    }

    /// See [`Suite::ends_when_damaged_in_use`].
    #[must_use]
    pub fn ends_when_damaged_in_use(self) -> bool {
        of_family!(self, kind => kind.suite().ends_when_damaged_in_use())
    }

    /// See [`Suite::bugs`](super::Suite::bugs).
    #[must_use]
    pub fn bugs(self) -> &'static [Bug] {
        of_family!(self, kind => kind.suite().bugs())
    }

    /// See [`Suite::theme_of`](super::Suite::theme_of).
    #[must_use]
    pub fn theme_of(self, bug: &Bug) -> Option<u64> {
        of_family!(self, kind => kind.suite().theme_of(bug))
    }

    /// See [`Suite::harmless_bugs`](super::Suite::harmless_bugs).
    #[must_use]
    pub fn harmless_bugs(self) -> &'static [(&'static str, &'static str)] {
        of_family!(self, kind => kind.suite().harmless_bugs())
    }

    /// See [`Suite::commits`](super::Suite::commits).
    #[must_use]
    pub fn commits(self) -> &'static [&'static str] {
        of_family!(self, kind => kind.suite().commits())
    }

    /// See [`Suite::changes`](super::Suite::changes).
    #[must_use]
    pub fn changes(self) -> &'static [StructureChange] {
        of_family!(self, kind => kind.suite().changes())
    }

    /// See [`Suite::histories`](super::Suite::histories).
    #[must_use]
    pub fn histories(self) -> [u64; 2] {
        of_family!(self, kind => kind.suite().histories())
    }

    /// See [`Suite::equivalent_mutants`](super::Suite::equivalent_mutants).
    #[must_use]
    pub fn equivalent_mutants(self) -> &'static [EquivalentMutant] {
        of_family!(self, kind => kind.suite().equivalent_mutants())
    }

    /// See [`Suite::themes`](super::Suite::themes).
    #[must_use]
    pub fn themes(self, threads: usize) -> u64 {
        of_family!(self, kind => kind.suite().themes(threads))
    }

    /// See [`Suite::rare_seeds`](super::Suite::rare_seeds).
    #[must_use]
    pub fn rare_seeds(self) -> &'static [u64] {
        of_family!(self, kind => kind.suite().rare_seeds())
    }

    /// See [`Suite::not_provoked`](super::Suite::not_provoked).
    #[must_use]
    pub fn not_provoked(self) -> &'static [&'static str] {
        of_family!(self, kind => kind.suite().not_provoked())
    }
}

impl Display for AnyKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for AnyKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = Self::all();
        let found = all.iter().copied().find(|kind| kind.name() == name);
        found.ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|kind| kind.name()).collect();
            let known = known.join(", ");
            Error::BadOption(format!("{name:?} is no kind of index; known are {known}"))
        })
    }
}
