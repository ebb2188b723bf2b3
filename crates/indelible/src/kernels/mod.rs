//! Comparing one key with a cache line of keys, with the widest instructions that the CPU has.
//!
//! The searches are generic over [`Simd`] and are compiled once per instruction set; [`dispatch`] chooses at run time.
//! [`Plain`] needs nothing and is what other architectures run; tests run every kind that the machine has.

use crate::concurrency::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Eight keys in one cache line. Read while others may be writing them: what is read may be torn, and the caller
/// validates a version afterwards.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct KeyLine(pub(crate) [AtomicU64; 8]);

/// Records, a key and a value each, in one cache line.
pub(crate) const LINE_RECORDS: usize = 4;

/// Records in two cache lines.
pub(crate) const PAIR_RECORDS: usize = 2 * LINE_RECORDS;

/// Sixteen half words in one cache line, likewise.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct TagLine(pub(crate) [AtomicU32; 16]);

/// One instruction set.
pub(crate) trait Simd: Copy {
    /// Bit `i` of the result says whether key `i` is at most `key`, as unsigned numbers.
    fn at_most(line: &KeyLine, key: u64) -> u32;

    /// Bit `i` of the result says whether key `i` is `key`.
    fn equal(line: &KeyLine, key: u64) -> u32;

    /// The same for the keys of two lines.
    #[inline(always)]
    fn equal_in_pair(lines: &[KeyLine; 2], key: u64) -> u32 {
        Self::equal(&lines[0], key) | Self::equal(&lines[1], key) << 8
    }

    /// Bit `i` of the result says whether half word `i` is `tag`, as far as the bits in `among` go.
    #[inline(always)]
    fn tagged(line: &TagLine, tag: u32, among: u32) -> u32 {
        line.0.iter().enumerate().fold(0, |mask, (i, word)| {
            let differs = (word.load(Ordering::Relaxed) ^ tag) & among != 0;
            mask | (u32::from(!differs) << i)
        })
    }

    /// Bit `i` of the result says whether half word `i` is at most `span` above `low`.
    #[inline(always)]
    fn half_words_between(line: &TagLine, low: u32, span: u32) -> u32 {
        line.0.iter().enumerate().fold(0, |mask, (i, word)| {
            let is_between = word.load(Ordering::Relaxed).wrapping_sub(low) <= span;
            mask | (u32::from(is_between) << i)
        })
    }

    /// Takes the records, a key and a value each, whose keys are at most `span` above `low` out of pairs of lines, and returns
    /// how many there are. `out` has room for all records of the pairs; what is behind those that are taken means nothing.
    /// Fast where those of a pair come first in it.
    #[inline(always)]
    fn records_between(pairs: &[[KeyLine; 2]], low: u64, span: u64, out: &mut [[u64; 2]]) -> usize {
        assert!(out.len() >= pairs.len() * PAIR_RECORDS);
        let mut count = 0;
        let lines = pairs.as_flattened().iter();
        for slot in lines.flat_map(|line| line.0.chunks_exact(2)) {
            let record = [0, 1].map(|word| slot[word].load(Ordering::Relaxed));
            // Written in any case: whether it counts cannot be foreseen.
            out[count] = record;
            count += usize::from(record[0].wrapping_sub(low) <= span);
        }
        count
    }

    /// The same for one pair, and the records in order. `span` is below `u64::MAX`.
    #[inline(always)]
    fn sorted_between(
        pair: &[KeyLine; 2],
        low: u64,
        span: u64,
        out: &mut [[u64; 2]; PAIR_RECORDS],
    ) -> usize {
        let count = Self::records_between(std::slice::from_ref(pair), low, span, out);
        (1..count).for_each(|at| put_back(out, at));
        count
    }

    /// The first record from `from` on whose key is above that of the next one; none if they ascend from there to the end.
    #[inline(always)]
    fn descent(records: &[[u64; 2]], from: usize) -> Option<usize> {
        (from + 1..records.len())
            .find(|&next| records[next - 1][0] > records[next][0])
            .map(|next| next - 1)
    }

    /// How many of the keys in `line` whose bit is set in `among` are at most `key`.
    #[inline(always)]
    fn count_at_most(line: &KeyLine, among: u8, key: u64) -> usize {
        (Self::at_most(line, key) & u32::from(among)).count_ones() as usize
    }

