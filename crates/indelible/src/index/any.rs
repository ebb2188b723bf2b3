//! An index of any kind.
//!
//! Maps hold one of these. What it costs is one branch per call, which goes the same way every time.

use super::Change;
use super::apex::{self, Apex};
use super::lbtree::{self, LbTree};
use crate::map::MapStat;
use crate::pool::PoolCore;
use crate::{Error, Kind, Result};
use std::sync::{Arc, Weak};

/// One open map, of whatever kind.
#[derive(Clone)]
pub(crate) enum AnyIndex {
    LbTree(Arc<LbTree>),
    Apex(Arc<Apex>),
}

/// Does the same with the index inside, whatever its kind.
macro_rules! each {
    ($any:expr, $index:ident => $work:expr) => {
        match $any {
            Self::LbTree($index) => $work,
            Self::Apex($index) => $work,
        }
    };
}

impl AnyIndex {
    /// Lays out an empty map for the catalog entry at `slot`, which is not committed yet and says what kind to make.
    pub(crate) fn format(core: &Arc<PoolCore>, slot: usize) -> Result<()> {
        match kind_at(core, slot)? {
            Kind::LbTree => LbTree::format(core, slot),
            Kind::Apex => Apex::format(core, slot),
        }
    }

    /// Opens the map of the catalog entry at `slot`. O(1).
    pub(crate) fn open(core: Arc<PoolCore>, slot: usize) -> Result<Self> {
        Ok(match kind_at(&core, slot)? {
            Kind::LbTree => Self::LbTree(LbTree::open(core, slot)?),
            Kind::Apex => Self::Apex(Apex::open(core, slot)?),
        })
    }

    /// The same for the registry of open maps, which keeps none of them open.
    pub(crate) fn downgrade(&self) -> WeakIndex {
        match self {
            Self::LbTree(index) => WeakIndex::LbTree(Arc::downgrade(index)),
            Self::Apex(index) => WeakIndex::Apex(Arc::downgrade(index)),
        }
    }

    pub(crate) fn name(&self) -> &str {
        each!(self, index => index.name())
    }

    #[inline(always)]
    pub(crate) fn get(&self, key: u64) -> Result<Option<u64>> {
        each!(self, index => index.get(key))
    }

    #[inline]
    pub(crate) fn get_batch(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<()> {
        each!(self, index => index.get_batch(keys, values))
    }

    /// Changes one key, in one step as seen by all others, and returns its value from before. `change` may be called
    /// more than once; the last call counts.
    ///
    /// The error is in a box, so that there is little to hand on when there is none.
    #[inline(always)]
    pub(crate) fn apply(
        &self,
        key: u64,
        change: impl FnMut(Option<u64>) -> Change,
    ) -> Result<Option<u64>, Box<Error>> {
        each!(self, index => index.apply(key, change))
    }

    /// The keys ascend; equal ones are written in their order.
    pub(crate) fn insert_batch(&self, records: &[(u64, u64)]) -> Result<()> {
        each!(self, index => index.insert_batch(records))
    }

    pub(crate) fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        each!(self, index => index.bulk_load(records, fill))
    }

    pub(crate) fn len(&self) -> Result<u64> {
        each!(self, index => index.len())
    }

    pub(crate) fn warm_up(&self) -> Result<()> {
        each!(self, index => index.warm_up())
    }

    pub(crate) fn release_memory(&self) -> u64 {
        match self {
            Self::LbTree(_) => 0,
            Self::Apex(index) => index.release_memory(),
        }
    }

    /// Moves live blocks to the front of the pool and merges nodes that have few records, so that extents become free.
    pub(crate) fn compact(&self) -> Result<()> {
        each!(self, index => index.compact())
    }

    pub(crate) fn check(&self) -> Result<Vec<String>> {
        each!(self, index => index.check())
    }

    pub(crate) fn stat(&self) -> Result<MapStat> {
        each!(self, index => index.stat())
    }
}

fn kind_at(core: &PoolCore, slot: usize) -> Result<Kind> {
    core.kind_of(slot).ok_or_else(|| {
        let name = core.name_of(slot);
        Error::Damaged(format!(
            "map {name:?} is of a kind that this version does not know"
        ))
    })
}

/// A map that may be open.
pub(crate) enum WeakIndex {
    LbTree(Weak<LbTree>),
    Apex(Weak<Apex>),
}

impl WeakIndex {
    /// The map, if it is open.
    pub(crate) fn upgrade(&self) -> Option<AnyIndex> {
        Some(match self {
            Self::LbTree(index) => AnyIndex::LbTree(index.upgrade()?),
            Self::Apex(index) => AnyIndex::Apex(index.upgrade()?),
        })
    }
}

/// A range in progress, from both ends, over an index of any kind.
#[allow(
    clippy::large_enum_variant,
    reason = "to allocate the larger one would cost every range more than the room does"
)]
pub(crate) enum AnyCursor {
    LbTree(lbtree::Cursor),
    Apex(apex::Cursor),
}

impl AnyCursor {
    /// A range over the keys from the first to the second of `bounds`, both included; over nothing for `None`.
    pub(crate) fn new(index: AnyIndex, bounds: Option<(u64, u64)>) -> Self {
        match index {
            AnyIndex::LbTree(index) => Self::LbTree(lbtree::Cursor::new(index, bounds)),
            AnyIndex::Apex(index) => Self::Apex(apex::Cursor::new(index, bounds)),
        }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<[u64; 2]> {
        each!(self, cursor => cursor.next())
    }

    #[inline(always)]
    pub(crate) fn next_back(&mut self) -> Option<[u64; 2]> {
        each!(self, cursor => cursor.next_back())
    }

    /// The next records, at most `most`; none only at the end.
    pub(crate) fn next_chunk(&mut self, most: usize) -> &[[u64; 2]] {
        each!(self, cursor => cursor.next_chunk(most))
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        each!(self, cursor => cursor.take_error())
    }
}
