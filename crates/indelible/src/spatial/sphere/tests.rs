use super::*;
use crate::spatial::grid::tests::number;
use crate::spatial::metric::tests::nested;
use crate::spatial::{Box2, Point2};
use proptest::prelude::*;

fn sphere(longitude: f64, latitude: f64) -> Sphere {
    Sphere::new(longitude, latitude).unwrap()
}

fn metres(a: (f64, f64), b: (f64, f64)) -> f64 {
    let m = sphere(a.0, a.1);
    m.distance(m.comparable(&Point2::new(b.0, b.1)))
}

fn rect(west: f64, south: f64, east: f64, north: f64) -> Rect {
    Rect::of(&Box2::new(
        Point2::new(west, south),
        Point2::new(east, north),
    ))
}

const DEGREE: f64 = EARTH_RADIUS * PI / 180.0;

/// The angle between two unit vectors, for comparison.
fn by_vectors(a: (f64, f64), b: (f64, f64)) -> f64 {
    let vector = |p: (f64, f64)| {
        let (l, f) = (p.0.to_radians(), p.1.to_radians());
        [f.cos() * l.cos(), f.cos() * l.sin(), f.sin()]
    };
    let (a, b) = (vector(a), vector(b));
    let cross = [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ];
    let dot: f64 = (0..3).map(|i| a[i] * b[i]).sum();
    EARTH_RADIUS * cross.iter().map(|x| x * x).sum::<f64>().sqrt().atan2(dot)
}

#[test]
fn known_distances() {
    let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-9 * b.max(1.0), "{a} {b}");
    close(metres((0.0, 0.0), (1.0, 0.0)), DEGREE);
    close(metres((179.5, 0.0), (-179.5, 0.0)), DEGREE);
    close(metres((10.0, 89.0), (-170.0, 89.0)), 2.0 * DEGREE);
    close(metres((0.0, 90.0), (123.0, -90.0)), 180.0 * DEGREE);
    close(metres((30.0, 20.0), (-150.0, -20.0)), 180.0 * DEGREE);
    close(metres((370.0, 5.0), (-350.0, 5.0)), 0.0);
    // A millimetre, here and beside the antipode.
    let milli = 0.001 / DEGREE;
    close(metres((30.0, 20.0), (30.0, 20.0 + milli)), 0.001);
    let gap = 180.0 * DEGREE - metres((30.0, 20.0), (-150.0, -20.0 - milli));
    assert!((gap - 0.001).abs() < 1e-7, "{gap}");
    // Berlin to Tokyo, by the same radius.
    let distance = metres((13.405, 52.52), (139.6917, 35.6895));
    close(distance, by_vectors((13.405, 52.52), (139.6917, 35.6895)));
    assert!((8.9e6..9.0e6).contains(&distance));
}

#[test]
fn the_nearest_point_of_a_box_is_not_the_clamped_one() {
    let m = sphere(0.0, 50.0);
    let to_box =
        m.distance(m.comparable(&Box2::new(Point2::new(60.0, 0.0), Point2::new(70.0, 89.0))));
    let clamped = metres((0.0, 50.0), (60.0, 50.0));
    assert!(to_box < 0.99 * clamped, "{to_box} {clamped}");
    // The right angle: sin d = cos 50° sin 60°.
    let wanted = EARTH_RADIUS * (50f64.to_radians().cos() * 60f64.to_radians().sin()).asin();
    assert!((to_box - wanted).abs() < 1e-6);
    // Over the pole, to the northern end of a box on the other side.
    let over = m.distance(m.comparable(&Box2::new(
        Point2::new(180.0, 0.0),
        Point2::new(180.0, 80.0),
    )));
    assert!((over - 50.0 * DEGREE).abs() < 1e-6, "{over}");
    // The southern end of a box on the other side may be nearer.
    let m = sphere(0.0, -85.0);
    let under = m.distance(m.bound(&rect(100.0, -90.0, 120.0, -80.0)));
    assert!((under - 5.0 * DEGREE).abs() < 1e-3, "{under}");
}