    /// Sixteen words in registers.
    type Words: Copy;

    /// Every second word of four lines, numbered from 0 to 15. Those not in `among` become `u64::MAX`.
    fn evens(lines: &[KeyLine; 4], among: u16) -> Self::Words;

    /// Back to memory.
    fn to_array(words: Self::Words) -> [u64; 16];

    /// Bit `i` of the result says whether word `i` is less than `key`, as unsigned numbers.
    fn below(words: Self::Words, key: u64) -> u16;
}

/// Moves a record to where it belongs among those before it, which are in order.
#[inline(always)]
pub(crate) fn put_back(records: &mut [[u64; 2]], mut at: usize) {
    let record = records[at];
    while at > 0 && records[at - 1][0] > record[0] {
        records[at] = records[at - 1];
        at -= 1;
    }
    records[at] = record;
}

/// The instruction sets, for choosing at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimdLevel {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    Avx2,
    Plain,
}

impl SimdLevel {
    /// All that this CPU has, best first.
    pub(crate) fn available() -> Vec<Self> {
        let mut levels = Vec::new();
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        {
            let has_bits = is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("lzcnt");
            let has_avx2 = has_bits && is_x86_feature_detected!("avx2");
            if has_avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                levels.push(Self::Avx512);
            }
            if has_avx2 {
                levels.push(Self::Avx2);
            }
        }
        levels.push(Self::Plain);
        levels
    }

    /// The best that this CPU has.
    pub(crate) fn best() -> Self {
        Self::available()[0]
    }
}

/// Work that is compiled once per instruction set.
pub(crate) trait Kernel {
    type Out;
    /// Must be `#[inline(always)]`, so that it takes on the instruction set of its caller.
    fn run<S: Simd>(self) -> Self::Out;
}

/// Runs `kernel` with the instruction set `level`.
#[inline(always)]
pub(crate) fn dispatch<K: Kernel>(level: SimdLevel, kernel: K) -> K::Out {
    match level {
        // SAFETY: a level other than `Plain` comes from `SimdLevel::available`, which asked the CPU.
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        SimdLevel::Avx512 => unsafe { x86::with_avx512(kernel) },
        // SAFETY: as above.
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        SimdLevel::Avx2 => unsafe { x86::with_avx2(kernel) },
        SimdLevel::Plain => plainly(kernel),
    }
}

/// Not inlined where it is seldom needed.
#[cfg_attr(target_arch = "x86_64", inline(never))]
#[cfg_attr(not(target_arch = "x86_64"), inline(always))]
fn plainly<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Plain>()
}

/// No special instructions.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Simd for Plain {
    type Words = [u64; 16];

    #[inline(always)]
    fn at_most(line: &KeyLine, key: u64) -> u32 {
        line.0.iter().enumerate().fold(0, |mask, (i, word)| {
            mask | (u32::from(word.load(Ordering::Relaxed) <= key) << i)
        })
    }

    #[inline(always)]
    fn equal(line: &KeyLine, key: u64) -> u32 {
        line.0.iter().enumerate().fold(0, |mask, (i, word)| {
            mask | (u32::from(word.load(Ordering::Relaxed) == key) << i)
        })
    }

    #[inline(always)]
    fn evens(lines: &[KeyLine; 4], among: u16) -> [u64; 16] {
        std::array::from_fn(|i| {
            if among >> i & 1 != 0 {
                lines[i / 4].0[i % 4 * 2].load(Ordering::Relaxed)
            } else {
                u64::MAX
            }
        })
    }

    #[inline(always)]
    fn to_array(words: [u64; 16]) -> [u64; 16] {
        words
    }

    #[inline(always)]
    fn below(words: [u64; 16], key: u64) -> u16 {
        words
            .iter()
            .enumerate()
            .fold(0, |mask, (i, &word)| mask | (u16::from(word < key) << i))
    }
}

