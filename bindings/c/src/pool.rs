//! Pools.

use crate::pointers::{place, string, taken};
use crate::status::{Failure, Status, guarded};
use indelible::{Durability, Pool, PoolOptions};
use std::ffi::{OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Durability of a new pool: the process's; of an existing one: as recorded in it.
pub const INDELIBLE_DURABILITY_RECORDED: u32 = 0;
/// A change survives the death of the process (kill -9) once its call has returned. The file may lie anywhere.
pub const INDELIBLE_DURABILITY_PROCESS: u32 = 1;
/// A change survives power loss too. On a file that is not on persistent memory (DAX) the pool has a log beside it; refused in memory (tmpfs).
pub const INDELIBLE_DURABILITY_POWER_LOSS: u32 = 2;
/// Flushes and fences as with power loss, on any file. For measurements: an ordinary file survives no power loss by it.
pub const INDELIBLE_DURABILITY_POWER_LOSS_FORCED: u32 = 3;

/// Plus a number of milliseconds, such as INDELIBLE_DURABILITY_INTERVAL + 10: a change survives the death of the process once its call has returned, and a power cut about so
/// much later. A power cut loses nothing in the middle. The pool has a log beside it; refused in memory (tmpfs).
pub const INDELIBLE_DURABILITY_INTERVAL: u32 = 0x8000_0000;

/// An open pool.
pub struct PoolHandle(pub(crate) Pool);

/// Opens the pool at `path`, and creates it if there is no file.
///
/// `durability` is one of INDELIBLE_DURABILITY_*; an existing pool has it from then on. `max_bytes` is the most that the file may ever grow to, rounded up to
/// whole extents of 2 MiB; 0 means the most that the format allows, 496 GiB. The file grows as it is needed.
///
/// The handle is written to `pool` on INDELIBLE_STATUS_OK and to be closed with indelible_pool_close. Opening takes
/// milliseconds, whatever the size and however the pool was left. A pool can be open once at a time.
///
/// # Safety
///
/// `path` ends with a zero byte; `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_open_or_create(
    path: *const c_char,
    durability: u32,
    max_bytes: u64,
    pool: *mut *mut PoolHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (path, pool) = unsafe { (path_at(path)?, place(pool, "pool")?) };
        let opened = options(durability, max_bytes)?.open_or_create(path)?;
        pool.write(boxed(opened));
        Ok(Status::Ok)
    })
}

/// Opens the pool at `path`; otherwise as indelible_pool_open_or_create.
///
/// # Safety
///
/// `path` ends with a zero byte; `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_open(
    path: *const c_char,
    durability: u32,
    max_bytes: u64,
    pool: *mut *mut PoolHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (path, pool) = unsafe { (path_at(path)?, place(pool, "pool")?) };
        let opened = options(durability, max_bytes)?.open(path)?;
        pool.write(boxed(opened));
        Ok(Status::Ok)
    })
}

/// Creates a pool at `path`, where no file may be; otherwise as indelible_pool_open_or_create.
///
/// # Safety
///
/// `path` ends with a zero byte; `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_create(
    path: *const c_char,
    durability: u32,
    max_bytes: u64,
    pool: *mut *mut PoolHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (path, pool) = unsafe { (path_at(path)?, place(pool, "pool")?) };
        let created = options(durability, max_bytes)?.create(path)?;
        pool.write(boxed(created));
        Ok(Status::Ok)
    })
}

/// A pool in memory, which survives nothing. `max_bytes` and `pool` are as for indelible_pool_open_or_create.
///
/// # Safety
///
/// `pool` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_in_memory(
    max_bytes: u64,
    pool: *mut *mut PoolHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let pool = unsafe { place(pool, "pool")? };
        let created = options(INDELIBLE_DURABILITY_RECORDED, max_bytes)?.in_memory()?;
        pool.write(boxed(created));
        Ok(Status::Ok)
    })
}

/// Closes a pool: syncs it to its file and marks it as clean. The handle is gone whatever is returned.
///
/// INDELIBLE_STATUS_IN_USE: other handles of the pool are still open (maps, spatial indexes, cursors, readers, writers). It is
/// closed when the last of them is, and nobody is told if the sync fails then: so close the pool last. INDELIBLE_STATUS_IO:
/// the sync failed. A process that ends without closing loses nothing that the pool's durability covers.
///
/// # Safety
///
/// `pool` came from a function that opens pools, is not in use by another thread, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_pool_close(pool: *mut PoolHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let pool = unsafe { taken(pool, "pool")? };
        pool.0.close()?;
        Ok(Status::Ok)
    })
}

/// A path, which may be any bytes.
///
/// # Safety
///
/// `path` is null, or ends with a zero byte and does not change before it has been used last.
pub(crate) unsafe fn path_at<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    // SAFETY: the caller's, word for word.
    let path = unsafe { string(path, "path")? };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

fn boxed(pool: Pool) -> *mut PoolHandle {
    Box::into_raw(Box::new(PoolHandle(pool)))
}

fn options(durability: u32, max_bytes: u64) -> Result<PoolOptions, Failure> {
    let mut options = Pool::options();
    match durability {
        INDELIBLE_DURABILITY_RECORDED => {}
        INDELIBLE_DURABILITY_PROCESS => {
            options.durability(Durability::Process);
        }
        INDELIBLE_DURABILITY_POWER_LOSS => {
            options.durability(Durability::PowerLoss);
        }
        INDELIBLE_DURABILITY_POWER_LOSS_FORCED => {
            options
                .durability(Durability::PowerLoss)
                .force_power_loss_protocol(true);
        }
        INDELIBLE_DURABILITY_INTERVAL.. => {
            let millis = durability - INDELIBLE_DURABILITY_INTERVAL;
            if millis == 0 {
                return Err(Failure::invalid("the interval has no milliseconds"));
            }
            options.durability(Durability::Interval(Duration::from_millis(millis.into())));
        }
        other => {
            return Err(Failure::invalid(format!("there is no durability {other}")));
        }
    }
    if max_bytes != 0 {
        options.max_bytes(max_bytes);
    }
    Ok(options)
}
