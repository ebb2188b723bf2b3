//! Full disks: an error, and never a signal, also if the file has holes or shares its blocks with another one.

use crate::death::log_of;
use crate::disks::{Disk, FileSystem, copy};
use indelible::{Durability, Error, Kind, Map, Pool, PoolOptions};
use std::path::Path;
use std::time::{Duration, Instant};

const EXTENT: u64 = 2 << 20;

/// Records of a pool of which a copy is made.
const RECORDS: u64 = 1000;

fn key(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A closed pool, of whose extents one is used to a small part and several are free.
fn make(path: &Path) {
    let pool = Pool::create(path).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    (0..RECORDS).for_each(|i| assert_eq!(map.insert(key(i), i).unwrap(), None));
    let other = pool.map::<u64, u64>("dropped").unwrap();
    (0..200_000).for_each(|i| assert_eq!(other.insert(i, i).unwrap(), None));
    drop((map, other));
    pool.drop_map("dropped").unwrap();
    pool.close().unwrap();
}

fn fill(map: &Map<u64, u64>, from: u64) -> u64 {
    for i in from.. {
        match map.insert(key(i), i) {
            Ok(before) => assert_eq!(before, None),
            Err(Error::NoSpace(_)) => return i,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

/// Stores to every record and everywhere that there is space.
fn use_all(pool: &Pool) {
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.len().unwrap(), RECORDS);
    let records = fill(&map, RECORDS);
    assert!(records > RECORDS);
    for i in 0..records {
        assert_eq!(map.insert(key(i), i).unwrap(), Some(i));
    }
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
    for i in 0..records {
        assert_eq!(map.remove(key(i)).unwrap(), Some(i));
    }
    (0..RECORDS).for_each(|i| assert_eq!(map.insert(key(i), i).unwrap(), None));
}

/// A pool that `cp` has copied needs blocks when it is opened, and then no more.
fn copy_and_use(kind: FileSystem, how: &str) {
    let Some(disk) = Disk::mount(kind, 48) else {
        return;
    };
    let (original, path) = (disk.path("original.pool"), disk.path("copy.pool"));
    make(&original);
    copy(how, &original, &path);
    let whole = std::fs::read(&original).unwrap();
    assert!(std::fs::read(&path).unwrap() == whole);
    if how == "--sparse=always" {
        punch_free_extents(&path);
    }
    let before = std::fs::read(&path).unwrap();
    let ballast = disk.fill("ballast");
    for _ in 0..2 {
        match Pool::open(&path) {
            Err(Error::NoSpace(_)) => {}
            other => panic!("{kind:?}, {how}: {other:?}"),
        }
        assert!(
            std::fs::read(&path).unwrap() == before,
            "a refused pool is not touched"
        );
    }
    disk.remove(&ballast);
    let pool = Pool::open(&path).unwrap();
    let free = pool.stat().free_extents;
    assert!(free > 1);
    let ballast = disk.fill("more");
    use_all(&pool);
    disk.remove(&ballast);
    // Free extents get their blocks when they are taken.
    let map = pool.open_map::<u64, u64>("m").unwrap();
    let mut records = RECORDS;
    while pool.stat().free_extents + 1 > free {
        match map.insert(key(records), records) {
            Ok(_) => records += 1,
            // The full disk is remembered for a moment.
            Err(error) => assert!(matches!(error, Error::NoSpace(_)), "{error}"),
        }
    }
    disk.fill("more");
    for i in RECORDS..records {
        assert_eq!(map.remove(key(i)).unwrap(), Some(i));
    }
    drop(map);
    use_all(&pool);
    pool.close().unwrap();
    // Now it has its blocks.
    let pool = Pool::open(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    for i in 0..RECORDS {
        assert_eq!(map.insert(key(i), i + 1).unwrap(), Some(i));
    }
    drop((map, pool));
    assert!(whole == std::fs::read(&original).unwrap());
}

/// Makes holes of the extents of a closed pool that are free.
fn punch_free_extents(path: &Path) {
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    for extent in 1..file.metadata().unwrap().len() / EXTENT {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, (64 << 10) + extent * 8)
            .unwrap();
        if word == [0; 8] {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, flags, extent * EXTENT, EXTENT).unwrap();
        }
    }
}

/// Makes a closed pool with a map of this kind, before which several extents are free.
fn make_behind_free_extents(kind: Kind, path: &Path) {
    let pool = Pool::create(path).unwrap();
    let filler = pool.map::<u64, u64>("f").unwrap();
    let records: Vec<(u64, u64)> = (0..500_000).map(|i| (i, i)).collect();
    filler.bulk_load(&records, 1.0).unwrap();
    let map = pool.map_with::<u64, u64>("m", kind).unwrap();
    (0..RECORDS).for_each(|i| assert_eq!(map.insert(key(i), i).unwrap(), None));
    drop((filler, map));
    pool.drop_map("f").unwrap();
    pool.close().unwrap();
}

/// Shrinks the pool, and returns how long its file is then.
fn shrink(path: &Path) -> u64 {
    let pool = Pool::open(path).unwrap();
    pool.shrink().unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.check().unwrap(), [""; 0]);
    (0..RECORDS).for_each(|i| assert_eq!(map.get(key(i)).unwrap(), Some(i)));
    assert_eq!(pool.check(), [""; 0]);
    std::fs::metadata(path).unwrap().len()
}

/// Blocks are moved into extents that have no blocks on the disk, which then get some.
#[test]
fn a_copy_with_holes_shrinks_as_its_original_does() {
    for &kind in Kind::all() {
        let directory = tempfile::tempdir().unwrap();
        let [original, copy] = ["original.pool", "copy.pool"].map(|it| directory.path().join(it));
        make_behind_free_extents(kind, &original);
        let before = std::fs::copy(&original, &copy).unwrap();
        punch_free_extents(&copy);
        let after = shrink(&copy);
        assert_eq!(after, shrink(&original), "{kind}");
        assert!(after < before, "{kind}: {before} to {after}");
    }
}

#[test]
fn a_copy_with_holes_on_tmpfs_has_its_memory_before_it_is_used() {
    copy_and_use(FileSystem::Tmpfs, "--sparse=always");
}

#[test]
fn a_copy_with_holes_on_ext4_has_its_blocks_before_it_is_used() {
    copy_and_use(FileSystem::Ext4, "--sparse=always");
}

#[test]
fn a_copy_with_holes_on_xfs_has_its_blocks_before_it_is_used() {
    copy_and_use(FileSystem::Xfs, "--sparse=always");
}

#[test]
fn a_copy_that_shares_its_blocks_on_xfs_has_its_own_before_it_is_used() {
    copy_and_use(FileSystem::Xfs, "--reflink=always");
}

#[test]
fn a_sparse_pool_on_a_full_tmpfs_is_read_or_refused() {
    let Some(disk) = Disk::mount(FileSystem::Tmpfs, 48) else {
        return;
    };
    let (original, path) = (disk.path("original.pool"), disk.path("copy.pool"));
    make(&original);
    copy("--sparse=always", &original, &path);
    let ballast = disk.fill("ballast");
    match PoolOptions::new().open_read_only(&path) {
        Err(Error::NoSpace(_)) => {}
        other => panic!("{other:?}"),
    }
    disk.remove(&ballast);
    let pool = PoolOptions::new().open_read_only(&path).unwrap();
    disk.fill("more");
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.check().unwrap(), [""; 0]);
    assert_eq!(pool.check(), [""; 0]);
    (0..RECORDS).for_each(|i| assert_eq!(map.get(key(i)).unwrap(), Some(i)));
}

