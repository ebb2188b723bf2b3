//! Ranges that are indexed on demand, and a grid that is learned again, beside inserts.
//!
//! The range is one of two leaves behind a leaf that is indexed, or of all three. What indexes it does with the bottom node what `recover` does, and what
//! learns the grid takes the locks of `learn` and fills the nodes again.

use super::{CODES, FANOUT, NEW, Node, OLD, Tree, box_from, check};
use crate::concurrency::sync::atomic::{AtomicU32, Ordering};
use crate::engines::arena::Node as _;
use crate::engines::hilbert::boxes::BoxNode;
use crate::engines::hilbert::inner::{Bounds, Child, Entry, Key, key_of};
use crate::engines::inner_nodes::{InnerNode, InnerTree};
use loom::sync::Mutex;
use std::sync::Arc;

/// As `Inner::set_child`.
fn set_child(bottom: &Node, slot: usize, child: Child) {
    let entry = Entry::leaf(0, child, Bounds::EVERYTHING);
    bottom.children[slot].store(entry.word, Ordering::Release);
}

/// The order in which leaves of a range get their separators.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// From right to left, and the first leaf last.
    Downwards,
    /// The first leaf first: those to its right are covered by nothing for a while.
    Upwards,
}

/// A tree with an unindexed range.
struct Range {
    tree: Arc<Tree>,
    /// The first leaf of the range; the last one is leaf 2.
    first: usize,
    indexing: Mutex<()>,
    order: Order,
}

impl Range {
    fn from(first: usize, order: Order) -> Arc<Self> {
        let all: Vec<usize> = (0..=first).collect();
        let tree = Tree::of(&[&all]);
        let (root, bottom) = (tree.root(), &tree.nodes[1]);
        set_child(
            bottom,
            first,
            Child::unindexed(bottom.child(first).offset()),
        );
        bottom.set_bounds(first, &Bounds::EVERYTHING);
        root.set_bounds(0, &Bounds::EVERYTHING);
        Arc::new(Self {
            tree,
            first,
            indexing: Mutex::new(()),
            order,
        })
    }

    /// As `index_around`, for the whole range.
    fn index(&self, key: Key) {
        let _indexing = self.indexing.lock().unwrap();
        if !self.child_of(key).is_unindexed() {
            return;
        }
        let later = self.first + 1..FANOUT;
        match self.order {
            Order::Downwards => {
                later.rev().for_each(|leaf| self.add_separator(leaf));
                self.mark_indexed();
            }
            Order::Upwards => {
                self.mark_indexed();
                later.for_each(|leaf| self.add_separator(leaf));
            }
        }
    }

    fn child_of(&self, key: Key) -> Child {
        loop {
            let (path, spot) = self.tree.way(key, None);
            if path.is_current() {
                return spot.child;
            }
        }
    }

    /// The box of what a leaf holds. No lock is needed: only who has `indexing` writes leaves of the range.
    fn box_of(&self, leaf: usize) -> Bounds {
        let low = self.tree.leaves[leaf].low.load(Ordering::Relaxed);
        box_from(f32::from_bits(low))
    }

    fn add_separator(&self, leaf: usize) {
        let entry = Entry {
            bounds: self.box_of(leaf),
            ..Tree::entry_of(leaf)
        };
        loop {
            let (_, spot) = self.tree.way(entry.key, None);
            if let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) {
                return spot.parent.insert(spot.slot, &entry);
            }
        }
    }

    fn mark_indexed(&self) {
        let low = Tree::entry_of(self.first).key;
        let child = Child::leaf(self.tree.nodes[1].child(self.first).offset(), false);
        loop {
            let (_, spot) = self.tree.way(low, None);
            if let Some(_parent) = spot.parent.lock().try_lock_at(spot.version) {
                set_child(spot.parent, spot.slot, child);
                return spot.parent.set_bounds(spot.slot, &self.box_of(self.first));
            }
        }
    }

    /// Inserts a record that begins at [`NEW`], once its leaf is indexed.
    fn insert(&self, code: u64) {
        let (key, bounds) = (key_of(code, 0), box_from(NEW));
        loop {
            let (path, spot) = self.tree.way(key, Some(&bounds));
            if spot.child.is_unindexed() {
                self.index(key);
                continue;
            }
            let leaf = self.tree.leaf(spot.child);
            if let Some(_guard) = path.lock_leaf(&leaf.lock) {
                return leaf.low.store(NEW.to_bits(), Ordering::Release);
            }
        }
    }
}

