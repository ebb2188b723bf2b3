//! What happens when something is touched first after an open.
//!
//! Under a mutex: the block that a link leads to is claimed and its header validated, and it gets its part in DRAM. Slots that were pending
//! when the process died become dead, and those that were frozen become live again. If the node links to its target, the move is finished: what the target
//! does not know is copied, the parent's word leads to the target, and the old node is retired. In a pool that may not be written, a node on the heap takes the
//! place of both.
//!
//! Copies may need a bucket or a node. Where there is no space for it, the move goes on later, as one that has begun in this process: all slots of the old
//! node are frozen again, lookups need no more, and ranges and compactions finish the move as soon as there is space.
//!
//! A node has a bounded number of slots, so a touch takes a bounded time; opening the map reads none of them.

use super::inner::Inner;
use super::layout::{
    BUCKET_MARK, DATA_MARK, GROUP_LINES, HALTED, HAS_PIECES, INNER_MARK, IS_INNER, KEY_BITS,
    LEAST_WITH_PIECES, LINE, MOST_LOG_PARTS, NO_CHILD, NO_LINK, Slot, bare, inner_bytes,
    slot_lines, state, state_of,
};
use super::moving::for_each_inner;
use super::node::{Block, Bucket, Child, Groups, Kin, Mode, Move, Node, load_move};
use super::plan::Record;
use super::search::{End, Spot};
use super::{Bug, Index};
use crate::concurrency::epochs;
use crate::concurrency::sync::lock;
use crate::pmem::Cell;
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::{Error, Result};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Where a node hangs: the word, and what mirrors it, if that is a place in the tree that operations reach.
type Hanging<'a> = (&'a Cell, Option<&'a AtomicUsize>);

/// Inner nodes above a node, and moves to it, at most, in a map that has been made since there are [`LARGE_NODES`](super::options::LARGE_NODES). All of them together cannot be many, since
/// the way down divides the domain again and again. A range of 2^b keys is divided by an inner node; above or below its parts there may be another one, whose
/// parts have 16 times as many keys together, and so on: `b / 4 + 2` nodes, until nothing of the range is left beside the parts. One of the parts of any of these
/// has at most 2^(b - 4) keys. That makes, below a root whose parts have 2^61 keys, 153 nodes. A compaction that divides a node beside the parts may make one
/// more each time, for it does not look where the node lies; and moves that a crash has interrupted add some.
///
/// Whatever visits the whole tree does so by recursion. This many levels take a small part of a thread's stack.
pub(super) const MOST_NESTED: u32 = 512;

/// As [`MOST_NESTED`], in older maps: there keys that ascend made a chain, one node for each 600 records. So many levels fit into the stack of a thread.
pub(super) const MOST_NESTED_BEFORE: u32 = 2048;

fn damaged<T>(at: Offset, what: &str) -> Result<T> {
    Err(Error::Damaged(format!("the node at {at:#x} {what}")))
}

impl Index {
    /// Touches a child, or the root, and returns it.
    #[cold]
    pub(super) fn touch(&self, parent: Option<(&Inner, usize)>) -> Result<Child> {
        let _touching = lock(&self.touching);
        let (known, cell) = self.hanging(parent);
        let range = match parent {
            None => Some((0, u64::MAX)),
            Some((inner, index)) => inner.range(index),
        };
        let before = Child(known.load(Ordering::Acquire));
        if before != Child::UNTOUCHED {
            return Ok(before);
        }
        let word = cell.load_acquire();
        let child = match range {
            _ if word == NO_CHILD && parent.is_some() => Child::EMPTY,
            Some(range) => {
                let level = parent.map_or(0, |(inner, _)| inner.level + 1);
                self.open_tree(word, (cell, Some(known)), range, level)?
            }
            None => {
                return Err(Error::Damaged(format!(
                    "the child word {word:#x} where no keys are"
                )));
            }
        };
        if !self.locks.count.is_complete()
            && let Err(error) = self.count_tree(child)
        {
            // SAFETY: nobody else has seen it.
            unsafe { self.give_up(child) };
            return Err(error);
        }
        known.store(child.0, Ordering::Release);
        Ok(child)
    }

