//! How many random cases a test of a contract tries.

/// `short`, times `INDELIBLE_CASES`, which `.ci/deep` sets.
pub fn cases(short: u32) -> u32 {
    let times = std::env::var("INDELIBLE_CASES").map_or(1, |times| {
        times.parse().expect("INDELIBLE_CASES is a number")
    });
    short * times
}
