//! Pages that never reached the disk: each page of a pool that is not zero is replaced by zeros in turn. Such a pool is refused,
//! or a check reports the damage, or all records are there. It is never accepted with records missing.

#![allow(dead_code, reason = "no test needs all of it")]

use indelible::{Map, MapOptions, Pool, PoolOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAGE: usize = 4096;

/// How many pages of one pool are lost, each in its turn, at most: of some pools each one, of those with many pages one in a few. With
/// `INDELIBLE_DEEP=1` each one is lost.
const MOST_PAGES: usize = 300;

/// Whether the tests take hours, and not minutes.
pub fn is_deep() -> bool {
    std::env::var_os("INDELIBLE_DEEP").is_some()
}

/// Name and records of a map.
pub type Contents = (&'static str, Vec<(u64, u64)>);

pub fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

pub fn sorted(keys: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut keys: Vec<u64> = keys.collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().map(|key| (key, !key)).collect()
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

/// How a pool with a lost page was found.
pub enum Found {
    Everything,
    /// The pool or a map was refused, or a check reports problems.
    Damage,
    /// Everything was accepted, but records are missing: of which map.
    Loss(String),
}

/// Opens the pool at `path` for salvage, checks all of its maps and compares their contents.
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
        let Ok(found) = map.iter().collect::<indelible::Result<Vec<_>>>() else {
            return Found::Damage;
        };
        if found != *records || map.len().unwrap() != records.len() as u64 {
            return Found::Loss(format!("{} of {name}", found.len()));
        }
    }
    Found::Everything
}

/// How many lost pages were found and how many did no harm, and what was lost without a word.
#[derive(Default)]
pub struct Pages {
    pub damaged: u64,
    pub unharmed: u64,
    pub lost: Vec<String>,
}

/// Loses each page of a pool that `fill` has filled. `salvage` opens the pool at a path.
pub fn lose_each_page_of(fill: impl FnOnce(&Pool), salvage: impl Fn(&Path) -> Found) -> Pages {
    let directory =
        tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
    let (path, image) = (
        directory.path().join("whole.pool"),
        directory.path().join("image"),
    );
    // The machine goes down while the pool is open, so nothing in the pool says how many records there are.
    let pool = Pool::options()
        .huge_pages(false)
        .boot_identity([9; 16])
        .create(&path)
        .unwrap();
    fill(&pool);
    std::fs::copy(&path, &image).unwrap();
    drop(pool);
    let whole = std::fs::read(&image).unwrap();
    let written: Vec<(&[u8], u64)> = whole
        .chunks(PAGE)
        .zip((0..).step_by(PAGE))
        .filter(|(page, _)| page.iter().any(|&byte| byte != 0))
        .collect();
    let mut pages = Pages::default();
    let most = if is_deep() { usize::MAX } else { MOST_PAGES };
    let step = written.len().div_ceil(most);
    for &(page, at) in written.iter().step_by(step) {
        let file = std::fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(&vec![0; page.len()], at).unwrap();
        match salvage(&image) {
            Found::Everything => pages.unharmed += 1,
            Found::Damage => pages.damaged += 1,
            Found::Loss(what) => pages.lost.push(format!("{at:#x}: {what}")),
        }
        // Opening and closing the pool has changed its superblocks and its catalog, and an engine may have finished a structure change that
        // it had begun.
        for &(page, at) in &written {
            file.write_all_at(page, at).unwrap();
        }
        file.write_all_at(&whole[..64 << 10], 0).unwrap();
        file.set_len(whole.len() as u64).unwrap();
    }
    pages
}

/// Loses each page of a pool with a map for each of `contents`.
pub fn lose_each_page(options: &MapOptions, contents: &[Contents]) {
    let fill_all = |pool: &Pool| {
        for (name, records) in contents {
            fill(&pool.map_with(name, options).unwrap(), name, records);
        }
    };
    let pages = lose_each_page_of(fill_all, |image| salvage(image, contents));
    let Pages {
        damaged,
        unharmed,
        lost,
    } = pages;
    println!(
        "{options}: {damaged} lost pages are found, {unharmed} did no harm, {} are accepted with records missing",
        lost.len()
    );
    assert!(lost.is_empty(), "{options}: {lost:#?}");
    assert!(damaged > 100, "{options}: {damaged}");
}
