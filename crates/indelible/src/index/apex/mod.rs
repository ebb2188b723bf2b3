//! APEX, not built yet.

use super::Change;
use crate::map::MapStat;
use crate::pool::PoolCore;
use crate::{Error, Result};
use std::sync::Arc;

/// One open map.
pub(crate) struct Apex {}

fn not_built<T>() -> Result<T> {
    Err(Error::BadOption("apex is not built yet".into()))
}

impl Apex {
    /// Lays out an empty map for the catalog entry at `slot`, which is not committed yet.
    pub(crate) fn format(_core: &Arc<PoolCore>, _slot: usize) -> Result<()> {
        not_built()
    }

    /// Opens the map of the catalog entry at `slot`. O(1).
    pub(crate) fn open(_core: Arc<PoolCore>, _slot: usize) -> Result<Arc<Self>> {
        not_built()
    }

    pub(crate) fn name(&self) -> &str {
        ""
    }

    #[inline]
    pub(crate) fn get(&self, _key: u64) -> Result<Option<u64>> {
        not_built()
    }

    pub(crate) fn get_batch(&self, _keys: &[u64], _values: &mut [Option<u64>]) -> Result<()> {
        not_built()
    }

    #[inline]
    pub(crate) fn apply(
        &self,
        _key: u64,
        _change: impl FnMut(Option<u64>) -> Change,
    ) -> Result<Option<u64>> {
        not_built()
    }

    pub(crate) fn insert_batch(&self, _records: &[(u64, u64)]) -> Result<()> {
        not_built()
    }

    pub(crate) fn bulk_load(&self, _records: &[(u64, u64)], _fill: f64) -> Result<()> {
        not_built()
    }

    pub(crate) fn len(&self) -> Result<u64> {
        not_built()
    }

    pub(crate) fn warm_up(&self) -> Result<()> {
        not_built()
    }

    pub(crate) fn check(&self) -> Result<Vec<String>> {
        not_built()
    }

    pub(crate) fn stat(&self) -> Result<MapStat> {
        not_built()
    }
}

/// A range in progress, from both ends.
pub(crate) struct Cursor {}

impl Cursor {
    /// A range over the keys from the first to the second of `bounds`, both included; over nothing for `None`.
    pub(crate) fn new(_tree: Arc<Apex>, _bounds: Option<(u64, u64)>) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<[u64; 2]> {
        None
    }

    #[inline(always)]
    pub(crate) fn next_back(&mut self) -> Option<[u64; 2]> {
        None
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        None
    }
}
