//! The fuzz targets on bytes from a seed; `cargo +nightly fuzz run` is the long form.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

fn bytes(seed: u64, most: usize) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(seed);
    let length = random.random_range(0..most);
    (0..length).map(|_| random.random()).collect()
}

/// `INDELIBLE_FUZZ` times as many.
fn cases(number: u64) -> u64 {
    let times = std::env::var("INDELIBLE_FUZZ").map_or(1, |times| times.parse().expect("a number"));
    number * times
}

#[test]
fn operations_from_any_bytes_survive_crashes() {
    for seed in 0..cases(30) {
        indelible_crash::fuzz::operations(&bytes(seed, 160));
    }
}

#[test]
fn a_damaged_pool_is_an_error_and_never_a_panic() {
    for seed in 0..cases(4_000) {
        let data = bytes(seed, [12, 24, 40, 80][seed as usize % 4]);
        if std::panic::catch_unwind(|| indelible_crash::fuzz::damaged_pool(&data)).is_err() {
            panic!("seed {seed}: {data:?}");
        }
    }
}
