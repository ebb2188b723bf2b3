//! How hard keys are for a learned index: how many straight lines it takes to say where each of them is.
//!
//! The measure is that of GRE ("Are Updatable Learned Indexes Ready?", Wongkham, Lu, Liu, Zhong, Lo, Wang, PVLDB 15(11),
//! 2022): the fewest pieces of a piecewise linear function from keys to positions that is never off by more than some
//! number of places. 32 places tell how hard the keys are within a node, 4096 how hard they are for the structure above.
//!
//! **The algorithm** is O'Rourke's ("An on-line algorithm for fitting straight lines between data ranges", CACM 24(9),
//! 1981), which the PGM-index uses too. A piece is made as long as it can be; then a new one begins, which is optimal. A
//! line fits a piece if at each key it passes below a *ceiling*, the position plus the error, and above a *floor*, the
//! position minus it. Of all lines that do, there is a steepest, which touches a floor first and a ceiling further right,
//! and a flattest, which touches a ceiling first. All fitting lines lie between the two to the right of the last key:
//!
//! ```text
//!                      steepest ╱           A new key whose ceiling is below the flattest line, or whose floor is above
//!        ▾ ceilings   ▾    ▾  ╱             the steepest, ends the piece. A ceiling below the steepest line turns it
//!           ▾                x   flattest   down, around a floor further right; which one, the upper hull of the floors
//!                          ╱   ─ ─ ─ ─ ─    knows. Only hulls are kept, and what is passed by is never looked at again,
//!     ▴ floors ▴    ▴   ▴                   so that a key costs constant time on average.
//! ```
//!
//! All of it in whole numbers: keys differ by less than 2^64 and positions by less than 2^62, so that the difference of two
//! products fits 128 bits.

/// The errors that GRE measures with, in places.
pub const GRE_ERRORS: [u64; 2] = [32, 4096];

/// The fewest straight lines that say of every key where it is among the keys, from 0, and are off by no more than `error`
/// places. Keys are ascending and distinct.
///
/// # Panics
///
/// If keys are not ascending and distinct, or positions or the error exceed 2^60.
#[must_use]
pub fn segments(keys: &[u64], error: u64) -> u64 {
    let limit = 1 << 60;
    assert!((keys.len() as u64) < limit && error < limit);
    assert!(keys.is_sorted_by(|a, b| a < b));
    let (mut piece, mut pieces) = (Piece::default(), 0);
    for (position, &key) in keys.iter().enumerate() {
        if !piece.add(key, position as i64, error as i64) {
            piece.start(key, position as i64, error as i64);
            pieces += 1;
        }
    }
    pieces
}

/// A ceiling or a floor.
#[derive(Clone, Copy, Default)]
struct Point {
    key: u64,
    position: i64,
}

/// The floor and the ceiling of a key.
fn bounds(key: u64, position: i64, error: i64) -> (Point, Point) {
    let point = |position| Point { key, position };
    (point(position - error), point(position + error))
}

/// On which side of the line from `a` to `b` a third point further right is: above 0 if it is above.
#[inline]
fn side(a: Point, b: Point, point: Point) -> i128 {
    let across = |to: Point| i128::from(to.key - a.key);
    let up = |to: Point| i128::from(to.position - a.position);
    across(b) * up(point) - up(b) * across(point)
}

/// The side of a line that points may not be on, as the sign of [`side`].
#[derive(Clone, Copy)]
enum Limit {
    Above = 1,
    Below = -1,
}

impl Limit {
    /// Whether the point is on the side that is forbidden, or on the line.
    #[inline]
    fn reached(self, a: Point, b: Point, point: Point) -> bool {
        self as i128 * side(a, b, point) >= 0
    }
}

/// The points that a line may still come to touch, from left to right.
#[derive(Default)]
struct Hull {
    points: Vec<Point>,
    /// Those before it have been passed by.
    first: usize,
}

impl Hull {
    fn start(&mut self, point: Point) {
        self.points.clear();
        self.points.push(point);
        self.first = 0;
    }

    /// Adds a point, and drops those that it hides.
    fn push(&mut self, point: Point, limit: Limit) {
        while let [.., before, last] = self.points[self.first..]
            && limit.reached(before, point, last)
        {
            self.points.pop();
        }
        self.points.push(point);
    }

    /// Where the line through `point` that passes all points of the hull touches it.
    fn touch(&mut self, point: Point, limit: Limit) -> Point {
        while let [touched, next, ..] = self.points[self.first..]
            && limit.reached(touched, point, next)
        {
            self.first += 1;
        }
        self.points[self.first]
    }
}

/// A piece of the function: the lines that fit the keys so far.
#[derive(Default)]
struct Piece {
    keys: usize,
    /// The upper hull of the floors and the lower hull of the ceilings.
    floors: Hull,
    ceilings: Hull,
    /// From a floor to a ceiling.
    steepest: (Point, Point),
    /// From a ceiling to a floor.
    flattest: (Point, Point),
}

impl Piece {
    fn start(&mut self, key: u64, position: i64, error: i64) {
        let (floor, ceiling) = bounds(key, position, error);
        self.keys = 1;
        self.floors.start(floor);
        self.ceilings.start(ceiling);
        self.steepest.0 = floor;
        self.flattest.0 = ceiling;
    }

