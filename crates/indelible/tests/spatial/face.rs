//! What a spatial index refuses, and how it stands beside maps in a pool.

use indelible::{
    Box2, Box3, Error, Geometry, GeometryType, HilbertOptions, Kind, Point2, Point3, Pool,
    PoolOptions, Spatial, SpatialKind, SpatialOptions, Type,
};

const NAN: f64 = f64::NAN;
const INFINITY: f64 = f64::INFINITY;

fn point(x: f64, y: f64) -> Point2 {
    Point2::new(x, y)
}

fn window(west: f64, south: f64, east: f64, north: f64) -> Box2 {
    Box2::new(point(west, south), point(east, north))
}

fn is_bad<T: std::fmt::Debug>(result: indelible::Result<T>) -> bool {
    let is_bad = matches!(result, Err(Error::BadGeometry(_)));
    assert!(is_bad, "{result:?}");
    is_bad
}

#[test]
fn what_is_no_geometry_is_refused_by_every_operation_and_changes_nothing() {
    for &kind in SpatialKind::all() {
        let pool = Pool::in_memory().unwrap();
        let points = pool.spatial_with::<Point2>("points", kind).unwrap();
        let boxes = pool.spatial_with::<Box2>("boxes", kind).unwrap();
        let (good, nan) = (point(1.0, 1.0), point(1.0, NAN));
        points.insert(good, 1).unwrap();
        assert!(is_bad(points.insert(nan, 1)));
        assert!(is_bad(points.remove(nan, 1)));
        assert!(is_bad(points.relocate(1, good, nan)));
        assert!(is_bad(points.relocate(1, nan, good)));
        assert!(is_bad(points.insert_batch(&[(good, 2), (nan, 3)])));
        assert!(is_bad(points.at_point(nan)));
        assert!(is_bad(points.nearest(nan)));
        assert!(is_bad(points.within_distance(nan, 1.0)));
        for bad in [
            window(1.0, 0.0, 0.0, 1.0),
            window(0.0, 1.0, 1.0, 0.0),
            window(NAN, 0.0, 1.0, 1.0),
            window(0.0, 0.0, 1.0, NAN),
            window(INFINITY, 0.0, -INFINITY, 1.0),
        ] {
            assert!(is_bad(points.intersecting(bad)));
            assert!(is_bad(points.contained_in(bad)));
            assert!(is_bad(
                points.query_batch(&[window(0.0, 0.0, 1.0, 1.0), bad])
            ));
            assert!(is_bad(boxes.insert(bad, 1)));
            assert!(is_bad(boxes.bulk_load([(bad, 1)], 0.7)));
            // More records than there can be: what the iterator promises is not believed.
            assert!(is_bad(boxes.bulk_load(std::iter::repeat((bad, 1)), 0.7)));
        }
        for bad in [-1.0, -0.1, NAN, -INFINITY] {
            let refused = points.within_distance(good, bad);
            assert!(matches!(refused, Err(Error::BadDistance(_))), "{bad}");
            let refused = points.nearest(good).unwrap().within(bad);
            assert!(matches!(refused, Err(Error::BadDistance(_))), "{bad}");
        }
        for fill in [0.0, 1.5, NAN, -1.0] {
            let refused = boxes.bulk_load([(window(0.0, 0.0, 1.0, 1.0), 0)], fill);
            assert!(matches!(refused, Err(Error::BadOption(_))));
        }
        assert_eq!((points.len().unwrap(), boxes.len().unwrap()), (1, 0));
        assert_eq!(points.within_distance(good, -0.0).unwrap().len(), 1);
        for index in [points.check(), boxes.check()] {
            assert_eq!(index.unwrap(), [""; 0]);
        }
    }
}

