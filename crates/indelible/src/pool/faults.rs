//! Every call into the operating system fails once: the pool gives an error or does without, and loses nothing.

use super::layout::{EXTENT_BYTES, TABLE_AT};
use super::system::faults;
use crate::{Durability, Error, Kind, Map, Pool, PoolOptions, Result};
use rustix::io::Errno;
use std::cell::Cell;
use std::path::{Path, PathBuf};

const RECORDS: u64 = 300;

/// Extents of a pool that is large enough for a thread to make further ones ready ahead of their use.
const ENOUGH_FOR_READY_AHEAD: u64 = 5;

/// What a workload was told to be done, and so has to be there.
#[derive(Default)]
struct Acknowledged {
    /// Records 0, 1, ... of the map "kept".
    kept: Cell<u64>,
    /// Records of "dropped", if it is there.
    dropped: Cell<u64>,
    drop_begun: Cell<bool>,
}

fn options(durability: Durability) -> PoolOptions {
    // Little address space: after a refusal the pool asks for half of it, and a range whose unmapping fails stays reserved.
    let mut options = PoolOptions::new();
    options
        .max_bytes(64 << 20)
        .durability(durability)
        .log_anywhere(true);
    options
}

fn map(pool: &Pool, name: &str, kind: Kind) -> Result<Map<u64, u64>> {
    pool.map_with(name, kind)
}

fn insert(map: &Map<u64, u64>, records: u64, acknowledged: &Cell<u64>) -> Result<()> {
    for i in acknowledged.get()..records {
        map.insert(i, i)?;
        acknowledged.set(i + 1);
    }
    Ok(())
}

/// Takes extents for the map "dropped", so that the pool grows.
fn grow(pool: &Pool, extents: u64) -> Result<()> {
    let space = pool
        .core()
        .space(pool.find("dropped")?, EXTENT_BYTES as u32)?;
    for _ in 0..extents {
        space.alloc()?;
    }
    Ok(())
}

/// Creates a pool, grows it, shrinks it, closes it, and opens and checks it.
fn work(
    path: &Path,
    durability: Durability,
    [kept_kind, dropped_kind]: [Kind; 2],
    done: &Acknowledged,
) -> Result<()> {
    let options = || options(durability);
    let pool = options().create(path)?;
    let dropped = map(&pool, "dropped", dropped_kind)?;
    insert(&dropped, RECORDS, &done.dropped)?;
    grow(&pool, ENOUGH_FOR_READY_AHEAD)?;
    let kept = map(&pool, "kept", kept_kind)?;
    insert(&kept, RECORDS, &done.kept)?;
    grow(&pool, 2)?;
    drop(dropped);
    done.drop_begun.set(true);
    pool.drop_map("dropped")?;
    pool.shrink()?;
    insert(&kept, 2 * RECORDS, &done.kept)?;
    drop(kept);
    pool.close()?;
    let pool = options().open(path)?;
    let kept = map(&pool, "kept", kept_kind)?;
    assert_eq!(kept.check()?, [""; 0]);
    drop(kept);
    pool.close()?;
    let pool = options().open_read_only(path)?;
    let kept = map(&pool, "kept", kept_kind)?;
    assert_eq!(kept.len()?, done.kept.get());
    Ok(())
}

/// Whether a map holds what was acknowledged, and perhaps one record more, whose insert failed.
fn assert_holds(map: &Map<u64, u64>, records: u64) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    let length = map.len().unwrap();
    assert!(
        (records..=records + 1).contains(&length),
        "{length} of {records}"
    );
    assert!(
        map.iter()
            .map(Result::unwrap)
            .eq((0..length).map(|i| (i, i)))
    );
}

