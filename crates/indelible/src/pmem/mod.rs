//! Durable words: storing, flushing, fencing, committing.
//!
//! # Overview
//!
//! Durable memory is made of [`Cell`]s: aligned 8-byte words. Any thread may read a cell; only a [`Pm`] can write one.
//! A `Pm` knows its [`Medium`], and so what has to happen before a store is durable:
//!
//! | medium | survives | `flush` | `fence` |
//! |---|---|---|---|
//! | [`Medium::Dram`] | nothing | nothing | order for the compiler |
//! | [`Medium::Process`] | death of the process | nothing | order for the compiler |
//! | [`Medium::Pmem`] | power loss (ADR) | `clwb` and kin | `sfence` |
//! | [`Medium::PmemEadr`] | power loss (eADR) | nothing | `sfence` |
//! | [`Medium::Disk`] | power loss, once the log is durable | nothing | appends what the thread has stored to the pool's log |
//!
//! A change is made in two steps. First everything that it depends on is written to words that neither readers nor recovery
//! use, then flushed and fenced. Then one 8-byte store, the [`commit`](Pm::commit), makes the change effective. This is the
//! "NVM atomic write section" of the LB+-Tree paper (section 2.3, definition 2.1).
//!
//! Two rules follow for callers:
//! - stores to one 64-byte line reach memory in program order, so a record and the header that validates it may share
//!   one flush when they share a line;
//! - between lines nothing is ordered but by `flush` then `fence`.
//!
//! The medium is a value and not a type parameter: a branch that always goes the same way costs nothing beside a cache
//! miss, and signatures stay readable. Reads never consult it.

mod cell;
pub mod count;
pub(crate) mod exchange;
mod flush;
pub(crate) mod geometry;
pub(crate) mod journal;
#[cfg(feature = "trace")]
mod memory;
pub(crate) mod planted;
pub(crate) mod schedule;
#[cfg(feature = "trace")]
pub mod trace;
#[cfg(not(feature = "trace"))]
#[path = "untraced.rs"]
pub(crate) mod trace;

pub use cell::Cell;
pub use flush::FlushInstruction;
#[cfg(feature = "trace")]
pub(crate) use memory::expect_mapped;
#[cfg(feature = "trace")]
pub use memory::{BEYOND_THE_END, Memory};
#[cfg(not(feature = "trace"))]
pub(crate) use trace::{Memory, expect_mapped};

use journal::Journal;
use planted::planted;
use schedule::point;
use trace::Name;

/// Bytes in a cache line: the unit of flushing.
pub const LINE: usize = 64;

/// Where a pool's bytes live, and so what a flush and a fence must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Medium {
    /// Anonymous memory; survives nothing.
    Dram,
    /// A mapped file in the page cache or on tmpfs; every executed store survives the death of the process.
    Process,
    /// Persistent memory whose power-fail domain begins at the memory controller (ADR): lines must be flushed.
    Pmem,
    /// Persistent memory whose power-fail domain includes the CPU caches (eADR): a fence is enough.
    PmemEadr,
    /// An image in memory, and a log of words on a disk: a fence appends what the thread has stored, and does not wait for the
    /// disk. The public operation waits, after it has given its locks back.
    Disk,
}

planted::bugs! { "pmem":
    /// On a disk, a batch is appended to the log after its thread has given its locks back.
    AppendAfterUnlock,
}

/// The bugs that can be planted in this folder.
#[cfg(feature = "trace")]
pub(crate) const BUGS: &[planted::Bug] = Bug::ALL;

/// Writes durable words of one medium. Small and `Copy`; each index has one.
#[derive(Clone, Copy, Debug)]
pub struct Pm {
    medium: Medium,
    instruction: FlushInstruction,
    /// What the recorder calls what is written; see [`named`](Pm::named).
    name: Name,
    /// On [`Medium::Disk`], where stores are noted; nowhere in the memory of the crash checker, which has a recorder instead.
    journal: Option<&'static Journal>,
}

