//! The checks and statistics that do not depend on the engine.

use super::{Host, Shared};
use crate::engines::{Engine, Fact, IndexKind, Kind, Report, SpatialKind, StringKind};
use crate::{Error, Result};
use std::sync::atomic::Ordering;

/// What a map is made of, from [`Map::stat`](crate::Map::stat).
pub type MapStat = IndexStat<Kind>;

/// What a spatial index is made of, from [`Spatial::stat`](crate::Spatial::stat).
pub type SpatialStat = IndexStat<SpatialKind>;

/// What a map of byte strings is made of, from [`BytesMap::stat`](crate::BytesMap::stat).
pub type StringStat = IndexStat<StringKind>;

/// What an index is made of: [`MapStat`] of a map, [`SpatialStat`] of a spatial index.
///
/// What only some kinds of index have are [facts](Fact): numbers with a name, a unit and a meaning, which a program can print without
/// knowing the kind.
///
/// # Examples
///
/// ```
/// # fn main() -> indelible::Result<()> {
/// let map = indelible::Pool::in_memory()?.map::<u64, u64>("m")?;
/// map.insert(1, 2)?;
/// let stat = map.stat()?;
/// assert_eq!(stat.records, 1);
/// for fact in &stat.facts {
///     println!("{}: {:?} {} ({})", fact.name, fact.value, fact.unit, fact.meaning);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IndexStat<K: IndexKind> {
    /// The kind of index.
    pub kind: K,
    /// Records.
    pub records: u64,
    /// Bytes of the file that belong to this index: its extents, whole.
    pub file_bytes: u64,
    /// Bytes of DRAM that this index holds: inner nodes, locks, and what says which blocks are in use.
    pub dram_bytes: u64,
    /// Whether all that a crash left to be rebuilt has been rebuilt since the pool was opened.
    pub warm: bool,
    /// What the kind of index says of itself.
    pub facts: Vec<Fact>,
}

impl<K: IndexKind> IndexStat<K> {
    /// The fact of this name, if the kind of index has it.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&Fact> {
        self.facts.iter().find(|fact| fact.name == name)
    }
}

impl<E: Engine> Host<E> {
    /// See [`Map::check`](crate::Map::check).
    pub(crate) fn check(&self) -> Result<Vec<String>> {
        self.shared.check()
    }

    /// See [`Map::stat`](crate::Map::stat).
    pub(crate) fn stat<K: IndexKind>(&self, kind: K) -> Result<IndexStat<K>> {
        let shared = &self.shared;
        let records = shared.records()?;
        let facts = shared.engine.facts(records)?;
        let usage = shared.usage();
        Ok(IndexStat {
            kind,
            records,
            file_bytes: usage.file_bytes,
            dram_bytes: shared.engine.dram_bytes() + usage.dram_bytes,
            warm: shared.is_warm.load(Ordering::Relaxed),
            facts,
        })
    }
}

impl<E: Engine> Shared<E> {
    fn check(&self) -> Result<Vec<String>> {
        let mut report = Report::default();
        let checked = self
            .warm_up(&|| true)
            .and_then(|()| self.engine.check(&mut report));
        match checked {
            Ok(()) => {}
            Err(Error::Damaged(problem)) => {
                report.problem(problem);
                return Ok(report.into_problems());
            }
            Err(error) => return Err(error),
        }
        let counted = self.engine.locks().total();
        let found = report.records();
        report.expect(counted == found, || {
            format!("the map counts {counted} records and has {found}")
        });
        if !self.place.core.is_read_only() {
            self.check_blocks(&mut report);
        }
        Ok(report.into_problems())
    }
}
