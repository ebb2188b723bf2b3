//! Every instruction set that the machine has gives what plain Rust gives.

use super::*;
use proptest::prelude::*;

struct InLine<'a>(&'a KeyLine, u64);

impl Kernel for InLine<'_> {
    type Out = (u32, usize);

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        (
            S::equal(self.0, self.1),
            S::count_below(self.0, AMONG, self.1 as i64),
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

struct WithKey<'a>(&'a [KeyLine; 2], [u64; 2]);

impl Kernel for WithKey<'_> {
    /// Where the first record with either key begins, and where one with the first key.
    type Out = [Option<usize>; 3];

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        let first = |records: u32| (records != 0).then(|| S::first_of(records));
        let [one, other] = S::with_either_key(self.0, self.1).map(first);
        [one, other, first(S::with_key(self.0, self.1[0]))]
    }
}

struct Records<'a>(&'a KeyLine);

impl Kernel for Records<'_> {
    type Out = [u64; 8];

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        S::records(self.0).words()
    }
}

#[test]
fn every_instruction_set_copies_records() {
    let line = KeyLine(std::array::from_fn(|i| {
        AtomicU64::new(!(i as u64) << 50 | i as u64)
    }));
    for level in SimdLevel::available() {
        assert_eq!(dispatch(level, Records(&line)), line.words(), "{level:?}");
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

struct RanksOf<'a>(&'a [KeyLine; 4], u16, u64, u64);

impl Kernel for RanksOf<'_> {
    type Out = [usize; 16];

    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Out {
        let ranks = S::ranks(self.0, self.1, self.2, self.3);
        std::array::from_fn(|record| ranks.of(record))
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
fn every_instruction_set_compares_a_line() {
    let line = KeyLine(WORDS.map(AtomicU64::new));
    for level in SimdLevel::available() {
        for key in WORDS {
            let is_below = |&i: &usize| AMONG >> i & 1 != 0 && (WORDS[i] as i64) < key as i64;
            let count = (0..8).filter(is_below).count();
            let equal = (0..8)
                .filter(|&i| WORDS[i] == key)
                .map(|i| 1 << i)
                .sum::<u32>();
            assert_eq!(
                dispatch(level, InLine(&line, key)),
                (equal, count),
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
    fn every_instruction_set_finds_the_record_with_a_key(words in proptest::array::uniform16(0..40_u64), two in proptest::array::uniform2(0..40_u64)) {
        // Keys that are there once or not at all, and values that look like keys.
        let mut words = words;
        for i in (0..16).step_by(2) {
            words[i] += 40 * (i as u64 % 4);
        }
        let line = |at: usize| KeyLine(std::array::from_fn(|i| AtomicU64::new(words[at + i])));
        let pair = [line(0), line(8)];
        for level in SimdLevel::available() {
            let found = dispatch(level, WithKey(&pair, two));
            prop_assert_eq!(found[0], found[2]);
            for (key, found) in two.into_iter().zip(found) {
                let is_there = (0..16).step_by(2).any(|i| words[i] == key);
                prop_assert_eq!(found.is_some(), is_there, "{:?}", level);
                prop_assert!(found.is_none_or(|at| at % RECORD_BYTES == 0 && words[at / 8] == key), "{:?}", level);
            }
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
    fn every_instruction_set_ranks_alike(
        words in proptest::collection::vec(prop_oneof![proptest::sample::select(&WORDS[..]), 0..9_u64, any::<u64>()], 32),
        among: u16,
    ) {
        let among = among & 0x7ffe;
        let lines: [KeyLine; 4] =
            std::array::from_fn(|i| KeyLine(std::array::from_fn(|j| AtomicU64::new(words[8 * i + j]))));
        let keys: [u64; 16] =
            std::array::from_fn(|i| if among >> i & 1 != 0 { words[2 * i] } else { u64::MAX });
        let expected: [usize; 16] =
            std::array::from_fn(|i| keys.iter().filter(|&&other| other < keys[i]).count());
        let ranked = || (1..15).filter(|i| among >> i & 1 != 0).map(|i| keys[i]);
        let (low, high) = (ranked().min().unwrap_or(0), ranked().max().unwrap_or(0));
        for level in SimdLevel::available() {
            for (low, high) in [(low, high), (0, u64::MAX), (low / 2, high)] {
                let mut ranks = dispatch(level, RanksOf(&lines, among, low, high - low));
                for record in (0..16).filter(|i| among >> i & 1 == 0) {
                    prop_assert!([expected[record], among.count_ones() as usize].contains(&ranks[record]));
                    ranks[record] = expected[record];
                }
                prop_assert_eq!(ranks, expected, "{:?}", level);
            }
        }
    }
}

struct IsStrict<'a>(&'a [[u64; 2]]);

impl Kernel for IsStrict<'_> {
    type Out = [bool; 2];

    #[inline(always)]
    fn run<S: Simd>(self) -> [bool; 2] {
        [S::is_strict::<true>(self.0), S::is_strict::<false>(self.0)]
    }
}

#[test]
fn disorder_is_found_wherever_it_is() {
    for level in SimdLevel::available() {
        for length in 0..30_u64 {
            let up: Vec<[u64; 2]> = (0..length).map(|i| [u64::MAX - 40 + i, 99 - i]).collect();
            let down: Vec<[u64; 2]> = up.iter().rev().copied().collect();
            let is_short = length < 2;
            assert_eq!(dispatch(level, IsStrict(&up)), [true, is_short]);
            assert_eq!(dispatch(level, IsStrict(&down)), [is_short, true]);
            for at in 1..up.len() {
                for mut records in [up.clone(), down.clone()] {
                    records[at][0] = records[at - 1][0];
                    assert_eq!(dispatch(level, IsStrict(&records)), [false, false]);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn words_are_ranked(all in proptest::collection::vec(prop_oneof![any::<u64>(), 0..3_u64], 0..=40)) {
        let mut words = [0; 40];
        words[..all.len()].copy_from_slice(&all);
        let words = &words;
        for level in SimdLevel::available() {
            let ranks = dispatch(level, RankWords { words, count: all.len() });
            for (word, rank) in all.iter().zip(ranks) {
                let lower = all.iter().filter(|other| *other < word).count();
                prop_assert_eq!(lower as u64, rank);
            }
        }
    }
}

struct SharedBytes<'a>(&'a [u8; 64], &'a [u8; 64]);

impl Kernel for SharedBytes<'_> {
    type Out = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        S::shared_bytes(self.0, self.1)
    }
}

#[test]
fn every_instruction_set_finds_what_two_texts_share() {
    let text: [u8; 64] = std::array::from_fn(|at| at as u8);
    for level in SimdLevel::available() {
        assert_eq!(dispatch(level, SharedBytes(&text, &text)), 64);
        for at in 0..64 {
            for behind in at..64 {
                let mut other = text;
                other[at] ^= 0x80;
                other[behind] ^= 1;
                assert_eq!(dispatch(level, SharedBytes(&text, &other)), at);
            }
        }
    }
}

#[test]
fn lines_are_copied() {
    let line = |from: u64| KeyLine(std::array::from_fn(|i| AtomicU64::new(from + i as u64)));
    let from: [KeyLine; 5] = std::array::from_fn(|i| line(0x0123_4567_89ab_cdef << i));
    for level in SimdLevel::available() {
        let mut to = [[0; 64]; 4];
        dispatch(
            level,
            CopyLines {
                from: &from,
                to: &mut to,
            },
        );
        for (to, from) in to.iter().zip(&from) {
            let words = from.words().map(u64::to_ne_bytes);
            assert_eq!(to, words.as_flattened());
        }
    }
}
