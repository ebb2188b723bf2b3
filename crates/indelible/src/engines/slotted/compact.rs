//! Compaction: merges leaves that have few records, gives leaves the size that suits their records, and moves leaves and blobs out of the last extents
//! of the map, so that `Pool::shrink` can give these extents back.
//!
//! A leaf moves as `smo` says: it is replaced by a copy in a lower block. A blob moves with its leaf: it is copied to a lower block, and the leaf is
//! replaced by one that refers to the copy. Readers that have the old blob go on with it until their epoch ends.

use super::Tree;
use super::blobs::{CLASSES, class_of};
use super::distribute::{Part, Words};
use super::inner::{Child, Seek};
use super::insert::NewBlobs;
use super::layout::Reference;
use super::records::{Records, Snapshot, TakenValue, Value};
use super::search::Spot;
use super::separator::Text;
use super::sizes::Size;
use super::smo::{LinkTo, Run};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::Wait;
use crate::concurrency::sync::lock;
use crate::engines::inner_nodes::{InnerNode, InnerTree};
use crate::engines::unless_full;
use crate::pool::{EXTENT_BYTES, MOST_ROUNDS, Offset};

/// Where the blocks of each class are to end.
type Ends = [Option<Offset>; CLASSES];

/// Whether a leaf lies behind the end of its class.
fn is_behind(leaf: Child, ends: &Ends) -> bool {
    ends[leaf.size().class()].is_some_and(|end| leaf.offset() >= end)
}

impl Tree {
    /// Compacts the tree of records, which this is, and its directories. Other operations go on meanwhile. The map is warm and the caller is
    /// not pinned.
    pub(super) fn compact(&self) -> Result<()> {
        if self.core.is_read_only() {
            return Ok(());
        }
        self.merge_all()?;
        for round in 0..MOST_ROUNDS {
            // Not locked: one of the readers that this waits for may wait for the lock, to compact or load the map.
            self.settle();
            let _reorganizing = lock(&self.reorganizing);
            let ends = self.ends(round);
            // The first round also finds the leaves of which the size is not the right one any more.
            if ends.iter().all(Option::is_none) && (round > 0 || !self.sizes.differ) {
                break;
            }
            let mut tree = Some(self);
            while let Some(here) = tree {
                here.move_all(&ends)?;
                // Upwards, since moves at one level write signposts of the next one.
                tree = here.directory();
            }
        }
        self.settle();
        Ok(())
    }

    /// Merges leaves of the tree of records and of its directories with their neighbours.
    fn merge_all(&self) -> Result<()> {
        let _reorganizing = lock(&self.reorganizing);
        // Upwards, since merges at one level remove signposts from the next one.
        std::iter::successors(Some(self), |here| here.directory())
            .try_for_each(Self::merge_neighbours)
    }

    fn settle(&self) {
        for space in self.home.spaces.iter() {
            space.settle();
        }
    }

    fn ends(&self, round: u64) -> Ends {
        std::array::from_fn(|class| {
            let space = &self.home.spaces[class];
            if space.block_bytes() <= EXTENT_BYTES {
                space.packed_end(round)
            } else {
                // Each run by itself may move to a lower place.
                (space.stat().used_blocks > 0 && round == 0).then_some(Offset::from_word(0))
            }
        })
    }

    /// Merges leaves with their neighbours, from left to right, as long as the records of two fit into one.
    fn merge_neighbours(&self) -> Result<()> {
        let mut from = Vec::new();
        loop {
            let _guard = epochs::pin();
            let spot = self.spot_from(&from)?;
            // Looked at without locks first: where nothing can be merged no reader has to begin again.
            let (high, could_merge) = (spot.high(), self.could_merge(&spot));
            if !spot.is_current() || could_merge && self.merge(Text::of(&from)) {
                continue;
            }
            match high {
                Some(high) => from = high.to_vec(),
                None => return Ok(()),
            }
        }
    }

    /// Whether a merge of the leaf of `spot` may do something. Takes no lock, so it holds only if the spot is still current afterwards, and the leaves
    /// may change right away. The caller is pinned.
    fn could_merge(&self, spot: &Spot<'_>) -> bool {
        let parent = spot.parent;
        parent.count() == 1
            || parent.pairs_at(spot.slot).any(|pair| {
                // Until the node is validated, the slots may hold other children, or none.
                let pair = [pair.0, pair.1].map(|slot| parent.child(slot));
                if !spot.is_current() || pair.iter().any(|child| child.is_unindexed()) {
                    return false;
                }
                let [left, right] = pair.map(|child| self.leaf(child));
                let words = Words {
                    count: left.count() + right.count(),
                    records: left.live_words() + right.live_words(),
                    low: 0,
                };
                let is_any_empty = left.count() == 0 || right.count() == 0;
                is_any_empty || self.size_merged(words, false).is_some()
            })
    }

