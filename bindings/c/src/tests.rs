//! Every function, as C calls it.

use crate::*;
use std::ffi::{CStr, CString};
use std::ptr::{null, null_mut};

pub(crate) fn last_error() -> String {
    // SAFETY: the message stays until this thread's next call that fails.
    let message = unsafe { CStr::from_ptr(indelible_last_error()) };
    message.to_str().unwrap().to_owned()
}

pub(crate) fn in_memory() -> *mut PoolHandle {
    let mut pool = null_mut();
    // SAFETY: a local variable to write to.
    let status = unsafe { indelible_pool_in_memory(0, &mut pool) };
    assert_eq!(status, Status::Ok);
    pool
}

fn open_map(pool: *const PoolHandle) -> *mut MapHandle {
    let mut map = null_mut();
    // SAFETY: an open pool, a literal, and a local variable to write to.
    let status = unsafe { indelible_map_open(pool, c"numbers".as_ptr(), &mut map) };
    assert_eq!(status, Status::Ok, "{}", last_error());
    map
}

fn close(pool: *mut PoolHandle, map: *mut MapHandle) {
    // SAFETY: both are open and not used again.
    unsafe {
        assert_eq!(indelible_map_close(map), Status::Ok);
        assert_eq!(indelible_pool_close(pool), Status::Ok, "{}", last_error());
    }
}

/// Opens the map `name` with these options, and returns what became of it and the map.
fn open_with(
    pool: *const PoolHandle,
    name: &CStr,
    options: Option<&CStr>,
) -> (Status, *mut MapHandle) {
    let mut map = null_mut();
    let options = options.map_or(null(), CStr::as_ptr);
    // SAFETY: an open pool, strings or null, and a local variable to write to.
    let status = unsafe { indelible_map_open_with(pool, name.as_ptr(), options, &mut map) };
    (status, map)
}

/// The names of all kinds of index: the message that refuses another one lists them.
fn kinds(pool: *const PoolHandle) -> Vec<String> {
    let (status, map) = open_with(pool, c"refused", Some(c"kind=nonsense"));
    assert!(status == Status::Invalid && map.is_null());
    let message = last_error();
    let (_, known) = message.split_once("known are ").expect(&message);
    known.split(", ").map(str::to_owned).collect()
}

/// Which kind of index the map `name` is, as the pool's catalog has it.
fn recorded_kind(pool: *const PoolHandle, name: &CStr) -> String {
    // SAFETY: the pool is open.
    let maps = unsafe { &*pool }.0.maps();
    let map = maps
        .iter()
        .find(|map| map.name.as_bytes() == name.to_bytes());
    map.unwrap().kind().to_string()
}

#[test]
fn a_new_map_is_of_the_kind_asked_for() {
    let pool = in_memory();
    let kinds = kinds(pool);
    assert!(kinds.iter().any(|kind| kind == "lbtree"), "{kinds:?}");
    for kind in kinds {
        for options in [kind.clone(), format!("kind={kind}")] {
            let options = CString::new(options).unwrap();
            // Each map has its options for a name.
            let (status, map) = open_with(pool, &options, Some(&options));
            assert_eq!(status, Status::Ok, "{options:?}: {}", last_error());
            assert_eq!(recorded_kind(pool, &options), kind);
            // SAFETY: the map has just been opened, and is closed once.
            assert_eq!(unsafe { indelible_map_close(map) }, Status::Ok);
        }
    }
    // SAFETY: the pool is open and not used again.
    assert_eq!(unsafe { indelible_pool_close(pool) }, Status::Ok);
}

