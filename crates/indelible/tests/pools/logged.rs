//! Pools with a log, on files of a real disk: what is there after the death of the process, what is refused, and what a failing disk
//! leaves. (What a power cut leaves is searched by the crash checker, on a simulated disk.)

mod damage;

use crate::death::{copy_after_death, log_of};
use crate::stop::StopAtEnd;
use indelible::{
    Box2, Durability, Error, FbrOptions, Kind, Map, Point2, Pool, PoolOptions, SpatialKind,
    SpatialOptions,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("logged.pool");
    Place {
        _directory: directory,
        path,
    }
}

const INTERVAL: Durability = Durability::Interval(Duration::from_millis(10));

fn options(durability: Durability) -> PoolOptions {
    PoolOptions::new()
        .durability(durability)
        .log_anywhere(true)
        .to_owned()
}

/// What a process leaves that dies now, in another place.
fn after_death(pool: &Place) -> Place {
    let copy = place();
    copy_after_death(&pool.path, &copy.path);
    copy
}

fn key(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn assert_holds(map: &Map<u64, u64>, records: u64) {
    assert_eq!(map.len().unwrap(), records);
    (0..records).for_each(|i| assert_eq!(map.get(key(i)).unwrap(), Some(i), "record {i}"));
    assert_eq!(map.check().unwrap(), [""; 0]);
}

#[test]
fn the_death_of_the_process_loses_nothing_and_a_close_leaves_one_file() {
    for &kind in Kind::all() {
        for durability in [Durability::PowerLoss, INTERVAL] {
            let place = place();
            let pool = options(durability).create(&place.path).unwrap();
            assert_eq!(pool.stat().medium, indelible::pmem::Medium::Disk);
            let map = pool.map_with::<u64, u64>("m", kind).unwrap();
            let records = if durability == INTERVAL { 5000 } else { 200 };
            for i in 0..records {
                map.insert(key(i), i).unwrap();
            }
            let copy = after_death(&place);
            drop(map);
            pool.close().unwrap();
            assert!(!log_of(&place.path).exists(), "a closed pool is one file");
            // As recorded, and as another promise.
            for other in [None, Some(Durability::Process), Some(INTERVAL), None] {
                for path in [&place.path, &copy.path] {
                    let mut options = PoolOptions::new();
                    if let Some(other) = other {
                        options.durability(other);
                    }
                    let pool = options.open(path).unwrap();
                    let map = pool.open_map::<u64, u64>("m").unwrap();
                    assert_holds(&map, records);
                    assert_eq!(pool.check(), [""; 0]);
                    drop(map);
                    pool.close().unwrap();
                    assert!(!log_of(path).exists());
                }
            }
        }
    }
}

#[test]
fn a_log_that_is_shorter_than_what_is_written_is_used_over_and_over() {
    for &kind in Kind::all() {
        let place = place();
        let mut options = options(INTERVAL);
        options.log_bytes(4 << 20);
        let pool = options.create(&place.path).unwrap();
        let map = pool.map_with::<u64, u64>("m", kind).unwrap();
        let records = 60_000;
        for i in 0..records {
            map.insert(key(i), 0).unwrap();
        }
        let all: Vec<(u64, u64)> = (0..records).map(|i| (key(i), i)).collect();
        map.insert_batch(&all).unwrap();
        let other = pool.map_with::<u64, u64>("loaded", kind).unwrap();
        other.bulk_load((0..100_000).map(|i| (i, i)), 0.8).unwrap();
        pool.sync().unwrap();
        assert!(std::fs::metadata(log_of(&place.path)).unwrap().len() <= 4 << 20);
        // Until the applier has nothing to do.
        std::thread::sleep(Duration::from_millis(300));
        let copy = after_death(&place);
        let pool = PoolOptions::new().open(&copy.path).unwrap();
        assert_holds(&pool.open_map("m").unwrap(), records);
        let loaded = pool.open_map::<u64, u64>("loaded").unwrap();
        assert!(
            loaded
                .iter()
                .map(Result::unwrap)
                .eq((0..100_000).map(|i| (i, i)))
        );
        assert_eq!(loaded.check().unwrap(), [""; 0]);
    }
}

#[test]
fn a_pool_grows_and_shrinks_and_keeps_its_records() {
    for &kind in Kind::all() {
        let place = place();
        let pool = options(INTERVAL).create(&place.path).unwrap();
        let kept = pool.map_with::<u64, u64>("kept", kind).unwrap();
        for round in 0..3 {
            let big = pool.map_with::<u64, u64>("big", kind).unwrap();
            big.extend((0..150_000).map(|i| (key(i), i))).unwrap();
            kept.extend((round * 1000..(round + 1) * 1000).map(|i| (key(i), i)))
                .unwrap();
            drop(big);
            pool.drop_map("big").unwrap();
            let before = pool.stat().file_bytes;
            assert!(pool.shrink().unwrap() > 0);
            assert!(pool.stat().file_bytes < before);
            let copy = after_death(&place);
            let pool = PoolOptions::new().open(&copy.path).unwrap();
            assert_holds(&pool.open_map("kept").unwrap(), (round + 1) * 1000);
            assert_eq!(pool.check(), [""; 0]);
        }
    }
}

#[test]
fn threads_share_syncs_and_what_one_reads_is_durable() {
    let place = place();
    let pool = options(Durability::PowerLoss).create(&place.path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (map, done) = (&map, &done);
            scope.spawn(move || {
                for i in 0..20 {
                    map.insert(key(thread * 20 + i), thread * 20 + i).unwrap();
                    map.get(key(thread * 20 + i / 2)).unwrap().unwrap();
                    assert!(!map.insert_new(key(thread * 20 + i), 0).unwrap());
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let copy = after_death(&place);
    let pool = Pool::open(&copy.path).unwrap();
    assert_holds(&pool.open_map("m").unwrap(), 320);
}

#[test]
fn a_pool_has_one_log_by_whatever_path_it_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let (real, other) = (
        directory.path().join("real"),
        directory.path().join("other"),
    );
    std::fs::create_dir(&real).unwrap();
    std::fs::create_dir(&other).unwrap();
    let (path, link) = (real.join("a.pool"), other.join("link.pool"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let pool = options(Durability::PowerLoss).create(&path).unwrap();
    pool.map::<u64, u64>("m").unwrap().insert(1, 10).unwrap();
    let log = std::fs::read(log_of(&path)).unwrap();
    let file = std::fs::read(&path).unwrap();
    pool.close().unwrap();
    // What a process leaves that dies now.
    std::fs::write(log_of(&path), log).unwrap();
    std::fs::write(&path, file).unwrap();
    let pool = options(Durability::PowerLoss).open(&link).unwrap();
    assert!(log_of(&path).exists() && !log_of(&link).exists());
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.get(1).unwrap(), Some(10));
    drop(map);
    pool.close().unwrap();
    assert!(!log_of(&path).exists());
}

#[test]
fn a_close_removes_no_log_but_its_own() {
    let place = place();
    let pool = options(Durability::PowerLoss).create(&place.path).unwrap();
    // Somebody has moved the log away, and put another file there.
    std::fs::remove_file(log_of(&place.path)).unwrap();
    std::fs::write(log_of(&place.path), "precious").unwrap();
    pool.close().unwrap();
    assert_eq!(std::fs::read(log_of(&place.path)).unwrap(), b"precious");
}

/// Otherwise somebody else could not recover the pool after its process has died.
#[test]
fn who_may_use_a_pool_may_use_its_log() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    for asked in [0o600, 0o640, 0o660] {
        let place = place();
        let mut options = options(Durability::PowerLoss);
        let pool = options.mode(asked).create(&place.path).unwrap();
        assert_eq!(mode(&log_of(&place.path)), mode(&place.path));
        drop(pool);
    }
}

/// A log is not something to wait for, and a pool that cannot have one stays closed.
#[test]
fn a_log_that_is_no_file_is_refused_and_the_pool_stays_closed() {
    let place = place();
    let pool = options(Durability::PowerLoss).create(&place.path).unwrap();
    pool.map::<u64, u64>("m").unwrap().insert(1, 10).unwrap();
    pool.close().unwrap();
    let log = log_of(&place.path);
    let path = std::ffi::CString::new(log.to_str().unwrap()).unwrap();
    // SAFETY: the path is a string that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let refused = options(Durability::PowerLoss).open(&place.path);
    assert!(matches!(refused, Err(Error::Io { .. })), "{refused:?}");
    std::fs::remove_file(log).unwrap();
    let pool = options(Durability::PowerLoss)
        .open_read_only(&place.path)
        .unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.get(1).unwrap(), Some(10));
}

#[test]
fn a_file_in_memory_survives_no_power_cut() {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        return;
    }
    let directory = tempfile::tempdir_in(memory).unwrap();
    let path = directory.path().join("memory.pool");
    for durability in [Durability::PowerLoss, INTERVAL] {
        let refused = PoolOptions::new().durability(durability).create(&path);
        assert!(matches!(refused, Err(Error::NoPowerLossSafety(_))));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
    // As a copy of a pool that was on a disk, whose superblock makes the promise.
    let pool = options(INTERVAL).create(&path).unwrap();
    pool.map::<u64, u64>("m").unwrap().insert(1, 10).unwrap();
    pool.close().unwrap();
    let refused = Pool::open(&path);
    assert!(matches!(refused, Err(Error::NoPowerLossSafety(_))));
    let mut options = PoolOptions::new();
    let pool = options.durability(Durability::Process).open(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.get(1).unwrap(), Some(10));
}

#[test]
fn a_copy_that_is_made_while_the_pool_is_written_has_all_that_was_there_before() {
    for durability in [Durability::PowerLoss, INTERVAL] {
        let place = place();
        let mut options = options(durability);
        options.log_bytes(4 << 20);
        let pool = options.create(&place.path).unwrap();
        let map = pool.map::<u64, u64>("m").unwrap();
        map.extend((0..50_000).map(|i| (i, i))).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&stop);
            scope.spawn(|| {
                for i in 50_000.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    map.insert(i, i).unwrap();
                }
            });
            for round in 0..3 {
                let copy = place.path.with_extension(format!("copy{round}"));
                let before = map.len().unwrap();
                pool.backup(&copy).unwrap();
                assert!(matches!(pool.backup(&copy), Err(Error::Io { .. })));
                let after = map.len().unwrap();
                let copy = PoolOptions::new().open_read_only(&copy).unwrap();
                let copied = copy.open_map::<u64, u64>("m").unwrap();
                let records = copied.len().unwrap();
                assert!(
                    (before..=after).contains(&records),
                    "{before} {records} {after}"
                );
                // A state that the pool was in: the records without a gap.
                assert!(
                    copied
                        .iter()
                        .map(Result::unwrap)
                        .eq((0..records).map(|i| (i, i)))
                );
            }
        });
    }
    let place = place();
    let pool = Pool::create(&place.path).unwrap();
    let refused = pool.backup(place.path.with_extension("copy"));
    assert!(matches!(refused, Err(Error::BadOption(_))));
}

