//! The kinds of index that the tests are run for.

use indelible::{Kind, Map, MapOptions, Pool};

/// All that there are.
pub const KINDS: &[Kind] = Kind::all();

/// The map "m" of a pool, of this kind if it is not there yet.
pub fn map_of(pool: &Pool, kind: Kind) -> Map<u64, u64> {
    let options = MapOptions::from(kind).accept_any(true);
    pool.map_with("m", options).unwrap()
}
