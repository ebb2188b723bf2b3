//! Relocations: a record moves to another place in one step.
//!
//! Within a leaf, the record is written to a free slot, and one exchange of the leaf's word sets its bit and clears that of the old entry. Between leaves
//! there are three words: those of both leaves, and the number of relocations, by which searches know that they have to begin again (`quiet`).

use super::layout::RELOCATIONS;
use super::multiword::Exchange;
use super::node::{Path, View};
use super::remove::Found;
use super::{Bug, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::rect::Record;
use crate::pmem::planted::planted;
use crate::spatial::{Geometry, Rect};

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::relocate`](crate::engines::Spatial::relocate).
    ///
    /// | step | what is durable | what recovery does |
    /// |---|---|---|
    /// | 1. as for an insert, all but the word of the leaf | boxes that are larger than necessary, an entry that no word mentions | nothing |
    /// | 2. within a leaf: the word of the leaf | the record at its new place | nothing |
    /// | 2. between leaves: the words of both, and the number of relocations, as `multiword` says | all words, or none | as `multiword` says |
    pub(super) fn relocate(&self, payload: u64, from: &G, to: &G) -> Result<bool> {
        let (old, new) = (Record::new(from, payload), Record::new(to, payload));
        loop {
            let _guard = epochs::pin();
            if let Some(is_there) = self.try_relocate(&old, &new, &Rect::of(to))? {
                return Ok(is_there);
            }
        }
    }

    /// Whether the record was there; none if the caller has to begin again.
    fn try_relocate(&self, old: &Record, new: &Record, rect: &Rect) -> Result<Option<bool>> {
        let (source, from) = match self.find(old)? {
            Found::At(path, slot) => (path, slot),
            Found::Absent => return Ok(Some(false)),
            Found::Disturbed => return Ok(None),
        };
        if old == new {
            return Ok(Some(true));
        }
        let Some(target) = self.choose(rect)? else {
            return Ok(None);
        };
        let Some(to) = self.prepare(&target, rect, new)? else {
            return Ok(None);
        };
        let is_within = source.last.offset() == target.last.offset();
        let done = if is_within {
            self.relocate_within(&source.last, from, to)?
        } else {
            self.relocate_between(&source, from, &target.last, to)?
        };
        if !done {
            self.slots.of(target.last.offset()).give_back(to);
        }
        Ok(done.then_some(true))
    }

    fn relocate_within(&self, leaf: &View<'_, G>, from: usize, to: usize) -> Result<bool> {
        loop {
            let now = self.again(leaf)?;
            if now.word.is_frozen() || now.bitmap() >> from & 1 == 0 {
                return Ok(false);
            }
            self.slots.of(leaf.offset()).take_used(1 << from);
            let word = now.word.with(1 << to).without(1 << from);
            self.pm.note("pmr: relocation within a leaf", 0);
            // COMMIT pmr.relocate: the word of the leaf. Before this store recovery sees the record at its old place, after it at the new one.
            let cell = &leaf.node.block.word;
            if self
                .words
                .exchange(cell, now.word.0, word.0, "pmr.relocate")
            {
                self.count_added(leaf.offset(), 1 << to);
                self.count_removed(leaf.offset(), 1 << from);
                return Ok(true);
            }
        }
    }

    fn relocate_between(
        &self,
        source: &Path<'_, G>,
        from: usize,
        target: &View<'_, G>,
        to: usize,
    ) -> Result<bool> {
        loop {
            self.help_searches();
            let relocations = self.relocations()?;
            let (old, new) = (self.again(&source.last)?, self.again(target)?);
            if old.word.is_frozen() || new.word.is_frozen() || old.bitmap() >> from & 1 == 0 {
                return Ok(false);
            }
            self.slots.of(old.offset()).take_used(1 << from);
            self.pm.note("pmr: relocation between leaves", 0);
            let mut exchanges = [
                Exchange {
                    cell: &new.node.block.word,
                    old: new.word.0,
                    new: new.word.with(1 << to).0,
                },
                Exchange {
                    cell: &old.node.block.word,
                    old: old.word.0,
                    new: old.word.without(1 << from).0,
                },
                Exchange {
                    cell: self.words.root_cell(RELOCATIONS),
                    old: relocations,
                    new: relocations + 1,
                },
            ];
            let done = if planted(Bug::RelocateInTwoCommits) {
                let [first, second, _] = &mut exchanges;
                self.words.exchange_all(std::slice::from_mut(first))?
                    && self.words.exchange_all(std::slice::from_mut(second))?
            } else if planted(Bug::RelocationNotCounted) {
                self.words.exchange_all(&mut exchanges[..2])?
            } else {
                self.words.exchange_all(&mut exchanges)?
            };
            if done {
                self.count_added(new.offset(), 1 << to);
                self.count_removed(old.offset(), 1 << from);
                self.unlink_if_empty(source)?;
                return Ok(true);
            }
        }
    }
}
