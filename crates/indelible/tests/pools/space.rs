//! Pools and disks that are full, and space that is given back.

use crate::child::in_child;
use crate::kinds::{KINDS, map_of};
use crate::skipped::skipped;
use indelible::{Error, Kind, Map, Pool, PoolOptions};
use std::path::{Path, PathBuf};

const EXTENT: u64 = 2 << 20;

struct Place {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("test.pool");
    Place {
        _directory: directory,
        path,
    }
}

#[test]
fn a_bulk_load_without_room_is_an_error_and_leaves_nothing_behind() {
    // Two extents for data: beside the loaded leaves the old and the new root block, the empty leaf, and signposts.
    let most = 2 * EXTENT / 256;
    let mut outcomes = [0, 0];
    for leaves in (most - 60..most + 4).step_by(4) {
        let place = place();
        let pool = Pool::options()
            .max_bytes(3 * EXTENT)
            .create(&place.path)
            .unwrap();
        let map = map_of(&pool, Kind::LbTree);
        let records: Vec<(u64, u64)> = (0..leaves * 14).map(|i| (i, i)).collect();
        match map.bulk_load(&records, 1.0) {
            Ok(()) => outcomes[0] += 1,
            Err(Error::NoSpace(_)) => {
                outcomes[1] += 1;
                assert!(map.is_empty().unwrap());
                map.bulk_load(&records[..1000], 1.0).unwrap();
            }
            Err(error) => panic!("{error}"),
        }
        assert_eq!(map.check().unwrap(), [""; 0], "{leaves} leaves");
    }
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
}

/// Extents that have room for more than 5000 records. Some kinds of index have blocks of several sizes, and extents for each.
fn few_extents(kind: Kind) -> u64 {
    let pool = Pool::in_memory().unwrap();
    let map = map_of(&pool, kind);
    for i in 0..=5000_u64 {
        map.insert(i.wrapping_mul(0x9e37_79b9_7f4a_7c15), i)
            .unwrap();
    }
    let stat = pool.stat();
    // The first extent is the pool's own.
    stat.extents - stat.free_extents - 1
}

fn fill_up(map: &Map<u64, u64>) -> u64 {
    let mut i = 0_u64;
    loop {
        match map.insert(i.wrapping_mul(0x9e37_79b9_7f4a_7c15), i) {
            Ok(_) => i += 1,
            Err(Error::NoSpace(_)) => return i,
            Err(error) => panic!("{error}"),
        }
    }
}

fn assert_full_pool_lost_nothing(map: &Map<u64, u64>, records: u64) {
    assert!(records > 5000, "only {records} records fit");
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(map.len().unwrap(), records);
    for i in 0..records {
        let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert_eq!(map.get(key).unwrap(), Some(i));
        // Updates and removals need no space.
        assert_eq!(map.insert(key, i).unwrap(), Some(i));
    }
}

#[test]
fn a_full_pool_is_an_error_and_loses_nothing() {
    KINDS.iter().copied().for_each(fill_a_pool);
}

