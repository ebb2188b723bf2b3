//! Tests of the order in which the superblock of a pool without a log gets to the disk: the file is looked at before each sync.

use super::*;
use crate::pool::layout::SUPERBLOCK_BYTES;
use crate::pool::system::Call;
use crate::pool::system::faults::{at, from, telling};
use crate::{Durability, Kind, Pool, PoolOptions};
use rustix::io::Errno;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What the disk has of the superblock, for certain, and what has been seen.
#[derive(Default)]
struct Disk {
    on_disk: Vec<u8>,
    syncs: u32,
    /// Syncs for which both copies were written.
    of_both: u32,
    problems: Vec<String>,
}

fn first_bytes(path: &Path) -> Vec<u8> {
    let mut bytes = std::fs::read(path).unwrap_or_default();
    bytes.resize(SUPERBLOCK_BYTES, 0);
    bytes
}

/// Whether each copy in these bytes is whole and says that the pool is open.
fn are_open(bytes: &[u8]) -> [bool; 2] {
    copies_in(bytes).map(|words| {
        words.is_some_and(|words| Superblock::parse(&words).is_ok_and(|copy| !copy.clean))
    })
}

impl Disk {
    /// The power may be cut while the copies are written that are not on the disk yet, and tear each of them.
    fn before_sync(&mut self, path: &Path) {
        let shown = first_bytes(path);
        if self.on_disk.is_empty() {
            self.on_disk = vec![0; SUPERBLOCK_BYTES];
        }
        let parts = shown
            .chunks(COPY_BYTES)
            .zip(self.on_disk.chunks(COPY_BYTES));
        let dirty: Vec<bool> = parts.map(|(shown, on_disk)| shown != on_disk).collect();
        let were_there = self.on_disk.iter().any(|&byte| byte != 0);
        self.syncs += 1;
        if dirty == [true; 2] && were_there {
            self.of_both += 1;
            // As when it has grown. Then none may be there that says that the pool was closed.
            if are_open(&self.on_disk) != [true; 2] || are_open(&shown) != [true; 2] {
                self.problems.push(format!(
                    "sync {}: both copies are being written",
                    self.syncs
                ));
            }
        }
        self.on_disk = shown;
    }
}

/// Does the work, and looks at the superblock in the file before each sync.
fn watched<T>(path: &Path, disk: &Rc<RefCell<Disk>>, work: impl FnOnce() -> T) -> T {
    let (watching, path) = (Rc::clone(disk), path.to_owned());
    let told = move |call| {
        if call == Call::Sync {
            watching.borrow_mut().before_sync(&path);
        }
    };
    telling(told, work)
}

fn options(durability: Durability) -> PoolOptions {
    let mut options = PoolOptions::new();
    options.max_bytes(64 << 20).durability(durability);
    options
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("order.pool");
    (directory, path)
}

fn insert(pool: &Pool, name: &str) {
    let map = pool.map_with::<u64, u64>(name, Kind::default()).unwrap();
    map.insert(1, 1).unwrap();
}

/// As if the process had died: nothing is written any more.
fn kill(pool: Pool) {
    pool.core().abandon();
}

fn grow(pool: &Pool, name: &str) {
    let slot = pool.find(name).unwrap();
    let space = pool.core().space(slot, EXTENT_BYTES as u32).unwrap();
    for _ in 0..2 {
        space.alloc().unwrap();
    }
}

#[test]
fn a_copy_of_the_superblock_is_written_when_the_other_one_is_on_the_disk() {
    for forced in [false, true] {
        let (_directory, path) = place();
        let disk = Rc::default();
        let mut options = options(if forced {
            Durability::PowerLoss
        } else {
            Durability::Process
        });
        options.force_power_loss_protocol(forced);
        watched(&path, &disk, || {
            let pool = options.create(&path).unwrap();
            insert(&pool, "kept");
            pool.close().unwrap();
            for round in 0..3 {
                // Closed, opened and grown at once; and opened after deaths, one after the other.
                let pool = options.open(&path).unwrap();
                insert(&pool, "grown");
                grow(&pool, "grown");
                pool.drop_map("grown").unwrap();
                pool.close().unwrap();
                kill(options.open(&path).unwrap());
                let pool = options.open(&path).unwrap();
                insert(&pool, "dropped");
                kill(pool);
                let pool = options.open(&path).unwrap();
                grow(&pool, "dropped");
                if round == 1 {
                    pool.sync().unwrap();
                }
                pool.drop_map("dropped").unwrap();
                assert!(pool.shrink().unwrap() > 0);
                pool.close().unwrap();
            }
        });
        let disk = disk.borrow();
        assert_eq!(disk.problems, [""; 0]);
        assert!(disk.syncs > 15, "{}", disk.syncs);
    }
}

/// What an open and a close wait for has not become more.
#[test]
fn an_open_waits_for_one_sync_and_a_close_for_two() {
    let (_directory, path) = place();
    let disk: Rc<RefCell<Disk>> = Rc::default();
    let pool = options(Durability::Process).create(&path).unwrap();
    insert(&pool, "m");
    pool.close().unwrap();
    let syncs = || disk.borrow().syncs;
    for _ in 0..2 {
        let before = syncs();
        let pool = watched(&path, &disk, || options(Durability::Process).open(&path));
        assert_eq!(syncs() - before, 1);
        let before = syncs();
        watched(&path, &disk, || pool.unwrap().close()).unwrap();
        assert_eq!(syncs() - before, 2);
    }
}

/// Whichever sync fails, the superblock says so if the process dies then: the next session must not close the pool as if all of it were on the disk.
#[test]
fn whichever_sync_of_a_pool_without_a_log_fails_the_next_open_knows() {
    let work = |pool: &Pool| -> Result<()> {
        let slot = pool.find("dropped")?;
        pool.core().space(slot, EXTENT_BYTES as u32)?.alloc()?;
        pool.drop_map("dropped")?;
        pool.shrink().map(|_| ())
    };
    let mut failed = 0;
    for failing in 1.. {
        let (_directory, path) = place();
        let pool = options(Durability::Process).create(&path).unwrap();
        insert(&pool, "dropped");
        pool.close().unwrap();
        let pool = options(Durability::Process).open(&path).unwrap();
        let (_, was_reached) = at(failing, Errno::IO, || work(&pool));
        let has_failed = pool.core().mapping().expect_synced().is_err();
        kill(pool);
        let superblock = Superblock::read(&path, &first_bytes(&path), u64::MAX).unwrap();
        let boot = crate::pool::machine::boot_identity();
        let [a, b] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| boot[at + i])));
        assert_eq!(superblock.is_unsynced([a, b]), has_failed, "call {failing}");
        failed += u32::from(has_failed);
        if !was_reached {
            break;
        }
    }
    assert!(failed > 1, "{failed}");
}

/// The note of a failed sync may fail to get to the disk, too, and with it the only copy there that says that the pool was closed before. No later sync brings it there.
#[test]
fn a_pool_whose_failed_sync_could_not_be_noted_does_not_grow_before_it_is() {
    let (_directory, path) = place();
    let pool = options(Durability::Process).create(&path).unwrap();
    insert(&pool, "m");
    pool.close().unwrap();
    let pool = options(Durability::Process).open(&path).unwrap();
    let slot = pool.find("m").unwrap();
    let space = pool.core().space(slot, EXTENT_BYTES as u32).unwrap();
    assert!(from(1, 2, Errno::IO, || pool.sync()).0.is_err());
    assert!(matches!(space.alloc(), Err(Error::Io { .. })));
    // That has noted it.
    space.alloc().unwrap();
    assert!(pool.close().is_err());
}
