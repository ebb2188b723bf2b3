//! Distances.

use super::{Geometry, MAX_AXES, Rect};

/// A way to measure distances from one point.
///
/// Comparable distances are at least 0, never NaN, and [`distance`](Self::distance) rises with them. No geometry in a box is nearer than the
/// [`bound`](Self::bound) of the box, rounding included: a search that skips boxes by their bounds finds what one that looks at all
/// records finds.
pub(crate) trait Metric: Clone + Send + Sync + 'static {
    /// The distance to a geometry, in a form that is cheap to compute and in the order of distances: its square, say.
    fn comparable<G: Geometry>(&self, shape: &G) -> f64;

    /// A lower bound of [`comparable`](Self::comparable) for all geometries in a box.
    fn bound(&self, rect: &Rect) -> f64;

    /// The point, if comparable distances are squares of distances to it, as far as squares are finite and not denormal: a search may then
    /// compute bounds by itself, many at a time.
    fn square_from(&self) -> Option<[f64; MAX_AXES]> {
        None
    }

    /// The distance that a comparable one stands for.
    fn distance(&self, comparable: f64) -> f64;

    /// The greatest comparable distance that is not above `distance`; -1, which no geometry is within, if that is negative or NaN.
    fn comparable_of(&self, distance: f64) -> f64;

    /// Boxes that together contain what is within `distance`, and a little more; a geometry at that distance meets one of them.
    fn windows(&self, distance: f64) -> Windows;
}

/// One or two boxes, or none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Windows {
    rects: [Rect; 2],
    count: usize,
}

impl Windows {
    pub(super) const NONE: Self = Self {
        rects: [Rect::NOTHING; 2],
        count: 0,
    };

    pub(super) const fn one(rect: Rect) -> Self {
        Self {
            rects: [rect, Rect::NOTHING],
            count: 1,
        }
    }

    pub(super) const fn two(first: Rect, second: Rect) -> Self {
        Self {
            rects: [first, second],
            count: 2,
        }
    }

    /// The boxes.
    pub(crate) fn as_slice(&self) -> &[Rect] {
        &self.rects[..self.count]
    }
}

/// All of space.
pub(super) const EVERYTHING: Rect = Rect {
    low: [f64::NEG_INFINITY; MAX_AXES],
    high: [f64::INFINITY; MAX_AXES],
};

/// The greatest number whose distance is at most `distance`, of a weakly rising function; `near` is a guess. The bits of numbers from 0 to
/// infinity rise with them, so the search doubles its steps from the guess, and then halves the interval.
pub(super) fn greatest(near: f64, distance: f64, of: impl Fn(f64) -> f64) -> f64 {
    let within = |bits: u64| of(f64::from_bits(bits)) <= distance;
    let last = f64::INFINITY.to_bits();
    let near = near.to_bits().min(last);
    let (mut inside, mut outside, mut step) = (near, near, 1);
    if within(near) {
        loop {
            if outside == last {
                return f64::INFINITY;
            }
            outside = (inside + step).min(last);
            if !within(outside) {
                break;
            }
            (inside, step) = (outside, 2 * step);
        }
    } else {
        loop {
            if inside == 0 {
                return -1.0;
            }
            inside = outside.saturating_sub(step);
            if within(inside) {
                break;
            }
            (outside, step) = (inside, 2 * step);
        }
    }
    while outside - inside > 1 {
        let middle = inside + (outside - inside) / 2;
        if within(middle) {
            inside = middle;
        } else {
            outside = middle;
        }
    }
    f64::from_bits(inside)
}

/// Distances in the plane and in space. The distance to a box is that to its nearest point, 0 inside. Two coordinates that are the same
/// infinity are at distance 0 on their axis; from any other number an infinite one is infinitely far.
///
/// The comparable distance is the square, where that is between 2^-1000 and 2^1000. The squares of greater and of smaller distances are
/// computed from scaled coordinates, and are squeezed into what a float has above and below that range: their order is kept, with 6 bits
/// less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Euclidean {
    /// The point. The third coordinate is 0 in the plane.
    pub(crate) point: [f64; MAX_AXES],
}

