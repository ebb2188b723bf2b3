//! What is done with a pool as a whole, as C calls it.

use crate::skipped::skipped;
use crate::tests::{in_memory, last_error};
use crate::*;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;

pub(crate) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

pub(crate) fn open(path: &CStr, durability: u32) -> (Status, *mut PoolHandle) {
    let mut pool = null_mut();
    // SAFETY: a string, and a local variable to write to.
    let status = unsafe { indelible_pool_open_or_create(path.as_ptr(), durability, 0, &mut pool) };
    (status, pool)
}

fn map_of(pool: *const PoolHandle, name: &CStr) -> *mut MapHandle {
    let mut map = null_mut();
    // SAFETY: an open pool, a string, and a local variable to write to.
    let status = unsafe { indelible_map_open(pool, name.as_ptr(), &mut map) };
    assert_eq!(status, Status::Ok, "{}", last_error());
    map
}

#[test]
fn objects_are_found_renamed_and_dropped() {
    let pool = in_memory();
    let map = map_of(pool, c"a");
    // SAFETY: the handles are open until they are closed, and the rest are literals.
    unsafe {
        let find = |name: &CStr| indelible_object_find(pool, name.as_ptr());
        let rename =
            |from: &CStr, to: &CStr| indelible_object_rename(pool, from.as_ptr(), to.as_ptr());
        let drop_named = |name: &CStr| indelible_object_drop(pool, name.as_ptr());
        assert_eq!((find(c"a"), find(c"b")), (Status::Ok, Status::Absent));
        assert_eq!(rename(c"a", c"b"), Status::Ok);
        assert_eq!(rename(c"a", c"c"), Status::Absent);
        assert_eq!((find(c"a"), find(c"b")), (Status::Absent, Status::Ok));
        indelible_map_close(map_of(pool, c"c"));
        assert_eq!(rename(c"b", c"c"), Status::Present);
        assert_eq!(drop_named(c"b"), Status::InUse);
        assert_eq!(indelible_map_close(map), Status::Ok);
        assert_eq!(drop_named(c"b"), Status::Ok);
        assert_eq!(drop_named(c"b"), Status::Absent);
        assert_eq!(indelible_pool_close(pool), Status::Ok);
    }
}

#[test]
fn batches_are_as_single_calls() {
    let pool = in_memory();
    let map = map_of(pool, c"m");
    let records: Vec<Record> = (0..1000)
        .map(|i| Record {
            key: i * 3,
            value: i,
        })
        .collect();
    let keys: Vec<u64> = (0..2000).collect();
    let (mut values, mut found) = (vec![7; keys.len()], vec![7; keys.len()]);
    let (mut removed, mut length) = (0, 0);
    // SAFETY: the handles are open, and the slices have as many elements as is said.
    unsafe {
        let inserted = indelible_insert_batch(map, records.as_ptr(), records.len());
        assert_eq!(inserted, Status::Ok, "{}", last_error());
        let got = indelible_get_batch(
            map,
            keys.as_ptr(),
            keys.len(),
            values.as_mut_ptr(),
            found.as_mut_ptr(),
        );
        assert_eq!(got, Status::Ok);
        assert_eq!(
            indelible_remove_range(map, 30, 60, &mut removed),
            Status::Ok
        );
        assert_eq!(indelible_len(map, &mut length), Status::Ok);
        assert_eq!(indelible_map_check(map), Status::Ok);
        assert_eq!(indelible_map_close(map), Status::Ok);
        assert_eq!(indelible_pool_check(pool), Status::Ok);
        assert_eq!(indelible_pool_close(pool), Status::Ok);
    }
    for key in keys {
        let is_there = key % 3 == 0;
        let expected = if is_there { (key / 3, 1) } else { (0, 0) };
        assert_eq!(
            (values[key as usize], found[key as usize]),
            expected,
            "{key}"
        );
    }
    assert_eq!((removed, length), (11, 989));
}

#[test]
fn a_pool_with_a_log_is_synced_and_backed_up() {
    // Not in memory, where a pool survives no power cut.
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = c_path(&directory.path().join("a.pool"));
    let copy = c_path(&directory.path().join("copy.pool"));
    let (status, _) = open(&path, INDELIBLE_DURABILITY_INTERVAL);
    assert_eq!(status, Status::Invalid);
    let (status, pool) = open(&path, INDELIBLE_DURABILITY_INTERVAL + 10);
    // Asked of the system, since the library may be wrong when it refuses a disk.
    let file_system = statfs(directory.path()).unwrap().filesystem_type();
    if status == Status::Refused && file_system == TMPFS_MAGIC {
        return skipped(&last_error());
    }
    assert_eq!(status, Status::Ok, "{}", last_error());
    let map = map_of(pool, c"m");
    // SAFETY: the handles are open until they are closed.
    unsafe {
        for key in 0..10_000 {
            indelible_insert(map, key, key);
        }
        assert_eq!(indelible_pool_sync(pool), Status::Ok);
        let copied = indelible_pool_backup(pool, copy.as_ptr());
        assert_eq!(copied, Status::Ok, "{}", last_error());
        let again = indelible_pool_backup(pool, copy.as_ptr());
        assert_eq!(again, Status::Io, "the file exists");
        let (mut removed, mut bytes) = (0, 0);
        indelible_remove_range(map, 0, u64::MAX, &mut removed);
        assert_eq!(indelible_pool_shrink(pool, &mut bytes), Status::Ok);
        assert_eq!(indelible_map_close(map), Status::Ok);
        assert_eq!(indelible_pool_close(pool), Status::Ok, "{}", last_error());
        assert_eq!(removed, 10_000);

        let (_, pool) = open(&copy, INDELIBLE_DURABILITY_RECORDED);
        let map = map_of(pool, c"m");
        let mut length = 0;
        assert_eq!(indelible_len(map, &mut length), Status::Ok);
        assert_eq!(length, 10_000);
        indelible_map_close(map);
        assert_eq!(indelible_pool_close(pool), Status::Ok);
    }
    // Without a log there is nothing to copy while it is written.
    let pool = in_memory();
    // SAFETY: the pool is open.
    unsafe {
        assert_eq!(indelible_pool_backup(pool, copy.as_ptr()), Status::Invalid);
        indelible_pool_close(pool);
    }
}