#[test]
fn windows_cross_the_antimeridian_and_take_all_longitudes_at_a_pole() {
    let windows = sphere(179.9, 0.0).windows(50_000.0);
    let [east, west] = windows.as_slice() else {
        panic!("{windows:?}")
    };
    assert!(east.high[0] == 180.0 && west.low[0] == -180.0 && west.high[0] > -179.7);
    let windows = sphere(10.0, 89.9).windows(50_000.0);
    let [all] = windows.as_slice() else {
        panic!("{windows:?}")
    };
    assert!(all.low[0] == f64::NEG_INFINITY && all.high == [f64::INFINITY; 3] && all.low[1] > 89.4);
    assert_eq!(
        sphere(1.0, 1.0).windows(f64::INFINITY).as_slice(),
        [EVERYTHING]
    );
    assert_eq!(sphere(1.0, 1.0).windows(10.0).as_slice().len(), 1);
}

#[test]
fn windows_of_longitudes_and_latitudes() {
    let ends = |w, s, e, n| {
        let windows = lonlat_windows(w, s, e, n).unwrap();
        windows
            .as_slice()
            .iter()
            .map(|r| (r.low[0], r.high[0]))
            .collect::<Vec<_>>()
    };
    let inf = f64::INFINITY;
    assert_eq!(ends(1.0, 2.0, 3.0, 4.0), [(1.0, 3.0)]);
    assert_eq!(
        ends(170.0, 2.0, -170.0, 4.0),
        [(170.0, 180.0), (-180.0, -170.0)]
    );
    assert_eq!(
        ends(170.0, 2.0, 190.0, 4.0),
        [(170.0, 180.0), (-180.0, -170.0)]
    );
    assert_eq!(
        ends(-190.0, 2.0, -170.0, 4.0),
        [(170.0, 180.0), (-180.0, -170.0)]
    );
    assert_eq!(
        ends(170.0, 2.0, 180.0, 4.0),
        [(170.0, 180.0), (-180.0, -180.0)]
    );
    assert_eq!(ends(-180.0, 2.0, 5.0, 4.0), [(180.0, 180.0), (-180.0, 5.0)]);
    assert_eq!(ends(-180.0, 2.0, 180.0, 4.0), [(-inf, inf)]);
    assert_eq!(ends(0.0, 2.0, 360.0, 4.0), [(-inf, inf)]);
    for (w, s, e, n) in [
        (0.0, 5.0, 1.0, 4.0),
        (0.0, -91.0, 1.0, 4.0),
        (0.0, 0.0, 361.0, 4.0),
        (f64::NAN, 0.0, 1.0, 1.0),
        (0.0, 0.0, 1.0, f64::NAN),
    ] {
        assert!(matches!(
            lonlat_windows(w, s, e, n),
            Err(Error::BadOption(_))
        ));
    }
    assert!(matches!(Sphere::new(0.0, 90.1), Err(Error::BadOption(_))));
    assert!(matches!(
        Sphere::new(f64::INFINITY, 0.0),
        Err(Error::BadOption(_))
    ));
}

/// Degrees of interest: any, near the poles and near the antimeridian, tiny, and what no record should have.
fn degrees(most: f64) -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => -most..most,
        2 => (any::<bool>(), 0.0f64..18.0).prop_map(move |(south, e)| (most - 10f64.powf(-e)) * if south { -1.0 } else { 1.0 }),
        2 => (any::<bool>(), 0.0f64..330.0).prop_map(|(south, e)| 10f64.powf(-e) * if south { -1.0 } else { 1.0 }),
        1 => prop::sample::select(vec![0.0, most, -most, most / 2.0, -most / 2.0, most.next_down()]),
        1 => -2.0 * most..2.0 * most,
    ]
}

fn any_degrees(most: f64) -> impl Strategy<Value = f64> {
    prop_oneof![10 => degrees(most), 1 => number()]
}