/// 2^exponent
const fn power(exponent: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// The range in which squares are compared as they are.
const SMALLEST_SQUARE: f64 = power(-1000);
const GREATEST_SQUARE: f64 = power(1000);

/// Coordinates are multiplied by this, or by its reciprocal, before they are squared, if the square is outside of the range.
const SCALE: f64 = power(600);

/// Below all squares of scaled coordinates that are squeezed: those of great distances are above 2^(1000 - 1200), those of small ones at
/// least 2^(1200 - 2 × 1074).
const SCALED_GREAT: u64 = power(-201).to_bits();
const SCALED_SMALL: u64 = power(-949).to_bits();

/// 2^6 neighbouring scaled squares become one number: so the 1149 octaves of small squares fit into the 23 below 2^-1000, and the 1053
/// octaves of great ones into the 23 above 2^1000.
const SQUEEZE_SHIFT: u32 = 6;

impl Euclidean {
    #[inline(always)]
    fn square(&self, rect: &Rect, scale: f64) -> f64 {
        let mut sum = 0.0;
        for axis in 0..MAX_AXES {
            let point = self.point[axis] * scale;
            let (low, high) = (rect.low[axis] * scale, rect.high[axis] * scale);
            // A difference of equal infinities is NaN, which `max` drops.
            let away = (low - point).max(0.0).max(point - high);
            sum += away * away;
        }
        sum
    }

    /// Each step of the computation rises weakly with the distance on each axis, with rounding as well, and so does the step from one range
    /// to the next.
    #[inline(always)]
    fn comparable_to(&self, rect: &Rect) -> f64 {
        let square = self.square(rect, 1.0);
        if (SMALLEST_SQUARE..=GREATEST_SQUARE).contains(&square) {
            square
        } else {
            self.squeezed(rect, square)
        }
    }

    #[cold]
    fn squeezed(&self, rect: &Rect, square: f64) -> f64 {
        if square > GREATEST_SQUARE {
            let square = self.square(rect, 1.0 / SCALE);
            if square == f64::INFINITY {
                return square;
            }
            let above = square.to_bits().saturating_sub(SCALED_GREAT) >> SQUEEZE_SHIFT;
            return f64::from_bits(GREATEST_SQUARE.to_bits() + 1 + above);
        }
        if (0..MAX_AXES).all(|i| rect.low[i] <= self.point[i] && self.point[i] <= rect.high[i]) {
            return 0.0;
        }
        let square = self.small_square(rect);
        f64::from_bits((square.to_bits().saturating_sub(SCALED_SMALL)) >> SQUEEZE_SHIFT)
    }

    /// The square of a distance below 2^-500, multiplied by the square of [`SCALE`]. Differences are scaled here, not coordinates, which may
    /// be large; a difference of close numbers is exact.
    fn small_square(&self, rect: &Rect) -> f64 {
        (0..MAX_AXES)
            .map(|i| {
                let away = (rect.low[i] - self.point[i])
                    .max(0.0)
                    .max(self.point[i] - rect.high[i]);
                (away * SCALE) * (away * SCALE)
            })
            .sum()
    }
}

impl Metric for Euclidean {
    #[inline(always)]
    fn comparable<G: Geometry>(&self, shape: &G) -> f64 {
        self.comparable_to(&Rect::of(shape))
    }

    #[inline(always)]
    fn bound(&self, rect: &Rect) -> f64 {
        self.comparable_to(rect)
    }

    #[inline]
    fn square_from(&self) -> Option<[f64; MAX_AXES]> {
        Some(self.point)
    }

    fn distance(&self, comparable: f64) -> f64 {
        let squeezed = |bits: u64, from: u64| f64::from_bits((bits << SQUEEZE_SHIFT) + from).sqrt();
        if comparable == f64::INFINITY || comparable <= 0.0 {
            comparable.max(0.0)
        } else if comparable > GREATEST_SQUARE {
            // Some numbers below infinity stand for no distance.
            let bits = comparable.to_bits() - GREATEST_SQUARE.to_bits() - 1;
            let most = (f64::MAX.to_bits() - SCALED_GREAT) >> SQUEEZE_SHIFT;
            squeezed(bits.min(most), SCALED_GREAT) * SCALE
        } else if comparable < SMALLEST_SQUARE {
            let most = (power(201).to_bits() - SCALED_SMALL) >> SQUEEZE_SHIFT;
            squeezed(comparable.to_bits().min(most), SCALED_SMALL) / SCALE
        } else {
            comparable.sqrt()
        }
    }

    fn comparable_of(&self, distance: f64) -> f64 {
        if distance.is_nan() || distance < 0.0 {
            return -1.0;
        }
        greatest(distance * distance, distance, |c| self.distance(c))
    }

    fn windows(&self, distance: f64) -> Windows {
        if distance.is_nan() || distance < 0.0 {
            return Windows::NONE;
        }
        // Squeezed distances have a relative error below 2^-44, others a smaller one.
        let reach = (distance + distance * power(-40)).next_up().next_up();
        if reach == f64::INFINITY {
            return Windows::one(EVERYTHING);
        }
        Windows::one(Rect {
            low: self.point.map(|x| (x - reach).next_down()),
            high: self.point.map(|x| (x + reach).next_up()),
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
