//! Many lookups at once: while one waits for memory, the others go on.
//!
//! A group of lookups goes down the tree level by level. Each step asks for the line that the next one reads, for the whole group,
//! before any of them reads it.

use super::Tree;
use super::data::DataNode;
use super::inner::{Child, InnerNode};
use crate::index::simd::{Kernel, Simd, dispatch, prefetch};
use crate::planted::{Bug, planted};
use crate::{Result, reclaim};

/// Lookups in a group: enough to keep the memory busy, few enough for their lines to stay in the first-level cache.
pub(super) const LANES: usize = 32;

/// Where a group of lookups has come to: data nodes and homes. None where the way is cold.
pub(super) struct Lanes<'a> {
    nodes: [Option<&'a DataNode>; LANES],
    predicted: [usize; LANES],
}

impl Tree {
    /// Takes lookups to their windows, of which what is needed is then on its way to the caches. The caller is pinned.
    #[inline(always)]
    fn descend(&self, keys: &[u64], for_writing: bool) -> Lanes<'_> {
        let root = self.root();
        let mut inner: [&InnerNode; LANES] = [root; LANES];
        let mut lanes = Lanes {
            nodes: [None; LANES],
            predicted: [0; LANES],
        };
        for key in keys {
            root.prefetch_slot(*key);
        }
        // Bit i: lookup i is still at an inner node.
        let mut above: u64 = (1 << keys.len()) - 1;
        while above != 0 {
            let mut still = 0;
            for (lane, &key) in keys.iter().enumerate() {
                if above >> lane & 1 == 0 {
                    continue;
                }
                let child: Child = inner[lane].child_for(key);
                if child.is_inner() {
                    // SAFETY: reached while pinned, so it is not freed before the caller unpins.
                    inner[lane] = unsafe { &*child.as_inner() };
                    prefetch(std::ptr::from_ref(inner[lane]));
                    still |= 1 << lane;
                } else {
                    prefetch(child.as_data());
                    // SAFETY: as above; null if it is cold.
                    lanes.nodes[lane] = unsafe { child.as_data().as_ref() };
                }
            }
            above = still;
            for (lane, &key) in keys.iter().enumerate() {
                if above >> lane & 1 != 0 {
                    inner[lane].prefetch_slot(key);
                }
            }
        }
        for (lane, &key) in keys.iter().enumerate() {
            if let Some(data) = lanes.nodes[lane] {
                let predicted = data.model.predict(key);
                lanes.predicted[lane] = predicted;
                if for_writing {
                    self.prefetch_to_write(data, predicted);
                } else {
                    let window = self.window(data, predicted);
                    window.prefetch_half(window.predicted_half(predicted));
                }
                prefetch(std::ptr::from_ref(self.locks.of(data.lock_of(predicted))));
            }
        }
        lanes
    }

    /// The values of `keys`.
    pub(super) fn get_batch(&self, keys: &[u64], values: &mut [Option<u64>]) -> Result<()> {
        for (keys, values) in keys.chunks(LANES).zip(values.chunks_mut(LANES)) {
            let failed = {
                let _guard = reclaim::pin();
                dispatch(
                    self.simd,
                    GetLanes {
                        tree: self,
                        keys,
                        values: &mut *values,
                    },
                )
            };
            for lane in (0..keys.len()).filter(|lane| failed >> lane & 1 != 0) {
                values[lane] = self.get(keys[lane])?;
            }
        }
        Ok(())
    }

    /// Finds the windows of `records`, at most [`LANES`], which are then on their way to the caches. The caller is pinned.
    pub(super) fn find_windows(&self, records: &[(u64, u64)]) -> Lanes<'_> {
        let mut keys = [0; LANES];
        for (key, record) in keys.iter_mut().zip(records) {
            *key = record.0;
        }
        self.descend(&keys[..records.len().min(LANES)], true)
    }
}

impl<'a> Lanes<'a> {
    /// Where a lookup has come to, unless the way is cold.
    pub(super) fn get(&self, lane: usize) -> Option<(&'a DataNode, usize)> {
        Some((self.nodes[lane]?, self.predicted[lane]))
    }
}

struct GetLanes<'a> {
    tree: &'a Tree,
    keys: &'a [u64],
    values: &'a mut [Option<u64>],
}

impl Kernel for GetLanes<'_> {
    /// The lookups that have to be done again, each by itself.
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
            let lock = tree.locks.of(data.lock_of(predicted));
            let version = lock.read();
            *value = tree.find_value::<S>(data, predicted, key);
            let is_torn = !lock.validate(version) && !planted(Bug::ReadWithoutVersion);
            failed |= u64::from(is_torn) << lane;
        }
        failed
    }
}
