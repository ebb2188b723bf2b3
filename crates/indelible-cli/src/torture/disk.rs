//! What a disk is guaranteed to have, and a power cut.
//!
//! Of each page of a file, a [`Disk`] knows what it had when a sync of the file, or of that part of it, was called that has returned since. This is what
//! survives for certain. What the file has now and did not have then may have reached the disk or not, in any order and sector by sector: when
//! power fails, each sector that differs is left as it was, as it is, or torn, which is some words as they were and some as they
//! are. In the log a torn sector may also have words that nobody wrote. These are the assumptions of `docs/durability.md`.

use anyhow::{Context, Result};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes that a disk writes as a whole unless power fails.
const SECTOR: usize = 512;
/// Bytes that are old or new, also in a sector that is torn.
const WORD: usize = 8;
/// Bytes of a page. Syncs of a part of a file are of whole pages.
const PAGE: usize = 4096;

/// A disk that has some files of one directory.
pub struct Disk {
    directory: PathBuf,
    /// The files, and whether a torn sector of the file may have words that nobody wrote.
    files: Vec<(PathBuf, bool)>,
    durable: HashMap<PathBuf, Synced>,
    /// Files whose names survive.
    named: HashSet<PathBuf>,
    /// Counts the calls of syncs.
    clock: u64,
    /// Whether a sync that has returned means anything.
    is_honest: bool,
}

/// What a file has on the disk for certain.
#[derive(Default)]
struct Synced {
    bytes: Vec<u8>,
    /// When the sync was called that has last written a page.
    called: Vec<u64>,
    /// And the one that has last written the length.
    length_called: u64,
}

impl Synced {
    fn set_length(&mut self, length: usize) {
        self.bytes.resize(length, 0);
        self.called.resize(length.div_ceil(PAGE), 0);
    }

    /// A sync has returned. Syncs of one file may overlap: the one that was called last covers what the others do.
    fn take(&mut self, sync: Called) {
        let Called {
            called,
            from,
            bytes,
            is_whole,
        } = sync;
        let end = from + bytes.len();
        if called > self.length_called && (is_whole || end > self.bytes.len()) {
            self.length_called = called;
            self.set_length(end);
        }
        // What lies behind the end has been cut off by a sync that was called later.
        let pages = self.bytes.chunks_mut(PAGE).skip(from / PAGE);
        let calls = self.called.iter_mut().skip(from / PAGE);
        for ((old, at), new) in pages.zip(calls).zip(bytes.chunks(PAGE)) {
            if *at <= called {
                *at = called;
                let length = old.len().min(new.len());
                old[..length].copy_from_slice(&new[..length]);
            }
        }
    }
}

/// A sync that has been called and has not returned yet.
pub enum Sync {
    File(PathBuf, Called),
    Directory(HashSet<PathBuf>),
}

/// What the file, or a part of it, had when a sync of that was called.
pub struct Called {
    called: u64,
    /// Where the part begins: at a page.
    from: usize,
    bytes: Vec<u8>,
    is_whole: bool,
}

/// What a power cut did to the sectors that were written and not synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    pub lost: u64,
    pub kept: u64,
    pub torn: u64,
}

impl Disk {
    /// A disk that has what these files of a directory have now. In the files with `true`, a torn sector may have words that
    /// nobody wrote.
    pub fn new(directory: &Path, files: Vec<(PathBuf, bool)>) -> Result<Self> {
        let mut this = Self {
            directory: directory.canonicalize()?,
            files: Vec::new(),
            durable: HashMap::new(),
            named: HashSet::new(),
            clock: 0,
            is_honest: true,
        };
        for (path, may_be_garbage) in files {
            let path = this.directory.join(path.file_name().unwrap_or_default());
            if let Some(bytes) = read(&path)? {
                let mut synced = Synced::default();
                synced.set_length(bytes.len());
                synced.bytes = bytes;
                this.durable.insert(path.clone(), synced);
                this.named.insert(path.clone());
            }
            this.files.push((path, may_be_garbage));
        }
        Ok(this)
    }