    /// Moves all leaves and blobs that lie behind the ends of their classes, as far as there is room in front of the ends.
    fn move_all(&self, ends: &Ends) -> Result<()> {
        let (mut from, mut wait) = (Vec::new(), Wait::default());
        loop {
            let guard = epochs::pin();
            let spot = self.locate(Seek::At(&from))?;
            let high = spot.high().map(<[u8]>::to_vec);
            if !spot.is_current() {
                continue;
            }
            if !self.try_move(&spot, ends)? {
                drop(guard);
                wait.step();
                continue;
            }
            wait = Wait::default();
            match high {
                Some(high) => from = high,
                None => return Ok(()),
            }
        }
    }

    /// Moves the leaf of `spot`, and the blobs that it refers to, if they lie behind the ends; or the leaf alone, if it is to have another size. `false` if a
    /// lock was held by another thread, or another thread has changed the leaf or its bottom node.
    fn try_move(&self, spot: &Spot<'_>, ends: &Ends) -> Result<bool> {
        let leaf = spot.child;
        let lock = self.locks.of(leaf.offset().get());
        let version = lock.read();
        let snapshot = Snapshot::of(self.leaf(leaf));
        if !spot.is_current() || !lock.validate(version) {
            return Ok(false);
        }
        let blob_moves =
            |blob: &Reference| ends[class_of(blob.bytes)].is_some_and(|end| blob.offset >= end);
        let wanted = self.size_for(snapshot.live_words(self.low_words(spot.low()))?);
        if wanted.best == leaf.size()
            && !is_behind(leaf, ends)
            && !snapshot.references()?.iter().any(blob_moves)
        {
            return Ok(true);
        }
        // Before anything is locked: see `smo`.
        let low = spot.low();
        let link = match self.link_to(spot, spot.slot)? {
            LinkTo::Known(link) => link,
            LinkTo::Unindexed => {
                self.index_on_demand(Seek::Below(low))?;
                return Ok(false);
            }
        };
        let Some(held) = self.try_hold(spot, link, &[leaf], None) else {
            return Ok(false);
        };
        let snapshot = Snapshot::of(self.leaf(leaf));
        let words = snapshot.live_words(self.low_words(low))?;
        if !words.fit(leaf.size().heap_words()) {
            return Err(snapshot.damaged("has records that share bytes"));
        }
        let mut records = Records::default();
        records.take(&snapshot, low, &self.blobs)?;
        records.sort();
        let mut new = NewBlobs::none(&self.blobs);
        let mut old = Vec::new();
        let mut move_blob = |blob: &mut Reference| {
            if blob_moves(blob)
                && let Some(copy) = self.copy_below(*blob, ends, &mut new)
            {
                old.push(std::mem::replace(blob, copy));
            }
        };
        let mut low_value = snapshot.low()?;
        if let Value::Blob(blob) = &mut low_value {
            move_blob(blob);
        }
        for record in &mut records.list {
            if let Some(blob) = &mut record.key_blob {
                move_blob(blob);
            }
            if let TakenValue::Blob(blob) = &mut record.value {
                move_blob(blob);
            }
        }
        let wanted = self.size_for(words);
        let block = self.block_for_moved(leaf, wanted.best, ends)?;
        if old.is_empty() && block.is_none() {
            // There is no room in front of the ends.
            return Ok(true);
        }
        let run = Run {
            spot: *spot,
            slots: spot.slot..spot.slot + 1,
            low: low_value,
            next: snapshot.next(),
            name: "slotted.move",
        };
        let part = Part {
            records: 0..records.list.len(),
            low: low.to_vec(),
            size: wanted,
        };
        self.pm
            .note("slotted leaf moved", u64::from(!old.is_empty()));
        self.replace(&held, &run, &[leaf], (&records, &[part]), block)?;
        new.keep();
        for blob in old {
            self.blobs.retire(blob);
        }
        Ok(true)
    }

    /// A block for a leaf that is to have this size: for another size than it has any block, unless the pool is full; otherwise one in front of the end of its
    /// class, if the leaf lies behind that.
    fn block_for_moved(&self, leaf: Child, best: Size, ends: &Ends) -> Result<Option<Child>> {
        let below = |size: Size| {
            let block = self.space_of(size).alloc_below(ends[size.class()]?)?;
            Some(Child::leaf(block, size))
        };
        if best != leaf.size() {
            if let Some(block) = below(best) {
                return Ok(Some(block));
            }
            if let Some(block) = unless_full(self.alloc_leaf_of(best).map(Some))? {
                return Ok(Some(block));
            }
        }
        Ok(Some(leaf.size())
            .filter(|_| is_behind(leaf, ends))
            .and_then(below))
    }

    /// A copy of a blob in front of the end of its class, if there is room; of a run of extents, in front of itself.
    fn copy_below(
        &self,
        blob: Reference,
        ends: &Ends,
        new: &mut NewBlobs<'_>,
    ) -> Option<Reference> {
        let space = self.blobs.space_for(blob.bytes).ok()?;
        let end = if space.block_bytes() > EXTENT_BYTES {
            blob.offset
        } else {
            ends[class_of(blob.bytes)]?
        };
        let copy = Reference {
            offset: space.alloc_below(end)?,
            bytes: blob.bytes,
        };
        self.blobs.fill(copy.offset, self.blobs.bytes(blob));
        new.add(copy);
        Some(copy)
    }
}
