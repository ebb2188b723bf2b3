//! Random numbers that are the same everywhere, and exactly as many distinct keys as are wanted.

use anyhow::{Result, bail};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

/// A seeded generator. `rand`'s `StdRng` may change with its version and its distributions call the system's
/// mathematical functions; what follows from this one does neither.
pub struct Random {
    bits: Xoshiro256PlusPlus,
    /// The polar method makes normal numbers in pairs; this is the other one.
    spare: Option<f64>,
}

impl Random {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Self {
        // Operations are drawn from the run's seed too; keys must not follow the same path.
        let bits = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x6b65_7973_2061_7265);
        Self { bits, spare: None }
    }

    /// Uniform over all of `u64`.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.bits.next_u64()
    }

    /// Uniform over `0..end`; biased by less than `end / 2^64`.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(end)) >> 64) as u64
    }

    /// Uniform from 0 to 1, without 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal with mean 0 and standard deviation 1, by Marsaglia's polar method.
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * self.unit() - 1.0, 2.0 * self.unit() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * libm::log(square) / square).sqrt();
                self.spare = Some(y * factor);
                return x * factor;
            }
        }
    }
}

/// Rounds of [`distinct`] before it says that there are no more keys. Even if nine of ten draws repeat a key, the missing
/// ones dwindle to nothing in this many rounds.
const ROUNDS: usize = 200;

/// Draws keys until there are `count` distinct ones; returns them in ascending order.
///
/// Each round draws as many as are missing, so there is never one too many: whichever was dropped, the rest would no
/// longer be distributed as the draws are.
pub fn distinct(count: usize, mut draw: impl FnMut() -> u64) -> Result<Vec<u64>> {
    let mut keys = Vec::with_capacity(count);
    let mut more = Vec::new();
    for _ in 0..ROUNDS {
        let missing = count - keys.len();
        if missing == 0 {
            return Ok(keys);
        }
        if keys.is_empty() {
            keys.extend((0..missing).map(|_| draw()));
            keys.sort_unstable();
        } else {
            more.clear();
            more.extend((0..missing).map(|_| draw()));
            more.sort_unstable();
            merge(&mut keys, &more);
        }
        keys.dedup();
    }
    let found = keys.len();
    bail!("{count} distinct keys are wanted, and after {ROUNDS} rounds there are only {found}");
}

/// Merges two ascending lists into the first, from the back, so that nothing is copied but what moves.
fn merge(keys: &mut Vec<u64>, more: &[u64]) {
    let mut left = keys.len();
    keys.extend_from_slice(more);
    let mut end = keys.len();
    for &key in more.iter().rev() {
        while left > 0 && keys[left - 1] > key {
            left -= 1;
            end -= 1;
            keys[end] = keys[left];
        }
        end -= 1;
        keys[end] = key;
    }
}

/// `count` of the given keys, which may be in any order and repeated: distinct ones, each as likely as the others, in
/// ascending order.
pub fn choose(mut keys: Vec<u64>, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    if !keys.is_sorted() {
        keys.sort_unstable();
    }
    keys.dedup();
    enough(keys.len() as u64, count)?;
    let mut pick = picker(keys.len(), count, random);
    keys.retain(|_| pick());
    keys.shrink_to_fit();
    Ok(keys)
}

/// `count` different numbers of `0..end`, in ascending order.
pub fn choose_below(end: u64, count: usize, random: &mut Random) -> Result<Vec<u64>> {
    enough(end, count)?;
    // Drawing until there are enough takes long where most draws repeat an earlier one; then look at every number.
    if end / 4 >= count as u64 {
        return distinct(count, || random.below(end));
    }
    let mut pick = picker(end as usize, count, random);
    Ok((0..end).filter(|_| pick()).collect())
}

fn enough(distinct: u64, count: usize) -> Result<()> {
    if distinct < count as u64 {
        bail!("{count} distinct keys are wanted, and there are only {distinct}");
    }
    Ok(())
}

/// Says for each of `total` things in turn whether it is among the `count` chosen (Knuth, The Art of Computer Programming,
/// section 3.4.2, algorithm S).
fn picker(total: usize, count: usize, random: &mut Random) -> impl FnMut() -> bool {
    let (mut total, mut wanted) = (total as u64, count as u64);
    move || {
        let picked = random.below(total) < wanted;
        total -= 1;
        wanted -= u64::from(picked);
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_same_on_every_platform() {
        let mut random = Random::new(7);
        let words = [random.word(), random.below(1000), random.unit().to_bits()];
        assert_eq!(words, [0xb878_22aa_cee6_f79b, 193, 0x3faf_2287_54f1_08c0]);
        let normal = [random.normal().to_bits(), random.normal().to_bits()];
        assert_eq!(normal, [0x4000_ed3d_a445_6f91, 0xbff4_4c61_f0f4_e1ab]);
    }

    #[test]
    fn normal_numbers_have_their_mean_and_deviation() {
        let mut random = Random::new(1);
        let numbers: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 1e5;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02,
            "{mean} {variance}"
        );
    }

    #[test]
    fn repeated_draws_are_replaced_until_there_are_enough() {
        let mut random = Random::new(2);
        let keys = distinct(200, || random.below(256)).unwrap();
        assert!(keys.len() == 200 && keys.is_sorted_by(|a, b| a < b));
        let error = distinct(257, || random.below(256)).unwrap_err().to_string();
        assert!(error.contains("there are only 2"), "{error}");
    }

    #[test]
    fn a_choice_is_exact_and_fair() {
        let mut random = Random::new(3);
        let mut chosen = [0_u32; 10];
        for _ in 0..3000 {
            let keys = choose((0..10).rev().chain(0..10).collect(), 5, &mut random).unwrap();
            assert!(keys.len() == 5 && keys.is_sorted_by(|a, b| a < b));
            keys.iter().for_each(|&key| chosen[key as usize] += 1);
        }
        assert!(
            chosen.iter().all(|times| (1350..1650).contains(times)),
            "{chosen:?}"
        );
        assert!(choose(vec![1, 1, 2], 3, &mut random).is_err());
    }
}
