#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

// A test of the public interface runs inside of the library as well, with small nodes.
#[cfg(all(test, not(loom)))]
extern crate self as indelible;

#[cfg(feature = "trace")]
pub mod checker;
mod concurrency;
mod encoding;
mod engines;
mod error;
mod front;
mod host;
mod kernels;
pub mod pmem;
mod pool;
#[allow(dead_code)]
mod spatial;

#[cfg(feature = "zerocopy")]
pub use encoding::Plain;
#[cfg(feature = "serde")]
pub use encoding::Postcard;
pub use encoding::{
    AsKey, AsValue, Begins, KeyBuffer, KeyPrefix, Named, OrderedKey, Place, StoredValue, TypeCodes,
};
pub use engines::options::*;
pub use engines::spatial_options::*;
pub use engines::string_options::*;
pub use engines::{Fact, FactValue, IndexKind, Kind, OptionInfo, SpatialKind, StringKind, Unit};
pub use error::{Error, Result};
pub use front::{
    BytesInfo, BytesKeys, BytesMap, BytesOptions, BytesRange, BytesValues, CompareExchange,
    IndexOptions, IndexStat, Join, Key, Keys, LogStat, Map, MapInfo, MapOptions, MapStat, Nearest,
    Newtype, ObjectInfo, Pool, PoolOptions, PoolStat, Range, Record, Records, Spatial, SpatialInfo,
    SpatialOptions, SpatialStat, StringStat, Type, TypedInfo, TypedKeys, TypedMap, TypedRange,
    TypedValues, Value, ValueReader, ValueWriter, Values,
};
pub use kernels::{kernel, kernels};
pub use pool::Durability;
pub use spatial::{Box2, Box3, Geometry, GeometryType, Point2, Point3};
