//! Looking at everything: `check` and `stat`.

use super::Tree;
use super::leaf::Leaf;
use super::scan::{Buffer, Portion};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::{Fact, Report};
use crate::pool::Offset;
use std::sync::atomic::Ordering;

impl Tree {
    /// Calls `visit` with the low end, the high end and the offset of every leaf, in order.
    fn for_each_leaf(&self, mut visit: impl FnMut(u64, Option<u64>, Leaf<'_>)) -> Result<()> {
        let mut from = 0;
        loop {
            let _guard = epochs::pin();
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

    pub(super) fn check(&self, report: &mut Report) -> Result<()> {
        let mut expected = {
            // A compaction may move the root block.
            let _guard = epochs::pin();
            Offset::from_word(self.root_block()?.heads[self.level].load())
        };
        let (mut last, mut records) = (None, 0);
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
            report.reach(leaf.offset, self.leaf_bytes());
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
            expected = leaf.next();
        })?;
        expected = self.skip_empty(expected, Offset::NONE);
        report.expect(expected.is_none(), || {
            format!("the chain goes on to {expected:#x} after the last indexed leaf")
        });
        if self.level == 0 {
            report.add_records(records);
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
        let (mut unread, mut buffer) = (Some((0, u64::MAX)), Buffer::default());
        loop {
            let portion = Portion {
                records: None,
                leaves: usize::MAX,
            };
            directory.read_on::<true>(&mut unread, &mut buffer, portion)?;
            let Some([low, offset]) = buffer.pop() else {
                break;
            };
            let _guard = epochs::pin();
            let spot = self.locate(low)?;
            report.expect(
                spot.low() == low && spot.child.offset().get() == offset,
                || {
                    format!(
                        "a signpost says that leaf {offset:#x} begins at {low:#x}, which is not so"
                    )
                },
            );
        }
        directory.check(report)
    }

    /// Bytes of DRAM for inner nodes and locks, of this tree and its directories.
    pub(super) fn dram_bytes(&self) -> u64 {
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

    /// See [`Engine::facts`](crate::engines::Engine::facts).
    pub(super) fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let (leaves, signposts) = self.leaves_and_signposts()?;
        let slots = leaves as f64 * self.leaves.capacity() as f64;
        let splits = self.splits.load(Ordering::Relaxed);
        Ok(vec![
            Fact::share("fill", records as f64, slots, "records divided by slots"),
            Fact::count("leaves", leaves, "leaves in the pool"),
            Fact::bytes("leaf-bytes", self.leaf_bytes(), "bytes in a leaf"),
            Fact::count(
                "height",
                self.height().into(),
                "levels of inner nodes above the leaves",
            ),
            Fact::count(
                "signposts",
                signposts,
                "leaves recorded in the durable directory, from which inner nodes are rebuilt after a crash",
            ),
            Fact::changes("splits", splits, "leaf splits since the map was opened"),
        ])
    }
}
