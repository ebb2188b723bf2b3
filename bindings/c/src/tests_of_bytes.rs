//! Every function of maps of byte strings, as C calls it.

use crate::tests::{in_memory, last_error};
use crate::tests_of_upkeep::{c_path, open as open_pool};
use crate::*;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

fn open(
    pool: *const PoolHandle,
    name: &CStr,
    options: Option<&CStr>,
) -> (Status, *mut BytesHandle) {
    let mut map = null_mut();
    let options = options.map_or(null(), CStr::as_ptr);
    // SAFETY: an open pool, strings or null, and a local variable to write to.
    let status = unsafe { indelible_bytes_open(pool, name.as_ptr(), options, &mut map) };
    (status, map)
}

fn insert(map: *const BytesHandle, key: &[u8], value: &[u8]) -> Status {
    // SAFETY: an open map, and slices.
    unsafe { indelible_bytes_insert(map, key.as_ptr(), key.len(), value.as_ptr(), value.len()) }
}

fn get(map: *const BytesHandle, key: &[u8], capacity: usize) -> (Status, Vec<u8>, usize) {
    let (mut value, mut length) = (vec![0; capacity], usize::MAX);
    // SAFETY: an open map, slices, and a local variable to write to.
    let status = unsafe {
        indelible_bytes_get(
            map,
            key.as_ptr(),
            key.len(),
            value.as_mut_ptr(),
            capacity,
            &mut length,
        )
    };
    value.truncate(length);
    (status, value, length)
}

/// What the next call says and reads, at the upper end or at the lower one.
fn next(cursor: *const BytesCursorHandle, is_back: bool) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut key, mut value) = (null(), null());
    let (mut key_length, mut value_length) = (0, 0);
    let next = if is_back {
        indelible_bytes_cursor_next_back
    } else {
        indelible_bytes_cursor_next
    };
    // SAFETY: an open cursor, and local variables to write to; what they say is read before the next call.
    unsafe {
        let status = next(
            cursor,
            &mut key,
            &mut key_length,
            &mut value,
            &mut value_length,
        );
        if status == Status::Absent {
            return None;
        }
        assert_eq!(status, Status::Ok, "{}", last_error());
        let [key, value] = [(key, key_length), (value, value_length)]
            .map(|(at, length)| std::slice::from_raw_parts(at, length).to_vec());
        Some((key, value))
    }
}

fn read(cursor: *const BytesCursorHandle) -> Vec<(Vec<u8>, Vec<u8>)> {
    std::iter::from_fn(|| next(cursor, false)).collect()
}

fn close(pool: *mut PoolHandle, map: *mut BytesHandle) {
    // SAFETY: both are open and not used again.
    unsafe {
        assert_eq!(indelible_bytes_close(map), Status::Ok);
        assert_eq!(indelible_pool_close(pool), Status::Ok, "{}", last_error());
    }
}

#[test]
fn byte_strings_are_written_read_and_removed() {
    let pool = in_memory();
    let (status, map) = open(pool, c"names", None);
    assert_eq!(status, Status::Ok, "{}", last_error());
    let long = vec![7; 100_000];
    for (key, value) in [
        (&b"a\0b"[..], &b"1"[..]),
        (b"a", b""),
        (b"", b"empty"),
        (b"long", &long),
    ] {
        assert_eq!(insert(map, key, value), Status::Ok, "{}", last_error());
        assert_eq!(
            get(map, key, value.len()),
            (Status::Ok, value.to_vec(), value.len())
        );
    }
    assert_eq!(get(map, b"b", 9).0, Status::Absent);
    // No more than there is room for, and the whole length.
    assert_eq!(get(map, b"long", 10), (Status::Ok, vec![7; 10], 100_000));
    let (mut length, mut count) = (0, 0);
    // SAFETY: an open map, literals, null for strings of no bytes and where no bytes are to be written, and local variables.
    unsafe {
        let status = indelible_bytes_get(map, null(), 0, null_mut(), 0, &mut length);
        assert_eq!((status, length), (Status::Ok, 5));
        assert_eq!(
            indelible_bytes_insert_new(map, b"a".as_ptr(), 1, null(), 0),
            Status::Present
        );
        assert_eq!(
            indelible_bytes_insert_new(map, b"c".as_ptr(), 1, null(), 0),
            Status::Ok
        );
        assert_eq!(
            indelible_bytes_update(map, b"c".as_ptr(), 1, b"3".as_ptr(), 1),
            Status::Ok
        );
        assert_eq!(
            indelible_bytes_update(map, b"x".as_ptr(), 1, b"3".as_ptr(), 1),
            Status::Absent
        );
        assert_eq!(indelible_bytes_remove(map, b"a".as_ptr(), 1), Status::Ok);
        assert_eq!(
            indelible_bytes_remove(map, b"a".as_ptr(), 1),
            Status::Absent
        );
        assert_eq!(indelible_bytes_len(map, &mut count), Status::Ok);
    }
    assert_eq!(count, 4);
    assert_eq!(get(map, b"c", 9).1, b"3");
    close(pool, map);
}

