//! Copying the records of a node that is moved into its successor.
//!
//! The copies of a few slots share one fence. Until then each of them is [in flight](crate::engines::flight::Flight): who reads one makes it durable by itself, and so
//! does who stores something behind it.

use super::layout::{KEY_BITS, Slot, bare, key_word, state, state_of};
use super::node::{Child, Move, Node};
use super::plan::Record;
use super::search::{End, Found, Way, never_written};
use super::{Bug, Index, LOOKUPS};
use crate::Result;
use crate::engines::flight::Ticket;
use crate::pmem::LINE;
use crate::pmem::planted::planted;
use std::sync::atomic::Ordering;

/// Copies that are not durable yet. They are when this is dropped.
struct Copies<'a> {
    index: &'a Index,
    in_flight: Vec<(&'a Slot, Ticket<'a>)>,
}

impl<'a> Copies<'a> {
    fn add(&mut self, slot: &'a Slot, ticket: Ticket<'a>) {
        self.in_flight.push((slot, ticket));
        // In a pool with a log a ticket is a lock, and a thread holds one at a time.
        if !self.index.flight.may_tear() {
            self.make_durable();
        }
    }

    fn make_durable(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let pm = self.index.pm.named("loft.copy");
        let line_of = |slot: &Slot| std::ptr::from_ref(slot) as usize / LINE;
        // Records of one line of the source go to neighbouring lines here, and by turns.
        self.in_flight.sort_unstable_by_key(|copy| line_of(copy.0));
        let of_one_line = |a: &(&Slot, _), b: &(&Slot, _)| line_of(a.0) == line_of(b.0);
        for line in self.in_flight.chunk_by(of_one_line) {
            pm.flush(line[0].0);
        }
        pm.fence();
        self.in_flight.clear();
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        self.make_durable();
    }
}

impl Index {
    /// Freezes and copies the slots of a group and of its buckets. The copies are durable afterwards.
    pub(super) fn move_group(&self, node: &Node, moved: &Move, group: usize) -> Result<()> {
        self.move_slots(node, moved, node.group_slots(group as u64))?;
        self.visit_last_buckets(&node.groups[group], |bucket| {
            self.move_slots(node, moved, bucket.slots())
        })
    }

    fn move_slots(&self, node: &Node, moved: &Move, slots: &[Slot]) -> Result<()> {
        for slots in slots.chunks(LOOKUPS) {
            let records = slots.iter().map(|slot| slot.first.load_acquire());
            let keys = records
                .filter(|&word| is_record(word))
                .map(|word| node.key(word));
            self.fetch_lines(moved.linked_target(), keys);
            let mut copies = Copies {
                index: self,
                in_flight: Vec::new(),
            };
            for slot in slots {
                if let (true, (key, value)) = self.freeze(node, slot)? {
                    self.copy_among(moved.linked_target(), key, value, &mut copies)?;
                }
            }
        }
        Ok(())
    }

    /// Makes sure that a slot does not change any more. Returns whether it has a record, and which.
    #[inline(always)]
    pub(super) fn freeze(&self, node: &Node, slot: &Slot) -> Result<(bool, Record)> {
        loop {
            let word = slot.first.load_acquire();
            let value = slot.second.load_acquire();
            let (key, state) = (word & KEY_BITS, state_of(word));
            let record = (node.key(word), value);
            // Nearly all slots are live or empty, and which of the two cannot be predicted: so there is no branch on that.
            let is_live = state == state::LIVE;
            let final_word = if is_live {
                key_word(state::FROZEN, key)
            } else {
                bare(state::CLOSED)
            };
            let new = match state {
                state::LIVE | state::EMPTY => final_word,
                state::PENDING => key_word(state::LIVE, key),
                state::FROZEN => return Ok((true, record)),
                state::NEVER_WRITTEN => return Err(never_written(node)),
                _ => return Ok((false, record)),
            };
            let ticket = self.flight.begin_loose(slot);
            let done = self.pm.exchange_pair(slot, [word, value], [new, value]);
            self.flight.end_loose(ticket);
            if done && state != state::PENDING {
                return Ok((is_live, record));
            }
        }
    }

    /// Stores a record in the nodes at and beneath `target`, unless its key is or was there.
    pub(super) fn copy(&self, target: Child, key: u64, value: u64) -> Result<()> {
        let mut copies = Copies {
            index: self,
            in_flight: Vec::new(),
        };
        self.copy_among(target, key, value, &mut copies)
    }

    /// [`copy`](Self::copy), durable together with the other copies.
    fn copy_among<'a>(
        &'a self,
        target: Child,
        key: u64,
        value: u64,
        copies: &mut Copies<'a>,
    ) -> Result<()> {
        let mut child = target;
        loop {
            let spot = self.walk(child, key)?;
            let End::Node(node) = spot.end else {
                self.create_at(&spot)?;
                continue;
            };
            if !node.linked.load(Ordering::Acquire) {
                self.link_node(node);
            }
            let mut way = Way::default();
            let found = self.find::<true>(node, key, &mut way)?;
            if way.is_removed && !planted(Bug::CopyAfterRemoval) {
                return Ok(());
            }
            match found {
                // What the target has of a key is newer.
                Found::Live(..) | Found::Frozen(_) => return Ok(()),
                Found::Empty(slot, beside) => {
                    if let Some(ticket) = self.exchange_in(slot, key, value, beside, "loft.copy") {
                        copies.add(slot, ticket);
                        self.noticed(node, &way);
                        return Ok(());
                    }
                }
                Found::NoRoom(link, place, level) => {
                    self.add_room(node, link, (place, level), true)?;
                }
                Found::Closed => (child, _) = self.successor(node, None)?,
                Found::Damaged => return Err(never_written(node)),
            }
        }
    }
}

/// Whether there is a record in a slot with this key word, or is about to be.
fn is_record(word: u64) -> bool {
    matches!(state_of(word), state::LIVE | state::FROZEN | state::PENDING)
}
