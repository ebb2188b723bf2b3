//! Many records of maps of byte strings at once.

use crate::bytes::{BytesHandle, bounds};
use crate::pointers::{elements, place, shared};
use crate::status::{Failure, Status, guarded};

/// A record of a map of byte strings: where its key and its value lie, and how many bytes they have. Of no bytes, they may be null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BytesRecord {
    /// Its key.
    pub key: *const u8,
    /// Bytes of the key.
    pub key_length: usize,
    /// Its value.
    pub value: *const u8,
    /// Bytes of the value.
    pub value_length: usize,
}

type Slices<'a> = (&'a [u8], &'a [u8]);

/// # Safety
///
/// `count` records can be read from `records`, and so can the bytes of each; none changes before it has been used last.
unsafe fn slices<'a>(
    records: *const BytesRecord,
    count: usize,
) -> Result<Vec<Slices<'a>>, Failure> {
    // SAFETY: the caller's, word for word.
    let records = unsafe { elements(records, count, "records")? };
    let mut slices = Vec::new();
    slices
        .try_reserve_exact(count)
        .map_err(|error| Failure::invalid(format!("{count} records: {error}")))?;
    for record in records {
        // SAFETY: the caller's, word for word.
        slices.push(unsafe {
            (
                elements(record.key, record.key_length, "key")?,
                elements(record.value, record.value_length, "value")?,
            )
        });
    }
    Ok(slices)
}

/// Inserts `count` records in any order, which is faster than one by one; of equal keys the last one counts. Each record is there after a crash
/// or not, by itself. If a key or a value is too long, or null though it has bytes, the call fails with INDELIBLE_STATUS_INVALID and nothing
/// is inserted; if it fails for another reason, some may have been inserted.
///
/// # Safety
///
/// `map` is open; `count` records can be read from `records`, and the bytes of each key and of each value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_insert_batch(
    map: *const BytesHandle,
    records: *const BytesRecord,
    count: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, records) = unsafe { (shared(map, "map")?, slices(records, count)?) };
        map.0.insert_batch(&records)?;
        Ok(Status::Ok)
    })
}

/// Fills an empty map with `count` records in strictly ascending order of their keys, which is that of memcmp.
///
/// `fill` is the share of each leaf that is used, from 0.1 to 1; 0.7 leaves room for later inserts. The load commits whole: after a crash the
/// map is empty or complete. Fails with INDELIBLE_STATUS_NOT_EMPTY, _NOT_ASCENDING, _INVALID (`fill`, or a key or a value as for
/// indelible_bytes_insert_batch), _NO_SPACE; the map is then as before.
///
/// # Safety
///
/// As for indelible_bytes_insert_batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_bulk_load(
    map: *const BytesHandle,
    records: *const BytesRecord,
    count: usize,
    fill: f64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, records) = unsafe { (shared(map, "map")?, slices(records, count)?) };
        map.0.bulk_load(records, fill)?;
        Ok(Status::Ok)
    })
}

/// Removes the records with keys from `first` on, up to but not including `end`, one by one, and writes how many there were to `count`. If `end` is
/// null, all records from `first` on. If the call fails, some may have been removed, and nothing is written to `count`.
///
/// # Safety
///
/// `map` is open; `first_length` bytes can be read at `first` and, unless it is null, `end_length` at `end`; `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_remove_range(
    map: *const BytesHandle,
    first: *const u8,
    first_length: usize,
    end: *const u8,
    end_length: usize,
    count: *mut u64,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, bounds, count) = unsafe {
            (
                shared(map, "map")?,
                bounds(first, first_length, end, end_length)?,
                place(count, "count")?,
            )
        };
        count.write(map.0.remove_range::<&[u8]>(bounds)?);
        Ok(Status::Ok)
    })
}