#[test]
fn cursors_read_ranges_and_prefixes_in_order() {
    let pool = in_memory();
    let (_, map) = open(pool, c"names", None);
    let key = |number: u32| format!("https://example.org/{:05}", number).into_bytes();
    for number in (0..3_000).rev() {
        let bytes = if number % 100 == 0 { 5_000 } else { 8 };
        assert_eq!(
            insert(map, &key(number), &vec![number as u8; bytes]),
            Status::Ok
        );
    }
    let (from, to) = (key(500), key(2_000));
    let mut cursor = null_mut();
    // SAFETY: an open map, slices, and a local variable to write to.
    unsafe {
        let (first, end) = (from.as_ptr(), to.as_ptr());
        let status = indelible_bytes_range(map, first, from.len(), end, to.len(), &mut cursor);
        assert_eq!(status, Status::Ok, "{}", last_error());
    }
    let records = read(cursor);
    assert!(
        records
            .iter()
            .map(|(key, _)| key.clone())
            .eq((500..2_000).map(key))
    );
    assert!(
        records
            .iter()
            .all(|(_, value)| value.len() == 8 || value.len() == 5_000)
    );
    // SAFETY: the cursor is open and not used again; then as above, with null for no bytes and for no end.
    unsafe {
        assert_eq!(indelible_bytes_cursor_close(cursor), Status::Ok);
        let status = indelible_bytes_range(map, null(), 0, null(), 0, &mut cursor);
        assert_eq!(status, Status::Ok, "{}", last_error());
    }
    assert_eq!(read(cursor).len(), 3_000);
    let prefix = b"https://example.org/012";
    // SAFETY: as above.
    unsafe {
        assert_eq!(indelible_bytes_cursor_close(cursor), Status::Ok);
        let status = indelible_bytes_prefix(map, prefix.as_ptr(), prefix.len(), &mut cursor);
        assert_eq!(status, Status::Ok, "{}", last_error());
    }
    // From both ends, until they meet.
    let ends = [(false, 1200), (true, 1299), (true, 1298), (false, 1201)];
    for (is_back, number) in ends {
        assert_eq!(next(cursor, is_back).unwrap().0, key(number));
    }
    let down = std::iter::from_fn(|| next(cursor, true));
    assert!(down.map(|(key, _)| key).eq((1202..=1297).rev().map(key)));
    assert!(next(cursor, false).is_none());
    // SAFETY: the cursor is open and not used again.
    unsafe {
        assert_eq!(indelible_bytes_cursor_close(cursor), Status::Ok);
    }
    close(pool, map);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let pool = in_memory();
    let (status, none) = open(pool, c"names", Some(c"kind=nonsense"));
    assert!(status == Status::Invalid && none.is_null());
    let (status, map) = open(pool, c"names", Some(c"kind=slotted,leaf=512"));
    assert_eq!(status, Status::Ok, "{}", last_error());
    assert_eq!(
        open(pool, c"names", Some(c"kind=slotted,leaf=2048")).0,
        Status::Refused
    );
    let mut numbers = null_mut();
    let mut length = 0;
    // SAFETY: an open pool, a literal, null, and local variables to write to.
    unsafe {
        let status = indelible_map_open(pool, c"names".as_ptr(), &mut numbers);
        assert!(status == Status::Refused && numbers.is_null());
        assert_eq!(
            indelible_bytes_insert(map, null(), 1, null(), 0),
            Status::Invalid
        );
        assert_eq!(
            indelible_bytes_insert(null(), null(), 0, null(), 0),
            Status::Invalid
        );
        assert_eq!(
            indelible_bytes_get(map, null(), 0, null_mut(), 1, &mut length),
            Status::Invalid
        );
        assert_eq!(indelible_bytes_close(null_mut()), Status::Invalid);
    }
    let too_long = vec![1; (64 << 10) + 1];
    assert_eq!(
        insert(map, &too_long, b""),
        Status::Invalid,
        "{}",
        last_error()
    );
    close(pool, map);
}

