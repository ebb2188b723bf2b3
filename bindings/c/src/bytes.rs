//! Maps of byte strings: keys and values are pointers with lengths.

use crate::pointers::{elements, options_text, place, room, shared, string, taken, utf8};
use crate::pool::PoolHandle;
use crate::status::{Failure, Status, guarded};
use indelible::{BytesMap, BytesOptions, BytesRange};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::ops::Bound;
use std::sync::{Mutex, PoisonError};

/// An open map of byte strings.
pub struct BytesHandle(pub(crate) BytesMap);

/// A range of a map of byte strings, in progress.
pub struct BytesCursorHandle(Mutex<Cursor>);

struct Cursor {
    range: BytesRange,
    /// The record that was read last: its key, and its value.
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Opens the map of byte strings `name` (1 to 63 bytes of UTF-8) of `pool`, and creates it if it is not there.
///
/// `options` says how a new map is laid out (`kind=slotted,leaf=512`); null or an empty string means the defaults, and opens a map that is
/// there whatever its options are. The handle is written to `map` on INDELIBLE_STATUS_OK and to be closed with indelible_bytes_close. A
/// map of numbers of the same name is refused with INDELIBLE_STATUS_REFUSED.
///
/// # Safety
///
/// `pool` is open; `name` and, unless it is null, `options` end with a zero byte; `map` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_open(
    pool: *const PoolHandle,
    name: *const c_char,
    options: *const c_char,
    map: *mut *mut BytesHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (pool, name, map) = unsafe {
            (
                shared(pool, "pool")?,
                string(name, "name")?,
                place(map, "map")?,
            )
        };
        // SAFETY: the caller's, word for word.
        let text = unsafe { options_text(options)? };
        let options = text
            .parse::<BytesOptions>()?
            .accept_any(text.trim().is_empty());
        let opened = pool.0.bytes_with(utf8(name, "name")?, options)?;
        map.write(Box::into_raw(Box::new(BytesHandle(opened))));
        Ok(Status::Ok)
    })
}

/// Closes a map of byte strings.
///
/// # Safety
///
/// `map` came from indelible_bytes_open, is not in use by another thread, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_close(map: *mut BytesHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        drop(unsafe { taken(map, "map")? });
        Ok(Status::Ok)
    })
}

/// A key and a value.
///
/// # Safety
///
/// As for [`elements`], of both.
unsafe fn record<'a>(
    key: *const u8,
    key_length: usize,
    value: *const u8,
    value_length: usize,
) -> Result<(&'a [u8], &'a [u8]), Failure> {
    // SAFETY: the caller's, word for word.
    unsafe {
        Ok((
            elements(key, key_length, "key")?,
            elements(value, value_length, "value")?,
        ))
    }
}

/// Copies the value of the key of `key_length` bytes at `key` to `value`, at most `capacity` bytes of it, and writes the length of the whole
/// value to `value_length`; if this is more than `capacity`, the rest was not copied. Or returns INDELIBLE_STATUS_ABSENT and writes nothing.
///
/// With `capacity` 0, `value` may be null, and a long value is not read.
///
/// # Safety
///
/// `map` is open; `key_length` bytes can be read at `key`; `capacity` bytes can be written to `value`, and `value_length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_get(
    map: *const BytesHandle,
    key: *const u8,
    key_length: usize,
    value: *mut u8,
    capacity: usize,
    value_length: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, key, value_length) = unsafe {
            (
                shared(map, "map")?,
                elements(key, key_length, "key")?,
                place(value_length, "value_length")?,
            )
        };
        let length = if capacity == 0 {
            map.0.value_len(key)?.map(|length| length as usize)
        } else {
            // SAFETY: the caller's, word for word.
            let room = unsafe { room(value, capacity, "value")? };
            map.0.get_with(key, |found| copy(found, room))?
        };
        let Some(length) = length else {
            return Ok(Status::Absent);
        };
        value_length.write(length);
        Ok(Status::Ok)
    })
}

/// Copies as many bytes as there is room for, and returns how many there are.
fn copy(bytes: &[u8], room: &mut [MaybeUninit<u8>]) -> usize {
    for (place, &byte) in room.iter_mut().zip(bytes) {
        place.write(byte);
    }
    bytes.len()
}