impl Pm {
    /// A `Pm` for `medium` with the best flush instruction of this CPU.
    #[must_use]
    pub fn new(medium: Medium) -> Self {
        Self {
            medium,
            instruction: FlushInstruction::detect(),
            name: Name::default(),
            journal: None,
        }
    }

    /// A `Pm` that flushes with the given instruction, for tests and for measuring.
    #[must_use]
    pub fn with_instruction(medium: Medium, instruction: FlushInstruction) -> Self {
        Self {
            medium,
            instruction,
            name: Name::default(),
            journal: None,
        }
    }

    /// A `Pm` for a pool on a disk, whose stores are noted in `journal`.
    pub(crate) fn journaled(journal: &'static Journal) -> Self {
        Self {
            journal: Some(journal),
            ..Self::with_instruction(Medium::Disk, FlushInstruction::None)
        }
    }

    /// The medium that this writes to.
    #[must_use]
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// The instruction that [`flush`](Self::flush) uses where the medium needs one.
    #[must_use]
    pub fn instruction(&self) -> FlushInstruction {
        self.instruction
    }

    /// Writes `value` to `cell`. Ordered with nothing until the next [`publish`](Self::publish) or
    /// [`fence`](Self::fence).
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub fn store(&self, cell: &Cell, value: u64) {
        point();
        trace::store(cell, value, self.name, self.medium);
        cell.set_relaxed(value);
        self.capture(cell, value);
    }

    /// On a disk, the position in the pool's log up to which what this thread has stored there since the last call has been appended; see
    /// [`take_position`](journal::take_position).
    pub(crate) fn take_position(&self) -> Option<u64> {
        self.journal.map_or(Some(0), journal::take_position)
    }

    /// On a disk, notes what was stored.
    #[inline(always)]
    fn capture(&self, cell: &Cell, value: u64) {
        if let Some(journal) = self.journal {
            journal::capture(journal, cell, value);
        }
    }

    /// Writes `value` to `cell` after all earlier stores of this thread, and flushes its line, without a fence.
    ///
    /// The change is durable after the next [`fence`](Self::fence). Callers that share one fence between several
    /// changes use this, all others [`commit`](Self::commit). `name` is the name of the commit point, as in
    /// [`commit`](Self::commit).
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub fn publish(&self, cell: &Cell, value: u64, name: &'static str) {
        let named = self.named(name);
        point();
        trace::store(cell, value, named.name, self.medium);
        cell.set_release(value);
        named.capture(cell, value);
        named.flush_cell(cell);
        // Later stores may reuse what this one has made free, so they must not overtake it.
        if cfg!(target_arch = "x86_64") {
            std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        } else {
            std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        }
    }

