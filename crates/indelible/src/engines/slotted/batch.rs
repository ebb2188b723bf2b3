//! Batches of lookups: while one lookup waits for memory, the others go on.
//!
//! Up to [`LANES`] lookups descend the tree together, level by level. At each level every lookup finds its child by the heads of the node, or asks the
//! caches for the separators that decide; then those are compared, and the caches are asked for all children at once. Of a leaf they are asked for the
//! header and the low key first, and for the record when the header says where it lies. A lookup that meets a change is done again by itself.

use super::Tree;
use super::inner::Inner;
use super::leaf::Probe;
use super::search::{LockedLeaf, Lookup, Spot};
use crate::Result;
use crate::concurrency::epochs;
use crate::concurrency::locks::Version;
use crate::engines::arena::Node;
use crate::engines::inner_nodes::InnerNode;

/// Lookups that descend together: enough to keep the memory busy, few enough for their leaves to stay in the first-level cache.
pub(super) const LANES: usize = 16;

/// A lookup on its way down.
pub(super) struct Lane<'a, 'k> {
    pub(super) probe: Probe<'k>,
    node: &'a Inner,
    version: Version,
    slot: usize,
    /// Whether the search was sure at all levels, see [`inner`](super::inner).
    is_sure: bool,
    has_failed: bool,
}

/// What is to be in the caches when [`Tree::lanes`] returns.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    /// The begin of each leaf, which says where the record is. The caller then asks for that: a whole leaf would be four times as much memory to fetch, and
    /// lookups in batches wait for the throughput of the memory, not for its latency.
    Records,
    /// Whole leaves.
    Leaves,
}

impl Tree {
    /// See [`Strings::get_many`](crate::engines::Strings::get_many).
    pub(super) fn get_many(
        &self,
        keys: &[&[u8]],
        use_value: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<()> {
        for (group, keys) in keys.chunks(LANES).enumerate() {
            let mut failed = 0_u32;
            {
                let _guard = epochs::pin();
                let mut lanes = self.lanes(keys.iter().copied(), Wanted::Records);
                for lane in lanes.iter().filter(|lane| !lane.has_failed) {
                    let child = lane.node.child(lane.slot);
                    if !child.is_unindexed() {
                        self.leaf(child).prefetch_record(lane.probe);
                    }
                }
                for (lane, one) in lanes.iter_mut().enumerate() {
                    let number = group * LANES + lane;
                    if !self.finish(one, &mut |value| use_value(number, value)) {
                        failed |= 1 << lane;
                    }
                }
            }
            for (lane, key) in keys.iter().enumerate() {
                if failed >> lane & 1 != 0 {
                    let number = group * LANES + lane;
                    self.get_with(key, &mut |value| use_value(number, value))?;
                }
            }
        }
        Ok(())
    }

    /// Lookups of up to [`LANES`] keys that have found their leaves, which are on their way to the caches. The caller is pinned.
    pub(super) fn lanes<'a, 'k>(
        &'a self,
        keys: impl ExactSizeIterator<Item = &'k [u8]>,
        wanted: Wanted,
    ) -> Vec<Lane<'a, 'k>> {
        let root = self.root();
        let version = root.lock().read();
        assert!(keys.len() <= LANES);
        let mut lanes: Vec<Lane<'_, '_>> = Vec::with_capacity(LANES);
        lanes.extend(keys.map(|key| Lane {
            probe: self.probe(key),
            node: root,
            version,
            slot: 0,
            is_sure: true,
            has_failed: false,
        }));
        for level in (0..=root.level()).rev() {
            find_slots(&mut lanes);
            for lane in lanes.iter().filter(|lane| !lane.has_failed) {
                if level > 0 {
                    lane.node.node(lane.slot).prefetch();
                    continue;
                }
                let child = lane.node.child(lane.slot);
                match wanted {
                    Wanted::Records => self.leaf(child).prefetch_begin(),
                    Wanted::Leaves => self.prefetch_leaf(child),
                }
            }
            if level == 0 {
                break;
            }
            for lane in &mut lanes {
                lane.go_down();
            }
        }
        lanes
    }

    /// The leaf of a lookup, locked, if it still is the leaf of the key. None, too, for the last leaf of a bottom node: where that one ends, the
    /// lookup has not asked.
    pub(super) fn lock_found<'a>(&'a self, lane: &Lane<'a, '_>) -> Option<LockedLeaf<'a>> {
        if lane.has_failed {
            return None;
        }
        let spot = lane.spot();
        let is_last = spot.parent.next_separator(spot.slot).is_none();
        // Locking asks whether the bottom node is still what it was when the ends of the leaf were read.
        if is_last || spot.child.is_unindexed() || !spot.covers(lane.probe.key) {
            return None;
        }
        self.lock_at(spot)
    }

    /// Does the lookup in the leaf; `false` if it has to begin again.
    fn finish(&self, lane: &mut Lane<'_, '_>, use_value: &mut dyn FnMut(&[u8])) -> bool {
        if lane.has_failed {
            return false;
        }
        let spot = lane.spot();
        if !spot.is_sure && spot.parent.next_separator(spot.slot).is_none() {
            return false;
        }
        let found = self.look_up_at(&spot, lane.probe, &mut |value| {
            use_value(self.bytes_of(value));
        });
        matches!(found, Lookup::Done(_))
    }
}

/// Finds the slot of each lookup in its node.
fn find_slots(lanes: &mut [Lane<'_, '_>]) {
    let mut tied = [const { None }; LANES];
    for (lane, tied) in lanes.iter_mut().zip(&mut tied) {
        let guess = lane.node.guess::<false>(lane.probe.key);
        lane.slot = guess.slot;
        lane.is_sure &= guess.is_sure;
        lane.node.prefetch_child(guess.slot);
        if !guess.tied.is_empty() {
            let slots = lane.node.prefetch_tied(&guess);
            *tied = Some((guess, slots));
        }
    }
    for (lane, tied) in lanes.iter_mut().zip(tied) {
        if let Some((guess, slots)) = tied {
            lane.slot = lane.node.find_tied(lane.probe.key, &guess, slots);
        }
    }
}

impl<'a> Lane<'a, '_> {
    /// Where it is, without where the leaf ends.
    fn spot(&self) -> Spot<'a> {
        Spot {
            parent: self.node,
            version: self.version,
            slot: self.slot,
            child: self.node.child(self.slot),
            end: None,
            is_sure: self.is_sure,
        }
    }

    /// Goes to the child, whose version is taken before that of its parent is validated.
    #[inline(always)]
    fn go_down(&mut self) {
        if self.has_failed {
            return;
        }
        let child = self.node.node(self.slot);
        let version = child.lock().read();
        if self.node.lock().validate(self.version) {
            (self.node, self.version) = (child, version);
        } else {
            // It stays where it is: what is in a node that has changed need not be of the next level.
            self.has_failed = true;
        }
    }
}
