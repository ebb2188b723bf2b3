//! Boxes that grow while nodes change, checked with loom: the code of [`boxes`](super::boxes), of [`way`](super::way) and of
//! [`inner_nodes`](crate::engines::inner_nodes) runs here on nodes of three children, in all orders with at most two preemptions, and with all
//! values that its loads may return by the memory model of the language. What is not that code is the leaf, which is a lock and the lowest coordinate of its records, and the splits and merges of
//! leaves, which do with the bottom node what those in `smo` do.
//!
//! A record lies at -1 and is inserted, while the boxes begin at 0. Whatever a structure change does meanwhile, all boxes above
//! the record contain it once its insert has returned.

mod recovery;

use super::boxes::{BoxNode, enlarge};
use super::inner::{Bounds, Child, Entry, Key, code_of, key_of};
use super::way::{Find, Path, Spot};
use crate::concurrency::locks::VersionLock;
use crate::concurrency::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::engines::arena::{Arena, Node as ArenaNode};
use crate::engines::inner_nodes::{InnerNode, InnerTree, Merge};
use crate::kernels::{Plain, Simd, SimdLevel, dispatch};
use crate::pmem::{Medium, Pm};
use crate::pool::Offset;
use crate::spatial::MAX_AXES;
use std::sync::Arc;

/// Children of a node, at most: enough for one to move to the next slot when another one is added.
const FANOUT: usize = 3;
const NODES: usize = 6;
const LEAVES: usize = 6;
/// The leaf of a number begins at this code times its number.
const CODES: u64 = 10;

/// Where all records begin that are there from the start.
const OLD: f32 = 0.0;
/// Where the record begins that is inserted.
const NEW: f32 = -1.0;

/// An inner node with one bound of each box, and another one that never changes.
#[derive(Default)]
struct Node {
    lock: VersionLock,
    /// As in `Inner`.
    shape: AtomicU64,
    codes: [AtomicU64; FANOUT],
    children: [AtomicU64; FANOUT],
    lows: [AtomicU32; FANOUT],
    highs: [AtomicU32; FANOUT],
}

/// The box of a record that begins at `low`.
fn box_from(low: f32) -> Bounds {
    let mut bounds = [f32::NEG_INFINITY; 2 * MAX_AXES];
    bounds[0] = low;
    Bounds(bounds)
}

impl BoxNode for Node {
    const FANOUT: usize = FANOUT;
    const LOADED: usize = FANOUT;

    fn count(&self) -> usize {
        (self.shape.load(Ordering::Relaxed) >> 32) as usize
    }

    fn node(&self, slot: usize) -> &Self {
        let word = self.children[slot].load(Ordering::Acquire);
        // SAFETY: `Tree::put` fills all slots of an upper node with pointers to nodes of the tree, and so do all changes.
        unsafe { &*(word as *const Self) }
    }

    fn find<S: Simd>(&self, key: Key) -> usize {
        let slots = 1..BoxNode::count(self);
        slots.take_while(|&slot| self.key(slot) <= key).count()
    }

    fn key(&self, slot: usize) -> Key {
        key_of(self.codes[slot].load(Ordering::Relaxed), 0)
    }

    fn child(&self, slot: usize) -> Child {
        Child::from_word(self.children[slot].load(Ordering::Relaxed))
    }

    fn prefetch_keys(&self) {}

    fn bound_cell(&self, bound: usize, slot: usize) -> &AtomicU32 {
        match bound {
            0 => &self.lows[slot],
            MAX_AXES => &self.highs[slot],
            _ => panic!("the model has one axis"),
        }
    }

    fn bounds(&self, slot: usize) -> Bounds {
        box_from(f32::from_bits(self.lows[slot].load(Ordering::Relaxed)))
    }

    fn set_bounds(&self, slot: usize, bounds: &Bounds) {
        self.lows[slot].store(bounds.0[0].to_bits(), Ordering::Relaxed);
    }

    fn entry(&self, slot: usize) -> Entry {
        Entry {
            key: self.key(slot),
            word: self.children[slot].load(Ordering::Relaxed),
            bounds: self.bounds(slot),
        }
    }

    fn set(&self, slot: usize, entry: &Entry) {
        self.codes[slot].store(code_of(entry.key), Ordering::Relaxed);
        self.children[slot].store(entry.word, Ordering::Release);
        self.set_bounds(slot, &entry.bounds);
    }

    fn clear(&self, _: usize) {
        // A slot behind the last one is not read by who has validated the number of children, and keeps its pointer.
    }

