//! Long values of maps of byte strings that are written and read in parts.

use crate::bytes::BytesHandle;
use crate::pointers::{elements, place, room, shared, taken};
use crate::status::{Failure, Status, guarded};
use indelible::{Error, ValueReader, ValueWriter};
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// A value that is being written in parts.
pub struct BytesWriterHandle(Mutex<ValueWriter>);

/// A value that can be read in parts.
pub struct BytesReaderHandle(ValueReader);

/// Begins to write a value of `value_length` bytes for a key in parts, with indelible_bytes_writer_write. Nothing of it is seen before
/// indelible_bytes_writer_commit, which puts the whole value in one step; neither a crash nor indelible_bytes_writer_close leaves
/// anything of a value that was not committed. The handle is written to `writer`.
///
/// # Safety
///
/// `map` is open; `key_length` bytes can be read at `key`; `writer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_writer_open(
    map: *const BytesHandle,
    key: *const u8,
    key_length: usize,
    value_length: u64,
    writer: *mut *mut BytesWriterHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, key, writer) = unsafe {
            (
                shared(map, "map")?,
                elements(key, key_length, "key")?,
                place(writer, "writer")?,
            )
        };
        let begun = Mutex::new(map.0.value_writer(key, value_length)?);
        writer.write(Box::into_raw(Box::new(BytesWriterHandle(begun))));
        Ok(Status::Ok)
    })
}

/// Writes the next `length` bytes of a value. More bytes than the value was begun with are refused with INDELIBLE_STATUS_INVALID, and none of
/// them is taken. After another failure a part of them may have been taken: then begin the value anew. One thread at a time uses a writer.
///
/// # Safety
///
/// `writer` is open; `length` bytes can be read at `part`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_writer_write(
    writer: *const BytesWriterHandle,
    part: *const u8,
    length: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (writer, part) =
            unsafe { (shared(writer, "writer")?, elements(part, length, "part")?) };
        let mut writer = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer
            .write_all(part)
            .map_err(|error| match error.downcast::<Error>() {
                Ok(error) => Failure::from(error),
                Err(error) => Failure::invalid(error.to_string()),
            })?;
        Ok(Status::Ok)
    })
}

/// Puts a value that has been written whole, and closes the writer, also after an error. A value of which bytes are missing is refused with
/// INDELIBLE_STATUS_INVALID. When the call returns, the change is as durable as the pool promises.
///
/// # Safety
///
/// `writer` came from indelible_bytes_writer_open, is not in use by another thread, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_writer_commit(writer: *mut BytesWriterHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let writer = unsafe { taken(writer, "writer")? };
        let writer = writer
            .0
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        writer.commit()?;
        Ok(Status::Ok)
    })
}

/// Closes a writer without putting the value.
///
/// # Safety
///
/// `writer` came from indelible_bytes_writer_open, is not in use by another thread, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_writer_close(writer: *mut BytesWriterHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        drop(unsafe { taken(writer, "writer")? });
        Ok(Status::Ok)
    })
}

/// Opens the value of a key as it is now, and writes its length to `value_length` and a handle to `reader`, which is to be closed with
/// indelible_bytes_reader_close; or returns INDELIBLE_STATUS_ABSENT and writes nothing. The value stays as it is, also if the key is
/// changed meanwhile: the bytes that a long value takes in the pool are not used again before the reader is closed.
///
/// # Safety
///
/// `map` is open; `key_length` bytes can be read at `key`; `value_length` and `reader` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_reader_open(
    map: *const BytesHandle,
    key: *const u8,
    key_length: usize,
    value_length: *mut u64,
    reader: *mut *mut BytesReaderHandle,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (map, key, value_length, reader) = unsafe {
            (
                shared(map, "map")?,
                elements(key, key_length, "key")?,
                place(value_length, "value_length")?,
                place(reader, "reader")?,
            )
        };
        let Some(opened) = map.0.value_reader(key)? else {
            return Ok(Status::Absent);
        };
        value_length.write(opened.len());
        reader.write(Box::into_raw(Box::new(BytesReaderHandle(opened))));
        Ok(Status::Ok)
    })
}

/// Copies the bytes of a value from byte `from` on to `part`, at most `capacity` of them, and writes how many they are to `length`: 0 at the end of the
/// value and behind it. Any number of threads may use a reader.
///
/// # Safety
///
/// `reader` is open; `capacity` bytes can be written to `part`, and `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_reader_read(
    reader: *const BytesReaderHandle,
    from: u64,
    part: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        let (reader, part, length) = unsafe {
            (
                shared(reader, "reader")?,
                room(part, capacity, "part")?,
                place(length, "length")?,
            )
        };
        let value = reader.0.as_slice();
        let rest = &value[from.min(value.len() as u64) as usize..];
        let count = rest.len().min(part.len());
        part[..count].write_copy_of_slice(&rest[..count]);
        length.write(count);
        Ok(Status::Ok)
    })
}

/// Closes a reader.
///
/// # Safety
///
/// `reader` came from indelible_bytes_reader_open, is not in use by another thread, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn indelible_bytes_reader_close(reader: *mut BytesReaderHandle) -> Status {
    guarded(|| {
        // SAFETY: the caller's, word for word.
        drop(unsafe { taken(reader, "reader")? });
        Ok(Status::Ok)
    })
}
