//! Bulk loads beside other threads.

use indelible::{Box2, Point2, PoolOptions, Spatial, SpatialKind};
use std::collections::BTreeMap;

const RECORDS: u64 = 40_000;
const ROUNDS: u64 = 6;
/// Changes of the other thread, which begin when the index is loaded.
const CHANGES: u64 = 2_000;

type Model = BTreeMap<u64, Point2>;

/// Places on a line, so that neighbours have numbers one after the other.
fn place(number: u64) -> Point2 {
    Point2::new(number as f64, 0.0)
}

fn everything() -> Box2 {
    Box2::new(Point2::new(-1.0, -1.0), Point2::new(1e9, 1.0))
}

/// Removes neighbours as soon as there are some, so that leaves are merged.
fn remove(index: &Spatial<Point2>, model: &mut Model) {
    for number in RECORDS - CHANGES..RECORDS {
        while !index.remove(place(number), number).unwrap() {
            std::hint::spin_loop();
        }
        model.remove(&number);
    }
}

/// Adds records to full leaves as soon as there are some, so that they are split.
fn insert(index: &Spatial<Point2>, model: &mut Model) {
    while index.at_point(place(0)).unwrap().next().is_none() {
        std::hint::spin_loop();
    }
    for number in RECORDS..RECORDS + CHANGES {
        let at = place(2 * RECORDS - number);
        index.insert(at, number).unwrap();
        model.insert(number, at);
    }
}

/// A writer that changes a leaf removes the signpost to it. It must not be recorded after that.
#[test]
fn an_index_that_is_changed_while_it_is_loaded_is_whole_when_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let records = || (0..RECORDS).map(|number| (place(number), number));
    let rounds = (0..ROUNDS).map(|round| [remove, insert][round as usize % 2]);
    for (round, change) in rounds.enumerate() {
        for &kind in SpatialKind::all() {
            let path = directory.path().join(format!("{round}{kind}"));
            let pool = PoolOptions::new().create(&path).unwrap();
            let index = pool.spatial_with::<Point2>("s", kind).unwrap();
            let mut model: Model = records().map(|(at, number)| (number, at)).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| change(&index, &mut model));
                index.bulk_load(records(), 1.0).unwrap();
            });
            assert_eq!(index.check().unwrap(), [""; 0]);
            drop(index);
            pool.close().unwrap();
            let pool = PoolOptions::new().open(&path).unwrap();
            let index = pool.spatial_with::<Point2>("s", kind).unwrap();
            for (number, at) in &model {
                let mut there = index.at_point(*at).unwrap();
                let is_there = there.any(|found| found.payload == *number);
                assert!(is_there, "{kind}, round {round}: {number}");
            }
            assert_eq!(
                index.intersecting(everything()).unwrap().count(),
                model.len()
            );
            assert_eq!(index.check().unwrap(), [""; 0]);
        }
    }
}