#[test]
fn a_map_that_is_there_is_opened_unless_the_options_say_otherwise() {
    let pool = in_memory();
    let kinds = kinds(pool);
    for (number, kind) in kinds.iter().enumerate() {
        let name = CString::new(format!("map {number}")).unwrap();
        let made_as = CString::new(kind.as_str()).unwrap();
        let (status, map) = open_with(pool, &name, Some(&made_as));
        assert_eq!(status, Status::Ok, "{}", last_error());
        // SAFETY: the map is open, and closed once.
        unsafe {
            assert_eq!(indelible_insert(map, 1, 10), Status::Ok);
            assert_eq!(indelible_map_close(map), Status::Ok);
        }
        for other in kinds.iter().filter(|&other| other != kind) {
            let options = CString::new(other.as_str()).unwrap();
            let (status, none) = open_with(pool, &name, Some(&options));
            assert!(status == Status::Refused && none.is_null(), "{other}");
            let message = last_error();
            assert!(
                message.contains(other) && message.contains(kind),
                "{message}"
            );
        }
        for options in [None, Some(c""), Some(&*made_as)] {
            let (status, again) = open_with(pool, &name, options);
            assert_eq!(status, Status::Ok, "{options:?}: {}", last_error());
            let mut value = 0;
            // SAFETY: `again` has just been opened, and is closed once; `value` is a local variable.
            unsafe {
                assert_eq!(indelible_get(again, 1, &mut value), Status::Ok);
                assert_eq!(indelible_map_close(again), Status::Ok);
            }
            assert_eq!(value, 10);
        }
    }
    // SAFETY: the pool is open, and closed once.
    assert_eq!(unsafe { indelible_pool_close(pool) }, Status::Ok);
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let pool = in_memory();
    let map = open_map(pool);
    // The map is there, and even so they are.
    for options in [c"nonsense", c"kind=", c"kind=nonsense", c"\xff"] {
        let (status, none) = open_with(pool, c"numbers", Some(options));
        assert!(status == Status::Invalid && none.is_null(), "{options:?}");
    }
    assert_eq!(last_error(), "`options` is not UTF-8");
    close(pool, map);
}

#[test]
fn point_operations_say_what_they_found() {
    let pool = in_memory();
    let map = open_map(pool);
    let mut value = 9;
    // SAFETY: the map is open, and `value` is a local variable.
    unsafe {
        assert_eq!(indelible_get(map, 1, &mut value), Status::Absent);
        assert_eq!(value, 9);
        assert_eq!(indelible_update(map, 1, 10), Status::Absent);
        assert_eq!(indelible_remove(map, 1), Status::Absent);
        assert_eq!(indelible_insert_new(map, 1, 10), Status::Ok);
        assert_eq!(indelible_insert_new(map, 1, 11), Status::Present);
        assert_eq!(indelible_get(map, 1, &mut value), Status::Ok);
        assert_eq!(value, 10);
        assert_eq!(indelible_insert(map, 1, 12), Status::Ok);
        assert_eq!(indelible_update(map, 1, 13), Status::Ok);
        assert_eq!(indelible_get(map, 1, &mut value), Status::Ok);
        assert_eq!(value, 13);
        assert_eq!(indelible_remove(map, 1), Status::Ok);
        assert_eq!(indelible_len(map, &mut value), Status::Ok);
        assert_eq!(value, 0);
    }
    close(pool, map);
}

#[test]
fn ranges_fill_no_more_than_the_room() {
    let pool = in_memory();
    let map = open_map(pool);
    let records: Vec<Record> = (0..1000).map(|key| Record { key, value: !key }).collect();
    let mut found = [Record { key: 0, value: 0 }; 20];
    let mut count = 0;
    // SAFETY: the map is open; lengths are those of the slices; `count` is a local variable.
    unsafe {
        let load = |fill| indelible_bulk_load(map, records.as_ptr(), records.len(), fill);
        assert_eq!(load(2.0), Status::Invalid);
        assert_eq!(load(0.7), Status::Ok);
        assert_eq!(load(0.7), Status::NotEmpty);
        let range = |first, last, room: &mut [Record], count: &mut usize| {
            indelible_range(map, first, last, room.as_mut_ptr(), room.len(), count)
        };
        assert_eq!(
            range(100, u64::MAX, &mut found[..10], &mut count),
            Status::Ok
        );
        assert_eq!((&found[..10], count), (&records[100..110], 10));
        assert_eq!(found[10], Record { key: 0, value: 0 });
        assert_eq!(range(995, u64::MAX, &mut found, &mut count), Status::Ok);
        assert_eq!(&found[..count], &records[995..]);
        assert_eq!(range(3, 5, &mut found, &mut count), Status::Ok);
        assert_eq!(&found[..count], &records[3..=5]);
        assert_eq!(range(5, 3, &mut found, &mut count), Status::Ok);
        assert_eq!(count, 0);
        let down = |first, last, room: &mut [Record], count: &mut usize| {
            indelible_range_down(map, first, last, room.as_mut_ptr(), room.len(), count)
        };
        assert_eq!(down(0, 500, &mut found[..10], &mut count), Status::Ok);
        assert!(found[..10].iter().eq(records[491..=500].iter().rev()));
        assert_eq!(down(3, u64::MAX, &mut found, &mut count), Status::Ok);
        assert_eq!((found[0], count), (records[999], 20));
        assert_eq!(down(3, 5, &mut found, &mut count), Status::Ok);
        assert!(found[..count].iter().eq(records[3..=5].iter().rev()));
        assert_eq!(down(5, 3, &mut found, &mut count), Status::Ok);
        assert_eq!(count, 0);
    }
    close(pool, map);
}

