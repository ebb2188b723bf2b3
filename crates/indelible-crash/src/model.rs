//! Memory as a crash finds it: what is there for certain, and what may or may not have arrived.
//!
//! On persistent memory 8-byte stores are atomic. The stores to one 64-byte line reach memory in program order, so any
//! prefix of them may be there; between lines nothing is ordered but by a flush and then a fence of the same thread. What a
//! killed process leaves is simpler: everything that it executed.
//!
//! On a disk the memory is what the log makes of it: a crash leaves a prefix of the batches that were appended, as far as they are
//! durable for certain, or further. Each batch is written to the bytes of a record here, and read from them, by the library's own code.

use crate::CrashModel;
use indelible::checker::through_the_log;
use indelible::pmem::trace::{Action, Event};
use indelible::pmem::{LINE, Memory};
use rand::RngExt;
use rand::rngs::SmallRng;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;

/// One store that may not have arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store {
    pub(crate) word: usize,
    pub(crate) value: u64,
    pub(crate) thread: usize,
    pub(crate) name: &'static str,
    pub(crate) source: &'static Location<'static>,
    /// By how much the image's hash changes if this store and those before it to the same line have arrived.
    change: u64,
    /// Its number among all stores: they are in the order of execution.
    number: u64,
    /// Whether a process made it that has died since.
    is_inherited: bool,
}

/// The stores to one line that may not have arrived, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    pub(crate) stores: Vec<Store>,
    /// How many of them have been flushed, by whomever.
    pub(crate) flushed: usize,
}

/// How much of each pending line has arrived: a number of stores for each.
pub(crate) type Choice = Vec<usize>;

/// The memory at one point of a recording: `memory` has what is durable for certain, the other fields what may have arrived.
pub(crate) struct Model {
    pub(crate) memory: Arc<Memory>,
    crash_model: CrashModel,
    base: usize,
    /// By number of the line.
    pub(crate) pending: BTreeMap<usize, Line>,
    /// For each thread, the lines that it has flushed since its last fence, and how many stores they had.
    flushed: Vec<Vec<(usize, usize)>>,
    hash: u64,
    /// On a disk, what each thread has stored since its last batch. What is appended and not durable is in `pending`, as one line.
    batches: Vec<Vec<Store>>,
    /// Where each appended batch ends in that line, and its number.
    ends: Vec<(usize, u64)>,
    /// Stores so far.
    stores: u64,
}

/// On a disk, the only line of `pending`: all stores that were appended, in the order of the log.
const LOG: usize = 0;

/// A fingerprint of a word at its place; all of an image's, together, identify it.
fn fingerprint(word: usize, value: u64) -> u64 {
    if value == 0 {
        return 0;
    }
    let mut hash = value ^ (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53_u64] {
        hash = (hash ^ hash >> 32).wrapping_mul(factor);
    }
    hash ^ hash >> 29
}

fn fingerprint_of(memory: &Memory) -> u64 {
    let words = memory.words().iter().enumerate();
    let length = fingerprint(usize::MAX, memory.length());
    words.fold(length, |hash, (at, word)| {
        hash ^ fingerprint(at, word.load())
    })
}

impl Model {
    /// `recorded_at` is the base address of the memory that the events speak of; `memory` is empty, as that was.
    pub(crate) fn new(memory: Arc<Memory>, recorded_at: usize, crash_model: CrashModel) -> Self {
        let hash = fingerprint_of(&memory);
        Self {
            memory,
            crash_model,
            base: recorded_at,
            pending: BTreeMap::new(),
            flushed: Vec::new(),
            hash,
            batches: Vec::new(),
            ends: Vec::new(),
            stores: 0,
        }
    }

    /// Whether the memory is what the model thinks it is.
    pub(crate) fn is_intact(&self) -> bool {
        fingerprint_of(&self.memory) == self.hash
    }

