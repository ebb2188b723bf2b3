//! Structure changes of inner nodes, which lie in DRAM: splits and merges of nodes, a root that grows and shrinks, the nodes over a chain
//! that was loaded. Nothing durable is touched.
//!
//! What a node looks like, and how it is searched, is the engine's own. The rules that allow a reader to follow outdated pointers are at the
//! head of each engine's `inner`, and the lock order at the head of its `smo`.

use super::arena::{Arena, Node};
use crate::concurrency::locks::{Version, Wait, WriteGuard};
use crate::concurrency::records::RecordLocks;
use crate::pmem::Pm;
use crate::pool::Offset;
use crate::{Error, Result};

/// An inner node, as far as its children are concerned. Whoever changes a node holds its lock.
pub(crate) trait InnerNode: Node + Sized {
    /// Most children of a node.
    const FANOUT: usize;

    /// Children of a node after a bulk load: some fewer, so that the first splits find room.
    const LOADED: usize;

    type Key: Copy;

    /// The key at which the leftmost node of a level begins.
    const LOWEST_KEY: Self::Key;

    /// What a node holds of a child, copied out.
    type Entry: Copy;

    /// Number of children. Outdated, unless the node is locked or its version is validated afterwards.
    fn count(&self) -> usize;

    /// The node in `slot` of an upper node. It may be the wrong one, unless the version of this node is checked afterwards.
    fn node(&self, slot: usize) -> &Self;

    /// The slot of the last child.
    fn last(&self) -> usize;

    /// The slot of the next child to the right.
    fn after(&self, slot: usize) -> Option<usize>;

    /// The slot of the next child to the left.
    fn before(&self, slot: usize) -> Option<usize>;

    /// All children, from left to right.
    fn entries(&self) -> Vec<Self::Entry>;

    /// Replaces all children: there are 1 to [`FANOUT`](Self::FANOUT).
    fn refill(&self, entries: &[Self::Entry]);

    /// Adds a child to the right of `slot`. There are fewer than [`FANOUT`](Self::FANOUT).
    fn insert(&self, slot: usize, entry: &Self::Entry);

    /// Removes the child in `slot`, which is not the first.
    fn remove(&self, slot: usize);

    /// The key at which a child begins.
    fn key_of(entry: &Self::Entry) -> Self::Key;

    /// What a parent holds of `child`, which is locked and begins at `key`.
    fn entry_for(key: Self::Key, child: &Self) -> Self::Entry;

    /// Notes that the children of `child` have changed, which is in `slot` of this node. Both are locked.
    fn child_changed(&self, slot: usize, child: &Self) {
        let _ = (slot, child);
    }

    fn is_full(&self) -> bool {
        self.count() >= Self::FANOUT
    }

    /// Whether the node should be merged with a neighbour.
    fn is_small(&self) -> bool {
        self.count() <= Self::FANOUT / 4
    }

    /// The slots of a child and its right neighbour, then of its left neighbour and the child, as far as there are any.
    fn pairs_at(&self, slot: usize) -> impl Iterator<Item = (usize, usize)> {
        let right = self.after(slot).map(|next| (slot, next));
        let left = self.before(slot).map(|before| (before, slot));
        right.into_iter().chain(left)
    }
}

/// How an attempt to merge two leaves ended.
pub(crate) enum Merge {
    /// Two leaves became one.
    Done { parent_is_small: bool },
    /// They do not fit, or are not indexed yet.
    No,
    /// The leaf is its bottom node's only child.
    Alone,
    /// Another thread held a lock.
    Busy,
}

/// Whether a leaf with `count` records left should be merged with a neighbour. Asked on the way down, so at most
/// three times between full and empty: a leaf that stays small does not try at every removal. A leaf that has lost
/// fewer than three quarters of its records does not try at all, so that an index whose size stays the same is left alone.
#[inline(always)]
pub(crate) fn is_worth_merging(count: usize, capacity: usize) -> bool {
    count == 0 || count == capacity / 4 || count == capacity / 8
}

/// The leaf at `left`, which is locked with its parent, has another right neighbour than its parent says.
pub(crate) fn not_linked(left: Offset, right: Offset) -> Error {
    Error::Damaged(format!(
        "the leaf at {left:#x} does not lead to the one at {right:#x}"
    ))
}

/// Whether two leaves with so many records fit into one, with room to spare.
pub(crate) fn leaves_fit(left: usize, right: usize, capacity: usize) -> bool {
    // An empty leaf always goes; others only if the next few inserts will not split them again.
    let limit = if left == 0 || right == 0 {
        capacity
    } else {
        capacity * 3 / 4
    };
    left + right <= limit
}

/// The locks of the root, its only child and its only leaf, and that leaf.
pub(crate) type EmptyTree<'a> = (WriteGuard<'a>, WriteGuard<'a>, WriteGuard<'a>, Offset);