    /// From here on syncs return, and what they should have made durable may be lost. For tests of the tests.
    pub fn start_to_lie(&mut self) {
        self.is_honest = false;
    }

    /// A sync of a file or a directory is called, or of a part of a file, which begins at a page.
    pub fn begin_sync(&mut self, path: &Path, part: Option<Range<usize>>) -> Result<Option<Sync>> {
        if path == self.directory {
            let names = self.files.iter().map(|(path, _)| path);
            let names = names.filter(|path| path.exists()).cloned().collect();
            return Ok(Some(Sync::Directory(names)));
        }
        if !self.files.iter().any(|(file, _)| file == path) {
            return Ok(None);
        }
        self.clock += 1;
        let is_whole = part.is_none();
        let part = part.unwrap_or(0..usize::MAX);
        let from = part.start;
        let bytes = read_part(path, part)?.unwrap_or_default();
        if !is_whole && bytes.is_empty() {
            // The file ends before it.
            return Ok(None);
        }
        let called = Called {
            called: self.clock,
            from,
            bytes,
            is_whole,
        };
        Ok(Some(Sync::File(path.to_owned(), called)))
    }

    /// The sync returns.
    pub fn end_sync(&mut self, sync: Sync) {
        if !self.is_honest {
            return;
        }
        match sync {
            Sync::Directory(names) => self.named.extend(names),
            Sync::File(path, called) => self.durable.entry(path).or_default().take(called),
        }
    }

    /// Power fails: the files become what the disk may have. Nobody has them open any more.
    pub fn cut(&self, random: &mut Random) -> Result<Cut> {
        let mut cut = Cut::default();
        // Sometimes nothing that was not synced reaches the disk.
        let loses_all = random.one_in(3);
        for (path, may_be_garbage) in &self.files {
            let Some(now) = read(path)? else { continue };
            if !self.named.contains(path) && (loses_all || random.one_in(2)) {
                std::fs::remove_file(path)?;
                continue;
            }
            let mut left = match self.durable.get(path) {
                Some(synced) => synced.bytes.clone(),
                None => Vec::new(),
            };
            // A length is a word of the file system's journal: the old one, or the new one.
            if !loses_all && random.one_in(2) {
                left.resize(now.len(), 0);
            }
            for (old, new) in left.chunks_mut(SECTOR).zip(now.chunks(SECTOR)) {
                if old[..] != new[..] {
                    let fate = if loses_all { 0 } else { random.below(5) };
                    cut.tear(old, new, fate, *may_be_garbage, random);
                }
            }
            std::fs::write(path, &left).with_context(|| path.display().to_string())?;
        }
        Ok(cut)
    }
}

impl std::ops::AddAssign for Cut {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.kept += other.kept;
        self.torn += other.torn;
    }
}

impl Cut {
    /// Decides what is left of a sector.
    fn tear(
        &mut self,
        old: &mut [u8],
        new: &[u8],
        fate: u64,
        may_be_garbage: bool,
        random: &mut Random,
    ) {
        let is_garbage = may_be_garbage && fate == 3;
        match fate {
            0 | 1 => self.lost += 1,
            2 => {
                let length = old.len().min(new.len());
                old[..length].copy_from_slice(&new[..length]);
                self.kept += 1;
            }
            _ => {
                for (old, new) in old.chunks_mut(WORD).zip(new.chunks(WORD)) {
                    let length = old.len().min(new.len());
                    if is_garbage && random.one_in(8) {
                        old.copy_from_slice(&random.next().to_ne_bytes()[..old.len()]);
                    } else if random.one_in(2) {
                        old[..length].copy_from_slice(&new[..length]);
                    }
                }
                self.torn += 1;
            }
        }
    }
}

/// What a file has, if it is there.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    read_part(path, 0..usize::MAX)
}