#[test]
fn long_values_are_written_and_read_in_parts() {
    let pool = in_memory();
    let (status, map) = open(pool, c"films", None);
    assert_eq!(status, Status::Ok, "{}", last_error());
    let value: Vec<u8> = (0..300_000_u32).map(|at| (at >> 6) as u8).collect();
    let key = b"key";
    let begin = |length: usize| {
        let mut writer = null_mut();
        // SAFETY: an open map, a literal, and a local variable to write to.
        let status = unsafe {
            indelible_bytes_writer_open(map, key.as_ptr(), 3, length as u64, &mut writer)
        };
        assert_eq!(status, Status::Ok, "{}", last_error());
        writer
    };
    let write = |writer, part: &[u8]| {
        // SAFETY: an open writer, and a slice.
        unsafe { indelible_bytes_writer_write(writer, part.as_ptr(), part.len()) }
    };
    for _ in 0..2 {
        let writer = begin(value.len());
        for part in value.chunks(70_001) {
            assert_eq!(write(writer, part), Status::Ok, "{}", last_error());
        }
        assert_eq!(write(writer, b"!"), Status::Invalid);
        // SAFETY: an open writer that is not used again.
        let status = unsafe { indelible_bytes_writer_commit(writer) };
        assert_eq!(status, Status::Ok, "{}", last_error());
    }
    let [too_few, given_up] = [begin(9), begin(300_000)];
    assert_eq!(write(too_few, b"1"), Status::Ok);
    assert_eq!(write(given_up, &value[1..]), Status::Ok);
    let (mut reader, mut length) = (null_mut(), 0);
    // SAFETY: open handles, of which those that are closed are not used again; literals; and local variables to write to.
    unsafe {
        assert_eq!(indelible_bytes_writer_commit(too_few), Status::Invalid);
        assert_eq!(indelible_bytes_writer_close(given_up), Status::Ok);
        assert_eq!(indelible_bytes_writer_close(null_mut()), Status::Invalid);
        let absent = indelible_bytes_reader_open(map, b"x".as_ptr(), 1, &mut length, &mut reader);
        assert!(absent == Status::Absent && reader.is_null());
        let status = indelible_bytes_reader_open(map, key.as_ptr(), 3, &mut length, &mut reader);
        assert_eq!((status, length), (Status::Ok, 300_000));
        // The reader has the value as it was.
        assert_eq!(indelible_bytes_remove(map, key.as_ptr(), 3), Status::Ok);
        for (from, expected) in [(0, 1_000), (299_500, 500), (300_000, 0), (u64::MAX, 0)] {
            let (mut part, mut read) = (vec![0; 1_000], usize::MAX);
            let status =
                indelible_bytes_reader_read(reader, from, part.as_mut_ptr(), 1_000, &mut read);
            assert_eq!((status, read), (Status::Ok, expected));
            let from = from.min(300_000) as usize;
            assert_eq!(part[..read], value[from..from + read]);
        }
        let nothing = indelible_bytes_reader_read(reader, 0, null_mut(), 0, &mut 9);
        assert_eq!(
            nothing,
            Status::Ok,
            "where there is no room: {}",
            last_error()
        );
        assert_eq!(indelible_bytes_reader_close(reader), Status::Ok);
    }
    close(pool, map);
}

#[test]
fn cursors_readers_and_writers_outlive_their_map_and_their_pool() {
    let directory = tempfile::tempdir().unwrap();
    let path = c_path(&directory.path().join("a.pool"));
    let (_, pool) = open_pool(&path, INDELIBLE_DURABILITY_RECORDED);
    let (_, map) = open(pool, c"films", None);
    let film = vec![7; 100_000];
    for key in 0..100_u8 {
        assert_eq!(insert(map, &[key], &[key]), Status::Ok);
    }
    assert_eq!(insert(map, b"film", &film), Status::Ok);
    let (mut cursor, mut reader, mut writer) = (null_mut(), null_mut(), null_mut());
    let (mut length, mut read_bytes, mut part) = (0, 0, vec![0; 10]);
    // SAFETY: open handles, of which those that are closed are not used again; slices, literals, and local variables to write to.
    unsafe {
        let key = b"film".as_ptr();
        indelible_bytes_range(map, null(), 0, null(), 0, &mut cursor);
        indelible_bytes_reader_open(map, key, 4, &mut length, &mut reader);
        indelible_bytes_writer_open(map, b"new".as_ptr(), 3, length, &mut writer);
        assert_eq!(indelible_bytes_close(map), Status::Ok);
        let dropped = indelible_object_drop(pool, c"films".as_ptr());
        assert_eq!(dropped, Status::InUse);
        assert_eq!(indelible_pool_close(pool), Status::InUse);

        assert_eq!(read(cursor).len(), 101);
        let (from, room) = (length - 5, part.as_mut_ptr());
        let status = indelible_bytes_reader_read(reader, from, room, 10, &mut read_bytes);
        assert_eq!((status, &part[..read_bytes]), (Status::Ok, &[7; 5][..]));
        let written = indelible_bytes_writer_write(writer, film.as_ptr(), film.len());
        assert_eq!(written, Status::Ok, "{}", last_error());
        let committed = indelible_bytes_writer_commit(writer);
        assert_eq!(committed, Status::Ok, "{}", last_error());
        assert_eq!(indelible_bytes_cursor_close(cursor), Status::Ok);
        assert_eq!(open_pool(&path, 0).0, Status::Locked);
        assert_eq!(indelible_bytes_reader_close(reader), Status::Ok);
    }
    let (status, pool) = open_pool(&path, INDELIBLE_DURABILITY_RECORDED);
    assert_eq!(status, Status::Ok, "{}", last_error());
    let (_, map) = open(pool, c"films", None);
    assert_eq!(get(map, b"new", film.len()).1, film);
    close(pool, map);
}

