//! Verification of a map, and statistics of its nodes.
//!
//! [`Tree::check`] compares what lies in the pool with the mirrors. It checks apex I1 and I2 for the child groups of each
//! inner node, apex I4 for all blocks, and data I1 to I5 and I8 for each data node; that the keys of all data nodes
//! together ascend; and that the map counts as many records as there are. Run while
//! nobody writes: a concurrent write can look like a defect.

use super::build::slots_block_bytes;
use super::data::{DataNode, State};
use super::inner::{InnerNode, group_log, group_of};
use super::layout::{GROUP_SLOTS, Offset, SMALLEST_BLOCK, WINDOW_SLOTS, window_of};
use super::smo::Path;
use super::{Shared, Tree};
use crate::index::simd::Plain;
use crate::map::MapStat;
use crate::{Error, Kind, Result, reclaim};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// What a check has found.
#[derive(Default)]
struct Report {
    problems: Vec<String>,
    records: u64,
    /// All blocks that are reachable, with their sizes.
    reachable: Vec<(Offset, u64)>,
}

impl Report {
    fn expect(&mut self, is_so: bool, problem: impl FnOnce() -> String) {
        if !is_so {
            self.problems.push(problem());
        }
    }
}

impl Tree {
    /// Visits all data nodes from left to right, with the path to each.
    fn for_each_node(&self, mut visit: impl FnMut(&Path<'_>)) -> Result<()> {
        let mut from = 0;
        loop {
            let _guard = reclaim::pin();
            let path = self.path_to(from)?;
            visit(&path);
            match path.data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Checks all nodes.
    fn check(&self, report: &mut Report) -> Result<()> {
        let mut inners = BTreeMap::new();
        let mut last = None;
        self.for_each_node(|path| {
            for step in &path.steps {
                if inners.insert(step.inner.head, ()).is_none() {
                    self.check_inner(step.inner, report);
                }
            }
            self.check_data(path.data, &mut last, report);
        })?;
        Ok(())
    }

    /// Checks that the child groups of an inner node tile its slots, and that its mirror agrees.
    fn check_inner(&self, inner: &InnerNode, report: &mut Report) {
        let at = inner.head;
        report.reachable.push((at, SMALLEST_BLOCK));
        if inner.durable_slots != at + self.inline_slots_offset() {
            let bytes = slots_block_bytes(inner.radix.slots());
            report.reachable.push((inner.durable_slots, bytes));
        }
        let slots = self.durable_slots(inner);
        let mut next = 0;
        while next < slots.len() {
            let Some((first, link)) = group_of(slots, next).filter(|&(first, _)| first == next)
            else {
                report.problems.push(format!(
                    "inner node {at:#x} has no child that begins at slot {next}"
                ));
                return;
            };
            let size = 1 << group_log(slots, first);
            let continued = self.limits.format.continued();
            let others = slots[first + 1..first + size].iter();
            let is_whole = others.clone().all(|slot| slot.load() == continued);
            report.expect(is_whole, || {
                format!("inner node {at:#x} has slots of no child from slot {first} on")
            });
            let child = inner.child(first);
            let is_right = child.is_cold() || child.is_inner() == link.is_inner();
            report.expect(is_right, || {
                format!("inner node {at:#x} is mirrored wrongly at slot {first}")
            });
            let one = (first..first + size).all(|slot| {
                let mirrored = inner.child(slot);
                mirrored.is_cold() || mirrored == child
            });
            report.expect(one, || {
                format!("inner node {at:#x} mirrors several children from slot {first} on")
            });
            next = first + size;
        }
    }

    /// Checks the records of a data node. `last` is the highest key of the nodes to its left.
    fn check_data(&self, data: &DataNode, last: &mut Option<u64>, report: &mut Report) {
        let at = data.offset();
        report.reachable.push((at, data.bytes));
        let extensions = data.extensions().map(|block| (block, SMALLEST_BLOCK));
        report.reachable.extend(extensions);
        report.expect(data.state() == State::Live, || {
            format!("data node {at:#x} is {:?}", data.state())
        });
        let in_stash = self.check_stash(data, report);
        let mut keys = Vec::new();
        for group in 0..data.group_count() {
            let of_group = self.keys_of(data, group);
            let count = data.count(group);
            report.expect(count.is_none_or(|count| count == of_group.len()), || {
                let found = of_group.len();
                format!(
                    "group {group} of data node {at:#x} counts {count:?} records and has {found}"
                )
            });
            keys.extend(of_group);
        }
        for slot in 0..data.primary as usize {
            let key = self.slot_at(data.slot_at(slot)).key.load();
            if key == data.marker() {
                continue;
            }
            let window = window_of(data.model.predict(key));
            let is_in_window = (window..window + WINDOW_SLOTS).contains(&slot);
            report.expect(is_in_window, || {
                format!("key {key:#x} is in slot {slot} of data node {at:#x}, not in its window")
            });
        }
        for group in 0..data.group_count() {
            let displaced = self.displaced_bits_of(data, group);
            report.expect(data.has_displaced_bits(group, displaced), || {
                format!("group {group} of data node {at:#x} has displaced records {displaced:#x} and does not know of all")
            });
        }
        report.expect(data.overflowed() == in_stash, || {
            let indexed = data.overflowed();
            format!("data node {at:#x} has {in_stash} records in its stash and knows of {indexed}")
        });
        keys.sort_unstable();
        for &key in &keys {
            report.expect((data.low..=data.high).contains(&key), || {
                format!("key {key:#x} is in data node {at:#x}, where it does not belong")
            });
            report.expect(*last < Some(key), || format!("key {key:#x} is there twice"));
            *last = Some(key);
        }
        report.records += keys.len() as u64;
    }

    /// Checks that lookups find every record in the stash of a node (data I5), and returns the number of these records.
    fn check_stash(&self, data: &DataNode, report: &mut Report) -> usize {
        let at = data.offset();
        let mut records = 0;
        for slot in 0..data.stash_slots() {
            let key = data.stash_at(slot).map(|at| self.slot_at(at).key.load());
            let Some(key) = key.filter(|&key| key != data.marker()) else {
                continue;
            };
            records += 1;
            let predicted = data.model.predict(key);
            // A slot behind the last group has no overflow bucket to search.
            if predicted / GROUP_SLOTS >= data.group_count() {
                let problem =
                    format!("data I7: key {key:#x} is predicted behind data node {at:#x}");
                report.problems.push(problem);
                continue;
            }
            let found = self.find_in_stash::<Plain>(data, predicted, key);
            report.expect(found.is_some_and(|(found, _)| found == slot), || {
                format!(
                    "key {key:#x} is in stash slot {slot} of data node {at:#x} and not found there"
                )
            });
        }
        let taken = data.taken_stash_slots();
        report.expect(taken == records, || {
            format!("data node {at:#x} has {records} records in its stash and {taken} slots taken")
        });
        records
    }
}

impl Shared {
    /// Checks the map; see `Map::check`.
    pub(super) fn check(&self) -> Result<Vec<String>> {
        let mut report = Report::default();
        let checked = self
            .warm_up(&|| true)
            .and_then(|()| self.tree.check(&mut report));
        match checked {
            Ok(()) => {}
            Err(Error::Damaged(problem)) => {
                report.problems.push(problem);
                return Ok(report.problems);
            }
            Err(error) => return Err(error),
        }
        let tree = &self.tree;
        let (tally, records) = (tree.tally.total(&tree.locks), report.records);
        report.expect(tally == records, || {
            format!("the map counts {tally} records and has {records}")
        });
        if !tree.core.is_read_only() {
            self.check_blocks(&mut report);
        }
        Ok(report.problems)
    }

    /// Checks that every reachable block is in use and reached once, and that no other block is in use.
    fn check_blocks(&self, report: &mut Report) {
        let blocks = &self.tree.blocks;
        report.reachable.sort_unstable();
        let twice = report.reachable.windows(2).find(|pair| pair[0] == pair[1]);
        if let Some((offset, _)) = twice.map(|pair| pair[0]) {
            report
                .problems
                .push(format!("block {offset:#x} is reached twice"));
        }
        for offset in blocks.free_among(&report.reachable) {
            report
                .problems
                .push(format!("block {offset:#x} is reached and free"));
        }
        blocks.settle();
        let (used, reachable) = (blocks.stat().0, report.reachable.len() as u64);
        report.expect(used == reachable, || {
            format!("{used} blocks are taken and {reachable} are reached")
        });
    }

    /// Statistics of the map; see `Map::stat`.
    pub(super) fn stat(&self) -> Result<MapStat> {
        let tree = &self.tree;
        if !tree.tally.is_complete() {
            self.warm_up(&|| true)?;
        }
        let records = tree.tally.total(&tree.locks);
        let mut sizes = Vec::new();
        let mut inners = BTreeMap::new();
        let (mut slots, mut stash, mut overflowed) = (0, 0, 0);
        let (mut extensions, mut dram, mut depths, mut deepest) = (0, tree.locks.bytes(), 0, 0);
        tree.for_each_node(|path| {
            let (data, depth) = (path.data, path.steps.len() as u64);
            let count: usize = (0..data.group_count())
                .map(|group| tree.keys_of(data, group).len())
                .sum();
            sizes.push(data.bytes);
            slots += data.slots() as u64;
            stash += u64::from(data.stash);
            overflowed += data.overflowed() as u64;
            extensions += data.extensions().count() as u64;
            dram += data.dram_bytes();
            depths += count as u64 * depth;
            deepest = deepest.max(depth);
            for step in &path.steps {
                inners.insert(step.inner.head, step.inner.bytes());
            }
        })?;
        sizes.sort_unstable();
        let (_, file_bytes, space_bytes) = tree.blocks.stat();
        let changes = &tree.changes;
        let per = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        Ok(MapStat {
            kind: Kind::Apex,
            records,
            fill: per(records, slots),
            file_bytes,
            dram_bytes: dram + inners.values().sum::<u64>() + space_bytes,
            warm: self.warm.load(Ordering::Relaxed),
            data_nodes: sizes.len() as u64,
            inner_nodes: inners.len() as u64,
            average_depth: per(depths, records),
            max_depth: deepest as u32,
            stash_ratio: per(stash, slots),
            overflow_ratio: per(overflowed, records),
            extensions,
            smallest_node: sizes.first().copied().unwrap_or(0),
            median_node: sizes.get(sizes.len() / 2).copied().unwrap_or(0),
            largest_node: sizes.last().copied().unwrap_or(0),
            expansions: changes.expansions.changes(),
            expansion_ns: changes.expansions.nanoseconds(),
            sideways_splits: changes.sideways_splits.changes(),
            sideways_split_ns: changes.sideways_splits.nanoseconds(),
            downward_splits: changes.downward_splits.changes(),
            downward_split_ns: changes.downward_splits.nanoseconds(),
            inner_expansions: changes.inner_expansions.changes(),
            inner_expansion_ns: changes.inner_expansions.nanoseconds(),
            merges: changes.merges.changes(),
            merge_ns: changes.merges.nanoseconds(),
            ..MapStat::default()
        })
    }
}
