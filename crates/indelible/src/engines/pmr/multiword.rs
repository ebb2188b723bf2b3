//! Compare-and-exchange of durable words: of one, and of several at once.
//!
//! Wang, Levandoski and Larson: "Easy lock-free indexing in non-volatile memory", ICDE 2018; Harris, Fraser and Pratt: "A practical multi-word
//! compare-and-swap operation", DISC 2002.
//!
//! # A change of several words
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. the descriptor is filled: words, values before, values afterwards, a new number, undecided; flush, fence | the descriptor | nothing |
//! | 2. in the order of offsets, each word's old value is exchanged for the mark; flush, fence | marks | exchanges marks for old values |
//! | 3. COMMIT pmr.decide: the status, undecided, becomes succeeded; or failed, if a word had another value; flush, fence | the decision | exchanges marks for new values, or for old ones |
//! | 4. each mark is exchanged for the new value, or the old one; flush, fence | the change | nothing |
//!
//! Whoever meets a mark does all that is left of steps 2 to 4 (`help`), and then goes on with what it was doing: nobody waits, unless all descriptors
//! are taken. A thread
//! that works for a change may meet the mark of another one only at a word behind the words that are marked for the first change, so that threads
//! which help each other do not go round in a circle.
//!
//! # Why a late helper does no harm
//!
//! A helper may be about to exchange an old value for a mark when the change is long decided.
//!
//! - If the change has succeeded, the word has another value, and never has the old one again: see `layout` for words of nodes; the tree has a root
//!   once, while anybody could know it; the number of relocations only grows. So no conditional exchange (RDCSS) is necessary.
//! - If the change has failed, the word may still have the old value, and the mark is back. The helper itself, or whoever meets the mark, reads in
//!   the descriptor that the change has failed, and puts the old value back.
//!
//! So a descriptor must not be used for another change while there is a helper. A helper counts itself in the descriptor's part in DRAM, and then
//! looks whether the word still has the mark. A thread that takes a descriptor for a new change looks at the count after the marks of the last
//! change have gone. Epochs would not do: a single thread that has stopped would keep all descriptors from being used again.
//!
//! # What other threads see is durable
//!
//! Each exchange is followed by a flush and a fence. In between, the word is in flight (`engines::flight`): who reads it then flushes it too.

use super::Bug;
use super::layout::{
    DESCRIPTOR_BLOCKS, DESCRIPTOR_BYTES, Descriptor, FIRST_DESCRIPTORS, MOST_WORDS, Mark,
    NODE_BYTES, PER_BLOCK, State, Status, is_mark,
};
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::lock;
use crate::engines::Place;
use crate::engines::flight::{Flight, Settling, thread_number};
use crate::engines::rect::Nodes;
use crate::pmem::planted::planted;
use crate::pmem::schedule::{self, point};
use crate::pmem::{Cell, Pm};
use crate::pool::{Offset, Space};
use crate::spatial::Geometry;
use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

/// Descriptors of an index.
pub(super) const DESCRIPTORS: usize = DESCRIPTOR_BLOCKS * PER_BLOCK;

/// A word that is part of a change.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'a> {
    pub(super) cell: &'a Cell,
    pub(super) old: u64,
    pub(super) new: u64,
}

/// What a descriptor has in DRAM.
struct Part {
    /// Threads that work with the descriptor. The one that has taken it for a change of its own counts as [`OWNER`].
    users: AtomicU64,
    /// The number of the last change of this session, or [`NO_CHANGE`]. Only marks with this number are believed.
    number: AtomicU64,
}

/// In `users`: the descriptor has been taken for a change.
const OWNER: u64 = 1 << 32;
/// In `number`: none as yet.
const NO_CHANGE: u64 = u64::MAX;

/// Words of one index.
pub(super) struct Words<G> {
    place: Place,
    pm: Pm,
    nodes: Nodes<G>,
    flight: Flight,
    space: Arc<Space>,
    parts: Box<[Part]>,
    /// Where the blocks of descriptors are.
    blocks: [AtomicU64; DESCRIPTOR_BLOCKS],
    /// Held to move a block of descriptors.
    moving: Mutex<()>,
}