#[cfg(all(target_arch = "x86_64", not(loom)))]
mod x86 {
    use super::{Kernel, KeyLine, PAIR_RECORDS, Plain, Simd, TagLine};
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_castsi256_pd, _mm256_cmpeq_epi64, _mm256_cmpgt_epi64,
        _mm256_movemask_pd, _mm256_set1_epi64x, _mm256_xor_si256, _mm512_add_epi64,
        _mm512_cmpeq_epi64_mask, _mm512_cmpgt_epu64_mask, _mm512_cmple_epu32_mask,
        _mm512_cmple_epu64_mask, _mm512_cmplt_epu64_mask, _mm512_kunpackb, _mm512_loadu_si512,
        _mm512_mask_blend_epi64, _mm512_mask_permutexvar_epi64, _mm512_maskz_compress_epi64,
        _mm512_permutex2var_epi64, _mm512_permutexvar_epi64, _mm512_set_epi64, _mm512_set1_epi32,
        _mm512_set1_epi64, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_sub_epi64,
        _mm512_testn_epi32_mask, _mm512_xor_si512, _pdep_u32,
    };

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) unsafe fn with_avx512<K: Kernel>(kernel: K) -> K::Out {
        kernel.run::<Avx512>()
    }

    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    pub(super) unsafe fn with_avx2<K: Kernel>(kernel: K) -> K::Out {
        kernel.run::<Avx2>()
    }

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
        type Words = [__m512i; 2];

        #[inline(always)]
        fn at_most(line: &KeyLine, key: u64) -> u32 {
            let keys = Self::load(line);
            // SAFETY: reached only through `with_avx512`.
            unsafe { u32::from(_mm512_cmple_epu64_mask(keys, _mm512_set1_epi64(key as i64))) }
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
        fn records_between(
            pairs: &[[KeyLine; 2]],
            low: u64,
            span: u64,
            out: &mut [[u64; 2]],
        ) -> usize {
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
        fn evens(lines: &[KeyLine; 4], among: u16) -> [__m512i; 2] {
            let lines = lines.each_ref().map(Self::load);
            // SAFETY: reached only through `with_avx512`.
            unsafe {
                let max = _mm512_set1_epi64(-1);
                [
                    _mm512_mask_blend_epi64(among as u8, max, Self::evens_of(lines[0], lines[1])),
                    _mm512_mask_blend_epi64(
                        (among >> 8) as u8,
                        max,
                        Self::evens_of(lines[2], lines[3]),
                    ),
                ]
            }
        }

        #[inline(always)]
        fn to_array(words: [__m512i; 2]) -> [u64; 16] {
            // SAFETY: both are 128 bytes for which every bit pattern is valid.
            unsafe { std::mem::transmute(words) }
        }

        #[inline(always)]
        fn below(words: [__m512i; 2], key: u64) -> u16 {
            // SAFETY: reached only through `with_avx512`.
            unsafe {
                let key = _mm512_set1_epi64(key as i64);
                let mut low = u32::from(_mm512_cmplt_epu64_mask(words[0], key));
                let mut high = u32::from(_mm512_cmplt_epu64_mask(words[1], key));
                // Opaque to the optimizer, which would gather the masks of several calls in a vector to count their
                // bits there, at several times the cost.
                std::arch::asm!("/* {0:e} {1:e} */", inlateout(reg) low, inlateout(reg) high, options(pure, nomem, nostack, preserves_flags));
                (low | high << 8) as u16
            }
        }
    }

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
    }
}