/// What a part of a file has, as far as the file goes, if it is there.
fn read_part(path: &Path, part: Range<usize>) -> Result<Option<Vec<u8>>> {
    let bytes = File::open(path).and_then(|mut file| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(part.start as u64))?;
        file.take(part.len() as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    match bytes {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        bytes => Ok(Some(bytes.with_context(|| path.display().to_string())?)),
    }
}

/// Random numbers from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        super::mix(self.0)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of eight sectors of ones, half of which become twos that are synced, and then half of which become threes.
    fn after_a_cut(seed: u64, is_honest: bool) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, [1; 8 * SECTOR]).unwrap();
        let mut disk = Disk::new(directory.path(), vec![(path.clone(), false)]).unwrap();
        if !is_honest {
            disk.start_to_lie();
        }
        let sectors = |numbers: [u8; 8]| numbers.map(|number| [number; SECTOR]).concat();
        std::fs::write(&path, sectors([2, 2, 2, 2, 1, 1, 1, 1])).unwrap();
        let sync = disk.begin_sync(&path, None).unwrap().unwrap();
        std::fs::write(&path, sectors([3, 3, 2, 2, 3, 3, 1, 1])).unwrap();
        disk.end_sync(sync);
        disk.cut(&mut Random(seed)).unwrap();
        std::fs::read(&path).unwrap()
    }

    #[test]
    fn what_was_synced_survives_and_what_was_not_may() {
        let (mut lost, mut kept, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let left = after_a_cut(seed, true);
            let sector = |at: usize| &left[at * SECTOR..(at + 1) * SECTOR];
            assert!(sector(2).iter().chain(sector(3)).all(|&byte| byte == 2));
            assert!(sector(6).iter().chain(sector(7)).all(|&byte| byte == 1));
            assert!(sector(0).iter().all(|&byte| byte == 2 || byte == 3));
            match sector(0).iter().filter(|&&byte| byte == 3).count() {
                0 => lost += 1,
                SECTOR => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 20 && kept > 20 && torn > 20, "{lost} {kept} {torn}");
    }

    #[test]
    fn a_disk_that_lies_loses_what_was_synced() {
        let loses = |seed| after_a_cut(seed, false)[2 * SECTOR..3 * SECTOR] == [1; SECTOR];
        assert!((0..50).any(loses));
    }

    #[test]
    fn a_sync_of_a_part_covers_that_part_and_syncs_called_before_do_not_take_it_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("file");
        let pages = |numbers: [u8; 3]| numbers.map(|number| [number; PAGE]).concat();
        std::fs::write(&path, pages([1, 1, 1])).unwrap();
        let mut disk = Disk::new(directory.path(), vec![(path.clone(), false)]).unwrap();
        std::fs::write(&path, pages([2, 2, 1])).unwrap();
        let whole = disk.begin_sync(&path, None).unwrap().unwrap();
        std::fs::write(&path, pages([3, 3, 3])).unwrap();
        let part = disk.begin_sync(&path, Some(PAGE..2 * PAGE));
        disk.end_sync(part.unwrap().unwrap());
        disk.end_sync(whole);
        let mut random = Random(1);
        let is_one_without_the_rest = (0..50).any(|_| {
            std::fs::write(&path, pages([3, 3, 3])).unwrap();
            disk.cut(&mut random).unwrap();
            let left = std::fs::read(&path).unwrap();
            assert!(left[PAGE..2 * PAGE].iter().all(|&byte| byte == 3));
            left == pages([2, 3, 1])
        });
        assert!(is_one_without_the_rest);
    }

    #[test]
    fn syncs_that_overlap_do_not_take_each_other_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, [1; SECTOR]).unwrap();
        let mut disk = Disk::new(directory.path(), vec![(path.clone(), true)]).unwrap();
        let first = disk.begin_sync(&path, None).unwrap().unwrap();
        std::fs::write(&path, [2; SECTOR]).unwrap();
        let second = disk.begin_sync(&path, None).unwrap().unwrap();
        disk.end_sync(second);
        disk.end_sync(first);
        for seed in 0..20 {
            disk.cut(&mut Random(seed)).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), [2; SECTOR]);
        }
    }
}