/// Opens the pool, without faults, and looks for what was acknowledged.
fn assert_whole(path: &Path, durability: Durability, kind: Kind, done: &Acknowledged) {
    let pool = match options(durability).open(path) {
        // It was not created.
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            assert_eq!(done.kept.get(), 0);
            options(durability).create(path).unwrap()
        }
        pool => pool.unwrap(),
    };
    assert_eq!(pool.check(), [""; 0]);
    let names: Vec<String> = pool.maps().into_iter().map(|map| map.name).collect();
    if names.contains(&"kept".into()) || done.kept.get() > 0 {
        assert_holds(&pool.open_map("kept").unwrap(), done.kept.get());
    }
    let is_kept = done.dropped.get() > 0 && !done.drop_begun.get();
    if is_kept {
        assert_holds(&pool.open_map("dropped").unwrap(), done.dropped.get());
    }
    // And it goes on.
    let map = map(&pool, "kept", kind).unwrap();
    map.insert(u64::MAX, 1).unwrap();
    drop(map);
    pool.close().unwrap();
}

/// Calls that fail with each pair of kinds, at least.
const LEAST_FAULTS: usize = 5;

/// Lets each call in turn fail in this way, or each `step`-th one, until there is no such call; with two kinds of index. With other pairs
/// of kinds, fewer calls fail: most of what is called does not depend on the kinds.
fn fail_each_call(errno: Errno, parent: &Path, step: usize) {
    fail_each_call_of(Durability::Process, errno, parent, step);
}

fn fail_each_call_of(durability: Durability, errno: Errno, parent: &Path, step: usize) {
    let all = Kind::all();
    let others = all.iter().skip(1).chain(all.iter().take(1));
    for (pair, (&kept, &dropped)) in all.iter().zip(others).enumerate() {
        let step = if pair == 0 { step } else { 5 * step };
        fail_each_call_with([kept, dropped], durability, errno, parent, step);
    }
}

fn fail_each_call_with(
    kinds: [Kind; 2],
    durability: Durability,
    errno: Errno,
    parent: &Path,
    step: usize,
) {
    for (faults, failing) in (1..).step_by(step).enumerate() {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let path = directory.path().join("faults.pool");
        let done = Acknowledged::default();
        let (result, was_reached) =
            faults::at(failing, errno, || work(&path, durability, kinds, &done));
        if !was_reached {
            result.unwrap();
            assert!(failing > 100, "only {failing} calls");
            return assert!(
                faults >= LEAST_FAULTS,
                "{kinds:?}, {durability:?}: only {faults} calls have failed"
            );
        }
        if let Err(error) = &result {
            assert!(
                matches!(
                    error,
                    Error::Io { .. }
                        | Error::NoSpace(_)
                        | Error::NoPowerLossSafety(_)
                        | Error::LogFailed(_)
                ),
                "{errno:?} of call {failing}: {error}"
            );
            assert!(!error.to_string().contains("/.faults.pool."), "{error}");
        }
        assert_whole(&path, durability, kinds[0], &done);
        let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(
            names.len(),
            1,
            "{errno:?} of call {failing} leaves {names:?}"
        );
    }
}

/// Whether the tests take hours, and not minutes.
fn is_deep() -> bool {
    std::env::var_os("INDELIBLE_DEEP").is_some()
}

/// Where files are memory, and a sync costs nothing.
fn memory() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    }
}

#[test]
fn every_call_that_fails_once_for_want_of_space_is_an_error_and_loses_nothing() {
    fail_each_call(Errno::NOSPC, &memory(), 1);
}

#[test]
fn every_call_that_fails_once_for_want_of_memory_is_an_error_and_loses_nothing() {
    fail_each_call(Errno::NOMEM, &memory(), 1);
}

#[test]
fn every_call_that_fails_once_by_a_broken_disk_is_an_error_and_loses_nothing() {
    fail_each_call(Errno::IO, &memory(), 1);
    // Other calls are made where files are not memory. A sync takes long there, so not each of them is tried.
    fail_each_call(Errno::IO, &std::env::temp_dir(), 5);
}

