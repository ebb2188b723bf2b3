//! AVX-512: a line of keys in one register.

use super::portable::Plain;
use super::{Kernel, KeyLine, MOST_RANKED, PAIR_RECORDS, Ranks, Simd, TagLine};
use crate::concurrency::sync::atomic::AtomicU64;
use std::arch::x86_64::{
    __m128i, __m512i, _CMP_LE_OQ, _mm512_add_epi64, _mm512_add_ps, _mm512_castsi512_ps,
    _mm512_cmp_pd_mask, _mm512_cmp_ps_mask, _mm512_cmpeq_epi64_mask, _mm512_cmpgt_epu64_mask,
    _mm512_cmple_epu32_mask, _mm512_cmple_epu64_mask, _mm512_cmplt_epi64_mask,
    _mm512_cmplt_epu64_mask, _mm512_cmpneq_epi8_mask, _mm512_cvtepi64_epi16, _mm512_kunpackb,
    _mm512_loadu_pd, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_add_epi64,
    _mm512_mask_blend_epi64, _mm512_mask_cmp_pd_mask, _mm512_mask_permutexvar_epi64,
    _mm512_maskz_compress_epi64, _mm512_max_ps, _mm512_mul_ps, _mm512_permutex2var_epi64,
    _mm512_permutex2var_pd, _mm512_permutexvar_epi64, _mm512_set_epi64, _mm512_set1_epi32,
    _mm512_set1_epi64, _mm512_set1_pd, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_sub_epi64, _mm512_sub_ps,
    _mm512_testn_epi32_mask, _mm512_xor_si512, _pdep_u32,
};

/// Runs `kernel` compiled for AVX-512.
///
/// # Safety
///
/// The CPU has the features named.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) unsafe fn with_avx512<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512>()
}

/// AVX-512.
#[derive(Clone, Copy)]
pub(super) struct Avx512;

impl Avx512 {
    #[inline(always)]
    fn load(line: &KeyLine) -> __m512i {
        // SAFETY: the line is 64 aligned, live bytes; the load is volatile because others may be writing, and a torn
        // result is discarded by the caller's version check.
        unsafe { std::ptr::from_ref(line).cast::<__m512i>().read_volatile() }
    }

    #[inline(always)]
    fn load_tags(line: &TagLine) -> __m512i {
        // SAFETY: as in `load`.
        unsafe { std::ptr::from_ref(line).cast::<__m512i>().read_volatile() }
    }

    /// Every second word of two lines.
    #[inline(always)]
    fn evens_of(left: __m512i, right: __m512i) -> __m512i {
        // SAFETY: reached only through `with_avx512`.
        unsafe {
            let even = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
            _mm512_permutex2var_epi64(left, even, right)
        }
    }
}

impl Simd for Avx512 {
    #[inline(always)]
    fn bytes(line: &KeyLine) -> [u8; 64] {
        // SAFETY: a register and 64 bytes are the same bytes.
        unsafe { std::mem::transmute(Self::load(line)) }
    }

    #[inline(always)]
    fn records(line: &KeyLine) -> KeyLine {
        // Volatile loads stay in this order, and the processor loads in order.
        let (before, after) = (Self::load(line), Self::load(line));
        // SAFETY: reached only through `with_avx512`. A register and eight words are the same bytes.
        unsafe { std::mem::transmute(_mm512_mask_blend_epi64(0b1010_1010, before, after)) }
    }

    #[inline(always)]
    fn shared_bytes(a: &[u8; 64], b: &[u8; 64]) -> usize {
        // SAFETY: both have 64 bytes; reached only through `with_avx512`.
        let differs = unsafe {
            let [a, b] = [a, b].map(|text| _mm512_loadu_si512(text.as_ptr().cast()));
            _mm512_cmpneq_epi8_mask(a, b)
        };
        differs.trailing_zeros() as usize
    }

    #[inline(always)]
    fn count_below(line: &KeyLine, among: u8, bound: i64) -> usize {
        let words = Self::load(line);
        // SAFETY: reached only through `with_avx512`.
        let below = unsafe { _mm512_cmplt_epi64_mask(words, _mm512_set1_epi64(bound)) };
        (below & among).count_ones() as usize
    }