/// Runs an insert beside another thread that needs the range indexed; in all orders with at most one preemption, since with two it takes many minutes.
fn beside_another(first: usize, code: u64, order: Order) {
    check(1, move || {
        let range = Range::from(first, order);
        let writer = {
            let range = Arc::clone(&range);
            loom::thread::spawn(move || range.insert(code))
        };
        range.index(key_of(CODES * first as u64, 0));
        writer.join().unwrap();
        range.tree.assert_found_at_last(code);
        let leaf = range.tree.leaf(range.child_of(key_of(code, 0)));
        let own = &range.tree.leaves[(code / CODES) as usize];
        assert!(
            std::ptr::eq(leaf, own),
            "a record is in a leaf of another range"
        );
    });
}

#[test]
fn loom_an_insert_into_the_first_leaf_of_a_range_that_is_being_indexed() {
    beside_another(1, 11, Order::Downwards);
}

#[test]
fn loom_an_insert_into_another_leaf_of_a_range_that_is_being_indexed() {
    beside_another(1, 21, Order::Downwards);
}

#[test]
fn loom_an_insert_into_a_tree_that_is_one_range_that_is_being_indexed() {
    beside_another(0, 21, Order::Downwards);
}

#[test]
#[should_panic]
fn loom_leaves_that_are_covered_by_nothing_for_a_while_are_noticed() {
    beside_another(1, 21, Order::Upwards);
}

/// Who sees a record of the range finds boxes that contain it, also while the range is being indexed.
#[test]
fn loom_a_record_of_a_range_that_is_seen_lies_in_all_boxes_above() {
    check(2, || {
        let range = Range::from(1, Order::Downwards);
        let writer = {
            let range = Arc::clone(&range);
            loom::thread::spawn(move || range.insert(21))
        };
        range.tree.way(0, None).0.tighten();
        if range.tree.leaves[2].low.load(Ordering::Acquire) == NEW.to_bits() {
            range.tree.assert_found(21);
        }
        writer.join().unwrap();
        range.tree.assert_found_at_last(21);
    });
}

/// A tree of two leaves whose grid may change. Its record has another code in each of the two grids.
struct Gridded {
    tree: Arc<Tree>,
    /// As in `Grids`.
    number: AtomicU32,
}

const CODE_IN_GRID: [u64; 2] = [1, 41];

impl Gridded {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            tree: Tree::of(&[&[0, 1]]),
            number: AtomicU32::new(0),
        })
    }

    fn code(&self) -> (u32, u64) {
        let number = self.number.load(Ordering::Acquire);
        (number, CODE_IN_GRID[number as usize])
    }

    /// As `insert`: the number of the grid is compared when the leaf is locked, or not.
    fn insert(&self, compares: bool) {
        let bounds = box_from(NEW);
        loop {
            let (number, code) = self.code();
            let (path, spot) = self.tree.way(key_of(code, 0), Some(&bounds));
            let leaf = self.tree.leaf(spot.child);
            let Some(_guard) = path.lock_leaf(&leaf.lock) else {
                continue;
            };
            if !compares || self.number.load(Ordering::Acquire) == number {
                return leaf.low.store(NEW.to_bits(), Ordering::Release);
            }
        }
    }

    /// As `learn`: takes all locks, writes the records to leaves 3 and 4 and changes the grid; then the nodes follow, and the locks are released.
    fn learn(&self) {
        let (tree, root) = (&self.tree, self.tree.root());
        let _root = root.lock().lock();
        let bottom = BoxNode::node(root, 0);
        // An insert takes no lock of a node.
        let held = bottom.lock().try_lock().expect("nobody else locks it");
        let leaves = [0, 1].map(|slot| tree.leaf(bottom.child(slot)));
        let _leaves = leaves.map(|leaf| leaf.lock.lock());
        let is_there = leaves.map(|leaf| leaf.low.load(Ordering::Relaxed)) != [OLD.to_bits(); 2];
        if is_there {
            tree.leaves[4].low.store(NEW.to_bits(), Ordering::Relaxed);
        }
        self.number.store(1, Ordering::Release);
        let entries = [3, 4].map(|leaf| Entry {
            bounds: box_from(f32::from_bits(
                tree.leaves[leaf].low.load(Ordering::Relaxed),
            )),
            ..Tree::entry_of(leaf)
        });
        bottom.refill(&entries);
        let both = entries[0].bounds.join(entries[1].bounds);
        root.set_bounds(0, &both);
        drop(held);
    }
}

fn beside_a_grid_that_changes(compares: bool) {
    check(2, move || {
        let gridded = Gridded::new();
        let writer = {
            let gridded = Arc::clone(&gridded);
            loom::thread::spawn(move || gridded.insert(compares))
        };
        gridded.learn();
        writer.join().unwrap();
        let (number, code) = gridded.code();
        assert_eq!(number, 1);
        gridded.tree.assert_found_at_last(code);
    });
}

#[test]
fn loom_an_insert_beside_a_grid_that_changes() {
    beside_a_grid_that_changes(true);
}

#[test]
#[should_panic]
fn loom_an_insert_that_does_not_look_at_the_grid_again_is_noticed() {
    beside_a_grid_that_changes(false);
}
