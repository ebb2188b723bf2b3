//! The grid whose cells the Hilbert curve orders: a map from coordinates to numbers of cells.
//!
//! ```text
//!        -inf            low                                    high            +inf
//! cells   | logarithmic   | linear                               | logarithmic   |
//!         0               N/256                        N - N/256                 N - 1
//! ```
//!
//! The map of each axis is linear in the extent that the index declares or has learned, and covers all other numbers as well: beside the
//! extent, cells are spaced by the logarithm of the distance from it. So records outside keep an order, with less detail, and are not all
//! put into one cell. The map never descends, for any `f64` but NaN: this is all that searches rely on. How well it fits the records
//! decides only how fast they are.

use super::{Geometry, MAX_AXES, Quadrant, Rect, hilbert};

/// 2^52: the floats from here to 2^53 are the integers, and their low bits are those of the integer.
const INTEGERS: f64 = (1u64 << 52) as f64;

/// The ends of the extent on each axis are at most this large, so that no difference of them overflows.
const LARGEST: f64 = f64::from_bits((1023 + 1020) << 52);

/// The extent on each axis is at least this wide, so that the number of cells divided by it is finite.
const NARROWEST: f64 = f64::from_bits((1023 - 980) << 52);

/// Binary logarithm of the share of all cells that lie on each side of the extent: 1/256.
const OUTSIDE_SHIFT: u32 = 8;

/// The first 2^5 octaves outside of the extent have one half of the cells there; the other 992, up to infinity, the other half.
const NEAR_OCTAVES_SHIFT: u32 = 5;

/// The map of one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    low: f64,
    high: f64,
    /// Cells per unit inside of the extent.
    scale: f64,
    /// 2^52 + the number of the first cell inside of the extent.
    base: f64,
    /// 1 / (high - low)
    per_width: f64,
    /// Binary logarithm of the number of cells.
    bits: u32,
}

impl Axis {
    fn new(low: f64, high: f64, bits: u32) -> Self {
        let (mut low, mut high) = (low.clamp(-LARGEST, LARGEST), high.clamp(-LARGEST, LARGEST));
        if low.is_nan() || high.is_nan() || low > high {
            (low, high) = (0.0, 1.0);
        }
        if low == high {
            // Nothing is known but a place: as far from it as it is from zero.
            let around = if low == 0.0 { 1.0 } else { low.abs() };
            (low, high) = (low - around, high + around);
        }
        high = high.max(low + NARROWEST);
        let width = high - low;
        let cells = (1u64 << bits) as f64;
        let outside = (1u64 << (bits - OUTSIDE_SHIFT)) as f64;
        Self {
            low,
            high,
            // Three cells less than there are, so that rounding never leads beyond the last one.
            scale: (cells - 2.0 * outside - 3.0) / width,
            base: INTEGERS + outside,
            per_width: 1.0 / width,
            bits,
        }
    }

    /// The cell of a coordinate. Rises weakly: subtraction, multiplication by a positive number and addition do so with rounding as well.
    #[inline(always)]
    fn cell(&self, x: f64) -> u32 {
        if self.low <= x && x <= self.high {
            // The addition rounds to an integer, whose bits are those of the sum.
            ((x - self.low) * self.scale + self.base).to_bits() as u32
        } else {
            self.cell_outside(x)
        }
    }

    #[cold]
    fn cell_outside(&self, x: f64) -> u32 {
        let last = ((1u64 << self.bits) - 1) as u32;
        if x > self.high {
            last - (self.outside_cells() - 1 - self.steps_out(x - self.high))
        } else {
            self.outside_cells() - 1 - self.steps_out(self.low - x)
        }
    }

    fn outside_cells(&self) -> u32 {
        1 << (self.bits - OUTSIDE_SHIFT)
    }