#[test]
fn edges_infinities_and_both_zeros_are_defined() {
    for &kind in SpatialKind::all() {
        let pool = Pool::in_memory().unwrap();
        let boxes = pool.spatial_with::<Box2>("boxes", kind).unwrap();
        boxes.insert(window(-0.0, 0.0, 1.0, 1.0), 1).unwrap();
        boxes.insert(window(1.0, 1.0, 2.0, 2.0), 2).unwrap();
        boxes
            .insert(window(-INFINITY, 5.0, INFINITY, 5.0), 3)
            .unwrap();
        let payloads = |found: indelible::Records<Box2>| {
            let mut payloads: Vec<u64> = found.map(|record| record.payload).collect();
            payloads.sort_unstable();
            payloads
        };
        let corner = point(1.0, 1.0);
        assert_eq!(payloads(boxes.at_point(corner).unwrap()), [1, 2]);
        let touching = window(2.0, 2.0, 3.0, 5.0);
        assert_eq!(payloads(boxes.intersecting(touching).unwrap()), [2, 3]);
        assert_eq!(boxes.contained_in(touching).unwrap().len(), 0);
        let everything = window(-INFINITY, -INFINITY, INFINITY, INFINITY);
        assert_eq!(payloads(boxes.contained_in(everything).unwrap()), [1, 2, 3]);
        let far = boxes.nearest(point(1e9, 0.0)).unwrap().next().unwrap();
        let (distance, record) = far.unwrap();
        assert_eq!((distance, record.payload), (5.0, 3));
        let bounds = boxes.bounds().unwrap().unwrap();
        assert_eq!((bounds.low.x, bounds.high.x), (-INFINITY, INFINITY));
        assert!(boxes.remove(window(0.0, -0.0, 1.0, 1.0), 1).unwrap());
        assert!(
            boxes
                .remove(window(-INFINITY, 5.0, INFINITY, 5.0), 3)
                .unwrap()
        );
        assert_eq!(payloads(boxes.intersecting(everything).unwrap()), [2]);
    }
}

/// Each of these boxes is infinite on one axis, and so lies far from most of the others on that axis: no extent can be learned from those that do not.
#[test]
fn boxes_that_are_all_infinite_on_some_axis_are_there_after_an_open() {
    const BOXES: u64 = 400;
    let records = (0..BOXES).map(|i| {
        let at = i as f64;
        let shape = if i % 2 == 0 {
            window(at, 0.0, INFINITY, 1.0)
        } else {
            window(0.0, at, 1.0, INFINITY)
        };
        (shape, i)
    });
    let directory = tempfile::tempdir().unwrap();
    for &kind in SpatialKind::all() {
        for is_loaded in [false, true] {
            let path = directory.path().join(format!("{kind}.{is_loaded}"));
            let pool = Pool::create(&path).unwrap();
            let boxes = pool.spatial_with::<Box2>("boxes", kind).unwrap();
            let nothing = pool.spatial_with::<Box2>("nothing", kind).unwrap();
            nothing.bulk_load(records.clone().take(0), 0.7).unwrap();
            if is_loaded {
                boxes.bulk_load(records.clone(), 0.7).unwrap();
            } else {
                for (shape, payload) in records.clone() {
                    boxes.insert(shape, payload).unwrap();
                }
            }
            drop((boxes, nothing));
            pool.close().unwrap();
            let pool = Pool::open(&path).unwrap();
            let boxes = pool.open_spatial::<Box2>("boxes").unwrap();
            assert_eq!(boxes.check().unwrap(), [""; 0], "{kind}");
            for (shape, payload) in records.clone() {
                assert!(boxes.remove(shape, payload).unwrap(), "{kind}: {payload}");
            }
            let nothing = pool.open_spatial::<Box2>("nothing").unwrap();
            assert_eq!(nothing.len().unwrap(), 0);
            nothing.insert(window(0.0, 0.0, 1.0, 1.0), 1).unwrap();
        }
    }
}