#[test]
fn bulk_loads_in_disorder_are_refused() {
    let pool = in_memory();
    let map = open_map(pool);
    let records = [2, 1].map(|key| Record { key, value: 0 });
    // SAFETY: the map is open, and the records are there.
    let status = unsafe { indelible_bulk_load(map, records.as_ptr(), 2, 0.7) };
    assert_eq!(status, Status::NotAscending);
    assert!(last_error().contains("ascending"), "{}", last_error());
    close(pool, map);
}

#[test]
fn null_is_refused_everywhere() {
    let (mut pool, mut map, mut value, mut count) = (null_mut(), null_mut(), 0, 0);
    let mut record = Record { key: 0, value: 0 };
    let path = c"/tmp/never-created".as_ptr();
    let real = in_memory();
    let numbers = open_map(real);
    // SAFETY: what is not null is valid.
    let all = unsafe {
        [
            indelible_pool_open_or_create(null(), 0, 0, &mut pool),
            indelible_pool_open_or_create(path, 0, 0, null_mut()),
            indelible_pool_open(null(), 0, 0, &mut pool),
            indelible_pool_open(path, 0, 0, null_mut()),
            indelible_pool_create(null(), 0, 0, &mut pool),
            indelible_pool_create(path, 0, 0, null_mut()),
            indelible_pool_in_memory(0, null_mut()),
            indelible_pool_close(null_mut()),
            indelible_map_open(null(), c"a".as_ptr(), &mut map),
            indelible_map_open(real, null(), &mut map),
            indelible_map_open(real, c"a".as_ptr(), null_mut()),
            indelible_map_open_with(null(), c"a".as_ptr(), null(), &mut map),
            indelible_map_open_with(real, null(), null(), &mut map),
            indelible_map_open_with(real, c"a".as_ptr(), null(), null_mut()),
            indelible_map_close(null_mut()),
            indelible_get(null(), 1, &mut value),
            indelible_get(numbers, 1, null_mut()),
            indelible_insert(null(), 1, 1),
            indelible_insert_new(null(), 1, 1),
            indelible_update(null(), 1, 1),
            indelible_remove(null(), 1),
            indelible_range(null(), 0, 9, &mut record, 1, &mut count),
            indelible_range(numbers, 0, 9, null_mut(), 1, &mut count),
            indelible_range(numbers, 0, 9, &mut record, 1, null_mut()),
            indelible_range(numbers, 0, 9, &mut record, usize::MAX, &mut count),
            indelible_range_down(null(), 0, 9, &mut record, 1, &mut count),
            indelible_bulk_load(null(), &record, 1, 0.7),
            indelible_bulk_load(numbers, null(), 1, 0.7),
            indelible_bulk_load(numbers, &record, usize::MAX, 0.7),
            indelible_len(null(), &mut value),
            indelible_len(numbers, null_mut()),
        ]
    };
    assert_eq!(all, [Status::Invalid; 31]);
    assert_eq!(last_error(), "`count` is null");
    assert!(pool.is_null() && map.is_null());
    close(real, numbers);
}

#[test]
fn arrays_of_no_elements_may_be_null() {
    let pool = in_memory();
    let map = open_map(pool);
    let mut count = 9;
    // SAFETY: the map is open, arrays have no elements, and `count` is a local variable.
    unsafe {
        assert_eq!(indelible_bulk_load(map, null(), 0, 0.7), Status::Ok);
        assert_eq!(indelible_insert_batch(map, null(), 0), Status::Ok);
        let got = indelible_get_batch(map, null(), 0, null_mut(), null_mut());
        assert_eq!(got, Status::Ok, "{}", last_error());
        assert_eq!(indelible_insert(map, 1, 10), Status::Ok);
        let all = indelible_range(map, 0, u64::MAX, null_mut(), 0, &mut count);
        assert_eq!((all, count), (Status::Ok, 0));
        assert_eq!(
            indelible_bulk_load(map, null(), 0, 0.7),
            Status::NotEmpty,
            "as with any records"
        );
    }
    close(pool, map);
}