/// A child has all files of its parent open until it is another program, and with them their locks.
#[test]
fn a_copy_can_be_opened_at_once_also_while_children_are_started() {
    let place = place();
    let pool = options(INTERVAL).create(&place.path).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        for round in 0..40 {
            let copy = place.path.with_extension(format!("copy{round}"));
            pool.backup(&copy).unwrap();
            drop(PoolOptions::new().open_read_only(&copy).unwrap());
            drop(Pool::open(&copy).unwrap());
            assert_eq!(PoolOptions::new().verify_log(&copy).unwrap(), None);
            drop(Pool::open(&copy).unwrap());
        }
    });
}

#[test]
fn the_log_of_a_pool_that_was_not_closed_is_read_without_changing_it() {
    let place = place();
    let pool = options(Durability::PowerLoss).create(&place.path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    (0..100).for_each(|i| assert_eq!(map.insert(i, i).unwrap(), None));
    let copy = after_death(&place);
    let [first, second] =
        [0, 1].map(|_| PoolOptions::new().verify_log(&copy.path).unwrap().unwrap());
    assert_eq!(first, second);
    assert!(first.records >= 100 && first.bytes > 100 * 16, "{first:?}");
    assert!(matches!(
        PoolOptions::new().verify_log(&place.path),
        Err(Error::Locked(_))
    ));
    drop(map);
    pool.close().unwrap();
    assert_eq!(PoolOptions::new().verify_log(&place.path).unwrap(), None);
}

#[test]
fn spatial_indexes_share_the_log() {
    use indelible::{Box2, Point2};
    for durability in [Durability::PowerLoss, INTERVAL] {
        let place = place();
        let pool = options(durability).create(&place.path).unwrap();
        let places = pool.spatial::<Point2>("places").unwrap();
        let records = if durability == INTERVAL { 3000 } else { 100 };
        let point = |i: u64| Point2::new((i * 7 % 1000) as f64, (i * 13 % 1000) as f64);
        for i in 0..records {
            places.insert(point(i), i).unwrap();
        }
        places.remove(point(0), 0).unwrap();
        let copy = after_death(&place);
        let pool = Pool::open(&copy.path).unwrap();
        let copied = pool.open_spatial::<Point2>("places").unwrap();
        assert_eq!(copied.len().unwrap(), records - 1);
        let everything = Box2::new(Point2::new(-1.0, -1.0), Point2::new(1001.0, 1001.0));
        let mut found: Vec<u64> = (copied.intersecting(everything).unwrap())
            .map(|record| record.payload)
            .collect();
        found.sort_unstable();
        assert!(found.into_iter().eq(1..records));
        assert_eq!(copied.check().unwrap(), [""; 0]);
    }
}

#[test]
fn after_a_death_many_words_come_from_the_log_when_they_are_needed_and_sessions_follow_each_other()
{
    // More words than an open puts into memory itself, in a pool of many extents.
    const RECORDS: u64 = 300_000;
    for &kind in Kind::all().iter().filter(|kind| !kind.is_example()) {
        let mut place = place();
        let pool = options(INTERVAL).create(&place.path).unwrap();
        let map = pool.map_with::<u64, u64>("m", kind).unwrap();
        let keys = (0..RECORDS).step_by(2);
        let mut records: Vec<(u64, u64)> = keys.map(|i| (key(i), i)).collect();
        records.sort_unstable();
        map.bulk_load(records, 0.7).unwrap();
        let (mut map, mut pool) = (map, pool);
        let mut end = 1;
        // Sessions that die one after the other, some of them before what the one before has left is in the file.
        for session in 0..4 {
            let until = (end + 2 * 15_000).min(RECORDS);
            for i in (end..until).step_by(2) {
                map.insert(key(i), i).unwrap();
            }
            end = until;
            let next = after_death(&place);
            drop(map);
            drop(pool);
            place = next;
            pool = PoolOptions::new()
                .log_anywhere(true)
                .open(&place.path)
                .unwrap();
            map = pool.open_map::<u64, u64>("m").unwrap();
            // What is asked for first, beside the thread that provides the rest.
            let is_there = |i: &u64| i.is_multiple_of(2) || *i < end;
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let map = &map;
                    scope.spawn(move || {
                        for i in (thread..RECORDS).step_by(7) {
                            let expected = is_there(&i).then_some(i);
                            assert_eq!(
                                map.get(key(i)).unwrap(),
                                expected,
                                "{kind:?} {session} {i}"
                            );
                        }
                    });
                }
            });
            if session == 2 {
                // A pool that has been recovered can be copied, made shorter, and closed at once.
                let copy = place.path.with_extension("copy");
                pool.backup(&copy).unwrap();
                let copied = PoolOptions::new().log_anywhere(true).open(&copy).unwrap();
                let held = copied.open_map::<u64, u64>("m").unwrap();
                assert_eq!(held.check().unwrap(), [""; 0]);
                pool.shrink().unwrap();
            }
        }
        let count = (0..RECORDS)
            .filter(|i| i.is_multiple_of(2) || *i < end)
            .count() as u64;
        assert_eq!(map.len().unwrap(), count);
        assert_eq!(map.check().unwrap(), [""; 0]);
        drop(map);
        pool.close().unwrap();
        let pool = Pool::open(&place.path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        assert_eq!(map.len().unwrap(), count);
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}