    /// Opens what `word`, which the place's cell holds, leads to, and finishes its move if it has one. Where there is no space for that, and the place has
    /// a child in DRAM that operations will find, the move is left to them.
    fn open_tree(
        &self,
        word: u64,
        place: Hanging<'_>,
        range: (u64, u64),
        level: u32,
    ) -> Result<Child> {
        let child = self.open_one(word, range, level)?;
        // SAFETY: it has just been made.
        let moved_to = match unsafe { child.kin() } {
            Kin::Node(node) => node.block.data_header().moved_to.load_acquire(),
            Kin::Inner(inner) => inner.block.inner_header().moved_to.load_acquire(),
            _ => NO_LINK,
        };
        if moved_to == NO_LINK || moved_to == HALTED {
            return self.open_frozen(child, range);
        }
        let finished = self.open_moved(child, moved_to, place, (range, level));
        if finished.is_err() {
            // SAFETY: nobody else has seen it.
            unsafe { self.give_up(child) };
        }
        finished
    }

    /// Undoes the opening of a subtree: frees its parts in DRAM, and takes the claims of its blocks back, so that the next try finds them as this one did.
    ///
    /// # Safety
    ///
    /// No thread can reach it, now or later.
    unsafe fn give_up(&self, child: Child) {
        let mut unclaim = |block: &Block| self.blocks.unclaim(block.offset, block.bytes);
        self.for_each_block(child, &mut unclaim);
        // SAFETY: by the contract of this function.
        if let Some(target) = unsafe { child.target() } {
            self.for_each_block(target, &mut unclaim);
        }
        // SAFETY: by the contract of this function; the target of a move is freed with its source.
        unsafe { self.free_tree(child) };
    }

    /// In a pool that may not be written, puts a node on the heap in the place of one with frozen slots.
    fn open_frozen(&self, child: Child, range: (u64, u64)) -> Result<Child> {
        // SAFETY: it has just been made.
        let Kin::Node(node) = (unsafe { child.kin() }) else {
            return Ok(child);
        };
        let is_frozen = |slot: &Slot| {
            let state = state_of(slot.first.load_acquire());
            state == state::FROZEN || state == state::CLOSED
        };
        let buckets = node.all_buckets().flat_map(|bucket| bucket.slots());
        let is_whole = !self.is_read_only()
            || !self.moves_whole
            || !self.looks_at_slots(node)
            || !node.slots().iter().chain(buckets).any(is_frozen);
        if is_whole {
            return Ok(child);
        }
        let mut plan = self.plan();
        (plan.stores, plan.on_heap) = (true, true);
        let records = self.records_of(node);
        let built = records.and_then(|records| self.build(range, &records, &plan));
        match built {
            Ok(built) => {
                // SAFETY: nobody else has seen it.
                unsafe { self.free_tree(child) };
                Ok(built.keep().0)
            }
            Err(error) => {
                // SAFETY: as above.
                unsafe { self.give_up(child) };
                Err(error)
            }
        }
    }

    /// Opens the target of a subtree that links to one, and finishes the move.
    fn open_moved(
        &self,
        source: Child,
        moved_to: u64,
        place: Hanging<'_>,
        (range, level): ((u64, u64), u32),
    ) -> Result<Child> {
        self.open_all_below(source)?;
        // A target may be the source of a move in its turn, and so on: each is a level of its own.
        let target = self.open_tree(moved_to, (cell_of_move(source), None), range, level + 1)?;
        let finished = self.finish_opened(source, target, place, range);
        if finished.is_err() {
            // SAFETY: nobody else has seen it.
            unsafe { self.give_up(target) };
        }
        finished
    }