    /// Adds a key; false if no line fits any more, or the piece has not been started.
    fn add(&mut self, key: u64, position: i64, error: i64) -> bool {
        let (floor, ceiling) = bounds(key, position, error);
        if self.keys < 2 {
            return self.add_to_one(floor, ceiling);
        }
        let over_ceiling = side(self.flattest.0, self.flattest.1, ceiling) < 0;
        let under_floor = side(self.steepest.0, self.steepest.1, floor) > 0;
        if over_ceiling || under_floor {
            return false;
        }
        self.keys += 1;
        if side(self.steepest.0, self.steepest.1, ceiling) < 0 {
            self.steepest = (self.floors.touch(ceiling, Limit::Above), ceiling);
            self.ceilings.push(ceiling, Limit::Above);
        }
        if side(self.flattest.0, self.flattest.1, floor) > 0 {
            self.flattest = (self.ceilings.touch(floor, Limit::Below), floor);
            self.floors.push(floor, Limit::Below);
        }
        true
    }

    /// A second key is always fit: two points make a line.
    fn add_to_one(&mut self, floor: Point, ceiling: Point) -> bool {
        if self.keys == 0 {
            return false;
        }
        self.keys = 2;
        self.steepest.1 = ceiling;
        self.flattest.1 = floor;
        self.floors.push(floor, Limit::Below);
        self.ceilings.push(ceiling, Limit::Above);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Source, generate};
    use proptest::prelude::*;

    /// A line fits if no two keys ask for more slope than two others allow. Slopes are pairs, up and across.
    fn some_line_fits(keys: &[u64], error: i128) -> bool {
        let (mut most_asked, mut least_allowed) = ((-1, 0), (1, 0));
        for to in 1..keys.len() {
            for from in 0..to {
                let across = i128::from(keys[to] - keys[from]);
                let up = (to - from) as i128;
                let asked = (up - 2 * error, across);
                let allowed = (up + 2 * error, across);
                most_asked = if steeper(asked, most_asked) {
                    asked
                } else {
                    most_asked
                };
                least_allowed = if steeper(least_allowed, allowed) {
                    allowed
                } else {
                    least_allowed
                };
            }
        }
        !steeper(most_asked, least_allowed)
    }

    fn steeper((up, across): (i128, i128), (other_up, other_across): (i128, i128)) -> bool {
        up * other_across > other_up * across
    }

    fn by_brute_force(mut keys: &[u64], error: u64) -> u64 {
        let mut pieces = 0;
        while !keys.is_empty() {
            let fits = |&length: &usize| some_line_fits(&keys[..length], i128::from(error));
            let longest = (1..=keys.len()).take_while(fits).last().unwrap();
            keys = &keys[longest..];
            pieces += 1;
        }
        pieces
    }

    fn ascending(gaps: &[u64]) -> Vec<u64> {
        let mut keys: Vec<u64> = gaps
            .iter()
            .scan(0_u64, |key, gap| {
                *key = key.saturating_add(*gap);
                Some(*key)
            })
            .collect();
        keys.dedup();
        keys
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn as_few_lines_as_brute_force_finds(
            gaps in prop::collection::vec(prop_oneof![1..4_u64, 1..100_u64, 1..u64::MAX / 8], 0..24),
            error in 0..4_u64,
        ) {
            let keys = ascending(&gaps);
            prop_assert_eq!(segments(&keys, error), by_brute_force(&keys, error));
        }

        #[test]
        fn hulls_of_many_points_agree_with_brute_force(
            gaps in prop::collection::vec(1..6_u64, 30..50),
            error in 1..6_u64,
        ) {
            let keys = ascending(&gaps);
            prop_assert_eq!(segments(&keys, error), by_brute_force(&keys, error));
        }
    }

    #[test]
    fn the_ends_of_the_domain_do_not_overflow() {
        for keys in [&[0, u64::MAX][..], &[0, 1, u64::MAX - 1, u64::MAX]] {
            for error in [0, 1, (1 << 60) - 1] {
                assert_eq!(segments(keys, error), by_brute_force(keys, error));
            }
        }
        assert_eq!(segments(&[], 0), 0);
        assert_eq!(segments(&[u64::MAX], 0), 1);
    }

    #[test]
    fn one_line_fits_evenly_spaced_keys() {
        let even: Vec<u64> = (0..100_000).map(|at| at << 40).collect();
        assert_eq!(segments(&even, 0), 1);
    }

    #[test]
    fn a_line_spans_steps_of_twice_the_error_and_no_higher_ones() {
        let far_apart =
            |run: u64| -> Vec<u64> { (0..run).chain(1 << 40..(1 << 40) + run).collect() };
        for error in GRE_ERRORS {
            assert_eq!(segments(&far_apart(2 * error + 1), error), 1);
            assert_eq!(segments(&far_apart(2 * error + 2), error), 2);
        }
    }

    #[test]
    fn the_knob_of_piecewise_is_its_hardness() {
        for pieces in [10, 100] {
            let source = Source::Piecewise { segments: pieces };
            let keys = generate(&source, 300_000, 1).unwrap();
            let found = segments(&keys, 32);
            assert!(
                (pieces * 8 / 10..=pieces).contains(&found),
                "{found} of {pieces}"
            );
        }
    }
}
