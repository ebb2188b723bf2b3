//! What is done with a pool as a whole, as C calls it.

use crate::skipped::skipped;
use crate::tests::{in_memory, last_error};
use crate::*;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};

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
fn objects_are_listed_in_the_order_of_their_names() {
    let pool = in_memory();
    let (map, mut bytes, mut index) = (map_of(pool, c"m"), null_mut(), null_mut());
    let mut object = Object {
        name: [1; 64],
        family: 9,
        geometry: 9,
    };
    let longest = CString::new(vec![b'z'; 63]).unwrap();
    // SAFETY: the handles are open until they are closed, and the rest are strings, null, and local variables to write to.
    unsafe {
        // What C cannot open, and what it cannot name.
        (*pool).0.map::<u64, u8>("k").unwrap();
        (*pool).0.map::<u64, u64>("k\0l").unwrap();
        indelible_bytes_open(pool, longest.as_ptr(), null(), &mut bytes);
        indelible_spatial_open(pool, c"b".as_ptr(), INDELIBLE_BOX3, null(), &mut index);
        let mut found = Vec::new();
        let mut after = null();
        // The name that is read lies in the object that is written.
        let place = &raw mut object;
        while indelible_object_next(pool, after, place) == Status::Ok {
            after = (&raw const (*place).name).cast();
            found.push((
                CStr::from_ptr(after).to_owned(),
                (*place).family,
                (*place).geometry,
            ));
        }
        let expected = [
            (c"b", INDELIBLE_OBJECT_SPATIAL, INDELIBLE_BOX3),
            (c"k", INDELIBLE_OBJECT_OTHER, 0),
            (c"m", INDELIBLE_OBJECT_MAP, 0),
            (&*longest, INDELIBLE_OBJECT_BYTES, 0),
        ];
        let expected = expected.map(|(name, family, geometry)| (name.to_owned(), family, geometry));
        assert_eq!(found, expected);
        let status = indelible_object_next(pool, c"c".as_ptr(), &mut object);
        assert_eq!((status, object.name[0]), (Status::Ok, b'k' as c_char));
        for status in [
            indelible_object_next(null(), null(), &mut object),
            indelible_object_next(pool, null(), null_mut()),
            indelible_pool_stat(null(), null_mut()),
            indelible_pool_stat(pool, null_mut()),
        ] {
            assert_eq!(status, Status::Invalid);
        }
        for status in [
            indelible_map_close(map),
            indelible_bytes_close(bytes),
            indelible_spatial_close(index),
            indelible_pool_close(pool),
        ] {
            assert_eq!(status, Status::Ok);
        }
    }
}

#[test]
fn a_pool_says_what_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = c_path(&directory.path().join("a.pool"));
    let stat_of = |pool| {
        let mut stat = Stat {
            file_bytes: 0,
            free_bytes: u64::MAX,
            generation: 0,
            durability: 9,
            clean_at_open: 9,
        };
        // SAFETY: an open pool, and a local variable to write to.
        let status = unsafe { indelible_pool_stat(pool, &mut stat) };
        assert_eq!(status, Status::Ok, "{}", last_error());
        stat
    };
    let close = |pool| {
        // SAFETY: the pool is open and not used again.
        assert_eq!(unsafe { indelible_pool_close(pool) }, Status::Ok);
    };
    let (_, pool) = open(&path, INDELIBLE_DURABILITY_PROCESS);
    let new = stat_of(pool);
    assert_eq!(new.durability, INDELIBLE_DURABILITY_PROCESS);
    assert_eq!(new.clean_at_open, 1);
    assert!(new.file_bytes >= 2 << 20 && new.free_bytes < new.file_bytes);
    close(pool);
    let (_, pool) = open(&path, INDELIBLE_DURABILITY_POWER_LOSS_FORCED);
    let again = stat_of(pool);
    assert_eq!(again.durability, INDELIBLE_DURABILITY_POWER_LOSS);
    assert_eq!(again.generation, new.generation + 1);
    close(pool);
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
        let mut stat = std::mem::MaybeUninit::uninit();
        assert_eq!(indelible_pool_stat(pool, stat.as_mut_ptr()), Status::Ok);
        let durability = stat.assume_init().durability;
        assert_eq!(durability, INDELIBLE_DURABILITY_INTERVAL + 10);
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
