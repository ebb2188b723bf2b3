//! Comparing one key with a cache line of keys, with the widest instructions that the CPU has.
//!
//! The searches are generic over [`Simd`] and are compiled once per instruction set; [`dispatch`] chooses at run time.
//! [`Plain`] needs nothing and is what other architectures run; tests run every kind that the machine has.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Eight keys in one cache line. Read while others may be writing them: what is read may be torn, and the caller
/// validates a version afterwards.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct KeyLine(pub(crate) [AtomicU64; 8]);

/// One instruction set.
pub(crate) trait Simd: Copy {
    /// Eight keys in registers.
    type Keys: Copy;

    /// Takes a line into registers.
    fn load(line: &KeyLine) -> Self::Keys;

    /// Takes eight words into registers.
    fn pack(words: [u64; 8]) -> Self::Keys;

    /// Bit `i` of the result says whether key `i` is at most `key`, as unsigned numbers.
    fn at_most_in(keys: Self::Keys, key: u64) -> u32;

    /// How many of the keys in `line` whose bit is set in `among` are at most `key`.
    #[inline(always)]
    fn count_at_most(line: &KeyLine, among: u8, key: u64) -> usize {
        (Self::at_most_in(Self::load(line), key) & u32::from(among)).count_ones() as usize
    }
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
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("bmi2")
            {
                levels.push(Self::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") {
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
        SimdLevel::Plain => kernel.run::<Plain>(),
    }
}

/// No special instructions.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Simd for Plain {
    type Keys = [u64; 8];

    #[inline(always)]
    fn load(line: &KeyLine) -> [u64; 8] {
        std::array::from_fn(|i| line.0[i].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn pack(words: [u64; 8]) -> [u64; 8] {
        words
    }

    #[inline(always)]
    fn at_most_in(keys: [u64; 8], key: u64) -> u32 {
        keys.iter()
            .enumerate()
            .fold(0, |mask, (i, &word)| mask | (u32::from(word <= key) << i))
    }
}

#[cfg(all(target_arch = "x86_64", not(loom)))]
mod x86 {
    use super::{Kernel, KeyLine, Simd};
    use std::arch::x86_64::{
        __m256i, __m512i, _mm256_castsi256_pd, _mm256_cmpgt_epi64, _mm256_movemask_pd,
        _mm256_set1_epi64x, _mm256_xor_si256, _mm512_cmple_epu64_mask, _mm512_set1_epi64,
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

    impl Simd for Avx512 {
        type Keys = __m512i;

        #[inline(always)]
        fn load(line: &KeyLine) -> __m512i {
            // SAFETY: the line is 64 aligned, live bytes; the load is volatile because others may be writing, and a torn
            // result is discarded by the caller's version check.
            unsafe { std::ptr::from_ref(line).cast::<__m512i>().read_volatile() }
        }

        #[inline(always)]
        fn pack(words: [u64; 8]) -> __m512i {
            // SAFETY: both types are 64 bytes for which every bit pattern is valid.
            unsafe { std::mem::transmute(words) }
        }

        #[inline(always)]
        fn at_most_in(keys: __m512i, key: u64) -> u32 {
            // SAFETY: reached only through `with_avx512`.
            unsafe { u32::from(_mm512_cmple_epu64_mask(keys, _mm512_set1_epi64(key as i64))) }
        }
    }

    #[derive(Clone, Copy)]
    pub(super) struct Avx2;

    impl Simd for Avx2 {
        type Keys = [__m256i; 2];

        #[inline(always)]
        fn load(line: &KeyLine) -> [__m256i; 2] {
            // SAFETY: as in `Avx512`.
            unsafe {
                std::ptr::from_ref(line)
                    .cast::<[__m256i; 2]>()
                    .read_volatile()
            }
        }

        #[inline(always)]
        fn pack(words: [u64; 8]) -> [__m256i; 2] {
            // SAFETY: as in `Avx512`.
            unsafe { std::mem::transmute(words) }
        }

        #[inline(always)]
        fn at_most_in(keys: [__m256i; 2], key: u64) -> u32 {
            // SAFETY: reached only through `with_avx2`.
            unsafe {
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

/// [`prefetch`] of what is read once: it should not push from the caches what is read often.
#[inline(always)]
pub(crate) fn prefetch_once<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_NTA, _mm_prefetch};
        // SAFETY: as in `prefetch`.
        unsafe { _mm_prefetch::<_MM_HINT_NTA>(address.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct AtMost<'a>(&'a KeyLine, u64);

    impl Kernel for AtMost<'_> {
        type Out = (u32, usize);

        #[inline(always)]
        fn run<S: Simd>(self) -> Self::Out {
            (
                S::at_most_in(S::load(self.0), self.1),
                S::count_at_most(self.0, AMONG, self.1),
            )
        }
    }

    const AMONG: u8 = 0b1011_0110;

    #[test]
    fn every_instruction_set_compares_as_unsigned_numbers() {
        let words = [
            0,
            1,
            (1 << 63) - 1,
            1 << 63,
            (1 << 63) + 1,
            u64::MAX - 1,
            u64::MAX,
            u64::MAX,
        ];
        let line = KeyLine(words.map(AtomicU64::new));
        for level in SimdLevel::available() {
            for key in words {
                let expected = (0..8)
                    .filter(|&i| words[i] <= key)
                    .map(|i| 1 << i)
                    .sum::<u32>();
                let count = (expected & u32::from(AMONG)).count_ones() as usize;
                assert_eq!(
                    dispatch(level, AtMost(&line, key)),
                    (expected, count),
                    "{level:?} {key:#x}"
                );
            }
        }
    }
}
