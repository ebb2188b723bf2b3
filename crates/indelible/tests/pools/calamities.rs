//! Everything that can happen to a pool, each with its own error and nothing lost.

use crate::kinds::{KINDS, map_of};
use indelible::{Durability, Error, Kind, LbTreeOptions, Pool, PoolOptions};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const EXTENT: u64 = 2 << 20;
const CATALOG: u64 = 8192;
const TABLE: u64 = 64 << 10;

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

/// A closed pool with records 0..1000 in map "m", for what is the same with every kind of index.
fn filled() -> Place {
    filled_with(Kind::default())
}

/// The same with a map of this kind.
fn filled_with(kind: Kind) -> Place {
    let place = place();
    let pool = Pool::create(&place.path).unwrap();
    let map = map_of(&pool, kind);
    (0..1000).for_each(|i| assert_eq!(map.insert(i, i).unwrap(), None));
    drop(map);
    pool.close().unwrap();
    place
}

fn assert_filled(pool: &Pool) {
    let map = pool.open_map::<u64, u64>("m").unwrap();
    assert!(map.iter().map(Result::unwrap).eq((0..1000).map(|i| (i, i))));
    assert_eq!(map.len().unwrap(), 1000);
    assert_eq!(map.check().unwrap(), [""; 0]);
}