    /// The model of a recovery: of an image that lies in `memory` already and has this fingerprint.
    pub(crate) fn within(memory: &Arc<Memory>, crash_model: CrashModel, image: u64) -> Self {
        Self {
            crash_model,
            base: memory.base(),
            pending: BTreeMap::new(),
            flushed: Vec::new(),
            hash: image,
            batches: Vec::new(),
            ends: Vec::new(),
            stores: 0,
            memory: Arc::clone(memory),
        }
    }

    fn word(&self, at: usize) -> u64 {
        self.memory.words()[at].load()
    }

    fn set(&mut self, at: usize, value: u64) {
        self.hash ^= fingerprint(at, self.word(at)) ^ fingerprint(at, value);
        self.memory.set(at, value);
    }

    /// Whether images differ before and after this event in more than that there are more of them after it: then a crash
    /// before it has to be looked at. (A store only adds to what may be there, a flush changes nothing by itself.)
    pub(crate) fn is_point(&self, event: &Event) -> bool {
        match event.action {
            Action::Fence if self.crash_model == CrashModel::Pmem => self
                .flushed
                .get(event.thread)
                .is_some_and(|lines| !lines.is_empty()),
            Action::Store { .. } => self.crash_model == CrashModel::Process,
            // Before this, less of the log may have arrived.
            Action::Durable(number) => self.ends.first().is_some_and(|end| end.1 <= number),
            Action::Synced => self.crash_model == CrashModel::Pmem && !self.pending.is_empty(),
            Action::Mark(_) | Action::Length { .. } | Action::Looked => true,
            _ => false,
        }
    }

    pub(crate) fn replay(&mut self, event: &Event) {
        match event.action {
            Action::Store { address, value, .. } => {
                let word = (address - self.base) / 8;
                if self.crash_model == CrashModel::Process {
                    self.set(word, value);
                } else if self.crash_model == CrashModel::Disk {
                    let store = Store {
                        word,
                        value,
                        thread: event.thread,
                        name: event.name,
                        source: event.source,
                        change: 0,
                        number: 0,
                        is_inherited: false,
                    };
                    self.batch_of(event.thread).push(store);
                } else {
                    self.pend(word, value, event);
                }
            }
            Action::Flush { address, bytes } if self.crash_model == CrashModel::Pmem => {
                let first = (address - self.base) / LINE;
                if self.flushed.len() <= event.thread {
                    self.flushed.resize(event.thread + 1, Vec::new());
                }
                for number in first..first + bytes / LINE {
                    if let Some(line) = self.pending.get_mut(&number) {
                        line.flushed = line.stores.len();
                        let mine = &mut self.flushed[event.thread];
                        mine.retain(|&(other, _)| other != number);
                        mine.push((number, line.flushed));
                    }
                }
            }
            Action::Fence if self.crash_model == CrashModel::Pmem => self.fence(event.thread),
            Action::Synced if self.crash_model == CrashModel::Pmem => self.sync(),
            Action::Appended(number) => self.append(event.thread, number),
            Action::Durable(number) => self.make_durable(number),
            Action::Length { from, to } => self.set_length(from, to),
            _ => {}
        }
    }

    fn pend(&mut self, word: usize, value: u64, event: &Event) {
        self.stores += 1;
        let number = word * 8 / LINE;
        let durable = self.word(word);
        let line = self.pending.entry(number).or_default();
        let same_word = line.stores.iter().rev().find(|store| store.word == word);
        let before = same_word.map_or(durable, |store| store.value);
        let change = line.stores.last().map_or(0, |store| store.change)
            ^ fingerprint(word, before)
            ^ fingerprint(word, value);
        line.stores.push(Store {
            word,
            value,
            thread: event.thread,
            name: event.name,
            source: event.source,
            change,
            number: self.stores,
            is_inherited: false,
        });
    }

    fn batch_of(&mut self, thread: usize) -> &mut Vec<Store> {
        if self.batches.len() <= thread {
            self.batches.resize(thread + 1, Vec::new());
        }
        &mut self.batches[thread]
    }