#[test]
fn every_call_that_is_not_supported_once_is_an_error_or_done_without() {
    fail_each_call(Errno::OPNOTSUPP, &memory(), 1);
}

#[test]
fn every_call_that_fails_once_in_a_pool_with_a_log_is_an_error_and_loses_nothing() {
    let interval = Durability::Interval(std::time::Duration::from_millis(1));
    // Most calls are syncs that operations wait for, one like the other.
    let [few, most] = if is_deep() { [5, 11] } else { [21, 61] };
    fail_each_call_of(Durability::PowerLoss, Errno::IO, &memory(), most);
    fail_each_call_of(interval, Errno::IO, &memory(), few);
    fail_each_call_of(interval, Errno::NOSPC, &memory(), few);
}

/// Records of a map that are appended to its log in many batches, so that a log that fails may fail between two of them.
const MANY_RECORDS: u64 = 3000;

/// Inserts records in one operation after the other until one fails, and returns what can be read then, one way and another: of each key, and of ranges.
fn insert_and_read(path: &Path, kind: Kind) -> Result<Vec<(u64, u64)>> {
    let mut options = options(Durability::PowerLoss);
    let pool = options.log_bytes(1).create(path)?;
    let map = map(&pool, "kept", kind)?;
    let old = MANY_RECORDS..MANY_RECORDS + 50;
    let records: Vec<(u64, u64)> = old.clone().map(|i| (i, i)).collect();
    map.insert_batch(&records)?;
    let mut inserted = Ok(());
    for round in 0..4 {
        let records: Vec<(u64, u64)> = (0..MANY_RECORDS).map(|i| (i, i + round)).collect();
        inserted = map.insert_batch(&records);
        if inserted.is_err() {
            break;
        }
    }
    let Err(Error::LogFailed(_)) = inserted else {
        return inserted.map(|()| Vec::new());
    };
    let mut read = Vec::new();
    for key in 0..old.end {
        if let Ok(Some(value)) = map.get(key) {
            read.push((key, value));
        }
        if let Ok(values) = map.get_batch(&[key]) {
            read.extend(values[0].map(|value| (key, value)));
        }
    }
    read.extend(map.iter().map_while(Result::ok));
    Ok(read)
}

/// A log may fail between two batches of an operation, or of two threads. What is in memory by then and not in the log is lost when the process ends.
#[test]
fn what_is_read_after_the_log_has_failed_is_there_when_the_pool_is_opened_again() {
    let step = if is_deep() { 3 } else { 71 };
    let mut read_anything = 0;
    for &kind in Kind::all() {
        let mut failed = 0;
        for failing in (1..).step_by(step) {
            let directory = tempfile::tempdir_in(memory()).unwrap();
            let path = directory.path().join("faults.pool");
            let (read, was_reached) =
                faults::at(failing, Errno::IO, || insert_and_read(&path, kind));
            if !was_reached {
                assert_eq!(read.unwrap(), []);
                break;
            }
            let Ok(read) = read else { continue };
            failed += 1;
            read_anything += usize::from(!read.is_empty());
            let pool = options(Durability::PowerLoss).open(&path).unwrap();
            let map = map(&pool, "kept", kind).unwrap();
            assert_eq!(map.check().unwrap(), [""; 0]);
            let is_there = |(key, value)| map.get(key).unwrap() == Some(value);
            let lost: Vec<_> = read.into_iter().filter(|&read| !is_there(read)).collect();
            assert_eq!(lost, [], "{kind}, call {failing}: what was read is lost");
        }
        assert!(failed > 5, "{kind}: {failed} failures");
    }
    assert!(read_anything > 0);
}