impl<G: Geometry> Words<G> {
    pub(super) fn new(place: &Place, space: &Arc<Space>) -> Self {
        let pm = place.core.pm();
        let settling = Settling {
            name: "pmr.settle",
            is_left_out: || false,
        };
        let part = |_| Part {
            users: AtomicU64::new(0),
            number: AtomicU64::new(NO_CHANGE),
        };
        Self {
            place: place.clone(),
            pm,
            nodes: Nodes::new(place.core.base()),
            flight: Flight::new(pm, place.core.base(), settling),
            space: Arc::clone(space),
            parts: (0..DESCRIPTORS).map(part).collect(),
            blocks: std::array::from_fn(|_| AtomicU64::new(0)),
            moving: Mutex::default(),
        }
    }

    /// A root word in the catalog entry.
    pub(super) fn root_cell(&self, number: usize) -> &Cell {
        &self.place.core.entry(self.place.slot).roots[number]
    }

    /// The value of a word, durable. Finishes the change that is under way there, if there is one.
    #[inline]
    pub(super) fn read(&self, cell: &Cell) -> Result<u64> {
        loop {
            point();
            let word = cell.load_acquire();
            if !is_mark(word) {
                self.flight.settle(cell);
                return Ok(word);
            }
            self.help(cell, word)?;
        }
    }

    /// Replaces the value of one word, if it is `old`, and says whether it was. Durable when it returns.
    pub(super) fn exchange(&self, cell: &Cell, old: u64, new: u64, name: &'static str) -> bool {
        let ticket = self.flight.begin(cell);
        let pm = self.pm.named(name);
        let done = pm.exchange(cell, old, new);
        if done {
            pm.persist(cell);
        }
        drop(ticket);
        done
    }

