//! Looking at everything: `check` and `stat`.

use super::blobs::{CLASS_BYTES, class_of};
use super::inner::Seek;
use super::layout::{HEADER_WORDS, SLOTS, fingerprint, hash, prefix_of};
use super::records::{RecordIn, Records, Snapshot, Value};
use super::search::Spot;
use super::{Tree, layout::Reference};
use crate::Result;
use crate::concurrency::epochs;
use crate::engines::arena::Node;
use crate::engines::{Fact, Report};
use crate::pool::Offset;
use std::sync::atomic::Ordering;

impl Tree {
    /// Calls `visit` for every leaf, in order, with its low key, that of the next leaf, and a copy.
    pub(super) fn for_each_leaf(
        &self,
        mut visit: impl FnMut(&Spot<'_>, (&[u8], Option<&[u8]>), &Snapshot) -> Result<()>,
    ) -> Result<()> {
        let mut from = Vec::new();
        loop {
            let _guard = epochs::pin();
            let spot = self.locate(Seek::At(&from))?;
            let (low, high) = (spot.low(), spot.high());
            let lock = self.locks.of(spot.child.offset().get());
            let version = lock.read();
            if !spot.is_current() {
                continue;
            }
            let snapshot = Snapshot::of(self.leaf(spot.child));
            if !lock.validate(version) {
                continue;
            }
            visit(&spot, (low, high), &snapshot)?;
            match high {
                Some(high) => from = high.to_vec(),
                None => return Ok(()),
            }
        }
    }

    pub(super) fn check(&self, report: &mut Report) -> Result<()> {
        let mut expected = Offset::from_word(self.head().load());
        let (mut last, mut count): (Option<Vec<u8>>, u64) = (None, 0);
        self.for_each_leaf(|spot, (low, high), leaf| {
            let offset = spot.child.offset();
            report.expect(expected == offset, || {
                format!("leaf {offset:#x} is indexed where the chain has {expected:#x}")
            });
            let is_own = self
                .leaf_at(offset)
                .is_ok_and(|leaf| leaf.place == spot.child);
            report.expect(is_own, || {
                format!("leaf {offset:#x} is not the map's own, or has another size")
            });
            report.reach(offset, spot.child.size().bytes() as u64);
            self.check_header(offset, (low, high), leaf, report)?;
            let mut records = Records::default();
            records.take(leaf, low, &self.blobs)?;
            self.check_records(offset, leaf, &records, report)?;
            records.sort();
            for at in 0..records.list.len() {
                let key = records.key(at);
                report.expect(low <= key && high.is_none_or(|high| key < high), || {
                    format!("key {key:?} is in leaf {offset:#x}, where it does not belong")
                });
                report.expect(last.as_deref() < Some(key), || {
                    format!("key {key:?} is there twice or out of order")
                });
                last = Some(key.to_vec());
            }
            count += records.list.len() as u64;
            expected = leaf.next();
            Ok(())
        })?;
        report.expect(expected.is_none(), || {
            format!("the chain goes on to {expected:#x} after the last indexed leaf")
        });
        if self.level == 0 {
            report.add_records(count);
        }
        self.check_signposts(report)
    }

    /// The low key, the prefix, and the blobs of a leaf.
    fn check_header(
        &self,
        offset: Offset,
        (low, high): (&[u8], Option<&[u8]>),
        leaf: &Snapshot,
        report: &mut Report,
    ) -> Result<()> {
        let stored = match leaf.low()? {
            Value::Inline(low) => low,
            Value::Blob(blob) => self.blobs.bytes(blob),
        };
        report.expect(stored == low, || {
            format!("leaf {offset:#x} says that it begins at {stored:?}, and is indexed at {low:?}")
        });
        report.expect(leaf.commit_word().prefix() <= prefix_of(low, high), || {
            format!("leaf {offset:#x} has a prefix that not all of its keys have")
        });
        for Reference { offset, bytes } in leaf.references()? {
            report.reach(offset, CLASS_BYTES[class_of(bytes)].into());
        }
        Ok(())
    }

    /// Fingerprints, hashes, and parts of the heap that two records share.
    fn check_records(
        &self,
        offset: Offset,
        leaf: &Snapshot,
        taken: &Records,
        report: &mut Report,
    ) -> Result<()> {
        let records = leaf.records().collect::<Result<Vec<RecordIn<'_>>>>()?;
        for (at, record) in records.iter().enumerate() {
            let hash = hash(self.seed, taken.key(at));
            let is_right = record.fingerprint == fingerprint(hash)
                && record.key_blob.is_none_or(|(stored, _)| stored == hash);
            report.expect(is_right, || {
                let slot = record.slot;
                format!("slot {slot} of leaf {offset:#x} has a wrong fingerprint")
            });
        }
        let mut parts: Vec<_> = records.iter().map(|r| (r.at, r.at + r.words)).collect();
        parts.sort_unstable();
        for pair in parts.windows(2) {
            report.expect(pair[0].1 <= pair[1].0, || {
                format!("two records of leaf {offset:#x} share bytes")
            });
        }
        Ok(())
    }

    /// Every signpost must point to a leaf of this tree that begins at the signpost's key.
    fn check_signposts(&self, report: &mut Report) -> Result<()> {
        for (low, offset) in self.directory.all()? {
            let _guard = epochs::pin();
            let spot = self.locate(Seek::At(&low))?;
            report.expect(spot.low() == low && spot.child.offset() == offset, || {
                format!("a signpost says that leaf {offset:#x} begins at {low:?}, which is not so")
            });
        }
        self.directory.check(report)
    }

    /// Bytes of DRAM for inner nodes, locks and orders of leaves, of this tree and its directories.
    pub(super) fn dram_bytes(&self) -> u64 {
        let above = self.directory().map_or(0, Tree::dram_bytes);
        self.arena.bytes()
            + self.separator_bytes()
            + self.locks.bytes()
            + self.orders.bytes()
            + above
    }

    /// Bytes of DRAM in separators, as far as they are in bottom nodes.
    fn separator_bytes(&self) -> u64 {
        self.root().separator_bytes()
    }

    /// See [`Engine::facts`](crate::engines::Engine::facts).
    pub(super) fn facts(&self, records: u64) -> Result<Vec<Fact>> {
        let (mut leaves, mut live, mut blobs, mut blob_bytes, mut prefixes) = (0u64, 0, 0, 0, 0);
        let mut bytes = 0;
        self.for_each_leaf(|spot, _, leaf| {
            leaves += 1;
            bytes += spot.child.size().bytes() as u64;
            let words = leaf.live_words(0)?;
            live += 8 * words.records as u64;
            for reference in leaf.references()? {
                blobs += 1;
                blob_bytes += reference.bytes;
            }
            prefixes += (leaf.commit_word().prefix() * words.count) as u64;
            Ok(())
        })?;
        let heap = bytes - leaves * 8 * HEADER_WORDS as u64;
        let signposts = self.directory.all()?.len() as u64;
        Ok(vec![
            Fact::share(
                "fill",
                live as f64,
                heap as f64,
                "bytes of records divided by bytes of heaps",
            ),
            Fact::share(
                "slots",
                records as f64,
                (leaves * SLOTS as u64) as f64,
                "records divided by slots",
            ),
            Fact::count("leaves", leaves, "leaves in the pool"),
            Fact::average("leaf-bytes", bytes as f64, leaves as f64, "bytes in a leaf"),
            Fact::average(
                "prefix",
                prefixes as f64,
                records as f64,
                "bytes of a key that its leaf stores once for all of its keys",
            ),
            Fact::count(
                "blobs",
                blobs,
                "long keys and long values, each in a block of its own",
            ),
            Fact::bytes(
                "blob-bytes",
                blob_bytes,
                "bytes of long keys and long values",
            ),
            Fact::count(
                "height",
                u64::from(self.root().level()) + 1,
                "levels of inner nodes above the leaves",
            ),
            Fact::count(
                "signposts",
                signposts,
                "leaves recorded in the durable directory, from which inner nodes are rebuilt after a crash",
            ),
            Fact::changes(
                "splits",
                self.splits.load(Ordering::Relaxed),
                "leaf splits since the map was opened",
            ),
        ])
    }
}
