//! Comparing one key with a cache line of keys, with the widest instructions that the CPU has.
//!
//! Each instruction set has a file, and all files have the same functions: `portable`, `avx2` (with `avx2_records`), `avx512`. The searches are
//! generic over [`Simd`] and are compiled once per instruction set; [`dispatch`] chooses at run time. [`Plain`] needs no
//! special instructions and runs on other architectures. Tests run every instruction set that the machine has, and `choice` lets
//! a process choose another one than the best.

#[cfg(all(target_arch = "x86_64", not(loom)))]
mod avx2;
#[cfg(all(target_arch = "x86_64", not(loom)))]
mod avx2_records;
#[cfg(all(target_arch = "x86_64", not(loom)))]
mod avx512;
mod choice;
mod portable;

pub(crate) use choice::expect_kernel;
pub use choice::{kernel, kernels};
pub(crate) use portable::Plain;

use crate::concurrency::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::pmem::schedule::point;

/// Eight keys in one cache line. Read while others may be writing them: what is read may be torn, and the caller
/// validates a version afterwards.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct KeyLine(pub(crate) [AtomicU64; 8]);

impl KeyLine {
    /// The words of the line, each as it was at some moment.
    #[inline(always)]
    #[cfg(test)]
    pub(crate) fn words(&self) -> [u64; 8] {
        self.0.each_ref().map(|word| word.load(Ordering::Relaxed))
    }
}

/// Records, a key and a value each, in one cache line.
pub(crate) const LINE_RECORDS: usize = 4;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 64 / LINE_RECORDS;

/// Records in two cache lines.
pub(crate) const PAIR_RECORDS: usize = 2 * LINE_RECORDS;

/// Sixteen 32-bit half words in one cache line. Read while others may be writing them, as [`KeyLine`] is.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct TagLine(pub(crate) [AtomicU32; 16]);

