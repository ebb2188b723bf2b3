//! AVX2: a line of keys in two registers. What AVX2 has no instruction for is done as in [`portable`](super::portable).

use super::portable::Plain;
use super::{Kernel, KeyLine, MOST_RANKED, PAIR_RECORDS, Ranks, Simd, TagLine, avx2_records};
use crate::concurrency::sync::atomic::AtomicU64;
use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_LE_OQ, _mm_add_epi64, _mm_cvtsi32_si128, _mm_cvtsi128_si32,
    _mm_extract_epi16, _mm_unpackhi_epi16, _mm_unpacklo_epi16, _mm256_add_ps, _mm256_and_pd,
    _mm256_and_si256, _mm256_blend_epi32, _mm256_blend_pd, _mm256_blendv_epi8, _mm256_blendv_pd,
    _mm256_castpd_si256, _mm256_castsi256_pd, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmp_pd, _mm256_cmp_ps, _mm256_cmpeq_epi8, _mm256_cmpeq_epi16, _mm256_cmpeq_epi64,
    _mm256_cmpgt_epi16, _mm256_cmpgt_epi64, _mm256_extracti128_si256, _mm256_loadu_pd,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_ps, _mm256_movemask_epi8, _mm256_movemask_pd,
    _mm256_movemask_ps, _mm256_mul_ps, _mm256_packus_epi32, _mm256_permute2f128_pd,
    _mm256_sad_epu8, _mm256_set_epi16, _mm256_set_epi64x, _mm256_set_pd, _mm256_set1_epi16,
    _mm256_set1_epi64x, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_shuffle_pd,
    _mm256_shuffle_ps, _mm256_slli_epi16, _mm256_sllv_epi64, _mm256_srl_epi64, _mm256_storeu_ps,
    _mm256_sub_epi16, _mm256_sub_epi64, _mm256_sub_ps, _mm256_unpacklo_epi64, _mm256_xor_si256,
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

/// [`Simd::ranks`] by a part of each key: the 14 bits below the highest that keys at most `span` above `low` can differ in. So one register
/// holds the parts of all sixteen keys. `None` if two of the parts are equal.
///
/// # Safety
///
/// The CPU has AVX2, and so has the caller.
#[inline(always)]
unsafe fn rank_by_parts(fours: &[__m256i; 4], among: u16, low: u64, span: u64) -> Option<Ranks> {
    // SAFETY: by the contract above; `Ranks` is one register, and aligned like one.
    unsafe {
        let low = _mm256_set1_epi64x(low as i64);
        let shift = _mm_cvtsi32_si128(50_u32.saturating_sub(span.leading_zeros()) as i32);
        let part = |four| _mm256_srl_epi64(_mm256_sub_epi64(four, low), shift);
        // The parts of the records with even numbers, then of those with odd ones.
        let parts = _mm256_packus_epi32(
            _mm256_packus_epi32(part(fours[0]), part(fours[1])),
            _mm256_packus_epi32(part(fours[2]), part(fours[3])),
        );
        const fn bit(record: usize) -> i16 {
            (1_u16 << record) as i16
        }
        let bits = _mm256_set_epi16(
            bit(15),
            bit(13),
            bit(11),
            bit(9),
            bit(7),
            bit(5),
            bit(3),
            bit(1),
            bit(14),
            bit(12),
            bit(10),
            bit(8),
            bit(6),
            bit(4),
            bit(2),
            bit(0),
        );
        let is_used = _mm256_cmpeq_epi16(
            _mm256_and_si256(_mm256_set1_epi16(among as i16), bits),
            bits,
        );
        let parts = _mm256_blendv_epi8(_mm256_set1_epi16(i16::MAX), parts, is_used);
        // In memory, from where one part is quickly broadcast; left alone, the compiler picks them from the register.
        let each: [i16; 16] =
            std::hint::black_box(std::mem::transmute::<__m256i, [i16; 16]>(parts));
        let mut counts = _mm256_setzero_si256();
        // The first and the last record stand first and last here too, and do not count.
        for other in &each[1..=MOST_RANKED] {
            // A comparison that holds gives -1.
            counts = _mm256_sub_epi16(counts, _mm256_cmpgt_epi16(parts, _mm256_set1_epi16(*other)));
        }
        // The ranks of n different parts are 0 to n - 1, and those of the other records n. Equal parts would make the sum smaller.
        let sums = _mm256_sad_epu8(counts, _mm256_setzero_si256());
        let sums = _mm_add_epi64(
            _mm256_castsi256_si128(sums),
            _mm256_extracti128_si256::<1>(sums),
        );
        let sum = _mm_cvtsi128_si32(sums) + _mm_extract_epi16::<4>(sums);
        let used = among.count_ones() as i32;
        if 2 * sum != used * (31 - used) {
            return None;
        }
        let counts = _mm256_slli_epi16::<1>(counts);
        let (even, odd) = (
            _mm256_castsi256_si128(counts),
            _mm256_extracti128_si256::<1>(counts),
        );
        let mut ranks = Ranks([0; 16]);
        let stored = ranks.0.as_mut_ptr().cast::<__m128i>();
        stored.write(_mm_unpacklo_epi16(even, odd));
        stored.add(1).write(_mm_unpackhi_epi16(even, odd));
        Some(ranks)
    }
}

