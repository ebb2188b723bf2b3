//! Pools. (Stub.)
#![allow(unused, missing_docs, clippy::all)]

use crate::pmem::{Cell, Pm};
use crate::{Key, Map, MapOptions, Result, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a pool promises to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability { Process, PowerLoss }

#[derive(Clone, Debug)]
pub struct PoolOptions {}
impl PoolOptions {
    pub fn durability(&mut self, durability: Durability) -> &mut Self { todo!() }
    /// Use the power-loss protocol (real flushes and fences) on a file that is not persistent memory, for tests.
    pub fn force_power_loss_protocol(&mut self, yes: bool) -> &mut Self { todo!() }
    pub fn max_bytes(&mut self, bytes: u64) -> &mut Self { todo!() }
    pub fn salvage(&mut self, yes: bool) -> &mut Self { todo!() }
    pub fn huge_pages(&mut self, yes: bool) -> &mut Self { todo!() }
    /// Creates a new pool; an error if the file exists.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Pool> { todo!() }
    /// Opens an existing pool for reading and writing.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Pool> { todo!() }
    /// Opens, creating if the file does not exist.
    pub fn open_or_create(&self, path: impl AsRef<Path>) -> Result<Pool> { todo!() }
    pub fn open_read_only(&self, path: impl AsRef<Path>) -> Result<Pool> { todo!() }
    /// A volatile pool in anonymous memory.
    pub fn in_memory(&self) -> Result<Pool> { todo!() }
}

#[derive(Clone)]
pub struct Pool {}
impl Pool {
    pub fn options() -> PoolOptions { todo!() }
    pub fn create(path: impl AsRef<Path>) -> Result<Self> { todo!() }
    pub fn open(path: impl AsRef<Path>) -> Result<Self> { todo!() }
    pub fn in_memory() -> Result<Self> { todo!() }
    /// Opens the map `name`, creating it if it is not there.
    pub fn map<K: Key, V: Value>(&self, name: &str) -> Result<Map<K, V>> { todo!() }
    pub fn map_with<K: Key, V: Value>(&self, name: &str, options: MapOptions) -> Result<Map<K, V>> { todo!() }
    /// Opens the map `name`; Error::NoSuchMap if it is not there.
    pub fn open_map<K: Key, V: Value>(&self, name: &str) -> Result<Map<K, V>> { todo!() }
    pub fn maps(&self) -> Vec<MapInfo> { todo!() }
    pub fn drop_map(&self, name: &str) -> Result<()> { todo!() }
    pub fn shrink(&self) -> Result<u64> { todo!() }
    pub fn stat(&self) -> PoolStat { todo!() }
    pub fn close(self) -> Result<()> { todo!() }
}

#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MapInfo { pub name: String, pub key: crate::Type, pub value: crate::Type, pub kind: &'static str, pub leaf_bytes: u32 }

#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PoolStat {
    pub file_bytes: u64,
    pub extents: u64,
    pub free_extents: u64,
    pub generation: u64,
    pub medium: String,
    pub clean_at_open: bool,
    pub salvaged: bool,
}

pub(crate) struct PoolCore {}