/// Sets the value of a key, whether it is there or not. When the call returns, the change is as durable as the pool promises. Keys have at
/// most 64 KiB, values at most 1 GiB; longer ones are refused with INDELIBLE_STATUS_INVALID.
///
/// # Safety
///
/// `map` is open; `key_length` bytes can be read at `key`, and `value_length` at `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_insert(
    map: *const BytesHandle,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    value_length: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        // SAFETY: the caller's, word for word.
        let (key, value) = unsafe { record(key, key_length, value, value_length)? };
        map.0.insert(key, value)?;
        Ok(Status::Ok)
    })
}

/// Adds a key, or returns INDELIBLE_STATUS_PRESENT and changes nothing if it is there.
///
/// # Safety
///
/// As for indelible_bytes_insert.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_insert_new(
    map: *const BytesHandle,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    value_length: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        // SAFETY: the caller's, word for word.
        let (key, value) = unsafe { record(key, key_length, value, value_length)? };
        Ok(if map.0.insert_new(key, value)? {
            Status::Ok
        } else {
            Status::Present
        })
    })
}

/// Sets the value of a key, or returns INDELIBLE_STATUS_ABSENT and changes nothing if it is not there.
///
/// # Safety
///
/// As for indelible_bytes_insert.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_update(
    map: *const BytesHandle,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    value_length: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let map = unsafe { shared(map, "map")? };
        // SAFETY: the caller's, word for word.
        let (key, value) = unsafe { record(key, key_length, value, value_length)? };
        Ok(Status::ok_if(map.0.update(key, value)?))
    })
}

/// Removes a key, or returns INDELIBLE_STATUS_ABSENT if it is not there.
///
/// # Safety
///
/// `map` is open; `key_length` bytes can be read at `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_remove(
    map: *const BytesHandle,
    key: *const u8,
    key_length: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, key) = unsafe { (shared(map, "map")?, elements(key, key_length, "key")?) };
        Ok(Status::ok_if(map.0.remove(key)?))
    })
}

/// Writes the number of records to `count`. The first call after a crash waits until all have been counted; the others take no time.
///
/// # Safety
///
/// `map` is open; `count` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_len(map: *const BytesHandle, count: *mut u64) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, count) = unsafe { (shared(map, "map")?, place(count, "count")?) };
        count.write(map.0.len()?);
        Ok(Status::Ok)
    })
}

/// Begins to read the records with keys from `first` on, up to but not including `end`, in the order of keys, which is that of memcmp. If
/// `end` is null, all records from `first` on. The handle is written to `cursor`, and to be closed with indelible_bytes_cursor_close.
///
/// A cursor is no snapshot: a record that comes or goes meanwhile may or may not be read; one that is there throughout is.
///
/// # Safety
///
/// `map` is open; `first_length` bytes can be read at `first` and, unless it is null, `end_length` at `end`; `cursor` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_range(
    map: *const BytesHandle,
    first: *const u8,
    first_length: usize,
    end: *const u8,
    end_length: usize,
    cursor: *mut *mut BytesCursorHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, bounds, cursor) = unsafe {
            (
                shared(map, "map")?,
                bounds(first, first_length, end, end_length)?,
                place(cursor, "cursor")?,
            )
        };
        cursor.write(boxed(map.0.range::<&[u8]>(bounds)));
        Ok(Status::Ok)
    })
}

/// Where a range begins and where it ends.
type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The keys from `first` on, up to but not including `end`; if that is null, all from `first` on.
///
/// # Safety
///
/// As for [`elements`], of both.
pub(crate) unsafe fn bounds<'a>(
    first: *const u8,
    first_length: usize,
    end: *const u8,
    end_length: usize,
) -> Result<Bounds<'a>, Failure> {
    // SAFETY: the caller's, word for word.
    let first = unsafe { elements(first, first_length, "first")? };
    let end = if end.is_null() {
        Bound::Unbounded
    } else {
        // SAFETY: the caller's, word for word.
        Bound::Excluded(unsafe { elements(end, end_length, "end")? })
    };
    Ok((Bound::Included(first), end))
}

