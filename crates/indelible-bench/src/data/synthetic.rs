//! Keys that are made up, from the easiest to the hardest. What each of them is, [`super::Source`] says.

use super::draw::{Random, choose_below, distinct};
use anyhow::{Result, ensure};

pub fn uniform(count: usize, random: &mut Random) -> Result<Vec<u64>> {
    distinct(count, || random.word())
}

pub fn normal(count: usize, random: &mut Random) -> Result<Vec<u64>> {
    let (middle, deviation) = ((1_u64 << 63) as f64, (1_u64 << 59) as f64);
    distinct(count, || (middle + deviation * random.normal()) as u64)
}

pub fn lognormal(sigma: f64, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    distinct(count, || (libm::exp(sigma * random.normal()) * 1e9) as u64)
}

/// Each key is somewhere in a stretch of its own as wide as the piece's gap: evenly spaced but for that, so that a line
/// is never off by more than a place.
pub fn piecewise(segments: u64, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    ensure!(
        segments <= count as u64,
        "{segments} pieces cannot be made of {count} keys"
    );
    let mut keys = Vec::with_capacity(count);
    let mut next = random.below(1 << 32);
    for piece in 1..=segments {
        // The limits keep 2^30 keys within 64 bits; a slope reaches one in 3 * 10^7 pieces.
        let gap = (libm::exp(2.0 * random.normal()) * 65536.0).clamp(2.0, 4e9) as u64;
        let end = (u128::from(piece) * count as u128 / u128::from(segments)) as usize;
        while keys.len() < end {
            keys.push(next + random.below(gap));
            next += gap;
        }
    }
    Ok(keys)
}

pub fn clustered(clusters: u64, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    ensure!(
        clusters <= count as u64 / 2,
        "{clusters} clusters cannot be made of half of {count} keys"
    );
    let starts: Vec<u64> = (0..clusters).map(|_| random.word()).collect();
    let mut drawn = 0;
    distinct(count, || {
        drawn += 1;
        let (round, cluster) = (drawn / 2 / clusters, drawn / 2 % clusters);
        match drawn % 2 {
            0 => starts[cluster as usize].wrapping_add(round),
            _ => random.word(),
        }
    })
}

pub fn sawtooth(teeth: u64, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    ensure!(
        teeth <= count as u64,
        "{teeth} teeth cannot be made of {count} keys"
    );
    let mut key = random.below(1 << 32);
    let gap = |position| {
        let along = (position as f64 * teeth as f64 / count as f64).fract();
        // Twice as wide and drawn from 1 on: the gap is right on average.
        let gap = 2.0 * libm::exp2(30.0 * along);
        key += 1 + random.below(gap as u64);
        key
    };
    Ok((0..count).map(gap).collect())
}

pub fn exponential(count: usize, random: &mut Random) -> Result<Vec<u64>> {
    distinct(count, || libm::exp2(64.0 * random.unit()) as u64)
}

pub fn low_bits(bits: u32, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    if bits == 64 {
        return uniform(count, random);
    }
    let same = random.word() >> bits << bits;
    let mut keys = choose_below(1 << bits, count, random)?;
    keys.iter_mut().for_each(|key| *key |= same);
    Ok(keys)
}

/// Sixty-four biased bits at once: eight random words, combined by the binary digits of the share from the lowest on.
/// After each digit the probability of a 1 is `(digit + what it was) / 2`: OR adds a half, AND takes one.
pub fn cascade(share: f64, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    let digits = (share * 256.0).round() as u32;
    distinct(count, || {
        (digits.trailing_zeros()..8).fold(0, |key, digit| {
            let word = random.word();
            match digits >> digit & 1 {
                1 => key | word,
                _ => key & word,
            }
        })
    })
}
