use super::*;
use crate::spatial::grid::tests::number;
use crate::spatial::{Box3, Point2, Point3};
use proptest::prelude::*;

/// Nested intervals: a rectangle, and a shape in it.
pub(crate) fn nested(mut ends: [f64; 4]) -> (f64, f64, f64, f64) {
    ends.sort_by(f64::total_cmp);
    (ends[0], ends[1], ends[2], ends[3])
}

fn metric(x: f64, y: f64, z: f64) -> Euclidean {
    Euclidean { point: [x, y, z] }
}

fn to(m: &Euclidean, x: f64, y: f64) -> f64 {
    m.comparable(&Point2::new(x, y))
}

#[test]
fn ordinary_distances() {
    let m = metric(1.0, 2.0, 0.0);
    assert_eq!(to(&m, 4.0, 6.0), 25.0);
    assert_eq!(m.distance(25.0), 5.0);
    let rect = Rect {
        low: [4.0, 0.0, 0.0],
        high: [5.0, 9.0, 0.0],
    };
    assert_eq!(m.bound(&rect), 9.0);
    assert_eq!(to(&m, 1.0, 2.0), 0.0);
    assert_eq!(m.comparable_of(-1.0), -1.0);
    assert_eq!(m.comparable_of(f64::NAN), -1.0);
    assert!(m.windows(f64::NAN).as_slice().is_empty());
}

#[test]
fn huge_and_tiny_distances_are_in_order() {
    let m = metric(0.0, 0.0, 0.0);
    let mut places: Vec<f64> = (-1074..1024)
        .map(|e| 2f64.powi(e.max(-1022)) * 2f64.powi((e + 1022).min(0)))
        .collect();
    places.insert(0, 0.0);
    places.push(f64::MAX);
    places.push(f64::INFINITY);
    let comparables: Vec<_> = places.iter().map(|&x| to(&m, x, 0.0)).collect();
    assert!(comparables.is_sorted_by(|a, b| a < b));
    for (x, c) in places.iter().zip(comparables) {
        let distance = m.distance(c);
        assert!(
            (distance - x).abs() <= x * 1e-12 || distance == *x,
            "{x:e} {distance:e}"
        );
    }
    // The greatest distance of finite points.
    let m = metric(f64::MAX, f64::MAX, f64::MAX);
    let far = m.comparable(&Point3::new(f64::MIN, f64::MIN, f64::MIN));
    assert!(far < f64::INFINITY && far > to(&m, f64::MIN, 0.0));
    assert_eq!(m.distance(far), f64::INFINITY);
}

#[test]
fn infinite_coordinates() {
    let inf = f64::INFINITY;
    let m = metric(inf, 1.0, 0.0);
    assert_eq!(to(&m, inf, 4.0), 9.0);
    assert_eq!(to(&m, -inf, 4.0), inf);
    assert_eq!(to(&m, 0.0, 4.0), inf);
    assert_eq!(m.bound(&EVERYTHING), 0.0);
    assert_eq!(m.distance(inf), inf);
    assert_eq!(m.comparable_of(inf), inf);
    assert!(m.windows(2.0).as_slice()[0].contains(&Rect::of(&Point2::new(inf, 2.0))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_bound_is_below_what_its_box_contains(point in prop::array::uniform3(number()), ends in prop::array::uniform3(prop::array::uniform4(number())), close: [bool; 3]) {
        let m = metric(point[0], point[1], point[2]);
        let axes: [_; 3] = std::array::from_fn(|i| {
            // Half of them with an edge beside the point.
            let e = ends[i];
            nested(if close[i] { [e[0], point[i].next_up(), point[i].next_up().next_up(), e[3]] } else { e })
        });
        let rect = Rect { low: axes.map(|a| a.0), high: axes.map(|a| a.3) };
        let corner = |i: usize, high: bool| if high { axes[i].2 } else { axes[i].1 };
        let low = Point3::new(corner(0, false), corner(1, false), corner(2, false));
        let high = Point3::new(corner(0, true), corner(1, true), corner(2, true));
        let shape = Box3::new(low, high);
        let (bound, to_box) = (m.bound(&rect), m.comparable(&shape));
        prop_assert!(bound >= 0.0 && bound <= to_box);
        prop_assert!(to_box <= m.comparable(&low) && to_box <= m.comparable(&high));
        prop_assert_eq!(bound == 0.0, rect.contains(&Rect { low: point, high: point }));
        // Distances rise with what is compared, and windows contain what is within.
        prop_assert!(m.distance(bound) <= m.distance(to_box));
        let distance = m.distance(to_box);
        prop_assert!(to_box <= m.comparable_of(distance));
        prop_assert!(m.windows(distance).as_slice()[0].intersects(&Rect::of(&shape)));
    }

    #[test]
    fn what_is_compared_with_a_limit_is_within_it(point in prop::array::uniform3(number()), other in prop::array::uniform3(number()), limit in number()) {
        let m = metric(point[0], point[1], point[2]);
        let c = m.comparable(&Point3::new(other[0], other[1], other[2]));
        let limit = limit.abs();
        for limit in [limit, m.distance(c), m.distance(c).next_down(), m.distance(c).next_up()] {
            prop_assert_eq!(c <= m.comparable_of(limit), m.distance(c) <= limit, "{:e} {:e}", c, limit);
        }
    }
}
