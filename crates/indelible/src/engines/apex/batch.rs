//! Batches of lookups: while one lookup waits for memory, the others go on.
//!
//! Up to [`LANES`] lookups descend the tree level by level together. Each step prefetches, for all lookups, the cache
//! line that the next step reads, before any of them reads it. When all lookups have reached their data nodes, their
//! line pairs and locks are on the way to the caches, and the lookups finish one after the other like single ones. A
//! batch of inserts uses the same descent.

use super::Bug;
use super::Tree;
use super::data::DataNode;
use super::inner::{Child, InnerNode};
use crate::concurrency::epochs;
use crate::kernels::{Kernel, Simd, dispatch, prefetch};
use crate::pmem::planted::planted;

/// Most lookups that descend together: enough to keep the memory busy, few enough for their lines to stay in the
/// first-level cache.
pub(super) const LANES: usize = 32;

/// The data nodes and the predicted slots that lookups have reached. A node is `None` where the path is cold.
pub(super) struct Lanes<'a> {
    nodes: [Option<&'a DataNode>; LANES],
    predicted: [usize; LANES],
}

impl Tree {
    /// Descends to the data nodes of `keys`, and prefetches what a lookup or a write then reads. The caller is pinned.
    #[inline(always)]
    fn descend(&self, keys: &[u64], to_write: bool) -> Lanes<'_> {
        let root = self.root();
        let mut inner: [&InnerNode; LANES] = [root; LANES];
        let mut lanes = Lanes {
            nodes: [None; LANES],
            predicted: [0; LANES],
        };
        for key in keys {
            root.prefetch_slot(*key);
        }
        // Bit i: lookup i has not yet reached a data node.
        let mut descending: u64 = (1 << keys.len()) - 1;
        while descending != 0 {
            let mut still = 0;
            for (lane, &key) in keys.iter().enumerate() {
                if descending >> lane & 1 == 0 {
                    continue;
                }
                let child: Child = inner[lane].child_for(key);
                if child.is_inner() {
                    // SAFETY: the caller is pinned, so the node is not freed before it unpins (apex I5).
                    inner[lane] = unsafe { &*child.as_inner() };
                    prefetch(std::ptr::from_ref(inner[lane]));
                    still |= 1 << lane;
                } else {
                    prefetch(child.as_data());
                    // SAFETY: the caller is pinned (apex I5); the pointer of a cold child is null.
                    lanes.nodes[lane] = unsafe { child.as_data().as_ref() };
                }
            }
            descending = still;
            for (lane, &key) in keys.iter().enumerate() {
                if descending >> lane & 1 != 0 {
                    inner[lane].prefetch_slot(key);
                }
            }
        }
        for (lane, &key) in keys.iter().enumerate() {
            if let Some(data) = lanes.nodes[lane] {
                let predicted = data.model.predict(key);
                lanes.predicted[lane] = predicted;
                if to_write {
                    self.prefetch_to_write(data, predicted);
                } else {
                    let window = self.window(data, predicted);
                    window.prefetch_half(window.predicted_half(predicted));
                }
                prefetch(std::ptr::from_ref(self.lock_of(data, predicted)));
            }
        }
        lanes
    }

    /// See [`Ordered::look_up_together`](crate::engines::Ordered::look_up_together).
    pub(super) fn look_up_together(&self, keys: &[u64], values: &mut [Option<u64>]) -> u64 {
        let _guard = epochs::pin();
        let tree = self;
        dispatch(self.simd, GetLanes { tree, keys, values })
    }

    /// Descends to the data nodes of at most [`LANES`] `records`, and prefetches what inserting them reads. The caller
    /// is pinned.
    pub(super) fn find_windows(&self, records: &[(u64, u64)]) -> Lanes<'_> {
        let mut keys = [0; LANES];
        for (key, record) in keys.iter_mut().zip(records) {
            *key = record.0;
        }
        self.descend(&keys[..records.len().min(LANES)], true)
    }
}

impl<'a> Lanes<'a> {
    /// The data node and the predicted slot of a lookup; `None` where the path is cold.
    pub(super) fn get(&self, lane: usize) -> Option<(&'a DataNode, usize)> {
        Some((self.nodes[lane]?, self.predicted[lane]))
    }
}

/// Looks up at most [`LANES`] keys, with the vector instructions of the machine.
struct GetLanes<'a> {
    tree: &'a Tree,
    keys: &'a [u64],
    values: &'a mut [Option<u64>],
}

impl Kernel for GetLanes<'_> {
    /// A mask of the lookups that have to be repeated, each by itself: the path was cold, or a writer interfered.
    type Out = u64;

    #[inline(always)]
    fn run<S: Simd>(self) -> u64 {
        let Self { tree, keys, values } = self;
        let lanes = tree.descend(keys, false);
        let mut failed = 0;
        for (lane, (&key, value)) in keys.iter().zip(values).enumerate() {
            let Some(data) = lanes.nodes[lane] else {
                failed |= 1 << lane;
                continue;
            };
            let predicted = lanes.predicted[lane];
            let lock = &tree.lock_of(data, predicted).version;
            let version = lock.read();
            *value = tree.find_value::<S>(data, predicted, key);
            let is_torn = !lock.validate(version) && !planted(Bug::ReadWithoutVersion);
            failed |= u64::from(is_torn) << lane;
        }
        failed
    }
}
