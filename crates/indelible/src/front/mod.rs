//! The public face: pools, maps, ranges, options, types of keys and values. Everything is documented and typed here, and done below.

mod catalog;
mod many;
mod map;
mod open;
mod options;
mod pool;
mod range;
mod types;
mod words;

pub use crate::host::MapStat;
pub use crate::pool::PoolOptions;
pub(crate) use catalog::accept_if_whole;
pub use map::{CompareExchange, Map};
pub use options::MapOptions;
pub use pool::{LogStat, MapInfo, Pool, PoolStat};
pub use range::{Keys, Range, Values};
pub use types::{Key, Newtype, Type, Value};
