//! Verification of a map, and statistics of its nodes.
//!
//! [`Tree::check`] compares what lies in the pool with the mirrors. It checks apex I1 and I2 for the child groups of each
//! inner node, apex I4 for all blocks, and data I1 to I5 and I8 for each data node; that the keys of all data nodes
//! together ascend; and that the map counts as many records as there are. Run while
//! nobody writes: a concurrent write can look like a defect.

use super::build::slots_block_bytes;
use super::data::{DataNode, State};
use super::inner::{InnerNode, group_log, group_of};
use super::layout::{GROUP_SLOTS, SMALLEST_BLOCK, WINDOW_SLOTS, window_of};
use super::smo::Path;
use super::{Changes, Counter, Tree};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::{Fact, Report};
use crate::kernels::Plain;
use std::collections::BTreeMap;

impl Tree {
    /// Visits all data nodes from left to right, with the path to each.
    fn for_each_node(&self, mut visit: impl FnMut(&Path<'_>)) -> Result<()> {
        let mut from = 0;
        loop {
            let _guard = epochs::pin();
            let path = self.path_to(from)?;
            visit(&path);
            match path.data.high.checked_add(1) {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Checks all nodes.
    pub(super) fn check(&self, report: &mut Report) -> Result<()> {
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
        report.reach(at, SMALLEST_BLOCK);
        if inner.durable_slots != at + self.inline_slots_offset() {
            let bytes = slots_block_bytes(inner.radix.slots());
            report.reach(inner.durable_slots, bytes);
        }
        let slots = self.durable_slots(inner);
        let mut next = 0;
        while next < slots.len() {
            let Some((first, link)) = group_of(slots, next).filter(|&(first, _)| first == next)
            else {
                report.problem(format!(
                    "inner node {at:#x} has no child that begins at slot {next}"
                ));
                return;
            };
            let size = 1 << group_log(slots, first);
            let continued = self.limits.format.continued();
            let others = slots[first + 1..first + size].iter();
            let is_whole = others.clone().all(|slot| slot.load() == continued);
            report.expect(is_whole, || {
                format!("inner node {at:#x} has slots behind slot {first} that are neither a link nor empty")
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
        report.reach(at, data.bytes);
        for block in data.extensions() {
            report.reach(block, SMALLEST_BLOCK);
        }
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
        report.add_records(keys.len() as u64);
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
                report.problem(problem);
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

    /// Bytes of DRAM for mirrors and locks.
    pub(super) fn dram_bytes(&self) -> u64 {
        self.survey().map_or(0, |survey| survey.dram_bytes)
    }

    /// See [`Engine::facts`](crate::engines::Engine::facts).
    pub(super) fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let Survey {
            mut sizes,
            slots,
            stash,
            overflowed,
            extensions,
            depths,
            deepest,
            inner_nodes,
            ..
        } = self.survey()?;
        sizes.sort_unstable();
        let size = |at: usize| sizes.get(at).copied().unwrap_or(0);
        let (records, slots) = (records as f64, slots as f64);
        let mut facts = vec![
            Fact::share("fill", records, slots, "records divided by slots"),
            Fact::count("data-nodes", sizes.len() as u64, "nodes that hold records"),
            Fact::count("inner-nodes", inner_nodes, "nodes above the data nodes"),
            Fact::average(
                "average-depth",
                depths as f64,
                records,
                "inner nodes above a record, on average",
            ),
            Fact::count("max-depth", deepest, "inner nodes above a record, at most"),
            Fact::share(
                "stash-share",
                stash as f64,
                slots,
                "slots of stashes divided by all slots of data nodes",
            ),
            Fact::share(
                "overflow-share",
                overflowed as f64,
                records,
                "records in stashes divided by all records",
            ),
            Fact::count("extensions", extensions, "blocks that extend a stash"),
            Fact::bytes("smallest-node", size(0), "bytes of the smallest data node"),
            Fact::bytes(
                "median-node",
                size(sizes.len() / 2),
                "bytes of the data node in the middle, by size",
            ),
            Fact::bytes(
                "largest-node",
                sizes.last().copied().unwrap_or(0),
                "bytes of the largest data node",
            ),
        ];
        facts.extend(self.changes.facts());
        Ok(facts)
    }

    fn survey(&self) -> Result<Survey> {
        let mut survey = Survey {
            dram_bytes: self.locks.bytes() + self.retired_bytes(),
            ..Survey::default()
        };
        let mut inners = BTreeMap::new();
        self.for_each_node(|path| {
            let (data, depth) = (path.data, path.steps.len() as u64);
            let count: usize = (0..data.group_count())
                .map(|group| self.keys_of(data, group).len())
                .sum();
            survey.sizes.push(data.bytes);
            survey.slots += data.slots() as u64;
            survey.stash += u64::from(data.stash);
            survey.overflowed += data.overflowed() as u64;
            survey.extensions += data.extensions().count() as u64;
            survey.dram_bytes += data.dram_bytes();
            survey.depths += count as u64 * depth;
            survey.deepest = survey.deepest.max(depth);
            for step in &path.steps {
                inners.insert(step.inner.head, step.inner.bytes());
            }
        })?;
        survey.inner_nodes = inners.len() as u64;
        survey.dram_bytes += inners.values().sum::<u64>();
        Ok(survey)
    }
}

/// What a walk over all nodes has added up.
#[derive(Default)]
struct Survey {
    /// Bytes of each data node.
    sizes: Vec<u64>,
    slots: u64,
    stash: u64,
    overflowed: u64,
    extensions: u64,
    dram_bytes: u64,
    /// For each record the inner nodes above it, all together.
    depths: u64,
    deepest: u64,
    inner_nodes: u64,
}

impl Changes {
    fn facts(&self) -> Vec<Fact> {
        let of = |counter: &Counter, [name, meaning, time, time_meaning]: [&'static str; 4]| {
            let changes = Fact::changes(name, counter.changes(), meaning);
            Fact::timed(changes, time, counter.nanoseconds(), time_meaning)
        };
        [
            of(&self.expansions, [
                "expansions",
                "data nodes rebuilt, larger or smaller or with another model, since the map was opened",
                "expansion-ns",
                "time that those took, from when writers of the node began to wait until they went on",
            ]),
            of(&self.sideways_splits, [
                "sideways-splits",
                "data nodes split into two slots of their parent, since the map was opened",
                "sideways-split-ns",
                "time that those took",
            ]),
            of(&self.downward_splits, [
                "downward-splits",
                "data nodes split below a new inner node, since the map was opened",
                "downward-split-ns",
                "time that those took",
            ]),
            of(&self.inner_expansions, [
                "inner-expansions",
                "inner nodes rebuilt with more slots, since the map was opened",
                "inner-expansion-ns",
                "time that those took, with the split of a data node that each is made for",
            ]),
            of(&self.merges, [
                "merges",
                "data nodes merged with a neighbour, since the map was opened",
                "merge-ns",
                "time that those took",
            ]),
        ]
        .concat()
    }
}