    /// Replaces the values of several words, if all have their old ones, and says whether they had. Durable when it returns. What the new values
    /// lead to has been flushed: the fence of the descriptor comes before the first word changes.
    pub(super) fn exchange_all(&self, exchanges: &mut [Exchange<'_>]) -> Result<bool> {
        assert!(
            exchanges.len() <= MOST_WORDS,
            "invariant: a descriptor has room"
        );
        exchanges.sort_by_key(|exchange| std::ptr::from_ref(exchange.cell) as usize);
        let (number, status) = self.take_descriptor()?;
        let descriptor = self.descriptor(number);
        for (at, target) in descriptor.targets.iter().enumerate() {
            let exchange = exchanges.get(at);
            let offset = exchange.map_or(0, |exchange| self.nodes.offset_of(exchange.cell).get());
            self.pm.store(&target.offset, offset);
            self.pm
                .store(&target.old, exchange.map_or(0, |exchange| exchange.old));
            self.pm
                .store(&target.new, exchange.map_or(0, |exchange| exchange.new));
        }
        self.pm.store(&descriptor.status, status.to_word());
        if !planted(Bug::MarkBeforeDescriptor) {
            self.pm.named("pmr.describe").persist(descriptor);
        }
        let part = &self.parts[number];
        part.number.store(status.number, Ordering::SeqCst);
        let outcome = self.mark_all(number, status);
        // After an error too: no word may keep the mark of a descriptor that is used again.
        let decision = *outcome.as_ref().unwrap_or(&State::Failed);
        let has_succeeded = self.decide_and_apply(number, status, decision);
        part.users.fetch_sub(OWNER, Ordering::SeqCst);
        // Another thread may have found what this one has not.
        if has_succeeded {
            return Ok(true);
        }
        outcome.map(|_| false)
    }

    fn descriptor(&self, number: usize) -> &Descriptor {
        let block = self.blocks[number / PER_BLOCK].load(Ordering::Acquire);
        let within = number % PER_BLOCK * DESCRIPTOR_BYTES;
        self.nodes.part(Offset::from_word(block) + within as u64)
    }

    /// Takes a descriptor that nobody works with. Waits while there is none: helping those who have them would be of no use, since only they give them back.
    fn take_descriptor(&self) -> Result<(usize, Status)> {
        // Under a scheduler, so that each run takes the same descriptors.
        let first = if schedule::IS_POSSIBLE {
            schedule::thread()
        } else {
            thread_number() / 4
        };
        let mut wait = Wait::default();
        loop {
            for at in 0..DESCRIPTORS {
                let number = (first + at) % DESCRIPTORS;
                let users = &self.parts[number].users;
                point();
                let is_free = match users.load(Ordering::SeqCst) {
                    0 => true,
                    users => users < OWNER && planted(Bug::DescriptorReusedEarly),
                };
                if is_free && self.take_if_unused(users) {
                    let status = self.descriptor(number).status.load_acquire();
                    let status = Status::from_word(status).ok_or_else(not_a_descriptor)?;
                    if planted(Bug::DescriptorReusedEarly) {
                        return Ok((number, status.with(State::Undecided)));
                    }
                    return Ok((number, status.next()));
                }
            }
            wait.step();
        }
    }

    fn take_if_unused(&self, users: &AtomicU64) -> bool {
        if planted(Bug::DescriptorReusedEarly) {
            return users.fetch_add(OWNER, Ordering::SeqCst) < OWNER;
        }
        users
            .compare_exchange(0, OWNER, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Finishes the change whose mark was read in `cell`.
    #[cold]
    fn help(&self, cell: &Cell, word: u64) -> Result<()> {
        let mark = Mark::from_word(word);
        let block = mark.descriptor.get() & !(NODE_BYTES as u64 - 1);
        let within = (mark.descriptor.get() - block) as usize / DESCRIPTOR_BYTES;
        let is_block = |known: &AtomicU64| block != 0 && known.load(Ordering::Acquire) == block;
        let was_mark_of_change = match self.blocks.iter().position(is_block) {
            Some(at) => self.help_with(at * PER_BLOCK + within, cell, mark)?,
            // Descriptors move when no change of theirs is under way, and nobody works for one that has ended.
            None => cell.load_acquire() != word,
        };
        if was_mark_of_change {
            return Ok(());
        }
        Err(Error::Damaged(format!(
            "a word of the index has the mark {word:#x} of no change"
        )))
    }

    /// Works for the change of a descriptor, if `cell` still has its mark once this thread is counted; otherwise the change has ended. Returns whether it was
    /// the mark of a change.
    ///
    /// The mark is not looked for again: a late helper may put back that of a change that has failed, for a while.
    fn help_with(&self, number: usize, cell: &Cell, mark: Mark) -> Result<bool> {
        let part = &self.parts[number];
        point();
        part.users.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = if cell.load_acquire() == mark.to_word() {
            let status = self.descriptor(number).status.load_acquire();
            match Status::from_word(status) {
                // As long as this thread is counted, the descriptor is not used for another change.
                Some(status)
                    if status.number == mark.number
                        && part.number.load(Ordering::SeqCst) == mark.number =>
                {
                    self.pm.note("pmr: change helped", 0);
                    self.complete(number, status.with(State::Undecided))
                        .map(|()| true)
                }
                _ => Ok(false),
            }
        } else {
            Ok(true)
        };
        point();
        part.users.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Does what is left of a change, of which `undecided` is the first status. The caller is counted.
    fn complete(&self, number: usize, undecided: Status) -> Result<()> {
        let outcome = self.mark_all(number, undecided)?;
        self.decide_and_apply(number, undecided, outcome);
        Ok(())
    }

    /// The mark of a change, of which `undecided` is the first status.
    fn mark_of(&self, number: usize, undecided: Status) -> u64 {
        let block = self.blocks[number / PER_BLOCK].load(Ordering::Acquire);
        let within = number % PER_BLOCK * DESCRIPTOR_BYTES;
        let mark = Mark {
            descriptor: Offset::from_word(block) + within as u64,
            number: undecided.number,
        };
        mark.to_word()
    }

    /// Decides a change, unless it has been decided, and exchanges its marks for the values that are right then. Returns whether the change has succeeded.
    fn decide_and_apply(&self, number: usize, undecided: Status, outcome: State) -> bool {
        let (descriptor, mark) = (self.descriptor(number), self.mark_of(number, undecided));
        let decided = undecided.with(outcome);
        if planted(Bug::AppliedBeforeDecided) {
            self.pm
                .exchange(&descriptor.status, undecided.to_word(), decided.to_word());
        } else {
            // COMMIT pmr.decide: the status of the change. Before this store recovery gives all words of the change their old values; after it, if the
            // change has succeeded, their new ones.
            self.exchange(
                &descriptor.status,
                undecided.to_word(),
                decided.to_word(),
                "pmr.decide",
            );
            self.flight.settle(&descriptor.status);
        }
        let has_succeeded =
            descriptor.status.load_acquire() == undecided.with(State::Succeeded).to_word();
        for target in &descriptor.targets {
            let Some(cell) = self.cell_of(target) else {
                continue;
            };
            let word = if has_succeeded {
                &target.new
            } else {
                &target.old
            };
            // COMMIT pmr.apply: recovery does these stores, whichever of them it finds done.
            if !self.exchange(cell, mark, word.load(), "pmr.apply") {
                // Another thread has, and its fence may be to come.
                self.flight.settle(cell);
            }
        }
        if planted(Bug::AppliedBeforeDecided) {
            self.pm.named("pmr.decide").persist(&descriptor.status);
        }
        has_succeeded
    }

    /// Exchanges old values for the mark. Returns how the change is to be decided, unless it has been.
    fn mark_all(&self, number: usize, undecided: Status) -> Result<State> {
        let (descriptor, mark) = (self.descriptor(number), self.mark_of(number, undecided));
        for target in &descriptor.targets {
            let Some(cell) = self.cell_of(target) else {
                continue;
            };
            loop {
                point();
                let now = cell.load_acquire();
                if now == mark {
                    self.flight.settle(cell);
                    break;
                }
                // After the word: if the change is still undecided, the word has not lost the mark since.
                if descriptor.status.load_acquire() != undecided.to_word() {
                    return Ok(State::Failed);
                }
                if is_mark(now) {
                    self.help(cell, now)?;
                    continue;
                }
                let old = target.old.load();
                if now != old {
                    return Ok(State::Failed);
                }
                // COMMIT pmr.mark: the word is part of a change that is under way. Recovery gives it its old value, unless the status says that the
                // change has succeeded.
                if self.exchange(cell, old, mark, "pmr.mark") {
                    break;
                }
            }
        }
        Ok(State::Succeeded)
    }

    fn cell_of(&self, target: &super::layout::Target) -> Option<&Cell> {
        let offset = Offset::from_word(target.offset.load());
        (!offset.is_none()).then(|| self.nodes.cell(offset))
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> u64 {
        self.flight.bytes() + size_of_val(&*self.parts) as u64
    }
}

fn not_a_descriptor() -> Error {
    Error::Damaged("a descriptor of the index has no status".into())
}

/// Blocks of descriptors.
impl<G: Geometry> Words<G> {
    /// Fills a block of descriptors that is not reachable yet, and flushes it.
    pub(super) fn fill_descriptors(
        pm: Pm,
        nodes: &Nodes<G>,
        block: Offset,
        status: [u64; PER_BLOCK],
    ) {
        for (number, status) in status.into_iter().enumerate() {
            let descriptor: &Descriptor = nodes.part(block + (number * DESCRIPTOR_BYTES) as u64);
            let targets = descriptor.targets.iter();
            let zero = targets.flat_map(|target| [&target.offset, &target.old, &target.new]);
            zero.chain(&descriptor.zero)
                .for_each(|cell| pm.store(cell, 0));
            pm.store(&descriptor.status, status);
            pm.named("pmr.fill").flush(descriptor);
        }
    }

    /// Where the blocks of descriptors are.
    pub(super) fn descriptor_blocks(&self) -> [Offset; DESCRIPTOR_BLOCKS] {
        self.blocks
            .each_ref()
            .map(|block| Offset::from_word(block.load(Ordering::Acquire)))
    }

    /// Finishes the changes that were under way when the last session ended, or takes them back: part of the open. O(number of descriptors).
    ///
    /// A crash meanwhile changes nothing for the next recovery: statuses stay as they are, and words that have no mark any more are left alone.
    pub(super) fn recover(&self) -> Result<()> {
        for (block, number) in self.blocks.iter().zip(FIRST_DESCRIPTORS..) {
            let offset = self.root_cell(number).load_acquire();
            let offset = Offset::from_word(offset);
            if !self.space.owns(offset) {
                return Err(Error::Damaged(format!(
                    "{offset:#x} is no block of descriptors of this index"
                )));
            }
            block.store(offset.get(), Ordering::Release);
            for within in 0..PER_BLOCK {
                self.recover_change(offset + (within * DESCRIPTOR_BYTES) as u64)?;
            }
        }
        Ok(())
    }

    fn recover_change(&self, at: Offset) -> Result<()> {
        let descriptor: &Descriptor = self.nodes.part(at);
        let status = Status::from_word(descriptor.status.load()).ok_or_else(not_a_descriptor)?;
        let number = status.number;
        let mark = Mark {
            descriptor: at,
            number,
        };
        let has_succeeded = status.state == State::Succeeded;
        for target in &descriptor.targets {
            let Some(cell) = self.cell_in_file(target) else {
                continue;
            };
            if cell.load() != mark.to_word() || planted(Bug::ChangesForgotten) {
                continue;
            }
            if self.place.core.is_read_only() {
                // The index has not been opened since a crash.
                return Err(Error::NotClean);
            }
            let word = if has_succeeded {
                &target.new
            } else {
                &target.old
            };
            self.pm
                .note("pmr: change finished by recovery", u64::from(has_succeeded));
            // COMMIT pmr.recover: as `pmr.apply`.
            self.pm.commit(cell, word.load(), "pmr.recover");
        }
        Ok(())
    }

    /// The word that a descriptor names which comes from the file; none if it does not lie in the index. It may have lain in a node that is there no
    /// more.
    fn cell_in_file(&self, target: &super::layout::Target) -> Option<&Cell> {
        let offset = Offset::from_word(target.offset.load());
        let roots =
            [super::layout::ROOT, super::layout::RELOCATIONS].map(|root| self.root_cell(root));
        let root = roots
            .into_iter()
            .find(|cell| self.nodes.offset_of(cell) == offset);
        let block = Offset::from_word(offset.get() & !(NODE_BYTES as u64 - 1));
        // The word of a node is its first one.
        let is_node = offset == block && !offset.is_none() && self.space.owns(block);
        root.or_else(|| is_node.then(|| self.nodes.cell(offset)))
    }

    /// Moves blocks of descriptors that do not lie before `end` there, as far as nobody works with their descriptors and there are free blocks. Returns
    /// whether there were.
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | 1. all descriptors of the block are taken; a copy without their changes is filled; fence | a block that nothing leads to | sweeps the copy |
    /// | 2. COMMIT pmr.move-descriptors: the root in the catalog entry | the copy, in place of the block | sweeps the old block |
    pub(super) fn move_descriptors_below(&self, end: Offset, retire: impl Fn(Offset)) -> bool {
        let _moving = lock(&self.moving);
        for (at, block) in self.descriptor_blocks().into_iter().enumerate() {
            if block < end {
                continue;
            }
            let Some(new) = self.space.alloc_below(end) else {
                return false;
            };
            let mine = at * PER_BLOCK..(at + 1) * PER_BLOCK;
            let taken: Vec<usize> = mine
                .clone()
                .filter(|&number| self.take_if_unused(&self.parts[number].users))
                .collect();
            if taken.len() == PER_BLOCK {
                let statuses: [u64; PER_BLOCK] = std::array::from_fn(|within| {
                    self.descriptor(mine.start + within).status.load()
                });
                self.pm.note("pmr: descriptors moved", 0);
                Self::fill_descriptors(self.pm, &self.nodes, new, statuses);
                self.pm.named("pmr.copy").fence();
                // COMMIT pmr.move-descriptors: the root in the catalog entry. Before this store recovery looks at the old block, after it at the
                // new one. No change of either is under way, and no word has a mark of either.
                let root = self.root_cell(FIRST_DESCRIPTORS + at);
                self.pm.commit(root, new.get(), "pmr.move-descriptors");
                self.blocks[at].store(new.get(), Ordering::Release);
                retire(block);
            } else {
                self.space.free_now(new);
            }
            for number in taken {
                self.parts[number].users.fetch_sub(OWNER, Ordering::SeqCst);
            }
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
