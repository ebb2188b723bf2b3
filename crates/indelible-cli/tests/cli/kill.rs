//! Real `kill -9` of a real process on a real file, over and over, with writers running; power cuts of a simulated disk under such
//! a process; and copies of a file system that such a process writes to.

use crate::skipped::skipped;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use std::path::Path;
use std::process::Command;

/// Kills per place and number of writers; `INDELIBLE_KILLS` makes it longer.
fn kills() -> String {
    std::env::var("INDELIBLE_KILLS").unwrap_or_else(|_| "8".into())
}

/// Power cuts of each kind; `INDELIBLE_CUTS` makes it longer.
fn cuts() -> String {
    std::env::var("INDELIBLE_CUTS").unwrap_or_else(|_| "4".into())
}

/// Every kind of index: of maps of words and of byte strings, and of places.
fn all_kinds() -> impl Iterator<Item = String> {
    let words = indelible::Kind::all().iter().map(ToString::to_string);
    let strings = indelible::StringKind::all().iter();
    let places = indelible::SpatialKind::all().iter();
    words
        .chain(strings.map(ToString::to_string))
        .chain(places.map(ToString::to_string))
}

fn torture(directory: &Path, threads: &str) {
    for kind in all_kinds() {
        torture_kind(&kind, directory, threads);
    }
}

fn torture_kind(kind: &str, directory: &Path, threads: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_indelible"))
        .args([
            "--json",
            "torture",
            "--kind",
            kind,
            "--kills",
            &kills(),
            "--threads",
            threads,
            "--directory",
        ])
        .arg(directory)
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{threads} writers of {kind} in {}: {out}{err}",
        directory.display()
    );
    println!("{out}{err}");
}

/// tmpfs, where there is one.
fn memory() -> &'static Path {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm } else { Path::new("/tmp") }
}

fn disk() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Whether there is a disk for pools that survive power cuts. Asked of the system, since the library may be wrong when it refuses one.
fn has_disk() -> bool {
    let is_disk = statfs(disk()).unwrap().filesystem_type() != TMPFS_MAGIC;
    if !is_disk {
        skipped("power cuts of a disk, since the directory for tests is in memory");
    }
    is_disk
}

#[test]
fn one_writer_killed_on_tmpfs_loses_nothing() {
    torture(memory(), "1");
}

#[test]
fn four_writers_killed_on_tmpfs_lose_nothing() {
    torture(memory(), "4");
}

#[test]
fn one_writer_killed_on_a_disk_file_loses_nothing() {
    torture(disk(), "1");
}

#[test]
fn four_writers_killed_on_a_disk_file_lose_nothing() {
    torture(disk(), "4");
}

/// Power cuts under three writers on a disk. `None` if this machine does not allow to trace the writers, and otherwise whether everything was
/// there, and what was said.
fn cut_power(kind: &str, durability: &str, more: &[&str]) -> Option<(bool, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_indelible"))
        .args(["--json", "torture", "--failing", "power", "--kind", kind])
        .args(["--durability", durability, "--threads", "3"])
        .args(more)
        .arg("--directory")
        .arg(disk())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if said.contains("does not allow to trace") {
        skipped(&said);
        return None;
    }
    Some((output.status.success(), said))
}

#[test]
fn power_cuts_of_a_disk_lose_nothing() {
    if !has_disk() {
        return;
    }
    let strict = all_kinds().map(|kind| (kind, "power-loss"));
    // The log is written in another way, which no engine knows of.
    for (kind, durability) in strict.chain([("lbtree".into(), "3ms")]) {
        let Some((is_sound, said)) = cut_power(&kind, durability, &["--kills", &cuts()]) else {
            return;
        };
        assert!(is_sound, "{kind}, {durability}: {said}");
        println!("{said}");
    }
}

#[test]
fn power_cuts_of_a_disk_that_lies_about_syncs_are_found_out() {
    if !has_disk() {
        return;
    }
    for (seed, durability) in [("1", "power-loss"), ("2", "power-loss"), ("3", "3ms")] {
        let planted = ["--kills", "1", "--lying-disk", "--seed", seed];
        let Some((is_sound, said)) = cut_power("lbtree", durability, &planted) else {
            return;
        };
        // The next open refuses a log that ends before what its segments say was synced; otherwise the comparison finds what is missing.
        let found = [
            "was acknowledged as",
            "were acknowledged, and only the first",
            "the pool is damaged",
        ];
        let is_found = found.iter().any(|found| said.contains(found));
        assert!(!is_sound && is_found, "{said}");
    }
}

/// The short form of `.ci/file-systems`, which says why if it is left out: it takes root, loop devices, and an XFS for the copies.
#[test]
fn copies_of_file_systems_in_mid_flight_have_what_was_acknowledged() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/file-systems");
    let output = Command::new(script)
        .arg("1")
        .env("INDELIBLE", env!("CARGO_BIN_EXE_indelible"))
        .env("INDELIBLE_KINDS", "lbtree")
        .env("TMPDIR", disk())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{said}");
    println!("{said}");
    if let Some(why) = said.lines().find_map(|line| line.strip_prefix("SKIPPED: ")) {
        skipped(&format!("copies of file systems: {why}"));
    }
}
