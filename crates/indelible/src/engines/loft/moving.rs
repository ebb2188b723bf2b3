//! Moving: a node is replaced by its successor, which has a new model, more slots or fewer, or is an inner node over several nodes.
//!
//! The paper retrains in a background thread, which waits until all operations of the stage before have ended. Here the operation that begins a move
//! does the work, others that come by now and then move a group of slots, and nobody waits.
//!
//! A data node is replaced at once ([`whole`](super::whole)). In what follows the successor is linked first, and gets the records one by one: so
//! an inner node is replaced with all nodes beneath it, by [`Index::capture`]: a compaction merges nodes so, and a bulk load replaces the root. And so
//! are data nodes of maps that were made before format 3.
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. An insert that went far builds an empty successor, the *target*. | nothing refers to it | the sweep frees it |
//! | 2. One exchange in DRAM, of the node's `moving`, decides which target counts; the others are freed. | as before | as before |
//! | 3. COMMIT loft.move: `moved to` of the node. Any helper stores it. | the link to the target | touches both nodes, and finishes the move, as soon as there is space for it |
//! | 4. Helpers freeze the slots of a group: empty to closed, live to frozen; and copy the frozen records, unless the target has or had the key. | copies; those of 32 slots share a fence | copies what the target does not know |
//! | 5. When all groups are done, COMMIT loft.replace: the parent's word leads to the target. | the target is in the tree | touches the target alone; the sweep frees the node |
//! | 6. The parent's child in DRAM is exchanged; who does it retires the node. | | |
//!
//! An operation that meets a frozen or a closed slot at the end of its search goes on in the target ([I5](super)), at any time.
//! A helper that loses its core delays nobody: its group is moved by another one, and every step can be done twice.

use super::build::Built;
use super::inner::Inner;
use super::layout::{IS_INNER, NO_CHILD, NO_LINK};
use super::node::{Bucket, Child, Groups, Kin, Mode, Move, Node, load_bucket, load_move};
use super::plan::{Plan, far_enough};
use super::search::{Spot, Way, Where};
#[cfg(all(test, not(loom)))]
use super::tests::Moment;
use super::{Bug, Changes, Index};
use crate::concurrency::epochs::{self, Stamp};
use crate::concurrency::sync::lock;
use crate::pmem::Cell;
use crate::pmem::geometry::sized_in_tests;
use crate::pmem::planted::planted;
use crate::pmem::schedule::point;
use crate::{Error, Result};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Operations that pass a node which is moved, of which one moves a group. Few, so that a move whose thread has lost its core for long comes to
/// its end, and more than one, since each of them finds caches that are cold.
const PASSES_PER_GROUP: u32 = sized_in_tests(16, 1) as u32;

/// Parts of the structure in DRAM that have been replaced wait here until no thread can hold them.
#[derive(Default)]
pub(super) struct RetiredParts(Mutex<VecDeque<(Stamp, Vec<RetiredPart>)>>);

