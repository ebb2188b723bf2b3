//! From a key to its slot.
//!
//! The *sequence* of a key in a data node is a fixed order of slots: the lines of its window, from the predicted line on, then the slots of
//! the buckets of its group, level by level, in each from a place that a hash chooses, round to where it began. A record lies in the first
//! slot of its key's sequence that was empty when it came. So a search ends at the record or at the first slot that is empty, and two
//! threads that insert one key meet in one slot.

use super::Index;
use super::inner::Inner;
use super::layout::{GROUP_LINES, KEY_BITS, LINE_SLOTS, Slot, bare, key_word, state, state_of};
use super::node::{Bucket, Child, Kin, Mode, Node, load_bucket, load_move};
use super::tuning::{Counted, SAMPLED};
use crate::concurrency::epochs;
use crate::engines::{Lookup, slots};
use crate::kernels::prefetch;
use crate::pmem::schedule::point;
use crate::{Error, Result};
use std::sync::atomic::{AtomicPtr, Ordering};

/// How a search in a node ended.
pub(super) enum Found<'a> {
    /// At the record, which may be updated and removed.
    Live(&'a Slot, u64),
    /// At the record, which is moved to another node; this is its last value here.
    Frozen(u64),
    /// At a slot in which the key may be inserted; the other word of the slot.
    Empty(&'a Slot, u64),
    /// At a link where a bucket would have to be, of this level.
    NoRoom(&'a AtomicPtr<Bucket>, Where<'a>, u32),
    /// At a slot or a link that was closed when the node was moved: the record is in the node's successor, or nowhere.
    Closed,
    /// At a slot that was never written.
    Damaged,
}

/// Which link a bucket is missing at.
#[derive(Clone, Copy)]
pub(super) enum Where<'a> {
    Group(u64),
    After(&'a Bucket),
}

/// What a search has come by.
#[derive(Default)]
pub(super) struct Way {
    /// A slot of this key that was removed.
    pub(super) is_removed: bool,
    /// Lines of the window that it left.
    pub(super) lines: u32,
    /// Whether it has looked into buckets.
    pub(super) in_bucket: bool,
}

impl Way {
    /// Whether the model of the node was of little use: the search left more than half of the window, or it went into buckets.
    #[inline(always)]
    pub(super) fn is_far(&self, node: &Node) -> bool {
        self.lines * 2 > node.window || self.in_bucket
    }
}

/// Where a walk down the tree ended.
pub(super) struct Spot<'a> {
    pub(super) end: End<'a>,
    /// The inner node above, and which child; `None` if the node was reached through a move.
    pub(super) parent: Option<(&'a Inner, usize)>,
}

pub(super) enum End<'a> {
    Node(&'a Node),
    /// The child of the parent is [`Child::EMPTY`].
    Nothing,
}

impl Index {
    /// Walks down from `child` to the data node of `key`. The thread is pinned.
    #[inline(always)]
    pub(super) fn walk<'a>(&'a self, mut child: Child, key: u64) -> Result<Spot<'a>> {
        let mut parent = None;
        loop {
            // SAFETY: the thread is pinned, and the child was loaded since from a link to it.
            match unsafe { child.kin::<'a>() } {
                Kin::Node(node) => {
                    let end = End::Node(node);
                    return Ok(Spot { end, parent });
                }
                Kin::Inner(inner) => {
                    let index = inner.index(key);
                    point();
                    child = inner.child(index);
                    parent = Some((inner, index));
                }
                Kin::Empty => {
                    let end = End::Nothing;
                    return Ok(Spot { end, parent });
                }
                Kin::Untouched => child = self.touch(parent)?,
                Kin::Closed => {
                    let (inner, _) = parent
                        .take()
                        .ok_or_else(|| Error::Damaged("a closed root".into()))?;
                    let moved = load_move(&inner.moving)
                        .expect("a closed child belongs to an inner node that is moved");
                    child = moved.linked_target();
                }
            }
        }
    }

    /// Looks for `key` in a node. With `WRITE` everything that the search comes by is made durable, so that what is stored behind it will
    /// be found after a crash; without, only what says that the key was removed.
    pub(super) fn find<'a, const WRITE: bool>(
        &self,
        node: &'a Node,
        key: u64,
        way: &mut Way,
    ) -> Result<Found<'a>> {
        let first = node.predicted(key);
        for line in first..first + u64::from(node.window) {
            let of_line = node.line(line);
            point();
            for slot in slots(may_end_search(of_line, key)) {
                if let Some(found) = self.look::<WRITE>(&of_line[slot], key, way) {
                    return Ok(found);
                }
            }
            way.lines += 1;
            if WRITE {
                self.flight.settle(&of_line[0]);
            }
        }
        way.in_bucket = true;
        let group = first / GROUP_LINES;
        let mut place = Where::Group(group);
        let mut link = &node.groups[group as usize];
        for level in 0.. {
            point();
            let Some(bucket) = load_bucket(link) else {
                if link.load(Ordering::Acquire) == Bucket::closed() {
                    return Ok(Found::Closed);
                }
                if load_bucket(link).is_some() {
                    return self.find::<WRITE>(node, key, way);
                }
                return Ok(Found::NoRoom(link, place, level));
            };
            if WRITE && !bucket.linked.load(Ordering::Acquire) {
                self.link_bucket(node, place, bucket);
            }
            let slots = bucket.slots();
            let begin = start_in(slots.len(), key);
            for slot in slots[begin..].iter().chain(&slots[..begin]) {
                if let Some(found) = self.look::<WRITE>(slot, key, way) {
                    return Ok(found);
                }
                if WRITE {
                    self.flight.settle(slot);
                }
            }
            link = &bucket.next;
            place = Where::After(bucket);
        }
        unreachable!("the levels of buckets do not end")
    }

    /// Looks at one slot of the sequence of `key`; `None` if the sequence goes on.
    #[inline(always)]
    fn look<'a, const WRITE: bool>(
        &self,
        slot: &'a Slot,
        key: u64,
        way: &mut Way,
    ) -> Option<Found<'a>> {
        loop {
            point();
            let word = slot.first.load_acquire();
            let is_key = word & KEY_BITS == key & KEY_BITS;
            match state_of(word) {
                // A write to it would fail for ever.
                state::EMPTY if word != bare(state::EMPTY) => return Some(Found::Damaged),
                state::EMPTY => return Some(Found::Empty(slot, slot.second.load_acquire())),
                state::CLOSED => return Some(Found::Closed),
                state::NEVER_WRITTEN => return Some(Found::Damaged),
                state::DEAD => return None,
                _ if !is_key => return None,
                state::REMOVED => {
                    way.is_removed = true;
                    self.flight.settle(slot);
                    return None;
                }
                state::FROZEN => {
                    let value = slot.second.load_acquire();
                    self.flight.settle(slot);
                    return Some(Found::Frozen(value));
                }
                state::LIVE => {
                    let value = slot.second.load_acquire();
                    point();
                    // If the record has been removed or frozen since, the value is its last one, and was its value until then.
                    self.flight.settle(slot);
                    return Some(Found::Live(slot, value));
                }
                _ => {
                    let value = slot.second.load_acquire();
                    if !WRITE {
                        // Not inserted yet, so nowhere.
                        return Some(Found::Empty(slot, value));
                    }
                    self.complete_insert(slot, key, value);
                }
            }
        }
    }

    /// Makes a pending record live, which another thread has begun to insert.
    fn complete_insert(&self, slot: &Slot, key: u64, value: u64) {
        let ticket = self.flight.begin(slot);
        let pm = self.pm.named("loft.complete");
        // COMMIT loft.complete: as `loft.insert`, by another thread than the one that inserts.
        pm.exchange_pair(
            slot,
            [key_word(state::PENDING, key), value],
            [key_word(state::LIVE, key), value],
        );
        pm.persist(slot);
        drop(ticket);
    }

    /// See [`Ordered::try_get`](crate::engines::Ordered::try_get): the first line of the window holds nearly every record.
    #[inline(always)]
    pub(super) fn try_get_first_lines(&self, key: u64) -> Lookup {
        let Some(pinned) = epochs::try_pin() else {
            return Lookup::Retry;
        };
        if pinned.is_one_in(SAMPLED) {
            // Counting it here would take registers from all others.
            return Lookup::Retry;
        }
        let mut child = self.top();
        let node = loop {
            // SAFETY: the thread is pinned, and the child was loaded since from a link to it.
            match unsafe { child.kin() } {
                Kin::Inner(inner) => {
                    point();
                    child = inner.child(inner.index(key));
                }
                Kin::Node(node) => break node,
                Kin::Empty => return Lookup::Absent,
                _ => return Lookup::Retry,
            }
        };
        let wanted = key_word(state::LIVE, key);
        let first = node.predicted(key);
        for line in first..first + u64::from(node.window) {
            let slots = node.line(line);
            point();
            if let Some(slot) = slot_with(slots, wanted) {
                // If the record has been removed or frozen since, the value is its last one, and was its value until then.
                point();
                let value = slot.second.load_acquire();
                self.flight.settle(slot);
                return Lookup::Found(value);
            }
            let last = state_of(slots[LINE_SLOTS - 1].first.load_acquire());
            if last == state::EMPTY {
                // The search ends here, and nothing has been frozen if the node is not moved.
                let is_moved = load_move(&node.moving).is_some();
                return match is_moved || self.flight.is_needed() {
                    true => Lookup::Retry,
                    false => Lookup::Absent,
                };
            }
            if last == state::CLOSED || last == state::NEVER_WRITTEN {
                break;
            }
        }
        Lookup::Retry
    }

    /// The root. The thread is pinned.
    #[inline(always)]
    pub(super) fn top(&self) -> Child {
        Child(self.root.load(Ordering::Acquire))
    }

    /// Walks down from `top` to the data nodes of up to [`LOOKUPS`](super::LOOKUPS) keys and fetches the lines in which they are predicted: first all
    /// nodes, then all lines. The thread is pinned.
    pub(super) fn fetch_lines(
        &self,
        top: Child,
        keys: impl Iterator<Item = u64> + Clone,
    ) -> [Option<&Node>; super::LOOKUPS] {
        let mut nodes: [Option<&Node>; super::LOOKUPS] = [None; super::LOOKUPS];
        for (key, found) in keys.clone().zip(&mut nodes) {
            let mut child = top;
            // SAFETY: the thread is pinned, and each child was loaded since from a link to it.
            while let Kin::Inner(inner) = unsafe { child.kin() } {
                child = inner.child(inner.index(key));
            }
            // SAFETY: as above.
            if let Kin::Node(node) = unsafe { child.kin() } {
                prefetch(node);
                *found = Some(node);
            }
        }
        for (key, node) in keys.zip(&nodes) {
            if let Some(node) = node {
                prefetch(node.line(node.predicted(key)));
            }
        }
        nodes
    }

    /// See [`Ordered::look_up_together`](crate::engines::Ordered::look_up_together): all walks, then all first lines.
    pub(super) fn find_together(&self, keys: &[u64], values: &mut [Option<u64>]) -> u64 {
        let pinned = epochs::pin();
        let nodes = self.fetch_lines(self.top(), keys.iter().copied());
        if pinned.is_one_in(SAMPLED)
            && let Some(node) = nodes[0]
        {
            node.sampled(Counted::Read);
        }
        let mut again = 0;
        for (at, (&key, node)) in keys.iter().zip(&nodes).enumerate() {
            point();
            let line = node.map(|node| node.line(node.predicted(key)));
            let wanted = key_word(state::LIVE, key);
            match line.and_then(|line| slot_with(line, wanted)) {
                Some(slot) => {
                    point();
                    values[at] = Some(slot.second.load_acquire());
                    self.flight.settle(slot);
                }
                None => again |= 1 << at,
            }
        }
        again
    }

    /// Looks up what [`try_get_first_lines`](Self::try_get_first_lines) has left: every lookup that is counted, and those that are no matter of a line.
    pub(super) fn find_value(&self, key: u64) -> Result<Option<u64>> {
        let pinned = epochs::pin();
        let is_sampled = pinned.was_one_in(SAMPLED);
        let mut carried = None;
        let mut child = self.top();
        loop {
            let End::Node(node) = self.walk(child, key)?.end else {
                return Ok(carried);
            };
            if is_sampled {
                node.sampled(Counted::Read);
            }
            let mut way = Way::default();
            let found = self.find::<false>(node, key, &mut way)?;
            if way.is_removed {
                // What the node before has of this key is older.
                carried = None;
            }
            match found {
                Found::Live(_, value) => return Ok(Some(value)),
                Found::Empty(..) | Found::NoRoom(..) => return Ok(carried),
                Found::Frozen(value) => carried = Some(value),
                Found::Closed => {}
                Found::Damaged => return Err(never_written(node)),
            }
            let moved = load_move(&node.moving).ok_or_else(|| closed_for_nothing(node))?;
            child = match (&moved.mode, moved.target()) {
                (Mode::Whole, None) => return Ok(carried),
                (Mode::Whole, Some(target)) => {
                    // It has got all records, and may have forgotten since that this one was removed.
                    carried = None;
                    target
                }
                _ => moved.linked_target(),
            };
        }
    }
}