    /// How many cells outside of the extent lie before the one at this distance from it.
    fn steps_out(&self, distance: f64) -> u32 {
        let times = distance * self.per_width + 1.0;
        if times == f64::INFINITY || times.is_nan() {
            return self.outside_cells() - 1;
        }
        // The bits of a float are its logarithm, interpolated linearly within each octave; an octave is 2^52.
        let octaves = times.to_bits() - 1f64.to_bits();
        let half = self.bits - OUTSIDE_SHIFT - 1;
        let near = 52 + NEAR_OCTAVES_SHIFT;
        if octaves >> near == 0 {
            (octaves >> (near - half)) as u32
        } else {
            // There are fewer than 2^10 octaves.
            (1 << half) + ((octaves - (1 << near)) >> (62 - half)) as u32
        }
    }

    /// About the least distance from the extent whose cell has `steps` others before it; the inverse of [`steps_out`](Self::steps_out).
    fn distance_out(&self, steps: u32) -> f64 {
        let half = self.bits - OUTSIDE_SHIFT - 1;
        let near = 52 + NEAR_OCTAVES_SHIFT;
        let octaves = if steps >> half == 0 {
            u64::from(steps) << (near - half)
        } else {
            (1 << near) + (u64::from(steps - (1 << half)) << (62 - half))
        };
        let octaves = octaves.min(f64::INFINITY.to_bits() - 1f64.to_bits());
        (f64::from_bits(octaves + 1f64.to_bits()) - 1.0) / self.per_width
    }

    /// About where a cell lies; finite.
    fn place(&self, cell: u32) -> f64 {
        let (outside, last) = (self.outside_cells(), ((1u64 << self.bits) - 1) as u32);
        let place = if cell < outside {
            self.low - self.distance_out(outside - 1 - cell)
        } else if cell > last - outside {
            self.high + self.distance_out(cell - (last - outside + 1))
        } else {
            self.low + f64::from(cell - outside) / self.scale
        };
        place.clamp(f64::MIN, f64::MAX)
    }

    /// A number that lies below all coordinates of this cell and of those above it, and close to them.
    fn below(&self, cell: u32) -> f64 {
        if cell == 0 {
            return f64::NEG_INFINITY;
        }
        // The cell before, and then further until the map itself says that this is below: the map rises, so all of the cell lies above.
        let mut x = self.place(cell - 1);
        let mut step = x.abs().max(f64::MIN_POSITIVE) * f64::EPSILON;
        while self.cell(x) >= cell {
            x -= step;
            step *= 2.0;
        }
        x
    }

    /// A number that lies above all coordinates of this cell and of those below it, and close to them.
    fn above(&self, cell: u32) -> f64 {
        if u64::from(cell) >= (1u64 << self.bits) - 1 {
            return f64::INFINITY;
        }
        let mut x = self.place(cell + 1);
        let mut step = x.abs().max(f64::MIN_POSITIVE) * f64::EPSILON;
        while self.cell(x) <= cell {
            x += step;
            step *= 2.0;
        }
        x
    }
}

/// A grid of 2^32 × 2^32 or 2^21 × 2^21 × 2^21 cells, ordered by the Hilbert curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Grid {
    axes: usize,
    axis: [Axis; MAX_AXES],
}

impl Grid {
    /// The grid that is linear in this extent, in two or three dimensions. Every extent is accepted: one that has no width is widened, one
    /// that is infinite or of more than 2^1020 is cut, and one of nothing becomes 0..=1.
    pub(crate) fn new(extent: &Rect, axes: usize) -> Self {
        assert!(axes == 2 || axes == 3);
        Self {
            axes,
            axis: std::array::from_fn(|axis| {
                Axis::new(extent.low[axis], extent.high[axis], hilbert::bits(axes))
            }),
        }
    }

    /// The number of axes: 2 or 3.
    #[inline(always)]
    pub(crate) fn axes(&self) -> usize {
        self.axes
    }

    /// The last code.
    #[inline(always)]
    pub(crate) fn last_code(&self) -> u64 {
        if self.axes == 2 {
            u64::MAX
        } else {
            u64::MAX >> 1
        }
    }