/// After a failed sync the kernel takes the pages for clean, and the next one succeeds: so a close must not take it for true.
#[test]
fn a_sync_that_has_failed_is_not_forgotten_by_the_next_one_or_by_the_close() {
    let directory = tempfile::tempdir_in(memory()).unwrap();
    let path = directory.path().join("unsynced.pool");
    let pool = options(Durability::Process).create(&path).unwrap();
    let kept = map(&pool, "kept", Kind::default()).unwrap();
    insert(&kept, RECORDS, &Cell::default()).unwrap();
    drop(kept);
    let (synced, was_reached) = faults::at(1, Errno::IO, || pool.sync());
    assert!(was_reached);
    assert!(matches!(synced, Err(Error::Io { .. })), "{synced:?}");
    assert!(matches!(pool.sync(), Err(Error::Io { .. })));
    assert!(matches!(pool.close(), Err(Error::Io { .. })));
    let read = options(Durability::Process).open_read_only(&path);
    assert!(matches!(read, Err(Error::NotClean)), "{read:?}");
    // The machine has not gone down: the next open, also with another promise, has the file once more written to the disk, or is an error.
    let marked = std::fs::read(&path).unwrap();
    for durability in [Durability::Process, Durability::PowerLoss] {
        std::fs::write(&path, &marked).unwrap();
        for failing in 1.. {
            let (opened, was_reached) =
                faults::at(failing, Errno::IO, || options(durability).open(&path));
            let Ok(pool) = opened else {
                continue;
            };
            assert!(
                !was_reached || failing > 3,
                "call {failing} of {durability:?}"
            );
            assert_holds(&pool.open_map("kept").unwrap(), RECORDS);
            pool.close().unwrap();
            options(durability).open_read_only(&path).unwrap();
            break;
        }
    }
}

/// An extent of a copy that has no blocks is written once more before it is used, where the file system knows no other way: but not those beside it, which have their
/// blocks, and may be taken by another thread meanwhile.
#[test]
fn reserving_an_extent_of_a_copy_writes_no_extent_that_another_thread_may_take() {
    use rustix::fs::FallocateFlags;
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    const STORED: [u8; 8] = [0x5a; 8];
    let directory = tempfile::tempdir_in(memory()).unwrap();
    let path = directory.path().join("original.pool");
    let pool = options(Durability::Process).create(&path).unwrap();
    drop(map(&pool, "dropped", Kind::default()).unwrap());
    grow(&pool, 6).unwrap();
    pool.drop_map("dropped").unwrap();
    let free = pool.core().free_extents_before(u64::MAX);
    pool.close().unwrap();
    let mut stored = 0;
    for failing in 1.. {
        let copy = directory.path().join(format!("{failing}.pool"));
        std::fs::copy(&path, &copy).unwrap();
        let opened = std::fs::File::options().read(true).write(true).open(&copy);
        let file = Arc::new(opened.unwrap());
        // In the middle of what will be free.
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&*file, hole, free[3] * EXTENT_BYTES, EXTENT_BYTES).unwrap();
        let pool = options(Durability::Process).open(&copy).unwrap();
        // Has the first one.
        drop(map(&pool, "run", Kind::default()).unwrap());
        let slot = pool.find("run").unwrap();
        let (at, was_stored) = (free[1] * EXTENT_BYTES, Arc::new(AtomicBool::new(false)));
        let (other, flag) = (Arc::clone(&file), Arc::clone(&was_stored));
        let store = move || {
            other.write_all_at(&STORED, at).unwrap();
            flag.store(true, Ordering::Release);
        };
        let take_all = || pool.core().take_run(slot, free.len() as u64 - 1);
        let (taken, was_reached) =
            faults::at_and_meanwhile(failing, Errno::OPNOTSUPP, store, take_all);
        taken.unwrap();
        if was_stored.load(Ordering::Acquire) {
            let mut found = [0; 8];
            file.read_exact_at(&mut found, at).unwrap();
            assert_eq!(found, STORED, "after call {failing}");
            stored += 1;
        }
        if !was_reached {
            return assert!(stored > 0, "nothing was written after a call that failed");
        }
    }
}

