//! What only the PM-RTree has: changes by many threads at once, counts beside the sweep, nodes that are merged.

use super::Tree;
use crate::concurrency::epochs;
use crate::engines::Place;
use crate::engines::damage::Words;
use crate::engines::rect::tests::expect_a_node_that_is_linked_twice_to_be_refused;
use crate::engines::rect::{Link, Record};
use crate::{Box2, PmRtreeOptions, Point2, Pool, PoolOptions, Spatial};
use std::path::Path;
use std::sync::Arc;
use std::thread;

const RECORDS: u64 = 2_000;

fn place(number: u64) -> Point2 {
    Point2::new((number * 37 % 1_009) as f64, (number * 91 % 977) as f64)
}

fn everything() -> Box2 {
    Box2::new(Point2::new(-1.0, -1.0), Point2::new(2e3, 2e3))
}

fn filled(pool: &Pool) -> Spatial<Point2> {
    let index = pool.spatial_with("s", PmRtreeOptions::default()).unwrap();
    for number in 0..RECORDS {
        index.insert(place(number), number).unwrap();
    }
    index
}

fn assert_has(index: &Spatial<Point2>, payloads: impl Iterator<Item = u64>) {
    let found = index.intersecting(everything()).unwrap();
    let mut found: Vec<u64> = found.map(|record| record.payload).collect();
    found.sort_unstable();
    let expected: Vec<u64> = payloads.collect();
    assert_eq!(found, expected);
    assert_eq!(index.len().unwrap(), expected.len() as u64);
    assert_eq!(index.check().unwrap(), [""; 0]);
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
fn records_are_counted_while_threads_change_them_beside_the_sweep() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = PoolOptions::new().create(&path).unwrap();
    let _index = filled(&pool);
    for _ in 0..8 {
        let pool = crashed(&path);
        let index = pool.open_spatial::<Point2>("s").unwrap();
        thread::scope(|scope| {
            for part in 0..3 {
                let index = &index;
                // Each thread has payloads of its own: removes one in two, moves one in two, and inserts as many as it has removed.
                scope.spawn(move || {
                    for number in (0..RECORDS).filter(|number| number % 3 == part) {
                        match number / 3 % 2 {
                            0 => {
                                assert!(index.remove(place(number), number).unwrap());
                                index.insert(place(number + 5), number).unwrap();
                            }
                            _ => assert!(
                                index
                                    .relocate(number, place(number), place(number * 7))
                                    .unwrap()
                            ),
                        }
                    }
                });
            }
        });
        assert_has(&index, 0..RECORDS);
        for number in (0..RECORDS).filter(|number| number / 3 % 2 == 0) {
            assert!(index.remove(place(number + 5), number).unwrap());
        }
        assert_has(&index, (0..RECORDS).filter(|number| number / 3 % 2 == 1));
    }
}

/// The sweep meets the node that has replaced another one, and ends, while the thread that has replaced it stands still before it retires the old one.
#[test]
fn a_node_that_left_the_tree_is_not_free_when_the_sweep_ends_before_it_is_retired() {
    const FEW: u64 = 4;
    let pool = Pool::in_memory().unwrap();
    let index = pool.spatial_with("s", PmRtreeOptions::default()).unwrap();
    for number in 0..FEW {
        index.insert(place(number), number).unwrap();
    }
    drop(index);
    let place = Place {
        core: Arc::clone(pool.core()),
        slot: pool.core().slots().next().unwrap(),
    };
    // Not opened by the host, which would sweep at once.
    let tree = Tree::<Point2>::open(&place).unwrap();
    {
        let _guard = epochs::pin();
        let root = tree.view(tree.root().unwrap()).unwrap();
        let entries: Vec<Record> = root.slots().map(|slot| root.entry(slot)).collect();
        let new = Link {
            offset: tree.space.alloc().unwrap(),
            level: root.level,
        };
        tree.fill(new.offset, new.level, &entries);
        let mut exchanges = [tree.freezing(&root), tree.rooting(root.link(), new)];
        assert!(tree.words.exchange_all(&mut exchanges).unwrap());
        assert!(tree.sweep(&|| true).unwrap());
        tree.space.finish_sweep();
        assert_eq!(tree.space.free_among(&[root.offset()]), []);
        assert_eq!(tree.locks.total(), FEW);
        tree.replaced(&root);
    }
    tree.space.settle();
    // The new root, and the descriptors.
    let used = 1 + tree.words.descriptor_blocks().len() as u64;
    assert_eq!(tree.space.stat().used_blocks, used);
    drop(tree);
    assert_has(&pool.open_spatial("s").unwrap(), 0..FEW);
}