#[test]
fn maps_and_spatial_indexes_have_their_names_from_one_set_and_are_told_apart() {
    for &kind in SpatialKind::all() {
        let pool = Pool::in_memory().unwrap();
        let map = pool.map::<u64, u64>("map").unwrap();
        let shops = pool.spatial_with::<Point2>("shops", kind).unwrap();
        let wrong = |error: Error| match error {
            Error::WrongType {
                name,
                found,
                wanted,
            } => [name, found, wanted],
            other => panic!("{other:?}"),
        };
        let of_points = "a spatial index of point2";
        assert_eq!(
            wrong(pool.map::<u64, u64>("shops").unwrap_err()),
            ["shops", of_points, "u64 to u64"]
        );
        assert_eq!(
            wrong(pool.open_map::<u64, u64>("shops").unwrap_err()),
            ["shops", of_points, "u64 to u64"]
        );
        assert_eq!(
            wrong(pool.spatial::<Point2>("map").unwrap_err()),
            ["map", "u64 to u64", of_points]
        );
        assert_eq!(
            wrong(pool.open_spatial::<Box3>("shops").unwrap_err()),
            ["shops", of_points, "a spatial index of box3"]
        );
        assert_eq!(
            wrong(pool.open_map_of_words("shops").unwrap_err())[1],
            of_points
        );
        assert_eq!(
            wrong(pool.rename_map("shops", "new").unwrap_err())[1],
            of_points
        );
        drop(shops);
        assert_eq!(wrong(pool.drop_map("shops").unwrap_err())[1], of_points);

        let names = |pool: &Pool| {
            let maps = pool.maps().into_iter().map(|map| map.name);
            let spatials = pool.spatials().into_iter().map(|index| index.name);
            (maps.collect::<Vec<_>>(), spatials.collect::<Vec<_>>())
        };
        assert_eq!(names(&pool), (vec!["map".into()], vec!["shops".into()]));
        let info = &pool.spatials()[0];
        assert_eq!((info.geometry, info.kind()), (GeometryType::Point2, kind));
        assert_eq!(info.options, kind.into());
        assert_eq!(pool.maps()[0].value, Type::U64);
        let taken = pool.rename_object("shops", "map");
        assert!(matches!(taken, Err(Error::NameTaken(_))));
        let open = pool.open_spatial::<Point2>("shops").unwrap();
        pool.rename_object("shops", "places").unwrap();
        assert_eq!(open.name(), "places");
        drop(open);
        pool.rename_object("map", "numbers").unwrap();
        assert_eq!(
            names(&pool),
            (vec!["numbers".into()], vec!["places".into()])
        );
        let places = pool.open_spatial::<Point2>("places").unwrap();
        places.insert(point(1.0, 2.0), 3).unwrap();
        pool.shrink().unwrap();
        assert_eq!(places.len().unwrap(), 1);
        let held = pool.drop_object("places");
        assert!(matches!(held, Err(Error::InUse(_))));
        drop((places, map));
        pool.drop_object("places").unwrap();
        pool.drop_object("numbers").unwrap();
        assert_eq!(names(&pool), (vec![], vec![]));
        assert_eq!(pool.check(), [""; 0]);
        let none = pool.open_spatial::<Point2>("places");
        assert!(matches!(none, Err(Error::NoSuchMap(_))));
    }
}

#[test]
fn every_type_of_geometry_is_recorded() {
    fn check<G: Geometry>(pool: &Pool) {
        for &kind in SpatialKind::all() {
            let name = format!("{} {kind}", G::TYPE);
            let made: Spatial<G> = pool.spatial_with(&name, kind).unwrap();
            let shape = G::from_coordinates(|i| i as f64);
            made.insert(shape, 7).unwrap();
            let found = pool.open_spatial::<G>(&name).unwrap();
            let record = found
                .at_point(G::Point::from_coordinates(|i| i as f64))
                .unwrap()
                .next();
            assert_eq!(record, Some(indelible::Record { shape, payload: 7 }));
            assert_eq!((found.name(), found.kind()), (name.clone(), kind));
            let info = pool.spatials().into_iter().find(|info| info.name == name);
            assert_eq!(info.unwrap().geometry, G::TYPE);
            assert!(format!("{made:?}").contains(G::NAME));
        }
    }
    let pool = Pool::in_memory().unwrap();
    check::<Point2>(&pool);
    check::<Point3>(&pool);
    check::<Box2>(&pool);
    check::<Box3>(&pool);
    assert_eq!(GeometryType::all().len(), 4);
    assert!(matches!(
        "circle".parse::<GeometryType>(),
        Err(Error::BadOption(_))
    ));
}