/// A part of the structure in DRAM to which no link leads any more.
enum RetiredPart {
    Node(#[allow(dead_code)] Box<Node>),
    Inner(#[allow(dead_code)] Box<Inner>),
    Move(#[allow(dead_code)] Box<Move>),
}

/// Replaced subtrees that wait before it is asked which of them can be freed: asking costs a system call.
const MOST_RETIRED: usize = 32;

impl RetiredParts {
    fn add(&self, parts: Vec<RetiredPart>) {
        let mut waiting = lock(&self.0);
        waiting.push_back((epochs::stamp(), parts));
        if waiting.len() < MOST_RETIRED {
            return;
        }
        let half = waiting.len() / 2;
        if epochs::has_passed(waiting[half - 1].0) {
            waiting.drain(..half);
        }
    }
}

/// Links.
impl Index {
    /// Exchanges a link and makes it durable; if another thread has, makes that durable.
    pub(super) fn commit_link(&self, cell: &Cell, old: u64, new: u64, name: &'static str) {
        let ticket = self.flight.begin(cell);
        let pm = self.pm.named(name);
        pm.exchange(cell, old, new);
        pm.persist(cell);
        drop(ticket);
    }

    /// Makes the link to a new node durable.
    pub(super) fn link_node(&self, node: &Node) {
        // SAFETY: the word is one of the parent, which is retired after the node has been.
        let cell = unsafe { &*node.cell };
        // COMMIT loft.node: the child's word. Before this store recovery finds no node there, and no record is; after it the new node.
        self.commit_link(cell, NO_CHILD, node.word(), "loft.node");
        node.linked.store(true, Ordering::Release);
    }

    /// Makes the link to a new bucket durable.
    pub(super) fn link_bucket(&self, node: &Node, place: Where<'_>, bucket: &Bucket) {
        let cell = match place {
            Where::Group(group) => node.link_cell(group),
            Where::After(before) => &before.block.bucket_header().next,
        };
        // COMMIT loft.bucket: the link. Before this store recovery finds no bucket there, and no record is in it; after it the bucket.
        self.commit_link(cell, NO_LINK, bucket.block.offset.get(), "loft.bucket");
        bucket.linked.store(true, Ordering::Release);
    }

    /// Makes the link from a node that is moved to its successor durable.
    pub(super) fn link_move(&self, moved: &Move) {
        if moved.linked.load(Ordering::Acquire) || planted(Bug::CopyBeforeLink) {
            return;
        }
        // COMMIT loft.move: `moved to`. Before this store recovery finds the node alone, and the sweep frees the successor; after it,
        // recovery finishes the move.
        let target = super::recover::word_of(moved.linked_target());
        self.commit_link(moved.cell(), NO_LINK, target, "loft.move");
        moved.linked.store(true, Ordering::Release);
        #[cfg(all(test, not(loom)))]
        super::tests::reached(Moment::MoveIsLinked).expect("this hook has no errors");
    }

    /// Puts a new data node where a parent has none.
    fn create(&self, inner: &Inner, index: usize) -> Result<()> {
        #[cfg(all(test, not(loom)))]
        super::tests::reached(Moment::RoomIsWanted)?;
        let range = inner
            .range(index)
            .ok_or_else(|| Error::Damaged("a key beyond its node".into()))?;
        let built = self.build(range, &[], &self.plan())?;
        self.pm.fence();
        self.pm.note("loft: node added", 0);
        // SAFETY: it has just been made, and nobody else has seen it.
        if let Kin::Node(_) = unsafe { built.child.kin() } {
            let node = built.child.0 as *mut Node;
            // SAFETY: as above.
            unsafe {
                (*node).cell = inner.cell(index);
                (*node).linked = AtomicBool::new(false);
            }
        }
        if inner.replace(index, Child::EMPTY, built.child) {
            built.keep();
        }
        #[cfg(all(test, not(loom)))]
        super::tests::reached(Moment::NodeIsCreated)?;
        Ok(())
    }

    /// Puts a new data node where a walk has found none.
    pub(super) fn create_at(&self, spot: &Spot<'_>) -> Result<()> {
        let (inner, index) = spot
            .parent
            .expect("only an inner node has children that are empty");
        self.create(inner, index)
    }

    /// Adds a bucket behind a link that leads nowhere; in a node that is moved, closes the link. `has_spared`: see [`Plan`].
    pub(super) fn add_room(
        &self,
        node: &Node,
        link: &AtomicPtr<Bucket>,
        (place, level): (Where<'_>, u32),
        has_spared: bool,
    ) -> Result<()> {
        if load_move(&node.moving).is_some() {
            self.close_link(link);
            return Ok(());
        }
        self.add_bucket(node, link, (place, level), has_spared)
    }

    fn add_bucket(
        &self,
        node: &Node,
        link: &AtomicPtr<Bucket>,
        (place, level): (Where<'_>, u32),
        has_spared: bool,
    ) -> Result<()> {
        #[cfg(all(test, not(loom)))]
        super::tests::reached(Moment::RoomIsWanted)?;
        let block = self.new_bucket(level, has_spared)?;
        self.pm.fence();
        let (offset, bytes) = (block.offset, block.bytes);
        let bucket = Box::into_raw(Box::new(Bucket::new(block, false)));
        let none = std::ptr::null_mut();
        if link
            .compare_exchange(none, bucket, Ordering::SeqCst, Ordering::SeqCst)
            .is_err()
        {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(bucket) });
            self.blocks.free_now(offset, bytes);
            return Ok(());
        }
        Changes::add(&self.changes.buckets);
        self.pm.note("loft: bucket added", u64::from(level.min(1)));
        // SAFETY: a bucket stays as long as its node.
        self.link_bucket(node, place, unsafe { &*bucket });
        Ok(())
    }

    /// Visits the buckets of a group of a node that is moved, and closes the link that leads to no further one.
    pub(super) fn visit_last_buckets<'a>(
        &self,
        mut link: &'a AtomicPtr<Bucket>,
        mut visit: impl FnMut(&'a Bucket) -> Result<()>,
    ) -> Result<()> {
        loop {
            self.close_link(link);
            let Some(bucket) = load_bucket(link) else {
                return Ok(());
            };
            visit(bucket)?;
            link = &bucket.next;
        }
    }

    /// Closes a link that leads nowhere, in a node that is moved.
    pub(super) fn close_link(&self, link: &AtomicPtr<Bucket>) {
        let none = std::ptr::null_mut();
        let _ = link.compare_exchange(none, Bucket::closed(), Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Calls `visit` for a node and those beneath it that are inner nodes. The caller is pinned and has loaded the child since, or nobody else has seen
/// it.
pub(super) fn for_each_inner(child: Child, visit: &dyn Fn(&Inner)) {
    // SAFETY: as the caller promises.
    if let Kin::Inner(inner) = unsafe { child.kin() } {
        visit(inner);
        for below in &inner.children {
            for_each_inner(Child(below.load(Ordering::Acquire)), visit);
        }
    }
}

/// Replacing one data node.
impl Index {
    /// Decides whether the node into which something was just inserted is to be replaced, and begins that.
    #[inline(always)]
    pub(super) fn after_insert(&self, node: &Node, spot: &Spot<'_>, way: &Way) {
        if way.is_far(node) {
            node.far.fetch_add(1, Ordering::Relaxed);
            self.consider(node, spot);
        }
    }

    /// Counts a copy that went far.
    pub(super) fn noticed(&self, node: &Node, way: &Way) {
        if way.is_far(node) {
            node.born_far.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[cold]
    fn consider(&self, node: &Node, spot: &Spot<'_>) {
        // A new model for keys that no line fits would not be better.
        let born_far = node.born_far.load(Ordering::Relaxed);
        let most = far_enough(node) + born_far;
        let Some((parent, index)) = spot.parent else {
            return;
        };
        if node.far.load(Ordering::Relaxed) < most || load_move(&node.moving).is_some() {
            return;
        }
        node.far.store(0, Ordering::Relaxed);
        // Without space the node goes on as it is, or is moved by others.
        let _ = self.move_node(node, parent, index, None);
    }

    /// Replaces `node`, a child of `parent`, unless another thread has begun to, or copies may come late to the parent's children.
    pub(super) fn move_node(
        &self,
        node: &Node,
        parent: &Inner,
        index: usize,
        plan: Option<Plan<'_>>,
    ) -> Result<()> {
        if !parent.settling.is_over() {
            return Ok(());
        }
        if !node.linked.load(Ordering::Acquire) {
            // A compaction may come by before whoever has made the node has linked it. The parent's word, which leads nowhere yet, would not be
            // exchanged for the successor, and never again after that.
            self.link_node(node);
        }
        if self.moves_whole {
            return self.move_whole(node, parent, index, plan);
        }
        let records = self.records_of(node)?;
        let plan = plan.unwrap_or_else(|| self.plan_for(node, parent.side(index), &records));
        let built = self.build((node.low, node.high), &records, &plan)?;
        self.pm.fence();
        for_each_inner(built.child, &|inner| inner.settling.begin());
        let mode = Mode::Grouped(Groups::of(node));
        let moved = Move::of_node(node, (parent, index), Some(built.child), mode);
        if self.install(&node.moving, moved) {
            self.note_move(built.keep().1);
        }
        // What was read and written last is in the caches.
        load_move(&node.moving).map_or(Ok(()), |moved| self.finish(node, moved))
    }

    /// Counts a data node that gets this successor.
    pub(super) fn note_move(&self, target_word: u64) {
        let is_split = target_word & IS_INNER != 0;
        self.pm.note("loft: node moved", u64::from(is_split));
        Changes::add(if is_split {
            &self.changes.splits
        } else {
            &self.changes.expansions
        });
    }

    pub(super) fn install(&self, moving: &AtomicPtr<Move>, moved: Move) -> bool {
        let moved = Box::into_raw(Box::new(moved));
        let none = std::ptr::null_mut();
        let done = moving
            .compare_exchange(none, moved, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if !done {
            // SAFETY: nobody else has seen it.
            drop(unsafe { Box::from_raw(moved) });
        }
        done
    }

    /// Moves one group of a node that is moved, and replaces the node if that was the last one.
    pub(super) fn help(&self, node: &Node, moved: &Move) -> Result<()> {
        let groups = match &moved.mode {
            Mode::Grouped(groups) => groups,
            Mode::Whole => return self.help_whole(node, moved),
            // Whoever began that goes through all nodes.
            Mode::Subtree => return Ok(()),
        };
        // Whoever began the move is about to do all of it, most likely.
        if !moved
            .passed
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(PASSES_PER_GROUP)
        {
            return Ok(());
        }
        self.link_move(moved);
        let count = groups.done.len() as u32;
        let next = groups.cursor.fetch_add(1, Ordering::Relaxed);
        let group = if next < count {
            Some(next as usize)
        } else {
            let is_left = |done: &AtomicBool| !done.load(Ordering::Acquire);
            groups.done.iter().position(is_left)
        };
        if let Some(group) = group {
            self.move_group(node, moved, group)?;
            groups.done[group].store(true, Ordering::Release);
        }
        if next + 1 >= count && groups.are_done() {
            self.replace(moved);
        }
        Ok(())
    }

    /// Does what is left of the move of a data node.
    pub(super) fn finish(&self, node: &Node, moved: &Move) -> Result<()> {
        let groups = match &moved.mode {
            Mode::Grouped(groups) => groups,
            Mode::Whole => return self.complete(node, moved, None),
            Mode::Subtree => return Ok(()),
        };
        self.link_move(moved);
        for (group, done) in groups.done.iter().enumerate() {
            if !done.load(Ordering::Acquire) {
                self.move_group(node, moved, group)?;
                done.store(true, Ordering::Release);
            }
        }
        self.replace(moved);
        Ok(())
    }

    /// Replaces the source of a move, of which everything has been copied, and retires it.
    pub(super) fn replace(&self, moved: &Move) {
        let target = moved.linked_target();
        let (cell, target_word) = (moved.parent_cell(), super::recover::word_of(target));
        // COMMIT loft.replace: the parent's word. Before this store recovery sees the source, and finishes the move if the source links to the
        // target; after it, it sees the target, and the sweep frees the source.
        self.commit_link(cell, moved.source_word, target_word, "loft.replace");
        let committed = cell.load_acquire();
        #[cfg(all(test, not(loom)))]
        super::tests::reached(Moment::WordIsReplaced).expect("this hook has no errors");
        point();
        let (old, new) = (moved.source.0, target.0);
        let child = moved.parent_child();
        let is_first = child
            .compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        // Only now: whoever finds this set leaves the parent's child alone, and would come to the source again and again if it were there still.
        moved.linked.store(true, Ordering::Release);
        if is_first {
            // As long as the source was the parent's child, nobody has replaced the target in its turn.
            assert!(
                committed == target_word,
                "invariant: the word {committed:#x} in a parent leads to a node or to its successor, {target_word:#x}"
            );
            let stamp = epochs::stamp();
            for_each_inner(target, &|inner| inner.settling.end(stamp));
            self.retire(moved);
        }
    }

    /// Retires the source of a move, and the move.
    fn retire(&self, moved: &Move) {
        let mut parts = Vec::new();
        self.retire_tree(moved.source, &mut parts);
        // SAFETY: moves are made by `install`, and only the thread that has unlinked the source comes here.
        parts.push(RetiredPart::Move(unsafe {
            Box::from_raw(std::ptr::from_ref(moved).cast_mut())
        }));
        self.retired.add(parts);
    }

    /// Retires the blocks of a subtree, and collects its parts in DRAM.
    fn retire_tree(&self, child: Child, parts: &mut Vec<RetiredPart>) {
        // SAFETY: the caller is pinned, and has unlinked the subtree.
        match unsafe { child.kin() } {
            Kin::Node(node) => {
                self.retire_node_blocks(node);
                // SAFETY: nodes are made by `Box::into_raw`, and only the thread that has unlinked this one comes here.
                parts.push(RetiredPart::Node(unsafe {
                    Box::from_raw(child.0 as *mut Node)
                }));
            }
            Kin::Inner(inner) => {
                for child in &inner.children {
                    self.retire_tree(Child(child.load(Ordering::Acquire)), parts);
                }
                self.blocks.retire(inner.block.offset, inner.block.bytes);
                let inner = std::ptr::from_ref(inner).cast_mut();
                // SAFETY: as for a node.
                parts.push(RetiredPart::Inner(unsafe { Box::from_raw(inner) }));
            }
            _ => {}
        }
    }

    fn retire_node_blocks(&self, node: &Node) {
        for bucket in node.all_buckets() {
            self.blocks.retire(bucket.block.offset, bucket.block.bytes);
        }
        self.blocks.retire(node.block.offset, node.block.bytes);
    }
}

/// Replacing an inner node with all nodes beneath it.
impl Index {
    /// Begins to replace `inner` by `built`, and does all of it; `false` if another thread has begun to move it.
    pub(super) fn move_inner(
        &self,
        inner: &Inner,
        parent_cell: &Cell,
        parent_child: &AtomicUsize,
        built: Built<'_>,
    ) -> Result<bool> {
        self.pm.fence();
        for_each_inner(built.child, &|inner| inner.settling.begin());
        let moved = Move::new(
            Child::inner(inner),
            Some(built.child),
            &inner.block.inner_header().moved_to,
            (parent_cell, parent_child),
            Mode::Subtree,
        );
        if !self.install(&inner.moving, moved) {
            return Ok(false);
        }
        built.keep();
        self.pm.note("loft: inner node moved", 0);
        let moved = load_move(&inner.moving).expect("it was installed");
        self.finish_inner(inner, moved)?;
        Ok(true)
    }

    /// Does what is left of the move of an inner node.
    pub(super) fn finish_inner(&self, inner: &Inner, moved: &Move) -> Result<()> {
        self.link_move(moved);
        self.capture(inner, moved, true)?;
        self.replace(moved);
        Ok(())
    }

    /// Freezes all slots beneath an inner node, as parts of one move, and copies the records, unless that is to be left for later.
    pub(super) fn capture(&self, inner: &Inner, moved: &Move, copies: bool) -> Result<()> {
        for index in 0..inner.children.len() {
            while !self.capture_child(inner, index, moved, copies)? {}
        }
        Ok(())
    }

    /// Captures one child; `false` if it was another one meanwhile.
    fn capture_child(
        &self,
        inner: &Inner,
        index: usize,
        moved: &Move,
        copies: bool,
    ) -> Result<bool> {
        let child = inner.child(index);
        // SAFETY: the caller is pinned, and has loaded the child since.
        match unsafe { child.kin() } {
            Kin::Untouched => {
                self.touch(Some((inner, index)))?;
                return Ok(false);
            }
            Kin::Empty => return Ok(inner.replace(index, Child::EMPTY, Child::CLOSED)),
            Kin::Closed => {}
            Kin::Node(node) => {
                let other = take_part(&node.moving, moved);
                if !std::ptr::eq(other, moved) {
                    self.finish(node, other)?;
                    return Ok(false);
                }
                if !copies {
                    self.freeze_all(node, &[])?;
                    return Ok(true);
                }
                for group in 0..node.groups.len() {
                    self.move_group(node, moved, group)?;
                }
            }
            Kin::Inner(below) => {
                let other = take_part(&below.moving, moved);
                if !std::ptr::eq(other, moved) {
                    self.finish_inner(below, other)?;
                    return Ok(false);
                }
                self.capture(below, moved, copies)?;
            }
        }
        Ok(true)
    }
}

/// Makes what `moving` belongs to a part of a move, and returns the move that it is a part of: another one, if that came first.
fn take_part<'a>(moving: &'a AtomicPtr<Move>, moved: &Move) -> &'a Move {
    let none = std::ptr::null_mut();
    let mine = std::ptr::from_ref(moved).cast_mut();
    let _ = moving.compare_exchange(none, mine, Ordering::SeqCst, Ordering::SeqCst);
    load_move(moving).expect("it was installed, now or before")
}

/// Freeing.
impl Index {
    /// Frees the parts of a subtree in DRAM.
    ///
    /// # Safety
    ///
    /// No thread can reach them, now or later.
    pub(super) unsafe fn free_tree(&self, child: Child) {
        let free_move = |moving: &AtomicPtr<Move>| {
            let moving = moving.load(Ordering::Acquire);
            // SAFETY: it is one of this subtree, and freed with its source alone.
            let owned = unsafe { moving.as_ref() }.filter(|moved| moved.source == child);
            if let Some(moved) = owned {
                let target = moved.target();
                // SAFETY: moves are made by `install`.
                drop(unsafe { Box::from_raw(moving) });
                // SAFETY: by the contract of this function; the target hangs nowhere else, since the source has not been replaced.
                unsafe { self.free_tree(target.unwrap_or(Child::EMPTY)) };
            }
        };
        // SAFETY: by the contract of this function nobody frees it meanwhile.
        match unsafe { child.kin() } {
            Kin::Node(node) => {
                free_move(&node.moving);
                // SAFETY: nodes are made by `Box::into_raw`.
                drop(unsafe { Box::from_raw(child.0 as *mut Node) });
            }
            Kin::Inner(inner) => {
                for below in &inner.children {
                    // SAFETY: by the contract of this function.
                    unsafe { self.free_tree(Child(below.load(Ordering::Acquire))) };
                }
                free_move(&inner.moving);
                // SAFETY: inner nodes are made by `Box::into_raw`.
                drop(unsafe { Box::from_raw(std::ptr::from_ref(inner).cast_mut()) });
            }
            _ => {}
        }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference to the index, so nobody can reach its nodes.
        unsafe { self.free_tree(Child(self.root.load(Ordering::Acquire))) };
    }
}
