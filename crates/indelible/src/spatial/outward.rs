//! Rounding to `f32` so that a box never loses what it contains.

/// The greatest `f32` that is not above `x`: minus infinity, if `x` is below all finite ones.
#[inline(always)]
pub(crate) fn f32_below(x: f64) -> f32 {
    // The cast rounds to the nearest, so that the result is at most one step too high.
    let nearest = x as f32;
    let steps = u32::from(f64::from(nearest) > x);
    if nearest == 0.0 {
        return if steps > 0 {
            nearest.next_down()
        } else {
            nearest
        };
    }
    // One step down, without a branch, which half of all numbers would take: one less for a positive number, whose bits are in the order of the
    // numbers, and one more for a negative one.
    let bits = nearest.to_bits();
    let down = bits >> 31 << 1;
    f32::from_bits(bits.wrapping_add(steps.wrapping_mul(down.wrapping_sub(1))))
}

/// The smallest `f32` that is not below `x`: infinity, if `x` is above all finite ones.
#[inline(always)]
pub(crate) fn f32_above(x: f64) -> f32 {
    -f32_below(-x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holds(x: f64) -> bool {
        let (below, above) = (f32_below(x), f32_above(x));
        let exact = f64::from(x as f32) == x;
        f64::from(below) <= x
            && x <= f64::from(above)
            // There is no f32 between.
            && (if exact { below == above } else { below.next_up() == above })
    }

    #[test]
    fn the_ends_of_the_range() {
        let inf = f64::INFINITY;
        assert_eq!(
            (f32_below(inf), f32_above(inf)),
            (f32::INFINITY, f32::INFINITY)
        );
        assert_eq!(
            (f32_below(1e300), f32_above(1e300)),
            (f32::MAX, f32::INFINITY)
        );
        assert_eq!(
            (f32_below(-1e300), f32_above(-1e300)),
            (f32::NEG_INFINITY, f32::MIN)
        );
        assert_eq!(
            (f32_below(5e-324), f32_above(5e-324)),
            (0.0, f32::from_bits(1))
        );
        assert_eq!(
            (f32_below(-5e-324), f32_above(-5e-324)),
            (-f32::from_bits(1), 0.0)
        );
        for x in [
            0.0,
            -0.0,
            1.0,
            0.1,
            f64::MAX,
            f64::MIN,
            f64::from(f32::MAX),
            f64::from(f32::MAX).next_up(),
            -inf,
        ] {
            assert!(holds(x), "{x:e}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn no_f32_is_closer(bits: u64, small: f32) {
            for x in [f64::from_bits(bits), f64::from(small), f64::from(small).next_up(), f64::from(small).next_down()] {
                prop_assert!(x.is_nan() || holds(x), "{x:e}");
            }
        }
    }
}