/// One instruction set.
pub(crate) trait Simd: Copy {
    /// The bytes of a line, each word of it as it was at some moment.
    #[inline(always)]
    fn bytes(line: &KeyLine) -> [u8; 64] {
        let mut bytes = [0; 64];
        let (words, _) = bytes.as_chunks_mut();
        for (to, word) in words.iter_mut().zip(&line.0) {
            *to = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        bytes
    }

    /// A copy of a line of records, in which each value was read after its key: so where a record's value is stored no later than its key, and stays
    /// with it, no version need be validated.
    #[inline(always)]
    fn records(line: &KeyLine) -> KeyLine {
        let mut words = [0; 8];
        for (to, record) in words.chunks_exact_mut(2).zip(line.0.chunks_exact(2)) {
            to[0] = record[0].load(Ordering::Acquire);
            to[1] = record[1].load(Ordering::Relaxed);
        }
        KeyLine(words.map(AtomicU64::new))
    }

    /// How many bytes two texts begin with both.
    #[inline(always)]
    fn shared_bytes(a: &[u8; 64], b: &[u8; 64]) -> usize {
        let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
        let mut shared = 0;
        for (a, b) in words {
            let differs = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
            shared += differs.trailing_zeros() as usize / 8;
            if differs != 0 {
                break;
            }
        }
        shared
    }

    /// Bit `i` of the result says whether key `i` is `key`.
    fn equal(line: &KeyLine, key: u64) -> u32;

    /// [`equal`](Self::equal) for the 16 keys of two lines.
    #[inline(always)]
    fn equal_in_pair(lines: &[KeyLine; 2], key: u64) -> u32 {
        Self::equal(&lines[0], key) | Self::equal(&lines[1], key) << 8
    }

    /// Which of the eight records of two lines have this key: 0 for none. Which bits stand for which record depends on the instruction
    /// set, and [`first_of`](Self::first_of) knows it.
    #[inline(always)]
    fn with_key(pair: &[KeyLine; 2], key: u64) -> u32 {
        const KEY_WORDS: u32 = 0x5555;
        Self::equal_in_pair(pair, key) & KEY_WORDS
    }

    /// [`with_key`](Self::with_key) for two keys.
    #[inline(always)]
    fn with_either_key(pair: &[KeyLine; 2], two: [u64; 2]) -> [u32; 2] {
        two.map(|key| Self::with_key(pair, key))
    }

    /// How many bytes into its pair of lines one of the records begins that a result of [`with_key`](Self::with_key) stands for, which is
    /// not 0.
    #[inline(always)]
    fn first_of(records: u32) -> usize {
        records.trailing_zeros() as usize / 2 * RECORD_BYTES
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

    /// Bit `i` of the result says whether point `i`, of two coordinates (f64) and a word that does not matter, lies between `low` and `high`,
    /// edges included; at most 64 points. Without a branch: which points do cannot be predicted.
    #[inline(always)]
    fn points_between(points: &[[AtomicU64; 3]], low: [f64; 2], high: [f64; 2]) -> u64 {
        let mut between = 0;
        for (i, point) in points.iter().enumerate() {
            let x = f64::from_bits(point[0].load(Ordering::Relaxed));
            let y = f64::from_bits(point[1].load(Ordering::Relaxed));
            let is_between = (low[0] <= x) & (x <= high[0]) & (low[1] <= y) & (y <= high[1]);
            between |= u64::from(is_between) << i;
        }
        between
    }

    /// Squares of the distances, in one dimension, from a point to sixteen intervals, added to `sums`. `low` are the lower ends, `negated` the
    /// upper ends with the other sign; the point lies between `down` and `up`, which are finite. No distance is too large, but for the rounding
    /// of three operations.
    #[inline(always)]
    fn add_squares(low: &TagLine, negated: &TagLine, up: f32, down: f32, sums: &mut [f32; 16]) {
        for (i, sum) in sums.iter_mut().enumerate() {
            let before = f32::from_bits(low.0[i].load(Ordering::Relaxed)) - up;
            let behind = f32::from_bits(negated.0[i].load(Ordering::Relaxed)) + down;
            let gap = before.max(behind).max(0.0);
            *sum += gap * gap;
        }
    }

    /// Bit `i` of the result says whether half word `i`, taken as a float, is at most `limit`; neither is NaN.
    #[inline(always)]
    fn floats_at_most(line: &TagLine, limit: f32) -> u32 {
        line.0.iter().enumerate().fold(0, |mask, (i, word)| {
            let is_at_most = f32::from_bits(word.load(Ordering::Relaxed)) <= limit;
            mask | (u32::from(is_at_most) << i)
        })
    }

    /// Copies the records of pairs of lines whose keys are at most `span` above `low` to `out`, and returns their number. `out` has
    /// room for all records of the pairs; what lies behind the copied records means nothing. Fastest if the wanted records of a pair
    /// come first in the pair.
    #[inline(always)]
    fn records_between(pairs: &[[KeyLine; 2]], low: u64, span: u64, out: &mut [[u64; 2]]) -> usize {
        assert!(out.len() >= pairs.len() * PAIR_RECORDS);
        let mut count = 0;
        let lines = pairs.as_flattened().iter();
        for slot in lines.flat_map(|line| line.0.chunks_exact(2)) {
            let record = [0, 1].map(|word| slot[word].load(Ordering::Relaxed));
            // Written in any case: a branch on whether the record counts could not be predicted.
            out[count] = record;
            count += usize::from(record[0].wrapping_sub(low) <= span);
        }
        count
    }

    /// [`records_between`](Self::records_between) for one pair, with the records in order. `span` is below `u64::MAX`.
    #[inline(always)]
    fn sorted_between(
        pair: &[KeyLine; 2],
        low: u64,
        span: u64,
        out: &mut [[u64; 2]; PAIR_RECORDS],
    ) -> usize {
        let count = Self::records_between(std::slice::from_ref(pair), low, span, out);
        (1..count).for_each(|at| insert_in_order(out, at));
        count
    }

    /// Whether the keys of the records ascend strictly, or descend strictly.
    #[inline(always)]
    fn is_strict<const UP: bool>(records: &[[u64; 2]]) -> bool {
        // Without a branch per record: a short range must not pay for this.
        records.windows(2).fold(true, |is_strict, pair| {
            let [lower, upper] = if UP { [0, 1] } else { [1, 0] };
            is_strict & (pair[lower][0] < pair[upper][0])
        })
    }

    /// The first record from `from` on whose key is above that of the next one; none if they ascend from there to the end.
    #[inline(always)]
    fn descent(records: &[[u64; 2]], from: usize) -> Option<usize> {
        (from + 1..records.len())
            .find(|&next| records[next - 1][0] > records[next][0])
            .map(|next| next - 1)
    }

    /// How many of the words in `line` whose bit is set in `among` are below `bound`, as signed numbers: the comparison that AVX2 has.
    fn count_below(line: &KeyLine, among: u8, bound: i64) -> usize;

    /// For each of the sixteen records of four lines, how many of the records in `among` have a smaller key. For a record that is not in
    /// `among`, the number of all that are, or of all whose key is not `u64::MAX`. The first and the last record are not in `among`.
    ///
    /// The keys are at most `span` above `low`, which may save comparing all of their bits. Other keys, which mean damage, may get any
    /// ranks from 0 to [`MOST_RANKED`].
    ///
    /// All records are treated alike, in `among` or not, so that neither their number nor the order of their keys can mislead a branch.
    fn ranks(lines: &[KeyLine; 4], among: u16, low: u64, span: u64) -> Ranks;
}

/// The rank of each of sixteen records, doubled. None is above [`MOST_RANKED`].
#[repr(C, align(32))]
pub(crate) struct Ranks([u16; 2 * PAIR_RECORDS]);

/// Records that [`Simd::ranks`] ranks, at most: all sixteen but the first and the last.
pub(crate) const MOST_RANKED: usize = 14;

impl Ranks {
    /// The rank of a record.
    #[inline(always)]
    pub(crate) fn of(&self, record: usize) -> usize {
        usize::from(self.0[record]) / 2
    }

    /// Stores `record`, of which this is the number, at its rank.
    #[inline(always)]
    pub(crate) fn put(&self, number: usize, record: [u64; 2], out: &mut [[u64; 2]; 16]) {
        let word = usize::from(self.0[number]);
        debug_assert!(word <= 2 * MOST_RANKED);
        // SAFETY: a rank is a number of up to 14 comparisons, so the record goes into one of the first 15 places of `out`. Ranks are
        // doubled, and `out` taken as words, because the processor multiplies an index by 8 and not by 16.
        unsafe {
            out.as_mut_ptr()
                .cast::<u64>()
                .add(word)
                .cast::<[u64; 2]>()
                .write(record)
        }
    }
}

/// Moves the record at `at` to its place among the records before it, which are in order.
#[inline(always)]
pub(crate) fn insert_in_order(records: &mut [[u64; 2]], mut at: usize) {
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
    #[cfg_attr(
        loom,
        allow(clippy::vec_init_then_push, reason = "others come before it elsewhere")
    )]
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
        SimdLevel::Avx512 => unsafe { avx512::with_avx512(kernel) },
        // SAFETY: `Avx2` comes from `SimdLevel::available`, which asked the CPU.
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        SimdLevel::Avx2 => unsafe { avx2::with_avx2(kernel) },
        SimdLevel::Plain => plainly(kernel),
    }
}

