//! Batches of lookups: while one lookup waits for memory, the others go on.
//!
//! Up to 32 lookups descend the tree together, level by level; each is a *lane*. At each level every lane compares the pivots
//! and prefetches the keys it will need; once all have done that, each finds its slot and prefetches the child in it, then
//! the first line of that child. So the cache misses of all lanes overlap.

use super::Tree;
use super::inner::{Child, Inner};
use crate::concurrency::epochs;
use crate::concurrency::locks::Version;
use crate::kernels::{Kernel, Simd, dispatch};
use crate::pool::Offset;

/// Lookups that descend together, at most: enough to keep the memory busy, few enough for their lines to stay in the first-level cache.
pub(super) const LANES: usize = 32;

/// Lookups that descend together.
struct Lanes<'a> {
    keys: &'a [u64],
    nodes: [&'a Inner; LANES],
    versions: [Version; LANES],
    /// The node above and its version.
    parents: [(&'a Inner, Version); LANES],
    children: [Child; LANES],
    /// Levels of upper nodes.
    height: u32,
    /// Bit `i`: lookup `i` has to be done again by itself.
    failed: u64,
}

impl<'a> Lanes<'a> {
    fn new(tree: &'a Tree, keys: &'a [u64]) -> Self {
        let root = tree.root();
        let version = root.lock().read();
        Self {
            keys,
            nodes: [root; LANES],
            versions: [version; LANES],
            parents: [(root, version); LANES],
            children: [Child::leaf(Offset::NONE); LANES],
            height: root.level(),
            failed: 0,
        }
    }

    #[inline(always)]
    fn check(&mut self, lane: usize, sound: bool) {
        self.failed |= u64::from(!sound) << lane;
    }

    /// Takes all lookups to their leaves, whose headers are then on their way to the caches.
    #[inline(always)]
    fn descend<S: Simd>(&mut self, tree: &'a Tree, whole_leaf: bool) {
        let lanes = self.keys.len();
        let mut slots = [0; LANES];
        for level in (0..=self.height).rev() {
            for (lane, segment) in slots.iter_mut().enumerate().take(lanes) {
                *segment = self.nodes[lane].find_segment::<S>(self.keys[lane]);
                self.nodes[lane].prefetch_keys(*segment);
            }
            for (lane, slot) in slots.iter_mut().enumerate().take(lanes) {
                let node = self.nodes[lane];
                *slot = node.find_in_segment::<S>(*slot, self.keys[lane]).slot();
                node.prefetch_child(*slot);
            }
            for (lane, &slot) in slots.iter().enumerate().take(lanes) {
                let (node, version) = (self.nodes[lane], self.versions[lane]);
                if level > 0 {
                    // A lookup that failed stays where it is: its node need not be of this level, so its words need
                    // not be pointers.
                    if self.failed >> lane & 1 == 0 {
                        self.parents[lane] = (node, version);
                        self.nodes[lane] = node.node(slot);
                        self.nodes[lane].prefetch();
                    }
                } else {
                    let child = node.child(slot);
                    self.children[lane] = child;
                    self.check(lane, node.lock().validate(version) && !child.is_unindexed());
                    if whole_leaf {
                        tree.leaves.prefetch(child.offset());
                    } else {
                        tree.leaves.prefetch_header(child.offset());
                    }
                }
            }
            if level > 0 {
                self.enter_children();
            }
        }
    }

    /// Takes the versions of the nodes just entered.
    #[inline(always)]
    fn enter_children(&mut self) {
        for lane in 0..self.keys.len() {
            let node = self.nodes[lane];
            self.versions[lane] = node.lock().read();
            // The version was taken while the parent still pointed to this node for this key.
            let (parent, version) = self.parents[lane];
            self.check(lane, parent.lock().validate(version));
        }
    }
}

impl Tree {
    /// See [`Ordered::look_up_together`](crate::engines::Ordered::look_up_together).
    pub(super) fn look_up_together(&self, keys: &[u64], values: &mut [Option<u64>]) -> u64 {
        let _guard = epochs::pin();
        let tree = self;
        dispatch(self.simd, GetLanes { tree, keys, values })
    }

    /// Brings the leaves of `records` to the caches. The caller is pinned.
    pub(super) fn prefetch_leaves(&self, records: &[(u64, u64)]) {
        let mut keys = [0; LANES];
        for (key, record) in keys.iter_mut().zip(records) {
            *key = record.0;
        }
        dispatch(
            self.simd,
            PrefetchLanes {
                tree: self,
                keys: &keys[..records.len().min(LANES)],
            },
        );
    }
}

struct GetLanes<'a> {
    tree: &'a Tree,
    keys: &'a [u64],
    values: &'a mut [Option<u64>],
}

impl Kernel for GetLanes<'_> {
    /// The lookups that failed.
    type Out = u64;

    #[inline(always)]
    fn run<S: Simd>(self) -> u64 {
        let mut lanes = Lanes::new(self.tree, self.keys);
        lanes.descend::<S>(self.tree, false);
        let mut leaf_versions = lanes.versions;
        for (lane, version) in leaf_versions.iter_mut().enumerate().take(self.keys.len()) {
            if lanes.failed >> lane & 1 != 0 {
                continue;
            }
            let offset = lanes.children[lane].offset();
            *version = self.tree.locks.of(offset.get()).read();
            lanes.check(
                lane,
                lanes.nodes[lane].lock().validate(lanes.versions[lane]),
            );
            self.tree.leaves.at(offset).prefetch_record(self.keys[lane]);
        }
        for (lane, &version) in leaf_versions.iter().enumerate().take(self.keys.len()) {
            if lanes.failed >> lane & 1 != 0 {
                continue;
            }
            let offset = lanes.children[lane].offset();
            self.values[lane] = self
                .tree
                .leaves
                .at(offset)
                .find(self.keys[lane])
                .map(|(_, value)| value);
            lanes.check(lane, self.tree.locks.of(offset.get()).validate(version));
        }
        lanes.failed
    }
}

