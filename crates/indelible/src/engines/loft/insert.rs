//! Changes of one key.
//!
//! | change | exchanges | lines flushed, fences | the store that commits it |
//! |---|---|---|---|
//! | insert | empty to live, value included; where a pair may be torn: to pending, then to live | 1, 1 | the key word |
//! | update | the value | 1, 1 | the value |
//! | remove | live to removed | 1, 1 | the key word |
//!
//! **Why an insert is safe when power fails between its two words.** The first exchange makes the slot pending, which no recovery takes
//! for a record, whether its key or its value or both have reached memory. The second one changes one word, in the same line, whose stores
//! reach memory in order: so where the slot is live, its value is there.
//!
//! **Why nobody waits.** Each exchange fails only if another one has succeeded in the same slot, and each slot has only a few: empty,
//! pending, live, and then removed or frozen; a value that changes is another thread's update. A slot that is pending can be made live by
//! whoever needs it.

use super::Index;
use super::layout::{Slot, bare, key_word, state};
use super::node::{Child, Mode, load_move};
use super::search::{End, Found, Way, closed_for_nothing, never_written};
use super::tuning::{Counted, SAMPLED};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::Decision;
use crate::engines::flight::Ticket;
use crate::pmem::planted::planted;
use std::sync::atomic::Ordering;