/// Locks a tree that has one bottom node and one leaf, whose offset `leaf_of` reads in the bottom node; otherwise [`Error::NotEmpty`]. The leaf
/// may have records.
///
/// While the root and its only child are locked, no thread can enter the tree; while the only leaf is locked, no thread is in it. The locks are tried,
/// since others hold them while they try ours.
pub(crate) fn lock_empty_tree<'a, N: InnerNode>(
    root: &'a N,
    locks: &'a RecordLocks,
    leaf_of: impl Fn(&N) -> Offset,
) -> Result<EmptyTree<'a>> {
    let mut wait = Wait::default();
    loop {
        wait.step();
        let root_guard = root.lock().lock();
        if root.level() > 1 || root.count() > 1 {
            return Err(Error::NotEmpty);
        }
        let bottom = root.node(0);
        let Some(bottom_guard) = bottom.lock().try_lock() else {
            continue;
        };
        if bottom.count() > 1 {
            return Err(Error::NotEmpty);
        }
        let leaf = leaf_of(bottom);
        if let Some(leaf_guard) = locks.of(leaf.get()).try_lock() {
            return Ok((root_guard, bottom_guard, leaf_guard, leaf));
        }
    }
}

/// One attempt to merge the leaf in `slot` of a bottom node with its right neighbour, or else with its left one. The bottom node is locked
/// meanwhile, if it still has `version`.
pub(crate) fn try_merge_beside<N: InnerNode>(
    parent: &N,
    version: Version,
    slot: usize,
    merge_pair: impl FnMut((usize, usize)) -> Merge,
) -> Merge {
    let Some(_parent) = parent.lock().try_lock_at(version) else {
        return Merge::Busy;
    };
    if parent.count() == 1 {
        return Merge::Alone;
    }
    let mut merges = parent.pairs_at(slot).map(merge_pair);
    merges
        .find(|merge| !matches!(merge, Merge::No))
        .unwrap_or(Merge::No)
}

/// A tree of inner nodes over a chain of leaves. The root never moves.
pub(crate) trait InnerTree {
    type Node: InnerNode;

    fn root(&self) -> &Self::Node;

    fn arena(&self) -> &Arena<Self::Node>;

    fn pm(&self) -> Pm;

    /// The slot of the child that covers `key`.
    fn find_child(&self, node: &Self::Node, key: Key<Self>) -> usize;

    /// One attempt to merge the leaf that covers `key` with a neighbour under the same bottom node, if both fit into one with room to spare.
    fn try_merge(&self, key: Key<Self>) -> Merge;

    /// Announces a change of structure, which lasts until the result is dropped. The caller holds no lock.
    fn announce(&self) -> impl Sized + '_ {}

    /// Merges the leaf that covers `key` with a neighbour, if they fit; `false` if nothing was merged. The caller holds no lock.
    #[cold]
    fn merge(&self, key: Key<Self>) -> bool {
        let mut wait = Wait::default();
        let mut trimmed = false;
        loop {
            let _change = self.announce();
            match self.try_merge(key) {
                Merge::Busy => wait.step(),
                Merge::Alone if !trimmed => {
                    self.trim(key);
                    trimmed = true;
                }
                Merge::Done { parent_is_small } => {
                    if parent_is_small {
                        self.trim(key);
                    }
                    return true;
                }
                Merge::Alone | Merge::No => return false,
            }
        }
    }

    /// Splits the inner nodes on the way to `key` that are full, so that a separator can be added below them. The caller has announced
    /// the change.
    fn split_inner(&self, key: Key<Self>) {
        let mut wait = Wait::default();
        while !self.try_split_inner(key) {
            wait.step();
        }
    }

    /// Walks down and splits the first full node that it meets; `true` if the bottom node has room.
    fn try_split_inner(&self, key: Key<Self>) -> bool {
        let mut parent: Option<(&Self::Node, Version)> = None;
        let mut node = self.root();
        let mut version = node.lock().read();
        loop {
            if node.is_full() {
                self.split_node(parent, node, version, key);
                return false;
            }
            if node.level() == 0 {
                return node.lock().validate(version);
            }
            let child = node.node(self.find_child(node, key));
            let child_version = child.lock().read();
            if !node.lock().validate(version) {
                return false;
            }
            parent = Some((node, version));
            (node, version) = (child, child_version);
        }
    }

    /// Splits a full inner node whose parent has room.
    fn split_node(
        &self,
        parent: Option<(&Self::Node, Version)>,
        node: &Self::Node,
        version: Version,
        key: Key<Self>,
    ) {
        let Some((parent, parent_version)) = parent else {
            return self.grow_root(node, version);
        };
        let Some(_parent) = parent.lock().try_lock_at(parent_version) else {
            return;
        };
        let Some(_node) = node.lock().try_lock_at(version) else {
            return;
        };
        self.pm().note("inner split", u64::from(node.level()));
        let slot = self.find_child(parent, key);
        let entries = node.entries();
        // At the right end of a node, as with ascending keys, nearly all children stay on the left.
        let from = if self.find_child(node, key) == node.last() {
            entries.len() - 1
        } else {
            entries.len() / 2
        };
        let (new, _new) = self.arena().alloc(node.level());
        new.refill(&entries[from..]);
        node.refill(&entries[..from]);
        parent.child_changed(slot, node);
        let key = Self::Node::key_of(&entries[from]);
        parent.insert(slot, &Self::Node::entry_for(key, new));
    }