/// Asks the caches for the line at `address`. Any address is allowed.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint; it does not fault on any address. SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct AtMost<'a>(&'a KeyLine, u64);

    impl Kernel for AtMost<'_> {
        type Out = (u32, u32, usize);

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            (
                S::at_most(self.0, self.1),
                S::equal(self.0, self.1),
                S::count_at_most(self.0, AMONG, self.1),
            )
        }
    }

    struct EqualInPair<'a>(&'a [KeyLine; 2], u64);

    impl Kernel for EqualInPair<'_> {
        type Out = u32;

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            S::equal_in_pair(self.0, self.1)
        }
    }

    struct RecordsBetween<'a>(&'a [[KeyLine; 2]], u64, u64);

    impl Kernel for RecordsBetween<'_> {
        type Out = Vec<[u64; 2]>;

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            let mut out = vec![[0; 2]; self.0.len() * PAIR_RECORDS];
            let count = S::records_between(self.0, self.1, self.2, &mut out);
            out.truncate(count);
            out
        }
    }

    struct SortedBetween<'a>(&'a [KeyLine; 2], u64, u64);

    impl Kernel for SortedBetween<'_> {
        type Out = Vec<[u64; 2]>;

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            let mut out = [[0; 2]; PAIR_RECORDS];
            let count = S::sorted_between(self.0, self.1, self.2, &mut out);
            out[..count].to_vec()
        }
    }

    struct Descent<'a>(&'a [[u64; 2]], usize);

    impl Kernel for Descent<'_> {
        type Out = Option<usize>;

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            S::descent(self.0, self.1)
        }
    }

    struct Tagged<'a>(&'a TagLine, u32, u32);

    impl Kernel for Tagged<'_> {
        type Out = u32;

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            S::tagged(self.0, self.1, self.2)
        }
    }

    struct HalfWordsBetween<'a>(&'a TagLine, u32, u32);

    impl Kernel for HalfWordsBetween<'_> {
        type Out = u32;

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            S::half_words_between(self.0, self.1, self.2)
        }
    }

    struct Evens<'a>(&'a [KeyLine; 4], u16, u64);

    impl Kernel for Evens<'_> {
        type Out = ([u64; 16], u16);

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            let words = S::evens(self.0, self.1);
            (S::to_array(words), S::below(words, self.2))
        }
    }

    const AMONG: u8 = 0b1011_0110;
    const WORDS: [u64; 8] = [
        0,
        1,
        (1 << 63) - 1,
        1 << 63,
        (1 << 63) + 1,
        u64::MAX - 1,
        u64::MAX,
        u64::MAX,
    ];

    #[test]
    fn every_instruction_set_compares_as_unsigned_numbers() {
        let line = KeyLine(WORDS.map(AtomicU64::new));
        for level in SimdLevel::available() {
            for key in WORDS {
                let expected = (0..8)
                    .filter(|&i| WORDS[i] <= key)
                    .map(|i| 1 << i)
                    .sum::<u32>();
                let equal = (0..8)
                    .filter(|&i| WORDS[i] == key)
                    .map(|i| 1 << i)
                    .sum::<u32>();
                let count = (expected & u32::from(AMONG)).count_ones() as usize;
                assert_eq!(
                    dispatch(level, AtMost(&line, key)),
                    (expected, equal, count),
                    "{level:?} {key:#x}"
                );
            }
            let lines = [0, 3].map(|turn| {
                let mut words = WORDS;
                words.rotate_left(turn);
                KeyLine(words.map(AtomicU64::new))
            });
            for key in WORDS {
                let all = lines.iter().flat_map(|line| &line.0);
                let equal = all
                    .enumerate()
                    .filter(|(_, word)| word.load(Ordering::Relaxed) == key);
                let expected = equal.map(|(i, _)| 1 << i).sum::<u32>();
                assert_eq!(
                    dispatch(level, EqualInPair(&lines, key)),
                    expected,
                    "{level:?} {key:#x}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn every_instruction_set_takes_what_is_between(
            words in proptest::collection::vec(
                proptest::array::uniform16(prop_oneof![proptest::sample::select(&WORDS[..]), 0..9_u64, any::<u64>()]),
                0..5,
            ),
            bounds in proptest::array::uniform2(prop_oneof![proptest::sample::select(&WORDS[..]), 0..9_u64, any::<u64>()]),
        ) {
            let line = |words: &[u64]| KeyLine(std::array::from_fn(|i| AtomicU64::new(words[i])));
            let pairs: Vec<_> = words.iter().map(|words| [line(&words[..8]), line(&words[8..])]).collect();
            let (low, high) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]));
            let records = words.as_flattened().as_chunks::<2>().0.iter();
            let expected: Vec<[u64; 2]> =
                records.copied().filter(|record| (low..=high).contains(&record[0])).collect();
            for level in SimdLevel::available() {
                prop_assert_eq!(&dispatch(level, RecordsBetween(&pairs, low, high - low)), &expected, "{:?}", level);
            }
        }

        #[test]
        fn every_instruction_set_finds_the_tags(
            words in proptest::array::uniform16(prop_oneof![0..4_u32, any::<u32>()]),
            tag in prop_oneof![0..4_u32, any::<u32>()],
            among in prop_oneof![Just(u32::MAX), Just(0), 0..4_u32, any::<u32>()],
        ) {
            let line = TagLine(words.map(AtomicU32::new));
            let is_tagged = |i: &usize| words[*i] & among == tag & among;
            let expected = (0..16).filter(is_tagged).map(|i| 1 << i).sum::<u32>();
            for level in SimdLevel::available() {
                prop_assert_eq!(dispatch(level, Tagged(&line, tag, among)), expected, "{:?}", level);
            }
        }

        #[test]
        fn every_instruction_set_finds_the_half_words_between(
            words in proptest::array::uniform16(prop_oneof![0..9_u32, any::<u32>()]),
            bounds in proptest::array::uniform2(prop_oneof![0..9_u32, any::<u32>()]),
        ) {
            let (low, high) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]));
            let line = TagLine(words.map(AtomicU32::new));
            let is_between = |i: &usize| (low..=high).contains(&words[*i]);
            let expected = (0..16).filter(is_between).map(|i| 1 << i).sum::<u32>();
            for level in SimdLevel::available() {
                prop_assert_eq!(dispatch(level, HalfWordsBetween(&line, low, high - low)), expected, "{:?}", level);
            }
        }

        #[test]
        fn every_instruction_set_sorts_what_is_between(
            keys in proptest::array::uniform8(prop_oneof![proptest::sample::select(&WORDS[..]), 0..9_u64, any::<u64>()]),
            bounds in proptest::array::uniform2(prop_oneof![proptest::sample::select(&WORDS[..]), 0..9_u64, any::<u64>()]),
        ) {
            let (low, high) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]));
            prop_assume!(high - low < u64::MAX);
            // Equal keys would be out of order among themselves; there are none in a node.
            let mut words = [0; 16];
            for (i, key) in keys.into_iter().enumerate() {
                let is_new = !keys[..i].contains(&key);
                words[2 * i] = if is_new { key } else { high.wrapping_add(1) };
                words[2 * i + 1] = !key;
            }
            let line = |at: usize| KeyLine(std::array::from_fn(|i| AtomicU64::new(words[at + i])));
            let records = words.as_chunks::<2>().0.iter();
            let mut expected: Vec<[u64; 2]> =
                records.copied().filter(|record| (low..=high).contains(&record[0])).collect();
            expected.sort_unstable();
            for level in SimdLevel::available() {
                let pair = [line(0), line(8)];
                prop_assert_eq!(&dispatch(level, SortedBetween(&pair, low, high - low)), &expected, "{:?}", level);
            }
        }

        #[test]
        fn every_instruction_set_finds_the_descent(
            keys in proptest::collection::vec(prop_oneof![proptest::sample::select(&WORDS[..]), 0..9_u64, any::<u64>()], 0..20),
            sorted in 0..20_usize,
            from in 0..20_usize,
        ) {
            let mut keys = keys;
            let sorted = sorted.min(keys.len());
            keys[..sorted].sort_unstable();
            let records: Vec<[u64; 2]> = keys.iter().map(|&key| [key, !key]).collect();
            let expected = (from..keys.len()).find(|&i| keys.get(i + 1).is_some_and(|&next| keys[i] > next));
            for level in SimdLevel::available() {
                prop_assert_eq!(dispatch(level, Descent(&records, from)), expected, "{:?}", level);
            }
        }

        #[test]
        fn every_instruction_set_picks_and_compares_alike(
            words in proptest::collection::vec(prop_oneof![proptest::sample::select(&WORDS[..]), any::<u64>()], 32),
            key in prop_oneof![proptest::sample::select(&WORDS[..]), any::<u64>()],
            among: u16,
        ) {
            let lines: [KeyLine; 4] =
                std::array::from_fn(|i| KeyLine(std::array::from_fn(|j| AtomicU64::new(words[8 * i + j]))));
            let evens: [u64; 16] =
                std::array::from_fn(|i| if among >> i & 1 != 0 { words[2 * i] } else { u64::MAX });
            let below = (0..16).filter(|&i| evens[i] < key).map(|i| 1 << i).sum::<u16>();
            for level in SimdLevel::available() {
                prop_assert_eq!(dispatch(level, Evens(&lines, among, key)), (evens, below), "{:?}", level);
            }
        }
    }
}
