//! No special instructions: what every architecture can run.

use super::{KeyLine, MOST_RANKED, Ranks, Simd};
use crate::concurrency::sync::atomic::Ordering;

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Simd for Plain {
    #[inline(always)]
    fn count_below(line: &KeyLine, among: u8, bound: i64) -> usize {
        line.0.iter().enumerate().fold(0, |count, (i, word)| {
            let is_below = (word.load(Ordering::Relaxed) as i64) < bound;
            count + usize::from(is_below & (among >> i & 1 != 0))
        })
    }

    #[inline(always)]
    fn equal(line: &KeyLine, key: u64) -> u32 {
        line.0.iter().enumerate().fold(0, |mask, (i, word)| {
            mask | (u32::from(word.load(Ordering::Relaxed) == key) << i)
        })
    }

    #[inline(always)]
    fn ranks(lines: &[KeyLine; 4], among: u16, _: u64, _: u64) -> Ranks {
        let keys: [u64; 16] = std::array::from_fn(|i| {
            if among >> i & 1 != 0 {
                lines[i / 4].0[i % 4 * 2].load(Ordering::Relaxed)
            } else {
                u64::MAX
            }
        });
        let mut ranks = [0; 16];
        for other in &keys[1..=MOST_RANKED] {
            for (rank, key) in ranks.iter_mut().zip(&keys) {
                *rank += 2 * u16::from(other < key);
            }
        }
        Ranks(ranks)
    }
}