#[test]
fn options_are_kept_and_compared() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("options.pool");
    let pool = Pool::create(&path).unwrap();
    let globe = HilbertOptions::default().lonlat();
    let made = pool.spatial_with::<Point2>("globe", globe).unwrap();
    assert_eq!(
        made.options().to_string(),
        "kind=hilbert,coordinates=lonlat"
    );
    let plain = pool.spatial_with::<Point2>("globe", SpatialKind::Hilbert);
    assert!(matches!(plain, Err(Error::OtherOptions { .. })));
    let any = SpatialOptions::default().accept_any(true);
    assert_eq!(
        pool.spatial_with::<Point2>("globe", any).unwrap().options(),
        &globe.into()
    );
    drop(made);
    pool.close().unwrap();
    let pool = PoolOptions::new().open_read_only(&path).unwrap();
    let globe = pool.open_spatial::<Point2>("globe").unwrap();
    assert_eq!(
        globe.options().get("coordinates").as_deref(),
        Some("lonlat")
    );
    let here = point(1.0, 1.0);
    for refused in [
        globe.insert(here, 1).err(),
        globe.remove(here, 1).err(),
        globe.relocate(1, here, here).err(),
        globe.insert_batch(&[(here, 1)]).err(),
        globe.bulk_load([(here, 1)], 0.7).err(),
        globe.compact().err(),
        pool.spatial::<Point2>("other").err(),
        pool.drop_object("globe").err(),
        pool.rename_object("globe", "other").err(),
    ] {
        assert!(matches!(refused, Some(Error::ReadOnly)), "{refused:?}");
    }
    assert_eq!(globe.check().unwrap(), [""; 0]);
}

#[test]
fn options_that_do_not_fit_the_geometry_are_refused() {
    let pool = Pool::in_memory().unwrap();
    let globe = HilbertOptions::default().lonlat();
    let flat = HilbertOptions::default().extent(window(0.0, 0.0, 1.0, 1.0));
    let deep = Box3::new(Point3::default(), Point3::new(1.0, 1.0, 1.0));
    let deep = HilbertOptions::default().extent(deep);
    for refused in [
        pool.spatial_with::<Point3>("s", globe).err(),
        pool.spatial_with::<Box3>("s", flat).err(),
        pool.spatial_with::<Point2>("s", deep).err(),
    ] {
        assert!(matches!(refused, Some(Error::BadOption(_))), "{refused:?}");
    }
    assert!(pool.spatials().is_empty());
    pool.spatial_with::<Box3>("s", deep).unwrap();
    assert!("kind=hilbert".parse::<Kind>().is_err());
}

#[test]
fn bounds_and_filters_of_the_nearest_apply_from_where_the_iteration_is() {
    for &kind in SpatialKind::all() {
        let pool = Pool::in_memory().unwrap();
        let index = pool.spatial_with::<Point2>("s", kind).unwrap();
        for payload in 1..=3 {
            index.insert(point(payload as f64, 0.0), payload).unwrap();
        }
        let nearest = || index.nearest(point(0.0, 0.0)).unwrap();
        let payload_of = |found: Option<indelible::Result<(f64, indelible::Record<Point2>)>>| {
            found.map(|found| found.unwrap().1.payload)
        };
        let mut begun = nearest();
        assert_eq!(payload_of(begun.next()), Some(1));
        assert_eq!(begun.within(1.5).unwrap().count(), 0);

        let mut ended = nearest().within(1.5).unwrap();
        assert_eq!(ended.by_ref().count(), 1);
        let mut again = ended.within(2.5).unwrap();
        assert_eq!(payload_of(again.next()), Some(2));
        assert!(again.next().is_none());

        let mut begun = nearest();
        assert_eq!(payload_of(begun.next()), Some(1));
        let mut odd = begun.matching(|record| record.payload % 2 == 1);
        assert_eq!(payload_of(odd.next()), Some(3));
        assert!(odd.next().is_none());

        assert_eq!(index.clear().unwrap(), 3);
        assert_eq!((index.len().unwrap(), index.clear().unwrap()), (0, 0));
    }
}
