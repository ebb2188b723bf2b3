//! What is done with a pool, and with the objects in it, as a whole.

use crate::bytes::BytesHandle;
use crate::map::MapHandle;
use crate::pointers::{place, shared, string, utf8};
use crate::pool::{PoolHandle, path_at};
use crate::spatial::SpatialHandle;
use crate::status::{Failure, Status, guarded};
use std::ffi::c_char;

/// Problems whose words fit into a message.
const PROBLEMS_IN_A_MESSAGE: usize = 10;

/// Waits until everything written so far is on the disk. With INDELIBLE_DURABILITY_INTERVAL, what was written before the call survives a
/// power cut from here on; INDELIBLE_DURABILITY_POWER_LOSS needs no such call; with INDELIBLE_DURABILITY_PROCESS a pool that is open in a
/// power cut is refused all the same, and the next close is shorter.
///
/// # Safety
///
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_sync(pool: *const PoolHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        unsafe { shared(pool, "pool")? }.0.sync()?;
        Ok(Status::Ok)
    })
}

/// Copies a pool that has a log (INDELIBLE_DURABILITY_POWER_LOSS on a disk, INDELIBLE_DURABILITY_INTERVAL) to a new file at `path` while it goes on being used.
/// The copy has everything that was written before the call, and is as a pool that was closed. INDELIBLE_STATUS_INVALID: the pool has no log.
///
/// # Safety
///
/// `pool` is open; `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_backup(
    pool: *const PoolHandle,
    path: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, path) = unsafe { (shared(pool, "pool")?, path_at(path)?) };
        pool.0.backup(path)?;
        Ok(Status::Ok)
    })
}

/// Merges nodes that have few records, moves blocks to the front of the file, and cuts off what is free at its end. Writes the bytes given back to `bytes`.
/// All objects can be used meanwhile. If the call fails, a part of this may have been done, which changes no record, and nothing is written to `bytes`.
///
/// # Safety
///
/// `pool` is open; `bytes` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_shrink(pool: *const PoolHandle, bytes: *mut u64) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, bytes) = unsafe { (shared(pool, "pool")?, place(bytes, "bytes")?) };
        bytes.write(pool.0.shrink()?);
        Ok(Status::Ok)
    })
}

/// Checks what the pool knows of itself, apart from its objects. INDELIBLE_STATUS_DAMAGED: something is wrong, and indelible_last_error() says what.
///
/// # Safety
///
/// `pool` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_check(pool: *const PoolHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let pool = unsafe { shared(pool, "pool")? };
        sound(&pool.0.check())
    })
}

/// Checks every record of a map, and how its index is built. INDELIBLE_STATUS_DAMAGED: something is wrong, and indelible_last_error() says what.
/// Call it while nobody writes: a change that is being made can look like damage.
///
/// # Safety
///
/// `map` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_map_check(map: *const MapHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        sound(&map.0.check()?)
    })
}

/// As indelible_map_check, of a map of byte strings.
///
/// # Safety
///
/// `map` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_check(map: *const BytesHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        sound(&map.0.check()?)
    })
}

/// As indelible_map_check, of a spatial index.
///
/// # Safety
///
/// `index` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_spatial_check(index: *const SpatialHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let index = unsafe { shared(index, "index")? };
        sound(&index.check()?)
    })
}

fn sound(problems: &[String]) -> Result<Status, Failure> {
    if problems.is_empty() {
        return Ok(Status::Ok);
    }
    let mut words = problems[..problems.len().min(PROBLEMS_IN_A_MESSAGE)].join("; ");
    if problems.len() > PROBLEMS_IN_A_MESSAGE {
        words += &format!("; {} more", problems.len() - PROBLEMS_IN_A_MESSAGE);
    }
    Err(indelible::Error::Damaged(words).into())
}

/// Whether the pool has an object of this name, of whatever family: INDELIBLE_STATUS_OK or INDELIBLE_STATUS_ABSENT.
///
/// # Safety
///
/// `pool` is open; `name` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_object_find(
    pool: *const PoolHandle,
    name: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, name) = unsafe { (shared(pool, "pool")?, string(name, "name")?) };
        Ok(Status::ok_if(pool.0.has_object(utf8(name, "name")?)))
    })
}

/// Gives the object `from`, a map or a spatial index, the name `to`. Open handles stay valid. After a crash it has one name or the other.
/// INDELIBLE_STATUS_ABSENT: there is no object `from`. INDELIBLE_STATUS_PRESENT: there is an object `to`. Nothing is changed then.
///
/// # Safety
///
/// `pool` is open; `from` and `to` end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_object_rename(
    pool: *const PoolHandle,
    from: *const c_char,
    to: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, from, to) = unsafe {
            (
                shared(pool, "pool")?,
                string(from, "from")?,
                string(to, "to")?,
            )
        };
        match pool.0.rename_object(utf8(from, "from")?, utf8(to, "to")?) {
            Err(indelible::Error::NoSuchMap(_)) => Ok(Status::Absent),
            Err(indelible::Error::NameTaken(_)) => Ok(Status::Present),
            result => Ok(result.map(|()| Status::Ok)?),
        }
    })
}

/// Removes the object `name`, a map or a spatial index, whatever is in it, and frees its space. After a crash it is there whole or not at all.
/// INDELIBLE_STATUS_ABSENT: there is none. INDELIBLE_STATUS_IN_USE: a handle to it is open, which may be a cursor, a reader or a writer.
///
/// # Safety
///
/// `pool` is open; `name` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_object_drop(
    pool: *const PoolHandle,
    name: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, name) = unsafe { (shared(pool, "pool")?, string(name, "name")?) };
        match pool.0.drop_object(utf8(name, "name")?) {
            Err(indelible::Error::NoSuchMap(_)) => Ok(Status::Absent),
            result => Ok(result.map(|()| Status::Ok)?),
        }
    })
}
