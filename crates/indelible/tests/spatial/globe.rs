//! Longitudes and latitudes: windows across the antimeridian, metres, poles. Against a list that is searched by brute force.

use super::spatial_model::{Model, corners, metres_to, sorted};
use indelible::{Box2, Error, Geometry, Point2, Pool, Spatial, SpatialKind, SpatialOptions};
use proptest::prelude::*;

fn window(west: f64, south: f64, east: f64, north: f64) -> Box2 {
    Box2::new(Point2::new(west, south), Point2::new(east, north))
}

/// Degrees in steps of a half, so that sums with 360 are exact; often the antimeridian and the poles.
fn lon() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (-360..=360_i32).prop_map(|half| f64::from(half) / 2.0),
        1 => Just(180.0),
        1 => Just(-180.0),
        1 => Just(0.0),
    ]
}

fn lat() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (-180..=180_i32).prop_map(|half| f64::from(half) / 2.0),
        1 => Just(90.0),
        1 => Just(-90.0),
    ]
}

fn place() -> impl Strategy<Value = Point2> {
    (lon(), lat()).prop_map(|(lon, lat)| Point2::new(lon, lat))
}

/// A box, which does not cross the antimeridian: often a small one.
fn area() -> impl Strategy<Value = Box2> {
    let size = || prop_oneof![Just(0.0), Just(0.5), 0.0..400.0];
    (place(), size(), size()).prop_map(|(low, width, height)| {
        let east = (low.x + width).min(180.0);
        let north = (low.y + height).min(90.0);
        window(low.x, low.y, east, north)
    })
}

fn searched() -> impl Strategy<Value = Box2> {
    (lon(), lon(), lat(), lat())
        .prop_map(|(west, east, a, b)| window(west, a.min(b), east, a.max(b)))
}

/// The longitudes of a shape, moved by a turn, and those of a window from its western edge eastwards: whether they meet, and whether the
/// window contains the shape.
fn along<G: Geometry>(window: &Box2, shape: &G) -> (bool, bool) {
    let [[low, ..], [high, ..]] = corners(shape);
    let (west, mut east) = (window.low.x, window.high.x);
    if west > east {
        east += 360.0;
    }
    let turns = [-360.0, 0.0, 360.0].map(|turn| (low + turn, high + turn));
    let meets = turns
        .iter()
        .any(|(low, high)| *low <= east && west <= *high);
    let holds = turns
        .iter()
        .any(|(low, high)| west <= *low && *high <= east);
    (meets, holds)
}

fn meets<G: Geometry>(window: &Box2, shape: &G) -> bool {
    let [[_, south, _], [_, north, _]] = corners(shape);
    along(window, shape).0 && south <= window.high.y && window.low.y <= north
}

fn holds<G: Geometry>(window: &Box2, shape: &G) -> bool {
    let [[_, south, _], [_, north, _]] = corners(shape);
    along(window, shape).1 && window.low.y <= south && north <= window.high.y
}

fn pairs<G: Geometry>(found: indelible::Records<G>) -> Vec<(G, u64)> {
    sorted(found.map(|record| (record.shape, record.payload)))
}

fn assert_windows<G: Geometry<Point = Point2, Window = Box2>>(
    spatial: &Spatial<G>,
    model: &Model<G>,
    window: Box2,
) {
    let wanted = sorted(model.matching(|of| meets(&window, of)));
    assert_eq!(
        pairs(spatial.intersecting(window).unwrap()),
        wanted,
        "{window:?}"
    );
    let wanted = sorted(model.matching(|of| holds(&window, of)));
    assert_eq!(
        pairs(spatial.contained_in(window).unwrap()),
        wanted,
        "{window:?}"
    );
    let at = Box2::new(window.low, window.low);
    let wanted = sorted(model.matching(|of| meets(&at, of)));
    assert_eq!(
        pairs(spatial.at_point(window.low).unwrap()),
        wanted,
        "{at:?}"
    );
}

fn assert_metres<G: Geometry<Point = Point2, Window = Box2>>(
    spatial: &Spatial<G>,
    model: &Model<G>,
    from: Point2,
    within: f64,
) {
    let all = spatial.nearest(from).unwrap().map(Result::unwrap);
    let all: Vec<(f64, (G, u64))> = all.map(|(far, of)| (far, (of.shape, of.payload))).collect();
    assert_eq!(
        sorted(all.iter().map(|of| of.1)),
        sorted(model.records.clone())
    );
    for pair in all.windows(2) {
        assert!(pair[0].0 <= pair[1].0, "{pair:?}");
    }
    for (far, (shape, _)) in &all {
        let [least, most] = metres_to([from.x, from.y], shape);
        assert!(
            least <= *far && *far <= most,
            "{from:?} {shape:?}: {far} not in {least}..{most}"
        );
    }
    let near = all.iter().filter(|of| of.0 <= within).map(|of| of.1);
    assert_eq!(
        pairs(spatial.within_distance(from, within).unwrap()),
        sorted(near)
    );
    let near = spatial
        .nearest(from)
        .unwrap()
        .within(within)
        .unwrap()
        .map(Result::unwrap);
    let near: Vec<(f64, (G, u64))> = near
        .map(|(far, of)| (far, (of.shape, of.payload)))
        .collect();
    assert_eq!(near, all[..near.len()]);
    assert!(all[near.len()..].iter().all(|of| of.0 > within));
}