    /// Copies what the target does not know, and replaces the source.
    fn finish_opened(
        &self,
        source: Child,
        target: Child,
        (cell, known): Hanging<'_>,
        range: (u64, u64),
    ) -> Result<Child> {
        self.open_all_below(target)?;
        let mut records = Vec::new();
        self.collect(source, &mut records)?;
        records.sort_unstable();
        if self.is_read_only() {
            let merged = self.open_merged(target, records, range)?;
            // SAFETY: nobody else has seen the source.
            unsafe { self.free_tree(source) };
            return Ok(merged);
        }
        for (key, value) in records {
            if planted(Bug::ForgetOldNode) {
                break;
            }
            match (self.copy(target, key, value), known) {
                (Err(Error::NoSpace(_)), Some(known)) => {
                    self.leave_move(source, target, (cell, known));
                    return Ok(source);
                }
                (copied, _) => copied?,
            }
        }
        self.pm.note("loft: move finished after a crash", 0);
        let target_word = word_of(target);
        let pm = self.pm.named("loft.recover");
        pm.exchange(cell, word_of(source), target_word);
        // COMMIT loft.recover: as loft.replace.
        pm.persist(cell);
        self.for_each_block(source, &mut |block| {
            self.blocks.retire(block.offset, block.bytes);
        });
        // SAFETY: nobody else has seen the source.
        unsafe { self.free_tree(source) };
        Ok(target)
    }

    /// Leaves a move whose link was found in the file to operations. Slots of the source that were frozen when the process died, and are live again, may have
    /// other records in the target since: so all of them are frozen, and whoever comes by goes on in the target.
    fn leave_move(&self, source: Child, target: Child, place: (&Cell, &AtomicUsize)) {
        for_each_inner(target, &|inner| inner.settling.begin());
        let begin = |moving: &AtomicPtr<Move>, mode: Mode| {
            let moved = Move::new(source, Some(target), cell_of_move(source), place, mode);
            moved.linked.store(true, Ordering::Relaxed);
            self.install(moving, moved);
        };
        // SAFETY: nobody else has seen it.
        match unsafe { source.kin() } {
            // Only maps of old formats have such moves.
            Kin::Node(node) => {
                begin(&node.moving, Mode::Grouped(Groups::of(node)));
                // What has just been copied must not be changed here any more.
                let frozen = self.freeze_all(node, &[]);
                frozen.expect("invariant: all slots have been read");
            }
            Kin::Inner(inner) => {
                begin(&inner.moving, Mode::Subtree);
                let moved = load_move(&inner.moving).expect("it was installed");
                let captured = self.capture(inner, moved, false);
                captured.expect(
                    "invariant: everything beneath has been opened, and all slots have been read",
                );
            }
            _ => unreachable!("only nodes are moved"),
        }
    }

    /// In a pool that may not be written: nodes on the heap with the records of a source and its target.
    fn open_merged(&self, target: Child, old: Vec<Record>, range: (u64, u64)) -> Result<Child> {
        let mut records = Vec::new();
        self.collect(target, &mut records)?;
        for (key, value) in old {
            if !self.is_known(target, key)? {
                records.push((key, value));
            }
        }
        records.sort_unstable();
        let mut plan = self.plan();
        (plan.stores, plan.on_heap) = (true, true);
        let built = match range {
            (0, u64::MAX) => self.build_root(&records, &plan)?,
            _ => self.build(range, &records, &plan)?,
        };
        let merged = built.keep().0;
        // SAFETY: nobody else has seen the target.
        unsafe { self.free_tree(target) };
        Ok(merged)
    }

    /// Whether a key has or had a slot in a subtree that nobody else has seen.
    fn is_known(&self, target: Child, key: u64) -> Result<bool> {
        let End::Node(node) = self.walk(target, key)?.end else {
            return Ok(false);
        };
        let mut way = super::search::Way::default();
        let found = self.find::<false>(node, key, &mut way)?;
        Ok(way.is_removed || matches!(found, super::search::Found::Live(..)))
    }

