//! The LB+-Tree. (Stub while the pool is being written.)
#![allow(unused, missing_docs, clippy::all)]

use crate::Result;
use crate::map::MapStat;
use crate::pool::PoolCore;
use std::sync::Arc;

pub(crate) enum Change { Keep, Put(u64), Remove }

pub(crate) struct LbTree {}
impl LbTree {
    /// Lays out an empty tree for the catalog entry at `slot`, which is not committed yet.
    pub(crate) fn format(core: &Arc<PoolCore>, slot: usize) -> Result<()> { todo!() }
    pub(crate) fn open(core: Arc<PoolCore>, slot: usize) -> Result<Arc<Self>> { todo!() }
    pub(crate) fn name(&self) -> &str { todo!() }
    pub(crate) fn get(&self, key: u64) -> Result<Option<u64>> { todo!() }
    pub(crate) fn get_batch(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<()> { todo!() }
    pub(crate) fn apply(&self, key: u64, change: impl FnMut(Option<u64>) -> Change) -> Result<Option<u64>> { todo!() }
    pub(crate) fn insert_batch(&self, records: &[(u64, u64)]) -> Result<()> { todo!() }
    pub(crate) fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> { todo!() }
    pub(crate) fn len(&self) -> Result<u64> { todo!() }
    pub(crate) fn stat(&self) -> Result<MapStat> { todo!() }
    pub(crate) fn check(&self) -> Result<Vec<String>> { todo!() }
    pub(crate) fn warm_up(&self) -> Result<()> { todo!() }
}

pub(crate) struct Cursor {}
impl Cursor {
    pub(crate) fn new(tree: Arc<LbTree>, bounds: Option<(u64, u64)>) -> Self { todo!() }
    pub(crate) fn next(&mut self) -> Option<(u64, u64)> { todo!() }
    pub(crate) fn next_back(&mut self) -> Option<(u64, u64)> { todo!() }
    pub(crate) fn take_error(&mut self) -> Option<crate::Error> { todo!() }
}
