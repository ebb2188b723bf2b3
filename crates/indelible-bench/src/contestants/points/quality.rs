//! The quality of spatial indexes: how many leaves a window meets, beside an R*-tree with leaves of as many records.
//!
//! The number of leaves is counted from their boxes, so it depends on no machine. `INDELIBLE_POINTS` sets the number of points, and has all kinds of
//! index compared; the short form compares the default kind with what an R*-tree needed when the long form grew one.

use crate::data::points::{Point, point, window, window_side};
use crate::data::{PointSet, Source, generate};
use indelible::{Point2, Pool, SpatialKind};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rstar::primitives::GeomWithData;
use rstar::{AABB, Envelope, ParentNode, RStarInsertionStrategy, RTree, RTreeNode, RTreeParams};

const WINDOWS: usize = 1_000;
const HITS: u32 = 24;

/// An R*-tree whose nodes are as large as a leaf of ours, with the shares that its authors advise.
struct LargeNodes;

impl RTreeParams for LargeNodes {
    const MIN_SIZE: usize = 16;
    const MAX_SIZE: usize = 41;
    const REINSERTION_COUNT: usize = 12;
    type DefaultInsertionStrategy = RStarInsertionStrategy;
}

type Record = GeomWithData<Point, u64>;
type Leaf = AABB<Point>;

/// What is inserted, and what is removed again, in this order.
#[derive(Clone, Copy)]
enum Change {
    Insert(u64),
    Remove(u64),
}

fn leaves_of_an_r_star_tree(changes: &[Change]) -> Vec<Leaf> {
    let mut tree = RTree::<Record, LargeNodes>::new_with_params();
    for change in changes {
        match *change {
            Change::Insert(key) => tree.insert(Record::new(point(key), key)),
            Change::Remove(key) => {
                assert!(tree.remove(&Record::new(point(key), key)).is_some());
            }
        }
    }
    let mut leaves = Vec::new();
    let mut nodes: Vec<&ParentNode<Record>> = vec![tree.root()];
    while let Some(node) = nodes.pop() {
        let mut is_leaf = false;
        for child in node.children() {
            match child {
                RTreeNode::Leaf(_) => is_leaf = true,
                RTreeNode::Parent(parent) => nodes.push(parent),
            }
        }
        if is_leaf {
            leaves.push(node.envelope());
        }
    }
    leaves
}

fn leaves_of_ours(kind: SpatialKind, changes: &[Change]) -> Vec<Leaf> {
    let pool = Pool::in_memory().unwrap();
    let index = pool.spatial_with::<Point2>("s", kind).unwrap();
    let place = |key| {
        let [x, y] = point(key);
        Point2::new(x, y)
    };
    for change in changes {
        match *change {
            Change::Insert(key) => index.insert(place(key), key).unwrap(),
            Change::Remove(key) => assert!(index.remove(place(key), key).unwrap()),
        }
    }
    let leaves = index.leaves().unwrap().into_iter();
    let corners = leaves.map(|(leaf, _)| ([leaf.low.x, leaf.low.y], [leaf.high.x, leaf.high.y]));
    corners
        .map(|(low, high)| AABB::from_corners(low, high))
        .collect()
}

/// Leaves that a window meets, on average.
fn leaves_per_window(leaves: &[Leaf], windows: &[Leaf]) -> f64 {
    let met = windows
        .iter()
        .map(|window| leaves.iter().filter(|leaf| leaf.intersects(window)).count());
    met.sum::<usize>() as f64 / windows.len() as f64
}

/// Inserts in no order, sorted inserts, and inserts after which half of the points go and as many others come.
fn orders(first: &[u64], later: &[u64]) -> [(&'static str, Vec<Change>); 3] {
    let inserts: Vec<Change> = first.iter().copied().map(Change::Insert).collect();
    let mut sorted = first.to_vec();
    sorted.sort_unstable();
    let replaced = first.iter().zip(&later[..first.len() / 2]);
    let churn = replaced.flat_map(|(&old, &new)| [Change::Remove(old), Change::Insert(new)]);
    [
        ("in no order", inserts.clone()),
        (
            "from west to east",
            sorted.into_iter().map(Change::Insert).collect(),
        ),
        ("half replaced", inserts.into_iter().chain(churn).collect()),
    ]
}

/// Points of the short form, all of cities.
const SHORT_POINTS: usize = 30_000;

/// Leaves of the R*-tree that a window of the short form meets, for each of the [`orders`], as the long form prints them
/// (`INDELIBLE_POINTS=30000`, rstar 0.12.2). To grow the three trees takes ten times as long as all else of the short form.
const R_STAR_TREE: [f64; 3] = [2.42, 2.525, 2.425];

/// How many times as many leaves as in an R*-tree a window may meet. The aim is 1.15; 1.15 to 1.27 when this was written.
const MOST: f64 = 1.3;

#[test]
fn windows_meet_about_as_few_leaves_as_in_an_r_star_tree() {
    let sets = [PointSet::Cities, PointSet::Uniform];
    let long = std::env::var("INDELIBLE_POINTS").ok();
    let (points, kinds, sets) = match &long {
        Some(points) => (
            points.parse().expect("a number"),
            SpatialKind::all(),
            &sets[..],
        ),
        None => (SHORT_POINTS, &[SpatialKind::default()][..], &sets[..1]),
    };
    let mut too_many = Vec::new();
    for set in sets {
        let sorted = generate(&Source::Points(set.clone()), 3 * points / 2, 7).unwrap();
        let mut all = sorted.clone();
        all.shuffle(&mut SmallRng::seed_from_u64(7));
        let (first, later) = all.split_at(points);
        let side = window_side(first, &sorted, HITS);
        let around = |&centre: &u64| {
            let (low, high) = window(centre, side);
            AABB::from_corners(low, high)
        };
        let windows: Vec<Leaf> = first.iter().rev().take(WINDOWS).map(around).collect();
        for ((order, changes), recorded) in orders(first, later).into_iter().zip(R_STAR_TREE) {
            let star = match long {
                Some(_) => leaves_per_window(&leaves_of_an_r_star_tree(&changes), &windows),
                None => recorded,
            };
            for &kind in kinds {
                let ours = leaves_per_window(&leaves_of_ours(kind, &changes), &windows);
                let times = ours / star;
                println!("{set:?}, {order}: {kind} {ours:.2}, R*-tree {star:.4}: {times:.2} times");
                if kind == SpatialKind::default() && times > MOST {
                    too_many.push(format!("{set:?}, {order}, {kind}: {times}"));
                }
            }
        }
    }
    assert!(too_many.is_empty(), "{too_many:#?}");
}
