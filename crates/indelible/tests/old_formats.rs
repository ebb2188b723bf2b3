//! A pool of every format that was ever released must open, or be refused by name.
//!
//! `formats/` has pools that the versions of their time have written, compressed: two maps of each kind of index that there was,
//! with 1,500 records of which every third has been removed, and a map from `i64` to `f64`. One pool was closed; the writer of the
//! other was killed. A new format gets its own files, made by the version before the next change. `loft-1` to `loft-3` are pools with a map of
//! kind LOFT as versions 1 to 3 of that kind's format had it, `slotted-1` one with a map of byte strings of version 1,
//! `slotted-1-typed` one with two typed maps of that version, one made with the options' defaults and one with `leaf=1024`.

use flate2::read::GzDecoder;
use indelible::{
    BytesMap, BytesOptions, Error, Kind, LoftOptions, Map, MapOptions, Pool, PoolOptions,
    SlottedOptions, StringKind, TypedMap,
};
use std::io::Read;
use std::path::{Path, PathBuf};

/// What the writers of the fixtures pretended the boot of their machine to be.
const BOOT: [u8; 16] = [7; 16];

fn unpacked(directory: &Path, name: &str) -> PathBuf {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    let packed = std::fs::File::open(packed.join(format!("{name}.pool.gz"))).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    let path = directory.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The map has 1,500 records, but for every third.
fn assert_records(pool: &Pool, name: &str) {
    let map: Map<u64, u64> = pool.open_map(name).unwrap();
    assert_eq!(map.check().unwrap(), [""; 0], "{name}");
    assert_eq!(map.len().unwrap(), 1_000, "{name}");
    for i in 0..1_500_u64 {
        let expected = (i % 3 != 0).then_some(i);
        assert_eq!(map.get(spread(i)).unwrap(), expected, "{name}, {i}");
    }
    let found = map.iter().map(Result::unwrap);
    let mut expected: Vec<(u64, u64)> = (0..1_500)
        .filter(|i| i % 3 != 0)
        .map(|i| (spread(i), i))
        .collect();
    expected.sort_unstable();
    assert!(found.eq(expected), "{name}");
}

fn spread(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn assert_contents(pool: &Pool) {
    assert_eq!(pool.check(), [""; 0]);
    for name in ["lbtree", "apex", "apex, plain"] {
        assert_records(pool, name);
    }
    let typed: Map<i64, f64> = pool.open_map("temperatures").unwrap();
    let all: Vec<(i64, f64)> = typed.iter().map(Result::unwrap).collect();
    let expected: Vec<(i64, f64)> = (-50..50).map(|i| (i, i as f64 / 4.0)).collect();
    assert_eq!(all, expected);
}

fn assert_options(pool: &Pool) {
    let of = |name| {
        let info = pool.maps().into_iter().find(|map| map.name == name);
        info.unwrap().options.to_string()
    };
    assert_eq!(of("lbtree"), "kind=lbtree,leaf=512");
    assert_eq!(of("apex"), "kind=apex,data=4K,stash=20");
    assert_eq!(of("apex, plain"), "kind=apex");
    // Asked for by these options, the maps open.
    for name in ["lbtree", "apex"] {
        let options: MapOptions = of(name).parse().unwrap();
        pool.map_with::<u64, u64>(name, options).unwrap();
    }
}

fn assert_usable(pool: &Pool) {
    for name in ["lbtree", "apex", "apex, plain"] {
        let map: Map<u64, u64> = pool.open_map(name).unwrap();
        for i in 0..3_000 {
            map.insert(i, i).unwrap();
        }
        for i in 0..3_000 {
            assert_eq!(map.remove(i).unwrap(), Some(i));
        }
        assert_eq!(map.insert(0, 1).unwrap(), None);
        assert_eq!(map.remove(0).unwrap(), Some(1));
    }
    pool.map::<u64, u64>("new").unwrap().insert(1, 1).unwrap();
    pool.drop_map("new").unwrap();
    pool.rename_map("apex, plain", "renamed").unwrap();
    pool.rename_map("renamed", "apex, plain").unwrap();
}

#[test]
fn a_closed_pool_of_format_1_opens_and_becomes_one_of_the_present_format() {
    let directory = tempfile::tempdir().unwrap();
    let path = unpacked(directory.path(), "format-1-closed");
    let read_only = PoolOptions::new().open_read_only(&path).unwrap();
    assert_contents(&read_only);
    assert_options(&read_only);
    drop(read_only);
    for _ in 0..2 {
        let pool = Pool::open(&path).unwrap();
        assert_contents(&pool);
        assert_options(&pool);
        assert_usable(&pool);
        assert_contents(&pool);
        pool.shrink().unwrap();
        assert_contents(&pool);
        pool.close().unwrap();
    }
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[8], 2, "the format of the superblock");
}

#[test]
fn a_pool_of_format_1_whose_writer_was_killed_opens() {
    let directory = tempfile::tempdir().unwrap();
    let path = unpacked(directory.path(), "format-1-killed");
    let pool = PoolOptions::new().boot_identity(BOOT).open(&path).unwrap();
    assert_contents(&pool);
    assert_options(&pool);
    assert_usable(&pool);
    pool.close().unwrap();
    assert_contents(&Pool::open(&path).unwrap());

    let path = unpacked(directory.path(), "format-1-killed");
    let refused = Pool::open(&path);
    assert!(matches!(refused, Err(Error::MachineWentDown)));
    let salvaged = PoolOptions::new().salvage(true).open(&path).unwrap();
    assert_contents(&salvaged);
}

#[test]
fn old_maps_of_loft_open_and_stay_usable() {
    let directory = tempfile::tempdir().unwrap();
    for name in [
        "loft-1-closed",
        "loft-1-killed",
        "loft-2-closed",
        "loft-2-killed",
        "loft-3-closed",
        "loft-3-killed",
    ] {
        let path = unpacked(directory.path(), name);
        for _ in 0..2 {
            let pool = PoolOptions::new().boot_identity(BOOT).open(&path).unwrap();
            assert_records(&pool, "loft");
            // What a program asks for that leaves all options at their defaults is what it has got then.
            let map: Map<u64, u64> = pool.map_with("loft", Kind::Loft).unwrap();
            let others = LoftOptions::default().max_data_bytes(16 << 10);
            let refused = pool.map_with::<u64, u64>("loft", others);
            assert!(matches!(refused, Err(Error::OtherOptions { .. })));
            // So many that nodes are laid out anew, and move.
            for i in 1_500..40_000 {
                assert_eq!(map.insert(spread(i), i).unwrap(), None);
            }
            assert_eq!(map.check().unwrap(), [""; 0]);
            for i in 1_500..40_000 {
                assert_eq!(map.remove(spread(i)).unwrap(), Some(i));
            }
            pool.shrink().unwrap();
            assert_records(&pool, "loft");
            drop(map);
            pool.close().unwrap();
        }
    }
}

fn string_key(i: u64) -> String {
    format!("https://example.org/{:x}/{i}", spread(i) >> 52)
}

fn string_value(i: u64) -> Vec<u8> {
    let times = match i {
        _ if i.is_multiple_of(50) => 3000,
        _ if i.is_multiple_of(7) => 300,
        _ => 8 + i % 40,
    };
    vec![b'a' + (i % 10) as u8; times as usize]
}

fn assert_strings(map: &BytesMap) {
    assert_eq!(map.check().unwrap(), [""; 0]);
    let all = (0..1_500_u64).filter(|i| !i.is_multiple_of(3));
    let mut expected: Vec<(Vec<u8>, Vec<u8>)> = all
        .map(|i| (string_key(i).into_bytes(), string_value(i)))
        .collect();
    expected.sort_unstable();
    assert!(map.iter().map(Result::unwrap).eq(expected));
}

/// Its leaves have 1 KiB, and values of more than 256 bytes are blobs. It stays so, and takes what a map of today would lay out otherwise.
#[test]
fn old_maps_of_byte_strings_open_and_stay_usable() {
    let directory = tempfile::tempdir().unwrap();
    let path = unpacked(directory.path(), "slotted-1-closed");
    for _ in 0..2 {
        let pool = Pool::open(&path).unwrap();
        let map = pool.bytes_with("names", StringKind::Slotted).unwrap();
        assert_strings(&map);
        for i in 1_500..20_000 {
            assert!(!map.insert(string_key(i), string_value(i)).unwrap());
        }
        assert_eq!(map.check().unwrap(), [""; 0]);
        let stat = map.stat().unwrap();
        assert_eq!(stat.fact("leaf-bytes").unwrap().value.as_f64(), 1024.0);
        for i in 1_500..20_000 {
            assert!(map.remove(string_key(i)).unwrap());
        }
        pool.shrink().unwrap();
        assert_strings(&map);
        drop(map);
        pool.close().unwrap();
    }
}

/// In that version the default was leaves of 1024 bytes, and the file does not tell who asked for them.
#[test]
fn old_maps_of_byte_strings_open_with_the_options_that_they_were_made_with() {
    let directory = tempfile::tempdir().unwrap();
    let asked = || BytesOptions::from(SlottedOptions::default().leaf_bytes(1024));
    let other = || BytesOptions::from(SlottedOptions::default().leaf_bytes(512));
    let pool = Pool::open(unpacked(directory.path(), "slotted-1-closed")).unwrap();
    assert_strings(&pool.bytes_with("names", asked()).unwrap());
    let refused = pool.bytes_with("names", other());
    assert!(matches!(refused, Err(Error::OtherOptions { .. })));
    let pool = Pool::open(unpacked(directory.path(), "slotted-1-typed")).unwrap();
    for name in ["default", "asked"] {
        for options in [asked(), BytesOptions::default()] {
            let map: TypedMap<String, u64> = pool.typed_with(name, options).unwrap();
            for i in 1..=3 {
                assert_eq!(map.get(format!("name {i}")).unwrap(), Some(i));
            }
            assert_eq!(map.check().unwrap(), [""; 0]);
        }
        let refused = pool.typed_with::<String, u64>(name, other());
        assert!(matches!(refused, Err(Error::OtherOptions { .. })));
    }
}
