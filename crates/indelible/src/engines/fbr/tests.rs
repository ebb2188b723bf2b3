//! What only the FBR-tree has: inner nodes in the pool, which are flushed or not.

use crate::engines::damage::{Words, is_damaged};
use crate::engines::rect::tests::expect_a_node_that_is_linked_twice_to_be_refused;
use crate::{Box2, FbrOptions, Point2, Pool, PoolOptions, Spatial};
use std::path::Path;

const RECORDS: u64 = 2_000;

fn place(number: u64) -> Point2 {
    Point2::new((number * 37 % 1_009) as f64, (number * 91 % 977) as f64)
}

fn everything() -> Box2 {
    Box2::new(Point2::new(-1.0, -1.0), Point2::new(2e3, 2e3))
}

fn filled(pool: &Pool, options: FbrOptions) -> Spatial<Point2> {
    let index = pool.spatial_with("s", options).unwrap();
    for number in 0..RECORDS {
        index.insert(place(number), number).unwrap();
    }
    index
}

fn assert_whole(index: &Spatial<Point2>) {
    assert_eq!(
        index.intersecting(everything()).unwrap().count() as u64,
        RECORDS
    );
    assert_eq!(index.check().unwrap(), [""; 0]);
    assert_eq!(index.len().unwrap(), RECORDS);
}

fn fact(index: &Spatial<Point2>, name: &str) -> u64 {
    index.stat().unwrap().fact(name).unwrap().value.as_u64()
}

/// The file as a crash would leave it now.
fn crashed(path: &Path) -> Pool {
    let image = path.with_extension("image");
    std::fs::copy(path, &image).unwrap();
    PoolOptions::new().open(&image).unwrap()
}

#[test]
fn inner_nodes_are_rebuilt_after_a_crash_if_leaves_alone_are_flushed() {
    for (options, is_rebuilt) in [
        (FbrOptions::default(), false),
        (FbrOptions::default().flush_leaves_only(), true),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.pool");
        let pool = PoolOptions::new().create(&path).unwrap();
        let index = filled(&pool, options);
        let leaves = fact(&index, "leaves");
        assert!(leaves > RECORDS / 50 && fact(&index, "height") > 0);
        let after_crash = crashed(&path);
        let found = after_crash.open_spatial("s").unwrap();
        assert_whole(&found);
        let expected = if is_rebuilt { leaves } else { 0 };
        assert_eq!(fact(&found, "rebuilt-from"), expected);
        assert_eq!(fact(&found, "rebuild-time") > 0, is_rebuilt);
        drop(index);
        pool.close().unwrap();
        let pool = PoolOptions::new().open_read_only(&path).unwrap();
        let found = pool.open_spatial("s").unwrap();
        assert_whole(&found);
        assert_eq!(fact(&found, "rebuilt-from"), 0);
    }
}

/// Without a crash too: the pool stays open.
#[test]
fn inner_nodes_are_believed_when_the_index_is_opened_again() {
    let pool = Pool::in_memory().unwrap();
    drop(filled(&pool, FbrOptions::default().flush_leaves_only()));
    let index = pool.open_spatial("s").unwrap();
    assert_eq!(fact(&index, "rebuilt-from"), 0);
    assert_whole(&index);
}

#[test]
fn a_tree_that_has_become_thin_is_built_anew() {
    let pool = Pool::in_memory().unwrap();
    let index = filled(&pool, FbrOptions::default());
    let before = fact(&index, "leaves");
    for number in 0..RECORDS {
        if number % 10 > 0 {
            assert!(index.remove(place(number), number).unwrap());
        }
    }
    pool.shrink().unwrap();
    assert!(fact(&index, "leaves") < before / 5);
    assert_eq!(index.check().unwrap(), [""; 0]);
    assert_eq!(index.len().unwrap(), RECORDS / 10);
}

/// Where the root block of the index is in the file, that of the first catalog entry.
fn root_block(file: &Words) -> u64 {
    file.get(file.first_root())
}

/// A change of the chain at the place that a damaged link names would take intact leaves out of the chain, from which the inner nodes are built anew.
#[test]
fn a_damaged_link_to_the_leaf_before_loses_no_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = PoolOptions::new().create(&path).unwrap();
    let options = FbrOptions::default().flush_leaves_only();
    let index = pool.spatial_with("s", options).unwrap();
    index
        .bulk_load((0..RECORDS).map(|number| (place(number), number)), 1.0)
        .unwrap();
    drop(index);
    pool.close().unwrap();
    let file = Words::open(&path);
    let head = file.get(root_block(&file) + 8);
    let leaves = std::iter::successors(Some(head), |leaf| Some(file.get(leaf + 8)));
    let leaves: Vec<u64> = leaves.take(6).collect();
    file.set(leaves[5] + 16, leaves[2]);

    let pool = PoolOptions::new().open(&path).unwrap();
    let index = pool.open_spatial::<Point2>("s").unwrap();
    // The leaf is full: where one of its records lies there is another one too many.
    let mut records = (0..4).map(|slot| {
        let [x, y] = [0, 8].map(|at| f64::from_bits(file.get(leaves[5] + 32 + slot * 24 + at)));
        Point2::new(x, y)
    });
    assert!(records.any(|shape| is_damaged(index.insert(shape, RECORDS))));
    let after_crash = crashed(&path);
    assert!(is_damaged(after_crash.open_spatial::<Point2>("s")));
}

#[test]
fn an_entry_in_use_that_a_node_does_not_have_is_damage() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = PoolOptions::new().create(&path).unwrap();
    let index = pool.spatial_with("s", FbrOptions::default()).unwrap();
    index.insert(place(0), 0).unwrap();
    drop(index);
    pool.close().unwrap();
    let file = Words::open(&path);
    let leaf = file.get(root_block(&file));
    file.set(leaf, file.get(leaf) | 1 << 47);
    let pool = PoolOptions::new().open(&path).unwrap();
    assert!(is_damaged(pool.open_spatial::<Point2>("s")));
}

#[test]
fn a_node_that_is_linked_twice_is_damage() {
    for options in [
        FbrOptions::default(),
        FbrOptions::default().flush_leaves_only(),
    ] {
        let root_of = |file: &Words| file.get(root_block(file));
        expect_a_node_that_is_linked_twice_to_be_refused(options, root_of);
    }
}
