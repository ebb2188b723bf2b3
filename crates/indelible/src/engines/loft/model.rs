//! The linear model of a data node: from a key to a line.

/// Line = `(min(key - first, span) << shift) * multiplier >> 96`: a multiplication, and no division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// Keys at or below this one have line 0.
    pub(super) first: u64,
    /// Keys at or above `first + span` have the last line.
    pub(super) span: u64,
    /// So that `span << shift` has its highest bit set.
    pub(super) shift: u32,
    /// Lines times 2^96, divided by `(span << shift) + 1`: at most 33 bits more than lines has.
    pub(super) multiplier: u64,
}

/// Bits of the line's fraction.
const FRACTION: u32 = 32;

impl Model {
    /// Spreads the keys from `first` to `last` evenly over `lines`, below 2^30.
    pub(super) fn new(first: u64, last: u64, lines: u64) -> Self {
        let span = (last - first).max(1);
        let mut model = Self::from_parts(first, span, 0);
        let divisor = u128::from(span << model.shift) + 1;
        model.multiplier = ((u128::from(lines) << (64 + FRACTION)) / divisor) as u64;
        model
    }

    pub(super) fn from_parts(first: u64, span: u64, multiplier: u64) -> Self {
        Self {
            first,
            span,
            shift: span.leading_zeros(),
            multiplier,
        }
    }

    #[inline(always)]
    pub(super) fn line(&self, key: u64) -> u64 {
        let distance = key.saturating_sub(self.first).min(self.span) << (self.shift & 63);
        ((u128::from(distance) * u128::from(self.multiplier)) >> (64 + FRACTION)) as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lines_ascend_and_end_before_the_last() {
        for (first, last) in [
            (0, u64::MAX),
            (5, 5),
            (7, 8),
            (0, 1 << 61),
            (1 << 63, u64::MAX),
            (100, 1000),
        ] {
            for lines in [1, 2, 7, 500, 1 << 20] {
                let model = Model::new(first, last, lines);
                assert_eq!(model.line(first), 0);
                assert_eq!(model.line(0), 0);
                let step = ((last - first) / 1000).max(1);
                let mut before = 0;
                for i in 0..=1000_u64 {
                    let line = model.line(first.saturating_add(step.saturating_mul(i)));
                    assert!(line >= before && line < lines, "{model:?} {lines}");
                    before = line;
                }
                assert_eq!(model.line(u64::MAX), model.line(last.max(first + 1)));
                if last - first >= lines {
                    assert_eq!(model.line(last), lines - 1);
                }
            }
        }
    }
}