/// The pool's own lock is on its file, and another file may get the pool's name.
#[test]
fn a_log_that_another_pool_uses_is_locked() {
    for durability in [Durability::PowerLoss, INTERVAL] {
        let place = place();
        let pool = options(durability).create(&place.path).unwrap();
        pool.map::<u64, u64>("m").unwrap();
        pool.close().unwrap();
        let restored = place.path.with_extension("restored");
        std::fs::copy(&place.path, &restored).unwrap();
        let pool = options(durability).open(&place.path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        map.insert(key(0), 0).unwrap();
        let moved = place.path.with_extension("moved");
        std::fs::rename(&place.path, &moved).unwrap();
        std::fs::rename(&restored, &place.path).unwrap();
        let refused = options(durability).open(&place.path);
        assert!(
            matches!(&refused, Err(Error::Locked(path)) if *path == log_of(&place.path)),
            "{refused:?}"
        );
        map.insert(key(1), 1).unwrap();
        drop(map);
        pool.close().unwrap();
        assert!(!log_of(&place.path).exists());
        for (path, records) in [(&moved, 2), (&place.path, 0)] {
            let pool = options(durability).open(path).unwrap();
            assert_holds(&pool.open_map("m").unwrap(), records);
        }
    }
}

#[test]
fn a_log_that_may_only_be_read_is_verified_and_by_many_at_once() {
    use std::os::unix::fs::PermissionsExt;
    let place = place();
    let pool = options(INTERVAL).create(&place.path).unwrap();
    pool.map::<u64, u64>("m").unwrap().insert(1, 10).unwrap();
    let copy = after_death(&place);
    let other = std::fs::File::open(log_of(&copy.path)).unwrap();
    other.try_lock_shared().unwrap();
    for path in [copy.path.clone(), log_of(&copy.path)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o400)).unwrap();
    }
    let verified = PoolOptions::new().verify_log(&copy.path).unwrap().unwrap();
    assert!(verified.records > 0, "{verified:?}");
}