    /// Touches all that lies beneath a subtree that nobody else has seen.
    fn open_all_below(&self, child: Child) -> Result<()> {
        // SAFETY: nobody else has seen it.
        let Kin::Inner(inner) = (unsafe { child.kin() }) else {
            return Ok(());
        };
        for index in 0..inner.children.len() {
            let (word, range) = (inner.cell(index).load_acquire(), inner.range(index));
            let below = match range {
                _ if inner.child(index) != Child::UNTOUCHED => inner.child(index),
                _ if word == NO_CHILD => Child::EMPTY,
                // Whoever asks copies the records of this subtree, and has to find them in one place.
                Some(range) => {
                    self.open_tree(word, (inner.cell(index), None), range, inner.level + 1)?
                }
                None => return damaged(inner.block.offset, "has a child where no keys are"),
            };
            inner.children[index].store(below.0, Ordering::Release);
            self.open_all_below(below)?;
        }
        Ok(())
    }

    /// Counts the records of a subtree that nobody else has seen.
    fn count_tree(&self, child: Child) -> Result<()> {
        let mut records = Vec::new();
        self.collect(child, &mut records)?;
        let mut count = records.len();
        // SAFETY: nobody else has seen it.
        if let Some(target) = unsafe { child.target() } {
            let mut of_target = Vec::new();
            self.collect(target, &mut of_target)?;
            for (key, _) in records {
                count -= usize::from(self.is_known(target, key)?);
            }
            count += of_target.len();
        }
        self.count_change(count as i64);
        Ok(())
    }

    /// Calls `visit` for all blocks of a subtree, without those of the targets of moves. The thread is pinned and has loaded the child since, or nobody else
    /// has seen it.
    pub(super) fn for_each_block(&self, child: Child, visit: &mut dyn FnMut(&Block)) {
        // SAFETY: as the caller promises.
        match unsafe { child.kin() } {
            Kin::Node(node) => {
                node.all_buckets().for_each(|bucket| visit(&bucket.block));
                visit(&node.block);
            }
            Kin::Inner(inner) => {
                for below in &inner.children {
                    self.for_each_block(Child(below.load(Ordering::Acquire)), visit);
                }
                visit(&inner.block);
            }
            _ => {}
        }
    }

    /// Claims the block that a link leads to.
    fn claim(&self, offset: Offset) -> Result<Block> {
        let Some(bytes) = self.blocks.bytes_at(offset) else {
            return damaged(offset, "is no block of this map");
        };
        self.blocks.claim_linked(offset, bytes)?;
        Ok(self.block_at(offset, bytes))
    }

    /// Opens what a child word leads to, without its successor. Not inlined, since the callers call themselves, and would take more of the stack.
    #[inline(never)]
    fn open_one(&self, word: u64, range: (u64, u64), level: u32) -> Result<Child> {
        let offset = Offset::from_word(word & !IS_INNER);
        let most = match self.has_pieces {
            true => MOST_NESTED,
            false => MOST_NESTED_BEFORE,
        };
        if level > most {
            return damaged(offset, "lies below more nodes than a map has");
        }
        let block = self.claim(offset)?;
        let bytes = block.bytes;
        let opened = match word & IS_INNER != 0 {
            true => self.open_inner(block, range, level),
            false => self.open_node(block, range),
        };
        if opened.is_err() {
            // Otherwise the next try would find it claimed, and not say what is wrong.
            self.blocks.unclaim(offset, bytes);
        }
        opened
    }