    /// On a disk, what `thread` has stored since its last batch is appended to the log, as the batch of this number. (There is no batch if it has
    /// stored nothing.)
    fn append(&mut self, thread: usize, number: u64) {
        let batch = std::mem::take(self.batch_of(thread));
        if batch.is_empty() {
            return;
        }
        let words: Vec<(u64, u64)> = batch.iter().map(|s| (s.word as u64, s.value)).collect();
        let read = through_the_log(&words).expect("the log reads what it has written");
        let line = self.pending.entry(LOG).or_default();
        let mut change = line.stores.last().map_or(0, |store| store.change);
        for (mut store, (word, value)) in batch.into_iter().zip(read) {
            (store.word, store.value) = (word as usize, value);
            let same_word = |other: &&Store| other.word == store.word;
            let before = line.stores.iter().rev().find(same_word);
            let before = before.map_or_else(|| self.memory.words()[store.word].load(), |s| s.value);
            change ^= fingerprint(store.word, before) ^ fingerprint(store.word, value);
            store.change = change;
            line.stores.push(store);
        }
        self.ends.push((line.stores.len(), number));
    }

    /// On a disk, the batches up to this number have reached it.
    fn make_durable(&mut self, number: u64) {
        let count = self.ends.iter().take_while(|end| end.1 <= number).count();
        let Some(&(stores, _)) = self.ends[..count].last() else {
            return;
        };
        let Some(mut line) = self.pending.remove(&LOG) else {
            return;
        };
        let arrived = line.stores[stores - 1].change;
        for store in line.stores.drain(..stores) {
            self.set(store.word, store.value);
        }
        self.ends.drain(..count);
        self.ends.iter_mut().for_each(|end| end.0 -= stores);
        if !line.stores.is_empty() {
            line.stores
                .iter_mut()
                .for_each(|store| store.change ^= arrived);
            self.pending.insert(LOG, line);
        }
    }

    /// What `thread` has flushed is durable now.
    fn fence(&mut self, thread: usize) {
        let Some(lines) = self.flushed.get_mut(thread).map(std::mem::take) else {
            return;
        };
        for (number, count) in lines {
            let Some(mut line) = self.pending.remove(&number) else {
                continue;
            };
            let count = count.min(line.stores.len());
            let arrived = line.stores[..count].last().map_or(0, |store| store.change);
            for store in line.stores.drain(..count) {
                self.set(store.word, store.value);
            }
            line.flushed -= count.min(line.flushed);
            // Other threads may have flushed the same stores.
            for (other, theirs) in self.flushed.iter_mut().flatten() {
                if *other == number {
                    *theirs -= count.min(*theirs);
                }
            }
            if !line.stores.is_empty() {
                line.stores
                    .iter_mut()
                    .for_each(|store| store.change ^= arrived);
                self.pending.insert(number, line);
            }
        }
    }

    /// The file was synced: all that was stored is durable.
    fn sync(&mut self) {
        for (_, line) in std::mem::take(&mut self.pending) {
            for store in line.stores {
                self.set(store.word, store.value);
            }
        }
        self.flushed.clear();
    }

    /// What the next process finds if this one dies now and the power stays on: it sees all stores, and a power cut can still take back those that
    /// were not flushed. (What was flushed has arrived by the time that another process runs.) The memory is changed into what is durable by then.
    pub(crate) fn inherited(&self) -> Self {
        let mut next = Self {
            crash_model: self.crash_model,
            base: self.memory.base(),
            pending: self.pending.clone(),
            flushed: Vec::new(),
            hash: self.hash,
            batches: Vec::new(),
            ends: Vec::new(),
            stores: self.stores,
            memory: Arc::clone(&self.memory),
        };
        for mut line in std::mem::take(&mut next.pending).into_values() {
            let arrived = line.stores[..line.flushed]
                .last()
                .map_or(0, |store| store.change);
            for store in line.stores.drain(..line.flushed) {
                next.set(store.word, store.value);
            }
            line.flushed = 0;
            for store in &mut line.stores {
                store.change ^= arrived;
                store.is_inherited = true;
            }
            if let Some(store) = line.stores.first() {
                next.pending.insert(store.word * 8 / LINE, line);
            }
        }
        next
    }

