//! Writes: insert, update, remove, alone and in batches.

use super::Bug;
use super::Tree;
use super::leaf::PreparedInsert;
use super::search::LockedLeaf;
use crate::concurrency::epochs;
use crate::engines::Decision;
use crate::engines::inner_nodes::{InnerTree, is_worth_merging};
use crate::pmem::planted::planted;
use crate::pool::Offset;
use crate::{Error, Result};

impl Tree {
    /// Changes one key, in one step as seen by all other threads, and returns its value from before. `decide` may be called
    /// more than once; the last call counts.
    #[inline]
    pub(super) fn apply(
        &self,
        key: u64,
        mut decide: impl FnMut(Option<u64>) -> Decision,
    ) -> Result<Option<u64>, Box<Error>> {
        let _guard = epochs::pin();
        loop {
            let locked = self.lock_leaf(key)?;
            let leaf = locked.leaf;
            let found = leaf.find(key);
            let before = found.map(|(_, value)| value);
            match (decide(before), found) {
                (Decision::Keep, _) | (Decision::Remove, None) => return Ok(before),
                (Decision::Put(value), Some((place, _))) => {
                    if planted(Bug::UnlockBeforeFence) {
                        leaf.publish_update(self.pm, place, value);
                        drop(locked);
                        self.pm.fence();
                    } else {
                        leaf.update(self.pm, place, value);
                    }
                    return Ok(before);
                }
                (Decision::Put(value), None) => {
                    if leaf.is_full() {
                        self.split(locked, key)?;
                        continue;
                    }
                    leaf.insert(self.pm, key, value);
                    self.count_change(leaf.offset, key, 1);
                    return Ok(None);
                }
                (Decision::Remove, Some((place, _))) => {
                    leaf.remove(self.pm, place);
                    self.count_change(leaf.offset, key, -1);
                    let left = leaf.count();
                    drop(locked);
                    if is_worth_merging(left, self.leaves.capacity()) {
                        self.merge(key);
                    }
                    return Ok(before);
                }
            }
        }
    }

    /// Inserts as many of the first of `records` as can share two fences, and returns how many those were. Keys ascend, equal keys one
    /// after the other.
    ///
    /// The leaves are locked; records that share a line with their header are committed at once, the others are written to free
    /// slots and committed after the first fence; after the second one the leaves are unlocked. No reader sees a record before it is
    /// durable. A leaf that is full, not indexed, or locked by another thread ends the shared part early.
    pub(super) fn insert_sharing_fence(&self, records: &[(u64, u64)]) -> usize {
        let _guard = epochs::pin();
        let mut held: Vec<LockedLeaf<'_>> = Vec::with_capacity(records.len());
        // Inserts whose commit waits for the first shared fence, with the position of their leaf in `held`.
        let mut waiting: Vec<(usize, PreparedInsert)> = Vec::new();
        let mut inserted: Vec<(Offset, u64)> = Vec::with_capacity(records.len());
        let mut done = 0;
        self.prefetch_leaves(records);
        for &(key, value) in records {
            let Some(at) = self.hold_leaf(&mut held, key) else {
                break;
            };
            let leaf = held[at].leaf;
            if let Some(i) = waiting.iter().position(|&(other, _)| other == at) {
                // The leaf's header is about to change, so its next record cannot be prepared yet.
                self.pm.fence();
                leaf.publish_insert(self.pm, &waiting.swap_remove(i).1);
            }
            if let Some((place, _)) = leaf.find(key) {
                leaf.publish_update(self.pm, place, value);
            } else if leaf.is_full() {
                break;
            } else {
                let prepared = leaf.prepare_insert(self.pm, key, value);
                if prepared.moved {
                    waiting.push((at, prepared));
                } else {
                    leaf.publish_insert(self.pm, &prepared);
                }
                inserted.push((leaf.offset, key));
            }
            done += 1;
        }
        if !waiting.is_empty() {
            self.pm.fence();
        }
        for (at, prepared) in &waiting {
            held[*at].leaf.publish_insert(self.pm, prepared);
        }
        if done > 0 {
            self.pm.fence();
        }
        // The number of records is read without a lock.
        for (leaf, key) in inserted {
            self.count_change(leaf, key, 1);
        }
        // The leaves are unlocked only now, so no thread has seen a record that could still be lost.
        drop(held);
        done
    }

    /// The position in `held` of the leaf that covers `key`, which is locked and added if need be; `None` if that would
    /// mean waiting for a lock or indexing a range.
    fn hold_leaf<'a>(&'a self, held: &mut Vec<LockedLeaf<'a>>, key: u64) -> Option<usize> {
        let spot = self.locate_any::<()>(key);
        if spot.child.is_unindexed() {
            return None;
        }
        let offset = spot.child.offset();
        let lock = self.locks.of(offset.get());
        if let Some(at) = held.iter().position(|locked| locked.guard.holds(lock)) {
            return Some(at).filter(|&at| held[at].leaf.offset == offset && spot.is_current());
        }
        // To wait while holding other leaves could be a deadlock: the other thread may be waiting for one of these leaves.
        let guard = lock.try_lock()?;
        if !spot.is_current() {
            return None;
        }
        held.push(LockedLeaf {
            spot,
            leaf: self.leaves.at(offset),
            guard,
        });
        Some(held.len() - 1)
    }
}

/// Records of a batch that share two fences, at most: all of their leaves stay locked until the second fence.
pub(super) const FENCE_SHARING_RECORDS: usize = 16;
