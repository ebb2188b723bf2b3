//! Changes of several words, which a crash leaves all done or all undone.
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. all that the words will lead to is written and flushed; the stores are noted in the log; fence | entries and nodes that nothing leads to | nothing; the blocks are swept |
//! | 2. `state` = 1, flush, fence | the stores, as a list | does all of them |
//! | 3. the stores are done, and flushed; fence | the stores | does them once more |
//! | 4. `state` = 0, flush, fence | the change | nothing |
//!
//! There is one log, since there is one writer. With `flush=leaves` words of inner nodes are stored in step 3 and neither logged nor flushed.

use super::layout::{LOGGED, NODE_BYTES};
use super::{Bug, Tree, Writer};
use crate::pmem::Cell;
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::spatial::Geometry;
use crate::{Error, Result};

/// A store that is part of a change.
#[derive(Clone, Copy)]
pub(super) struct Store<'a> {
    pub(super) cell: &'a Cell,
    pub(super) value: u64,
    /// The level of the node that the word is in; 0 too for a word of the root block.
    pub(super) level: u32,
}

impl<G: Geometry> Writer<'_, G> {
    /// Does stores together. What they depend on has been flushed; the nodes that they change are locked.
    pub(super) fn commit_together(&self, stores: &[Store<'_>]) {
        let pm = self.tree.pm;
        let durable = stores.iter().filter(|store| self.is_durable(store.level));
        let durable: Vec<&Store<'_>> = durable.collect();
        for store in stores.iter().filter(|store| !self.is_durable(store.level)) {
            pm.store(store.cell, store.value);
        }
        match durable[..] {
            [] => {}
            [only] => {
                self.persist_prepared();
                // COMMIT fbr.single: a change of one word: the word of the parent of an inner node that is split, or the link to one that
                // moves. Before this store recovery sees the old node, and sweeps the new ones; after it, the other way round.
                pm.commit(only.cell, only.value, "fbr.single");
            }
            _ => self.commit_logged(&durable),
        }
    }

    fn commit_logged(&self, stores: &[&Store<'_>]) {
        assert!(stores.len() <= LOGGED, "invariant: the log has room");
        let (pm, log) = (self.tree.pm, &self.tree.root_block().log);
        for (number, [offset, value]) in log.stores.iter().enumerate() {
            let store = stores.get(number);
            let at = store.map_or(Offset::NONE, |store| self.tree.nodes.offset_of(store.cell));
            pm.store(offset, at.get());
            pm.store(value, store.map_or(0, |store| store.value));
        }
        self.persist_prepared();
        // COMMIT fbr.log: `state` of the log, in one line with the stores. Before this store recovery sees nothing of the change; after it,
        // recovery does all stores.
        pm.commit(&log.state, 1, "fbr.log");
        if planted(Bug::LogClearedEarly) {
            pm.commit(&log.state, 0, "fbr.logged");
        }
        for store in stores {
            // COMMIT fbr.apply: recovery does these stores, whichever of them it finds done.
            pm.publish(store.cell, store.value, "fbr.apply");
        }
        pm.named("fbr.apply").fence();
        // COMMIT fbr.logged: the change is whole without the log. From here on recovery leaves these words as they are, which the next
        // change may change again.
        pm.commit(&log.state, 0, "fbr.logged");
    }
}

impl<G: Geometry> Tree<G> {
    /// Whether a change was under way when the last session ended.
    pub(super) fn has_logged_change(&self) -> bool {
        self.root_block().log.state.load_acquire() != 0 && !planted(Bug::LogIgnored)
    }

    /// Does what the log says: part of the open, before anything else reads nodes. O(1).
    pub(super) fn finish_logged_change(&self) -> Result<()> {
        let log = &self.root_block().log;
        self.pm.note("change finished by recovery", 0);
        for [offset, value] in &log.stores {
            let at = Offset::from_word(offset.load());
            if at.is_none() {
                continue;
            }
            let block = Offset::from_word(at.get() & !(NODE_BYTES as u64 - 1));
            if log.state.load() != 1 || !at.get().is_multiple_of(8) || !self.space.owns(block) {
                let problem = format!("the log of the index has a store at {at:#x}");
                return Err(Error::Damaged(problem));
            }
            // COMMIT fbr.redo: as `fbr.apply`.
            self.pm
                .publish(self.nodes.cell(at), value.load(), "fbr.redo");
        }
        self.pm.named("fbr.redo").fence();
        // COMMIT fbr.redone: as `fbr.logged`.
        self.pm.commit(&log.state, 0, "fbr.redone");
        Ok(())
    }
}