#[test]
fn threads_that_move_the_same_records_lose_none() {
    let pool = Pool::in_memory().unwrap();
    let index = pool.spatial_with("s", PmRtreeOptions::default()).unwrap();
    const FEW: u64 = 40;
    for number in 0..FEW {
        index.insert(place(number), number).unwrap();
    }
    // The record of a payload is at one of two places; each thread moves it from wherever it is to the other one.
    let moved: u64 = thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let index = &index;
                scope.spawn(move || {
                    let mut moved = 0;
                    for round in 0..400 {
                        let number = (round * 7 + worker) % FEW;
                        let places = [place(number), place(number + 500)];
                        let (from, to) =
                            (places[round as usize % 2], places[1 - round as usize % 2]);
                        moved += u64::from(index.relocate(number, from, to).unwrap());
                    }
                    moved
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    assert!(moved > 0);
    assert_has(&index, 0..FEW);
}

#[test]
fn threads_that_remove_the_same_records_remove_each_once() {
    let pool = Pool::in_memory().unwrap();
    let index = filled(&pool);
    let removed: u64 = thread::scope(|scope| {
        let remove_all = || {
            let removed = (0..RECORDS).map(|number| index.remove(place(number), number).unwrap());
            removed.map(u64::from).sum::<u64>()
        };
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(remove_all)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    assert_eq!(removed, RECORDS);
    assert_has(&index, 0..0);
    index
        .bulk_load((0..RECORDS).map(|number| (place(number), number)), 0.7)
        .unwrap();
    assert_has(&index, 0..RECORDS);
}

#[test]
fn nodes_of_a_tree_that_has_become_thin_are_merged() {
    let pool = Pool::in_memory().unwrap();
    let index = filled(&pool);
    let before = fact(&index, "leaves");
    assert!(before > RECORDS / 50 && fact(&index, "height") > 0);
    for number in 0..RECORDS {
        if number % 10 > 0 {
            assert!(index.remove(place(number), number).unwrap());
        }
    }
    pool.shrink().unwrap();
    assert!(fact(&index, "leaves") < before / 3);
    assert_has(&index, (0..RECORDS).filter(|number| number % 10 == 0));
}

/// The descriptors of an index that was created behind another one move to the front, like nodes, when the other one has gone.
#[test]
fn descriptors_move_to_the_front() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = PoolOptions::new().create(&path).unwrap();
    let other = pool
        .spatial_with::<Point2>("other", PmRtreeOptions::default())
        .unwrap();
    let many = (0..200_000).map(|number| (place(number), number));
    other.bulk_load(many, 0.9).unwrap();
    let index = filled(&pool);
    let before = std::fs::metadata(&path).unwrap().len();
    drop(other);
    pool.drop_object("other").unwrap();
    pool.shrink().unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < before / 3);
    for number in 0..RECORDS {
        assert!(
            index
                .relocate(number, place(number), place(number + 3))
                .unwrap()
        );
    }
    assert_has(&index, 0..RECORDS);
    let after_crash = crashed(&path);
    assert_has(&after_crash.open_spatial("s").unwrap(), 0..RECORDS);
}

#[test]
fn a_node_that_is_linked_twice_is_damage() {
    let root_of = |file: &Words| Link::from_word(file.get(file.first_root())).offset.get();
    expect_a_node_that_is_linked_twice_to_be_refused(PmRtreeOptions::default(), root_of);
}