fn writable(path: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn flip(path: &Path, at: u64) {
    let file = writable(path);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// A copy of an open pool's file: what a process that died now would leave.
fn crash_image(place: &Place) -> PathBuf {
    let image = place.path.with_extension("image");
    std::fs::copy(&place.path, &image).unwrap();
    image
}

/// A copy of the file as it was when another machine went down with the pool open.
fn image_from_another_boot(place: &Place) -> PathBuf {
    let _pool = PoolOptions::new()
        .boot_identity([9; 16])
        .open(&place.path)
        .unwrap();
    crash_image(place)
}

#[test]
fn a_flipped_byte_in_either_superblock_is_repaired_and_in_both_is_refused() {
    for copy in [0, 4096] {
        for byte in [0, 9, 17, 30, 40, 50, 64, 70, 80, 90, 97] {
            let place = filled();
            flip(&place.path, copy + byte);
            assert_filled(&Pool::open(&place.path).unwrap());
            // The open has repaired it: now the other one may go.
            flip(&place.path, 4096 - copy + byte);
            assert_filled(&Pool::open(&place.path).unwrap());
        }
    }
    let place = filled();
    flip(&place.path, 50);
    flip(&place.path, 4096 + 50);
    assert!(matches!(Pool::open(&place.path), Err(Error::Damaged(_))));
    flip(&place.path, 50);
    assert_filled(&Pool::open(&place.path).unwrap());
}

#[test]
fn foreign_empty_and_truncated_files_are_refused_by_name_and_left_alone() {
    let place = place();
    for content in [
        vec![],
        vec![7; 3],
        vec![7; 100_000],
        b"PK\x03\x04 and so on".to_vec(),
    ] {
        std::fs::write(&place.path, &content).unwrap();
        assert!(matches!(Pool::open(&place.path), Err(Error::NotAPool(_))));
        assert!(matches!(
            PoolOptions::new().open_or_create(&place.path),
            Err(Error::NotAPool(_))
        ));
        assert_eq!(std::fs::read(&place.path).unwrap(), content);
    }
    assert!(matches!(
        Pool::open(place.path.parent().unwrap()),
        Err(Error::NotAPool(_) | Error::Io { .. })
    ));
    assert!(matches!(
        Pool::open(place.path.with_extension("none")),
        Err(Error::Io { .. })
    ));
    assert!(
        matches!(Pool::create(&place.path), Err(Error::Io { .. })),
        "create does not overwrite"
    );

    let whole = filled();
    let length = std::fs::metadata(&whole.path).unwrap().len();
    for shorter in [length - 1, length - EXTENT, 10_000, 5000] {
        let cut = whole.path.with_extension("cut");
        std::fs::copy(&whole.path, &cut).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&cut)
            .unwrap()
            .set_len(shorter)
            .unwrap();
        match Pool::open(&cut) {
            Err(Error::Truncated { expected, actual }) => {
                assert_eq!((expected, actual), (length, shorter))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let place = filled();
    let file = writable(&place.path);
    let mut bytes = [0; 104];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes[8] = 4;
    let checksum = u64::from(crc32fast::hash(&bytes[..96]));
    bytes[96..].copy_from_slice(&checksum.to_ne_bytes());
    file.write_all_at(&bytes, 0).unwrap();
    file.write_all_at(&bytes, 4096).unwrap();
    assert!(matches!(
        Pool::open(&place.path),
        Err(Error::NewerFormat {
            found: 4,
            supported: 3
        })
    ));
}

#[test]
fn a_second_writer_is_locked_out_and_readers_share_a_closed_pool() {
    KINDS.iter().copied().for_each(lock_out);
}

fn lock_out(kind: Kind) {
    let place = filled_with(kind);
    let pool = Pool::open(&place.path).unwrap();
    assert!(matches!(Pool::open(&place.path), Err(Error::Locked(_))));
    assert!(matches!(
        PoolOptions::new().open_read_only(&place.path),
        Err(Error::Locked(_))
    ));
    pool.close().unwrap();
    let first = PoolOptions::new().open_read_only(&place.path).unwrap();
    let second = PoolOptions::new().open_read_only(&place.path).unwrap();
    assert!(matches!(Pool::open(&place.path), Err(Error::Locked(_))));
    for pool in [first, second] {
        assert_filled(&pool);
        let map = pool.open_map::<u64, u64>("m").unwrap();
        assert!(matches!(map.insert(1, 2), Err(Error::ReadOnly)));
        assert!(matches!(map.remove(1), Err(Error::ReadOnly)));
        assert!(matches!(map.insert_batch(&[(1, 2)]), Err(Error::ReadOnly)));
        assert!(matches!(map.bulk_load([(1, 2)], 0.7), Err(Error::ReadOnly)));
        assert!(matches!(pool.map::<u64, u64>("new"), Err(Error::ReadOnly)));
        assert!(matches!(pool.drop_map("m"), Err(Error::ReadOnly)));
        assert!(matches!(pool.shrink(), Err(Error::ReadOnly)));
    }
}

#[test]
fn a_pool_that_was_not_closed_is_not_opened_read_only() {
    KINDS.iter().copied().for_each(leave_open);
}

fn leave_open(kind: Kind) {
    let place = filled_with(kind);
    let pool = Pool::open(&place.path).unwrap();
    let image = crash_image(&place);
    drop(pool);
    assert!(matches!(
        PoolOptions::new().open_read_only(&image),
        Err(Error::NotClean)
    ));
    assert_filled(&Pool::open(&image).unwrap());
}

#[test]
fn when_the_machine_went_down_an_open_pool_is_refused_until_salvaged_and_a_closed_one_is_not() {
    KINDS.iter().copied().for_each(go_down);
}

fn go_down(kind: Kind) {
    let place = filled_with(kind);
    let rebooted = |salvage| {
        PoolOptions::new()
            .boot_identity([9; 16])
            .salvage(salvage)
            .clone()
    };
    // Closed before: good across reboots.
    let pool = rebooted(false).open(&place.path).unwrap();
    let image = crash_image(&place);
    pool.close().unwrap();
    // The image says that it is open on the machine with boot identity 9.
    assert!(matches!(Pool::open(&image), Err(Error::MachineWentDown)));
    assert_filled(&rebooted(false).open(&image).unwrap());
    let image = {
        let _pool = rebooted(false).open(&place.path).unwrap();
        crash_image(&place)
    };
    assert_filled(&PoolOptions::new().salvage(true).open(&image).unwrap());
    assert_filled(&Pool::open(&image).unwrap());
}

#[test]
fn salvage_refuses_what_is_not_whole_and_leaves_it_as_it_is() {
    KINDS.iter().copied().for_each(damage_and_salvage);
}

fn damage_and_salvage(kind: Kind) {
    let place = filled_with(kind);
    let image = image_from_another_boot(&place);
    let file = writable(&image);
    // Where the leaves of a thousand records are: at the beginning of the extents.
    for extent in 1..file.metadata().unwrap().len() / EXTENT {
        file.write_all_at(&[0xa5; 8192], extent * EXTENT + 512)
            .unwrap();
    }
    let before = std::fs::read(&image).unwrap();
    assert!(
        matches!(
            PoolOptions::new().salvage(true).open(&image),
            Err(Error::Damaged(_))
        ),
        "{kind}"
    );
    assert!(
        std::fs::read(&image).unwrap() == before,
        "a refused pool is not touched"
    );
    assert!(matches!(Pool::open(&image), Err(Error::MachineWentDown)));
}

/// Offset of the first leaf of the first map, an LB+-tree.
fn first_leaf(image: &Path) -> u64 {
    let file = std::fs::File::open(image).unwrap();
    let word = |at| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    };
    word(word(8192 + 16))
}

#[test]
fn salvage_does_not_take_a_lost_leaf_for_an_empty_one() {
    let place = filled_with(Kind::LbTree);
    let image = image_from_another_boot(&place);
    let file = OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[0; 256], first_leaf(&image)).unwrap();
    assert!(matches!(
        PoolOptions::new().salvage(true).open(&image),
        Err(Error::Damaged(_))
    ));
}

#[test]
fn without_a_boot_identity_every_machine_may_have_gone_down() {
    let place = filled();
    let nowhere = PoolOptions::new().boot_identity([0; 16]).clone();
    let pool = nowhere.open(&place.path).unwrap();
    let image = crash_image(&place);
    drop(pool);
    assert!(matches!(nowhere.open(&image), Err(Error::MachineWentDown)));
    assert_filled(&nowhere.clone().salvage(true).open(&image).unwrap());
}

#[test]
fn of_threads_that_create_the_same_pool_one_wins_and_nothing_else_is_left() {
    for _ in 0..20 {
        let place = place();
        let start = std::sync::Barrier::new(4);
        let pools: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        Pool::options().open_or_create(&place.path)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(pools.iter().filter(|pool| pool.is_ok()).count(), 1);
        for error in pools.iter().filter_map(|pool| pool.as_ref().err()) {
            assert!(matches!(error, Error::Locked(_)), "{error}");
        }
        let files = std::fs::read_dir(place.path.parent().unwrap()).unwrap();
        assert_eq!(files.count(), 1);
    }
}

#[test]
fn power_loss_safety_is_refused_where_it_cannot_be_had_unless_forced() {
    KINDS.iter().copied().for_each(force_power_loss);
}

fn force_power_loss(kind: Kind) {
    let mut place = place();
    let options = PoolOptions::new().durability(Durability::PowerLoss).clone();
    // On a disk there is a log; where files are memory nothing helps.
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        place.path = memory.path().join("test.pool");
        place._directory = memory;
        assert!(matches!(
            options.create(&place.path),
            Err(Error::NoPowerLossSafety(_))
        ));
        assert!(!place.path.exists(), "a refused pool leaves no file");
    }
    let pool = options
        .clone()
        .force_power_loss_protocol(true)
        .create(&place.path)
        .unwrap();
    let map = map_of(&pool, kind);
    (0..1000).for_each(|i| assert_eq!(map.insert(i, i).unwrap(), None));
    assert_filled(&pool);
}

#[test]
fn maps_are_made_found_refused_and_dropped_by_name() {
    let place = place();
    let pool = Pool::create(&place.path).unwrap();
    assert!(matches!(
        pool.open_map::<u64, u64>("m"),
        Err(Error::NoSuchMap(_))
    ));
    assert!(matches!(pool.map::<u64, u64>(""), Err(Error::BadName(0))));
    assert!(matches!(
        pool.map::<u64, u64>(&"x".repeat(64)),
        Err(Error::BadName(64))
    ));
    assert!(matches!(
        pool.map_with::<u64, u64>("m", LbTreeOptions::default().leaf_bytes(300)),
        Err(Error::BadOption(_))
    ));
    let map = pool.map::<u64, i64>("m").unwrap();
    assert!(matches!(
        pool.map::<i64, i64>("m"),
        Err(Error::WrongType { .. })
    ));
    assert!(matches!(
        pool.map::<u64, f64>("m"),
        Err(Error::WrongType { .. })
    ));
    map.insert(1, -1).unwrap();
    assert_eq!(
        pool.map::<u64, i64>("m").unwrap().get(1).unwrap(),
        Some(-1),
        "two handles, one map"
    );
    assert!(matches!(pool.drop_map("m"), Err(Error::InUse(_))));
    drop(map);
    pool.drop_map("m").unwrap();
    assert!(pool.maps().is_empty());
    assert!(matches!(pool.drop_map("m"), Err(Error::NoSuchMap(_))));
    for i in 0..128 {
        pool.map::<u64, ()>(&format!("map {i}")).unwrap();
    }
    assert!(matches!(
        pool.map::<u64, ()>("one more"),
        Err(Error::TooManyMaps(128))
    ));
    assert!(matches!(pool.clone().close(), Err(Error::InUse(_))));
}

#[test]
fn a_map_of_an_unknown_kind_is_refused_by_name_and_left_alone() {
    let place = filled();
    let file = writable(&place.path);
    // The first byte of the shape in the first catalog entry.
    let at = 8192 + 8;
    let mut kind = [0];
    file.read_exact_at(&mut kind, at).unwrap();
    file.write_all_at(&[200], at).unwrap();
    let pool = Pool::open(&place.path).unwrap();
    assert!(pool.maps().is_empty());
    match pool.map::<u64, u64>("m") {
        Err(Error::WrongType { found, .. }) => assert!(found.contains("does not know"), "{found}"),
        other => panic!("{other:?}"),
    }
    pool.close().unwrap();
    file.write_all_at(&kind, at).unwrap();
    assert_filled(&Pool::open(&place.path).unwrap());
}

#[test]
fn a_map_of_another_kind_is_opened_only_if_any_will_do() {
    for &kind in KINDS {
        let place = filled_with(kind);
        let pool = Pool::open(&place.path).unwrap();
        assert_eq!(pool.maps()[0].kind(), kind);
        for &asked in KINDS {
            assert_eq!(map_of(&pool, asked).stat().unwrap().kind, kind);
            let opened = pool.map_with::<u64, u64>("m", asked);
            match opened {
                Ok(_) => assert_eq!(asked, kind),
                Err(Error::OtherOptions { found, wanted, .. }) => {
                    assert_eq!(
                        [found, wanted],
                        [kind, asked].map(|kind| format!("kind={kind}"))
                    );
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_filled(&pool);
    }
}

#[test]
fn the_generation_counts_opens_for_writing() {
    let place = filled();
    let first = Pool::open(&place.path).unwrap().stat().generation;
    assert_eq!(
        PoolOptions::new()
            .open_read_only(&place.path)
            .unwrap()
            .stat()
            .generation,
        first
    );
    assert_eq!(
        Pool::open(&place.path).unwrap().stat().generation,
        first + 1
    );
}

#[test]
fn a_damaged_tree_is_an_error_and_not_a_crash() {
    KINDS.iter().copied().for_each(damage_and_use);
}

fn damage_and_use(kind: Kind) {
    for seed in 0..40_u64 {
        let place = filled_with(kind);
        let file = writable(&place.path);
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The leaves of a thousand records lie at the beginning of the extents.
        for extent in 1..file.metadata().unwrap().len() / EXTENT {
            let at = extent * EXTENT + (random >> 20) % (256 * 110);
            file.write_all_at(&random.to_ne_bytes(), at & !7).unwrap();
        }
        drop(file);
        let Ok(pool) = Pool::open(&place.path) else {
            continue;
        };
        let Ok(map) = pool.open_map::<u64, u64>("m") else {
            continue;
        };
        for key in 0..1000 {
            let _ = map.get(key);
        }
        map.iter().take(2000).for_each(drop);
        let _ = map.check();
        let _ = map.len();
    }
}

fn is_damaged(result: indelible::Result<Pool>) -> bool {
    matches!(result, Err(Error::Damaged(_)))
}

/// Else one map's sweep, or its removal, would take extents away from another one.
#[test]
fn a_pool_in_which_maps_share_extents_is_refused() {
    let place = place();
    let path = &place.path;
    let pool = Pool::create(path).unwrap();
    for name in ["m", "other"] {
        let map = pool.map::<u64, u64>(name).unwrap();
        map.insert(1, 1).unwrap();
    }
    pool.close().unwrap();
    let file = writable(path);
    let get = |at| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    };
    let set = |at, word: u64| file.write_all_at(&word.to_ne_bytes(), at).unwrap();
    let owners = [CATALOG, CATALOG + 256].map(get);
    let mut table = (1..file.metadata().unwrap().len() / EXTENT).map(|extent| TABLE + extent * 8);
    let owned = table.find(|&at| get(at) & 0xffff_ffff == owners[0]);
    let table_word = owned.unwrap();
    let run = |length: u64| owners[0] | 2 << 32 | length << 40;
    for (at, damage) in [
        (CATALOG + 256, owners[0]),
        (CATALOG + 256, owners[0] | 1 << 40),
        // The first extent of a run, but those behind it are others'.
        (table_word, run(2)),
        (table_word, run(1 << 23)),
    ] {
        let before = get(at);
        set(at, damage);
        assert!(is_damaged(Pool::open(path)), "{damage:#x} at {at:#x}");
        assert!(is_damaged(PoolOptions::new().open_read_only(path)));
        set(at, before);
    }
    let pool = Pool::open(path).unwrap();
    assert_eq!(pool.check(), [""; 0]);
    for name in ["m", "other"] {
        let map = pool.open_map::<u64, u64>(name).unwrap();
        assert_eq!(map.get(1).unwrap(), Some(1));
    }
}