    #[inline(always)]
    fn equal(line: &KeyLine, key: u64) -> u32 {
        let keys = Self::load(line);
        // SAFETY: reached only through `with_avx512`.
        unsafe { u32::from(_mm512_cmpeq_epi64_mask(keys, _mm512_set1_epi64(key as i64))) }
    }

    #[inline(always)]
    fn equal_in_pair(lines: &[KeyLine; 2], key: u64) -> u32 {
        // SAFETY: reached only through `with_avx512`.
        unsafe {
            let key = _mm512_set1_epi64(key as i64);
            let [low, high] = lines
                .each_ref()
                .map(|line| u16::from(_mm512_cmpeq_epi64_mask(Self::load(line), key)));
            u32::from(_mm512_kunpackb(high, low))
        }
    }

    #[inline(always)]
    fn floats_at_most(line: &TagLine, limit: f32) -> u32 {
        // SAFETY: reached only through `with_avx512`.
        unsafe {
            let floats = _mm512_castsi512_ps(Self::load_tags(line));
            u32::from(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(
                floats,
                _mm512_set1_ps(limit),
            ))
        }
    }

    #[inline(always)]
    fn points_between(points: &[[AtomicU64; 3]], low: [f64; 2], high: [f64; 2]) -> u64 {
        let (eights, rest) = points.as_chunks::<8>();
        let mut between = 0;
        // SAFETY: reached only through `with_avx512`. Eight points are three times 64 live bytes. Others may be writing: what is read may be torn, and the
        // caller's version check discards the result.
        unsafe {
            let (low_x, high_x) = (_mm512_set1_pd(low[0]), _mm512_set1_pd(high[0]));
            let (low_y, high_y) = (_mm512_set1_pd(low[1]), _mm512_set1_pd(high[1]));
            let first_x = _mm512_set_epi64(0, 0, 15, 12, 9, 6, 3, 0);
            let then_x = _mm512_set_epi64(13, 10, 5, 4, 3, 2, 1, 0);
            let first_y = _mm512_set_epi64(0, 0, 0, 13, 10, 7, 4, 1);
            let then_y = _mm512_set_epi64(14, 11, 8, 4, 3, 2, 1, 0);
            for (i, eight) in eights.iter().enumerate() {
                let words = std::ptr::from_ref(eight).cast::<f64>();
                let a = _mm512_loadu_pd(words);
                let b = _mm512_loadu_pd(words.add(8));
                let c = _mm512_loadu_pd(words.add(16));
                let x = _mm512_permutex2var_pd(_mm512_permutex2var_pd(a, first_x, b), then_x, c);
                let y = _mm512_permutex2var_pd(_mm512_permutex2var_pd(a, first_y, b), then_y, c);
                let mask = _mm512_cmp_pd_mask::<_CMP_LE_OQ>(low_x, x);
                let mask = _mm512_mask_cmp_pd_mask::<_CMP_LE_OQ>(mask, x, high_x);
                let mask = _mm512_mask_cmp_pd_mask::<_CMP_LE_OQ>(mask, low_y, y);
                let mask = _mm512_mask_cmp_pd_mask::<_CMP_LE_OQ>(mask, y, high_y);
                between |= u64::from(mask) << (8 * i);
            }
        }
        between | Plain::points_between(rest, low, high) << (8 * eights.len())
    }

    #[inline(always)]
    fn add_squares(low: &TagLine, negated: &TagLine, up: f32, down: f32, sums: &mut [f32; 16]) {
        // SAFETY: reached only through `with_avx512`; the sums are 64 live bytes.
        unsafe {
            let low = _mm512_castsi512_ps(Self::load_tags(low));
            let negated = _mm512_castsi512_ps(Self::load_tags(negated));
            let before = _mm512_sub_ps(low, _mm512_set1_ps(up));
            let behind = _mm512_add_ps(negated, _mm512_set1_ps(down));
            let gap = _mm512_max_ps(_mm512_max_ps(before, behind), _mm512_setzero_ps());
            let sum = _mm512_loadu_ps(sums.as_ptr());
            let sum = _mm512_add_ps(sum, _mm512_mul_ps(gap, gap));
            _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        }
    }