/// A write may fail after the value has become one of the map, and others may read it then: its block must not be free.
#[test]
fn a_long_value_whose_write_fails_late_is_not_freed() {
    let (mut failing, mut failed, mut not_reached) = (0, 0, 0);
    // Another thread, which begins the session of the log, may sync what this one has written.
    while failed == 0 || not_reached == 0 {
        failing += 1;
        let directory = tempfile::tempdir_in(memory()).unwrap();
        let path = directory.path().join("value.pool");
        let pool = options(Durability::PowerLoss).create(&path).unwrap();
        let map = pool.bytes("m").unwrap();
        map.insert("other", "value").unwrap();
        let mut writer = map.value_writer("long", 100_000).unwrap();
        std::io::Write::write_all(&mut writer, &[7; 100_000]).unwrap();
        let (written, was_reached) = faults::at(failing, Errno::IO, || writer.commit());
        if !was_reached {
            written.unwrap();
            (failing, not_reached) = (0, not_reached + 1);
            assert!(not_reached < 50, "no call has failed");
        } else if matches!(written, Err(Error::LogFailed(_))) {
            failed += 1;
            assert_eq!(map.check().unwrap(), [""; 0]);
        }
    }
}

/// Records are moved to the front of a pool before its end is cut off. If they have not got into the log, or the new length has not, the end is still needed.
#[test]
fn a_shrink_that_has_failed_and_is_repeated_loses_nothing() {
    let kind = Kind::default();
    for durability in [Durability::PowerLoss, Durability::Process] {
        for failing in 1.. {
            let directory = tempfile::tempdir_in(memory()).unwrap();
            let path = directory.path().join("shrunk.pool");
            let pool = options(durability).create(&path).unwrap();
            drop(map(&pool, "dropped", kind).unwrap());
            grow(&pool, ENOUGH_FOR_READY_AHEAD).unwrap();
            let kept = map(&pool, "kept", kind).unwrap();
            insert(&kept, RECORDS, &Cell::default()).unwrap();
            drop(kept);
            pool.drop_map("dropped").unwrap();
            pool.sync().unwrap();
            let shrink_twice = || [pool.shrink(), pool.shrink()];
            let (shrunk, was_reached) = faults::at(failing, Errno::IO, shrink_twice);
            drop(pool);
            let pool = options(durability).open(&path);
            let pool = pool.unwrap_or_else(|error| panic!("{failing}: {error}, {shrunk:?}"));
            assert_holds(&pool.open_map("kept").unwrap(), RECORDS);
            if !was_reached {
                assert!(shrunk.iter().all(Result::is_ok) && failing > 1);
                break;
            }
        }
    }
}

/// Where a file system cannot reserve, growing writes a part of the file again. What another thread stores meanwhile to a page of the extent table that is
/// in use, here to the word of an extent that nobody asks for, must not be lost.
#[test]
fn growing_without_reservations_writes_no_page_of_the_extent_table_that_is_in_use() {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    const AT: u64 = TABLE_AT + 8 * 400;
    const STORED: [u8; 8] = [0x5a; 8];
    let directory = tempfile::tempdir_in(memory()).unwrap();
    let mut stored = 0;
    for failing in 1.. {
        let path = directory.path().join(format!("{failing}.pool"));
        let pool = options(Durability::Process).create(&path).unwrap();
        drop(map(&pool, "dropped", Kind::default()).unwrap());
        // The pool's memory is that of the file.
        let opened = std::fs::File::options().read(true).write(true).open(&path);
        let file = Arc::new(opened.unwrap());
        let was_stored = Arc::new(AtomicBool::new(false));
        let (other, flag) = (Arc::clone(&file), Arc::clone(&was_stored));
        let store = move || {
            other.write_all_at(&STORED, AT).unwrap();
            flag.store(true, Ordering::Release);
        };
        let (_, was_reached) =
            faults::at_and_meanwhile(failing, Errno::OPNOTSUPP, store, || grow(&pool, 3));
        if was_stored.load(Ordering::Acquire) {
            let mut found = [0; 8];
            file.read_exact_at(&mut found, AT).unwrap();
            assert_eq!(found, STORED, "after call {failing}");
            stored += 1;
        }
        if !was_reached {
            assert!(failing > 2, "only {failing} calls");
            return assert!(stored > 0, "nothing was written after a call that failed");
        }
    }
}