/// A compaction moves inner nodes, which are neither flushed nor fenced here. What it stores in them must be in the log before another thread changes them.
#[test]
fn what_a_compaction_stores_in_inner_nodes_is_in_the_log_before_another_thread_changes_them() {
    const RECORDS: u64 = 66_000;
    let shape = |number: u64| Point2::new((number % 257) as f64, (number / 257) as f64);
    let place = place();
    let pool = options(INTERVAL).create(&place.path).unwrap();
    let options = FbrOptions::default().flush_leaves_only();
    let index = pool.spatial_with::<Point2>("s", options).unwrap();
    let records = (0..RECORDS).map(|number| (shape(number), number));
    index.bulk_load(records, 0.8).unwrap();
    // The bulk load puts what lies close together into one leaf: here room comes at the front of the file.
    let low = Box2::new(Point2::new(0.0, 0.0), Point2::new(70.0, 70.0));
    let removed = index.intersecting(low).unwrap();
    for record in removed {
        assert!(index.remove(record.shape, record.payload).unwrap());
    }
    index.compact().unwrap();
    let left = index.len().unwrap();
    std::thread::scope(|scope| {
        let insert = || {
            for number in 0..RECORDS / 2 {
                index.insert(shape(number * 2), RECORDS + number).unwrap();
            }
        };
        scope.spawn(insert).join().unwrap();
    });
    drop(index);
    pool.close().unwrap();
    let pool = PoolOptions::new().open(&place.path).unwrap();
    let index = pool.open_spatial::<Point2>("s").unwrap();
    assert_eq!(index.check().unwrap(), [""; 0]);
    assert_eq!(index.len().unwrap(), left + RECORDS / 2);
    let everything = Box2::new(Point2::new(-1.0, -1.0), Point2::new(1e3, 1e3));
    let found = index.intersecting(everything).unwrap().len() as u64;
    assert_eq!(found, left + RECORDS / 2);
}