fn record(key: &[u8], value: &[u8]) -> BytesRecord {
    BytesRecord {
        key: key.as_ptr(),
        key_length: key.len(),
        value: value.as_ptr(),
        value_length: value.len(),
    }
}

#[test]
fn many_records_are_loaded_inserted_and_removed_at_once() {
    let pool = in_memory();
    let (_, map) = open(pool, c"names", None);
    let keys: Vec<String> = (0..1_000).map(|number| format!("{number:04}")).collect();
    let long = vec![7; 5_000];
    let records: Vec<BytesRecord> = (keys.iter())
        .map(|key| record(key.as_bytes(), &long))
        .collect();
    let too_long = vec![1; (64 << 10) + 1];
    let null_key = BytesRecord {
        key: null(),
        ..records[0]
    };
    let (mut removed, mut count) = (9, 9);
    // SAFETY: the map is open, arrays have so many records as is said, and the rest are literals and local variables.
    unsafe {
        let load = |records: &[BytesRecord], fill| {
            indelible_bytes_bulk_load(map, records.as_ptr(), records.len(), fill)
        };
        let add = |records: &[BytesRecord]| {
            indelible_bytes_insert_batch(map, records.as_ptr(), records.len())
        };
        let down: Vec<BytesRecord> = records.iter().rev().copied().collect();
        for fill in [0.0, 1.1, f64::NAN] {
            assert_eq!(load(&records, fill), Status::Invalid, "{fill}");
        }
        assert_eq!(load(&down, 0.7), Status::NotAscending);
        assert_eq!(load(&[records[0], null_key], 0.7), Status::Invalid);
        let last = record(&too_long, b"");
        assert_eq!(load(&[records[0], last], 0.7), Status::Invalid);
        assert_eq!(add(&[records[0], last]), Status::Invalid);
        assert_eq!(add(&[records[0], null_key]), Status::Invalid);
        let none = indelible_bytes_bulk_load(map, records.as_ptr(), usize::MAX, 0.7);
        assert_eq!(none, Status::Invalid);
        let null = indelible_bytes_insert_batch(map, null(), 1);
        assert_eq!(null, Status::Invalid);
        assert_eq!(indelible_bytes_len(map, &mut count), Status::Ok);
        assert_eq!(count, 0);

        assert_eq!(load(&records, 0.7), Status::Ok, "{}", last_error());
        assert_eq!(load(&records, 0.7), Status::NotEmpty);
        let [twice, again] = [record(b"", b"1"), record(b"", b"2")];
        let added = add(&[twice, down[0], again]);
        assert_eq!(added, Status::Ok, "{}", last_error());
        assert_eq!(get(map, b"", 9).1, b"2");

        let (first, end) = (b"0100".as_ptr(), b"0200".as_ptr());
        let status = indelible_bytes_remove_range(map, first, 4, end, 4, &mut removed);
        assert_eq!((status, removed), (Status::Ok, 100));
        let status = indelible_bytes_remove_range(map, end, 4, first, 4, &mut removed);
        assert_eq!((status, removed), (Status::Ok, 0));
        let (first, end) = (b"09".as_ptr(), std::ptr::null());
        let status = indelible_bytes_remove_range(map, first, 2, end, 0, &mut removed);
        assert_eq!((status, removed), (Status::Ok, 100));
        assert_eq!(indelible_bytes_len(map, &mut count), Status::Ok);
        assert_eq!(count, 801);
        assert_eq!(indelible_bytes_check(map), Status::Ok, "{}", last_error());
    }
    close(pool, map);
}
