//! Maps.

use crate::pointers::{elements, options_text, place, room, shared, string, taken, utf8};
use crate::pool::PoolHandle;
use crate::status::{Failure, Status, guarded};
use indelible::{Map, MapOptions, Range};
use std::ffi::c_char;
use std::ops::RangeInclusive;

/// An open map.
pub struct MapHandle(pub(crate) Map<u64, u64>);

/// A record: 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its key. Keys are ordered as unsigned numbers.
    pub key: u64,
    /// Its value.
    pub value: u64,
}

/// Opens the map `name` (1 to 63 bytes of UTF-8) of `pool`, and creates it if it is not there.
///
/// The handle is written to `map` on INDELIBLE_STATUS_OK and to be closed with indelible_map_close. A map can be opened
/// any number of times. A map that is there is opened whatever its kind and its options are.
///
/// # Safety
///
/// `pool` is open; `name` ends with a zero byte; `map` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_map_open(
    pool: *const PoolHandle,
    name: *const c_char,
    map: *mut *mut MapHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        unsafe { open(pool, name, MapOptions::default().accept_any(true), map) }
    })
}

/// As indelible_map_open, but `options` says how a new map is laid out: the name of a kind of index (`lbtree`), or a list
/// of settings that begins with the kind (`kind=lbtree,leaf=512`). Null or an empty string is indelible_map_open.
///
/// A map that is there with another kind or other options is refused with INDELIBLE_STATUS_REFUSED, and
/// indelible_last_error() then names both. Options that make no sense are refused with INDELIBLE_STATUS_INVALID, and
/// indelible_last_error() names what there is.
///
/// # Safety
///
/// `pool` is open; `name` and, unless it is null, `options` end with a zero byte; `map` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_map_open_with(
    pool: *const PoolHandle,
    name: *const c_char,
    options: *const c_char,
    map: *mut *mut MapHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let text = unsafe { options_text(options)? };
        let options = text
            .parse::<MapOptions>()?
            .accept_any(text.trim().is_empty());
        // SAFETY: the caller's, word for word.
        unsafe { open(pool, name, options, map) }
    })
}

/// # Safety
///
/// As for indelible_map_open.
unsafe fn open(
    pool: *const PoolHandle,
    name: *const c_char,
    options: MapOptions,
    map: *mut *mut MapHandle,
) -> Result<Status, Failure> {
    // SAFETY: the caller's, word for word.
    let (pool, name, map) = unsafe {
        (
            shared(pool, "pool")?,
            string(name, "name")?,
            place(map, "map")?,
        )
    };
    let opened = pool.0.map_with(utf8(name, "name")?, options)?;
    map.write(Box::into_raw(Box::new(MapHandle(opened))));
    Ok(Status::Ok)
}

/// Closes a map.
///
/// # Safety
///
/// `map` came from indelible_map_open or indelible_map_open_with, is not in use by another thread, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_map_close(map: *mut MapHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        drop(unsafe { taken(map, "map")? });
        Ok(Status::Ok)
    })
}

/// Writes the value of `key` to `value`, or returns INDELIBLE_STATUS_ABSENT and leaves `value` alone.
///
/// # Safety
///
/// `map` is open; `value` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_get(map: *const MapHandle, key: u64, value: *mut u64) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, value) = unsafe { (shared(map, "map")?, place(value, "value")?) };
        let Some(found) = map.0.get(key)? else {
            return Ok(Status::Absent);
        };
        value.write(found);
        Ok(Status::Ok)
    })
}

/// Sets the value of `key`, whether it is there or not. When the call returns, the change is as durable as the pool
/// promises; so it is with the other calls that change something.
///
/// # Safety
///
/// `map` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_insert(map: *const MapHandle, key: u64, value: u64) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        map.0.insert(key, value)?;
        Ok(Status::Ok)
    })
}

/// Adds `key`, or returns INDELIBLE_STATUS_PRESENT and changes nothing if it is there.
///
/// # Safety
///
/// `map` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_insert_new(
    map: *const MapHandle,
    key: u64,
    value: u64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        Ok(if map.0.insert_new(key, value)? {
            Status::Ok
        } else {
            Status::Present
        })
    })
}

/// Sets the value of `key`, or returns INDELIBLE_STATUS_ABSENT and changes nothing if it is not there.
///
/// # Safety
///
/// `map` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_update(map: *const MapHandle, key: u64, value: u64) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        Ok(Status::ok_if(map.0.update(key, value)?.is_some()))
    })
}

/// Removes `key`, or returns INDELIBLE_STATUS_ABSENT if it is not there.
///
/// # Safety
///
/// `map` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_remove(map: *const MapHandle, key: u64) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        Ok(Status::ok_if(map.0.remove(key)?.is_some()))
    })
}

/// Copies the records with keys from `first` to `last`, both included, to `records`, in ascending order and at most
/// `capacity` of them, and their number to `count`. If `count` is `capacity` there may be more: go on with the last key
/// plus 1, unless the last key is `last`.
///
/// The copy is no snapshot: a record that comes or goes meanwhile may or may not be in it; one that is there throughout is.
/// On failure nothing is written to `count`; what is in `records` means nothing.
///
/// # Safety
///
/// `map` is open; `capacity` records can be written to `records`, and `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_range(
    map: *const MapHandle,
    first: u64,
    last: u64,
    records: *mut Record,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        unsafe { read_range(map, first..=last, records, capacity, count, |range| range) }
    })
}

