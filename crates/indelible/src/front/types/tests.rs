//! Keys and values as words.

use super::*;
use proptest::prelude::*;

fn keeps_order<K: Key + PartialOrd + std::fmt::Debug>(a: K, b: K) {
    let (code_a, code_b) = (a.encode().unwrap(), b.encode().unwrap());
    assert_eq!(a.partial_cmp(&b), Some(code_a.cmp(&code_b)), "{a:?} {b:?}");
    assert_eq!(K::decode(code_a), Some(a));
}

#[test]
fn the_ends_of_every_domain_keep_their_order() {
    for pair in [u64::MIN, 1, u64::MAX - 1, u64::MAX].windows(2) {
        keeps_order(pair[0], pair[1]);
    }
    for pair in [i64::MIN, -1, 0, 1, i64::MAX].windows(2) {
        keeps_order(pair[0], pair[1]);
    }
    for pair in [i32::MIN, -1, 0, 1, i32::MAX].windows(2) {
        keeps_order(pair[0], pair[1]);
    }
    let tiny = f64::from_bits(1);
    for pair in [
        f64::NEG_INFINITY,
        f64::MIN,
        -1.0,
        -tiny,
        0.0,
        tiny,
        1.0,
        f64::MAX,
        f64::INFINITY,
    ]
    .windows(2)
    {
        keeps_order(pair[0], pair[1]);
    }
    let tiny = f32::from_bits(1);
    for pair in [
        f32::NEG_INFINITY,
        f32::MIN,
        -tiny,
        0.0,
        tiny,
        f32::MAX,
        f32::INFINITY,
    ]
    .windows(2)
    {
        keeps_order(pair[0], pair[1]);
    }
}

#[test]
fn nan_is_refused_and_the_two_zeros_are_one_key() {
    assert!(matches!(f64::NAN.encode(), Err(Error::NanKey)));
    assert!(matches!((-f32::NAN).encode(), Err(Error::NanKey)));
    assert_eq!((-0.0f64).encode().unwrap(), 0.0f64.encode().unwrap());
}

#[test]
fn a_nan_value_keeps_its_bits() {
    let odd = f64::from_bits(0x7ff8_dead_beef_0001);
    assert_eq!(
        f64::from_word(odd.to_word()).map(f64::to_bits),
        Some(odd.to_bits())
    );
}

/// Words that a map of `T` may meet in a damaged file: what is read from them must be what would be written.
fn reads_only_what_it_writes<T: Key + Value>(word: u64) {
    if let Some(key) = T::decode(word) {
        assert_eq!(key.encode().unwrap(), word);
    }
    if let Some(value) = T::from_word(word) {
        assert_eq!(value.to_word(), word);
    }
}

fn keeps_bits<T: Value>(word: u64, bits: u32) {
    let word = word & u64::MAX.checked_shr(64 - bits).unwrap_or(0);
    assert_eq!(
        T::from_word(word).map(T::to_word),
        Some(word),
        "{}",
        T::TYPE
    );
}

#[test]
fn codes_are_unique_and_found() {
    for (at, &code) in Type::all().iter().enumerate() {
        assert_eq!(
            code as usize,
            at + 1,
            "codes of the file format do not move"
        );
        assert_eq!(Type::from_code(code as u8), Some(code));
    }
    assert_eq!(Type::from_code(0), None);
    assert_eq!(Type::from_code(Type::all().len() as u8 + 1), None);
    assert_eq!(
        format!("{:>9}|{}", Type::Bytes8, Type::Unit),
        "  [u8; 8]|()"
    );
}

