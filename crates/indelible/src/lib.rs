#![doc = include_str!("../../../README.md")]
#![warn(missing_docs)]

// A test of the public interface runs inside of the library as well, with small nodes.
#[cfg(all(test, not(loom)))]
extern crate self as indelible;

mod error;
mod index;
mod key;
mod kind;
mod locks;
mod map;
#[cfg(feature = "trace")]
pub mod planted;
#[cfg(not(feature = "trace"))]
mod planted;
pub mod pmem;
mod pool;
mod reclaim;
#[cfg(feature = "trace")]
pub mod schedule;
mod sync;
mod tuning;

pub use error::{Error, Result};
pub use key::{Key, Type, Value};
pub use kind::Kind;
pub use map::{Map, MapOptions, MapStat, Range};
pub use pool::{Durability, MapInfo, Pool, PoolOptions, PoolStat};
pub use tuning::ApexTuning;