/// As indelible_bytes_range, but for the records whose keys begin with `prefix`.
///
/// # Safety
///
/// `map` is open; `prefix_length` bytes can be read at `prefix`; `cursor` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_prefix(
    map: *const BytesHandle,
    prefix: *const u8,
    prefix_length: usize,
    cursor: *mut *mut BytesCursorHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, prefix, cursor) = unsafe {
            (
                shared(map, "map")?,
                elements(prefix, prefix_length, "prefix")?,
                place(cursor, "cursor")?,
            )
        };
        cursor.write(boxed(map.0.prefix(prefix)));
        Ok(Status::Ok)
    })
}

fn boxed(range: BytesRange) -> *mut BytesCursorHandle {
    let cursor = Cursor {
        range,
        key: Vec::new(),
        value: Vec::new(),
    };
    Box::into_raw(Box::new(BytesCursorHandle(Mutex::new(cursor))))
}

/// Reads the next record, and writes where its key and its value lie and how long they are. They stay there until the next call with this
/// cursor. Or returns INDELIBLE_STATUS_ABSENT and writes nothing if there is no further record. One thread at a time uses a cursor.
///
/// After a failure the cursor is at its end: further calls return INDELIBLE_STATUS_ABSENT, though there may be more records.
///
/// # Safety
///
/// `cursor` is open; the four places can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_cursor_next(
    cursor: *const BytesCursorHandle,
    key: *mut *const u8,
    key_length: *mut usize,
    value: *mut *const u8,
    value_length: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        unsafe { read(cursor, End::Lower, key, key_length, value, value_length) }
    })
}

/// As indelible_bytes_cursor_next, but reads from the other end, down from the record with the largest key. The two can be mixed: each record is
/// read once, by the one or by the other, until they meet.
///
/// # Safety
///
/// As for indelible_bytes_cursor_next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_cursor_next_back(
    cursor: *const BytesCursorHandle,
    key: *mut *const u8,
    key_length: *mut usize,
    value: *mut *const u8,
    value_length: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        unsafe { read(cursor, End::Upper, key, key_length, value, value_length) }
    })
}

/// The end of a range at which a record is read.
enum End {
    Lower,
    Upper,
}

/// # Safety
///
/// As for indelible_bytes_cursor_next.
unsafe fn read(
    cursor: *const BytesCursorHandle,
    end: End,
    key: *mut *const u8,
    key_length: *mut usize,
    value: *mut *const u8,
    value_length: *mut usize,
) -> Result<Status, Failure> {
    // SAFETY: the caller's, word for word.
    let (cursor, key, key_length, value, value_length) = unsafe {
        (
            shared(cursor, "cursor")?,
            place(key, "key")?,
            place(key_length, "key_length")?,
            place(value, "value")?,
            place(value_length, "value_length")?,
        )
    };
    let mut cursor = cursor.0.lock().unwrap_or_else(PoisonError::into_inner);
    let cursor = &mut *cursor;
    let (of_key, of_value) = (&mut cursor.key, &mut cursor.value);
    let copy_record = |key: &[u8], value: &[u8]| {
        of_key.clear();
        of_key.extend_from_slice(key);
        of_value.clear();
        of_value.extend_from_slice(value);
    };
    let read = match end {
        End::Lower => cursor.range.next_with(copy_record),
        End::Upper => cursor.range.next_back_with(copy_record),
    };
    if read.transpose()?.is_none() {
        return Ok(Status::Absent);
    }
    key.write(cursor.key.as_ptr());
    key_length.write(cursor.key.len());
    value.write(cursor.value.as_ptr());
    value_length.write(cursor.value.len());
    Ok(Status::Ok)
}

/// Closes a cursor.
///
/// # Safety
///
/// `cursor` came from indelible_bytes_range or indelible_bytes_prefix, is not in use by another thread, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_cursor_close(cursor: *mut BytesCursorHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        drop(unsafe { taken(cursor, "cursor")? });
        Ok(Status::Ok)
    })
}
