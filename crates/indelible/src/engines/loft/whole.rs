//! Replacing a data node at once: its successor is written with all records, and one store puts the successor into the tree.
//!
//! | step | what is durable | what recovery does |
//! |---|---|---|
//! | 1. An insert that went far builds a successor, the *target*, with the records that the node has. | the target, to which nothing refers | the sweep frees it |
//! | 2. One exchange in DRAM, of the node's `moving`, says that the node is moved. | as before | as before |
//! | 3. All slots of the node are frozen, and all its links closed: empty to closed, live to frozen. Nothing is flushed. | each slot in its old state or in the new one | touches the node, and makes frozen slots live and closed ones empty |
//! | 4. If a record has changed since step 1, the target is built once more, of the frozen records, which do not change any more. | as after step 3 | as after step 3 |
//! | 5. One exchange in DRAM, of the move's `target`, decides which target counts; others are freed. | as after step 3 | as after step 3 |
//! | 6. COMMIT loft.replace: the parent's word leads to the target. | the target is in the tree | touches the target alone; the sweep frees the node |
//! | 7. The parent's child in DRAM is exchanged; who does that retires the node. | | |
//!
//! Every thread can do all of it: an operation that has to write where a slot is frozen or closed does, and so does one of many that come by. So nobody
//! waits for a thread that has lost its core, but for one case: in a full pool, an operation that needs the target and finds no space for one waits a second at most for
//! the thread that has begun the move, and so has blocks for it. An operation that only reads takes a frozen record for what it is as long as the move has no target. From step
//! 5 on a key's slot in the node says nothing any more: the target has got all records, and what has been removed there since is forgotten when the
//! target is moved in its turn.

use super::build::Built;
use super::inner::{Inner, Side};
use super::layout::{HALTED, NO_LINK, Slot};
use super::node::{Mode, Move, Node, load_move};
use super::plan::{Plan, Record};
use super::records::sort;
use super::{Bug, Index};
use crate::concurrency::locks::Wait;
use crate::engines::unless_full;
use crate::pmem::geometry::sized_in_tests;
use crate::pmem::planted::planted;
use crate::{Error, Result};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Operations that pass a node which is moved, of which one does what is left of the move. Many, since whoever has begun the move is about to do all of it,
/// most likely, and not so many that a node whose mover has lost its core fills up.
const PASSES_PER_MOVE: u32 = sized_in_tests(256, 2) as u32;

/// How long an operation that finds no space for the target of a move waits for the thread that has begun the move, and so has blocks for the target. If
/// that one has lost its core for longer, the operation is refused for want of space.
const MOST_WAIT: Duration = Duration::from_secs(1);

/// A target that may come to count, if the records of the source have not changed when all of them are frozen.
pub(super) struct Prepared<'a> {
    built: Built<'a>,
    /// How the target is laid out.
    plan: Plan<'a>,
    /// What the target was built of, in the order of the source's slots.
    records: Vec<Record>,
}

/// Waits for the thread that has begun a move; whether it has decided which target counts.
#[cold]
fn wait_for_mover(moved: &Move) -> bool {
    let (begin, mut wait) = (Instant::now(), Wait::default());
    while moved.target().is_none() {
        if !moved.has_mover.load(Ordering::Acquire) || begin.elapsed() > MOST_WAIT {
            return false;
        }
        wait.step();
    }
    true
}

impl Index {
    /// Replaces `node`, a child of `parent`, unless another thread does.
    pub(super) fn move_whole(
        &self,
        node: &Node,
        parent: &Inner,
        index: usize,
        plan: Option<Plan<'_>>,
    ) -> Result<()> {
        // Before anything is frozen: where there is no space, the node goes on as it is.
        let prepared = self.prepare(node, parent.side(index), plan, self.nothing_built())?;
        let moved = Move::of_node(node, (parent, index), None, Mode::Whole);
        moved.has_mover.store(true, Ordering::Relaxed);
        if !self.install(&node.moving, moved) {
            return Ok(());
        }
        let moved = load_move(&node.moving).expect("it was installed");
        self.complete(node, moved, Some(prepared))
    }