    #[inline(always)]
    fn tagged(line: &TagLine, tag: u32, among: u32) -> u32 {
        let words = Self::load_tags(line);
        // SAFETY: reached only through `with_avx512`.
        unsafe {
            let differs = _mm512_xor_si512(words, _mm512_set1_epi32(tag as i32));
            u32::from(_mm512_testn_epi32_mask(
                differs,
                _mm512_set1_epi32(among as i32),
            ))
        }
    }

    #[inline(always)]
    fn half_words_between(line: &TagLine, low: u32, span: u32) -> u32 {
        let words = Self::load_tags(line);
        // SAFETY: reached only through `with_avx512`.
        unsafe {
            let above = _mm512_sub_epi32(words, _mm512_set1_epi32(low as i32));
            u32::from(_mm512_cmple_epu32_mask(
                above,
                _mm512_set1_epi32(span as i32),
            ))
        }
    }

    #[inline(always)]
    fn records_between(pairs: &[[KeyLine; 2]], low: u64, span: u64, out: &mut [[u64; 2]]) -> usize {
        assert!(out.len() >= pairs.len() * PAIR_RECORDS);
        let out = out.as_mut_ptr();
        let mut count = 0;
        for pair in pairs {
            let [left, right] = pair.each_ref().map(Self::load);
            // SAFETY: reached only through `with_avx512`; no pair adds more than its eight records, so there is room in
            // `out` for those of this one behind the `count` of the pairs before it.
            unsafe {
                let keys = Self::evens_of(left, right);
                let above = _mm512_sub_epi64(keys, _mm512_set1_epi64(low as i64));
                let between = _mm512_cmple_epu64_mask(above, _mm512_set1_epi64(span as i64));
                let halves = out.add(count).cast::<__m512i>();
                if between & between.wrapping_add(1) == 0 {
                    // They come first.
                    _mm512_storeu_si512(halves, left);
                    _mm512_storeu_si512(halves.add(1), right);
                } else {
                    // Both words of each.
                    let words = 3 * _pdep_u32(between.into(), 0x5555);
                    let [of_left, of_right] = (words as u16).to_le_bytes();
                    _mm512_storeu_si512(halves, _mm512_maskz_compress_epi64(of_left, left));
                    let behind = halves.byte_add(8 * of_left.count_ones() as usize);
                    _mm512_storeu_si512(behind, _mm512_maskz_compress_epi64(of_right, right));
                }
                count += between.count_ones() as usize;
            }
        }
        count
    }

