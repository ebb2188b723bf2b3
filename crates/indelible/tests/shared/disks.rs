//! Small file systems of several kinds, mounted for one test.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    Tmpfs,
    Ext4,
    Xfs,
}

/// A file system that is unmounted when this is dropped.
pub struct Disk {
    directory: tempfile::TempDir,
    /// Where its bytes are, if not in memory.
    _image: tempfile::TempDir,
}

impl Disk {
    /// A file system of this kind and of at least so many MiB; or `None`, and word on stderr, if this user may not mount one
    /// or the program that makes it is not installed.
    pub fn mount(kind: FileSystem, megabytes: u64) -> Option<Self> {
        let disk = Self {
            directory: tempfile::tempdir().unwrap(),
            _image: tempfile::tempdir().unwrap(),
        };
        let (at, image) = (disk.directory.path(), disk._image.path().join("image"));
        let is_mounted = match kind {
            FileSystem::Tmpfs => run(Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "tmpfs"])
                .arg(at)),
            _ => {
                let (program, least) = match kind {
                    FileSystem::Xfs => ("mkfs.xfs", 300),
                    _ => ("mkfs.ext4", 0),
                };
                let length = megabytes.max(least) << 20;
                File::create(&image).unwrap().set_len(length).unwrap();
                run(Command::new(program).arg("-q").arg(&image))
                    && run(Command::new("mount")
                        .args(["-o", "loop"])
                        .arg(&image)
                        .arg(at))
            }
        };
        if !is_mounted {
            crate::skipped::skipped(&format!(
                "{kind:?}, since this user may not mount it, or mkfs is missing"
            ));
            return None;
        }
        Some(disk)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Takes all the room that is left, for a file that is removed to give it back.
    pub fn fill(&self, name: &str) -> PathBuf {
        use rustix::fs::{FallocateFlags, fallocate};
        let path = self.path(name);
        let ballast = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .unwrap();
        // A file system may keep some back until it has written what it holds.
        for _ in 0..3 {
            for step in [1 << 20, 64 << 10, 4 << 10] {
                let length = || ballast.metadata().unwrap().len();
                while fallocate(&ballast, FallocateFlags::empty(), length(), step).is_ok() {}
            }
            ballast.sync_all().unwrap();
        }
        path
    }

    /// Removes a file, and waits until its room is back: XFS frees the blocks of a removed file in the background, and refuses others until then.
    pub fn remove(&self, file: &Path) {
        let length = file.metadata().unwrap().len();
        std::fs::remove_file(file).unwrap();
        let room = || {
            let system = rustix::fs::statvfs(self.directory.path()).unwrap();
            system.f_bavail * system.f_frsize
        };
        let begin = Instant::now();
        while room() < length / 2 {
            assert!(begin.elapsed() < Duration::from_secs(60), "no room is back");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.directory.path()));
    }
}

/// Copies a file by `cp`, with an option.
pub fn copy(option: &str, from: &Path, to: &Path) {
    assert!(run(Command::new("cp").arg(option).arg(from).arg(to)));
}

fn run(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