    /// Builds a target of what the node has, in the blocks first that an earlier one held.
    fn prepare<'a>(
        &'a self,
        node: &Node,
        side: Side,
        plan: Option<Plan<'a>>,
        held: Built<'a>,
    ) -> Result<Prepared<'a>> {
        let (records, in_windows) = self.gather(node)?;
        let mut sorted = records.clone();
        sort(&mut sorted, in_windows);
        let mut plan = plan.unwrap_or_else(|| self.plan_for(node, side, &sorted));
        plan.stores = true;
        // If there was an earlier target, the node is frozen, and its records are to find a place whatever it takes.
        plan.has_spared |= held.holds_blocks();
        let built = self.build_in(held, (node.low, node.high), &sorted, &plan)?;
        if !planted(Bug::ReplaceBeforeFence) {
            self.pm.fence();
        }
        #[cfg(all(test, not(loom)))]
        super::tests::reached(super::tests::Moment::TargetIsBuilt)?;
        Ok(Prepared {
            built,
            plan,
            records,
        })
    }

    /// One of many operations that come by a node that is moved does what is left of the move.
    pub(super) fn help_whole(&self, node: &Node, moved: &Move) -> Result<()> {
        let passed = moved.passed.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if !passed.is_multiple_of(PASSES_PER_MOVE) {
            return Ok(());
        }
        // The operation may not need it, and so waits for nobody.
        let decided = self.decide(node, moved, None);
        unless_full(self.end_move(moved, decided))
    }

    /// Does what is left of a move. Afterwards the target is durable, and linked.
    pub(super) fn complete(
        &self,
        node: &Node,
        moved: &Move,
        prepared: Option<Prepared<'_>>,
    ) -> Result<()> {
        let is_mover = prepared.is_some();
        let mut decided = self.decide(node, moved, prepared);
        if is_mover && decided.is_err() {
            moved.has_mover.store(false, Ordering::Release);
        }
        if !is_mover && matches!(decided, Err(Error::NoSpace(_))) && wait_for_mover(moved) {
            decided = Ok(());
        }
        self.end_move(moved, decided)
    }

    /// Links the target of a move, if there is one.
    fn end_move(&self, moved: &Move, decided: Result<()>) -> Result<()> {
        if let Err(error) = decided {
            // COMMIT loft.move: `moved to`. An open after a clean close looks at the slots of this node only after this store; an open after a
            // crash does in any case.
            self.commit_link(moved.cell(), NO_LINK, HALTED, "loft.move");
            return Err(error);
        }
        if !moved.linked.load(Ordering::Acquire) {
            self.replace(moved);
        }
        Ok(())
    }

    /// Freezes the node, and makes sure that the move has a target with its records.
    fn decide<'a>(
        &'a self,
        node: &Node,
        moved: &Move,
        mut prepared: Option<Prepared<'a>>,
    ) -> Result<()> {
        let (mut plan, mut held) = (None, self.nothing_built());
        while moved.target().is_none() {
            let prepared = match prepared.take() {
                Some(prepared) => prepared,
                None => {
                    let held = std::mem::replace(&mut held, self.nothing_built());
                    self.prepare(node, moved.side, plan, held)?
                }
            };
            let is_older = !self.freeze_all(node, &prepared.records)?;
            if is_older && !planted(Bug::ReplaceByOlder) {
                // In a full pool another thread would take the blocks if they were freed in between.
                (plan, held) = (Some(prepared.plan), prepared.built.without_nodes());
                continue;
            }
            if moved.decide(prepared.built.child) {
                self.note_move(prepared.built.keep().1);
            }
        }
        Ok(())
    }

    /// Freezes all slots of a node and closes its links; whether its records are `expected`, in the order of their slots.
    pub(super) fn freeze_all(&self, node: &Node, expected: &[Record]) -> Result<bool> {
        let (mut number, mut are_equal) = (0, true);
        let mut freeze = |slots: &[Slot]| -> Result<()> {
            for slot in slots {
                let (is_record, record) = self.freeze(node, slot)?;
                are_equal &= !is_record | (expected.get(number) == Some(&record));
                number += usize::from(is_record);
            }
            Ok(())
        };
        freeze(node.slots())?;
        for group in &node.groups {
            self.visit_last_buckets(group, |bucket| freeze(bucket.slots()))?;
        }
        Ok(are_equal && number == expected.len())
    }
}