/// As indelible_range, but in descending order: from `last` down, at most `capacity` records. If `count` is `capacity` there may be more: go on
/// with the last key minus 1 as `last`, unless that key is `first`.
///
/// # Safety
///
/// As for indelible_range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_range_down(
    map: *const MapHandle,
    first: u64,
    last: u64,
    records: *mut Record,
    capacity: usize,
    count: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        unsafe { read_range(map, first..=last, records, capacity, count, Range::rev) }
    })
}

/// Copies records in the direction that `directed` gives the range.
///
/// # Safety
///
/// As for indelible_range.
unsafe fn read_range<R: Iterator<Item = indelible::Result<(u64, u64)>>>(
    map: *const MapHandle,
    keys: RangeInclusive<u64>,
    records: *mut Record,
    capacity: usize,
    count: *mut usize,
    directed: impl FnOnce(Range<u64, u64>) -> R,
) -> Result<Status, Failure> {
    // SAFETY: the caller's, word for word.
    let (map, records, count) = unsafe {
        (
            shared(map, "map")?,
            room(records, capacity, "records")?,
            place(count, "count")?,
        )
    };
    let range = directed(map.0.range(keys)?);
    let mut found = 0;
    // The room leads: once it is full the range is not asked again.
    for (room, record) in records.iter_mut().zip(range) {
        let (key, value) = record?;
        room.write(Record { key, value });
        found += 1;
    }
    count.write(found);
    Ok(Status::Ok)
}

/// Looks up `count` keys at once, which is several times as fast as one by one: the lookups wait for memory together. Of the key at `keys[i]` the value is written to
/// `values[i]` and 1 to `found[i]`, or 0 to both if the key is not there. `values` may be `keys`.
///
/// # Safety
///
/// `map` is open; `count` keys can be read from `keys`, and as many elements be written from `values` and from `found` on, by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_get_batch(
    map: *const MapHandle,
    keys: *const u64,
    count: usize,
    values: *mut u64,
    found: *mut u8,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let got = unsafe {
            let map = shared(map, "map")?;
            map.0.get_batch(elements(keys, count, "keys")?)?
        };
        // Only now: the values may take the places of the keys.
        // SAFETY: as above.
        let (values, found) =
            unsafe { (room(values, count, "values")?, room(found, count, "found")?) };
        let places = values.iter_mut().zip(found);
        for (got, (value, found)) in got.into_iter().zip(places) {
            value.write(got.unwrap_or(0));
            found.write(got.is_some().into());
        }
        Ok(Status::Ok)
    })
}

/// Inserts `count` records in any order, which is faster than one by one; of equal keys the last one counts. Each record is there after a crash or not, by itself. If the call fails, some may
/// have been inserted.
///
/// # Safety
///
/// `map` is open; `count` records can be read from `records`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_insert_batch(
    map: *const MapHandle,
    records: *const Record,
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, records) = unsafe { (shared(map, "map")?, elements(records, count, "records")?) };
        map.0.insert_batch(&pairs(records)?)?;
        Ok(Status::Ok)
    })
}

/// Removes the records whose keys lie between `from` and `to`, both included, one by one, and writes how many there were to `count`. If the call fails, some may
/// have been removed, and nothing is written to `count`.
///
/// # Safety
///
/// `map` is open; `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_remove_range(
    map: *const MapHandle,
    from: u64,
    to: u64,
    count: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, count) = unsafe { (shared(map, "map")?, place(count, "count")?) };
        count.write(map.0.remove_range(from..=to)?);
        Ok(Status::Ok)
    })
}

fn pairs(records: &[Record]) -> Result<Vec<(u64, u64)>, Failure> {
    let count = records.len();
    let mut pairs: Vec<(u64, u64)> = Vec::new();
    pairs
        .try_reserve_exact(count)
        .map_err(|error| Failure::invalid(format!("{count} records: {error}")))?;
    pairs.extend(records.iter().map(|record| (record.key, record.value)));
    Ok(pairs)
}

/// Fills an empty map with `count` records in strictly ascending order of their keys, by one thread per core.
///
/// `fill` is the share of each leaf that is used, from 0.1 to 1; 0.7 leaves room for later inserts. The load commits
/// whole: after a crash the map is empty or complete. Fails with INDELIBLE_STATUS_NOT_EMPTY, _NOT_ASCENDING, _INVALID
/// (`fill`), _NO_SPACE; the map is then as before.
///
/// # Safety
///
/// `map` is open; `count` records can be read from `records`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bulk_load(
    map: *const MapHandle,
    records: *const Record,
    count: usize,
    fill: f64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, records) = unsafe { (shared(map, "map")?, elements(records, count, "records")?) };
        map.0.bulk_load(&pairs(records)?, fill)?;
        Ok(Status::Ok)
    })
}

/// Writes the number of records to `count`. The first call after a crash waits until all have been counted; the others
/// take no time.
///
/// # Safety
///
/// `map` is open; `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_len(map: *const MapHandle, count: *mut u64) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, count) = unsafe { (shared(map, "map")?, place(count, "count")?) };
        count.write(map.0.len()?);
        Ok(Status::Ok)
    })
}
