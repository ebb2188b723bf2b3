//! Relocations: a record moves to another place in one step.
//!
//! Within a leaf, the record is written to a free entry, and one store of the leaf's word sets its bit and clears that of the old entry. Between
//! leaves there are two words, which go through the log (`log`), and both leaves are locked: other threads see neither. A search that reads many
//! leaves could still see the record twice or not at all. So such a relocation is announced, and searches during which one took place begin
//! again.

use super::log::Store;
use super::{Bug, Tree, Writer};
use crate::Result;
use crate::engines::rect::Record;
use crate::pmem::planted::planted;
use crate::spatial::{Geometry, Rect};

impl<G: Geometry> Tree<G> {
    /// See [`Spatial::relocate`](crate::engines::Spatial::relocate).
    pub(super) fn relocate(&self, payload: u64, from: &G, to: &G) -> Result<bool> {
        let (old, new) = (Record::new(from, payload), Record::new(to, payload));
        loop {
            // Here the mutex is given back; as a part of the `match` it would be held to the end of that.
            let outcome = self.write().try_relocate(&old, &new, &Rect::of(to))?;
            match outcome {
                Relocation::Done => return Ok(true),
                Relocation::Absent => return Ok(false),
                // Without the mutex, since the search may call back a user who wants to write.
                Relocation::Paused => self.relocations.wait_for_searches(),
            }
        }
    }
}

/// How an attempt to relocate a record ended.
enum Relocation {
    Done,
    Absent,
    /// A search keeps relocations from beginning.
    Paused,
}

impl<G: Geometry> Writer<'_, G> {
    fn try_relocate(&self, old: &Record, new: &Record, rect: &Rect) -> Result<Relocation> {
        if self.find(old)?.is_none() {
            return Ok(Relocation::Absent);
        }
        if old == new {
            return Ok(Relocation::Done);
        }
        let target = self.choose_with_room(rect)?;
        // Again, since splits may have moved the record.
        let Some((source, slot)) = self.find(old)? else {
            return Ok(Relocation::Absent);
        };
        let (leaf, to) = (source.leaf, target.leaf);
        if leaf.offset == to.offset {
            let guards = self.lock_nodes(&[leaf.offset]);
            self.enlarge(&target, rect);
            let bit = self.write_record(leaf, new);
            self.persist_prepared();
            self.tree.pm.note("relocation within a leaf", 0);
            let bitmap = (leaf.word().bitmap() | bit) & !(1 << slot);
            self.commit_leaf(leaf, bitmap, guards);
            return Ok(Relocation::Done);
        }
        let change = self.tree.relocations.try_begin();
        if change.is_none() {
            return Ok(Relocation::Paused);
        }
        let change = change.filter(|_| !planted(Bug::RelocationNotAnnounced));
        let guards = self.lock_nodes(&[leaf.offset, to.offset]);
        self.enlarge(&target, rect);
        let bit = self.write_record(to, new);
        self.tree.pm.note("relocation between leaves", 0);
        let stores = [
            Store {
                cell: &to.block.word,
                value: to.word().with(to.word().bitmap() | bit).0,
                level: 0,
            },
            Store {
                cell: &leaf.block.word,
                value: leaf.word().with(leaf.word().bitmap() & !(1 << slot)).0,
                level: 0,
            },
        ];
        if planted(Bug::RelocateInTwoCommits) {
            stores
                .iter()
                .for_each(|&store| self.commit_together(&[store]));
        } else {
            self.commit_together(&stores);
        }
        drop((guards, change));
        self.unlink_if_empty(&source)?;
        Ok(Relocation::Done)
    }
}
