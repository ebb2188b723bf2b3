//! The records that a data node has.

use super::Index;
use super::layout::{Slot, state, state_of};
use super::node::{Child, Kin, Node};
use super::plan::Record;
use super::search::never_written;
use crate::{Error, Result};
use std::sync::atomic::Ordering;

impl Index {
    /// The live and frozen records of a node, in order.
    pub(super) fn records_of(&self, node: &Node) -> Result<Vec<Record>> {
        let (mut records, in_windows) = self.gather(node)?;
        sort(&mut records, in_windows);
        Ok(records)
    }

    /// The live and frozen records of a node, in the order of their slots, and how many of them do not lie in buckets.
    pub(super) fn gather(&self, node: &Node) -> Result<(Vec<Record>, usize)> {
        let mut records = Vec::with_capacity(node.slot_count);
        add_records(node, node.slots(), &mut records)?;
        let in_windows = records.len();
        for bucket in node.all_buckets() {
            add_records(node, bucket.slots(), &mut records)?;
        }
        Ok((records, in_windows))
    }

    /// Adds the records of a subtree, those of each node in order. The thread is pinned and has loaded the child since, or nobody else has seen it.
    pub(super) fn collect(&self, child: Child, records: &mut Vec<Record>) -> Result<()> {
        // SAFETY: as the caller promises.
        match unsafe { child.kin() } {
            Kin::Node(node) => records.extend(self.records_of(node)?),
            Kin::Inner(inner) => {
                for below in &inner.children {
                    self.collect(Child(below.load(Ordering::Acquire)), records)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Sorts the records of a node, of which so many do not lie in buckets. Of a key that was met twice, the record that was met first stays.
pub(super) fn sort(records: &mut Vec<Record>, in_windows: usize) {
    sort_nearly_sorted(&mut records[..in_windows]);
    if records.len() > in_windows {
        // Two runs, which the sort finds once the second is one.
        records[in_windows..].sort_unstable_by_key(|record| record.0);
        records.sort_by_key(|record| record.0);
    }
    records.dedup_by_key(|record| record.0);
}

/// Sorts records that lie in the windows of their keys: none is further from its place than a window is long.
fn sort_nearly_sorted(records: &mut [Record]) {
    for at in 1..records.len() {
        let record = records[at];
        let mut to = at;
        while to > 0 && records[to - 1].0 > record.0 {
            records[to] = records[to - 1];
            to -= 1;
        }
        records[to] = record;
    }
}

/// Adds the records of some slots of a node that hold a key that is not removed. Fails if one of the slots was never written: it may have had a record.
///
/// Each slot is written behind the last record, and counts if it is one: which slots have records cannot be predicted.
fn add_records(node: &Node, slots: &[Slot], records: &mut Vec<Record>) -> Result<()> {
    let (mut are_written, mut belong) = (true, true);
    let mut end = records.len();
    records.resize(end + slots.len(), (0, 0));
    for slot in slots {
        let word = slot.first.load_acquire();
        records[end] = (node.key(word), slot.second.load_acquire());
        let (key, state) = (records[end].0, state_of(word));
        let is_record = (state == state::LIVE) | (state == state::FROZEN);
        are_written &= state != state::NEVER_WRITTEN;
        // A node that is made of these records must have no others: recovery would refuse it.
        belong &= !is_record | ((node.low <= key) & (key <= node.high));
        end += usize::from(is_record);
    }
    records.truncate(end);
    match (are_written, belong) {
        (false, _) => Err(never_written(node)),
        (_, false) => Err(Error::Damaged(format!(
            "the node at {:#x} has a key that does not belong there",
            node.block.offset
        ))),
        _ => Ok(()),
    }
}
