//! The public face: pools, maps, ranges, spatial indexes, options, types of keys and values. Everything is documented and typed here, and done below.

mod bytes;
mod catalog;
mod many;
mod map;
mod objects;
mod open;
mod options;
mod pool;
mod range;
mod spatial;
mod typed;
mod types;
mod upkeep;
mod words;

pub use crate::host::{IndexStat, MapStat, SpatialStat, StringStat};
pub use crate::pool::PoolOptions;
pub use bytes::{
    BytesInfo, BytesKeys, BytesMap, BytesRange, BytesValues, ValueReader, ValueWriter,
};
pub(crate) use catalog::accept_if_whole;
pub use map::{CompareExchange, Map};
pub use objects::ObjectInfo;
pub use options::{BytesOptions, IndexOptions, MapOptions, SpatialOptions};
pub use pool::{LogStat, MapInfo, Pool, PoolStat};
pub use range::{Keys, Range, Values};
pub use spatial::{Join, Nearest, Record, Records, Spatial, SpatialInfo};
pub use typed::{TypedInfo, TypedKeys, TypedMap, TypedRange, TypedValues};
pub use types::{Key, Newtype, Type, Value};