    /// The cell of a point. The third one is 0 in two dimensions.
    #[inline]
    pub(crate) fn cells(&self, point: [f64; MAX_AXES]) -> [u32; MAX_AXES] {
        let [x, y, z] = &self.axis;
        [
            x.cell(point[0]),
            y.cell(point[1]),
            if self.axes == 2 { 0 } else { z.cell(point[2]) },
        ]
    }

    /// The code of the cell of a point.
    #[inline]
    pub(crate) fn code(&self, point: [f64; MAX_AXES]) -> u64 {
        let [x, y, z] = self.cells(point);
        if self.axes == 2 {
            hilbert::encode2(x, y)
        } else {
            hilbert::encode3(x, y, z)
        }
    }

    /// The code of the cell in which a geometry's centre lies.
    #[inline]
    pub(crate) fn code_of<G: Geometry>(&self, shape: &G) -> u64 {
        self.code(centre(shape))
    }

    /// [`code_of`](Self::code_of) for many geometries, in less time for each. As many as there are codes.
    pub(crate) fn codes_of<G: Geometry>(&self, shape: impl Fn(usize) -> G, codes: &mut [u64]) {
        if self.axes != 2 {
            for (i, code) in codes.iter_mut().enumerate() {
                *code = self.code_of(&shape(i));
            }
            return;
        }
        for (part, codes) in codes.chunks_mut(hilbert::TOGETHER).enumerate() {
            let mut cells = [[0; hilbert::TOGETHER]; 2];
            let [x, y] = &mut cells;
            for (i, (x, y)) in x.iter_mut().zip(y).enumerate().take(codes.len()) {
                [*x, *y, _] = self.cells(centre(&shape(part * hilbert::TOGETHER + i)));
            }
            let [x, y] = &cells;
            codes.copy_from_slice(&hilbert::encode2_all(x, y)[..codes.len()]);
        }
    }

    /// The cell of a code.
    pub(crate) fn decode(&self, code: u64) -> [u32; MAX_AXES] {
        hilbert::decode(self.axes, code)
    }

    /// The lowest and the highest cell of the points in a window.
    #[inline]
    pub(crate) fn window_cells(&self, window: &Rect) -> ([u32; MAX_AXES], [u32; MAX_AXES]) {
        (self.cells(window.low), self.cells(window.high))
    }

    /// A box that contains every point whose cell is in the quadrant. It is at most a few cells larger than that.
    pub(crate) fn rect(&self, quadrant: &Quadrant) -> Rect {
        let (low, high) = quadrant.cells();
        let mut rect = Rect {
            low: [0.0; MAX_AXES],
            high: [0.0; MAX_AXES],
        };
        for axis in 0..self.axes {
            rect.low[axis] = self.axis[axis].below(low[axis]);
            rect.high[axis] = self.axis[axis].above(high[axis]);
        }
        rect
    }
}

/// The centre of the box that bounds a geometry. It lies in the box; 0 on an axis on which the box is infinite in both directions, and
/// infinite where it is so in one.
#[inline(always)]
pub(crate) fn centre<G: Geometry>(shape: &G) -> [f64; MAX_AXES] {
    let rect = Rect::of(shape);
    if G::COORDINATES == G::AXES {
        return rect.low;
    }
    std::array::from_fn(|axis| {
        let (low, high) = (rect.low[axis], rect.high[axis]);
        // Halves are exact but for the smallest subnormals, and their sum does not overflow.
        let middle = low * 0.5 + high * 0.5;
        if middle.is_nan() {
            0.0
        } else {
            middle.max(low).min(high)
        }
    })
}

/// The box of the centres of these geometries.
pub(crate) fn box_of_centres<G: Geometry>(shapes: impl Iterator<Item = G>) -> Rect {
    shapes.fold(Rect::NOTHING, |all, shape| {
        let at = centre(&shape);
        all.join(&Rect { low: at, high: at })
    })
}

#[cfg(test)]
pub(super) mod tests;