fn fill_a_pool(kind: Kind) {
    let few = few_extents(kind);
    for options in [
        PoolOptions::new().max_bytes((1 + 3 * few) * EXTENT),
        PoolOptions::new().max_bytes((1 + few) * EXTENT),
    ] {
        let place = place();
        let pool = options.create(&place.path).unwrap();
        let map = map_of(&pool, kind);
        map.warm_up().unwrap();
        let records = fill_up(&map);
        assert_full_pool_lost_nothing(&map, records);
        let many: Vec<(u64, u64)> = (0..400_000).map(|i| (i, i)).collect();
        let other = pool.map::<u64, u64>("other");
        if let Ok(other) = other {
            assert!(matches!(
                other.bulk_load(&many, 0.7),
                Err(Error::NoSpace(_))
            ));
            assert!(other.is_empty().unwrap());
        }
        // Removing makes room again.
        for i in 0..records / 2 {
            map.remove(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
        }
        assert_eq!(map.insert(1, 1).unwrap(), None);
    }
}

#[test]
fn a_pool_that_was_full_and_cleared_takes_as_much_again() {
    for kind in KINDS.iter().copied() {
        let few = few_extents(kind);
        let place = place();
        let pool = PoolOptions::new()
            .max_bytes((1 + 5 * few) * EXTENT)
            .create(&place.path)
            .unwrap();
        let map = map_of(&pool, kind);
        map.warm_up().unwrap();
        let small = pool.map::<u64, u64>("small").ok();
        let first = fill_up(&map);
        for round in 1..4 {
            map.clear().unwrap();
            let records = fill_up(&map);
            assert!(
                records * 10 > first * 9,
                "{kind}, round {round}: {records} records, and {first} before"
            );
        }
        map.clear().unwrap();
        // A kind that keeps its nodes when their records are removed frees them now.
        map.compact().unwrap();
        for other in small.into_iter().chain([pool.map("other").unwrap()]) {
            assert!(fill_up(&other) > 5000, "{kind}");
            assert_eq!(other.check().unwrap(), [""; 0]);
            other.clear().unwrap();
            other.compact().unwrap();
        }
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}

#[test]
fn threads_that_fill_a_pool_and_empty_it_lose_nothing() {
    const THREADS: u64 = 4;
    for kind in KINDS.iter().copied() {
        let few = few_extents(kind);
        let place = place();
        let pool = PoolOptions::new()
            .max_bytes((1 + 2 * few) * EXTENT)
            .create(&place.path)
            .unwrap();
        let map = map_of(&pool, kind);
        map.warm_up().unwrap();
        let work = |thread: u64| {
            let key = |i: u64| (i * THREADS + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for round in 0..3 {
                // Another round has other keys: they need the space of those that are gone.
                let first = round << 32;
                let inserted = (first..).find(|&i| match map.insert(key(i), i) {
                    Ok(before) => {
                        assert_eq!(before, None, "{kind}");
                        false
                    }
                    Err(Error::NoSpace(_)) => true,
                    Err(error) => panic!("{kind}: {error}"),
                });
                // A removal may have to wait for space too: that of a LOFT from a node that is being moved.
                let mut left: Vec<u64> = (first..inserted.unwrap()).collect();
                let begin = std::time::Instant::now();
                while !left.is_empty() {
                    assert!(
                        begin.elapsed().as_secs() < 60,
                        "{kind}: {} left",
                        left.len()
                    );
                    left.retain(|&i| match map.remove(key(i)) {
                        Ok(before) => {
                            assert_eq!(before, Some(i), "{kind}");
                            false
                        }
                        Err(Error::NoSpace(_)) => true,
                        Err(error) => panic!("{kind}: {error}"),
                    });
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let work = &work;
                scope.spawn(move || work(thread));
            }
        });
        assert_eq!(map.check().unwrap(), [""; 0], "{kind}");
        assert!(map.is_empty().unwrap());
        map.compact().unwrap();
        assert!(fill_up(&map) > 5000, "{kind}");
    }
}

#[test]
fn a_full_disk_is_an_error_and_never_a_signal() {
    KINDS.iter().copied().for_each(fill_a_disk);
}

fn fill_a_disk(kind: Kind) {
    let directory = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| {
        std::process::Command::new(arguments[0])
            .args(&arguments[1..])
            .status()
    };
    let at = directory.path().to_str().unwrap();
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", at])
        .is_ok_and(|status| status.success())
    {
        return skipped("a full disk, since this user may not mount a small tmpfs");
    }
    let tested = std::panic::catch_unwind(|| {
        let pool = Pool::create(directory.path().join("full.pool")).unwrap();
        let map = map_of(&pool, kind);
        map.warm_up().unwrap();
        let records = fill_up(&map);
        assert_full_pool_lost_nothing(&map, records);
        drop(map);
        pool.close().unwrap();
        let pool = Pool::open(directory.path().join("full.pool")).unwrap();
        assert_full_pool_lost_nothing(&map_of(&pool, kind), records);
    });
    assert!(mount(&["umount", at]).unwrap().success());
    tested.unwrap();
}

#[test]
fn growth_that_fails_at_every_step_in_turn_loses_nothing() {
    KINDS.iter().copied().for_each(fail_to_grow);
}

fn fail_to_grow(kind: Kind) {
    let few = few_extents(kind);
    for extents in 1 + few..4 + few {
        let place = place();
        let pool = PoolOptions::new()
            .max_bytes(extents * EXTENT)
            .create(&place.path)
            .unwrap();
        let map = map_of(&pool, kind);
        let records = fill_up(&map);
        drop(map);
        pool.close().unwrap();
        let pool = Pool::open(&place.path).unwrap();
        let map = pool.open_map::<u64, u64>("m").unwrap();
        assert_full_pool_lost_nothing(&map, records);
        map.insert(1, 1).unwrap();
    }
}

/// In a process of its own: no block is reused while any thread of the process is in the middle of an operation, and other tests have threads
/// that may have lost their core there.
#[test]
fn a_small_map_that_grew_from_nothing_takes_little_space() {
    let work = |_: &Path| {
        // The example engine needs a block for each record.
        for &kind in KINDS.iter().filter(|kind| !kind.is_example()) {
            let pool = Pool::in_memory().unwrap();
            let map = pool.map_with::<u64, u64>("m", kind).unwrap();
            let random = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..100_000).for_each(|i| assert_eq!(map.insert(random(i), i).unwrap(), None));
            assert_eq!(map.check().unwrap(), [""; 0]);
            let extents = map.stat().unwrap().file_bytes / EXTENT;
            assert!(extents <= 5, "{kind} takes {extents} extents");
        }
    };
    let test = "a_small_map_that_grew_from_nothing_takes_little_space";
    in_child(module_path!(), test, work);
}

#[test]
fn space_made_ready_ahead_is_given_back_after_a_crash_too() {
    let place = place();
    let length = |path: &Path| std::fs::metadata(path).unwrap().len();
    let pool = Pool::create(&place.path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    let mut records = 0;
    // Until there is more than the pool says. A thread does that, so for as long as it needs.
    while length(&place.path) <= pool.stat().file_bytes {
        assert_eq!(map.insert(records, records).unwrap(), None);
        records += 1;
    }
    let crashed = place.path.with_extension("crashed");
    std::fs::copy(&place.path, &crashed).unwrap();
    let bytes = pool.stat().file_bytes;
    drop((map, pool));
    assert_eq!(length(&place.path), bytes, "closed");
    assert!(length(&crashed) > bytes);
    let pool = Pool::open(&crashed).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    assert_eq!(map.len().unwrap(), records);
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert!(pool.shrink().unwrap() >= EXTENT);
    assert_eq!(length(&crashed), pool.stat().file_bytes);
    // What was cut off is had again, and grows on.
    for key in records..records + 400_000 {
        assert_eq!(map.insert(key, key).unwrap(), None);
    }
    assert_eq!(map.check().unwrap(), [""; 0]);
}

#[test]
fn dropped_space_is_used_again_and_shrink_gives_it_back() {
    KINDS.iter().copied().for_each(drop_and_shrink);
}

fn drop_and_shrink(kind: Kind) {
    let place = place();
    let pool = Pool::create(&place.path).unwrap();
    let records: Vec<(u64, u64)> = (0..200_000).map(|i| (i, i)).collect();
    pool.map::<u64, u64>("kept").unwrap().insert(1, 1).unwrap();
    let mut largest = 0;
    for round in 0..5 {
        let map = pool.map_with::<u64, u64>("big", kind).unwrap();
        map.bulk_load(&records, 0.7).unwrap();
        drop(map);
        let bytes = pool.stat().file_bytes;
        assert!(
            round == 0 || bytes <= largest + EXTENT,
            "the space of a dropped map is used again"
        );
        largest = largest.max(bytes);
        pool.drop_map("big").unwrap();
    }
    let given_back = pool.shrink().unwrap();
    assert!(given_back >= 2 * EXTENT, "{given_back}");
    assert_eq!(
        std::fs::metadata(&place.path).unwrap().len(),
        pool.stat().file_bytes
    );
    assert_eq!(
        pool.map::<u64, u64>("kept").unwrap().get(1).unwrap(),
        Some(1)
    );
    pool.map_with::<u64, u64>("big", kind)
        .unwrap()
        .bulk_load(&records, 0.7)
        .unwrap();
    assert!(
        pool.map::<u64, u64>("big")
            .unwrap()
            .iter()
            .map(Result::unwrap)
            .eq(records)
    );
    pool.close().unwrap();
    let pool = Pool::open(&place.path).unwrap();
    assert_eq!(pool.map::<u64, u64>("big").unwrap().len().unwrap(), 200_000);
}
