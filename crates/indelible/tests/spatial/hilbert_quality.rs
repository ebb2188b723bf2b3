//! How many leaves a window meets, whatever the order in which points are inserted.

use crate::costs::mix;
use crate::stop::StopAtEnd;
use indelible::{Box2, HilbertOptions, Point2, Pool, Spatial};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const POINTS: u64 = 100_000;

/// The side of a window that holds 24 points on average.
const SIDE: f64 = 0.015_491_933;

/// A point of the unit square; points are spread evenly.
fn place(i: u64) -> [f64; 2] {
    let bits = mix(i);
    let unit = |bits: u64| (bits & 0xffff_ffff) as f64 / (1u64 << 32) as f64;
    [unit(bits >> 32), unit(bits)]
}

/// Leaves whose boxes meet a window of this side, on average over all places of the window.
fn leaves_per_window(options: HilbertOptions, points: &[[f64; 2]]) -> f64 {
    let pool = Pool::in_memory().unwrap();
    let index = pool.spatial_with::<Point2>("s", options).unwrap();
    for (payload, &[x, y]) in (0..).zip(points) {
        index.insert(Point2::new(x, y), payload).unwrap();
    }
    assert_eq!(index.len().unwrap(), points.len() as u64);
    leaves_met(&index, 0.0)
}

/// The same, in the unit square moved by `by` along both axes.
fn leaves_met(index: &Spatial<Point2>, by: f64) -> f64 {
    assert_eq!(index.check().unwrap(), [""; 0]);
    // Only windows in the square.
    let within = |x: f64| (x - by).clamp(0.0, 1.0);
    let length = |low: f64, high: f64| within(high) - within(low) + SIDE;
    let meeting = |(leaf, _): (Box2, usize)| {
        let (low, high) = (leaf.low, leaf.high);
        length(low.x, high.x) * length(low.y, high.y)
    };
    index.leaves().unwrap().into_iter().map(meeting).sum()
}

#[test]
fn the_order_of_inserts_costs_few_leaves() {
    let random: Vec<[f64; 2]> = (0..POINTS).map(place).collect();
    let sorted_by = |key: fn(&[f64; 2]) -> f64| {
        let mut points = random.clone();
        points.sort_by(|a, b| key(a).total_cmp(&key(b)));
        points
    };
    let columns = |[x, y]: [f64; 2]| [(x * 300.0).floor() / 300.0, y];
    let orders = [
        ("in no order", random.clone()),
        ("from west to east", sorted_by(|[x, _]| *x)),
        ("from north to south", sorted_by(|[_, y]| -y)),
        ("column by column", {
            let mut points: Vec<_> = random.iter().copied().map(columns).collect();
            points.sort_by(|a, b| a.partial_cmp(b).unwrap());
            points
        }),
        (
            "from the middle outwards",
            sorted_by(|[x, y]| (x - 0.5).hypot(y - 0.5)),
        ),
        (
            "tile by tile",
            sorted_by(|[x, y]| (x * 30.0).floor() * 30.0 + (y * 30.0).floor()),
        ),
    ];
    for (order, points) in orders {
        let square = Box2::new(Point2::new(0.0, 0.0), Point2::new(1.0, 1.0));
        let declared = leaves_per_window(HilbertOptions::default().extent(square), &points);
        let learned = leaves_per_window(HilbertOptions::default(), &points);
        println!(
            "{order}: {declared:.2} leaves in a declared extent, {learned:.2} in a learned one"
        );
        assert!(
            learned <= 1.15 * declared,
            "{order}: {learned:.2} leaves per window, {declared:.2} with a declared extent"
        );
    }
}

/// Once, a single record far away, among the first, made a window of 300,000 points as slow as one of all of them.
#[test]
fn first_records_far_away_cost_few_leaves() {
    const FAR: [f64; 4] = [1e6, 1e9, 1e300, f64::INFINITY];
    let points: Vec<[f64; 2]> = (0..POINTS / 4).map(place).collect();
    let without = leaves_per_window(HilbertOptions::default(), &points);
    let with = |outliers: &[[f64; 2]], at: usize| {
        let mut points = points.clone();
        points.splice(at..at, outliers.iter().copied());
        leaves_per_window(HilbertOptions::default(), &points)
    };
    for far in FAR {
        // Several of the first leaf's records are too many to be left out when it splits.
        for outliers in [&[[far, 0.5]][..], &[[far, far]], &[[far, -far]; 7]] {
            for at in [0, 20, 700] {
                let leaves = with(outliers, at);
                assert!(
                    leaves <= 1.2 * without,
                    "{outliers:?} at {at}: {leaves:.2} leaves per window, {without:.2} without them"
                );
            }
        }
    }
}

