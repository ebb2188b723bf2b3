//! A sorted table in nodes: the smallest engine, which `docs/adding-an-index.md` walks through.
//!
//! The records lie in nodes of 1 KiB, in order, and the nodes are a chain that begins at the catalog entry's first root. A map in DRAM finds
//! the node of a key.
//!
//! ```text
//! node  +0      +8     +16
//!      | live  | next | up to 63 records of 16 bytes, ascending: key, value
//!
//! live   bit i: record i has not been removed; one record at least has not · bit 63: one, which tells a node from a page that never
//!        reached the disk
//! next   offset of the next node, 0 for none
//! ```
//!
//! | change | lines flushed, fences | the store that commits it |
//! |---|---|---|
//! | update | 1, 1 | the value |
//! | remove, unless it is the node's last record | 1, 1 | `live` |
//! | any other change: some nodes are replaced by others | 16 streamed for each new node + 1, 2 | `next` of the node before them, or the catalog entry's root |
//!
//! One mutex protects everything, and it is held until a change is durable: so operations are linearizable, and no thread sees what
//! may still be lost. Opening reads all nodes, O(records), unlike that of the other engines.

#[cfg(all(test, not(loom)))]
pub(super) mod damage;
#[cfg(feature = "trace")]
pub(crate) mod testing;

use super::{
    Decision, Engine, EngineOptions, Fact, KeyValue, Ordered, Place, ReadBuffer, Report, Unread,
    slots,
};
use crate::concurrency::records::{RecordCount, RecordLocks};
use crate::concurrency::sync::lock;
use crate::pmem::geometry::sized;
use crate::pmem::planted::planted;
use crate::pmem::{Cell, Pm};
use crate::pool::{Offset, Space};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const NODE_BYTES: u32 = 1024;
/// Records of a node, at most: as many as there is room for.
const MOST_RECORDS: usize = sized(63, 4);
/// The bit of `live` that is always one.
const WRITTEN: u64 = 1 << 63;

/// The words of a node: their numbers.
const LIVE: usize = 0;
const NEXT: usize = 1;
const RECORDS: usize = 2;

crate::pmem::planted::bugs! { "table":
    /// New nodes are linked before they are durable.
    LinkBeforeNodes,
}

/// There is nothing to choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableOptions;

impl EngineOptions for TableOptions {
    const IS_EXAMPLE: bool = true;
}

/// Where the nodes are, by the lowest keys that they were written with.
type Nodes = BTreeMap<u64, Offset>;

/// The node that has `key` if any has, and the key by which it is found.
fn node_of(nodes: &Nodes, key: u64) -> Option<(u64, Offset)> {
    let (&lowest, &node) = nodes.range(..=key).next_back()?;
    Some((lowest, node))
}

/// An open table.
pub(crate) struct Index {
    place: Place,
    pm: Pm,
    spaces: [Arc<Space>; 1],
    locks: RecordLocks,
    count: RecordCount,
    nodes: Mutex<Nodes>,
}

impl Index {
    fn new(place: &Place) -> Result<Self> {
        Ok(Self {
            place: place.clone(),
            pm: place.core.pm(),
            spaces: [place.core.space(place.slot, NODE_BYTES)?],
            locks: RecordLocks::new(2),
            count: RecordCount::default(),
            nodes: Mutex::default(),
        })
    }

    /// The records of a node that have not been removed.
    fn records(&self, node: Offset) -> Vec<KeyValue> {
        let words = self.spaces[0].words(node);
        let live = slots(words[LIVE].load() & !WRITTEN);
        live.map(|at| [RECORDS + 2 * at, RECORDS + 2 * at + 1].map(|word| words[word].load()))
            .collect()
    }

    /// The word that links to the node that is found by `key`.
    fn link_to(&self, nodes: &Nodes, key: u64) -> &Cell {
        match nodes.range(..key).next_back() {
            Some((_, &before)) => &self.spaces[0].words(before)[NEXT],
            None => &self.place.core.entry(self.place.slot).roots[0],
        }
    }

