//! Every kind of spatial index against a list of records.

use super::Visits;
use crate::engines::damage::{Words, is_damaged};
use crate::engines::image::crash;
use crate::{
    Box2, Box3, Geometry, Point2, Point3, Pool, PoolOptions, Spatial, SpatialKind, SpatialOptions,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// Random geometries of one type, in a square or cube of side `side`.
trait Random: Geometry {
    fn at_random(random: &mut SmallRng, side: u64) -> Self;
    fn everything() -> Self::Window;
    fn around(random: &mut SmallRng, side: u64) -> Self::Window;
}

fn coordinate(random: &mut SmallRng, side: u64) -> f64 {
    random.random_range(0..side) as f64 / 4.0 - side as f64 / 8.0
}

impl Random for Point2 {
    fn at_random(random: &mut SmallRng, side: u64) -> Self {
        Self::new(coordinate(random, side), coordinate(random, side))
    }

    fn everything() -> Box2 {
        let inf = f64::INFINITY;
        Box2::new(Self::new(-inf, -inf), Self::new(inf, inf))
    }

    fn around(random: &mut SmallRng, side: u64) -> Box2 {
        Box2::at_random(random, side)
    }
}

impl Random for Box2 {
    fn at_random(random: &mut SmallRng, side: u64) -> Self {
        let low = Point2::at_random(random, side);
        let more = Point2::at_random(random, side / 8 + 1);
        Self::new(low, Point2::new(low.x + more.x.abs(), low.y + more.y.abs()))
    }

    fn everything() -> Self {
        Point2::everything()
    }

    fn around(random: &mut SmallRng, side: u64) -> Self {
        Self::at_random(random, side)
    }
}

impl Random for Point3 {
    fn at_random(random: &mut SmallRng, side: u64) -> Self {
        let [x, y, z] = [0; 3].map(|_: u8| coordinate(random, side));
        Self::new(x, y, z)
    }

    fn everything() -> Box3 {
        let inf = f64::INFINITY;
        Box3::new(Self::new(-inf, -inf, -inf), Self::new(inf, inf, inf))
    }

    fn around(random: &mut SmallRng, side: u64) -> Box3 {
        Box3::at_random(random, side)
    }
}

impl Random for Box3 {
    fn at_random(random: &mut SmallRng, side: u64) -> Self {
        let low = Point3::at_random(random, side);
        let more = Point3::at_random(random, side / 8 + 1);
        let high = Point3::new(
            low.x + more.x.abs(),
            low.y + more.y.abs(),
            low.z + more.z.abs(),
        );
        Self::new(low, high)
    }

    fn everything() -> Self {
        Point3::everything()
    }

    fn around(random: &mut SmallRng, side: u64) -> Self {
        Self::at_random(random, side)
    }
}

fn sorted<G: Geometry>(mut records: Vec<(G, u64)>) -> Vec<(G, u64)> {
    let key = |(shape, payload): &(G, u64)| {
        let words: Vec<u64> = (0..G::COORDINATES)
            .map(|i| shape.coordinate(i).to_bits())
            .collect();
        (*payload, words)
    };
    records.sort_unstable_by_key(key);
    records
}

fn window_of<G: Geometry>(index: &Spatial<G>, window: G::Window) -> Vec<(G, u64)> {
    let found = index.intersecting(window).unwrap();
    sorted(found.map(|record| (record.shape, record.payload)).collect())
}

fn meets<G: Geometry>(window: &G::Window, shape: &G) -> bool {
    crate::spatial::Rect::of(window).intersects(&crate::spatial::Rect::of(shape))
}

/// Every kind of index that can hold `G`, not on the sphere, as it is and with all that can be chosen at its ends.
fn all_options<G: Geometry>() -> Vec<SpatialOptions> {
    let kinds = SpatialKind::all().iter().copied();
    let all = kinds.flat_map(|kind| {
        let default = SpatialOptions::from(kind);
        SpatialOptions::extremes(kind).into_iter().chain([default])
    });
    let is_of_the_plane = |options: &SpatialOptions| {
        let pool = Pool::in_memory().unwrap();
        options.get("coordinates").as_deref() == Some("plane")
            && pool.spatial_with::<G>("s", options.clone()).is_ok()
    };
    all.filter(is_of_the_plane).collect()
}

/// Random changes and searches, across closings and crashes of the pool.
fn changes_and_searches<G: Random>(options: &SpatialOptions, seed: u64, side: u64, steps: usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let mut pool = PoolOptions::new().create(&path).unwrap();
    let mut index = pool.spatial_with::<G>("s", options.clone()).unwrap();
    let mut model: Vec<(G, u64)> = Vec::new();
    for step in 0..steps {
        // Grows at first, and shrinks at the end.
        let growing = random.random_range(0_usize..steps * 2) > step;
        let at = random.random_range(0..model.len().max(1));
        match random.random_range(0..100) {
            0..60 if growing || model.is_empty() => {
                let (shape, payload) = (G::at_random(&mut random, side), random.random_range(0..4));
                index.insert(shape, payload).unwrap();
                model.push((shape, payload));
            }
            0..60 => {
                let (shape, payload) = model.swap_remove(at);
                assert!(
                    index.remove(shape, payload).unwrap(),
                    "{shape:?} {payload} is not there"
                );
            }
            60..80 if !model.is_empty() => {
                let (from, payload) = model[at];
                let to = G::at_random(&mut random, side);
                assert!(index.relocate(payload, from, to).unwrap());
                model[at].0 = to;
            }
            80..96 => {
                let window = G::around(&mut random, side);
                let expected: Vec<_> = model
                    .iter()
                    .filter(|(shape, _)| meets::<G>(&window, shape))
                    .copied()
                    .collect();
                assert_eq!(window_of(&index, window), sorted(expected));
            }
            96 => assert!(!index.remove(G::at_random(&mut random, side), 77).unwrap()),
            97 if random.random_range(0..8_u32) == 0 => {
                drop(index);
                pool = reopen(pool, &path, random.random());
                index = pool.open_spatial("s").unwrap();
            }
            _ => {}
        }
    }
    assert_eq!(window_of(&index, G::everything()), sorted(model.clone()));
    assert_eq!(index.check().unwrap(), [""; 0]);
    assert_eq!(index.len().unwrap(), model.len() as u64);
    for (shape, payload) in model {
        assert!(index.remove(shape, payload).unwrap());
    }
    assert_eq!(index.check().unwrap(), [""; 0]);
    assert!(index.is_empty().unwrap());
    drop(index);
    pool.shrink().unwrap();
    assert_eq!(pool.check(), [""; 0]);
}

fn reopen(pool: Pool, path: &std::path::Path, cleanly: bool) -> Pool {
    if cleanly {
        pool.close().unwrap();
    } else {
        crash(path, || drop(pool));
    }
    PoolOptions::new().open(path).unwrap()
}

fn changes_and_searches_with_all_options<G: Random>(seed: u64, side: u64) {
    for options in all_options::<G>() {
        changes_and_searches::<G>(&options, seed, side, 2_000);
    }
}

#[test]
fn points_and_boxes_are_found_whatever_happened_before() {
    for (seed, side) in [(1, 4), (2, 40), (3, 4_000), (4, 1 << 40)] {
        changes_and_searches_with_all_options::<Point2>(seed, side);
        changes_and_searches_with_all_options::<Box2>(seed, side);
        changes_and_searches_with_all_options::<Point3>(seed, side);
        changes_and_searches_with_all_options::<Box3>(seed, side);
    }
}

#[test]
fn loaded_records_are_found_and_change() {
    for options in all_options::<Point2>() {
        loaded_records_are_found(&options);
    }
}

fn loaded_records_are_found(options: &SpatialOptions) {
    let mut random = SmallRng::seed_from_u64(5);
    let pool = Pool::in_memory().unwrap();
    let index = pool.spatial_with::<Point2>("s", options.clone()).unwrap();
    let model: Vec<(Point2, u64)> = (0..20_000)
        .map(|i| (Point2::at_random(&mut random, 1 << 20), i % 3))
        .collect();
    index.bulk_load(model.clone(), 0.7).unwrap();
    assert_eq!(index.check().unwrap(), [""; 0]);
    assert_eq!(
        window_of(&index, Point2::everything()),
        sorted(model.clone())
    );
    for (shape, payload) in &model {
        assert!(index.remove(*shape, *payload).unwrap());
    }
    assert!(index.is_empty().unwrap());
    index.bulk_load(model, 0.7).unwrap();
    assert_eq!(index.len().unwrap(), 20_000);
    assert_eq!(index.check().unwrap(), [""; 0]);
}

/// One geometry with one payload, so often that the records fill many leaves.
#[test]
fn equal_records_are_counted() {
    for &kind in SpatialKind::all() {
        let pool = Pool::in_memory().unwrap();
        let index = pool.spatial_with::<Point2>("s", kind).unwrap();
        let at = Point2::new(3.0, 4.0);
        for _ in 0..5_000 {
            index.insert(at, 7).unwrap();
        }
        assert_eq!(index.check().unwrap(), [""; 0]);
        assert_eq!(window_of(&index, Point2::everything()).len(), 5_000);
        for left in (0..5_000).rev() {
            assert!(index.remove(at, 7).unwrap());
            if left % 1_000 == 0 {
                assert_eq!(index.check().unwrap(), [""; 0]);
            }
        }
        assert!(!index.remove(at, 7).unwrap());
    }
}

/// The sweep changes the inner nodes while searches come by.
#[test]
fn a_search_beside_the_sweep_finds_every_record_once() {
    for &kind in SpatialKind::all() {
        searches_beside_the_sweep(kind);
    }
}

fn searches_beside_the_sweep(kind: SpatialKind) {
    const RECORDS: u64 = 300;
    let directory = tempfile::tempdir().unwrap();
    let (path, image) = (
        directory.path().join("a.pool"),
        directory.path().join("b.pool"),
    );
    let pool = PoolOptions::new().create(&path).unwrap();
    let index = pool.spatial_with::<Point2>("s", kind).unwrap();
    let mut random = SmallRng::seed_from_u64(6);
    for payload in 0..RECORDS {
        index
            .insert(Point2::at_random(&mut random, 1 << 30), payload)
            .unwrap();
    }
    for _ in 0..if cfg!(debug_assertions) { 20 } else { 80 } {
        std::fs::copy(&path, &image).unwrap();
        let pool = PoolOptions::new().open(&image).unwrap();
        let index = pool.open_spatial::<Point2>("s").unwrap();
        for _ in 0..6 {
            let found = index.intersecting(Point2::everything()).unwrap();
            let mut payloads: Vec<u64> = found.map(|record| record.payload).collect();
            payloads.sort_unstable();
            assert!(payloads.into_iter().eq(0..RECORDS));
        }
    }
}

/// Squares of such distances are denormal numbers as f32.
#[test]
fn the_nearest_of_very_near_records_are_found() {
    for &kind in SpatialKind::all() {
        let pool = Pool::in_memory().unwrap();
        let index = pool.spatial_with::<Point2>("s", kind).unwrap();
        for i in 0..200_u64 {
            index.insert(Point2::new(i as f64 * 1e-21, 0.0), i).unwrap();
        }
        for within in [0.0, 1e-21, 3.5e-21, 1e-19] {
            let nearest = index
                .nearest(Point2::new(0.0, 0.0))
                .unwrap()
                .within(within)
                .unwrap();
            let wanted = (0..200_u64).filter(|&i| i as f64 * 1e-21 <= within);
            assert!(nearest.map(|found| found.unwrap().1.payload).eq(wanted));
        }
    }
}

/// Two links to one node make an index useless that has its nodes in the pool, once the sweep has seen it: the records below are there twice, others not at
/// all. `root_of` says where the root of the tree is, in the file.
pub(in crate::engines) fn expect_a_node_that_is_linked_twice_to_be_refused(
    options: impl Into<SpatialOptions>,
    root_of: impl Fn(&Words) -> u64,
) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.pool");
    let pool = Pool::create(&path).unwrap();
    let index = pool.spatial_with::<Point2>("s", options).unwrap();
    let shape = |number: u64| Point2::new((number % 47) as f64, (number / 47) as f64);
    index
        .bulk_load((0..2_000).map(|number| (shape(number), number)), 0.7)
        .unwrap();
    drop(index);
    pool.close().unwrap();
    let file = Words::open(&path);
    // An entry is a box and the offset of the child.
    let child = |slot: u64| root_of(&file) + 32 + slot * 40 + 32;
    file.set(child(1), file.get(child(0)));

    let pool = Pool::open(&path).unwrap();
    let index = pool.open_spatial::<Point2>("s").unwrap();
    assert!(is_damaged(index.warm_up()));
    let everything = <Point2 as Random>::everything();
    assert!(is_damaged(index.intersecting(everything)));
    let nearest = index.nearest(shape(0)).unwrap().next().unwrap();
    assert!(is_damaged(nearest));
    assert!(is_damaged(index.insert(shape(1), 1)));
    assert!(is_damaged(index.remove(shape(1), 1)));
    assert_eq!(index.check().unwrap().len(), 1);
}

#[test]
fn more_nodes_than_blocks_are_damage() {
    let pool = Pool::in_memory().unwrap();
    drop(pool.map::<u64, u64>("m").unwrap());
    let space = pool.core().space(0, 1024).unwrap();
    let mut visits = Visits::new(&space);
    for _ in 0..space.most_blocks() {
        visits.count().unwrap();
    }
    assert!(is_damaged(visits.count()));
}
