//! AVX2 for records, a key and a value each: the functions of [`Simd`](super::Simd) that compare the keys of a pair of lines. The keys of
//! two lines at once are brought together in registers, in an order that saves instructions:
//!
//! ```text
//! pair of lines   k0 v0 k1 v1 | k2 v2 k3 v3 || k4 v4 k5 v5 | k6 v6 k7 v7
//! keys            k0 k2 k1 k3               || k4 k6 k5 k7
//! ```
//!
//! Every function is reached only through `with_avx2`, after the CPU was asked for AVX2. Loads are volatile because others may be writing;
//! what is torn is discarded by the caller's version check.
//!
//! The code has neither closures nor `array::map`: the compiler does not always inline these into functions for AVX2, and to call one
//! for each register costs more than the work.

use super::portable::Plain;
use super::{KeyLine, PAIR_RECORDS, Simd};
use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm_storeu_si128, _mm256_blendv_epi8, _mm256_castsi256_pd,
    _mm256_cmpeq_epi64, _mm256_cmpgt_epi64, _mm256_loadu_si256, _mm256_movemask_epi8,
    _mm256_movemask_pd, _mm256_packs_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_slli_epi64, _mm256_storeu_si256, _mm256_sub_epi64,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

/// The records of two lines, two to a register.
type Halves = [__m256i; 4];

#[inline(always)]
fn load(pair: &[KeyLine; 2]) -> Halves {
    // SAFETY: the pair is 128 live bytes, aligned to 64; see the head of this file.
    unsafe { std::ptr::from_ref(pair).cast::<Halves>().read_volatile() }
}

/// The keys of the records, in the order drawn above.
#[inline(always)]
fn keys(halves: Halves) -> [__m256i; 2] {
    // SAFETY: reached only through `with_avx2`.
    unsafe {
        [
            _mm256_unpacklo_epi64(halves[0], halves[1]),
            _mm256_unpacklo_epi64(halves[2], halves[3]),
        ]
    }
}

/// Four bits for each record whose key is `key`; [`first_of`] knows their order.
#[inline(always)]
pub(super) fn with_key(pair: &[KeyLine; 2], key: u64) -> u32 {
    equal(keys(load(pair)), key)
}

/// [`with_key`] for two keys.
#[inline(always)]
pub(super) fn with_either_key(pair: &[KeyLine; 2], two: [u64; 2]) -> [u32; 2] {
    let keys = keys(load(pair));
    [equal(keys, two[0]), equal(keys, two[1])]
}

#[inline(always)]
fn equal(keys: [__m256i; 2], key: u64) -> u32 {
    // SAFETY: reached only through `with_avx2`.
    unsafe {
        let key = _mm256_set1_epi64x(key as i64);
        let low = _mm256_cmpeq_epi64(keys[0], key);
        let high = _mm256_cmpeq_epi64(keys[1], key);
        // Saturated to half its width, each lane is all ones or all zeros as before.
        _mm256_movemask_epi8(_mm256_packs_epi32(low, high)) as u32
    }
}

/// How many bytes into its pair of lines the record of the lowest bit in a result of [`with_key`] begins.
#[inline(always)]
pub(super) fn first_of(records: u32) -> usize {
    // The lower 16 bits stand for records 0, 2, 4, 6, the upper ones for 1, 3, 5, 7; a record has 16 bytes.
    let bit = records.trailing_zeros() as usize;
    (bit & 0b1100) * 8 + (bit & 0b1_0000)
}

/// How far keys are above `low`, with the sign bit flipped: so signed comparison orders them.
#[inline(always)]
fn above(keys: __m256i, low: u64) -> __m256i {
    // SAFETY: reached only through `with_avx2`.
    unsafe {
        // Subtracting `low` and flipping the sign bit is one subtraction.
        _mm256_sub_epi64(keys, _mm256_set1_epi64x((low ^ 1 << 63) as i64))
    }
}

/// All ones for each distance of [`above`] that is more than `span`.
#[inline(always)]
fn beyond(above: __m256i, span: u64) -> __m256i {
    // SAFETY: reached only through `with_avx2`.
    unsafe { _mm256_cmpgt_epi64(above, _mm256_set1_epi64x((span ^ 1 << 63) as i64)) }
}

#[inline(always)]
fn mask(lanes: __m256i) -> u32 {
    // SAFETY: reached only through `with_avx2`.
    unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(lanes)) as u32 }
}

/// Lanes of [`keys`] in the order of the records.
#[inline(always)]
fn in_order(lanes: __m256i) -> __m256i {
    // SAFETY: reached only through `with_avx2`.
    unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(lanes) }
}