/// Once, each removal waited for the disk by itself: a map of 100,000 records took a minute to clear.
#[test]
fn removals_of_one_call_wait_for_the_disk_together() {
    const MOST_CALLS: u64 = RECORDS / 2;
    let directory = tempfile::tempdir_in(memory()).unwrap();
    let path = directory.path().join("cleared.pool");
    let pool = options(Durability::PowerLoss).create(&path).unwrap();
    let numbers = map(&pool, "numbers", Kind::default()).unwrap();
    let texts = pool.bytes("texts").unwrap();
    let places = pool.spatial::<crate::Point2>("places").unwrap();
    let points: Vec<_> = (0..RECORDS)
        .map(|i| (crate::Point2::new(i as f64, 0.0), i))
        .collect();
    let fill = || {
        numbers.extend((0..RECORDS).map(|i| (i, i))).unwrap();
        texts
            .extend((0..RECORDS).map(|i| (i.to_be_bytes(), "text")))
            .unwrap();
        if places.is_empty().unwrap() {
            places.insert_batch(&points).unwrap();
        }
    };
    let expect_few = |what: &str, remove: &dyn Fn() -> Result<u64>| {
        fill();
        let (removed, calls) = faults::calls_of(remove);
        assert_eq!(removed.unwrap(), RECORDS, "{what}");
        assert!(calls < MOST_CALLS, "{what}: {calls} calls");
        assert_eq!(
            pool.core().gate().map(|gate| gate.is_open()),
            Some(true),
            "{what}"
        );
    };
    expect_few("clear", &|| numbers.clear());
    expect_few("retain", &|| numbers.retain(.., |_, _| false));
    expect_few("clear of strings", &|| texts.clear());
    expect_few("a prefix", &|| texts.remove_prefix(""));
    expect_few("retain of strings", &|| texts.retain(|_, _| false));
    expect_few("clear of places", &|| places.clear());
}

/// A file system in user space may let a signal interrupt a sync, which says nothing of the disk.
#[test]
fn a_sync_that_a_signal_interrupts_is_done_again() {
    let interval = Durability::Interval(std::time::Duration::from_secs(3600));
    for durability in [Durability::Process, Durability::PowerLoss, interval] {
        let directory = tempfile::tempdir_in(memory()).unwrap();
        let path = directory.path().join("interrupted.pool");
        let pool = options(durability).create(&path).unwrap();
        let kept = map(&pool, "kept", Kind::default()).unwrap();
        let mut reached = 0;
        for failing in 1..6 {
            let insert_and_sync = || {
                kept.insert(failing, failing)?;
                pool.sync()
            };
            let (synced, was_reached) = faults::at(failing, Errno::INTR, insert_and_sync);
            synced.unwrap_or_else(|error| panic!("call {failing} of {durability:?}: {error}"));
            reached += u32::from(was_reached);
        }
        assert!(reached > 0, "{durability:?}");
    }
}

/// Some file systems cannot sync a directory.
#[test]
fn where_no_directory_can_be_synced_the_file_system_is() {
    let directory = tempfile::tempdir_in(memory()).unwrap();
    let create = |name: &str| options(Durability::Process).create(directory.path().join(name));
    // The name of the file is the last that is synced.
    let (pool, calls) = faults::calls_of(|| create("a.pool"));
    drop(pool.unwrap());
    let (pool, was_reached) = faults::at(calls, Errno::INVAL, || create("b.pool"));
    assert!(was_reached);
    drop(pool.unwrap());
}