/// The inner nodes of an open `fbr` with `flush=leaves` are built anew by the first open of the copy that may write.
#[test]
fn a_backup_with_an_open_spatial_index_is_read_once_it_has_been_recovered() {
    let kinds = SpatialKind::all().iter().copied();
    let mut all: Vec<SpatialOptions> = kinds.map(SpatialOptions::from).collect();
    all.push(FbrOptions::default().flush_leaves_only().into());
    for options in all {
        let place = place();
        let pool = self::options(INTERVAL).create(&place.path).unwrap();
        let keeps_back = options.to_string().contains("flush=leaves");
        let index = pool.spatial_with::<Point2>("s", options).unwrap();
        for number in 0..1_000 {
            index
                .insert(Point2::new(number as f64, 0.0), number)
                .unwrap();
        }
        let copy = place.path.with_extension("copy");
        pool.backup(&copy).unwrap();
        let read = || {
            let pool = PoolOptions::new().open_read_only(&copy).unwrap();
            pool.open_spatial::<Point2>("s")?.len()
        };
        if keeps_back {
            assert!(matches!(read(), Err(Error::NotClean)));
            let pool = PoolOptions::new().open(&copy).unwrap();
            drop(pool.open_spatial::<Point2>("s").unwrap());
            pool.close().unwrap();
        }
        assert_eq!(read().unwrap(), 1_000);
    }
}

thread_local! {
    /// Set before the thread writes to a pool: so its destructor runs after those of the library's variables.
    static AT_END: std::cell::RefCell<Option<AtEnd>> = const { std::cell::RefCell::new(None) };
}

/// Inserts records when it is dropped.
struct AtEnd(std::sync::Arc<indelible::Map<u64, u64>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        for key in 1..2_000 {
            self.0.insert(key, key).unwrap();
        }
    }
}

#[test]
fn what_a_thread_writes_when_it_ends_is_in_the_log() {
    for &kind in Kind::all() {
        let place = place();
        let pool = options(INTERVAL).create(&place.path).unwrap();
        let map = std::sync::Arc::new(pool.map_with::<u64, u64>("m", kind).unwrap());
        let of_thread = std::sync::Arc::clone(&map);
        let thread = std::thread::spawn(move || {
            AT_END.set(Some(AtEnd(std::sync::Arc::clone(&of_thread))));
            of_thread.insert(0, 0).unwrap();
        });
        thread.join().unwrap();
        drop(map);
        pool.close().unwrap();
        let pool = options(INTERVAL).open(&place.path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        assert_eq!(map.check().unwrap(), [""; 0], "{kind}");
        assert_eq!(map.iter().count(), 2_000, "{kind}");
    }
}
