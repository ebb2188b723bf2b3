//! The Hilbert curve: an order of the cells of a square or cubic grid in which cells that follow one another are neighbours.
//!
//! The curve is described by a *state machine*. The square of 2^32 × 2^32 cells, or the cube of 2^21 per axis, is divided into 4 quadrants
//! (8 octants) by the first bit of each coordinate. The state says in which order the curve visits the quadrants, and which state
//! continues in each of them with the next bit. The place of a quadrant in that order is a *digit*; a code consists of the digits of all
//! levels. So an aligned set of cells is an aligned interval of codes: see [`Quadrant`](super::Quadrant).
//!
//! In two dimensions, the state has two bits: whether the axes are exchanged, and whether both are mirrored. A step of the machine is an
//! affine map of these two bits, and affine maps can be composed in any grouping. So [`encode2`] computes the states of all 32 levels by
//! a parallel prefix scan, in five rounds, without a table and without a branch. The scan is that of the article "2D Hilbert curves in
//! O(1)" of the weblog Raw Run Protected, 2014.
//!
//! In three dimensions, the state is the corner by which the curve enters, and the axis along which it leaves. The recurrence is that of
//! C. Hamilton and A. Rau-Chaplin, "Compact Hilbert indices", Information Processing Letters 105(5), 2008. [`encode3`] makes two levels per
//! lookup in a table, of which 1.5 KiB are in use.

use crate::kernels::{Kernel, Simd, SimdLevel, dispatch};

/// Bits of a cell's number per axis, in two dimensions and in three.
const BITS: [u32; 2] = [32, 21];

/// Bits of a cell's number on each of `axes` axes.
#[inline(always)]
pub(super) const fn bits(axes: usize) -> u32 {
    BITS[axes - 2]
}

/// A step of the machine in one byte: bits 0..3 the quadrant (bit 0 the first axis), bits 3..8 the state that continues in it.
type Step = u8;

const fn quadrant_of(step: Step) -> usize {
    (step & 7) as usize
}

const fn state_of(step: Step) -> usize {
    (step >> 3) as usize
}

/// Steps by state and digit, in two dimensions. Bit 0 of the state: the axes are exchanged. Bit 1: both are mirrored.
static STEPS2: [[Step; 4]; 4] = steps2();

/// Steps by state and digit, in three dimensions. The state is 3 × the corner of entry + the axis of leaving.
static STEPS3: [[Step; 8]; 24] = steps3();

/// The state in which both curves begin, at the corner of the lowest cells.
pub(super) const START: u8 = 0;

/// The quadrant that the curve visits as number `digit` in this state, and the state that continues in it.
#[inline(always)]
pub(super) fn step(axes: usize, state: u8, digit: usize) -> (usize, u8) {
    let step = if axes == 2 {
        STEPS2[state as usize & 3][digit & 3]
    } else {
        STEPS3[state as usize][digit & 7]
    };
    (quadrant_of(step), state_of(step) as u8)
}

const fn steps2() -> [[Step; 4]; 4] {
    let mut steps = [[0; 4]; 4];
    let mut at = 0;
    while at < 16 {
        let (state, quadrant) = (at / 4, at % 4);
        let (exchanged, mirrored) = (state & 1, state >> 1);
        let (x, y) = (quadrant & 1, quadrant >> 1);
        // The curve in its own coordinates visits (0, 0), (0, 1), (1, 1), (1, 0). In the first it continues with the axes exchanged, in
        // the last also mirrored.
        let (x, y) = if exchanged == 1 { (y, x) } else { (x, y) };
        let (x, y) = (x ^ mirrored, y ^ mirrored);
        let digit = x << 1 | (x ^ y);
        let next = state ^ (1 ^ y) ^ (x & (1 ^ y)) << 1;
        steps[state][digit] = (quadrant | next << 3) as Step;
        at += 1;
    }
    steps
}

const fn steps3() -> [[Step; 8]; 24] {
    const fn rotate_right(bits: usize, by: usize) -> usize {
        (bits >> by | bits << (3 - by)) & 7
    }
    const fn gray(i: usize) -> usize {
        i ^ i >> 1
    }
    let mut steps = [[0; 8]; 24];
    let mut at = 0;
    while at < 24 * 8 {
        let (state, digit) = (at / 8, at % 8);
        let (entry, axis) = (state / 3, state % 3);
        // To rotate left by axis + 1 is to rotate right by the rest; a rotation by 3 is none.
        let back = 2 - axis;
        let quadrant = rotate_right(gray(digit), back) ^ entry;
        let (enter, turn) = match digit {
            0 => (0, 0),
            _ if digit % 2 == 0 => (gray(digit - 2), (digit - 1).trailing_ones() as usize % 3),
            _ => (gray(digit - 1), digit.trailing_ones() as usize % 3),
        };
        let next = 3 * (entry ^ rotate_right(enter, back)) + (axis + turn + 1) % 3;
        steps[state][digit] = (quadrant | next << 3) as Step;
        at += 1;
    }
    steps
}