/// See [`Simd::records_between`].
#[inline(always)]
pub(super) fn records_between(
    pairs: &[[KeyLine; 2]],
    low: u64,
    span: u64,
    out: &mut [[u64; 2]],
) -> usize {
    assert!(out.len() >= pairs.len() * PAIR_RECORDS);
    let mut count = 0;
    for pair in pairs {
        let halves = load(pair);
        let [left, right] = keys(halves);
        let left = mask(in_order(beyond(above(left, low), span)));
        let right = mask(in_order(beyond(above(right, low), span)));
        let wanted = !(left | right << 4) & 0xff;
        if wanted & (wanted + 1) == 0 {
            // They come first.
            // SAFETY: reached only through `with_avx2`; no pair adds more than its eight records, so `out` has room for those of this
            // one behind the `count` of the pairs before it.
            unsafe {
                let to = out.as_mut_ptr().add(count).cast::<__m256i>();
                _mm256_storeu_si256(to, halves[0]);
                _mm256_storeu_si256(to.add(1), halves[1]);
                _mm256_storeu_si256(to.add(2), halves[2]);
                _mm256_storeu_si256(to.add(3), halves[3]);
            }
            count += wanted.count_ones() as usize;
        } else {
            count +=
                Plain::records_between(std::slice::from_ref(pair), low, span, &mut out[count..]);
        }
    }
    count
}

/// Adds one to each of the counts whose key is above the key in all lanes of `one`.
#[inline(always)]
fn add_above(
    counts: (__m256i, __m256i),
    keys: (__m256i, __m256i),
    one: __m256i,
) -> (__m256i, __m256i) {
    // SAFETY: reached only through `with_avx2`.
    unsafe {
        (
            _mm256_sub_epi64(counts.0, _mm256_cmpgt_epi64(keys.0, one)),
            _mm256_sub_epi64(counts.1, _mm256_cmpgt_epi64(keys.1, one)),
        )
    }
}

/// See [`Simd::sorted_between`]. Each record is compared with all others, and so has its place in the order counted.
#[inline(always)]
pub(super) fn sorted_between(
    pair: &[KeyLine; 2],
    low: u64,
    span: u64,
    out: &mut [[u64; 2]; PAIR_RECORDS],
) -> usize {
    let halves = load(pair);
    // SAFETY: reached only through `with_avx2`; the loads and stores of records lie in `records` and in `out`, as a place is below 8: no
    // key is above itself.
    unsafe {
        // What is not between is farther than all that is: `span` is below `u64::MAX`.
        let far = _mm256_set1_epi64x(i64::MAX);
        let [left, right] = keys(halves);
        let (left, right) = (above(left, low), above(right, low));
        let (left_beyond, right_beyond) = (beyond(left, span), beyond(right, span));
        let left = _mm256_blendv_epi8(left, far, left_beyond);
        let right = _mm256_blendv_epi8(right, far, right_beyond);
        let mut places = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for keys in [left, right] {
            places = add_above(
                places,
                (left, right),
                _mm256_permute4x64_epi64::<0x00>(keys),
            );
            places = add_above(
                places,
                (left, right),
                _mm256_permute4x64_epi64::<0x55>(keys),
            );
            places = add_above(
                places,
                (left, right),
                _mm256_permute4x64_epi64::<0xaa>(keys),
            );
            places = add_above(
                places,
                (left, right),
                _mm256_permute4x64_epi64::<0xff>(keys),
            );
        }
        // In bytes.
        let (left, right) = (
            _mm256_slli_epi64::<4>(places.0),
            _mm256_slli_epi64::<4>(places.1),
        );
        let places: [u64; 8] = std::mem::transmute([left, right]);
        let from = std::ptr::from_ref(&halves).cast::<[u64; 2]>();
        let to = out.as_mut_ptr();
        for (record, lane) in [
            (0, 0),
            (1, 2),
            (2, 1),
            (3, 3),
            (4, 4),
            (5, 6),
            (6, 5),
            (7, 7),
        ] {
            let record = _mm_loadu_si128(from.add(record).cast());
            _mm_storeu_si128(to.byte_add(places[lane] as usize).cast(), record);
        }
        let unwanted = mask(left_beyond) | mask(right_beyond) << 4;
        PAIR_RECORDS - unwanted.count_ones() as usize
    }
}

/// For the words of two of five records, from number `first` on, whether each is above that of the next record.
#[inline(always)]
fn pairs_above(five: &[[u64; 2]; 5], first: usize, sign: __m256i) -> u32 {
    // SAFETY: both loads lie in the five records; reached only through `with_avx2`.
    unsafe {
        let these = _mm256_loadu_si256(five[first..].as_ptr().cast());
        let next = _mm256_loadu_si256(five[first + 1..].as_ptr().cast());
        mask(_mm256_cmpgt_epi64(
            _mm256_xor_si256(these, sign),
            _mm256_xor_si256(next, sign),
        ))
    }
}

/// See [`Simd::descent`].
#[inline(always)]
pub(super) fn descent(records: &[[u64; 2]], from: usize) -> Option<usize> {
    const KEYS: u32 = 0b0101_0101;
    let mut at = from;
    // SAFETY: reached only through `with_avx2`.
    let sign = unsafe { _mm256_set1_epi64x(i64::MIN) };
    // Four records, and the four that are one further on.
    while at + 5 <= records.len() {
        let Some(five) = records[at..].first_chunk::<5>() else {
            break;
        };
        let left = pairs_above(five, 0, sign);
        let right = pairs_above(five, 2, sign);
        let above = (left | right << 4) & KEYS;
        if above != 0 {
            return Some(at + above.trailing_zeros() as usize / 2);
        }
        at += 4;
    }
    Plain::descent(records, at)
}