/// Every kind of index as it is for longitudes and latitudes, and with what can be chosen besides.
fn layouts() -> Vec<SpatialOptions> {
    let all = SpatialKind::all().iter().copied();
    let globes = all.flat_map(|kind| {
        let plain = SpatialOptions::from(kind)
            .set("coordinates", "lonlat")
            .unwrap();
        SpatialOptions::extremes(kind).into_iter().chain([plain])
    });
    globes
        .filter(|options| options.get("coordinates").as_deref() == Some("lonlat"))
        .collect()
}

fn run<G: Geometry<Point = Point2, Window = Box2>>(
    shapes: Vec<(G, u64)>,
    windows: Vec<Box2>,
    places: Vec<(Point2, f64)>,
) {
    for options in layouts() {
        let pool = Pool::in_memory().unwrap();
        let spatial = pool.spatial_with::<G>("s", options).unwrap();
        let mut model = Model::default();
        let (loaded, inserted) = shapes.split_at(shapes.len() / 2);
        spatial.bulk_load(loaded, 0.7).unwrap();
        for &(shape, payload) in inserted {
            spatial.insert(shape, payload).unwrap();
        }
        shapes
            .iter()
            .for_each(|&(shape, payload)| model.insert(shape, payload));
        for &window in &windows {
            assert_windows(&spatial, &model, window);
        }
        for &(from, within) in &places {
            assert_metres(&spatial, &model, from, within);
        }
        assert_eq!(spatial.check().unwrap(), [""; 0]);
    }
}

fn distances() -> impl Strategy<Value = Vec<(Point2, f64)>> {
    let metres = prop_oneof![
        Just(0.0),
        0.0..100_000.0,
        0.0..21_000_000.0,
        Just(f64::INFINITY)
    ];
    proptest::collection::vec((place(), metres), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn places_on_the_globe_are_found_as_in_a_list(
        places in proptest::collection::vec((place(), 0..9_u64), 0..120),
        windows in proptest::collection::vec(searched(), 1..8),
        distances in distances(),
    ) {
        run(places, windows, distances);
    }

    #[test]
    fn areas_on_the_globe_are_found_as_in_a_list(
        areas in proptest::collection::vec((area(), 0..9_u64), 0..60),
        windows in proptest::collection::vec(searched(), 1..8),
        distances in distances(),
    ) {
        run(areas, windows, distances);
    }
}

#[test]
fn what_is_not_on_the_globe_is_refused() {
    for options in layouts() {
        let pool = Pool::in_memory().unwrap();
        let places = pool.spatial_with::<Point2>("places", &options).unwrap();
        let areas = pool.spatial_with::<Box2>("areas", &options).unwrap();
        for bad in [
            Point2::new(0.0, 90.5),
            Point2::new(0.0, -91.0),
            Point2::new(180.5, 0.0),
            Point2::new(f64::INFINITY, 0.0),
        ] {
            for refused in [
                places.insert(bad, 1).err(),
                places.nearest(bad).err(),
                places.at_point(bad).err(),
                areas.insert(Box2::new(bad, bad), 1).err(),
            ] {
                assert!(
                    matches!(refused, Some(Error::BadGeometry(_))),
                    "{bad:?} {refused:?}"
                );
            }
        }
        let across = window(170.0, 0.0, -170.0, 1.0);
        let refused = areas.insert(across, 1);
        assert!(
            matches!(refused, Err(Error::BadGeometry(_))),
            "stored boxes cannot cross"
        );
        for bad in [
            window(0.0, 1.0, 1.0, 0.0),
            window(0.0, 0.0, 1.0, 91.0),
            window(0.0, f64::NAN, 1.0, 1.0),
            window(f64::NAN, 0.0, 1.0, 1.0),
        ] {
            let refused = places.intersecting(bad).err();
            assert!(matches!(refused, Some(Error::BadGeometry(_))), "{bad:?}");
        }
        assert!(
            places
                .intersecting(window(170.0, 0.0, 190.0, 1.0))
                .unwrap()
                .next()
                .is_none()
        );
        places.insert(Point2::new(179.5, 0.5), 1).unwrap();
        assert_eq!(places.intersecting(across).unwrap().len(), 1);
        let endless = f64::INFINITY;
        let everything = window(-endless, -endless, endless, endless);
        assert_eq!(places.contained_in(everything).unwrap().len(), 1);
    }
}

#[test]
fn the_antimeridian_and_the_poles_are_no_borders_for_distances() {
    for options in layouts() {
        let pool = Pool::in_memory().unwrap();
        let places = pool.spatial_with::<Point2>("places", options).unwrap();
        places.insert(Point2::new(179.9, 0.0), 1).unwrap();
        places.insert(Point2::new(-179.0, 0.0), 2).unwrap();
        places.insert(Point2::new(90.0, 89.0), 3).unwrap();
        let payloads = |lon, lat| -> Vec<u64> {
            let nearest = places.nearest(Point2::new(lon, lat)).unwrap();
            nearest.map(|found| found.unwrap().1.payload).collect()
        };
        assert_eq!(payloads(-179.9, 0.0), [1, 2, 3]);
        assert_eq!(payloads(-90.0, 89.5), [3, 2, 1]);
        // A fifth of a degree of the equator.
        let near = places
            .within_distance(Point2::new(-179.9, 0.0), 22_300.0)
            .unwrap();
        assert_eq!(near.map(|of| of.payload).collect::<Vec<_>>(), [1]);
    }
}
