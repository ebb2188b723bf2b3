//! Real `kill -9` of a real process on a real file, over and over, with writers running.

use std::path::Path;
use std::process::Command;

/// Kills per place and number of writers; `INDELIBLE_KILLS` makes it longer.
fn kills() -> String {
    std::env::var("INDELIBLE_KILLS").unwrap_or_else(|_| "50".into())
}

fn torture(directory: &Path, threads: &str) {
    let words = indelible::Kind::all().iter().map(ToString::to_string);
    let strings = indelible::StringKind::all().iter().map(ToString::to_string);
    for kind in words.chain(strings) {
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