    /// The 8-byte store that makes a change effective: [`publish`](Self::publish) and [`fence`](Self::fence).
    ///
    /// Everything the change depends on must have been persisted before, or lie in the same line.
    ///
    /// `name` is the stable name of the commit point, `lbtree.split` say: the crash checker reports by it, and asks whether it has
    /// crashed on both sides of every commit point that a folder lists.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub fn commit(&self, cell: &Cell, value: u64, name: &'static str) {
        self.publish(cell, value, name);
        self.named(name).fence();
    }

    /// A `Pm` for this medium whose stores, flushes and fences the recorder notes under `name`. Without the recorder: this `Pm`.
    #[inline(always)]
    #[must_use]
    pub fn named(self, name: &'static str) -> Self {
        Self {
            name: Name::new(name),
            ..self
        }
    }

    /// Tells the recorder, if there is one, that a change of structure is being made.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub(crate) fn note(&self, change: &'static str, variant: u64) {
        trace::note(change, variant);
    }

    /// [`flush`](Self::flush) of a cell, which lies in one line.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    fn flush_cell(&self, cell: &Cell) {
        let line = std::ptr::from_ref(cell) as usize & !(LINE - 1);
        self.flush_lines(line..line + LINE);
    }

    /// Asks for the lines that hold `value` to be written back. They are durable after the next fence.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub fn flush<T: ?Sized>(&self, value: &T) {
        let start = std::ptr::from_ref(value).cast::<u8>();
        self.flush_lines(flush::lines_of(start as usize, size_of_val(value)));
    }

    /// Line-aligned addresses of a live value.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    fn flush_lines(&self, lines: std::ops::Range<usize>) {
        point();
        count::flushed(&lines);
        trace::flush(lines.start, lines.len(), self.name);
        if self.medium == Medium::Pmem {
            self.instruction.flush(lines);
        }
    }

    /// Waits until all lines flushed before by this thread are durable, and orders all earlier stores before all
    /// later ones.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub fn fence(&self) {
        point();
        count::fenced();
        if self.keeps_back() {
            return;
        }
        trace::fence(self.name, self.medium);
        match self.medium {
            // A killed process leaves every store that it executed, so only the compiler must keep the order.
            Medium::Dram | Medium::Process => {
                std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
            }
            Medium::Pmem | Medium::PmemEadr => flush::store_fence(),
            Medium::Disk => journal::fence(),
        }
    }

    /// On a disk, appends what this thread has stored since its last fence. To be called before other threads may store to words that this thread has
    /// stored to without committing anything: appended later, its words would come behind theirs in the log. In memory there is one order of all stores
    /// to a word.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub(crate) fn hand_over(&self) {
        if self.medium == Medium::Disk {
            self.fence();
        }
    }

    /// Appends what a planted bug has kept back at the fence. Does nothing without that bug.
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub(crate) fn fence_after_unlock(&self) {
        if self.keeps_back() {
            point();
            trace::fence(self.name, self.medium);
        }
    }

    /// Whether a planted bug is at work, in the operations of a history of several threads.
    #[inline(always)]
    fn keeps_back(&self) -> bool {
        planted(Bug::AppendAfterUnlock) && self.medium == Medium::Disk && schedule::is_on()
    }

    /// [`flush`](Self::flush), then [`fence`](Self::fence).
    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    pub fn persist<T: ?Sized>(&self, value: &T) {
        self.flush(value);
        self.fence();
    }

    /// Fills fresh cells with non-temporal stores: no line is read first and no flush is needed, only a fence. Other threads see them before what is
    /// stored afterwards, also without a fence.
    ///
    /// # Panics
    ///
    /// If the two slices differ in length: an error of the calling index, never of its user.
    #[cfg_attr(feature = "trace", track_caller)]
    pub fn stream(&self, cells: &[Cell], values: &[u64]) {
        self.fill(cells, values, trace::stream, false);
    }

    /// Fills fresh cells that are used soon: as [`stream`](Self::stream), but the lines stay in the caches, as far as the instruction that
    /// flushes them leaves them there.
    ///
    /// # Panics
    ///
    /// If the two slices differ in length: an error of the calling index, never of its user.
    #[cfg_attr(feature = "trace", track_caller)]
    pub(crate) fn fill_cached(&self, cells: &[Cell], values: &[u64]) {
        self.fill(cells, values, Cell::set_relaxed, true);
    }

    #[inline(always)]
    #[cfg_attr(feature = "trace", track_caller)]
    fn fill(&self, cells: &[Cell], values: &[u64], store: fn(&Cell, u64), is_cached: bool) {
        assert_eq!(cells.len(), values.len());
        let lines = flush::lines_of(cells.as_ptr() as usize, size_of_val(cells));
        count::streamed(&lines);
        if self.medium == Medium::Disk {
            // The image is ordinary memory, and every word is noted.
            cells
                .iter()
                .zip(values)
                .for_each(|(cell, &value)| self.store(cell, value));
            return;
        }
        for (cell, &value) in cells.iter().zip(values) {
            trace::store(cell, value, self.name, self.medium);
            store(cell, value);
        }
        trace::flush(lines.start, lines.len(), self.name);
        if !is_cached {
            // The fence of most media orders nothing: a reader would follow a link to words that are still on their way.
            flush::end_stream();
        } else if self.medium == Medium::Pmem {
            self.instruction.flush(lines);
        }
    }
}

#[cfg(test)]
mod tests;