/// [`Simd::ranks`] by the whole keys.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(never)]
#[target_feature(enable = "avx2")]
unsafe fn rank_by_keys(fours: [__m256i; 4], among: u16) -> Ranks {
    let mut keys = fours;
    let sign = _mm256_set1_epi64x(i64::MIN);
    let unused = _mm256_set1_epi64x(!i64::from(among));
    let largest = _mm256_castsi256_pd(_mm256_set1_epi64x(i64::MAX));
    for (i, four) in keys.iter_mut().enumerate() {
        // The bit of each record becomes the sign, by which `blendv` chooses.
        let first = 63 - 4 * i as i64;
        let bits = _mm256_set_epi64x(first - 3, first - 1, first - 2, first);
        let unused = _mm256_castsi256_pd(_mm256_sllv_epi64(unused, bits));
        // With the signs flipped, the signed comparison orders unsigned numbers.
        let flipped = _mm256_castsi256_pd(_mm256_xor_si256(*four, sign));
        *four = _mm256_castpd_si256(_mm256_blendv_pd(flipped, largest, unused));
    }
    // SAFETY: four registers and sixteen words are the same bytes.
    let each =
        std::hint::black_box(unsafe { std::mem::transmute::<[__m256i; 4], [i64; 16]>(keys) });
    let mut counts = [_mm256_setzero_si256(); 4];
    // The first and the last record stand first and last here too, and do not count.
    for other in &each[1..=MOST_RANKED] {
        let other = _mm256_set1_epi64x(*other);
        for (count, &four) in counts.iter_mut().zip(&keys) {
            // A comparison that holds gives -1.
            *count = _mm256_sub_epi64(*count, _mm256_cmpgt_epi64(four, other));
        }
    }
    // SAFETY: four registers and sixteen words are the same bytes.
    let counts = unsafe { std::mem::transmute::<[__m256i; 4], [u64; 16]>(counts) };
    let mut ranks = Ranks([0; 16]);
    for (four, counts) in ranks.0.chunks_exact_mut(4).zip(counts.chunks_exact(4)) {
        // A register has the records 0, 2, 1 and 3 of four.
        for (rank, from) in four.iter_mut().zip([0, 2, 1, 3]) {
            *rank = 2 * counts[from] as u16;
        }
    }
    ranks
}

/// AVX2.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

