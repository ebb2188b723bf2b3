use super::*;
use crate::spatial::{Box2, Box3, Point2, Point3};
use proptest::prelude::*;

/// Any number but NaN: random bits, so all magnitudes, and those of interest.
pub(crate) fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => any::<u64>().prop_map(|bits| {
            let x = f64::from_bits(bits);
            if x.is_nan() { 0.0 } else { x }
        }),
        4 => -200.0..200.0,
        1 => (-10i32..10).prop_map(f64::from),
        1 => prop::sample::select(vec![
            0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, -5e-324, 1.0, -1.0,
        ]),
    ]
}

/// Extents that a user may declare, and others.
pub(crate) fn extent() -> impl Strategy<Value = Rect> {
    let any = prop::array::uniform3((number(), number())).prop_map(|ends| Rect {
        low: ends.map(|(a, b)| a.min(b)),
        high: ends.map(|(a, b)| a.max(b)),
    });
    let point = prop::array::uniform3(number()).prop_map(|low| Rect { low, high: low });
    let close = prop::array::uniform3((number(), 1u64..100)).prop_map(|ends| Rect {
        low: ends.map(|(a, _)| a),
        high: ends.map(|(a, n)| (0..n).fold(a, |a, _| a.next_up())),
    });
    prop_oneof![
        4 => any,
        1 => point,
        2 => close,
        1 => Just(Rect::NOTHING),
        4 => Just(Rect { low: [-180.0, -90.0, 0.0], high: [180.0, 90.0, 8000.0] }),
    ]
}

/// A number near the ends of an axis, or any other.
fn near(axis: &Axis, x: f64, place: u8, ulps: i8) -> f64 {
    let x = match place % 5 {
        0 => axis.low,
        1 => axis.high,
        2 => axis.low + (axis.high - axis.low) * (x % 1.0).abs(),
        _ => x,
    };
    if x.is_nan() {
        return 0.0;
    }
    (0..ulps.unsigned_abs()).fold(x, |x, _| if ulps < 0 { x.next_down() } else { x.next_up() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn cells_never_descend(extent in extent(), axes in 2usize..=3, a in number(), b in number(), places: (u8, u8), ulps: (i8, i8)) {
        let grid = Grid::new(&extent, axes);
        for axis in &grid.axis {
            let a = near(axis, a, places.0, ulps.0);
            let b = near(axis, b, places.1, ulps.1);
            let (a, b) = (a.min(b), a.max(b));
            prop_assert!(axis.cell(a) <= axis.cell(b), "{a:e} {b:e} {axis:?}");
            // Also between neighbours, where rounding could fail.
            prop_assert!(axis.cell(a) <= axis.cell(a.next_up()), "{a:e} {axis:?}");
            prop_assert!(u64::from(axis.cell(b)) < 1 << axis.bits);
        }
    }

    #[test]
    fn a_point_lies_in_the_box_of_its_quadrants(extent in extent(), axes in 2usize..=3, point in prop::array::uniform3(number()), places: [u8; 3], ulps: [i8; 3]) {
        let grid = Grid::new(&extent, axes);
        let mut point: [f64; 3] = std::array::from_fn(|i| near(&grid.axis[i], point[i], places[i], ulps[i]));
        if axes == 2 {
            point[2] = 0.0;
        }
        let point_rect = Rect { low: point, high: point };
        let code = grid.code(point);
        prop_assert_eq!(grid.decode(code), grid.cells(point));
        let mut at = Quadrant::all(&grid);
        loop {
            let rect = grid.rect(&at);
            prop_assert!(rect.contains(&point_rect), "{rect:?} {point:?}");
            if at.is_cell() {
                break;
            }
            at = at.children().find(|child| child.codes().1 >= code).unwrap();
        }
    }

    #[test]
    fn a_centre_lies_in_its_box(ends in prop::array::uniform3((number(), number()))) {
        let (low, high) = (ends.map(|(a, b)| a.min(b)), ends.map(|(a, b)| a.max(b)));
        let shape = Box3::new(Point3::new(low[0], low[1], low[2]), Point3::new(high[0], high[1], high[2]));
        let centre = centre(&shape);
        for axis in 0..3 {
            prop_assert!(low[axis] <= centre[axis] && centre[axis] <= high[axis]);
        }
    }
}

#[test]
fn infinities_have_the_outermost_cells() {
    for (axes, last) in [(2, u32::MAX), (3, (1 << 21) - 1)] {
        let extent = Rect {
            low: [-180.0, -90.0, 0.0],
            high: [180.0, 90.0, 1.0],
        };
        let axis = Grid::new(&extent, axes).axis[0];
        assert_eq!(axis.cell(f64::NEG_INFINITY), 0);
        assert_eq!(axis.cell(f64::INFINITY), last);
        assert!(axis.cell(f64::MAX) > axis.cell(1e300));
        // Half of the cells outside are within 2^32 times the width of the extent.
        let steps: Vec<_> = [200.0, 300.0, 1e3, 1e4, 1e6, 1e12, 1e100, 1e300]
            .map(|x| last - axis.cell(x))
            .to_vec();
        assert!(steps.is_sorted_by(|a, b| a > b), "{steps:?}");
    }
}

#[test]
fn the_extent_has_nearly_all_cells_and_equal_shares() {
    let extent = Rect {
        low: [0.0; 3],
        high: [1.0; 3],
    };
    for (axes, cells) in [(2, (1u64 << 32) as f64), (3, (1u64 << 21) as f64)] {
        let grid = Grid::new(&extent, axes);
        for i in 0..=100 {
            let x = f64::from(i) / 100.0;
            let cell = f64::from(grid.cells([x; 3])[0]);
            let wanted = cells * (1.0 / 256.0 + x * (254.0 / 256.0));
            assert!((cell - wanted).abs() <= 4.0, "{x} {cell} {wanted}");
        }
    }
}

#[test]
fn centres_of_infinite_boxes_are_defined() {
    let inf = f64::INFINITY;
    let shape = Box2::new(Point2::new(-inf, 3.0), Point2::new(inf, inf));
    assert_eq!(centre(&shape), [0.0, inf, 0.0]);
    let shape = Box2::new(Point2::new(-f64::MAX, 1.0), Point2::new(f64::MAX, 2.0));
    assert_eq!(centre(&shape), [0.0, 1.5, 0.0]);
    assert_eq!(centre(&Point2::new(5e-324, inf)), [5e-324, inf, 0.0]);
}