    /// The root keeps its address: its children move to a new node, which becomes its only child. It is an upper node
    /// from the beginning, and stays one.
    fn grow_root(&self, root: &Self::Node, version: Version) {
        let Some(_root) = root.lock().try_lock_at(version) else {
            return;
        };
        self.pm().note("root growth", u64::from(root.level()));
        let (child, _child) = self.arena().alloc(root.level());
        child.refill(&root.entries());
        root.reset(child.level() + 1);
        root.refill(&[Self::Node::entry_for(Self::Node::LOWEST_KEY, child)]);
    }

    /// Merges inner nodes that have become small, on the way to `key`, and takes levels off a root with one child.
    fn trim(&self, key: Key<Self>) {
        // At most eight attempts: if other threads interfere, a small node stays, and the next merge below it tries again.
        for _ in 0..8 {
            if self.trim_once(key) {
                return;
            }
        }
    }

    /// One structure change at most; `true` if there was none to make.
    fn trim_once(&self, key: Key<Self>) -> bool {
        let mut node = self.root();
        let mut version = node.lock().read();
        while node.level() > 0 {
            let slot = self.find_child(node, key);
            let child = node.node(slot);
            let child_version = child.lock().read();
            let count = node.count();
            if !node.lock().validate(version) {
                return false;
            }
            if count == 1 && node.level() > 1 && std::ptr::eq(node, self.root()) {
                self.shrink_root(node, version, child);
                return false;
            }
            if child.is_small() && count > 1 && self.merge_nodes(node, version, slot) {
                return false;
            }
            (node, version) = (child, child_version);
        }
        true
    }

    fn shrink_root(&self, root: &Self::Node, version: Version, child: &Self::Node) {
        let Some(_root) = root.lock().try_lock_at(version) else {
            return;
        };
        let Some(child_guard) = child.lock().try_lock() else {
            return;
        };
        self.pm().note("root shrink", u64::from(root.level()));
        root.reset(child.level());
        root.refill(&child.entries());
        drop(child_guard);
        self.arena().free(child);
    }

    /// Merges the child in `slot` of `parent` with a neighbour, if they fit together; `false` if nothing was touched
    /// because they do not.
    fn merge_nodes(&self, parent: &Self::Node, version: Version, slot: usize) -> bool {
        let Some((left_slot, right_slot)) = parent.pairs_at(slot).next() else {
            return false;
        };
        let (left, right) = (parent.node(left_slot), parent.node(right_slot));
        let fit = || {
            let single = left.count() == 1 || right.count() == 1;
            let most = Self::Node::FANOUT;
            left.count() + right.count() <= if single { most } else { most * 3 / 4 }
        };
        if !fit() {
            return false;
        }
        let Some(_parent) = parent.lock().try_lock_at(version) else {
            return true;
        };
        let Some(left_guard) = left.lock().try_lock() else {
            return true;
        };
        let Some(right_guard) = right.lock().try_lock() else {
            return true;
        };
        if fit() {
            self.pm().note("inner merge", u64::from(left.level()));
            let mut entries = left.entries();
            entries.extend(right.entries());
            left.refill(&entries);
            parent.child_changed(left_slot, left);
            parent.remove(right_slot);
            drop((left_guard, right_guard));
            self.arena().free(right);
        }
        true
    }

    /// Replaces all inner nodes below the root, which is locked, by nodes over these leaves.
    fn load_nodes(&self, leaves: Vec<Entry<Self>>) {
        free_below(self.arena(), self.root());
        let (mut entries, mut level) = (leaves, 0);
        while level == 0 || entries.len() > Self::Node::FANOUT {
            let above = even_parts(&entries, Self::Node::LOADED).map(|children| {
                let (node, _guard) = self.arena().alloc(level);
                node.refill(children);
                Self::Node::entry_for(Self::Node::key_of(&children[0]), node)
            });
            entries = above.collect();
            level += 1;
        }
        self.root().reset(level);
        self.root().refill(&entries);
    }
}

/// The keys of a tree.
pub(crate) type Key<T> = <<T as InnerTree>::Node as InnerNode>::Key;

/// What the nodes of a tree hold of their children.
pub(crate) type Entry<T> = <<T as InnerTree>::Node as InnerNode>::Entry;

/// Frees all nodes below `node`, which is locked, so that no thread can come from above any more. A reader that is still in a
/// child finds the version of the child changed.
fn free_below<N: InnerNode>(arena: &Arena<N>, node: &N) {
    if node.level() == 0 {
        return;
    }
    let slots = std::iter::successors(Some(0), |&slot| node.after(slot));
    for child in slots.map(|slot| node.node(slot)) {
        let guard = child.lock().lock();
        free_below(arena, child);
        drop(guard);
        arena.free(child);
    }
}

/// Cuts `items` into parts of about the same size, none larger than `most`.
fn even_parts<T>(items: &[T], most: usize) -> impl Iterator<Item = &[T]> {
    let parts = items.len().div_ceil(most);
    (0..parts).map(move |i| &items[items.len() * i / parts..items.len() * (i + 1) / parts])
}
