//! The links to nodes: who leads to an inner node, how it is replaced, and what happens to nodes to which nothing leads any more.

use super::{Step, no_child};
use crate::engines::apex::build::slots_block_bytes;
use crate::engines::apex::data::{DataNode, State};
use crate::engines::apex::divide::ChildGroup;
use crate::engines::apex::inner::{Child, InnerNode, group_log, group_of};
use crate::engines::apex::layout::{Link, SMALLEST_BLOCK};
use crate::engines::apex::{Bug, Tree};
use crate::pmem::planted::planted;
use crate::{Error, Result};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

impl Tree {
    /// Whether the step `above` leads to `inner`, or the root is `inner` if there is no step. The slots above are
    /// locked.
    pub(in crate::engines::apex) fn is_child(
        &self,
        above: Option<&Step<'_>>,
        inner: &InnerNode,
    ) -> bool {
        let now = match above {
            Some(step) if step.inner.is_dead() => return false,
            Some(step) => step.inner.child(step.slot).as_inner().cast_const(),
            None => self.root.load(Ordering::Acquire).cast_const(),
        };
        now == std::ptr::from_ref(inner)
    }

    /// Points the child group of a step, or the root, to another node for the same keys, durably and then in the mirror. The slots
    /// above are locked, and the caller is pinned. `Error::Damaged`, before anything is changed, if the child group is not that of the
    /// old node.
    pub(in crate::engines::apex) fn relink_inner(
        &self,
        above: Option<&Step<'_>>,
        link: Link,
        child: Child,
    ) -> Result<()> {
        let Some(step) = above else {
            // COMMIT apex.root: the root, in the catalog. Before this store, recovery sees the old root and
            // sweeps the new one; after it, recovery sees the new root and sweeps the old one.
            self.pm.commit(self.root_cell(), link.0, "apex.root");
            self.root.store(child.as_inner(), Ordering::Release);
            return Ok(());
        };
        let slots = self.durable_slots(step.inner);
        let Some((first, _)) = group_of(slots, step.slot) else {
            return Err(no_child(step));
        };
        let (parent, log) = (step.inner, group_log(slots, first));
        // SAFETY: the caller is pinned (apex I5), or has built the node.
        let range = unsafe { child.range() };
        let is_whole = parent.has_group(first, log, parent.child(step.slot))
            && range.is_none_or(|range| range == parent.range_of(first, log));
        if !is_whole {
            return Err(Error::Damaged(format!(
                "the slots of inner node {:#x} lead to another child than before, or others lead to it, too",
                parent.head
            )));
        }
        self.relink(ChildGroup { parent, first, log }, link, child);
        Ok(())
    }

    /// Retires a data node that is no longer reachable: its blocks and its mirror are freed when no reader can hold
    /// them.
    pub(in crate::engines::apex) fn retire_data(&self, data: &DataNode) {
        for block in data.extensions() {
            self.blocks.retire(block, SMALLEST_BLOCK);
        }
        if !planted(Bug::FreeBeforeCommit) {
            self.blocks.retire(data.offset(), data.bytes);
        }
        data.set_state(State::Dead);
        self.retire_data_mirror(data);
    }

    /// Retires an inner node that is no longer reachable. Its slots are locked.
    pub(in crate::engines::apex) fn retire_inner(&self, inner: &InnerNode) {
        inner.set_dead();
        // Where the slots are, the mirror says: the head may have been damaged since.
        if inner.durable_slots != inner.head + self.inline_slots_offset() {
            let bytes = slots_block_bytes(inner.radix.slots());
            self.blocks.retire(inner.durable_slots, bytes);
        }
        self.blocks.retire(inner.head, SMALLEST_BLOCK);
        self.retire_mirror(Child::inner(NonNull::from(inner)));
    }
}