#[test]
fn pools_stay_and_refusals_have_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool").into_os_string();
    let path = CString::new(path.into_encoded_bytes()).unwrap();
    let path = path.as_ptr();
    let mut pool = null_mut();
    let mut other = null_mut();
    let mut value = 0;
    // SAFETY: the path ends with zero, handles are used while they are open, the rest are local variables.
    unsafe {
        assert_eq!(indelible_pool_open(path, 0, 0, &mut pool), Status::Io);
        assert!(last_error().contains("a.pool"), "{}", last_error());
        assert_eq!(
            indelible_pool_create(path, 9, 0, &mut pool),
            Status::Invalid
        );
        let forced = INDELIBLE_DURABILITY_POWER_LOSS_FORCED;
        assert_eq!(
            indelible_pool_create(path, forced, 0, &mut pool),
            Status::Ok
        );
        assert_eq!(indelible_pool_open(path, 0, 0, &mut other), Status::Locked);
        let map = open_map(pool);
        assert_eq!(indelible_insert(map, 1, 10), Status::Ok);
        // A pool that is closed while a map is open is closed with the map.
        assert_eq!(indelible_pool_close(pool), Status::InUse);
        assert_eq!(indelible_insert(map, 2, 20), Status::Ok);
        assert_eq!(indelible_map_close(map), Status::Ok);

        let process = INDELIBLE_DURABILITY_PROCESS;
        let opened = indelible_pool_open_or_create(path, process, 1 << 30, &mut pool);
        assert_eq!(opened, Status::Ok, "{}", last_error());
        let map = open_map(pool);
        assert_eq!(indelible_get(map, 2, &mut value), Status::Ok);
        assert_eq!(value, 20);
        close(pool, map);
    }
}

#[test]
fn full_pools_say_so_and_go_on() {
    let mut pool = null_mut();
    // SAFETY: a local variable to write to.
    let status = unsafe { indelible_pool_in_memory(16 << 20, &mut pool) };
    assert_eq!(status, Status::Ok);
    let map = open_map(pool);
    // SAFETY: the map is open.
    let full = (0..).find_map(|key| match unsafe { indelible_insert(map, key, key) } {
        Status::Ok => None,
        status => Some((key, status)),
    });
    let (inserted, status) = full.unwrap();
    assert_eq!(status, Status::NoSpace);
    assert!(!last_error().is_empty());
    let mut count = 0;
    // SAFETY: the map is open, and `count` is a local variable.
    unsafe { assert_eq!(indelible_len(map, &mut count), Status::Ok) };
    assert_eq!(count, inserted);
    close(pool, map);
}

#[test]
fn a_batch_that_does_not_fit_is_done_in_part() {
    let mut pool = null_mut();
    // SAFETY: a local variable to write to.
    let status = unsafe { indelible_pool_in_memory(8 << 20, &mut pool) };
    assert_eq!(status, Status::Ok);
    let map = open_map(pool);
    let records: Vec<Record> = (0..1_000_000)
        .map(|key| Record { key, value: !key })
        .collect();
    // SAFETY: the map is open, and the records are there.
    let status = unsafe { indelible_insert_batch(map, records.as_ptr(), records.len()) };
    assert_eq!(status, Status::NoSpace);
    let (mut count, mut found) = (0, 0);
    // SAFETY: the map is open, and `count` is a local variable.
    unsafe { assert_eq!(indelible_len(map, &mut count), Status::Ok) };
    assert!(0 < count && count < records.len() as u64, "{count}");
    for record in &records {
        let mut value = 0;
        // SAFETY: the map is open, and `value` is a local variable.
        match unsafe { indelible_get(map, record.key, &mut value) } {
            Status::Absent => continue,
            status => assert_eq!((status, value), (Status::Ok, record.value)),
        }
        found += 1;
    }
    assert_eq!(found, count);
    close(pool, map);
}

#[test]
fn panics_stay_inside() {
    let status = status::guarded(|| panic!("planted"));
    assert_eq!(status, Status::Panic);
    assert_eq!(last_error(), "a defect of indelible: planted");
}

#[test]
fn messages_belong_to_their_thread() {
    // SAFETY: null is refused.
    unsafe { indelible_map_close(null_mut()) };
    std::thread::spawn(|| assert_eq!(last_error(), ""))
        .join()
        .unwrap();
    assert_eq!(last_error(), "`map` is null");
}