    #[inline(always)]
    fn sorted_between(
        pair: &[KeyLine; 2],
        low: u64,
        span: u64,
        out: &mut [[u64; 2]; PAIR_RECORDS],
    ) -> usize {
        // Batcher's network: in each step, the lane that each one is compared with, and those that take the larger.
        const STEPS: [([i64; 8], u8); 6] = [
            ([1, 0, 3, 2, 5, 4, 7, 6], 0b1010_1010),
            ([2, 3, 0, 1, 6, 7, 4, 5], 0b1100_1100),
            ([0, 2, 1, 3, 4, 6, 5, 7], 0b0100_0100),
            ([4, 5, 6, 7, 0, 1, 2, 3], 0b1111_0000),
            ([0, 1, 4, 5, 2, 3, 6, 7], 0b0011_0000),
            ([0, 2, 1, 4, 3, 6, 5, 7], 0b0101_0100),
        ];
        let [left, right] = pair.each_ref().map(Self::load);
        // SAFETY: reached only through `with_avx512`; `out` is 128 bytes for which every bit pattern is valid.
        unsafe {
            let from = _mm512_set1_epi64(low as i64);
            let odd = _mm512_set_epi64(15, 13, 11, 9, 7, 5, 3, 1);
            let mut values = _mm512_permutex2var_epi64(left, odd, right);
            let keys = Self::evens_of(left, right);
            // How far above `low` they are; what is not between is farther than all that is.
            let above = _mm512_sub_epi64(keys, from);
            let between = _mm512_cmple_epu64_mask(above, _mm512_set1_epi64(span as i64));
            let mut above = _mm512_mask_blend_epi64(between, _mm512_set1_epi64(-1), above);
            for (lanes, larger) in STEPS {
                let lanes = _mm512_loadu_si512(lanes.as_ptr().cast());
                let others = _mm512_permutexvar_epi64(lanes, above);
                let takes = _mm512_cmplt_epu64_mask(others, above) ^ larger;
                above = _mm512_mask_blend_epi64(takes, above, others);
                values = _mm512_mask_permutexvar_epi64(values, takes, lanes, values);
            }
            let keys = _mm512_add_epi64(above, from);
            let first = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0);
            let second = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
            let halves = out.as_mut_ptr().cast::<__m512i>();
            let records = _mm512_permutex2var_epi64(keys, first, values);
            _mm512_storeu_si512(halves, records);
            let records = _mm512_permutex2var_epi64(keys, second, values);
            _mm512_storeu_si512(halves.add(1), records);
            between.count_ones() as usize
        }
    }

    #[inline(always)]
    fn is_strict<const UP: bool>(records: &[[u64; 2]]) -> bool {
        const KEYS: u8 = 0x55;
        let (mut at, mut wrong) = (0, 0);
        // Four records, and the four that are one further on.
        while let Some(five) = records.get(at..).and_then(|rest| rest.first_chunk::<5>()) {
            // SAFETY: both loads lie in the five records; reached only through `with_avx512`.
            wrong |= unsafe {
                let these = _mm512_loadu_si512(five.as_ptr().cast());
                let next = _mm512_loadu_si512(five[1..].as_ptr().cast());
                if UP {
                    _mm512_cmple_epu64_mask(next, these)
                } else {
                    _mm512_cmple_epu64_mask(these, next)
                }
            };
            at += 4;
        }
        wrong & KEYS == 0 && Plain::is_strict::<UP>(&records[at..])
    }

    #[inline(always)]
    fn descent(records: &[[u64; 2]], from: usize) -> Option<usize> {
        const KEYS: u8 = 0x55;
        let mut at = from;
        // Four records, and the four that are one further on.
        while let Some(five) = records.get(at..).and_then(|rest| rest.first_chunk::<5>()) {
            // SAFETY: both loads lie in the five records; reached only through `with_avx512`.
            let above = unsafe {
                let these = _mm512_loadu_si512(five.as_ptr().cast());
                let next = _mm512_loadu_si512(five[1..].as_ptr().cast());
                _mm512_cmpgt_epu64_mask(these, next) & KEYS
            };
            if above != 0 {
                return Some(at + above.trailing_zeros() as usize / 2);
            }
            at += 4;
        }
        Plain::descent(records, at)
    }

    #[inline(always)]
    fn ranks(lines: &[KeyLine; 4], among: u16, _: u64, _: u64) -> Ranks {
        let lines = lines.each_ref().map(Self::load);
        let mut ranks = Ranks([0; 16]);
        // SAFETY: reached only through `with_avx512`; both types are the same 128 bytes, and a half of `ranks` is 16 bytes.
        unsafe {
            let max = _mm512_set1_epi64(-1);
            let of = |half: usize| Self::evens_of(lines[2 * half], lines[2 * half + 1]);
            let [low, high] = among.to_le_bytes();
            let halves = [
                _mm512_mask_blend_epi64(low, max, of(0)),
                _mm512_mask_blend_epi64(high, max, of(1)),
            ];
            // In memory, from where a comparison broadcasts one key; left alone, the compiler picks them from registers.
            let each = std::hint::black_box(std::mem::transmute::<[__m512i; 2], [u64; 16]>(halves));
            let two = _mm512_set1_epi64(2);
            let mut counts = [_mm512_setzero_si512(); 2];
            for &other in &each[1..=MOST_RANKED] {
                let other = _mm512_set1_epi64(other as i64);
                for (count, &half) in counts.iter_mut().zip(&halves) {
                    let is_above = _mm512_cmpgt_epu64_mask(half, other);
                    *count = _mm512_mask_add_epi64(*count, is_above, *count, two);
                }
            }
            let stored = ranks.0.as_mut_ptr().cast::<__m128i>();
            stored.write(_mm512_cvtepi64_epi16(counts[0]));
            stored.add(1).write(_mm512_cvtepi64_epi16(counts[1]));
        }
        ranks
    }
}