/// Runs `kernel` without special instructions. Not inlined on x86-64, where it is seldom needed.
#[cfg_attr(target_arch = "x86_64", inline(never))]
#[cfg_attr(not(target_arch = "x86_64"), inline(always))]
fn plainly<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Plain>()
}

/// Copies as many lines as there are in both.
pub(crate) struct CopyLines<'a> {
    pub(crate) from: &'a [KeyLine],
    pub(crate) to: &'a mut [[u8; 64]],
}

impl Kernel for CopyLines<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            point();
            *to = S::bytes(from);
        }
    }
}

/// The rank of each of the first `count` words: how many of them are lower. The others get any ranks.
pub(crate) struct RankWords<'a, const WORDS: usize> {
    pub(crate) words: &'a [u64; WORDS],
    pub(crate) count: usize,
}

impl<const WORDS: usize> Kernel for RankWords<'_, WORDS> {
    type Out = [u64; WORDS];

    /// Each word is compared with all others, without a branch. The loops have no instructions of their own for each instruction set: compiled for
    /// one, they are those that a compiler finds.
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        // Most often the words fit fewer registers.
        if self.count <= 16 {
            self.among::<16>()
        } else {
            self.among::<WORDS>()
        }
    }
}

impl<const WORDS: usize> RankWords<'_, WORDS> {
    #[inline(always)]
    fn among<const FIRST: usize>(&self) -> [u64; WORDS] {
        // Signed words are what AVX2 compares.
        let signed: [i64; FIRST] = std::array::from_fn(|i| (self.words[i] ^ 1 << 63) as i64);
        let mut ranks = [0_i64; FIRST];
        for lower in &signed[..self.count.min(FIRST)] {
            for (rank, word) in ranks.iter_mut().zip(&signed) {
                *rank += i64::from(lower < word);
            }
        }
        let mut out = [0; WORDS];
        for (out, rank) in out.iter_mut().zip(ranks) {
            *out = rank as u64;
        }
        out
    }
}

/// The whole part of a number that fits `i32`. For others, and for what is no number, any number.
#[inline(always)]
pub(crate) fn whole_part(number: f32) -> i32 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_cvttss_si32, _mm_set_ss};
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_cvttss_si32(_mm_set_ss(number)) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        number as i32
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
mod tests;