#[test]
fn small_domains_keep_their_order_as_a_whole() {
    fn keep<K: Key + PartialOrd + std::fmt::Debug>(all: impl Iterator<Item = K>) {
        let all: Vec<K> = all.collect();
        for pair in all.windows(2) {
            keeps_order(pair[0], pair[1]);
        }
        keeps_order(all[0], all[all.len() - 1]);
    }
    keep(u8::MIN..=u8::MAX);
    keep(i8::MIN..=i8::MAX);
    keep(u16::MIN..=u16::MAX);
    keep(i16::MIN..=i16::MAX);
    keep([false, true].into_iter());
    keep('\0'..=char::MAX);
    keep((0..=u8::MAX).map(|byte| [byte]));
    keep((0..=u16::MAX).map(u16::to_be_bytes));
}

#[test]
fn what_no_key_and_no_value_is_stored_as_is_refused() {
    let no_characters = [0xd800, 0xdfff, 0x11_0000, u64::MAX];
    for word in no_characters {
        assert_eq!((char::decode(word), char::from_word(word)), (None, None));
    }
    assert_eq!((bool::decode(2), bool::from_word(1 << 8)), (None, None));
    assert_eq!((u8::decode(256), u8::from_word(256)), (None, None));
    assert_eq!((i8::decode(0), i8::from_word(256)), (None, None));
    assert_eq!(
        (<[u8; 3]>::decode(1 << 24), <[u8; 3]>::from_word(1 << 24)),
        (None, None)
    );
    assert_eq!((f64::decode(0), f32::decode(u64::MAX)), (None, None), "NaN");
    let between = encode_f64(0.1).unwrap();
    assert_eq!(f32::decode(between), None, "no `f32` is 0.1");
    assert_eq!(f64::decode(!SIGN_64), None, "a zero with a sign");
}

proptest! {
    #[test]
    fn order_is_kept(a: u64, b: u64) {
        keeps_order(a, b);
        keeps_order(a as i64, b as i64);
        keeps_order(a as u32, b as u32);
        keeps_order(a as i32, b as i32);
        keeps_order(a as i16, b as i16);
        keeps_order(a.to_ne_bytes(), b.to_ne_bytes());
        let cut = |word: u64| <[u8; 5]>::try_from(&word.to_ne_bytes()[..5]).unwrap();
        keeps_order(cut(a), cut(b));
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        if !x.is_nan() && !y.is_nan() {
            keeps_order(x, y);
        }
        let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        if !x.is_nan() && !y.is_nan() {
            keeps_order(x, y);
        }
    }

    #[test]
    fn values_keep_every_bit(word: u64) {
        keeps_bits::<u64>(word, 64);
        keeps_bits::<i64>(word, 64);
        keeps_bits::<f64>(word, 64);
        keeps_bits::<[u8; 8]>(word, 64);
        keeps_bits::<u32>(word, 32);
        keeps_bits::<i32>(word, 32);
        keeps_bits::<f32>(word, 32);
        keeps_bits::<u16>(word, 16);
        keeps_bits::<i16>(word, 16);
        keeps_bits::<u8>(word, 8);
        keeps_bits::<i8>(word, 8);
        keeps_bits::<bool>(word, 1);
        keeps_bits::<char>(word, 15);
        keeps_bits::<[u8; 1]>(word, 8);
        keeps_bits::<[u8; 7]>(word, 56);
    }

    #[test]
    fn damaged_words_are_refused_or_read_as_written(word: u64, shift in 0..64_u32) {
        let word = word >> shift;
        reads_only_what_it_writes::<u64>(word);
        reads_only_what_it_writes::<i64>(word);
        reads_only_what_it_writes::<u32>(word);
        reads_only_what_it_writes::<i32>(word);
        reads_only_what_it_writes::<i32>(word ^ SIGN_64);
        reads_only_what_it_writes::<f64>(word);
        reads_only_what_it_writes::<f32>(word);
        reads_only_what_it_writes::<i8>(word);
        reads_only_what_it_writes::<bool>(word);
        reads_only_what_it_writes::<char>(word);
        reads_only_what_it_writes::<[u8; 3]>(word);
        reads_only_what_it_writes::<[u8; 8]>(word);
    }
}