    fn open_inner(&self, block: Block, range: (u64, u64), level: u32) -> Result<Child> {
        let header = block.inner_header();
        let mark = header.mark.load();
        let (shift, log_parts) = ((mark >> 8 & 0xff) as u32, (mark & 0xff) as u32);
        let base = header.base.load();
        let is_valid = mark & !0xffff == INNER_MARK
            && shift < 64
            && log_parts <= MOST_LOG_PARTS
            && inner_bytes(log_parts) == block.bytes
            && (header.low.load(), header.high.load()) == range
            && (range.0..=range.1).contains(&base)
            // No key below the base may wrap around into a part: see `Inner::index`.
            && u128::from(base - range.0) + (1 << (shift + log_parts)) <= 1 << 64;
        if !is_valid {
            return damaged(block.offset, "is no inner node for its keys");
        }
        let children = (0..(1 << log_parts) + 2).map(|_| AtomicUsize::new(Child::UNTOUCHED.0));
        let inner = Inner::new(block, children.collect(), level);
        // No key leads to a child without keys, so nobody would ever touch it, and a compaction leaves alone what has not been touched.
        for index in (0..inner.children.len()).filter(|&index| inner.range(index).is_none()) {
            if inner.cell(index).load_acquire() != NO_CHILD {
                return damaged(inner.block.offset, "has a child where no keys are");
            }
            inner.children[index].store(Child::EMPTY.0, Ordering::Relaxed);
        }
        Ok(Child::inner(Box::into_raw(Box::new(inner))))
    }

    fn open_node(&self, block: Block, range: (u64, u64)) -> Result<Child> {
        let header = block.data_header();
        let (shape, span) = (header.shape.load(), header.span.load());
        let (lines, window) = (shape & 0xffff_ffff, shape >> 32 & 0xffff);
        let has_pieces = shape & HAS_PIECES != 0;
        if has_pieces && !(self.has_pieces && block.bytes >= LEAST_WITH_PIECES) {
            // The smallest blocks have fewer lines than the pieces take, so nothing may be computed from their number.
            return damaged(block.offset, "has a model of pieces, which it cannot have");
        }
        let all = slot_lines(block.bytes, has_pieces);
        let is_valid = header.mark.load() == DATA_MARK | block.bytes
            && (header.low.load(), header.high.load()) == range
            && range.0 & !KEY_BITS == range.1 & !KEY_BITS
            && (1..=all).contains(&window)
            && shape >> 49 == 0
            && lines == all - window + 1
            && span > 0
            && block.bytes <= super::layout::SMALLEST_BLOCK << 10;
        if !is_valid {
            return damaged(block.offset, "is no data node for its keys");
        }
        let offset = block.offset;
        let Some(node) = Node::new(block, 0) else {
            return damaged(offset, "has a model that leads beyond it");
        };
        let opened = self.open_all_slots(&node);
        if opened.is_err() {
            for bucket in node.all_buckets() {
                self.blocks.unclaim(bucket.block.offset, bucket.block.bytes);
            }
        }
        opened?;
        if self.looks_at_slots(&node) && !self.is_read_only() {
            self.pm.named("loft.thaw").fence();
        }
        Ok(Child::node(Box::into_raw(Box::new(node))))
    }

    /// Opens the slots of a node, and its buckets.
    fn open_all_slots(&self, node: &Node) -> Result<()> {
        self.open_slots(node, node.slots())?;
        (0..node.groups.len()).try_for_each(|group| self.open_buckets(node, group))
    }

    fn open_buckets(&self, node: &Node, group: usize) -> Result<()> {
        let mut link = &node.groups[group];
        let mut word = node.link_cell(group as u64).load_acquire();
        while word != NO_LINK {
            let block = self.claim(Offset::from_word(word))?;
            let header = block.bucket_header();
            if header.mark.load() != BUCKET_MARK | block.bytes {
                self.blocks.unclaim(block.offset, block.bytes);
                return damaged(block.offset, "is no bucket");
            }
            word = header.next.load_acquire();
            let bucket = Box::into_raw(Box::new(Bucket::new(block, true)));
            link.store(bucket, Ordering::Release);
            // SAFETY: it has just been made, and belongs to the node.
            let bucket = unsafe { &*bucket };
            self.open_slots(node, bucket.slots())?;
            link = &bucket.next;
        }
        Ok(())
    }

    /// Whether a node may have slots that are pending, or frozen or closed without a move: after a crash, or if its move has failed.
    fn looks_at_slots(&self, node: &Node) -> bool {
        let halted = node.block.data_header().moved_to.load_acquire() == HALTED;
        !self.locks.count.is_complete() || halted
    }

