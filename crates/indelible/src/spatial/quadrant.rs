//! Aligned sets of cells, which are aligned intervals of Hilbert codes; and what a search needs to know of them.

use super::{Grid, MAX_AXES, hilbert};

/// A square of 2^k × 2^k cells, or a cube, whose corner is a multiple of its size: the curve runs through it without leaving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quadrant {
    /// The first code.
    first: u64,
    /// The lowest cell on each axis.
    low: [u32; MAX_AXES],
    /// Binary logarithm of the number of cells on each axis.
    side: u8,
    axes: u8,
    /// The state in which the curve enters.
    state: u8,
}

impl Quadrant {
    /// All cells of the grid.
    pub(crate) fn all(grid: &Grid) -> Self {
        Self {
            first: 0,
            low: [0; MAX_AXES],
            side: hilbert::bits(grid.axes()) as u8,
            axes: grid.axes() as u8,
            state: hilbert::START,
        }
    }

    /// The first and the last code.
    #[inline]
    pub(crate) fn codes(&self) -> (u64, u64) {
        let bits = u32::from(self.axes) * u32::from(self.side);
        // There are 64 bits if this is all of the square; and none, if it is one cell.
        (self.first, self.first | !u64::MAX.unbounded_shl(bits))
    }

    /// The lowest and the highest cell on each axis.
    #[inline]
    pub(crate) fn cells(&self) -> ([u32; MAX_AXES], [u32; MAX_AXES]) {
        let more = !u32::MAX.unbounded_shl(u32::from(self.side));
        let mut high = self.low;
        for cell in &mut high[..self.axes as usize] {
            *cell |= more;
        }
        (self.low, high)
    }

    /// Whether this is one cell, which has no children.
    #[inline]
    pub(crate) fn is_cell(&self) -> bool {
        self.side == 0
    }

    /// Its 4 quarters or 8 octants in the order of the curve.
    ///
    /// # Panics
    /// If this is one cell.
    #[inline]
    pub(crate) fn children(&self) -> impl DoubleEndedIterator<Item = Self> + use<> {
        assert!(!self.is_cell());
        let parent = *self;
        (0..1usize << parent.axes).map(move |digit| parent.child(digit))
    }

    #[inline(always)]
    fn child(&self, digit: usize) -> Self {
        let (axes, side) = (self.axes as usize, self.side - 1);
        let (quadrant, state) = hilbert::step(axes, self.state, digit);
        let mut low = self.low;
        for (axis, cell) in low.iter_mut().enumerate() {
            *cell |= (quadrant as u32 >> axis & 1) << side;
        }
        Self {
            first: self.first | (digit as u64) << (axes * usize::from(side)),
            low,
            side,
            axes: self.axes,
            state,
        }
    }

    /// Whether a window of cells has a cell in common with this, and whether it contains all of this.
    #[inline(always)]
    fn meets(&self, low: &[u32; MAX_AXES], high: &[u32; MAX_AXES]) -> (bool, bool) {
        let (own_low, own_high) = self.cells();
        (0..MAX_AXES).fold((true, true), |(meets, within), axis| {
            let (a, b) = (own_low[axis], own_high[axis]);
            (
                meets & (a <= high[axis]) & (low[axis] <= b),
                within & (low[axis] <= a) & (b <= high[axis]),
            )
        })
    }
}

impl Grid {
    /// The smallest code at or above `from` whose cell lies in the window of cells; both ends of the window belong to it. There is
    /// none in a window that is inverted on some axis.
    ///
    /// It goes down through the quadrants that `from` lies in, and remembers the last quadrant that comes after `from` and meets the
    /// window. If the way down leaves the window, the answer is the first code of the window in the remembered quadrant. That makes two
    /// ways down: at most 2 × 32 × 4 steps in two dimensions, 2 × 21 × 8 in three.
    pub(crate) fn next_in_window(
        &self,
        from: u64,
        low: [u32; MAX_AXES],
        high: [u32; MAX_AXES],
    ) -> Option<u64> {
        let mut at = Quadrant::all(self);
        if from > at.codes().1 || (0..MAX_AXES).any(|axis| low[axis] > high[axis]) {
            return None;
        }
        let mut later = None;
        loop {
            let (meets, within) = at.meets(&low, &high);
            if within {
                return Some(from);
            }
            if !meets {
                break;
            }
            // A cell that the window meets is within the window, so this quadrant has children.
            let mut children = at.children().skip_while(|child| child.codes().1 < from);
            at = children
                .next()
                .expect("a quadrant's last child ends where the quadrant does");
            later = children.find(|child| child.meets(&low, &high).0).or(later);
        }
        let mut at = later?;
        while !at.meets(&low, &high).1 {
            at = at
                .children()
                .find(|child| child.meets(&low, &high).0)
                .expect("the window meets the quadrant, so it meets one of its children");
        }
        Some(at.codes().0)
    }

    /// The fewest quadrants that make up the interval of codes, both ends included, in order: at most 2 × 3 × 32 in two dimensions,
    /// 2 × 7 × 21 in three.
    pub(crate) fn covering(&self, first: u64, last: u64) -> impl Iterator<Item = Quadrant> + use<> {
        let mut stack = vec![Quadrant::all(self)];
        std::iter::from_fn(move || {
            while let Some(at) = stack.pop() {
                let (a, b) = at.codes();
                if b < first || last < a {
                    continue;
                }
                if first <= a && b <= last {
                    return Some(at);
                }
                stack.extend(at.children().rev());
            }
            None
        })
    }
}

#[cfg(test)]
mod tests;