/// Once, the grid of the records that had been removed stayed: all that was loaded lay in one cell, in no order.
#[test]
fn a_load_into_an_emptied_index_does_not_depend_on_what_was_there() {
    let loaded = |index: &Spatial<Point2>, by: f64| {
        let points = (0..POINTS / 4).map(|payload| {
            let [x, y] = place(payload);
            (Point2::new(x + by, y + by), payload)
        });
        index.bulk_load(points, 0.7).unwrap();
        leaves_met(index, by)
    };
    let without = loaded(&Pool::in_memory().unwrap().spatial("s").unwrap(), 0.0);
    for count in [50, 500, 5_000] {
        let index = Pool::in_memory().unwrap().spatial("s").unwrap();
        for number in 0..count {
            let [x, y] = place(number);
            index.insert(Point2::new(x, y), number).unwrap();
        }
        // More often than there are grids.
        for round in 0..20 {
            index.clear().unwrap();
            let by = f64::from(round % 2) * 1e6;
            let leaves = loaded(&index, by);
            assert!(
                leaves <= 1.2 * without || round > 10,
                "after {count} inserts and {round} loads {leaves:.2} leaves per window, {without:.2} in a new index"
            );
        }
    }
}

/// Points that come from west to east, so that the extent is learned again while others search.
#[test]
fn searches_beside_a_change_of_the_grid_miss_nothing_and_find_nothing_twice() {
    const INSERTED: u64 = 3_000;
    let everything = Box2::new(
        Point2::new(f64::NEG_INFINITY, f64::NEG_INFINITY),
        Point2::new(f64::INFINITY, f64::INFINITY),
    );
    let place = |i: u64| Point2::new(i as f64, (mix(i) % 1_000) as f64);
    for _ in 0..20 {
        let pool = Pool::in_memory().unwrap();
        let index = pool
            .spatial_with::<Point2>("s", HilbertOptions::default())
            .unwrap();
        let there = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 0..INSERTED {
                    index.insert(place(i), i).unwrap();
                    there.store(i + 1, Ordering::Release);
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut before = 0;
                    while before < INSERTED {
                        before = there.load(Ordering::Acquire);
                        let found = index.intersecting(everything).unwrap();
                        let mut payloads: Vec<u64> = found.map(|record| record.payload).collect();
                        payloads.sort_unstable();
                        // Of those that come meanwhile any may be found.
                        assert!(payloads.iter().copied().take(before as usize).eq(0..before));
                        assert!(payloads.is_sorted_by(|a, b| a < b), "found twice");
                        if let Some(bounds) = index.bounds().unwrap() {
                            assert!(bounds.high.x + 1.0 >= before as f64);
                        }
                        let leaves = index.leaves().unwrap().into_iter();
                        let counted: usize = leaves.map(|(_, records)| records).sum();
                        assert!(counted as u64 >= before);
                    }
                });
            }
        });
        assert_eq!(index.check().unwrap(), [""; 0]);
    }
}

/// Leaves run empty and are merged all the time. Once, a search that was longer than a time slice began again each time that many leaves had been merged, and never
/// came to its end.
#[test]
fn searches_of_all_records_end_beside_writers_whose_leaves_are_merged() {
    const THERE: u64 = 400_000;
    const OWN: u64 = 8_000;
    const MERGERS: u64 = 6;
    let spot = |number: u64| Point2::from(place(number));
    let pool = Pool::in_memory().unwrap();
    let spatial = pool.spatial::<Point2>("s").unwrap();
    let there = (0..THERE).map(|number| (spot(number), number));
    spatial.bulk_load(there, 0.7).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for merger in 0..MERGERS {
            let (spatial, stop) = (&spatial, &stop);
            scope.spawn(move || {
                let corner = |number| {
                    let [x, y] = place(number + merger * OWN);
                    Point2::new(x / 20.0 + merger as f64 / 10.0, y / 20.0)
                };
                let own = (0..OWN).map(|number| (corner(number), THERE + number));
                let own: Vec<(Point2, u64)> = own.collect();
                while !stop.load(Ordering::Relaxed) {
                    own.iter().for_each(|&(place, payload)| {
                        spatial.insert(place, payload).unwrap();
                    });
                    own.iter().for_each(|&(place, payload)| {
                        assert!(spatial.remove(place, payload).unwrap());
                    });
                }
            });
        }
        let _stop = StopAtEnd(&stop);
        for _ in 0..3 {
            let found = spatial.intersecting(Box2::EVERYTHING).unwrap();
            assert!(found.len() as u64 >= THERE);
            assert!(spatial.bounds().unwrap().is_some());
            let leaves = spatial.leaves().unwrap().into_iter();
            assert!(leaves.map(|(_, records)| records as u64).sum::<u64>() >= THERE);
        }
    });
}