/// The slot of a line that has this key word.
///
/// All four are compared before the one branch. Which of them it is depends on the key alone: a branch for each slot is predicted wrongly
/// in every other lookup, and what the processor has begun of the lookups behind this one is lost, after the wait for the line.
#[inline(always)]
fn slot_with(line: &[Slot; LINE_SLOTS], wanted: u64) -> Option<&Slot> {
    let places = places(line, |word| word == wanted);
    (places != 0).then(|| &line[places.trailing_zeros() as usize & (LINE_SLOTS - 1)])
}

/// Which slots of a line a search for `key` has to look at: those with the key, and those without any. The others have records of other
/// keys, and will never have this one. Without a branch, as [`slot_with`].
#[inline(always)]
fn may_end_search(line: &[Slot; LINE_SLOTS], key: u64) -> u32 {
    const WITHOUT_KEY: u64 = 1 << state::NEVER_WRITTEN | 1 << state::EMPTY | 1 << state::CLOSED;
    places(line, |word| {
        (WITHOUT_KEY >> state_of(word) & 1 != 0) | (word & KEY_BITS == key & KEY_BITS)
    })
}

/// Bit `i` says whether the key word of slot `i` is such a one.
#[inline(always)]
fn places(line: &[Slot; LINE_SLOTS], is_such: impl Fn(u64) -> bool) -> u32 {
    let slots = line.iter().enumerate();
    slots.fold(0, |places, (at, slot)| {
        places | u32::from(is_such(slot.first.load_acquire())) << at
    })
}

/// Where the sequence of a key begins in a bucket.
pub(super) fn start_in(slots: usize, key: u64) -> usize {
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(hash) * slots as u128) >> 64) as usize
}

/// A page of the node never reached the disk.
pub(super) fn never_written(node: &Node) -> Error {
    Error::Damaged(format!(
        "the data node at {:#x} has a slot that was never written",
        node.block.offset
    ))
}

/// A slot is frozen or closed in a node that is not moved.
pub(super) fn closed_for_nothing(node: &Node) -> Error {
    Error::Damaged(format!(
        "the data node at {:#x} has a slot that is closed, and was not moved",
        node.block.offset
    ))
}
