//! The journal of a pool on a disk: what a thread stores is captured, and appended to the pool's log as one batch per fence.
//!
//! On [`Medium::Disk`](super::Medium::Disk) the words of a pool lie in an image in memory, which a power cut loses. So
//! [`Pm::store`](super::Pm::store) also notes the word's place and its new value in the *batch* of the calling thread, and
//! [`Pm::fence`](super::Pm::fence) gives the batch to the pool's [`Sink`], which is its log. A fence does not wait for the disk.
//!
//! # Why words, and not lines
//!
//! A batch holds the words that one thread has stored itself. Two threads may write one cache line under different locks; a
//! copy of the line would take words along that the other thread has not finished, and put old words over newer ones.
//!
//! # Why a batch may be appended early
//!
//! A batch that has grown to [`MOST_WORDS`] is appended before its fence, and so is one that begins in another pool. This is what
//! persistent memory does when a cache evicts a line early: an engine may not rely on a store *not* being durable before its
//! fence. The words of one thread are appended in the order of the program.

use super::Cell;
use super::geometry::sized_in_tests;
use std::cell::RefCell;
use std::sync::{Arc, PoisonError, RwLock};

/// Words in a batch before it is appended without a fence. With the word that says where they belong, 2 KiB of log at most: a small part
/// of a segment, so that a record never fails to fit into one; and little to read for who wants the words of one place, since
/// the batches of some operations have words for many.
pub(crate) const MOST_WORDS: usize = sized_in_tests(128, 64);

/// One word of a pool: the number of the word, counted from the pool's base, and its value.
pub(crate) type Word = (u64, u64);

/// What takes batches: a pool's log.
pub(crate) trait Sink: Send + Sync {
    /// Appends the words, which one thread has stored in this order, so that recovery finds all of them or none. Returns the position
    /// in the log that has to be durable for the words to be.
    fn append(&self, words: &[Word]) -> u64;
}

/// The way from the stores of a pool to its log. Every open pool on a disk has one, which is never freed: 48 bytes for each time that a
/// process opens such a pool. So a [`Pm`](super::Pm) can refer to it without counting references.
pub(crate) struct Journal {
    base: usize,
    sink: RwLock<Option<Arc<dyn Sink>>>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal({:#x})", self.base)
    }
}

impl Journal {
    /// A journal for the pool whose words begin at `base`. Batches are dropped until it has a [`Sink`].
    pub(crate) fn new(base: usize) -> &'static Self {
        Box::leak(Box::new(Self {
            base,
            sink: RwLock::new(None),
        }))
    }

    /// Where batches go from here on; nowhere for `None`, when the pool is closed.
    pub(crate) fn set_sink(&self, sink: Option<Arc<dyn Sink>>) {
        *self.sink.write().unwrap_or_else(PoisonError::into_inner) = sink;
    }

    fn word(&self, cell: &Cell, value: u64) -> Word {
        let address = std::ptr::from_ref(cell) as usize;
        (((address - self.base) / 8) as u64, value)
    }

    /// Appends the words, and returns the position that has to be durable for them to be; 0 if the pool has been closed.
    fn append(&self, words: &[Word]) -> u64 {
        let sink = self.sink.read().unwrap_or_else(PoisonError::into_inner);
        sink.as_ref().map_or(0, |sink| sink.append(words))
    }
}

/// What a thread has stored since its last fence.
struct Batch {
    journal: Option<&'static Journal>,
    words: Vec<Word>,
    /// Where the last batch of this thread ended in each log, unless [`take_position`] has been told of it: one log's positions say nothing of another one,
    /// and in an operation on one pool a closure may write to another pool.
    positions: Vec<(&'static Journal, u64)>,
}

impl Batch {
    #[inline]
    fn add(&mut self, journal: &'static Journal, cell: &Cell, value: u64) {
        let is_other = self.journal.is_none_or(|mine| !std::ptr::eq(mine, journal));
        if is_other || self.words.len() >= MOST_WORDS {
            self.append();
            self.journal = Some(journal);
        }
        self.words.push(journal.word(cell, value));
    }

    fn append(&mut self) {
        if let Some(journal) = self.journal
            && !self.words.is_empty()
        {
            let position = journal.append(&self.words);
            self.words.clear();
            match self.position_in(journal) {
                Some(at) => self.positions[at].1 = position,
                None => self.positions.push((journal, position)),
            }
        }
    }

    fn position_in(&self, journal: &Journal) -> Option<usize> {
        let mut positions = self.positions.iter();
        positions.position(|(other, _)| std::ptr::eq(*other, journal))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // A thread ends. What it stored last needs no fence, or it would have had one.
        self.append();
    }
}

thread_local! {
    static BATCH: RefCell<Batch> = const {
        RefCell::new(Batch { journal: None, words: Vec::new(), positions: Vec::new() })
    };
}

/// Notes that `value` was stored to `cell`.
#[inline]
pub(super) fn capture(journal: &'static Journal, cell: &Cell, value: u64) {
    let added = BATCH.try_with(|batch| batch.borrow_mut().add(journal, cell, value));
    if added.is_err() {
        // The thread is ending, and its batch has gone, but a destructor of another of its variables writes to a map. A fence would find nothing.
        journal.append(&[journal.word(cell, value)]);
    }
}

/// Appends what this thread has stored since its last fence.
#[inline]
pub(crate) fn fence() {
    let _ = BATCH.try_with(|batch| batch.borrow_mut().append());
}

/// Where the last batch ended that this thread has appended to `journal` since the last call; 0 if it has appended none, and `None` if nobody knows. What the
/// thread has stored and not appended is appended first: without a fence, such as a hint, it must not be appended at some later time, after what other
/// threads store there.
pub(crate) fn take_position(journal: &Journal) -> Option<u64> {
    let taken = BATCH.try_with(|batch| {
        let mut batch = batch.borrow_mut();
        batch.append();
        let at = batch.position_in(journal);
        at.map_or(0, |at| batch.positions.swap_remove(at).1)
    });
    // The thread is ending: what it stored has been appended at once.
    taken.ok()
}

/// Words that this thread has stored and not appended yet.
#[cfg(test)]
pub(crate) fn words_kept() -> usize {
    BATCH.with_borrow(|batch| batch.words.len())
}
