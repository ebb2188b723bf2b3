//! Looking at everything: `check` and `stat`.

use super::leaf::{Leaf, Offset};
use super::scan::Run;
use super::{Shared, Tree};
use crate::map::MapStat;
use crate::pool::Space;
use crate::{Error, Kind, Result, reclaim};

/// Problems listed before the check gives up on listing more.
const MOST_PROBLEMS: usize = 100;

/// What a check has seen.
#[derive(Default)]
struct Report {
    problems: Vec<String>,
    /// Blocks, in no order.
    reachable: Vec<Offset>,
    records: u64,
    leaves: u64,
}

impl Report {
    fn expect(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds && self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem());
        }
    }

    /// Whether every block is reachable once, and in use.
    fn check_blocks(&mut self, space: &Space) {
        let mut reachable = std::mem::take(&mut self.reachable);
        reachable.sort_unstable();
        for pair in reachable.windows(2) {
            self.expect(pair[0] != pair[1], || {
                format!("block {:#x} is reachable twice", pair[0])
            });
        }
        for offset in space.free_among(&reachable) {
            self.expect(false, || {
                format!("block {offset:#x} is both reachable and free")
            });
        }
        space.settle();
        let used = space.stat().used_blocks;
        self.expect(used == reachable.len() as u64, || {
            format!(
                "{used} blocks are in use and {} are reachable",
                reachable.len()
            )
        });
    }
}

impl Tree {
    /// Calls `visit` with the low end, the high end and the offset of every leaf, in order.
    fn for_each_leaf(&self, mut visit: impl FnMut(u64, Option<u64>, Leaf<'_>)) -> Result<()> {
        let mut from = 0;
        loop {
            let _guard = reclaim::pin();
            let spot = self.locate(from)?;
            let (low, high, leaf) = (spot.low(), spot.high(), self.leaves.at(spot.child.offset()));
            if !spot.is_current() {
                continue;
            }
            visit(low, high, leaf);
            match high {
                Some(high) => from = high,
                None => return Ok(()),
            }
        }
    }

    /// Levels of inner nodes.
    fn height(&self) -> u32 {
        self.root().level() + 1
    }

    fn check(&self, report: &mut Report) -> Result<()> {
        let mut expected = {
            // A compaction may move the root block.
            let _guard = reclaim::pin();
            self.root_block()?.heads[self.level].load()
        };
        let (mut last, mut records, mut leaves) = (None, 0, 0);
        let mut keys = Vec::new();
        self.for_each_leaf(|low, high, leaf| {
            expected = self.skip_empty(expected, leaf.offset);
            report.expect(expected == leaf.offset, || {
                format!(
                    "leaf {:#x} is indexed where the chain has {expected:#x}",
                    leaf.offset
                )
            });
            report.expect(self.space.owns(leaf.offset), || {
                format!("leaf {:#x} is not the map's own", leaf.offset)
            });
            report.reachable.push(leaf.offset);
            keys.clear();
            leaf.inspect(|key, fingerprint_is_right| {
                keys.push(key);
                report.expect(fingerprint_is_right, || {
                    format!("key {key:#x} has a wrong fingerprint")
                });
                report.expect(key >= low && high.is_none_or(|high| key < high), || {
                    format!(
                        "key {key:#x} is in leaf {:#x}, where it does not belong",
                        leaf.offset
                    )
                });
            });
            keys.sort_unstable();
            for &key in &keys {
                report.expect(last < Some(key), || {
                    format!("key {key:#x} is there twice or out of order")
                });
                last = Some(key);
            }
            records += keys.len() as u64;
            leaves += 1;
            expected = leaf.next();
        })?;
        expected = self.skip_empty(expected, 0);
        report.expect(expected == 0, || {
            format!("the chain goes on to {expected:#x} after the last indexed leaf")
        });
        if self.level == 0 {
            (report.records, report.leaves) = (records, leaves);
        }
        self.check_signposts(report)
    }

    /// In a read-only pool empty leaves may stand in the chain that are not indexed.
    fn skip_empty(&self, mut offset: Offset, until: Offset) -> Offset {
        if !self.core.is_read_only() {
            return offset;
        }
        // Bounded, for a circle of empty leaves.
        for _ in 0..self.space.most_blocks() {
            match self.leaf_at(offset) {
                Ok(leaf) if offset != until && leaf.count() == 0 => offset = leaf.next(),
                _ => break,
            }
        }
        offset
    }

    /// Every signpost must point to a leaf of this tree that begins at the signpost's key.
    fn check_signposts(&self, report: &mut Report) -> Result<()> {
        let Some(directory) = self.directory() else {
            return Ok(());
        };
        let (mut unread, mut run) = (Some((0, u64::MAX)), Run::default());
        loop {
            directory.read_on::<true>(&mut unread, &mut run, usize::MAX)?;
            let Some([low, offset]) = run.pop() else {
                break;
            };
            let _guard = reclaim::pin();
            let spot = self.locate(low)?;
            report.expect(spot.low() == low && spot.child.offset() == offset, || {
                format!("a signpost says that leaf {offset:#x} begins at {low:#x}, which is not so")
            });
        }
        directory.check(report)
    }

    /// Bytes of DRAM for inner nodes and locks, of this tree and its directories.
    fn dram_bytes(&self) -> u64 {
        let above = self.directory().map_or(0, Tree::dram_bytes);
        self.arena.bytes() + self.locks.bytes() + above
    }

    fn leaves_and_signposts(&self) -> Result<(u64, u64)> {
        let (mut leaves, mut signposts) = (0, 0);
        self.for_each_leaf(|_, _, _| leaves += 1)?;
        if let Some(directory) = self.directory() {
            directory.for_each_leaf(|_, _, leaf| signposts += leaf.count() as u64)?;
        }
        Ok((leaves, signposts))
    }
}

impl Shared {
    /// See `Map::check`.
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
        report
            .reachable
            .push(self.tree.core.entry(self.tree.slot).roots[0].load());
        if let Some(tally) = &self.tree.tally {
            let (tally, records) = (tally.total(&self.tree.locks), report.records);
            report.expect(tally == records, || {
                format!("the map counts {tally} records and has {records}")
            });
        }
        if !self.tree.core.is_read_only() {
            report.check_blocks(&self.tree.space);
        }
        Ok(report.problems)
    }

    /// See `Map::stat`.
    pub(super) fn stat(&self) -> Result<MapStat> {
        let tree = &self.tree;
        let records = tree.tally.as_ref().map_or(Ok(0), |tally| {
            if !tally.is_complete() {
                self.warm_up(&|| true)?;
            }
            Ok::<_, Error>(tally.total(&tree.locks))
        })?;
        let (leaves, signposts) = tree.leaves_and_signposts()?;
        let space = tree.space.stat();
        Ok(MapStat {
            kind: Kind::LbTree,
            records,
            fill: records as f64 / (leaves as f64 * tree.leaves.capacity() as f64),
            file_bytes: space.file_bytes,
            dram_bytes: tree.dram_bytes() + space.dram_bytes,
            warm: self.warm.load(std::sync::atomic::Ordering::Relaxed),
            leaves,
            height: tree.height(),
            leaf_bytes: tree.leaf_bytes() as u32,
            signposts,
            splits: tree.splits.load(std::sync::atomic::Ordering::Relaxed),
            ..MapStat::default()
        })
    }
}