    /// Whether stores are in doubt that a process made which has died since.
    pub(crate) fn has_inherited(&self) -> bool {
        let mut stores = self.pending.values().flat_map(|line| &line.stores);
        stores.any(|store| store.is_inherited)
    }

    /// Whether there are stores that nobody has flushed.
    pub(crate) fn is_any_cached(&self) -> bool {
        let mut lines = self.pending.values();
        lines.any(|line| line.flushed < line.stores.len())
    }

    /// The image in which all that is in doubt has arrived.
    pub(crate) fn all(&self) -> Choice {
        let lines = self.pending.values();
        lines.map(|line| line.stores.len()).collect()
    }

    fn set_length(&mut self, from: u64, to: u64) {
        let cut = (to as usize).next_multiple_of(LINE) / 8..from as usize / 8;
        for at in cut {
            self.set(at, 0);
        }
        let is_log = self.crash_model == CrashModel::Disk;
        self.pending
            .retain(|&number, _| is_log || ((number * LINE) as u64) < to);
        for lines in &mut self.flushed {
            lines.retain(|&(number, _)| ((number * LINE) as u64) < to);
        }
        self.memory.set_length_unseen(to);
        self.hash ^= fingerprint(usize::MAX, from) ^ fingerprint(usize::MAX, to);
    }

    /// The fingerprint of the image that a choice makes.
    pub(crate) fn hash_of(&self, choice: &[usize]) -> u64 {
        let lines = self.pending.values().zip(choice);
        lines.fold(self.hash, |hash, (line, &count)| {
            hash ^ line.stores[..count].last().map_or(0, |store| store.change)
        })
    }

    /// Makes the image of a choice in memory. `undo` gets what [`restore`](Self::restore) needs.
    pub(crate) fn apply(&self, choice: &[usize], undo: &mut Vec<(usize, u64)>) {
        undo.clear();
        for (line, &count) in self.pending.values().zip(choice) {
            for store in &line.stores[..count] {
                undo.push((store.word, self.word(store.word)));
                self.memory.set(store.word, store.value);
            }
        }
    }

    /// Takes an image out of memory again, after what was done to it since is undone.
    pub(crate) fn restore(&self, undo: &[(usize, u64)]) {
        for &(word, value) in undo.iter().rev() {
            self.memory.set(word, value);
        }
    }

