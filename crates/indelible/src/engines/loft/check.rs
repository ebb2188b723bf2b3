//! Checks and facts.

use super::Index;
use super::inner::Inner;
use super::layout::{KEY_BITS, LINE_SLOTS, Slot, bare, state, state_of};
use super::node::{Child, Kin, Mode, Node, load_move};
use super::search::{Found, Way};
use super::tuning::Pattern;
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::{Fact, Report};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// What the map is made of.
#[derive(Default)]
struct Census {
    data_nodes: u64,
    inner_nodes: u64,
    slots: u64,
    buckets: u64,
    moving: u64,
    dram: u64,
    depth: u64,
    /// Nodes by what operations come to them.
    patterns: HashMap<Pattern, u64>,
}

impl Index {
    fn root_child(&self) -> Child {
        Child(self.root.load(Ordering::Acquire))
    }

    pub(super) fn check_all(&self, report: &mut Report) -> Result<()> {
        let _pinned = epochs::pin();
        self.check_tree(self.root_child(), report)
    }

    fn check_tree(&self, child: Child, report: &mut Report) -> Result<()> {
        // SAFETY: the thread is pinned, and has loaded the child since.
        match unsafe { child.kin() } {
            Kin::Node(node) => {
                if !self.is_read_only() {
                    self.reach_node(node, report);
                }
                // SAFETY: as above.
                match unsafe { child.target() } {
                    Some(target) => self.check_moved(child, target, report)?,
                    None => self.check_node(node, report),
                }
            }
            Kin::Inner(inner) => {
                // SAFETY: as above.
                if let Some(target) = unsafe { child.target() } {
                    self.for_each_block(child, &mut |block| {
                        report.reach(block.offset, block.bytes)
                    });
                    return self.check_moved(child, target, report);
                }
                if !self.is_read_only() {
                    report.reach(inner.block.offset, inner.block.bytes);
                }
                for index in 0..inner.children.len() {
                    let below = inner.child(index);
                    if !self.is_read_only() && below != Child::CLOSED {
                        self.check_link(inner, index, below, report);
                    }
                    self.check_tree(below, report)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks a node that is moved, or an inner node with all beneath it: the target's records count, and those of the source that are not there yet.
    fn check_moved(&self, source: Child, target: Child, report: &mut Report) -> Result<()> {
        let before = report.records();
        self.check_tree(target, report)?;
        let (mut known, mut old) = (Vec::new(), Vec::new());
        self.collect(target, &mut known)?;
        known.sort_unstable();
        let counted = report.records() - before;
        report.expect(counted == known.len() as u64, || {
            format!(
                "the successor of the node at {:#x} has a record twice",
                super::recover::word_of(source)
            )
        });
        self.collect(source, &mut old)?;
        for record in old {
            let is_known = known.binary_search_by_key(&record.0, |known| known.0);
            if is_known.is_err() && self.find_value(record.0)? == Some(record.1) {
                report.add_records(1);
            }
        }
        Ok(())
    }

    fn check_link(&self, inner: &Inner, index: usize, below: Child, report: &mut Report) {
        let word = inner.cell(index).load_acquire();
        report.expect(word == super::recover::word_of(below), || {
            format!(
                "child {index} of the inner node at {:#x} is another one than in DRAM",
                inner.block.offset
            )
        });
    }

    fn reach_node(&self, node: &Node, report: &mut Report) {
        report.reach(node.block.offset, node.block.bytes);
        for bucket in node.all_buckets() {
            report.reach(bucket.block.offset, bucket.block.bytes);
        }
    }

    fn check_node(&self, node: &Node, report: &mut Report) {
        let mut keys = Vec::new();
        let buckets = node.all_buckets().map(|bucket| bucket.slots());
        for slot in std::iter::once(node.slots()).chain(buckets).flatten() {
            self.check_slot(node, slot, &mut keys, report);
        }
        keys.sort_unstable();
        report.add_records(keys.len() as u64);
        let twice = keys.windows(2).find(|pair| pair[0] == pair[1]);
        report.expect(twice.is_none(), || {
            format!(
                "the data node at {:#x} has the key {twice:?} twice",
                node.block.offset
            )
        });
    }

    fn check_slot(&self, node: &Node, slot: &Slot, keys: &mut Vec<u64>, report: &mut Report) {
        let word = slot.first.load_acquire();
        let offset = node.block.offset;
        report.expect(state_of(word) != state::NEVER_WRITTEN, || {
            format!("the data node at {offset:#x} has a slot that was never written")
        });
        let is_bare = match state_of(word) {
            state @ (state::EMPTY | state::CLOSED) => word == bare(state),
            _ => true,
        };
        report.expect(is_bare, || {
            format!("the data node at {offset:#x} has a slot without a record that has a key")
        });
        // A whole move that has no target yet leaves the records where they are.
        let counts_frozen =
            load_move(&node.moving).is_some_and(|moved| matches!(moved.mode, Mode::Whole));
        let is_record =
            state_of(word) == state::LIVE || state_of(word) == state::FROZEN && counts_frozen;
        if !is_record {
            return;
        }
        let key = node.low & !KEY_BITS | word & KEY_BITS;
        keys.push(key);
        report.expect((node.low..=node.high).contains(&key), || {
            format!("the data node at {offset:#x} has the key {key:#x}, which belongs elsewhere")
        });
        let found = self.find::<false>(node, key, &mut Way::default());
        let is_found = match found {
            Ok(Found::Live(at, _)) => std::ptr::eq(at, slot),
            Ok(Found::Frozen(value)) => counts_frozen && value == slot.second.load_acquire(),
            _ => false,
        };
        report.expect(is_found, || {
            format!(
                "the data node at {offset:#x} has the key {key:#x} where a search does not find it"
            )
        });
    }

    fn take_census(&self, child: Child, depth: u64, census: &mut Census) {
        // SAFETY: the caller is pinned, and has loaded the child since.
        match unsafe { child.kin() } {
            Kin::Node(node) => {
                census.data_nodes += 1;
                census.slots += node.slot_count as u64;
                census.buckets += node.all_buckets().count() as u64;
                census.moving += u64::from(load_move(&node.moving).is_some());
                census.dram += node.dram_bytes();
                *census.patterns.entry(node.samples.pattern()).or_default() += 1;
                census.depth = census.depth.max(depth);
            }
            Kin::Inner(inner) => {
                census.inner_nodes += 1;
                census.dram += inner.dram_bytes();
                for below in &inner.children {
                    self.take_census(Child(below.load(Ordering::Acquire)), depth + 1, census);
                }
            }
            _ => {}
        }
    }

    fn census(&self) -> Census {
        let _pinned = epochs::pin();
        let mut census = Census::default();
        self.take_census(self.root_child(), 0, &mut census);
        census
    }

    pub(super) fn tree_bytes(&self) -> u64 {
        self.census().dram
    }

    pub(super) fn all_facts(&self, records: u64) -> Result<Vec<Fact>> {
        self.touch_all(&|| true)?;
        let census = self.census();
        let with = |pattern| census.patterns.get(&pattern).copied().unwrap_or(0);
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Ok(vec![
            Fact::share(
                "fill",
                records as f64,
                census.slots as f64,
                "records divided by slots of data nodes",
            ),
            Fact::count("data-nodes", census.data_nodes, "data nodes"),
            Fact::count("inner-nodes", census.inner_nodes, "inner nodes"),
            Fact::count(
                "levels",
                census.depth,
                "inner nodes on the way to a data node, at most",
            ),
            Fact::count(
                "lines",
                census.slots / LINE_SLOTS as u64,
                "lines of four slots in data nodes",
            ),
            Fact::count(
                "buckets",
                census.buckets,
                "buckets, for records without room in their windows",
            ),
            Fact::count(
                "moving",
                census.moving,
                "data nodes that are being replaced",
            ),
            Fact::count(
                "written",
                with(Pattern::Writing),
                "data nodes to which inserts and removals come, mostly",
            ),
            Fact::count(
                "read",
                with(Pattern::Reading),
                "data nodes to which hardly anything but lookups and updates comes",
            ),
            Fact::count(
                "scanned",
                with(Pattern::Scanning),
                "data nodes to which ranges come, mostly",
            ),
            Fact::count(
                "lock-free-pairs",
                u64::from(crate::pmem::exchange::is_lock_free()),
                "1 if the processor exchanges 16 bytes at once",
            ),
            Fact::changes(
                "expansions",
                load(&self.changes.expansions),
                "data nodes replaced by one",
            ),
            Fact::changes(
                "splits",
                load(&self.changes.splits),
                "data nodes replaced by several",
            ),
            Fact::changes(
                "merges",
                load(&self.changes.merges),
                "inner nodes replaced by a data node",
            ),
        ])
    }
}
