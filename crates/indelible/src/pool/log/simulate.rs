//! A simulated disk under the log and the applier, cut off at any moment: for tests, and for the crash checker.
//!
//! The disk has two files, the log and the pool's. Of each, it knows what is in the page cache and what is on the disk. A sync
//! copies everything to the disk; single sectors also get there at any other time, in any order. When power fails, each sector that
//! differs is on the disk as it was, as it is, or torn: some of its words old and some new; in the log also anything. When the
//! process dies, the page cache stays. Calls fail at random, too: a failed sync leaves sectors that no later sync writes.
//!
//! What is done to the disk is in `trial`.

#[cfg(feature = "trace")]
mod batch;
mod trial;

#[cfg(feature = "trace")]
pub use batch::through_the_log;
pub use trial::{Met, trial};

use super::device::{DataFile, LogDevice, Place};
use super::record::SEGMENT_WORDS;
use crate::concurrency::sync::lock;
use crate::{Error, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use trial::DATA_WORDS;

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}

/// Words in what the disk writes whole unless power fails.
const SECTOR: usize = 64;
/// Segments of the simulated log.
const SEGMENTS: usize = 6;
/// One file on the simulated disk.
struct SimFile {
    /// In the page cache.
    current: Arc<[AtomicU64]>,
    /// On the disk.
    durable: Vec<u64>,
    /// What was in the sectors that a failed sync has left as clean.
    lost: Vec<Option<Vec<u64>>>,
}

impl SimFile {
    fn new(words: usize) -> Self {
        Self {
            current: (0..words).map(|_| AtomicU64::new(0)).collect(),
            durable: vec![0; words],
            lost: vec![None; words.div_ceil(SECTOR)],
        }
    }

    fn sectors(&self) -> usize {
        self.lost.len()
    }

    fn words_of(&self, sector: usize) -> Range<usize> {
        sector * SECTOR..((sector + 1) * SECTOR).min(self.durable.len())
    }

    fn read(&self, words: Range<usize>) -> Vec<u64> {
        let words = self.current[words].iter();
        words.map(|word| word.load(Ordering::Relaxed)).collect()
    }

    fn is_dirty(&self, sector: usize) -> bool {
        self.words_of(sector)
            .any(|at| self.current[at].load(Ordering::Relaxed) != self.durable[at])
    }

    fn write_back(&mut self, sector: usize) {
        let words = self.words_of(sector);
        // A sector that has been written again is not clean any more.
        if self.lost[sector]
            .as_ref()
            .is_none_or(|lost| *lost != self.read(words.clone()))
        {
            self.lost[sector] = None;
            for at in words {
                self.durable[at] = self.current[at].load(Ordering::Relaxed);
            }
        }
    }

    /// Writes all sectors.
    fn sync(&mut self, fails: bool, random: &mut Random) -> Result<()> {
        self.sync_words(0..self.durable.len(), fails, random)
    }

    /// Writes the sectors of these words. A sync that fails writes some of them, and the others count as clean.
    fn sync_words(&mut self, words: Range<usize>, fails: bool, random: &mut Random) -> Result<()> {
        for sector in words.start / SECTOR..words.end.div_ceil(SECTOR) {
            if fails && self.is_dirty(sector) && random.one_in(2) {
                self.lost[sector] = Some(self.read(self.words_of(sector)));
            } else {
                self.write_back(sector);
            }
        }
        if fails { Err(failed()) } else { Ok(()) }
    }

    /// Makes the next sync write these words.
    fn touch(&mut self, words: Range<usize>) {
        self.lost[words.start / SECTOR..words.end.div_ceil(SECTOR)].fill(None);
    }

    /// The file is cut at this word, and made as long as it was.
    fn cut_off(&mut self, word: usize) {
        for at in word..self.durable.len() {
            self.current[at].store(0, Ordering::Relaxed);
            self.durable[at] = 0;
        }
    }

    /// Power fails.
    fn cut(&mut self, random: &mut Random, may_be_garbage: bool) {
        for sector in 0..self.sectors() {
            if !self.is_dirty(sector) {
                continue;
            }
            let fate = random.below(5);
            for at in self.words_of(sector) {
                let new = self.current[at].load(Ordering::Relaxed);
                match fate {
                    0 => {}
                    1 | 2 => self.durable[at] = new,
                    3 if may_be_garbage && random.one_in(8) => self.durable[at] = random.next(),
                    _ if random.one_in(2) => self.durable[at] = new,
                    _ => {}
                }
            }
        }
    }

    /// The page cache is lost: what is read next comes from the disk.
    fn restart(&mut self) {
        for (cell, &word) in self.current.iter().zip(&self.durable) {
            cell.store(word, Ordering::Relaxed);
        }
        self.lost.fill(None);
    }
}

/// What happens to the disk.
struct Sim {
    log: SimFile,
    data: SimFile,
    random: Random,
    /// Calls until power fails.
    calls_left: u64,
    is_off: bool,
    /// One call in this many fails; 0 for none.
    fails: u64,
    /// A call was made to fail in this session.
    has_failed: bool,
}

impl Sim {
    /// A call begins: power may fail.
    fn call(&mut self) -> Result<()> {
        if !self.is_off && self.calls_left == 0 {
            self.cut();
        }
        self.calls_left = self.calls_left.saturating_sub(1);
        if self.is_off {
            return Err(Error::Damaged("the power is off".into()));
        }
        Ok(())
    }

