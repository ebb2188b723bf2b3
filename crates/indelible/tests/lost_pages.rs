//! Pages that never reached the disk: of each page of a pool in turn that holds anything, the file has zeros. Such a pool is
//! refused, or what was lost is reported, or all records are there. It is never accepted with records missing.

use indelible::{ApexTuning, Kind, Map, MapOptions, Pool, PoolOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAGE: usize = 4096;

/// Name and records of a map.
type Contents = (&'static str, Vec<(u64, u64)>);

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

fn sorted(keys: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut keys: Vec<u64> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|key| (key, !key)).collect()
}

/// Records of all kinds of shapes: some maps are loaded, the others grow by inserts in a random order.
fn contents() -> Vec<Contents> {
    let ends = [0, 1, 1 << 63, u64::MAX - 1, u64::MAX];
    let cluster = |key: u64| (mix(key / 500) << 20) + key % 500 * 3;
    // Crowded keys, of which most are in the stash and in extended stash blocks, and one far away.
    let crowds = (0..3_000).map(|key| (1_u64 << (20 + key % 40)) + key / 40);
    vec![
        ("uniform", sorted((0..12_000).map(mix).chain(ends))),
        ("loaded uniform", sorted((0..12_000).map(mix).chain(ends))),
        ("clusters", sorted((0..10_000).map(cluster))),
        (
            "loaded clusters",
            sorted((0..10_000).map(cluster).chain(ends)),
        ),
        ("ascending", sorted(0..10_000)),
        ("crowds", sorted(crowds.chain([0, u64::MAX]))),
        // Slots of inner nodes that take several pages, many of them in a row without a child of their own.
        (
            "loaded into small nodes",
            sorted((0..15_000).map(|key| mix(key) >> 2).chain(ends)),
        ),
        ("few", sorted([0, 7, 1 << 40, u64::MAX].into_iter())),
        ("none", Vec::new()),
    ]
}

fn fill(map: &Map<u64, u64>, name: &str, records: &[(u64, u64)]) {
    if name.starts_with("loaded") {
        return map.bulk_load(records, 0.7).unwrap();
    }
    let mut records = records.to_vec();
    if name != "ascending" {
        records.sort_by_key(|record| mix(record.0));
    }
    for &(key, value) in &records {
        assert_eq!(map.insert(key, value).unwrap(), None);
    }
}

/// Why a pool is refused, or what is wrong with it, or what it lacks without saying so.
enum Found {
    Everything,
    Damage,
    Loss(String),
}

/// What somebody who salvages the pool at `path` finds.
fn salvage(path: &Path, contents: &[Contents]) -> Found {
    let Ok(pool) = PoolOptions::new().salvage(true).open(path) else {
        return Found::Damage;
    };
    for (name, records) in contents {
        let Ok(map) = pool.open_map::<u64, u64>(name) else {
            return Found::Damage;
        };
        if !map.check().is_ok_and(|problems| problems.is_empty()) {
            return Found::Damage;
        }
        if !map.iter().eq(records.iter().copied()) || map.len().unwrap() != records.len() as u64 {
            return Found::Loss(format!("{} of {name}", map.iter().count()));
        }
    }
    Found::Everything
}

#[test]
fn a_page_that_was_lost_is_never_taken_for_one_without_records() {
    [Kind::LbTree, Kind::Apex]
        .into_iter()
        .for_each(lose_each_page);
}

fn lose_each_page(kind: Kind) {
    let directory =
        tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
    let (path, image) = (
        directory.path().join("whole.pool"),
        directory.path().join("image"),
    );
    let contents = contents();
    // The machine goes down, another one than this, while the pool is open: nothing says how many records there were.
    let pool = Pool::options()
        .huge_pages(false)
        .boot_identity([9; 16])
        .create(&path)
        .unwrap();
    for (name, records) in &contents {
        let max_data_bytes = if name.ends_with("small nodes") {
            1 << 10
        } else {
            ApexTuning::default().max_data_bytes
        };
        let apex = ApexTuning {
            max_data_bytes,
            ..ApexTuning::default()
        };
        let options = MapOptions {
            kind,
            apex,
            ..MapOptions::default()
        };
        fill(&pool.map_with(name, options).unwrap(), name, records);
    }
    std::fs::copy(&path, &image).unwrap();
    drop(pool);
    let whole = std::fs::read(&image).unwrap();
    let (mut lost, mut damaged, mut unharmed) = (Vec::new(), 0, 0);
    for (number, page) in whole.chunks(PAGE).enumerate() {
        if page.iter().all(|&byte| byte == 0) {
            continue;
        }
        let at = (number * PAGE) as u64;
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(&vec![0; page.len()], at).unwrap();
        match salvage(&image, &contents) {
            Found::Everything => unharmed += 1,
            Found::Damage => damaged += 1,
            Found::Loss(what) => lost.push(format!("{at:#x}: {what}")),
        }
        // What was accepted has been opened and closed, and the superblocks and the catalog say so.
        for (page, at) in [(page, at), (&whole[..64 << 10], 0)] {
            file.write_all_at(page, at).unwrap();
        }
        file.set_len(whole.len() as u64).unwrap();
    }
    println!(
        "{kind}: {damaged} lost pages are found, {unharmed} did no harm, {} are accepted with records missing",
        lost.len()
    );
    assert!(lost.is_empty(), "{kind}: {lost:#?}");
    assert!(damaged > 100, "{kind}: {damaged}");
}
