//! No special instructions: what every architecture can run.

use super::{KeyLine, Simd};
use crate::concurrency::sync::atomic::Ordering;

/// Plain Rust.
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
