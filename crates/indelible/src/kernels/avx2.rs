//! AVX2: a line of keys in two registers. What AVX2 has no instruction for is done as in [`portable`](super::portable).

use super::portable::Plain;
use super::{Kernel, KeyLine, Simd};
use std::arch::x86_64::{
    __m256i, _mm256_and_si256, _mm256_castsi256_pd, _mm256_castsi256_ps, _mm256_cmpeq_epi64,
    _mm256_cmpgt_epi64, _mm256_loadu_si256, _mm256_movemask_pd, _mm256_movemask_ps,
    _mm256_set1_epi64x, _mm256_shuffle_ps, _mm256_xor_si256,
};

/// Runs `kernel` compiled for AVX2.
///
/// # Safety
///
/// The CPU has the features named.
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) unsafe fn with_avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2>()
}

/// AVX2.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

impl Simd for Avx2 {
    type Words = [u64; 16];

    #[inline(always)]
    fn at_most(line: &KeyLine, key: u64) -> u32 {
        // SAFETY: as in `Avx512::load`; reached only through `with_avx2`.
        unsafe {
            let keys = std::ptr::from_ref(line)
                .cast::<[__m256i; 2]>()
                .read_volatile();
            // AVX2 compares signed: flipping the top bit of both sides makes that the unsigned order.
            let flip = _mm256_set1_epi64x(i64::MIN);
            let key = _mm256_xor_si256(_mm256_set1_epi64x(key as i64), flip);
            let above = |half: __m256i| {
                let greater = _mm256_cmpgt_epi64(_mm256_xor_si256(half, flip), key);
                _mm256_movemask_pd(_mm256_castsi256_pd(greater)) as u32
            };
            !(above(keys[0]) | above(keys[1]) << 4) & 0xff
        }
    }

    #[inline(always)]
    fn count_at_most(line: &KeyLine, among: u8, key: u64) -> usize {
        // SAFETY: as in `Avx512::load`; reached only through `with_avx2`.
        unsafe {
            let keys = std::ptr::from_ref(line)
                .cast::<[__m256i; 2]>()
                .read_volatile();
            let flip = _mm256_set1_epi64x(i64::MIN);
            let key = _mm256_xor_si256(_mm256_set1_epi64x(key as i64), flip);
            let above = keys.map(|half| {
                _mm256_castsi256_ps(_mm256_cmpgt_epi64(_mm256_xor_si256(half, flip), key))
            });
            // One half of each result, all eight in one register. They come in the order 0, 1, 4, 5, 2, 3, 6, 7, and `among` with them.
            let above = _mm256_movemask_ps(_mm256_shuffle_ps::<0b10_00_10_00>(above[0], above[1]));
            let among = u32::from(among);
            let among = among & 0b1100_0011 | among >> 2 & 0b1100 | (among & 0b1100) << 2;
            (!above as u32 & among).count_ones() as usize
        }
    }

    #[inline(always)]
    fn equal(line: &KeyLine, key: u64) -> u32 {
        // SAFETY: as in `Avx512::load`; reached only through `with_avx2`.
        unsafe {
            let keys = std::ptr::from_ref(line)
                .cast::<[__m256i; 2]>()
                .read_volatile();
            let key = _mm256_set1_epi64x(key as i64);
            let equal = |half: __m256i| {
                let equal = _mm256_cmpeq_epi64(half, key);
                _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
            };
            equal(keys[0]) | equal(keys[1]) << 4
        }
    }

    // The compiler does well with these.

    #[inline(always)]
    fn evens(lines: &[KeyLine; 4], among: u16) -> [u64; 16] {
        Plain::evens(lines, among)
    }

    #[inline(always)]
    fn to_array(words: [u64; 16]) -> [u64; 16] {
        words
    }

    #[inline(always)]
    fn below(words: [u64; 16], key: u64) -> u16 {
        Plain::below(words, key)
    }

    #[inline(always)]
    fn is_strict<const UP: bool>(records: &[[u64; 2]]) -> bool {
        let mut at = 0;
        // SAFETY: reached only through `with_avx2`.
        let sign = unsafe { _mm256_set1_epi64x(i64::MIN) };
        let mut are_strict = sign;
        // Four records, and the four that are one further on, two at a time. With their sign bits flipped, the signed comparison
        // orders unsigned numbers.
        while let Some(five) = records.get(at..).and_then(|rest| rest.first_chunk::<5>()) {
            for two in [0, 2] {
                // SAFETY: both loads lie in the five records; reached only through `with_avx2`.
                unsafe {
                    let these = _mm256_loadu_si256(five[two..].as_ptr().cast());
                    let next = _mm256_loadu_si256(five[two + 1..].as_ptr().cast());
                    let (these, next) =
                        (_mm256_xor_si256(these, sign), _mm256_xor_si256(next, sign));
                    let is_strict = if UP {
                        _mm256_cmpgt_epi64(next, these)
                    } else {
                        _mm256_cmpgt_epi64(these, next)
                    };
                    are_strict = _mm256_and_si256(are_strict, is_strict);
                }
            }
            at += 4;
        }
        // SAFETY: reached only through `with_avx2`.
        let mask = unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(are_strict)) };
        const KEYS: i32 = 0b0101;
        mask & KEYS == KEYS && Plain::is_strict::<UP>(&records[at..])
    }
}