/// A coordinate of a box near the point, in units that shrink to nothing, or one of its own.
fn beside(place: f64, own: f64, near: i8, exponent: u8) -> f64 {
    match near {
        -100..100 => place + f64::from(near) * 10f64.powi(-i32::from(exponent % 18)),
        _ => own,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_bound_is_below_what_its_box_contains(
        longitude in degrees(180.0), latitude in -1.0..1.0f64, own in degrees(90.0), pick: bool,
        x in prop::array::uniform4((any_degrees(180.0), any::<i8>())), y in prop::array::uniform4((any_degrees(90.0), any::<i8>())), exponents: (u8, u8),
    ) {
        let latitude = if pick { latitude * 90.0 } else { own.clamp(-90.0, 90.0) };
        let m = sphere(longitude, latitude);
        let x = nested(x.map(|(x, near)| beside(longitude, x, near, exponents.0)));
        let y = nested(y.map(|(y, near)| beside(latitude, y, near, exponents.1)));
        let bound = m.bound(&rect(x.0, y.0, x.3, y.3));
        let (low, high) = (Point2::new(x.1, y.1), Point2::new(x.2, y.2));
        let to_box = m.comparable(&Box2::new(low, high));
        prop_assert!(bound >= 0.0 && bound <= to_box, "{bound:e} {to_box:e}");
        for corner in [low, high, Point2::new(low.x, high.y), Point2::new(high.x, low.y)] {
            let c = m.comparable(&corner);
            prop_assert!(bound <= c, "{bound:e} {c:e} {corner:?}");
            prop_assert!(m.bound(&rect(low.x, low.y, high.x, high.y)) <= c, "{c:e}");
            let distance = m.distance(c);
            prop_assert!((0.0..=PI * EARTH_RADIUS).contains(&distance));
            prop_assert!(c <= m.comparable_of(distance));
            if corner.x.abs() <= 180.0 {
                let own = Rect::of(&corner);
                let windows = m.windows(distance);
                prop_assert!(windows.as_slice().iter().any(|window| window.intersects(&own)), "{windows:?} {corner:?}");
            }
        }
    }

    #[test]
    fn distances_are_those_between_unit_vectors(a in (degrees(180.0), -90.0..90.0f64), b in (-720.0..720.0f64, -90.0..90.0f64)) {
        let (got, wanted) = (metres(a, b), by_vectors(a, b));
        prop_assert!((got - wanted).abs() < 1e-6, "{got} {wanted}");
    }

    #[test]
    fn the_distance_to_a_box_is_that_to_its_nearest_point(a in (-180.0..180.0f64, -90.0..90.0f64), x in -180.0..180.0f64, width in 0.0..360.0f64, y in (-90.0..90.0f64, -90.0..90.0f64)) {
        let (south, north) = (y.0.min(y.1), y.0.max(y.1));
        let m = sphere(a.0, a.1);
        let to_box = m.distance(m.comparable(&Box2::new(Point2::new(x, south), Point2::new(x + width, north))));
        // Points of the edges, and those at the point's longitude and latitude. Close enough together that one is within 1/128 of an edge.
        let mut nearest = f64::INFINITY;
        for i in 0..=128 {
            let (s, t) = (x + width * f64::from(i) / 128.0, south + (north - south) * f64::from(i) / 128.0);
            for point in [(x, t), (x + width, t), (s, south), (s, north)] {
                nearest = nearest.min(by_vectors(a, point));
            }
        }
        let inside = m.longitude_apart(x, x + width) == 0.0;
        if inside {
            nearest = nearest.min(by_vectors(a, (a.0, a.1.clamp(south, north))));
        }
        prop_assert!(to_box <= nearest + 1e-6, "{to_box} {nearest}");
        prop_assert!(nearest <= to_box + (north - south) * DEGREE / 256.0 + 1e-6, "{to_box} {nearest}");
    }

    #[test]
    fn what_is_compared_with_a_limit_is_within_it(a in (degrees(180.0), -90.0..90.0f64), b in (degrees(180.0), -90.0..90.0f64), limit in 0.0..2.1e7f64) {
        let m = sphere(a.0, a.1);
        let c = m.comparable(&Point2::new(b.0, b.1));
        for limit in [limit, m.distance(c)] {
            prop_assert_eq!(c <= m.comparable_of(limit), m.distance(c) <= limit);
        }
    }
}