    fn set_count(&self, count: usize) {
        let level = u64::from(self.level());
        let shape = level | (count as u64) << 32;
        self.shape.store(shape, Ordering::Relaxed);
    }
}

// SAFETY: the node consists of atomics. Those of the model checker are not zeroed memory, but the arena of the model never makes a node: it is given
// more nodes than it hands out.
unsafe impl ArenaNode for Node {
    fn lock(&self) -> &VersionLock {
        &self.lock
    }

    fn level(&self) -> u32 {
        self.shape.load(Ordering::Relaxed) as u32
    }

    fn reset(&self, level: u32) {
        self.shape.store(level.into(), Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Leaf {
    lock: VersionLock,
    /// Where its records begin.
    low: AtomicU32,
}

struct Tree {
    /// The root is the first one.
    nodes: [Node; NODES],
    leaves: [Leaf; LEAVES],
    arena: Arena<Node>,
}

/// How an insert goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// It does not validate the nodes above the leaf.
    NotValidated,
    /// It validates them before it has the lock of the leaf.
    ValidatedEarly,
    /// It enlarges the boxes when the record has been committed.
    EnlargedLate,
}

impl Tree {
    /// A tree whose nodes hold nothing yet, and all of whose leaves hold records from [`OLD`] on.
    fn new() -> Arc<Self> {
        let tree = Self {
            nodes: Default::default(),
            leaves: Default::default(),
            arena: Arena::new(),
        };
        for leaf in &tree.leaves {
            leaf.low.store(OLD.to_bits(), Ordering::Relaxed);
        }
        for node in &tree.nodes {
            for (low, high) in node.lows.iter().zip(&node.highs) {
                low.store(OLD.to_bits(), Ordering::Relaxed);
                high.store(f32::NEG_INFINITY.to_bits(), Ordering::Relaxed);
            }
        }
        Arc::new(tree)
    }

    /// A root over bottom nodes, each of which has these leaves, and one free node of each sort.
    fn of(bottoms: &[&[usize]]) -> Arc<Self> {
        let tree = Self::new();
        let nodes = bottoms.iter().zip(1..).map(|(leaves, number)| {
            tree.fill_bottom(number, leaves);
            (CODES * leaves[0] as u64, number)
        });
        let nodes: Vec<_> = nodes.collect();
        tree.fill_upper(0, 1, &nodes);
        tree.give_free_nodes(bottoms.len() + 1);
        tree
    }

    fn fill_bottom(&self, number: usize, leaves: &[usize]) {
        let leaves = leaves.iter();
        let entries: Vec<_> = leaves.map(|&leaf| Self::entry_of(leaf)).collect();
        self.nodes[number].refill(&entries);
    }

    /// Fills an upper node with nodes and the codes at which they begin.
    fn fill_upper(&self, number: usize, level: u32, children: &[(u64, usize)]) {
        let node = &self.nodes[number];
        node.reset(level);
        for slot in 0..FANOUT {
            let (code, child) = children[slot.min(children.len() - 1)];
            let key = key_of(code, 0);
            node.set(slot, &Entry::node(key, &self.nodes[child], box_from(OLD)));
        }
        node.set_count(children.len());
    }

    /// Gives the arena a bottom node and an upper one, the first of those that are not in use.
    fn give_free_nodes(&self, first: usize) {
        let [bottom, upper] = [&self.nodes[first], &self.nodes[first + 1]];
        self.arena.free(bottom);
        upper.reset(1);
        let root = std::ptr::from_ref(&self.nodes[0]) as u64;
        for word in &upper.children {
            word.store(root, Ordering::Relaxed);
        }
        self.arena.free(upper);
    }

    fn entry_of(leaf: usize) -> Entry {
        // Offsets of leaves are multiples of their size, as far as `Child` is concerned.
        let child = Child::leaf(Offset::from_word(64 * (leaf as u64 + 1)), false);
        Entry::leaf(key_of(CODES * leaf as u64, 0), child, box_from(OLD))
    }

    fn leaf(&self, child: Child) -> &Leaf {
        &self.leaves[(child.offset().get() / 64) as usize - 1]
    }

    /// The way down to a leaf.
    fn way(&self, key: Key, bounds: Option<&Bounds>) -> (Path<'_, Node>, Spot<'_, Node>) {
        let mut path = Path::from(self.root());
        loop {
            if let Ok(spot) = path.descend::<Plain, true>(self.root(), key, bounds, 1) {
                return (path, spot);
            }
        }
    }

    /// Inserts a record that begins at [`NEW`].
    fn insert(&self, code: u64, mistake: Mistake) {
        let (key, bounds) = (key_of(code, 0), box_from(NEW));
        let is_late = mistake == Mistake::EnlargedLate;
        loop {
            let (path, spot) = self.way(key, (!is_late).then_some(&bounds));
            let leaf = self.leaf(spot.child);
            let locked = match mistake {
                Mistake::NotValidated => Some(leaf.lock.lock()),
                Mistake::ValidatedEarly => path.is_current().then(|| leaf.lock.lock()),
                _ => path.lock_leaf(&leaf.lock),
            };
            if let Some(_guard) = locked {
                // The commit.
                leaf.low.store(NEW.to_bits(), Ordering::Release);
                break;
            }
        }
        if is_late {
            self.way(key, Some(&bounds));
        }
    }

    /// All boxes above a record of this code contain what begins at [`NEW`]; and so, if a change is over, does the leaf.
    fn assert_found(&self, code: u64) {
        let key = key_of(code, 0);
        loop {
            let (path, _) = self.way(key, None);
            let contains = path.contains(&box_from(NEW), key, 1);
            if path.is_current() {
                return assert!(contains, "a box misses a record below it");
            }
        }
    }

    fn assert_found_at_last(&self, code: u64) {
        self.assert_found(code);
        let (_, spot) = self.way(key_of(code, 0), None);
        let low = self.leaf(spot.child).low.load(Ordering::Relaxed);
        assert_eq!(f32::from_bits(low), NEW);
    }

    /// Splits the leaf in `slot`, as `smo` does: the upper half of its codes goes to leaf `new`, which holds no new record.
    fn split_leaf(&self, bottom: &Node, slot: usize, new: usize) {
        let version = bottom.lock().read();
        let leaf = self.leaf(bottom.child(slot));
        let _leaf = leaf.lock.lock();
        let Some(_bottom) = bottom.lock().try_lock_at(version) else {
            panic!("nobody else locks the node");
        };
        let low = f32::from_bits(leaf.low.load(Ordering::Relaxed));
        bottom.set_bounds(slot, &box_from(low));
        let mut entry = Self::entry_of(new);
        entry.key = bottom.key(slot) + key_of(CODES / 2, 0);
        bottom.insert(slot, &entry);
    }

    /// Merges the leaf in `slot` with its right neighbour, as `smo` does.
    fn merge_leaves(&self, bottom: &Node, slot: usize) {
        let _bottom = bottom.lock().lock();
        let [left, right] = [slot, slot + 1].map(|slot| self.leaf(bottom.child(slot)));
        // An insert holds one of them, or none.
        let (_left, _right) = (left.lock.lock(), right.lock.lock());
        let lows = [left, right].map(|leaf| f32::from_bits(leaf.low.load(Ordering::Relaxed)));
        left.low
            .store(lows[0].min(lows[1]).to_bits(), Ordering::Relaxed);
        let both = bottom.bounds(slot).join(bottom.bounds(slot + 1));
        bottom.set_bounds(slot, &both);
        bottom.remove(slot + 1);
    }
}

impl InnerTree for Tree {
    type Node = Node;

    fn root(&self) -> &Node {
        &self.nodes[0]
    }

    fn arena(&self) -> &Arena<Node> {
        &self.arena
    }

    fn pm(&self) -> Pm {
        Pm::new(Medium::Dram)
    }

    fn find_child(&self, node: &Node, key: Key) -> usize {
        dispatch(SimdLevel::best(), Find { node, key })
    }

    fn try_merge(&self, _: Key) -> Merge {
        Merge::No
    }
}

/// Runs a model in all orders with at most so many preemptions (or `LOOM_MAX_PREEMPTIONS`), and with all values that loads may return.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(model);
}

/// Runs an insert beside a structure change, in all orders.
fn beside(
    mistake: Mistake,
    code: u64,
    tree: impl Fn() -> Arc<Tree> + Sync + Send + 'static,
    change: impl Fn(&Tree) + Sync + Send + 'static,
) {
    check(2, move || {
        let tree = tree();
        let writer = {
            let tree = Arc::clone(&tree);
            loom::thread::spawn(move || tree.insert(code, mistake))
        };
        change(&tree);
        writer.join().unwrap();
        tree.assert_found_at_last(code);
    });
}

#[test]
fn loom_an_insert_beside_a_split_of_its_bottom_node() {
    let tree = || Tree::of(&[&[0, 1, 2]]);
    beside(Mistake::None, 21, tree, |tree| {
        tree.split_inner(key_of(1, 0));
    });
}

#[test]
fn loom_an_insert_beside_a_merge_of_bottom_nodes() {
    let tree = || Tree::of(&[&[0], &[1, 2]]);
    beside(Mistake::None, 21, tree, |tree| {
        let version = tree.root().lock().read();
        assert!(tree.merge_nodes(tree.root(), version, 0));
    });
}

#[test]
fn loom_an_insert_beside_a_root_that_grows() {
    let tree = || Tree::of(&[&[0], &[1], &[2]]);
    beside(Mistake::None, 21, tree, |tree| {
        assert!(!tree.try_split_inner(0));
        assert_eq!(tree.root().level(), 2);
    });
}

#[test]
fn loom_an_insert_beside_a_root_that_shrinks() {
    let tree = || {
        let tree = Tree::new();
        tree.fill_bottom(2, &[0, 1]);
        tree.fill_upper(1, 1, &[(0, 2)]);
        tree.fill_upper(0, 2, &[(0, 1)]);
        tree
    };
    beside(Mistake::None, 11, tree, |tree| {
        let version = tree.root().lock().read();
        tree.shrink_root(tree.root(), version, &tree.nodes[1]);
        assert_eq!(tree.root().level(), 1);
    });
}

#[test]
fn loom_an_insert_beside_a_split_of_its_leaf() {
    let tree = || Tree::of(&[&[0, 1]]);
    beside(Mistake::None, 1, tree, |tree| {
        tree.split_leaf(&tree.nodes[1], 0, 3);
    });
}

#[test]
fn loom_an_insert_beside_a_split_of_the_leaf_before() {
    let tree = || Tree::of(&[&[0, 1]]);
    beside(Mistake::None, 11, tree, |tree| {
        tree.split_leaf(&tree.nodes[1], 0, 3);
    });
}

#[test]
fn loom_an_insert_beside_merges_of_leaves() {
    for code in [11, 21] {
        let tree = || Tree::of(&[&[0, 1, 2]]);
        beside(Mistake::None, code, tree, |tree| {
            tree.merge_leaves(&tree.nodes[1], 0);
        });
    }
}

#[test]
fn loom_an_insert_beside_boxes_that_are_tightened() {
    beside(
        Mistake::None,
        11,
        || {
            let tree = Tree::of(&[&[0, 1]]);
            tree.root().set_bounds(0, &Bounds::EVERYTHING);
            tree
        },
        |tree| tree.way(0, None).0.tighten(),
    );
}

/// The insert finds a box that another writer has just enlarged, which goes no further, and relies on it.
#[test]
fn loom_an_insert_that_relies_on_the_box_of_another_one() {
    check(1, || {
        let tree = Tree::of(&[&[0]]);
        tree.root().set_bounds(0, &Bounds::EVERYTHING);
        let other = {
            let tree = Arc::clone(&tree);
            loom::thread::spawn(move || enlarge::<1>(&tree.nodes[1], 0, &box_from(NEW)))
        };
        let writer = {
            let tree = Arc::clone(&tree);
            loom::thread::spawn(move || tree.insert(1, Mistake::None))
        };
        tree.way(0, None).0.tighten();
        other.join().unwrap();
        writer.join().unwrap();
        tree.assert_found_at_last(1);
    });
}

/// Who sees a record finds boxes that contain it.
fn seen(mistake: Mistake) {
    check(2, move || {
        let tree = Tree::of(&[&[0, 1]]);
        let writer = {
            let tree = Arc::clone(&tree);
            loom::thread::spawn(move || tree.insert(11, mistake))
        };
        if tree.leaves[1].low.load(Ordering::Acquire) == NEW.to_bits() {
            tree.assert_found(11);
        }
        writer.join().unwrap();
    });
}

#[test]
fn loom_a_record_that_is_seen_lies_in_all_boxes_above() {
    seen(Mistake::None);
}

#[test]
#[should_panic(expected = "a box misses a record below it")]
fn loom_a_box_that_is_enlarged_after_the_commit_is_noticed() {
    seen(Mistake::EnlargedLate);
}

#[test]
#[should_panic(expected = "a box misses a record below it")]
fn loom_an_insert_that_does_not_validate_is_noticed() {
    let tree = || Tree::of(&[&[0, 1]]);
    beside(Mistake::NotValidated, 11, tree, |tree| {
        tree.split_leaf(&tree.nodes[1], 0, 3);
    });
}

#[test]
#[should_panic]
fn loom_an_insert_that_validates_too_early_is_noticed() {
    let tree = || Tree::of(&[&[0, 1]]);
    beside(Mistake::ValidatedEarly, 1, tree, |tree| {
        tree.split_leaf(&tree.nodes[1], 0, 3);
    });
}