    fn cut(&mut self) {
        self.is_off = true;
        self.log.cut(&mut self.random, true);
        self.data.cut(&mut self.random, false);
    }

    fn fails(&mut self) -> bool {
        self.fails_one_in(self.fails)
    }

    /// If calls fail at all, whether this one does, which is of those of which one in so many fails.
    fn fails_one_in(&mut self, limit: u64) -> bool {
        let fails = self.fails > 0 && self.random.one_in(limit);
        self.has_failed |= fails;
        fails
    }

    /// Some sectors reach the disk by themselves.
    fn trickle(&mut self) {
        let Self {
            log, data, random, ..
        } = self;
        for file in [log, data] {
            for _ in 0..random.below(8) {
                let sector = random.below(file.sectors() as u64) as usize;
                file.write_back(sector);
            }
        }
    }
}

/// The disk, and the log's file on it, which is mapped.
#[derive(Clone)]
struct Disk {
    sim: Arc<Mutex<Sim>>,
    /// What is mapped: the page cache of the file, or a copy that is written out.
    log: Arc<[AtomicU64]>,
    is_shared: bool,
}

impl Disk {
    fn new(random: Random, is_shared: bool) -> Self {
        let log = SimFile::new(SEGMENTS * SEGMENT_WORDS);
        Self {
            log: if is_shared {
                Arc::clone(&log.current)
            } else {
                (0..log.current.len()).map(|_| AtomicU64::new(0)).collect()
            },
            is_shared,
            sim: Arc::new(Mutex::new(Sim {
                log,
                data: SimFile::new(DATA_WORDS),
                random,
                calls_left: u64::MAX,
                is_off: false,
                fails: 0,
                has_failed: false,
            })),
        }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Sim) -> T) -> T {
        work(&mut lock(&self.sim))
    }

    /// The next process begins; if the power was off, it is back.
    fn restart(&self) {
        self.with(|sim| {
            if sim.is_off {
                sim.log.restart();
                sim.data.restart();
            }
            sim.is_off = false;
            sim.fails = 0;
            for (to, from) in self.log.iter().zip(sim.log.current.iter()) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        });
    }

    fn failing<T>(&self, work: impl FnOnce(&mut Sim) -> Result<T>) -> Result<T> {
        self.with(|sim| {
            sim.call()?;
            let result = work(sim);
            // And after it has done its work.
            sim.call()?;
            result
        })
    }
}

fn failed() -> Error {
    Error::NoSpace("simulated".into())
}

/// The words of the log's file that these are.
fn words_of((slot, words): &Place) -> Range<usize> {
    let begin = slot * SEGMENT_WORDS;
    begin + words.start..begin + words.end
}

impl LogDevice for Disk {
    fn segments(&self) -> usize {
        SEGMENTS
    }

    fn most_segments(&self) -> usize {
        SEGMENTS
    }

    fn segment(&self, slot: usize) -> &[AtomicU64] {
        &self.log[slot * SEGMENT_WORDS..(slot + 1) * SEGMENT_WORDS]
    }

    fn add_segment(&self) -> Result<bool> {
        Ok(false)
    }

    fn write_out(&self, place: &Place) -> Result<()> {
        if self.is_shared {
            return Ok(());
        }
        let words = words_of(place);
        self.failing(|sim| {
            let fails = sim.fails();
            for at in words.clone() {
                if fails && sim.random.one_in(4) {
                    return Err(failed());
                }
                let word = self.log[at].load(Ordering::Relaxed);
                sim.log.current[at].store(word, Ordering::Relaxed);
            }
            sim.log.touch(words);
            Ok(())
        })
    }

    fn touch(&self, place: &Place) -> Result<()> {
        let words = words_of(place);
        self.failing(|sim| {
            sim.log.touch(words);
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        self.failing(|sim| {
            let fails = sim.fails();
            sim.log.sync(fails, &mut sim.random)
        })
    }

    fn sync_words(&self, places: &[Place]) -> Result<()> {
        if !self.is_shared {
            return self.sync();
        }
        places.iter().try_for_each(|place| {
            self.failing(|sim| {
                let fails = sim.fails();
                sim.log.sync_words(words_of(place), fails, &mut sim.random)
            })
        })
    }

    /// Fails more often: it is called seldom, and then other threads wait to prepare the next segment.
    fn sync_beside(&self, place: &Place) -> Result<()> {
        self.failing(|sim| {
            let fails = sim.fails_one_in(4);
            sim.log.sync_words(words_of(place), fails, &mut sim.random)
        })
    }
}

/// The pool's file on the disk.
struct Data(Disk);

impl DataFile for Data {
    fn read(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.0.failing(|sim| {
            let words = &sim.data.current[at as usize / 8..];
            for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            }
            Ok(())
        })
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.0.failing(|sim| {
            let fails = sim.fails();
            let words = &sim.data.current[at as usize / 8..];
            for (bytes, word) in bytes.as_chunks::<8>().0.iter().zip(words) {
                if fails && sim.random.one_in(2) {
                    return Err(failed());
                }
                word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            sim.data
                .touch(at as usize / 8..(at as usize + bytes.len()) / 8);
            Ok(())
        })
    }

    fn sync(&self) -> Result<()> {
        self.0.failing(|sim| {
            let fails = sim.fails();
            sim.data.sync(fails, &mut sim.random)
        })
    }

    fn length(&self) -> Result<u64> {
        Ok(DATA_WORDS as u64 * 8)
    }
}
