//! What a pool is, and which objects are in it.

use crate::pointers::{place, shared, string};
use crate::pool::{
    INDELIBLE_DURABILITY_INTERVAL, INDELIBLE_DURABILITY_POWER_LOSS, INDELIBLE_DURABILITY_PROCESS,
    INDELIBLE_DURABILITY_RECORDED, PoolHandle,
};
use crate::spatial::{INDELIBLE_BOX2, INDELIBLE_BOX3, INDELIBLE_POINT2, INDELIBLE_POINT3};
use crate::status::{Status, guarded};
use indelible::{Durability, GeometryType, ObjectInfo, Type};
use std::ffi::{CStr, c_char};

/// An object that C cannot open: a map of other keys or values, or what a later version has made.
pub const INDELIBLE_OBJECT_OTHER: u32 = 0;
/// A map from uint64_t to uint64_t: see indelible_map_open.
pub const INDELIBLE_OBJECT_MAP: u32 = 1;
/// A map of byte strings: see indelible_bytes_open.
pub const INDELIBLE_OBJECT_BYTES: u32 = 2;
/// A spatial index: see indelible_spatial_open.
pub const INDELIBLE_OBJECT_SPATIAL: u32 = 3;

/// An object of a pool: 72 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Its name, which ends with a zero byte.
    pub name: [c_char; 64],
    /// One of INDELIBLE_OBJECT_*.
    pub family: u32,
    /// Of a spatial index, INDELIBLE_POINT2 or another geometry; of other objects 0.
    pub geometry: u32,
}

/// What a pool is: 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// How many of them no object owns. What indelible_pool_shrink gives back may be more, since it merges nodes.
    pub free_bytes: u64,
    /// How often the pool has been opened.
    pub generation: u64,
    /// INDELIBLE_DURABILITY_PROCESS, _POWER_LOSS, or _INTERVAL plus milliseconds. A pool in memory survives nothing, and says _PROCESS.
    pub durability: u32,
    /// 1 if the pool had been closed before it was opened, or is new; 0 if it was left open by a process that ended.
    pub clean_at_open: u32,
}

/// Writes what the pool is to `stat`.
///
/// # Safety
///
/// `pool` is open; `stat` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_stat(pool: *const PoolHandle, stat: *mut Stat) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, stat) = unsafe { (shared(pool, "pool")?, place(stat, "stat")?) };
        let facts = pool.0.stat();
        stat.write(Stat {
            file_bytes: facts.file_bytes,
            // All extents have one size.
            free_bytes: facts.file_bytes / facts.extents.max(1) * facts.free_extents,
            generation: facts.generation,
            durability: number_of(facts.durability),
            clean_at_open: facts.clean_at_open.into(),
        });
        Ok(Status::Ok)
    })
}

fn number_of(durability: Durability) -> u32 {
    match durability {
        Durability::Process => INDELIBLE_DURABILITY_PROCESS,
        Durability::PowerLoss => INDELIBLE_DURABILITY_POWER_LOSS,
        Durability::Interval(interval) => {
            let most = u32::MAX - INDELIBLE_DURABILITY_INTERVAL;
            let millis = u32::try_from(interval.as_millis()).unwrap_or(most);
            INDELIBLE_DURABILITY_INTERVAL + millis.min(most)
        }
        // One that this interface has no number for yet.
        _ => INDELIBLE_DURABILITY_RECORDED,
    }
}

/// Finds the object whose name comes next after `after` in the order of strcmp, and writes what it is to `object`; with null, the first one. Or
/// returns INDELIBLE_STATUS_ABSENT and writes nothing if there is none. So all objects are found by
/// `while (indelible_object_next(pool, name, &object) == INDELIBLE_STATUS_OK) name = object.name;` from a null `name` on.
///
/// `after` may be the name in `object`. Objects that come or go meanwhile may or may not be found. An object whose name has a zero byte in it,
/// which no name from C has, is left out.
///
/// # Safety
///
/// `pool` is open; `after` is null or ends with a zero byte; `object` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_object_next(
    pool: *const PoolHandle,
    after: *const c_char,
    object: *mut Object,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, place) = unsafe { (shared(pool, "pool")?, place(object, "object")?) };
        let after = if after.is_null() {
            c""
        } else {
            // SAFETY: the caller's, word for word. Nothing is written before it has been used last.
            unsafe { string(after, "after")? }
        };
        let Some(next) = next_object(pool, after) else {
            return Ok(Status::Absent);
        };
        place.write(next);
        Ok(Status::Ok)
    })
}

/// Names have at least one byte, so that all come after the empty one.
fn next_object(pool: &PoolHandle, after: &CStr) -> Option<Object> {
    // They come in the order of their names.
    let objects = pool.0.objects().into_iter();
    let mut behind = objects.filter(|info| info.name().as_bytes() > after.to_bytes());
    behind.find_map(|info| {
        let bytes = info.name().as_bytes();
        let mut name = [0; 64];
        if bytes.len() >= name.len() || bytes.contains(&0) {
            return None;
        }
        for (place, &byte) in name.iter_mut().zip(bytes) {
            *place = byte as c_char;
        }
        let (family, geometry) = what_is(&info);
        Some(Object {
            name,
            family,
            geometry,
        })
    })
}

/// The family and the geometry.
fn what_is(info: &ObjectInfo) -> (u32, u32) {
    match info {
        ObjectInfo::Map(map) if [map.key, map.value] == [Type::U64; 2] => (INDELIBLE_OBJECT_MAP, 0),
        ObjectInfo::Bytes(_) => (INDELIBLE_OBJECT_BYTES, 0),
        ObjectInfo::Spatial(index) => {
            let geometry = match index.geometry {
                GeometryType::Point2 => INDELIBLE_POINT2,
                GeometryType::Point3 => INDELIBLE_POINT3,
                GeometryType::Box2 => INDELIBLE_BOX2,
                GeometryType::Box3 => INDELIBLE_BOX3,
                _ => return (INDELIBLE_OBJECT_OTHER, 0),
            };
            (INDELIBLE_OBJECT_SPATIAL, geometry)
        }
        _ => (INDELIBLE_OBJECT_OTHER, 0),
    }
}