impl Simd for Avx2 {
    #[inline(always)]
    fn shared_bytes(a: &[u8; 64], b: &[u8; 64]) -> usize {
        // SAFETY: both have 64 bytes; reached only through `with_avx2`.
        let equal = |half: usize| unsafe {
            let [a, b] = [a, b].map(|text| _mm256_loadu_si256(text.as_ptr().add(32 * half).cast()));
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)) as u32
        };
        let equal = u64::from(equal(0)) | u64::from(equal(1)) << 32;
        equal.trailing_ones() as usize
    }

    #[inline(always)]
    fn bytes(line: &KeyLine) -> [u8; 64] {
        // SAFETY: as in `Avx512::load`. Two registers and 64 bytes are the same bytes.
        unsafe {
            let halves = std::ptr::from_ref(line).cast::<[__m256i; 2]>();
            std::mem::transmute(halves.read_volatile())
        }
    }

    #[inline(always)]
    fn records(line: &KeyLine) -> KeyLine {
        // SAFETY: as in `bytes`. Volatile loads stay in this order, and the processor loads in order.
        unsafe {
            let halves = std::ptr::from_ref(line).cast::<[__m256i; 2]>();
            let (before, after) = (halves.read_volatile(), halves.read_volatile());
            std::mem::transmute([
                _mm256_blend_epi32::<0b1100_1100>(before[0], after[0]),
                _mm256_blend_epi32::<0b1100_1100>(before[1], after[1]),
            ])
        }
    }

    #[inline(always)]
    fn count_below(line: &KeyLine, among: u8, bound: i64) -> usize {
        // SAFETY: as in `Avx512::load`; reached only through `with_avx2`.
        unsafe {
            let words = std::ptr::from_ref(line)
                .cast::<[__m256i; 2]>()
                .read_volatile();
            let bound = _mm256_set1_epi64x(bound);
            let low = _mm256_castsi256_ps(_mm256_cmpgt_epi64(bound, words[0]));
            let high = _mm256_castsi256_ps(_mm256_cmpgt_epi64(bound, words[1]));
            // One half of each result, all eight in one register. They come in the order 0, 1, 4, 5, 2, 3, 6, 7, and `among` with them.
            let below = _mm256_movemask_ps(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
            let among = u32::from(among);
            let among = among & 0b1100_0011 | among >> 2 & 0b1100 | (among & 0b1100) << 2;
            (below as u32 & among).count_ones() as usize
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
    fn points_between(points: &[[AtomicU64; 3]], low: [f64; 2], high: [f64; 2]) -> u64 {
        let (fours, rest) = points.as_chunks::<4>();
        let mut between = 0;
        // SAFETY: reached only through `with_avx2`. Four points are three times 32 live bytes. Others may be writing: what is read may be torn,
        // and the caller's version check discards the result.
        unsafe {
            let lows = _mm256_set_pd(low[1], low[0], low[1], low[0]);
            let highs = _mm256_set_pd(high[1], high[0], high[1], high[0]);
            for (i, four) in fours.iter().enumerate() {
                let words = std::ptr::from_ref(four).cast::<f64>();
                // Points 0 to 3 are a[0..2], a[3] and b[0], b[2..4], c[1..3].
                let a = _mm256_loadu_pd(words);
                let b = _mm256_loadu_pd(words.add(4));
                let c = _mm256_loadu_pd(words.add(8));
                let even = _mm256_blend_pd::<0b1100>(a, b);
                let xs = _mm256_permute2f128_pd::<0x21>(a, c);
                let ys = _mm256_blend_pd::<0b1100>(b, c);
                let odd = _mm256_shuffle_pd::<0b0101>(xs, ys);
                let even = _mm256_and_pd(
                    _mm256_cmp_pd::<_CMP_LE_OQ>(lows, even),
                    _mm256_cmp_pd::<_CMP_LE_OQ>(even, highs),
                );
                let odd = _mm256_and_pd(
                    _mm256_cmp_pd::<_CMP_LE_OQ>(lows, odd),
                    _mm256_cmp_pd::<_CMP_LE_OQ>(odd, highs),
                );
                // Both coordinates of a point have to lie between.
                let even = _mm256_movemask_pd(even) as u64;
                let odd = _mm256_movemask_pd(odd) as u64;
                let four = even & even >> 1 & 0b101 | (odd & odd >> 1 & 0b101) << 1;
                between |= four << (4 * i);
            }
        }
        between | Plain::points_between(rest, low, high) << (4 * fours.len())
    }

    #[inline(always)]
    fn add_squares(low: &TagLine, negated: &TagLine, up: f32, down: f32, sums: &mut [f32; 16]) {
        // SAFETY: reached only through `with_avx2`; the lines and the sums are 64 live bytes. The loads of lines are volatile as in
        // `Avx512::load`.
        unsafe {
            let low = std::ptr::from_ref(low)
                .cast::<[__m256; 2]>()
                .read_volatile();
            let negated = std::ptr::from_ref(negated)
                .cast::<[__m256; 2]>()
                .read_volatile();
            let (up, down, zero) = (
                _mm256_set1_ps(up),
                _mm256_set1_ps(down),
                _mm256_setzero_ps(),
            );
            for half in 0..2 {
                let before = _mm256_sub_ps(low[half], up);
                let behind = _mm256_add_ps(negated[half], down);
                let gap = _mm256_max_ps(_mm256_max_ps(before, behind), zero);
                let place = sums.as_mut_ptr().add(8 * half);
                let sum = _mm256_add_ps(_mm256_loadu_ps(place), _mm256_mul_ps(gap, gap));
                _mm256_storeu_ps(place, sum);
            }
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

    #[inline(always)]
    fn ranks(lines: &[KeyLine; 4], among: u16, low: u64, span: u64) -> Ranks {
        let pairs = lines.as_ptr().cast::<[__m256i; 2]>();
        // SAFETY: as in `Avx512::load`; each line is a pair of registers; reached only through `with_avx2`.
        unsafe {
            let mut fours = [_mm256_setzero_si256(); 4];
            for (i, four) in fours.iter_mut().enumerate() {
                let records = pairs.add(i).read_volatile();
                // The keys of records 0, 2, 1 and 3.
                *four = _mm256_unpacklo_epi64(records[0], records[1]);
            }
            match rank_by_parts(&fours, among, low, span) {
                Some(ranks) => ranks,
                None => rank_by_keys(fours, among),
            }
        }
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
