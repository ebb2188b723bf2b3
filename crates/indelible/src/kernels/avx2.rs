//! AVX2: a line of keys in two registers. What AVX2 has no instruction for is done as in [`portable`](super::portable).

use super::portable::Plain;
use super::{Kernel, KeyLine, PAIR_RECORDS, Simd, TagLine, avx2_records};
use std::arch::x86_64::{
    __m256, __m256i, _CMP_LE_OQ, _mm256_and_si256, _mm256_castsi256_pd, _mm256_cmp_ps,
    _mm256_cmpeq_epi64, _mm256_cmpgt_epi64, _mm256_loadu_si256, _mm256_movemask_pd,
    _mm256_movemask_ps, _mm256_set1_epi64x, _mm256_set1_ps, _mm256_xor_si256,
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

    #[inline(always)]
    fn floats_at_most(line: &TagLine, limit: f32) -> u32 {
        // SAFETY: as in `Avx512::load`; reached only through `with_avx2`.
        unsafe {
            let halves = std::ptr::from_ref(line)
                .cast::<[__m256; 2]>()
                .read_volatile();
            let limit = _mm256_set1_ps(limit);
            // No closure: the compiler does not inline intrinsics into one.
            let low = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(halves[0], limit)) as u32;
            let high = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LE_OQ>(halves[1], limit)) as u32;
            low | high << 8
        }
    }

    #[inline(always)]
    fn with_key(pair: &[KeyLine; 2], key: u64) -> u32 {
        avx2_records::with_key(pair, key)
    }

    #[inline(always)]
    fn with_either_key(pair: &[KeyLine; 2], two: [u64; 2]) -> [u32; 2] {
        avx2_records::with_either_key(pair, two)
    }

    #[inline(always)]
    fn first_of(records: u32) -> usize {
        avx2_records::first_of(records)
    }

    #[inline(always)]
    fn records_between(pairs: &[[KeyLine; 2]], low: u64, span: u64, out: &mut [[u64; 2]]) -> usize {
        avx2_records::records_between(pairs, low, span, out)
    }

    #[inline(always)]
    fn sorted_between(
        pair: &[KeyLine; 2],
        low: u64,
        span: u64,
        out: &mut [[u64; 2]; PAIR_RECORDS],
    ) -> usize {
        avx2_records::sorted_between(pair, low, span, out)
    }

    #[inline(always)]
    fn descent(records: &[[u64; 2]], from: usize) -> Option<usize> {
        avx2_records::descent(records, from)
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