struct PrefetchLanes<'a> {
    tree: &'a Tree,
    keys: &'a [u64],
}

impl Kernel for PrefetchLanes<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        Lanes::new(self.tree, self.keys).descend::<S>(self.tree, true);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{LANES, Lanes};
    use crate::concurrency::epochs;
    use crate::host::AnyMap;
    use crate::kernels::Plain;
    use crate::{Kind, Map, Pool};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn lbtree(pool: &Pool) -> Map<u64, u64> {
        pool.map_with("m", Kind::LbTree).unwrap()
    }

    #[test]
    fn lookups_whose_root_has_shrunk_fail_and_touch_nothing_else() {
        let pool = Pool::in_memory().unwrap();
        let map = lbtree(&pool);
        let AnyMap::LbTree(host) = map.index() else {
            panic!("another kind of index");
        };
        let tree = &host.engine().tree;
        for key in 0..10_000 {
            map.insert(key, key).unwrap();
        }
        assert!(tree.root().level() > 1);
        let keys: [u64; LANES] = std::array::from_fn(|i| i as u64 * 300);
        let mut lanes = Lanes::new(tree, &keys);
        for key in 0..10_000 {
            map.remove(key).unwrap();
        }
        assert_eq!(tree.root().level(), 1);
        let _guard = epochs::pin();
        lanes.descend::<Plain>(tree, false);
        assert_eq!(lanes.failed, u64::MAX >> (64 - LANES));
    }

    /// Inner nodes are small under test, so the root loses and gains levels all the time.
    #[test]
    fn batches_are_right_while_the_tree_grows_and_shrinks_below_them() {
        const KEYS: u64 = 4_000;
        let pool = Pool::in_memory().unwrap();
        let map = lbtree(&pool);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let (map, done) = (map.clone(), &done);
                scope.spawn(move || {
                    let mut seed = thread;
                    while !done.load(Ordering::Relaxed) {
                        let mut next = || {
                            seed = seed
                                .wrapping_mul(6_364_136_223_846_793_005)
                                .wrapping_add(1_442_695_040_888_963_407);
                            (seed >> 33) % KEYS
                        };
                        let keys: Vec<u64> = (0..100).map(|_| next()).collect();
                        for (key, value) in keys.iter().zip(map.get_batch(&keys).unwrap()) {
                            assert!(value.is_none_or(|value| value == key * 2));
                        }
                        let fresh: Vec<u64> = (0..20).map(|_| next()).collect();
                        let records: Vec<(u64, u64)> =
                            fresh.iter().map(|&key| (key, key * 2)).collect();
                        map.insert_batch(&records).unwrap();
                    }
                });
            }
            for _ in 0..if cfg!(debug_assertions) { 10 } else { 60 } {
                for key in 0..KEYS {
                    map.insert(key, key * 2).unwrap();
                }
                for key in 0..KEYS {
                    map.remove(key).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(map.check().unwrap(), [""; 0]);
    }
}