impl Index {
    pub(super) fn apply_to(
        &self,
        key: u64,
        decide: &mut dyn FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>> {
        let pinned = epochs::pin();
        self.change(key, decide, pinned.is_one_in(SAMPLED))
    }

    /// Inserts records one after the other, and fetches the lines of all of them before. Returns how many were inserted before an error.
    pub(super) fn insert_together(&self, records: &[(u64, u64)]) -> usize {
        let records = &records[..records.len().min(super::LOOKUPS)];
        {
            let _pinned = epochs::pin();
            self.fetch_lines(self.top(), records.iter().map(|&(key, _)| key));
        }
        let insert =
            |&(key, value): &(u64, u64)| self.apply_to(key, &mut |_| Decision::Put(value)).is_ok();
        records.iter().take_while(|record| insert(record)).count()
    }

    /// Does with `key` what `decide` says. A record of the key that is met frozen, in a node that is moved, is carried along: it is inserted
    /// into the successor first, unless the key has been there. `is_sampled`: the operation is counted in its node.
    fn change(
        &self,
        key: u64,
        decide: &mut dyn FnMut(Option<u64>) -> Decision,
        is_sampled: bool,
    ) -> Result<Option<u64>> {
        let mut carried = None;
        let mut child = self.top();
        loop {
            let spot = self.walk(child, key)?;
            let node = match spot.end {
                End::Node(node) => node,
                End::Nothing => {
                    if carried.is_none() && !matches!(decide(None), Decision::Put(_)) {
                        return Ok(None);
                    }
                    self.create_at(&spot)?;
                    continue;
                }
            };
            if !node.linked.load(Ordering::Acquire) {
                self.link_node(node);
            }
            if let Some(moved) = load_move(&node.moving) {
                self.help(node, moved)?;
            }
            let mut way = Way::default();
            let found = self.find::<true>(node, key, &mut way)?;
            if way.is_removed && !planted(super::Bug::CopyAfterRemoval) {
                carried = None;
            }
            match found {
                Found::Live(slot, value) => {
                    carried = None;
                    let decision = decide(Some(value));
                    if self.change_live(slot, key, value, decision) {
                        if is_sampled {
                            let is_removal = decision == Decision::Remove;
                            let what = [Counted::Read, Counted::Write][usize::from(is_removal)];
                            node.sampled(what);
                        }
                        return Ok(Some(value));
                    }
                }
                Found::Empty(slot, beside) => {
                    if let Some(value) = carried {
                        if self.insert_into(slot, key, value, beside, "loft.copy") {
                            carried = None;
                            self.noticed(node, &way);
                        }
                        continue;
                    }
                    let Decision::Put(value) = decide(None) else {
                        return Ok(None);
                    };
                    if self.insert_into(slot, key, value, beside, "loft.insert") {
                        self.count_change(1);
                        if is_sampled {
                            node.sampled(Counted::Write);
                        }
                        self.after_insert(node, &spot, &way);
                        return Ok(None);
                    }
                }
                Found::NoRoom(link, place, level) => {
                    if carried.is_none() && !matches!(decide(None), Decision::Put(_)) {
                        return Ok(None);
                    }
                    self.add_room(node, link, (place, level), carried.is_some())?;
                }
                Found::Frozen(value) => (child, carried) = self.successor(node, Some(value))?,
                Found::Closed => (child, carried) = self.successor(node, carried)?,
                Found::Damaged => return Err(never_written(node)),
            }
        }
    }

    /// Where a key goes on that was met frozen or closed, and the value that is carried there.
    pub(super) fn successor(
        &self,
        node: &super::node::Node,
        carried: Option<u64>,
    ) -> Result<(Child, Option<u64>)> {
        let moved = load_move(&node.moving).ok_or_else(|| closed_for_nothing(node))?;
        if let Mode::Whole = moved.mode {
            self.complete(node, moved, None)?;
            // The target has got all records, and may have forgotten since that this one was removed.
            return Ok((moved.linked_target(), None));
        }
        self.link_move(moved);
        Ok((moved.linked_target(), carried))
    }

    /// Updates or removes a live record; `false` if it has changed since.
    fn change_live(&self, slot: &Slot, key: u64, value: u64, decision: Decision) -> bool {
        let old = [key_word(state::LIVE, key), value];
        let (new, name) = match decision {
            Decision::Keep => return true,
            // COMMIT loft.update: the value. Before this store recovery sees the old one, after it the new one.
            Decision::Put(value) => ([old[0], value], "loft.update"),
            // COMMIT loft.remove: the slot's state. Before this store recovery sees the record; after it, none.
            Decision::Remove => ([key_word(state::REMOVED, key), value], "loft.remove"),
        };
        let ticket = self.flight.begin(slot);
        let pm = self.pm.named(name);
        let done = pm.exchange_pair(slot, old, new);
        if done {
            pm.persist(slot);
            if decision == Decision::Remove {
                self.count_change(-1);
            }
        }
        drop(ticket);
        done
    }

    /// Inserts a record into a slot that was empty; `false` if it is not any more.
    fn insert_into(
        &self,
        slot: &Slot,
        key: u64,
        value: u64,
        beside: u64,
        name: &'static str,
    ) -> bool {
        let ticket = self.exchange_in(slot, key, value, beside, name);
        if ticket.is_some() {
            self.pm.named(name).persist(slot);
        }
        ticket.is_some()
    }

    /// Exchanges a record into a slot that was empty, unless it is not any more. It is in flight as long as the ticket lives.
    #[inline(always)]
    pub(super) fn exchange_in(
        &self,
        slot: &Slot,
        key: u64,
        value: u64,
        beside: u64,
        name: &'static str,
    ) -> Option<Ticket<'_>> {
        let ticket = self.flight.begin(slot);
        let empty = [bare(state::EMPTY), beside];
        let live = [key_word(state::LIVE, key), value];
        let pm = self.pm.named(name);
        let done = if self.flight.may_tear() && !planted(super::Bug::InsertAtOnce) {
            let pending = [key_word(state::PENDING, key), value];
            let begun = self.pm.exchange_pair(slot, empty, pending);
            if begun {
                // COMMIT loft.insert, loft.copy: the slot is live. Before this store recovery sees a slot without a record; after it the
                // record. It fails if another thread has made the slot live.
                pm.exchange_pair(slot, pending, live);
            }
            begun
        } else {
            pm.exchange_pair(slot, empty, live)
        };
        done.then_some(ticket)
    }
}