    /// Replaces nodes that follow each other, which are found by the keys `old`, by nodes with `records` in the blocks `new`, about as many in
    /// each. Where `old` is empty, the table is.
    fn replace(&self, nodes: &mut Nodes, old: &[u64], new: &[Offset], records: &[KeyValue]) {
        let in_each = records.len().div_ceil(new.len().max(1)).max(1);
        let link = self.link_to(nodes, old.first().copied().unwrap_or(0));
        let mut next = match old.last() {
            Some(last) => self.spaces[0].words(nodes[last])[NEXT].load(),
            None => 0,
        };
        for (records, &node) in records.chunks(in_each).zip(new).rev() {
            let mut image = [0; NODE_BYTES as usize / 8];
            image[LIVE] = WRITTEN | ((1 << records.len()) - 1);
            image[NEXT] = next;
            image[RECORDS..][..2 * records.len()].copy_from_slice(records.as_flattened());
            self.pm.stream(self.spaces[0].words(node), &image);
            next = node.get();
        }
        if !planted(Bug::LinkBeforeNodes) {
            self.pm.fence();
        }
        self.pm.note(
            "nodes replaced",
            (old.len().min(2) * 3 + new.len().min(2)) as u64,
        );
        // COMMIT table.replace: the link. Before this store recovery sees the old nodes, and sweeps the new ones; after it, the other way round.
        self.pm.commit(link, next, "table.replace");
        // A thread reads nodes only while it holds the mutex, which this thread holds: so they may be freed without waiting for readers.
        let freed = old.iter().filter_map(|key| nodes.remove(key));
        freed.for_each(|node| self.spaces[0].free_now(node));
        nodes.extend(
            records
                .chunks(in_each)
                .map(|records| records[0][0])
                .zip(new.iter().copied()),
        );
    }

    /// [`replace`](Self::replace) by new nodes of at most `most` records.
    fn rewrite(
        &self,
        nodes: &mut Nodes,
        old: &[u64],
        records: &[KeyValue],
        most: usize,
    ) -> Result<()> {
        let new = self.spaces[0].alloc_many(records.len().div_ceil(most))?;
        self.replace(nodes, old, &new, records);
        Ok(())
    }
}

impl Engine for Index {
    type Options = TableOptions;

    fn format(_: &Place, _: &TableOptions) -> Result<()> {
        // A table without nodes: the catalog entry's roots are zero already.
        Ok(())
    }

    /// Follows the chain. Nothing in the file is believed before it has been looked at.
    fn open(place: &Place, _: TableOptions, _: u32) -> Result<Self> {
        let index = Self::new(place)?;
        let (mut nodes, mut count, mut above) = (Nodes::new(), 0, None);
        let mut link = index.link_to(&nodes, 0).load_acquire();
        while link != 0 {
            let node = Offset::from_word(link);
            let damaged = |what| Err(Error::Damaged(format!("node {node:#x} {what}")));
            if !index.spaces[0].owns(node) || !index.spaces[0].claim(node) {
                return damaged("is not a block of this map, or is reached twice");
            }
            let words = index.spaces[0].words(node);
            if !(1..1 << MOST_RECORDS).contains(&(words[LIVE].load() ^ WRITTEN)) {
                return damaged("has no records, or was never written");
            }
            let records = index.records(node);
            nodes.insert(records[0][0], node);
            for [key, _] in records {
                if above.is_some_and(|above| key <= above) {
                    return damaged("has a key that does not ascend");
                }
                above = Some(key);
                count += 1;
            }
            link = words[NEXT].load();
        }
        index.count.begin_with(&index.locks, count);
        *lock(&index.nodes) = nodes;
        Ok(index)
    }

    fn spaces(&self) -> &[Arc<Space>] {
        &self.spaces
    }

    fn locks(&self) -> &RecordLocks {
        &self.locks
    }

    fn count(&self) -> &RecordCount {
        &self.count
    }

    fn check(&self, report: &mut Report) -> Result<()> {
        for (&key, &node) in &*lock(&self.nodes) {
            let records = self.records(node);
            report.reach(node, NODE_BYTES.into());
            report.add_records(records.len() as u64);
            let ascend = records.is_sorted_by(|a, b| a[0] < b[0]);
            let is_sound = ascend && records.first().is_some_and(|record| record[0] >= key);
            report.expect(is_sound, || {
                format!("node {node:#x} has no records, or has them out of order")
            });
        }
        Ok(())
    }

    fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let nodes = lock(&self.nodes).len();
        let most = (nodes * MOST_RECORDS) as f64;
        let fill = Fact::share(
            "fill",
            records as f64,
            most,
            "records of those for which there is room",
        );
        Ok(vec![
            fill,
            Fact::count("nodes", nodes as u64, "nodes in the pool"),
        ])
    }

    fn dram_bytes(&self) -> u64 {
        (lock(&self.nodes).len() * size_of::<(u64, Offset)>()) as u64
    }

    /// Makes one node of those that follow each other and whose records fit into one, and moves nodes to the front of the pool.
    fn compact(&self) -> Result<()> {
        let nodes = &mut *lock(&self.nodes);
        let (mut groups, mut old, mut together) = (Vec::new(), Vec::new(), Vec::new());
        for (&key, &node) in &*nodes {
            let records = self.records(node);
            if together.len() + records.len() > MOST_RECORDS {
                groups.push((std::mem::take(&mut old), std::mem::take(&mut together)));
            }
            old.push(key);
            together.extend(records);
        }
        groups.push((old, together));
        for (old, together) in groups.iter().filter(|(old, _)| old.len() > 1) {
            self.rewrite(nodes, old, together, MOST_RECORDS)?;
        }
        let Some(end) = self.spaces[0].packed_end(0) else {
            return Ok(());
        };
        for (key, node) in nodes.clone() {
            if node >= end
                && let Some(new) = self.spaces[0].alloc_below(end)
            {
                self.replace(nodes, &[key], &[new], &self.records(node));
            }
        }
        Ok(())
    }
}

impl Ordered for Index {
    type Bookmark = ();

    // Not inlined into the one branch on kinds that all engines share: there each instruction counts for the fast ones.
    #[inline(never)]
    fn get(&self, key: u64) -> Result<Option<u64>> {
        let nodes = lock(&self.nodes);
        let records = node_of(&nodes, key).map_or(Vec::new(), |(_, node)| self.records(node));
        let found = records.into_iter().find(|record| record[0] == key);
        Ok(found.map(|[_, value]| value))
    }

    #[inline(never)]
    fn apply(
        &self,
        key: u64,
        decide: &mut impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        let nodes = &mut *lock(&self.nodes);
        // A key below all others belongs to the first node.
        let first = || {
            nodes
                .first_key_value()
                .map(|(&lowest, &node)| (lowest, node))
        };
        let node = node_of(nodes, key).or_else(first);
        let words = node.map_or(&[][..], |(_, node)| self.spaces[0].words(node));
        let mut records = node.map_or(Vec::new(), |(_, node)| self.records(node));
        let place = records.binary_search_by_key(&key, |record| record[0]);
        let before = place.ok().map(|at| records[at][1]);
        // Which slot of the node the record `at` of `records` lies in.
        let slot_of = |at| {
            let mut live = slots(words[LIVE].load());
            live.nth(at).expect("a record that was read has a bit")
        };
        let change = match (decide(before), place) {
            (Decision::Keep, _) | (Decision::Remove, Err(_)) => return Ok(before),
            (Decision::Put(value), Ok(at)) => {
                // COMMIT table.update: the value. Before this store recovery sees the old one, after it the new one.
                let cell = &words[RECORDS + 2 * slot_of(at) + 1];
                self.pm.commit(cell, value, "table.update");
                return Ok(before);
            }
            (Decision::Put(value), Err(at)) => {
                records.insert(at, [key, value]);
                1
            }
            (Decision::Remove, Ok(_)) if records.len() == 1 => {
                records.clear();
                -1
            }
            (Decision::Remove, Ok(at)) => {
                // COMMIT table.remove: the record's bit. Before this store recovery sees the record, after it a removed one.
                let live = words[LIVE].load() & !(1 << slot_of(at));
                self.pm.commit(&words[LIVE], live, "table.remove");
                self.count.change(self.locks.entry(0), key, -1);
                return Ok(before);
            }
        };
        let old: Vec<u64> = node.iter().map(|node| node.0).collect();
        self.rewrite(nodes, &old, &records, MOST_RECORDS)?;
        self.count.change(self.locks.entry(0), key, change);
        Ok(before)
    }

    fn bulk_load(&self, records: &[(u64, u64)], fill: f64) -> Result<()> {
        let nodes = &mut *lock(&self.nodes);
        if !nodes.is_empty() {
            return Err(Error::NotEmpty);
        }
        let in_each = ((MOST_RECORDS as f64 * fill) as usize).max(1);
        let loaded: Vec<KeyValue> = records.iter().map(|&(key, value)| [key, value]).collect();
        self.rewrite(nodes, &[], &loaded, in_each)?;
        self.count
            .change(self.locks.entry(0), 0, loaded.len() as i64);
        Ok(())
    }

    fn read_on<const UP: bool>(
        &self,
        unread: &mut Unread,
        buffer: &mut ReadBuffer<()>,
        wanted: Option<usize>,
    ) -> Result<()> {
        let nodes = lock(&self.nodes);
        let (first, last) = unread.unwrap_or((1, 0));
        let from = node_of(&nodes, first).map_or(first, |(lowest, _)| lowest);
        let read = (nodes.range(from..=last.max(from))).flat_map(|(_, &node)| self.records(node));
        buffer.read_from::<UP>(read, unread, wanted);
        Ok(())
    }
}