/// Two levels of the cube at once: by state << 6 | two bits of each coordinate, the state after them << 6 | their two digits. Only 12
/// states occur, and the table is filled up to a power of two so that an index needs no check.
static PAIRS: [u16; 2048] = pairs();

/// The state from which an additional level above, with the quadrant of the lowest cells, leads to [`START`] by digit 0: so that the 21
/// levels become 22, a whole number of pairs.
const ABOVE_START: usize = 2;

const fn pairs() -> [u16; 2048] {
    const fn two(high: usize, low: usize, axis: usize) -> usize {
        (high >> axis & 1) << 1 | (low >> axis & 1)
    }
    let steps = steps3();
    let mut pairs = [0; 2048];
    let mut at = 0;
    while at < 24 * 64 {
        let (state, digits) = (at / 64, at % 64);
        let first = steps[state][digits >> 3];
        let second = steps[state_of(first)][digits & 7];
        let (high, low) = (quadrant_of(first), quadrant_of(second));
        let index =
            state << 6 | two(high, low, 0) << 4 | two(high, low, 1) << 2 | two(high, low, 2);
        pairs[index] = (state_of(second) << 6 | digits) as u16;
        at += 1;
    }
    pairs
}

/// The code of a cell of the square.
#[inline(always)]
pub(super) fn encode2(x: u32, y: u32) -> u64 {
    // A step maps the state (c, d) of one level to that of the next by a matrix with the entries a, b and an addend. Bit k of each word
    // belongs to level k. Each round composes the maps of neighbouring runs of levels, from the highest bit down.
    let (p, q) = (x ^ y, !(x ^ y));
    let (r, s) = (!(x | y), x & !y);
    let a = p | q >> 1;
    let b = p >> 1 ^ p;
    let c = r >> 1 ^ (q & s >> 1) ^ r;
    let d = (p & r >> 1) ^ s >> 1 ^ s;
    let [_, _, c, d] = compose(compose(compose(compose([a, b, c, d], 2), 4), 8), 16);
    let (c, d) = (c ^ c >> 1, d ^ d >> 1);
    let low = x ^ y;
    let high = d | !(low | c);
    spread(high) << 1 | spread(low)
}

/// A round of [`encode2`]: the maps of runs of so many levels become those of runs twice as long.
#[inline(always)]
fn compose([a, b, c, d]: [u32; 4], shift: u32) -> [u32; 4] {
    let (a1, b1, c1, d1) = (a >> shift, b >> shift, c >> shift, d >> shift);
    [
        (a & a1) ^ (b & b1),
        (a & b1) ^ (b & (a1 ^ b1)),
        c ^ (a & c1) ^ (b & d1),
        d ^ (b & c1) ^ ((a ^ b) & d1),
    ]
}

/// Cells whose codes [`encode2_all`] computes together: as many as there are numbers in the widest registers.
pub(super) const TOGETHER: usize = 16;

/// The codes of cells of the square. There is no branch and no table in [`encode2`], so that the compiler computes all of them at once.
pub(super) fn encode2_all(x: &[u32; TOGETHER], y: &[u32; TOGETHER]) -> [u64; TOGETHER] {
    dispatch(SimdLevel::best(), EncodeAll { x, y })
}

struct EncodeAll<'a> {
    x: &'a [u32; TOGETHER],
    y: &'a [u32; TOGETHER],
}

impl Kernel for EncodeAll<'_> {
    type Out = [u64; TOGETHER];

    #[inline(always)]
    #[allow(
        clippy::needless_range_loop,
        reason = "a loop over numbers is what the compiler is known to do all at once"
    )]
    fn run<S: Simd>(self) -> [u64; TOGETHER] {
        let mut codes = [0; TOGETHER];
        for i in 0..TOGETHER {
            codes[i] = encode2(self.x[i], self.y[i]);
        }
        codes
    }
}