/// A pool that the library has written itself is opened without a look at each extent: nothing is reserved, so also on a disk
/// that is full.
#[test]
fn a_pool_that_nobody_copied_is_opened_on_a_full_disk() {
    use FileSystem::{Ext4, Tmpfs, Xfs};
    for kind in [Tmpfs, Ext4, Xfs] {
        let Some(disk) = Disk::mount(kind, 48) else {
            continue;
        };
        let path = disk.path("original.pool");
        make(&path);
        disk.fill("ballast");
        use_all(&Pool::open(&path).unwrap());
        let pool = PoolOptions::new().open_read_only(&path).unwrap();
        assert_eq!(
            pool.open_map::<u64, u64>("m").unwrap().len().unwrap(),
            RECORDS
        );
    }
}

#[test]
fn inserts_into_a_full_disk_fail_fast_and_find_space_that_has_come_back() {
    for kind in [FileSystem::Tmpfs, FileSystem::Ext4] {
        let Some(disk) = Disk::mount(kind, 40) else {
            continue;
        };
        let pool = Pool::create(disk.path("full.pool")).unwrap();
        let map = pool.map::<u64, u64>("m").unwrap();
        let ballast = disk.fill("ballast");
        std::fs::File::options()
            .write(true)
            .open(&ballast)
            .and_then(|file| file.set_len(10 * EXTENT))
            .unwrap();
        let records = fill(&map, 0);
        let began = Instant::now();
        const TRIES: u32 = 500;
        let mut refused = 0;
        for i in 0..u64::from(TRIES) {
            match map.insert(key(records + i), records + i) {
                Err(Error::NoSpace(_)) => refused += 1,
                other => assert_eq!(other.unwrap(), None),
            }
        }
        let each = began.elapsed() / TRIES;
        eprintln!("{kind:?}: {records} records, {refused} of {TRIES} refused, {each:?} each");
        assert!(each < Duration::from_millis(1), "{kind:?}: {each:?}");
        disk.remove(&ballast);
        let began = Instant::now();
        let mut new = records + u64::from(TRIES);
        while pool.stat().file_bytes < 10 * EXTENT {
            match map.insert(key(new), new) {
                Ok(_) => new += 1,
                Err(Error::NoSpace(_)) => assert!(began.elapsed() < Duration::from_secs(5)),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}

/// A pool that was closed can be read also if there is no space for the log of a new session.
#[test]
fn a_closed_pool_without_space_for_a_log_stays_closed() {
    let Some(disk) = Disk::mount(FileSystem::Ext4, 24) else {
        return;
    };
    let path = disk.path("a.pool");
    let mut options = PoolOptions::new();
    options.durability(Durability::PowerLoss);
    let pool = options.create(&path).unwrap();
    pool.map::<u64, u64>("m").unwrap().insert(1, 10).unwrap();
    pool.close().unwrap();
    let fill = disk.fill("fill");
    let refused = options.open(&path);
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    assert!(!log_of(&path).exists());
    let pool = options.open_read_only(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert_eq!(map.get(1).unwrap(), Some(10));
    drop((map, pool));
    disk.remove(&fill);
    options.open(&path).unwrap().close().unwrap();
}

/// With an interval the log is stored to by way of a mapping. It has blocks of its own before the first store.
#[test]
fn a_log_that_shared_its_blocks_needs_none_on_a_full_disk() {
    let Some(disk) = Disk::mount(FileSystem::Xfs, 300) else {
        return;
    };
    let [original, path] = ["original.pool", "copy.pool"].map(|name| disk.path(name));
    let mut options = PoolOptions::new();
    options.durability(Durability::Interval(Duration::from_millis(10)));
    let pool = options.create(&original).unwrap();
    let map = pool.map::<u64, u64>("m").unwrap();
    (0..RECORDS).for_each(|i| assert_eq!(map.insert(key(i), i).unwrap(), None));
    pool.sync().unwrap();
    // What a process leaves that dies now. The close removes the log, but not its blocks, which are those of another file, too.
    for copied in [log_of(&path), disk.path("another")] {
        copy("--reflink=always", &log_of(&original), &copied);
    }
    std::fs::write(&path, std::fs::read(&original).unwrap()).unwrap();
    drop(map);
    pool.close().unwrap();
    let pool = options.open(&path).unwrap();
    let map = pool.open_map::<u64, u64>("m").unwrap();
    map.insert(key(0), 0).unwrap();
    disk.fill("ballast");
    for i in (0..RECORDS).cycle().take(50_000) {
        assert_eq!(map.insert(key(i), i).unwrap(), Some(i));
    }
    pool.sync().unwrap();
    (0..RECORDS).for_each(|i| assert_eq!(map.get(key(i)).unwrap(), Some(i)));
}