    /// Calls `visit` with how much of each pending line has arrived: all combinations if they are at most `most`, else
    /// none, all, each line alone, all but each, and a sample: what was stored up to a moment, all or nothing but for a part of one line, and any at random. Stops early
    /// if `visit` says `false`.
    pub(crate) fn for_each_choice(
        &self,
        most: usize,
        random: &mut SmallRng,
        mut visit: impl FnMut(&Choice) -> bool,
    ) {
        if self.crash_model == CrashModel::Disk {
            // Every prefix of the log.
            let ends = self.ends.iter().map(|end| end.0);
            let mut choices = std::iter::once(0).chain(ends).map(|end| vec![end]);
            choices.all(|choice| visit(&choice));
            return;
        }
        let lengths: Vec<usize> = self
            .pending
            .values()
            .map(|line| line.stores.len())
            .collect();
        let count = lengths
            .iter()
            .try_fold(1_usize, |product, length| product.checked_mul(length + 1));
        let mut choice = vec![0; lengths.len()];
        if count.is_some_and(|count| count <= most) {
            loop {
                if !visit(&choice) || !next(&mut choice, &lengths) {
                    return;
                }
            }
        }
        let (none, all) = (choice.clone(), lengths.clone());
        if !visit(&none) || !visit(&all) {
            return;
        }
        for line in 0..lengths.len() {
            choice.clone_from(&none);
            choice[line] = lengths[line];
            let alone = visit(&choice);
            choice.clone_from(&all);
            choice[line] = 0;
            if !alone || !visit(&choice) {
                return;
            }
        }
        // Also where there are more lines than that: what only an image that is none of those shows would never be seen there.
        let systematic = 2 * lengths.len() + 2;
        let end = most.max(systematic + most / 16);
        let stores = || self.pending.values().flat_map(|line| &line.stores);
        let oldest = stores().map(|store| store.number).min().unwrap_or(0);
        let torn: Vec<usize> = (0..lengths.len()).filter(|&at| lengths[at] > 1).collect();
        for turn in systematic..end {
            match turn % 4 {
                // All that was stored up to a moment, as if every line had been evicted at once.
                0 => {
                    let last = random.random_range(oldest..=self.stores);
                    for (count, line) in choice.iter_mut().zip(self.pending.values()) {
                        *count = line.stores.partition_point(|store| store.number <= last);
                    }
                }
                // All but the end of one line, or nothing but its beginning.
                1 if !torn.is_empty() => {
                    choice.clone_from(if random.random() { &all } else { &none });
                    let line = torn[random.random_range(0..torn.len())];
                    choice[line] = random.random_range(1..lengths[line]);
                }
                _ => {
                    for (count, &length) in choice.iter_mut().zip(&lengths) {
                        *count = random.random_range(0..=length);
                    }
                }
            }
            if !visit(&choice) {
                return;
            }
        }
    }
}

/// The next combination; `false` after the last.
fn next(choice: &mut Choice, lengths: &[usize]) -> bool {
    for (count, &length) in choice.iter_mut().zip(lengths) {
        if *count < length {
            *count += 1;
            return true;
        }
        *count = 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use indelible::pmem::{Medium, Pm, trace};
    use rand::SeedableRng;

    /// The choices at the end of some stores without a flush: one to each of 30 lines, and eight to another one in their midst.
    fn choices(most: usize) -> Vec<Choice> {
        let memory = Arc::new(Memory::new(4096));
        memory.set_length_unseen(4096);
        let pm = Pm::new(Medium::Dram);
        trace::start(Vec::new());
        for line in 0..31 {
            for word in 0..if line == 15 { 8 } else { 1 } {
                pm.store(&memory.words()[8 * line + word], 1);
            }
        }
        let events = trace::stop();
        let empty = Arc::new(Memory::new(4096));
        empty.set_length_unseen(4096);
        let mut model = Model::new(empty, memory.base(), CrashModel::Pmem);
        events.iter().for_each(|event| model.replay(event));
        let (mut random, mut choices) = (SmallRng::seed_from_u64(7), Vec::new());
        model.for_each_choice(most, &mut random, |choice| {
            choices.push(choice.clone());
            true
        });
        choices
    }

    #[test]
    fn a_sample_has_what_was_stored_up_to_a_moment_and_lines_of_which_only_a_part_is_missing() {
        assert!(choices(48).len() > 64);
        for most in [128, 256] {
            let choices = choices(most);
            let is_torn = |choice: &&Choice| (1..8).contains(&choice[15]);
            let torn = choices.iter().filter(is_torn);
            let others = |choice: &Choice| choice.iter().sum::<usize>() - choice[15];
            let found: Vec<usize> = torn.map(others).collect();
            assert!(found.contains(&30), "{most}: all but a part of one line");
            assert!(found.contains(&0), "{most}: nothing but a part of one line");
            let is_moment = |choice: &&Choice| {
                let arrived = choice.iter().take_while(|&&count| count > 0).count();
                (3..28).contains(&arrived) && choice[arrived..].iter().all(|&count| count == 0)
            };
            assert!(
                choices.iter().any(|choice| is_moment(&choice)),
                "{most}: a moment"
            );
        }
    }
}