    /// Makes slots that were pending when the process died dead, and undoes a move that had no target: frozen slots become live, and closed ones
    /// empty. In a pool that may not be written it only looks for damage.
    fn open_slots(&self, node: &Node, slots: &[Slot]) -> Result<()> {
        if !self.looks_at_slots(node) {
            return Ok(());
        }
        let thaws = self.moves_whole && !planted(Bug::FrozenStay);
        for slot in slots {
            let word = slot.first.load_acquire();
            let new = match state_of(word) {
                state::NEVER_WRITTEN => return Err(super::search::never_written(node)),
                state @ (state::EMPTY | state::CLOSED) if word != bare(state) => {
                    let what = "has a slot without a record that has a key";
                    return damaged(node.block.offset, what);
                }
                _ if self.is_read_only() => continue,
                state::PENDING if planted(Bug::PendingIsLive) => {
                    word ^ bare(state::PENDING ^ state::LIVE)
                }
                state::PENDING => bare(state::DEAD),
                state::FROZEN if thaws => word ^ bare(state::FROZEN ^ state::LIVE),
                state::CLOSED if thaws => bare(state::EMPTY),
                _ => continue,
            };
            let ticket = self.flight.begin_loose(slot);
            self.pm.store(&slot.first, new);
            // A crash finds the slot in its old state or in the new one. But after a clean close nobody looks.
            self.pm.named("loft.thaw").flush(slot);
            self.flight.end_loose(ticket);
        }
        Ok(())
    }

    /// Touches everything, from left to right.
    pub(super) fn touch_all(&self, go_on: &dyn Fn() -> bool) -> Result<bool> {
        let mut next = Some(0);
        while let Some(key) = next {
            if !go_on() {
                return Ok(false);
            }
            let _pinned = epochs::pin();
            next = self.node_at(key)?.1.1.checked_add(1);
        }
        self.locks.count.complete();
        Ok(true)
    }

    /// The data node of a key, if there is one, and the keys that belong there. The thread is pinned.
    pub(super) fn node_at(&self, key: u64) -> Result<(Option<&Node>, (u64, u64))> {
        let spot = self.walk(Child(self.root.load(Ordering::Acquire)), key)?;
        let keys = keys_of(&spot, key)?;
        match spot.end {
            End::Node(node) => Ok((Some(node), keys)),
            End::Nothing => Ok((None, keys)),
        }
    }
}

/// The keys that belong where the walk to `key` has ended. They include `key`, so that whoever goes on behind them comes to an end.
pub(super) fn keys_of(spot: &Spot<'_>, key: u64) -> Result<(u64, u64)> {
    let keys = match (&spot.end, spot.parent) {
        (End::Node(node), _) => Some((node.low, node.high)),
        (End::Nothing, Some((inner, index))) => inner.range(index),
        (End::Nothing, None) => return Err(Error::Damaged("no root".into())),
    };
    keys.filter(|&(low, high)| (low..=high).contains(&key))
        .ok_or_else(|| Error::Damaged(format!("the key {key:#x} leads beyond its node")))
}

/// The word that links to the target of a source.
fn cell_of_move<'a>(source: Child) -> &'a Cell {
    // SAFETY: the source is live for as long as its opening takes.
    match unsafe { source.kin::<'a>() } {
        Kin::Node(node) => &node.block.data_header().moved_to,
        Kin::Inner(inner) => &inner.block.inner_header().moved_to,
        _ => unreachable!("only nodes are moved"),
    }
}

/// The child word of a node.
pub(super) fn word_of(child: Child) -> u64 {
    // SAFETY: the caller holds it.
    match unsafe { child.kin() } {
        Kin::Node(node) => node.word(),
        Kin::Inner(inner) => inner.word(),
        _ => NO_CHILD,
    }
}

const _: () = assert!(GROUP_LINES > 0 && LINE == 64);