/// Bit i of `bits` at bit 2·i.
#[inline(always)]
const fn spread(bits: u32) -> u64 {
    let mut bits = bits as u64;
    bits = (bits | bits << 16) & 0x0000_FFFF_0000_FFFF;
    bits = (bits | bits << 8) & 0x00FF_00FF_00FF_00FF;
    bits = (bits | bits << 4) & 0x0F0F_0F0F_0F0F_0F0F;
    bits = (bits | bits << 2) & 0x3333_3333_3333_3333;
    (bits | bits << 1) & 0x5555_5555_5555_5555
}

/// The code of a cell of the cube; the coordinates have 21 bits.
#[inline]
pub(super) fn encode3(x: u32, y: u32, z: u32) -> u64 {
    let mut code = 0;
    let mut entry = ABOVE_START << 6;
    for pair in 0..11 {
        let level = 20 - 2 * pair;
        let cell = (x >> level & 3) << 4 | (y >> level & 3) << 2 | z >> level & 3;
        entry = usize::from(PAIRS[(entry & (31 << 6) | cell as usize) & 2047]);
        code = code << 6 | (entry & 63) as u64;
    }
    code
}

/// The cell of a code.
pub(super) fn decode(axes: usize, code: u64) -> [u32; 3] {
    let mut cells = [0; 3];
    let mut state = START;
    for level in (0..bits(axes)).rev() {
        let digit = code >> (level as usize * axes);
        let (quadrant, next) = step(axes, state, digit as usize);
        for (axis, cell) in cells.iter_mut().enumerate() {
            *cell |= (quadrant as u32 >> axis & 1) << level;
        }
        state = next;
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAST: u32 = (1 << 21) - 1;

    fn adjacent(a: [u32; 3], b: [u32; 3]) -> bool {
        (0..3).map(|axis| a[axis].abs_diff(b[axis])).sum::<u32>() == 1
    }

    #[test]
    fn the_curves_begin_at_the_lowest_cell_and_end_on_an_edge() {
        assert_eq!((encode2(0, 0), encode3(0, 0, 0)), (0, 0));
        assert_eq!((decode(2, 0), decode(3, 0)), ([0; 3], [0; 3]));
        assert_eq!(decode(2, u64::MAX), [u32::MAX, 0, 0]);
        let end = decode(3, u64::MAX >> 1);
        assert_eq!(end.iter().filter(|&&cell| cell == LAST).count(), 1);
        assert_eq!(end.iter().filter(|&&cell| cell == 0).count(), 2);
    }

    #[test]
    fn every_state_visits_every_quadrant_once() {
        for axes in [2, 3] {
            let mut reached = vec![START];
            let mut at = 0;
            while at < reached.len() {
                let mut seen = 0;
                for digit in 0..1 << axes {
                    let (quadrant, next) = step(axes, reached[at], digit);
                    seen |= 1 << quadrant;
                    if !reached.contains(&next) {
                        reached.push(next);
                    }
                }
                assert_eq!(seen, (1 << (1 << axes)) - 1);
                at += 1;
            }
            assert_eq!(reached.len(), [4, 12][axes - 2]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn codes_of_the_square_come_back(x: u32, y: u32, code: u64) {
            prop_assert_eq!(decode(2, encode2(x, y)), [x, y, 0]);
            let [x, y, _] = decode(2, code);
            prop_assert_eq!(encode2(x, y), code);
        }

        #[test]
        fn codes_of_the_cube_come_back(x in 0..=LAST, y in 0..=LAST, z in 0..=LAST, code in 0..1u64 << 63) {
            prop_assert_eq!(decode(3, encode3(x, y, z)), [x, y, z]);
            let [x, y, z] = decode(3, code);
            prop_assert_eq!(encode3(x, y, z), code);
        }

        #[test]
        fn codes_computed_together_are_those_computed_alone(cells: [[u32; 2]; TOGETHER]) {
            let (x, y) = (cells.map(|[x, _]| x), cells.map(|[_, y]| y));
            let alone = cells.map(|[x, y]| encode2(x, y));
            for level in SimdLevel::available() {
                prop_assert_eq!(dispatch(level, EncodeAll { x: &x, y: &y }), alone);
            }
        }

        #[test]
        fn codes_in_sequence_are_neighbours(code in 0..u64::MAX, shift in 0..64u32) {
            // Also where many digits change at once.
            let code = (code >> shift << shift).wrapping_sub(1).min(u64::MAX - 1);
            prop_assert!(adjacent(decode(2, code), decode(2, code + 1)));
            let code = (code >> 1).min((u64::MAX >> 1) - 1);
            prop_assert!(adjacent(decode(3, code), decode(3, code + 1)));
        }
    }
}
